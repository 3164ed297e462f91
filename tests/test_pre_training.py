"""Whole small runs of pre_train_t5.py with every objective, kind of model and source of text; its evaluation."""

import contextlib
import functools
import gzip
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import absltest, parameterized
from corpus_files import Corpus, byte_tokenizer, is_held_out
from inner_sizes import packed_rows_of
from odd_tokenizers import word_tokenizer
from support import folder, later_wins
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import pre_train_t5
from t5suite.data.objectives import OBJECTIVES, datum_rng
from t5suite.testing import bundled_model, cli_output, exits_with, read_rows, tiny_tokenizer, write_rows
from tools.mini_benchmark.documents import documents

TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
QUICK = ["--disable_tqdm", "True", "--use_cpu", "--logging_steps", "1"]
TINY_OF = {
    "seq2seq": ["--config_overrides", TINY],
    "masked": ["--config_name", "bert", "--tokenizer_name", "WORDPIECE", "--config_overrides",
               "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"],
    "causal": ["--config_name", "gpt2", "--tokenizer_name", "BPE", "--config_overrides", "n_embd=32,n_layer=1,n_head=2"],
}  # fmt: skip
# 21 blocks to train on and one held out: three updates an epoch at an update size of 8, the last one of five.
SMALL = ["--inputs_length", "32", "--validation_fraction", "0.04"]


TEXT = "".join(f"line {number} of a text that is long enough\n" for number in range(90))


def run(*argv, output_dir=None, family="seq2seq"):
    output_dir = output_dir or folder() / "run"
    flags = [*QUICK, *tiny(family), *argv, "--output_dir", str(output_dir)]
    return pre_train_t5.main(later_wins(flags)), Path(output_dir)


def losses(directory, name="train/loss"):
    return [line[name] for line in read_rows(directory / "metrics.jsonl") if name in line]


def written(name, content: bytes):
    path = folder() / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@functools.cache
def small_text(num_blocks=22, tokens_length=33):
    """A file of the bundled text with so many whole blocks."""
    tokenizer, lines, tokens = tiny_tokenizer(), [], 0
    for document in documents("train"):
        if tokens >= num_blocks * tokens_length:
            break
        lines.append(document)
        tokens += len(tokenizer(document, add_special_tokens=False)["input_ids"])
    assert tokens < (num_blocks + 1) * tokens_length * 1.2
    return written("small.txt", "\n".join(lines).encode())


class BareRunTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        flags = ["--max_steps", "16", "--per_device_train_batch_size", "4", "--learning_rate", "1e-2"]
        cls.flags = [*flags, "--warmup_steps", "0", "--eval_steps", "8", "--max_eval_samples", "24"]
        cls.results, cls.directory = run(*cls.flags)

    def test_nll_falls(self):
        nlls = losses(self.directory, "eval/nll")
        self.assertLen(nlls, 2)
        self.assertLess(nlls[1], nlls[0])
        self.assertEqual(self.results["tasks"]["pre_train"]["nll"], nlls[-1])
        train = losses(self.directory)
        self.assertLess(np.mean(train[-4:]), np.mean(train[:4]) - 0.3)

    def test_results_are_returned_and_written(self):
        self.assertEqual(json.loads((self.directory / "results.json").read_text()), self.results)
        self.assertEqual(list(self.results["tasks"]), ["pre_train"])
        metrics = self.results["tasks"]["pre_train"]
        self.assertAlmostEqual(metrics["perplexity"], float(np.exp(metrics["nll"])))

    def test_lengths_are_those_of_the_bundled_text(self):
        settings = json.loads((self.directory / "manifest.json").read_text())["settings"]
        self.assertEqual(settings["inputs_length"], 64)

    @pytest.mark.slow
    def test_a_finished_run_is_not_repeated_and_another_one_is_refused(self):
        results, _ = run(*self.flags, output_dir=self.directory)
        self.assertEqual(results, self.results)
        with exits_with(78, "holds another run .*noise_density"):
            run(*self.flags, "--noise_density", "0.3", output_dir=self.directory)


class LawTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.flags = ["--train_file", str(small_text()), *SMALL, "--max_steps", "10", "--save_steps", "5"]
        cls.flags += ["--validation_fraction", "0.15"]
        cls.flags += ["--eval_steps", "5", "--optim", "sgd", "--learning_rate", "1e-2"]
        cls.results, cls.directory = run(*cls.flags, "--per_device_train_batch_size", "8")

    @pytest.mark.slow
    def test_the_text_has_the_blocks_that_these_tests_count_on(self):
        manifest = json.loads((self.directory / "manifest.json").read_text())
        counts = manifest["data"]["examples"]
        self.assertIn(counts["an_epoch"] % 8, range(1, 8), "the last update must be smaller")
        self.assertGreater(counts["held_out"], 0)
        self.assertGreater(manifest["training"]["epoch"], 2)

    @pytest.mark.slow
    def test_the_same_seed_gives_the_same_run(self):
        results, directory = run(*self.flags, "--per_device_train_batch_size", "8")
        self.assertEqual(results, self.results)
        self.assertEqual(losses(directory), losses(self.directory))
        _, other = run(*self.flags, "--per_device_train_batch_size", "8", "--seed", "7")
        self.assertNotEqual(losses(other), losses(self.directory))

    @parameterized.parameters((4, 2), (2, 4))
    @pytest.mark.slow
    @pytest.mark.law
    def test_the_cut_into_micro_batches_does_not_change_the_losses(self, batch_size, accumulation):
        cut = ["--per_device_train_batch_size", str(batch_size), "--gradient_accumulation_steps", str(accumulation)]
        _, directory = run(*self.flags, *cut)
        np.testing.assert_allclose(losses(directory), losses(self.directory), rtol=1e-5)
        np.testing.assert_allclose(losses(directory)[0], losses(self.directory)[0], rtol=2e-6)
        norms = [losses(d, "train/grad_norm")[0] for d in (directory, self.directory)]
        np.testing.assert_allclose(*norms, rtol=1e-5)


# Noise of held-out blocks has a seed of its own, so that runs of any seed are scored alike.
EVALUATION_SEED = 2**63


class EvaluationTest(parameterized.TestCase):
    """Held-out blocks, scored by a model with dropout; targets of a prefix LM differ in length."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        validation_file = small_text(13, 33)
        cls.flags = ["--train_file", str(small_text()), "--validation_file", str(validation_file)]
        cls.flags += ["--objective", "prefix_lm", "--inputs_length", "32", "--learning_rate", "1e-2"]
        cls.flags += ["--config_overrides", f"{TINY},dropout_rate=0.3", "--max_steps", "3"]
        cls.flags += ["--per_device_train_batch_size", "4"]

    @classmethod
    @functools.cache
    def scored(cls, batch_size):
        """`(results, directory)` of a run with an evaluation after each step."""
        return run(*cls.flags, "--per_device_eval_batch_size", str(batch_size), "--eval_steps", "1")

    @parameterized.parameters(4, 8)
    @pytest.mark.quick_cases(1)
    def test_nll_is_the_mean_over_all_target_tokens_at_any_batch_size(self, batch_size):
        self.check_nll(batch_size)

    @parameterized.parameters(1, 64)
    @pytest.mark.slow
    def test_nll_is_that_mean_block_by_block_and_in_a_single_batch(self, batch_size):
        self.check_nll(batch_size)

    def check_nll(self, batch_size):
        results, directory = self.scored(batch_size)
        model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
        tokens = Corpus(directory / "corpus" / "validation").tokens("validation")
        block_length = OBJECTIVES["prefix_lm"].block(32, eos_id=1).tokens_length
        num_blocks = len(tokens) // block_length
        self.assertGreater(num_blocks, 8)
        total, count = 0.0, 0
        for index in range(num_blocks):
            block = tokens[index * block_length : (index + 1) * block_length]
            sides = OBJECTIVES["prefix_lm"](block, datum_rng(EVALUATION_SEED, index), eos_id=1)
            inputs, labels = (torch.from_numpy(side)[None] for side in sides)
            with torch.no_grad():
                log_probs_TV = model(input_ids=inputs, labels=labels).logits[0].double().log_softmax(-1)
            total -= log_probs_TV.gather(1, labels.T).sum().item()
            count += labels.numel()
        self.assertNotEqual(count % num_blocks, 0, "the targets must differ in length")
        np.testing.assert_allclose(results["tasks"]["pre_train"]["nll"], total / count, rtol=2e-6)
        self.assertEqual(losses(directory, "eval/nll")[-1], results["tasks"]["pre_train"]["nll"])

    def test_a_batch_that_does_not_fit_names_the_flag_that_makes_it_smaller(self):
        no_memory = torch.OutOfMemoryError("CUDA out of memory")
        advice = "^pre_train: out of memory in an evaluation batch of 8 rows .*; use --per_device_eval_batch_size 4$"
        with mock.patch("torch.nn.functional.cross_entropy", side_effect=no_memory), exits_with(71, advice):
            run(*self.flags, "--per_device_eval_batch_size", "8", "--eval_on_start", "True")

    @pytest.mark.slow
    def test_an_evaluation_in_the_midst_of_training_changes_no_step(self):
        """Dropout is off while it lasts, and on again afterwards."""
        _, scored = self.scored(4)
        _, unscored = run(*self.flags, "--eval_strategy", "no")
        self.assertLen(losses(scored, "eval/nll"), 3)
        self.assertEqual(losses(scored), losses(unscored))


class DocumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("a.txt", b"fine\nw\xff\n", "a.txt:2: not UTF-8 .byte 1 is 0xff"),
        ("a.jsonl", b'{"txt": "one"}', "a.jsonl:1: no column 'text' .--text_column_name.; did you mean txt"),
        ("a.txt", b"one document", "no document is held out at --validation_fraction 0.4; raise it"),
        ("a.txt", b"too\nshort\nfor\na\nblock\n", "[0-9]+ tokens, less than one block of 568"),
    )
    def test_bad_files_are_refused_by_line(self, name, content, message):
        with exits_with(65, message):
            run("--train_file", str(written(name, content)), "--validation_fraction", "0.4")

    def test_a_refused_run_does_not_stand_in_the_way_of_another_held_out_share(self):
        start = functools.partial(run, "--train_file", str(short_text()), *ONE_UPDATE, output_dir=folder() / "run")
        for fraction in ("0.4", "0.5"):
            with exits_with(65, "less than one block"):
                start("--validation_fraction", fraction)

    def test_a_refused_run_does_not_stand_in_the_way_of_more_text(self):
        _, directory = run_after_a_refusal()
        self.assertTrue((directory / "metrics.jsonl").is_file())

    def test_the_corpus_of_a_run_that_has_trained_is_not_rebuilt(self):
        path, directory = run_after_a_refusal()
        before = (directory / "corpus/train/corpus.json").read_bytes()
        path.write_text(TEXT + TEXT)
        flags = ["--train_file", str(path), *FORTY_PERCENT, *ONE_UPDATE]
        with exits_with(78, "the data of this run have changed"):
            run(*flags, "--max_steps", "2", "--extend", output_dir=directory)
        self.assertEqual((directory / "corpus/train/corpus.json").read_bytes(), before)

    @parameterized.parameters("--train_file", "--train_corpus")
    def test_another_validation_file_leaves_the_tokenized_training_text(self, flag):
        directory = folder() / "run"
        train_file, validation_file = written("a.txt", TEXT.encode()), short_text()
        flags = ["--validation_file", str(validation_file), *ONE_UPDATE]
        with exits_with(65, "less than one block"):
            run("--train_file", str(train_file), *flags, output_dir=directory)
        manifest = directory / "corpus/train/corpus.json"
        before = manifest.stat()
        validation_file.write_text(TEXT)
        text = {"--train_file": train_file, "--train_corpus": manifest.parent}[flag]
        run(flag, str(text), *flags, output_dir=directory)
        self.assertEqual((manifest.stat().st_ino, manifest.stat().st_mtime_ns), (before.st_ino, before.st_mtime_ns))

    def test_a_corpus_to_train_on_is_not_deleted_for_the_validation_file(self):
        """It stands where the run would tokenize the validation file."""
        directory = folder() / "run"
        with exits_with(65, "less than one block"):
            run("--train_file", str(short_text()), *FORTY_PERCENT, *ONE_UPDATE, output_dir=directory)
        corpus = directory / "corpus" / "validation"
        path = str(written("a.txt", TEXT.encode()))
        cli_output("corpus", "build", "--input", path, "--tokenizer_name", bundled_model(), "--output_dir", str(corpus))
        with exits_with(78, f"--train_corpus {corpus}: "):
            run("--train_corpus", str(corpus), "--validation_file", path, *ONE_UPDATE, output_dir=directory)
        self.assertTrue((corpus / "corpus.json").is_file())


FORTY_PERCENT = ["--validation_fraction", "0.4"]  # of the documents are held out
ONE_UPDATE = ["--inputs_length", "32", "--max_steps", "1", "--per_device_train_batch_size", "1"]


def short_text():
    return written("a.txt", b"too\nshort\nfor\na\nblock\n")


@functools.cache
def run_after_a_refusal():
    """`(its text, directory)`: too little text was refused, and more of it was trained on in the same directory."""
    path, directory = short_text(), folder() / "run"
    start = functools.partial(run, "--train_file", str(path), *FORTY_PERCENT, *ONE_UPDATE, output_dir=directory)
    with exits_with(65, "less than one block"):
        start()
    path.write_text(TEXT)
    start()
    return path, directory


class FlagsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--validation_file", "v.txt"], "--validation_file v.txt needs a --train_file"),
        (["--validation_fraction", "1"], "--validation_fraction 1:"),
        (["--inputs_length", "2"], "--inputs_length 2"),
        (["--targets_length", "3"], "--targets_length 3"),
        (["--noise_density", "0.5", "--inputs_length", "2048"], "but the tokenizer has 100 sentinels"),
        (["--metric_for_best_model", "accuracy"], "--metric_for_best_model accuracy"),
        (["--train_sampling_strategy", "group_by_length"], "--train_sampling_strategy group_by_length"),
    )
    def test_impossible_flags_are_refused(self, argv, message):
        with exits_with(78, message):
            run(*argv)

    def test_byt5_has_no_more_sentinels(self):
        flags = ["--tokenizer_name", byte_tokenizer(), "--inputs_length", "32"]
        with exits_with(78, "--num_sentinels 128: ByT5's sentinels are its last 100 bytes"):
            run(*flags, "--num_sentinels", "128", "--dry_run")

    @parameterized.parameters((["--use_cpu"], True), ([], False))
    def test_a_dry_run_lists_what_was_given_and_not_what_the_machine_decides(self, flags, is_listed):
        words = [*tiny("seq2seq"), "--inputs_length", "64", "--max_steps", "7", "--dry_run", *flags]
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()) as printed:
            pre_train_t5.main([*map(str, words), "--output_dir", str(folder() / "run")])
        self.assertRegex(printed.getvalue(), r"--max_steps +7\b")
        self.assertEqual("--use_cpu" in printed.getvalue(), is_listed)

    def test_packing_of_examples_that_share_rows_is_not_called_idle(self):
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(messages), packed_rows_of(128):
            run("--pack", "--objective", "prefix_lm", "--inputs_length", "64", "--dry_run")
        self.assertNotIn("no effect", messages.getvalue())

    def test_a_run_names_flags_without_effect_and_packing_where_blocks_fill_their_rows(self):
        flags = ["--pack", "--inputs_length", "64", "--text_column_name", "body"]
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(messages):
            run(*flags, "--train_file", str(written("a.txt", TEXT.encode())), "--dry_run")
        self.assertEqual(re.findall(r"--(\w+) has no effect", messages.getvalue()), ["text_column_name", "pack"])

    def test_lengths_follow_the_text_and_a_yaml_file_comes_first(self):
        settings = settings_of_a_run_without_accelerator()
        names = ("inputs_length", "noise_density", "learning_rate")
        self.assertEqual([settings[name] for name in names], [512, 0.25, 2e-3])


@functools.cache
def settings_of_a_run_without_accelerator() -> dict:
    """The settings in the manifest of a run over a longer text; a YAML file names it."""
    source = written("a.txt", TEXT.encode() * 20)
    path = written("run.yaml", f"train_file: {source}\nnoise_density: 0.25\nlearning_rate: 1e-3\n".encode())
    step = ["--max_steps", "1", "--per_device_train_batch_size", "1", "--save_strategy", "no"]
    directory = folder() / "run"
    flags = ["--disable_tqdm", "True", *tiny("seq2seq"), *step, "--learning_rate", "2e-3"]
    with mock.patch("torch.accelerator.is_available", return_value=False):
        pre_train_t5.main([str(path), *flags, "--output_dir", str(directory)])
    return json.loads((directory / "manifest.json").read_text())["settings"]


ROOT = Path(__file__).parent.parent


@functools.cache
def text():
    """300 documents of the bundled text, as JSON lines."""
    path = Path(tempfile.mkdtemp()) / "text.jsonl"
    write_rows(path, [{"text": document} for document in documents("train")[:300]])
    return str(path)


@functools.cache
def tokenizer(kind):
    directory = str(folder() / kind)
    words = f"tokenizer train --type {kind} --input {text()} --output_dir {directory} --vocab_size 600"
    cli_output(*words.split())
    return directory


def tiny(family):
    return [tokenizer(flag.lower()) if flag in ("WORDPIECE", "BPE") else flag for flag in TINY_OF[family]]


def run_of(*argv, family="seq2seq"):
    """`(its results of pre-training, directory)`, with few blocks scored."""
    results, directory = run("--max_eval_samples", "24", *argv, family=family)
    return results["tasks"]["pre_train"], directory


def entropy(words) -> float:
    """Of the words' own frequencies, in nats."""
    shares = [count / len(words) for count in Counter(words).values()]
    return -sum(share * math.log(share) for share in shares)


class UnigramTest(parameterized.TestCase):
    @parameterized.parameters("[UNK]", "[SEP]")
    @pytest.mark.quick_cases(1)
    def test_entropies_are_those_of_the_targets_frequencies(self, end):
        """Targets are as the samples show them: words, and the end of each document, which is no text."""
        place = folder()
        word_tokenizer().save_pretrained(place / "words")
        AutoTokenizer.from_pretrained(place / "words", eos_token=end).save_pretrained(place / "words")
        (place / "held_out.txt").write_text("it is wet .\n\n" * 150 + "wet wet it rains\n\n" * 150)
        (place / "train.txt").write_text("it rains .\n\n" * 20)
        flags = {
            "objective": "causal_lm", "config_name": "gpt2", "config_overrides": "n_embd=32,n_layer=1,n_head=2",
            "tokenizer_name": place / "words", "train_file": place / "train.txt", "max_steps": 1, "inputs_length": 8,
            "validation_file": place / "held_out.txt", "num_samples": 999, "output_dir": place / "run",
        }  # fmt: skip
        results = pre_train_t5.main([*QUICK, *(f"--{name}={value}" for name, value in flags.items())])
        metrics = results["tasks"]["pre_train"]
        targets = [line["target"] for line in read_rows(place / "run/samples.jsonl") if "final" in line]
        tokens = " ".join(targets).split()
        self.assertContainsSubset({"it", "rains", end}, tokens)
        self.assertGreater(len(targets), 150)  # in several batches
        self.assertAlmostEqual(metrics["unigram_nll"], entropy(tokens))
        self.assertAlmostEqual(metrics["unigram_nll_text"], entropy([token for token in tokens if token != end]))


TINY_BART = ["--config_name", "bart", "--inputs_length", "64", "--config_overrides",
             "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2,"
             "encoder_ffn_dim=16,decoder_ffn_dim=16,max_position_embeddings=64"]  # fmt: skip
LEARN = ["--max_steps", "30", "--learning_rate", "1e-2", "--warmup_steps", "0", "--per_device_train_batch_size", "8"]


class ObjectivesTest(parameterized.TestCase):
    @parameterized.parameters(*OBJECTIVES)
    @pytest.mark.slow
    def test_every_objective_is_learnt_by_a_model_of_its_family(self, objective):
        family = OBJECTIVES[objective].family
        flags = ["--objective", objective, "--train_file", text(), "--inputs_length", "48", "--eval_on_start"]
        results, directory = run_of(*LEARN, *flags, family=family)
        first, *_, last = losses(directory, "eval/nll")
        self.assertLess(last, first - 0.5)
        self.assertEqual(results["nll"], last)
        self.assertTrue((directory / "README.md").read_text().count(objective))
        self.assertGreater(results["unigram_nll"], 1)

    @pytest.mark.slow
    def test_packed_rows_give_the_losses_of_unpacked_ones(self):
        flags = ["--objective", "prefix_lm", "--train_file", text(), "--inputs_length", "32", "--max_steps", "4"]
        flags += ["--per_device_train_batch_size", "8", "--optim", "sgd", "--learning_rate", "1e-2"]
        _, apart = run_of(*flags)
        with packed_rows_of(64):
            _, packed = run_of(*flags, "--pack")
        np.testing.assert_allclose(losses(packed), losses(apart), rtol=2e-6)
        np.testing.assert_allclose(losses(packed, "train/grad_norm"), losses(apart, "train/grad_norm"), rtol=1e-5)
        self.assertEqual(losses(packed, "train/tokens_seen"), losses(apart, "train/tokens_seen"))

    @pytest.mark.slow
    def test_tokens_are_counted_once_though_hugging_faces_count_is_asked_for(self):
        flags = ["--train_file", text(), "--inputs_length", "32", "--max_steps", "2"]
        _, plain = run_of(*flags)
        _, counted = run_of(*flags, "--include_num_input_tokens_seen", "True")
        self.assertEqual(losses(counted, "train/tokens_seen"), losses(plain, "train/tokens_seen"))

    @parameterized.parameters(
        (["--objective", "masked_lm"], "seq2seq", "masked_lm is for masked models, not seq2seq"),
        ([], "masked", "is for seq2seq models, not masked: choose masked_lm"),
        (["--objective", "span_coruption"], "seq2seq", "did you mean span_corruption"),
        (["--objective", "ul2", "--mode_tokens", "[R],[S]"], "seq2seq", "give three"),
        (["--objective", "ul2", "--mode_tokens", "[R], ,[S]"], "seq2seq", "give three that differ"),
        (["--objective", "ul2", "--mode_tokens", "[R],[S],[R]"], "seq2seq", "give three that differ"),
        (
            [*TINY_BART, "--objective", "full_lm", "--targets_length", "65"],
            "seq2seq",
            "--targets_length 65: .*64 tokens",
        ),
        (
            [*TINY_BART, "--objective", "iid_denoising", "--noise_density", "0.9"],
            "seq2seq",
            "--targets_length 65: .*64 tokens",
        ),
        (
            ["--streaming", "--max_steps", "1", "--objective", "masked_lm", "--sentence_pairs", "next"],
            "masked",
            "--sentence_pairs next with --streaming",
        ),
        (["--objective", "ul2", "--inputs_length", "512"], "seq2seq", "--num_sentinels"),
        (["--objective", "masked_lm", "--inputs_length", "600"], "masked", "--inputs_length 600.*512"),
    )
    def test_what_does_not_go_together_is_refused(self, flags, family, message):
        with exits_with(78, message):
            run_of("--train_file", text(), *flags, family=family)


class ProcessesTest(absltest.TestCase):
    def test_processes_that_do_not_know_of_each_other_are_refused(self):
        world = mock.patch.dict("os.environ", WORLD_SIZE="2")
        accelerator = mock.patch("torch.accelerator.is_available", return_value=True)
        with world, accelerator, exits_with(78, "2 processes were launched .* finds 1"):
            pre_train_t5.main([*tiny("seq2seq"), "--max_steps", "1", "--output_dir", str(folder() / "run")])

    def test_without_an_accelerator_the_processor_is_meant(self):
        self.assertIs(settings_of_a_run_without_accelerator()["use_cpu"], True)


class SourcesTest(parameterized.TestCase):
    flags = ["--inputs_length", "32", "--max_steps", "6", "--per_device_train_batch_size", "8", "--optim", "sgd"]

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4", "--shuffle_buffer_size", "64"],))
    @pytest.mark.slow
    def test_workers_change_no_step(self, source):
        flags = [*self.flags, "--train_file", text(), *source]
        _, none = run_of(*flags)
        _, two = run_of(*flags, "--dataloader_num_workers", "2")
        self.assertEqual(losses(none), losses(two))
        self.assertLen(set(losses(none)), 6)

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4", "--shuffle_buffer_size", "64"],))
    @pytest.mark.slow
    @pytest.mark.resume
    def test_an_interrupted_run_goes_on_as_if_it_had_not_been(self, source):
        flags = [*self.flags, "--train_file", text(), "--save_steps", "3", *source]
        expected, whole = run_of(*flags)
        interrupted = Path(tempfile.mkdtemp()) / "run"
        shutil.copytree(whole, interrupted)
        shutil.rmtree(interrupted / "checkpoint-6")
        (interrupted / "results.json").unlink()
        run("--max_eval_samples", "24", *flags, output_dir=interrupted)
        self.assertEqual(losses(interrupted), losses(whole))
        for name in ("results.json", "model.safetensors"):
            self.assertEqual((interrupted / name).read_bytes(), (whole / name).read_bytes(), name)
        self.assertEqual(losses(interrupted, "train/tokens_seen"), losses(whole, "train/tokens_seen"))

    @parameterized.parameters("eos", "none")
    @pytest.mark.slow
    def test_a_validation_file_is_the_same_text_however_training_reads_its_own(self, separator):
        rows = [{"text": line} for line in TEXT.splitlines()]
        files = [str(folder() / name) for name in ("trained.jsonl", "held_out.jsonl")]
        for path, part in zip(files, (rows[:60], rows[60:]), strict=True):
            write_rows(path, part)
        flags = ["--train_file", files[0], "--validation_file", files[1], "--document_separator", separator]
        step = [*ONE_UPDATE, "--learning_rate", "0", "--save_strategy", "no"]
        scores = [run(*flags, *step, *source)[0]["tasks"] for source in ([], ["--streaming"])]
        self.assertEqual(scores[0], scores[1])

    @pytest.mark.slow
    def test_a_stream_scores_held_out_documents_alone(self):
        """What the untrained model says of them is what it says of a file that holds nothing else."""
        files = [str(Path(tempfile.mkdtemp()) / name) for name in ("trained.jsonl", "held_out.jsonl")]
        for path, of_held_out in zip(files, (False, True), strict=True):
            write_rows(path, [line for line in read_rows(text()) if is_held_out(line["text"], 0.1) == of_held_out])
        flags = [*self.flags, "--streaming", "--max_steps", "1", "--learning_rate", "0", "--max_eval_samples", "999"]
        results, directory = run_of(*flags, "--train_file", text(), "--validation_fraction", "0.1")
        self.assertEqual(results, run_of(*flags, "--train_file", files[0], "--validation_file", files[1])[0])
        self.assertTrue(list(directory.glob("checkpoint-1/stream-rank-0.json")))

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4"],))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_ranks_change_no_step(self, source):
        """Two torchrun processes against one: the same losses at every step but for the order of sums."""
        flags = [*QUICK, *TINY_OF["seq2seq"], *self.flags, "--train_file", text(), *source]
        flags.remove("--use_cpu")  # the run finds out by itself that there is no accelerator
        flags += ["--max_eval_samples", "23", "--per_device_eval_batch_size", "8"]  # three batches, the last of seven
        directories = []
        for launcher, batch in (
            ((), "8"),
            (("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"), "4"),
        ):
            directory = Path(tempfile.mkdtemp()) / "run"
            words = later_wins(flags, ["--per_device_train_batch_size", batch, "--output_dir", str(directory)])
            done = subprocess.run(
                [sys.executable, *launcher, str(ROOT / "pre_train_t5.py"), *words],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            directories.append(directory)
        one, two = directories
        np.testing.assert_allclose(losses(two), losses(one), rtol=2e-6)
        self.assertEqual(losses(two, "train/tokens_seen"), losses(one, "train/tokens_seen"))
        np.testing.assert_allclose(losses(two, "eval/nll"), losses(one, "eval/nll"), rtol=1e-6)
