"""Span corruption where all rows come out equally long: no masks, no lists of runs, one gather a side.

    tokens       [ 5, 6, 7, 8, 9 ]       clean edges [0, 2, 3]: runs of 2 and 1       noise edges [0, 1, 2]: 1 and 1
    inputs       [ 5, 6, <X>, 8, <Y>, 1 ]
    targets      [ <X>, 7, <Y>, 9, 1 ]

Runs of clean text and of noise take turns, clean first, as many of each in every row (`spans.span_edges`). A sentinel
stands for the first token of the run that it hides; behind it, the source of a side's tokens jumps over that run. So
the sources of a whole batch are one running sum. `corruption.corrupt_ragged`, which takes any mask, makes the same
rows.

Shape suffixes: B rows, L tokens of a block, E edges (spans and one), K spans, T tokens of a side.
"""

import functools

import numpy as np

from t5suite.data.objectives.corruption import check_sentinels


def corrupt_evenly(tokens_BL, clean_edges_BE, noise_edges_BE, sentinel_ids, eos_id=None):
    """`(inputs [B, I], targets [B, T])`, int64, of rows whose clean and noise runs end at these edges.

    >>> clean_edges_BE, noise_edges_BE = np.array([[0, 2, 3]]), np.array([[0, 1, 2]])
    >>> inputs, targets = corrupt_evenly(np.array([[5, 6, 7, 8, 9]]), clean_edges_BE, noise_edges_BE, [32099, 32098], 1)
    >>> inputs.tolist(), targets.tolist()
    ([[5, 6, 32099, 8, 32098, 1]], [[32099, 7, 32098, 9, 1]])

    Args:
      clean_edges_BE, noise_edges_BE: of each row, how many clean (noise) tokens come before its first, second, ... run
        of them, and how many there are.

    Raises ConfigError where there are more spans than sentinels.
    """
    num_spans = clean_edges_BE.shape[1] - 1
    check_sentinels(num_spans, num_spans, len(sentinel_ids))
    batch, with_eos = len(tokens_BL), eos_id is not None
    num_clean, num_noise = int(clean_edges_BE[0, -1]), int(noise_edges_BE[0, -1])
    widths = num_clean + num_spans + with_eos, num_noise + num_spans + with_eos
    places_2BK, hidden_2BK = np.empty((2, 2, batch, num_spans), dtype=np.int64)
    offsets_2BK = _offsets(batch, num_spans, widths)
    np.add(clean_edges_BE[:, 1:], offsets_2BK[0], out=places_2BK[0])
    np.add(noise_edges_BE[:, :-1], offsets_2BK[1], out=places_2BK[1])
    np.subtract(noise_edges_BE[:, 1:], noise_edges_BE[:, :-1], out=hidden_2BK[0])
    np.subtract(clean_edges_BE[:, 1:], clean_edges_BE[:, :-1], out=hidden_2BK[1])
    sides = _sources(places_2BK, hidden_2BK, widths, tokens_BL.shape[1], with_eos)
    sides[:] = tokens_BL.reshape(-1).take(sides, mode="clip")
    sides[places_2BK.reshape(-1)] = np.tile(np.asarray(sentinel_ids[:num_spans], dtype=np.int64), 2 * batch)
    inputs_BT, targets_BT = _rows(sides, batch, widths)
    if with_eos:
        inputs_BT[:, -1] = targets_BT[:, -1] = eos_id
    return inputs_BT, targets_BT


@functools.lru_cache(maxsize=8)
def _offsets(batch, num_spans, widths):
    """Where a row's k-th sentinel would stand on each side if no token stood before it, [2, B, K]."""
    starts_B = np.arange(batch) * widths[0], np.arange(batch) * widths[1] + batch * widths[0]
    return np.stack([starts[:, None] + np.arange(num_spans) for starts in starts_B])


def _sources(places_2BK, hidden_2BK, widths, length, with_eos):
    """Which token stands at each place of all inputs and, behind them, all targets: a running sum of steps.

    Tokens will take the place of their sources, because fresh memory is dear. An EOS has the next row's first token
    for its source and so, in the last row, none: hence "clip".
    """
    batch = places_2BK.shape[1]
    steps = np.ones(batch * sum(widths) + 1, dtype=np.int64)
    steps[places_2BK.reshape(-1) + 1] = hidden_2BK.reshape(-1)
    if with_eos:
        for rows_BT in _rows(steps[1:], batch, widths):
            rows_BT[:, -1] = 0
    steps[0] = 0
    steps[batch * widths[0]] -= batch * length  # the targets begin with the first token again
    return np.cumsum(steps, out=steps)[:-1]


def _rows(sides, batch, widths):
    """The rows of both sides, which lie end to end."""
    targets_start = batch * widths[0]
    return sides[:targets_start].reshape(batch, -1), sides[targets_start:].reshape(batch, -1)
