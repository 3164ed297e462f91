"""A W&B server on the loopback: as much of the protocol as the real client needs, and its faults.

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

import base64
import contextlib
import gzip
import json
import os
import re
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import yaml

ENTITY = "loopback"
API_KEY = "0123456789abcdef0123456789abcdef01234567"
HISTORY, EVENTS, LOGS = "wandb-history.jsonl", "wandb-events.jsonl", "output.log"
# HTTP statuses that a server may be told to answer everything with.
REFUSED, BROKEN = 401, 503


@dataclass
class ServedRun:
    """One run: `lines` is `{file: {offset: line}}`, `sent` every history line in order of arrival."""

    name: str
    project: str
    entity: str = ENTITY
    config: dict = field(default_factory=dict)
    lines: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)
    files: set = field(default_factory=set)
    exit_code: int | None = None
    sweep: str | None = None
    group: str | None = None
    tags: list = field(default_factory=list)

    def rows(self) -> list[dict]:
        """The history as W&B would show it, one row an offset."""
        stored = self.lines.get(HISTORY, {})
        return [json.loads(stored[offset]) for offset in sorted(stored)]

    def steps(self) -> list[int]:
        return [row["_step"] for row in self.rows()]


def wandb_environment(**variables):
    """The environment without what the machine's user may have set for W&B."""
    variables_of_others = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    variables_of_others |= {"NETRC": os.devnull, "HOME": tempfile.mkdtemp()}
    return mock.patch.dict(os.environ, variables_of_others | variables, clear=True)


class WandbServer:
    """Listens on a free port of 127.0.0.1 as long as the `with` block lasts.

    Attributes:
      runs, sweeps (their configurations): by id.
      requests: (seconds since the epoch, method, path, operation, body as text) of every request.
      trials: parameters of the trials that agents are still to run, `{name: value}` each.
      started, stops: ids of the runs that agents were told to start, and are to stop.
      status: a status that every request is answered with (REFUSED, BROKEN), or None for the right answers.
      silent: seconds that every request waits for its answer.
    """

    def __init__(self):
        self.api_key = API_KEY
        self.runs, self.sweeps, self.requests = {}, {}, []
        self.trials, self.started, self.stops = [], [], set()
        self.status, self.silent = None, 0.0
        self._lock, self._connections, self._http = threading.RLock(), set(), None
        self._listen(0)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": self.api_key, "WANDB_ERROR_REPORTING": "false"}

    def drop(self) -> None:
        """The network goes: connections break and new ones are refused."""
        if self._http is not None:
            http, self._http = self._http, None
            http.shutdown()
            http.server_close()
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
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
        self._http = ThreadingHTTPServer(("127.0.0.1", port), type("BoundHandler", (_Handler,), {"served": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def answer(self, method: str, path: str, body: bytes, authorization: str) -> tuple[int, dict]:
        """Status and JSON of one request."""
        text = body.decode("utf-8", errors="replace")
        query = json.loads(text) if path == "/graphql" and text else {}
        named = re.search(r"(?:query|mutation|subscription)\s+(\w+)", query.get("query", ""))
        operation = query.get("operationName") or (named and named[1])
        with self._lock:
            self.requests.append((time.time(), method, path, operation, text))
        time.sleep(self.silent)
        if self.status is not None:
            return self.status, {"errors": [{"message": f"answered {self.status} on purpose"}]}
        stream = re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", path)
        with self._lock:
            if stream:
                return 200, self._stream(self.runs[stream[3]], json.loads(text or "{}"))
            if path != "/graphql":
                return 200, {}
            if base64.b64decode(authorization.partition(" ")[2]).decode().rpartition(":")[2] != self.api_key:
                return 401, {"errors": [{"message": "user is not logged in"}]}
            handle = OPERATIONS.get(operation)
            return 200, {"data": handle(self, query.get("variables") or {}) if handle else {}}

    def _stream(self, run: ServedRun, message: dict) -> dict:
        for name, chunk in (message.get("files") or {}).items():
            content = chunk.get("content", [])
            stored = run.lines.setdefault(name, {})
            stored |= {chunk["offset"] + number: line for number, line in enumerate(content)}
            if name == HISTORY:
                run.sent += content
        if message.get("complete"):
            run.exit_code = message.get("exitcode", 0)
        run.files.update(message.get("uploaded") or [])
        return {"exitcode": None, "limits": {}}


class _Handler(BaseHTTPRequestHandler):
    """A peer that went away is what some tests are about: it is no error."""

    protocol_version = "HTTP/1.1"
    served: WandbServer

    def setup(self):
        super().setup()
        self.served._connections.add(self.connection)

    def finish(self):
        self.served._connections.discard(self.connection)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def handle(self):
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        status, content = self.served.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_DELETE = do_POST

    def log_message(self, *_):
        """Requests are kept, not printed."""


def viewer(server: WandbServer, variables: dict) -> dict:
    about = {"id": "1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": {"edges": []}}
    return {"viewer": about}


def bucket_of(run: ServedRun) -> dict:
    """A run as the client reads it, which goes on from it."""
    streams = {"history": run.lines.get(HISTORY, {}), "events": run.lines.get(EVENTS, {})}
    entity = {"id": run.entity, "name": run.entity}
    return {
        **dict.fromkeys(("id", "name", "displayName"), run.name), **dict.fromkeys(("description", "notes")),
        "summaryMetrics": "{}", "logLineCount": len(run.lines.get(LOGS, {})),
        **{f"{name}LineCount": len(stored) for name, stored in streams.items()},
        **{f"{name}Tail": json.dumps([stored[max(stored)]] if stored else []) for name, stored in streams.items()},
        "config": json.dumps(run.config), "sweepName": run.sweep,
        "project": {"id": run.project, "name": run.project, "entity": entity}, "tags": [],
        "wandbConfig": json.dumps({"t": 1}),
    }  # fmt: skip


def resume_status(server: WandbServer, variables: dict) -> dict:
    run = server.runs.get(variables["name"])
    return {"model": run and {**bucket_of(run)["project"], "bucket": bucket_of(run)}}


def upsert_run(server: WandbServer, variables: dict) -> dict:
    name, inserted = variables["name"], variables["name"] not in server.runs
    new = ServedRun(name, variables.get("project") or "uncategorized", variables.get("entity") or ENTITY)
    run = server.runs.setdefault(name, new)
    run.config = json.loads(variables.get("config") or json.dumps(run.config))
    run.sweep = variables.get("sweep") or run.sweep
    run.group = variables.get("groupName") or run.group
    run.tags = variables.get("tags") or run.tags
    return {"upsertBucket": {"bucket": bucket_of(run), "inserted": inserted}}


def create_run_files(server: WandbServer, variables: dict) -> dict:
    url = f"{server.url}/storage/{variables['run']}"
    files = [{"name": name, "uploadUrl": f"{url}/{number}"} for number, name in enumerate(variables["files"])]
    return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}


def create_artifact(server: WandbServer, variables: dict) -> dict:
    """An artifact (a table, say) is taken as if its files were there already."""
    artifact = {"id": "1", "digest": (variables.get("input") or {}).get("digest"), "state": "COMMITTED", "aliases": []}
    return {"createArtifact": {"artifact": artifact | {"artifactSequence": {"id": "1", "latestArtifact": None}}}}


def upsert_sweep(server: WandbServer, variables: dict) -> dict:
    name, project = f"sweep{len(server.sweeps) + 1}", variables["projectName"] or "uncategorized"
    entity = variables["entityName"] or ENTITY
    server.sweeps[name] = variables["config"]
    place = {"id": project, "name": project, "entity": {"id": entity, "name": entity}}
    return {"upsertSweep": {"sweep": {"id": name, "name": name, "project": place}, "configValidationWarnings": []}}


def sweep_with_runs(server: WandbServer, variables: dict) -> dict:
    """A sweep's configuration, whose command an agent runs."""
    name, text = variables["sweep"], server.sweeps[variables["sweep"]]
    about = {"id": name, "name": name, "method": yaml.safe_load(text)["method"], "state": "RUNNING"}
    runs = {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}}
    return {"project": {"sweep": {**about, "config": text, "runs": runs}}}


def create_agent(server: WandbServer, variables: dict) -> dict:
    """An agent registers; its id holds the sweep's."""
    agent = f"{variables['sweep']}-agent1"
    return {"createAgent": {"agent": {"id": agent, "name": agent}}}


def heartbeat(server: WandbServer, variables: dict) -> dict:
    """What an agent is to do now: stop a run, start the next one, or end."""
    sweep = variables["id"].partition("-")[0]
    running = [run for run, is_running in json.loads(variables["runState"] or "{}").items() if is_running]
    commands = [{"type": "stop", "run_id": run} for run in running if run in server.stops]
    if not running and server.trials:
        run = f"{sweep}-run{len(server.started) + 1}"
        server.started.append(run)
        args = {name: {"value": value} for name, value in server.trials.pop(0).items()}
        program = yaml.safe_load(server.sweeps[sweep]).get("program")
        commands = [{"type": "run", "run_id": run, "program": program, "args": args}]
    elif not running:
        commands = [{"type": "exit"}]
    return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": json.dumps(commands)}}


OPERATIONS = {
    "Viewer": viewer, "RunResumeStatus": resume_status, "UpsertBucket": upsert_run,
    "CreateRunFiles": create_run_files, "ArtifactType": lambda server, variables: {"project": {"artifact": None}},
    "CreateArtifact": create_artifact, "UpsertSweep": upsert_sweep, "SweepWithRuns": sweep_with_runs,
    "CreateAgent": create_agent, "Heartbeat": heartbeat,
}  # fmt: skip
