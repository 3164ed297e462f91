"""The processes of a run: how they reach agreement, and where each one logs.

    >>> ranks = Ranks.of_process()
    >>> ranks.any(True)                       # one rank is enough
    True
    >>> ranks.gather({"rank": ranks.rank})
    [{'rank': 0}, {'rank': 1}]

All communication uses gloo between CPUs: agreeing on a flag must not wait for pending GPU work.

`logs/rank-N.log` in the run directory contains each rank's log records, and the traceback of what ended it. Records are
buffered until the directory is known; secrets are redacted.
"""

import contextlib
import logging
import logging.handlers
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from t5suite.base.errors import ConfigError, TemporaryError
from t5suite.base.redaction import RedactingFormatter

# For waits that take as long as the text is large; a rank that dies ends them (`lost_ranks`).
NO_TIME_LIMIT = timedelta(days=365)


def check_meeting_place() -> None:
    """Refuses MASTER_PORT=0 with several ranks: nobody listens there, and torch 2.13 would wait for half an hour.

    Raises:
      ConfigError: names the flags that choose a free port.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("MASTER_PORT") == "0":
        raise ConfigError(
            "MASTER_PORT is 0: torchrun does not choose a free port for --master_port 0; on one node start with "
            "torchrun --standalone, on several name a port that is free on the first one"
        )


@dataclass
class Ranks:
    """One rank's view of all ranks; with one process, collectives return at once.

    Attributes:
      group: the gloo process group used for communication.
    """

    rank: int = 0
    world_size: int = 1
    group: Any = field(default=None, repr=False)

    @classmethod
    def of_process(cls, time_limit: timedelta | None = None) -> "Ranks":
        """The ranks of this process's default group, if there is one. A collective call.

        Args:
          time_limit: how long a rank waits for the others; None: half an hour. A default group of gloo has its own.
        """
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls()
        group = dist.group.WORLD
        if dist.get_backend() != "gloo":
            group = dist.new_group(backend="gloo", timeout=time_limit)
        return cls(dist.get_rank(), dist.get_world_size(), group)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Each number summed over the ranks, in float64."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank."""
        return self.sum([float(flag)])[0] > 0

    def gather(self, value) -> list:
        """Every rank's value, on every rank, in rank order; values are pickled, so they must be plain data."""
        if self.world_size == 1:
            return [value]
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        self.sum([0.0])

    def wait_without_limit(self) -> None:
        """Waits for all ranks without a timeout; other calls have the group's."""
        if self.world_size > 1:
            dist.barrier(group=self.group, timeout=NO_TIME_LIMIT)

    @contextlib.contextmanager
    def main_first(self):
        """Rank 0 goes through the block first, then the others, which find what it has made; all leave together.

        >>> with ranks.main_first():
        ...     store = build_corpus(files, directory, tokenizer)

        Nobody's wait has a time limit.
        """
        if not self.is_main:
            self.wait_without_limit()
        try:
            yield
        finally:
            if self.is_main:
                self.wait_without_limit()
        self.wait_without_limit()

    def together(self, function: Callable, *args, **kwargs):
        """Calls `function` on rank 0 and broadcasts its result; every rank raises the error that it raises there.

        >>> run = ranks.together(open_run, output_dir, settings)
        """
        return self._shared(*self._outcome_on_main(function, *args, **kwargs))

    def together_without_limit(self, function: Callable, *args, **kwargs):
        """As `together`; the other ranks wait as long as it takes."""
        outcome = self._outcome_on_main(function, *args, **kwargs)
        self.wait_without_limit()
        return self._shared(*outcome)

    def _outcome_on_main(self, function: Callable, *args, **kwargs) -> tuple:
        """`(value, error)` of a call on rank 0; other ranks call nothing."""
        if not self.is_main:
            return None, None
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            return None, error

    def _shared(self, value, error):
        """Rank 0's value on every rank, or its error, raised there."""
        if self.world_size > 1:
            box = [value, error]
            dist.broadcast_object_list(box, src=0, group=self.group)
            value, error = box
        if error is not None:
            raise error
        return value

    def all_succeed(self, function: Callable, *args, **kwargs):
        """Calls `function` on every rank. If it fails on one, every rank raises, so that none waits for another.

        Raises:
          the rank's own error; on the other ranks an `OSError` that names the failed rank and its error, or a
          `TemporaryError` if it is one.
        """
        value, error = None, None
        try:
            value = function(*args, **kwargs)
        except Exception as caught:
            error = caught
        failures = self.gather(f"{type(error).__name__}: {error}" if error is not None else None)
        if error is not None:
            raise error
        for rank, failure in enumerate(failures):
            if failure is not None:
                kind = TemporaryError if failure.startswith(TemporaryError.__name__) else OSError
                raise kind(f"rank {rank} failed: {failure}")
        return value


FOLDER = "logs"
# The root, and loggers that may not propagate to it.
LOGGERS = ("", "t5suite", "transformers", "accelerate", "datasets", "torch", "peft", "deepspeed", "DeepSpeed")
MOST_WAITING = 1000


class RankLog(logging.handlers.MemoryHandler):
    """Buffers this process's log records until `open` names the directory, then writes them.

    Args:
      rank: this process's rank.
      for_one_run: it is detached when the run ends; otherwise it waits for the next one.
    """

    def __init__(self, rank: int, for_one_run: bool = False):
        super().__init__(MOST_WAITING, logging.CRITICAL + 1)
        self.setLevel(logging.INFO)
        self.setFormatter(RedactingFormatter(f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"))
        self.rank = rank
        self.for_one_run = for_one_run

    def attach(self) -> "RankLog":
        """Adds itself to our loggers and the libraries' loggers."""
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def detach(self) -> None:
        """Removes itself from the loggers, and closes its file."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self.shut()

    def open(self, directory) -> None:
        """Starts writing to a file in the run directory."""
        path = Path(directory) / FOLDER / f"rank-{self.rank}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            logging.getLogger(__name__).warning("%s cannot be written: %s", path, error)
            return
        file.setFormatter(self.formatter)
        file.handleError = lambda record: None  # a full disk must not end the run
        self.setTarget(file)
        self.flush()

    def note_end(self, error: BaseException) -> None:
        """Writes what ends a run, with its traceback."""
        if self.target is not None:
            level = logging.ERROR if isinstance(error, Exception) else logging.INFO
            exception = (type(error), error, error.__traceback__)
            self.emit(logging.LogRecord("t5suite", level, __file__, 0, "the run ends here", None, exception))

    def end(self) -> None:
        """Closes a run's file."""
        if self.for_one_run:
            self.detach()
        else:
            self.shut()

    def shut(self) -> None:
        """Closes the file; later lines wait for the next one."""
        if self.target is not None:
            with contextlib.suppress(OSError):  # nor hide the error that ended the run
                self.target.close()
            self.setTarget(None)

    def shouldFlush(self, record: logging.LogRecord) -> bool:
        return self.target is not None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes each record once, even if several loggers pass it on."""
        if not getattr(record, "in_rank_log", False) and (self.target or len(self.buffer) < self.capacity):
            record.in_rank_log = True
            super().emit(record)


def attached() -> RankLog | None:
    """The `RankLog` that is already attached; None if there is none."""
    return next((handler for handler in logging.getLogger("t5suite").handlers if isinstance(handler, RankLog)), None)
