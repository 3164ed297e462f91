"""`t5suite report`: several finished runs as one table, and a benchmark's average where they cover it."""

import json
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

from t5suite.base.errors import DataError
from t5suite.reports.tables import averages_of_runs, read_runs, rows_of_runs


def finished_run(benchmark, tasks, data=None, **more):
    directory = Path(tempfile.mkdtemp())
    (directory / "results.json").write_text(json.dumps({"tasks": tasks, "averages": {}}))
    manifest = {
        "run_id": "4f2a",
        "settings": {"benchmark": benchmark},
        "data": data or {},
        "marks": {},
        "training": {"train_runtime": 3.0},
        **more,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


class RunTablesTest(parameterized.TestCase):
    def test_a_row_has_the_scores_and_the_evaluated_rows(self):
        data = {"rte.train": {"used": 9, "kept_for_selection": 0}, "rte.validation": {"used": 277}}
        directory = finished_run("glue", {"rte": {"accuracy": 70.0, "invalid_rate": 1.0}}, data)
        (row,) = rows_of_runs(read_runs([directory]))
        self.assertEqual((row["task"], row["n"], row["metrics"]), ("rte", 277, {"accuracy": 70.0}))
        self.assertEqual((row["invalid_rate"], row["train_seconds"]), (1.0, 3.0))

    def test_rows_of_one_s_own_have_their_own_name_and_not_that_of_flags_that_were_not_given(self):
        directory = finished_run("mini", {"reviews": {"accuracy": 70.0}}, trained_on=["own", "reviews"])
        (row,) = rows_of_runs(read_runs([directory]))
        self.assertEqual((row["benchmark"], row["task"]), ("own", "reviews"))

    def test_runs_that_cover_a_benchmark_have_its_average(self):
        runs = [
            finished_run("mini", {"sentiment": {"accuracy": 90.0}}),
            finished_run("mini", {"entailment": {"accuracy": 60.0}}),
            finished_run("mini", {"similarity": {"pearson": 70.0, "spearman": 50.0}}),
        ]
        self.assertAlmostEqual(averages_of_runs(read_runs(runs))["mini"], (90 + 60 + 60) / 3)
        self.assertEqual(averages_of_runs(read_runs(runs[:2])), {})

    def test_mnli_s_halves_are_one_group(self):
        tasks = {name: {"accuracy": 80.0} for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "qnli", "rte")}
        tasks |= {"mnli_matched": {"accuracy": 60.0}, "mnli_mismatched": {"accuracy": 100.0}}
        self.assertAlmostEqual(averages_of_runs(read_runs([finished_run("glue", tasks)]))["glue"], 80.0)

    def test_an_unfinished_run_is_named(self):
        directory = finished_run("mini", {})
        (directory / "results.json").unlink()
        with self.assertRaisesRegex(DataError, r"no finished run \(results.json missing\)"):
            read_runs([directory])

    def test_it_needs_no_torch(self):
        import subprocess

        code = "import sys, t5suite.reports.tables; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


if __name__ == "__main__":
    absltest.main()
