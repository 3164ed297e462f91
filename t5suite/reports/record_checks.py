"""What can be checked of a run without its model: do its files, scores, answers, card and tasks agree with each other?

>>> problems_of_files(record)
['predictions/sentiment.validation.jsonl is not the file that the run wrote (SHA-256)']
>>> problems_of_scores(record, {"sentiment": rows})
['sentiment: accuracy is 91.40 by the recorded answers, and 92.40 in results.json']

Each problem is one sentence; a record without any is consistent, which does not show that its model gives the answers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from t5suite.base.errors import UserError
from t5suite.base.hub_statements import CARD, header_of_file
from t5suite.base.lookup import listed
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.data.rows.jsonl import file_sha256
from t5suite.reports.evaluations import TOLERANCE
from t5suite.reports.formatting import average_title, points
from t5suite.reports.run_records import RecordedSplit, RunRecord, with_class_ids
from t5suite.reports.shared_files import FOLDERS_WITHHELD, files_of_record
from t5suite.runs.directory import MANIFEST, RESULTS, tasks_named
from t5suite.runs.public_record import RECORD_HASH, record_sha256
from t5suite.tasks.entry_metrics import optimised_metrics
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.task_card import TASK_CARD, read_task_card

# The share by which a number on a card may differ from one in results.json: its table has two decimals.
CARD_TOLERANCE = 0.00501
# Rows of a split that a message names.
MOST_NAMED = 5


def problems_of_files(record: RunRecord) -> list[str]:
    """Files that are not those that the run wrote, by the hashes in its manifest; earlier versions recorded none."""
    hashes = record.manifest.get("files")
    if hashes is None:
        return []
    problems = []
    for name, sha256 in hashes.items():
        path = record.folder / name
        if is_withheld(record, name):
            continue
        is_inside = path.resolve().is_relative_to(record.folder.resolve()) or path.is_symlink()
        if not is_inside or not path.is_file():
            problems.append(f"{name} is missing, which the run wrote")
        elif file_sha256(path) != sha256:
            problems.append(f"{name} is not the file that the run wrote (SHA-256)")
    new_names = [name for name in files_of_record(record.folder) if name not in hashes]
    return problems + [f"{name} is in the folder, but is no file that the run wrote" for name in new_names]


def is_withheld(record: RunRecord, name: str) -> bool:
    """Whether an upload has left a file out: of answers, of rows, of a task's best weights; never one that is there."""
    is_listed = name in (record.manifest.get("withheld") or ())
    return is_listed and name.startswith(FOLDERS_WITHHELD) and not (record.folder / name).exists()


def problems_of_manifest(record: RunRecord, expected: str | None = None) -> list[str]:
    """Whether the manifest says what the run wrote into it, by its own hash and by one from elsewhere.

    Args:
      expected: the hash of the record that the user has from elsewhere.
    """
    sha256 = record_sha256(record.manifest)
    problems = []
    if record.manifest.get(RECORD_HASH) not in (None, sha256):
        problems.append(f"{MANIFEST} does not say what the run wrote into it ({RECORD_HASH})")
    if expected is not None and expected != sha256:
        problems.append(f"the record is another one: its SHA-256 is {sha256}, not {expected}")
    return problems


def problems_of_tasks(record: RunRecord) -> list[str]:
    """Tasks that differ between the manifest, `task.json`, and the benchmarks that come with the suite."""
    problems = []
    benchmark = tasks_named(record.manifest)[0]
    card = None
    try:
        card = read_task_card(record.folder)
    except UserError as error:
        problems.append(str(error))
    for name, entry in (record.manifest.get("tasks") or {}).items():
        entry = with_class_ids(entry)
        shipped = DATASET_VALS.get(benchmark, {}).get(name)
        if shipped is not None:
            problems += differing_fields(entry, shipped, f"{benchmark}/{name}", "the benchmark that comes with t5suite")
        if card is not None and name in card.tasks:
            problems += differing_fields(entry, card.tasks[name].entry, f"{benchmark}/{name}", TASK_CARD)
    return problems


def differing_fields(entry: Mapping, second_entry: Mapping, name: str, place: str) -> list[str]:
    """The fields in which two entries of a task differ.

    >>> differing_fields({"prefix": "a: "}, {"prefix": "b: "}, "own/x", "task.json")
    ["own/x: prefix is 'a: ' in the manifest, and 'b: ' in task.json"]
    """
    problems = []
    for field in sorted({*entry, *second_entry}):
        value = as_json_has_it(entry.get(field))
        second_value = as_json_has_it(second_entry.get(field))
        # The card of a saved model leaves metrics of `evaluate` out; such runs are refused anyway.
        if value != second_value:
            problems.append(f"{name}: {field} is {value!r:.60} in the manifest, and {second_value!r:.60} in {place}")
    return problems


def as_json_has_it(value):
    """A field of an entry as JSON has it: lists for tuples, the words of a table of labels."""
    if isinstance(value, Mapping) and value and all(isinstance(key, int) for key in value):
        return [value[key] for key in sorted(value) if key >= 0]
    if isinstance(value, Mapping):
        return {key: as_json_has_it(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_has_it(part) for part in value]
    return value


def problems_of_lines(split: RecordedSplit, example_set: ExampleSet) -> list[str]:
    """Recorded lines that do not belong to the rows: their numbers, and the targets."""
    if len(split.lines) != len(example_set):
        return [f"{split.name}: {len(split.lines)} recorded answers for {len(example_set)} examples"]
    if [line["row"] for line in split.lines] != example_set.row_of_example:
        return [f"{split.name}: the recorded answers are not in the order of the rows"]
    differing = []
    for line, example in zip(split.lines, example_set.examples, strict=True):
        if line.get("target", example.targets) != example.targets:
            differing.append(
                f"row {line['row']} ({line['target']!r:.60} recorded, {example.targets!r:.60} in the rows)"
            )
    if not differing:
        return []
    return [f"{split.name}: {len(differing)} targets are not those of the rows: {listed(differing, MOST_NAMED)}"]


def scores_by_answers(split: RecordedSplit, example_set: ExampleSet, answers: list[str]) -> dict[str, float]:
    """The metrics of answers to a split's rows; empty where the rows have no labels."""
    return split.scored.task.score_examples(example_set, answers)


def problems_of_scores(split: RecordedSplit, scores: Mapping, results: Mapping) -> list[str]:
    """Scores in `results.json` that the recorded answers do not give.

    Args:
      scores: those of the recorded answers.
      results: as `results.json` has them.
    """
    reported = results["tasks"].get(split.name, {})
    problems = []
    for metric, score in scores.items():
        if metric not in reported:
            problems.append(f"{split.name}: {RESULTS} has no {metric}, which is {points(score, 'nan')} by the answers")
        elif not is_same(score, reported[metric]):
            problems.append(
                f"{split.name}: {metric} is {points(score, 'nan')} by the recorded answers, and "
                f"{points(reported[metric], 'nan')} in {RESULTS}"
            )
    if scores:
        unknown_metrics = sorted(reported.keys() - scores.keys())
        problems += [f"{split.name}: {RESULTS} has {name}, which is no metric of the task" for name in unknown_metrics]
    return problems


def is_same(score: float, reported: float | None, tolerance: float = TOLERANCE) -> bool:
    """Whether two numbers are one score; None and NaN both mean that a score is not defined."""
    if reported is None or math.isnan(reported):
        return math.isnan(score)
    return abs(score - reported) <= tolerance * max(1.0, abs(reported))


def problems_of_averages(record: RunRecord) -> list[str]:
    """Averages and names in `results.json` that do not follow from its scores."""
    problems = []
    answered = {split.name: split for split in record.splits}
    for name in record.results["tasks"]:
        if name not in answered:
            problems.append(f"{name}: {RESULTS} has scores, but nothing was answered for it")
    means = list(means_of_tasks(record, answered))
    for suite, average in record.results["averages"].items():
        expected = sum(means) / len(means) if means else math.nan
        if not is_same(expected, average):
            mean = points(expected, "nan")
            problems.append(f"{suite}: the mean of the tasks is {mean}, and {points(average, 'nan')} in {RESULTS}")
    return problems


def means_of_tasks(record: RunRecord, answered: Mapping[str, RecordedSplit]) -> Iterator[float]:
    """Each averaged task's one number: the mean over its metrics to optimise, and over its splits."""
    benchmark, dataset_name = tasks_named(record.manifest)
    mixture = MIXTURES.get(benchmark, {}).get(dataset_name)
    scores_of_task: dict[str, list[float]] = {}
    for name in counted_names(record.results["tasks"]):
        task = answered[name].scored.task if name in answered else None
        if task is not None and (mixture is None or task.name in mixture["average"]):
            values = optimised_values(record.results["tasks"][name], optimised_metrics(task.entry))
            if values:
                scores_of_task.setdefault(task.name, []).append(sum(values) / len(values))
    for scores in scores_of_task.values():
        yield sum(scores) / len(scores)


def counted_names(names: Iterable[str]) -> list[str]:
    """The results that averages count: test splits only if nothing else was scored."""
    names = list(names)
    return [name for name in names if not name.endswith(".test")] or names


def optimised_values(scores: Mapping, metrics: Iterable[str]) -> list[float]:
    """The scores of some metrics, NaN for those that are not defined."""
    values = [scores[metric] for metric in metrics if metric in scores]
    return [math.nan if value is None else value for value in values]


def problems_of_card(record: RunRecord) -> list[str]:
    """Scores on the card that are not those of `results.json`; a card without scores says nothing wrong."""
    path = record.folder / CARD
    if not path.is_file():
        return []
    problems = []
    for name, metric, value in [*scores_in_header(path), *scores_in_table(path)]:
        reported = reported_score(record.results, name, metric)
        if reported is None or not is_same(value, reported, CARD_TOLERANCE):
            score = points(reported, "none")
            problems.append(f"{CARD}: {name}: {metric} is {value:.2f} on the card, and {score} in {RESULTS}")
    return list(dict.fromkeys(problems))


def reported_score(results: Mapping, name: str, metric: str) -> float | None:
    """A score by its name and metric on a card; NaN where it is not defined, None where there is none."""
    if metric == "average":
        scores = {average_title(suite): average for suite, average in results["averages"].items()}
        key = name
    else:
        scores = results["tasks"].get(name, {})
        key = metric
    if key not in scores:
        return None
    return math.nan if scores[key] is None else scores[key]


def scores_in_header(path: Path) -> Iterator[tuple[str, str, float]]:
    """`(task, metric, value)` of the hub's metadata in a card."""
    for model in header_of_file(path).get("model-index") or ():
        for result in model.get("results") or ():
            name = (result.get("task") or {}).get("name")
            for metric in result.get("metrics") or ():
                title = str(metric.get("name") or metric.get("type"))
                if isinstance(metric.get("value"), (int, float)):
                    yield name, title.partition(" (")[0], float(metric["value"])


def scores_in_table(path: Path) -> Iterator[tuple[str, str, float]]:
    """`(task, metric, value)` of the table of scores in a card, whose values have two decimals."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 6 and cells[5] == "points":
            try:
                yield cells[0], cells[3], float(cells[4])
            except ValueError:
                continue
