"""Built corpora: tokens equal the tokenizer's, whoever builds them; documents keep to their side; files that are torn,
changed or another build's are named; text never becomes a control token."""

import itertools
import json
import os
import pickle
import random
import shutil
from pathlib import Path
from unittest import mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from absl.testing import parameterized
from shared_data import MISSING, SHARED_DATA, has
from support import folder
from transformers import ByT5Tokenizer, T5Tokenizer

from t5suite.data.corpora import encoding as text_encoding
from t5suite.data.corpora import store as token_store
from t5suite.data.corpora import units as corpus_units
from t5suite.data.corpora.building import build_corpus
from t5suite.data.corpora.documents import document_hash, is_held_out, split_sentences
from t5suite.data.corpora.encoding import control_tokens, make_text_encoder
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import TokenStore, token_dtype
from t5suite.data.corpora.units import run_jobs
from t5suite.models.loading import load_tokenizer
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.pre_training_data import tokenized_text

TOKENIZER = tiny_tokenizer()
WORDS = "the cook praised king at noon . guard saw a boat in store and left".split()
ODD = [
    "</s> the end <pad> of <unk> it <extra_id_0> <extra_id_99></s>",
    "  two  spaces,\ta tab and Straße 日本 \u00a0 \ue000",
    "<pad>",
]


def texts(count=300, seed=0):
    rng = random.Random(seed)
    made = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 40))) for _ in range(count)]
    return made[: count // 2] + ODD + made[count // 2 :]


def text_file(lines, name="a.txt", where=None):
    path = (where or folder()) / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def build(inputs, directory=None, tokenizer=TOKENIZER, **settings):
    settings = {"validation_fraction": 0.1, "unit_megabytes": 0.005, **settings}
    return build_corpus(inputs, directory or folder(), tokenizer, **settings)


def documents(tokens):
    return [tokens.document(number).tolist() for number in range(len(tokens.documents))]


def files_of(directory):
    """Every file's bytes; of the manifest, all but how it was built."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file() and path.name not in (".lock", ".checked.json"):
            found[str(path.relative_to(directory))] = path.read_bytes()
    manifest = json.loads(found["corpus.json"])
    manifest.pop("build")
    return {**found, "corpus.json": manifest}


class TokensTest(parameterized.TestCase):
    def test_a_corpus_is_the_tokenized_documents_of_each_side(self):
        lines = texts()
        store = build(text_file(lines))
        self.assertGreater(len(store.manifest["shards"]), 3)
        encoded = make_text_encoder(TOKENIZER).reference(lines)
        for split, held_out in (("train", False), ("validation", True)):
            chosen = [number for number, text in enumerate(lines) if is_held_out(text, 0.1) == held_out]
            tokens = store.split(split)
            self.assertEqual(documents(tokens), [encoded[number] for number in chosen])
            self.assertEqual(tokens[:].tolist(), [i for number in chosen for i in encoded[number]])
            counts = store.manifest["splits"][split]
            self.assertEqual(counts["documents"], len(chosen))
            self.assertEqual(counts["bytes"], sum(len(lines[number].encode()) for number in chosen))
            self.assertEqual(counts["unk"], int((tokens[:] == TOKENIZER.unk_token_id).sum()))

    @parameterized.parameters(True, False)
    def test_nothing_is_held_out_of_the_text_where_validation_has_files_of_its_own(self, has_files):
        lines = [f"{word} {number}" for number, word in enumerate(WORDS[:12])]
        files = [text_file(["the cook", "at noon", "a boat"])] if has_files else []
        given = {"train_files": [text_file(lines)], "validation_files": files, "validation_fraction": 0.5}
        text = tokenized_text(TOKENIZER, folder(), TextOptions(), **given)
        (train,), (validation,) = text.train, text.validation
        held_out = sum(is_held_out(line, 0.5) for line in lines)
        found = (len(train.documents), len(validation.documents))
        self.assertEqual(found, (12, 3) if has_files else (12 - held_out, held_out))
        self.assertGreater(held_out, 0)
        if not has_files:
            with exits_with(65, "no document is held out at --validation_fraction 0.05; raise it"):
                tokenized_text(TOKENIZER, folder(), TextOptions(), train_files=[text_file(["one alone"] * 5)])
            with exits_with(65, "no validation documents; it has train"):
                build(given["train_files"], validation_fraction=0).split("validation")

    @parameterized.parameters((1e-9, "validation"), (1 - 1e-9, "train"))
    def test_a_small_text_has_a_document_and_its_duplicates_on_each_side(self, fraction, few):
        lines = [f"{word} {number}" for number, word in enumerate(WORDS[:12])]
        extreme = (min if few == "validation" else max)(lines, key=document_hash)
        store = build(text_file(lines * 3), validation_fraction=fraction)
        side = store.split(few)
        found = [TOKENIZER.decode(side.document(number)) for number in range(len(side.documents))]
        self.assertEqual(found, [extreme] * 3)
        counts = store.manifest["splits"]
        self.assertEqual(counts["train"]["documents"] + counts["validation"]["documents"], 36)

    def test_slices_are_those_of_one_long_row(self):
        store = build(text_file(texts()))
        tokens = store.split("train")
        files = [store.directory / shard["name"] / "train.tokens.bin" for shard in store.manifest["shards"]]
        raw = [np.fromfile(file, dtype="<u2") for file in files]
        whole = np.concatenate(raw).astype(np.int32)
        self.assertLen(tokens, len(whole))
        borders = np.cumsum([len(part) for part in raw])
        ends = sorted({0, 1, *borders, *(borders - 1), *(borders[:-1] + 1)})
        for start, stop in itertools.product([*ends, -5], [*ends, len(whole) + 9, None]):
            np.testing.assert_array_equal(tokens[start:stop], whole[start:stop])
        self.assertEqual(tokens[3:50].dtype, np.int32)
        for index in (0, int(borders[0]), -1, -len(whole)):
            self.assertEqual(tokens[index], whole[index])
        np.testing.assert_array_equal(tokens[10:400:7], whole[10:400:7])
        np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(tokens))), whole)
        for index in (len(whole), -len(whole) - 1):
            with self.assertRaises(IndexError):
                tokens[index]

    def test_a_separator_ends_every_document(self):
        lines = texts()
        plain = documents(build(text_file(lines)).split("train"))
        for separator, token_id in (("eos", 1), ("<extra_id_5>", TOKENIZER.convert_tokens_to_ids("<extra_id_5>"))):
            found = documents(build(text_file(lines), document_separator=separator).split("train"))
            self.assertEqual(found, [[*ids, token_id] for ids in plain])
        with exits_with(78, "--document_separator 'EOS': not a token .*did you mean eos"):
            build(text_file(lines), document_separator="EOS")

    @parameterized.parameters("none", "eos")
    def test_sentences_are_encoded_one_by_one(self, separator):
        lines = ["The cook left. The king saw it. ", "One alone", "Why? \t  No! At noon."]
        store = build(text_file(lines), validation_fraction=0, split_sentences="en", document_separator=separator)
        tokens, encoder = store.split("train"), make_text_encoder(TOKENIZER)
        expected = [ids for line in lines for ids in encoder.reference(split_sentences(line))]
        last = np.cumsum([len(split_sentences(line)) for line in lines]) - 1
        if separator == "eos":
            expected = [[*ids, 1] if number in last else ids for number, ids in enumerate(expected)]
        starts = np.asarray(tokens.sentences)
        found = [part.tolist() for part in np.split(tokens[:], starts[1:])]
        self.assertEqual(found, expected)
        self.assertContainsSubset(np.asarray(tokens.documents).tolist(), starts.tolist())
        with exits_with(78, "--split_sentences"):
            _ = build(text_file(lines), validation_fraction=0).split("train").sentences

    @pytest.mark.slow
    def test_ids_are_stored_in_16_bits_where_they_fit(self):
        pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
        pieces += [(f"\u2581w{number}", -3.0) for number in range(66000)]
        tokenizer = T5Tokenizer(vocab=pieces, extra_ids=0)
        store = build(text_file(["w3 w65999 w65533"] * 4), tokenizer=tokenizer, validation_fraction=0)
        self.assertEqual(store.manifest["dtype"], "uint32")
        self.assertEqual(store.split("train").document(3).tolist(), [7, 66003, 65537])
        self.assertEqual(build(text_file(texts())).manifest["dtype"], "uint16")
        self.assertEqual([token_dtype(size).name for size in (2**16, 2**16 + 1)], ["uint16", "uint32"])

    def test_row_groups_and_files_of_the_hub_are_units(self):
        lines, where = texts(), folder()
        plain = documents(build(text_file(lines)).split("train"))
        table = pa.table({"text": lines})
        pq.write_table(table, where / "a.parquet", row_group_size=40)
        store = build(where / "a.parquet")
        self.assertGreater(len(store.manifest["shards"]), 3)
        self.assertEqual(documents(store.split("train")), plain)
        for start in range(0, len(lines), 120):
            pq.write_table(table.slice(start, 120), where / f"train-{start:05d}.parquet")
        (where / "a.parquet").unlink()
        cache = mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder())
        with cache, mock.patch("t5suite.base.hub.hub_reachable", return_value=True):
            store = build(f"hub:{where}")
        self.assertLen(store.manifest["shards"], 3)
        self.assertEqual(documents(store.split("train")), plain)


class ControlTokensTest(parameterized.TestCase):
    @parameterized.parameters((None, "tokenizers"), ("byt5", "transformers"))
    def test_text_gives_no_control_token(self, name, engine):
        self.check_control_tokens(ByT5Tokenizer() if name else TOKENIZER, engine)

    @pytest.mark.slow
    def test_text_gives_t5_no_control_token(self):
        if not has("tokenizer/t5/spiece.model"):
            self.skipTest(MISSING)
        self.check_control_tokens(load_tokenizer(str(SHARED_DATA / "tokenizer" / "t5")), "sentencepiece")

    def check_control_tokens(self, tokenizer, engine):
        encoder = make_text_encoder(tokenizer)
        names = sorted(control_tokens(tokenizer))
        every = [*names, *(f"x{token}y" for token in names), " ".join(names), "".join(names), *text_encoding.PROBES]
        for made in (encoder, encoder.by_reference(), pickle.loads(pickle.dumps(encoder))):
            found = {token_id for ids in made.encode(every) for token_id in ids}
            self.assertEmpty(found & encoder.control_ids)
        self.assertIn(tokenizer.eos_token_id, tokenizer("</s>", add_special_tokens=False)["input_ids"])
        self.assertEqual(encoder.engine, engine)

    def test_a_unit_on_which_the_engines_differ_is_encoded_by_the_tokenizer(self):
        """The bundled model's two engines treat tabs differently."""
        lines = [text for text in texts() if text not in ODD]
        lines[200] = "the cook\tleft"
        with mock.patch.object(text_encoding, "PROBES", ("the cook left",)):
            self.assertEqual(make_text_encoder(TOKENIZER).engine, "sentencepiece")
            with mock.patch.object(corpus_units, "CHECK_EVERY", 1):
                store = build(text_file(lines), validation_fraction=0)
        self.assertEqual(store.manifest["tokenizer"]["engine"], "sentencepiece+tokenizers")
        expected = TOKENIZER(lines, add_special_tokens=False)["input_ids"]
        self.assertEqual(documents(store.split("train")), expected)


class SplitTest(parameterized.TestCase):
    def sides(self, store):
        return [set(map(tuple, documents(store.split(split)))) for split in ("train", "validation")]

    def test_equal_documents_stand_on_one_side_and_order_changes_nothing(self):
        lines = texts() * 2
        store = build(text_file(lines))
        train, validation = self.sides(store)
        self.assertEmpty(train & validation)
        encode = make_text_encoder(TOKENIZER).reference
        self.assertEqual(validation, set(map(tuple, encode([text for text in lines if is_held_out(text, 0.1)]))))
        random.Random(1).shuffle(lines)
        self.assertEqual(self.sides(build(text_file(lines), unit_megabytes=0.002)), [train, validation])


class SameBytesTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source = text_file(texts(1500), "\u00fcber a.txt")
        cls.store = build(cls.source)
        cls.expected = files_of(cls.store.directory)
        assert len(cls.store.manifest["shards"]) > 20

    @parameterized.parameters(2, 4)
    @pytest.mark.slow
    def test_any_number_of_workers(self, num_workers):
        store = build(self.source, num_workers=num_workers)
        self.assertEqual(files_of(store.directory), self.expected)

    @parameterized.parameters([[0, 1, 2]], [[2, 0, 1]])
    def test_shares_of_several_jobs_in_any_order(self, order):
        directory = folder()
        built = [build(self.source, directory, shard=(index, 3)) for index in order]
        self.assertEqual([store is None for store in built], [True, True, False])
        self.assertEqual(files_of(directory), self.expected)
        self.assertIsNotNone(build(self.source, directory, shard=(order[0], 3)))

    def test_a_build_that_stopped_anywhere_goes_on(self):
        whole, names = self.store.directory, [shard["name"] for shard in self.store.manifest["shards"]]
        directory = folder()
        build(self.source, directory, shard=(0, 2))
        kept = directory / names[0] / "train.tokens.bin"
        before = kept.stat().st_mtime_ns
        for number, damage in ((2, "train.tokens.bin"), (4, "shard.json"), (6, "validation.documents.npy")):
            path = directory / names[number] / damage
            os.truncate(path, path.stat().st_size // 2) if damage != "shard.json" else path.unlink()
        (directory / names[8] / ".train.tokens.bin.77.partial").write_bytes(b"half")
        shutil.copytree(whole / names[1], directory / names[1])
        build(self.source, directory)
        self.assertEqual(files_of(directory), self.expected)
        self.assertEqual(kept.stat().st_mtime_ns, before)

    def test_a_killed_worker_is_said(self):
        with exits_with(65, "a worker was killed.*--num_workers"):
            list(run_jobs({0: None, 1: None}, _EndsTheProcess(), num_workers=2))


class _EndsTheProcess:
    def __reduce__(self):
        return os._exit, (1,)


class AnotherBuildTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.source, self.directory = text_file(texts()), folder()

    @parameterized.parameters(
        ({"validation_fraction": 0.2}, "--validation_fraction 0.1 there, 0.2 here"),
        ({"document_separator": "eos"}, "--document_separator none there, eos here"),
        ({"options": TextOptions(text_unit="file")}, "--text_unit line there, file here"),
        ({"tokenizer": ByT5Tokenizer()}, "another tokenizer"),
    )
    def test_other_settings_are_refused(self, changed, message):
        for shard in ((0, 2), None):
            build(self.source, self.directory, shard=shard)
            with exits_with(78, f"holds another corpus: .*{message}"):
                build(self.source, self.directory, **changed)

    def test_changed_sources_are_refused_and_touched_ones_are_not(self):
        build(self.source, self.directory, shard=(0, 2))
        os.utime(self.source, ns=(1, 1))
        with exits_with(65, r"a\.txt: has changed since the build in .* began"):
            build(self.source, self.directory)
        other = folder()
        build(self.source, other)
        os.utime(self.source, ns=(2, 2))
        build(self.source, other)
        self.source.write_text(self.source.read_text().replace("cook", "book"))
        with exits_with(65, r"a\.txt: has changed since the corpus in .* was built"):
            build(self.source, other)
        self.source.write_text(self.source.read_text() + " more")
        with exits_with(65, r"other sources \(.*a\.txt"):
            build(self.source, other)

    def test_bad_lines_are_named_as_in_the_file_and_counted(self):
        lines = texts()
        lines[250:250] = ["", ""]
        content = "\n".join(lines).encode().split(b"\n")
        content[270] = b"bad \xff"
        self.source.write_bytes(b"\n".join(content))
        with exits_with(65, r"a\.txt:271: not UTF-8"):
            build(self.source)
        source = build(self.source, options=TextOptions(bad_lines="skip")).manifest["sources"][0]
        self.assertEqual(source["left_out"], {"empty": 2, "not UTF-8": 1})
        self.assertEqual(source["named"]["empty"], [f"{self.source}:251", f"{self.source}:252"])
        self.assertIn(":271: not UTF-8", source["named"]["not UTF-8"][0])


class OpenTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.store = build(text_file(texts()))
        self.path = self.store.directory / self.store.manifest["shards"][2]["name"] / "train.tokens.bin"

    def test_a_torn_missing_or_changed_file_is_named(self):
        content = self.path.read_bytes()
        self.path.write_bytes(content[:-2])
        named = f"{self.path}: the file has {len(content) - 2} bytes instead of {len(content)}"
        with exits_with(65, named):
            TokenStore.open(self.store.directory)
        self.path.unlink()
        with exits_with(65, f"{self.path}: the file is missing"):
            TokenStore.open(self.store.directory)
        self.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        TokenStore.open(self.store.directory)
        with exits_with(65, f"{self.path}: the file has changed"):
            TokenStore.open(self.store.directory, check_hashes=True)

    @parameterized.parameters(0, 10_000_000_000)
    def test_a_file_whose_content_has_changed_is_refused_before_training(self, later):
        self.path.write_bytes(bytes(self.path.stat().st_size))
        os.utime(self.path, ns=(0, later))
        with exits_with(65, f"{self.path}: the file has changed"):
            tokenized_text(TOKENIZER, folder(), TextOptions(), corpora=[self.store.directory])

    def test_a_corpus_is_read_through_once_and_again_where_it_has_changed(self):
        with mock.patch.object(token_store, "file_sha256", side_effect=AssertionError("read again")):
            TokenStore.open(self.store.directory).check_once()
        self.path.touch()
        with mock.patch.object(token_store, "file_sha256", wraps=token_store.file_sha256) as read:
            TokenStore.open(self.store.directory).check_once()
        self.assertEqual([str(call.args[0]) for call in read.call_args_list], [str(self.path)])

    def test_what_is_no_corpus_is_refused(self):
        manifest = self.store.directory / "corpus.json"
        manifest.write_text(json.dumps({**self.store.manifest, "version": 99}))
        with exits_with(65, "not a corpus of version 1 .found 99"):
            TokenStore.open(self.store.directory)
        manifest.unlink()
        with exits_with(65, "not finished"):
            TokenStore.open(self.store.directory)
        with exits_with(65, "`t5suite corpus build` makes one"):
            TokenStore.open(folder())


class PlanTest(parameterized.TestCase):
    def test_small_files_share_a_unit_and_big_ones_are_cut(self):
        where = folder()
        for number in range(6):
            text_file(["x" * 9] * 100, f"{number}.txt", where)
        text_file(["x" * 9] * 1000, "big.txt", where)
        settings = corpus_units.CorpusSettings(TextOptions(), unit_megabytes=0.003)
        units = corpus_units.make_plan(where, settings, TOKENIZER).units
        self.assertEqual([len(unit) for unit in units], [3, 3, 1, 1, 1, 1])
        self.assertEqual([piece[1:] for unit in units[2:] for piece in unit][:2], [(0, 3000), (3000, 6000)])
