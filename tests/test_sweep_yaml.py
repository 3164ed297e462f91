"""Every file in `sweeps/`: W&B takes it, its flags and values are the script's, its metric is the one that is logged."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from absl.testing import absltest, parameterized
from later_flags import later_wins

from t5suite.base.files import shipped_folder
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.commands import command_words
from t5suite.launch.sweep_checks import check_sweep
from t5suite.launch.sweep_files import parameters_of, read_sweep
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.flags.table import SCRIPTS

ROOT = Path(__file__).parent.parent
FOLDER = shipped_folder("sweeps")
FILES = [(path.name,) for path in sorted(FOLDER.glob("*.yaml"))]
# A run of seconds, whatever the file says: given after the sweep's own flags, these win.
TINY = [
    "--model_name_or_path=None", "--max_train_samples=64", "--max_eval_samples=20", "--max_steps=4", "--eval_strategy=steps",
    "--eval_steps=2", "--save_strategy=steps", "--save_steps=2", "--per_device_train_batch_size=8", "--max_source_length=64",
    "--bf16=False", "--use_cpu", "--disable_tqdm=True",
]  # fmt: skip
TINY_PRE_TRAINING = [
    "--max_steps=4", "--eval_steps=2", "--save_steps=2", "--max_eval_samples=8", "--per_device_train_batch_size=4",
    "--bf16=False", "--use_cpu", "--disable_tqdm=True", "--inputs_length=64",
]  # fmt: skip


# What sweep files of this kind of suite look like, for sst2: W&B's uniform learning rate, Hugging Face's names.
HAND_WRITTEN = """
program: fine_tune_t5.py
name: sst2
method: bayes
metric:
  goal: maximize
  name: eval/accuracy
parameters:
  learning_rate:
    distribution: uniform
    min: 1.0e-5
    max: 1.0e-3
  lr_scheduler_type:
    values: [constant_with_warmup, linear, cosine]
  benchmark:
    value: glue
  dataset_name:
    value: sst2
command:
  - ${env}
  - accelerate
  - launch
  - ${program}
  - ${args}
"""


def trainable(benchmark):
    return [name for name, entry in DATASET_VALS[benchmark].items() if "train" in entry["splits"]]


def draw(sweep, at):
    """One value of each parameter: the first (0) or the last (-1) of those it can have."""
    found = {}
    for parameter in parameters_of(sweep):
        values = parameter.settings.get("values") or [parameter.settings.get("value")]
        bounds = [parameter.settings.get("min"), parameter.settings.get("max")]
        found[parameter.name] = bounds[at] if bounds[0] is not None else values[at]
    return found


def words(sweep, parameters):
    return command_words(sweep.content["command"], parameters, sweep.content["program"])


class SweepFilesTest(parameterized.TestCase):
    @parameterized.parameters(*FILES)
    def test_nothing_is_wrong_with_it(self, name):
        self.assertEqual([str(finding) for finding in check_sweep(read_sweep(FOLDER / name))], [])

    @parameterized.parameters(*FILES)
    def test_the_script_takes_what_the_sweep_draws(self, name):
        sweep = read_sweep(FOLDER / name)
        script = sweep.content["program"].removesuffix(".py")
        for at in (0, -1):
            parameters = draw(sweep, at)
            argv = words(sweep, parameters)
            flags = argv[argv.index(script) + 1 :]
            self.assertEqual(argv[: len(argv) - len(flags)], ["/usr/bin/env", "accelerate", "launch", "-m", script])
            given = parse_arguments(SCRIPTS[script], later_wins(flags, "--use_cpu", "--bf16=False"))
            values = {key: value for part in given for key, value in vars(part).items()}
            for key in set(parameters) & set(values) - {"bf16", "train_file"}:
                self.assertEqual(getattr(values[key], "value", values[key]), parameters[key], key)

    @parameterized.parameters(*FILES)
    def test_it_searches_the_task_that_it_is_named_after_by_its_own_metric(self, name):
        content = yaml.safe_load((FOLDER / name).read_text())
        self.assertEqual(f"{content['name']}_sweep.yaml", name)
        self.assertEqual((content["method"], content["early_terminate"]["type"]), ("bayes", "hyperband"))
        rate = content["parameters"]["learning_rate"]
        self.assertEqual(rate["distribution"], "log_uniform_values")
        if content["program"] == "pre_train_t5.py":
            self.assertEqual(content["metric"], {"name": "eval/nll", "goal": "minimize"})
            self.assertContainsSubset({"optimizer", "schedule", "per_device_train_batch_size"}, content["parameters"])
            return
        if content["name"] == "own_data":
            self.assertEqual(content["parameters"]["data_format"]["value"], "csv")
            self.assertEqual(content["metric"], {"name": "eval/average", "goal": "maximize"})
            return
        benchmark, task = (content["parameters"][key]["value"] for key in ("benchmark", "dataset_name"))
        self.assertEqual(content["name"], benchmark if benchmark == task else f"{benchmark}_{task}")
        metric = (
            "average" if task in MIXTURES.get(benchmark, {}) else DATASET_VALS[benchmark][task]["metric_to_optimize"]
        )
        metric = {"rouge": "rougeLsum"}.get(metric, metric)  # the number by which rouge, which has several, selects
        self.assertEqual(content["metric"], {"name": f"eval/{metric}", "goal": "maximize"})
        self.assertContainsSubset({"schedule", "warmup_steps", "per_device_train_batch_size"}, content["parameters"])
        # A task without validation rows is not to be tuned on its test rows.
        if task in trainable(benchmark) and "validation" not in DATASET_VALS[benchmark][task]["splits"]:
            self.assertStartsWith(content["parameters"]["selection_split"]["value"], "train[")

    def test_a_hand_written_file_is_understood(self):
        path = Path(tempfile.mkdtemp()) / "sst2.yaml"
        path.write_text(HAND_WRITTEN)
        self.assertEqual([str(finding) for finding in check_sweep(read_sweep(path))], [])
        path.write_text(HAND_WRITTEN.replace("1.0e-5", "1e-5"))
        (finding,) = check_sweep(read_sweep(path))
        self.assertIn("1.0e-5", finding.message)

    def test_every_task_of_the_classic_suites_that_can_be_trained_and_every_mixture_has_its_file(self):
        expected = {"pre_train", "mini_pre_train", "own_data", "squad", "translation_wmt16_en_ro"}
        expected |= {"summarization_cnn_dailymail", "summarization_xsum"}
        for benchmark in ("glue", "super_glue", "mini"):
            expected |= {f"{benchmark}_{name}" for name in [*trainable(benchmark), *MIXTURES[benchmark]]}
        self.assertEqual({name.removesuffix("_sweep.yaml") for (name,) in FILES}, expected)

    @parameterized.parameters(*FILES)
    def test_its_comments_name_it(self, name):
        text = (FOLDER / name).read_text()
        self.assertStartsWith(text, f"# wandb sweep sweeps/{name}, then: wandb agent ")
        self.assertEqual(set(re.findall(r"sweeps/(\S+\.yaml)", text)), {name})


def rows_of(task):
    """Twelve rows of a GLUE or SuperGLUE task, made up."""
    if task == "mnli":
        return [{"idx": i, "premise": f"p {i}", "hypothesis": f"h {i}", "label": i % 3} for i in range(12)]
    if task == "sst2":
        return [{"idx": i, "sentence": f"film {i}", "label": i % 2} for i in range(12)]
    if task == "dpr":
        text = "The bee flew to the flower because it was hungry."
        row = {"sentence": text, "pronoun": "it", "candidates": ["bee", "flower"]}
        return [{**row, "label": i % 2} for i in range(12)]
    return [{"idx": i, "sentence1": f"a {i}", "sentence2": f"b {i}", "label": i % 2} for i in range(12)]


def mirror_of(benchmark, task, directory):
    """A `--data_dir` with that one task."""
    splits = {
        split
        for value in DATASET_VALS[benchmark][task]["splits"].values()
        for split in ([value] if isinstance(value, str) else value)
    }
    folder = Path(directory) / benchmark / task
    folder.mkdir(parents=True)
    for split in splits:
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(task)))
    return directory


@pytest.mark.slow
class RunTest(parameterized.TestCase):
    """One file of each kind, run as its command says: its metric is logged."""

    def run_sweep(self, name, tiny, **environment):
        """The folder's file of that name, or a file at that path."""
        sweep = read_sweep(FOLDER / name)
        directory = Path(tempfile.mkdtemp())
        argv = [*words(sweep, draw(sweep, 0)), *tiny]
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": scripts, "OMP_NUM_THREADS": "1", **environment}
        environment["T5SUITE_RUN_DIR"] = str(directory / "run")
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        lines = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").read_text().splitlines()]
        logged = [line for line in lines if sweep.content["metric"]["name"] in line]
        self.assertLen(logged, 2, [sorted(line) for line in lines])

    @parameterized.parameters("mini_sentiment", "mini_similarity", "mini_all")
    def test_mini(self, name):
        self.run_sweep(f"{name}_sweep.yaml", TINY)

    @parameterized.parameters(("glue", "rte"), ("glue", "mnli"), ("super_glue", "dpr"))
    def test_tasks_of_the_benchmarks(self, benchmark, task):
        with tempfile.TemporaryDirectory() as folder:
            mirror_of(benchmark, task, folder)
            self.run_sweep(f"{benchmark}_{task}_sweep.yaml", TINY, T5SUITE_DATA_DIR=folder)

    def test_a_hand_written_file_runs_as_it_stands(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sst2.yaml"
            path.write_text(HAND_WRITTEN)
            mirror_of("glue", "sst2", folder)
            self.run_sweep(path, TINY, T5SUITE_DATA_DIR=folder)

    @parameterized.parameters("pre_train", "mini_pre_train")
    def test_pre_training(self, name):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            text.write_text(
                "".join(f"Document {i} tells of the {i}th day and of what came after it.\n" for i in range(400))
            )
            own = [
                "--config_name=mini", "--tokenizer_name=None", f"--train_file={text}", f"--validation_file={text}",
                "--streaming=False", "--dataloader_num_workers=0",
            ]  # fmt: skip
            self.run_sweep(f"{name}_sweep.yaml", [*TINY_PRE_TRAINING, *(own if name == "pre_train" else [])])


if __name__ == "__main__":
    absltest.main()
