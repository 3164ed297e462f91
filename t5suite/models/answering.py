"""How a model of each family answers: it writes, it scores candidates, or it classifies.

    >>> answerer = answerer_for(model, tokenizer)
    >>> answerer.generate([[21, 7, 1]], GenerationConfig(max_new_tokens=8))          # n answers a prompt
    [[([1465, 1], None)]]
    >>> answerer.candidate_scores([[21, 7, 1]], [[[1465, 1], [2841, 1]]])            # sums of log-probabilities
    [[-0.11, -2.31]]

`read` returns a reading of a batch: the loss of its labels, and the inputs for its answers. An encoder-decoder's
encoder runs only once per reading. Prompts of decoder-only models are padded on the left, with matching positions.
A T5's decoder is called part by part (`t5.decoder`): it reads all of a row's candidates as a tree, and generates greedy
answers without transformers' `generate`; targets among these candidates or answers need no extra pass for their loss.
Shapes: B examples, P pairs of example and candidate, S source and T target tokens, C classes, V vocabulary.
"""

import inspect
from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

# Has `router_logits` (None), which mixture-of-experts models read; other models use it like their encoder's output.
from transformers.modeling_outputs import MoeModelOutputWithPast as EncoderOutput

from t5suite.data.batches.collators import COLLATORS, IGNORED, joined, shift_right
from t5suite.models.families import family_of_model, plain
from t5suite.models.t5.decoder import MOST_NODES, candidate_log_probs, takes_apart, tree_of, write_greedily

# (row, candidate) pairs that are scored at once, counted in the tokens that they attend to.
SCORED_TOKENS_AT_ONCE = 32768


class Answerer(ABC):
    """One model, its tokenizer and its collator.

    Attributes:
      reference: fast paths that are disabled (`reference_code`): candidates as one tree, greedy answers without
        transformers' `generate`. They change only the speed.
      tells_nll: whether the nats of greedy answers are needed.
      given: how many of each row's first label tokens its answer begins with: a language's code.
    """

    def __init__(self, model, tokenizer, collator, device):
        self.model, self.tokenizer, self.collator, self.device = model, tokenizer, collator, device
        self.reference: frozenset[str] = frozenset()
        self.tells_nll, self.given = True, 0

    def is_quick(self, method: str) -> bool:
        """Whether `score` or `generate` takes its fast path with this model."""
        return False

    @property
    def eos(self) -> int:
        """The token that ends an answer."""
        eos = self.tokenizer.eos_token_id
        return self.tokenizer.sep_token_id if eos is None else eos

    def generate(self, prompts, generation_config, synced: bool = False, labels=None, **options):
        """Per prompt, its answers as `(ids, log-probability)`, the best first.

        Start token, `given` tokens (of `labels`), prompt and padding are cut off; end-of-sequence stays. The
        log-probability is the sum over the tokens if the configuration requests it (`return_dict_in_generate` and
        `output_scores`), else None.
        """
        return self.read_prompts(prompts, labels).generate(generation_config, synced, **options)

    def candidate_scores(self, prompts, candidates) -> list[list[float]]:
        """Per prompt, each candidate's sum of token log-probabilities, end-of-sequence (its last token) included."""
        return self.read_prompts(prompts).candidate_scores(candidates)

    def read_prompts(self, prompts, labels=None):
        """A reading without labels, or with labels whose first tokens the answers begin with."""
        labels = labels or [[self.eos]] * len(prompts)
        return self.read([{"input_ids": ids, "labels": row} for ids, row in zip(prompts, labels, strict=True)])

    @abstractmethod
    def read(self, features):
        """A reading of examples, with the loss of their labels."""


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
    """Scores pairs of example and candidate in chunks, and groups the scores by example.

    Args:
      score: a chunk of index pairs `(example, candidate)` -> their scores.
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


class Seq2SeqAnswerer(Answerer):
    """The encoder reads, the decoder writes."""

    @cached_property
    def taken_apart(self) -> bool:
        """Whether encoder and decoder are called separately."""
        return not {"candidate_trees", "quick_decoding"} <= self.reference and takes_apart(self.model)

    def is_quick(self, method: str) -> bool:
        """Whether candidates are read as trees (`score`), or greedy answers written without `generate`."""
        path = {"score": "candidate_trees", "generate": "quick_decoding"}.get(method)
        return path is not None and path not in self.reference and self.taken_apart

    def read(self, features) -> "Seq2SeqReading":
        """Encoder and decoder over a batch."""
        return Seq2SeqReading(self, features)


class Seq2SeqReading:
    """The encoder's states of a batch, and the loss of its targets, each computed on first access.

    If weights may be sharded, the encoder runs within the whole model: FSDP gathers some weights only when the whole
    model is called, not when a part of it is.
    """

    def __init__(self, answerer: Seq2SeqAnswerer, features):
        self.answerer, device = answerer, answerer.device
        batch = answerer.collator(features)
        is_padded = not batch["attention_mask"].all()
        self.targets = [[token for token in row if token != IGNORED] for row in batch["labels"].tolist()]
        self.labels_BT, self.read_BT, self.ids_BS, self.mask_BS = (
            batch[name].to(device) for name in ("labels", "decoder_input_ids", "input_ids", "attention_mask")
        )
        self.hiding_BS = self.mask_BS if is_padded else None
        self._known_nll = {}

    @cached_property
    def nll(self) -> list[float]:
        """By example, in nats; already known for targets that were among the answers."""
        rows = [row for row in range(len(self.targets)) if row not in self._known_nll]
        found = self._known_nll | (dict(zip(rows, self._nll_of(rows), strict=True)) if rows else {})
        return [found[row] for row in range(len(self.targets))]

    @property
    def tokens(self) -> list[int]:
        """By example, how many of its tokens count."""
        return list(map(len, self.targets))

    @cached_property
    def hidden_BSD(self) -> torch.Tensor:
        """The encoder's states."""
        if not self.answerer.taken_apart:
            return self._outputs.encoder_last_hidden_state
        encoder, mask = plain(self.answerer.model).encoder, self.hiding_BS
        if mask is not None and encoder.config._attn_implementation == "sdpa":
            mask = mask[:, None, None, :].bool()  # used unchanged: the stack then reads no values from the device
        return encoder(input_ids=self.ids_BS, attention_mask=mask).last_hidden_state

    @cached_property
    def _outputs(self):
        """Of encoder and decoder, in one call."""
        return self.answerer.model(
            input_ids=self.ids_BS, attention_mask=self.mask_BS, decoder_input_ids=self.read_BT, return_dict=True
        )

    def _nll_of(self, rows: list[int]) -> list[float]:
        if self.answerer.taken_apart:
            logits_BTV = self.answerer.model(
                encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD[rows]),
                attention_mask=self.mask_BS[rows],
                decoder_input_ids=self.read_BT[rows],
            ).logits
        else:
            logits_BTV = self._outputs.logits[rows]
        return nats(logits_BTV, self.labels_BT[rows]).tolist()

    def generate(self, generation_config, synced: bool = False, **options):
        """As `Answerer.generate`; `options` go to transformers' `generate` (`logits_processor`, ...)."""
        answerer = self.answerer
        eos, start = answerer.eos, answerer.collator.decoder_start_token_id
        if answerer.given:
            options["decoder_input_ids"] = self.read_BT[:, : 1 + answerer.given]
        quick = answerer.is_quick("generate") and not synced and not options
        if quick and writes_plainly(answerer.model, generation_config, eos, start):
            most, wants_nll = generation_config.max_new_tokens, answerer.tells_nll
            written, nll = write_greedily(answerer.model, self.hidden_BSD, self.hiding_BS, start, eos, most, wants_nll)
            of_rows = enumerate(zip(written, nll or (), self.targets))
            self._known_nll |= {row: found for row, (ids, found, target) in of_rows if ids == target}
            return [[(ids, None)] for ids in written]
        written = answerer.model.generate(
            encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD),
            attention_mask=self.mask_BS,
            generation_config=generation_config,
            synced_gpus=synced,
            **options,
        )
        # The first token is the decoder's start token, which some families also use as their end token.
        return answers_of(answerer, written, 1 + answerer.given, len(self.mask_BS))

    def candidate_scores(self, candidates, most=lambda number: number) -> list[list[float]]:
        """Log-probabilities of each example's candidates.

        The decoder reads them as a tree, or (other models, very many candidates) pair by pair.

        Args:
          most: this rank's number -> the largest over all ranks. If weights are sharded, ranks gather them in every
            forward pass, so all ranks must make the same number of passes.
        """
        answerer, collator, mask_BS = self.answerer, self.answerer.collator, self.mask_BS
        if answerer.is_quick("score"):
            candidates = [tuple(tuple(map(int, ids)) for ids in of_row) for of_row in candidates]
            trees = [tree_of(of_row) for of_row in candidates]
            if all(len(tree.paths) and len(tree.tokens) <= MOST_NODES for tree in trees):
                start, pad = collator.decoder_start_token_id, collator.pad_token_id
                scores = candidate_log_probs(answerer.model, trees, self.hidden_BSD, self.hiding_BS, start, pad)
                for row, target in enumerate(map(tuple, self.targets)):
                    if target in candidates[row]:
                        self._known_nll[row] = -scores[row][candidates[row].index(target)]
                return scores

        def score(chunk):
            labels_PT = collator.pad([candidates[b][c] for b, c in chunk], IGNORED).to(mask_BS.device)
            rows_P = torch.tensor([b for b, _ in chunk], device=mask_BS.device)
            logits_PTV = answerer.model(
                encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD[rows_P]),
                attention_mask=mask_BS[rows_P],
                decoder_input_ids=shift_right(labels_PT, collator.pad_token_id, collator.decoder_start_token_id),
            ).logits
            return (-nats(logits_PTV, labels_PT)).tolist()

        return scores_of_pairs(candidates, score, mask_BS.shape[1], most)


def nats(logits_BTV, labels_BT) -> torch.Tensor:
    """Per row, the cross-entropy summed over the labels that count."""
    nll_BT = F.cross_entropy(logits_BTV.float().transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none")
    return nll_BT.sum(dim=1)


def writes_plainly(model, generation_config, eos: int, start: int) -> bool:
    """Whether `generate` would decode greedily, with unprocessed logits, from the token `start` to the token `eos`.

    Settings that the call omits come from the checkpoint, as in transformers.
    """
    given = generation_config.to_diff_dict()
    settings = {**model.generation_config.to_diff_dict(), **given}
    plain_values = all(value in (None, NEUTRAL.get(name)) for name, value in settings.items() if name not in IDLE)
    ends = settings.get("eos_token_id"), settings.get("decoder_start_token_id")
    return plain_values and ends == (eos, start) and (given.get("max_new_tokens") or 0) > 0


# Settings that do not affect greedy decoding, or are checked separately.
IDLE = frozenset(
    "max_length max_new_tokens length_penalty early_stopping temperature top_k top_p typical_p min_p top_h "
    "epsilon_cutoff eta_cutoff bos_token_id eos_token_id pad_token_id decoder_start_token_id use_cache "
    "transformers_version _from_model_config output_attentions output_hidden_states num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind".split()
)
# Values of the other settings that have no effect, in addition to None; settings not listed must be None.
NEUTRAL = {
    **dict.fromkeys("num_beams num_beam_groups num_return_sequences repetition_penalty".split(), 1),
    "encoder_repetition_penalty": 1,
    **dict.fromkeys("min_length min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size".split(), 0),
    "diversity_penalty": 0,
    **dict.fromkeys("do_sample remove_invalid_values renormalize_logits return_dict_in_generate".split(), False),
    **dict.fromkeys("output_scores output_logits low_memory is_assistant".split(), False),
}


def answerer_for(model, tokenizer, family: str | None = None, collator=None, device=None):
    """The answerer of a model, by its family.

    Args:
      collator: the family's; by default one that does not pad to a multiple.
      device: where batches go, if not where the model is.
    """
    family = family or family_of_model(model)
    collator = collator or COLLATORS[family](
        model.config.pad_token_id, getattr(model.config, "decoder_start_token_id", None)
    )
    return ANSWERERS[family](model, tokenizer, collator, device or model.device)


# ---------------------------------------------------------------------------------------------------------------------
# Decoder alone


class CausalAnswerer(Answerer):
    """Prompt and answer are in one row."""

    def read(self, features) -> "CausalReading":
        """Prompts and answers of a batch."""
        return CausalReading(self, features)

    def left_padded(self, prompts) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` of rows that all end in the last column."""
        rows = self.collator.pad_left(prompts, self.collator.pad_token_id)
        mask = self.collator.pad_left([[1] * len(prompt) for prompt in prompts], 0)
        return {"input_ids": rows.to(self.device), "attention_mask": mask.to(self.device)}

    def answer_nll(self, pairs) -> list[float]:
        """The nats of each pair's answer, in one forward pass; logits are computed for the answers' positions only."""
        rows = [joined(prompt, answer) for prompt, answer in pairs]
        batch = self.left_padded([inputs for inputs, _ in rows])
        kept = max(len(answer) for _, answer in pairs)
        labels_PT = self.collator.pad_left([labels for _, labels in rows], IGNORED)[:, -kept:].to(self.device)
        taken = inspect.signature(plain(self.model).forward).parameters
        options = {"position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0), "logits_to_keep": kept}
        options = {name: value for name, value in options.items() if name in taken}
        return nats(self.model(**batch, **options, use_cache=False).logits[:, -kept:], labels_PT).tolist()


class CausalReading:
    """The prompts of a batch, and the loss of its answers, which is computed on first access."""

    def __init__(self, answerer: CausalAnswerer, features):
        self.answerer = answerer
        self.prompts = [feature["input_ids"] for feature in features]
        self.labels = [feature["labels"] for feature in features]

    @cached_property
    def nll(self) -> list[float]:
        """Nats by example."""
        return self.answerer.answer_nll(list(zip(self.prompts, self.labels, strict=True)))

    @property
    def tokens(self) -> list[int]:
        """By example, how many of its tokens count: nothing predicts a row's very first token."""
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
        """Log-probabilities of each example's candidates, each after its prompt; `most` as in `Seq2SeqReading`."""
        longest = max(len(prompt) for prompt in self.prompts)
        longest += max(len(ids) for of_example in candidates for ids in of_example)

        def score(chunk):
            pairs = [(self.prompts[b], candidates[b][c]) for b, c in chunk]
            return [-value for value in self.answerer.answer_nll(pairs)]

        return scores_of_pairs(candidates, score, longest, most)


# ---------------------------------------------------------------------------------------------------------------------
# Encoder alone, with a head


class SegmentAnswerer(Answerer):
    """A head over an encoder: it generates no text, but gives a score for each of its classes, or a number."""

    def read(self, features) -> "SegmentReading":
        """The head's outputs for a batch."""
        return SegmentReading(self, features)

    def class_scores(self, features) -> list[list[float]]:
        """Log-probabilities of the classes, in the order of the model's `id2label`; a regression's one number."""
        return self.read(features).scores


class SegmentReading:
    """The head's outputs for a batch, and their loss: nats of the class (or of every word's), or squared differences.

    Attributes:
      nll, tokens: by example; an example counts for one, or for as many as it has labels.
      scores: [B][C], log-probabilities, or the numbers; [B][words][C] where every word has a label.
    """

    def __init__(self, answerer: SegmentAnswerer, features):
        features = [{"labels": [IGNORED], **feature} for feature in features]
        batch = {key: value.to(answerer.device) for key, value in answerer.collator(features).items()}
        labels_B = batch.pop("labels")
        logits_BC = answerer.model(**batch).logits.float()
        if answerer.model.config.problem_type == "regression":
            loss_B = (logits_BC[:, 0] - labels_B).square().masked_fill(labels_B == IGNORED, 0.0)
            self.scores = logits_BC.tolist()
        elif logits_BC.ndim == 3:
            places = [np.flatnonzero(np.asarray(feature["labels"]) != IGNORED) for feature in features]
            loss_B = F.cross_entropy(logits_BC.mT, labels_B, ignore_index=IGNORED, reduction="none").sum(1)
            found_BSC = logits_BC.log_softmax(-1)
            self.scores = [found_BSC[row, of_row].tolist() for row, of_row in enumerate(places)]
        else:
            loss_B = F.cross_entropy(logits_BC, labels_B, ignore_index=IGNORED, reduction="none")
            self.scores = logits_BC.log_softmax(-1).tolist()
        self.nll, self.tokens = loss_B.tolist(), labels_B.ne(IGNORED).long().reshape(len(labels_B), -1).sum(1).tolist()


ANSWERERS = {
    "seq2seq": Seq2SeqAnswerer, "causal": CausalAnswerer, "masked": SegmentAnswerer, "encoder": SegmentAnswerer,
}  # fmt: skip
