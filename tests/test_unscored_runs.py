"""A run that evaluates nothing says so at its start and at its end; averages are called by their names."""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

from absl.testing import absltest, parameterized
from later_flags import later_wins
from test_data_formats_runs import COLUMNS, csv_reviews, flags

import fine_tune_t5
from t5suite.reports.finishing import write_results
from t5suite.reports.tables import NO_SCORES, average_title, print_results, print_table
from t5suite.training.eval_sets import Result

NOTHING = "--eval_strategy no: nothing is evaluated"
QUIET = ("eval_strategy", "eval_steps")


def told(*argv, directory=None) -> tuple[str, str]:
    """What a run says on standard output and on standard error."""
    out, err = io.StringIO(), io.StringIO()
    directory = directory or Path(tempfile.mkdtemp()) / "run"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        fine_tune_t5.main(
            later_wins([*flags(*argv, without=QUIET), "--output_dir", str(directory), "--max_train_samples", "16"])
        )
    return " ".join(out.getvalue().split()), err.getvalue()


class UnscoredRunTest(parameterized.TestCase):
    @parameterized.parameters(("--no_eval",), ("--eval_strategy", "no"))
    def test_it_says_so_at_the_start_at_the_end_and_when_it_is_asked_again(self, *flag):
        directory = Path(tempfile.mkdtemp()) / "[bold]run"  # a path is shown as it is
        argv = ("--data_format", "csv", "--train_file", csv_reviews(), *COLUMNS, *flag, "--max_eval_samples", "4")
        out, err = told(*argv, directory=directory)
        self.assertIn(NOTHING, err)
        self.assertIn("reviews: no training rows are kept for validation", err)
        self.assertIn("--max_eval_samples has no effect: --eval_strategy no", err)
        self.assertIn(f"{directory}) {NO_SCORES}", out)
        self.assertNotIn("metrics", out)
        self.assertTrue(told(*argv, directory=directory)[0].endswith(f"{directory} {NO_SCORES}"))

    def test_how_rows_are_evaluated_is_idle_unless_test_rows_are_predicted(self):
        argv = ("--eval_strategy", "no", "--eval_method", "score", "--max_steps", "1")
        for predicts in (False, True):
            out, err = told(*argv, *(["--do_predict", "--max_predict_samples", "4"] if predicts else []))
            with self.subTest(predicts=predicts):
                self.assertIn(NOTHING, err)
                self.assertEqual("--eval_method has no effect" in err, not predicts)
                self.assertEqual(NO_SCORES in out, not predicts)

    def test_a_run_that_evaluates_says_nothing_of_the_kind(self):
        out, err = told(
            "--dataset_name", "all", "--max_steps", "1", "--max_eval_samples", "4", "--eval_strategy", "epoch"
        )
        self.assertNotIn(NOTHING, err)
        self.assertNotIn("--max_eval_samples", err)
        self.assertNotIn("no scores", out)
        self.assertRegex(out, r" average mini: (\d|nan)")


class TableTest(parameterized.TestCase):
    def test_each_number_stands_below_its_name(self):
        values = {"name": "rte", "metrics": {"accuracy": 70.0, "invalid_rate": 12.5}, "predictions": ["x"] * 8}
        counts = {"num_rows": 9, "seconds": 3.5, "loss": None, "truncated": 2, "method": "generate"}
        report = SimpleNamespace(results={"rte": Result(**values, **counts, marks=[], labelled=True)})
        out = io.StringIO()
        print_table(report, [SimpleNamespace(name="rte", split="test")], {"averages": {}}, "a run", file=out)
        lines = [re.split(r"\s{2,}", line.strip()) for line in out.getvalue().splitlines() if line.strip()]
        wanted = {"task": "rte", "split": "test", "n": "9", "metrics": "accuracy 70.00"}
        self.assertEqual(
            dict(zip(lines[1], lines[3])), {**wanted, "invalid %": "12.50", "cut off %": "25.00", "seconds": "3.5"}
        )

    def test_what_is_not_a_number_is_null_in_the_results_and_named(self):
        place, nan = Path(tempfile.mkdtemp()), float("nan")
        tasks = {"stsb": {"pearson": nan, "spearman": 1.0}, "rte": {"accuracy": 50.0}}
        write_results(place, {"tasks": tasks, "averages": {"glue": nan}})
        found = json.loads((place / "results.json").read_text())
        self.assertEqual(found["tasks"], {**tasks, "stsb": {"pearson": None, "spearman": 1.0}})
        self.assertEqual(found["averages"], {"glue": None})
        self.assertEqual([note.split()[0] for note in found["notes"]], ["tasks.stsb.pearson", "averages.glue"])


class AverageTest(parameterized.TestCase):
    @parameterized.parameters(
        ("average", "average: 50.00"),
        ("glue", "average glue: 50.00"),
        ("glue (3 of 8 tasks)", "average glue (3 of 8 tasks): 50.00"),
    )
    def test_an_average_is_called_by_its_name_once(self, name, line):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            print_results({"tasks": {"cola": {"accuracy": 50.0}}, "averages": {name: 50.0}}, "a run")
        self.assertEqual(out.getvalue().splitlines()[-1], line)
        self.assertEqual(average_title(name), line.partition(":")[0])


if __name__ == "__main__":
    absltest.main()
