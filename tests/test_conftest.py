"""The limit of processor time in `conftest.py`, whose hook is run around work as pytest runs it."""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import conftest
import pytest
from absl.testing import absltest

WORK = "import time\nend = time.process_time() + 0.04\nwhile time.process_time() < end: pass\n"


class LimitTest(absltest.TestCase):
    def call(self, work, marker=None):
        item = mock.Mock(**{"get_closest_marker.return_value": marker, "runtest": work, "_excinfo": None})
        with mock.patch.multiple(conftest, QUICK_SECONDS=0.02, _slowness=lambda: 1):
            hook = conftest.pytest_runtest_call(item)
            next(hook)
            work()
            hook.send(None)

    def test_work_of_the_process_and_of_its_children_counts_and_imports_and_marked_tests_do_not(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        Path(folder, "import_with_work.py").write_text(WORK)
        self.enter_context(mock.patch.object(sys, "path", [folder, *sys.path]))

        busy = lambda: exec(WORK, {})
        for work in (busy, lambda: subprocess.run([sys.executable, "-S", "-c", WORK], check=True)):
            with self.assertRaises(StopIteration):
                self.call(work, marker="slow")
            with self.assertRaisesRegex(pytest.fail.Exception, r"0\.\d s of processor time"):
                self.call(work)
        with self.assertRaises(StopIteration):
            self.call(lambda: __import__("import_with_work"))
        with self.assertRaises(StopIteration):
            self.call(functools.cache(busy))  # what takes long at its first use only
