"""Command line and YAML file -> argument dataclasses.

    >>> parse_arguments(FINE_TUNING_ARGUMENTS, ["run.yaml", "--learning_rate", "1e-3"])
    (ModelArguments(...), DataArguments(...), EvaluationArguments(...), SuiteTrainingArguments(...))

A YAML file comes first (as the sole positional argument or as `--config`), flags override it. Both `--flag value` and
`--flag=value` are understood, as are `True`, `False` and `None`, and whatever else sweep agents write (`sweep_words`).
A mistyped flag or value is answered with where it stands and what would be right.
"""

import argparse
import ast
import copy
import datetime
import difflib
import functools
import json
import os
import re
import sys
import types
import typing
from pathlib import Path

from transformers import HfArgumentParser

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_folder
from t5suite.base.lookup import in_plain_words, suggestion
from t5suite.base.script_flags import is_script
from t5suite.base.yaml_files import read_json_text, read_yaml, unique
from t5suite.launch.script_help import answer
from t5suite.training.flags.fields import check_bounds, facts_of
from t5suite.training.flags.hugging_face import FACTS
from t5suite.training.processes.launchers import without_launcher_flags
from t5suite.training.sharding.process_state import keeping_process_state


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind each flag; the description's examples keep their lines."""


# What of a field's metadata argparse takes; transformers' own say by `nargs` that a flag may stand alone.
ARGPARSE_FACTS = ("help", "choices", "nargs", "const")


class SuiteArgumentParser(HfArgumentParser):
    """`HfArgumentParser` whose errors are `ConfigError`s."""

    def __init__(self, dataclass_types, **kwargs):
        usage = "%(prog)s [config.yaml] [--flag value | --flag=value ...]"
        super().__init__(dataclass_types, allow_abbrev=False, usage=usage, formatter_class=HelpFormatter, **kwargs)
        tables, pairs = self._table_flags(), self._flags_marked("pairs")
        for action in self._actions:
            if action.dest in pairs:
                action.type = settings_text
            elif action.dest in tables:
                action.type = json_table if tables[action.dest] is dict else table_text

    @staticmethod
    def _parse_dataclass_field(parser, field):
        """Hugging Face's hands all of a field's metadata to argparse."""
        plain = copy.copy(field)
        plain.metadata = {"help": ""} | {
            name: field.metadata[name] for name in ARGPARSE_FACTS if name in field.metadata
        }
        HfArgumentParser._parse_dataclass_field(parser, plain)

    def _flags_marked(self, mark: str) -> list[str]:
        facts = {name: found for kind in self.dataclass_types for name, found in facts_of(kind).items()}
        return [name for name, found in facts.items() if mark in found.get("marks", "").split()]

    def _table_flags(self) -> dict[str, type]:
        """The flags that take a table, with `str` where they take a word, too (a file's name), else `dict`."""
        found = {}
        for dataclass_type in self.dataclass_types:
            for name, hint in typing.get_type_hints(dataclass_type).items():
                kinds = typing.get_args(hint)
                if any((typing.get_origin(kind) or kind) is dict for kind in kinds):
                    found[name] = str if str in kinds else dict
        return found

    def error(self, message):
        raise ConfigError(f"{in_plain_words(message):.1000}")

    def flag_names(self) -> list[str]:
        """Every flag without its dashes, in its underscore form."""
        return sorted({action.dest for action in self._actions if action.dest != "help"})

    def forget_defaults(self) -> None:
        """From now on only flags that were given come out; the dataclasses know their defaults themselves."""
        for action in self._actions:
            action.default = argparse.SUPPRESS


def json_table(text: str) -> dict:
    """A table, where nothing but one is taken."""
    return json.loads(table_text(text))


def parse_arguments(dataclass_types, argv=None, prog=None, description=None) -> tuple:
    """One instance of each dataclass.

    Raises:
      ConfigError: an unknown flag (with the closest names, or with what replaced it), a value of the wrong type, a
        YAML key or value likewise (with file and line), a flag that cannot be None.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = SuiteArgumentParser(dataclass_types, prog=prog, description=description, epilog=EPILOG)
    if prog and is_script(prog):
        answer(argv, Path(prog).stem, description or "")
    elif "-h" in argv or "--help" in argv:
        parser.parse_args(["--help"])
    parser.forget_defaults()
    files, tokens = flags_and_files(without_launcher_flags(argv), parser)
    nones: set[str] = set()
    values = _from_environment(parser)
    for source in files:
        values.update(_read_config(parser, source))
    tokens = _take_nones(parser, [token for word in tokens for token in _with_list_items(parser, word)], nones)
    namespace, unknown = parser.parse_known_args(tokens)
    if unknown:
        raise ConfigError(_unknown_flag(unknown, parser))
    values.update(vars(namespace))
    values.update(dict.fromkeys(nones))
    check_bounds(values, dataclass_types)
    return tuple(_build(dataclass_type, values) for dataclass_type in dataclass_types)


EPILOG = "A YAML file of the same names may come first, or as --config FILE; flags override it."


def _build(dataclass_type, values):
    names = {name for name, spec in dataclass_type.__dataclass_fields__.items() if spec.init}
    given = {name: value for name, value in values.items() if name in names}
    try:
        made = dataclass_type(**given)
        made.flags_given = frozenset(given)  # a flag at its default may have been asked for
        return made
    except ConfigError:
        raise
    except OSError as error:
        flags = [f"--{name} {value!r:.200}" for name, value in given.items() if str(value) == str(error.filename)]
        raise ConfigError(f"{flags[0] if flags else error.filename}: {error.strerror}") from None
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError) as error:
        raise ConfigError(str(error) or type(error).__name__) from None


def _from_environment(parser) -> dict:
    """A trial of a sweep's agent reports to W&B, which waits for its metric, unless --report_to says otherwise."""
    reports = os.environ.get("WANDB_SWEEP_ID") and "report_to" in parser.flag_names()
    return {"report_to": "wandb"} if reports else {}


def _find_config(path: str) -> Path:
    """A YAML or JSON file, or a shipped recipe of that name."""
    if os.path.isfile(path):  # unlike Path.is_file, it takes a name that is too long for one that is not there
        return Path(path)
    recipes = {file.name: file for file in sorted(shipped_folder("recipes").glob("*.yaml"))}
    if Path(path).name not in recipes:
        raise ConfigError(f"--config: no file {path!r:.200}; {suggestion(Path(path).name, recipes)}")
    return recipes[Path(path).name]


def _read_config(parser, source: str) -> dict:
    """The values of a file, or of JSON on the command line, each converted as the flag of the same name would be."""
    content, lines, path = _config_content(source)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected flag: value lines, found {type(content).__name__}")
    values, names = {}, parser.flag_names()
    for key, value in content.items():
        place = f"{path}:{lines[(str(key),)]}" if (str(key),) in lines else str(path)
        name = str(key).replace("-", "_")
        if name not in names:
            raise ConfigError(f"{place}: {_unknown_name(name, parser)}")
        if name in values:
            raise ConfigError(f"{place}: {key!r} gives --{name} for the second time")
        if value is None or value == "None":
            _check_can_be_none(parser, name, place)
            values[name] = None
        else:
            values[name] = _convert(parser, name, value, place)
    return values


def _config_content(source: str) -> tuple[object, dict, str | Path]:
    """`(content, line of each key, where it stands)`."""
    if source.lstrip().startswith("{"):
        return read_json_text(source, "the JSON on the command line"), {}, "the JSON on the command line"
    path = _find_config(source)
    if path.suffix == ".json":  # YAML would take 1e-05 for text
        return read_json_text(path.read_bytes(), path), {}, path
    return *read_yaml(path), path


def _convert(parser, name, value, place):
    """A YAML value through the flag's own type, as if it had stood on the command line."""
    flag = f"--{name}"
    try:
        given = getattr(parser.parse_args(_as_tokens(flag, value)), name)
        check_bounds({name: given}, parser.dataclass_types)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return given


def _as_tokens(flag: str, value) -> list[str]:
    """A value as the command line would hold it; none of its items may be taken for a flag.

    >>> _as_tokens("--train_file", ["a.txt", "b.txt"])
    ['--train_file', 'a.txt', 'b.txt']
    """
    if isinstance(value, dict):
        try:
            return [f"{flag}={json.dumps(value)}"]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{flag}: its table holds what JSON has no form for ({error})") from None
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ConfigError(f"{flag}: an empty list; leave it out, or write null")
    tokens = [_word(flag, item) for item in items]
    if len(tokens) == 1:
        return [f"{flag}={tokens[0]}"]
    for token in tokens:
        if token.startswith("--"):
            raise ConfigError(f"{flag}: {token!r} would be taken for a flag; write ./{token} if it is a file")
    return [flag, *tokens]


def _with_list_items(parser, word: str) -> list[str]:
    """`--train_file=['a.txt', 'b.txt']`, as sweep agents write a list, as the words that the flag takes."""
    flag, _, value = word.partition("=")
    action = parser._option_string_actions.get(flag)
    items = list_items(value) if action is not None and action.nargs == "+" else None
    return [word] if items is None else _as_tokens(flag, items)


def _word(flag: str, item) -> str:
    if isinstance(item, (str, bool, int, float, datetime.date)):
        return str(item)
    if isinstance(item, dict) and flag == "--data_config":
        return _as_tokens(flag, item)[0].removeprefix(f"{flag}=")
    raise ConfigError(f"{flag}: {item!r:.60} ({type(item).__name__}) is no word or number")


def _take_nones(parser, tokens, nones: set) -> list[str]:
    """Takes `--flag None` and `--flag=None` out of the tokens and notes the flag in `nones`."""
    kept, i = [], 0
    while i < len(tokens):
        flag, _, value = tokens[i].partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        two_tokens = not value and i + 1 < len(tokens) and tokens[i + 1] == "None"
        if flag.startswith("--") and name in parser.flag_names() and (value == "None" or two_tokens):
            _check_can_be_none(parser, name, flag)
            nones.add(name)
            i += 1 if two_tokens else 0
        else:
            nones.discard(name)
            kept.append(tokens[i])
        i += 1
    return kept


def _check_can_be_none(parser, name, place):
    for dataclass_type in parser.dataclass_types:
        hint = typing.get_type_hints(dataclass_type).get(name)
        if hint is None:
            continue
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            if type(None) in typing.get_args(hint):
                return
    raise ConfigError(f"{place}: --{name} cannot be None")


def _unknown_flag(unknown, parser) -> str:
    flag = next((token for token in unknown if token.startswith("--")), None)
    if flag is None:
        return f"unexpected {unknown[0]!r:.200}; flags start with --, and a YAML file must come first"
    return _unknown_name(flag.partition("=")[0].removeprefix("--").replace("-", "_"), parser)


def _unknown_name(name: str, parser) -> str:
    if name == "streaming":
        return "--streaming belongs to pre_train_t5.py; fine-tuning holds its rows in memory"
    if "removed" in FACTS.get(name, {}):
        return f"--{name} is gone from transformers 5; use {FACTS[name]['removed']}"
    names = parser.flag_names()
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(f'--{match}' for match in near)}?" if near else "see --help for all flags"
    return f"unknown flag --{name}; {hint}"


def changed_settings(arguments) -> dict:
    """The flags whose value is not their default.

    >>> changed_settings((DataArguments(benchmark="glue"),))
    {'benchmark': 'glue'}
    """
    changed = {}
    for part in arguments:
        # Training arguments look for the device and the other ranks when they are made, and the last ones made count
        # for the whole process: others made beside them must look in the same place.
        facts = facts_of(type(part))
        device = {name: getattr(part, name) for name in facts if "device" in facts[name].get("marks", "").split()}
        with keeping_process_state():
            defaults = type(part)(**device)
        for name, spec in part.__dataclass_fields__.items():
            default = spec.default if name in device else getattr(defaults, name)
            if spec.init and getattr(part, name) != default:
                changed[name] = getattr(part, name)
    return changed


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
