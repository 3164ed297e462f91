"""A control token in a user's text is text: `</s>` in a row ends nothing."""

import itertools

import numpy as np
from absl.testing import parameterized
from sentencepiece import SentencePieceProcessor
from transformers import ByT5Tokenizer

from t5suite import Task, load_task
from t5suite.data.batches.encodings import LabelsEncoding, PromptEncoding, SegmentEncoding, TextEncoding
from t5suite.data.corpora.encoding import spiece_of
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.registry import Lengths, bind_fits, tokenize_rows
from t5suite.tasks.tokens import Spelling, control_names, encoded, framed, holds
from t5suite.testing import tiny_tokenizer
from tests.shared_data import MISSING, SHARED_DATA, has
from tests.test_families import byte_tokenizer, word_tokenizer

LONG = Lengths(400, 400)
PRICE = "Price <s>12</s> 9 euros"
TEXTS = (
    PRICE,
    "</s>",
    "a</s></s> b",
    "<pad><unk> x </s>",
    "1</s>2<pad>3<unk>4",
    "ends </s>",
    " </s> begins",
    "＜/s＞ wide",
)
PLAIN_TEXTS = (
    "It rains.",
    "",
    "  two  spaces ",
    "it is wet . it rains",
    "naïve ½ <b>x</b>",
    "a <extra_id_0> b <extra_id_1>",
)
TOKENIZERS = {
    "t5": lambda: tiny_tokenizer(), "byt5": ByT5Tokenizer, "bytes": byte_tokenizer, "words": word_tokenizer,
}  # fmt: skip


def frames_of(tokenizer, ids) -> list[int]:
    """The control tokens of a row, in their order; unknown pieces are no control tokens."""
    control = set(tokenizer.convert_tokens_to_ids(list(control_names(tokenizer)))) - {tokenizer.unk_token_id}
    return [token for token in ids if token in control]


class SpelledTextTest(parameterized.TestCase):
    def check_as_sentencepiece(self, tokenizer, processor):
        for text in TEXTS:
            expected = [*processor.encode(text), tokenizer.eos_token_id]
            encoding = TextEncoding(tokenizer, LONG)
            self.assertEqual(encoding.prompts([text]), [expected], text)
            self.assertEqual(encoding.answers([text]), [expected], text)
            self.assertEqual(encoding.choices([text]), [expected], text)
            cut = TextEncoding(tokenizer, Lengths(4, 4)).prompts([text])
            self.assertEqual(cut, [[*expected[:-1][:3], tokenizer.eos_token_id]], text)

    def test_t5s_ids_are_sentencepieces(self):
        tokenizer = tiny_tokenizer()
        self.check_as_sentencepiece(tokenizer, SentencePieceProcessor(model_proto=spiece_of(tokenizer)))

    def test_the_published_t5s_ids_are_sentencepieces(self):
        if not has("tokenizer/t5/spiece.model"):
            self.skipTest(MISSING)
        folder = SHARED_DATA / "tokenizer" / "t5"
        processor = SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        self.check_as_sentencepiece(load_tokenizer(str(folder)), processor)

    def test_bytes_are_spelled_out(self):
        tokenizer = ByT5Tokenizer()
        for text in TEXTS:
            expected = [byte + 3 for byte in text.encode()] + [1]
            self.assertEqual(TextEncoding(tokenizer, LONG).prompts([text]), [expected])
            self.assertEqual(TextEncoding(tokenizer, LONG).answers([text]), [expected])

    @parameterized.parameters("t5", "byt5")
    def test_sentinels_stay_tokens_among_spelled_ones(self, name):
        tokenizer = TOKENIZERS[name]()
        sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
        encoding = TextEncoding(tokenizer, LONG)
        (found,) = encoding.prompts(["a </s><extra_id_0> b"])
        self.assertEqual(frames_of(tokenizer, found), [tokenizer.eos_token_id])
        at = found.index(sentinel)
        self.assertEqual(found[:at], encoding.prompts(["a </s>"])[0][:-1])
        self.assertEqual(found[at:], encoding.prompts(["<extra_id_0> b"])[0])

    @parameterized.parameters("t5", "byt5", "bytes", "words")
    def test_no_text_gives_a_control_token(self, name):
        tokenizer = TOKENIZERS[name]()
        names = control_names(tokenizer)
        self.assertNotEmpty(names)
        for text in [*names, "".join(names), *(f"it{name} is" for name in names), *(f" {name} wet" for name in names)]:
            whole = encoded(tokenizer, [text])["input_ids"][0]
            framing = encoded(tokenizer, ["it"])["input_ids"][0]
            self.assertEqual(frames_of(tokenizer, whole), frames_of(tokenizer, framing), text)
            self.assertEmpty(frames_of(tokenizer, encoded(tokenizer, [text], add_special_tokens=False)["input_ids"][0]))
            self.assertNotEqual(frames_of(tokenizer, tokenizer([f"it{names[0]}"])["input_ids"][0]), framing)

    @parameterized.parameters("t5", "byt5", "bytes", "words")
    def test_other_texts_have_the_tokenizers_ids(self, name):
        """The two ways agree on texts without control tokens: alone, cut, in pairs, bare."""
        tokenizer = TOKENIZERS[name]()
        spelling = Spelling(tokenizer, control_names(tokenizer))
        for text in PLAIN_TEXTS:
            for settings in (
                {},
                {"add_special_tokens": False},
                *({"max_length": n, "truncation": True} for n in (3, 5)),
            ):
                expected = dict(tokenizer([text], verbose=False, **settings))
                for given in (encoded(tokenizer, [text], verbose=False, **settings),):
                    self.assertEqual(given["input_ids"], expected["input_ids"])
                found = framed([spelling.ids(text)], spelling.frame(1), **settings)
                self.assertEqual([found["input_ids"]], expected["input_ids"], (text, settings))
        if name != "words":
            return
        for first, second in itertools.product(PLAIN_TEXTS, repeat=2):
            for length in (99, *range(4, 12)):
                settings = {"max_length": length, "truncation": "longest_first"}
                expected = tokenizer([first], [second], **settings)
                found = framed([spelling.ids(first), spelling.ids(second)], spelling.frame(2), **settings)
                for column, row in found.items():
                    self.assertEqual([row], expected[column], (first, second, length))

    def test_rows_with_and_without_control_tokens_keep_their_order(self):
        tokenizer = tiny_tokenizer()
        texts = ["a", "b </s>", "c", "<pad>", ""]
        alone = [TextEncoding(tokenizer, LONG).prompts([text])[0] for text in texts]
        self.assertEqual(TextEncoding(tokenizer, LONG).prompts(texts), alone)
        row = {"sentence": texts, "label": [0, 1, 0, 1, 0]}
        found = tokenize_rows(row, task=load_task("glue", "sst2"), tokenizer=tokenizer, lengths=LONG)
        self.assertEqual([ids.count(1) for ids in found["input_ids"]], [1] * 5)
        fits = bind_fits(tokenizer, Lengths(len(alone[1]), 1))
        self.assertEqual([fits(text) for text in ("b </s>", "b </s> c")], [True, False])

    def test_a_normalized_control_token_is_seen(self):
        self.assertTrue(holds("a ＜/s＞ b", ("</s>",)))
        self.assertTrue(holds("a <\u200b/s> é", ("</s>",)))
        self.assertFalse(holds("a < /s> é", ("</s>",)))


class FamiliesTest(parameterized.TestCase):
    @parameterized.parameters("byt5", "t5")
    def test_an_answer_with_control_tokens_survives_decoding(self, name):
        tokenizer = TOKENIZERS[name]()
        encoding = TextEncoding(tokenizer, LONG)
        # The bundled vocabulary has no `<`, as T5's, so this piece reads as the unknown one; nothing ends early.
        expected = PRICE if name == "byt5" else tokenizer.decode(encoding.answers([PRICE])[0][:-1])
        self.assertEqual(encoding.texts(encoding.answers([PRICE])), [expected])
        self.assertEndsWith(expected, "9 euros")

    def test_a_decoder_only_model_reads_and_writes_its_end_token_as_text(self):
        tokenizer = byte_tokenizer()
        encoding, text = PromptEncoding(tokenizer, LONG), "It was <|endoftext|> good."
        (prompt,), (answer,) = encoding.prompts([text]), encoding.answers([text])
        self.assertNotIn(encoding.eos, prompt)
        self.assertEqual(answer.count(encoding.eos), 1)
        self.assertEqual(encoding.texts([answer]), [text])
        self.assertEqual(PromptEncoding(tokenizer, LONG, "<|endoftext|>").prompts(["a"])[0][-1], encoding.eos)

    def test_an_encoder_reads_separators_as_text(self):
        tokenizer = word_tokenizer()
        encoding = SegmentEncoding(tokenizer, LONG, ("a", "b"), True)
        found = encoding.inputs([("it [SEP] rains", "is [CLS] it"), ("it rains", "is it")])
        self.assertEqual([row.count(3) for row in found["input_ids"]], [2, 2])
        self.assertEqual([row.count(2) for row in found["input_ids"]], [1, 1])
        for ids, types in zip(found["input_ids"], found["token_type_ids"], strict=True):
            border = ids.index(3) + 1
            self.assertEqual(types, [0] * border + [1] * (len(ids) - border))
        words = LabelsEncoding(tokenizer, LONG, ("O", "B")).inputs([["it", "[SEP]", "rains"]])
        self.assertEqual(words["input_ids"][0].count(3), 1)

    def test_control_tokens_of_the_tasks_own_forms_stay_tokens(self):
        entry = {
            "prefix": "", "text_column_name": "a", "label_column_name": "label", "labels": None, "metric_names": [],
            "metric_to_optimize": None, "input_format": "__input__ </s>",
        }  # fmt: skip
        tokenizer, task = tiny_tokenizer(), Task("mine", "t", entry)
        found = tokenize_rows({"a": ["x <pad>"], "label": ["y"]}, task=task, tokenizer=tokenizer, lengths=LONG)
        (ids,) = found["input_ids"]
        self.assertEqual(ids[-2:], [1, 1])
        self.assertNotIn(tokenizer.pad_token_id, ids)
        self.assertEqual(TextEncoding(tokenizer, LONG).for_task(task).prompts(["x <pad> </s>"]), [ids])

    def test_random_html_never_ends_a_sequence(self):
        random, pieces = (
            np.random.default_rng(0),
            ["<s>", "</s>", "<pad>", "<unk>", "<b>", "</b>", " ", "a", "12", ".", "é"],
        )
        texts = ["".join(random.choice(pieces, 12)) for _ in range(40)]
        for name in ("t5", "byt5"):
            tokenizer = TOKENIZERS[name]()
            for ids in TextEncoding(tokenizer, LONG).prompts(texts):
                self.assertEqual(frames_of(tokenizer, ids), [1])
