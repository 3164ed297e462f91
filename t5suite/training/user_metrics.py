"""`--metrics`: the user's functions and metrics of `evaluate`, bound to every set that is scored, and tried on targets.

>>> add_metrics(data, [positive_share])                 # positive_share(predictions, targets) -> {name: number}
>>> data.eval_sets[0].compute_metrics(prediction)
{'accuracy': 91.2, 'invalid_rate': 0.0, 'positive_share': 48.0}
"""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.tasks.entry_metrics import RATES, metric_functions, optimised_metrics
from t5suite.tasks.evaluate_metrics import EvaluateMetric, evaluate_names, is_single_number
from t5suite.training.own_metrics import metrics_flag, own_metrics_of_model, way_in_python
from t5suite.training.plug_in_descriptions import describe_object

logger = logging.getLogger(__name__)

NO_LABEL = ""  # an answer that is no label of any task
# Values of `--metric_for_best_model` that leave the choice to the tasks.
NOT_BY_NAME = (None, "loss", "average", "selection")
# What an evaluation reports beside its metrics: a function's value of such a name would be overwritten.
REPORTED_BESIDE = ("loss", "average", *RATES)


def add_metrics(data, functions, selecting_metric: str | None = None) -> None:
    """Binds `metrics` functions to every labelled set of `data`; first tries them on the targets.

    Args:
      selecting_metric: the metric that selects checkpoints, by `--metric_for_best_model`; None or the tasks' own names
        leave it to the tasks.

    Raises:
      ConfigError: a function returns no numbers, or those of another metric's name, or no metric is named so.
    """
    if selecting_metric is not None:
        selecting_metric = selecting_metric.removeprefix("eval_").removeprefix("eval/")
    for eval_set in scored_sets(data):
        scores = [bound_metrics(function, eval_set) for function in functions]
        task_names = list(metric_functions(eval_set.task.entry))
        names: list[str] = []
        for function, score in zip(functions, scores, strict=True):
            if isinstance(function, EvaluateMetric):
                tried_scores = try_on_targets(score, eval_set)
            else:
                tried_scores = score([example.targets for example in eval_set.examples])
            check_new_names(tried_scores, [*task_names, *names])
            names += tried_scores
        eval_set.compute_metrics = joined_metrics(eval_set.compute_metrics, scores)
        if selecting_metric in names:
            eval_set.selected_by = selecting_metric
        elif selecting_metric not in NOT_BY_NAME:
            check_metric_name(selecting_metric, eval_set.task, names)


def warn_of_metrics_left_out(data, functions, model_name: str | None, card) -> None:
    """Warns of metrics of the user's own that the run of a model had and this run has not: code runs only where named.

    Args:
      card: what the model was trained for, where it is only scored.
    """
    tasks = [eval_set.task for eval_set in scored_sets(data)]
    if card is None or not any(map(card.was_trained_on, tasks)):
        return
    names = [describe_object(function)["name"] for function in functions]
    for task in tasks:
        names += evaluate_names(task.entry)
    metrics_of_model = own_metrics_of_model(model_name, [task.name for task in tasks])
    left_out = [metric for metric in metrics_of_model if metric.name not in names]
    if left_out:
        flag = metrics_flag(left_out)
        logger.warning(
            "%s was also scored by %s, which this run does not compute: your own code runs only where you name it%s%s",
            model_name,
            " and ".join(metric.name for metric in left_out),
            f"; add {flag}" if flag else "",
            way_in_python(left_out),
        )


def check_new_names(names: Iterable[str], earlier_names: Collection[str]) -> None:
    """Refuses a metric of a name that another one has."""
    for name in sorted(names):
        if name in earlier_names:
            raise ConfigError(f"--metrics: there are two metrics {name!r}; give one of them another name")


def check_metric_name(name: str, task, user_names: list[str]) -> None:
    """Refuses a metric that is neither the task's nor the user's."""
    try:
        task.with_metric_to_optimize(name)
    except ConfigError:
        choices = [*user_names, *task.entry["metric_names"], "loss", "average"]
        raise ConfigError(f"--metric_for_best_model: no metric {name!r}; {suggestion(name, choices)}") from None


def try_evaluate_metrics(data) -> None:
    """Scores the targets themselves by the metrics of `evaluate` that tasks name: a broken one shows before training.

    Raises:
      ConfigError: one fails, or returns no value of the name that selects checkpoints.
    """
    for eval_set in scored_sets(data):
        task = eval_set.task
        if not evaluate_names(task.entry):
            continue
        scores = try_on_targets(functools.partial(task.score, eval_set.rows, split=eval_set.role), eval_set)
        selected_by = task.entry["metric_to_optimize"]
        if not set(optimised_metrics(task.entry)) & set(scores):
            raise ConfigError(f"{eval_set.name}: no metric {selected_by!r}; {suggestion(selected_by, scores)}")


def try_on_targets(score: Callable[[list[str]], dict], eval_set) -> dict[str, float]:
    """The scores of a set's targets, taken as answers; a model may also write what is no label, which is tried, too.

    Raises:
      ConfigError: a metric fails.
    """
    targets = [example.targets for example in eval_set.examples]
    scores = score(targets)
    if eval_set.task.value_kind == "class" and eval_set.method == "generate":
        try:
            score([NO_LABEL, *targets[1:]])
        except ConfigError as error:
            raise ConfigError(
                f"{error}. It fails on an answer that is no label, which it gets as -1: let compute() take it, or "
                "choose among the labels with --eval_method score"
            ) from None
    return scores


def scored_sets(data) -> list:
    """The labelled sets whose answers are scored, each once."""
    sets = {}
    for eval_set in [*data.scored, *data.selecting]:
        if eval_set.labelled and eval_set.method != "loss":
            sets[id(eval_set)] = eval_set
    return list(sets.values())


def joined_metrics(task_metrics: Callable, functions: list[Callable]) -> Callable:
    """The task's own metrics and those of functions, in one dict."""

    def compute(prediction) -> dict[str, float]:
        metrics = task_metrics(prediction)
        for function in functions:
            user_metrics = function(prediction.predictions)
            check_new_names(user_metrics, metrics)
            metrics = {**metrics, **user_metrics}
        return metrics

    return compute


def bound_metrics(function: Callable, eval_set) -> Callable:
    """Predictions of a set's examples -> the function's numbers, checked."""
    if isinstance(function, EvaluateMetric):
        return _evaluate_points(function, eval_set)
    targets = [example.targets for example in eval_set.examples]
    name = getattr(function, "__name__", type(function).__name__)
    rows = {}
    with contextlib.suppress(ValueError):  # a builtin has no signature
        if "rows" in inspect.signature(function).parameters:
            rows = {"rows": [row for row, _ in eval_set.example_set.pairs()]}

    def points(predictions) -> dict[str, float]:
        metrics = function(list(predictions), list(targets), **rows)
        check_points(metrics, name)
        return {metric: float(value) for metric, value in metrics.items()}

    return points


def check_points(metrics, name: str) -> None:
    """Refuses what a function of `--metrics` returned unless it is `{name: number}`, by names that are free."""
    if not isinstance(metrics, dict):
        raise ConfigError(f"--metrics {name}: it returned {metrics!r:.80}, not {{name: number}}")
    for metric, value in metrics.items():
        if metric in REPORTED_BESIDE:
            raise ConfigError(
                f"--metrics {name}: an evaluation has its own {metric!r} ({', '.join(REPORTED_BESIDE)}); "
                "give yours another name"
            )
        is_name = isinstance(metric, str) and "/" not in metric
        if not (is_name and is_single_number(value)):
            raise ConfigError(f"--metrics {name}: {metric!r}: {value!r:.80} is not a metric's name and number")


def _evaluate_points(metric: EvaluateMetric, eval_set) -> Callable:
    """Predictions of a set's examples -> the metric's values; it sees what the task's own metrics see."""

    def points(predictions) -> dict[str, float]:
        judged = eval_set.task.judged(eval_set.example_set, predictions)
        return metric(judged.predictions, judged.references)

    return points
