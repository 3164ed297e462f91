"""A schedule at work on an optimizer's groups, as torch's learning rate schedulers are.

    >>> scheduler = make_scheduler(optimizer, "cosine", num_training_steps=100, num_warmup_steps=10)
    >>> scheduler.step()                            # once an update, on every rank alike

Each group's rate is its own base rate times f(step). The trainer steps a scheduler itself, once an update; a scheduler
that accelerate has prepared would be stepped once a process (nanoT5's cosine ended at half the run on two GPUs).
"""

from torch.optim.lr_scheduler import LambdaLR

from t5suite.optim.schedules import SCHEDULES, make_multiplier, plateau
from t5suite.optim.settings import setting_types


class PlateauLR(LambdaLR):
    """A rate that falls when evaluations stop getting better; everything that it remembers is in `state_dict`.

    torch's `ReduceLROnPlateau` has no warm-up, and its relative threshold takes every loss written as a negative
    number for an improvement.
    """

    def __init__(self, optimizer, multiplier, *, factor: float, patience: int, threshold: float, min_lr_rate: float):
        self.settings = {"factor": factor, "patience": patience, "threshold": threshold, "min_lr_rate": min_lr_rate}
        self.reduction = 1.0
        self.best: float | None = None
        self.num_bad = 0
        super().__init__(optimizer, multiplier)

    def observe(self, value: float) -> None:
        """Takes the value of an evaluation, more being better, and lowers the rates after too many that are no better.

        >>> for value in (-2.0, -1.5, -1.5, -1.5): scheduler.observe(value)         # patience 1, factor 0.1
        >>> scheduler.reduction
        0.1
        """
        if self.best is None or value > self.best + self.settings["threshold"]:
            self.best, self.num_bad = value, 0
            return
        self.num_bad += 1
        if self.num_bad > self.settings["patience"]:
            self.reduction = max(self.reduction * self.settings["factor"], self.settings["min_lr_rate"])
            self.num_bad = 0
            set_rates(self)

    def get_lr(self) -> list[float]:
        """Base rates times the warm-up and all reductions so far."""
        return present_rates(self)


def make_scheduler(optimizer, name: str, num_training_steps: int, num_warmup_steps: int = 0, settings=None) -> LambdaLR:
    """The scheduler of schedule `name`; `settings` as `schedules.schedule_settings` returns them."""
    multiplier = make_multiplier(name, num_training_steps, num_warmup_steps, settings)
    if SCHEDULES[name] is not plateau:
        return LambdaLR(optimizer, multiplier)
    defaults = {key: plateau.__kwdefaults__[key] for key in setting_types(plateau) if key != "warmup_start"}
    return PlateauLR(optimizer, multiplier, **{key: (settings or {}).get(key, defaults[key]) for key in defaults})


def present_rates(scheduler: LambdaLR) -> list[float]:
    """Each group's rate for the present step; `get_lr` is the same and warns when anybody but `step` calls it."""
    reduction = getattr(scheduler, "reduction", 1.0)
    multipliers = [multiplier(scheduler.last_epoch) * reduction for multiplier in scheduler.lr_lambdas]
    return [base * by for base, by in zip(scheduler.base_lrs, multipliers, strict=True)]


def set_rates(scheduler: LambdaLR) -> None:
    """Gives every group the rate that its schedule has for the present step."""
    scheduler._last_lr = present_rates(scheduler)
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = rate
