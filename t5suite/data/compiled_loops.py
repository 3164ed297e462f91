"""Loops that numba compiles: it is said when that begins.

    >>> announce_compilation()
    >>> compiled_spans.corrupt(tokens_BL, ...)
    INFO t5suite.data.compiled_loops: numba compiles t5suite.data.objectives.numba_spans, which takes some seconds ...

The first use on a machine takes seconds (6 for span corruption's noise, 9 for a tokenizer's pieces, on one core); what
was compiled lies beside the modules from then on or, where those cannot be written, in the user's cache
(`NUMBA_CACHE_DIR`), and is there in 0.4 s. `python -m t5suite.commands.compiled_loops` compiles beforehand.
"""

import functools
import logging

logger = logging.getLogger(__name__)

OURS = "t5suite."


@functools.cache
def announce_compilation() -> None:
    """Has numba's compilations of our loops logged when they begin, one line for each module and process."""
    from numba.core import event

    class Announcement(event.Listener):
        """Hears of compilations alone: what is read from the disk is no event."""

        told: set[str] = set()

        def on_start(self, event):
            """A function is about to be compiled, and the functions that it calls."""
            module = event.data["dispatcher"].py_func.__module__
            if module.startswith(OURS) and module not in self.told:
                self.told.add(module)
                logger.info("numba compiles %s, which takes some seconds, once on a machine", module)

        def on_end(self, event):
            """Nothing."""

    event.register("numba:compile", Announcement())
