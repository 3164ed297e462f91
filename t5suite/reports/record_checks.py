"""What can be checked of a run without its model: do its files, manifest, tasks and answers agree with each other?

>>> problems_of_files(record)
['predictions/sentiment.validation.jsonl is not the file that the run wrote (SHA-256)']

Each problem is one sentence; a record without any is consistent, which does not show that its model gives the answers.
`score_checks` and `card_checks` compare its numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from t5suite.base.errors import UserError
from t5suite.base.files import file_sha256
from t5suite.base.lookup import listed
from t5suite.constants import DATASET_VALS
from t5suite.reports.evaluations import with_class_ids
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.reports.shared_files import FILES_OF_MODEL, FOLDERS_WITHHELD, HASHED, files_of_record
from t5suite.runs.directory import MANIFEST, tasks_named
from t5suite.runs.public_record import RECORD_HASH, record_sha256
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.task_card import TASK_CARD, read_task_card

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
