"""Schedulers, which set the learning rates of an optimizer's groups by a schedule.

    >>> scheduler = make_scheduler(optimizer, "cosine", num_training_steps=100, num_warmup_steps=10)
    >>> scheduler.step()                            # once per update, on every rank

Each group's rate is its own base rate times f(step). The trainer steps a scheduler itself, once per update; a scheduler
prepared by accelerate would be stepped once per process (nanoT5's cosine ended at half the run on two GPUs).
"""

import math

from torch.optim.lr_scheduler import LambdaLR

from t5suite.optim.schedules import SCHEDULES, make_multiplier, plateau
from t5suite.optim.settings import setting_types


class PlateauLR(LambdaLR):
    """A rate that falls when evaluations stop improving; its whole state is in `state_dict`.

    torch's `ReduceLROnPlateau` has no warm-up, and its relative threshold counts every negated loss as an
    improvement.
    """

    def __init__(self, optimizer, multiplier, *, factor: float, patience: int, threshold: float, min_lr_rate: float):
        self.settings = {"factor": factor, "patience": patience, "threshold": threshold, "min_lr_rate": min_lr_rate}
        self.reduction = 1.0
        self.best: float | None = None
        self.num_bad = 0
        super().__init__(optimizer, multiplier)

    def observe(self, value: float) -> None:
        """Takes an evaluation's value (higher is better), and lowers the rates after too many without improvement.

        >>> for value in (-2.0, -1.5, -1.5, -1.5): scheduler.observe(value)         # patience 1, factor 0.1
        >>> scheduler.reduction
        0.1

        Until there was a number, minus infinity, which stands for NaN, does not count; later it is no improvement.
        """
        if self.best is None and value == -math.inf:
            return
        if self.best is None or value > self.best + self.settings["threshold"]:
            self.best = value
            self.num_bad = 0
            return
        self.num_bad += 1
        if self.num_bad > self.settings["patience"]:
            self.reduction = max(self.reduction * self.settings["factor"], self.settings["min_lr_rate"])
            self.num_bad = 0
            set_rates(self)

    def forget_best(self) -> None:
        """Compares with no value before the next one: they cannot be compared with it."""
        self.best = None
        self.num_bad = 0

    def get_lr(self) -> list[float]:
        """Base rates times the warm-up and all reductions so far."""
        return current_rates(self)


def make_scheduler(optimizer, name: str, num_training_steps: int, num_warmup_steps: int = 0, settings=None) -> LambdaLR:
    """The scheduler of schedule `name`; `settings` as `schedules.schedule_settings` returns them."""
    multiplier = make_multiplier(name, num_training_steps, num_warmup_steps, settings)
    if SCHEDULES[name] is not plateau:
        return LambdaLR(optimizer, multiplier)
    names = [key for key in setting_types(plateau) if key != "warmup_start"]
    defaults = {key: plateau.__kwdefaults__[key] for key in names}
    return PlateauLR(optimizer, multiplier, **{key: (settings or {}).get(key, defaults[key]) for key in names})


def current_rates(scheduler: LambdaLR) -> list[float]:
    """Each group's rate for the current step; `get_lr` is the same, but warns if called outside `step`."""
    reduction = getattr(scheduler, "reduction", 1.0)
    multipliers = [multiplier(scheduler.last_epoch) * reduction for multiplier in scheduler.lr_lambdas]
    return [base_rate * factor for base_rate, factor in zip(scheduler.base_lrs, multipliers, strict=True)]


def set_rates(scheduler: LambdaLR) -> None:
    """Sets every group's rate to its schedule's value for the current step."""
    scheduler._last_lr = current_rates(scheduler)
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = rate
