"""Where a run's numbers are sent besides `metrics.jsonl`, which is always written, and first.

    >>> with Trackers(["tensorboard"], run_dir, run_id="4f2a", settings={}) as trackers:
    ...     trackers.log({"train/loss": 0.4}, step=10)

A tracker is a mirror of that file: one that fails is named in a warning and left alone from then on; training goes on.
A run that is resumed goes on in the same place, with every step there once: trackers that know steps which the resumed
run repeats do not get them twice, and get what they missed.

TensorBoard's files are written here. All others are fed by a process beside training that cannot hold it up
(`mirror`): training pays 7 ms for its start and a microsecond a line.
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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import t5suite
from t5suite.base.errors import EXIT_FINISHED, EXIT_PREEMPTED
from t5suite.base.lookup import find
from t5suite.base.redaction import redacted_value
from t5suite.runs.directory import write_json
from t5suite.tracking.backends import AIM_REPO
from t5suite.tracking.callbacks import CALLBACKS
from t5suite.tracking.tensorboard import TensorBoardTracker

logger = logging.getLogger("t5suite.tracking")

# What the process keeps in `<run directory>/trackers/<name>`: what it is told, what it prints.
SETUP_FILE, OUTPUT_FILE = "mirror.json", "mirror.log"
MIRROR = "t5suite.tracking.mirror"
FINISH_SECONDS = 15.0
# A run that was told to stop has little time (often 30 s) and comes back: what the tracker lacks is sent then.
PREEMPTED_SECONDS = 8.0


@dataclass(frozen=True)
class Identity:
    """What a run is called, and where it belongs, in every tracker.

    >>> Identity("glue-rte", group="learning rates", tags=("rte",)).described(Path("runs/a"), "4f2a")["tags"]
    ['rte']

    Attributes:
      name: what trackers show; the run directory's name without it.
      project: W&B's and Trackio's project; without it W&B's own WANDB_PROJECT, else `t5suite`.
      entity: the W&B user or team.
      experiment: Aim's experiment; the project without it.
      aim_repo: the folder of Aim's repository, for all runs.
    """

    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    project: str | None = None
    entity: str | None = None
    experiment: str | None = None
    aim_repo: str = AIM_REPO

    def described(self, directory: Path, run_id: str) -> dict:
        """As JSON values without secrets: what every tracker gets of the run in a directory besides its settings."""
        named = {"name": self.name or directory.name, "named": bool(self.name), "run_id": run_id}
        return redacted_value({**asdict(self), **named})


class Trackers:
    """All trackers of a run as one that never fails, and never takes longer than a bounded time.

    Args:
      names: from TRACKERS; none on any rank but the first.
      settings: what trackers show as the run's configuration; without secrets (`public_settings`).
    """

    def __init__(self, names: list[str], directory, run_id: str, settings: dict, identity: Identity | None = None):
        self._trackers = {}
        self._begun = False
        for name in names:
            try:
                self._trackers[name] = TRACKERS[name](Path(directory), run_id, settings, identity or Identity())
            except Exception as error:
                self._leave_alone(name, error)

    def begin(self, step: int) -> None:
        """Says that the run is at `step` and `metrics.jsonl` holds its lines up to there; `log` does so by itself."""
        if not self._begun:
            self._begun = True
            self._each(lambda tracker: tracker.begin(step))

    def log(self, metrics: dict, step: int) -> None:
        """Sends one line, which stands in `metrics.jsonl` already, to every tracker that still works."""
        self.begin(step - 1)
        self._each(lambda tracker: tracker.log(metrics, step))

    def samples(self, lines: list[dict], step: int) -> None:
        """Sends an evaluation's samples, which stand in `samples.jsonl` already."""
        self.begin(step - 1)
        self._each(lambda tracker: tracker.samples(lines, step))

    def finish(self, exit_code: int = EXIT_FINISHED) -> None:
        """Closes every tracker, within 15 s each; those of a finished run get its results and manifest first.

        Args:
          exit_code: what the process will end with.
        """
        self._each(lambda tracker: tracker.finish(exit_code))
        self._trackers = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.finish(EXIT_FINISHED if error is None else getattr(error, "exit_code", 1))

    def _each(self, call) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:
                self._leave_alone(name, error)

    def _leave_alone(self, name, error):
        self._trackers.pop(name, None)
        logger.warning("tracker %s failed and is left alone (%s: %s)", name, type(error).__name__, error)


class MirrorTracker:
    """A tracker as training sees it: a process beside it (`mirror`), whose words are passed on as log lines.

    Args:
      name: the tracker by its name in TRACKERS.
      title: what messages call it.
      extra: ours that installs its package, which has the tracker's name; None: Hugging Face's callback knows.

    Raises:
      ImportError: the package is not installed.
    """

    def __init__(self, directory, run_id: str, settings: dict, identity: Identity, name: str, title="", extra=None):
        if extra and importlib.util.find_spec(name) is None:
            raise ImportError(f"--report_to {name} needs: pip install 't5suite[{extra}]'")
        self.directory, self.run_id, self.name, self.title = Path(directory).absolute(), run_id, name, title or name
        self.folder = self.directory / "trackers" / name
        self._told: dict = {}
        self._process = None
        if name == "wandb" and os.environ.get("WANDB_MODE", "").lower() == "disabled":
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        setup = identity.described(self.directory, run_id)
        write_json(self.folder / SETUP_FILE, {**setup, "config": redacted_value(settings)})
        self._process = self._start()
        self._listener = threading.Thread(target=self._listen, name=name, daemon=True)
        self._listener.start()

    def begin(self, step: int) -> None:
        """`metrics.jsonl` holds this run's lines up to `step` and no others: the process may read it from here on."""
        self._say("go")

    def log(self, metrics: dict, step: int) -> None:
        """Nothing: the process reads `metrics.jsonl` itself."""

    def samples(self, lines: list[dict], step: int) -> None:
        """Nothing: the process reads `samples.jsonl` itself."""

    def finish(self, exit_code: int = 0) -> None:
        """Has the process send the rest and end; one that takes longer than FINISH_SECONDS is killed."""
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
        if self._told.get("state") == "finished" and "sync" in self._told:
            logger.info("%s: send this run with: %s", self.title, self._told["sync"])

    @property
    def cure(self) -> str:
        """What to do about a tracker that lacks lines."""
        return f"metrics.jsonl has every line; what {self.title} lacks is sent by: {shlex.join(self.command())}"

    def command(self) -> list[str]:
        """What starts the process by hand, to send what the tracker lacks."""
        return ["python", "-m", MIRROR, str(self.directory), self.name]

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
                self._heard(told)
        code, log = self._process.wait(), self.folder / OUTPUT_FILE
        if self._told.get("state") not in ("finished", "failed", "left"):
            said = "%s's process ended (exit %d, see %s); the run goes on. %s"
            logger.warning(said, self.title, code, log, self.cure)

    def _heard(self, told: dict) -> None:
        if told["state"] == "online":
            logger.info("%s: %s", self.title, told["place"])
        elif told["state"] == "failed":
            said = "%s failed and is left alone (%s); the run goes on. %s"
            logger.warning(said, self.title, told["reason"], self.cure)
        elif told["state"] == "offline" and not told["wanted"]:
            said = "%s is offline (%s); the run goes on. Send it later: %s"
            logger.warning(said, self.title, told["reason"], told["sync"])


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


def tracker_names(report_to) -> list[str]:
    """`--report_to` -> tracker names without `none`, each once; unknown ones are refused.

    >>> tracker_names(["wandb", "none"]), tracker_names("tensorboard,wandb")
    (['wandb'], ['tensorboard', 'wandb'])
    """
    given = [report_to] if isinstance(report_to, str) else list(report_to or [])
    names = [name.strip() for several in given for name in several.split(",")]
    names = [name for name in OWN if importlib.util.find_spec(name)] if "all" in names else names
    for name in names:
        find(name, TRACKERS, "tracker", where="--report_to")
    return [name for name in dict.fromkeys(names) if name != "none"]


# What `all` means: those of these that are installed, each a package of its name.
OWN = ("wandb", "tensorboard", "aim", "trackio")
TRACKERS = {
    "none": None,
    "wandb": partial(MirrorTracker, name="wandb", title="W&B", extra="tracking"),
    "tensorboard": TensorBoardTracker,
    "aim": partial(MirrorTracker, name="aim", title="Aim", extra="aim"),
    "trackio": partial(MirrorTracker, name="trackio", title="Trackio", extra="trackio"),
    **{name: partial(MirrorTracker, name=name) for name in CALLBACKS},
}
