"""YAML files as plain data, with the line of whatever is wrong.

    >>> read_yaml("tasks.yaml").content
    {'mine': {'topics': {'prefix': 'topic: ', 'labels': ['sport', 'news']}}}
    >>> read_yaml("tasks.yaml").lines
    {('mine',): 1, ('mine', 'topics'): 2}

Only YAML's own types are made: a tag such as `!!python/object/apply:os.system` is an unknown one, and nothing is run.
What PyYAML takes without a word is refused here: a key that stands twice (it keeps the last value), a value that holds
itself, and anchors that unfold to more values than any configuration has ("billion laughs").
"""

from pathlib import Path
from typing import NamedTuple

from t5suite.errors import ConfigError

MAX_VALUES = 100_000
MAX_DIGITS = 1000
INTEGER_TAG = "tag:yaml.org,2002:int"


class YamlFile(NamedTuple):
    """What a file says (None for an empty one), and the line of every key of the two upper levels, by its path."""

    content: object
    lines: dict[tuple[str, ...], int]


def read_yaml(path) -> YamlFile:
    """Reads a file that holds one document.

    Raises:
      ConfigError: no such file, not UTF-8, not YAML, a tag that is none of YAML's own, a value that its tag does not
        allow, a key that stands twice, more than MAX_VALUES values, values nested too deeply.
    """
    import yaml

    text = _text(path)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return YamlFile(None, {})
        _check(path, node, {})
        return YamlFile(loader.construct_document(node), _lines(node))
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        raise ConfigError(_said(path, error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: its values are nested too deeply") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # How PyYAML 6.0.3 fails at `!!bool x`, `!!timestamp x` and 2001-99-99.
        raise ConfigError(f"{path}: a value is not what its tag or form says ({error})") from None


def _text(path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error})") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _said(path, error) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    if "'\\t'" in str(problem):
        problem = f"{problem}; indent with spaces, YAML takes no tabs"
    return f"{path}{f':{mark.line + 1}' if mark else ''}: {problem}"


def _check(path, node, sizes: dict) -> int:
    """Refuses what `read_yaml` says; returns the number of values in the node, anchors unfolded.

    Args:
      sizes: what was returned for the nodes seen so far, by id; 0 while a node is looked at.
    """
    place = f"{path}:{node.start_mark.line + 1}"
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise ConfigError(f"{place}: the value holds itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    if node.id == "scalar":
        _check_scalar(place, node)
        parts = []
    elif node.id == "mapping":
        _check_keys(path, node)
        parts = [part for pair in node.value for part in pair]
    else:
        parts = node.value
    total = 1 + sum(_check(path, part, sizes) for part in parts)
    if total > MAX_VALUES:
        raise ConfigError(f"{place}: more than {MAX_VALUES} values, once its anchors are unfolded")
    sizes[id(node)] = total
    return total


def _check_scalar(place: str, node) -> None:
    if node.tag == INTEGER_TAG and len(node.value) > MAX_DIGITS:
        raise ConfigError(f"{place}: a number of {len(node.value)} digits")
    try:
        node.value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place}: {node.value[error.start]!r} is half a surrogate pair, not a character") from None


def _check_keys(path, node) -> None:
    seen = set()
    for key, _ in _named_pairs(node):
        if key.value in seen and key.value != "<<":
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: {key.value!r} stands there for the second time")
        seen.add(key.value)


def _lines(node) -> dict[tuple[str, ...], int]:
    lines = {}
    for key, value in _named_pairs(node):
        lines[(key.value,)] = key.start_mark.line + 1
        for inner, _ in _named_pairs(value):
            lines[(key.value, inner.value)] = inner.start_mark.line + 1
    return lines


def _named_pairs(node) -> list:
    """A table's `(key, value)` nodes where the key is one word or number; none of another node."""
    return [(key, value) for key, value in node.value if key.id == "scalar"] if node.id == "mapping" else []
