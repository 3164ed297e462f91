"""Whole small runs of model types: the final model is the best checkpoint, a resumed run equals an unbroken one."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import absltest, parameterized
from model_types import TYPES, configured
from safetensors.torch import load_file

import fine_tune_t5

SETTINGS = [
    "--per_device_train_batch_size=4", "--max_train_samples=40", "--max_steps=8", "--eval_strategy=steps",
    "--eval_steps=2", "--save_steps=2", "--save_total_limit=8", "--logging_steps=1", "--load_best_model_at_end=True",
]  # fmt: skip
DATA = [
    "--max_eval_samples=16", "--disable_tqdm=True", "--use_cpu", "--max_source_length=48", "--max_target_length=8",
    "--benchmark=mini", "--dataset_name=sentiment", "--seed=3",
]  # fmt: skip
# A rate at which the last step is not the best.
RATES = {"m2m_100": 0.05, "gpt_neox": 0.05, "gemma3_text": 0.05}


def train(folder: Path, model_type: str, *flags) -> dict:
    rate = RATES.get(model_type, 3e-3)
    config = folder.parent / "config"
    if not config.exists():
        shutil.copytree(configured(model_type), config)
    flags = [*SETTINGS, *DATA, f"--config_name={config}", f"--learning_rate={rate}", *flags]
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
    def test_the_same_of_every_type(self, model_type):
        self.check(model_type)

    @parameterized.parameters("switch_transformers", "nllb-moe")
    @pytest.mark.slow
    def test_models_of_experts_score_candidates(self, model_type):
        self.check(model_type, "--eval_method=score")


if __name__ == "__main__":
    absltest.main()
