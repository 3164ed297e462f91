"""Training from a stream: a run that goes on from a checkpoint equals the whole one, bitwise."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import stream_run
from absl.testing import absltest, parameterized
from transformers import TrainerCallback

from t5suite.base.errors import ConfigError, DataError, Preempted
from t5suite.training.checkpoints.data_positions import load_position
from t5suite.training.processes.signals import StopRequests

STEPS = 10


def folder():
    return Path(tempfile.mkdtemp())


class StopAt(TrainerCallback):
    """Asks for a stop in a step, as a signal would."""

    def __init__(self, step, trainer):
        self.step = step
        self.trainer = trainer

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            self.trainer.stop = StopRequests()
            self.trainer.stop.request("SIGTERM")


def weights(trainer):
    return {name: tensor.detach().numpy().copy() for name, tensor in trainer.model.state_dict().items()}


class ResumeTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = stream_run.make_trainer(folder(), max_steps=STEPS)
        cls.whole.train()
        cls.history = stream_run.history(cls.whole)

    @parameterized.parameters((5, 0, 2), (5, 2, 0), (1, 1, 1))
    def test_an_interrupted_run_equals_the_whole_one_bitwise(self, step, workers_before, workers_after):
        directory = folder()
        before = stream_run.make_trainer(directory, num_workers=workers_before, max_steps=STEPS)
        before.add_callback(StopAt(step, before))
        with self.assertRaisesRegex(Preempted, f"stopped after step {step}; .* checkpoint-{step}"):
            before.train()
        self.assertEqual(stream_run.history(before), self.history[:step])
        after = stream_run.make_trainer(directory, num_workers=workers_after, max_steps=STEPS)
        after.train(resume_from_checkpoint=str(directory / f"checkpoint-{step}"))
        self.assertEqual(stream_run.history(after), self.history)
        for name, expected in weights(self.whole).items():
            np.testing.assert_array_equal(weights(after)[name], expected, err_msg=name)

    def test_every_checkpoint_has_the_position_of_its_step(self):
        for step in range(1, STEPS + 1):
            file = Path(self.whole.args.output_dir) / f"checkpoint-{step}" / "stream-rank-0.json"
            self.assertEqual(json.loads(file.read_text())["num_given"], step * stream_run.UPDATE)

    def test_the_interruption_is_in_the_middle_of_a_window_in_the_second_pass(self):
        file = Path(self.whole.args.output_dir) / "checkpoint-5" / "stream-rank-0.json"
        positions = [position for stream in json.loads(file.read_text())["streams"].values() for position in stream]
        self.assertTrue(any(position["epoch"] >= 1 and 0 < position["given"] < 7 for position in positions), positions)

    @parameterized.parameters((1, "0 to 7"), (3, "16 to 23"), (10, "72 to 79"))
    def test_an_update_has_the_same_data_whenever_it_is_asked_about(self, step, data):
        self.assertEqual(self.whole.examples_of(step), [f"stream data {data}"])

    def test_the_epoch_is_a_share_of_the_run(self):
        self.assertEqual([line["epoch"] for line in self.history], [step / STEPS for step in range(1, STEPS + 1)])

    def test_a_checkpoint_without_a_position_is_refused(self):
        directory = folder()
        shutil.copytree(Path(self.whole.args.output_dir) / "checkpoint-5", directory / "checkpoint-5")
        position = directory / "checkpoint-5" / "stream-rank-0.json"
        stream = stream_run.make_trainer(directory).stream
        position.write_text("{")
        with self.assertRaisesRegex(ConfigError, "stream-rank-0.json is broken"):
            load_position(stream, directory / "checkpoint-5")
        position.unlink()
        with self.assertRaisesRegex(ConfigError, "checkpoint-5 has no stream-rank-0.json.*--reset data"):
            load_position(stream, directory / "checkpoint-5")

    def test_other_settings_or_text_are_refused(self):
        checkpoint = Path(self.whole.args.output_dir) / "checkpoint-5"
        with self.assertRaisesRegex(ConfigError, "checkpoint-5: .*buffer_size 28 there, 8 here"):
            load_position(stream_run.make_trainer(folder(), buffer_size=8).stream, checkpoint)
        text = folder() / "a.txt"
        text.write_text("The guard stood in the town.\n" * 100)
        with self.assertRaisesRegex(DataError, "text has changed"):
            load_position(stream_run.make_trainer(folder(), path=text).stream, checkpoint)

    def test_a_stream_needs_max_steps(self):
        with self.assertRaisesRegex(ConfigError, "--max_steps -1"):
            stream_run.make_trainer(folder(), max_steps=-1)


@pytest.mark.slow
@pytest.mark.ranks
class RanksTest(parameterized.TestCase):
    RELATIVE = 2e-6

    def assert_same_course(self, found, expected):
        self.assertLen(found, len(expected))
        for ours, theirs in zip(found, expected):
            for key in ("loss", "grad_norm"):
                self.assertLess(abs(ours[key] - theirs[key]) / abs(theirs[key]), self.RELATIVE)

    def test_two_ranks_equal_one_and_one_goes_on_from_two(self):
        one = stream_run.make_trainer(folder(), dropout_rate=0, max_steps=4)
        one.train()
        directory = folder()
        out = directory / "out.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        command += [stream_run.__file__, str(out), str(directory / "run"), "4"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assert_same_course(json.loads(out.read_text()), stream_run.history(one))
        files = sorted(path.name for path in (directory / "run" / "checkpoint-2").glob("stream-*"))
        self.assertEqual(files, ["stream-rank-0.json", "stream-rank-1.json"])
        after = stream_run.make_trainer(directory / "run", dropout_rate=0, max_steps=4)
        after.train(resume_from_checkpoint=str(directory / "run" / "checkpoint-2"))
        self.assert_same_course(stream_run.history(after)[2:], stream_run.history(one)[2:])


if __name__ == "__main__":
    absltest.main()
