"""What a run writes and shows: files that do not fit, results that are none, checkpoints of others, and no secrets."""

import contextlib
import functools
import io
import json
import logging
import os
import pickle
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from report_runs import make_run
from support import folder
from transformers import TrainerCallback

import fine_tune_t5
from t5suite import FineTuner
from t5suite.testing import (
    TINY_T5,
    EndedCommand,
    cli_output,
    ended_cli,
    exits_with,
    run_cli,
    tiny_model,
    tiny_run,
    write_rows,
)

FLAGS = {
    "config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, "max_steps": 1, "max_eval_samples": 4,
    "per_device_train_batch_size": 4, "logging_steps": 1,
}  # fmt: skip
HF = "hf_TokenOfNobodyAtAllXyzAbCdEfGhIj"
HEX = "5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7"


def fine_tune(directory, messages=None, **changes) -> dict:
    """A short run in this process; what it writes to its standard error goes to `messages`."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(messages or io.StringIO()):
        return fine_tune_t5.main(
            [f"--{name}={value}" for name, value in {**FLAGS, "output_dir": directory, **changes}.items()]
        )


def messages_of(directory, **changes) -> str:
    """What a short run in this process writes to its standard error."""
    messages = io.StringIO()
    fine_tune(directory, messages, **changes)
    return messages.getvalue()


def command(*words, largest_file=None, **variables) -> subprocess.CompletedProcess:
    """`t5suite` as a process of its own, with environment variables; no file of it may grow beyond so many bytes."""
    limit = lambda: largest_file and resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    environment = {**os.environ, **variables}
    words = [sys.executable, "-m", "t5suite", *map(str, words)]
    return subprocess.run(words, env=environment, preexec_fn=limit, capture_output=True, text=True, timeout=300)


def command_here(*words, **variables) -> EndedCommand:
    """`t5suite` in this process, with environment variables."""
    with mock.patch.dict(os.environ, variables):
        return ended_cli(*words)


@contextlib.contextmanager
def no_file_beyond(size: int):
    """No file that this process writes in the block may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@functools.cache
def finished_run() -> Path:
    return tiny_run(**FLAGS).directory


class RunTest(parameterized.TestCase):
    def test_the_manifest_is_there_before_anything_else_is_written(self):
        """A run that is killed while it makes its data must find its directory to be its own."""
        directory, written, replace = folder() / "run", [], os.replace

        def noted(source, target, **settings):
            written.append(str(target))
            replace(source, target, **settings)

        with mock.patch.object(os, "replace", noted):
            tiny_run(**FLAGS, output_dir=str(directory))
        inside = [path for path in written if path.startswith(f"{directory}/")]
        self.assertEqual(inside[0], f"{directory}/manifest.json")

    def test_results_that_are_none_are_named_with_what_to_do(self):
        finished_run()
        directory = shutil.copytree(finished_run(), folder() / "run")
        named = functools.partial(exits_with, 65, f"{directory}/results.json.*; delete it")
        for text in ("", "[" * 100_000, "null", '{"tasks": {}}'):
            (directory / "results.json").write_text(text)
            with named():
                run_cli("compare", directory, finished_run())
        for read in (
            lambda: run_cli("report", directory, "--output", folder() / "report"),
            lambda: run_cli("report", directory, "--format", "none"),
            lambda: fine_tune(directory),
        ):
            with named():
                read()

    def test_what_is_published_too_late_is_named_with_the_command_that_uploads_it(self):
        messages = messages_of(finished_run(), push_to_hub=True, hub_model_id="ada/x", share_rows=True)
        (line,) = [line for line in messages.splitlines() if "--push_to_hub has no effect" in line]
        upload = shlex.split(line[line.index("hf upload") :])
        self.assertEqual(upload[:4], ["hf", "upload", "ada/x", str(finished_run())])
        self.assertContainsSubset(["model.safetensors", "README.md", "results.json"], upload[5::2])
        self.assertNotIn("manifest.json", upload)
        self.assertNotIn("--private", upload)
        self.assertIn("--share_rows has no effect", messages)
        self.assertNotIn("has no effect", messages_of(finished_run()))

    def test_what_is_published_too_late_goes_to_the_private_repository_and_the_branch_that_flags_name(self):
        messages = messages_of(finished_run(), push_to_hub=True, hub_private_repo=True, hub_revision="trial 2")
        (line,) = [line for line in messages.splitlines() if "--push_to_hub has no effect" in line]
        upload = shlex.split(line[line.index("hf upload") :])
        self.assertContainsSubset(["--private", "--revision"], upload)
        self.assertEqual(upload[upload.index("--revision") + 1], "trial 2")


class FullDiskTest(parameterized.TestCase):
    """What does not fit is named, and what was there before is as it was."""

    @parameterized.parameters("a.jsonl", "a.jsonl.gz")
    def test_rows_that_do_not_fit_leave_the_file_as_it_was(self, name):
        path, rows = folder() / name, [os.urandom(64).hex() for _ in range(256)]
        path.write_bytes(b"before")
        with no_file_beyond(4096), self.assertRaisesRegex(OSError, r"File too large \(.* bytes free\)") as failure:
            write_rows(path, rows)
        from_another_process = pickle.loads(pickle.dumps(failure.exception))
        self.assertEqual(str(from_another_process), str(failure.exception))
        self.assertEqual((os.listdir(path.parent), path.read_bytes()), ([name], b"before"))

    @pytest.mark.slow
    def test_a_file_that_does_not_fit_is_named_with_its_bytes(self):
        output = folder() / "report"
        words = ("report", make_run(folder() / "a", "sentiment"), "--output", output, "--format", "md")
        cli_output(*words)
        before = (output / "report.md").read_bytes()
        with no_file_beyond(800), contextlib.redirect_stdout(io.StringIO()):
            ended = command_here(*words)
        self.assertEqual(ended.returncode, 74, ended.stderr)
        self.check_message(ended.stderr, rf"{output}/\S*", 800, output)
        self.assertEqual((output / "report.md").read_bytes(), before)

    def check_message(self, text, path, size, place) -> None:
        written, free = re.search(rf"error: {path}: .*\(([\d,]+) bytes written, ([\d,]+) bytes free", text).groups()
        disk = os.statvfs(place)
        self.assertEqual(written, f"{size:,}")
        self.assertAlmostEqual(int(free.replace(",", "")) / (disk.f_bavail * disk.f_frsize), 1.0, delta=0.05)

    @pytest.mark.slow
    def test_a_final_model_that_does_not_fit_is_named_with_its_bytes_and_leaves_nothing(self):
        directory = folder() / "run"
        overrides = "d_model=1024,d_kv=8,d_ff=16,num_layers=1,num_heads=2"
        flags = {**FLAGS, "config_overrides": overrides, "save_strategy": "no", "load_best_model_at_end": False}
        flags |= {"eval_strategy": "no", "output_dir": directory}
        words = [f"--{name}={value}" for name, value in flags.items()]
        ended = command("fine_tune", *words, largest_file=1_500_000)
        self.assertEqual(ended.returncode, 74, ended.stderr)
        wanted = sum(weight.nbytes for weight in tiny_model(config_overrides=overrides).parameters())
        self.assertRegex(ended.stderr, rf"error: {directory}\S*: File too large \({wanted:,} bytes wanted\); make room")
        self.assertEmpty([name for name in os.listdir(directory) if "model" in name])


class CheckpointTest(parameterized.TestCase):
    @parameterized.parameters("resume", "resume_from_checkpoint")
    @pytest.mark.slow
    def test_a_checkpoint_of_hugging_face_s_must_be_complete(self, flag):
        path = folder() / "checkpoint-3"
        path.mkdir()
        (path / "trainer_state.json").write_text('{"global_step": 3}')
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
            with exits_with(74, name):
                fine_tune(folder() / "run", **{flag: path})
            (path / name).write_bytes(b"x")
        (path / "trainer_state.json").unlink()
        with exits_with(74, "trainer_state.json"):
            fine_tune(folder() / "run", **{flag: path})

    def test_hugging_face_s_flag_means_the_same(self):
        results = json.loads((finished_run() / "results.json").read_text())
        for flags in ({}, {"resume": "auto"}, {"resume_from_checkpoint": True}):
            self.assertEqual(fine_tune(finished_run(), **flags), results)
        for flags in ({"resume": "none"}, {"resume_from_checkpoint": False}):
            with exits_with(78, "--resume none needs a new --output_dir"):
                fine_tune(finished_run(), **flags)


SECRETS = tuple(start + "a1B2" * 9 for start in ("ghp_", "github_pat_", "sk-proj-"))
SECRETS += (HF, "wandb_v1_" + "aB3_" * 10, "AKIAABCDEFGHIJKLMNOP")
FORMS = ("{}", "--x=({})", "a: {}", "https://h/?t={}&x=1", "{0} {0}")
INNOCENT = (f"the commit {HEX}, glue/rte", "hf_model at http://127.0.0.1:8080/path", "task-" + "sk" * 20,
            "google/t5-v1_1-small, 10:30, a@b")  # fmt: skip


def shown(text: str, run=command_here, **variables) -> str:
    """How a text is shown in the message of an error: `unknown benchmark 'text'`."""
    ended = run("tasks", "--benchmark", text, **variables)
    assert ended.returncode == 78, ended.stderr
    return ended.stderr


class RedactionTest(parameterized.TestCase):
    def test_tokens_are_known_by_their_shape_and_innocent_text_stays(self):
        texts = [form.format(secret) for secret in SECRETS for form in FORMS]
        hidden = [form.format("***") for _ in SECRETS for form in FORMS]
        texts.append("see https://me:pass@host.org/a@b")
        hidden.append("see https://***@host.org/a@b")
        text = shown(" ; ".join([*texts, *INNOCENT]), SSH_KEY="rte")  # short values are not searched for
        self.assertIn(" ; ".join([*hidden, *INNOCENT]), text)

    def test_what_environment_and_netrc_keep_secret_is_known_by_its_value(self):
        path = folder() / "netrc"
        path.write_text(f"machine api.wandb.ai login user password {HEX}\n")
        path.chmod(0o600)
        text, hidden = f"key {HEX}, commit {HEX[::-1]}", f"key ***, commit {HEX[::-1]}"
        for name in ("WANDB_API_KEY", "MY_PASSWORD", "aws_secret"):
            self.assertIn(hidden, shown(text, **{name: HEX}))
        self.assertIn(hidden, shown(text, command, NETRC=str(path)))  # a process reads it once
        self.assertIn(HEX, shown(HEX, PATH_TO=HEX))

    def test_log_lines_hold_none_in_arguments_or_tracebacks(self):
        text = logged(HF)
        self.assertNotIn(HF, text)
        self.assertIn("ValueError: bad ***", text)
        self.assertIn("was ***", text)

    def test_what_a_run_is_called_is_told_without_secrets(self):
        directory = folder() / "run"
        secrets = {"run_name": f"name-{HF}", "wandb_project": f"project-{HF}"}
        with mock.patch.object(sys, "executable", shutil.which("true")):
            fine_tune(directory, report_to="tensorboard", **secrets, hub_token="hf_secret")
        setup = json.loads((directory / "trackers" / "tensorboard" / "mirror.json").read_text())
        self.assertEqual((setup["name"], setup["project"]), ("name-***", "project-***"))
        for path in directory.rglob("*"):
            if path.is_file() and path.name != "diff.patch":  # of this file, while it is being changed
                content = path.read_bytes()
                self.assertFalse(HF.encode() in content or b"hf_secret" in content, path)


def refused(text: str) -> str:
    """A text in the message of an error."""
    ended = command_here("preview", "--benchmark", "mini", "--dataset_name", "sentiment", "--rows", f"{text}.jsonl")
    assert ended.returncode in (65, 74, 78), ended.stderr
    return ended.stderr


@contextlib.contextmanager
def unseen_by_pytest():
    """Without pytest's own handlers: a report that holds half a surrogate pair ends its worker process."""
    loggers = [logging.getLogger(), logging.getLogger("t5suite")]
    handlers_before = [logger.handlers[:] for logger in loggers]
    for logger in loggers:
        logger.handlers = [each for each in logger.handlers if not type(each).__module__.startswith("_pytest")]
    try:
        yield
    finally:
        for logger, handlers in zip(loggers, handlers_before, strict=True):
            logger.handlers = handlers


def logged(text: str) -> str:
    """A text, as it is in the log of a run whose user logs it, alone and in a traceback."""

    class Logs(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            try:
                raise ValueError(f"bad {text}")
            except ValueError:
                with unseen_by_pytest():
                    logging.getLogger("t5suite").warning("was %s", text, exc_info=True)

    directory = folder() / "run"
    tuner = FineTuner(
        **FLAGS, no_eval=True, eval_strategy="no", callbacks=Logs(), output_dir=str(directory), quiet=True
    )
    tuner.train()
    lines = (directory / "logs" / "rank-0.log").read_text().split("\n")
    first = next(place for place, line in enumerate(lines) if "was " in line)
    last = next(place for place, line in enumerate(lines) if "ValueError: bad" in line)
    return "\n".join(lines[first : last + 1])


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

    @parameterized.parameters(logged, refused, previewed)
    def test_no_character_steers_a_terminal(self, show):
        content = STEERING if show is logged else STEERING.replace("\ud800", "").replace("\x00", "")
        text = show(content)
        kinds = {character: unicodedata.category(character) for character in text if character != "\n"}
        self.assertEmpty({c for c, kind in kinds.items() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp")})
        self.assertIn("owned\\u0007", text)

    def test_json_keeps_the_text_and_escapes_what_steers(self):
        text = STEERING.replace("\ud800", "")
        line = previewed(text, "--json")
        self.assertNotRegex(line, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
        self.assertIn(text, json.loads(line)["inputs"])
