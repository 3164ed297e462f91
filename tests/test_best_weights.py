"""One law of selection: the weights of the best evaluation are those that are loaded, saved, exported and scored with.

The scores of a run's evaluations are literal series. The metric looks up which weights the model has at that moment, as
they were recorded after each step, so that a score also tells with which weights it was computed. Which step is the
best one, and after which step a run ends, is found by plain loops over the series.
"""

import errno
import itertools
import json
import math
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from absl.testing import parameterized
from safetensors.torch import load_file
from support import folder

import pre_train_t5
from t5suite import Callback, FineTuner
from t5suite.tasks.metrics import METRICS
from t5suite.testing import exits_with, run_cli, write_rows

NAN = math.nan
SETTINGS = {
    "benchmark": "scripted", "eval_strategy": "steps", "eval_steps": 1, "logging_steps": 9, "save_total_limit": 1,
    "config_overrides": "d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2", "learning_rate": 1e-2,
    "per_device_train_batch_size": 4, "max_source_length": 16, "eval_method": "score",
    "disable_tqdm": True, "use_cpu": True,
}  # fmt: skip
# Scores after steps 1, 2, ...
RISING, FALLING, PEAK = (1.0, 2.0, 3.0, 4.0), (4.0, 3.0, 2.0, 1.0), (-4.0, -2.0, -3.0, -5.0)
TIE, ALL_EQUAL, TIE_AT_THE_END = (1.0, 3.0, 3.0, 2.0), (0.0, 0.0, 0.0, 0.0), (2.0, 1.0, 3.0, 3.0)
NAN_FIRST, NAN_LAST, NAN_AT_THE_PEAK = (NAN, NAN, 1.0, 0.0), (1.0, 2.0, 0.0, NAN), (1.0, NAN, 2.0, 0.0)
ALL_NAN, INFINITE = (NAN, NAN, NAN, NAN), (-1.0, math.inf, -2.0, -math.inf)
NAN_BEFORE_A_TIE, NAN_BEFORE_A_LOW_TIE = (NAN, 3.0, 3.0, 2.0), (NAN, 2.0, 2.0, 3.0)
SERIES = {
    "rising": RISING, "falling": FALLING, "peak": PEAK, "tie": TIE, "all equal": ALL_EQUAL,
    "tie at the end": TIE_AT_THE_END, "nan first": NAN_FIRST, "nan last": NAN_LAST, "nan amid": NAN_AT_THE_PEAK,
    "all nan": ALL_NAN, "infinite": INFINITE, "nan before a tie": NAN_BEFORE_A_TIE,
    "nan before a low tie": NAN_BEFORE_A_LOW_TIE,
}  # fmt: skip

# A mixture's two tasks, whose bests are after steps 2 and 3, with a mean that is best after step 1.
THREE_BESTS = {"a": (5.0, 6.0, 0.0), "b": (5.0, -9.0, 6.0)}


def best_step(series, goal="maximize") -> int | None:
    """The earliest of the best finite scores' steps."""
    best = None
    for step, score in enumerate(series, 1):
        sign = 1 if goal == "maximize" else -1
        if math.isfinite(score) and (best is None or sign * score > sign * series[best - 1]):
            best = step
    return best


def equal_steps(series, best: int) -> list[int]:
    """The other steps with the best step's score."""
    return [step for step, score in enumerate(series, 1) if step != best and score == series[best - 1]]


def choice_of(task: str | None, step: int, by: str, series) -> dict:
    """What the manifest says of the step that is kept."""
    choice = {"task": task, "step": step, "by": by, "equal_steps": equal_steps(series, step)}
    if len(series) > 1 and len(set(series)) == 1:
        choice["all_equal"] = True
    return choice


def same(weights: dict, others: dict) -> bool:
    return all(torch.equal(value, others[name]) for name, value in weights.items())


def saved(place) -> dict:
    """The weights in a folder, with the names that they have in memory."""
    path = Path(place) / "model.safetensors"
    if path.is_file():
        return load_file(path)
    adapter = load_file(Path(place) / "adapter_model.safetensors")
    return {re.sub(r"lora_([AB])\.weight", r"lora_\1.default.weight", name): value for name, value in adapter.items()}


class Killed(BaseException):
    """The process ends here, as SIGKILL would end it: nothing of the run may catch this."""


class Script(Callback):
    """The scores of a run, by task; records the weights after every step, and ends the process where it is told to.

    Attributes:
      dies: `(place, step)`: "stopped" (Ctrl-C in that step), "unsaved" (killed between the evaluation after it and
        its checkpoint), "saved" (killed after its checkpoint), "trained" (killed after training).
      weights: by step; a step that is made again must give the same.
      steps: those that were made, in order, over all starts.
      of_loss: the loss of an evaluation follows the series of the first task, too.
    """

    def __init__(self, series: dict, of_loss: bool = False):
        self.series, self.weights, self.steps, self.of_loss = series, {}, [], of_loss
        self.model, self.dies = None, (None, None)

    def kill(self, place, step) -> None:
        if self.dies == (place, step):
            raise Killed

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.model = model
        if state.global_step == 0:
            self.record(0)
        if self.of_loss:
            model.lm_head.register_forward_hook(self.logits)

    def on_step_begin(self, args, state, control, **kwargs):
        self.step = state.global_step + 1
        if self.dies == ("stopped", self.step):
            signal.raise_signal(signal.SIGINT)

    def on_step_end(self, args, state, control, **kwargs):
        self.record(state.global_step)
        self.steps.append(state.global_step)

    def record(self, step: int) -> None:
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        assert same(self.weights.setdefault(step, weights), weights), "not the same weights again"

    def state_dict(self) -> dict:
        """Called while a checkpoint is written."""
        self.kill("unsaved", self.step)
        return {}

    def on_save(self, args, state, control, **kwargs):
        self.kill("saved", state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        self.kill("trained", state.global_step)

    def step_of_weights(self) -> int:
        """The step after which the model had the weights that it has now."""
        now = self.model.state_dict()
        [step] = [step for step, weights in self.weights.items() if same(weights, now)]
        return step

    def score(self, task: str) -> float:
        """The score of the weights that the model has now; before the first step it is no number."""
        step = self.step_of_weights()
        return self.series[task][step - 1] if step > 0 else NAN

    def metric(self, task: str):
        return lambda predictions, references, **_: self.score(task)

    def logits(self, module, inputs, logits_BTV):
        """All tokens are equally likely but for padding, which no target has: it raises the loss, with the score."""
        if self.model.training:
            return logits_BTV
        [task, *_] = self.series
        scripted_BTV = torch.zeros_like(logits_BTV)
        scripted_BTV[..., 0] = self.score(task)
        return scripted_BTV


SCRIPT = None  # of a pre-training run, whose callbacks are named by module and name


class SelectionTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = folder() / "run"

    def script(self, series: dict, of_loss: bool = False, **settings) -> Script:
        """The script of a run of these settings, whose tasks and metrics bear the names of the series."""
        script, data = Script(series, of_loss), folder()
        self.enter_context(mock.patch.dict(METRICS, {f"{task}_score": script.metric(task) for task in series}))
        entries = {}
        for task in series:
            entries[task] = {
                "prefix": f"{task}: ", "text_column_name": "text", "label_column_name": "label",
                "labels": ["bad", "good"], "metric_names": [f"{task}_score"], "metric_to_optimize": f"{task}_score",
            }  # fmt: skip
            for split, count in (("train", 8), ("validation", 2)):
                rows = [
                    {"text": f"It was {word} {i}.", "label": word} for i in range(count) for word in ("bad", "good")
                ]
                write_rows(data / "scripted" / task / f"{split}.jsonl", rows[:count])
        (data / "tasks.yaml").write_text(yaml.safe_dump({"scripted": entries}))
        places = {"task_file": str(data / "tasks.yaml"), "data_dir": str(data), "output_dir": str(self.directory)}
        length = max(map(len, series.values()))
        self.settings = {**SETTINGS, **places, "dataset_name": ",".join(series), "max_steps": length, **settings}
        return script

    def start(self, script: Script) -> FineTuner:
        """A process of the run, to its end."""
        tuner = FineTuner(**self.settings, callbacks=[script], quiet=True)
        tuner.train()
        return tuner

    def die(self, script: Script, place: str, step: int) -> None:
        """A process of the run that ends there."""
        script.dies = (place, step)
        with self.assertRaises((Killed, KeyboardInterrupt)):
            self.start(script)
        script.dies = (None, None)

    def assert_weights(self, script: Script, step: int, weights: dict, where: str):
        self.assertNotEmpty(weights, where)
        for name, value in weights.items():
            self.assertTrue(torch.equal(value, script.weights[step][name]), f"{where}: {name} is not of step {step}")

    def assert_best(self, script: Script, tuner: FineTuner, step: int):
        """The best weights are in memory, in the run's directory and in its best checkpoint."""
        self.assert_weights(script, step, tuner.model.state_dict(), "in memory")
        self.assert_weights(script, step, saved(self.directory), "saved")
        self.assert_weights(script, step, saved(self.directory / f"checkpoint-{step}"), "kept")

    def assert_best_of_tasks(self, script: Script, results: dict, otherwise: int):
        """Each task is scored with its own best weights, which are in its folder; or with those of another step."""
        manifest = json.loads((self.directory / "manifest.json").read_text())
        steps = {task: best_step(series) for task, series in script.series.items()}
        best, kept = {}, []
        for task, step in steps.items():
            if step is not None:
                equal = equal_steps(script.series[task], step)
                best[task] = {
                    "step": step,
                    "value": script.series[task][step - 1],
                    **({"equal_steps": equal} if equal else {}),
                }
                kept.append(choice_of(task, step, f"{task}_score", script.series[task]))
        self.assertEqual(manifest["best_per_task"], best)
        self.assertCountEqual(manifest["choices"], kept)
        for task, series in script.series.items():
            step, place = best_step(series), self.directory / "best" / task
            self.assertEqual(repr(results["tasks"][task][f"{task}_score"]), repr(series[(step or otherwise) - 1]), task)
            self.assertEqual(place.is_dir(), step is not None, task)
            if step is not None:
                self.assert_weights(script, step, saved(place), f"the best of {task}")

    def assert_best_of_each(self, script: Script, tuner: FineTuner):
        """A mixture's best weights are those of the best mean, or the last ones; each task has its own besides."""
        means = [sum(scores) / len(scores) for scores in zip(*script.series.values())]
        step = best_step(means) or len(means)
        self.assert_best(script, tuner, step)
        self.assert_best_of_tasks(script, tuner.results, otherwise=step)


class OneTaskTest(SelectionTest):
    def check(self, name, goal="maximize", **settings):
        """A run of one task ends with its best weights, or the last ones if no score was a number."""
        script = self.script({"a": SERIES[name]}, **settings)
        tuner = self.start(script)
        step = best_step(SERIES[name], goal) or len(SERIES[name])
        self.assert_best(script, tuner, step)
        self.assertEqual(repr(tuner.results["tasks"]["a"]["a_score"]), repr(SERIES[name][step - 1]))
        kept = []
        if best_step(SERIES[name], goal):
            by = "a_score" if goal == "maximize" else "loss"
            kept = [choice_of(None, step, by, SERIES[name])]
        self.assertEqual(json.loads((self.directory / "manifest.json").read_text())["choices"], kept)
        return tuner, step

    @pytest.mark.slow
    def test_the_earliest_of_the_highest_numbers_selects(self):
        self.check("nan before a tie")

    @parameterized.product(name=[*SERIES], save_strategy=["steps", "best"])
    @pytest.mark.slow
    def test_it_does_in_every_series(self, name, save_strategy):
        if (name, save_strategy) != ("all nan", "best"):  # without a best one, no checkpoint is written
            self.check(name, save_strategy=save_strategy)

    def check_loss(self, name):
        tuner, step = self.check(name, "minimize", of_loss=True, metric_for_best_model="loss")
        losses = {line["step"]: line["eval/loss"] for line in tuner.history if line.get("eval/loss") is not None}
        self.assertEqual(min(losses, key=losses.get), step)

    @pytest.mark.slow
    def test_the_earliest_of_the_lowest_losses_selects(self):
        self.check_loss("nan before a low tie")

    @parameterized.parameters(*sorted(SERIES.keys() - {"all nan", "infinite"}))
    @pytest.mark.slow
    def test_the_lowest_loss_does_in_every_series(self, name):
        self.check_loss(name)

    def test_without_selection_the_last_weights_stay(self):
        script = self.script({"a": FALLING[:2]}, load_best_model_at_end=False)
        self.assert_best(script, self.start(script), 2)

    @pytest.mark.slow
    def test_a_finished_run_that_is_started_again_trains_nothing_and_what_is_exported_is_the_best(self):
        script = self.script({"a": FALLING[:2]})
        self.start(script)
        self.assert_best(script, self.start(script), 1)
        self.assertEqual(script.steps, [1, 2])
        exported = folder() / "exported"
        run_cli("export", "--model_name_or_path", self.directory, "--output_dir", exported)
        self.assert_weights(script, 1, load_file(exported / "model.safetensors"), "exported")

    @pytest.mark.slow
    def test_the_adapter_that_is_merged_is_the_best(self):
        """By hand: W + alpha / r * B A, with A and B of the best step."""
        script = self.script({"a": FALLING[:2]}, adapter="lora", lora_r=2, lora_alpha=6)
        self.start(script)
        exported = folder() / "exported"
        run_cli("export", "--model_name_or_path", self.directory, "--output_dir", exported)
        merged = load_file(exported / "model.safetensors")
        best = {name.removeprefix("base_model.model."): value for name, value in script.weights[1].items()}
        layers = [
            name.removesuffix(".lora_A.default.weight") for name in best if name.endswith("lora_A.default.weight")
        ]
        self.assertNotEmpty(layers)
        for layer in layers:
            update = best[f"{layer}.lora_B.default.weight"] @ best[f"{layer}.lora_A.default.weight"]
            expected = best[f"{layer}.base_layer.weight"] + 6 / 2 * update
            torch.testing.assert_close(merged[f"{layer}.weight"], expected, rtol=1e-6, atol=1e-7)
            self.assertFalse(torch.equal(merged[f"{layer}.weight"], best[f"{layer}.base_layer.weight"]), layer)


class OtherScoresTest(SelectionTest):
    """Scores of other data or by another score are not compared with those so far, which were higher."""

    def begin(self, series: dict, **settings):
        """`(the run of another directory, ended, its last checkpoint)`."""
        script = self.script(series, **settings)
        self.start(script)
        return script, self.directory / f"checkpoint-{self.settings['max_steps']}"

    @pytest.mark.slow
    def test_the_best_of_other_data_selects_nothing(self):
        _, checkpoint = self.begin({"a": (9.0, 8.0)}, early_stopping_patience=2)
        self.directory = folder() / "run"
        script = self.script(
            {"b": (9.0, 9.0, 1.0, 0.5, 2.0, 1.0)}, resume=str(checkpoint), reset="optimizer,schedule,data",
            early_stopping_patience=2,
        )  # fmt: skip
        self.assert_best(script, self.start(script), 5)
        self.assertEqual(script.steps, [3, 4, 5, 6])

    @pytest.mark.slow
    def test_the_best_by_another_score_selects_nothing(self):
        """By accuracy step 2 of 1, 5, 4, 3 is the best one; by a loss that follows the same numbers, step 4 is."""
        script = self.script({"a": (1.0, 5.0, 4.0, 3.0)}, of_loss=True)
        self.die(script, "saved", 2)
        self.settings |= {"metric_for_best_model": "loss", "allow_changed": "metric_for_best_model"}
        self.assert_best(script, self.start(script), 4)

    @pytest.mark.slow
    def test_a_run_that_goes_on_with_the_same_scores_keeps_its_best(self):
        script = self.script({"a": (1.0, 5.0, 4.0, 3.0)})
        self.die(script, "saved", 2)
        self.settings |= {"learning_rate": 1e-3, "allow_changed": "learning_rate"}
        self.assert_best(script, self.start(script), 2)

    @pytest.mark.slow
    def test_the_best_of_tasks_begins_anew_where_no_weights_were_kept(self):
        """In another directory, and in a run that chose by the average before."""
        series = {"a": (9.0, 8.0, 1.0, 3.0, 2.0), "b": (9.0, 8.0, 2.0, 1.0, 0.0)}
        first = {task: scores[:2] for task, scores in series.items()}
        _, checkpoint = self.begin(first, select="per_task")
        self.directory = folder() / "run"
        script = self.script(series, resume=str(checkpoint), select="per_task")
        self.start(script)
        self.assert_steps_of_tasks(script, {"a": 4, "b": 3})
        self.directory = folder() / "run"
        script = self.script(series)
        self.die(script, "saved", 2)
        self.settings |= {"select": "per_task", "allow_changed": "select"}
        self.start(script)
        self.assert_steps_of_tasks(script, {"a": 4, "b": 3})

    def assert_steps_of_tasks(self, script, steps: dict):
        manifest = json.loads((self.directory / "manifest.json").read_text())
        self.assertEqual({task: best["step"] for task, best in manifest["best_per_task"].items()}, steps)
        for task, step in steps.items():
            self.assert_weights(script, step, saved(self.directory / "best" / task), f"the best of {task}")


class SeveralTasksTest(SelectionTest):
    """The means select one checkpoint, and each task's own scores another one each."""

    def test_each_task_has_its_own_best_weights_and_all_have_one_model(self):
        """After steps 2, of a tie, and 4; the mean is best after step 1."""
        script = self.script({"a": (5.0, 6.0, 6.0, 0.0), "b": (5.0, NAN, -9.0, 6.0)}, select="per_task")
        self.assert_best_of_each(script, self.start(script))

    def test_a_task_without_a_best_step_is_scored_with_the_last_weights_whatever_task_is_before_it(self):
        """Scores that are no numbers select nothing, but these tell of which step the weights were."""
        inf = math.inf
        series = {"a": (3.0, 2.0, 1.0), "amid": (-inf, NAN, inf), "b": (1.0, 3.0, 2.0), "last": (inf, NAN, -inf)}
        script = self.script(series, select="per_task")
        tuner = self.start(script)
        self.assert_best_of_each(script, tuner)
        self.assert_weights(script, 3, tuner.model.state_dict(), "in memory")

    def test_earlier_weights_that_cannot_be_deleted_yet_end_no_run_and_go_at_the_next_start(self):
        """As a file over NFS that a process still reads."""
        script = self.script({"a": (1.0, 2.0, 3.0, 4.0), "b": (4.0, 3.0, 2.0, 1.0)}, select="per_task")
        unlink = os.unlink

        def refuse_the_best(path, *, dir_fd=None):
            if dir_fd is not None and "/best/" in os.readlink(f"/proc/self/fd/{dir_fd}"):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            unlink(path, dir_fd=dir_fd)

        with mock.patch("os.unlink", refuse_the_best):
            self.die(script, "saved", 3)
        best = self.directory / "best"
        self.assert_weights(script, 3, saved(best / "a"), "the best of a")
        self.assertGreater(len(os.listdir(best)), 2)
        (best / ".saving-b").mkdir()
        (best / "b").rename(best / ".replaced-b")  # killed between two renames
        self.assert_best_of_each(script, self.start(script))
        self.assertCountEqual(os.listdir(best), ["a", "b"])

    @pytest.mark.slow
    def test_the_step_of_the_best_mean_is_noted_with_those_that_are_equal(self):
        """Of the means 3, 4, 4."""
        script = self.script({"a": (5.0, 6.0, 2.0), "b": (1.0, 2.0, 6.0)})
        self.start(script)
        kept = [{"task": None, "step": 2, "by": "average of 2 tasks", "equal_steps": [3]}]
        self.assertEqual(json.loads((self.directory / "manifest.json").read_text())["choices"], kept)

    @parameterized.product(
        names=[["rising", "falling", "peak", "tie"], ["nan first", "all nan", "falling"],
               ["all equal", "nan last", "tie at the end", "infinite"]],
        settings=[{}, {"adapter": "lora"}],
    )  # fmt: skip
    @pytest.mark.slow
    def test_they_do_in_every_series(self, names, settings):
        series = {name.replace(" ", "_"): SERIES[name] for name in names}
        script = self.script(series, select="per_task", **settings)
        self.assert_best_of_each(script, self.start(script))

    def test_a_base_that_cannot_load_what_it_saves_is_left_alone(self):
        """As bitsandbytes' matrices of 4 bits are: they save a key that they do not take."""
        script = self.script(THREE_BESTS, select="per_task", adapter="lora")
        tuner = FineTuner(**self.settings, callbacks=[script], quiet=True)
        layer = tuner.model.get_base_model().encoder.block[0].layer[-1].DenseReluDense.wo
        layer.register_state_dict_post_hook(
            lambda module, tensors, prefix, metadata: tensors.update({f"{prefix}quant_state": torch.ones(1)})
        )
        with self.assertRaisesRegex(RuntimeError, "quant_state"):
            layer.load_state_dict(layer.state_dict())
        tuner.train()
        self.assert_best_of_each(script, tuner)

    @pytest.mark.slow
    def test_a_task_s_best_is_loaded_and_exported_as_any_model(self):
        script, exported = self.script(THREE_BESTS, select="per_task"), folder()
        self.start(script)
        for task, step in (("a", 2), ("b", 3)):
            place = str(self.directory / "best" / task)
            self.assert_weights(script, step, FineTuner(place, use_cpu=True).model.state_dict(), "loaded")
            run_cli("export", "--model_name_or_path", place, "--output_dir", exported / task)
            self.assert_weights(script, step, saved(exported / task), "exported")


class RestartTest(SelectionTest):
    """A run that ends in the midst goes on as if it had not: with its best, and with the patience that is left.

    In the quick suite one does that has been cured of damage (`DamagedBestTest`).
    """

    def check(self, series, *deaths, **settings):
        script = self.script(series, select="per_task", **settings)
        for place, step in deaths:
            self.die(script, place, step)
        self.assert_best_of_each(script, self.start(script))

    @parameterized.parameters(*itertools.product(["stopped", "unsaved", "saved"], [1, 2, 3]), ("trained", 3))
    @pytest.mark.slow
    def test_it_is_wherever_the_run_ended_and_after_another_end(self, place, step):
        self.check(THREE_BESTS, (place, step), ("trained", 3))

    @parameterized.parameters(("stopped", 1), ("stopped", 2), ("unsaved", 1), ("saved", 1), ("trained", 3))
    @pytest.mark.slow
    def test_it_is_where_the_best_checkpoints_alone_are_saved(self, place, step):
        self.check(THREE_BESTS, (place, step), save_strategy="best")

    @pytest.mark.slow
    def test_weights_of_a_step_that_is_no_longer_the_best_are_refused(self):
        """The process that was killed had saved those of step 2; the next one, on other hardware, scores it lower."""
        script = self.script(THREE_BESTS, select="per_task")
        self.die(script, "unsaved", 2)
        script.series = {**THREE_BESTS, "a": (5.0, 4.0, 0.0)}
        with exits_with(74, "best/a.*step 1.*replaced by those of step 2"):
            self.start(script)

    @parameterized.parameters(*itertools.product(["tie", "nan first", "nan last"], [1, 2, 3, 4]))
    @pytest.mark.slow
    def test_it_is_in_every_series(self, name, step):
        self.check({"a": SERIES[name], "b": RISING}, ("stopped", step), ("saved", 4))


class PreTrainingTest(SelectionTest):
    """The lowest nll selects there, if `--load_best_model_at_end` is given."""

    @parameterized.product(name=["falling", "peak", "tie", "nan first"], place=[None, "saved"])
    @pytest.mark.slow
    def test_the_earliest_of_the_lowest_selects(self, name, place):
        script = Script({"pre_train": SERIES[name]}, of_loss=True)
        self.enter_context(mock.patch.object(sys.modules[__name__], "SCRIPT", script))
        flags = {
            "callbacks": f"{__name__}:SCRIPT", "load_best_model_at_end": True, "max_steps": 4, "inputs_length": 32,
            "output_dir": self.directory, "max_eval_samples": 2, "schedule": "constant",
        }  # fmt: skip
        shared = "eval_steps save_total_limit config_overrides learning_rate per_device_train_batch_size disable_tqdm"
        flags |= {name: SETTINGS[name] for name in [*shared.split(), "use_cpu", "eval_strategy", "logging_steps"]}
        start = lambda: pre_train_t5.main([f"--{name}={value}" for name, value in flags.items()])
        if place:
            script.dies = (place, 3)
            with self.assertRaises(Killed):
                start()
            script.dies = (None, None)
        start()
        step = best_step(SERIES[name], "minimize")
        self.assert_weights(script, step, saved(self.directory), "saved")
        self.assert_weights(script, step, saved(self.directory / f"checkpoint-{step}"), "kept")


# Scores, patience, and the step after which a run ends that waits for so many evaluations in a row without a gain,
# counted from the first number.
EARLY = {
    "at once": ((3.0, 2.0, 4.0), 1, 2), "a tie is no gain": ((3.0, 3.0, 4.0), 1, 2),
    "two": ((1.0, 3.0, 2.0, 1.0, 4.0), 2, 4), "a gain between": ((2.0, 1.0, 3.0, 2.0, 2.5, 4.0), 2, 5),
    "never": ((1.0, 2.0, 1.0, 3.0), 2, 4), "nan is no gain": ((1.0, NAN, 2.0), 1, 2),
    "nan before a number": ((NAN, NAN, 1.0, 0.0, 2.0), 1, 4), "all nan": (ALL_NAN, 1, 4),
    "nan after a number": ((NAN, 1.0, NAN, NAN, 2.0), 2, 4), "below zero": ((-3.0, -2.0, -4.0, -3.0, -1.0), 2, 4),
    "nan before a tie": ((NAN, NAN, 1.0, 1.0, 2.0), 1, 4),
}  # fmt: skip


class EarlyStoppingTest(SelectionTest):
    def check(self, name, place=None, step=None, **settings):
        """The run makes each step up to its last, and none beyond it, wherever it was interrupted."""
        series, patience, last = EARLY[name]
        script = self.script({"a": series}, early_stopping_patience=patience, **settings)
        if place is not None:
            self.die(script, place, step)
        tuner = self.start(script)
        self.assertEqual(sorted({*script.steps}), list(range(1, last + 1)))
        if place in ("saved", "trained"):
            self.assertEqual(script.steps, list(range(1, last + 1)), "none is made twice")
        self.assert_best(script, tuner, best_step(series[:last]) or last)
        lines = [line["step"] for line in tuner.history if "eval/a_score" in line]
        self.assertEqual(lines, list(range(1, last + 1)), "each is evaluated once")

    def test_it_ends_after_so_many_evaluations_without_a_gain(self):
        self.check("nan before a tie", save_strategy="best")

    @parameterized.product(name=sorted(EARLY.keys() - {"all nan"}), save_strategy=["steps", "best"])
    @pytest.mark.slow
    def test_it_does_in_every_series(self, name, save_strategy):
        self.check(name, save_strategy=save_strategy)

    @pytest.mark.slow
    def test_without_any_number_it_does_not_end_early(self):
        self.check("all nan")

    @parameterized.parameters(("at once", "trained", 2), ("two", "saved", 3))
    @pytest.mark.slow
    def test_a_restart_neither_forgets_the_count_nor_goes_on(self, name, place, step):
        self.check(name, place, step)

    @parameterized.parameters(
        *itertools.product(["a gain between"], ["stopped", "unsaved", "saved"], [1, 2, 3, 4, 5]),
        *itertools.product(["nan after a number"], ["stopped", "unsaved", "saved"], [1, 2, 3, 4]),
        ("a gain between", "trained", 5), ("nan after a number", "trained", 4),
    )  # fmt: skip
    @pytest.mark.slow
    def test_no_restart_does(self, name, place, step):
        self.check(name, place, step)

    @pytest.mark.slow
    def test_a_restart_has_the_patience_of_its_own_flags_and_the_count_of_the_checkpoint(self):
        """An evaluation before the first step is not made again: it once counted as one without a gain."""
        script = self.script({"a": (3.0, 2.0, 2.0, 2.0, 2.0)}, early_stopping_patience=2, eval_on_start=True)
        self.die(script, "saved", 2)
        self.settings |= {"early_stopping_patience": 3, "allow_changed": "early_stopping_patience"}
        self.start(script)
        self.assertEqual(script.steps, [1, 2, 3, 4])


def turn_a_bit(folder) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_short(folder) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def lose_weights(folder) -> None:
    (folder / "model.safetensors").unlink()


DAMAGE = {"a bit is turned": turn_a_bit, "cut short": cut_short, "lost": lose_weights, "all is lost": shutil.rmtree}


class DamagedBestTest(SelectionTest):
    """A best one that is lost or damaged is refused (74) at every start; a good copy cures it."""

    def check(self, places, damage, dies, starts=1):
        """One place is damaged and cured after the other."""
        script = self.script(THREE_BESTS, select="per_task")
        self.die(script, *dies)
        for place in places:
            copy = folder() / "copy"
            shutil.copytree(self.directory / place, copy)
            DAMAGE[damage](self.directory / place)
            for _ in range(starts):
                self.assert_refused(script, place)
            shutil.copytree(copy, self.directory / place, dirs_exist_ok=True)
        self.assert_best_of_each(script, self.start(script))

    def assert_refused(self, script, place):
        steps = [*script.steps]
        with exits_with(74, place):
            self.start(script)
        self.assertEqual(script.steps, steps, "nothing is trained")
        self.assertFalse((self.directory / "model.safetensors").exists())
        self.assertFalse((self.directory / "results.json").exists())

    def test_the_best_of_the_checkpoint_before_a_damaged_one_is_there(self):
        """The damaged one was better: rotation has deleted one of the two before it."""
        series = (8.0, 7.0, 9.0)
        script = self.script({"a": series}, save_total_limit=2)
        self.die(script, "saved", 3)
        self.assertLen([*self.directory.glob("checkpoint-*")], 2)
        DAMAGE["a bit is turned"](self.directory / "checkpoint-3")
        self.assert_best(script, self.start(script), best_step(series))

    @pytest.mark.slow
    def test_after_training(self):
        self.check(["checkpoint-1", "best/a"], "a bit is turned", ("saved", 2))

    @parameterized.parameters(
        *itertools.product(["checkpoint-1", "best/a"], DAMAGE, [("saved", 2)]),
        *itertools.product(["checkpoint-1", "best/a"], ["a bit is turned", "all is lost"], [("stopped", 3), ("trained", 3)]),
    )  # fmt: skip
    @pytest.mark.slow
    def test_whatever_and_whenever_it_is(self, place, damage, dies):
        self.check([place], damage, dies, starts=2)


if __name__ == "__main__":
    pass
