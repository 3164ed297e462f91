"""What a report's numbers are made of: rows joined again, baselines, seeds, published scores; tables of runs; hints."""

import contextlib
import datetime
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas
import pytest
from absl.testing import parameterized
from report_runs import curve_lines, make_run, reported, written
from shown_tables import terminal_tables
from support import folder

import fine_tune_t5
from t5suite import load_task
from t5suite.testing import TINY_T5, cli_output, exits_with, read_rows, run_cli, tiny_run, write_rows


def predictions_of(run, task: str) -> list[dict]:
    return read_rows(run / "predictions" / f"{task}.validation.jsonl")


class EvaluationsTest(parameterized.TestCase):
    def test_rows_and_predictions_are_joined_and_reproduce_the_results(self):
        run = make_run(folder() / "a", "sentiment", wrong=0.3)
        data = reported(run).data
        (part,) = data["examples"]
        self.assertEqual(part["note"], "")
        rows = {example["row"]: example for example in part["examples"]}
        texts = [example.inputs for row in run_rows(run) for example in load_task("mini", "sentiment").examples(row)]
        for at, line in enumerate(predictions_of(run, "sentiment")):
            shown = [rows[at][name] for name in ("inputs", "target", "prediction")]
            self.assertEqual(shown, [texts[at], line["target"], line["prediction"]])
        self.assertContainsSubset({"accuracy"}, data["runs"][0]["intervals"]["sentiment"])

    @pytest.mark.slow
    def test_a_file_in_place_of_several_splits_is_joined(self):
        """MNLI has two validation splits; a file replaces both."""
        rows = [{"premise": f"It rains {i}.", "hypothesis": "It is wet.", "label": i % 3} for i in range(12)]
        path = write_rows(folder() / "mine.jsonl", rows)
        files = {"train_file": str(path), "validation_file": str(path)}
        run = tiny_run(benchmark="glue", dataset_name="mnli", eval_method="score", max_steps=1, **files).directory
        data = reported(run).data
        (part,) = data["examples"]
        self.assertEqual((part["task"], part["total"], part["note"]), ("mnli", 12, ""))
        self.assertContainsSubset({"accuracy"}, data["runs"][0]["intervals"]["mnli"])

    def test_predictions_that_do_not_give_the_results_are_used_for_nothing(self):
        run = make_run(folder() / "a", "sentiment")
        results = json.loads((run / "results.json").read_text())
        results["tasks"]["sentiment"]["accuracy"] += 1.0
        (run / "results.json").write_text(json.dumps(results))
        data = reported(run).data
        self.assertEqual((data["runs"][0]["intervals"], data["confusions"]), ({}, []))
        self.assertIsNone(data["runs"][0]["baselines"].get("sentiment"))

    def test_a_line_that_is_no_prediction_is_named(self):
        run = make_run(folder() / "a", "sentiment")
        path = write_rows(run / "predictions" / "sentiment.validation.jsonl", [{"row": 0, "text": "x"}])
        with exits_with(65, f"{path}:1: .*'row' and 'prediction'"):
            run_cli("compare", run, make_run(folder() / "b", "sentiment"))
        self.assertIn(f"predictions: {path}:1: ", reported(run).data["runs"][0]["notes"][0])

    def test_the_majority_is_counted_over_the_rows(self):
        run = make_run(folder() / "a", "entailment", wrong=0.4, invalid=0.1, count=60)
        targets = [line["target"] for line in predictions_of(run, "entailment")]
        most = max(map(targets.count, targets))
        baseline = reported(run).data["runs"][0]["baselines"]["entailment"]
        self.assertEqual(targets.count(baseline["label"]), most)
        self.assertAlmostEqual(baseline["share"], 100 * most / 60)
        self.assertAlmostEqual(baseline["scores"]["accuracy"], baseline["share"])

    def test_the_plot_of_scores_explains_the_marks_that_it_has_and_names_scores_that_it_lacks(self):
        numbers = {"pearson": 65.9, "neg_mean_absolute_error": -0.9}
        runs = [bare_run("mini", {"prices": numbers}), make_run(folder() / "a", "sentiment")]
        for shown_runs, has_bars in ((runs[:1], False), (runs, True)):
            figure = reported(*shown_runs).figures["scores"]
            markers = {line.get_marker() for line in figure.axes[0].lines}
            legend = figure.get_supxlabel()
            self.assertEqual(["|" in markers, "majority label" in legend], [has_bars, has_bars])
            self.assertEqual("D" in markers, "published T5" in legend)
            self.assertRegex(legend, "not shown.*: neg_mean_absolute_error$")

    def test_the_plot_of_scores_does_not_say_of_your_own_metrics_that_they_are_no_points(self):
        """A function of `--metrics` may well return points; nobody knows."""
        run = bare_run("mini", {"prices": {"pearson": 65.9, "nll": 1.5, "items_right": 37.5}})
        legend = " ".join(reported(run).figures["scores"].get_supxlabel().split())
        self.assertRegex(legend, r"\(not in points\): nll not shown \([^)]*your own[^)]*\): items_right$")

    @parameterized.parameters(
        ("orders", "orders_b"),
        ("shop-of-the-town-google-t5-small", "shop-of-the-town-google-t5-base"),
        ("shop-of-the-town-google-t5-small", "shop-of-the-town-with-t5-small"),
    )
    def test_each_score_in_the_plot_has_the_name_of_its_run_which_tells_it_from_others(self, *names):
        """Where tasks or metrics of one run alone would tell, too; a long name lacks its middle."""
        tasks_of_run = [{"orders": {"accuracy": 70.0}, "orders.test": {"rouge1": 50.0}}, {"orders": {"accuracy": 60.0}}]
        place = folder()
        runs = [
            bare_run("own", tasks, settings={"learning_rate": rate}).rename(place / name)
            for name, tasks, rate in zip(names, tasks_of_run, (0.1, 0.2), strict=True)
        ]
        axes = reported(*runs).figures["scores"].axes[0]
        shown = [re.search(r" \((.*)\)$", label.get_text())[1] for label in axes.get_yticklabels()]
        self.assertEqual(shown, [shown[0], shown[0], shown[2]])
        self.assertNotEqual(shown[0], shown[2])
        for text, name in zip(shown[1:], names, strict=True):
            self.assertRegex(name, f"^{re.escape(text).replace('…', '.+')}$")

    @parameterized.parameters(["neg_mean_absolute_error"], [f"my_own_measure_{number}" for number in range(5)])
    def test_the_legend_of_the_plot_of_scores_is_within_the_picture_beside_long_labels(self, *metrics):
        scores = {"pearson": 65.9, **dict.fromkeys(metrics, -0.9)}
        names = ["a_model_with_a_long_name", "another_model_with_a_long_name"]
        runs = [bare_run("mini", {"prices": scores}, settings={"model_name_or_path": name}) for name in names]
        figure = reported(*runs).figures["scores"]
        figure.savefig(io.BytesIO())
        (legend,) = [text for text in figure.texts if "not shown" in text.get_text()]
        self.assertContainsSubset(metrics, legend.get_text().replace(",", "").split())
        place = legend.get_window_extent()
        self.assertBetween(place.x0, 0, place.x1)
        self.assertBetween(place.x1, place.x0, figure.bbox.width)

    def test_numbers_have_neither_majority_nor_matrix(self):
        data = reported(make_run(folder() / "a", "similarity")).data
        self.assertEqual((data["runs"][0]["baselines"], data["confusions"]), ({"similarity": None}, []))
        self.assertEqual(data["examples"][0]["total"], 40)

    def test_verdicts_are_counted_over_all_and_few_are_shown(self):
        run = make_run(folder() / "a", "sentiment", wrong=0.2, invalid=0.1)
        (part,) = reported(run, max_examples=10).data["examples"]
        self.assertEqual((part["total"], part["shown"], sum(part["verdicts"].values())), (40, 10, 40))
        self.assertLen(part["examples"], 10)
        scores = json.loads((run / "results.json").read_text())["tasks"]["sentiment"]
        for verdict, metric in (("right", "accuracy"), ("invalid", "invalid_rate")):
            self.assertAlmostEqual(100 * part["verdicts"][verdict] / 40, scores[metric])
        self.assertEqual(part["examples"][0]["verdict"], "invalid")

    @parameterized.parameters((0, [0, 0]), (3, [3, 3]), (12, [10, 10]), (40, [20, 20]))
    @pytest.mark.quick_cases(2)
    def test_each_run_has_its_share_of_the_examples_or_ten_and_none_if_there_are_to_be_none(
        self, max_examples, expected
    ):
        """Without examples no text of a row is in the report."""
        runs = [make_run(folder() / name, "sentiment", wrong=0.3, invalid=0.1) for name in "ab"]
        report = reported(*runs, max_examples=max_examples)
        parts = report.data["examples"]
        self.assertEqual([len(part["examples"]) for part in parts], expected)
        self.assertEqual([part["total"] for part in parts], [40, 40])
        texts = [row["sentence"] for row in run_rows(runs[0])]
        shown_texts = [text for text in texts if text in report.markdown + report.html + json.dumps(report.data)]
        self.assertEqual(bool(shown_texts), max_examples > 0)


def run_rows(run) -> list[dict]:
    """The rows that a made run was scored on."""
    data_dir = json.loads((run / "manifest.json").read_text())["settings"]["data_dir"]
    return read_rows(Path(data_dir) / "mini" / "sentiment" / "validation.jsonl")


def bare_run(benchmark: str, tasks: dict, data=None, settings=None, **manifest) -> Path:
    """A finished run with scores alone."""
    settings = {"benchmark": benchmark, **(settings or {})}
    content = {"run_id": "4f2a", "settings": settings, "data": data or {}, "marks": {}, **manifest}
    content |= {"training": {"train_runtime": 3.0}}
    return written(folder() / "run", content, "", None, tasks)


class SeedsTest(parameterized.TestCase):
    def test_runs_that_differ_in_the_seed_alone_are_one_setting(self):
        place, settings = folder(), {
            "a": {"seed": 1, "output_dir": "x"},
            "b": {"seed": 2, "output_dir": "y", "report_to": ["wandb"]},
            "c": {"seed": 1, "learning_rate": 1e-4},
            "d": {"seed": 3, "name": "entailment"},
        }  # fmt: skip
        runs = [make_run(place / name, **{"name": "sentiment", **changes}) for name, changes in settings.items()]
        shown = reported(*runs).data["settings"]
        self.assertEqual([setting["runs"] for setting in shown], [["a", "b", "d"], ["c"]])
        self.assertEqual([setting["label"] for setting in shown], ["learning_rate 0.001", "learning_rate 0.0001"])

    @parameterized.parameters(
        ([{}, {"odd": False}, {"odd": True}], [["0", "1"], ["2"]]),
        ([{"odd": 0.0}, {}, {"odd": 0.5}], [["0", "1"], ["2"]]),
        ([{"odd": 0.0}, {"odd": None}, {}], [["0"], ["1", "2"]]),
    )
    def test_a_flag_that_one_version_does_not_have_is_off_there(self, settings, expected):
        """So seeds of one setting that were made with two versions are seeds of one setting."""
        place = folder()
        runs = [make_run(place / str(seed), "sentiment", seed=seed, **changes) for seed, changes in enumerate(settings)]
        self.assertEqual([setting["runs"] for setting in reported(*runs).data["settings"]], expected)

    def test_checkpoints_at_the_evaluations_are_no_setting_of_their_own(self):
        """An earlier version wrote `save_steps` 500 in the manifest, and saved at the evaluations all the same."""
        place = folder()
        flags = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 50}
        runs = [make_run(place / str(steps), "sentiment", seed=steps, save_steps=steps, **flags) for steps in (50, 500)]
        self.assertEqual([setting["runs"] for setting in reported(*runs).data["settings"]], [["50", "500"]])

    @parameterized.parameters(
        ([(150, 3.0), (-1, 15.0)], ["max_steps 150", "num_train_epochs 15"], [[0], [1]]),
        ([(-1, 3.0), (-1, 15.0)], ["num_train_epochs 3", "num_train_epochs 15"], [[0], [1]]),
        ([(150, 3.0), (150, 15.0)], [""], [[0, 1]]),
    )
    def test_a_length_that_another_one_replaces_is_no_setting(self, lengths, labels, seeds):
        """`--max_steps` replaces `--num_train_epochs`."""
        place = folder()
        runs = [
            make_run(place / str(seed), "sentiment", seed=seed, max_steps=max_steps, num_train_epochs=epochs)
            for seed, (max_steps, epochs) in enumerate(lengths)
        ]
        shown = reported(*runs).data["settings"]
        self.assertEqual([setting["label"] for setting in shown], labels)
        self.assertEqual([[int(name) for name in setting["runs"]] for setting in shown], seeds)

    def test_a_setting_is_called_by_three_of_its_settings_that_differ_those_of_interest_first(self):
        """Those that would be called alike have their runs' names; a run that pre-trains differs by no flag of others."""
        both = {"max_source_length": 512, "odd_a": 1}
        settings = [
            {**both, "odd_b": "x" * 30 + "y" * 20, "odd_c": None, "learning_rate": 0.01},
            {**both, "odd_b": "z", "odd_c": 1, "odd_d": 1, "learning_rate": 0.001},
            {**both, "odd_b": "z", "odd_c": 1, "odd_d": "2 ", "learning_rate": 0.001},
            {"odd_a": 1},
        ]
        runs = [
            bare_run("mini", {"sentiment": {"accuracy": 70.0}}, settings=part).rename(folder() / f"run{number}")
            for number, part in enumerate(settings)
        ]
        first = f"learning_rate 0.01, odd_b ...{'x' * 17}{'y' * 20}, odd_c unset, 1 more"
        alike = "learning_rate 0.001, odd_b z, odd_c 1, odd_d"
        expected = [(first, "odd_d unset"), ("run1", f"{alike} 1"), ("run2", f"{alike} '2 '")]
        names = [first, "run1", "run2", "pre-training"]
        for shown, labels in ((runs, names), (runs[2:], ["as given", "pre-training"])):
            report = reported(*shown)
            self.assertEqual([setting["label"] for setting in report.data["settings"]], labels)
            left_out = report.page.tables.get("What the names of settings leave out", [])
            self.assertEqual([(row["Setting"], row["And"]) for row in left_out], expected if shown == runs else [])

    def test_what_files_say_is_no_setting_of_a_report(self):
        """Two tasks of one task file have a hash each, and runs of earlier versions have none."""
        contents = ({"file_contents": {"task_file": "a"}}, {"file_contents": {"task_file": "b"}}, {})
        scores = {"sentiment": {"accuracy": 70.0}}
        runs = [bare_run("mini", scores, settings={"seed": i, **part}) for i, part in enumerate(contents)]
        self.assertLen(reported(*runs).data["settings"], 1)

    def test_evaluations_are_called_by_what_differs_between_them_and_not_by_settings_of_training(self):
        trained = {"max_source_length": 512, "learning_rate": 0.015, "optimizer": "adafactor", "eval_method": "score"}
        defaults = {**trained, "learning_rate": 5e-4, "optimizer": None, "eval_only": True, "update_size": 16}
        first, second = "runs/departments/of/the/shop", "runs/departments/of/the/market"
        settings = {
            "trained": trained,
            "first": {**defaults, "model_name_or_path": first},
            "second": {**defaults, "model_name_or_path": second},
            "written": {**defaults, "model_name_or_path": second, "eval_method": "generate"},
            "rate": {**defaults, "model_name_or_path": second, "learning_rate": 0.01, "update_size": 8},
        }
        runs = [
            bare_run("own", {"final_test": {"accuracy": 70.0}}, settings=part).rename(folder() / name)
            for name, part in settings.items()
        ]
        report = reported(*runs)
        written_answers = f"model_name_or_path {second}, eval_method generate"
        expected = ["as given", f"model_name_or_path {first}, eval_method score", "second", written_answers, "rate"]
        self.assertEqual([setting["label"] for setting in report.data["settings"]], expected)
        labels = [f"final_test accuracy ({name})" for name in settings]
        axes = report.figures["scores"].axes[0]
        self.assertEqual([label.get_text() for label in axes.get_yticklabels()], labels)

    def test_evaluations_are_called_by_the_file_whose_rows_they_score(self):
        evaluation = {"max_source_length": 512, "eval_only": True}
        runs = [
            bare_run("own", {name: {"accuracy": 70.0}}, settings={**evaluation, "train_file": f"{name}.csv"})
            for name in ("first", "second")
        ]
        runs = [run.rename(folder() / name) for run, name in zip(runs, "ab", strict=True)]
        labels = [setting["label"] for setting in reported(*runs).data["settings"]]
        self.assertEqual(labels, ["train_file first.csv", "train_file second.csv"])

    def test_a_score_that_one_seed_has_not_is_no_mean_and_one_that_only_some_log_is_over_these(self):
        scores = [{"accuracy": 60.0, "f1": 50.0}, {"accuracy": 64.0, "f1": None}, {"accuracy": 71.0, "bleu": 9.0}]
        runs = [
            bare_run("mini", {"sentiment": part}, settings={"seed": seed}).rename(folder() / f"s{seed}")
            for seed, part in enumerate(scores)
        ]
        entries = {entry["metric"]: entry for entry in reported(*runs).data["scores"]}
        of = lambda metric: [entries[metric][name] for name in ("n", "mean", "std", "values")]
        values = {f"s{seed}": part["accuracy"] for seed, part in enumerate(scores)}
        self.assertEqual(of("accuracy"), [3, 65.0, np.std([60, 64, 71], ddof=1), values])
        interval = entries["accuracy"]["interval"]
        self.assertEqual((interval["low"], interval["high"], interval["over"]), (60.0, 71.0, "seeds"))
        self.assertEqual(of("f1"), [2, None, None, {"s0": 50.0, "s1": None}])
        self.assertIsNone(entries["f1"]["interval"])
        self.assertEqual(of("bleu"), [1, 9.0, None, {"s2": 9.0}])


# Table 14 of arXiv:1910.10683: averages on the leaderboards' test sets, GLUE's with WNLI.
SIZES = ("small", "base", "large", "3B", "11B")
GLUE_AVERAGES = (77.4, 82.7, 86.4, 88.5, 90.3)
SUPER_GLUE_AVERAGES = (63.3, 76.2, 82.3, 86.4, 88.9)
GLUE_METRICS = {
    "cola": ["matthews_correlation"], "sst2": ["accuracy"], "mrpc": ["f1", "accuracy"],
    "stsb": ["pearson", "spearman"], "qqp": ["f1", "accuracy"], "mnli_matched": ["accuracy"],
    "mnli_mismatched": ["accuracy"], "qnli": ["accuracy"], "rte": ["accuracy"], "wnli": ["accuracy"],
}  # fmt: skip
SUPER_GLUE_METRICS = {
    "boolq": ["accuracy"], "cb": ["mean_3class_f1", "accuracy"], "copa": ["accuracy"],
    "multirc": ["f1", "exact_match"], "record": ["f1", "exact_match"], "rte": ["accuracy"], "wic": ["accuracy"],
    "wsc.fixed": ["accuracy"],
}  # fmt: skip


def published(run: Path, size: str | None) -> tuple[dict, dict]:
    """`({(task, metric): the published score}, {suite: the published average})` that a report shows beside a run's."""
    data = reported(run, **({"size": size} if size else {})).data
    scores = {(entry["task"], entry["metric"]): entry["published"] for entry in data["scores"]}
    return scores, {entry["suite"]: entry["published"] for entry in data["averages"]}


class PublishedTest(parameterized.TestCase):
    def test_scores(self):
        for *place, expected in (
            ("glue", "mrpc", "f1", "base", 90.7),
            ("glue", "mnli_mismatched", "accuracy", "11B", 91.9),
            ("super_glue", "wsc.fixed", "accuracy", "3B", 90.4),
            ("glue", "mrpc", "f1", None, None),
            ("mini", "sentiment", "accuracy", "base", None),
        ):
            benchmark, task, metric, size = place
            scores, _ = published(bare_run(benchmark, {task: {metric: 70.0}}), size)
            self.assertEqual(scores[task, metric], expected, place)

    @parameterized.parameters(*enumerate(SIZES))
    @pytest.mark.quick_cases(1)
    def test_the_scores_give_the_printed_averages(self, at, size):
        for benchmark, metrics, average in (
            ("glue", GLUE_METRICS, GLUE_AVERAGES[at]),
            ("super_glue", SUPER_GLUE_METRICS, SUPER_GLUE_AVERAGES[at]),
        ):
            run = bare_run(benchmark, {task: dict.fromkeys(names, 70.0) for task, names in metrics.items()})
            scores, averages = published(run, size)
            means = {task: np.mean([scores[task, name] for name in names]) for task, names in metrics.items()}
            if benchmark == "glue":
                means["mnli"] = (means.pop("mnli_matched") + means.pop("mnli_mismatched")) / 2
            # The printed average of the largest on SuperGLUE is not that of the printed scores.
            off = 0.4 if (benchmark, size) == ("super_glue", "11B") else 0.06
            self.assertAlmostEqual(np.mean(list(means.values())), average, delta=off)
            if benchmark == "glue":
                del means["wnli"]
                self.assertAlmostEqual(np.mean(list(means.values())), averages["glue"], delta=0.006)


def json_rows(*runs) -> list[dict]:
    return [json.loads(line) for line in cli_output("report", *runs, "--json").splitlines()]


class RunTablesTest(parameterized.TestCase):
    def test_a_row_has_the_scores_and_the_evaluated_rows(self):
        data = {"rte.train": {"used": 9, "kept_for_selection": 0}, "rte.validation": {"used": 277}}
        halves = {f"mnli.validation_{half}": {"used": n} for n, half in enumerate(("matched", "mismatched"), 5)}
        for tasks, of_task, expected in (
            ({"mnli_mismatched": {}}, halves, 6),
            ({"wsc.fixed": {}}, {"wsc.validation": {"used": 1}, "wsc.fixed.validation": {"used": 2}}, 2),
            ({"rte.test": {}}, {**data, "rte.test": {"used": 3}}, 3),
        ):
            (row,) = json_rows(bare_run("glue", tasks, of_task))
            self.assertEqual(row["n"], expected)
        run = bare_run("glue", {"rte": {"accuracy": 70.0, "invalid_rate": 1.0}}, data)
        (row,) = json_rows(run)
        self.assertEqual((row["task"], row["n"], row["metrics"]), ("rte", 277, {"accuracy": 70.0}))
        self.assertEqual((row["invalid_rate"], row["train_seconds"]), (1.0, 3.0))
        ((shown,),) = terminal_tables(cli_output("report", run, "--format", "none"))
        expected = {"task": "glue/rte", "n": "277", "metrics": "accuracy 70.00", "invalid %": "1.00", "train s": "3"}
        self.assertEqual(shown, {**expected, "notes": "", "run": str(run)})
        (row,) = json_rows(bare_run("mini", {"reviews": {"accuracy": 70.0}}, trained_on=["own", "reviews"]))
        self.assertEqual((row["benchmark"], row["task"]), ("own", "reviews"))

    def test_every_cell_is_one_line_where_no_terminal_is(self):
        scores = {"neg_mean_absolute_error": -0.9, "pearson": 65.94, "spearman": 63.81, "my_own_long_measure": 1.25}
        run = bare_run(
            "mini", {"reviews_of_the_whole_autumn": scores}, marks={"reviews_of_the_whole_autumn": ["x" * 90]}
        )
        (line,) = [line for line in cli_output("report", run, "--format", "none").splitlines() if "pearson" in line]
        metrics = "neg_mean_absolute_error -0.9  pearson 65.94  spearman 63.81  my_own_long_measure 1.25"
        for cell in ("mini/reviews_of_the_whole_autumn", metrics, "x" * 90, str(run)):
            self.assertIn(cell, line)

    def test_a_notebook_s_table_is_as_wide_as_the_notebook_and_its_libraries_make_no_notebook(self):
        run = bare_run("mini", {"reviews": {"accuracy": 70.0}}, marks={"reviews": ["x" * 200]})
        shell = mock.Mock(config={"IPKernelApp": {}})  # as in Jupyter, Colab and Spyder
        with mock.patch.dict(sys.modules, ipykernel=mock.Mock(), jupyter_client=mock.Mock()):
            for shell_here, is_whole in ((None, True), (mock.Mock(config={}), True), (shell, False)):
                ipython = mock.Mock(get_ipython=lambda shell=shell_here: shell)
                with self.subTest(is_whole), mock.patch.dict(sys.modules, IPython=ipython):
                    self.assertEqual("x" * 200 in cli_output("report", run, "--format", "none"), is_whole)

    @pytest.mark.slow
    def test_labels_that_were_scored_are_marked_in_every_table(self):
        run = make_run(folder() / "s1", "sentiment")
        manifest = json.loads((run / "manifest.json").read_text())
        for method, mark in (("score", "scored labels, "), ("generate", ""), ("classify", "")):
            scored = {"sentiment": {"split": "validation", "method": method}}
            (run / "manifest.json").write_text(json.dumps({**manifest, "scored": scored}))
            ((row,),) = terminal_tables(cli_output("report", run, "--format", "none"))
            self.assertEqual(row["notes"], f"{mark}subset")
            (row,) = reported(run).page.tables["In points"]
            self.assertEqual(row["Notes"], f"{mark}subset")

    def test_runs_that_cover_a_benchmark_have_its_average(self):
        parts = {"sentiment": {"accuracy": 90.0}, "entailment": {"accuracy": 60.0}}
        runs = [bare_run("mini", {name: scores}) for name, scores in parts.items()]
        self.assertEmpty([row for row in json_rows(*runs) if "average" in row])
        runs.append(bare_run("mini", {"similarity": {"pearson": 70.0, "spearman": 50.0}}))
        self.assertEqual(json_rows(*runs)[-1]["benchmark"], "mini")
        self.assertAlmostEqual(json_rows(*runs)[-1]["average"], (90 + 60 + 60) / 3)
        tasks = {name: {"accuracy": 80.0} for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "qnli", "rte")}
        tasks |= {"mnli_matched": {"accuracy": 60.0}, "mnli_mismatched": {"accuracy": 100.0}}
        self.assertAlmostEqual(json_rows(bare_run("glue", tasks))[-1]["average"], 80.0)
        for half in ("mnli_matched", "mnli_mismatched"):
            tasks[half]["a_metric_of_the_user"] = 7.0
        self.assertAlmostEqual(json_rows(bare_run("glue", tasks))[-1]["average"], 80.0)

    @parameterized.parameters(([1, 1, 1],), ([1, 2, 3],))
    def test_runs_of_any_seeds_that_cover_a_benchmark_have_its_average_in_the_report_too(self, seeds):
        scores = {"sentiment": {"accuracy": 90.0}, "entailment": {"accuracy": 60.0}, "similarity": {"pearson": 30.0}}
        runs = [
            bare_run("mini", {name: scores[name]}, settings={"dataset_name": name, "seed": seed})
            for name, seed in zip(scores, seeds, strict=True)
        ]
        (average,) = reported(*runs).data["averages"]
        self.assertEqual((average["suite"], average["n"]), ("mini", 1))
        self.assertAlmostEqual(average["mean"], (90 + 60 + 30) / 3)
        self.assertAlmostEqual(json_rows(*runs)[-1]["average"], average["mean"])
        others = [
            bare_run("glue", {"rte": {"accuracy": 60.0}}, settings={"dataset_name": "rte", "seed": seed})
            for seed in (1, 2)
        ]
        averages = reported(*runs, *others).data["averages"]
        self.assertEqual([entry["mean"] for entry in averages if entry["suite"] == "mini"], [average["mean"]])
        again = bare_run("mini", {"sentiment": scores["sentiment"]}, settings={"dataset_name": "sentiment", "seed": 4})
        averages = reported(*runs, again).data["averages"]
        self.assertEqual([entry["n"] for entry in averages], [1] * (len(set(seeds)) == 1))

    def test_an_average_with_a_score_that_is_not_defined_is_null(self):
        """Answers that are all the same number have no correlation."""
        scores = {name: {"accuracy": 60.0} for name in ("sentiment", "entailment")}
        run = bare_run("mini", {**scores, "similarity": {"pearson": None, "spearman": None}})
        self.assertEqual(json_rows(run)[-1], {"benchmark": "mini", "average": None})

    def test_where_runs_have_the_same_tasks_an_average_is_of_one_run(self):
        parts = {"entailment": {"accuracy": 60.0}, "similarity": {"pearson": 70.0, "spearman": 50.0}}
        runs = [bare_run("mini", {"sentiment": {"accuracy": score}, **parts}) for score in (90.0, 30.0)]
        expected = {str(runs[0]): (90 + 60 + 60) / 3, str(runs[1]): (30 + 60 + 60) / 3}
        averages = [row for row in json_rows(*runs) if "average" in row]
        self.assertEqual({row["run"]: row["average"] for row in averages}, expected)
        printed = cli_output("report", *runs, "--format", "none").splitlines()
        lines = [f"average mini, {run}: {average:.2f}" for run, average in expected.items()]
        self.assertEqual([line for line in printed if line.startswith("average")], lines)
        with_a_task_again = [bare_run("mini", part) for part in ({"sentiment": {"accuracy": 10.0}}, parts)]
        another = bare_run("mini", {"sentiment": {"accuracy": 10.0}})
        self.assertEmpty([row for row in json_rows(*with_a_task_again, another) if "average" in row])
        lone_rows = json_rows(*with_a_task_again, runs[0])
        self.assertEqual([row["run"] for row in lone_rows if "average" in row], [str(runs[0])])

    def test_tasks_of_one_name_in_two_benchmarks_are_told_apart(self):
        rates, accuracies = {"glue": 2.0, "super_glue": 40.0}, {"glue": 70.0, "super_glue": 60.0}
        runs = []
        for name, rate in rates.items():
            scores = {"accuracy": accuracies[name], "invalid_rate": rate}
            run = bare_run(name, {"rte": scores}, settings={"dataset_name": "rte", "seed": 1})
            write_rows(run / "metrics.jsonl", curve_lines(1, {"accuracy": accuracies[name]}))
            runs.append(run)
        report = reported(*runs)
        table = report.page.tables["In points"]
        self.assertEqual(
            [(row["Task"], row["Invalid %"]) for row in table], [("glue/rte", "2.0"), ("super_glue/rte", "40.0")]
        )
        self.assertContainsSubset({"glue/rte accuracy", "super_glue/rte accuracy"}, report.page.headline)
        labels = [label.get_text() for label in report.figures["scores"].axes[0].get_yticklabels()]
        self.assertEqual(labels, ["glue/rte accuracy", "super_glue/rte accuracy"])
        for name, accuracy in accuracies.items():
            (axes,) = report.figures[f"curve-{name}-rte-accuracy"].axes
            self.assertEqual(axes.get_title(), f"{name}/rte: accuracy")
            self.assertEqual([line.get_ydata()[-1] for line in axes.lines], [accuracy])
        self.assertLen([name for name in report.figures if name.startswith("curve-")], 4)


def warnings_of_a_run(flags: dict) -> list[str]:
    """The lines of warnings that a fine-tuning with these flags logs."""
    log = io.StringIO()
    with contextlib.redirect_stderr(log), contextlib.redirect_stdout(io.StringIO()):
        fine_tune_t5.main([f"--{name}={value}" for name, value in flags.items()])
    return [line for line in log.getvalue().splitlines() if line.startswith("WARNING")]


class HintsTest(parameterized.TestCase):
    """A model with random weights, whose answers are no label."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        place = Path(tempfile.mkdtemp())
        rows = [{"input": f"It was {word} {i}.", "output": word} for i in range(12) for word in ("bad", "good")]
        idx = {"day": datetime.date(2026, 1, 2), "hour": float("nan")}
        table = pandas.DataFrame([{**row, "idx": idx} for row in rows])
        tables = {"train-1": table[:12], "train-2": table[12:], "dev": table}
        cls.paths = [place / f"{name}.parquet" for name in tables]
        for path, part in zip(cls.paths, tables.values(), strict=True):
            part.to_parquet(path)
        cls.flags = {
            "data_format": "parquet", "train_dir": place, "dataset_name": "reviews", "labels": "bad,good", "max_steps": 2, "use_cpu": True,
            "config_overrides": TINY_T5, "from_scratch": True, "per_device_train_batch_size": 8,
            "output_dir": folder() / "run", "share_rows": True,
        }  # fmt: skip
        cls.warnings = warnings_of_a_run(cls.flags)

    @pytest.mark.slow
    def test_a_hint_is_given_where_hardly_any_answer_is_a_label(self):
        (predictions,) = self.flags["output_dir"].glob("predictions/*.jsonl")
        (hint,) = [line for line in self.warnings if str(predictions) in line]
        answers = [line["prediction"].strip() for line in read_rows(predictions)]
        most = max(answers, key=answers.count)
        for fact in ("100% of the answers", "bad, good", repr(most[:30]), f"({answers.count(most)} times)", "(2 here)"):
            self.assertIn(fact, hint)
        self.assertIn("--eval_method score", hint, "which chooses among labels")
        warnings = warnings_of_a_run({**self.flags, "eval_method": "score", "output_dir": folder() / "run"})
        self.assertEmpty([line for line in warnings if "of the answers" in line])

    def test_an_idx_that_json_does_not_have_is_text_or_null_in_predictions_and_shared_rows(self):
        run = self.flags["output_dir"]
        for folder_of_lines in ("predictions", "rows"):
            (path,) = run.glob(f"{folder_of_lines}/*.jsonl")
            self.assertEqual(read_rows(path)[0]["idx"], {"day": "2026-01-02", "hour": None})
        self.assertNotIn("changed", cli_output("verify", run, "--scores_only"))

    def test_a_file_that_has_changed_since_the_run_is_named(self):
        """One of several files of a split, and the only one of another split."""
        self.assertEmpty([line for line in warnings_of_a_run(self.flags) if "changed since" in line])
        first, *others = self.paths
        for path in others:
            pandas.read_parquet(path)[1:].to_parquet(path)
        (warning,) = [line for line in warnings_of_a_run(self.flags) if "changed since" in line]
        self.assertContainsSubset([str(path) for path in others], warning.split())
        self.assertNotIn(str(first), warning)
