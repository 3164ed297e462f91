"""`t5suite report`'s files: every number is that of the run's own files, nothing of a row is ever markup, and every
kind of run has a page, which opens in a real browser without a word of complaint."""

import collections
import contextlib
import functools
import io
import itertools
import json
import random
import re
import statistics
import tempfile
from pathlib import Path
from unittest import mock

import lxml.html
import numpy as np
import pytest
import sklearn.metrics
from absl.testing import parameterized
from report_runs import (
    Reported,
    curve_lines,
    figures_instead_of_pixels,
    make_pre_training_run,
    make_run,
    reported,
    written,
)
from shown_tables import markdown_tables
from support import folder, start_browser

from t5suite import load_task
from t5suite.testing import cli_output, exits_with, read_rows, run_cli, tiny_rows, write_rows

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&amp;\u2028\x1b[2J'\""


def command(*words) -> str:
    """What `t5suite report` prints; its pictures have no pixels."""
    printed = io.StringIO()
    with figures_instead_of_pixels(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        run_cli("report", *words)
    return printed.getvalue()


@functools.cache
def three_runs() -> tuple:
    place = folder()
    return (
        make_run(place / "s1", "sentiment", seed=1),
        make_run(place / "s2", "sentiment", seed=2, wrong=0.3),
        make_run(place / "low", "similarity", seed=1, learning_rate=1e-4),
    )


def drawn_page(*words) -> str:
    """The page of a report with its pictures."""
    output = folder() / "report"
    cli_output("report", *words, "--output", output, "--format", "html")
    return (output / "report.html").read_text(encoding="utf-8")


@functools.cache
def whole_report() -> Reported:
    return reported(*three_runs(), size="small")


class Page:
    """Tables by caption as lists of rows of (text, attributes), every element, and the examples' texts."""

    def __init__(self, text):
        tree = lxml.html.fromstring(text)
        self.elements = [(node.tag, dict(node.attrib)) for node in tree.iter() if isinstance(node.tag, str)]
        self.examples = [example_of(item) for item in tree.xpath("//ol[@class='examples']/li")]
        rows = lambda table: [[(c.text_content(), c.attrib) for c in row.iter("td", "th")] for row in table.iter("tr")]
        self.tables = {table.findtext("caption"): rows(table) for table in tree.iter("table")}


def example_of(item) -> dict:
    """The texts of an example on the page."""
    texts = {"inputs": item.findtext("p"), "target": None, "verdict": item.get("class")}
    for span in item.find_class("answers")[0]:
        name = span.findtext("b").strip()
        answer = span.text_content().removeprefix(span.findtext("b"))
        texts["prediction" if name == "answer" else name] = "" if span.find("i") is not None else answer
    return texts


def results_of(run) -> dict:
    (scores,) = json.loads((run / "results.json").read_text())["tasks"].values()
    return scores


def scored_run(task: str, data: dict, seed=1, marks=(), scores=None, averages=None, scored=None) -> Path:
    """A finished run of GLUE or of your own rows that left scores alone; all of these are seeds of one setting."""
    settings = {"benchmark": "glue", "dataset_name": task, "seed": seed, "model_name_or_path": "google-t5/t5-small"}
    marks = {task: list(marks)}
    manifest = {"run_id": str(seed), "settings": settings, "data": data, "marks": marks, "scored": scored}
    scores = scores or {task: {"accuracy": 50.0}}
    return written(folder() / f"s{seed}", manifest, "", None, scores, averages=averages)


def marks_of_the_mean(runs) -> list[str]:
    (score,) = reported(*runs).data["scores"]
    return score["marks"]


class NumbersTest(parameterized.TestCase):
    """Re-derived from results.json and metrics.jsonl, without the code that reads them for the report."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        whole_report()

    def test_every_run_s_scores_are_those_of_its_results(self):
        rows = Page(whole_report().html).tables["Every run"][1:]
        shown = {(row[0][0], row[2][0]): row[3] for row in rows}
        shown |= {(row[0][0], "invalid_rate"): row[5] for row in rows if row[5][0] != "–"}
        expected = {(run.name, name): value for run in three_runs() for name, value in results_of(run).items()}
        self.assertEqual({key: float(cell[1]["title"]) for key, cell in shown.items()}, expected)
        for key, cell in shown.items():
            self.assertEqual(cell[0], f"{expected[key]:.1f}")

    def test_all_settings_are_those_of_the_manifest(self):
        values = {
            "max_grad_norm": 0.0,
            "warmup_steps": 0,
            "save_state": False,
            "adapter": None,
            "logger": "",
            "tags": [],
        }
        run = make_run(folder() / "a", "sentiment", seed=0, **values)
        (shown,) = lxml.html.fromstring(reported(run).html).xpath("//details[summary='All settings']//pre")
        settings = json.loads((run / "manifest.json").read_text())["settings"]
        self.assertEqual(json.loads(shown.text_content()), settings)

    def test_a_metric_of_the_user_s_has_a_row_behind_the_task_s_and_their_rate(self):
        scores = {"sst2": {"accuracy": 50.0, "invalid_rate": 2.0, "mine": 7.0}}
        runs = [scored_run("sst2", {}, seed, scores=scores) for seed in (1, 2)]
        rows = Page(reported(*runs).html).tables["Every run"][1:]
        self.assertEqual([(row[2][0], row[3][0]) for row in rows], [("accuracy", "50.0"), ("mine", "7")] * 2)

    def test_values_that_are_no_points_have_their_unit_digits_and_axes(self):
        scores = {"pearson": 85.3, "neg_mean_absolute_error": -0.00345, "word_share": 0.8712}
        run = scored_run("prices", {}, scores={"prices": scores})
        write_rows(run / "metrics.jsonl", curve_lines(1, scores))
        report = reported(run)
        units = {"pearson": "points", "neg_mean_absolute_error": "the targets' unit",
                 "word_share": "as its metric returns it"}  # fmt: skip
        others = "; ".join(f"{name}: {unit}" for name, unit in units.items() if unit != "points")
        rows = report.page.tables[f"In points ({others})"]
        self.assertEqual([row["Mean"] for row in rows], ["85.3", "-0.00345", "0.8712"])
        self.assertEqual([report.page.headline[f"prices {name}"] for name in units], ["85.3", "-0.00345", "0.8712"])
        labels = [label.get_text() for label in report.figures["scores"].axes[0].get_yticklabels()]
        self.assertEqual(labels, ["prices pearson"])
        for page in (report.html, report.markdown.replace("\\", "")):
            (metrics,) = re.findall(r"([\w, ]+): no interval over rows", page)
            self.assertEqual(metrics, "word_share")
        for name, unit in units.items():
            (axes,) = report.figures[f"curve-prices-{name}"].axes
            self.assertEqual(axes.get_ylabel(), unit)

    def test_why_a_score_is_not_a_number_stands_once_below_the_scores(self):
        scores = {"pearson": None, "spearman": None, "neg_mean_absolute_error": -0.5}
        reason = "pearson, spearman: not a number (all answers, or all targets, count as the same number"
        report = reported(scored_run("prices", {}, scores={"prices": scores}))
        for text in (report.printed, report.markdown, report.html):
            self.assertEqual(" ".join(text.split()).count(reason), 1)
        defined = reported(scored_run("prices", {}, scores={"prices": {"pearson": 0.0}}))
        self.assertNotIn("not a number", defined.printed + defined.markdown + defined.html)

    def test_pictures_have_files_of_their_own_also_where_upper_and_lower_case_are_one(self):
        long_name = "x" * 200
        titles = []
        runs = []
        for seed, task in enumerate(["Prices", "prices", long_name, f"{long_name}es", "PRICES"]):
            run = scored_run(task, {}, seed)
            write_rows(run / "metrics.jsonl", curve_lines(seed, {"accuracy": 50.0}))
            runs.append(run)
            titles += [f"{task}: accuracy", f"{task}: training loss"]
        curves = {name: figure for name, figure in reported(*runs).figures.items() if name.startswith("curve-")}
        self.assertCountEqual([figure.axes[0].get_title() for figure in curves.values()], titles)
        self.assertLen({name.lower() for name in curves}, 10)
        self.assertLessEqual(max(map(len, curves)), 120)

    def test_scores_under_another_system_s_name_are_drawn(self):
        scores = {"mcc": 41.2, "accuracy": 70.0, "invalid_rate": 1.0}
        report = reported(scored_run("own", {}, scores={"own": scores}))
        labels = [label.get_text() for label in report.figures["scores"].axes[0].get_yticklabels()]
        self.assertEqual(labels, ["own mcc", "own accuracy"])

    def test_a_score_s_label_names_its_runs_only_beside_the_same_score_of_others(self):
        labels = [label.get_text() for label in whole_report().figures["scores"].axes[0].get_yticklabels()]
        self.assertEqual(labels, ["sentiment accuracy", "similarity pearson", "similarity spearman"])

    def test_means_and_deviations_are_those_of_the_seeds(self):
        first, second, _ = (results_of(run) for run in three_runs())
        (row,) = [r for r in Page(whole_report().html).tables[SCORES][1:] if r[0][0] == "sentiment"]
        values = [first["accuracy"], second["accuracy"]]
        self.assertAlmostEqual(float(row[2][1]["title"]), statistics.mean(values))
        self.assertAlmostEqual(float(row[3][1]["title"]), statistics.stdev(values))
        self.assertAlmostEqual(float(row[-5][1]["title"]), (first["invalid_rate"] + second["invalid_rate"]) / 2)
        self.assertEqual((row[-4][0], row[-3][0]), ("2", "40"))

    @parameterized.parameters(((1, 1), (None, None), False), ((1, 2), (None, None), False), ((1, 2), (40, 40), True),
                              ((1, 1), (40, 30), False))  # fmt: skip
    def test_a_mean_over_runs_that_were_scored_on_other_rows_says_so(self, seeds, limits, differ):
        """`--max_eval_samples` draws rows by the seed; the whole split is the same for every seed."""
        runs = []
        for seed, limit in zip(seeds, limits, strict=True):
            data = {"sentiment.validation": {"fingerprint": "a"}, "sentiment.train": {"fingerprint": str(seed)}}
            runs.append(scored_run("sentiment", data, seed, ["subset"] if limit else []))
        self.assertEqual("different rows" in marks_of_the_mean(runs), differ)

    def test_rows_held_out_of_the_training_rows_or_other_files_are_other_rows(self):
        for seed, fingerprint, origin, differ in (
            (1, "a", "", False), (2, "a", "", False), (2, "a", "x.csv (held-out rows)", True), (1, "b", "", True),
        ):  # fmt: skip
            first = scored_run("own", {"own.validation": {"fingerprint": "a", "origin": origin}})
            second = scored_run("own", {"own.validation": {"fingerprint": fingerprint, "origin": origin}}, seed)
            self.assertEqual("different rows" in marks_of_the_mean([first, second]), differ)

    def test_other_rows_of_a_task_that_has_a_test_split_alone_are_other_rows(self):
        for fingerprint, differ in (("a", False), ("b", True)):
            runs = [
                scored_run("axb", {"axb.test": {"fingerprint": part}}, seed)
                for seed, part in ((1, "a"), (2, fingerprint))
            ]
            self.assertEqual("different rows" in marks_of_the_mean(runs), differ)

    def test_a_split_that_is_not_named_after_its_role_is_known_by_its_file(self):
        scores = {"notesdev": {"accuracy": 50.0}}
        scored = {"notesdev": {"file": "notes.dev.jsonl"}}
        data = [{"notes.dev": {"fingerprint": fingerprint, "used": 7}} for fingerprint in "ab"]
        runs = [scored_run("notesdev", each, seed, scores=scores, scored=scored) for seed, each in enumerate(data)]
        (score,) = reported(*runs).data["scores"]
        self.assertEqual((score["marks"], score["rows"]), (["different rows"], 7))

    def test_rows_of_a_task_whose_name_another_begins_with_are_not_its_rows(self):
        of_another = (
            {"rte.validation": {"fingerprint": seed}, "rte2.validation": {"fingerprint": "a"}} for seed in "12"
        )
        runs = [scored_run("rte2", data) for data in of_another]
        self.assertNotIn("different rows", marks_of_the_mean(runs))

    def test_drawn_lines_are_the_logged_points(self):
        logged = {run.name: [json.loads(line) for line in (run / "metrics.jsonl").open()] for run in three_runs()}
        for picture, title, name in (
            ("curve-sentiment-accuracy", "sentiment: accuracy", "eval/accuracy"),
            ("curve-sentiment-training-loss", "sentiment: training loss", "train/loss"),
        ):
            (axes,) = whole_report().figures[picture].axes
            self.assertEqual(axes.get_title(), title)
            drawn = [list(map(tuple, line.get_xydata().tolist())) for line in axes.lines]
            points = {}
            for run in ("s1", "s2"):
                points[run] = [(line["step"], line[name]) for line in logged[run] if line.get(name) is not None]
            mean = [(step, (y + points["s2"][i][1]) / 2) for i, (step, y) in enumerate(points["s1"])]
            self.assertEqual(drawn, [points["s1"], points["s2"], mean])

    @pytest.mark.slow
    def test_a_mean_is_of_the_finished_runs_of_a_setting(self):
        first, second, _ = three_runs()
        unfinished = make_run(folder() / "s3", "sentiment", seed=3, finished=False)
        lines = reported(first, second, unfinished, size="small").figures["curve-sentiment-accuracy"].axes[0].lines
        curves = [line.get_ydata() for line in lines]
        self.assertLen(curves, 4)
        np.testing.assert_allclose(curves[-1], (curves[0] + curves[1]) / 2)

    def test_averages_of_other_tasks_are_no_seeds_of_each_other(self):
        runs = []
        for seed, tasks, average in ((1, "cola,rte", 70.0), (2, "rte, cola", 74.0), (3, "sst2,mrpc", 90.0)):
            runs.append(scored_run(tasks, {}, seed, scores={"rte": {"accuracy": average}},
                                   averages={"average": average}))  # fmt: skip
        report = reported(*runs)
        titles = ["average of glue/cola,rte", "average of glue/mrpc,sst2"]
        averages = [(row["Task"], row["Mean"], row["Runs"]) for row in report.page.tables["Means of tasks, in points"]]
        self.assertEqual(averages, [(titles[0], "72.0", "2"), (titles[1], "90.0", "1")])
        self.assertEqual([report.page.headline[title] for title in titles], ["72.0", "90.0"])
        alike = reported(*runs[:2]).page
        self.assertEqual(alike.headline["average"], "72.0")

    def test_every_number_stands_under_its_heading(self):
        """One row of numbers that all differ, and that of its average."""
        tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli_matched", "mnli_mismatched", "qnli", "rte")
        runs = []
        for seed, score in ((1, 58.0), (2, 60.25), (3, 62.5)):
            scores = {task: {"accuracy": score + 10} for task in tasks}
            scores["rte"] = {"accuracy": score, "invalid_rate": 4.0}
            runs.append(scored_run("rte", {"rte.validation": {"fingerprint": "a", "used": 277}}, seed, ["subset"],
                                   scores=scores, averages={"glue": score + 9}))  # fmt: skip
        report = reported(*runs, size="small")
        shared = {"SD": "2.2", "Runs": "3"}
        row = {**shared, "Task": "rte", "Metric": "accuracy", "Mean": "60.2", "95 % interval": "58.0 to 62.5 seeds",
               "Published": "69.9 small", "Invalid %": "4.0", "Rows": "277"}  # fmt: skip
        average = {**shared, "Task": "glue", "Metric": "average", "Mean": "69.2", "Published": "78.5 small",
                   "95 % interval": "67.0 to 71.5 seeds"}  # fmt: skip
        self.assertEqual(report.page.headline["average glue"], "69.2")
        self.assertEqual(report.page.headline["model"], "google-t5/t5-small")
        in_markdown = {rows[0]["Metric"]: rows for rows in markdown_tables(report.markdown) if "Mean" in rows[0]}
        for caption, expected, rows in (
            (SCORES, row, in_markdown["accuracy"]), ("Means of tasks, in points", average, in_markdown["average"]),
        ):  # fmt: skip
            for shown in (report.page.tables[caption], rows):
                (of_task,) = [cells for cells in shown if cells["Task"] == expected["Task"]]
                self.assertContainsSubset(expected.items(), of_task.items())


SCORES = "In points"


class SafetyTest(parameterized.TestCase):
    def test_text_of_rows_is_never_markup(self):
        place = folder()
        run = make_run(place / "x", "sentiment", predictions=[EVIL] * 40, run_name=EVIL, learning_rate=EVIL)
        other = make_run(place / "y<b>", "sentiment")
        report = reported(run, other)
        page = report.html
        scripts = [attributes for tag, attributes in Page(page).elements if tag == "script"]
        self.assertEqual([script.get("type") for script in scripts], [None])
        self.assertNotIn(("img", {"src": "x", "onerror": "window.hacked=1"}), Page(page).elements)
        self.assertNotIn("<script>window", page)
        examples = [example for evaluation in report.data["examples"] for example in evaluation["examples"]]
        names = ("inputs", "target", "prediction", "verdict")
        expected = [{name: example[name] for name in names} for example in examples]
        self.assertCountEqual(Page(page).examples, expected)
        self.assertIn(EVIL, [example["prediction"] for example in Page(page).examples])
        self.assertNotRegex(report.markdown, "<img|\x1b")

    @pytest.mark.slow
    def test_the_page_asks_nothing_of_a_network_and_needs_no_inline_styles(self):
        elements = Page(drawn_page(*three_runs()[:1])).elements
        for _, attributes in elements:
            self.assertEmpty([name for name in attributes if name == "style" or name.startswith("on")])
            for name in ("src", "href", "xlink:href", "action"):
                self.assertRegex(attributes.get(name) or "#", "^(#|data:image/)")
        (policy,) = [a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
        self.assertLen(ids, len(set(ids)))
        links = [a["href"][1:] for _, a in elements if a.get("href", "").startswith("#")]
        self.assertContainsSubset(links, ids)


class KindsOfRunsTest(parameterized.TestCase):
    @parameterized.parameters(("glue", True), ("super_glue", True), ("mini", False), (None, False))
    def test_where_published_scores_are_from_is_said_where_the_benchmark_has_some(self, benchmark, is_said):
        settings = {
            "benchmark": benchmark,
            "dataset_name": "rte",
            "seed": 1,
            "model_name_or_path": "google-t5/t5-small",
        }
        manifest = {"run_id": "1", "settings": settings, "data": {}, "marks": {}}
        report = reported(written(folder() / "run", manifest, "", None, {"rte": {"accuracy": 50.0}}))
        for text in (report.html, report.markdown):
            self.assertEqual("arXiv:1910.10683, table 14" in text, is_said)

    def test_the_seconds_that_were_left_are_no_speed(self):
        lines = [
            {
                "step": step,
                "epoch": 0.1,
                "seconds": 1.0,
                "train/tokens_per_second": 900.0,
                "train/seconds_left": 30.0 - step,
            }
            for step in (10, 20, 30)
        ]
        run = make_run(folder() / "run", "sentiment")
        write_rows(run / "metrics.jsonl", lines)
        report = reported(run)
        self.assertEqual(report.data["runs"][0]["speed"], {"train/tokens_per_second": 900.0})
        self.assertEqual(list(report.page.tables["Speed and memory"][0]), ["Run", "Updates", "Tokens/s", "Machine"])

    def test_a_long_curve_is_thinned_evenly_from_its_first_point_to_its_last(self):
        lines = [{"step": step, "epoch": 0.1, "train/loss": 1 / step} for step in range(1, 1801)]
        run = make_run(folder() / "run", "sentiment")
        write_rows(run / "metrics.jsonl", lines)
        points = reported(run).data["runs"][0]["curves"]["train/loss"]
        steps = [step for step, _ in points]
        self.assertEqual((steps[0], steps[-1]), (1, 1800))
        self.assertBetween(len(steps), 100, 600)
        gaps = np.diff(steps)
        self.assertLessEqual(gaps.max() - gaps.min(), 1)
        for step, value in points:
            self.assertEqual(value, 1 / step)

    @parameterized.parameters((1, 1, ""), (61, 60, "60 of 61 learning curves are drawn"))
    def test_at_most_sixty_curves_are_drawn_and_single_values_are_none(self, num_curves, num_drawn, note):
        run = make_run(folder() / "a", "sentiment")
        once = {f"eval/once{number}/accuracy": 50.0 for number in range(61)}
        again = {f"eval/again{number}/accuracy": 50.0 for number in range(num_curves)}
        write_rows(run / "metrics.jsonl", [{"step": 1, **once, **again}, {"step": 2, **again}])
        report = reported(run, size="small")
        self.assertLen([name for name in report.figures if name.startswith("curve-")], num_drawn)
        for text in (report.html, report.markdown):
            self.assertIn(note, text)
            self.assertEqual("learning curves are drawn" in text, bool(note))

    def test_a_curve_has_a_gap_and_a_cross_where_a_score_is_not_a_number(self):
        """Of two seeds and their mean; a number that has none beside it is marked."""
        place, runs = folder(), []
        for seed, scores in enumerate(([60.0, None, 64.0, 66.0, 68.0], [50.0, 52.0, 54.0, 56.0, None])):
            run = make_run(place / f"s{seed}", "sentiment", seed=seed)
            lines = [{"step": step, "eval/accuracy": score} for step, score in enumerate(scores, 1)]
            write_rows(run / "metrics.jsonl", lines)
            runs.append(run)
        (axes,) = reported(*runs).figures["curve-sentiment-accuracy"].axes
        first, first_cross, second, second_cross, mean, mean_crosses = axes.lines
        nan = np.nan
        np.testing.assert_array_equal(first.get_ydata(orig=False), [60, nan, 64, 66, 68])
        np.testing.assert_array_equal(second.get_ydata(orig=False), [50, 52, 54, 56, nan])
        np.testing.assert_array_equal(mean.get_ydata(orig=False), [55, nan, 59, 61, nan])
        crosses = [list(line.get_xdata()) for line in (first_cross, second_cross, mean_crosses)]
        self.assertEqual(crosses, [[2], [5], [2, 5]])
        self.assertEqual((first.get_marker(), first.get_markevery()), ("o", [0]))
        self.assertGreater(axes.get_xlim()[1], 5)

    def test_an_unfinished_run_and_one_without_metrics_have_a_page(self):
        place = folder()
        runs = [make_run(place / "a", "sentiment", finished=False),
                make_run(place / "b", "sentiment", metrics_file=False),
                make_run(place / "c", "sentiment", seed=2)]  # fmt: skip
        report = reported(*runs)
        data, page = report.data, report.html
        self.assertEqual([run["status"] for run in data["runs"]], ["running", "finished", "finished"])
        self.assertIn("running, no results", page)
        self.assertIn("no metrics.jsonl", page)
        self.assertIn("eval/accuracy", data["runs"][0]["curves"])
        lines = report.figures["curve-sentiment-accuracy"].axes[0].lines
        self.assertLen(lines, 2, "a mean is of finished runs, and one alone has a curve")

    def test_a_pre_training_run_has_its_curve_and_no_points(self):
        run = make_pre_training_run(folder() / "p")
        report = reported(run)
        curves = [figure for name, figure in report.figures.items() if name.startswith("curve-")]
        titles = [figure.axes[0].get_title() for figure in curves]
        self.assertEqual(titles, ["pre-training: held-out NLL"])
        (nll,) = [entry for entry in report.data["scores"] if entry["metric"] == "nll"]
        self.assertEqual((nll["mean"], nll["majority"], nll["interval"]), (5.5, None, None))


class WordsTest(parameterized.TestCase):
    def test_a_matrix_has_the_counts_of_the_predictions(self):
        run = make_run(folder() / "a", "entailment", wrong=0.4, invalid=0.1)
        lines = [json.loads(line) for line in (run / "predictions/entailment.validation.jsonl").open()]
        report = reported(run)
        label_words = report.data["confusions"][0]["labels"]
        answer = lambda line: line["prediction"] if line["prediction"] in label_words else "invalid"
        pairs = collections.Counter((line["target"], answer(line)) for line in lines)
        of_label = collections.Counter(line["target"] for line in lines)
        head, *rows = Page(report.html).tables["entailment, a"]
        self.assertEqual([cell[0] for cell in head[1:]], [*label_words, "invalid"])
        for (label, _), *cells in rows:
            for (answered, _), (text, attributes) in zip(head[1:], cells, strict=True):
                count = pairs[label, answered]
                self.assertEqual(text, f"{count} {100 * count / of_label[label]:.0f} %")
                self.assertIn(f"{count} of {of_label[label]} rows labelled {label} were", attributes["title"])
                self.assertEqual("hit" in attributes["class"], label == answered)


def spans_of(labels: list[str]) -> list[tuple]:
    """`(start, end, type)` of each span of labels in which every span begins with a B."""
    spans = []
    for start, label in enumerate(labels):
        if label.startswith("B-"):
            inside = itertools.takewhile(f"I{label[1:]}".__eq__, labels[start + 1 :])
            spans.append((start, start + 1 + len(list(inside)), label[2:]))
    return spans


def drawn_labels(drawn: random.Random) -> str:
    """Four words' labels."""
    pieces = drawn.choices(["O", "B-X", "B-X I-X", "B-Y I-Y I-Y", "B-Z"], weights=[4, 3, 3, 2, 1], k=4)
    return " ".join(" ".join(pieces).split()[:4])


def drawn_set(drawn: random.Random) -> str:
    return ", ".join(sorted(drawn.sample(["blue", "late", "red", "wet"], k=2)))


def labelled_run(metric: str, draw, first_answer: str | None = None) -> Path:
    """A run over rows whose words have labels, or that have several labels, with drawn answers."""
    place, drawn = folder(), random.Random(1)
    entry = {"prefix": "", "text_column_name": "words", "label_column_name": "tags", "labels": None,
             "metric_names": [metric], "metric_to_optimize": metric, "splits": {"validation": "validation"}}  # fmt: skip
    if draw is drawn_labels:
        entry |= {"labels": "O B-X I-X B-Y I-Y B-Z B-V".split(), "formatter": "token_labels"}
    rows = [{"words": "a b c Ann", "tags": draw(drawn)} for _ in range(30)]
    (place / "tasks.yaml").write_text(json.dumps({"mine": {"rows": entry}}))
    answers = [draw(drawn) for _ in rows]
    if first_answer is not None:
        answers[0] = first_answer
    scores = load_task("mine", "rows", str(place / "tasks.yaml")).score(rows, answers)
    lines = [
        {"row": at, "example": 0, "prediction": answer, "target": row["tags"]}
        for at, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]
    manifest = {"run_id": "a", "status": "finished", "settings": {"benchmark": "mine", "dataset_name": "rows"},
                "tasks": {"rows": entry}}  # fmt: skip
    return written(place / "a", manifest, "rows.validation", lines, {"rows": scores})


class LabelScoresTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Words", "token_accuracy", drawn_labels, lambda text: list(enumerate(text.split()))),
        ("Spans", "span_f1", drawn_labels, lambda text: spans_of(text.split())),
        ("Rows", "micro_f1", drawn_set, lambda text: [(label,) for label in text.split(", ")]),
    )
    def test_labels_of_words_spans_and_rows_have_the_scores_of_the_predictions(self, counted, metric, draw, parts):
        run = labelled_run(metric, draw)
        lines = read_rows(run / "predictions/rows.validation.jsonl")
        answered = {(line["row"], *part) for line in lines for part in parts(line["prediction"])}
        correct = {(line["row"], *part) for line in lines for part in parts(line["target"])}
        expected = []
        for label in sorted({part[-1] for part in answered | correct}):
            of_label = lambda found, label=label: {part for part in found if part[-1] == label}
            right, of_answers, of_rows = map(len, map(of_label, (answered & correct, answered, correct)))
            shares = [f"{100 * share:.1f}" for share in (right / of_answers, right / of_rows)]
            f1 = f"{200 * right / (of_answers + of_rows):.1f}"
            expected.append([label, str(of_rows), *shares, f1])
        report = reported(run)
        head, *rows = Page(report.html).tables["rows by label, a"]
        self.assertEqual([cell[0] for cell in head], ["Label", counted, "Precision", "Recall", "F1"])
        self.assertEqual([[cell[0] for cell in row] for row in rows], expected)
        table = next(rows for rows in markdown_tables(report.markdown) if "Precision" in rows[0])
        self.assertEqual([list(row.values()) for row in table], expected)

    def test_classes_have_the_scores_of_scikit_learn(self):
        run = make_run(folder() / "a", "entailment", wrong=0.4, invalid=0.1)
        lines = read_rows(run / "predictions/entailment.validation.jsonl")
        answers = [line["prediction"] for line in lines]
        labels = load_task("mini", "entailment").label_words
        scores = sklearn.metrics.precision_recall_fscore_support(
            [line["target"] for line in lines], answers, labels=labels, zero_division=0
        )
        expected = []
        for label, precision, recall, f1, count in zip(labels, *scores, strict=True):
            shares = [f"{100 * share:.1f}" for share in (precision, recall, f1)]
            expected.append([label, str(count), *shares])
        other_answers = sum(answer not in labels for answer in answers)
        report = reported(run)
        caption = f"entailment by label, a (other answers, which are no label: {other_answers})"
        head, *rows = Page(report.html).tables[caption]
        self.assertEqual([cell[0] for cell in head], ["Label", "Rows", "Precision", "Recall", "F1"])
        self.assertEqual([[cell[0] for cell in row] for row in rows], expected)
        table = next(rows for rows in markdown_tables(report.markdown) if "Precision" in rows[0])
        self.assertEqual([list(row.values()) for row in table], expected)

    def test_a_label_that_no_row_and_no_answer_has_is_without_scores(self):
        (row,) = tiny_rows("entailment", "validation", 1)
        labels = load_task("mini", "entailment").label_words
        of_row, of_answer, of_none = (labels[(row["label"] + step) % 3] for step in range(3))
        report = reported(make_run(folder() / "a", "entailment", count=1, predictions=[of_answer]))
        _, *rows = Page(report.html).tables["entailment by label, a"]
        expected = {of_row: "1 – 0.0 0.0", of_answer: "0 0.0 – 0.0", of_none: "0 – – –"}
        self.assertEqual({row[0][0]: " ".join(cell[0] for cell in row[1:]) for row in rows}, expected)

    def test_the_most_frequent_set_is_the_baseline_of_sets_and_other_answers_have_none(self):
        run = labelled_run("subset_accuracy", drawn_set)
        targets = [json.loads(line)["target"] for line in (run / "predictions" / "rows.validation.jsonl").open()]
        share = 100 * max(map(targets.count, targets)) / len(targets)
        report = reported(run)
        (score,) = report.data["scores"]
        self.assertAlmostEqual(score["majority"], share)
        self.assertIn("Majority baseline", report.markdown)
        self.assertNotIn("Majority", reported(labelled_run("span_f1", drawn_labels)).markdown)

    @parameterized.parameters(
        ("token_accuracy", drawn_labels, "B-Ann Ann B-V O", {*"O B-X I-X B-Y I-Y B-Z B-V".split()}, 2),
        ("span_f1", drawn_labels, "B-Ann Ann B-V O", {*"VXYZ"}, 1),
        ("micro_f1", drawn_set, "Ann, late", {"blue", "late", "red", "wet"}, 1),
    )
    def test_answers_that_are_no_label_are_counted_together_without_their_text(
        self, metric, draw, answer, labels, other_answers
    ):
        report = reported(labelled_run(metric, draw, answer), max_examples=0)
        (entry,) = report.data["label_scores"]
        self.assertEqual({scores["label"] for scores in entry["labels"]}, labels)
        self.assertEqual(entry["other_answers"], other_answers)
        (caption,) = (name for name in Page(report.html).tables if name.startswith("rows by label, a"))
        self.assertEndsWith(caption, f"other answers, which are no label: {other_answers})")
        self.assertNotIn("Ann", report.html + report.markdown + json.dumps(report.data))


def bytes_in(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.out = Path(tempfile.mkdtemp()) / "out"

    @pytest.mark.slow
    def test_a_later_report_takes_the_place_of_an_earlier_one(self):
        command(*three_runs()[1:], "--output", self.out, "--format", "html,md")
        first = bytes_in(self.out)
        command(three_runs()[0], "--output", self.out, "--format", "html")
        second = bytes_in(self.out)
        alone = self.out.with_name("alone")
        command(three_runs()[0], "--output", alone, "--format", "html")
        self.assertEqual(second, bytes_in(alone))
        self.assertContainsSubset({"report.md", "plots/curve-similarity-pearson.png"}, first.keys() - second.keys())

    @parameterized.parameters("notes.txt", "plots/mine.png", "report.md")
    def test_a_folder_with_foreign_files_is_refused_before_anything_is_written(self, name):
        if name != "report.md":
            command(three_runs()[0], "--output", self.out, "--format", "html")
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_text("mine")
        before = bytes_in(self.out)
        with exits_with(78, rf"--output .*: {name} in it was not written by a report"):
            command(three_runs()[1], "--output", self.out)
        self.assertEqual(bytes_in(self.out), before)

    def test_it_prints_the_table_and_writes_every_file(self):
        printed = command(*three_runs()[:1], "--output", self.out)
        self.assertIn("mini/sentiment", printed)
        self.assertIn(f"report: {self.out}/report.html", printed)
        said = "note: the report shows the texts of 40 examples; --max_examples 0 leaves them out"
        self.assertEqual(printed.splitlines()[-1], said)
        pictures = re.findall(r"\]\((plots/[^)]+)\)", (self.out / "report.md").read_text())
        self.assertIn("plots/curve-sentiment-accuracy.png", pictures)
        for picture in pictures:
            self.assertTrue((self.out / picture).is_file(), picture)
        num_files = len(list((self.out / "plots").iterdir()))
        self.assertIn(f" and {num_files} plots in {self.out / 'plots'}\n", printed)

    def test_without_examples_no_text_of_a_row_is_in_a_file_and_none_is_named(self):
        printed = command(*three_runs()[:1], "--output", self.out, "--max_examples", 0)
        self.assertNotIn("texts of", printed)
        files = b"".join(bytes_in(self.out).values()).decode("utf-8", "replace")
        for row in tiny_rows("sentiment", "validation", 40):
            self.assertNotIn(json.dumps(row["sentence"])[1:-1], files)

    def test_a_pattern_in_quotes_names_what_a_shell_would_make_of_it(self):
        place = folder()
        for name in ("a", "b"):
            make_run(place / "runs" / name, "sentiment")
        self.assertEqual(
            command(place / "runs" / "*", "--format", "none"),
            command(place / "runs" / "a", place / "runs" / "b", "--format", "none"),
        )
        with exits_with(65, "runs/c"):
            command(place / "runs" / "c*", "--format", "none")

    def test_the_markdown_has_the_invalid_and_wrong_answers_of_the_page(self):
        run = make_run(folder() / "s1", "sentiment", wrong=0.3, invalid=0.1)
        report = reported(run)
        shown = [example for part in report.data["examples"] for example in part["examples"]]
        expected = [example for example in shown if example["verdict"] in ("invalid", "wrong")]
        self.assertGreater(len(expected), 10)
        tables = [rows for rows in markdown_tables(report.markdown) if "answer" in rows[0]]
        rows = [row for table in tables for row in table]
        self.assertEqual([row["answer"] for row in rows], [example["prediction"] for example in expected])
        self.assertEqual([row["target"] for row in rows], [example["target"] for example in expected])

    def test_numbers_are_not_wrong_but_farther_from_the_truth_or_less_far(self):
        answers = ["no label", *(["0.0", "2.4", "5.0", "1.0"] * 10)[:39]]
        run = make_run(folder() / "s1", "similarity", predictions=answers)
        targets = [line["target"] for line in read_rows(run / "predictions/similarity.validation.jsonl")]
        distances = [
            abs(float(answer) - float(target)) for answer, target in zip(answers[1:], targets[1:], strict=True)
        ]
        order = [0, *sorted(range(1, 40), key=lambda row: -round(distances[row - 1], 6))]
        report = reported(run)
        (part,) = report.data["examples"]
        self.assertEqual(part["verdicts"], {"invalid": 1, "numeric": 39})
        self.assertEqual([example["row"] for example in part["examples"]], order)
        self.assertIn("similarity · s1: 39 numbers, the farthest from the truth first<", report.html)
        self.assertIn(f'<span class="verdict">off by {max(distances):.4g}</span>', report.html)
        self.assertNotIn('class="wrong"', report.html)
        (invalid, numbers) = [rows for rows in markdown_tables(report.markdown) if "answer" in rows[0]]
        self.assertEqual([row["answer"] for row in invalid], ["no label"])
        self.assertEqual([row["answer"] for row in numbers], [answers[row] for row in order[1:]])

    def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(self):
        """Root may write anywhere."""
        with mock.patch("os.access", lambda path, mode: False), exits_with(78, "--output .*cannot be written"):
            run_cli("report", "no_such_run", "--output", folder() / "report")

    def test_folders_that_are_no_runs_are_skipped_and_the_runs_inside_are_named(self):
        place = folder()
        run = make_run(place / "runs/a", "sentiment")
        make_run(place / "runs/demo/inner", "sentiment")
        (place / "runs/empty").mkdir()
        (place / "runs/notes.txt").write_text("mine")
        damaged = make_run(place / "runs/damaged", "sentiment")
        Path(damaged, "manifest.json").write_text("{")
        without_results = make_run(place / "runs/unreadable", "sentiment")
        Path(without_results, "results.json").write_text("{")
        (place / "runs/waiting").mkdir()
        (place / "runs/waiting/sweep.yaml").write_text("method: grid\n")
        named = sorted(map(str, (place / "runs").iterdir()))
        printed = command(*named, "--format", "none")
        self.assertIn(f"note: {place}/runs/demo: no run, but it holds some: {place}/runs/demo/*\n", printed)
        for other in ("empty", "notes.txt"):
            self.assertRegex(printed, rf"note: {place}/runs/{other}: no finished run")
        self.assertRegex(printed, rf"note: {place}/runs/damaged/manifest.json: .*JSON")
        self.assertRegex(printed, rf"note: {place}/runs/unreadable/results.json: .*JSON")
        self.assertIn(f"note: {place}/runs/waiting: no sweep.json", printed)
        named_twice = [*named, f"{run}/"]
        table, of_run = (cli_output("report", *words, "--format", "none") for words in (named_twice, [run]))
        self.assertEqual(table, of_run)
        self.assertEqual(reported(*named).data["runs"], reported(run).data["runs"])

    def test_without_any_run_a_report_is_refused(self):
        place = folder()
        make_run(place / "demo/inner", "sentiment")
        (place / "empty").mkdir()
        for named, message in (
            (["demo"], "demo: no run, but it holds some: .*demo/[*]"),
            (["empty"], "empty: no finished run"),
            (["demo", "empty"], "demo: no run, but.*empty: no finished run"),
            (["demo/inner", "misspelt"], "misspelt: no finished run"),
        ):
            with exits_with(65, message):
                run_cli("report", *[place / name for name in named], "--output", place / "report")

    def test_json_lines_and_the_table_alone_write_nothing(self):
        with contextlib.chdir(folder()):
            (line, *_) = command(three_runs()[0], "--json").splitlines()
            command(three_runs()[0], "--format", "none")
            self.assertEqual((json.loads(line)["task"], list(Path().iterdir())), ("sentiment", []))

    def test_a_format_that_is_named_is_written_beside_json_lines(self):
        with contextlib.chdir(folder()):
            command(three_runs()[0], "--json", "--format", "json")
            self.assertTrue(Path("report/report.json").is_file())

    def test_bad_flags_are_named(self):
        for flag, value in (("--format", "pdf"), ("--size", "huge"), ("--max_examples", "-1")):
            with exits_with(78, flag):
                command(three_runs()[0], flag, value)


@functools.cache
def page_file() -> Path:
    place = Path(tempfile.mkdtemp())
    texts = [EVIL if i % 5 == 0 else ("positive", "negative")[i % 2] for i in range(60)]
    runs = [
        make_run(place / "s1", "sentiment", seed=1, count=60),
        make_run(place / "evil", "sentiment", seed=2, count=60, predictions=texts),
        make_run(place / "low", "entailment", seed=1, learning_rate=1e-4, count=30),
    ]
    path = place / "report.html"
    path.write_text(drawn_page(*runs, "--size", "small"), encoding="utf-8")
    return path


@pytest.mark.slow
class BrowserTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = start_browser(cls)

    def open(self, width=1280, theme="light", **options):
        context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        self.addCleanup(context.close)
        context.set_default_timeout(60_000)
        page, self.complaints, complain = context.new_page(), [], lambda said: self.complaints.append(str(said))
        page.on("console", lambda message: complain(message.text))
        page.on("pageerror", complain)
        page.on("request", lambda request: None if "report.html" in request.url else complain(request.url))
        page.goto(page_file().as_uri())
        return page

    @parameterized.product(width=(1280, 400), theme=("light", "dark"))
    def test_it_opens_without_complaint_and_fits(self, width, theme):
        page = self.open(width, theme)
        self.assertEqual(self.complaints, [])
        self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), width)
        cells = "[...document.querySelectorAll('.sortable td')].map((cell) => cell.getBoundingClientRect().right)"
        self.assertLess(max(page.evaluate(cells)), width, "no interval scrolls out of view")
        self.assertIsNone(page.evaluate("window.hacked ?? null"))
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        self.assertEqual(ground, "rgb(255, 255, 255)" if theme == "light" else "rgb(18, 23, 28)")
        sizes = page.evaluate(
            "[...document.querySelectorAll('figure img')].map((i) => i.naturalWidth && i.getBoundingClientRect().height)"
        )
        self.assertGreater(min(sizes), 100)

    @parameterized.parameters(1280, 1200, 400)
    def test_all_links_to_sections_are_seen_and_none_leads_below_them(self, width):
        page = self.open(width)
        widths = page.evaluate(
            "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(document.querySelector('nav'))"
        )
        self.assertLessEqual(widths[0], widths[1])
        for place in range(page.locator("nav a").count()):
            link = page.locator("nav a").nth(place)
            link.click()
            top = page.locator(link.get_attribute("href")).bounding_box()["y"]
            bar = page.locator("nav").bounding_box()
            self.assertGreaterEqual(round(top), round(bar["y"] + bar["height"]))

    def test_a_header_sorts_up_and_down_by_keyboard(self):
        page = self.open()
        table = page.locator("#runs table")
        values = lambda: [float(v) for v in table.locator("tbody td:nth-child(4)").evaluate_all(
            "(cells) => cells.map((cell) => cell.dataset.value)")]  # fmt: skip
        head = table.locator("thead th").nth(3)
        head.locator("button").focus()
        page.keyboard.press("Enter")
        self.assertEqual(head.get_attribute("aria-sort"), "ascending")
        self.assertEqual(values(), sorted(values()))
        page.keyboard.press("Space")
        self.assertEqual(head.get_attribute("aria-sort"), "descending")
        self.assertEqual(values(), sorted(values(), reverse=True))

    def test_groups_of_examples_hold_what_they_say(self):
        """A group is one run's answers to one task with one verdict; the first is open, the others open on a key."""
        page = self.open()
        groups = page.locator("details.answered")
        num_examples = 0
        for number in range(groups.count()):
            group = groups.nth(number)
            title = group.locator("summary").inner_text()
            place, count, verdict = re.fullmatch(r"(.+): (\d+) (\w+)(?:, the farthest .* first)?", title).groups()
            items = group.locator("li")
            self.assertEqual(group.get_attribute("open") is not None, number == 0, title)
            self.assertEqual(items.count(), int(count), title)
            verdicts = set(items.locator(".verdict").all_text_contents())
            if verdict == "numbers":
                verdicts = {re.sub(r"off by [\d.]+", "numbers", text) for text in verdicts}
            self.assertEqual(verdicts, {verdict}, title)
            num_examples += items.count()
        self.assertEqual(num_examples, 150)
        invalid_evil = groups.filter(has_text="evil: 12 invalid")
        item = invalid_evil.locator("li").first
        self.assertFalse(item.is_visible())
        invalid_evil.locator("summary").focus()
        page.keyboard.press("Enter")
        self.assertTrue(item.is_visible())
        self.assertIn("<img src=x onerror=window.hacked=1>", item.inner_text())
