"""How answers are written, as the flags say it; what is wrong with that is found before torch is imported.

>>> Decoding(num_return_sequences=4).check()
ConfigError: --num_return_sequences 4: needs as many --num_beams, or --do_sample
"""

from dataclasses import dataclass

from t5suite.base.errors import ConfigError


@dataclass(frozen=True)
class Decoding:
    """The flags of the same names. None stands for what the model's own generation configuration says.

    Attributes:
      max_new_tokens: the longest answer, end-of-sequence included; None: what the task needs.
      top_k: draw among so many likeliest tokens; 0 for all. top_p: among the likeliest that have this probability.
      num_return_sequences: answers a row.
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

    def check(self) -> None:
        """Whether the settings make sense, alone and together.

        Raises:
          ConfigError: one is out of its range, or has no effect beside the others.
        """
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name} {value}: must be at least {least}")
        for name in ("temperature", "repetition_penalty"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name} {value}: must be above 0")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top_p {self.top_p}: must be above 0 and at most 1")
        self._check_together()

    def _check_together(self) -> None:
        idle = [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
        if idle and not self.do_sample:
            raise ConfigError(f"--{idle[0]} has no effect without --do_sample")
        if self.do_sample and self.num_beams > 1:
            raise ConfigError(f"--do_sample draws single answers: leave --num_beams {self.num_beams} out")
        if self.length_penalty is not None and self.num_beams == 1:
            raise ConfigError(f"--length_penalty {self.length_penalty} has no effect without --num_beams")
        if self.diversity_penalty is not None and self.num_beam_groups == 1:
            raise ConfigError(f"--diversity_penalty {self.diversity_penalty} has no effect without --num_beam_groups")
        if self.num_beams % self.num_beam_groups:
            raise ConfigError(
                f"--num_beam_groups {self.num_beam_groups} must divide --num_beams {self.num_beams} evenly"
            )
        if self.num_return_sequences > self.num_beams and not self.do_sample:
            raise ConfigError(
                f"--num_return_sequences {self.num_return_sequences}: needs as many --num_beams, or --do_sample"
            )


# The lowest value that makes sense.
LEAST = {
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "top_k": 0,
    "seed": 0,
    "no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
}
