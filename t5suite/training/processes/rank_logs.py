"""`logs/rank-N.log` in the run directory: what each rank said, with time, rank and level.

    2026-03-01 12:00:07,123 rank 1 WARNING t5suite.training.trainer: ...

Lines from before the directory is known wait for it. A run that goes on adds to its files. What ended it stands there
with its traceback, on the rank where it happened. Secrets are replaced, as everywhere.
"""

import contextlib
import logging
import os
from pathlib import Path

from t5suite.base.redaction import RedactingFormatter

FOLDER = "logs"
# Loggers that may not pass their records on to the root.
LOGGERS = ("", "t5suite", "transformers", "accelerate", "datasets", "torch", "peft", "deepspeed", "DeepSpeed")
MOST_WAITING = 1000


class RankLog(logging.Handler):
    """Collects this process's records, and writes them once it knows where to.

    Args:
      rank: this process's.
    """

    def __init__(self, rank: int):
        super().__init__(logging.INFO)
        self.setFormatter(RedactingFormatter(f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"))
        self.rank = rank
        self._waiting: list[logging.LogRecord] = []
        self._file = None

    def attach(self) -> "RankLog":
        """Listens to our loggers and the libraries'."""
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def detach(self) -> None:
        """Listens no more."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self.shut()

    def open(self, directory) -> None:
        """Writes below the run directory from here on."""
        path = Path(directory) / FOLDER / f"rank-{self.rank}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            logging.getLogger(__name__).warning("%s cannot be written: %s", path, error)
            return
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._write(record)

    def shut(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record once, on whatever way it comes."""
        if getattr(record, "in_rank_log", False):
            return
        record.in_rank_log = True
        if self._file is not None:
            self._write(record)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append(record)

    def note_end(self, error: BaseException) -> None:
        """What ended the run, for this file alone."""
        found = (type(error), error, error.__traceback__)
        level = logging.ERROR if isinstance(error, Exception) else logging.INFO
        record = logging.LogRecord("t5suite", level, __file__, 0, "the run ends here", None, found)
        self.emit(record)

    def _write(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk must not cost the run
            self._file.write(self.format(record) + "\n")


def attached() -> RankLog | None:
    """The one that listens already."""
    return next((handler for handler in logging.getLogger("t5suite").handlers if isinstance(handler, RankLog)), None)


@contextlib.contextmanager
def logging_to(directory, rank: int | None = None):
    """Within, this process's log lines go to its file; with none listening yet, one does for as long."""
    log = attached()
    own = log is None
    if own:
        log = RankLog(int(os.environ.get("RANK", "0")) if rank is None else rank).attach()
    log.open(directory)
    try:
        yield log
    except BaseException as error:
        log.note_end(error)
        raise
    finally:
        log.detach() if own else log.shut()
