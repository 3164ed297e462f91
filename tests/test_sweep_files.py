"""What is wrong in a sweep file, where, and what would be right."""

import contextlib
import io
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from absl.testing import parameterized

from t5suite.constants import METRIC_GROUPS
from t5suite.launch.sweep_checks import check_sweep
from t5suite.launch.sweep_files import SweepFile, parameters_of, read_sweep
from t5suite.launch.sweep_metrics import logged_metrics
from t5suite.launch.sweep_plans import plan_of
from t5suite.launch.sweep_schema import DISTRIBUTIONS
from t5suite.launch.sweep_scripts import script_of
from t5suite.launch.sweep_summaries import summary_of
from t5suite.tasks.metric_names import SUITE_NAMES
from t5suite.tasks.metrics import METRIC_ALIASES, METRICS
from t5suite.testing import cli_output, exits_with, run_cli

ROOT = Path(__file__).resolve().parent.parent

GOOD = """\
name: rte
program: fine_tune_t5.py
method: bayes
metric:
  name: eval/accuracy
  goal: maximize
parameters:
  benchmark:
    value: glue
  dataset_name:
    value: rte
  learning_rate:
    distribution: log_uniform_values
    min: 1.0e-5
    max: 1.0e-2
  lr_scheduler_kwargs:
    parameters:
      min_lr:
        values: [0.0, 1.0e-6]
  bf16:
    values: [true, false]
early_terminate:
  type: hyperband
  min_iter: 3
command:
  - ${env}
  - accelerate
  - launch
  - ${program}
  - --eval_strategy=epoch
  - ${args}
  - --model_name_or_path=google/t5-v1_1-small
"""

# `(what is replaced in GOOD, by what, the line, what is said)`.
WRONG = [
    ("min: 1.0e-5", "min: 1e-5", 14, "learning_rate: min '1e-5' is text in YAML; write 1.0e-5"),
    ("max: 1.0e-2", "max: .inf", 15, "learning_rate: max inf is not a finite number"),
    ("max: 1.0e-2", "max: 1.0e-6", 14, "learning_rate: min 1e-05 is not below max 1e-06"),
    ("max: 1.0e-2", "max: 1.0e-5", 14, "learning_rate: min 1e-05 is not below max 1e-05"),
    ("min: 1.0e-5", "min: 0", 14, "learning_rate: min 0: log_uniform_values needs values above 0"),
    ("    max: 1.0e-2\n", "", 12, "learning_rate: log_uniform_values needs max"),
    ("    distribution: log_uniform_values\n    min: 1.0e-5\n", "", 12, "learning_rate: uniform needs min"),
    ("  bf16:\n    values: [true, false]", "  bf16: {}", 20, "bf16: give value, values, or min and max"),
    ("  bf16:\n    values: [true, false]", "  bf16: {parameters: {}}", 20, "bf16.parameters: an empty table"),
    ("max: 1.0e-2", "max: 1.0e-2\n    q: 2", 16, "learning_rate: log_uniform_values takes min, max, not 'q'"),
    ("log_uniform_values", "loguniform", 13, "learning_rate: unknown distribution 'loguniform'; did you mean log_uniform"),
    ("learning_rate:", "learnin_rate:", 12, "unknown flag --learnin_rate; did you mean --learning_rate"),
    ("learning_rate:", "group_by_length:", 12, "unknown flag --group_by_length; here it is --train_sampling"),
    ("learning_rate:", "2fast:", 12, "'2fast' is not a parameter's name"),
    ("  bf16:\n    values: [true, false]", "  1: {parameters: {a: {value: 1}}}", 7, "1 is not a parameter's name"),
    ("  bf16:\n", "  a:\n    parameters: {true: {parameters: {a: {value: 1}}}}\n  bf16:\n", 21, "True is not a param"),
    (
        "log_uniform_values\n    min: 1.0e-5\n    max: 1.0e-2", "log_uniform\n    min: -9000\n    max: 1", 12,
        "learning_rate: min and max of log_uniform are exponents of e; for values take log_uniform_values",
    ), (
        "  bf16:\n    values: [true, false]", "  seed: {distribution: q_uniform, min: 1, max: 9, q: 1.5}", 20,
        "seed: --seed takes whole numbers, and q 1.5 gives others; write q: 1",
    ),
    ("learning_rate:", "seed:", 12, "seed: --seed takes whole numbers, and log_uniform_values gives others"),
    ("learning_rate:", "bf16_full_eval:", 12, "bf16_full_eval: --bf16_full_eval takes no numbers; give values"),
    ("  lr_scheduler_kwargs:", "  weight_decay:", 16, "weight_decay: --weight_decay takes no table"),
    ("    parameters:\n      min", "    value: 1\n    parameters:\n      min", 16, "'value' cannot be combined with parameters"),
    ("[true, false]", "[true, perhaps]", 21, "bf16: 'perhaps' is not a boolean"),
    ("[true, false]", "[true, true]", 21, "bf16: True is given twice"),
    ("values: [true, false]", "distribution: categorical", 20, "bf16: categorical needs values"),
    ("  bf16:\n    values: [true, false]", "  bf16: true", 20, "bf16: True is not a table; write value: True"),
    ("  bf16:\n    values: [true, false]", "  output_dir: {value: out}", 20, "output_dir: all trials would share it"),
    ("--eval_strategy=epoch", "--output_dir=out", 30, "output_dir: all trials would share it"),
    ("--eval_strategy=epoch", "--eval_strategy=daily", 30, "--eval_strategy: 'daily' is not one of no, steps, epoch"),
    ("--eval_strategy=epoch", "--eval_stratgy=epoch", 30, "unknown flag --eval_stratgy; did you mean --eval_strategy"),
    ("${args}", "${arg}", 31, "unknown macro ${arg}, which W&B drops; did you mean args"),
    ("  - ${args}\n", "", 25, "no ${args} or the like"),
    ("program: fine_tune_t5.py\n", "", 28, "${program} needs a program:"),
    ("method: bayes", "method: bayesian", 3, "method: 'bayesian' is not one of grid, random, bayes, custom"),
    ("method: bayes", "method: grid", 12, "learning_rate: a grid cannot go through log_uniform_values"),
    ("name: rte", "name: [rte]", 1, "name: ['rte'] is not a text"),
    ("name: rte", "run_cap: 0", 1, "run_cap: 0 is not a whole number above 0"),
    ("metric:\n  name: eval/accuracy\n  goal: maximize\n", "", 1, "metric is missing, which early_terminate needs"),
    ("name: eval/accuracy", "nam: eval/accuracy", 5, "metric: unknown key 'nam'; did you mean name"),
    ("name: eval/accuracy", "name: accuracy", 5, "logs no 'accuracy'; did you mean eval/accuracy"),
    ("name: eval/accuracy", "name: W", 5, "logs no 'W'; it logs eval/accuracy, eval/loss, eval/invalid_rate, eval/tr"),
    ("name: eval/accuracy", "name: eval/loss", 6, "metric: goal maximize; of eval/loss less is better: write goal: minim"),
    ("goal: maximize", "goal: max", 6, "metric.goal: 'max' is not one of minimize, maximize"),
    ("  goal: maximize\n", "", 4, "goal is missing, and W&B's default is minimize; of eval/accuracy more is better"),
    ("goal: maximize", "goal: maximize\n  target: 9e1", 7, "metric.target: '9e1' is text in YAML; write 9.0e+1"),
    ("[true, false]", "[true, false]\n    probabilities: [0.5, 0.3, 0.2]", 22, "bf16: 3 probabilities for 2 values"),
    ("[true, false]", "[true, false]\n    probabilities: [0.5, 0.25]", 22, "bf16: probabilities sum to 0.75, not 1"),
    ("  type: hyperband\n", "", 22, "early_terminate: type is missing"),
    ("min_iter: 3", "min_iter: 0", 24, "early_terminate.min_iter: 0 is not a whole number above 0"),
    ("min_iter: 3", "max_iter: 9", 22, "early_terminate: give min_iter, or max_iter and s"),
    ("min_iter: 3", "min_iter: 3\n  max_iter: 27", 22, "early_terminate: give min_iter, or max_iter and s; max_iter needs s"),
    ("min_iter: 3", "min_iter: 3\n  eta: 1", 25, "early_terminate.eta: 1 is not a number above 1"),
    ("  - ${env}", "  - {a: 1}", 26, "command: {'a': 1} is not a word"),
    ("--eval_strategy=epoch", "--bf16=True", 20, "bf16: the command gives --bf16 too"),
]  # fmt: skip

# The same, for what a search on this machine cannot do.
OF_SERVER = [
    ("name: rte", "scheduler: {engine: optuna}", 1, "scheduler needs W&B's server"),
    ("method: bayes", "method: custom", 3, "method custom needs W&B's server"),
    ("min_iter: 3", "min_iter: 3\n  eta: 1.5", 25, "early_terminate.eta 1.5: without W&B's server it must be a whole"),
    ("min_iter: 3", "min_iter: 3\n  strict: true", 25, "early_terminate.strict needs W&B's server"),
    ("goal: maximize", "goal: maximize\n  impute: best", 4, "metric.impute other than worst needs W&B's server"), (
        "log_uniform_values\n    min: 1.0e-5\n    max: 1.0e-2",
        "q_log_uniform_values\n    min: 1.0e-2\n    max: 9.0e-1\n    q: 0.1", 12,
        "learning_rate: q_log_uniform_values with q 0.1 has no counterpart in Optuna (q: 1 has)",
    ), (
        "log_uniform_values\n    min: 1.0e-5\n    max: 1.0e-2", "q_uniform\n    min: 0.3\n    max: 0.4\n    q: 0.25", 12,
        "learning_rate: no multiple of q 0.25 lies between min and max",
    ),
]  # fmt: skip

# The same, for what is no error.
NOTED = [
    ("[0.0, 1.0e-6]", "[0.0, 1e-6]", 19, "lr_scheduler_kwargs.min_lr: '1e-6' is text in YAML; write 1.0e-6"), (
    "log_uniform_values", "log_uniform", 12,
    "exponents of e: values from 1 to 1.0101; for values take log_uniform_values", ),
    ("--eval_strategy=epoch", "--x=${args}", 30, "a macro must be an item of its own"),
    ("min_iter: 3", "max_iter: 2\n  s: 3", 24, "early_terminate: max_iter 2 is below eta 3, so that no trial is ever stopp"),
    ("--model_name_or_path=google/t5-v1_1-small", "--seed=1", 7, "no model is named: each trial trains the bundled toy"),
]  # fmt: skip


class FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, text: str, name="sweep.yaml") -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def sweep(self, text: str):
        return read_sweep(self.write(text))

    def findings(self, text: str) -> list[str]:
        return [str(finding) for finding in check_sweep(self.sweep(text))]

    def changed(self, old: str, new: str) -> list[str]:
        self.assertEqual(GOOD.count(old), 1, old)
        return self.findings(GOOD.replace(old, new))


class SweepFilesTest(FilesTest):
    def test_nothing_is_found_in_a_good_file(self):
        self.assertEqual(self.findings(GOOD), [])

    def test_a_variable_of_the_environment_may_be_part_of_a_word(self):
        self.assertEqual(self.changed("--eval_strategy=epoch", "--run_name=${envvar:USER}-rte"), [])

    @parameterized.parameters(*WRONG)
    def test_what_is_wrong_is_said_with_its_line(self, old, new, line, said):
        found = self.changed(old, new)
        wanted = [text for text in found if said in text]
        self.assertNotEmpty(wanted, found)
        self.assertStartsWith(wanted[0], f"{self.folder}/sweep.yaml:{line}: ")
        self.assertNotIn(": note: ", wanted[0])

    @parameterized.parameters(*OF_SERVER)
    def test_what_needs_wandb_s_server_is_said_and_prevents_a_sweep_here(self, old, new, line, cause):
        (finding,) = [finding for finding in check_sweep(self.sweep(GOOD.replace(old, new))) if cause in str(finding)]
        self.assertStartsWith(str(finding), f"{self.folder}/sweep.yaml:{line}: ")
        self.assertTrue(finding.needs_server)

    @parameterized.parameters(("[true]", 0), ("[true, false]", 1), ("[false]", 1))
    def test_a_false_that_never_reaches_its_flag_is_an_error(self, values, count):
        """${args_no_boolean_flags} leaves False out, so that a flag that is on by default stays on."""
        text = GOOD.replace("  bf16:\n    values: [true, false]", f"  load_best_model_at_end:\n    values: {values}")
        findings = self.findings(text.replace("${args}", "${args_no_boolean_flags}"))
        self.assertLen([text for text in findings if "omits False" in text], count, findings)
        self.assertEmpty([finding for finding in self.findings(text) if "omits False" in finding])

    @parameterized.parameters(*NOTED)
    def test_what_is_hardly_meant_is_noted(self, old, new, line, said):
        found = [text for text in self.changed(old, new) if said in text]
        self.assertNotEmpty(found, self.changed(old, new))
        self.assertStartsWith(found[0], f"{self.folder}/sweep.yaml:{line}: note: ")

    @parameterized.parameters(
        ({"values": [1, 2]}, {"value": "rows.csv"}, None, True),
        ({"value": 1}, {"value": "rows.csv"}, None, False),
        ({"values": [1, 2]}, {"value": "rows.csv"}, {"value": "new.csv"}, False),
        ({"values": [1, 2]}, None, None, False),
    )
    def test_seeds_that_hold_other_rows_out_are_noted(self, seed, train_file, validation_file, is_noted):
        parameters = {"seed": seed, "train_file": train_file, "validation_file": validation_file}
        content = {
            "program": "fine_tune_t5.py",
            "method": "grid",
            "parameters": {name: value for name, value in parameters.items() if value},
        }
        notes = [text for text in self.findings(yaml.safe_dump(content)) if "other rows of train_file" in text]
        self.assertLen(notes, int(is_noted))

    @parameterized.parameters("max_iter: 3\n  s: 1", "max_iter: 2\n  s: 1\n  eta: 2", "min_iter: 1\n  eta: 9")
    def test_an_early_end_that_can_come_is_not_noted(self, settings):
        self.assertEmpty(self.changed("min_iter: 3", settings))

    def test_every_finding_is_given_in_the_order_of_lines_behind_anchors_too(self):
        found = self.findings(
            GOOD.replace("1.0e-5", "1e-5").replace("goal: maximize", "gaol: 1").replace("${args}", "x")
        )
        lines = [int(text.removeprefix(f"{self.folder}/sweep.yaml:").partition(":")[0]) for text in found]
        self.assertEqual(lines, sorted(lines))
        self.assertGreaterEqual(len(set(lines)), 3)
        text = GOOD.replace("value: glue", "&anchor value: glue").replace(
            "  bf16:\n    values: [true, false]", "  bf16: &b\n    value: 7\n  tf32: *b"
        )
        self.assertTrue(any("bf16: 7 is not a boolean" in found and ":21:" in found for found in self.findings(text)))

    @parameterized.parameters("", "- a\n", "5\n", "a: [", "a: !!python/object/apply:os.system [x]\n", "a: 1\na: 2\n")
    def test_what_is_no_table_is_refused(self, text):
        with exits_with(78):
            read_sweep(self.write(text))

    @parameterized.parameters(
        (b"a: 2001-99-99\n", "a value is not what its tag or form says"), (b"a: !!bool x\n", "a value is not what its tag"),
        (b"a: \xff\n", "not UTF-8 text"), (b"a:\n\t- b\n", r"sweep.yaml:2: .*indent with spaces, YAML takes no tabs"),
    )  # fmt: skip
    def test_what_is_no_yaml_is_named_with_its_file(self, content, message):
        path = self.folder / "sweep.yaml"
        path.write_bytes(content)
        with exits_with(78, message) as failure:
            read_sweep(path)
        self.assertIn(str(path), failure.message)

    def test_a_folder_is_no_file(self):
        with exits_with(78, "cannot be read|no sweep file"):
            read_sweep(self.folder)

    @parameterized.parameters("x" * 5000, "a\x00b", "/etc", "..", "[", "--config")
    def test_odd_words_in_the_command_are_no_configuration_files(self, word):
        text = f"method: grid\nparameters: {{seed: {{value: 1}}}}\ncommand: {json.dumps(['fine_tune_t5.py', word, '${args}'])}\n"
        self.assertEqual(self.findings(text), [])
        self.assertEqual(script_of(self.sweep(text)).flags, {})

    def test_the_flags_of_the_script_s_own_file_count_as_the_command_s(self):
        """The command's own flags win over the file's; a file that cannot be read is the script's to report."""
        recipe = self.write("learning-rate: 0.1\nseed: 3\noutput_dir: out\n5: x\n", "recipe.yaml")
        command = ["fine_tune_t5.py", str(recipe), "--seed=4", "${args}"]
        text = f"method: grid\nparameters: {{bf16: {{value: true}}}}\ncommand: {json.dumps(command)}\n"
        sweep = self.sweep(text)
        script = script_of(sweep)
        self.assertEqual(script.flags, {"learning_rate": 0.1, "seed": 4, "output_dir": "out"})
        self.assertEqual((script.places["output_dir"], script.places["seed"]), (("command", 1), ("command", 2)))
        self.assertTrue(any(":3: output_dir: all trials would share it" in str(each) for each in check_sweep(sweep)))
        for content in ("[1, 2]", "a: ["):
            recipe.write_text(content)
            self.assertEqual(script_of(sweep).flags, {"seed": 4})

    def test_of_several_files_of_the_script_s_own_a_later_one_wins(self):
        files = [self.write(f"{name}: {i}\nseed: {i}\n", f"{i}.yaml") for i, name in enumerate(("max_steps", "top_k"))]
        command = ["fine_tune_t5.py", *map(str, files), "${args}"]
        script = script_of(self.sweep(f"method: grid\ncommand: {json.dumps(command)}\n"))
        self.assertEqual(script.flags, {"max_steps": 0, "top_k": 1, "seed": 1})
        places = {"max_steps": ("command", 1), "top_k": ("command", 2), "seed": ("command", 2)}
        self.assertEqual(script.places, places)


class SchemaTest(FilesTest):
    @parameterized.parameters(
        ("value: 1", "constant"), ("values: [1]", "categorical"), ("min: 1\n    max: 2", "int_uniform"),
        ("values: [1]\n    probabilities: [1]", "categorical_w_probabilities"),
        ("min: 1\n    max: 2.5", "uniform"), ("min: 1.0\n    max: 2", "uniform"),
    )  # fmt: skip
    def test_a_distribution_is_inferred_as_wandb_does(self, text, wanted):
        sweep = self.sweep(f"method: random\nprogram: x.py\nparameters:\n  x:\n    {text}\n")
        self.assertEmpty([finding for finding in check_sweep(sweep) if finding.level == "error"])
        self.assertEqual(parameters_of(sweep)[0].distribution, wanted)

    @parameterized.parameters(
        ("1.0e+301", True), ("-1.7e+308", True), ("9" * 400, True), (".inf", False), (".nan", False)
    )
    def test_a_value_is_any_number_that_json_has(self, number, is_right):
        sweep = self.sweep(f"method: random\nprogram: x.py\nparameters: {{x: {{value: {{a: {number}}}}}}}\n")
        problems = [str(finding) for finding in check_sweep(sweep) if finding.level == "error"]
        self.assertEqual(not problems, is_right, problems)

    @parameterized.parameters(*DISTRIBUTIONS)
    def test_each_distribution_takes_its_settings_and_no_others(self, distribution):
        examples = {"value": "1", "values": "[1, 2]", "probabilities": "[0.5, 0.5]", "min": "1", "max": "2"}
        needed, optional = DISTRIBUTIONS[distribution]
        lines = [f"    {key}: {examples.get(key, '1')}" for key in (*needed, *optional)]
        for extra, wrong in (("", False), ("\n    surprise: 1", True)):
            text = "\n".join([f"    distribution: {distribution}", *lines])
            sweep = self.sweep(f"method: random\nprogram: x.py\nparameters:\n  x:\n{text}{extra}\n")
            found = [str(finding) for finding in check_sweep(sweep) if finding.level == "error"]
            self.assertEqual(bool(found), wrong, found)


class ScriptsTest(FilesTest):
    @parameterized.parameters(
        ("command: [python, fine_tune_t5.py, '${args}']", "fine_tune_t5"),
        ("command: [accelerate, launch, -m, pre_train_t5, '${args}']", "pre_train_t5"),
        ("program: /x/pre_train_t5.py", "pre_train_t5"),
        ("program: other.py", None), ("command: [python, other.py, '${args}']", None),
        ("command: [python, -m, t5suite, evaluate, '${args}']", "fine_tune_t5"), ("command: [lm, evaluate]", None),
    )  # fmt: skip
    def test_the_script_is_found_in_the_command(self, text, wanted):
        script = script_of(self.sweep(f"method: grid\n{text}\n"))
        self.assertEqual(script.name if script else None, wanted)

    @parameterized.parameters(
        ("finetune", "fine_tune", "fine_tune_t5"), ("fine-tune", "fine_tune", "fine_tune_t5"),
        ("train", "fine_tune", "fine_tune_t5"), ("pretrain", "pre_train", "pre_train_t5"),
        ("pre-train", "pre_train", "pre_train_t5"), ("eval", "evaluate", "fine_tune_t5"),
    )  # fmt: skip
    def test_every_spelling_that_the_command_line_takes_is_the_script(self, word, command, name):
        with contextlib.redirect_stdout(io.StringIO()) as output, self.assertRaises(SystemExit):
            run_cli(word, "--help")
        self.assertStartsWith(output.getvalue(), f"usage: t5suite {command} [config.yaml]")
        self.assertEqual(script_of(self.sweep(f"method: grid\ncommand: [t5suite, {word}, '${{args}}']\n")).name, name)

    @parameterized.parameters(
        ("glue", "mrpc", "eval/f1"), ("glue", "mnli", "eval/accuracy"), ("glue", "mnli", "eval/mnli_matched/accuracy"),
        ("glue", "rte,cola", "eval/cola/matthews_correlation"), ("glue", "all", "eval/average"),
        ("super_glue", "all", "eval/multirc/f1"), ("mini", "sentiment", "eval/invalid_rate"),
    )  # fmt: skip
    def test_logged_metrics_are_those_of_the_task(self, benchmark, task, name):
        sweep = self.sweep(
            f"method: grid\nprogram: fine_tune_t5.py\nparameters: {{benchmark: {{value: {benchmark}}}}}\n"
            f"command: [python, '${{program}}', --dataset_name, '{task}', '${{args}}']\n"
        )
        self.assertIn(name, logged_metrics(sweep, script_of(sweep)))

    def test_of_several_tasks_only_what_all_of_them_log_counts(self):
        text = "method: grid\nprogram: fine_tune_t5.py\nparameters: {benchmark: {value: glue}, dataset_name: {values: [cola, rte]}}\n"
        sweep = self.sweep(text)
        names = logged_metrics(sweep, script_of(sweep))
        self.assertIn("eval/average", names)
        self.assertNotIn("eval/accuracy", names)

    @parameterized.parameters(
        ("accuracy", "task_file: {value: tasks.yaml}", "'accuracy' is not a metric of a run; those are eval/... and train"),
        ("eval/accuracy", "task_file: {value: tasks.yaml}", None), ("train/loss", "seed: {value: 1}", None),
        ("eval/speed", "benchmark: {values: [glue, super_glue]}", None), ("eval/speed", "benchmark: {value: mine}", None),
        ("eval/kappa", "benchmark: {value: glue}, metrics: {value: 'scores:kappa'}", None),
    )  # fmt: skip
    def test_of_tasks_and_metrics_that_are_not_shipped_any_evaluation_may_be_the_metric(self, name, parameter, message):
        sweep = self.sweep(
            f"method: grid\nprogram: fine_tune_t5.py\nmetric: {{name: {name}, goal: maximize}}\n"
            f"parameters: {{dataset_name: {{value: rte}}, model_name_or_path: {{value: x}}, {parameter}}}\n"
        )
        problems = [str(finding) for finding in check_sweep(sweep) if "metric" in finding.message]
        self.assertLen(problems, int(message is not None), problems)
        if message:
            self.assertIn(message, problems[0])

    @parameterized.parameters(
        ("eval/wer", ", goal: minimize", None), ("eval/wer", ", goal: maximize", None),
        ("eval/wer", "", "write goal: maximize, or goal: minimize if less of eval/wer is better"),
        ("eval/rouge1", ", goal: minimize", "goal minimize; of eval/rouge1 more is better: write goal: maximize"),
        ("eval/invalid_rate", ", goal: maximize", "of eval/invalid_rate less is better: write goal: minimize"),
    )  # fmt: skip
    def test_the_file_alone_says_whether_less_of_a_metric_of_one_s_own_is_better(self, name, goal, message):
        sweep = self.sweep(
            f"method: grid\nprogram: fine_tune_t5.py\nmetric: {{name: {name}{goal}}}\n"
            "parameters: {task_file: {value: tasks.yaml}, model_name_or_path: {value: x}}\n"
        )
        problems = [finding.message for finding in check_sweep(sweep) if "goal" in finding.message]
        self.assertLen(problems, int(message is not None), problems)
        if message:
            self.assertIn(message, problems[0])


class PlansTest(FilesTest):
    """What a sweep is to do, by its file and the command line."""

    RATES = "program: fine_tune_t5.py\nparameters: {learning_rate: {min: 0.1, max: 0.2}, seed: {value: 3}}\n"

    def test_the_smaller_one_of_count_and_run_cap_ends_a_search_and_a_grid_ends_by_itself(self):
        for text, count, limit in (
            ("method: random\n", 4, 4), ("method: random\nrun_cap: 3\n", 4, 3), ("method: random\nrun_cap: 3\n", 2, 2),
            ("method: bayes\nrun_cap: 3\n", None, 3), ("method: grid\n", None, math.inf), ("method: grid\n", 5, 5),
        ):  # fmt: skip
            self.assertEqual(plan_of(self.sweep(text + self.RATES), count).limit, limit, text)
        for method in ("random", "bayes"):
            with exits_with(78, f"--count: a {method} sweep has no end of its own"):
                plan_of(self.sweep(f"method: {method}\n{self.RATES}"))

    def test_without_a_metric_pre_training_goes_down_in_nll_and_fine_tuning_up_in_its_average(self):
        for program, expected in (
            ("program: pre_train_t5.py", ("eval/nll", "minimize")),
            ("command: [accelerate, launch, pre_train_t5.py, '${args}']", ("eval/nll", "minimize")),
            ("command: [t5suite, pre_train, '${args}']", ("eval/nll", "minimize")),
            ("command: [python, -m, t5suite, pre_train, '${args}']", ("eval/nll", "minimize")),
            ("command: [t5suite, fine_tune, --run_name, pre_train_t5, '${args}']", ("eval/average", "maximize")),
            ("program: fine_tune_t5.py", ("eval/average", "maximize")),
            ("program: x.py\nmetric: {name: eval/f1}", ("eval/f1", "minimize")),  # W&B's default
            ("program: x.py\nmetric: {name: eval/loss, goal: maximize}", ("eval/loss", "maximize")),
        ):
            plan = plan_of(self.sweep(f"method: grid\n{program}\nparameters: {{seed: {{values: [1, 2]}}}}\n"))
            self.assertEqual((plan.metric, plan.search.goal), expected, program)

    def test_words_set_what_the_file_gives_one_value_and_nothing_that_it_searches(self):
        sweep = self.sweep("method: random\n" + self.RATES)
        self.assertEqual(plan_of(sweep, 1, ["--seed=4", "--bf16"]).words, ["--seed=4", "--bf16"])
        with exits_with(78, "--learning_rate 0.3 after --: the sweep searches learning_rate"):
            plan_of(sweep, 1, ["--learning_rate", "0.3"])
        with exits_with(78, "after --: output_dir: all trials would share it"):
            plan_of(sweep, 1, ["--output_dir", "runs/x"])
        other_program = self.sweep("method: random\n" + self.RATES.replace("fine_tune_t5.py", "x.py"))
        self.assertEqual(plan_of(other_program, 1, ["--output_dir=x"]).words, ["--output_dir=x"])

    @parameterized.parameters(
        ("random", {"sampler": "gp"}, "--sampler gp has no effect: the sweep's method is random"),
        ("grid", {"sampler": "gp"}, "--sampler gp has no effect: the sweep's method is grid"),
        ("grid", {"seed": 3}, "--seed 3 has no effect: a grid draws nothing"),
    )
    def test_a_flag_of_another_method_s_search_is_refused(self, method, flags, message):
        with exits_with(78, message):
            plan_of(self.sweep(f"method: {method}\n{self.RATES}"), 1, **flags)

    def test_a_plan_has_the_file_s_search(self):
        text = GOOD.replace("goal: maximize", "goal: maximize\n  target: 90").replace(
            "min_iter: 3", "min_iter: 3\n  eta: 2"
        )
        plan = plan_of(self.sweep(text), 7, sampler="gp", seed=5)
        search = plan.search
        self.assertEqual((plan.name, plan.program, plan.limit, plan.text), ("rte", "fine_tune_t5.py", 7, text))
        self.assertEqual((search.method, search.goal, search.target, search.eta), ("bayes", "maximize", 90, 2))
        self.assertEqual((search.sampler, search.seed, search.rungs[:3]), ("gp", 5, (3, 6, 12)))
        unnamed = plan_of(self.sweep(text.replace("name: rte\n", "").replace("  eta: 2\n", "")), 1)
        self.assertEqual((unnamed.name, unnamed.search.eta, unnamed.search.rungs[:3]), ("sweep", 3, (3, 9, 27)))

    def test_the_best_trial_is_the_first_complete_one_of_the_best_value_by_the_goal(self):
        ends = [("complete", 5.0), ("complete", 7.0), ("complete", 3.0), ("complete", 7.0), ("complete", 3.0),
                ("pruned", 9.0), ("failed", 1.0), ("running", 9.0), ("complete", None)]  # fmt: skip
        records = [
            {"number": number, "state": state, "value": value, "parameters": {"seed": number}}
            for number, (state, value) in enumerate(ends)
        ]
        best = {}
        for goal in ("maximize", "minimize"):
            metric = f"metric: {{name: eval/f1, goal: {goal}}}\n"
            summary = summary_of(plan_of(self.sweep(f"method: random\n{metric}{self.RATES}"), 9), records)
            best[goal] = summary["best"]
            self.assertEqual((summary["metric"], summary["groups"]), ({"name": "eval/f1", "goal": goal}, None))
            self.assertIsNone(
                summary_of(plan_of(self.sweep(f"method: grid\n{metric}{self.RATES}")), records[5:])["best"]
            )
        self.assertEqual(best, {"maximize": 1, "minimize": 2})

    def test_a_grid_over_seeds_has_the_mean_of_each_setting_and_one_over_several_tasks_no_best_trial(self):
        """By hand: of a setting's trials those that are complete count; of a score those in which it is a number."""
        ends = [(0.1, 1, "complete", 60.0, 50.0), (0.1, 2, "complete", 64.0, None), (0.1, 3, "failed", 99.0, 99.0),
                (0.2, 1, "complete", 70.0, 40.0), (0.2, 2, "complete", None, 40.0)]  # fmt: skip
        records = [
            {"number": number, "state": state, "value": value, "scores": {"eval/f1": score},
             "parameters": {"learning_rate": rate, "seed": seed, "dataset_name": "rte"}}
            for number, (rate, seed, state, value, score) in enumerate(ends)
        ]  # fmt: skip
        varied = "learning_rate: {values: [0.1, 0.2]}, seed: {values: [1, 2, 3]}"
        text = "method: grid\nprogram: fine_tune_t5.py\nparameters: {%s, dataset_name: {%s}}\n"
        summary = summary_of(plan_of(self.sweep(text % (varied, "value: rte"))), records)
        first, second = summary["groups"]
        self.assertEqual(
            (first["parameters"], first["task"], second["parameters"]),
            ({"learning_rate": 0.1}, "rte", {"learning_rate": 0.2}),
        )
        self.assertEqual((first["n"], first["mean"], first["std"]), (2, 62.0, 8**0.5))
        self.assertEqual((second["n"], second["mean"], second["std"]), (1, 70.0, None))
        self.assertEqual(first["scores"], {"eval/f1": {"n": 1, "mean": 50.0, "std": None}})
        self.assertEqual(summary["best"], 3)
        for tasks, best in (("[rte]", 3), ("[rte, cola]", None)):
            summary = summary_of(plan_of(self.sweep(text % (varied, f"values: {tasks}"))), records)
            self.assertEqual((summary["best"], len(summary["groups"])), (best, 2))


class LintTest(FilesTest):
    def test_the_names_that_a_sweep_file_is_checked_by_are_those_of_the_metrics(self):
        of_every_evaluation = {"loss", "average", "invalid_rate", "truncated_rate"}
        self.assertEqual(SUITE_NAMES, {*METRICS, *METRIC_GROUPS, *METRIC_ALIASES, *of_every_evaluation})

    def test_parameters_in_hundreds_of_tables_are_refused_by_the_files_name(self):
        content: dict = {"value": 1}
        for _ in range(2000):
            content = {"parameters": {"a": content}}
        sweep = SweepFile("deep.yaml", content, {})
        with exits_with(78, "deep.yaml: its values are nested too deeply"):
            parameters_of(sweep)

    def test_lint_prints_all_findings_of_all_files(self):
        good, bad = self.write(GOOD), self.write(GOOD.replace("1.0e-5", "1e-5").replace("eval/acc", "acc"), "bad.yaml")
        broken = self.write("a: [\n", "broken.yaml")
        words = [str(path) for path in (good, bad, broken)]
        argv = [sys.executable, "-c", LINT, "sweep", "lint", *words]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 78)
        for said in (f"{good}: fine", f"{bad}:14: learning_rate", f"{bad}:5: metric", f"{broken}:2:"):
            self.assertIn(said, done.stdout)
        self.assertIn("3 findings", done.stderr)
        self.assertIn("imported: []", done.stderr)

    def test_flags_may_stand_between_the_words_of_a_command(self):
        path = str(self.write(GOOD))
        expected = cli_output("sweep", "lint", path, "--json")
        self.assertEqual(json.loads(expected)["file"], path)
        for words in (["lint", "--json", path], ["--json", "lint", path]):
            self.assertEqual(cli_output("sweep", *words), expected)
        for words, unexpected in ((["sweep", "lint", "-x", path], "-x"), (["verify", "a", "--json", "b"], "b")):
            with exits_with(78, f"unexpected '{unexpected}'"):
                run_cli(*words)


# The command, and whether it imported what it should not.
LINT = """
import runpy, sys
try:
    runpy.run_module("t5suite", run_name="__main__")
finally:
    print("imported:", [name for name in ("torch", "optuna", "transformers", "numpy") if name in sys.modules], file=sys.stderr)
"""
