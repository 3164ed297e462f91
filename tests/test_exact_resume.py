"""A run that is stopped at any moment and started again leaves what the uninterrupted one leaves, bit by bit."""

import functools
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized
from transformers import Seq2SeqTrainer

import fine_tune_t5
import pre_train_t5
from t5suite.base.errors import CheckpointError, Preempted
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.tracking.metric_lines import is_of_the_machine
from t5suite.training.processes.signals import StopRequests
from t5suite.training.trainer import SuiteTrainer

SHAPE = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
COMMON = ["--config_overrides", SHAPE, "--dropout_rate", "0.1", "--max_eval_samples", "8", "--disable_tqdm", "True",
          "--use_cpu", "--logging_steps", "3", "--save_total_limit", "2"]  # fmt: skip
FINE_TUNE = [*COMMON, "--max_train_samples", "64", "--per_device_train_batch_size", "16", "--eval_method", "score"]
BY_STEPS = ["--eval_strategy", "steps", "--eval_steps", "2"]
# 4 steps an epoch. The last log is not at the end, checkpoints are not where logs are, and stopping comes early.
RUNS = {
    "by_epochs": (fine_tune_t5, [*FINE_TUNE, "--num_train_epochs", "2"]),
    "by_steps": (fine_tune_t5, [*FINE_TUNE, *BY_STEPS, "--max_steps", "7"]),
    "stopping_early": (
        fine_tune_t5,
        [*FINE_TUNE, *BY_STEPS, "--max_steps", "40", "--learning_rate", "0", "--early_stopping_patience", "2"],
    ),
    "pre_training": (
        pre_train_t5,
        [*COMMON, *BY_STEPS, "--max_steps", "7", "--per_device_train_batch_size", "4", "--inputs_length", "32"],
    ),
}


def run(name, directory, **patches):
    script, argv = RUNS[name]
    with mock.patch.multiple(SuiteTrainer, **patches) if patches else mock.patch.dict({}):
        return script.main([*argv, "--output_dir", str(directory)])


def stop_in_step(step):
    """Patches of a trainer that is asked to stop in a step."""
    return {"stop_requested": lambda trainer: trainer.state.global_step + 1 == step}


def stop_in_evaluation(step):
    """Patches of a trainer that is asked to stop while it evaluates after a step."""

    def check_stop(trainer):
        if trainer.state.global_step == step and trainer.is_in_train:
            raise Preempted("a signal")

    return {"check_stop": check_stop}


@functools.cache
def whole(name):
    """`(results, directory)` of an uninterrupted run."""
    directory = Path(tempfile.mkdtemp()) / "run"
    return run(name, directory), directory


def untimed(directory):
    lines = read_jsonl(directory / "metrics.jsonl")
    return [{key: value for key, value in line.items() if not is_of_the_machine(key)} for line in lines]


class OverriddenTest(parameterized.TestCase):
    @parameterized.parameters(
        "_save_checkpoint", "_save", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state",
        "_load_best_model", "_maybe_log_save_evaluate", "_run_epoch", "_finalize_training", "_get_grad_norm",
    )  # fmt: skip
    def test_what_has_no_hook_is_still_there_under_its_name(self, name):
        """transformers may rename what it does not promise; ours would then be called by nobody."""
        self.assertTrue(callable(getattr(Seq2SeqTrainer, name, None)))
        self.assertIsNot(getattr(SuiteTrainer, name), getattr(Seq2SeqTrainer, name))


class ExactResumeTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # `--stop` of one test must not be seen by the next: the process's own flag stays out of it.
        patched = mock.patch("t5suite.training.checkpoints.saving.stop_requests", StopRequests)
        patched.start()
        self.addCleanup(patched.stop)

    def assert_equals_the_whole_run(self, name, directory, results):
        expected, reference = whole(name)
        self.assertEqual(results, expected)
        self.assertEqual(untimed(directory), untimed(reference))
        self.assertEqual(*[(path / "model.safetensors").read_bytes() for path in (directory, reference)])
        manifests = [json.loads((path / "manifest.json").read_text()) for path in (directory, reference)]
        self.assertEqual(*[(m["status"], m["training"]["loss"], m["training"]["steps"]) for m in manifests])

    @parameterized.parameters(
        ("by_epochs", 1), ("by_epochs", 4), ("by_epochs", 8), ("by_steps", 1), ("by_steps", 2), ("by_steps", 6),
        ("by_steps", 7), ("stopping_early", 4), ("stopping_early", 5), ("stopping_early", 6), ("pre_training", 3),
        ("pre_training", 7),
    )  # fmt: skip
    def test_stopped_in_any_step(self, name, step):
        directory = Path(tempfile.mkdtemp()) / "run"
        with self.assertRaisesRegex(Preempted, f"stopped after step {step}; .*checkpoint-{step}"):
            run(name, directory, **stop_in_step(step))
        self.assertEqual(json.loads((directory / "manifest.json").read_text())["status"], "preempted")
        self.assert_equals_the_whole_run(name, directory, run(name, directory))

    @parameterized.parameters(
        ("by_epochs", 4), ("by_epochs", 8), ("by_steps", 6), ("stopping_early", 4), ("stopping_early", 6), ("pre_training", 4),
    )  # fmt: skip
    def test_stopped_in_an_evaluation_twice(self, name, step):
        directory = Path(tempfile.mkdtemp()) / "run"
        for _ in range(2):
            with self.assertRaises(Preempted):
                run(name, directory, **stop_in_evaluation(step))
            self.assertTrue((directory / f"checkpoint-{step}").is_dir())
        self.assert_equals_the_whole_run(name, directory, run(name, directory))

    def test_a_best_checkpoint_that_was_damaged_since_is_refused_by_name(self):
        """At a rate of 0 the first of equal checkpoints is the best; one bit of its last weight is turned."""
        directory = Path(tempfile.mkdtemp())

        def turn_a_bit(trainer):
            if trainer.state.global_step + 1 == 6:
                with (directory / "checkpoint-2" / "model.safetensors").open("r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    last = file.read()[0]
                    file.seek(-1, os.SEEK_END)
                    file.write(bytes([last ^ 1]))
            return False

        with self.assertRaisesRegex(CheckpointError, "checkpoint-2.*model.safetensors"):
            run("stopping_early", directory, stop_requested=turn_a_bit)
        self.assertFalse((directory / "model.safetensors").exists())

    def test_training_that_is_over_is_not_resumed(self):
        name, directory = "by_steps", Path(tempfile.mkdtemp()) / "run"
        results = run(name, directory)
        manifest = json.loads((directory / "manifest.json").read_text())
        (directory / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        (directory / "results.json").unlink()
        made = mock.Mock(side_effect=AssertionError("a step was trained"))
        self.assertEqual(run(name, directory, training_step=made), results)
        self.assert_equals_the_whole_run(name, directory, results)


if __name__ == "__main__":
    absltest.main()
