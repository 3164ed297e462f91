"""Training from a stream: a run that goes on from a checkpoint equals the whole one, bitwise."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from support import folder, later_wins

import pre_train_t5
from t5suite.testing import exits_with, read_rows, tiny_tokenizer
from tools.mini_benchmark.documents import documents

ROOT = Path(__file__).parent.parent
UPDATE = 8
STEPS = 10
TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
FLAGS = (
    "--streaming --num_virtual_streams 4 --shuffle_buffer_size 28 --inputs_length 32 --gradient_accumulation_steps 2 "
    f"--per_device_train_batch_size {UPDATE // 2} --learning_rate 1e-2 --logging_steps 1 --save_steps 1 --seed 1 "
    f"--save_total_limit {STEPS} --eval_strategy no --disable_tqdm True --use_cpu"
).split()


@functools.cache
def short_text(num_tokens=500) -> Path:
    """A text so short that step 5 stands in the second pass, in the middle of a window."""
    lines = []
    for document in documents("train"):
        if num_tokens <= 0:
            break
        lines.append(document[:200])
        num_tokens -= len(tiny_tokenizer()(lines[-1])["input_ids"])
    path = folder() / "short.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@functools.cache
def held_out_text() -> Path:
    path = folder() / "held_out.txt"
    path.write_text("\n".join(documents("validation")[:20]), encoding="utf-8")
    return path


def flags_of(directory, *more, dropout_rate=0.1, max_steps=STEPS) -> list[str]:
    files = ["--train_file", str(short_text()), "--validation_file", str(held_out_text())]
    model = ["--config_overrides", f"{TINY},dropout_rate={dropout_rate}", "--max_steps", str(max_steps)]
    return later_wins(FLAGS, files, model, more, ["--output_dir", str(directory)])


def pre_train(directory, *more, **settings):
    pre_train_t5.main(flags_of(directory, *more, **settings))


def history(directory) -> list[dict]:
    """What was logged of every update, without times."""
    names = ("train/loss", "train/grad_norm", "train/learning_rate", "epoch", "step")
    lines = read_rows(Path(directory) / "metrics.jsonl")
    return [{name: line[name] for name in names} for line in lines if "train/loss" in line]


def without_steps_after(directory, last_step) -> Path:
    """A copy of a finished run as it stood after this step."""
    copy = folder() / "run"
    shutil.copytree(directory, copy)
    for step in range(last_step + 1, STEPS + 1):
        shutil.rmtree(copy / f"checkpoint-{step}")
    (copy / "results.json").unlink()
    return copy


class ResumeTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = folder() / "run"
        pre_train(cls.whole)
        cls.history = history(cls.whole)

    def assert_equals_the_whole(self, directory):
        self.assertEqual(history(directory), self.history)
        name = "model.safetensors"
        self.assertEqual((directory / name).read_bytes(), (self.whole / name).read_bytes())

    @parameterized.parameters((5, 0, 2), (5, 2, 0), (1, 1, 1))
    @pytest.mark.slow
    @pytest.mark.resume
    def test_an_interrupted_run_equals_the_whole_one_bitwise(self, step, workers_before, workers_after):
        directory = folder() / "run"
        callback = ["--callbacks", "stop_callback:StopInStep"]
        words = flags_of(directory, *callback, "--dataloader_num_workers", str(workers_before))
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        environment = {**os.environ, "PYTHONPATH": path, "STOP_IN_STEP": str(step)}
        command = [sys.executable, str(ROOT / "pre_train_t5.py"), *words]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(process.returncode, 75, process.stderr[-3000:])
        self.assertRegex(process.stderr, f"stopped after step {step}; .* checkpoint-{step}")
        self.assertEqual(history(directory), self.history[:step])
        with mock.patch.dict(os.environ, STOP_IN_STEP="0"):
            pre_train(directory, *callback, "--dataloader_num_workers", str(workers_after))
        self.assert_equals_the_whole(directory)

    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_run_that_goes_on_equals_the_whole_one_bitwise(self):
        directory = without_steps_after(self.whole, 5)
        pre_train(directory)
        self.assert_equals_the_whole(directory)

    def test_every_checkpoint_has_the_position_of_its_step(self):
        for step in range(1, STEPS + 1):
            file = self.whole / f"checkpoint-{step}" / "stream-rank-0.json"
            self.assertEqual(json.loads(file.read_text())["num_given"], step * UPDATE)

    @pytest.mark.slow
    def test_a_checkpoint_whose_position_is_broken_or_missing_is_passed_over(self):
        directory = without_steps_after(self.whole, 5)
        (directory / "checkpoint-5" / "stream-rank-0.json").write_text("{")
        (directory / "checkpoint-4" / "stream-rank-0.json").unlink()
        pre_train(directory)
        self.assert_equals_the_whole(directory)

    @pytest.mark.slow
    def test_a_checkpoint_of_another_source_has_no_position(self):
        directory = folder() / "run"
        words = flags_of(directory, max_steps=1)
        of_stream = ("--streaming", "--num_virtual_streams", "4", "--shuffle_buffer_size", "28")
        pre_train_t5.main([word for number, word in enumerate(words) if not stream_word(words, number, of_stream)])
        changed = "streaming,num_virtual_streams,shuffle_buffer_size,data"
        with exits_with(78, "checkpoint-1 has no stream-rank-0.json.*--reset data"):
            pre_train(directory, "--extend", "--allow_changed", changed, max_steps=2)

    def test_a_stream_needs_max_steps(self):
        with exits_with(78, "--max_steps -1"):
            pre_train(folder() / "run", max_steps=-1)


def stream_word(words, number, of_stream) -> bool:
    """Whether a word of a command line is a flag of streams, or the value of one."""
    return words[number] in of_stream and (words[number].startswith("--") or words[number - 1] in of_stream)


@pytest.mark.slow
@pytest.mark.ranks
class RanksTest(parameterized.TestCase):
    RELATIVE = 2e-6

    def assert_same_course(self, lines, expected):
        self.assertLen(lines, len(expected))
        for line, expected_line in zip(lines, expected):
            for key in ("train/loss", "train/grad_norm"):
                self.assertLess(abs(line[key] - expected_line[key]) / abs(expected_line[key]), self.RELATIVE)

    def test_two_ranks_equal_one_and_one_goes_on_from_two(self):
        one, two = folder() / "run", folder() / "run"
        pre_train(one, dropout_rate=0, max_steps=4)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        half = ["--per_device_train_batch_size", str(UPDATE // 4)]
        words = flags_of(two, *half, dropout_rate=0, max_steps=4)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        run = functools.partial(subprocess.run, env=environment, capture_output=True, text=True, timeout=300)
        process = run([*launcher, str(ROOT / "pre_train_t5.py"), *words])
        self.assertEqual(process.returncode, 0, process.stderr[-4000:])
        self.assert_same_course(history(two), history(one))
        files = sorted(path.name for path in (two / "checkpoint-2").glob("stream-*"))
        self.assertEqual(files, ["stream-rank-0.json", "stream-rank-1.json"])
        for step in (3, 4):
            shutil.rmtree(two / f"checkpoint-{step}")
        (two / "results.json").unlink()
        pre_train(two, dropout_rate=0, max_steps=4)
        self.assert_same_course(history(two)[2:], history(one)[2:])
