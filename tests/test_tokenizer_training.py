"""Laws of trained tokenizers: size, special ids, round trip, the same bytes each time, and errors that say what fits."""

import errno
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from corpus_files import is_held_out, parquet, write_packed
from support import folder, renamed_folders
from transformers import AutoTokenizer, T5Tokenizer

from t5suite.testing import cli_output, exits_with, write_rows
from tools.mini_benchmark.documents import documents

TEXT = documents("validation")[:120] + ["Größe naïve café, 12 & 3.5 (zebra) “fin”"] * 3
SIZES = {"unigram": 340, "wordpiece": 300, "bpe": 400}
KINDS = parameterized.named_parameters(*[(kind, kind) for kind in SIZES])
SPECIAL = {
    "unigram": {"pad_token": 0, "eos_token": 1, "unk_token": 2},
    "wordpiece": {"pad_token": 0, "unk_token": 1, "cls_token": 2, "sep_token": 3, "mask_token": 4},
    "bpe": {"bos_token": 0, "eos_token": 0, "unk_token": 0, "pad_token": 1},
}


UNKNOWN_MARK = "\u2585"  # of sentencepiece, which passes over lines with it
EVERYTHING = {"character_coverage": 1.0, "validation_fraction": 0}


def text_file(texts=None) -> Path:
    return write_rows(folder() / "text.jsonl", [{"text": text} for text in (TEXT if texts is None else texts)])


def train_words(kind, source, output_dir, **settings) -> list[str]:
    """The words of `t5suite tokenizer train`; byte pairs take no coverage."""
    settings = {"vocab_size": SIZES[kind], **EVERYTHING, **settings}
    if kind == "bpe":
        settings.pop("character_coverage")
    words = ["tokenizer", "train", "--type", kind, "--input", source, "--output_dir", output_dir]
    for name, value in settings.items():
        words += [f"--{name}"] if value is True else [f"--{name}", value]
    return [*map(str, words), "--json"]


def report_of(kind, texts=None, **settings) -> dict:
    """What `t5suite tokenizer train ... --json` prints."""
    return json.loads(cli_output(*train_words(kind, text_file(texts), folder() / "tokenizer", **settings)))


def trained(kind, texts=None, **settings):
    """The tokenizer that AutoTokenizer makes of the trained one's folder, and the folder."""
    path = report_of(kind, texts, **settings)["output_dir"]
    return AutoTokenizer.from_pretrained(path), Path(path)


def hashes_of(path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(path).iterdir()}


ANOTHER_PROCESS = """
import json, sys
from t5suite.testing import cli_output
for words in json.loads(sys.argv[1]):
    cli_output(*words)
"""


# It is asked to stop when all files are written, but not yet in place.
TERMINATED_PROCESS = """
import json, os, signal, sys
from t5suite.testing import cli_output
os.replace = lambda source, target: signal.raise_signal(signal.SIGTERM)
cli_output(*json.loads(sys.argv[1]))
"""


def command(*argv):
    """What `t5suite tokenizer train ... --json` prints."""
    return json.loads(cli_output("tokenizer", "train", *argv, "--json"))


class EveryKindTest(parameterized.TestCase):
    @KINDS
    @pytest.mark.quick_cases(1)
    def test_the_vocabulary_is_as_large_as_asked_and_has_the_special_tokens(self, kind):
        tokenizer, _ = trained(kind)
        self.assertLen(tokenizer, SIZES[kind])
        self.assertEqual(sorted(tokenizer.get_vocab().values()), list(range(SIZES[kind])))
        self.assertEqual({name: getattr(tokenizer, f"{name}_id") for name in SPECIAL[kind]}, SPECIAL[kind])
        named = {token for token in tokenizer.all_special_tokens if not token.startswith("<extra_id_")}
        self.assertEqual(named, {getattr(tokenizer, name) for name in SPECIAL[kind]})

    @KINDS
    @pytest.mark.quick_cases(1)
    def test_text_comes_back(self, kind):
        tokenizer, _ = trained(kind)
        for text in TEXT[-5:]:
            ids = tokenizer(text)["input_ids"]
            back = tokenizer.decode(ids, skip_special_tokens=True)
            if kind == "wordpiece":  # white space is not kept beside punctuation
                text, back = text.replace(" ", ""), back.replace(" ", "")
            self.assertEqual(back, text)
            if kind != "bpe":
                self.assertNotIn(tokenizer.unk_token_id, ids)

    @KINDS
    @pytest.mark.quick_cases(1)
    def test_the_same_text_gives_the_same_bytes(self, kind):
        source, (first, second) = text_file(), (folder() / "tokenizer" for _ in range(2))
        for place in (first, second):
            cli_output(*train_words(kind, source, place))
        self.assertEqual(hashes_of(first), hashes_of(second))

    @pytest.mark.slow
    def test_another_process_writes_the_same_bytes(self):
        source, where = text_file(), folder()
        there = [train_words(kind, source, where / kind) for kind in SIZES]
        subprocess.run([sys.executable, "-c", ANOTHER_PROCESS, json.dumps(there)], check=True)
        for kind in SIZES:
            here = folder() / kind
            cli_output(*train_words(kind, source, here))
            self.assertEqual(hashes_of(here), hashes_of(where / kind), kind)

    @KINDS
    @pytest.mark.quick_cases(1)
    def test_too_large_a_vocabulary_is_an_error_that_says_the_largest_and_that_one_works(self, kind):
        with exits_with(65, r"--vocab_size 50000: .* give --vocab_size (\d+) or more text") as caught:
            trained(kind, vocab_size=50_000)
        largest = int(str(caught.exception).split("give --vocab_size ")[1].split()[0])
        self.assertLen(trained(kind, vocab_size=largest)[0], largest)
        with exits_with(65, f"give --vocab_size {largest} or more text"):
            trained(kind, vocab_size=largest + 1)

    @KINDS
    def test_too_small_a_vocabulary_is_an_error_that_says_the_smallest(self, kind):
        with exits_with(78, r"--vocab_size 110: .* alone are (\d+)") as caught:
            trained(kind, vocab_size=110)
        smallest = int(str(caught.exception).split(" alone are ")[1].split(";")[0])
        self.assertEqual("--character_coverage" in str(caught.exception), kind != "bpe", "bpe has no such setting")
        self.assertLen(trained(kind, vocab_size=smallest)[0], smallest)
        with exits_with(78):
            trained(kind, vocab_size=smallest - 1)

    @KINDS
    def test_no_text_is_an_error(self, kind):
        output_dir = folder() / "tokenizer"
        for texts in ([], [" "]):
            with exits_with(65):
                cli_output(*train_words(kind, text_file(texts), output_dir))
            self.assertFalse(output_dir.exists())

    @KINDS
    def test_what_ends_the_reading_of_the_text_ends_the_training_as_it_does(self, kind):
        source = write_packed("a.parquet", parquet(TEXT))
        for cause in (OSError(errno.EIO, "Error reading bytes"), KeyboardInterrupt()):
            fault = mock.patch("pyarrow.parquet.ParquetFile.iter_batches", side_effect=cause)
            with self.subTest(type(cause).__name__), fault, self.assertRaises(type(cause)):
                cli_output(*train_words(kind, source, folder() / "tokenizer"))
        bad_file = write_packed("a.jsonl", b'{"text": "one"}\n{"text": 3}\n')
        with exits_with(65) as caught:
            cli_output(*train_words(kind, bad_file, folder() / "tokenizer"))
        self.assertStartsWith(str(caught.exception), f"{bad_file}:2: ")


class UnigramTest(parameterized.TestCase):
    @parameterized.parameters(100, 7, 0)
    @pytest.mark.quick_cases(1)
    def test_sentinels_count_down_from_the_last_id(self, num_sentinels):
        tokenizer, _ = trained("unigram", num_sentinels=num_sentinels)
        ids = tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(num_sentinels)])
        self.assertEqual(ids, [SIZES["unigram"] - 1 - i for i in range(num_sentinels)])
        self.assertLen(tokenizer, SIZES["unigram"])
        if num_sentinels:
            self.assertEqual(tokenizer("a<extra_id_1> b")["input_ids"].count(SIZES["unigram"] - 2), 1)

    @parameterized.parameters("nmt_nfkc", "identity", "nfkc_cf")
    @pytest.mark.quick_cases(1)
    def test_sentencepiece_gives_the_same_ids(self, normalization):
        import sentencepiece

        tokenizer, path = trained("unigram", normalization=normalization)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / "spiece.model"))
        alone = T5Tokenizer.from_pretrained(path)
        # The other rules know one kind of space only.
        lines = ["The soup\nand\tthe stage"] if normalization.startswith("nmt") else []
        for text in [*TEXT[:20], "  Two  spaces", "ﬁne ½ ① Ｆｕｌｌ", "", *lines]:
            self.assertEqual(tokenizer(text)["input_ids"], [*pieces.encode(text), 1])
            self.assertEqual(alone(text)["input_ids"], [*pieces.encode(text), 1])

    def test_it_is_a_t5_tokenizer_and_spiece_model_alone_suffices(self):
        tokenizer, path = trained("unigram")
        self.assertIsInstance(tokenizer, T5Tokenizer)
        alone = folder()
        shutil.copy(path / "spiece.model", alone)
        by_model_alone = T5Tokenizer.from_pretrained(alone)
        self.assertEqual(by_model_alone.get_vocab(), tokenizer.get_vocab())
        self.assertEqual(by_model_alone(TEXT)["input_ids"], tokenizer(TEXT)["input_ids"])

    def test_byte_fallback_spells_what_has_no_piece(self):
        text = "東京 and 🍕"
        plain, _ = trained("unigram")
        self.assertIn(plain.unk_token_id, plain(text)["input_ids"])
        tokenizer, path = trained("unigram", vocab_size=700, byte_fallback=True)
        for loaded in (tokenizer, AutoTokenizer.from_pretrained(path, use_fast=True)):
            ids = loaded(text)["input_ids"]
            self.assertNotIn(loaded.unk_token_id, ids)
            self.assertEqual(loaded.decode(ids, skip_special_tokens=True), text)
            self.assertEqual(loaded.convert_tokens_to_ids("<extra_id_0>"), 699)

    def test_no_line_is_too_long_or_marked_for_sentencepiece(self):
        """It would pass over both and say nothing: the rare letters of such lines must have pieces."""
        rare = [("word " * 2000) + "ж", f"{UNKNOWN_MARK} щ", "ф\0 б", "ю" * 5000]
        tokenizer, _ = trained("unigram", texts=[*TEXT, *rare])
        for letter in "жщфбю":
            self.assertNotIn(tokenizer.unk_token_id, tokenizer(letter)["input_ids"], letter)


class FastTokenizerTest(parameterized.TestCase):
    def test_bert_marks_and_pairs(self):
        tokenizer, _ = trained("wordpiece")
        encoded = tokenizer("The soup", "a stage")
        tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
        self.assertEqual((tokens[0], tokens[-1], tokens.count("[SEP]")), ("[CLS]", "[SEP]", 2))
        first = tokens.index("[SEP]") + 1
        self.assertEqual(encoded["token_type_ids"], [0] * first + [1] * (len(tokens) - first))


class ReportTest(parameterized.TestCase):
    @KINDS
    def test_text_that_spells_out_a_special_token_is_not_unknown(self, kind):
        spelt = [*TEXT, *["x <unk> <pad> [UNK] </s> <|endoftext|> y"] * 3]
        self.assertEqual(report_of(kind, spelt)["unk_rate"], 0)


class HeldOutTest(parameterized.TestCase):
    def test_held_out_documents_are_not_trained_on_and_none_is_lost(self):
        """Each document ends in a letter that tells its side: a tokenizer knows those that it was trained on."""
        trained_on = [f"{text} \u0436" for text in TEXT[:60] if not is_held_out(f"{text} \u0436", 0.3)]
        held_out = [f"{text} \u0449" for text in TEXT[:60] if is_held_out(f"{text} \u0449", 0.3)]
        report = report_of("unigram", [*held_out, *trained_on], validation_fraction=0.3)
        self.assertGreater(len(held_out), 5)
        self.assertEqual((report["training_documents"], report["documents"]), (len(trained_on), len(held_out)))
        tokenizer = AutoTokenizer.from_pretrained(report["output_dir"])
        self.assertNotIn(tokenizer.unk_token_id, tokenizer("\u0436")["input_ids"])
        self.assertIn(tokenizer.unk_token_id, tokenizer("\u0449")["input_ids"])


class CommandTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = folder() / "rows.jsonl"
        self.path.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXT * 2))
        self.flags = ["--input", self.path, "--text_column_name", "body", "--output_dir", folder() / "out"]

    def test_the_report_tells_what_came_out(self):
        report = command("--type", "unigram", "--vocab_size", 360, "--validation_fraction", 0.2, *self.flags)
        self.assertEqual((report["pieces"], report["type"], report["held_out"]), (360, "unigram", True))
        self.assertEqual(report["special_ids"]["<extra_id_0>"], 359)
        self.assertBetween(report["tokens_per_word"], 1.0, 4.0)
        self.assertAlmostEqual(report["tokens_per_word"], report["tokens"] / report["words"], delta=1e-4)

    @parameterized.parameters(
        (4, "<pad> 0, </s> 1, <unk> 2, <extra_id_0> 329, <extra_id_1> 328, <extra_id_2> 327, <extra_id_3> 326"),
        (5, "<pad> 0, </s> 1, <unk> 2, <extra_id_0> 329, <extra_id_4> 325"),
    )
    def test_of_more_than_seven_special_tokens_the_first_and_the_last_are_shown(self, num_sentinels, expected):
        words = ["--type", "unigram", "--vocab_size", 330, "--num_sentinels", num_sentinels, *self.flags]
        self.assertIn(f" {expected}\n", cli_output("tokenizer", "train", *words))

    @parameterized.parameters(
        ("bpe", "lowercase", ["--lowercase"], "wordpiece"),
        ("wordpiece", "num_sentinels", ["--num_sentinels", 5], "unigram"),
        ("bpe", "character_coverage", ["--character_coverage", 0.9], "unigram and wordpiece"),
    )
    def test_a_setting_of_another_type_is_an_error(self, kind, name, flags, kinds):
        with exits_with(78, f"--{name}: for --type {kinds}; {kind} has no such setting"):
            command("--type", kind, "--vocab_size", 300, *flags, *self.flags)

    def test_a_place_that_cannot_be_written_is_refused_before_the_text_is_read(self):
        words = ["--type", "bpe", "--vocab_size", 300, "--input", "nowhere.txt", "--output_dir", f"{__file__}/out"]
        with exits_with(78, "is a file, and a folder is needed there"):
            command(*words)

    @KINDS
    def test_where_every_document_is_held_out_the_fraction_is_named(self, kind):
        with exits_with(78, "--validation_fraction 1.0: every document is held out"):
            command("--type", kind, "--vocab_size", 300, "--validation_fraction", 1, *self.flags)

    def test_what_a_killed_process_left_does_not_block_a_later_one_of_the_same_number(self):
        """In a container the program is always process 1."""
        words = ["--type", "bpe", "--vocab_size", 300, *self.flags]
        killed = mock.patch("os.replace", side_effect=KeyboardInterrupt)
        with killed, mock.patch("shutil.rmtree"), self.assertRaises(KeyboardInterrupt):
            command(*words)
        with self.assertLogs("t5suite", "WARNING") as logs, renamed_folders() as unsynced:
            output_dir = Path(command(*words)["output_dir"])
        self.assertTrue((output_dir / "tokenizer.json").is_file())
        self.assertEqual(unsynced, {str(output_dir): []})
        [leftover] = output_dir.parent.glob(".*.tmp")
        self.assertIn(str(leftover), logs.output[0])

    def test_a_terminated_process_leaves_nothing(self):
        output_dir = folder() / "tokenizer"
        words = train_words("bpe", text_file(), output_dir)
        process = subprocess.run([sys.executable, "-c", TERMINATED_PROCESS, json.dumps(words)], check=False)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEmpty(list(output_dir.parent.iterdir()))

    def test_nothing_is_written_over(self):
        report = command("--type", "bpe", "--vocab_size", 300, *self.flags)
        before = {path.name: path.read_bytes() for path in Path(report["output_dir"]).iterdir()}
        with exits_with(78, "--output_dir .*give a new folder"):
            command("--type", "unigram", "--vocab_size", 400, *self.flags)
        self.assertEqual({path.name: path.read_bytes() for path in Path(report["output_dir"]).iterdir()}, before)
