"""Sequence-to-sequence objectives, one datum at a time: (tokens [L], rng, ...) -> (inputs, targets)."""

from t5suite.data.objectives.corruption import corrupt
from t5suite.data.objectives.spans import noise_mask


def span_corruption(tokens, rng, sentinel_ids, eos_id=None, noise_density=0.15, mean_span_length=3.0):
    """One block of tokens -> (inputs, targets), the noise drawn from `rng`.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> tokens = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    >>> inputs, targets = span_corruption(tokens, datum_rng(0, 0), [32099, 32098], eos_id=1, noise_density=0.25)
    >>> inputs.tolist(), targets.tolist()
    ([2, 3, 4, 5, 6, 7, 8, 9, 10, 32099, 1], [32099, 11, 12, 13, 1])
    """
    mask = noise_mask(len(tokens), noise_density, mean_span_length, rng)
    return corrupt(tokens, mask, sentinel_ids, eos_id)
