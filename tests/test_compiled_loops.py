"""Numba's compilations of our loops are announced once, when they begin; what compiles them beforehand knows them all."""

import contextlib
import io
import re
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path
from unittest import mock

from absl.testing import absltest

import t5suite
from t5suite.commands import compiled_loops
from t5suite.data.compiled_loops import announce_compilation

try:
    import numba
except ImportError:
    numba = None

ROOT = Path(t5suite.__file__).parent


def made_in(module: str):
    """A function of a module, that numba has not compiled yet."""

    def twice(number):
        return 2 * number

    twice.__module__ = module
    return numba.njit(twice)


@unittest.skipIf(numba is None, "numba is not installed")
class AnnouncementTest(absltest.TestCase):
    def test_a_module_s_first_compilation_is_announced_once(self):
        announce_compilation()
        announce_compilation()
        ours = made_in("t5suite.data.of_this_test")
        with self.assertLogs("t5suite.data.compiled_loops") as logs:
            self.assertEqual((ours(3), ours(1.5)), (6, 3.0))
            self.assertEqual(made_in("t5suite.data.of_this_test")(4), 8)
        self.assertLen(logs.output, 1)
        self.assertIn("numba compiles t5suite.data.of_this_test, which takes some seconds", logs.output[0])

    def test_others_compilations_are_not(self):
        announce_compilation()
        with self.assertNoLogs("t5suite.data.compiled_loops"):
            self.assertEqual(made_in("somebody.else_s")(3), 6)


@unittest.skipIf(numba is None, "numba is not installed")
class ReadOnlyTest(absltest.TestCase):
    def test_where_nothing_can_be_kept_a_run_goes_on_without_numba(self):
        program = """
            from numba.core import caching
            caching.FunctionCache._impl_class._locator_classes = []          # no folder that can be written
            from t5suite.data.objectives.compiled_spans import uses_numba
            from t5suite.data.text.encoding import make_text_encoder
            from t5suite.models.loading import load_tokenizer
            print(uses_numba("auto"), make_text_encoder(load_tokenizer(None), num_bytes=1e9).engine)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.stdout.split(), ["False", "tokenizers"], done.stderr)
        self.assertIn("numba cannot be used (cannot cache function", done.stderr)


class BeforehandTest(absltest.TestCase):
    def test_every_module_with_loops_is_compiled_beforehand(self):
        with_loops = [
            path.stem for path in ROOT.rglob("*.py") if re.search(r"^@(numba\.)?njit", path.read_text(), re.M)
        ]
        self.assertEqual(sorted(with_loops), ["numba_pieces", "numba_spans"])
        self.assertLen(compiled_loops.LOOPS, len(with_loops))

    def test_without_numba_there_is_nothing_to_do(self):
        with (
            mock.patch.object(compiled_loops.importlib.util, "find_spec", return_value=None),
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            self.assertEqual(compiled_loops.main(), 0)
        self.assertIn("there is nothing to compile", err.getvalue())


if __name__ == "__main__":
    absltest.main()
