"""`Callback`: a Hugging Face `TrainerCallback` whose state checkpoints save, and that sees the run's last evaluation.

    >>> class CountEvaluations(t5suite.Callback):                   # --callbacks my_plug_ins:CountEvaluations
    ...     def __init__(self):
    ...         self.evaluations = 0
    ...
    ...     def on_evaluate(self, args, state, control, **kwargs):
    ...         self.evaluations += 1
    ...
    ...     def state_dict(self):
    ...         return {"evaluations": self.evaluations}
    ...
    ...     def load_state_dict(self, state_dict):
    ...         self.evaluations = state_dict["evaluations"]
    ...
    ...     def on_final(self, args, state, control, *, report, eval_sets, **kwargs):
    ...         print(f"{self.evaluations} evaluations; the final one: {report.selection:.2f}")

All callbacks of the suite are of this class. The trainer takes any `TrainerCallback`, also one that keeps its state by
transformers' `ExportableState`.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from transformers import TrainerCallback


class Callback(TrainerCallback):
    """Adds three hooks to `TrainerCallback`, which do nothing unless a subclass overrides them.

    A checkpoint keeps the state under the name of the class: a run may have one callback of each name.
    """

    def state_dict(self) -> dict:
        """What a checkpoint saves, as JSON values; called on all ranks while the checkpoint is written."""
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        """Restores a saved state when training begins, before `on_train_begin`; not called if none was saved."""

    def on_final(self, args, state, control, *, report, eval_sets, **kwargs) -> None:
        """Called on all ranks after the last evaluation of a run, which scores its final weights.

        Args:
          report: the `Report` of the scores.
          eval_sets: what was scored; `report.results` has an entry under the name of each.
        """


@runtime_checkable
class RememberingCallback(Protocol):
    """A plain `TrainerCallback` with the hooks for its state that plug-ins had before there was `Callback`."""

    def remember(self) -> dict: ...

    def recall(self, remembered: dict) -> None: ...


def save_states(callbacks: Iterable[TrainerCallback]) -> dict[str, dict]:
    """The states of the callbacks that keep one, by the name of their class."""
    states = {}
    for callback in callbacks:
        if isinstance(callback, Callback):
            if type(callback).state_dict is not Callback.state_dict:
                states[type(callback).__name__] = callback.state_dict()
        elif isinstance(callback, RememberingCallback):
            states[type(callback).__name__] = callback.remember()
    return states


def load_states(callbacks: Iterable[TrainerCallback], states: Mapping[str, dict]) -> None:
    """Restores what `save_states` has returned; callbacks without a saved state stay as they are."""
    for callback in callbacks:
        state = states.get(type(callback).__name__)
        if state is None:
            continue
        if isinstance(callback, Callback):
            callback.load_state_dict(state)
        elif isinstance(callback, RememberingCallback):
            callback.recall(state)


def names_of_suite_callbacks() -> set[str]:
    """The names of the suite's own callbacks, under which checkpoints keep their states."""
    names = set()
    classes = Callback.__subclasses__()
    while classes:
        callback_class = classes.pop()
        classes += callback_class.__subclasses__()
        if callback_class.__module__.partition(".")[0] == __name__.partition(".")[0]:
            names.add(callback_class.__name__)
    return names


def call_on_final(trainer, report, eval_sets) -> None:
    """Calls `on_final` of the trainer's callbacks, in their order."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, Callback):
            callback.on_final(trainer.args, trainer.state, trainer.control, report=report, eval_sets=eval_sets)
