"""Tasks whose targets are numbers of the user's own: texts, gold, rounding."""

import csv
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from absl.testing import parameterized

from t5suite import load_task
from t5suite.testing import encode_rows, exits_with, load_own_rows, load_rows, make_task, tiny_model

NUMBERS = {
    **{f"scale 1e{scale}": [float(f"{digit}.{digit}7e{scale}") for digit in range(1, 8)] for scale in range(-5, 7)},
    "whole": [1, 20, 300, 4000, 500_000],
    "negative": [-3.5, -1.0, -0.25, 0.0, 2.75],
    "negative whole": [-1, -2, 0, 1, 7],
}


def write_rows(folder: Path, kind: str, name: str, values: list) -> Path:
    """One file of rows with the columns text and score."""
    path, texts = folder / f"{name}.{kind}", [f"row {i}" for i in range(len(values))]
    if kind == "csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "score"], *zip(texts, values, strict=True)])
    elif kind == "jsonl":
        rows = ({"text": text, "score": value} for text, value in zip(texts, values, strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        column = values if isinstance(values, pyarrow.Array) else pyarrow.array(values)
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "score": column}), path)
    return path


COLUMNS = {"text_column": "text", "target_column": "score", "no_eval": True}


def loaded_numbers(folder, kind: str, values, role: str = "train", **flags):
    """The task, and the rows of a file with these values as a run loads them."""
    path = write_rows(Path(folder), kind, role, values)
    return load_own_rows(
        None, role, data_format=kind, metrics="pearson,spearman", **{f"{role}_file": path}, **COLUMNS, **flags
    )


def rounding(task, decimals: int):
    """The task with targets of so many decimals."""
    return replace(task, entry={**task.entry, "target_decimals": decimals})


def targets_of(task, rows) -> list[str]:
    return [task.examples(row)[0].targets for row in rows]


NUMBER = {"labels": None, "metric_names": ["pearson"], "metric_to_optimize": "pearson"}


def target_of(label, **fields) -> str:
    """The target text of a row with this label, of a task whose targets are numbers."""
    return make_task(**NUMBER, **fields).examples({"text": "a", "label": label})[0].targets


class TargetTextTest(parameterized.TestCase):
    @parameterized.parameters(
        (0.001, "0.001"), (158.25, "158.25"), (1e-05, "0.00001"), (-2.5e-07, "-0.00000025"), (3, "3"), (-7, "-7"),
        (2.0, "2.0"), (1e16, "10000000000000000"), (np.float32(0.1), "0.1"), (np.float16(0.1), "0.1"), (True, "1"),
        ("0.10", "0.10"), (" 158.25 ", "158.25"), ("1e-05", "0.00001"), ("+3", "3.0"), (".5", "0.5"), ("-12", "-12"),
    )  # fmt: skip
    def test_a_number_is_written_in_plain_decimals(self, value, text):
        self.assertEqual(target_of(value), text)
        self.assertEqual(float(text), float(str(value)) if isinstance(value, np.floating) else float(value))

    def test_a_float_reads_back_as_itself(self):
        random = np.random.default_rng(0)
        values = random.standard_normal(1000) * 10.0 ** random.integers(-30, 30, 1000)
        for value in values:
            text = target_of(float(value))
            self.assertNotIn("e", text)
            self.assertEqual(float(text), value)
            narrow = np.float32(value)
            self.assertEqual(np.float32(target_of(narrow)), narrow)

    @parameterized.parameters(
        ("2.675", 2, "2.68"), ("0.125", 2, "0.12"), ("-0.04", 1, "0.0"), ("158.25", 0, "158"), ("3", 2, "3.00"),
        ("0.00001", 4, "0.0000"), ("1" * 38, 1, "1" * 38 + ".0"),
    )  # fmt: skip
    def test_rounding_is_of_the_decimal_digits_halves_to_even(self, text, decimals, expected):
        self.assertEqual(target_of(text, target_decimals=decimals), expected)


class OwnNumbersTest(parameterized.TestCase):
    @parameterized.product(numbers=list(NUMBERS), kind=["csv", "jsonl", "parquet"])
    @pytest.mark.quick_cases(4)
    def test_answers_equal_to_the_gold_score_100_at_any_scale(self, numbers, kind):
        """The target is the data's text, and its number the data's number; no label is taken for a hidden one."""
        values = NUMBERS[numbers]
        with tempfile.TemporaryDirectory() as folder:
            task, rows = loaded_numbers(folder, kind, values)
        targets = targets_of(task, rows)
        self.assertEqual([float(target) for target in targets], values)
        if not any("e" in repr(value) for value in values):
            self.assertEqual(targets, [repr(value) for value in values])
        scores = task.score(rows, targets)
        self.assertAlmostEqual(scores["pearson"], 100)
        self.assertAlmostEqual(scores["spearman"], 100)
        self.assertEqual(scores["invalid_rate"], 0)
        answers_of_a_head = [str(np.float32(value)) for value in values]
        self.assertAlmostEqual(task.score(rows, answers_of_a_head)["pearson"], 100)

    @parameterized.parameters(
        ([4.5, 5.0, 4], True), ([4.5, 5, 4], False), ([4.5, 5.0, 4.0], False), ([-1.0, 2.5, -1], True),
    )  # fmt: skip
    def test_whole_numbers_of_two_spellings_are_named(self, values, is_named):
        with tempfile.TemporaryDirectory() as folder, self.assertLogs("t5suite", "INFO") as logs:
            task, rows = loaded_numbers(folder, "jsonl", values)
        self.assertEqual("'score' has whole numbers in two spellings" in "\n".join(logs.output), is_named)
        self.assertEqual(targets_of(task, rows), [repr(value) for value in values])

    def test_a_narrow_column_shows_the_decimals_that_it_stands_for(self):
        values, texts = [0.1, 2.7, -1e-05, 158.25], ["0.1", "2.7", "-0.00001", "158.25"]
        with tempfile.TemporaryDirectory() as folder:
            task, rows = loaded_numbers(folder, "parquet", pyarrow.array(values, pyarrow.float32()))
        self.assertEqual(targets_of(task, rows), texts)
        frame = pandas.DataFrame({"text": list("abcd"), "score": np.array(values, np.float32)})
        dataset = datasets.Dataset.from_pandas(frame)
        listed = [{"text": "a", "score": np.float32(value)} for value in values]
        for data in (frame, dataset, listed):
            self.assertEqual(targets_of(*load_own_rows(data, metrics="pearson", **COLUMNS)), texts)
        nested = pyarrow.array([{"score": value} for value in values], pyarrow.struct([("score", pyarrow.float32())]))
        columns = {"text_column": "text", "target_column": "meta.score", "metrics": "pearson", "no_eval": True}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "train.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"text": list("abcd"), "meta": nested}), file)
            pyarrow_frame = pandas.read_parquet(file, dtype_backend="pyarrow")
            for flags in ({"data": file}, {"data": pyarrow_frame}, {"data_format": "hub", "hub_path": folder}):
                self.assertEqual(targets_of(*load_own_rows(**flags, **columns)), texts)
            entry = {**NUMBER, "label_column_name": "meta.score", "hub_path": folder, "splits": {"train": "train"}}
            task = make_task(**entry)
            self.assertEqual(targets_of(task, load_rows(task, "train")), texts)
        wrapped = pandas.array(np.array(values, np.float32), pandas.ArrowDtype(pyarrow.float32()))
        frame = pandas.DataFrame({"text": list("abcd"), "score": wrapped})
        self.assertEqual(targets_of(*load_own_rows(frame, metrics="pearson", **COLUMNS)), texts)
        missing = pandas.DataFrame({"text": ["a", "b"], "score": pandas.array([0.1, None], "Float32")})
        rows = load_own_rows({"test": missing}, "test", metrics="none", **COLUMNS).rows
        self.assertEqual([row["score"] for row in rows], [0.1, None])

    def test_whole_numbers_among_others_stay_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            task, rows = loaded_numbers(folder, "jsonl", [1, 2.5, 3, 4.0])
        self.assertEqual(targets_of(task, rows), ["1", "2.5", "3", "4.0"])

    def test_minus_one_is_a_number_and_an_empty_cell_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            task, rows = loaded_numbers(folder, "csv", ["-1", "-1.0", "2"])
            self.assertEqual([task.is_labelled(row) for row in rows], [True] * 3)
            self.assertEqual(targets_of(task, rows), ["-1", "-1.0", "2"])
            with exits_with(65, "train.csv:3: column 'score' is empty"):
                loaded_numbers(folder, "csv", ["-1", "", "2"])
            task, rows = loaded_numbers(folder, "csv", ["", ""], role="test")
            self.assertEqual([task.is_labelled(row) for row in rows], [False] * 2)
            task, rows = loaded_numbers(folder, "jsonl", [-1.0, -1.0], role="test")
            self.assertEqual([task.is_labelled(row) for row in rows], [False] * 2)
            task, rows = loaded_numbers(folder, "jsonl", [-1.0, 4.0], role="test")
            self.assertEqual([task.is_labelled(row) for row in rows], [True] * 2)
        self.assertFalse(task.is_labelled({"text": "a"}))
        self.assertEqual(task.examples({"text": "a"})[0].targets, "-1.0")

    def test_rounded_targets_are_scored_against_the_numbers_of_the_data(self):
        values = [0.123, 0.226, 0.319, 0.444]
        with tempfile.TemporaryDirectory() as folder:
            task, rows = loaded_numbers(folder, "jsonl", values)
        task = rounding(task, 2)
        targets = targets_of(task, rows)
        self.assertEqual(targets, ["0.12", "0.23", "0.32", "0.44"])
        expected = 100 * np.corrcoef(values, list(map(float, targets)))[0, 1]
        self.assertAlmostEqual(task.score(rows, targets)["pearson"], expected)
        self.assertLess(expected, 100 - 1e-3)
        self.assertAlmostEqual(task.score(rows, list(map(str, values)))["pearson"], 100)

    @parameterized.parameters("csv", "jsonl", "parquet")
    def test_numbers_that_rounding_would_make_equal_are_refused(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            task, rows = loaded_numbers(folder, kind, [0.001, 0.001, 0.04, 0.5])
            path = Path(folder) / "again.jsonl"
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            with exits_with(
                65, "target_decimals 1 makes one target, 0.0, of 0.001 .*and 0.04.*target_decimals 2 keeps all 3"
            ):
                load_rows(rounding(task, 1), "train", train_file=str(path))
            self.assertLen(load_rows(rounding(task, 2), "train", train_file=str(path)), 4)
        self.assertEqual(targets_of(rounding(task, 2), rows), ["0.00", "0.00", "0.04", "0.50"])

    def test_numbers_that_no_rounding_keeps_apart_are_best_as_they_are(self):
        for digits, cure in ((20, "target_decimals 20 keeps all 2 numbers apart"), (21, "without target_decimals")):
            with tempfile.TemporaryDirectory() as folder:
                task, _ = loaded_numbers(folder, "csv", ["1", "2"])
                path = write_rows(Path(folder), "jsonl", "again", [f"0.{'0' * (digits - 1)}{n}" for n in (1, 2)])
                with exits_with(65, f"target_decimals 1 makes one target.*{cure}"):
                    load_rows(rounding(task, 1), "train", train_file=str(path))

    def test_rounding_is_refused_where_targets_are_no_numbers(self):
        self.assertEqual(target_of("1", target_decimals=0), "1")
        texts = {"labels": None, "metric_names": ["exact_match"], "metric_to_optimize": "exact_match"}
        with exits_with(78, "target_decimals 2 rounds numbers, but the targets are no numbers"):
            make_task(**texts, target_decimals=2)
        with exits_with(78, "target_decimals must be a whole number, 0 to 20, not -1"):
            make_task(**NUMBER, target_decimals=-1)

    def test_a_head_learns_the_number_of_the_data(self):
        with tempfile.TemporaryDirectory() as folder:
            plain = loaded_numbers(folder, "csv", ["0.000123", "-1", "158.25"])
            task, rows = loaded_numbers(folder, "csv", ["0.123", "158.25"])
            rounded = rounding(task, 1), rows
        for (task, rows), expected in ((plain, [0.000123, -1.0, 158.25]), (rounded, [0.1, 158.2])):
            encoder = tiny_model(family="encoder", tasks=[task])
            learned = [example["labels"] for example in encode_rows(rows, task, model=encoder)]
            self.assertEqual(learned, [[number] for number in expected])

    def test_sts_b_keeps_its_fifths(self):
        task = load_task("glue", "stsb")
        rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0.1, 2.33, 3.75)]
        self.assertEqual(targets_of(task, rows), ["0.0", "2.4", "3.8"])
        self.assertAlmostEqual(task.score(rows, ["0.0", "2.4", "3.8"])["pearson"], 100)
        self.assertFalse(task.is_labelled({"label": -1.0}))
