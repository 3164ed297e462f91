"""pre_train_t5.py with every objective, kind of model and source of text; the data do not depend on workers or ranks."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import absltest, parameterized
from later_flags import later_wins

sys.path.insert(0, str(Path(__file__).parent.parent))
from shared_data import MISSING, SHARED_DATA
from transformers import AutoTokenizer

import pre_train_t5
from t5suite.base.errors import ConfigError
from t5suite.cli import main as t5suite
from t5suite.data.batches.collators import IGNORED
from t5suite.data.batches.language_model_collators import MaskedLMCollator
from t5suite.data.corpora.documents import bundled_text, is_held_out, read_documents
from t5suite.data.objectives import OBJECTIVES
from t5suite.data.rows.jsonl import read_jsonl, write_jsonl
from t5suite.training.flags.pre_training import PreTrainerArguments
from t5suite.training.run import prepare_process

ROOT = Path(__file__).parent.parent
QUICK = ["--disable_tqdm", "True", "--use_cpu", "--logging_steps", "1", "--max_eval_samples", "24"]
TINY = {
    "seq2seq": ["--config_overrides", "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"],
    "masked": ["--config_name", "bert", "--tokenizer_name", "WORDPIECE", "--config_overrides",
               "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"],
    "causal": ["--config_name", "gpt2", "--tokenizer_name", "BPE", "--config_overrides", "n_embd=32,n_layer=1,n_head=2"],
}  # fmt: skip


@functools.cache
def text():
    """300 documents of the bundled text, as JSON lines."""
    path = Path(tempfile.mkdtemp()) / "text.jsonl"
    documents = [document for document, _ in zip(read_documents(bundled_text("train")), range(300))]
    write_jsonl(path, [{"text": document} for document in documents])
    return str(path)


@functools.cache
def tokenizer(kind):
    """A small tokenizer of the text."""
    folder = Path(tempfile.mkdtemp()) / kind
    size = {"wordpiece": "600", "bpe": "600"}[kind]
    t5suite(
        ["tokenizer", "train", "--type", kind, "--input", text(), "--output_dir", str(folder), "--vocab_size", size]
    )
    return str(folder)


def tiny(family):
    """The flags of a tiny model."""
    trained = {"WORDPIECE": "wordpiece", "BPE": "bpe"}
    return [tokenizer(trained[flag]) if flag in trained else flag for flag in TINY[family]]


def run(*argv, family="seq2seq"):
    directory = Path(tempfile.mkdtemp()) / "run"
    results = pre_train_t5.main(later_wins([*QUICK, *tiny(family), *argv, "--output_dir", str(directory)]))
    return results["tasks"]["pre_train"], directory


def losses(directory, name="train/loss"):
    return [line[name] for line in read_jsonl(directory / "metrics.jsonl") if name in line]


LEARN = ["--max_steps", "30", "--learning_rate", "1e-2", "--warmup_steps", "0", "--per_device_train_batch_size", "8"]


class ObjectivesTest(parameterized.TestCase):
    @parameterized.parameters(*OBJECTIVES)
    def test_every_objective_is_learnt_by_a_model_of_its_family(self, objective):
        family = OBJECTIVES[objective].family
        flags = ["--objective", objective, "--train_file", text(), "--inputs_length", "48", "--eval_on_start"]
        results, directory = run(*LEARN, *flags, family=family)
        first, *_, last = losses(directory, "eval/nll")
        self.assertLess(last, first - 0.5)
        self.assertEqual(results["nll"], last)
        self.assertTrue((directory / "README.md").read_text().count(objective))
        self.assertGreater(results["unigram_nll"], 1)

    @parameterized.parameters("next", "order")
    def test_sentence_pairs_are_learnt_beside_the_tokens(self, kind):
        model = {"next": "bert", "order": "albert"}[kind]
        flags = ["--objective", "masked_lm", "--sentence_pairs", kind, "--config_name", model, "--train_file", text()]
        results, directory = run(*LEARN, *flags, "--inputs_length", "48", family="masked")
        self.assertBetween(results["pair_accuracy"], 20, 100)
        self.assertLess(losses(directory)[-1], losses(directory)[0] - 0.5)

    def masked(self, *flags):
        """`(tokens, which of them are hidden)` of every row of a short run, without [CLS] and [SEP]."""
        batches, collate = [], MaskedLMCollator.__call__

        def kept(collator, examples):
            batches.append(collate(collator, examples))
            return batches[-1]

        with mock.patch.object(MaskedLMCollator, "__call__", kept):
            run("--objective", "masked_lm", "--inputs_length", "256", "--max_steps", "2", *flags, family="masked")
        ids, labels = (torch.cat([batch[name] for batch in batches if len(batch[name]) > 1])[:, 1:-1].numpy()
                       for name in ("input_ids", "labels"))  # fmt: skip
        return np.where(labels == IGNORED, ids, labels), labels != IGNORED

    @parameterized.parameters("word", "ngram")
    def test_no_word_is_masked_in_part(self, units):
        tokens, hidden = self.masked("--mask_units", units, "--train_file", text())
        pieces = AutoTokenizer.from_pretrained(tokenizer("wordpiece"))
        goes_on = np.array([pieces.convert_ids_to_tokens(i).startswith("##") for i in range(len(pieces))])[tokens]
        self.assertGreater((goes_on & hidden).sum(), 20)
        np.testing.assert_array_equal(hidden[:, 1:][goes_on[:, 1:]], hidden[:, :-1][goes_on[:, 1:]])

    def test_masked_spans_are_of_several_tokens(self):
        _, hidden = self.masked("--mask_units", "span", "--train_file", text())
        runs = hidden[:, 0].sum() + (hidden[:, 1:] & ~hidden[:, :-1]).sum()
        self.assertBetween(hidden.sum() / runs, 2, 5)  # one by one: 1.2

    def test_no_collocation_is_masked_in_part(self):
        corpus, table = (str(Path(tempfile.mkdtemp()) / name) for name in ("corpus", "collocations.jsonl"))
        build = ["corpus", "build", "--input", text(), "--output_dir", corpus, "--tokenizer_name"]
        t5suite([*build, tokenizer("wordpiece"), "--validation_fraction", "0.1"])
        t5suite(["corpus", "collocations", corpus, "--output_file", table, "--min_count", "5"])
        flags = ["--train_corpus", corpus, "--mask_units", "pmi"]
        tokens, hidden = self.masked(*flags, "--collocations", table)
        known = {tuple(line["ids"]) for line in read_jsonl(table)[1:]}
        whole = 0
        for row, mask in zip(tokens.tolist(), hidden.tolist()):
            place = 0
            while place < len(row):  # the longest that begins here
                length = next((n for n in range(5, 1, -1) if tuple(row[place : place + n]) in known), 1)
                self.assertLen(set(mask[place : place + length]), 1)
                whole += length > 1 and mask[place]
                place += length
        self.assertGreater(whole, 20)
        with self.assertRaisesRegex(ValueError, "collocations"):
            self.masked(*flags)

    def test_packed_rows_give_the_losses_of_unpacked_ones(self):
        flags = ["--objective", "prefix_lm", "--train_file", text(), "--inputs_length", "32", "--max_steps", "4"]
        flags += ["--per_device_train_batch_size", "8", "--optim", "sgd", "--learning_rate", "1e-2"]
        _, apart = run(*flags)
        _, packed = run(*flags, "--pack", "--row_inputs_length", "64", "--row_targets_length", "64")
        np.testing.assert_allclose(losses(packed), losses(apart), rtol=2e-6)
        np.testing.assert_allclose(losses(packed, "train/grad_norm"), losses(apart, "train/grad_norm"), rtol=1e-5)
        self.assertEqual(losses(packed, "train/tokens_seen"), losses(apart, "train/tokens_seen"))

    @parameterized.parameters(
        (
            ["--objective", "masked_lm"],
            "seq2seq",
            "--objective masked_lm is for masked models, but the model is seq2seq",
        ),
        ([], "masked", "is for seq2seq models, but the model is masked: choose masked_lm"),
        (["--objective", "span_coruption"], "seq2seq", "did you mean span_corruption"),
        (["--objective", "ul2", "--mode_tokens", "[R],[S]"], "seq2seq", "give three"),
        (["--objective", "ul2", "--inputs_length", "512"], "seq2seq", "--num_sentinels"),
        (["--objective", "masked_lm", "--inputs_length", "600"], "masked", "--inputs_length 600.*512"),
    )
    def test_what_does_not_go_together_is_refused(self, flags, family, message):
        with self.assertRaisesRegex(ConfigError, message):
            run("--train_file", text(), *flags, family=family)


class ProcessesTest(absltest.TestCase):
    def test_processes_that_do_not_know_of_each_other_are_refused(self):
        with mock.patch.dict("os.environ", WORLD_SIZE="2"):
            args = SimpleNamespace(
                process_index=0,
                disable_tqdm=True,
                verbose=False,
                world_size=1,
                seed=1,
                n_gpu=0,
                halving_asked_for=False,
            )
            with self.assertRaisesRegex(ConfigError, "2 processes were launched .* finds 1"):
                prepare_process(args)

    def test_without_an_accelerator_the_processor_is_meant(self):
        with mock.patch("torch.accelerator.is_available", return_value=False):
            self.assertTrue(PreTrainerArguments(output_dir=tempfile.mkdtemp()).use_cpu)


class SourcesTest(parameterized.TestCase):
    flags = ["--inputs_length", "32", "--max_steps", "6", "--per_device_train_batch_size", "8", "--optim", "sgd"]

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4", "--shuffle_buffer_size", "64"],))
    def test_workers_change_no_step(self, source):
        flags = [*self.flags, "--train_file", text(), *source]
        _, none = run(*flags)
        _, two = run(*flags, "--dataloader_num_workers", "2")
        self.assertEqual(losses(none), losses(two))
        self.assertLen(set(losses(none)), 6)

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4"],))
    def test_corpora_are_mixed_by_weight(self, source):
        other = bundled_text("validation")
        flags = [*self.flags, "--train_file", text(), str(other), *source]
        _, even = run(*flags, "--corpus_weights", "1", "1")
        _, uneven = run(*flags, "--corpus_weights", "9", "1")
        self.assertNotEqual(losses(even), losses(uneven))

    def test_a_built_corpus_gives_the_run_of_its_file(self):
        folder = str(Path(tempfile.mkdtemp()) / "corpus")
        build = ["corpus", "build", "--input", text(), "--output_dir", folder, "--validation_fraction", "0.05"]
        t5suite([*build, "--tokenizer_name", str(ROOT / "t5suite" / "data" / "mini" / "model")])
        _, of_file = run(*self.flags, "--train_file", text())
        _, of_corpus = run(*self.flags, "--train_corpus", folder)
        self.assertEqual(losses(of_file), losses(of_corpus))
        self.assertEqual(losses(of_file, "eval/nll"), losses(of_corpus, "eval/nll"))

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4", "--shuffle_buffer_size", "64"],))
    def test_an_interrupted_run_goes_on_as_if_it_had_not_been(self, source):
        flags = [*self.flags, "--train_file", text(), "--save_steps", "3", *source]
        expected, whole = run(*flags)
        interrupted = Path(tempfile.mkdtemp()) / "run"
        shutil.copytree(whole, interrupted)
        shutil.rmtree(interrupted / "checkpoint-6")
        (interrupted / "results.json").unlink()
        pre_train_t5.main(later_wins([*QUICK, *tiny("seq2seq"), *flags, "--output_dir", str(interrupted)]))
        self.assertEqual(losses(interrupted), losses(whole))
        for name in ("results.json", "model.safetensors"):
            self.assertEqual((interrupted / name).read_bytes(), (whole / name).read_bytes(), name)
        self.assertEqual(losses(interrupted, "train/tokens_seen"), losses(whole, "train/tokens_seen"))

    def test_a_stream_scores_held_out_documents_alone(self):
        """What the untrained model says of them is what it says of a file that holds nothing else."""
        files = [str(Path(tempfile.mkdtemp()) / name) for name in ("trained.jsonl", "held_out.jsonl")]
        for path, wanted in zip(files, (False, True), strict=True):
            write_jsonl(path, [line for line in read_jsonl(text()) if is_held_out(line["text"], 0.1) == wanted])
        flags = [*self.flags, "--streaming", "--max_steps", "1", "--learning_rate", "0", "--max_eval_samples", "999"]
        results, directory = run(*flags, "--train_file", text(), "--validation_fraction", "0.1")
        self.assertEqual(results, run(*flags, "--train_file", files[0], "--validation_file", files[1])[0])
        self.assertTrue(list(directory.glob("checkpoint-1/stream-rank-0.json")))

    @parameterized.parameters(([],), (["--streaming", "--num_virtual_streams", "4"],))
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_ranks_change_no_step(self, source):
        """Two torchrun processes against one: the same losses at every step but for the order of sums."""
        flags = [*QUICK, *TINY["seq2seq"], *self.flags, "--train_file", text(), *source]
        flags.remove("--use_cpu")  # found out by itself where there is no accelerator
        found = []
        for launcher, batch in (
            ((), "8"),
            (("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"), "4"),
        ):
            directory = Path(tempfile.mkdtemp()) / "run"
            given = later_wins(flags, ["--per_device_train_batch_size", batch, "--output_dir", str(directory)])
            done = subprocess.run(
                [sys.executable, *launcher, str(ROOT / "pre_train_t5.py"), *given],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            found.append(directory)
        one, two = found
        np.testing.assert_allclose(losses(two), losses(one), rtol=2e-6)
        self.assertEqual(losses(two, "train/tokens_seen"), losses(one, "train/tokens_seen"))
        np.testing.assert_allclose(losses(two, "eval/nll"), losses(one, "eval/nll"), rtol=1e-6)


# Encoder-only and decoder-only models of transformers, small; BigBird needs small blocks to stay block-sparse.
BERT_SIZE = "hidden_size=64,num_hidden_layers=2,num_attention_heads=2,intermediate_size=128"
ARCHITECTURES = {
    "bert": ("masked", BERT_SIZE, 128),
    "roformer": ("masked", BERT_SIZE, 128),
    "modernbert": ("masked", BERT_SIZE, 128),
    "big_bird": ("masked", f"{BERT_SIZE},attention_type=block_sparse,block_size=8,num_random_blocks=2", 256),
    "gpt2": ("causal", "n_embd=64,n_layer=2,n_head=2", 128),
    "llama": (
        "causal", "hidden_size=64,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2,intermediate_size=128", 128,
    ),
}  # fmt: skip


@pytest.mark.slow
class ArchitecturesTest(parameterized.TestCase):
    """50 steps each on real text."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not SHARED_DATA.exists():
            raise cls.skipTest(cls(), MISSING)
        cls.text = [str(SHARED_DATA / "text" / name) for name in ("inaugural.jsonl", "state_union.jsonl")]
        cls.tokenizers = {}
        for kind, family in (("wordpiece", "masked"), ("bpe", "causal")):
            folder = str(Path(tempfile.mkdtemp()) / kind)
            train = ["tokenizer", "train", "--type", kind, "--input", *cls.text, "--output_dir", folder]
            t5suite([*train, "--vocab_size", "4000"])
            cls.tokenizers[family] = folder

    @parameterized.parameters(*ARCHITECTURES)
    def test_fifty_steps_lower_the_loss(self, name):
        family, overrides, length = ARCHITECTURES[name]
        directory = Path(tempfile.mkdtemp()) / "run"
        pre_train_t5.main([
            *QUICK, "--config_name", name, "--config_overrides", overrides, "--tokenizer_name", self.tokenizers[family],
            "--objective", {"masked": "masked_lm", "causal": "causal_lm"}[family], "--train_file", *self.text,
            "--inputs_length", str(length), "--max_steps", "50", "--learning_rate", "3e-3", "--eval_on_start",
            "--per_device_train_batch_size", "8", "--save_strategy", "no", "--output_dir", str(directory),
        ])  # fmt: skip
        first, *_, last = losses(directory, "eval/nll")
        self.assertLess(last, first - 1)
        self.assertLess(np.mean(losses(directory)[-5:]), losses(directory)[0] - 1)


if __name__ == "__main__":
    absltest.main()
