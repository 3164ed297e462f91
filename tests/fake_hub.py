"""A Hugging Face hub of a few addresses, on this machine: it makes repositories and takes commits.

    with FakeHub() as hub:
        subprocess.run([...], env={**os.environ, **hub.environment})
    hub.files["ada/rte"]["README.md"]

Of the real one's interface (https://huggingface.co/spaces/huggingface/openapi) it has what `create_repo` and
`upload_folder` ask for; every file comes in the commit itself, in base64.
"""

import base64
import http.server
import json
import threading

ONLINE = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
TOKEN = "hf_TokenOfNobodyAtAllForThisTestOnly"


class FakeHub:
    """A hub that knows one token.

    Attributes:
      files: by repository, the bytes of its files.
      commits: messages, in order.
      tokens: of every request that asks for something to be made or taken.
      checked: cards whose metadata it was asked to look at.
      refused: status code for commits, to play a hub that fails.
    """

    def __init__(self):
        self.files, self.commits, self.tokens, self.checked, self.refused = {}, [], [], [], None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to take this for the hub."""
        return {"HF_ENDPOINT": self.address, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **ONLINE}

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def commit(self, repository: str, lines: list[dict]) -> None:
        """Takes the files of a commit."""
        for line in lines:
            if line["key"] == "header":
                self.commits.append(line["value"]["summary"])
            elif line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files[repository][line["value"]["path"]] = content


def _handler(hub: FakeHub):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self._answer({})

        def do_GET(self):
            parts = self.path.split("?")[0].strip("/").split("/")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._answer({"error": "Invalid username or password."}, 401)
            if "/".join(parts[2:4]) not in hub.files:
                return self._answer({"error": "Repository not found"}, 404)
            return self._answer({"id": "x", "sha": "0" * 40, "siblings": []})

        def do_POST(self):
            token = self.headers.get("Authorization")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/api/validate-yaml":
                hub.checked.append(json.loads(body)["content"])
                return self._answer({"errors": [], "warnings": []})
            hub.tokens.append(token)
            if token != f"Bearer {TOKEN}":
                return self._answer({"error": "Invalid username or password."}, 401)
            parts = self.path.split("?")[0].strip("/").split("/")
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'nobody'}/{asked['name']}"
                hub.files.setdefault(name, {})
                return self._answer({"url": f"{hub.address}/{name}", "name": name})
            repository = "/".join(parts[2:4])
            if parts[4] == "preupload":
                modes = [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for file in json.loads(body)["files"]
                ]
                return self._answer({"files": modes})
            if parts[4] == "commit":
                if hub.refused:
                    return self._answer({"error": "out of order"}, hub.refused)
                hub.commit(repository, [json.loads(line) for line in body.splitlines() if line.strip()])
                place = f"{hub.address}/{repository}/commit/{len(hub.commits):040d}"
                return self._answer({"commitUrl": place, "commitOid": f"{len(hub.commits):040d}", "success": True})
            return self._answer({"error": f"{self.path} is not here"}, 404)

        def _answer(self, value: dict, status: int = 200):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
