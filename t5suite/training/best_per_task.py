"""`--select per_task`: each task's best step, and its weights at that step.

>>> best = BestPerTaskCallback(run_dir, lambda: trainer.last_report, trainer.save_best_of_task)
>>> best.best
{'rte': {'step': 400, 'value': 71.5}}
>>> best.folder("rte")
PosixPath('runs/x/best/rte')
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from t5suite.base.errors import CheckpointError
from t5suite.runs.directory import BEST_FOLDER, run_id_of
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.manifests import Manifest, damage

logger = logging.getLogger(__name__)


class BestPerTaskCallback(Callback):
    """Remembers each task's best step (the earliest on a tie), and saves its weights if asked to.

    Args:
      report_of: returns the report of the latest evaluation.
      save_weights: a function folder -> None that saves the model with a manifest, or None to keep no weights.

    Attributes:
      best: by task, `{"step", "value"}` of its best evaluation, and `equal_steps` if later ones were as good.
    """

    def __init__(self, directory, report_of: Callable, save_weights: Callable[[Path], None] | None = None):
        self.directory = Path(directory)
        self.report_of = report_of
        self.save_weights = save_weights
        self.best: dict[str, dict] = {}

    def folder(self, task: str) -> Path:
        """The folder of a task's best weights."""
        return self.directory / BEST_FOLDER / task

    def on_evaluate(self, args, state, control, **kwargs):
        """Notes the tasks that have become better, and saves their weights; not before the first update."""
        if state.global_step == 0:
            return
        for task, value in self.report_of().by_task.items():
            if self._is_better(task, value):
                self.best[task] = {"step": state.global_step, "value": value}
                if self.save_weights:
                    self.save_weights(self.folder(task))
            else:
                self._note_if_equal(task, value, state.global_step)

    def _is_better(self, task: str, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return task not in self.best or value > self.best[task]["value"]

    def _note_if_equal(self, task: str, value: float, step: int) -> None:
        best = self.best.get(task)
        if best is None or value != best["value"]:
            return
        equal_steps = best.get("equal_steps", [])
        if step not in (best["step"], *equal_steps):
            best["equal_steps"] = [*equal_steps, step]

    def state_dict(self) -> dict:
        """The best steps so far, and whether this run has their weights."""
        return {"best": self.best, "run_id": run_id_of(self.directory), "keeps_weights": bool(self.save_weights)}

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes up the best steps of the checkpoint that a run resumes from, unless their weights were never here.

        Raises:
          CheckpointError: the weights of a best step are missing or damaged.
        """
        is_of_earlier_version = not isinstance(state_dict.get("keeps_weights"), bool)
        if is_of_earlier_version:  # it was the best steps alone
            self.best = state_dict
        else:
            self.best = state_dict["best"]
        if not self.save_weights:
            return
        if not is_of_earlier_version and self.best and not self._has_weights(state_dict):
            logger.warning(
                "--select per_task: the weights of the best steps so far are not in %s; each task's best is chosen "
                "among the evaluations from here on",
                self.directory,
            )
            self.best = {}
        for task, best in self.best.items():
            self.check_undamaged(task, best["step"])

    def _has_weights(self, state_dict: dict) -> bool:
        """Whether the run that wrote a state kept the weights of its best steps, in this directory."""
        return state_dict["keeps_weights"] and state_dict["run_id"] == run_id_of(self.directory)

    def check_weights(self, task: str) -> None:
        """Refuses to score a task with other weights than those of its best step.

        Raises:
          CheckpointError: they are missing, damaged, or of another step; with the way out.
        """
        step = self.best[task]["step"]
        self.check_undamaged(task, step)
        saved_step = Manifest.read(self.folder(task)).step
        if saved_step != step:  # a former process went further, and this one has found no better step after `step`
            self._refuse(task, step, f"were replaced by those of step {saved_step}")

    def check_undamaged(self, task: str, step: int) -> None:
        """Refuses a task whose best weights are missing, or have changed since they were written.

        Raises:
          CheckpointError: with the way out.
        """
        reason = damage(self.folder(task))
        if reason and self.folder(task).is_dir():
            self._refuse(task, step, f"are damaged: {reason}")
        elif reason:
            self._refuse(task, step, "are missing")

    def _refuse(self, task: str, step: int, problem: str) -> NoReturn:
        raise CheckpointError(
            f"--select per_task: {self.folder(task)}: the weights of step {step}, the best of {task}, {problem}; bring "
            "back a copy of them; or take one checkpoint for all tasks: --select average --allow_changed select; or "
            "start anew with another --output_dir"
        )
