"""A run that goes on: bit by bit where it was stopped, or with parts reset, or longer; from folders of any name."""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import logging
import math
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import accelerate.utils
import numpy as np
import pytest
import torch
from absl.testing import parameterized
from support import changed_trainer, folder, later_wins, untimed, write_manifest
from transformers import EarlyStoppingCallback, IntervalStrategy, Seq2SeqTrainer, TrainerCallback, TrainerState

import fine_tune_t5
import pre_train_t5
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.samplers import shuffled_order
from t5suite.data.batches.training_data import Mixing
from t5suite.optim.adafactor import Adafactor
from t5suite.reports.finished_runs import rows_of_runs
from t5suite.reports.run_facts import read_run
from t5suite.run_steps import StartRecord
from t5suite.runs.directory import Run
from t5suite.testing import exits_with, read_rows, tiny_model, tiny_trainer
from t5suite.training.checkpoints import restoring, resuming, saving, starts
from t5suite.training.checkpoints.data_positions import ExampleOrder
from t5suite.training.checkpoints.restoring import (
    check_start,
    load_schedule,
    load_state,
    optimizer_state,
    restore_attributes,
    restore_deepspeed,
    restore_optimization,
    restore_random_numbers,
    saved_progress,
    state_at_start,
    total_steps,
)
from t5suite.training.checkpoints.resuming import RunProgress
from t5suite.training.checkpoints.starts import RESETS, Position, Start, choose_start, examples_before
from t5suite.training.distillation import DistilledLoss
from t5suite.training.fine_tuning_trainer import example_order
from t5suite.training.sharding import process_state

SHAPE = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
COMMON = ["--config_overrides", SHAPE, "--dropout_rate", "0.1", "--max_eval_samples", "8", "--disable_tqdm", "True",
          "--use_cpu", "--logging_steps", "3", "--save_total_limit", "2"]  # fmt: skip
FINE_TUNE = [*COMMON, "--max_train_samples", "64", "--per_device_train_batch_size", "16", "--eval_method", "score"]
BY_STEPS = ["--eval_strategy", "steps", "--eval_steps", "2"]
# 4 steps an epoch. The last log is not at the end, checkpoints are not where logs are, and stopping comes early.
RUNS = {
    "short": (fine_tune_t5, [*FINE_TUNE, *BY_STEPS, "--max_steps", "3"]),
    "part_of_an_epoch": (fine_tune_t5, [*FINE_TUNE, "--max_steps", "3"]),
    "by_epochs": (fine_tune_t5, [*FINE_TUNE, "--num_train_epochs", "2"]),
    "by_steps": (fine_tune_t5, [*FINE_TUNE, *BY_STEPS, "--max_steps", "7"]),
    "stopping_early": (fine_tune_t5, [*FINE_TUNE, *BY_STEPS, "--max_steps", "40", "--learning_rate", "0",
        "--early_stopping_patience", "2"]),
    "pre_training": (pre_train_t5, [*COMMON, *BY_STEPS, "--max_steps", "7", "--per_device_train_batch_size", "4",
        "--inputs_length", "32"]),
    "pre_training_by_epochs": (pre_train_t5, [*COMMON, "--logging_strategy", "epoch", "--eval_strategy", "no",
        "--save_strategy", "no", "--max_steps", "8", "--per_device_train_batch_size", "4", "--inputs_length", "32",
        "--learning_rate", "0.1", "--schedule", "constant"]),
}  # fmt: skip


def run(name, directory, **patches):
    script, argv = RUNS[name]
    with changed_trainer(**patches):
        return script.main([*argv, "--output_dir", str(directory)])


def stop_in_step(step):
    return {"stop_requested": lambda trainer: trainer.state.global_step + 1 == step}


def stop_in_evaluation(step):
    """Patches of a trainer that is asked to stop while it evaluates after a step."""
    check_stop = type(tiny_trainer()).check_stop

    def check_and_ask(trainer):
        if trainer.state.global_step == step and trainer.is_in_train:
            trainer.stop.request("SIGTERM")
        check_stop(trainer)

    return {"check_stop": check_and_ask}


@functools.cache
def whole(name):
    directory = Path(tempfile.mkdtemp()) / "run"
    return run(name, directory), directory


class OverriddenTest(parameterized.TestCase):
    def test_what_has_no_hook_is_still_there_under_its_name(self):
        """transformers may rename what it does not promise; ours would then be called by nobody."""
        ours = type(tiny_trainer())
        for name in (
            "_init_training_state", "_prepare_for_training", "_run_epoch", "_get_grad_norm", "_maybe_log_save_evaluate",
            "_save_checkpoint", "_load_best_model", "_finalize_training",
        ):  # fmt: skip
            self.assertTrue(callable(getattr(Seq2SeqTrainer, name, None)), name)
            self.assertIsNot(getattr(ours, name), getattr(Seq2SeqTrainer, name), name)


def states_of_checkpoints(directory) -> dict[str, dict]:
    """What the checkpoints of a run know of it: their evaluations, and which of them is the best so far."""
    states = {}
    for path in directory.glob("checkpoint-*/trainer_state.json"):
        state = json.loads(path.read_text())
        lines = [(line["step"], line["eval/loss"]) for line in state["log_history"] if "eval/loss" in line]
        states[path.parent.name] = {"evaluations": lines, "best": (state["best_metric"], state["best_global_step"])}
    return states


def written_and_read(progress: dict) -> dict:
    """A part of a checkpoint's progress, as its file has it."""
    return json.loads(json.dumps(progress, allow_nan=False))


class CheckpointsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("short", stop_in_evaluation, 2), ("short", stop_in_step, 2), ("part_of_an_epoch", stop_in_step, 3)
    )
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_run_that_was_stopped_leaves_the_checkpoints_of_one_that_was_not(self, name, stop, step):
        directory = Path(tempfile.mkdtemp()) / "run"
        with exits_with(75, f"checkpoint-{step}"):
            run(name, directory, **stop(step))
        run(name, directory)
        self.assertEqual(untimed(directory), untimed(whole(name)[1]))  # a line's loss is of updates before it, too
        states = states_of_checkpoints(directory)
        self.assertEqual(states, states_of_checkpoints(whole(name)[1]))
        self.assertLen(states[f"checkpoint-{step}"]["evaluations"], 1)

    @parameterized.parameters((0.75, True, True), (1.0, False, True), (0.75, False, False))
    def test_the_end_of_an_epoch_that_a_stop_has_cut_off_is_made_up_for(self, epoch, is_last_step, is_pending):
        """An epoch ends after all its rows, and with the last step of the run."""
        progress = RunProgress(lambda control: None)
        control = SimpleNamespace(should_evaluate=False, should_save=True, should_training_stop=is_last_step)
        progress.note_pending(SimpleNamespace(epoch=epoch), control)
        self.assertEqual(progress.pending.get("epoch_end", False), is_pending)

    @parameterized.parameters(0.1, math.inf, None)
    def test_the_norm_of_the_update_before_a_stop_is_in_the_log_of_the_resumed_run_also_an_infinite_one(
        self, grad_norm
    ):
        """An update has an infinite norm where the guard skips it, or fp16's scaler."""
        control = SimpleNamespace(should_evaluate=True, should_save=True, should_training_stop=False)
        stopped, resumed = RunProgress(lambda control: None), RunProgress(lambda control: None)
        norm = None if grad_norm is None else torch.tensor(grad_norm, dtype=torch.float64)
        stopped.note_update(norm, learning_rate=0.1)
        stopped.note_pending(SimpleNamespace(epoch=1.0), control)
        resumed.pending = written_and_read(stopped.pending)
        self.assertEqual(resumed.take_pending(control)["grad_norm"], grad_norm)

    def test_the_minutes_of_a_run_are_those_of_its_starts_and_not_of_the_run_whose_checkpoint_it_began_with(self):
        """Starts of 100, 20 and 3 seconds; a minute passes between any two of them."""
        state, control = SimpleNamespace(epoch=0.5), SimpleNamespace(should_training_stop=False)
        now, saved = 0.0, None
        sums = []
        with mock.patch.object(resuming, "time", SimpleNamespace(perf_counter=lambda: now)):
            for of_this_run, seconds in ((False, 100.0), (False, 20.0), (True, 3.0), (True, 0.0)):
                start = Start(Path("checkpoint-4"), of_this_run=of_this_run)
                now += 60.0
                progress = RunProgress(lambda control: None)
                progress.on_train_begin(None, None, control)
                progress.take_up_saved(start, saved, [])
                now += seconds
                sums.append((progress.seconds, progress.seconds_of_this_run))
                saved = progress.described(state, control, loss_total=0.0, logged_step=0, callbacks=[])
        self.assertEqual(sums, [(100.0, 100.0), (120.0, 20.0), (123.0, 23.0), (123.0, 23.0)])


@pytest.mark.slow
@pytest.mark.resume
class ExactResumeTest(parameterized.TestCase):
    def assert_equals_the_whole_run(self, name, directory, results):
        expected, reference = whole(name)
        self.assertEqual(results, expected)
        self.assertEqual(untimed(directory), untimed(reference))
        self.assertEqual(*[(path / "model.safetensors").read_bytes() for path in (directory, reference)])
        manifests = [json.loads((path / "manifest.json").read_text()) for path in (directory, reference)]
        self.assertEqual(*[(m["status"], m["training"]["loss"], m["training"]["steps"]) for m in manifests])

    @parameterized.parameters(
        ("by_epochs", 1), ("by_epochs", 4), ("by_epochs", 8), ("by_steps", 2), ("by_steps", 7), ("stopping_early", 5),
        ("stopping_early", 6), ("pre_training", 3), ("pre_training", 7), ("pre_training_by_epochs", 7),
    )  # fmt: skip
    def test_stopped_in_any_step(self, name, step):
        directory = Path(tempfile.mkdtemp()) / "run"
        with exits_with(75, f"stopped after step {step}; .*checkpoint-{step}"):
            run(name, directory, **stop_in_step(step))
        self.assertEqual(json.loads((directory / "manifest.json").read_text())["status"], "preempted")
        self.assert_equals_the_whole_run(name, directory, run(name, directory))

    @parameterized.parameters(
        ("by_epochs", 4), ("by_steps", 6), ("stopping_early", 6), ("pre_training", 4),
    )  # fmt: skip
    def test_stopped_in_an_evaluation_twice(self, name, step):
        directory = Path(tempfile.mkdtemp()) / "run"
        for _ in range(2):
            with exits_with(75):
                run(name, directory, **stop_in_evaluation(step))
            self.assertTrue((directory / f"checkpoint-{step}").is_dir())
        self.assert_equals_the_whole_run(name, directory, run(name, directory))

    def test_a_best_checkpoint_that_was_damaged_since_is_refused_by_name(self):
        """At a rate of 0 the first of equal checkpoints is the best; one bit of its last weight is turned."""
        directory = Path(tempfile.mkdtemp())

        def turn_a_bit(trainer):
            if trainer.state.global_step + 1 == 6:
                file = directory / "checkpoint-2" / "model.safetensors"
                content = file.read_bytes()
                file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            return False

        with exits_with(74, "checkpoint-2.*model.safetensors"):
            run("stopping_early", directory, stop_requested=turn_a_bit)
        self.assertFalse((directory / "model.safetensors").exists())

    def test_training_that_is_over_is_not_resumed(self):
        name, directory = "by_steps", Path(tempfile.mkdtemp()) / "run"
        results = run(name, directory)
        manifest = json.loads((directory / "manifest.json").read_text())
        (directory / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        (directory / "results.json").unlink()
        a_step = mock.Mock(side_effect=AssertionError("a step was trained"))
        self.assertEqual(run(name, directory, training_step=a_step), results)
        self.assert_equals_the_whole_run(name, directory, results)


ROWS, UPDATE = 21, 8
RATE = 0.02


class Watched(torch.utils.data.Dataset):
    """A data set that remembers which rows were read."""

    def __init__(self, rows):
        self.rows, self.seen = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.seen.append(int(index))
        return self.rows[index]


def make_trainer(output_dir, **flags):
    defaults = {
        "max_steps": 8, "save_strategy": "steps", "save_steps": 4, "learning_rate": RATE, "optimizer": "adamw",
        "schedule": "linear", "save_total_limit": 9,
    }  # fmt: skip
    trainer = tiny_trainer(output_dir=str(output_dir), **defaults | flags)
    trainer.train_dataset = Watched(trainer.train_dataset)
    return trainer


def train(output_dir, start=None, **flags):
    trainer = make_trainer(output_dir, **flags)
    trainer.train(start=start)
    return trainer


def rates(trainer, name="learning_rate"):
    return [line[name] for line in trainer.state.log_history if "loss" in line]


def losses(trainer):
    return rates(trainer, "loss")


def run_long_rows(first, count):
    """Rows of the run of ten epochs, by their place in it."""
    return run_long_order()[first : first + count]


@functools.cache
def run_long_order() -> list[int]:
    order = shuffled_order(ROWS, seed=0)
    return [row for epoch in range(10) for row in order(epoch).tolist()]


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class SeenTest(parameterized.TestCase):
    @parameterized.product(rows=(5, 21), sizes=((8, 3), (4, 16)), reset=("", "step"))
    def test_every_row_is_counted_once_whatever_the_update_and_a_restart(self, rows, sizes, reset):
        """By brute force over both parts, whose updates take the rows of all epochs in their order."""
        order = shuffled_order(rows, seed=4)
        seen = []
        data = ExampleOrder(order)
        for step in range(1, 5):
            seen += data.examples_of(step, sizes[0])
            self.assertEqual(data.seen(step, sizes[0]), len(seen))
        position = Position(data.seen(4, sizes[0]))
        start = Start(Path("old/checkpoint-4"), frozenset(filter(None, [reset])), restart=True, position=position)
        again = ExampleOrder(order)
        again.load(start, sizes[1])
        for step in range(start.step + 1, start.step + 8):
            seen += again.examples_of(step, sizes[1])
            self.assertEqual(again.seen(step, sizes[1]), len(seen))
        epochs = [order(epoch).tolist() for epoch in range(len(seen) // rows + 1)]
        self.assertEqual(seen, list(itertools.chain(*epochs))[: len(seen)])

    @parameterized.product(mixes=(False, True), stops=((5,), (2, 4), (5, 17)))
    def test_a_begun_epoch_keeps_its_order_where_updates_of_other_sizes_go_on(self, mixes, stops):
        """Each row of one task comes once an epoch; by brute force, all starts take the examples of the first's epoch."""
        lengths = np.random.default_rng(0).integers(2, 60, 70)
        parts = (lengths[:50], lengths[50:]) if mixes else (lengths,)
        features = [
            TokenArrays.from_columns({"input_ids": [[7] * n for n in part], "labels": [[1]] * len(part)})
            for part in parts
        ]

        def order_of(update_size):
            args = SimpleNamespace(
                train_batch_size=update_size, gradient_accumulation_steps=1, world_size=1, num_train_epochs=9,
                max_steps=-1, train_sampling_strategy="group_by_length", seed=3, order_seed=3,
            )  # fmt: skip
            return example_order(features, ["a", "b"][: len(features)], args, Mixing())[0]

        first_epoch = [f"a.train:{index}" for index in order_of(4).order(0)]
        seen, step, position = [], 0, None
        for update_size, stop in zip((4, 6, 9), (*stops, None)):
            data = order_of(update_size)
            data.name_example = "a.train:{}".format
            if position is not None:
                data.load(Start(Path(f"old/checkpoint-{step}"), restart=True, position=position), update_size)
            epochs = 2 if stops[-1] > 12 else 1
            while len(seen) < 70 * epochs if stop is None else step < stop:
                step += 1
                seen += data.examples_of(step, update_size)
            num_seen = data.seen(step, update_size)
            self.assertLen(seen, num_seen)
            position = Position(num_seen, update_size=data.update_size_of_order(num_seen, update_size))
        self.assertEqual(seen[:70], first_epoch)
        size_of_second_epoch = update_size if epochs == 1 else 6  # of the start that began it
        second_epoch = [f"a.train:{index}" for index in order_of(size_of_second_epoch).order(1)]
        self.assertEqual(seen[70:140], second_epoch[: len(seen) - 70])

    def test_without_rows_steps_count(self):
        data = ExampleOrder()
        self.assertEqual((data.seen(3, 8), data.examples_of(3, 8)), (24, []))


class ShardedStatesTest(parameterized.TestCase):
    def test_a_state_without_shards_is_itself(self):
        tensor = torch.arange(3.0)
        state = {"steps": [1, tensor], "pair": (tensor, "name"), "empty": {}}
        for keep in (True, False):
            self.assertEqual(saving.whole_state(state, keep), state)

    def test_embeddings_are_not_named_while_a_model_is_sharded_alone(self):
        model = tiny_model()
        names = ("get_input_embeddings", "get_output_embeddings")
        before = [getattr(model, name)() for name in names]
        with process_state.shared_embeddings_together(model):
            self.assertEqual([getattr(model, name)() for name in names], [None, None])
        self.assertNotIn(None, before)
        for name, layer in zip(names, before, strict=True):
            self.assertIs(getattr(model, name)(), layer)


class RestoringTest(parameterized.TestCase):
    def test_a_schedule_that_is_no_function_of_the_step_goes_on_with_its_rates(self):
        """Three losses without progress have divided both rates by 4; the flags now say by 2."""
        groups = lambda rate: [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate * part} for part in (1, 10)]
        optimizer = torch.optim.SGD(groups(0.8))
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=1)
        for _ in range(3):
            schedule.step(1.0)
        later = torch.optim.SGD(groups(0.5))
        going_on = torch.optim.lr_scheduler.ReduceLROnPlateau(later, factor=0.5, patience=1)
        with self.assertLogs("t5suite", "WARNING") as logs:
            load_schedule(going_on, later, schedule.state_dict(), num_steps=12)
        self.assertRegex(logs.output[0], "goes on at 0.2 and 2, .*--learning_rate, 0.5 and 5, add schedule")
        self.assertEqual([group["lr"] for group in later.param_groups], [0.2, 2.0])
        for _ in range(2):
            going_on.step(1.0)
        self.assertEqual([group["lr"] for group in later.param_groups], [0.1, 1.0])

    def checkpoint_of(self, optimizer, schedule) -> Path:
        """What stands for a checkpoint of step 4: the states of optimizer and schedule."""
        checkpoint = folder() / "checkpoint-4"
        checkpoint.mkdir()
        torch.save(optimizer.state_dict(), checkpoint / "optimizer.pt")
        torch.save(schedule.state_dict(), checkpoint / "scheduler.pt")
        return checkpoint

    def second_update(self, make, before: dict, after: dict) -> torch.Tensor:
        """What the second update takes from a weight, by other settings than the first one, whose moments it goes on with."""
        weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        constant = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        first = make([weight], lr=0.1, **before)
        weight.grad = torch.tensor([1.0, -2.0])
        first.step()
        checkpoint = self.checkpoint_of(first, constant(first))
        second = make([weight], lr=0.1, **after)
        restore_optimization(Start(checkpoint, restart=True), second, constant(second), None, fsdp=False)
        value = weight.detach().clone()
        weight.grad = torch.tensor([0.5, 4.0])
        second.step()
        return value - weight.detach()

    def test_a_momentum_that_adafactor_goes_on_with_begins_at_zero(self):
        expected = 0.25 * self.second_update(Adafactor, {}, {})
        torch.testing.assert_close(self.second_update(Adafactor, {}, {"beta1": 0.75}), expected)

    @parameterized.parameters(
        ({"momentum": 0.9}, False), ({"centered": True}, True), ({"momentum": 0.9, "centered": True}, True)
    )
    def test_so_do_the_moments_of_torch_s_rmsprop(self, settings, is_centered):
        """By its formula: a first momentum is the whole step, and a first mean of gradients has a hundredth of this one."""
        means = torch.tensor([0.01 * (0.99 * 1.0 + 0.5**2), 0.01 * (0.99 * 4.0 + 4.0**2)])
        if is_centered:
            means = means - torch.tensor([0.005, 0.04]) ** 2
        expected = 0.1 * torch.tensor([0.5, 4.0]) / (means.sqrt() + 1e-8)
        torch.testing.assert_close(self.second_update(torch.optim.RMSprop, {}, settings), expected)

    def test_between_schedules_that_count_steps_and_evaluations_the_step_alone_goes_on(self):
        """Two evaluations lie before step 4 of 8."""
        optimizer_of = lambda rate: torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, momentum=0.9)
        linear = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 8)
        watching = torch.optim.lr_scheduler.ReduceLROnPlateau
        saved = optimizer_of(0.8)
        watcher = watching(saved)
        for loss in (3.0, 2.0):
            watcher.step(loss)
        before = self.checkpoint_of(saved, watcher)
        optimizer = optimizer_of(0.5)
        schedule = linear(optimizer)
        restore_optimization(Start(before, restart=True), optimizer, schedule, None, fsdp=False)
        group = optimizer.param_groups[0]
        self.assertEqual((schedule.last_epoch, group["lr"], group["initial_lr"]), (4, 0.25, 0.5))
        before = self.checkpoint_of(optimizer, schedule)
        optimizer = optimizer_of(0.3)
        watcher = watching(optimizer)
        restore_optimization(Start(before, restart=True), optimizer, watcher, None, fsdp=False)
        group = optimizer.param_groups[0]
        self.assertEqual((watcher.last_epoch, group["lr"], group.get("initial_lr")), (0, 0.3, None))

    def test_a_restart_follows_the_flags_under_deepspeed_as_without(self):
        """DeepSpeed loads the groups' settings, and the norm to clip at, with the moments."""
        if not hasattr(accelerate.utils, "DeepSpeedSchedulerWrapper"):
            self.skipTest("DeepSpeed is not installed")

        def made(rate, decay, norm):
            optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=rate, weight_decay=decay)
            optimizer.clip_grad = norm
            return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

        saved, schedule = made(0.8, 0.1, 1.0)
        for _ in range(4):
            saved.step()
            schedule.step()
        checkpoint = self.checkpoint_of(saved, schedule)

        def load(engine, *args, **kwargs):
            engine.optimizer.load_state_dict(saved.state_dict())
            engine.optimizer.clip_grad = saved.clip_grad

        def settings_under_deepspeed(start, is_deepspeeds_schedule=False):
            optimizer, schedule = made(0.5, 0.2, 3.0)
            engine = SimpleNamespace(module=torch.nn.Linear(1, 1), optimizer=optimizer)
            if is_deepspeeds_schedule:
                schedule = accelerate.utils.DeepSpeedSchedulerWrapper(schedule, optimizer)
            with mock.patch.object(restoring, "deepspeed_load_checkpoint", load):
                restore_deepspeed(start, engine, schedule)
            return {**optimizer.state_dict()["param_groups"][0], "norm": optimizer.clip_grad}

        for restart, rate, decay, norm in ((False, 0.16, 0.1, 1.0), (True, 0.1, 0.2, 3.0)):
            start = Start(checkpoint, restart=restart)
            plain, plain_schedule = made(0.5, 0.2, norm)
            restore_optimization(start, plain, plain_schedule, None, fsdp=False)
            settings = settings_under_deepspeed(start)
            self.assertEqual(settings, {**plain.state_dict()["param_groups"][0], "norm": norm})
            self.assertEqual((round(settings["lr"], 9), settings["weight_decay"]), (rate, decay))
        settings = settings_under_deepspeed(start, is_deepspeeds_schedule=True)
        self.assertEqual((round(settings["lr"], 9), settings["weight_decay"]), (0.16, 0.2))

    def test_a_rank_that_the_checkpoint_does_not_have_draws_numbers_of_its_own(self):
        checkpoint = folder()
        self.addCleanup(torch.set_rng_state, torch.get_rng_state())

        def drawn(rank, seed=3, step=5):
            torch.manual_seed(0)
            restore_random_numbers(checkpoint, SimpleNamespace(rank=rank, world_size=3), seed, step)
            return torch.rand(1).item()

        torch.manual_seed(0)
        untouched = torch.rand(1).item()
        self.assertEqual(drawn(1), untouched, "a checkpoint of the weights alone says nothing of random numbers")
        (checkpoint / "rank-0.json").write_text("{}")
        numbers = [drawn(1), drawn(2), drawn(1, seed=4), drawn(1, step=6)]
        self.assertLen({untouched, *numbers}, 5)
        self.assertEqual(drawn(1), numbers[0])

    def test_a_state_that_is_missing_is_named(self):
        place = folder()
        with exits_with(74, f"{place}/scheduler.pt is missing"):
            load_state(place, "scheduler")

    @parameterized.parameters(("optimizer", "--reset optimizer,schedule"), ("scaler", "--model_name_or_path"))
    def test_the_way_out_of_a_truncated_state_leads_around_it(self, name, way_out):
        place = folder()
        (place / f"{name}.pt").write_bytes(b"PK")
        with exits_with(74, f"{name}.pt is truncated, .*{way_out}"):
            load_state(place, name)

    def test_sharded_training_of_other_parameters_is_refused_by_their_numbers(self):
        optimizer_of = lambda count: torch.optim.SGD([torch.nn.Parameter(torch.zeros(1)) for _ in range(count)], lr=0.1)
        saved = optimizer_of(3)
        checkpoint = self.checkpoint_of(saved, torch.optim.lr_scheduler.LambdaLR(saved, lambda step: 1.0))
        with exits_with(78, "has 3 parameters, and this run trains 2; freeze .*--model_name_or_path"):
            optimizer_state(checkpoint, optimizer_of(2), fsdp=True)

    def test_rates_of_other_groups_are_not_taken_over(self):
        """A schedule that watches evaluations has a rate for each group; one group is not the first of two."""
        optimizers = [
            torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(count)], lr=0.1)
            for count in (2, 1)
        ]
        saved, watcher = [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer) for optimizer in optimizers]
        with exits_with(78, "2 groups of parameters, and this run has 1; add schedule to --reset"):
            load_schedule(watcher, optimizers[1], saved.state_dict(), num_steps=1)

    def test_a_schedule_of_ones_own_that_saves_no_rates_goes_on(self):
        schedule = mock.Mock()
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        load_schedule(schedule, optimizer, {"best": 3.0}, num_steps=1)
        schedule.load_state_dict.assert_called_once_with({"best": 3.0})
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)

    @parameterized.parameters(
        (
            {"total_steps": 4},
            "nothing is left to train: 4 steps are done, .* makes 4; raise it, or add step to --reset",
        ),
        ({"total_steps": 9, "fsdp": True}, "--reset optimizer,schedule does not work in sharded training"),
        ({"total_steps": 9}, None),
    )
    def test_a_start_that_a_run_cannot_make_is_refused(self, settings, message):
        start = Start(folder() / "checkpoint-4", frozenset({"schedule", "optimizer"}), restart=True)
        with exits_with(78, message) if message else contextlib.nullcontext():
            check_start(start, **{"deepspeed": False, "fsdp": False, "world_size": 1, **settings})

    @parameterized.parameters(
        (4, {"of_this_run": True}, False), (4, {}, True), (1, {}, True), (3, {"of_this_run": True}, True), (0, {}, False), (5, {}, False),
        (3, {"restart": False}, False), (4, {"of_this_run": True, "reset": frozenset({"data"})}, True),
        (1, {"reset": frozenset({"step"})}, False),
    )  # fmt: skip
    def test_a_run_of_its_own_steps_may_only_end_and_another_needs_steps_that_are_left(self, total, facts, is_refused):
        start = Start(folder() / "checkpoint-4", **{"restart": True, **facts})
        with exits_with(78, "nothing is left to train") if is_refused else contextlib.nullcontext():
            check_start(start, total_steps=total, deepspeed=False, fsdp=False, world_size=1)

    @parameterized.parameters((5, 3, 21, 5), (-1, 1.5, 21, 5), (-1, 2, 16, 4), (-1, 2, 0, 0), (7, 2, 0, 7))
    def test_steps_are_those_of_the_flag_or_of_whole_updates_in_its_epochs(self, max_steps, epochs, length, expected):
        args = SimpleNamespace(max_steps=max_steps, num_train_epochs=epochs)
        self.assertEqual(total_steps(args, length, update_size=8), expected)

    def test_what_transformers_callbacks_count_goes_on_under_the_flags_of_now(self):
        counting, later, other = EarlyStoppingCallback(2), EarlyStoppingCallback(5), TrainerCallback()
        counting.early_stopping_patience_counter = 3
        saved = {"EarlyStoppingCallback": counting.state(), "TrainerCallback": {"attributes": {"count": 1}}}
        restore_attributes([other, later], json.loads(json.dumps(saved)))
        self.assertEqual((later.early_stopping_patience_counter, later.early_stopping_patience), (3, 5))
        self.assertFalse(hasattr(other, "count"))
        restore_attributes([later], {"EarlyStoppingCallback": [counting.state()], "Another": {}})
        self.assertEqual(later.early_stopping_patience_counter, 3)

    def test_the_trainer_s_state_goes_on_with_the_batches_and_intervals_of_now(self):
        checkpoint = folder()
        TrainerState(global_step=4, train_batch_size=2, eval_steps=9, save_steps=9, logging_steps=9).save_to_json(
            str(checkpoint / "trainer_state.json")
        )
        args = SimpleNamespace(train_batch_size=16, eval_steps=0.5, save_steps=2, logging_steps=3)
        state = state_at_start(Start(checkpoint), args, max_steps=10)
        numbers = (state.global_step, state.train_batch_size, state.eval_steps, state.save_steps, state.logging_steps)
        self.assertEqual(numbers, (4, 16, 5, 2, 3))

    def test_a_rank_s_loss_since_the_log_is_its_own_or_the_mean_where_other_ranks_go_on(self):
        checkpoint = folder() / "checkpoint-4"
        checkpoint.mkdir()
        self.assertIsNone(saved_progress(Start(checkpoint), SimpleNamespace(world_size=1, rank=0)))
        held = {"stopped": True, "pending": {"epoch_end": True}, "loss_from_step": 2}
        (checkpoint / "progress.json").write_text(json.dumps(held))
        for rank, loss in enumerate((1.0, 2.0, 6.0)):
            (checkpoint / f"rank-{rank}.json").write_text(json.dumps({"loss_since_log": loss}))
        for world_size, rank, loss in ((3, 1, 2.0), (3, 2, 6.0), (2, 1, 3.0), (1, 0, 3.0)):
            ranks = SimpleNamespace(world_size=world_size, rank=rank)
            self.assertEqual(saved_progress(Start(checkpoint), ranks), {**held, "loss_since_log": loss})
        again = saved_progress(Start(checkpoint, restart=True), ranks)
        self.assertEqual(again, {"stopped": False, "pending": {}, "loss_from_step": 2, "loss_since_log": 3.0})
        self.assertIsNone(saved_progress(Start(checkpoint, frozenset({"step"}), restart=True), ranks))
        self.assertIsNone(saved_progress(Start(), ranks))


class EndOfEpochTest(parameterized.TestCase):
    """Two epochs of three updates, whose last checkpoint comes before the log of the epoch's end.

    That log has numbers of the last update: a teacher's distance, and one of the user's own.
    """

    def trainer(self, output_dir):
        trainer = make_trainer(output_dir, max_steps=6, save_steps=3, logging_strategy="epoch")
        trainer.compute_loss_func = DistilledLoss(
            trainer.compute_loss_func, tiny_model(seed=7).eval(), alpha=0.5, temperature=2.0, pieces=621
        )
        trainer.measure(lambda outputs, batch: {"spread": outputs["logits"].std(dim=-1)})
        trainer.ends = []
        epoch_ends = trainer.progress.on_epoch_end

        def note(args, state, control, **kwargs):
            trainer.ends.append(state.global_step)
            epoch_ends(args, state, control, **kwargs)

        trainer.progress.on_epoch_end = note
        return trainer

    @functools.cached_property
    def whole(self):
        trainer = self.trainer(folder())
        trainer.train()
        return trainer

    @parameterized.parameters((3, [3, 6]), (6, [6]))
    def test_a_run_killed_at_the_end_of_an_epoch_evaluates_when_resumed(self, step, ends):
        killed = self.trainer(folder())
        end_epoch = killed.progress.on_epoch_end

        def kill(args, state, control, **kwargs):
            if state.global_step == step:
                raise InterruptedError
            end_epoch(args, state, control, **kwargs)

        killed.progress.on_epoch_end = kill
        with self.assertRaises(InterruptedError):
            killed.train()
        resumed = self.trainer(killed.args.output_dir)
        resumed.train(resume_from_checkpoint=True)
        self.assertEqual(resumed.ends, ends)
        for name in ("step", "loss", "grad_norm", "learning_rate", "kl", "spread"):
            self.assertEqual(rates(resumed, name), rates(self.whole, name))
        self.assertTrue(torch.equal(weights(resumed.model), weights(self.whole.model)))


class OtherFlagsTest(parameterized.TestCase):
    """A run of three updates an epoch that was stopped, and goes on with other flags."""

    def resumed(self, stopped, step, of_this_run=True, eval_steps=None):
        """The steps of the epochs' ends and of the evaluations of the run that goes on."""
        checkpoint = Path(stopped.args.output_dir) / f"checkpoint-{step}"
        trainer = make_trainer(stopped.args.output_dir, max_steps=8, save_strategy="no", eval_steps=eval_steps)
        trainer.args.eval_strategy = IntervalStrategy.STEPS if eval_steps else IntervalStrategy.NO
        epoch_ends, evaluations = [], []
        end_epoch = trainer.progress.on_epoch_end

        def note(args, state, control, **kwargs):
            epoch_ends.append(state.global_step)
            end_epoch(args, state, control, **kwargs)

        def evaluate(**kwargs):
            metrics = {"eval_selection": 0.0}
            evaluations.append(trainer.state.global_step)
            trainer.control = trainer.callback_handler.on_evaluate(
                trainer.args, trainer.state, trainer.control, metrics
            )
            return metrics

        trainer.progress.on_epoch_end = note
        trainer.evaluate = evaluate
        trainer.train(start=Start(checkpoint, restart=True, of_this_run=of_this_run))
        return epoch_ends, evaluations

    @parameterized.parameters(
        (2, True, [2, 4, 6, 8]), (3, True, [2, 3, 6, 8]), (None, True, []), (2, False, [4, 6, 8]),
    )  # fmt: skip
    def test_an_evaluation_that_a_stop_cut_off_is_made_up_for_where_the_run_evaluates(
        self, eval_steps, of_this_run, evaluations
    ):
        stopped = make_trainer(folder(), max_steps=4, save_steps=2, eval_steps=2)
        stopped.args.eval_strategy = IntervalStrategy.STEPS

        def stop(**kwargs):
            stopped.stop.request("SIGTERM")
            raise stopped.stop.preempted()

        stopped.evaluate = stop
        with changed_trainer(), exits_with(75):
            stopped.train()
        with self.assertLogs("t5suite", "INFO") as logs:
            logging.getLogger("t5suite").info("resumed")  # a log without any line is an error here
            self.assertEqual(self.resumed(stopped, 2, of_this_run, eval_steps)[1], evaluations)
        self.assertEqual("step 2 is evaluated first" in "".join(logs.output), 2 in evaluations)

    @parameterized.parameters((6, [6, 8]), (3, [3, 6, 8]), (5, [6, 8]))
    def test_an_epoch_that_the_run_s_last_step_cut_off_goes_on_and_one_without_rows_ends(self, step, epoch_ends):
        whole = make_trainer(folder(), max_steps=step, save_steps=step)
        whole.train()
        self.assertEqual(self.resumed(whole, step)[0], epoch_ends)


class ResetTest(parameterized.TestCase):
    """The first run makes eight updates of 8 + 8 + 5 + 8 + ... rows; others go on from its checkpoint-4."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.old = folder() / "old"
        cls.whole = train(cls.old)
        cls.seen = examples_before(4, ROWS, UPDATE)

    def go_on(self, reset=None, output_dir=None, save_steps=None, **flags):
        output_dir = output_dir or folder() / "new"
        start = choose_start(output_dir, str(self.old / "checkpoint-4"), reset)
        saving = {"save_steps": save_steps} if save_steps else {"save_strategy": "no"}
        return train(output_dir, start, **saving, **flags)

    def test_the_first_run_reads_its_rows_in_order(self):
        seen = self.whole.train_dataset.seen
        self.assertEqual(seen, run_long_rows(0, examples_before(8, ROWS, UPDATE)))

    def test_without_a_reset_another_directory_goes_on_to_the_bit(self):
        trainer = self.go_on()
        self.assertEqual(losses(trainer), losses(self.whole))
        self.assertEqual(rates(trainer), rates(self.whole))
        self.assertTrue(torch.equal(weights(trainer.model), weights(self.whole.model)))

    @pytest.mark.slow
    def test_optimizer_drops_the_moments_alone(self):
        trainer = self.go_on("optimizer", save_steps=5)
        self.assertEqual(rates(trainer), rates(self.whole))
        self.assertEqual(trainer.train_dataset.seen, run_long_rows(self.seen, len(trainer.train_dataset.seen)))
        self.assertEqual(losses(trainer)[4], losses(self.whole)[4])
        self.assertNotEqual(losses(trainer)[5], losses(self.whole)[5])
        state = torch.load(Path(trainer.args.output_dir) / "checkpoint-5" / "optimizer.pt", weights_only=True)
        self.assertEqual({float(entry["step"]) for entry in state["state"].values()}, {1.0})

    def test_another_optimizer_needs_its_reset(self):
        with exits_with(78, "add optimizer to --reset"):
            self.go_on(optimizer="adamw_rms")
        trainer = self.go_on("optimizer", optimizer="adamw_rms", max_steps=5)
        self.assertLen(losses(trainer), 5)

    def test_schedule_starts_anew_over_the_steps_that_are_left(self):
        trainer = self.go_on("schedule")
        self.assertEqual(rates(trainer)[4:], [RATE * (1 - step / 4) for step in range(4)])
        self.assertEqual(losses(trainer)[4], losses(self.whole)[4])

    def test_step_counts_from_0_while_the_rest_goes_on(self):
        trainer = self.go_on("step", max_steps=6)
        self.assertEqual(trainer.state.global_step, 6)
        self.assertEqual(trainer.train_dataset.seen, run_long_rows(self.seen, examples_before(6, ROWS, UPDATE)))
        # Four steps of the schedule were over, so it has ten.
        self.assertSequenceAlmostEqual(rates(trainer), [RATE * (1 - step / 10) for step in range(4, 10)], places=12)

    def test_data_begins_anew_while_steps_count_on(self):
        trainer = self.go_on("data")
        self.assertEqual(trainer.state.global_step, 8)
        self.assertEqual(rates(trainer), rates(self.whole))
        self.assertEqual(trainer.train_dataset.seen, run_long_rows(0, len(trainer.train_dataset.seen)))

    @parameterized.parameters(*RESETS, "data,schedule")
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_reset_run_resumes_to_the_bit_and_resets_once(self, reset):
        output_dir = folder() / "new"
        trainer = self.go_on(reset, output_dir, save_steps=4, max_steps=12)
        again = choose_start(output_dir, str(self.old / "checkpoint-4"), reset)
        self.assertEqual((again.checkpoint, again.reset), (output_dir / "checkpoint-12", frozenset()))
        halfway = choose_start(output_dir, str(output_dir / "checkpoint-8"), reset)
        self.assertEqual(halfway.reset, frozenset())
        resumed = train(output_dir, start=halfway, max_steps=12)
        self.assertEqual(losses(resumed), losses(trainer))
        self.assertEqual(rates(resumed), rates(trainer))
        self.assertTrue(torch.equal(weights(resumed.model), weights(trainer.model)))
        self.assertEmpty([path.name for path in output_dir.glob(".*")])

    @pytest.mark.slow
    def test_a_second_restart_resets_nothing_either(self):
        output_dir, reset = folder() / "new", "optimizer,schedule"
        self.go_on(reset, output_dir, save_steps=5, max_steps=7)
        first_restart = choose_start(output_dir, str(output_dir / "checkpoint-5"), reset)
        train(output_dir, start=first_restart, save_steps=1, max_steps=7)
        second_restart = choose_start(output_dir, str(output_dir / "checkpoint-6"), reset)
        self.assertEqual((first_restart.reset, second_restart.reset), (frozenset(), frozenset()))

    @parameterized.parameters(3, 16)
    @pytest.mark.slow
    def test_another_batch_size_goes_on_with_the_next_example(self, batch_size):
        trainer = self.go_on(per_device_train_batch_size=batch_size, save_steps=12, max_steps=12)
        seen = trainer.train_dataset.seen
        self.assertEqual(seen, run_long_rows(self.seen, len(seen)))
        position = json.loads((Path(trainer.args.output_dir) / "checkpoint-12" / "position.json").read_text())
        self.assertEqual(position["examples"], self.seen + len(seen))

    @pytest.mark.slow
    def test_flags_hold_over_what_the_checkpoint_was_set_to(self):
        trainer = self.go_on(learning_rate=0.004, weight_decay=0.5, schedule="constant")
        self.assertEqual(rates(trainer)[4:], [0.004] * 4)
        self.assertEqual(max(group["weight_decay"] for group in trainer.optimizer.param_groups), 0.5)
        self.assertEqual(losses(trainer)[4], losses(self.whole)[4])
        with exits_with(78, "nothing is left to train: 4 steps are done.* makes 4"):
            self.go_on(max_steps=4)

    @pytest.mark.slow
    def test_a_longer_run_follows_its_new_total(self):
        longer = folder() / "run"
        train(longer, max_steps=1, save_steps=1)
        start = dataclasses.replace(choose_start(longer, "auto"), restart=True)
        trainer = train(longer, start=start, save_strategy="no")
        self.assertEqual(rates(trainer)[1:], rates(self.whole)[1:])


@functools.cache
def training_that_saved_weights_alone():
    return train(folder(), save_only_model=True, max_steps=1)


class StartTest(parameterized.TestCase):
    def checkpoint(self, run, step, reset=None):
        """The checkpoint of a run that goes on to a step."""
        train(run, choose_start(run, "auto", reset), max_steps=step, save_steps=step)
        return run / f"checkpoint-{step}"

    @pytest.mark.slow
    def test_a_run_begins_elsewhere_but_goes_on_from_its_own(self):
        old, new = folder(), folder()
        first = self.checkpoint(old, 4)
        start = choose_start(new, str(first))
        self.assertEqual(start, Start(first, restart=True, position=Position(29, update_size=8)))
        latest = self.checkpoint(new, 3)
        self.assertEqual(choose_start(new, str(first)), Start(latest, position=Position(21, update_size=8)))

    def files_of(self, run, step, run_id="a", settings="s") -> Path:
        """What stands for a checkpoint: its optimizer's file, its position and its manifest."""
        checkpoint = run / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "optimizer.pt").touch()
        (checkpoint / "position.json").write_text(json.dumps({"examples": 8 * step}))
        write_manifest(checkpoint, run_id=run_id, details={"settings": settings, "selects_by": {"rte": step}})
        return checkpoint

    def test_a_start_says_what_its_checkpoint_was_selected_by(self):
        checkpoint = self.files_of(folder() / "run", 4)
        self.assertEqual(choose_start(checkpoint.parent, "auto").selected_by, {"rte": 4})
        self.assertEqual(Start.of_this_checkpoint(checkpoint, checkpoint.parent).selected_by, {"rte": 4})
        self.assertIsNone(choose_start(folder(), "auto").selected_by)

    def test_where_a_run_begins_is_its_own_newest_checkpoint_else_the_one_that_is_named_else_none(self):
        """It is begun anew, with this run's flags, unless they are those of the checkpoint's run."""
        old, new = folder() / "old", folder() / "new"
        named = self.files_of(old, 4)
        choose = lambda output_dir, resume, reset=None, settings="s": choose_start(
            output_dir, resume, reset, run_id="a", fingerprint=settings
        )
        self.assertEqual(choose(old, "none"), Start())
        elsewhere = choose(new, str(named))
        self.assertEqual(elsewhere, Start(named, restart=True, position=Position(examples=32)))
        self.assertFalse(elsewhere.of_this_run)
        for settings, restart in (("s", False), ("other", True)):
            own = choose(old, "auto", settings=settings)
            self.assertEqual(own, Start(named, restart=restart, position=Position(examples=32)))
            self.assertTrue(own.of_this_run)
        self.assertTrue(choose(old, "auto", "data").restart)
        self.files_of(new, 9)
        latest = self.files_of(new, 11)
        self.assertEqual(choose(new, str(named)).checkpoint, latest)
        self.assertEqual(choose(old, str(named)).checkpoint, named)
        self.assertEqual(choose(new, str(new / "checkpoint-9")).checkpoint, new / "checkpoint-9")
        with exits_with(78, "has checkpoints already.*--resume .*checkpoint-11"):
            choose(new, "auto", "step")
        with exits_with(74, "of run a, not of b"):
            choose_start(new, "auto", run_id="b")
        self.assertEqual(Start.of_this_checkpoint(True, new).checkpoint, latest)
        with exits_with(78, "no checkpoint in"):
            Start.of_this_checkpoint(True, folder())

    def test_a_checkpoint_that_does_not_say_the_size_of_its_updates_goes_on_in_the_order_of_this_run_s(self):
        checkpoint = self.files_of(folder(), 4)
        start = choose_start(folder() / "new", str(checkpoint), run_id="a", fingerprint="s")
        self.assertEqual(start.position.examples, 32)
        self.assertIsNone(start.update_size_of_order)

    def test_steps_examples_and_the_schedule_count_on_unless_they_are_reset(self):
        """A checkpoint of step 5 in updates of 8, of which an epoch has 21 examples; its schedule began at step 2."""
        path, position = Path("run/checkpoint-5"), Position(examples=40, schedule_start=2, reset="optimizer")
        expected = {
            (): (5, 40, 2, "optimizer"), ("step",): (0, 40, -3, "step"), ("data",): (5, 0, 2, "data"),
            ("schedule",): (5, 40, 5, "schedule"), ("step", "schedule", "data"): (0, 0, 0, "data,schedule,step"),
        }  # fmt: skip
        for reset, numbers in expected.items():
            start = Start(path, frozenset(reset), position=position, of_this_run=True)
            counted = (start.step, start.examples_seen(21, 8), start.schedule_start, start.parts_reset)
            self.assertEqual(counted, numbers, reset)
        of_stock = Start(path)
        counted = (of_stock.step, of_stock.examples_seen(21, 8), of_stock.schedule_start, of_stock.parts_reset)
        self.assertEqual(counted, (5, 37, 0, ""))  # 8 + 8 + 5 and 8 + 8
        fresh = Start()
        self.assertEqual(
            (fresh.step, fresh.examples_seen(21, 8), fresh.schedule_start, fresh.parts_reset), (0, 0, 0, "")
        )

    @parameterized.parameters("s", "other")
    def test_a_run_goes_on_from_an_older_checkpoint_of_its_own_once_and_sets_later_ones_aside(self, settings):
        run = folder() / "run"
        older = self.files_of(run, 300)
        self.files_of(run, 400)
        record = Run(run, {"run_id": "a"})

        def chosen(settings, resume=str(older), reset=None):
            restarts = record.manifest.get("restarts", [])
            return choose_start(run, resume, reset, run_id="a", fingerprint=settings, restarts=restarts)

        for left in (["left-checkpoint-400"], ["left-checkpoint-400", "left-checkpoint-400-2"]):
            start = chosen(settings)
            self.assertEqual(start.checkpoint, older)
            StartRecord(record, start, str(older)).on_train_begin(None, SimpleNamespace(max_steps=500), None)
            names = sorted(path.name for path in run.iterdir())
            self.assertEqual(names, ["checkpoint-300", *left, "manifest.json"])
            later = self.files_of(run, 400, settings=settings)
            self.assertEqual(chosen(settings).checkpoint, later)
            settings += "+"
        for reset, resume in ((None, "auto"), ("data", "auto")):
            self.assertEqual(chosen(settings, resume, reset).checkpoint, later)
        settings = settings.removesuffix("+")
        self.assertEqual(chosen(settings, reset="data").checkpoint, older)
        shutil.rmtree(older)
        self.assertEqual(chosen(settings).checkpoint, later, "rotation has deleted the one that the command names")

    def test_a_checkpoint_that_is_named_is_begun_from_once_also_where_it_is_the_newest(self):
        run = folder() / "run"
        newest = self.files_of(run, 300)
        for resume, goes_on_from in (("auto", newest), (str(newest), run / "checkpoint-400")):
            record = Run(run, {"run_id": "a"})
            start = choose_start(run, resume, None, run_id="a", fingerprint="changed")
            StartRecord(record, start, resume).on_train_begin(None, SimpleNamespace(max_steps=500), None)
            self.files_of(run, 400, settings="changed")
            restarts = record.manifest["restarts"]
            start = choose_start(run, str(newest), None, run_id="a", fingerprint="changed", restarts=restarts)
            self.assertEqual(start.checkpoint, goes_on_from)
            shutil.rmtree(run / "checkpoint-400")

    def test_a_reset_is_done_again_by_a_command_with_other_settings_and_where_nothing_of_the_kind_was_saved(self):
        run, elsewhere = folder() / "run", folder() / "checkpoint-9"
        checkpoint = self.files_of(run, 4)

        def chosen(settings, reset, resume="auto", position="schedule"):
            content = json.dumps({"examples": 32, "reset": position})
            (checkpoint / "position.json").write_text(content)
            write_manifest(checkpoint, run_id="a", details={"settings": "s"})
            start = choose_start(run, resume, reset, run_id="a", fingerprint=settings)
            return sorted(start.reset), start.parts_reset

        self.assertEqual(chosen("s", "schedule"), ([], "schedule"))
        self.assertEqual(chosen("other", "schedule"), (["schedule"], "schedule"))
        self.assertEqual(
            chosen("other", "schedule", str(elsewhere)), ([], "schedule"), "it was reset at that beginning"
        )
        self.assertEqual(
            choose_start(folder(), str(checkpoint)).parts_reset, "", "the other run was reset, not this one"
        )
        (checkpoint / "optimizer.pt").unlink()
        parts = "data,optimizer,schedule"
        self.assertEqual(chosen("s", parts, position=parts), (["optimizer", "schedule"], parts))
        start = choose_start(run, "auto", parts, run_id="a", fingerprint="s")
        check_start(start, total_steps=4, deepspeed=False, fsdp=False, world_size=1)

    def test_in_its_own_directory_a_run_is_reset_once(self):
        run = folder()
        first = self.checkpoint(run, 3)
        start = choose_start(run, "auto", "schedule,optimizer")
        self.assertEqual((start.checkpoint, start.reset, start.restart), (first, {"schedule", "optimizer"}, True))
        self.checkpoint(run, 5, "schedule,optimizer")
        again = choose_start(run, "auto", "schedule,optimizer")
        self.assertEqual((again.reset, again.position), (frozenset(), Position(37, 3, "optimizer,schedule", 8)))
        self.assertEqual(choose_start(run, "auto", "data").reset, {"data"})

    def test_a_checkpoint_of_weights_alone_is_no_silent_new_beginning(self):
        run = training_that_saved_weights_alone().args.output_dir
        with exits_with(78, "checkpoint-1 contains no optimizer .*--reset optimizer"):
            choose_start(run, "auto")
        self.assertEqual(choose_start(run, "auto", "optimizer").reset, {"optimizer"})

    def test_weights_alone_are_saved_with_the_trainer_s_state_but_no_optimizer_under_deepspeed_either(self):
        trainer = training_that_saved_weights_alone()
        state = json.loads(Path(trainer.args.output_dir, "checkpoint-1", "trainer_state.json").read_text())
        self.assertEqual(state["global_step"], 1)
        self.enter_context(mock.patch.object(trainer, "is_deepspeed_enabled", True))
        save = mock.patch.object(trainer, "_save_optimizer_and_scheduler")
        with mock.patch.object(trainer, "save_model"), save as saved:
            trainer.write_checkpoint(folder())
        saved.assert_not_called()

    def test_a_checkpoint_after_a_resume_still_says_what_was_reset_when_the_run_began(self):
        trainer, place = training_that_saved_weights_alone(), folder()
        position = Position(examples=8, schedule_start=3, reset="optimizer,schedule")
        start = Start(Path("run/checkpoint-5"), position=position, of_this_run=True)
        with mock.patch.object(trainer, "start", start), mock.patch.object(trainer, "save_model"):
            trainer.write_checkpoint(place)
        written = json.loads((place / "position.json").read_text())
        self.assertEqual((written["reset"], written["schedule_start"]), ("optimizer,schedule", 3))

    def test_a_checkpoint_of_another_kind_or_number_of_ranks_is_refused_with_what_to_do(self):
        checkpoint = folder() / "checkpoint-4"
        checkpoint.mkdir()
        starts.check_kind(checkpoint, deepspeed=False, world_size=2)
        with exits_with(78, "written without DeepSpeed.*--model_name_or_path"):
            starts.check_kind(checkpoint, deepspeed=True, world_size=2)
        (checkpoint / "global_step4").mkdir()
        write_manifest(checkpoint, world_size=2)
        starts.check_kind(checkpoint, deepspeed=True, world_size=2)
        with exits_with(78, "on 2 ranks.*not 3"):
            starts.check_kind(checkpoint, deepspeed=True, world_size=3)
        with exits_with(78, "written under DeepSpeed"):
            starts.check_kind(checkpoint, deepspeed=False, world_size=2)

    @parameterized.product(
        of_deepspeed=[False, True], deepspeed=[False, True], world_size=[1, 2, 3], has_manifest=[True, False]
    )
    def test_any_number_of_ranks_goes_on_from_a_checkpoint_of_its_kind_unless_deepspeed_wrote_it(
        self, of_deepspeed, deepspeed, world_size, has_manifest
    ):
        """Without a manifest nobody knows on how many ranks it was written."""
        checkpoint = folder() / "checkpoint-4"
        (checkpoint / ("global_step4" if of_deepspeed else "plain")).mkdir(parents=True)
        if has_manifest:
            write_manifest(checkpoint, world_size=2)
        refusal = contextlib.nullcontext()
        if of_deepspeed != deepspeed:
            refusal = exits_with(78, "run as before, or start a new run with its weights")
        elif of_deepspeed and has_manifest and world_size != 2:
            refusal = exits_with(78, f"on 2 ranks, and only as many can resume from it, not {world_size}; start 2")
        with refusal:
            starts.check_kind(checkpoint, deepspeed=deepspeed, world_size=world_size)

    def test_a_reset_that_cannot_be_is_named(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertEqual(choose_start(folder(), "auto", "data"), Start())
        self.assertIn("--reset data has no effect", logs.output[0])
        with exits_with(78, "unknown part 'optimiser'; did you mean optimizer"):
            starts.parse_reset("data,optimiser")


FLAGS = later_wins(FINE_TUNE, BY_STEPS, "--save_strategy", "steps", "--save_steps", "2", "--schedule", "constant")
FLAGS = later_wins(FLAGS, "--load_best_model_at_end", "False", "--logging_steps", "1")


class ScriptTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_an_extended_run_equals_a_longer_one(self):
        whole, grown = folder() / "run", folder() / "run"
        expected = fine_tune_t5.main(later_wins([*FLAGS, "--max_steps", "6", "--output_dir", str(whole)]))
        fine_tune_t5.main(later_wins([*FLAGS, "--max_steps", "4", "--output_dir", str(grown)]))
        longer = [*FLAGS, "--max_steps", "6", "--output_dir", str(grown)]
        with exits_with(78, "max_steps 4 there, 6 here.*or --extend"):
            fine_tune_t5.main(longer)
        self.assertEqual(fine_tune_t5.main([*longer, "--extend"]), expected)
        self.assertEqual(*[(path / "model.safetensors").read_bytes() for path in (whole, grown)])
        manifest = json.loads((grown / "manifest.json").read_text())
        self.assertEqual((manifest["status"], manifest["settings"]["max_steps"]), ("finished", 6))
        self.assertEqual(manifest["changes"][0]["changed"], {"max_steps": [4, 6]})
        self.assertEqual(fine_tune_t5.main([*longer, "--extend"]), expected)  # finished; nothing is trained again
        with exits_with(78, "--max_steps 5 is less than the 6"):
            fine_tune_t5.main(later_wins([*FLAGS, "--max_steps", "5", "--output_dir", str(grown), "--extend"]))

    @parameterized.parameters("steps", "epoch")
    @pytest.mark.slow
    def test_a_budget_ends_a_run_as_its_steps_would(self, strategy):
        directory = folder() / "run"
        flags = [*FLAGS, "--max_steps", "100000", "--max_minutes", "1e-4", "--output_dir", str(directory)]
        flags = later_wins(flags, "--eval_strategy", strategy, "--save_strategy", strategy)
        results = fine_tune_t5.main(flags)
        self.assertIn("accuracy", results["tasks"]["sentiment"])
        manifest = json.loads((directory / "manifest.json").read_text())
        self.assertEqual((manifest["status"], manifest["training"]["steps"]), ("finished", 1))
        lines = read_rows(directory / "metrics.jsonl")
        self.assertLen([line for line in lines if "eval/accuracy" in line], 1)
        progress = json.loads((directory / "checkpoint-1" / "progress.json").read_text())
        self.assertGreaterEqual(progress["seconds"], 0.006)

    @pytest.mark.slow
    def test_seconds_and_rates_of_an_extended_run_are_of_all_its_updates(self):
        directory = folder() / "run"
        argv = later_wins(FLAGS, "--save_steps", "1", "--output_dir", str(directory))
        # In the first start 1000 seconds pass between any two looks at the clock.
        clock = SimpleNamespace(perf_counter=itertools.count(0.0, 1000.0).__next__)
        with mock.patch.object(resuming, "time", clock):
            fine_tune_t5.main([*argv, "--max_steps", "1"])
        in_checkpoint = json.loads((directory / "checkpoint-1" / "progress.json").read_text())["seconds"]
        self.assertEqual(in_checkpoint % 1000, 0)
        self.assertGreaterEqual(in_checkpoint, 1000)
        began = time.time()
        with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()) as stdout:
            fine_tune_t5.main([*argv, "--max_steps", "2", "--extend"])
        manifest = json.loads((directory / "manifest.json").read_text())
        restart = {"from": str(directory / "checkpoint-1"), "reset": [], "step": 1}
        self.assertEqual((manifest["restarts"], manifest["total_steps"]), ([restart], 2))
        training = manifest["training"]
        seconds = training["train_runtime"]
        self.assertBetween(seconds, in_checkpoint, in_checkpoint + time.time() - began)
        # 2 updates of 16 rows.
        self.assertAlmostEqual(training["train_steps_per_second"], 2 / seconds, delta=0.0006)
        self.assertAlmostEqual(training["train_samples_per_second"], 32 / seconds, delta=0.0006)
        self.assertEqual(training["seconds_from_step"], 0)
        (line,) = [line for line in read_rows(directory / "metrics.jsonl") if "train/train_runtime" in line]
        self.assertEqual(line["train/train_runtime"], seconds)
        minutes, rest = divmod(round(seconds), 60)
        self.assertIn(f"step 2/2 · trained in {minutes}m{rest:02d}s · ", stdout.getvalue() + stderr.getvalue())
        (row,) = rows_of_runs([directory])
        self.assertEqual(row["train_seconds"], seconds)
        self.assertEqual(read_run(directory)["speed"]["train/train_runtime"], seconds)

    def test_a_checkpoint_of_before_seconds_were_kept_is_counted_on_from(self):
        progress = RunProgress(lambda control: None)
        saved = {"loss_from_step": 0, "pending": {}, "callbacks": {}}
        progress.take_up_saved(SimpleNamespace(step=40, of_this_run=True), saved, [])
        self.assertEqual((progress.seconds_before, progress.seconds_from_step), (0.0, 40))
        saved |= {"seconds": 7.5, "seconds_from_step": 0, "seconds_elsewhere": 0.0}
        progress.take_up_saved(SimpleNamespace(step=40, of_this_run=True), saved, [])
        self.assertEqual((progress.seconds_before, progress.seconds_from_step), (7.5, 0))

    @pytest.mark.slow
    def test_other_settings_are_another_run_still(self):
        directory = folder() / "run"
        fine_tune_t5.main([*FINE_TUNE, "--no_eval", "--max_steps", "1", "--seed", "1", "--output_dir", str(directory)])
        flags = ["--no_eval", "--max_steps", "2", "--seed", "2", "--extend", "--output_dir", str(directory)]
        with exits_with(78, "seed 1 there, 2 here"):
            fine_tune_t5.main([*FINE_TUNE, *flags])
