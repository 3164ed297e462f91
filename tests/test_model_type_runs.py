"""Whole small runs of model types: the final model is the best checkpoint, a resumed run equals an unbroken one."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import absltest, parameterized
from later_flags import later_wins
from law_worker import trainer_of
from model_types import TYPES, configured
from safetensors.torch import load_file
from transformers import set_seed

import fine_tune_t5
import pre_train_t5
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.loading import BUNDLED_MODEL, encoding_for, load_model, load_tokenizer
from t5suite.tasks.registry import Lengths, load_task
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments

SETTINGS = [
    "--per_device_train_batch_size=4", "--max_train_samples=40", "--max_steps=8", "--eval_strategy=steps",
    "--eval_steps=2", "--save_steps=2", "--save_total_limit=8", "--logging_steps=1", "--load_best_model_at_end=True",
]  # fmt: skip
DATA = [
    "--max_eval_samples=16", "--disable_tqdm=True", "--use_cpu", "--max_source_length=48", "--max_target_length=8",
    "--benchmark=mini", "--dataset_name=sentiment", "--seed=3",
]  # fmt: skip
SCRIPT = [str(Path(fine_tune_t5.__file__))]
# A rate at which the last step is not the best.
RATES = {"m2m_100": 0.05, "gpt_neox": 0.05, "gemma3_text": 0.3}


def train(folder: Path, model_type: str, *flags) -> dict:
    rate = RATES.get(model_type, 3e-3)
    config = folder.parent / "config"
    if not config.exists():
        shutil.copytree(configured(model_type), config)
    flags = later_wins(SETTINGS, DATA, [f"--config_name={config}", f"--learning_rate={rate}"], flags)
    return fine_tune_t5.main([*flags, f"--output_dir={folder}"])


def weights(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


def killed_after_step_5(folder: Path, copy: Path) -> None:
    """What is on the disk when a run is killed between two checkpoints; later lines of its metrics stay behind."""
    shutil.copytree(folder, copy, ignore=lambda place, names: [n for n in names if place == str(folder) and n in LATER])


LATER = ("checkpoint-6", "checkpoint-8", "model.safetensors", "results.json", "predictions", "README.md")


class ModelTypeTest(parameterized.TestCase):
    def assert_equal(self, found: dict, expected: dict):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    def check(self, model_type: str, *flags):
        place = Path(tempfile.mkdtemp())
        whole, resumed = place / "whole", place / "resumed"
        results = train(whole, model_type, *flags)
        state = json.loads((whole / "checkpoint-8" / "trainer_state.json").read_text())
        best = state["best_global_step"]
        self.assertLess(best, 8, "the last step is the best: nothing is loaded at the end")
        self.assert_equal(weights(whole), weights(whole / f"checkpoint-{best}"))

        killed_after_step_5(whole, resumed)
        self.assertEqual(train(resumed, model_type, *flags), results)
        self.assert_equal(weights(resumed / "checkpoint-8"), weights(whole / "checkpoint-8"))
        self.assert_equal(weights(resumed), weights(whole))
        self.assertEqual(losses(resumed), losses(whole))

        alone = fine_tune_t5.main(
            [*DATA, *flags, "--eval_only", f"--model_name_or_path={whole}", f"--output_dir={place / 'alone'}"]
        )
        self.assertEqual(alone["tasks"], json.loads((whole / "results.json").read_text())["tasks"])

    def test_the_final_model_is_the_best_and_a_resumed_run_equals_the_unbroken_one(self):
        self.check("gpt_neox")

    @parameterized.parameters(*sorted(TYPES.keys() - {"gpt_neox"}))
    @pytest.mark.slow
    @pytest.mark.resume
    def test_the_same_of_every_type(self, model_type):
        self.check(model_type)

    @parameterized.parameters("switch_transformers", "nllb-moe")
    @pytest.mark.slow
    def test_models_of_experts_score_candidates(self, model_type):
        self.check(model_type, "--eval_method=score")

    @pytest.mark.slow
    def test_scores_of_each_task_are_those_of_its_own_best_weights(self):
        place = Path(tempfile.mkdtemp())
        flags = ["--dataset_name=sentiment,entailment", "--select=per_task", "--eval_method=score"]
        results = train(place / "run", "t5gemma2", *flags)
        for task in ("sentiment", "entailment"):
            best = place / "run" / "best" / task
            data = later_wins(DATA, ["--eval_method=score", f"--dataset_name={task}", "--eval_only"])
            alone = fine_tune_t5.main([*data, f"--model_name_or_path={best}", f"--output_dir={place / task}"])
            self.assertEqual(alone["tasks"][task], results["tasks"][task])

    @pytest.mark.slow
    def test_a_pre_training_run_ends_with_its_best_and_resumes(self):
        place = Path(tempfile.mkdtemp())
        text = place / "text.txt"
        text.write_text(
            "\n\n".join(f"Story {i} is about number {i}, who walks along river {i + 1}." for i in range(400))
        )
        flags = [*SETTINGS, "--use_cpu", "--disable_tqdm=True", f"--train_file={text}", "--inputs_length=48"]
        flags = [flag for flag in flags if "max_train_samples" not in flag]
        flags += [
            f"--config_name={configured('t5gemma2')}",
            f"--tokenizer_name={BUNDLED_MODEL}",
            "--learning_rate=1.0",
            "--schedule=constant",
        ]
        results = pre_train_t5.main([*flags, f"--output_dir={place / 'whole'}"])
        best = json.loads((place / "whole/checkpoint-8/trainer_state.json").read_text())["best_global_step"]
        self.assertLess(best, 8)
        self.assert_equal(weights(place / "whole"), weights(place / "whole" / f"checkpoint-{best}"))
        killed_after_step_5(place / "whole", place / "resumed")
        self.assertEqual(pre_train_t5.main([*flags, f"--output_dir={place / 'resumed'}"]), results)
        self.assert_equal(weights(place / "resumed/checkpoint-8"), weights(place / "whole/checkpoint-8"))

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_end_with_their_best_and_resume(self):
        place = Path(tempfile.mkdtemp())
        flags = [*SETTINGS, *DATA, f"--config_name={configured('t5gemma2')}", "--learning_rate=0.05"]
        flags += ["--ddp_find_unused_parameters=True"]  # nothing reads its vision tower
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *SCRIPT, *flags]

        def run(folder):
            subprocess.run([*command, f"--output_dir={folder}"], check=True, timeout=600, capture_output=True)
            return json.loads((folder / "results.json").read_text())

        results = run(place / "whole")
        best = json.loads((place / "whole/checkpoint-8/trainer_state.json").read_text())["best_global_step"]
        self.assertLess(best, 8)
        self.assert_equal(weights(place / "whole"), weights(place / "whole" / f"checkpoint-{best}"))
        killed_after_step_5(place / "whole", place / "resumed")
        self.assertEqual(run(place / "resumed"), results)
        self.assert_equal(weights(place / "resumed/checkpoint-8"), weights(place / "whole/checkpoint-8"))

    def test_a_rollback_takes_every_weight_of_the_checkpoint(self):
        tokenizer, task = load_tokenizer(None), load_task("mini", "sentiment")
        set_seed(0)
        model = load_model(config_name=configured("t5gemma2"), tokenizer=tokenizer)
        rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(8))
        encoding = encoding_for(model, tokenizer, Lengths(32, 8))
        args = SuiteTrainingArguments(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=2, save_steps=2, learning_rate=1e-2,
            disable_tqdm=True, use_cpu=True, loss_spikes="rollback", eval_strategy="no",
        )  # fmt: skip
        features = tokenize_split(rows, task, tokenizer, Lengths(32, 8), "train", encoding)
        trainer = trainer_of(model, args, features, tokenizer)
        trainer.train()
        expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        self.assertEqual(trainer.checkpoints.roll_back(trainer.model, trainer.optimizer), "checkpoint-2")
        self.assert_equal(model.state_dict(), expected)


if __name__ == "__main__":
    absltest.main()
