"""What is said on the terminal: tables of several runs, what their words mean, and hints where a run learnt nothing."""

import contextlib
import doctest
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from absl.testing import absltest, parameterized
from report_runs import make_run

from t5suite.base.errors import DataError
from t5suite.data.rows import formats as from_settings
from t5suite.data.rows.jsonl import file_sha256
from t5suite.reports import evaluations, plots, results, run_facts, sections, sweep_plots, sweeps, tables
from t5suite.reports.finishing import changed_files, give_hints, hints_of, warn_of_changed_files
from t5suite.reports.tables import averages_of_runs, explained, print_run_table, read_runs, rows_of_runs
from t5suite.tasks.registry import load_task
from t5suite.training.eval_sets import Report, Result

ROOT = Path(__file__).resolve().parent.parent


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
        code = "import sys, t5suite.reports.tables, t5suite.reports.sweeps; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class MeaningsTest(parameterized.TestCase):
    def test_every_remark_that_evaluations_make_is_explained(self):
        made = set()
        for path in (ROOT / "t5suite" / "training").rglob("*.py"):
            made |= set(re.findall(r'marks\.append\(f?"([^"]+)"\)', path.read_text()))
        self.assertContainsSubset({"selected on", "subset", "train subset"}, made)
        for mark in made:
            shown = mark.split("{")[0] + "3" if "{" in mark else mark
            self.assertLen(explained([], [shown]), 1, mark)

    def test_a_line_below_the_table_explains_what_stands_in_it_and_nothing_else(self):
        run = make_run(Path(tempfile.mkdtemp()) / "a", "sentiment")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            print_run_table(read_runs([run]))
        said = " ".join(out.getvalue().split())
        self.assertIn("subset: not all rows were scored", said)
        self.assertNotIn("selected on", said)


class DocstringTest(parameterized.TestCase):
    @parameterized.parameters(
        evaluations.where, evaluations._short, results.unit_of, results.trial_names, tables.one_line, tables.named,
        tables.interval, tables.significant, tables.escaped, tables.code, tables.shortened, plots.shown_scores,
        plots._label, sections.heading_of, sections.hardware_of, run_facts.size_of_name, run_facts.size_of_shape,
        run_facts.curves_of, run_facts.label_of, sweeps.flattened, sweeps.wrapped, sweeps.shown, sweeps.group_label,
        sweep_plots.label_of, from_settings.rows_stay, from_settings.words_of,
    )  # fmt: skip
    def test_examples_hold(self, function):
        for test in doctest.DocTestFinder().find(function, globs=vars(sys.modules[function.__module__])):
            self.assertNotEmpty(test.examples)
            self.assertEqual(doctest.DocTestRunner().run(test).failed, 0)


def parts(predictions, rate, benchmark="mini", name="sentiment", method="generate", truncated=0):
    """`(report, sets)` of one split."""
    metrics = {"accuracy": 0.0, "invalid_rate": rate}
    result = Result(name, metrics, predictions, len(predictions), 0.1, 1.0, truncated, method, [], True)
    task = load_task(benchmark, name)
    sets = [SimpleNamespace(name=name, task=task, role="validation", split="validation")]
    return Report({name: result}, 0.0, {name: 0.0}), sets


class HintsTest(parameterized.TestCase):
    def hint(self, updates=6, trained_before=False, directory="runs/x", **given):
        given = {"predictions": ["a", "<pad>", "a"], "rate": 100.0, **given}
        (hint,) = hints_of(*parts(**given), directory, updates, trained_before)
        return hint

    @parameterized.parameters((89.9, 0), (90.0, 1), (100.0, 1), (0.0, 0), (float("nan"), 0))
    def test_a_hint_is_given_where_hardly_any_answer_is_a_label(self, rate, number):
        self.assertLen(hints_of(*parts(["a"], rate), None, None, False), number)

    def test_it_says_what_was_written_and_where_to_look(self):
        hint = self.hint()
        self.assertIn(
            "sentiment: 100% of the answers are no label (negative, positive); most often 'a' (2 times)", hint
        )
        self.assertIn("Look at runs/x/predictions/sentiment.validation.jsonl.", hint)
        self.assertIn("--eval_method score", hint)
        self.assertNotIn("Look at", self.hint(directory=None))

    @parameterized.parameters(
        (6, False, True), (6, True, True), (999, False, True), (999, True, False), (1000, False, False)
    )
    def test_a_short_run_is_named_as_the_cause(self, updates, trained_before, is_short):
        hint = self.hint(updates=updates, trained_before=trained_before)
        self.assertEqual("a run that is too short" in hint, is_short)
        self.assertEqual("never trained on text-to-text" in hint, trained_before)

    def test_answers_without_an_end_are_named(self):
        self.assertIn("answers that never end", self.hint(truncated=3))
        self.assertNotIn("answers that never end", self.hint(truncated=2))

    def test_where_labels_cannot_be_chosen_that_is_no_cure(self):
        self.assertNotIn("--eval_method", self.hint(benchmark="super_glue", name="wsc"))

    def test_a_run_s_manifest_says_what_it_began_with(self):
        settings = {"model_name_or_path": "google/t5-v1_1-small", "from_scratch": False}
        manifest = {"settings": settings, "training": {"steps": 7}}
        run = SimpleNamespace(manifest=manifest, directory=Path(tempfile.mkdtemp()))
        with self.assertLogs("t5suite.reports.finishing", "WARNING") as logs:
            give_hints(*parts(["a"], 100.0), run)
        self.assertIn("too short (7 updates);", logs.output[0])
        self.assertIn("never trained on text-to-text", logs.output[0])


class ChangedFilesTest(absltest.TestCase):
    def test_a_file_that_has_changed_since_the_run_is_named(self):
        path = Path(tempfile.mkdtemp()) / "rows.csv"
        path.write_text("text,label\na,b\n")
        told = {"fingerprint": f"sha256:{file_sha256(path)}"}
        settings = {"train_file": str(path), "validation_file": "part-*.csv", "test_file": None}
        manifest = {"data": {"rows.train": told, "rows.validation": told}, "settings": settings}
        self.assertEqual(changed_files(manifest), [])
        with path.open("a") as file:
            file.write("c,d\n")
        self.assertEqual(changed_files(manifest), [str(path)])
        self.assertEqual(changed_files({**manifest, "data": {"rows.train": {"fingerprint": "rows:1"}}}), [])
        self.assertEqual(changed_files({}), [])
        with self.assertLogs("t5suite.reports.finishing", "WARNING") as logs:
            warn_of_changed_files(SimpleNamespace(manifest=manifest))
        self.assertIn("rows.csv changed since", logs.output[0])


if __name__ == "__main__":
    absltest.main()
