"""The format of a user's own rows, as the names of their files show it, where no flag says it.

>>> format_of_files({"train_file": "reviews.csv", "text_column": "text"})
'csv'
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from t5suite.base.script_flags import TRUE_WORDS, flags_of
from t5suite.launch.config_files import format_of_rows

FILE_FLAGS = ("train_file", "validation_file", "test_file")
# With one of these flags it is known already what the files hold.
DECIDING_FLAGS = ("data_format", "data_class", "benchmark", "task_file")
# Formats whose files no benchmark has.
TABLES = {"csv", "tsv", "parquet"}
# With one of these, a model is scored or asked as it is.
SCORING_FLAGS = ("eval_only", "predict_only")


def with_format(values: Mapping[str, object]) -> dict[str, object]:
    """The flags of fine-tuning with the `data_format` that `format_of_files` finds, if it finds one."""
    data_format = format_of_files(values)
    return dict(values) if data_format is None else {**values, "data_format": data_format}


def format_of_files(values: Mapping[str, object]) -> str | None:
    """The format of the files that flags name; None if a flag or a benchmark decides, or the names differ.

    JSON lines may also be a benchmark's rows: they are the user's own with a flag of own rows (`--text_column`), and
    where a model that was trained on such rows is scored.

    Args:
      values: `{flag: value}` of the flags that were given.
    """
    if not values.keys().isdisjoint(DECIDING_FLAGS):
        return None
    names = [str(values[flag]) for flag in FILE_FLAGS if values.get(flag) not in (None, "None")]
    folder = values.get("train_dir")
    if folder not in (None, "None"):
        names += _names_in_folder(Path(str(folder)))
    formats = {format_of_rows(name) for name in names}
    if len(formats) != 1:
        return None
    data_format = formats.pop()
    own_flags = _own_row_flags(values)
    is_own = data_format in TABLES
    if data_format == "jsonl":
        is_own = bool(own_flags) or _scores_model_of_own_rows(values)
    if is_own and all(_reads(data_format, flag) for flag in own_flags):
        return data_format
    return None


def _scores_model_of_own_rows(values: Mapping[str, object]) -> bool:
    """Whether a model of the user's own task is scored or asked, and not trained on."""
    model = values.get("model_name_or_path")
    is_scored = any(str(values.get(flag)).lower() in TRUE_WORDS for flag in SCORING_FLAGS)
    if not model or not is_scored:
        return False
    from t5suite.tasks.task_card import read_task_card

    card = read_task_card(str(model))
    if card is None or not card.tasks or card.is_shipped:
        return False
    if not card.made_by_flags:
        return True
    if len(card.tasks) != 1 or "dataset_name" in values:
        return False
    return card.task().entry.get("formatter") != "document"  # blocks of running text are no rows


def _names_in_folder(folder: Path) -> list[str]:
    """The names of the files of rows in a folder and its subfolders."""
    paths = [*folder.glob("*"), *folder.glob("*/*")]
    names = (path.name for path in paths if path.is_file() and not path.name.startswith("."))
    return [name for name in names if format_of_rows(name) is not None]


def _own_row_flags(values: Iterable[str]) -> list[str]:
    """Those of the flags that only the user's own rows have."""
    flags = flags_of("fine_tune_t5")
    return [name for name in values if flags.get(name, {}).get("needs", "").startswith("--data_format")]


def _reads(data_format: str, flag: str) -> bool:
    """Whether a flag is of that format, or of all: `--source_id` is of translations."""
    formats = flags_of("fine_tune_t5")[flag].get("formats")
    return formats is None or data_format in formats.split()
