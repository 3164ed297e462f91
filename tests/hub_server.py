"""A stand-in for the Hugging Face hub on the loopback address: repositories with commits, read by the real clients.

    >>> with HubServer() as hub:
    ...     first = hub.commit("model", "lab/tiny", {"config.json": b"{}"})
    ...     subprocess.run(command, env={**os.environ, **hub.environment(cache)})
    ...     hub.requests[-1]
    Asked(method='GET', path='/lab/tiny/resolve/main/config.json', status=200)

It answers what `huggingface_hub`, `datasets` and `transformers` ask to read a repository: information, lists of files,
references, and files, whole or in part. It knows tokens, private and gated repositories. A `Fault` in `hub.faults`
answers a request in another way, for tests of what happens when the hub fails: `rate_limited`, `failing`, `cut`, `slow`.
"""

import contextlib
import hashlib
import http.server
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest import mock

SECTIONS = {"models": "model", "datasets": "dataset", "spaces": "space"}
API = re.compile(
    r"/api/(?P<section>models|datasets|spaces)/(?P<name>[^/]+/[^/]+)(?:/(?P<what>revision|tree|paths-info|refs)(?:/(?P<rest>.+))?)?"
)
FILE = re.compile(r"/(?P<section>(?:datasets|spaces)/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


class Asked(NamedTuple):
    """A request that was answered."""

    method: str
    path: str
    status: int


class Answer(NamedTuple):
    """A status, a body and headers; `sent_bytes` cuts the body off after so many bytes, with the connection."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = {}
    sent_bytes: int | None = None


class Fault(NamedTuple):
    """An answer to the requests whose path contains some text, instead of the true one; the first `times` of them.

    Attributes:
      answer: makes the answer from the true one.
    """

    path_part: str
    answer: Callable[[Answer], Answer]
    times: int = 1_000_000


def rate_limited(seconds: int | None = 0) -> Callable[[Answer], Answer]:
    """429, to be asked again after so many seconds."""
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    return lambda _: Answer(429, b"slow down", headers)


def failing(status: int) -> Callable[[Answer], Answer]:
    """An error of the hub's own, or of a proxy before it: 500, 502, 503."""
    return lambda _: Answer(status, b"out of order")


def unauthorized(_: Answer) -> Answer:
    """What the hub answers to a token that is wrong or has expired."""
    return Answer(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})


def cut(num_bytes: int) -> Callable[[Answer], Answer]:
    """The true answer, with the connection closed after so many bytes of the body."""
    return lambda answer: answer._replace(sent_bytes=min(num_bytes, max(0, len(answer.body) - 1)))


def slow(seconds: float) -> Callable[[Answer], Answer]:
    """The true answer, but late."""

    def late(answer: Answer) -> Answer:
        threading.Event().wait(seconds)  # tests replace time.sleep
        return answer

    return late


@dataclass
class Repository:
    """Files by commit, and the commits that branches and tags stand for.

    Attributes:
      readers: the tokens that may read it; None: everyone may.
      is_gated: it can be seen by everyone, but read only by these tokens.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    readers: set[str] | None = None
    is_gated: bool = False

    def commit_of(self, revision: str) -> str | None:
        """The commit that a revision names."""
        return self.refs.get(revision) or (revision if revision in self.commits else None)


class HubServer:
    """The hub, while its `with` block lasts.

    Attributes:
      repositories: by kind (model, dataset, space) and name.
      renamed: new names of repositories by kind and old name, to which the hub sends whoever asks for the old one.
      requests: what was asked, in order.
      faults: the first one that matches a request answers it.
      tokens: those that the hub knows; None: every one.
    """

    def __init__(self):
        self.tokens: set[str] | None = None
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.renamed: dict[tuple[str, str], str] = {}
        self.requests: list[Asked] = []
        self.faults: list[Fault] = []
        self._fault_counts: dict[int, int] = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def environment(self, cache) -> dict[str, str]:
        """The variables by which the libraries of a process use this hub, with a cache of their own."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(cache),
            "HF_HUB_CACHE": str(Path(cache) / "hub"),
            "HF_DATASETS_CACHE": str(Path(cache) / "datasets"),
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    @contextlib.contextmanager
    def read_by_this_process(self, cache) -> Iterator[None]:
        """The hub's client and `t5suite` read this hub in this block: the client has read most settings already."""
        from t5suite.base.hub import hub_reachable

        constants = {
            "ENDPOINT": self.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(Path(cache) / "hub"),
            "HF_HUB_OFFLINE": False,
        }
        hub_reachable.cache_clear()
        try:
            with (
                mock.patch.dict(os.environ, self.environment(cache)),
                mock.patch.multiple("huggingface_hub.constants", **constants),
            ):
                yield
        finally:
            hub_reachable.cache_clear()

    def forget_faults(self) -> None:
        """From here on every request is answered truly."""
        self.faults.clear()
        self._fault_counts.clear()

    def commit(self, kind: str, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Makes these files the newest commit of a branch; returns the commit's hash."""
        repository = self.repositories.setdefault((kind, name), Repository())
        digest = hashlib.sha1(f"{len(repository.commits)} {kind} {name}".encode())
        for path in sorted(files):
            digest.update(path.encode() + files[path])
        commit = digest.hexdigest()
        repository.commits[commit] = dict(files)
        repository.refs[branch] = commit
        return commit

    def answer(self, path: str, body: bytes, token: str | None = None) -> Answer:
        """The answer to a request: that of the first fault that applies, else the true one."""
        true_answer = self._refusal(path, token) or self._true_answer(path, body)
        for number, fault in enumerate(self.faults):
            count = self._fault_counts.get(number, 0)
            if fault.path_part in path and count < fault.times:
                self._fault_counts[number] = count + 1
                return fault.answer(true_answer)
        return true_answer

    def _refusal(self, path: str, token: str | None) -> Answer | None:
        """The answer to someone who may not read; None if the token may."""
        place = urllib.parse.unquote(urllib.parse.urlsplit(path).path)
        if token is not None and self.tokens is not None and token not in self.tokens and place != "/":
            return unauthorized(Answer(200))
        api, file = API.fullmatch(place), FILE.fullmatch(place)
        match = api or file
        if match is None:
            return None
        section = api["section"] if api else (file["section"] or "models/").removesuffix("/")
        kind = SECTIONS[section]
        repository = self.repositories.get((kind, match["name"]))
        if repository is None or repository.readers is None or token in repository.readers:
            return None
        if not repository.is_gated:
            return _missing("RepoNotFound")._replace(status=404 if token else 401)
        is_listing = api is not None
        return None if is_listing else _missing("GatedRepo")._replace(status=403 if token else 401)

    def _true_answer(self, path: str, body: bytes) -> Answer:
        address = urllib.parse.urlsplit(path)
        place = urllib.parse.unquote(address.path)
        if place == "/":
            return Answer(200)
        if place.removeprefix("/api/") in SECTIONS:
            return self._repositories(SECTIONS[place.removeprefix("/api/")], urllib.parse.parse_qs(address.query))
        if new_place := self._new_place(path):
            return Answer(307, headers={"Location": new_place})
        if match := API.fullmatch(place):
            return self._information(match, urllib.parse.parse_qs(address.query), body)
        if match := FILE.fullmatch(place):
            return self._file(match)
        return Answer(404)

    def _repositories(self, kind: str, query: dict) -> Answer:
        """The public repositories of an owner, or with a text in their name."""
        owner, text = (query.get(name, [""])[0] for name in ("author", "search"))
        names = [
            name
            for (kind_of_it, name), repository in self.repositories.items()
            if kind_of_it == kind and name.startswith(f"{owner}/" if owner else "") and text in name
            if repository.readers is None
        ]
        return _json([{"id": name, "modelId": name} for name in names])

    def _new_place(self, path: str) -> str | None:
        """The path below the new name, if it is one of a renamed repository."""
        for (kind, old_name), new_name in self.renamed.items():
            section = "/datasets" if kind == "dataset" else ""
            for prefix, ends in ((f"/api/{kind}s", ("", "/", "?")), (section, ("/resolve/",))):
                rest = path.removeprefix(f"{prefix}/{old_name}")
                if rest != path and any(rest == end or (end and rest.startswith(end)) for end in ends):
                    return f"{prefix}/{new_name}{rest}"
        return None

    def _information(self, match: re.Match, query: dict, body: bytes) -> Answer:
        repository = self.repositories.get((SECTIONS[match["section"]], match["name"]))
        if repository is None:
            return _missing("RepoNotFound")
        if match["what"] == "refs":
            branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
                        for name, commit in repository.refs.items()]  # fmt: skip
            return _json({"branches": branches, "tags": [], "converts": [], "pullRequests": []})
        revision, _, folder = (match["rest"] or "main").partition("/")
        commit = repository.commit_of(revision)
        if commit is None:
            return _missing("RevisionNotFound")
        files = repository.commits[commit]
        if match["what"] == "tree":
            is_recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
            return _tree(files, folder, is_recursive)
        if match["what"] == "paths-info":
            return _json(_entries_of(files, _paths_in(body)))
        return _json(
            {
                "id": match["name"],
                "sha": commit,
                "private": False,
                "gated": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": file} for file in sorted(files)],
            }
        )

    def _file(self, match: re.Match) -> Answer:
        kind = SECTIONS[(match["section"] or "models/").removesuffix("/")]
        repository = self.repositories.get((kind, match["name"]))
        if repository is None:
            return _missing("RepoNotFound")
        commit = repository.commit_of(match["revision"])
        if commit is None:
            return _missing("RevisionNotFound")
        headers = {"X-Repo-Commit": commit}
        content = repository.commits[commit].get(match["file"])
        if content is None:
            return _missing("EntryNotFound", headers)
        return Answer(200, content, {**headers, "ETag": f'"{_blob(content)}"', "Accept-Ranges": "bytes"})


def _blob(content: bytes) -> str:
    """git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _missing(code: str, headers: dict[str, str] | None = None) -> Answer:
    return Answer(404, b"", {**(headers or {}), "X-Error-Code": code, "X-Error-Message": code})


def _json(value) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _entry(path: str, content: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}


def _tree(files: dict[str, bytes], folder: str, is_recursive: bool) -> Answer:
    """The entries of a folder."""
    prefix = f"{folder}/" if folder else ""
    inside = {path: content for path, content in files.items() if path.startswith(prefix)}
    if folder and not inside:
        return _missing("EntryNotFound")
    folders = {path.rpartition("/")[0] for path in inside if "/" in path.removeprefix(prefix)}
    entries = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
    entries += [_entry(path, inside[path]) for path in sorted(inside)]
    if not is_recursive:
        entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
    return _json(entries)


def _paths_in(body: bytes) -> list[str]:
    """The paths that a request for information on paths names, as JSON or as a form."""
    text = body.decode()
    if text.lstrip().startswith("{"):
        return json.loads(text)["paths"]
    return urllib.parse.parse_qs(text).get("paths", [])


def _entries_of(files: dict[str, bytes], paths: list[str]) -> list[dict]:
    """Files and folders among the paths; others are left out, as the hub does."""
    entries = []
    for path in paths:
        if path in files:
            entries.append(_entry(path, files[path]))
        elif any(name.startswith(f"{path}/") for name in files):
            entries.append({"type": "directory", "path": path, "size": 0, "oid": "0" * 40})
    return entries


def _handler_of(hub: HubServer):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            answer = _part_of(hub.answer(self.path, body, token), self.headers.get("Range"))
            hub.requests.append(Asked(self.command, self.path, answer.status))
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: answer.sent_bytes])
            if answer.sent_bytes is not None:
                self.close_connection = True

        do_GET = do_HEAD = do_POST = answer

        def log_message(self, *_):
            """Says nothing."""

    return Handler


def _part_of(answer: Answer, asked_range: str | None) -> Answer:
    """The bytes of a file that a request asks for."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked_range or "")
    if match is None or answer.status != 200:
        return answer
    start = int(match[1])
    end = min(int(match[2] or len(answer.body)) + 1, len(answer.body))
    headers = {**answer.headers, "Content-Range": f"bytes {start}-{end - 1}/{len(answer.body)}"}
    return answer._replace(status=206, body=answer.body[start:end], headers=headers)
