"""Two ranks whose updates are looked at one later do what they do when each is looked at before it is made."""

import late_ranks
from absl.testing import absltest, parameterized
from rank_reports import reports_of

RELATIVE = 1e-5


def told(report: dict) -> list[dict]:
    """The incidents, without the time of day."""
    return [{key: value for key, value in line.items() if key != "time"} for line in report["incidents"]]


class LateRanksTest(parameterized.TestCase):
    def both(self, scenario):
        """`(now, late)`; on either both ranks have come to the same."""
        found = []
        for checks in ("now", "late"):
            first, second = reports_of(late_ranks.__file__)[f"{scenario}_{checks}"]
            for report in (first, second):
                self.assertNotIn("error", report, report.get("traceback"))
            for key in ("digest", "digests", "pieces", "skipped"):
                self.assertEqual(first[key], second[key])
            found.append(first)
        return found

    @parameterized.parameters(("sound", 0), ("nan_on_one_rank", 2), ("loss_alone_on_one_rank", 1))
    def test_the_same_updates_are_left_out_and_the_same_incidents_told(self, scenario, skipped):
        now, late = self.both(scenario)
        self.assertEqual(late["skipped"], skipped)
        self.assertEqual(now["digests"], late["digests"])
        self.assertEqual(now["digest"], late["digest"])
        self.assertEqual(now["losses"], late["losses"])
        self.assertEqual(told(now), told(late))

    def test_the_run_ends_after_as_many_with_the_same_weights(self):
        now, late = self.both("too_many")
        self.assertEqual(now["digest"], late["digest"])
        self.assertEqual(told(now), told(late))
        self.assertRegex(late["message"], r"step 3: .* 2 updates in a row \(from step 2\)")
        self.assertEqual(now["message"], late["message"])

    def test_an_update_that_one_rank_alone_knows_to_be_broken_changes_no_weight(self):
        digests = self.both("loss_alone_on_one_rank")[1]["digests"]
        self.assertEqual(digests[3], digests[2])
        self.assertNotEqual(digests[4], digests[3])

    def test_memory_that_one_rank_lacks_is_agreed_on_one_update_later(self):
        now, late = self.both("memory_on_one_rank")
        self.assertEqual(late["pieces"], 2)
        self.assertEqual(told(now), told(late))
        for found, wanted in zip(late["losses"], now["losses"], strict=True):
            for a, b in zip(found, wanted, strict=True):
                self.assertLess(abs(a - b) / b, RELATIVE)

    def test_all_ranks_stop_at_the_same_step_and_the_resumed_run_equals_the_whole_one(self):
        now, late = self.both("stop_on_one_rank")
        self.assertEqual((now["step"], late["step"]), (2, 3))
        whole = self.both("sound")[1]
        for report in (now, late):
            self.assertEqual(report["digest"], whole["digest"])
            self.assertEqual(report["losses"], whole["losses"])

    def test_nothing_is_read_between_two_logs(self):
        for report in reports_of(late_ranks.__file__)["reads_late"]:
            self.assertEqual((report["read"], report["steps"]), ([], late_ranks.STEPS))

    def test_what_reads_is_noticed(self):
        for report in reports_of(late_ranks.__file__)["reads_now"]:
            self.assertGreaterEqual(report["read"].count("tolist"), late_ranks.STEPS - 2)


if __name__ == "__main__":
    absltest.main()
