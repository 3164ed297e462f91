"""Imported first: `t5suite` sets how OpenMP's threads wait, which works only before torch is loaded."""

import contextlib
import gc
import os
import time
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from unittest import mock

import pytest

import t5suite

assert t5suite
# The most processor time that the call of a test may take which is not marked slow; `.ci/run` gives more.
QUICK_SECONDS = float(os.environ.get("T5SUITE_QUICK_SECONDS", "1"))
# What `_slowness` computes takes so long on a quiet core at 2.5 GHz, for which the limit is meant.
QUIET_SECONDS = 0.33
# Nothing that is imported is garbage: looking for it takes a fifth of the imports' time, and of every short run's.
gc.disable()


def pytest_collection_finish(session):
    """From here on garbage is looked for among what the tests themselves make; the time of a group of tests begins."""
    gc.freeze()
    gc.enable()
    session.config.tests_end = time.monotonic() + float(os.environ.get("T5SUITE_TEST_SECONDS", "inf"))


def pytest_runtest_setup(item):
    """`.ci/run` gives a group of slow tests a part of its time: none begins later."""
    if time.monotonic() > item.config.tests_end:
        pytest.skip("the time of its group in .ci/run is over")


def pytest_runtest_teardown(item, nextitem):
    """What a file's tests have left is no garbage of the next file's: a run collects several times, and each time would
    go through all of it (0.1 s after twenty files).
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """An unmarked test fails that takes too long, its processes included, and does so each of three times more: what
    it is first to import or to compute does not count, nor what others on the machine take from it for a moment.
    """
    with _ProcessorTime() as taken:
        result = yield
    failed = getattr(item, "_excinfo", None)  # of a unittest's method, which pytest raises later
    if failed or item.get_closest_marker("slow") or taken.seconds <= QUICK_SECONDS:
        return result
    for _ in range(3):
        with _ProcessorTime() as again:
            item.runtest()
        limit = QUICK_SECONDS * _slowness()
        if again.seconds <= limit:
            return result
    pytest.fail(f"{again.seconds:.1f} s of processor time, at most {limit:.1f} unless marked slow", pytrace=False)


def _slowness() -> float:
    """How much slower this machine is now, by a sum that takes QUIET_SECONDS: others may keep it busy."""
    begun = time.process_time()
    sum(i * i for i in range(2_000_000))
    return max(1.0, (time.process_time() - begun) / QUIET_SECONDS)


class _ProcessorTime:
    """`seconds` of this process and its children in a block, less those of the imports in it."""

    def __enter__(self):
        self.imports, self.depth = 0.0, 0
        loaders = ((SourceFileLoader, "exec_module"), (ExtensionFileLoader, "create_module"))
        with contextlib.ExitStack() as patches:
            for loader, name in loaders:
                patches.enter_context(mock.patch.object(loader, name, self._timed(getattr(loader, name))))
            self.patches = patches.pop_all()
        self.begun = _processor_seconds()
        return self

    def __exit__(self, *exception):
        self.seconds = _processor_seconds() - self.begun - self.imports
        self.patches.close()

    def _timed(self, method):
        def run(*args):
            begun, self.depth = _processor_seconds(), self.depth + 1
            try:
                return method(*args)
            finally:
                self.depth -= 1
                self.imports += 0 if self.depth else _processor_seconds() - begun

        return run


def _processor_seconds() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system
