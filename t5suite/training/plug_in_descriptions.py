"""What a manifest says of a function, class or object of the user's own, so that a run notices another one.

>>> describe_object(functools.partial(hide_words, rate=0.1))
{'name': 'my_data:hide_words', 'sha256': '9f86...', 'settings_sha256': '60ad...'}
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import numbers
from pathlib import Path

from t5suite.base.files import file_sha256
from t5suite.tasks.evaluate_metrics import EvaluateMetric

ITSELF = {"name": "itself"}  # in place of a value inside itself


def describe_object(plug_in) -> dict[str, str | None]:
    """A function, class or object by its name, and by the SHA-256 of its code and of the values it is declared with.

    The code is its file; in a notebook, where there is none, its own lines, or None if they are not known either. An
    object counts by its class. The values are a partial's function and arguments, a function's defaults and closure, a
    method's object, and the fields that a dataclass or named tuple is made with; functions and objects among them are
    described in the same way.

    >>> describe_object(functools.partial(hide_words, rate=0.1))
    {'name': 'my_data:hide_words', 'sha256': '9f86...', 'settings_sha256': '60ad...'}
    """
    return _describe_object(plug_in, {})


def _describe_object(value, entered: dict[int, tuple]) -> dict[str, str | None]:
    if isinstance(value, EvaluateMetric):
        described = {"name": value.name, "sha256": value.digest}
        return described if value.commit is None else {**described, "commit": value.commit}
    named = value.func if isinstance(value, functools.partial) else value
    if hasattr(named, "__qualname__"):
        described = _name_and_code(named, entered)
    else:
        described = dict(_describe(type(named), entered))
    parts = [_describe(part, entered) for part in _declared_values(value)]
    if parts:
        described["settings_sha256"] = _sha256_of(json.dumps(parts))
    return described


def _describe(value, entered: dict[int, tuple]):
    """Any value as JSON: numbers, texts and paths as they are, lists, sets and dictionaries by their elements.

    All else is described as by `describe_object`.

    Args:
      entered: by `id`, each value that was met before (which keeps its id its own) with its description: `ITSELF` while
        it is being described, so that a value that contains itself ends, and a shared one is described once.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Real):  # NumPy's
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if id(value) not in entered:
        entered[id(value)] = value, ITSELF
        entered[id(value)] = value, _describe_parts(value, entered)
    return entered[id(value)][1]


def _describe_parts(value, entered: dict[int, tuple]):
    if _is_declared_by_fields(value):
        return _describe_object(value, entered)
    if isinstance(value, (list, tuple)):
        return [_describe(part, entered) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_describe(part, entered) for part in value), key=json.dumps)
    if isinstance(value, dict):
        pairs = ([_describe(key, entered), _describe(part, entered)] for key, part in value.items())
        return sorted(pairs, key=json.dumps)
    return _describe_object(value, entered)


def _name_and_code(named, entered: dict[int, tuple]) -> dict[str, str | None]:
    """A function or class by its name and the SHA-256 of its file, else of its lines; None if neither is known."""
    name = f"{getattr(named, '__module__', None)}:{named.__qualname__}"
    try:
        return {"name": name, "sha256": file_sha256(inspect.getsourcefile(named))}
    except (TypeError, OSError):
        pass
    if not isinstance(named, type):
        lines = _lines_of_function(named)
    elif named.__module__ == "__main__":
        lines = _lines_of_class(named, entered)
    else:  # of a library in C
        lines = ""
    return {"name": name, "sha256": _sha256_of(lines) if lines else None}


def _lines_of_function(function) -> str:
    """The lines of a function; "" if they are not known, as those of the methods that a dataclass is given."""
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):
        return ""


def _lines_of_class(named: type, entered: dict[int, tuple]) -> str:
    """What a class of a notebook consists of, whose own lines Python does not find: its functions, its attributes."""
    parts = []
    for name, part in vars(named).items():
        function = getattr(part, "__func__", part)  # of a static or class method
        if inspect.isfunction(function):
            parts.append(_lines_of_function(function))
        elif not name.startswith("__"):
            parts.append(f"{name} = {json.dumps(_describe(part, entered))}\n")
    return "".join(parts)


def _declared_values(value) -> list:
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if inspect.ismethod(value) or inspect.isbuiltin(value):
        return [value.__self__]
    if inspect.isfunction(value):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()]
        return [*defaults, *map(_contents, value.__closure__ or ())]
    if not _is_declared_by_fields(value):
        return []
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
    return list(value)


def _is_declared_by_fields(value) -> bool:
    """Whether it is an object of a dataclass or a named tuple."""
    if isinstance(value, type):
        return False
    return dataclasses.is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _contents(cell):
    """What a variable of a closure holds; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
