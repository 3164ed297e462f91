"""Which weights a run ends with: a NaN never selects them, and a best checkpoint that is lost is an error."""

import functools
import json
import math
import shutil
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from support import changed_trainer, folder, later_wins
from transformers import TrainerState

import fine_tune_t5
from t5suite import FineTuner
from t5suite.testing import exits_with, read_rows, write_rows

SETTINGS = {
    "max_train_samples": 32, "max_eval_samples": 4, "max_steps": 8, "per_device_train_batch_size": 4,
    "config_overrides": "d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2", "eval_strategy": "steps",
    "eval_steps": 2, "logging_steps": 8, "save_total_limit": 9, "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
NAN = math.nan
# The last weights, which no score has chosen, in place of a best checkpoint that is lost.
WAY_OUT = ("--load_best_model_at_end", "False", "--allow_changed", "load_best_model_at_end,save_strategy,save_steps")


def start(directory, scores, stops_in_step=None, **settings) -> None:
    """A process of a run whose evaluations after steps 2, 4, ... give these scores; it ends, or is asked to stop."""

    def score(predictions, targets):
        step = tuner.trainer.state.global_step if tuner.trainer else 2
        return {"odd": scores[min(step // 2, len(scores)) - 1]}

    flags = {**SETTINGS, "max_steps": 2 * len(scores), "metric_for_best_model": "odd", "output_dir": str(directory)}
    tuner = FineTuner(**{**flags, **settings}, metrics=score, quiet=True)
    if stops_in_step is None:
        tuner.train()
        return
    asks_to_stop = lambda trainer: trainer.state.global_step + 1 == stops_in_step
    with changed_trainer(stop_requested=asks_to_stop), pytest.raises(KeyboardInterrupt):
        tuner.train()


def weights(place) -> bytes:
    return (Path(place) / "model.safetensors").read_bytes()


def notes(directory) -> list[str]:
    return json.loads((directory / "manifest.json").read_text())["marks"]["sentiment"]


class ChosenRowsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, [], "--max_eval_samples=5"), ({"validation_split": 0.2}, ["--validation_split=0.2"], "--seed=7")
    )
    @pytest.mark.slow
    def test_an_evaluation_of_the_rows_that_chose_a_checkpoint_says_so_and_one_of_others_does_not(
        self, settings, words, other_rows
    ):
        place = folder()
        if settings:  # rows of your own, of which some are held out
            rows = [{"input": f"film {i}", "output": "bad good".split()[i % 2]} for i in range(40)]
            settings = {**settings, "data": str(write_rows(place / "sentiment.jsonl", rows))}
            words = [*words, f"--train_file={settings['data']}"]
        directory = place / "run"
        start(directory, [1.0, 2.0], **settings)
        self.assertIn("chosen on these rows", notes(directory))
        words = [f"--max_eval_samples={SETTINGS['max_eval_samples']}", *words, "--use_cpu", "--eval_only"]
        for model, flags, is_marked in (
            (directory, [], True),
            (directory, [other_rows], False),
            (directory / "checkpoint-2", [], False),
            (directory / "checkpoint-4", [], True),
        ):
            evaluation = folder() / "evaluation"
            fine_tune_t5.main(later_wins(words, flags, f"--model_name_or_path={model}", f"--output_dir={evaluation}"))
            self.assertEqual("chosen on these rows" in notes(evaluation), is_marked)

    @pytest.mark.slow
    def test_only_the_tasks_that_chose_a_checkpoint_are_marked_and_parts_of_their_rows_are(self):
        directory = folder() / "run"
        tasks = {"data": "mini/sentiment,entailment", "metric_for_best_model": "average", "max_eval_samples": None}
        FineTuner(**{**SETTINGS, **tasks, "output_dir": str(directory)}, quiet=True).train()
        path = directory / "manifest.json"
        manifest = json.loads(path.read_text())
        self.assertIn("chosen on these rows", manifest["marks"].pop("entailment"))  # as if it did not count, as WNLI
        path.write_text(json.dumps(manifest))
        for limit in (99, 3):
            flags = {"model_name_or_path": str(directory), "max_eval_samples": limit, "use_cpu": True}
            evaluation = folder() / "evaluation"
            words = [f"--{name}={value}" for name, value in flags.items()]
            fine_tune_t5.main(
                [*words, "--dataset_name=sentiment,entailment", f"--output_dir={evaluation}", "--eval_only"]
            )
            marks = json.loads((evaluation / "manifest.json").read_text())["marks"]
            self.assertIn("chosen on these rows", marks["sentiment"])
            self.assertNotIn("chosen on these rows", marks.get("entailment", []))

    @pytest.mark.slow
    def test_weights_of_a_task_are_chosen_on_its_own_rows(self):
        directory = folder() / "run"
        tasks = {"data": "mini/sentiment,entailment", "select": "per_task"}
        FineTuner(**{**SETTINGS, **tasks, "output_dir": str(directory)}, quiet=True).train()
        for task in ("sentiment", "entailment"):
            evaluation = folder() / "evaluation"
            words = [f"--model_name_or_path={directory / 'best' / task}", "--max_eval_samples=4", "--use_cpu"]
            words += ["--dataset_name=sentiment,entailment", f"--output_dir={evaluation}", "--eval_only"]
            fine_tune_t5.main(words)
            marks = json.loads((evaluation / "manifest.json").read_text())["marks"]
            marked = [name for name, notes_of_set in marks.items() if "chosen on these rows" in notes_of_set]
            self.assertEqual(marked, [task])


class NanTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_without_any_number_the_last_weights_stay_and_it_is_said(self):
        directory = folder() / "run"
        with self.assertLogs("t5suite", "WARNING") as logs:
            start(directory, [NAN, NAN, NAN])
        self.assertEqual(weights(directory), weights(directory / "checkpoint-6"))
        self.assertRegex("\n".join(logs.output), "no checkpoint was selected.*last step, 6")
        self.assertIn("nothing selected", notes(directory))
        self.assertNotIn("chosen on these rows", notes(directory))
        self.assertIsNone(json.loads((directory / "checkpoint-6/trainer_state.json").read_text())["best_metric"])

    @pytest.mark.slow
    def test_a_nan_of_an_earlier_version_is_no_best_score(self):
        """t5suite 0.2.0 wrote the smallest float, and the step of that evaluation."""
        directory = folder() / "run"
        save = TrainerState.save_to_json

        def save_as_before(state, path):
            state.best_metric, state.best_global_step = -1.7976931348623157e308, 2
            state.best_model_checkpoint = str(directory / "checkpoint-2")
            save(state, path)

        with mock.patch.object(TrainerState, "save_to_json", save_as_before):
            start(directory, [NAN, NAN, NAN], stops_in_step=3)
        written = json.loads((directory / "checkpoint-3/trainer_state.json").read_text())
        self.assertEqual((written["best_metric"], written["best_global_step"]), (-1.7976931348623157e308, 2))
        start(directory, [NAN, NAN, NAN])
        self.assertEqual(weights(directory), weights(directory / "checkpoint-6"))
        self.assertNotEqual(weights(directory), weights(directory / "checkpoint-2"))


class TakingUpTest(parameterized.TestCase):
    """Of a run that goes on elsewhere, or that began with another run's checkpoint."""

    # The best is that of step 2, beside the checkpoint of step 3.
    SCORES = [9.0, 1.0, 3.0, 2.0]

    def setUp(self):
        super().setUp()
        self.directory = folder() / "run"
        start(self.directory, self.SCORES, stops_in_step=3)
        self.best = weights(self.directory / "checkpoint-2")

    @pytest.mark.slow
    def test_the_best_checkpoint_is_found_in_a_directory_that_was_moved(self):
        moved = self.directory.rename(folder() / "moved")
        start(moved, self.SCORES)
        self.assertEqual(weights(moved), self.best)
        self.assertNotEqual(weights(moved), weights(moved / "checkpoint-8"))

    @pytest.mark.slow
    def test_a_copied_directory_needs_nothing_of_the_first_one(self):
        """Also where no step is left that would write a checkpoint."""
        start(self.directory, self.SCORES)
        copy = Path(shutil.copytree(self.directory, folder() / "copy"))
        manifest = json.loads((copy / "manifest.json").read_text())
        (copy / "manifest.json").write_text(json.dumps({**manifest, "status": "preempted"}))
        (self.directory / "checkpoint-2" / "model.safetensors").write_bytes(b"")
        start(copy, self.SCORES)
        self.assertEqual(weights(copy), self.best)

    def test_a_copied_directory_s_own_best_checkpoint_is_looked_at_before_training(self):
        copy = Path(shutil.copytree(self.directory, folder() / "copy"))
        content = weights(copy / "checkpoint-2")
        (copy / "checkpoint-2" / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with exits_with(74, "copy/checkpoint-2, is damaged"):
            start(copy, self.SCORES)
        self.assertFalse((copy / "checkpoint-4").exists())

    @pytest.mark.slow
    def test_it_is_in_the_run_that_this_one_began_with(self):
        for is_lost in (False, True):
            directory = folder() / "run"
            start(directory, self.SCORES, stops_in_step=5, resume=str(self.directory / "checkpoint-3"))
            if is_lost:
                shutil.rmtree(self.directory / "checkpoint-2")
                with exits_with(74, "checkpoint-2, is missing"):
                    start(directory, self.SCORES)
                self.assertFalse((directory / "model.safetensors").exists())
            else:
                start(directory, self.SCORES)
                self.assertEqual(weights(directory), self.best)

    @pytest.mark.slow
    def test_the_score_of_another_run_s_best_checkpoint_that_did_not_come_along_selects_nothing(self):
        shutil.rmtree(self.directory / "checkpoint-2")
        directory = folder() / "run"
        with self.assertLogs("t5suite", "WARNING") as logs:
            start(directory, self.SCORES, resume=str(self.directory / "checkpoint-3"))
        self.assertIn("of step 2, is not there", "\n".join(logs.output))
        self.assertEqual(weights(directory), weights(directory / "checkpoint-6"))
        self.assertNotEqual(weights(directory), weights(directory / "checkpoint-8"))


@pytest.mark.slow
@pytest.mark.resume
class LostBestTest(parameterized.TestCase):
    """At a rate of 0 the first of equal checkpoints, that of step 2, is the best."""

    def start(self, directory, *flags, loses_in_step=None):
        def stop_requested(trainer):
            if trainer.state.global_step + 1 == loses_in_step:
                shutil.rmtree(directory / "checkpoint-2")
            return False

        words = [f"--{name}={value}" for name, value in SETTINGS.items()]
        with changed_trainer(stop_requested=stop_requested):
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
        with changed_trainer(_finalize_training=stopped), self.assertRaisesRegex(OSError, "the end"):
            self.start(directory)
        shutil.rmtree(directory / "checkpoint-2")
        untrained = mock.Mock(side_effect=AssertionError("training began"))
        with changed_trainer(train=untrained):
            self.assert_lost(functools.partial(self.start, directory), directory)
