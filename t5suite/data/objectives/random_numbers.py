"""The randomness of the objectives: a generator for each datum, and random keys for a batch of rows.

    random_keys(2, 3, DatumRngs(seed=0, indices=[7, 8]))     ->  uint32 [2, 3], row by row datum_rng(0, j).keys(3)

An objective draws all its keys at once and is then a pure function of (tokens, keys): a datum's result depends on
(seed, index) alone, whatever the batch, worker or rank.

Shape suffixes: B rows, K keys, W machine words.
"""

import numpy as np


class DatumRng(np.random.Generator):
    """The generator of one datum (`datum_rng`): a NumPy Generator that also gives the keys that objectives draw.

    >>> datum_rng(0, 7).keys(3).tolist() == random_keys(1, 3, DatumRngs(seed=0, indices=[7]))[0].tolist()
    True
    """

    def __init__(self, seed: int, index: int):
        self._row = DatumRngs(seed, [index])
        super().__init__(np.random.Philox(key=seed << 64 | index))

    def keys(self, num_keys: int) -> np.ndarray:
        """The next `num_keys` uint32 of this datum's row in `DatumRngs`, independent of the Generator's own draws."""
        return self._row.keys(num_keys)[0]


def datum_rng(seed, index) -> DatumRng:
    """The generator of one datum: a function of (seed, index) alone.

    >>> datum_rng(0, 7).integers(100, size=3).tolist() == datum_rng(0, 7).integers(100, size=3).tolist()
    True

    `DatumRngs` serves a whole batch. Raises ValueError if either is outside [0, 2**64).
    Source of all but the keys: Philox4x64 (Salmon et al. 2011, doi:10.1145/2063384.2063405), keyed by the pair.
    """
    return DatumRng(int(seed), int(index))


class DatumRngs:
    """The generators of a batch of data, for all rows at once and without a state per row.

    >>> rngs = DatumRngs(seed=0, indices=[7, 8])
    >>> keys_BK = rngs.keys(3)
    >>> keys_BK.shape, keys_BK[1].tolist() == datum_rng(0, 8).keys(3).tolist()
    ((2, 3), True)

    Each row has its own SplitMix64, whose start is a function of seed and index:
    `mixed(mixed(seed + GAMMA) + index * GAMMA)`, different for every index. 4 ns a word. Raises ValueError as
    `datum_rng` does.
    """

    def __init__(self, seed, indices):
        self.seed = int(seed)
        self.num_drawn = 0
        numbers = [int(index) for index in indices]
        if not all(0 <= number < 2**64 for number in (self.seed, *numbers)):
            raise ValueError(f"seed {seed} and indices {numbers[:3]} must all be at least 0 and below 2**64")
        self.indices = np.array(numbers, dtype=np.uint64)

    def __len__(self):
        return len(self.indices)

    def keys(self, num_keys):
        """The next `num_keys` uint32 of every row, [B, num_keys]."""
        first_word, odd = divmod(self.num_drawn, 2)  # a word holds two keys, the lower half first
        last_word = first_word + (odd + num_keys + 1) // 2
        self.num_drawn += num_keys
        seed_word = mixed(np.array([self.seed], dtype=np.uint64) + np.uint64(GAMMA))
        bases_B = mixed(self.indices * np.uint64(GAMMA) + seed_word)
        steps_W = np.arange(first_word + 1, last_word + 1, dtype=np.uint64) * np.uint64(GAMMA)
        words_BW = mixed(bases_B[:, None] + steps_W)
        return words_BW.astype("<u8", copy=False).view("<u4")[:, odd : odd + num_keys]


def random_keys(batch, num_keys, rng):
    """Random uint32 keys [batch, num_keys].

    >>> random_keys(2, 5, np.random.default_rng(0)).shape
    (2, 5)

    rng: one Generator for all rows (row after row what it would draw for each), a `DatumRngs`, or a sequence of one
    Generator for each row. Raises ValueError if their number is not that of the rows.
    """
    if batch * num_keys == 0:
        return np.empty((batch, num_keys), dtype=np.uint32)  # `bytes(0)` would consume a key
    if isinstance(rng, np.random.Generator):
        return _keys_of(rng, batch * num_keys).reshape(batch, num_keys)
    if len(rng) != batch:
        raise ValueError(f"{len(rng)} generators for {batch} rows: give one for all rows or one for each")
    if isinstance(rng, DatumRngs):
        return rng.keys(num_keys)
    return np.stack([_keys_of(row_rng, num_keys) for row_rng in rng])


def _keys_of(rng, num_keys):
    """The next uint32 of one Generator, [num_keys]."""
    return rng.keys(num_keys) if isinstance(rng, DatumRng) else np.frombuffer(rng.bytes(4 * num_keys), dtype="<u4")


def below(keys, bounds):
    """Keys -> integers uniform in [0, bounds), int64; `bounds` broadcasts.

    >>> below(np.array([0, 2**31, 2**32 - 1], dtype=np.uint32), 10).tolist()
    [0, 5, 9]

    The bias is below bounds / 2**32 (1e-5 at a vocabulary of 32,000).
    """
    scaled = np.asarray(keys, dtype=np.uint64) * np.asarray(bounds, dtype=np.uint64)
    return (scaled >> np.uint64(32)).view(np.int64)


def bernoulli(keys, probability):
    """Keys -> bools, each true with this probability (to 2**-32).

    >>> bernoulli(np.array([0, 2**31 - 1, 2**31], dtype=np.uint32), 0.5).tolist()
    [True, True, False]
    """
    return keys < np.uint64(round(probability * 2**32))


# ---------------------------------------------------------------------------------------------------------------------
# SplitMix64 for whole arrays: counters -> random-looking words, each independently, 1 ns a word.
# Source: Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195, with the constants of Java's `SplittableRandom`.


GAMMA = 0x9E3779B97F4A7C15  # odd, about 2**64 / the golden ratio: the increment of such a generator's state
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SHIFTS = 30, 27, 31


def mixed(values: np.ndarray) -> np.ndarray:
    """Uint64 -> uint64, one to one: every bit of the result depends on every bit of the value.

    >>> [hex(word) for word in mixed(np.array([GAMMA, 2 * GAMMA % 2**64], dtype=np.uint64)).tolist()]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    first, second, third = map(np.uint64, SHIFTS)
    words = values >> first
    words ^= values
    words *= np.uint64(MULTIPLIERS[0])
    words ^= words >> second
    words *= np.uint64(MULTIPLIERS[1])
    words ^= words >> third
    return words
