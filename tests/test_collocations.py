"""Collocations of a corpus: counts and PMI equal counting by hand, what a table holds, and how a run hides them."""

import collections
import itertools
import json
import math
import random

import numpy as np
import pytest
import transformers
from absl.testing import parameterized
from corpus_files import build_corpus, write_lines
from masked_texts import NgramTable, collocations_of
from recorded_batches import pre_training_batches
from support import folder

from t5suite.testing import cli_output, exits_with, read_rows, write_rows

WORDS = ["a", "b", "c", "d", "e", "f", "##g"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SEPARATOR = 3  # [SEP], which ends every document


def tokenizer_folder() -> str:
    """A tokenizer of the words a to f, each of which may end in g."""
    path = folder() / "words"
    vocabulary = {token: number for number, token in enumerate(SPECIAL + WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(path)
    return str(path)


def documents(count=160, seed=0) -> list[str]:
    """Few words, so that long n-grams recur; one phrase now and then."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [rng.choice("abcdef") + rng.choice(["", "", "g"]) for _ in range(rng.randint(1, 20))]
        place = rng.randint(0, len(words))
        texts.append(" ".join([*words[:place], "d e fg d a", *words[place:]]))
    return texts


def build(texts, tokenizer):
    flags = {"validation_fraction": 0, "document_separator": "[SEP]"}
    return build_corpus(write_lines(texts), tokenizer=tokenizer, **flags)


def ngrams_of(tokens, n) -> list[tuple]:
    """Every n-gram without a separator, repetitions too."""
    windows = (tuple(tokens[place : place + n]) for place in range(len(tokens) - n + 1))
    return [window for window in windows if SEPARATOR not in window]


def segmentations(ngram):
    """All ways to cut an n-gram into two or more parts."""
    for num_cuts in range(1, len(ngram)):
        for cuts in itertools.combinations(range(1, len(ngram)), num_cuts):
            yield [ngram[start:stop] for start, stop in itertools.pairwise((0, *cuts, len(ngram)))]


def collocations_by_hand(tokens, min_count) -> dict[int, dict[tuple, tuple[int, float]]]:
    """`{n: {n-gram: (count, PMI)}}` of the frequent ones whose PMI, the least over all segmentations, is positive."""
    tallies = {n: collections.Counter(ngrams_of(tokens, n)) for n in range(1, 6)}

    def log_p(ngram):
        tally = tallies[len(ngram)]
        return math.log(tally[ngram] / tally.total())

    table = {n: {} for n in range(2, 6)}
    for n in table:
        for ngram, count in tallies[n].items():
            if count >= min_count:
                pmi = min(log_p(ngram) - sum(map(log_p, parts)) for parts in segmentations(ngram))
                if pmi > 0:
                    table[n][ngram] = (count, pmi)
    return table


class TableTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = tokenizer_folder()
        cls.corpus = build(documents(), cls.tokenizer)
        cls.tokens = cls.corpus.tokens("train")

    def table(self, min_count, num_collocations=100_000) -> list[dict]:
        """The lines of the file of a table, its header first."""
        file = folder() / "collocations.jsonl"
        flags = ["--output_file", file, "--min_count", min_count, "--num_collocations", num_collocations, "--json"]
        facts = json.loads(cli_output("corpus", "collocations", self.corpus.directory, *flags))
        lines = read_rows(file)
        self.assertEqual((facts["collocations"], facts["tokens"]), (len(lines) - 1, len(self.tokens)))
        return lines

    @parameterized.parameters(2, 5, 20)
    def test_counts_and_pmi_equal_counting_by_hand(self, min_count):
        expected = {}
        for of_length in collocations_by_hand(self.tokens, min_count).values():
            expected |= of_length
        self.assertGreater(len(expected), 10)
        _, *rows = self.table(min_count)
        self.assertEqual({tuple(row["ids"]): row["count"] for row in rows}, {k: v[0] for k, v in expected.items()})
        for row in rows:
            self.assertAlmostEqual(row["pmi"], expected[tuple(row["ids"])][1], places=6)

    def test_the_table_holds_the_best_of_each_length_in_the_papers_shares(self):
        """Half of them have 2 tokens, a quarter 3, an eighth each 4 and 5 (arXiv:2010.01825)."""
        _, *rows = self.table(2, num_collocations=16)
        expected = collocations_by_hand(self.tokens, 2)
        for n, share in ((2, 8), (3, 4), (4, 2), (5, 2)):
            scores = [row["pmi"] for row in rows if len(row["ids"]) == n]
            best = sorted((pmi for _, pmi in expected[n].values()), reverse=True)[:share]
            np.testing.assert_allclose(scores, best, rtol=1e-5)


class RunTest(parameterized.TestCase):
    """A run that hides collocations, and the file of the table that it reads."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = tokenizer_folder()
        cls.texts = documents(400)
        cls.corpus = build(cls.texts, cls.tokenizer)
        cls.lines = cls.table_of(cls.corpus)

    @staticmethod
    def table_of(corpus) -> list[dict]:
        file = folder() / "collocations.jsonl"
        flags = ["--output_file", file, "--min_count", 5, "--num_collocations", 24, "--json"]
        cli_output("corpus", "collocations", corpus.directory, *flags)
        return read_rows(file)

    def batches(self, lines, *flags):
        return pre_training_batches(*self.words(write_rows(folder() / "collocations.jsonl", lines)), *flags)

    def words(self, table) -> list:
        """The command line of a run with this table."""
        size = "hidden_size=8,num_hidden_layers=1,num_attention_heads=1,intermediate_size=8"
        words = ["--config_name", "bert", "--tokenizer_name", self.tokenizer, "--config_overrides", size, "--use_cpu"]
        words += ["--objective", "masked_lm", "--mask_units", "pmi", "--collocations", table, "--inputs_length", 66]
        words += ["--train_file", write_lines(self.texts), "--max_steps", 8, "--per_device_train_batch_size", 16]
        return [*words, "--disable_tqdm", "True", "--output_dir", folder() / "run"]

    @pytest.mark.slow
    def test_collocations_and_words_are_hidden_whole(self):
        table = NgramTable([row["ids"] for row in self.lines[1:]])
        begins_word_V = np.array([not token.startswith("##") for token in SPECIAL + WORDS])
        num_hidden = collections.Counter()
        for batch in self.batches(self.lines):
            labels = batch["labels"].numpy()
            tokens = np.where(labels == -100, batch["input_ids"].numpy(), labels)[:, 1:-1]
            for row, hidden in zip(tokens.tolist(), (labels != -100)[:, 1:-1].tolist()):
                for unit in collocations_of(row, table, begins_word_V):
                    of_unit = [hidden[place] for place in unit]
                    self.assertEqual(of_unit, of_unit[:1] * len(unit), (row, unit))
                    num_hidden[len(unit)] += of_unit[0]
        self.assertContainsSubset({1, 2, 3}, {length for length, count in num_hidden.items() if count > 20})

    def test_a_table_of_another_tokenizer_is_refused(self):
        another = folder() / "another"
        vocabulary = {token: number for number, token in enumerate([*SPECIAL, *WORDS, "z"])}
        transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(another)
        with exits_with(65, "another tokenizer"):
            self.batches(self.table_of(build(self.texts, str(another))))

    def test_a_table_fits_the_tokenizer_with_more_control_tokens(self):
        self.batches(self.lines, "--num_sentinels", 5, "--dry_run")
        with exits_with(65, "another tokenizer"):
            self.batches(self.lines, "--num_sentinels", 5, "--add_tokens", "ab", "--dry_run")

    def test_a_table_of_an_earlier_version_fits_its_tokenizer(self):
        header, *rows = self.lines
        self.batches([{name: header[name] for name in ("collocations", "tokenizer")}, *rows], "--dry_run")

    def test_a_run_is_not_continued_with_another_table_in_the_file(self):
        table = write_rows(folder() / "collocations.jsonl", self.lines)
        words = self.words(table)
        pre_training_batches(*words)
        header, *rows = self.lines
        write_rows(table, [header, *reversed(rows)])
        with exits_with(78, "collocations .*collocations.jsonl .* there, .*--allow_changed collocations"):
            pre_training_batches(*words)

    def test_a_wrong_line_and_missing_ones_are_named(self):
        header, *rows = self.lines
        for row in ({"ids": [5], "count": 1, "pmi": 1.0}, {"ids": [5, -6], "count": 1, "pmi": 1.0}, {"ids": [5, 6]}):
            with exits_with(65, r"collocations.jsonl:3: expected .*found"):
                self.batches([header, rows[0], row, *rows[2:]])
        with exits_with(65, f"{len(rows) - 1} collocations, but its header says {len(rows)}"):
            self.batches([header, *rows[:-1]])
        with exits_with(65, "collocations.jsonl:1: not a header"):
            self.batches(rows)
