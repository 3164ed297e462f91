"""Commands that read a hub that fails: the true cause, the right exit code, and the same results once it is well."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import parameterized
from hub_fault_worker import fill, rows_of
from hub_server import HubServer

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


SLOW_CASES = ("everything cached, wrong token", "everything cached, server error")


class HubTest(parameterized.TestCase):
    """All commands and cases of a class are run once, each from a clean cache.

    Attributes:
      names: of its commands and cases.
      errors: what else was said.
    """

    names: tuple[str, ...] = ()
    errors = ""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lines = cls.lines()
        cls.rows = {(row["command"], row["fault"]): row for row in lines if "command" in row}
        cls.cases = {row["case"]: row for row in lines if "case" in row}

    @classmethod
    def lines(cls) -> list[dict]:
        """The rows of all names."""
        raise NotImplementedError

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


class CasesTest(HubTest):
    """By forks of this process."""

    names = tuple(name for name in CASES if name not in SLOW_CASES)

    @classmethod
    def lines(cls):
        with HubServer() as hub:
            fill(hub)
            return [row for name in cls.names for row in rows_of(name, hub)]

    @parameterized.parameters(*names)
    def test_a_model_is_read_or_the_cause_is_named(self, name):
        self.check_case(name)


@pytest.mark.slow
class CommandsTest(HubTest):
    """By forks of a process that has trained nothing."""

    names = (*COMMANDS, *SLOW_CASES)

    @classmethod
    def lines(cls):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{WORKER.parent}"}
        command = [sys.executable, str(WORKER), *cls.names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        cls.errors = done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    @parameterized.parameters(*COMMANDS)
    def test_a_command_reads_the_hub_from_a_clean_cache(self, command):
        self.check_clean(command)

    @parameterized.product(command=list(COMMANDS), fault=list(CAUSES))
    def test_a_fault_is_named_and_the_results_are_the_same_without_it(self, command, fault):
        self.check_fault(command, fault)

    @parameterized.parameters(*SLOW_CASES)
    def test_what_is_in_the_cache_is_read_while_the_hub_fails(self, name):
        self.check_case(name)
