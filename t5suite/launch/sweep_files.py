"""W&B sweep files: read with the line of every key.

    >>> sweep = read_sweep("my_sweep.yaml")
    >>> parameters_of(sweep)[2]
    Parameter(path=('learning_rate',), distribution='log_uniform_values', settings={'min': 1e-05, 'max': 0.01}, line=15)
    >>> sweep.schema_problems
    []

`sweep_checks.check_sweep` finds all that is wrong in a file.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.yaml_files import read_yaml
from t5suite.launch.commands import DEFAULT_COMMAND
from t5suite.launch.schema_problems import Problem, problems_by_schema
from t5suite.launch.sweep_schema import with_distributions


class Parameter(NamedTuple):
    """One parameter of a sweep.

    Attributes:
      path: its name; several if it is in a table within another one.
      distribution: W&B's word for it, such as `uniform`, whether the file names it or W&B infers it.
      settings: what the distribution takes from the file, such as `min` and `max`.
      line: of the file.
    """

    path: tuple[str, ...]
    distribution: str
    settings: dict
    line: int

    @property
    def name(self) -> str:
        """What W&B shows, such as `lr_scheduler_kwargs.min_lr`."""
        return ".".join(self.path)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its place in the file: `("parameters", "lr_scheduler_kwargs", "parameters", "min_lr")`."""
        return keys_of_parameter(self.path)


@dataclass(frozen=True)
class SweepFile:
    """A sweep file's content, and the line of every key by its path, such as `("parameters", "seed", "value")`."""

    path: str
    content: dict
    lines: dict[tuple, int]

    def line(self, *keys) -> int:
        """The line of the key with this path; if there is no such key, of the nearest table around it, or 1."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def table(self, key: str) -> dict:
        """The table at a key of the top level; an empty one if there is none, or something else stands there."""
        table = self.content.get(key)
        if isinstance(table, dict):
            return table
        return {}

    def command(self) -> list[str]:
        """The words of `command:`; W&B's default if there is no list of words."""
        command = self.content.get("command")
        if not isinstance(command, list) or not command:
            return list(DEFAULT_COMMAND)
        return [str(word) for word in command]

    @functools.cached_property
    def schema_problems(self) -> list[Problem]:
        """What is wrong by W&B's schema.

        Raises:
          ConfigError: its values are nested too deeply.
        """
        try:
            return problems_by_schema(self.content)
        except RecursionError:
            raise ConfigError(f"{self.path}: its values are nested too deeply") from None


def read_sweep(path) -> SweepFile:
    """Reads a sweep file without checking it.

    Raises:
      ConfigError: it is empty, not YAML, or not a table.
    """
    content, lines = read_yaml(path)
    if content is None:
        raise ConfigError(f"{path}: nothing in it but comments or white space")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}:1: a sweep is a table (method: ..., parameters: ...), not {type(content).__name__}")
    return SweepFile(str(path), content, lines)


def keys_of_parameter(path: tuple[str, ...]) -> tuple[str, ...]:
    """A parameter's place in the file.

    >>> keys_of_parameter(("lr_scheduler_kwargs", "min_lr"))
    ('parameters', 'lr_scheduler_kwargs', 'parameters', 'min_lr')
    """
    keys: tuple[str, ...] = ()
    for name in path:
        keys += ("parameters", name)
    return keys


def parameters_of(sweep: SweepFile) -> list[Parameter]:
    """The parameters in the file's order, those of inner tables, too.

    A parameter is left out if the schema has a problem with it or with anything in it, such as its `max`. A problem of
    a table around it does not matter.

    Raises:
      ConfigError: its values are nested too deeply.
    """
    problems = sweep.schema_problems  # first, as it refuses what is nested too deeply for what follows
    table = with_distributions(sweep.table("parameters"))
    return [parameter for parameter in _parameters_in(table, (), sweep) if not _has_problem(parameter, problems)]


def _has_problem(parameter: Parameter, problems: list[Problem]) -> bool:
    """Whether the keys of a problem are the parameter's, or begin with them."""
    depth = len(parameter.keys)
    return any(problem.keys[:depth] == parameter.keys for problem in problems)


def _parameters_in(table: dict, path: tuple[str, ...], sweep: SweepFile) -> Iterator[Parameter]:
    """The parameters of a table that have a name and a distribution, and those of the tables in it.

    Args:
      table: with W&B's distributions, see `with_distributions`.
      path: the names of the tables around the parameters.
    """
    for name, entry in table.items():
        if not isinstance(name, str) or not isinstance(entry, dict):
            continue
        inner_path = (*path, name)
        if isinstance(entry.get("parameters"), dict):
            yield from _parameters_in(entry["parameters"], inner_path, sweep)
        elif "distribution" in entry:
            settings = {key: value for key, value in entry.items() if key != "distribution"}
            line = sweep.line(*keys_of_parameter(inner_path))
            yield Parameter(inner_path, entry["distribution"], settings, line)
