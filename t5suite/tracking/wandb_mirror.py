"""The process that mirrors a run's `metrics.jsonl` to Weights & Biases, beside the training process.

    python -m t5suite.tracking.wandb_mirror runs/glue-rte-t5-small      # sends what W&B does not have yet, once

Training never calls W&B, so that nothing W&B does (hang, crash, lose its connection, wait at the end) can reach it: it
writes `metrics.jsonl`, and this process reads the file. On standard input it gets one word a line: `go` (the file is
this run's now: what a resumed run repeats has been cut off), `end CODE` (send the rest and close). Closed input without
`end` means that training died. On standard output it tells, one JSON object a line, how it goes.

W&B gets one row a step, and each step once. How far it has come, the server is asked; offline, `told.json` says what
whole segments (`offline-run-*`) hold, and a segment that a crash left unfinished is set aside and sent again: wandb
0.31 keeps up to 32 KiB of it in memory, and `wandb sync` gives up at the first broken segment.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from t5suite.errors import EXIT_FINISHED, EXIT_IO, EXIT_PREEMPTED
from t5suite.runs import MANIFEST, METRICS, read_json, write_json
from t5suite.tracking.metric_lines import MetricLines, rows_by_step

FOLDER = "wandb"
SETUP_FILE, TOLD_FILE, LOCK_FILE, OUTPUT_FILE = "mirror.json", "told.json", "mirror.lock", "mirror.log"
MODULE = "t5suite.tracking.wandb_mirror"
PROBE_SECONDS = 6.0
INIT_SECONDS = 30.0
FINISH_SECONDS = 10.0
LOCK_SECONDS = 10.0
POLL_SECONDS = 0.25
OFFLINE_MODES = ("offline", "dryrun")


class Told:
    """What W&B, or a whole offline segment, has of the run: steps up to `step`, and the segments' names."""

    def __init__(self, folder: Path):
        self.path = folder / TOLD_FILE
        known = read_json(self.path) if self.path.is_file() else {}
        self.step = known.get("step", -1)
        self.segments = known.get("segments", [])

    def keep(self, step: int, segments: list[str]) -> None:
        """Notes that everything up to `step` is where it belongs."""
        self.step, self.segments = step, segments
        write_json(self.path, {"step": self.step, "segments": self.segments})


class Unreachable(Exception):
    """W&B does not start a run."""


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


def mirror(directory: Path, commands: Commands, say, offline: bool = False) -> None:
    """Starts W&B for the run in `directory`, sends rows as they come, and closes.

    Args:
      say: told how it goes, by keywords (`state`, ...).
      offline: write a segment for `wandb sync`, whether W&B answers or not.

    Raises:
      Unreachable: W&B said that it is there, but did not start a run.
      Exception: whatever else W&B raises; nothing is lost by it, since `metrics.jsonl` has every line.
    """
    import wandb

    folder = directory / FOLDER
    setup = setup_of(directory)
    wanted = wandb.setup().settings.mode in OFFLINE_MODES
    reason = "asked for" if offline or wanted else why_unreachable(wandb.setup().settings)
    if reason and commands.by_hand:
        raise OSError(f"W&B: {reason}; nothing was sent")
    run = start(wandb, directory, setup, offline=reason is not None)
    told, segment = Told(folder), Path(run.settings.sync_dir).name
    if reason is None:
        told.keep(run.starting_step - 1, [])
        retire_segments(folder, setup["run_id"])
        say(state="online", url=run.url)
    else:
        set_aside_unfinished(folder, setup["run_id"], told, segment)
        say(state="offline", reason=reason, wanted=wanted)
    last = send_rows(run, MetricLines(directory / METRICS), commands, told.step + 1)
    if commands.exit_code == EXIT_PREEMPTED:
        run.mark_preempting()
    run.finish(exit_code=1 if commands.orphaned else commands.exit_code)
    wandb.teardown()
    told.keep(last, told.segments + ([segment] if reason else []))
    say(state="finished", last=last)


def send_rows(run, lines: MetricLines, commands: Commands, first: int) -> int:
    """Sends every step from `first` on, as one row each, until the end; returns the last step that was sent.

    A row is sent when a later step begins, since only then nothing can be added to it.
    """
    pending, last = [], first - 1
    while True:
        commands.wait(POLL_SECONDS)
        ended = commands.ended
        if commands.going:
            pending += [line for line in lines.new_lines() if line["step"] >= first]
            rows = rows_by_step(pending)
            open_step = rows[-1][0] if rows and (not ended or commands.holds_back) else None
            for step, row in rows:
                if step != open_step:
                    run.log(row, step=step)
                    last = step
            pending = [line for line in pending if line["step"] == open_step]
        if ended:
            return last


def start(wandb, directory: Path, setup: dict, offline: bool):
    """`wandb.init` with settings under which it asks nothing, prints nothing, and ends in bounded time."""
    settings = {
        "init_timeout": INIT_SECONDS,
        "finish_timeout": FINISH_SECONDS,
        "finish_timeout_raises": True,
        "console": "off",
        "silent": True,
        "save_code": False,
        "program": show_command(directory),
        # System metrics are to be those of training, whose child this is.
        "x_stats_pid": os.getppid(),
    }
    known = type(wandb.Settings()).model_fields
    try:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "t5suite"),
            name=os.environ.get("WANDB_NAME") or setup["name"],
            id=setup["run_id"],
            resume=None if offline else "allow",
            dir=str(directory),
            config=setup["config"],
            mode="offline" if offline else "online",
            settings=wandb.Settings(**{name: value for name, value in settings.items() if name in known}),
        )
    except Exception as error:
        if offline:
            raise
        raise Unreachable(f"{type(error).__name__}: {error}") from error


def show_command(directory: Path) -> str | None:
    """Has wandb record the run's command as the manifest shows it, without secrets, in place of our own."""
    path = directory / MANIFEST
    if not path.is_file():
        return None
    # wandb takes arguments from here and nowhere else.
    sys.argv = read_json(path)["command"]
    return sys.argv[0]


def why_unreachable(settings) -> str | None:
    """Why W&B cannot be used from here, or None if it answers and knows the key; takes at most PROBE_SECONDS."""
    if settings.identity_token_file:
        return None
    key = settings.api_key or _netrc_key(settings.base_url)
    if not key:
        return "no API key is set (WANDB_API_KEY, or wandb login)"
    answers = []
    # A thread, since neither the look-up of a name nor an answer that trickles in can be bounded otherwise.
    asking = threading.Thread(target=lambda: answers.append(_ask(settings.base_url, key)), daemon=True)
    asking.start()
    asking.join(PROBE_SECONDS)
    return answers[0] if answers else f"{settings.base_url} did not answer within {PROBE_SECONDS:.0f} s"


def _ask(base_url: str, key: str) -> str | None:
    import requests

    query = {"query": "query Viewer { viewer { id } }", "operationName": "Viewer"}
    try:
        answer = requests.post(f"{base_url}/graphql", json=query, auth=("api", key), timeout=PROBE_SECONDS)
        viewer = ((answer.json() if answer.ok else {}).get("data") or {}).get("viewer")
    except requests.Timeout:
        return f"{base_url} did not answer within {PROBE_SECONDS:.0f} s"
    except requests.ConnectionError as error:
        return f"{base_url} cannot be reached: {_root_cause(error)}"
    except (requests.RequestException, ValueError, AttributeError):
        return f"{base_url} does not answer as W&B does"
    if answer.status_code in (401, 403) or (answer.ok and viewer is None):
        return f"{base_url} does not accept the API key"
    return None if answer.ok else f"{base_url} answers with status {answer.status_code}"


def _root_cause(error: BaseException) -> str:
    """The innermost reason, without the addresses of objects that the outer messages show."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return getattr(error, "strerror", None) or type(error).__name__


def _netrc_key(base_url: str) -> str | None:
    from requests.utils import get_netrc_auth

    found = get_netrc_auth(base_url)
    return found[1] if found else None


def set_aside_unfinished(folder: Path, run_id: str, told: Told, current: str) -> None:
    """Renames the offline segments that were not closed (`unfinished-...`); their steps are sent again."""
    for path in sorted(folder.glob(f"offline-run-*-{run_id}")):
        if path.name not in told.segments and path.name != current:
            path.rename(path.with_name(f"unfinished-{path.name}"))


def retire_segments(folder: Path, run_id: str) -> None:
    """Marks offline segments as wandb does once they are synced: what W&B lacks of their steps it gets from here."""
    for path in folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"):
        path.with_name(f"{path.name}.synced").touch()


def setup_of(directory: Path) -> dict:
    """What W&B is told of a run: `run_id`, `name`, `config`; of one that had no W&B, what its manifest says."""
    path = directory / FOLDER / SETUP_FILE
    if path.is_file():
        return read_json(path)
    manifest = read_json(directory / MANIFEST)
    return {"run_id": manifest["run_id"], "name": directory.name, "config": manifest["settings"]}


@contextlib.contextmanager
def lock(folder: Path):
    """One mirror a run: the one of a training process that was killed may still be closing.

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
                    raise TimeoutError(f"another process mirrors {folder.parent} to W&B") from None
                time.sleep(0.1)
        yield


def main(argv) -> int:
    """The process: `RUN_DIRECTORY [--live] [--offline]`; `--live` where a training process gives the words."""
    directory = Path(argv[0]).absolute()
    (directory / FOLDER).mkdir(exist_ok=True)
    if "--live" not in argv:
        return _by_hand(directory)
    # Training decides when we end; who stops it (a scheduler, Ctrl-C) often signals all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    words, voice = os.dup(0), os.fdopen(os.dup(1), "w", buffering=1)
    _redirect(directory / FOLDER / OUTPUT_FILE)

    def say(**told):
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(told), file=voice)

    try:
        with lock(directory / FOLDER):
            mirror(directory, Commands(words), say, offline="--offline" in argv)
    except Unreachable as error:
        print(error, file=sys.stderr, flush=True)
        os.dup2(words, 0)
        os.dup2(voice.fileno(), 1)
        # A new program, for wandb keeps the run that it could not start. This process keeps its pipes.
        os.execv(sys.executable, [sys.executable, "-m", MODULE, *argv, "--offline"])
    except Exception as error:
        traceback.print_exc()
        say(state="failed", reason=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _by_hand(directory: Path) -> int:
    try:
        with lock(directory / FOLDER):
            mirror(directory, Commands(), lambda **told: print(*told.values(), flush=True))
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_IO
    return EXIT_FINISHED


def _redirect(path: Path) -> None:
    """Whatever libraries print goes to a file; nothing can be asked for."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


if __name__ == "__main__":
    # Whatever still hangs in wandb's threads and exit hooks must not keep the process.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
