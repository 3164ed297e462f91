"""The process that mirrors a run's `metrics.jsonl` to Weights & Biases, beside the training process.

    python -m t5suite.tracking.mirrors.wandb runs/glue-rte-t5-small      # sends what W&B does not have yet, once

W&B gets one row a step, and each step once. How far it has come, the server is asked; offline, `told.json` says what
whole segments (`offline-run-*`) hold, and a segment that a crash left unfinished is set aside and sent again: wandb
0.31 keeps up to 32 KiB of it in memory, and `wandb sync` gives up at the first broken segment.
"""

import logging
import os
import sys
import threading
from pathlib import Path

from t5suite.base.errors import EXIT_FINISHED, EXIT_IO, EXIT_PREEMPTED
from t5suite.base.redaction import printable, redacted
from t5suite.runs.directory import MANIFEST, METRICS, read_json
from t5suite.tracking.identity import PROJECT
from t5suite.tracking.metric_lines import MetricLines
from t5suite.tracking.mirrors.telling import Commands, Told, leave, lock, outcome_of, send_rows, serve, setup_of
from t5suite.tracking.sample_lines import COLUMNS, SampleLines, cells, result_rows

logger = logging.getLogger(__name__)

FOLDER = "wandb"
MODULE = "t5suite.tracking.mirrors.wandb"
PROBE_SECONDS = 6.0
INIT_SECONDS = 30.0
FINISH_SECONDS = 10.0
OFFLINE_MODES = ("offline", "dryrun")


class Unreachable(Exception):
    """W&B does not start a run."""


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
    setup = setup_of(directory, folder)
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
    shown = WandbRows(run, directory)
    last = send_rows(shown, MetricLines(directory / METRICS, told.step + 1), commands, told.step + 1)
    outcome = outcome_of(directory, commands)
    if outcome is not None:
        shown.conclude(outcome)
    if commands.exit_code == EXIT_PREEMPTED:
        run.mark_preempting()
    run.finish(exit_code=1 if commands.orphaned else commands.exit_code)
    wandb.teardown()
    told.keep(last, told.segments + ([segment] if reason else []))
    say(state="finished", last=last)


class WandbRows:
    """A run of W&B that gets a step's metrics, and the samples of its evaluation as tables, in one row.

    What W&B makes of a table (a file, an artifact) can fail where metrics would not: they are then sent without it.
    """

    def __init__(self, run, directory: Path):
        self._run, self._directory = run, directory
        self._samples, self._last = SampleLines(directory), 0

    def log(self, row: dict, step: int) -> None:
        """One row."""
        self._last = step
        tables = {name: self._table(COLUMNS, cells(table)) for name, table in self._samples.tables(step).items()}
        self._add(row, tables, step)

    def conclude(self, results: dict) -> None:
        """The table of results and the manifest of a finished run, with its last row."""
        table = self._table(("task", "metric", "points"), result_rows(results))
        self._add({}, {"results": table}, self._last)
        try:
            self._run.save(str(self._directory / MANIFEST), base_path=str(self._directory), policy="now")
        except Exception:
            logger.exception("the manifest was not sent")

    def _add(self, row: dict, tables: dict, step: int) -> None:
        try:
            self._run.log({**row, **tables}, step=step)
        except Exception:
            if not tables:
                raise
            logger.exception("step %d: its tables were not sent", step)
            if row:
                self._run.log(row, step=step)

    def _table(self, columns, rows):
        import wandb

        return wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True)


def start(wandb, directory: Path, setup: dict, offline: bool):
    """`wandb.init` with settings under which it asks nothing, prints nothing, and ends in bounded time."""
    for name in ("PROJECT", "ENTITY", "NAME", "NOTES", "RUN_GROUP", "TAGS", "JOB_TYPE"):  # which wandb reads, too
        if os.environ.get(f"WANDB_{name}"):
            os.environ[f"WANDB_{name}"] = redacted(os.environ[f"WANDB_{name}"])
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
            project=setup.get("project") or os.environ.get("WANDB_PROJECT", PROJECT),
            entity=setup.get("entity"),
            group=setup.get("group"),
            tags=setup.get("tags") or None,
            name=(None if setup.get("named") else os.environ.get("WANDB_NAME")) or setup["name"],
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


def main(argv) -> int:
    """The process: `RUN_DIRECTORY [--live] [--offline]`; `--live` where a training process gives the words."""
    directory = Path(argv[0]).absolute()
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    if "--live" not in argv:
        return _by_hand(directory)

    def offline_instead(error, restore):
        if isinstance(error, Unreachable):
            print(error, file=sys.stderr, flush=True)
            restore()
            # A new program, for wandb keeps the run that it could not start. This process keeps its pipes.
            os.execv(sys.executable, [sys.executable, "-m", MODULE, *argv, "--offline"])

    return serve(
        folder,
        lambda commands, say: mirror(directory, commands, say, offline="--offline" in argv),
        otherwise=offline_instead,
    )


def _by_hand(directory: Path) -> int:
    try:
        with lock(directory / FOLDER):
            mirror(directory, Commands(), lambda **told: print(*told.values(), flush=True))
    except Exception as error:
        print(printable(redacted(f"error: {error}")), file=sys.stderr)
        return EXIT_IO
    return EXIT_FINISHED


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
