"""What the suite's own code must never do, looked for in its syntax trees.

    >>> offences("import yaml\nyaml.load(text)")
    ['2: yaml.load']

Every rule is proven by a snippet that it must find, and by one beside it that it must leave alone. A name is followed
through `import a as b` and `from a import b`; what is put together at run time (`getattr(os, "sys" + "tem")`) is not.
"""

import ast
from pathlib import Path

from absl.testing import absltest, parameterized

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for place in ("fine_tune_t5.py", "pre_train_t5.py", "t5suite", "benchmarks", "faults")
    for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
)
# Where the user's own Python file is run, as documented (`--task_file tasks.py`).
ALLOWED = {("t5suite/tasks/entries.py", "runpy.run_path")}

# Names that are never to be used, called or not.
FORBIDDEN = frozenset(
    """os.system os.popen subprocess.getoutput subprocess.getstatusoutput asyncio.create_subprocess_shell pty.spawn
    yaml.load yaml.load_all yaml.full_load yaml.full_load_all yaml.unsafe_load yaml.unsafe_load_all yaml.Loader
    yaml.FullLoader yaml.UnsafeLoader yaml.CLoader yaml.CFullLoader yaml.CUnsafeLoader
    pickle.load pickle.loads pickle.Unpickler dill.load dill.loads joblib.load cloudpickle.load cloudpickle.loads
    marshal.load marshal.loads shelve.open pandas.read_pickle torch.hub.load torch.jit.load
    torch.serialization.add_safe_globals
    tempfile.mktemp shutil.unpack_archive runpy.run_path runpy.run_module
    builtins.eval builtins.exec builtins.compile builtins.__import__""".split()
)
# Functions that are safe with one argument only: name -> (argument, the value that it must have).
REQUIRED = {"torch.load": ("weights_only", True)}
# Arguments that no call may have with another value.
ARGUMENTS = {"shell": False, "trust_remote_code": False, "allow_pickle": False, "weights_only": True}
METHODS = ("extractall", "extract")


def offences(source: str) -> list[str]:
    """`line: what` of everything in the source that a rule forbids."""
    tree = ast.parse(source)
    names = imported_names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = full_name(node, names)
            found += [(node.lineno, name)] * (name in FORBIDDEN)
        if isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.*") for alias in node.names if alias.name == "*"]
        if isinstance(node, ast.Call):
            found += [(node.lineno, what) for what in call_offences(node, names)]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found += [
                (node.lineno, f"{key.value}={ast.unparse(value)}")
                for key, value in pairs
                if is_refused(getattr(key, "value", None), value)
            ]
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append((node.lineno, "bare except"))
    return [f"{line}: {what}" for line, what in sorted(set(found))]


def offences_of(path: Path) -> list[str]:
    """The offences of one of the suite's files, without those that are allowed."""
    name = str(path.relative_to(ROOT))
    found = offences(path.read_text(encoding="utf-8"))
    return [offence for offence in found if (name, offence.partition(": ")[2]) not in ALLOWED]


def call_offences(node: ast.Call, names: dict[str, str]) -> list[str]:
    """What is wrong with a call: its arguments, or an archive that is unpacked."""
    called = full_name(node.func, names)
    found = []
    for keyword in node.keywords:
        if is_refused(keyword.arg, keyword.value):
            found.append(f"{keyword.arg}={ast.unparse(keyword.value)}")
    if called in REQUIRED:
        name, value = REQUIRED[called]
        given = next((keyword.value for keyword in node.keywords if keyword.arg == name), None)
        if not (isinstance(given, ast.Constant) and given.value is value):
            found.append(f"{called} without {name}={value}")
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        found.append(f".{node.func.attr}()")
    return found


def is_refused(name: str, value: ast.expr) -> bool:
    """Whether an argument has another value than it must: `shell` must be constant, the others may be variables."""
    if name not in ARGUMENTS:
        return False
    if isinstance(value, ast.Constant):
        return value.value is not ARGUMENTS[name]
    return name == "shell"


def imported_names(tree: ast.AST) -> dict[str, str]:
    """`{name in this module: full name}` of everything that is imported, and of the built-in functions."""
    names = {name.rpartition(".")[2]: name for name in FORBIDDEN if name.startswith("builtins.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.AST, names: dict[str, str]) -> str | None:
    """`y.load` -> 'yaml.load' after `import yaml as y`; None for what is no plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = full_name(node.value, names)
        return f"{base}.{node.attr}" if base else None
    return None


# (what is found, source that has it, source that has not)
RULES = (
    ("os.system", "import os\nos.system('ls')", "import os\nos.listdir('.')"),
    ("os.system", "from os import system as s\ns('ls')", "system = print\nsystem('ls')"),
    ("os.system", "import os\nclass P:\n    def __reduce__(self):\n        return os.system, ('ls',)", "'os.system'"),
    ("os.popen", "import os as o\no.popen('ls')", "import os\nos.open('x', os.O_RDONLY)"),
    ("shell=True", "import subprocess\nsubprocess.run('ls', shell=True)", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
    ("shell=True", "from subprocess import Popen\nPopen('ls', shell=True)", "shell = True"),
    ("shell=True", "run('ls', **{'shell': True})", "{'shell': False}"),
    ("shell=flag", "import subprocess\nsubprocess.run('ls', shell=flag)", "subprocess.run(['ls'], flag)"),
    ("shell=1", "import subprocess\nsubprocess.run('ls', shell=1)", "import subprocess\nsubprocess.run(['ls'])"),
    ("subprocess.getoutput", "import subprocess\nsubprocess.getoutput('ls')", "import subprocess\nsubprocess.check_output(['ls'])"),
    ("yaml.load", "import yaml\nyaml.load(text)", "import yaml\nyaml.safe_load(text)"),
    ("yaml.load", "from yaml import load\nload(text)", "from json import load\nload(text)"),
    ("yaml.unsafe_load", "import yaml\nyaml.unsafe_load(text)", "import yaml\nyaml.safe_load_all(text)"),
    ("yaml.FullLoader", "import yaml\nloader = yaml.FullLoader(text)", "import yaml\nloader = yaml.SafeLoader(text)"),
    ("pickle.load", "import pickle\npickle.load(file)", "import pickle\npickle.dumps(value)"),
    ("pickle.loads", "from pickle import loads\nloads(content)", "from json import loads\nloads(content)"),
    ("pickle.Unpickler", "import pickle\npickle.Unpickler(file)", "import pickle\nerror = pickle.UnpicklingError"),
    ("dill.load", "import dill\ndill.load(file)", "import json\njson.load(file)"),
    ("joblib.load", "import joblib\njoblib.load('x')", "import joblib\njoblib.Parallel()"),
    ("pandas.read_pickle", "import pandas as pd\npd.read_pickle('x')", "import pandas as pd\npd.read_json('x')"),
    ("torch.load without weights_only=True", "import torch\ntorch.load('x')", "import torch\ntorch.load('x', weights_only=True)"),
    ("torch.load without weights_only=True", "import torch\ntorch.load('x', weights_only=flag)", "load('x')"),
    ("weights_only=False", "import torch\ntorch.load('x', weights_only=False)", "load('x', weights_only=True)"),
    ("trust_remote_code=True", "from_pretrained('x', trust_remote_code=True)", "from_pretrained('x', trust_remote_code=asked_for)"),
    ("trust_remote_code=True", "options = {'trust_remote_code': True}", "options = {'trust_remote_code': asked_for}"),
    ("allow_pickle=True", "import numpy as np\nnp.load('x', allow_pickle=True)", "import numpy as np\nnp.load('x', allow_pickle=False)"),
    ("bare except", "try:\n    f()\nexcept:\n    pass", "try:\n    f()\nexcept ValueError:\n    pass"),
    ("builtins.eval", "eval('1')", "model.eval()"),
    ("builtins.exec", "exec('x = 1')", "import ast\nast.literal_eval('1')"),
    ("tempfile.mktemp", "import tempfile\ntempfile.mktemp()", "import tempfile\ntempfile.mkdtemp()"),
    (".extractall()", "import tarfile\ntarfile.open('x').extractall()", "import gzip\ngzip.open('x').read()"),
    ("shutil.unpack_archive", "import shutil\nshutil.unpack_archive('x')", "import shutil\nshutil.rmtree('x')"),
    ("runpy.run_path", "import runpy\nrunpy.run_path('x.py')", "import importlib\nimportlib.import_module('x')"),
    ("os.*", "from os import *", "from os import path"),
)  # fmt: skip


class SourceGateTest(parameterized.TestCase):
    @parameterized.parameters(*RULES)
    def test_a_rule_finds_what_it_forbids_and_nothing_else(self, what, offending, harmless):
        self.assertIn(what, [offence.partition(": ")[2] for offence in offences(offending)])
        self.assertEmpty(offences(harmless))

    @parameterized.parameters(*sorted(FORBIDDEN))
    def test_a_forbidden_name_is_found_however_it_is_imported(self, name):
        module, _, function = name.rpartition(".")
        for source in (
            f"import {module}\n{name}",
            f"from {module} import {function} as f\nf",
            f"import {module} as m\nm.{function}()",
        ):
            self.assertEqual(offences(source), [f"2: {name}"])

    @parameterized.parameters(*[str(path.relative_to(ROOT)) for path in SOURCES])
    def test_the_suites_own_code_does_nothing_of_it(self, path):
        self.assertEmpty(offences_of(ROOT / path))

    def test_all_of_the_code_is_looked_at(self):
        places = {str(path.relative_to(ROOT)).partition("/")[0] for path in SOURCES}
        self.assertContainsSubset({"fine_tune_t5.py", "pre_train_t5.py", "t5suite", "benchmarks"}, places)
        self.assertGreater(len(SOURCES), 150)


if __name__ == "__main__":
    absltest.main()
