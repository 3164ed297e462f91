"""`--update_checks late`: an update is judged when its numbers have arrived, one update later.

    >>> trainer.choose_checks(optimizer)      # late, where the device can leave a step out by itself
    >>> trainer.settle_late(41)               # the device leaves update 41 out if it is broken; update 40 is judged
    >>> trainer.judge_late()                  # and 41 here, before anything of it is logged or saved

Several ranks send their numbers to each other from device to device (`late_checks`), so that all leave out the same
updates and judge them alike, at the same place.
"""

import torch

from t5suite.base.errors import ConfigError
from t5suite.training.updates.late_checks import LateNumbers, hindrance


class LateJudging:
    """A mixin of `SafeUpdates`; `_late` is None where updates are looked at before they are made."""

    _late: LateNumbers | None = None

    def choose_checks(self, optimizer) -> None:
        """`--update_checks`: whether updates are looked at before they are made, or one later.

        Raises:
          ConfigError: late was asked for and cannot be.
        """
        choice = getattr(self.args, "update_checks", "auto")
        self._late = None
        if hasattr(getattr(optimizer, "optimizer", None), "found_inf"):
            optimizer.optimizer.found_inf = None  # of a training before this one
        if choice == "now" or (choice == "auto" and self.args.device.type != "cuda"):
            return
        reason = hindrance(optimizer, self.loss_spikes, self.accelerator)
        if reason is None:
            self._late = LateNumbers(self.args.device, self.ranks.world_size)
        elif choice == "late":
            raise ConfigError(f"--update_checks late: {reason}; choose auto or now")

    def settle_late(self, step: int) -> None:
        """Leaves the update out on the device if a number of it is none; the one before is judged now."""
        self.judge_late()
        stop, failure = self.stop_requested(), self.micro_batches.failure
        if self.ranks.world_size == 1:
            self.stop_agreed |= stop
        self.count(0)
        numbers = step, self._update_loss, self._grad_norm, self._items
        broken = self._late.put(*numbers, stop=stop, failure=failure)
        self._tr_loss.copy_(torch.where(broken.bool(), self._loss_before, self._tr_loss))
        self.optimizer.optimizer.found_inf = broken

    def judge_late(self) -> None:
        """Judges the update whose numbers are on their way: before the next one, a log or a checkpoint.

        Every rank must come here at the same place.

        Raises:
          NumericsError: too many updates in a row were skipped.
        """
        late = self._late.take() if self._late is not None else None
        if late is None:
            return
        self.stop_agreed |= late.totals.stop
        if late.totals.grew:
            self.agree_on_pieces(late.step, late.failure)
        items, self._items = self._items, late.items
        if self.is_broken(late.totals) and hasattr(self.optimizer.optimizer, "count_back"):
            self.optimizer.optimizer.count_back()
        self.judge(self.model, late.step, late.totals)
        self._items = items

    def _maybe_log_save_evaluate(self, *args, **kwargs) -> None:
        """Before anything of an update is logged or evaluated, it is known what it came to."""
        control = self.control
        if control.should_log or control.should_evaluate or control.should_save:
            self.judge_late()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs) -> None:
        """Nor is anything of it saved before; a run that is asked to stop saves when nothing else is due."""
        self.judge_late()
        super()._save_checkpoint(*args, **kwargs)
