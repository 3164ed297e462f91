"""The flags of rows that several fine-tuning examples share.

>>> DataArguments(pack_rows=True, row_inputs_length=256).rows
PackedRows(inputs=256, targets=None)
>>> DataArguments().rows is None
True
"""

from dataclasses import dataclass
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.training.flags.fields import flag


class PackedRows(NamedTuple):
    """Tokens of a row; None where they are to be chosen."""

    inputs: int | None = None
    targets: int | None = None


@dataclass
class RowArguments:
    """Without a heading of its own: `--help` has these flags below those of tasks and data."""

    _theme = "data"

    pack_rows: bool = flag(
        False,
        "Train a T5 on rows that several examples share and that hide them from one another; the same "
        "examples in an update, and the same loss.",
        theme="speed",
        needs="training",
    )
    row_inputs_length: int | None = flag(
        None,
        "Input tokens of a packed row. Default: what costs least on trial.",
        bounds="[1, inf) tokens",
        needs="training",
    )
    row_targets_length: int | None = flag(
        None,
        "Target tokens of a packed row. Default: what costs least on trial.",
        bounds="[1, inf) tokens",
        needs="training",
    )

    def __post_init__(self):
        for name in ("row_inputs_length", "row_targets_length"):
            value = getattr(self, name)
            if value is not None and not self.pack_rows:
                raise ConfigError(f"--{name} {value} has no effect without --pack_rows")

    @property
    def rows(self) -> PackedRows | None:
        """What `fine_tuning.make_trainer` takes; None where examples have rows of their own."""
        return PackedRows(self.row_inputs_length, self.row_targets_length) if self.pack_rows else None
