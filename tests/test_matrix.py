"""Every cell of the tables of model types in docs/models.md, by whole runs of tiny models with random weights."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from model_types import MODEL_TYPES, SETTINGS, configured, tokenizer_of
from safetensors.torch import load_file
from support import later_wins
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LongT5EncoderModel,
    MT5EncoderModel,
    T5EncoderModel,
    T5GemmaEncoderModel,
    UMT5EncoderModel,
)

import fine_tune_t5
import pre_train_t5
from t5suite.testing import bundled_model, run_cli, tiny_tuner

STEPS = [
    "--per_device_train_batch_size=4", "--max_train_samples=40", "--max_steps=8", "--eval_strategy=steps",
    "--eval_steps=2", "--save_steps=2", "--save_total_limit=8", "--logging_steps=1", "--load_best_model_at_end=True",
]  # fmt: skip
QUIET = ["--disable_tqdm=True", "--use_cpu"]
DATA = [
    *QUIET, "--max_eval_samples=16", "--max_source_length=48", "--max_target_length=16", "--benchmark=mini",
    "--dataset_name=sentiment", "--seed=3",
]  # fmt: skip
AUTO_CLASSES = {
    "seq2seq": AutoModelForSeq2SeqLM, "causal": AutoModelForCausalLM, "masked": AutoModelForSequenceClassification,
}  # fmt: skip
ENCODER_CLASSES = {
    "t5": T5EncoderModel, "mt5": MT5EncoderModel, "umt5": UMT5EncoderModel, "longt5": LongT5EncoderModel,
    "t5gemma": T5GemmaEncoderModel,
}  # fmt: skip
OBJECTIVES = {"seq2seq": "span_corruption", "causal": "causal_lm", "masked": "masked_lm"}
# Files for serving, and the columns that say which models have them.
FORMATS = {"onnx": "ONNX", "ctranslate2": "CTranslate2"}
LATER = ("checkpoint-6", "checkpoint-8", "model.safetensors", "results.json", "predictions", "README.md")


def train(folder: Path, name: str, *flags) -> dict:
    """Eight updates of a model with random weights; a second call in the same place makes the same run."""
    config = folder.parent / "config"
    if not config.exists():
        shutil.copytree(configured(name), config)
        shutil.copytree(tokenizer_of(name), folder.parent / "tokenizer")
    model_flags = [f"--config_name={config}", f"--tokenizer_name={folder.parent / 'tokenizer'}"]
    model_flags += ["--model_family=encoder"] if MODEL_TYPES[name].family == "encoder" else []
    return fine_tune_t5.main([*later_wins(STEPS, DATA, model_flags, flags), f"--output_dir={folder}"])


def weights(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


def text_file() -> Path:
    path = Path(tempfile.mkdtemp()) / "text.txt"
    path.write_text("\n\n".join(f"Story {i} is about number {i}, who walks along river {i + 1}." for i in range(400)))
    return path


class RunTestCase(parameterized.TestCase):
    def assert_equal(self, tensors: dict, expected: dict):
        self.assertEqual(tensors.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(tensors[name], tensor), name)

    def check_run(self, run) -> Path:
        """`run(folder, rate)` ends with its best weights, which are not the last, and resumes exactly when killed."""
        for rate in (3e-3, 0.05, 0.3, 1.0):  # until the last step is not the best
            place = Path(tempfile.mkdtemp())
            whole, resumed = place / "whole", place / "resumed"
            results = run(whole, f"--learning_rate={rate}")
            best = json.loads((whole / "checkpoint-8" / "trainer_state.json").read_text())["best_global_step"]
            if best < 8:
                break
        self.assertLess(best, 8, "the last step is the best: nothing is loaded at the end")
        self.assert_equal(weights(whole), weights(whole / f"checkpoint-{best}"))
        # Killed between two checkpoints: later lines of its metrics stay behind.
        left = lambda folder, names: [name for name in names if folder == str(whole) and name in LATER]
        shutil.copytree(whole, resumed, ignore=left)
        self.assertEqual(run(resumed, f"--learning_rate={rate}"), results)
        self.assert_equal(weights(resumed / "checkpoint-8"), weights(whole / "checkpoint-8"))
        self.assert_equal(weights(resumed), weights(whole))
        self.assertEqual(losses(resumed), losses(whole))
        return whole


class TableTest(parameterized.TestCase):
    def test_every_row_has_a_tiny_model_and_says_what_it_can_do(self):
        self.assertEqual(SETTINGS.keys(), MODEL_TYPES.keys())
        for row in MODEL_TYPES.values():
            for work in ("fine-tune", "resume", "LoRA", "export"):
                self.assertTrue(row.can(work))
            answers = "a head answers" if row.family in ("masked", "encoder") else "yes"
            self.assertEqual((row.cells["generate"], row.cells["score"]), (answers, answers))

    def test_queries_and_values_are_the_targets_where_peft_knows_none(self):
        shape = "d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2"
        model = tiny_tuner(config_name="umt5", config_overrides=shape, adapter="lora").model
        targets = {name.split(".lora_A")[0].split(".")[-1] for name in model.state_dict() if ".lora_A" in name}
        self.assertEqual(targets, {"q", "v"})


class MatrixTest(RunTestCase):
    @parameterized.parameters(*MODEL_TYPES)
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_model_trains_resumes_answers_and_is_whole(self, name):
        family, tokenizer = MODEL_TYPES[name].family, None
        whole = self.check_run(lambda folder, rate: train(folder, name, rate))
        place, results = whole.parent, json.loads((whole / "results.json").read_text())

        def evaluated(folder, *flags) -> dict:
            out = tempfile.mkdtemp() + "/run"
            return fine_tune_t5.main(
                [*DATA, *flags, "--eval_only", f"--model_name_or_path={folder}", f"--output_dir={out}"]
            )

        self.assertEqual(evaluated(whole)["tasks"], results["tasks"])
        self.assertEqual(evaluated(whole, "--eval_method=score")["tasks"]["sentiment"]["invalid_rate"], 0)
        export = ["export", f"--model_name_or_path={whole}", "--check"]
        run_cli(*export, f"--output_dir={place / 'hf'}")
        plain = [(AUTO_CLASSES[family], whole)] if family in AUTO_CLASSES else []
        if kind := ENCODER_CLASSES.get(MODEL_TYPES[name].model_type):
            run_cli(*export, f"--output_dir={place / 'encoder'}", "--encoder_only")
            plain.append((kind, place / "encoder"))
        for model_class, folder in plain:
            _, report = model_class.from_pretrained(folder, output_loading_info=True)
            self.assertFalse(report["missing_keys"] | report["unexpected_keys"])
        adapter = place / "lora"
        expected = train(adapter, name, "--adapter=lora", "--max_steps=2")
        self.assertEqual(evaluated(adapter, f"--adapter_base={adapter / 'base'}")["tasks"], expected["tasks"])
        if not MODEL_TYPES[name].can("pre-train"):
            return
        if family == "masked":
            tokenizer = AutoTokenizer.from_pretrained(place / "tokenizer")
            tokenizer.add_special_tokens({"mask_token": "[MASK]"})
            tokenizer.save_pretrained(place / "tokenizer")
        model_flags = [
            f"--config_name={place / 'config'}",
            f"--tokenizer_name={place / 'tokenizer'}",
            "--inputs_length=48",
        ]
        model_flags += ["--num_sentinels=100"] if name == "CodeT5+" else []
        flags = [*STEPS[:1], *QUIET, "--max_steps=2", f"--train_file={text_file()}", f"--output_dir={place / 'pre'}"]
        nll = pre_train_t5.main([*model_flags, *flags, f"--objective={OBJECTIVES[family]}"])["tasks"]["pre_train"][
            "nll"
        ]
        self.assertTrue(math.isfinite(nll))

    @parameterized.parameters(
        *((name, form) for form in FORMATS for name, row in MODEL_TYPES.items() if row.can(FORMATS[form]))
    )
    @pytest.mark.slow
    def test_files_for_serving_answer_as_the_model(self, name, form):
        place = Path(tempfile.mkdtemp())
        train(place / "run", name, "--max_steps=1", "--eval_strategy=no", "--load_best_model_at_end=False")
        flags = [f"--format={form}", "--check", f"--output_dir={place / form}"]
        run_cli("export", f"--model_name_or_path={place / 'run'}", *flags)


class BestWeightsTest(RunTestCase):
    """A type whose tensors are renamed on saving, in the other places that load weights."""

    @pytest.mark.slow
    def test_scores_of_each_task_are_those_of_its_own_best_weights(self):
        place = Path(tempfile.mkdtemp())
        flags = ["--dataset_name=sentiment,entailment", "--select=per_task", "--eval_method=score"]
        results = train(place / "run", "T5Gemma 2", "--learning_rate=3e-3", *flags)
        for task in ("sentiment", "entailment"):
            best = place / "run" / "best" / task
            data = later_wins(DATA, ["--eval_method=score", f"--dataset_name={task}", "--eval_only"])
            alone = fine_tune_t5.main([*data, f"--model_name_or_path={best}", f"--output_dir={place / task}"])
            self.assertEqual(alone["tasks"][task], results["tasks"][task])

    @pytest.mark.slow
    def test_a_pre_training_run_ends_with_its_best_and_resumes(self):
        flags = [*STEPS[:1], *STEPS[2:], *QUIET, f"--train_file={text_file()}", "--inputs_length=48"]
        flags += [
            f"--config_name={configured('T5Gemma 2')}",
            f"--tokenizer_name={bundled_model()}",
            "--schedule=constant",
        ]
        self.check_run(lambda folder, rate: pre_train_t5.main([*flags, rate, f"--output_dir={folder}"]))

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_end_with_their_best_and_resume(self):
        flags = [*STEPS, *DATA, f"--config_name={configured('T5Gemma 2')}"]
        flags += ["--ddp_find_unused_parameters=True"]  # nothing reads its vision tower
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        command += [fine_tune_t5.__file__, *flags]

        def run(folder, rate):
            subprocess.run([*command, rate, f"--output_dir={folder}"], check=True, timeout=600, capture_output=True)
            return json.loads((folder / "results.json").read_text())

        self.check_run(run)
