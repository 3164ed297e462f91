"""What few users need is loaded by entries of the core's tables: each names something that is there."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

from absl.testing import parameterized

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r'"(t5suite\.contrib\.\w+):(\w+)"')


class EntriesTest(parameterized.TestCase):
    def test_every_entry_names_something_and_every_module_has_an_entry(self):
        entries = set()
        for path in (ROOT / "t5suite").rglob("*.py"):
            text = path.read_text(encoding="utf-8").replace("{DATA_CLASSES}", "t5suite.contrib.data_classes")
            entries |= set(ENTRY.findall(text))
        for module, name in entries:
            self.assertTrue(hasattr(importlib.import_module(module), name), f"{module}:{name}")
        modules = {f"t5suite.contrib.{path.stem}" for path in (ROOT / "t5suite" / "contrib").glob("[!_]*.py")}
        self.assertEqual({module for module, _ in entries}, modules)

    def test_the_command_loads_none_of_it_for_what_does_not_need_it(self):
        code = (
            "import contextlib, io, sys\n"
            "from t5suite.cli import main\n"
            "with contextlib.redirect_stdout(io.StringIO()):\n"
            "    main(['preview', '--benchmark', 'mini', '--dataset_name', 'sentiment', '--split', 'validation', '--json'])\n"
            "print([name for name in sys.modules if name.startswith('t5suite.contrib')])\n"
        )
        process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        self.assertEqual(process.stdout.strip(), "[]")
