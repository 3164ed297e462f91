"""The table of flags that launchers read is the one that the argument dataclasses make, and needs no torch."""

import subprocess
import sys

from absl.testing import absltest, parameterized

from t5suite.base.errors import ConfigError
from t5suite.base.script_flags import flag_table, flags_of, is_script, value_problem
from t5suite.training.flags.fields import first_sentence
from t5suite.training.flags.parser import SuiteArgumentParser, parse_arguments
from t5suite.training.flags.table import SCRIPTS, make_table

# A value of each type, as a YAML file has it, and one that is none.
GOOD = {"bool": True, "int": 3, "float": 1e-3, "str": "word", "dict": {"a": 1}}
BAD = {"bool": "perhaps", "int": "many", "float": "fast"}


def every_flag():
    return [(script, name) for script, flags in flag_table()["scripts"].items() for name in flags]


class TableTest(parameterized.TestCase):
    def test_the_file_is_what_the_dataclasses_make(self):
        self.assertTrue(flag_table() == make_table(), "flags have changed; run: python -m t5suite.training.flags.table")

    @parameterized.parameters(*SCRIPTS)
    def test_every_flag_of_a_script_is_in_the_table(self, script):
        parser = SuiteArgumentParser(SCRIPTS[script])
        self.assertCountEqual(flags_of(script), parser.flag_names())

    @parameterized.parameters(*SCRIPTS)
    def test_an_entry_says_what_the_parser_takes(self, script):
        parser = SuiteArgumentParser(SCRIPTS[script])
        actions = {
            action.dest: action for action in parser._actions if action.option_strings[0] != f"--no_{action.dest}"
        }
        for name, flag in flags_of(script).items():
            action = actions[name]
            self.assertEqual(flag["list"], action.nargs == "+", name)
            if name not in ("optimizer", "schedule"):  # theirs are looked up in a table
                self.assertEqual(flag["choices"] or [], list(action.choices or []), name)
            value = flag["choices"][0] if flag["choices"] else GOOD[flag["type"]]
            boundless = {**flag, "bounds": None}
            self.assertIsNone(value_problem(boundless, [value] if flag["list"] else value), name)
            if flag["type"] in BAD:
                self.assertIsNotNone(value_problem(flag, BAD[flag["type"]]), name)
                with self.assertRaises(ConfigError):
                    parser.parse_args([f"--{name}={BAD[flag['type']]}"])

    def test_a_script_is_known_by_name_and_path_and_no_other(self):
        self.assertEqual(flags_of("/x/fine_tune_t5.py"), flags_of("fine_tune_t5"))
        self.assertTrue(is_script("./pre_train_t5.py"))
        self.assertFalse(is_script("fine_tune_t5.sh"))
        with self.assertRaisesRegex(ConfigError, "pretrain.*pre_train_t5"):
            flags_of("pretrain.py")

    def test_it_is_read_without_torch(self):
        code = "import sys; from t5suite.base.script_flags import flags_of; flags_of('fine_tune_t5'); assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    @parameterized.parameters(
        ("Maximum norm. Set to 0.", "Maximum norm."),
        ("Values below 1, e.g. 0.5, are shares. More.", "Values below 1, e.g. 0.5, are shares."),
        ("Whole text", "Whole text"),
    )
    def test_the_first_sentence(self, text, sentence):
        self.assertEqual(first_sentence(text), sentence)


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("learning_rate", 1e-3, True),
        ("learning_rate", "1e-5", True),
        ("learning_rate", 1, True),
        ("learning_rate", "fast", False),
        ("learning_rate", None, False),
        ("learning_rate", [1e-3], False),
        ("max_steps", 12, True),
        ("max_steps", 12.0, False),
        ("max_train_samples", None, True),
        ("bf16", True, True),
        ("bf16", "False", True),
        ("bf16", "maybe", False),
        ("eval_method", "score", True),
        ("eval_method", "guess", False),
        ("save_strategy", False, False),  # what YAML makes of a bare no
        ("schedule", "inverse_sqrt_t5", True),
        ("schedule", "zigzag", False),
        ("include_for_metrics", ["inputs"], True),
        ("include_for_metrics", [], False),
        ("dataset_name", "cola,rte", True),
    )
    def test_a_value_is_taken_as_the_script_takes_it(self, name, value, is_taken):
        self.assertEqual(value_problem(flags_of("fine_tune_t5")[name], value) is None, is_taken)
        if not isinstance(value, list):
            argv = ["--use_cpu", f"--{name}={value}"]
            if is_taken:
                parse_arguments(SCRIPTS["fine_tune_t5"], argv)
            else:
                with self.assertRaises(ConfigError):
                    parse_arguments(SCRIPTS["fine_tune_t5"], argv)


if __name__ == "__main__":
    absltest.main()
