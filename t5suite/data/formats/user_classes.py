"""A class of the user's own as a source of rows: `--data_class module:Class`.

    class Reviews:                      # my_data.py
        entry = {"labels": ["bad", "good"], "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}

        def __init__(self, path, config):
            self.path = path

        def rows(self, split):          # 'train', 'validation' or 'test'; None where there is no such split
            return [{"input": "It is good.", "output": "good"}]

`entry` is optional: fields of the task's entry that differ from free text in `input` and `output`. A module is found as
`import` finds it: beside the script, installed, or in PYTHONPATH. It is the user's code, and is run.
"""

from dataclasses import dataclass
from typing import Any

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import load_object
from t5suite.data.formats.rows import Rows, rows_fingerprint

ROLES = ("train", "validation", "test")


@dataclass(frozen=True)
class UserRows:
    """The rows of a user's object."""

    made: Any
    spec: str

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits for which it has rows."""
        return tuple(role for role in ROLES if self.made.rows(role) is not None)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split.

        Raises:
          DataError: what it gives are no rows.
        """
        rows = list(self.made.rows(role))
        for i, row in enumerate(rows):
            if not isinstance(row, dict):
                raise DataError(f"{self.spec}: row {i} of {role} is {row!r:.60}, not a dict")
        if not rows:
            raise DataError(f"{self.spec}: no rows in {role}")
        places = [f"{self.spec} {role} row {i}" for i in range(len(rows))]
        return Rows(rows, places, f"{self.spec} {role}", rows_fingerprint(rows))


def user_rows(spec: str, path: str | None, config: dict) -> UserRows:
    """The source that `Class(path, config)` is.

    Raises:
      ConfigError: it is no class with a method `rows`.
    """
    made_by = load_object(spec, "--data_class")
    if not callable(made_by) or not callable(getattr(made_by, "rows", None)):
        raise ConfigError(f"--data_class {spec}: it needs __init__(path, config) and rows(split)")
    return UserRows(made_by(path, config), spec)
