"""Where the objectives' chance comes from: a generator for each datum, and random keys for a batch of rows.

    random_keys(2, 3, DatumRngs(seed=0, indices=[7, 8]))     ->  uint32 [2, 3], row by row what datum_rng(0, j) draws

An objective draws all its keys at once and is then a pure function of (tokens, keys): a datum's result depends on
(seed, index) alone, whatever the batch, worker or rank.

Shape suffixes: B rows, K keys, W machine words.
"""

import numpy as np

WORDS_PER_COUNT = 4  # Philox4x64 makes four 64-bit words for each value of its counter


def datum_rng(seed, index):
    """The generator of one datum: a function of (seed, index) alone.

    >>> datum_rng(0, 7).integers(100, size=3).tolist() == datum_rng(0, 7).integers(100, size=3).tolist()
    True

    A counter-based generator keyed by the pair: distinct pairs have distinct streams, and making one costs 9 us
    (a seeded PCG64: 17 us); `DatumRngs` serves a whole batch. Raises ValueError where either is outside [0, 2**64).
    Source: Philox4x64 (Salmon et al. 2011, doi:10.1145/2063384.2063405).
    """
    seed, index = int(seed), int(index)
    _check_range(seed, index, index)
    return np.random.Generator(np.random.Philox(key=seed << 64 | index))


def _check_range(seed, first_index, last_index):
    if not (0 <= seed < 2**64 and 0 <= first_index <= last_index < 2**64):
        found = first_index if first_index == last_index else f"{first_index} to {last_index}"
        raise ValueError(f"seed {seed} and index {found} must both be at least 0 and below 2**64")


class DatumRngs:
    """The generators of a batch of data, by one Philox whose key is set row after row.

    >>> rngs = DatumRngs(seed=0, indices=[7, 8])
    >>> keys_BK = rngs.keys(3)
    >>> keys_BK.shape, keys_BK[1].tolist() == random_keys(1, 3, datum_rng(0, 8))[0].tolist()
    ((2, 3), True)

    Row b draws exactly what `datum_rng(seed, indices[b])` would, in later calls too, at 1 us a row instead of 12.
    `compiled` says that an objective may make its rows in one pass of numba's, of the same draws (`compiled_spans`).
    Raises ValueError as `datum_rng` does.
    """

    def __init__(self, seed, indices, compiled=False):
        self.seed = int(seed)
        self.indices = indices.tolist() if isinstance(indices, np.ndarray) else list(map(int, indices))
        _check_range(self.seed, min(self.indices, default=0), max(self.indices, default=0))
        self.compiled = compiled
        self.num_drawn = 0

    def __len__(self):
        return len(self.indices)

    def keys(self, num_keys):
        """The next `num_keys` uint32 of every row, [B, num_keys]."""
        first_word, odd = divmod(self.num_drawn, 2)  # a word holds two keys, the lower half first
        count, skipped = divmod(first_word, WORDS_PER_COUNT)
        num_words = skipped + (odd + num_keys + 1) // 2
        key = [0, self.seed]  # lists, because reading a NumPy array's elements one by one takes twice as long
        state = {"bit_generator": "Philox", "state": {"counter": [count, 0, 0, 0], "key": key}}
        state |= {"buffer": [0] * WORDS_PER_COUNT, "buffer_pos": WORDS_PER_COUNT, "has_uint32": 0, "uinteger": 0}
        words_BW = np.empty((len(self), num_words), dtype="<u8")
        bit_generator = np.random.Philox(key=0)
        draw = bit_generator.random_raw
        for row, key[0] in enumerate(self.indices):
            bit_generator.state = state
            words_BW[row] = draw(num_words)
        self.num_drawn += num_keys
        return words_BW[:, skipped:].view("<u4")[:, odd : odd + num_keys]


def random_keys(batch, num_keys, rng):
    """Random uint32 keys [batch, num_keys].

    >>> random_keys(2, 5, np.random.default_rng(0)).shape
    (2, 5)

    rng: one Generator for all rows (row after row what it would draw for each), a `DatumRngs`, or a sequence of one
    Generator for each row. Raises ValueError where there are more or fewer of them than rows.
    """
    if batch * num_keys == 0:
        return np.empty((batch, num_keys), dtype=np.uint32)  # `bytes(0)` would use a key up
    if isinstance(rng, np.random.Generator):
        return np.frombuffer(rng.bytes(4 * batch * num_keys), dtype="<u4").reshape(batch, num_keys)
    if len(rng) != batch:
        raise ValueError(f"{len(rng)} generators for {batch} rows: give one for all rows or one for each")
    if isinstance(rng, DatumRngs):
        return rng.keys(num_keys)
    raw = b"".join([row_rng.bytes(4 * num_keys) for row_rng in rng])
    return np.frombuffer(raw, dtype="<u4").reshape(batch, num_keys)


def below(keys, bounds):
    """Keys -> integers uniform in [0, bounds), int64; `bounds` broadcasts.

    >>> below(np.array([0, 2**31, 2**32 - 1], dtype=np.uint32), 10).tolist()
    [0, 5, 9]

    The bias is below bounds / 2**32: no value is that much likelier than another (1e-5 at a vocabulary of 32,000).
    """
    return (np.asarray(keys, dtype=np.uint64) * np.asarray(bounds, dtype=np.uint64) >> np.uint64(32)).astype(np.int64)


def bernoulli(keys, probability):
    """Keys -> bools, each true with this probability (to 2**-32).

    >>> bernoulli(np.array([0, 2**31 - 1, 2**31], dtype=np.uint32), 0.5).tolist()
    [True, True, False]
    """
    return keys < np.uint64(round(probability * 2**32))
