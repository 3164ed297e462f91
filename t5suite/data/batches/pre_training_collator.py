"""Blocks of tokens -> batches of torch tensors: by any seq2seq objective, masked, or for a causal language model.

Labels and logits match position by position, as our loss (`t5suite.training.losses`) expects. Shape suffixes:
B examples, L tokens of a block, R rows, S tokens of a row's inputs, T of its targets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import find
from t5suite.data.batches.collators import IGNORED
from t5suite.data.objectives import OBJECTIVES, DatumRngs, Ragged
from t5suite.data.objectives.masked import MASK_UNITS, causal_lm_batch, masked_lm_batch
from t5suite.data.objectives.vocabulary import MaskVocabulary


@dataclass(kw_only=True)
class T5DataCollator:
    """Applies its objective, with randomness that depends on (seed, index) alone: workers and batch size never change
    the data.

    >>> collate = T5DataCollator(sentinel_ids=[32099, 32098], eos_token_id=1, inputs_length=12, seed=0)
    >>> collate.tokens_length, collate.targets_length
    (12, 4)
    >>> batch = collate([{"input_ids": np.arange(2, 14), "index": 7}])
    >>> batch["input_ids"].tolist()
    [[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 32099, 1]]
    >>> batch["labels"].tolist(), batch["decoder_input_ids"].tolist()
    ([[32099, 12, 13, 1]], [[0, 32099, 12, 13]])

    Every example is `{"input_ids": [L], "index": j}`, j being the datum's number within the run, and for an objective
    with several denoisers (`ul2`) "denoiser": d. The batch has `input_ids` and `attention_mask` [B, inputs_length],
    `labels` and `decoder_input_ids` [B, targets_length], all int64. Span corruption fills its rows; other
    objectives pad inputs with `pad_token_id` (attention mask 0) and labels with -100.

    With `pack`, examples share rows of [row_inputs_length, row_targets_length], as few as first-fit finds, and the
    batch also has `encoder_segment_ids` [R, S] and `decoder_segment_ids` [R, T] (`lay_out`), which the
    model must respect (`t5suite.models.t5.packing`); decoder inputs restart with every example.

    Args:
      objective: a seq2seq name in `OBJECTIVES`.
      inputs_length, targets_length: tokens of an example, EOS included; targets_length None: as many as needed.
      noise_density, mean_span_length, mode_token_ids, ...: passed on to objectives that use them
        (`OBJECTIVES[objective].uses`); None: the objective's own default.
      mask_units, collocations, word_start_V: the units that `unit_denoising` hides (`masked.unit_masks`).
      sentence_end_V, word_start_V: where `sentence_deshuffling` splits sentences.
      row_inputs_length, row_targets_length: tokens of a packed row; None: as many as an example has at most.

    Attributes:
      tokens_lengths: raw tokens of a block, for each denoiser; `tokens_length` if there is only one.
      weights: the probability of each denoiser; they sum to 1.

    Raises:
      ConfigError: when made: too few sentinels, lengths that do not fit, units without their table; when called: a
        block of the wrong length, an example without "index" (Trainer drops it unless `remove_unused_columns=False`)
        or of an unknown denoiser.
    """

    objective: str = "span_corruption"
    sentinel_ids: Sequence[int] = ()
    eos_token_id: int = 1
    inputs_length: int = 512
    targets_length: int | None = None
    noise_density: float | None = None
    mean_span_length: float | None = None
    mode_token_ids: Mapping[str, int] | None = None
    mask_units: str | None = None
    collocations: object | None = None
    word_start_V: np.ndarray | None = None
    sentence_end_V: np.ndarray | None = None
    seed: int = 0
    decoder_start_token_id: int = 0
    pad_token_id: int = 0
    pack: bool = False
    row_inputs_length: int | None = None
    row_targets_length: int | None = None
    tokens_lengths: list[int] = field(init=False)
    weights: tuple[float, ...] = field(init=False)

    def __post_init__(self):
        table = {name: entry for name, entry in OBJECTIVES.items() if entry.family == "seq2seq"}
        objective = find(self.objective, table, "objective of an encoder-decoder model", where="--objective")
        self.weights = objective.weights
        needs = {"sentinel_ids": np.array(self.sentinel_ids, dtype=np.int64), "eos_id": self.eos_token_id}
        needs |= {name: getattr(self, name) for name in ("targets_length", "word_start_V", "sentence_end_V")}
        self._settings = {name: needs[name] for name in objective.needs}
        for name in objective.uses:
            if getattr(self, name) is not None:
                self._settings[name] = getattr(self, name)
        self._blocks = []
        for denoiser in range(len(self.weights)):
            settings = {name: value for name, value in self._settings_of(denoiser).items() if name != "targets_length"}
            self._blocks.append(objective.block(self.inputs_length, self.targets_length, **settings))
        self.tokens_lengths = [block.tokens_length for block in self._blocks]
        self._set_lengths()
        if self.pack:
            require_proved("packed_rows")
        # glibc returns memory beyond twice the largest array freed so far: freeing a larger one, never written to,
        # raises that bound to 32 MB, and the next batch (1.3 MB) needs no new pages, which cost 0.6 of 1.5 ms.
        np.empty(2**24, dtype=np.uint8)
        self([])  # raises at once if the settings cannot work

    def _settings_of(self, denoiser):
        return {**self._settings, "denoiser": denoiser} if len(self.weights) > 1 else self._settings

    def _set_lengths(self):
        """Fixes the shapes of batches, and checks that the longest examples fit them."""
        longest_inputs = max(block.inputs_length for block in self._blocks)
        longest_targets = max(block.targets_length for block in self._blocks)
        if longest_inputs == 1:  # full_lm reads EOS alone: no room is needed
            self.inputs_length = 1
        if self.targets_length is None:
            self.targets_length = longest_targets
        if "targets_length" in self._settings:
            self._settings["targets_length"] = self.targets_length
        for side, needed in (("inputs", longest_inputs), ("targets", longest_targets)):
            name = f"row_{side}_length"
            example_length = getattr(self, f"{side}_length")
            if needed > example_length:
                raise ConfigError(
                    f"blocks of {max(self.tokens_lengths)} tokens become {needed} {side}, more than --{side}_length "
                    f"{example_length}: set --{side}_length {needed}, or change --inputs_length"
                )
            row_length = getattr(self, name)
            if row_length is not None and not self.pack:
                raise ConfigError(f"{name} {row_length} has no effect without pack")
            if row_length is not None and row_length < example_length:
                raise ConfigError(f"{name} {row_length}: examples have up to {example_length} {side}")
            setattr(self, name, example_length if row_length is None else row_length)

    @property
    def tokens_length(self):
        """Raw tokens of a block; ValueError if the denoisers have different blocks."""
        if len(self.tokens_lengths) > 1:
            raise ValueError(f"{self.objective} has blocks of {self.tokens_lengths} tokens: use `tokens_lengths`")
        return self.tokens_lengths[0]

    def __call__(self, examples):
        if not examples:  # on a rank without rows: an epoch's last batch has fewer rows than there are ranks
            block = np.full(self.tokens_lengths[0], self.pad_token_id)
            return _counting_for_nothing(self([{"input_ids": block, "index": 0, "denoiser": 0}]))
        inputs, targets = self.corrupt(examples)
        return self._packed(inputs, targets) if self.pack else self._padded(inputs, targets)

    def corrupt(self, examples):
        """`(inputs, targets)` of the examples, in their order, both `Ragged`, from which the batch is made."""
        places_by_kind = {}
        for place, example in enumerate(examples):
            kind = (example.get("denoiser", 0), len(example["input_ids"]))
            places_by_kind.setdefault(kind, []).append(place)
        parts = []
        for kind, places in places_by_kind.items():
            parts.append(self._corrupt_alike([examples[place] for place in places], *kind))
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate(list(places_by_kind.values())))
        return tuple(Ragged.concatenated(side).take(order) for side in zip(*parts))

    def _corrupt_alike(self, examples, denoiser, length):
        """Examples of one denoiser and one length."""
        check_names(examples, ("index",))
        if not 0 <= denoiser < len(self._blocks):
            raise ConfigError(f"denoiser {denoiser}: {self.objective} has {len(self._blocks)}, numbered from 0")
        block = self._blocks[denoiser]
        needed = f"blocks of {block.tokens_length}" if block.exact else f"1 to {block.tokens_length}"
        if length != block.tokens_length and (block.exact or not 1 <= length <= block.tokens_length):
            raise ConfigError(
                f"example {examples[0]['index']} has {length} tokens: --inputs_length {self.inputs_length} "
                f"needs {needed}"
            )
        tokens_BL = np.concatenate([example["input_ids"] for example in examples]).reshape(-1, length)
        rngs = DatumRngs(self.seed, [example["index"] for example in examples])
        return OBJECTIVES[self.objective].batch(tokens_BL, rngs, **self._settings_of(denoiser))

    def _padded(self, inputs, targets):
        labels_BT = targets.padded(self.targets_length, IGNORED)
        decoder_input_ids_BT = np.empty_like(labels_BT)
        decoder_input_ids_BT[:, 0] = self.decoder_start_token_id
        is_full = labels_BT.size == len(targets.values)
        before_BT = labels_BT if is_full else targets.padded(self.targets_length, self.pad_token_id)
        decoder_input_ids_BT[:, 1:] = before_BT[:, :-1]
        return _tensors(
            input_ids=inputs.padded(self.inputs_length, self.pad_token_id),
            attention_mask=inputs.marks(self.inputs_length),
            labels=labels_BT,
            decoder_input_ids=decoder_input_ids_BT,
        )

    def _packed(self, inputs, targets):
        lengths_B2 = np.stack([inputs.lengths, targets.lengths], axis=1)
        rows_B = pack_examples(lengths_B2, (self.row_inputs_length, self.row_targets_length))
        input_ids_RS, encoder_segments_RS = lay_out(inputs, rows_B, self.row_inputs_length, self.pad_token_id)
        labels_RT, decoder_segments_RT = lay_out(targets, rows_B, self.row_targets_length, IGNORED)
        shifted = np.empty_like(targets.values)
        shifted[1:] = targets.values[:-1]
        shifted[targets.starts()] = self.decoder_start_token_id
        shifted = Ragged(shifted, targets.lengths)
        return _tensors(
            input_ids=input_ids_RS,
            attention_mask=(encoder_segments_RS > 0).astype(np.int64),
            labels=labels_RT,
            decoder_input_ids=lay_out(shifted, rows_B, self.row_targets_length, self.pad_token_id)[0],
            encoder_segment_ids=encoder_segments_RS,
            decoder_segment_ids=decoder_segments_RT,
        )


def _tensors(**arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Several examples in one row: assignment to rows, and the rows themselves. Segment ids become block masks in the model
# (`t5suite.models.t5.packing`), so that no example sees another. Shape suffix X: width of a row.


def pack_examples(lengths_B2, row_lengths):
    """The row of each example, int64 [B], so that inputs and targets both fit: first-fit decreasing.

    >>> pack_examples([[5, 2], [3, 3], [4, 1]], (8, 5)).tolist()
    [0, 0, 1]

    Each example, in decreasing order of its share of a row, goes into the first row with room for it; equal ones in
    the order given. Rows are then numbered by their first example, from 0, without gaps.
    lengths_B2: inputs and targets of each example in tokens; row_lengths: those of a row.
    Raises ValueError where an example is longer than a row.
    Source: first-fit decreasing (Johnson 1973), by the larger share of two. Choosing for each row what fits its space
    best (Panigrahy et al. 2011) saved no row in prefix LM's and UL2's batches.
    """
    lengths_B2 = np.asarray(lengths_B2).reshape(-1, 2)
    row_lengths = np.asarray(row_lengths)
    too_long = np.flatnonzero((lengths_B2 > row_lengths).any(axis=1))
    if len(too_long):
        lengths = lengths_B2[too_long[0]].tolist()
        limits = row_lengths.tolist()
        raise ValueError(f"example {too_long[0]} has {lengths} inputs and targets, more than a row's {limits}")
    shares_B = (lengths_B2 / np.maximum(row_lengths, 1)).max(axis=1)
    # Python numbers: for 32 to 128 examples, a fifth of the time of array operations for each of them.
    order = np.argsort(-shares_B, kind="stable").tolist()
    lengths = lengths_B2.tolist()
    room_of_rows = []
    rows = [0] * len(lengths)
    for example in order:
        inputs, targets = lengths[example]
        row = _first_row_with_room(room_of_rows, inputs, targets)
        if row is None:
            row = len(room_of_rows)
            room_of_rows.append(row_lengths.tolist())
        room_of_rows[row][0] -= inputs
        room_of_rows[row][1] -= targets
        rows[example] = row
    rows_B = np.array(rows, dtype=np.int64)
    _, first, numbers_B = np.unique(rows_B, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers_B]


def _first_row_with_room(room_of_rows: list[list[int]], inputs: int, targets: int) -> int | None:
    for row, (input_room, target_room) in enumerate(room_of_rows):
        if input_room >= inputs and target_room >= targets:
            return row
    return None


def lay_out(examples, rows_B, width, fill):
    """Examples in their rows, one after the other in the order given: `(ids [R, width], segment ids [R, width])`.

    >>> examples = Ragged(np.array([5, 6, 7, 8, 9]), np.array([2, 2, 1]))
    >>> ids_RX, segments_RX = lay_out(examples, rows_B=np.array([0, 0, 1]), width=5, fill=-1)
    >>> ids_RX.tolist(), segments_RX.tolist()
    ([[5, 6, 7, 8, -1], [9, -1, -1, -1, -1]], [[1, 1, 2, 2, 0], [1, 0, 0, 0, 0]])

    examples: `Ragged`. The n-th example of a row has segment id n, from 1; the rest is `fill` and 0.
    """
    num_rows = int(rows_B.max(initial=-1)) + 1
    order = np.argsort(rows_B, kind="stable")
    sorted_examples = examples.take(order)
    rows = rows_B[order]
    first_of_row = np.searchsorted(rows, rows)
    starts = sorted_examples.starts()
    first_places = rows * width + starts - starts[first_of_row]
    places = np.arange(len(sorted_examples.values)) + np.repeat(first_places - starts, sorted_examples.lengths)
    ids_RX = np.full((num_rows, width), fill, dtype=np.int64)
    segments_RX = np.zeros((num_rows, width), dtype=np.int64)
    ids_RX.reshape(-1)[places] = sorted_examples.values
    numbers = np.arange(len(rows)) - first_of_row + 1
    segments_RX.reshape(-1)[places] = np.repeat(numbers, sorted_examples.lengths)
    return ids_RX, segments_RX


PAIR_LABELS = {"next": "next_sentence_label", "order": "sentence_order_label"}


@dataclass
class CausalLMCollator:
    """Blocks for a decoder-only model: `input_ids`, `attention_mask` and `labels`, int64 [B, inputs_length].

    Labels are already shifted by one, the last being -100. Hugging Face's own loss would shift again: it must not be
    used on these batches (remove "labels" from the batch before the model sees it, as our trainer does).

    Every example is `{"input_ids": [inputs_length], "index": j}`; blocks are used unchanged: separators
    between documents belong in the corpus. Nothing is padded.

    Attributes: `tokens_length` (and `tokens_lengths`, [tokens_length]), the raw tokens of a block.
    """

    inputs_length: int = 512
    tokens_length: int = field(init=False)
    tokens_lengths: list[int] = field(init=False)

    weights = (1.0,)

    def __post_init__(self):
        if self.inputs_length < 2:
            raise ConfigError(f"--inputs_length {self.inputs_length}: a causal language model needs 2 tokens or more")
        self.tokens_length = self.inputs_length
        self.tokens_lengths = [self.inputs_length]

    def __call__(self, examples):
        if not examples:
            return _counting_for_nothing(self([{"input_ids": np.zeros(self.tokens_length, np.int64), "index": 0}]))
        tokens_BL = stack_blocks(examples, self.tokens_length, self.inputs_length)
        input_ids, labels = (side.padded(self.inputs_length, IGNORED) for side in causal_lm_batch(tokens_BL))
        return _tensors(input_ids=input_ids, attention_mask=np.ones_like(input_ids), labels=labels)


@dataclass
class MaskedLMCollator:
    """Blocks, or sentence pairs, for an encoder-only model, masked at random, depending on (seed, index) alone.

    >>> vocabulary = MaskVocabulary(mask_token_id=4, special_V=np.arange(30) < 5)
    >>> collate = MaskedLMCollator(vocabulary, inputs_length=7, cls_token_id=2, sep_token_id=3, noise_density=0.3)
    >>> collate.tokens_length
    5
    >>> batch = collate([{"input_ids": np.array([11, 12, 13, 14, 15]), "index": 0}])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[2, 11, 12, 4, 14, 15, 3]], [[-100, -100, -100, 13, 14, -100, -100]])

    An example is a block, `{"input_ids": [tokens_length], "index": j}`, that is put between [CLS] and [SEP]. With
    `sentence_pairs` it is a pair from `SentencePairDataset`, which has special tokens already and is padded.
    The batch has `input_ids`, `attention_mask` and `labels` [B, inputs_length], int64, labels being -100 for
    tokens that were not chosen; with pairs also `token_type_ids` and, under its name, the pairs' label [B].

    Args:
      vocabulary: of the tokenizer (`mask_vocabulary`).
      cls_token_id, sep_token_id: put before and after a block; None: nothing.
      pad_token_id: pads pairs; like those two, it must be one of the vocabulary's special tokens.
      sentence_pairs: "next" or "order", the dataset's kind; None for blocks.
      noise_density, mask_units, exact_count, collocations, mean_span_length: as in `masked_lm_batch`.

    Attributes: `tokens_length` (and `tokens_lengths`, [tokens_length]), the raw tokens of a block.

    Raises ConfigError when made: settings that cannot work; when called: a block of another length, a pair that is
    too long, blocks where pairs are expected, an example without "index".
    """

    vocabulary: MaskVocabulary
    inputs_length: int = 512
    cls_token_id: int | None = None
    sep_token_id: int | None = None
    pad_token_id: int = 0
    sentence_pairs: str | None = None
    noise_density: float = 0.15
    mask_units: str = "token"
    exact_count: bool = True
    collocations: Any = None
    mean_span_length: float = 5.0
    seed: int = 0
    tokens_length: int = field(init=False)
    tokens_lengths: list[int] = field(init=False)

    weights = (1.0,)

    def __post_init__(self):
        find(self.mask_units, MASK_UNITS, "unit", where="--mask_units")
        if self.sentence_pairs is not None:
            find(self.sentence_pairs, PAIR_LABELS, "kind of sentence pair", where="--sentence_pairs")
        around = [token_id for token_id in (self.cls_token_id, self.sep_token_id) if token_id is not None]
        self.tokens_length = self.inputs_length - len(around)
        if self.tokens_length < 1:
            raise ConfigError(f"--inputs_length {self.inputs_length} leaves no room between [CLS] and [SEP]")
        self.tokens_lengths = [self.tokens_length]
        for token_id in (*around, self.pad_token_id):
            if not self.vocabulary.special_V[token_id]:
                raise ConfigError(
                    f"[CLS], [SEP] and padding must be the tokenizer's special tokens; id {token_id} is not"
                )
        self([])  # raises at once if the settings cannot work

    def __call__(self, examples):
        if examples:
            return self._pairs(examples) if self.sentence_pairs else self._blocks(examples)
        ids = np.full(self.tokens_length, self.pad_token_id)
        label = PAIR_LABELS.get(self.sentence_pairs)
        batch = _counting_for_nothing(self([{"input_ids": ids, "token_type_ids": ids * 0, label: 0, "index": 0}]))
        return {**batch, label: torch.tensor([IGNORED])} if label else batch

    def _blocks(self, examples):
        first = int(self.cls_token_id is not None)
        tokens_BT = np.empty((len(examples), self.inputs_length), dtype=np.int64)
        tokens_BL = stack_blocks(examples, self.tokens_length, self.inputs_length)
        tokens_BT[:, first : first + self.tokens_length] = tokens_BL
        if self.cls_token_id is not None:
            tokens_BT[:, 0] = self.cls_token_id
        if self.sep_token_id is not None:
            tokens_BT[:, -1] = self.sep_token_id
        return self._masked(examples, tokens_BT, np.full(len(examples), self.inputs_length))

    def _pairs(self, examples):
        label = PAIR_LABELS[self.sentence_pairs]
        check_names(examples, ("index", "token_type_ids", label))
        lengths_B = np.array([len(example["input_ids"]) for example in examples])
        if lengths_B.max() > self.inputs_length:
            raise ConfigError(f"a sentence pair has {lengths_B.max()} tokens, --inputs_length is {self.inputs_length}")
        batch = self._masked(examples, self._padded(examples, "input_ids", self.pad_token_id), lengths_B)
        batch["token_type_ids"] = torch.from_numpy(self._padded(examples, "token_type_ids", 0))
        batch[label] = torch.tensor([example[label] for example in examples])
        return batch

    def _padded(self, examples, name, value):
        padded_BT = np.full((len(examples), self.inputs_length), value, dtype=np.int64)
        for row, example in enumerate(examples):
            padded_BT[row, : len(example[name])] = example[name]
        return padded_BT

    def _masked(self, examples, tokens_BT, lengths_B):
        input_ids, labels = masked_lm_batch(
            tokens_BT,
            DatumRngs(self.seed, [example["index"] for example in examples]),
            self.vocabulary,
            noise_density=self.noise_density,
            mask_units=self.mask_units,
            exact_count=self.exact_count,
            lengths_B=lengths_B,
            collocations=self.collocations,
            mean_span_length=self.mean_span_length,
        )
        width = self.inputs_length
        attention_mask = (np.arange(width) < lengths_B[:, None]).astype(np.int64)
        return _tensors(
            input_ids=input_ids.padded(width, 0), attention_mask=attention_mask, labels=labels.padded(width, 0)
        )


def stack_blocks(examples, tokens_length, inputs_length):
    """The examples' blocks, [B, tokens_length]; raises ConfigError for another length, or a missing index."""
    check_names(examples, ("index",))
    for example in examples:
        if len(example["input_ids"]) != tokens_length:
            raise ConfigError(
                f"example {example['index']} has {len(example['input_ids'])} tokens: --inputs_length {inputs_length} "
                f"needs blocks of {tokens_length}"
            )
    return np.stack([np.asarray(example["input_ids"]) for example in examples])


def check_names(examples, names):
    """Raises ConfigError for an example without one of these keys, such as "index", from which its noise is drawn."""
    for name in names:
        if any(name not in example for example in examples):
            raise ConfigError(
                f'an example has no "{name}": set remove_unused_columns=False in the training arguments, and use a '
                "dataset that gives it (BlockDataset; SentencePairDataset for sentence pairs)"
            )


def _counting_for_nothing(batch):
    """The batch with all labels ignored, for a rank without rows in an epoch's smaller last batch."""
    return {**batch, "labels": torch.full_like(batch["labels"], IGNORED)}
