"""Rows of your own: that every format delivers every row as it stands, once, with the place of whatever is wrong."""

import csv
import errno
import gzip
import itertools
import json
import logging
import re
import sys
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from absl.testing import parameterized
from support import folder
from transformers import ByT5Tokenizer

from t5suite import DATASET_VALS, Task, load_task
from t5suite.data.mixtures import epoch_counts, grouped_in_updates, proportional_order
from t5suite.testing import bundled_model, exits_with, load_own_rows, load_rows, save_model, tiny_tokenizer, write_rows

LABEL = {"target_column": "label"}
COLUMNS = {"text_column": "text", **LABEL}
ROLES = ("train", "validation", "test")
TEXTS = ["plain", 'a "quoted", cell', "two\nlines", "tab\there", "naïve ☃", "1,000", " spaces "]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    return path


def load(data=None, split: str = "train", **flags) -> list[dict]:
    """The rows of a split of which no part is held out."""
    return load_own_rows(data, split, no_eval=True, **flags).rows


def of_class(name: str, folder=None, config: dict | None = None) -> dict:
    """The flags of one data set of a class."""
    flags = {"data_class": [name], "data_config": [json.dumps(config or {})]}
    return flags if folder is None else flags | {"data_path": [str(folder)]}


def splits_of(task: Task) -> list[str]:
    return [role for role in ROLES if task.splits(role)]


def csv_file(rows, path=None, **dialect) -> Path:
    path = path or folder() / "rows.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, **dialect).writerows(rows)
    return path


class TablesTest(parameterized.TestCase):
    """The same rows come out of every kind of file."""

    def rows_of(self, kind: str, texts: list[str]) -> list[dict]:
        rows, root = [{"text": text, "label": "a"} for text in texts], folder()
        if kind == "csv":
            csv_file([["text", "label"], *([row["text"], "a"] for row in rows)], root / "train.csv")
        elif kind == "tsv":
            lines = ["text\tlabel", *(f"{row['text']}\ta" for row in rows)]
            write(root / "train.tsv", "\n".join(lines) + "\n")
        elif kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "train.parquet")
        else:
            jsonl(root / "train.jsonl", rows)
        return load(train_dir=root, data_format=kind, **COLUMNS)

    @parameterized.parameters("jsonl", "csv", "parquet")
    def test_every_text_comes_out_as_it_went_in(self, kind):
        self.assertEqual([row["text"] for row in self.rows_of(kind, TEXTS)], TEXTS)

    @parameterized.parameters("ParquetFile", "ParquetFile.iter_batches")
    def test_an_error_of_the_disk_is_no_unsound_parquet_file(self, step):
        fault = OSError(errno.EIO, "Error reading bytes from file")
        with mock.patch(f"pyarrow.parquet.{step}", side_effect=fault), self.assertRaises(OSError) as raised:
            self.rows_of("parquet", TEXTS)
        self.assertEqual(raised.exception.errno, errno.EIO)
        self.assertEndsWith(raised.exception.filename, "train.parquet")

    def test_tsv_knows_no_quotes(self):
        texts = ['a "quoted, cell', "'", "naïve ☃"]
        self.assertEqual([row["text"] for row in self.rows_of("tsv", texts)], texts)

    def test_line_ends_byte_order_marks_empty_lines_and_compression_of_csv(self):
        plain = b"text,label\nx,a\n"
        for name, content in (
            ("a.csv", plain.replace(b"\n", b"\r\n")), ("a.csv", b"\xef\xbb\xbf" + plain),
            ("a.csv", b"text,label\n\nx,a"), ("a.csv.gz", gzip.compress(plain)),
        ):  # fmt: skip
            path = write(folder() / name, content)
            self.assertEqual(load(path, **COLUMNS), [{"text": "x", "label": "a"}])

    def test_a_bad_line_of_csv_is_named(self):
        for content, message in (
            ("text,label\nx,a\ny\n", "a.csv:3: 1 cells, but the first line names 2"),
            ('text,label\n"x\ny",a\nz\n', "a.csv:4: 1 cells"),
            ("text,text\nx,a\n", "a.csv:1: column 'text' is given for the second time"),
            ('text,label\nx,a\n"y"z,a\n', "a.csv:3: "),
            ("text,label\n", "a.csv: the file has no rows"),
            (b"text,label\nx,a\n\xff,b\n", "a.csv:3: not UTF-8"),
        ):
            path = write(folder() / "a.csv", content)
            with exits_with(65, message):
                load(path, **COLUMNS)

    def test_a_class_id_of_a_typeless_file_is_a_number_and_an_empty_answer_is_none(self):
        path = write(folder() / "a.csv", "text,label\nx,1\ny,bad\nz,\n")
        rows = load({"test": path}, "test", labels=["bad", "good"], metrics="none", **COLUMNS)
        self.assertEqual([row["label"] for row in rows], ["good", "bad", None])
        path = write(folder() / "hidden.csv", "text,label\nx,-1\ny, -1 \n")
        rows = load({"test": path}, "test", labels=["bad", "good"], metrics="none", **COLUMNS)
        self.assertEqual([row["label"] for row in rows], [None, None])

    def test_numbers_that_are_label_words_are_no_class_ids_and_minus_one_is_none_that_is_hidden(self):
        path = write(folder() / "a.csv", "text,label\nx,1\ny,0\nz,-1\n")
        task, rows = load_own_rows(path, labels="1,-1,0", no_eval=True, **COLUMNS)
        self.assertEqual([row["label"] for row in rows], ["1", "0", "-1"])
        self.assertEqual(task.score(rows, ["1", "0", "-1"]), {"accuracy": 100.0, "invalid_rate": 0.0})
        with exits_with(65, "a.csv:3: label '0' in column 'label' is none of 1, 2, 3"):
            load(path, labels="1,2,3", **COLUMNS)

    @parameterized.parameters(("1,2,3", "2"), ("a,b,c", "c"), ("2.0,2", "2.0"))
    def test_a_column_that_pandas_has_made_floats_has_the_labels_of_json_s_numbers(self, labels, target):
        """It writes whole numbers so where a cell of the column is empty."""
        for numbers, expected in (([2.0], [target]), ([-1.0, None], ["<unk>", "<unk>"])):
            place = folder()
            table = pandas.DataFrame({"text": "x", "label": numbers})
            table.to_csv(place / "a.csv", index=False)
            table.to_json(place / "a.jsonl", orient="records", lines=True)
            for name in ("a.csv", "a.jsonl"):
                task, rows = load_own_rows({"test": str(place / name)}, "test", labels=labels, **COLUMNS)
                self.assertEqual([task.examples(row)[0].targets for row in rows], expected)

    def test_a_number_in_json_is_the_label_of_its_digits_and_an_id_where_labels_are_words(self):
        rows = [{"text": text, "label": label} for text, label in zip("wxyz", (3, 1, "2", 2.0), strict=True)]
        path = jsonl(folder() / "a.jsonl", rows)
        task, read_rows = load_own_rows(path, labels="1,2,3", no_eval=True, **COLUMNS)
        targets = [task.examples(row)[0].targets for row in read_rows]
        self.assertEqual(targets, ["3", "1", "2", "2"])
        hidden = jsonl(folder() / "hidden.jsonl", [{"text": "x", "label": -1}])
        self.assertEqual(load({"test": hidden}, "test", labels=["1", "2"], **COLUMNS)[0]["label"], -1)
        zero = jsonl(folder() / "c.jsonl", [{"text": "x", "label": 0}])
        with exits_with(65, "label '0' in column 'label' is none of 1, 2, 3"):
            load_own_rows(zero, labels="1,2,3", no_eval=True, **COLUMNS)

    def test_a_text_that_predict_has_cut_is_whole_again_without_the_mark(self):
        mark = " [cut: 7 more tokens] "
        rows = [
            {"row": 0, "inputs": f"It{mark} rains.", "prediction": "Es", "cut_tokens": 7},
            {"row": 1, "inputs": f"It{mark} rains.", "prediction": "Es"},
        ]
        columns = {"text_column": "inputs", "target_column": "prediction"}
        path = jsonl(folder() / "answers.jsonl", rows)
        for data in (path, rows):
            _, read_rows = load_own_rows(data, no_eval=True, **columns)
            self.assertEqual([row["inputs"] for row in read_rows], ["It rains.", f"It{mark} rains."])

    def test_whole_numbers_beside_fractions_stay_whole_in_texts_and_targets(self):
        rows = [{"age": 3, "meta": {"size": 1}, "answer": 2}, {"age": 2.5, "meta": {"size": 0.5}, "answer": 1.5}]
        columns = {"text_column": "age,meta.size", "target_column": "answer"}
        task, read_rows = load_own_rows(jsonl(folder() / "a.jsonl", rows), no_eval=True, **columns)
        examples = [task.examples(row)[0] for row in read_rows]
        self.assertEqual(examples, [("age: 3 meta.size: 1", "2"), ("age: 2.5 meta.size: 0.5", "1.5")])

    @parameterized.parameters({}, {"metrics": "pearson"})
    def test_decimals_of_a_database_keep_their_digits(self, **flags):
        rows = [{"text": Decimal(number), "label": Decimal(number)} for number in ("1.5", "2.25", "3")]
        task, read_rows = load_own_rows(rows, no_eval=True, **COLUMNS, **flags)
        examples = [task.examples(row)[0] for row in read_rows]
        self.assertEqual(examples, [("1.5", "1.5"), ("2.25", "2.25"), ("3", "3")])

    @parameterized.parameters(
        ([-1, -1], True), ([-1.0, -1.0], True), ([-1, -1.0], True), ([Decimal("-1.00"), Decimal("-1")], True),
        ([Decimal("-1"), Decimal("2.5")], False), ([-1, 2.5], False),
    )  # fmt: skip
    def test_numbers_of_a_test_split_that_are_all_minus_one_are_no_labels_whatever_holds_them(
        self, numbers, are_hidden
    ):
        rows = [{"text": "x", "label": number} for number in numbers]
        root = folder()
        sources = [rows, csv_file([["text", "label"], *(["x", number] for number in numbers)], root / "test.csv")]
        if Decimal not in map(type, numbers):
            sources.append(jsonl(root / "test.jsonl", rows))
        if len(set(map(type, numbers))) == 1:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "test.parquet")
            sources.append(root / "test.parquet")
        for source in sources:
            task, read_rows = load_own_rows({"test": source}, "test", metrics="pearson", **COLUMNS)
            self.assertEqual([task.is_labelled(row) for row in read_rows], [not are_hidden] * 2)

    def test_an_empty_cell_in_a_list_is_no_label_and_no_answer(self):
        path = jsonl(folder() / "a.jsonl", [{"text": "x", "label": ["late", None, "broken"]}])
        task, (row,) = load_own_rows(path, metrics="micro_f1", no_eval=True, **COLUMNS)
        self.assertEqual(task.examples(row)[0].targets, "broken, late")
        task, (row,) = load_own_rows(path, no_eval=True, **COLUMNS)
        self.assertEqual(task.score([row], ["None"])["exact_match"], 0)
        hidden = jsonl(folder() / "b.jsonl", [{"text": "x", "label": [None]}])
        with exits_with(65, r"b\.jsonl:1: column 'label' holds \[None\]: a train row must be labelled"):
            load(hidden, **COLUMNS)

    @parameterized.parameters(
        ("squad/squad", {"question": "Who?", "context": "Ann won.", "answers": {"text": [None, "Ann"]}}),
        ("super_glue/record", {"passage": "p", "query": "q", "entities": ["Ann"], "answers": [None, "Ann"]}),
        (
            "super_ni/english",
            {
                **{"task": "t", "definition": "Name her.", "input": "x", "output": [None, "Ann"]},
                **{"positive_examples": [], "negative_examples": []},
            },
        ),
    )
    def test_an_empty_cell_is_no_answer_of_a_benchmark(self, name, row):
        task = load_task(*name.split("/"))
        for split in ("train", "validation"):
            self.assertEqual([example.targets for example in task.examples(row, split)], ["Ann"])
        scores = [task.optimised(task.score([row], [answer])) for answer in ("Ann", "None")]
        self.assertEqual(scores, [100, 0])

    @parameterized.parameters("f1", "precision", "recall_macro", "mcc")
    def test_several_correct_texts_are_not_scored_by_a_metric_of_classes(self, metric):
        path = jsonl(folder() / "a.jsonl", [{"text": "x", "label": ["a", "b"]}])
        with exits_with(65, rf"a\.jsonl:1: .*{metric} of classes cannot score; for answers in text: squad_f1"):
            load(path, metrics=f"exact_match,{metric}", **COLUMNS)

    @parameterized.parameters(
        ("label", np.array(["a", "b"])),
        ("label.text", {"text": np.array(["a", "b"], dtype=object), "start": np.array([1, 2])}),
    )
    def test_lists_in_a_table_of_pandas_are_lists_of_answers_also_inside_objects(self, column, cell):
        table = pandas.DataFrame({"text": ["x"], "label": [cell]})
        task, (row,) = load_own_rows(table, text_column="text", target_column=column, no_eval=True)
        self.assertEqual(task.examples(row)[0].targets, "a")
        self.assertEqual(task.score([row], ["b"])["exact_match"], 100)

    def test_a_table_of_polars_is_rows(self):
        """A stand-in with what is used of polars' class."""
        schema = {"text": "String", "label": "Float32"}
        rows = [{"text": "x", "label": float(np.float32(0.1))}]
        table = SimpleNamespace(
            columns=list(schema), dtypes=list(schema.values()), schema=schema, to_dict=dict, to_dicts=lambda: rows
        )
        read_rows = load_own_rows(table, no_eval=True, metrics="pearson", **COLUMNS).rows
        self.assertEqual(read_rows, [{"text": "x", "label": 0.1}])

    @parameterized.parameters("PAR1–dependent signalling", "BZhou's café", "%PDF is no letter: ü")
    def test_a_text_may_begin_as_another_kind_of_file(self, text):
        path = write(folder() / "a.csv", f"text,label\n{text},bad\n".encode())
        self.assertEqual(load(path, **COLUMNS), [{"text": text, "label": "bad"}])

    @parameterized.parameters(
        ("moods/a.jsonl", "a"),
        ("moods/train.jsonl", "moods"),
        ("moods/Train.jsonl.gz", "moods"),
        ("moods/train-00000-of-00001.jsonl", "moods"),
        ("moods/dev-tickets.jsonl", "dev-tickets"),
        ("moods/training-notes.jsonl", "training-notes"),
    )
    def test_a_data_set_is_named_after_its_file_or_the_folder_of_a_file_that_names_a_split(self, file, name):
        path = jsonl(folder() / file, [{"text": "x", "label": "bad"}])
        self.assertEqual(load_own_rows(path, no_eval=True, **COLUMNS).task.name, name)
        self.assertEqual(load_own_rows(path, no_eval=True, **COLUMNS, dataset_name="feelings").task.name, "feelings")

    def test_the_folder_of_a_link_is_that_of_the_link(self):
        """As in the hub's cache, whose files are links into a folder of blobs."""
        root = folder()
        target = jsonl(root / "blobs" / "ab12.jsonl", [{"text": "x", "label": "bad"}])
        (root / "moods").mkdir()
        for name in ("train.jsonl", "train_1.jsonl"):
            (root / "moods" / name).symlink_to(target)
        self.assertEqual(load_own_rows(root / "moods/train.jsonl", no_eval=True, **COLUMNS).task.name, "moods")
        files = {"train_file": str(root / "moods/train_*.jsonl"), "data_format": "jsonl"}
        self.assertEqual(load_own_rows(no_eval=True, **files, **COLUMNS).task.name, "moods")

    def test_a_data_set_of_a_folder_has_its_name_or_that_of_the_folder_around_a_split(self):
        root = folder()
        jsonl(root / "moods" / "train" / "a.jsonl", [{"text": "x", "label": "bad"}])
        for train_dir in ("moods", "moods/train"):
            task = load_own_rows(train_dir=str(root / train_dir), data_format="jsonl", no_eval=True, **COLUMNS).task
            self.assertEqual(task.name, "moods")

    def test_a_field_that_is_a_number_is_learned_as_it_is_written(self):
        rows = [{"text": "x", "meta": {"score": score}} for score in (1, 2.5)]
        columns = {"text_column": "text", "target_column": "meta.score", "metrics": "pearson"}
        task, read_rows = load_own_rows(jsonl(folder() / "a.jsonl", rows), no_eval=True, **columns)
        self.assertEqual([task.examples(row)[0].targets for row in read_rows], ["1", "2.5"])

    @parameterized.parameters({}, {"metrics": "pearson"})
    def test_a_number_of_more_than_64_bits_is_learned_as_it_is_written(self, **flags):
        numbers = [10**20 - 1, 3, -(2**63) - 1]
        path = jsonl(folder() / "a.jsonl", [{"text": number, "label": number} for number in numbers])
        task, rows = load_own_rows(path, no_eval=True, **COLUMNS, **flags)
        texts = ["99999999999999999999", "3", "-9223372036854775809"]
        self.assertEqual([tuple(task.examples(row)[0]) for row in rows], [(text, text) for text in texts])

    @parameterized.parameters(("idx", 2**63), ("meta", {"label": "b", "ids": [1, -(2**63) - 1]}))
    def test_a_number_of_more_than_64_bits_in_another_column_is_named(self, column, cell):
        row = {"text": 10**20, "meta": {"label": "a", "ids": [2**63 - 1, 1]}, "idx": -(2**63)}
        columns = {"text_column": "text", "target_column": "meta.label"}
        self.assertLen(load(jsonl(folder() / "a.jsonl", [row]), **columns), 1)
        with exits_with(65, rf"^.*a\.jsonl:2: column '{column}' holds {re.escape(repr(cell))}"):
            load(jsonl(folder() / "a.jsonl", [row, {**row, column: cell}]), **columns)

    def test_two_columns_of_one_name_are_refused(self):
        for names in (["text", "label", "text"], ["text", 1, "1"]):
            with exits_with(65, "column .(text|1). is there for the second time"):
                load_own_rows(pandas.DataFrame([["a", "b", "c"]], columns=names), no_eval=True, **COLUMNS)

    def test_a_boolean_that_no_label_spells_is_refused(self):
        path = jsonl(folder() / "a.jsonl", [{"text": "x", "label": True}])
        with exits_with(65, "a.jsonl:1: label True in column 'label' is none of 0 yes, 1 no"):
            load_own_rows(path, labels="yes,no", no_eval=True, **COLUMNS)

    @parameterized.parameters(
        (1, "a,b", "b"), (True, "true,false", "true"), (False, "True,False", "False"),
        (True, "1,0", "1"), (1, "0.5,1.0", "1.0"), (0.5, "0.5,1.0", "0.5"), (1, "1.0,1", "1"),
    )  # fmt: skip
    def test_a_value_of_json_is_the_label_that_it_spells_also_in_a_field(self, value, labels, target):
        for column, row in (("label", {"label": value}), ("meta.mark", {"meta": {"mark": value, "by": "me"}})):
            path = jsonl(folder() / "a.jsonl", [{"text": "x", **row}])
            columns = {"text_column": "text", "target_column": column}
            task, (read_row,) = load_own_rows(path, labels=labels, no_eval=True, **columns)
            self.assertEqual(task.examples(read_row)[0].targets, target)
        path = jsonl(folder() / "a.jsonl", [{"row": {"text": "x", "label": value}}])
        columns = {"text_column": "row.text", "target_column": "row.label"}
        task, (read_row,) = load_own_rows(path, labels=labels, no_eval=True, **columns)
        self.assertEqual(task.examples(read_row)[0], ("x", target))
        self.assertFalse(task.is_labelled(load({"test": jsonl(path, [{"row": {"text": "x"}}])}, "test", **columns)[0]))

    @parameterized.parameters(
        ("txt", "label", "did you mean text"),
        ("text", "lable", "did you mean label"),
        ("text", "txt", "'txt' .--target_column.; there are the columns text, label$"),  # text is read already
        ("lable", "label", "'lable' .--text_column.; there are the columns text, label$"),
        ("text,label", "lable", "'lable' .--target_column.; there are the columns text, label$"),  # all are
        ("text", "text, label", "'text, label' .--target_column.*one target column, .*labels, commas between"),
    )
    def test_a_mistyped_column_is_answered_with_the_right_one(self, text, target, message):
        path = write(folder() / "a.csv", "text,label\nx,bad\n")
        with exits_with(65, rf"a\.csv: the first line names no column .*{message}"):
            load(path, text_column=text, target_column=target)

    @parameterized.parameters(
        ({"text": "x", "label": "y"}, {"text_column": "txet", **LABEL}, "'txet' .--text_column.; did you mean text"),
        ({"text": "x", "label": "y"}, {"text_column": "text", "target_column": "lable"}, "'lable' .--target_column.; "),
        (
            {"text": "x", "label": "y", "lang": "de"}, {**COLUMNS, "source_lang_column": "lng"},
            "'lng' .--source_lang_column.; did you mean lang",
        ),
        (
            {"text": "x", "label": "y", "lang": "de"}, {**COLUMNS, "target_lang_column": "lng"},
            "'lng' .--target_lang_column.; did you mean lang",
        ),
        (
            {"text": "x", "label": "y", "lang": "de"}, {**COLUMNS, "target_lang_column": "txt"},
            "'txt' .--target_lang_column.; there are the columns .*lang",
        ),
        (
            {"instruction": "x", "context": "y", "response": "z"}, {"data_format": "alpaca"},
            "'output', which --data_format alpaca reads; --data_format jsonl .*; there are the columns instruction, context, response$",
        ),
        (
            {"en": "x", "de": "y"}, {"data_format": "translation", "source_id": "en", "target_id": "de"},
            "'translation.en', which --data_format translation reads; --data_format jsonl .*; there are the columns en, de$",
        ),
    )  # fmt: skip
    def test_the_message_of_a_missing_column_names_the_flag_or_format_that_asks_for_it(self, row, flags, message):
        path = jsonl(folder() / "a.jsonl", [row])
        with exits_with(65, rf"a\.jsonl:1: no column {message}"):
            load(path, **flags)
        in_memory = message.partition("; ")[0]
        with exits_with(65, rf"^train row 0: no row has anything in column {in_memory}; "):
            load([row], **flags)

    @parameterized.parameters(
        ({"source_id": "en", "target_id": "de"}, "'translation.de' .--target_id de.; the rows have en, fr$"),
        ({"source_id": "eng", "target_id": "fr"}, "'translation.eng' .--source_id eng.; the rows have en, fr$"),
        ({}, "'translation.s' .--source_id s.; the rows have en, fr$"),
    )
    def test_the_message_of_a_missing_language_names_its_flag_and_those_of_the_rows(self, flags, message):
        rows = [{"translation": {"en": "Hello", "fr": "Salut"}}]
        for data in (rows, jsonl(folder() / "a.jsonl", rows)):
            with exits_with(65, f"no row has anything in column {message}"):
                load(data, data_format="translation", **flags)

    def test_the_message_of_a_missing_key_of_an_object_names_those_that_are_there(self):
        rows = [{"answers": {"text": "x", "start": 3}, "label": "a"}]
        with exits_with(65, r"'answers.txt' \(--text_column\); did you mean answers.text"):
            load(rows, text_column="answers.txt", **LABEL)

    @parameterized.parameters(
        ("JSONLines", "'input', which --data_class JSONLines reads; .* in its place .*; there are the columns answer, question$"),
        ("Alpaca", "'instruction', which --data_class Alpaca reads; .* in its place .*; there are the columns answer, question$"),
    )  # fmt: skip
    def test_the_message_of_a_class_names_it_where_its_rows_lack_a_column(self, name, message):
        path = jsonl(folder() / "train.jsonl", [{"question": "x", "answer": "y"}])
        with exits_with(65, rf"train\.jsonl:1: no row has anything in column {message}"):
            load(**of_class(name, path.parent))

    def test_the_message_of_a_format_names_the_columns_of_all_rows_and_of_many_the_first(self):
        rows = [{"instruction": "x", "context": "y"}, {"instruction": "x", "response": "z"}]
        with exits_with(
            65, "^train row 0: .*'output', which .*; there are the columns context, instruction, response$"
        ):
            load(rows, data_format="alpaca")
        path = jsonl(folder() / "a.jsonl", [{"instruction": "x"} | {f"c{number}": "y" for number in range(39)}])
        with exits_with(65, r"'output', which .*; there are the columns instruction, c0, .*, c28 and 10 more$"):
            load(path, data_format="alpaca")

    @parameterized.parameters(
        ({"text_column": "txet", **LABEL}, "'txet' .--text_column.; did you mean text"),
        ({"text_column": "text", "target_column": "lable"}, "'lable' .--target_column.; did you mean label"),
    )
    def test_a_missing_column_of_a_hub_data_set_is_told_with_its_flag(self, flags, message):
        path = jsonl(folder() / "train.jsonl", [{"text": "x", "label": "y"}])
        with exits_with(65, f"no (column|row has anything in column) {message}"):
            load(data_format="hub", hub_path=str(path.parent), **flags)

    def test_a_missing_column_of_running_text_is_told_with_its_flag(self):
        rows = [{"body": "x"}]
        lines = jsonl(folder() / "a.jsonl", rows)
        table = folder() / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
        for path, place in ((lines, r"a\.jsonl:1"), (table, r"a\.parquet")):
            with exits_with(65, rf"{place}: no column 'text' .--text_column.; choose from body"):
                load(path, data_format="text")
            self.assertEqual(load(path, data_format="text", text_column="body"), rows)

    @parameterized.parameters("jsonl", "csv", "tsv", "parquet", "translation", "alpaca", "text", "hub")
    def test_a_format_lacks_only_its_rows(self, kind):
        with exits_with(78, "--data_format( hub: give --hub_path| needs rows: give --train_file)"):
            load(data_format=kind)


class FilesTest(parameterized.TestCase):
    def test_a_row_s_own_idx_is_kept_beside_the_columns_that_are_read(self):
        rows = [{"idx": 7, "text": "x", "label": "a", "other": 1}]
        for data in (rows, jsonl(folder() / "a.jsonl", rows)):
            self.assertEqual(load(data, **COLUMNS), [{"text": "x", "label": "a", "idx": 7}])

    def test_an_idx_that_the_first_row_lacks_is_kept(self):
        rows = [{"text": "x", "label": "a"}, {"idx": 7, "text": "y", "label": "b"}]
        for data in (rows, jsonl(folder() / "a.jsonl", rows)):
            self.assertEqual([row["idx"] for row in load(data, **COLUMNS)], [None, 7])

    def test_all_files_of_a_split_follow_each_other_in_the_order_of_their_names(self):
        root = folder()
        for name in ("b", "a", "c"):
            jsonl(root / "train" / f"{name}.jsonl", [{"input": f"{name}{i}", "output": "x"} for i in range(3)])
        rows = load(**of_class("JSONLines", root))
        self.assertEqual([row["input"] for row in rows], [f"{n}{i}" for n in "abc" for i in range(3)])
        jsonl(root / "train" / "b.jsonl", [{"input": "b0", "output": "x"}, {"input": "b1", "output": None}])
        with exits_with(65, f"{root}/train/b.jsonl:2: "):
            load(**of_class("JSONLines", root))

    def test_the_splits_of_a_folder(self):
        for names, roles in (
            (["train/a.csv", "val/a.csv", "test/a.csv"], ["train", "validation", "test"]),
            (["train.csv", "dev.csv"], ["train", "validation"]),
            (["train-00000-of-00002.csv", "train-00001-of-00002.csv", "validation.csv"], ["train", "validation"]),
            (["some.csv", "others.csv"], ["train"]),
            (["training.csv", "notes.txt", ".hidden.csv"], ["train"]),
            (["Train.csv", "Valid.csv", "TEST-1.CSV"], ["train", "validation", "test"]),
            (["Train/a.csv", "Dev/a.csv"], ["train", "validation"]),
        ):
            root = folder()
            for name in names:
                write(root / name, "text,label\nx,a\n")
            data = load_own_rows(train_dir=root, data_format="csv", no_eval=True, **COLUMNS)
            self.assertEqual(splits_of(data.task), roles)

    def test_files_that_belong_to_none_of_a_folder_s_splits_are_named(self):
        root = folder()
        for name in ("train.csv", "train_2.csv", "test/a.csv", "notes.txt"):
            write(root / name, "text,label\nx,a\n")
        with self.assertLogs("t5suite", "WARNING") as logs:
            load(train_dir=root, data_format="csv", **COLUMNS)
        self.assertLen(
            [line for line in logs.output if "not read, because no split is named so: train_2.csv;" in line], 1
        )
        with self.assertNoLogs("t5suite", "WARNING"):
            load(train_file=root / "train_2.csv", train_dir=root, data_format="csv", **COLUMNS)

    def test_a_split_in_two_forms_is_refused(self):
        for names, message in (
            (("train/a.csv", "train.csv"), r"train/ and train\.\*; keep one"),
            (("Train.csv", "train-1.csv"), r"Train\.\* and train\.\*; keep one"),
        ):
            root = folder()
            for name in names:
                write(root / name, "text,label\nx,a\n")
            with exits_with(65, message):
                load(train_dir=root, data_format="csv", **COLUMNS)

    def test_the_format_of_a_folder_is_that_of_the_files_in_its_splits(self):
        root = folder()
        write(root / "Train" / "a.csv", "text,label\nx,a\n")
        self.assertEqual(load(str(root), **COLUMNS), [{"text": "x", "label": "a"}])

    def test_a_file_of_the_folder_that_a_flag_names_for_one_split_is_in_no_other(self):
        for names in (("a.csv", "b.csv", "last.csv"), ("train/a.csv", "train/b.csv", "train/last.csv")):
            root = folder()
            for name in names:
                write(root / name, f"text,label\n{Path(name).stem},x\n")
            flags = {"train_dir": root, "data_format": "csv", **COLUMNS}
            for role, no_eval in (("validation", False), ("test", True)):
                flags_of_role = {**flags, f"{role}_file": root / names[2], "no_eval": no_eval}
                for split, texts in (("train", ["a", "b"]), (role, ["last"])):
                    rows = load_own_rows(None, split, **flags_of_role).rows
                    self.assertEqual([row["text"] for row in rows], texts)

    @parameterized.parameters(
        (["train_data.csv", "test_data.csv"], "also test_data.csv;"),
        (["a.csv", "a-dev.csv", "reviews.Val2.csv"], "also a-dev.csv, reviews.Val2.csv;"),
        (["a.csv", "testimonials.csv", "devices.csv", "values.csv"], None),
        (["train.csv", "test.csv"], None),
    )
    def test_a_training_file_of_a_folder_that_is_named_as_if_it_were_held_out_is_said(self, names, message):
        root = folder()
        for name in names:
            write(root / name, "text,label\nx,a\n")
        flags = {"train_dir": root, "data_format": "csv", **COLUMNS}
        if message is None:
            with self.assertNoLogs("t5suite", "WARNING"):
                load(**flags)
            return
        with self.assertLogs("t5suite", "WARNING") as logs:
            load(**flags)
        self.assertIn(f"--train_dir {root}: its files are trained on, {message}", logs.output[0])
        with self.assertNoLogs("t5suite", "WARNING"):
            load(train_file=root / names[1], **flags)

    @parameterized.parameters({"benchmark": "mini"}, {"data_format": "jsonl"})
    def test_for_a_folder_the_flag_of_folders_is_named(self, **flags):
        with exits_with(78, "--train_file .* is a folder; .*--train_dir"):
            load(train_file=tempfile.mkdtemp(), **flags)

    @parameterized.parameters("reviews.csv", "reviews.tsv.gz", "reviews.parquet")
    def test_a_file_that_holds_no_benchmark_s_rows_names_the_flag_that_reads_it(self, name):
        path = Path(tempfile.mkdtemp()) / name
        path.write_text("text,label")
        form = name.split(".")[1]
        with exits_with(78, f"--train_file .*{name}: .*--data_format {form}"):
            load(benchmark="mini", train_file=path)


class TasksTest(parameterized.TestCase):
    """What a model reads and writes of such rows, and how it is scored."""

    def task(self, rows, labels=None, columns=("text",), **flags) -> tuple[Task, list]:
        path = jsonl(folder() / "rows.jsonl", rows)
        settings = {"text_column": columns, "target_column": "label", "labels": labels, "no_eval": True}
        return load_own_rows(path, **{name: value for name, value in settings.items() if value is not None}, **flags)

    def test_labels_make_a_task_of_classes(self):
        task, rows = self.task([{"text": "x", "label": "good"}, {"text": "y", "label": "bad"}], ("bad", "good"))
        self.assertEqual([task.examples(row)[0].targets for row in rows], ["good", "bad"])
        self.assertEqual(task.value_kind, "class")
        self.assertEqual(task.score(rows, ["good", "good"]), {"accuracy": 50.0, "invalid_rate": 0.0})

    @parameterized.parameters((None, True), ("micro_f1,macro_f1", False))
    def test_lists_of_answers_that_may_be_meant_as_sets_are_named(self, metrics, is_named):
        rows = [{"text": "x", "label": ["late"]}, {"text": "y", "label": ["late", "broken"]}]
        with self.assertLogs("t5suite", "INFO") as logs:
            self.task(rows, metrics=metrics)
        lines = [line for line in logs.output if "is a list" in line]
        self.assertLen(lines, int(is_named))
        if is_named:
            self.assertRegex(lines[0], "rows.jsonl:2: 'label' is a list")

    @parameterized.parameters(
        # Two parts come in either order, with cells that have no label.
        (["late", "rude", "late; rude", "[]", "rude; late", "late; broken", "[]", "rude; broken"], True),
        (["late", "rude", "broken", "late|rude", "late|broken", "late|rude"], True),  # each part stands alone
        (["[]"], False),
        (["12,50 \u20ac", "12,90 \u20ac", "50,90 \u20ac", "50,50 \u20ac", "50 \u20ac"], False),
        (["May 3, 1999", "May 4, 1999", "May 3, 2000", "May 4, 2000", "2000"], False),
        (["Doe, Ann", "Doe, Joe", "Roe, Ann", "Roe, Joe", "Ann"], False),
        (["Yes", "No", "Yes, please", "No, please", "Yes, sir", "No, sir"], False),
        (["pop", "push a; add", "push a; pop", "push a; add; pop", "push b; add", "push b; pop"], False),
    )
    def test_texts_that_look_like_sets_are_named(self, cells, is_named):
        rows = [{"text": f"text {number}", "label": cell} for number, cell in enumerate(3 * cells)]
        with self.assertLogs("t5suite", "INFO") as logs:
            self.task(rows)
        self.assertEqual("looks like a set of labels" in "\n".join(logs.output), is_named)

    @parameterized.parameters(
        ([2, 3.5, -4], None, True),
        (["2", " 3.5", "-1e3"], None, True),
        ([2, 3.5, -4], "pearson", False),
        ([2, 3.5, -4], "exact_match", False),
        (["2", "3.5", "two"], None, False),
        ([True, False, True], None, False),
    )
    def test_numbers_that_are_learned_as_texts_are_named(self, numbers, metrics, is_named):
        rows = [{"text": text, "label": number} for text, number in zip("abc", numbers, strict=True)]
        with self.assertLogs("t5suite", "INFO") as logs:
            self.task(rows, metrics=metrics)
        self.assertEqual("'label' holds numbers" in "\n".join(logs.output), is_named)

    @parameterized.parameters(
        ("f1,exact_match", ["3 pm", "noon", "never", "noon"], None, True),
        ("recall_macro", ["3 pm", "noon", "never", "noon"], None, True),
        ("mcc", ["3 pm", "noon", "never", "noon"], None, True),
        ("f1,exact_match", ["open", "shut", "open", "shut"], None, False),
        ("f1,exact_match", ["3 pm", "noon", "never", "noon"], ("3 pm", "never", "noon"), False),
        ("squad", ["3 pm", "noon", "never", "noon"], None, False),
        ("micro_f1", ["late, rude", "late", "rude"], None, False),
    )
    def test_texts_of_which_each_would_be_a_class_are_named(self, metrics, answers, labels, are_named):
        rows = [{"text": f"text {number}", "label": answer} for number, answer in enumerate(answers)]
        with self.assertLogs("t5suite", "INFO") as logs:
            self.task(rows, labels, metrics=metrics)
        lines = [line for line in logs.output if "--metrics squad_f1" in line]
        self.assertLen(lines, int(are_named), logs.output)
        if are_named:
            self.assertRegex(lines[0], rf"WARNING.*'label' holds 3 .* 4 rows, .* in {metrics.partition(',')[0]};")

    @parameterized.parameters(("tsv", True), ("csv", False))
    def test_a_table_of_tabs_with_the_quotes_of_csv_is_named_where_they_stay_in_the_text(self, suffix, is_named):
        path = folder() / f"rows.{suffix}"
        rows = pandas.DataFrame({"text": ["plain", 'I "like" it', "last"], "label": ["a", "b", "c"]})
        rows.to_csv(path, sep="\t", index=False)
        with self.assertLogs("t5suite", "INFO") as logs:
            _, read = load_own_rows(path, text_column="text", target_column="label", no_eval=True)
        text = "\n".join(logs.output)
        self.assertEqual(f"rows.{suffix}:3: a text is quoted as in CSV" in text, is_named, text)
        self.assertEqual(read[1]["text"], '"I ""like"" it"' if is_named else 'I "like" it')

    def test_templates_stand_around_both_sides_and_metrics_see_what_is_inside(self):
        formats = {"input_format": ["q: __input__ a:"], "output_format": ["<__output__>"]}
        for labels in (None, ("bad", "good")):
            task, rows = self.task([{"text": "x", "label": "good"}, {"text": "y", "label": "bad"}], labels, **formats)
            self.assertEqual(task.examples(rows[0])[0], ("q: x a:", "<good>"))
            scores = task.score(rows, ["<good>", "bad"])
            self.assertEqual(scores["accuracy" if labels else "exact_match"], 50.0 if labels else 100.0)
        self.assertEqual(task.candidates(rows[0]), ["<bad>", "<good>"])

    @parameterized.named_parameters(
        ("as a shell passes it", r"Do\n: ", r"\\nabla\t__input__\d", r"\n__output__"),
        ("as YAML has it", "Do\n: ", "\\\\nabla\t__input__\\d", "\n__output__"),
    )
    def test_a_line_break_in_a_prefix_or_template_is_one(self, prefix, reads, writes):
        config = folder() / "run.yaml"
        jsonl(config.parent / "rows.jsonl", [{"text": "x", "label": "good"}] * 40)
        flags = {"data_format": "jsonl", "train_file": f"{config.parent}/rows.jsonl", "target_column": "label"}
        flags |= {"text_column": "text", "prefix": prefix, "input_format": [reads], "output_format": [writes]}
        config.write_text(yaml.safe_dump(flags))
        task, rows = load_own_rows(config=config, no_eval=True)
        self.assertEqual(task.examples(rows[0])[0], ("Do\n: \\nabla\tx\\d", "\ngood"))

    def test_several_columns_are_named_in_the_input(self):
        task, rows = self.task([{"question": "Why?", "context": "So.", "label": "x"}], columns=("question", "context"))
        self.assertEqual(task.examples(rows[0])[0].inputs, "question: Why? context: So.")

    def test_metrics(self):
        rows = [{"text": "x", "label": "It is so."}]
        self.assertEqual(self.task(rows)[0].entry["metric_to_optimize"], "average")
        self.assertEqual(self.task(rows, metrics="bleu")[0].entry["metric_to_optimize"], "bleu")
        self.assertEqual(list(self.task(rows, metrics="rouge,bleu")[0].score(rows, ["It is so."])),
                         ["rouge1", "rouge2", "rougeLsum", "bleu"])  # fmt: skip
        self.assertEqual(self.task(rows, metrics="none")[0].score(rows, ["x"]), {})
        with exits_with(78, "--metrics: unknown metric 'rogue'; did you mean rouge"):
            self.task(rows, metrics="rogue")

    @parameterized.parameters("mae", "RMSE")
    def test_an_unknown_metric_is_refused_with_the_nearest_and_with_those_that_the_rows_can_have(self, metric):
        rows = [{"text": "x", "label": 4.5}]
        with exits_with(
            78, f"--metrics: unknown metric '{metric}'; the nearest is neg_mean_absolute_error; for numbers"
        ):
            self.task(rows, metrics=metric)
        labels = {"labels": "4.5,5"}
        for flags in ({}, labels):
            with self.assertRaises(ValueError) as refused:
                self.task(rows, metrics="xyz", **flags)
            self.assertIn("accuracy", str(refused.exception))
            for part in str(refused.exception).split("; ")[1:]:
                kind, names = part.split(": ")
                needed = labels if kind == "with a list of labels" else flags
                for name in set(names.split(", ")) - {"token_accuracy", "token_f1_macro", "span_f1"}:  # of task files
                    self.assertEqual(self.task(rows, metrics=name, **needed)[0].entry["metric_names"], [name])

    def test_a_bad_row_is_named(self):
        for rows, message in (
            (
                [{"text": "x", "label": "a"}, {"text": "y"}],
                r"rows\.jsonl:2: column 'label' is empty: a train row must",
            ),
            ([{"text": "x", "label": "a"}, {"txt": "y", "label": "a"}], r"rows\.jsonl:2: no column 'text'"),
            (
                [{"text": "x", "label": "a"}, {"text": None, "label": "a"}],
                r"rows\.jsonl:2: column 'text' is null; write \"\" ",
            ),
            ([{"text": "x", "label": "worse"}], r"rows\.jsonl:1: label 'worse' in column 'label' is none of 0 bad"),
        ):
            with exits_with(65, message):
                self.task(rows, ("bad", "good", "a") if "worse" not in str(rows) else ("bad", "good"))

    def test_translation(self):
        path = jsonl(folder() / "a.jsonl", [{"translation": {"en": "Good.", "de": "Gut.", "fr": "Bon."}}])
        flags = {"data_format": "translation", "source_id": "en", "target_id": "de", "no_eval": True}
        task, (row,) = load_own_rows(path, input_format=["translate English to German: __input__"], **flags)
        self.assertEqual(task.examples(row)[0], ("translate English to German: Good.", "Gut."))
        self.assertEqual(list(task.score([row], ["Gut."])), ["bleu", "chrf"])
        self.assertAlmostEqual(task.score([row], ["Gut."])["chrf"], 100.0)
        without_german = jsonl(folder() / "b.jsonl", [{"translation": {"en": "Good."}}])
        with exits_with(65, r"b\.jsonl:1: .*translation\.de"):
            load_own_rows(without_german, **flags)

    @parameterized.parameters(
        (["bad", "good"], None, "good"), (["1", "0"], None, "0"), (["bad", "good"], "good,bad", "good"),
        (["1 star", "2 stars"], "bad,good", "good"), (["1 star", "2 stars"], "1,2", "2"),
    )  # fmt: skip
    def test_class_ids_of_a_hub_data_set_become_label_words(self, names, labels, second):
        """They are the data set's own names if those are labels, else the labels by their places."""
        import datasets

        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        rows = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [1, -1]}, features=features)
        place = folder()
        rows.select([0]).to_parquet(place / "train.parquet")
        rows.select([1]).to_parquet(place / "test.parquet")
        flags = {"data_format": "hub", "hub_path": place, "no_eval": True, "labels": labels, **COLUMNS}
        task, (row,) = load_own_rows(**flags)
        self.assertEqual(task.label_words, labels.split(",") if labels else names)
        self.assertEqual(task.examples(row)[0].targets, second)
        task, (hidden_row,) = load_own_rows(None, "test", **flags)
        self.assertFalse(task.is_labelled(hidden_row))

    def test_class_ids_become_the_words_of_their_names_in_nested_columns_and_in_parquet_files(self):
        """Whatever the order of `--labels`; class 0 is `neg`."""
        import datasets

        mark = datasets.ClassLabel(names=["neg", "pos"])
        features = datasets.Features(text=datasets.Value("string"), label=mark, meta={"label": mark})
        cells = {"text": ["bad"], "label": [0], "meta": [{"label": 0}]}
        rows = datasets.Dataset.from_dict(cells, features=features)
        path = folder() / "train.parquet"
        rows.to_parquet(path)
        for column in ("label", "meta.label"):
            flags = {"text_column": "text", "target_column": column, "no_eval": True}
            for source in ({"data": rows}, {"data_format": "hub", "hub_path": path.parent}):
                self.assertEqual(load_own_rows(**source, **flags).task.label_words, ["neg", "pos"], column)
            flags["labels"] = "pos,neg"
            for own_rows in (
                load_own_rows(rows, **flags),
                load_own_rows(data_format="hub", hub_path=path.parent, **flags),
                load_own_rows(path, **flags),
            ):
                self.assertEqual(own_rows.task.examples(own_rows.rows[0])[0].targets, "neg", column)

    def test_a_parquet_file_with_types_of_a_newer_datasets_is_read(self):
        types = {"text": {"_type": "FromTheFuture"}, "label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
        table = pyarrow.table({"text": ["bad"], "label": [0]})
        metadata = {"huggingface": json.dumps({"info": {"features": types}})}
        path = folder() / "train.parquet"
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
        task, (row,) = load_own_rows(path, labels="pos,neg", no_eval=True, **COLUMNS)
        self.assertEqual(task.examples(row)[0], ("bad", "neg"))

    def test_of_two_names_of_a_split_a_hub_data_set_is_read_by_the_first(self):
        place = folder()
        names = ("dev", "train", "validation")
        for name in names:
            jsonl(place / f"{name}.jsonl", [{"text": name, "label": "a"}])
        splits = [{"split": name, "path": f"{name}.jsonl"} for name in names]
        settings = yaml.safe_dump({"configs": [{"config_name": "default", "data_files": splits}]})
        write(place / "README.md", f"---\n{settings}---\n")
        (row,) = load(None, "validation", data_format="hub", hub_path=place, **COLUMNS)
        self.assertEqual(row["text"], "validation")

    def test_a_folder_of_a_hub_data_set_is_read_again_where_its_rows_have_changed(self):
        place = folder()
        flags = {"data_format": "hub", "hub_path": place, **COLUMNS}
        for text in ("old", "new"):
            jsonl(place / "train.jsonl", [{"text": text, "label": "a"}])
            (row,) = load(**flags)
            self.assertEqual(row["text"], text)

    def test_cells_of_csv_whose_types_datasets_guesses_give_a_warning(self):
        place = folder()
        write(place / "train.csv", "text,label\n007,1.50\n")
        with self.assertLogs("t5suite", "WARNING") as logs:
            (guessed_row,) = load(data_format="hub", hub_path=str(place), **COLUMNS)
        self.assertIn(f"--data_format csv --train_dir {place} reads cells as they are written", logs.output[0])
        self.assertEqual(str(guessed_row["text"]), "7")
        (row,) = load(data_format="csv", train_dir=str(place), **COLUMNS)
        self.assertEqual((row["text"], row["label"]), ("007", "1.50"))

    @parameterized.parameters(("NA,a", "text"), ("x,None", "label"), ("x,", "label"))
    def test_a_cell_of_csv_that_datasets_reads_as_empty_names_what_it_reads_so(self, cells, column):
        place = write(folder() / "train.csv", f"text,label\ny,b\n{cells}\n").parent
        message = f"train row 1: column '{column}' is empty, .*NA, None and null.*--train_dir {place}"
        with exits_with(65, message):
            load(data_format="hub", hub_path=place, **COLUMNS)

    def test_a_folder_of_a_hub_data_set_whose_splits_differ_in_columns_is_bad_data(self):
        place = folder()
        write(place / "train.csv", "text,label\nx,a\ny,b\n")
        write(place / "test.csv", "review,label\nx,a\ny,b\n")
        with exits_with(65, f"{place}: .*columns"):
            load(data_format="hub", hub_path=place, **COLUMNS)

    def test_a_full_disk_while_the_rows_of_a_folder_are_cached_is_named(self):
        place = jsonl(folder() / "train.jsonl", [{"text": "x", "label": "a"}]).parent
        full = OSError(errno.ENOSPC, "No space left on device")
        with (
            mock.patch("datasets.arrow_writer.ArrowWriter.write_table", side_effect=full),
            mock.patch("datasets.arrow_writer.ArrowWriter.write_row", side_effect=full),
            exits_with(74, f"{place}: .*No space left"),
        ):
            load(data_format="hub", hub_path=place, **COLUMNS)

    @parameterized.parameters(
        (["one", "two", "three"], "class id 2, but there are 2 labels .1, 2.: name a label for every class"),
        (["1", "3", "2"], "label '3' in column 'label' is none of 1, 2 "),
    )
    def test_a_class_of_a_hub_data_set_without_a_label_is_refused(self, names, message):
        import datasets

        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=names))
        rows = datasets.Dataset.from_dict({"text": ["x"] * 3, "label": [0, 1, 2]}, features=features)
        place = folder()
        rows.to_parquet(place / "train.parquet")
        flags = {"data_format": "hub", "hub_path": place, "no_eval": True, "labels": "1,2", **COLUMNS}
        with exits_with(65, message):
            load_own_rows(**flags)

    def test_lists_of_class_ids_become_sets_of_labels_and_images_beside_them_are_not_decoded(self):
        """Of a hub data set, and of one in memory."""
        import datasets

        feature = datasets.List(datasets.ClassLabel(names=["broken", "late", "rude"]))
        features = datasets.Features(text=datasets.Value("string"), label=feature, photo=datasets.Image())
        no_image = {"bytes": b"none", "path": None}
        cells = {"text": ["x"], "label": [[2, 0]], "photo": [no_image]}
        rows = datasets.Dataset.from_dict(cells, features=features)
        place = folder()
        rows.to_parquet(place / "train.parquet")
        flags = {"metrics": "micro_f1", "no_eval": True, **COLUMNS}
        for task, (row,) in (
            load_own_rows(data_format="hub", hub_path=place, **flags),
            load_own_rows(rows, **flags),
        ):
            self.assertEqual(task.examples(row)[0].targets, "broken, rude")

    def test_labels_none_makes_free_text_of_the_names_of_classes(self):
        """Of a hub data set, and of one in memory; rows without names of classes are what they were."""
        import datasets

        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
        rows = datasets.Dataset.from_dict({"text": ["x"], "label": [1]}, features=features)
        place = folder()
        rows.to_parquet(place / "train.parquet")
        flags = {"labels": "none", "no_eval": True}
        pair = {"translation": {"s": "x", "t": "good"}}
        for loaded, metrics in (
            (load_own_rows(data_format="hub", hub_path=place, **COLUMNS, **flags), ["exact_match", "rouge"]),
            (load_own_rows(rows, **COLUMNS, **flags), ["exact_match", "rouge"]),
            (load_own_rows([pair], data_format="translation", **flags), ["bleu", "chrf"]),
        ):
            task, (row,) = loaded
            self.assertEqual((task.entry["labels"], task.entry["metric_names"]), (None, metrics))
            self.assertEqual(task.examples(row)[0], ("x", "good"))

    @parameterized.parameters(
        ("jsonl", {"input": "x", "output": 3}),
        ("translation", {"translation": {"s": "x", "t": 3}}),
        ("alpaca", {"instruction": "x", "output": 3}),
    )
    def test_labels_and_columns_of_languages_are_read_in_every_format(self, data_format, row):
        row = {**row, "lang": "deu_Latn", "meta": {"lang": "fra_Latn"}}
        languages = {"source_lang_column": "lang", "target_lang_column": "meta.lang"}
        with self.assertNoLogs("t5suite", "WARNING"):
            task, (read,) = load_own_rows([row], data_format=data_format, labels="3,1", no_eval=True, **languages)
        self.assertEqual(task.examples(read)[0].targets, "3")
        self.assertEqual((read["lang"], read["meta"]), ("deu_Latn", {"lang": "fra_Latn"}))

    def test_alpaca(self):
        path = jsonl(folder() / "a.jsonl", [{"instruction": "Name it.", "input": "a cat", "output": " Tom "},
                                             {"instruction": "Sing.", "input": "", "output": "La"}])  # fmt: skip
        task, rows = load_own_rows(path, data_format="alpaca", no_eval=True)
        examples = [task.examples(row)[0] for row in rows]
        self.assertEqual(examples[0], ("Name it.\ninput: a cat\noutput:", "Tom"))
        self.assertEqual(examples[1], ("Sing.\noutput:", "La"))


class OtherRowsTest(parameterized.TestCase):
    """A trained model's other rows are read as those of its training, unless flags say otherwise."""

    def read_for(self, task, data, card: dict | None = None, **flags):
        """`(task, rows)` of validation rows for a model that was trained on the task, and whose card has these fields."""
        model = save_model(folder() / "model", tasks=[task])
        fields = json.loads((model / "task.json").read_text()) | (card or {})
        (model / "task.json").write_text(json.dumps(fields))
        flags = {"model_name_or_path": str(model), "eval_only": True, **flags}
        return load_own_rows({"validation": data}, "validation", **flags)

    @parameterized.parameters(("alpaca", "rows.jsonl"), ("jsonl", "rows.jsonl"), ("csv", "rows.csv"))
    def test_instructions_keep_their_inputs_in_every_format(self, data_format, name):
        row = {"instruction": "Name it.", "input": "a cat", "output": "Tom"}
        path = folder() / name
        if data_format == "csv":
            pandas.DataFrame([row]).to_csv(path, index=False)
        else:
            jsonl(path, [row])
        trained = Task("own", "a", load_own_rows([row], data_format="alpaca", no_eval=True).task.entry)
        task, (read_row,) = self.read_for(trained, path, data_format=data_format)
        self.assertEqual(task.examples(read_row)[0], ("Name it.\ninput: a cat\noutput:", "Tom"))

    @parameterized.parameters(
        ("summarize:", True), ("Sum", True), ("summarize: ", False), ("sum:\\n", False), ("<2de>", False), ("摘要", False),
    )  # fmt: skip
    def test_a_prefix_that_would_be_written_together_with_the_text_gives_a_warning(self, prefix, warns):
        row = {"text": "Good.", "label": "good"}
        if not warns:
            with self.assertNoLogs("t5suite", "WARNING"):
                load_own_rows([row], no_eval=True, prefix=prefix, **COLUMNS)
            return
        with self.assertLogs("t5suite", "WARNING") as logs:
            load_own_rows([row], no_eval=True, prefix=prefix, **COLUMNS)
        self.assertIn(f"{prefix}Some text", logs.output[0])

    def test_translations_have_the_model_s_languages_or_those_of_the_flags(self):
        path = jsonl(folder() / "a.jsonl", [{"translation": {"en": "Good.", "de": "Gut."}}])
        languages = {"data_format": "translation", "source_id": "en", "target_id": "de"}
        trained = load_own_rows(path, no_eval=True, prefix="translate: ", **languages).task
        for flags in ({"data_format": "translation"}, languages):
            task, (row,) = self.read_for(trained, path, **flags)
            self.assertEqual(task.examples(row)[0], ("translate: Good.", "Gut."))
        task, (row,) = self.read_for(trained, path, data_format="translation", source_id="de", target_id="en")
        self.assertEqual(task.examples(row)[0], ("Gut.", "Good."))

    def test_a_column_of_languages_is_read_as_it_was_in_training(self):
        row = {"text": "Good.", "label": "Gut.", "lang": "deu_Latn"}
        trained = load_own_rows([row], no_eval=True, **COLUMNS).task
        languages = {"languages": {"target_lang_column": "lang"}}
        for flags in ({}, COLUMNS):
            self.assertEqual(self.read_for(trained, [row], languages, **flags).rows, [row])
        without_column = {name: row[name] for name in ("text", "label")}
        read_again = self.read_for(trained, [without_column], languages, target_lang="fra_Latn")
        self.assertEqual(read_again.rows, [without_column])

    def test_a_function_of_metrics_is_added_to_the_model_s_task(self):
        row = {"text": "Good.", "label": "good"}
        trained = load_own_rows([row], labels="bad,good", no_eval=True, **COLUMNS).task
        for metrics in ("my_metrics:length_match", "evaluate:./my_metric"):
            task, rows = self.read_for(trained, [row], metrics=metrics)
            self.assertEqual((task.label_words, rows), (["bad", "good"], [row]))

    @parameterized.parameters(
        (dict(prefix="sum: "), "bleu", ["bleu"]),
        (dict(metrics="rouge"), "exact_match,chrf,my_metrics:length_match", ["exact_match", "chrf"]),
        (dict(labels="bad,good", input_format="Q: __input__?"), "f1_macro", ["f1_macro"]),
        (dict(output_format="A: __output__"), "none", []),
    )
    def test_metrics_of_a_flag_replace_those_of_the_model_s_task_and_nothing_else(self, trained, metrics, names):
        row = {"text": "Good.", "label": "good"}
        task = load_own_rows([row], no_eval=True, **COLUMNS, **trained).task
        for flags in ({}, COLUMNS):
            with self.assertNoLogs("t5suite", "WARNING"):
                scored, rows = self.read_for(task, [row], metrics=metrics, **flags)
            self.assertEqual((scored.entry["metric_names"], rows), (names, [row]))
            self.assertEqual(scored.examples(row), task.examples(row))
            self.assertEqual(scored.label_words, task.label_words)

    @parameterized.parameters(
        ("sets of labels", dict(metrics="micro_f1,subset_accuracy"), {"late, broken": "broken, late", "rude": "rude"},
         ("macro_f1", "exact_match,micro_f1"), ("exact_match", "rouge", "accuracy", "none", "micro_f1,pearson")),
        ("numbers", dict(metrics="pearson"), {"3.50": "3.50", "1": "1"},
         ("spearman", "pearson,accuracy"), ("exact_match", "f1", "none", "micro_f1", "pearson,bleu")),
        ("labels", dict(labels="good,bad"), {"bad": "bad", "good": "good"},
         ("f1_macro", "exact_match"), ("rouge", "micro_f1", "f1_macro,bleu")),
        ("texts", {}, {"late, broken": "late, broken", "not so bad": "not so bad"},
         ("exact_match", "rouge1,rougeLsum"), ("micro_f1", "macro_f1,bleu", "pearson", "rouge,pearson")),
    )  # fmt: skip
    def test_metrics_of_a_flag_keep_the_kind_of_the_model_s_answers(self, kind, trained, targets, fitting, others):
        """Right answers are right by each metric that fits; others are refused with their names and the kind."""
        rows = [{"text": "Good.", "label": label} for label in targets]
        task = load_own_rows(rows, no_eval=True, **COLUMNS, **trained).task
        for metrics in fitting:
            scored, read_rows = self.read_for(task, rows, metrics=metrics)
            answers = [scored.examples(row)[0].targets for row in read_rows]
            self.assertEqual(answers, list(targets.values()))
            scores = {name: round(points, 6) for name, points in scored.score(read_rows, answers).items()}
            scores.pop("invalid_rate", None)
            self.assertEqual(scores, dict.fromkeys(metrics.split(","), 100))
        for metrics in others:
            with exits_with(78, rf"^--metrics {metrics}: .*{kind}"):
                self.read_for(task, rows, metrics=metrics)

    @parameterized.parameters(
        (dict(prefix="sum: ", metrics="rouge"), {}, ["prefix='sum: '", "metrics='rouge'"]),
        (dict(prefix="sum: ", metrics="rouge"), dict(metrics="bleu"), ["prefix='sum: '"]),
        (dict(prefix="sum: ", metrics="rouge"), dict(prefix="", metrics="bleu"), []),
        (dict(labels="bad,good", metrics="f1_macro"), {}, ["labels='bad,good'", "metrics='f1_macro'"]),
        (dict(labels="bad,good", metrics="f1_macro"), dict(labels="none"), []),
        (dict(metrics="bleu"), dict(labels="bad,good"), []),
        (dict(input_format="Q: __input__?", output_format="A: __output__"), {},
         ["input_format='Q: __input__?'", "output_format='A: __output__'"]),
        ({}, {}, []),
    )  # fmt: skip
    def test_a_warning_names_what_other_rows_do_not_take_of_the_model_s_task(self, trained, flags, unused):
        row = {"text": "Good.", "label": "good"}
        task = load_own_rows([row], no_eval=True, **COLUMNS, **trained).task
        for eval_only in (False, True):
            with self.assertLogs("t5suite", "WARNING") as logs:
                logging.getLogger("t5suite").warning("one that is there in any case")
                self.read_for(task, [row], eval_only=eval_only, **COLUMNS, **flags)
            warnings = [record.getMessage() for record in logs.records[1:]]
            named = [re.search(r"the model's task: (.*?)\. Give", warning)[1].split(", ") for warning in warnings]
            is_model_s_own_task = eval_only and flags.keys() <= {"metrics"}
            self.assertEqual(named, [unused] if unused and not is_model_s_own_task else [])
            for warning in warnings:
                self.assertEqual("the model's own task is scored" in warning, eval_only)
        without_columns = [{"input": "Good.", "output": "good"}]
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.read_for(task, without_columns, eval_only=False, **trained)
        self.assertIn(": text_column='text', target_column='label'. Give", logs.records[0].getMessage())

    @parameterized.parameters(
        dict(metrics="micro_f1,macro_f1"), dict(metrics="pearson"), dict(metrics="bleu", prefix="sum: "),
        dict(labels="1,2", metrics="f1_macro"),
    )  # fmt: skip
    def test_settings_that_the_model_s_task_has_itself_change_nothing(self, **trained):
        row = {"text": "Good.", "label": "1"}
        task = load_own_rows([row], no_eval=True, **COLUMNS, **trained).task
        for flags in ({}, COLUMNS, trained, {**COLUMNS, **trained}):
            scored = self.read_for(task, [row], **flags).task
            self.assertEqual(scored.entry["metric_names"], task.entry["metric_names"], flags)
            self.assertEqual(scored.examples(row), task.examples(row), flags)

    @parameterized.parameters(
        (dict(labels='"bad, very",good', text_column='"Text, long",text'),
         "text_column='\"Text, long\",text', labels='\"bad, very\",good'"),
        (dict(labels='"so ""called""",good'), "text_column='text', labels='\"so \"\"called\"\"\",good'"),
    )  # fmt: skip
    def test_words_with_commas_and_quotes_are_named_as_flags_read_them(self, trained, expected):
        row = {"Text, long": "Very.", "text": "Good.", "input": "Good.", "label": "good"}
        task = load_own_rows([row], no_eval=True, **(COLUMNS | trained)).task
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.read_for(task, [row], eval_only=False, **LABEL)
        self.assertIn(f"task: {expected}. Give", logs.records[0].getMessage())

    @parameterized.parameters(*itertools.permutations(("alpaca", "jsonl", "text", "translation"), 2))
    def test_a_format_s_own_settings_are_not_named_to_rows_of_another_format(self, trained, now):
        text = folder() / "text.txt"
        text.write_text("A text.\n")
        rows = {
            "alpaca": [{"instruction": "Name it.", "input": "a cat", "output": "Tom"}],
            "jsonl": [{"input": "Good.", "output": "Gut."}],
            "text": str(text),
            "translation": [{"translation": {"en": "Good.", "de": "Gut."}}],
        }
        flags = {name: {"data_format": name} for name in rows}
        flags["translation"] |= {"source_id": "en", "target_id": "de"}
        task = load_own_rows(rows[trained], no_eval=True, **flags[trained]).task
        with self.assertNoLogs("t5suite", "WARNING"):
            self.read_for(task, rows[now], eval_only=False, **flags[now])


class HeldOutTest(parameterized.TestCase):
    """Where there is no validation split, a part of the training rows is one, and is never trained on."""

    def parts(self, seed=1, count=100, **flags) -> list[list[str]]:
        """The answers of the training rows and of those that are held out."""
        rows = [{"input": f"text {i % 60}", "output": str(i)} for i in range(count)]
        loaded = [load_own_rows(rows, role, seed=seed, **flags).rows for role in ("train", "validation")]
        return [[row["output"] for row in part] for part in loaded]

    def test_every_row_is_on_one_side_and_no_input_on_both(self):
        train, validation = self.parts(validation_split=0.3)
        self.assertEqual(sorted([*train, *validation], key=int), [str(i) for i in range(100)])
        self.assertEmpty({int(i) % 60 for i in train} & {int(i) % 60 for i in validation})
        self.assertBetween(len(validation), 28, 30)

    def test_the_seed_alone_decides(self):
        self.assertEqual(self.parts(seed=3), self.parts(seed=3))
        self.assertNotEqual(self.parts(seed=3), self.parts(seed=4))
        self.assertLen(self.parts()[1], 5)

    def test_without_evaluation_everything_is_trained_on(self):
        task, rows = load_own_rows([{"input": f"text {i}", "output": "x"} for i in range(100)], no_eval=True)
        self.assertEqual(splits_of(task), ["train"])
        self.assertLen(rows, 100)

    @parameterized.parameters((False, "a has validation rows"), (True, "nothing is evaluated"))
    def test_a_share_without_effect_is_told(self, no_eval, why):
        rows = [{"input": str(i), "output": "x"} for i in range(9)]
        roles = ("train",) if no_eval else ("train", "validation")
        paths = {f"{role}_file": str(jsonl(folder() / "a.jsonl", rows)) for role in roles}
        with self.assertLogs("t5suite", "WARNING") as logs:
            read = load_own_rows(data_format="jsonl", **paths, validation_split=0.5, no_eval=no_eval).rows
        self.assertLen(read, 9)
        self.assertRegex("\n".join(logs.output), f"--validation_split 0.5 has no effect: {why}")

    def test_inputs_that_all_have_many_rows_give_the_one_with_the_fewest(self):
        rows = [{"input": text, "output": f"{text}{i}"} for text, count in zip("abc", (5, 4, 6)) for i in range(count)]
        train, validation = (load_own_rows(rows, role, validation_split=0.1).rows for role in ("train", "validation"))
        self.assertEqual([row["output"] for row in validation], ["b0", "b1", "b2", "b3"])
        self.assertLen(train, 11)

    def test_inputs_with_too_many_rows_are_passed_over_and_others_fill_the_share(self):
        rows = [{"input": f"often {i // 6}", "output": str(i)} for i in range(60)]
        rows += [{"input": f"once {i}", "output": str(i)} for i in range(40)]
        for seed in range(8):
            held_out = load_own_rows(rows, "validation", validation_split=0.1, seed=seed).rows
            self.assertLen(held_out, 10)
            self.assertIn(Counter(row["input"][:5] for row in held_out)["often"], (0, 6))

    def test_test_rows_are_all_read_and_none_is_held_out(self):
        rows = {role: [{"input": f"{role} {i}", "output": "x"} for i in range(30)] for role in ("train", "test")}
        parts = {role: load_own_rows(rows, role, validation_split=0.2).rows for role in ROLES}
        self.assertEqual({role: len(part) for role, part in parts.items()}, {"train": 24, "validation": 6, "test": 30})
        self.assertEqual(parts["test"], rows["test"])

    def test_too_few_rows_say_so(self):
        with exits_with(65, "too few rows .1. .* --no_eval"):
            self.parts(count=1)


class ProportionsTest(parameterized.TestCase):
    """The predecessor's sampler only ever saw the first rows of a data set that it drew from seldom."""

    def test_grouping_by_length_keeps_each_update_s_rows_in_every_epoch_the_longest_first(self):
        orders = {0: np.array([0, 1, 2, 4, 3]), 1: np.array([4, 0, 2, 3, 1])}
        grouped = grouped_in_updates(orders.__getitem__, lengths=[5, 9, 7, 9, 1], update_size=3)
        self.assertEqual((grouped(0).tolist(), grouped(1).tolist()), ([1, 2, 0, 3, 4], [2, 0, 4, 3, 1]))

    def test_every_row_comes_before_any_comes_again_and_all_come(self):
        for sizes, proportions in (
            ([40, 60], [1, 3]), ([5, 95], [1, 1]), ([97, 3], [1, 99]), ([10, 20, 30], [3, 2, 1.5]),
        ):  # fmt: skip
            order = proportional_order(sizes, proportions, seed=7)
            counts, total, start = epoch_counts(proportions, sum(sizes)), sum(sizes), 0
            num_epochs = max(-(-size // n) for size, n in zip(sizes, counts, strict=True))
            epochs = [order(epoch) for epoch in range(num_epochs)]
            for size, count in zip(sizes, counts, strict=True):
                seen = Counter()
                for epoch in epochs:
                    mine = epoch[(epoch >= start) & (epoch < start + size)]
                    self.assertLen(mine, count)
                    seen.update(mine.tolist())
                self.assertLen(seen, size)  # the whole data set, not its first rows
                self.assertLessEqual(max(seen.values()) - min(seen.values()), 1 + (count > size))
                start += size
            self.assertLen(epochs[0], total)

    @parameterized.parameters(([1], "1 values for 2"), ([1, 0], "each must be above 0"), ([1, -2], "above 0"))
    def test_bad_proportions_are_refused(self, proportions, message):
        with exits_with(78, message):
            proportional_order([3, 4], proportions, seed=0)


class TokenCutsTest(parameterized.TestCase):
    """Blocks of running text have at most so many tokens, the end-of-sequence token included."""

    def blocks(self, content: str, block_size: int, **flags) -> list[str]:
        path = write(folder() / "a.txt", content)
        task, rows = load_own_rows(path, block_size=block_size, no_eval=True, **flags)
        blocks = [row["text"] for row in rows]
        tokenizer = tiny_tokenizer()
        self.assertLessEqual(max(len(tokenizer(block)["input_ids"]) for block in blocks), block_size)
        self.assertEqual("".join("".join(blocks).split()), "".join(content.split()))
        self.assertEqual(task.examples({"text": "x"})[0], ("", "x"))
        return blocks

    @parameterized.parameters(8, 17, 60, 1000)
    def test_a_long_document_is_cut_and_loses_nothing(self, block_size):
        text = "The centre of the city is old. It was built in 1840, as people say;\n déjà vu! " * 3
        blocks = self.blocks(text, block_size, text_unit="file")
        self.assertEqual(len(blocks) == 1, block_size == 1000)

    @parameterized.parameters("ACGT" * 500 + " end", "日本語" * 300, "🙂" * 40)
    def test_a_word_longer_than_a_block_loses_nothing_where_tokens_have_no_offsets(self, content):
        path = write(folder() / "a.txt", content)
        with mock.patch("t5suite.testing.tiny_tokenizer", ByT5Tokenizer):
            rows = load_own_rows(path, data_format="text", block_size=16, no_eval=True).rows
        blocks = [row["text"] for row in rows]
        self.assertEqual("".join("".join(blocks).split()), "".join(content.split()))
        # Bytes, and the end.
        self.assertLessEqual(max(len(block.encode("utf-8")) + 1 for block in blocks), 16)

    @pytest.mark.slow
    def test_running_text_loses_nothing_and_fills_blocks(self):
        documents = [f"Document {i}. " + "It goes on and on. " * (i % 7) for i in range(30)]
        blocks = self.blocks("\n".join(documents) + "\n\n", 24)
        self.assertGreater(np.mean([len(tiny_tokenizer()(block)["input_ids"]) for block in blocks]), 12)


class ClassesTest(parameterized.TestCase):
    TURN = {"context": "user: Hi agent: Hello user: How do I renew?", "document": "Renew online. " * 20,
            "response": "Online.", "neg_subtype": "none", "last_speaker": "user", "type": "positive",
            "evidence_20_50": "Renew online."}  # fmt: skip

    def dialogues(self, turns, config=None):
        root = folder()
        write(root / "md2d_subdocs_train_pos_neg.json", json.dumps(turns))
        return load(**of_class("examples.own_rows.multidoc2dial:Answerability", root, config))

    def test_what_was_said_last_is_never_cut_off(self):
        config = {"max_document_length": 20, "max_input_tokens": 40, "tokenizer": bundled_model()}
        (row,) = self.dialogues([self.TURN], config)
        self.assertTrue(row["input"].endswith("How do I renew?"))
        self.assertTrue(row["input"].startswith("Renew online."))
        self.assertLessEqual(len(tiny_tokenizer()(row["input"])["input_ids"]), 41)

    def test_made_up_rows_have_exactly_the_shape_asked_for(self):
        tokenizer = tiny_tokenizer()
        lengths = {"input": 33, "output": 7}
        flags = of_class("Debug", config={"num_examples": 9})
        flags |= {"max_input_tokens": [lengths["input"]], "max_output_tokens": [lengths["output"]]}
        task, rows = load_own_rows(**flags)
        self.assertLen(rows, 9)
        self.assertEqual((task.entry["max_input_tokens"], task.entry["max_output_tokens"]), (33, 7))
        for row in rows:
            for column, length in lengths.items():
                self.assertLen(tokenizer(row[column], max_length=length, truncation=True)["input_ids"], length)
        self.assertNotEqual(rows, load_own_rows(None, "validation", **flags).rows)
        path = write(folder() / "debug.json", '{\n\t"num_examples": 9\n}')  # tabs, which YAML has not
        self.assertEqual(load_own_rows(**flags | {"data_config": [str(path)]}).rows, rows)

    def test_a_column_that_the_first_row_of_a_class_lacks_is_read(self):
        root = folder()
        write(root / "my_instructions.py", (
            "class Mine:\n    entry = {'formatter': 'instruction', 'text_column_name': 'instruction'}\n    def __init__(self, path, config):\n        pass\n"
            "    def rows(self, split):\n        return [{'instruction': 'Say hi', 'output': 'hi'},\n"
            "            {'instruction': 'Translate', 'input': 'a cat', 'output': 'eine Katze'}]\n"
        ))  # fmt: skip
        sys.path.insert(0, str(root))
        self.addCleanup(sys.path.remove, str(root))
        task, rows = load_own_rows(**of_class("my_instructions:Mine"))
        self.assertIn("a cat", task.examples(rows[1])[0].inputs)
        self.assertEqual(task.examples(rows[0])[0].inputs.count("input"), 0)

    def test_a_class_of_the_users_own(self):
        root = folder()
        write(root / "my_own_rows.py", (
            "class Mine:\n    entry = {'labels': ['no', 'yes']}\n"
            "    def __init__(self, path, config):\n        self.count = config['count']\n"
            "    def rows(self, split):\n"
            "        return None if split == 'test' else [{'input': split, 'output': 'yes'}] * self.count\n"
        ))  # fmt: skip
        sys.path.insert(0, str(root))
        self.addCleanup(sys.path.remove, str(root))
        task, rows = load_own_rows(**of_class("my_own_rows:Mine", config={"count": 3}))
        self.assertEqual(splits_of(task), ["train", "validation"])
        self.assertEqual(task.entry["metric_names"], ["accuracy"])
        self.assertLen(rows, 3)
        path = write(folder() / "mine.json", '{"count": 3e0, "count": 2}')
        with exits_with(78, f"{path}:1: .*count"):
            load(**of_class("my_own_rows:Mine") | {"data_config": [str(path)]})
        with exits_with(78, "my_own_rows has no 'Mien'; did you mean Mine"):
            load(**of_class("my_own_rows:Mien"))
        with exits_with(78, "no module 'no_such_rows'"):
            load(**of_class("no_such_rows:Mine"))

    def user_class(self, body: str, entry: str = "{}") -> str:
        """The name of a class of the user's own with this `rows`."""
        root = folder()
        name = f"rows_{root.name}"
        methods = f"    def __init__(self, path, config):\n        self.path = path\n    def rows(self, split):\n        {body}\n"
        write(root / f"{name}.py", f"class Mine:\n    entry = {entry}\n{methods}\ndef function(path, config): pass\n")
        sys.path.insert(0, str(root))
        self.addCleanup(sys.path.remove, str(root))
        return f"{name}:Mine"

    @parameterized.parameters(
        ("return [{'input': 'a', 'output': 'b'}, 'c']", "row 1 of train is 'c', not a dict"),
        ("return []", "no rows in train"),
    )
    def test_a_class_whose_rows_are_none_is_named(self, body, message):
        name = self.user_class(body)
        with exits_with(65, f"{name}: {message}"):
            load(**of_class(name))

    @parameterized.product(column=["input", "output"], missing=["float('nan')", "np.float32('nan')", "pd.NA", "pd.NaT"])
    def test_a_missing_value_in_rows_of_a_class_is_none_and_no_text(self, column, missing):
        row = {"input": "'a'", "output": "'b'", column: missing}
        body = f"import numpy as np, pandas as pd; return [{{'input': {row['input']}, 'output': {row['output']}}}]"
        messages = {"input": "column 'input' is null", "output": "column 'output' is empty"}
        with exits_with(65, f"train row 0: {messages[column]}"):
            load(**of_class(self.user_class(body)))

    def test_numbers_of_numpy_in_rows_of_a_class_are_numbers(self):
        body = "import numpy as np; return [{'input': 'a', 'output': np.float64(1.5)}, {'input': 'b', 'output': np.int64(2)}]"
        task, rows = load_own_rows(**of_class(self.user_class(body), None, {"metrics": ["pearson"]}), no_eval=True)
        self.assertEqual([task.examples(row)[0].targets for row in rows], ["1.5", "2"])

    @parameterized.parameters(
        ("{'text_column_name': 5}", "text_column_name must be a string or a list of strings, not 5"),
        ("{'text_column_name': ['a', 5]}", "text_column_name must be a string or a list of strings"),
        ("{'label_column_name': ['a']}", "label_column_name must be a string"),
        ("{'metric_names': 5}", "metric_names must be a list of metric names, not 5"),
    )
    def test_a_field_of_a_class_s_entry_of_another_kind_is_named(self, entry, message):
        name = self.user_class("return [{'input': 'a', 'output': 'b'}]", entry=entry)
        with exits_with(78, f"{name}: its entry: {message}"):
            load(**of_class(name))

    def test_fields_of_a_class_s_entry_that_are_none_are_those_of_free_text(self):
        rows = "return [{'input': 'a', 'output': 'b'}]"
        entries = ("{}", "{'text_column_name': None, 'label_column_name': None, 'metric_names': None, 'labels': None}")
        tasks = [load_own_rows(**of_class(self.user_class(rows, entry)), no_eval=True).task for entry in entries]
        self.assertEqual(tasks[0].entry, tasks[1].entry)

    def test_a_class_that_is_none_is_named(self):
        name = self.user_class("return None", entry="['labels']")
        with exits_with(78, f"{name}: its entry is .*, not a dict of fields"):
            load(**of_class(name))
        function = name.replace(":Mine", ":function")
        with exits_with(78, f"{function}: it needs __init__.path, config. and rows.split."):
            load(**of_class(function))

    def test_columns_of_a_class_are_those_of_its_entry(self):
        entry = "{'prefix': ['q: ', 't: '], 'text_column_name': ['question', 'text'], 'label_column_name': 'answer', 'metric_names': ['squad']}"
        name = self.user_class("return [{'question': split, 'text': self.path, 'answer': 'x', 'other': 1}]", entry)
        task, rows = load_own_rows(**of_class(name, "here", {"name": "mine"}), no_eval=True)
        self.assertEqual((task.name, task.entry["metric_names"]), ("mine", ["squad"]))
        self.assertEqual(
            [{key: rows[0][key] for key in ("question", "text", "answer")}],
            [{"question": "train", "text": "here", "answer": "x"}],
        )

    def test_rows_are_equal_if_the_inputs_that_a_formatter_of_ones_own_makes_are(self):
        """It reads a column that no entry names, and drops what tells half of the rows apart in the other."""
        parts = []
        for role in ("train", "validation"):
            rows = load_own_rows(None, role, **of_class("plug_in_modules:RowsInContext")).rows
            parts.append([row["context"] for row in rows])
        self.assertEqual([len(part) for part in parts], [76, 4])
        self.assertEqual(set(parts[0]) & set(parts[1]), set())

    def test_equal_inputs_of_a_class_are_named_without_a_flag_that_it_does_not_take(self):
        name = self.user_class("return [{'input': 'a', 'output': 'b'}] * 9 if split == 'train' else None")
        message = f"^{name} train: all 9 rows have the same input .'a'., .*; give validation rows, or --no_eval$"
        with exits_with(65, message):
            load_own_rows(**of_class(name))

    def test_metrics_of_the_settings_of_a_class_are_refused_as_those(self):
        path = jsonl(folder() / "train.jsonl", [{"input": "x", "output": "a"}])
        settings = {"name": "reviews", "labels": ["a", "b"], "metrics": ["micro_f1"]}
        with exits_with(78, "^--data_config of reviews: metrics micro_f1: 'micro_f1' compares texts"):
            load(**of_class("JSONLines", path.parent, settings))

    @parameterized.parameters("", "glue/sst2", "hub")
    def test_sst2_reads_a_folder_a_mirror_or_the_hub_without_the_space_at_the_end_of_its_sentences(self, place):
        root = folder()
        jsonl(
            root / place / "train.jsonl", [{"sentence": " a fine film ", "label": 1}, {"sentence": "bad ", "label": 0}]
        )
        flags = of_class("SST2", None if place == "hub" else root)
        with mock.patch.dict(DATASET_VALS["glue"]["sst2"], hub_path=str(root / "hub"), hub_name=None):
            task, rows = load_own_rows(**flags, no_eval=True)
        self.assertEqual([row["sentence"] for row in rows], ["a fine film", "bad"])
        (example,) = task.examples(rows[0])
        self.assertEqual(tuple(example)[:2], ("a fine film", "positive"))

    def test_a_split_of_a_mirror_that_is_there_plain_and_packed_is_refused(self):
        place = folder() / "glue" / "sst2"
        jsonl(place / "train.jsonl", [{"sentence": "bad", "label": 0}])
        (place / "train.jsonl.gz").write_bytes(gzip.compress((place / "train.jsonl").read_bytes()))
        with exits_with(65, r"both .*train\.jsonl and train\.jsonl\.gz exist"):
            load_rows(load_task("glue", "sst2"), "train", data_dir=str(place.parent.parent))

    @parameterized.parameters("train.json", "train.jsonl")
    def test_alpaca_reads_instructions_with_and_without_an_input(self, name):
        rows = [
            {"instruction": "Add.", "input": "1 2", "output": "3"},
            {"instruction": "Greet.", "input": "", "output": "hi"},
        ]
        root = folder()
        write(
            root / name, json.dumps(rows) if name.endswith("json") else "".join(json.dumps(row) + "\n" for row in rows)
        )
        task, loaded = load_own_rows(**of_class("Alpaca", root), no_eval=True)
        examples = [task.examples(row)[0] for row in loaded]
        self.assertEqual([example.targets for example in examples], ["3", "hi"])
        self.assertIn("1 2", examples[0].inputs)
        self.assertIn("Greet.", examples[1].inputs)

    def test_alpaca_reads_a_number_as_the_label_of_its_digits(self):
        path = jsonl(folder() / "train.jsonl", [{"instruction": "Rate it.", "output": 3}])
        task, (row,) = load_own_rows(**of_class("Alpaca", path.parent, {"labels": ["3", "1"]}), no_eval=True)
        self.assertEqual(task.examples(row)[0].targets, "3")

    def test_a_folder_without_the_files_of_a_class_is_named_with_those_that_it_has(self):
        root = folder()
        for names in ("nothing", "a.txt"):
            if names != "nothing":
                (root / names).touch()
            with exits_with(65, f"data_path {root}: no .json.* file there, nor in train/ .there: {names}.$"):
                load(**of_class("Alpaca", root))

    def test_what_cannot_be_is_refused(self):
        for name, path, config, message in (
            ("JSONLine", "x", {}, "unknown data class 'JSONLine'; did you mean JSONLines"),
            ("JSONLines", None, {}, "needs a --data_path"),
            ("JSONLines", "/no/such/folder", {}, "no such folder"),
            ("Debug", "x", {}, "has no files"),
            ("Debug", None, {"num_exmples": 3}, "has no setting 'num_exmples'; did you mean num_examples"),
            ("Debug", None, {"num_examples": 0}, "num_examples 0"),
        ):
            with exits_with(78, message):
                load(**of_class(name, path, config))


class FormatsByNameTest(parameterized.TestCase):
    """The names of files show their format: no flag says it."""

    ROWS = [{"text": "a;b", "label": "x"}, {"text": "c", "label": "y"}]

    def file(self, name: str) -> Path:
        path = folder() / name
        if name.endswith(".parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.ROWS), path)
        elif name.endswith(".jsonl"):
            jsonl(path, self.ROWS)
        else:
            delimiter = "\t" if name.endswith((".tsv", ".tab")) else ","
            lines = ["text", "label"], *(list(row.values()) for row in self.ROWS)
            text = "".join(f"{delimiter.join(cells)}\n" for cells in lines).encode()
            write(path, gzip.compress(text) if name.endswith(".gz") else text)
        return path

    @parameterized.parameters("a.csv", "a.csv.gz", "a.tsv", "a.tab", "a.parquet", "a.jsonl", "*.csv")
    def test_files_are_read_by_their_names(self, name):
        path = self.file(name.replace("*", "part-1"))
        rows = load(train_file=str(path.parent / name), **COLUMNS)
        self.assertEqual([{key: row[key] for key in ("text", "label")} for row in rows], self.ROWS)

    @parameterized.parameters(
        ("*.csv", ["a.csv", "b.csv"]),
        ("*/*.csv", ["x/a.csv", "x1/b.csv"]),
        ("**/*.csv", ["a.csv", "b.csv", "x/a.csv", "x/y/z/c.csv", "x1/b.csv"]),
        ("x/**/*.csv", ["x/a.csv", "x/y/z/c.csv"]),
        ("**/[ab].csv", ["a.csv", "b.csv", "x/a.csv", "x1/b.csv"]),
        ("x?/*.csv", ["x1/b.csv"]),
        ("x/**/c.csv", ["x/y/z/c.csv"]),
    )
    def test_a_pattern_names_the_files_that_match_at_any_depth_in_the_order_of_their_names(self, pattern, names):
        root = folder()
        for name in ("x1/b.csv", "x/y/z/c.csv", "b.csv", "x/a.csv", "a.csv"):
            csv_file([["text", "label"], [f"{name} 1", "u"], [f"{name} 2", "v"]], root / name)
        expected = [f"{name} {number}" for name in names for number in (1, 2)]
        other = str(csv_file([["text", "label"], ["other 1", "u"], ["other 2", "v"]]))
        for split in ROLES:
            files = {"train_file": other, "validation_file": other, f"{split}_file": f"{root}/{pattern}"}
            rows = load_own_rows(split=split, **files, **COLUMNS).rows
            self.assertEqual([row["text"] for row in rows], expected)

    def test_a_folder_of_one_kind_of_files_is_read_by_their_names(self):
        path = self.file("train.tsv")
        (path.parent / "README.md").write_text("about the rows")
        self.assertLen(load(train_dir=str(path.parent), **COLUMNS), 2)

    def test_files_of_json_lines_may_be_called_ndjson(self):
        path = jsonl(folder() / "train.ndjson", [{"text": "1", "label": "u"}, {"text": "2", "label": "v"}])
        self.assertLen(load(train_dir=str(path.parent), **COLUMNS), 2)
        self.assertLen(load(train_file=str(path), **COLUMNS), 2)

    def test_another_format_decides_and_two_kinds_are_refused(self):
        path = str(self.file("a.csv"))
        self.assertLen(load(data_format="tsv", train_file=str(self.file("a.tsv")), **COLUMNS), 2)
        with exits_with(65, "is this a CSV file|no tab|the first line names no column"):
            load(data_format="tsv", train_file=path, **COLUMNS)
        with exits_with(78, "belongs to --data_format"):
            load(train_file=path, validation_file=str(self.file("b.tsv")), **COLUMNS)
        with exits_with(78, "source_id de: it belongs to --data_format"):
            load(train_file=str(self.file("a.jsonl")), source_id="de")

    def test_json_lines_without_a_flag_of_own_rows_are_the_benchmark_s(self):
        path = jsonl(folder() / "a.jsonl", [{"sentence": "fine", "label": 1}])
        task, _ = load_own_rows(benchmark="mini", dataset_name="sentiment", train_file=str(path), split="validation")
        self.assertEqual((task.benchmark, task.name), ("mini", "sentiment"))


class LabelsTest(parameterized.TestCase):
    @parameterized.parameters(([1, 0, -1], "column 'label' holds -1: the row is unlabelled, .*file of their own"),
                              ([1, None], "column 'label' is empty: the row is unlabelled, .*file of their own"),
                              ([-1, 1], "column 'label' holds 1: the row is labelled, but .*file of their own"))  # fmt: skip
    def test_all_rows_of_a_split_are_labelled_or_none_is(self, labels, message):
        rows = [{"sentence": f"row {i}", "label": label} for i, label in enumerate(labels)]
        path = jsonl(folder() / "a.jsonl", rows)
        with exits_with(65, f"a.jsonl:{len(labels)}: {message}"):
            load_rows(load_task("mini", "sentiment"), "test", test_file=str(path))

    def test_files_without_any_text_are_named(self):
        path = write(folder() / "a.txt", "\n \n\n")
        with exits_with(65, f"{path}: no text"):
            load(data_format="text", train_file=str(path))


class FlagsTest(parameterized.TestCase):
    def test_flags_that_do_not_go_together(self):
        for flags, message in (
            ({"data_class": ["Debug"] * 2, "data_path": ["none"]}, "data_path has 1 values, but --data_class names 2"),
            ({"data_class": ["Debug"], "data_format": "csv"}, "two ways to name data"),
            ({"text_column": "x"}, "text_column x: it belongs to --data_format"),
            (
                {"data_format": "hub", "hub_path": "a/b", "train_file": "x"},
                "hub reads --hub_path; it takes no --train_dir",
            ),
            (
                {"data_format": "translation", "source_id": "de", "target_id": "de"},
                "source_id and --target_id are both 'de'",
            ),
            (
                {"data_format": "jsonl", "text_column": "a,b", "target_column": "a"},
                "target_column a is also a --text_column",
            ),
            (
                {"data_format": "jsonl", "text_column": "a,,b"},
                "text_column 'a,,b': comma-separated words, none of them empty",
            ),
            ({"data_format": "text", "block_size": 7}, "block_size 7: must be at least 8"),
            ({"data_format": "text", "text_column": "a,b"}, "--text_column a,b: running text .* is in one column"),
            ({"data_class": ["Debug"], "prefix": "x"}, "prefix x: it belongs to --data_format"),
            ({"metrics": "bleu"}, "metrics bleu: it belongs to --data_format or --data_class"),
            ({"data_format": "csv", "data_path": ["x"]}, "data_path x: it belongs to --data_class"),
            (
                {"data_format": "csv", "input_format": ["__input__", "x"]},
                "input_format has 2 values, but --data_format is",
            ),
        ):
            with exits_with(78, message):
                load_own_rows(**flags)
