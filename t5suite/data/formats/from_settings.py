"""What the flags of `--data_format` say, as plain settings, and the source of rows that they name.

>>> settings = {"data_format": "csv", "train_file": "reviews.csv", "text_column": "text", "target_column": "label"}
>>> format_options(settings).text_columns
('text',)
>>> format_source({**settings, "seed": 42}).roles
('train', 'validation')

A run's manifest holds such settings, so that its rows can be read again without the libraries that trained it.
"""

from collections.abc import Mapping, Sequence

from t5suite.base.errors import ConfigError
from t5suite.data.formats.data_formats import FormatOptions, format_form
from t5suite.data.formats.own_data import DEFAULT_VALIDATION_SHARE
from t5suite.data.formats.rows import RowSource
from t5suite.data.formats.sources import HeldOutRows

NOTHING = ("none", "None", "-")
# The flags of which one names the files, folder or data set.
PLACES = ("train_file", "validation_file", "test_file", "train_dir", "hub_path")


def format_options(settings: Mapping, rows: Mapping[str, list[dict]] | None = None) -> FormatOptions:
    """What settings say of files and columns.

    Args:
      rows: those that are in memory, by split, instead of files.

    Raises:
      ConfigError: an empty word in a list, a block that is too short.
    """
    given = {name: settings.get(name) for name in (*PLACES, "target_column", "hub_name")}
    return FormatOptions(
        **given,
        text_columns=words_of(settings.get("text_column"), "--text_column"),
        source_id=settings.get("source_id") or "s",
        target_id=settings.get("target_id") or "t",
        labels=words_of(settings.get("labels"), "--labels"),
        revision=settings.get("data_revision"),
        text_unit=settings.get("text_unit") or "line",
        block_size=_block_size(settings.get("block_size"), settings.get("max_target_length") or 512),
        rows=rows,
    )


def format_source(settings: Mapping) -> RowSource:
    """The rows of a run that evaluated, with the part of the training rows that it kept for validation, if it did.

    Raises:
      ConfigError: a file or folder that is not there.
      DataError: a folder without such files.
    """
    form = format_form(settings["data_format"], format_options(settings))
    roles = form.source.roles
    if "validation" in roles or "train" not in roles:
        return form.source
    share = settings.get("validation_split") or DEFAULT_VALIDATION_SHARE
    return HeldOutRows(form.source, form.columns, share, settings["seed"])


def rows_stay(settings: Mapping) -> bool:
    """Whether a run's rows can be read again later: neither in memory, nor made by a class, nor cut by a tokenizer.

    >>> rows_stay({"benchmark": "glue"}), rows_stay({"data_format": "jsonl"}), rows_stay({"data_class": ["Debug"]})
    (True, False, False)
    """
    if settings.get("data_class"):
        return False
    form = settings.get("data_format")
    return not form or (form != "text" and any(settings.get(name) for name in PLACES))


def words_of(text: str | None, flag: str) -> tuple[str, ...] | None:
    """Words between commas; none is an empty list, nothing at all is None.

    >>> words_of("bad, good", "--labels"), words_of("none", "--labels"), words_of(None, "--labels")
    (('bad', 'good'), (), None)
    """
    if text is None:
        return None
    if text in NOTHING:
        return ()
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise ConfigError(f"{flag} {text!r}: words with commas between them, none of them empty")
    return words


def at_place(values: Sequence | None, i: int):
    """A flag's value for data set `i`; None where the flag says `none` of it."""
    value = None if values is None else values[i]
    return None if value in NOTHING else value


def _block_size(asked_for: int | None, default: int) -> int:
    if asked_for is not None and asked_for < 8:
        raise ConfigError(f"--block_size {asked_for}: must be at least 8 tokens")
    return asked_for or default
