"""`t5suite corpus`: what is built and shown, a killed build that goes on, and flags that are wrong."""

import contextlib
import io
import json
import random
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from absl.testing import parameterized
from corpus_files import Corpus, files_of
from support import folder
from tokenizer_folders import gpt2_tokenizer
from transformers import AutoTokenizer

import pre_train_t5
from t5suite.data.objectives import OBJECTIVES
from t5suite.testing import TINY_T5, bundled_model, exits_with, run_cli

WORDS = "the cook praised king at noon . guard saw a boat in store and left".split()


def text_file(count=400, name="a.jsonl"):
    rng = random.Random(0)
    path = folder() / name
    texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 60))) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, ""]))
    return path


def call(*argv):
    """`(standard output, standard error)` of `t5suite corpus`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_cli("corpus", *map(str, argv))
    return out.getvalue(), err.getvalue()


def build_flags(source, directory, *more):
    flags = ["--input", source, "--output_dir", directory, "--tokenizer_name", bundled_model()]
    return ["build", *flags, "--unit_megabytes", "0.01", *more]


def ends_within(seconds, pids):
    """Whether all of the processes end in time; those that have ended and wait for their parent count."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    alive = psutil.wait_procs(processes, timeout=seconds)[1]
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


class BuildTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_killed_build_goes_on_and_its_workers_end(self):
        source, killed, whole = text_file(4000), folder(), folder()
        command = [sys.executable, "-m", "t5suite", "corpus", *build_flags(source, killed, "--num_workers", "2")]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("5/"):
                break
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        self.assertGreaterEqual(len(workers), 2)
        self.assertTrue(ends_within(10, workers), "workers must not outlive the build")
        finished = list(killed.glob("shard-*/shard.json"))
        self.assertBetween(len(finished), 5, 60)
        with exits_with(65, "its build is not finished"):
            call("show", killed)
        times = [path.stat().st_mtime_ns for path in finished]
        _, progress = call(*build_flags(source, killed))
        self.assertEqual(int(progress.partition("/")[0]), len(finished), "what was finished is kept")
        self.assertEqual([path.stat().st_mtime_ns for path in finished], times)
        call(*build_flags(source, whole))
        self.assertEqual(files_of(killed), files_of(whole))

    def test_a_summary_is_printed(self):
        source, directory = text_file(), folder()
        out, err = call(*build_flags(source, directory, "--validation_fraction", "0.1"))
        counts = Corpus(directory).manifest["splits"]["train"]
        self.assertIn(f"{counts['documents']} documents, {counts['tokens']} tokens", out)
        self.assertRegex(out, "tokens of a document: mean [0-9.]+; 0% 1, 5% ")
        self.assertIn(f"1 document without text ({source}:401)", err)
        (line,) = call(*build_flags(source, directory, "--validation_fraction", "0.1"), "--json")[0].splitlines()
        self.assertEqual(json.loads(line)["splits"]["train"]["tokens"], counts["tokens"])

    def test_a_job_of_an_array_says_that_others_are_missing(self):
        source, directory = text_file(), folder()
        out, err = call(*build_flags(source, directory, "--shard", "0/2"))
        self.assertEqual(out, "")
        self.assertIn("shard 0/2 is finished", err)
        self.assertIn("train", call(*build_flags(source, directory, "--shard", "1/2"))[0])


class ShowTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source, cls.directory = text_file(), folder()
        call(*build_flags(cls.source, cls.directory))

    def lines(self, *argv):
        return [json.loads(line) for line in call("show", *argv, "--json")[0].splitlines()]

    def test_examples_before_and_after_corruption(self):
        facts, *examples = self.lines(self.directory, "--inputs_length", "64", "--num_examples", "4")
        self.assertLen(examples, 4)
        self.assertEqual(facts["blocks"]["span_corruption"]["tokens_length"], [70])
        for example in examples:
            inputs, targets = example["inputs"].removesuffix("</s>"), example["targets"].removesuffix("</s>")
            self.assertIn("<extra_id_0>", inputs)
            self.assertIn("<extra_id_0>", targets)
            self.assertEqual(_refilled(inputs, targets), example["tokens"].replace(" ", ""))
        out, _ = call("show", self.directory, "--inputs_length", "64", "--num_examples", "1")
        self.assertIn(examples[0]["inputs"], out)

    def test_every_objective_with_inputs_and_targets(self):
        for objective in (name for name, entry in OBJECTIVES.items() if entry.family == "seq2seq"):
            with self.subTest(objective):
                _, *examples = self.lines(self.directory, "--inputs_length", "32", "--objective", objective)
                self.assertLen(examples, 3)

    @parameterized.parameters(("ul2", 384), ("prefix_lm", 512))
    def test_without_a_length_inputs_are_as_long_as_the_objective_allows(self, objective, inputs_length):
        facts, *_ = self.lines(self.directory, "--objective", objective)
        self.assertEqual(facts["blocks"][objective]["inputs_length"], inputs_length)

    def test_blocks_are_as_many_as_training_makes(self):
        """UL2's blocks are of seven lengths: the shorter ones fit where a mean one does not."""
        flags = ["--objective", "ul2", "--inputs_length", "38"]
        blocks = self.lines(self.directory, *flags)[0]["blocks"]["ul2"]
        run_directory = folder() / "run"
        words = ["--train_corpus", self.directory, "--output_dir", run_directory, "--config_overrides", TINY_T5, *flags]
        words += ["--use_cpu", "--disable_tqdm", "True", "--max_steps", "1", "--mode_tokens", "none"]
        pre_train_t5.main([str(word) for word in words])
        examples = json.loads((run_directory / "manifest.json").read_text())["data"]["examples"]
        self.assertEqual((blocks["train"], blocks["validation"]), (examples["an_epoch"], examples["held_out"]))

    def test_a_text_that_is_shorter_than_a_block_has_none(self):
        blocks = self.lines(self.directory)[0]["blocks"]["span_corruption"]
        self.assertLess(Corpus(self.directory).manifest["splits"]["validation"]["tokens"], blocks["tokens_length"][0])
        self.assertEqual(blocks["validation"], 0)


class WithoutSentinelsTest(parameterized.TestCase):
    def test_a_corpus_whose_tokenizer_has_no_sentinels_is_shown_without_blocks(self):
        directory = folder()
        flags = ["--input", text_file(), "--output_dir", directory, "--tokenizer_name", gpt2_tokenizer()]
        call("build", *flags)
        out, err = call("show", directory)
        self.assertIn(f"{Corpus(directory).manifest['splits']['train']['documents']} documents", out)
        self.assertNotIn("block", out)
        self.assertRegex(err, "note: no blocks of span_corruption are shown.* has no sentinels")
        self.assertNotIn("blocks", json.loads(call("show", directory, "--json")[0]))
        with exits_with(78, "has no sentinels"):
            call("show", directory, "--objective", "span_corruption")

    def test_a_tokenizer_that_the_corpus_names_by_a_path_from_elsewhere_is_asked_for(self):
        place = folder()
        corpus, moved = place / "corpus", place / "tokenizer"
        shutil.copytree(bundled_model(), moved)
        with contextlib.chdir(place):
            call("build", "--input", text_file(), "--output_dir", corpus, "--tokenizer_name", "./tokenizer")
        with exits_with(78, f"{corpus}/corpus.json names a tokenizer .*; give --tokenizer_name .*'./tokenizer'"):
            call("show", corpus)
        self.assertIn("\nblock 0", call("show", corpus, "--tokenizer_name", moved)[0])

    def test_a_corpus_whose_tokenizer_has_few_sentinels_is_shown_without_blocks_that_need_more(self):
        tokenizer = AutoTokenizer.from_pretrained(gpt2_tokenizer())
        tokenizer.add_tokens([f"<extra_id_{number}>" for number in range(20)], special_tokens=True)
        tokenizer_folder, directory = folder(), folder() / "corpus"
        tokenizer.save_pretrained(tokenizer_folder)
        call("build", "--input", text_file(), "--output_dir", directory, "--tokenizer_name", tokenizer_folder)
        documents = f"{Corpus(directory).manifest['splits']['train']['documents']} documents"
        out, err = call("show", directory)
        self.assertIn(documents, out)
        self.assertRegex(err, "note: no blocks of span_corruption are shown.* has 20 sentinels")
        self.assertIn("\nblock 0", call("show", directory, "--inputs_length", 64)[0])


def _refilled(inputs, targets):
    """The text of span corruption's two sides put together again, without spaces."""
    for number in range(100):
        sentinel, following = f"<extra_id_{number}>", f"<extra_id_{number + 1}>"
        if sentinel not in inputs:
            break
        inputs = inputs.replace(sentinel, targets.partition(sentinel)[2].partition(following)[0])
    return inputs.replace(" ", "")


class FlagsTest(parameterized.TestCase):
    def test_wrong_flags_are_refused(self):
        for argv, exit_code, message in (
            (["bild"], 78, "unknown sub-command 'bild'; did you mean build"),
            (["build", "--input", "x", "--output_dir", "y"], 78, "required: --tokenizer_name"),
            (["show", "nowhere"], 65, "nowhere"),
            (
                ["collocations", "x", "--output_file", "y", "--num_collocations", "0"],
                78,
                "--num_collocations 0: must be",
            ),
            (["collocations", "x", "--output_file", "."], 78, "--output_file .: a folder; name the file"),
            (["show", "x", "--num_examples", "-1"], 78, "--num_examples -1"),
            (["show", "x", "--inputs_length", "1"], 78, "--inputs_length 1: must be at least 4"),
            (["show", "x", "--objective", "masked_lm"], 78, "no inputs and targets .*choose from span"),
        ):
            with self.subTest(message), exits_with(exit_code, message):
                call(*argv)

    @parameterized.parameters("3", "a/b", "3/3", "1/2/3")
    def test_shards_are_numbers(self, text):
        with exits_with(78, "--shard"):
            call(*build_flags("x", "y", "--shard", text))
