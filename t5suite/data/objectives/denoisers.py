"""Sequence-to-sequence objectives: a batch of blocks -> inputs and targets.

For the tokens of "Thank you for inviting me .", with 'for inviting' and '.' as noise, </s> at the end of both sides:

    span_corruption, iid_denoising   Thank you <X> me <Y>              <X> for inviting <Y> .
    sentence_deshuffling             It was fun . Thank you .          Thank you . It was fun .
    prefix_lm                        Thank you                         for inviting me .
    full_lm                                                            Thank you for inviting me .

(arXiv:1910.10683 table 3.) Each takes tokens [B, L] and `rng`, which is one `numpy.random.Generator`, a sequence of
one for each row, or `DatumRngs`; draws its keys at once; and returns `(inputs, targets)`, both `Ragged` int64. If
`eos_id` is given, it ends both sides. `OBJECTIVES[name]` takes a single row.

Shape suffixes: B rows, L tokens of a block.
"""

import functools
import logging
import math
from dataclasses import dataclass, replace

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.objectives.corruption import (
    LESS_NOISE,
    LONGER_SPANS,
    Ragged,
    Runs,
    corrupt_ragged,
    ended,
    keep,
    remedies_of_few_sentinels,
)
from t5suite.data.objectives.masked import unit_masks, without_cut_units
from t5suite.data.objectives.random_numbers import DatumRngs, below, bernoulli, random_keys
from t5suite.data.objectives.spans import check_density, corrupted_lengths, noise_counts, noise_masks, span_lengths

logger = logging.getLogger(__name__)


def span_corruption(tokens_BL, rng, sentinel_ids, eos_id=None, noise_density=0.15, mean_span_length=3.0):
    """Spans of noise, the same number in every block, become one sentinel each; the targets contain their text.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> tokens_BL = [[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]]
    >>> inputs, targets = span_corruption(tokens_BL, datum_rng(0, 0), [32099, 32098], eos_id=1, noise_density=0.25)
    >>> inputs.values.tolist(), targets.values.tolist()
    ([2, 3, 4, 5, 6, 7, 8, 9, 10, 32099, 1], [32099, 11, 12, 13, 1])

    Raises ConfigError if a block has more spans than there are sentinels.
    Source: arXiv:1910.10683 sec. 3.1.4.
    """
    tokens_BL = np.asarray(tokens_BL)
    mask_BL = noise_masks(*tokens_BL.shape, noise_density, mean_span_length, rng)
    return corrupt_ragged(tokens_BL, mask_BL, sentinel_ids, eos_id)


def iid_denoising(tokens_BL, rng, sentinel_ids, eos_id=None, noise_density=0.15, targets_length=None):
    """Every token is noise with probability `noise_density`; runs of noise become one sentinel each.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> inputs, targets = iid_denoising([[5, 6, 7, 8, 9]], datum_rng(0, 3), [32099, 32098], 1, noise_density=0.4)
    >>> inputs.values.tolist(), targets.values.tolist()
    ([5, 32099, 7, 8, 9, 1], [32099, 6, 32098, 1])

    A row whose noise needs more sentinels than there are, or more than `targets_length` targets, has noise only up
    to that point: no text is lost. (T5 cuts the targets.) Source: arXiv:1910.10683 sec. 3.3.2.
    """
    tokens_BL = np.asarray(tokens_BL)
    check_density(noise_density)
    mask_BL = bernoulli(random_keys(*tokens_BL.shape, rng), noise_density)
    mask_BL = limited_noise(mask_BL, len(sentinel_ids), targets_length, eos_id)
    return corrupt_ragged(tokens_BL, mask_BL, sentinel_ids, eos_id)


def limited_noise(mask_BL, num_sentinels, targets_length=None, eos_id=None):
    """A mask of any kind, up to the point where each row's sentinels or targets run out.

    >>> limited_noise(np.array([[True, False, True, False, True]]), num_sentinels=3).astype(int).tolist()
    [[1, 0, 1, 0, 0]]
    """
    starts_BL = mask_BL.copy()
    starts_BL[:, 1:] &= ~mask_BL[:, :-1]
    mask_BL = _up_to(mask_BL, starts_BL, num_sentinels - 1)  # one more may replace the clean text after it
    if targets_length is None:
        return mask_BL
    clean_starts_BL = ~mask_BL
    clean_starts_BL[:, 1:] &= mask_BL[:, :-1]
    return _up_to(mask_BL, mask_BL | clean_starts_BL, targets_length - (eos_id is not None) - 1)


def sentence_deshuffling(tokens_BL, rng, eos_id=None, sentence_end_V=None, word_start_V=None):
    """The inputs are the sentences of the block in random order, the targets the unchanged block.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> ends, starts = np.arange(20) == 4, np.ones(20, dtype=bool)                        # id 4 is a full stop
    >>> inputs, targets = sentence_deshuffling([[5, 6, 4, 7, 4, 8]], datum_rng(0, 1), 1, ends, starts)
    >>> inputs.values.tolist(), targets.values.tolist()
    ([5, 6, 4, 8, 7, 4, 1], [5, 6, 4, 7, 4, 8, 1])

    sentence_end_V: bool [V], ids that end a sentence (`vocabulary.sentence_end_flags`), if white space follows them.
    word_start_V: bool [V], ids whose text begins with white space (`vocabulary.marked_word_flags`).
    A partial sentence at either end of the block counts as one. Every order is equally likely, the original one, too.
    Source: sentence permutation, arXiv:1910.13461 sec. 2.2.
    """
    tokens_BL = np.asarray(tokens_BL)
    begins_BL = np.zeros(tokens_BL.shape, dtype=bool)
    begins_BL[:, 1:] = sentence_end_V[tokens_BL[:, :-1]] & word_start_V[tokens_BL[:, 1:]]
    first_BL = np.maximum.accumulate(np.where(begins_BL, np.arange(tokens_BL.shape[1]), 0), axis=1)
    keys_BL = np.take_along_axis(random_keys(*tokens_BL.shape, rng), first_BL, axis=1)
    order_BL = np.argsort(keys_BL, axis=1, kind="stable")  # a sentence's tokens share one key, and keep their order
    return _whole(np.take_along_axis(tokens_BL, order_BL, axis=1), eos_id), _whole(tokens_BL, eos_id)


def prefix_lm(tokens_BL, rng, eos_id=None, noise_density=0.5):
    """A random prefix is the inputs, the rest the targets; there are no sentinels.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> inputs, targets = prefix_lm([[5, 6, 7, 8, 9]], datum_rng(0, 3), eos_id=1)
    >>> inputs.values.tolist(), targets.values.tolist()
    ([5, 6, 7, 8, 1], [9, 1])

    The prefix length is uniform in `prefix_bounds`, and never 0: a block of one token has targets without text.
    Source: arXiv:1910.10683 sec. 3.3.1.
    """
    tokens_BL = np.asarray(tokens_BL)
    batch, length = tokens_BL.shape
    shortest, longest = prefix_bounds(length, noise_density)
    prefix_B1 = shortest + below(random_keys(batch, 1, rng), longest - shortest + 1)
    in_prefix_BL = np.arange(length) < prefix_B1
    return keep(tokens_BL, in_prefix_BL, eos_id), keep(tokens_BL, ~in_prefix_BL, eos_id)


def prefix_bounds(length, noise_density=0.5):
    """The shortest and the longest prefix of a block, in tokens, so that targets are `noise_density` of it on average.

    >>> prefix_bounds(511), prefix_bounds(511, 0.25), prefix_bounds(511, 0.75)
    ((1, 510), (255, 510), (1, 255))

    Above 0.5, where T5 has no rule, the longest prefix is shortened. Raises ConfigError for a density outside
    (0, 1). Source: T5's random-prefix mask (arXiv:1910.10683), which rounds half to even.
    """
    if not 0 < noise_density < 1:
        raise ConfigError(f"noise_density is {noise_density}: a prefix LM needs one between 0 and 1 (T5: 0.5)")
    longest = max(length - 1, 1)
    if noise_density <= 0.5:
        return min(max(round((1 - 2 * noise_density) * longest), 1), longest), longest
    return 1, max(round(2 * (1 - noise_density) * longest), 1)


def full_lm(tokens_BL, rng, eos_id=None):
    """The targets are the block, the inputs end-of-sequence alone, because an encoder needs some input.

    >>> inputs, targets = full_lm([[5, 6, 7, 8, 9]], None, eos_id=1)
    >>> inputs.values.tolist(), targets.values.tolist()
    ([1], [5, 6, 7, 8, 9])

    No EOS ends the targets: a block is cut from running text, which has EOS after every document if the corpus was
    built with it. Nothing is drawn from `rng`. Source: arXiv:1910.10683 sec. 3.2.2.
    """
    tokens_BL = np.asarray(tokens_BL)
    return keep(tokens_BL, np.zeros(tokens_BL.shape, dtype=bool), eos_id), _whole(tokens_BL)


def _up_to(mask_BL, costs_BL, limit):
    """The noise of each row up to where its cumulative costs exceed the limit."""
    if np.count_nonzero(costs_BL, axis=1).max(initial=0) <= limit:
        return mask_BL
    return mask_BL & (np.cumsum(costs_BL, axis=1, dtype=np.int32) <= limit)


def _whole(tokens_BL, eos_id=None):
    """All tokens of each row, and EOS."""
    return Ragged.of(ended(tokens_BL, eos_id).astype(np.int64))


# ---------------------------------------------------------------------------------------------------------------------
# Whole words, n-grams or collocations as noise for an encoder-decoder model: PMI masking (arXiv:2010.01825) for T5.


def unit_denoising(
    tokens_BL, rng, sentinel_ids, eos_id=None, noise_density=0.15, targets_length=None, mask_units="word", **units
):
    """Units chosen at random are noise; each run of them becomes one sentinel, and the targets contain its text.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> starts = np.arange(20) != 8                                     # id 8 continues a word
    >>> inputs, targets = unit_denoising(
    ...     [[5, 7, 8, 9, 10]], datum_rng(0, 2), [99, 98], 1, 0.4, mask_units="word", word_start_V=starts
    ... )
    >>> inputs.values.tolist(), targets.values.tolist()
    ([5, 99, 9, 10, 1], [99, 7, 8, 98, 1])

    mask_units, units (word_start_V, collocations, mean_span_length): as in `masked.unit_masks`.
    As in `iid_denoising`, noise stops when sentinels or targets run out, and no text is lost; it stops after a unit.
    """
    tokens_BL = np.asarray(tokens_BL)
    mask_BL, starts_BL = unit_masks(tokens_BL, noise_density, rng, mask_units, **units)
    limited_BL = limited_noise(mask_BL, len(sentinel_ids), targets_length, eos_id)
    limited_BL = without_cut_units(limited_BL, mask_BL & ~limited_BL, starts_BL)
    return corrupt_ragged(tokens_BL, limited_BL, sentinel_ids, eos_id)


# ---------------------------------------------------------------------------------------------------------------------
# How many raw tokens an objective needs for inputs of a given length, and the maximum lengths of its sides.
#
# Each takes `(inputs_length, targets_length=None, **settings)` and ignores settings that lengths do not depend on. All
# lengths are in tokens, EOS included in inputs and targets.


TRIED_ROWS = 64  # show how long the targets of units are on average
LEAST_TARGETS = 4  # of units: sentinels of clean text and of noise, a token, EOS
NUM_DEVIATIONS = 4  # i.i.d. noise: more than this above the mean occurs once in 30,000 rows, and is reduced


@dataclass(frozen=True)
class BlockLengths:
    """A raw block's length and the longest inputs and targets made from it, all in tokens, EOS included.

    Attributes:
      exact: whether every block must have exactly `tokens_length` tokens, or at most that many.
    """

    tokens_length: int
    inputs_length: int
    targets_length: int
    exact: bool = False


def span_corruption_block(
    inputs_length,
    targets_length=None,
    *,
    sentinel_ids,
    noise_density=0.15,
    mean_span_length=3.0,
    **_,
):
    """`span_lengths`, or a token less if masks have one span more than it says (float32; a single long span).

    >>> span_corruption_block(512, sentinel_ids=range(100))
    BlockLengths(tokens_length=568, inputs_length=512, targets_length=114, exact=True)

    Raises ConfigError for more spans than sentinels.
    """
    return _span_block(inputs_length, sentinel_ids, noise_density, mean_span_length, LESS_NOISE, LONGER_SPANS)


def _span_block(inputs_length, sentinel_ids, noise_density, mean_span_length, *fewer_spans: str):
    """The block of `span_corruption_block`; `fewer_spans` is what helps if there are too few sentinels."""
    tokens_length = span_lengths(inputs_length, noise_density, mean_span_length)[0]
    while corrupted_lengths(tokens_length, noise_density, mean_span_length)[0] > inputs_length:
        tokens_length -= 1
    num_spans = max(noise_counts(tokens_length, noise_density, mean_span_length)[1], 1)
    _check_sentinels(tokens_length, num_spans, sentinel_ids, noise_density, *fewer_spans)
    sides = corrupted_lengths(tokens_length, noise_density, mean_span_length)
    return BlockLengths(tokens_length, *sides, exact=True)


def iid_denoising_block(inputs_length, targets_length=None, *, sentinel_ids, noise_density=0.15, **_):
    """Inputs are never longer than the block; targets have room for all but the noisiest rows.

    >>> iid_denoising_block(512, sentinel_ids=range(100))
    BlockLengths(tokens_length=511, inputs_length=512, targets_length=202, exact=False)

    Raises ConfigError if common rows would need more sentinels or targets than there are.
    """
    tokens_length = _one_shorter(inputs_length)
    check_density(noise_density)
    means, upper_bounds = _noise_and_runs(tokens_length, noise_density)
    _check_sentinels(tokens_length, math.ceil(upper_bounds[1]) + 1, sentinel_ids, noise_density, LESS_NOISE)
    longest = min(math.ceil(sum(upper_bounds)) + 2, tokens_length + 2)
    return _with_targets(tokens_length, inputs_length, targets_length, longest, math.ceil(sum(means)) + 2)


def unit_denoising_block(
    inputs_length,
    targets_length=None,
    *,
    sentinel_ids,
    noise_density=0.15,
    mask_units="word",
    mean_span_length=5.0,
    **_,
):
    """As many noise tokens as the density says, in at most as many runs as i.i.d. tokens would form.

    >>> unit_denoising_block(512, sentinel_ids=range(100))
    BlockLengths(tokens_length=511, inputs_length=512, targets_length=156, exact=False)

    Warns of a `targets_length` that too few rows would fit if every word were one token. Raises ConfigError for one
    that no noise would fit.
    """
    iid_denoising_block(inputs_length, sentinel_ids=sentinel_ids, noise_density=noise_density)  # raises as it does
    tokens_length = inputs_length - 1
    num_noise = max(1, round(noise_density * tokens_length))
    most_runs = min(num_noise, math.ceil(_noise_and_runs(tokens_length, noise_density)[1][1]), len(sentinel_ids) - 1)
    longest = min(num_noise + most_runs + 2, tokens_length + 2)
    if targets_length is None:
        return BlockLengths(tokens_length, inputs_length, longest)
    if targets_length < LEAST_TARGETS:
        raise ConfigError(
            f"--targets_length {targets_length}: no noise fits; set --targets_length {longest}, which all rows fit, or "
            f"at least {LEAST_TARGETS}"
        )
    typical = _typical_unit_targets(tokens_length, noise_density, mask_units, mean_span_length)
    if targets_length < typical:
        _warn_of_short_targets(targets_length, tokens_length, typical, longest)
    return BlockLengths(tokens_length, inputs_length, targets_length)


@functools.lru_cache  # the collators for training and for evaluation have the same blocks
def _warn_of_short_targets(targets_length, tokens_length, typical, longest):
    logger.warning(
        "--targets_length %d: blocks of %d tokens become %d targets on average and up to %d, if every word is one "
        "token; longer words need fewer. Rows that do not fit have less noise; --targets_length %d fits all",
        targets_length,
        tokens_length,
        typical,
        longest,
        longest,
    )


def _typical_unit_targets(tokens_length, noise_density, mask_units, mean_span_length):
    """The mean length of the targets of some rows whose words are one token each, and no collocations."""
    if mask_units == "pmi":
        mask_units = "word"
    tokens_BL = np.zeros((TRIED_ROWS, tokens_length), dtype=np.int64)
    mask_BL, _ = unit_masks(
        tokens_BL,
        noise_density,
        DatumRngs(0, range(TRIED_ROWS)),
        mask_units,
        word_start_V=np.ones(1, dtype=bool),
        mean_span_length=mean_span_length,
    )
    clean_runs = Runs.of(~mask_BL)  # each becomes a sentinel, and EOS ends the targets
    targets_B = np.count_nonzero(mask_BL, axis=1) + clean_runs.counts_B + 1
    return math.ceil(targets_B.mean())


def whole_text_block(inputs_length, targets_length=None, **_):
    """Both sides are as long as the block."""
    return BlockLengths(_one_shorter(inputs_length), inputs_length, inputs_length)


def prefix_lm_block(inputs_length, targets_length=None, *, noise_density=0.5, **_):
    """T5's blocks of one token less than the inputs, wherever they are split.

    >>> prefix_lm_block(512), prefix_lm_block(512, noise_density=0.25).targets_length
    (BlockLengths(tokens_length=511, inputs_length=511, targets_length=511, exact=False), 257)
    """
    tokens_length = _one_shorter(inputs_length)
    shortest, longest = prefix_bounds(tokens_length, noise_density)
    return BlockLengths(tokens_length, longest + 1, tokens_length - shortest + 1)


def full_lm_block(inputs_length, targets_length=None, **_):
    """Targets of `targets_length`, or else of `inputs_length`; the inputs are EOS alone."""
    tokens_length = inputs_length if targets_length is None else targets_length
    if tokens_length < 1:
        raise ConfigError(f"--targets_length {tokens_length}: it must be at least 1 token")
    return BlockLengths(tokens_length, 1, tokens_length)


def _check_sentinels(tokens_length, num_spans, sentinel_ids, noise_density, *fewer_spans: str):
    if num_spans > len(sentinel_ids):
        raise ConfigError(
            f"blocks of {tokens_length} tokens, {noise_density} of them noise, have up to {num_spans} spans, but the "
            f"tokenizer has {len(sentinel_ids)} sentinels: {remedies_of_few_sentinels(sentinel_ids, *fewer_spans)}"
        )


def _one_shorter(inputs_length):
    if inputs_length < 2:
        raise ConfigError(f"--inputs_length {inputs_length}: it must be at least 2 tokens, one of them EOS")
    return inputs_length - 1


def _with_targets(tokens_length, inputs_length, targets_length, longest, typical):
    """Room for the longest targets; a given `targets_length` is kept if at least half the rows fit."""
    if targets_length is None:
        return BlockLengths(tokens_length, inputs_length, longest)
    if targets_length < typical:
        raise ConfigError(
            f"--targets_length {targets_length}: blocks of {tokens_length} tokens become {typical} targets on "
            f"average and up to {longest}; set --targets_length {longest}, or lower --inputs_length"
        )
    return BlockLengths(tokens_length, inputs_length, targets_length)


def _noise_and_runs(length, density):
    """`(means, most)` of the numbers of i.i.d. noise tokens and of their runs (neighbours cannot both start one)."""
    start = density * (1 - density)
    means = length * density, length * start + density**2
    deviations = math.sqrt(length * start), math.sqrt(length * start * (1 - 3 * start))
    return means, tuple(mean + NUM_DEVIATIONS * deviation for mean, deviation in zip(means, deviations))


# ---------------------------------------------------------------------------------------------------------------------
# UL2's mixture of denoisers (arXiv:2205.05131 table 1): R ordinary spans, S a prefix LM, X long spans or much noise.


@dataclass(frozen=True)
class Denoiser:
    """One denoiser of the mixture.

    `mode` is "R", "S" or "X" (S is a prefix LM, which has no spans), `mean_span_length` is in tokens, `noise_density`
    the share of the block that goes to the targets, `weight` the probability of being chosen.
    """

    mode: str
    mean_span_length: float | None
    noise_density: float
    weight: float


UL2_DENOISERS = (
    Denoiser("R", 3, 0.15, 1 / 7), Denoiser("R", 8, 0.15, 1 / 7), Denoiser("S", None, 0.25, 1 / 7),
    Denoiser("X", 3, 0.5, 1 / 7), Denoiser("X", 8, 0.5, 1 / 7), Denoiser("X", 64, 0.15, 1 / 7),
    Denoiser("X", 64, 0.5, 1 / 7),
)  # fmt: skip
# What makes fewer spans: the denoisers' noise and spans are fixed.
SHORTER_UL2_INPUTS = "lower --inputs_length (384 needs 96 sentinels, 512 needs 128)"


def ul2(tokens_BL, rng, sentinel_ids, eos_id=None, mode_token_ids=None, denoiser=0):
    """Rows of one denoiser, `UL2_DENOISERS[denoiser]`, with its mode token before the inputs.

    >>> from t5suite.data.objectives.random_numbers import datum_rng
    >>> modes = {"R": 32000, "S": 32001, "X": 32002}
    >>> inputs, targets = ul2([[5, 6, 7, 8, 9]], datum_rng(0, 3), [32099], eos_id=1, mode_token_ids=modes, denoiser=2)
    >>> inputs.values.tolist(), targets.values.tolist()
    ([32001, 5, 6, 7, 8, 1], [9, 1])

    mode_token_ids: None for no mode tokens (Flan-UL2), else an id for each of R, S and X, which the paper writes [R],
    [S], [X] and the released model [NLU], [S2S], [NLG].
    """
    chosen = UL2_DENOISERS[denoiser]
    if chosen.mode == "S":
        inputs, targets = prefix_lm(tokens_BL, rng, eos_id, chosen.noise_density)
    else:
        noise = chosen.noise_density, chosen.mean_span_length
        inputs, targets = span_corruption(tokens_BL, rng, sentinel_ids, eos_id, *noise)
    if mode_token_ids is not None:
        inputs = inputs.prepended(mode_token_ids[chosen.mode])
    return inputs, targets


def ul2_block(inputs_length, targets_length=None, *, sentinel_ids, mode_token_ids=None, denoiser=0, **_):
    """The block of one denoiser; a mode token takes one position of the inputs.

    >>> modes = {"R": 32000, "S": 32001, "X": 32002}
    >>> [ul2_block(512, sentinel_ids=range(128), mode_token_ids=modes, denoiser=i).tokens_length for i in range(7)]
    [567, 587, 510, 765, 906, 599, 1004]

    Raises ConfigError for more spans than sentinels.
    """
    chosen = UL2_DENOISERS[denoiser]
    mode_tokens = int(mode_token_ids is not None)
    if mode_tokens and not {"R", "S", "X"} <= set(mode_token_ids):
        raise ConfigError(f"mode_token_ids {mode_token_ids}: UL2 needs an id for each of R, S and X")
    if chosen.mode == "S":
        block = prefix_lm_block(inputs_length - mode_tokens, noise_density=chosen.noise_density)
    else:
        noise = chosen.noise_density, chosen.mean_span_length
        block = _span_block(inputs_length - mode_tokens, sentinel_ids, *noise, SHORTER_UL2_INPUTS)
    return replace(block, inputs_length=block.inputs_length + mode_tokens)
