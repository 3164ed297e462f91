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
    numbers_K = np.arange(num_spans)
    sentinels_K = np.asarray(sentinel_ids[:num_spans], dtype=np.int64)
    clean_BK = clean_edges_BE[:, 1:] - clean_edges_BE[:, :-1]
    noise_BK = noise_edges_BE[:, 1:] - noise_edges_BE[:, :-1]
    inputs_BT = _side(tokens_BL, clean_edges_BE[:, 1:] + numbers_K, noise_BK, sentinels_K, eos_id)
    targets_BT = _side(tokens_BL, noise_edges_BE[:, :-1] + numbers_K, clean_BK, sentinels_K, eos_id)
    return inputs_BT, targets_BT


def _side(tokens_BL, places_BK, hidden_BK, sentinels_K, eos_id):
    """One side, from its sentinels' places and the lengths of the runs that they hide.

    Tokens take the place of their sources, because fresh memory is dear. An EOS has the next row's first token for its
    source and so, in the last row, none: hence "clip".
    """
    batch, num_spans = places_BK.shape
    width = tokens_BL.shape[1] - int(hidden_BK[0].sum()) + num_spans + (eos_id is not None)
    places = (places_BK + np.arange(0, batch * width, width)[:, None]).reshape(-1)
    steps = np.ones(batch * width + 1, dtype=np.int64)
    steps[0] = 0
    if eos_id is not None:
        steps[width::width] = 0
    steps[places + 1] = hidden_BK.reshape(-1)
    side = np.cumsum(steps, out=steps)[:-1]
    side[:] = tokens_BL.reshape(-1).take(side, mode="clip")
    side[places] = np.broadcast_to(sentinels_K, (batch, num_spans)).reshape(-1)
    if eos_id is not None:
        side[width - 1 :: width] = eos_id
    return side.reshape(batch, width)
