"""No secret is shown, whatever it stands in; nothing else is taken for one."""

import logging
import os
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized

from t5suite import redaction
from t5suite.redaction import SHOWN, RedactingFormatter, is_secret_name, redacted, redacted_value

HF = "hf_TokenOfNobodyAtAllXyzAbCdEfGhIj"
HEX = "5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7"


class RedactionTest(parameterized.TestCase):
    @parameterized.parameters(
        HF,
        "wandb_v1_" + "aB3_" * 10,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 9,
        "sk-proj-" + "a1B2" * 9,
        "AKIAABCDEFGHIJKLMNOP",
    )
    def test_tokens_are_known_by_their_shape(self, token):
        for text in (
            token,
            f"--x='{token}'",
            f'{{"a": "{token}"}}',
            f"https://host/?t={token}&x=1",
            f"{token}\n{token}",
        ):
            self.assertNotIn(token[:12], redacted(text))
            self.assertEqual(redacted(text), text.replace(token, SHOWN))

    def test_an_address_keeps_its_host_only(self):
        self.assertEqual(redacted("see https://me:pass@host.org/a@b"), "see https://***@host.org/a@b")

    @parameterized.parameters(
        "the commit 5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7",
        "hf_model at http://127.0.0.1:8080/path",
        "google/t5-v1_1-small, 10:30, a@b",
        "task-" + "sk" * 20,
    )
    def test_innocent_text_stays(self, text):
        self.assertEqual(redacted(text), text)

    @parameterized.parameters("WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "aws_secret")
    def test_what_the_environment_keeps_secret_is_known_by_its_value(self, name):
        with mock.patch.dict(os.environ, {name: HEX, "PATH_TO": HEX[:20]}):
            self.assertEqual(redacted(f"key {HEX}, commit {HEX[::-1]}"), f"key ***, commit {HEX[::-1]}")

    def test_what_netrc_holds_is_known_by_its_value(self):
        path = Path(tempfile.mkdtemp()) / "netrc"
        path.write_text(f"machine api.wandb.ai login user password {HEX}\n")
        path.chmod(0o600)
        redaction._netrc_secrets.cache_clear()
        with mock.patch.dict(os.environ, {"NETRC": str(path)}):
            self.assertEqual(redacted(HEX), SHOWN)
        redaction._netrc_secrets.cache_clear()

    def test_short_values_are_not_hunted(self):
        with mock.patch.dict(os.environ, {"SSH_KEY": "rte"}):
            self.assertEqual(redacted("glue/rte"), "glue/rte")

    def test_values_are_searched_to_their_bottom(self):
        value = {"a": [{"note": f"key {HF}", "api_key": "short", "n": 3}], "b": (HF, None), "hub_token": None}
        expected = {"a": [{"note": "key ***", "api_key": "***", "n": 3}], "b": ["***", None], "hub_token": None}
        self.assertEqual(redacted_value(value), expected)

    @parameterized.parameters(
        ("hub_token", True),
        ("--hub-token", True),
        ("WANDB_API_KEY", True),
        ("tokenizer_name", False),
        ("keep_every", False),
    )
    def test_names_of_secrets(self, name, expected):
        self.assertEqual(is_secret_name(name), expected)

    def test_log_lines_hold_none_in_arguments_or_tracebacks(self):
        try:
            raise ValueError(f"bad {HF}")
        except ValueError:
            import sys

            record = logging.LogRecord("t5suite", logging.ERROR, "", 1, "was %s", (HF,), sys.exc_info())
        line = RedactingFormatter("%(message)s").format(record)
        self.assertNotIn(HF, line)
        self.assertIn("ValueError: bad ***", line)


if __name__ == "__main__":
    absltest.main()
