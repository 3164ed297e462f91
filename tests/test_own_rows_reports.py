"""Reports and comparisons of rows of one's own: read again from their files, where these are still the same."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from absl.testing import absltest, parameterized
from report_runs import make_own_run

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.rows.formats import format_options, rows_stay, words_of
from t5suite.reports.compare import compare_runs
from t5suite.reports.evaluations import evaluations_of
from t5suite.reports.finishing import prediction_lines
from t5suite.reports.page import html_page
from t5suite.reports.results import report_data

WORDS = "soup stew bread cake pie".split()


def folder() -> Path:
    return Path(tempfile.mkdtemp())


def reviews(count=40) -> list[dict]:
    return [
        {
            "input": f"I {'loved' if i % 3 else 'hated'} the {WORDS[i % 5]}, number {i}.",
            "output": "good" if i % 3 else "bad",
        }
        for i in range(count)
    ]


def written(place: Path, form: str, rows=None) -> Path:
    """The reviews as a file of a form, its first row on line 1 (JSON lines) or 2."""
    path, rows = place / f"reviews.{form}", rows or reviews()
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        between = {"csv": ",", "tsv": "\t"}[form]
        quoted = lambda text: f'"{text}"' if form == "csv" else text
        lines = [between.join((quoted(row["input"]), row["output"])) for row in rows]
        path.write_text("\n".join([between.join(("input", "output")), *lines]) + "\n")
    return path


def line_of(path: Path, where: str) -> str:
    """The line of a file that a place ('reviews.csv:6') names."""
    name, _, number = where.rpartition(":")
    assert name == path.name, where
    return path.read_text().splitlines()[int(number) - 1]


@contextlib.contextmanager
def working_in(place: Path):
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


class TextsTest(parameterized.TestCase):
    @parameterized.product(form=("csv", "tsv", "jsonl"), limit=(None, 7))
    def test_every_example_is_the_line_of_the_file_that_it_names(self, form, limit):
        path = written(folder(), form)
        run = make_own_run(folder() / "a", "reviews", data_format=form, train_file=str(path), limit=limit)
        data = report_data([run])
        (part,) = data["examples"]
        self.assertLen(part["examples"], limit or 12)
        for example in part["examples"]:
            line = line_of(path, example["where"])
            self.assertIn(example["inputs"].removeprefix("review: "), line)
            self.assertIn(example["target"], line.rpartition("number")[2])
        self.assertEqual(data["runs"][0]["notes"], ["no metrics.jsonl: no curves, no speed"])

    def test_test_rows_and_folders_are_read_again(self):
        place = folder()
        for split in ("train", "validation", "test"):
            (place / "rows" / split).mkdir(parents=True)
            written(place / "rows" / split, "csv")
        named = written(place, "jsonl", reviews(9))
        cases = (
            {"data_format": "csv", "train_dir": str(place / "rows")},
            {"data_format": "jsonl", "test_file": str(named)},
        )
        for settings, count in zip(cases, (40, 9)):
            run = make_own_run(folder() / "a", "reviews", role="test", **settings)
            (evaluation,) = evaluations_of(run)
            self.assertEqual(
                [e["inputs"] for e in evaluation.examples], [f"review: {r['input']}" for r in reviews(count)]
            )

    def test_a_file_that_changed_is_named_and_its_texts_are_not_shown(self):
        path = written(folder(), "csv")
        run = make_own_run(folder() / "a", "reviews", data_format="csv", train_file=str(path))
        path.write_text(path.read_text().replace("number 7", "number seven"))
        (evaluation,) = evaluations_of(run)
        self.assertRegex(evaluation.note, rf"more: {path} has changed since")
        self.assertEqual({example["inputs"] for example in evaluation.examples}, {None})
        self.assertIsNotNone(evaluation.judged, "the targets still give the scores")
        data = report_data([run])
        self.assertIn(f"a, reviews, without texts: {evaluation.note}", html_page(data, [], {}))
        lines = str(written(folder(), "jsonl"))
        other = make_own_run(folder() / "b", "reviews", keeps=True, train_file=lines)
        with self.assertRaisesRegex(DataError, "none in common; a: .* has changed since"):
            compare_runs(run, other)
        twin = folder() / "b"
        shutil.copytree(run, twin)
        self.assertEqual(compare_runs(run, twin)["notes"], [f"{name}: {evaluation.note}" for name in "ab"])

    def test_of_several_files_the_one_that_changed_is_named(self):
        place = folder()
        (place / "validation").mkdir()
        (place / "train.csv").write_text("input,output\na,good\n")
        for name in "ab":
            written(place / "validation", "csv").rename(place / "validation" / f"{name}.csv")
        run = make_own_run(folder() / "r", "reviews", data_format="csv", train_dir=str(place))
        changed = place / "validation" / "b.csv"
        changed.write_text(changed.read_text().replace("number 7", "number seven"))
        self.assertRegex(evaluations_of(run)[0].note, rf"any more: {changed} has changed since")

    def test_relative_paths_are_those_of_where_the_run_was_started(self):
        place, elsewhere = folder(), folder()
        written(place, "csv")
        with working_in(place):
            run = make_own_run(place / "a", "reviews", data_format="csv", train_file="reviews.csv")
        with working_in(elsewhere):
            self.assertEqual(evaluations_of(run)[0].note, "")
        moved = folder()
        (place / "reviews.csv").rename(moved / "reviews.csv")
        with working_in(elsewhere):
            self.assertIn("no such file", evaluations_of(run)[0].note)
            self.assertEqual(evaluations_of(run, data_dir=str(moved))[0].note, "")

    def test_a_benchmarks_own_file_is_found_from_elsewhere_too(self):
        place = folder()
        rows = [{"text": row["input"], "label": int(row["output"] == "good")} for row in reviews(9)]
        (place / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        from t5suite.data.rows.sources import DataOptions, load_split
        from t5suite.reports.evaluations import rows_again
        from t5suite.tasks.registry import load_task

        task = load_task("mini", "sentiment")
        rows = [{task.text_columns[0]: row["text"], task.entry["label_column_name"]: row["label"]} for row in rows]
        (place / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = load_split(task, "validation", "validation", DataOptions(validation_file=str(place / "x.jsonl")))
        manifest = {"settings": {"validation_file": "x.jsonl", "seed": 1}, "working_directory": str(place),
                    "data": {"sentiment.validation": {"fingerprint": told.fingerprint}}}  # fmt: skip
        found, why = rows_again(task, "validation", "validation", manifest)
        self.assertEqual((why, list(found.rows)), ("", rows))

    def test_it_needs_no_torch(self):
        path = written(folder(), "csv")
        run = make_own_run(folder() / "a", "reviews", data_format="csv", train_file=str(path))
        code = (
            f"import sys, t5suite.reports.results as r; d = r.report_data([{str(run)!r}]); "
            "assert d['examples'][0]['examples'][0]['inputs'] and 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class KeptTextsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"benchmark": "glue"}, True),
        ({"data_format": "csv", "train_file": "a.csv"}, True),
        ({"data_format": "hub", "hub_path": "imdb"}, True),
        ({"data_format": "jsonl", "train_file": None}, False),
        ({"data_format": "text", "train_file": "a.txt"}, False),
        ({"data_class": ["JSONLines"], "data_path": ["rows"]}, False),
    )
    def test_runs_keep_texts_that_nothing_could_read_again(self, settings, stay):
        self.assertEqual(rows_stay(settings), stay)

    def test_a_line_has_its_text_where_it_is_kept(self):
        example = SimpleNamespace(inputs="a", targets="b")
        made = SimpleNamespace(row_of_example=[0], examples=[example], rows=[{}], labelled=True,
                               task=SimpleNamespace(entry={}))  # fmt: skip
        base = {"row": 0, "example": 0, "prediction": "c", "target": "b"}
        self.assertEqual(list(prediction_lines(made, ["c"])), [base])
        self.assertEqual(list(prediction_lines(made, ["c"], keeps_texts=True)), [{**base, "inputs": "a"}])

    def test_they_are_shown_and_tell_rows_apart(self):
        path = written(folder(), "jsonl")
        runs = [
            make_own_run(folder() / f"s{seed}", "reviews", seed=seed, keeps=True, train_file=str(path))
            for seed in (1, 2)
        ]
        path.unlink()
        first, second = (evaluations_of(run)[0] for run in runs)
        self.assertTrue(all(example["inputs"].startswith("review: I ") for example in first.examples))
        common = {e["inputs"] for e in first.examples} & {e["inputs"] for e in second.examples}
        self.assertBetween(len(common), 1, 11)
        self.assertEqual(compare_runs(*runs)["scores"][0]["rows"], len(common))


class CompareTest(parameterized.TestCase):
    def test_held_out_rows_of_two_seeds_are_compared_on_those_that_both_have(self):
        path = written(folder(), "csv")
        settings = {"data_format": "csv", "train_file": str(path)}
        runs = [make_own_run(folder() / f"s{seed}", "reviews", seed=seed, **settings) for seed in (1, 2)]
        sides = [{e["inputs"]: e for e in evaluations_of(run)[0].examples} for run in runs]
        common = [text for text in sides[0] if text in sides[1]]
        right = [sum(side[text]["prediction"] == side[text]["target"] for text in common) for side in sides]
        found = compare_runs(*runs)
        (entry,) = found["scores"]
        self.assertEqual(entry["rows"], len(common))
        self.assertAlmostEqual(entry["a"], 100 * right[0] / len(common))
        self.assertAlmostEqual(entry["b"], 100 * right[1] / len(common))
        for flip in found["flips"]:
            self.assertIn(flip["inputs"].removeprefix("review: "), line_of(path, flip["key"]))

    def test_without_the_file_held_out_rows_of_two_seeds_are_not_compared(self):
        path = written(folder(), "csv", [{"input": f"row {i}", "output": "good"} for i in range(40)])
        settings = {"data_format": "csv", "train_file": str(path), "wrong": 0.0}
        runs = [make_own_run(folder() / f"s{seed}", "reviews", seed=seed, **settings) for seed in (1, 2)]
        path.unlink()
        with self.assertRaisesRegex(DataError, "drawn with seeds 1 and 2"):
            compare_runs(*runs)


class SettingsTest(parameterized.TestCase):
    def test_settings_of_old_manifests_have_defaults(self):
        options = format_options({"data_format": "csv", "train_file": "a.csv"})
        self.assertEqual(
            (options.source_id, options.target_id, options.text_unit, options.block_size), ("s", "t", "line", 512)
        )

    def test_an_empty_word_is_refused(self):
        with self.assertRaisesRegex(ConfigError, "--labels 'a,,b'"):
            words_of("a,,b", "--labels")


if __name__ == "__main__":
    absltest.main()
