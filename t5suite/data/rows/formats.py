"""A user's rows and the flags about them -> a task like any other, and the source of its rows.

    >>> form = format_form("csv", FormatOptions(train_file="a.csv", text_columns=("text",), target_column="label"))
    >>> form.source.roles
    ('train',)
    >>> own_data("reviews", form, Wishes(labels=("bad", "good"))).task.entry["metric_names"]
    ['accuracy']

`--data_format` names a file format; files are given one by one (`--train_file`, ...) or found in a folder
(`--train_dir`, see `files.split_files`). Such tasks belong to the benchmark `own`; entries are plain data, so
evaluation, results and predictions treat them like shipped ones. A run's manifest has the flags as settings, so its
rows can be read again without the training libraries.
"""

import csv
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.file_names import suffixes_of, without_compression
from t5suite.base.lookup import check_name, find, listed, load_object
from t5suite.base.script_flags import flags_marked
from t5suite.constants import OWN_BENCHMARK
from t5suite.data.rows.file_rows import FileRows
from t5suite.data.rows.files import held_out_names, named_files, names_a_split, split_files
from t5suite.data.rows.hub_rows import HubRows, hub_label_words
from t5suite.data.rows.own_rows import OPTIONAL_COLUMNS, Columns, MemoryRows, RowSource
from t5suite.data.rows.separated import delimiter_by_flag
from t5suite.data.rows.subsets import HeldOutRows
from t5suite.data.rows.text_rows import RunningText, TextRows
from t5suite.tasks.cells import as_list
from t5suite.tasks.entry_checks import check_entry, check_no_text_metrics
from t5suite.tasks.entry_metrics import check_entry_metric
from t5suite.tasks.evaluate_metrics import is_evaluate_name
from t5suite.tasks.registry import Task
from t5suite.tasks.templates import INPUT, OUTPUT, check_template

logger = logging.getLogger(__name__)

HUB = "hub"
DEFAULT_VALIDATION_SHARE = 0.05
DEFAULT_METRICS = {True: ["accuracy"], False: ["exact_match", "rouge"]}
NOTHING = ("none", "None", "-")
SIDES = ("source", "target")
TRANSLATION_METRICS = ["bleu", "chrf"]
# The texts of a translation are fields of this column.
TRANSLATION_FIELD = "translation."
# Fields of an entry that stand in it as None.
NULLABLE_FIELDS = ("labels", "metric_to_optimize")


class Form(NamedTuple):
    """A source of rows, the columns that are read, and the fields of the registry entry that describe the task."""

    source: RowSource
    columns: Columns
    entry: dict


@dataclass(frozen=True)
class FormatOptions:
    """The flags about files and columns; `rows` are rows in memory, by split, used instead of files."""

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
    lang_columns: tuple[str | None, ...] = ()
    optional_columns: tuple[str, ...] = ()
    delimiter: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """The files that flags name, by split."""
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {role: file for role, file in files.items() if file}


def format_form(name: str, options: FormatOptions) -> Form:
    """The form of `--data_format`.

    Raises:
      ConfigError: no such format or file, neither files nor a folder, or rows in memory along with files.
    """
    form = find(name, DATA_FORMATS, "format", where="--data_format")
    if options.rows is not None and name in ("text", HUB):
        raise ConfigError(f"--data_format {name}: it reads its own rows; rows in memory need a format such as jsonl")
    if isinstance(form, str):
        form = load_object(form, "--data_format")
    return form(options)


def form_name(options: FormatOptions) -> str:
    """The default name of a data set: that of its hub data set, folder or file.

    A file that is named after a split (`train.csv`) gives the name of its folder.

    >>> form_name(FormatOptions(train_file="/data/reviews.csv.gz"))
    'reviews'
    >>> form_name(FormatOptions(train_file="/data/reviews/train.csv"))
    'reviews'
    """
    if options.hub_path:
        folder = Path(options.hub_path)
        return _plain_name(folder.name if folder.is_dir() else folder.stem)
    if options.train_dir:
        path = Path(options.train_dir).resolve()
        name = path.name
    else:
        path = Path(next(iter(options.files.values()), "data"))
        name = Path(without_compression(path.name)).stem
    if names_a_split(name):
        name = path.parent.resolve().name
    return _plain_name(name)


def _plain_name(name: str) -> str:
    """A name without a pattern's stars, and without signs at its ends."""
    return name.replace("*", "").strip("-_. ") or "data"


def find_files(options: FormatOptions, suffixes: tuple[str, ...]) -> dict[str, tuple[Path, ...]]:
    """`{role: files}`: those of the folder; a file named by a flag replaces the folder's split, and is in no other."""
    files_of_flags = {role: named_files(file, f"--{role}_file") for role, file in options.files.items()}
    files_of_folder = {}
    if options.train_dir:
        all_files_of_flags = sum(files_of_flags.values(), ())
        files_of_folder = split_files(options.train_dir, suffixes, files_of_flags=all_files_of_flags)
    files = files_of_folder | files_of_flags
    if not files:
        raise ConfigError("--data_format needs rows: give --train_file FILE or --train_dir DIR")
    if "train" not in files_of_flags:
        _warn_of_held_out_names(options.train_dir, files_of_folder.get("train", ()))
    return {role: files[role] for role in ("train", "validation", "test") if role in files}


def _warn_of_held_out_names(folder: str | None, training_files: tuple[Path, ...]) -> None:
    """Warns of files of `--train_dir` that are trained on, and are named as if they held other rows."""
    names = held_out_names(training_files)
    if names:
        logger.warning(
            "--train_dir %s: its files are trained on, also %s; rows for evaluation are in test.csv or validation.csv, "
            "or are named by --test_file or --validation_file",
            folder,
            listed(names),
        )


def row_source(options: FormatOptions, kind: str, suffixes: tuple[str, ...], columns: Columns) -> RowSource:
    """The rows in memory if there are any, else those of files."""
    if options.rows is None:
        return FileRows(find_files(options, suffixes), kind, columns, delimiter=options.delimiter)
    if options.train_dir or options.files:
        raise ConfigError("rows in memory and files of rows are two ways to name data; give one")
    return MemoryRows(options.rows, columns)


def _columns_form(kind: str) -> Callable[[FormatOptions], Form]:
    """Files with one or more input columns and one target column."""

    def form(options: FormatOptions) -> Form:
        columns, entry = _columns_of(options)
        return Form(row_source(options, kind, suffixes_of(kind), columns), columns, entry)

    return form


def _columns_of(options: FormatOptions) -> tuple[Columns, dict]:
    """With several columns, their names go into the input, as in the original T5: `question: ... context: ...`."""
    texts = options.text_columns or ("input",)
    target = options.target_column or "output"
    if target in texts:
        raise ConfigError(f"--target_column {target} is also a --text_column: the model would read what it must write")
    entry: dict = {"prefix": "", "text_column_name": texts[0], "label_column_name": target, "labels": None}
    if len(texts) > 1:
        entry["prefix"] = [f"{column}: " for column in texts]
        entry["text_column_name"] = list(texts)
    if options.labels:
        entry["labels"] = list(options.labels)
    columns = Columns(texts, target, options.optional_columns, options.labels)
    return with_lang_columns(columns, options), entry


def with_lang_columns(columns: Columns, options: FormatOptions) -> Columns:
    """Columns of texts, and those of each row's languages, each once.

    >>> with_lang_columns(Columns(("text",)), FormatOptions(lang_columns=(None, "language"))).texts
    ('text', 'language')
    """
    lang_flags = {}
    for side, column in zip(SIDES, options.lang_columns):
        if column and column not in columns.texts:
            lang_flags.setdefault(column, f"--{side}_lang_column")
    return replace(columns, texts=(*columns.texts, *lang_flags), lang_flags=lang_flags)


def _hub_form(options: FormatOptions) -> Form:
    if not options.hub_path:
        raise ConfigError("--data_format hub: give --hub_path NAME (and --text_column, --target_column)")
    if options.train_dir or options.files:
        raise ConfigError("--data_format hub reads --hub_path; it takes no --train_dir or --train_file")
    data_set = (options.hub_path, options.hub_name, options.revision)
    if options.labels is None:
        options = replace(options, labels=hub_label_words(*data_set, options.target_column or "output"))
    columns, entry = _columns_of(options)
    return Form(HubRows(*data_set, columns), columns, entry)


def _translation_form(options: FormatOptions) -> Form:
    """Rows with one text per language, `{"translation": {"en": ..., "de": ...}}`."""
    if options.source_id == options.target_id:
        raise ConfigError(f"--source_id and --target_id are both {options.source_id!r}")
    source = f"{TRANSLATION_FIELD}{options.source_id}"
    target = f"{TRANSLATION_FIELD}{options.target_id}"
    entry = {
        "text_column_name": source,
        "label_column_name": target,
        "metric_names": TRANSLATION_METRICS,
        "metric_to_optimize": "bleu",
    }
    key_flags = {source: "--source_id", target: "--target_id"}
    columns = Columns(
        (source,), target, labels=options.labels, key_flags=key_flags, fixed_by="--data_format translation"
    )
    columns = with_lang_columns(columns, options)
    return Form(row_source(options, "jsonl", suffixes_of("jsonl"), columns), columns, entry)


def _text_form(options: FormatOptions) -> Form:
    columns_of_flag = options.text_columns or ("text",)
    if len(columns_of_flag) > 1:
        names = ",".join(columns_of_flag)
        raise ConfigError(f"--text_column {names}: running text (--data_format text) is in one column; name one")
    column = columns_of_flag[0]
    columns = Columns((column,), column)
    entry = {"formatter": "document", "text_column_name": column, "label_column_name": column, "metric_names": []}
    entry["max_output_tokens"] = options.block_size
    files = find_files(options, (".txt", ".jsonl", ".json", ".parquet"))
    text = RunningText(text_column_name=column, text_unit=options.text_unit)
    return Form(TextRows(files, text, options.block_size), columns, entry)


@dataclass(frozen=True)
class Wishes:
    """The flags about one data set; None for flags that are not given.

    Attributes:
      labels: empty for free text, where the data set itself names labels.
      metrics_flag: what names the metrics, for messages.
      validation_share: share of the training rows held out if there is no validation split (None: the default).
      evaluates: whether the run evaluates; if not, no rows are held out.
      seed: decides which rows are held out.
    """

    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    input_format: str | None = None
    output_format: str | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    validation_share: float | None = None
    evaluates: bool = True
    seed: int = 42
    metrics_flag: str = "--metrics"


class OwnData(NamedTuple):
    """A task made from flags, and the source of its rows."""

    task: Task
    source: RowSource


def own_data(name: str, form: Form, wishes: Wishes) -> OwnData:
    """The task of a data set, and its rows, with a part held out for validation if needed.

    Raises:
      ConfigError: a name that cannot be part of a path, an unknown metric, a template without its placeholder.
    """
    check_name(name, "data set", "--dataset_name")
    entry = own_entry(form.entry, wishes)
    source = _with_validation(Task(OWN_BENCHMARK, name, entry), form, wishes)
    entry = entry | {"splits": {role: role for role in source.roles}}
    if wishes.metrics is not None:
        for metric in _without_evaluate(wishes.metrics)[0] or ():
            check_entry_metric(metric, wishes.metrics_flag, has_labels=bool(entry["labels"]))
        check_no_text_metrics(f"{wishes.metrics_flag} {','.join(wishes.metrics)}", entry)
    check_entry(f"{OWN_BENCHMARK}/{name}", entry)
    return OwnData(Task(OWN_BENCHMARK, name, entry), source)


def own_entry(fields: dict, wishes: Wishes) -> dict:
    """A registry entry: the form's fields over those of free text, the user's flags over both.

    >>> own_entry({}, Wishes(metrics=("bleu",)))["metric_to_optimize"]
    'bleu'
    """
    entry = {"prefix": "", "text_column_name": "input", "label_column_name": "output", "labels": None}
    entry |= {"metric_names": None, "metric_to_optimize": None, **fields}
    if wishes.labels is not None:
        entry["labels"] = list(wishes.labels) or None
        if bool(wishes.labels) != bool(fields.get("labels")):
            entry |= {"metric_names": None, "metric_to_optimize": None}  # the form's are for its own kind of answers
    entry |= _metric_fields(entry, wishes.metrics)
    for key, place in (("input_format", INPUT), ("output_format", OUTPUT)):
        template = getattr(wishes, key)
        if template is not None:
            check_template(template, place, f"--{key}")
            entry[key] = None if template == place else template
    for key in ("max_input_tokens", "max_output_tokens"):
        if getattr(wishes, key) is not None:
            entry[key] = getattr(wishes, key)
    return {key: value for key, value in entry.items() if value is not None or key in NULLABLE_FIELDS}


def _metric_fields(entry: dict, metrics: tuple[str, ...] | None) -> dict:
    """`metric_names` and `metric_to_optimize`, by the user's metrics over those of the entry."""
    suite_metrics, evaluate_metrics = _without_evaluate(metrics)
    names = entry["metric_names"] if suite_metrics is None else suite_metrics
    if names is None:
        names = DEFAULT_METRICS[entry["labels"] is not None]
    optimised = entry["metric_to_optimize"]
    if suite_metrics is not None or optimised is None:
        optimised = _metric_to_optimize(names)
    return {"metric_names": [*names, *evaluate_metrics], "metric_to_optimize": optimised}


def _metric_to_optimize(names: Sequence[str]) -> str | None:
    """The only metric, or `average` of several."""
    if not names:
        return None
    is_several = len(names) > 1 or names[0] in ("rouge", "squad")  # these each yield several metrics
    return "average" if is_several else names[0]


def _without_evaluate(metrics: tuple[str, ...] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The metrics of the suite, and those of `evaluate`, which are added to them.

    >>> _without_evaluate(("evaluate:./my_metric",))  # the suite's are those of the format
    (None, ('evaluate:./my_metric',))
    """
    if metrics is None:
        return None, ()
    evaluate_metrics = tuple(name for name in metrics if is_evaluate_name(name))
    suite_metrics = tuple(name for name in metrics if not is_evaluate_name(name))
    if evaluate_metrics and not suite_metrics:
        return None, evaluate_metrics
    return suite_metrics, evaluate_metrics


def _with_validation(task: Task, form: Form, wishes: Wishes) -> RowSource:
    """The form's source, with a part of its training rows held out if it has no validation rows and they are needed."""
    source = form.source
    name = task.name
    if "validation" in source.roles or "train" not in source.roles or not wishes.evaluates:
        _note_no_held_out_rows(name, source, wishes)
        return source
    share = wishes.validation_share
    if share is not None and not 0 < share < 1:
        raise ConfigError(f"--validation_split {share}: a share of the training rows, more than 0 and less than 1")
    if share is None:
        logger.info(
            "%s has no validation rows: %d%% of its training rows are kept for that (--validation_split)",
            name,
            round(100 * DEFAULT_VALIDATION_SHARE),
        )
    return HeldOutRows(source, form.columns, task, share or DEFAULT_VALIDATION_SHARE, wishes.seed)


def _note_no_held_out_rows(name: str, source: RowSource, wishes: Wishes) -> None:
    share = wishes.validation_share
    if share is not None:
        why = f"{name} has validation rows" if wishes.evaluates else "nothing is evaluated (--eval_strategy no)"
        logger.warning("--validation_split %s has no effect: %s", share, why)
    elif not wishes.evaluates and "validation" not in source.roles:
        logger.info("%s: no training rows are kept for validation, since nothing is evaluated", name)


def distinct_names(names: list[str]) -> list[str]:
    """The names, with repeated ones numbered.

    >>> distinct_names(["x", "y", "x"])
    ['x', 'y', 'x-2']
    """
    distinct: list[str] = []
    for name in names:
        count = 1
        numbered = name
        while numbered in distinct:
            count += 1
            numbered = f"{name}-{count}"
        distinct.append(numbered)
    return distinct


def format_options(settings: Mapping, rows: Mapping[str, list[dict]] | None = None) -> FormatOptions:
    """The settings about files and columns.

    Args:
      rows: rows in memory, by split, instead of files.

    Raises:
      ConfigError: an empty item in a list, a block that is too short.
    """
    block_size = settings.get("block_size") or settings.get("max_target_length") or 512
    if settings.get("block_size") is not None and settings["block_size"] < 8:
        raise ConfigError(f"--block_size {settings['block_size']}: must be at least 8 tokens")
    plain_settings = {name: settings.get(name) for name in (*flags_marked("rows"), "target_column", "hub_name")}
    return FormatOptions(
        **plain_settings,
        text_columns=comma_separated(settings.get("text_column"), "--text_column", keeps_quoted_spaces=True),
        source_id=settings.get("source_id") or "s",
        target_id=settings.get("target_id") or "t",
        labels=comma_separated(settings.get("labels"), "--labels"),
        revision=settings.get("data_revision"),
        text_unit=settings.get("text_unit") or "line",
        block_size=block_size,
        rows=rows,
        delimiter=delimiter_by_flag(settings.get("delimiter")),
        lang_columns=tuple(settings.get(f"{side}_lang_column") for side in SIDES),
    )


def languages_of(task: Task) -> dict[str, str]:
    """The languages of a task of translation files, as their flags name them.

    >>> languages_of(task)["source_id"]
    'en'
    """
    columns = {"source_id": as_list(task.entry["text_column_name"])[0], "target_id": task.entry["label_column_name"]}
    is_translation = all(column.startswith(TRANSLATION_FIELD) for column in columns.values())
    return {name: column.removeprefix(TRANSLATION_FIELD) for name, column in columns.items() if is_translation}


def default_metrics(task: Task) -> list[str]:
    """The metrics of a task without a formatter, of rows of the user's own, for which nobody chose any.

    >>> default_metrics(task)                  # of free text
    ['exact_match', 'rouge']
    """
    has_labels = task.entry["labels"] is not None
    if languages_of(task) and not has_labels:
        return TRANSLATION_METRICS
    return DEFAULT_METRICS[has_labels]


def form_like(task: Task, data_format: str, options: FormatOptions) -> Form:
    """Other rows of the form that a task has: its columns, labels, texts and metrics."""
    entry = dict(task.entry)
    options = replace(
        options,
        text_columns=tuple(as_list(entry["text_column_name"])),
        target_column=entry["label_column_name"],
        labels=tuple(entry["labels"]) if entry.get("labels") else None,
        optional_columns=OPTIONAL_COLUMNS.get(entry.get("formatter"), ()),
        **languages_of(task),
    )
    return format_form(data_format, options)._replace(entry=entry)


def format_source(settings: Mapping, task: Task) -> RowSource:
    """The rows of a run that evaluated, with the same validation rows, held out from training rows if they were.

    Args:
      task: what the run evaluated. Its columns and labels may be those of the model, which are no settings of the run.

    Raises:
      ConfigError: a file or folder that does not exist.
      DataError: a folder without such files.
    """
    form = form_like(task, settings["data_format"], format_options(settings))
    wishes = Wishes(validation_share=settings.get("validation_split") or None, seed=settings["seed"])
    return _with_validation(task, form, wishes)


def rows_stay(settings: Mapping) -> bool:
    """Whether a run's rows can be read again later: not in memory, nor made by a class, nor split by a tokenizer.

    >>> rows_stay({"benchmark": "glue"}), rows_stay({"data_format": "jsonl"}), rows_stay({"data_class": ["Debug"]})
    (True, False, False)
    """
    if settings.get("data_class"):
        return False
    form = settings.get("data_format")
    return not form or (form != "text" and any(settings.get(name) for name in flags_marked("rows")))


def comma_separated(text: str | None, flag: str, keeps_quoted_spaces: bool = False) -> tuple[str, ...] | None:
    """Comma-separated words, quoted if they contain a comma; `none` gives an empty tuple, no value gives None.

    >>> comma_separated("bad, good", "--labels"), comma_separated("none", "--labels"), comma_separated(None, "--labels")
    (('bad', 'good'), (), None)
    >>> comma_separated('id,"Text, long", " text"', "--text_column", keeps_quoted_spaces=True)
    ('id', 'Text, long', ' text')

    Args:
      keeps_quoted_spaces: spaces at the ends of a quoted word belong to it, as in the name of a column.
    """
    if text is None:
        return None
    if text in NOTHING:
        return ()
    if '"' in text:
        words = next(csv.reader([_without_spaces_around_words(text)], skipinitialspace=True), [""])
    else:
        words = [word.strip() for word in text.split(",")]
    if not all(word.strip() for word in words):
        raise ConfigError(f"{flag} {text!r}: comma-separated words, none of them empty")
    if not keeps_quoted_spaces:
        words = [word.strip() for word in words]
    return tuple(words)


def quoted_words(words: Sequence[str]) -> str:
    """Words in one text, which `comma_separated` reads.

    >>> quoted_words(["id", "Text, long", " text"])
    'id,"Text, long"," text"'
    """
    return ",".join(map(_quoted_word, words))


def _quoted_word(word: str) -> str:
    """A word, in quotes if it has a comma, a quote, or a space at an end."""
    if word == word.strip() and not set(word) & {",", '"'}:
        return word
    doubled = word.replace('"', '""')
    return f'"{doubled}"'


def _without_spaces_around_words(text: str) -> str:
    """Comma-separated words without the spaces around them; those within quotes stay.

    >>> _without_spaces_around_words('id , " text"')
    'id," text"'
    """
    parts = text.strip().split('"')
    # Every second part stands within quotes.
    parts[::2] = [re.sub(r"\s*,\s*", ",", part) for part in parts[::2]]
    return '"'.join(parts)


def at_place(values: Sequence | None, i: int):
    """A flag's value for data set `i`; None if the value is `none`."""
    value = None if values is None else values[i]
    return None if value in NOTHING else value


# Functions of the options, or `module:name` of one that is loaded when it is used.
DATA_FORMATS: dict[str, Callable[[FormatOptions], Form] | str] = {
    "jsonl": _columns_form("jsonl"),
    "csv": _columns_form("csv"),
    "tsv": _columns_form("tsv"),
    "parquet": _columns_form("parquet"),
    "translation": _translation_form,
    "alpaca": "t5suite.contrib.alpaca:alpaca_form",
    "text": _text_form,
    HUB: _hub_form,
}
