"""What is shown on the terminal: tables of several runs, the meanings of their words, and hints."""

import contextlib
import doctest
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from absl.testing import absltest, parameterized
from report_runs import make_run

from t5suite.base.errors import DataError
from t5suite.data.rows import formats
from t5suite.data.rows.jsonl import file_sha256
from t5suite.reports import cards, evaluations, finishing, plots, results, tables
from t5suite.reports.tables import explained, print_run_table, rows_of_runs, suite_averages
from t5suite.tasks.registry import load_task
from t5suite.training.eval_sets import Report, Result

ROOT = Path(__file__).resolve().parent.parent


def rows_of_run(benchmark, tasks, data=None, **more):
    directory = Path(tempfile.mkdtemp())
    (directory / "results.json").write_text(json.dumps({"tasks": tasks, "averages": {}}))
    manifest = {"run_id": "4f2a", "settings": {"benchmark": benchmark}, "data": data or {}, "marks": {},
                "training": {"train_runtime": 3.0}, **more}  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return rows_of_runs([directory])


class RunTablesTest(parameterized.TestCase):
    def test_a_row_has_the_scores_and_the_evaluated_rows(self):
        data = {"rte.train": {"used": 9, "kept_for_selection": 0}, "rte.validation": {"used": 277}}
        (row,) = rows_of_run("glue", {"rte": {"accuracy": 70.0, "invalid_rate": 1.0}}, data)
        self.assertEqual((row["task"], row["n"], row["metrics"]), ("rte", 277, {"accuracy": 70.0}))
        self.assertEqual((row["invalid_rate"], row["train_seconds"]), (1.0, 3.0))
        (row,) = rows_of_run("mini", {"reviews": {"accuracy": 70.0}}, trained_on=["own", "reviews"])
        self.assertEqual((row["benchmark"], row["task"]), ("own", "reviews"))

    def test_runs_that_cover_a_benchmark_have_its_average(self):
        parts = {"sentiment": {"accuracy": 90.0}, "entailment": {"accuracy": 60.0}}
        rows = [row for name, scores in parts.items() for row in rows_of_run("mini", {name: scores})]
        self.assertEqual(suite_averages(rows), {})
        rows += rows_of_run("mini", {"similarity": {"pearson": 70.0, "spearman": 50.0}})
        self.assertAlmostEqual(suite_averages(rows)["mini"], (90 + 60 + 60) / 3)
        tasks = {name: {"accuracy": 80.0} for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "qnli", "rte")}
        tasks |= {"mnli_matched": {"accuracy": 60.0}, "mnli_mismatched": {"accuracy": 100.0}}
        self.assertAlmostEqual(suite_averages(rows_of_run("glue", tasks))["glue"], 80.0)

    def test_an_unfinished_run_is_named(self):
        with self.assertRaisesRegex(DataError, r"no finished run \(manifest.json, results.json missing\)"):
            rows_of_runs([tempfile.mkdtemp()])

    def test_every_remark_that_evaluations_make_is_explained_below_the_table_that_has_it(self):
        made = set()
        for path in (ROOT / "t5suite" / "training").rglob("*.py"):
            made |= set(re.findall(r'marks\.append\(f?"([^"]+)"\)', path.read_text()))
        self.assertContainsSubset({"selected on", "subset", "train subset"}, made)
        for mark in made:
            self.assertLen(explained([], [re.sub("{.*}", "3", mark)]), 1, mark)
        run = make_run(Path(tempfile.mkdtemp()) / "a", "sentiment")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_run_table(rows_of_runs([run]))
        said = " ".join(out.getvalue().split())
        self.assertIn("subset: not all rows were scored", said)
        self.assertNotIn("selected on", said)

    @parameterized.parameters(
        results.trial_names, results.curves_of, results.label_of, results.spread, results.size_of, tables.named,
        tables.significant, tables.shortened, tables.escaped, tables.code, tables.average_title, plots.curve_of,
        cards.shown_settings, cards.hub_name, cards.template, evaluations.numbered,
        formats.rows_stay, formats.words_of,
    )  # fmt: skip
    def test_examples_hold(self, function):
        for test in doctest.DocTestFinder().find(function, globs=vars(sys.modules[function.__module__])):
            self.assertNotEmpty(test.examples)
            self.assertEqual(doctest.DocTestRunner().run(test).failed, 0)


class HintsTest(parameterized.TestCase):
    def hint(self, rate=100.0, name="mini/sentiment"):
        """What is said of a run whose answers are 'a', '<pad>' and 'a'."""
        task = load_task(*name.split("/"))
        metrics = {"accuracy": 0.0, "invalid_rate": rate}
        result = Result(task.name, metrics, ["a", "<pad>", "a"], 3, 0.1, 1.0, 0, "generate", [], True)
        sets = [SimpleNamespace(name=task.name, task=task, role="validation", split="validation")]
        run = SimpleNamespace(manifest={"training": {"steps": 6}}, directory="runs/x")
        with mock.patch.object(finishing.logger, "warning") as warned:
            finishing.give_hints(Report({task.name: result}, 0.0, {task.name: 0.0}), sets, run)
        return warned.call_args[0][0] if warned.called else None

    def test_a_hint_is_given_where_hardly_any_answer_is_a_label(self):
        for rate, is_given in ((89.9, False), (90.0, True), (100.0, True), (float("nan"), False)):
            self.assertEqual(self.hint(rate=rate) is not None, is_given, rate)
        hint = self.hint()
        said = "sentiment: 100% of the answers are no label (negative, positive); most often 'a' (2 times)."
        self.assertStartsWith(hint, f"{said} Look at runs/x/predictions/sentiment.validation.jsonl.")
        self.assertIn("too few updates (6 here)", hint)
        self.assertIn("--eval_method score", hint)
        self.assertNotIn("--eval_method", self.hint(name="super_glue/wsc"), "its labels cannot be scored")

    def test_a_file_that_has_changed_since_the_run_is_named(self):
        path = Path(tempfile.mkdtemp()) / "rows.csv"
        path.write_text("text,label\na,b\n")
        facts = {"fingerprint": f"sha256:{file_sha256(path)}"}
        settings = {"train_file": str(path), "validation_file": "part-*.csv", "test_file": None}
        manifest = {"data": {"rows.train": facts, "rows.validation": facts}, "settings": settings}
        self.assertEqual(finishing.changed_files(manifest), [])
        path.write_text("text,label\na,b\nc,d\n")
        self.assertEqual(finishing.changed_files(manifest), [str(path)])
        self.assertEqual(finishing.changed_files({**manifest, "data": {"rows.train": {"fingerprint": "rows:1"}}}), [])


if __name__ == "__main__":
    absltest.main()
