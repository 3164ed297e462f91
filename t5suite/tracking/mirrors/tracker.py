"""A tracker as training sees it: a process beside it that cannot hold it up (`telling`).

    >>> tracker = MirrorTracker(run_dir, "4f2a", {"seed": 1}, Identity(), "aim", "aim")     # at once
    >>> tracker.begin(step=0)
    >>> tracker.finish()                                                                    # at most 15 s

What the process says is passed on as log lines: where the tracker keeps the run, or that it failed, with the command
that sends the run later. Training pays 7 ms for the start and a microsecond a line.
"""

import contextlib
import importlib.util
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import t5suite
from t5suite.base.errors import EXIT_PREEMPTED
from t5suite.base.redaction import redacted_value
from t5suite.runs.directory import write_json
from t5suite.tracking.identity import Identity
from t5suite.tracking.mirrors.telling import OUTPUT_FILE, SETUP_FILE

logger = logging.getLogger("t5suite.tracking")

FINISH_SECONDS = 15.0
# A run that was told to stop has little time (often 30 s) and comes back: what the tracker lacks is sent then.
PREEMPTED_SECONDS = 8.0
MODULE = "t5suite.tracking.mirrors.process"


class MirrorTracker:
    """A process that mirrors the run to one tracker.

    Args:
      title: what messages call the tracker.
      name: the tracker by its name in TRACKERS, and the folder of the run directory for what the process keeps.
      needs: the package that must be installed, and what installs it.

    Raises:
      ImportError: it is not.
    """

    def __init__(self, directory, run_id: str, settings: dict, identity: Identity, title: str, name: str, needs=()):
        if needs:
            package, install = needs
            if importlib.util.find_spec(package) is None:
                raise ImportError(f"--report_to {name} needs: pip install {install}")
        self.directory, self.run_id, self.title, self.name = Path(directory).absolute(), run_id, title, name
        self._told: dict = {}
        self._process = None
        if not self.wanted():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        setup = identity.described(self.directory, run_id)
        write_json(self.folder / SETUP_FILE, {**setup, "config": redacted_value(settings)})
        self._process = self._start()
        self._listener = threading.Thread(target=self._listen, name=name, daemon=True)
        self._listener.start()

    @property
    def folder(self) -> Path:
        """Where the process keeps what it knows."""
        return self.directory / "trackers" / self.name

    def command(self) -> list[str]:
        """What starts the process by hand, to send what the tracker lacks."""
        return ["python", "-m", MODULE, str(self.directory), self.name]

    def wanted(self) -> bool:
        """Whether there is anything to be done."""
        return True

    def begin(self, step: int) -> None:
        """`metrics.jsonl` holds this run's lines up to `step` and no others: the process may read it from here on."""
        self._say("go")

    def log(self, metrics: dict, step: int) -> None:
        """Nothing: the process reads `metrics.jsonl` itself."""

    def samples(self, lines: list[dict], step: int) -> None:
        """Nothing: the process reads `samples.jsonl` itself."""

    def finish(self, exit_code: int = 0) -> None:
        """Has the process send the rest and end; one that takes longer than FINISH_SECONDS is ended."""
        if self._process is None:
            return
        self._say(f"end {exit_code}")
        seconds = PREEMPTED_SECONDS if exit_code == EXIT_PREEMPTED else FINISH_SECONDS
        self._listener.join(seconds)
        if self._listener.is_alive():
            self._told["state"] = "left"
            for process in (self._process.pid, *children(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            logger.warning("%s did not end within %.0f s and is left alone; %s", self.title, seconds, self.cure)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _start(self) -> subprocess.Popen:
        root = str(Path(t5suite.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # A session of its own: neither Ctrl-C nor the end of a terminal are meant for it.
        return subprocess.Popen(
            [sys.executable, *self.command()[1:], "--live"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )

    def _say(self, words: str) -> None:
        """A few bytes, which the pipe always has room for; a process that has gone was reported by the listener."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Passes on what the process says, until it ends."""
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                self._told |= told
                self.heard(told)
        code, log = self._process.wait(), self.folder / OUTPUT_FILE
        if self._told.get("state") not in ("finished", "failed", "left"):
            logger.warning(
                "%s's process ended (exit %d, see %s); the run goes on. %s", self.title, code, log, self.cure
            )

    def heard(self, told: dict) -> None:
        """Passes one message on."""
        if told["state"] == "online":
            logger.info("%s: %s", self.title, told["url"])
        elif told["state"] == "failed":
            logger.warning(
                "%s failed and is left alone (%s); the run goes on. %s", self.title, told["reason"], self.cure
            )

    @property
    def cure(self) -> str:
        """What to do about a tracker that lacks lines."""
        return f"metrics.jsonl has every line; what {self.title} lacks is sent by: {shlex.join(self.command())}"


def children(parent: int) -> list[int]:
    """The processes that a process has started: wandb's service, which ends with its parent unless it hangs itself.

    Linux only; elsewhere nothing is found.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may hold anything; state and parent follow it.
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found
