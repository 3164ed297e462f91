"""A run's directory: who made it, which changes it takes, what is written how, exit codes; and no secret in what is shown."""

import contextlib
import functools
import io
import json
import logging
import os
import re
import resource
import sys
import tempfile
import unicodedata
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from support import folder

import fine_tune_t5
from t5suite.base import redaction
from t5suite.base.errors import DataError, run_command
from t5suite.base.redaction import SHOWN, RedactingFormatter, is_secret_name, redacted, redacted_value
from t5suite.reports.evaluations import evaluations_of
from t5suite.reports.results import read_run
from t5suite.reports.tables import print_finished, rows_of_runs
from t5suite.runs.directory import default_output_dir, open_run, read_manifest, write_json
from t5suite.runs.settings import public_settings
from t5suite.testing import exits_with, run_cli, write_rows
from t5suite.tracking.metric_lines import markdown_table
from t5suite.tracking.trackers import Identity, Tracker
from t5suite.training.callbacks import StepLines
from t5suite.training.checkpoints.folders import find_checkpoint, resume_choice
from t5suite.training.processes.ranks import Ranks
from t5suite.training.run import owned


class RunTest(parameterized.TestCase):
    def test_the_manifest_is_there_before_anything_else_is_written(self):
        """A run that is killed while it makes its corpus must find its directory to be its own."""
        directory = folder() / "run"
        with owned(open_run(directory, {"seed": 1}), Ranks()):
            (directory / "corpus").mkdir()
            self.assertTrue(open_run(directory, {"seed": 1}).resumed)

    def test_the_same_settings_find_the_run_again_and_others_are_refused(self):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1, "logging_steps": 5})
        self.assertFalse(directory.exists())  # nothing is written until it is updated
        run.update()
        again = open_run(directory, {"seed": 1, "logging_steps": 50, "a flag of a later version": False})
        self.assertEqual((again.run_id, again.resumed, again.changed), (run.run_id, True, {}))
        for message, settings, more in (
            ("seed 1 there, 2 here", {"seed": 2}, {}),
            ("new None there, True here", {"seed": 1, "new": True}, {}),
            ("--resume none needs a new --output_dir", {"seed": 1}, {"need_new": True}),
            ("no setting 'sede'; did you mean seed", {"seed": 1}, {"allow_changed": "sede"}),
        ):
            with exits_with(78, message):
                open_run(directory, settings, **more)
        self.assertEqual(open_run(directory, {"seed": 1}, overwrite=True).run_id, run.run_id)
        for n, settings in enumerate(({"seed": 2}, {"seed": 3}), 1):
            open_run(directory, settings, overwrite=True).update()
            self.assertEqual(read_manifest(f"{directory}.old-{n}")["settings"]["seed"], n)

    def test_a_run_that_failed_before_its_first_step_takes_other_settings(self):
        directory = folder() / "run"
        first = open_run(directory, {"seed": 1})
        first.update(status="failed", data={"rte.train": {"fingerprint": "ab"}})
        for left in (directory / "checkpoint-1", directory / "metrics.jsonl"):
            left.mkdir() if left.suffix == "" else left.touch()
            with exits_with(78, "seed 1 there, 2 here"):
                open_run(directory, {"seed": 2})
            left.rmdir() if left.suffix == "" else left.unlink()
        run = open_run(directory, {"seed": 2})
        run.use_data({"rte.train": {"fingerprint": "cd"}})
        self.assertEqual((run.run_id, run.manifest["settings"]["seed"]), (first.run_id, 2))

    def test_an_update_may_be_laid_out_anew_but_not_be_another(self):
        directory = folder() / "run"
        first, same, other = (
            {"per_device_train_batch_size": size, "gradient_accumulation_steps": n, "update_size": size * n}
            for size, n in ((8, 1), (4, 2), (4, 1))
        )
        open_run(directory, first).update()
        self.assertEmpty(open_run(directory, same).changed)
        with exits_with(78, "update_size 8 there, 4 here.*--allow_changed update_size"):
            open_run(directory, other)
        run = open_run(directory, other, allow_changed="update_size")
        self.assertEqual(run.changed, {"update_size": (8, 4)})
        self.assertEqual(run.manifest["changes"][0]["changed"], {"update_size": [8, 4]})

    def test_changed_data_are_refused_unless_allowed(self):
        directory = folder() / "run"
        for origin in "ab":
            open_run(directory, {"seed": 1}).use_data({"rte.train": {"origin": origin, "fingerprint": "ab", "used": 4}})
        changed = {"rte.train": {"origin": "a", "fingerprint": "cd", "used": 4}}
        with exits_with(78, "rte.train.fingerprint 'ab' there, 'cd' here.*--allow_changed data"):
            open_run(directory, {"seed": 1}).use_data(changed)
        open_run(directory, {"seed": 1}, allow_changed="data").use_data(changed)
        open_run(directory, {"seed": 1}).use_data(changed)

    def test_other_software_is_said_and_noted(self):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1})
        run.update(versions={"t5suite": "0.1.0"})
        with exits_with(78, "seed 1 there, 2 here.*t5suite 0.1.0 began that run"):
            open_run(directory, {"seed": 2})
        run.update(versions={**run.manifest["versions"], "torch": "1.0"})
        with self.assertLogs("t5suite", "WARNING") as logs:
            again = open_run(directory, {"seed": 1})
        self.assertRegex(logs.output[0], "torch 1.0 then, .* now")
        self.assertIn("torch", again.manifest["changes"][-1]["changed"])

    def test_a_manifest_that_is_none_is_refused(self):
        directory = folder()
        for text in ("", "[1]", "{}", '{"run_id": 1, "settings": {}}', "[" * 100_000):
            (directory / "manifest.json").write_text(text)
            with exits_with(78, "manifest.json"):
                open_run(directory, {"seed": 1})

    @parameterized.parameters("the file is empty", "No such file")
    def test_a_damaged_manifest_is_made_anew_by_the_flags_that_a_checkpoint_is_of(self, damage):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1})
        run.update()
        (directory / "checkpoint-4").mkdir()
        write_json(directory / "checkpoint-4" / "checkpoint.json", run.checkpoint_details)
        (directory / "manifest.json").write_text("")
        if damage == "No such file":
            (directory / "manifest.json").unlink()
        with exits_with(78, f"{damage}.*manifest.json|manifest.json: {damage}") as refusal:
            open_run(directory, {"seed": 2})
        self.assertIn(f"flags of run {run.run_id}", str(refusal.exception))
        with self.assertLogs("t5suite", "WARNING") as said:
            again = open_run(directory, {"seed": 1})
        self.assertIn("manifest.json", said.output[0])
        self.assertEqual((again.run_id, again.resumed, again.finished), (run.run_id, True, False))
        again.update()
        self.assertEqual(open_run(directory, {"seed": 1}).run_id, run.run_id)

    def test_results_that_are_none_are_named_with_what_to_do(self):
        directory = folder() / "run"
        open_run(directory, {}).update(status="finished")
        for text in ("", "[" * 100_000, "null", '{"tasks": {}}'):
            (directory / "results.json").write_text(text)
            finished = lambda path: print_finished(open_run(path, {}))
            for read in (read_run, evaluations_of, lambda path: rows_of_runs([path]), finished):
                with exits_with(65, f"{directory}/results.json.*; delete it"):
                    read(directory)

    def test_two_trials_of_a_sweep_never_share_a_directory(self):
        with mock.patch.dict(os.environ, {"WANDB_RUN_ID": "abc"}):
            found = default_output_dir("glue", "rte", "google/t5-v1_1-small")
        self.assertEqual(found, "runs/glue-rte-t5-v1_1-small-abc")


def full_disk(size=4096):
    """No file of this process may grow beyond so many bytes inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    stack = contextlib.ExitStack()
    stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    return stack


class FilesTest(parameterized.TestCase):
    @parameterized.parameters("a.json", "a.jsonl", "a.jsonl.gz", "metrics.jsonl")
    def test_a_file_that_does_not_fit_is_named_with_its_bytes_and_others_are_as_they_were(self, name):
        path, content = folder() / name, [os.urandom(64).hex() for _ in range(256)]
        path.write_bytes(b"before")
        if name == "metrics.jsonl":
            write = functools.partial(StepLines(path.parent, name).add, {"step": 1, "notes": content})
        else:
            write = functools.partial(write_json if name == "a.json" else write_rows, path, content)
        with full_disk(), redirect_stderr(io.StringIO()) as said:
            self.assertEqual(run_command(lambda argv: write()), 74)
        # What was written is as large as a file may be here, not as what was there before.
        (written, free) = re.search(
            rf"error: {path}: .*\(([\d,]+) bytes written, ([\d,]+) bytes free", said.getvalue()
        ).groups()
        disk = os.statvfs(path.parent)
        self.assertEqual(written, "4,096")
        self.assertAlmostEqual(int(free.replace(",", "")) / (disk.f_bavail * disk.f_frsize), 1.0, delta=0.05)
        self.assertEqual(os.listdir(path.parent), [name])
        if name != "metrics.jsonl":
            self.assertEqual(path.read_bytes(), b"before")

    def test_a_final_model_that_does_not_fit_is_named_with_its_bytes_and_leaves_nothing(self):
        directory = folder() / "run"
        flags = (
            "mini.yaml --max_steps 1 --eval_strategy no --save_strategy no --use_cpu --disable_tqdm True "
            "--max_train_samples 8 --max_eval_samples 4 --per_device_train_batch_size 4 "
            "--config_overrides d_model=1024,d_kv=8,d_ff=16,num_layers=1,num_heads=2"
        ) + f" --output_dir {directory}"
        with full_disk(1_500_000), redirect_stderr(io.StringIO()) as said:
            self.assertEqual(run_command(fine_tune_t5.main, flags.split()), 74)
        self.assertRegex(said.getvalue(), rf"error: {directory}\S*: File too large \([\d,]+ bytes wanted\); make room")
        self.assertEmpty([name for name in os.listdir(directory) if "model" in name])

    def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_writing_ends(self):
        path, calls = folder() / "a.json", []

        def fsync(descriptor):
            calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

        replace = mock.Mock(side_effect=lambda source, target: (calls.append("rename"), os.rename(source, target)))
        with mock.patch.multiple(os, fsync=fsync, replace=replace):
            write_json(path, {})
        self.assertEqual(calls, [mock.ANY, "rename", path.parent.name])
        self.assertTrue(calls[0].endswith("a.json"), calls)


class CheckpointTest(parameterized.TestCase):
    def test_a_checkpoint_of_hugging_face_s_must_be_complete(self):
        path = folder() / "checkpoint-3"
        path.mkdir()
        (path / "trainer_state.json").write_text('{"global_step": 3}')
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
            with exits_with(74, name):
                find_checkpoint(folder(), str(path))
            (path / name).write_bytes(b"x")
        self.assertEqual(find_checkpoint(folder(), str(path)), path)
        (path / "trainer_state.json").unlink()
        with exits_with(74, "trainer_state.json"):
            find_checkpoint(folder(), str(path))

    def test_hugging_face_s_flag_means_the_same(self):
        flags = ("auto", None), ("auto", "True"), ("auto", "False"), ("none", "x")
        self.assertEqual([resume_choice(*pair) for pair in flags], ["auto", "auto", "none", "x"])


HF = "hf_TokenOfNobodyAtAllXyzAbCdEfGhIj"
HEX = "5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7"


class RedactionTest(parameterized.TestCase):
    def test_tokens_are_known_by_their_shape(self):
        shapes = [start + "a1B2" * 9 for start in ("ghp_", "github_pat_", "sk-proj-")]
        for token in (*shapes, HF, "wandb_v1_" + "aB3_" * 10, "AKIAABCDEFGHIJKLMNOP"):
            for form in ("{}", "--x='{}'", '"a": "{}"', "https://h/?t={}&x=1", "{0}\n{0}"):
                self.assertEqual(redacted(form.format(token)), form.format(SHOWN))
        self.assertEqual(redacted("see https://me:pass@host.org/a@b"), "see https://***@host.org/a@b")

    def test_innocent_text_stays(self):
        with mock.patch.dict(os.environ, {"SSH_KEY": "rte"}):  # short values are not searched for
            for text in (f"the commit {HEX}, glue/rte", "hf_model at http://127.0.0.1:8080/path", "task-" + "sk" * 20,
                         "google/t5-v1_1-small, 10:30, a@b"):  # fmt: skip
                self.assertEqual(redacted(text), text)

    def test_what_environment_and_netrc_keep_secret_is_known_by_its_value(self):
        for name in ("WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD", "aws_secret"):
            with mock.patch.dict(os.environ, {name: HEX, "PATH_TO": HEX[:20]}):
                self.assertEqual(redacted(f"key {HEX}, commit {HEX[::-1]}"), f"key ***, commit {HEX[::-1]}")
        path = folder() / "netrc"
        path.write_text(f"machine api.wandb.ai login user password {HEX}\n")
        path.chmod(0o600)
        redaction._netrc_secrets.cache_clear()
        with mock.patch.dict(os.environ, {"NETRC": str(path)}):
            self.assertEqual(redacted(HEX), SHOWN)
        redaction._netrc_secrets.cache_clear()

    def test_values_are_searched_to_their_bottom(self):
        value = {"a": [{"note": f"key {HF}", "api_key": "short", "n": 3}], "b": (HF, None), "hub_token": None}
        expected = {"a": [{"note": "key ***", "api_key": "***", "n": 3}], "b": ["***", None], "hub_token": None}
        self.assertEqual(redacted_value(value), expected)
        names = ("hub_token", "--hub-token", "WANDB_API_KEY", "tokenizer_name", "keep_every")
        self.assertEqual([is_secret_name(name) for name in names], [True, True, True, False, False])

    def test_log_lines_hold_none_in_arguments_or_tracebacks(self):
        try:
            raise ValueError(f"bad {HF}")
        except ValueError:
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


def previewed(text, *flags):
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    path.write_text(json.dumps({"sentence": text, "label": 1}) + "\n")
    command = ["preview", "--benchmark", "mini", "--dataset_name", "sentiment", "--rows", str(path), *flags]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run_cli(*command)
    return out.getvalue()


# A title set, a colour by one character, text turned round, a line overwritten, half a surrogate pair.
STEERING = "\x1b]0;owned\x07\x9b31m\u202etxt\u2066\r\x00\x7f\u2028\ud800ok"


class SteeringTest(parameterized.TestCase):
    """Texts of rows and files reach a terminal, a log or Markdown as text alone."""

    @parameterized.parameters(logged, failed, previewed, lambda text: markdown_table(["a"], [[text]]))
    def test_no_character_steers_a_terminal(self, shown):
        text = shown(STEERING.replace("\ud800", "") if shown is previewed else STEERING)
        kinds = {character: unicodedata.category(character) for character in text if character != "\n"}
        self.assertEmpty({c for c, kind in kinds.items() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp")})
        self.assertIn("owned\\u0007", text)

    def test_json_keeps_the_text_and_escapes_what_steers(self):
        text = STEERING.replace("\ud800", "")
        line = previewed(text, "--json")
        self.assertNotRegex(line, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
        self.assertIn(text, json.loads(line)["inputs"])


class SecretTrackersTest(parameterized.TestCase):
    @parameterized.parameters("wandb", "mlflow")
    def test_what_a_run_is_called_is_told_without_secrets(self, name):
        directory = folder() / "run"
        directory.mkdir()
        fields = ("name", "group", "project", "entity", "experiment", "aim_repo")
        identity = Identity(**{field: f"{field}-{HF}" for field in fields}, tags=("a", f"t-{HF}"))
        settings = {"note": f"https://me:{HEX}@host/x {HF}", "seed": 1}
        process = mock.Mock(stdout=[], **{"wait.return_value": 0})
        with mock.patch("subprocess.Popen", return_value=process), mock.patch("importlib.util.find_spec"):
            Tracker(name, directory, "4f2a", settings, identity).finish()
        written = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        self.assertTrue(any(b"group-***" in content for content in written.values()), written)
        self.assertEmpty([path for path, text in written.items() if HF.encode() in text or HEX.encode() in text])

    def test_no_entry_of_a_manifest_tells_a_secret(self):
        argv = ["--hub_token", "hf_secret", "--hub_token=hf_secret"]
        run = open_run(folder() / "run", {"hub_token": "hf_secret", "seed": 1}, argv=argv)
        described = {"rte.train": {"origin": f"https://me:{HEX}@host/{HF}", "files": {f"{HF}.jsonl": "sha256:1"}}}
        run.use_data(described)
        run.update(tasks={"rte": {"label_token": "answer"}}, note=HF)
        run.use_data(described)
        text = (run.directory / "manifest.json").read_text()
        for secret in (HEX, HF, "hf_secret"):
            self.assertNotIn(secret, text)
        self.assertEqual(run.manifest["tasks"], {"rte": {"label_token": "answer"}})
        self.assertEqual(public_settings({"hub_token": "x", "seed": 1}), {"seed": 1})
