"""Places of the code in proportion, and a fault for each of them.

    >>> [fault.change for fault in draw_faults(root, count=2, seed="5a53234c")]
    ['if loss > limit:  ->  if loss >= limit:', 'rank = rank + 1  ->  rank = rank - 1']

A place is a statement. Faults come from mutmut's operators (a comparison, a number, an argument, a keyword, ...) and
from three more: a statement that is left out, a condition that is turned round, a result that is None. Not drawn:
strings, annotations, imports, decorators, defaults of arguments, what is logged or raised.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst import matchers
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

SOURCES = ("t5suite", "fine_tune_t5.py", "pre_train_t5.py")
COMPOUND = (cst.If, cst.While, cst.For, cst.With, cst.Try, cst.FunctionDef, cst.ClassDef)
STATEMENTS = (cst.SimpleStatementLine, *COMPOUND)
LEFT_OUT = (
    cst.BaseString, cst.Annotation, cst.Import, cst.ImportFrom, cst.Decorator, cst.Parameters, cst.Raise, cst.Assert,
)  # fmt: skip
LOGGING_METHODS = ("debug", "info", "warning", "error", "exception", "log", "warn", "print")


@dataclass(frozen=True)
class Fault:
    """One change of one statement.

    Attributes:
      path: the file, below the root.
      line: the first line of the statement.
      last_line: the last line of what is changed in it.
      change: the lines that differ, before and after.
      code: the whole file with the fault in it.
    """

    path: str
    line: int
    last_line: int
    change: str
    code: str


@dataclass(frozen=True)
class Change:
    """A node of a file with its last line, another that may stand in its place, and the operator that made it."""

    kind: str
    last_line: int
    node: cst.CSTNode
    replacement: cst.CSTNode


def draw_faults(root: Path, count: int, seed: str) -> list[Fault]:
    """As many faults, each at a statement of its own, every statement of the code with the same chance."""
    places = []
    for path in source_files(root):
        module = MetadataWrapper(cst.parse_module((root / path).read_text(encoding="utf-8")))
        places += [(path, module, line, changes) for line, changes in changes_by_line(module).items()]
    generator = random.Random(seed)
    generator.shuffle(places)
    faults = []
    for path, module, line, changes in places:
        if len(faults) == count:
            break
        fault = make_fault(path, module, line, shuffle_by_kind(changes, generator))
        if fault is not None:
            faults.append(fault)
    return faults


def source_files(root: Path) -> list[str]:
    """The code that faults are drawn from, below `root`, in order."""
    files = []
    for name in SOURCES:
        path = root / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [str(file.relative_to(root)) for file in files]


def shuffle_by_kind(changes: list[Change], generator: random.Random) -> list[Change]:
    """Kinds in random order, and the changes of each: a call with ten arguments would leave little room for others."""
    kinds = sorted({change.kind for change in changes})
    generator.shuffle(kinds)
    shuffled = generator.sample(changes, len(changes))
    return sorted(shuffled, key=lambda change: kinds.index(change.kind))


def changes_by_line(module: MetadataWrapper) -> dict[int, list[Change]]:
    """The possible changes of each statement, by the statement's first line."""
    visitor = _Changes()
    module.visit(visitor)
    return visitor.changes


def make_fault(path: str, module: MetadataWrapper, line: int, changes) -> Fault | None:
    """The first of these changes that gives another program that compiles; None if none does."""
    before = module.module.code
    for change in changes:
        after = module.module.deep_replace(change.node, change.replacement).code
        if after != before and compiles(after):
            return Fault(path, line, change.last_line, describe_change(before, after), after)
    return None


def compiles(code: str) -> bool:
    """Whether Python takes it: `return` in place of `break` may stand outside of a function."""
    try:
        compile(code, "fault", "exec")
    except SyntaxError:
        return False
    return True


def describe_change(before: str, after: str) -> str:
    """The lines that differ, `before  ->  after`, in one line."""
    old_lines, new_lines = before.splitlines(), after.splitlines()
    start = 0
    while old_lines[start : start + 1] == new_lines[start : start + 1]:
        start += 1
    end = 0
    while end < min(len(old_lines), len(new_lines)) - start and old_lines[-1 - end] == new_lines[-1 - end]:
        end += 1
    old_text, new_text = (
        " ".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (old_lines, new_lines)
    )
    return f"{old_text}  ->  {new_text or '(left out)'}"


class _Changes(cst.CSTVisitor):
    """Collects the changes of every statement."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self):
        super().__init__()
        self.changes: dict[int, list[Change]] = {}
        self._lines: list[int] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, LEFT_OUT) or _is_logging(node):
            return False
        if isinstance(node, STATEMENTS):
            self._lines.append(self.get_metadata(PositionProvider, node).start.line)
        if self._lines:
            line = self._lines[-1]
            last_line = line if isinstance(node, COMPOUND) else self._last_line(node, line)
            for kind, replacement in replacements(node):
                self.changes.setdefault(line, []).append(Change(kind, last_line, node, replacement))
        return True

    def _last_line(self, node: cst.CSTNode, default: int) -> int:
        position = self.get_metadata(PositionProvider, node, None)  # libcst gives none to some tokens
        return position.end.line if position else default

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, STATEMENTS):
            self._lines.pop()


def replacements(node: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    """What may stand in the place of a node, `(kind, other node)`."""
    for node_type, operator in mutation_operators:
        if isinstance(node, node_type):
            for replacement in operator(node):
                yield operator.__name__, replacement
    if matchers.matches(node, matchers.Expr(value=matchers.Call())):
        yield "statement left out", cst.Pass()
    if isinstance(node, (cst.If, cst.While, cst.IfExp)):
        condition = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield "condition turned round", node.with_changes(test=cst.UnaryOperation(cst.Not(), condition))
    if isinstance(node, cst.Return) and node.value is not None:
        nothing = node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))
        yield "result is None", nothing


def _is_logging(node: cst.CSTNode) -> bool:
    """A statement that only logs, warns or prints: `logger.warning(...)`."""
    if not matchers.matches(node, matchers.Expr(value=matchers.Call())):
        return False
    function = node.value.func
    if isinstance(function, cst.Attribute):
        owner = cst.Module([]).code_for_node(function.value)
        return function.attr.value in LOGGING_METHODS and owner in ("logger", "logging", "warnings", "log")
    return isinstance(function, cst.Name) and function.value in LOGGING_METHODS
