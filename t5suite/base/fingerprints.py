"""Fingerprints of a library's source, read from its files without importing it.

    >>> source = "def scaled(x, by=2):\\n    return x * by\\n"
    >>> formatted = "def scaled(x, by=2):  # a comment\\n    return (x * by)\\n"
    >>> fingerprint(formatted, "scaled") == fingerprint(source, "scaled")
    True
    >>> fingerprint(source.replace("2", "3"), "scaled") == fingerprint(source, "scaled")
    False

A fingerprint is the SHA-256 of a syntax tree without docstrings, in a form that is the same under Python 3.11, 3.12 and
3.13: `ast.dump` is not, since each version adds fields that are empty in older code. Decorators, defaults and
annotations are part of the tree; comments, docstrings and formatting are not.
"""

import ast
import functools
import hashlib
import importlib.util
from pathlib import Path

# Statements of a module or class that may hold further definitions.
BRANCHES = (ast.If, ast.Try, ast.With)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def fingerprint(source: str, qualified_name: str) -> str | None:
    """The fingerprint of a function, method, class or assigned value; None if the source does not define it.

    Args:
      qualified_name: `T5Attention.forward`, `ALL_CACHE_NAMES`.
    """
    return fingerprints(source, [qualified_name])[qualified_name]


def fingerprints(source: str, qualified_names) -> dict[str, str | None]:
    """The fingerprint of each name; the source is parsed once."""
    module = ast.parse(source)
    result = {}
    for name in qualified_names:
        node = _defined_in(module, name)
        if node is None:
            result[name] = None
        else:
            result[name] = hashlib.sha256(_normalised(node).encode()).hexdigest()
    return result


def source_file(module: str) -> Path | None:
    """The file of a module of an installed package, found without importing it; None if there is none.

    >>> source_file("transformers.models.t5.modeling_t5").name
    'modeling_t5.py'
    """
    package, _, inner_module = module.partition(".")
    try:
        spec = importlib.util.find_spec(package)  # of a package itself: this imports nothing
    except ValueError:  # a module without a spec was put into sys.modules
        return None
    if spec is None:
        return None
    if inner_module:
        return _file_below(tuple(spec.submodule_search_locations or ()), inner_module)
    if spec.origin:
        return Path(spec.origin)
    return None


@functools.cache
def _file_below(folders: tuple[str, ...], inner_module: str) -> Path | None:
    """The file of an inner module in the folders of its package; None if there is none."""
    for folder in folders:
        stem = Path(folder, *inner_module.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def _defined_in(scope: ast.AST, qualified_name: str) -> ast.AST | None:
    """The node that defines a name in a module or class: the last one, as when the code is run."""
    first, _, inner_name = qualified_name.partition(".")
    last = None
    for node in _statements(scope):
        if first in _names_defined_by(node):
            last = node
    if last is None or not inner_name:
        return last
    return _defined_in(last, inner_name)


def _statements(scope: ast.AST):
    """The statements of a scope, those of its branches included, in order."""
    for node in getattr(scope, "body", []):
        yield node
        if not isinstance(node, BRANCHES):
            continue
        yield from _statements(node)
        branches = [*getattr(node, "handlers", []), *_bodies_of(node, "orelse", "finalbody")]
        for branch in branches:
            yield from _statements(branch)


def _bodies_of(node: ast.AST, *fields: str) -> list[ast.Module]:
    return [ast.Module(body=getattr(node, field, []), type_ignores=[]) for field in fields]


def _names_defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        targets = []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _normalised(value) -> str:
    """A syntax tree as text: class names and fields that are not empty, without positions and docstrings."""
    if isinstance(value, ast.AST):
        return _normalised_node(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_normalised, value))}]"
    return repr(value)


def _normalised_node(node: ast.AST) -> str:
    fields = []
    for name, part in ast.iter_fields(node):
        if name == "body" and isinstance(node, DEFINITIONS):
            part = _without_docstring(part)
        is_empty = part is None or part == []
        if not is_empty:
            fields.append(f"{name}={_normalised(part)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    if body and _is_text(body[0]):
        return body[1:]
    return body


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone, as a docstring is."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
