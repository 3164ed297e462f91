"""Intervals and paired p-values: by brute force, by exact distributions, and by how often they hold the true value.

Also which checkpoint's score is marked as the best.
"""

import contextlib
import io
import itertools
import math
import random
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import scipy.stats
from absl.testing import parameterized
from shown_tables import terminal_tables
from sklearn.metrics import f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from t5suite.reports import intervals
from t5suite.reports.compare import mcnemar_test, score_cells
from t5suite.reports.intervals import mcnemar, paired_bootstrap
from t5suite.reports.resampled_metrics import SUMS, Statistic, statistic_of, units_of
from t5suite.reports.tables import print_checkpoint_table
from t5suite.tasks.metrics import METRICS


class Judged(NamedTuple):
    """Predictions and references as metrics take them, and the groups of rows that are drawn together."""

    predictions: list
    references: list
    groups: list | None = None


def classes(count: int, num: int, groups=False, seed=0) -> Judged:
    drawn = random.Random(seed)
    references = [drawn.randrange(num) for _ in range(count)]
    predictions = [r if drawn.random() < 0.6 else drawn.choice([-1, *range(num)]) for r in references]
    return Judged(predictions, references, [f"g{drawn.randrange(count // 3)}" for _ in references] if groups else None)


def numbers(count: int, seed=0) -> Judged:
    drawn = random.Random(seed)
    references = [drawn.uniform(0, 5) for _ in range(count)]
    return Judged([r + drawn.gauss(0, 1) for r in references], references)


def normal_pairs(count: int, correlation: float) -> Judged:
    """Predictions and references that are normal with a correlation."""
    references, noise = np.random.default_rng(5).normal(size=(2, count))
    predictions = correlation * references + np.sqrt(1 - correlation**2) * noise
    return Judged(predictions.tolist(), references.tolist())


def texts(count: int, seed=0) -> Judged:
    drawn, words = random.Random(seed), "the cat sat on a mat and it was red".split()
    sentence = lambda: " ".join(drawn.choice(words) for _ in range(4))
    return Judged([sentence() for _ in range(count)], [[sentence(), sentence()] for _ in range(count)])


def sets_of_labels(count: int, seed=0) -> Judged:
    """Sets of labels as texts; of the predictions some are empty, some have a label that no reference has."""
    drawn = random.Random(seed)
    faults = ("broken", "late", "rude staff", "wrong item")
    drawn_set = lambda labels: [label for label in labels if drawn.random() < 0.4]
    references = [drawn_set(faults) or ["none"] for _ in range(count)]
    predictions = [labels if drawn.random() < 0.5 else drawn_set((*faults, "invented")) for labels in references]
    return Judged([", ".join(labels[::-1]) for labels in predictions], [", ".join(labels) for labels in references])


CASES = {
    **dict.fromkeys(("accuracy", "exact_match", "mean_3class_f1"), (classes(40, 3), 3)),
    **dict.fromkeys(("grouped_exact_match", "f1", "gender_parity"), (classes(40, 2, groups=True), 2)),
    **dict.fromkeys(("matthews_correlation", "precision"), (classes(40, 2), 2)),
    **dict.fromkeys(("pearson", "spearman", "neg_mean_absolute_error"), (numbers(40), None)),
    **dict.fromkeys(("squad_f1", "squad_exact_match", "bleu", "rouge1", "rouge2"), (texts(12), None)),
    **dict.fromkeys(("rougeL", "rougeLsum", "instruction_rougeL", "instruction_exact_match"), (texts(12), None)),
    "json_match": (texts(12), None),
    **dict.fromkeys(("micro_f1", "macro_f1", "subset_accuracy"), (sets_of_labels(12), None)),
    "f1_macro": (classes(40, 4), 4),
}


class MetricSumsTest(parameterized.TestCase):
    def test_every_metric_by_sums_is_tried_here(self):
        self.assertEqual(set(SUMS) - {METRICS[name].__name__ for name in CASES}, set())

    @parameterized.parameters(*CASES)
    def test_a_resample_by_sums_is_the_metric_of_the_rows_drawn(self, name):
        judged, num_classes = CASES[name]
        statistic = statistic_of(METRICS[name], judged, num_classes)
        self.assertEqual(statistic.unit_sums is not None, METRICS[name].__name__ in SUMS)
        rng = np.random.default_rng(1)
        counts = rng.multinomial(statistic.num_units, [1 / statistic.num_units] * statistic.num_units, size=6)
        # A unit that is drawn twice is two groups.
        members = units_of(judged)
        for value, row in zip(statistic.resampled(counts), counts):
            chosen = [(i, f"{at}.{copy}") for at, n in enumerate(row) for copy in range(n) for i in members[at]]
            sides = [[side[i] for i, _ in chosen] for side in (judged.predictions, judged.references)]
            groups = judged.groups and [group for _, group in chosen]
            expected = METRICS[name](*sides, groups=groups, num_classes=num_classes)
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9)

    @parameterized.parameters(
        ("f1", ["red", "blue", "red", "red"], ["red", "blue", "blue", "green"]),
        ("f1_macro", ["red", "blue", "red", "red"], ["red", "blue", "blue", "green"]),
        ("f1", [1, 0, 1, 1], [1, 0, 0, 1]),
    )
    def test_f1_without_known_classes_is_that_of_the_rows_drawn(self, name, predictions, references):
        # Free text: its classes are the answers of the rows at hand.
        statistic = statistic_of(METRICS[name], Judged(predictions, references), None)
        self.assertAlmostEqual(statistic.value(), METRICS[name](predictions, references))
        (value,) = statistic.resampled(np.array([[2, 1, 1, 0]]))
        rows = [0, 0, 1, 2]
        expected = METRICS[name]([predictions[row] for row in rows], [references[row] for row in rows])
        self.assertAlmostEqual(value, expected)

    def test_f1_of_more_than_two_classes_is_the_mean_of_the_classes_of_the_task(self):
        """Class 3 is neither answered nor true in the rows drawn, and -1 is no class."""
        references, predictions = np.array([0, 1, 2, 0, 2, 1, 3]), np.array([0, 1, 1, 2, 2, -1, 3])
        statistic = statistic_of(METRICS["f1"], Judged(predictions.tolist(), references.tolist()), 4)
        rows = [0, 0, 1, 2, 3, 3, 4, 5]
        sides = references[rows], predictions[rows]
        expected = f1_score(*sides, labels=[0, 1, 2, 3], average="macro", zero_division=0)
        np.testing.assert_allclose(statistic.resampled(np.array([[2, 1, 1, 2, 1, 1, 0]])), [100 * expected])

    def test_a_rank_correlation_with_a_number_that_is_not_finite_is_not_defined(self):
        for value in (math.nan, math.inf):
            statistic = statistic_of(METRICS["spearman"], Judged([1.0, value, 3.0], [1.0, 2.0, 4.0]), None)
            self.assertTrue(math.isnan(statistic.value()), value)

    @parameterized.parameters("pearson", "spearman")
    def test_a_resample_of_equal_numbers_has_no_correlation(self, name):
        """Sums of 0.1 around another mean leave a spread by rounding."""
        judged = Judged([0.1, 0.1, 0.1, 2.7, 1.3, -0.2], [1.0, 2.0, 4.0, 3.3, 0.3, 0.3])
        counts = np.array([[1, 1, 1, 0, 0, 0], [3, 2, 1, 0, 0, 0], [0, 0, 0, 0, 2, 1], [7, 0, 0, 0, 0, 0]])
        values = statistic_of(METRICS[name], judged, None).resampled(counts)
        self.assertTrue(np.isnan(values).all(), values)

    def test_words_f1_of_free_text_is_the_mean_over_rows(self):
        answers = [["Ann Lee"], ["red"], ["in May"], ["no"]]
        judged = Judged(["Ann", "red", "June", "in no"], answers)
        statistic = statistic_of(METRICS["squad_f1"], judged, None)
        scores = np.array([200 / 3, 100.0, 0.0, 200 / 3])
        np.testing.assert_allclose(statistic.resampled(np.diag([4, 4, 4, 4])), scores)
        np.testing.assert_allclose(statistic.resampled(np.array([[1, 2, 1, 0]])), [(scores * [1, 2, 1, 0]).sum() / 4])

    @parameterized.parameters("micro", "macro", "subset")
    @pytest.mark.quick_cases(1)
    def test_a_resample_of_sets_of_labels_is_scikit_learn_s_score_of_the_rows_drawn(self, name):
        judged = sets_of_labels(9)
        metric = {"micro": "micro_f1", "macro": "macro_f1", "subset": "subset_accuracy"}[name]
        statistic = statistic_of(METRICS[metric], judged, None)
        sides = [[text.split(", ") if text else [] for text in side] for side in judged[:2]]
        binarizer = MultiLabelBinarizer().fit([*sides[0], *sides[1]])
        predictions, references = (binarizer.transform(side) for side in sides)
        drawn = np.random.default_rng(3).integers(9, size=(200, 9))
        counts = np.array([np.bincount(rows, minlength=9) for rows in drawn])
        expected = []
        for rows in drawn:
            if name == "subset":
                expected.append(100 * (predictions[rows] == references[rows]).all(axis=1).mean())
                continue
            labels = None if name == "micro" else np.flatnonzero(references[rows].any(axis=0))
            of_drawn = f1_score(references[rows], predictions[rows], average=name, labels=labels, zero_division=0)
            expected.append(100 * of_drawn)
        np.testing.assert_allclose(statistic.resampled(counts), expected, rtol=1e-9, atol=1e-9)
        self.assertEqual(intervals.interval_over_rows(statistic)["resamples"], 10_000)

    def test_sets_of_labels_without_a_true_label_have_no_macro_f1(self):
        statistic = statistic_of(METRICS["macro_f1"], Judged(["late", "", ""], ["", "", "late"]), None)
        np.testing.assert_array_equal(
            statistic.resampled(np.array([[2, 1, 0], [0, 2, 1], [1, 1, 0]])), [np.nan, 0, np.nan]
        )
        statistic = statistic_of(METRICS["macro_f1"], Judged(["late", ""], ["", ""]), None)
        self.assertTrue(np.isnan(statistic.value()))

    @parameterized.parameters("f1", "spearman")
    def test_a_function_of_the_user_s_with_a_shipped_one_s_name_is_itself_recomputed(self, name):
        def share_of_ones(predictions, references, **_):
            return 100 * sum(predictions) / len(predictions)

        share_of_ones.__name__ = name
        judged = Judged([1, 0, 0, 0, 0], [1, 0, 1, 1, 0])
        statistic = statistic_of(share_of_ones, judged, 2)
        self.assertEqual(statistic.value(), 20.0)
        np.testing.assert_allclose(statistic.resampled(np.array([[3, 1, 1, 0, 0], [0, 5, 0, 0, 0]])), [60.0, 0.0])

    def test_a_unit_is_a_row_or_a_group(self):
        self.assertEqual(units_of(Judged([1, 1, 0], [1, 1, 0], ["a", "b", "a"])), [[0, 2], [1]])
        self.assertEqual(units_of(Judged([1, 1], [1, 1])), [[0], [1]])


def accuracy_of(num_right: int, count: int):
    """The statistic of an accuracy of `num_right` rows in `count`."""
    return statistic_of(METRICS["accuracy"], Judged([1] * num_right + [0] * (count - num_right), [1] * count), 2)


class IntervalsTest(parameterized.TestCase):
    """95% intervals: by exact distributions of a resample, and by how often they hold the true value."""

    @parameterized.parameters((400, 280), (400, 380), (100, 50), (1000, 30))
    def test_an_accuracy_s_interval_is_that_of_the_binomial(self, count, num_right):
        # A resample's right rows are binomial. The ends of a 90% interval are 2.9, 1.4, 1.6 and 1.7 rows further in.
        ends = scipy.stats.binom.ppf([0.025, 0.975], count, num_right / count)
        interval = intervals.interval_over_rows(accuracy_of(num_right, count))
        rows = np.array([interval["low"], interval["high"]]) * count / 100
        np.testing.assert_allclose(rows, ends, atol=1.0001)
        self.assertLessEqual(np.abs(rows - ends).sum(), 1.0001)

    def test_runs_interval_is_that_of_the_binomial(self):
        # The mean of n runs that score 0 or 100 is binomial, too.
        values = [100.0] * 30 + [0.0] * 20
        interval = intervals.interval_over_values(values)
        ends = scipy.stats.binom.ppf([0.025, 0.975], 50, 0.6) * 2
        np.testing.assert_allclose([interval["low"], interval["high"]], ends, atol=1e-9)

    def test_a_correlation_s_interval_is_fisher_s(self):
        # Normal values: atanh(r) is normal with deviation 1/sqrt(n - 3). A 90% interval is 16% narrower.
        judged = normal_pairs(250, 0.6)
        statistic = statistic_of(METRICS["pearson"], judged, None)
        with mock.patch.object(intervals, "RESAMPLES_DIRECT", 300):
            interval = intervals.interval_over_rows(statistic)
        middle, deviation = np.arctanh(statistic.value() / 100), 1 / np.sqrt(250 - 3)
        low, high = 100 * np.tanh([middle - 1.96 * deviation, middle + 1.96 * deviation])
        np.testing.assert_allclose(interval["high"] - interval["low"], high - low, rtol=0.12)
        np.testing.assert_allclose([interval["low"], interval["high"]], [low, high], atol=0.16 * (high - low))

    def test_the_true_value_lies_within_it_in_95_of_100_samples(self):
        # 200 rows, each right with 0.7. With every number of right rows weighted by its chance, the binomial's own ends
        # cover 95.5%, those of a 90% interval 91.0%.
        num_right = np.arange(119, 162)
        of_counts = [intervals.interval_over_rows(accuracy_of(int(count), 200)) for count in num_right]
        covering = np.array([interval["low"] <= 70.0 <= interval["high"] for interval in of_counts])
        coverage = scipy.stats.binom.pmf(num_right, 200, 0.7)[covering].sum()
        self.assertBetween(coverage, 0.94, 0.97)

    @parameterized.parameters(
        ("accuracy", [1] * 38, [1] * 38, 2, 100 * 0.025 ** (1 / 38), 100.0),
        ("accuracy", [0] * 38, [1] * 38, 2, 0.0, 100 - 100 * 0.025 ** (1 / 38)),
        ("squad_exact_match", ["yes"] * 2, [["yes"]] * 2, None, 100 * 0.025 ** (1 / 2), 100.0),
        ("exact_match", ["yes"] * 2, ["yes"] * 2, None, 100 * 0.025 ** (1 / 2), 100.0),
        ("instruction_exact_match", ["yes"] * 2, [["yes"]] * 2, None, 100 * 0.025 ** (1 / 2), 100.0),
        ("json_match", ["{}"] * 2, ["{}"] * 2, None, 100 * 0.025 ** (1 / 2), 100.0),
        ("subset_accuracy", ["a, b"] * 2, ["b, a"] * 2, None, 100 * 0.025 ** (1 / 2), 100.0),
        ("f1", [1] * 38, [1] * 38, 2, None, None),  # no share of rows
        ("rouge1", ["no"] * 30, ["yes"] * 30, None, None, None),
        ("rougeLsum", ["yes"] * 30, ["yes"] * 30, None, None, None),
        ("squad_f1", ["yes"] * 30, [["yes"]] * 30, None, None, None),
        ("neg_mean_absolute_error", [2.5] * 38, [2.5] * 38, None, None, None),  # an error of 0 is no share of 0
        ("pearson", list(range(38)), list(range(38)), None, None, None),
    )
    def test_rows_that_are_all_alike_are_no_certainty(self, metric, predictions, references, num_classes, low, high):
        judged = Judged(predictions, references)
        interval = intervals.interval_over_rows(statistic_of(METRICS[metric], judged, num_classes))
        if low is None:
            self.assertIsNone(interval)
        else:
            np.testing.assert_allclose([interval["low"], interval["high"]], [low, high], rtol=1e-9)

    def test_what_is_undefined_has_none(self):
        self.assertIsNone(intervals.interval_over_values([60.0]))
        self.assertIsNone(intervals.interval_over_values([60.0, None]))
        self.assertIsNone(intervals.interval_over_values([60.0, math.nan, 61.0]))
        self.assertIsNone(intervals.interval_over_rows(accuracy_of(1, 1)), "one row")
        statistic = statistic_of(METRICS["pearson"], Judged([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), None)
        self.assertIsNone(intervals.interval_over_rows(statistic), "mostly undefined")

    def test_an_interval_is_that_of_the_resamples_in_which_the_metric_is_defined_if_those_are_most(self):
        # How often the first of three rows is drawn: 1, 2 or 3 times in 12, 6 and 1 of 27 resamples.
        first = lambda least: lambda sums: np.where(sums[:, 0] >= least, sums[:, 0], math.nan)
        at_least_1, at_least_2 = (Statistic(3, np.eye(3), first(least)) for least in (1, 2))
        expected = {"low": 1.0, "high": 3.0, "resamples": 10_000, "units": 3}
        self.assertEqual(intervals.interval_over_rows(at_least_1), expected)
        self.assertIsNone(intervals.interval_over_rows(at_least_2), "7 of 27")

    def test_two_are_compared_on_the_resamples_in_which_both_are_defined_if_those_are_most(self):
        most_drawn = lambda most: lambda sums: np.where(sums.max(axis=1) <= most, 3.0, math.nan)
        ones = Statistic(3, np.eye(3), lambda sums: np.ones(len(sums)))
        in_24_of_27, in_6_of_27 = (Statistic(3, np.eye(3), most_drawn(most)) for most in (2, 1))
        compared = paired_bootstrap(ones, in_24_of_27)
        self.assertEqual((compared["difference"], compared["low"], compared["high"]), (2.0, 2.0, 2.0))
        self.assertAlmostEqual(2 / compared["p"] - 1, 10_000 * 24 / 27, delta=150)
        self.assertEqual(compared["p"], compared["smallest_p"])
        self.assertIsNone(paired_bootstrap(ones, in_6_of_27))

    def test_a_metric_of_your_own_has_500_resamples_and_one_of_texts_100(self):
        kinds = lambda predictions, references, **_: len(set(predictions))
        for answers, count in (([1, 2, 3], 500), (["a", "b", "c"], 100)):
            interval = intervals.interval_over_rows(statistic_of(kinds, Judged(answers, answers), None))
            # One kind is in 3, all three are in 6 of 27 resamples.
            self.assertEqual((interval["resamples"], interval["low"], interval["high"]), (count, 1.0, 3.0))


class McNemarTest(parameterized.TestCase):
    def test_units_are_counted_that_only_one_has_right(self):
        answers_a, answers_b = [1, 1, 1, 0, 0, 1], [1, 0, 0, 1, 0, 0]
        sides = [statistic_of(METRICS["accuracy"], Judged(side, [1] * 6), 2) for side in (answers_a, answers_b)]
        self.assertEqual(mcnemar_test(*sides), {"only_a": 3, "only_b": 1, "p": 0.625})

    @parameterized.parameters(
        ("accuracy", [1, 0, 1], [1, 1, 0], ["q1", "q1", "q2"]),  # a question of two rows may be half right
        ("squad_f1", ["the red cat", "red", "no"], [["red"], ["red"], ["yes"]], None),
        ("f1", [1, 0, 1], [1, 1, 0], None),
    )
    def test_what_is_not_simply_right_or_wrong_has_no_such_test(self, metric, predictions, references, groups):
        statistic = statistic_of(METRICS[metric], Judged(predictions, references, groups), 2)
        right = statistic_of(METRICS["accuracy"], Judged([1] * 3, [1] * 3), 2)
        self.assertIsNone(mcnemar_test(statistic, right))
        self.assertIsNone(mcnemar_test(right, statistic))

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
    @pytest.mark.quick_cases(2)
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

    @parameterized.parameters(*CASES)
    @pytest.mark.quick_cases(6)
    def test_the_two_exchanged_are_the_mirror_image(self, name):
        judged, num_classes = CASES[name]
        # The second system has the answers of the first but for two rows that have exchanged theirs, three times.
        answers = list(judged.predictions)
        for first, second in ((0, 1), (2, 5), (7, 9)):
            answers[first], answers[second] = answers[second], answers[first]
        sides = [Judged(side, judged.references, judged.groups) for side in (judged.predictions, answers)]
        a, b = (statistic_of(METRICS[name], side, num_classes) for side in sides)
        there, back = paired_bootstrap(a, b), paired_bootstrap(b, a)
        self.assertEqual(there["p"], back["p"])
        ends = [there["difference"], there["low"], there["high"]]
        np.testing.assert_allclose(ends, [-back["difference"], -back["high"], -back["low"]], rtol=0, atol=1e-9)

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
        interval = paired_bootstrap(of([1, 0, 1, 1]), of([1, 0, 1, 1]))
        self.assertEqual(
            (interval["difference"], interval["low"], interval["high"], interval["p"]), (0.0, 0.0, 0.0, 1.0)
        )
        # 20 rows only A has right, 30 only B: about normal, with the variance of the 50 that differ.
        interval = paired_bootstrap(of([1] * 20 + [0] * 30 + [1] * 50), of([0] * 20 + [1] * 30 + [1] * 50))
        expected = math.erfc(10 / math.sqrt(50 - 10**2 / 100) / math.sqrt(2))
        self.assertAlmostEqual(interval["p"], expected, delta=0.03)
        # B has one row right more than A, always the same: the difference is never negative.
        self.assertGreaterEqual(paired_bootstrap(of([1] * 15 + [0] * 15), of([1] * 16 + [0] * 14))["low"], 0.0)


class SmallestPTest(parameterized.TestCase):
    """What the table shows of a p-value that is the least that so many resamples can give."""

    def shown(self, metric: str, answers_a: list, answers_b: list, references: list) -> tuple[dict, str]:
        sides = [Judged(side, references) for side in (answers_a, answers_b)]
        bootstrap = paired_bootstrap(*[statistic_of(METRICS[metric], side, None) for side in sides])
        entry = {"task": "x", "metric": metric, "a": 0.0, "b": 0.0, "rows": 20, "bootstrap": bootstrap, "mcnemar": None}
        return bootstrap, score_cells(entry)[6]

    def test_100_resamples_say_less_than_2_in_100(self):
        texts = [f"the cat sat on mat number {place}" for place in range(20)]
        bootstrap, cell = self.shown("bleu", ["a dog ran"] * 20, texts, texts)
        self.assertEqual((bootstrap["resamples"], bootstrap["p"], cell), (100, 2 / 101, "<0.02"))

    def test_10000_resamples_say_less_than_2_in_10000(self):
        bootstrap, cell = self.shown("accuracy", [0] * 20, [1] * 20, [1] * 20)
        self.assertEqual((bootstrap["resamples"], bootstrap["p"], cell), (10_000, 2 / 10_001, "<0.0002"))

    def test_a_tiny_p_of_mcnemar_s_test_is_shown_as_below_the_least(self):
        entry = {"task": "x", "metric": "accuracy", "a": None, "b": 71.239, "rows": 40, "bootstrap": None}
        for p, shown in ((2**-39, "<0.0001"), (0.0001, "0.0001"), (0.00016, "0.0002"), (1.0, "1.0000")):
            cells = score_cells({**entry, "mcnemar": {"only_a": 3, "only_b": 40, "p": p}})
            self.assertEqual(cells, ["x", "accuracy", "–", "71.24", "–", "–", "–", f"{shown} (3/40)", "40"])

    def test_any_other_p_is_shown_as_it_is(self):
        bootstrap, cell = self.shown("accuracy", [0] * 6 + [1] * 14, [1] * 13 + [0] * 3 + [1] * 4, [1] * 20)
        self.assertGreater(bootstrap["p"], 0.01)
        self.assertEqual(cell, f"{bootstrap['p']:.4f}")


class CheckpointsTest(parameterized.TestCase):
    def test_the_first_step_of_a_task_s_best_score_is_marked_and_none_without_a_score(self):
        scores = {
            10: {"rte": 60.0, "cola": math.nan, "stsb": math.nan},
            20: {"rte": 71.256, "cola": -3.0, "stsb": math.nan},
            30: {"rte": 71.256, "cola": -1.0},
        }
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            print_checkpoint_table(scores, "checkpoints")
        (rows,) = terminal_tables(shown.getvalue())
        self.assertEqual([row["step"] for row in rows], ["10", "20", "30"])
        self.assertEqual([row["rte"] for row in rows], ["60.00", "71.26*", "71.26"])
        self.assertEqual([row["cola"] for row in rows], ["nan", "-3.00", "-1.00*"])
        self.assertEqual([row["stsb"] for row in rows], ["nan", "nan", "nan"])
