"""Compiles numba's loops before they are needed, where numba is installed; `make install` does so.

    python -m t5suite.commands.compiled_loops           # 20 s at first, then 2 s

What it makes is found by every later run (`t5suite.data.compiled_loops`), unless NumPy, numba or the processor change.
"""

import importlib.util
import sys
import time

from t5suite.base.errors import EXIT_FINISHED

# Tokens of a corpus are stored in 16 bits where the vocabulary has room in them, else in 32; a stream's have 64.
TOKEN_TYPES = ("uint16", "uint32", "int32", "int64")


def compile_noise() -> None:
    """Span corruption's loop, for every type that tokens come in."""
    import numpy as np

    from t5suite.data.objectives import compiled_spans, noise_counts

    for name in TOKEN_TYPES:
        compiled_spans.corrupt(np.full((1, 64), 5, name), 0, [0], noise_counts(64), range(100, 200), eos_id=1)


def compile_pieces() -> None:
    """The loop that turns text into ids, by the bundled tokenizer."""
    from t5suite.data.text.encoding import make_text_encoder
    from t5suite.models.loading import load_tokenizer

    make_text_encoder(load_tokenizer(None), "numba").encode(["once"])


def main() -> int:
    """Compiles what is not compiled yet; without numba there is nothing to do."""
    if importlib.util.find_spec("numba") is None:
        print("numba is not installed: there is nothing to compile", file=sys.stderr)
        return EXIT_FINISHED
    for name, work in LOOPS.items():
        start = time.perf_counter()
        work()
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return EXIT_FINISHED


LOOPS = {"the noise of span corruption": compile_noise, "a tokenizer's pieces": compile_pieces}

if __name__ == "__main__":
    sys.exit(main())
