"""What a step must not do beside its arithmetic: wait for numbers, keep what nobody asks for, count anew."""

import guarded_trainer
import torch
from absl.testing import parameterized
from transformers import Seq2SeqTrainer
from transformers.cache_utils import DynamicCache

from t5suite.training.trainer import SuiteTrainer


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
