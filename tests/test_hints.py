"""What is said of a model that writes no labels: what it wrote, where to look, and what it may come from."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from absl.testing import absltest, parameterized

from t5suite.data.rows.jsonl import file_sha256
from t5suite.reports.finishing import changed_files, give_hints, hints_of, warn_of_changed_files
from t5suite.tasks.registry import load_task
from t5suite.training.eval_results import Report, Result


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
