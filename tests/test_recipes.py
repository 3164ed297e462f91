"""Every shipped recipe: its flags exist, and its `--dry_run` says what it would do."""

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

import yaml
from absl.testing import absltest, parameterized
from later_flags import later_wins

sys.path.insert(0, str(Path(__file__).parent.parent))
from shared_data import MISSING, SHARED_DATA

import fine_tune_t5
import pre_train_t5
from t5suite.base.files import shipped_file, shipped_folder
from t5suite.models.loading import BUNDLED_MODEL
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

RECIPES = sorted(path.name for path in shipped_folder("recipes").glob("*.yaml"))
ARGUMENTS = {"fine_tune_t5.py": FINE_TUNING_ARGUMENTS, "pre_train_t5.py": PRE_TRAINING_ARGUMENTS}


def script_of(name):
    """A recipe's first line is the command that runs it."""
    return re.match(r"# python (\S+) (\S+)\n", shipped_file("recipes", name).read_text()).groups()


def recipes_of(script):
    return [(name,) for name in RECIPES if script_of(name)[0] == script]


class RecipeTest(parameterized.TestCase):
    @parameterized.parameters(*((name,) for name in RECIPES))
    def test_a_recipe_says_how_it_is_run_and_its_flags_exist(self, name):
        script, named = script_of(name)
        self.assertEqual(named, name)
        parse_arguments(ARGUMENTS[script], [name, "--use_cpu"])

    @parameterized.parameters(*recipes_of("pre_train_t5.py"))
    def test_a_pre_training_recipe_dry_runs(self, name):
        argv = [name, "--dry_run", "--use_cpu", "--tokenizer_name", BUNDLED_MODEL]
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            figures = pre_train_t5.main(argv)
        self.assertIn("inputs:", shown.getvalue())
        self.assertAlmostEqual(sum(block["share"] for block in figures["blocks"]), 1)
        if "base" in name:  # with the bundled tokenizer's vocabulary the head is small
            self.assertGreaterEqual(figures["steps"], 13333)
            self.assertBetween(figures["flops_an_update"] / figures["update_size"] / 1e9, 200, 900)

    @parameterized.parameters(*recipes_of("fine_tune_t5.py"))
    def test_a_fine_tuning_recipe_dry_runs(self, name):
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


if __name__ == "__main__":
    absltest.main()
