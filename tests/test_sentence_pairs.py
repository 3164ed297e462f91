"""Sentence pairs: parts that follow each other or do not, every pair once an epoch, labels that tell the truth."""

import collections
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from masked_texts import CLS, SEP
from scipy import stats

from t5suite.contrib import sentence_pairs
from t5suite.contrib.sentence_pairs import (
    SentenceDocuments,
    SentencePairDataset,
    next_sentence_pair,
    sentence_order_pair,
)
from t5suite.data.objectives import datum_rng
from t5suite.testing import exits_with
from t5suite.training.pre_training_data import Scoring, pair_data


def example_documents(lengths, first_id=10):
    """Documents in which every token is another number, so that it tells where it stood."""
    documents, token = [], first_id
    for sentence_lengths in lengths:
        documents.append([])
        for length in sentence_lengths:
            documents[-1].append(list(range(token, token + length)))
            token += length
    return documents


DOCUMENT, OTHER, THIRD, SINGLE = example_documents([[3, 4, 2, 6, 1, 5], [4, 4, 4, 4, 4], [1, 2], [7]])


def is_run(tokens):
    return list(tokens) == list(range(tokens[0], tokens[0] + len(tokens)))


def popped(first_length, second_length, total):
    """Lengths after BERT's loop: one token from the longer part, from the second where they are equal."""
    while first_length + second_length > total:
        if first_length > second_length:
            first_length -= 1
        else:
            second_length -= 1
    return first_length, second_length


class PairTest(parameterized.TestCase):
    def make(self, kind, rng, max_tokens=12, start=1, **settings):
        if kind == "order":
            return sentence_order_pair(DOCUMENT, start, rng, max_tokens, **settings)
        return next_sentence_pair(DOCUMENT, start, rng, max_tokens, lambda rng: OTHER, **settings)

    @parameterized.product(kind=("next", "order"), max_tokens=(2, 3, 5, 12, 100))
    def test_parts_are_runs_of_text_that_follow_each_other_or_do_not(self, kind, max_tokens):
        for j in range(300):
            first, second, label = self.make(kind, datum_rng(1, j), max_tokens, short_rate=0.1 * (max_tokens < 100))
            self.assertLessEqual(len(first) + len(second), max_tokens)
            self.assertTrue(len(first) and len(second) and is_run(first) and is_run(second))
            self.assertIn(first[0], np.concatenate(DOCUMENT))
            if kind == "next":
                self.assertIn(second[0], np.concatenate(OTHER if label else DOCUMENT))
            earlier, later = (second, first) if kind == "order" and label else (first, second)
            if label == 0 or kind == "order":
                self.assertLess(earlier[-1], later[0])
                if max_tokens == 100:
                    self.assertEqual(earlier[-1] + 1, later[0])

    def test_the_longer_part_is_cut_first(self):
        for first, second, total in np.random.default_rng(0).integers(2, 20, size=(300, 3)):
            self.assertEqual(sentence_pairs._shortened_lengths(first, second, total), popped(first, second, total))


def sentence_documents(documents):
    """`SentenceDocuments` of lists of lists of token ids; a document without sentences is left out."""
    documents = [sentences for sentences in documents if sentences]
    lengths_S = np.array([len(sentence) for sentences in documents for sentence in sentences])
    lengths_D = np.array([sum(map(len, sentences)) for sentences in documents])
    tokens = np.concatenate([sentence for sentences in documents for sentence in sentences])
    return SentenceDocuments(tokens, np.cumsum(lengths_D) - lengths_D, np.cumsum(lengths_S) - lengths_S)


class DocumentsTest(absltest.TestCase):
    def test_documents_come_back_as_they_were(self):
        documents = sentence_documents([DOCUMENT, SINGLE, OTHER, [], THIRD])
        self.assertLen(documents, 4)
        sentences = [[sentence.tolist() for sentence in documents[d][:]] for d in range(4)]
        self.assertEqual(sentences, [DOCUMENT, SINGLE, OTHER, THIRD])
        self.assertEqual(documents.num_sentences_D.tolist(), [6, 1, 5, 2])
        self.assertEqual([part.tolist() for part in documents[0][2:4]], DOCUMENT[2:4])
        self.assertEqual((documents[0][6:9], len(documents[0])), ([], 6))

    def test_starts_that_do_not_fit_are_refused(self):
        with exits_with(65, "does not start where a sentence does"):
            SentenceDocuments(np.arange(6), [0, 3], [0, 2, 5])
        with exits_with(65, "sentence 1 has no tokens"):
            SentenceDocuments(np.arange(6), [0], [0, 2, 2])


class DatasetTest(parameterized.TestCase):
    def dataset(self, kind="next", documents=(DOCUMENT, SINGLE, OTHER, [], THIRD), inputs_length=100, **settings):
        return SentencePairDataset(sentence_documents(documents), inputs_length, CLS, SEP, kind, **settings)

    def test_every_sentence_that_another_follows_begins_one_pair_an_epoch(self):
        dataset = self.dataset(num_examples=30)
        self.assertEqual((dataset.num_pairs, len(dataset)), (10, 30))
        starts = [sentence[0] for document in (DOCUMENT, OTHER, THIRD) for sentence in document[:-1]]
        for epoch in range(3):
            first_ids = [dataset[j]["input_ids"][1] for j in range(10 * epoch, 10 * epoch + 10)]
            self.assertCountEqual(first_ids, starts)
        self.assertNotEqual(*([dataset[j]["input_ids"][1] for j in range(n, n + 10)] for n in (0, 10)))

    @pytest.mark.slow
    def test_the_other_document_is_any_but_this_one(self):
        dataset = self.dataset(num_examples=3000)
        homes = {token: d for d in range(4) for token in np.concatenate(dataset.documents[d][:])}
        found = collections.Counter()
        for j in range(3000):
            example = dataset[j]
            first, second = example["input_ids"][1], example["input_ids"][example["token_type_ids"] == 1][0]
            self.assertEqual(homes[first] != homes[second], example["next_sentence_label"] == 1)
            if example["next_sentence_label"]:
                found[homes[first], homes[second]] += 1
        self.assertEqual(set(found), {(a, b) for a in (0, 2, 3) for b in range(4) if a != b})
        counts = [found[0, other] for other in (1, 2, 3)]
        self.assertGreater(stats.chisquare(counts).pvalue, 1e-4)

    @parameterized.parameters(("next", "next_sentence_label"), ("order", "sentence_order_label"))
    def test_an_example_is_two_parts_between_special_tokens_and_its_label(self, kind, label):
        dataset = self.dataset(kind, inputs_length=12)
        for j in range(10):
            example = dataset[j]
            self.assertEqual(set(example), {"input_ids", "token_type_ids", label, "index"})
            self.assertIn(example[label], (0, 1))
            ids, types = example["input_ids"].tolist(), example["token_type_ids"].tolist()
            self.assertLessEqual(len(ids), 12)
            self.assertEqual((ids[0], ids[-1], ids.count(SEP)), (CLS, SEP, 2))
            self.assertEqual(types, [0] * (ids.index(SEP) + 1) + [1] * (len(ids) - ids.index(SEP) - 1))

    def test_what_an_index_stands_for_depends_on_the_seed_alone(self):
        one, again, other = (self.dataset(seed=seed) for seed in (0, 0, 1))
        rows = [[dataset[j]["input_ids"].tolist() for j in (7, 2, 5)] for dataset in (one, again, other)]
        self.assertEqual(rows[0], rows[1])
        self.assertNotEqual(rows[0], rows[2])
        orders = [self.dataset("order", [THIRD], seed=seed, num_examples=50) for seed in (0, 1)]  # one pair there is
        self.assertNotEqual(*([dataset[j]["sentence_order_label"] for j in range(50)] for dataset in orders))

    def test_bounds_and_errors(self):
        with self.assertRaises(IndexError):
            self.dataset()[10]
        with exits_with(65, "none of 1 documents has two sentences"):
            self.dataset(documents=[SINGLE, []])
        with exits_with(65, "also need text from another"):
            self.dataset(documents=[DOCUMENT])
        self.assertLen(self.dataset("order", documents=[DOCUMENT]), 5)


class RunTest(parameterized.TestCase):
    """What a run trains on and is scored on."""

    COLLATOR = SimpleNamespace(inputs_length=14, cls_token_id=CLS, sep_token_id=SEP, sentence_pairs="next")

    def text(self, *corpora):
        """A corpus's tokens, with the starts of its documents and sentences."""
        rows = []
        for documents in corpora:
            of_corpus = sentence_documents(documents)
            tokens = np.asarray(of_corpus.tokens).view(Tokens)
            tokens.sentences = np.asarray(of_corpus.sentences)
            tokens.documents = tokens.sentences[of_corpus.first_D]
            rows.append(tokens)
        return rows

    def pairs(self, documents, seed):
        return SentencePairDataset(sentence_documents(documents), 14, CLS, SEP, "next", seed, num_examples=99)

    def assert_same(self, examples, expected):
        for example, of_expected in zip(examples, expected, strict=True):
            self.assertEqual(example["input_ids"].tolist(), of_expected["input_ids"].tolist())
            self.assertEqual(example["next_sentence_label"], of_expected["next_sentence_label"])

    def test_training_has_pairs_without_end_and_scored_are_some_of_the_held_out_ones(self):
        """Ten pairs are held out, of which four are spread over them; their seed is 0, whatever the run's is."""
        held_out, train = [DOCUMENT, OTHER, THIRD], [OTHER, DOCUMENT]
        text = SimpleNamespace(train=self.text(train), validation=self.text(held_out))
        data = pair_data(text, self.COLLATOR, seed=5, scoring=Scoring(frozenset({1}), max_samples=4))
        self.assertEqual((data.blocks_an_epoch, len(data.train)), (9, sys.maxsize))
        expected = self.pairs(train, seed=5)
        self.assert_same([data.train[j] for j in range(20)], [expected[j] for j in range(20)])
        examples = data.held_out.examples
        self.assert_same(
            [examples[j] for j in range(len(examples))], [self.pairs(held_out, 0)[j] for j in (0, 3, 6, 9)]
        )
        self.assertEqual(data.held_out.control_ids, {1})
        all_scored = pair_data(text, self.COLLATOR, seed=5)
        self.assertEqual(all_scored.counts(), {"an_epoch": 9, "held_out": 10})

    def test_without_training_there_are_held_out_pairs_alone(self):
        text = SimpleNamespace(train=[], validation=self.text([DOCUMENT, OTHER]))
        data = pair_data(text, self.COLLATOR, seed=5)
        self.assertEqual((data.train, len(data.held_out.examples)), (None, 9))

    def test_pairs_are_of_one_corpus(self):
        corpora = self.text([DOCUMENT, OTHER], [THIRD, OTHER])
        for train, validation in ((corpora, []), ([], corpora)):
            text = SimpleNamespace(train=train, validation=validation)
            with exits_with(78, "--sentence_pairs reads one corpus"):
                pair_data(text, self.COLLATOR, seed=5)


class Tokens(np.ndarray):
    """An array that has the attributes of `TokenSequence`."""
