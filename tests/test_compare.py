"""`t5suite compare`: paired p-values by brute force, flips, refusals by name; rows of your own are read again."""

import contextlib
import io
import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import scipy.stats
from absl.testing import parameterized
from report_runs import make_own_run, make_run
from support import folder

from t5suite.data.rows.formats import rows_stay
from t5suite.reports.compare import compare_runs
from t5suite.reports.evaluations import evaluations_of
from t5suite.reports.intervals import mcnemar, paired_bootstrap, statistic_of
from t5suite.reports.page import html_page
from t5suite.reports.results import report_data
from t5suite.tasks.metrics import METRICS
from t5suite.tasks.postprocessors import Judged
from t5suite.testing import exits_with, run_cli

WORDS = "soup stew bread cake pie".split()


def two_runs(name="sentiment", b=None, **settings):
    place = folder()
    first = make_run(place / "a", name, seed=1, wrong=0.4, **settings)
    return first, make_run(place / "b", name, **{"seed": 1, "wrong": 0.1, **settings, **(b or {})})


def command(*argv) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        run_cli("compare", *map(str, argv))
    return out.getvalue()


class McNemarTest(parameterized.TestCase):
    def test_p_is_that_of_all_ways_the_coins_may_fall(self):
        for only_a, only_b in itertools.product(range(5), range(5)):
            n = only_a + only_b
            falls = map(sum, itertools.product((0, 1), repeat=n))
            as_far = [heads for heads in falls if abs(heads - n / 2) >= abs(only_a - n / 2)]
            self.assertAlmostEqual(mcnemar(only_a, only_b), len(as_far) / 2**n)


def f1_by_counts(predictions, references):
    right = ((predictions == 1) & (references == 1)).sum(axis=1)
    return 100 * 2 * right / ((predictions == 1).sum(axis=1) + (references == 1).sum(axis=1))


def spearman_by_ranks(predictions, references):
    ranks = [scipy.stats.rankdata(side, axis=1) for side in (predictions, references)]
    first, second = (side - side.mean(axis=1, keepdims=True) for side in ranks)
    return 100 * (first * second).sum(axis=1) / np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))


# Each over rows of drawn answers, `(draws, answers)`.
PLAIN = {
    "accuracy": lambda predictions, references: 100 * (predictions == references).mean(axis=1),
    "f1": f1_by_counts,
    "spearman": spearman_by_ranks,
}
DRAWN = 3000


class PairedBootstrapTest(parameterized.TestCase):
    @parameterized.parameters(*PLAIN)
    def test_it_is_the_plain_loop_over_drawn_rows(self, name):
        rng, count = np.random.default_rng(7), 80
        if name == "spearman":
            references = list(rng.normal(size=count))
            sides = [[r + rng.normal() * noise for r in references] for noise in (1.5, 0.9)]
        else:
            references = list(map(int, rng.integers(0, 2, count)))
            sides = [[r if rng.random() < keep else 1 - r for r in references] for keep in (0.65, 0.8)]
        statistics = [statistic_of(METRICS[name], Judged(side, references), 2) for side in sides]
        interval = paired_bootstrap(*statistics)
        rows = np.random.default_rng(8).integers(count, size=(DRAWN, count))
        labels = np.array(references)[rows]
        of_sides = [PLAIN[name](np.array(side)[rows], labels) for side in sides]
        differences = of_sides[1] - of_sides[0]
        whole = [METRICS[name](side, references, num_classes=2) for side in sides]
        self.assertAlmostEqual(interval["difference"], whole[1] - whole[0])
        low, high = np.quantile(differences, [0.025, 0.975])
        # Each end of a 90% interval lies 0.08 of the width further in. With fewer draws ends are less certain.
        width, ends = high - low, np.array([interval["low"] - low, high - interval["high"]])
        self.assertLess(np.abs(ends).max(), 0.03 * width if name != "spearman" else 0.07 * width)
        self.assertLess(abs(ends.sum()), 0.05 * width if name != "spearman" else 0.1 * width)
        p = 2 * min((differences <= 0).mean(), (differences >= 0).mean())
        self.assertLess(abs(interval["p"] - p), 0.02)

    @parameterized.parameters((100, 30), (400, 8))
    def test_the_interval_is_that_of_the_binomial_where_only_one_has_rows_right(self, count, more_right):
        # The rows drawn that B alone has right are binomial. A 90% interval's ends are 1 or 2 rows further in, each.
        num_right = 50
        first = [1] * num_right + [0] * (count - num_right)
        second = [1] * (num_right + more_right) + [0] * (count - num_right - more_right)
        statistics = [statistic_of(METRICS["accuracy"], Judged(side, [1] * count), 2) for side in (first, second)]
        interval = paired_bootstrap(*statistics)
        rows = np.array([interval["low"], interval["high"]]) * count / 100
        ends = scipy.stats.binom.ppf([0.025, 0.975], count, more_right / count)
        self.assertLessEqual(np.abs(rows - ends).sum(), 1.0001)

    def test_p_is_two_sided_and_both_are_drawn_the_same_rows(self):
        of = lambda answers: statistic_of(METRICS["accuracy"], Judged(answers, [1] * len(answers)), 2)
        found = paired_bootstrap(of([1, 0, 1, 1]), of([1, 0, 1, 1]))
        self.assertEqual((found["difference"], found["low"], found["high"], found["p"]), (0.0, 0.0, 0.0, 1.0))
        # 20 rows only A has right, 30 only B: about normal, with the variance of the 50 that differ.
        found = paired_bootstrap(of([1] * 20 + [0] * 30 + [1] * 50), of([0] * 20 + [1] * 30 + [1] * 50))
        expected = math.erfc(10 / math.sqrt(50 - 10**2 / 100) / math.sqrt(2))
        self.assertAlmostEqual(found["p"], expected, delta=0.03)
        # B has one row right more than A, always the same: the difference is never negative.
        self.assertGreaterEqual(paired_bootstrap(of([1] * 15 + [0] * 15), of([1] * 16 + [0] * 14))["low"], 0.0)


class CompareTest(parameterized.TestCase):
    def test_scores_and_counts_are_those_of_the_predictions(self):
        a, b = two_runs()
        found = compare_runs(a, b)
        (entry,) = found["scores"]
        right = []
        for run in (a, b):
            lines = [json.loads(line) for line in (run / "predictions/sentiment.validation.jsonl").open()]
            right.append([line["prediction"] == line["target"] for line in lines])
        self.assertAlmostEqual(entry["a"], 100 * np.mean(right[0]))
        self.assertAlmostEqual(entry["b"], 100 * np.mean(right[1]))
        only_a = sum(x and not y for x, y in zip(*right))
        only_b = sum(y and not x for x, y in zip(*right))
        self.assertEqual((entry["mcnemar"]["only_a"], entry["mcnemar"]["only_b"]), (only_a, only_b))
        directions = [flip["direction"] for flip in found["flips"]]
        self.assertEqual((directions.count("lost"), directions.count("gained")), (only_a, only_b))
        self.assertGreater(only_a * only_b, 0)
        flip = found["flips"][0]
        self.assertStartsWith(flip["inputs"], "sentiment")
        self.assertIn(flip["target"], {flip["a"], flip["b"]})

    def test_subsets_are_compared_on_their_common_rows(self):
        a, b = two_runs(b={"seed": 2})
        (entry,) = compare_runs(a, b)["scores"]
        self.assertEqual((entry["rows_a"], entry["rows_b"]), (40, 40))
        self.assertBetween(entry["rows"], 1, 39)
        self.assertIn("rows in common, of 40 in A and 40 in B", command(a, b))

    def test_other_rows_are_refused_by_name(self):
        a, b = two_runs()
        path = b / "predictions" / "sentiment.validation.jsonl"
        lines = [json.loads(line) for line in path.open()]
        lines[3]["target"] = "positive" if lines[3]["target"] == "negative" else "negative"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with exits_with(65, "sentiment: a and b were scored on different rows: row .* has target"):
            compare_runs(a, b)

    def test_without_texts_the_fingerprints_must_agree(self):
        a, b = two_runs()
        for run, told in ((a, "sha256:one"), (b, "sha256:two")):
            manifest = json.loads((run / "manifest.json").read_text())
            manifest["data"]["sentiment.validation"]["fingerprint"] = told
            (run / "manifest.json").write_text(json.dumps(manifest))
        with exits_with(65, "different rows: fingerprints sha256:one and sha256:two"):
            compare_runs(a, b)

    def test_runs_that_cannot_be_compared_are_refused(self):
        place = folder()
        a, b = make_run(place / "a", "sentiment"), make_run(place / "b", "entailment")
        unfinished = make_run(place / "c", "sentiment", finished=False)
        for other, said in (
            (b, "a has mini: sentiment; b has mini: entailment"),
            (a, "given twice"),
            (unfinished, "c: no finished run with"),
        ):
            with exits_with(65, said):
                compare_runs(a, other)


def reviews(count=40) -> list[dict]:
    texts = [f"I {'loved' if i % 3 else 'hated'} the {WORDS[i % 5]}, number {i}." for i in range(count)]
    return [{"input": text, "output": "good" if i % 3 else "bad"} for i, text in enumerate(texts)]


def written(place: Path, form: str, rows=None) -> Path:
    """The reviews as CSV, its first row on line 2, or as JSON lines."""
    path, rows = place / f"reviews.{form}", rows or reviews()
    lines = [json.dumps(row) for row in rows]
    if form == "csv":
        lines = ["input,output", *(f'"{row["input"]}",{row["output"]}' for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def own_runs(path, seeds=(1,), **settings) -> list[Path]:
    settings = {"train_file": str(path), "data_format": path.suffix[1:], **settings}
    return [make_own_run(folder() / f"s{seed}", "reviews", seed=seed, **settings) for seed in seeds]


def line_of(path: Path, where: str) -> str:
    """The line of a file that a place ('reviews.csv:6') names."""
    name, _, number = where.rpartition(":")
    assert name == path.name, where
    return path.read_text().splitlines()[int(number) - 1]


class TextsTest(parameterized.TestCase):
    @parameterized.parameters(("csv", None), ("csv", 7), ("jsonl", 7))
    def test_every_example_is_the_line_of_the_file_that_it_names(self, form, limit):
        path = written(folder(), form)
        data = report_data(own_runs(path, limit=limit))
        (part,) = data["examples"]
        self.assertLen(part["examples"], limit or 12)
        for example in part["examples"]:
            line = line_of(path, example["where"])
            self.assertIn(example["inputs"].removeprefix("review: "), line)
            self.assertIn(example["target"], line.rpartition("number")[2])
        self.assertEqual(data["runs"][0]["notes"], ["no metrics.jsonl: no curves, no speed"])

    def test_a_file_that_changed_is_named_and_its_texts_are_not_shown(self):
        path = written(folder(), "csv")
        (run,) = own_runs(path)
        path.write_text(path.read_text().replace("number 7", "number seven"))
        (evaluation,) = evaluations_of(run)
        self.assertRegex(evaluation.note, rf"more: {path} has changed since")
        self.assertEqual({example["inputs"] for example in evaluation.examples}, {None})
        self.assertIsNotNone(evaluation.judged, "the targets still give the scores")
        self.assertIn(f"s1, reviews, without texts: {evaluation.note}", html_page(report_data([run]), [], {}))
        (other,) = own_runs(written(folder(), "jsonl"), seeds=(2,), keeps=True)
        with exits_with(65, "none in common; s1: .* has changed since"):
            compare_runs(run, other)
        twin = shutil.copytree(run, folder() / "b")
        self.assertEqual(compare_runs(run, twin)["notes"], [f"{name}: {evaluation.note}" for name in ("s1", "b")])


class KeptTextsTest(parameterized.TestCase):
    def test_runs_keep_texts_that_nothing_could_read_again(self):
        for settings, stay in (
            ({"benchmark": "glue"}, True),
            ({"data_format": "csv", "train_file": "a.csv"}, True),
            ({"data_format": "hub", "hub_path": "imdb"}, True),
            ({"data_format": "jsonl", "train_file": None}, False),
            ({"data_format": "text", "train_file": "a.txt"}, False),
            ({"data_class": ["JSONLines"], "data_path": ["rows"]}, False),
        ):
            self.assertEqual(rows_stay(settings), stay, settings)


class ComparedOwnRowsTest(parameterized.TestCase):
    def test_held_out_rows_of_two_seeds_are_compared_on_those_that_both_have(self):
        path = written(folder(), "csv")
        runs = own_runs(path, (1, 2))
        sides = [{e["inputs"]: e for e in evaluations_of(run)[0].examples} for run in runs]
        common = [text for text in sides[0] if text in sides[1]]
        right = [sum(side[text]["prediction"] == side[text]["target"] for text in common) for side in sides]
        found = compare_runs(*runs)
        (entry,) = found["scores"]
        self.assertEqual(entry["rows"], len(common))
        self.assertAlmostEqual(entry["a"], 100 * right[0] / len(common))
        self.assertAlmostEqual(entry["b"], 100 * right[1] / len(common))
        for flip in found["flips"]:
            self.assertIn(flip["inputs"].removeprefix("review: "), line_of(path, flip["key"]))

    def test_without_the_file_held_out_rows_of_two_seeds_are_not_compared(self):
        path = written(folder(), "csv", [{"input": f"row {i}", "output": "good"} for i in range(40)])
        runs = own_runs(path, (1, 2), wrong=0.0)
        path.unlink()
        with exits_with(65, "drawn with seeds 1 and 2"):
            compare_runs(*runs)
