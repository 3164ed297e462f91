"""The kinds of files that `--data_format` names.

    >>> form = format_form("csv", FormatOptions(train_file="a.csv", text_columns=("text",), target_column="label"))
    >>> form.source.roles
    ('train',)

Files are named one by one (`--train_file`, ...) or found in a folder (`--train_dir`, see `files.split_files`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.formats.files import named_files, split_files
from t5suite.data.formats.memory_rows import MemoryRows
from t5suite.data.formats.own_data import Form
from t5suite.data.formats.rows import Columns, RowSource
from t5suite.data.formats.running_text import TextRows
from t5suite.data.formats.sources import FileRows, HubRows, hub_label_words
from t5suite.data.text.compressed import without_compression
from t5suite.data.text.readers import TextOptions

HUB = "hub"
ALPACA_ENTRY = {
    "formatter": "instruction",
    "text_column_name": "instruction",
    "label_column_name": "output",
    "metric_names": ["rouge"],
}
ALPACA_COLUMNS = Columns(("instruction",), "output", optional=("input",))


@dataclass(frozen=True)
class FormatOptions:
    """What the flags say of files and columns; `rows` are there already, by split, and take the place of files."""

    train_dir: str | None = None
    train_file: str | None = None
    validation_file: str | None = None
    test_file: str | None = None
    text_columns: tuple[str, ...] | None = None
    target_column: str | None = None
    source_id: str = "s"
    target_id: str = "t"
    labels: tuple[str, ...] | None = None
    hub_path: str | None = None
    hub_name: str | None = None
    revision: str | None = None
    text_unit: str = "line"
    block_size: int = 512
    rows: Mapping[str, list[dict]] | None = None

    @property
    def files(self) -> dict[str, str]:
        """The files that flags name, by the split that they are."""
        named = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {role: file for role, file in named.items() if file}


def format_form(name: str, options: FormatOptions) -> Form:
    """The form of `--data_format`.

    Raises:
      ConfigError: no such format or file, neither files nor a folder, or both for one split.
    """
    form = find(name, DATA_FORMATS, "format", where="--data_format")
    if options.rows is not None and name in ("text", HUB):
        raise ConfigError(f"--data_format {name}: it has rows of its own; those in memory have columns (jsonl)")
    return form(options)


def form_name(options: FormatOptions) -> str:
    """What a data set without a name is called: its hub's, folder's or file's.

    >>> form_name(FormatOptions(train_file="/data/reviews.csv.gz"))
    'reviews'
    """
    given = options.hub_path or options.train_dir or next(iter(options.files.values()), "data")
    stem = without_compression(Path(given).resolve().name if options.train_dir else Path(given).name)
    if not Path(given).is_dir():
        stem = Path(stem).stem
    return stem.replace("*", "").strip("-_. ") or "data"


def find_files(options: FormatOptions, suffixes: tuple[str, ...]) -> dict[str, tuple[Path, ...]]:
    """`{role: files}`: those of the folder, and each file named by a flag in place of the folder's split."""
    found = split_files(options.train_dir, suffixes) if options.train_dir else {}
    found |= {role: named_files(file, f"--{role}_file") for role, file in options.files.items()}
    if not found:
        raise ConfigError("--data_format needs rows: give --train_file FILE or --train_dir DIR")
    return {role: found[role] for role in ("train", "validation", "test") if role in found}


def _source(options: FormatOptions, kind: str, suffixes: tuple[str, ...], columns: Columns) -> RowSource:
    """The rows that are there already, else those of files."""
    if options.rows is None:
        return FileRows(find_files(options, suffixes), kind, columns)
    if options.train_dir or options.files:
        raise ConfigError("rows in memory and files of rows are two ways to name data; leave one out")
    return MemoryRows(options.rows, columns)


def _columns_form(kind: str, suffixes: tuple[str, ...]) -> Callable[[FormatOptions], Form]:
    """Files with a column to read, or several, and one to write."""

    def form(options: FormatOptions) -> Form:
        columns, entry = _columns_of(options)
        return Form(_source(options, kind, suffixes, columns), columns, entry)

    return form


def _columns_of(options: FormatOptions) -> tuple[Columns, dict]:
    """Several columns are named in the input, as in the tasks of the original T5: `question: ... context: ...`."""
    texts, target = options.text_columns or ("input",), options.target_column or "output"
    if target in texts:
        raise ConfigError(f"--target_column {target} is also a --text_column: the model would read what it must write")
    several = len(texts) > 1
    entry = {
        "prefix": [f"{column}: " for column in texts] if several else "",
        "text_column_name": list(texts) if several else texts[0],
        "label_column_name": target,
        "labels": list(options.labels) if options.labels else None,
    }
    return Columns(tuple(texts), target, labels=options.labels), entry


def _hub_form(options: FormatOptions) -> Form:
    if not options.hub_path:
        raise ConfigError("--data_format hub: give --hub_path NAME (and --text_column, --target_column)")
    if options.train_dir or options.files:
        raise ConfigError("--data_format hub reads --hub_path; it takes no --train_dir or --train_file")
    columns, entry = _columns_of(options)
    place = (options.hub_path, options.hub_name, options.revision)
    if not options.labels:
        words = hub_label_words(*place, columns.target)
        columns, entry = (
            Columns(columns.texts, columns.target, labels=words),
            {**entry, "labels": list(words or []) or None},
        )
    return Form(HubRows(*place, columns), columns, entry)


def _translation_form(options: FormatOptions) -> Form:
    """Rows with a table of languages, `{"translation": {"en": ..., "de": ...}}`."""
    source, target = (f"translation.{language}" for language in (options.source_id, options.target_id))
    if source == target:
        raise ConfigError(f"--source_id and --target_id are both {options.source_id!r}")
    entry = {
        "text_column_name": source,
        "label_column_name": target,
        "metric_names": ["bleu", "chrf"],
        "metric_to_optimize": "bleu",
    }
    columns = Columns((source,), target)
    return Form(_source(options, "jsonl", (".jsonl", ".json"), columns), columns, entry)


def _alpaca_form(options: FormatOptions) -> Form:
    return Form(_source(options, "jsonl", (".json", ".jsonl"), ALPACA_COLUMNS), ALPACA_COLUMNS, ALPACA_ENTRY)


def _text_form(options: FormatOptions) -> Form:
    column = (options.text_columns or ("text",))[0]
    columns = Columns((column,), column)
    entry = {
        "formatter": "document",
        "text_column_name": column,
        "label_column_name": column,
        "metric_names": [],
        "max_output_tokens": options.block_size,
    }
    files = find_files(options, (".txt", ".jsonl", ".json", ".parquet"))
    text = TextOptions(text_column_name=column, text_unit=options.text_unit)
    return Form(TextRows(files, text, options.block_size), columns, entry)


DATA_FORMATS: dict[str, Callable[[FormatOptions], Form]] = {
    "jsonl": _columns_form("jsonl", (".jsonl", ".json")),
    "csv": _columns_form("csv", (".csv",)),
    "tsv": _columns_form("tsv", (".tsv", ".tab")),
    "parquet": _columns_form("parquet", (".parquet",)),
    "translation": _translation_form,
    "alpaca": _alpaca_form,
    "text": _text_form,
    HUB: _hub_form,
}

# Which flags each format reads, besides those of files, metrics and lengths; others have no effect.
FORMAT_FLAGS = {
    **dict.fromkeys(("jsonl", "csv", "tsv", "parquet"), ("text_column", "target_column", "labels")),
    "translation": ("source_id", "target_id"),
    "alpaca": (),
    "text": ("text_column", "text_unit", "block_size"),
    HUB: ("text_column", "target_column", "labels", "hub_path", "hub_name"),
}
