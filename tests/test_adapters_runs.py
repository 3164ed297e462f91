"""Whole runs with adapters: they are saved alone, go on exactly, are scored with both methods and trained further."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from law_worker import LENGTHS, tiny_model, trainer_of
from support import OwnStopRequests, later_wins
from test_resuming import stop_in_evaluation, stop_in_step, untimed
from transformers import set_seed

import fine_tune_t5
from t5suite import load_task
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.adapters import ADAPTERS, adapted
from t5suite.models.loading import load_model
from t5suite.models.weights import read_weights
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.flags.fine_tuning import ModelArguments, SuiteTrainingArguments
from t5suite.training.flags.model import AdapterArguments, adapt_by_flags
from t5suite.training.trainer import SuiteTrainer

ROOT = Path(__file__).parent.parent
RELATIVE = 2e-6
FLAGS = [
    *"--max_train_samples 64 --max_eval_samples 16 --per_device_train_batch_size 16 --max_steps 6".split(),
    *"--eval_strategy steps --eval_steps 2 --logging_steps 3 --learning_rate 1e-2 --optimizer adamw".split(),
    *"--disable_tqdm True --use_cpu --save_total_limit 9".split(),
]
VIRTUAL = {name: ["--num_virtual_tokens", "3"] for name, kind in ADAPTERS.items() if "num_virtual_tokens" in kind.flags}


@functools.cache
def base_folder() -> str:
    folder, tokenizer = tempfile.mkdtemp(), tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(directory, *argv, **patches):
    with mock.patch.multiple(SuiteTrainer, **patches) if patches else mock.patch.dict({}):
        return fine_tune_t5.main(later_wins([*FLAGS, *argv, "--output_dir", str(directory)]))


def flags_of(kind):
    return ["--model_name_or_path", base_folder(), "--adapter", kind, *VIRTUAL.get(kind, [])]


def new_folder() -> Path:
    return Path(tempfile.mkdtemp()) / "run"


@functools.cache
def whole(kind):
    """`(results, directory)` of an uninterrupted run."""
    directory = new_folder()
    return run(directory, *flags_of(kind)), directory


class RunTest(OwnStopRequests):
    def check_files(self, kind):
        _, directory = whole(kind)
        manifest = json.loads((directory / "manifest.json").read_text())
        for folder in (directory, directory / "checkpoint-4"):
            self.assertTrue((folder / "adapter_model.safetensors").is_file())
            self.assertFalse((folder / "model.safetensors").exists())
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            # Adam's two moments and the weights.
            self.assertLess(size, 3 * 4 * manifest["model"]["trained"] + 16000)
        self.assertEqual(manifest["model"]["adapter"], kind)
        self.assertEqual(manifest["model"]["base"], base_folder())

    def check_resumed(self, kind, step):
        expected, reference = whole(kind)
        directory = new_folder()
        with exits_with(75):
            run(directory, *flags_of(kind), **(stop_in_step(step) if step != 4 else stop_in_evaluation(step)))
        self.assertEqual(run(directory, *flags_of(kind)), expected)
        self.assertEqual(untimed(directory), untimed(reference))
        for name in ("adapter_model.safetensors", "checkpoint-6/optimizer.pt"):
            self.assertEqual(*[(path / name).read_bytes() for path in (directory, reference)])

    def check_scored(self, kind):
        expected, directory = whole(kind)
        flags = ["--model_name_or_path", str(directory), "--eval_only"]
        self.assertEqual(run(new_folder(), *flags)["tasks"], expected["tasks"])
        scored = run(new_folder(), *flags, "--eval_method", "score")["tasks"]["sentiment"]
        self.assertEqual(scored["invalid_rate"], 0.0)

    @parameterized.parameters(*ADAPTERS)
    @pytest.mark.slow
    def test_every_kind_is_saved_alone_resumed_exactly_and_scored_as_trained(self, kind):
        self.check_files(kind)
        self.check_resumed(kind, 3)
        self.check_scored(kind)

    @pytest.mark.slow
    def test_an_adapter_is_trained_further(self):
        _, first = whole("lora")
        second = new_folder()
        run(second, "--model_name_or_path", str(first))
        said = json.loads((second / "adapter_base.json").read_text())
        self.assertEqual((said["adapter"], said["base"]), ("lora", base_folder()))
        self.assertFalse((second / "model.safetensors").exists())
        before, after = (read(path) for path in (first, second))
        self.assertEqual(before.keys(), after.keys())
        self.assertFalse(all(torch.equal(before[name], after[name]) for name in before))

    @pytest.mark.slow
    def test_merged_on_request_with_the_same_answers(self):
        directory = new_folder()
        expected = run(directory, *flags_of("lora"), "--merge_adapter")
        self.assertTrue((directory / "merged" / "model.safetensors").is_file())
        found = run(new_folder(), "--model_name_or_path", str(directory / "merged"), "--eval_only")
        self.assertEqual(found["tasks"], expected["tasks"])
        self.assertNotIn("adapter", json.dumps(json.loads((directory / "merged" / "config.json").read_text())))

    @parameterized.parameters(
        (["--adapter", "lora", "--freeze", "encoder"], "--freeze has no effect beside --adapter"),
        (["--merge_adapter"], "there is no adapter"),
        (["--adapter_base", "x"], "--adapter_base has no effect"),
        (["--adapter", "prefix", "--gradient_checkpointing", "True"], "prefix: .*--gradient_checkpointing turns off"),
    )
    def test_flags_that_do_not_go_together(self, flags, message):
        with exits_with(78, message):
            run(new_folder(), "--model_name_or_path", base_folder(), *flags)

    @parameterized.parameters(
        ({"adapter": "prompt_tuning"}, "--adapter prompt_tuning: no virtual tokens under ZeRO-3"),
        ({"adapter": "lora", "merge_adapter": True}, "--merge_adapter: not under ZeRO-3"),
        ({"adapter": "lora"}, "ZeRO-3 needs a saved base model"),
    )
    def test_what_asks_for_whole_weights_is_refused_under_zero3(self, flags, message):
        deepspeed = {"zero_optimization": {"stage": 3}}
        training = types.SimpleNamespace(deepspeed=deepspeed, fsdp=None, gradient_checkpointing=False)
        tokenizer = tiny_tokenizer()
        given = types.SimpleNamespace(adapter=AdapterArguments(**flags), model=ModelArguments(), training=training)
        with exits_with(78, message):
            adapt_by_flags(tiny_model(tokenizer), tokenizer, given, trains=True)


def read(folder) -> dict:
    return read_weights(Path(folder) / "adapter_model.safetensors")


def history(kind, batch_size, accumulation) -> dict:
    """Losses and gradient norms of an adapter's updates, 21 rows in updates of 8."""
    tokenizer = tiny_tokenizer()
    model = load_model(base_folder(), tokenizer=tokenizer)
    set_seed(1)
    given = {"num_virtual_tokens": 3} if kind in VIRTUAL else {}
    model = adapted(model, tokenizer, kind, given, base_name=base_folder())
    task = load_task("mini", "entailment")
    rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(21))
    args = SuiteTrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation, num_train_epochs=2, learning_rate=1e-1, optim="sgd",
        schedule="constant", logging_steps=1, eval_strategy="no", save_strategy="no", disable_tqdm=True,
        use_cpu=True, seed=0,
    )  # fmt: skip
    trainer = trainer_of(model, args, tokenize_split(rows, task, TextEncoding(tokenizer, LENGTHS), "train"), tokenizer)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    return {name: [line[name] for line in logs] for name in ("loss", "grad_norm")}


class LawTest(parameterized.TestCase):
    @parameterized.product(kind=("lora", "ia3", "prompt_tuning", "prefix"), cut=((4, 2), (2, 4)))
    @pytest.mark.slow
    @pytest.mark.law
    def test_cutting_an_update_into_micro_batches_changes_nothing(self, kind, cut):
        expected, found = history(kind, 8, 1), history(kind, *cut)
        self.assertLen(found["loss"], 6)
        for key in ("loss", "grad_norm"):
            for a, b in zip(found[key], expected[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, f"{key}: {found[key]} {expected[key]}")


RANKS = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]


@pytest.mark.slow
@pytest.mark.ranks
class RanksTest(parameterized.TestCase):
    def launch(self, launcher, directory, *flags):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [*launcher, str(ROOT / "fine_tune_t5.py"), *later_wins(FLAGS, flags), "--output_dir", str(directory)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=ROOT)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-4000:])
        return done.stderr

    def losses(self, directory):
        lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        return [line["train/loss"] for line in lines if "train/loss" in line]

    @parameterized.product(kind=("lora", "prompt_tuning"), sharding=("ddp", "zero2"))
    def test_two_ranks_take_the_course_of_one_and_save_the_adapter_alone(self, kind, sharding):
        self.check_course(kind, sharding)

    @parameterized.parameters("lora", "ia3")
    def test_a_base_model_in_pieces_takes_the_course_of_a_whole_one(self, kind):
        self.check_course(kind, "zero3")

    def check_course(self, kind, sharding):
        flags = [*flags_of(kind), "--logging_steps", "1"]
        alone, together = new_folder(), new_folder()
        more = [] if sharding == "ddp" else ["--deepspeed", sharding]
        self.launch([sys.executable], alone, *flags)
        self.launch(RANKS, together, *flags, "--per_device_train_batch_size", "8", *more)
        for a, b in zip(self.losses(together), self.losses(alone), strict=True):
            self.assertLess(abs(a - b) / b, 20 * RELATIVE)
        self.assertFalse((together / "model.safetensors").exists())
        weights = [read(path) for path in (together, alone)]
        self.assertEqual(weights[0].keys(), weights[1].keys())
        for name in weights[0]:
            torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-4, rtol=1e-3)
        found = run(new_folder(), "--model_name_or_path", str(together), "--eval_only")
        results = json.loads((together / "results.json").read_text())
        self.assertEqual(found["tasks"], results["tasks"])
