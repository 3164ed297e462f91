"""Imported first: `t5suite` sets how OpenMP's threads wait, which works only before torch is loaded."""

import gc
import os
import time

import pytest

import t5suite

assert t5suite
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
