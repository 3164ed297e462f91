"""Which of several corpora a run's datum j comes from: a function of only the weights, a seed and j.

    >>> CorpusMixture((2, 1)).counts_before(1)
    [2730, 1366]

The run is cut into chunks. At every chunk border each corpus has had its share, to within one block; inside a chunk the
order is random. So no draw depends on earlier ones, and a resumed run finds its place at once.
Shape suffix: K draws of a chunk.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from t5suite.base.errors import ConfigError


class CorpusMixture:
    """A random-access mixture of corpora.

    `weights` are positive numbers, which need not sum to one; `seed` is a number or a tuple. `chunk_size`, the draws of
    a chunk, is doubled until the smallest corpus occurs at least twice in each (with fewer, rounding could give a
    negative number of blocks).
    """

    def __init__(self, weights: Sequence[float], seed=0, chunk_size: int = 4096):
        if not weights or not all(0 < weight < float("inf") for weight in weights):
            raise ConfigError(f"corpus weights {tuple(weights)}: give one positive number for each corpus")
        total = sum(map(Fraction, weights))
        shares = [Fraction(weight) / total for weight in weights]
        while min(shares) * chunk_size < 2:
            chunk_size *= 2
        self.seed = seed if isinstance(seed, tuple) else (seed,)
        self.chunk_size = chunk_size
        self._borders = tuple(sum(shares[:count]) for count in range(len(shares) + 1))

    def corpus_of(self, j: int) -> tuple[int, int]:
        """The corpus of datum j, and how many data before j came from it."""
        chunk, place = divmod(int(j), self.chunk_size)
        corpora_K, indices_K = _chunk(self, chunk)
        return int(corpora_K[place]), int(indices_K[place])

    def counts_before(self, chunk: int) -> list[int]:
        """How many data of each corpus the chunks before this one hold, in whole numbers without rounding error.

        >>> CorpusMixture((2, 1)).counts_before(1)
        [2730, 1366]
        """
        ends = [int(border * chunk * self.chunk_size) for border in self._borders]
        return [end - start for start, end in pairwise(ends)]


@functools.lru_cache(maxsize=256)  # a process serves many virtual streams, each in its own chunk
def _chunk(mixture: CorpusMixture, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """`(corpora_K, indices_K)` of a chunk's K draws."""
    before = mixture.counts_before(chunk)
    after = mixture.counts_before(chunk + 1)
    counts = [end - start for start, end in zip(before, after)]
    corpora_K = np.random.default_rng((*mixture.seed, chunk)).permutation(np.repeat(np.arange(len(counts)), counts))
    indices_K = np.empty_like(corpora_K)
    for corpus, (start, count) in enumerate(zip(before, counts)):
        indices_K[corpora_K == corpus] = np.arange(start, start + count)
    return corpora_K, indices_K
