"""Spikes: what is flagged, what is not, and that a resumed detector says the same."""

import json
import math
import random

from absl.testing import absltest, parameterized

from t5suite.training.updates.incidents import Spike, SpikeCount, SpikeDetector


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

    def test_fifteen_updates_are_no_history(self):
        self.assertEqual(feed(SpikeDetector(), [2.0] * 15 + [20.0]), [None] * 16)

    def test_a_gradient_norm_can_be_a_spike_too(self):
        detector = SpikeDetector()
        feed(detector, [2.0] * 20, grad_norm=0.5)
        self.assertEqual(detector.observe(2.0, 5.0).name, "grad_norm")

    def test_the_limit_is_six_standard_deviations_above_the_mean(self):
        rng = random.Random(1)
        past = [rng.gauss(5.0, 1.0) for _ in range(40)]
        mean = sum(past) / 40
        limit = mean + 6 * math.sqrt(sum((x - mean) ** 2 for x in past) / 39)
        for value, expected in ((limit - 1e-6, False), (limit + 1e-6, True)):
            detector = SpikeDetector(least_deviation=0.0)
            feed(detector, past)
            self.assertEqual(detector.observe(value) is not None, expected)

    def test_ripples_of_a_flat_loss_are_no_spikes(self):
        self.assertEqual(feed(SpikeDetector(), [2.0] * 50 + [2.2]), [None] * 51)

    def test_falling_is_no_spike(self):
        self.assertEqual(feed(SpikeDetector(), [10.0] * 20 + [0.1, 0.1]), [None] * 22)

    def test_ordinary_noise_is_seldom_a_spike(self):
        """Of 20,000 normal updates fewer than one in 2,000, though short histories know their spread badly."""
        rng = random.Random(2)
        found = feed(SpikeDetector(), [3.0 + rng.gauss(0, 0.3) for _ in range(20_000)])
        self.assertLess(sum(spike is not None for spike in found), 10)

    def test_a_level_that_stays_becomes_the_ordinary_one(self):
        detector = SpikeDetector()
        feed(detector, [2.0] * 128)
        found = [spike is not None for spike in feed(detector, [20.0] * 20)]
        self.assertTrue(found[0])
        self.assertFalse(any(found[8:]))

    def test_numbers_that_are_none_leave_no_trace(self):
        detector = SpikeDetector()
        feed(detector, [2.0] * 20)
        before = detector.state()
        for value in (math.nan, math.inf, -math.inf):
            self.assertIsNone(detector.observe(value, value))
        self.assertEqual(detector.state(), before)

    def test_the_first_spike_is_told_and_the_others_are_counted(self):
        count = SpikeCount()
        spikes = {step: Spike("loss", step, 1.0, 0.5, deviations) for step, deviations in ((3, 9), (5, 7), (6, 8))}
        self.assertEqual([count.add(step, spike) for step, spike in spikes.items()], [True, False, False])
        said = count.summary()
        self.assertStartsWith(said, "2 more spikes since step 3, the largest in step 6: loss 6 is 8.0 standard")
        self.assertIsNone(count.summary())
        self.assertFalse(count.add(9, spikes[5]))
        self.assertStartsWith(count.summary(), "1 more spike since step 6, the largest in step 9: ")

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


if __name__ == "__main__":
    absltest.main()
