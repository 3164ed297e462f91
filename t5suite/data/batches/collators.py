"""Ragged ids -> padded tensors for an encoder-decoder model.

    >>> Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=0)([{"input_ids": [5, 1], "labels": [9, 1]}])
    {'input_ids': [[5, 1]], 'attention_mask': [[1, 1]], 'labels': [[9, 1]], 'decoder_input_ids': [[0, 9]]}

The collator makes `decoder_input_ids` itself: our loss takes the labels out of the batch before the model sees it.
Dictionaries of ids and the rows of a `TokenArrays` (what its `__getitems__` gives) become the same tensors.
Shapes: B examples, S source tokens, T target tokens.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from t5suite.base.errors import ConfigError
from t5suite.data.batches.features import Picked, TokenArrays, TokenRows

IGNORED = -100
UNKNOWN_LABEL = -101  # where a word without a known label begins


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Pads inputs with the padding token and labels with -100; a plain object, so that workers can take it along.

    Args:
      pad_to_multiple_of: lengths are rounded up to a multiple of this many tokens.
      widths, target_widths: lengths are rounded up to the next of these, ascending, where one is that long.
      num_rows: smaller batches are filled up to this many rows, with rows that count for nothing.
    """

    pad_token_id: int
    decoder_start_token_id: int
    pad_to_multiple_of: int = 1
    widths: tuple[int, ...] = ()
    target_widths: tuple[int, ...] = ()
    num_rows: int = 0

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        batch = self.inputs(rows)
        if rows.labels is not None:
            labels_BT = rows.labels.padded(IGNORED, self.mask(rows.labels, self.target_widths))
            batch["labels"] = torch.from_numpy(labels_BT)
            batch["decoder_input_ids"] = shift_right(batch["labels"], self.pad_token_id, self.decoder_start_token_id)
        return self.filled(batch)

    @property
    def num_shapes(self) -> int:
        """How many shapes its batches may have; 0 where any."""
        return len(self.widths) * max(len(self.target_widths), 1)

    def rows(self, features) -> TokenRows:
        """The features as places in flat arrays; of none, a row that counts for nothing."""
        return TokenRows.of(features or [{"input_ids": [self.pad_token_id], "labels": [IGNORED]}])

    def inputs(self, rows: TokenRows) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask`."""
        mask_BS = self.mask(rows.input_ids, self.widths)
        ids_BS = rows.input_ids.padded(self.pad_token_id, mask_BS)
        return {"input_ids": torch.from_numpy(ids_BS), "attention_mask": torch.from_numpy(mask_BS.astype(np.int64))}

    def mask(self, picked: Picked, widths: tuple[int, ...] = ()) -> np.ndarray:
        """Where padded rows have tokens, bool [B, width]."""
        return picked.mask(self.width(int(picked.lengths_B.max(initial=1)), widths))

    def width(self, longest: int, widths: tuple[int, ...] = ()) -> int:
        """What rows are padded to, the longest of which has so many tokens."""
        wide_enough = next((width for width in widths if width >= longest), None)
        return wide_enough or -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def lengths_of(self, features: TokenArrays) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens of every example's inputs and targets, as batches have them; None where targets have no width."""
        return features.input_ids.lengths, features.labels.lengths

    def filled(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch, with `num_rows` rows: of those added, the first place alone is seen, and no label counts."""
        missing = self.num_rows and self.num_rows - len(batch["input_ids"])
        if missing <= 0:
            return batch
        fills = {"attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}
        filled = {}
        for name, rows in batch.items():
            blank = rows.new_full((missing, *rows.shape[1:]), fills.get(name, self.pad_token_id))
            if name == "attention_mask":
                blank[:, 0] = 1
            filled[name] = torch.cat([rows, blank])
        return filled

    def pad(self, sequences, value: int) -> torch.Tensor:
        """Sequences of ids as one tensor, filled up with `value` on the right."""
        longest = max(map(len, sequences))
        width = -(-max(longest, 1) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        padded = torch.full((len(sequences), width), value, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            padded[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        return padded


def shift_right(labels_BT: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """What the decoder reads: the start token, then the labels without the last one; -100 becomes padding.

    >>> shift_right(torch.tensor([[9, 1, -100]]), 0, 0)
    tensor([[0, 9, 1]])
    """
    shifted_BT = labels_BT.new_full(labels_BT.shape, decoder_start_token_id)
    shifted_BT[:, 1:] = labels_BT[:, :-1]
    return shifted_BT.masked_fill(shifted_BT == IGNORED, pad_token_id)


# ---------------------------------------------------------------------------------------------------------------------
# Batches of a few shapes: widths that a run's batches are padded to, so that a compiled model has a few graphs.
#
# `torch.compile` makes a graph of a shape, on a GPU in half a minute. Left to their own lengths, batches have hundreds.
# The widths are those with the least padding over the batches of the first epoch; the largest takes the longest
# example, so that a later epoch has no other. A batch of fewer rows, at an epoch's end, is filled up with rows that
# count for nothing. The loss is the same (law 1): it is summed over real targets.


logger = logging.getLogger(__name__)

# Widths are multiples of this many tokens, in which tensor cores work.
MULTIPLE = 8
# Where no target is longer, all batches are as wide as the longest: that costs less than a second graph.
SHORT_TARGETS = 32


def choose_widths(lengths, most: int, multiple: int = MULTIPLE) -> tuple[int, ...]:
    """At most so many widths, ascending, that pad batches of these lengths the least; exact, by dynamic programming.

    >>> choose_widths([8, 8, 8, 8, 16, 64], most=2)
    (16, 64)
    """
    rounded = -(-np.maximum(lengths, 1) // multiple) * multiple
    widths, counts = np.unique(rounded, return_counts=True)
    behind = np.concatenate([[0], np.cumsum(counts)])
    # cost[j]: places of the batches of the j narrowest widths, in as many buckets as there have been rounds.
    cost, rounds = np.concatenate([[0.0], np.full(len(widths), np.inf)]), []
    for _ in range(min(most, len(widths))):
        # one more bucket, of width j - 1, for the batches from i on
        costs = cost[:, None] + (behind[None, :] - behind[:, None]) * np.concatenate([[0], widths])[None, :]
        costs[np.tril_indices(len(costs))] = np.inf
        rounds.append(costs.argmin(axis=0))
        cost = costs.min(axis=0)
    chosen, j = [], len(widths)
    for best in reversed(rounds):
        chosen.append(int(widths[j - 1]))
        j = best[j]
    return tuple(reversed(chosen))


def batch_lengths(lengths, order: np.ndarray, batch_size: int) -> np.ndarray:
    """The longest example of each batch of an epoch's order.

    >>> batch_lengths(np.array([3, 9, 4]), np.array([0, 2, 1]), batch_size=2).tolist()
    [4, 9]
    """
    if not len(order):
        return np.zeros(0, np.int64)
    return np.maximum.reduceat(np.asarray(lengths)[order], np.arange(0, len(order), batch_size))


def with_few_shapes(
    collator: Seq2SeqCollator,
    features: TokenArrays,
    order: Callable[[int], np.ndarray],
    batch_size: int,
    most: int,
    world_size: int = 1,
) -> Seq2SeqCollator:
    """The collator with widths for at most so many shapes.

    Args:
      order: epoch -> indices into the features, as the sampler takes them.
      batch_size: rows that a rank takes at once.

    Raises:
      ConfigError: fewer than one shape.
    """
    if most < 1:
        raise ConfigError(f"--length_buckets {most}: must be at least 1, or 0 for none")
    inputs, targets = collator.lengths_of(features)
    epoch, rows = order(0), batch_size * world_size

    def covering(lengths, most: int) -> tuple[int, ...]:
        """Widths for the epoch's batches, the last of them wide enough for every example."""
        widths = choose_widths(batch_lengths(lengths, epoch, rows), most)
        return (*widths[:-1], max(-(-int(lengths.max(initial=1)) // MULTIPLE) * MULTIPLE, widths[-1]))

    target_widths: tuple[int, ...] = ()
    if targets is not None:
        target_widths = covering(targets, 1 if targets.max() <= SHORT_TARGETS or most < 4 else 2)
    widths = covering(inputs, most // max(len(target_widths), 1))
    shaped = replace(collator, widths=widths, target_widths=target_widths, num_rows=batch_size)
    padded = np.asarray(widths)[np.searchsorted(widths, batch_lengths(inputs, epoch, rows))].sum() * rows
    logger.info(
        "batches have %d shape%s, %d rows of %s tokens%s; %.0f%% of their input tokens are no padding",
        shaped.num_shapes, "s" if shaped.num_shapes > 1 else "", batch_size, ", ".join(map(str, widths)),
        f" to {', '.join(map(str, target_widths))}" if target_widths else "", 100 * inputs[epoch].sum() / padded,
    )  # fmt: skip
    return shaped


# ---------------------------------------------------------------------------------------------------------------------
# Ragged ids -> padded tensors for models that are no encoder-decoders: prompt and answer in one row; segments.
#
# Labels stand below the token that predicts them, as our loss takes them; the model never sees them. Shapes: B
# examples, T tokens.


@dataclass(frozen=True)
class CausalCollator(Seq2SeqCollator):
    """Prompt and answer in one row, padded on the right; only the answer has labels.

    The answer's first token is predicted by the prompt's last one. Without any prompt it is predicted by nothing, and
    has no label.
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        prompt, answer = rows.input_ids, rows.labels
        prompts_B1, both_B1 = prompt.lengths_B[:, None], (prompt.lengths_B + answer.lengths_B)[:, None]
        kept_B1 = np.where(both_B1 > 1, both_B1 - 1, both_B1)  # the last token is predicted, not read
        columns_T = np.arange(self.width(int(kept_B1.max(initial=1)), self.widths))
        mask_BT = columns_T < kept_B1
        ids_BT = np.where(columns_T < prompts_B1, prompt.at(columns_T), answer.at(columns_T - prompts_B1))
        answered_BT = (columns_T >= prompts_B1 - 1) & (columns_T < both_B1 - 1)
        labels_BT = np.where(answered_BT, answer.at(columns_T + 1 - prompts_B1), np.int64(IGNORED))
        return self.filled(
            {
                "input_ids": torch.from_numpy(np.where(mask_BT, ids_BT, np.int64(self.pad_token_id))),
                "attention_mask": torch.from_numpy(mask_BT.astype(np.int64)),
                "labels": torch.from_numpy(labels_BT),
            }
        )

    def lengths_of(self, features: TokenArrays) -> tuple[np.ndarray, None]:
        """Prompt and answer are one row, less the last token."""
        return np.maximum(features.input_ids.lengths + features.labels.lengths - 1, 1), None

    def pad_left(self, sequences, value: int) -> torch.Tensor:
        """Sequences as one tensor, filled up with `value` on the left."""
        return self.pad([np.asarray(sequence)[::-1].copy() for sequence in sequences], value).flip(1)


def joined(prompt, answer) -> tuple[np.ndarray, np.ndarray]:
    """One row's `(input_ids, labels)`: all tokens but the last, and below each the one that follows it, if answered.

    >>> joined([5, 6], [9, 1])
    (array([5, 6, 9]), array([-100,    9,    1]))
    """
    whole = np.concatenate([prompt, answer]).astype(np.int64)
    labels = whole[1:].copy()
    labels[: max(len(prompt) - 1, 0)] = IGNORED
    if not len(labels):
        return whole, np.full(len(whole), IGNORED)
    return whole[:-1], labels


@dataclass(frozen=True)
class SegmentCollator(Seq2SeqCollator):
    """Segments padded on the right, and one label a row, a class (int64) or a number (float32), or one a token.

    >>> SegmentCollator(0)([{"input_ids": [2, 7, 3], "labels": [1], "token_type_ids": [0, 0, 0]}])
    {'input_ids': [[2, 7, 3]], 'attention_mask': [[1, 1, 1]], 'token_type_ids': [[0, 0, 0]], 'labels': [1]}
    """

    decoder_start_token_id: int | None = None

    def __call__(self, features: list[dict] | TokenRows) -> dict[str, torch.Tensor]:
        rows = self.rows(features)
        batch = self.inputs(rows)
        if rows.token_type_ids is not None:
            types_BT = rows.token_type_ids.padded(0, self.mask(rows.input_ids, self.widths))
            batch["token_type_ids"] = torch.from_numpy(types_BT)
        lengths_B = rows.labels.lengths_B
        if lengths_B.max() > 1:  # as many as tokens; of a word without a known label, that of none
            labels = rows.labels.padded(IGNORED, self.mask(rows.input_ids, self.widths))
            labels = torch.from_numpy(np.where(labels == UNKNOWN_LABEL, IGNORED, labels))
        else:
            labels = torch.from_numpy(rows.labels.first())
        return self.filled({**batch, "labels": labels if labels.is_floating_point() else labels.long()})

    def lengths_of(self, features: TokenArrays) -> tuple[np.ndarray, None]:
        """A row has one label."""
        return features.input_ids.lengths, None


# By the names of `t5suite.models.families.FAMILIES` (a test keeps the two equal).
COLLATORS = {
    "seq2seq": Seq2SeqCollator, "causal": CausalCollator, "masked": SegmentCollator, "encoder": SegmentCollator,
}  # fmt: skip
