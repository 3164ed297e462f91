"""Python's search for garbage, kept away from what is imported once and stays.

    gc.disable()                    # before the imports
    import torch
    look_past_imports()             # behind them: from here on garbage is looked for among what is made

A search of all that torch brings along takes a fifth of the imports' time, and finds nothing.
"""

import atexit
import gc
import sys


def look_past_imports() -> None:
    """Looks for garbage again, and not among what is there already.

    Triton from 3.9 on tells on standard error of every object that the last search, at the process's end, has not
    found (nanobind's check of leaks): where it is loaded, that search sees everything again.
    """
    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:
        atexit.register(gc.unfreeze)
