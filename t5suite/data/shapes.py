"""Batches of a few shapes: widths that a run's batches are padded to, so that a compiled model has a few graphs.

    >>> choose_widths([17, 18, 40, 41, 44, 90], most=2)
    (48, 96)
    >>> collator = with_few_shapes(collator, features, order, batch_size=32, most=8)
    INFO batches have 8 shapes, 32 rows of 32 to 256 tokens; 84% of their input tokens are no padding

`torch.compile` makes a graph of a shape, on a GPU in half a minute. Left to their own lengths, batches have hundreds.
The widths are those with the least padding over the batches of the first epoch; the largest takes the longest example,
so that a later epoch has no other. A batch of fewer rows, at an epoch's end, is filled up with rows that count for
nothing. The loss is the same (law 1): it is summed over real targets.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.collators import Seq2SeqCollator
from t5suite.data.features import TokenArrays

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
    epoch = order(0)
    target_widths: tuple[int, ...] = ()
    if targets is not None:
        kinds = 1 if targets.max() <= SHORT_TARGETS or most < 4 else 2
        target_widths = _covering(targets, epoch, batch_size * world_size, kinds)
    widths = _covering(inputs, epoch, batch_size * world_size, most // max(len(target_widths), 1))
    shaped = replace(collator, widths=widths, target_widths=target_widths, num_rows=batch_size)
    padded = sum(_widths_of(batch_lengths(inputs, epoch, batch_size * world_size), widths)) * batch_size * world_size
    logger.info(
        "batches have %d shape%s, %d rows of %s tokens%s; %.0f%% of their input tokens are no padding",
        shaped.num_shapes,
        "s" if shaped.num_shapes > 1 else "",
        batch_size,
        ", ".join(map(str, widths)),
        f" to {', '.join(map(str, target_widths))}" if target_widths else "",
        100 * inputs[epoch].sum() / padded,
    )
    return shaped


def _covering(lengths, epoch, batch_size: int, most: int) -> tuple[int, ...]:
    """Widths for an epoch's batches, the last of them wide enough for every example."""
    widths = choose_widths(batch_lengths(lengths, epoch, batch_size), most)
    longest = -(-int(lengths.max(initial=1)) // MULTIPLE) * MULTIPLE
    return (*widths[:-1], max(longest, widths[-1]))


def _widths_of(lengths, widths: tuple[int, ...]) -> np.ndarray:
    return np.asarray(widths)[np.searchsorted(widths, lengths)]
