"""The metrics that a sweep's runs log: their names by the tasks of the file, and whether more or less of one is better.

>>> logged_metrics(read_sweep("sweeps/glue_mrpc_sweep.yaml"), script)
['eval/f1', 'eval/accuracy', 'eval/loss', 'eval/invalid_rate', 'eval/truncated_rate', 'eval/average']
>>> goal_of("eval/f1")
'maximize'
"""

from collections.abc import Iterator

from t5suite.base.lookup import closest
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.schema_problems import Problem
from t5suite.launch.sweep_files import SweepFile, parameters_of
from t5suite.launch.sweep_scripts import Script
from t5suite.tasks.metric_names import SUITE_NAMES

PRE_TRAINING_METRICS = ("eval/nll", "eval/perplexity", "eval/accuracy", "eval/nll_text")
# Logged for every task, beside its own metrics.
COMMON_METRICS = ("loss", "invalid_rate", "truncated_rate")
# Metrics where lower is better; a run's other metrics are scores.
LESS_IS_BETTER = ("loss", "nll", "nll_text", "perplexity", "invalid_rate", "truncated_rate", "grad_norm")


def goal_of(metric: str) -> str:
    """Whether a higher or lower value of a metric is better.

    >>> goal_of("eval/rte/loss"), goal_of("eval/accuracy")
    ('minimize', 'maximize')
    """
    if metric.rpartition("/")[2] in LESS_IS_BETTER:
        return "minimize"
    return "maximize"


def is_score_of_task(name: str) -> bool:
    """Whether a logged name is a task's own metric, or the share of answers that are invalid.

    >>> is_score_of_task("eval/rte/accuracy"), is_score_of_task("eval/loss"), is_score_of_task("eval/average")
    (True, False, False)
    """
    ending = name.rpartition("/")[2]
    return name.startswith("eval/") and (ending == "invalid_rate" or ending not in (*LESS_IS_BETTER, "average"))


def logged_metrics(sweep: SweepFile, script: Script) -> list[str] | None:
    """The names that all of the runs log evaluations by; None where tasks or metrics are not shipped.

    >>> logged_metrics(read_sweep("sweeps/glue_cola_sweep.yaml"), script)[0]
    'eval/matthews_correlation'
    """
    if script.name == "pre_train_t5":
        return list(PRE_TRAINING_METRICS)
    values = _values_of_flags(sweep, script)
    benchmarks = values.get("benchmark", [])
    dataset_names = values.get("dataset_name", [])
    has_own_names = "task_file" in values or "metrics" in values
    if has_own_names or not dataset_names:
        return None
    are_names = all(isinstance(name, str) for name in [*benchmarks, *dataset_names])
    if len(benchmarks) != 1 or not are_names:
        return None
    metrics_of_runs = [_metrics_of_run(benchmarks[0], name) for name in dataset_names]
    if None in metrics_of_runs:
        return None
    metrics_of_all = set.intersection(*map(set, metrics_of_runs))
    return [name for name in metrics_of_runs[0] if name in metrics_of_all]


def _values_of_flags(sweep: SweepFile, script: Script) -> dict[str, list]:
    """The values that each flag has in the command or as a parameter; None stands for those drawn from a range."""
    values = {name: [value] for name, value in script.flags.items()}
    for parameter in parameters_of(sweep):
        values[parameter.name] = parameter.settings.get("values", [parameter.settings.get("value")])
    return values


def _metrics_of_run(benchmark: str, dataset_name: str) -> list[str] | None:
    """What a run on a task, a list of them or a mixture logs; None for tasks that are not shipped."""
    entries = DATASET_VALS.get(benchmark, {})
    mixture = MIXTURES.get(benchmark, {}).get(dataset_name, {})
    tasks = mixture.get("evaluate") or [task.strip() for task in dataset_name.split(",")]
    if any(task not in entries for task in tasks):
        return None
    is_alone = len(tasks) == 1
    names = []
    for task in tasks:
        names += _metrics_of_task(task, entries[task], is_alone)
    return [*dict.fromkeys(names), "eval/average"]


def _metrics_of_task(task: str, entry: dict, is_alone: bool) -> list[str]:
    """`eval/accuracy` of a run's only task; `eval/rte/accuracy` of one among several, or of several splits."""
    metrics = [*entry["metric_names"], *COMMON_METRICS]
    parts = _parts_of_task(task, entry)
    names = []
    if is_alone:
        names += [f"eval/{metric}" for metric in metrics]
    if len(parts) > 1 or not is_alone:
        for part in parts:
            names += [f"eval/{part}/{metric}" for metric in metrics]
    return names


def _parts_of_task(task: str, entry: dict) -> list[str]:
    """What a task is called where it is evaluated: by its name, or by one for each of several splits."""
    splits = (entry.get("splits") or {}).get("validation", "validation")
    if isinstance(splits, str):
        return [task]
    return [split.replace("validation", task) for split in splits]


def check_metric(sweep: SweepFile, script: Script) -> Iterator[Problem]:
    """Whether the script logs the metric, and the goal is the right one."""
    name = sweep.table("metric").get("name")
    if not isinstance(name, str) or name.startswith("train/"):
        return
    names = logged_metrics(sweep, script)
    if names is not None and name not in names:
        hint = _similar_metrics(name, names)
        yield Problem(("metric", "name"), f"metric: {script.name}.py logs no {name!r:.60}; {hint}")
    elif names is None and not name.startswith("eval/"):
        message = f"metric: {name!r:.60} is not a metric of a run; those are eval/... and train/..."
        yield Problem(("metric", "name"), message)
    yield from _check_goal(sweep, name)


def _similar_metrics(name: str, names: list[str]) -> str:
    """The metrics that may be meant, or all that are logged."""
    ending = name.rpartition("/")[2]
    same_ending = [logged for logged in names if logged.rpartition("/")[2] == ending]
    near = same_ending or closest(name, names)
    if near:
        return f"did you mean {', '.join(near[:3])}?"
    return f"it logs {', '.join(names)}"


def _check_goal(sweep: SweepFile, name: str) -> Iterator[Problem]:
    """Whether the search goes where the metric is better; of a metric of your own, whether the file names the goal."""
    metric = sweep.table("metric")
    if not _is_of_suite(name):
        if "goal" not in metric:
            choice = f"write goal: maximize, or goal: minimize if less of {name:.60} is better"
            yield Problem(("metric", "goal"), f"metric: goal is missing, and W&B's default is minimize; {choice}")
        return
    goal = metric.get("goal", "minimize")
    better_goal = goal_of(name)
    if goal == better_goal:
        return
    problem = "goal is missing, and W&B's default is minimize"
    if "goal" in metric:
        problem = f"goal {goal}"
    better = "more is better"
    if better_goal == "minimize":
        better = "less is better"
    yield Problem(("metric", "goal"), f"metric: {problem}; of {name:.60} {better}: write goal: {better_goal}")


def _is_of_suite(metric: str) -> bool:
    """Whether a logged name is a metric of the suite, so that its better direction is certain.

    >>> _is_of_suite("eval/rte/accuracy"), _is_of_suite("eval/wer")
    (True, False)
    """
    ending = metric.rpartition("/")[2]
    return ending in SUITE_NAMES or ending in LESS_IS_BETTER
