"""Published scores of the original T5, and which of its sizes a model has.

>>> published_score("glue", "mrpc", "f1", "base"), published_average("glue", "base")
(90.7, 83.23)
>>> published_size({"class": "T5ForConditionalGeneration", "parameters": 247577856})
'base'

They are those of the leaderboards' test sets (arXiv:1910.10683, table 14); `published_scores.json` says where each
comes from.
"""

import functools
import json
from pathlib import Path

SIZES = ("small", "base", "large", "3B", "11B")
# Millions of parameters of v1.0 and v1.1.
MILLIONS = {"small": (60.5, 77.0), "base": (222.9, 247.6), "large": (737.7, 783.2), "3B": (2851.6, 2849.8),
            "11B": (11307.3, 11135.3)}  # fmt: skip
# An adapter, or a few more pieces, adds less than a twentieth.
LARGEST_ADDITION = 1.05
# MILLIONS are rounded: a model may have a thousandth less.
ROUNDING = 0.001


@functools.cache
def published_scores() -> dict:
    """The whole table."""
    return json.loads((Path(__file__).parent / "published_scores.json").read_text(encoding="utf-8"))


def has_published_scores(benchmark: str | None) -> bool:
    """Whether any of a benchmark's tasks has published scores."""
    return benchmark in published_scores()["test"]


def published_score(benchmark: str | None, task: str, metric: str, size: str | None) -> float | None:
    """Points of the T5 of that size; None where none were published.

    Args:
      task: as results name it, such as `mnli_matched`; a test split's `.test` is ignored.
    """
    tasks = published_scores()["test"].get(benchmark, {})
    task_scores = tasks.get(task.removesuffix(".test"), {})
    return _of_size(task_scores.get(metric), size)


def published_average(benchmark: str | None, size: str | None) -> float | None:
    """The benchmark's published average of that size, over the tasks that our average is over."""
    return _of_size(published_scores()["averages"].get(benchmark), size)


def _of_size(points_by_size: list | None, size: str | None) -> float | None:
    if not points_by_size or size not in SIZES:
        return None
    return points_by_size[SIZES.index(size)]


def published_size(model: dict) -> str | None:
    """The published size that a T5 has, by its number of parameters.

    >>> published_size({"class": "T5ForConditionalGeneration", "parameters": 247577856})
    'base'
    >>> published_size({"class": "MT5Model", "parameters": 247577856})    # None

    Args:
      model: the manifest's entry.
    """
    if model.get("class") != "T5ForConditionalGeneration":
        return None
    millions = (model.get("parameters") or 0) / 1e6
    for size, published in MILLIONS.items():
        ratios = [millions / count + ROUNDING for count in published]
        if any(1 <= ratio < LARGEST_ADDITION for ratio in ratios):
            return size
    return None
