"""`t5suite corpus adopt`: documents are those of the files, each on the side of its hash; batches are those of a built
corpus; torn and foreign files are refused, and nothing is hashed twice."""

import contextlib
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from absl.testing import parameterized
from corpus_files import build_corpus, write_lines
from recorded_batches import pre_training_batches
from support import folder
from token_folders import documents_of, is_held_out, write_datatrove, write_megatron
from tokenizer_folders import gpt2_tokenizer
from transformers import AutoTokenizer

import pre_train_t5
from t5suite.testing import TINY_T5, bundled_model, exits_with, run_cli, tiny_tokenizer

ROOT = Path(__file__).parent.parent
TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id
WORDS = "the cook praised king at noon . guard saw a boat in store and left".split()
WRITERS = {
    "datatrove": write_datatrove,
    "datatrove without metadata": lambda *a: write_datatrove(*a, metadata=False),
    "datatrove, four bytes": lambda *a: write_datatrove(*a, dtype="<u4"),
    "datatrove, four bytes, without metadata": lambda *a: write_datatrove(*a, dtype="<u4", metadata=False),
    "Megatron": write_megatron,
    "Megatron, int32": lambda *a: write_megatron(*a, dtype="<i4"),
    "Megatron, a document of three sequences": lambda *a: write_megatron(*a, sequences=3),
}


# --validation_fraction and --unit_megabytes
SETTINGS = ((0.2, 0.001), (0, 1000), (0.2, 1000), (0, 0.001))


def texts(count=200, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def ids_of(lines) -> list[list[int]]:
    """What datatrove's and Megatron's tokenizing steps give: the tokenizer's ids and its end."""
    return [TOKENIZER(line, add_special_tokens=False)["input_ids"] + [END] for line in lines]


def adopt(path, *flags, tokenizer=None):
    """`(description, standard error)` of the command."""
    tokenizer = tokenizer or bundled_model()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_cli("corpus", "adopt", str(path), "--tokenizer_name", tokenizer, *map(str, flags), "--json")
    return json.loads(out.getvalue()), err.getvalue()


def pre_train_words(**flags):
    defaults = {"config_overrides": TINY_T5, "max_steps": 4, "inputs_length": 24, "per_device_train_batch_size": 4}
    words = ["--use_cpu", "--disable_tqdm", "True"]
    for name, value in (defaults | {"output_dir": folder() / "run"} | flags).items():
        words += [f"--{name}", str(value)]
    return words


class DocumentsTest(parameterized.TestCase):
    @parameterized.parameters(*zip(WRITERS, itertools.cycle(SETTINGS)))
    def test_documents_are_those_of_the_files_each_on_the_side_of_its_hash(self, writer, settings):
        self.check(writer, *settings)

    @parameterized.product(writer=list(WRITERS), settings=SETTINGS)
    @pytest.mark.slow
    def test_so_they_are_at_every_fraction_and_size_of_units(self, writer, settings):
        self.check(writer, *settings)

    def check(self, writer, fraction, unit_megabytes):
        place, documents = folder(), ids_of(texts(60))
        WRITERS[writer](place, "b", documents[40:])
        WRITERS[writer](place / "sub", "c", [])
        WRITERS[writer](place, "a", documents[:40])
        description, _ = adopt(place, "--validation_fraction", fraction, "--unit_megabytes", unit_megabytes)
        for split, side in (("train", False), ("validation", True)):
            expected = [document for document in documents if is_held_out(document, fraction) == side]
            self.assertEqual(documents_of(place, split), expected)
            counts = description["splits"][split]
            self.assertEqual(counts["documents"], len(expected))
            self.assertEqual(counts["tokens"], sum(map(len, expected)))
            self.assertEqual(counts["unk"], sum(document.count(TOKENIZER.unk_token_id) for document in expected))
        self.assertEqual(description["sources_without_documents"], [f"sub/c.{'ds' if 'data' in writer else 'bin'}"])
        num_shards = len(json.loads((place / "corpus.json").read_text())["shards"])
        (self.assertGreater if unit_megabytes < 1 else self.assertEqual)(num_shards, 2)

    @pytest.mark.slow
    def test_no_token_is_copied(self):
        place = folder()
        path = write_datatrove(place, "a", ids_of(texts(3000)))
        before = path.stat()
        adopt(place, "--output_dir", place.parent / f"{place.name}-corpus")
        corpus = place.parent / f"{place.name}-corpus"
        sizes = sum(file.stat().st_size for file in corpus.rglob("*.npy"))
        self.assertLess(sizes, 8 * 3000 + 16 * 2 * 60 + 4 * 128)
        self.assertEqual((path.stat().st_mtime_ns, path.stat().st_ino), (before.st_mtime_ns, before.st_ino))
        self.assertCountEqual([file.name for file in place.iterdir()], ["a.ds", "a.ds.index", "a.ds.metadata"])

    @pytest.mark.slow
    def test_equal_documents_of_both_forms_and_widths_are_on_one_side(self):
        documents = ids_of(texts(50))
        held_out = []
        for writer in WRITERS.values():
            place = folder()
            writer(place, "a", documents[::-1])
            adopt(place, "--validation_fraction", 0.3)
            held_out.append(sorted(documents_of(place, "validation")))
        self.assertBetween(len(held_out[0]), 5, 30)
        self.assertEqual(held_out, held_out[:1] * len(WRITERS))

    @pytest.mark.slow
    def test_workers_give_the_same_files(self):
        documents, manifests = ids_of(texts(400)), []
        for num_workers in (1, 2):
            place = folder()
            write_datatrove(place, "a", documents)
            adopt(place, "--num_workers", num_workers, "--unit_megabytes", 0.002)
            manifests.append(json.loads((place / "corpus.json").read_text())["shards"])
        self.assertGreater(len(manifests[0]), 3)
        self.assertEqual(*manifests)


class TrainingTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_batches_are_those_of_the_built_corpus_of_the_same_documents(self):
        self.check_batches("Megatron, int32")

    @pytest.mark.slow
    def test_so_are_those_of_datatrove(self):
        self.check_batches("datatrove")

    def check_batches(self, writer):
        lines, place = texts(), folder()
        WRITERS[writer](place, "a", ids_of(lines[:70]))
        WRITERS[writer](place, "b", ids_of(lines[70:]))
        adopt(place, "--validation_fraction", 0, "--unit_megabytes", 0.001)
        built = build_corpus(write_lines(lines), validation_fraction=0, document_separator="eos", unit_megabytes=0.002)
        flags = {"validation_file": write_lines(texts(9, seed=1)), "per_device_train_batch_size": 8}
        batches = [
            pre_training_batches(*pre_train_words(train_corpus=corpus, **flags)) for corpus in (place, built.directory)
        ]
        self.assertLen(batches[0], 4)
        for adopted_batch, built_batch in zip(*batches, strict=True):
            self.assertEqual(adopted_batch.keys(), built_batch.keys())
            for name, tensor in adopted_batch.items():
                np.testing.assert_array_equal(tensor.numpy(), built_batch[name].numpy())

    def test_corpora_that_hold_out_by_different_rules_are_named_unless_a_file_is_scored(self):
        """A document of both may be trained on in one and scored in the other."""
        lines, adopted = texts(), folder()
        write_datatrove(adopted, "a", ids_of(lines))
        adopt(adopted, "--validation_fraction", 0.2)
        built, built_alike, built_by_more = (
            build_corpus(write_lines(lines), validation_fraction=fraction).directory for fraction in (0.2, 0.2, 0.3)
        )
        validation = ["--validation_file", str(write_lines(lines[:50]))]
        for corpora, flags, is_named in (
            ((built, built_alike), [], False),
            ((built, built_by_more), [], True),
            ((built, built_by_more), validation, False),
            ((adopted, built), [], True),
        ):
            words = [*pre_train_words(max_steps=1), *flags, "--train_corpus", *map(str, corpora)]
            messages = io.StringIO()
            with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(io.StringIO()):
                pre_train_t5.main(words)
            lines_of_rules = [line for line in messages.getvalue().splitlines() if "--validation_fraction" in line]
            named = [str(corpus) for line in lines_of_rules for corpus in corpora if str(corpus) in line]
            self.assertEqual(named, [str(corpus) for corpus in corpora] if is_named else [])

    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_killed_run_goes_on_with_the_same_losses(self):
        place = folder()
        write_megatron(place, "a", ids_of(texts()))
        adopt(place, "--validation_fraction", 0.2, "--unit_megabytes", 0.002)
        flags = {"train_corpus": place, "logging_steps": 1, "save_steps": 2, "save_strategy": "steps", "max_steps": 40}
        whole, killed = folder() / "whole", folder() / "killed"
        pre_train_t5.main(pre_train_words(**flags, output_dir=whole))
        command = [sys.executable, str(ROOT / "pre_train_t5.py"), *pre_train_words(**flags, output_dir=killed)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (killed / "checkpoint-6").is_dir():
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.kill()
        process.wait()
        self.assertLess(len(losses(killed)), 40)
        pre_train_t5.main(pre_train_words(**flags, output_dir=killed))
        self.assertLen(losses(whole), 40)
        self.assertEqual(losses(killed), losses(whole))


def losses(directory) -> list[tuple[int, float]]:
    """`(step, loss)` of every step of a run."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


# What is done to a sound folder, and the one message; `{place}` is the folder.
DAMAGES = [
    ("no index", "datatrove", lambda path: index_of(path).unlink(), r"a\.ds: its index, a\.ds\.index, is missing"),
    ("no tokens", "datatrove", lambda path: path.unlink(), r"a\.ds\.index: its tokens, a\.ds, are missing"),
    ("cut tokens", "datatrove", lambda path: cut(path, 6), r"a\.ds: \d+ bytes, but a\.ds\.index ends at token \d+"),
    ("cut tokens, no metadata", "datatrove without metadata", lambda path: cut(path, 6), r"a\.ds: \d+ bytes, but"),
    ("cut index", "datatrove", lambda path: cut(index_of(path), 3), r"a\.ds\.index: \d+ bytes, no whole number"),
    ("index of other tokens", "datatrove", lambda path: cut(index_of(path), 16), r"a\.ds\.metadata: \d+ tokens, but"),
    ("index out of order", "datatrove", lambda path: swap_ends(path, 3), r"a\.ds\.index: document 4 .from 0. starts at"),
    ("other metadata", "datatrove", lambda path: Path(f"{path}.metadata").write_text("mine"), r"not datatrove's metadata"),
    ("both forms", "datatrove", lambda path: write_megatron(path.parent, "b", [[END]]), "a.ds of datatrove and b.bin of"),
    ("two widths", "datatrove", lambda path: write_datatrove(path.parent, "b", [[END]], "<u4"),
     r"an id has 2 bytes in a\.ds and 4 in b\.ds"),
    ("no document at all", "datatrove", lambda path: write_datatrove(path.parent, "a", []), "no document in its 1 files"),
    ("foreign index", "Megatron", lambda path: path.with_suffix(".idx").write_bytes(b"TNTIDX\0\0" + bytes(99)),
     r"a\.idx: begins with b'TNTIDX.*Megatron's index with b'MMIDIDX"),
    ("other version", "Megatron", lambda path: patch(path, 9, 2), r"a\.idx: version 2 of Megatron's index"),
    ("ids of int64", "Megatron", lambda path: write_megatron(path.parent, "a", [[5, END]], "<i8"), "its ids are of type int64"),
    ("unknown type", "Megatron", lambda path: patch(path, 17, 77), r"ids are of type code 77"),
    ("cut index", "Megatron", lambda path: cut(index_of(path), 8), r"a\.idx: \d+ bytes instead of \d+ for 60 sequences"),
    ("cut tokens", "Megatron", lambda path: cut(path, 2), r"a\.bin: \d+ bytes, but the sequences of a\.idx go from byte 0"),
    ("modes", "Megatron", lambda path: index_of(path).write_bytes(index_of(path).read_bytes() + bytes(60)), "have modes"),
    ("gap between sequences", "Megatron", lambda path: patch(path, 34 + 4 * 60 + 8 * 9, 2), "do not stand one after"),
    ("tokens before the first sequence", "Megatron", lambda path: shift_places(path, 2), "go from byte 2 to"),
    ("documents out of order", "Megatron", lambda path: patch(path, 34 + 12 * 60 + 8 * 9, 40), "are not in order"),
    ("last document not ended", "Megatron", lambda path: patch(path, 34 + 12 * 60 + 8 * 60, 59), "from 0 to 59 of 60"),
    ("no index of Megatron", "Megatron", lambda path: index_of(path).unlink(), r"a\.bin: its index, a\.idx, is missing"),
]  # fmt: skip


def index_of(path) -> Path:
    return Path(f"{path}.index") if path.suffix == ".ds" else path.with_suffix(".idx")


def cut(path, num_bytes):
    os.truncate(path, path.stat().st_size - num_bytes)


def patch(path, offset, number):
    """Another byte in Megatron's index."""
    content = bytearray(index_of(path).read_bytes())
    content[offset] = number
    index_of(path).write_bytes(content)


def swap_ends(path, number):
    """Two neighbours in datatrove's index."""
    ends = np.fromfile(index_of(path), "<u8")
    ends[[number, number + 1]] = ends[[number + 1, number]]
    index_of(path).write_bytes(ends.tobytes())


def shift_places(path, num_bytes):
    """Megatron's tokens after some bytes that belong to no sequence."""
    path.write_bytes(bytes(num_bytes) + path.read_bytes())
    content = bytearray(index_of(path).read_bytes())
    places = np.frombuffer(content, "<i8", 60, offset=34 + 4 * 60)
    content[34 + 4 * 60 : 34 + 12 * 60] = (places + num_bytes).tobytes()
    index_of(path).write_bytes(content)


class RefusalTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.place = folder()

    @parameterized.parameters(*DAMAGES)
    def test_torn_and_foreign_files_are_refused(self, _, writer, damage, message):
        damage(WRITERS[writer](self.place, "a", ids_of(texts(60))))
        with exits_with(65, message):
            adopt(self.place)
        self.assertFalse((self.place / "corpus.json").exists())

    @parameterized.parameters(
        (
            [[5, END], [5, 6, 7], [END]],
            r"a\.ds: document 1 .from 0. ends with the id 7, not with </s> .1.*eos_token='</s>'",
        ),
        ([[5, END], [8, END], [9, 621, END]], r"a\.ds: document 2 .from 0. has the id 621, and .* has 621 ids"),
        ([[5, END], [], [9, END]], r"a\.ds: document 1 .from 0. has no tokens, not even </s>"),
        ([[], []], r"a\.ds: document 0 .from 0. has no tokens"),
    )
    def test_documents_of_another_tokenizer_or_without_an_end_are_named(self, documents, message):
        write_datatrove(self.place, "a", documents)
        with exits_with(65, message):
            adopt(self.place)

    def test_what_is_no_folder_of_tokens(self):
        with exits_with(65, f"{self.place}: no files of tokens in it; datatrove's end in .ds and .ds.index"):
            adopt(self.place)
        with exits_with(65, "nowhere: no such folder"):
            adopt("nowhere")
        tokens = write_datatrove(folder(), "a", [[END]])
        with exits_with(65, f"{tokens}: no such folder; name the one with the tokens"):
            adopt(tokens)
        write_lines(["text"], "a.txt", self.place)
        with exits_with(65, "no files of tokens"):
            adopt(self.place)
        write_datatrove(self.place, "a", [[END]])
        with exits_with(65, "no corpus .*`t5suite corpus adopt` makes one"):
            run_cli("corpus", "show", self.place)

    @parameterized.parameters(
        ("--validation_fraction", "1.5", "--validation_fraction 1.5"),
        ("--num_workers", "0", "--num_workers 0: must be at least 1"),
        ("--unit_megabytes", "0", "--unit_megabytes 0"),
        ("--output_dir", __file__, "a file; name a folder"),
    )
    def test_impossible_flags(self, flag, value, message):
        write_datatrove(self.place, "a", [[END]])
        with exits_with(78, message):
            adopt(self.place, flag, value)

    def test_an_end_inside_a_document_is_said_where_it_is_the_unknown_token_too(self):
        tokenizer = AutoTokenizer.from_pretrained(gpt2_tokenizer(), unk_token="<|endoftext|>")
        tokenizer.save_pretrained(self.place / "gpt2")
        end = tokenizer.eos_token_id
        write_datatrove(self.place, "a", [[5, end], [7, end, 8, end]])
        description, messages = adopt(self.place, tokenizer=str(self.place / "gpt2"))
        self.assertIn("note: a.ds: 1 special tokens inside documents", messages)
        self.assertIn("the first is <|endoftext|> in document 1 (from 0)", messages)
        self.assertEqual(description["splits"]["train"]["unk"], 0)

    def test_special_tokens_inside_documents_are_said(self):
        sentinel = TOKENIZER.convert_tokens_to_ids("<extra_id_3>")
        write_datatrove(self.place, "a", [[5, END], [7, sentinel, END, 8, END]])
        _, messages = adopt(self.place)
        self.assertIn("note: a.ds: 2 special tokens inside documents", messages)
        self.assertIn("the first is <extra_id_3> in document 1 (from 0)", messages)


class AgainTest(parameterized.TestCase):
    """What happens to an adopted corpus later."""

    def setUp(self):
        super().setUp()
        self.place = folder()
        self.path = write_datatrove(self.place, "a", ids_of(texts()))
        self.description, _ = adopt(self.place, "--validation_fraction", 0.2)

    def pre_train(self):
        pre_train_t5.main(pre_train_words(train_corpus=self.place, max_steps=1))

    def test_adopting_again_opens_what_is_there_and_other_settings_are_refused(self):
        again, _ = adopt(self.place, "--validation_fraction", 0.2)
        self.assertEqual(again, self.description)
        with exits_with(78, "adopted with --validation_fraction 0.2, not 0.3"):
            adopt(self.place, "--validation_fraction", 0.3)
        other = gpt2_tokenizer()
        with exits_with(78, f"adopted with another tokenizer than --tokenizer_name {other}; delete"):
            adopt(self.place, "--validation_fraction", 0.2, tokenizer=other)
        write_datatrove(self.place, "b", ids_of(texts(5)))
        with exits_with(65, r"other files than when it was adopted .b\.ds differs"):
            adopt(self.place, "--validation_fraction", 0.2)

    def test_a_tokenizer_with_more_words_is_refused_without_advice_to_read_text_that_is_not_there(self):
        more = folder() / "more"
        tokenizer = AutoTokenizer.from_pretrained(bundled_model())
        tokenizer.add_tokens("praised")
        tokenizer.save_pretrained(more)
        with exits_with(78, rf"--tokenizer_name {more}: .*\(praised\); .*no text"):
            run_cli("corpus", "show", self.place, "--tokenizer_name", more)

    @pytest.mark.slow
    def test_tokens_are_hashed_once_and_again_where_they_have_changed(self):
        """Content that changed behind a file's times is not read again by a run; `--check_hashes` reads it."""
        note = self.place / ".checked.json"
        noted_at = note.stat().st_mtime_ns
        self.pre_train()
        self.assertEqual(note.stat().st_mtime_ns, noted_at, "nothing was to be compared")
        content = self.path.read_bytes()
        self.path.write_bytes(content[:-4] + bytes(2) + content[-2:])
        with exits_with(65, r"a\.ds: the file has changed .SHA-256.; restore it, or delete .*corpus\.json and adopt"):
            self.pre_train()
        note.write_text(json.dumps({**json.loads(note.read_text()), "a.ds": self.path.stat().st_ctime_ns}))
        self.pre_train()
        with exits_with(65, r"a\.ds: the file has changed"):
            run_cli("corpus", "show", self.place, "--check_hashes")
        cut(self.path, 2)
        with exits_with(65, rf"a\.ds: the file has {len(content) - 2} bytes instead of {len(content)}"):
            self.pre_train()

    def test_a_corpus_beside_its_tokens_may_move_with_them(self):
        moved = self.place.parent / f"{self.place.name}-moved"
        shutil.move(self.place, moved)
        self.assertEqual(adopt(moved, "--validation_fraction", 0.2)[0]["splits"], self.description["splits"])

    def test_a_manifest_that_leads_elsewhere_is_refused(self):
        manifest = json.loads((self.place / "corpus.json").read_text())
        for name in ("../a.ds", "/etc/passwd"):
            changed = json.loads(json.dumps(manifest).replace('"a.ds"', json.dumps(name)))
            (self.place / "corpus.json").write_text(json.dumps(changed))
            with exits_with(65, "not a complete manifest"):
                run_cli("corpus", "show", self.place)

    def test_a_folder_with_a_built_corpus_is_refused(self):
        built = build_corpus(write_lines(texts()))
        with exits_with(78, "holds a corpus that was built, not adopted"):
            adopt(self.place, "--output_dir", built.directory)
        for flags in ([], ["--output_dir", folder() / "corpus"]):
            with exits_with(
                78, f"{built.directory}: holds a corpus that was built; .*--train_corpus {built.directory}"
            ):
                adopt(built.directory, *flags)

    def test_nothing_is_built_over_an_adopted_corpus(self):
        content = self.path.read_bytes()
        with exits_with(78, f"{self.place}: holds an adopted corpus"):
            build_corpus(write_lines(texts()), self.place)
        self.assertEqual(self.path.read_bytes(), content)


class KilledTest(parameterized.TestCase):
    def test_finished_parts_are_kept(self):
        place = folder()
        documents = ids_of(texts(300))
        write_datatrove(place, "a", documents[:-1])
        bad = write_datatrove(place, "b", [[5, 6]])
        flags = ["--unit_megabytes", 0.002]
        with exits_with(65, r"b\.ds: document 0"):
            adopt(place, *flags)
        finished = sorted(place.glob("shard-*/shard.json"))
        self.assertGreater(len(finished), 2)
        times = [path.stat().st_mtime_ns for path in finished]
        write_datatrove(place, "b", documents[-1:])
        self.assertEqual(bad, place / "b.ds")
        adopt(place, *flags)
        with contextlib.redirect_stdout(io.StringIO()):
            run_cli("corpus", "show", place, "--check_hashes", "--num_examples", 0)
        self.assertEqual(sorted(documents_of(place, "train") + documents_of(place, "validation")), sorted(documents))
        self.assertLessEqual(times, [path.stat().st_mtime_ns for path in finished])
