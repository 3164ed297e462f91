"""How each family's texts become ids, and outputs become texts; control tokens in them are text."""

import math

import numpy as np
from absl.testing import parameterized
from odd_tokenizers import byte_tokenizer, word_tokenizer
from transformers import ByT5Tokenizer

from t5suite import load_task
from t5suite.data.batches.encodings import (
    LabelsEncoding,
    Lengths,
    PromptEncoding,
    SegmentEncoding,
    TextEncoding,
    answer_text,
)
from t5suite.testing import encode_rows, make_task, tiny_tokenizer

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
