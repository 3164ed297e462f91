"""Several fine-tuning examples in one row, none of which sees another (`--pack_rows`).

    >>> collate = PackedRowsCollator(pad_token_id=0, decoder_start_token_id=0, row_lengths=(8, 4))
    >>> batch = collate([{"input_ids": [5, 6, 1], "labels": [9, 1]}, {"input_ids": [7, 8, 4, 1], "labels": [3]}])
    >>> batch["input_ids"].tolist(), batch["encoder_segment_ids"].tolist()
    ([[5, 6, 1, 7, 8, 4, 1, 0]], [[1, 1, 1, 2, 2, 2, 2, 0]])
    >>> batch["labels"].tolist(), batch["decoder_input_ids"].tolist()
    ([[9, 1, 3, -100]], [[0, 9, 0, 0]])

A batch has the examples that it would have without packing: updates, epochs, resuming and ranks stay as they are, and
the loss is the same, being summed over target tokens (law 1). Only its shape is another: rows of one length, as many as
first-fit decreasing needs, which T5 reads with block masks (`t5suite.models.attention`). How long rows are and how many
a batch may have is chosen before the first step (`choose_rows`), so that a compiled model has a few graphs.

Shapes: B examples, R rows, S input tokens of a row, T target tokens of a row.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import IGNORED, MULTIPLE, Seq2SeqCollator, choose_widths
from t5suite.data.batches.features import Picked, TokenArrays, TokenRows
from t5suite.data.objectives import Ragged

logger = logging.getLogger(__name__)

# Batches of the first epoch that are packed on trial: for the choice of lengths, and for that of numbers of rows.
FEW_TRIALS, MANY_TRIALS = 60, 1000
# Lengths of rows that are tried beside the longest example's, at least.
LENGTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Room for targets that is tried, as a multiple of what the examples of a full row have on average.
TARGET_ROOM = (1.0, 1.25, 1.6, 2.0)
# A token costs as much again in attention as in all else in rows of so many tokens (T5 base: 4,600; its attention is
# slower than its matrix products), and a target token about twice as much as an input token (it also reads the inputs).
EVEN_LENGTH, TARGET_COST = 2048, 2.0


@dataclass(frozen=True)
class PackedRowsCollator(Seq2SeqCollator):
    """Packs its examples into rows of `row_lengths` = (S, T).

    Args:
      row_counts: batches have one of these numbers of rows, ascending, filled up with rows that count for nothing; any
        number without it. The last one holds every batch that has so many examples.
    """

    row_lengths: tuple[int, int] = (0, 0)
    row_counts: tuple[int, ...] = ()

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        inputs, targets = flat(rows.input_ids), flat(rows.labels)
        rows_B = pack_examples(np.stack([inputs.lengths, targets.lengths], axis=1), self.row_lengths)
        num_rows = self.count(int(rows_B.max()) + 1)
        ids_RS, segments_RS = lay_out(inputs, rows_B, self.row_lengths[0], self.pad_token_id)
        labels_RT, segments_RT = lay_out(targets, rows_B, self.row_lengths[1], IGNORED)
        arrays = {
            "input_ids": (ids_RS, self.pad_token_id),
            "attention_mask": ((segments_RS > 0).astype(np.int64), 0),
            "labels": (labels_RT, IGNORED),
            "decoder_input_ids": (self.read(labels_RT, segments_RT), self.pad_token_id),
            "encoder_segment_ids": (segments_RS, 0),
            "decoder_segment_ids": (segments_RT, 0),
        }
        return {name: torch.from_numpy(with_rows(array, num_rows, fill)) for name, (array, fill) in arrays.items()}

    def read(self, labels_RT: np.ndarray, segments_RT: np.ndarray) -> np.ndarray:
        """What the decoder reads: each example begins anew with the start token, as in `collators.shift_right`."""
        begins_RT = np.diff(segments_RT, axis=1, prepend=0) != 0
        read_RT = np.empty_like(labels_RT)
        read_RT[:, 1:] = labels_RT[:, :-1]
        read_RT[begins_RT] = self.decoder_start_token_id
        read_RT[(segments_RT == 0) | (read_RT == IGNORED)] = self.pad_token_id
        return read_RT

    @property
    def num_shapes(self) -> int:
        """How many shapes its batches may have; 0 where any number of rows."""
        return len(self.row_counts)

    def count(self, needed: int) -> int:
        """The rows of a batch that needs so many."""
        return next((count for count in self.row_counts if count >= needed), needed)


def flat(picked: Picked) -> Ragged:
    """Picked rows, one behind the other.

    >>> flat(Picked(np.array([5, 6, 1, 7, 1]), np.array([3, 0]), np.array([2, 3]))).values.tolist()
    [7, 1, 5, 6, 1]
    """
    ends = np.cumsum(picked.lengths_B)
    shifts = np.repeat(picked.starts_B - (ends - picked.lengths_B), picked.lengths_B)
    return Ragged(picked.values[np.arange(len(shifts)) + shifts].astype(np.int64), picked.lengths_B)


def with_rows(array_RX: np.ndarray, num_rows: int, fill: int) -> np.ndarray:
    """The array with so many rows; those added hold `fill`."""
    missing = num_rows - len(array_RX)
    return array_RX if missing <= 0 else np.pad(array_RX, ((0, missing), (0, 0)), constant_values=fill)


# ---------------------------------------------------------------------------------------------------------------------
# How long, how many


def with_packed_rows(
    collator: Seq2SeqCollator,
    features: TokenArrays,
    order: Callable[[int], np.ndarray],
    batch_size: int,
    most: int,
    row_lengths: tuple[int | None, int | None] = (None, None),
) -> PackedRowsCollator:
    """The collator, packing; tells what rows it has chosen.

    Args:
      order: epoch -> indices into the features, as the sampler takes them.
      batch_size: examples that a rank takes at once.
      most: numbers of rows that batches may have, 0 for any.
      row_lengths: input and target tokens of a row; None where they are to be chosen.

    Raises:
      ConfigError: an example is longer than a row, or `most` is below 0.
    """
    if most < 0:
        raise ConfigError(f"--length_buckets {most}: must be at least 1, or 0 for none")
    lengths_N2 = np.stack([features.input_ids.lengths, features.labels.lengths], axis=1)
    check_fits(lengths_N2, row_lengths)
    row_lengths = choose_row_lengths(lengths_N2, order(0), batch_size, row_lengths)
    needed, tokens = packed_on_trial(lengths_N2, order(0), batch_size, row_lengths, MANY_TRIALS)
    counts = choose_counts(needed, batch_size, most) if most else ()
    if counts and needed.max() < counts[0]:
        logger.warning(
            "--length_buckets %d: the one shape must have a row for each example, and packing gains nothing; choose 2 "
            "or more",
            most,
        )
    names = ("pad_token_id", "decoder_start_token_id", "pad_to_multiple_of")
    shared = {name: getattr(collator, name) for name in names}
    packed = PackedRowsCollator(**shared, row_lengths=row_lengths, row_counts=counts)
    places = sum(packed.count(count) for count in needed.tolist()) * np.array(row_lengths)
    logger.info(
        "examples share rows of %d input and %d target tokens; batches have %s, %d to %d rows; "
        "%.0f%% of their input tokens and %.0f%% of their target tokens are no padding",
        *row_lengths,
        f"{len(counts)} shape{'s' if len(counts) > 1 else ''}" if counts else "any number of shapes",
        *((counts[0], counts[-1]) if counts else (needed.min(), needed.max())),
        *(100 * tokens / places),
    )
    return packed


def check_fits(lengths_N2: np.ndarray, row_lengths: tuple[int | None, int | None]) -> None:
    """Raises `ConfigError` where an example is longer than a row that was asked for."""
    for side, (name, length) in enumerate(zip(("inputs", "targets"), row_lengths, strict=True)):
        longest = int(lengths_N2[:, side].max(initial=1))
        if length is not None and length < longest:
            raise ConfigError(f"--row_{name}_length {length}: the longest example has {longest} tokens of {name}")


def choose_row_lengths(lengths_N2, epoch, batch_size: int, given) -> tuple[int, int]:
    """The lengths of rows that cost the least on trial, of those that hold every example.

    >>> choose_row_lengths(np.array([[30, 4]] * 64), np.arange(64), batch_size=32, given=(None, None))
    (96, 16)
    """
    longest = (-(-np.maximum(lengths_N2.max(axis=0, initial=1), 1) // MULTIPLE) * MULTIPLE).tolist()
    widths = [longest[0], *(length for length in LENGTHS if longest[0] < length <= max(4 * longest[0], LENGTHS[0]))]
    share = lengths_N2[:, 1].sum() / max(lengths_N2[:, 0].sum(), 1)
    best = (np.inf, (0, 0))
    for width in widths if given[0] is None else [given[0]]:
        rooms = {max(longest[1], int(-(-width * share * room // MULTIPLE)) * MULTIPLE) for room in TARGET_ROOM}
        for room in sorted(rooms) if given[1] is None else [given[1]]:
            needed, _ = packed_on_trial(lengths_N2, epoch, batch_size, (width, room), FEW_TRIALS)
            cost = needed.sum() * (width * (1 + width / EVEN_LENGTH) + TARGET_COST * room)
            best = min(best, (cost, (width, room)))
    return best[1]


def packed_on_trial(lengths_N2, epoch, batch_size: int, row_lengths, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """`(rows that each batch takes, tokens [2] of all)`, of at most so many batches, spread over the epoch."""
    starts = np.arange(0, len(epoch), batch_size)
    starts = starts[:: max(1, len(starts) // trials)]
    batches = [lengths_N2[epoch[start : start + batch_size]] for start in starts]
    needed = np.array([pack_examples(batch, row_lengths).max() + 1 for batch in batches], dtype=np.int64)
    return needed, sum(batch.sum(axis=0) for batch in batches)


def choose_counts(needed: np.ndarray, batch_size: int, most: int) -> tuple[int, ...]:
    """At most so many numbers of rows; the last one is enough for every batch, an example a row.

    >>> choose_counts(np.array([5, 5, 6, 6, 7]), batch_size=32, most=3)
    (5, 7, 32)
    """
    if most == 1:
        return (batch_size,)
    counts = choose_widths(needed, most - 1, multiple=1)
    return counts if counts[-1] >= batch_size else (*counts, batch_size)


# ---------------------------------------------------------------------------------------------------------------------
# Several examples in one row: who goes where, and the rows themselves.
#
# Segment ids become block masks in the model (`t5suite.models.attention`), so that no example sees another.


def pack_examples(lengths_B2, row_lengths):
    """The row of each example, int64 [B], so that inputs and targets both fit: first-fit decreasing.

    >>> pack_examples([[5, 2], [3, 3], [4, 1]], (8, 5)).tolist()
    [0, 0, 1]

    Examples go, those first that fill the larger share of a row, into the first row that has room for them; equal
    ones in the order given. Rows are then numbered by their first example, from 0, without gaps.
    lengths_B2: inputs and targets of each example in tokens; row_lengths: those of a row.
    Raises ValueError where an example is longer than a row.
    Source: first-fit decreasing (Johnson 1973), by the larger share of two. Choosing for each row what fits its room
    best (Panigrahy et al. 2011) saved no row in prefix LM's and UL2's batches.
    """
    lengths_B2, row_lengths = np.asarray(lengths_B2).reshape(-1, 2), np.asarray(row_lengths)
    too_long = np.flatnonzero((lengths_B2 > row_lengths).any(axis=1))
    if len(too_long):
        lengths, limits = lengths_B2[too_long[0]].tolist(), row_lengths.tolist()
        raise ValueError(f"example {too_long[0]} has {lengths} inputs and targets, more than a row's {limits}")
    shares_B = (lengths_B2 / np.maximum(row_lengths, 1)).max(axis=1)
    # Plain numbers: of 32 to 128 examples a fifth of the time that array operations for each of them take.
    order = np.argsort(-shares_B, kind="stable").tolist()
    lengths, room, rows = lengths_B2.tolist(), [], [0] * len(lengths_B2)
    for example in order:
        inputs, targets = lengths[example]
        row = next((row for row, left in enumerate(room) if left[0] >= inputs and left[1] >= targets), len(room))
        if row == len(room):
            room.append(row_lengths.tolist())
        room[row][0] -= inputs
        room[row][1] -= targets
        rows[example] = row
    rows_B = np.array(rows, dtype=np.int64)
    _, first, numbers_B = np.unique(rows_B, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers_B]


def lay_out(examples, rows_B, width, fill):
    """Examples in their rows, one behind the other in the order given: `(ids [R, width], segment ids [R, width])`.

    >>> from t5suite.data.objectives import Ragged
    >>> examples = Ragged(np.array([5, 6, 7, 8, 9]), np.array([2, 2, 1]))
    >>> ids_RX, segments_RX = lay_out(examples, rows_B=np.array([0, 0, 1]), width=5, fill=-1)
    >>> ids_RX.tolist(), segments_RX.tolist()
    ([[5, 6, 7, 8, -1], [9, -1, -1, -1, -1]], [[1, 1, 2, 2, 0], [1, 0, 0, 0, 0]])

    examples: `Ragged`. The n-th example of a row has segment id n, from 1; where nothing stands are `fill` and 0.
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
