"""Where rows come from: the hub, a local mirror, single files, or the bundled benchmark.

    >>> load_split(load_task("glue", "rte"), "train", "train", DataOptions(data_dir="data"))
    LoadedSplit(rows=Dataset(...), origin='data/glue/rte/train.jsonl', fingerprint='sha256:4a0f...', empty_texts=0)

A mirror directory is `DIR/<benchmark>/<task>/<split>.jsonl` or `.jsonl.gz` with the hub's columns; `t5suite mirror`
writes one. Columns, labels and texts are checked when a split is loaded, and errors name the file and line.
"""

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_commits import check_revisions, revision_of
from t5suite.base.lookup import path_inside, suggestion
from t5suite.data.rows.decimals import as_decimals, narrow_columns
from t5suite.data.rows.fingerprints import dataset_fingerprint
from t5suite.data.rows.hub_archives import load_hub_archive
from t5suite.data.rows.hub_data_sets import load_hub_data
from t5suite.data.rows.jsonl import file_sha256, numbered_lines, write_jsonl
from t5suite.data.rows.own_rows import Rows, RowSource
from t5suite.tasks.cells import value_at
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import (
    INVALID_NUMBER,
    MOST_DECIMALS,
    has_free_numbers,
    label_number,
    plain_decimal,
    rounded_decimal,
)

logger = logging.getLogger(__name__)

_NOTHING = object()

BUNDLED_DIR = Path(__file__).parents[1] / "mini"
BUNDLED_BENCHMARK = "mini"


@dataclass(frozen=True)
class DataOptions:
    """Where the user wants rows from; files replace one split each, `own` has the sources of tasks made from flags."""

    data_dir: str | None = None
    train_file: str | None = None
    validation_file: str | None = None
    test_file: str | None = None
    data_revision: str | None = None
    own: Mapping[str, RowSource] = field(default_factory=dict)
    tokenizer: object = None

    def file_for(self, role: str) -> str | None:
        """The file that replaces the split of a role, if one was given."""
        return {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}[role]


class LoadedSplit(NamedTuple):
    """Rows (a `datasets.Dataset`), their origin, a fingerprint of their content, the number of rows with an empty text.

    `files` has every file's hash if there are several; `official` is the published split's number of rows, if these are
    fewer; `commit` is the hub's commit that they were read from.
    """

    rows: object
    origin: str
    fingerprint: str
    empty_texts: int
    files: dict[str, str] = {}
    official: int | None = None
    commit: str | None = None

    @property
    def more(self) -> dict:
        """Optional fields for the manifest: those that are set."""
        return {name: value for name in ("files", "official", "commit") if (value := getattr(self, name))}


class MissingSplit(DataError):
    """The source has no such split."""


def source_name(task: Task, role: str, options: DataOptions) -> str:
    """The name in SOURCES of the source that a split is read from."""
    if task.name in options.own:
        return "own"
    if options.file_for(role):
        return "file"
    if task.entry.get("source"):
        return task.entry["source"]
    mirror = Path(options.data_dir) if options.data_dir else None
    if task.benchmark != BUNDLED_BENCHMARK:
        return "mirror" if mirror else "hub"
    # A mirror without the bundled benchmark does not hide it: $T5SUITE_DATA_DIR applies to every run.
    is_hidden = mirror is not None and (not mirror.is_dir() or (mirror / BUNDLED_BENCHMARK).is_dir())
    return "mirror" if is_hidden else "bundled"


def load_split(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """The rows of one split, checked; for evaluation, several rows of one question become one with all answers.

    Args:
      role: 'train' (every row must be labelled), 'validation' or 'test'.
      split: the source's name of the split, such as 'validation_matched'.

    Raises:
      MissingSplit: the source has no such split.
      DataError: a column is missing or a row is wrong; the message names file and line.
    """
    loaded = SOURCES[source_name(task, role, options)](task, role, split, options)
    official, count = (task.entry.get("num_examples") or {}).get(split), len(loaded.rows)
    if official is not None and count < official:
        what = f"{task.benchmark}/{task.name} {split}"
        logger.info("%s: %s of %s official rows, from %s", what, f"{count:,}", f"{official:,}", loaded.origin)
        loaded = loaded._replace(official=official)
    if role == "test" and has_free_numbers(task.entry):
        loaded = loaded._replace(rows=without_hidden_numbers(loaded.rows, task.entry["label_column_name"]))
    by = task.entry.get("references_by")
    if by is None or role == "train":
        return loaded
    return loaded._replace(rows=merge_references(loaded.rows, by, task.entry["label_column_name"]))


def without_hidden_numbers(rows, column: str):
    """The rows of a test split; labels that are all -1 stand for hidden ones, and become None.

    >>> without_hidden_numbers(datasets.Dataset.from_list([{"score": -1.0}, {"score": -1.0}]), "score")["score"]
    [None, None]
    """
    if column not in rows.column_names or set(rows[column]) != {INVALID_NUMBER}:
        return rows
    return rows.remove_columns(column).add_column(column, [None] * len(rows)).select_columns(rows.column_names)


def load_file(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split replaced by one JSONL file."""
    return _read_rows(task, role, Path(options.file_for(role)))


def load_own(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of the user's own rows (`t5suite.data.rows.own_rows`)."""
    return _loaded(task, role, options.own[task.name].read(role, options.tokenizer))


def load_mirror(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of a mirror directory."""
    root = Path(options.data_dir)
    if not root.is_dir():
        flag = "--data_dir" if str(options.data_dir) != os.environ.get("T5SUITE_DATA_DIR") else "T5SUITE_DATA_DIR"
        raise ConfigError(f"{flag}: no directory {str(root)!r}; `t5suite mirror --output_dir DIR` makes one")
    return _read_rows(task, role, _one_mirror_file(root, task, split))


def load_bundled(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of the benchmark that comes with the package."""
    loaded = _read_rows(task, role, _one_mirror_file(BUNDLED_DIR.parent, task, split))
    return loaded._replace(origin=f"bundled {task.benchmark}/{task.name}/{split}")


def load_super_ni(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of Super-NaturalInstructions, from the files of its repository."""
    if not options.data_dir:
        raise ConfigError(
            f"{task.benchmark}/{task.name} is not on the hub as needed: clone allenai/natural-instructions and "
            "give --data_dir DIR"
        )
    found = read_instances(options.data_dir, split, task.entry["instruction"])
    return _loaded(task, role, found)


def load_hub(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split from the hub (or its cache); ReCoRD's entities are sorted, because their order is arbitrary."""
    path, name = task.entry.get("hub_path"), task.entry.get("hub_name")
    if not path:
        raise ConfigError(
            f"{task.benchmark}/{task.name} has no hub_path: give --data_dir DIR with "
            f"DIR/{task.benchmark}/{task.rows_of}/{split}.jsonl, or --{role}_file FILE"
        )
    online = prepare_hub()
    try:
        rows, commit = _rows_of_hub(task, split, options.data_revision)
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        if online or isinstance(error, RuntimeError):  # RuntimeError: a data set that is a script
            raise DataError(f"{path} ({name}, {split}): {error}") from error
        raise absent(
            f"cannot reach the hub for {path} ({name}, {split}), and no copy is in the local cache "
            f"({str(error).strip().partition(chr(10))[0]:.200}). On a machine with a network "
            f"run `t5suite mirror --benchmark {task.benchmark} --dataset_name {task.rows_of} --output_dir DIR`, copy "
            "DIR here and give --data_dir DIR",
            DataError,
        ) from None
    if "entities" in rows.column_names:
        rows = rows.map(sort_entities, desc="sorting entities")
    if has_free_numbers(task.entry):
        rows = with_decimals(rows, task.entry["label_column_name"])
    revision = revision_of(options.data_revision, path)
    origin = f"{path} {name} {split}" + (f" @{revision}" if revision else "")
    empty = check_rows(task, role, rows, lambda i: f"{origin} row {i}")
    return LoadedSplit(rows, origin, f"datasets:{dataset_fingerprint(rows)}", empty, commit=commit)


def _rows_of_hub(task: Task, split: str, revisions: str | None):
    """`(rows, commit)` of a split of the task's repository."""
    path, archive = task.entry["hub_path"], task.entry.get("hub_archive")
    if archive is None:
        return load_hub_data(path, task.entry.get("hub_name"), split, revisions)
    return load_hub_archive(path, archive, split, _columns_of_archive(task), revisions)


def _columns_of_archive(task: Task) -> list[str]:
    """The columns of a task whose rows are in an archive: those that identify a row, and those that the task reads."""
    columns = ["id", "pid", *task.text_columns, task.entry["label_column_name"]]
    return list(dict.fromkeys(columns))


def sort_entities(row: dict) -> dict:
    """ReCoRD's entities without duplicates and sorted, as in the original T5.

    >>> sort_entities({"entities": ["b", "a", "b"]})
    {'entities': ['a', 'b']}
    """
    return {"entities": sorted(set(row["entities"]))}


def with_decimals(rows, column: str):
    """A `datasets.Dataset` whose narrow numbers in a column are the decimals that they stand for (`decimals`)."""
    import datasets

    narrow = {name: kind for name, kind in narrow_columns(rows.features).items() if name == column}
    if not narrow:
        return rows
    features = datasets.Features({**rows.features, column: datasets.Value("float64")})
    return rows.map(as_decimals, fn_kwargs={"columns": narrow}, features=features, desc="reading decimals")


def check_rows(task: Task, role: str, rows, place: Callable[[int], str]) -> int:
    """Formats every row once, so that an invalid one stops the run before training; counts rows with an empty text.

    Raises:
      DataError: a column is missing, a label does not belong to the task, a row lacks a required label, and so on.
    """
    empty, first_labelled, all_blank = [], None, True
    for i, row in enumerate(rows):
        try:
            values = [value_at(row, column, _NOTHING) for column in task.text_columns]
            if _NOTHING in values:
                column = task.text_columns[values.index(_NOTHING)]
                raise DataError(f"no column {column!r}; the row has {', '.join(map(repr, row)):.500}{form_hint(row)}")
            blank = [value in (None, []) or (isinstance(value, str) and not value.strip()) for value in values]
            empty += [i] * any(blank)
            all_blank = all_blank and all(blank)
            labelled = task.is_labelled(row)
            if not labelled and (role == "train" or (role == "validation" and task.entry["metric_names"])):
                column = task.entry["label_column_name"]
                raise DataError(
                    f"column {column!r} holds {row.get(column)!r:.60}: a {role} row must be labelled (unlabelled ones "
                    "are what --test_file and --predict_only are for)"
                )
            if first_labelled is None:
                first_labelled = labelled
            if labelled is not first_labelled and task.entry["metric_names"]:
                others = "labelled" if first_labelled else "unlabelled"
                raise DataError(f"the row is {'' if labelled else 'un'}labelled, but those before it are {others}")
            task.examples(row, role)
        except DataError as error:
            raise DataError(f"{place(i)}: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(f"{place(i)}: not a row of {task.benchmark}/{task.name} ({what:.200})") from None
    check_rounding(task, rows, place)
    if empty and all_blank:
        names = ", ".join(map(repr, task.text_columns))
        raise DataError(
            f"{place(0)}: no row has a text in {names}: empty cells and white space alone; check --text_column"
        )
    if empty:
        what, level = f"{task.benchmark}/{task.name} {role}", logging.WARNING
        if task.entry.get("hub_path"):  # published rows are scored unchanged; QQP has empty questions
            level = logging.INFO
        logger.log(level, "%s: %d rows with an empty text (first: %s)", what, len(empty), place(empty[0]))
    return len(empty)


def check_rounding(task: Task, rows, place: Callable[[int], str]) -> None:
    """Refuses `target_decimals` that make one target of different numbers.

    Raises:
      DataError: it does; names two such rows, and the decimals that keep all numbers apart.
    """
    decimals, column = task.entry.get("target_decimals"), task.entry["label_column_name"]
    if decimals is None:
        return
    row_of_number: dict[float, int] = {}
    for i, row in enumerate(rows):
        if task.is_labelled(row):
            row_of_number.setdefault(label_number(row, task.entry), i)
    texts = [plain_decimal(value_at(rows[i], column)) for i in row_of_number.values()]
    row_of_target: dict[str, int] = {}
    for text, i in zip(texts, row_of_number.values(), strict=True):
        target = rounded_decimal(text, decimals)
        if target in row_of_target:
            first = row_of_target[target]
            values = [value_at(rows[number], column) for number in (first, i)]
            raise DataError(
                f"{place(i)}: --target_decimals {decimals} makes one target, {target}, of {values[0]} ({place(first)}) "
                f"and {values[1]}; {_sufficient_decimals(texts, decimals)}"
            )
        row_of_target[target] = i


def _sufficient_decimals(texts: list[str], decimals: int) -> str:
    """What keeps different numbers apart, for the message."""
    for more in range(decimals + 1, MOST_DECIMALS + 1):
        if len({rounded_decimal(text, more) for text in texts}) == len(texts):
            return f"--target_decimals {more} keeps all {len(texts)} numbers apart"
    return "without --target_decimals, targets are as the data writes them"


def _with_one_type(task: Task, rows: list[dict]) -> list[dict]:
    """The rows; whole numbers among others (1, 2.5) as texts, since a column of them would turn 1 into 1.0."""
    column = task.entry["label_column_name"]
    labels = [row.get(column) for row in rows]
    if not has_free_numbers(task.entry) or len({type(label) for label in labels if label is not None}) < 2:
        return rows
    return [{**row, column: row.get(column) if row.get(column) is None else plain_decimal(row[column])} for row in rows]


def form_hint(row: dict) -> str:
    """How to read a row that another tool has written, for the end of a message; '' if its form is not known.

    >>> form_hint({"translation": {"en": "Hello", "ro": "Salut"}})
    '; --data_format translation --source_id en --target_id ro reads such rows'
    """
    languages = row.get("translation")
    if not isinstance(languages, dict) or len(languages) < 2:
        return ""
    source, target = list(languages)[:2]
    return f"; --data_format translation --source_id {source} --target_id {target} reads such rows"


def _read_rows(task: Task, role: str, path: Path) -> LoadedSplit:
    lines = list(numbered_lines(path, whole_characters=True))
    if not lines:
        raise DataError(f"{path}: the file is empty")
    places, rows = [f"{path}:{number}" for number, _ in lines], [row for _, row in lines]
    loaded = _loaded(task, role, Rows(rows, places, str(path), f"sha256:{file_sha256(path)}"))
    # `Dataset.from_list` takes the first row's columns, and drops others silently.
    for place, row in zip(places, rows, strict=True):
        if differing := sorted(row.keys() ^ rows[0].keys()):
            raise DataError(f"{place}: other columns than in line {lines[0][0]}: {', '.join(differing)}")
    return loaded


def _loaded(task: Task, role: str, found: Rows) -> LoadedSplit:
    """Checked rows as a `datasets.Dataset`."""
    import datasets

    empty = check_rows(task, role, found.rows, lambda i: found.places[i])
    try:
        rows = datasets.Dataset.from_list(_with_one_type(task, found.rows))
    except (TypeError, ValueError, OverflowError) as error:  # pyarrow's errors are ValueErrors
        changed = changed_type(found.rows, found.places)
        raise DataError(changed or f"{found.origin}: a column changes its type from row to row ({error})") from None
    files = found.files if len(found.files) > 1 else {}
    return LoadedSplit(rows, found.origin, found.fingerprint, empty, files, commit=found.commit)


def changed_type(rows: list[dict], places: list[str]) -> str | None:
    """Where a column first holds another kind of value than before; None if only nested values differ.

    >>> changed_type([{"text": "a"}, {"text": 3.5}], ["a.jsonl:1", "a.jsonl:2"])
    "a.jsonl:2: column 'text' holds 3.5 (number), but in a.jsonl:1 'a' (text); a column has one kind of value"
    """
    first: dict[str, tuple[str, str, object]] = {}
    for place, row in zip(places, rows, strict=True):
        for column, value in row.items():
            if value is None:
                continue
            kind = KINDS.get(type(value), type(value).__name__)
            before_kind, before_place, before = first.setdefault(column, (kind, place, value))
            if kind != before_kind:
                return (
                    f"{place}: column {column!r} holds {value!r:.60} ({kind}), but in {before_place} {before!r:.60} "
                    f"({before_kind}); a column has one kind of value"
                )
    return None


# Words for kinds of values, of which a column has one.
KINDS = {
    str: "text",
    int: "number",
    float: "number",
    Decimal: "number",
    bool: "true or false",
    list: "list",
    dict: "object",
}


def _one_mirror_file(root: Path, task: Task, split: str) -> Path:
    folder = root / task.benchmark / task.rows_of
    files = [path for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if path.is_file()]
    if len(files) == 2:
        raise DataError(f"both {files[0]} and {files[1].name} exist; keep one")
    if not files:
        there = sorted(path.name for path in folder.glob("[!.]*.jsonl*"))
        raise MissingSplit(f"no {folder / split}.jsonl or .jsonl.gz (there: {', '.join(there) or 'nothing'})")
    return files[0]


def merge_references(rows, by: str, column: str):
    """Rows of one question with several answers -> one row with all of them; training reads every row instead.

    >>> rows = datasets.Dataset.from_list([{"id": "q1", "output": "Bob"}, {"id": "q1", "output": "the man"}])
    >>> merge_references(rows, "id", "output").to_list()
    [{'id': 'q1', 'output': ['Bob', 'the man']}]

    Returns a `datasets.Dataset` with the first row for each value of `by`; `column` has the list of all its answers.

    Rows without an answer (None, in hidden test splits) keep None.

    Raises:
      DataError: there is no such column.
    """
    for name in (by, column):
        if name not in rows.column_names:
            raise DataError(f"no column {name!r}; the rows have {', '.join(map(repr, rows.column_names)):.500}")
    answers: dict = {}
    first: dict = {}
    for i, (key, answer) in enumerate(zip(rows[by], rows[column], strict=True)):
        if isinstance(key, (list, dict)):
            raise DataError(f"column {by!r} of row {i} holds {key!r:.100}, by which rows cannot be told apart")
        first.setdefault(key, i)
        found = answers.setdefault(key, [])
        if answer is not None:
            found.extend(map(str, answer if isinstance(answer, list) else [answer]))
    kept = rows.select(list(first.values())).remove_columns(column)
    return kept.add_column(column, [found or None for found in answers.values()]).select_columns(rows.column_names)


class MirroredSplit(NamedTuple):
    """One file of a mirror; `status` is 'written', or 'kept' for one that existed (its `rows` are not counted)."""

    task: Task
    split: str
    path: Path
    status: str
    rows: int | None
    official: int | None

    @property
    def differs(self) -> bool:
        """Whether the number of rows written differs from the official number in the registry."""
        return None not in (self.rows, self.official) and self.rows != self.official


def mirror(
    tasks: Iterable[Task], output_dir, revision: str | None = None, gzipped: bool = False, force: bool = False
) -> Iterator[MirroredSplit]:
    """Downloads every split that the registry lists for `tasks`, one file after the other.

    >>> for copy in mirror([load_task("glue", "rte")], "data"):
    ...     print(copy.path, copy.status, copy.rows, copy.official)
    data/glue/rte/train.jsonl written 2490 2490
    data/glue/rte/validation.jsonl written 277 277
    data/glue/rte/test.jsonl written 3000 3000

    Rows are those that `load_split` would read from the hub, columns and order included, so `--data_dir DIR` gives the
    same examples. A file appears under its name only when it is complete.

    Args:
      revision: the hub data set's branch, tag or commit, or a list of them by repository; None for its newest.
      force: overwrite existing files.

    Raises:
      ConfigError: a task has no hub path, its folder is a link to a place outside `output_dir`, or `revision` names a
        repository that no task is in.
      DataError: the hub cannot be reached, or a row is wrong.
    """
    tasks = list(tasks)
    for task in tasks:
        if not task.entry.get("hub_path"):
            raise ConfigError(f"{task.benchmark}/{task.name} has no hub_path: there is nothing to download")
    check_revisions(revision, "--data_revision", [task.entry["hub_path"] for task in tasks])
    for task in tasks:
        splits = [(role, split) for role in ("train", "validation", "test") for split in task.splits(role).values()]
        for role, split in splits:
            yield mirror_split(task, role, split, output_dir, revision, gzipped, force)


def mirror_split(task: Task, role: str, split: str, output_dir, revision, gzipped: bool, force: bool) -> MirroredSplit:
    """One split as one file; see `mirror`."""
    stem = path_inside(output_dir, task.benchmark, task.rows_of, split, where="--output_dir")
    plain, compressed = Path(f"{stem}.jsonl"), Path(f"{stem}.jsonl.gz")
    path, other = (compressed, plain) if gzipped else (plain, compressed)
    official = task.entry.get("num_examples", {}).get(split)
    present = [file for file in (path, other) if file.exists()]
    if present and not force:
        return MirroredSplit(task, split, present[0], "kept", None, official)
    rows = load_hub(task, role, split, DataOptions(data_revision=revision)).rows
    count = write_jsonl(path, rows)
    other.unlink(missing_ok=True)  # reading rejects a split that exists in both forms
    return MirroredSplit(task, split, path, "written", count, official)


# ---------------------------------------------------------------------------------------------------------------------
# Super-NaturalInstructions: `DIR/tasks/<task>.json` and `DIR/splits/<lists>/{train,test}_tasks.txt`, as in
# `allenai/natural-instructions`. A training task gives a limited number of instances, drawn by seed and task; a test
# task its first ones (arXiv:2204.07705; Tk-Instruct's `ni_dataset.py`).

OFFICIAL_TEST_INSTANCES = 100


def read_instances(directory, split: str, settings: dict) -> Rows:
    """The instances of a split's tasks, in the order of its list.

    >>> found = read_instances("natural-instructions", "test", DATASET_VALS["super_ni"]["english"]["instruction"])
    >>> found.rows[0]["task"], found.rows[0]["output"]
    ('task1356_xlsum_title_generation', ['Brexit: Ministers warned of legal action'])

    Args:
      split: 'train' or 'test'.
      settings: an entry's `instruction`.

    Raises:
      ConfigError: there is no such directory or list.
      DataError: a task's file is missing or invalid.
    """
    list_file = _list_file(Path(directory), settings["task_lists"], split)
    names = [(i, line.strip()) for i, line in enumerate(list_file.read_text("utf-8").splitlines(), 1) if line.strip()]
    if not names:
        raise DataError(f"{list_file}: the list is empty")
    rows, places, digests = [], [], [file_sha256(list_file)]
    for number, name in names:
        path = Path(directory) / "tasks" / f"{name}.json"
        if not path.is_file():
            missing = sum(not (path.parent / f"{other}.json").is_file() for _, other in names)
            raise DataError(
                f"{list_file}:{number}: no file {path} ({missing} of {len(names)} tasks are missing); "
                "--task_lists names another list"
            )
        task = read_task_file(path)
        digests.append(file_sha256(path))
        for chosen in chosen_instances(name, len(task["Instances"]), split, settings):
            rows.append(_row(name, task, task["Instances"][chosen], len(rows)))
            places.append(f"{path}: instance {chosen}")
    origin = f"{directory} {settings['task_lists']} {split}"
    return Rows(rows, places, origin, f"sha256:{hashlib.sha256(chr(10).join(digests).encode()).hexdigest()}")


def read_task_file(path) -> dict:
    """The content of a task's file, with its parts checked.

    Raises:
      DataError: it is not JSON, or a part is missing or has the wrong type.
    """
    try:
        task = json.loads(Path(path).read_text("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    for key in ("Definition", "Positive Examples", "Negative Examples", "Categories", "Instances"):
        value = task.get(key) if isinstance(task, dict) else None
        if not isinstance(value, list) and not (key == "Definition" and isinstance(value, str)):
            raise DataError(f"{path}: not a task of Super-NaturalInstructions ({key!r} is not a list)")
    for key in ("Positive Examples", "Negative Examples", "Instances"):
        for i, example in enumerate(task[key]):
            if not isinstance(example, dict) or not isinstance(example.get("input"), str) or "output" not in example:
                raise DataError(f"{path}: {key} {i} has no 'input' and 'output'")
    return task


def chosen_instances(name: str, count: int, split: str, settings: dict) -> list[int]:
    """Which of a task's instances are read: the first ones for evaluation, random ones for training.

    >>> chosen_instances("task1146_country_capital", 200, "test", {"max_num_instances_per_eval_task": 3, ...})
    [0, 1, 2]
    """
    if split == "train":
        limit = settings["max_num_instances_per_task"]
        if limit is None or limit >= count:
            return list(range(count))
        order = np.random.default_rng((settings["seed"], zlib.crc32(name.encode()))).permutation(count)
        return sorted(int(i) for i in order[:limit])
    limit = settings["max_num_instances_per_eval_task"]
    return list(range(min(count, OFFICIAL_TEST_INSTANCES, count if limit is None else limit)))


def _list_file(directory: Path, lists: str, split: str) -> Path:
    if not (directory / "tasks").is_dir() or not (directory / "splits").is_dir():
        raise ConfigError(
            f"--data_dir {directory}: Super-NaturalInstructions is read from DIR/tasks and DIR/splits, "
            "as in allenai/natural-instructions"
        )
    file = directory / "splits" / lists / f"{split}_tasks.txt"
    if not file.is_file():
        there = sorted(folder.name for folder in (directory / "splits").iterdir() if folder.is_dir())
        raise ConfigError(f"--task_lists {lists!r}: no file {file}; {suggestion(lists, there)}")
    return file


def _row(name: str, task: dict, instance: dict, number: int) -> dict:
    output, definition = instance["output"], task["Definition"]
    return {
        "idx": number,
        "task": name,
        "category": task["Categories"][0] if task["Categories"] else "",
        "definition": definition if isinstance(definition, str) else definition[0] if definition else "",
        "positive_examples": [_example(example) for example in task["Positive Examples"]],
        "negative_examples": [_example(example) for example in task["Negative Examples"]],
        "id": str(instance.get("id", "")),
        "input": instance["input"],
        "output": output if isinstance(output, list) else [output],
    }


def _example(example: dict) -> dict:
    output = example["output"]
    explanation = example.get("explanation")
    return {
        "input": example["input"],
        "output": output if isinstance(output, str) else str(output[0]) if output else "",
        "explanation": explanation if isinstance(explanation, str) else None,
    }


SOURCES = {
    "bundled": load_bundled, "file": load_file, "mirror": load_mirror, "hub": load_hub, "own": load_own,
    "super_ni": load_super_ni,
}  # fmt: skip
