"""How a model of each family answers: it writes, it scores candidates, or it classifies.

    >>> answerer = answerer_for(model, tokenizer)
    >>> answerer.generate([[21, 7, 1]], GenerationConfig(max_new_tokens=8))          # n answers a prompt
    [[([1465, 1], None)]]
    >>> answerer.candidate_scores([[21, 7, 1]], [[[1465, 1], [2841, 1]]])            # sums of log-probabilities
    [[-0.11, -2.31]]

`read` makes a reading of a batch: the loss of its labels, and what answers are then made from. An encoder-decoder's
encoder runs once for all of it. Prompts of decoder-only models are padded on the left, with the positions that follow,
and are read once for all of their candidates: their keys and values are kept, and the answers' tokens read behind them.
Shapes: B examples, P pairs of example and candidate, S source and T target tokens, C classes, V vocabulary.
"""

import copy
import inspect
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from t5suite.data.batches.collators import COLLATORS, IGNORED, CausalCollator, SegmentCollator, joined
from t5suite.models.families import family_of_model, plain
from t5suite.models.seq2seq_answering import Answerer, Seq2SeqAnswerer, answers_of, nats, scores_of_pairs

# Layers whose kept states are rows of tensors; others (state spaces, quantized, static ones) are read anew.
PLAIN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)


def read_prompts(model, batch) -> "CachedPrompts | None":
    """Reads prompts padded on the left; None where the model keeps no keys and values that rows can be taken of.

    Args:
      batch: `input_ids` and `attention_mask`, (B, S); every row has a token.
    """
    mask_BS = batch["attention_mask"]
    outputs = model(**batch, **reading_options(model, mask_BS, mask_BS.shape[1], 1), use_cache=True)
    cache = getattr(outputs, "past_key_values", None)
    rows = type(cache) is DynamicCache and all(type(layer) in PLAIN_LAYERS for layer in cache.layers)
    kept = rows and all(layer.get_seq_length() >= mask_BS.shape[1] for layer in cache.layers)
    return CachedPrompts(model, mask_BS, cache, outputs.logits[:, -1].float()) if kept else None


@dataclass(frozen=True)
class CachedPrompts:
    """What a model keeps of prompts, and its logits for the token behind each."""

    model: object
    mask_BS: torch.Tensor
    cache: DynamicCache
    logits_BV: torch.Tensor

    def nll(self, rows, answers) -> list[float]:
        """The nats of each answer behind the prompt of its row; every answer has a token."""
        device = self.mask_BS.device
        rows_P = torch.tensor(rows, device=device)
        width = max(2, *(len(answer) for answer in answers))  # ranks make the same passes, whatever their answers are
        padded = [[*answer, *[IGNORED] * (width - len(answer))] for answer in answers]
        labels_PT = torch.tensor(padded, dtype=torch.long, device=device)
        first_P = F.cross_entropy(self.logits_BV[rows_P], labels_PT[:, 0], reduction="none")
        ids_PT = labels_PT[:, :-1].clamp(min=0)
        mask_PX = torch.cat([self.mask_BS[rows_P], labels_PT[:, :-1].ne(IGNORED).to(self.mask_BS.dtype)], dim=1)
        options = reading_options(self.model, mask_PX, ids_PT.shape[1], ids_PT.shape[1])
        logits_PTV = self.model(
            input_ids=ids_PT,
            attention_mask=mask_PX,
            past_key_values=rows_of(self.cache, rows_P),
            use_cache=True,
            **options,
        ).logits
        return (first_P + nats(logits_PTV, labels_PT[:, 1:])).tolist()


def rows_of(cache: DynamicCache, rows_P) -> DynamicCache:
    """A cache of these rows, which may come several times; the one given stays as it is."""
    picked = copy.copy(cache)
    picked.layers = [copy.copy(layer) for layer in cache.layers]
    picked.batch_select_indices(rows_P)
    return picked


def keeps_prompts(model) -> bool:
    """Whether reading on behind a prompt is the same as reading both: PEFT's prefixes replace what was kept."""
    adapters = getattr(model, "peft_config", None) or {}
    return not any("PREFIX" in str(config.peft_type) for config in adapters.values())


def reading_options(model, mask_PX, number: int, logits: int) -> dict:
    """The positions of the last `number` columns and how many logits to make, where the model's `forward` asks."""
    taken = inspect.signature(plain(model).forward).parameters
    options = {}
    if "position_ids" in taken:
        options["position_ids"] = (mask_PX.cumsum(-1) - 1).clamp(min=0)[:, -number:]
    if "logits_to_keep" in taken:
        options["logits_to_keep"] = logits
    return options


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
        return nats(self.model(**batch, use_cache=False).logits[:, -labels_PT.shape[1] :], labels_PT).tolist()


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


ANSWERERS = {
    "seq2seq": Seq2SeqAnswerer,
    "causal": CausalAnswerer,
    "masked": SegmentAnswerer,
}
