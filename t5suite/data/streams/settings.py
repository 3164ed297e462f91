"""What determines the data of a stream, besides its text and tokenizer."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.corpora.block_layout import check_lengths
from t5suite.data.corpora.held_out import held_out_below
from t5suite.data.streams.sources import TextSource


class StreamCorpus(NamedTuple):
    """One of the corpora that a run streams, and its share of the blocks, relative to the others'."""

    source: TextSource
    weight: float = 1.0


@dataclass(frozen=True)
class StreamSettings:
    """Everything but the text that determines a stream's data; a resumed run must have the same.

    Attributes:
      lengths, denoiser_weights: tokens of a block and how often it occurs, one entry for each denoiser.
      num_virtual_streams: V; a multiple of ranks x workers.
      buffer_size: blocks that are shuffled among one another, over all virtual streams.
      validation_fraction: share of the documents that is held out and skipped.
      separator_id: a token appended to every document, e.g. end-of-sequence; None: nothing, as in T5.
    """

    lengths: tuple[int, ...]
    denoiser_weights: tuple[float, ...] = ()
    seed: int = 0
    num_virtual_streams: int = 64
    buffer_size: int = 4096
    validation_fraction: float = 0.0
    separator_id: int | None = None

    def __post_init__(self):
        weights = tuple(self.denoiser_weights) or (1.0,) * len(self.lengths)
        object.__setattr__(self, "lengths", tuple(int(length) for length in self.lengths))
        object.__setattr__(self, "denoiser_weights", weights)
        check_lengths(self.lengths, weights)
        if self.num_virtual_streams < 1 or self.buffer_size < 1:
            raise ConfigError(
                f"--num_virtual_streams {self.num_virtual_streams} and --shuffle_buffer_size {self.buffer_size} must "
                "be at least 1 each"
            )
        held_out_below(self.validation_fraction)
        if self.validation_fraction == 1:
            raise ConfigError("--validation_fraction 1.0 leaves nothing to train on")

    def describe(self) -> dict:
        """The settings as JSON."""
        settings = asdict(self)
        for name in ("lengths", "denoiser_weights"):
            settings[name] = list(settings[name])
        return settings

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers that depend on the seed and the key alone."""
        return np.random.default_rng((self.seed, *key))
