"""The content of `sweep.json`: a sweep's trials, the best of them, and the means of a grid over seeds and tasks.

>>> summary = summary_of(plan, records)
>>> summary["best"], summary["metric"]
(3, {'name': 'eval/accuracy', 'goal': 'maximize'})
"""

import json
import statistics

from t5suite.launch.commands import SEED, TASK
from t5suite.launch.sweep_plans import SweepPlan


def summary_of(plan: SweepPlan, records: list[dict]) -> dict:
    """The content of `sweep.json`; no trial of a grid over several tasks is the best: each task has its own metric.

    Args:
      records: of all trials, by number.
    """
    search = plan.search
    searched = {parameter.name for parameter in search.parameters if parameter.distribution != "constant"}
    is_grouped = search.method == "grid" and bool(searched & {SEED, TASK})
    groups = None
    best = _best_trial(records, search.goal)
    if is_grouped:
        groups = groups_of(records)
        if _has_several_tasks(search):
            best = None
    return {
        "name": plan.name,
        "method": search.method,
        "metric": {"name": plan.metric, "goal": search.goal},
        "trials": records,
        "best": best,
        "groups": groups,
    }


def _has_several_tasks(search) -> bool:
    """Whether a grid is over tasks, each of which has its own metric."""
    tasks = [parameter.settings.get("values", []) for parameter in search.parameters if parameter.name == TASK]
    return any(len(values) > 1 for values in tasks)


def _best_trial(records: list[dict], goal: str) -> int | None:
    """The number of the complete trial with the best value; of equal ones the first."""
    complete = [record for record in records if _is_complete(record)]
    if not complete:
        return None
    sign = _sign_of(goal)
    best = max(complete, key=lambda record: (sign * record["value"], -record["number"]))
    return best["number"]


def _is_complete(record: dict) -> bool:
    """Whether a trial has ended by itself, with a value."""
    return record["state"] == "complete" and record["value"] is not None


def _sign_of(goal: str) -> int:
    """What to multiply a value by, so that more of it is better."""
    if goal == "maximize":
        return 1
    return -1


def groups_of(records: list[dict]) -> list[dict]:
    """Mean and sample standard deviation (n - 1; None of one value) over the seeds of each setting and task.

    `scores` has both of every metric of the task, over the trials in which it is a number; which metrics say more than
    the value is decided over all trials, so that every group has the same.
    """
    names = score_names(records)
    groups: dict[str, dict] = {}
    for record in records:
        setting = {name: value for name, value in record["parameters"].items() if name not in (SEED, TASK)}
        task = record["parameters"].get(TASK)
        group = groups.setdefault(json.dumps([setting, task]), {"parameters": setting, "task": task, "trials": []})
        if _is_complete(record):
            group["trials"].append(record)
    for group in groups.values():
        trials = group.pop("trials")
        group |= _mean_and_deviation([trial["value"] for trial in trials])
        group["scores"] = {}
        for name in names:
            scores = [trial_scores(trial)[name] for trial in trials if name in trial_scores(trial)]
            if scores:
                group["scores"][name] = _mean_and_deviation([score for score in scores if score is not None])
    return list(groups.values())


def _mean_and_deviation(values: list[float]) -> dict:
    """`{"n", "mean", "std"}`; None for a mean of no value and a deviation of less than two."""
    mean = statistics.fmean(values) if values else None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"n": len(values), "mean": mean, "std": deviation}


def trial_scores(record: dict) -> dict[str, float | None]:
    """A trial's scores beside the sweep's metric; records of before version 0.2 have none."""
    return record.get("scores") or {}


def score_names(records: list[dict]) -> list[str]:
    """The metrics of the trials' tasks that say more than the sweep's own, in the order of the trials.

    A metric that equals the sweep's in every trial is left out (the average of one metric), and so is a share of
    invalid answers that is 0 in all.
    """
    names = dict.fromkeys(name for record in records for name in trial_scores(record))
    return [name for name in names if not _says_nothing_more(name, records)]


def _says_nothing_more(name: str, records: list[dict]) -> bool:
    scored = [record for record in records if name in trial_scores(record)]
    if name.endswith("invalid_rate"):
        return not any(trial_scores(record)[name] for record in scored)
    return all(trial_scores(record)[name] == record["value"] for record in scored)


def rank_trials(summary: dict) -> list[dict]:
    """The trials, best first: complete ones, then the others; those without a value last."""
    sign = _sign_of(summary["metric"]["goal"])

    def rank(trial: dict) -> tuple:
        value = trial["value"]
        return value is None, trial["state"] != "complete", -sign * (value or 0.0), trial["number"]

    return sorted(summary["trials"], key=rank)


def parameter_names(records: list[dict]) -> list[str]:
    """The parameters in the order of the trials; of several trials, only those that vary."""
    parameters_of_trials = [flat_parameters(record["parameters"]) for record in records]
    names = list(dict.fromkeys(name for parameters in parameters_of_trials for name in parameters))
    if len(records) == 1:
        return names
    return [name for name in names if _varies(name, parameters_of_trials)]


def _varies(name: str, parameters_of_trials: list[dict]) -> bool:
    """Whether the trials have several values of a parameter, or some have none."""
    values = [json.dumps(parameters[name]) for parameters in parameters_of_trials if name in parameters]
    are_all = len(values) == len(parameters_of_trials)
    return not are_all or len(set(values)) > 1


def flat_parameters(parameters: dict, prefix: str = "") -> dict:
    """Nested parameters by their whole names.

    >>> flat_parameters({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    flat = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            flat |= flat_parameters(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
