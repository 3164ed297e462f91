"""A file of answers that grows window by window, and goes on where a stopped run left it.

    >>> output = ResumableOutput("answers.jsonl", settings)
    >>> output.open(window=512)        # so many rows are done already
    1024
    >>> output.append(lines, rows=1536, digest=digest_of_input)

Beside `answers.jsonl` lies `answers.jsonl.progress.json`: the settings that the answers depend on, how many rows were
done at the last window's end, and a digest of the input up to there. A window's lines are appended and brought to the
disk, then the progress file is replaced. A run that goes on counts whole lines, cuts what stands behind the last whole
window (a torn line, half a window) and does those rows again: its batches, and so its bytes, are then those of an
unbroken run.
"""

import json
import os
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import named_errors
from t5suite.base.redaction import printable
from t5suite.runs.directory import read_json, write_json

PROGRESS_SUFFIX = ".progress.json"
FORMAT = 1
CHUNK_BYTES = 1 << 20


class ResumableOutput:
    """One file of answers, written by one process.

    Args:
      settings: plain data; a file is not continued with other settings.
      overwrite: begin anew, whatever is there.

    Attributes:
      known_rows, known_digest: what the progress file says of the input's first rows; 0 where it says nothing.
    """

    def __init__(self, path, settings: dict, overwrite: bool = False):
        self.path = Path(path)
        self.progress_path = self.path.with_name(self.path.name + PROGRESS_SUFFIX)
        self.settings = json.loads(json.dumps(settings))
        self.overwrite = overwrite
        self.known_rows, self.known_digest = 0, None
        self._complete_rows, self._kept, self._file = None, 0, None

    def open(self, window: int) -> int:
        """How many rows are done and stay: a multiple of `window`. Nothing is changed yet.

        Raises:
          ConfigError: there is a file that is no output of this command, or one of other settings.
        """
        if self.overwrite or not (self.path.exists() or self.progress_path.exists()):
            return 0
        progress = self.read_progress()
        self._check_settings(progress["settings"])
        rows = count_lines(self.path) if self.path.exists() else 0
        self.known_rows, self.known_digest = progress["rows"], progress["digest"]
        if progress["finished"] and rows == progress["rows"]:
            self._complete_rows = rows
        self._kept = rows - rows % window
        return self._kept

    def is_complete(self, rows: int) -> bool:
        """Whether an input of so many rows has all its answers already."""
        return rows == self._complete_rows

    def check_input(self, rows: int, digest: str) -> None:
        """Compares the first rows of the input with those that the answers belong to, once they have been read.

        Raises:
          DataError: they are others.
        """
        if rows == self.known_rows and digest != self.known_digest:
            raise DataError(
                f"the first {rows} rows of --input are not those that {self.path} has the answers of; restore them, "
                "give another --output, or begin anew with --overwrite"
            )

    def append(self, lines: list[dict], rows: int, digest: str) -> None:
        """Adds the answers of a window; they are on the disk when this returns.

        Args:
          rows: how many rows are done now.
          digest: of the input up to there.
        """
        self._begin()
        with named_errors(self.path):
            self._file.write(b"".join(map(as_line, lines)))
            self._file.flush()
            os.fsync(self._file.fileno())
        self._write_progress(rows, digest, finished=False)

    def finish(self, rows: int, digest: str) -> None:
        """Notes that the answers are complete."""
        self._begin()
        self._write_progress(rows, digest, finished=True)

    def close(self) -> None:
        """Closes the file, as far as it has come."""
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        """Cuts what does not stay, and opens the file; the progress file is there before any line is."""
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._kept:
            self._write_progress(0, None, finished=False)
        self._file = self.path.open("r+b" if self.path.exists() else "wb")
        self._file.truncate(size_of_lines(self.path, self._kept))
        self._file.seek(0, os.SEEK_END)

    def _check_settings(self, there: dict) -> None:
        names = sorted({*there, *self.settings})
        differing = [name for name in names if there.get(name) != self.settings.get(name)]
        if differing:
            shown = "; ".join(
                f"{name} {there.get(name)!r} there, {self.settings.get(name)!r} here" for name in differing
            )
            raise ConfigError(
                f"--output {self.path} holds answers of other settings ({shown:.600}); give those, another --output, "
                "or begin anew with --overwrite"
            )

    def read_progress(self) -> dict:
        """What the progress file says of the answers that are there.

        Raises:
          ConfigError: there is none, or one that cannot be read.
        """
        cures = "give another --output, or begin anew with --overwrite"
        if not self.progress_path.is_file():
            raise ConfigError(
                f"--output {self.path} is there, but no {self.progress_path.name} to continue it by; {cures}"
            )
        try:
            progress = read_json(self.progress_path)
            kinds = {"format": int, "settings": dict, "rows": int, "digest": str | None, "finished": bool}
            wrong = [key for key, kind in kinds.items() if not isinstance(progress[key], kind)]
            if wrong or progress["format"] != FORMAT:
                raise ValueError(f"{', '.join(wrong) or 'another format'}")
        except (OSError, ValueError, LookupError, TypeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self.progress_path} cannot be read ({what:.200}); {cures}") from None
        return progress

    def _write_progress(self, rows: int, digest: str | None, finished: bool) -> None:
        content = {"format": FORMAT, "settings": self.settings, "rows": rows, "digest": digest, "finished": finished}
        write_json(self.progress_path, content)


class StreamOutput:
    """A stream of text in the place of a file: every window is written as it comes, and nothing can be continued."""

    known_rows = 0

    def __init__(self, stream):
        self.stream = stream

    def open(self, window: int) -> int:
        """Nothing is done yet."""
        return 0

    def is_complete(self, rows: int) -> bool:
        """Never before it is written."""
        return False

    def append(self, lines: list[dict], rows: int, digest: str) -> None:
        """Writes the answers of a window."""
        self.stream.write(printable(b"".join(map(as_line, lines)).decode("utf-8")))
        self.stream.flush()

    def finish(self, rows: int, digest: str) -> None:
        """All is written."""

    def close(self) -> None:
        """The stream stays open."""


def as_line(answer: dict) -> bytes:
    """One line of JSON."""
    return json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def count_lines(path: Path) -> int:
    """Lines that end in a line feed; a torn last one does not count."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(CHUNK_BYTES), b""))


def size_of_lines(path: Path, lines: int) -> int:
    """The bytes of a file's first lines."""
    with path.open("rb") as file:
        return sum(len(file.readline()) for _ in range(lines))
