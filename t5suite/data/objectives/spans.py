"""Span corruption's lengths and masks: which tokens of a block are noise.

    block of 12 tokens, density 0.25, mean span 1.5   ->   3 noise tokens in 2 spans
    [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]                   1 = noise

Shape suffixes: B rows, L tokens of a block, K spans, E edges (K + 1), G gaps between tokens, D draws.
All lengths are in tokens.
"""

import functools
import math

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.objectives.random_numbers import below, random_keys


def span_lengths(inputs_length, noise_density=0.15, mean_span_length=3.0):
    """How many raw tokens fill the inputs after corruption, and the length of the targets.

    >>> span_lengths(512, 0.15, 3)
    (568, 114)

    568 tokens hold 85 tokens of noise in 28 spans: inputs 568 - 85 + 28 + EOS = 512, targets 85 + 28 + EOS = 114.
    The result is the largest number of tokens whose inputs fit. At `noise_density` 0.5, it is one less if targets would
    be longer than inputs; both may then be one token short (`corrupted_lengths`).
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


@functools.lru_cache
def noise_counts(length, noise_density=0.15, mean_span_length=3.0):
    """Number of noise tokens and of noise spans in a block; it is deterministic.

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
    """The actual lengths of the inputs and targets of a block of `length` tokens, EOS included on both sides.

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
    """Raises ConfigError unless the density is in [0, 1)."""
    if not 0 <= noise_density < 1:
        raise ConfigError(f"noise_density is {noise_density}: it must be at least 0 and below 1 (T5: 0.15)")


def noise_mask(length, noise_density, mean_span_length, rng):
    """Which tokens of one block are noise.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> noise_mask(12, 0.25, 1.5, datum_rng(0, 0)).astype(int).tolist()
    [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]

    Noise and clean tokens are each split into the same number of non-empty runs, every composition being equally
    likely, and interleaved, clean first: the first token is never noise, the last always is (from two tokens on).
    Counts are those of `noise_counts`.
    Source: T5's random-span mask (arXiv:1910.10683).
    """
    return noise_masks(1, length, noise_density, mean_span_length, rng)[0]


def noise_masks(batch, length, noise_density, mean_span_length, rng):
    """`noise_mask` for `batch` rows at once, bool [batch, length], without a loop over rows.

    `rng` is one Generator for all rows (row by row, as `noise_mask` would draw from it), a sequence of one Generator
    per row, or a `DatumRngs`. See `random_edges`.
    """
    num_noise, num_spans = noise_counts(length, noise_density, mean_span_length)
    if num_spans == 0:
        return np.zeros((batch, length), dtype=bool)
    totals = length - num_noise, num_noise
    counts = [num_draws(total - 1, num_spans - 1) for total in totals]
    keys_BD = random_keys(batch, sum(counts), rng)
    keys = keys_BD[:, : counts[0]], keys_BD[:, counts[0] :]
    edges = [random_edges(part_BD, total, num_spans, rng) for part_BD, total in zip(keys, totals)]
    is_noise = np.tile([False, True], batch * num_spans)
    lengths_BK2 = np.stack([np.diff(edges_BE, axis=1) for edges_BE in edges], axis=2)
    return np.repeat(is_noise, lengths_BK2.reshape(-1)).reshape(batch, length)


def random_edges(keys_BD, num_tokens, num_runs, rng):
    """Edges [B, num_runs + 1] of runs that fill `num_tokens`, none empty, every composition equally likely.

    >>> keys_BD = np.array([[1, 0, 3]], dtype=np.uint32) << 30         # of the four gaps: the second, first and last
    >>> random_edges(keys_BD, num_tokens=5, num_runs=3, rng=None).tolist()           # runs of 1, 1 and 3
    [[0, 1, 2, 5]]

    Gaps between tokens are drawn one after the other, and the first `num_runs` - 1 distinct ones are cut. keys_BD are
    the draws, `num_draws` of them; if they are not enough, as in one row of 100,000, more come from `rng`. If more
    than half the gaps must be cut, the uncut ones are drawn instead.
    """
    num_gaps = num_tokens - 1
    num_cuts = num_runs - 1
    if num_cuts <= num_gaps // 2:
        cuts_BK = first_different(keys_BD, num_gaps, num_cuts, rng)
    else:
        is_cut_BG = np.ones((len(keys_BD), num_gaps), dtype=bool)
        np.put_along_axis(is_cut_BG, first_different(keys_BD, num_gaps, num_gaps - num_cuts, rng), False, axis=1)
        cuts_BK = np.nonzero(is_cut_BG)[1].reshape(len(keys_BD), num_cuts)
    edges_BE = np.empty((len(keys_BD), num_runs + 1), dtype=np.int64)
    edges_BE[:, 0], edges_BE[:, -1] = 0, num_tokens
    np.add(cuts_BK, 1, out=edges_BE[:, 1:-1])
    return edges_BE


def first_different(keys_BD, bound, count, rng):
    """The first `count` distinct draws from [0, bound) of each row, sorted, [B, count], integers."""
    batch, num_drawn = keys_BD.shape
    if count == 0:
        return np.empty((batch, 0), dtype=np.int64)
    bits = num_drawn.bit_length()
    dtype = np.int32 if bound << bits < 2**31 else np.int64  # sorting half the bytes takes two thirds of the time
    sorted_BD = below(keys_BD, bound).astype(dtype)
    sorted_BD <<= bits
    sorted_BD |= np.arange(num_drawn, dtype=dtype)
    sorted_BD.sort(axis=1)  # by value, then by order of drawing
    value_BD = sorted_BD >> bits
    turn_BD = sorted_BD & dtype((1 << bits) - 1)
    turn_BD += dtype(num_drawn) * _as_before(value_BD)  # repeated draws go after all others
    last_B1 = np.partition(turn_BD, count - 1, axis=1)[:, count - 1 : count]
    if int(last_B1.max()) >= num_drawn:
        more_BD = random_keys(batch, num_drawn, rng)
        return first_different(np.concatenate([keys_BD, more_BD], axis=1), bound, count, rng)
    # By positions, because a random bool index costs a mispredicted branch every other element.
    return value_BD.reshape(-1).take(np.flatnonzero(turn_BD <= last_B1)).reshape(batch, count)


def _as_before(value_BD):
    """Bool [B, D]: where a value equals the previous one in its row."""
    same_BD = np.empty(value_BD.shape, dtype=bool)
    values = value_BD.reshape(-1)
    np.equal(values[1:], values[:-1], out=same_BD.reshape(-1)[1:])  # flat: half the time of row by row
    same_BD[:, 0] = False
    return same_BD


@functools.lru_cache
def num_draws(num_gaps, num_cuts):
    """Number of draws that almost always has enough distinct ones: at least the mean plus five standard deviations.

    >>> num_draws(482, 27), num_draws(84, 27)
    (36, 48)

    An even number, because a random word holds two.
    """
    num_distinct = min(num_cuts, num_gaps - num_cuts)
    if num_distinct == 0:
        return 0
    chances = 1 - np.arange(num_distinct) / num_gaps  # that a draw is new, after 0, 1, ... distinct ones
    mean = (1 / chances).sum()
    variance = ((1 - chances) / chances**2).sum()
    return 2 * math.ceil((mean + 5 * math.sqrt(variance)) / 2) + 2
