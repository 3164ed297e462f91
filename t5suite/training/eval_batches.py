"""Which rows are read together: batches of similar length, counted in rows or in tokens.

    >>> batches_by_tokens([3, 9, 5, 4], 10)
    [[1], [2, 3], [0]]

The longest come first, so that a lack of memory shows at once.
"""

import logging

import torch

from t5suite.training.eval_sets import EvalSet

logger = logging.getLogger(__name__)


def batches_by_length(lengths, batch_size: int) -> list[list[int]]:
    """Example numbers in batches of similar length, longest first, so that a lack of memory shows at once.

    >>> batches_by_length([3, 9, 5], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def batch_tokens(asked_for: int | None, device: torch.device) -> int:
    """Tokens of a batch, if not what was asked for: on a CPU as many as its caches hold (a T5 of width 256: 2,048
    tokens take 2.0 s where 8,192 take 2.9 and 32,768 take 5.4), on a GPU as many as keep it busy.

    >>> batch_tokens(None, torch.device("cpu"))
    2048
    """
    return asked_for or (2048 if device.type == "cpu" else 32768)


def batches_by_tokens(lengths, most_tokens: int) -> list[list[int]]:
    """Example numbers in batches of so many tokens at most, padding counted, longest first; of one row at least.

    >>> batches_by_tokens([3, 9, 5, 4], 10)
    [[1], [2, 3], [0]]
    """
    batches = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > most_tokens:
            batches.append([])
        batches[-1].append(i)
    return batches


def tell_speed(eval_set: EvalSet, batches: list[list[int]], seconds: float) -> None:
    """One line on what took a second or more: rows and useful tokens a second, and the share of useful tokens."""
    lengths = eval_set.features.input_ids.lengths
    useful = int(lengths.sum())
    read = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    if useful and seconds >= 1:
        logger.info(
            "%s: %d rows in %.1f s (%.0f rows, %.0f tokens a second; %.0f%% of what was read is no padding)",
            eval_set.name, len(eval_set.rows), seconds, len(eval_set.rows) / seconds, useful / seconds,
            100 * useful / read,
        )  # fmt: skip
