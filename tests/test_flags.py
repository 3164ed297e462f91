"""Flags: YAML then command line, what sweep agents and launchers write, and errors that say what would be right."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from unittest import mock

import pytest
import transformers
import yaml
from absl.testing import parameterized
from support import answered_without_torch

from t5suite.testing import cli_output, exits_with, parse_flags, process_as_before, run_cli, tiny_tuner

HERE = Path(__file__).resolve().parent
# By script: the sub-command that runs it.
COMMANDS = {"fine_tune_t5": "fine_tune", "pre_train_t5": "pre_train"}
DESCRIBED = yaml.safe_load((HERE / "command_flags.yaml").read_text(encoding="utf-8"))


def parse(*argv):
    return parse_first("--use_cpu", *argv)


def parse_first(*argv):
    return parse_flags("fine_tune_t5", argv)


def refusal(script, argv) -> str:
    """The message of the parser that makes the arguments of a run."""
    with exits_with(78) as failure:
        parse_flags(script, argv)
    return failure.message


def refusal_before_imports(script, argv) -> str:
    """The message of a command that ends before it imports torch."""
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            run_cli(COMMANDS[script], *argv)
        except SystemExit as end:
            assert end.code == 78, end.code
    return printed.getvalue().removeprefix("error: ").removesuffix("\n")


def help_of(*words) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        run_cli(*words)
    return printed.getvalue()


def flags_in(text) -> list[str]:
    """The flags that begin a line of a help."""
    return re.findall(r"^  --(\w+)", text, re.MULTILINE)


def flags_by_heading(text) -> dict[str, list[str]]:
    """The flags of a help below each of its headings, where there are any."""
    parts = re.split(r"^(\S.*):$", text, flags=re.MULTILINE)[1:]
    flags = {heading: flags_in(part) for heading, part in zip(parts[::2], parts[1::2], strict=True)}
    return {heading: of_heading for heading, of_heading in flags.items() if of_heading}


def config_file(text, name="run.yaml"):
    path = Path(tempfile.mkdtemp(), name)
    path.write_text(text, encoding="utf-8")
    return str(path)


def flags_of_transformers() -> dict[str, dict]:
    """Transformers' training arguments by its own parser, in the form of `command_flags.yaml`."""
    flags = {}
    for action in transformers.HfArgumentParser(transformers.Seq2SeqTrainingArguments)._actions:
        if action.option_strings[0] != f"--{action.dest}":  # --help, --no_...
            continue
        kind = {"int": "int", "float": "float", "string_to_bool": "bool"}.get(getattr(action.type, "__name__", ""))
        flags[action.dest] = {"type": kind or "str", "list": action.nargs == "+"}
        if action.choices:
            flags[action.dest]["choices"] = list(action.choices)
        if action.nargs == "?":
            flags[action.dest]["default"] = action.default
    return flags


def all_flags(script) -> dict[str, dict]:
    """Every flag of a script: ours as `command_flags.yaml` describes them, the others as transformers does."""
    return {**flags_of_transformers(), **DESCRIBED["scripts"]["both"], **DESCRIBED["scripts"][script]}


def flags_before_seed(script) -> dict[str, dict]:
    """Those that a line may hold before `--seed`; `--local_rank` is a launcher's, and left out of every line."""
    return {name: entry for name, entry in all_flags(script).items() if name not in ("seed", "local_rank")}


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
        settings = parse("--config", path, "--learning_rate=2e-5", "--max_train_samples=None")
        self.assertEqual((settings["learning_rate"], settings["max_train_samples"]), (2e-5, None))

    @parameterized.parameters("fine_tune_t5", "pre_train_t5")
    def test_apples_gpu_which_was_never_tested_is_left_idle_and_that_is_told_once(self, script):
        for function in ("accelerator.is_available", "backends.mps.is_available", "backends.mps.is_built"):
            self.enter_context(mock.patch(f"torch.{function}", return_value=True))
        for choice in ([], ["--use_cpu", "False"]):
            with self.assertLogs("t5suite", "INFO") as logs:
                self.assertIs(parse_flags(script, choice)["use_cpu"], True)
            self.assertLen(logs.output, 1)
            self.assertRegex(logs.output[0], r"Apple's GPU \(MPS\) is not used, .*never tested.*--use_cpu")
        with self.assertNoLogs("t5suite", "INFO"):
            parse_flags(script, ["--use_cpu"])

    def test_checkpoints_follow_evaluations(self):
        settings = parse("--eval_strategy", "steps", "--eval_steps", "30")
        self.assertEqual((settings["save_strategy"].value, settings["save_steps"]), ("steps", 30))
        for flags, steps in ([], 50), (["--logging_steps", "30"], 30), (["--logging_steps", "0.25"], 0.25):
            settings = parse("--eval_strategy", "steps", *flags)
            self.assertEqual((settings["eval_steps"], settings["save_steps"]), (steps, steps), flags)
        settings = parse("--eval_strategy", "steps", "--load_best_model_at_end", "False")
        self.assertEqual((settings["eval_steps"], settings["save_steps"]), (50, 500))
        for flag in ("--eval_strategy", "--save_strategy"):
            self.assertFalse(parse(flag, "no")["load_best_model_at_end"])


class DirectionTest(parameterized.TestCase):
    """Of every score the highest is the best; the loss counts as its negative."""

    @parameterized.parameters(([], ""), (["--metric_for_best_model", "wer"], " wer"))
    def test_the_lowest_score_cannot_select(self, flags, named):
        message = refusal("fine_tune_t5", [*flags, "--greater_is_better", "False"])
        self.assertIn(f"--greater_is_better False: of --metric_for_best_model{named} the highest score is", message)

    @parameterized.parameters(
        ("fine_tune_t5", ["--metric_for_best_model=eval/loss", "--greater_is_better=False"]),
        ("fine_tune_t5", ["--metric_for_best_model=wer", "--greater_is_better=True"]),
        ("pre_train_t5", ["--greater_is_better=False"]),
    )
    def test_what_selects_anyhow_may_be_said(self, script, flags):
        self.assertTrue(parse_flags(script, ["--use_cpu", *flags])["greater_is_better"])


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
        from wandb.sdk.launch.sweeps.utils import create_sweep_command_args  # slow to import

        words = create_sweep_command_args({"args": {name: {"value": value} for name, value in DRAWN.items()}})
        if macro == "args_no_boolean_flags":  # False is lost there
            return words[macro] + ["--load_best_model_at_end=False"]
        return words[macro]

    def check(self, settings):
        for name, value in DRAWN.items():
            expected = {"optim_args": "betas=(0.9,0.95),eps=1e-06"}.get(name, value)
            self.assertEqual(settings[name], expected, name)

    @parameterized.parameters(*MACROS)
    def test_every_macro_means_the_same(self, macro):
        self.check(parse(*self.words(macro)))

    def test_the_pre_training_script_understands_them_too(self):
        argv = ["train_file=['a.txt', 'b.txt']", "++corpus_weights=[1, 2.5]", "--inputs_length", "64", "--use_cpu=True"]
        settings = parse_flags("pre_train_t5", argv)
        self.assertEqual((settings["train_file"], settings["corpus_weights"]), (["a.txt", "b.txt"], [1.0, 2.5]))
        self.assertEqual(settings["inputs_length"], 64)

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

    def test_a_trial_of_the_agent_reports_to_wandb_unless_a_flag_says_otherwise(self):
        with mock.patch.dict(os.environ, WANDB_SWEEP_ID="s1"):
            self.assertEqual(parse()["report_to"], ["wandb"])
            self.assertEqual(parse("--report_to", "none")["report_to"], [])
            self.assertEqual(parse_first(config_file("report_to: tensorboard"))["report_to"], ["tensorboard"])
        self.assertEqual(parse()["report_to"], [])


class BoundsTest(parameterized.TestCase):
    @parameterized.parameters(*COMMANDS)
    @pytest.mark.quick_cases(1)
    def test_every_number_has_a_bound_and_no_other_flag_has(self, script):
        flags, bounded = flags_before_seed(script), []
        for name in flags:
            word = "9" * 400 if flags[name].get("type") == "int" else "nan"
            if ": must be " in refusal_before_imports(script, [f"--{name}={word}", "--seed=seven"]):
                bounded.append(name)
        self.assertCountEqual(bounded, [name for name in flags if flags[name].get("type") in ("int", "float")])

    def test_a_name_that_a_table_in_python_syntax_has_twice_is_refused(self):
        for table in ("{'min_lr': 1, 'min_lr': 2}", "{'a': {'min_lr': 1, 'min_lr': 1}}"):
            message = refusal("fine_tune_t5", [f"--lr_scheduler_kwargs={table}"])
            self.assertRegex(message, "lr_scheduler_kwargs: .*'min_lr' is given for the second time")

    @parameterized.parameters(
        ("dropout_rate", "0", "1"), ("label_smoothing_factor", "1", "1.01"), ("adam_beta2", "0", "1"),
        ("validation_split", "0.5", "1"), ("max_grad_norm", "0", "inf"), ("max_steps", "-1", "-2"),
        ("warmup_steps", "0", "-0.1"), ("seed", "4294967295", "4294967296"), ("num_samples", "0", "-1"),
        ("save_total_limit", "1", "0"), ("generation_max_length", "2", "1"), ("mixing_limit", "0.5", "inf"),
        ("max_input_tokens", "5", "0"), ("num_train_epochs", "0.001", "0"), ("block_size", "8", "7"),
        ("learning_rate", "1e18", "inf"), ("dataloader_num_workers", "64", "10000"),
    )  # fmt: skip
    def test_the_ends_of_a_range_are_where_they_should_be(self, name, good, bad):
        needed = ["--data_format", "text", "--train_dir", "x"] if name in ("block_size", "validation_split") else []
        needed += ["--data_class", "Debug"] if name == "max_input_tokens" else []
        parse(*needed, f"--{name}={good}")
        with exits_with(78, f"--{name} {bad}: must be"):
            parse(*needed, f"--{name}={bad}")


class ErrorsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--lerning_rate", "1"], r"--lerning_rate.*--learning_rate"),
        (["--learning_rate", "fast"], r"learning_rate.*'fast'"),
        (["--eval_method", "genrate"], r"eval_method.*'genrate'.*did you mean generate"),
        (["--seed"], r"--seed: expected one argument"), (["--seed=-1"], "--seed -1: must be at least 0"),
        (["--lr", "1e-3"], "unknown flag --lr; here it is --learning_rate$"),
        (["--gpu", "0"], "--gpu; here it is not needed: a GPU is found automatically; --use_cpu uses none$"),
        (["--device", "cuda"], "--device; here it is not needed: a GPU is found automatically; --use_cpu uses none$"),
        (["--cpu"], "--cpu; here it is --use_cpu$"),
        (["--eval_every", "9"], "--eval_every; here it is --eval_strategy steps --eval_steps 500$"),
        (["--scale_parameter", "True"], "here it is --optimizer adafactor --optim_args scale_parameter=True$"),
        (["--lr_drop_threshold_mode", "abs"], "--lr_drop_threshold_mode; here it is not needed: it is absolute$"),
        (["--seed=1", "--max_length=9"], "here it is --max_source_length and --max_target_length$"),
        (["--optim", "adamm"], r"optim.*'adamm'.*did you mean"),
        (["--optim", "adafctor"], r"--optim: unknown choice 'adafctor'; did you mean adafactor, adamw_torch, adagrad\?$"),
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
        message_of_parser = refusal("fine_tune_t5", argv)
        self.assertRegex(message_of_parser, message)
        if "is no" not in message and argv[0][0] != "{":
            self.assertEqual(refusal_before_imports("fine_tune_t5", argv), message_of_parser)

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
        self.assertRegex(refusal("fine_tune_t5", [config_file(text)]), message)


# A value of each type, as a YAML file has it, and one that is none.
GOOD = {"bool": True, "int": 8, "float": 0.5, "dict": {"a": 1}, "pairs": {"a": 1}}
BAD = {"bool": "perhaps", "int": "many", "float": "fast"}
# Flags that are looked up in a table, whose lowest value is higher, or that take a table or few words.
GOOD_OF_FLAG = {
    "optimizer": "adamw", "schedule": "inverse_sqrt_t5", "mean_span_length": 3.5, "fsdp": True,
    "parallelism_config": None, "debug": "underflow_overflow", "lr_scheduler_kwargs": {"a": 1}, "liger_kernel_config": {"a": True},
}  # fmt: skip
# The last word of lines that are refused for it alone, and what is said of it.
LAST_WORD, REFUSAL_OF_LAST_WORD = "--seed=-1", "--seed -1: must be at least 0 and at most 4294967295 (a whole number)"


def good_value(name, entry):
    """A value that the flag takes."""
    if "choices" in entry:
        return entry["choices"][0]
    return GOOD_OF_FLAG.get(name, GOOD.get(entry.get("type"), "word"))


def refused_in_a_sweep(script, values: dict) -> set[str]:
    """The flags whose value the check of a sweep file refuses."""
    parameters = {name: {"value": value} for name, value in values.items()}
    sweep = {"method": "grid", "command": ["python", f"{script}.py", "${args}"], "parameters": parameters}
    path = config_file(yaml.safe_dump(sweep), "sweep.yaml")
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(ValueError):
        run_cli("sweep", "lint", path, "--json")
    checked = json.loads(printed.getvalue())
    assert checked["unreadable"] is None, checked
    return {finding["message"].partition(":")[0] for finding in checked["findings"] if finding["level"] == "error"}


class KindsTest(parameterized.TestCase):
    """What a flag takes: the same before the imports, in the parser and in the check of a sweep file."""

    def check_taken(self, script, words):
        self.assertEqual(refusal_before_imports(script, [*words, LAST_WORD]), REFUSAL_OF_LAST_WORD)
        self.assertEqual(refusal(script, [*words, LAST_WORD]), REFUSAL_OF_LAST_WORD)

    @parameterized.parameters(*COMMANDS)
    @pytest.mark.quick_cases(1)
    def test_every_flag_takes_a_value_of_its_kind_and_only_a_list_several(self, script):
        words = []
        for name, entry in flags_before_seed(script).items():
            value = good_value(name, entry)
            word = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [f"--{name}", word, word] if entry.get("list") else [f"--{name}", word]
            if not entry.get("list"):
                refused = refusal_before_imports(script, [f"--{name}", word, "another", LAST_WORD])
                self.assertStartsWith(refused, "unexpected 'another'")
        self.check_taken(script, words)

    @parameterized.parameters(*COMMANDS)
    def test_the_flags_without_a_value_are_those_that_may_be(self, script):
        flags = flags_before_seed(script)
        is_bare = lambda name: (flags[name].get("type") == "bool" or name == "fsdp") and "default" in flags[name]
        self.check_taken(script, [f"--{name}" for name in flags if is_bare(name)])
        for name in flags:
            if not is_bare(name):
                refused = refusal_before_imports(script, [f"--{name}", LAST_WORD])
                self.assertEqual(refused, f"--{name}: expected one argument")

    @parameterized.parameters(*COMMANDS)
    @pytest.mark.quick_cases(1)
    def test_a_flag_that_is_on_by_default_has_a_negation_and_no_other_switch_has(self, script):
        flags = flags_before_seed(script)
        is_on = lambda name: flags[name].get("default") is True
        self.check_taken(script, [f"--no_{name}" for name in flags if is_on(name)])
        for name, entry in flags.items():
            if entry.get("type") == "bool" and not is_on(name):
                refused = refusal_before_imports(script, [f"--no_{name}", LAST_WORD])
                self.assertStartsWith(refused, f"unknown flag --no_{name}")

    @parameterized.parameters(*COMMANDS)
    @pytest.mark.slow
    def test_a_sweep_may_draw_values_of_a_flag_s_kind_and_no_others(self, script):
        flags = all_flags(script)
        flags.pop("output_dir")  # all trials would share it
        good = {name: good_value(name, entry) for name, entry in flags.items()}
        self.assertEmpty(refused_in_a_sweep(script, good))
        self.assertEmpty(refused_in_a_sweep(script, {name: [good[name]] for name in flags if flags[name].get("list")}))
        single = [name for name in flags if not flags[name].get("list")]
        self.assertCountEqual(refused_in_a_sweep(script, {name: [good[name]] for name in single}), single)
        bad = {name: BAD[entry["type"]] for name, entry in flags.items() if entry.get("type") in BAD}
        bad |= {name: "no choice" for name, entry in flags.items() if "choices" in entry}
        self.assertCountEqual(refused_in_a_sweep(script, bad), bad)


class TableValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("learning_rate", 1e-3, True), ("learning_rate", "1e-5", True), ("learning_rate", None, False),
        ("learning_rate", [1e-3], False), ("max_steps", 12.0, False), ("max_train_samples", None, True),
        ("bf16", "False", True), ("eval_method", "guess", False), ("save_strategy", False, False),  # YAML's bare no
        ("schedule", "inverse_sqrt_t5", True), ("schedule", "zigzag", False), ("include_for_metrics", ["inputs"], True),
        ("include_for_metrics", [], False), ("dataset_name", "cola,rte", True),
    )  # fmt: skip
    def test_a_sweep_takes_a_value_as_the_script_takes_it(self, name, value, is_taken):
        self.assertEqual(refused_in_a_sweep("fine_tune_t5", {name: value}), set() if is_taken else {name})
        if not isinstance(value, list):
            with contextlib.nullcontext() if is_taken else exits_with(78):
                parse(f"--{name}={value}")


# Ends with an error where the script goes on to load torch.
TORCH_IS_MISSING = """
import runpy, sys
sys.modules["torch"] = None
sys.argv = ["fine_tune_t5.py", *sys.argv[1:]]
runpy.run_path("fine_tune_t5.py", run_name="__main__")
"""


def is_answered_at_once(words, **variables) -> bool:
    command = [sys.executable, "-c", TORCH_IS_MISSING, *words]
    process = subprocess.run(
        command, cwd=HERE.parent, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    return process.returncode == 0


class ScriptHelpTest(parameterized.TestCase):
    @parameterized.parameters(("fine_tune_t5", "--help"), ("pre_train_t5", "--help_all"), ("pre_train_t5", "--version"))
    @pytest.mark.quick_cases(1)
    def test_a_script_answers_without_torch(self, script, question):
        self.check_answer(script, question)

    @parameterized.product(script=list(COMMANDS), question=["--help", "-h", "--help_all", "--version"])
    @pytest.mark.slow
    def test_both_scripts_answer_every_question_without_torch(self, script, question):
        self.check_answer(script, question)

    def check_answer(self, script, question):
        before = [] if question in ("--help", "--version") else ["mini.yaml"]
        out = answered_without_torch(f"{script}.py", *before, question)
        expected = "torch " if question == "--version" else "--learning_rate X"
        self.assertIn(expected, out)

    @parameterized.parameters(
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set in the environment, but no RANK"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 with WORLD_SIZE=2"),
        ({"LOCAL_RANK": "first"}, "LOCAL_RANK='first'"),
    )
    @pytest.mark.quick_cases(1)
    def test_ranks_that_no_launcher_can_have_set_are_refused_without_torch(self, variables, message):
        with mock.patch.dict(os.environ, variables):
            self.assertIn(message, answered_without_torch("fine_tune_t5.py", code=78))

    @parameterized.parameters(
        ("pre_train_t5.py", "--epochs", "3"), ("t5suite/__main__.py", "eval", "mini.yaml", "--epochs=3")
    )
    @pytest.mark.quick_cases(1)
    def test_a_wrong_flag_is_answered_without_torch(self, script, *argv):
        self.check_wrong_flag(script, *argv)

    @parameterized.parameters(
        ("fine_tune_t5.py", "mini.yaml", "--epochs", "3"), ("t5suite/__main__.py", "train", "--epochs=3")
    )
    @pytest.mark.slow
    def test_so_is_one_of_other_commands(self, script, *argv):
        self.check_wrong_flag(script, *argv)

    def check_wrong_flag(self, script, *argv):
        answer = "error: unknown flag --epochs; here it is --num_train_epochs\n"
        self.assertEqual(answered_without_torch(script, *argv, code=78), answer)

    @pytest.mark.slow
    def test_a_finished_run_s_own_command_shows_it_without_torch_and_no_other_command_is_taken_for_it(self):
        run = tempfile.mkdtemp() + "/run"
        words = ["mini.yaml", "--output_dir", run, "--max_steps", "1", "--max_eval_samples", "8", "--use_cpu"]
        command = [sys.executable, "fine_tune_t5.py", *words]
        subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True, timeout=300)
        accuracy = json.loads(Path(run, "results.json").read_text())["tasks"]["sentiment"]["accuracy"]
        self.assertIn(f"accuracy {accuracy:.2f}", answered_without_torch("fine_tune_t5.py", *words))
        other = subprocess.run([*command, "--seed", "7"], cwd=HERE.parent, capture_output=True, text=True, timeout=300)
        self.assertEqual(other.returncode, 78)
        self.assertIn("seed 42 there, 7 here", other.stderr)
        self.assertTrue(is_answered_at_once(words))
        for further in (["--seed=7"], ["--resume=none"], ["--metrics=mine:f"], ["--weight_decay=0.0"]):
            self.assertFalse(is_answered_at_once([*words, *further]), further)
        self.assertFalse(is_answered_at_once(words, T5SUITE_DATA_DIR="elsewhere"))

    @parameterized.parameters(*COMMANDS)
    def test_help_all_shows_every_flag_once(self, script):
        self.assertCountEqual(flags_in(help_of(COMMANDS[script], "--help_all")), all_flags(script))

    @parameterized.parameters(*COMMANDS)
    def test_help_shows_what_most_runs_need_and_says_how_many_it_leaves_out(self, script):
        text = help_of(COMMANDS[script], "--help")
        shown = flags_in(text)
        self.assertBetween(len(shown), 35, 50)
        self.assertContainsSubset(("model_name_or_path", "learning_rate", "train_file", "resume"), shown)
        self.assertIn(f"{len(all_flags(script)) - len(shown)} more flags", " ".join(text.split()))

    @parameterized.parameters(*COMMANDS)
    def test_under_each_heading_the_flags_that_most_runs_need_come_first(self, script):
        common = flags_by_heading(help_of(COMMANDS[script], "--help"))
        self.assertGreater(len(common), 5)
        for heading, flags in flags_by_heading(help_of(COMMANDS[script], "--help_all")).items():
            first = common.get(heading, [])
            self.assertEqual(flags[: len(first)], first, heading)


class VersionTest(parameterized.TestCase):
    def test_the_versions_are_the_installed_ones(self):
        lines = cli_output("--version").splitlines()
        self.assertIn(f"transformers {version('transformers')}", lines)
        self.assertRegex(lines[0], r"^t5suite \d")
        self.assertEqual(answered_without_torch("t5suite/__main__.py", "--version").splitlines()[1:], lines[1:])

    def test_a_needed_package_that_is_not_installed_is_said_and_an_optional_one_left_out(self):
        def version_of(package):
            if package in ("transformers", "aim"):
                raise PackageNotFoundError(package)
            return "9.9"

        with mock.patch("importlib.metadata.version", version_of):
            text = cli_output("--version")
        self.assertIn("\ntransformers is not installed\n", text)
        self.assertIn("\ndeepspeed 9.9\n", text)
        self.assertNotIn("aim", text)


class SummaryFlagsTest(parameterized.TestCase):
    def test_flags_that_change_weights_are_the_command_s_too(self):
        _, _, text = help_of("fine_tune", "--help_all").partition("\nmodel:\n")
        flags_of_models = flags_in(text.partition("\nadapters:\n")[0])
        self.assertNotEmpty(flags_of_models)
        flags_of_summary = flags_in(help_of("summary", "--help"))
        self.assertCountEqual(
            set(flags_of_models) - set(flags_of_summary),
            ["dropout_rate", "init_checkpoint", "allow_missing_keys", "model_class"],
        )
        self.assertIn("attn_implementation", flags_of_summary)


class Zero3Test(parameterized.TestCase):
    @parameterized.parameters(
        ({"adapter": "prompt_tuning"}, "--adapter prompt_tuning: no virtual tokens under ZeRO-3"),
        ({"adapter": "lora"}, "ZeRO-3 needs a saved base model"),
    )
    def test_adapters_that_ask_for_whole_weights_are_refused(self, flags, message):
        pytest.importorskip("deepspeed")
        # Nothing is compiled for ranks that share memory: there is one.
        self.enter_context(mock.patch("deepspeed.comm.torch.build_shm_op", return_value=None))
        with process_as_before(), exits_with(78, message):
            tuner = tiny_tuner(deepspeed="zero3", **flags)
            self.fail(f"a model was made: {tuner.model}")
