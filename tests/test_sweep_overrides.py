"""Flags behind `--` of `t5suite sweep`: they hold, and nothing tells of the values that they took the place of."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import yaml
from absl.testing import absltest, parameterized

from t5suite import cli
from t5suite.base.errors import ConfigError
from t5suite.launch.commands import command_without, flags_in, not_overridden, overridden

TRIAL = str(Path(__file__).resolve().parent / "sweep_trial.py")


def run(*argv) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        cli.main([str(word) for word in argv])
    return out.getvalue()


def sweep_of(place: Path, parameters: dict, *words, count=2) -> Path:
    content = {"name": "tried", "program": TRIAL, "method": "random",
               "metric": {"name": "eval/accuracy", "goal": "maximize"}, "parameters": parameters}  # fmt: skip
    (place / "file.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    run("sweep", place / "file.yaml", "--count", count, "--sweep_dir", place / "sweep", "--", *words)
    return place / "sweep"


class WordsTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--max_steps", "100"], {"max_steps": 100}),
        (["--max-steps=100"], {"max_steps": 100}),
        (["--a=1", "--a", "2"], {"a": 2}),
        (["--bf16", "--use_cpu", "False"], {"bf16": True, "use_cpu": False}),
        (["--learning_rate", "1e-3", "--seed", "-1"], {"learning_rate": 0.001, "seed": -1}),
        (["--freeze", "none", "--prefix=a b"], {"freeze": None, "prefix": "a b"}),
        (["--data_path", "x", "y"], {"data_path": ["x", "y"]}),
        (["--deepspeed_overrides", '{"x": 1}'], {"deepspeed_overrides": {"x": 1}}),
        (["recipes/mini.yaml", "--", "-x"], {}),
    )
    def test_the_last_value_of_each_flag_counts(self, words, expected):
        self.assertEqual(flags_in(words), expected)

    def test_parameters_keep_their_order_and_no_other_flag_becomes_one(self):
        parameters, words = {"b": 1, "a": 2}, ["--a", "5", "--use_cpu"]
        self.assertEqual(list(overridden(parameters, words).items()), [("b", 1), ("a", 5)])
        self.assertEqual(not_overridden(parameters, words), {"b": 1})

    @parameterized.parameters(
        (["p", "--max_steps", 1500, "--bf16", "${args}"], ["--max_steps", "100"], ["p", "--bf16", "${args}"]),
        (["p", "a.yaml", "--max-steps=1500", "${args}"], ["--max_steps=9"], ["p", "a.yaml", "${args}"]),
        (["p", "--data_path", "x", "y", "--seed", "1"], ["--data_path", "z"], ["p", "--seed", "1"]),
        (["p", "--seed", "1"], ["--max_steps", "9"], ["p", "--seed", "1"]),
    )
    def test_a_command_loses_the_flags_that_stand_behind_the_dashes(self, command, words, expected):
        self.assertEqual(command_without(command, words), expected)


class SweepTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.place = Path(tempfile.mkdtemp())
        rate = {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2}
        self.parameters = {"learning_rate": rate, "steps": {"value": 9}, "sleep": {"value": 0.0}}

    def test_trials_do_and_tell_what_stands_behind_the_dashes(self):
        sweep = sweep_of(self.place, self.parameters, "--steps=3")
        records = json.loads((sweep / "sweep.json").read_text())["trials"]
        self.assertLen(records, 2)
        for record in records:
            self.assertEqual(record["last_step"], 3)
            self.assertEqual(record["parameters"]["steps"], 3)
            self.assertEqual([word for word in record["command"].split() if "steps" in word], ["--steps=3"])
        said = run("report", sweep, "--format", "none")
        self.assertIn("in all trials: steps=3, sleep=0", said)
        self.assertNotIn("steps=9", said)

    def test_a_flag_that_is_searched_is_refused(self):
        with self.assertRaisesRegex(ConfigError, "--learning_rate 0.001 behind --: the sweep searches learning_rate"):
            sweep_of(self.place, self.parameters, "--learning_rate=1e-3")


if __name__ == "__main__":
    absltest.main()
