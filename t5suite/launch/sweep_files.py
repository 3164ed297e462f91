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
from t5suite.launch.schema_problems import Problem, schema_problems
from t5suite.launch.sweep_schema import with_distributions


class Parameter(NamedTuple):
    """One parameter of a sweep; nested ones have a path of several names."""

    path: tuple[str, ...]
    distribution: str
    settings: dict
    line: int

    @property
    def name(self) -> str:
        """`lr_scheduler_kwargs.min_lr`."""
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
        """The line of the deepest of these keys that is in the file itself (not behind an anchor)."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def table(self, key: str) -> dict:
        """The table at a key of the top level; an empty one if there is none."""
        table = self.content.get(key)
        if isinstance(table, dict):
            return table
        return {}

    def command(self) -> list[str]:
        """The words of `command:`, or W&B's default."""
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
            return schema_problems(self.content)
        except RecursionError:
            raise ConfigError(f"{self.path}: its values are nested too deeply") from None


def read_sweep(path) -> SweepFile:
    """Reads a sweep file without checking it.

    Raises:
      ConfigError: it is not YAML, or not a mapping.
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
    """The parameters in the file's order, nested ones flattened; those that the schema does not allow are skipped."""
    places_with_problems = set()
    for problem in sweep.schema_problems:
        places_with_problems |= {problem.keys[:length] for length in range(len(problem.keys) + 1)}
    parameters = _flattened(sweep, with_distributions(sweep.table("parameters")), ())
    return [parameter for parameter in parameters if parameter.keys not in places_with_problems]


def _flattened(sweep: SweepFile, table: dict, path: tuple[str, ...]) -> Iterator[Parameter]:
    """The parameters of a table that have a distribution, and those of the tables in it."""
    for name, entry in table.items():
        if not isinstance(name, str) or not isinstance(entry, dict):
            continue
        inner_path = (*path, name)
        if isinstance(entry.get("parameters"), dict):
            yield from _flattened(sweep, entry["parameters"], inner_path)
        elif "distribution" in entry:
            settings = {key: value for key, value in entry.items() if key != "distribution"}
            line = sweep.line(*keys_of_parameter(inner_path))
            yield Parameter(inner_path, entry["distribution"], settings, line)
