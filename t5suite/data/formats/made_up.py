"""Rows of a fixed shape that need no file, for measurements of speed.

    >>> DebugRows(DebugSettings(num_examples=2), input_tokens=4, output_tokens=2).read("train").rows[0]
    {'input': '3 0 8 6', 'output': '7 4'}

Every row has as many words as tokens are kept of it; a word is one token or more, so that all inputs, and all targets,
are cut to exactly the same length.
"""

from dataclasses import dataclass

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.formats.rows import Rows, rows_fingerprint

_STREAMS = {"train": 0, "validation": 1, "test": 2}


@dataclass(frozen=True)
class DebugSettings:
    """What `--data_config` may say of them: examples to train on, and of validation and test each."""

    num_examples: int = 100
    num_eval_examples: int = 100

    def __post_init__(self):
        for name in ("num_examples", "num_eval_examples"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ConfigError(f"--data_config: {name} {getattr(self, name)!r}: a whole number above 0")


@dataclass(frozen=True)
class DebugRows:
    """Digits, which are the same in every run."""

    settings: DebugSettings
    input_tokens: int
    output_tokens: int
    roles: tuple[str, ...] = ("train", "validation", "test")

    def read(self, role: str, tokenizer=None) -> Rows:
        """As many rows as the settings say."""
        count = self.settings.num_examples if role == "train" else self.settings.num_eval_examples
        rng = np.random.default_rng((_STREAMS[role], self.input_tokens, self.output_tokens))
        digits = rng.integers(10, size=(count, self.input_tokens + self.output_tokens)).astype(str)
        rows = [
            {"input": " ".join(row[: self.input_tokens]), "output": " ".join(row[self.input_tokens :])}
            for row in digits
        ]
        return Rows(rows, [f"debug row {i}" for i in range(count)], f"debug {role}", rows_fingerprint(rows))
