"""Which documents are held out for validation: a function of their text, or of their ids, alone.

A document is held out iff its hash, a number uniform on 0 .. 2**64 - 1, is below `fraction * 2**64`. Equal documents
are therefore always on the same side, whatever their order and the files, workers or machines that they are spread
over. A larger fraction holds out the same documents and more.
"""

import hashlib
import math

import numpy as np

from t5suite.base.errors import ConfigError


def document_hash(text: str) -> int:
    """BLAKE2b (RFC 7693) of the UTF-8 text, 8 bytes, little endian; white space at both ends is ignored."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest(), "little")


def held_out_below(fraction: float) -> int:
    """The number below which a hash means held out; a fraction of 0 holds out nothing, 1 everything."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"--validation_fraction {fraction}: must be a fraction between 0 and 1, such as 0.01")
    return math.ceil(fraction * 2**64)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the validation split."""
    return document_hash(text) < held_out_below(fraction)


def are_held_out(ids_N, boundaries_D, fraction: float) -> np.ndarray:
    """Which documents of a row of ids belong to the validation split: by the hash of their ids, as no text is at hand.

    >>> are_held_out(np.array([37, 414, 1, 8, 1]), np.array([0, 3, 5]), fraction=0.5)
    array([False,  True])

    Args:
      ids_N: the ids of all documents, of any width; boundaries_D: where each document starts, and the end of the last.
        Each ends with one token that is no part of it.
    """
    below = held_out_below(fraction)
    content = memoryview(np.ascontiguousarray(ids_N, dtype="<u4")).cast("B")
    ends = boundaries_D[1:] - 1
    held_out_D = np.zeros(len(ends), dtype=bool)
    for document, (start, end) in enumerate(zip((4 * boundaries_D[:-1]).tolist(), (4 * ends).tolist(), strict=True)):
        digest = hashlib.blake2b(content[start:end], digest_size=8).digest()
        held_out_D[document] = int.from_bytes(digest, "little") < below
    return held_out_D
