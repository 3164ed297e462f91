"""Which documents are held out for validation: a function of their text alone.

    >>> is_held_out("The centre of the city is old.", fraction=0.01)
    False

A document is held out iff its hash, a number uniform on 0 .. 2**64 - 1, lies below `fraction * 2**64`. Equal documents
therefore never stand on both sides, and neither their order nor the files, workers or machines that they are spread
over change the sides. A larger fraction holds out the same documents and more.
"""

import hashlib
import math

from t5suite.base.errors import ConfigError

NUM_HASHES = 2**64


def document_hash(text: str) -> int:
    """BLAKE2b (RFC 7693) of the UTF-8 text, 8 bytes, little endian; white space at both ends does not count.

    >>> document_hash("It rains.") == document_hash("It rains. ")
    True

    Raises UnicodeEncodeError for half a surrogate pair.
    """
    return int.from_bytes(hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest(), "little")


def held_out_below(fraction: float, flag: str = "--validation_fraction") -> int:
    """The number below which a hash means held out; 0 holds out nothing, 1 everything.

    >>> held_out_below(0.25) == 2**62
    True

    Raises:
      ConfigError: the fraction is not within 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise ConfigError(f"{flag} {fraction}: must be a fraction between 0 and 1, such as 0.01")
    return math.ceil(fraction * NUM_HASHES)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the validation split."""
    return document_hash(text) < held_out_below(fraction)
