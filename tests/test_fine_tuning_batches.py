"""Rows -> batches: equal to padding row by row, for every family, however the rows come and are loaded."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from absl.testing import parameterized

from t5suite import load_task
from t5suite.testing import encode_rows, tiny_model, tiny_rows, tiny_trainer

IGNORED = -100
PAD, START = 3, 7
BERT = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"
GPT2 = "n_embd=32,n_layer=1,n_head=2,n_positions=128"
# By family: what `tiny_model` takes.
MODELS = {
    "seq2seq": {},
    "causal": {"config_name": "gpt2", "config_overrides": GPT2},
    "masked": {"config_name": "bert", "config_overrides": BERT},
    "encoder": {"config_name": "t5", "family": "encoder"},
}
TASK = load_task("mini", "entailment")
# Texts of differing length, an empty one among them.
ROWS = [{"premise": "", "hypothesis": "", "label": 1}, *tiny_rows("entailment", count=40)]


@functools.cache
def trainer_of(family):
    model = tiny_model(**MODELS[family], tasks=[TASK])
    return tiny_trainer(ROWS, TASK, model=model)


@functools.cache
def rows_of(family) -> list[dict]:
    return encode_rows(ROWS, TASK, model=trainer_of(family).model)


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
        "decoder_input_ids": padded([[START, *row["labels"]] for row in rows], PAD, multiple)[:, : labels.shape[1]],
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
    types = {}
    if "token_type_ids" in rows[0]:
        types["token_type_ids"] = padded([row["token_type_ids"] for row in rows], 0, multiple)
    return {
        "input_ids": padded([row["input_ids"] for row in rows], PAD, multiple),
        "attention_mask": padded([[1] * len(row["input_ids"]) for row in rows], 0, multiple),
        **types,
        "labels": torch.tensor([row["labels"][0] for row in rows]),
    }


PLAIN = {"seq2seq": plain_seq2seq, "causal": plain_causal, "masked": plain_masked, "encoder": plain_masked}


class BatchTest(parameterized.TestCase):
    def assert_equal_batches(self, one, other):
        self.assertEqual(list(one), list(other))
        for name in one:
            self.assertEqual(one[name].dtype, other[name].dtype, name)
            self.assertTrue(torch.equal(one[name], other[name]), f"{name}:\n{one[name]}\n{other[name]}")

    @parameterized.product(family=list(PLAIN), multiple=[1, 8])
    @pytest.mark.quick_cases(2)
    def test_flat_arrays_lists_and_plain_padding_make_the_same_batch(self, family, multiple):
        trainer, rows = trainer_of(family), rows_of(family)
        tokens = {"pad_token_id": PAD, "pad_to_multiple_of": multiple}
        if family == "seq2seq":
            tokens["decoder_start_token_id"] = START
        collate = dataclasses.replace(trainer.data_collator, **tokens)
        arrays = trainer.train_dataset
        rng = np.random.default_rng(1)
        for size in (1, 3, 32):
            for indices in [*rng.integers(0, len(rows), (3, size)).tolist(), list(range(len(rows)))[-size:]]:
                expected = PLAIN[family]([rows[i] for i in indices], multiple)
                self.assert_equal_batches(collate(arrays.__getitems__(indices)), expected)
                self.assert_equal_batches(collate(arrays.__getitems__([0, *indices, 1])[1:-1]), expected)
                self.assert_equal_batches(collate([rows[i] for i in indices]), expected)
                self.assert_equal_batches(collate([arrays[i] for i in indices]), expected)

    def test_prompts_and_answers_without_tokens_and_of_one(self):
        rows = [{"input_ids": prompt, "labels": answer} for prompt in ([], [9], [8, 9]) for answer in ([], [5], [5, 6])]
        collate = dataclasses.replace(trainer_of("causal").data_collator, pad_token_id=PAD)
        for several in (rows[1:], rows[1:3], *([row] for row in rows[1:])):
            self.assert_equal_batches(collate(several), PLAIN["causal"](several, 1))

    @parameterized.parameters("masked", "encoder")
    def test_types_of_tokens_are_padded_with_zeros(self, family):
        """The bundled tokenizer has none."""
        rows = [{**row, "token_type_ids": [i % 2 for i in range(len(row["input_ids"]))]} for row in rows_of(family)]
        collate = dataclasses.replace(trainer_of(family).data_collator, pad_token_id=PAD, pad_to_multiple_of=8)
        self.assert_equal_batches(collate(rows[:9]), PLAIN[family](rows[:9], 8))

    def test_labels_of_words_are_padded_and_a_word_without_one_counts_for_nothing(self):
        labels = [[IGNORED, 1, IGNORED], [-101, 0, 1, IGNORED]]
        rows = [{"input_ids": list(range(5, 5 + len(row))), "labels": row} for row in labels]
        collate = dataclasses.replace(trainer_of("masked").data_collator, pad_token_id=PAD, pad_to_multiple_of=3)
        batch = collate(rows)
        self.assertEqual(batch["labels"].dtype, torch.int64)
        self.assertEqual(batch["labels"].tolist(), [[IGNORED, 1] + [IGNORED] * 4, [IGNORED, 0, 1] + [IGNORED] * 3])
        self.assertEqual(batch["input_ids"].tolist(), [[5, 6, 7, PAD, PAD, PAD], [5, 6, 7, 8, PAD, PAD]])

    def test_a_number_to_learn_stays_one(self):
        rows = [{"input_ids": [5], "labels": [2.5]}, {"input_ids": [5, 6], "labels": [-100.0]}]
        labels = trainer_of("encoder").data_collator(rows)["labels"]
        self.assertTrue(labels.is_floating_point())
        self.assertEqual(labels.tolist(), [2.5, -100.0])

    @parameterized.parameters(*PLAIN)
    def test_no_rows_are_a_row_that_counts_for_nothing(self, family):
        trainer = trainer_of(family)
        batch = trainer.data_collator(trainer.train_dataset.__getitems__([]))
        self.assertEqual(batch["input_ids"].shape, (1, 1))
        self.assertTrue(batch["labels"].eq(IGNORED).all())


class LoaderTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_neither_workers_nor_pinned_memory_change_batches_or_what_is_drawn_later(self):
        courses = []
        for settings in ({}, {"dataloader_num_workers": 1}, {"dataloader_pin_memory": False}):
            loader = tiny_trainer(ROWS, TASK, **settings).get_train_dataloader()
            torch.manual_seed(0)
            loader.set_epoch(3)
            courses.append(([batch["input_ids"] for batch in loader], torch.rand(3)))
            self.assertLen(loader, len(courses[0][0]))
        self.assertLen(courses[0][0], 6)
        for batches, numbers in courses[1:]:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(batches, courses[0][0], strict=True)))
            self.assertTrue(torch.equal(numbers, courses[0][1]))
