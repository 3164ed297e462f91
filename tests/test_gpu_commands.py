"""The commands that a person with a GPU runs, as far as a CPU can tell: words, figures, tables, going on."""

import argparse
import doctest
import json
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized

from benchmarks import precisions, pretrain_and_compare, pretrained_vs_scratch
from t5suite.launch.commands import command_without
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS


def options(**given):
    """As the command line leaves them."""
    base = {"device": "cuda", "steps": 60, "text": None, "tokenizer": None, "peak_tflops": None}
    return argparse.Namespace(**{**base, **given})


class PrecisionsTest(parameterized.TestCase):
    @parameterized.parameters(*precisions.CASES)
    def test_every_case_is_a_run_that_the_script_takes(self, case):
        words = precisions.command(case, options(device="cpu"), Path(tempfile.mkdtemp()) / "run")
        *_, training = parse_arguments(PRE_TRAINING_ARGUMENTS, words[2:], prog="pre_train_t5.py", description="")
        self.assertEqual((training.bf16, training.torch_compile), ("bf16" in case, "compiled" in case))
        self.assertEqual(training.max_steps // training.logging_steps, 6)
        # A GPU's words differ by precision and sizes alone.
        words = precisions.command(case, options(tokenizer="t5-small", text=["a.txt", "b.txt"]), Path("run"))
        self.assertIn("t5-v1_1-base", words)
        self.assertEqual(words[words.index("--tf32") + 1], str(not case.startswith("float32")))
        self.assertEqual(words[words.index("--train_file") + 1 :][:2], ["a.txt", "b.txt"])
        self.assertNoCommonElements(words, ("--use_cpu", "--config_overrides"))

    def test_the_first_log_does_not_count(self):
        logs = [{"train/seconds_per_step": s, "train/peak_memory_gb": m, "train/loss": x} for s, m, x in
                ((9.0, 9.0, 9.0), (0.3, 2.0, 7.0), (0.1, 4.0, 6.0), (0.2, 3.0, 5.0))]  # fmt: skip
        self.assertEqual(precisions.figures(logs), {"s a step": 0.2, "memory, GB": 4.0, "loss": 5.0})

    def test_docstrings(self):
        found = doctest.testmod(precisions)
        self.assertEqual((found.failed, found.attempted), (0, 2))


class PretrainAndCompareTest(parameterized.TestCase):
    @parameterized.parameters(*pretrain_and_compare.DEVICES)
    def test_flags_of_both_scripts_are_taken(self, device):
        settings, trial = pretrain_and_compare.DEVICES[device], pretrain_and_compare.TRIAL.split()
        on_cpu = lambda words: [word for word in words.split() if word not in ("--bf16", "--use_cpu")]
        with tempfile.TemporaryDirectory() as folder:
            shared = ["--config_overrides", settings["model"], "--output_dir", folder, "--use_cpu"]
            for arguments, words in (
                (PRE_TRAINING_ARGUMENTS, settings["pre_training"]),
                (PRE_TRAINING_ARGUMENTS, " ".join([*command_without(settings["pre_training"].split(), trial), *trial])),
                (FINE_TUNING_ARGUMENTS, settings["fine_tuning"]),
            ):
                parse_arguments(arguments, [*on_cpu(words), *shared], prog="x", description="")

    def test_as_many_updates_as_fit_and_no_second_trial(self):
        with tempfile.TemporaryDirectory() as folder:
            given = options(output_dir=folder, text=["a"], tokenizer="t", model="m", pre_training="")

            def ran(script, *flags):
                out = Path(flags[flags.index("--output_dir") + 1])
                out.mkdir()
                lines = [{"train/seconds_per_step": seconds} for seconds in (30.0, 0.5, 0.5)]
                (out / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))

            with mock.patch.object(pretrained_vs_scratch, "run", side_effect=ran) as run:
                self.assertEqual(pretrain_and_compare.steps_for(10, given), int(0.9 * 600 / 0.5))
                self.assertEqual(pretrain_and_compare.steps_for(10, given), int(0.9 * 600 / 0.5))
            run.assert_called_once()
            self.assertFalse(Path(folder, "trial").exists())


if __name__ == "__main__":
    absltest.main()
