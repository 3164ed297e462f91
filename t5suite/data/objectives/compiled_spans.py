"""Span corruption in one compiled pass over a batch, where numba is installed (`pip install 't5suite[speed]'`).

    inputs_BI, targets_BT = compiled_spans.corrupt(tokens_BL, 0, [7, 8], noise_counts(568), sentinel_ids, eos_id=1)

Bit for bit what NumPy makes (`spans`, `even_spans`): the same random words, the same draws, the same rows. It is five
times as fast, for a row stays in the processor's nearest cache from its first random word to its last token. What was
compiled is kept on the disk beside the module or, where that cannot be written, in the user's cache (numba's
`NUMBA_CACHE_DIR`). The function keeps nothing between calls and needs no lock: threads and forked workers may call it.

Shape suffixes: B rows, L tokens of a block, I inputs, T targets, K spans, W machine words.
"""

import functools
import importlib.util
import logging

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.compiled_loops import announce_compilation
from t5suite.data.objectives.corruption import check_sentinels
from t5suite.data.objectives.spans import num_draws

logger = logging.getLogger(__name__)

ENGINES = dict.fromkeys(("auto", "numpy", "numba"))
INSTALL = "pip install 't5suite[speed]'"


def uses_numba(engine: str = "auto") -> bool:
    """Whether `engine` (`auto`, `numpy`, `numba`) means the compiled pass here.

    >>> uses_numba("numpy")
    False

    Raises ConfigError for `numba` where it is not installed, or does not fit the other libraries.
    """
    if engine == "numpy":
        return False
    if importlib.util.find_spec("numba") is None:
        if engine == "numba":
            raise ConfigError(f"--noise_engine numba: numba is not installed; {INSTALL}, or leave the flag out")
        return False
    try:
        _kernel()
    except (ImportError, RuntimeError) as error:  # for a NumPy newer than it knows; where nothing can be kept
        if engine == "numba":
            raise ConfigError(f"--noise_engine numba: numba cannot be used ({error})") from None
        logger.warning("numba cannot be used (%s): NumPy makes the noise", error)
        return False
    return True


def corrupt(tokens_BL, seed, indices, counts, sentinel_ids, eos_id=None):
    """`(inputs [B, I], targets [B, T])`, int64; None where a row, one of 100,000, lacks draws: NumPy can do it.

    Args:
      seed, indices: what the noise is drawn from, as in `DatumRngs`.
      counts: `(noise tokens, spans)` of a row, of `noise_counts`.

    Raises ConfigError where there are more spans than sentinels.
    """
    (batch, length), (num_noise, num_spans) = tokens_BL.shape, counts
    check_sentinels(num_spans, num_spans, len(sentinel_ids))
    more = num_spans + (eos_id is not None)
    corrupt_rows, room = _kernel()
    inputs = np.empty(batch * (length - num_noise + more) + room, dtype=np.int64)
    targets = np.empty(batch * (num_noise + more) + room, dtype=np.int64)
    draws = tuple(num_draws(total - 1, num_spans - 1) for total in (length - num_noise, num_noise))
    whole = corrupt_rows(
        np.ascontiguousarray(tokens_BL),
        np.uint64(seed),
        np.asarray(indices, dtype=np.uint64),
        num_noise,
        draws,
        np.asarray(sentinel_ids[:num_spans], dtype=np.int64),
        -1 if eos_id is None else eos_id,
        inputs,
        targets,
    )
    return tuple(side[:-room].reshape(batch, -1) for side in (inputs, targets)) if whole else None


@functools.lru_cache
def _kernel():
    """The compiled function, which takes seconds to compile, once on a machine, and the room that its sides need."""
    from t5suite.data.objectives import numba_spans

    announce_compilation()
    return numba_spans.corrupt_rows, numba_spans.LONG
