"""Long texts: shortened before they are tokenized, they have the ids that the whole text has."""

import functools
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized
from shared_data import MISSING, SHARED_DATA, has
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from t5suite import FineTuner
from t5suite.tasks import long_texts
from t5suite.tasks.long_texts import divisions_of, without_unread_part
from t5suite.testing import TINY_T5, encode_rows, make_task, tiny_model, tiny_tokenizer

WORDS = "the cat sat on a mat antidisestablishmentarianism café naïve ﬁne ｆｕｌｌ １２ 你好 世界 🙂 x² don't e-mail <b> ▁ </s> a</s>b A.B."
RUNS = [
    "a" * 300,
    "ab" * 150,
    "你好世界" * 80,
    "🙂" * 200,
    "e\u0301" * 150,
    "\u1112\u1161\u11ab" * 90,
    " " * 300,
    "\n\t " * 100,
]
RUNS += [
    "aaab" * 90,
    "1234567890" * 30,
    "=" * 300,
    "\u0301" * 200,
    "ｶﾞ" * 100,
    "<extra_id_0>" * 30,
    "ﷺ" * 60,
    "word\n" * 80,
]


def bpe(pre_tokenizer=None, normalizer=None) -> Tokenizer:
    """A BPE whose merges depend on what follows: `bc` before `ab` before `abc`."""
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet(), *"▁ "})
    merges = [
        ("b", "c"),
        ("a", "b"),
        ("a", "a"),
        ("aa", "aa"),
        ("t", "h"),
        ("th", "e"),
        ("▁", "th"),
        ("▁", "▁"),
        ("Ġ", "the"),
    ]
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", *alphabet, *map("".join, merges)])}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    made.pre_tokenizer, made.normalizer = pre_tokenizer or made.pre_tokenizer, normalizer or made.normalizer
    return made


def word_piece() -> Tokenizer:
    pieces = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "the",
        "cat",
        "##s",
        "a",
        "##a",
        "##b",
        "b",
        "full",
        "1",
        "##2",
        "你",
        ".",
        "-",
        "<",
        ">",
    ]
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return made


def unigram(pieces: str, **parts) -> Tokenizer:
    scores = [("<unk>", 0.0), *((piece, -1.0 - 0.37 * i) for i, piece in enumerate(pieces.split()))]
    made = Tokenizer(models.Unigram(scores, unk_id=0))
    for name, part in parts.items():
        setattr(made, name, part)
    return made


NFKC = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
METASPACE = pre_tokenizers.Metaspace()
LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
BACKENDS = {
    "Unigram": lambda: unigram("▁ a b ab aa aaa ba ▁the cat s on 1 2 12 é 好 世界 f i n e fine", normalizer=NFKC, pre_tokenizer=METASPACE),
    "Unigram over spaces": lambda: unigram("▁ a b t h e ▁the the▁cat c at s", pre_tokenizer=pre_tokenizers.Metaspace(split=False)),
    "Unigram without unknown": lambda: unigram("▁ a aa b ab ba bab", normalizer=NFKC),
    "byte-level BPE": lambda: bpe(pre_tokenizers.ByteLevel()),
    "BPE over the whole text": lambda: bpe(normalizer=LLAMA),
    "WordPiece": word_piece,
}  # fmt: skip


@functools.cache
def tokenizer_of(name: str):
    if name == "bundled":
        return tiny_tokenizer()
    if name == "ByT5":
        return ByT5Tokenizer()
    if name == "T5":
        folder = SHARED_DATA / "tokenizer" / "t5"
        return FineTuner(tokenizer=folder, config_overrides=TINY_T5, from_scratch=True, use_cpu=True).tokenizer
    backend = BACKENDS[name]()
    backend.add_special_tokens(["</s>", "<extra_id_0>"])
    backend.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", backend.token_to_id("</s>"))])
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>")


def random_text(rng) -> str:
    words, parts = WORDS.split(), []
    while sum(map(len, parts)) < rng.integers(600, 2500):
        if rng.random() < 0.15:
            parts.append(RUNS[rng.integers(len(RUNS))])
        else:
            parts.append(words[rng.integers(len(words))])
        parts.append([" ", " ", " ", "", "  ", "\n", ", ", "\u0301"][rng.integers(8)])
    return "".join(parts)


WHOLE = 1_000_000  # tokens: more than any text here has


def task_that_keeps(num_sentinels: int, **fields):
    """A task of texts as they are, whose inputs end in so many sentinels, which are kept when they are cut."""
    plain = {"prefix": "", "labels": None, "metric_names": [], "metric_to_optimize": None}
    return make_task(**plain, input_format="__input__" + " <extra_id_0>" * num_sentinels, **fields)


def ids_of(tokenizer, texts, length: int, num_sentinels: int = 0, model=None) -> list[list[int]]:
    rows = [{"text": text, "label": "a"} for text in texts]
    settings = {"tokenizer": tokenizer, "source_length": length, "model": model}
    return [example["input_ids"] for example in encode_rows(rows, task_that_keeps(num_sentinels), **settings)]


def plain_cut(ids: list[int], length: int, num_sentinels: int) -> list[int]:
    num_last = min(num_sentinels + 1, length)
    return ids if len(ids) <= length else [*ids[: length - num_last], *ids[-num_last:]]


def shortening_soon():
    """Within it also texts of some hundred characters are shortened before they are tokenized."""
    return mock.patch.multiple(long_texts, LONG=64, CHARACTERS_PER_TOKEN=2)


ALL = ("bundled", "ByT5", *BACKENDS)


class LongTextsTest(parameterized.TestCase):
    def check(self, name: str, texts: list[str], lengths=(3, 17, 50)) -> int:
        """Compares the ids of every text, cut, with those of the whole; how many texts became shorter."""
        tokenizer, num_shorter = tokenizer_of(name), 0
        for num_sentinels in (0, 2):
            wholes = ids_of(tokenizer, texts, WHOLE, num_sentinels)
            written = [text + " <extra_id_0>" * num_sentinels for text in texts]
            for length in lengths:
                with shortening_soon():
                    encoded = ids_of(tokenizer, texts, length, num_sentinels)
                    shortened = without_unread_part(tokenizer, written, length, num_sentinels)
                num_shorter += sum(len(short) < len(text) for short, text in zip(shortened, written, strict=True))
                for text, ids, whole in zip(texts, encoded, wholes, strict=True):
                    self.assertEqual(ids, plain_cut(whole, length, num_sentinels), (length, num_sentinels, text))
        return num_shorter

    @parameterized.parameters(*ALL)
    @pytest.mark.quick_cases(3)
    def test_random_texts_have_the_ids_of_the_whole(self, name):
        rng = np.random.default_rng(7)
        shorter = self.check(name, [random_text(rng) for _ in range(12)])
        if name not in ("Unigram over spaces",):
            self.assertGreater(shorter, 10)

    @parameterized.parameters("T5", *ALL)
    @pytest.mark.slow
    def test_many_random_texts_have_the_ids_of_the_whole(self, name):
        if name == "T5" and not has("tokenizer/t5/spiece.model"):
            self.skipTest(MISSING)
        rng = np.random.default_rng(8)
        self.check(name, [random_text(rng) for _ in range(60)], lengths=(1, 2, 5, 17, 50))

    @parameterized.parameters(*ALL)
    @pytest.mark.quick_cases(1)
    def test_runs_have_the_ids_of_the_whole(self, name):
        self.check(name, [*RUNS, *(f"the cat {run} the cat" for run in RUNS)], lengths=(3, 17))

    def test_a_unigram_s_word_is_cut_only_where_its_beginning_is_settled(self):
        """Of `bababa...` the division depends on the end: `bab` pieces can begin at either place."""
        tokenizer = tokenizer_of("Unigram without unknown")
        self.assertEqual(divisions_of(tokenizer, len(tokenizer)).longest_piece, 5)  # <unk>
        self.check("Unigram without unknown", ["ba" * n + end for n in (100, 101, 150) for end in ("", "b", "aab")])

    def test_short_texts_and_tokens_of_the_user_s_with_a_space_are_left_alone(self):
        tokenizer = tiny_tokenizer()
        short, long = "word " * 3000, "new york " * 3000
        self.assertEqual(
            without_unread_part(tokenizer, [short, long], 8),
            [short, long[: len(without_unread_part(tokenizer, [long], 8)[0])]],
        )
        tokenizer.add_tokens(["new york"])
        self.assertEqual(without_unread_part(tokenizer, [long], 8), [long])

    def test_a_prompt_has_the_ids_of_the_whole(self):
        tokenizer = tokenizer_of("byte-level BPE")
        texts = [random_text(np.random.default_rng(i)) for i in range(5)]
        model = tiny_model("gpt2", "n_embd=8,n_layer=1,n_head=1,n_positions=64", tokenizer=tokenizer)
        whole = ids_of(tokenizer, texts, 40, model=model)
        with shortening_soon():
            self.assertEqual(ids_of(tokenizer, texts, 40, model=model), whole)

    @parameterized.parameters("hello world ", "a", "你好世界", "word\n", "🙂", " \n")
    @pytest.mark.quick_cases(1)
    def test_of_millions_of_characters_few_are_tokenized(self, piece):
        text = piece * (3_000_000 // len(piece))
        tokenizer = tiny_tokenizer()
        sizes = []
        encode = type(tokenizer)._encode_plus

        def counted(self, text, *arguments, **settings):
            sizes.extend(map(len, [text] if isinstance(text, str) else text))
            return encode(self, text, *arguments, **settings)

        with mock.patch.object(type(tokenizer), "_encode_plus", counted):
            ids_of(tokenizer, [text], 64)
        self.assertLess(sum(sizes), 200_000)
