"""Pre-training objectives: token ids in, (inputs, targets) out. NumPy only.

Span corruption (arXiv:1910.10683 sec. 3.1.4, table 3) on eight tokens, two of them spans of noise:

    tokens    [ 37, 1712,  13, 8, 5234, 19, 1424,  5]       "The centre of the ..."
    mask      [  0,    0,   1, 1,    0,  0,    0,  1]       1 = noise
    inputs    [ 37, 1712, 32099, 5234, 19, 1424, 32098, 1]  each run of noise  -> one sentinel, then EOS
    targets   [32099, 13, 8, 32098, 5, 1]                   each run of clean  -> one sentinel, then EOS

Shape suffixes: B rows, L tokens of a block, I inputs, T targets, K spans, G gaps between tokens.
All lengths are in tokens. What a user can mend raises ConfigError, which is a ValueError. Randomness comes in as a
`numpy.random.Generator`; `datum_rng(seed, index)` makes the one that belongs to a datum, so that workers, batch sizes
and restarts never change the data.
"""

from t5suite.data.objectives.corruption import corrupt, corrupt_batch, sentinel_ids
from t5suite.data.objectives.denoisers import span_corruption
from t5suite.data.objectives.random_numbers import datum_rng
from t5suite.data.objectives.spans import corrupted_lengths, noise_counts, noise_mask, noise_masks, span_lengths

__all__ = [
    "OBJECTIVES",
    "corrupt",
    "corrupt_batch",
    "corrupted_lengths",
    "datum_rng",
    "noise_counts",
    "noise_mask",
    "noise_masks",
    "sentinel_ids",
    "span_corruption",
    "span_lengths",
]

OBJECTIVES = {
    "span_corruption": span_corruption,
}
