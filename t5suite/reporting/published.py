"""T5's published scores, beside which a run's own stand.

>>> published_score("glue", "mrpc", "f1", "base"), published_average("super_glue", "base")
(90.7, 76.2)

They are scores on the leaderboards' test sets (arXiv:1910.10683, table 14), not on validation rows; the file
`published_scores.json` says where each comes from.
"""

import functools
import json
import re
from pathlib import Path

from t5suite.base.lookup import find
from t5suite.constants import MIXTURES
from t5suite.runs.directory import read_json

SIZES = ("small", "base", "large", "3B", "11B")


@functools.cache
def published_scores() -> dict:
    """The whole table."""
    return json.loads((Path(__file__).parent / "published_scores.json").read_text(encoding="utf-8"))


def published_score(benchmark: str | None, task: str, metric: str, size: str | None) -> float | None:
    """Points of the T5 of that size; None where none were published.

    Args:
      task: as results name it, such as `mnli_matched`; a test split's `.test` is passed over.
    """
    scores = published_scores()["test"].get(benchmark, {}).get(task.removesuffix(".test"), {}).get(metric)
    return scores[SIZES.index(size)] if scores and size in SIZES else None


def published_average(benchmark: str | None, size: str | None) -> float | None:
    """The benchmark's published average of that size, over the tasks that our average is over.

    The printed GLUE average counts WNLI, which ours leaves out, so GLUE's is taken from the tasks' own scores.
    """
    if size not in SIZES or benchmark not in published_scores()["averages"]:
        return None
    if benchmark != "glue":
        return published_scores()["averages"][benchmark][SIZES.index(size)]
    means = [_task_mean(benchmark, task, size) for task in MIXTURES[benchmark]["all"]["average"]]
    return round(sum(means) / len(means), 2)


def _task_mean(benchmark: str, task: str, size: str) -> float:
    """The mean of a task's published metrics, and of MNLI's halves."""
    table = published_scores()["test"][benchmark]
    values = [
        scores[SIZES.index(size)]
        for name in (task, f"{task}_matched", f"{task}_mismatched")
        for scores in table.get(name, {}).values()
    ]
    return sum(values) / len(values)


def check_size(size: str | None) -> str | None:
    """A size that was given on the command line.

    Raises:
      ConfigError: none of SIZES.
    """
    return None if size is None else find(size, {name: name for name in SIZES}, "size", where="--size")


def size_of_run(directory, settings: dict) -> str | None:
    """The published size that a run's model has: by its shape (`config.json`), else by its name.

    >>> size_of_run("runs/glue-rte-t5-base", {"model_name_or_path": "google-t5/t5-base"})
    'base'
    """
    path = Path(directory) / "config.json"
    try:
        config = read_json(path) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        config = {}
    if isinstance(config, dict) and config.get("model_type") == "t5":
        return size_of_shape(config)
    return size_of_name(settings.get("model_name_or_path") or settings.get("config_name") or "")


def size_of_shape(config: dict) -> str | None:
    """The size of a T5 of that shape, v1.0 or v1.1.

    >>> size_of_shape({"d_model": 768, "d_ff": 3072, "num_layers": 12})
    'base'
    """
    shape = (config.get("d_model"), config.get("d_ff"), config.get("num_layers"))
    return SIZE_OF_SHAPE.get(shape)


def size_of_name(name: str) -> str | None:
    """The size that a checkpoint's name tells.

    >>> size_of_name("google/t5-v1_1-xl"), size_of_name("google-t5/t5-small"), size_of_name("facebook/bart-base")
    ('3B', 'small', None)
    """
    words = re.split(r"[^a-z0-9.]+", name.lower())
    if not any("t5" in word for word in words):
        return None
    return next((SIZE_OF_WORD[word] for word in reversed(words) if word in SIZE_OF_WORD), None)


SIZE_OF_WORD = {
    "small": "small",
    "base": "base",
    "large": "large",
    "3b": "3B",
    "xl": "3B",
    "11b": "11B",
    "xxl": "11B",
}
# (d_model, d_ff, num_layers) of v1.0 and v1.1
SIZE_OF_SHAPE = {
    (512, 2048, 6): "small",
    (512, 1024, 8): "small",
    (768, 3072, 12): "base",
    (768, 2048, 12): "base",
    (1024, 4096, 24): "large",
    (1024, 2816, 24): "large",
    (1024, 16384, 24): "3B",
    (2048, 5120, 24): "3B",
    (1024, 65536, 24): "11B",
    (4096, 10240, 24): "11B",
}
