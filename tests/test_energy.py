"""Energy is what counters counted: sums, counters that begin again, and the word that nothing was measured."""

import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

from t5suite.reports.cards import energy_text
from t5suite.training.monitoring.measurements import Counter, Meter, metered, rapl_counters


def readings(*values):
    """A counter's `read` that gives these values in order."""
    left = list(values)
    return lambda: left.pop(0)


def measured(*counters, looks=1):
    meter = Meter(list(counters), [])
    meter.start()
    for _ in range(looks - 1):
        meter._update()
    meter.stop()
    return meter.described()


class MeterTest(parameterized.TestCase):
    def test_devices_are_summed_from_where_they_stood(self):
        found = measured(Counter("a", readings(100.0, 107.5)), Counter("b", readings(3.0, 4.0)))
        self.assertEqual((found["joules"], found["of"]), (8.5, ["a", "b"]))

    def test_a_counter_that_begins_again_loses_nothing(self):
        found = measured(Counter("a", readings(95.0, 99.0, 2.0, 3.0), wraps_at=100.0), looks=3)
        self.assertEqual(found["joules"], 8.0)

    def test_a_counter_that_fails_is_left_out_and_named(self):
        def fail():
            raise OSError("gone")

        found = measured(Counter("a", fail), Counter("b", readings(1.0, 2.0)))
        self.assertEqual((found["joules"], found["of"], found["why"]), (1.0, ["b"], "a: gone"))

    def test_other_processes_measure_nothing_and_say_nothing(self):
        with metered(is_main=False) as meter:
            pass
        self.assertEqual(set(meter.described()), {"seconds"})


class RaplTest(parameterized.TestCase):
    def zone(self, folder, name, joules, label="package-0"):
        place = folder / name
        place.mkdir(parents=True)
        (place / "energy_uj").write_text(f"{joules * 10**6}\n")
        (place / "max_energy_range_uj").write_text("262143328850\n")
        (place / "name").write_text(f"{label}\n")

    def test_packages_count_and_their_parts_do_not(self):
        folder = Path(tempfile.mkdtemp())
        self.zone(folder, "intel-rapl:0", 12)
        self.zone(folder, "intel-rapl:0:0", 5, "core")
        self.zone(folder, "intel-rapl:1", 30, "package-1")
        found, lack = rapl_counters(folder)
        self.assertEqual([counter.name for counter in found], ["intel-rapl:0 (package-0)", "intel-rapl:1 (package-1)"])
        self.assertEqual([counter.read() for counter in found], [12.0, 30.0])
        self.assertAlmostEqual(found[0].wraps_at, 262143.32885)
        self.assertEqual(lack, "")

    def test_a_counter_that_may_not_be_read_is_told_apart_from_none(self):
        folder = Path(tempfile.mkdtemp())
        (folder / "intel-rapl:0").mkdir()
        self.assertIn("cannot be read by this user", rapl_counters(folder)[1])
        self.assertIn("no energy counter", rapl_counters(folder / "nowhere")[1])

    def test_a_card_never_estimates(self):
        self.assertEqual(energy_text(None), "not measured")
        self.assertEqual(energy_text({"seconds": 9.0, "why": "no counter"}), "not measured (no counter)")


if __name__ == "__main__":
    absltest.main()
