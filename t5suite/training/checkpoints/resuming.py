"""What makes a resumed run equal an uninterrupted one beside weights, optimizer, data and random numbers.

    >>> class SuiteTrainer(ExactResume, Checkpointing, Seq2SeqTrainer): ...

* The loss since the last log, the sum that `train_loss` is made of, and where the last log stood.
* What callbacks remember: any that has `remember() -> dict` and `recall(dict)`.
* That training was over (early stopping, `--max_steps`): resumed, such a run trains no further step.
* What was pending. A request to stop is honoured at the end of a step, before the evaluation that may be due there, and
  an evaluation under way is given up; the resumed run does it first, as if nothing had happened.
"""

import logging
from pathlib import Path

from transformers import TrainerCallback

from t5suite.base.errors import Preempted
from t5suite.runs.directory import read_json
from t5suite.training.processes.signals import agree_to_stop

logger = logging.getLogger(__name__)

PROGRESS_FILE = "progress.json"
RANK_FILE = "rank-{rank}.json"


class ExactResume:
    """For a trainer with `Checkpointing`: progress goes into every checkpoint, and comes back from it.

    Attributes:
      resumed_from: the folder that training goes on from.
      pending: what is still to be done at the present step: an evaluation, the end of an epoch.
      after_epoch_end: whether the trainer has announced the end of the epoch.
      loss_from_step: the step after which the sum of losses begins.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.resumed_from = None
        self.pending = {}
        self.after_epoch_end = False
        self.loss_from_step = 0
        self.add_callback(RecallCallback(self))

    def train(self, resume_from_checkpoint=None, **kwargs):
        """Trains; a request to stop waits for the end of a step."""
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        with self.stop.phase("training"), self.stop.excusing_lost_ranks():
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def mean_loss(self) -> float:
        """`train_loss`: the mean over all steps of the run, those before a restart included."""
        return self._total_loss_scalar / max(self.state.global_step - self.loss_from_step, 1)

    # -----------------------------------------------------------------------------------------------------------------
    # Into a checkpoint and out of it

    def progress(self) -> dict:
        """What is the same on all ranks."""
        return {
            "loss_total": self._total_loss_scalar,
            "loss_from_step": self.loss_from_step,
            "logged_step": self._globalstep_last_logged,
            "stopped": self.control.should_training_stop,
            "pending": self.pending,
            "callbacks": {name: callback.remember() for name, callback in self._remembering().items()},
        }

    def rank_progress(self) -> dict:
        """What is this rank's own."""
        return {"loss_since_log": self._tr_loss.item()}

    def recall(self, control) -> None:
        """Takes up what the checkpoint says; the trainer has set its sums to 0 by now."""
        self.loss_from_step = self.state.global_step
        if self.resumed_from is None or not (self.resumed_from / PROGRESS_FILE).is_file():
            return
        progress = read_json(self.resumed_from / PROGRESS_FILE)
        self._tr_loss.fill_(self._loss_since_log(self.resumed_from))
        self._total_loss_scalar = progress["loss_total"]
        self.loss_from_step = progress["loss_from_step"]
        self._globalstep_last_logged = progress["logged_step"]
        self.pending = progress["pending"]
        control.should_training_stop = progress["stopped"]
        for name, callback in self._remembering().items():
            if name in progress["callbacks"]:
                callback.recall(progress["callbacks"][name])

    def _remembering(self) -> dict:
        return {type(part).__name__: part for part in self.callback_handler.callbacks if hasattr(part, "remember")}

    def _loss_since_log(self, folder: Path) -> float:
        """What this rank had added up; where the number of ranks has changed, the mean of what they had."""
        files = sorted(folder.glob(RANK_FILE.format(rank="*")))
        if len(files) == self.ranks.world_size:
            files = [folder / RANK_FILE.format(rank=self.ranks.rank)]
        return sum(read_json(path)["loss_since_log"] for path in files) / max(len(files), 1)

    # -----------------------------------------------------------------------------------------------------------------
    # Stopping, and what is done first after it

    def check_stop(self) -> None:
        """Between the batches of an evaluation: gives it up on all ranks alike if one was asked to stop.

        Raises:
          Preempted: one was.
        """
        if agree_to_stop(self.ranks, self.stop):
            step = self.state.global_step
            kept = f"checkpoint-{step}" if (Path(self.args.output_dir) / f"checkpoint-{step}").is_dir() else None
            raise self.stop.preempted(step or None, kept)

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, learning_rate=None, **kwargs) -> None:
        """What follows a step, unless the run is to stop: then the log that is due, one checkpoint, and the end."""
        # Within an epoch the update's own vote has said it (`updates.guard`); its end comes without one.
        if self.updates.stop_agreed or (self.after_epoch_end and agree_to_stop(self.ranks, self.stop)):
            self.stop.request()
            due = self.control.should_evaluate, self.control.should_save
            self.control.should_evaluate = self.control.should_save = False
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, learning_rate=learning_rate, **kwargs)
            self.control.should_evaluate, self.control.should_save = due
        else:
            try:
                super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, learning_rate=learning_rate, **kwargs)
                return
            except Preempted:
                # The evaluation was given up on all ranks; its flag and that of the save are still set.
                pass
        self._stop_here(grad_norm, learning_rate)

    def _stop_here(self, grad_norm, learning_rate) -> None:
        """Commits one checkpoint that knows what is pending, and ends the run."""
        control, step = self.control, self.state.global_step
        epoch_ends = not self.after_epoch_end and (self.state.epoch.is_integer() or control.should_training_stop)
        if control.should_evaluate or epoch_ends:
            self.pending = {
                "evaluate": control.should_evaluate,
                "save": control.should_save,
                "epoch_end": epoch_ends,
                "grad_norm": None if grad_norm is None else float(grad_norm),
                "learning_rate": learning_rate,
            }
        self._save_checkpoint(self.model_wrapped)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        raise self.stop.preempted(step, f"checkpoint-{step}")

    def _run_epoch(self, **kwargs) -> None:
        """Does what is pending first; a run that is over trains no step (transformers 5.23 would train one more)."""
        self._catch_up(kwargs["trial"], kwargs["epoch"], kwargs["ignore_keys_for_eval"], kwargs["start_time"])
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        if self.resumed_from and kwargs["epoch"] == kwargs["epochs_trained"] and not self.args.ignore_data_skip:
            # The trainer would have all batches of the epoch so far made, only to throw them away.
            kwargs["train_dataloader"].batch_sampler.pass_over(kwargs["steps_trained_in_current_epoch"])
        super()._run_epoch(**kwargs)

    def _finalize_training(self, trial, num_train_samples, start_time):
        """A run whose last step was done when it was stopped has no epoch left that would do what is pending."""
        self._catch_up(trial, self.state.epoch, None, start_time)
        return super()._finalize_training(trial, num_train_samples, start_time)

    def _catch_up(self, trial, epoch, ignore_keys_for_eval, start_time) -> None:
        pending, self.pending = self.pending, {}
        if not pending:
            return
        logger.info("step %d: what was pending when the run was stopped is done first", self.state.global_step)
        # The trainer restores random numbers with the first batch; a checkpoint that is written here has them, too.
        self._load_rng_state(str(self.resumed_from))
        rest = trial, epoch, ignore_keys_for_eval, start_time
        follow = lambda: self._maybe_log_save_evaluate(
            self._tr_loss, pending["grad_norm"], self.model_wrapped, *rest, learning_rate=pending["learning_rate"]
        )
        self.after_epoch_end = not pending["epoch_end"]
        self.control.should_log = False
        self.control.should_evaluate, self.control.should_save = pending["evaluate"], pending["save"]
        follow()
        if pending["epoch_end"]:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            follow()


class RecallCallback(TrainerCallback):
    """Has the trainer recall its progress before other callbacks begin, and tells it where in an epoch it is."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """The trainer's sums are there, and nothing has been logged yet."""
        self.trainer.recall(control)

    def on_step_begin(self, args, state, control, **kwargs):
        """In the middle of an epoch."""
        self.trainer.after_epoch_end = False

    def on_epoch_end(self, args, state, control, **kwargs):
        """Nothing but an evaluation may follow in this epoch."""
        self.trainer.after_epoch_end = True
