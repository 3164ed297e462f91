"""A model that answers a step's calls from lists does what it would have done, and nothing of that stays with it."""

import copy

import guarded_trainer
import torch
from absl.testing import absltest, parameterized
from torch import nn
from transformers import TrainerCallback

from t5suite.training.updates import kept_parts
from t5suite.training.updates.kept_parts import QuickSteps, quick_calls


def model():
    """A few modules, one of them frozen."""
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)))
    found[0].weight.requires_grad_(False)
    return found


class OwnZeroGrad(nn.Linear):
    def zero_grad(self, set_to_none=True):
        self.asked = True


class QuickCallsTest(parameterized.TestCase):
    def test_a_module_that_does_not_train_is_made_to(self):
        part = model()
        with quick_calls(part):
            part[1].eval()
            self.assertIs(part.train(), part)
            self.assertTrue(all(module.training for module in part.modules()))
            part.eval()
            self.assertFalse(any(module.training for module in part.modules()))

    def test_gradients_are_forgotten_of_frozen_parameters_too(self):
        part = model()
        with quick_calls(part):
            for parameter in part.parameters():
                parameter.grad = torch.ones_like(parameter)
            part.zero_grad(set_to_none=False)
            self.assertTrue(all(bool((p.grad == 0).all()) for p in part.parameters()))
            part.zero_grad()
            self.assertTrue(all(p.grad is None for p in part.parameters()))

    def test_nothing_stays_with_the_model(self):
        part = model()
        before = set(part.__dict__)
        with self.assertRaises(KeyError), quick_calls(part):
            raise KeyError
        self.assertEqual(set(part.__dict__), before)

    def test_a_copy_has_the_parts_of_the_copy(self):
        part = model()
        with quick_calls(part):
            twin = copy.deepcopy(part)
            twin.eval()
            self.assertTrue(part.training and part[1].training)
            for parameter in [*part.parameters(), *twin.parameters()]:
                parameter.grad = torch.ones_like(parameter)
            twin.zero_grad()
        self.assertTrue(all(p.grad is None for p in twin.parameters()))
        self.assertTrue(all(p.grad is not None for p in part.parameters()))

    def test_a_class_that_answers_itself_is_asked(self):
        part = OwnZeroGrad(2, 2)
        with quick_calls(part) as parts:
            part.zero_grad()
        self.assertIsNone(parts)
        self.assertTrue(part.asked)


class QuickStepsTest(parameterized.TestCase):
    @parameterized.parameters(
        {}, {"max_grad_norm": 0.0}, {"max_grad_norm": 0.5}, {"batch_size": 4, "accumulation": 2}, {"optimizer": "adamw_rms"}
    )  # fmt: skip
    def test_a_run_is_the_same_to_the_bit(self, **settings):
        quick, plain = guarded_trainer.make(**settings), guarded_trainer.make(**settings)
        plain._run_epoch = lambda **kwargs: super(QuickSteps, plain)._run_epoch(**kwargs)
        quick.train()
        plain.train()
        self.assertTrue(guarded_trainer.equal(quick.recorder.at, plain.recorder.at))
        self.assertEqual(guarded_trainer.losses(quick), guarded_trainer.losses(plain))

    def test_a_step_walks_through_no_tree(self):
        trainer = guarded_trainer.make(4, logging_steps=100, num_train_epochs=1)
        trainer.remove_callback(trainer.recorder)
        walks = []

        class Count(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                walks.append(0)

        trainer.add_callback(Count())
        plain = nn.Module.named_modules

        def counted(module, *args, **kwargs):
            if walks and module is trainer.model:
                walks[-1] += 1
            return plain(module, *args, **kwargs)

        nn.Module.named_modules = counted
        try:
            trainer.train()
        finally:
            nn.Module.named_modules = plain
        self.assertEqual(walks[1:-1], [0] * 4)

    def test_a_model_in_evaluation_mode_trains_in_the_next_step(self):
        trainer = guarded_trainer.make()
        seen = []

        class Evaluates(TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                seen.append(model.training)
                model.eval()

        trainer.add_callback(Evaluates())
        trainer.train()
        self.assertEqual(seen, [True] * 6)

    def test_parts_that_come_and_go_are_not_kept(self):
        trainer = guarded_trainer.make()
        kept, sharded = [], kept_parts.SHARDED
        kept_parts.SHARDED = ("NO",)
        try:
            trainer.add_callback(type("Look", (TrainerCallback,), {
                "on_step_end": lambda self, *args, **kwargs: kept.append(trainer._parts)})())  # fmt: skip
            trainer.train()
        finally:
            kept_parts.SHARDED = sharded
        self.assertEqual(kept, [None] * 6)


if __name__ == "__main__":
    absltest.main()
