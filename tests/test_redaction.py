"""No secret is shown, whatever it stands in; nothing else is taken for one."""

import contextlib
import io
import json
import logging
import os
import tempfile
import unicodedata
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized
from rich.table import Table

from t5suite import cli
from t5suite.base import redaction
from t5suite.base.errors import DataError, run_command
from t5suite.base.redaction import SHOWN, RedactingFormatter, is_secret_name, printable, redacted, redacted_value
from t5suite.base.terminal import Terminal
from t5suite.reports import compare as comparison_text
from t5suite.runs.directory import Run
from t5suite.tracking.metric_lines import markdown_table
from t5suite.tracking.trackers import TRACKERS, Identity, MirrorTracker

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


def logged(text):
    record = logging.LogRecord("t5suite", logging.WARNING, "", 1, "%s", (text,), None)
    return RedactingFormatter("%(message)s").format(record)


def failed(text):
    def main(argv):
        raise DataError(text)

    with contextlib.redirect_stderr(io.StringIO()) as said:
        run_command(main)
    return said.getvalue()


def tabled(text):
    out = io.StringIO()
    table = Table("column", title=text)
    table.add_row(text)
    console = Terminal(file=out, width=200)
    console.print(table)
    console.print(text, markup=False, highlight=False)
    return out.getvalue()


def compared(text):
    flip = {"task": "rte", "direction": "lost", "key": 1, "inputs": text, "target": text, "a": text, "b": text}
    found = {"a": text, "b": "b", "scores": [], "flips": [flip], "only_a": [], "only_b": [], "skipped": []}
    with mock.patch.object(comparison_text, "notes_of", return_value=[text]):
        return comparison_text.comparison_markdown(found, 1)


def previewed(text, *flags):
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    path.write_text(json.dumps({"sentence": text, "label": 1}) + "\n")
    command = ["preview", "--benchmark", "mini", "--dataset_name", "sentiment", "--rows", str(path), *flags]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.main(command)
    return out.getvalue()


# A title set, a colour by one character, text turned round, a line overwritten, half a surrogate pair.
STEERING = "\x1b]0;owned\x07\x9b31m\u202etxt\u2066\r\x00\x7f\u2028\ud800ok"


class SteeringTest(parameterized.TestCase):
    """Texts of rows and files reach a terminal, a log or Markdown as text alone."""

    @parameterized.parameters(logged, failed, tabled, compared, previewed, lambda text: markdown_table(["a"], [[text]]))
    def test_no_character_steers_a_terminal(self, shown):
        text = shown(STEERING.replace("\ud800", "") if shown is previewed else STEERING)
        kinds = {character: unicodedata.category(character) for character in text if character != "\n"}
        self.assertEmpty({c for c, kind in kinds.items() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp")})
        self.assertIn("owned\\u0007", text)

    def test_tabs_lines_and_the_worlds_scripts_stay(self):
        text = "a\tb\nc Straße 日本 😀 नमस्ते \u200d ع"
        self.assertEqual(printable(text), text)

    def test_json_keeps_the_text_and_escapes_what_steers(self):
        text = STEERING.replace("\ud800", "")
        line = previewed(text, "--json")
        self.assertNotRegex(line, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
        self.assertIn(text, json.loads(line)["inputs"])

    def test_rich_prints_through_one_door(self):
        found = [path.name for path in Path(cli.__file__).parent.rglob("*.py") if "rich.console" in path.read_text()]
        self.assertEqual(found, ["terminal.py"])


class TrackersTest(parameterized.TestCase):
    @parameterized.parameters("wandb", "aim", "trackio", "mlflow", "tensorboard")
    def test_what_a_run_is_called_is_told_without_secrets(self, name):
        directory = Path(tempfile.mkdtemp()) / "run"
        directory.mkdir()
        fields = ("name", "group", "project", "entity", "experiment", "aim_repo")
        identity = Identity(**{field: f"{field}-{HF}" for field in fields}, tags=("a", f"t-{HF}"))
        settings = {"note": f"https://me:{HEX}@host/x {HF}", "seed": 1}
        with (
            mock.patch.object(MirrorTracker, "_start", return_value=mock.Mock(stdout=[], **{"wait.return_value": 0})),
            mock.patch("importlib.util.find_spec"),
        ):
            tracker = TRACKERS[name](directory, "4f2a", settings, identity)
        tracker.begin(0)
        tracker.finish()
        written = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        self.assertTrue(any(b"group-***" in content for content in written.values()), written)
        self.assertEmpty([path for path, text in written.items() if HF.encode() in text or HEX.encode() in text])

    def test_no_entry_of_a_manifest_tells_a_secret(self):
        run = Run(Path(tempfile.mkdtemp()) / "run", {"run_id": "4f2a", "settings": {}})
        described = {"rte.train": {"origin": f"https://me:{HEX}@host/{HF}", "files": {f"{HF}.jsonl": "sha256:1"}}}
        run.use_data(described)
        run.update(tasks={"rte": {"label_token": "answer"}}, note=HF)
        run.use_data(described)
        text = (run.directory / "manifest.json").read_text()
        self.assertNotIn(HEX, text)
        self.assertNotIn(HF, text)
        self.assertEqual(run.manifest["tasks"], {"rte": {"label_token": "answer"}})


if __name__ == "__main__":
    absltest.main()
