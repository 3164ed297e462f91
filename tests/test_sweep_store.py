"""W&B's distributions, rungs and grids as Optuna's, one to one or refused by name."""

import contextlib
import io
import itertools
import json
import math
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import optuna
from absl.testing import parameterized
from optuna.trial import TrialState, create_trial

from t5suite import DATASET_VALS
from t5suite.launch import process_groups, running_trials, trials
from t5suite.launch.running_trials import RunningTrial, TrialFiles
from t5suite.launch.sweep_files import Parameter, SweepFile
from t5suite.launch.sweep_plans import plan_of
from t5suite.launch.sweep_schema import DISTRIBUTIONS
from t5suite.launch.sweep_search import (
    WITHOUT_COUNTERPART,
    Search,
    distribution_of,
    distributions_of,
    grid_of,
    propose,
    rungs_of,
    trial_parameters,
)
from t5suite.launch.sweep_store import TrialStore
from t5suite.launch.sweeps import Sweep
from t5suite.launch.trial_metrics import has_done_all_steps, read_curve, result_of_run
from t5suite.launch.trials import TrialProcess, describe_exit, end_of_log
from t5suite.runs.lock import RunLock
from t5suite.testing import exits_with, run_cli

ROOT = Path(__file__).resolve().parent.parent
optuna.logging.set_verbosity(optuna.logging.ERROR)


def parameter(distribution, name="x", **settings) -> Parameter:
    return Parameter(tuple(name.split(".")), distribution, settings, 1)


# Settings of every distribution that can be searched -> what all of its values are.
SEARCHED = {
    "categorical": ({"values": [1, True, 1.0, "1", None, [1], {"a": 1}]}, lambda x: True),
    "int_uniform": ({"min": -2, "max": 3}, lambda x: type(x) is int and -2 <= x <= 3),
    "uniform": ({"min": -1, "max": 2}, lambda x: type(x) is float and -1 <= x <= 2),
    "q_uniform": ({"min": 0.05, "max": 0.61, "q": 0.1}, lambda x: x in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)),
    "log_uniform": ({"min": -3, "max": 2}, lambda x: type(x) is float and math.exp(-3) <= x <= math.exp(2)),
    "log_uniform_values": ({"min": 1e-5, "max": 1}, lambda x: type(x) is float and 1e-5 <= x <= 1),
    "q_log_uniform": ({"min": 0, "max": 2, "q": 1}, lambda x: type(x) is int and 1 <= x <= 7),
    "q_log_uniform_values": ({"min": 1.5, "max": 40}, lambda x: type(x) is int and 2 <= x <= 40),
}


def draw(parameters, count=60) -> list[dict]:
    """That many random trials' parameters, none of them run."""
    distributions = distributions_of(parameters)
    values = [propose([], Search(parameters, "random", seed=seed), distributions) for seed in range(count)]
    return [trial_parameters(parameters, found) for found in values]


class DistributionsTest(parameterized.TestCase):
    def test_every_distribution_is_mapped_or_refused(self):
        self.assertCountEqual([*SEARCHED, *WITHOUT_COUNTERPART, "constant"], DISTRIBUTIONS)

    @parameterized.parameters(*SEARCHED)
    def test_values_are_those_of_the_distribution(self, distribution):
        settings, is_right = SEARCHED[distribution]
        values = [found["x"] for found in draw([parameter(distribution, **settings)])]
        self.assertTrue(all(map(is_right, values)), values)
        self.assertGreater(len({repr(value) for value in values}), 3)

    @parameterized.parameters(*WITHOUT_COUNTERPART)
    def test_what_has_no_counterpart_is_refused_by_name(self, distribution):
        with exits_with(78, f"x: {distribution} has no counterpart in Optuna"):
            distribution_of(parameter(distribution))

    def test_multiples_of_a_logarithm_begin_above_0(self):
        values = {trial["x"] for trial in draw([parameter("q_log_uniform_values", min=1e-10, max=3)])}
        self.assertEqual(values, {1, 2, 3})

    def test_nested_parameters_come_out_as_tables(self):
        parameters = [parameter("constant", "a.b", value=1), parameter("int_uniform", "a.c", min=2, max=2)]
        self.assertEqual(draw(parameters, 1), [{"a": {"b": 1, "c": 2}}])


class SamplersTest(parameterized.TestCase):
    def test_the_same_seed_searches_alike_and_another_does_not(self):
        parameters = [parameter("uniform", min=0.0, max=1.0)]
        distributions = distributions_of(parameters)
        for method, sampler in (("random", "tpe"), ("bayes", "tpe"), ("bayes", "gp")):
            searches = [Search(parameters, method, sampler=sampler, seed=seed) for seed in (1, 1, 2)]
            first, again, other = (propose([], search, distributions) for search in searches)
            self.assertEqual(first, again)
            self.assertNotEqual(first, other)

    def test_where_less_is_better_proposals_go_down_and_the_higher_trial_is_stopped(self):
        wanted = Search([parameter("uniform", min=0.0, max=1.0)], "bayes", goal="minimize", eta=2)
        store = TrialStore(tempfile.mkdtemp(), wanted)
        self.addCleanup(store.close)
        values = []
        for _ in range(15):
            claim = store.claim(limit=18)
            values.append(claim.parameters["x"])
            store.end(claim, "complete", value=values[-1])
        self.assertLess(max(values[-5:]), sorted(values[:5])[2], "the last five against the first, at random")
        low, high, lowest = (store.claim(limit=18) for _ in range(3))
        self.assertFalse(store.is_behind(low, 0, 2.0))
        self.assertTrue(store.is_behind(high, 0, 3.0))
        self.assertFalse(store.is_behind(lowest, 0, 1.0))

    @parameterized.parameters(("maximize", 1), ("minimize", -1))
    def test_gaussian_processes_count_trials_that_failed_or_were_stopped_early(self, goal, sign):
        """Values get better up to x = 0.6; those beyond, of pruned trials, are the worst of all, or the trial's own."""
        search = Search([parameter("uniform", min=0.0, max=1.0)], "bayes", goal=goal, sampler="gp")
        distributions = distributions_of(search.parameters)

        def proposed(values: dict, pruned: dict) -> float:
            settings = [{"params": {"x": x}, "value": sign * value} for x, value in values.items()]
            for x, status in pruned.items():
                attributes = {"user_attrs": {"status": status}, "state": TrialState.PRUNED}
                settings.append({"params": {"x": x}, **attributes})
            trials = [create_trial(distributions=distributions, **entries) for entries in settings]
            return propose(trials, search, distributions)["x"]

        complete = {0.1: 10, 0.3: 30, 0.5: 50, 0.6: 60}
        ended = {
            0.7: {"state": "pruned", "value": sign * 40.0},
            0.8: {"state": "pruned", "value": sign * 5.0},
            0.9: {"state": "failed", "value": sign * 70.0},
            1.0: {"state": "complete", "value": None},
        }
        self.assertEqual(proposed(complete, ended), proposed({**complete, 0.7: 40, 0.8: 5, 0.9: 5, 1.0: 5}, {}))


class TrialStoreTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = tempfile.mkdtemp()
        self.wanted = Search([parameter("uniform", min=0.0, max=1.0)], "random", goal="minimize", eta=2)

    def store(self) -> TrialStore:
        store = TrialStore(self.directory, self.wanted)
        self.addCleanup(store.close)
        return store

    def test_another_process_continues_a_preempted_trial_and_both_see_its_status(self):
        first, second = self.store(), self.store()
        ended, preempted = first.claim(limit=2), first.claim(limit=2)
        first.note(preempted, process={"pid": 7})
        first.end(ended, "complete", value=1.0)
        self.assertIsNone(second.claim(limit=2), "its owner lives")
        first.give_back(preempted, last_step=3)
        again = second.claim(limit=2)
        self.assertEqual((again.number, again.parameters), (preempted.number, preempted.parameters))
        self.assertEqual((again.former, again.status["starts"]), ({"pid": 7}, 2))
        second.end(again, "complete", value=2.0, last_step=9)
        statuses = [status for _, _, status in first.statuses()]
        self.assertEqual([status["value"] for status in statuses], [1.0, 2.0])
        self.assertEqual((statuses[1]["last_step"], statuses[1]["owner"]), (9, second.name))
        self.assertEqual([trial.value for trial in first.study.get_trials()], [1.0, 2.0])

    def test_the_search_counts_a_trial_that_failed_as_bad_and_one_that_was_interrupted_not_at_all(self):
        """A pruned trial without a value is Optuna's worst; one that failed is none of its trials."""
        store = self.store()
        ends = (("failed", {}), ("failed", {"interrupted": True}), ("complete", {"value": math.nan}))
        for state, entries in ends:
            store.end(store.claim(limit=3), state, **entries)
        self.assertEqual([trial.state.name for trial in store.study.get_trials()], ["PRUNED", "FAIL", "PRUNED"])

    @parameterized.parameters("tpe", "gp")
    def test_a_search_leaves_the_values_that_fail(self, sampler):
        """Trials get better up to x = 0.7, beyond which all fail: at random 12 of 40 would, and there is the best."""
        self.wanted = Search(self.wanted.parameters, "bayes", sampler=sampler)
        count = {"tpe": 40, "gp": 20}[sampler]
        store = self.store()
        failed = []
        for _ in range(count):
            claim = store.claim(limit=count)
            x = claim.parameters["x"]
            failed.append(x > 0.7)
            if x > 0.7:
                store.end(claim, "failed", value=None)
            else:
                store.end(claim, "complete", value=x)
        self.assertLess(sum(failed), 0.6 * count)
        best = max(trial.value or 0 for trial in store.study.get_trials())
        self.assertGreater(best, 0.65)

    def test_a_trial_that_another_process_continues_is_compared_once_at_each_rung(self):
        """By hand: of two values at a rung the higher one is behind where less is better."""
        first, second = self.store(), self.store()
        low, high = first.claim(limit=2), first.claim(limit=2)
        self.assertFalse(first.is_behind(low, 0, 2.0))
        self.assertFalse(first.is_behind(low, 1, 1.5))
        self.assertTrue(first.is_behind(high, 0, 3.0))
        first.give_back(high)
        again = second.claim(limit=2)
        self.assertTrue(second.is_behind(again, 0, 9.0), "it was behind there, and may have been stopped")
        self.assertTrue(second.is_behind(again, 1, math.nan), "NaN is behind")
        first.give_back(low)
        passed = second.claim(limit=2)
        self.assertFalse(second.is_behind(passed, 0, 9.0), "it was not behind there")
        reported = [trial.intermediate_values for trial in second.study.get_trials()]
        self.assertEqual(reported[0], {1: 2.0, 2: 1.5})
        self.assertEqual((reported[1][1], [*reported[1]]), (3.0, [1, 2]))

    @parameterized.parameters(("maximize", 80.0, 79.9), ("minimize", 80.0, 80.1))
    def test_no_trial_is_begun_once_one_has_a_value_as_good_as_the_target(self, goal, reached, missed):
        self.wanted = Search(self.wanted.parameters, "random", goal=goal, target=80.0)
        store = self.store()
        store.end(store.claim(limit=9), "complete", value=missed)
        unfinished = store.claim(limit=9)
        self.assertEqual(unfinished.number, 1)
        store.end(store.claim(limit=9), "complete", value=reached)
        self.assertIsNone(store.claim(limit=9))
        store.give_back(unfinished)
        self.assertEqual(store.claim(limit=9).number, 1, "what was begun goes on")

    def test_trials_of_a_process_that_has_died_are_run_again_but_not_one_whose_end_it_had_noted(self):
        first, second = self.store(), self.store()
        ended, running = first.claim(limit=3), first.claim(limit=3)
        first.note(ended, state="complete", value=4.0)  # and died before Optuna was told
        first.close()
        again = second.claim(limit=3)
        self.assertEqual((again.number, again.parameters), (running.number, running.parameters))
        self.assertEqual((again.status["starts"], again.status["owner"]), (2, second.name))
        trial = second.study.get_trials()[ended.number]
        self.assertEqual((trial.state.name, trial.value), ("COMPLETE", 4.0))
        self.assertEqual([second.claim(limit=3).number, second.claim(limit=3)], [2, None])

    def test_half_a_line_at_the_journal_s_end_is_cut_off(self):
        first = self.store()
        first.end(first.claim(limit=3), "complete", value=1.0)
        first.close()
        journal = Path(self.directory) / "journal.log"
        whole = journal.read_bytes()
        journal.write_bytes(whole + b'{"op_code": 4, "worker')
        statuses = self.store().statuses()
        self.assertEqual([(number, status["value"]) for number, _, status in statuses], [(0, 1.0)])
        self.assertStartsWith(journal.read_bytes(), whole)

    def test_half_a_line_of_a_process_whose_disk_was_full_costs_no_other_process_a_record(self):
        living = self.store()
        claim = living.claim(limit=3)
        journal = Path(self.directory) / "journal.log"
        with journal.open("ab") as file:
            file.write(b'{"op_code": 4, "worker')
        living.end(claim, "complete", value=1.0)
        living.end(living.claim(limit=3), "complete", value=2.0)
        for store in (living, self.store()):
            values = [(number, status["value"]) for number, _, status in store.statuses()]
            self.assertEqual(values, [(0, 1.0), (1, 2.0)])

    @parameterized.parameters(b'{"op_code":4,"wor', b'{"op_code":4,"worker_id":"a"}', b"\0\0\0")
    def test_half_a_record_before_another_process_s_whole_one_costs_no_trial(self, half):
        """What a full disk, or a crash of the machine, left before it was cut off at once."""
        living = self.store()
        living.end(living.claim(limit=9), "complete", value=1.0)
        living.claim(limit=9)
        journal = Path(self.directory) / "journal.log"
        whole = journal.read_bytes()
        lines = whole.splitlines(keepends=True)
        for number in range(1, len(lines)):
            journal.write_bytes(b"".join([*lines[:number], half, *lines[number:]]))
            with self.assertLogs("t5suite", "WARNING") as log:
                store = self.store()
            self.assertRegex(log.output[0], rf"journal\.log: .* {number + 1}$")
            self.assertStartsWith(journal.read_bytes(), whole)
            self.assertEqual(store.statuses(), living.statuses())
            store.close()
        self.assertEqual([store.claim(limit=9).number for store in (self.store(), living)], [2, 3])

    @parameterized.parameters(b"\0\0\0\n", b'{"op_code":4,"wor\n', b"4}\n")
    def test_a_line_of_the_journal_without_a_whole_record_is_named(self, damaged_line):
        self.store().close()
        journal = Path(self.directory) / "journal.log"
        damaged = journal.read_bytes() + damaged_line + journal.read_bytes()
        journal.write_bytes(damaged)
        number = damaged[: damaged.index(damaged_line)].count(b"\n") + 1
        with exits_with(65, rf"journal\.log:{number}: .*backup"):
            self.store()
        self.assertEqual(journal.read_bytes(), damaged)


class TrialMetricsTest(parameterized.TestCase):
    """What a trial's run directory says of it."""

    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())

    def write(self, **files) -> None:
        for name, content in files.items():
            (self.folder / f"{name}.json").write_text(json.dumps(content))

    def test_a_curve_has_the_last_value_of_each_step_in_the_steps_order(self):
        lines = [
            {"step": 20, "eval/f1": 60.0, "eval/loss": 1.0, "eval/accuracy": 3.0},
            {"step": 10, "eval/f1": 50, "train/loss": 2.0, "eval/accuracy": None},
            {"step": 30, "train/loss": 1.0}, {"eval/f1": 99.0}, {"step": "40", "eval/f1": 99.0}, [5], "text",
            {"step": 40, "eval/f1": "70"}, {"step": 20, "eval/f1": 55.0, "eval/accuracy": 4.0},
        ]  # fmt: skip
        path = self.folder / "metrics.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)) + '\nno json\n{"step": 50, "eval/f1": 98.0}')
        curve = read_curve(str(path), "eval/f1")
        self.assertEqual(curve.points[:2], [(10, 50.0), (20, 55.0)])
        self.assertLen(curve.points, 3)
        self.assertTrue(math.isnan(curve.values[2]), "a text is no number")
        self.assertEqual(curve.last_step, 40)
        self.assertEqual(curve.metric_names, {"eval/f1", "eval/loss", "eval/accuracy", "train/loss"})
        self.assertEqual(curve.scores_at_best("maximize"), {"eval/accuracy": 4.0})
        self.assertEqual(curve.scores_at_best("minimize"), {"eval/accuracy": None})

    def test_a_run_has_done_all_steps_where_its_last_logged_one_is_its_last(self):
        self.assertFalse(has_done_all_steps(self.folder, 10), "no manifest")
        self.write(manifest={"total_steps": 10})
        self.assertEqual(
            [has_done_all_steps(self.folder, step) for step in (9, 10, 11, None)], [False, True, True, False]
        )
        self.write(manifest={"total_steps": None})
        self.assertFalse(has_done_all_steps(self.folder, 10), "as many as there are rows")

    def test_a_run_s_result_is_the_mean_of_its_tasks_figures(self):
        self.assertIsNone(result_of_run(self.folder, "eval/average"), "no results")
        names = ("rte", "cola", "sst2", "mnli")
        self.write(
            manifest={"run_id": "4f2a", "settings": {}, "tasks": {name: DATASET_VALS["glue"][name] for name in names}}
        )
        for tasks, result in (
            ({"rte": {"accuracy": 70.0, "invalid_rate": 3.0}}, 70.0),
            ({"rte": {"accuracy": 70.0}, "cola": {"matthews_correlation": 40.0}, "sst2": {"accuracy": 94.0}}, 68.0),
            ({"rte": {"accuracy": 70.0}, "cola": {"matthews_correlation": None}}, None),
            (
                {"rte": {"accuracy": 70.0}, "mnli_matched": {"accuracy": 82.0}, "mnli_mismatched": {"accuracy": 80.0}},
                75.5,
            ),
            ({"rte": {"accuracy": 70.0}, "mnli": {"accuracy": 80.0}}, 75.0),
            ({}, None),
        ):
            self.write(results={"tasks": tasks, "averages": {}})
            self.assertEqual(result_of_run(self.folder, "eval/average"), result, tasks)

    def test_the_result_of_a_run_on_a_mixture_is_the_mean_of_the_tasks_of_its_average(self):
        tasks = {name: DATASET_VALS["glue"][name] for name in ("rte", "sst2", "wnli")}
        settings = {"benchmark": "glue", "dataset_name": "all"}
        self.write(manifest={"run_id": "4f2a", "settings": settings, "tasks": tasks})
        scores = {"rte": {"accuracy": 70.0}, "sst2": {"accuracy": 90.0}, "wnli": {"accuracy": 50.0}}
        for names, result in ((("rte", "sst2", "wnli"), 80.0), (("wnli",), 50.0)):
            self.write(results={"tasks": {name: scores[name] for name in names}, "averages": {}})
            self.assertEqual(result_of_run(self.folder, "eval/average"), result)

    def test_an_error_has_no_part_in_a_mean_of_points(self):
        names = {"desk": "accuracy", "price": "neg_mean_absolute_error", "rent": "neg_mean_absolute_error"}
        tasks = {name: {"metric_names": [metric], "metric_to_optimize": metric} for name, metric in names.items()}
        self.write(manifest={"run_id": "4f2a", "settings": {}, "tasks": tasks})
        scores = {"desk": 91.0, "price": -25310.0, "rent": -690.0}
        for scored, result in ((("desk", "price", "rent"), 91.0), (("price", "rent"), -13000.0)):
            self.write(results={"tasks": {name: {names[name]: scores[name]} for name in scored}, "averages": {}})
            self.assertEqual(result_of_run(self.folder, "eval/average"), result)

    @parameterized.parameters(
        # (settings, the entry's metric, metric_names, the scores of each split, the result)
        ({}, "f1", ["f1", "accuracy"], {"a": {"f1": 80.0, "accuracy": 60.0}}, 80.0),
        ({}, "average", ["f1", "accuracy"], {"a": {"f1": 80.0, "accuracy": 60.0}}, 70.0),
        ({}, "average", ["pearson", "neg_mean_absolute_error"],
         {"a": {"pearson": 90.0, "neg_mean_absolute_error": -3.0}}, 90.0),
        ({}, "f1", ["f1"], {"a": {"f1": 80.0}, "a.test": {"f1": 40.0}}, 80.0),
        ({}, "f1", ["f1"], {"a.test": {"f1": 40.0}}, 40.0),
        ({"metric_for_best_model": "kappa"}, "f1", ["f1"], {"a": {"f1": 80.0, "kappa": 50.0}}, 50.0),
        ({}, None, [], {"a": {"loss": 2.5}}, -2.5), ({}, None, [], {"a": {"loss": None}}, None),
        ({}, None, [], {"a": {"nll": 2.5}}, -2.5), ({}, None, [], {"a": {"nll": None}}, None),
    )  # fmt: skip
    def test_a_task_s_figure_is_by_the_metric_that_selects_in_this_run_without_test_splits(
        self, settings, optimised, names, tasks, result
    ):
        entry = {"metric_to_optimize": optimised, "metric_names": names}
        self.write(manifest={"run_id": "4f2a", "settings": settings, "tasks": {"a": entry}})
        self.write(results={"tasks": tasks, "averages": {}})
        self.assertEqual(result_of_run(self.folder, "eval/average"), result)

    def test_the_result_of_pre_training_is_its_nll_and_no_average(self):
        scores = {"nll": 2.25, "perplexity": 9.5, "accuracy": 50.0, "unigram_nll": 5.0}
        self.write(manifest={"run_id": "4f2a", "settings": {}})
        self.write(results={"tasks": {"held_out": scores}, "averages": {}})
        results = {name: result_of_run(self.folder, name) for name in ("eval/nll", "eval/average", "eval/f1")}
        self.assertEqual(results, {"eval/nll": 2.25, "eval/average": None, "eval/f1": None})

    def test_an_exit_code_is_said_in_words(self):
        for code, words in ((-9, "ended by SIGKILL"), (-250, "ended by signal 250"), (3, "exit code 3"),
                            (78, "exit code 78: bad configuration")):  # fmt: skip
            self.assertEqual(describe_exit(code), words)

    def test_a_failed_trial_s_log_is_shown_from_its_first_error_to_the_launcher_s_lines(self):
        log = self.folder / "0000.log"
        self.assertEqual(end_of_log(log), [])
        for text, shown in LOGS_OF_FAILURES.items():
            log.write_text(text)
            self.assertEqual("|".join(end_of_log(log)), shown, text)


# What a trial's processes print -> what is shown of it if it fails.
LOGS_OF_FAILURES = {
    "error: no rte.csv;\n  give --data_dir\nTraceback (most recent call last):\n  File x\n": "error: no rte.csv;|  give --data_dir",
    "error: no x\nE1130 05:11:44.053000 12749 torch/distributed/elastic/api.py:1002] failed\n": "error: no x",
    "error: no x\n[2026-07-26 05:10:12,123] [INFO] [launch.py:316:sigkill_handler] Killing\n": "error: no x",
    "error: no x\n[rank0]:[W726 05:10:12.123 ProcessGroupNCCL.cpp:1496] Warning\n": "error: no x",
    "1 row\nerror: no x\nerror: rank 1 has exited; this process would wait for it\n1\n2\n3\n4\n5\n": "error: no x",
    "error: 1\n2\n3\n4\n5\n6\n": "error: 1|2|3|4|5",
    "1\n2\n3\n4\n5\nValueError: x\n": "2|3|4|5|ValueError: x",
    "": "",
}  # fmt: skip
# (exit code, why it was asked to stop, starts, the last step, of ten) -> state, whether another process may take it,
# a part of the message.
ENDS = [
    (0, "", 1, 10, "complete", False, "finished, best 64"),
    (0, "pruned", 1, 10, "complete", False, "finished, best 64"),
    (75, "", 1, 4, "preempted", True, "preempted at step 4"),
    (75, "", 20, 4, "failed", False, "exit code 75: preempted, 20 times"),
    (-15, "preempted", 1, 4, "preempted", True, "preempted at step 4"),
    (-9, "", 19, 4, "preempted", False, "ended by SIGKILL from outside; --resume continues it"),
    (137, "", 1, 4, "preempted", False, "from outside"),
    (-9, "", 20, 4, "failed", False, "ended by SIGKILL, 20 times"),
    (-11, "", 1, 4, "failed", False, "failed, ended by SIGSEGV"),
    (-15, "pruned", 1, 4, "pruned", False, "stopped early at step 4, best 64"),
    (75, "pruned", 1, 10, "preempted", True, "has done all its steps, to 10: it goes on to its scores"),
    (75, "pruned", 20, 10, "pruned", False, "stopped early at step 10"),
    (65, "", 1, 4, "failed", False, "failed, exit code 65: bad data"),
]
# (a launcher's exit code, those that its workers noted, starts) -> state, exit code, a part of the message.
ENDS_OF_LAUNCHERS = [
    (1, "75 70 75", 1, "failed", 70, "failed, exit code 70: it diverged"),
    (1, "75 75", 1, "preempted", 75, "preempted at step 4"),
    (1, "began began 75 75", 1, "preempted", 75, "preempted at step 4"),
    (1, "began began 75", 1, "preempted", 1, "were killed, for example because memory ran out; --resume continues it"),
    (1, "began began 75 1", 1, "failed", 1, "failed, exit code 1 ("),
    (1, "began began 1", 1, "failed", 1, "failed, exit code 1 ("),
    (-15, "75", 1, "preempted", 75, "preempted at step 4"),
    (1, "began", 1, "preempted", 1, "were killed, for example because memory ran out; --resume continues it"),
    (1, "began", 20, "failed", 1, "failed, exit code 1, 20 times"),
    (
        247,
        "began began 75",
        1,
        "preempted",
        247,
        "were killed, for example because memory ran out; --resume continues it",
    ),
    (247, "75", 1, "preempted", 75, "preempted at step 4"),
    (247, "", 1, "failed", 247, "failed, exit code 247 ("),
    (1, "", 1, "failed", 1, "failed, exit code 1 ("),
    (-11, "began", 1, "failed", -11, "failed, ended by SIGSEGV"),
    (1, "1", 1, "failed", 1, "failed, exit code 1 ("),
    (0, "70 0", 1, "complete", 0, "finished, best 64"),
]


class EndsTest(parameterized.TestCase):
    """What a sweep records of a trial whose processes have ended."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        content = {
            "method": "grid", "program": "fine_tune_t5.py", "metric": {"name": "eval/f1", "goal": "maximize"},
            "parameters": {"seed": {"values": list(range(len(ENDS) + len(ENDS_OF_LAUNCHERS) + 9))}},
        }  # fmt: skip
        cls.sweep = Sweep(plan_of(SweepFile("--grid", content, {})), Path(tempfile.mkdtemp()) / "sweep")
        cls.sweep.store.end(cls.sweep.store.claim(100), "complete", value=64.0)
        cls.addClassCleanup(cls.sweep.store.close)

    def ended(self, exit_code, stopped, starts, step, noted="") -> tuple[RunningTrial, str]:
        """A trial with values at its last step and before, which has ended, and what is said of it."""
        claim = self.sweep.store.claim(100)
        claim.status["starts"] = starts
        files = TrialFiles(self.sweep.directory, claim.number)
        files.run_dir.mkdir(parents=True)
        (files.run_dir / "manifest.json").write_text(json.dumps({"total_steps": 10}))
        lines = [{"step": step - 2, "eval/f1": 64.0}, {"step": step, "eval/f1": 61.0}] if step else []
        files.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        files.log.touch()
        files.exit_codes.write_text(noted)
        slot = RunningTrial(claim, files, mock.Mock(), stopped=stopped)
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            self.sweep._end(slot, exit_code)
        return slot, shown.getvalue()

    def test_what_is_stopped_from_outside_goes_on_and_what_fails_does_not(self):
        for exit_code, stopped, starts, step, state, is_free, message in ENDS:
            slot, shown = self.ended(exit_code, stopped, starts, step)
            record = self.sweep.records()[slot.claim.number]
            case = (exit_code, stopped, starts, step)
            self.assertEqual((record["state"], record["exit_code"]), (state, exit_code), case)
            self.assertEqual((record["value"], record["last_step"]), (64.0, step), case)
            self.assertIn(message, shown)
            self.assertEqual(slot.claim.status["owner"] == "", is_free, case)
            if state == "preempted":  # so that the next case does not continue it
                self.sweep.store.end(slot.claim, "failed")
        self.assertIsNone(self.sweep.error)

    def test_where_a_launcher_ends_with_a_code_of_its_own_the_workers_codes_count(self):
        for exit_code, noted, starts, state, recorded_code, message in ENDS_OF_LAUNCHERS:
            slot, shown = self.ended(exit_code, "", starts, 4, noted)
            record = self.sweep.records()[slot.claim.number]
            case = (exit_code, noted, starts)
            self.assertEqual((record["state"], record["exit_code"]), (state, recorded_code), case)
            self.assertIn(message, shown)
            if state == "preempted":  # so that the next case does not continue it
                self.sweep.store.end(slot.claim, "failed")

    @parameterized.parameters((1, "began", "FAIL"), (247, "began", "FAIL"), (1, "75", "FAIL"), (1, "1", "PRUNED"))
    def test_the_search_leaves_out_a_trial_that_was_killed_under_a_launcher_again_and_again(self, code, noted, state):
        """PRUNED is a bad one."""
        slot, _ = self.ended(code, "", 20, 4, noted)
        self.assertEqual(self.sweep.store.study.get_trials()[slot.claim.number].state.name, state)

    def test_what_a_former_start_s_workers_have_noted_does_not_count(self):
        """They noted it in the sweep's file and, on another node, in one beside it."""
        claim = self.sweep.store.claim(100)
        slot = RunningTrial(claim, TrialFiles(self.sweep.directory, claim.number), mock.Mock())
        slot.files.exit_codes.write_text("began\n")
        Path(f"{slot.files.exit_codes}.1").write_text("began\n70\n")
        slot.begin()
        with contextlib.redirect_stderr(io.StringIO()):
            self.sweep._end(slot, 3)
        record = self.sweep.records()[claim.number]
        self.assertEqual((record["state"], record["exit_code"]), ("failed", 3))

    def test_the_value_of_one_that_goes_on_is_the_best_of_its_curve(self):
        slot, _ = self.ended(75, "", 1, 4)
        claim = self.sweep.store.claim(100)
        with slot.files.metrics.open("a") as metrics:
            metrics.write('{"step": 6, "eval/f1": 70.0}\n')
        record = self.sweep.records()[slot.claim.number]
        self.sweep.store.end(claim, "failed")
        self.assertEqual((claim.number, record["state"], record["value"]), (slot.claim.number, "running", 70.0))

    def test_one_that_logs_no_value_of_the_metric_has_failed(self):
        slot, shown = self.ended(0, "", 1, None)
        self.assertEqual(self.sweep.records()[slot.claim.number]["state"], "failed")
        self.assertIn("it ended without logging eval/f1; it logged no metric", shown)


# A script whose run has begun, and which other code, such as a callback, then ends.
ENDED_SCRIPT = """import os, pathlib, sys
from t5suite.base.programs import run_program
def main(argv):
    folder = pathlib.Path(os.environ["T5SUITE_RUN_DIR"])
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    print("error: no licence")
    ENDING
run_program(main)
"""


class EndedScriptTest(parameterized.TestCase):
    @parameterized.parameters(
        ("sys.exit('error: no licence')", 1), ("sys.exit(3)", 3), ("raise BaseException('error: no licence')", 1)
    )
    def test_a_script_that_other_code_ends_has_failed_and_was_not_killed(self, ending, exit_code):
        """Its launcher ends with 1 whatever it ends with."""
        folder = Path(tempfile.mkdtemp())
        script = folder / "fine_tune_t5.py"
        script.write_text(ENDED_SCRIPT.replace("ENDING", ending))
        launcher = ["/bin/sh", "-c", f'"{sys.executable}" "$1"; [ $? = 0 ] || exit 1', "sh", str(script)]
        words = ["sweep", "--sweep_dir", folder / "sweep", "--seeds", "1", "--", *launcher]
        at_root = mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT)})
        with at_root, contextlib.redirect_stderr(io.StringIO()), exits_with(78, "log says:\n  error: no licence"):
            run_cli(*words)
        (record,) = json.loads((folder / "sweep/sweep.json").read_text())["trials"]
        self.assertEqual((record["state"], record["exit_code"]), ("failed", exit_code))


class TrialProcessTest(parameterized.TestCase):
    """The processes of a trial, all of which have to end."""

    def setUp(self):
        super().setUp()
        self.members, self.signals, self.now = [7, 8], [], 100.0
        self.enter_context(mock.patch.object(trials, "group_members", lambda group: self.members))
        send = lambda group, number: self.signals.append((group, number))
        self.enter_context(mock.patch.object(trials, "signal_group", send))
        self.enter_context(mock.patch.object(trials.time, "monotonic", lambda: self.now))
        self.process = TrialProcess(["x"], "log", {})
        self.process._process = mock.Mock(pid=7, **{"poll.return_value": None})

    def test_one_that_is_asked_to_stop_is_killed_after_its_grace(self):
        self.assertIsNone(self.process.poll())
        self.process.stop(grace=5)
        self.process.stop(grace=500)
        self.now = 104.9
        self.assertIsNone(self.process.poll())
        self.assertEqual(self.signals, [(7, signal.SIGTERM)])
        self.now = 105.0
        self.assertIsNone(self.process.poll())
        self.assertEqual(self.signals, [(7, signal.SIGTERM), (7, signal.SIGKILL)])

    def test_by_force_it_is_killed_at_once(self):
        self.process.stop(grace=500)
        self.process.kill()
        self.process.poll()
        self.assertEqual(self.signals, [(7, signal.SIGTERM), (7, signal.SIGKILL)])

    def test_it_has_ended_when_the_others_of_its_group_have_ended_too(self):
        self.process._process.poll.return_value = 3
        self.assertIsNone(self.process.poll())
        self.assertEqual(self.signals, [(7, signal.SIGTERM)])
        self.members = []
        self.assertEqual(self.process.poll(), 3)

    def test_a_group_s_members_are_its_living_processes(self):
        self.assertIn(os.getpid(), process_groups.group_members(os.getpgrp()))
        self.assertIn(os.getpid(), process_groups.group_members(os.getsid(0)))
        self.assertEmpty(process_groups.group_members(2**22 + 1))


class GridsTest(parameterized.TestCase):
    def test_every_combination_in_order(self):
        parameters = [
            parameter("categorical", "a", values=["x", True]),
            parameter("constant", "b", value=5),
            parameter("int_uniform", "c", min=1, max=2),
            parameter("q_uniform", "d", min=0, max=0.35, q=0.1),
        ]
        found = [trial_parameters(parameters, values) for values in grid_of(parameters)]
        wanted = itertools.product(["x", True], [5], [1, 2], [0.0, 0.1, 0.2, 0.3])
        self.assertEqual([tuple(one.values()) for one in found], list(wanted))

    def test_an_endless_grid_is_refused(self):
        with exits_with(78, "10000000000 combinations"):
            grid_of([parameter("categorical", f"p{i}", values=list(range(10))) for i in range(10)])
        with exits_with(78, "x: more than 100000 values"):
            grid_of([parameter("int_uniform", min=0, max=10**18)])


class RungsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"min_iter": 3}, [3, 9, 27, 81]), ({"min_iter": 1, "eta": 2}, [1, 2, 4, 8]), (None, []),
        ({"min_iter": 2, "eta": 1.5}, [2, 3, 4, 6]), ({"max_iter": 27, "s": 2}, [3, 9]),
        ({"max_iter": 26, "s": 3}, [2, 8]), ({"max_iter": 8, "s": 5, "eta": 2}, [1, 2, 4]),
    )  # fmt: skip
    def test_rungs_are_those_of_wandb(self, rule, wanted):
        """By hand from `sweeps/hyperband_stopping.py`: `int(max_iter / eta ** k)` from 1, or `int(min_iter * eta ** k)`."""
        self.assertEqual(rungs_of(rule)[:4], wanted)


class ProcessGroupsTest(parameterized.TestCase):
    """Processes that a trial has left, known by host, boot, number and start."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(process_groups, "group_members", return_value=[7, 8, 9]))

    def test_what_is_left_of_a_process_is_its_own_group_s(self):
        process = process_groups.identity(os.getpid())
        self.assertEqual(process_groups.leftovers(process), [7, 8, 9])
        for name in ("host", "boot", "process_started"):
            self.assertEqual(process_groups.leftovers({**process, name: "another"}), [], name)
        self.assertEqual(process_groups.leftovers(None), [])
        ended = {**process, "pid": 2**22 + 1}  # no process has this number
        self.assertEqual(process_groups.leftovers(ended), [7, 8, 9], "its children may live on")

    def test_a_signal_also_reaches_those_that_have_left_the_group(self):
        groups = {7: 7, 8: 8}
        self.enter_context(mock.patch("os.getpgid", lambda pid: groups[pid] if pid in groups else self.gone()))
        for error in (None, ProcessLookupError()):
            with mock.patch("os.killpg", side_effect=error) as killpg, mock.patch("os.kill") as kill:
                process_groups.signal_group(7, signal.SIGTERM)
            killpg.assert_called_once_with(7, signal.SIGTERM)
            kill.assert_called_once_with(8, signal.SIGTERM)

    def gone(self):
        raise ProcessLookupError


class FormerProcessTest(parameterized.TestCase):
    """A trial whose former process was not seen to end."""

    def trial(self, **status) -> RunningTrial:
        place = Path(tempfile.mkdtemp())
        files = SimpleNamespace(run_dir=place, metrics=place / "metrics.jsonl")
        claim = SimpleNamespace(number=3, former={"pid": 7}, status=status)
        return RunningTrial(claim, files, mock.Mock())

    def test_it_ends_by_itself_then_by_sigterm_once_then_by_force(self):
        trial = self.trial()
        seconds = running_trials.SECONDS_TO_END
        signals = []
        self.enter_context(mock.patch.object(running_trials, "leftovers", return_value=[7]))
        send = lambda group, number: signals.append((group, number))
        self.enter_context(mock.patch.object(running_trials, "signal_group", send))
        for waited, expected in (
            (0, []), (seconds + 1, [signal.SIGTERM]), (seconds + 2, []), (seconds + 11, [signal.SIGKILL]),
        ):  # fmt: skip
            now = trial.waiting_since + waited
            with mock.patch("time.monotonic", lambda now=now: now):
                self.assertTrue(trial.waits_for_former_process(grace=10))
            self.assertEqual(signals, [(7, number) for number in expected])
            signals.clear()

    def test_one_on_another_machine_is_waited_for_and_named_once(self):
        trial = self.trial()
        self.enter_context(mock.patch.object(running_trials, "leftovers", return_value=[]))
        lock = RunLock(trial.files.run_dir).acquire()
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            self.assertEqual([trial.waits_for_former_process(1.0) for _ in range(2)], [True, True])
        self.assertEqual(shown.getvalue().count("trial 3: waiting for its former process"), 1)
        lock.release()
        self.assertFalse(trial.waits_for_former_process(1.0))
        RunLock(trial.files.run_dir).acquire().release()

    def test_seconds_of_a_start_whose_end_nobody_saw_count_until_its_last_line(self):
        trial = self.trial(seconds=5.0, since=1000.0)
        self.assertEqual(trial.seconds_before(), 5.0)
        trial.files.metrics.touch()
        for changed, expected in ((1007.0, 12.0), (990.0, 5.0)):
            os.utime(trial.files.metrics, (changed, changed))
            self.assertEqual(trial.seconds_before(), expected)
        os.utime(trial.files.metrics, (1007.0, 1007.0))
        trial.claim.former = None
        self.assertEqual(trial.seconds_before(), 5.0)
        unnoted = self.trial(seconds=5.0)
        unnoted.files.metrics.touch()
        self.assertEqual(unnoted.seconds_before(), 5.0, "nobody noted when it began")
