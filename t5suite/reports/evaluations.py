"""A run's predictions joined with labels, and with texts where they are known.

>>> (evaluation,) = evaluations_of("runs/glue-rte-t5-small")
>>> evaluation.name, len(evaluation.examples), evaluation.judged.predictions[:3], evaluation.judged.references[:3]
('rte', 277, [0, 1, -1], [0, 1, 1])

The rows are read again from where the run read them and are used only if their fingerprint, or every target, is that of
the run: a relative path is tried from the working directory, from where the run was started, and in `--data_dir`.
Without them the targets in the predictions file serve as labels. In both cases the labels are used only if they
reproduce the metrics of `results.json`.
"""

import collections
import contextlib
import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import DataError, UserError
from t5suite.base.script_flags import flags_marked
from t5suite.data.rows.formats import format_source
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.sources import DataOptions, LoadedSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.reports.formatting import shortened
from t5suite.runs.directory import RESULTS, read_manifest, read_results, tasks_named
from t5suite.tasks.entry_checks import check_entry
from t5suite.tasks.entry_metrics import metric_functions
from t5suite.tasks.postprocessors import Judged, correctness
from t5suite.tasks.registry import Task
from t5suite.tasks.tokens import without_cut

FILES = tuple(name for name in flags_marked("rows") if name.endswith("_file"))
CHANGED = "has changed since"
# What `HeldOutRows` appends to an origin.
HELD_OUT = "(held-out rows)"
# Points by which a recomputed metric may differ: its sums may be in another order.
TOLERANCE = 1e-6
VERDICTS = ("invalid", "wrong", "right", "unlabelled")
LONGEST_TEXT = 1200


class RowsAgain(NamedTuple):
    """The rows that a run evaluated, in its order; `places` names file and line of rows of `--data_format`.

    Attributes:
      numbers: of the rows in their source.
    """

    rows: list[dict]
    numbers: list[int]
    places: list[str]


def rows_again(
    task: Task, role: str, split: str, manifest: dict, data_dir: str | None = None
) -> tuple[RowsAgain | None, str]:
    """`(the rows, "")`, or `(None, why not)`; `data_dir` is where to look first."""
    described = (manifest.get("data") or {}).get(f"{task.name}.{split}") or {}
    reasons = []
    data_sets = (manifest.get("hub") or {}).get("datasets", {})
    revisions = ",".join(f"{name}={entry['commit']}" for name, entry in data_sets.items() if "@" not in name)
    revisions = revisions or manifest["settings"].get("data_revision")
    for settings in settings_by_place(manifest, data_dir):
        try:
            if settings.get("data_format"):
                own = format_source({**settings, "data_revision": revisions}).read(role)
                loaded = LoadedSplit(own.rows, own.origin, own.fingerprint, 0, own.files)
                places = [place.rsplit("/", 1)[-1] for place in own.places]
            else:
                files = {name: settings.get(name) for name in FILES}
                options = DataOptions(settings.get("data_dir"), data_revision=revisions, **files)
                loaded, places = load_split(task, role, split, options), []
        except (UserError, OSError, ImportError) as error:
            reasons.append(f"the rows of {task.name} {split} could not be read again ({str(error)[:200]})")
            continue
        # The hub's fingerprint also depends on how a data set was loaded; its targets, compared later, do not.
        expected = described.get("fingerprint") in (None, loaded.fingerprint)
        if not expected and not loaded.fingerprint.startswith("datasets:"):
            hashes = {Path(path).name: value for path, value in (described.get("files") or {}).items()}
            changed = [path for path, value in loaded.files.items() if hashes and hashes.get(Path(path).name) != value]
            what = ", ".join(changed) or loaded.origin.replace(f" {HELD_OUT}", "")
            reasons.insert(0, f"the rows of {task.name} {split} are not those of the run any more: {what} {CHANGED}")
            continue
        is_extra_test = role == "test" and bool(task.splits("validation"))
        limit = settings.get("max_predict_samples" if is_extra_test else "max_eval_samples")
        drawn = select_rows(len(loaded.rows), limit=limit, seed=settings.get("seed") or 0, role=role)
        numbers = [int(number) for number in drawn]
        return RowsAgain([loaded.rows[n] for n in numbers], numbers, [places[n] for n in numbers if places]), ""
    return None, reasons[0]


def settings_by_place(manifest: dict, data_dir: str | None) -> Iterator[dict]:
    """The run's settings, once for each place where its files may be now."""
    settings = manifest["settings"]
    named = {
        name: settings[name] for name in (*flags_marked("rows"), "data_dir") if isinstance(settings.get(name), str)
    }
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


class Evaluation(NamedTuple):
    """One split of one task, with a run's answers.

    Attributes:
      name: as results name it (`mnli_matched`, `rte.test`).
      examples: `{"row": its number in the source, "key": what names it, "inputs", "target", "prediction"}`; `inputs`
        is None if the rows could not be read.
      judged: predictions, references and groups as the metrics take them; None if the labels are not known.
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
        return len(self.task.label_words or ()) or None


def evaluations_of(directory, data_dir: str | None = None) -> list[Evaluation]:
    """Every evaluated split of a run that left predictions, in the order of its results.

    Args:
      data_dir: where the rows are now, if not where the run had them.

    Raises:
      DataError: a line of predictions without `row` or `prediction`.
    """
    manifest = read_manifest(directory)
    results = read_results(directory)["tasks"] if Path(directory, RESULTS).is_file() else {}
    benchmark, splits = str(tasks_named(manifest)[0]), {}
    for task_name, entry in (manifest.get("tasks") or {}).items():
        with contextlib.suppress(UserError):  # an entry of another version
            check_entry(f"{benchmark}/{task_name}", entry)
            task = Task(benchmark, task_name, entry)
            for role in ("validation", "test"):
                suffix = ".test" if role == "test" and task.splits("validation") else ""
                splits |= {f"{result}{suffix}": (task, role, split) for result, split in task.splits(role).items()}
    found = []
    for name, scores in results.items():
        task, _, split = splits.get(name, (None, "", ""))
        path = Path(directory, "predictions", f"{task.name}.{split}.jsonl") if task else None
        if path and path.is_file():
            lines = read_jsonl(path)
            for number, line in enumerate(lines, start=1):
                if not isinstance(line.get("prediction"), str) or not isinstance(line.get("row"), int):
                    raise DataError(f"{path}:{number}: not a line of predictions: it needs 'row' and 'prediction'")
            found.append(_evaluation(name, *splits[name], lines, scores, manifest, data_dir))
    return found


def _evaluation(name, task: Task, role, split, lines, scores, manifest, data_dir) -> Evaluation:
    """The lines with their texts, or, without the rows, with what the lines contain."""
    note = ""
    if not any("inputs" in line for line in lines):  # else the run kept its texts, as they cannot be read again
        rows, note = rows_again(task, role, split, manifest, data_dir)
        joined = _joined(task, role, rows, lines, scores) if rows else None
        if joined:
            return Evaluation(name, task, role, split, *joined, scores)
        note = note or f"the rows of {task.name} {split} are no longer those that the run was scored on"
    examples = [
        {
            "row": line["row"],
            "key": key_of(line),
            "inputs": line.get("inputs"),
            "target": line.get("target"),
            "prediction": line["prediction"],
        }
        for line in lines
    ]
    judged, shaped = None, any(task.entry.get(field) for field in ("postprocess", "group_by", "references_by"))
    if scores and not shaped and all(isinstance(line.get("target"), str) for line in lines):
        judged = Judged(*([task.parse(line[side]) for line in lines] for side in ("prediction", "target")))
        judged = judged if _reproduces(task, judged, scores) else None
    keys = _unit_keys(judged, examples) if judged else []
    return Evaluation(name, task, role, split, examples, judged, keys, scores, note)


def key_of(line: dict) -> str:
    """What names a line's row, in any subset: the data's `idx`, its place in a file, a hash of its text, or its number.

    >>> key_of({"row": 3, "idx": 17}), key_of({"row": 3, "idx": {"question": 2, "answer": 1}}), key_of({"row": 3})
    ('17', 'answer 1, question 2', 'row 3')
    >>> key_of({"row": 3, "place": "reviews.csv:6"}), key_of({"row": 3, "inputs": "I hated the soup."})
    ('reviews.csv:6', 'text b54e3db6')
    """
    idx = line.get("idx")
    if isinstance(idx, dict):
        return ", ".join(f"{name} {value}" for name, value in sorted(idx.items()))
    if idx is not None:
        return str(idx)
    if line.get("place"):
        return line["place"]
    if isinstance(line.get("inputs"), str):
        return f"text {hashlib.sha256(without_cut(line['inputs']).encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"row {line['row']}"


def _joined(task: Task, role: str, again: RowsAgain, lines: list[dict], scores: dict):
    """`(examples, judged, unit keys)`; None where rows and lines do not belong together."""
    try:
        read = task.example_set(again.rows, role)
    except (UserError, TypeError, ValueError, LookupError, AttributeError):
        return None
    if read.row_of_example != [line["row"] for line in lines]:
        return None
    examples = []
    for at, example, line in zip(read.row_of_example, read.examples, lines):
        if line.get("target", example.targets) != example.targets:
            return None
        known = {"row": again.numbers[at], "place": again.places[at] if again.places else None}
        target = example.targets if "target" in line or "candidate" in line else None
        examples.append(
            {
                "row": known["row"],
                "key": key_of({**line, **known}),
                "inputs": example.inputs,
                "target": target,
                "prediction": line["prediction"],
            }
        )
    if not scores or not all(task.is_labelled(row) for row in again.rows):
        return examples, None, []
    judged = task.judged(read, [line["prediction"] for line in lines])
    return (examples, judged, _unit_keys(judged, examples)) if _reproduces(task, judged, scores) else None


def _unit_keys(judged: Judged, examples: list[dict]) -> list:
    """One key per judged prediction; if it joins several examples (ReCoRD's answers), that of its row's first."""
    keys = [example["key"] for example in examples]
    if len(judged.predictions) == len(keys):
        return numbered(keys)
    first = [(key, 0) for key in dict.fromkeys(keys)]
    return first if len(first) == len(judged.predictions) else []


def numbered(keys: list) -> list[tuple]:
    """Each key with how many equal ones came before it.

    >>> numbered(["a", "b", "a"])
    [('a', 0), ('b', 0), ('a', 1)]
    """
    seen = collections.Counter()
    return [(key, seen.update([key]) or seen[key] - 1) for key in keys]


def _reproduces(task: Task, judged: Judged, scores: dict) -> bool:
    """Whether the metrics equal the reported ones; None and NaN both mean that a score is not defined."""
    known = {name: function for name, function in metric_functions(task.entry).items() if name in scores}
    classes = len(task.label_words or ()) or None
    for name, function in known.items():
        reported = math.nan if scores[name] is None else scores[name]
        value = function(judged.predictions, judged.references, groups=judged.groups, num_classes=classes)
        if math.isnan(value) != math.isnan(reported) or abs(value - reported) > TOLERANCE * max(1.0, abs(reported)):
            return False
    return bool(known)


def examples_of(evaluation: Evaluation, most: int) -> dict:
    """`{"total", "verdicts": {verdict: how many}, "shown", "examples": [...]}`, at most `most` of them.

    Invalid and wrong ones come first, then the others; each kind in the rows' order.
    """
    kinds: dict[str, list] = {verdict: [] for verdict in VERDICTS}
    for example in evaluation.examples:
        texts = {name: example[name] for name in ("inputs", "target", "prediction")}
        texts = {name: text and shortened(text, LONGEST_TEXT) for name, text in texts.items()}
        in_file = re.search(r":\d+$| (entry|row) \d+$", example["key"])
        where = example["key"] if in_file else f"row {example['row']}"
        verdict = verdict_of(evaluation, example)
        kinds[verdict].append({**example, **texts, "where": where, "verdict": verdict})
    found = [example for kind in kinds.values() for example in kind]
    verdicts = {verdict: len(kind) for verdict, kind in kinds.items() if kind}
    return {"total": len(found), "verdicts": verdicts, "shown": len(found[:most]), "examples": found[:most]}


def verdict_of(evaluation: Evaluation, example: dict) -> str:
    """'right', 'wrong', 'invalid' (`tasks.postprocessors`), or 'unlabelled'; on texts, metrics may be finer."""
    target = example["target"]
    return "unlabelled" if target is None else correctness(evaluation.task, example["prediction"], [target])


def majority(evaluation: Evaluation) -> dict | None:
    """The most frequent label's share and scores; None where the task has no closed label set, or no known labels.

    If several labels are equally frequent, the first in the task's list counts.
    """
    task, judged = evaluation.task, evaluation.judged
    if judged is None or task.value_kind != "class":
        return None
    counts = collections.Counter(judged.references)
    label = max(range(len(task.label_words)), key=lambda c: counts[c])
    constant, classes, scores = [label] * len(judged.references), evaluation.num_classes, {}
    for name, function in metric_functions(task.entry).items():
        if name in evaluation.scores:
            value = function(constant, judged.references, groups=judged.groups, num_classes=classes)
            scores[name] = None if math.isnan(value) else value
    return {"label": task.label_words[label], "share": 100 * counts[label] / len(judged.references), "scores": scores}


def confusion(evaluation: Evaluation) -> dict | None:
    """Rows by label (down) and answer (across, `invalid` last where there are any); None without a closed label set.

    >>> confusion(evaluation)["counts"]
    [[120, 26], [60, 71]]
    """
    task, judged = evaluation.task, evaluation.judged
    if judged is None or task.value_kind != "class":
        return None
    words = list(task.label_words)
    answers = [*words, "invalid"] if any(p not in range(len(words)) for p in judged.predictions) else words
    counts = [[0] * len(answers) for _ in words]
    for answer, reference in zip(judged.predictions, judged.references):
        counts[reference][answer if answer in range(len(words)) else -1] += 1
    return {"labels": words, "answers": answers, "counts": counts}
