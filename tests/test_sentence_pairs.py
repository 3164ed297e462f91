"""Next-sentence and sentence-order pairs, and the dataset of them."""

import collections
import doctest

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.batches.language_model_collators import PAIR_LABELS, MaskedLMCollator
from t5suite.data.corpora import sentence_pairs
from t5suite.data.corpora import sentence_pairs as dataset_module
from t5suite.data.corpora.sentence_pairs import (
    SentenceDocuments,
    SentencePair,
    SentencePairDataset,
    next_sentence_pair,
    pair_inputs,
    pair_rng,
    sentence_order_pair,
)
from t5suite.data.objectives import datum_rng
from t5suite.data.objectives.vocabulary import MaskVocabulary

CLS, SEP = 1, 2


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


def popped(first_length, second_length, wanted):
    """Lengths after BERT's loop: one token from the longer part, from the second where they are equal."""
    while first_length + second_length > wanted:
        if first_length > second_length:
            first_length -= 1
        else:
            second_length -= 1
    return first_length, second_length


class PairTest(parameterized.TestCase):
    def make(self, kind, rng, max_tokens=12, **settings):
        if kind == "order":
            return sentence_order_pair(DOCUMENT, rng, max_tokens, **settings)
        return next_sentence_pair(DOCUMENT, rng, max_tokens, lambda rng: OTHER, **settings)

    @parameterized.parameters("next", "order")
    def test_half_of_the_pairs_are_as_in_the_text(self, kind):
        labels = collections.Counter(self.make(kind, datum_rng(0, j)).label for j in range(10_000))
        self.assertEqual(set(labels), {0, 1})
        self.assertGreater(stats.binomtest(labels[0], 10_000).pvalue, 1e-4)

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

    def test_a_pair_begins_where_it_is_told_to_or_anywhere_but_at_the_last_sentence(self):
        firsts = [sentence[0] for sentence in DOCUMENT]
        for start in range(5):
            pairs = [self.make("next", datum_rng(0, j), 100, start=start, short_rate=0.0) for j in range(50)]
            self.assertEqual({pair.first[0] for pair in pairs}, {firsts[start]})
        pairs = [self.make("next", datum_rng(0, j), 100, short_rate=0.0) for j in range(1000)]
        counts = collections.Counter(pair.first[0] for pair in pairs)
        self.assertEqual(sorted(counts), firsts[:-1])
        self.assertGreater(stats.chisquare(list(counts.values())).pvalue, 1e-4)

    def test_some_pairs_are_kept_short(self):
        long = [
            len(pair.first) + len(pair.second) for pair in (self.make("order", datum_rng(0, j)) for j in range(4000))
        ]
        full = [self.make("order", datum_rng(0, j), short_rate=0.0, start=0) for j in range(100)]
        self.assertEqual({len(pair.first) + len(pair.second) for pair in full}, {12})
        self.assertLess(min(long), 4)

    def test_the_longer_part_is_cut_first(self):
        for first, second, wanted in np.random.default_rng(0).integers(2, 20, size=(300, 3)):
            self.assertEqual(sentence_pairs._shared_out(first, second, wanted), popped(first, second, wanted))

    @parameterized.parameters("next", "order")
    def test_a_pair_is_a_function_of_the_generator(self, kind):
        for j in range(20):
            one, again = self.make(kind, datum_rng(0, j)), self.make(kind, datum_rng(0, j))
            self.assertEqual([np.asarray(part).tolist() for part in one], [np.asarray(part).tolist() for part in again])

    def test_pairs_draw_other_numbers_than_masks(self):
        self.assertNotEqual(pair_rng(0, 3).integers(2**60), datum_rng(0, 3).integers(2**60))
        self.assertEqual(pair_rng(0, 3).integers(2**60), pair_rng(0, 3).integers(2**60))
        self.assertLen({int(pair_rng(0, j).integers(2**60)) for j in range(100)}, 100)

    @parameterized.parameters((DOCUMENT, {"start": 5}), (DOCUMENT, {"start": -1}), (SINGLE, {}), ([], {}))
    def test_documents_in_which_no_pair_begins_are_refused(self, document, settings):
        with self.assertRaisesRegex(DataError, "no sentence follows"):
            sentence_order_pair(document, datum_rng(0, 0), 12, **settings)

    def test_empty_sentences_and_too_few_tokens_are_refused(self):
        with self.assertRaisesRegex(DataError, "sentences 0 to 1 has no tokens"):
            sentence_order_pair([[5], []], datum_rng(0, 0), 12)
        with self.assertRaisesRegex(ConfigError, "pairs of 1 tokens.*--inputs_length"):
            sentence_order_pair(DOCUMENT, datum_rng(0, 0), 1)

    def test_inputs_and_types(self):
        input_ids, types = pair_inputs(SentencePair(np.array([5, 6]), np.array([7, 8, 9]), 1), CLS, SEP)
        self.assertEqual(input_ids.tolist(), [CLS, 5, 6, SEP, 7, 8, 9, SEP])
        self.assertEqual(types.tolist(), [0, 0, 0, 0, 1, 1, 1, 1])


class DocumentsTest(absltest.TestCase):
    def test_documents_come_back_as_they_were(self):
        given = [DOCUMENT, SINGLE, OTHER, [], THIRD]
        documents = SentenceDocuments.of(given)
        self.assertLen(documents, 4)
        found = [[sentence.tolist() for sentence in documents[d][:]] for d in range(4)]
        self.assertEqual(found, [document for document in given if document])
        self.assertEqual(documents.num_sentences_D.tolist(), list(map(len, found)))
        self.assertEqual([part.tolist() for part in documents[0][2:4]], DOCUMENT[2:4])
        self.assertEqual((documents[0][6:9], len(documents[0])), ([], 6))

    def test_starts_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(DataError, "does not start where a sentence does"):
            SentenceDocuments(np.arange(6), [0, 3], [0, 2, 5])
        with self.assertRaisesRegex(DataError, "sentence 1 has no tokens"):
            SentenceDocuments(np.arange(6), [0], [0, 2, 2])


class DatasetTest(parameterized.TestCase):
    def dataset(self, kind="next", documents=(DOCUMENT, SINGLE, OTHER, [], THIRD), inputs_length=100, **settings):
        return SentencePairDataset(SentenceDocuments.of(documents), inputs_length, CLS, SEP, kind, **settings)

    def test_every_sentence_that_another_follows_begins_one_pair_an_epoch(self):
        dataset = self.dataset(num_examples=30)
        self.assertEqual((dataset.num_pairs, dataset.num_passed_over, len(dataset)), (10, 1, 30))
        starts = [sentence[0] for document in (DOCUMENT, OTHER, THIRD) for sentence in document[:-1]]
        for epoch in range(3):
            first_ids = [dataset[j]["input_ids"][1] for j in range(10 * epoch, 10 * epoch + 10)]
            self.assertCountEqual(first_ids, starts)
        self.assertNotEqual(*([dataset[j]["input_ids"][1] for j in range(n, n + 10)] for n in (0, 10)))

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

    @parameterized.parameters(*PAIR_LABELS.items())
    def test_examples_are_what_the_collator_takes(self, kind, label):
        dataset = self.dataset(kind, inputs_length=12)
        vocabulary = MaskVocabulary(3, np.arange(100) < 5)
        collate = MaskedLMCollator(vocabulary, 12, sentence_pairs=kind, cls_token_id=CLS, sep_token_id=SEP)
        batch = collate([dataset[j] for j in range(10)])
        self.assertEqual(batch["input_ids"].shape, (10, 12))
        self.assertEqual(batch[label].tolist(), [dataset[j][label] for j in range(10)])
        self.assertEqual(set(batch), {"input_ids", "attention_mask", "labels", "token_type_ids", label})

    def test_what_an_index_stands_for_depends_on_the_seed_alone(self):
        one, again, other = (self.dataset(seed=seed) for seed in (0, 0, 1))
        rows = [[dataset[j]["input_ids"].tolist() for j in (7, 2, 5)] for dataset in (one, again, other)]
        self.assertEqual(rows[0], rows[1])
        self.assertNotEqual(rows[0], rows[2])
        orders = [self.dataset("order", [THIRD], seed=seed, num_examples=50) for seed in (0, 1)]  # one pair there is
        self.assertNotEqual(*([dataset[j]["sentence_order_label"] for j in range(50)] for dataset in orders))

    def test_bounds_and_errors(self):
        for j in (-1, 10):
            with self.assertRaises(IndexError):
                self.dataset()[j]
        with self.assertRaisesRegex(DataError, "none of 1 documents has two sentences"):
            self.dataset(documents=[SINGLE, []])
        with self.assertRaisesRegex(DataError, "also need text from another"):
            self.dataset(documents=[DOCUMENT])
        self.assertLen(self.dataset("order", documents=[DOCUMENT]), 5)
        with self.assertRaisesRegex(ConfigError, "did you mean next"):
            self.dataset("nex")
        with self.assertRaisesRegex(ConfigError, "--inputs_length 4"):
            self.dataset(inputs_length=4)


class DoctestTest(parameterized.TestCase):
    @parameterized.parameters(sentence_pairs, dataset_module)
    def test_examples_in_docstrings_hold(self, module):
        results = doctest.testmod(module)
        self.assertGreater(results.attempted, 0)
        self.assertEqual(results.failed, 0)


if __name__ == "__main__":
    absltest.main()
