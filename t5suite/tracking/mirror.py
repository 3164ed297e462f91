"""The separate process that sends a run to W&B, TensorBoard, Aim, Trackio or a Hugging Face callback's tracker.

    python -m t5suite.tracking.mirror runs/glue-rte-t5-small aim      # sends what Aim does not have yet, once

Training never calls a tracker: it writes `metrics.jsonl`, and this process reads the file. On standard input it gets
one command per line: `go` (the file now holds this run alone: steps that a resumed run repeats have been cut off),
`end CODE` (send the rest and close). Closed input without `end` means that training died. On standard output it reports
its state, one JSON object per line.

A tracker gets one row per step, and each step once: `told.json` has the last step that was sent, and trackers that know
it better are asked. A resumed run continues the same run in the tracker.
"""

import contextlib
import json
import os
import select
import signal
import sys
import traceback
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from t5suite.base.errors import EXIT_BAD_CONFIGURATION, EXIT_BUG, EXIT_FINISHED, EXIT_IO, EXIT_PREEMPTED
from t5suite.base.files import read_json, write_json
from t5suite.base.lookup import load_object
from t5suite.base.redaction import printable, redacted
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS
from t5suite.tracking.backends import Unreachable
from t5suite.tracking.metric_lines import PIECE, MetricLines, SampleLines, rows_by_step
from t5suite.tracking.trackers import MIRROR, OUTPUT_FILE, SETUP_FILE, TRACKERS, identity_of

SENT_FILE = "told.json"
LOCK_FILE = "mirror.lock"
LOCK_SECONDS = 10.0
POLL_SECONDS = 0.25
# What the training of a run has ended with, by the status in its manifest; with any other status it has failed.
EXIT_CODES = {"finished": EXIT_FINISHED, "preempted": EXIT_PREEMPTED}
# A scheduler or Ctrl-C often signals all of a job's processes.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class SentSteps:
    """What a tracker (or a whole offline segment of W&B) has of the run: steps up to `step`.

    Attributes:
      resume_facts: what else is needed to resume the same run, such as its id in the tracker.
    """

    def __init__(self, folder: Path):
        self.path = folder / SENT_FILE
        content = read_json(self.path) if self.path.is_file() else {}
        self.step = content.get("step", -1)
        self.resume_facts = content.get("of_theirs", {})

    def record(self, step: int, **resume_facts) -> None:
        """Records that everything up to `step` has been sent."""
        self.step = step
        self.resume_facts = {**self.resume_facts, **resume_facts}
        write_json(self.path, {"step": self.step, "of_theirs": self.resume_facts})


class Commands:
    """The training process's commands, from the file descriptor `source`; None: no process, everything is sent at once.

    Args:
      exit_code: what the training has ended with, if there is no process.

    Attributes:
      going: the file holds this run's lines.
      exit_code: training's exit code, once it has ended.
      orphaned: training died.
    """

    def __init__(self, source: int | None = None, exit_code: int | None = None):
        self._source = source
        self._parent = os.getppid()
        self._incomplete_line = b""
        self.by_hand = source is None
        self.going = source is None
        self.exit_code = exit_code
        self.orphaned = False

    def wait(self, seconds: float) -> None:
        """Reads the commands that arrive within this many seconds."""
        if self.ended:
            return
        ready, _, _ = select.select([self._source], [], [], seconds)
        self.orphaned = os.getppid() != self._parent
        if not ready:
            return
        text = os.read(self._source, 4096)
        self.orphaned = self.orphaned or not text
        *lines, self._incomplete_line = (self._incomplete_line + text).split(b"\n")
        for line in lines:
            word, _, argument = line.decode().partition(" ")
            self.going = True
            if word == "end":
                self.exit_code = int(argument)

    @property
    def ended(self) -> bool:
        """Whether no more lines will come."""
        return self.orphaned or self.exit_code is not None

    @property
    def may_resume(self) -> bool:
        """Whether the run may be resumed later: the last row may lack a line that it will write then."""
        return self.orphaned or self.exit_code != EXIT_FINISHED


def mirror(directory: Path, name: str, commands: Commands, say, offline: bool = False) -> None:
    """Opens the tracker's run, sends rows as they come, and closes it.

    Args:
      say: is called with the current state, as keywords (`state`, ...).
      offline: does not contact W&B, but writes a segment for `wandb sync`.

    Raises:
      Exception: whatever the tracker raises; nothing is lost, since `metrics.jsonl` has every line.
    """
    folder = directory / "trackers" / name
    sent = SentSteps(folder)
    setup = _setup_of_run(directory, folder)
    setup.update(tracker=name, offline=offline, by_hand=commands.by_hand, first=sent.step + 1)
    _, _, backend = TRACKERS[name]
    run = load_object(backend, "TRACKERS")(directory, setup, sent.resume_facts)
    last_step = run.last_step()
    sent.record(sent.step if last_step is None else last_step, **run.resume_facts)
    say(**run.state)
    samples = SampleLines(directory)
    last = send_rows(
        lambda row, step: run.log(row, step, samples.tables(step)),
        MetricLines(directory / METRICS),
        commands,
        first=sent.step + 1,
        # For a run that is only sent as a whole (an offline segment of W&B), the steps are recorded at its end.
        record=sent.record if run.keeps_steps else None,
    )
    results = directory / RESULTS
    if commands.exit_code == EXIT_FINISHED and not commands.orphaned and results.is_file():
        run.conclude(read_json(results), read_json(directory / MANIFEST))
    run.finish(1 if commands.orphaned else commands.exit_code)
    sent.record(last, **run.resume_facts)
    say(state="finished", last=last)


def _setup_of_run(directory: Path, folder: Path) -> dict:
    """What trackers get of the run; of one that was trained without this tracker, what its manifest has."""
    if (folder / SETUP_FILE).is_file():
        return read_json(folder / SETUP_FILE)
    manifest = read_json(directory / MANIFEST)
    settings = manifest["settings"]
    return {**identity_of(settings).described(directory, manifest["run_id"]), "config": settings}


def send_rows(log, lines: MetricLines, commands: Commands, first: int, record=None) -> int:
    """Sends every step from `first` on, as one row each, until the end; returns the last step that was sent.

    A row is sent when a later step begins, because only then is it complete.

    Args:
      log: called with each row and its step.
      record: called with every step that was sent.
    """
    pending: list[dict] = []
    last = first - 1
    while True:
        commands.wait(0.0 if lines.behind else POLL_SECONDS)
        is_last_time = commands.ended
        if commands.going:
            pending += [line for line in lines.new_lines(PIECE) if line["step"] >= first]
            is_last_time = is_last_time and not lines.behind
            rows = rows_by_step(pending)
            open_step = None
            if rows and (not is_last_time or commands.may_resume):
                open_step, _ = rows.pop()
            for step, row in rows:
                log(row, step)
                if record is not None:
                    record(step)
                last = step
            pending = [line for line in pending if line["step"] == open_step]
        if is_last_time:
            return last


@contextlib.contextmanager
def lock(folder: Path):
    """One process per run and tracker: that of a training process that was killed may still be closing.

    Raises:
      TimeoutError: another one is still running after LOCK_SECONDS.
    """
    try:
        file_lock = FileLock(folder / LOCK_FILE).acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise TimeoutError(f"another process sends {folder.parents[1]} to {folder.name}") from None
    with file_lock:
        yield


def main(argv) -> int:
    """The process: `RUN_DIRECTORY TRACKER [--live] [--offline]`; `--live` if a training process sends commands."""
    problem = _problem_of_words(argv)
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    directory = Path(argv[0]).absolute()
    name = argv[1]
    folder = directory / "trackers" / name
    folder.mkdir(parents=True, exist_ok=True)
    if "--live" in argv:
        return _serve(folder, argv, partial(mirror, directory, name, offline="--offline" in argv))
    try:
        with lock(folder):
            commands = Commands(exit_code=exit_code_of_run(directory))
            mirror(directory, name, commands, lambda **state: print(*state.values(), flush=True))
    except Exception as error:
        print(printable(redacted(f"error: {error}")), file=sys.stderr)
        return EXIT_IO
    return EXIT_FINISHED


def exit_code_of_run(directory: Path) -> int:
    """What a run's training has ended with, by its manifest: one that is not finished may be resumed."""
    path = directory / MANIFEST
    if not path.is_file():
        return EXIT_BUG
    return EXIT_CODES.get(read_json(path).get("status"), EXIT_BUG)


def _problem_of_words(argv: list[str]) -> str | None:
    """Why there is nothing to send, or nowhere to send it; None if there is."""
    trackers = ", ".join(filter(TRACKERS.get, TRACKERS))
    if len(argv) < 2:
        return f"python -m {MIRROR} RUN_DIRECTORY TRACKER: give both; trackers are {trackers}"
    directory, name = argv[:2]
    if not TRACKERS.get(name):
        return f"unknown tracker {name!r}; choose one of {trackers}"
    described = (Path(directory) / MANIFEST, Path(directory) / "trackers" / name / SETUP_FILE)
    if not any(path.is_file() for path in described):
        return f"{directory} is not the directory of a run: it has no {MANIFEST}"
    return None


def _serve(folder: Path, argv: list[str], mirror_run) -> int:
    """`mirror_run(commands, say)` with training's commands, ignoring signals, and without terminal or own output."""
    # Training decides when this process ends.
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    commands_in = os.dup(0)
    reports_out = os.fdopen(os.dup(1), "w", buffering=1)
    # Whatever libraries print goes to a file; they cannot prompt for input.
    output = os.open(folder / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)

    def say(**state):
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(state), file=reports_out)

    try:
        with lock(folder):
            mirror_run(Commands(commands_in), say)
    except Unreachable as error:
        print(error, file=sys.stderr, flush=True)
        os.dup2(commands_in, 0)
        os.dup2(reports_out.fileno(), 1)
        # Restarts the program, because wandb keeps the run that it could not start. The pipes stay open.
        os.execv(sys.executable, [sys.executable, "-m", MIRROR, *argv, "--offline"])
    except Exception as error:
        traceback.print_exc()
        say(state="failed", reason=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Exits at once: hanging threads and exit hooks of a tracker must not keep the process alive.
    os._exit(code)
