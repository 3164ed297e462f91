"""Writes the table of all flags, for programs that do not load torch (`t5suite.base.script_flags`).

    python -m t5suite.training.flags.table          # after changing the argument dataclasses or transformers

A flag's entry contains what `argparse` knows: its type, choices, whether it accepts several values or None, default
and help; and the other facts of `t5suite.training.flags.fields`, with `ours` if we define or redefine it, and
`refused`, the choices that end with a reason.
"""

import enum
import json
import re
import typing
from pathlib import Path

from transformers.hf_argparser import string_to_bool

from t5suite.base.script_flags import TABLE_FILE, THEMES
from t5suite.base.yaml_files import read_yaml
from t5suite.optim.optimizers import OPTIMIZERS
from t5suite.optim.schedules import SCHEDULES
from t5suite.optim.settings import refused_optimizers
from t5suite.training.flags.fields import facts_of
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import SuiteArgumentParser, read_table, table_text
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

TYPES = {string_to_bool: "bool", int: "int", float: "float", read_table: "dict", table_text: "dict"}
COMING_FROM = Path(__file__).parents[3] / "docs/builders/coming_from"
SCRIPTS = {"fine_tune_t5": FINE_TUNING_ARGUMENTS, "pre_train_t5": PRE_TRAINING_ARGUMENTS}


def make_table() -> dict:
    """The whole table, as plain data."""
    scripts = {script: script_entries(kinds) for script, kinds in SCRIPTS.items()}
    elsewhere = names_elsewhere(set.intersection(*map(set, scripts.values())))
    return {"scripts": scripts, "elsewhere": elsewhere}


def names_elsewhere(our_names: set[str]) -> dict[str, list[str]]:
    """`{another system's flag: its equivalents here}`, from the page "Coming from another system".

    Args:
      our_names: names to skip, because both scripts have such a flag.
    """
    equivalents: dict[str, dict[str, None]] = {}
    for path in sorted(COMING_FROM.glob("*.yaml")):
        for names_text, text, note in read_yaml(path).content["flags"]:
            names = names_text.split(", ")
            if text == "–":
                text = f"not needed: {note}"
            # A link is for the page alone.
            if "](" in text or not all(re.fullmatch(r"[\w.]+", name) for name in names):
                continue
            for name, equivalent in zip(names, _equivalents(text, len(names)), strict=True):
                if name not in our_names:
                    equivalents.setdefault(name, {})[equivalent] = None
    return {name: list(equivalents[name]) for name in sorted(equivalents)}


def _equivalents(text: str, num_names: int) -> list[str]:
    """What replaces each of several names: a flag each if there are as many, else all of the text."""
    flags = re.findall(r"`(--\w[^`]*)`", text)
    if len(flags) == num_names > 1:
        return flags
    return [text.replace("`", "")] * num_names


def script_entries(dataclass_types) -> dict[str, dict]:
    """`{flag: entry}` of a script's dataclasses, in the order of the help, without false or None facts.

    >>> script_entries((DataArguments,))["max_predict_samples"]
    {'type': 'int', 'none': True, 'help': 'At most this many test rows a split.', 'theme': 'data', ...}
    """
    actions = {action.option_strings[0]: action for action in SuiteArgumentParser(dataclass_types).actions}
    entries = {}
    for dataclass_type in dataclass_types:
        hints = typing.get_type_hints(dataclass_type)
        facts = facts_of(dataclass_type)
        for name, spec in dataclass_type.__dataclass_fields__.items():
            if spec.init:
                entries[name] = _entry(spec.default, hints[name], actions[f"--{name}"], facts[name])
    _add_choices(entries, "optimizer", OPTIMIZERS, "optim")
    _add_choices(entries, "schedule", SCHEDULES, "lr_scheduler_type")
    for name in entries.keys() & {"optimizer", "optim"}:
        entries[name]["refused"] = refused_optimizers()
    return dict(sorted(entries.items(), key=lambda name_and_entry: _place_in_help(name_and_entry[1])))


def _entry(default, hint, action, facts: dict) -> dict:
    """A flag's entry: what argparse knows of it, its default, and its other facts."""
    if isinstance(default, enum.Enum):
        default = default.value
    of_parser = {
        "type": "str" if action.choices else TYPES.get(action.type, "str"),
        "choices": [*action.choices] if action.choices else None,
        "list": action.nargs == "+",
        "none": type(None) in typing.get_args(hint),
        "default_true": default is True,
    }
    entry = {name: fact for name, fact in of_parser.items() if fact}
    if isinstance(default, (bool, int, float, str)):
        entry["default"] = default
    entry |= {name: fact for name, fact in facts.items() if name not in ("choices", "aliases")}
    entry["help"] = entry["help"].replace("%%", "%")
    if "pairs" in entry.get("marks", "").split():
        entry["type"] = "dict"  # or 'name=value,...'
    return entry


def _add_choices(entries: dict[str, dict], name: str, table: dict, hugging_face_name: str) -> None:
    """Gives a flag of ours our table's names, then those of Hugging Face's flag."""
    if name in entries:
        choices = entries[hugging_face_name]["choices"]
        entries[name]["choices"] = [*table, *(choice for choice in choices if choice not in table)]


def _place_in_help(entry: dict) -> tuple:
    """Themes in their order; within a theme, common flags come first, then ours."""
    is_common = "common" in entry.get("marks", "")
    return list(THEMES).index(entry["theme"]), not is_common, not entry.get("ours")


def json_of_table(table: dict) -> str:
    """The table as JSON, one flag per line, so that changing one flag changes one line."""
    scripts = []
    for script, flags in table["scripts"].items():
        lines = [f"   {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in flags.items()]
        scripts.append(f"  {json.dumps(script)}: {{\n" + ",\n".join(lines) + "\n  }")
    elsewhere = ",\n".join(f"  {json.dumps(name)}: {json.dumps(texts)}" for name, texts in table["elsewhere"].items())
    return '{\n "scripts": {\n' + ",\n".join(scripts) + f'\n }},\n "elsewhere": {{\n{elsewhere}\n }}\n}}\n'


if __name__ == "__main__":
    TABLE_FILE.write_text(json_of_table(make_table()), encoding="utf-8")
