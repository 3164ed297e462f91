"""One law over all that shows numbers: whatever a table, page, card, plot, tracker or line of the terminal shows is
what was put into the run, by name, step and value; nothing is missing, and nothing is there besides.

A run is made from numbers of which no two are equal and none is round; each rendering is read back by a reader of its
own. A new rendering of results is one reader in RESULT_READERS; a new plot (PLOTS) or tracker (TRACKERS) faces the
law by itself.
"""

import contextlib
import functools
import io
import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.stats
from absl.testing import parameterized
from huggingface_hub import ModelCard
from report_runs import (
    LAST_STEP,
    MIXTURE_FLAGS,
    ROWS_OF_TASK,
    STEPS_SCORED,
    MadeRun,
    ending_of,
    make_mixture,
    reported,
    rows_folder,
)
from shown_tables import boxed_tables, is_rounded, markdown_tables, terminal_tables
from support import folder
from tracker_readers import tensorboard_files

import fine_tune_t5
from t5suite import FineTuner
from t5suite.testing import cli_output, read_rows, tiny_run

SCORES, EVERY_RUN = "In points", "Every run"


def printed(call, *arguments) -> str:
    """What a call prints on standard output."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        call(*arguments)
    return out.getvalue()


class AllReports:
    """Runs, and all that `t5suite report` makes of them: its table, JSON lines, page, Markdown, data and figures."""

    def __init__(self, *made: MadeRun, ending: str = "", more=()):
        self.made, self.ending = made, ending
        directories = [*(run.directory for run in made), *more]
        self.table = cli_output("report", *directories, "--format", "none")
        self.lines = list(map(json.loads, cli_output("report", *directories, "--json").splitlines()))
        report = reported(*directories, size="small")
        self.page, self.markdown, self.data, self.figures = report.page, report.markdown, report.data, report.figures


@functools.cache
def one_run() -> AllReports:
    made = make_mixture(folder() / "first", seed=1)
    return AllReports(made, ending=ending_of(made))


@functools.cache
def two_runs() -> AllReports:
    """Two seeds of one setting, and one of another learning rate."""
    place = folder()
    first = make_mixture(place / "s1", seed=1)
    second = make_mixture(place / "s2", seed=2, counts={"sentiment": (31, 1), "entailment": (19, 4)})
    other = make_mixture(place / "low", seed=1, counts={"sentiment": (14, 7)}, learning_rate=1e-4)
    return AllReports(first, second, other)


# ---------------------------------------------------------------------------------------------------------------------
# Results: what every table shows of a run


def parsed_scores(text: str) -> dict[str, str]:
    """'f1 70.10  accuracy 71.25' by name."""
    return dict(part.strip().rsplit(" ", 1) for part in text.split("  ") if part.strip())


def by_task(rows: list[dict[str, str]], metrics: str, rest: dict[str, str]) -> dict:
    """A table of a row a task; `rest` is which other columns are numbers, and what they are called here."""
    shown = {}
    for row in rows:
        task = row["task"].removeprefix("mini/")
        shown |= {(task, name): text for name, text in parsed_scores(row[metrics]).items()}
        shown |= {(task, name): row[heading] for heading, name in rest.items()}
    return shown


def average_lines(text: str) -> dict:
    lines = [line for line in text.splitlines() if line.startswith("average ")]
    return {("average", line.split(":")[0].removeprefix("average ")): line.split(": ")[1] for line in lines}


def read_ending(reports: AllReports) -> dict:
    scores, parts = terminal_tables(reports.ending)
    rest = {"n": "rows", "invalid %": "invalid_rate", "cut off %": "cut_off", "seconds": "seconds"}
    shown = by_task(scores, "metrics", rest) | average_lines(reports.ending)
    shown |= {(f"part {row['size']}", "accuracy"): row["accuracy"] for row in parts}
    return shown | {(f"part {row['size']}", "rows"): row["n"] for row in parts}


def read_report_table(reports: AllReports) -> dict:
    (rows,) = terminal_tables(reports.table)
    rest = {"n": "rows", "invalid %": "invalid_rate", "train s": "train_seconds"}
    return by_task(rows, "metrics", rest) | average_lines(reports.table)


def read_json_lines(reports: AllReports) -> dict:
    shown = {}
    for line in reports.lines:
        if "average" in line:
            shown["average", line["benchmark"]] = repr(line["average"])
            continue
        values = {**line["metrics"], "invalid_rate": line["invalid_rate"], "rows": line["n"]}
        values["train_seconds"] = line["train_seconds"]
        shown |= {(line["task"], name): repr(value) for name, value in values.items()}
    return shown


def score_rows(rows: list[dict[str, str]]) -> dict:
    shown = {}
    for row in rows:
        shown[row["Task"], row["Metric"]] = row["Mean"]
        shown[row["Task"], "invalid_rate"] = row["Invalid %"]
        shown[row["Task"], "rows"] = row["Rows"]
    return shown


def part_rows(rows: list[dict[str, str]]) -> dict:
    shown = {(f"part {row['size']}", "accuracy"): row["accuracy"] for row in rows}
    return shown | {(f"part {row['size']}", "rows"): row["Rows"] for row in rows}


def read_page(reports: AllReports) -> dict:
    parts = part_rows(reports.page.tables["sentiment by size, first"])
    averages = {name: text for name, text in reports.page.headline.items() if name.startswith("average")}
    averages = {("average", name.removeprefix("average ")): text for name, text in averages.items()}
    return score_rows(reports.page.tables[SCORES]) | parts | averages


def read_whole_numbers_of_page(reports: AllReports) -> dict:
    """What cells sort by, with all digits."""
    return score_rows(reports.page.values[SCORES]) | part_rows(reports.page.values["sentiment by size, first"])


def read_markdown(reports: AllReports) -> dict:
    tables = {tuple(rows[0]): rows for rows in markdown_tables(reports.markdown)}
    scores = next(rows for headings, rows in tables.items() if headings[0] == "Task")
    parts = next(rows for headings, rows in tables.items() if headings[0] == "size")
    heads = [line.strip("- ").split(": ") for line in reports.markdown.splitlines() if line.startswith("- average")]
    averages = {("average", name.removeprefix("average ")): text.strip("*") for name, text in heads}
    return score_rows(scores) | part_rows(parts) | averages


def read_data(reports: AllReports) -> dict:
    shown = {(entry["task"], entry["metric"]): repr(entry["mean"]) for entry in reports.data["scores"]}
    shown |= {(entry["task"], "rows"): repr(entry["rows"]) for entry in reports.data["scores"]}
    return shown | {("average", entry["suite"]): repr(entry["mean"]) for entry in reports.data["averages"]}


def read_results_file(reports: AllReports) -> dict:
    (run,) = reports.made
    content = json.loads((run.directory / "results.json").read_text())
    shown = {(task, name): repr(value) for task, of in content["tasks"].items() for name, value in of.items()}
    return shown | {("average", name): repr(value) for name, value in content["averages"].items()}


WHOLE = 9
# {rendering: (its reader, what it shows, how many decimals the scores have at least)}
RESULT_READERS = {
    "results.json": (read_results_file, "scores averages", WHOLE),
    "the table at a run's end": (read_ending, "scores averages rows cut_off seconds parts", 2),
    "the table of t5suite report": (read_report_table, "scores averages rows train_seconds", 2),
    "t5suite report --json": (read_json_lines, "scores averages rows train_seconds", WHOLE),
    "report.html": (read_page, "scores averages rows parts", 1),
    "the whole numbers in report.html": (read_whole_numbers_of_page, "scores rows parts", WHOLE),
    "report.md": (read_markdown, "scores averages rows parts", 1),
    "report.json": (read_data, "scores averages rows", WHOLE),
}


def results_of(run: MadeRun) -> dict[str, dict]:
    """Everything that may be shown of a run's results, by kind."""
    tasks, parts = run.tasks, run.groups["sentiment"]["size"]
    return {
        "scores": {(task, name): value for task, of in tasks.items() for name, value in of.items()},
        "averages": {("average", name): value for name, value in run.averages.items()},
        "rows": {(task, "rows"): ROWS_OF_TASK for task in tasks},
        "seconds": {(task, "seconds"): run.scored[task][1] for task in tasks},
        "cut_off": {(task, "cut_off"): run.scored[task][2] for task in tasks},
        "train_seconds": {(task, "train_seconds"): 61.3678 for task in tasks},
        "parts": {(f"part {part}", {"n": "rows"}.get(name, name)): value
                  for part, of in parts.items() for name, value in of.items()},
    }  # fmt: skip


class ShownTest(parameterized.TestCase):
    def assert_shows(self, shown: dict, expected: dict, decimals=0, what=""):
        """The same names both ways, and every text is its value, rounded, to enough digits."""
        self.assertEqual(set(shown), set(expected), what)
        for name, text in shown.items():
            enough = decimals if isinstance(expected[name], float) and float(expected[name]) else 0
            if decimals == WHOLE:
                self.assertEqual(float(text), expected[name], f"{what} {name}")
            else:
                self.assertTrue(is_rounded(text, expected[name], enough), f"{what} {name}: {text}, {expected[name]}")


class ResultsTest(ShownTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        one_run(), two_runs()

    @parameterized.parameters(*RESULT_READERS)
    def test_every_score_is_that_of_the_run(self, name):
        reader, kinds, decimals = RESULT_READERS[name]
        expected = {}
        for kind in kinds.split():
            expected |= results_of(one_run().made[0])[kind]
        shown = reader(one_run())
        rough = {key for key in shown if key[1] in ("seconds", "train_seconds")}
        self.assert_shows({key: text for key, text in shown.items() if key not in rough},
                          {key: value for key, value in expected.items() if key not in rough}, decimals, name)  # fmt: skip
        self.assert_shows({key: shown[key] for key in rough},
                          {key: value for key, value in expected.items() if key[1] in ("seconds", "train_seconds")})  # fmt: skip

    def test_every_run_of_several_has_its_own_scores_and_seed(self):
        made = {run.directory.name: run for run in two_runs().made}
        expected = {(run, *key): value for run, of in made.items() for key, value in results_of(of)["scores"].items()}
        for rows in (two_runs().page.tables[EVERY_RUN], self.markdown_table("Run", "Score")):
            shown = {(row["Run"], row["Task"], row["Metric"]): row["Score"] for row in rows}
            shown |= {(row["Run"], row["Task"], "invalid_rate"): row["Invalid %"] for row in rows}
            self.assert_shows(shown, expected, 1)
            self.assertEqual({(row["Run"], row["Seed"]) for row in rows}, {("s1", "1"), ("s2", "2"), ("low", "1")})

    def markdown_table(self, *headings):
        tables = markdown_tables(two_runs().markdown)
        return next(rows for rows in tables if set(headings) <= set(rows[0]))

    def test_means_and_deviations_are_those_of_each_setting_s_seeds(self):
        first, second, other = (results_of(run)["scores"] for run in two_runs().made)
        low, high = "learning_rate 0.0001 (low)", "learning_rate 0.001 (s1 and 1 more)"
        setting = {high: [first, second], low: [other]}
        means = {(label, *key): statistics.fmean(run[key] for run in runs)
                 for label, runs in setting.items() for key in first}  # fmt: skip
        deviations = {(high, *key): abs(first[key] - second[key]) / 2**0.5
                      for key in first if key[1] != "invalid_rate"}  # fmt: skip
        for rows in (two_runs().page.tables[SCORES], self.markdown_table("Task", "Mean", "Invalid %")):
            shown = {(row["Setting"], row["Task"], row["Metric"]): row["Mean"] for row in rows}
            shown |= {(row["Setting"], row["Task"], "invalid_rate"): row["Invalid %"] for row in rows}
            self.assert_shows(shown, means, 1)
            shown = {(row["Setting"], row["Task"], row["Metric"]): row["SD"] for row in rows if row["SD"] != "–"}
            self.assert_shows(shown, deviations, 1)
            self.assertEqual([(row["Runs"], row["Rows"]) for row in rows], [("2", "37")] * 4 + [("1", "37")] * 4)

    def test_the_majority_is_the_share_of_the_most_frequent_label(self):
        shares = {}
        for task in ("sentiment", "entailment"):
            lines = (two_runs().made[0].directory / f"predictions/{task}.validation.jsonl").read_text().splitlines()
            targets = [json.loads(line)["target"] for line in lines]
            shares[task] = 100 * max(map(targets.count, targets)) / ROWS_OF_TASK
        for rows in (two_runs().page.tables[SCORES], self.markdown_table("Task", "Majority")):
            shown = {(row["Setting"], row["Task"]): row["Majority"] for row in rows if row["Majority"] != "–"}
            settings = {row["Setting"] for row in rows}
            expected = {(setting, task): share for setting in settings for task, share in shares.items()}
            self.assert_shows(shown, expected, 1)

    def test_every_interval_is_that_of_its_run_and_metric(self):
        """Of an accuracy, the binomial's; of a correlation, that of rows drawn in a plain loop."""
        rows = two_runs().page.tables[EVERY_RUN]
        shown = {(row["Run"], row["Task"], row["Metric"]): row["95 % interval over rows"] for row in rows}
        scores = {run.directory.name: run.tasks for run in two_runs().made}
        self.assertLen(shown, 12)
        for (run, task, metric), text in shown.items():
            low, high = map(float, text.split(" to "))
            if metric == "accuracy":
                ends = scipy.stats.binom.ppf([0.025, 0.975], ROWS_OF_TASK, scores[run][task]["accuracy"] / 100)
                off = np.abs(np.array([low, high]) * ROWS_OF_TASK / 100 - ends).sum()
                self.assertLess(off, 1.05, "a 90% interval is two rows narrower")
            else:
                middle = scores[run][task][metric]
                self.assertBetween(middle, low, high)
                expected = two_correlations(two_runs().made[0].directory)
                if run != "s2":
                    # A 90% interval is 16% narrower; Pearson's is twice as wide as Spearman's.
                    self.assertLess(abs(high - low - expected[metric]), 0.14 * expected[metric])

    def test_speed_is_the_median_of_what_was_logged(self):
        for rows in (two_runs().page.tables["Speed and memory"], self.markdown_table("Tokens/s")):
            shown = {
                (row["Run"], name): row[name] for row in rows for name in ("Tokens/s", "Seconds/update", "Updates")
            }
            expected = {}
            for run in two_runs().made:
                for heading, name in (("Tokens/s", "tokens_per_second"), ("Seconds/update", "seconds_per_step")):
                    values = [value for (key, _), value in run.logged.items() if key == f"train/{name}"]
                    expected[run.directory.name, heading] = statistics.median(values)
                expected[run.directory.name, "Updates"] = LAST_STEP
            self.assert_shows(shown, expected)


@functools.cache
def two_correlations(directory: Path) -> dict[str, float]:
    """Widths of 95% intervals of both correlations of a run, by rows drawn in NumPy."""
    lines = [json.loads(line) for line in (directory / "predictions/similarity.validation.jsonl").open()]
    predictions, targets = (np.array([float(line[name]) for line in lines]) for name in ("prediction", "target"))
    drawn = np.random.default_rng(3).integers(len(lines), size=(4000, len(lines)))
    widths = {}
    for name in ("pearson", "spearman"):
        sides = [side[drawn] if name == "pearson" else scipy.stats.rankdata(side[drawn], axis=1)
                 for side in (predictions, targets)]  # fmt: skip
        first, second = (side - side.mean(axis=1, keepdims=True) for side in sides)
        values = (first * second).sum(1) / np.sqrt((first**2).sum(1) * (second**2).sum(1))
        low, high = np.quantile(100 * values, [0.025, 0.975])
        widths[name] = high - low
    return widths


# ---------------------------------------------------------------------------------------------------------------------
# The card of a real run


@functools.cache
def trained_mixture() -> tuple[Path, Any]:
    """A run over the bundled tasks with two evaluations, and its picture of learning curves."""
    figures = []
    paint = lambda canvas, path: figures.append(canvas.figure) or Path(path).touch()
    flags = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": False}
    with mock.patch("matplotlib.backends.backend_agg.FigureCanvasAgg.print_png", paint):
        run = tiny_run(
            **{**MIXTURE_FLAGS, **flags}, data_dir=rows_folder(ROWS_OF_TASK), output_dir=str(folder() / "run")
        )
    (figure,) = figures
    return run.directory, figure


class CardTest(ShownTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory, cls.figure = trained_mixture()
        cls.axes = cls.figure.axes
        cls.text = (cls.directory / "README.md").read_text()
        cls.results = json.loads((cls.directory / "results.json").read_text())
        cls.manifest = json.loads((cls.directory / "manifest.json").read_text())
        tasks = cls.results["tasks"]
        cls.scores = {(task, name): value for task, of in tasks.items() for name, value in of.items()}

    @pytest.mark.slow
    def test_every_score_of_the_card_is_that_of_the_results(self):
        rows = markdown_tables(self.text)[0]
        shown = {(row["name"], row["metric"]): row["value"] for row in rows if row["metric"] != "average"}
        undefined = {key for key, value in self.scores.items() if value is None}
        self.assertEqual({key for key, text in shown.items() if text == "nan"}, undefined)
        numbers = {key: value for key, value in self.scores.items() if value is not None}
        self.assert_shows({key: text for key, text in shown.items() if text != "nan"}, numbers, 2)
        self.assertEqual({row["name"]: row["rows"] for row in rows if row["rows"]},
                         dict.fromkeys(self.results["tasks"], str(ROWS_OF_TASK)))  # fmt: skip
        self.assertEqual({row["name"] for row in rows if row["metric"] == "average"}, {"average mini"})

    def test_the_picture_and_the_card_have_the_run_s_title(self):
        title = "t5 from scratch (33K parameters) on mini/all"
        self.assertEqual(self.figure.get_suptitle(), title)
        self.assertIn(title, self.text)

    @pytest.mark.slow
    def test_every_task_of_the_card_has_its_note(self):
        run = tiny_run(dataset_name="sentiment,entailment", eval_method="score", max_steps=1, max_eval_samples=4)
        text = (run.directory / "README.md").read_text()
        for name in ("sentiment", "entailment"):
            self.assertRegex(text, rf"(?m)^\* {name}: subset, .*the likeliest of the given answers")

    def test_the_index_has_every_score_with_all_digits(self):
        entries = ModelCard(self.text).data.eval_results
        names = {"pearsonr": "pearson", "spearmanr": "spearman"}
        shown = {
            (entry.task_name, names.get(entry.metric_type, entry.metric_type)): entry.metric_value for entry in entries
        }
        self.assertEqual(shown, {key: value for key, value in self.scores.items() if value is not None})

    def test_other_numbers_are_those_of_the_manifest(self):
        _, data, settings, machine = markdown_tables(self.text)
        used = {split: part["used"] for split, part in self.manifest["data"].items()}
        self.assertEqual({row["split"]: int(row["used"]) for row in data}, used)
        settings = {row["setting"]: row["value"] for row in settings}
        shares = [part.rstrip("%").split() for part in settings["share of the examples"].split(", ")]
        rates = self.manifest["mixing_rates"]
        expected = {task: 100 * rate / sum(rates.values()) for task, rate in rates.items()}
        self.assert_shows(dict(shares), expected, 1)
        self.assertEqual(settings["updates made"], "4")
        machine = {row["0"]: row["1"] for row in machine}
        scoring = sum(of["seconds"] for of in self.manifest["scored"].values())
        self.assertGreater(scoring, 0.0)
        hardware = self.manifest["hardware"]
        self.assertEqual(machine["processor"], f"{os.cpu_count()} cores, {hardware['platform']}")
        self.assertEqual(machine["accelerators"], ", ".join(hardware["gpus"]) or "none")
        self.assertAlmostEqual(float(machine["seconds of scoring"]), scoring, delta=0.06)
        seconds = self.manifest["training"]["train_runtime"]
        self.assert_shows({0: machine["seconds of training"]}, {0: seconds}, 1)
        parameters = self.manifest["model"]["parameters"]
        self.assertIn(f"{parameters:,} parameters", self.text)

    def test_lines_beside_the_card_are_the_logged_points(self):
        lines = read_rows(self.directory / "metrics.jsonl")
        points = {}
        for line in lines:
            for name, value in line.items():
                if "/" in name and value is not None:
                    points.setdefault(name, []).append((line["step"], value))
        shown = {(axes.get_ylabel(), line.get_label()): list(map(tuple, line.get_xydata().tolist()))
                 for axes in self.axes for line in axes.lines}  # fmt: skip
        scores = [f"{task} {name}" for task, name in self.scores if name != "invalid_rate"]
        expected = {("points", label): points[f"eval/{label.replace(' ', '/')}"]
                    for label in scores if f"eval/{label.replace(' ', '/')}" in points}  # fmt: skip
        expected["points", "average"] = points.get("eval/average")
        expected |= {("loss", f"{task} held-out loss"): points[f"eval/{task}/loss"]
                     for task in self.results["tasks"]}  # fmt: skip
        expected["loss", "training loss"] = points["train/loss"]
        self.assertLen(points["train/loss"], 4)
        self.assertEqual(shown, {key: line for key, line in expected.items() if line})


# ---------------------------------------------------------------------------------------------------------------------
# Curves: what was logged, by step


def points_of(run: MadeRun, name: str) -> list[tuple[float, float]]:
    """What a run logged under a name, by step."""
    return [(step, value) for (logged, step), value in run.logged.items() if logged == name]


def lines_of(axes) -> list[list[tuple[float, float]]]:
    return [list(map(tuple, line.get_xydata().tolist())) for line in axes.lines if len(line.get_xdata())]


def mean_points(*runs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(points[0][0], sum(value for _, value in points) / len(points)) for points in zip(*runs, strict=True)]


# What has a curve: everything that is a loss or a score, and the answers that are no label, where there are any.
CURVES = {
    "sentiment: accuracy": "eval/sentiment/accuracy", "entailment: accuracy": "eval/entailment/accuracy",
    "similarity: pearson": "eval/similarity/pearson", "similarity: spearman": "eval/similarity/spearman",
    "sentiment: invalid answers": "eval/sentiment/invalid_rate", "sentiment: held-out loss": "eval/sentiment/loss",
    "entailment: invalid answers": "eval/entailment/invalid_rate", "all: training loss": "train/loss",
    "similarity: invalid answers": "eval/similarity/invalid_rate",
}  # fmt: skip


class CurvesTest(ShownTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        two_runs()

    def test_lines_in_a_report_are_the_logged_points_and_the_seeds_mean(self):
        first, second, other = two_runs().made
        curves = [figure for picture, figure in two_runs().figures.items() if picture.startswith("curve-")]
        panels = {figure.axes[0].get_title(): figure.axes for figure in curves}
        self.assertEqual(set(panels), set(CURVES))
        for title, name in CURVES.items():
            (axes,) = panels[title]
            points = [points_of(run, name) for run in (first, second, other)]
            self.assertEqual(lines_of(axes), [*points, mean_points(*points[:2])], title)
            self.assertEqual(axes.get_xlabel(), "update")
            unit = "%" if name.endswith("rate") else "loss" if name.endswith("loss") else "points"
            self.assertEqual(axes.get_ylabel(), unit)

    def test_a_setting_has_one_colour_and_dash_in_every_plot(self):
        """The lines are two seeds of a setting, a run of another setting, and the seeds' mean."""
        (score_axes,) = two_runs().figures["scores"].axes
        score_colours = {line.get_color() for line in score_axes.lines if line.get_marker() == "o"}
        for picture, figure in two_runs().figures.items():
            if not picture.startswith("curve-"):
                continue
            first, second, other, mean = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
            self.assertEqual([first, second], [mean, mean], picture)
            self.assertNotEqual(other[0], mean[0], picture)
            self.assertNotEqual(other[1], mean[1], picture)
            self.assertEqual({other[0], mean[0]}, score_colours, picture)

    def test_a_mean_and_a_lone_seed_are_thicker_than_the_seeds_of_a_mean(self):
        for picture, figure in two_runs().figures.items():
            if picture.startswith("curve-"):
                first, second, lone, mean = [line.get_linewidth() for line in figure.axes[0].lines]
                self.assertEqual((first, lone), (second, mean), picture)
                self.assertGreater(mean, 2 * first, picture)

    def test_a_report_s_data_have_every_logged_point(self):
        for run, data in zip(two_runs().made, two_runs().data["runs"], strict=True):
            shown = {(name, step): value for name, points in data["curves"].items() for step, value in points}
            logged = {key: value for key, value in run.logged.items()}
            self.assertEqual(shown, logged)

    def test_scores_by_task_stand_at_their_means_with_their_own_intervals(self):
        (axes,) = two_runs().figures["scores"].axes
        rows = two_runs().page.values[SCORES]
        texts = two_runs().page.tables[SCORES]
        labels = [text.get_text() for text in axes.get_yticklabels()]
        expected = []
        for row in rows:
            runs = row["Setting"].removeprefix("learning_rate 0.001 ").removeprefix("learning_rate 0.0001 ")
            expected.append(f"{row['Task']} {row['Metric']} {runs}")
        self.assertEqual(labels, expected)
        self.assertEqual({label.partition(" (")[2] for label in labels}, {"s1 and 1 more)", "low)"})
        points, bars = {}, {}
        for line in axes.lines:
            xs, ys = line.get_xdata(), line.get_ydata()
            if line.get_marker() == "o":
                points[ys[0]] = xs[0]
            elif line.get_marker() == "None":
                bars[ys[0]] = tuple(xs)
        self.assertEqual(points, {at: float(row["Mean"]) for at, row in enumerate(rows)})
        for at, row in enumerate(texts):
            low, high = row["95 % interval"].removesuffix("seeds").removesuffix("rows").split(" to ")
            self.assert_shows({0: low, 1: high.strip()}, dict(enumerate(map(float, bars[at]))), 1)


# ---------------------------------------------------------------------------------------------------------------------
# Sweeps: tables and plots of trials

# By number: state, value, learning rate, warm-up (few values), schedule, last step, seconds. Not in the order of either.
TRIALS = {
    0: ("complete", 61.2378, 3.1e-3, 10, "linear", 28, 71.37),
    1: ("failed", None, 1.17e-1, 20, "cosine", 7, 12.49),
    2: ("pruned", 64.5679, 3.3e-4, 10, "cosine", 14, 33.81),
    3: ("complete", 63.7389, 1.9e-4, 20, "linear", 28, 70.68),
    4: ("running", 50.1277, 1.3e-5, 20, "linear", 21, 55.59),
    5: ("preempted", 55.9167, 2.7e-5, 10, "linear", 20, 44.46),
    6: ("complete", 58.4488, 8.7e-4, 10, "cosine", 28, 69.13),
    7: ("complete", 62.3571, 5.9e-3, 20, "cosine", 28, 72.28),
}
PARAMETERS = ("learning_rate", "warmup_steps", "schedule")
GROUPS = [
    {"parameters": {"learning_rate": 1e-3}, "task": "rte", "n": 3, "mean": 61.2378, "std": 1.6789},
    {"parameters": {"learning_rate": 1e-3}, "task": "cola", "n": 2, "mean": 48.5679, "std": 2.2468},
    {"parameters": {"learning_rate": 1e-4}, "task": "rte", "n": 4, "mean": 67.3489, "std": 3.1357},
    {"parameters": {"learning_rate": 1e-4}, "task": "cola", "n": 5, "mean": 41.8888, "std": 4.9999},
]


def sweep_directory(goal="maximize", groups=None, **parameters_of_all) -> Path:
    """What `t5suite sweep` leaves; trials stand in no order."""
    trials = []
    for number in (3, 0, 7, 5, 2, 6, 1, 4):
        state, value, rate, warmup, schedule, last_step, seconds = TRIALS[number]
        parameters = {"learning_rate": rate, "warmup_steps": warmup, "schedule": schedule, **parameters_of_all}
        trials.append({
            "number": number, "state": state, "value": value, "parameters": parameters, "last_step": last_step,
            "curve": [], "seconds": seconds, "exit_code": 0, "run_dir": f"trials/{number:04d}",
            "command": f"python fine_tune_t5.py --trial {number}",
        })  # fmt: skip
    ended = {number: trial[1] for number, trial in TRIALS.items() if trial[0] == "complete"}
    best = (max if goal == "maximize" else min)(ended, key=ended.get)
    place = folder()
    content = {"name": "rates", "method": "bayes", "metric": {"name": "eval/accuracy", "goal": goal}}
    content |= {"trials": trials, "best": None if groups else best, "groups": groups}
    (place / "sweep.json").write_text(json.dumps(content))
    return place


@functools.cache
def sweep_report(goal="maximize", with_groups=False) -> AllReports:
    return AllReports(more=[sweep_directory(goal, GROUPS if with_groups else None)])


SWEEP_PLOTS = ("objective", "parameters")
COLUMNS = {"trial": None, "state": 0, "value": 1, "learning_rate": 2, "warmup_steps": 3, "schedule": 4, "step": 5, "seconds": 6}  # fmt: skip


def trial_cells(rows: list[dict], names: dict) -> dict:
    """`{(trial, column): text}` of a table's rows, empty cells left out."""
    cells = {}
    for row in rows:
        trial = int(row[names["trial"]].removesuffix("★").replace("★", ""))
        for name, heading in names.items():
            if name != "trial" and row[heading] not in ("-", "–", ""):
                cells[trial, name] = row[heading]
    return cells


def trial_values() -> dict:
    return {(number, name): trial[place] for number, trial in TRIALS.items() for name, place in COLUMNS.items()
            if place is not None and trial[place] is not None}  # fmt: skip


ON_PAGE = {"trial": "Trial", "value": "eval/accuracy", "state": "State", "step": "Step", "seconds": "Seconds",
           **{name: name for name in PARAMETERS}}  # fmt: skip
ON_TERMINAL = {"trial": "trial", "value": "eval/accuracy", "state": "state", "step": "step", "seconds": "seconds",
               **{name: name for name in PARAMETERS}}  # fmt: skip
SWEEP_READERS = {
    "terminal": lambda shown: trial_cells(boxed_tables(shown.table)[0], ON_TERMINAL),
    "page": lambda shown: trial_cells(shown.page.tables["Trials, the best first"], ON_PAGE),
    "markdown": lambda shown: trial_cells(next(rows for rows in markdown_tables(shown.markdown) if "Trial" in rows[0]), ON_PAGE),
    "json": lambda shown: {(line["number"], name): str(value) for line in shown.lines if "number" in line
                           for name, value in {**line["parameters"], "value": line["value"], "state": line["state"],
                                               "step": line["last_step"], "seconds": line["seconds"]}.items()
                           if value is not None},
}  # fmt: skip


class SweepsTest(ShownTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sweep_report(), sweep_report("minimize"), sweep_report(with_groups=True)

    @parameterized.product(reader=list(SWEEP_READERS), goal=("maximize", "minimize"))
    def test_every_trial_has_its_own_numbers(self, reader, goal):
        shown, expected = SWEEP_READERS[reader](sweep_report(goal)), trial_values()
        words = {key for key in expected if key[1] in ("state", "schedule")}
        self.assertEqual({key: shown.get(key) for key in words}, {key: expected[key] for key in words})
        self.assert_shows({key: text for key, text in shown.items() if key not in words},
                          {key: value for key, value in expected.items() if key not in words})  # fmt: skip
        scores = [shown[key] for key in shown if key[1] == "value"]
        self.assertTrue(all(len(text.partition(".")[2]) >= 2 for text in scores), "a value has two decimals")

    @parameterized.parameters(("maximize", 3, [3, 7, 0, 6, 2, 5, 4, 1]), ("minimize", 6, [6, 0, 7, 3, 4, 5, 2, 1]))
    def test_the_best_stand_first_and_are_named(self, goal, best, order):
        shown = sweep_report(goal)
        for rows, heading in (
            (boxed_tables(shown.table)[0], "trial"),
            (shown.page.tables["Trials, the best first"], "Trial"),
        ):
            self.assertEqual([int(row[heading].split()[0]) for row in rows], order)
        starred = [row["Trial"] for row in shown.page.tables["Trials, the best first"] if "★" in row["Trial"]]
        self.assertEqual(starred, [f"{best} ★"])
        value = f"{TRIALS[best][1]:.4g}"
        self.assertIn(f"best: trial {best}, eval/accuracy {value} (trials/{best:04d})", shown.table)
        self.assertIn(f"python fine_tune_t5.py --trial {best}", shown.table.splitlines())

    @parameterized.product(plot=SWEEP_PLOTS, goal=("maximize", "minimize"))
    def test_every_plot_has_every_trial_at_its_place(self, plot, goal):
        """The label of an axis says what its places are: the trials' numbers, or a parameter's values."""
        self.assertEqual(set(sweep_report(goal).figures), {f"sweep-rates-{name}" for name in SWEEP_PLOTS})
        with_values = {number: trial[1] for number, trial in TRIALS.items() if trial[1] is not None}
        best = {"maximize": 3, "minimize": 6}[goal]
        seen = [axes for axes in sweep_report(goal).figures[f"sweep-rates-{plot}"].axes if axes.get_visible()]
        self.assertNotEmpty(seen)
        for axes in seen:
            label = axes.get_xlabel()
            places = {number: number for number in with_values}
            if label != "trial":
                column = COLUMNS[label]
                places = {number: TRIALS[number][column] for number in with_values}
                categories = [text.get_text() for text in axes.get_xticklabels()]
                if len(set(places.values())) < 3:
                    places = {number: categories.index(str(place)) for number, place in places.items()}
            rings = [(places[best], with_values[best])]
            drawn = [tuple(point) for dots in axes.collections for point in dots.get_offsets().tolist()]
            expected = [(places[number], value) for number, value in with_values.items()]
            self.assertCountEqual(drawn, expected + rings, f"{plot} {label}")
            labels = [dots.get_label() for dots in axes.collections]
            self.assertIn(f"best: trial {best}, {with_values[best]:.4g}", labels)
            self.assertEqual(dict(self.counts_of(labels)), self.counts_by_state())
            for line in axes.lines:
                steps = {"maximize": max, "minimize": min}[goal]
                best_so_far = itertools.accumulate(with_values.values(), steps)
                points = list(map(tuple, line.get_xydata().tolist()))
                self.assertEqual(points, list(zip(with_values, best_so_far, strict=True)))

    def counts_of(self, labels):
        """'finished (4)' -> ('finished', 4)."""
        return [
            (label.rpartition(" ")[0], int(label.rpartition("(")[2].rstrip(")"))) for label in labels if "(" in label
        ]

    def counts_by_state(self):
        return {"finished": 4, "stopped early": 1, "preempted": 1, "running": 1}

    def test_a_grid_s_means_stand_under_their_task_and_setting(self):
        shown = sweep_report(with_groups=True)
        (rows,) = terminal_tables(shown.table)
        means, deviations, counts = {}, {}, {}
        for row in rows:
            for task in ("rte", "cola"):
                mean, _, deviation, count = row[task].split()
                key = row["setting"], task
                means[key], deviations[key], counts[key] = mean, deviation, count.strip("()")
            means[row["setting"], "average"] = row["average"]
        expected = {(f"learning_rate {group['parameters']['learning_rate']}", group["task"]): group for group in GROUPS}
        of = lambda name: {key: group[name] for key, group in expected.items()}
        averages = {("learning_rate 0.001", "average"): (61.2378 + 48.5679) / 2}
        averages |= {("learning_rate 0.0001", "average"): (67.3489 + 41.8888) / 2}
        self.assert_shows(means, of("mean") | averages, 2)
        self.assert_shows(deviations, of("std"), 2)
        self.assert_shows(counts, of("n"))
        rows = shown.page.tables["eval/accuracy over the seeds"]
        for heading, name in (("Mean", "mean"), ("SD", "std"), ("Seeds", "n")):
            self.assert_shows({(row["Setting"], row["Task"]): row[heading] for row in rows}, of(name))


# ---------------------------------------------------------------------------------------------------------------------
# Two runs side by side


class ComparedTest(ShownTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        two_runs()

    def test_every_number_of_compare_is_under_its_heading(self):
        first, second, _ = two_runs().made
        names = [str(run.directory) for run in (first, second)]
        with_json = [json.loads(line) for line in cli_output("compare", *names, "--json").splitlines()]
        (rows,) = terminal_tables(cli_output("compare", *names, "--max_flips", "0"))
        entries = {(entry["task"], entry["metric"]): entry for entry in with_json[1:] if "metric" in entry}
        cells = {(row["task"], row["metric"]): row for row in rows}
        keys = [key for key in results_of(first)["scores"] if key[1] != "invalid_rate"]
        expected = [{key: results_of(run)["scores"][key] for key in keys} for run in (first, second)]
        differences = {key: expected[1][key] - expected[0][key] for key in keys}
        for heading, values in (("A", expected[0]), ("B", expected[1]), ("B - A", differences)):
            self.assert_shows({key: row[heading] for key, row in cells.items()}, values, 2, heading)
        for key in keys:
            self.assertAlmostEqual(entries[key]["a"], expected[0][key], places=9)
            self.assertAlmostEqual(entries[key]["b"], expected[1][key], places=9)
            bootstrap, (low, high) = entries[key]["bootstrap"], cells[key]["95 % interval"].split(" to ")
            self.assert_shows({0: low, 1: high}, {0: bootstrap["low"], 1: bootstrap["high"]}, 2)
            self.assert_shows({0: cells[key]["p (bootstrap)"]}, {0: bootstrap["p"]}, 4)
            self.assertBetween(differences[key], bootstrap["low"], bootstrap["high"])
        # Right in one alone: of the sentiments 30 and 31 in the second, of the entailments 20 to 22 in the first.
        for task, alone in (("sentiment", (0, 2)), ("entailment", (3, 0))):
            p_value, counts = cells[task, "accuracy"]["p McNemar (A/B)"].split()
            self.assertEqual(counts, f"({alone[0]}/{alone[1]})")
            self.assert_shows({0: p_value}, {0: 2 * 0.5 ** sum(alone)}, 4)
        self.assertEqual({row["rows"] for row in rows}, {"37"})


# ---------------------------------------------------------------------------------------------------------------------
# A real training


@pytest.mark.slow
class WholeRunsTest(ShownTest):
    """Real clients, and a real training."""

    def test_a_table_of_checkpoints_has_every_step_s_scores_and_the_best_marked(self):
        flags = {**MIXTURE_FLAGS, "data_dir": rows_folder(ROWS_OF_TASK), "eval_method": "score"}
        flags |= {"dataset_name": "sentiment", "learning_rate": 0.01, "output_dir": folder() / "run"}
        training = {
            "max_steps": 6,
            "load_best_model_at_end": False,
            "save_strategy": "steps",
            "save_steps": 2,
            "save_total_limit": 3,
        }
        words = lambda settings: [f"--{name}={value}" for name, value in settings.items()]
        printed(fine_tune_t5.main, words(flags | training))
        checkpoints = {"eval_only": True, "eval_checkpoints": "all"}
        del flags["from_scratch"]
        ((rows),) = terminal_tables(printed(fine_tune_t5.main, words(flags | checkpoints)))
        content = json.loads((flags["output_dir"] / "eval_checkpoints.json").read_text())
        scores = {step: of["tasks"]["sentiment"]["accuracy"] for step, of in content.items()}
        self.assertEqual(list(scores), ["2", "4", "6"])
        self.assert_shows({row["step"]: row["sentiment"].rstrip("*") for row in rows}, scores, 2)
        starred = [row["step"] for row in rows if row["sentiment"].endswith("*")]
        self.assertEqual(starred, [max(scores, key=scores.get)])

    def test_a_mixture_s_training_is_shown_as_its_files_say(self):
        directory = folder() / "run"
        flags = (
            "mini.yaml --dataset_name all --max_steps 4 --eval_strategy steps --eval_steps 2 --logging_steps 1 "
            "--save_strategy no --load_best_model_at_end False --use_cpu --disable_tqdm True --max_train_samples 16 "
            "--max_eval_samples 11 --per_device_train_batch_size 4 --report_to tensorboard "
            "--config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
        )
        printed_lines = printed(fine_tune_t5.main, [*flags.split(), "--output_dir", str(directory)])
        results = json.loads((directory / "results.json").read_text())
        lines = list(map(json.loads, (directory / "metrics.jsonl").read_text().splitlines()))
        logged = {(name, line["step"]): value for line in lines for name, value in line.items() if "/" in name}
        self.assertEqual({step for name, step in logged if name == "train/loss"}, {1, 2, 3, 4})
        self.assertEqual({step for name, step in logged if name == "eval/average"}, {2, 4})
        numbers = {key: value for key, value in logged.items() if value is not None}
        received = tensorboard_files(directory)
        self.assertEqual(set(received.numbers), set(numbers))
        for key, value in numbers.items():
            self.assertAlmostEqual(received.numbers[key], value, delta=1e-6 * abs(value), msg=key)
        scores = {(task, name): value for task, of in results["tasks"].items() for name, value in of.items()}
        self.assertLen(results["tasks"], 3)
        final = {(task, name): logged[f"final/{task}/{name}", 4] for task, name in scores}
        self.assertEqual(final, scores)
        scores = {key: value for key, value in scores.items() if value is not None}
        rows = markdown_tables((directory / "README.md").read_text())[0]
        on_card = {(row["name"], row["metric"]): row["value"] for row in rows if row["split"] and row["value"] != "nan"}
        self.assert_shows(on_card, scores, 2)
        table = by_task(terminal_tables(printed_lines)[0], "metrics", {"invalid %": "invalid_rate"})
        self.assert_shows({key: text for key, text in table.items() if text != "nan"}, scores, 2)
        for line in printed_lines.splitlines():
            if line.startswith("step ") and "evaluation" in line:
                step, shown = parsed_line(line)
                names = {name: name.replace("invalid", "invalid_rate") for name in shown if shown[name] != "nan"}
                expected = {name: logged[f"eval/{whole_name}", step] for name, whole_name in names.items()}
                self.assert_shows({name: shown[name].removesuffix("%") for name in names}, expected, 1)


# ---------------------------------------------------------------------------------------------------------------------
# Lines of the terminal while a run goes on


def parsed_line(line: str) -> tuple[int, dict[str, str]]:
    """A line of progress: its step and `{name: text}`, tasks before their metrics."""
    (place, *parts), shown = line.split(" · "), {}
    step = int(place.removeprefix("step ").partition("/")[0])
    for part in parts:
        task, _, scores = part.rpartition(": ")
        for score in scores.split(", "):
            if score.startswith(("evaluation", "trained in")):
                continue
            name, _, text = score.rpartition(" ") if score[0].isalpha() else score.partition(" ")[::-1][::-1]
            shown[f"{task}/{name}".strip("/")] = text
    return step, shown


class ProgressTest(ShownTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        two_runs()
        flags = {**MIXTURE_FLAGS, "data_dir": rows_folder(ROWS_OF_TASK), "no_eval": True, "save_strategy": "no"}
        tuner = FineTuner(**flags, output_dir=str(folder() / "run"))
        printed(tuner.train)
        cls.trainer = tuner.trainer

    def lines(self, logs: dict) -> list[str]:
        """What a run prints where its trainer logs these numbers."""
        lines = printed(self.trainer.log, dict(logs)).splitlines()
        return [line for line in lines if line.startswith("step ")]

    @pytest.mark.slow
    def test_an_evaluation_s_line_has_every_task_s_own_scores(self):
        run = two_runs().made[1]
        for step in STEPS_SCORED:
            logs = {name: value for (name, at), value in run.logged.items() if at == step and name.startswith("eval/")}
            (line,) = self.lines(logs)
            shown_step, shown = parsed_line(line)
            shown = {name: text.removesuffix("%") for name, text in shown.items()}
            expected = {name.removeprefix("eval/").replace("invalid_rate", "invalid"): value
                        for name, value in logs.items() if not name.endswith("/loss")}  # fmt: skip
            self.assertEqual(shown_step, self.trainer.state.global_step)
            self.assert_shows(shown, expected, 1)

    @pytest.mark.slow
    def test_a_step_s_line_has_what_was_logged(self):
        logs = {"loss": 3.41278, "grad_norm": 0.8167, "weight_norm": 71.2678, "learning_rate": 2.178e-3, "mfu": 31.2678,
                "accuracy": 41.2678, "data_wait": 12.678, "peak_memory_gb": 3.2178}  # fmt: skip
        (line,) = self.lines(logs)
        step, shown = parsed_line(line.replace(" GB", "").replace("3.22", "GB 3.22"))
        names = {"lr": "learning_rate", "grad norm": "grad_norm", "weight norm": "weight_norm", "MFU": "mfu",
                 "waiting for data": "data_wait", "GB": "peak_memory_gb"}  # fmt: skip
        shown = {names.get(name, name): text.removesuffix("%") for name, text in shown.items()}
        self.assertEqual(step, self.trainer.state.global_step)
        self.assert_shows(shown, logs)
        self.assertGreater(len(shown["loss"]), 4)

    @parameterized.parameters(
        ({"tokens_per_second": 117_654.3}, "118k tokens/s"), ({"tokens_per_second": 8_167.8}, "8.2k tokens/s"),
        ({"tokens_seen": 19_678_000}, "19.7M tokens seen"), ({"seconds_left": 392.6}, "6m33s left"),
        ({"seconds_left": 8_100.0}, "2h15m left"), ({"seconds_per_step": 0.56789}, "0.568 s/step"),
    )  # fmt: skip
    def test_speeds_and_times_have_their_unit(self, logs, text):
        self.assertEqual(self.lines(logs), [f"step 2/2 · {text}"])
