"""The examples run as plain Python and print what they promise; so do the blocks of docs/python.md.

Every shipped recipe: its flags exist, and its `--dry_run` says what it would do.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import yaml
from absl.testing import absltest, parameterized
from jsonschema import Draft202012Validator
from nbclient import NotebookClient
from shared_data import MISSING, SHARED_DATA
from support import later_wins

import fine_tune_t5
import pre_train_t5
from t5suite.base.files import shipped_file, shipped_folder
from t5suite.models.loading import BUNDLED_MODEL
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
# What each prints, whatever its figures; the figure that a whole run prints, and what it must be above: chance, or no gain.
PRINTED = {
    "classify_csv": (
        ["review,verdict", "held-out reviews: accuracy #", "reviews_model: "],
        (r"held-out reviews: accuracy ([\d.]+)", 60.0),
    ),
    "prompt_tuning": (
        ["two questions: #% of the answers are right", "without a question: #% give the last word",
         "with # virtual tokens: #%, # points"],
        (r"virtual tokens: ([\d.]+)", 60.0),
    ),
    "pre_train_then_fine_tune": (
        ["random weights: held-out loss #, #", "pre-trained: held-out loss #, #", "pre-training is worth # nats a token"],
        (r"worth ([-+\d.]+) nats", 0.0),
    ),
}  # fmt: skip


def printed(name: str, steps: int | None = None) -> str:
    """What an example prints, run offline in a folder of its own."""
    folder = tempfile.mkdtemp()
    given = {"T5SUITE_EXAMPLE_RUNS": f"{folder}/runs", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    given |= {"T5SUITE_EXAMPLE_STEPS": str(steps)} if steps else {}
    streams = {"capture_output": True, "text": True, "timeout": 1500}
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=folder, env={**os.environ, **given}, **streams)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def without_figures(text: str) -> str:
    return re.sub(r"[-+]?\d+(\.\d+)?", "#", text)


class ExamplesTest(parameterized.TestCase):
    def test_there_is_a_table_entry_for_every_example(self):
        self.assertEqual({path.stem for path in EXAMPLES.glob("*.py")}, set(PRINTED))

    @parameterized.parameters(*PRINTED)
    def test_its_cells_stand_in_the_readme_with_what_they_print(self, name):
        page = without_figures((EXAMPLES / "README.md").read_text(encoding="utf-8"))
        for line in PRINTED[name][0]:
            self.assertIn(line, page)

    @parameterized.product(name=list(PRINTED), steps=(4, None))
    @pytest.mark.slow
    def test_it_runs_and_prints_that(self, name, steps):
        output, (lines, (pattern, least)) = printed(name, steps), PRINTED[name]
        for line in lines:
            self.assertIn(line, without_figures(output))
        if steps is None:
            self.assertGreater(float(re.search(pattern, output)[1]), least)


@pytest.mark.slow
class DemoTest(absltest.TestCase):
    def test_it_learns_all_three_tasks_and_warns_of_nothing(self):
        folder = tempfile.mkdtemp()
        words = [sys.executable, "-m", "t5suite", "demo", "--output_dir", folder]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        self.assertNotIn("WARN", done.stdout.upper())
        # A bag of words has 52, 49 and 20. How far above 75 a run comes is a matter of a processor's rounding, too.
        floors = {"sentiment": ("accuracy", 75), "entailment": ("accuracy", 65), "similarity": ("pearson", 65)}
        for task, (metric, least) in floors.items():
            results = json.loads(Path(folder, task, "results.json").read_text())
            self.assertGreaterEqual(results["tasks"][task][metric], least)
        self.assertTrue(Path(folder, "report", "report.html").is_file())


class NotebookTest(absltest.TestCase):
    @pytest.mark.slow
    def test_it_runs_and_shows_what_is_saved_in_it(self):
        def texts():
            outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
            return without_figures(str([output.get("text") or output["data"]["text/plain"] for output in outputs]))

        folder = shutil.copytree(EXAMPLES, Path(tempfile.mkdtemp(), "examples"))
        notebook = nbformat.read(folder / "first_model.ipynb", as_version=4)
        saved = texts()
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", PYTHONPATH=str(ROOT)):
            NotebookClient(notebook, timeout=1500, resources={"metadata": {"path": str(folder)}}).execute()
        self.assertEqual(texts(), saved)


class PageTest(absltest.TestCase):
    @pytest.mark.slow
    def test_the_blocks_of_the_page_run_one_after_the_other(self):
        page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", page.replace('"mini.yaml"', '"mini.yaml", max_steps=200'), re.S)
        self.assertLen(blocks, 6)
        names = {"__name__": "page"}
        with contextlib.chdir(tempfile.mkdtemp()):
            for i, block in enumerate(blocks):
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block, f"docs/python.md block {i + 1}", "exec"), names)
            self.assertEqual({path.name for path in Path("runs").iterdir()}, {"first", "own", "frozen"})
        self.assertEqual(set(names["shares"]), {"negative", "positive"})
        self.assertEqual(names["own"].trainer.state.global_step, 15)
        self.assertLess(names["numbers"]["trainable"], names["numbers"]["parameters"])


ARGUMENTS_OF = {"fine_tune_t5.py": FINE_TUNING_ARGUMENTS, "pre_train_t5.py": PRE_TRAINING_ARGUMENTS}
# recipe -> (script, name) of its first line, which is the command that runs it
RECIPES = {
    path.name: re.match(r"# python (\S+) (\S+)\n", path.read_text()).groups()
    for path in sorted(shipped_folder("recipes").glob("*.yaml"))
}
PRE_TRAINING = [name for name, (script, _) in RECIPES.items() if script == "pre_train_t5.py"]


class RecipeTest(parameterized.TestCase):
    def test_a_recipe_says_how_it_is_run_and_its_flags_exist(self):
        for name, (script, named) in RECIPES.items():
            with self.subTest(name=name):
                self.assertEqual(named, name)
                parse_arguments(ARGUMENTS_OF[script], [name, "--use_cpu"])
                path = shipped_file("recipes", name)
                (schema,) = re.findall(r"^# yaml-language-server: \$schema=(.+)$", path.read_text(), re.MULTILINE)
                schema = Draft202012Validator(json.loads(path.with_name(schema).read_text()))
                self.assertTrue(schema.is_valid(yaml.safe_load(path.read_text())))
                self.assertFalse(schema.is_valid({"learning_rat": 1e-3}) or schema.is_valid({"max_steps": "many"}))

    def test_a_pre_training_recipe_dry_runs(self):
        self.check_dry_run(PRE_TRAINING[0])

    @parameterized.parameters(*PRE_TRAINING[1:])
    @pytest.mark.slow
    def test_so_does_every_other(self, name):
        self.check_dry_run(name)

    def check_dry_run(self, name):
        argv = [name, "--dry_run", "--use_cpu", "--tokenizer_name", BUNDLED_MODEL]
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            figures = pre_train_t5.main(argv)
        self.assertIn("blocks, in tokens", shown.getvalue())
        self.assertAlmostEqual(sum(block["share"] for block in figures["blocks"]), 1)
        if "base" in name:  # with the bundled tokenizer's vocabulary the head is small
            self.assertGreaterEqual(figures["steps"], 13333)
            self.assertBetween(figures["flops_an_update"] / figures["update_size"] / 1e9, 200, 900)

    def test_the_bundled_recipe_dry_runs(self):
        self.check_fine_tuning("mini.yaml")

    @parameterized.parameters(*(name for name in RECIPES if name not in ("mini.yaml", *PRE_TRAINING)))
    @pytest.mark.slow
    def test_a_fine_tuning_recipe_dry_runs(self, name):
        self.check_fine_tuning(name)

    def check_fine_tuning(self, name):
        tiny = ["--model_name_or_path", BUNDLED_MODEL, "--from_scratch", "--use_cpu", "--dry_run"]
        few = ["--max_train_samples", "20", "--max_eval_samples", "20", "--allow_missing_tasks"]
        data = []
        if name != "mini.yaml":
            if not SHARED_DATA.exists():
                self.skipTest(MISSING)
            data = ["--data_dir", str(SHARED_DATA)]
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            figures = fine_tune_t5.main(later_wins([name, *tiny, *few, *data, "--output_dir", tempfile.mkdtemp()]))
        self.assertIn("inputs:", shown.getvalue())
        settings = yaml.safe_load(shipped_file("recipes", name).read_text())
        # 20 rows are an epoch of one update
        self.assertEqual(figures["steps"], settings.get("max_steps") or settings["num_train_epochs"])
