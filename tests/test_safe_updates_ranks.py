"""Failures on one of two ranks: both do the same about them, and their weights stay the same."""

import guard_ranks
import guarded_trainer
from absl.testing import absltest, parameterized
from rank_reports import reports_of

RELATIVE = 1e-5


class RanksTest(parameterized.TestCase):
    def both(self, scenario):
        first, second = reports_of(guard_ranks.__file__)[scenario]
        for report in (first, second):
            self.assertNotIn("error", report, report.get("traceback"))
        self.assertEqual(first["digests"], second["digests"])
        self.assertEqual(first["pieces"], second["pieces"])
        self.assertEqual(first["skipped"], second["skipped"])
        return first

    def test_a_loss_that_is_none_on_one_rank_skips_the_update_on_both(self):
        report = self.both("nan_on_one_rank")
        self.assertEqual(report["digests"][3], report["digests"][2])
        self.assertNotEqual(report["digests"][4], report["digests"][3])
        (line,) = report["incidents"]
        self.assertEqual((line["step"], line["kind"]), (3, "non_finite"))
        given = [report["given_in_3"] for report in reports_of(guard_ranks.__file__)["nan_on_one_rank"]]
        self.assertCountEqual(line["examples"], given[0] + given[1])
        self.assertEqual(report["skipped"], 1)

    def test_one_vote_says_everything_to_all_ranks(self):
        expected = {"loss": 2.5, "grad_norm": 0.5, "stop": True, "grew": False}
        self.assertEqual(reports_of(guard_ranks.__file__)["stop_on_one_rank"], [expected, expected])

    def test_a_flipped_bit_on_one_rank_stops_both_and_is_named(self):
        for report in reports_of(guard_ranks.__file__)["flipped_bit_on_one_rank"]:
            self.assertEqual(report["error"], "NumericsError")
            self.assertRegex(report["message"], r"step 3: the weights of ranks 0 and 1 differ.*\(shared.weight\)")

    @parameterized.parameters(
        ("memory_in_loss", "undisturbed"),
        ("memory_in_first_backward", "undisturbed"),
        ("memory_in_model_at_once", "undisturbed_at_once"),
        ("memory_in_loss_at_once", "undisturbed_at_once"),
        ("memory_with_buffers_at_once", "undisturbed_at_once"),
    )
    def test_memory_that_one_rank_lacks_changes_no_update(self, scenario, expected):
        report, undisturbed = self.both(scenario), self.both(expected)
        self.assertEqual(report["pieces"], 2)
        for found, wanted in zip(report["losses"], undisturbed["losses"], strict=True):
            for a, b in zip(found, wanted, strict=True):
                self.assertLess(abs(a - b) / b, RELATIVE)
        (line,) = report["incidents"]
        self.assertEqual((line["kind"], line["ranks"]), ("out_of_memory", [1]))

    def test_a_rank_that_fails_while_gradients_are_exchanged_says_what_to_do_and_the_other_does_not_hang(self):
        first, second = reports_of(guard_ranks.__file__)["memory_in_last_backward_at_once"]
        self.assertEqual(second["error"], "ConfigError")
        self.assertRegex(second["message"], "out of memory on rank 1 in step 4")
        self.assertIn("--per_device_train_batch_size 2 --gradient_accumulation_steps 2", second["message"])
        self.assertIn("error", first)

    def test_an_allocator_that_really_fails_changes_no_update(self):
        (report,) = reports_of(guard_ranks.__file__)["real_memory"]
        self.assertNotIn("error", report, report.get("message"))
        undisturbed = guarded_trainer.make(8, 1, optim="sgd", num_train_epochs=1)
        undisturbed.train()
        self.assertGreater(report["pieces"], 1)
        self.assertIn("DefaultCPUAllocator: can't allocate memory", report["incidents"][0]["message"])
        for found, wanted in zip(report["losses"], guarded_trainer.losses(undisturbed), strict=True):
            self.assertLess(abs(found[0] - wanted[0]) / wanted[0], RELATIVE)


if __name__ == "__main__":
    absltest.main()
