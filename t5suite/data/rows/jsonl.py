"""JSON lines, plain or compressed, with the file and line of every error.

>>> read_jsonl("rows.jsonl")[0]
{'sentence': 'It is good.', 'label': 1, 'idx': 0}
"""

import contextlib
import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import whole_file
from t5suite.base.text_encodings import problem_of_rows, utf8_problem
from t5suite.base.yaml_files import unique
from t5suite.data.corpora.byte_files import BYTE_ORDER_MARK, filled_lines

# An escape that a line must contain to produce half of a surrogate pair.
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
# Names that a line must contain to have a number that JSON does not have.
NAME_OF_NUMBER = re.compile(rb"NaN|Infinity")

OVER_LINES = "; an object stands on one line, not over several: jq -c . FILE > NEW"


def read_jsonl(path, values=dict) -> list:
    """Every line of `path` as a Python value; empty lines are skipped, a byte-order mark and CRLF are accepted.

    Args:
      values: the type that every line must hold; `object` takes any JSON value.

    Raises:
      DataError: no such file, an empty file, a line (named) that is not UTF-8, not JSON (NaN is not) or not of type
        `values`, or a truncated compressed file.
    """
    read = [value for _, value in numbered_lines(path, values)]
    if not read:
        raise DataError(f"{path}: the file is empty")
    return read


def numbered_lines(path, values=dict, whole_characters: bool = False) -> Iterator[tuple[int, object]]:
    """`(line number, value)` of every line that is not empty; see `read_jsonl` and `parse_line`."""
    for number, line in filled_lines(Path(path)):
        line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if not line.strip():
            continue
        try:
            value = parse_line(line, whole_characters)
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        if not isinstance(value, values):
            raise DataError(f"{path}:{number}: expected one JSON {_name(values)} a line, found {_name(type(value))}")
        yield number, value


def parse_line(line: bytes, whole_characters: bool):
    """The value of one line of JSON.

    >>> parse_line(b'{"label": 1}', whole_characters=True)
    {'label': 1}

    Args:
      whole_characters: reject halves of surrogate pairs, which JSON can escape but no tokenizer or file accepts.

    Raises:
      ValueError: the line is not JSON; the message says why, phrased to follow `file:line: `.
    """
    try:
        value = _DECODER.decode(line.rstrip(b"\r\n").decode("utf-8"))
        if whole_characters and SURROGATE_ESCAPE.search(line):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        if NAME_OF_NUMBER.search(line):
            _check_numbers(value)
        return value
    except UnicodeDecodeError:
        raise ValueError(utf8_problem(line)) from None
    except UnicodeEncodeError as error:
        raise ValueError(f"not UTF-8 ({error.object[error.start]!r} is half a surrogate pair)") from None
    except json.JSONDecodeError as error:
        raise ValueError(problem_of_rows(line) or _syntax_problem(line, error)) from None
    except ConfigError as error:
        raise ValueError(f"key {error}; one object has each key once") from None
    except RecursionError:
        raise ValueError("not JSON (nested too deeply)") from None
    except ValueError as error:
        # A NaN, or an integer with more digits than Python's limit (4300).
        problem = "a number of more than 4300 digits" if "integer string conversion" in str(error) else error
        raise ValueError(f"not JSON ({problem})") from None


def _syntax_problem(line: bytes, error: json.JSONDecodeError) -> str:
    """What is wrong with a line that is not JSON, and where."""
    place = f"column {error.colno}"
    if error.lineno > 1:
        place = f"line {error.lineno}, {place}"
    over_lines = OVER_LINES if line.strip() in (b"{", b"[") else ""
    return f"not JSON ({error.msg} at {place}){over_lines}"


def write_jsonl(path, values: Iterable) -> int:
    """Writes one JSON value a line (gzipped if the name ends in `.gz`) and returns their number; rejects NaN.

    What JSON does not have (a date) becomes text. The file appears with all lines or not at all (`whole_file`).
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole_file(path) as temporary, temporary.open("wb") as plain, _packed(plain, path) as file:
        for value in values:
            line = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
            file.write(line.encode("utf-8") + b"\n")
            count += 1
    return count


def without_nan(value):
    """The value with every NaN and infinity replaced by None, as JSON needs it.

    >>> without_nan({"pearson": float("nan")})
    {'pearson': None}
    """
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _NamedNumber(float):
    """NaN, Infinity or -Infinity, as it stands in a line."""


def _check_numbers(value, place: str = "") -> None:
    """Refuses a NaN or infinity, by its place in the line's value: `rows[0].idx`."""
    if isinstance(value, _NamedNumber):
        prefix = f"{place.removeprefix('.')}: " if place else ""
        raise ValueError(f"{prefix}{json.dumps(value)} is not a JSON value; write null")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(item, f"{place}.{key}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_numbers(item, f"{place}[{index}]")


_DECODER = json.JSONDecoder(parse_constant=_NamedNumber, object_pairs_hook=unique)


def _packed(file, path: Path):
    if path.suffix.lower() != ".gz":
        return contextlib.nullcontext(file)
    return gzip.GzipFile(path.stem, "wb", fileobj=file, mtime=0)


def _name(types) -> str:
    types = types if isinstance(types, tuple) else (types,)
    names = {dict: "object", str: "string", list: "array", object: "value", type(None): "null"}
    return " or ".join(names.get(kind, kind.__name__) for kind in types)
