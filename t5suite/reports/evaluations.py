"""What a run wrote, beside the rows it wrote it for: predictions joined with labels, and with texts where known.

>>> (evaluation,) = evaluations_of("runs/glue-rte-t5-small")
>>> evaluation.name, len(evaluation.examples), evaluation.judged.predictions[:3], evaluation.judged.references[:3]
('rte', 277, [0, 1, -1], [0, 1, 1])

The rows are read again from where the run read them and count only if their fingerprint, or every single target, is
that of the run: a relative path is looked for from here, from where the run was started, and in `--data_dir`. Without
them the targets in the predictions file stand for the labels, and texts are there where the run kept them because
nothing could read them again. Either way the metrics must come out as `results.json` has them, or nothing is built on
them.
"""

import collections
import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import DataError, UserError
from t5suite.data.rows.formats import PLACES, format_source
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.sources import DataOptions, LoadedSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.runs.directory import RESULTS, read_manifest, read_results, tasks_named
from t5suite.tasks.entries import check_entry, metric_functions
from t5suite.tasks.postprocessors import POSTPROCESSORS, Judged, correctness
from t5suite.tasks.registry import Task

FILES = ("train_file", "validation_file", "test_file")


class RowsAgain(NamedTuple):
    """The rows that a run evaluated, in its order.

    Attributes:
      numbers: of the rows in their source.
      places: where rows of one's own stand, 'reviews.csv:6'; none of other rows.
    """

    rows: list[dict]
    numbers: list[int]
    places: list[str]


def rows_again(
    task: Task, role: str, split: str, manifest: dict, data_dir: str | None = None
) -> tuple[RowsAgain | None, str]:
    """`(the rows, "")`, or `(None, why not)`.

    Args:
      data_dir: where to look first.
    """
    told = (manifest.get("data") or {}).get(f"{task.name}.{split}") or {}
    reasons = []
    for settings in settings_by_place(manifest, data_dir):
        loaded, places, why = _loaded(task, role, split, settings, told)
        if loaded is not None:
            limit = settings.get("max_predict_samples" if is_extra_test(task, role) else "max_eval_samples")
            drawn = select_rows(len(loaded.rows), limit=limit, seed=settings.get("seed") or 0, role=role)
            numbers = [int(number) for number in drawn]
            found = [loaded.rows[number] for number in numbers], numbers, [places[n] for n in numbers if places]
            return RowsAgain(*found), ""
        reasons.append(why)
    return None, next((why for why in reasons if CHANGED in why), reasons[0])


def settings_by_place(manifest: dict, data_dir: str | None) -> Iterator[dict]:
    """The run's settings, once for each place where its files may be now."""
    settings = manifest["settings"]
    named = {name: settings[name] for name in (*PLACES, "data_dir") if isinstance(settings.get(name), str)}
    if data_dir:
        moved = {name: str(Path(data_dir, Path(path).name)) for name, path in named.items() if name in FILES}
        yield {**settings, **moved, **({"train_dir": data_dir} if "train_dir" in named else {}), "data_dir": data_dir}
    yield settings
    started = manifest.get("working_directory")
    if started and Path(started) != Path.cwd():
        there = {name: str(Path(started, path)) for name, path in named.items()}
        if "hub_path" in there and not Path(there["hub_path"]).exists():
            there.pop("hub_path")
        yield {**settings, **there}


def is_extra_test(task: Task, role: str) -> bool:
    """Whether rows are test rows beside validation rows."""
    return role == "test" and bool(task.splits("validation"))


def _loaded(task: Task, role: str, split: str, settings: dict, told: dict):
    """`(the split, its rows' places, "")` if its fingerprint is that of the run, else `(None, [], why not)`."""
    try:
        loaded, places = _own_rows(role, settings) if settings.get("data_format") else (None, [])
        loaded = loaded or load_split(task, role, split, _options(settings))
    except (UserError, OSError, ImportError) as error:
        return None, [], f"the rows of {task.name} {split} could not be read again ({str(error)[:200]})"
    # The hub's fingerprint says how a data set was loaded, too; its targets, compared next, say what it holds.
    is_told = told.get("fingerprint") in (None, loaded.fingerprint)
    if not is_told and not loaded.fingerprint.startswith("datasets:"):
        what = f"{', '.join(changed_files(loaded, told.get('files') or {}))} {CHANGED}"
        return None, [], f"the rows of {task.name} {split} are not those of the run any more: {what}"
    return loaded, places, ""


def changed_files(loaded: LoadedSplit, told: dict[str, str]) -> list[str]:
    """The files whose hash is not that of the run; where that told of one file alone, where the rows are."""
    hashes = {Path(path).name: value for path, value in told.items()}
    others = [path for path, value in loaded.files.items() if hashes.get(Path(path).name) != value]
    return others if told and others else [loaded.origin.replace(f" {HELD_OUT}", "")]


def _options(settings: dict) -> DataOptions:
    files = {name: settings.get(name) for name in FILES}
    return DataOptions(settings.get("data_dir"), data_revision=settings.get("data_revision"), **files)


def _own_rows(role: str, settings: dict) -> tuple[LoadedSplit, list[str]]:
    """Rows of `--data_format`, and the file and line of each."""
    found = format_source(settings).read(role)
    return LoadedSplit(found.rows, found.origin, found.fingerprint, 0, found.files), [*map(_short, found.places)]


def _short(place: str) -> str:
    """A place without its folders.

    >>> _short("/home/ada/reviews.csv:6")
    'reviews.csv:6'
    """
    return place.rsplit("/", 1)[-1]


CHANGED = "has changed since"
# What `HeldOutRows` says at the end of an origin.
HELD_OUT = "(held-out rows)"
FOLDER = "predictions"
# Points by which a metric may differ that is computed again: sums in another order.
TOLERANCE = 1e-6


class Evaluation(NamedTuple):
    """One split of one task as a run answered it.

    Attributes:
      name: as results name it (`mnli_matched`, `rte.test`).
      lines: the predictions file's lines.
      examples: per line `{"row": its number in the source, "key": what names it, "inputs", "target", "prediction"}`;
        `inputs` is None where the rows could not be read.
      judged: predictions, references and groups as the metrics take them; None where the labels are not known.
      unit_keys: what names each judged prediction, in their order.
      scores: as `results.json` has them.
      note: why there are no texts, or no labels.
    """

    name: str
    task: Task
    role: str
    split: str
    examples: list[dict]
    judged: Judged | None
    unit_keys: list
    scores: dict
    note: str = ""

    @property
    def num_classes(self) -> int | None:
        """How many label words the task has."""
        return len(self.task.label_words) if self.task.label_words else None


def evaluations_of(directory, data_dir: str | None = None) -> list[Evaluation]:
    """Every evaluated split of a run that left predictions, in the order of its results.

    Args:
      data_dir: where the rows are now, if not where the run had them.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    results = read_results(directory)["tasks"] if (directory / RESULTS).is_file() else {}
    found = []
    for name, scores in results.items():
        place = _place_of(name, manifest)
        if place is None:
            continue
        task, role, split = place
        path = directory / FOLDER / f"{task.name}.{split}.jsonl"
        if path.is_file():
            found.append(_evaluation(name, task, role, split, path, scores, manifest, data_dir))
    return found


def _place_of(name: str, manifest: dict) -> tuple[Task, str, str] | None:
    """The task, role and split that a result is about, from the manifest's own entries."""
    benchmark = str(tasks_named(manifest)[0])
    for task_name, entry in (manifest.get("tasks") or {}).items():
        try:
            check_entry(f"{benchmark}/{task_name}", entry)
        except UserError:
            continue
        task = Task(benchmark, task_name, entry)
        for role in ("validation", "test"):
            for result, split in task.splits(role).items():
                is_role = role == "validation" or not task.splits("validation")
                if name == (f"{result}.test" if not is_role else result):
                    return task, role, split
    return None


def _evaluation(name, task: Task, role, split, path, scores, manifest, data_dir) -> Evaluation:
    lines = read_lines(path)
    if any("inputs" in line for line in lines):
        rows, note = None, ""  # the run kept its texts, for nothing could read them again
    else:
        rows, note = rows_again(task, role, split, manifest, data_dir)
    if rows is not None:
        joined = _joined(task, role, rows, lines, scores)
        if joined is not None:
            return Evaluation(name, task, role, split, *joined, scores)
        note = f"the rows of {task.name} {split} are no longer those that the run was scored on"
    examples = [{"row": line["row"], "key": key_of(line), "inputs": line.get("inputs"), "target": line.get("target"),
                 "prediction": line["prediction"]} for line in lines]  # fmt: skip
    judged = _judged_by_targets(task, lines, scores)
    keys = _unit_keys(judged, examples) if judged else []
    return Evaluation(name, task, role, split, examples, judged, keys, scores, note)


def read_lines(path) -> list[dict]:
    """The lines of a predictions file.

    Raises:
      DataError: a line without `row` or `prediction`.
    """
    lines = read_jsonl(path)
    for number, line in enumerate(lines, start=1):
        if not isinstance(line.get("prediction"), str) or not isinstance(line.get("row"), int):
            raise DataError(f"{path}:{number}: no line of predictions: it needs 'row' and 'prediction'")
    return lines


def key_of(line: dict) -> str:
    """What names a line's row, in whatever subset it stands: the data's own `idx`, its place in a file, a hash of its
    text, or else its number.

    >>> key_of({"row": 3, "idx": 17}), key_of({"row": 3, "idx": {"question": 2, "answer": 1}}), key_of({"row": 3})
    ('17', 'answer 1, question 2', 'row 3')
    >>> key_of({"row": 3, "place": "reviews.csv:6"}), key_of({"row": 3, "inputs": "I hated the soup."})
    ('reviews.csv:6', 'text b54e3db6')
    """
    idx = line.get("idx")
    if idx is None and line.get("place"):
        return line["place"]
    if idx is None and isinstance(line.get("inputs"), str):
        return f"text {hashlib.sha256(line['inputs'].encode('utf-8', 'replace')).hexdigest()[:8]}"
    if idx is None:
        return f"row {line['row']}"
    if isinstance(idx, dict):
        return ", ".join(f"{name} {value}" for name, value in sorted(idx.items()))
    return str(idx)


def _joined(task: Task, role: str, rows: RowsAgain, lines: list[dict], scores: dict):
    """`(examples, judged, unit keys)`; None where rows and lines do not belong together."""
    contents, numbers = rows.rows, rows.numbers
    place_of = dict(enumerate(rows.places))
    try:
        made = [(at, example) for at, row in enumerate(contents) for example in task.examples(row, role)]
    except (UserError, TypeError, ValueError, LookupError, AttributeError):
        return None
    belongs = len(made) == len(lines) and all(
        at == line["row"] and line.get("target", example.targets) == example.targets
        for (at, example), line in zip(made, lines)
    )
    if not belongs:
        return None
    examples = [
        {"row": numbers[at], "key": key_of({**line, "row": numbers[at], "place": place_of.get(at)}),
         "inputs": example.inputs,
         "target": example.targets if "target" in line or "candidate" in line else None,
         "prediction": line["prediction"]}
        for (at, example), line in zip(made, lines)
    ]  # fmt: skip
    row_of_example, predictions = [at for at, _ in made], [line["prediction"] for line in lines]
    if not scores or not all(task.is_labelled(row) for row in contents):
        return examples, None, []
    judged = POSTPROCESSORS[task.entry.get("postprocess") or "values"](task, contents, row_of_example, predictions)
    if not reproduces(task, judged, scores):
        return None
    return examples, judged, _unit_keys(judged, examples)


def _unit_keys(judged: Judged, examples: list[dict]) -> list:
    """One key a judged prediction; where several examples are one (ReCoRD's answers), that of the first of its row."""
    if len(judged.predictions) == len(examples):
        seen: dict[str, int] = {}
        return [(e["key"], seen.update({e["key"]: seen.get(e["key"], -1) + 1}) or seen[e["key"]]) for e in examples]
    keys = list(dict.fromkeys(example["key"] for example in examples))
    return [(key, 0) for key in keys] if len(keys) == len(judged.predictions) else []


def _judged_by_targets(task: Task, lines: list[dict], scores: dict) -> Judged | None:
    """What the metrics take, from the target texts alone, where that gives the same scores."""
    if not scores or task.entry.get("postprocess") or task.entry.get("group_by") or task.entry.get("references_by"):
        return None
    if not all(isinstance(line.get("target"), str) for line in lines):
        return None
    judged = Judged([task.parse(line["prediction"]) for line in lines], [task.parse(line["target"]) for line in lines])
    return judged if reproduces(task, judged, scores) else None


def reproduces(task: Task, judged: Judged, scores: dict) -> bool:
    """Whether the metrics come out as they were reported."""
    known = {name: function for name, function in metric_functions(task.entry).items() if name in scores}
    return bool(known) and all(same(measured(task, function, judged), scores[name]) for name, function in known.items())


def measured(task: Task, function, judged: Judged) -> float:
    """A metric's points."""
    classes = len(task.label_words) if task.label_words else None
    return function(judged.predictions, judged.references, groups=judged.groups, num_classes=classes)


def same(value: float, reported: float | None) -> bool:
    """Whether two scores are the same number, where None and NaN both say that it is none."""
    if reported is None or math.isnan(value):
        return (reported is None or math.isnan(reported)) and math.isnan(value)
    return abs(value - reported) <= TOLERANCE * max(1.0, abs(reported))


# Of the examples that are shown, at most this share may be right ones where there are enough others.
SHARE_RIGHT = 0.4
LONGEST_TEXT = 1200


def examples_of(evaluation: Evaluation, most: int) -> dict:
    """`{"total", "verdicts": {verdict: how many}, "shown", "examples": [...]}`, at most `most` of them.

    Invalid and wrong ones come first, then right ones; each kind in the rows' order.
    """
    verdicts = [verdict_of(evaluation, example) for example in evaluation.examples]
    counts = collections.Counter(verdicts)
    examples = [
        {
            "row": example["row"],
            "key": example["key"],
            "where": where(example),
            "inputs": shortened(example["inputs"]),
            "target": shortened(example["target"]),
            "prediction": shortened(example["prediction"]),
            "verdict": found,
        }
        for example, found in zip(evaluation.examples, verdicts)
    ]
    chosen = chosen_examples(examples, most)
    return {
        "total": len(examples),
        "verdicts": {name: counts[name] for name in VERDICTS if counts[name]},
        "shown": len(chosen),
        "examples": chosen,
    }


def verdict_of(evaluation: Evaluation, example: dict) -> str:
    """'right', 'wrong', 'invalid' (`tasks.postprocessors`), or 'unlabelled'; the metrics may see texts more finely."""
    target = example["target"]
    return "unlabelled" if target is None else correctness(evaluation.task, example["prediction"], [target])


def where(example: dict) -> str:
    """Where an example's row stands, for a reader: in a file of one's own, else by its number in the source.

    >>> where({"key": "reviews.csv:6", "row": 4}), where({"key": "17", "row": 4})
    ('reviews.csv:6', 'row 4')
    """
    key = example["key"]
    return key if re.search(r":\d+$| (entry|row) \d+$", key) else f"row {example['row']}"


def chosen_examples(examples: list[dict], most: int) -> list[dict]:
    """At most `most`, of every kind some."""
    if len(examples) <= most:
        return examples
    kinds = {name: [e for e in examples if e["verdict"] == name] for name in VERDICTS}
    others = [*kinds["invalid"], *kinds["wrong"], *kinds["unlabelled"]]
    right = kinds["right"]
    num_right = min(len(right), max(most - len(others), round(most * SHARE_RIGHT)))
    return [*others[: most - num_right], *right[:num_right]]


def shortened(text: str | None) -> str | None:
    """A text of a length that a page can hold, with how much is left out."""
    if text is None or len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT} more characters)"


VERDICTS = ("invalid", "wrong", "right", "unlabelled")


def majority(evaluation: Evaluation) -> dict | None:
    """The most frequent label's share and scores; None where the task has no closed label set, or no known labels.

    Of labels that are equally frequent the first in the task's list counts.
    """
    task, judged = evaluation.task, evaluation.judged
    if judged is None or task.value_kind != "class":
        return None
    counts = collections.Counter(judged.references)
    label = max(range(len(task.label_words)), key=lambda c: counts[c])
    constant = judged._replace(predictions=[label] * len(judged.references))
    scores = {}
    for name, function in metric_functions(task.entry).items():
        if name in evaluation.scores:
            value = measured(task, function, constant)
            scores[name] = None if math.isnan(value) else value
    share = 100 * counts[label] / len(judged.references)
    return {"label": task.label_words[label], "share": share, "scores": scores}


def confusion(evaluation: Evaluation) -> dict | None:
    """Rows by label (down) and answer (across, `invalid` last where there are any); None without a closed label set.

    >>> confusion(evaluation)["counts"]
    [[120, 26], [60, 71]]
    """
    task, judged = evaluation.task, evaluation.judged
    if judged is None or task.value_kind != "class":
        return None
    words, invalid = task.label_words, [p not in range(len(task.label_words)) for p in judged.predictions]
    answers = [*words, "invalid"] if any(invalid) else list(words)
    counts = [[0] * len(answers) for _ in words]
    for prediction, reference, is_invalid in zip(judged.predictions, judged.references, invalid):
        counts[reference][-1 if is_invalid else prediction] += 1
    return {"labels": list(words), "answers": answers, "counts": counts}
