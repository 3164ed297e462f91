"""What one sees of a pre-training run: rates, the terminal's line, watched losses, unigram entropies, the loss curve."""

import doctest
import json
import math
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from absl.testing import absltest, parameterized
from transformers import T5Config, T5ForConditionalGeneration
from transformers.utils import ModelOutput

from t5suite.reports import plots
from t5suite.training import pre_training_evaluation
from t5suite.training.losses import PAIR_LABELS, TokenLoss, WatchedLoss
from t5suite.training.monitoring import rates, terminal
from t5suite.training.monitoring.rates import StepMonitor, forward_flops, weight_norm
from t5suite.training.pre_training_evaluation import HeldOut, unigram_entropies


def tiny_t5():
    return T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


def batch(rows, real_tokens, length=6):
    mask = torch.zeros(rows, length, dtype=torch.long)
    mask.view(-1)[:real_tokens] = 1
    return {"input_ids": torch.ones_like(mask), "attention_mask": mask, "decoder_input_ids": torch.ones(rows, 3).long()}


class StepMonitorTest(parameterized.TestCase):
    state = SimpleNamespace(global_step=0, max_steps=10, num_input_tokens_seen=0)

    def monitored(self, **settings):
        self.state = SimpleNamespace(global_step=0, max_steps=10, num_input_tokens_seen=100)
        monitor = StepMonitor(**settings)
        monitor.on_train_begin(None, self.state, None)
        return monitor

    def test_tokens_are_counted_without_padding_over_ranks_and_restarts(self):
        monitor = self.monitored(reduce=lambda tensor: 2 * tensor)  # two ranks alike
        monitor.count(None, batch(2, 7))
        monitor.count(None, batch(2, 12))
        self.state.global_step = 2
        found = monitor.rates(self.state)
        self.assertEqual(found["tokens_seen"], 100 + 2 * 19)
        self.assertAlmostEqual(found["tokens_per_second"] * found["seconds_per_step"] * 2, 2 * 19, places=6)
        self.assertAlmostEqual(found["seconds_left"], 8 * found["seconds_per_step"])
        self.assertNotIn("mfu", found)
        self.assertEqual(monitor.rates(self.state), {}, "no step since the last log")

    def test_packed_rows_count_their_examples_tokens(self):
        monitor = self.monitored()
        packed = {**batch(1, 6), "encoder_segment_ids": torch.tensor([[1, 1, 2, 2, 0, 0]])}
        monitor.count(None, packed)
        self.state.global_step = 1
        self.assertEqual(monitor.rates(self.state)["tokens_seen"], 104)

    def test_evaluations_and_checkpoints_stand_aside(self):
        monitor = self.monitored()
        monitor.on_step_end(None, self.state, SimpleNamespace(should_evaluate=True, should_save=False))
        time.sleep(0.2)
        monitor.on_step_begin(None, self.state, None)
        self.state.global_step = 1
        self.assertLess(monitor.rates(self.state)["seconds_per_step"], 0.1)

    def test_a_checkpoint_s_state_has_every_token_so_far(self):
        monitor = self.monitored()
        monitor.count(None, batch(1, 5))
        monitor.on_step_end(None, self.state, SimpleNamespace(should_evaluate=False, should_save=True))
        self.assertEqual(self.state.num_input_tokens_seen, 105)

    def test_utilisation_counts_three_passes_of_every_row(self):
        model, peak = tiny_t5(), 1e9
        monitor = self.monitored(peak=peak)
        for rows in (2, 3):
            monitor.count(model, batch(rows, 6))
        flops = forward_flops(model, {"input_ids": (5, 6), "decoder_input_ids": (5, 3)})
        self.state.global_step = 1
        found = monitor.rates(self.state)
        self.assertAlmostEqual(found["mfu"], 100 * 3 * flops / found["seconds_per_step"] / peak, places=6)

    def test_a_model_that_cannot_be_counted_has_no_utilisation(self):
        class Uncountable(torch.nn.Module):
            def __init__(self, config):
                super().__init__()
                self.config = config

            def forward(self, **inputs):
                raise NotImplementedError("no kernel for the meta device")

        monitor = self.monitored(peak=1e9)
        with self.assertLogs("t5suite.training.monitoring.rates", "WARNING") as logs:
            monitor.count(Uncountable(None), batch(1, 6))
            monitor.count(Uncountable(None), batch(1, 6, length=7))
        self.assertLen(logs.output, 1, "it is said once")
        self.state.global_step = 1
        self.assertNotIn("mfu", monitor.rates(self.state))

    def test_waiting_for_data_is_a_share_of_the_time(self):
        def slow(batches):
            for batch in batches:
                time.sleep(0.1)
                yield batch

        monitor = self.monitored()
        self.assertEqual(list(monitor.timed(slow([1, 2]))), [1, 2])
        time.sleep(0.2)
        self.state.global_step = 1
        found = monitor.rates(self.state)
        self.assertBetween(found["data_wait"], 25, 75)
        self.assertAlmostEqual(found["data_wait"] / 100 * found["seconds_per_step"], 0.2, delta=0.15)
        self.state.global_step = 2
        self.assertEqual(monitor.rates(self.state)["data_wait"], 0, "each log tells of its own steps")

    def test_what_is_read_while_an_evaluation_s_time_stands_aside_is_no_waiting(self):
        monitor = self.monitored()
        monitor.on_step_end(None, self.state, SimpleNamespace(should_evaluate=True, should_save=False))
        next(monitor.timed(time.sleep(0.1) or batch for batch in [1]))
        monitor.on_step_begin(None, self.state, None)
        self.state.global_step = 1
        self.assertEqual(monitor.rates(self.state)["data_wait"], 0)

    def test_peak_memory_is_the_process_s(self):
        monitor = self.monitored()
        self.state.global_step = 1
        taken = np.ones(3 * 10**7)
        gigabytes = monitor.rates(self.state)["peak_memory_gb"]
        self.assertBetween(gigabytes, taken.nbytes / 1e9, 64)

    def test_weight_norm(self):
        model = tiny_t5()
        expected = math.sqrt(sum(p.detach().double().square().sum().item() for p in model.parameters()))
        self.assertAlmostEqual(weight_norm(model), expected, places=3)
        next(model.parameters()).ds_id = 0  # ZeRO-3 holds a part of it elsewhere
        self.assertIsNone(weight_norm(model))


class WatchedLossTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.logits, self.pairs = torch.randn(4, 5, 7), torch.randn(4, 2)
        self.labels = torch.randint(0, 7, (4, 5))
        self.labels[:, 3:] = -100

    def test_accuracy_is_that_of_the_watched_batches(self):
        loss = WatchedLoss(TokenLoss())
        outputs = ModelOutput(logits=self.logits)
        loss(outputs, self.labels)
        self.assertIsNone(loss.accuracy())
        loss.watching = True
        loss(outputs, self.labels)
        right = (self.logits.argmax(-1) == self.labels)[:, :3].sum().item()
        self.assertAlmostEqual(loss.accuracy(), 100 * right / 12)
        self.assertIsNone(loss.accuracy())

    @parameterized.parameters(1, 2, 4)
    def test_pairs_count_alike_however_the_update_is_cut(self, num_batches):
        """Tokens and pairs are both means over the whole update."""
        pair_labels = torch.tensor([0, 1, 1, 0])
        expected = F.cross_entropy(self.logits[:, :3].reshape(-1, 7), self.labels[:, :3].reshape(-1))
        expected = expected + F.cross_entropy(self.pairs, pair_labels)
        total = 0.0
        for rows in torch.arange(4).chunk(num_batches):
            loss = WatchedLoss(TokenLoss())
            loss.pair_labels = pair_labels[rows]
            outputs = ModelOutput(prediction_logits=self.logits[rows], seq_relationship_logits=self.pairs[rows])
            total += loss(outputs, self.labels[rows], num_items_in_batch=torch.tensor(12))
        torch.testing.assert_close(total, expected)

    def test_the_names_of_pair_labels_are_the_collators(self):
        from t5suite.data.batches.language_model_collators import PAIR_LABELS as MADE

        self.assertCountEqual(PAIR_LABELS, MADE.values())


class EntropyTest(absltest.TestCase):
    def test_entropies_are_those_of_the_labels_frequencies(self):
        labels = [[5, 5, 9, 1, -100], [5, 7, 9, 1, -100], [5, 8, 9, 1, -100]]
        collator = lambda examples: {"labels": torch.tensor([labels[e] for e in examples])}
        found = unigram_entropies(collator, HeldOut([0, 1, 2], frozenset({1, 9, 100})), batch_size=2)
        everything, text = [5] * 4 + [9] * 3 + [1] * 3 + [7, 8], [5] * 4 + [7, 8]
        for name, tokens in (("unigram_nll", everything), ("unigram_nll_text", text)):
            shares = np.bincount(tokens) / len(tokens)
            expected = -sum(share * math.log(share) for share in shares if share)
            self.assertAlmostEqual(found[name], expected)


class LossCurveTest(absltest.TestCase):
    def test_a_curve_is_drawn_of_what_was_logged(self):
        directory = Path(tempfile.mkdtemp())
        self.assertIsNone(plots.loss_curve(directory))
        lines = [{"step": step, "train/loss": 5.0 - step / 10} for step in range(20)] + [{"step": 19, "eval/nll": 3.0}]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        path = plots.loss_curve(directory, "a run")
        self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual([p.name for p in directory.glob("*.png")], ["loss_curve.png"])


class DocstringTest(parameterized.TestCase):
    @parameterized.parameters(
        terminal.terminal_line,
        terminal.short_number,
        terminal.short_time,
        terminal.scores_of,
        terminal.bar_figures,
        pre_training_evaluation.entropy,
    )
    def test_examples_hold(self, function):
        finder = doctest.DocTestFinder()
        runner = doctest.DocTestRunner()
        for test in finder.find(
            function, globs={**vars(rates), **vars(terminal), **vars(pre_training_evaluation), "np": np}
        ):
            runner.run(test)
        self.assertGreater(runner.tries, 0)
        self.assertEqual(runner.failures, 0)


if __name__ == "__main__":
    absltest.main()
