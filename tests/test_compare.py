"""`t5suite compare`: the same rows, paired p-values by brute force, flips both ways, refusals by name."""

import contextlib
import io
import itertools
import json
import math
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.stats
from absl.testing import absltest, parameterized
from report_runs import make_run

from t5suite import cli
from t5suite.base.errors import DataError
from t5suite.reports import intervals
from t5suite.reports.compare import compare_runs, json_lines
from t5suite.reports.intervals import mcnemar, paired_bootstrap, statistic_of
from t5suite.tasks.metrics import METRICS
from t5suite.tasks.postprocessors import Judged


def folder() -> Path:
    return Path(tempfile.mkdtemp())


def two_runs(name="sentiment", b=None, **settings):
    place = folder()
    first = make_run(place / "a", name, seed=1, wrong=0.4, **settings)
    return first, make_run(place / "b", name, **{"seed": 1, "wrong": 0.1, **settings, **(b or {})})


def command(*argv) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["compare", *map(str, argv)])
    return out.getvalue()


class McNemarTest(parameterized.TestCase):
    def test_p_is_that_of_all_ways_the_coins_may_fall(self):
        for only_a, only_b in itertools.product(range(5), range(5)):
            n = only_a + only_b
            falls = map(sum, itertools.product((0, 1), repeat=n))
            as_far = [heads for heads in falls if abs(heads - n / 2) >= abs(only_a - n / 2)]
            self.assertAlmostEqual(mcnemar(only_a, only_b), len(as_far) / 2**n)

    def test_large_numbers_follow_the_textbook_formula(self):
        b, c = 10, 27  # twice the lower tail of a fair coin
        tail = sum(math.comb(b + c, k) for k in range(b + 1)) / 2 ** (b + c)
        self.assertAlmostEqual(mcnemar(b, c), 2 * tail)


def f1_by_counts(predictions, references) -> float:
    right = ((predictions == 1) & (references == 1)).sum()
    return 100 * 2 * right / ((predictions == 1).sum() + (references == 1).sum())


PLAIN = {
    "accuracy": lambda predictions, references: 100 * (predictions == references).mean(),
    "f1": f1_by_counts,
    "spearman": lambda predictions, references: (
        100 * np.corrcoef(*map(scipy.stats.rankdata, (predictions, references)))[0, 1]
    ),
}


class PairedBootstrapTest(parameterized.TestCase):
    @parameterized.parameters(*PLAIN)
    def test_it_is_the_plain_loop_over_drawn_rows(self, name):
        rng = np.random.default_rng(7)
        count = 80
        if name == "spearman":
            references = list(rng.normal(size=count))
            sides = [[r + rng.normal() * noise for r in references] for noise in (1.5, 0.9)]
        else:
            references = list(map(int, rng.integers(0, 2, count)))
            sides = [[r if rng.random() < keep else 1 - r for r in references] for keep in (0.65, 0.8)]
        statistics = [statistic_of(name, METRICS[name], Judged(side, references), 2) for side in sides]
        with mock.patch.object(intervals, "RESAMPLES_DIRECT", 250):
            found = paired_bootstrap(*statistics)
        drawn = []
        for _ in range(600):
            rows = rng.integers(count, size=count)
            labels = [references[i] for i in rows]
            of = [PLAIN[name](np.array(side)[rows], np.array(labels)) for side in sides]
            drawn.append(of[1] - of[0])
        drawn = np.array(drawn)
        whole = [METRICS[name](side, references, num_classes=2) for side in sides]
        self.assertAlmostEqual(found["difference"], whole[1] - whole[0])
        low, high = np.quantile(drawn, [0.025, 0.975])
        self.assertLess(abs(found["low"] - low), 0.2 * (high - low))
        self.assertLess(abs(found["high"] - high), 0.2 * (high - low))
        p = 2 * min((drawn <= 0).mean(), (drawn >= 0).mean())
        self.assertLess(abs(found["p"] - p), 0.06)

    def test_the_same_answers_differ_in_nothing(self):
        judged = Judged([1, 0, 1, 1], [1, 1, 1, 0])
        statistic = statistic_of("accuracy", METRICS["accuracy"], judged, 2)
        found = paired_bootstrap(statistic, statistic)
        self.assertEqual((found["difference"], found["low"], found["high"], found["p"]), (0.0, 0.0, 0.0, 1.0))

    def test_p_is_two_sided(self):
        # 20 rows only A has right, 30 only B: about normal, with the variance of the 50 that differ.
        references = [1] * 100
        a = statistic_of("accuracy", METRICS["accuracy"], Judged([1] * 20 + [0] * 30 + [1] * 50, references), 2)
        b = statistic_of("accuracy", METRICS["accuracy"], Judged([0] * 20 + [1] * 30 + [1] * 50, references), 2)
        expected = math.erfc(10 / math.sqrt(50 - 10**2 / 100) / math.sqrt(2))
        self.assertAlmostEqual(paired_bootstrap(a, b)["p"], expected, delta=0.03)

    def test_both_are_drawn_the_same_rows(self):
        # A has one row right more than B, always the same: the difference is never negative.
        references = [1] * 30
        a = statistic_of("accuracy", METRICS["accuracy"], Judged([1] * 15 + [0] * 15, references), 2)
        b = statistic_of("accuracy", METRICS["accuracy"], Judged([1] * 16 + [0] * 14, references), 2)
        self.assertGreaterEqual(paired_bootstrap(a, b)["low"], 0.0)


class CompareTest(parameterized.TestCase):
    def test_scores_and_counts_are_those_of_the_predictions(self):
        a, b = two_runs()
        found = compare_runs(a, b)
        (entry,) = found["scores"]
        lines = [
            [json.loads(line) for line in (run / "predictions/sentiment.validation.jsonl").open()] for run in (a, b)
        ]
        right = [[line["prediction"] == line["target"] for line in side] for side in lines]
        self.assertAlmostEqual(entry["a"], 100 * np.mean(right[0]))
        self.assertAlmostEqual(entry["b"], 100 * np.mean(right[1]))
        only_a = sum(x and not y for x, y in zip(*right))
        only_b = sum(y and not x for x, y in zip(*right))
        self.assertEqual((entry["mcnemar"]["only_a"], entry["mcnemar"]["only_b"]), (only_a, only_b))
        directions = [flip["direction"] for flip in found["flips"]]
        self.assertEqual((directions.count("lost"), directions.count("gained")), (only_a, only_b))
        self.assertGreater(only_a * only_b, 0)

    def test_a_flip_shows_the_row_and_both_answers(self):
        a, b = two_runs()
        flip = compare_runs(a, b)["flips"][0]
        self.assertStartsWith(flip["inputs"], "sentiment")
        self.assertNotEqual(flip["a"], flip["b"])
        self.assertIn(flip["target"], (flip["a"], flip["b"]))

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
        with self.assertRaisesRegex(DataError, "sentiment: a and b were scored on different rows: row .* has target"):
            compare_runs(a, b)

    def test_without_texts_the_fingerprints_must_agree(self):
        a, b = two_runs()
        for run, told in ((a, "sha256:one"), (b, "sha256:two")):
            manifest = json.loads((run / "manifest.json").read_text())
            manifest["data"]["sentiment.validation"]["fingerprint"] = told
            (run / "manifest.json").write_text(json.dumps(manifest))
        with self.assertRaisesRegex(DataError, "different rows: fingerprints sha256:one and sha256:two"):
            compare_runs(a, b)

    def test_runs_without_a_task_in_common_are_refused(self):
        place = folder()
        a, b = make_run(place / "a", "sentiment"), make_run(place / "b", "entailment")
        with self.assertRaisesRegex(DataError, "a has sentiment and b has entailment"):
            compare_runs(a, b)
        with self.assertRaisesRegex(DataError, "given twice"):
            compare_runs(a, a)

    def test_an_unfinished_run_is_refused(self):
        place = folder()
        a, b = make_run(place / "a", "sentiment"), make_run(place / "b", "sentiment", finished=False)
        with self.assertRaisesRegex(DataError, "b: no finished run with predictions"):
            compare_runs(a, b)

    def test_correlations_have_a_bootstrap_and_no_mcnemar(self):
        a, b = two_runs("similarity")
        with mock.patch.object(intervals, "RESAMPLES_DIRECT", 20):
            scores = compare_runs(a, b)["scores"]
        for entry in scores:
            self.assertIsNone(entry["mcnemar"])
            self.assertIsNotNone(entry["bootstrap"])

    def test_json_lines_hold_scores_and_every_flip(self):
        a, b = two_runs()
        lines = [json.loads(line) for line in command(a, b, "--json").splitlines()]
        self.assertEqual(lines, json.loads(json.dumps(json_lines(compare_runs(a, b)))))
        self.assertEqual(lines[0]["a"], "a")
        self.assertEqual({line["flip"] for line in lines[2:]}, {"lost", "gained"})

    def test_markdown_escapes_what_rows_hold(self):
        a, b = two_runs()
        path = folder() / "compare.md"
        said = command(a, b, "--output", path, "--max_flips", "1")
        self.assertIn("right in B, not in A", said)
        text = path.read_text()
        self.assertIn("| sentiment | accuracy |", text)
        self.assertRegex(text, r"## sentiment: \d+ right in A, not in B")


if __name__ == "__main__":
    absltest.main()
