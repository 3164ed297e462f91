"""Mixing rates and draws, and what a run draws of each task."""

import itertools
import json
import math
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized
from recorded_batches import fine_tuning_batches
from support import folder

import fine_tune_t5
from t5suite.data.mixtures import MixtureDraws, mixing_rates
from t5suite.testing import TINY_T5, exits_with, tiny_rows, tiny_tokenizer, write_rows

GLUE = {
    "cola": 8551, "sst2": 67349, "mrpc": 3668, "qqp": 363849, "stsb": 5749, "mnli": 392702, "qnli": 104743, "rte": 2490,
}  # fmt: skip
SUPER_GLUE = {
    "boolq": 9427, "cb": 250, "copa": 400, "multirc": 27243, "record": 138854, "rte": 2490, "wic": 5428, "wsc.fixed": 259, "dpr": 1322,
}  # fmt: skip


class RatesTest(parameterized.TestCase):
    def test_the_count_is_clipped_before_the_temperature(self):
        for examples, limit, temperature in itertools.product(
            [GLUE, SUPER_GLUE], [None, 1, 1000, 2.5e4, 2**19, 2**21], [1.0, 2.0, 0.5, 3.7, 100]
        ):
            rates = mixing_rates(examples, limit=limit, temperature=temperature)
            self.assertEqual(list(rates), list(examples))
            for name, count in examples.items():
                expected = math.exp(math.log(min(count, limit or math.inf)) / temperature)
                self.assertAlmostEqual(rates[name] / expected, 1, delta=1e-12)

    @parameterized.parameters(
        (GLUE, 0.01), (GLUE, 1e-3), ({"a": 10**9, "b": 10**9 - 1}, 1e-9), ({"a": 3, "b": 2}, 1e-300)
    )
    def test_a_low_temperature_has_the_shares_of_the_formula_and_no_overflow(self, examples, temperature):
        rates = mixing_rates(examples, temperature=temperature)
        logs = {name: math.log(count / max(examples.values())) / temperature for name, count in examples.items()}
        total = sum(map(math.exp, logs.values()))
        for name, rate in rates.items():
            self.assertAlmostEqual(rate / sum(rates.values()), math.exp(logs[name]) / total, places=6)
        self.assertLen(MixtureDraws([8] * len(rates), list(rates.values()), 20, seed=0)[:], 20)

    def test_what_is_not_positive_is_refused_by_flag(self):
        for options, flag in (
            ({"limit": 0}, "--mixing_limit"), ({"limit": -3}, "--mixing_limit"),
            ({"temperature": 0}, "--mixing_temperature"), ({"temperature": -1.0}, "--mixing_temperature"),
        ):  # fmt: skip
            with exits_with(78, flag):
                mixing_rates(GLUE, **options)


class DrawTest(parameterized.TestCase):
    SIZES = [7, 50, 400]
    RATES = [1.0, 3.0, 6.0]

    def tasks_and_rows(self, draws, sizes):
        ends = np.cumsum(sizes)
        tasks = np.searchsorted(ends, draws, side="right")
        return tasks, draws - (ends - sizes)[tasks]

    def test_tasks_come_in_proportion_to_their_rates(self):
        for seed in range(5):
            draws = MixtureDraws(self.SIZES, self.RATES, 20000, seed)[:]
            tasks, _ = self.tasks_and_rows(draws, np.array(self.SIZES))
            shares = np.bincount(tasks, minlength=3) / len(draws)
            # five standard deviations of the largest share
            np.testing.assert_allclose(shares, [0.1, 0.3, 0.6], atol=5 * math.sqrt(0.24 / len(draws)))
            # early and late alike
            for half in np.split(tasks, 2):
                np.testing.assert_allclose(np.bincount(half, minlength=3) / len(half), [0.1, 0.3, 0.6], atol=0.03)

    def test_a_task_of_rate_zero_is_never_drawn(self):
        draws = MixtureDraws([3, 0, 5], [1.0, 0.0, 1.0], 100, 0)[:]
        self.assertEqual(set(draws.tolist()), set(range(8)))
        self.assertTrue(np.all(MixtureDraws([3, 5], [1.0, 0.0], 100, 0)[:] < 3))

    def test_no_example_comes_again_before_its_tasks_pass_ends(self):
        for seed in range(5):
            draws = MixtureDraws(self.SIZES, self.RATES, 3000, seed)[:]
            tasks, rows = self.tasks_and_rows(draws, np.array(self.SIZES))
            for task, size in enumerate(self.SIZES):
                of_task = rows[tasks == task]
                self.assertTrue(np.all((of_task >= 0) & (of_task < size)))
                passes = [of_task[i : i + size].tolist() for i in range(0, len(of_task), size)]
                for one in passes[:-1]:
                    self.assertCountEqual(one, range(size))
                self.assertLen(set(passes[-1]), len(passes[-1]))
                whole = [tuple(one) for one in passes if len(one) == size]
                if size > 7:
                    self.assertLen(set(whole), len(whole), "every pass has its own order")

    @parameterized.parameters((0, 10), (60, 70), (64, 128), (500, 1000), (2990, 9999), (5, 5))
    def test_a_piece_is_what_the_whole_has_there(self, start, stop):
        whole = MixtureDraws(self.SIZES, self.RATES, 3000, 7)[:]
        with mock.patch.object(MixtureDraws, "CHUNK", 64):
            piece = MixtureDraws(self.SIZES, self.RATES, 3000, 7)[start:stop]
        np.testing.assert_array_equal(piece, whole[start:stop])
        self.assertFalse(np.array_equal(whole, MixtureDraws(self.SIZES, self.RATES, 3000, 8)[:]))


class RunTest(parameterized.TestCase):
    """Runs on tasks of 100 and 400 examples; under a limit of 144 an epoch has 244 draws."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data_dir, tasks = folder(), {}
        for name, count in (("a", 100), ("b", 400)):
            tasks[name] = {
                "prefix": f"{name} text: ", "text_column_name": "text", "label_column_name": "label",
                "labels": ["bad", "good"], "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
            }  # fmt: skip
            rows = [{"text": "a film", "label": number % 2} for number in range(count)]
            for split in ("train", "validation"):
                write_rows(cls.data_dir / "own" / name / f"{split}.jsonl", rows if split == "train" else rows[:4])
        cls.task_file = folder() / "tasks.yaml"
        cls.task_file.write_text(json.dumps({"own": tasks}))

    def draws(self, **flags) -> list[str]:
        """The task of every example that a run draws."""
        defaults = {"num_train_epochs": 1, "per_device_train_batch_size": 32, "eval_strategy": "no"}
        fixed = {"task_file": str(self.task_file), "data_dir": str(self.data_dir), "dataset_name": "a,b"}
        quick = {"config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, "quiet": True}
        flags = {"benchmark": "own", "output_dir": str(folder() / "run"), **fixed, **quick, **defaults, **flags}
        rows = [row for batch in fine_tuning_batches(**flags) for row in batch["input_ids"].tolist()]
        return [text[0] for text in tiny_tokenizer().batch_decode(rows, skip_special_tokens=True)]

    @parameterized.parameters(({"mixing_temperature": 2.0}, 10 / 30, 500), ({"mixing": "equal"}, 1 / 2, 500))
    @pytest.mark.slow
    def test_tasks_are_drawn_at_the_rates_that_were_asked_for(self, flags, share, num_draws):
        self.check(flags, share, num_draws)

    @parameterized.parameters(({"mixing_limit": 144, "mixing_temperature": 2.0}, 10 / 22, 244), ({}, 1 / 5, 500))
    @pytest.mark.slow
    def test_so_they_are_under_a_limit_and_by_default(self, flags, share, num_draws):
        self.check(flags, share, num_draws)

    def check(self, flags, share, num_draws):
        tasks = self.draws(**flags)
        self.assertLen(tasks, num_draws)
        self.assertAlmostEqual(tasks.count("a") / num_draws, share, delta=4 * (share * (1 - share) / num_draws) ** 0.5)

    @parameterized.parameters(({"num_train_epochs": 2.5}, 20 * 32 - 2 * 12), ({"max_steps": 9}, 8 * 32 - 12 + 32))
    @pytest.mark.slow
    def test_there_are_draws_for_the_whole_run(self, flags, num_draws):
        """An epoch has eight updates, the last of 20 examples."""
        self.assertLen(self.draws(mixing_limit=144, **flags), num_draws)


class MissingTasksTest(parameterized.TestCase):
    def run_of_incomplete_copy(self, *flags: str) -> tuple[dict, dict]:
        """Results and manifest of a run over all three tasks; one lacks its training rows, one its validation rows."""
        place = Path(tempfile.mkdtemp())
        for name, splits in {
            "sentiment": ("train", "validation"),
            "entailment": ("validation",),
            "similarity": ("train",),
        }.items():
            for split in splits:
                write_rows(place / "mini" / name / f"{split}.jsonl", tiny_rows(name, split, count=8))
        words = ["--dataset_name=all", f"--data_dir={place}", "--max_steps=1", "--use_cpu", f"--output_dir={place}/run"]
        results = fine_tune_t5.main([*words, *flags])
        return results, json.loads((place / "run" / "manifest.json").read_text())

    @pytest.mark.slow
    def test_members_without_rows_are_refused_or_left_out_and_listed(self):
        with exits_with(65, "entailment.*--allow_missing_tasks"):
            self.run_of_incomplete_copy()
        results, manifest = self.run_of_incomplete_copy("--allow_missing_tasks")
        self.assertEqual(list(results["tasks"]), ["sentiment"])
        self.assertEqual(manifest["missing_tasks"], ["entailment", "similarity"])
