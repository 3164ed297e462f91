"""Flat arrays -> batches: equal to padding row by row, for every family, however the rows come and are loaded."""

import numpy as np
import torch
from absl.testing import parameterized

from t5suite.data.batches.collators import COLLATORS, IGNORED, shift_right
from t5suite.data.batches.features import Ragged, TokenArrays
from t5suite.data.batches.samplers import EpochDataLoader, GlobalBatchSampler, shuffled_order

PAD, START = 3, 7


def padded(rows, fill, multiple):
    """Row by row, as plainly as can be."""
    width = -(-max(1, *map(len, rows)) // multiple) * multiple
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def plain_seq2seq(rows, multiple):
    labels = padded([row["labels"] for row in rows], IGNORED, multiple)
    return {
        "input_ids": padded([row["input_ids"] for row in rows], PAD, multiple),
        "attention_mask": padded([[1] * len(row["input_ids"]) for row in rows], 0, multiple),
        "labels": labels,
        "decoder_input_ids": shift_right(labels, PAD, START),
    }


def plain_causal(rows, multiple):
    wholes = [[*row["input_ids"], *row["labels"]] for row in rows]
    read = [whole[: max(len(whole) - 1, 1)] for whole in wholes]
    answers = []
    for row, whole, inputs in zip(rows, wholes, read):
        below = [*whole[1:], IGNORED][: len(inputs)]
        answers.append([IGNORED if i < len(row["input_ids"]) - 1 else token for i, token in enumerate(below)])
    return {
        "input_ids": padded(read, PAD, multiple),
        "attention_mask": padded([[1] * len(inputs) for inputs in read], 0, multiple),
        "labels": padded(answers, IGNORED, multiple),
    }


def plain_masked(rows, multiple):
    return {
        "input_ids": padded([row["input_ids"] for row in rows], PAD, multiple),
        "attention_mask": padded([[1] * len(row["input_ids"]) for row in rows], 0, multiple),
        "token_type_ids": padded([row["token_type_ids"] for row in rows], 0, multiple),
        "labels": torch.tensor([row["labels"][0] for row in rows]),
    }


PLAIN = {"seq2seq": plain_seq2seq, "causal": plain_causal, "masked": plain_masked, "encoder": plain_masked}


def examples(family, count=300):
    """Random examples; texts of one token, prompts and answers without any among them."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        ids = rng.integers(8, 99, rng.integers(1 if family in ("masked", "encoder") or i % 7 else 0, 40)).tolist()
        row = {"input_ids": ids, "labels": rng.integers(8, 99, rng.integers(1 if ids else 2, 6)).tolist()}
        if family in ("masked", "encoder"):
            row |= {"labels": [int(rng.integers(0, 3))], "token_type_ids": [i % 2 for i in range(len(ids))]}
        rows.append(row)
    return rows


def arrays_of(rows) -> TokenArrays:
    columns = [Ragged.from_rows([row[name] for row in rows]) for name in rows[0]]
    return TokenArrays(*columns)


class BatchTest(parameterized.TestCase):
    def assert_equal_batches(self, one, other):
        self.assertEqual(list(one), list(other))
        for name in one:
            self.assertEqual(one[name].dtype, other[name].dtype, name)
            self.assertTrue(torch.equal(one[name], other[name]), f"{name}:\n{one[name]}\n{other[name]}")

    @parameterized.product(family=list(COLLATORS), multiple=[1, 8])
    def test_flat_arrays_lists_and_plain_padding_make_the_same_batch(self, family, multiple):
        rows = examples(family)
        arrays, collate = arrays_of(rows), COLLATORS[family](PAD, START, multiple)
        rng = np.random.default_rng(1)
        for size in (1, 3, 32):
            for indices in [*rng.integers(0, len(rows), (3, size)).tolist(), list(range(len(rows)))[-size:]]:
                wanted = PLAIN[family]([rows[i] for i in indices], multiple)
                self.assert_equal_batches(collate(arrays.__getitems__(indices)), wanted)
                self.assert_equal_batches(collate([rows[i] for i in indices]), wanted)
                self.assert_equal_batches(collate([arrays[i] for i in indices]), wanted)

    @parameterized.parameters(*COLLATORS)
    def test_no_rows_are_a_row_that_counts_for_nothing(self, family):
        arrays = arrays_of(examples(family))
        batch = COLLATORS[family](PAD, START)(arrays.__getitems__([]))
        self.assertEqual(batch["input_ids"].shape, (1, 1))
        self.assertTrue(batch["labels"].eq(IGNORED).all())


class LoaderTest(parameterized.TestCase):
    def loader(self, **settings):
        arrays = arrays_of(examples("seq2seq"))
        sampler = GlobalBatchSampler(shuffled_order(len(arrays), 0), 16, 1)
        return EpochDataLoader(arrays, batch_sampler=sampler, collate_fn=COLLATORS["seq2seq"](PAD, START), **settings)

    def test_neither_workers_nor_the_device_change_batches_or_what_is_drawn_later(self):
        found = []
        for settings in ({}, {"num_workers": 1}, {"device": torch.device("cpu"), "pin_memory": True}):
            torch.manual_seed(0)
            loader = self.loader(**settings)
            loader.set_epoch(3)
            found.append(([batch["input_ids"] for batch in loader], torch.rand(3)))
            self.assertLen(loader, len(found[0][0]))
        for batches, drawn in found[1:]:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(batches, found[0][0], strict=True)))
            self.assertTrue(torch.equal(drawn, found[0][1]))
