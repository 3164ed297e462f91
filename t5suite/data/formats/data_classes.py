"""The data sets that `--data_class` names: one source of rows each, of a path and a table of settings.

    >>> form = class_form("JSONLines", "reviews", {}, max_input_tokens=None)
    >>> form.source.roles                                        # reviews/train/*.jsonl, reviews/val/*.jsonl
    ('train', 'validation')

Names and meanings are those of IBM/dolomite-engine (Apache-2.0) in 2023, with or without `Dataset` at their end. A
class of the user's own is `module:Class` (`user_classes`).
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import check_name, find, suggestion
from t5suite.constants import DATASET_VALS
from t5suite.data.formats.data_formats import ALPACA_COLUMNS, ALPACA_ENTRY
from t5suite.data.formats.dialogues import ANSWERABILITY_FILES, CHIT_CHAT_FILES, DialogueSettings, dialogue_rows
from t5suite.data.formats.files import split_files
from t5suite.data.formats.made_up import DebugRows, DebugSettings
from t5suite.data.formats.own_data import Form
from t5suite.data.formats.rows import Columns
from t5suite.data.formats.sources import FileRows, HubRows
from t5suite.data.formats.user_classes import user_rows

# Settings that every data set may have, besides its own.
SHARED_SETTINGS = ("name", "labels", "metrics")
DEBUG_LENGTHS = (512, 128)


class Wanted(NamedTuple):
    """What one position of the list-valued flags says; settings are `--data_config` without the shared ones."""

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
      ConfigError: no such class, a path that it needs or that is not there, an unknown setting.
    """
    settings = {key: value for key, value in config.items() if key not in SHARED_SETTINGS}
    wanted = Wanted(path, settings, labels, max_input_tokens, max_output_tokens)
    if ":" in name:
        return _user_form(name, wanted)
    short = CLASS_ALIASES.get(name, name.removesuffix("Dataset"))
    entry = find(short, DATA_CLASSES, "data class", where="--data_class")
    _check_settings(name, settings, entry.settings)
    if entry.needs_path and path is None:
        raise ConfigError(f"--data_class {name} needs a --data_path")
    return entry.form(wanted)


def class_name(name: str, path: str | None, config: dict) -> str:
    """What a data set is called: by its settings, else its path, else (and for SST-2) its class.

    >>> class_name("JSONLines", "data/reviews", {})
    'reviews'
    """
    if "name" in config:
        return check_name(config["name"], "data set", "--data_config")
    short = name.rpartition(":")[2].removesuffix("Dataset")
    if path and short != "SST2":
        return Path(path).resolve().name.lstrip(".") or "data"
    return short.lower()


def _check_settings(name: str, settings: dict, known: tuple[str, ...]) -> None:
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"--data_config: {name} has no setting {key!r}; {suggestion(key, (*SHARED_SETTINGS, *known))}"
            )


def _json_lines(wanted: Wanted) -> Form:
    columns = Columns(labels=wanted.labels)
    return Form(FileRows(split_files(wanted.path, (".jsonl",), "--data_path"), "jsonl", columns), columns, {})


def _sst2(wanted: Wanted) -> Form:
    shipped = DATASET_VALS["glue"]["sst2"]
    columns = Columns(("sentence",), "label", labels=tuple(shipped["labels"]))
    kept = ("text_column_name", "label_column_name", "labels", "metric_names", "metric_to_optimize")
    entry = {key: shipped[key] for key in kept}
    if wanted.path is None:
        return Form(HubRows(shipped["hub_path"], shipped["hub_name"], None, columns), columns, entry)
    mirror = Path(wanted.path, "glue", "sst2")
    files = split_files(mirror if mirror.is_dir() else wanted.path, (".jsonl",), "--data_path")
    return Form(FileRows(files, "jsonl", columns, _stripped_sentence), columns, entry)


def _stripped_sentence(row: dict) -> dict:
    """SST-2's sentences end in a space."""
    sentence = row.get("sentence")
    return {**row, "sentence": sentence.strip()} if isinstance(sentence, str) else row


def _alpaca(wanted: Wanted) -> Form:
    files = split_files(wanted.path, (".json", ".jsonl"), "--data_path")
    return Form(FileRows(files, "jsonl", ALPACA_COLUMNS), ALPACA_COLUMNS, ALPACA_ENTRY)


def _answerability(wanted: Wanted) -> Form:
    source = dialogue_rows(wanted.path, wanted.settings, ANSWERABILITY_FILES, wanted.max_input_tokens)
    return Form(source, Columns(), {"metric_names": ["rouge"]})


def _chit_chat(wanted: Wanted) -> Form:
    source = dialogue_rows(
        wanted.path,
        wanted.settings,
        CHIT_CHAT_FILES,
        wanted.max_input_tokens,
        filter_allowed=False,
        static_evidence="chit-chat",
    )
    return Form(source, Columns(), {"metric_names": ["rouge"]})


def _debug(wanted: Wanted) -> Form:
    if wanted.path is not None:
        raise ConfigError(f"--data_class Debug has no files, but --data_path gives it {wanted.path!r}; write none")
    lengths = (wanted.max_input_tokens or DEBUG_LENGTHS[0], wanted.max_output_tokens or DEBUG_LENGTHS[1])
    entry = {"metric_names": [], "max_input_tokens": lengths[0], "max_output_tokens": lengths[1]}
    return Form(DebugRows(DebugSettings(**wanted.settings), *lengths), Columns(), entry)


def _user_form(name: str, wanted: Wanted) -> Form:
    source = user_rows(name, wanted.path, wanted.settings)
    entry = getattr(source.made, "entry", None) or {}
    if not isinstance(entry, dict):
        raise ConfigError(f"--data_class {name}: its entry is {entry!r:.60}, not a dict of fields")
    texts, target = entry.get("text_column_name", "input"), entry.get("label_column_name", "output")
    return Form(source, Columns((texts,) if isinstance(texts, str) else tuple(texts), target), dict(entry))


class DataClass(NamedTuple):
    """How a data set is made of its settings, which settings it has, and whether there is nothing without a path."""

    form: Callable[[Wanted], Form]
    settings: tuple[str, ...] = ()
    needs_path: bool = True


_DIALOGUE_SETTINGS = tuple(field.name for field in dataclasses.fields(DialogueSettings))

DATA_CLASSES = {
    "JSONLines": DataClass(_json_lines),
    "SST2": DataClass(_sst2, needs_path=False),
    "Alpaca": DataClass(_alpaca),
    "MultiDoc2DialAnswerability": DataClass(_answerability, _DIALOGUE_SETTINGS),
    "MultiDoc2DialChitChat": DataClass(_chit_chat, _DIALOGUE_SETTINGS),
    "Debug": DataClass(_debug, tuple(field.name for field in dataclasses.fields(DebugSettings)), needs_path=False),
}

# The predecessor's names of MultiDoc2Dial's two forms.
CLASS_ALIASES = {
    "YatinAnswerabilityDataset": "MultiDoc2DialAnswerability",
    "DineshChitChatDataset": "MultiDoc2DialChitChat",
}
