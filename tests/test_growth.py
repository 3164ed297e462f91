"""Files of lines that are gone on with: what a resumed run keeps of them, drops, and writes again."""

import json
import shutil

import pytest
from absl.testing import parameterized
from support import folder

from t5suite.testing import TINY_T5, tiny_tuner


class TrimTest(parameterized.TestCase):
    """A resumed run goes on with the lines that its checkpoint counted, whatever has become of the file."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.finished = folder() / "run"
        cls.run_to(2, cls.finished)
        lines = (cls.finished / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        cls.content = b"".join(line for line in lines if b"train/loss" in line)

    @staticmethod
    def run_to(max_steps, directory):
        tuner = tiny_tuner(
            config_overrides=TINY_T5, data="mini/sentiment", output_dir=str(directory), max_train_samples=16,
            per_device_train_batch_size=8, logging_steps=1, save_strategy="steps", save_steps=2,
        )  # fmt: skip
        tuner.train(valid=False, max_steps=max_steps)

    @parameterized.parameters(b'{"step": 5, "tr', b"\xff\xfe", b"\x00" * 5000, b'{"step": 7, "train/loss": 1.0}\n')
    @pytest.mark.slow
    def test_what_was_written_after_the_checkpoint_goes(self, rest):
        self.assertEqual(self.resumed_with(self.content + rest), self.course(self.content))

    @parameterized.parameters((7, "of steps 2 to 2"), (None, "of steps 1 to 2"))
    @pytest.mark.slow
    def test_lines_that_the_checkpoint_counted_but_the_file_has_lost_come_from_the_checkpoint(self, cut, warning):
        with self.assertLogs("t5suite", "WARNING") as logs:
            lines = self.resumed_with(self.content[:-cut] if cut else b"")
        self.assertRegex("\n".join(logs.output), warning)
        self.assertEqual(lines, self.course(self.content))

    def resumed_with(self, content: bytes) -> list[tuple]:
        """The lines of the first two steps after a third one, in a run whose file held this before."""
        directory = folder() / "run"
        shutil.copytree(self.finished, directory)
        (directory / "metrics.jsonl").write_bytes(content)
        self.run_to(3, directory)
        lines = self.course((directory / "metrics.jsonl").read_bytes())
        self.assertEqual([step for step, _, _ in lines], [1, 2, 3])
        return lines[:2]

    def course(self, content: bytes) -> list[tuple]:
        lines = [json.loads(line) for line in content.splitlines()]
        return [(line["step"], line["train/loss"], line["train/grad_norm"]) for line in lines if "train/loss" in line]
