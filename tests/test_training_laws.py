"""Law 1 (loss) and law 2 (rows): the same numbers however the batch is cut and however many ranks there are."""

import functools

import law_worker
import pytest
import torch
from absl.testing import parameterized

from t5suite.training.losses import token_loss

RELATIVE = 2e-6
# Rates of six updates from 1e-2 down to 0.
LINEAR = [1e-2 * (1 - step / 6) for step in range(6)]
# `--loss_chunk_tokens`: the loss of some tokens after the other, and of the whole batch's logits.
PATHS = (None, 0)


@functools.cache
def two_ranks() -> dict:
    """The worker's report from two gloo processes."""
    return law_worker.reported_by_two_ranks(law_worker.__file__)


@functools.cache
def one_rank(batch_size=8, accumulation=1, **settings):
    return law_worker.train_history(batch_size, accumulation, **settings)


class LossLawTest(parameterized.TestCase):
    def assert_same_course(self, found, expected, relative=RELATIVE):
        self.assertLen(found["loss"], len(expected["loss"]))
        for key in ("loss", "grad_norm"):
            for a, b in zip(found[key], expected[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), relative, f"{key}: {found[key]} {expected[key]}")

    @parameterized.product(cut=[(4, 2), (1, 8)], loss_chunk_tokens=PATHS)
    def test_cutting_an_update_into_micro_batches_changes_nothing(self, cut, loss_chunk_tokens):
        expected = one_rank(loss_chunk_tokens=loss_chunk_tokens)
        self.assertEqual(expected["chunked"], loss_chunk_tokens != 0)
        self.assert_same_course(one_rank(*cut, loss_chunk_tokens=loss_chunk_tokens), expected)

    @parameterized.parameters("train", "train_accumulated", "train_whole_logits")
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_equal_one(self, key):
        found = two_ranks()[key]
        self.assertEqual((found["world_size"], found["chunked"]), (2, key != "train_whole_logits"))
        self.assert_same_course(found, one_rank())

    @parameterized.product(settings=[{"label_smoothing": 0.1}, {"z_loss": 1e-2}], loss_chunk_tokens=PATHS)
    def test_smoothing_and_z_loss_obey_the_law_too(self, settings, loss_chunk_tokens):
        expected = one_rank(8, 1, **settings, loss_chunk_tokens=loss_chunk_tokens)
        self.assert_same_course(one_rank(2, 4, **settings, loss_chunk_tokens=loss_chunk_tokens), expected)
        self.assertGreater(abs(expected["loss"][0] - one_rank()["loss"][0]), 1e-3)

    def test_an_epoch_ends_with_a_smaller_update_and_repeats_no_row(self):
        self.assertLen(one_rank()["loss"], 6)  # two epochs of 8 + 8 + 5 rows

    @parameterized.parameters(*PATHS)
    def test_the_first_loss_is_the_mean_over_the_update_s_tokens(self, loss_chunk_tokens):
        trainer = law_worker.make_trainer(8, 1)
        rows = [int(i) for i in trainer.data.order(0)[:8]]
        batch = trainer.data_collator([trainer.train_dataset[i] for i in rows])
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = trainer.model(**batch).logits
        token_nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        expected = float(token_nll.sum() / labels.ne(-100).sum())
        self.assertAlmostEqual(one_rank(loss_chunk_tokens=loss_chunk_tokens)["loss"][0], expected, delta=1e-5)

    def test_a_schedule_steps_once_an_update(self):
        self.assertEqual(one_rank(2, 4, schedule="linear")["learning_rate"], LINEAR)

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_a_schedule_steps_once_an_update_on_two_ranks(self):
        """accelerate steps a scheduler that it has prepared once a process; the trainer's must not be one."""
        self.assertEqual(two_ranks()["scheduled"]["learning_rate"], LINEAR)

    def test_the_stock_trainer_still_breaks_the_law(self):
        """When this fails, transformers has mended its loss for T5: tell the documentation."""
        from transformers import Seq2SeqTrainer

        losses = []
        for batch_size, accumulation in ((8, 1), (2, 4)):
            ours = law_worker.make_trainer(batch_size, accumulation)
            ours.args.max_steps = 1
            collator = ours.data_collator
            stock = Seq2SeqTrainer(
                model=ours.model,
                args=ours.args,
                train_dataset=ours.train_dataset,
                data_collator=lambda features, collator=collator: collator(features),
            )
            stock.train()
            losses.append(next(line["loss"] for line in stock.state.log_history if "loss" in line))
        self.assertGreater(losses[1] / losses[0], 3.0)


class TokenLossTest(parameterized.TestCase):
    def test_smoothing_equals_the_mixture_with_the_uniform_distribution(self):
        torch.manual_seed(0)
        logits, labels = torch.randn(2, 3, 7), torch.tensor([[1, 2, -100], [0, 6, 5]])
        log_p = logits.log_softmax(-1)
        expected = 0.0
        for b, t in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
            expected += -0.9 * log_p[b, t, labels[b, t]] - 0.1 * log_p[b, t].mean()
        found = token_loss(logits, labels, num_items=5, label_smoothing=0.1)
        self.assertAlmostEqual(float(found), float(expected / 5), places=5)

    def test_z_loss_adds_the_squared_log_of_the_normaliser_of_real_tokens(self):
        torch.manual_seed(0)
        logits, labels = torch.randn(1, 3, 7), torch.tensor([[1, 2, -100]])
        log_z = logits.logsumexp(-1)[0, :2]
        without = token_loss(logits, labels, num_items=2)
        with_z = token_loss(logits, labels, num_items=2, z_loss=0.5)
        self.assertAlmostEqual(float(with_z - without), float(0.5 * log_z.square().sum() / 2), places=4)


CASES = [
    (f"{task}_{method}_{n}", f"{task} {method} {n}", n)
    for task in ("entailment", "similarity")
    for method in ("generate", "score")
    for n in law_worker.EVALUATION_SIZES
]


@functools.cache
def evaluations(batch_size=4):
    return law_worker.evaluations(batch_size)


class RowsLawTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        evaluations(), evaluations(batch_size=3)

    @parameterized.named_parameters(*CASES)
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_n_rows_are_scored_once_each_on_one_and_two_ranks(self, key, n):
        here, there = evaluations()[key], two_ranks()["evaluate"][key]
        self.assertEqual(here["rows"], n)
        self.assertLen(there["predictions"], n)
        for exactly in ("predictions", "metrics", "truncated"):
            self.assertEqual(here[exactly], there[exactly])
        self.assertAlmostEqual(here["loss"], there["loss"], delta=RELATIVE * here["loss"])

    @parameterized.named_parameters(*CASES)
    def test_the_batch_size_changes_no_prediction(self, key, n):
        here, other = evaluations(), evaluations(batch_size=3)
        self.assertEqual((here[key]["rows"], len(here[key]["predictions"])), (n, n))
        self.assertEqual(here[key]["predictions"], other[key]["predictions"])
        self.assertAlmostEqual(here[key]["loss"], other[key]["loss"], delta=RELATIVE * here[key]["loss"])
