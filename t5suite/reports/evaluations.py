"""A run's predictions joined with labels, and with texts where they are known.

>>> (evaluation,) = read_evaluations("runs/glue-rte-t5-small")
>>> evaluation.name, len(evaluation.examples), evaluation.judged.predictions[:3], evaluation.judged.references[:3]
('rte', 277, [0, 1, -1], [0, 1, 1])

The rows are read again where they still are those of the run (`evaluated_rows`), and used only if every target is that
of the predictions file. Without them the targets in that file serve as labels. In both cases the labels are used only
if they reproduce the metrics of `results.json`.
"""

import collections
import contextlib
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import DataError, UserError
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.reports.evaluated_rows import EvaluatedRows, ScoredSplit, read_rows_again, settings_by_place
from t5suite.reports.shared_files import PREDICTIONS
from t5suite.runs.directory import RESULTS, has_finished, read_manifest, read_results, tasks_named
from t5suite.tasks.cut_marks import without_cut
from t5suite.tasks.entry_checks import check_entry, undefined_functions
from t5suite.tasks.entry_metrics import metric_functions
from t5suite.tasks.postprocessors import Judged, is_right
from t5suite.tasks.registry import Task
from t5suite.tasks.segments import text_read

# Points by which a recomputed metric may differ: its sums may be in another order.
TOLERANCE = 1e-6
# With one of these a metric takes more than the prediction and the target of a line.
SHAPED_BY = ("postprocess", "group_by", "references_by")


@dataclass(frozen=True)
class TaskEvaluation:
    """One split of one task, with a run's answers.

    Attributes:
      scored: which split.
      examples: `{"row": its number in the source, "key": what names it, "inputs", "read", "target", "prediction",
        "right"}`; `inputs`, `read` (what the model read of them) and `right` (`tasks.postprocessors.is_right`) are None
        if the rows could not be read.
      judged: predictions, references and groups as the metrics take them; None if the labels are not known.
      unit_keys: what names each judged prediction, in their order.
      scores: as `results.json` has them.
      note: why there are no texts, or no labels.
    """

    scored: ScoredSplit
    examples: list[dict]
    judged: Judged | None
    unit_keys: list
    scores: dict
    note: str = ""

    @property
    def name(self) -> str:
        """The split's name in results."""
        return self.scored.name

    @property
    def task(self) -> Task:
        """The task."""
        return self.scored.task

    @property
    def num_classes(self) -> int | None:
        """How many label words the task has."""
        return number_of_classes(self.task)


def number_of_classes(task: Task) -> int | None:
    """How many label words a task has; None for texts and numbers."""
    return len(task.label_words or ()) or None


def read_evaluations(directory, data_dir: str | None = None) -> list[TaskEvaluation]:
    """Every evaluated split of a finished run that left predictions, in the order of its results.

    Args:
      data_dir: where the rows are now, if not where the run had them.

    Raises:
      DataError: a line of predictions without `row` or `prediction`.
    """
    manifest = read_manifest(directory)
    if not has_finished(directory, manifest):
        return []
    splits = scored_splits(manifest)
    without_answers = results_of_loss_alone(manifest)
    evaluations = []
    for name, scores in read_results(directory)["tasks"].items():
        if name not in splits or name in without_answers:
            continue
        scored = splits[name]
        path = Path(directory, PREDICTIONS, f"{scored.key}.jsonl")
        if path.is_file():
            lines = read_prediction_lines(path)
            evaluations.append(evaluate_again(scored, lines, scores, manifest, data_dir))
    return evaluations


def scored_splits(manifest: dict) -> dict[str, ScoredSplit]:
    """The splits that a run may have been scored on, by their names in results."""
    benchmark = str(tasks_named(manifest)[0])
    entries = manifest.get("tasks") or {}
    splits = {}
    for task_name, entry in entries.items():
        entry = with_class_ids(entry)
        if problem_of_entry(entry):
            continue
        task = Task(benchmark, task_name, entry)
        for role in ("validation", "test"):
            for scored in scored_splits_of_role(task, role, manifest["settings"]):
                splits[scored.name] = scored
    return splits


def problem_of_entry(entry) -> str:
    """Why the answers to a task of a manifest cannot be judged again; empty if they can."""
    try:
        undefined = undefined_functions(entry)
        if not undefined:
            check_entry("its entry", entry)
    except (UserError, TypeError, AttributeError) as error:
        return f"its entry is damaged, or of another version ({error})"
    if not undefined:
        return ""
    return (
        f"its answers cannot be judged again without the {' and the '.join(undefined)}, which t5suite does not have: "
        "another version may, or your Python file, which this command does not run; in Python, "
        "t5suite.load_task(BENCHMARK, TASK, FILE) runs it before t5suite.cli.main([COMMAND, RUN])"
    )


def results_of_loss_alone(manifest: dict) -> list[str]:
    """The results of a run for which nothing was answered (`--eval_method loss`)."""
    scored = manifest.get("scored") or {}
    return [name for name, facts in scored.items() if facts.get("method") == "loss"]


def notes_on_tasks_left_out(directory) -> list[str]:
    """The tasks of a finished run that have no evaluation here, each with the reason."""
    manifest = read_manifest(directory)
    if not has_finished(directory, manifest):
        return []
    notes = [f"{name}: its loss alone was evaluated; there are no answers" for name in results_of_loss_alone(manifest)]
    for name, entry in (manifest.get("tasks") or {}).items():
        problem = problem_of_entry(with_class_ids(entry))
        if problem:
            notes.append(f"{name}: {problem}")
    return notes


def with_class_ids(entry):
    """An entry whose table of labels has numbers as keys, which JSON turns into texts.

    >>> with_class_ids({"labels": {"0": "no", "1": "yes"}})
    {'labels': {0: 'no', 1: 'yes'}}
    """
    labels = entry.get("labels") if isinstance(entry, dict) else None
    if not isinstance(labels, dict):
        return entry
    with contextlib.suppress(ValueError):
        return {**entry, "labels": {int(key): word for key, word in labels.items()}}
    return entry


def scored_splits_of_role(task: Task, role: str, settings: dict) -> list[ScoredSplit]:
    """The splits of a task that may have been scored for a role, by each name that results may have for them.

    A test split that is predicted is `<task>.test`; that of a task without a validation split may also have been
    evaluated, by the task's name.
    """
    suffixes = [""]
    if role == "test":
        suffixes = [".test"] if task.splits("validation") else [".test", ""]
    return [
        ScoredSplit(f"{result}{suffix}", task, role, split)
        for result, split in splits_read(task, role, settings).items()
        for suffix in suffixes
    ]


def splits_read(task: Task, role: str, settings: dict) -> dict[str, str]:
    """The splits that a run has read for a role, by the name that results use; a file replaces all of a task's.

    >>> splits_read(load_task("glue", "mnli"), "validation", {"validation_file": "mine.jsonl"})
    {'mnli': 'validation'}
    """
    splits = task.splits(role)
    is_replaced = settings.get(f"{role}_file") and not settings.get("data_format")
    if splits and is_replaced:
        return {task.name: role}
    return splits


def read_prediction_lines(path: Path) -> list[dict]:
    """The lines of a predictions file.

    Raises:
      DataError: a line without `row` or `prediction`.
    """
    lines = read_jsonl(path)
    for number, line in enumerate(lines, start=1):
        has_prediction = isinstance(line.get("prediction"), str)
        has_row = isinstance(line.get("row"), int)
        if not has_prediction or not has_row:
            raise DataError(f"{path}:{number}: not a line of predictions: it needs 'row' and 'prediction'")
    return lines


def evaluate_again(
    scored: ScoredSplit, lines: list[dict], scores: dict, manifest: dict, data_dir: str | None
) -> TaskEvaluation:
    """The lines with their texts, or, without the rows, with what the lines contain."""
    if any("inputs" in line for line in lines):  # the run kept its texts, as they cannot be read again
        return evaluation_of_lines(scored, lines, scores)
    title = f"the rows of {scored.task.name} {scored.split}"
    again = read_rows_again(scored, manifest, settings_by_place(manifest, data_dir))
    if again.rows is None:
        return evaluation_of_lines(scored, lines, scores, f"{title} could not be read again ({again.error})")
    if again.changed_source:
        note = f"{title} are not those of the run any more: {again.changed_source} has changed since"
        return evaluation_of_lines(scored, lines, scores, note)
    form = (manifest.get("encoding") or {}).get("form")
    evaluation = evaluation_of_rows(scored, again.rows, lines, scores, form)
    if evaluation is None:
        note = f"{title} are no longer those that the run was scored on"
        return evaluation_of_lines(scored, lines, scores, note)
    if evaluation.judged is not None and not reproduces(scored.task, evaluation.judged, scores):
        return evaluation_of_lines(scored, lines, scores, note_on_other_scores(scored))
    return evaluation


def evaluation_of_lines(scored: ScoredSplit, lines: list[dict], scores: dict, note: str = "") -> TaskEvaluation:
    """An evaluation from a predictions file alone."""
    examples = [
        {
            "row": line["row"],
            "key": row_key(line),
            "inputs": line.get("inputs"),
            "read": line.get("inputs"),
            "target": line.get("target"),
            "prediction": line["prediction"],
            "right": None,
        }
        for line in lines
    ]
    judged = None
    if scores:
        judged = judged_lines(scored.task, lines)
    if judged is None or not recomputed_metrics(scored.task, scores):
        return TaskEvaluation(scored, examples, None, [], scores, note)
    if not reproduces(scored.task, judged, scores):
        return TaskEvaluation(scored, examples, None, [], scores, note or note_on_other_scores(scored))
    return TaskEvaluation(scored, examples, judged, unit_keys(judged, examples), scores, note)


def note_on_other_scores(scored: ScoredSplit) -> str:
    """That answers and scores of a split do not belong together: one of the two files has changed."""
    return f"the answers to {scored.task.name} {scored.split} in {PREDICTIONS}/ do not give the scores in {RESULTS}"


def judged_lines(task: Task, lines: list[dict]) -> Judged | None:
    """Predictions and targets of lines; None if the targets are missing, or the metrics need the rows."""
    is_shaped = any(task.entry.get(field) for field in SHAPED_BY)
    have_targets = all(isinstance(line.get("target"), str) for line in lines)
    if is_shaped or not have_targets:
        return None
    predictions = [task.parse(line["prediction"]) for line in lines]
    references = [task.parse(line["target"]) for line in lines]
    return Judged(predictions, references)


def evaluation_of_rows(
    scored: ScoredSplit, rows: EvaluatedRows, lines: list[dict], scores: dict, form: str | None
) -> TaskEvaluation | None:
    """An evaluation with the texts of its rows; None where rows and lines do not belong together.

    Args:
      form: as `text_read` takes it.
    """
    task = scored.task
    try:
        example_set = task.example_set(rows.rows, scored.role)
    except (UserError, TypeError, ValueError, LookupError, AttributeError):
        return None
    if example_set.row_of_example != [line["row"] for line in lines]:
        return None
    examples = []
    for place, example, line in zip(example_set.row_of_example, example_set.examples, lines, strict=True):
        if line.get("target", example.targets) != example.targets:
            return None
        row = rows.rows[place]
        source = {"row": rows.numbers[place], "place": None}
        if rows.places:
            source["place"] = rows.places[place]
        target = None
        has_candidate = "candidate" in line and task.is_labelled(row)
        if "target" in line or has_candidate:
            target = example.targets
        joined = {
            "row": source["row"],
            "key": row_key({**line, **source}),
            "inputs": example.inputs,
            "read": text_read(example, row, task, form),
            "target": target,
            "prediction": line["prediction"],
            "right": is_right(task, row, example.targets, line["prediction"]),
        }
        examples.append(joined)
    is_labelled = all(task.is_labelled(row) for row in rows.rows)
    if not scores or not is_labelled or not recomputed_metrics(task, scores):
        return TaskEvaluation(scored, examples, None, [], scores)
    judged = task.judged(example_set, [line["prediction"] for line in lines])
    return TaskEvaluation(scored, examples, judged, unit_keys(judged, examples), scores)


def row_key(line: dict) -> str:
    """What names a line's row, in any subset: the data's `idx`, a hash of its text, its place in a file, or its number.

    >>> row_key({"row": 3, "idx": 17}), row_key({"row": 3, "idx": {"question": 2, "answer": 1}}), row_key({"row": 3})
    ('17', 'answer 1, question 2', 'row 3')
    >>> row_key({"row": 3, "place": "reviews.csv:6"}), row_key({"row": 3, "inputs": "I hated the lamp."})
    ('reviews.csv:6', 'text b54e3db6')
    """
    idx = line.get("idx")
    if isinstance(idx, dict):
        return ", ".join(f"{name} {value}" for name, value in sorted(idx.items()))
    if idx is not None:
        return str(idx)
    if isinstance(line.get("inputs"), str):
        text = without_cut(line["inputs"]).encode("utf-8", "replace")
        return f"text {hashlib.sha256(text).hexdigest()[:8]}"
    if isinstance(line.get("place"), str):
        return line["place"]
    return f"row {line['row']}"


def unit_keys(judged: Judged, examples: list[dict]) -> list:
    """One key per judged prediction; if it joins several examples (ReCoRD's answers), that of its row's first."""
    keys = [example["key"] for example in examples]
    if len(judged.predictions) == len(keys):
        return numbered(keys)
    first_keys = [(key, 0) for key in dict.fromkeys(keys)]
    if len(judged.predictions) == len(first_keys):
        return first_keys
    return []


def numbered(keys: list) -> list[tuple]:
    """Each key with how many equal ones came before it.

    >>> numbered(["a", "b", "a"])
    [('a', 0), ('b', 0), ('a', 1)]
    """
    counts = collections.Counter()
    pairs = []
    for key in keys:
        pairs.append((key, counts[key]))
        counts[key] += 1
    return pairs


def recomputed_metrics(task: Task, scores: dict) -> dict[str, Callable]:
    """The functions of the reported scores, by name; a value of code of the user has none."""
    return {name: function for name, function in metric_functions(task.entry).items() if name in scores}


def reproduces(task: Task, judged: Judged, scores: dict) -> bool:
    """Whether the metrics equal the reported ones; None and NaN both mean that a score is not defined."""
    num_classes = number_of_classes(task)
    for name, function in recomputed_metrics(task, scores).items():
        value = function(judged.predictions, judged.references, groups=judged.groups, num_classes=num_classes)
        if not _is_same_score(value, scores[name]):
            return False
    return True


def _is_same_score(value: float, reported: float | None) -> bool:
    if reported is None or math.isnan(reported):
        return math.isnan(value)
    return abs(value - reported) <= TOLERANCE * max(1.0, abs(reported))
