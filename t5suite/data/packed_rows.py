"""Several fine-tuning examples in one row, none of which sees another (`--pack_rows`).

    >>> collate = PackedRowsCollator(pad_token_id=0, decoder_start_token_id=0, row_lengths=(8, 4))
    >>> batch = collate([{"input_ids": [5, 6, 1], "labels": [9, 1]}, {"input_ids": [7, 8, 4, 1], "labels": [3]}])
    >>> batch["input_ids"].tolist(), batch["encoder_segment_ids"].tolist()
    ([[5, 6, 1, 7, 8, 4, 1, 0]], [[1, 1, 1, 2, 2, 2, 2, 0]])
    >>> batch["labels"].tolist(), batch["decoder_input_ids"].tolist()
    ([[9, 1, 3, -100]], [[0, 9, 0, 0]])

A batch has the examples that it would have without packing: updates, epochs, resuming and ranks stay as they are, and
the loss is the same, being summed over target tokens (law 1). Only its shape is another: rows of one length, as many as
first-fit decreasing needs, which T5 reads with block masks (`t5suite.models.packed_t5`). How long rows are and how many
a batch may have is chosen before the first step (`choose_rows`), so that a compiled model has a few graphs.

Shapes: B examples, R rows, S input tokens of a row, T target tokens of a row.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from t5suite.base.errors import ConfigError
from t5suite.data.collators import IGNORED, Seq2SeqCollator
from t5suite.data.features import Picked, TokenArrays, TokenRows
from t5suite.data.objectives import Ragged
from t5suite.data.packing import lay_out, pack_examples
from t5suite.data.shapes import MULTIPLE, choose_widths

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
    (64, 8)
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
    (6, 7, 32)
    """
    if most == 1:
        return (batch_size,)
    counts = choose_widths(needed, most - 1, multiple=1)
    return counts if counts[-1] >= batch_size else (*counts, batch_size)
