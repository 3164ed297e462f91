"""How answers are written: beams, sampling, lengths and penalties, by the names of `t5suite predict`'s flags.

>>> DecodingSettings(num_beams=4, num_return_sequences=2).check()
>>> DecodingSettings(top_p=0.9).check()
ConfigError: --top_p 0.9 has no effect without --do_sample

Nothing here needs torch: wrong flags are found before a model is loaded.
"""

from dataclasses import dataclass, fields
from numbers import Integral

from t5suite.base.errors import ConfigError

# Settings by their smallest values.
AT_LEAST_ONE = ("max_new_tokens", "num_beams", "num_beam_groups", "num_return_sequences")
AT_LEAST_ZERO = ("min_new_tokens", "diversity_penalty", "top_k", "seed", "no_repeat_ngram_size")
ABOVE_ZERO = ("temperature", "repetition_penalty")
# Whole numbers; all other numbers are floats, as transformers wants them.
WHOLE = (*AT_LEAST_ONE, "min_new_tokens", "top_k", "seed", "no_repeat_ngram_size")
FLOATS = ("diversity_penalty", "temperature", "top_p", "repetition_penalty", "length_penalty")
LARGEST_SEED = 2**63 - 1  # NumPy makes floats of larger ones, so that neighbours draw the same
# A setting, and the one without which it has no effect.
DEPENDS_ON = {
    "temperature": "do_sample",
    "top_k": "do_sample",
    "top_p": "do_sample",
    "length_penalty": "num_beams",
    "diversity_penalty": "num_beam_groups",
}


@dataclass(frozen=True)
class DecodingSettings:
    """The flags of the same names. None means the default; where that is None, what the model's own generation
    configuration has.

    Attributes:
      max_new_tokens: the longest answer, end-of-sequence included; None: what the task needs.
      top_k: draw from this many likeliest tokens; 0: all. top_p: from the likeliest with this total probability.
      num_return_sequences: answers per row.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    num_beams: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float | None = None
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 42
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    num_return_sequences: int = 1

    def __post_init__(self):
        for setting in fields(self):
            if getattr(self, setting.name) is None:
                object.__setattr__(self, setting.name, setting.default)
        for name in (*WHOLE, *FLOATS):
            number = getattr(self, name)
            if number is not None:
                number = _whole_number(name, number) if name in WHOLE else float(number)
                object.__setattr__(self, name, number)

    def check(self) -> None:
        """Checks the settings, alone and together.

        Raises:
          ConfigError: one is out of its range, or has no effect with the others.
        """
        self._check_ranges()
        for name, needed_name in DEPENDS_ON.items():
            is_default = getattr(self, needed_name) == getattr(DecodingSettings, needed_name)
            if getattr(self, name) is not None and is_default:
                raise ConfigError(f"--{name} {getattr(self, name)} has no effect without --{needed_name}")
        self.check_lengths(self.max_new_tokens)
        if self.do_sample and self.num_beams > 1:
            raise ConfigError(f"--do_sample draws single answers: drop --num_beams {self.num_beams}")
        if self.num_beams % self.num_beam_groups:
            raise ConfigError(
                f"--num_beam_groups {self.num_beam_groups} must divide --num_beams {self.num_beams} evenly"
            )
        if self.num_beam_groups > 1 and self.diversity_penalty is None:
            raise ConfigError(
                f"--num_beam_groups {self.num_beam_groups}: all groups find the same answers without "
                "--diversity_penalty (such as 0.5)"
            )
        if self.num_return_sequences > self.num_beams and not self.do_sample:
            raise ConfigError(
                f"--num_return_sequences {self.num_return_sequences}: needs as many --num_beams, or --do_sample"
            )

    def _check_ranges(self) -> None:
        """Checks each setting alone. A NaN is in no range."""
        self._check_minimum(AT_LEAST_ONE, 1)
        self._check_minimum(AT_LEAST_ZERO, 0)
        for name in ABOVE_ZERO:
            number = getattr(self, name)
            if number is not None and not number > 0:
                raise ConfigError(f"--{name} {number}: must be above 0")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top_p {self.top_p}: must be above 0 and at most 1")
        if self.seed > LARGEST_SEED:
            raise ConfigError(f"--seed {self.seed}: must be at most {LARGEST_SEED}")

    def _check_minimum(self, names: tuple[str, ...], minimum: int) -> None:
        for name in names:
            number = getattr(self, name)
            if number is not None and not number >= minimum:
                raise ConfigError(f"--{name} {number}: must be at least {minimum}")

    def check_lengths(self, longest: int | None) -> None:
        """Checks that an answer of at least `min_new_tokens` is not longer than the longest.

        Raises:
          ConfigError: no answer has both lengths.
        """
        if longest is not None and (self.min_new_tokens or 0) > longest:
            cause = "" if self.max_new_tokens else ", which is what the task needs"
            raise ConfigError(
                f"--min_new_tokens {self.min_new_tokens} is more than --max_new_tokens {longest}{cause}; "
                "no answer is both"
            )


def _whole_number(name: str, number) -> int:
    """A number as an int.

    >>> _whole_number("top_k", 50.0)
    50

    Raises:
      ConfigError: it is not whole.
    """
    if not isinstance(number, Integral) and not float(number).is_integer():
        raise ConfigError(f"--{name} {number}: must be a whole number")
    return int(number)
