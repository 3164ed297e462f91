"""Collocations: n-gram counts, pointwise mutual information, the table, its file, finding them in rows."""

import collections
import doctest
import itertools
import json
import math
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.corpora import collocations
from t5suite.data.corpora.collocations import (
    Collocations,
    count_ngrams,
    find_collocations,
    load_collocations,
    pointwise_mutual_information,
    save_collocations,
)

SEPARATOR = 0


def example_text(length=4000, seed=0):
    """Few words, so that long n-grams recur; a separator now and then."""
    rng = np.random.default_rng(seed)
    text = rng.choice(7, p=[0.02, 0.3, 0.2, 0.18, 0.1, 0.1, 0.1], size=length)
    for place in rng.integers(0, length - 5, size=length // 25):
        text[place : place + 5] = [4, 5, 6, 4, 1]
    return text


def ngrams_of(text, n):
    """Every n-gram without a separator, repetitions too."""
    windows = (tuple(text[place : place + n]) for place in range(len(text) - n + 1))
    return [window for window in windows if SEPARATOR not in window]


def segmentations(ngram):
    """All ways to cut an n-gram into two or more parts."""
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, len(ngram)), count) for count in range(1, len(ngram))
    ):
        yield [ngram[start:stop] for start, stop in itertools.pairwise((0, *cuts, len(ngram)))]


class StatisticsTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 10, 60)
    def test_counts_equal_counting_by_hand(self, min_count):
        text = example_text().tolist()
        for n, level in enumerate(count_ngrams(text, 5, min_count, [SEPARATOR]), start=1):
            windows = ngrams_of(text, n)
            expected = {ngram: count for ngram, count in collections.Counter(windows).items() if count >= min_count}
            ngrams = [tuple(text[place : place + n]) for place in level.examples_K]
            self.assertEqual(dict(zip(ngrams, level.counts_K.tolist())), expected)
            self.assertLen(ngrams, len(expected))
            self.assertEqual(level.num_windows, len(windows))
            for place, number in enumerate(level.ids_P):
                if number >= 0:
                    self.assertEqual(tuple(text[place : place + n]), ngrams[number])

    def test_pmi_is_the_minimum_over_all_segmentations(self):
        text = example_text().tolist()
        tallies = {n: collections.Counter(ngrams_of(text, n)) for n in range(1, 6)}

        def log_p(ngram):
            tally = tallies[len(ngram)]
            return math.log(tally[ngram] / tally.total())

        levels = count_ngrams(text, 5, 5, [SEPARATOR])
        compared = 0
        for n, pmi_K in enumerate(pointwise_mutual_information(levels), start=2):
            for place, pmi in zip(levels[n - 1].examples_K, pmi_K):
                ngram = tuple(text[place : place + n])
                expected = min(log_p(ngram) - sum(map(log_p, parts)) for parts in segmentations(ngram))
                self.assertAlmostEqual(pmi, expected, places=9)
                compared += 1
        self.assertGreater(compared, 500)

    def test_a_strong_pair_does_not_make_a_strong_triple(self):
        """What the minimum is for: "New York ," is two words that belong together, and a comma that does not."""
        rng = np.random.default_rng(0)
        text = np.concatenate([[50, 51, *rng.integers(1, 20, 4)] for _ in range(500)])
        table = find_collocations(text, 100, 3, 10)
        by_ngram = dict(zip(map(tuple, table.ngrams_KN.tolist()), table.pmi_K))
        self.assertGreater(by_ngram[50, 51, -1], 1.5)
        self.assertLess(max(pmi for ngram, pmi in by_ngram.items() if ngram[:2] == (50, 51) and ngram[2] > 0), 1)

    def test_the_table_holds_the_best_of_each_length_in_the_papers_shares(self):
        text = example_text()
        table = find_collocations(text, 16, 5, 5, [SEPARATOR])
        levels = count_ngrams(text, 5, 5, [SEPARATOR])
        lengths = (table.ngrams_KN >= 0).sum(axis=1)
        self.assertEqual(np.bincount(lengths).tolist(), [0, 0, 8, 4, 2, 2])
        for n, pmi_K in enumerate(pointwise_mutual_information(levels), start=2):
            best = np.sort(pmi_K)[::-1][: (lengths == n).sum()]
            np.testing.assert_allclose(table.pmi_K[lengths == n], best)
        self.assertNotIn(SEPARATOR, table.ngrams_KN)

    def test_what_occurs_together_no_more_than_by_chance_is_no_collocation(self):
        pmi_K = np.concatenate(pointwise_mutual_information(count_ngrams(example_text(), 5, 5)))
        table = find_collocations(example_text(), 100_000, 5, 5)
        np.testing.assert_allclose(np.sort(table.pmi_K), np.sort(pmi_K[pmi_K > 0]))
        self.assertLess(len(table), len(pmi_K))

    @parameterized.parameters({"max_ngram": 1}, {"max_ngram": 6}, {"min_count": 0}, {"num_collocations": 0})
    def test_impossible_settings_are_refused(self, **settings):
        with self.assertRaises(ConfigError):
            find_collocations(example_text(), **settings)

    @parameterized.parameters(([],), ([5],), (list(range(100)),))
    def test_a_text_without_collocations_is_refused(self, text):
        with self.assertRaisesRegex(DataError, f"no collocation among {len(text)} tokens"):
            find_collocations(np.array(text, dtype=np.int32))


class MatchingTest(parameterized.TestCase):
    @parameterized.parameters(np.uint16, np.int32, np.int64)
    def test_longest_matches_equal_looking_up_every_ngram(self, dtype):
        table = find_collocations(example_text(), 60, 5, 5)
        ngrams = {tuple(token for token in row if token >= 0) for row in table.ngrams_KN.tolist()}
        rows = np.concatenate([example_text(600, seed=2).reshape(20, 30), np.full((1, 30), 60_000)]).astype(dtype)
        found = table.longest_matches(rows)
        self.assertGreater((found > 1).sum(), 50)
        for row, lengths in zip(rows.tolist(), found.tolist()):
            for place, length in enumerate(lengths):
                fitting = [n for n in range(2, min(5, len(row) - place) + 1) if tuple(row[place : place + n]) in ngrams]
                self.assertEqual(length, max(fitting, default=1))


class FileTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "collocations.jsonl"
        self.table = find_collocations(example_text(), 20, 5, 5, tokenizer="abc")

    def test_a_table_comes_back_as_it_was_saved(self):
        save_collocations(self.path, self.table)
        self.assertEqual([path.name for path in self.path.parent.iterdir()], [self.path.name])
        loaded = load_collocations(self.path, tokenizer="abc")
        for name in ("ngrams_KN", "counts_K", "pmi_K"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(self.table, name))
        self.assertEqual(loaded.tokenizer, "abc")

    def test_shorter_tables_come_back_too(self):
        table = Collocations([[5, 6]], np.array([3]), np.array([1.5]))
        save_collocations(self.path, table)
        found = load_collocations(self.path).longest_matches(np.array([[5, 6, 5]]))
        self.assertEqual(found.tolist(), [[2, 1, 1]])

    def test_another_tokenizers_table_is_refused(self):
        save_collocations(self.path, self.table)
        with self.assertRaisesRegex(DataError, "another tokenizer .abc. than this run's .xyz."):
            load_collocations(self.path, tokenizer="xyz")

    @parameterized.parameters(
        ({"ids": [5], "count": 1, "pmi": 1.0},),
        ({"ids": [5, -6], "count": 1, "pmi": 1.0},),
        ({"ids": [5, 6.5], "count": 1, "pmi": 1.0},),
        ({"ids": [5, 6], "pmi": 1.0},),
        ({"ids": [5, 6], "count": 1},),
    )
    def test_a_wrong_line_is_named(self, row):
        save_collocations(self.path, self.table)
        lines = self.path.read_text().splitlines()
        lines[2] = json.dumps(row)
        self.path.write_text("\n".join(lines))
        with self.assertRaisesRegex(DataError, r"collocations.jsonl:3: expected .*found"):
            load_collocations(self.path)

    def test_a_file_that_is_cut_off_or_something_else_is_refused(self):
        save_collocations(self.path, self.table)
        lines = self.path.read_text().splitlines()
        self.path.write_text("\n".join(lines[:-1]))
        with self.assertRaisesRegex(DataError, f"{len(lines) - 2} collocations, but its head says {len(lines) - 1}"):
            load_collocations(self.path)
        self.path.write_text("\n".join(lines[1:]))
        with self.assertRaisesRegex(DataError, "collocations.jsonl:1: no head"):
            load_collocations(self.path)


class DoctestTest(absltest.TestCase):
    def test_examples_in_docstrings_hold(self):
        results = doctest.testmod(collocations)
        self.assertGreater(results.attempted, 0)
        self.assertEqual(results.failed, 0)


if __name__ == "__main__":
    absltest.main()
