"""Compiled code is kept where the next run finds it, or a warning says why not."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import guarded_trainer
import pytest
from absl.testing import parameterized
from accelerate.state import AcceleratorState

from t5suite.commands.doctor_machine import (
    OK,
    WARN,
    Checkup,
    check_compile_cache,
)
from t5suite.training.compile_cache import VARIABLE, compile_cache_folder, folder_bytes, keep_compiled

TWICE = """
import torch, t5suite.training.compile_cache as cache
cache.keep_compiled({folder!r})
torch.compile(lambda x: (x * 2).cos())(torch.ones(8))
from torch._dynamo.utils import counters
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


class CompileCacheTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        patched = mock.patch.dict(os.environ, {**environ, "XDG_CACHE_HOME": str(self.folder)}, clear=True)
        patched.start()
        self.addCleanup(patched.stop)

    def test_the_variable_goes_before_the_user_s_cache(self):
        self.assertEqual(compile_cache_folder({VARIABLE: "/a", "XDG_CACHE_HOME": "/b"}), Path("/a"))
        self.assertEqual(compile_cache_folder({"XDG_CACHE_HOME": "/b"}), Path("/b/t5suite/compiled"))
        self.assertEqual(compile_cache_folder({}), Path.home() / ".cache/t5suite/compiled")

    def test_the_flag_goes_before_the_variable(self):
        place = self.folder / "given"
        with mock.patch.dict(os.environ, {VARIABLE: str(self.folder)}):
            self.assertEqual(keep_compiled(str(place)), place)
            self.assertEqual(os.environ[VARIABLE], str(place))
        self.assertTrue(place.is_dir())

    def test_without_a_flag_the_user_s_cache_is_taken_and_none_takes_nothing(self):
        self.assertIsNone(keep_compiled("none"))
        self.assertNotIn(VARIABLE, os.environ)
        self.assertEqual(keep_compiled(), self.folder / "t5suite" / "compiled")
        self.assertEqual(os.environ[VARIABLE], str(self.folder / "t5suite" / "compiled"))

    def test_a_place_that_cannot_be_written_costs_a_warning(self):
        (self.folder / "file").write_text("")
        with self.assertLogs("t5suite.training.compile_cache", "WARNING"):
            self.assertIsNone(keep_compiled(str(self.folder / "file" / "below")))
        self.assertNotIn(VARIABLE, os.environ)

    def test_a_trainer_that_compiles_keeps_it_and_another_does_not(self):
        guarded_trainer.make()
        self.assertNotIn(VARIABLE, os.environ)
        self.addCleanup(AcceleratorState._reset_state)  # else later trainers of this process would compile, too
        with mock.patch.dict(os.environ):
            guarded_trainer.make(
                torch_compile=True, torch_compile_backend="eager", compile_cache=str(self.folder / "x")
            )
            self.assertEqual(os.environ[VARIABLE], str(self.folder / "x"))

    def test_doctor_tells_size_and_place(self):
        found = check_compile_cache(Checkup(environ=dict(os.environ)))[0]
        self.assertEqual((found.level, found.what.split(": ")[1]), (OK, "nothing kept yet"))
        place = keep_compiled()
        (place / "below").mkdir()
        (place / "below" / "code").write_bytes(bytes(3 * 2**20))
        self.assertEqual(folder_bytes(place), 3 * 2**20)
        found = check_compile_cache(Checkup(environ=dict(os.environ)))[0]
        self.assertEqual((found.level, found.what), (OK, f"{place}: 3.0 MiB kept"))
        with mock.patch("os.access", return_value=False):
            self.assertEqual(check_compile_cache(Checkup(environ=dict(os.environ)))[0].level, WARN)

    @pytest.mark.slow
    def test_a_second_process_finds_what_the_first_has_made(self):
        command = [sys.executable, "-c", TWICE.format(folder=str(self.folder))]
        told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
        self.assertEqual(told, [["0", "1"], ["1", "0"]])
