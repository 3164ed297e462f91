"""Span corruption's lengths and masks: which tokens of a block are noise.

    block of 12 tokens, density 0.25, mean span 1.5   ->   3 noise tokens in 2 spans
    [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]                   1 = noise

Shape suffixes: B rows, L tokens of a block, K spans, G gaps between tokens. All lengths are in tokens.
"""

import numpy as np

from t5suite.data.objectives.random_numbers import below, random_keys
from t5suite.data.objectives.runs import Runs
from t5suite.errors import ConfigError


def span_lengths(inputs_length, noise_density=0.15, mean_span_length=3.0):
    """How many raw tokens fill the inputs after corruption, and how long the targets are.

    >>> span_lengths(512, 0.15, 3)
    (568, 114)

    568 tokens hold 85 tokens of noise in 28 spans: inputs 568 - 85 + 28 + EOS = 512, targets 85 + 28 + EOS = 114.
    The largest T is taken whose inputs still fit. At `noise_density` 0.5, targets that would be longer than the inputs
    cost one token; inputs and targets may then both come out one short (`corrupted_lengths`).

    Returns `(tokens_length, targets_length)`, both in tokens, EOS included in the targets.
    Raises ValueError for inputs_length < 1, a density outside [0, 1), a mean span below 1.
    Source: T5's span-length helper (arXiv:1910.10683; round is half to even, in double precision).
    """
    _check_noise(noise_density, mean_span_length)
    if inputs_length < 1:
        raise ConfigError(f"inputs_length is {inputs_length}: it must be at least 1 token")

    def lengths(num_tokens):
        num_noise = round(num_tokens * noise_density)
        num_spans = round(num_noise / mean_span_length)
        return num_tokens - num_noise + num_spans + 1, num_noise + num_spans + 1

    num_tokens = inputs_length - 1
    while lengths(num_tokens + 1)[0] <= inputs_length:
        num_tokens += 1
    num_inputs, num_targets = lengths(num_tokens)
    if noise_density == 0.5 and num_targets > num_inputs:
        return num_tokens - 1, num_targets - 1
    return num_tokens, num_targets


def noise_counts(length, noise_density=0.15, mean_span_length=3.0):
    """Number of noise tokens and of noise spans in a block: no chance is involved.

    >>> noise_counts(568, 0.15, 3)
    (85, 28)
    >>> noise_counts(190, 0.15, 3)    # single precision: 28.5 rounds up here, and down in `span_lengths`
    (29, 10)

    At least one token is noise and at least one is clean; a density of 0 or fewer than two tokens give (0, 0).
    There are never more spans than noise tokens or than clean tokens (the original fails there: density 0.9, span 1).
    Raises ValueError as `span_lengths` does.
    Source: T5's random-span mask (arXiv:1910.10683), which rounds half to even in float32.
    """
    _check_noise(noise_density, mean_span_length)
    if noise_density == 0 or length < 2:
        return 0, 0
    num_noise = int(np.rint(np.float32(length) * np.float32(noise_density)))
    num_noise = min(max(num_noise, 1), length - 1)
    num_spans = max(int(np.rint(np.float32(num_noise) / np.float32(mean_span_length))), 1)
    return num_noise, min(num_spans, num_noise, length - num_noise)


def corrupted_lengths(length, noise_density=0.15, mean_span_length=3.0):
    """Lengths that a block of `length` tokens really comes out with, EOS included on both sides.

    >>> corrupted_lengths(568, 0.15, 3)
    (512, 114)
    >>> span_lengths(11, 0.5, 3), corrupted_lengths(14, 0.5, 3)    # one short on both sides
    ((14, 11), (10, 10))

    Equal to `span_lengths` for the usual settings; elsewhere (float32 rounding, density 0.5) it may differ by 1 or 2.
    """
    num_noise, num_spans = noise_counts(length, noise_density, mean_span_length)
    num_target_sentinels = num_spans or min(length, 1)  # a block without noise is one clean run
    return length - num_noise + num_spans + 1, num_noise + num_target_sentinels + 1


def _check_noise(noise_density, mean_span_length):
    check_density(noise_density)
    if not mean_span_length >= 1:
        raise ConfigError(f"mean_span_length is {mean_span_length}: it must be at least 1 token (T5: 3)")


def check_density(noise_density):
    """Raises ConfigError unless the density lies in [0, 1)."""
    if not 0 <= noise_density < 1:
        raise ConfigError(f"noise_density is {noise_density}: it must be at least 0 and below 1 (T5: 0.15)")


def noise_mask(length, noise_density, mean_span_length, rng, random_roll=False):
    """Which tokens of one block are noise.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> noise_mask(12, 0.25, 1.5, datum_rng(0, 0)).astype(int).tolist()
    [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]

    Noise and clean tokens are each cut into the same number of non-empty runs, every composition being equally
    likely, and interleaved, clean first: the first token is never noise, the last always is (from two tokens on).
    Counts are those of `noise_counts`. With `random_roll` the mask is then rotated by U[0, length), so that every
    position is noise equally often; a run that wraps around counts as two.
    Returns a bool array [length]; 4 (length - 2) bytes are drawn from `rng`, and 4 more for the roll.
    Source: T5's random-span mask (arXiv:1910.10683).
    """
    return noise_masks(1, length, noise_density, mean_span_length, rng, random_roll)[0]


def noise_masks(batch, length, noise_density, mean_span_length, rng, random_roll=False):
    """`noise_mask` for `batch` rows at once, bool [batch, length], without a loop over rows.

    `rng` is one Generator for all rows (row by row, it gives what `noise_mask` would), a sequence of one Generator
    per row, or a `DatumRngs`. A uniform choice of k cuts among G gaps is the k smallest of G random keys.
    """
    num_spans = noise_counts(length, noise_density, mean_span_length)[1]
    if num_spans == 0:
        return np.zeros((batch, length), dtype=bool)
    clean_BK, noise_BK, shift_B1 = _random_spans(batch, length, noise_density, mean_span_length, rng, random_roll)
    is_noise = np.tile([False, True], batch * num_spans)
    mask_BL = np.repeat(is_noise, np.stack([clean_BK, noise_BK], axis=2).reshape(-1)).reshape(batch, length)
    if not random_roll:
        return mask_BL
    return np.take_along_axis(mask_BL, (np.arange(length) - shift_B1) % length, axis=1)


def noise_runs(batch, length, noise_density, mean_span_length, rng, random_roll=False):
    """The runs of `noise_masks` and those of its complement, `(noise, clean)`, where it can without making a mask.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> noise, clean = noise_runs(1, 12, 0.25, 1.5, datum_rng(0, 0))
    >>> noise.starts.tolist(), noise.lengths.tolist()
    ([2, 11], [2, 1])
    """
    if random_roll or noise_counts(length, noise_density, mean_span_length)[1] == 0:
        mask_BL = noise_masks(batch, length, noise_density, mean_span_length, rng, random_roll)
        return Runs.of(mask_BL), Runs.of(~mask_BL)
    clean_BK, noise_BK, _ = _random_spans(batch, length, noise_density, mean_span_length, rng)
    clean, noise = Runs.alternating(clean_BK, noise_BK)
    return noise, clean


def _random_spans(batch, length, noise_density, mean_span_length, rng, random_roll=False):
    """Lengths of the clean and of the noise runs, both [B, K], and how far each row is to be rolled [B, 1]."""
    num_noise, num_spans = noise_counts(length, noise_density, mean_span_length)
    num_clean, num_gaps = length - num_noise, length - 2
    keys_BG = random_keys(batch, num_gaps + bool(random_roll), rng)
    clean_BK = _random_runs(keys_BG[:, : num_clean - 1], num_clean, num_spans)
    noise_BK = _random_runs(keys_BG[:, num_clean - 1 : num_gaps], num_noise, num_spans)
    return clean_BK, noise_BK, below(keys_BG[:, num_gaps:], length)


def _random_runs(keys_BG, num_tokens, num_runs):
    """Lengths [B, num_runs], all at least 1, of a uniform random composition of `num_tokens` (G = num_tokens - 1)."""
    (batch, num_gaps), num_cuts = keys_BG.shape, num_runs - 1
    if num_cuts == 0:
        return np.full((batch, 1), num_tokens)
    threshold_B1 = np.partition(keys_BG, num_cuts - 1, axis=1)[:, num_cuts - 1 : num_cuts]
    cut_BG = keys_BG <= threshold_B1
    if np.count_nonzero(cut_BG) != batch * num_cuts:
        _break_ties(cut_BG, keys_BG, num_cuts)
    cuts_BK = np.flatnonzero(cut_BG).reshape(batch, num_cuts) - num_gaps * np.arange(batch)[:, None] + 1
    return np.diff(cuts_BK, axis=1, prepend=0, append=num_tokens)


def _break_ties(cut_BG, keys_BG, num_cuts):
    """Among keys equal to the threshold (one row of 10**7 at 568 tokens) the earlier gap is cut."""
    for row in np.flatnonzero(cut_BG.sum(axis=1) != num_cuts):
        cut_BG[row] = False
        cut_BG[row, np.argsort(keys_BG[row], kind="stable")[:num_cuts]] = True
