"""What a trial runs: the words of its command, as W&B's agent fills them in, its devices and its environment."""

import contextlib
import importlib
import io
import itertools
import json
import os
import sys
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
from t5suite.launch.trial_environments import devices_of_workers, trial_environment, visible_devices
from t5suite.testing import exits_with, run_cli

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
    from wandb.sdk.launch.sweeps import utils  # slow to import

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
        (["p", "--data_dir", "${envvar:DATA}", "${args_no_equals}"], ["--data_dir", "x"], ["p", "${args_no_equals}"]),
        (
            ["accelerate", "launch", "--bf16", "${program}", "--bf16", "--seed=1", "${args}"],
            ["--bf16", "--seed", "2"],
            ["accelerate", "launch", "--bf16", "${program}", "${args}"],
        ),
        (
            ["a", "--gradient_accumulation_steps", "2", "-m", "t5suite", "fine_tune", "${args}"],
            ["--gradient_accumulation_steps", "4"],
            ["a", "--gradient_accumulation_steps", "2", "-m", "t5suite", "fine_tune", "${args}"],
        ),
    )
    def test_a_script_loses_the_flags_that_stand_behind_the_dashes_and_its_launcher_none(
        self, command, words, expected
    ):
        self.assertEqual(command_without(command, words, "fine_tune_t5.py"), expected)


class DevicesTest(parameterized.TestCase):
    @parameterized.parameters(
        (2, "0123", None, [["0", "1"], ["2", "3"]]), (2, "012", None, [["0"], ["1"]]), (1, "01", 1, [["0"]]),
        (3, "01", None, [["0"], ["1"], ["0"]]), (2, "0123", 1, [["0"], ["1"]]), (2, "01", 0, [[], []]),
        (2, "", None, [None, None]), (1, "01", None, [None]),
    )  # fmt: skip
    def test_devices_are_shared_out(self, workers, devices, each, expected):
        self.assertEqual(devices_of_workers(workers, list(devices), each), expected)

    def test_visible_devices_are_those_of_the_environment(self):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "3, GPU-ab,"}):
            self.assertEqual(visible_devices(), ["3", "GPU-ab"])
        listed = mock.patch.object(os, "listdir", lambda path: ["nvidia3", "nvidiactl", "tty"])
        with mock.patch.dict(os.environ), listed:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertEqual(visible_devices(), ["0"])


# It notes when it ran, and on which device: the first trial runs until two others have ended.
NOTING_TRIAL = """#!/bin/sh
mkdir -p "$T5SUITE_RUN_DIR" && cd "$T5SUITE_RUN_DIR" || exit 1
begin=$(date +%s%N)
echo '{"step": 1, "seconds": 1.0, "eval/accuracy": 50.0}' > metrics.jsonl
[ "$1" != --seed=0 ] || while [ ! -e ../0002/results.json ]; do sleep 0.02; done
echo "$begin $(date +%s%N) $CUDA_VISIBLE_DEVICES" > noted
echo '{}' > results.json
"""


class WorkersTest(parameterized.TestCase):
    def test_trials_that_run_at_once_share_no_device_however_they_end(self):
        place = Path(tempfile.mkdtemp())
        (place / "trial").write_text(NOTING_TRIAL)
        (place / "trial").chmod(0o755)
        config = {
            "method": "grid",
            "metric": {"name": "eval/accuracy", "goal": "maximize"},
            "parameters": {"seed": {"values": list(range(5))}},
            "command": [str(place / "trial"), "${args}"],
        }
        (place / "sweep.yaml").write_text(json.dumps(config))
        devices = mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0,1")
        with devices, contextlib.redirect_stdout(io.StringIO()):
            run_cli("sweep", place / "sweep.yaml", "--sweep_dir", place / "out", "--workers", 2)
        notes = [path.read_text().split() for path in place.glob("out/trials/*/noted")]
        self.assertLen(notes, 5)
        for (begin, end, device), (other_begin, other_end, other_device) in itertools.combinations(notes, 2):
            if int(begin) < int(other_end) and int(other_begin) < int(end):
                self.assertNotEqual(device, other_device)


class EnvironmentTest(parameterized.TestCase):
    def test_a_trials_surroundings(self):
        """Its run directory, its ids, and its share of threads; nothing of a server's sweep."""
        with mock.patch.dict(os.environ, {"WANDB_SWEEP_ID": "of-a-server", "PATH": "/bin"}):
            os.environ.pop("OMP_NUM_THREADS", None)
            environment = trial_environment("trials/0000", "/0.codes", "abc-0000", "my sweep", 10**6, ["1", "2"])
        expected = {"T5SUITE_RUN_DIR": str(Path("trials/0000").absolute()), "WANDB_RUN_ID": "abc-0000",
                    "T5SUITE_EXIT_CODES": "/0.codes",
                    "WANDB_RUN_GROUP": "my sweep", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1,2",
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}/bin"}  # fmt: skip
        self.assertEqual({name: environment.get(name) for name in expected}, expected)
        self.assertNotIn("WANDB_SWEEP_ID", environment)

    def test_on_macos_workers_share_all_cores(self):
        with mock.patch.dict(os.environ), mock.patch("os.cpu_count", return_value=12):
            os.environ.pop("OMP_NUM_THREADS", None)
            with mock.patch.object(os, "sched_getaffinity"):
                del os.sched_getaffinity  # which Linux alone has
                environment = trial_environment("trials/0000", "/0.codes", "abc-0000", "my sweep", 3, None)
        self.assertEqual(environment["OMP_NUM_THREADS"], "4")


class CommandTest(parameterized.TestCase):
    @parameterized.parameters(
        (["python", "x y"], "ours", "python 'x y'"),
        (["python", "x y"], "theirs", "PATH={}:$PATH python 'x y'"),
        (["/usr/bin/env", "python", "x"], "theirs", "PATH={}:$PATH /usr/bin/env python x"),
        (["/opt/python", "x"], "theirs", "/opt/python x"),
        (["bash", "x"], "theirs", "bash x"),
    )
    def test_a_command_is_shown_with_our_programs_before_those_that_a_shell_would_find(self, words, first, expected):
        """As the record of a sweep has it; its only trial fails at once."""
        place = Path(tempfile.mkdtemp())
        for path in (place / "ours/python", place / "theirs/python", place / "theirs/bash"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("#!/bin/sh\nexit 78\n")
            path.chmod(0o755)
        (place / "ours" / "python3").symlink_to(sys.executable)
        metric = {"name": "eval/accuracy", "goal": "maximize"}
        config = {
            "method": "grid",
            "metric": metric,
            "parameters": {"seed": {"values": [1]}},
            "command": [*words, "${args}"],
        }
        (place / "sweep.yaml").write_text(json.dumps(config))
        interpreter = mock.patch.object(sys, "executable", str(place / "ours" / "python3"))
        output = contextlib.redirect_stdout(io.StringIO())
        with interpreter, output, mock.patch.dict(os.environ, PATH=str(place / first)), exits_with(78):
            run_cli("sweep", place / "sweep.yaml", "--sweep_dir", place / "out")
        (trial,) = json.loads((place / "out" / "sweep.json").read_text())["trials"]
        self.assertEqual(trial["command"], expected.format(place / "ours") + " --seed=1")
