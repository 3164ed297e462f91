"""The metrics of the user's own code that a run was scored by: its manifest names them, and only a flag runs them.

>>> own_metrics_of_model("runs/orders", ["orders"])        # --metrics exact_match,order_metrics:field_share
[OwnMetric(name='order_metrics:field_share', word='order_metrics:field_share')]
"""

import shlex
from collections.abc import Collection, Iterable
from typing import NamedTuple

from t5suite.runs.trained_splits import manifest_of_model
from t5suite.tasks.evaluate_metrics import evaluate_names


class OwnMetric(NamedTuple):
    """A function, or a metric of `evaluate`.

    Attributes:
      name: of its code, as manifests have it.
      word: what names it in `--metrics`; None if it was given in Python.
    """

    name: str
    word: str | None


def own_metrics_of_model(name: str | None, task_names: Collection[str]) -> list[OwnMetric]:
    """The functions and the metrics of `evaluate` by which the run of a model was scored on these tasks.

    Args:
      name: as `run_of_model` takes it; anything else than a run has none that are known here.
      task_names: where the run has none of them, as for other files of your own, all of its tasks count.
    """
    manifest = manifest_of_model(name)
    if manifest is None:
        return []
    settings = manifest["settings"]
    plug_ins = (settings.get("plug_ins") or {}).get("metrics", [])
    words = [word.strip() for word in (settings.get("metrics") or "").split(",") if ":" in word]
    words += [None] * len(plug_ins)  # those of Python come after those of the flag
    metrics = [OwnMetric(plug_in["name"], word) for plug_in, word in zip(plug_ins, words, strict=False)]
    entries = manifest.get("tasks") or {}
    entries_of_tasks = [entries[task_name] for task_name in task_names if task_name in entries]
    for entry in entries_of_tasks or entries.values():
        metrics += [OwnMetric(metric, metric) for metric in evaluate_names(entry)]
    return list(dict.fromkeys(metrics))


def metrics_flag(metrics: Iterable[OwnMetric]) -> str:
    """The flag that names metrics, as a shell takes it; empty if all were given in Python.

    >>> metrics_flag([OwnMetric("order_metrics:field_share", "order_metrics:field_share")])
    '--metrics order_metrics:field_share'
    """
    words = [metric.word for metric in metrics if metric.word is not None]
    return shlex.join(["--metrics", ",".join(words)]) if words else ""


def way_in_python(metrics: Iterable[OwnMetric]) -> str:
    """How metrics are computed that were given in Python, which no flag can name; empty if there are none.

    >>> way_in_python([OwnMetric("__main__:field_share", None)])
    '; FineTuner(metrics=[...]) computes __main__:field_share, and --metrics module:function what stands in a file'
    """
    names = [metric.name for metric in metrics if metric.word is None]
    if not names:
        return ""
    return (
        f"; FineTuner(metrics=[...]) computes {' and '.join(names)}, and --metrics module:function what stands in a "
        "file"
    )
