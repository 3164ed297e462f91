"""What makes a resumed run equal an uninterrupted one beside weights, optimizer, data and random numbers.

    >>> progress = RunProgress(ranks, take_up)
    >>> progress.described(loss_total=41.5, logged_step=10, stopped=False, callbacks=callbacks)      # -> progress.json

* The loss since the last log, the sum that `train_loss` is made of, and where the last log stood.
* What callbacks remember: any that has `remember() -> dict` and `recall(dict)`.
* That training was over (early stopping, `--max_steps`): resumed, such a run trains no further step.
* What was pending. A request to stop is honoured at the end of a step, before the evaluation that may be due there, and
  an evaluation under way is given up; the resumed run does it first, as if nothing had happened.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from transformers import TrainerCallback

from t5suite.runs.directory import read_json

PROGRESS_FILE = "progress.json"
RANK_FILE = "rank-{rank}.json"


class RunProgress(TrainerCallback):
    """What goes into every checkpoint beside the states, and comes back from it.

    Args:
      take_up: called with the trainer's control when training begins, before other callbacks begin: the trainer's sums
        are there and are 0, and nothing has been logged yet.

    Attributes:
      resumed_from: the folder that training goes on from.
      pending: what is still to be done at the present step: an evaluation, the end of an epoch.
      after_epoch_end: whether the trainer has announced the end of the epoch.
      loss_from_step: the step after which the sum of losses begins.
    """

    def __init__(self, ranks, take_up: Callable):
        self.ranks, self.take_up = ranks, take_up
        self.resumed_from: Path | None = None
        self.pending: dict = {}
        self.after_epoch_end, self.loss_from_step = False, 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.take_up(control)

    def on_step_begin(self, args, state, control, **kwargs):
        self.after_epoch_end = False

    def on_epoch_end(self, args, state, control, **kwargs):
        """Nothing but an evaluation may follow in this epoch."""
        self.after_epoch_end = True

    def described(self, *, loss_total: float, logged_step: int, stopped: bool, callbacks: Iterable) -> dict:
        """What is the same on all ranks, as JSON values."""
        return {
            "loss_total": loss_total,
            "loss_from_step": self.loss_from_step,
            "logged_step": logged_step,
            "stopped": stopped,
            "pending": self.pending,
            "callbacks": {name: callback.remember() for name, callback in _remembering(callbacks).items()},
        }

    def recall(self, step: int, callbacks: Iterable) -> dict | None:
        """Takes up what the checkpoint says; returns it with this rank's `loss_since_log`; None without one."""
        self.loss_from_step = step
        if self.resumed_from is None or not (self.resumed_from / PROGRESS_FILE).is_file():
            return None
        found = read_json(self.resumed_from / PROGRESS_FILE)
        self.loss_from_step, self.pending = found["loss_from_step"], found["pending"]
        for name, callback in _remembering(callbacks).items():
            if name in found["callbacks"]:
                callback.recall(found["callbacks"][name])
        # What this rank had added up; where the number of ranks has changed, the mean of what they had.
        files = sorted(self.resumed_from.glob(RANK_FILE.format(rank="*")))
        if len(files) == self.ranks.world_size:
            files = [self.resumed_from / RANK_FILE.format(rank=self.ranks.rank)]
        sums = [read_json(path)["loss_since_log"] for path in files]
        return {**found, "loss_since_log": sum(sums) / max(len(sums), 1)}

    def note_pending(self, state, control, grad_norm, learning_rate) -> None:
        """Before the checkpoint of a run that was asked to stop: what the resumed one does first."""
        epoch_ends = not self.after_epoch_end and (state.epoch.is_integer() or control.should_training_stop)
        if control.should_evaluate or epoch_ends:
            self.pending = {
                "evaluate": control.should_evaluate,
                "save": control.should_save,
                "epoch_end": epoch_ends,
                "grad_norm": None if grad_norm is None else float(grad_norm),
                "learning_rate": learning_rate,
            }

    def take_pending(self, control) -> dict:
        """What was pending, once; the control says that it is due."""
        pending, self.pending = self.pending, {}
        if pending:
            self.after_epoch_end = not pending["epoch_end"]
            control.should_log = False
            control.should_evaluate, control.should_save = pending["evaluate"], pending["save"]
        return pending


def _remembering(callbacks: Iterable) -> dict:
    return {type(part).__name__: part for part in callbacks if hasattr(part, "remember")}
