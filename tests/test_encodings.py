"""How each family's texts become ids, and outputs become texts; control tokens in them are text."""

import copy
import errno
import math
from types import SimpleNamespace
from unittest import mock

import datasets
import numpy as np
from absl.testing import parameterized
from family_worker import VOWELS
from odd_tokenizers import byte_tokenizer, word_tokenizer
from support import folder
from transformers import AutoTokenizer, ByT5Tokenizer

from benchmarks.gemma_form import gemma_tokenizer
from t5suite import Task, load_task
from t5suite.data.batches import training_data
from t5suite.data.batches.encodings import (
    LabelsEncoding,
    PromptEncoding,
    SegmentEncoding,
    TextEncoding,
    answer_text,
    leading_ids,
)
from t5suite.fine_tuner_answers import answer_rows
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.predictor import WrittenAnswer
from t5suite.inference.settings import InputSettings
from t5suite.tasks.formatters import FORMATTERS, Example
from t5suite.tasks.segments import segments
from t5suite.tasks.targets import TARGETS
from t5suite.tasks.tokenization import Lengths, tokenize_rows
from t5suite.testing import encode_rows, example_row, exits_with, make_task, tiny_tokenizer, write_rows

LONG = Lengths(400, 400)
PRICE = "Price <s>12</s> 9 euros"


class TextTest(parameterized.TestCase):
    @parameterized.parameters("byt5", "t5")
    def test_an_answer_with_control_tokens_survives_decoding(self, name):
        tokenizer = ByT5Tokenizer() if name == "byt5" else tiny_tokenizer()
        encoding = TextEncoding(tokenizer, LONG)
        # The bundled vocabulary has no `<`, as T5's, so this piece reads as the unknown one; nothing ends early.
        expected = PRICE if name == "byt5" else tokenizer.decode(encoding.answers([PRICE])[0][:-1])
        self.assertEqual(encoding.texts(encoding.answers([PRICE])), [expected])
        self.assertEqual(encoding.choices([PRICE]), encoding.answers([PRICE]))
        self.assertEndsWith(expected, "9 euros")

    def test_prompts_are_the_ids_of_rows(self):
        """For a task whose own form has a control token or a sentinel, also where the text is cut."""
        fields = {"prefix": "", "labels": None, "metric_names": [], "metric_to_optimize": None}
        for form, length in (("__input__ </s>", 400), ("__input__ <extra_id_0>", 400), ("__input__ <extra_id_0>", 4)):
            task = make_task(**fields, input_format=form)
            (example,) = encode_rows([{"text": "x <pad> it", "label": "y"}], task, source_length=length)
            encoding = TextEncoding(tiny_tokenizer(), Lengths(length, 8)).for_task(task)
            self.assertEqual(encoding.prompts([form.replace("__input__", "x <pad> it")]), [example["input_ids"]])

    def test_a_text_with_a_control_token_fits_if_all_its_ids_do(self):
        tokenizer = tiny_tokenizer()
        (ids,) = TextEncoding(tokenizer, LONG).prompts(["b </s>"])
        exact = TextEncoding(tokenizer, Lengths(len(ids), 1))
        self.assertEqual([exact.fits(text) for text in ("b </s>", "b </s> c")], [True, False])

    @parameterized.parameters(64, 5, 1)
    def test_targets_end_where_the_tokenizer_ends_no_text(self, length):
        """Against Gemma's tokenizer where it is told to end texts and to begin none; inputs stay its own."""
        texts = ["it was good", "", "it was <eos> good or <bos> bad", "bad " * 90]
        place = folder()
        gemma_tokenizer(texts * 9, vocab_size=300).save_pretrained(place)
        tokenizer = AutoTokenizer.from_pretrained(place)
        ending = AutoTokenizer.from_pretrained(place, add_bos_token=False, add_eos_token=True)
        task = make_task(prefix="", labels=None, metric_names=[], metric_to_optimize=None)
        rows = {"text": texts, "label": texts}
        for kept_end in (0, 2):
            encoding = TextEncoding(tokenizer, Lengths(400, length, kept_end))
            expected = TextEncoding(ending, encoding.lengths)
            answers = encoding.answers(texts)
            self.assertEqual(answers, expected.answers(texts))
            self.assertEqual([ids[-1] for ids in answers], [tokenizer.eos_token_id] * 4)
            columns = encoding.rows(rows, task, "train")
            self.assertEqual(columns["labels"], expected.rows(rows, task, "train")["labels"])
            self.assertEqual(columns["input_ids"][0], tokenizer(texts[0])["input_ids"])


class RowsTest(parameterized.TestCase):
    def test_rows_by_column_are_the_ids_of_their_texts_cut_with_their_end(self):
        """Against the tokenizer itself; a target keeps its end token, too."""
        task, tokenizer = load_task("mini", "sentiment"), tiny_tokenizer()
        rows = {"sentence": ["It is good.", "It is not at all what I wanted to have."], "label": [1, 0]}
        read = tokenize_rows(rows, task=task, tokenizer=tokenizer, lengths=Lengths(12, 3))
        for sides, texts, length in (
            ("input_ids", [f"sentiment sentence: {text}" for text in rows["sentence"]], 12),
            ("labels", ["positive", "negative"], 3),
        ):
            expected = [tokenizer(text, max_length=length, truncation=True)["input_ids"] for text in texts]
            self.assertEqual([list(ids) for ids in read[sides]], expected)

    def test_a_row_may_be_several_examples_or_none(self):
        """WSC's training rows of which the pronoun is another's are left out, as in the original T5."""
        rows = {"text": ["Ann met Bob when she ran.", "Ann met Bob when she ran."], "span1_text": ["Ann", "Bob"]}
        rows |= {"span1_index": [0, 2], "span2_text": ["she", "she"], "span2_index": [4, 4], "label": [1, 0]}
        task = load_task("super_glue", "wsc")
        counts = {}
        for split in ("train", "validation"):
            read = tokenize_rows(rows, task=task, tokenizer=tiny_tokenizer(), lengths=LONG, split=split)
            counts[split] = len(read["input_ids"])
        self.assertEqual(counts, {"train": 1, "validation": 2})


class PromptTest(parameterized.TestCase):
    def test_a_decoder_only_model_reads_and_writes_its_end_token_as_text(self):
        tokenizer = byte_tokenizer()
        encoding, text = PromptEncoding(tokenizer, LONG), "It was <|endoftext|> good."
        (prompt,), (answer,) = encoding.prompts([text]), encoding.answers([text])
        self.assertNotIn(encoding.eos, prompt)
        self.assertEqual(answer.count(encoding.eos), 1)
        self.assertEqual(encoding.texts([answer]), [text])
        self.assertEqual(PromptEncoding(tokenizer, LONG, "<|endoftext|>").prompts(["a"])[0][-1], encoding.eos)

    def test_a_prompt_leaves_room_for_its_separator(self):
        """Demonstrations of Super-NaturalInstructions that fit without the separator alone are left out."""
        task, tokenizer = load_task("super_ni", "english"), tiny_tokenizer()
        definition, example = "Definition: Say it.\n\n", " Positive Example 1 -\nInput: ha.\n Output: ho.\n\n"
        question = "Now complete the following example -\nInput: hi.\nOutput: "
        row = {"idx": 0, "task": "t", "category": "c", "definition": "Say it", "input": "hi", "output": ["ho"]}
        row |= {"positive_examples": [{"input": "ha", "output": "ho", "explanation": None}], "negative_examples": []}
        columns = {key: [value] for key, value in row.items()}
        whole = len(tokenizer(definition + example + question, add_special_tokens=False)["input_ids"])
        encoding = PromptEncoding(tokenizer, Lengths(512, 8))
        rest = len(encoding.lead) + len(encoding.between)
        for room, text in ((whole, definition + example + question), (whole - 1, definition + question)):
            fitted = PromptEncoding(tokenizer, Lengths(room + rest, 8))
            self.assertEqual(fitted.rows(columns, task, "test")["input_ids"], encoding.prompts([text]))
            answers = mock.Mock(return_value=[[WrittenAnswer("ho", None, truncated=False, num_tokens=2)]])
            predictor = SimpleNamespace(encoding=fitted, writes=True, answers=answers)
            answer_rows(predictor, InputSettings(task, fitted.lengths, 8), [row], DecodingSettings())
            self.assertEqual(answers.call_args.args[0], encoding.prompts([text]))


class EncoderTest(parameterized.TestCase):
    def test_separators_in_a_text_are_text(self):
        tokenizer = word_tokenizer()
        encoding = SegmentEncoding(tokenizer, LONG, ("a", "b"), True)
        columns = encoding.inputs([("it [SEP] rains", "is [CLS] it"), ("it rains", "is it")])
        self.assertEqual([row.count(3) for row in columns["input_ids"]], [2, 2])
        self.assertEqual([row.count(2) for row in columns["input_ids"]], [1, 1])
        for ids, types in zip(columns["input_ids"], columns["token_type_ids"], strict=True):
            border = ids.index(3) + 1
            self.assertEqual(types, [0] * border + [1] * (len(ids) - border))
        words = LabelsEncoding(tokenizer, LONG, ("O", "B")).inputs([["it", "[SEP]", "rains"]])
        self.assertEqual(words["input_ids"][0].count(3), 1)

    def test_a_number_that_stands_for_no_label_elsewhere_is_learned_all_the_same(self):
        """torch's losses skip labels of -100; a head's number may be that, or round to it in float32."""
        task = load_task("mini", "similarity")
        columns = {
            "sentence1": ["It rains."] * 4,
            "sentence2": ["It pours."] * 4,
            "label": [-100, -100.000001, 2.5, None],
        }
        read = SegmentEncoding(word_tokenizer(), LONG).rows(columns, task, "validation")
        numbers = np.array(read["labels"], np.float32)[:, 0]
        self.assertEqual((numbers == -100).tolist(), [False, False, False, True])
        np.testing.assert_allclose(numbers, [-100, -100, 2.5, -100], rtol=1e-7)

    def test_a_heads_number_is_written_with_the_digits_of_a_float32(self):
        random = np.random.default_rng(0)
        for value in random.standard_normal(500) * 10.0 ** random.integers(-30, 30, 500):
            text = answer_text(np.float32(value))
            self.assertNotIn("e", text)
            self.assertEqual(np.float32(text), np.float32(value))
        encoding = SegmentEncoding(None, Lengths(8, 1))
        self.assertEqual(encoding.word([np.float32(0.000123)]), "0.000123")
        self.assertEqual(encoding.word([math.nan]), "nan")
        self.assertEqual(encoding.word([7.5], 0.0, 5.0), "5.0")


class CutPromptTest(parameterized.TestCase):
    def test_a_prompt_that_is_too_long_loses_its_end_and_neither_separator_nor_answer(self):
        tokenizer = byte_tokenizer()
        encoding = PromptEncoding(tokenizer, Lengths(12, 4), "\nA: ")
        prompt = encoding.prompts(["It was good and bad. " * 9])[0]
        self.assertLen(prompt, 12)
        text = tokenizer.decode(prompt)
        self.assertTrue(text.endswith("\nA:"), text)
        self.assertTrue(text.startswith("It was"), text)
        self.assertEqual(encoding.answers(["positive" * 9])[0][-1], tokenizer.eos_token_id)
        self.assertLen(encoding.answers(["positive" * 9])[0], 4)

    @parameterized.parameters("\nanswer: ", "\n", " = ", "", "\n\n  ")
    def test_answers_are_read_as_they_were_written(self, separator):
        for tokenizer in (byte_tokenizer(), tiny_tokenizer()):
            encoding = PromptEncoding(tokenizer, Lengths(64, 32), separator)
            words = ["positive", "not_entailment", "3.8"]
            self.assertEqual(encoding.texts([[*ids, 7, 7] for ids in encoding.answers(words)]), words)

    def test_a_separator_that_fills_the_prompt_is_refused(self):
        with exits_with(78, "--max_source_length 4 leaves no room"):
            PromptEncoding(byte_tokenizer(), Lengths(4, 4), "a long separator")

    def test_what_begins_a_text_is_kept_and_what_ends_it_is_not(self):
        self.assertEqual(leading_ids(byte_tokenizer()), [])
        self.assertEqual(leading_ids(tiny_tokenizer()), [])  # T5 ends texts, and begins them with nothing
        self.assertEqual(leading_ids(word_tokenizer()), [word_tokenizer().cls_token_id])

    def test_text_without_a_prompt_begins_with_the_token_that_begins_texts(self):
        encoding = PromptEncoding(byte_tokenizer(), Lengths(64, 64))
        self.assertEqual(encoding.prompts([""])[0], [byte_tokenizer().bos_token_id])
        self.assertEqual(encoding.answers(["It was good."])[0][-1], byte_tokenizer().eos_token_id)


class SegmentsTest(parameterized.TestCase):
    def encoding(self, *words):
        return SegmentEncoding(word_tokenizer(), Lengths(16, 1), words or None, has_types=True)

    def test_a_pair_of_columns_is_a_pair_of_segments(self):
        rows = {"sentence1": ["it rains ."], "sentence2": ["it is wet ."], "label": [1]}
        columns = self.encoding("entailment", "not_entailment").rows(rows, load_task("glue", "rte"), "train")
        tokens = word_tokenizer().convert_ids_to_tokens(columns["input_ids"][0])
        self.assertEqual(tokens, "[CLS] it rains . [SEP] it is wet . [SEP]".split())
        self.assertEqual(columns["token_type_ids"], [[0] * 5 + [1] * 5])
        self.assertEqual(columns["labels"], [[1]])

    def test_segments_may_be_fields_of_a_column(self):
        columns = {"prefix": ["a: ", "b: "], "text_column_name": ["pair.first", "second"]}
        task = make_task(**columns, labels=["no", "yes"])
        rows = {"pair": [{"first": "it rains ."}], "second": ["it is wet ."], "label": [1]}
        ids = self.encoding("no", "yes").rows(rows, task, "train")["input_ids"][0]
        tokens = word_tokenizer().convert_ids_to_tokens(ids)
        self.assertEqual(tokens, "[CLS] it rains . [SEP] it is wet . [SEP]".split())

    def test_other_rows_are_read_as_t5_reads_them(self):
        task = load_task("super_glue", "wic")
        row = {"sentence1": "a cup", "sentence2": "my cup", "word": "cup", "label": 1}
        example, *_ = task.examples(row, "train")
        self.assertEqual(segments(example, row, task), (example.inputs,))

    def test_the_head_s_own_order_of_words_counts(self):
        rows = {"sentence1": ["it rains ."] * 3, "sentence2": ["it is wet ."] * 3, "label": [0, 1, -1]}
        columns = self.encoding("not_entailment", "entailment").rows(rows, load_task("glue", "rte"), "validation")
        self.assertEqual(columns["labels"], [[1], [0], [-100]])

    def test_numbers_stay_numbers(self):
        task = load_task("glue", "stsb")
        rows = {"sentence1": ["it rains ."] * 2, "sentence2": ["it is wet ."] * 2, "label": [3.75, -1.0]}
        self.assertEqual(self.encoding().rows(rows, task, "validation")["labels"], [[3.75], [-100.0]])
        words = [self.encoding().word([value], 0.0, 5.0) for value in (5.25, -0.5, 3.25)]
        self.assertEqual(words, ["5.0", "0.0", "3.25"])


ENTRY = VOWELS.entry
WORDS = Task("mine", "words", {**ENTRY, "text_column_name": "tokens", "label_column_name": "tags"})


class LabelsTest(parameterized.TestCase):
    @parameterized.parameters(tiny_tokenizer, ByT5Tokenizer, word_tokenizer)
    def test_a_label_stands_at_the_first_token_of_its_word(self, make):
        tokenizer, words = make(), ["it", "rains", "wet", "is", "rains"]
        rows = {"tokens": [words, words[:2]], "tags": [["yes", "no", "no", "yes", "no"], [-1, -1]]}
        columns = LabelsEncoding(tokenizer, Lengths(64, 1), ("yes", "no")).rows(rows, WORDS, "train")
        ids, labels = columns["input_ids"][0], np.array(columns["labels"][0])
        starts = np.flatnonzero(labels != -100)
        self.assertEqual(labels[starts].tolist(), [0, 1, 1, 0, 1])  # in the head's order
        ends = [*starts[1:], len(ids) - 1]
        self.assertEqual([tokenizer.decode(ids[a:b]).strip() for a, b in zip(starts, ends, strict=True)], words)
        self.assertEqual(ids[-1], tokenizer(" ".join(words))["input_ids"][-1])
        self.assertEqual(columns["labels"][1].count(-101), 2)

    def test_long_rows_lose_their_last_words_and_a_word_without_pieces_keeps_its_place(self):
        encoding = LabelsEncoding(tiny_tokenizer(), Lengths(8, 1), ("no", "yes"))
        rows = {"tokens": [["it"] * 20, ["\u200b", "it"]], "tags": [[0] * 20, [1, 0]]}
        columns = encoding.rows(rows, WORDS, "train")
        self.assertEqual(len(columns["input_ids"][0]), 8)
        self.assertEqual([label for label in columns["labels"][1] if label != -100], [1, 0])
        self.assertEqual(WORDS.score([{"tokens": ["a"] * 4, "tags": [0] * 4}], ["no no"])["token_accuracy"], 50.0)


class TokenFilesTest(parameterized.TestCase):
    """Tokens of a split that a file keeps for the next run."""

    ROWS = [{"text": "it rains .", "label": 1}, {"text": "it is wet .", "label": 0}]

    def setUp(self):
        super().setUp()
        self.cache = folder()
        self.enterContext(mock.patch.object(datasets.config, "HF_DATASETS_CACHE", str(self.cache)))
        self.enterContext(mock.patch.object(training_data, "FEWEST_ROWS", 2))

    def tokens(self, rows=None, task=None, encoding=None, split="train"):
        rows = datasets.Dataset.from_list(rows or self.ROWS)
        encoding = encoding or TextEncoding(tiny_tokenizer(), LONG)
        return training_data.tokenize_split(rows, task or make_task(), encoding, split, cache=True)

    def num_files(self) -> int:
        return len(list(self.cache.rglob("*.npz")))

    def test_rows_task_split_lengths_and_encoding_have_each_a_file_of_their_own(self):
        places = []
        other_end = copy.deepcopy(tiny_tokenizer())
        other_end.eos_token = "<extra_id_7>"
        self.enterContext(mock.patch.object(training_data, "_read_or_make", lambda place, make: places.append(place)))
        for changes in (
            {},
            {"rows": self.ROWS[::-1]},
            {"task": make_task(prefix="text: ")},
            {"task": make_task(labels=["poor", "good"])},
            {"split": "validation"},
            {"encoding": TextEncoding(tiny_tokenizer(), Lengths(399, 400))},
            {"encoding": TextEncoding(tiny_tokenizer(), Lengths(400, 399))},
            {"encoding": PromptEncoding(tiny_tokenizer(), LONG, "\nA: ")},
            {"encoding": PromptEncoding(tiny_tokenizer(), LONG, "\nB: ")},
            {"encoding": TextEncoding(word_tokenizer(), LONG)},
            {"encoding": TextEncoding(other_end, LONG)},
        ):
            self.tokens(**changes)
            self.assertLen(set(places), len(places), changes)
        self.tokens()
        self.assertEqual(places[-1], places[0])

    def test_few_rows_those_of_a_formatter_of_one_s_own_and_those_of_a_full_disk_are_made_each_time(self):
        expected = self.tokens().input_ids.values.tolist()
        (kept_file,) = self.cache.rglob("*.npz")
        kept_file.unlink()
        with mock.patch.object(training_data, "FEWEST_ROWS", 3):
            self.assertEqual(self.tokens().input_ids.values.tolist(), expected)
        own = lambda row, entry, split: [Example(f"reviews text: {row['text']}", "good")]
        with mock.patch.dict(FORMATTERS, own=own):
            self.assertEqual(self.tokens(task=make_task(formatter="own")).input_ids.values.tolist(), expected)
        self.assertEqual(self.num_files(), 0)
        full = mock.patch.object(np, "savez", side_effect=OSError("No space left on device"))
        tokenizing = mock.patch.object(datasets.Dataset, "map", autospec=True, side_effect=datasets.Dataset.map)
        with full, tokenizing as tokenized, self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(self.tokens().input_ids.values.tolist(), expected)
        self.assertEqual(tokenized.call_count, 1)
        self.assertRegex(logs.output[0], "tokenized rows are not cached in .*: No space left")
        self.assertEqual(self.num_files(), 0)

    def test_an_error_of_reading_the_rows_is_none_of_the_cache(self):
        fault = OSError(errno.EIO, "Input/output error", "rows.arrow")
        reading = mock.patch.object(datasets.Dataset, "map", side_effect=fault)
        with reading as read, self.assertNoLogs("t5suite", "WARNING"), self.assertRaisesRegex(OSError, "rows.arrow"):
            self.tokens()
        self.assertEqual(read.call_count, 1)

    def test_targets_by_code_of_your_own_are_made_by_its_code_of_now(self):
        rows = [{"text": f"it rains {number}", "label": float(number)} for number in range(4)]
        fields = {"labels": None, "target": "own", "metric_names": ["pearson"], "metric_to_optimize": "pearson"}
        for decimals in (1, 3):
            with mock.patch.dict(TARGETS, own=lambda value, decimals=decimals: f"{float(value):.{decimals}f}"):
                tokens = self.tokens(rows, make_task(**fields))
            texts = tiny_tokenizer().batch_decode(list(tokens.labels), skip_special_tokens=True)
            self.assertEqual(
                [text.replace(" ", "") for text in texts], [f"{number:.{decimals}f}" for number in range(4)]
            )
        self.assertEqual(self.num_files(), 0)

    def test_rows_on_disk_of_a_formatter_of_one_s_own_are_read_by_its_code_of_now(self):
        """`datasets` keeps what it makes of such rows, those of a hub data set, beside them."""
        file = write_rows(folder() / "rows.jsonl", self.ROWS)
        rows = datasets.Dataset.from_json(str(file), cache_dir=str(self.cache))
        self.assertNotEmpty(rows.cache_files)
        encoding = TextEncoding(tiny_tokenizer(), LONG)
        files = sorted(self.cache.rglob("*.arrow"))
        for word in ("film", "book"):
            with mock.patch.dict(FORMATTERS, own=lambda row, entry, split, word=word: [Example(word, "good")]):
                tokens = training_data.tokenize_split(rows, make_task(formatter="own"), encoding, "train", cache=True)
            self.assertEqual([ids.tolist() for ids in tokens.input_ids], encoding.prompts([word] * 2))
        self.assertEqual(sorted(self.cache.rglob("*.arrow")), files)

    def test_rows_of_a_formatter_of_one_s_own_are_held_out_by_the_inputs_that_it_makes(self):
        """Its text column may be the same in all rows, and another one may differ in all of them."""
        numbers = (0, 1, 2, 3, 4, 5, 6, 6)
        rows = [{"text": "a film", "number": number, "label": "good", "idx": i} for i, number in enumerate(numbers)]
        options = training_data.DataOptions(train_file=str(write_rows(folder() / "rows.jsonl", rows)))
        subset = training_data.Subset(selection_share=0.5)
        with mock.patch.dict(FORMATTERS, own=lambda row, entry, split: [Example(str(row["number"]), "good")]):
            (part,), _ = training_data.load_training_sets([make_task(formatter="own")], options, subset, seed=0)
        trained, held_out = part.rows["number"], part.selection_rows["number"]
        self.assertLen(held_out, 4)
        self.assertEqual(sorted([*trained, *held_out]), [*numbers])
        self.assertEqual(set(trained) & set(held_out), set())


class PiecesTest(parameterized.TestCase):
    """Rows that have been read are tokenized some at a time."""

    @parameterized.parameters(0, 1, 2, 5)
    def test_pairs_have_the_ids_of_all_rows_at_once(self, count):
        task = load_task("glue", "rte")
        rows = [
            {"sentence1": "it rains ." * n, "sentence2": "it is wet .", "label": n % 2} for n in range(1, count + 1)
        ]
        encoding = SegmentEncoding(word_tokenizer(), Lengths(16, 1), ("entailment", "not_entailment"), has_types=True)
        self.check(encoding, task, rows, count)

    def test_rows_of_several_examples_have_the_ids_of_all_rows_at_once(self):
        texts = {"passage": "The man ate.", "query": "@placeholder ate.", "entities": ["The man", "food"]}
        rows = [{**texts, "answers": ["The man", "food"][:count], "idx": {"query": count}} for count in (2, 1, 2)]
        self.check(TextEncoding(tiny_tokenizer(), LONG), load_task("super_glue", "record"), rows, 5)

    def test_rows_without_an_example_leave_no_trace(self):
        task = load_task("super_glue", "wsc.fixed")
        row = example_row(task)
        rows = [row | {"label": label} for label in (0, 0, 1, 0, 1, 0, 0)]  # in training only a true row is one
        self.check(TextEncoding(tiny_tokenizer(), LONG), task, rows, 2)

    def check(self, encoding, task, rows, num_examples):
        encoding = encoding.for_task(task)
        examples = encoding.example_set(rows, task, "train")
        self.assertLen(examples, num_examples)
        with mock.patch.object(training_data, "ROWS_AT_ONCE", 2):
            features = training_data.tokenize_example_set(examples, task, encoding)
        self.assertLen(features, num_examples)
        columns = encoding.columns(examples, task) if rows else {}
        for name, expected in columns.items():
            self.assertEqual([list(getattr(features, name)[i]) for i in range(num_examples)], expected)
