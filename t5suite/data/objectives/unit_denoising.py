"""Whole words, n-grams or collocations as noise for an encoder-decoder model: PMI masking (arXiv:2010.01825) for T5.

Shape suffixes: B rows, L tokens of a block.
"""

import numpy as np

from t5suite.data.objectives.corruption import corrupt_ragged
from t5suite.data.objectives.denoisers import limited_noise
from t5suite.data.objectives.word_masks import unit_masks


def unit_denoising(
    tokens_BL,
    rng,
    sentinel_ids,
    eos_id=None,
    noise_density=0.15,
    targets_length=None,
    mask_units="word",
    word_start_V=None,
    collocations=None,
    mean_span_length=5.0,
):
    """Units chosen by chance become one sentinel each where they stand apart; the targets spell them out.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> starts = np.arange(20) != 8                                     # id 8 continues a word
    >>> inputs, targets = unit_denoising(
    ...     [[5, 7, 8, 9, 10]], datum_rng(0, 2), [99, 98], 1, 0.4, mask_units="word", word_start_V=starts
    ... )
    >>> inputs.values.tolist(), targets.values.tolist()
    ([5, 99, 9, 10, 1], [99, 7, 8, 98, 1])

    mask_units, word_start_V, collocations, mean_span_length: as in `word_masks.unit_masks`.
    As in `iid_denoising`, noise stops where sentinels or targets run out, and no text is lost.
    """
    tokens_BL = np.asarray(tokens_BL)
    units = {"word_start_V": word_start_V, "collocations": collocations, "mean_span_length": mean_span_length}
    mask_BL = unit_masks(tokens_BL, noise_density, rng, mask_units, **units)
    mask_BL = limited_noise(mask_BL, len(sentinel_ids), targets_length, eos_id)
    return corrupt_ragged(tokens_BL, mask_BL, sentinel_ids, eos_id)
