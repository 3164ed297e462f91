"""Whether a model computes its loss in chunks (tests/test_chunked_loss.py: that it is the same loss)."""

from absl.testing import parameterized

from t5suite.testing import tiny_model
from t5suite.training.losses import TokenLoss, WatchedLoss, chunk_settings, logits_needed


class ChunkedLossTest(parameterized.TestCase):
    def test_it_is_on_unless_somebody_needs_the_logits(self):
        def needed(loss=None, sharded=False, fp16=False):
            return logits_needed(tiny_model(), loss or TokenLoss(), sharded=sharded, fp16=fp16)

        self.assertIsNone(needed())
        self.assertIn("hold parts", needed(sharded=True))
        self.assertIn("float16", needed(fp16=True))
        self.assertIn("not the cross-entropy", needed(WatchedLoss(TokenLoss())))

    def test_a_flag_without_effect_is_told(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertIsNone(chunk_settings(tiny_model(), TokenLoss(), 64, fp16=True))
        self.assertIn("--loss_chunk_tokens 64 has no effect: gradients in float16", logs.output[0])
