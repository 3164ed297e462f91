"""What a resumed run needs to equal an uninterrupted one, besides weights, optimizer, data and random states.

    >>> progress = RunProgress(take_up)
    >>> progress.described(state, control, loss_total=41.5, logged_step=10, callbacks=callbacks)     # -> progress.json

* The loss since the last log, the sum of losses behind `train_loss`, and the step of the last log.
* The seconds of training behind `train_runtime` and the rates beside it.
* The state of every callback that has one (`t5suite.Callback`).
* Whether training was over (early stopping, `--max_steps`): such a run trains no further step when resumed.
* What was pending. A run that is asked to stop does so at the end of a step, before an evaluation that is due there,
  or aborts an evaluation in progress. The resumed run evaluates first, as if it had not been interrupted. So it does
  where a checkpoint is of an epoch's last step: what happens at the epoch's end comes after the checkpoint.
"""

import time
from collections.abc import Callable, Iterable

from t5suite.training.callback import Callback, load_states, save_states
from t5suite.training.checkpoints.starts import Start


class RunProgress(Callback):
    """Saves a run's progress in every checkpoint, and restores it.

    Args:
      take_up: called with the trainer's control when training begins, before the other callbacks: the trainer's sums
        exist and are 0, and nothing has been logged yet.

    Attributes:
      pending: what is still to be done at the current step: an evaluation, the end of an epoch.
      after_epoch_end: whether the trainer has called `on_epoch_end` for this epoch.
      grad_norm, learning_rate: those of the last update, for its line in the log.
      loss_from_step: the step after which the sum of losses begins.
      seconds_before: seconds of the updates that earlier starts made and this one keeps.
      seconds_from_step: the step after which these seconds begin.
      seconds_elsewhere: how many of these seconds are another run's, from whose checkpoint this one began.
    """

    def __init__(self, take_up: Callable):
        self.take_up = take_up
        self.pending: dict = {}
        self.after_epoch_end = False
        self.grad_norm = None
        self.learning_rate: float | None = None
        self.loss_from_step = 0
        self.seconds_before = 0.0
        self.seconds_from_step = 0
        self.seconds_elsewhere = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a restart included."""
        return self.seconds_before + time.perf_counter() - self.started

    @property
    def seconds_of_this_run(self) -> float:
        """Seconds of training so far, without those of another run."""
        return self.seconds - self.seconds_elsewhere

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()
        self.take_up(control)

    def on_step_begin(self, args, state, control, **kwargs):
        self.after_epoch_end = False

    def on_epoch_end(self, args, state, control, **kwargs):
        """From here on, only an evaluation may follow in this epoch."""
        self.after_epoch_end = True

    def described(self, state, control, *, loss_total: float, logged_step: int, callbacks: Iterable) -> dict:
        """The progress as JSON values: the seconds are of this process, all else is the same on all ranks."""
        return {
            "loss_total": loss_total,
            "loss_from_step": self.loss_from_step,
            "seconds": round(self.seconds, 3),
            "seconds_from_step": self.seconds_from_step,
            "seconds_elsewhere": self.seconds_elsewhere,
            "logged_step": logged_step,
            "stopped": control.should_training_stop,
            "pending": self.pending or self._pending(state, control, evaluates=False, saves=False),
            "callbacks": save_states(callbacks),
        }

    def take_up_saved(self, start: Start, progress: dict | None, callbacks: Iterable) -> None:
        """Takes up a checkpoint's progress (`restoring.saved_progress`); None: there is none."""
        self.loss_from_step = start.step
        self.seconds_from_step = start.step
        if progress is not None:
            self.loss_from_step = progress["loss_from_step"]
            self._take_up_seconds(progress, start.of_this_run)
            self.pending = progress["pending"]
            load_states(callbacks, progress["callbacks"])

    def _take_up_seconds(self, progress: dict, of_this_run: bool) -> None:
        """Counts on from a checkpoint's seconds; one of an earlier version has none."""
        if "seconds" not in progress:
            return
        self.seconds_before = progress["seconds"]
        self.seconds_from_step = progress["seconds_from_step"]
        self.seconds_elsewhere = progress["seconds"]
        if of_this_run:
            self.seconds_elsewhere = progress.get("seconds_elsewhere", 0.0)

    def note_update(self, grad_norm, learning_rate: float | None) -> None:
        """Notes what the log says of the last update."""
        self.grad_norm = grad_norm
        self.learning_rate = learning_rate

    def note_pending(self, state, control) -> None:
        """Notes what the resumed run must do first; called before the checkpoint of a run that was asked to stop."""
        self.pending = self._pending(state, control, evaluates=control.should_evaluate, saves=control.should_save)

    def _pending(self, state, control, *, evaluates: bool, saves: bool) -> dict:
        """What follows a checkpoint at the step that it is of; empty if nothing does."""
        epoch_ends = not self.after_epoch_end and (state.epoch.is_integer() or control.should_training_stop)
        if not (evaluates or epoch_ends):
            return {}
        return {
            "evaluate": evaluates,
            "save": saves,
            "epoch_end": epoch_ends,
            # As text: JSON has no number for infinity, the norm of an update that fp16 has skipped.
            "grad_norm": None if self.grad_norm is None else str(float(self.grad_norm)),
            "learning_rate": self.learning_rate,
        }

    def take_pending(self, control) -> dict:
        """Returns and clears what was pending, its norm as a number; sets the control's flags accordingly."""
        pending = self.pending
        self.pending = {}
        if pending:
            if pending["grad_norm"] is not None:
                pending["grad_norm"] = float(pending["grad_norm"])
            self.after_epoch_end = not pending["epoch_end"]
            control.should_log = False
            control.should_evaluate = pending["evaluate"]
            control.should_save = pending["save"]
        return pending
