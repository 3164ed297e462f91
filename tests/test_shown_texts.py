"""What people are shown of a row is what the model read."""

import dataclasses
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from unittest import mock

from absl.testing import parameterized
from datasets import Dataset
from odd_tokenizers import byte_tokenizer, word_tokenizer
from transformers import ByT5Tokenizer

from t5suite import Task, load_task
from t5suite.data.batches.encodings import LabelsEncoding, PromptEncoding, SegmentEncoding, TextEncoding
from t5suite.reports import cards
from t5suite.reports.dry_runs import print_dry_run
from t5suite.reports.evaluations import key_of
from t5suite.reports.finishing import prediction_lines
from t5suite.tasks.registry import Lengths
from t5suite.tasks.tokens import CUT_MARK, with_cut, without_cut
from t5suite.testing import tiny_tokenizer
from t5suite.training.callbacks import samples_of
from t5suite.training.eval_sets import make_eval_set

DEMONSTRATION = {"input": "a b c d e f g h", "output": "it is so", "explanation": None}
INSTANCE = {
    "task": "task1", "definition": "Say it.", "positive_examples": [DEMONSTRATION] * 2, "negative_examples": [],
    "input": "a b", "output": ["yes"], "idx": 0, "id": "task1-1", "category": "x",
}  # fmt: skip
TEXTS = (
    "It rains.",
    "the farmer was at the river in the morning and the cook sold bread",
    "é ½ </s> a <pad> b c d e f",
)


def columns_task(columns, **fields):
    entry = {
        "prefix": [f"{column}: " for column in columns] if len(columns) > 1 else "", "label_column_name": "label",
        "text_column_name": list(columns) if len(columns) > 1 else columns[0], "labels": ["no", "yes"],
        "metric_names": ["accuracy"], "metric_to_optimize": "accuracy", **fields,
    }  # fmt: skip
    return Task("mine", "t", entry)


def eval_set_of(task, rows, encoding):
    return make_eval_set("t", task, "validation", Dataset.from_list(rows), encoding)


def result_of(eval_set):
    return SimpleNamespace(samples=[], predictions=["yes"] * len(eval_set.examples))


def every_text(eval_set) -> list[list[str]]:
    """What samples, predictions with texts, and a dry run show of each example."""
    samples = [line["input"] for line in samples_of(eval_set, result_of(eval_set), 99)]
    predictions = [line["inputs"] for line in prediction_lines(eval_set, result_of(eval_set).predictions, True)]
    return [samples, predictions, [eval_set.shown_inputs(place) for place in range(len(eval_set.examples))]]


class FittedTest(parameterized.TestCase):
    @parameterized.parameters(0, 1, 2)
    def test_a_row_is_shown_with_the_demonstrations_that_were_read(self, count):
        task, tokenizer = load_task("super_ni", "english"), tiny_tokenizer()
        task = dataclasses.replace(task, entry={**task.entry, "max_input_tokens": None})
        instructed = {**task.entry["instruction"], "num_pos_examples": count}
        fewer = dataclasses.replace(task, entry={**task.entry, "instruction": instructed})
        expected = fewer.examples(INSTANCE)[0].inputs
        longest = len(tokenizer(expected)["input_ids"])
        eval_set = eval_set_of(task, [INSTANCE], TextEncoding(tokenizer, Lengths(longest, 16)))
        (ids,) = list(eval_set.features.input_ids)
        self.assertEqual(ids.tolist(), tokenizer(expected)["input_ids"])
        self.assertEqual(every_text(eval_set), [[expected]] * 3)
        with mock.patch.object(cards, "SHOWN", len(expected)):
            (line,) = [line for line in cards.usage_lines(eval_set, "seq2seq") if "Positive" in line or "Now" in line]
        self.assertIn(repr(expected), line)
        self.assertEqual(expected.count("Positive Example"), count)
        self.assertEqual(task.examples(INSTANCE)[0].inputs.count("Positive Example"), 2)


class CutTest(parameterized.TestCase):
    @parameterized.product(name=["t5", "byt5", "bytes"], room=[0, 1, 2, 5, 9, 500])
    def test_the_mark_stands_where_the_tokens_end(self, name, room):
        tokenizer = {"t5": lambda: tiny_tokenizer(), "byt5": ByT5Tokenizer, "bytes": byte_tokenizer}[name]()
        ids_of = lambda text: TextEncoding(tokenizer, Lengths(9999, 9)).prompts([text])[0]
        own = len(ids_of("")) if name != "t5" else 1
        for text in TEXTS:
            shown = with_cut(tokenizer, text, room)
            self.assertEqual(without_cut(shown), text)
            count = len(ids_of(text)) - own
            if count <= room:
                self.assertEqual(shown, text)
                continue
            mark = CUT_MARK.search(shown)
            self.assertEqual(mark[0], f" [cut: {count - room} more tokens] ")
            if "½" not in text:  # several tokens of one character, or one that is normalized to several
                before = len(ids_of(shown[: mark.start()])) - own if shown[: mark.start()] else 0
                self.assertLessEqual(abs(before - room), 1, shown)

    def test_samples_and_predictions_say_where_a_long_row_is_cut(self):
        task, tokenizer = columns_task(["text"]), tiny_tokenizer()
        rows = [{"text": text, "label": 1} for text in TEXTS]
        eval_set = eval_set_of(task, rows, TextEncoding(tokenizer, Lengths(8, 4)))
        whole = TextEncoding(tokenizer, Lengths(999, 4)).prompts(TEXTS)
        for texts in every_text(eval_set):
            self.assertEqual([without_cut(text) for text in texts], list(TEXTS))
            for text, ids in zip(texts, whole, strict=True):
                expected = [f" [cut: {len(ids) - 8} more tokens] "] if len(ids) > 8 else []
                self.assertEqual(CUT_MARK.findall(text), expected)
        self.assertEqual([example.inputs for example in eval_set.examples], list(TEXTS))
        lines = list(prediction_lines(eval_set, ["yes"] * 3, True))
        self.assertEqual(key_of(lines[1]), key_of({**lines[1], "inputs": TEXTS[1]}))

    def test_a_very_long_sample_keeps_the_mark(self):
        task = columns_task(["text"])
        rows = [{"text": "a b " * 2000, "label": 1}]
        eval_set = eval_set_of(task, rows, TextEncoding(tiny_tokenizer(), Lengths(3000, 4)))
        (sample,) = samples_of(eval_set, result_of(eval_set), 1)
        self.assertRegex(sample["input"], r"more characters\) \[cut: \d+ more tokens\]$")
        self.assertLess(len(sample["input"]), 2100)

    def test_sentinels_at_the_end_are_read_in_spite_of_the_cut(self):
        task = columns_task(["text"], input_format="__input__ <extra_id_0>", output_format="<extra_id_0> __output__")
        eval_set = eval_set_of(task, [{"text": "a b a b", "label": 1}], TextEncoding(tiny_tokenizer(), Lengths(5, 9)))
        (ids,) = list(eval_set.features.input_ids)
        self.assertLen(ids, 5)
        shown = eval_set.shown_inputs(0)
        count = len(tiny_tokenizer()(["a b a b <extra_id_0>"])["input_ids"][0])
        self.assertEqual(CUT_MARK.findall(shown), [f" [cut: {count - 5} more tokens] "])
        self.assertEndsWith(shown, "<extra_id_0>")

    def test_families_show_what_they_read(self):
        row = {"a": "it rains . it is wet", "b": "it is", "label": 1}
        task, words = columns_task(["a", "b"]), word_tokenizer()
        encoding = SegmentEncoding(words, Lengths(99, 1), ("no", "yes"), True)
        self.assertEqual(eval_set_of(task, [row], encoding).shown_inputs(0), "it rains . it is wet [SEP] it is")
        encoding = dataclasses.replace(encoding, lengths=Lengths(8, 1))
        eval_set = eval_set_of(task, [row], encoding)
        self.assertEqual(eval_set.shown_inputs(0), "it rains . [cut: 3 more tokens]  it is wet [SEP] it is")
        self.assertLen(next(iter(eval_set.features.input_ids)), 8)
        prompts = PromptEncoding(byte_tokenizer(), Lengths(20, 9))
        eval_set = eval_set_of(columns_task(["a"]), [row], prompts)
        room = 20 - len(prompts.between)
        count = len(byte_tokenizer()([row["a"]])["input_ids"][0])
        self.assertIn(f" [cut: {count - room} more tokens] ", eval_set.shown_inputs(0))
        labels = LabelsEncoding(words, Lengths(5, 1), ("O", "B"))
        shown = labels.for_task(columns_task(["a"])).with_cut(("it", "is", "wet", "it", "rains"))
        self.assertEqual(shown, "it is wet [cut: 2 more tokens]  it rains")
        self.assertEqual(without_cut(shown), "it is wet it rains")


class DryRunTest(parameterized.TestCase):
    def test_a_dry_run_shows_fitted_and_cut_texts(self):
        task = columns_task(["text"])
        rows = Dataset.from_list([{"text": TEXTS[1], "label": 1}])
        encoding = TextEncoding(tiny_tokenizer(), Lengths(8, 4))
        part = SimpleNamespace(task=task, rows=rows)
        data = SimpleNamespace(training_sets=[part], scored=[], features=[])
        printed = StringIO()
        with redirect_stdout(printed):
            print_dry_run({}, {}, data, encoding, encoding.lengths, None)
        self.assertRegex(printed.getvalue().replace("\n", " "), r"\[cut: \d+ more +tokens\]")
