"""Functions and callbacks of the user's own that take part in a run.

>>> def shorter(batch): return {**batch, "labels": batch["labels"][:, :8]}
>>> plug_ins = PlugIns(batch_transform=shorter, callbacks=(PatienceWithWarmUp(),))
>>> trainer, rates = make_trainer(model, tokenizer, args, data, mixing, plug_ins=plug_ins)

| what | is given | gives |
|---|---|---|
| `batch_transform` | a collated batch `{name: tensor}` | the batch that the model is trained on |
| `batch_metrics` | the model's outputs, the batch | `{name: tensor}`, logged as `train/<name>` |
| `metrics` | predictions, targets (texts), and `rows=` where asked for | `{name: points}`, more being better |
| `callbacks` | | instances of transformers' `TrainerCallback` |

As flags they are `module:Name` (`flags.plug_ins`). A module is found as `import` finds it, and importing it runs it:
only what the user names is imported, nothing that a checkpoint says.
"""

import hashlib
import inspect
from collections.abc import Callable
from typing import NamedTuple

from transformers import TrainerCallback

from t5suite.base.errors import ConfigError


class PlugIns(NamedTuple):
    """What the user adds to a run; nothing by default.

    Attributes:
      batch_transform: see `plug_ins.batches`.
      transforms_evaluation: whether evaluation's batches go through `batch_transform`, too.
      batch_metrics, metrics: see `plug_ins.metrics`.
      callbacks: added behind the suite's own; `remember() -> dict` and `recall(dict)` carry state over a restart.
      model_class: what `--model_class` names, only to be written down.
    """

    batch_transform: Callable | None = None
    transforms_evaluation: bool = False
    batch_metrics: Callable | None = None
    metrics: tuple[Callable, ...] = ()
    callbacks: tuple[TrainerCallback, ...] = ()
    model_class: type | None = None

    @property
    def described(self) -> dict[str, list[dict]]:
        """What the manifest says of them, by subject: names, and the SHA-256 of the files that they stand in.

        >>> PlugIns(batch_transform=shorter).described
        {'batch_transform': [{'name': 'my_data:shorter', 'sha256': '9f86...'}]}
        """
        found = {
            "batch_transform": [self.batch_transform],
            "batch_metrics": [self.batch_metrics],
            "metrics": self.metrics,
            "callbacks": self.callbacks,
            "model_class": [self.model_class],
        }
        kept = {subject: [part for part in parts if part is not None] for subject, parts in found.items()}
        return {subject: [describe_object(part) for part in parts] for subject, parts in kept.items() if parts}


def describe_object(thing) -> dict[str, str | None]:
    """A function, class or instance by name, and the SHA-256 of its file; None where it stands in none (a notebook).

    >>> describe_object(collections.OrderedDict)["name"]
    'collections:OrderedDict'
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        digest = file_digest(inspect.getsourcefile(named))
    except (TypeError, OSError):
        digest = None
    return {"name": f"{named.__module__}:{named.__qualname__}", "sha256": digest}


def file_digest(path) -> str:
    """A file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def check_callbacks(callbacks, places: list[str] | None = None) -> tuple[TrainerCallback, ...]:
    """Callbacks, each an instance of `TrainerCallback`; classes are called without arguments.

    Args:
      places: where each was named, for errors.

    Raises:
      ConfigError: one is none, or two have one class, whose states a checkpoint could not tell apart.
    """
    made = []
    for i, given in enumerate(callbacks):
        place = places[i] if places else f"callbacks[{i}]"
        if isinstance(given, type):
            try:
                given = given()
            except TypeError as error:
                raise ConfigError(f"{place}: it must be made without arguments ({error})") from None
        if not isinstance(given, TrainerCallback):
            raise ConfigError(f"{place}: a {type(given).__name__}, which is no transformers.TrainerCallback")
        if type(given).__name__ in [type(other).__name__ for other in made]:
            raise ConfigError(f"{place}: there are two callbacks of class {type(given).__name__}")
        made.append(given)
    return tuple(made)


def add_plug_in_callbacks(trainer, callbacks) -> None:
    """Adds them to a trainer, behind its own.

    Raises:
      ConfigError: one has the name of a callback of the suite that a checkpoint remembers.
    """
    taken = {type(part).__name__ for part in trainer.callback_handler.callbacks if hasattr(part, "remember")}
    for callback in check_callbacks(callbacks):
        if type(callback).__name__ in taken:
            raise ConfigError(f"--callbacks: {type(callback).__name__} is the suite's own; give the class another name")
        trainer.add_callback(callback)


NO_PLUG_INS = PlugIns()
