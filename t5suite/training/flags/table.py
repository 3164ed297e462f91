"""Writes the table of all flags, for programs that do not load torch (`t5suite.base.script_flags`).

    python -m t5suite.training.flags.table          # after changing the argument dataclasses or transformers

A flag's entry contains what `argparse` knows: its type, choices, whether it accepts several values or None, default
and help; and the other facts of `t5suite.training.flags.fields`, with `ours` if we define or redefine it.
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


def names_elsewhere(ours: set[str]) -> dict[str, list[str]]:
    """`{another system's flag: its equivalents here}`, from the page "Coming from another system".

    Args:
      ours: names to skip, because both scripts have such a flag.
    """
    found = {}
    for path in sorted(COMING_FROM.glob("*.yaml")):
        for theirs, text, note in read_yaml(path).content["flags"]:
            names, flags = theirs.split(", "), re.findall(r"`(--\w[^`]*)`", text)
            one_each = len(names) == len(flags) > 1
            text = f"not needed: {note}" if text == "–" else text
            for name, flag in zip(names, flags if one_each else [text.replace("`", "")] * len(names)):
                if name not in ours and "](" not in text and all(re.fullmatch(r"[\w.]+", other) for other in names):
                    found.setdefault(name, {})[flag] = None
    return {name: [*found[name]] for name in sorted(found)}


def script_entries(dataclass_types) -> dict[str, dict]:
    """`{flag: entry}` of a script's dataclasses, in the order of the help, without false or None facts.

    >>> script_entries((DataArguments,))["few_shot"]
    {'type': 'int', 'none': True, 'help': 'Training rows per class.', 'theme': 'data', ...}
    """
    found, actions = {}, {action.option_strings[0]: action for action in SuiteArgumentParser(dataclass_types)._actions}
    for dataclass_type in dataclass_types:
        hints, known = typing.get_type_hints(dataclass_type), facts_of(dataclass_type)
        for name, spec in dataclass_type.__dataclass_fields__.items():
            if not spec.init:
                continue
            action, default = actions[f"--{name}"], spec.default
            default = default.value if isinstance(default, enum.Enum) else default
            entry = {
                "type": "str" if action.choices else TYPES.get(action.type, "str"),
                "choices": [*action.choices] if action.choices else None,
                "list": action.nargs == "+",
                "none": type(None) in typing.get_args(hints[name]),
                "default_true": default is True,
            }
            found[name] = {fact: value for fact, value in entry.items() if value}
            if isinstance(default, (bool, int, float, str)):
                found[name]["default"] = default
            found[name] |= {key: fact for key, fact in known[name].items() if key not in ("choices", "aliases")}
            found[name]["help"] = found[name]["help"].replace("%%", "%")
    for name, table, hugging_face in (("optimizer", OPTIMIZERS, "optim"), ("schedule", SCHEDULES, "lr_scheduler_type")):
        if name in found:
            theirs = found[hugging_face]["choices"]
            found[name]["choices"] = [*table, *(other for other in theirs if other not in table)]
    for entry in found.values():
        if "pairs" in entry.get("marks", "").split():
            entry["type"] = "dict"  # or 'name=value,...'
    themes = list(THEMES)  # within a theme, common flags come first, then ours
    order = lambda entry: (themes.index(entry["theme"]), "common" not in entry.get("marks", ""), not entry.get("ours"))
    return dict(sorted(found.items(), key=lambda item: order(item[1])))


def table_text(table: dict) -> str:
    """The table as JSON, one flag per line, so that changing one flag changes one line."""
    scripts = []
    for script, flags in table["scripts"].items():
        lines = [f"   {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in flags.items()]
        scripts.append(f"  {json.dumps(script)}: {{\n" + ",\n".join(lines) + "\n  }")
    elsewhere = ",\n".join(f"  {json.dumps(name)}: {json.dumps(texts)}" for name, texts in table["elsewhere"].items())
    return '{\n "scripts": {\n' + ",\n".join(scripts) + f'\n }},\n "elsewhere": {{\n{elsewhere}\n }}\n}}\n'


if __name__ == "__main__":
    TABLE_FILE.write_text(table_text(make_table()), encoding="utf-8")
