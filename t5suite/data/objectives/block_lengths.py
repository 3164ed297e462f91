"""How many raw tokens an objective needs for inputs of a given length, and how long its sides may become.

    span_corruption_block(512, sentinel_ids=range(100))    ->  568 tokens, inputs of 512, targets of 114, exactly
    prefix_lm_block(512)                                   ->  511 tokens at most, either side at most 511

Each takes `(inputs_length, targets_length=None, **settings)`, all of the objective's settings, and ignores those that
lengths do not depend on. All lengths are in tokens, EOS included in inputs and targets.
"""

import math
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.data.objectives.denoisers import prefix_bounds
from t5suite.data.objectives.spans import check_density, corrupted_lengths, noise_counts, span_lengths

NUM_DEVIATIONS = 4  # i.i.d. noise: more than this above the mean comes once in 30,000 rows, and is cut back


@dataclass(frozen=True)
class Block:
    """A raw block's length and the longest inputs and targets that it may become, all in tokens, EOS included.

    Attributes:
      exact: every block must have exactly `tokens_length` tokens, else at most that many.
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
    random_roll=False,
    advice="lower --noise_density ({noise_density}) or --inputs_length ({inputs_length}), raise --mean_span_length "
    "({mean_span_length}), or give the tokenizer more (--num_sentinels)",
    **_,
):
    """`span_lengths`, or a token less where masks really hold a span more than it says (float32; a lone long span).

    >>> span_corruption_block(512, sentinel_ids=range(100))
    Block(tokens_length=568, inputs_length=512, targets_length=114, exact=True)

    A rolled mask may cut a span in two, for which one token is kept free on either side.
    Raises ConfigError for more spans than sentinels.
    """
    if inputs_length <= random_roll:
        raise ConfigError(f"--inputs_length {inputs_length}: it must be at least {1 + random_roll} tokens")
    tokens_length = span_lengths(inputs_length - random_roll, noise_density, mean_span_length)[0]
    while corrupted_lengths(tokens_length, noise_density, mean_span_length)[0] > inputs_length - random_roll:
        tokens_length -= 1
    num_spans = max(noise_counts(tokens_length, noise_density, mean_span_length)[1], 1) + random_roll
    if num_spans > len(sentinel_ids):
        settings = dict(
            noise_density=noise_density, mean_span_length=mean_span_length, inputs_length=inputs_length + random_roll
        )
        raise ConfigError(
            f"blocks of {tokens_length} tokens have {num_spans} spans, but the tokenizer has {len(sentinel_ids)} "
            f"sentinels: {advice.format(**settings)}"
        )
    sides = corrupted_lengths(tokens_length, noise_density, mean_span_length)
    return Block(tokens_length, *(side + random_roll for side in sides), exact=True)


def iid_denoising_block(inputs_length, targets_length=None, *, sentinel_ids, noise_density=0.15, **_):
    """Inputs never outgrow the block; targets get room for all but the noisiest rows.

    >>> iid_denoising_block(512, sentinel_ids=range(100))
    Block(tokens_length=511, inputs_length=512, targets_length=202, exact=False)

    Raises ConfigError where common rows would need more sentinels or targets than there are.
    """
    tokens_length = _one_shorter(inputs_length)
    check_density(noise_density)
    noise, runs = _moments(tokens_length, noise_density), _run_moments(tokens_length, noise_density)
    num_spans = _high(*runs) + 1
    if num_spans > len(sentinel_ids):
        raise ConfigError(
            f"blocks of {tokens_length} tokens have up to {num_spans} runs of noise, but the tokenizer has "
            f"{len(sentinel_ids)} sentinels: lower --noise_density ({noise_density}) or --inputs_length "
            f"({inputs_length}), or give the tokenizer more (--num_sentinels)"
        )
    longest = min(_high(noise[0] + runs[0], noise[1] + runs[1]) + 2, tokens_length + 2)
    return _with_targets(tokens_length, inputs_length, targets_length, longest, math.ceil(noise[0] + runs[0]) + 2)


def unit_denoising_block(inputs_length, targets_length=None, *, sentinel_ids, noise_density=0.15, **_):
    """As many noise tokens as the density says, in at most as many runs as single tokens chosen by chance would make.

    >>> unit_denoising_block(512, sentinel_ids=range(100))
    Block(tokens_length=511, inputs_length=512, targets_length=156, exact=False)

    Raises ConfigError as `iid_denoising_block` does.
    """
    tokens_length = iid_denoising_block(
        inputs_length, sentinel_ids=sentinel_ids, noise_density=noise_density
    ).tokens_length
    num_noise = max(1, round(noise_density * tokens_length))
    most_runs = min(num_noise, _high(*_run_moments(tokens_length, noise_density)), len(sentinel_ids) - 1)
    longest = min(num_noise + most_runs + 2, tokens_length + 2)
    return _with_targets(tokens_length, inputs_length, targets_length, longest, num_noise + 2)


def drop_tokens_block(inputs_length, targets_length=None, *, noise_density=0.15, **_):
    """As `iid_denoising_block`, without sentinels."""
    tokens_length = _one_shorter(inputs_length)
    check_density(noise_density)
    noise = _moments(tokens_length, noise_density)
    longest = min(_high(*noise) + 1, tokens_length + 1)
    return _with_targets(tokens_length, inputs_length, targets_length, longest, math.ceil(noise[0]) + 1)


def whole_text_block(inputs_length, targets_length=None, **_):
    """Both sides are as long as the block.

    >>> whole_text_block(512)
    Block(tokens_length=511, inputs_length=512, targets_length=512, exact=False)
    """
    return Block(_one_shorter(inputs_length), inputs_length, inputs_length)


def prefix_lm_block(inputs_length, targets_length=None, *, noise_density=0.5, **_):
    """T5's blocks of one token less than the inputs, whichever way they are divided.

    >>> prefix_lm_block(512), prefix_lm_block(512, noise_density=0.25).targets_length
    (Block(tokens_length=511, inputs_length=511, targets_length=511, exact=False), 257)
    """
    tokens_length = _one_shorter(inputs_length)
    shortest, longest = prefix_bounds(tokens_length, noise_density)
    return Block(tokens_length, longest + 1, tokens_length - shortest + 1)


def full_lm_block(inputs_length, targets_length=None, **_):
    """Targets of `targets_length`, or else of `inputs_length`; EOS is all there is to read.

    >>> full_lm_block(512)
    Block(tokens_length=512, inputs_length=1, targets_length=512, exact=False)
    """
    tokens_length = inputs_length if targets_length is None else targets_length
    if tokens_length < 1:
        raise ConfigError(f"--targets_length {tokens_length}: it must be at least 1 token")
    return Block(tokens_length, 1, tokens_length)


def _one_shorter(inputs_length):
    if inputs_length < 2:
        raise ConfigError(f"--inputs_length {inputs_length}: it must be at least 2 tokens, one of them EOS")
    return inputs_length - 1


def _with_targets(tokens_length, inputs_length, targets_length, longest, typical):
    """Room for the longest targets; a given `targets_length` stands, if at least half the rows fit."""
    if targets_length is None:
        return Block(tokens_length, inputs_length, longest)
    if targets_length < typical:
        raise ConfigError(
            f"--targets_length {targets_length}: blocks of {tokens_length} tokens become {typical} targets on "
            f"average and up to {longest}; set --targets_length {longest}, or lower --inputs_length"
        )
    return Block(tokens_length, inputs_length, targets_length)


def _moments(length, density):
    """Mean and standard deviation of the number of noise tokens."""
    return length * density, math.sqrt(length * density * (1 - density))


def _run_moments(length, density):
    """Mean and standard deviation of the number of noise runs (neighbouring starts exclude each other)."""
    start = density * (1 - density)
    return length * start + density**2, math.sqrt(length * start * (1 - 3 * start))


def _high(mean, deviation):
    return math.ceil(mean + NUM_DEVIATIONS * deviation)
