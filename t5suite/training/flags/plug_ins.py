"""The flags for the user's own functions and callbacks: `module:Name`.

    >>> arguments = PlugInArguments(batch_transform="my_data:hide_words", callbacks="my_callbacks:Announce")
    >>> arguments.batch_transform
    'my_data:hide_words'

Only flags can set them: nothing in a checkpoint or a task card makes code run.
"""

from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object
from t5suite.models.own_models import find_user_class
from t5suite.tasks.evaluate_metrics import is_evaluate_name, load_evaluate_metric
from t5suite.training.flags.fields import facts, flag
from t5suite.training.plug_ins import PlugIns, check_callbacks


@dataclass
class TrainingPlugIns:
    """Your own functions and callbacks that both scripts accept (importing a module runs it)."""

    shared_facts = facts(theme="plug-ins")

    batch_transform: str | None = flag(
        None, "module:function, batch {name: tensor} -> another training batch.", needs="training"
    )
    callbacks: str | None = flag(None, "TrainerCallbacks: module:Class,module:Class.", needs="training")


@dataclass
class PlugInArguments(TrainingPlugIns):
    """Your own functions and callbacks (importing a module runs it)."""

    batch_metrics: str | None = flag(None, "module:function, (outputs, batch) -> {name: tensor}.", needs="training")


def plug_ins_of(
    flags: TrainingPlugIns, metrics: str | None = None, model_class: str | None = None, trust_remote_code: bool = False
) -> PlugIns:
    """The functions and callbacks that the flags name.

    Args:
      metrics: `--metrics`; words with a colon are functions, or metrics of `evaluate`.
      model_class: `--model_class`.

    Raises:
      ConfigError: no such module, no such name in it, the wrong kind of object for the flag, or a metric of the hub
        without `trust_remote_code`.
    """
    specs = [spec.strip() for spec in (flags.callbacks or "").split(",") if spec.strip()]
    places = [f"--callbacks {spec}" for spec in specs]
    return PlugIns(
        batch_transform=load_function(flags.batch_transform, "--batch_transform"),
        batch_metrics=load_function(getattr(flags, "batch_metrics", None), "--batch_metrics"),
        metrics=tuple(load_metric(spec, trust_remote_code) for spec in named_metric_functions(metrics)),
        callbacks=check_callbacks([load_object(spec, "--callbacks") for spec in specs], places),
        model_class=None if model_class is None else find_user_class(model_class).model_class,
    )


def load_metric(spec: str, trust_remote_code: bool = False):
    """A function of `--metrics`, or a metric of `evaluate`."""
    if is_evaluate_name(spec):
        return load_evaluate_metric(spec, trust_remote_code, "--metrics")
    return load_function(spec, "--metrics")


def load_function(spec: str | None, flag: str):
    """The function that `module:function` names; None for None.

    Raises:
      ConfigError: it is not a function.
    """
    if spec is None:
        return None
    function = load_object(spec, flag)
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"{flag} {spec}: a {type(function).__name__}, not a function")
    return function


def named_metric_functions(metrics: str | None) -> list[str]:
    """The words of `--metrics` that name functions or metrics of `evaluate`.

    >>> named_metric_functions("accuracy,my_metrics:length_match")
    ['my_metrics:length_match']
    """
    return [word.strip() for word in (metrics or "").split(",") if ":" in word]


def named_metrics(metrics: str | None) -> str | None:
    """`--metrics` without functions; None if nothing is left.

    >>> named_metrics("accuracy,my_metrics:length_match")
    'accuracy'
    """
    words = [word for word in (metrics or "").split(",") if word.strip() and ":" not in word]
    return ",".join(words) or None
