"""T5, mT5, umT5 and BART answer and train as plain transformers of the installed version do, whichever version that is.

`make test-oldest` and `make test-newest` run these with other versions.
"""

import functools
import itertools
import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from absl.testing import parameterized
from support import folder
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    GenerationConfig,
    MT5Config,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
)

from benchmarks.gemma_form import gemma_tokenizer
from t5suite import FineTuner
from t5suite.testing import make_task, read_rows, run_cli, tiny_tokenizer, tiny_trainer

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
TOKENIZER = tiny_tokenizer()
LONGEST = 7
TEXTS = [
    "It was a good film and a very long one.",
    "The stage was dull.",
    "Rain fell over the hills for days, and nobody went out of the house.",
    "A cat.",
    "We had a fine evening with friends, good music and bad wine.",
]
LABELS = ["good", "bad", "wet", "a cat"]


@functools.cache
def saved(family: str) -> str:
    """A folder with a model of the family, made and saved by plain transformers."""
    config_class, settings = FAMILIES[family]
    place = folder()
    tokenizer = tiny_tokenizer()
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
def ours(family: str) -> FineTuner:
    return FineTuner(saved(family), quiet=True, use_cpu=True, output_dir=str(folder() / "run"))


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


def padded(rows: list[list[int]], padding: int = 0) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [padding] * (width - len(row)) for row in rows])


def batch_of(texts) -> dict[str, torch.Tensor]:
    input_ids = padded([ids_of(text) for text in texts])
    return {"input_ids": input_ids, "attention_mask": input_ids.ne(0).long()}


def text_of(ids: list[int]) -> str:
    """The words of an answer without padding; it ends with the first end of a text."""
    ids = ids[: ids.index(1)] if 1 in ids else ids
    return TOKENIZER.decode([token for token in ids if token != 0]).strip()


def stripped(answers) -> list:
    return [stripped(answer) if isinstance(answer, list) else answer.strip() for answer in answers]


def plain_log_probabilities(family: str, text: str, answer: list[int]) -> torch.Tensor:
    """Of the token after each of start token and answer, computed at once and without a cache."""
    decoder_ids = torch.tensor([[0, *answer]])
    with torch.no_grad():
        logits = plain(family)(**batch_of([text]), decoder_input_ids=decoder_ids, use_cache=False).logits
    return logits[0].double().log_softmax(-1)


@parameterized.named_parameters((name.replace(" ", "_"), name) for name in FAMILIES)
class PlainTransformersTest(parameterized.TestCase):
    def generated(self, family, **settings) -> list[list[int]]:
        config = GenerationConfig(
            max_new_tokens=LONGEST,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            **settings,
        )
        return plain(family).generate(**batch_of(TEXTS), generation_config=config)[:, 1:].tolist()

    @pytest.mark.quick_cases(1)
    def test_greedy_answers(self, family):
        ids = self.generated(family, num_beams=1)
        answers = ours(family).predict(TEXTS, raw=True, max_new_tokens=LONGEST, return_scores=True)
        self.assertEqual(stripped([answer.text for answer in answers]), [text_of(row) for row in ids])
        for text, row, answer in zip(TEXTS, ids, answers, strict=True):
            row = row[: row.index(1) + 1] if 1 in row else row
            if 0 in row:  # padding, which counts for nothing
                continue
            log_probabilities = plain_log_probabilities(family, text, row[:-1])
            expected = float(log_probabilities[range(len(row)), row].sum())
            self.assertAlmostEqual(answer.score, expected, delta=1e-4)  # it has four decimals

    @pytest.mark.slow
    def test_beams(self, family):
        ids = self.generated(family, num_beams=4, num_return_sequences=2)
        expected = [[text_of(row) for row in ids[2 * number : 2 * number + 2]] for number in range(len(TEXTS))]
        beams = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": LONGEST}
        self.assertEqual(stripped(ours(family).predict(TEXTS, raw=True, **beams)), expected)

    @pytest.mark.quick_cases(1)
    def test_samples_with_a_seed(self, family):
        """Drawn again token by token from the logits of the whole answer so far, with random numbers of seed and row."""
        settings = {"do_sample": True, "temperature": 1.3, "num_return_sequences": 2, "seed": 11}
        answers = ours(family).predict(TEXTS, raw=True, max_new_tokens=LONGEST, **settings)
        expected = [[text_of(self.drawn_again(family, row, number)) for number in range(2)] for row in range(3)]
        self.assertEqual(stripped(answers[:3]), expected)
        self.assertGreater(len({text for texts in answers for text in texts}), 2)

    def drawn_again(self, family, row: int, number: int) -> list[int]:
        generator = np.random.Generator(np.random.Philox(key=[11, row], counter=[0, 0, 0, number]))
        ids: list[int] = []
        for uniform in generator.random(LONGEST):
            log_probabilities = plain_log_probabilities(family, TEXTS[row], ids)[-1]
            cumulative = torch.softmax(log_probabilities / 1.3, -1).cumsum(-1).numpy()
            ids.append(int(np.searchsorted(cumulative, uniform, side="right")))
            if ids[-1] == 1:
                break
        return ids

    @pytest.mark.quick_cases(1)
    def test_probabilities_of_labels(self, family):
        probabilities = ours(family).predict_labels(TEXTS, LABELS, raw=True)
        for text, of_text in zip(TEXTS, probabilities, strict=True):
            scores = []
            for label in LABELS:
                ids = ids_of(label)
                scores.append(float(plain_log_probabilities(family, text, ids[:-1])[range(len(ids)), ids].sum()))
            expected = torch.tensor(scores).double().softmax(-1)
            np.testing.assert_allclose([of_text[label] for label in LABELS], expected, atol=1e-5, rtol=0)

    @pytest.mark.quick_cases(1)
    def test_losses_of_training(self, family):
        """The mean over targets and the norm of its gradient, in one update of a trainer."""
        task = make_task(prefix="", labels=["bad", "not good at all"])
        rows = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS)]
        targets = padded([ids_of(task.examples(row)[0].targets) for row in rows], -100)
        shifted = torch.cat([torch.zeros(len(rows), 1, dtype=torch.long), targets[:, :-1].clamp(min=0)], dim=1)
        model = plain(family)
        model.zero_grad()
        logits = model(**batch_of(TEXTS), decoder_input_ids=shifted, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).double(), targets.flatten())
        loss.backward()
        squares = sum(weight.grad.double().square().sum() for weight in model.parameters() if weight.grad is not None)
        model.zero_grad()
        trainer = tiny_trainer(rows, task, model=AutoModelForSeq2SeqLM.from_pretrained(saved(family)), optim="sgd")
        trainer.train()
        log = trainer.state.log_history[0]
        self.assertAlmostEqual(log["loss"], loss.item(), delta=2e-6 * loss.item())
        self.assertAlmostEqual(log["grad_norm"], float(squares) ** 0.5, delta=1e-5 * float(squares) ** 0.5)


T5GEMMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 64,
}  # fmt: skip
TOWER = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
T5GEMMA_SETTINGS = {
    "t5gemma": {"encoder": T5GEMMA, "decoder": T5GEMMA},
    "t5gemma2": {
        "encoder": {"text_config": T5GEMMA, "vision_config": TOWER, "mm_tokens_per_image": 4},
        "decoder": T5GEMMA,
    },
}


@functools.cache
def saved_t5gemma(model_type: str) -> str:
    """A folder of the published form: no start token is named, and Gemma's tokenizer begins texts and ends none."""
    place = folder()
    gemma_tokenizer(TEXTS * 9, vocab_size=320).save_pretrained(place)
    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, vocab_size=320, dropout_rate=0.0, **T5GEMMA_SETTINGS[model_type])
    model = AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(place)
    settings = json.loads((place / "config.json").read_text())
    assert settings.get("decoder_start_token_id") is None
    return str(place)


@parameterized.parameters(*T5GEMMA_SETTINGS)
class T5GemmaTest(parameterized.TestCase):
    @pytest.mark.quick_cases(1)
    def test_losses_of_training_are_those_of_labels_that_end(self, model_type):
        """transformers' own shift of labels, and Gemma's tokenizer where it is told to end texts and to begin none."""
        place = saved_t5gemma(model_type)
        tokenizer = AutoTokenizer.from_pretrained(place)
        ending = AutoTokenizer.from_pretrained(place, add_bos_token=False, add_eos_token=True)
        input_ids = padded([tokenizer(text)["input_ids"] for text in TEXTS])
        targets = [ending(LABELS[number % 4])["input_ids"] for number in range(len(TEXTS))]
        self.assertEqual({ids[-1] for ids in targets}, {tokenizer.eos_token_id})
        model = AutoModelForSeq2SeqLM.from_pretrained(place)
        mask = input_ids.ne(0).long()
        expected = model(input_ids=input_ids, attention_mask=mask, labels=padded(targets, -100)).loss.item()
        tuner = FineTuner(
            place,
            [{"input": text, "output": LABELS[number % 4]} for number, text in enumerate(TEXTS)],
            labels=LABELS,
            no_eval=True,
            max_steps=1,
            per_device_train_batch_size=len(TEXTS),
            logging_steps=1,
            save_strategy="no",
            quiet=True,
            use_cpu=True,
            output_dir=str(folder() / "run"),
        )
        tuner.train()
        losses = [line["train/loss"] for line in tuner.history if "train/loss" in line]
        self.assertAlmostEqual(losses[0], expected, delta=2e-5 * expected)

    @pytest.mark.quick_cases(1)
    def test_answers_and_their_scores_start_as_transformers_starts(self, model_type):
        place = saved_t5gemma(model_type)
        tokenizer = AutoTokenizer.from_pretrained(place)
        model = AutoModelForSeq2SeqLM.from_pretrained(place).eval()
        tuner = FineTuner(place, quiet=True, use_cpu=True, output_dir=str(folder() / "run"))
        answers = tuner.predict(TEXTS[:2], raw=True, max_new_tokens=LONGEST, return_scores=True)
        for text, answer in zip(TEXTS, answers, strict=False):
            input_ids = torch.tensor([tokenizer(text)["input_ids"]])
            ids = model.generate(input_ids, max_new_tokens=LONGEST, do_sample=False)[:, 1:]
            self.assertEqual(answer.text, tokenizer.decode(ids[0], skip_special_tokens=True))
            with torch.no_grad():
                loss = model(input_ids=input_ids, labels=ids).loss.item()
            self.assertAlmostEqual(answer.score, -loss * ids.shape[1], delta=1e-3)


DECODER = {**T5GEMMA, "vocab_size": len(TOKENIZER), "bos_token_id": None}
DECODERS = {
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": None},
    "llama": DECODER,
    "gemma3_text": DECODER,
}
ANSWERING = {**DECODERS, **T5GEMMA_SETTINGS, "t5": T5, "bart": BART, "mbart": BART}
# Pieces that each of the models below writes: the second and the first of its first answer.
END, OTHER = "end", "other"
NOTHING = "nothing"
# What generation_config.json (None: there is none) and config.json say of the ends; the tokenizer's is 1.
ENDS = (
    ([1, END], [1, END]),
    ([1, END], 1),
    (END, 1),
    ([END], 1),
    (None, [1, END]),
    (NOTHING, [1, END]),
    ([1, END], [1, OTHER]),
)


def auto_class(name: str):
    return AutoModelForCausalLM if name in DECODERS else AutoModelForSeq2SeqLM


@functools.cache
def saved_answering(name: str) -> Path:
    """A model that writes many pieces; where it says no start token, a decoder starts with Gemma's <bos>."""
    place = folder()
    settings = {"tie_word_embeddings": False, **ANSWERING[name]}
    if name in T5GEMMA_SETTINGS:
        gemma_tokenizer(TEXTS * 9, vocab_size=320).save_pretrained(place)
        settings |= {"vocab_size": 320, "dropout_rate": 0.0}
    else:
        TOKENIZER.save_pretrained(place)
        settings |= {"vocab_size": len(TOKENIZER), "pad_token_id": 0, "eos_token_id": 1}
        settings |= {} if name in DECODERS else {"decoder_start_token_id": 0}
    torch.manual_seed(7)
    model = auto_class(name).from_config(AutoConfig.for_model(name, **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.6)
    model.save_pretrained(place)
    return place


def plain_answers(place: Path, name: str) -> list[list[int]]:
    """What `generate` writes for each text alone, by the settings of the folder."""
    model = auto_class(name).from_pretrained(place).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    answers = []
    for text in TEXTS:
        prompt = torch.tensor([tokenizer(text, add_special_tokens=name not in DECODERS)["input_ids"]])
        ids = model.generate(prompt, max_new_tokens=LONGEST, do_sample=False, num_beams=1)[0].tolist()
        answers.append(ids[prompt.shape[1] :] if name in DECODERS else ids[1:])
    return answers


def with_key(place: Path, key: str, in_generation, in_config) -> Path:
    """A copy of a folder whose files say something else of a key, or NOTHING; None: without that file."""
    changed = folder() / "model"
    shutil.copytree(place, changed)
    for file, value in (("generation_config.json", in_generation), ("config.json", in_config)):
        settings = {**json.loads((changed / file).read_text()), key: value}
        if value == NOTHING:
            del settings[key]
        (changed / file).write_text(json.dumps(settings))
        if value is None:
            (changed / file).unlink()
    return changed


def predicted(place: Path) -> list[str]:
    """The answers of `t5suite predict`; a decoder's prompts have nothing behind the text."""
    files = folder()
    (files / "texts.txt").write_text("\n".join(TEXTS))
    words = ["--input", files / "texts.txt", "--raw", "--output", files / "answers.jsonl", "--use_cpu"]
    words += ["--max_new_tokens", LONGEST, "--answer_separator", ""]
    run_cli("predict", "--model_name_or_path", place, *words)
    return stripped([line["prediction"] for line in read_rows(files / "answers.jsonl")])


def texts_before(ends, answers: list[list[int]], place: Path) -> list[str]:
    """Answers up to the first of these ends, without padding."""
    tokenizer = AutoTokenizer.from_pretrained(place)
    texts = []
    for ids in answers:
        ids_before = itertools.takewhile(lambda token: token not in ends, ids)
        texts.append(tokenizer.decode([token for token in ids_before if token != 0]).strip())
    return texts


class TokensOfAnswersTest(parameterized.TestCase):
    """Answers are `generate`'s of the model as loaded, up to the first end that a file or the tokenizer names."""

    def ended(self, name: str, ends: tuple) -> tuple[Path, list[str]]:
        """The folder of a model with these ends in its files, and plain transformers' answers."""
        other, end = plain_answers(saved_answering(name), name)[0][:2]
        self.assertLen({0, 1, other, end}, 4)
        tokens = {END: end, OTHER: other}
        place = with_key(saved_answering(name), "eos_token_id", *(numbered(value, tokens) for value in ends))
        return place, texts_before((1, end), plain_answers(place, name), place)

    @parameterized.parameters(*ANSWERING)
    @pytest.mark.quick_cases(2)
    def test_predict_ends_answers_wherever_the_ends_stand(self, name):
        for ends in ENDS:
            place, expected = self.ended(name, ends)
            self.assertEqual(predicted(place), expected, ends)

    @parameterized.parameters(*ANSWERING)
    @pytest.mark.quick_cases(2)
    def test_a_tuner_predicts_and_evaluates_the_same(self, name):
        place, expected = self.ended(name, ENDS[1])
        rows = [{"input": text, "output": answer} for text, answer in zip(TEXTS, expected, strict=True)]
        flags = {"generation_max_length": LONGEST, "quiet": True, "use_cpu": True, "output_dir": str(folder() / "run")}
        if name in DECODERS:
            flags["answer_separator"] = ""
        tuner = FineTuner(place, {"validation": rows}, **flags)
        self.assertEqual(stripped(tuner.predict(TEXTS, raw=True, max_new_tokens=LONGEST)), expected)
        (metrics,) = tuner.evaluate()["tasks"].values()
        self.assertEqual(metrics["exact_match"], 100)

    @parameterized.parameters("llama", "t5gemma", "mbart")
    @pytest.mark.quick_cases(1)
    def test_an_exported_folder_ends_answers_there_too(self, name):
        place, expected = self.ended(name, (None, [1, END]))
        exported = folder() / "exported"
        run_cli("export", "--model_name_or_path", place, "--output_dir", exported)
        self.assertEqual(predicted(exported), expected)
        self.assertEqual(plain_answers(exported, name), plain_answers(place, name))

    @parameterized.parameters(("llama", "onnx"), ("t5", "onnx"), ("t5", "ctranslate2"))
    @pytest.mark.slow
    def test_exported_files_end_answers_there_too(self, name, form):
        place, expected = self.ended(name, ENDS[1])
        exported = folder() / "exported"
        run_cli("export", "--format", form, "--model_name_or_path", place, "--output_dir", exported)
        self.assertEqual(predicted(exported), expected)

    @parameterized.product(name=("t5", "bart", "mbart"), in_config=(NOTHING, 0))
    @pytest.mark.quick_cases(3)
    def test_the_start_of_generation_config_json_goes_first(self, name, in_config):
        place = with_key(saved_answering(name), "decoder_start_token_id", 5, in_config)
        answers = plain_answers(place, name)
        self.assertNotEqual(answers, plain_answers(saved_answering(name), name))
        self.assertEqual(predicted(place), texts_before((1,), answers, place))

    def test_no_end_is_forced_that_no_file_names(self):
        """BART's class of configurations forces id 2, an ordinary piece of this tokenizer."""
        place = with_key(saved_answering("bart"), "forced_eos_token_id", NOTHING, NOTHING)
        self.assertEqual(predicted(place), texts_before((1,), plain_answers(place, "bart"), place))

    def test_no_end_is_taken_from_a_class_of_configurations(self):
        """Llama's ends with id 2."""
        place = with_key(saved_answering("llama"), "eos_token_id", NOTHING, NOTHING)
        self.assertEqual(FineTuner(place, quiet=True, use_cpu=True).model.generation_config.eos_token_id, 1)

    @parameterized.parameters(("llama", None), ("gpt2", None), ("llama", 7))
    @torch.no_grad()
    def test_a_model_in_memory_ends_as_its_configuration_and_tokenizer_say(self, name, end):
        """Llama's class names id 2, an ordinary piece, and GPT-2's 50256, which the vocabulary does not have."""
        sizes = {key: size for key, size in ANSWERING[name].items() if not key.endswith("token_id")}
        settings = {**sizes, "vocab_size": len(TOKENIZER)} | ({} if end is None else {"eos_token_id": end})
        model = auto_class(name).from_config(AutoConfig.for_model(name, **settings))
        tuner = FineTuner(model, tokenizer=TOKENIZER, quiet=True, use_cpu=True)
        for generation in (tuner.model.generation_config, loaded_generation(tuner.save(folder() / "saved"))):
            ends = np.atleast_1d(generation.eos_token_id).tolist()
            self.assertCountEqual(ends, [1] if end is None else [1, end])

    def test_a_t5_with_a_list_of_one_end_writes_without_generate(self):
        place = with_key(saved_answering("t5"), "eos_token_id", [1], [1])
        with mock.patch.object(T5ForConditionalGeneration, "generate", side_effect=AssertionError("generate")):
            answers = predicted(place)
        self.assertEqual(answers, texts_before((1,), plain_answers(place, "t5"), place))


def loaded_generation(place):
    """The settings of generation of a saved model."""
    return FineTuner(place, quiet=True, use_cpu=True).model.generation_config


def numbered(value, tokens: dict):
    return [numbered(item, tokens) for item in value] if isinstance(value, list) else tokens.get(value, value)
