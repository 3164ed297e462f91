"""A sweep as its `sweep.json` tells it: its metric, its trials, the best of them.

    >>> sweep = read_sweep("runs/sweeps/glue_rte")
    >>> sweep.metric, sweep.goal, [(trial.number, trial.state, trial.value) for trial in sweep.ranked()][:2]
    ('eval/accuracy', 'maximize', [(7, 'complete', 71.1), (2, 'pruned', 66.8)])

The file is rewritten whole while the sweep runs, so a sweep can be looked at at any time.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.yaml_files import read_yaml
from t5suite.runs.directory import read_json

SWEEP_FILE, SWEEP_CONFIG = "sweep.json", "sweep.yaml"
GOALS = ("maximize", "minimize")
STATES = ("complete", "pruned", "failed", "preempted", "running")
# Positive values that lie further apart than this are drawn on a logarithmic axis where no file says what they are.
WIDE = 50


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      parameters: name -> value; nested ones as `outer.inner`.
      value: the best logged value of the metric; None where none was logged.
      curve: `(step, value)` of every evaluation.
      why: what a failed trial failed of, where that is known.
    """

    number: int
    state: str
    parameters: dict
    value: float | None
    last_step: int | None
    curve: list[tuple[int, float]]
    seconds: float | None
    exit_code: int | None
    run_dir: str
    command: str
    why: str = ""


class Sweep(NamedTuple):
    """A sweep's trials and what they are compared by.

    Attributes:
      groups: for a grid over seeds and tasks, `{"parameters", "task", "n", "mean", "std"}` of each.
      logarithmic: of the parameters whose distribution the sweep's file names, whether it is a logarithmic one.
    """

    directory: Path
    name: str
    method: str
    metric: str
    goal: str
    trials: list[Trial]
    best: int | None
    groups: list[dict]
    logarithmic: dict[str, bool]

    def ranked(self) -> list[Trial]:
        """The trials, the best first; those without a value last, by number."""
        sign = -1 if self.goal == "maximize" else 1
        return sorted(
            self.trials, key=lambda t: (t.value is None, sign * t.value if t.value is not None else 0, t.number)
        )

    def valued(self) -> list[Trial]:
        """The trials that have a value, by number."""
        return [trial for trial in self.trials if trial.value is not None]

    def best_trial(self) -> Trial | None:
        """The trial that the sweep calls its best."""
        return next((trial for trial in self.trials if trial.number == self.best), None)

    def varied(self) -> list[str]:
        """The parameters that are not the same in all trials, in the order of the file."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.parameters)
        seen = {name: {json.dumps(trial.parameters.get(name)) for trial in self.trials} for name in names}
        return [name for name in names if len(seen[name]) > 1]

    def constant(self) -> dict:
        """The parameters that are the same in all trials."""
        varied = self.varied()
        return {
            name: value for trial in self.trials[:1] for name, value in trial.parameters.items() if name not in varied
        }

    def is_logarithmic(self, name: str) -> bool:
        """Whether an axis for the parameter should be logarithmic."""
        values = [trial.parameters.get(name) for trial in self.trials if name in trial.parameters]
        if not values or not all(is_number(value) and value > 0 for value in values):
            return False
        return self.logarithmic.get(name, max(values) / min(values) >= WIDE)


def is_sweep(directory) -> bool:
    """Whether a directory is a sweep's, rather than a run's."""
    return any((Path(directory) / name).is_file() for name in (SWEEP_FILE, SWEEP_CONFIG))


def is_number(value) -> bool:
    """Whether a parameter's value is a number (True is none)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_sweep(directory) -> Sweep:
    """The sweep in a directory.

    Raises:
      DataError: no sweep.json there yet, or one that is none.
    """
    path = Path(directory) / SWEEP_FILE
    if not path.is_file():
        raise DataError(f"{directory}: no {SWEEP_FILE}: no trial of this sweep has begun")
    try:
        content = read_json(path)
        metric = content["metric"]
        trials = [_trial(entry) for entry in content["trials"]]
        if metric["goal"] not in GOALS:
            raise ValueError(f"goal {metric['goal']!r} is none of {', '.join(GOALS)}")
        return Sweep(
            directory=Path(directory),
            name=str(content["name"]),
            method=str(content["method"]),
            metric=str(metric["name"]),
            goal=metric["goal"],
            trials=trials,
            best=content.get("best"),
            groups=list(content.get("groups") or []),
            logarithmic=logarithmic_parameters(Path(directory) / SWEEP_CONFIG),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a sweep's record ({type(error).__name__}: {error})") from None


def _trial(entry: dict) -> Trial:
    if entry["state"] not in STATES:
        raise ValueError(f"trial {entry['number']}: state {entry['state']!r} is none of {', '.join(STATES)}")
    value = entry.get("value")
    return Trial(
        number=int(entry["number"]),
        state=entry["state"],
        parameters=flattened(entry["parameters"]),
        value=float(value) if is_number(value) else None,
        last_step=entry.get("last_step"),
        curve=[(int(step), float(y)) for step, y in entry.get("curve") or [] if is_number(y)],
        seconds=entry.get("seconds"),
        exit_code=entry.get("exit_code"),
        run_dir=str(entry.get("run_dir") or ""),
        command=str(entry.get("command") or ""),
        why=str(entry.get("why") or ""),
    )


def flattened(parameters: dict, prefix: str = "") -> dict:
    """Nested parameters under one name each.

    >>> flattened({"seed": 1, "optim_args": {"eps": 1e-8}})
    {'seed': 1, 'optim_args.eps': 1e-08}
    """
    flat = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def logarithmic_parameters(path: Path) -> dict[str, bool]:
    """Of a sweep file's parameters with a range, whether it is logarithmic; none where the file cannot be read."""
    try:
        content = read_yaml(path).content if path.is_file() else None
    except ConfigError:
        return {}
    parameters = content.get("parameters") if isinstance(content, dict) else None
    return dict(_logarithmic(parameters)) if isinstance(parameters, dict) else {}


def _logarithmic(parameters: dict, prefix: str = ""):
    for name, entry in parameters.items():
        if not isinstance(entry, dict):
            continue
        if isinstance(entry.get("parameters"), dict):
            yield from _logarithmic(entry["parameters"], f"{prefix}{name}.")
        elif "min" in entry or "distribution" in entry:
            yield f"{prefix}{name}", "log_" in str(entry.get("distribution", "uniform"))
