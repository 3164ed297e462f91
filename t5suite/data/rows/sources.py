"""Where rows come from: the hub, a local mirror, single files, or the bundled benchmark.

    >>> load_split(load_task("glue", "rte"), "train", "train", DataOptions(data_dir="data"))
    LoadedSplit(rows=Dataset(...), origin='data/glue/rte/train.jsonl', fingerprint='sha256:4a0f...', empty_texts=0)

A mirror directory is `DIR/<benchmark>/<task>/<split>.jsonl` or `.jsonl.gz` with the hub's columns; `t5suite mirror`
writes one. Columns, labels and texts are checked when a split is loaded, and errors name the file and line.
"""

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from t5suite.base.errors import ConfigError, DataError, UserError, first_line
from t5suite.base.files import file_sha256
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_commits import revision_of
from t5suite.data.rows.decimals import as_decimals, narrow_columns
from t5suite.data.rows.file_rows import places_without_folders
from t5suite.data.rows.fingerprints import dataset_fingerprint
from t5suite.data.rows.hub_archives import load_hub_archive
from t5suite.data.rows.hub_data_sets import load_hub_data
from t5suite.data.rows.instruction_files import read_instances
from t5suite.data.rows.jsonl import numbered_lines
from t5suite.data.rows.own_rows import Rows, RowSource
from t5suite.data.rows.row_checks import changed_type, check_rows, check_same_columns
from t5suite.tasks.cells import outermost, value_at, with_value_at
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import are_hidden_numbers, has_free_numbers, plain_decimal, value_kind

logger = logging.getLogger(__name__)

BUNDLED_DIR = Path(__file__).parents[1] / "mini"
BUNDLED_BENCHMARK = "mini"
# The name of a new column until it has replaced the old one.
NEW_COLUMN = "t5suite new column"


class LongInteger(int):
    """The kind of an integer that a column of 64 bits cannot hold."""


# Numbers that a column of `datasets` would change, or cannot hold.
KINDS_AS_TEXTS = (Decimal, LongInteger)


@dataclass(frozen=True)
class DataOptions:
    """Where the user wants rows from; files replace one split each.

    `own_sources` has the sources of tasks made from flags. `rows_flag` is the flag of a command that takes one file,
    whatever the split.
    """

    data_dir: str | None = None
    train_file: str | None = None
    validation_file: str | None = None
    test_file: str | None = None
    data_revision: str | None = None
    own_sources: Mapping[str, RowSource] = field(default_factory=dict)
    tokenizer: object = None
    rows_flag: str | None = None

    def file_for(self, role: str) -> str | None:
        """The file that replaces the split of a role, if one was given."""
        return {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}[role]


class LoadedSplit(NamedTuple):
    """Rows (a `datasets.Dataset`), their origin, a fingerprint of their content, the number of rows with an empty text.

    `places` has file and line of each of the user's own rows, without the folder, and is empty for others; `files` has
    every file's hash if there are several; `official` is the published split's number of rows, if these are
    fewer; `commit` is the hub's commit that they were read from; `held_out_sha256` as `Rows` has it.
    """

    rows: object
    origin: str
    fingerprint: str
    empty_texts: int
    files: dict[str, str] = {}
    official: int | None = None
    commit: str | None = None
    places: list[str] = []
    held_out_sha256: str | None = None

    @property
    def more(self) -> dict:
        """Optional fields for the manifest: those that are set."""
        fields = {
            "files": self.files,
            "official": self.official,
            "commit": self.commit,
            "held_out_sha256": self.held_out_sha256,
        }
        return {name: value for name, value in fields.items() if value}

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return self.places[row] if self.places else f"{self.origin} row {row}"


class MissingSplit(DataError):
    """The source has no such split."""


def source_name(task: Task, role: str, options: DataOptions) -> str:
    """The name in SOURCES of the source that a split is read from."""
    if task.name in options.own_sources:
        return "own"
    if options.file_for(role):
        return "file"
    if task.entry.get("source"):
        return task.entry["source"]
    is_bundled = task.benchmark == BUNDLED_BENCHMARK
    if not options.data_dir:
        return "bundled" if is_bundled else "hub"
    # A mirror without the bundled benchmark does not hide it: $T5SUITE_DATA_DIR applies to every run.
    # A folder that is not there is refused as a mirror, also for the bundled benchmark.
    mirror = Path(options.data_dir)
    if is_bundled and mirror.is_dir() and not (mirror / BUNDLED_BENCHMARK).is_dir():
        return "bundled"
    return "mirror"


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
    count = len(loaded.rows)
    official = (task.entry.get("num_examples") or {}).get(split)
    if official is not None and count < official:
        name = f"{task.benchmark}/{task.name} {split}"
        logger.info("%s: %s of %s official rows, from %s", name, f"{count:,}", f"{official:,}", loaded.origin)
        loaded = loaded._replace(official=official)
    if role == "test" and has_free_numbers(task.entry):
        loaded = loaded._replace(rows=without_hidden_numbers(loaded.rows, task.entry["label_column_name"]))
    by = task.entry.get("references_by")
    if by is None or role == "train":
        return loaded
    merged = merge_references(loaded.rows, by, task.entry["label_column_name"])
    return loaded._replace(rows=merged, places=[])  # a row of several has no one place


def without_hidden_numbers(rows, column: str):
    """The rows of a test split; labels that are all -1 stand for hidden ones, and become None.

    >>> without_hidden_numbers(datasets.Dataset.from_list([{"score": -1.0}, {"score": -1.0}]), "score")["score"]
    [None, None]
    """
    if outermost(column, rows.column_names) not in rows.column_names:
        return rows
    if not are_hidden_numbers(_values_of(rows, column)):
        return rows
    return _with_values(rows, column, [None] * len(rows))


def _values_of(rows, column: str) -> list:
    """Every row's value in a column of a `datasets.Dataset`, or at a dotted name."""
    outer_column = outermost(column, rows.column_names)
    return [value_at(row, column) for row in rows.select_columns(outer_column)]


def _with_values(rows, column: str, values: list):
    """The rows of a `datasets.Dataset` with other values in a column, or at a dotted name."""
    outer_column = outermost(column, rows.column_names)
    cells = []
    for cell, value in zip(rows[outer_column], values, strict=True):
        row = {outer_column: cell}
        if value is None and value_at(row, column) is None:
            cells.append(cell)  # nothing changes
            continue
        if cell is None:
            row = {outer_column: {}}  # a dotted name needs an object, in which the value is put
        cells.append(with_value_at(row, column, value)[outer_column])
    # The old column goes last: a data set without columns has no rows, to which nothing can be added.
    both = rows.add_column(NEW_COLUMN, cells)
    replaced = both.remove_columns(outer_column).rename_column(NEW_COLUMN, outer_column)
    return replaced.select_columns(rows.column_names)


def load_file(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split replaced by one JSONL file."""
    return _read_rows(task, role, Path(options.file_for(role)))


def load_own(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of the user's own rows (`t5suite.data.rows.own_rows`)."""
    source = options.own_sources[task.name]
    if role not in source.roles:
        raise MissingSplit(f"{task.benchmark}/{task.name} has no {role} rows; it has {', '.join(source.roles)}")
    rows = source.read(role, options.tokenizer)
    return _loaded(task, role, rows)._replace(places=places_without_folders(rows.places))


def load_mirror(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of a mirror directory."""
    check_data_dir(options.data_dir)
    return _read_rows(task, role, _one_mirror_file(Path(options.data_dir), task, split))


def check_data_dir(data_dir: str | None) -> None:
    """Checks that the folder that the flag or the environment names is there.

    Raises:
      ConfigError: it is not.
    """
    if not data_dir or Path(data_dir).is_dir():
        return
    flag = "--data_dir" if str(data_dir) != os.environ.get("T5SUITE_DATA_DIR") else "T5SUITE_DATA_DIR"
    raise ConfigError(f"{flag}: no directory {str(data_dir)!r}; `t5suite mirror --output_dir DIR` makes one")


def load_bundled(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of the benchmark that comes with the package."""
    path = _one_mirror_file(BUNDLED_DIR.parent, task, split)
    loaded = _bundled_rows(task, role, path, json.dumps(task.entry, sort_keys=True, default=repr))
    return loaded._replace(origin=f"bundled {task.benchmark}/{task.name}/{split}")


@functools.lru_cache(maxsize=16)
def _bundled_rows(task: Task, role: str, path: Path, entry: str) -> LoadedSplit:
    """The package's files do not change: several runs of one process read and check them once (0.3 s a run).

    Args:
      entry: the task's entry as text, a part of the cache's key: two tasks of one name are equal.
    """
    return _read_rows(task, role, path)


def load_super_ni(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split of Super-NaturalInstructions, from the files of its repository."""
    if not options.data_dir:
        raise ConfigError(
            f"{task.benchmark}/{task.name} is not on the hub as needed: clone allenai/natural-instructions and "
            "give --data_dir DIR"
        )
    return _loaded(task, role, read_instances(options.data_dir, split, task.entry["instruction"]))


def load_hub(task: Task, role: str, split: str, options: DataOptions) -> LoadedSplit:
    """A split from the hub (or its cache); ReCoRD's entities are sorted, because their order is arbitrary."""
    path = task.entry.get("hub_path")
    if not path:
        file_flag = options.rows_flag or f"--{role}_file"
        raise ConfigError(
            f"{task.benchmark}/{task.name} has no hub_path: give --data_dir DIR with "
            f"DIR/{task.benchmark}/{task.rows_of}/{split}.jsonl, or {file_flag} FILE"
        )
    rows, commit = _reached_rows_of_hub(task, split, options.data_revision)
    if "entities" in rows.column_names:
        rows = rows.map(sort_entities, desc="sorting entities")
    if has_free_numbers(task.entry):
        rows = with_decimals(rows, task.entry["label_column_name"])
    revision = revision_of(options.data_revision, path)
    origin = f"{path} {task.entry.get('hub_name')} {split}"
    if revision:
        origin += f" @{revision}"
    empty_texts = check_rows(task, role, rows, lambda i: f"{origin} row {i}")
    return LoadedSplit(rows, origin, f"datasets:{dataset_fingerprint(rows)}", empty_texts, commit=commit)


def _reached_rows_of_hub(task: Task, split: str, revisions: str | None):
    """As `_rows_of_hub`, with errors that say how to work without a network."""
    online = prepare_hub()  # whether the hub can be reached
    try:
        return _rows_of_hub(task, split, revisions)
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        place = f"{task.entry['hub_path']} ({task.entry.get('hub_name')}, {split})"
        if online or isinstance(error, RuntimeError):  # RuntimeError: a data set that is a script
            raise DataError(f"{place}: {error}") from error
        raise absent(
            f"cannot reach the hub for {place}, and no copy is in the local cache ({first_line(error):.200}). On a "
            f"machine with a network run `t5suite mirror --benchmark {task.benchmark} --dataset_name {task.rows_of} "
            "--output_dir DIR`, copy DIR here and give --data_dir DIR",
            DataError,
        ) from None


def _rows_of_hub(task: Task, split: str, revisions: str | None):
    """`(rows, commit)` of a split of the task's repository."""
    path = task.entry["hub_path"]
    archive = task.entry.get("hub_archive")
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
    features = datasets.Features(with_value_at(rows.features, column, datasets.Value("float64")))
    return rows.map(as_decimals, fn_kwargs={"columns": narrow}, features=features, desc="reading decimals")


def _read_rows(task: Task, role: str, path: Path) -> LoadedSplit:
    """The rows of a file with JSON lines."""
    lines = list(numbered_lines(path, whole_characters=True))
    if not lines:
        raise DataError(f"{path}: the file is empty")
    rows = [row for _, row in lines]
    places = [f"{path}:{number}" for number, _ in lines]
    loaded = _loaded(task, role, Rows(rows, places, str(path), f"sha256:{file_sha256(path)}"))
    check_same_columns(rows, places, first_line=lines[0][0])
    return loaded


def _with_all_columns(rows: list[dict]) -> list[dict]:
    """The rows with the columns of all of them; None where a row lacks one. `datasets` takes those of the first row.

    >>> _with_all_columns([{"text": "a"}, {"text": "b", "idx": 3}])
    [{'text': 'a', 'idx': None}, {'text': 'b', 'idx': 3}]
    """
    names = dict.fromkeys(name for row in rows for name in row)
    if all(len(row) == len(names) for row in rows):
        return rows
    return [{name: row.get(name) for name in names} for row in rows]


def _loaded(task: Task, role: str, source: Rows) -> LoadedSplit:
    """Checked rows as a `datasets.Dataset`."""
    import datasets

    empty_texts = check_rows(task, role, source.rows, source.places.__getitem__)
    typed_rows = _with_one_type(task, _with_all_columns(source.rows))
    try:
        rows = datasets.Dataset.from_list(typed_rows)
    except OverflowError as error:
        problem = _first_long_integer(typed_rows, source.places)
        raise DataError(problem or f"{source.origin}: a number is too large for its column ({error})") from None
    except (TypeError, ValueError) as error:  # pyarrow's errors are ValueErrors
        change = changed_type(source.rows, source.places)
        raise DataError(change or f"{source.origin}: a column changes its type from row to row ({error})") from None
    files = source.files if len(source.files) > 1 else {}
    return LoadedSplit(
        rows,
        source.origin,
        source.fingerprint,
        empty_texts,
        files,
        commit=source.commit,
        held_out_sha256=source.held_out_sha256,
    )


def _with_one_type(task: Task, rows: list[dict]) -> list[dict]:
    """The rows; numbers as texts where a column of one type would change them (1 beside 2.5 would be 1.0, a decimal 1.5
    beside 2.25 would be 1.50) or cannot hold them (beside empty texts, or of more than 64 bits).

    Decimals are the numbers of columns that are narrower than Python's floats (`data.rows.decimals`).
    """
    target_column = task.entry["label_column_name"]
    if has_free_numbers(task.entry):
        kinds = _kinds_in(rows, target_column)
        if len(kinds) > 1 or not kinds.isdisjoint(KINDS_AS_TEXTS):
            rows = _as_texts(rows, target_column, plain_decimal)
    text_targets = [target_column] if value_kind(task.entry) == "text" else []
    for column in dict.fromkeys([*task.text_columns, *text_targets]):
        kinds = _kinds_in(rows, column)
        kinds_of_filled_cells = _kinds_in([row for row in rows if value_at(row, column) != ""], column)
        are_numbers = kinds_of_filled_cells <= {int, float, *KINDS_AS_TEXTS}
        if are_numbers and (len(kinds) > 1 or not kinds.isdisjoint(KINDS_AS_TEXTS)):
            rows = _as_texts(rows, column, str)
    return rows


def _kinds_in(rows: list[dict], column: str) -> set[type]:
    """The kinds of the values of a column."""
    return {_kind(value_at(row, column)) for row in rows} - {type(None)}


def _kind(value: Any) -> type:
    """The type of a value; `LongInteger` for an integer of more than 64 bits."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        return LongInteger
    return type(value)


def _first_long_integer(rows: list[dict], places: list[str]) -> str | None:
    """Where an integer of more than 64 bits first stands, also inside a list or an object; None if there is none."""
    for place, row in zip(places, rows, strict=True):
        for column, value in row.items():
            if _has_long_integer(value):
                return (
                    f"{place}: column {column!r} holds {value!r:.100}: no table holds an integer of more than 64 bits; "
                    "write it as a text"
                )
    return None


def _has_long_integer(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_long_integer, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_long_integer, value))
    return _kind(value) is LongInteger


def _as_texts(rows: list[dict], column: str, text_of: Callable[[Any], str]) -> list[dict]:
    """The rows with the values of a column as texts; None stays."""
    converted_rows = []
    for row in rows:
        value = value_at(row, column)
        converted_rows.append(row if value is None else with_value_at(row, column, text_of(value)))
    return converted_rows


def _one_mirror_file(root: Path, task: Task, split: str) -> Path:
    folder = root / task.benchmark / task.rows_of
    files = [path for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if path.is_file()]
    if len(files) == 2:
        raise DataError(f"both {files[0]} and {files[1].name} exist; keep one")
    if not files:
        names = sorted(path.name for path in folder.glob("[!.]*.jsonl*"))
        raise MissingSplit(f"no {folder / split}.jsonl or .jsonl.gz (there: {', '.join(names) or 'nothing'})")
    return files[0]


def merge_references(rows, by: str, column: str):
    """Rows of one question with several answers -> one row with all of them; training reads every row instead.

    >>> rows = datasets.Dataset.from_list([{"id": "q1", "output": "Bob"}, {"id": "q1", "output": "the man"}])
    >>> merge_references(rows, "id", "output").to_list()
    [{'id': 'q1', 'output': ['Bob', 'the man']}]

    Returns a `datasets.Dataset` with the first row for each value of `by`; `column` has the list of all its answers.

    Rows without an answer (None, in hidden test splits) keep None.

    Raises:
      DataError: there is no such column, or it is empty in a row.
    """
    for name in (by, column):
        if outermost(name, rows.column_names) not in rows.column_names:
            raise DataError(f"no column {name!r}; the rows have {', '.join(map(repr, rows.column_names)):.500}")
    first_row: dict = {}
    answers: dict[object, list[str]] = {}
    for i, (key, answer) in enumerate(zip(_values_of(rows, by), _values_of(rows, column), strict=True)):
        if key is None:
            raise DataError(
                f"column {by!r} of row {i} is empty: it is the key by which rows of one question are joined"
            )
        if isinstance(key, (list, dict)):
            raise DataError(f"column {by!r} of row {i} holds {key!r:.100}, by which rows cannot be told apart")
        first_row.setdefault(key, i)
        answers_of_key = answers.setdefault(key, [])
        if answer is not None:
            answers_of_key.extend(map(str, answer if isinstance(answer, list) else [answer]))
    answer_lists = [answers_of_key or None for answers_of_key in answers.values()]
    return _with_values(rows.select(list(first_row.values())), column, answer_lists)


SOURCES = {
    "bundled": load_bundled, "file": load_file, "mirror": load_mirror, "hub": load_hub, "own": load_own,
    "super_ni": load_super_ni,
}  # fmt: skip
