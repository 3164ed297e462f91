"""What a step must not do beside its arithmetic: wait for numbers, keep what nobody asks for, count anew."""

import math

import guarded_trainer
import torch
from absl.testing import parameterized
from device_reads import reading
from transformers import Seq2SeqTrainer
from transformers.cache_utils import DynamicCache
from transformers.trainer_utils import IntervalStrategy

from t5suite.base.errors import ConfigError, NumericsError
from t5suite.training.trainer import SuiteTrainer
from t5suite.training.updates.incidents import read_incidents


class StepCostTest(parameterized.TestCase):
    """A tiny trainer over six updates."""

    def test_training_keeps_no_keys_and_values(self):
        made = []
        update = DynamicCache.update
        try:
            DynamicCache.update = lambda *args, **kwargs: made.append(1) or update(*args, **kwargs)
            guarded_trainer.make().train()
        finally:
            DynamicCache.update = update
        self.assertEmpty(made)

    def test_generation_after_training_keeps_keys_and_values(self):
        trainer = guarded_trainer.make()
        trainer.train()
        made = []
        update = DynamicCache.update
        try:
            DynamicCache.update = lambda *args, **kwargs: made.append(1) or update(*args, **kwargs)
            trainer.model.generate(torch.tensor([[5, 6, 1]]), max_new_tokens=3)
        finally:
            DynamicCache.update = update
        self.assertNotEmpty(made)

    def test_operations_are_those_that_transformers_counts(self):
        trainer = guarded_trainer.make()
        batch = trainer.data_collator(trainer.train_dataset.__getitems__([0, 1, 2]))
        self.assertEqual(trainer.floating_point_ops(batch), Seq2SeqTrainer.floating_point_ops(trainer, batch))
        self.assertIsNot(SuiteTrainer.floating_point_ops, Seq2SeqTrainer.floating_point_ops)
        self.assertEqual(trainer.floating_point_ops({"labels": batch["labels"]}), 0)


class LateChecksTest(parameterized.TestCase):
    """`--update_checks late` against `now`, over six updates."""

    def run_both(self, *, bad_steps=(), value=math.nan, **settings):
        found = []
        for checks in ("now", "late"):
            trainer = guarded_trainer.make(update_checks=checks, **settings)
            guarded_trainer.at_steps(trainer, bad_steps, lambda loss: loss * value)
            trainer.train()
            found.append(trainer)
        return found

    @parameterized.product(optimizer=["adamw", "adamw_rms"], bad_steps=[(), (1,), (3,), (2, 3, 5), (6,)])
    def test_late_checks_leave_out_the_same_updates(self, optimizer, bad_steps):
        now, late = self.run_both(bad_steps=bad_steps, optimizer=optimizer, weight_decay=0.1, logging_steps=4)
        self.assertIsNone(now._late)
        self.assertIsNotNone(late._late)
        self.assertEqual(late.skipped_updates, len(bad_steps))
        self.assertEqual(now.recorder.at.keys(), late.recorder.at.keys())
        for step, (weights, _, rates) in now.recorder.at.items():
            self.assertTrue(guarded_trainer.equal(weights, late.recorder.at[step][0]), f"weights of step {step}")
            self.assertEqual(rates, late.recorder.at[step][2])
        told = [[(line["step"], line["kind"], line["action"], line.get("note"), line["examples"])
                 for line in read_incidents(trainer.args.output_dir)] for trainer in (now, late)]  # fmt: skip
        self.assertEqual(*told)
        self.assertLen(told[0], len(bad_steps))
        logged = [[line["loss"] for line in trainer.state.log_history if "loss" in line] for trainer in (now, late)]
        self.assertEqual(*logged)
        self.assertEqual(*[trainer.counted for trainer in (now, late)])

    @parameterized.parameters("adamw", "adamw_rms")
    def test_a_step_left_out_on_the_device_is_not_counted(self, optimizer):
        now, late = self.run_both(bad_steps=(2, 3), optimizer=optimizer)
        states = [trainer.optimizer.state_dict()["state"] for trainer in (now, late)]
        self.assertTrue(guarded_trainer.equal(*states))

    def test_a_gradient_that_is_none_is_found_where_the_loss_is_sound(self):
        trainer = guarded_trainer.make(update_checks="late", optimizer="adamw")
        trainer.model.shared.weight.register_hook(
            lambda grad: grad * math.inf if trainer.state.global_step == 2 else grad
        )
        trainer.train()
        self.assertEqual([line["step"] for line in read_incidents(trainer.args.output_dir)], [3])
        self.assertTrue(all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters()))

    def test_the_run_stops_after_as_many_updates_with_the_same_weights(self):
        kept = []
        for checks in ("now", "late"):
            trainer = guarded_trainer.make(
                update_checks=checks, optimizer="adamw", max_skipped_updates=2, logging_steps=4
            )
            guarded_trainer.at_steps(trainer, (2, 3), lambda loss: loss * math.nan)
            with self.assertRaisesRegex(NumericsError, r"step 3: .* 2 updates in a row \(from step 2\)"):
                trainer.train()
            kept.append(trainer.model.state_dict())
        self.assertTrue(guarded_trainer.equal(*kept))

    @parameterized.parameters("adamw", "adamw_rms")
    def test_a_run_resumed_behind_a_skipped_update_equals_the_uninterrupted_one(self, optimizer):
        def made():
            trainer = guarded_trainer.make(update_checks="late", optimizer=optimizer, logging_steps=4)
            trainer.args.save_strategy, trainer.args.save_steps = IntervalStrategy.STEPS, 3
            guarded_trainer.at_steps(trainer, (2, 3), lambda loss: loss * math.nan)
            return trainer

        whole, resumed = made(), made()
        whole.train()
        resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-3")
        self.assertNotIn(3, resumed.recorder.at)
        for step in (4, 5, 6):
            self.assertTrue(guarded_trainer.equal(whole.recorder.at[step], resumed.recorder.at[step]), step)
        self.assertEqual(whole.skipped_updates, resumed.skipped_updates)
        self.assertEqual(whole.counted, resumed.counted)

    @parameterized.parameters(
        {},
        {"batch_size": 4, "accumulation": 2},
        {"max_grad_norm": 0.0},
        {"max_grad_norm": 0.5, "z_loss": 1e-4, "label_smoothing_factor": 0.1},
        {"clip_grad_value": 0.1},
        {"optimizer": "adamw", "schedule": "inverse_sqrt"},
    )
    def test_nothing_is_read_from_the_device_between_two_logs(self, **settings):
        read = []
        given = {"update_checks": "late", "optimizer": "adamw_rms", "logging_steps": 6, **settings}
        trainer = guarded_trainer.make(**given)
        trainer.remove_callback(trainer.recorder)
        with reading(lambda name: read.append(name) if 0 < trainer.state.global_step < 5 else None):
            trainer.train()
        self.assertEmpty(read)

    def test_reading_is_noticed(self):
        read = []
        trainer = guarded_trainer.make(update_checks="now", optimizer="adamw_rms", logging_steps=6)
        with reading(read.append):
            trainer.train()
        self.assertContainsSubset({"tolist"}, read)

    @parameterized.parameters(
        ({"loss_spikes": "skip"}, "must know of a spike"),
        ({"optimizer": "muon"}, "cannot leave a step out"),
    )
    def test_late_checks_that_cannot_be_are_refused(self, settings, reason):
        trainer = guarded_trainer.make(**{"optimizer": "adamw", "update_checks": "late", **settings})
        with self.assertRaisesRegex(ConfigError, f"--update_checks late: .*{reason}"):
            trainer.train()

    def test_on_a_cpu_updates_are_looked_at_before_they_are_made(self):
        trainer = guarded_trainer.make(optimizer="adamw")
        trainer.train()
        self.assertIsNone(trainer._late)
