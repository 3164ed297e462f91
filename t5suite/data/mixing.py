"""SplitMix64 for whole arrays: numbers that count up -> words that look random, each on its own.

    words = mixed(base + GAMMA * np.arange(1, 5, dtype=np.uint64))      four words of the generator that begins at base

Nothing is kept between words, so that any of any generator can be had at once: 1 ns a word, where a generator of
NumPy's has to be set to each row's state first.
Source: Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195, with the constants of Java's `SplittableRandom`.
"""

import numpy as np

GAMMA = 0x9E3779B97F4A7C15  # odd, about 2**64 / the golden ratio: what such a generator's state grows by
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SHIFTS = 30, 27, 31


def mixed(values: np.ndarray) -> np.ndarray:
    """Uint64 -> uint64, one to one: every bit of the result depends on every bit of the value.

    >>> [hex(word) for word in mixed(np.array([GAMMA, 2 * GAMMA % 2**64], dtype=np.uint64)).tolist()]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    first, second, third = map(np.uint64, SHIFTS)
    found = values >> first
    found ^= values
    found *= np.uint64(MULTIPLIERS[0])
    found ^= found >> second
    found *= np.uint64(MULTIPLIERS[1])
    found ^= found >> third
    return found
