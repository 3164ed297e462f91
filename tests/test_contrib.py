"""What few users need is loaded by entries of the core's tables: each names something that is there."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import parameterized

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r'"(t5suite\.contrib\.[\w.]+):(\w+)"')


class EntriesTest(parameterized.TestCase):
    def test_every_entry_names_something_and_every_module_or_package_has_an_entry(self):
        entries = set()
        for path in (ROOT / "t5suite").rglob("*.py"):
            entries |= set(ENTRY.findall(path.read_text(encoding="utf-8")))
        for module, name in entries:
            self.assertTrue(hasattr(importlib.import_module(module), name), f"{module}:{name}")
        parts = {path.stem for path in (ROOT / "t5suite" / "contrib").glob("[!_]*")}
        self.assertEqual({module.split(".")[2] for module, _ in entries}, parts)

    @pytest.mark.slow
    def test_the_command_loads_none_of_it_for_what_does_not_need_it(self):
        preview = ["preview", "--benchmark", "mini", "--dataset_name", "sentiment", "--split", "validation", "--json"]
        command = [sys.executable, "-X", "importtime", "-m", "t5suite", *preview]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        imported = [line.rpartition("|")[2].strip() for line in process.stderr.splitlines()]
        self.assertContainsSubset(["t5suite.tasks", "t5suite.data"], imported)
        self.assertEmpty([name for name in imported if re.match(r"t5suite\.contrib", name)])
