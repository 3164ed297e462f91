"""Learning rate schedules by name (`--schedule`); without the flag, Hugging Face's `--lr_scheduler_type` decides.

    >>> [linear(step, num_training_steps=10, num_warmup_steps=2) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]

Every schedule is a pure function f(step) that multiplies the learning rate; `step` is the number of updates made so
far: update number n runs at `learning_rate * f(n - 1)`. A warm-up from 0 does not change the weights in its first
update; `warmup_start` raises it. Schedules with a Hugging Face name give its values by default.

Keyword-only parameters are the settings that `--lr_scheduler_kwargs "name=value,..."` accepts; shares are of all
steps, rates of the learning rate. A function without `num_warmup_steps` has no warm-up.
"""

import inspect
import math
from functools import partial

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.optim.settings import parse_settings, read_value, setting_types, settings_for

T5_TIMESCALE = 10_000


def constant(step: int, num_training_steps: int) -> float:
    """Always 1."""
    return 1.0


def constant_with_warmup(
    step: int, num_training_steps: int, num_warmup_steps: int = 0, *, warmup_start: float = 0.0
) -> float:
    """Linear warm-up, then 1."""
    return _warmup(step, num_warmup_steps, warmup_start) if step < num_warmup_steps else 1.0


def linear(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    min_lr_rate: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up, then linearly down to `min_lr_rate`.

    >>> [linear(step, 10, min_lr_rate=0.5) for step in (0, 5, 10)]
    [1.0, 0.75, 0.5]
    """
    return polynomial(step, num_training_steps, num_warmup_steps, min_lr_rate=min_lr_rate, warmup_start=warmup_start)


def polynomial(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    power: float = 1.0,
    min_lr_rate: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up, then `(1 - progress) ** power` down to `min_lr_rate`.

    >>> [polynomial(step, 10, power=2.0) for step in (0, 5, 10)]
    [1.0, 0.25, 0.0]
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps, warmup_start)
    remaining = 1.0 - _progress(step, num_warmup_steps, num_training_steps)
    return _above(min_lr_rate, remaining**power)


def cosine(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    min_lr_rate: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up, then half a cosine down to a floor: floor + (1 - floor) (1 + cos(pi progress)) / 2.

    >>> [round(cosine(step, 10, num_warmup_steps=2, min_lr_rate=0.1), 3) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.55, 0.1]

    nanoT5's: `warmup_start=0.5,min_lr=1e-5`. arXiv:1608.03983, eq. 5.
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps, warmup_start)
    return _above(min_lr_rate, _half_cosine(_progress(step, num_warmup_steps, num_training_steps)))


def cosine_with_restarts(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    num_cycles: int = 1,
    min_lr_rate: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up, then `num_cycles` half cosines, each from 1 down to `min_lr_rate` (arXiv:1608.03983).

    >>> [round(cosine_with_restarts(step, 8, num_cycles=2), 3) for step in (0, 2, 3, 4, 6, 8)]
    [1.0, 0.5, 0.146, 1.0, 0.5, 0.0]
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps, warmup_start)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    if progress >= 1.0:
        return _above(min_lr_rate, 0.0)
    return _above(min_lr_rate, _half_cosine(num_cycles * progress % 1.0))


def inverse_sqrt(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    timescale: int | None = None,
    decay_share: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up to 1, then 1 / sqrt(1 + (step - warm-up) / timescale), then an optional linear tail to 0.

    >>> [inverse_sqrt(step, 10000, num_warmup_steps=100) for step in (0, 50, 100, 400, 10000)]
    [0.0, 0.5, 1.0, 0.5, 0.1]

    Args:
      timescale: default: the warm-up steps, or 10,000 without a warm-up.
      decay_share: share of all steps, at the end, in which the rate falls linearly to 0.
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps, warmup_start)
    timescale = timescale or num_warmup_steps or T5_TIMESCALE
    flat, tail = _tail(step, num_training_steps, decay_share)
    return tail / math.sqrt((max(flat, num_warmup_steps) - num_warmup_steps + timescale) / timescale)


def inverse_sqrt_t5(
    step: int, num_training_steps: int, *, timescale: int = T5_TIMESCALE, decay_share: float = 0.0
) -> float:
    """T5's own: 1 / sqrt(max(step, timescale)), an absolute rate, for `--learning_rate 1.0`.

    >>> [inverse_sqrt_t5(step, 524288) for step in (0, 10000, 40000)]
    [0.01, 0.01, 0.005]

    Flat for the first 10,000 steps, which T5's paper calls its warm-up (arXiv:1910.10683, section 3.1.2). With
    `decay_share=0.1` the last tenth falls linearly to 0: nanoT5's `legacy`, min(1e-2, 1 / sqrt(step)) for the first
    nine tenths.

    >>> [round(inverse_sqrt_t5(step, 65536, decay_share=0.1), 6) for step in (58982, 58983, 62260, 65536)]
    [0.004118, 0.004118, 0.002058, 0.0]
    """
    flat, tail = _tail(step, num_training_steps, decay_share)
    return tail / math.sqrt(max(flat, timescale))


def warmup_stable_decay(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    decay_share: float = 0.1,
    decay_type: str = "linear",
    min_lr_rate: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up, constant, and a fall to `min_lr_rate` in the last `decay_share` of all steps.

    >>> [warmup_stable_decay(step, 100, num_warmup_steps=10, decay_share=0.2) for step in (5, 10, 80, 90, 100)]
    [0.5, 1.0, 1.0, 0.5, 0.0]

    decay_type: linear, cosine or 1-sqrt (1 - sqrt(progress); arXiv:2405.18392, section 3). arXiv:2404.06395.
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps, warmup_start)
    _, remaining = _tail(step, num_training_steps, decay_share)
    return _above(min_lr_rate, DECAY_TYPES[decay_type](1.0 - remaining))


def relative_step(step: int, num_training_steps: int, *, warmup_init: bool = False) -> float:
    """Adafactor's relative steps, absolute rates: min(1e-2, 1 / sqrt(t)) in update t, for `--learning_rate 1.0`.

    >>> [relative_step(step, 10**6) for step in (0, 9999, 39999)]
    [0.01, 0.01, 0.005]
    >>> [relative_step(step, 10**6, warmup_init=True) for step in (0, 999, 39999)]
    [1e-06, 0.001, 0.005]

    arXiv:1804.04235, alg. 5; with `warmup_init` the first term is 1e-6 t.
    """
    update = step + 1
    limit = 1e-6 * update if warmup_init else 1e-2
    return min(limit, 1.0 / math.sqrt(update))


def plateau(
    step: int,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    *,
    factor: float = 0.1,
    patience: int = 10,
    threshold: float = 1e-4,
    min_lr_rate: float = 0.0,
    warmup_start: float = 0.0,
) -> float:
    """Linear warm-up, then constant until evaluations stop improving (`schedulers.PlateauLR` lowers it).

    >>> [plateau(step, 10, num_warmup_steps=4) for step in (0, 2, 4, 10)]
    [0.0, 0.5, 1.0, 1.0]

    After more than `patience` evaluations in a row that are not better than the best by `threshold`, the rate is
    multiplied by `factor`, down to `min_lr_rate`. It compares the value that selects checkpoints (pre-training: the
    held-out loss; fine-tuning: the task's metric, or the loss with `--metric_for_best_model loss`).
    """
    return constant_with_warmup(step, num_training_steps, num_warmup_steps, warmup_start=warmup_start)


def _warmup(step: int, num_warmup_steps: int, start: float) -> float:
    return start + (1.0 - start) * step / num_warmup_steps


def _progress(step: int, num_warmup_steps: int, num_training_steps: int) -> float:
    """0 at the end of the warm-up, 1 at the end of training and later."""
    return min(1.0, (step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps))


def _above(floor: float, value: float) -> float:
    return floor + (1.0 - floor) * value


def _half_cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _tail(step: int, num_training_steps: int, decay_share: float) -> tuple[int, float]:
    """`(step, at most the tail's first; 1 before the tail, falling to 0 at the end)`."""
    first = math.ceil((1.0 - decay_share) * num_training_steps)
    if step <= first or decay_share == 0.0:
        return step, 1.0
    return first, max(0.0, (num_training_steps - step) / max(1, num_training_steps - first))


def _linear_fall(progress: float) -> float:
    return 1.0 - progress


def _square_root_fall(progress: float) -> float:
    return 1.0 - math.sqrt(progress)


DECAY_TYPES = {"linear": _linear_fall, "cosine": _half_cosine, "1-sqrt": _square_root_fall}

# Ranges of the settings, both ends included.
RANGES = {
    "min_lr_rate": (0.0, 1.0), "warmup_start": (0.0, 1.0), "decay_share": (0.0, 1.0), "power": (0.0, math.inf),
    "num_cycles": (1, math.inf), "timescale": (1, math.inf), "factor": (0.0, 1.0), "patience": (0, math.inf),
    "threshold": (0.0, math.inf),
}  # fmt: skip


def schedule_settings(name: str, settings, learning_rate: float) -> dict:
    """The settings of schedule `name`; `min_lr`, an absolute rate, becomes `min_lr_rate`.

    >>> schedule_settings("cosine", "min_lr=1e-5,warmup_start=0.5", learning_rate=2e-2)
    {'warmup_start': 0.5, 'min_lr_rate': 0.0005}

    Raises:
      ConfigError: an unknown schedule or setting, a value of the wrong type or out of range.
    """
    function = find(name, SCHEDULES, "schedule", where="--schedule")
    settings = parse_settings(settings, "--lr_scheduler_kwargs")
    if "min_lr" in settings and "min_lr_rate" in setting_types(function):
        _replace_min_lr(settings, learning_rate)
    settings = settings_for(function, settings, "--lr_scheduler_kwargs")
    for key, value in settings.items():
        low, high = RANGES.get(key, (-math.inf, math.inf))
        if value is not None and key in RANGES and not low <= value <= high:
            raise ConfigError(f"--lr_scheduler_kwargs {key}={value}: must lie between {low} and {high}")
    if "decay_type" in settings:
        find(settings["decay_type"], DECAY_TYPES, "decay_type", where="--lr_scheduler_kwargs")
    return settings


def _replace_min_lr(settings: dict, learning_rate: float) -> None:
    """Turns `min_lr`, an absolute rate, into `min_lr_rate`, a share of the learning rate, in place."""
    if "min_lr_rate" in settings:
        raise ConfigError("--lr_scheduler_kwargs: give min_lr (a learning rate) or min_lr_rate (its share), not both")
    min_lr = read_value(settings.pop("min_lr"))
    if not isinstance(min_lr, (int, float)) or not 0 <= min_lr <= learning_rate:
        raise ConfigError(
            f"--lr_scheduler_kwargs min_lr={min_lr}: must lie between 0 and --learning_rate {learning_rate}"
        )
    settings["min_lr_rate"] = min_lr / learning_rate if learning_rate else 0.0


def has_warmup(name: str) -> bool:
    """Whether `--warmup_steps` has an effect on the schedule."""
    return "num_warmup_steps" in inspect.signature(SCHEDULES[name]).parameters


def make_multiplier(name: str, num_training_steps: int, num_warmup_steps: int = 0, settings: dict | None = None):
    """step -> the factor of the learning rate.

    >>> make_multiplier("linear", 10, 2)(6)
    0.5
    """
    warmup = {"num_warmup_steps": num_warmup_steps} if has_warmup(name) else {}
    return partial(SCHEDULES[name], num_training_steps=num_training_steps, **warmup, **(settings or {}))


SCHEDULES = {
    "constant": constant, "constant_with_warmup": constant_with_warmup, "cosine": cosine,
    "cosine_with_restarts": cosine_with_restarts, "inverse_sqrt": inverse_sqrt, "inverse_sqrt_t5": inverse_sqrt_t5,
    "linear": linear, "plateau": plateau, "polynomial": polynomial, "relative_step": relative_step,
    "warmup_stable_decay": warmup_stable_decay,
}  # fmt: skip
