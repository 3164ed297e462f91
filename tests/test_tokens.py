"""A control token in a user's text is text: `</s>` in a row ends nothing."""

import itertools

import numpy as np
import pytest
from absl.testing import parameterized
from odd_tokenizers import byte_tokenizer, word_tokenizer
from sentencepiece import SentencePieceProcessor
from shared_data import MISSING, SHARED_DATA, has
from tokenizers import AddedToken, Tokenizer, models
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from t5suite import load_task
from t5suite.tasks.cut_marks import CUT_MARK, with_cut, without_cut
from t5suite.tasks.tokens import Frame, Spelling, control_names, encoded, framed, holds, parts_of
from t5suite.testing import bundled_model, encode_rows, make_task, tiny_tokenizer
from t5suite.training.pre_training_data import ids_without_text

TEXTS = (
    "Price <s>12</s> 9 euros",
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


TEXTS_ALONE = make_task("texts", prefix="", labels=None, metric_names=[], metric_to_optimize=None)


def both_sides(tokenizer, texts, length: int = 400) -> list[tuple[list[int], list[int]]]:
    """Each text's ids, read as an input and as a target."""
    rows = [{"text": text, "label": text} for text in texts]
    settings = {"tokenizer": tokenizer, "source_length": length, "target_length": length}
    return [(each["input_ids"], each["labels"]) for each in encode_rows(rows, TEXTS_ALONE, **settings)]


def ids_of(tokenizer, *texts) -> list[list[int]]:
    return [inputs for inputs, _ in both_sides(tokenizer, texts)]


def frames_of(tokenizer, ids) -> list[int]:
    """The control tokens of a row, in their order; unknown pieces are no control tokens."""
    control = set(tokenizer.convert_tokens_to_ids(list(control_names(tokenizer)))) - {tokenizer.unk_token_id}
    return [token for token in ids if token in control]


class SpelledTextTest(parameterized.TestCase):
    def check_as_sentencepiece(self, tokenizer, folder):
        """T5 ends every text by token 1."""
        processor = SentencePieceProcessor(model_file=f"{folder}/spiece.model")
        expected = [[*processor.encode(text), 1] for text in TEXTS]
        self.assertEqual(both_sides(tokenizer, TEXTS), [(ids, ids) for ids in expected])
        cut = [[*ids[:-1][:3], 1] for ids in expected]
        self.assertEqual(both_sides(tokenizer, TEXTS, length=4), [(ids, ids) for ids in cut])

    def test_t5s_ids_are_sentencepieces(self):
        self.check_as_sentencepiece(tiny_tokenizer(), bundled_model())

    @pytest.mark.slow
    def test_the_published_t5s_ids_are_sentencepieces(self):
        if not has("tokenizer/t5/spiece.model"):
            self.skipTest(MISSING)
        folder = SHARED_DATA / "tokenizer" / "t5"
        self.check_as_sentencepiece(folder, folder)

    def test_bytes_are_spelled_out(self):
        expected = [[byte + 3 for byte in text.encode()] + [1] for text in TEXTS]
        self.assertEqual(both_sides(ByT5Tokenizer(), TEXTS), [(ids, ids) for ids in expected])

    @parameterized.parameters("t5", "byt5")
    def test_sentinels_stay_tokens_among_spelled_ones(self, name):
        tokenizer = TOKENIZERS[name]()
        sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
        whole, before, after = ids_of(tokenizer, "a </s><extra_id_0> b", "a </s>", "<extra_id_0> b")
        self.assertEqual(frames_of(tokenizer, whole), [tokenizer.eos_token_id])
        at = whole.index(sentinel)
        self.assertEqual(whole[:at], before[:-1])
        self.assertEqual(whole[at:], after)

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
    @pytest.mark.quick_cases(2)
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
                self.assertEqual(encoded(tokenizer, [text], verbose=False, **settings), expected)
                spelled = framed([spelling.ids(text)], spelling.frame(1), **settings)
                self.assertEqual([spelled["input_ids"]], expected["input_ids"], (text, settings))
        if name != "words":
            return
        for first, second in itertools.product(PLAIN_TEXTS, repeat=2):
            for length in (99, *range(4, 12)):
                settings = {"max_length": length, "truncation": "longest_first"}
                expected = tokenizer([first], [second], **settings)
                spelled = framed([spelling.ids(first), spelling.ids(second)], spelling.frame(2), **settings)
                for column, row in spelled.items():
                    self.assertEqual([row], expected[column], (first, second, length))

    def test_a_pair_of_texts_is_cut_as_tokenizers_cuts_it(self):
        backend = word_tokenizer().backend_tokenizer
        backend = type(backend).from_str(backend.to_str())
        no_frame = Frame([[], [], []], None, None)
        for room in range(1, 8):
            backend.enable_truncation(room, strategy="longest_first")
            for first, second in itertools.product(range(6), repeat=2):
                whole = backend.encode("it " * first, "wet " * second, add_special_tokens=False)
                counts = [whole.tokens.count("it"), whole.tokens.count("wet")]
                ids = framed([[7] * first, [8] * second], no_frame, max_length=room, truncation=True)["input_ids"]
                self.assertEqual([ids.count(7), ids.count(8)], counts, (room, first, second))

    def test_tokens_in_a_text_take_the_spaces_that_they_absorb(self):
        plain, left, right = AddedToken("<x>"), AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)
        tokens = {token.content: token for token in (plain, left, right, AddedToken("<x>y"))}
        for text, parts in (
            ("a <x> b", [("a ", False), ("<x>", True), (" b", False)]),
            ("a  <l> b", [("a", False), ("<l>", True), (" b", False)]),
            ("a <r>  b", [("a ", False), ("<r>", True), ("b", False)]),
            ("<r> <l>", [("", False), ("<r>", True), ("", False), ("<l>", True), ("", False)]),
            ("a<x>y", [("a", False), ("<x>y", True), ("", False)]),  # the longest token
            ("a", [("a", False)]),
        ):
            self.assertEqual(parts_of(text, tokens), parts)
        self.assertEqual(parts_of("a <x> b", {}), [("a <x> b", False)])

    def test_rows_with_and_without_control_tokens_keep_their_order(self):
        tokenizer = tiny_tokenizer()
        texts = ["a", "b </s>", "c", "<pad>", ""]
        self.assertEqual(ids_of(tokenizer, *texts), [ids_of(tokenizer, text)[0] for text in texts])
        rows = [{"sentence": text, "label": 0} for text in texts]
        inputs = [example["input_ids"] for example in encode_rows(rows, load_task("glue", "sst2"))]
        self.assertEqual([ids.count(1) for ids in inputs], [1] * 5)

    def test_a_normalized_control_token_is_seen(self):
        self.assertTrue(holds("a ＜/s＞ b", ("</s>",)))
        self.assertTrue(holds("a <\u200b/s> é", ("</s>",)))
        self.assertFalse(holds("a < /s> é", ("</s>",)))

    def test_control_tokens_of_the_tasks_own_forms_stay_tokens(self):
        fields = {"prefix": "", "labels": None, "metric_names": [], "metric_to_optimize": None}
        task, tokenizer = make_task(**fields, input_format="__input__ </s>"), tiny_tokenizer()
        (example,) = encode_rows([{"text": "x <pad>", "label": "y"}], task)
        self.assertEqual(example["input_ids"][-2:], [1, 1])
        self.assertNotIn(tokenizer.pad_token_id, example["input_ids"])

    def test_random_html_never_ends_a_sequence(self):
        random, pieces = (
            np.random.default_rng(0),
            ["<s>", "</s>", "<pad>", "<unk>", "<b>", "</b>", " ", "a", "12", ".", "é"],
        )
        texts = ["".join(random.choice(pieces, 12)) for _ in range(40)]
        for name in ("t5", "byt5"):
            tokenizer = TOKENIZERS[name]()
            for ids in ids_of(tokenizer, *texts):
                self.assertEqual(frames_of(tokenizer, ids), [1])


LONG_TEXTS = (
    "It rains.",
    "the farmer was at the river in the morning and the cook sold bread",
    "é ½ </s> a <pad> b c d e f",
)


def mt5_tokenizer():
    """A tokenizer in mT5's manner: its sentinels are pieces."""
    pieces = ["<pad>", "</s>", "<unk>", "\u2581a", "\u2581<extra_id_1>", "\u2581<extra_id_0>"]
    backend = Tokenizer(models.Unigram([(piece, 0.0) for piece in pieces], unk_id=2))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def with_one_sentinel(tokenizer):
    tokenizer.add_tokens([AddedToken("<extra_id_0>", special=True)])
    return tokenizer


def bytes_with_an_end_for_unknown():
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer().backend_tokenizer, eos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )


class IdsWithoutTextTest(parameterized.TestCase):
    @parameterized.parameters(
        (mt5_tokenizer, {"<pad>", "</s>", "\u2581<extra_id_0>", "\u2581<extra_id_1>"}),
        (lambda: with_one_sentinel(mt5_tokenizer()), {"<extra_id_0>", "<pad>", "</s>", "\u2581<extra_id_0>", "\u2581<extra_id_1>"}),
        (bytes_with_an_end_for_unknown, {"<|endoftext|>"}),
        (word_tokenizer, {"[PAD]", "[CLS]", "[SEP]", "[MASK]"}),
    )  # fmt: skip
    def test_sentinels_and_ends_are_no_text_and_the_unknown_piece_is(self, make_tokenizer, expected):
        tokenizer = make_tokenizer()
        self.assertEqual(set(tokenizer.convert_ids_to_tokens(sorted(ids_without_text(tokenizer)))), expected)


class CutTest(parameterized.TestCase):
    """Where a text that is shown whole says that the model stops reading."""

    @parameterized.product(name=["t5", "byt5", "bytes"], room=[0, 1, 2, 5, 9, 500])
    def test_the_mark_stands_where_the_tokens_end(self, name, room):
        tokenizer = TOKENIZERS[name]()
        num_tokens = lambda text: len(ids_of(tokenizer, text)[0]) - len(ids_of(tokenizer, "")[0])
        for text in LONG_TEXTS:
            shown, count = with_cut(tokenizer, text, room), num_tokens(text)
            self.assertEqual(without_cut(shown), text)
            if count <= room:
                self.assertEqual(shown, text)
                continue
            mark = CUT_MARK.search(shown)
            self.assertEqual(mark[0], f" [cut: {count - room} more tokens] ")
            if "½" not in text:  # several tokens of one character, or one that is normalized to several
                self.assertLessEqual(abs(num_tokens(shown[: mark.start()]) - room), 1, shown)
