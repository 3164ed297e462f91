"""T5, mT5, umT5 and BART answer and train as plain transformers of the installed version do, whichever version that is.

`make test-oldest` and `make test-newest` run these with other versions.
"""

import functools

import numpy as np
import torch
import torch.nn.functional as F
from absl.testing import parameterized
from support import folder
from transformers import AutoModelForSeq2SeqLM, BartConfig, GenerationConfig, MT5Config, T5Config, UMT5Config

from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.inference.decoding import generation_options, uniform_numbers
from t5suite.inference.settings import Decoding
from t5suite.models.answering import answerer_for
from t5suite.models.chunked_loss import accept_loss_labels, takes_loss_labels
from t5suite.models.loading import load_model, load_tokenizer

TOKENIZER = "t5suite/data/mini/model"
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "dropout": 0.0, "bos_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
FAMILIES = {
    "t5": (T5Config, T5),
    "t5 untied": (T5Config, {**T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    "mt5": (MT5Config, T5),
    "umt5": (UMT5Config, T5),
    "umt5 untied": (UMT5Config, {**T5, "tie_word_embeddings": False}),
    "bart": (BartConfig, BART),
}
LONGEST = 7
ROWS, SOURCE = 5, 11


@functools.cache
def saved(family: str) -> str:
    """A folder with a model of the family, made and saved by plain transformers."""
    config_class, settings = FAMILIES[family]
    place = folder()
    tokenizer = load_tokenizer(TOKENIZER)
    torch.manual_seed(7)
    config = config_class(vocab_size=len(tokenizer), decoder_start_token_id=0, **settings)
    model = AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # so that distributions are not flat
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


@functools.cache
def plain(family: str):
    return AutoModelForSeq2SeqLM.from_pretrained(saved(family)).eval()


@functools.cache
def ours(family: str):
    return load_model(saved(family), tokenizer=load_tokenizer(saved(family))).eval()


def prompts() -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [[*draw.integers(5, 100, SOURCE - row).tolist(), 1] for row in range(ROWS)]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def answerer(family: str):
    return answerer_for(ours(family), load_tokenizer(saved(family)))


def answers(family: str, decoding: Decoding) -> list[list[list[int]]]:
    """Per prompt, the ids of its answers, without padding."""
    drawn = decoding.num_return_sequences if decoding.do_sample else 1
    draws = [(row, number) for row in range(ROWS) for number in range(drawn)]
    options = generation_options(decoding, ours(family), LONGEST, draws)
    texts = [prompts()[row] for row, _ in draws]
    written = answerer(family).generate(texts, **options)
    return [[until_end(ids) for ids, _ in of_prompt] for of_prompt in written]


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(1) + 1] if 1 in ids else ids


def plain_logits(family: str, answer: list[int], prompt: list[int]) -> torch.Tensor:
    """The logits after each token of start token and answer, computed at once and without a cache."""
    decoder_ids = torch.tensor([[0, *answer]])
    with torch.no_grad():
        return plain(family)(**padded([prompt]), decoder_input_ids=decoder_ids, use_cache=False).logits[0].float()


@parameterized.named_parameters((name.replace(" ", "_"), name) for name in FAMILIES)
class PlainTransformersTest(parameterized.TestCase):
    def test_greedy_answers(self, family):
        settings = GenerationConfig(
            max_new_tokens=LONGEST, do_sample=False, num_beams=1, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0,
        )  # fmt: skip
        expected = plain(family).generate(**padded(prompts()), generation_config=settings)[:, 1:].tolist()
        self.assertEqual(answers(family, Decoding()), [[until_end(ids)] for ids in expected])

    def test_beams(self, family):
        settings = GenerationConfig(
            max_new_tokens=LONGEST, do_sample=False, num_beams=4, num_return_sequences=2, pad_token_id=0,
            eos_token_id=1, decoder_start_token_id=0,
        )  # fmt: skip
        flat = plain(family).generate(**padded(prompts()), generation_config=settings)[:, 1:].tolist()
        expected = [[until_end(ids) for ids in flat[2 * row : 2 * row + 2]] for row in range(ROWS)]
        self.assertEqual(answers(family, Decoding(num_beams=4, num_return_sequences=2)), expected)

    def test_samples_with_a_seed(self, family):
        """Drawn again token by token from the logits of the whole answer so far, with the same random numbers."""
        decoding = Decoding(do_sample=True, temperature=1.3, num_return_sequences=2, seed=11)
        draws = [(row, number) for row in range(ROWS) for number in range(2)]
        lengths = set()
        for (row, number), (ids,) in zip(draws, answers(family, decoding), strict=True):
            uniforms = uniform_numbers(11, [(row, number)], LONGEST)[0]
            logits = plain_logits(family, ids[:-1], prompts()[row]) / 1.3
            cumulative = torch.softmax(logits.double(), -1).cumsum(-1).numpy()
            drawn = [int(np.searchsorted(line, u, side="right")) for line, u in zip(cumulative, uniforms)]
            self.assertEqual(ids, drawn)
            lengths.add(tuple(ids))
        self.assertGreater(len(lengths), 2)

    @torch.no_grad()
    def test_scores_of_candidates(self, family):
        candidates = [[14, 1], [14, 23, 1], [30, 31, 32, 1]]
        scores = answerer(family).candidate_scores(prompts(), [candidates] * ROWS)
        for prompt, of_prompt in zip(prompts(), scores, strict=True):
            for candidate, score in zip(candidates, of_prompt, strict=True):
                log_probs = plain_logits(family, candidate[:-1], prompt).log_softmax(-1)
                expected = log_probs[range(len(candidate)), candidate].sum().item()
                self.assertAlmostEqual(score, expected, delta=2e-5 * abs(expected))

    def test_losses_of_training(self, family):
        """The sum over targets, its gradient, and the chunked loss where the model has it."""
        labels = [[14, 23, 40, 1], [30, 1], [5, 6, 7, 8, 1], [9, 1], [11, 12, 1]]
        features = [{"input_ids": ids, "labels": row} for ids, row in zip(prompts(), labels, strict=True)]
        batch = Seq2SeqCollator(0, 0)(features)
        targets = batch.pop("labels")
        losses, norms = [], []
        for model in (plain(family), ours(family)):
            model.zero_grad()
            if model is ours(family) and takes_loss_labels(model):
                accept_loss_labels(model)
                loss = model(**batch, loss_labels=targets, use_cache=False).loss_sum
            else:
                logits = model(**batch, use_cache=False).logits
                loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
            loss.backward()
            losses.append(loss.item())
            squares = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
            norms.append(float(squares) ** 0.5)
            model.zero_grad()
        self.assertAlmostEqual(losses[1], losses[0], delta=2e-6 * losses[0])
        self.assertAlmostEqual(norms[1], norms[0], delta=1e-5 * norms[0])
