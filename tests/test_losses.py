"""Watched losses; whether a model computes its loss in chunks (tests/test_chunked_loss.py: that it is the same loss)."""

import itertools
import json
from fractions import Fraction
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from absl.testing import parameterized
from transformers.utils import ModelOutput

from t5suite.testing import tiny_model
from t5suite.training.distillation import DistilledLoss
from t5suite.training.evaluation import AnswerWithLoss, loss_metrics, mean_loss
from t5suite.training.loss_counts import GuessCounts
from t5suite.training.losses import (
    SquaredLoss,
    TokenLoss,
    WatchedLoss,
    ask_for_loss,
    give_batch,
    move_loss_into_model,
    reason_for_logits,
)
from t5suite.training.processes.ranks import Ranks

ALONE = Ranks()


class ChunkedLossTest(parameterized.TestCase):
    def test_it_is_on_unless_somebody_needs_the_logits(self):
        def needed(loss=None, sharded=False, fp16=False):
            return reason_for_logits(tiny_model(), loss or TokenLoss(), sharded=sharded, fp16=fp16)

        self.assertIsNone(needed())
        self.assertIn("hold parts", needed(sharded=True))
        self.assertIn("float16", needed(fp16=True))
        self.assertIn("not the cross-entropy", needed(WatchedLoss(TokenLoss())))

    def test_its_chunks_are_of_the_size_that_is_asked_for(self):
        self.assertIsNone(move_loss_into_model(tiny_model(), TokenLoss(), fp16=True))
        self.assertIsNone(move_loss_into_model(tiny_model(), TokenLoss(), is_off=True))
        self.assertIsNone(move_loss_into_model(tiny_model(), TokenLoss()).chunk_tokens)
        self.assertEqual(move_loss_into_model(tiny_model(), TokenLoss(), chunk_tokens=64).chunk_tokens, 64)

    def test_the_model_computes_the_loss_that_it_takes_the_place_of(self):
        settings = move_loss_into_model(tiny_model(), TokenLoss(label_smoothing=0.1, z_loss=1e-4))
        self.assertEqual((settings.label_smoothing, settings.z_loss), (0.1, 1e-4))

    def test_it_counts_guesses_in_logged_steps_and_in_each_step_of_a_compiled_model(self):
        """There, two kinds of steps would be two graphs."""
        settings = move_loss_into_model(tiny_model(), TokenLoss())
        watched, unwatched = WatchedLoss(TokenLoss()), WatchedLoss(TokenLoss())
        watched.watch(1, True)
        unwatched.watch(1, False)
        batch = {"input_ids": "ids", "labels": "targets"}
        for loss, compiled, counts in (
            (watched, False, True), (unwatched, False, False), (unwatched, True, True), (TokenLoss(), True, False),
        ):  # fmt: skip
            asked = ask_for_loss(batch, settings, loss, compiled)
            self.assertEqual(asked["loss_settings"].counts_guesses, counts)
            self.assertEqual((asked["loss_labels"], asked["labels"], asked["input_ids"]), ("targets", "targets", "ids"))


class PlainLossTest(parameterized.TestCase):
    """Losses that a batch's own logits are needed for, by their formulas in float64."""

    @parameterized.parameters((0.0, 0.0), (0.1, 0.0), (0.0, 0.01), (0.1, 0.01))
    def test_tokens_have_smoothed_targets_and_a_penalty_of_their_normalizer(self, smoothing, z_loss):
        torch.manual_seed(0)
        logits = 3 * torch.randn(2, 3, 7)
        labels = torch.tensor([[4, 0, -100], [6, -100, -100]])
        total = 0.0
        for row, place in ((0, 0), (0, 1), (1, 0)):
            scores = logits[row, place].double()
            log_z = scores.exp().sum().log()
            log_p = scores - log_z
            target = (1 - smoothing) * log_p[labels[row, place]] + smoothing * log_p.mean()
            total += float(z_loss * log_z**2 - target)
        outputs = ModelOutput(logits=logits)
        loss = TokenLoss(smoothing, z_loss)
        self.assertAlmostEqual(float(loss(outputs, labels, num_items_in_batch=5)), total / 5, places=5)
        self.assertAlmostEqual(float(loss(outputs, labels)), total / 3, places=5)
        self.assertAlmostEqual(float(loss(ModelOutput(loss_sum=torch.tensor(12.0)), labels)), 4.0)

    def test_numbers_have_squared_differences_of_the_rows_that_have_one(self):
        outputs = ModelOutput(logits=torch.tensor([[3.5], [1.0], [2.0]]))
        labels = torch.tensor([3.0, -100.0, 4.0])
        self.assertEqual(float(SquaredLoss()(outputs, labels)), (0.25 + 4.0) / 2)
        self.assertAlmostEqual(float(SquaredLoss()(outputs, labels, num_items_in_batch=5)), (0.25 + 4.0) / 5, places=6)


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
        self.assertIsNone(loss.accuracy(ALONE))
        loss.watching = True
        loss(outputs, self.labels)
        right = (self.logits.argmax(-1) == self.labels)[:, :3].sum().item()
        self.assertAlmostEqual(loss.accuracy(ALONE), 100 * right / 12)
        self.assertIsNone(loss.accuracy(ALONE))

    @parameterized.parameters(True, False)
    def test_a_checkpoint_keeps_the_guesses_since_the_last_log_of_all_ranks(self, is_main):
        """Of two ranks with equal batches; the first one goes on from the guesses of both."""
        outputs = ModelOutput(logits=self.logits)
        right = (self.logits.argmax(-1) == self.labels)[:, :3].sum().item()
        ranks = SimpleNamespace(sum=lambda counts: [2.0 * count for count in counts], is_main=is_main)
        saved, restored = WatchedLoss(TokenLoss()), WatchedLoss(TokenLoss())
        self.assertEqual(GuessCounts(saved, "cpu", ranks).state_dict(), {"counts": None})
        saved.watching = True
        saved(outputs, self.labels)
        state = json.loads(json.dumps(GuessCounts(saved, "cpu", ranks).state_dict()))
        self.assertEqual(state, {"counts": [2 * right, 24]})
        GuessCounts(restored, "cpu", ranks).load_state_dict(state)
        self.assertEqual(restored.counts.tolist(), state["counts"] if is_main else [0, 0])

    @parameterized.product(num_batches=(1, 2, 4), name=("next_sentence_label", "sentence_order_label"))
    def test_pairs_count_alike_however_the_update_is_cut(self, num_batches, name):
        """Tokens and pairs are both means over the whole update, whose pairs have one to five labels.

        A pair without a label of its own counts for nothing; the model gets no labels of pairs.
        """
        labels = torch.randint(0, 7, (5, 5))
        for row, count in enumerate((1, 5, 2, 4, 3)):
            labels[row, count:] = -100
        logits, pairs = torch.randn(5, 5, 7), torch.randn(5, 2)
        pair_labels = torch.tensor([0, 1, 1, 0, -100])
        expected = F.cross_entropy(logits[labels.ne(-100)], labels[labels.ne(-100)])
        expected = expected + F.cross_entropy(pairs[:4], pair_labels[:4])
        parts = torch.arange(5).chunk(num_batches)
        batches = [{"labels": labels[rows], name: pair_labels[rows]} for rows in parts]
        loss = WatchedLoss(TokenLoss())
        loss.begin_update(batches, None)
        self.assertEqual(loss.num_pairs, 4)
        total = 0.0
        for rows, batch in zip(parts, batches, strict=True):
            give_batch(loss, batch)
            self.assertEqual(list(batch), ["labels"])
            outputs = ModelOutput(prediction_logits=logits[rows], seq_relationship_logits=pairs[rows])
            total += loss(outputs, labels[rows], num_items_in_batch=torch.tensor(15))
        torch.testing.assert_close(total, expected)

    def test_an_update_that_is_one_batch_needs_no_count_of_its_pairs(self):
        pair_labels = torch.tensor([0, -100, 1, 0])
        expected = F.cross_entropy(self.logits[:, :3].reshape(-1, 7), self.labels[:, :3].reshape(-1))
        expected = expected + F.cross_entropy(self.pairs[[0, 2, 3]], pair_labels[[0, 2, 3]])
        loss = WatchedLoss(TokenLoss())
        give_batch(loss, {"next_sentence_label": pair_labels})
        outputs = ModelOutput(prediction_logits=self.logits, seq_relationship_logits=self.pairs)
        torch.testing.assert_close(loss(outputs, self.labels), expected)

    def test_only_batches_of_pairs_are_counted_over_the_ranks(self):
        loss = WatchedLoss(TokenLoss())
        loss.begin_update([{"next_sentence_label": torch.tensor([0, -100, 1])}], lambda count: count + 5)
        self.assertEqual(loss.num_pairs, 7)
        loss.begin_update([{"labels": self.labels}], self.fail)
        self.assertIsNone(loss.num_pairs)

    def test_a_batch_without_pairs_has_none_of_the_batch_before(self):
        loss = WatchedLoss(TokenLoss())
        give_batch(loss, {"next_sentence_label": torch.tensor([0, 1, 1, 0])})
        give_batch(loss, {"labels": self.labels})
        expected = F.cross_entropy(self.logits[:, :3].reshape(-1, 7), self.labels[:, :3].reshape(-1))
        torch.testing.assert_close(loss(ModelOutput(logits=self.logits), self.labels), expected)


class DistilledLossTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 4)
    def test_targets_and_teacher_weigh_alike_however_the_update_is_cut(self, num_batches):
        """Every one of ten targets counts once, whether its batch has one of them or four."""
        torch.manual_seed(0)
        ours, theirs = torch.randn(2, 4, 4, 7)
        labels = torch.randint(0, 7, (4, 4))
        for row, count in enumerate((1, 2, 3, 4)):
            labels[row, count:] = -100
        is_target = labels.ne(-100)
        p, q = ((logits[is_target] / 3.0).softmax(-1) for logits in (theirs, ours))
        distance = (p * (p / q).log()).sum() / 10
        expected = 0.3 * F.cross_entropy(ours[is_target], labels[is_target]) + 0.7 * 3.0**2 * distance
        teacher = lambda rows: ModelOutput(logits=theirs[rows])
        loss = DistilledLoss(TokenLoss(), teacher, alpha=0.7, temperature=3.0, pieces=7)
        total = 0.0
        for rows in torch.arange(4).chunk(num_batches):
            loss.batch = {"rows": rows}
            total += loss(ModelOutput(logits=ours[rows]), labels[rows], num_items_in_batch=torch.tensor(10))
        torch.testing.assert_close(total, expected)

    def test_rows_of_padding_behind_the_pieces_are_no_part_of_a_distribution_and_the_distance_is_logged(self):
        """Of logged updates alone, in nats a token; a batch without a target has neither loss nor distance."""
        torch.manual_seed(0)
        ours, theirs = torch.randn(2, 2, 3, 9)
        labels = torch.tensor([[4, 2, -100], [1, -100, -100]])
        is_target = labels.ne(-100)
        p, q = (logits[is_target][:, :7].softmax(-1) for logits in (theirs, ours))
        distance = (p * (p / q).log()).sum() / 3
        loss = DistilledLoss(TokenLoss(), lambda **_: ModelOutput(logits=theirs), alpha=1.0, temperature=1.0, pieces=7)
        for step, logged in ((1, False), (2, True), (3, True)):
            loss.watch(step, logged)
            for _ in range(2):
                loss.batch = {"labels": labels}
                torch.testing.assert_close(loss(ModelOutput(logits=ours), labels), distance)
            self.assertEqual(loss.counts is not None, logged)
        self.assertEqual(loss.counts[1], 6)
        self.assertAlmostEqual(loss.means(ALONE)["kl"], float(distance), places=6)
        self.assertEqual(loss.means(ALONE), {})
        self.assertEqual(float(loss(ModelOutput(logits=ours), torch.full((2, 3), -100))), 0.0)


class MeanLossTest(parameterized.TestCase):
    def test_it_does_not_depend_on_the_order_in_which_ranks_bring_the_rows_together(self):
        """The rounded sum of exact fractions, in whatever order."""
        losses = (0.1, 0.2, 0.3, 0.4, 0.7, 1e16, 1.0)
        exact = float(sum(map(Fraction, losses))) / len(losses)
        for order in itertools.permutations(losses):
            answers = [AnswerWithLoss("", False, nll, 1) for nll in order]
            self.assertEqual(mean_loss(answers), exact)

    def test_running_text_without_a_token_is_nan_and_other_text_has_no_loss(self):
        document, answer = SimpleNamespace(entry={"formatter": "document"}), SimpleNamespace(entry={})
        self.assertEqual(loss_metrics(document, 2.5), {"nll": 2.5})
        self.assertEqual(loss_metrics(answer, 2.5), {"loss": 2.5})
        self.assertEqual(repr(loss_metrics(document, None)), "{'nll': nan}")
        self.assertEqual(loss_metrics(answer, None), {})

    def test_it_is_nats_a_token_and_none_without_tokens(self):
        answers = [
            AnswerWithLoss("", False, 6.0, 3),
            AnswerWithLoss("", False, 1.0, 1),
            AnswerWithLoss("", False, 0.0, 0),
        ]
        self.assertEqual(mean_loss(answers), 7 / 4)
        self.assertIsNone(mean_loss(answers[2:]))
