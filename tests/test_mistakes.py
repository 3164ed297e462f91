"""What new users get wrong: each is made for real, and answered by one message, the right exit code and a cure."""

import contextlib
import importlib
import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from t5suite.errors import run_command
from tests.mistakes import MISTAKES, PAGE, Mistake, page_with_table

ROOT = Path(__file__).resolve().parent.parent
ALL = [entry for entries in MISTAKES.values() for entry in entries]
# So that a mistake that is not noticed ends soon.
TINY = "--max_steps 1 --use_cpu --per_device_train_batch_size 4 --max_eval_samples 4 --disable_tqdm True"
TINY_FINE_TUNING = f"{TINY} --max_train_samples 8"


def named(entries):
    return [(re.sub(r"\W+", "_", entry.title), entry) for entry in entries]


class TableTest(parameterized.TestCase):
    def test_there_are_thirty_of_different_names(self):
        titles = [entry.title for entry in ALL]
        self.assertGreaterEqual(len(titles), 30)
        self.assertLen(set(titles), len(titles))

    @parameterized.named_parameters(*named(ALL))
    def test_a_message_names_value_place_and_cure(self, entry):
        for part in entry.names:
            self.assertIn(part, entry.message)
        self.assertTrue(entry.cure.endswith("."))

    def test_the_page_quotes_every_message(self):
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(text, page_with_table(), "the table has changed; run: python tests/mistakes.py")
        for entry in ALL:
            self.assertIn(entry.message, text)


class MistakesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.enter_context(contextlib.chdir(self.folder))
        self.enter_context(mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"))
        os.environ.pop("T5SUITE_DATA_DIR", None)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    @parameterized.named_parameters(*named(entry for entry in ALL if not entry.slow))
    def test_it_is_answered(self, entry):
        self.check(entry)

    @parameterized.named_parameters(*named(entry for entry in ALL if entry.slow))
    @pytest.mark.slow
    def test_it_is_answered_once_a_model_is_made(self, entry):
        self.check(entry)

    def check(self, entry: Mistake):
        for name, content in entry.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with contextlib.ExitStack() as stack:
            if entry.needs:
                stack.enter_context(PREPARATIONS[entry.needs](self))
            if entry.without:
                stack.enter_context(mock.patch.dict(sys.modules, dict.fromkeys(parts_of(entry.without))))
            code, text = in_a_shell(entry.command) if ">" in entry.command else in_process(entry.command)
        self.assertNotIn("Traceback", text)
        self.assertEqual(code, entry.code, text)
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        if entry.code == 0:
            self.assertRegex(text, pattern_of(entry.message))
        else:
            self.assertLen(lines, 1, text)
            self.assertRegex(lines[0], f"^error: {pattern_of(entry.message)}$")


def parts_of(libraries) -> list[str]:
    """The libraries and what of them an earlier test has imported."""
    return [*libraries, *(name for name in sys.modules if name.startswith(tuple(f"{one}." for one in libraries)))]


def pattern_of(message: str) -> str:
    """A message as a regular expression, in which `<word>` stands for anything."""
    return re.sub(r"<\w+>", ".+", re.escape(message).replace(r"\<", "<").replace(r"\>", ">"))


def in_process(command: str) -> tuple[int, str]:
    """`(exit code, what stands on standard error)`; the entry point is called as its program calls it."""
    words = shlex.split(command)
    program = words[0].removesuffix(".py")
    module = importlib.import_module("t5suite.cli" if program == "t5suite" else program)
    tiny = {"fine_tune_t5": TINY_FINE_TUNING, "pre_train_t5": TINY}.get(program, "")
    given = [word for word in words if word.startswith("--")]
    for flag, value in re.findall(r"(--\w+)((?: [^-\s]\S*)?)", tiny):
        # After the words of the mistake, so that a file stays the first.
        words += [] if flag in given else [flag, *value.split()]
    if program != "t5suite" and "--output_dir" not in given:
        words += ["--output_dir", "new"]
    error = io.StringIO()
    handler = logging.StreamHandler(error)
    logger = logging.getLogger("t5suite")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            code = run_command(module.main, words[1:])
    finally:
        logger.removeHandler(handler)
    return code, error.getvalue()


def in_a_shell(command: str) -> tuple[int, str]:
    """The same with what a shell does."""
    line = command.replace("t5suite", f"{shlex.quote(sys.executable)} -m t5suite", 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


# What a mistake needs beside files ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_gpu(test):
    import torch

    if torch.cuda.is_available():
        test.skipTest("this machine has a GPU")
    yield


@contextlib.contextmanager
def tokenizer(test):
    from t5suite.models.loading import load_tokenizer

    load_tokenizer(None).save_pretrained(test.folder / "tokenizer")
    yield


@contextlib.contextmanager
def run(test):
    """A run in `out`, with a checkpoint."""
    code, text = in_process("fine_tune_t5.py --output_dir out")
    test.assertEqual(code, 0, text)
    yield


@contextlib.contextmanager
def run_and_tokenizer(test):
    """A run in `out`, and a tokenizer of more pieces than its model has rows."""
    from t5suite.models.loading import load_tokenizer

    larger = load_tokenizer(None)
    larger.add_tokens([f"<new_{i}>" for i in range(200)])
    larger.save_pretrained(test.folder / "tokenizer")
    with run(test):
        yield


@contextlib.contextmanager
def torn(test):
    """A checkpoint of it whose weights have changed on the disk."""
    with run(test):
        (weights,) = (test.folder / "out" / "checkpoint-1").glob("model*.safetensors")
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        weights.write_bytes(content)
        yield


@contextlib.contextmanager
def owner(test):
    """Another process that has taken `out`."""
    code = "import sys; from t5suite.run_lock import RunLock; RunLock('out').acquire(); print('taken', flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        test.assertEqual(process.stdout.readline(), "taken\n")
        yield
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


PREPARATIONS = {
    "no GPU": no_gpu,
    "tokenizer": tokenizer,
    "run": run,
    "run and tokenizer": run_and_tokenizer,
    "torn": torn,
    "owner": owner,
}


if __name__ == "__main__":
    absltest.main()
