"""Every task of GLUE and SuperGLUE trains, evaluates with every method it has and writes its results, on real rows.

A small model that learns 64 real rows by heart scores about 100 on them, through generation, parsing and metrics.

What it proves: targets, decoding, parsing and metrics agree. Slow (minutes a task); needs the real data.
"""

import itertools
import json
import tempfile
import unittest
from pathlib import Path

import pytest
from absl.testing import parameterized
from support import later_wins
from task_facts import task_facts

import fine_tune_t5
from t5suite import load_task
from t5suite.constants import DATASET_VALS
from t5suite.testing import read_rows, write_rows

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
SMALL = [
    "--data_dir", str(DATA), "--tokenizer_name", str(DATA / "tokenizer" / "t5"),
    "--config_overrides", "d_model=64,d_kv=16,d_ff=128,num_layers=1,num_decoder_layers=1,num_heads=4",
    "--per_device_train_batch_size", "8", "--max_steps", "20", "--disable_tqdm", "True", "--use_cpu",
]  # fmt: skip
TRAINED = [
    (b, t) for b in ("glue", "super_glue") for t, e in DATASET_VALS[b].items() if "train" in e["splits"] and t != "dpr"
]
EVALUATED = [("glue", "ax"), ("super_glue", "axb"), ("super_glue", "axg"), ("glue", "wnli_simple")]


def run(*argv):
    directory = Path(tempfile.mkdtemp()) / "run"
    results = fine_tune_t5.main(later_wins([*SMALL, *argv, "--output_dir", str(directory)]))
    return results, directory


def tiny_model():
    """A model with T5's vocabulary, trained for a step."""
    flags = "--benchmark glue --dataset_name wnli --max_steps 1 --max_train_samples 8 --max_eval_samples 8"
    _, directory = run(*flags.split())
    return str(directory)


@pytest.mark.slow
@unittest.skipUnless((DATA / "tokenizer" / "t5" / "spiece.model").is_file(), f"the real data is not at {DATA}")
class RealTasksTest(parameterized.TestCase):
    @parameterized.named_parameters((f"{b}_{t}", b, t) for b, t in TRAINED)
    def test_a_task_trains_and_is_scored_with_every_method_that_it_has(self, benchmark, name):
        task = load_task(benchmark, name)
        results, directory = run("--benchmark", benchmark, "--dataset_name", name)
        self.check(results, directory, task)
        if task.has_candidates:
            results, directory = run(
                "--benchmark", benchmark, "--dataset_name", name, "--eval_method", "score", "--eval_only",
                "--model_name_or_path", str(directory), "--config_overrides", "None",
            )  # fmt: skip
            self.check(results, directory, task)

    @parameterized.named_parameters((f"{b}_{t}", b, t) for b, t in EVALUATED)
    def test_a_diagnostic_task_is_scored_without_training(self, benchmark, name):
        task = load_task(benchmark, name)
        for method in ("generate", "score") if task.has_candidates else ("generate",):
            results, directory = run(
                "--benchmark", benchmark, "--dataset_name", name, "--eval_only", "--eval_method", method,
                "--model_name_or_path", tiny_model(), "--config_overrides", "None",
            )  # fmt: skip
            self.check(results, directory, task)

    def test_a_mixture_over_all_of_super_glue(self):
        results, directory = run("--benchmark", "super_glue", "--dataset_name", "all", "--allow_missing_tasks")
        tasks = ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc.fixed", "axb", "axg"]
        self.assertEqual(list(results["tasks"]), tasks)
        self.assertEqual(list(results["averages"]), ["super_glue"])
        manifest = json.loads((directory / "manifest.json").read_text())
        self.assertEqual(manifest["missing_tasks"], ["dpr"])

    def check(self, results, directory, task):
        role = "validation" if task.splits("validation") else "test"
        for name, split in task.splits(role).items():
            metrics = task_facts(task.benchmark, task.name)["metrics"]
            if metrics:
                self.assertContainsSubset(metrics, results["tasks"][name])
            lines = read_rows(directory / "predictions" / f"{task.name}.{split}.jsonl")
            rows = read_rows(DATA / task.benchmark / task.rows_of / f"{split}.jsonl")
            self.assertLen({line["row"] for line in lines}, len(rows))
        self.assertTrue((directory / "results.json").is_file())


ROWS = 64
AT_LEAST = 95.0

# (benchmark, task, longest input in tokens, steps); MultiRC asks before its long paragraph, which 128 tokens cut off
TASKS = (
    ("glue", "cola", 512, 300), ("glue", "stsb", 512, 500), ("glue", "mnli", 512, 300),
    ("super_glue", "wsc", 512, 300), ("super_glue", "multirc", 128, 400), ("super_glue", "record", 512, 400),
)  # fmt: skip


def some_rows(benchmark, task):
    """The first 64 rows (of WSC: that are true) of a real file, as a file of their own."""
    with open(DATA / benchmark / task / "train.jsonl", encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        first_rows = list(itertools.islice((row for row in rows if task != "wsc" or row["label"] == 1), ROWS))
    return str(write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", first_rows))


@pytest.mark.slow
@unittest.skipUnless((DATA / "tokenizer" / "t5" / "spiece.model").is_file(), f"the real data is not at {DATA}")
class OverfitTest(parameterized.TestCase):
    @parameterized.named_parameters((f"{case[0]}_{case[1]}", *case) for case in TASKS)
    def test_rows_learnt_by_heart_score_a_hundred(self, benchmark, task, max_source_length, steps):
        rows = some_rows(benchmark, task)
        results = fine_tune_t5.main([
            "--benchmark", benchmark, "--dataset_name", task, "--train_file", rows, "--validation_file", rows,
            "--tokenizer_name", str(DATA / "tokenizer" / "t5"),
            "--config_overrides", "d_model=64,d_kv=16,d_ff=128,num_layers=2,num_decoder_layers=1,num_heads=4",
            "--dropout_rate", "0", "--optimizer", "adafactor", "--learning_rate", "1e-2", "--warmup_steps", "20",
            "--lr_scheduler_type", "linear", "--per_device_train_batch_size", "16",
            "--max_source_length", str(max_source_length),
            "--max_steps", str(steps), "--eval_strategy", "steps", "--eval_steps", "100",
            "--output_dir", tempfile.mkdtemp() + "/run", "--disable_tqdm", "True", "--use_cpu",
        ])  # fmt: skip
        scores = {name: value for name, value in results["tasks"][task].items() if name != "invalid_rate"}
        self.assertGreaterEqual(min(scores.values()), AT_LEAST, scores)
