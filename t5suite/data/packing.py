"""Several examples in one row: who goes where, and the rows themselves.

    lengths of inputs and targets     (5, 2)  (3, 3)  (4, 1)      rows of (8, 5)
    pack_examples                     row 0   row 0   row 1
    segment ids of row 0's inputs     [1 1 1 1 1 2 2 2]           1.. = the row's examples, 0 = padding

Segment ids become block masks in the model (`t5suite.models.packed_t5`), so that no example sees another.

Shape suffixes: B examples, R rows, X width of a row.
"""

import numpy as np


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
