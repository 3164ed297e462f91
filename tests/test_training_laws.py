"""Law 1 (loss) and law 2 (rows): the same numbers however the batch is cut and however many ranks there are."""

import functools

import law_worker
import pytest
import torch
from absl.testing import parameterized

RELATIVE = 2e-6
# Rates of six updates from 1e-2 down to 0.
LINEAR = [1e-2 * (1 - step / 6) for step in range(6)]


@functools.cache
def two_ranks() -> dict:
    """The worker's report from two gloo processes."""
    return law_worker.reported_by_two_ranks(law_worker.__file__)


# `reference_code`: None is the loss of some tokens after the other, `loss_chunks` that of the whole batch's logits.
@functools.cache
def one_rank(batch_size=8, accumulation=1, **settings):
    return law_worker.train_history(batch_size, accumulation, **settings)


class LossLawTest(parameterized.TestCase):
    def assert_same_course(self, course, expected, relative=RELATIVE):
        self.assertLen(course["loss"], len(expected["loss"]))
        for key in ("loss", "grad_norm"):
            for a, b in zip(course[key], expected[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), relative, f"{key}: {course[key]} {expected[key]}")

    @parameterized.parameters(((4, 2), None), ((1, 8), "loss_chunks"))
    @pytest.mark.slow
    def test_cutting_an_update_into_micro_batches_changes_nothing(self, cut, reference_code):
        self.check_cut(cut, reference_code)

    @parameterized.parameters(((1, 8), None), ((4, 2), "loss_chunks"))
    @pytest.mark.slow
    @pytest.mark.law
    def test_nor_does_another_cut(self, cut, reference_code):
        self.check_cut(cut, reference_code)

    def check_cut(self, cut, reference_code):
        expected = one_rank(reference_code=reference_code)
        self.assertEqual(expected["chunked"], reference_code is None)
        self.assert_same_course(one_rank(*cut, reference_code=reference_code), expected)

    @parameterized.parameters("train", "train_accumulated", "train_whole_logits")
    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_equal_one(self, key):
        course = two_ranks()[key]
        self.assertEqual((course["world_size"], course["chunked"]), (2, key != "train_whole_logits"))
        self.assert_same_course(course, one_rank())

    @parameterized.parameters(({"label_smoothing": 0.1}, None), ({"z_loss": 0.5}, "loss_chunks"))
    @pytest.mark.slow
    def test_smoothing_and_z_loss_obey_the_law_too(self, settings, reference_code):
        self.check_settings(settings, reference_code)

    @parameterized.parameters(
        ({"label_smoothing": 0.1}, "loss_chunks"), ({"z_loss": 0.5}, None), ({"z_loss": 1e-2}, None)
    )
    @pytest.mark.slow
    @pytest.mark.law
    def test_so_they_do_on_the_other_path(self, settings, reference_code):
        self.check_settings(settings, reference_code)

    def check_settings(self, settings, reference_code):
        expected = one_rank(8, 1, **settings, reference_code=reference_code)
        self.assert_same_course(one_rank(2, 4, **settings, reference_code=reference_code), expected)
        self.assertGreater(abs(expected["loss"][0] - one_rank()["loss"][0]), 1e-3)

    def test_an_epoch_ends_with_a_smaller_update_and_repeats_no_row(self):
        self.assertLen(one_rank()["loss"], 6)  # two epochs of 8 + 8 + 5 rows

    @parameterized.parameters(
        ({}, None), ({}, "loss_chunks"), ({"label_smoothing": 0.1}, None), ({"z_loss": 0.5}, "loss_chunks")
    )
    @pytest.mark.quick_cases(1)
    def test_the_first_loss_is_the_mean_over_the_update_s_tokens(self, settings, reference_code):
        self.check_first_loss(settings, reference_code)

    @parameterized.parameters(({"label_smoothing": 0.1}, "loss_chunks"), ({"z_loss": 0.5}, None))
    @pytest.mark.slow
    @pytest.mark.law
    def test_so_it_is_on_the_other_path(self, settings, reference_code):
        self.check_first_loss(settings, reference_code)

    def check_first_loss(self, settings, reference_code):
        """Of the label's surprisal, smoothed with the uniform distribution; the z-loss squares the log-normaliser."""
        trainer = law_worker.make_trainer(8, 1)
        batch = next(iter(trainer.get_train_dataloader()))
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = trainer.model(**batch).logits.double()
        smoothing, z_loss = settings.get("label_smoothing", 0.0), settings.get("z_loss", 0.0)
        total, count = 0.0, 0
        for row, position in labels.ne(-100).nonzero().tolist():
            normaliser = logits[row, position].exp().sum().log()
            log_p = logits[row, position] - normaliser
            total -= (1 - smoothing) * log_p[labels[row, position]] + smoothing * log_p.mean()
            total += z_loss * normaliser**2
            count += 1
        first = one_rank(**settings, reference_code=reference_code)["loss"][0]
        self.assertAlmostEqual(first, float(total) / count, delta=2e-6 * first)

    @pytest.mark.slow
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
        self.assertEqual(here["num_rows"], n)
        self.assertLen(there["predictions"], n)
        for exactly in ("predictions", "metrics", "truncated"):
            self.assertEqual(here[exactly], there[exactly])
        self.assertAlmostEqual(here["loss"], there["loss"], delta=RELATIVE * here["loss"])

    @parameterized.named_parameters(*CASES)
    @pytest.mark.slow
    def test_the_batch_size_changes_no_prediction(self, key, n):
        here, other = evaluations(), evaluations(batch_size=3)
        self.assertEqual((here[key]["num_rows"], len(here[key]["predictions"])), (n, n))
        self.assertEqual(here[key]["predictions"], other[key]["predictions"])
        self.assertAlmostEqual(here[key]["loss"], other[key]["loss"], delta=RELATIVE * here[key]["loss"])
