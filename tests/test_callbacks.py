"""Samples at each evaluation, noise on embeddings, and what the hub refuses before training."""

import contextlib
import errno
import fnmatch
import json
import math
import os
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from safetensors.torch import load_file
from support import changed_trainer, later_wins, write_manifest
from test_freezing import MODELS, SMALL_T5
from transformers import EarlyStoppingCallback, IntervalStrategy, TrainerCallback, TrainerState
from transformers.integrations.neftune import activate_neftune

import fine_tune_t5
from t5suite import Callback, FineTuner, load_task
from t5suite.tasks.formatters import Example
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths
from t5suite.testing import example_row, exits_with, make_task, read_rows, tiny_tokenizer, tiny_trainer
from t5suite.training import uploads
from t5suite.training.best_per_task import BestPerTaskCallback
from t5suite.training.callback import call_on_final, load_states, save_states
from t5suite.training.checkpoints.selection import (
    best_of_checkpoint,
    check_best_is_there,
    drop_best,
    scores_differ,
    take_up_best,
)
from t5suite.training.checkpoints.starts import Start
from t5suite.training.eval_sets import EvalSet, describe_selection
from t5suite.training.evaluation_report import Result, make_report, report_metrics, selection_value
from t5suite.training.fine_tuning_data import each_split_once
from t5suite.training.fine_tuning_evaluation import choices_of_weights, invalid_answers, is_selected
from t5suite.training.fine_tuning_trainer import example_namer, selection_metric, task_card_of, trainer_arguments
from t5suite.training.model_setup import sharding_library
from t5suite.training.neftune import NeftuneCallback, input_embeddings
from t5suite.training.plug_ins import add_plug_in_callbacks
from t5suite.training.samples import SampleCallback, evenly_spread_indices, sampled_answers, without_end
from t5suite.training.step_lines import MetricsCallback
from t5suite.training.uploads import HubUploads, hard_linked_copy

TINY = (
    "--benchmark mini --dataset_name sentiment --max_train_samples 64 --max_eval_samples 20 --max_steps 8 "
    "--per_device_train_batch_size 4 --eval_strategy steps --eval_steps 5 --logging_steps 1 --use_cpu "
    "--disable_tqdm True"
).split()

SHORT_RUN = ["--config_overrides", SMALL_T5, "--max_train_samples", "48", "--max_eval_samples", "8", "--use_cpu",
             "--per_device_train_batch_size", "16", "--eval_method", "score", "--disable_tqdm", "True",
             "--logging_steps", "1", "--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "2"]  # fmt: skip


def run(*argv, out=None, **patches):
    """The directory of a run of four updates; patches replace methods of the trainer."""
    out = out or tempfile.mkdtemp()
    with changed_trainer(**patches):
        fine_tune_t5.main(later_wins([*SHORT_RUN, *argv, "--output_dir", out]))
    return Path(out)


def model_of(name):
    """A small model without dropout."""
    names = {key: MODELS[name][key] for key in ("config_name", "config_overrides")}
    tuner = FineTuner(**names, from_scratch=True, dropout_rate=0.0, quiet=True, output_dir=tempfile.mkdtemp() + "/run")
    return tuner.model


def state(step: int, is_main: bool = True):
    return SimpleNamespace(global_step=step, epoch=None, is_world_process_zero=is_main)


def report_of(predictions, name="rte"):
    task = load_task("glue", "rte")
    rows = [{"sentence1": f"s{i}", "sentence2": "t", "label": i % 2, "idx": i} for i in range(len(predictions))]
    examples = [task.examples(row)[0] for row in rows]
    eval_set = SimpleNamespace(
        name=name,
        task=task,
        rows=rows,
        examples=examples,
        row_of_example=range(len(rows)),
        labelled=True,
        shown_inputs=lambda place: examples[place].inputs,
    )
    result = SimpleNamespace(
        predictions=predictions, samples=[], metrics={"accuracy": math.nan}, loss=None, method="score", truncated=0
    )
    return [eval_set], SimpleNamespace(results={name: result}, by_task={}, selection=math.nan)


class Counts(Callback):
    """A callback as users write it."""

    def __init__(self, count: int = 0):
        self.count = count
        self.final = []

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]

    def on_final(self, args, state, control, *, report, eval_sets, **kwargs):
        self.final.append((args, state, control, report, eval_sets))


class Remembers(TrainerCallback):
    """A callback with a state as users wrote it before there was `Callback`."""

    def __init__(self, count: int = 0):
        self.count = count

    def remember(self):
        return {"count": self.count}

    def recall(self, remembered):
        self.count = remembered["count"]


class CallbackTest(parameterized.TestCase):
    def test_states_survive_a_checkpoint_and_what_has_none_is_not_in_it(self):
        saved = save_states([Callback(), Counts(3), TrainerCallback(), Remembers(5), EarlyStoppingCallback(2)])
        self.assertEqual(saved, {"Counts": {"count": 3}, "Remembers": {"count": 5}})
        counts, remembers, plain = Counts(), Remembers(), TrainerCallback()
        load_states([plain, counts, remembers, Callback()], json.loads(json.dumps({**saved, "IsGone": {"count": 9}})))
        self.assertEqual((counts.count, remembers.count), (3, 5))

    def test_a_callback_without_a_saved_state_is_not_asked_to_load_one(self):
        counts = Counts(7)
        load_states([counts], {})
        self.assertEqual(counts.count, 7)

    @parameterized.parameters((Callback, "state_dict", "load_state_dict"), (TrainerCallback, "remember", "recall"))
    def test_an_empty_state_is_one_too(self, base, saving, loading):
        hooks = {saving: lambda self: self.counts, loading: lambda self, counts: setattr(self, "counts", counts)}
        counting_class = type("CountsByTask", (base,), hooks)
        emptied, fresh = counting_class(), counting_class()
        emptied.counts, fresh.counts = {}, {"rte": 1}
        load_states([fresh], save_states([emptied]))
        self.assertEqual(fresh.counts, {})

    def test_the_hooks_of_a_callback_win_over_methods_that_are_named_like_the_older_hooks(self):
        class CountsAndRemembers(Counts):
            """Its `remember` and `recall` are about something else."""

            def remember(self):
                return {"count": 1}

            def recall(self, remembered):
                raise AssertionError("recall was called")

        restored = CountsAndRemembers()
        load_states([restored], save_states([CountsAndRemembers(8)]))
        self.assertEqual(restored.count, 8)

    @parameterized.parameters("RunProgress", "MetricsCallback", "BestPerTaskCallback", "StreamSource", "StepMonitor")
    def test_a_plug_in_cannot_have_the_name_of_one_of_ours(self, name):
        trainer = tiny_trainer()
        before = list(trainer.callback_handler.callbacks)
        with exits_with(78, f"{name} is the suite's own; give the class another name"):
            add_plug_in_callbacks(trainer, [type(name, (TrainerCallback,), {})])
        self.assertEqual(trainer.callback_handler.callbacks, before)
        add_plug_in_callbacks(trainer, [Counts])
        self.assertIsInstance(trainer.callback_handler.callbacks[-1], Counts)

    def test_the_final_report_goes_to_callbacks_in_their_order_but_not_to_plain_ones(self):
        first, second = Counts(), Counts()
        trainer = tiny_trainer()
        trainer.callback_handler.callbacks = [first, TrainerCallback(), Callback(), second]
        call_on_final(trainer, "report", ["set"])
        expected = (trainer.args, trainer.state, trainer.control, "report", ["set"])
        self.assertEqual([*first.final, *second.final], [expected, expected])


class BestPerTaskTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3)
    def test_a_task_is_scored_with_the_weights_of_its_best_step_alone(self, best_step):
        callback = BestPerTaskCallback(tempfile.mkdtemp(), report_of=None)
        task = "task-2"
        callback.folder(task).mkdir(parents=True)
        write_manifest(callback.folder(task))  # of step 2
        callback.best = {task: {"step": best_step, "value": 1.0}}
        refusal = exits_with(74, f"step {best_step}, .*replaced by those of step 2")
        with contextlib.nullcontext() if best_step == 2 else refusal:
            callback.check_weights(task)

    @parameterized.parameters("whole", "missing", "damaged")
    def test_a_resumed_run_has_its_tasks_best_weights_or_says_that_they_are_lost(self, condition):
        callback = BestPerTaskCallback(tempfile.mkdtemp(), report_of=None, save_weights=mock.Mock())
        place = callback.folder("task-2")
        place.mkdir(parents=True)
        (place / "weights").write_text("best")
        write_manifest(place)
        if condition == "damaged":
            (place / "weights").write_text("beSt")
        if condition == "missing":
            place.rename(place.with_name("elsewhere"))
        lost = exits_with(74, rf"best/task-2: the weights of step 2, the best of task-2, are {condition}")
        with contextlib.nullcontext() if condition == "whole" else lost:
            callback.load_state_dict({"task-2": {"step": 2, "value": 1.0}})
        if condition == "whole":
            callback.check_weights("task-2")
            self.assertEqual(callback.best, {"task-2": {"step": 2, "value": 1.0}})

    @parameterized.parameters(("a", True, 1), ("a", False, 0), ("b", True, 0))
    def test_best_steps_whose_weights_were_never_here_are_dropped(self, run_id, keeps_weights, num_kept):
        """Those of another run, or of this one with --select average."""
        callback = BestPerTaskCallback(tempfile.mkdtemp(), report_of=None, save_weights=mock.Mock())
        callback.folder("task-2").mkdir(parents=True)
        write_manifest(callback.folder("task-2"))
        (callback.directory / "manifest.json").write_text(json.dumps({"run_id": "a"}))
        best = {"task-2": {"step": 2, "value": 1.0}}
        no_warning = self.assertNoLogs("t5suite", "WARNING")
        with no_warning if num_kept else self.assertLogs("t5suite", "WARNING"):
            callback.load_state_dict({"best": best, "run_id": run_id, "keeps_weights": keeps_weights})
        self.assertLen(callback.best, num_kept)
        state = {"best": callback.best, "run_id": "a", "keeps_weights": True}
        self.assertEqual(callback.state_dict(), state)
        callback.save_weights = None
        callback.load_state_dict({"best": best, "run_id": run_id, "keeps_weights": keeps_weights})
        self.assertEqual(callback.state_dict(), {"best": best, "run_id": "a", "keeps_weights": False})

    def test_the_earliest_of_the_highest_numbers_is_the_best_and_later_equal_ones_are_noted_once(self):
        """That of the untrained model (--eval_on_start) is none of them."""
        values, saved = iter((math.nan, 1.0, 3.0, 3.0, 2.0, 3.0, math.inf)), []
        report = lambda: SimpleNamespace(by_task={"rte": next(values)})
        callback = BestPerTaskCallback("runs/x", report, saved.append)
        callback.report_of = lambda: SimpleNamespace(by_task={"rte": 3.0})
        callback.on_evaluate(None, state(0), None)
        self.assertEqual(callback.best, {})
        callback.report_of = report
        for step in (1, 2, 3, 4, 5, 6, 7):
            callback.on_evaluate(None, state(step), None)
        self.assertEqual(callback.best, {"rte": {"step": 3, "value": 3.0, "equal_steps": [4, 6]}})
        self.assertEqual(saved, [Path("runs/x/best/rte")] * 2)
        callback.report_of = lambda: SimpleNamespace(by_task={"rte": 3.0})
        callback.on_evaluate(None, state(6), None)
        self.assertEqual(callback.best["rte"]["equal_steps"], [4, 6])


def result_of(name, metrics, loss=None, method="generate", truncated=0, labelled=True, count=4) -> Result:
    return Result(name, metrics, ["a"] * count, count, 1.0, loss, truncated, method, [], labelled)


def set_of(name, task=None, is_validation=True, labelled=True, metrics=("accuracy",), selected_by=None):
    """What stands for a set in a choice: a task whose one number is its accuracy."""
    entry = {"metric_names": list(metrics), "metric_to_optimize": metrics[0] if len(metrics) == 1 else "average"}
    task = SimpleNamespace(name=task or name, entry=entry)
    optimised = lambda metrics: metrics["accuracy"]
    return SimpleNamespace(
        name=name, task=task, is_validation=is_validation, labelled=labelled,
        counts_in_average=is_validation and labelled, selected_by=selected_by, optimised=optimised,
    )  # fmt: skip


class ReportTest(parameterized.TestCase):
    MNLI = {"matched": {"accuracy": 60.0, "invalid_rate": 1.0}, "mismatched": {"accuracy": 80.0, "invalid_rate": 0.0}}

    def test_a_task_of_two_splits_counts_once_and_what_chooses_nothing_counts_for_nothing(self):
        sets = [set_of(split, "mnli") for split in self.MNLI] + [
            set_of("rte"),
            set_of("rte.test", "rte", is_validation=False),
        ]
        results = {name: result_of(name, metrics, loss=1.0) for name, metrics in self.MNLI.items()}
        results |= {
            "rte": result_of("rte", {"accuracy": 50.0}, loss=2.0),
            "rte.test": result_of("rte.test", {"accuracy": 0.0}),
        }
        sets.append(set_of("ax"))
        results["ax"] = result_of("ax", {}, labelled=False)
        report = make_report(sets, results)
        self.assertEqual((report.by_task, report.selection), ({"mnli": 70.0, "rte": 50.0}, 60.0))
        by_loss = make_report(sets, results, "loss")
        self.assertEqual((by_loss.by_task, by_loss.selection), ({"mnli": -1.0, "rte": -2.0}, -1.5))

    def test_running_text_beside_a_task_is_chosen_by_its_loss_and_without_a_number_nothing_is(self):
        sets = [set_of("book"), set_of("empty")]
        for name in ("loss", "nll"):
            results = {"book": result_of("book", {name: 3.0}, loss=3.0), "empty": result_of("empty", {name: 0.0})}
            report = make_report(sets, results)
            self.assertEqual(report.by_task["book"], -3.0)
        self.assertTrue(math.isnan(report.by_task["empty"]))
        self.assertEqual(make_report(sets[:1], {"book": result_of("book", {})}).by_task, {})
        self.assertEqual([selection_value(value) for value in (-3.0, math.nan, math.inf)], [-3.0, -math.inf, -math.inf])
        self.assertTrue(math.isnan(make_report([], {}).selection))

    def test_one_set_s_numbers_are_logged_by_their_names_and_several_sets_by_theirs(self):
        one = make_report([set_of("rte")], {"rte": result_of("rte", {"accuracy": 50.0}, loss=2.0, truncated=1)})
        numbers = {"accuracy": 50.0, "loss": 2.0, "truncated_rate": 25.0}
        self.assertEqual(
            report_metrics(one), {**{f"eval/{name}": n for name, n in numbers.items()}, "eval/average": 50.0}
        )
        sets = [set_of(split, "mnli") for split in self.MNLI]
        results = {name: result_of(name, metrics, method="score") for name, metrics in self.MNLI.items()}
        expected = {f"final/{split}/{name}": n for split, metrics in self.MNLI.items() for name, n in metrics.items()}
        expected |= {"final/accuracy": 70.0, "final/invalid_rate": 0.5, "final/average": 70.0}
        self.assertEqual(report_metrics(make_report(sets, results), "final"), expected)
        unscored = {"ax": result_of("ax", {}, labelled=False), "book": result_of("book", {}, labelled=False)}
        self.assertNotIn("eval/accuracy", report_metrics(make_report([set_of("ax"), set_of("book")], unscored)))
        of_a_test = {"mnli.test": result_of("mnli.test", {"accuracy": 20.0}), **results}
        with_test = make_report([set_of("mnli.test", "mnli", is_validation=False), *sets], of_a_test)
        self.assertEqual(report_metrics(with_test, "final")["final/accuracy"], 70.0)
        of_others = {"rte": result_of("rte", {"accuracy": 50.0}), "axb": result_of("axb", {"mcc": 1.0})}
        of_two_tasks = make_report([set_of("rte"), set_of("axb", is_validation=False)], of_others)
        expected = {"eval/rte/accuracy": 50.0, "eval/axb/mcc": 1.0, "eval/average": 50.0}
        self.assertContainsSubset(expected, report_metrics(of_two_tasks))
        self.assertNotIn("eval/accuracy", report_metrics(of_two_tasks))
        text = {"book": result_of("book", {"nll": 2.0}, method="nll")}
        self.assertEqual(report_metrics(make_report([], text)), {"eval/nll": 2.0})


class ChoiceTest(parameterized.TestCase):
    def choices(
        self,
        sets,
        averages=(),
        best_step=2,
        by_task=None,
        loads_best=True,
        selection_metric=None,
        invalid=None,
        before=None,
        has_own_rows=False,
    ):
        lines = [{"step": 0, "eval/average": before}] if before is not None else []
        lines += [{"step": step, "eval/average": number} for step, number in enumerate(averages, 1)]
        for name, rates in (invalid or {}).items():
            lines += [{"step": step, name: rate} for step, rate in enumerate(rates, 1)]
        best_checkpoint = f"runs/x/checkpoint-{best_step}" if best_step else None
        trainer = SimpleNamespace(
            args=SimpleNamespace(load_best_model_at_end=loads_best), selection_metric=selection_metric,
            state=SimpleNamespace(log_history=lines, best_model_checkpoint=best_checkpoint),
        )  # fmt: skip
        best = SimpleNamespace(save_weights=by_task is not None, best=by_task or {})
        self.trainer, self.best = trainer, best
        return choices_of_weights(trainer, SimpleNamespace(selecting=sets, made_by_flags=has_own_rows), best)

    def test_a_choice_names_its_step_what_was_compared_and_the_steps_with_the_same_number(self):
        f1 = set_of("mrpc", metrics=("f1", "accuracy"))
        two_sets = [
            set_of("rte"),
            set_of("matched", "mnli"),
            set_of("mismatched", "mnli"),
            set_of("ax", labelled=False),
        ]
        own = set_of("rte", selected_by="share")
        text = set_of("book")
        text.task.entry.update(metric_names=[], metric_to_optimize=None)
        for sets, metric, compared in (
            ([set_of("rte")], None, "accuracy"), ([own], None, "share"), ([f1], None, "mean of f1 and accuracy"),
            ([text], None, "loss"), ([own], "loss", "loss"), (two_sets, None, "average of 2 tasks"), (two_sets, "loss", "loss"),
        ):  # fmt: skip
            (choice,) = self.choices(sets, (1.0, 3.0, 3.0, 2.0, 3.0), selection_metric=metric)
            self.assertEqual(choice, {"task": None, "step": 2, "by": compared, "equal_steps": [3, 5]})
        # An earlier evaluation was of the untrained model, or of other data.
        self.assertEqual(self.choices([own], (3.0, 1.0, 3.0, 3.0), best_step=3)[0]["equal_steps"], [4])
        self.assertNotIn("all_equal", self.choices([own], (3.0, 1.0, 3.0, 3.0), best_step=3)[0])
        # The log of an evaluation that another run has made is not there.
        self.assertEqual(self.choices([own], (1.0, 2.0), best_step=7)[0]["equal_steps"], [])

    @parameterized.parameters(
        ((0.0, 0.0, 0.0), True),
        ((0.0, 0.0), True),
        ((0.0,), False),
        ((0.0, 0.0, math.nan), False),
        ((0.5, 0.0, 0.5), False),
    )
    def test_a_choice_says_whether_all_evaluations_are_equal(self, averages, are_all_equal):
        self.assertEqual(self.choices([set_of("rte")], averages, best_step=1)[0].get("all_equal", False), are_all_equal)
        steps_of_equals = [step for step, number in enumerate(averages, 1) if step > 1 and number == averages[0]]
        best = {"rte": {"step": 1, "value": averages[0], "equal_steps": steps_of_equals}}
        (choice,) = self.choices([set_of("rte")], averages, by_task=best)
        self.assertEqual(choice.get("all_equal", False), are_all_equal)

    @parameterized.parameters(
        ((50.0, 60.0, 70.0), 3, True),
        ((-2.0, -1.5), 2, True),  # by loss
        ((60.0, 50.0, 70.0), 3, True),
        ((50.0, 70.0, 60.0), 2, False),
        ((50.0, 70.0, 70.0), 2, False),
        ((50.0, 100.0), 2, False),
        ((-3.0, 0.0), 2, False),  # by an error
        ((50.0,), 1, False),
    )
    def test_a_choice_says_whether_more_updates_may_help_rows_of_one_s_own(self, averages, best_step, may_help):
        for has_own_rows in (True, False):
            choices = self.choices([set_of("rte")], averages, best_step, before=40.0, has_own_rows=has_own_rows)
            self.assertEqual(choices[0].get("best_at_the_end", False), may_help and has_own_rows)

    def test_an_evaluation_before_the_first_update_is_none_of_the_equal_ones(self):
        for before in (0.0, 5.0):
            (choice,) = self.choices([set_of("rte")], (0.0, 0.0), best_step=1, before=before)
            self.assertTrue(choice["all_equal"])

    def test_without_a_choice_there_is_none_and_each_task_may_have_its_own(self):
        sets = [set_of("rte"), set_of("cola", metrics=("matthews_correlation",))]
        self.assertEqual(self.choices(sets, (1.0, 2.0), loads_best=False), [])
        self.assertEqual(self.choices(sets, (1.0, 2.0), best_step=None), [])
        by_task = {"rte": {"step": 3, "value": 1.0, "equal_steps": [4]}, "cola": {"step": 1, "value": 2.0}}
        invalid = {"eval/rte/invalid_rate": (0.0, 5.0, 40.0, 9.0), "eval/cola/invalid_rate": (7.0, 7.0)}
        rte, cola = self.choices(sets, (1.0, 2.0), by_task=by_task, invalid=invalid)
        fewest = {"invalid_rate": 40.0, "fewest_invalid": {"step": 1, "invalid_rate": 0.0}}
        self.assertEqual(rte, {"task": "rte", "step": 3, "by": "accuracy", "equal_steps": [4], **fewest})
        matthews = {"task": "cola", "step": 1, "by": "matthews_correlation", "equal_steps": []}
        self.assertEqual(cola, {**matthews, "invalid_rate": 7.0})
        self.trainer.state.best_model_checkpoint = None
        self.assertEqual([is_selected(self.trainer, task, self.best) for task in ("rte", "mrpc")], [True, False])
        self.best.save_weights = None
        self.assertFalse(is_selected(self.trainer, "rte", self.best))

    @parameterized.parameters(((90.0, 95.0), {"invalid_rate": 90.0}), ((0.0, 95.0), {}))
    def test_a_choice_names_no_other_step_that_has_not_fewer(self, rates, expected):
        lines = [{"step": step, "eval/invalid_rate": rate} for step, rate in enumerate(rates, start=1)]
        trainer = SimpleNamespace(state=SimpleNamespace(log_history=lines))
        self.assertEqual(invalid_answers(trainer, "eval/invalid_rate", 1), expected)

    @parameterized.parameters((["accuracy", None], None), ([None, "accuracy"], None), ([None, None], "loss"))
    def test_metrics_choose_where_any_data_set_has_some(self, names_of_sets, expected):
        """Running text beside a task has none."""
        sets = [SimpleNamespace(task=SimpleNamespace(entry={"metric_to_optimize": name})) for name in names_of_sets]
        args = SimpleNamespace(metric_for_best_model=None)
        self.assertEqual(selection_metric(args, sets), expected)


class MadeTrainerTest(parameterized.TestCase):
    """What a trainer is made with, of a run's data."""

    def test_an_example_of_a_mixture_has_the_name_of_its_task_and_its_number_there(self):
        name = example_namer(["cola", "rte", "cb"], [range(3), range(1), range(2)])
        self.assertEqual([name(index) for index in range(6)],
                         ["cola.train:0", "cola.train:1", "cola.train:2", "rte.train:0", "cb.train:0", "cb.train:1"])  # fmt: skip

    def test_a_test_split_that_is_evaluated_and_predicted_is_scored_once_on_the_rows_to_predict(self):
        def set_with(name, role, split, rows):
            return EvalSet(
                name, SimpleNamespace(name=name.partition(".")[0]), role, split, rows, *[None] * 3, "score", 1
            )

        rte, ax = set_with("rte", "validation", "validation", "a"), set_with("ax", "test", "test", "some")
        rte_test, ax_test = set_with("rte.test", "test", "test", "b"), set_with("ax.test", "test", "test", "all")
        sets = each_split_once([rte, ax], [rte_test, ax_test])
        names_and_rows = lambda role: [(part.name, part.example_set) for part in sets[role]]
        self.assertEqual(names_and_rows("validation"), [("rte", "a"), ("ax", "all")])
        self.assertEqual(names_and_rows("test"), [("rte.test", "b")])

    @parameterized.parameters(
        ([], "no", False), ([(True, False)], "steps", False), ([(False, True)], "steps", False),
        ([(True, False), (True, True)], "steps", True),
    )  # fmt: skip
    def test_without_labelled_validation_rows_nothing_is_selected_and_without_any_nothing_evaluated(
        self, sets, strategy, selects
    ):
        args = SimpleNamespace(load_best_model_at_end=True, eval_strategy=IntervalStrategy.STEPS)
        made = trainer_arguments(
            args, [set_of("rte", is_validation=is_validation, labelled=labelled) for is_validation, labelled in sets]
        )
        self.assertEqual((made.eval_strategy.value, made.load_best_model_at_end), (strategy, selects))
        self.assertEqual((args.eval_strategy.value, args.load_best_model_at_end), ("steps", True))

    def test_a_saved_model_says_how_long_its_answers_are_and_which_tasks_labels_are_scored(self):
        tasks = [load_task("glue", name) for name in ("cola", "rte", "mrpc")]
        training = [SimpleNamespace(task=task) for task in tasks[:2]]
        features = [
            SimpleNamespace(labels=SimpleNamespace(lengths=[3, 9])),
            SimpleNamespace(labels=SimpleNamespace(lengths=[2])),
        ]
        scored = [SimpleNamespace(task=task, max_target_tokens=5, method="generate") for task in tasks]
        selecting = [SimpleNamespace(task=tasks[1], max_target_tokens=99, method="score")]
        languages = Languages(source_lang="de", target_lang_column="to")
        data = SimpleNamespace(
            training_sets=training, features=features, scored=scored, selecting=selecting, languages=languages,
            made_by_flags=True,
        )  # fmt: skip
        model = model_of("t5")
        model.config.answer_separator = " => "
        card = task_card_of(data, Lengths(48, 8), model, tiny_tokenizer())
        self.assertEqual((list(card.tasks), card.family), (["cola", "rte", "mrpc"], "seq2seq"))
        self.assertEqual(card.max_answer_tokens, {"cola": 9, "rte": 5, "mrpc": 5})
        self.assertEqual((card.lengths, card.scored_by_labels), (Lengths(48, 8), ("rte",)))
        self.assertTrue(card.made_by_flags)
        self.assertEqual(card.settings["languages"], {"source_lang": "de", "target_lang_column": "to"})
        self.assertEqual(card.settings["answer_separator"], " => ")

    @parameterized.parameters(
        ({"deepspeed": "zero2"}, {}, "DeepSpeed"), ({"fsdp": "full_shard"}, {}, "FSDP"),
        ({}, {"ACCELERATE_USE_FSDP": "TRUE"}, "FSDP"), ({}, {"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed"),
        ({}, {"ACCELERATE_USE_FSDP": "false"}, None),
    )  # fmt: skip
    def test_what_shards_a_model_is_known_by_its_flag_and_by_the_launcher(self, flags, variables, expected):
        args = SimpleNamespace(**{"deepspeed": None, "fsdp": None, **flags})
        with mock.patch.dict(os.environ, variables):
            self.assertEqual(sharding_library(args), expected)


class SamplesTest(parameterized.TestCase):
    @parameterized.parameters((100, 4, [0, 25, 50, 75]), (3, 8, [0, 1, 2]), (10, 0, []), (0, 4, []), (7, 3, [0, 2, 4]))
    def test_rows_are_spread_and_the_same_each_time(self, num_examples, num_samples, expected):
        self.assertEqual(evenly_spread_indices(num_examples, num_samples), expected)

    def test_a_line_has_what_was_asked_and_answered(self):
        (eval_set,), report = report_of(["entailment", "entailment", "no word"])
        lines = sampled_answers(eval_set, report.results["rte"], 3)
        self.assertEqual([line["right"] for line in lines], [True, False, False])
        self.assertEqual(lines[0]["input"], "rte sentence1: s0 sentence2: t")
        self.assertEqual((lines[2]["target"], lines[2]["prediction"]), ("entailment", "no word"))

    def test_a_set_s_own_samples_are_taken_and_only_texts_longer_than_2000_characters_are_cut(self):
        (eval_set,), report = report_of(["entailment", "x"])
        own = {"row": 7, "input": "a" * 2000, "target": "b" * 2001, "right": None}
        report.results["rte"].samples = [own]
        (line,) = sampled_answers(eval_set, report.results["rte"], 1)
        self.assertEqual(line, {**own, "target": "b" * 2000 + " ... (1 more characters)"})

    def test_a_resumed_run_has_each_step_s_samples_once(self):
        directory = Path(tempfile.mkdtemp())
        sets, report = report_of(["entailment", "x"])

        def run(steps, resumed_at=None, saved=None):
            callback = SampleCallback(directory, 1, sets, lambda: report)
            if saved is not None:
                callback.load_state_dict(saved)
            callback.on_train_begin(None, state(resumed_at or 0), None)
            for step in steps:
                callback.on_evaluate(None, state(step), None)
                if step == 4:
                    run.at_4 = callback.state_dict()

        run([2, 4, 6])
        run([6, 8], 4, run.at_4)
        self.assertEqual([line["step"] for line in read_rows(directory / "samples.jsonl")], [2, 4, 6, 8])

    def test_half_a_line_at_the_end_and_lines_of_later_steps_are_dropped(self):
        """A process that died while it wrote has counted the line; the resumed step is 4."""
        lines = [json.dumps({"step": step}) + "\n" for step in (2, 4, 6)]
        for ending, dropped in (('{"step": 8, "ta}\n', 1), ("[1]\n", 1), ("", 0)):
            path = Path(tempfile.mkdtemp()) / "samples.jsonl"
            path.write_text("".join([*lines, ending]))
            samples = SampleCallback(path.parent, 1, [], None)
            samples.load_state_dict({"num_lines": 3 + dropped, "run_id": None})
            with self.assertLogs("t5suite", "WARNING") if dropped else self.assertNoLogs("t5suite", "WARNING"):
                samples.on_train_begin(None, state(4), None)
            self.assertEqual(path.read_text(), "".join(lines[:2]))
            self.assertEqual((samples.last_line, samples.state_dict()["num_lines"]), ({"step": 4}, 2))

    def test_one_rank_writes_and_no_samples_are_written_where_none_are_wanted(self):
        directory = Path(tempfile.mkdtemp())
        sets, report = report_of(["entailment", "x"])
        for num_samples, is_main, of_evaluation in ((1, False, report), (0, True, report), (1, True, None)):
            SampleCallback(directory, num_samples, sets, lambda of=of_evaluation: of).on_evaluate(
                None, state(2, is_main), None
            )
        metrics = MetricsCallback(directory, mock.Mock())
        metrics.on_train_begin(None, state(0, is_main=False), None)
        metrics.on_log(None, state(2, is_main=False), None, logs={"loss": 1.0})
        self.assertEmpty(list(directory.iterdir()))
        metrics.trackers.begin.assert_not_called()

    def test_an_evaluation_that_was_interrupted_leaves_no_second_set(self):
        directory = Path(tempfile.mkdtemp())
        sets, report = report_of(["x"])
        for _ in range(2):
            for callback in (SampleCallback(directory, 8, sets, None), MetricsCallback(directory, mock.Mock())):
                callback.on_final(None, state(0), None, report=report, eval_sets=sets)
        self.assertLen(read_rows(directory / "samples.jsonl"), 1)
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["final/accuracy"] for line in lines], [None])


class HistoryTest(parameterized.TestCase):
    """A run that resumes at step 4, with the state in its checkpoint, after its files were damaged."""

    def resumed(self, directory, saved, logs=()):
        metrics = MetricsCallback(directory, mock.Mock())
        metrics.load_state_dict(saved)
        metrics.on_train_begin(None, SimpleNamespace(**vars(state(4)), log_history=list(logs)), None)
        return read_rows(directory / "metrics.jsonl")

    def begun(self, run_id="4f2a"):
        """`(directory, the state in the checkpoint of step 4, its log history)`."""
        directory = Path(tempfile.mkdtemp())
        (directory / "manifest.json").write_text(json.dumps({"run_id": run_id}))
        metrics, logs = MetricsCallback(directory, mock.Mock()), []
        for step in (2, 4):
            logs.append({"step": step, "epoch": step / 4, "loss": 1.0 / step, "eval/accuracy": math.nan})
            at = SimpleNamespace(is_world_process_zero=True, global_step=step, epoch=step / 4)
            metrics.on_log(None, at, None, logs={"loss": 1.0 / step, "eval/accuracy": math.nan})
        return directory, metrics.state_dict(), logs

    @parameterized.parameters(None, b"", b"\x00" * 99, b'{"step": 2, "trai')
    def test_lines_that_are_lost_are_written_again_from_the_checkpoint(self, content):
        directory, saved, logs = self.begun()
        expected = read_rows(directory / "metrics.jsonl")
        (directory / "metrics.jsonl").unlink()
        if content is not None:
            (directory / "metrics.jsonl").write_bytes(content)
        of_run_before = {"step": 1, "epoch": 0.25, "loss": 9.0}  # this one began with its checkpoint
        with self.assertLogs("t5suite", "WARNING") as output:
            lines = self.resumed(directory, saved, [of_run_before, *logs])
        self.assertIn("2 lines, of steps 2 to 4, are written again", output.output[-1])
        without_seconds = lambda lines: [{**line, "seconds": None} for line in lines]
        self.assertEqual(without_seconds(lines), without_seconds(expected))
        self.assertEqual(lines[-1]["seconds"], saved["seconds"])

    @parameterized.parameters(([2],), ([0],), ([4],), ([1, 5],), ([2, 3, 4],))
    def test_lines_that_are_lost_within_the_file_come_back_at_their_steps_and_the_others_stay(self, lost):
        """Step 2 has two lines, one of training and one of an evaluation."""
        names = ((1, "loss"), (2, "loss"), (2, "eval/loss"), (3, "loss"), (4, "loss"), (4, "eval/loss"))
        logs = [{"step": step, "epoch": step / 4, name: 0.5 * step} for step, name in names]
        metrics_of = lambda step, name: {name if "/" in name else f"train/{name}": 0.5 * step}
        whole = [
            {"step": step, "epoch": step / 4, "seconds": 10.0 * step, **metrics_of(step, name)} for step, name in names
        ]
        directory = Path(tempfile.mkdtemp())
        (directory / "manifest.json").write_text(json.dumps({"run_id": "4f2a"}))
        left = [line for number, line in enumerate(whole) if number not in lost]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in left))
        lines = self.resumed(directory, {"num_lines": len(whole), "run_id": "4f2a"}, logs)
        in_order = lambda lines: sorted(lines, key=lambda line: (line["step"], sorted(line)))
        without_seconds = lambda lines: [{**line, "seconds": None} for line in in_order(lines)]
        self.assertEqual(without_seconds(lines), without_seconds(whole))
        self.assertEqual([line["step"] for line in lines], [1, 2, 2, 3, 4, 4])
        self.assertContainsSubset(list(map(str, left)), list(map(str, lines)))
        self.assertEqual([line["seconds"] for line in lines], sorted(line["seconds"] for line in lines))

    def test_an_evaluation_that_the_history_keeps_for_long_is_not_written_again(self):
        directory, saved, logs = self.begun()
        first_line, _ = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
        (directory / "metrics.jsonl").write_text(first_line)
        with mock.patch("t5suite.training.step_lines.MOST_LOGS", 1):  # the log between these two is forgotten
            lines = self.resumed(directory, {**saved, "num_lines": 3}, logs)
        self.assertEqual([line["step"] for line in lines], [2, 4])

    def test_a_resumed_run_s_seconds_go_on_from_those_of_its_last_line(self):
        directory, saved, logs = self.begun()
        lines = [{**line, "seconds": 100.0 * line["step"]} for line in read_rows(directory / "metrics.jsonl")]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with mock.patch("time.perf_counter", return_value=5.0) as clock:
            metrics = MetricsCallback(directory, mock.Mock())
            metrics.load_state_dict(saved)
            metrics.on_train_begin(None, SimpleNamespace(**vars(state(4)), log_history=logs), None)
            clock.return_value = 7.5
            metrics.on_log(None, state(6), None, logs={"loss": 1.0, "epoch": 0.5, "text": "no number"})
            self.assertEqual(metrics.state_dict()["seconds"], 402.5)
        last = {"step": 6, "epoch": 0.0, "seconds": 402.5, "train/loss": 1.0}
        self.assertEqual(read_rows(directory / "metrics.jsonl"), [*lines, last])

    @parameterized.parameters(True, False)
    def test_another_run_s_history_does_not_come_with_its_checkpoint(self, has_lines):
        """Nor where this run has logged a step and was killed before it had a checkpoint of its own."""
        _, saved, logs = self.begun("another")
        directory, *_ = self.begun()
        path = directory / "metrics.jsonl"
        path.write_text('{"step": 5, "epoch": 1.25, "seconds": 1.0}\n')
        if not has_lines:
            path.unlink()
        metrics = MetricsCallback(directory, mock.Mock())
        metrics.load_state_dict(saved)
        metrics.on_train_begin(None, SimpleNamespace(**vars(state(4)), log_history=logs), None)
        self.assertEqual(path.read_text() if has_lines else path.exists(), "" if has_lines else False)

    def test_what_is_no_line_of_samples_is_named_and_the_others_stay(self):
        directory = Path(tempfile.mkdtemp())
        sets, report = report_of(["entailment", "x"])
        samples = SampleCallback(directory, 2, sets, lambda: report)
        samples.on_evaluate(None, state(2), None)
        samples.on_evaluate(None, state(4), None)
        path, saved = directory / "samples.jsonl", samples.state_dict()
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([lines[0], b'{"step": 2, "ta\n', *lines[2:]]))
        again = SampleCallback(directory, 2, sets, lambda: report)
        again.load_state_dict(saved)
        with self.assertLogs("t5suite", "WARNING") as output:
            again.on_train_begin(None, state(4), None)
        self.assertRegex(output.output[0], r"samples\.jsonl:2 is not a line of JSON")
        self.assertEqual(path.read_bytes().splitlines()[2:], b"".join(lines[2:]).splitlines())


PAIR = {"sentence1": "It rains.", "sentence2": "It is wet."}
SQUAD = {"question": "Who won?", "context": "Ann won.", "answers": {"text": ["Ann", "her"], "answer_start": [0, 0]}}


class VerdictTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("a label", "glue", "rte", {**PAIR, "label": 0}, "entailment", True),
        ("another label", "glue", "rte", {**PAIR, "label": 0}, "not_entailment", False),
        ("no label at all", "glue", "rte", {**PAIR, "label": 0}, "entail", False),
        ("an unlabelled row", "glue", "rte", {**PAIR, "label": -1}, "entailment", None),
        ("a number nearby", "glue", "stsb", {**PAIR, "label": 3.0}, "3.1", True),
        ("a number far off", "glue", "stsb", {**PAIR, "label": 3.0}, "3.4", False),
        ("no number", "glue", "stsb", {**PAIR, "label": 3.0}, "three", False),
        ("another of the answers", "squad", "squad", SQUAD, "Her.", True),
        ("none of the answers", "squad", "squad", SQUAD, "Bob", False),
        ("a referent that should not be", "super_glue", "wsc.fixed", {"label": 0}, "Tom", True),
        ("a referent that should be", "super_glue", "wsc.fixed", {"label": 1}, "Tom", False),
    )
    def test_a_sample_is_right_as_its_task_says(self, benchmark, name, row, prediction, expected):
        task = load_task(benchmark, name)
        row = example_row(task) | row
        self.assertIs(self.verdict(task, row, prediction), expected)

    @parameterized.parameters(
        ({"labels": None, "metric_names": ["pearson"], "metric_to_optimize": "pearson"}, -50.0,
         {"-51": True, "-49.0": True, "-51.01": False, "-48.9": False, "50": False, "x": False}),
        ({"labels": None, "metric_names": ["micro_f1"], "metric_to_optimize": "micro_f1", "output_format": "<__output__>"},
         "late, broken", {"<late,broken>": True, "<broken, late, late>": True, "late, broken": True, "<late>": False}),
        ({"labels": None, "metric_names": ["rouge1"], "metric_to_optimize": "rouge1"}, ["Tom", "the man"],
         {"man!": True, "TOM": True, "men": False}),
    )  # fmt: skip
    def test_a_number_within_two_percent_the_same_set_and_any_answer_are_right(self, fields, label, verdicts):
        task, row = make_task(**fields), {"text": "x", "label": label}
        for prediction, expected in verdicts.items():
            self.assertIs(self.verdict(task, row, prediction), expected, prediction)

    def test_a_step_of_half_the_grid_is_right_and_more_is_not(self):
        task, row = load_task("glue", "stsb"), {**PAIR, "label": 3.2}
        verdicts = {text: self.verdict(task, row, text) for text in ("3.1", "3.3", "3.09", "3.31")}
        self.assertEqual(verdicts, {"3.1": True, "3.3": True, "3.09": False, "3.31": False})

    def verdict(self, task, row, prediction) -> bool | None:
        [example, *_] = task.examples(row)
        eval_set = SimpleNamespace(
            task=task, rows=[row], examples=[example], row_of_example=[0], labelled=task.is_labelled(row),
            shown_inputs=lambda place: example.inputs,
        )  # fmt: skip
        (line,) = sampled_answers(eval_set, SimpleNamespace(predictions=[prediction], samples=[]), 1)
        return line["right"]


class LongTextTest(parameterized.TestCase):
    MARK = " [cut: 7 more tokens] "

    @parameterized.parameters(
        (0, 2000, " ... (1000 more characters)"),
        (1500, 2000, " ... (1022 more characters)"),
        (1990, 1990, " ... (1010 more characters) [cut: 7 more tokens]"),
        (2500, 2000, " ... (1000 more characters) [cut: 7 more tokens]"),
    )
    def test_its_end_is_counted_and_a_mark_of_a_cut_is_neither_torn_nor_counted(self, place, length, ending):
        """`place`: where the model stops reading; 0: nowhere."""
        row = "a" * 3000
        text = row[:place] + self.MARK + row[place:] if place else row
        self.assertEqual(without_end(text), text[:length] + ending)


class RunsTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_run_killed_after_step_7_and_resumed_from_5_has_steps_samples_and_final_scores_once(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        directory = Path(tempfile.mkdtemp()) / "run"
        argv = [*TINY, "--report_to", "tensorboard", "--num_samples", "2", "--output_dir", str(directory)]
        write = MetricsCallback.write

        def dying(self, metrics, state):
            write(self, metrics, state)
            if state.global_step == 7:
                raise KeyError("killed")

        with mock.patch.object(MetricsCallback, "write", dying), self.assertRaises(KeyError):
            fine_tune_t5.main(argv)
        self.assertEqual(read_rows(directory / "metrics.jsonl")[-1]["step"], 7)
        results = fine_tune_t5.main(argv)

        lines = read_rows(directory / "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines if "train/loss" in line], list(range(1, 9)))
        final = [line for line in lines if "final/accuracy" in line]
        self.assertEqual([line["final/accuracy"] for line in final], [results["tasks"]["sentiment"]["accuracy"]])
        found = read_rows(directory / "samples.jsonl")
        self.assertEqual([(line["step"], "final" in line) for line in found][::2], [(5, False), (8, False), (8, True)])
        self.assertEqual([line["row"] for line in found], [0, 10] * 3)
        told = {
            line["row"]: line["prediction"] for line in read_rows(directory / "predictions/sentiment.validation.jsonl")
        }
        self.assertEqual([line["prediction"] for line in found[-2:]], [told[0], told[10]])
        events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        self.assertEqual([point.step for point in events.Scalars("train/loss")], list(range(1, 9)))
        self.assertLen(events.Scalars("final/accuracy"), 1)
        self.assertLen(events.Tensors("results"), 1)
        log = (directory / "logs" / "rank-0.log").read_text()
        self.assertIn("KeyError: 'killed'", log)
        self.assertIn("resuming from", log.partition("KeyError")[2])


NOISE = ["--neftune_noise_alpha", "5", "--dropout_rate", "0"]


def inputs_of(model) -> dict:
    ids = torch.tensor([[5, 6, 7, 1]])
    return {"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}


def logits(model):
    with torch.no_grad():
        return model(**inputs_of(model)).logits


class NeftuneTest(parameterized.TestCase):
    @parameterized.parameters("t5", "t5_v1_1", "bart", "gpt2", "bert")
    def test_noise_of_the_stated_size_reaches_the_stack_in_training_alone(self, name):
        model = model_of(name)
        plain = logits(model.eval())
        callback = NeftuneCallback(5.0)
        callback.on_train_begin(None, None, None, model=model)
        [module] = input_embeddings(model)
        self.assertTrue(torch.equal(logits(model.eval()), plain))
        callback.on_train_end(None, None, None)
        self.assertTrue(torch.equal(logits(model.train()), plain))
        callback.on_train_begin(None, None, None, model=model)
        self.assertFalse(torch.equal(logits(model.train()), plain))
        ids_S = torch.tensor([[5, 6, 7, 1]])
        noise = module(ids_S) - module.weight[ids_S] * getattr(module, "embed_scale", 1.0)
        bound = 5.0 / (4 * noise.shape[-1]) ** 0.5
        self.assertBetween(float(noise.abs().max().detach()), 0.5 * bound, bound)
        callback.on_train_end(None, None, None)
        self.assertEqual(len(module._forward_hooks), 0)

    def test_the_flag_s_noise_is_ours_and_not_the_stock_one_s_too(self):
        trainer = tiny_trainer(neftune_noise_alpha=5.0)
        added = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, NeftuneCallback)]
        self.assertEqual(([callback.alpha for callback in added], trainer.neftune_noise_alpha), ([5.0], None))

    def test_the_stock_hook_still_misses_t5(self):
        model = model_of("t5").train()
        plain = logits(model)
        activate_neftune(model, 5.0)
        self.assertTrue(torch.equal(logits(model), plain))

    @pytest.mark.slow
    @pytest.mark.resume
    def test_the_flag_changes_training_and_a_resumed_run_equals_the_unbroken_one_to_the_bit(self):
        without, whole, broken = run("--dropout_rate", "0"), run(*NOISE), tempfile.mkdtemp()
        with exits_with(75):
            run(*NOISE, out=broken, stop_requested=lambda trainer: trainer.state.global_step + 1 == 3)
        run(*NOISE, out=broken)
        weights = [load_file(f"{out}/model.safetensors") for out in (without, whole, broken)]
        for name, tensor in weights[1].items():
            self.assertTrue(torch.equal(tensor, weights[2][name]), name)
        self.assertFalse(torch.equal(weights[0]["shared.weight"], weights[1]["shared.weight"]))


def hub_uploads():
    return HubUploads(SimpleNamespace(push_to_hub=True, output_dir="runs/x", hub_model_id="ada/x"))


def http_error(status):
    """What the hub's client raises, whichever library of HTTP it stands on."""
    error = HfHubHTTPError.__new__(HfHubHTTPError)
    error.response = SimpleNamespace(status_code=status)
    return error


class UploadRefusalTest(parameterized.TestCase):
    @parameterized.parameters(
        (LocalTokenNotFoundError("x"), "no token; log in by `hf auth login`"),
        (http_error(401), r"refuses it \(401\); log in"),
        (http_error(403), r"refuses it \(403\)"),
        (HFValidationError("x"), "not a valid name for the hub; give --hub_model_id"),
    )
    def test_what_the_hub_refuses_is_told_before_training_with_a_way_out(self, problem, message):
        expected = f"--push_to_hub: 'ada/x': .*{message}.*or train without --push_to_hub$"  # not with private files
        reachable = mock.patch.object(uploads, "hub_reachable", return_value=True)
        with reachable, exits_with(78, expected), hub_uploads().refusals():
            raise problem


class UploadLinkTest(parameterized.TestCase):
    def test_what_is_uploaded_outlives_the_checkpoint(self):
        folder = Path(tempfile.mkdtemp())
        checkpoint = folder / "checkpoint-2"
        checkpoint.mkdir()
        (checkpoint / "model.safetensors").write_text("weights")
        copy = hard_linked_copy(checkpoint, folder / ".uploading")
        (checkpoint / "model.safetensors").unlink()
        self.assertEqual((copy / "model.safetensors").read_text(), "weights")


class UploadsTest(parameterized.TestCase):
    """What goes to the hub while a run trains, and when it has ended."""

    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.calls: list = []
        self.manifests: list[dict] = []
        self.jobs: list[Future] = []
        self.enter_context(mock.patch.object(HfApi, "upload_folder", self.take))
        # The manifest of an earlier run in the repository: an empty file.
        self.enter_context(mock.patch.object(HfApi, "hf_hub_download", return_value=os.devnull))

    def take(self, _=None, **settings):
        """In place of the hub: notes what it is sent, and which files were there."""
        sent = Path(settings.pop("folder_path"))
        names = [path.relative_to(sent).as_posix() for path in sorted(sent.rglob("*")) if path.is_file()]
        left_out = settings.pop("ignore_patterns", ())
        names = [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out)]
        self.calls.append({**settings, "names": names})
        self.manifests += [json.loads((sent / name).read_text()) for name in names if name == "manifest.json"]
        self.jobs.append(Future())
        return self.jobs[-1]

    def uploads(self, **flags) -> HubUploads:
        flags = {
            "hub_strategy": "every_save",
            "hub_always_push": False,
            "hub_token": "t",
            "hub_revision": None,
            **flags,
        }
        return HubUploads(SimpleNamespace(output_dir=str(self.folder), **flags))

    def checkpoint(self, step: int) -> Path:
        place = self.folder / f"checkpoint-{step}"
        place.mkdir()
        for name in ("model.safetensors", "config.json", "optimizer.pt", "rank-0.json", "trainer_state.json"):
            (place / name).write_text(name)
        return place

    def push(self, sender: HubUploads, step: int) -> None:
        sender.push_checkpoint("ada/x", self.checkpoint(step), step, announce=lambda: self.calls.append("announced"))

    @parameterized.parameters(
        ("end", []), ("every_save", [None]), ("checkpoint", [None, "last-checkpoint"]),
        ("all_checkpoints", [None, "checkpoint-7"]),
    )  # fmt: skip
    def test_a_checkpoint_s_model_is_sent_and_the_checkpoint_where_the_strategy_says_so(self, strategy, places):
        self.push(self.uploads(hub_strategy=strategy), 7)
        self.assertEqual(self.calls[:1], ["announced"] if places else [])
        calls = self.calls[1:]
        self.assertEqual([call.get("path_in_repo") for call in calls], places)
        for call in calls:
            self.assertEqual((call["repo_id"], call["token"], call["run_as_future"]), ("ada/x", "t", True))
            self.assertStartsWith(call["commit_message"], "Training in progress, step 7")
            of_model = ["config.json", "model.safetensors"]
            of_checkpoint = [*of_model, "optimizer.pt", "rank-0.json", "trainer_state.json"]
            self.assertCountEqual(call["names"], of_checkpoint if "path_in_repo" in call else of_model)

    @contextlib.contextmanager
    def full_disk_without_links(self):
        full, no_link = (OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EPERM))
        with mock.patch("os.link", side_effect=no_link), mock.patch("shutil.copy2", side_effect=full):
            yield

    def test_a_checkpoint_that_cannot_be_copied_is_not_sent_and_the_next_one_is(self):
        sender = self.uploads()
        with self.full_disk_without_links(), self.assertLogs("t5suite", "WARNING") as logs:
            self.push(sender, 7)
        self.assertRegex(logs.output[0], "checkpoint-7 is not uploaded.*No space left on device")
        self.assertEmpty(self.calls)
        self.assertFalse((self.folder / ".uploading" / "checkpoint-7").exists())
        self.push(sender, 8)
        self.assertEqual([call.get("commit_message") for call in self.calls[1:]], ["Training in progress, step 8"])

    def test_uploads_are_made_one_after_the_other(self):
        """The hub refuses a commit while it makes another one."""
        sender = self.uploads(hub_strategy="checkpoint", hub_always_push=True)
        events = []

        def commit(message):
            events.append(f"begin {message}")
            time.sleep(0.05)
            events.append(f"end {message}")

        def upload_folder(api, *, commit_message, **_):
            return api.run_as_future(commit, commit_message)

        with mock.patch.object(HfApi, "upload_folder", upload_folder):
            for step in (1, 2):
                self.push(sender, step)
            sender.wait()
        messages = [f"Training in progress, step {step}{part}" for step in (1, 2) for part in ("", ", checkpoint")]
        self.assertEqual(events, [f"{when} {message}" for message in messages for when in ("begin", "end")])

    def test_a_checkpoint_waits_for_the_one_before_it_unless_all_are_to_be_pushed(self):
        sender = self.uploads()
        self.push(sender, 1)
        self.push(sender, 2)
        self.assertLen(self.jobs, 1)
        self.jobs[0].set_exception(ValueError("the hub is full"))
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.push(sender, 3)
        self.assertLen(self.jobs, 2)
        self.assertIn("the hub is full; try again", logs.output[0])

    @parameterized.parameters(False, True)
    def test_an_upload_that_failed_is_reported_once(self, is_busy):
        """Whether or not another one goes on meanwhile, and the next checkpoint can be copied."""
        sender = self.uploads(hub_always_push=True)
        for step in range(1 + is_busy):
            self.push(sender, step)
        self.jobs[0].set_exception(ValueError("the hub is full"))
        with self.assertLogs("t5suite", "WARNING") as logs:
            with self.full_disk_without_links():
                self.push(sender, 7)
            self.push(sender, 8)
            self.push(sender, 9)
        self.assertEqual("\n".join(logs.output).count("the hub is full"), 1)
        self.assertEqual(sender.in_progress.jobs, self.jobs[1:])

    def test_all_are_pushed_and_none_takes_away_what_another_one_sends(self):
        sender = self.uploads(hub_always_push=True)
        for step in (1, 2):
            self.push(sender, step)
        self.assertLen(self.jobs, 2)
        sent = sorted(path.name for path in (self.folder / ".uploading").iterdir())
        self.assertEqual(sent, ["checkpoint-1", "checkpoint-2"])
        first, second = self.jobs
        second.set_result(None)
        self.assertFalse(sender.in_progress.is_done())
        first.set_result(None)
        sender.wait()
        self.assertTrue(sender.in_progress.is_done())

    @parameterized.parameters(
        (False, ["predictions/public.jsonl"], ["best-weights/model.safetensors", "predictions/mine.jsonl", "rows/mine.jsonl"]),
        (True, ["predictions/mine.jsonl", "predictions/public.jsonl", "rows/mine.jsonl"], ["best-weights/model.safetensors"]),
    )  # fmt: skip
    def test_rows_and_answers_of_the_author_s_own_stay_unless_they_are_shared(self, share_rows, sent, withheld):
        for name in ("model.safetensors", "samples.jsonl", "trained_inputs.npy", ".hidden", "diff-1.patch"):
            (self.folder / name).touch()
        files = [
            "predictions/mine.jsonl",
            "predictions/public.jsonl",
            "rows/mine.jsonl",
            "best-weights/model.safetensors",
        ]
        for name in files:
            place = self.folder / name
            place.parent.mkdir(exist_ok=True)
            place.touch()
        scored = {"a": {"file": "public.jsonl", "own_rows": False}, "b": {"file": "mine.jsonl", "own_rows": True}}
        manifest = {"settings": {"share_rows": share_rows}, "scored": scored, "files": {name: {} for name in files}}
        (self.folder / "manifest.json").write_text(json.dumps({**manifest, "working_directory": "/home/ada"}))
        with mock.patch.object(
            uploads, "read_manifest", lambda folder: json.loads((folder / "manifest.json").read_text())
        ):
            self.uploads().push_run("ada/x", "ended")
        (call,) = self.calls
        self.assertCountEqual(call["names"], ["manifest.json", "model.safetensors", *sent])
        self.assertEqual((call["commit_message"], call["run_as_future"]), ("ended", False))
        self.assertEqual(self.manifests, [{**manifest, "withheld": withheld}])
        self.assertFalse((self.folder / ".uploading").exists())

    def test_a_finished_run_that_is_not_uploaded_says_how_it_can_be_and_keeps_its_files_for_that(self):
        self.folder = self.folder / "my runs"
        self.folder.mkdir()
        (self.folder / "model.safetensors").touch()
        broken = mock.patch.object(HfApi, "upload_folder", side_effect=ValueError("the hub is full"))
        command = f"hf upload ada/x '{self.folder}/.uploading/run' --revision tries"
        with broken, exits_with(74, f"finished, but ada/x was not uploaded: the hub is full.*{command}"):
            self.uploads(hub_revision="tries").push_run("ada/x", "ended")
        self.assertTrue((self.folder / ".uploading" / "run" / "model.safetensors").is_file())

    def test_a_finished_run_whose_files_cannot_be_copied_for_the_upload_says_so(self):
        for name in ("model.safetensors", "config.json", "samples.jsonl"):
            (self.folder / name).touch()
        command = f"hf upload ada/x {self.folder} --include config.json --include model.safetensors --revision tries$"
        with (
            self.full_disk_without_links(),
            exits_with(74, f"finished, but ada/x was not uploaded.*No space.*{command}"),
        ):
            self.uploads(hub_revision="tries").push_run("ada/x", "ended")
        self.assertFalse((self.folder / ".uploading").exists())


class TakenUpBestTest(parameterized.TestCase):
    """Which checkpoint is the best one for a run that goes on from another place."""

    def setUp(self):
        super().setUp()
        self.here, self.elsewhere = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())

    def state_at(self, directory, **best) -> TrainerState:
        """That of checkpoint 9 in a directory; the best is of step 4."""
        state = TrainerState(
            best_global_step=4, best_metric=2.0, best_model_checkpoint=str(self.elsewhere / "checkpoint-4")
        )
        vars(state).update(best)
        (directory / "checkpoint-9").mkdir(exist_ok=True)
        state.save_to_json(str(directory / "checkpoint-9" / "trainer_state.json"))
        write_manifest(directory / "checkpoint-9")
        return state

    def test_it_is_the_one_beside_or_the_recorded_one_or_none(self):
        state = self.state_at(self.here)
        checkpoint = self.here / "checkpoint-9"
        self.assertEqual(best_of_checkpoint(checkpoint), self.here / "checkpoint-4")  # where it is missed
        (self.elsewhere / "checkpoint-4").mkdir()
        self.assertEqual(best_of_checkpoint(checkpoint), self.elsewhere / "checkpoint-4")
        take_up_best(state, self.here, loads_best=True)
        self.assertEqual(state.best_model_checkpoint, str(self.elsewhere / "checkpoint-4"))
        (self.here / "checkpoint-4").mkdir()
        self.assertEqual(best_of_checkpoint(checkpoint), self.here / "checkpoint-4")
        take_up_best(state, self.here, loads_best=True)
        self.assertEqual((state.best_model_checkpoint, state.best_metric), (str(self.here / "checkpoint-4"), 2.0))
        self.assertIsNone(best_of_checkpoint(self.here / "checkpoint-4"))

    def test_a_score_whose_checkpoint_did_not_come_along_selects_nothing(self):
        state = self.state_at(self.here)
        with self.assertNoLogs("t5suite", "WARNING"):
            take_up_best(state, self.here, loads_best=False)
        self.assertEqual(
            (state.best_metric, state.best_global_step), (2.0, 4), "as it is in a run that was not stopped"
        )
        with self.assertLogs("t5suite", "WARNING") as logs:
            take_up_best(state, self.here, loads_best=True)
        self.assertIn("of step 4, is not there", logs.output[0])
        self.assertEqual((state.best_metric, state.best_global_step, state.best_model_checkpoint), (None, None, None))
        for best_metric in (-math.inf, -1.7976931348623157e308):
            state = self.state_at(self.here, best_metric=best_metric)
            self.assertIsNone(best_of_checkpoint(self.here / "checkpoint-9"))
            take_up_best(state, self.here, loads_best=True)
            self.assertIsNone(state.best_global_step)

    def test_a_best_step_that_was_never_saved_is_not_missed_and_selects_nothing(self):
        """Without --eval_steps an earlier version evaluated every 50 steps, and saved every 500."""
        for recorded in (None, str(self.here / "checkpoint-3")):
            state = self.state_at(self.here, best_model_checkpoint=recorded)
            (self.here / "checkpoint-3").mkdir(exist_ok=True)
            self.assertIsNone(best_of_checkpoint(self.here / "checkpoint-9"))
            check_best_is_there(self.here / "checkpoint-9")
            take_up_best(state, self.here, loads_best=True)
            self.assertEqual((state.best_metric, state.best_model_checkpoint), (None, None))

    @parameterized.parameters(
        ({}, [], True, False), ({}, ["data"], True, True), ({"rows": "b"}, [], True, True),
        ({"metric": "f1"}, [], True, True), ({"method": "score"}, [], True, True), ({"rows": "b"}, [], False, False),
        ({"loss": "loss"}, [], True, True), ({"target": "no"}, [], True, True),
    )  # fmt: skip
    def test_scores_are_compared_if_they_are_of_the_same_rows_by_the_same_metric_and_method(
        self, changed, reset, is_noted, differ
    ):
        """A checkpoint of an earlier version does not say by what it was selected."""

        def described(rows="a", target="yes", metric="accuracy", method="generate", loss=None):
            part = set_of("rte", metrics=(metric,))
            part.method = method
            part.examples = [Example(text, target) for text in rows]
            return describe_selection([part, set_of("test", is_validation=False)], loss)

        self.state_at(self.here)
        selected_by = described() if is_noted else None
        start = Start(self.here / "checkpoint-9", frozenset(reset), selected_by=selected_by)
        self.assertEqual(scores_differ(start, described(**changed)), differ)
        self.assertFalse(scores_differ(Start(), described(**changed)))

    def test_the_best_score_of_a_checkpoint_without_a_manifest_selects_nothing(self):
        """Of Hugging Face's trainer it may be a loss, of which lower is better; no such checkpoint verifies."""
        state = self.state_at(self.here, best_metric=0.5)
        (self.here / "checkpoint-4").mkdir()
        checkpoint = self.here / "checkpoint-9"
        (checkpoint / "checkpoint.json").unlink()
        self.assertTrue(scores_differ(Start(checkpoint), {"rte": ["generate", "loss", "a"]}))
        check_best_is_there(checkpoint)
        with self.assertLogs("t5suite", "WARNING") as logs:
            drop_best(state)
        self.assertRegex(
            logs.output[0], r"best score so far \(step 4\) no longer counts: .* a checkpoint that cannot be verified"
        )
        self.assertIsNone(state.best_metric)

    def test_a_set_without_a_metric_is_selected_by_its_loss(self):
        book = set_of("book")
        book.task.entry.update(metric_names=[], metric_to_optimize=None)
        book.method = "generate"
        book.examples = [("a", "b")]
        (method, metric, _) = describe_selection([book], "loss")["book"]
        self.assertEqual((method, metric), ("generate", "loss"))
        self.assertEqual(describe_selection([book], None)["book"][1], "")

    def test_a_run_does_not_go_on_without_its_best_checkpoint(self):
        self.state_at(self.here)
        (self.here / "checkpoint-4").mkdir()
        (self.here / "checkpoint-4" / "weights").write_text("best")
        write_manifest(self.here / "checkpoint-4")
        check_best_is_there(self.here / "checkpoint-9")
        (self.here / "checkpoint-4" / "weights").write_text("beSt")
        with exits_with(74, "checkpoint-4, is damaged: weights.*--load_best_model_at_end False"):
            check_best_is_there(self.here / "checkpoint-9")
        (self.here / "checkpoint-4").rename(self.here / "kept")
        with exits_with(74, "checkpoint-4, is missing"):
            check_best_is_there(self.here / "checkpoint-9")
        self.state_at(self.here, best_global_step=9)
        check_best_is_there(self.here / "checkpoint-9")


class LogHistoryTest(parameterized.TestCase):
    def test_the_state_keeps_the_last_thousand_logs_and_all_evaluations_that_may_select(self):
        trainer = tiny_trainer()
        trainer.log({"number": -1, "eval/average": 80.0, "eval/invalid_rate": 3.0})
        for number in range(1500):
            trainer.log({"number": number})
        self.assertEqual([line["number"] for line in trainer.state.log_history], [-1, *range(500, 1500)])
        self.assertEqual(trainer.state.log_history[0]["eval/invalid_rate"], 3.0)
