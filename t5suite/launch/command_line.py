"""The words of an entry script's command line, read and checked by the table of flags, before torch is loaded.

    >>> flag_values("fine_tune_t5", ["mini.yaml", "--seed=7"])
    {'benchmark': 'mini', 'dataset_name': 'sentiment', ..., 'seed': '7'}
    >>> flag_values("fine_tune_t5", ["--lr", "1e-3"])
    ConfigError: unknown flag --lr; here it is --learning_rate

The parser of the dataclasses (`t5suite.training.flags.parser`) reads words and files by the same functions.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import in_plain_words
from t5suite.base.script_flags import BOOLEAN_WORDS, flags_of
from t5suite.launch.config_files import read_config
from t5suite.launch.flag_problems import check_is_filled, unknown_flags, words_problem

ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_][A-Za-z0-9_-]*)=")
# `optim.name=adamw`: a setting of another program (Hydra's form).
DOTTED_ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=.*")

# A rank, as the `deepspeed` launcher and old ones of torch give it to each process that they start.
RANK_FLAGS = ("--local_rank", "--local-rank")
LAUNCHER_FLAGS = (*RANK_FLAGS, "--_wandb")


class FlagWords(NamedTuple):
    """A flag as it stands in the command line, and the words of its value."""

    flag: str
    words: list[str]

    @property
    def text(self) -> str:
        """The value in a message; the flag itself where it has none."""
        return " ".join(self.words or [self.flag])


def flag_values(script: str, argv: list[str]) -> dict[str, object]:
    """`{flag: value}` of a command's files and words; a file's values unchanged, the others as text.

    Raises:
      ConfigError: an unknown flag; a value that is not among a flag's choices, not a number or out of bounds; a flag
        that is given twice.
    """
    flags = flags_of(script)
    options = options_of(flags)
    files, words_by_flag = read_words(argv, options)
    values: dict[str, object] = {}
    for source in files:
        for name, (_, value) in read_config(source, flags).items():
            values[name] = value
    for name, (flag, words) in words_by_flag.items():
        _, nargs = options[flag]
        problem = words_problem(name, flags[name], flag, words, nargs)
        if problem:
            raise ConfigError(in_plain_words(problem))
        values[name] = _value_of(name, flag, words)
    return values


def _value_of(name: str, flag: str, words: list[str]) -> object:
    """A flag's value by the words after it."""
    if not words:
        return flag == f"--{name}"  # False for --no_name
    if len(words) == 1:
        return words[0]
    return words


def options_of(flags: Mapping[str, dict]) -> dict[str, tuple]:
    """`{option: (flag, argparse's nargs)}` of entries of the table, as `HfArgumentParser` has them.

    >>> options_of(flags_of("fine_tune_t5"))["--no_load_best_model_at_end"]
    ('load_best_model_at_end', 0)
    """
    options = {}
    for name, entry in flags.items():
        nargs = entry.get("nargs")
        if entry["list"]:
            nargs = "+"
        elif entry["type"] == "bool" and "default" in entry:
            nargs = "?"
        options[f"--{name}"] = (name, nargs)
        if entry["default_true"]:
            options[f"--no_{name}"] = (name, 0)
    return options


def read_words(argv: list[str], options: Mapping[str, tuple]) -> tuple[list[str], dict[str, FlagWords]]:
    """`(files, {name: its flag and words})`: YAML or JSON files and JSON texts, in order, and the flags.

    A word `name=value`, `+name=value` or `++name=value` is a flag, unless a flag before it takes it as its value.
    Launchers' own flags are left out.

    Args:
      options: as `options_of` returns them.

    Raises:
      ConfigError: unknown flags, all of them; `--config` without a file; a flag that is given twice, with different
        values; a rank that no launcher gave.
    """
    check_is_text(argv)
    argv = without_launcher_flags(argv)
    reader = _Reader(options)
    position = 0
    while position < len(argv):
        following = argv[position + 1 :]
        position += 1 + reader.read(argv[position], following)
    if reader.unknown:
        raise ConfigError(unknown_flags(reader.unknown, {name for name, _ in options.values()}))
    return reader.files, reader.flags


def without_launcher_flags(argv: list[str]) -> list[str]:
    """The command line without the flags that launchers add.

    >>> without_launcher_flags(["--local_rank", "0", "--seed", "7"])
    ['--seed', '7']

    Raises:
      ConfigError: a rank that no launcher gave.
    """
    own_words = []
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        flag, equals, value = word.partition("=")
        if flag not in LAUNCHER_FLAGS:
            own_words.append(word)
            continue
        if not equals and position < len(argv) and not argv[position].startswith("--"):
            value = argv[position]
            position += 1
        if flag in RANK_FLAGS:
            _check_is_launched(value)
    return own_words


def _check_is_launched(rank: str) -> None:
    """Refuses a rank that no launcher gave, but for that of a single process."""
    if rank not in ("", "0", "-1") and not os.environ.keys() & {"LOCAL_RANK", "WORLD_SIZE"}:
        raise ConfigError(
            f"--local_rank {rank}: no launcher started this process (neither LOCAL_RANK nor WORLD_SIZE "
            "is set); launchers give this flag themselves: leave it out"
        )


class _Reader:
    """Sorts the words of a command line into files, flags and flags that are unknown."""

    def __init__(self, options: Mapping[str, tuple]):
        self.options = options
        self.files: list[str] = []
        self.flags: dict[str, FlagWords] = {}
        self.unknown: list[str] = []

    def read(self, word: str, following: list[str]) -> int:
        """Reads a word, and returns how many of the following ones belong to it."""
        dotted = DOTTED_ASSIGNMENT.fullmatch(word)
        if dotted and not Path(word).exists():
            self.unknown.append(dotted[1])
            return 0
        assignment = ASSIGNMENT.match(word)
        if assignment and f"--{assignment[1]}" in self.options:
            word = f"--{word.lstrip('+')}"
        flag, equals, value = word.partition("=")
        flag = flag[:2] + flag[2:].replace("-", "_")
        values = None
        if equals:
            values = [value]
        if flag == "--config":
            return self._read_config(values, following)
        if word.startswith("-"):
            return self._read_flag(flag, word, values, following)
        self._read_file(word)
        return 0

    def _read_config(self, values: list[str] | None, following: list[str]) -> int:
        """The file of `--config`."""
        if values:
            self.files += values
            return 0
        if not following:
            raise ConfigError("--config: give a YAML file")
        self.files.append(following[0])
        return 1

    def _read_flag(self, flag: str, word: str, values: list[str] | None, following: list[str]) -> int:
        """A flag, with its value behind `=` or in the following words."""
        if not word.startswith("--") and f"--{flag.lstrip('-')}" in self.options:
            raise ConfigError(f"{word}: a flag has two dashes: --{word.lstrip('-')}")
        name, nargs = self.options.get(flag, (flag.lstrip("-"), "+"))
        count = 0
        if not values:
            count = _count_values(nargs, following)
        if flag in self.options:
            self._add(name, FlagWords(flag, values or following[:count]))
        else:
            self.unknown.append(name)
        return count

    def _add(self, name: str, flag_words: FlagWords) -> None:
        """Adds a flag, unless it is there with another value: argparse would take the last of two."""
        if flag_words.words:
            check_is_filled(name, flag_words.words[0])
        first_words = self.flags.setdefault(name, flag_words)
        if first_words.text != flag_words.text:
            raise ConfigError(f"--{name} is given twice: {first_words.text} and {flag_words.text}")

    def _read_file(self, word: str) -> None:
        """A word that is no flag: a file of flags, or JSON, if no flag comes before it."""
        if word.startswith("{") or not self.flags:
            self.files.append(word)
        elif not self.unknown:
            raise ConfigError(f"unexpected {word!r:.200}; flags start with --, and a YAML file must come first")


def _count_values(nargs, following: list[str]) -> int:
    """How many of the words after a flag are its values."""
    word_count = 0
    for word in following:
        if word.startswith("--"):
            break
        word_count += 1
    if nargs == "+":
        return word_count
    if nargs == 0 or word_count == 0:
        return 0
    if nargs == "?" and following[0].lower() not in (*BOOLEAN_WORDS, "none"):
        return 0
    return 1


def check_is_text(words: Iterable[str]) -> None:
    """Refuses words that no file of the run could hold.

    Raises:
      ConfigError: bytes that are not UTF-8.
    """
    for word in words:
        if any("\udc80" <= character <= "\udcff" for character in word):
            text = word.encode("utf-8", "surrogateescape")
            raise ConfigError(f"{text!r}: not UTF-8; rename the file, or set a locale of UTF-8 (LC_ALL=C.UTF-8)")
