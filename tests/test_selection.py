"""Which weights a run ends with: a NaN never selects them, and a best checkpoint that is lost is an error."""

import functools
import json
import math
import shutil
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from support import OwnStopRequests, folder, later_wins
from transformers import TrainerState

import fine_tune_t5
from t5suite import FineTuner
from t5suite.reports import finishing
from t5suite.testing import exits_with, read_rows
from t5suite.training.callbacks import BestPerTaskCallback
from t5suite.training.checkpoints.selection import best_of_checkpoint, forget_undefined_best, take_up_best
from t5suite.training.trainer import SuiteTrainer

SETTINGS = {
    "max_train_samples": 32, "max_eval_samples": 4, "max_steps": 8, "per_device_train_batch_size": 4,
    "config_overrides": "d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2", "eval_strategy": "steps",
    "eval_steps": 2, "logging_steps": 8, "save_total_limit": 9, "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
NAN = math.nan
# The last weights, which no score has chosen, in place of a best checkpoint that is lost.
WAY_OUT = ("--load_best_model_at_end", "False", "--allow_changed", "load_best_model_at_end,save_strategy,save_steps")


def without_card():
    return mock.patch.multiple(finishing, learning_curves=mock.DEFAULT, write_fine_tuned_card=mock.DEFAULT)


def run_with_scores(scores, **settings):
    """A run whose evaluations after steps 2, 4, ... give these scores: `(its directory, its last step)`."""
    step_of = lambda: tuner.trainer.state.global_step if tuner.trainer else 2
    score = lambda predictions, targets: {"odd": scores[min(step_of() // 2, len(scores)) - 1]}
    flags = {**SETTINGS, "max_steps": 2 * len(scores), "metric_for_best_model": "odd", "output_dir": str(folder())}
    tuner = FineTuner(**{**flags, **settings}, metrics=score, quiet=True)
    with without_card():
        tuner.train()
    return Path(tuner.args.output_dir), tuner.trainer.state.global_step


def weights(place) -> bytes:
    return (Path(place) / "model.safetensors").read_bytes()


def notes(directory) -> list[str]:
    return json.loads((directory / "manifest.json").read_text())["marks"]["sentiment"]


class NanTest(parameterized.TestCase):
    def test_without_any_number_the_last_weights_stay_and_it_is_said(self):
        with self.assertLogs("t5suite.training.checkpoints.selection", "WARNING") as logs:
            directory, _ = run_with_scores([NAN, NAN, NAN])
        self.assertEqual(weights(directory), weights(directory / "checkpoint-6"))
        self.assertRegex(logs.output[0], "no checkpoint was selected.*last step, 6")
        self.assertIn("nothing selected", notes(directory))
        self.assertNotIn("chosen on these rows", notes(directory))
        self.assertIsNone(json.loads((directory / "checkpoint-6/trainer_state.json").read_text())["best_metric"])

    def test_a_nan_of_an_earlier_version_is_no_best_score(self):
        """t5suite 0.2.0 wrote the smallest float, and the step of that evaluation."""
        state = TrainerState(best_metric=-1.7976931348623157e308, best_global_step=4, best_model_checkpoint="x")
        forget_undefined_best(state)
        self.assertEqual((state.best_metric, state.best_global_step, state.best_model_checkpoint), (None,) * 3)


class TakingUpTest(parameterized.TestCase):
    def test_the_best_checkpoint_is_found_in_a_directory_that_was_moved(self):
        directory = folder()
        (directory / "checkpoint-4").mkdir()
        state = TrainerState(best_metric=70.0, best_global_step=4)
        take_up_best(state, directory)
        self.assertEqual(state.best_model_checkpoint, str(directory / "checkpoint-4"))

    @parameterized.parameters(True, False)
    def test_it_is_beside_the_checkpoint_or_in_the_run_that_this_one_began_with(self, is_beside):
        old, directory = folder(), folder()
        for place in (old / "checkpoint-4", directory / "checkpoint-8", *[directory / "checkpoint-4"] * is_beside):
            place.mkdir()
        state = TrainerState(best_metric=70.0, best_global_step=4, best_model_checkpoint=str(old / "checkpoint-4"))
        state.save_to_json(str(directory / "checkpoint-8/trainer_state.json"))
        expected = (directory if is_beside else old) / "checkpoint-4"
        self.assertEqual(best_of_checkpoint(directory / "checkpoint-8"), expected)

    def test_the_score_of_another_run_s_best_checkpoint_that_did_not_come_along_selects_nothing(self):
        state = TrainerState(best_metric=70.0, best_global_step=4)
        with self.assertLogs("t5suite.training.checkpoints.selection", "WARNING"):
            take_up_best(state, folder())
        self.assertIsNone(state.best_metric)

    def test_a_task_s_best_weights_that_are_lost_are_refused_by_name(self):
        callback = BestPerTaskCallback(folder(), None, lambda place: None)
        with exits_with(74, "best/rte.*step 4.*missing.*--select average"):
            callback.recall({"rte": {"step": 4, "value": 70.0}})


@pytest.mark.slow
@pytest.mark.resume
class LostBestTest(OwnStopRequests):
    """At a rate of 0 the first of equal checkpoints, that of step 2, is the best."""

    def run(self, result=None):
        with without_card():
            return super().run(result)

    def start(self, directory, *flags, loses_in_step=None):
        def stop_requested(trainer):
            if trainer.state.global_step + 1 == loses_in_step:
                shutil.rmtree(directory / "checkpoint-2")
            return False

        words = [f"--{name}={value}" for name, value in SETTINGS.items()]
        with mock.patch.object(SuiteTrainer, "stop_requested", stop_requested):
            return fine_tune_t5.main(later_wins(words, "--learning_rate", "0", "--output_dir", str(directory), flags))

    def assert_lost(self, start, directory):
        with exits_with(74, "best checkpoint.*checkpoint-2, is missing.*Bring back a copy"):
            start()
        self.assertFalse((directory / "model.safetensors").exists())
        self.assertFalse((directory / "results.json").exists())

    def test_it_is_an_error_at_the_end_and_at_every_start_and_a_copy_cures_it(self):
        directory, copy = folder() / "run", folder() / "checkpoint-2"
        rmtree = shutil.rmtree

        def keep_copy(place, *rest, **options):
            if Path(place) == directory / "checkpoint-2":
                shutil.copytree(place, copy)
            rmtree(place, *rest, **options)

        with mock.patch("shutil.rmtree", keep_copy):
            self.assert_lost(functools.partial(self.start, directory, loses_in_step=6), directory)
        for _ in range(2):
            self.assert_lost(functools.partial(self.start, directory), directory)
        shutil.copytree(copy, directory / "checkpoint-2")
        self.start(directory)
        self.assertEqual(weights(directory), weights(copy))

    def test_the_named_way_out_ends_with_the_last_weights_and_calls_nothing_best(self):
        directory = folder() / "run"
        self.assert_lost(functools.partial(self.start, directory, loses_in_step=6), directory)
        self.start(directory, *WAY_OUT)
        self.assertEqual(weights(directory), weights(directory / "checkpoint-8"))
        self.assertNotIn("chosen on these rows", notes(directory))
        self.assertLen([line for line in read_rows(directory / "metrics.jsonl") if "eval/average" in line], 4)

    def test_a_run_that_was_stopped_says_it_before_it_trains(self):
        directory = folder() / "run"
        stopped = mock.Mock(side_effect=OSError("the end"))
        patch = mock.patch.object(SuiteTrainer, "_finalize_training", stopped)
        with patch, self.assertRaisesRegex(OSError, "the end"):
            self.start(directory)
        shutil.rmtree(directory / "checkpoint-2")
        untrained = mock.Mock(side_effect=AssertionError("training began"))
        with mock.patch.object(SuiteTrainer, "train", untrained):
            self.assert_lost(functools.partial(self.start, directory), directory)
