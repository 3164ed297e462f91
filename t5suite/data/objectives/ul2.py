"""UL2's mixture of denoisers (arXiv:2205.05131 table 1): R ordinary spans, S a prefix LM, X extreme spans or rates.

    UL2_DENOISERS[0]      Denoiser(mode="R", mean_span_length=3, noise_density=0.15, weight=1/7)
    inputs of it          [R] Thank you <X> me to your party <Y> week . </s>

Shape suffixes: B rows, L tokens of a block.
"""

from dataclasses import dataclass, replace

from t5suite.base.errors import ConfigError
from t5suite.data.objectives.block_lengths import prefix_lm_block, span_corruption_block
from t5suite.data.objectives.denoisers import prefix_lm, span_corruption

MODES = ("R", "S", "X")


@dataclass(frozen=True)
class Denoiser:
    """One denoiser of the mixture.

    Attributes:
      mode: "R", "S" or "X"; S is a prefix LM, which has no spans.
      mean_span_length: in tokens; None for S. noise_density: share of the block that ends up in the targets.
      weight: how often it is chosen.
    """

    mode: str
    mean_span_length: float | None
    noise_density: float
    weight: float


UL2_DENOISERS = (
    Denoiser("R", 3, 0.15, 1 / 7),
    Denoiser("R", 8, 0.15, 1 / 7),
    Denoiser("S", None, 0.25, 1 / 7),
    Denoiser("X", 3, 0.5, 1 / 7),
    Denoiser("X", 8, 0.5, 1 / 7),
    Denoiser("X", 64, 0.15, 1 / 7),
    Denoiser("X", 64, 0.5, 1 / 7),
)


def ul2(tokens_BL, rng, sentinel_ids, eos_id=None, mode_token_ids=None, denoiser=0):
    """Rows of one denoiser, `UL2_DENOISERS[denoiser]`, its mode's token in front of the inputs.

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
        check_mode_tokens(mode_token_ids)
        inputs = inputs.prepended(mode_token_ids[chosen.mode])
    return inputs, targets


def ul2_block(inputs_length, targets_length=None, *, sentinel_ids, mode_token_ids=None, denoiser=0, **_):
    """The block of one denoiser, its mode token taking one of the inputs.

    >>> modes = {"R": 32000, "S": 32001, "X": 32002}
    >>> [ul2_block(512, sentinel_ids=range(128), mode_token_ids=modes, denoiser=i).tokens_length for i in range(7)]
    [567, 587, 510, 765, 906, 599, 1004]

    Raises ConfigError for more spans than sentinels: 100 of them are enough for inputs of 384 (and up to 398), 128
    for inputs of 512.
    """
    chosen = UL2_DENOISERS[denoiser]
    mode_tokens = 0
    if mode_token_ids is not None:
        check_mode_tokens(mode_token_ids)
        mode_tokens = 1
    if chosen.mode == "S":
        block = prefix_lm_block(inputs_length - mode_tokens, noise_density=chosen.noise_density)
    else:
        block = span_corruption_block(
            inputs_length - mode_tokens,
            sentinel_ids=sentinel_ids,
            noise_density=chosen.noise_density,
            mean_span_length=chosen.mean_span_length,
            advice=f"that is UL2's {chosen.mode} denoiser of mean span {chosen.mean_span_length} and density "
            f"{chosen.noise_density}; lower --inputs_length ({inputs_length}; 384 needs 96 sentinels, 512 needs 128), "
            "or give the tokenizer more (--num_sentinels 128)",
        )
    return replace(block, inputs_length=block.inputs_length + mode_tokens)


def check_mode_tokens(mode_token_ids):
    """Raises ConfigError unless there is an id for every mode."""
    missing = [mode for mode in MODES if mode not in mode_token_ids]
    if missing:
        raise ConfigError(f"mode_token_ids {mode_token_ids} has no id for {', '.join(missing)}: UL2 needs R, S and X")
