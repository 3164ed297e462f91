"""A W&B server of one's own on the loopback: as much of the protocol as the real client needs, and its faults.

    >>> with WandbServer() as server, mock.patch.dict(os.environ, server.environment()):
    ...     run = wandb.init(project="p", id="4f2a", mode="online")
    ...     run.log({"train/loss": 0.4}, step=10)
    ...     run.finish()
    ...     server.runs["4f2a"].steps()
    [10]

Sweeps: `wandb sweep FILE` makes one (`server.sweeps`), and an agent gets `server.trials` one after the other, a stop for
every run in `server.stops`, and an end when there is nothing more.

Seen working with wandb 0.31. GraphQL operations are functions in OPERATIONS, by name; any other is answered with
`{"data": {}}`. What a run logs arrives by `file_stream`, as lines with offsets, and is kept by offset, as W&B does: a
line that comes again with its offset replaces itself.
"""

import gzip
import json
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

ENTITY = "loopback"
API_KEY = "0123456789abcdef0123456789abcdef01234567"
HISTORY, EVENTS, LOGS = "wandb-history.jsonl", "wandb-events.jsonl", "output.log"
# HTTP statuses that a server may be told to answer everything with.
REFUSED, BROKEN = 401, 503


@dataclass
class ServedRun:
    """What the server knows of one run.

    Attributes:
      lines: `{file: {offset: line}}` as streamed.
      sent: every history line in order of arrival, repeated ones too.
      exit_code: None while the run is open.
    """

    name: str
    project: str
    entity: str = ENTITY
    config: dict = field(default_factory=dict)
    summary: dict = field(default_factory=dict)
    lines: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)
    files: set = field(default_factory=set)
    exit_code: int | None = None
    sweep: str | None = None

    def rows(self) -> list[dict]:
        """The history as W&B would show it, one row an offset."""
        stored = self.lines.get(HISTORY, {})
        return [json.loads(stored[offset]) for offset in sorted(stored)]

    def steps(self) -> list[int]:
        """The steps of the history's rows, in order."""
        return [row["_step"] for row in self.rows()]

    def tail(self, file: str) -> str:
        """The last line of a stream, as a JSON list of JSON texts."""
        stored = self.lines.get(file, {})
        return json.dumps([stored[max(stored)]] if stored else [])

    def count(self, file: str) -> int:
        """How many lines of a stream there are."""
        return len(self.lines.get(file, {}))


@dataclass
class ServedSweep:
    """What the server knows of a sweep.

    Attributes:
      text: its configuration, as the client sent it (YAML).
      agents: those that have registered.
      states: `{run: whether it was running}` of every heartbeat.
    """

    name: str
    project: str
    entity: str
    text: str
    agents: list = field(default_factory=list)
    states: list = field(default_factory=list)

    @property
    def config(self) -> dict:
        """The configuration as plain data."""
        return yaml.safe_load(self.text)


class WandbServer:
    """Listens on a free port of 127.0.0.1 as long as the `with` block lasts.

    Attributes:
      runs: `{run id: ServedRun}`.
      requests: (seconds since the epoch, method, path, operation, body as text) of every request.
      sweeps: `{sweep id: ServedSweep}`.
      trials: parameters of the trials that agents are still to run, `{name: value}` each.
      started: the runs that agents were told to start.
      stops: ids of runs that agents are to stop.
      status: a status that every request is answered with (REFUSED, BROKEN), or None for the right answers.
      silent: seconds that every request waits for its answer.
    """

    def __init__(self, api_key: str = API_KEY):
        self.api_key = api_key
        self.runs: dict[str, ServedRun] = {}
        self.requests: list[tuple] = []
        self.sweeps: dict[str, ServedSweep] = {}
        self.trials: list[dict] = []
        self.stops: set[str] = set()
        self.started: list[str] = []
        self.status: int | None = None
        self.silent = 0.0
        self.operations = dict(OPERATIONS)
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._http = None
        self._listen(0)
        self.port = self._http.server_address[1]

    @property
    def url(self) -> str:
        """The value for WANDB_BASE_URL."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """The variables that send the real client here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": self.api_key, "WANDB_ERROR_REPORTING": "false"}

    def drop(self) -> None:
        """The network goes: connections break and new ones are refused."""
        if self._http is None:
            return
        http, self._http = self._http, None
        http.shutdown()
        http.server_close()
        for connection in list(self._connections):
            with _ignored():
                connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """The network is back, with everything that the server knew."""
        if self._http is None:
            self._listen(self.port)

    def wait_for(self, condition, seconds: float = 20.0) -> bool:
        """Whether `condition(server)` comes true within so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                if condition(self):
                    return True
            time.sleep(0.02)
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.drop()

    def _listen(self, port: int):
        handler = type("BoundHandler", (_Handler,), {"served": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def answer(self, method: str, path: str, body: bytes, authorization: str) -> tuple[int, dict]:
        """Status and JSON of one request."""
        text = body.decode("utf-8", errors="replace")
        query = json.loads(text) if path == "/graphql" and text else {}
        operation = query.get("operationName") or _operation_in(query.get("query", ""))
        with self._lock:
            self.requests.append((time.time(), method, path, operation, text))
        time.sleep(self.silent)
        if self.status is not None:
            return self.status, {"errors": [{"message": f"answered {self.status} on purpose"}]}
        if path == "/graphql":
            if not _has_key(authorization, self.api_key):
                return 401, {"errors": [{"message": "user is not logged in"}]}
            with self._lock:
                handle = self.operations.get(operation)
                return 200, {"data": handle(self, query.get("variables") or {}) if handle else {}}
        stream = re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", path)
        if stream:
            with self._lock:
                return 200, self._stream(self.runs[stream[3]], json.loads(text or "{}"))
        return 200, {}

    def _stream(self, run: ServedRun, message: dict) -> dict:
        for name, chunk in (message.get("files") or {}).items():
            stored = run.lines.setdefault(name, {})
            for number, line in enumerate(chunk.get("content", [])):
                stored[chunk["offset"] + number] = line
            if name == HISTORY:
                run.sent += chunk.get("content", [])
            if name == "wandb-summary.json":
                run.summary = json.loads(chunk["content"][-1])
        if message.get("complete"):
            run.exit_code = message.get("exitcode", 0)
        run.files.update(message.get("uploaded") or [])
        return {"exitcode": None, "limits": {}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: WandbServer

    def setup(self):
        super().setup()
        self.served._connections.add(self.connection)

    def finish(self):
        self.served._connections.discard(self.connection)
        with _ignored():
            super().finish()

    def handle(self):
        with _ignored():
            super().handle()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        status, content = self.served.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_DELETE = do_POST

    def log_message(self, *_):
        """Requests are kept, not printed."""


def viewer(server: WandbServer, variables: dict) -> dict:
    """Who owns the key."""
    viewer = {"id": "1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": {"edges": []}}
    return {"viewer": viewer}


def resume_status(server: WandbServer, variables: dict) -> dict:
    """What is there of a run, which the client goes on from."""
    run = server.runs.get(variables["name"])
    if run is None:
        return {"model": None}
    bucket = {
        "id": run.name,
        "name": run.name,
        "displayName": run.name,
        "summaryMetrics": json.dumps(run.summary),
        "logLineCount": run.count(LOGS),
        "historyLineCount": run.count(HISTORY),
        "eventsLineCount": run.count(EVENTS),
        "historyTail": run.tail(HISTORY),
        "eventsTail": run.tail(EVENTS),
        "config": json.dumps(run.config),
        "tags": [],
        "notes": None,
        "wandbConfig": json.dumps({"t": 1}),
    }
    return {"model": {"id": run.project, "name": run.project, "entity": _entity(run), "bucket": bucket}}


def upsert_run(server: WandbServer, variables: dict) -> dict:
    """A run is made, or its configuration or summary changed."""
    name = variables["name"]
    inserted = name not in server.runs
    run = server.runs.setdefault(
        name, ServedRun(name, variables.get("project") or "uncategorized", variables.get("entity") or ENTITY)
    )
    if variables.get("config"):
        run.config = json.loads(variables["config"])
    if variables.get("summaryMetrics"):
        run.summary = json.loads(variables["summaryMetrics"])
    run.sweep = variables.get("sweep") or run.sweep
    bucket = {
        "id": name,
        "name": name,
        "displayName": variables.get("displayName") or name,
        "description": None,
        "config": json.dumps(run.config),
        "sweepName": run.sweep,
        "project": {"id": run.project, "name": run.project, "entity": _entity(run)},
        "historyLineCount": run.count(HISTORY),
    }
    return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}


def create_run_files(server: WandbServer, variables: dict) -> dict:
    """Where the client may put a run's files."""
    names = variables["files"]
    url = f"{server.url}/storage/{variables['run']}"
    files = [{"name": name, "uploadUrl": f"{url}/{number}"} for number, name in enumerate(names)]
    return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}


def artifact_type(server: WandbServer, variables: dict) -> dict:
    """No artifact of that name is there yet."""
    return {"project": {"artifact": None}}


def create_artifact(server: WandbServer, variables: dict) -> dict:
    """An artifact (a table, say) is taken as if its files were there already."""
    digest = (variables.get("input") or {}).get("digest")
    sequence = {"id": "1", "latestArtifact": None}
    artifact = {"id": "1", "digest": digest, "state": "COMMITTED", "aliases": [], "artifactSequence": sequence}
    return {"createArtifact": {"artifact": artifact}}


# ---------------------------------------------------------------------------------------------------------------------
# Sweeps


def upsert_sweep(server: WandbServer, variables: dict) -> dict:
    """A sweep is made."""
    sweep = ServedSweep(
        f"sweep{len(server.sweeps) + 1}",
        variables["projectName"] or "uncategorized",
        variables["entityName"] or ENTITY,
        variables["config"],
    )
    server.sweeps[sweep.name] = sweep
    project = {"id": sweep.project, "name": sweep.project, "entity": {"id": sweep.entity, "name": sweep.entity}}
    return {
        "upsertSweep": {
            "sweep": {"id": sweep.name, "name": sweep.name, "project": project},
            "configValidationWarnings": [],
        }
    }


def sweep_with_runs(server: WandbServer, variables: dict) -> dict:
    """A sweep's configuration, whose command an agent runs."""
    sweep = server.sweeps.get(variables["sweep"])
    if sweep is None:
        return {"project": {"sweep": None}}
    about = {"id": sweep.name, "name": sweep.name, "method": sweep.config["method"], "state": "RUNNING"}
    runs = {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}}
    return {"project": {"sweep": {**about, "config": sweep.text, "runs": runs}}}


def create_agent(server: WandbServer, variables: dict) -> dict:
    """An agent registers; its id holds the sweep's."""
    sweep = server.sweeps[variables["sweep"]]
    sweep.agents.append(variables["host"])
    agent = f"{sweep.name}-agent{len(sweep.agents)}"
    return {"createAgent": {"agent": {"id": agent, "name": agent}}}


def heartbeat(server: WandbServer, variables: dict) -> dict:
    """What an agent is to do now: stop a run, start the next one, or end."""
    sweep = server.sweeps[variables["id"].partition("-")[0]]
    states = json.loads(variables["runState"] or "{}")
    sweep.states.append(states)
    running = [run for run, is_running in states.items() if is_running]
    commands = [{"type": "stop", "run_id": run} for run in running if run in server.stops]
    if not running and server.trials:
        run = f"{sweep.name}-run{len(server.started) + 1}"
        server.started.append(run)
        args = {name: {"value": value} for name, value in server.trials.pop(0).items()}
        commands = [{"type": "run", "run_id": run, "program": sweep.config.get("program"), "args": args}]
    elif not running:
        commands = [{"type": "exit"}]
    return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": json.dumps(commands)}}


def _entity(run: ServedRun) -> dict:
    return {"id": run.entity, "name": run.entity}


def _operation_in(query: str) -> str | None:
    found = re.search(r"(?:query|mutation|subscription)\s+(\w+)", query)
    return found[1] if found else None


def _has_key(authorization: str, api_key: str) -> bool:
    import base64

    kind, _, value = authorization.partition(" ")
    return kind == "Basic" and base64.b64decode(value).decode().rpartition(":")[2] == api_key


class _ignored:
    """A peer that went away is what some tests are about."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is not None and issubclass(kind, (OSError, ValueError))


OPERATIONS = {
    "Viewer": viewer,
    "RunResumeStatus": resume_status,
    "UpsertBucket": upsert_run,
    "CreateRunFiles": create_run_files,
    "ArtifactType": artifact_type,
    "CreateArtifact": create_artifact,
    "UpsertSweep": upsert_sweep,
    "SweepWithRuns": sweep_with_runs,
    "CreateAgent": create_agent,
    "Heartbeat": heartbeat,
}
