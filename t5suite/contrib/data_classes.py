"""The data sets that `--data_class` names: each is one source of rows, made from a path and a table of settings.

    >>> form = class_form("JSONLines", "reviews", {}, max_input_tokens=None)
    >>> form.source.roles                                        # reviews/train/*.jsonl, reviews/val/*.jsonl
    ('train', 'validation')

Names and meanings are those of IBM/dolomite-engine (Apache-2.0) in 2023, with or without the suffix `Dataset`. The
user's own class is `module:Class` (`UserRows`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.file_names import suffixes_of
from t5suite.base.lookup import check_name, find, load_object, suggestion
from t5suite.constants import DATASET_VALS
from t5suite.contrib.alpaca import ALPACA_COLUMNS, ALPACA_ENTRY
from t5suite.data.rows.file_rows import FileRows
from t5suite.data.rows.files import SPLIT_NAMES, split_files
from t5suite.data.rows.formats import Form
from t5suite.data.rows.hub_rows import HubRows
from t5suite.data.rows.own_rows import Columns, Rows, plain_cell, rows_fingerprint
from t5suite.tasks.cells import as_list
from t5suite.tasks.entry_checks import check_required_kinds

# Settings that every data set accepts, in addition to its own.
SHARED_SETTINGS = ("name", "labels", "metrics")
DEBUG_LENGTHS = (512, 128)
# The fields of the shipped task SST-2 that the data set SST2 has, too.
SST2_FIELDS = ("text_column_name", "label_column_name", "labels", "metric_names", "metric_to_optimize")
# Numbers of training examples, and of validation and of test examples; 100 by default.
DEBUG_SETTINGS = ("num_examples", "num_eval_examples")


class DataSetFlags(NamedTuple):
    """The values of the list-valued flags for one data set; `settings` is `--data_config` without the shared ones.

    `flag` is `--data_class` with its value.
    """

    flag: str
    path: str | None
    settings: dict
    labels: tuple[str, ...] | None
    max_input_tokens: int | None
    max_output_tokens: int | None


def class_form(
    name: str,
    path: str | None,
    config: dict,
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
    labels: tuple[str, ...] | None = None,
) -> Form:
    """The form of one data set.

    Raises:
      ConfigError: an unknown class or setting, or a path that is missing or does not exist.
    """
    settings = {key: value for key, value in config.items() if key not in SHARED_SETTINGS}
    flags = DataSetFlags(f"--data_class {name}", path, settings, labels, max_input_tokens, max_output_tokens)
    if ":" in name:
        return _user_form(name, flags)
    entry = find(name.removesuffix("Dataset"), DATA_CLASSES, "data class", where="--data_class")
    for key in settings:
        if key not in entry.settings:
            near = suggestion(key, (*SHARED_SETTINGS, *entry.settings))
            raise ConfigError(f"--data_config: {name} has no setting {key!r}; {near}")
    if entry.needs_path and path is None:
        raise ConfigError(f"--data_class {name} needs a --data_path")
    return entry.form(flags)


def class_name(name: str, path: str | None, config: dict) -> str:
    """The name of a data set: from its settings, else its path, else (and for SST-2) its class.

    >>> class_name("JSONLines", "data/reviews", {})
    'reviews'
    """
    if "name" in config:
        return check_name(config["name"], "data set", "--data_config")
    short = name.rpartition(":")[2].removesuffix("Dataset")
    if not path or short == "SST2":
        return short.lower()
    return Path(path).resolve().name.lstrip(".") or "data"


def _json_lines(flags: DataSetFlags) -> Form:
    columns = Columns(labels=flags.labels, fixed_by=flags.flag)
    return Form(FileRows(split_files(flags.path, (".jsonl",), "--data_path"), "jsonl", columns), columns, {})


def _sst2(flags: DataSetFlags) -> Form:
    shipped = DATASET_VALS["glue"]["sst2"]
    columns = Columns(("sentence",), "label", labels=tuple(shipped["labels"]), fixed_by=flags.flag)
    entry = {key: shipped[key] for key in SST2_FIELDS}
    if flags.path is None:
        source = HubRows(shipped["hub_path"], shipped["hub_name"], None, columns, _without_last_space)
        return Form(source, columns, entry)
    mirror = Path(flags.path, "glue", "sst2")
    files = split_files(mirror if mirror.is_dir() else flags.path, (".jsonl",), "--data_path")
    return Form(FileRows(files, "jsonl", columns, _without_last_space), columns, entry)


def _without_last_space(row: dict) -> dict:
    """A row of SST-2, whose sentences end in a space."""
    sentence = row.get("sentence")
    return {**row, "sentence": sentence.strip()} if isinstance(sentence, str) else row


def _alpaca(flags: DataSetFlags) -> Form:
    files = split_files(flags.path, suffixes_of("jsonl"), "--data_path")
    columns = replace(ALPACA_COLUMNS, labels=flags.labels, fixed_by=flags.flag)
    return Form(FileRows(files, "jsonl", columns), columns, ALPACA_ENTRY)


def _debug(flags: DataSetFlags) -> Form:
    if flags.path is not None:
        raise ConfigError(f"--data_class Debug has no files, but --data_path gives it {flags.path!r}; give none")
    lengths = (flags.max_input_tokens or DEBUG_LENGTHS[0], flags.max_output_tokens or DEBUG_LENGTHS[1])
    entry = {"metric_names": [], "max_input_tokens": lengths[0], "max_output_tokens": lengths[1]}
    counts = [flags.settings.get(name, 100) for name in DEBUG_SETTINGS]
    for name, count in zip(DEBUG_SETTINGS, counts, strict=True):
        if type(count) is not int or count < 1:
            raise ConfigError(f"--data_config: {name} {count!r}: a whole number above 0")
    return Form(DebugRows(*counts, *lengths), Columns(), entry)


def _user_form(name: str, flags: DataSetFlags) -> Form:
    user_class = load_object(name, "--data_class")
    if not callable(user_class) or not callable(getattr(user_class, "rows", None)):
        raise ConfigError(f"{flags.flag}: it needs __init__(path, config) and rows(split)")
    source = UserRows(user_class(flags.path, flags.settings), name)
    entry = getattr(source.data_set, "entry", None) or {}
    if not isinstance(entry, dict):
        raise ConfigError(f"{flags.flag}: its entry is {entry!r:.60}, not a dict of fields")
    entry = {name: value for name, value in entry.items() if value is not None}
    check_required_kinds(f"{flags.flag}: its entry", entry)
    text_columns = as_list(entry.get("text_column_name", "input"))
    columns = Columns(tuple(text_columns), entry.get("label_column_name", "output"), fixed_by=flags.flag)
    return Form(source, columns, entry)


@dataclass(frozen=True)
class UserRows:
    """The rows of a user's object, whose class is like this one and is named by `--data_class my_data:Reviews`.

        class Reviews:                      # my_data.py: next to the script, installed, or in PYTHONPATH
            entry = {"labels": ["bad", "good"], "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}

            def __init__(self, path, config):
                self.path = path

            def rows(self, split):          # 'train', 'validation' or 'test'; None where there is no such split
                return [{"input": "It is good.", "output": "good"}]

    `entry` is optional: fields of the task's entry that differ from free text in `input` and `output`.
    """

    data_set: Any
    spec: str

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits for which it has rows."""
        return tuple(role for role in SPLIT_NAMES if self.data_set.rows(role) is not None)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split.

        Raises:
          DataError: it returns no rows, or something that is not a row.
        """
        rows = list(self.data_set.rows(role))
        for i, row in enumerate(rows):
            if not isinstance(row, dict):
                raise DataError(f"{self.spec}: row {i} of {role} is {row!r:.60}, not a dict")
        if not rows:
            raise DataError(f"{self.spec}: no rows in {role}")
        places = [f"{self.spec} {role} row {i}" for i in range(len(rows))]
        plain_rows = [plain_cell(row) for row in rows]
        return Rows(plain_rows, places, f"{self.spec} {role}", rows_fingerprint(rows))


@dataclass(frozen=True)
class DebugRows:
    """Random digits, the same in every run: rows of a fixed shape that need no file, for speed measurements.

    >>> DebugRows(num_examples=2, num_eval_examples=2, input_tokens=4, output_tokens=2).read("train").rows[0]
    {'input': '3 0 8 6', 'output': '7 4'}

    Every text has as many words as tokens are kept of it. A word is at least one token, so all inputs, and all
    targets, are truncated to exactly the same length.
    """

    num_examples: int
    num_eval_examples: int
    input_tokens: int
    output_tokens: int
    roles: tuple[str, ...] = ("train", "validation", "test")

    def read(self, role: str, tokenizer=None) -> Rows:
        """As many rows as the settings say."""
        count = self.num_examples if role == "train" else self.num_eval_examples
        rng = np.random.default_rng((self.roles.index(role), self.input_tokens, self.output_tokens))
        digits = rng.integers(10, size=(count, self.input_tokens + self.output_tokens)).astype(str)
        rows = [
            {"input": " ".join(row[: self.input_tokens]), "output": " ".join(row[self.input_tokens :])}
            for row in digits
        ]
        return Rows(rows, [f"debug row {i}" for i in range(count)], f"debug {role}", rows_fingerprint(rows))


class DataClass(NamedTuple):
    """How a data set is made from its settings, which settings it has, and whether it needs a path."""

    form: Callable[[DataSetFlags], Form]
    settings: tuple[str, ...] = ()
    needs_path: bool = True


DATA_CLASSES = {
    "JSONLines": DataClass(_json_lines),
    "SST2": DataClass(_sst2, needs_path=False),
    "Alpaca": DataClass(_alpaca),
    "Debug": DataClass(_debug, DEBUG_SETTINGS, needs_path=False),
}
