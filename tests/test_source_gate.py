"""What the suite's own code never does (law 8): ruff's rules in pyproject.toml, and arguments that ruff does not know."""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import absltest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for place in ("fine_tune_t5.py", "pre_train_t5.py", "t5suite", "benchmarks", "faults", "tools")
    for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
)
# Arguments that no call may have with another constant.
ARGUMENTS = {"shell": False, "trust_remote_code": False, "allow_pickle": False, "weights_only": True}
# One line a rule; ruff must find something in each of them.
OFFENDING = """os.system("ls")
os.popen("ls")
subprocess.run("ls", shell=True)
subprocess.getoutput("ls")
yaml.load(text, yaml.Loader)
yaml.unsafe_load(text)
pickle.load(file)
pickle.loads(text)
pickle.Unpickler(file)
dill.loads(text)
pandas.read_pickle(file)
joblib.load(file)
marshal.loads(text)
torch.jit.load(file)
torch.hub.load(file)
runpy.run_path(file)
shutil.unpack_archive(file)
tarfile.open(file).extractall()
tempfile.mktemp()
eval(text)
exec(text)"""
MODULES = (
    "dill joblib marshal os pandas pickle runpy shutil subprocess tarfile tempfile torch.hub torch.jit yaml".split()
)


def offences(source: str) -> list[str]:
    """`line: argument=value` of every forbidden argument, in calls and in dicts of them; torch.load needs its own.

    >>> offences("np.load(path, allow_pickle=True)")
    ['1: allow_pickle=True']
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if ast.unparse(node.func) == "torch.load" and "weights_only" not in given:
                found.append((node.lineno, "torch.load without weights_only=True"))
        elif isinstance(node, ast.Dict):
            given = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
        else:
            continue
        for name, wanted in ARGUMENTS.items():
            value = given.get(name)
            if isinstance(value, ast.Constant) and value.value is not wanted:
                found.append((node.lineno, f"{name}={value.value}"))
    return [f"{line}: {what}" for line, what in sorted(found)]


def ruff(path, *flags) -> str:
    return subprocess.run(
        [Path(sys.executable).with_name("ruff"), "check", "--no-cache", "--output-format", "concise", *flags, path],
        capture_output=True, text=True, cwd=ROOT,
    ).stdout  # fmt: skip


class SourceGateTest(absltest.TestCase):
    def test_the_suites_own_code_passes_no_forbidden_argument(self):
        self.assertGreater(len(SOURCES), 150)
        for path in SOURCES:
            source = path.read_text(encoding="utf-8")
            if any(name in source for name in (*ARGUMENTS, "torch.load")):
                self.assertEmpty(offences(source), path)

    @pytest.mark.slow
    def test_names_that_are_imported_from_the_suite_are_there(self):
        beside = (path for path in SOURCES if not path.is_relative_to(ROOT / "t5suite"))
        nodes = (node for path in beside for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = {ast.unparse(node) for node in nodes if isinstance(node, ast.ImportFrom)}
        for line in sorted(line for line in imports if line.startswith("from t5suite")):
            exec(line)

    def test_every_forbidden_argument_is_found(self):
        for source in (
            "subprocess.run('ls', shell=True)", "subprocess.run('ls', shell=1)", "run('ls', **{'shell': True})",
            "torch.load('x')", "torch.load('x', weights_only=False)", "np.load('x', allow_pickle=True)",
            "from_pretrained('x', trust_remote_code=True)", "options = {'trust_remote_code': True}",
        ):  # fmt: skip
            self.assertLen(offences(source), 1, source)
        self.assertEmpty(offences("torch.load('x', weights_only=True); f(trust_remote_code=asked_for, shell=False)"))

    def test_ruff_finds_every_forbidden_function_by_the_projects_settings(self):
        lines = [*(f"import {module}" for module in MODULES), "", *OFFENDING.splitlines()]
        path = Path(tempfile.mkdtemp()) / "offending.py"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = {
            int(line.split(":")[1])
            for line in ruff(path, "--config", "pyproject.toml").splitlines()
            if " S" in line or " TID" in line
        }
        first = lines.index("") + 2
        self.assertEqual({lines[n - 1] for n in range(first, len(lines) + 1) if n not in found}, set())
