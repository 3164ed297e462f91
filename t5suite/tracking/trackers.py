"""Where a run's numbers are sent besides `metrics.jsonl`, which is always written, and first.

    >>> with Trackers(["tensorboard"], run_dir, run_id="4f2a", settings={}) as trackers:
    ...     trackers.begin()                 # once a resumed run has cut off the lines that it will write again

A tracker mirrors that file: a separate process reads it (`mirror`), so that nothing that the tracker does can affect
training, apart from 7 ms for the start of the process. A tracker that fails is named in a warning; training continues.
A resumed run continues in the same place, with every step there once.

The process reads `go` and `end EXIT_CODE` from its standard input. On its standard output it reports its state, one
JSON table a line (`mirror.report`): `{"state": "online", "place"}`, `{"state": "offline", "reason", "wanted", "sync"}`
(`wanted`: the user asked for it), `{"state": "failed", "reason"}` or `{"state": "finished"}`. The process sends what
libraries print to `mirror.log`; lines that a library prints before that are ignored.
"""

import contextlib
import importlib.util
import json
import logging
import os
import shlex
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import t5suite
from t5suite.base.errors import EXIT_FINISHED, EXIT_PREEMPTED
from t5suite.base.files import write_json
from t5suite.base.lookup import find
from t5suite.base.redaction import redacted_value

logger = logging.getLogger("t5suite.tracking")

# In `<run directory>/trackers/<name>`: the run's settings, which the process reads, and what its libraries print.
SETUP_FILE = "mirror.json"
OUTPUT_FILE = "mirror.log"
MIRROR = "t5suite.tracking.mirror"
STATES = ("online", "offline", "failed", "finished")
AIM_REPO = "./aim_repo"
# Trackers of transformers 5.23 for which t5suite has no backend of its own; a test compares.
CALLBACKS = tuple("azure_ml clearml codecarbon comet_ml dagshub dvclive flyte kubeflow mlflow neptune swanlab".split())
# How long a tracker has to send the rest at the end; after that its process is killed.
FINISH_SECONDS = 15.0
# A preempted run has little time (often 30 s) and is resumed later: what the tracker lacks is sent then.
PREEMPTED_SECONDS = 8.0
# How long the last lines of a process that has ended are waited for: a child of it may hold its output open.
LISTENER_SECONDS = 2.0


@dataclass(frozen=True)
class Identity:
    """A run's name and project in every tracker.

    >>> Identity(project="t5").described(Path("runs/a"), "4f2a")["name"]
    'a'

    Attributes:
      name: what trackers show; default: the run directory's name.
      project: W&B's and Trackio's project; default: W&B's own WANDB_PROJECT, else `t5suite`.
      experiment: Aim's experiment; default: the project.
      aim_repo: the folder of Aim's repository, for all runs.
    """

    name: str | None = None
    project: str | None = None
    experiment: str | None = None
    aim_repo: str = AIM_REPO

    def described(self, directory: Path, run_id: str) -> dict:
        """What every tracker gets of a run besides its settings, as JSON values without secrets.

        `named` says that the user gave the name. What is None here, each tracker fills in by itself.
        """
        description = {**asdict(self), "name": self.name or directory.name, "named": bool(self.name), "run_id": run_id}
        return redacted_value(description)


def identity_of(settings: dict) -> Identity:
    """A run's identity in trackers, by its settings (a manifest's, too).

    >>> identity_of({"wandb_project": "t5", "aim_repo": "runs/aim"})
    Identity(name=None, project='t5', experiment=None, aim_repo='runs/aim')
    """
    return Identity(
        name=settings.get("run_name"),
        project=settings.get("wandb_project"),
        experiment=settings.get("experiment_name"),
        aim_repo=settings.get("aim_repo") or AIM_REPO,
    )


class Trackers:
    """All trackers of a run, none of which can make it fail, and which end in bounded time.

    Args:
      names: as `tracker_names` has them; an empty list on any rank but the first.
      settings: what trackers show as the run's configuration; secrets are taken out.
    """

    def __init__(self, names: list[str], directory, run_id: str, settings: dict, identity: Identity | None = None):
        self._trackers = []
        for name in names:
            try:
                self._trackers.append(Tracker(name, directory, run_id, settings, identity or Identity()))
            except Exception as error:
                logger.warning("tracker %s failed and is disabled (%s: %s)", name, type(error).__name__, error)

    def begin(self) -> None:
        """Lets the trackers read `metrics.jsonl`: what a resumed run will repeat has been cut off by now."""
        for tracker in self._trackers:
            tracker.send("go")

    def finish(self, exit_code: int = EXIT_FINISHED) -> None:
        """Closes the trackers, one after the other, each within FINISH_SECONDS (a preempted run: PREEMPTED_SECONDS).

        Args:
          exit_code: what the process will end with.
        """
        trackers = self._trackers
        self._trackers = []
        for tracker in trackers:
            tracker.finish(exit_code)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.finish(EXIT_FINISHED if error is None else getattr(error, "exit_code", 1))


class Tracker:
    """A tracker as training sees it: a separate process (`mirror`), whose reports become log lines.

    W&B that is disabled by its own WANDB_MODE has no process, and nothing is sent.

    Args:
      name: from TRACKERS, but not "none".

    Raises:
      ImportError: the package is not installed.
    """

    def __init__(self, name: str, directory, run_id: str, settings: dict, identity: Identity):
        self.title, extra, _ = TRACKERS[name]
        if extra and importlib.util.find_spec(name) is None:
            raise ImportError(f"--report_to {name} needs: pip install 't5suite[{extra}]'")
        directory = Path(directory).absolute()
        folder = directory / "trackers" / name
        command = ["-m", MIRROR, str(directory), name]
        self.advice = (
            f"metrics.jsonl has every line; send what {self.title} lacks with: {shlex.join(['python', *command])}"
        )
        self.process = None
        self._log = folder / OUTPUT_FILE
        self._state: str | None = None
        self._sync_command: str | None = None
        self._was_killed = False
        if name == "wandb" and os.environ.get("WANDB_MODE", "").lower() == "disabled":
            return
        folder.mkdir(parents=True, exist_ok=True)
        setup = identity.described(directory, run_id)
        write_json(folder / SETUP_FILE, {**setup, "config": redacted_value(settings)})
        self.process = start_mirror(command)
        self.listener = threading.Thread(target=self._listen, name=name, daemon=True)
        self.listener.start()

    def send(self, command: str) -> None:
        """Sends a command, `go` or `end CODE`: so short that the pipe has room, and training never waits here.

        To a process that has ended nothing is sent: the listener reports it.
        """
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{command}\n")
                self.process.stdin.flush()

    def finish(self, exit_code: int = 0) -> None:
        """Tells the process to send the rest and end; kills one that takes longer than FINISH_SECONDS."""
        if self.process is None:
            return
        self.send(f"end {exit_code}")
        seconds = PREEMPTED_SECONDS if exit_code == EXIT_PREEMPTED else FINISH_SECONDS
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._was_killed = True
            kill_with_children(self.process.pid)
            logger.warning("%s did not end within %.0f s and was killed; %s", self.title, seconds, self.advice)
            self.process.wait()
        self.listener.join(LISTENER_SECONDS)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        was_offline = self._sync_command is not None
        if self._state == "finished" and was_offline:
            logger.info("%s: send this run with: %s", self.title, self._sync_command)

    def _listen(self) -> None:
        """Logs what the process reports, until it ends."""
        for line in self.process.stdout:
            report = read_report(line)
            if report is not None:
                self._state = report["state"]
                self._sync_command = report.get("sync", self._sync_command)
                self._log_report(report)
        code = self.process.wait()
        if self._state not in ("finished", "failed") and not self._was_killed:
            logger.warning(
                "%s's process ended (exit %d, see %s); the run continues. %s", self.title, code, self._log, self.advice
            )

    def _log_report(self, report: dict) -> None:
        if report["state"] == "online":
            logger.info("%s: %s", self.title, report["place"])
        elif report["state"] == "failed":
            logger.warning(
                "%s failed and is disabled (%s); the run continues. %s", self.title, report["reason"], self.advice
            )
        elif report["state"] == "offline" and not report["wanted"]:
            logger.warning(
                "%s is offline (%s); the run continues. Send it later: %s",
                self.title,
                report["reason"],
                report["sync"],
            )


def read_report(line: str) -> dict | None:
    """A line of the process as its report; None for what a library has printed.

    >>> read_report('{"state": "finished"}'), read_report("12"), read_report("wandb: Syncing run")
    ({'state': 'finished'}, None, None)
    """
    try:
        report = json.loads(line)
    except ValueError:
        return None
    if not isinstance(report, dict) or report.get("state") not in STATES:
        return None
    return report


def start_mirror(command: list[str]) -> subprocess.Popen:
    """Starts Python with these words, in its own session: neither Ctrl-C nor the end of a terminal reaches it."""
    paths = [str(Path(t5suite.__file__).parents[1])]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return subprocess.Popen(
        [sys.executable, *command, "--live"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def kill_with_children(pid: int) -> None:
    """Kills a process and its children: W&B's service would outlive it."""
    import psutil

    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children()):
            with contextlib.suppress(psutil.Error):
                process.kill()


def tracker_names(report_to) -> list[str]:
    """`--report_to` -> tracker names without `none`, each once; `all` stands for those of ours that are installed.

    >>> tracker_names(["wandb", "none"]), tracker_names("tensorboard,wandb")
    (['wandb'], ['tensorboard', 'wandb'])

    Raises:
      ConfigError: an unknown name.
    """
    texts = [report_to] if isinstance(report_to, str) else list(report_to or [])
    names = []
    for text in texts:
        names += [name.strip() for name in text.split(",")]
    for name in names:
        find(name, {**TRACKERS, "all": None}, "tracker", where="--report_to")
    if "all" in names:
        names += [name for name in _trackers_with_extras() if importlib.util.find_spec(name)]
        names = [name for name in names if name != "all"]
    return [name for name in dict.fromkeys(names) if name != "none"]


def _trackers_with_extras() -> list[str]:
    """The trackers for which an extra of ours installs the package."""
    names = []
    for name, entry in TRACKERS.items():
        if entry is not None:
            _, extra, _ = entry
            if extra:
                names.append(name)
    return names


# By name: what messages call it; our extra that installs the package of that name, or None where the library's own
# callback says what it needs; the class with which the process makes a run.
TRACKERS = {
    "none": None,
    "wandb": ("W&B", "tracking", "t5suite.tracking.backends:WandbRun"),
    "tensorboard": ("TensorBoard", "tracking", "t5suite.tracking.backends:TensorBoardRun"),
    "aim": ("Aim", "aim", "t5suite.contrib.trackers:AimRun"),
    "trackio": ("Trackio", "trackio", "t5suite.contrib.trackers:TrackioRun"),
    **{name: (name, None, "t5suite.contrib.tracker_callbacks:CallbackRun") for name in CALLBACKS},
}
