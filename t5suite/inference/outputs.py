"""Where answers go: a file that a later run continues, or standard output.

    >>> output = ResumableOutput("answers.jsonl", settings)
    >>> output.open(window=512)        # so many rows are done already
    1024
    >>> output.append(lines, rows=1536, digest=digest_of_input)

Next to `answers.jsonl` is `answers.jsonl.progress.json`: the settings that the answers depend on, how many rows were
done at the last window's end, and a digest of the input up to there. A window's lines are appended and synced, then the
progress file is replaced. A resumed run counts the whole lines that the progress file has recorded, truncates the file
after the last whole window and answers the other rows: its batches, and so its bytes, equal those of an uninterrupted
run.
"""

import contextlib
import json
import logging
import os
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import named_errors, read_json, write_json
from t5suite.base.redaction import printable
from t5suite.runs.lock import is_former_self, slurm_record

logger = logging.getLogger(__name__)

PROGRESS_SUFFIX = ".progress.json"
PROGRESS_KINDS = {"format": int, "settings": dict, "rows": int, "digest": str | None, "finished": bool}
PROGRESS_FORMAT = 1
CHUNK_BYTES = 1 << 20


class ResumableOutput:
    """One file of answers, written by one process.

    Args:
      settings: plain data; a file is not continued with other settings.
      overwrite: start over and discard existing answers; a Slurm job that was requeued continues its own of the same
        settings.

    Attributes:
      recorded_rows, recorded_digest: what the progress file says about the input's first rows; 0 and None without one.
    """

    def __init__(self, path, settings: dict, overwrite: bool = False):
        self.path = Path(path)
        self.progress_path = self.path.with_name(self.path.name + PROGRESS_SUFFIX)
        self.settings = json.loads(json.dumps(settings))
        self.overwrite = overwrite
        self.recorded_rows = 0
        self.recorded_digest = None
        self._complete_rows = None
        self._continued_rows = 0
        self._file = None

    def open(self, window: int) -> int:
        """How many answered rows stay: a multiple of `window`. No file is changed yet.

        Raises:
          ConfigError: there is a file that is not an output of this command, or that has other settings.
        """
        if not self.path.exists():
            if self.progress_path.exists():
                logger.info("%s is gone: all rows are answered anew", self.path)
            return 0
        if self.overwrite and not self._is_of_this_job():
            return 0
        progress = self.read_progress()
        self._check_settings(progress["settings"])
        line_count = count_lines(self.path)
        self.recorded_rows = progress["rows"]
        self.recorded_digest = progress["digest"]
        if progress["finished"] and line_count == self.recorded_rows:
            self._complete_rows = line_count
        row_count = min(line_count, self.recorded_rows)  # further lines may be those of other settings
        self._continued_rows = row_count - row_count % window
        return self._continued_rows

    def _is_of_this_job(self) -> bool:
        """Whether this Slurm job, before it was requeued, wrote the existing answers with these settings."""
        with contextlib.suppress(ConfigError):
            progress = self.read_progress()
            return is_former_self(progress) and progress["settings"] == self.settings
        return False

    def read_progress(self) -> dict:
        """What the progress file says about the existing answers.

        Raises:
          ConfigError: there is none, or one that cannot be read.
        """
        try:
            progress = read_json(self.progress_path)
            invalid_keys = [key for key, kind in PROGRESS_KINDS.items() if not isinstance(progress[key], kind)]
            if invalid_keys:
                raise ValueError(", ".join(invalid_keys))
            if progress["format"] != PROGRESS_FORMAT:
                raise ValueError("another format")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"--output {self.path} cannot be continued: {self.progress_path.name} cannot be read "
                f"({type(error).__name__}: {error!s:.200}); give another --output, or start over with --overwrite"
            ) from None
        return progress

    def _check_settings(self, recorded_settings: dict) -> None:
        """Compares the settings with those of the existing answers.

        Raises:
          ConfigError: some differ.
        """
        differences = []
        for name in sorted({*recorded_settings, *self.settings}):
            recorded = recorded_settings.get(name)
            current = self.settings.get(name)
            if recorded != current:
                differences.append(f"{name} {recorded!r} there, {current!r} here")
        if differences:
            raise ConfigError(
                f"--output {self.path} has answers from other settings ({'; '.join(differences):.600}); give those, "
                "another --output, or start over with --overwrite"
            )

    def is_complete(self, rows: int) -> bool:
        """Whether an input with this many rows has all its answers."""
        return rows == self._complete_rows

    def check_input(self, rows: int, digest: str) -> None:
        """Compares the first rows of the input with those that the answers belong to, once they have been read.

        Raises:
          DataError: they differ.
        """
        if rows == self.recorded_rows and digest != self.recorded_digest:
            raise DataError(
                f"the first {rows} rows of --input are not those that {self.path} answers; restore them, "
                "give another --output, or start over with --overwrite"
            )

    def start_over(self) -> int:
        """Discards the existing answers, once there are new ones; returns how many stay: 0."""
        self.recorded_rows = 0
        self.recorded_digest = None
        self._complete_rows = None
        self._continued_rows = 0
        return 0

    def append(self, lines: list[dict], rows: int, digest: str) -> None:
        """Appends the answers of a window, `rows` in all; they are synced to disk when this returns."""
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
        """Closes the file, complete or not."""
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        """Opens the file and truncates it to the rows that stay; the progress file is written before any line."""
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._continued_rows:
            self._write_progress(0, None, finished=False)
        self._file = self.path.open("r+b" if self.path.exists() else "wb+")
        self._file.truncate(sum(len(self._file.readline()) for _ in range(self._continued_rows)))
        self._file.seek(0, os.SEEK_END)

    def _write_progress(self, rows: int, digest: str | None, finished: bool) -> None:
        content = {
            "format": PROGRESS_FORMAT,
            "settings": self.settings,
            "rows": rows,
            "digest": digest,
            "finished": finished,
            **slurm_record(),
        }
        write_json(self.progress_path, content)


class StreamOutput:
    """A text stream instead of a file: every window is written at once, and the output cannot be resumed."""

    recorded_rows = 0

    def __init__(self, stream):
        self.stream = stream

    def open(self, window: int) -> int:
        """No row is answered yet."""
        return 0

    def is_complete(self, rows: int) -> bool:
        """Nothing says so before all is written."""
        return False

    def check_input(self, rows: int, digest: str) -> None:
        """There are no earlier answers."""

    def append(self, lines: list[dict], rows: int, digest: str) -> None:
        """Writes the answers of a window."""
        self.stream.write(printable(b"".join(map(as_line, lines)).decode("utf-8")))
        self.stream.flush()

    def finish(self, rows: int, digest: str) -> None:
        """All is written."""

    def close(self) -> None:
        """The stream belongs to the caller."""


def as_line(answer: dict) -> bytes:
    """One line of JSON."""
    # A Parquet file's `idx` may be a date.
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def count_lines(path: Path) -> int:
    """A file's lines; a partial last line does not count."""
    line_count = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            line_count += chunk.count(b"\n")
    return line_count
