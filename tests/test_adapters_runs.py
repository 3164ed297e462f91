"""Whole runs with adapters: they are saved alone, go on exactly, are scored with both methods and trained further."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from safetensors.torch import load_file
from transformers import TrainerCallback

import fine_tune_t5
from t5suite.testing import exits_with, read_rows, run_cli, save_model, tiny_model, tiny_rows, tiny_tuner, write_rows

ROOT = Path(__file__).parent.parent
RELATIVE = 2e-6
FLAGS = {
    "benchmark": "mini", "dataset_name": "sentiment",
    "max_train_samples": 64, "max_eval_samples": 16, "per_device_train_batch_size": 16, "max_steps": 6,
    "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 3, "learning_rate": 1e-2, "optimizer": "adamw",
    "disable_tqdm": True, "use_cpu": True, "save_total_limit": 9,
}  # fmt: skip
ADAPTERS = ("lora", "dora", "ia3", "prompt_tuning", "prefix")
VIRTUAL = {name: {"adapter_args": "num_virtual_tokens=3"} for name in ("prompt_tuning", "prefix")}
# Of the lines of metrics.jsonl: what does not depend on the machine.
COURSE = ("step", "train/loss", "train/grad_norm", "train/learning_rate", "eval/loss", "eval/accuracy", "final/loss")


@functools.cache
def base_folder() -> str:
    return str(save_model(tempfile.mkdtemp(), tiny_model()))


def words_of(flags: dict) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def run(directory, **flags) -> dict:
    return fine_tune_t5.main(words_of({**FLAGS, **flags, "output_dir": directory}))


def flags_of(kind) -> dict:
    return {"model_name_or_path": base_folder(), "adapter": kind, **VIRTUAL.get(kind, {})}


def new_folder() -> Path:
    return Path(tempfile.mkdtemp()) / "run"


class Crash(TrainerCallback):
    """Ends a run with an error after a step, once."""

    def __init__(self, step: int):
        self.step, self.is_over = step, False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and not self.is_over:
            self.is_over = True
            raise RuntimeError("a crash")


def course(directory) -> list[dict]:
    """What a run's metrics say of its weights, line by line."""
    lines = read_rows(directory / "metrics.jsonl")
    return [{name: line[name] for name in COURSE if name in line} for line in lines]


@functools.cache
def whole(kind):
    """`(results, directory)` of an uninterrupted run."""
    directory = new_folder()
    return run(directory, **flags_of(kind)), directory


class RunTest(parameterized.TestCase):
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

    def check_resumed(self, kind, crash):
        expected, reference = whole(kind)
        settings = {**FLAGS, **flags_of(kind), "output_dir": str(new_folder())}
        with self.assertRaisesRegex(RuntimeError, "a crash"):
            tiny_tuner(callbacks=crash, **settings).train()
        tuner = tiny_tuner(callbacks=crash, **settings)
        self.assertEqual(tuner.train(), expected)
        directory = Path(tuner.args.output_dir)
        self.assertEqual(course(directory), course(reference))
        for name in ("adapter_model.safetensors", "checkpoint-6/optimizer.pt"):
            self.assertEqual(*[(path / name).read_bytes() for path in (directory, reference)])

    def check_scored(self, kind):
        expected, directory = whole(kind)
        evaluation = {"model_name_or_path": directory, "eval_only": True}
        self.assertEqual(run(new_folder(), **evaluation)["tasks"], expected["tasks"])
        scored = run(new_folder(), **evaluation, eval_method="score")["tasks"]["sentiment"]
        self.assertEqual(scored["invalid_rate"], 0.0)

    @parameterized.parameters(*ADAPTERS)
    @pytest.mark.slow
    def test_every_kind_is_saved_alone_resumed_exactly_and_scored_as_trained(self, kind):
        self.check_files(kind)
        self.check_resumed(kind, Crash(3))
        self.check_scored(kind)

    @pytest.mark.slow
    def test_an_adapter_is_trained_further(self):
        _, first = whole("lora")
        second = new_folder()
        run(second, model_name_or_path=first)
        record = json.loads((second / "adapter_base.json").read_text())
        self.assertEqual((record["adapter"], record["base"]), ("lora", base_folder()))
        self.assertFalse((second / "model.safetensors").exists())
        before, after = (adapter_weights(path) for path in (first, second))
        self.assertEqual(before.keys(), after.keys())
        self.assertFalse(all(torch.equal(before[name], after[name]) for name in before))

    @pytest.mark.slow
    def test_a_merged_model_gives_the_same_answers(self):
        directory, merged = new_folder(), new_folder()
        expected = run(directory, **flags_of("lora"))
        run_cli("export", "--model_name_or_path", directory, "--output_dir", merged)
        results = run(new_folder(), model_name_or_path=merged, eval_only=True)
        self.assertEqual(results["tasks"], expected["tasks"])

    @parameterized.parameters(
        ({"adapter": "lora", "freeze": "encoder"}, "--freeze has no effect beside --adapter"),
        ({"adapter_base": "x"}, "--adapter_base has no effect"),
        ({"adapter": "prefix", "gradient_checkpointing": True}, "prefix: .*--gradient_checkpointing turns off"),
        (
            {"adapter": "lora", "generation_config": "own.json"},
            "--generation_config own.json: an adapter has the settings",
        ),
    )
    def test_flags_that_do_not_go_together(self, flags, message):
        with exits_with(78, message):
            run(new_folder(), model_name_or_path=base_folder(), **flags)

    def test_a_run_that_began_with_settings_of_generation_goes_on_as_the_refusal_of_the_flag_says(self):
        directory = new_folder()
        settings = {**FLAGS, **flags_of("lora"), "output_dir": str(directory), "callbacks": Crash(3)}
        with self.assertRaisesRegex(RuntimeError, "a crash"):
            tiny_tuner(**settings).train()
        manifest = json.loads((directory / "manifest.json").read_text())
        manifest["settings"]["generation_config"] = "own.json"  # an earlier version took it
        (directory / "manifest.json").write_text(json.dumps(manifest))
        with exits_with(78, "without it by --allow_changed generation_config"):
            tiny_tuner(**settings, generation_config="own.json").train()
        with exits_with(78, "generation_config"):
            tiny_tuner(**settings).train()
        results = tiny_tuner(**settings, allow_changed="generation_config").train()
        self.assertEqual(results["tasks"], whole("lora")[0]["tasks"])


def adapter_weights(folder) -> dict:
    return load_file(Path(folder) / "adapter_model.safetensors")


@functools.cache
def rows_file() -> str:
    return str(write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", tiny_rows("entailment", count=21)))


def history(kind, batch_size, accumulation) -> dict:
    """Losses and gradient norms of an adapter's updates, 21 rows in updates of 8."""
    tuner = tiny_tuner(
        base_folder(), "mini/entailment", adapter=kind, train_file=rows_file(), per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation, num_train_epochs=2, learning_rate=1e-1, optim="sgd",
        schedule="constant", logging_steps=1, seed=0, **VIRTUAL.get(kind, {}),
    )  # fmt: skip
    tuner.train(valid=False)
    lines = [line for line in tuner.history if "train/loss" in line]
    return {name: [line[f"train/{name}"] for line in lines] for name in ("loss", "grad_norm")}


class LawTest(parameterized.TestCase):
    @parameterized.product(kind=("lora", "ia3", "prompt_tuning", "prefix"), cut=((4, 2), (2, 4)))
    @pytest.mark.slow
    @pytest.mark.law
    def test_cutting_an_update_into_micro_batches_changes_nothing(self, kind, cut):
        whole_updates, cut_updates = history(kind, 8, 1), history(kind, *cut)
        self.assertLen(cut_updates["loss"], 6)
        for key in ("loss", "grad_norm"):
            for a, b in zip(cut_updates[key], whole_updates[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, f"{key}: {cut_updates[key]} {whole_updates[key]}")


RANKS = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]


@pytest.mark.slow
@pytest.mark.ranks
class RanksTest(parameterized.TestCase):
    def launch(self, launcher, directory, **flags):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        words = words_of({**FLAGS, **flags, "output_dir": directory})
        command = [*launcher, str(ROOT / "fine_tune_t5.py"), *words]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=ROOT)
        self.assertEqual(process.returncode, 0, (process.stdout + process.stderr)[-4000:])

    def losses(self, directory):
        return [line["train/loss"] for line in read_rows(directory / "metrics.jsonl") if "train/loss" in line]

    @parameterized.product(kind=("lora", "prompt_tuning"), sharding=("ddp", "zero2"))
    def test_two_ranks_take_the_course_of_one_and_save_the_adapter_alone(self, kind, sharding):
        self.check_course(kind, sharding)

    @parameterized.parameters("lora", "ia3")
    def test_a_base_model_in_pieces_takes_the_course_of_a_whole_one(self, kind):
        self.check_course(kind, "zero3")

    def check_course(self, kind, sharding):
        flags = {**flags_of(kind), "logging_steps": 1}
        alone, together = new_folder(), new_folder()
        sharded = {} if sharding == "ddp" else {"deepspeed": sharding}
        self.launch([sys.executable], alone, **flags)
        self.launch(RANKS, together, **flags, per_device_train_batch_size=8, **sharded)
        for a, b in zip(self.losses(together), self.losses(alone), strict=True):
            self.assertLess(abs(a - b) / b, 20 * RELATIVE)
        self.assertFalse((together / "model.safetensors").exists())
        weights = [adapter_weights(path) for path in (together, alone)]
        self.assertEqual(weights[0].keys(), weights[1].keys())
        for name in weights[0]:
            torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-4, rtol=1e-3)
        evaluation = run(new_folder(), model_name_or_path=together, eval_only=True)
        results = json.loads((together / "results.json").read_text())
        self.assertEqual(evaluation["tasks"], results["tasks"])
