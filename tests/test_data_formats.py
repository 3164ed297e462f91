"""Rows of your own: that every format delivers every row as it stands, once, with the place of whatever is wrong."""

import csv
import gzip
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import yaml
from absl.testing import parameterized
from support import folder

from examples.own_rows.multidoc2dial import Answerability
from t5suite import Task
from t5suite.data.mixtures import epoch_counts, grouped_in_updates, proportional_order
from t5suite.data.rows.data_classes import class_form
from t5suite.data.rows.files import check_benchmark_file, named_files, split_files
from t5suite.data.rows.formats import DATA_FORMATS, FormatOptions, Wishes, format_form, own_data
from t5suite.data.rows.own_rows import count_tokens, pieces
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.tasks.registry import Lengths
from t5suite.testing import bundled_model, exits_with, tiny_tokenizer, write_rows
from t5suite.training.flags.data import FORMATS, DataFormatArguments
from t5suite.training.flags.fields import facts_of
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.plans import own_plan

COLUMNS = {"text_columns": ("text",), "target_column": "label"}
TEXTS = ["plain", 'a "quoted", cell', "two\nlines", "tab\there", "naïve ☃", "1,000", " spaces "]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    return path


def read(form, role="train", tokenizer=None):
    return form.source.read(role, tokenizer)


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
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "train.parquet")
        else:
            jsonl(root / "train.jsonl", rows)
        return read(format_form(kind, FormatOptions(train_dir=str(root), **COLUMNS))).rows

    @parameterized.parameters("jsonl", "csv", "parquet")
    def test_every_text_comes_out_as_it_went_in(self, kind):
        self.assertEqual([row["text"] for row in self.rows_of(kind, TEXTS)], TEXTS)

    def test_tsv_knows_no_quotes(self):
        texts = ['a "quoted, cell', "'", "naïve ☃"]
        self.assertEqual([row["text"] for row in self.rows_of("tsv", texts)], texts)

    def test_line_ends_byte_order_marks_empty_lines_and_compression_of_csv(self):
        plain = b"text,label\nx,a\n"
        for name, content in (
            ("a.csv", plain.replace(b"\n", b"\r\n")), ("a.csv", b"\xef\xbb\xbf" + plain),
            ("a.csv", b"text,label\n\nx,a"), ("a.csv.gz", gzip.compress(plain)),
        ):  # fmt: skip
            form = format_form("csv", FormatOptions(train_file=str(write(folder() / name, content)), **COLUMNS))
            self.assertEqual(read(form).rows, [{"text": "x", "label": "a"}])

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
                read(format_form("csv", FormatOptions(train_file=str(path), **COLUMNS)))

    def test_a_class_id_of_a_typeless_file_is_a_number_and_an_empty_answer_is_none(self):
        path = write(folder() / "a.csv", "text,label\nx,1\ny,bad\nz,\n")
        form = format_form("csv", FormatOptions(train_file=str(path), labels=("bad", "good"), **COLUMNS))
        self.assertEqual([row["label"] for row in read(form).rows], ["good", "bad", None])

    @parameterized.parameters(("txt", "label", "did you mean text"), ("text", "lable", "did you mean label"))
    def test_a_mistyped_column_is_answered_with_the_right_one(self, text, target, message):
        path = write(folder() / "a.csv", "text,label\nx,bad\n")
        form = format_form("csv", FormatOptions(train_file=str(path), text_columns=(text,), target_column=target))
        with exits_with(65, rf"a\.csv:2: no row has anything in column .*{message}"):
            read(form)

    def test_formats_flags_and_tables_agree(self):
        self.assertEqual(set(FORMATS), set(DATA_FORMATS))
        named = {fact for facts in facts_of(DataFormatArguments).values() for fact in facts.get("formats", "").split()}
        self.assertLessEqual(named, set(FORMATS))


class FilesTest(parameterized.TestCase):
    def test_all_files_of_a_split_follow_each_other_in_the_order_of_their_names(self):
        root = folder()
        for name in ("b", "a", "c"):
            jsonl(root / "train" / f"{name}.jsonl", [{"input": f"{name}{i}", "output": "x"} for i in range(3)])
        rows = read(class_form("JSONLines", str(root), {}))
        self.assertEqual([row["input"] for row in rows.rows], [f"{n}{i}" for n in "abc" for i in range(3)])
        self.assertEqual(rows.places[4], f"{root}/train/b.jsonl:2")
        self.assertLen(rows.files, 3)

    def test_the_splits_of_a_folder(self):
        for names, roles in (
            (["train/a.csv", "val/a.csv", "test/a.csv"], ["train", "validation", "test"]),
            (["train.csv", "dev.csv"], ["train", "validation"]),
            (["train-00000-of-00002.csv", "train-00001-of-00002.csv", "validation.csv"], ["train", "validation"]),
            (["some.csv", "others.csv"], ["train"]),
            (["training.csv", "notes.txt", ".hidden.csv"], ["train"]),
        ):
            root = folder()
            for name in names:
                write(root / name, "x")
            self.assertEqual(list(split_files(root, (".csv",))), roles)

    def test_a_split_in_two_forms_is_refused(self):
        root = folder()
        for name in ("train/a.csv", "train.csv"):
            write(root / name, "x")
        with exits_with(65, r"train/ and train\.\*; keep one"):
            split_files(root, (".csv",))

    @parameterized.parameters(check_benchmark_file, named_files)
    def test_for_a_folder_the_flag_of_folders_is_named(self, check):
        with exits_with(78, "--train_file .* is a folder; .*--train_dir"):
            check(tempfile.mkdtemp(), "--train_file")

    @parameterized.parameters("reviews.csv", "reviews.tsv.gz", "reviews.parquet")
    def test_a_file_that_holds_no_benchmark_s_rows_names_the_flag_that_reads_it(self, name):
        path = Path(tempfile.mkdtemp()) / name
        path.write_text("text,label")
        form = name.split(".")[1]
        with exits_with(78, f"--train_file .*{name}: .*--data_format {form}"):
            check_benchmark_file(str(path), "--train_file")


class TasksTest(parameterized.TestCase):
    """What a model reads and writes of such rows, and how it is scored."""

    def task(self, rows, labels=None, columns=("text",), **wishes) -> tuple[Task, list]:
        path = jsonl(folder() / "rows.jsonl", rows)
        options = FormatOptions(train_file=str(path), text_columns=columns, target_column="label", labels=labels)
        data = own_data("rows", format_form("jsonl", options), Wishes(labels=labels, evaluates=False, **wishes))
        return data.task, load_split(data.task, "train", "train", DataOptions(own={"rows": data.source})).rows.to_list()

    def test_labels_make_a_task_of_classes(self):
        task, rows = self.task([{"text": "x", "label": "good"}, {"text": "y", "label": "bad"}], ("bad", "good"))
        self.assertEqual([task.examples(row)[0].targets for row in rows], ["good", "bad"])
        self.assertEqual(task.value_kind, "class")
        self.assertEqual(task.score(rows, ["good", "good"]), {"accuracy": 50.0, "invalid_rate": 0.0})

    def test_templates_stand_around_both_sides_and_metrics_see_what_is_inside(self):
        formats = {"input_format": "q: __input__ a:", "output_format": "<__output__>"}
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
        config.write_text(yaml.safe_dump({**flags, "use_cpu": True}))
        plan = own_plan(FineTuningArguments(*parse_arguments(FINE_TUNING_ARGUMENTS, [str(config)])))
        example = plan.train[0].examples({"text": "x", "label": "good"})[0]
        self.assertEqual(example, ("Do\n: \\nabla\tx\\d", "\ngood"))

    def test_several_columns_are_named_in_the_input(self):
        task, rows = self.task([{"question": "Why?", "context": "So.", "label": "x"}], columns=("question", "context"))
        self.assertEqual(task.examples(rows[0])[0].inputs, "question: Why? context: So.")

    def test_metrics(self):
        rows = [{"text": "x", "label": "It is so."}]
        self.assertEqual(self.task(rows)[0].entry["metric_to_optimize"], "average")
        self.assertEqual(self.task(rows, metrics=("bleu",))[0].entry["metric_to_optimize"], "bleu")
        self.assertEqual(list(self.task(rows, metrics=("rouge", "bleu"))[0].score(rows, ["It is so."])),
                         ["rouge1", "rouge2", "rougeLsum", "bleu"])  # fmt: skip
        self.assertEqual(self.task(rows, metrics=())[0].score(rows, ["x"]), {})
        with exits_with(78, "unknown metric 'rogue'; did you mean rouge"):
            self.task(rows, metrics=("rogue",))

    def test_a_bad_row_is_named(self):
        for rows, message in (
            (
                [{"text": "x", "label": "a"}, {"text": "y"}],
                r"rows\.jsonl:2: column 'label' holds None: a train row must",
            ),
            ([{"text": "x", "label": "a"}, {"txt": "y", "label": "a"}], r"rows\.jsonl:2: no column 'text'"),
            ([{"text": "x", "label": "a"}, {"text": None, "label": "a"}], r"rows\.jsonl:2: column 'text' holds None"),
            ([{"text": "x", "label": "worse"}], r"rows\.jsonl:1: label 'worse' in column 'label' is none of 0 bad"),
        ):
            with exits_with(65, message):
                self.task(rows, ("bad", "good", "a") if "worse" not in str(rows) else ("bad", "good"))

    def test_translation(self):
        path = jsonl(folder() / "a.jsonl", [{"translation": {"en": "Good.", "de": "Gut.", "fr": "Bon."}}])
        form = format_form("translation", FormatOptions(train_file=str(path), source_id="en", target_id="de"))
        data = own_data("a", form, Wishes(evaluates=False, input_format="translate English to German: __input__"))
        (row,) = data.source.read("train").rows
        self.assertEqual(data.task.examples(row)[0], ("translate English to German: Good.", "Gut."))
        self.assertEqual(list(data.task.score([row], ["Gut."])), ["bleu", "chrf"])
        self.assertAlmostEqual(data.task.score([row], ["Gut."])["chrf"], 100.0)
        bad = jsonl(folder() / "b.jsonl", [{"translation": {"en": "Good."}}])
        form = format_form("translation", FormatOptions(train_file=str(bad), source_id="en", target_id="de"))
        data = own_data("b", form, Wishes(evaluates=False))
        with exits_with(65, r"b\.jsonl:1: .*translation\.de"):
            load_split(data.task, "train", "train", DataOptions(own={"b": data.source}))

    def test_class_labels_of_a_hub_data_set_become_label_words(self):
        import datasets

        features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
        rows = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [1, 0]}, features=features)
        path = folder() / "train.parquet"
        rows.to_parquet(path)
        options = FormatOptions(hub_path=str(path.parent), **COLUMNS)
        data = own_data("a", format_form("hub", options), Wishes(evaluates=False))
        self.assertEqual(data.task.label_words, ["bad", "good"])
        rows = data.source.read("train").rows
        self.assertEqual([data.task.examples(row)[0].targets for row in rows], ["good", "bad"])

    def test_alpaca(self):
        path = jsonl(folder() / "a.jsonl", [{"instruction": "Name it.", "input": "a cat", "output": " Tom "},
                                             {"instruction": "Sing.", "input": "", "output": "La"}])  # fmt: skip
        data = own_data("a", format_form("alpaca", FormatOptions(train_file=str(path))), Wishes(evaluates=False))
        examples = [data.task.examples(row)[0] for row in data.source.read("train").rows]
        self.assertEqual(examples[0], ("Name it.\ninput: a cat\noutput:", "Tom"))
        self.assertEqual(examples[1], ("Sing.\noutput:", "La"))


class HeldOutTest(parameterized.TestCase):
    """Where there is no validation split, a part of the training rows is one, and is never trained on."""

    def sources(self, seed=1, share=None, evaluates=True, count=100):
        rows = [{"input": f"text {i % 60}", "output": str(i)} for i in range(count)]
        root = folder()
        jsonl(root / "train" / "a.jsonl", rows)
        wishes = Wishes(validation_share=share, seed=seed, evaluates=evaluates)
        return own_data("a", class_form("JSONLines", str(root), {}), wishes)

    def parts(self, **settings):
        source = self.sources(**settings).source
        return [[row["output"] for row in source.read(role).rows] for role in ("train", "validation")]

    def test_every_row_is_on_one_side_and_no_input_on_both(self):
        train, validation = self.parts(share=0.3)
        self.assertEqual(sorted([*train, *validation], key=int), [str(i) for i in range(100)])
        self.assertEmpty({int(i) % 60 for i in train} & {int(i) % 60 for i in validation})
        self.assertBetween(len(validation), 28, 30)

    def test_the_seed_alone_decides(self):
        self.assertEqual(self.parts(seed=3), self.parts(seed=3))
        self.assertNotEqual(self.parts(seed=3), self.parts(seed=4))
        self.assertLen(self.parts()[1], 5)

    def test_without_evaluation_everything_is_trained_on(self):
        data = self.sources(evaluates=False)
        self.assertEqual(data.source.roles, ("train",))
        self.assertLen(data.source.read("train").rows, 100)

    def test_too_few_rows_say_so(self):
        with exits_with(65, "too few rows .1. .* --no_eval"):
            self.sources(count=1).source.read("validation")


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
    def setUp(self):
        super().setUp()
        self.tokenizer = tiny_tokenizer()

    def test_pieces_make_up_the_text_and_none_is_too_long(self):
        text = "The centre of the city is old. It was built in 1840, as people say;\n déjà vu! " * 3
        for count in (1, 5, 17, 1000):
            found = pieces(text, count, self.tokenizer)
            self.assertEqual("".join(found), text)
            self.assertLessEqual(max(count_tokens(piece, self.tokenizer) for piece in found), max(count, 2))

    def test_running_text_loses_nothing_and_fills_blocks(self):
        documents = [f"Document {i}. " + "It goes on and on. " * (i % 7) for i in range(30)]
        path = write(folder() / "a.txt", "\n".join(documents) + "\n\n")
        form = format_form("text", FormatOptions(train_file=str(path), block_size=24))
        blocks = [row["text"] for row in read(form, tokenizer=self.tokenizer).rows]
        self.assertEqual("".join("".join(blocks).split()), "".join("".join(documents).split()))
        lengths = [len(self.tokenizer(block)["input_ids"]) for block in blocks]
        self.assertLessEqual(max(lengths), 24)
        self.assertGreater(np.mean(lengths), 12)
        task = own_data("a", form, Wishes(evaluates=False)).task
        self.assertEqual(task.examples({"text": "x"})[0], ("", "x"))


class ClassesTest(parameterized.TestCase):
    TURN = {"context": "user: Hi agent: Hello user: How do I renew?", "document": "Renew online. " * 20,
            "response": "Online.", "neg_subtype": "none", "last_speaker": "user", "type": "positive",
            "evidence_20_50": "Renew online."}  # fmt: skip

    def dialogues(self, turns, config=None, form=Answerability):
        root = folder()
        write(root / form.FILES["train"], json.dumps(turns))
        made = class_form(f"examples.own_rows.multidoc2dial:{form.__name__}", str(root), config or {})
        data = own_data("dialogues", made, Wishes(evaluates=False))
        return data.source.read("train").rows

    def test_what_was_said_last_is_never_cut_off(self):
        config = {"max_document_length": 20, "max_input_tokens": 40, "tokenizer": bundled_model()}
        (row,) = self.dialogues([self.TURN], config)
        self.assertTrue(row["input"].endswith("How do I renew?"))
        self.assertTrue(row["input"].startswith("Renew online."))
        self.assertLessEqual(len(tiny_tokenizer()(row["input"])["input_ids"]), 41)

    def test_made_up_rows_have_exactly_the_shape_asked_for(self):
        tokenizer = tiny_tokenizer()
        form = class_form("Debug", None, {"num_examples": 9}, max_input_tokens=33, max_output_tokens=7)
        data = own_data("debug", form, Wishes())
        rows = data.source.read("train").rows
        self.assertLen(rows, 9)
        lengths = data.task.lengths(Lengths(512, 512))
        for row in rows:
            for column, length in (("input", lengths.source), ("output", lengths.target)):
                ids = tokenizer(row[column], max_length=length, truncation=True)["input_ids"]
                self.assertLen(ids, {"input": 33, "output": 7}[column])
        self.assertNotEqual(rows, data.source.read("validation").rows)

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
        data = own_data("mine", class_form("my_own_rows:Mine", None, {"count": 3}), Wishes())
        self.assertEqual(data.source.roles, ("train", "validation"))
        self.assertEqual(data.task.entry["metric_names"], ["accuracy"])
        self.assertLen(data.source.read("train").rows, 3)
        with exits_with(78, "my_own_rows has no 'Mien'; did you mean Mine"):
            class_form("my_own_rows:Mien", None, {})
        with exits_with(78, "no module 'no_such_rows'"):
            class_form("no_such_rows:Mine", None, {})

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
                class_form(name, path, config)


class FlagsTest(parameterized.TestCase):
    def test_flags_that_do_not_go_together(self):
        for flags, message in (
            ({"data_class": ["Debug"] * 2, "data_path": ["none"]}, "data_path has 1 values, but --data_class names 2"),
            ({"data_class": ["Debug"], "data_format": "csv"}, "two ways to name data"),
            ({"text_column": "x"}, "text_column x: it belongs to --data_format"),
            ({"data_class": ["Debug"], "prefix": "x"}, "prefix x: it belongs to --data_format"),
            ({"metrics": "bleu"}, "metrics bleu: it belongs to --data_format or --data_class"),
            ({"data_format": "csv", "data_path": ["x"]}, "data_path x: it belongs to --data_class"),
            (
                {"data_format": "csv", "input_format": ["__input__", "x"]},
                "input_format has 2 values, but --data_format is",
            ),
        ):
            with exits_with(78, message):
                DataFormatArguments(**flags)
