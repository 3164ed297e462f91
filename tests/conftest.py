"""Imported first: `t5suite` sets how OpenMP's threads wait, which works only before torch is loaded."""

import collections
import functools
import gc
import getpass
import importlib.metadata
import inspect
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

import t5suite

assert t5suite
# As many threads as the processes that tests start: on some machines their number changes the last digit of a sum.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test needs the hub itself, and whether a machine reaches it shall change none. Those with a hub of their own say so.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The most processor time of the call of a test that is not marked slow. It holds a first import of a large library
# and what a busy machine adds to a second's work.
QUICK_SECONDS = float(os.environ.get("T5SUITE_QUICK_SECONDS", "6"))
# Nothing that is imported is garbage: looking for it takes a fifth of the imports' time, and of every short run's.
gc.disable()
# accelerate reads the description of DeepSpeed's package each time that it unwraps a model.
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)


def pytest_configure(config):
    """All temporary folders of the tests, and of the processes that they start, are in one, which goes at the end."""
    if hasattr(config, "workerinput"):  # of xdist: it has the variables of the process that has started it
        return
    # What torch has compiled serves the next run, too.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
    config.temporary_folder = tempfile.mkdtemp(prefix="t5-")
    os.chmod(config.temporary_folder, 0o711)  # Slurm's daemons, of other users, reach their folders in it
    os.environ["TMPDIR"] = tempfile.tempdir = config.temporary_folder


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.temporary_folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items):
    """Of a test with the mark `quick_cases(n)`, the cases behind the first n by name are slow: case 10 is before case 2.

    Files with an audit hook (tests/write_guard.py) come last: it stays, and makes all that follows slower.
    """
    num_cases = collections.Counter()
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark is not None:
            test = item.cls, inspect.unwrap(item.function)  # the same for all of its cases
            num_cases[test] += 1
            if num_cases[test] > mark.args[0]:
                item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: hasattr(item.module, "WriteGuard"))


def pytest_collection_finish(session):
    """From here on garbage is looked for among what the tests themselves make; the time of a group of tests begins.

    It is looked for seldom: after so many objects, as in a command.
    """
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    session.config.tests_end = time.monotonic() + float(os.environ.get("T5SUITE_TEST_SECONDS", "inf"))


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test's class, which train, too
def pytest_runtest_setup(item):
    """`.ci/run` gives a group of slow tests a part of its time: none begins later."""
    if time.monotonic() > item.config.tests_end:
        pytest.skip("the time of its group in .ci/run is over")
    Pictures.are_painted = any(map(item.get_closest_marker, ("slow", "pictures")))
    Pictures.watch()


class Pictures:
    """The learning curves that a run leaves: their pixels take longer than a short run, and few tests look at them.

    A quick test that is not marked `pictures` leaves an empty file, once matplotlib has been imported.
    """

    are_painted = True
    is_watched = False

    @classmethod
    def watch(cls) -> None:
        """Replaces the painting of files, once; what draws into memory paints as ever."""
        canvases = sys.modules.get("matplotlib.backends.backend_agg")
        if canvases is None or cls.is_watched:
            return
        cls.is_watched = True
        paint = canvases.FigureCanvasAgg.print_png

        @functools.wraps(paint)
        def print_png(canvas, file, **settings):
            if cls.are_painted or not isinstance(file, str):
                paint(canvas, file, **settings)
            else:
                Path(file).touch()

        canvases.FigureCanvasAgg.print_png = print_png


def pytest_runtest_teardown(item, nextitem):
    """What a file's tests have left is no garbage of the next file's: a run collects several times, and each time would
    go through all of it (0.1 s after twenty files).
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test that is not marked slow fails if it takes more than QUICK_SECONDS, its child processes included."""
    start = _processor_seconds()
    result = yield
    seconds = _processor_seconds() - start
    if item.get_closest_marker("slow") is None and seconds > QUICK_SECONDS:
        pytest.fail(f"{seconds:.1f} s of processor time, at most {QUICK_SECONDS:g} unless marked slow", pytrace=False)
    return result


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
