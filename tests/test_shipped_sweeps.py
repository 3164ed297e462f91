"""The sweep files that are shipped: each is right, its script takes what it draws, and it has a task of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from absl.testing import parameterized
from support import later_wins

from t5suite import DATASET_VALS, MIXTURES
from t5suite.testing import cli_output, parse_flags

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "sweeps"
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


def trainable(benchmark):
    return [name for name, entry in DATASET_VALS[benchmark].items() if "train" in entry["splits"]]


def trial_words(content: dict, at: int) -> tuple[dict, list[str]]:
    """A trial's parameters and words; each parameter with the first (0) or the last (-1) value that it can have."""
    parameters = {}
    for name, settings in content["parameters"].items():
        is_range = "min" in settings
        values = [settings["min"], settings["max"]] if is_range else settings.get("values") or [settings.get("value")]
        parameters[name] = values[at]
    macros = {
        "${env}": ["/usr/bin/env"],
        "${program}": [content["program"]],
        "${args}": [f"--{name}={value}" for name, value in parameters.items()],
    }
    words = []
    for word in map(str, content["command"]):
        words += macros.get(word, [word])
    return parameters, words


class YamlTest(parameterized.TestCase):
    @parameterized.parameters(*FILES)
    @pytest.mark.quick_cases(5)
    def test_nothing_is_wrong_with_it(self, name):
        self.assertEqual(cli_output("sweep", "lint", FOLDER / name).strip(), f"{FOLDER / name}: fine")

    @parameterized.parameters(*FILES)
    @pytest.mark.quick_cases(1)
    def test_the_script_takes_what_the_sweep_draws(self, name):
        content = yaml.safe_load((FOLDER / name).read_text())
        script = content["program"].removesuffix(".py")
        for at in (0, -1):
            parameters, argv = trial_words(content, at)
            flags = argv[argv.index(script) + 1 :]
            self.assertEqual(argv[: len(argv) - len(flags)], ["/usr/bin/env", "accelerate", "launch", "-m", script])
            values = parse_flags(script, later_wins(flags, "--use_cpu", "--bf16=False"))
            for key in set(parameters) & set(values) - {"bf16", "train_file"}:
                self.assertEqual(getattr(values[key], "value", values[key]), parameters[key], key)

    @parameterized.parameters(*FILES)
    def test_it_searches_the_task_that_it_is_named_after_by_its_own_metric(self, name):
        content = yaml.safe_load((FOLDER / name).read_text())
        self.assertEqual(f"{content['name']}_sweep.yaml", name)
        if content["program"] == "pre_train_t5.py" or content["name"] == "own_data":
            return
        benchmark, task = (content["parameters"][key]["value"] for key in ("benchmark", "dataset_name"))
        self.assertEqual(content["name"], benchmark if benchmark == task else f"{benchmark}_{task}")
        is_mixture = task in MIXTURES.get(benchmark, {})
        metric = "average" if is_mixture else DATASET_VALS[benchmark][task]["metric_to_optimize"]
        metric = {"rouge": "rougeLsum"}.get(metric, metric)  # the number by which rouge, which has several, selects
        self.assertEqual(content["metric"], {"name": f"eval/{metric}", "goal": "maximize"})
        # A task without validation rows is not to be tuned on its test rows.
        if task in trainable(benchmark) and "validation" not in DATASET_VALS[benchmark][task]["splits"]:
            self.assertTrue(content["parameters"]["selection_split"]["value"].startswith("train["))

    def test_every_task_of_the_classic_suites_that_can_be_trained_and_every_mixture_has_its_file(self):
        expected = {"pre_train", "mini_pre_train", "own_data", "squad", "translation_wmt16_en_ro"}
        expected |= {"summarization_cnn_dailymail", "summarization_xsum"}
        for benchmark in ("glue", "super_glue", "mini"):
            expected |= {f"{benchmark}_{name}" for name in [*trainable(benchmark), *MIXTURES[benchmark]]}
        self.assertEqual({name.removesuffix("_sweep.yaml") for (name,) in FILES}, expected)


class RunTest(parameterized.TestCase):
    @parameterized.parameters(("mini_all", TINY), ("mini_pre_train", TINY_PRE_TRAINING))
    @pytest.mark.slow
    def test_its_metric_is_logged(self, name, tiny):
        """One file of each script, run as its command says."""
        content = yaml.safe_load((FOLDER / f"{name}_sweep.yaml").read_text())
        directory = Path(tempfile.mkdtemp())
        argv = later_wins(trial_words(content, 0)[1], tiny)
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": scripts, "OMP_NUM_THREADS": "1", "T5SUITE_RUN_DIR": str(directory / "run")}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        lines = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").read_text().splitlines()]
        logged = [line for line in lines if content["metric"]["name"] in line]
        self.assertLen(logged, 2, [sorted(line) for line in lines])
