"""YAML and JSON files as plain data, with the line of every error.

    >>> read_yaml("tasks.yaml").content
    {'mine': {'topics': {'prefix': 'topic: ', 'labels': ['sport', 'news']}}}
    >>> read_yaml("tasks.yaml").lines
    {('mine',): 1, ('mine', 'topics'): 2}

Only YAML's own types are built: a tag such as `!!python/object/apply:os.system` is unknown, and no code is run.
What PyYAML accepts silently is rejected here: a duplicate key (it keeps the last value), a value that contains
itself, anchors that expand to more values than any configuration has ("billion laughs"), and numbers that are not
what they look like: `010` is 8 in YAML 1.1, `10:12` is 612.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import first_repeated

MAX_VALUES = 100_000
MAX_DIGITS = 1000
INTEGER_TAG = "tag:yaml.org,2002:int"
NUMBER_TAGS = (INTEGER_TAG, "tag:yaml.org,2002:float")


class YamlFile(NamedTuple):
    """A file's content (None if it is empty), and the line of every key and item, by its path."""

    content: object
    lines: dict[tuple, int]


def read_yaml(path) -> YamlFile:
    """Reads a file that holds one document.

    Raises:
      ConfigError: no such file, not UTF-8, not YAML, a tag that is not one of YAML's own, a value that its tag does not
        allow, a duplicate key, more than MAX_VALUES values, values nested too deeply.
    """
    import yaml

    text = _read_text(path)
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
        raise ConfigError(_problem_of_form(path, error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: its values are nested too deeply") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # How PyYAML 6.0.3 fails at `!!bool x`, `!!timestamp x` and 2001-99-99.
        raise ConfigError(f"{path}: a value is not what its tag or form says ({error})") from None


def _read_text(path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason})") from None


def _problem_of_form(path, error) -> str:
    """PyYAML's error in a line, with the line of the file if it is known."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    place = str(path)
    if mark:
        place += f":{mark.line + 1}"
    if "'\\t'" in str(problem):
        return f"{place}: {problem}; indent with spaces, YAML takes no tabs"
    return f"{place}: {problem}"


def read_json_text(text: str | bytes, place) -> object:
    """JSON as plain data.

    Args:
      place: where the text is from, for messages; the path, if it is a file.

    Raises:
      ConfigError: it is not JSON, or one of its tables has a duplicate name.
    """
    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        if isinstance(place, Path) or error.lineno > 1:
            place = f"{place}:{error.lineno}"
        raise ConfigError(f"{place}: not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError) and isinstance(place, Path):
            _find_repeat(text, place)
        raise ConfigError(f"{place}: {error}") from None


def unique(pairs: list[tuple]) -> dict:
    """A JSON table, for `object_pairs_hook`.

    Raises:
      ConfigError: a name is in it twice.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        repeated = first_repeated(name for name, _ in pairs)
        raise ConfigError(f"{repeated!r:.100} is given for the second time")
    return table


def _find_repeat(text: str | bytes, place) -> None:
    """Raises an error with the line of a duplicate name in a JSON file, which YAML's reader, unlike JSON's, knows."""
    import yaml

    if isinstance(text, bytes):
        text = text.decode("utf-8-sig", "replace")
    try:
        node = yaml.compose(text.replace("\t", " "), yaml.SafeLoader)
        _check(place, node, {})
    except yaml.YAMLError:  # not all of JSON is YAML: the message has no line then
        return


def _check(path, node, sizes: dict) -> int:
    """Rejects what `read_yaml` lists; returns the number of values in the node, anchors expanded.

    Args:
      sizes: what was returned for the nodes seen so far, by id; 0 while a node is being checked.
    """
    place = f"{path}:{node.start_mark.line + 1}"
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise ConfigError(f"{place}: the value contains itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    _check_keys(path, node)
    if node.id == "scalar":
        _check_scalar(place, node)
    total = 1 + sum(_check(path, part, sizes) for part in _parts_of(node))
    if total > MAX_VALUES:
        raise ConfigError(f"{place}: more than {MAX_VALUES} values, once its anchors are expanded")
    sizes[id(node)] = total
    return total


def _parts_of(node) -> list:
    """The nodes of a list, or the keys and values of a table; none of a word or number."""
    if node.id == "scalar":
        return []
    if node.id == "sequence":
        return node.value
    parts = []
    for pair in node.value:
        parts += pair
    return parts


def _check_keys(path, node) -> None:
    """Refuses a key that stands twice in a table."""
    names = set()
    for key, _ in _named_pairs(node):
        if key.value in names and key.value != "<<":
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: {key.value!r} is given for the second time")
        names.add(key.value)


def _check_scalar(place: str, node) -> None:
    if node.tag == INTEGER_TAG and len(node.value) > MAX_DIGITS:
        raise ConfigError(f"{place}: a number of {len(node.value)} digits")
    if node.style is None and _is_misread(node):
        raise ConfigError(
            f"{place}: {node.value}: YAML reads a number with a leading 0 as octal, one with a colon in base 60; write "
            f"a plain number, or quote it: '{node.value}'"
        )
    try:
        node.value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place}: {node.value[error.start]!r} is half a surrogate pair, not a character") from None


def _is_misread(node) -> bool:
    """Whether YAML 1.1 takes a number for another one than it looks like."""
    if node.tag in NUMBER_TAGS and ":" in node.value:
        return True
    return re.fullmatch(r"[-+]?0[0-9_]+", node.value) is not None


def _lines(node, keys: tuple = ()) -> dict[tuple, int]:
    entries = [(key.value, key, value) for key, value in _named_pairs(node)]
    if node.id == "sequence":
        entries = [(i, item, item) for i, item in enumerate(node.value)]
    lines = {}
    for name, place, value in entries:
        lines[(*keys, name)] = place.start_mark.line + 1
        lines |= _lines(value, (*keys, name))
    return lines


def _named_pairs(node) -> list:
    """A table's `(key, value)` nodes whose key is one word or number; empty for other nodes."""
    if node.id != "mapping":
        return []
    return [(key, value) for key, value in node.value if key.id == "scalar"]
