"""Training from a stream: a run that goes on from a checkpoint equals the whole one, bitwise.

As a script, one of two ranks: torchrun --nproc_per_node 2 tests/test_stream_training.py out.json run_directory 4
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from support import folder
from transformers import TrainerCallback, set_seed

from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.data.corpora.documents import bundled_text, read_documents
from t5suite.data.corpora.stream_loader import StreamLoader
from t5suite.data.corpora.streams import FileSource, StreamCorpus, StreamSettings, stream_encoder
from t5suite.data.objectives import sentinel_ids
from t5suite.models.loading import load_model
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.checkpoints.data_positions import load_position
from t5suite.training.flags.pre_training import PreTrainerArguments
from t5suite.training.pre_training import PreTrainer
from t5suite.training.processes.signals import StopRequests

UPDATE = 8
TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"


def make_trainer(output_dir, *, num_workers=0, dropout_rate=0.1, max_steps=10, world_size=1, path=None, **stream):
    """A trainer over a text so short that step 5 stands in the second pass, in the middle of a window."""
    tokenizer = tiny_tokenizer()
    args = PreTrainerArguments(
        output_dir=str(output_dir), per_device_train_batch_size=UPDATE // 2 // world_size,
        gradient_accumulation_steps=2, max_steps=max_steps, learning_rate=1e-2, logging_steps=1, save_steps=1,
        save_total_limit=max_steps, eval_strategy="no", disable_tqdm=True, use_cpu=True, seed=1,
    )  # fmt: skip
    set_seed(1)
    model = load_model(tokenizer=tokenizer, config_overrides=f"{TINY},dropout_rate={dropout_rate}")
    collator = T5DataCollator(
        sentinel_ids=sentinel_ids(tokenizer), eos_token_id=tokenizer.eos_token_id, inputs_length=32, seed=1,
        decoder_start_token_id=model.config.decoder_start_token_id, pad_token_id=model.config.pad_token_id,
    )  # fmt: skip
    source = FileSource(path or short_text(tokenizer))
    defaults = {"seed": 1, "num_virtual_streams": 4, "buffer_size": 28}
    settings = StreamSettings((collator.tokens_length,), **{**defaults, **stream})
    loader = StreamLoader(
        [StreamCorpus(source)], stream_encoder(tokenizer, [source]), settings, collator,
        args.per_device_train_batch_size, rank=args.process_index, world_size=args.world_size,
        num_workers=num_workers,
    )  # fmt: skip
    return PreTrainer(stream=loader, model=model, args=args, collator=collator, processing_class=tokenizer)


def short_text(tokenizer, num_tokens=500) -> Path:
    """The first documents of the bundled text, with so many tokens."""
    path, lines = Path(tempfile.mkdtemp()) / "short.txt", []
    for document in read_documents(bundled_text("train")):
        if num_tokens <= 0:
            break
        lines.append(document[:200])
        num_tokens -= len(tokenizer(lines[-1])["input_ids"])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def history(trainer) -> list[dict]:
    """What was logged of every update, without times."""
    names = ("loss", "grad_norm", "learning_rate", "epoch", "step")
    return [{name: line[name] for name in names} for line in trainer.state.log_history if "loss" in line]


def main(out, directory, max_steps):
    trainer = make_trainer(
        directory, dropout_rate=0, max_steps=int(max_steps), world_size=int(os.environ["WORLD_SIZE"])
    )
    trainer.train()
    if trainer.is_world_process_zero():
        with open(out, "w") as file:
            json.dump(history(trainer), file)


STEPS = 10


class StopAt(TrainerCallback):
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
        cls.whole = make_trainer(folder(), max_steps=STEPS)
        cls.whole.train()
        cls.history = history(cls.whole)
        cls.data = [cls.whole.examples_of(step) for step in (1, 3, 10)]

    @parameterized.parameters((5, 0, 2), (5, 2, 0), (1, 1, 1))
    @pytest.mark.slow
    @pytest.mark.resume
    def test_an_interrupted_run_equals_the_whole_one_bitwise(self, step, workers_before, workers_after):
        directory = folder()
        before = make_trainer(directory, num_workers=workers_before, max_steps=STEPS)
        before.add_callback(StopAt(step, before))
        with exits_with(75, f"stopped after step {step}; .* checkpoint-{step}"):
            before.train()
        self.assertEqual(history(before), self.history[:step])
        after = make_trainer(directory, num_workers=workers_after, max_steps=STEPS)
        after.train(resume_from_checkpoint=str(directory / f"checkpoint-{step}"))
        self.assertEqual(history(after), self.history)
        for name, expected in weights(self.whole).items():
            np.testing.assert_array_equal(weights(after)[name], expected, err_msg=name)

    def test_every_checkpoint_has_the_position_of_its_step(self):
        for step in range(1, STEPS + 1):
            file = Path(self.whole.args.output_dir) / f"checkpoint-{step}" / "stream-rank-0.json"
            self.assertEqual(json.loads(file.read_text())["num_given"], step * UPDATE)

    def test_an_update_has_the_same_data_whenever_it_is_asked_about(self):
        self.assertEqual(self.data, [[f"stream data {data}"] for data in ("0 to 7", "16 to 23", "72 to 79")])

    @pytest.mark.slow
    def test_a_checkpoint_without_a_position_is_refused(self):
        directory = folder()
        shutil.copytree(Path(self.whole.args.output_dir) / "checkpoint-5", directory / "checkpoint-5")
        position = directory / "checkpoint-5" / "stream-rank-0.json"
        stream = make_trainer(directory).data.loader
        position.write_text("{")
        with exits_with(78, "stream-rank-0.json is broken"):
            load_position(stream, directory / "checkpoint-5")
        position.unlink()
        with exits_with(78, "checkpoint-5 has no stream-rank-0.json.*--reset data"):
            load_position(stream, directory / "checkpoint-5")

    def test_a_stream_needs_max_steps(self):
        with exits_with(78, "--max_steps -1"):
            make_trainer(folder(), max_steps=-1)


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
        one = make_trainer(folder(), dropout_rate=0, max_steps=4)
        one.train()
        directory = folder()
        out = directory / "out.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        command += [__file__, str(out), str(directory / "run"), "4"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assert_same_course(json.loads(out.read_text()), history(one))
        files = sorted(path.name for path in (directory / "run" / "checkpoint-2").glob("stream-*"))
        self.assertEqual(files, ["stream-rank-0.json", "stream-rank-1.json"])
        after = make_trainer(directory / "run", dropout_rate=0, max_steps=4)
        after.train(resume_from_checkpoint=str(directory / "run" / "checkpoint-2"))
        self.assert_same_course(history(after)[2:], history(one)[2:])


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:2] and sys.argv[1].endswith(".json") else absltest.main()
