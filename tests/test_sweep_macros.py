"""The words of a trial's command are those that W&B's own agent makes."""

import json
import os
from unittest import mock

from absl.testing import absltest, parameterized

from t5suite.base.errors import ConfigError
from t5suite.launch.commands import ARGUMENT_MACROS, DEFAULT_COMMAND, MACRO_NAMES, command_words, needs_json_file

PARAMETERS = {
    "learning_rate": 1e-05,
    "seed": 3,
    "bf16": True,
    "tf32": False,
    "max_steps": None,
    "run_name": "a b 'c' \"d\" $(id) `id` ; é\nnew line",
    "empty": "",
    "lr_scheduler_kwargs": {"min_lr": 1e-05, "inner": {"on": True, "what": None}},
    "items": [1, "two"],
    "leading": "-x",
}
COMMANDS = {
    **{macro: ["python", "${program}", "${" + macro + "}"] for macro in ARGUMENT_MACROS},
    "default": list(DEFAULT_COMMAND),
    "none": None,
    "empty": [],
    "twice": ["${args}", "--", "${args_json}"],
    "numbers": ["${env}", "nice", "-n", 5, 1.5, True, "${interpreter}", "${program}"],
    "variable": ["${envvar:A_B1}", "x-${envvar:A_B1}-${envvar:UNSET_9}/${envvar:A_B1}", "${envvar:UNSET_9}"],
    "variable with a macro": ["${envvar:OWN_MACRO}"],
    "not a macro": ["--x=${args}", "a${", "$args", "{args}", "$HOME", "*"],
}
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

    def test_the_agent_knows_no_macro_that_we_do_not(self):
        from wandb.sdk.launch.sweeps import utils

        found = utils.create_sweep_command_args({"args": {}})
        found.pop("args_dict")  # a table, whose names alone the agent would take for words
        self.assertContainsSubset([*found, "env", "interpreter", "program", "args_json_file"], MACRO_NAMES)

    @parameterized.parameters("${arg}", "${ARGS}", "${args", "${}", "${args}${args}", "${envvar:lower}")
    def test_what_the_agent_leaves_out_is_an_error(self, word):
        if not word.endswith("}"):
            self.assertEqual(command_words([word], {}), [word])
            return
        with self.assertRaisesRegex(ConfigError, "unknown macro"):
            command_words([word], {"seed": 1})

    def test_a_program_is_asked_for(self):
        with self.assertRaisesRegex(ConfigError, "no program"):
            command_words(None, {"seed": 1})

    def test_a_file_is_written_only_where_it_is_asked_for(self):
        self.assertTrue(needs_json_file(["python", "${args_json_file}"]))
        self.assertFalse(needs_json_file(["python", "${args_json}"]))
        self.assertFalse(needs_json_file(None))

    def test_json_holds_the_parameters(self):
        self.assertEqual(json.loads(command_words(["${args_json}"], PARAMETERS)[0]), PARAMETERS)


if __name__ == "__main__":
    absltest.main()
