"""Weights & Biases as training sees it: a process beside it that cannot hold it up (`wandb_mirror`).

    >>> tracker = WandbTracker(run_dir, run_id="4f2a", settings={"seed": 1})   # at once; W&B starts meanwhile
    >>> tracker.begin(step=0)
    >>> tracker.finish()                                                       # at most 15 s

What the process says is passed on as log lines: one that W&B is reached and where, or one that it is not, with the
command that sends the run later. Training pays 7 ms for the start and a microsecond a line; the process takes 2 s of a
core for 2,000 lines of 20 metrics, its start included, and 110 MB with wandb's own (two cores, wandb 0.31).
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
from t5suite.errors import EXIT_PREEMPTED
from t5suite.redaction import redacted_value
from t5suite.runs import write_json
from t5suite.tracking.wandb_mirror import FOLDER, MODULE, OUTPUT_FILE, SETUP_FILE

logger = logging.getLogger(__name__)

FINISH_SECONDS = 15.0
# A run that was told to stop has little time (often 30 s) and comes back: what W&B lacks is sent then.
PREEMPTED_SECONDS = 8.0


class WandbTracker:
    """Weights & Biases; offline (below the run directory, for `wandb sync`) where it cannot be reached.

    Raises:
      ImportError: wandb is not installed.
    """

    def __init__(self, directory: Path, run_id: str, settings: dict):
        if importlib.util.find_spec("wandb") is None:
            raise ImportError("--report_to wandb needs: pip install wandb")
        self.directory, self.run_id = Path(directory).absolute(), run_id
        self._told: dict = {}
        self._process = None
        if os.environ.get("WANDB_MODE", "").lower() == "disabled":
            return
        (self.directory / FOLDER).mkdir(parents=True, exist_ok=True)
        setup = {"run_id": run_id, "name": self.directory.name, "config": redacted_value(settings)}
        write_json(self.directory / FOLDER / SETUP_FILE, setup)
        self._process = self._start()
        self._listener = threading.Thread(target=self._listen, name="wandb", daemon=True)
        self._listener.start()

    def begin(self, step: int) -> None:
        """`metrics.jsonl` holds this run's lines up to `step` and no others: the process may read it from here on."""
        self._say("go")

    def log(self, metrics: dict, step: int) -> None:
        """Nothing: the process reads `metrics.jsonl` itself."""

    def finish(self, exit_code: int = 0) -> None:
        """Has the process send the rest and end; one that takes longer than FINISH_SECONDS is ended."""
        if self._process is None:
            return
        self._say(f"end {exit_code}")
        seconds = PREEMPTED_SECONDS if exit_code == EXIT_PREEMPTED else FINISH_SECONDS
        self._listener.join(seconds)
        if self._listener.is_alive():
            self._told["state"] = "left"
            for process in (self._process.pid, *_children(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            logger.warning("W&B did not end within %.0f s and is left alone; %s", seconds, self._cure)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _start(self) -> subprocess.Popen:
        root = str(Path(t5suite.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # A session of its own: neither Ctrl-C nor the end of a terminal are meant for it.
        return subprocess.Popen(
            [sys.executable, "-m", MODULE, str(self.directory), "--live"],
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
                self._heard(**json.loads(line))
        code = self._process.wait()
        if self._told.get("state") not in ("finished", "failed", "left"):
            logger.warning("W&B's process ended (exit %d, see %s); the run goes on. %s", code, self._log, self._cure)

    def _heard(self, state: str, **told) -> None:
        self._told = {"state": state, **told}
        if state == "online":
            logger.info("W&B: %s", told["url"])
        elif state == "offline":
            level = logging.INFO if told["wanted"] else logging.WARNING
            logger.log(level, "W&B is offline (%s); the run goes on. Send it later: %s", told["reason"], self._sync)
        elif state == "failed":
            logger.warning("W&B failed and is left alone (%s); the run goes on. %s", told["reason"], self._cure)

    @property
    def _sync(self) -> str:
        return f"wandb sync {shlex.quote(str(self.directory / FOLDER))}/offline-run-*-{self.run_id}"

    @property
    def _cure(self) -> str:
        command = f"python -m {MODULE} {shlex.quote(str(self.directory))}"
        return f"metrics.jsonl has every line; what W&B lacks is sent by: {command}"

    @property
    def _log(self) -> Path:
        return self.directory / FOLDER / OUTPUT_FILE


def _children(parent: int) -> list[int]:
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
