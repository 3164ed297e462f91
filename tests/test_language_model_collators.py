"""Batches for masked and causal language models."""

import collections

import numpy as np
import torch
import transformers
from absl.testing import absltest, parameterized
from scipy import stats
from test_masked_objectives import CLS, PAD, SEP, TABLE, VOCABULARY, V, example_text

from t5suite.data.batches.pre_training_collator import PAIR_LABELS, CausalLMCollator, MaskedLMCollator
from t5suite.data.corpora import sentence_pairs
from t5suite.data.corpora.sentence_pairs import (
    SentenceDocuments,
    SentencePairDataset,
    next_sentence_pair,
    sentence_order_pair,
)
from t5suite.data.objectives import datum_rng
from t5suite.data.objectives.masked import MASK_UNITS
from t5suite.data.objectives.vocabulary import MaskVocabulary
from t5suite.testing import exits_with
from t5suite.training.losses import token_loss


class MaskedCollatorTest(parameterized.TestCase):
    def collator(self, **settings):
        settings = {"inputs_length": 32, "cls_token_id": CLS, "sep_token_id": SEP, "collocations": TABLE, **settings}
        return MaskedLMCollator(VOCABULARY, **settings)

    def examples(self, count, length=30):
        return [{"input_ids": row.astype(np.uint16), "index": j} for j, row in enumerate(example_text(count, length))]

    def pairs(self, count):
        rows = []
        for j, row in enumerate(example_text(count, 32)):
            length = 10 + j % 20
            ids, types = row[:length].copy(), (np.arange(length) > 4).astype(int)
            ids[0], ids[4], ids[-1] = CLS, SEP, SEP
            rows.append({"input_ids": ids, "token_type_ids": types, "next_sentence_label": j % 2, "index": j})
        return rows

    @parameterized.parameters(*MASK_UNITS)
    def test_shapes_and_special_tokens(self, mask_units):
        collate = self.collator(mask_units=mask_units)
        self.assertEqual((collate.tokens_length, collate.tokens_lengths, tuple(collate.weights)), (30, [30], (1.0,)))
        batch = collate(self.examples(6))
        self.assertEqual(
            {name: (tuple(t.shape), t.dtype) for name, t in batch.items()},
            {name: ((6, 32), torch.long) for name in ("input_ids", "attention_mask", "labels")},
        )
        self.assertTrue(batch["input_ids"][:, 0].eq(CLS).all() and batch["input_ids"][:, -1].eq(SEP).all())
        self.assertTrue(batch["labels"][:, [0, -1]].eq(-100).all())
        whole = torch.where(batch["labels"].eq(-100), batch["input_ids"], batch["labels"])[:, 1:-1]
        self.assertEqual(whole.tolist(), [example["input_ids"].tolist() for example in self.examples(6)])

    @parameterized.product(mask_units=tuple(MASK_UNITS), sentence_pairs=(None, "next"))
    def test_a_row_depends_on_seed_and_index_alone(self, mask_units, sentence_pairs):
        collate = self.collator(mask_units=mask_units, sentence_pairs=sentence_pairs, seed=3)
        examples = self.pairs(9) if sentence_pairs else self.examples(9)
        whole = collate(examples)
        for j in (8, 2, 5):
            alone = collate([examples[j]])
            for name, tensor in alone.items():
                self.assertTrue(tensor[0].equal(whole[name][j]), name)
        other = self.collator(mask_units=mask_units, sentence_pairs=sentence_pairs, seed=4)(examples)
        self.assertFalse(other["labels"].equal(whole["labels"]))

    def test_pairs_are_padded_and_padding_counts_for_nothing(self):
        batch = self.collator(sentence_pairs="next")(self.pairs(8))
        for row, pair in enumerate(self.pairs(8)):
            length = len(pair["input_ids"])
            self.assertEqual(batch["attention_mask"][row].tolist(), [1] * length + [0] * (32 - length))
            self.assertTrue(batch["input_ids"][row, length:].eq(PAD).all())
            self.assertEqual(batch["labels"][row].ne(-100).sum(), round(length * 0.15))
            self.assertEqual(batch["token_type_ids"][row, :length].tolist(), pair["token_type_ids"].tolist())
        self.assertEqual(batch["next_sentence_label"].tolist(), [0, 1] * 4)

    def test_settings_that_cannot_work_are_refused_when_made(self):
        for settings, message in (
            ({"mask_units": "wrod"}, "did you mean word"),
            ({"mask_units": "pmi", "collocations": None}, "needs a table of collocations"),
            ({"inputs_length": 2}, "--inputs_length 2"),
            ({"cls_token_id": 9}, "special tokens"),
        ):
            with self.subTest(message), exits_with(78, message):
                self.collator(**settings)


class CausalTest(parameterized.TestCase):
    def test_our_loss_on_shifted_labels_is_hugging_faces_on_unshifted_ones(self):
        config = transformers.GPT2Config(vocab_size=V, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
        batch = CausalLMCollator(16)([{"input_ids": row, "index": j} for j, row in enumerate(example_text(3, 16))])
        labels = batch.pop("labels")
        theirs = model(**batch, labels=batch["input_ids"])
        torch.testing.assert_close(token_loss(theirs.logits, labels, labels.ne(-100).sum()), theirs.loss)

    def test_an_empty_batch_counts_for_nothing(self):
        self.assertTrue(CausalLMCollator(8)([])["labels"].eq(-100).all())


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
        for first, second, wanted in np.random.default_rng(0).integers(2, 20, size=(300, 3)):
            self.assertEqual(sentence_pairs._shared_out(first, second, wanted), popped(first, second, wanted))


def sentence_documents(documents):
    """`SentenceDocuments` of lists of lists of token ids; a document without sentences is left out."""
    documents = [sentences for sentences in documents if sentences]
    lengths_S = np.array([len(sentence) for sentences in documents for sentence in sentences])
    lengths_D = np.array([sum(map(len, sentences)) for sentences in documents])
    tokens = np.concatenate([sentence for sentences in documents for sentence in sentences])
    return SentenceDocuments(tokens, np.cumsum(lengths_D) - lengths_D, np.cumsum(lengths_S) - lengths_S)


class DocumentsTest(absltest.TestCase):
    def test_documents_come_back_as_they_were(self):
        given = [DOCUMENT, SINGLE, OTHER, [], THIRD]
        documents = sentence_documents(given)
        self.assertLen(documents, 4)
        found = [[sentence.tolist() for sentence in documents[d][:]] for d in range(4)]
        self.assertEqual(found, [document for document in given if document])
        self.assertEqual(documents.num_sentences_D.tolist(), list(map(len, found)))
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
        for j in range(10):
            ids, types = dataset[j]["input_ids"].tolist(), dataset[j]["token_type_ids"].tolist()
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
