"""What a sweep is to do: a sweep file, and the flags of `t5suite sweep`, as plain data.

>>> plan_of(read_sweep("sweeps/mini_sentiment_sweep.yaml"), count=8).limit
8
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.launch.overrides import check_overrides
from t5suite.launch.search import rungs_of
from t5suite.launch.sweep_files import SweepFile, parameters_of
from t5suite.launch.trial_store import Search

# What runs log of themselves where a sweep names no metric: fine-tuning, pre-training.
DEFAULT_METRICS = {"eval/average": "maximize", "eval/nll": "minimize"}


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do.

    Attributes:
      content: of the sweep file.
      text: the sweep file as it was given; None: one made of flags.
      metric: the name that runs log it by.
      words: added to every trial's command.
      limit: trials of the whole sweep.
    """

    name: str
    content: dict
    search: Search
    metric: str
    command: list | None
    program: str | None
    limit: float
    words: list[str] = field(default_factory=list)
    text: str | None = None


def plan_of(sweep: SweepFile, count: int | None = None, words=(), sampler: str = "tpe", seed: int = 0) -> SweepPlan:
    """The plan of a sweep file that was checked.

    Raises:
      ConfigError: a search that has no end by itself, without `count`; words that set what is searched.
    """
    content = sweep.content
    metric = content.get("metric") or {}
    limit = min((number for number in (count, content.get("run_cap")) if number is not None), default=math.inf)
    if limit == math.inf and content["method"] != "grid":
        raise ConfigError(
            f"--count: a {content['method']} sweep has no end of its own; say how many trials it is to have"
        )
    early = content.get("early_terminate")
    parameters = parameters_of(sweep)
    check_overrides(parameters, words)
    wanted = Search(
        parameters=parameters,
        method=content["method"],
        goal=metric.get("goal", "minimize") if metric else DEFAULT_METRICS[_default_metric(content)],
        target=metric.get("target"),
        rungs=tuple(rungs_of(early)),
        eta=int((early or {}).get("eta", 3)),
        sampler=sampler,
        seed=seed,
    )
    return SweepPlan(
        name=str(content.get("name") or Path(sweep.path).stem),
        content=content,
        search=wanted,
        metric=metric["name"] if metric else _default_metric(content),
        command=content.get("command"),
        program=content.get("program"),
        limit=limit,
        words=list(words),
        text=Path(sweep.path).read_text(encoding="utf-8-sig") if sweep.lines else None,
    )


def _default_metric(content: dict) -> str:
    words = [*(content.get("command") or []), content.get("program")]
    return "eval/nll" if any("pre_train_t5" in str(word) for word in words) else "eval/average"
