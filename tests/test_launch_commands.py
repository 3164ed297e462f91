"""The words of a trial's command: W&B's macros as its agent fills them in, and flags that are given again."""

import contextlib
import importlib
import os
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from t5suite.launch.commands import (
    ARGUMENT_MACROS,
    DEFAULT_COMMAND,
    command_without,
    command_words,
    flags_in,
    installed_script,
)
from t5suite.testing import exits_with

PARAMETERS = {
    "learning_rate": 1e-05, "seed": 3, "bf16": True, "tf32": False, "max_steps": None, "empty": "", "leading": "-x",
    "run_name": "a b 'c' \"d\" $(id) `id` ; é\nnew line", "items": [1, "two"],
    "lr_scheduler_kwargs": {"min_lr": 1e-05, "inner": {"on": True, "what": None}},
}  # fmt: skip
COMMANDS = {
    **{macro: ["python", "${program}", "${" + macro + "}"] for macro in ARGUMENT_MACROS},
    "default": list(DEFAULT_COMMAND), "none": None, "empty": [], "twice": ["${args}", "--", "${args_json}"],
    "numbers": ["${env}", "nice", "-n", 5, 1.5, True, "${interpreter}", "${program}"],
    "variable": ["${envvar:A_B1}", "x-${envvar:A_B1}-${envvar:UNSET_9}/${envvar:A_B1}", "${envvar:UNSET_9}"],
    "variable with a macro": ["${envvar:OWN_MACRO}"],
    "not a macro": ["--x=${args}", "a${", "$args", "{args}", "$HOME", "*"],
}  # fmt: skip
VARIABLES = {"A_B1": "one two", "OWN_MACRO": "${args_no_hyphens}"}


def agents_words(command, parameters, program, json_file) -> list[str]:
    """What `wandb_agent.Agent._command_run` (0.31.0) does between the two functions of its own that it calls."""
    from wandb.sdk.launch.sweeps import utils

    command = utils.create_sweep_command(list(command) if command is not None else None)
    found = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in parameters.items()}})
    found |= {"interpreter": ["python"], "program": [program], "args_json_file": [json_file], "env": ["/usr/bin/env"]}
    words = []
    for item in map(str, command):
        if item.startswith("${") and item.endswith("}"):
            words += found.get(item[2:-1]) or []
        else:
            words.append(item)
    return words


class MacrosTest(parameterized.TestCase):
    @parameterized.parameters(*COMMANDS)
    def test_words_equal_those_of_the_agent(self, name):
        command = COMMANDS[name]
        with mock.patch.dict(os.environ, VARIABLES):
            os.environ.pop("UNSET_9", None)
            wanted = agents_words(command, PARAMETERS, "a program.py", "/x/y.json")
            found = command_words(command, PARAMETERS, "a program.py", "/x/y.json")
        self.assertEqual(found, wanted)
        self.assertTrue(all(type(word) is str for word in found))

    def test_what_the_agent_leaves_out_is_an_error(self):
        for word in ("${arg}", "${ARGS}", "${}", "${args}${args}", "${envvar:lower}"):
            with self.subTest(word), exits_with(78, "unknown macro"):
                command_words([word], {"seed": 1})
        self.assertEqual(command_words(["${args"], {}), ["${args"])


class InstalledScriptTest(parameterized.TestCase):
    def test_a_script_that_is_not_here_is_the_installed_one(self):
        with contextlib.chdir(tempfile.mkdtemp()):
            for name in ("fine_tune_t5", "pre_train_t5"):
                module = importlib.import_module(name)
                self.assertEqual(installed_script(f"{name}.py"), module.__file__)
            for word in ("mine/fine_tune_t5.py", "fine_tune_t5", "train.py", "--run_name=fine_tune_t5.py", "evaluate"):
                self.assertEqual(installed_script(word), word)
            Path("fine_tune_t5.py").touch()
            self.assertEqual(installed_script("fine_tune_t5.py"), "fine_tune_t5.py")


class WordsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--max_steps", "100"], {"max_steps": 100}), (["--max-steps=100"], {"max_steps": 100}),
        (["--a=1", "--a", "2"], {"a": 2}), (["--bf16", "--use_cpu", "False"], {"bf16": True, "use_cpu": False}),
        (["--learning_rate", "1e-3", "--seed", "-1"], {"learning_rate": 0.001, "seed": -1}),
        (["--freeze", "none", "--prefix=a b"], {"freeze": None, "prefix": "a b"}),
        (["--data_path", "x", "y"], {"data_path": ["x", "y"]}), (["recipes/mini.yaml", "--", "-x"], {}),
        (["--deepspeed_overrides", '{"x": 1}'], {"deepspeed_overrides": {"x": 1}}),
    )  # fmt: skip
    def test_the_last_value_of_each_flag_counts(self, words, expected):
        self.assertEqual(flags_in(words), expected)

    @parameterized.parameters(
        (["p", "--max_steps", 1500, "--bf16", "${args}"], ["--max_steps", "100"], ["p", "--bf16", "${args}"]),
        (["p", "a.yaml", "--max-steps=1500", "${args}"], ["--max_steps=9"], ["p", "a.yaml", "${args}"]),
        (["p", "--data_path", "x", "y", "--seed", "1"], ["--data_path", "z"], ["p", "--seed", "1"]),
        (["p", "--seed", "1"], ["--max_steps", "9"], ["p", "--seed", "1"]),
    )
    def test_a_command_loses_the_flags_that_stand_behind_the_dashes(self, command, words, expected):
        self.assertEqual(command_without(command, words), expected)
