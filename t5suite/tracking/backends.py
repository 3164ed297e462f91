"""W&B and TensorBoard as the separate process (`mirror`) uses them: a run that takes rows.

    >>> run = TensorBoardRun(run_dir, {"run_id": "4f2a", "name": "rte", "config": {...}, "first": 0, ...}, {})
    >>> run.log({"train/loss": 0.4, "eval/f1": 90.0}, 10, {})
    >>> run.finish(0)

Each is made from a run directory, the description of the run, and what an earlier process recorded of the tracker's run
(`resume_facts`). It has a `state` (reported by the process), `keeps_steps` (whether logged steps are stored
permanently), `last_step()` (the last one stored; None if unknown), `log(row, step, tables of samples)`,
`conclude(results, manifest)` and `finish(exit_code)`.
"""

import logging
import math
import netrc
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from t5suite.base.errors import EXIT_PREEMPTED
from t5suite.base.files import read_json
from t5suite.base.redaction import redacted
from t5suite.runs.directory import MANIFEST
from t5suite.tracking.metric_lines import SAMPLE_COLUMNS
from t5suite.tracking.tables import (
    RESULT_COLUMNS,
    json_as_markdown,
    result_rows,
    results_as_markdown,
    sample_rows,
    samples_as_markdown,
)

logger = logging.getLogger(__name__)

PROJECT = "t5suite"
PROBE_SECONDS = 6.0
INIT_SECONDS = 30.0
FINISH_SECONDS = 10.0
OFFLINE_MODES = ("offline", "dryrun")
# Variables that wandb reads by itself and shows.
SHOWN_VARIABLES = tuple(
    f"WANDB_{name}" for name in ("PROJECT", "ENTITY", "NAME", "NOTES", "RUN_GROUP", "TAGS", "JOB_TYPE")
)


class Unreachable(Exception):
    """W&B does not start a run."""


class WandbRun:
    """Weights & Biases: one row a step, with the samples of its evaluation as tables; offline if W&B is unreachable.

    The server is asked for its last step. Offline, `told.json` says which segments (`wandb/offline-run-*`) are whole.
    One that a crash left unfinished is set aside and sent again: wandb 0.31 keeps up to 32 KiB of it in memory, and
    `wandb sync` stops at the first broken segment.

    Raises:
      OSError: W&B cannot be used, and the run was to be sent by hand.
      Unreachable: W&B answers, but did not start a run.
    """

    keeps_steps = False

    def __init__(self, directory: Path, setup: dict, resume_facts: dict):
        import wandb

        hide_secrets_in_variables()
        self._wandb = wandb
        self._directory = directory
        folder = directory / "wandb"
        folder.mkdir(exist_ok=True)
        settings = wandb.setup().settings
        is_offline_mode = settings.mode in OFFLINE_MODES
        reason = "asked for" if setup["offline"] or is_offline_mode else why_wandb_unreachable(settings)
        if reason and setup["by_hand"]:
            raise OSError(f"W&B: {reason}; nothing was sent")
        self._run = start(wandb, directory, setup, offline=reason is not None)
        run_id = setup["run_id"]
        if reason is None:
            # W&B drops a row before the step at which a run that it has goes on.
            self._last = max(setup["first"] - 1, self._run.starting_step, 0)
            self._segment = None
            self.resume_facts = {"segments": []}
            mark_as_synced(folder, run_id)
            self.state = {"state": "online", "place": self._run.url}
        else:
            self._last = max(setup["first"] - 1, 0)
            self._segment = Path(self._run.settings.sync_dir).name
            self.resume_facts = {"segments": resume_facts.get("segments", [])}
            set_aside_unfinished(folder, run_id, whole_segments=[*self.resume_facts["segments"], self._segment])
            sync = f"wandb sync {shlex.quote(str(folder))}/offline-run-*-{run_id}"
            self.state = {"state": "offline", "reason": reason, "wanted": is_offline_mode, "sync": sync}

    def last_step(self) -> int | None:
        """What the server has; None offline."""
        return self._run.starting_step - 1 if self._segment is None else None

    def log(self, row: dict, step: int, tables: dict[str, list[dict]]) -> None:
        """One row."""
        self._last = step
        sample_tables = {name: self._table(SAMPLE_COLUMNS, sample_rows(samples)) for name, samples in tables.items()}
        self._run.log({**row, **sample_tables}, step=step)

    def conclude(self, results: dict, manifest: dict) -> None:
        """The table of results and the manifest of a finished run, with its last row."""
        self._run.log({"results": self._table(RESULT_COLUMNS, result_rows(results))}, step=self._last)
        try:
            self._run.save(str(self._directory / MANIFEST), base_path=str(self._directory), policy="now")
        except Exception:
            logger.exception("the manifest was not sent")

    def finish(self, exit_code: int) -> None:
        """Waits at most FINISH_SECONDS for pending data; an offline segment is complete then."""
        if exit_code == EXIT_PREEMPTED:
            self._run.mark_preempting()
        self._run.finish(exit_code=exit_code)
        self._wandb.teardown()
        if self._segment is not None:
            self.resume_facts = {"segments": [*self.resume_facts["segments"], self._segment]}

    def _table(self, columns, rows):
        return self._wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True)


def mark_as_synced(folder: Path, run_id: str) -> None:
    """Marks a run's offline segments as wandb itself marks them: W&B gets their missing steps from this process."""
    for path in folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"):
        path.with_name(f"{path.name}.synced").touch()


def set_aside_unfinished(folder: Path, run_id: str, whole_segments: list[str]) -> None:
    """Renames a run's offline segments that were not closed: their steps are sent again."""
    for path in sorted(folder.glob(f"offline-run-*-{run_id}")):
        if path.name not in whole_segments:
            path.rename(path.with_name(f"unfinished-{path.name}"))


def hide_secrets_in_variables() -> None:
    """Takes secrets out of what wandb shows of its variables, which `wandb.setup` reads once and for all."""
    for name in SHOWN_VARIABLES:
        if os.environ.get(name):
            os.environ[name] = redacted(os.environ[name])


def start(wandb, directory: Path, setup: dict, offline: bool):
    """`wandb.init` with settings under which it prompts for nothing, prints nothing, and ends in bounded time.

    Entity, group and tags are those of wandb's own variables: WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_TAGS.
    """
    if (directory / MANIFEST).is_file():
        # wandb records this process's arguments: these are the run's command without secrets.
        sys.argv = read_json(directory / MANIFEST)["command"]
    name_of_user = None if setup.get("named") else os.environ.get("WANDB_NAME")
    try:
        return wandb.init(
            project=setup.get("project") or os.environ.get("WANDB_PROJECT", PROJECT),
            name=name_of_user or setup["name"],
            id=setup["run_id"],
            resume=None if offline else "allow",
            dir=str(directory),
            config=setup["config"],
            mode="offline" if offline else "online",
            settings=quiet_settings(wandb),
        )
    except Exception as error:
        if offline:
            raise
        raise Unreachable(f"{type(error).__name__}: {error}") from error


def quiet_settings(wandb):
    """wandb's settings without prompts and output, with bounded times, as far as the installed version has them."""
    settings = {
        "init_timeout": INIT_SECONDS,
        "finish_timeout": FINISH_SECONDS,
        "finish_timeout_raises": True,
        "console": "off",
        "silent": True,
        "save_code": False,
        "program": sys.argv[0],
        "x_stats_pid": os.getppid(),  # system metrics of training, the parent process
    }
    fields = type(wandb.Settings()).model_fields
    return wandb.Settings(**{name: setting for name, setting in settings.items() if name in fields})


def why_wandb_unreachable(settings) -> str | None:
    """Why W&B cannot be used from here, or None if it answers and knows the key; takes at most PROBE_SECONDS."""
    if settings.identity_token_file:
        return None
    url = settings.base_url
    key = settings.api_key or key_of_netrc(url, os.environ)
    if not key:
        return "no API key is set (WANDB_API_KEY, or wandb login)"
    reasons: list[str | None] = []
    # In a thread, because neither a DNS lookup nor a slow response can be bounded otherwise.
    probe = threading.Thread(target=lambda: reasons.append(why_refused(url, key)), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return reasons[0] if reasons else no_answer(url)


def key_of_netrc(url: str, environ: Mapping[str, str]) -> str | None:
    """The key that `wandb login` has written for a server to netrc: for its host and port, or for its host.

    >>> key_of_netrc("http://localhost:8080", {"NETRC": "/home/me/.netrc"})   # machine localhost:8080 ...
    '0123456789abcdef...'
    """
    try:
        logins = netrc.netrc(_netrc_file(environ)).hosts
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    address = urlsplit(url)
    for host in (address.netloc, address.hostname, "default"):
        if host in logins:
            _, _, key = logins[host]
            return key
    return None


def _netrc_file(environ: Mapping[str, str]) -> Path:
    """Where W&B keeps keys: the file that NETRC names, else ~/.netrc, or ~/_netrc if there is no other."""
    if environ.get("NETRC"):
        return Path(environ["NETRC"]).expanduser()
    home = Path(environ.get("HOME", "~")).expanduser()
    windows_file = home / "_netrc"
    if windows_file.exists() and not (home / ".netrc").exists():
        return windows_file
    return home / ".netrc"


def why_refused(url: str, key: str) -> str | None:
    """Why W&B's server does not accept a request with this key; None if it does."""
    import requests

    query = {"query": "query Viewer { viewer { id } }", "operationName": "Viewer"}
    try:
        answer = requests.post(f"{url}/graphql", json=query, auth=("api", key), timeout=PROBE_SECONDS)
        content = answer.json() if answer.ok else {}
        viewer = (content.get("data") or {}).get("viewer")
    except requests.Timeout:
        return no_answer(url)
    except requests.ConnectionError as error:
        cause = innermost_cause(error)
        return f"{url} cannot be reached: {getattr(cause, 'strerror', None) or type(cause).__name__}"
    except (requests.RequestException, ValueError, AttributeError):
        return f"{url} does not answer as W&B does"
    if answer.status_code in (401, 403) or (answer.ok and viewer is None):
        return f"{url} does not accept the API key"
    return None if answer.ok else f"{url} answers with status {answer.status_code}"


def no_answer(url: str) -> str:
    return f"{url} did not answer within {PROBE_SECONDS:.0f} s"


def innermost_cause(error: BaseException) -> BaseException:
    """The error that began it; the outer messages show addresses of objects."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return error


class TensorBoardRun:
    """TensorBoard's event files, below the run directory or in the run's own folder below TENSORBOARD_LOGGING_DIR.

    Samples, results, settings and the manifest are texts (Markdown). Steps in earlier files that `told.json` does not
    have are discarded.
    """

    keeps_steps = True

    def __init__(self, directory: Path, setup: dict, resume_facts: dict):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = Event
        self._summary = Summary
        self._text = text_pb
        folder = directory / "tensorboard"
        folder_of_all_runs = os.environ.get("TENSORBOARD_LOGGING_DIR")
        if folder_of_all_runs:
            folder = Path(folder_of_all_runs) / f"{directory.name}-{setup['run_id']}"
        folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a row that was logged is in the file, even if this process is killed.
        self._file = (folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}").open("xb", buffering=0)
        self._records = RecordWriter(self._file)
        self._last = max(setup["first"] - 1, 0)
        self._write(file_version="brain.Event:2")
        self._write(step=setup["first"], session_log=SessionLog(status=SessionLog.START))
        if setup["first"] == 0:
            description = {name: entry for name, entry in setup.items() if name != "config"}
            texts = {"run": json_as_markdown(description), "settings": json_as_markdown(setup["config"])}
            self._add_texts(0, texts)
        self.resume_facts = {}
        self.state = {"state": "online", "place": f"tensorboard --logdir {shlex.quote(str(folder))}"}

    def last_step(self) -> None:
        """`told.json` has it."""

    def log(self, row: dict, step: int, tables: dict[str, list[dict]]) -> None:
        """One point a metric; samples as texts."""
        self._last = step
        points = [
            self._summary.Value(tag=name, simple_value=number) for name, number in row.items() if not math.isnan(number)
        ]
        self._write(step=step, summary=self._summary(value=points))
        self._add_texts(step, {name: samples_as_markdown(samples) for name, samples in tables.items()})

    def conclude(self, results: dict, manifest: dict) -> None:
        """Results and manifest as texts of the last step."""
        texts = {"results": results_as_markdown(results), "manifest": json_as_markdown(manifest)}
        self._add_texts(self._last, texts)

    def finish(self, exit_code: int) -> None:
        """Closes the file."""
        self._file.close()

    def _add_texts(self, step: int, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            self._write(step=step, summary=self._text(name, text))

    def _write(self, **fields) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
