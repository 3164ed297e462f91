"""Every task of GLUE and SuperGLUE trains, evaluates with every method it has and writes its results, on real rows."""

import json
import tempfile
import unittest
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized
from later_flags import later_wins

import fine_tune_t5
from t5suite.constants import DATASET_VALS
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.tasks.entries import metric_functions
from t5suite.tasks.registry import load_task

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
    _, directory = run(
        "--benchmark",
        "glue",
        "--dataset_name",
        "wnli",
        "--max_steps",
        "1",
        "--max_train_samples",
        "8",
        "--max_eval_samples",
        "8",
    )
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
            if metric_functions(task.entry):
                self.assertContainsSubset(list(metric_functions(task.entry)), results["tasks"][name])
            lines = read_jsonl(directory / "predictions" / f"{task.name}.{split}.jsonl")
            rows = read_jsonl(DATA / task.benchmark / task.rows_of / f"{split}.jsonl")
            self.assertLen({line["row"] for line in lines}, len(rows))
        self.assertTrue((directory / "results.json").is_file())


if __name__ == "__main__":
    absltest.main()
