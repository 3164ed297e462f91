"""Imported first: `t5suite` sets how OpenMP's threads wait, which works only before torch is loaded. Without a GPU,
Triton's kernels are interpreted, which must be said before triton is imported."""

import gc
import os
import shutil
import time

import pytest

import t5suite

assert t5suite
# Nothing that is imported is garbage: looking for it takes a fifth of the imports' time, and of every short run's.
gc.disable()
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish():
    """From here on garbage is looked for among what the tests themselves make."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup():
    """`.ci/run` gives a group of slow tests a part of its time: none begins later."""
    if time.time() > float(os.environ.get("T5SUITE_TESTS_END", "inf")):
        pytest.skip("the time of its group in .ci/run is over")
