"""Bugs of the systems that t5suite succeeds: each that ours could have, and that no other test watches for.

The table at the end of docs/coverage.md leads from each bug of theirs to its test, here or elsewhere.
"""

import dataclasses
import itertools
import json
import re
import tempfile
import types
import typing
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from transformers import T5ForConditionalGeneration

import fine_tune_t5
import pre_train_t5
from t5suite.data.objectives import OBJECTIVES, datum_rng, span_lengths
from t5suite.testing import TINY_T5, encode_rows, make_task, tiny_rows, tiny_tokenizer, tiny_trainer, write_rows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "coverage.md"
BAG = {"validation": 9, "test": 7}


def rows_files() -> dict[str, str]:
    """Files of so many different rows of mini/sentiment."""
    rows = iter(tiny_rows("sentiment"))
    folder = Path(tempfile.mkdtemp())
    return {
        name: str(write_rows(folder / f"{name}.jsonl", itertools.islice(rows, count))) for name, count in BAG.items()
    }


class RunTest(parameterized.TestCase):
    """One short run with its own lengths and files, and two micro-batches an update."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory, cls.files = Path(tempfile.mkdtemp()) / "run", rows_files()
        flags = "--max_train_samples 64 --max_steps 6 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
        flags += "--eval_steps 1 --eval_strategy steps --logging_steps 1 --schedule linear --learning_rate 1e-3 "
        flags += "--optimizer adamw --max_source_length 40 --max_target_length 6 --do_predict --use_cpu "
        flags += "--disable_tqdm True --save_total_limit 9 --metric_for_best_model eval/loss "
        flags += f"--validation_file {cls.files['validation']} --test_file {cls.files['test']} "
        fine_tune_t5.main([*flags.split(), "--output_dir", str(cls.directory)])
        lines = (cls.directory / "metrics.jsonl").read_text().splitlines()
        cls.logged = [json.loads(line) for line in lines]

    @parameterized.parameters(*BAG)
    def test_validation_and_test_rows_are_those_of_their_files(self, split):
        """A second method once evaluated the wrong data set, and a test file was taken and never read."""
        lines = (self.directory / f"predictions/sentiment.{split}.jsonl").read_text().splitlines()
        self.assertLen(lines, BAG[split])
        given = Path(self.files[split]).read_text().splitlines()
        indices = [json.loads(line)["idx"] for line in given]
        self.assertEqual([json.loads(line)["idx"] for line in lines], indices)

    def test_inputs_and_targets_have_lengths_of_their_own(self):
        """The length of inputs was once written over that of targets."""
        card = json.loads((self.directory / "task.json").read_text())
        self.assertEqual((card["max_source_length"], card["max_target_length"]), (40, 6))

    def test_steps_are_updates_and_the_schedule_ends_with_them(self):
        """Steps once counted micro-batches while the schedule counted updates, or each process took a step of it."""
        rates = [line["train/learning_rate"] for line in self.logged if "train/learning_rate" in line]
        self.assertSequenceAlmostEqual(rates, [1e-3 * (6 - step) / 6 for step in range(6)], delta=1e-9)

    def test_the_best_checkpoint_is_told_by_the_name_that_is_logged(self):
        """`eval/loss` once became `eval_eval/loss`, which ended the run at its first checkpoint."""
        losses = {line["step"]: line["eval/loss"] for line in self.logged if "eval/loss" in line}
        self.assertLen(losses, 6)
        state = json.loads((self.directory / "checkpoint-6" / "trainer_state.json").read_text())
        self.assertEqual(state["best_global_step"], min(losses, key=losses.get))
        self.assertAlmostEqual(state["best_metric"], -min(losses.values()), places=6)


class PatienceTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_patience_is_the_number_of_evaluations_without_a_gain(self, patience=1):
        """One more was once waited for. With a learning rate of 0 only the first evaluation is a gain."""
        directory = Path(tempfile.mkdtemp()) / "run"
        flags = "--max_train_samples 64 --max_eval_samples 4 --max_steps 9 --per_device_train_batch_size 4 --use_cpu "
        flags += "--eval_steps 1 --eval_strategy steps --learning_rate 0 --disable_tqdm True --eval_method score "
        flags += f"--early_stopping_patience {patience} --output_dir {directory}"
        fine_tune_t5.main(flags.split())
        manifest = json.loads((directory / "manifest.json").read_text())
        self.assertEqual(manifest["training"]["steps"], 1 + patience)


def first_batch(*texts: str):
    """`(trainer, batch)` of a training on these texts, each its own target."""
    task = make_task(prefix="", labels=None, metric_names=[], metric_to_optimize=None)
    rows = [{"text": text, "label": text} for text in texts]
    trainer = tiny_trainer(rows, task)
    return trainer, next(iter(trainer.get_train_dataloader())), encode_rows(rows, task, target_length=16)


class PaddingTest(parameterized.TestCase):
    def test_a_batch_is_as_wide_as_its_longest_row_and_the_mask_hides_the_rest(self):
        """Rows were once padded to 512 and the mask was lost, so that the encoder read the padding."""
        _, batch, encoded = first_batch("It rains and it is wet.", "It is.")
        width = max(len(example["input_ids"]) for example in encoded)
        self.assertEqual(batch["input_ids"].shape, (2, width))
        masks = [[1] * len(example["input_ids"]) for example in encoded]
        targets = [example["labels"] for example in encoded]
        width_of_targets = max(map(len, targets))
        expected_masks = [mask + [0] * (width - len(mask)) for mask in masks]
        expected_labels = [row + [-100] * (width_of_targets - len(row)) for row in targets]
        self.assertCountEqual(batch["attention_mask"].tolist(), expected_masks)
        self.assertCountEqual(batch["labels"].tolist(), expected_labels)

    def test_what_stands_in_the_padding_changes_no_logit(self):
        trainer, batch, _ = first_batch("It rains and it is wet.", "It is.")
        model = trainer.model.eval()
        batch = {name: values for name, values in batch.items() if name != "labels"}
        other = {**batch, "input_ids": torch.where(batch["attention_mask"].bool(), batch["input_ids"], 77)}
        self.assertFalse(torch.equal(batch["input_ids"], other["input_ids"]))
        with torch.no_grad():
            torch.testing.assert_close(model(**batch).logits, model(**other).logits, rtol=0, atol=0)

    @parameterized.parameters((0.15, 3.0), (0.3, 3.0), (0.15, 8.0))
    @pytest.mark.quick_cases(1)
    def test_noise_is_as_flags_say_fills_its_lengths_and_ends_in_eos(self, density, span):
        """The mean span was once always 3, targets had no end, the mask was not renewed, density counted padding."""
        tokenizer, batches = tiny_tokenizer(), []
        forward = T5ForConditionalGeneration.__call__

        def record(model, *arguments, **batch):
            batches.append({name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)})
            return forward(model, *arguments, **batch)

        flags = f"--inputs_length 64 --noise_density {density} --mean_span_length {span} --max_steps 1 --use_cpu "
        flags += f"--per_device_train_batch_size 3 --config_overrides {TINY_T5} --eval_strategy no --save_strategy no "
        place = Path(tempfile.mkdtemp())
        (place / "text.txt").write_text("".join(f"The {number}th word is not the next one.\n" for number in range(200)))
        flags += f"--disable_tqdm True --train_file {place}/text.txt --output_dir {place}/run"
        with mock.patch.object(T5ForConditionalGeneration, "__call__", record):
            pre_train_t5.main(flags.split())
        tokens_length, targets_length = span_lengths(64, density, span)
        inputs, decoder_inputs = batches[0]["input_ids"], batches[0]["decoder_input_ids"]
        self.assertEqual((inputs.shape, decoder_inputs.shape), ((3, 64), (3, targets_length)))
        self.assertTrue((inputs[:, -1] == tokenizer.eos_token_id).all())
        for ids in (inputs, decoder_inputs[:, 1:]):  # a decoder starts with padding
            self.assertFalse((ids == tokenizer.pad_token_id).any())
        self.assertTrue(bool(batches[0].get("attention_mask", torch.ones(1)).all()))
        sentinels = tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(100)])
        settings = {"noise_density": density, "mean_span_length": span, "eos_id": tokenizer.eos_token_id}
        tokens = list(range(10, 10 + tokens_length))
        _, targets = OBJECTIVES["span_corruption"](tokens, datum_rng(1, 0), sentinels, **settings)
        self.assertLen(targets, targets_length)
        self.assertEqual(targets[-1], tokenizer.eos_token_id)


class ScheduleTest(parameterized.TestCase):
    @parameterized.parameters(1e-5, 1e-3, 1.0)
    def test_every_base_rate_will_do(self, rate):
        """nanoT5's `legacy` ends with an error where the base rate is below 0.0041."""
        settings = {"schedule": "inverse_sqrt_t5", "lr_scheduler_kwargs": {"decay_share": 0.1}}
        trainer = tiny_trainer(learning_rate=rate, max_steps=100, warmup_steps=0, **settings)
        trainer.create_optimizer_and_scheduler(100)
        rates = [trainer.lr_scheduler.get_last_lr()[0]]
        for _ in range(100):
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
            rates += trainer.lr_scheduler.get_last_lr()
        self.assertGreater(rates[0], 0)
        self.assertEqual(max(rates), rates[0])
        self.assertEqual(rates[-1], 0.0)


class FlagsTest(parameterized.TestCase):
    """A default of another type than its flag's: `save_total_limit = (3,)`, a comma too many."""

    @parameterized.parameters("fine_tune_t5", "pre_train_t5")
    def test_defaults_have_the_type_that_their_flag_says(self, script):
        scripts = {"fine_tune_t5": fine_tune_t5, "pre_train_t5": pre_train_t5}
        tables = [v for n, v in vars(scripts[script]).items() if n.endswith("_ARGUMENTS") and isinstance(v, tuple)]
        self.assertNotEmpty(tables)
        for holder in {holder for table in tables for holder in table}:
            if not holder.__module__.startswith("t5suite"):
                continue
            hints = typing.get_type_hints(holder)
            for spec in dataclasses.fields(holder):
                if spec.default is not dataclasses.MISSING:
                    with self.subTest(flag=spec.name):
                        self.assertTrue(_is_of(spec.default, hints[spec.name]), f"{spec.default!r}: {hints[spec.name]}")


def _is_of(value, hint) -> bool:
    """Whether a default is of a type, `int | None` and the like included; what is no plain type passes."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return any(_is_of(value, part) for part in typing.get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (int, str, bool, type(None)) else not isinstance(value, tuple)


class TableTest(parameterized.TestCase):
    def test_every_test_that_the_table_names_is_there(self):
        named = re.findall(r"`(test_\w+)\.(test_\w+)`", PAGE.read_text(encoding="utf-8"))
        self.assertGreater(len(named), 40)
        for file, test in named:
            with self.subTest(test=f"{file}.{test}"):
                self.assertIn(f"def {test}(", (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
