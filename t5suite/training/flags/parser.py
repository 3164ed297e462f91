"""Command line and YAML file -> argument dataclasses.

    >>> parse_arguments(FINE_TUNING_ARGUMENTS, ["run.yaml", "--learning_rate", "1e-3"])
    (ModelArguments(...), DataArguments(...), EvaluationArguments(...), SuiteTrainingArguments(...))

A YAML file comes first (as positional argument or as `--config`); flags override it. Both `--flag value` and
`--flag=value` are accepted, as are `True`, `False` and `None`, and `name=value` (`launch.command_line.read_words`).
The error for a mistyped flag or value names its place and the right form.
"""

import argparse
import ast
import copy
import csv
import datetime
import enum
import functools
import io
import json
import os
import sys
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import HfArgumentParser

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import in_plain_words
from t5suite.base.yaml_files import unique
from t5suite.launch.command_line import read_words
from t5suite.launch.config_files import read_config
from t5suite.launch.flag_problems import unknown_flags
from t5suite.launch.row_formats import with_format
from t5suite.launch.script_help import answer
from t5suite.optim.settings import refused_optimizers
from t5suite.training.flags.fields import check_bounds, facts_of
from t5suite.training.sharding.process_state import keeping_process_state

# Flags whose comma-separated words may be quoted (`data.rows.formats.comma_separated`).
QUOTED_LISTS = ("labels", "text_column")
# Characters that have a meaning of their own in `name=value,...`.
SEPARATORS = set(",()[]{}'\"")


class SuiteArgumentParser(HfArgumentParser):
    """`HfArgumentParser` whose errors are `ConfigError`s.

    Attributes:
      actions: argparse's action of every flag, in order, `--help` first.
    """

    def __init__(self, dataclass_types):
        self.actions: list[argparse.Action] = []
        super().__init__(dataclass_types, allow_abbrev=False)
        for dataclass_type in self.dataclass_types:
            hints = typing.get_type_hints(dataclass_type)
            facts = facts_of(dataclass_type)
            for action in self.actions:
                # "marks" are words about a field; "pairs": its text is `name=value,...`, or a table.
                marks = facts.get(action.dest, {}).get("marks", "").split()
                # `dict | str | None` has these three kinds; a field that takes a table is None without one.
                kinds = typing.get_args(hints.get(action.dest))
                takes_table = any((typing.get_origin(kind) or kind) is dict for kind in kinds)
                if "pairs" in marks:
                    action.type = settings_text
                elif takes_table and str in kinds:  # it also takes a file's name, and gets a table as text
                    action.type = table_text
                elif takes_table:
                    action.type = read_table

    def add_argument(self, *names, **kwargs) -> argparse.Action:
        action = super().add_argument(*names, **kwargs)
        self.actions.append(action)
        return action

    @staticmethod
    def _parse_dataclass_field(parser, field):
        """Removes our facts, because Hugging Face's parser passes all of a field's metadata to argparse."""
        plain = copy.copy(field)
        plain.metadata = {"help": ""}
        # A field's own `nargs`: those of transformers would allow a flag without a value.
        for name in ("choices", "nargs", "const"):
            if name in field.metadata:
                plain.metadata[name] = field.metadata[name]
        HfArgumentParser._parse_dataclass_field(parser, plain)

    def error(self, message):
        # argparse lists the choices of a flag: those of --optim without the ones that are refused later.
        raise ConfigError(f"{in_plain_words(message, refused_optimizers()):.1000}")

    def action_by_option(self) -> dict[str, argparse.Action]:
        """The actions by every spelling of their flags: `--max_steps`, `--max-steps`."""
        return {option: action for action in self.actions for option in action.option_strings}

    def flag_names(self) -> list[str]:
        """All flags, without leading dashes, in underscore form."""
        return sorted({action.dest for action in self.actions if action.dest != "help"})


def parse_arguments(dataclass_types, argv=None, prog=None, description=None) -> tuple:
    """One instance of each dataclass; answers flags such as `--help` for the script `prog`.

    Raises:
      ConfigError: an unknown flag (with the closest names, or its replacement), a value of the wrong type, the
        same in YAML (with file and line), None for a flag that cannot be None.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if prog:
        answer(argv, Path(prog).stem, description or "")
    parser = _parser_of_given_flags(dataclass_types)
    options = {option: (action.dest, action.nargs) for option, action in parser.action_by_option().items()}
    files, words_of_flags = read_words(argv, options)
    values = _values_of_files(parser, files)
    tokens = []
    for name, (flag, words) in words_of_flags.items():
        values[name] = None  # in place of a file's value; the flag's own comes from its tokens, below
        if words == ["None"]:
            _check_can_be_none(parser, name)
        else:
            tokens += _tokens_of_words(parser, flag, words)
    values.update(vars(parser.parse_args(tokens)))
    check_bounds(values, dataclass_types)
    if "data_format" in parser.flag_names():
        values = with_format(values)  # that of the files' names, where no flag gives one
    return tuple(_build(dataclass_type, values) for dataclass_type in dataclass_types)


def arguments_of_values(dataclass_types, flags: Mapping[str, Any]) -> tuple:
    """One instance of each dataclass, from Python values by the flags' names; `config` names files that come first.

    >>> arguments_of_values(FINE_TUNING_ARGUMENTS, {"config": "run.yaml", "max_steps": 100, "labels": ["bad", "good"]})
    (ModelArguments(...), DataArguments(...), EvaluationArguments(...), SuiteTrainingArguments(...))

    A text is read as on the command line; a list may stand for a comma-separated text.

    Raises:
      ConfigError: as `parse_arguments`.
    """
    parser = _parser_of_given_flags(dataclass_types)
    values_of_flags = dict(flags)
    sources = values_of_flags.pop("config", None) or []
    files = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    unknown = [name for name in values_of_flags if name not in parser.flag_names()]
    if unknown:
        raise ConfigError(unknown_flags(unknown, parser.flag_names()))
    values = _values_of_files(parser, [os.fspath(path) for path in files])
    for name, value in values_of_flags.items():
        values[name] = _converted(parser, name, _plain_value(parser, name, value))
    check_bounds(values, dataclass_types)
    if "data_format" in parser.flag_names():
        values = with_format(values)
    return tuple(_build(dataclass_type, values) for dataclass_type in dataclass_types)


def _parser_of_given_flags(dataclass_types) -> SuiteArgumentParser:
    """A parser that returns only the flags that are given; the dataclasses have the defaults."""
    return _parser_without_defaults(tuple(dataclass_types))


@functools.lru_cache(maxsize=4)  # the two scripts'
def _parser_without_defaults(dataclass_types: tuple) -> SuiteArgumentParser:
    parser = SuiteArgumentParser(dataclass_types)
    for action in parser.actions:
        action.default = argparse.SUPPRESS
    return parser


def _values_of_files(parser, files: Iterable[str]) -> dict[str, Any]:
    """The values of configuration files, of which a later one wins, and of the environment."""
    values = {}
    if os.environ.get("WANDB_SWEEP_ID") and "report_to" in parser.flag_names():
        # A trial of a W&B sweep reports to W&B by default, because the sweep needs its metric.
        values["report_to"] = "wandb"
    for source in files:
        values.update(_read_config(parser, source))
    return values


def _plain_value(parser, name: str, value):
    """A Python value as a YAML file could have it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numbers, arrays and columns of NumPy, torch and pandas
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return value
    if _nargs(parser, name) in ("+", "*"):
        return list(value)
    return _comma_separated(name, [str(item) for item in value])


def _comma_separated(name: str, items: list[str]) -> str:
    """A list as the comma-separated text of a flag, quoted where that is possible."""
    has_comma = any("," in item for item in items)
    has_outer_spaces = name == "text_column" and any(item != item.strip() for item in items)
    if not (has_comma or has_outer_spaces):
        return ",".join(items)
    if name not in QUOTED_LISTS:
        raise ConfigError(f"{name}: {items!r:.200} holds a comma, which separates the items of this setting")
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow(items)
    return line.getvalue()


def _nargs(parser, name: str):
    """argparse's number of values of a flag: None for one, `+` or `*` for several."""
    return parser.action_by_option()[f"--{name}"].nargs


def _tokens_of_words(parser, flag: str, words: list[str]) -> list[str]:
    """A flag and its words for argparse; a list in Python or JSON syntax becomes several words."""
    if not words:
        return [flag]
    takes_list = parser.action_by_option()[flag].nargs == "+"
    items = read_literal(words[0], list) if takes_list and len(words) == 1 else None
    return _as_tokens(flag, words if items is None else items)


def _build(dataclass_type, values):
    """An instance of a dataclass, from the values that are its fields'."""
    names = {name for name, spec in dataclass_type.__dataclass_fields__.items() if spec.init}
    values_of_fields = {name: value for name, value in values.items() if name in names}
    try:
        arguments = dataclass_type(**values_of_fields)
        arguments.flags_given = frozenset(values_of_fields)  # includes flags that were given their default value
        return arguments
    except ConfigError:
        raise
    except OSError as error:
        place = error.filename
        for name, value in values_of_fields.items():
            if str(value) == str(error.filename):
                place = f"--{name} {value!r:.200}"
                break
        raise ConfigError(f"{place}: {error.strerror}") from None
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError) as error:
        raise ConfigError(str(error) or type(error).__name__) from None


def _read_config(parser, source: str) -> dict:
    """The values of a file, a shipped recipe, or command-line JSON, converted like the flags of the same name."""
    values = {}
    for name, (place, value) in read_config(source, parser.flag_names()).items():
        if isinstance(value, list) and len(value) > 1 and _nargs(parser, name) not in ("+", "*"):
            raise ConfigError(f"{place}: --{name} {value!r:.80}: a list, but the flag takes one value")
        try:
            values[name] = _converted(parser, name, value)
            check_bounds({name: values[name]}, parser.dataclass_types)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    return values


def _converted(parser, name: str, value):
    """A value of YAML or Python in the type of its flag."""
    if value is None or value == "None":
        _check_can_be_none(parser, name)
        return None
    return getattr(parser.parse_args(_as_tokens(f"--{name}", value)), name)


def _as_tokens(flag: str, value) -> list[str]:
    """A value as command-line words; refuses items that would be parsed as a flag.

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
    tokens = []
    for item in items:
        if isinstance(item, dict) and flag == "--data_config":  # the one flag that takes several tables
            tokens.append(_as_tokens(flag, item)[0].removeprefix(f"{flag}="))
        elif isinstance(item, (str, bool, int, float, datetime.date)):
            tokens.append(str(item))
        else:
            raise ConfigError(f"{flag}: {item!r:.60} ({type(item).__name__}) is no word or number")
    if len(tokens) == 1:
        return [f"{flag}={tokens[0]}"]
    for token in tokens:
        if token.startswith("--"):
            raise ConfigError(f"{flag}: {token!r} would be taken for a flag; write ./{token} if it is a file")
    return [flag, *tokens]


def _check_can_be_none(parser, name: str) -> None:
    hints = [typing.get_type_hints(kind).get(name) for kind in parser.dataclass_types]
    if not any(type(None) in typing.get_args(hint) for hint in hints):
        raise ConfigError(f"--{name} cannot be None")


def changed_settings(arguments) -> dict:
    """The flags whose value differs from the default.

    >>> changed_settings((DataArguments(benchmark="glue"),))
    {'benchmark': 'glue'}
    """
    changed = {}
    for part in arguments:
        # Training arguments detect the device and the other ranks when created, and the last created ones set the
        # state of the whole process: these temporary ones must use the same device flags.
        facts = facts_of(type(part))
        device = {name: getattr(part, name) for name in facts if "device" in facts[name].get("marks", "").split()}
        with keeping_process_state():
            defaults = type(part)(**device)
        for name, spec in part.__dataclass_fields__.items():
            default = spec.default if name in device else getattr(defaults, name)
            if spec.init and getattr(part, name) != default:
                changed[name] = getattr(part, name)
    return changed


def table_text(text: str) -> str:
    """Converts a table in Python syntax to JSON; returns any other text unchanged."""
    return json.dumps(read_table(text)) if text.lstrip().startswith("{") else text


def settings_text(text: str) -> str:
    """Converts a table to the `name=value,...` form of some flags; returns any other text unchanged.

    >>> settings_text("{'betas': (0.9, 0.95), 'fused': True}")
    'betas=(0.9,0.95),fused=True'
    """
    if not text.lstrip().startswith("{"):
        return text
    return ",".join(f"{name}={_setting_text(value)}" for name, value in read_table(text).items())


def _setting_text(value) -> str:
    """A value of a table as `name=value` has it; texts are quoted in lists, and where a comma would divide them."""
    if isinstance(value, str):
        return repr(value) if set(value) & SEPARATORS or value != value.strip() else value
    if not isinstance(value, (list, tuple)):
        return str(value)
    items = [repr(item) if isinstance(item, str) else str(item) for item in value]
    if len(items) == 1 and isinstance(value[0], str):
        return f"({items[0]},)"  # without the comma it would be a text in parentheses
    return f"({','.join(items)})"


def read_table(text: str) -> dict:
    """Parses a table in JSON or Python syntax; raises `argparse.ArgumentTypeError` for any other text."""
    try:
        table = read_literal(text, dict)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.200}: {error}") from None
    if table is None:
        raise argparse.ArgumentTypeError(f'{text!r:.200} is no table: write {{"name": value, ...}}')
    return table


def _python_literal(text: str):
    """The value of a text in Python syntax; a duplicate name is a `ConfigError`."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Dict):
            unique([(ast.literal_eval(name), value) for name, value in zip(node.keys, node.values)])
    return ast.literal_eval(text)


def read_literal(text: str, kind: type):
    """A table or list in JSON or Python syntax, None for any other text; a duplicate name is a `ConfigError`.

    >>> read_literal("['a.txt', 'b.txt']", list)
    ['a.txt', 'b.txt']
    """
    for read in (functools.partial(json.loads, object_pairs_hook=unique), _python_literal):
        try:
            value = read(text.strip())
            json.dumps(value)  # a TypeError for what JSON has no form for, such as a set
            if isinstance(value, kind):
                return value
        except ConfigError:  # a duplicate name
            raise
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None
