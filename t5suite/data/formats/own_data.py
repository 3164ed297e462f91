"""A user's rows and what the flags say of them -> a task like any other, and the source of its rows.

    >>> form = Form(source, Columns(("text",), "label"), {"text_column_name": "text", "label_column_name": "label"})
    >>> own_data("reviews", form, Wishes(labels=("bad", "good"))).task.entry["metric_names"]
    ['accuracy']

Such tasks belong to the benchmark `own`. Their entries are plain data, so that evaluation, results, predictions and
everything else treat them as it does shipped ones.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import check_name
from t5suite.data.formats.rows import Columns, RowSource
from t5suite.data.formats.sources import HeldOutRows
from t5suite.tasks.entries import check_entry
from t5suite.tasks.registry import Task
from t5suite.tasks.templates import INPUT, OUTPUT, check_template

logger = logging.getLogger(__name__)

OWN_BENCHMARK = "own"
DEFAULT_VALIDATION_SHARE = 0.05
DEFAULT_METRICS = {True: ["accuracy"], False: ["exact_match", "rouge"]}


class Form(NamedTuple):
    """Where rows of one kind come from, what is read of them, and the fields of the entry that say how."""

    source: RowSource
    columns: Columns
    entry: dict


@dataclass(frozen=True)
class Wishes:
    """What the flags say of one data set; None where they say nothing.

    Attributes:
      validation_share: part of the training rows that validates where there is no such split (None: the default).
      evaluates: no rows are held out where nothing is evaluated.
      seed: decides which rows are held out.
    """

    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    input_format: str | None = None
    output_format: str | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    validation_share: float | None = None
    evaluates: bool = True
    seed: int = 42


class OwnData(NamedTuple):
    """A task made from flags, and the source of its rows."""

    task: Task
    source: RowSource


def own_data(name: str, form: Form, wishes: Wishes) -> OwnData:
    """The task of a data set, and its rows, with a part held out for validation where it needs one.

    Raises:
      ConfigError: a name that cannot be part of a path, a metric that there is not, a template without its place.
    """
    check_name(name, "data set", "--dataset_name")
    source = _with_validation(name, form, wishes)
    entry = own_entry(form.entry, wishes) | {"splits": {role: role for role in source.roles}}
    check_entry(f"{OWN_BENCHMARK}/{name}", entry)
    return OwnData(Task(OWN_BENCHMARK, name, entry), source)


def own_entry(fields: dict, wishes: Wishes) -> dict:
    """A registry entry: the form's fields over those of free text, the user's wishes over both.

    >>> own_entry({}, Wishes(metrics=("bleu",)))["metric_to_optimize"]
    'bleu'
    """
    entry = {
        "prefix": "",
        "text_column_name": "input",
        "label_column_name": "output",
        "labels": None,
        "metric_names": None,
        "metric_to_optimize": None,
        **fields,
    }
    if wishes.labels is not None:
        entry["labels"] = list(wishes.labels)
        if fields.get("labels") is None:
            entry["metric_names"] = None  # the form's are for free text
    if wishes.metrics is not None:
        entry["metric_names"] = list(wishes.metrics)
    if entry["metric_names"] is None:
        entry["metric_names"] = list(DEFAULT_METRICS[entry["labels"] is not None])
    if wishes.metrics is not None or entry["metric_to_optimize"] not in ("average", *entry["metric_names"]):
        entry["metric_to_optimize"] = _optimised(entry["metric_names"])
    for key, place in (("input_format", INPUT), ("output_format", OUTPUT)):
        template = getattr(wishes, key)
        if template is not None:
            check_template(template, place, f"--{key}")
            entry[key] = None if template == place else template
    for key in ("max_input_tokens", "max_output_tokens"):
        if getattr(wishes, key) is not None:
            entry[key] = getattr(wishes, key)
    return {key: value for key, value in entry.items() if value is not None or key in _NEEDED}


_NEEDED = ("labels", "metric_to_optimize")


def _optimised(metrics: list[str]) -> str | None:
    """One metric selects checkpoints by itself, several by their mean; rouge and squad are several."""
    if not metrics:
        return None
    return metrics[0] if len(metrics) == 1 and metrics[0] not in ("rouge", "squad") else "average"


def _with_validation(name: str, form: Form, wishes: Wishes) -> RowSource:
    source, share = form.source, wishes.validation_share
    if "validation" in source.roles or "train" not in source.roles or not wishes.evaluates:
        if share is not None:
            why = f"{name} has validation rows" if wishes.evaluates else "nothing is evaluated (--eval_strategy no)"
            logger.warning("--validation_split %s has no effect: %s", share, why)
        elif not wishes.evaluates and "validation" not in source.roles:
            logger.info("%s: no training rows are kept for validation, since nothing is evaluated", name)
        return source
    if share is not None and not 0 < share < 1:
        raise ConfigError(f"--validation_split {share}: a share of the training rows, more than 0 and less than 1")
    if share is None:
        logger.info("%s has no validation rows: %d%% of its training rows are kept for that (--validation_split)",
                    name, round(100 * DEFAULT_VALIDATION_SHARE))  # fmt: skip
    return HeldOutRows(source, form.columns, share or DEFAULT_VALIDATION_SHARE, wishes.seed)


def distinct_names(names: list[str]) -> list[str]:
    """The names, those that come again numbered.

    >>> distinct_names(["x", "y", "x"])
    ['x', 'y', 'x-2']
    """
    found: list[str] = []
    for name in names:
        count, chosen = 1, name
        while chosen in found:
            count += 1
            chosen = f"{name}-{count}"
        found.append(chosen)
    return found
