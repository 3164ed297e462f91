"""The files of one run -> the facts that a report shows of it.

>>> run = read_run("runs/rte-s1")
>>> run["status"], run["results"]["rte"], run["curves"]["eval/accuracy"][-1]
('finished', {'accuracy': 65.0, 'invalid_rate': 0.0}, [2490, 65.0])

A run that is not finished, or that logged nothing, has what exists, and its `notes` say what is missing.
"""

import shlex
import statistics
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.reports.finished_runs import data_facts, method_remarks, rows_scored, splits_of_result
from t5suite.reports.formatting import is_plain_number
from t5suite.reports.published import published_size
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, has_finished, read_manifest, read_results, tasks_named
from t5suite.runs.trained_splits import HELD_OUT
from t5suite.tracking.metric_lines import MetricLines, is_of_the_machine

# A curve with more points is reduced to this many, evenly spaced, the last one included.
MOST_POINTS = 500
MODEL_FACTS = ("class", "parameters", "trainable", "adapter")


def is_run(directory) -> bool:
    """Whether a directory holds a run, finished or not."""
    return (Path(directory) / MANIFEST).is_file()


def read_run(directory, name: str | None = None) -> dict:
    """A run's facts; every value is JSON's (a score that is not a number is None).

    * `name`, `directory`, `run_id`, `status`, `benchmark`, `dataset_name`, `seed`, `settings` (every flag)
    * `model`: its name, class, parameters and adapter; `size`: that of the published T5
    * `results`: `{task: {metric: points}}`; `averages`: `{suite: points}`; `groups`: scores of parts of a task
    * `rows`: `{task: rows scored}`; `fingerprints`: `{split: fingerprint}`; `held_out`: splits drawn from training rows
    * `marks`: `{task: remarks}`; `methods`: `{task: how its answers were made}`; `notes`: what is missing
    * `curves`: `{name: [[update, value or None], ...]}`; `speed`: medians; `last_step`: the last update that was logged
    * `environment`: command, times, versions, commit, hardware

    Raises:
      DataError: no run there, or a file of it that cannot be read.
    """
    directory = Path(directory)
    if not is_run(directory):
        raise DataError(f"{directory}: no run ({MANIFEST} missing); give a run's --output_dir, or a sweep's directory")
    manifest = read_manifest(directory)
    status = manifest.get("status", "unknown")
    if has_finished(directory, manifest):
        results = read_results(directory)
        notes = []
    else:
        results = {}
        notes = [note_on_results(directory, status)]
    scores = results.get("tasks", {})
    lines = MetricLines(directory / METRICS).new_lines()
    last_step = None
    if lines:
        last_step = lines[-1]["step"]
    benchmark, dataset_name = tasks_named(manifest)
    splits = data_facts(manifest)
    curves = curves_of(lines)
    name = name or directory.name or str(directory)
    return {
        "name": name,
        "directory": str(directory),
        "run_id": manifest["run_id"],
        "status": status,
        "benchmark": benchmark,
        "dataset_name": dataset_name,
        "model": model_facts(manifest),
        "size": published_size(manifest.get("model") or {}),
        "seed": manifest["settings"].get("seed"),
        "settings": manifest["settings"],
        "results": scores,
        "averages": results.get("averages", {}),
        "groups": results.get("groups", {}),
        "rows": {task: rows_scored(manifest, task) for task in scores},
        "splits": {task: splits_of_result(manifest, task) for task in scores},
        "fingerprints": {split: facts["fingerprint"] for split, facts in splits.items() if "fingerprint" in facts},
        "held_out": [split for split, facts in splits.items() if is_part_of_training(facts)],
        "marks": marks_of_run(manifest),
        "methods": {task: facts.get("method") for task, facts in (manifest.get("scored") or {}).items()},
        "last_step": last_step,
        "curves": {metric: thinned(points) for metric, points in curves.items()},
        "speed": median_speed(lines),
        "environment": environment_facts(manifest),
        "notes": notes + note_on_metrics(directory, lines),
    }


def marks_of_run(manifest: dict) -> dict[str, list[str]]:
    """`{task: remarks}` of the tasks that have some: how its answers were made, then the manifest's marks.

    >>> marks_of_run({"scored": {"rte": {"method": "score"}}, "marks": {"rte": ["subset"]}})
    {'rte': ['scored labels', 'subset']}
    """
    scored = manifest.get("scored") or {}
    marks = manifest.get("marks", {})
    remarks = {}
    for task in dict.fromkeys([*scored, *marks]):
        remarks[task] = [*method_remarks(scored.get(task) or {}), *marks.get(task, [])]
    return {task: of_task for task, of_task in remarks.items() if of_task}


def is_part_of_training(facts: dict) -> bool:
    """Whether a split was drawn from training rows, by what the manifest says of it."""
    return HELD_OUT in str(facts.get("origin"))


def model_facts(manifest: dict) -> dict:
    """The model's name, and what the manifest says of it."""
    settings = manifest["settings"]
    model = manifest.get("model") or {}
    name = settings.get("model_name_or_path") or settings.get("config_name") or "bundled tiny model"
    facts = {"name": name}
    for fact in MODEL_FACTS:
        facts[fact] = model.get(fact)
    return facts


def environment_facts(manifest: dict) -> dict:
    """The command, times, versions and hardware of a run; a commit without its changes."""
    command = None
    if manifest.get("command"):
        command = command_shown(manifest["command"])
    commit = manifest.get("commit") or {}
    return {
        "command": command,
        "started": manifest.get("started"),
        "finished": manifest.get("finished"),
        "versions": manifest.get("versions") or {},
        "commit": {name: value for name, value in commit.items() if name != "diff"},
        "hardware": manifest.get("hardware") or {},
    }


def command_shown(command: list) -> str:
    """A manifest's command as a user would give it, or the call from Python that began the run.

    >>> command_shown(["fine_tune_t5.py", "--seed", "7"]), command_shown(["train.py", "FineTuner(seed=7)"])
    ('python fine_tune_t5.py --seed 7', 'FineTuner(seed=7)  # in train.py')
    """
    if is_python_call(command):
        return call_with_program(command[1], command[0])
    return shlex.join(["python", *map(str, command)])


def call_with_program(call: str, program: str) -> str:
    """A call from Python with the program that it stands in; that of a prompt, "", is not named."""
    return f"{call}  # in {program}" if program else call


def is_python_call(command: list) -> bool:
    """Whether a manifest's command is a call of `FineTuner`, and no command line."""
    return len(command) == 2 and str(command[1]).startswith("FineTuner(")


def note_on_results(directory: Path, status: str) -> str:
    """Why a run that has not finished has no scores."""
    if (directory / RESULTS).is_file():
        return f"not finished (status: {status}): {RESULTS} is from before the run went on"
    return f"not finished (status: {status}): no {RESULTS}"


def note_on_metrics(directory: Path, lines: list[dict]) -> list[str]:
    """Why there are no curves, if there are none."""
    if lines:
        return []
    if (directory / METRICS).is_file():
        return ["nothing logged"]
    return [f"no {METRICS}: no curves, no speed"]


def curves_of(lines: list[dict]) -> dict[str, list]:
    """`{name: [[step, value], ...]}` of the numbers under `train/` and `eval/`; the last of a step counts.

    None among them was logged in place of NaN; what never was a number has no curve.

    >>> curves_of([{"step": 5, "train/loss": 2.0}, {"step": 5, "train/loss": 1.9}, {"step": 9, "train/loss": None}])
    {'train/loss': [[5, 1.9], [9, None]]}
    >>> curves_of([{"step": 5, "seconds": 1.0, "eval/x": None, "train/train_loss": 3.0}])  # of the whole training
    {}
    """
    value_by_step: dict[str, dict] = {}
    for line in lines:
        for name, value in line.items():
            if _has_curve(name) and (value is None or is_plain_number(value)):
                value_by_step.setdefault(name, {})[line["step"]] = value
    curves = {}
    for name, points in value_by_step.items():
        if any(value is not None for value in points.values()):
            curves[name] = [[step, value] for step, value in sorted(points.items())]
    return curves


def _has_curve(name: str) -> bool:
    return "/" in name and not name.startswith("train/train_")


def thinned(points: list, max_points: int = MOST_POINTS) -> list:
    """At most `max_points` of the points, evenly spaced, first and last included."""
    if len(points) <= max_points:
        return points
    last = len(points) - 1
    places = [round(i * last / (max_points - 1)) for i in range(max_points)]
    return [points[place] for place in places]


def median_speed(lines: list[dict]) -> dict[str, float]:
    """Medians of the logged rates, seconds and memory: `{"train/tokens_per_second": 117028.6}`."""
    series: dict[str, list] = {}
    for line in lines:
        for name, value in line.items():
            if _is_speed(name) and is_plain_number(value):
                series.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in series.items()}


def _is_speed(name: str) -> bool:
    """Whether a number that was logged is a rate, a time or memory; the seconds that were left then say nothing now."""
    return name.startswith("train/") and is_of_the_machine(name) and name != "train/seconds_left"
