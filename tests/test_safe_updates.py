"""Updates that must not be made are not: failures, spikes, lack of memory; what is noted of them."""

import json
import logging
import math
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from absl.testing import absltest, parameterized
from guarded_trainer import at_steps, equal, examples_in, incidents, limit_rows, losses, make
from transformers.cache_utils import DynamicCache

from t5suite.testing import exits_with, read_rows
from t5suite.training.processes.ranks import Ranks
from t5suite.training.updates.guard import UpdateGuard, check_gradients
from t5suite.training.updates.incidents import Incidents, Spike, SpikeDetector, read_incidents

NAN = float("nan")


def times(factor):
    return lambda loss: loss * factor


class ScriptedSpikes(SpikeDetector):
    """Finds a spike in the n-th update that it sees, for every n of these numbers."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.seen = set(numbers), 0

    def observe(self, loss, grad_norm=None):
        self.seen += 1
        return Spike("loss", loss, loss / 2, loss / 10, 9.0) if self.seen in self.numbers else None


class NonFiniteTest(parameterized.TestCase):
    @parameterized.parameters("adamw", "adafactor")
    @pytest.mark.quick_cases(1)
    def test_a_skipped_update_changes_no_weight_and_no_moment_but_schedule_and_steps_go_on(self, optimizer):
        self.check_skipped(optimizer)

    @pytest.mark.slow
    def test_so_does_one_of_hugging_face_s_optimizer(self):
        self.check_skipped(None)

    def check_skipped(self, optimizer):
        trainer = make(optimizer=optimizer, schedule="linear")
        at_steps(trainer, {3}, times(NAN))
        trainer.train()
        states = trainer.recorder.at
        self.assertEqual(sorted(states), [0, 1, 2, 3, 4, 5, 6])
        self.assertTrue(equal(states[3][:2], states[2][:2]))
        for step in (1, 2, 4, 5):
            self.assertFalse(equal(states[step][0], states[step - 1][0]), step)
        rates = [states[step][2][0] for step in range(7)]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertLen(set(rates), 7)

    @parameterized.parameters((-math.inf, 1), (NAN, 2))
    @pytest.mark.quick_cases(1)
    def test_a_loss_that_is_none_is_an_incident_with_its_examples(self, factor, accumulation):
        self.check_incident(factor, accumulation)

    @parameterized.parameters((NAN, 1), (math.inf, 1))
    @pytest.mark.slow
    def test_so_is_every_such_loss(self, factor, accumulation):
        self.check_incident(factor, accumulation)

    def check_incident(self, factor, accumulation):
        trainer = make(8 // accumulation, accumulation, max_steps=3)
        at_steps(trainer, {2}, times(factor))
        trainer.train()
        (line,) = incidents(trainer)
        self.assertEqual((line["step"], line["kind"], line["action"]), (2, "non_finite", "update skipped"))
        self.assertLen(line["examples"], 8)
        self.assertEqual(line["examples"], examples_in(trainer, 2))
        self.assertIsNone(line["loss"])
        self.assertIn("loss was", line["note"])
        self.assertEqual(trainer.updates.skipped_updates, 1)
        self.assertTrue(all(p.isfinite().all() for p in trainer.model.parameters()))

    def test_a_gradient_that_is_none_is_skipped_though_the_loss_is_fine(self):
        self.check_gradient(NAN)

    @pytest.mark.slow
    def test_so_is_an_infinite_one(self):
        self.check_gradient(math.inf)

    def check_gradient(self, value):
        trainer = make(max_steps=3)
        weight = trainer.model.get_input_embeddings().weight
        hook = lambda gradient: gradient + value if trainer.state.global_step == 2 else gradient
        weight.register_hook(hook)
        trainer.train()
        self.assertTrue(equal(trainer.recorder.at[3][:2], trainer.recorder.at[2][:2]))
        (line,) = incidents(trainer)
        self.assertIsNone(line["grad_norm"])
        self.assertGreater(line["loss"], 0)
        sound = [loss for loss, _ in losses(trainer)[:2]]
        mean = trainer.state.log_history[-1]["train_loss"]
        self.assertAlmostEqual(mean, sum(sound) / 2, places=5, msg="the mean is that of the updates that were made")

    def test_the_run_ends_after_so_many_in_a_row(self):
        trainer = make(max_skipped_updates=2)
        at_steps(trainer, {3, 4, 5}, times(NAN))
        with exits_with(70, r"step 4: the loss was nan.*2 updates in a row \(from step 3\)") as caught:
            trainer.train()
        self.assertIn(f"Examples of the last: {', '.join(map(str, examples_in(trainer, 4)))} (", str(caught.exception))
        self.assertIn("--learning_rate", str(caught.exception))
        self.assertEqual(
            [line["action"] for line in incidents(trainer)], ["update skipped", "update skipped; the run stops"]
        )
        self.assertTrue(all(p.isfinite().all() for p in trainer.model.parameters()))

    def test_a_training_without_any_update_is_an_error(self):
        trainer = make(max_steps=2)
        at_steps(trainer, {1, 2}, times(NAN))
        with exits_with(70, "none of the 2 updates was applied.*another copy of the model"):
            trainer.train()

    def test_an_update_without_a_target_token_says_so(self):
        trainer = make(max_skipped_updates=1)
        collate, calls = trainer.data_collator, []

        def without_targets(features):
            calls.append(1)
            batch = collate(features)
            return {**batch, "labels": torch.full_like(batch["labels"], -100)} if len(calls) == 2 else batch

        trainer.data_collator = without_targets
        with exits_with(70, "step 2: the update has no target token at all.*--max_target_length"):
            trainer.train()

    @pytest.mark.slow
    def test_logged_losses_are_means_over_sound_updates(self):
        still = {"num_train_epochs": 1, "optim": "sgd", "learning_rate": 0.0}
        whole = make(**still)
        whole.train()
        each = [loss for loss, _ in losses(whole)]
        for bad in (1, 3):
            trainer = make(**still, logging_steps=3)
            at_steps(trainer, {bad}, times(NAN))
            trainer.train()
            expected = (sum(each) - each[bad - 1]) / 2
            self.assertAlmostEqual(losses(trainer)[0][0], expected, places=5)
            self.assertAlmostEqual(trainer.state.log_history[-1]["train_loss"], expected, places=5)
            self.assertEqual(trainer.state.log_history[0]["skipped_updates"], 1)

    @pytest.mark.slow
    def test_a_run_without_incidents_is_the_same_to_the_bit(self):
        guarded, plain = make(max_steps=3), make(max_steps=3)
        guard = type(plain.updates)
        with mock.patch.object(guard, "settle"), mock.patch.object(guard, "correct"):
            plain.train()
        guarded.train()
        self.assertTrue(equal(plain.recorder.at[3], guarded.recorder.at[3]))
        self.assertFalse(guarded.updates.incidents.path.exists())

    def test_under_fp16_overflowing_gradients_are_the_scaler_s_business_while_its_scale_can_fall(self):
        trainer = make()
        for scale, broken in ((65536.0, False), (1.0, True)):
            trainer.accelerator.scaler = SimpleNamespace(get_scale=lambda scale=scale: scale)
            self.assertEqual(trainer.updates.is_broken(SimpleNamespace(loss=2.0, grad_norm=math.inf)), broken)
            self.assertTrue(trainer.updates.is_broken(SimpleNamespace(loss=NAN, grad_norm=1.0)))

    def test_a_resumed_run_goes_on_counting(self):
        first = make(max_skipped_updates=3, max_steps=4)
        at_steps(first, {1, 3, 4}, times(NAN))
        first.train()
        second = make()
        second.updates.load_state_dict(json.loads(json.dumps(first.updates.state_dict())))
        self.assertEqual((second.updates.in_a_row, second.updates.skipped_updates), (2, 3))
        self.assertEqual(second.updates.spikes.state(), first.updates.spikes.state())
        self.assertEqual(second.updates.counted["run"], [4, 3])


class SpikePolicyTest(parameterized.TestCase):
    def trainer(self, policy, spikes, **settings):
        return make(loss_spikes=policy, guard={"spikes": ScriptedSpikes(spikes)}, **settings)

    def test_spikes_that_are_logged_change_nothing_warn_of_nothing_and_are_one_line_at_the_end(self):
        trainer, off = self.trainer("log", {2, 3, 5, 6}), self.trainer("off", {3})
        off.train()
        with self.assertLogs("t5suite", logging.INFO) as logged:
            trainer.train()
        self.assertEqual([line["step"] for line in incidents(trainer)], [2, 3, 5, 6])
        (line,) = [line for line in logged.output if "spike" in line]
        self.assertRegex(line, r"^INFO.*:4 loss spikes, .* loss 10.0 times .*, at step 2: .*incidents.jsonl$")
        self.assertTrue(equal(off.recorder.at, trainer.recorder.at))
        self.assertEqual(incidents(off), [])

    def test_skip_leaves_weights_and_moments_and_keeps_the_loss_in_the_log(self):
        trainer = self.trainer("skip", {3}, max_steps=4)
        trainer.train()
        self.assertTrue(equal(trainer.recorder.at[3][:2], trainer.recorder.at[2][:2]))
        self.assertTrue(all(math.isfinite(loss) for loss, _ in losses(trainer)))
        self.assertEqual(incidents(trainer)[0]["action"], "update skipped")

    def test_deepspeed_refuses_to_skip_because_it_has_made_its_update_by_then(self):
        trainer = make()
        for policy, kind in (("log", "DEEPSPEED"), ("skip", "FSDP"), ("skip", "MULTI_GPU")):
            self.guard_of(trainer, policy, kind)
        with exits_with(78, "--loss_spikes skip: DeepSpeed"):
            self.guard_of(trainer, "skip", "DEEPSPEED")

    def guard_of(self, trainer, policy, kind):
        """What guards a trainer's updates under a kind of `accelerate`'s distributed types."""
        trainer.args.loss_spikes = policy
        accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value=kind))
        return type(trainer.updates)(trainer.args, accelerator, trainer.ranks, trainer.micro_batches, is_main=True)


class OutOfMemoryTest(parameterized.TestCase):
    @parameterized.parameters(((8, 1), "model", "sgd"), ((4, 2), "backward", "adamw_torch"))
    @pytest.mark.slow
    def test_the_trajectory_stays(self, cut, where, optim):
        self.check_trajectory(cut, where, optim)

    @parameterized.parameters(
        ((4, 2), "loss", "adamw_torch"), ((8, 1), "backward", "adamw_torch"), ((4, 2), "backward", "sgd")
    )
    @pytest.mark.slow
    def test_so_it_does_wherever_memory_ends(self, cut, where, optim):
        self.check_trajectory(cut, where, optim)

    def check_trajectory(self, cut, where, optim):
        rows, accumulation = cut
        expected = make(rows, accumulation, optim=optim, max_steps=4)
        expected.train()
        trainer = make(rows, accumulation, optim=optim, max_steps=4)
        limit_rows(trainer, rows // 2, from_step=3, where=where)
        trainer.train()
        self.assertEqual(trainer.updates.micro_batches.pieces, 2)
        self.assertEqual(trainer.state.global_step, 4)
        for pair, expected_pair in zip(losses(trainer), losses(expected), strict=True):
            for a, b in zip(pair, expected_pair, strict=True):
                self.assertLess(abs(a - b) / b, 1e-5)
        (line,) = incidents(trainer)
        self.assertEqual(
            (line["step"], line["kind"], line["action"]), (3, "out_of_memory", "micro-batches in 2 pieces")
        )

    @pytest.mark.slow
    def test_the_run_is_the_one_that_was_cut_from_that_step_on(self):
        """To the bit: what a resumed run computes that meets the lack of memory again, or remembers the pieces."""
        failing = make(8, 1, max_steps=4)
        limit_rows(failing, 4, from_step=3)
        failing.train()
        cut = make(8, 1, max_steps=4)
        begin = cut.updates.on_step_begin

        def on_step_begin(*args, **kwargs):
            cut.updates.micro_batches.pieces = 2 if cut.state.global_step >= 2 else 1
            begin(*args, **kwargs)

        cut.updates.on_step_begin = on_step_begin
        cut.train()
        self.assertTrue(equal(failing.recorder.at[4], cut.recorder.at[4]))

    @parameterized.parameters(
        (8, 1, "--per_device_train_batch_size 4 --gradient_accumulation_steps 2:"),
        (3, 2, "--per_device_train_batch_size 1 --gradient_accumulation_steps 6:"),
        (1, 8, "Use shorter inputs and targets, --gradient_checkpointing"),
    )
    def test_a_sharded_run_ends_and_the_batch_that_it_names_makes_the_same_updates(self, rows, accumulation, advice):
        trainer = make(rows, accumulation)
        trainer.micro_batches.kind = "FSDP"
        limit_rows(trainer, 0)
        with exits_with(71, "out of memory on rank 0 in step 1.*" + advice):
            trainer.train()

    @parameterized.parameters((4, 2), (1, 1), (16, 8))
    @pytest.mark.quick_cases(1)
    def test_a_resumed_run_cuts_to_as_many_rows(self, rows, pieces):
        first, second = make(8, 1), make(rows, 1)
        first.updates.micro_batches.pieces = 4
        second.updates.load_state_dict(first.updates.state_dict())
        self.assertEqual(second.updates.micro_batches.pieces, pieces)

    def test_a_run_that_never_ran_out_of_memory_resumes_with_whole_micro_batches_of_any_size(self):
        """Otherwise larger ones would change nothing, and DeepSpeed would make an update of every piece."""
        first, second = make(4, 2), make(8, 1)
        second.updates.load_state_dict(first.updates.state_dict())
        self.assertEqual(second.updates.micro_batches.pieces, 1)


class KeysAndValuesTest(absltest.TestCase):
    def test_training_keeps_no_keys_and_values_and_generation_after_it_does(self):
        caches, update = [], DynamicCache.update
        with mock.patch.object(
            DynamicCache, "update", lambda *args, **kwargs: caches.append(1) or update(*args, **kwargs)
        ):
            trainer = make(max_steps=1)
            trainer.train()
            self.assertEmpty(caches)
            trainer.model.generate(torch.tensor([[5, 6, 1]]), max_new_tokens=3)
        self.assertNotEmpty(caches)


def feed(detector, losses, grad_norm=1.0):
    return [detector.observe(loss, grad_norm) for loss in losses]


class SpikeDetectorTest(parameterized.TestCase):
    @parameterized.parameters(0.0, 0.01, 0.1)
    def test_ten_times_a_flat_loss_is_a_spike_after_sixteen_updates(self, noise):
        rng = random.Random(0)
        losses = [2.0 + rng.gauss(0, noise) for _ in range(16)]
        detector = SpikeDetector()
        self.assertEqual(feed(detector, losses), [None] * 16)
        spike = detector.observe(20.0, 1.0)
        self.assertEqual((spike.name, spike.value), ("loss", 20.0))
        self.assertLess(spike.limit, 20.0)
        self.assertIn("loss 20 is", str(spike))

    def test_near_zero_one_hard_example_is_no_spike(self):
        detector = SpikeDetector()
        feed(detector, [0.002] * 20)
        self.assertIsNone(detector.observe(0.1, 50.0))
        self.assertEqual(detector.observe(3.0, 1.0).name, "loss")

    def test_the_limit_is_six_standard_deviations_above_the_mean(self):
        rng = random.Random(1)
        past = [rng.gauss(5.0, 1.0) for _ in range(40)]
        mean = sum(past) / 40
        limit = mean + 6 * math.sqrt(sum((x - mean) ** 2 for x in past) / 39)
        for value, expected in ((limit - 1e-6, False), (limit + 1e-6, True)):
            detector = SpikeDetector(least_deviation=0.0)
            feed(detector, past)
            self.assertEqual(detector.observe(value) is not None, expected)

    def test_numbers_that_are_none_leave_no_trace(self):
        detector = SpikeDetector()
        feed(detector, [2.0] * 20)
        before = detector.state()
        for value in (math.nan, math.inf, -math.inf):
            self.assertIsNone(detector.observe(value, value))
        self.assertEqual(detector.state(), before)

    @parameterized.parameters(5, 40, 200)
    def test_a_resumed_detector_says_what_the_first_would_have_said(self, cut):
        rng = random.Random(3)
        losses = [rng.lognormvariate(0, 1.2) for _ in range(400)]
        whole, first = SpikeDetector(), SpikeDetector()
        expected = feed(whole, losses)
        feed(first, losses[:cut])
        second = SpikeDetector()
        feed(second, [1.0, 2.0])
        second.load(json.loads(json.dumps(first.state())))
        self.assertEqual(feed(second, losses[cut:]), expected[cut:])
        self.assertTrue(any(expected[cut:]))


class IncidentsTest(parameterized.TestCase):
    def test_a_resumed_run_keeps_what_happened_up_to_its_step(self):
        directory = Path(tempfile.mkdtemp())
        incidents = Incidents(directory)
        steps_in_file = lambda: [line["step"] for line in read_rows(directory / "incidents.jsonl")]
        for step in (3, 4, 5):
            incidents.add(step, "spike", "none")
        with (directory / "incidents.jsonl").open("a") as file:
            file.write('{"step": 6, "kind": "sp')
        incidents.drop_after(4)
        self.assertEqual(steps_in_file(), [3, 4])
        incidents.add(5, "spike", "none")
        self.assertEqual(steps_in_file(), [3, 4, 5])

    def test_a_line_is_whole_whatever_characters_its_texts_have(self):
        """Of these, JSON writes only the last one in another way."""
        directory = Path(tempfile.mkdtemp())
        Incidents(directory).add(3, "out_of_memory", "none", ["a\u2028b.train:1"], message="no\x85room\n")
        (line,) = read_incidents(directory)
        self.assertEqual((line["examples"], line["message"]), (["a\u2028b.train:1"], "no\x85room\n"))


class Idle(torch.nn.Module):
    """A model as `DistributedDataParallel` wraps it, of which one matrix has got no gradient."""

    def __init__(self, find_unused_parameters=False, static_graph=False):
        super().__init__()
        self.module = torch.nn.ModuleDict(
            {name: torch.nn.Linear(2, 2, bias=False) for name in ("used", "idle", "frozen")}
        )
        self.module["used"].weight.grad = torch.zeros(2, 2)
        self.module["frozen"].requires_grad_(False)
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph


class GuardTest(parameterized.TestCase):
    """What becomes of a broken update under DeepSpeed, which makes or skips its step by itself."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.loss_sum = torch.tensor(7.0)

    def guard(self, kind="DEEPSPEED", fp16=False, max_skipped_updates=9):
        flags = {"loss_spikes": "off", "output_dir": self.folder, "per_device_train_batch_size": 4, "fp16": fp16}
        accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value=kind), scaler=None)
        micro_batches = SimpleNamespace(loss=torch.tensor(2.0), num_items=None, failure=None, pieces=1)
        micro_batches.loss_sum_before = torch.tensor(5.0)
        args = SimpleNamespace(max_skipped_updates=max_skipped_updates, **flags)
        return UpdateGuard(args, accelerator, Ranks(), micro_batches, is_main=True)

    def settle(self, guard, grad_norm, overflow=False, dynamic=True, scale=8.0):
        """Settles an update of DeepSpeed's; returns the optimizer's flag of a skipped step."""
        scaler = SimpleNamespace(dynamic=dynamic, cur_scale=scale)
        optimizer = SimpleNamespace(optimizer=SimpleNamespace(overflow=overflow, loss_scaler=scaler))
        guard.settle(
            torch.nn.Linear(1, 1), optimizer, grad_norm, step=3, loss_sum=self.loss_sum, stop=False,
            examples_of=lambda step: ["rte.train:7"],
        )  # fmt: skip
        return optimizer.optimizer.overflow

    @parameterized.parameters(
        # what DeepSpeed's scaler can still do -> whether the update is broken
        ({"dynamic": True, "scale": 8.0}, False), ({"dynamic": True, "scale": 1.0}, True), ({"dynamic": False}, True),
    )  # fmt: skip
    def test_a_scale_that_can_fall_handles_gradients_that_overflow(self, scaler, is_broken):
        guard = self.guard()
        self.settle(guard, torch.tensor(math.inf), **scaler)
        self.assertEqual((guard.skipped_updates, len(read_incidents(self.folder))), (is_broken, is_broken))

    @parameterized.parameters((True, "update skipped"), (False, "none: DeepSpeed has made the update"))
    def test_what_deepspeed_did_is_written_down_and_its_schedule_goes_on(self, overflow, action):
        guard = self.guard()
        guard.micro_batches.loss = torch.tensor(math.nan)
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertFalse(self.settle(guard, 1.0, overflow=overflow))
        (incident,) = read_incidents(self.folder)
        self.assertEqual(
            (incident["action"], incident["kind"], incident["examples"]), (action, "non_finite", ["rte.train:7"])
        )
        self.assertIn(f"step 3: the loss was nan, the gradient norm 1; {action}", logs.output[0])
        self.assertEqual(self.loss_sum.item(), 5.0, "what the broken update added is taken back")

    def test_the_last_of_too_many_says_what_would_help(self):
        guard = self.guard(fp16=True, max_skipped_updates=1)
        guard.micro_batches.loss = torch.tensor(math.nan)
        with exits_with(
            70, "the loss was nan; 1 updates in a row .from step 3. were skipped.*rte.train:7.*fix: --bf16"
        ):
            self.settle(guard, None, overflow=True)

    def test_a_weight_without_a_gradient_is_named_where_ranks_wait_for_it(self):
        self.enter_context(mock.patch("t5suite.training.updates.guard.DistributedDataParallel", Idle))
        optimizer_of = lambda model: SimpleNamespace(param_groups=[{"params": [*model.module.parameters()][:2]}])
        model = Idle()
        with exits_with(78, "no gradient reached idle.weight, so"):
            check_gradients(model, optimizer_of(model))
        for fine in (Idle(find_unused_parameters=True), Idle(static_graph=True), model.module):
            check_gradients(fine, optimizer_of(model))
        model.module["idle"].weight.grad = torch.zeros(2, 2)
        check_gradients(model, optimizer_of(model))
