"""What is wrong with flags and their values, in words.

>>> unknown_flag("epochs", flags_of("fine_tune_t5"))
'unknown flag --epochs; here it is --num_train_epochs'
"""

import difflib
import re
from collections.abc import Iterable

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.base.script_flags import FITS, NUMBER_TYPES, bounds_problem, flag_table, offered_choices

MOST_UNKNOWN_FLAGS = 20
# Flags that name files, folders, models or tokenizers.
NAMING_FLAGS = re.compile(r"\w+_(dir|file|name_or_path)|tokenizer_name|config_name")


def unknown_flags(names: list[str], flags: Iterable[str]) -> str:
    """The error message for all flags that a script does not have, a line each (`unknown_flag`)."""
    messages = [unknown_flag(name, flags) for name in dict.fromkeys(names)]
    lines = messages[:MOST_UNKNOWN_FLAGS]
    if len(messages) > MOST_UNKNOWN_FLAGS:
        lines.append(f"and {len(messages) - MOST_UNKNOWN_FLAGS} more unknown flags")
    return "\n".join(lines)


def unknown_flag(name: str, flags: Iterable[str]) -> str:
    """The error message for a flag that is none of a script's.

    >>> unknown_flag("epochs", flags_of("fine_tune_t5"))
    'unknown flag --epochs; here it is --num_train_epochs'
    """
    table = flag_table()
    flags = sorted(flags)
    for equivalent in table["elsewhere"].get(name, ()):
        flags_of_equivalent = set(re.findall(r"--(\w+)", equivalent))
        if flags_of_equivalent.issubset(flags):
            return f"unknown flag --{name}; here it is {equivalent}"
    for script, flags_of_script in table["scripts"].items():
        if name in flags_of_script:
            return f"--{name} belongs to {script}.py"
    near = difflib.get_close_matches(name, flags, n=3, cutoff=0.6)
    if not near:
        return f"unknown flag --{name}; see --help for all flags"
    near_flags = ", ".join(f"--{match}" for match in near)
    return f"unknown flag --{name}; did you mean {near_flags}?"


def words_problem(name: str, entry: dict, flag: str, words: list[str], nargs) -> str | None:
    """Why the words after a flag cannot be its value, in the parser's words; None if they can.

    Args:
      entry: of the table of flags.
      flag: as it stands in the command line, such as `--no_bf16_full_eval` of `bf16_full_eval`.
      nargs: argparse's, as `options_of` has it.
    """
    if not words and nargs in (None, "+"):
        return f"--{name}: expected one argument"
    for word in words:
        problem = _word_problem(name, entry, flag, word)
        if problem:
            return problem
    return None


def _word_problem(name: str, entry: dict, flag: str, word: str) -> str | None:
    """Why a word cannot be a flag's value, or one of its values."""
    if word == "None":
        if entry["none"]:
            return None
        return f"--{name} cannot be None"
    if entry["list"] and word.startswith("["):
        return None
    if entry["choices"]:
        if word in map(str, entry["choices"]):
            return None
        return f"--{name}: unknown choice {word!r}; {suggestion(word, offered_choices(entry))}"
    kind = entry["type"]
    if kind not in NUMBER_TYPES:
        return None
    if not FITS[kind](word):
        return f"--{name}: invalid {kind} value: {word!r}"
    number = NUMBER_TYPES[kind](word)
    problem = bounds_problem(entry, number)
    if problem is None:
        return None
    shown_number = str(number).removesuffix(".0")
    return f"--{name} {shown_number}: {problem}"


def check_is_filled(name: str, value, place: str = "") -> None:
    """Refuses an empty name of a file, folder or model, for which the default would be taken.

    Raises:
      ConfigError: it is empty.
    """
    is_blank = isinstance(value, str) and not value.strip()
    if not is_blank or not NAMING_FLAGS.fullmatch(name):
        return
    advice = "give a name, or leave the flag out"
    if name.endswith("_dir"):
        advice = "name a folder"
    raise ConfigError(f"{place}--{name} {value!r} is empty (a shell variable that is not set?); {advice}")
