"""What a sweep is to do: its file together with the flags of the command line.

>>> plan = plan_of(read_sweep("sweeps/mini_sentiment_sweep.yaml"), count=8)
>>> plan.metric, plan.limit
('eval/accuracy', 8)
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.launch.commands import flags_in
from t5suite.launch.sweep_files import Parameter, SweepFile, parameters_of
from t5suite.launch.sweep_scripts import SHARED_OUTPUT_DIR, script_of
from t5suite.launch.sweep_search import Search, rungs_of

# The metric of runs if a sweep names none: fine-tuning, pre-training.
DEFAULT_METRICS = {"eval/average": "maximize", "eval/nll": "minimize"}


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to do.

    Attributes:
      content: of the sweep file.
      text: the sweep file, unchanged; None: one made from flags.
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
      ConfigError: an endless search without `count`; a sampler or seed that the method does not use; words that set
        a searched parameter or `output_dir`.
    """
    content = sweep.content
    _check_search_flags(content["method"], sampler, seed)
    limit = _limit_of(content, count)
    parameters = parameters_of(sweep)
    _check_words(flags_in(words), sweep, parameters)
    metric, goal = _metric_of(sweep)
    early_terminate = sweep.table("early_terminate")
    search = Search(
        parameters=parameters,
        method=content["method"],
        goal=goal,
        target=sweep.table("metric").get("target"),
        rungs=tuple(rungs_of(early_terminate)),
        eta=int(early_terminate.get("eta", 3)),
        sampler=sampler,
        seed=seed,
    )
    text = None
    if sweep.lines:
        text = Path(sweep.path).read_text(encoding="utf-8-sig")
    return SweepPlan(
        name=str(content.get("name") or Path(sweep.path).stem),
        content=content,
        search=search,
        metric=metric,
        command=content.get("command"),
        program=content.get("program"),
        limit=limit,
        words=list(words),
        text=text,
    )


def _check_search_flags(method: str, sampler: str, seed: int) -> None:
    """Refuses flags of the search that this method does not read."""
    if sampler != "tpe" and method != "bayes":
        raise ConfigError(f"--sampler {sampler} has no effect: the sweep's method is {method}; write method: bayes")
    if seed and method == "grid":
        raise ConfigError(f"--seed {seed} has no effect: a grid draws nothing; --seeds sets the trials' own")


def _limit_of(content: dict, count: int | None) -> float:
    """How many trials the sweep has at most: the smaller one of `--count` and `run_cap`."""
    limits = [number for number in (count, content.get("run_cap")) if number is not None]
    if not limits and content["method"] != "grid":
        raise ConfigError(f"--count: a {content['method']} sweep has no end of its own; give its number of trials")
    return min(limits, default=math.inf)


def _check_words(flags: dict[str, object], sweep: SweepFile, parameters: list[Parameter]) -> None:
    """Refuses flags after `--` that set what the sweep searches, or one directory for all trials."""
    if "output_dir" in flags and script_of(sweep) is not None:
        raise ConfigError(f"after --: {SHARED_OUTPUT_DIR}")
    for parameter in parameters:
        flag = parameter.path[0]
        if flag in flags and parameter.distribution != "constant":
            raise ConfigError(
                f"--{flag} {flags[flag]} after --: the sweep searches {parameter.name}, and every "
                "trial would have the same value; omit the flag, or give the parameter one `value:` in the file"
            )


def _metric_of(sweep: SweepFile) -> tuple[str, str]:
    """The name of the metric and its goal, or those that the runs have by default."""
    metric = sweep.table("metric")
    if metric:
        return metric["name"], metric.get("goal", "minimize")
    script = script_of(sweep)
    name = "eval/average"
    if script is not None and script.name == "pre_train_t5":
        name = "eval/nll"
    return name, DEFAULT_METRICS[name]
