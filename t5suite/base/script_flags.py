"""The flags of the entry scripts as a table, for programs that write command lines and must answer without torch.

    >>> flags_of("fine_tune_t5.py")["learning_rate"]
    {'type': 'float', 'choices': None, 'list': False, 'none': False, 'default_true': False}
    >>> value_problem(flags_of("fine_tune_t5.py")["learning_rate"], "fast")
    "'fast' is not a float"

The table is made from the argument dataclasses, at the versions of the libraries that the project is tested with, by
`python -m t5suite.training.flags.table`; a test keeps it equal to them.
"""

import functools
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.lookup import find

TABLE_FILE = Path(__file__).with_name("script_flags.json")
# The sub-commands of `t5suite` that are an entry script (`for_each_gpu` in slurm/ names them, too).
SCRIPTS = {"fine_tune": "fine_tune_t5", "pre_train": "pre_train_t5", "evaluate": "fine_tune_t5"}
# Other names of these sub-commands, which `t5suite` takes, too.
OTHER_NAMES = {"finetune": "fine_tune", "train": "fine_tune", "pretrain": "pre_train", "eval": "evaluate"}
# The values of the keys that an entry omits in the file.
ABSENT = {"choices": None, "refused": (), "list": False, "none": False, "default_true": False, "marks": "", "needs": ""}
# What Hugging Face's `string_to_bool` accepts.
TRUE_WORDS = ("yes", "true", "t", "y", "1")
BOOLEAN_WORDS = (*TRUE_WORDS, "no", "false", "f", "n", "0")
# Counts are below this limit: larger ones do not fit into the libraries' integers.
LIMIT = 2**63
# The types of flags that take a number, with what makes one of a word.
NUMBER_TYPES = {"int": int, "float": float}
# Every data loader worker is a process with its own memory.
ENDS = {"workers": max(64, 4 * (os.cpu_count() or 1))}


@functools.cache
def flag_table() -> dict[str, dict]:
    """The file: `{"scripts": {script: {flag: entry}}, "elsewhere": {another system's flag: its equivalent}}`."""
    return json.loads(TABLE_FILE.read_text(encoding="utf-8"))


def flags_of(script: str) -> dict[str, dict]:
    """`{flag: {"type", "choices", "list", "none", "default_true", ...}}` of a script, given by its name or path.

    `choices` is None or the values that are understood; `refused`: those of them that end with a reason; `list`:
    several values may follow; `none`: the flag takes None; `default_true`: a boolean that is on unless it is given as
    False; and the facts that `t5suite.training.flags.fields` describes.

    Raises:
      ConfigError: not one of the two scripts.
    """
    entries = find(Path(script).stem, flag_table()["scripts"], "script")
    return {name: {**ABSENT, **entry} for name, entry in entries.items()}


def script_command(word: str) -> str | None:
    """The sub-command of SCRIPTS that the word after `t5suite` means, in any of its spellings; None: another one.

    >>> script_command("fine-tune"), script_command("eval"), script_command("sweep")
    ('fine_tune', 'evaluate', None)
    """
    name = word.replace("-", "_")
    name = OTHER_NAMES.get(name, name)
    if name not in SCRIPTS:
        return None
    return name


def script_named(word: str, before: str = "") -> str | None:
    """The entry script that a word of a command names, given the word before it; None: another program.

    >>> script_named("bin/fine_tune_t5.py"), script_named("evaluate", "t5suite"), script_named("evaluate", "lm")
    ('fine_tune_t5', 'fine_tune_t5', None)
    """
    stem = Path(word).stem
    if Path(before).name == "t5suite":
        stem = SCRIPTS.get(script_command(word), "")
    if Path(word).suffix not in ("", ".py"):
        return None
    if stem not in flag_table()["scripts"]:
        return None
    return stem


@functools.cache
def flags_marked(mark: str) -> list[str]:
    """The flags of both scripts with a mark (`report`, `shapes`, ...), in the order of the help."""
    names = [name for name, entry in _entries() if mark in entry.get("marks", "").split()]
    return list(dict.fromkeys(names))


@functools.cache
def flags_needing(need: str) -> list[str]:
    """The flags of both scripts that have no effect without something.

    >>> flags_needing("Adam")
    ['adam_beta1', 'adam_beta2', 'adam_epsilon']
    """
    names = [name for name, entry in _entries() if need in entry.get("needs", "").split(", ")]
    return list(dict.fromkeys(names))


@functools.cache
def changes_of_flags() -> dict[str, str]:
    """`{flag: "layout", "length" or "nothing"}` of both scripts' flags that may change within the same run."""
    return {name: entry["change"] for name, entry in _entries() if "change" in entry}


def _entries() -> list[tuple[str, dict]]:
    entries: list[tuple[str, dict]] = []
    for flags in flag_table()["scripts"].values():
        entries += flags.items()
    return entries


def offered_choices(flag: dict) -> list:
    """A flag's choices that a run can use, for suggestions and lists.

    Args:
      flag: an entry of `flags_of` that has choices.
    """
    return [choice for choice in flag["choices"] if choice not in flag["refused"]]


def value_problem(flag: dict, value) -> str | None:
    """Why a script would reject the value, as in a YAML file or as command-line text; None if it accepts it.

    >>> value_problem(flags_of("fine_tune_t5.py")["eval_method"], "guess")
    "'guess' is not one of generate, score, loss"

    Args:
      flag: an entry of `flags_of`.
    """
    if value is None or value == "None":
        if flag["none"]:
            return None
        return "None is not allowed"
    if isinstance(value, list):
        return _list_problem(flag, value)
    if flag["choices"] is not None and value not in flag["choices"]:
        return f"{value!r:.80} is not one of {', '.join(map(str, offered_choices(flag)))}"
    if not FITS[flag["type"]](value):
        return f"{value!r:.80} is not {ARTICLES[flag['type']]}"
    number_type = NUMBER_TYPES.get(flag["type"])
    if number_type is None:
        return None
    problem = bounds_problem(flag, number_type(value))
    if problem is None:
        return None
    return f"{value} {problem}"


def _list_problem(flag: dict, values: list) -> str | None:
    """Why a script would reject a list of values; None if it accepts it."""
    if not flag["list"]:
        return f"{values!r:.80} is a list, but the flag takes one value"
    if not values:
        return "the list is empty"
    for value in values:
        problem = value_problem(flag, value)
        if problem is not None:
            return problem
    return None


def bounds_problem(flag: dict, value) -> str | None:
    """Why a number is outside a flag's `bounds`; None for one within them, and for what is not a number.

    >>> bounds_problem({"bounds": "[1, inf) examples"}, 0)
    'must be at least 1 (examples)'
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not flag.get("bounds") or not is_number:
        return None
    bounds = _parse_bounds(flag["bounds"])
    extra_value = flag.get("also")
    if value == extra_value or bounds.include(value):
        return None
    requirement = bounds.requirement(value)
    if extra_value is not None:
        requirement += f", or {extra_value}"
    return f"must be {requirement} ({bounds.unit})"


@dataclass(frozen=True)
class NumberBounds:
    """The numbers that a flag takes: `[0, 1) a share`."""

    least: float
    largest: float
    includes_least: bool
    includes_largest: bool
    unit: str

    def include(self, value) -> bool:
        """Whether a number is one of them; NaN never is."""
        return self._is_high_enough(value) and self._is_low_enough(value)

    def _is_high_enough(self, value) -> bool:
        if self.includes_least:
            return value >= self.least
        return value > self.least

    def _is_low_enough(self, value) -> bool:
        if self.includes_largest:
            return value <= self.largest
        return value < min(self.largest, LIMIT)

    def requirement(self, value) -> str:
        """What a number that is not one of them must be: `at least 0 and below 1`."""
        lower = f"above {self.least:.17g}"
        if self.includes_least:
            lower = f"at least {self.least:.17g}"
        upper = self._upper_requirement(value)
        if upper is None:
            return lower
        return f"{lower} and {upper}"

    def _upper_requirement(self, value) -> str | None:
        """`below 1`; None if the number is not too large for a flag without a largest one."""
        if self.largest < math.inf:
            if self.includes_largest:
                return f"at most {self.largest:.17g}"
            return f"below {self.largest:.17g}"
        if value < LIMIT:
            return None
        # Python's whole numbers may be too large to be asked as a float.
        if isinstance(value, int) or math.isfinite(value):
            return "below 2^63"
        return "finite"


def _parse_bounds(text: str) -> NumberBounds:
    opening, ends, closing, unit = re.fullmatch(r"([\[(])(.*?)([\])]) (.*)", text).groups()
    least, largest = (float(ENDS.get(end.strip(), end)) for end in ends.split(","))
    return NumberBounds(least, largest, includes_least=opening == "[", includes_largest=closing == "]", unit=unit)


def _succeeds(function, value) -> bool:
    try:
        function(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


FITS = {
    "bool": lambda value: isinstance(value, bool) or str(value).lower() in BOOLEAN_WORDS,
    "int": lambda value: not isinstance(value, (bool, float)) and _succeeds(int, value),  # `int("2.0")` fails
    "float": lambda value: not isinstance(value, bool) and _succeeds(float, value),
    "str": lambda value: isinstance(value, (str, int, float, bool, dict)),
    "dict": lambda value: isinstance(value, dict) or (isinstance(value, str) and bool(value.strip())),
}
ARTICLES = {"bool": "a boolean", "int": "an int", "float": "a float", "str": "a word", "dict": "a table"}
# {theme: its heading in the help}, in the help's order.
THEMES = {
    "data": "task and data", "rows": "rows of your own", "instructions": "instructions (--benchmark super_ni)",
    "text": "text", "objective": "objective", "model": "model", "adapters": "adapters", "training": "training",
    "evaluation": "evaluation, selection and modes", "plug-ins": "plug-ins", "output": "output and checkpoints",
    "resuming": "resuming", "tracking": "tracking", "speed": "precision, memory and speed",
    "devices": "several devices", "rest": "Hugging Face's other flags",
}  # fmt: skip
