"""Writes the table of all flags that programs without torch read (`t5suite.base.script_flags`).

    python -m t5suite.training.flags.table          # after a change of the argument dataclasses or of transformers

A flag's entry says what `argparse` would: its type, its choices, whether it takes several values or None, its default
and help; and the other facts of `t5suite.training.flags.fields`, with `ours` where it is not Hugging Face's alone.
"""

import enum
import json
import types
import typing

from t5suite.base.script_flags import TABLE_FILE, THEMES
from t5suite.optim.optimizers import OPTIMIZERS
from t5suite.optim.schedules import SCHEDULES
from t5suite.training.flags.fields import facts_of
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.hugging_face import REMOVED
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

SCRIPTS = {"fine_tune_t5": FINE_TUNING_ARGUMENTS, "pre_train_t5": PRE_TRAINING_ARGUMENTS}


def make_table() -> dict:
    """The whole table, as plain data."""
    return {"scripts": {script: script_entries(kinds) for script, kinds in SCRIPTS.items()}, "removed": REMOVED}


def script_entries(dataclass_types) -> dict[str, dict]:
    """`{flag: entry}` of a script's dataclasses, in the order of the help; what is false or None is left out.

    >>> script_entries((DataArguments,))["few_shot"]
    {'type': 'int', 'none': True, 'help': 'Training rows per class.', 'theme': 'data', ...}
    """
    found = {}
    for dataclass_type in dataclass_types:
        hints, known = typing.get_type_hints(dataclass_type), facts_of(dataclass_type)
        for name, spec in dataclass_type.__dataclass_fields__.items():
            if spec.init:
                facts = {key: fact for key, fact in known[name].items() if key not in ("choices", "aliases")}
                default = spec.default.value if isinstance(spec.default, enum.Enum) else spec.default
                default = {"default": default} if isinstance(default, (bool, int, float, str)) else {}
                found[name] = flag_entry(hints[name], spec.default, known[name].get("choices")) | default | facts
                found[name]["help"] = found[name]["help"].replace("%%", "%")
    for name, table, hugging_face in (("optimizer", OPTIMIZERS, "optim"), ("schedule", SCHEDULES, "lr_scheduler_type")):
        if name in found:
            theirs = found[hugging_face]["choices"]
            found[name]["choices"] = [*table, *(other for other in theirs if other not in table)]
    for entry in found.values():
        if "pairs" in entry.get("marks", "").split():
            entry["type"] = "dict"  # or 'name=value,...'
    themes = list(THEMES)  # within a theme, those that everybody asks for come first, then those that are ours
    order = lambda entry: (themes.index(entry["theme"]), "common" not in entry.get("marks", ""), not entry.get("ours"))
    return dict(sorted(found.items(), key=lambda item: order(item[1])))


def flag_entry(hint, default, choices=None) -> dict:
    """The entry of a flag with this annotation; of `X | str` it is X that counts, but for choices and tables."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    kinds = typing.get_args(hint) if is_union else (hint,)
    can_be_none = type(None) in kinds
    # Of `str | X | None` Hugging Face's parser takes a word, of `str | X` an X.
    is_word = str in kinds and can_be_none
    kinds = [kind for kind in kinds if kind is not type(None)]
    choices = choices or next(filter(None, map(choices_of, [] if is_word else kinds)), None)
    choices = [*choices] if choices else None
    is_list = not is_word and any(typing.get_origin(kind) is list for kind in kinds)
    facts = {"choices": choices, "list": is_list, "none": can_be_none, "default_true": default is True}
    return {"type": type_name(kinds, choices), **{name: fact for name, fact in facts.items() if fact}}


def choices_of(kind) -> list | None:
    """The values of a `Literal` or an enumeration."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [member.value for member in kind] if hasattr(kind, "__members__") else None


def type_name(kinds: list, choices: list | None) -> str:
    """One of 'bool', 'int', 'float', 'str', 'dict'."""
    if choices:
        return "str"
    items = [item for kind in kinds for item in (typing.get_args(kind) if typing.get_origin(kind) is list else [kind])]
    origins = [typing.get_origin(item) or item for item in items]
    for kind in (dict, bool, int, float):
        if kind in origins:
            return kind.__name__
    return "str"


def table_text(table: dict) -> str:
    """The table as JSON, a flag a line, so that a change of one flag is a change of one line."""
    scripts = []
    for script, flags in table["scripts"].items():
        lines = [f"   {json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in flags.items()]
        scripts.append(f"  {json.dumps(script)}: {{\n" + ",\n".join(lines) + "\n  }")
    removed = json.dumps(table["removed"], indent=2).replace("\n", "\n ")
    return '{\n "scripts": {\n' + ",\n".join(scripts) + f'\n }},\n "removed": {removed}\n}}\n'


if __name__ == "__main__":
    TABLE_FILE.write_text(table_text(make_table()), encoding="utf-8")
