"""Which metrics an entry of the registry names, and the one number that they make.

>>> list(metric_functions({"metric_names": ["accuracy", "rouge"], "metric_to_optimize": "mcc"}))
['accuracy', 'rouge1', 'rouge2', 'rougeLsum', 'mcc']
"""

from collections.abc import Callable, Iterable, Mapping

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import closest, suggestion
from t5suite.constants import METRIC_GROUPS
from t5suite.tasks.evaluate_metrics import evaluate_names, is_evaluate_name
from t5suite.tasks.metrics import ERRORS, METRIC_ALIASES, METRICS, NUMBER_METRICS, SHIPPED_METRICS
from t5suite.tasks.targets import has_label_sets, value_kind

# Values beside the metrics that say how many texts could not be scored as they are.
RATES = ("invalid_rate", "truncated_rate")
# What a split has of which only the loss is evaluated; running text calls it nll.
LOSSES = {"loss", "nll"}
# What scores each kind of answer, for messages: those that need no further field of an entry.
METRICS_OF_ANSWERS = {
    "one label a row": ("accuracy", "f1", "f1_macro", "precision", "recall", "matthews_correlation"),
    "a label for every word": ("token_accuracy", "token_f1_macro", "span_f1"),
    "numbers": ("pearson", "spearman", "neg_mean_absolute_error"),
    "texts": ("exact_match", "rouge", "bleu", "chrf", "squad", "json_match"),
    "sets of labels": ("micro_f1", "macro_f1", "subset_accuracy"),
}
# The kinds of answers by `targets.value_kind`; texts may also be sets of labels.
KINDS_BY_VALUE = {
    "class": "one label a row",
    "labels": "a label for every word",
    "number": "numbers",
    "text": "texts",
}
KINDS_WITH_LABELS = ("one label a row", "a label for every word")
# Errors, of which the suite has one, negated so that higher is better.
NEAREST_METRICS = dict.fromkeys(("mae", "mse", "rmse", "l1", "l2"), "neg_mean_absolute_error")


def metric_choices() -> dict:
    """Everything that an entry may name as a metric, aside from metrics of `evaluate`; users may add to `METRICS`."""
    return {**METRICS, **METRIC_GROUPS, **METRIC_ALIASES}


def shipped_metric_choices() -> dict:
    """`metric_choices` without what users have added or replaced."""
    return {**SHIPPED_METRICS, **METRIC_GROUPS, **METRIC_ALIASES}


def kind_of_answers(entry: dict) -> str:
    """The kind of a task's answers, a key of `METRICS_OF_ANSWERS`.

    >>> kind_of_answers({"labels": None, "metric_names": ["micro_f1"]})
    'sets of labels'
    """
    if has_label_sets(entry):
        return "sets of labels"
    return KINDS_BY_VALUE[value_kind(entry)]


def check_entry_metric(metric: str, where: str, has_labels: bool) -> None:
    """Checks that an entry may name a metric.

    Args:
      where: the flag or field that names it.
      has_labels: whether answers are labels of a list; else they may be numbers, texts or sets.

    Raises:
      ConfigError: there is no such metric; names the closest, else those of these kinds of answers and of labels.
    """
    choices = metric_choices()
    if metric in choices:
        return
    if closest(metric, choices):
        raise ConfigError(f"{where}: unknown metric {metric!r}; {suggestion(metric, choices)}")
    nearest = ""
    if metric.lower() in NEAREST_METRICS:
        nearest = f" the nearest is {NEAREST_METRICS[metric.lower()]};"
    kinds = [kind for kind in METRICS_OF_ANSWERS if (kind in KINDS_WITH_LABELS) == has_labels]
    names = "; ".join(f"for {kind}: {', '.join(METRICS_OF_ANSWERS[kind])}" for kind in kinds)
    if not has_labels:
        names += f"; with a list of labels: {', '.join(METRICS_OF_ANSWERS['one label a row'])}"
    raise ConfigError(f"{where}: unknown metric {metric!r};{nearest} {names}")


def function_name(metric: str, entry: dict) -> str:
    """The name in our tables of a metric that the entry's `metric_functions` may have renamed.

    >>> function_name("rougeL", {"metric_functions": {"rougeL": "instruction_rougeL"}})
    'instruction_rougeL'
    """
    return (entry.get("metric_functions") or {}).get(metric, metric)


def metrics_by_reported_name(entry: dict) -> dict[str, str]:
    """The names in METRICS of the entry's metrics, by the names that results use.

    Groups are expanded, and the optimised metric is among them. Those of `evaluate` are not: they run the user's code
    (`evaluate_metrics`).

    >>> metrics_by_reported_name({"metric_names": ["accuracy"], "metric_to_optimize": "mcc"})
    {'accuracy': 'accuracy', 'mcc': 'matthews_correlation'}
    """
    names = []
    for metric in entry["metric_names"]:
        if not is_evaluate_name(metric):
            names.extend(METRIC_GROUPS.get(metric, [metric]))
    optimised = entry["metric_to_optimize"]
    if optimised not in (None, "average") and not is_value_of_evaluate(optimised, entry):
        names.extend(name for name in METRIC_GROUPS.get(optimised, [optimised]) if name not in names)
    renamed = {**METRIC_ALIASES, **(entry.get("metric_functions") or {})}
    return {name: renamed.get(name, name) for name in names}


def metric_functions(entry: dict) -> dict[str, Callable]:
    """The functions of `metrics_by_reported_name`, by the same names.

    >>> list(metric_functions({"metric_names": ["accuracy", "rouge"], "metric_to_optimize": "mcc"}))
    ['accuracy', 'rouge1', 'rouge2', 'rougeLsum', 'mcc']
    """
    return {name: METRICS[metric] for name, metric in metrics_by_reported_name(entry).items()}


def undefined_reason(metric: str) -> str:
    """Why a metric may not be a number.

    >>> undefined_reason("neg_mean_absolute_error"), undefined_reason("span_f1")
    ('an answer is nan or inf', 'not defined on these rows')
    """
    if metric in ERRORS:
        return "an answer is nan or inf"
    if metric in NUMBER_METRICS:
        return "all answers, or all targets, count as the same number, or an answer is nan or inf"
    return "not defined on these rows"


def undefined_notes(metrics: Iterable[str]) -> list[str]:
    """What is said below a table of metrics that are not numbers there, each reason once.

    >>> undefined_notes(["span_f1", "gender_parity", "span_f1"])
    ['span_f1, gender_parity: not a number (not defined on these rows)']
    """
    metrics_of_reason: dict[str, list[str]] = {}
    for metric in dict.fromkeys(metrics):
        metrics_of_reason.setdefault(undefined_reason(metric), []).append(metric)
    return [f"{', '.join(names)}: not a number ({reason})" for reason, names in metrics_of_reason.items()]


def is_value_of_evaluate(name: str, entry: dict) -> bool:
    """Whether `metric_to_optimize` can only be a value of one of the entry's metrics of `evaluate`."""
    return bool(evaluate_names(entry)) and function_name(name, entry) not in metric_choices()


def optimised_metrics(entry: dict) -> list[str]:
    """The metrics whose mean selects checkpoints; none of running text.

    >>> optimised_metrics(DATASET_VALS["glue"]["mrpc"])
    ['f1', 'accuracy']
    """
    name = entry["metric_to_optimize"]
    if name is None:
        return []
    if name == "average":
        metrics = list(metric_functions(entry))
        return [metric for metric in metrics if metric not in ERRORS] or metrics
    return METRIC_GROUPS.get(name, [name])


def is_number_an_error(entry: dict) -> bool:
    """Whether a task's one number is an error, in the targets' unit: it has no part in a mean of points.

    >>> is_number_an_error({"metric_names": ["neg_mean_absolute_error"], "metric_to_optimize": "average"})
    True
    """
    names = optimised_metrics(entry)
    return bool(names) and ERRORS.issuperset(names)


def tasks_in_points(entries: Mapping[str, dict]) -> list[str]:
    """The tasks whose numbers a mean is of: those without an error; all of them if each number is an error.

    >>> tasks_in_points({"rte": DATASET_VALS["glue"]["rte"], "price": {"metric_names": [...], ...}})
    ['rte']
    """
    names = [name for name, entry in entries.items() if not is_number_an_error(entry)]
    return names or list(entries)


def is_loss_alone(scores: Iterable[str]) -> bool:
    """Whether the names of a split's scores are those of a loss and of nothing else.

    >>> is_loss_alone({"nll": 3.2}), is_loss_alone({"accuracy": 70.0, "loss": 1.2}), is_loss_alone({})
    (True, False, False)
    """
    names = set(scores)
    return bool(names) and names <= LOSSES


def task_figure(scores: dict, entry: dict | None) -> float | None:
    """One number for a task from its results, in which None stands for NaN; rates are ignored.

    >>> task_figure({"f1": 80.0, "accuracy": 70.0, "invalid_rate": 0.0}, DATASET_VALS["glue"]["mrpc"])
    75.0
    """
    names = []
    if entry:
        names = [name for name in optimised_metrics(entry) if name in scores]
    if not names:
        names = [name for name in scores if name not in RATES]
    values = [scores[name] for name in names]
    if not values or None in values:
        return None
    return sum(values) / len(values)
