"""Tests come through the contract, so that code can move: few test files name a module of the suite's inside.

The contract: `t5suite`'s own names, `t5suite.testing`, the modules below, the two scripts and the commands. A test of an
inner module stands beside that module (CONTRIBUTING.md).
"""

import ast
import re
from pathlib import Path

from absl.testing import parameterized

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = {
    "t5suite",
    "t5suite.data",
    "t5suite.tasks",
    "t5suite.constants",
    "t5suite.testing",
    "t5suite.data.mixtures",
    "t5suite.data.objectives",
    "t5suite.tasks.metrics",
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "t5suite").rglob("*.py")
}
DOTTED_NAME = re.compile(r"\bt5suite(?:\.\w+)+")
FROM_IMPORT = re.compile(r"^\s*from (t5suite[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
MOST_FILES = 45


def module_of(dotted_name: str) -> str | None:
    """The module that a dotted name begins with: of `t5suite.runs.lock.RunLock`, `t5suite.runs.lock`."""
    parts = dotted_name.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in MODULES:
            return name
    return None


def dotted_names(source: str):
    """Every dotted name of the package in imports, attributes and strings (patches, code of child processes)."""
    yield from DOTTED_NAME.findall(source)
    for package, names_in_parentheses, names_of_line in FROM_IMPORT.findall(source):
        for name in re.findall(r"\w+", names_in_parentheses or names_of_line):
            yield f"{package}.{name}"


def inner_modules(source: str) -> set[str]:
    """The modules outside the contract that a test file names."""
    modules = {module_of(name) for name in dotted_names(source)} - {None} - CONTRACT
    # `from t5suite.runs import lock` names the package, too.
    return {module for module in modules if not any(other.startswith(f"{module}.") for other in modules)}


class InnerModulesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("from t5suite.runs.lock import RunLock", {"t5suite.runs.lock"}),
        ("from t5suite.runs import lock", {"t5suite.runs.lock"}),
        ("import t5suite.runs.lock", {"t5suite.runs.lock"}),
        ("import t5suite\nt5suite.runs.lock.RunLock", {"t5suite.runs.lock"}),
        ("mock.patch('t5suite.runs.lock.RunLock')", {"t5suite.runs.lock"}),
        ("CODE = '''\nfrom t5suite.cli import main\n'''", {"t5suite.cli"}),
        ("from t5suite import FineTuner, testing\nfrom t5suite.constants import DATASET_VALS", set()),
        ("from t5suite.data import objectives\nlogger = 'python -m t5suite'", set()),
    )
    def test_what_counts(self, source, modules):
        self.assertEqual(inner_modules(source), modules)

    def test_few_test_files_name_inner_modules(self):
        files = {path.name: inner_modules(path.read_text(encoding="utf-8")) for path in ROOT.glob("tests/test_*.py")}
        del files[Path(__file__).name]
        with_inner_modules = sorted(name for name, modules in files.items() if modules)
        self.assertLessEqual(len(with_inner_modules), MOST_FILES, with_inner_modules)


class MarksTest(parameterized.TestCase):
    def test_marks_are_of_the_test_and_not_of_its_list_of_cases(self):
        """absl makes the cases of the function below its decorator: a mark above it is lost, and nothing says so."""
        lost_marks = []
        for path in sorted((ROOT / "tests").glob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                    of_cases = [i for i, name in enumerate(decorators) if name.startswith("parameterized.")]
                    above = decorators[: max(of_cases, default=0)]
                    lost_marks += [f"{path.name}: {node.name}" for name in above if name.startswith("pytest.mark")]
        self.assertEmpty(lost_marks)
