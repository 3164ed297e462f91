"""Bytes that are no UTF-8 text: what they seem to be, and how to convert them.

    >>> utf8_problem("Café".encode("cp1252"))
    "not UTF-8 (byte 3 is 0xe9): it seems to be cp1252 (Windows); convert it: iconv -f CP1252 -t UTF-8 FILE > NEW"
    >>> utf8_problem("Café".encode("utf-8")) is None
    True

Only a line is examined, so the words say "seems".
"""

import itertools
import re
import unicodedata

PICKLE = "a Python pickle, which is never loaded: save its rows as JSON lines or Parquet"
# What a file of another kind begins with. Letters alone may begin a text, too: the bytes after them decide.
OTHER_FILES = {
    b"\x1f\x8b": "a gzip file: its name should end in .gz",
    b"\x28\xb5\x2f\xfd": "a Zstandard file: its name should end in .zst",
    b"PAR1": "a Parquet file: its name should end in .parquet",
    b"PK\x03\x04": "a zip file, as Excel's .xlsx is: save its sheet as CSV in UTF-8, or unpack it",
    b"%PDF": "a PDF document: export its text",
    b"BZh": "a bzip2 file: unpack it",
    b"\xfd7zXZ": "an xz file: unpack it",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it",
    b"\xd0\xcf\x11\xe0": "an old Excel or Word file: save its sheet as CSV in UTF-8, its text as .txt",
    b"SQLite format 3\0": "an SQLite database: export its table as CSV",
    b"\x80\x02": PICKLE, b"\x80\x03": PICKLE, b"\x80\x04": PICKLE, b"\x80\x05": PICKLE,
    b"\x93NUMPY": "a NumPy array: save its rows as JSON lines or Parquet",
    b"ARROW1": "an Arrow (Feather) file: save its table as Parquet",
    b"\x89HDF": "an HDF5 file: save its table as Parquet",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\x7fELF": "a program",
}  # fmt: skip
# What no text of any use begins with, though all of it may be letters.
OTHER_TEXTS = {
    b"%PDF-": "a PDF document: export its text",
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS: get the file itself by git lfs pull",
}
WEB_PAGE = re.compile(rb"\s*<(!doctype html|html)\b", re.IGNORECASE)
# A block of the disk that was never written is NUL bytes in a row.
HOLE = bytes(4)
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Of UTF-16 text in Latin letters nearly every second byte is NUL; of a damaged file there are long runs of them.
SHARE_OF_NUL = 0.3
CONVERTED = "convert it: iconv -f {} -t UTF-8 FILE > NEW"


def utf8_problem(line: bytes) -> str | None:
    """Why a line is not UTF-8 text, phrased to follow `file:line: `; None if it is."""
    description = _other_file(line)
    if description is not None:
        return f"not text, but {description}"
    if line.startswith(UTF16_MARKS):
        return f"UTF-16, not UTF-8; {CONVERTED.format('UTF-16')}"
    if b"\0" in line:
        return _problem_of_nul_bytes(line)
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}){_other_encoding(line)}"
    return None


def _problem_of_nul_bytes(line: bytes) -> str:
    form = utf16_form(line)
    if form is not None:
        return f"it seems to be UTF-16, not UTF-8; {CONVERTED.format(form)}"
    if HOLE in line:
        return "NUL bytes: a file with a hole in it, as an interrupted copy leaves it; copy it again"
    return "NUL bytes: not a text, or a damaged one"


def other_kind(line: bytes) -> str | None:
    """What a file is that begins with this line, and what to do with it; None if it may be a text.

    >>> other_kind(b"%PDF-1.4")
    'a PDF document: export its text'
    """
    for start, description in OTHER_TEXTS.items():
        if line.startswith(start):
            return description
    return _other_file(line)


def problem_of_rows(line: bytes) -> str | None:
    """Why a file that begins with this line holds no rows, phrased to follow `file:1: `; None if it may hold some."""
    if WEB_PAGE.match(line):
        return "not rows, but a web page, as a server sends it in place of a file (a log-in?): download the file again"
    description = other_kind(line)
    if description is None:
        return utf8_problem(line)
    return f"not text, but {description}"


def _other_file(line: bytes) -> str | None:
    for start, description in OTHER_FILES.items():
        if line.startswith(start) and not (start.isascii() and _is_readable(line)):
            return description
    return None


def _is_readable(line: bytes) -> bool:
    """Whether a line is UTF-8 without control characters."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(unicodedata.category(character) == "Cc" for character in text.strip("\r\n").replace("\t", " "))


def utf16_form(line: bytes) -> str | None:
    """The form of a file whose first line has nearly all its NUL bytes at odd or at even places; None: elsewhere.

    >>> utf16_form("text".encode("utf-16-le"))
    'UTF-16LE'
    """
    even = line[0::2].count(0)
    odd = line[1::2].count(0)
    if max(even, odd) < SHARE_OF_NUL * len(line) or min(even, odd) > 0.1 * max(even, odd):
        return None
    if odd > even:
        return "UTF-16LE"
    return "UTF-16BE"


def _other_encoding(line: bytes) -> str:
    """The end of the message: a one-byte encoding of Windows, UTF-8 with damage, or unknown."""
    replaced = line.decode("utf-8", "replace")
    damage_count = replaced.count("\ufffd")
    count = sum(not character.isascii() for character in replaced)
    if count > 2 * damage_count:
        return ": other characters of the line are UTF-8, so the file is damaged there, or two files were joined"
    try:
        text = line.decode("cp1252")
    except UnicodeDecodeError:
        return ": an unknown encoding; convert it to UTF-8"
    places = [place for place, character in enumerate(text) if not character.isascii()]
    neighbour_count = sum(second - first == 1 for first, second in itertools.pairwise(places))
    if neighbour_count <= len(places) // 4:
        return f": it seems to be cp1252 (Windows); {CONVERTED.format('CP1252')}"
    return ": an unknown encoding of one or two bytes a character; convert it to UTF-8"
