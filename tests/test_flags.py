"""Flags: YAML then command line, what sweep agents and launchers write, and errors that say what would be right."""

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import types
import typing
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from t5suite import cli
from t5suite.base.script_flags import flag_table, flags_marked, flags_of, value_problem
from t5suite.launch.command_line import asked_for, options_of
from t5suite.launch.script_help import help_text, versions_text
from t5suite.runs.directory import COMMAND, finished_run, open_run, write_json
from t5suite.testing import exits_with, tiny_model, tiny_tokenizer
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, ModelArguments
from t5suite.training.flags.model import AdapterArguments, adapt_by_flags
from t5suite.training.flags.parser import SuiteArgumentParser, changed_settings, parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS
from t5suite.training.flags.table import SCRIPTS, make_table


def parse(*argv):
    return parse_first("--use_cpu", *argv)


def parse_first(*argv):
    return {name: value for part in parse_arguments(FINE_TUNING_ARGUMENTS, argv) for name, value in vars(part).items()}


def config_file(text, name="run.yaml"):
    path = Path(tempfile.mkdtemp(), name)
    path.write_text(text, encoding="utf-8")
    return str(path)


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--learning_rate", "1e-5"], "learning_rate", 1e-5), (["--learning-rate=1e-5"], "learning_rate", 1e-5),
        (["--bf16=False"], "bf16", False), (["--bf16", "--seed=1"], "bf16", True), (["--eval_only"], "eval_only", True),
        (["--load_best_model_at_end=False"], "load_best_model_at_end", False),
        (["--no_load_best_model_at_end"], "load_best_model_at_end", False),
        (["--max_train_samples", "None"], "max_train_samples", None),
        (["--max_train_samples=None"], "max_train_samples", None),
        (["--seed=7", "--local_rank=0", "--seed", "7", "--local_rank=0"], "seed", 7),
        (["--_wandb=x", "--seed", "7"], "seed", 7),
        (["--optimizer=adamw", "--optim_args={'eps': 1e-6}"], "optim_args", "eps=1e-06"),
    )  # fmt: skip
    def test_the_command_line_is_understood(self, argv, name, expected):
        self.assertEqual(parse(*argv)[name], expected)

    @parameterized.parameters(
        ("learning_rate: 1e-5", "learning_rate", 1e-5), ("learning-rate: 3e-4", "learning_rate", 3e-4),
        ("eval_only: true", "eval_only", True), ("eval_only: 'False'", "eval_only", False), ("", "benchmark", "mini"),
        ("max_train_samples: null", "max_train_samples", None), ("max_train_samples: None", "max_train_samples", None),
        ("selection_split: train[5%]", "selection_split", "train[5%]"),
        ("lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 2}", "lr_scheduler_kwargs", {"num_cycles": 2}),
    )  # fmt: skip
    def test_a_yaml_file_is_understood(self, text, name, expected):
        path = config_file(text)
        for argv in ([path], ["--config", path], [f"--config={path}"]):
            self.assertEqual(parse_first(*argv, "--use_cpu")[name], expected)

    def test_the_command_line_overrides_the_file(self):
        path = config_file("learning_rate: 1e-5\nmax_train_samples: 9\n")
        found = parse("--config", path, "--learning_rate=2e-5", "--max_train_samples=None")
        self.assertEqual((found["learning_rate"], found["max_train_samples"]), (2e-5, None))

    def test_changed_settings_are_those_that_differ_from_the_defaults(self):
        arguments = parse_arguments(FINE_TUNING_ARGUMENTS, ["--benchmark", "glue", "--use_cpu"])
        self.assertContainsSubset({"benchmark": "glue", "use_cpu": True}.items(), changed_settings(arguments).items())

    def test_checkpoints_follow_evaluations(self):
        found = parse("--eval_strategy", "steps", "--eval_steps", "30")
        self.assertEqual((found["save_strategy"].value, found["save_steps"]), ("steps", 30))
        self.assertFalse(any(parse(f"--{of}_strategy", "no")["load_best_model_at_end"] for of in ("eval", "save")))


# What a sweep draws: every kind of value that W&B has.
DRAWN = {
    "learning_rate": 1e-05, "schedule": "cosine", "optimizer": "adamw", "bf16": False, "eval_only": True,
    "load_best_model_at_end": False, "max_train_samples": None, "seed": 7, "run_name": "it's `a` $(name)={x}",
    "lr_scheduler_kwargs": {"min_lr": 1e-05}, "optim_args": {"betas": [0.9, 0.95], "eps": 1e-06},
    "include_for_metrics": ["inputs", "loss"],
}  # fmt: skip
MACROS = ("args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags", "args_json", "args_append_hydra")
MACROS += ("args_override_hydra",)


class SweepWordsTest(parameterized.TestCase):
    """What W&B's own functions make of a sweep's parameters means the same behind every macro."""

    def words(self, macro):
        from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

        words = create_sweep_command_args({"args": {name: {"value": value} for name, value in DRAWN.items()}})
        if macro == "args_no_boolean_flags":  # False is lost there
            return words[macro] + ["--load_best_model_at_end=False"]
        return words[macro]

    def check(self, found):
        for name, value in DRAWN.items():
            expected = {"optim_args": "betas=(0.9,0.95),eps=1e-06"}.get(name, value)
            self.assertEqual(found[name], expected, name)

    @parameterized.parameters(*MACROS)
    def test_every_macro_means_the_same(self, macro):
        self.check(parse(*self.words(macro)))

    def test_the_pre_training_script_understands_them_too(self):
        argv = ["train_file=['a.txt', 'b.txt']", "++corpus_weights=[1, 2.5]", "--inputs_length", "64", "--use_cpu=True"]
        _, text, objective, _, _ = parse_arguments(PRE_TRAINING_ARGUMENTS, argv)
        self.assertEqual((text.train_file, text.corpus_weights), (["a.txt", "b.txt"], [1.0, 2.5]))
        self.assertEqual(objective.inputs_length, 64)

    @parameterized.parameters(([],), (["--config"],))
    def test_a_json_file_may_come_first_or_as_the_configuration(self, before):
        self.check(parse_first(*before, config_file(self.words("args_json")[0], "config-run.json")))

    @parameterized.parameters(
        (["--optim_args", "weight_decay=0.1", "--seed", "7"], "optim_args", "weight_decay=0.1"),
        (["--bf16", "seed=7"], "seed", 7),
        (["seed=7", "--bf16=False"], "seed", 7),
        (["--run_name", "seed=8", "++seed=7"], "run_name", "seed=8"),
        (["--include_for_metrics", "inputs", "loss"], "include_for_metrics", ["inputs", "loss"]),
    )
    def test_a_flag_keeps_its_value_though_it_looks_like_another_flag(self, argv, name, expected):
        self.assertEqual(parse("--optimizer", "adamw", *argv)[name], expected)

    def test_a_trial_of_the_agent_reports_to_wandb_unless_told_otherwise(self):
        with mock.patch.dict(os.environ, WANDB_SWEEP_ID="s1"):
            self.assertEqual(parse()["report_to"], ["wandb"])
            self.assertEqual(parse("--report_to", "none")["report_to"], [])
            self.assertEqual(parse_first(config_file("report_to: tensorboard"))["report_to"], ["tensorboard"])
        self.assertEqual(parse()["report_to"], [])


def numbers(hint) -> bool:
    """Whether a field takes numbers, alone or in a list."""
    return bool(
        {int, float} & {hint, *(kind for part in typing.get_args(hint) for kind in (part, *typing.get_args(part)))}
    )


class BoundsTest(parameterized.TestCase):
    def test_every_number_of_both_scripts_has_a_bound_and_no_other_flag_has(self):
        fields = {
            name: typing.get_type_hints(kind)[name]
            for kind in (*FINE_TUNING_ARGUMENTS, *PRE_TRAINING_ARGUMENTS)
            for name, spec in kind.__dataclass_fields__.items()
            if spec.init
        }
        entries = {name: entry for flags in flag_table()["scripts"].values() for name, entry in flags.items()}
        bounded = [name for name in entries if "bounds" in entries[name]]
        self.assertCountEqual(bounded, [name for name, hint in fields.items() if numbers(hint)])

    @parameterized.parameters(
        ("dropout_rate", "0", "1"), ("label_smoothing_factor", "1", "1.01"), ("train_fraction", "1", "0"),
        ("validation_split", "0.5", "1"), ("max_grad_norm", "inf", "nan"), ("max_steps", "-1", "-2"),
        ("warmup_steps", "0", "-0.1"), ("seed", "4294967295", "4294967296"), ("eval_batch_tokens", "0", "-1"),
        ("save_total_limit", "1", "0"), ("generation_max_length", "2", "1"), ("mixing_limit", "0.5", "inf"),
        ("max_input_tokens", "5", "0"), ("num_train_epochs", "0.001", "0"), ("block_size", "8", "7"),
        ("learning_rate", "1e18", "inf"), ("dataloader_num_workers", "64", "10000"),
    )  # fmt: skip
    def test_the_ends_of_a_range_are_where_they_should_be(self, name, good, bad):
        own = ["--data_format", "text", "--train_dir", "x"] if name in ("block_size", "validation_split") else []
        own += ["--data_class", "Debug"] if name == "max_input_tokens" else []
        parse(*own, f"--{name}={good}")
        with exits_with(78, f"--{name} {bad}: must be"):
            parse(*own, f"--{name}={bad}")


class ErrorsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--lerning_rate", "1"], r"--lerning_rate.*--learning_rate"),
        (["--learning_rate", "fast"], r"learning_rate.*'fast'"),
        (["--eval_method", "genrate"], r"eval_method.*'genrate'.*did you mean generate"),
        (["--seed"], r"--seed: expected one argument"), (["--seed=-1"], "--seed -1: must be at least 0"),
        (["--lr", "1e-3"], "unknown flag --lr; here it is --learning_rate$"),
        (["--seed=1", "--max_length=9"], "here it is --max_source_length and --max_target_length$"),
        (["--optim", "adamm"], r"optim.*'adamm'.*did you mean"),
        (["--max_source_length=None"], r"--max_source_length cannot be None"), (["rte"], r"--config: no file 'rte'"),
        (["--seed", "1", "rte"], r"unexpected 'rte'"), (["--config"], r"--config"),
        (["--lr_scheduler_kwargs={'min_lr': 1e-5"], r"lr_scheduler_kwargs.*is no table"),
        (["--lr_scheduler_kwargs={'x': __import__('os')}"], r"lr_scheduler_kwargs.*is no table"),
        (["--lr", "1", "--max_steps=3", "--epochs", "2", "--bs=3"],
         "unknown flag --lr; here it is --learning_rate\nunknown flag --epochs; .*\nunknown flag --bs; "),
        (["optim.base_lr=2e-2", "model.compile=true"],
         "unknown flag --optim.base_lr; here it is --learning_rate 2e-2\nunknown flag --model.compile; here it is --torch"),
        (["--seed", "1", "trainer.devices=2"], "unknown flag --trainer.devices; see --help"),
        (["--seed=1", "+lerning_rate=0.1"], r"unexpected '\+lerning_rate=0.1'"),
        (['{"lerning_rate": 0.1}'], r"JSON on the command line: .*--lerning_rate.*--learning_rate"),
        (['{"seed": 1, "seed": 2}'], r"JSON on the command line: 'seed' is given for the second time"),
        (['{"max_source_length": null}'], r"--max_source_length cannot be None"),
    )  # fmt: skip
    def test_a_slip_on_the_command_line_is_named_and_in_the_same_words_before_the_imports(self, argv, message):
        with exits_with(78, message) as later:
            parse_arguments(FINE_TUNING_ARGUMENTS, argv)
        if "is no" not in message and argv[0][0] != "{":
            with exits_with(78, f"^{re.escape(str(later.exception))}$"):
                asked_for("fine_tune_t5", argv)

    @parameterized.parameters(
        ("seed: 1\nlerning_rate: 1e-5\n", r"run.yaml:2: .*--lerning_rate.*--learning_rate"),
        ("seed: 1\n\nmax_steps: many\n", r"run.yaml:3: .*max_steps.*'many'"),
        ("seed: 1\nmax_source_length: null\n", r"run.yaml:2: --max_source_length cannot be None"),
        ("- seed\n", r"run.yaml: expected flag: value"),
        ("seed: [1\n", r"run.yaml:\d: "),
        ("warmup_ratio: 0.1\n", r"run.yaml:1: unknown flag --warmup_ratio; here it is --warmup_steps 0.1"),
        ("lr: 1\nseed: 1\nbs: 3\n", r"run.yaml:1: unknown flag --lr; .*\n.*run.yaml:3: unknown flag --bs; "),
        ("x: !!python/object/apply:os.system ['true']\n", r"run.yaml:1: "),
    )
    def test_a_slip_in_a_file_is_named_with_its_line(self, text, message):
        with exits_with(78, message):
            parse_arguments(FINE_TUNING_ARGUMENTS, [config_file(text)])


# A value of each type, as a YAML file has it, and one that is none.
GOOD = {"bool": True, "int": 3, "float": 1e-3, "str": "word", "dict": {"a": 1}}
BAD = {"bool": "perhaps", "int": "many", "float": "fast"}


def without_library_helps(table: dict) -> dict:
    """The table without help texts in transformers' own words (the theme "rest"): each release rewords some of them."""
    scripts = {}
    for script, entries in table["scripts"].items():
        rest = {name for name, entry in entries.items() if entry["theme"] == "rest" and not entry.get("ours")}
        scripts[script] = {name: {**entry, "help": None} if name in rest else entry for name, entry in entries.items()}
    return {**table, "scripts": scripts}


class TableTest(parameterized.TestCase):
    def test_the_file_is_what_the_dataclasses_make(self):
        written, made = without_library_helps(flag_table()), without_library_helps(make_table())
        self.assertTrue(written == made, "flags have changed; run: python -m t5suite.training.flags.table")

    @parameterized.parameters(*SCRIPTS)
    def test_an_entry_says_what_the_parser_takes(self, script):
        parser = SuiteArgumentParser(SCRIPTS[script])
        actions = {
            action.dest: action for action in parser._actions if action.option_strings[0] != f"--no_{action.dest}"
        }
        taken = {option: (action.dest, action.nargs) for option, action in parser._option_string_actions.items()}
        self.assertEqual(
            options_of(flags_of(script)),
            {key: taken[key] for key in taken if "-" not in key[2:] and taken[key][0] != "help"},
        )
        for name, flag in flags_of(script).items():
            action = actions[name]
            if name not in ("optimizer", "schedule"):  # theirs are looked up in a table
                self.assertEqual(flag["choices"] or [], list(action.choices or []), name)
            value = flag["choices"][0] if flag["choices"] else GOOD[flag["type"]]
            boundless = {**flag, "bounds": None}
            self.assertIsNone(value_problem(boundless, [value] if flag["list"] else value), name)
            if flag["type"] in BAD:
                self.assertIsNotNone(value_problem(flag, BAD[flag["type"]]), name)
                with exits_with(78):
                    parser.parse_args([f"--{name}={BAD[flag['type']]}"])


class TableValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("learning_rate", 1e-3, True), ("learning_rate", "1e-5", True), ("learning_rate", None, False),
        ("learning_rate", [1e-3], False), ("max_steps", 12.0, False), ("max_train_samples", None, True),
        ("bf16", "False", True), ("eval_method", "guess", False), ("save_strategy", False, False),  # YAML's bare no
        ("schedule", "inverse_sqrt_t5", True), ("schedule", "zigzag", False), ("include_for_metrics", ["inputs"], True),
        ("include_for_metrics", [], False), ("dataset_name", "cola,rte", True),
    )  # fmt: skip
    def test_a_value_is_taken_as_the_script_takes_it(self, name, value, is_taken):
        self.assertEqual(value_problem(flags_of("fine_tune_t5")[name], value) is None, is_taken)
        if not isinstance(value, list):
            with contextlib.nullcontext() if is_taken else exits_with(78):
                parse(f"--{name}={value}")


ROOT = Path(__file__).resolve().parent.parent
NAMES = ("fine_tune_t5", "pre_train_t5")
WITHOUT_TORCH = """
import runpy, sys
sys.argv = {argv}
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as end:
    assert end.code == {code}, end.code
loaded = [name for name in ("torch", "transformers", "datasets") if name in sys.modules]
assert not loaded, loaded
"""


def answered_without_torch(script, *argv, code=0):
    """What a script prints, which must load no torch."""
    code = WITHOUT_TORCH.format(argv=[script, *argv], script=str(ROOT / script), code=code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout or done.stderr


class ScriptHelpTest(parameterized.TestCase):
    @parameterized.product(script=NAMES, question=["--help", "-h", "--help_all", "--version"])
    def test_a_script_answers_without_torch(self, script, question):
        before = [] if question in ("--help", "--version") else ["mini.yaml"]
        out = answered_without_torch(f"{script}.py", *before, question)
        expected = "torch " if question == "--version" else "--learning_rate X"
        self.assertIn(expected, out)

    @parameterized.parameters(
        ("fine_tune_t5.py", "mini.yaml", "--epochs", "3"), ("t5suite/__main__.py", "train", "--epochs=3"),
        ("pre_train_t5.py", "--epochs", "3"), ("t5suite/__main__.py", "eval", "mini.yaml", "--epochs=3"),
    )  # fmt: skip
    def test_a_wrong_flag_is_answered_without_torch(self, script, *argv):
        answer = "error: unknown flag --epochs; here it is --num_train_epochs\n"
        self.assertEqual(answered_without_torch(script, *argv, code=78), answer)

    def test_a_finished_run_s_own_command_shows_it_without_torch_and_no_other_command_is_taken_for_it(self):
        place = tempfile.mkdtemp() + "/run"
        words = ["mini.yaml", "--output_dir", place, "--seed", "7"]
        asked = asked_for("fine_tune_t5", words)
        with mock.patch.dict(COMMAND), contextlib.chdir(ROOT):
            self.assertIsNone(finished_run(place, "fine_tune_t5", asked))
            run = open_run(place, {"seed": 7})
            run.finish()
            write_json(f"{place}/results.json", {"tasks": {"sentiment": {"accuracy": 12.25}}, "averages": {}})
            for changed in ({"seed": "8"}, {"resume": "none"}, {"metrics": "mine:f"}, {"max_steps": "3"}):
                self.assertIsNone(finished_run(place, "fine_tune_t5", asked | changed), changed)
            with mock.patch.dict(os.environ, T5SUITE_DATA_DIR="elsewhere"):
                self.assertIsNone(finished_run(place, "fine_tune_t5", asked))
            self.assertEqual(finished_run(place, "fine_tune_t5", asked).run_id, run.run_id)
        self.assertIn("accuracy 12.25", answered_without_torch("fine_tune_t5.py", *words))

    @parameterized.parameters(*NAMES)
    def test_help_all_shows_every_flag_once(self, script):
        shown = re.findall(r"^  --(\w+)", help_text(script, "", shows_all=True, width=100), re.MULTILINE)
        self.assertCountEqual(shown, flags_of(script))

    @parameterized.parameters(*NAMES)
    def test_help_shows_what_most_runs_need_and_says_how_many_it_leaves_out(self, script):
        text = help_text(script, "", width=100)
        shown = re.findall(r"^  --(\w+)", text, re.MULTILINE)
        self.assertBetween(len(shown), 35, 50)
        self.assertContainsSubset(("model_name_or_path", "learning_rate", "train_file", "resume"), shown)
        self.assertIn(f"{len(flags_of(script)) - len(shown)} more flags", " ".join(text.split()))


class VersionTest(parameterized.TestCase):
    def test_the_versions_are_the_installed_ones(self):
        from importlib.metadata import version

        lines = versions_text().splitlines()
        self.assertIn(f"transformers {version('transformers')}", lines)
        self.assertRegex(lines[0], r"^t5suite \d")
        self.assertEqual(answered_without_torch("t5suite/__main__.py", "--version").splitlines()[1:], lines[1:])

    def test_a_needed_package_that_is_not_installed_is_said_and_an_optional_one_left_out(self):
        def version(package):
            if package in ("transformers", "aim"):
                raise PackageNotFoundError(package)
            return "9.9"

        with mock.patch("importlib.metadata.version", version):
            text = versions_text()
        self.assertIn("\ntransformers is not installed\n", text)
        self.assertIn("\ndeepspeed 9.9\n", text)
        self.assertNotIn("aim", text)


def examples():
    """Every command line that a sub-command's help gives, with the sub-command."""
    found = []
    for command, parser in sub_parsers(cli._parser()):
        for line in (parser.epilog or "").replace("\\\n", " ").splitlines():
            line = re.split(r"\s+[#>] ?", line)[0].strip()
            found += [(command, line)] if line.startswith("t5suite ") else []
    return found


def sub_parsers(parser, name="t5suite"):
    """`(command, parser)` of every sub-command and their actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice, sub in action.choices.items():
                yield f"{name} {choice}", sub
                yield from sub_parsers(sub, f"{name} {choice}")


class CommandHelpTest(parameterized.TestCase):
    @parameterized.parameters(*(command for command, _ in sub_parsers(cli._parser())))
    def test_every_sub_command_has_an_example_of_its_own(self, command):
        self.assertTrue(any(line.startswith(command) for name, line in examples() if command.startswith(name)), command)

    @parameterized.parameters(*(line for _, line in examples()))
    def test_every_example_parses(self, line):
        _, command, *words = shlex.split(line.replace("$?", "0"))
        if command in cli.SCRIPTS:
            asked_for(cli.SCRIPTS[command], words)
        else:
            self.assertEqual(cli.parse_arguments([command, *words]).command, command)


class SummaryFlagsTest(parameterized.TestCase):
    def test_flags_that_change_weights_are_the_command_s_too(self):
        elsewhere = {
            "dropout_rate", "init_checkpoint", "allow_missing_keys", "device_map", "max_memory", "embedding_on_cpu",
            "load_in_8bit", "load_in_4bit", "model_class", "hub_timeout",
        }  # fmt: skip
        (model_arguments,) = [kind for kind in FINE_TUNING_ARGUMENTS if kind.__name__ == "ModelArguments"]
        names = {name for name in model_arguments.__dataclass_fields__ if not name.startswith("_")}
        self.assertEqual(names - set(flags_marked("shapes")), elsewhere)


class Zero3Test(parameterized.TestCase):
    @parameterized.parameters(
        ({"adapter": "prompt_tuning"}, "--adapter prompt_tuning: no virtual tokens under ZeRO-3"),
        ({"adapter": "lora", "merge_adapter": True}, "--merge_adapter: not under ZeRO-3"),
        ({"adapter": "lora"}, "ZeRO-3 needs a saved base model"),
    )
    def test_adapters_that_ask_for_whole_weights_are_refused(self, flags, message):
        training = types.SimpleNamespace(
            deepspeed={"zero_optimization": {"stage": 3}}, fsdp=None, gradient_checkpointing=False
        )
        arguments = types.SimpleNamespace(adapter=AdapterArguments(**flags), model=ModelArguments(), training=training)
        with exits_with(78, message):
            adapt_by_flags(tiny_model(), tiny_tokenizer(), arguments, trains=True)
