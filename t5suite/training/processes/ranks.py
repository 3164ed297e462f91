"""The processes of a run: how they agree on something, and where each one logs.

    >>> ranks = Ranks.of_process()
    >>> ranks.any(True)                       # on one rank is enough
    True
    >>> ranks.gather({"rank": ranks.rank})
    [{'rank': 0}, {'rank': 1}]

All of it goes over gloo, from CPU to CPU: to agree on a flag must not wait for what a GPU is still computing.

`logs/rank-N.log` in the run directory has what each rank said, and what ended it, with its traceback. Lines from before
the directory is known wait for it; secrets are replaced.
"""

import contextlib
import logging
import logging.handlers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from t5suite.base.errors import ConfigError
from t5suite.base.redaction import RedactingFormatter


def check_meeting_place(environ: Mapping[str, str] = os.environ) -> None:
    """Refuses ranks that are to meet at port 0, where nobody listens: torch 2.13 has them wait for half an hour.

    Raises:
      ConfigError: with the flags that find a free port.
    """
    if environ.get("WORLD_SIZE", "1") != "1" and environ.get("MASTER_PORT") == "0":
        raise ConfigError(
            "MASTER_PORT is 0: torchrun does not choose a free port for --master_port 0; on one node start with "
            "torchrun --standalone, on several name a port that is free on the first one"
        )


@dataclass
class Ranks:
    """One rank's view of all; a lone process agrees with itself.

    Attributes:
      group: the gloo group that messages go over.
    """

    rank: int = 0
    world_size: int = 1
    group: Any = field(default=None, repr=False)

    @classmethod
    def of_process(cls) -> "Ranks":
        """The ranks of this process's group, if it is part of one; all of them call it, at the same place."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls()
        group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
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
        """Whether the flag is set on one rank at least."""
        return self.sum([float(flag)])[0] > 0

    def gather(self, value) -> list:
        """Every rank's value, on every rank, by rank; values are pickled, so they must be plain data."""
        if self.world_size == 1:
            return [value]
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        self.sum([0.0])

    def together(self, function: Callable, *args, **kwargs):
        """What `function` returns on rank 0, on every rank; what it raises there is raised everywhere.

        >>> run = ranks.together(open_run, output_dir, settings)
        """
        value, error = None, None
        if self.is_main:
            try:
                value = function(*args, **kwargs)
            except Exception as caught:
                error = caught
        if self.world_size > 1:
            box = [value, error]
            dist.broadcast_object_list(box, src=0, group=self.group)
            value, error = box
        if error is not None:
            raise error
        return value

    def all_succeed(self, function: Callable, *args, **kwargs):
        """What `function` returns here; if it fails on any rank, every rank raises, so that none waits for another.

        Raises:
          the rank's own error, or on the others an `OSError` that names the rank and its error.
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
                raise OSError(f"rank {rank} failed: {failure}")
        return value


FOLDER = "logs"
# Loggers that may not pass their records on to the root.
LOGGERS = ("", "t5suite", "transformers", "accelerate", "datasets", "torch", "peft", "deepspeed", "DeepSpeed")
MOST_WAITING = 1000


class RankLog(logging.handlers.MemoryHandler):
    """Collects this process's records, and writes them once it knows where to.

    Args:
      rank: this process's.
    """

    def __init__(self, rank: int):
        super().__init__(MOST_WAITING, logging.CRITICAL + 1)
        self.setLevel(logging.INFO)
        self.setFormatter(RedactingFormatter(f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"))
        self.rank = rank

    def attach(self) -> "RankLog":
        """Listens to our loggers and the libraries'."""
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def detach(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self.shut()

    def open(self, directory) -> None:
        """Writes below the run directory from here on."""
        path = Path(directory) / FOLDER / f"rank-{self.rank}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            logging.getLogger(__name__).warning("%s cannot be written: %s", path, error)
            return
        file.setFormatter(self.formatter)
        file.handleError = lambda record: None  # a full disk must not cost the run
        self.setTarget(file)
        self.flush()

    def shut(self) -> None:
        if self.target is not None:
            with contextlib.suppress(OSError):  # nor hide the error that the run ends with
                self.target.close()
            self.setTarget(None)

    def shouldFlush(self, record: logging.LogRecord) -> bool:
        return self.target is not None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record once, on whatever way it comes."""
        if not getattr(record, "in_rank_log", False) and (self.target or len(self.buffer) < self.capacity):
            record.in_rank_log = True
            super().emit(record)


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
        found, level = (type(error), error, error.__traceback__), logging.ERROR
        if not isinstance(error, Exception):
            level = logging.INFO
        log.emit(logging.LogRecord("t5suite", level, __file__, 0, "the run ends here", None, found))
        raise
    finally:
        log.detach() if own else log.shut()
