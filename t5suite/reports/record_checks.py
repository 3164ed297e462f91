"""What can be checked of a run without its model: do its files, scores, answers, card and tasks agree with each other?

>>> problems_of_files(record)
['predictions/sentiment.validation.jsonl is not the file that the run wrote (SHA-256)']
>>> problems_of_scores("sentiment", {"accuracy": 91.4}, {"accuracy": 92.4})
['sentiment: accuracy is 91.40 by the recorded answers, and 92.40 in results.json']

Each problem is one sentence; a record without any is consistent, which does not show that its model gives the answers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from t5suite.base.errors import UserError
from t5suite.base.hub_statements import CARD, header_of_file
from t5suite.base.lookup import listed
from t5suite.constants import DATASET_VALS
from t5suite.data.rows.jsonl import file_sha256
from t5suite.reports.averages import SplitFigure, averaged_tasks, averages_of, figure_of
from t5suite.reports.evaluations import TOLERANCE
from t5suite.reports.formatting import average_title, points
from t5suite.reports.run_records import RecordedSplit, RunRecord, with_class_ids
from t5suite.reports.shared_files import FILES_OF_MODEL, FOLDERS_WITHHELD, HASHED, files_of_record
from t5suite.runs.directory import MANIFEST, RESULTS, tasks_named
from t5suite.runs.public_record import RECORD_HASH, record_sha256
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.task_card import TASK_CARD, read_task_card

# Points by which a number on a card may differ from one in results.json: its table has two decimals.
CARD_TOLERANCE = 0.00501
# Rows of a split that a message names.
MOST_NAMED = 5


def problems_of_files(record: RunRecord) -> list[str]:
    """Files that are not those that the run wrote, by the hashes in its manifest; earlier versions recorded none."""
    problems = []
    hashes = record.manifest.get("files")
    if hashes is not None:
        shared = {name: sha256 for name, sha256 in hashes.items() if not is_withheld(record, name)}
        problems += differing_files(record.folder, shared, HASHED, "wrote")
    hashes_of_model = record.manifest.get("model_files")
    if hashes_of_model is not None and record.model_folder is not None:
        of_model = differing_files(record.model_folder, hashes_of_model, FILES_OF_MODEL, "has read")
        problems += [f"the model in {record.model_folder}: {problem}" for problem in of_model]
    return problems


def differing_files(folder: Path, hashes: Mapping[str, str], patterns: Sequence[str], verb: str) -> list[str]:
    """Files of a folder that are not those that were there, by their hashes.

    Args:
      patterns: of files that must have a hash.
      verb: what the run did with the files: `wrote`, `has read`.
    """
    problems = []
    for name, sha256 in hashes.items():
        path = folder / name
        is_inside = path.resolve().is_relative_to(folder.resolve()) or path.is_symlink()
        if not is_inside or not path.is_file():
            problems.append(f"{name} is missing, which the run {verb}")
        elif file_sha256(path) != sha256:
            problems.append(f"{name} is not the file that the run {verb} (SHA-256)")
    new_names = [name for name in files_of_record(folder, patterns) if name not in hashes]
    return problems + [f"{name} is in the folder, but is no file that the run {verb}" for name in new_names]


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


def problems_of_scores(name: str, scores: Mapping, reported: Mapping, names_of_losses: Sequence[str] = ()) -> list[str]:
    """Scores in `results.json` that the recorded answers do not give.

    >>> problems_of_scores("sentiment", {"accuracy": 91.4}, {"accuracy": 92.4})
    ['sentiment: accuracy is 91.40 by the recorded answers, and 92.40 in results.json']

    Args:
      scores: those of the recorded answers.
      reported: those in `results.json`.
      names_of_losses: other names that `results.json` may have, whose values answers do not give.
    """
    problems = []
    for metric, score in scores.items():
        if metric not in reported:
            problems.append(f"{name}: {RESULTS} has no {metric}, which is {points(score, 'nan')} by the answers")
        elif not is_same(score, reported[metric]):
            problems.append(
                f"{name}: {metric} is {points(score, 'nan')} by the recorded answers, and "
                f"{points(reported[metric], 'nan')} in {RESULTS}"
            )
    for metric in sorted(reported.keys() - {*scores, *names_of_losses}):
        problems.append(f"{name}: {RESULTS} has {metric}, which the recorded answers do not give")
    return problems


def problems_of_groups(name: str, groups: Mapping, reported: Mapping) -> list[str]:
    """Scores of parts of a split (`report_by`) in `results.json` that the recorded answers do not give.

    Args:
      groups: `{column: {value: {metric: points}}}` by the recorded answers; reported: those in `results.json`.
    """
    problems = []
    for column in sorted({*groups, *reported}):
        parts = groups.get(column, {})
        reported_parts = reported.get(column, {})
        for value in sorted({*parts, *reported_parts}):
            place = f"{name}, {column} {value}"
            problems += problems_of_scores(place, parts.get(value, {}), reported_parts.get(value, {}))
    return problems


def is_same(score: float, reported: float | None, share: float = TOLERANCE) -> bool:
    """Whether two numbers are one score, but for a share; None and NaN both mean that a score is not defined."""
    if reported is None:
        return math.isnan(score)
    return is_near(score, reported, share * max(1.0, abs(reported)))


def is_near(number: float, second_number: float, distance: float) -> bool:
    """Whether two numbers are at most so far apart; NaN is near NaN."""
    if math.isnan(number) or math.isnan(second_number):
        return math.isnan(number) and math.isnan(second_number)
    return abs(number - second_number) <= distance


def problems_of_names(record: RunRecord) -> list[str]:
    """Names in `results.json` that are of no split that was answered."""
    answered = {split.name for split in record.splits}
    names = dict.fromkeys((*record.results["tasks"], *groups_of_results(record)))
    return [f"{name}: {RESULTS} has scores, but nothing was answered for it" for name in names if name not in answered]


def groups_of_results(record: RunRecord) -> Mapping:
    """The scores of parts of splits, by the splits' names."""
    return record.results.get("groups") or {}


def problems_of_averages(record: RunRecord) -> list[str]:
    """Averages in `results.json` that do not follow from its scores."""
    figures = []
    for split in record.splits:
        scored = split.scored
        metrics = {name: nan_for_none(score) for name, score in record.results["tasks"].get(split.name, {}).items()}
        figure = figure_of(metrics, scored.task.optimised)
        figures.append(SplitFigure(split.name, scored.task, scored.role, figure))
    benchmark, dataset_name = tasks_named(record.manifest)
    average_over, published = averaged_tasks(benchmark, dataset_name, record.manifest.get("tasks") or {})
    averages = averages_of(figures, benchmark, average_over, published)
    reported = record.results["averages"]
    problems = []
    for suite, average in averages.items():
        mean = points(average, "nan")
        if suite not in reported:
            problems.append(f"{suite}: {RESULTS} has no average, and the mean of the tasks is {mean}")
        elif not is_same(average, reported[suite]):
            score = points(reported[suite], "nan")
            problems.append(f"{suite}: the mean of the tasks is {mean}, and {score} in {RESULTS}")
    for suite in reported.keys() - averages.keys():
        problems.append(f"{suite}: {RESULTS} has an average, which the run's tasks do not give")
    return problems


def nan_for_none(score: float | None) -> float:
    """A score of `results.json`, in which None stands for NaN."""
    return math.nan if score is None else score


def problems_of_card(record: RunRecord) -> list[str]:
    """Scores on the card that are not those of `results.json`; a card without scores says nothing wrong."""
    path = record.folder / CARD
    if not path.is_file():
        return []
    problems = []
    for name, metric, value in [*scores_in_header(path), *scores_in_table(path)]:
        reported = reported_score(record.results, name, metric)
        number = number_on_card(value)
        is_right = None not in (number, reported) and is_near(number, reported, CARD_TOLERANCE)
        if not is_right:
            shown_value = f"{value!r:.60}" if number is None else points(number, "nan")
            score = points(reported, "none")
            problems.append(f"{CARD}: {name}: {metric} is {shown_value} on the card, and {score} in {RESULTS}")
    return list(dict.fromkeys(problems))


def number_on_card(value) -> float | None:
    """A score on a card, which may be quoted; None if it is no number.

    >>> number_on_card("66.79"), number_on_card("**66.79**")
    (66.79, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


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
    return nan_for_none(scores[key])


def scores_in_header(path: Path) -> Iterator[tuple[str, str, object]]:
    """`(task, metric, value)` of the hub's metadata in a card; what is no table there is no score."""
    for model in tables_in(header_of_file(path).get("model-index")):
        for result in tables_in(model.get("results")):
            task = result.get("task")
            name = task.get("name") if isinstance(task, Mapping) else task
            for metric in tables_in(result.get("metrics")):
                title = str(metric.get("name") or metric.get("type"))
                if metric.get("value") is not None:
                    yield str(name), title.partition(" (")[0], metric["value"]


def tables_in(value) -> list[Mapping]:
    """The tables in a list; none in what is no list.

    >>> tables_in([{"name": "rte"}, "rte"]), tables_in("rte")
    ([{'name': 'rte'}], [])
    """
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, Mapping)]


def scores_in_table(path: Path) -> Iterator[tuple[str, str, str]]:
    """`(task, metric, value)` of the table of scores in a card, whose values have two decimals."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 6 and cells[5] == "points":
            yield cells[0], cells[3], cells[4]
