"""How an encoder-decoder answers: it writes, or scores candidates, behind one run of its encoder.

    >>> reading = Seq2SeqAnswerer(model, tokenizer, collator, device).read(features)
    >>> reading.candidate_scores([[[1465, 1], [2841, 1]]])             # sums of log-probabilities
    [[-0.11, -2.31]]
    >>> reading.generate(GenerationConfig(max_new_tokens=8, eos_token_id=1))
    [[([1465, 1], None)]]
    >>> reading.nll                                                    # of the labels, known from either
    [0.11]

A T5's decoder is taken apart (`t5_decoder`): it reads all of a row's candidates as a tree, and writes greedy answers
without transformers' `generate`. The loss of targets that were among what it read or wrote needs no pass of its own.
Shapes: B examples, P pairs of example and candidate, S source and T target tokens, D width, V vocabulary, E edges.
"""

from abc import ABC, abstractmethod
from functools import cached_property, partial

import torch
import torch.nn.functional as F

# With `router_logits` (None), which models of experts look for; to all others it is what their encoder gives.
from transformers.modeling_outputs import MoeModelOutputWithPast as EncoderOutput

from t5suite.data.batches.collators import IGNORED, Seq2SeqCollator, shift_right
from t5suite.models.candidate_trees import (
    MOST_NODES,
    CandidateTree,
    TreeBatch,
    batch_of,
    edge_log_probs,
    sums_of_paths,
    tree_of,
)
from t5suite.models.families import plain
from t5suite.models.t5_decoder import begin_writing, takes_apart, to_device, to_host

# (row, candidate) pairs that are scored at once, counted in the tokens that they attend to.
SCORED_TOKENS_AT_ONCE = 32768


class Answerer(ABC):
    """One model, its tokenizer and its collator.

    Attributes:
      reference: fast paths that are not taken (`reference_code`): candidates as one tree, greedy answers without
        transformers' `generate`. They change nothing but the time that it takes.
      tells_nll: whether the nats of greedy answers will be asked for.
    """

    def __init__(self, model, tokenizer, collator, device):
        self.model = model
        self.tokenizer = tokenizer
        self.collator = collator
        self.device = device
        self.reference: frozenset[str] = frozenset()
        self.tells_nll = True

    def is_quick(self, method: str) -> bool:
        """Whether `score` or `generate` goes its quick way with this model."""
        return False

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


def begin_generating(reading, generation_config, synced: bool):
    """What waits for the answers of a reading; where it can, a GPU goes on meanwhile."""
    if hasattr(reading, "begin_generating"):
        return reading.begin_generating(generation_config, synced)
    answers = reading.generate(generation_config, synced)
    return lambda: answers


def begin_scoring(reading, candidates, most):
    """What waits for each candidate's log-probability."""
    if hasattr(reading, "begin_scoring"):
        return reading.begin_scoring(candidates, most)
    scores = reading.candidate_scores(candidates, most)
    return lambda: scores


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


# Trees of rows with candidates of their own (ReCoRD) that are remembered.
KEPT_TREES = 4096


class Seq2SeqAnswerer(Answerer):
    """The encoder reads, the decoder writes."""

    def __init__(self, model, tokenizer, collator: Seq2SeqCollator, device):
        super().__init__(model, tokenizer, collator, device)
        self._made = {}
        self._same, self._shared = (None, None), None

    @cached_property
    def taken_apart(self) -> bool:
        """Whether encoder and decoder are called by themselves."""
        return not {"candidate_trees", "quick_decoding"} <= self.reference and takes_apart(self.model)

    def is_quick(self, method: str) -> bool:
        """Whether candidates are read as trees (`score`), or greedy answers written without `generate`."""
        path = {"score": "candidate_trees", "generate": "quick_decoding"}.get(method)
        return path is not None and path not in self.reference and self.taken_apart

    def tree(self, candidates) -> CandidateTree:
        """The tree of a row's candidates, made once for all rows that have the same."""
        if candidates is self._same[0]:
            return self._same[1]
        key = tuple(tuple(map(int, ids)) for ids in candidates)
        if key not in self._made:
            if len(self._made) >= KEPT_TREES:
                self._made.clear()
            self._made[key] = tree_of(candidates)
        self._same = candidates, self._made[key]
        return self._made[key]

    def batch_of_trees(self, trees: list[CandidateTree]) -> TreeBatch:
        """The trees of a batch's rows; that of rows which all have the same is made, and put on a device, once."""
        start, pad = self.collator.decoder_start_token_id, self.collator.pad_token_id
        if any(tree is not trees[0] for tree in trees):
            return batch_of(trees, start, pad)
        if self._shared is None or self._shared.trees[0] is not trees[0]:
            self._shared = batch_of(trees[:1], start, pad)
        return self._shared

    def read(self, features) -> "Seq2SeqReading":
        """Encoder and decoder over a batch."""
        return Seq2SeqReading(self, features)


class Seq2SeqReading:
    """The encoder's states of a batch, and the loss of its targets, each worked out when it is asked for.

    Where weights may lie in pieces, the encoder runs within the whole model, for FSDP puts the pieces of some weights
    together when that is called, and not when a part of it is.
    """

    def __init__(self, answerer: Seq2SeqAnswerer, features):
        self.answerer = answerer
        on_host = answerer.collator(features)
        self.lengths_B = on_host["attention_mask"].sum(1).numpy()
        self.labels_BT, self.read_BT = on_host["labels"], on_host["decoder_input_ids"]
        self.ids_BS, self.mask_BS = (
            to_device(on_host[name], answerer.device) for name in ("input_ids", "attention_mask")
        )
        self._known_nll = {}

    @cached_property
    def nll(self) -> list[float]:
        """By example, in nats; of targets that were among the answers read, it is known already."""
        number = len(self.mask_BS)
        rows = [row for row in range(number) if row not in self._known_nll]
        found = dict(self._known_nll)
        if rows:
            found |= dict(zip(rows, self._nll_of(rows), strict=True))
        return [found[row] for row in range(number)]

    @cached_property
    def tokens(self) -> list[int]:
        """By example, how many of its tokens count."""
        return self.labels_BT.ne(IGNORED).sum(dim=1).tolist()

    @cached_property
    def hidden_BSD(self) -> torch.Tensor:
        """What the encoder says of the batch."""
        if not self.answerer.taken_apart:
            return self._outputs.encoder_last_hidden_state
        encoder, mask = plain(self.answerer.model).encoder, self.hiding_BS
        if mask is not None and encoder.config._attn_implementation == "sdpa":
            mask = mask[:, None, None, :].bool()  # the stack takes it as it is, and looks at no value on the device
        return encoder(input_ids=self.ids_BS, attention_mask=mask).last_hidden_state

    @property
    def hiding_BS(self) -> torch.Tensor | None:
        """The mask; None where it hides nothing, which the host knows."""
        return None if self.lengths_B.min() == self.ids_BS.shape[1] else self.mask_BS

    @cached_property
    def _outputs(self):
        """Of encoder and decoder, in one call."""
        read_BT = to_device(self.read_BT, self.answerer.device)
        return self.answerer.model(
            input_ids=self.ids_BS, attention_mask=self.mask_BS, decoder_input_ids=read_BT, return_dict=True
        )

    def _nll_of(self, rows: list[int]) -> list[float]:
        device = self.mask_BS.device
        if self.answerer.taken_apart:
            picked = slice(None) if len(rows) == len(self.mask_BS) else to_device(torch.tensor(rows), device)
            logits_BTV = self.answerer.model(
                encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD[picked]),
                attention_mask=self.mask_BS[picked],
                decoder_input_ids=to_device(self.read_BT, device)[picked],
            ).logits
        else:
            picked, logits_BTV = slice(None), self._outputs.logits
        labels_BT = to_device(self.labels_BT, device)[picked]
        nll_BT = F.cross_entropy(logits_BTV.float().transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none")
        return nll_BT.sum(dim=1).tolist()

    def generate(self, generation_config, synced: bool = False, **options):
        """As `Answerer.generate`; `options` go to transformers' `generate` (`logits_processor`, ...)."""
        return self.begin_generating(generation_config, synced, **options)()

    def begin_generating(self, generation_config, synced: bool = False, **options):
        """As `generate`; what it returns waits for the answers, which a GPU may still be writing."""
        answerer = self.answerer
        if answerer.is_quick("generate") and not synced and not options:
            eos, start = answerer.eos, answerer.collator.decoder_start_token_id
            if writes_plainly(answerer.model, generation_config, eos, start):
                most = generation_config.max_new_tokens
                return partial(
                    self._written,
                    begin_writing(
                        answerer.model, self.hidden_BSD, self.hiding_BS, start, eos, most, answerer.tells_nll
                    ),
                )
        answers = self._generated(generation_config, synced, options)
        return lambda: answers

    def _written(self, writing):
        written = writing()
        of_rows = zip(written.ids, written.nll or (), self._targets)
        self._known_nll |= {row: nll for row, (ids, nll, target) in enumerate(of_rows) if ids == target}
        return [[(ids, None)] for ids in written.ids]

    def _generated(self, generation_config, synced: bool, options):
        answerer = self.answerer
        written = answerer.model.generate(
            encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD),
            attention_mask=self.mask_BS,
            generation_config=generation_config,
            synced_gpus=synced,
            **options,
        )
        # The first token is the decoder's start token, which some families also use as their end token.
        return answers_of(answerer, written, 1, len(self.mask_BS))

    def candidate_scores(self, candidates, most=lambda number: number) -> list[list[float]]:
        """Log-probabilities of each example's candidates.

        The decoder reads them as a tree, or (another model, very many) pair by pair of example and candidate.

        Args:
          most: a number of this rank's -> the largest of all ranks'. Where weights are in pieces, ranks put them
            together in every forward pass, so that all must make the same number of passes.
        """
        return self.begin_scoring(candidates, most)()

    def begin_scoring(self, candidates, most=lambda number: number):
        """As `candidate_scores`; what it returns waits for a GPU that may still be at it."""
        trees = self._trees(candidates)
        if trees is None:
            scores = self._scores_of_pairs(candidates, most)
            return lambda: scores
        batch = self.answerer.batch_of_trees(trees)
        edges_BE = to_host(edge_log_probs(self.answerer.model, batch, self.hidden_BSD, self.hiding_BS))
        return lambda: self._scores(candidates, sums_of_paths(trees, edges_BE().double().numpy()))

    def _scores(self, candidates, scores):
        for row, place in enumerate(self._target_places(candidates)):
            if place is not None:
                self._known_nll[row] = -scores[row][place]
        return scores

    def _target_places(self, candidates) -> list[int | None]:
        """By example, which candidate its target is."""
        return [
            next((place for place, ids in enumerate(of_row) if list(ids) == target), None)
            for target, of_row in zip(self._targets, candidates, strict=True)
        ]

    def _trees(self, candidates) -> list[CandidateTree] | None:
        if not self.answerer.is_quick("score"):
            return None
        trees = [self.answerer.tree(of_row) for of_row in candidates]
        fits = all(len(tree.paths) and len(tree.tokens) <= MOST_NODES for tree in trees)
        return trees if fits else None

    @cached_property
    def _targets(self) -> list[list[int]]:
        return [[token for token in row if token != IGNORED] for row in self.labels_BT.tolist()]

    def _scores_of_pairs(self, candidates, most) -> list[list[float]]:
        collator, mask_BS = self.answerer.collator, self.mask_BS

        def score(chunk):
            labels_PT = collator.pad([candidates[b][c] for b, c in chunk], IGNORED).to(mask_BS.device)
            rows_P = torch.tensor([b for b, _ in chunk], device=mask_BS.device)
            logits_PTV = self.answerer.model(
                encoder_outputs=EncoderOutput(last_hidden_state=self.hidden_BSD[rows_P]),
                attention_mask=mask_BS[rows_P],
                decoder_input_ids=shift_right(labels_PT, collator.pad_token_id, collator.decoder_start_token_id),
            ).logits.float()
            nll_PT = F.cross_entropy(logits_PTV.transpose(1, 2), labels_PT, ignore_index=IGNORED, reduction="none")
            return (-nll_PT.sum(dim=1)).tolist()

        return scores_of_pairs(candidates, score, mask_BS.shape[1], most)


def writes_plainly(model, generation_config, eos: int, start: int) -> bool:
    """Whether `generate` takes the likeliest token at each step, as the model gives it, from this token to that one.

    What the call leaves open the checkpoint's own settings decide, as in transformers.
    """
    given = generation_config.to_diff_dict()
    settings = {**model.generation_config.to_diff_dict(), **given}
    plain_values = all(value in NEUTRAL.get(name, (None,)) for name, value in settings.items() if name not in IDLE)
    ends = settings.get("eos_token_id"), settings.get("decoder_start_token_id")
    return plain_values and ends == (eos, start) and (given.get("max_new_tokens") or 0) > 0


# Settings that change nothing of greedy decoding, or are looked at on their own.
IDLE = frozenset(
    "max_length max_new_tokens length_penalty early_stopping temperature top_k top_p typical_p min_p top_h "
    "epsilon_cutoff eta_cutoff bos_token_id eos_token_id pad_token_id decoder_start_token_id use_cache "
    "transformers_version _from_model_config output_attentions output_hidden_states num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind".split()
)
# Values of the others that change nothing.
NEUTRAL = {
    "do_sample": (None, False),
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "diversity_penalty": (None, 0.0),
    "remove_invalid_values": (None, False),
    "renormalize_logits": (None, False),
    "return_dict_in_generate": (None, False),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "low_memory": (None, False),
    "is_assistant": (None, False),
}
