"""Built corpora: tokens equal the tokenizer's, whoever builds them; documents keep to their side; files that are torn,
changed or another build's are named; text never becomes a control token."""

import functools
import json
import os
import random
import resource
import shutil
import threading
import time
from pathlib import Path
from unittest import mock

import datasets
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from absl.testing import parameterized
from corpus_files import Corpus, build_corpus, byte_tokenizer, document_hash, files_of, is_held_out, write_lines
from shared_data import MISSING, SHARED_DATA, has
from support import folder
from tokenizer_folders import gpt2_tokenizer
from transformers import AddedToken, AutoTokenizer, T5Tokenizer

import pre_train_t5
from t5suite.testing import TINY_T5, bundled_model, cli_output, exits_with, run_cli, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
T5 = str(SHARED_DATA / "tokenizer" / "t5")
WORDS = "the cook praised king at noon . guard saw a boat in store and left".split()
ODD = [
    "</s> the end <pad> of <unk> it <extra_id_0> <extra_id_99></s>",
    "  two  spaces,\ta tab and Straße 日本 \u00a0 \ue000",
    "<pad>",
]


def texts(count=300, seed=0):
    rng = random.Random(seed)
    plain = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 40))) for _ in range(count)]
    return plain[: count // 2] + ODD + plain[count // 2 :]


def build(inputs, directory=None, tokenizer=None, **flags):
    return build_corpus(inputs, directory, tokenizer, **{"validation_fraction": 0.1, "unit_megabytes": 0.005, **flags})


def pre_train(**flags):
    """A pre-training run of one step on the tiny T5; returns its directory."""
    directory = folder() / "run"
    defaults = {"config_overrides": TINY_T5, "max_steps": 1, "inputs_length": 8, "per_device_train_batch_size": 1}
    words = ["--use_cpu", "--disable_tqdm", "True", "--output_dir", str(directory)]
    for name, value in (defaults | flags).items():
        words += [f"--{name}", str(value)]
    pre_train_t5.main(words)
    return directory


def encode_as_text(lines) -> list[list[int]]:
    """The ids of the bundled tokenizer if no text spelt a control token: its file, these pieces renamed."""
    settings = json.loads((Path(bundled_model()) / "tokenizer.json").read_text(encoding="utf-8"))
    settings |= {"added_tokens": [], "post_processor": None}
    control_tokens = set(TOKENIZER.all_special_tokens) - {TOKENIZER.unk_token}
    for number, (piece, score) in enumerate(settings["model"]["vocab"]):
        if piece in control_tokens or piece == TOKENIZER.unk_token:
            settings["model"]["vocab"][number] = [f"\uf8ff{number}", score]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
    return [encoding.ids for encoding in tokenizer.encode_batch(list(lines), add_special_tokens=False)]


class TokensTest(parameterized.TestCase):
    def test_a_corpus_is_the_tokenized_documents_of_each_side(self):
        lines = texts()
        corpus = build(write_lines(lines))
        self.assertGreater(len(corpus.shards), 3)
        encoded = encode_as_text(lines)
        for split, held_out in (("train", False), ("validation", True)):
            chosen = [number for number, text in enumerate(lines) if is_held_out(text, 0.1) == held_out]
            self.assertEqual(corpus.documents(split), [encoded[number] for number in chosen])
            counts = corpus.manifest["splits"][split]
            self.assertEqual(counts["documents"], len(chosen))
            self.assertEqual(counts["tokens"], sum(len(encoded[number]) for number in chosen))
            self.assertEqual(counts["bytes"], sum(len(lines[number].encode()) for number in chosen))
            self.assertEqual(counts["unk"], corpus.tokens(split).count(TOKENIZER.unk_token_id))

    @parameterized.parameters(True, False)
    @pytest.mark.slow
    def test_nothing_is_held_out_of_the_text_where_validation_has_files_of_its_own(self, has_files):
        lines = [f"{word} at noon the king saw a boat {number}" for number, word in enumerate(WORDS[:12])]
        held_out = sum(is_held_out(line, 0.5) for line in lines)
        self.assertBetween(held_out, 1, 11)
        files = {"validation_file": write_lines(["the cook praised a king", "at noon the boat left", "a boat"])}
        flags = files if has_files else {"validation_fraction": 0.5}
        directory = pre_train(train_file=write_lines(lines), **flags)
        counts = Corpus(directory / "corpus" / "train").manifest["splits"]
        if has_files:
            self.assertEqual((counts["train"]["documents"], counts["validation"]["documents"]), (12, 0))
            counts = Corpus(directory / "corpus" / "validation").manifest["splits"]
            self.assertEqual((counts["train"]["documents"], counts["validation"]["documents"]), (0, 3))
        else:
            of_each = (counts["train"]["documents"], counts["validation"]["documents"])
            self.assertEqual(of_each, (12 - held_out, held_out))

    def test_a_corpus_without_held_out_documents_needs_a_validation_file(self):
        corpus = build(write_lines(texts()), validation_fraction=0)
        with exits_with(65, "no document is held out at --validation_fraction 0.0; raise it where the text"):
            pre_train(train_corpus=corpus.directory)
        held_out_alone = build(write_lines(texts()), validation_fraction=1)
        with exits_with(65, "no train documents; it has validation"):
            pre_train(train_corpus=held_out_alone.directory)

    @parameterized.parameters((1e-9, "validation"), (1 - 1e-9, "train"))
    def test_a_small_text_has_a_document_and_its_duplicates_on_each_side(self, fraction, small_side):
        lines = [f"{word} {number}" for number, word in enumerate(WORDS[:12])]
        extreme = (min if small_side == "validation" else max)(lines, key=document_hash)
        with self.assertLogs("t5suite", "WARNING") as logs:
            corpus = build(write_lines(lines * 3), tokenizer=byte_tokenizer(), validation_fraction=fraction)
        self.assertEqual(corpus.texts(small_side), [extreme] * 3)
        fraction_of_log = float(logs.output[0].split()[-2])
        self.assertEqual([is_held_out(line, fraction_of_log) for line in lines].count(small_side == "validation"), 1)
        counts = corpus.manifest["splits"]
        self.assertEqual(counts["train"]["documents"] + counts["validation"]["documents"], 36)

    @pytest.mark.slow
    def test_blocks_are_those_of_one_long_row_whatever_shards_they_stand_in(self):
        """`corpus show` of every block of 70 tokens, many of them across the border of two shards."""
        corpus = build(write_lines(texts(200)), unit_megabytes=0.0004)
        row = corpus.tokens("train")
        num_blocks = len(row) // 70
        self.assertGreater(len(corpus.shards), num_blocks / 3)
        flags = ["--inputs_length", 64, "--num_examples", num_blocks + 1, "--json"]
        lines = cli_output("corpus", "show", corpus.directory, *flags).splitlines()
        blocks = [json.loads(line) for line in lines[1:]]
        self.assertEqual([block["block"] for block in blocks], list(range(num_blocks)))
        expected = [TOKENIZER.decode(row[70 * number : 70 * number + 70]) for number in range(num_blocks)]
        self.assertEqual([block["tokens"] for block in blocks], expected)

    @pytest.mark.slow
    def test_a_corpus_may_have_more_shards_than_files_may_be_open(self):
        lines = [f"the king saw a boat {number}" for number in range(700)]
        corpus = build(write_lines(lines), unit_megabytes="1e-6", validation_fraction=0)
        self.assertLen(corpus.shards, 700)
        self.assertEqual(corpus.documents("train"), encode_as_text(lines))
        num_blocks = len(corpus.tokens("train")) // 70
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits[1]))
        try:
            flags = ["--inputs_length", 64, "--num_examples", num_blocks, "--json"]
            shown = cli_output("corpus", "show", corpus.directory, *flags).splitlines()[1:]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        row = corpus.tokens("train")
        expected = [TOKENIZER.decode(row[70 * number : 70 * number + 70]) for number in range(num_blocks)]
        self.assertEqual([json.loads(line)["tokens"] for line in shown], expected)

    @pytest.mark.slow
    def test_a_separator_ends_every_document(self):
        source = write_lines(texts())
        plain = build(source).documents("train")
        for separator, token_id in (("eos", 1), ("<extra_id_5>", TOKENIZER.convert_tokens_to_ids("<extra_id_5>"))):
            separated = build(source, document_separator=separator).documents("train")
            self.assertEqual(separated, [[*ids, token_id] for ids in plain])
        with exits_with(78, "--document_separator 'EOS': not a token .*did you mean eos"):
            build(source, document_separator="EOS")

    def test_only_a_corpus_of_sentences_needs_their_splitter(self):
        source = write_lines(["The cook left. The king saw it."])
        with mock.patch.dict("sys.modules", {"sentencex": None}):
            self.assertLen(build(source, validation_fraction=0).documents("train"), 1)
            with exits_with(78, r"--split_sentences needs the package sentencex"):
                build(source, validation_fraction=0, split_sentences="en")

    @parameterized.parameters("none", "eos")
    def test_sentences_are_encoded_one_by_one(self, separator):
        source = write_lines(["The cook left. The king saw it. ", "One alone", "Why? \t  No! At noon."])
        flags = {"validation_fraction": 0, "document_separator": separator}
        corpus = build(source, split_sentences="en", **flags)
        sentences = ["The cook left.", "The king saw it.", "One alone", "Why?", "No!", "At noon."]
        expected = TOKENIZER(sentences, add_special_tokens=False)["input_ids"]
        if separator == "eos":
            expected = [[*ids, 1] if number in (1, 2, 5) else ids for number, ids in enumerate(expected)]
        self.assertEqual(corpus.parts("train", "sentences"), expected)
        by_document = [expected[:2], expected[2:3], expected[3:]]
        joined = [[token for ids in document for token in ids] for document in by_document]
        self.assertEqual(corpus.documents("train"), joined)

    @pytest.mark.slow
    def test_ids_are_stored_in_16_bits_where_they_fit(self):
        for num_words, dtype in ((66000, "uint32"), (65532, "uint16"), (65533, "uint32")):
            pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
            pieces += [(f"\u2581w{number}", -3.0) for number in range(num_words)]
            tokenizer = folder() / "words"
            T5Tokenizer(vocab=pieces, extra_ids=0).save_pretrained(tokenizer)
            last = num_words - 1
            corpus = build(write_lines([f"w3 w{last} w40000"] * 4), tokenizer=tokenizer, validation_fraction=0)
            self.assertEqual(corpus.manifest["dtype"], dtype)
            self.assertEqual(corpus.documents("train")[3], [7, num_words + 3, 40004])

    @pytest.mark.slow
    def test_row_groups_and_files_of_the_hub_are_units(self):
        lines, where = texts(), folder()
        plain = build(write_lines(lines)).documents("train")
        table = pa.table({"text": lines})
        pq.write_table(table, where / "a.parquet", row_group_size=40)
        corpus = build(where / "a.parquet")
        self.assertGreater(len(corpus.shards), 3)
        self.assertEqual(corpus.documents("train"), plain)
        for start in range(0, len(lines), 120):
            pq.write_table(table.slice(start, 120), where / f"train-{start:05d}.parquet")
        (where / "a.parquet").unlink()
        with mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder()):
            corpus = build(f"hub:{where}")
        self.assertLen(corpus.shards, 3)
        self.assertEqual(corpus.documents("train"), plain)

    def test_small_files_share_a_unit_and_big_ones_are_cut(self):
        where = folder()
        for number in range(6):
            write_lines(["x" * 9] * 100, f"{number}.txt", where)
        write_lines(["x" * 9] * 1000, "big.txt", where)
        corpus = build(where, unit_megabytes=0.003, validation_fraction=0)
        documents = [shard["splits"]["train"]["documents"] for shard in corpus.manifest["shards"]]
        self.assertEqual(documents, [300, 300, 300, 300, 300, 100])


class ControlTokensTest(parameterized.TestCase):
    @parameterized.parameters((bundled_model(), "tokenizers"), (None, "transformers"))
    def test_text_gives_no_control_token(self, tokenizer, engine):
        self.check_control_tokens(tokenizer or byte_tokenizer(), engine)

    @pytest.mark.slow
    def test_text_gives_t5_no_control_token(self):
        if not has("tokenizer/t5/spiece.model"):
            self.skipTest(MISSING)
        self.check_control_tokens(T5, "sentencepiece")
        self.check_control_tokens(T5, "sentencepiece", num_workers=2, unit_megabytes=0.001)
        self.check_control_tokens(T5, "tokenizers", tokenizer_engine="tokenizers")

    def check_control_tokens(self, name, engine, **flags):
        tokenizer = (T5Tokenizer if name == T5 else AutoTokenizer).from_pretrained(name)
        control_tokens = set(tokenizer.all_special_tokens) | {"</s>", "<extra_id_0>", "<extra_id_99>"}
        control_tokens = sorted(control_tokens)
        lines = [*control_tokens, *(f"x{token}y" for token in control_tokens), " ".join(control_tokens)]
        lines += ["".join(control_tokens), "x<pad>y </s> <unk> <extra_id_0> <extra_id_99>z </s></s>", *ODD]
        corpus = build(write_lines(lines), tokenizer=name, validation_fraction=0, **flags)
        control_ids = set(tokenizer.convert_tokens_to_ids(control_tokens)) - {tokenizer.unk_token_id}
        self.assertNotEmpty(corpus.tokens("train"))
        self.assertEmpty(set(corpus.tokens("train")) & control_ids)
        self.assertIn(tokenizer.eos_token_id, tokenizer("</s>", add_special_tokens=False)["input_ids"])
        self.assertEqual(corpus.manifest["tokenizer"]["engine"], engine)

    def test_a_unit_on_which_the_engines_differ_is_encoded_by_the_tokenizer(self):
        """A tokenizer whose two files disagree on one word: in its JSON, the piece of the word is hardly ever chosen."""
        lines = [" ".join(WORDS)] * 50
        directory = folder() / "tokenizer"
        shutil.copytree(unigram_tokenizer(), directory)
        plain = build(write_lines(lines), tokenizer=directory, validation_fraction=0)
        self.assertEqual(plain.manifest["tokenizer"]["engine"], "sentencepiece")
        settings = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        pieces = [entry for entry in settings["model"]["vocab"] if not entry[0].startswith("<")]
        max(pieces, key=lambda entry: len(entry[0]))[1] = -1000.0
        (directory / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
        expected = AutoTokenizer.from_pretrained(directory)(lines, add_special_tokens=False)["input_ids"]
        self.assertNotEqual(expected, plain.documents("train"))
        corpus = build(write_lines(lines), tokenizer=directory, validation_fraction=0)
        self.assertIn("tokenizers", corpus.manifest["tokenizer"]["engine"])
        self.assertEqual(corpus.documents("train"), expected)


@functools.cache
def unigram_tokenizer() -> str:
    """The folder of a new tokenizer, for whose texts SentencePiece's encoder is used."""
    directory = folder() / "tokenizer"
    flags = ["--type", "unigram", "--vocab_size", 129, "--validation_fraction", 0, "--json"]
    cli_output("tokenizer", "train", "--input", write_lines([" ".join(WORDS)] * 50), "--output_dir", directory, *flags)
    return str(directory)


def tokenizer_with(name, controls=(), words=()) -> str:
    """The folder of a tokenizer to which control tokens and words are added, in this order."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in words])
    place = folder() / "more"
    tokenizer.save_pretrained(place)
    return str(place)


MODES = ("[R]", "[S]", "[X]")
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(128))


class AddedTokensTest(parameterized.TestCase):
    """A corpus that was built before its tokenizer got more tokens."""

    @parameterized.parameters(
        (bundled_model, MODES),
        (bundled_model, SENTINELS),
        # The sample text of the fingerprint has <extra_id_0>, which is text for this one.
        (gpt2_tokenizer, (*SENTINELS, *MODES)),
    )
    def test_a_corpus_fits_a_tokenizer_with_more_control_tokens(self, make_tokenizer, controls):
        name = make_tokenizer()
        corpus = build(write_lines(texts()), tokenizer=name)
        more = tokenizer_with(name, controls)
        run_cli("corpus", "show", corpus.directory, "--tokenizer_name", more, "--inputs_length", 16)

    @parameterized.parameters(((), ("praised",)), (MODES, ("praised",)))
    def test_added_words_make_it_another_tokenizer(self, controls, words):
        corpus = build(write_lines(texts()))
        more = tokenizer_with(bundled_model(), controls, words)
        with exits_with(78, rf"--tokenizer_name {more}: .*\(praised\); .*build a corpus"):
            run_cli("corpus", "show", corpus.directory, "--tokenizer_name", more)

    def test_an_added_word_is_one_token_of_the_text(self):
        """SentencePiece's model does not know it; on the first document a build compares the two."""
        name = tokenizer_with(unigram_tokenizer(), words=["{"])
        lines = ["the cook", "praised { king", "{"]
        corpus = build(write_lines(lines), tokenizer=name, validation_fraction=0)
        tokenizer = AutoTokenizer.from_pretrained(name)
        self.assertEqual(corpus.documents("train"), tokenizer(lines, add_special_tokens=False)["input_ids"])
        self.assertEqual(corpus.tokens("train").count(tokenizer.convert_tokens_to_ids("{")), 2)

    def test_ul2_learns_from_a_corpus_that_knew_no_mode_tokens(self):
        corpus = build(write_lines(texts()))
        directory = pre_train(train_corpus=corpus.directory, objective="ul2", inputs_length=16)
        self.assertContainsSubset(MODES, AutoTokenizer.from_pretrained(directory).get_vocab())

    @parameterized.parameters("none", "eos")
    def test_an_end_that_is_the_unknown_token_too_is_no_unknown_text(self, separator):
        """GPT-2's tokenizer has one token for both, and gives no text that token."""
        place = folder() / "gpt2"
        AutoTokenizer.from_pretrained(gpt2_tokenizer(), unk_token="<|endoftext|>").save_pretrained(place)
        corpus = build(write_lines(texts()), tokenizer=place, document_separator=separator)
        self.assertEqual(corpus.manifest["splits"]["train"]["unk"], 0)


class SplitTest(parameterized.TestCase):
    def sides(self, corpus):
        return [set(map(tuple, corpus.documents(split))) for split in ("train", "validation")]

    @pytest.mark.slow
    def test_equal_documents_stand_on_one_side_and_order_changes_nothing(self):
        lines = texts() * 2
        corpus = build(write_lines(lines))
        train, validation = self.sides(corpus)
        self.assertEmpty(train & validation)
        held_out = [text for text in lines if is_held_out(text, 0.1)]
        self.assertEqual(validation, set(map(tuple, encode_as_text(held_out))))
        random.Random(1).shuffle(lines)
        self.assertEqual(self.sides(build(write_lines(lines), unit_megabytes=0.002)), [train, validation])


class SameBytesTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = write_lines(texts(1500), "\u00fcber a.txt")
        cls.corpus = build(cls.source)
        cls.expected = files_of(cls.corpus.directory)
        assert len(cls.corpus.shards) > 20

    @parameterized.parameters(2, 4)
    @pytest.mark.slow
    def test_any_number_of_workers(self, num_workers):
        corpus = build(self.source, num_workers=num_workers)
        self.assertEqual(files_of(corpus.directory), self.expected)

    @parameterized.parameters([[0, 1, 2]], [[2, 0, 1]])
    @pytest.mark.slow
    def test_shares_of_several_jobs_in_any_order(self, order):
        directory = folder()
        corpora = [build(self.source, directory, shard=f"{index}/3") for index in order]
        self.assertEqual([corpus is None for corpus in corpora], [True, True, False])
        self.assertEqual(files_of(directory), self.expected)
        self.assertIsNotNone(build(self.source, directory, shard=f"{order[0]}/3"))

    @pytest.mark.slow
    def test_a_build_that_stopped_anywhere_goes_on(self):
        whole, names = self.corpus.directory, [shard.name for shard in self.corpus.shards]
        directory = folder()
        build(self.source, directory, shard="0/2")
        finished_file = directory / names[0] / "train.tokens.bin"
        before = finished_file.stat().st_mtime_ns
        for number, damage in ((2, "train.tokens.bin"), (4, "shard.json"), (6, "validation.documents.npy")):
            path = directory / names[number] / damage
            os.truncate(path, path.stat().st_size // 2) if damage != "shard.json" else path.unlink()
        (directory / names[8] / ".train.tokens.bin.77.partial").write_bytes(b"half")
        shutil.copytree(whole / names[1], directory / names[1])
        build(self.source, directory)
        self.assertEqual(files_of(directory), self.expected)
        self.assertEqual(finished_file.stat().st_mtime_ns, before)

    @pytest.mark.slow
    def test_a_killed_worker_is_said(self):
        directory = folder()
        killer = threading.Thread(target=kill_a_worker_of, args=(directory,), daemon=True)
        killer.start()
        with exits_with(65, "a worker was killed.*--num_workers"):
            build(self.source, directory, num_workers=2, unit_megabytes=0.0005)
        killer.join()


def kill_a_worker_of(directory):
    """Kills a child process of this one, a worker of the build, once a shard is finished."""
    while not list(Path(directory).glob("shard-*/shard.json")):
        time.sleep(0.001)
    workers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
    workers[0].kill()


class AnotherBuildTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.source, self.directory = write_lines(texts()), folder()

    @parameterized.parameters(
        ({"validation_fraction": 0.2}, "--validation_fraction 0.1 there, 0.2 here"),
        ({"document_separator": "eos"}, "--document_separator none there, eos here"),
        ({"text_unit": "file"}, "--text_unit line there, file here"),
        ({"tokenizer": "bytes"}, "another tokenizer"),
    )
    def test_other_settings_are_refused(self, changed, message):
        if "tokenizer" in changed:
            changed = {"tokenizer": byte_tokenizer()}
        for flags in ({"shard": "0/2"}, {}):
            build(self.source, self.directory, **flags)
            with exits_with(78, f"holds another corpus: .*{message}"):
                build(self.source, self.directory, **changed)

    def test_changed_sources_are_refused_and_touched_ones_are_not(self):
        build(self.source, self.directory, shard="0/2")
        os.utime(self.source, ns=(1, 1))
        with exits_with(65, r"a\.txt: has changed since the build in .* began"):
            build(self.source, self.directory)
        finished = folder()
        build(self.source, finished)
        os.utime(self.source, ns=(2, 2))
        build(self.source, finished)
        self.source.write_text(self.source.read_text().replace("cook", "book"))
        with exits_with(65, r"a\.txt: has changed since the corpus in .* was built"):
            build(self.source, finished)
        self.source.write_text(self.source.read_text() + " more")
        with exits_with(65, r"other sources \(.*a\.txt"):
            build(self.source, finished)

    @parameterized.parameters(
        lambda source: os.truncate(source, 100),
        lambda source: source.write_bytes(source.read_bytes().replace(b"cook", b"book")),
    )
    def test_a_source_that_changes_while_it_is_read_is_refused(self, change):
        replace = os.replace

        def replace_and_change(written, path):
            replace(written, path)
            if Path(path).name == "shard.json":
                change(self.source)

        changing = mock.patch("os.replace", replace_and_change)
        with changing, exits_with(65, r"a\.txt: has changed while the corpus in .* was built"):
            build(self.source, self.directory)
        self.assertFalse((self.directory / "corpus.json").exists())

    def test_bad_lines_are_named_as_in_the_file_and_counted(self):
        lines = texts()
        lines[250:250] = ["", ""]
        content = "\n".join(lines).encode().split(b"\n")
        content[270] = b"bad \xff"
        self.source.write_bytes(b"\n".join(content))
        with exits_with(65, r"a\.txt:271: not UTF-8"):
            build(self.source)
        source = build(self.source, bad_lines="skip").manifest["sources"][0]
        self.assertEqual(source["left_out"], {"empty": 2, "not UTF-8": 1})
        self.assertEqual(source["named"]["empty"], [f"{self.source}:251", f"{self.source}:252"])
        self.assertIn(":271: not UTF-8", source["named"]["not UTF-8"][0])


class DamageTest(parameterized.TestCase):
    """A corpus whose files are not those that were written."""

    def setUp(self):
        super().setUp()
        self.corpus = build(write_lines(texts()))
        self.directory = self.corpus.directory
        self.path = self.corpus.shards[2] / "train.tokens.bin"

    def show(self, *flags):
        run_cli("corpus", "show", self.directory, "--num_examples", 0, "--json", *flags)

    def test_a_torn_missing_or_changed_file_is_named(self):
        content = self.path.read_bytes()
        self.path.write_bytes(content[:-2])
        with exits_with(65, f"{self.path}: the file has {len(content) - 2} bytes instead of {len(content)}"):
            self.show()
        self.path.unlink()
        with exits_with(65, f"{self.path}: the file is missing"):
            self.show()
        self.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self.show()
        with exits_with(65, f"{self.path}: the file has changed"):
            self.show("--check_hashes")

    @parameterized.parameters(0, 10_000_000_000)
    @pytest.mark.quick_cases(1)
    def test_a_file_whose_content_has_changed_is_refused_before_training(self, modified_at):
        self.path.write_bytes(bytes(self.path.stat().st_size))
        os.utime(self.path, ns=(0, modified_at))
        with exits_with(65, f"{self.path}: the file has changed"):
            pre_train(train_corpus=self.directory)

    @pytest.mark.slow
    def test_a_corpus_is_read_through_once_and_again_where_it_has_changed(self):
        """The note of what was compared, by the files' times of change, is believed: those files are not read again."""
        pre_train(train_corpus=self.directory)
        note = self.directory / ".checked.json"
        changed_at = json.loads(note.read_text())
        self.assertLen(changed_at, 4 * len(self.corpus.shards))
        self.path.write_bytes(bytes(self.path.stat().st_size))
        with exits_with(65, f"{self.path}: the file has changed"):
            pre_train(train_corpus=self.directory)
        name = str(self.path.relative_to(self.directory))
        note.write_text(json.dumps({**changed_at, name: self.path.stat().st_ctime_ns}))
        pre_train(train_corpus=self.directory)

    def test_what_is_no_corpus_is_refused(self):
        manifest = self.directory / "corpus.json"
        manifest.write_text(json.dumps({**self.corpus.manifest, "version": 99}))
        with exits_with(65, "not a corpus of version 1 .found 99"):
            self.show()
        manifest.unlink()
        with exits_with(65, "not finished"):
            self.show()
        with exits_with(65, "`t5suite corpus build` makes one"):
            run_cli("corpus", "show", folder())
