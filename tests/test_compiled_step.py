"""A compiled step of T5 is one graph."""

import pytest
import torch
from absl.testing import parameterized
from test_attention import batch_of, tiny

from t5suite.models.attention import note_padding, ready_masks
from t5suite.training.losses import TokenLoss


class CompiledStepTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()

    @parameterized.parameters(([6, 6],), ([6, 3],))
    @pytest.mark.slow
    def test_forward_and_loss_are_one_graph(self, lengths):
        model, loss_of = tiny(), TokenLoss(z_loss=1e-4)
        model.decoder.config.use_cache = False
        batch = ready_masks(note_padding(batch_of(lengths)))
        labels = torch.randint(3, 50, (2, 4))

        def step(batch):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(**batch)
            return loss_of(outputs, labels, labels.numel())

        explained = torch._dynamo.explain(step)(batch)
        self.assertEqual(explained.graph_break_count, 0, explained.break_reasons)
        self.assertEqual(explained.graph_count, 1)

    @pytest.mark.slow
    def test_a_question_about_a_value_breaks_the_graph(self):
        model = tiny()

        def step(batch):
            logits = model(**batch).logits
            return logits.sum() if logits.sum().item() > 0 else logits.mean()

        explained = torch._dynamo.explain(step)(ready_masks(note_padding(batch_of([6, 3]))))
        self.assertGreater(explained.graph_break_count, 0)
