"""Commands that read a hub that fails: the true cause, the right exit code, and the same results once it is well."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import httpx2
import hub_fault_worker
import pytest
from absl.testing import parameterized
from hub_server import HubServer
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory

from t5suite.testing import run_cli

WORKER = Path(__file__).parent / "hub_fault_worker.py"
ROOT = WORKER.parent.parent
COMMANDS = {
    "fine_tune, its rows": "lab/tables", "fine_tune, its model": "lab/tiny-t5", "pre_train, a stream": "lab/reviews",
    "pre_train, a model": "lab/tiny-t5", "predict": "lab/tiny-t5", "export": "lab/tiny-t5", "tokenizer": "lab/reviews",
    "mirror": "lab/tables", "corpus": "lab/tiny-t5", "preview": "lab/tables",
}  # fmt: skip
CAUSES = {
    "wrong token": (78, r"the hub refuses the login \(401 Unauthorized\); the token \(HF_TOKEN\) is wrong or has expired"),
    "rate limit": (75, r"the hub limits the rate of requests \(429 Too Many Requests\), 4 times"),
    "server error": (75, r"the hub has an error of its own \(500 Internal Server Error\), 4 times"),
    "reset": (75, r"the transfer broke \(RemoteProtocolError: peer closed connection .*\), 4 times"),
}  # fmt: skip
CASES = {
    "everything cached, wrong token": (0, r"lab/tiny-t5 .*refuses the login.*the copy in the local cache is read"),
    "everything cached, server error": (0, r"lab/tiny-t5 .*500.*the copy in the local cache is read, of commit"),
    "half cached, rate limit": (75, r"error: lab/tiny-t5 \(its list of files\): the hub limits the rate"),
    "private, no token": (78, r"error: lab/secret.*no such repository on the hub, or it is private.*log in by"),
    "private, valid token": (0, ""),
    "gated, no token": (78, r"lab/gated.*is gated.*accept its terms at http.*/lab/gated and log in by"),
    "gated, token without access": (78, r"accept its terms at http.*/lab/gated with the account of the token"),
    "misspelt repository": (78, r"lab/tiny-t6.*did you mean lab/tiny-t5\?"),
    "misspelt revision": (78, r"no such revision.*did you mean main\?"),
    "no weights": (78, r"lab/keras has no weights that PyTorch reads .*; it has tf_model.h5"),
    "shards": (0, ""),
    "slow": (0, r"is slow, or busy \(ReadTimeout within 0.3 s\)"),
}  # fmt: skip


# Run in this process: cases that read nothing from an environment or a process of their own.
QUICK_CASES = (
    "half cached, rate limit", "private, no token", "gated, no token", "gated, token without access",
    "misspelt repository", "misspelt revision", "no weights", "shards",
)  # fmt: skip


class HubTest(parameterized.TestCase):
    """All commands and cases of a class are run once, each from a clean cache.

    Attributes:
      rows: by command and fault.
      cases: by name.
      errors: what else was said.
    """

    rows: dict = {}
    cases: dict = {}
    errors = ""

    def row(self, command, fault):
        self.assertIn((command, fault), self.rows, self.errors)
        return self.rows[command, fault]

    def check_clean(self, command):
        row = self.row(command, None)
        self.assertEqual(row["code"], 0, row["said"])
        self.assertGreater(row["files"], 0, "nothing to compare")

    def check_fault(self, command, fault):
        row = self.row(command, fault)
        code, cause = CAUSES[fault]
        self.assertEqual(row["code"], code, row["said"])
        self.assertRegex(row["said"], rf"^error: {COMMANDS[command] if code == 75 else 'lab/'}.*: {cause}")
        self.assertEqual(row["afterwards"], [0, True])
        if "passing" in row:
            self.assertEqual(row["passing"], [0, True], row["said_while_passing"])

    def check_case(self, name):
        code, message = CASES[name]
        self.assertIn(name, self.cases, self.errors)
        case = self.cases[name]
        self.assertEqual(case["code"], code, case["said"][-3000:])
        self.assertTrue(re.search(message, case["said"]), case["said"][-3000:])
        self.assertNotIn("Traceback", case["said"])
        self.assertNotEqual(case["digest"], "other")


class ToStandIn(httpx2.HTTPTransport):
    """Requests to the hub's address go to the stand-in's."""

    def __init__(self, address: str):
        super().__init__()
        self.address = httpx2.URL(address)

    def handle_request(self, request):
        there = {"scheme": self.address.scheme, "host": self.address.host, "port": self.address.port}
        request.url = request.url.copy_with(**there)
        return super().handle_request(request)


def execute_here(words: list[str], streams: Path) -> int:
    """The exit code of a command in this process, which writes what it says to a file."""
    with (streams / "said").open("w") as said, contextlib.redirect_stderr(said):
        try:
            run_cli(*words)
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=said)
            return error.exit_code
    return 0


class InProcessTest(HubTest):
    """A quick part, by the client's own requests."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        hub = cls.enterClassContext(HubServer())
        hub.tokens = {"hf_other"}
        hub_fault_worker.fill(hub)
        cls.enterClassContext(mock.patch.dict(os.environ, HF_HUB_OFFLINE="0"))
        cls.enterClassContext(mock.patch.multiple("huggingface_hub.constants", HF_HUB_OFFLINE=False, HF_HUB_CACHE=""))
        cls.enterClassContext(mock.patch("datasets.config.HF_DATASETS_CACHE", ""))
        cls.enterClassContext(mock.patch.object(time, "sleep", lambda _: None))
        cls.enterClassContext(mock.patch.object(hub_fault_worker, "execute", execute_here))
        set_client_factory(lambda: httpx2.Client(transport=ToStandIn(hub.address), follow_redirects=True))
        cls.addClassCleanup(set_client_factory, default_client_factory)
        cls.cases = {name: hub_fault_worker.CASES[name](hub)._asdict() for name in QUICK_CASES}

    @parameterized.parameters(*QUICK_CASES)
    def test_a_model_is_read_or_the_cause_is_named(self, name):
        self.check_case(name)


@pytest.mark.slow
class CommandsTest(HubTest):
    """By processes that have read nothing."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{WORKER.parent}"}
        command = [sys.executable, str(WORKER)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        cls.rows = {(row["command"], row["fault"]): row for row in lines if "command" in row}
        cls.cases = {row["case"]: row for row in lines if "case" in row}
        cls.errors = done.stderr[-3000:]

    @parameterized.parameters(*COMMANDS)
    def test_a_command_reads_the_hub_from_a_clean_cache(self, command):
        self.check_clean(command)

    @parameterized.product(command=list(COMMANDS), fault=list(CAUSES))
    def test_a_fault_is_named_and_the_results_are_the_same_without_it(self, command, fault):
        self.check_fault(command, fault)

    @parameterized.parameters(*CASES)
    def test_a_model_is_read_or_the_cause_is_named(self, name):
        self.check_case(name)
