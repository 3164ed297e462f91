"""Which of several corpora a run's datum j comes from: a function of the weights, a seed and j alone.

    >>> mixture = CorpusMixture((3, 1), seed=0)
    >>> mixture.corpus_of(0), mixture.corpus_of(4095)      # (corpus, which of its blocks)
    ((0, 0), (0, 3071))
    >>> corpora, indices = mixture.corpora_of(np.arange(4096))
    >>> np.bincount(corpora).tolist()
    [3072, 1024]

The run is cut into chunks. At every border of chunks each corpus has had its share, to within one block; inside a chunk
the order is random. So no draw needs those before it, and a run that goes on finds its place at once.
"""

import functools
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np

from t5suite.base.errors import ConfigError

# A corpus must come up at least so often in a chunk: with less, rounding could ask for a negative number of blocks.
LEAST_BLOCKS_A_CHUNK = 2


@dataclass(frozen=True)
class CorpusMixture:
    """A random-access mixture of corpora.

    Args:
      weights: one positive number a corpus; they need not sum to one.
      seed: a number or a tuple of numbers.
      chunk_size: draws a chunk; doubled until the smallest corpus comes up at least twice in each.

    Raises:
      ConfigError: no weights, or one that is not a positive number.
    """

    weights: tuple[float, ...]
    seed: int | tuple[int, ...] = 0
    chunk_size: int = 4096
    _borders: tuple[Fraction, ...] = field(init=False, repr=False)

    def __post_init__(self):
        if not self.weights or not all(0 < weight < float("inf") for weight in self.weights):
            raise ConfigError(f"corpus weights {tuple(self.weights)}: give one positive number for each corpus")
        total = sum(map(Fraction, self.weights))
        shares = [Fraction(weight) / total for weight in self.weights]
        chunk_size = self.chunk_size
        while min(shares) * chunk_size < LEAST_BLOCKS_A_CHUNK:
            chunk_size *= 2
        object.__setattr__(self, "chunk_size", chunk_size)
        object.__setattr__(self, "_borders", tuple(sum(shares[:count]) for count in range(len(shares) + 1)))

    def corpus_of(self, j: int) -> tuple[int, int]:
        """The corpus of datum j, and how many data before j came from it."""
        chunk, place = divmod(int(j), self.chunk_size)
        corpora_K, indices_K = _chunk(self, chunk)
        return int(corpora_K[place]), int(indices_K[place])

    def corpora_of(self, numbers) -> tuple[np.ndarray, np.ndarray]:
        """`corpus_of` of many data at once, as two int64 arrays."""
        chunks, places = np.divmod(np.asarray(numbers, dtype=np.int64), self.chunk_size)
        corpora, indices = np.empty_like(chunks), np.empty_like(chunks)
        for chunk in np.unique(chunks):
            inside = chunks == chunk
            corpora_K, indices_K = _chunk(self, int(chunk))
            corpora[inside], indices[inside] = corpora_K[places[inside]], indices_K[places[inside]]
        return corpora, indices

    def counts_before(self, chunk: int) -> list[int]:
        """How many data of each corpus the chunks before this one hold, in whole numbers without rounding error.

        >>> CorpusMixture((2, 1)).counts_before(1)
        [2730, 1366]
        """
        ends = [int(border * chunk * self.chunk_size) for border in self._borders]
        return [end - start for start, end in pairwise(ends)]


@functools.lru_cache(maxsize=256)  # a process serves many virtual streams, each in a chunk of its own
def _chunk(mixture: CorpusMixture, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """`(corpora_K, indices_K)` of a chunk's K draws."""
    before, after = mixture.counts_before(chunk), mixture.counts_before(chunk + 1)
    counts = [end - start for start, end in zip(before, after)]
    seed = mixture.seed if isinstance(mixture.seed, tuple) else (mixture.seed,)
    corpora_K = np.random.default_rng((*seed, chunk)).permutation(np.repeat(np.arange(len(counts)), counts))
    indices_K = np.empty_like(corpora_K)
    for corpus, (start, count) in enumerate(zip(before, counts)):
        indices_K[corpora_K == corpus] = np.arange(start, start + count)
    return corpora_K, indices_K
