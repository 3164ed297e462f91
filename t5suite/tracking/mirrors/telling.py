"""The process beside training that mirrors a run to a tracker: what it is told, how far it has come, its rows.

    >>> lines = MetricLines("runs/a/metrics.jsonl")
    >>> send_rows(run, lines, Commands(standard_input), first=0)       # returns when training ends: the last step sent
    20

Training never calls a tracker, so that nothing a tracker does (hang, crash, print, wait at the end) can reach it: it
writes `metrics.jsonl`, and a process reads the file. On standard input that process gets one word a line: `go` (the
file is this run's now: what a resumed run repeats has been cut off), `end CODE` (send the rest and close). Closed input
without `end` means that training died. On standard output it tells, one JSON object a line, how it goes.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from t5suite.base.errors import EXIT_PREEMPTED
from t5suite.runs.directory import MANIFEST, RESULTS, read_json, write_json
from t5suite.tracking.metric_lines import PIECE, MetricLines, rows_by_step

SETUP_FILE, TOLD_FILE, LOCK_FILE, OUTPUT_FILE = "mirror.json", "told.json", "mirror.lock", "mirror.log"
LOCK_SECONDS = 10.0
POLL_SECONDS = 0.25


class Told:
    """What a tracker (or a whole offline segment of W&B) has of the run: steps up to `step`, the segments' names.

    Attributes:
      of_theirs: what else is needed to go on in the same place, such as the run's id over there.
    """

    def __init__(self, folder: Path):
        self.path = folder / TOLD_FILE
        known = read_json(self.path) if self.path.is_file() else {}
        self.step = known.get("step", -1)
        self.segments = known.get("segments", [])
        self.of_theirs = known.get("of_theirs", {})

    def keep(self, step: int, segments: list[str] | None = None, **of_theirs) -> None:
        """Notes that everything up to `step` is where it belongs."""
        self.step, self.of_theirs = step, {**self.of_theirs, **of_theirs}
        self.segments = self.segments if segments is None else segments
        write_json(self.path, {"step": self.step, "segments": self.segments, "of_theirs": self.of_theirs})


class Commands:
    """What the training process says on `source`, a file descriptor; None: nobody does, all is sent at once (by hand).

    Attributes:
      going: the file holds this run's lines.
      exit_code: what training ends with, once it does.
      orphaned: training died.
    """

    def __init__(self, source: int | None = None):
        self._source, self._parent, self._rest = source, os.getppid(), b""
        self.by_hand = self.going = source is None
        self.exit_code = 0 if source is None else None
        self.orphaned = False

    def wait(self, seconds: float) -> None:
        """Takes in what comes within so many seconds."""
        if self.ended:
            return
        ready, _, _ = select.select([self._source], [], [], seconds)
        if os.getppid() != self._parent:
            self.orphaned = True
        if not ready:
            return
        data = os.read(self._source, 4096)
        self.orphaned = self.orphaned or not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            self.going = True
            if word == "end":
                self.exit_code = int(value)

    @property
    def ended(self) -> bool:
        """Whether no more lines will come."""
        return self.orphaned or self.exit_code is not None

    @property
    def holds_back(self) -> bool:
        """Whether the last step's row may lack a line that the run's resumption will write."""
        return self.orphaned or self.exit_code == EXIT_PREEMPTED


def send_rows(run, lines: MetricLines, commands: Commands, first: int, keep=lambda step: None) -> int:
    """Sends every step from `first` on, as one row each, until the end; returns the last step that was sent.

    A row is sent when a later step begins, since only then nothing can be added to it.

    Args:
      run: has `log(row, step=step)`.
      keep: called with every step that was sent.
    """
    pending, last = [], first - 1
    while True:
        commands.wait(0.0 if lines.behind else POLL_SECONDS)
        ended = commands.ended
        if commands.going:
            pending += [line for line in lines.new_lines(PIECE) if line["step"] >= first]
            ended = ended and not lines.behind
            rows = rows_by_step(pending)
            open_step = rows[-1][0] if rows and (not ended or commands.holds_back) else None
            for step, row in rows:
                if step != open_step:
                    run.log(row, step=step)
                    keep(step)
                    last = step
            pending = [line for line in pending if line["step"] == open_step]
        if ended:
            return last


def setup_of(directory: Path, folder: Path) -> dict:
    """What a tracker is told of a run: `run_id`, `name`, `config`, ...; without that file, what its manifest says."""
    path = folder / SETUP_FILE
    if path.is_file():
        return read_json(path)
    manifest = read_json(directory / MANIFEST)
    return {"run_id": manifest["run_id"], "name": directory.name, "config": manifest["settings"]}


def outcome_of(directory: Path, commands: Commands) -> dict | None:
    """`results.json` of a run that has come to its end; None of any other."""
    path = directory / RESULTS
    return read_json(path) if commands.exit_code == 0 and not commands.orphaned and path.is_file() else None


@contextlib.contextmanager
def lock(folder: Path):
    """One mirror a run and tracker: the one of a training process that was killed may still be closing.

    Raises:
      TimeoutError: another one still works after LOCK_SECONDS.
    """
    with (folder / LOCK_FILE).open("w") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process mirrors {folder.parent} to {folder.name}") from None
                time.sleep(0.1)
        yield


def serve(folder: Path, mirror, otherwise=lambda error, restore: None) -> int:
    """The live process: `mirror(commands, say)` with training's words, and no signal, terminal or output of its own.

    Args:
      otherwise: may put another program in this process's place, once `restore()` has given it the pipes back.
    """
    # Training decides when we end; who stops it (a scheduler, Ctrl-C) often signals all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    words, voice = os.dup(0), os.fdopen(os.dup(1), "w", buffering=1)
    _redirect(folder / OUTPUT_FILE)

    def say(**told):
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(told), file=voice)

    try:
        with lock(folder):
            mirror(Commands(words), say)
    except Exception as error:
        otherwise(error, lambda: (os.dup2(words, 0), os.dup2(voice.fileno(), 1)))
        traceback.print_exc()
        say(state="failed", reason=f"{type(error).__name__}: {error}")
        return 1
    return 0


def leave(code: int):
    """Ends the process at once: whatever still hangs in a tracker's threads and exit hooks must not keep it."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _redirect(path: Path) -> None:
    """Whatever libraries print goes to a file; nothing can be asked for."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
