"""What W&B's agent writes behind a program's name, as the flags that it means.

    >>> flags_and_files(["mini.yaml", "learning_rate=0.001", "+seed=7"], parser)
    (['mini.yaml'], ['--learning_rate=0.001', '--seed=7'])
    >>> table_text("{'min_lr': 1e-05, 'nested': None}")
    '{"min_lr": 1e-05, "nested": null}'

A sweep's `command:` may have `${args}` (`--k=v`), `${args_no_equals}` (`--k v`), `${args_no_hyphens}` (`k=v`),
`${args_no_boolean_flags}`, `${args_json}` (one word), `${args_json_file}`, `${args_append_hydra}` (`+k=v`) and
`${args_override_hydra}` (`++k=v`). Nested parameters and lists come as Python writes them (wandb 0.31).
"""

import argparse
import ast
import functools
import json
import re

from t5suite.base.errors import ConfigError
from t5suite.base.yaml_files import unique

ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_][A-Za-z0-9_-]*)=")
BOOLEAN_WORDS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0", "none")


def flags_and_files(argv: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """`(files, flags)`: YAML or JSON files and JSON texts, in order, and the words of the flags.

    A word `name=value` is a flag where no flag before it takes it as its value, and only by a flag's name.

    Raises:
      ConfigError: `--config` without a file; a flag that is given twice, with different values.
    """
    files, flags, i = [], [], 0
    given: dict[str, list[str]] = {}
    while i < len(argv):
        word, end = argv[i], i + 1
        if word.startswith("--config") and word[8:9] in ("", "="):
            end = i + (1 if "=" in word else 2)
            if end > len(argv):
                raise ConfigError("--config: give a YAML file")
            files.append(word[9:] if "=" in word else argv[i + 1])
        elif word.startswith("-"):
            end += _num_values(word, argv[i + 1 :], parser)
            one_list = end == i + 2 and list_items(argv[i + 1]) is not None
            _note(given, argv[i:end], parser)
            flags += [f"{word}={argv[i + 1]}"] if one_list else argv[i:end]
        elif assigned_flag(word, parser):
            flags.append(f"--{word.lstrip('+')}")
            _note(given, flags[-1:], parser)
        elif word.startswith("{") or not flags:
            files.append(word)
        else:
            flags.append(word)
        i = end
    return files, flags


def _note(given: dict[str, list[str]], words: list[str], parser) -> None:
    """Remembers a flag's words by its name; argparse would let the last of two values win without a word."""
    flag, equals, value = words[0].partition("=")
    action = parser._option_string_actions.get(flag)
    values = [value] if equals else words[1:] or [flag]
    if action is not None and given.setdefault(action.dest, values) != values:
        raise ConfigError(f"--{action.dest} is given twice: {' '.join(given[action.dest])} and {' '.join(values)}")


def assigned_flag(word: str, parser) -> str | None:
    """The flag of `name=value`, `+name=value` or `++name=value`; None for other words.

    >>> assigned_flag("++learning_rate=0.001", parser)
    '--learning_rate'
    """
    found = ASSIGNMENT.match(word)
    flag = f"--{found[1]}" if found else None
    return flag if flag in parser._option_string_actions else None


def _num_values(flag: str, rest: list[str], parser) -> int:
    """How many of the words behind a flag are its values."""
    action = parser._option_string_actions.get(flag)
    if action is None or action.nargs == 0:
        return 0
    num_words = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    if action.nargs == "+":
        return num_words
    if action.nargs == "?" and num_words and rest[0].lower() not in BOOLEAN_WORDS:
        return 0
    return min(num_words, 1)


def table_text(text: str) -> str:
    """A flag's table as JSON, if Python wrote it; any other text as it is.

    Raises:
      argparse.ArgumentTypeError: it begins as a table and is none.
    """
    table = read_table(text)
    return text if table is None else json.dumps(table)


def settings_text(text: str) -> str:
    """A table as the settings that some flags take; any other text as it is.

    >>> settings_text("{'betas': (0.9, 0.95), 'fused': True}")
    'betas=(0.9,0.95),fused=True'

    Raises:
      argparse.ArgumentTypeError: it begins as a table and is none.
    """
    table = read_table(text)
    return text if table is None else ",".join(f"{name}={_setting(value)}" for name, value in table.items())


def read_table(text: str) -> dict | None:
    """A table in JSON or as Python writes it; None for a text that does not begin as one."""
    if not text.lstrip().startswith("{"):
        return None
    for read in (functools.partial(json.loads, object_pairs_hook=unique), ast.literal_eval):
        try:
            table = read(text.strip())
            if isinstance(table, dict) and json.dumps(table):
                return table
        except ConfigError as error:
            raise argparse.ArgumentTypeError(f"{text!r:.200}: {error}") from None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    raise argparse.ArgumentTypeError(f'{text!r:.200} is no table: write {{"name": value, ...}}')


def list_items(text: str) -> list | None:
    """The items of a list as Python or JSON writes it; None for another text.

    >>> list_items("['a.txt', 'b.txt']")
    ['a.txt', 'b.txt']
    """
    if not text.startswith("["):
        return None
    try:
        items = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return items if isinstance(items, list) else None


def _setting(value) -> str:
    if isinstance(value, (list, tuple)):
        return f"({','.join(map(str, value))})"
    return str(value)
