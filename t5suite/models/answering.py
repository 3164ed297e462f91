"""How a model of each family answers: it writes, it scores candidates, or it classifies.

    >>> answerer = answerer_for(model, tokenizer)
    >>> answerer.generate([[21, 7, 1]], GenerationConfig(max_new_tokens=8))          # n answers a prompt
    [[([1465, 1], None)]]
    >>> answerer.candidate_scores([[21, 7, 1]], [[[1465, 1], [2841, 1]]])            # sums of log-probabilities
    [[-0.11, -2.31]]

`read` makes a reading of a batch: the loss of its labels, and what answers are then made from. An encoder-decoder's
encoder runs once for all of it. Prompts of decoder-only models are padded on the left, with the positions that follow.
Shapes: B examples, P pairs of example and candidate, S source and T target tokens, C classes, V vocabulary.
"""

from abc import ABC, abstractmethod
from functools import cached_property

import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput

from t5suite.data.collators import IGNORED, Seq2SeqCollator, shift_right
from t5suite.data.family_collators import COLLATORS, CausalCollator, SegmentCollator, joined
from t5suite.models.cached_prompts import keeps_prompts, read_prompts, reading_options
from t5suite.models.families import family_of_model

# (row, candidate) pairs that are scored at once, counted in the tokens that they attend to.
SCORED_TOKENS_AT_ONCE = 32768


def answerer_for(model, tokenizer, family: str | None = None, collator=None, device=None):
    """What answers for a model, by its family.

    Args:
      collator: of the family; one that pads to no multiple without it.
      device: where batches go, if not where the model is.
    """
    family = family or family_of_model(model)
    collator = collator or COLLATORS[family](
        model.config.pad_token_id, getattr(model.config, "decoder_start_token_id", None)
    )
    answerer_class = getattr(model, "answerer_class", None) or ANSWERERS[family]  # a module answers in its own way
    return answerer_class(model, tokenizer, collator, device or model.device)


class Answerer(ABC):
    """One model, its tokenizer and its collator."""

    def __init__(self, model, tokenizer, collator, device):
        self.model = model
        self.tokenizer = tokenizer
        self.collator = collator
        self.device = device

    @property
    def eos(self) -> int:
        """The token that ends an answer."""
        eos = self.tokenizer.eos_token_id
        return self.tokenizer.sep_token_id if eos is None else eos

    def generate(self, prompts, generation_config, synced: bool = False, **options):
        """Per prompt, its answers as `(ids, log-probability)`, the best first.

        Start token, prompt and padding are cut off; end-of-sequence stays. The sum of the tokens' log-probabilities is
        there where the configuration asks for it (`return_dict_in_generate` and `output_scores`), else None.
        """
        return self.read_prompts(prompts).generate(generation_config, synced, **options)

    def candidate_scores(self, prompts, candidates) -> list[list[float]]:
        """Per prompt, each candidate's sum of token log-probabilities, end-of-sequence (its last token) included."""
        return self.read_prompts(prompts).candidate_scores(candidates)

    def read_prompts(self, prompts):
        """A reading without labels."""
        return self.read([{"input_ids": prompt, "labels": [self.eos]} for prompt in prompts])

    @abstractmethod
    def read(self, features):
        """A reading of examples, with the loss of their labels."""


# ---------------------------------------------------------------------------------------------------------------------
# Encoder and decoder


class Seq2SeqAnswerer(Answerer):
    """The encoder reads, the decoder writes."""

    def __init__(self, model, tokenizer, collator: Seq2SeqCollator, device):
        super().__init__(model, tokenizer, collator, device)

    def read(self, features) -> "Seq2SeqReading":
        """Encoder and decoder over a batch."""
        return Seq2SeqReading(self, features)


class Seq2SeqReading:
    """The encoder's states of a batch, and the loss of its targets.

    The encoder runs within the whole model, for FSDP puts the pieces of some weights together when that is called, and
    not when a part of it is.

    Attributes:
      nll: by example, in nats.
      tokens: by example, how many of its tokens count.
    """

    def __init__(self, answerer: Seq2SeqAnswerer, features):
        self.answerer = answerer
        batch = {key: value.to(answerer.device) for key, value in answerer.collator(features).items()}
        names = ("input_ids", "attention_mask", "decoder_input_ids")
        outputs = answerer.model(**{name: batch[name] for name in names}, return_dict=True)
        logits_BTV, labels_BT = outputs.logits.float(), batch["labels"]
        nll_BT = F.cross_entropy(logits_BTV.transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none")
        self.mask_BS = batch["attention_mask"]
        self.hidden_BSD = outputs.encoder_last_hidden_state
        self.nll, self.tokens = nll_BT.sum(dim=1).tolist(), labels_BT.ne(IGNORED).sum(dim=1).tolist()

    def generate(self, generation_config, synced: bool = False, **options):
        """As `Answerer.generate`; `options` go to transformers' `generate` (`logits_processor`, ...)."""
        written = self.answerer.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.hidden_BSD),
            attention_mask=self.mask_BS,
            generation_config=generation_config,
            synced_gpus=synced,
            **options,
        )
        # The first token is the decoder's start token, which some families also use as their end token.
        return answers_of(self.answerer, written, 1, len(self.nll))

    def candidate_scores(self, candidates, most=lambda number: number) -> list[list[float]]:
        """Log-probabilities of each example's candidates; the decoder runs over (example, candidate) pairs.

        Args:
          most: a number of this rank's -> the largest of all ranks'. Where weights are in pieces, ranks put them
            together in every forward pass, so that all must make the same number of passes.
        """
        collator, mask_BS = self.answerer.collator, self.mask_BS

        def score(chunk):
            labels_PT = collator.pad([candidates[b][c] for b, c in chunk], IGNORED).to(mask_BS.device)
            rows_P = torch.tensor([b for b, _ in chunk], device=mask_BS.device)
            logits_PTV = self.answerer.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=self.hidden_BSD[rows_P]),
                attention_mask=mask_BS[rows_P],
                decoder_input_ids=shift_right(labels_PT, collator.pad_token_id, collator.decoder_start_token_id),
            ).logits.float()
            nll_PT = F.cross_entropy(logits_PTV.transpose(1, 2), labels_PT, ignore_index=IGNORED, reduction="none")
            return (-nll_PT.sum(dim=1)).tolist()

        return scores_of_pairs(candidates, score, mask_BS.shape[1], most)


# ---------------------------------------------------------------------------------------------------------------------
# Decoder alone


class CausalAnswerer(Answerer):
    """Prompt and answer stand in one row."""

    def __init__(self, model, tokenizer, collator: CausalCollator, device):
        super().__init__(model, tokenizer, collator, device)
        self.keeps_prompts = keeps_prompts(model)

    def read(self, features) -> "CausalReading":
        """Prompts and answers of a batch."""
        return CausalReading(self, features)

    def left_padded(self, prompts) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` of rows that all end in the last column."""
        rows = self.collator.pad_left(prompts, self.collator.pad_token_id)
        mask = self.collator.pad_left([[1] * len(prompt) for prompt in prompts], 0)
        return {"input_ids": rows.to(self.device), "attention_mask": mask.to(self.device)}

    def answer_nll(self, pairs) -> list[float]:
        """The nats of the answer of each (prompt, answer), read whole; logits are made of the answers' places alone."""
        rows = [joined(prompt, answer) for prompt, answer in pairs]
        batch = self.left_padded([inputs for inputs, _ in rows])
        kept = max(len(answer) for _, answer in pairs)
        labels_PT = self.collator.pad_left([labels for _, labels in rows], IGNORED)[:, -kept:].to(self.device)
        mask_PX = batch["attention_mask"]
        batch |= reading_options(self.model, mask_PX, mask_PX.shape[1], labels_PT.shape[1])
        logits_PTV = self.model(**batch, use_cache=False).logits[:, -labels_PT.shape[1] :].float()
        nll_PT = F.cross_entropy(logits_PTV.transpose(1, 2), labels_PT, ignore_index=IGNORED, reduction="none")
        return nll_PT.sum(dim=1).tolist()


class CausalReading:
    """The prompts of a batch, and the loss of its answers, which is worked out when it is asked for."""

    def __init__(self, answerer: CausalAnswerer, features):
        self.answerer = answerer
        self.prompts = [feature["input_ids"] for feature in features]
        self.labels = [feature["labels"] for feature in features]
        self.cached = None

    @cached_property
    def nll(self) -> list[float]:
        """Nats by example."""
        if self.cached is not None and all(map(len, self.labels)):
            return self.cached.nll(range(len(self.labels)), self.labels)
        return self.answerer.answer_nll(list(zip(self.prompts, self.labels, strict=True)))

    @property
    def tokens(self) -> list[int]:
        """By example, how many of its tokens count: a row's very first token is behind nothing."""
        pairs = zip(self.prompts, self.labels, strict=True)
        return [max(len(labels) - (len(prompt) == 0), 0) for prompt, labels in pairs]

    def generate(self, generation_config, synced: bool = False, **options):
        """As `Answerer.generate`; `options` go to transformers' `generate` (`logits_processor`, ...)."""
        batch = self.answerer.left_padded(self.prompts)
        written = self.answerer.model.generate(
            **batch, generation_config=generation_config, synced_gpus=synced, **options
        )
        return answers_of(self.answerer, written, batch["input_ids"].shape[1], len(self.prompts))

    def candidate_scores(self, candidates, most=lambda number: number) -> list[list[float]]:
        """Log-probabilities of each example's candidates, each behind its prompt; `most` as in `Seq2SeqReading`."""
        self._read_once(most)
        longest = max(len(prompt) for prompt in self.prompts)
        longest += max(len(ids) for of_example in candidates for ids in of_example)

        def score(chunk):
            answers = [candidates[b][c] for b, c in chunk]
            if self.cached is not None:
                return [-value for value in self.cached.nll([b for b, _ in chunk], answers)]
            pairs = [(self.prompts[b], answer) for (b, _), answer in zip(chunk, answers, strict=True)]
            return [-value for value in self.answerer.answer_nll(pairs)]

        return scores_of_pairs(candidates, score, longest, most)

    def _read_once(self, most) -> None:
        """Reads the prompts for all their candidates, on all ranks or on none: there is a token to read in each."""
        possible = self.answerer.keeps_prompts and all(map(len, self.prompts))
        if self.cached is None and most(0 if possible else 1) == 0:
            self.cached = read_prompts(self.answerer.model, self.answerer.left_padded(self.prompts))
            self.answerer.keeps_prompts = self.cached is not None


# ---------------------------------------------------------------------------------------------------------------------
# Encoder alone, with a head


class SegmentAnswerer(Answerer):
    """A head over an encoder: it writes nothing, but has a score for each of its classes, or a number."""

    def __init__(self, model, tokenizer, collator: SegmentCollator, device):
        super().__init__(model, tokenizer, collator, device)

    @property
    def is_regression(self) -> bool:
        """Whether the head gives a number."""
        return self.model.config.problem_type == "regression"

    def read(self, features) -> "SegmentReading":
        """The head's outputs for a batch."""
        return SegmentReading(self, features)

    def class_scores(self, features) -> list[list[float]]:
        """Log-probabilities of the classes, in the order of the model's `id2label`; a regression's one number."""
        return self.read(features).scores


class SegmentReading:
    """The head's outputs for a batch, and their loss: nats of the class, or squared differences.

    Attributes:
      nll, tokens: by example; an example counts for one.
      scores: [B][C], log-probabilities, or the numbers.
    """

    def __init__(self, answerer: SegmentAnswerer, features):
        features = [{"labels": [IGNORED], **feature} for feature in features]
        batch = {key: value.to(answerer.device) for key, value in answerer.collator(features).items()}
        labels_B = batch.pop("labels")
        logits_BC = answerer.model(**batch).logits.float()
        if answerer.is_regression:
            loss_B = (logits_BC[:, 0] - labels_B).square().masked_fill(labels_B == IGNORED, 0.0)
            self.scores = logits_BC.tolist()
        else:
            loss_B = F.cross_entropy(logits_BC, labels_B, ignore_index=IGNORED, reduction="none")
            self.scores = logits_BC.log_softmax(-1).tolist()
        self.nll, self.tokens = loss_B.tolist(), labels_B.ne(IGNORED).long().tolist()


# ---------------------------------------------------------------------------------------------------------------------
# Parts


def answers_of(answerer: Answerer, written, start: int, number: int):
    """What `generate` wrote -> per prompt, its `(ids, log-probability)`; `start` columns are cut off."""
    if torch.is_tensor(written):
        flat = [(ids[start:], None) for ids in written.tolist()]
    else:
        beams = getattr(written, "beam_indices", None)
        steps_PT = answerer.model.compute_transition_scores(
            written.sequences, written.scores, beams, normalize_logits=beams is None
        )
        ends_PT = written.sequences[:, start:].eq(answerer.eos).long()
        behind_PT = (ends_PT.cumsum(dim=1) - ends_PT).bool()[:, : steps_PT.shape[1]]  # padding has no probability
        sums = steps_PT.masked_fill(behind_PT, 0.0).sum(dim=1).tolist()
        flat = [(ids[start:], total) for ids, total in zip(written.sequences.tolist(), sums, strict=True)]
    return [flat[i * len(flat) // number : (i + 1) * len(flat) // number] for i in range(number)]


def scores_of_pairs(candidates, score, attended: int, most) -> list[list[float]]:
    """Scores pairs of example and candidate in chunks, and puts them together by example.

    Args:
      score: a chunk of pairs `(example, candidate)`, as numbers -> their scores.
      attended: the tokens that a pair attends to.
    """
    pairs = [(b, c) for b, of_example in enumerate(candidates) for c in range(len(of_example))]
    at_once = max(1, SCORED_TOKENS_AT_ONCE // attended)
    num_chunks = -(-len(pairs) // at_once)
    flat = []
    for turn in range(most(num_chunks)):
        scores = score(pairs[turn * at_once : (turn + 1) * at_once] or pairs[:1])
        if turn < num_chunks:
            flat.extend(scores)
    found = iter(flat)
    return [[next(found) for _ in of_example] for of_example in candidates]


ANSWERERS = {
    "seq2seq": Seq2SeqAnswerer,
    "causal": CausalAnswerer,
    "masked": SegmentAnswerer,
}
