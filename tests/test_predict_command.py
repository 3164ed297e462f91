"""`t5suite predict` on the command line: what it takes, what it writes, and that kills and ranks change nothing."""

import contextlib
import csv
import gzip
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from tiny_predictor import answers, mini_rows, model_folder, output_path, predict_words, random_model, rows_file

import fine_tune_t5
from t5suite import FineTuner, load_task
from t5suite.testing import (
    cli_output,
    exits_with,
    read_rows,
    run_cli,
    save_model,
    tiny_rows,
    tiny_run,
    tiny_tokenizer,
    tiny_tuner,
    write_rows,
)

WAYS = {
    "greedy": "",
    "diverse": "--num_beams 4 --num_beam_groups 4 --diversity_penalty 0.5 --length_penalty 0.5 --repetition_penalty 1.3",
    "sampling": "--do_sample --temperature 0.8 --top_k 40 --top_p 0.9 --seed 3",
    "n best": "--num_beams 3 --num_return_sequences 3",
    "labels": "--labels",
    "own labels": "--labels good,bad",
    "scores": "--scores --include_inputs",
}
TWO = f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 --standalone -m t5suite".split()


def printed(*flags, typed="", **settings):
    """Lines on standard output; `typed` is standard input."""
    out, stdin = io.StringIO(), mock.Mock(buffer=io.BytesIO(typed.encode()))
    with contextlib.redirect_stdout(out), mock.patch.object(sys, "stdin", stdin):
        run_cli(*predict_words(*flags, **settings))
    return [json.loads(line) for line in out.getvalue().split("\n") if line[:1] == "{"]


def started(argv, **environment):
    return subprocess.Popen(
        argv, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


class FoldersAndFormsTest(parameterized.TestCase):
    def test_a_folder_s_files_are_answered_in_the_order_of_their_names_as_each_alone(self):
        folder = Path(tempfile.mkdtemp())
        (folder / "b.txt").write_text("good\nbad\n")
        (folder / "a.jsonl").write_text('{"input": "fine", "idx": 7}\n')
        (folder / ".notes.md").touch()
        lines = printed("--raw", rows=str(folder))
        self.assertEqual([(line["row"], line["file"]) for line in lines], [(0, "a.jsonl"), (1, "b.txt"), (2, "b.txt")])
        alone = [*printed("--raw", rows=str(folder / "a.jsonl")), *printed("--raw", rows=str(folder / "b.txt"))]
        self.assertEqual([line["prediction"] for line in lines], [line["prediction"] for line in alone])
        for suffix in (".csv", ".TSV", ".parquet"):
            with exits_with(78, f"answers{suffix}: answers are JSON lines; name the file .*answers.jsonl"):
                printed("--raw", rows=str(folder), output=folder.parent / f"answers{suffix}")
        with exits_with(78, "it would be among the files that are read"):
            printed(rows=str(folder), output=folder / "answers.jsonl")
        (folder / "notes.md").touch()
        with exits_with(78, "notes.md is not one"):
            printed("--raw", rows=str(folder))

    def test_answers_are_not_written_among_the_rows_of_the_test_split(self):
        folder = Path(tempfile.mkdtemp())
        for split in ("train", "test"):
            write_rows(folder / split / "rows.jsonl", [{"input": "fine"}])
        (folder / "link").symlink_to(folder / "test")
        for place in ("test", "link"):
            with exits_with(78, f"--output .*{place}/answers.jsonl: it would be among the files that are read"):
                printed(rows=str(folder), output=folder / place / "answers.jsonl")
        self.assertLen(answers(rows=folder), 1)

    def test_a_form_stands_around_finished_texts_alone(self):
        rows = Path(tempfile.mkdtemp()) / "rows.txt"
        rows.write_text("It rains.\n")
        (line,) = printed("--raw --include_inputs", r"--input_format=Is_it\nso:__input__", rows=str(rows))
        self.assertEqual(line["inputs"], "Is_it\nso:It rains.")
        for flags, message in (("", "mini/sentiment; for finished texts add --raw"), ("--raw", "in it once")):
            form = "__input__" if not flags else "no_place"
            with exits_with(78, message):
                printed(flags, f"--input_format={form}", rows=str(rows))


def table_file(name: str, columns: list[str], records: list[list[str]], **dialect) -> str:
    """A CSV or TSV file, or Parquet, after its name."""
    path = Path(tempfile.mkdtemp()) / name
    path.parent.mkdir(exist_ok=True)
    if ".parquet" in name:
        import pyarrow
        import pyarrow.parquet

        rows = [dict(zip(columns, record, strict=True)) for record in records]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(path)
    if ".tsv" in name:
        dialect |= {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    text = io.StringIO()
    csv.writer(text, **dialect).writerows([columns, *records])
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


def untidy_texts(count: int) -> list[str]:
    pieces = ["good film", 'a "quoted" one', "two\nlines", "one, two", "semi; colon", "naïve ☃", "", " spaces "]
    rng = np.random.default_rng(0)
    return [" ".join(pieces[i] for i in rng.integers(len(pieces), size=3)) for _ in range(count)]


class TablesTest(parameterized.TestCase):
    """Predicting reads the tables that fine-tuning reads."""

    @pytest.mark.slow
    def test_300_rows_with_quotes_and_line_breaks_give_300_answers(self):
        texts = untidy_texts(300)
        records = [[label, text] for text, label in zip(texts, ["1", "", "positive", "?"] * 75, strict=True)]
        rows = table_file("rows.csv", ["label", "sentence"], records)  # answers are not read
        lines = printed("--include_inputs", rows=rows)
        self.assertEqual([line["row"] for line in lines], list(range(300)))
        self.assertEqual([line["inputs"] for line in lines], [f"sentiment sentence: {text}" for text in texts])

    @parameterized.parameters(
        ("rows.csv", {}), ("rows.csv.gz", {"delimiter": ";"}), ("rows.csv", {"delimiter": "|"}), ("rows.tsv", {}),
        ("rows.parquet", {}),
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_every_table_is_read_as_the_same_json_lines(self, name, dialect):
        texts = ["plain", "naïve, ☃", "a; b"] if "tsv" in name else untidy_texts(8)
        records = [[str(i), text, "spare"] for i, text in enumerate(texts)]
        lines = printed("--include_inputs", rows=table_file(name, ["idx", "sentence", "note"], records, **dialect))
        plain = Path(tempfile.mkdtemp()) / "rows.jsonl"
        plain.write_text("".join(json.dumps({"idx": str(i), "sentence": t}) + "\n" for i, t in enumerate(texts)))
        self.assertEqual(lines, printed("--include_inputs", rows=str(plain)))

    @pytest.mark.slow
    def test_columns_of_other_names_are_named_and_standard_input_holds_tables_too(self):
        rows = table_file("rows.csv", ["review", "input"], [["good", "x"], ["bad", "y"]])
        lines = printed("--include_inputs --text_column review", rows=rows)
        self.assertEqual([line["inputs"] for line in lines], ["sentiment sentence: good", "sentiment sentence: bad"])
        lines = printed("--include_inputs --text_column review --raw", rows=rows)
        self.assertEqual([line["inputs"] for line in lines], ["good", "bad"])
        typed = "sentence|note\nfine|x\n"
        lines = printed("--include_inputs --input_type csv --delimiter bar", typed=typed, rows="-")
        self.assertEqual([line["inputs"] for line in lines], ["sentiment sentence: fine"])

    def test_an_idx_that_a_table_lacks_is_null_in_the_answer(self):
        rows = table_file("rows.parquet", ["idx", "sentence"], [[7.0, "good"], [float("nan"), "bad"]])
        self.assertEqual([line["idx"] for line in printed(rows=rows)], [7.0, None])

    def test_a_column_of_texts_alone_is_a_table(self):
        rows = table_file("rows.csv", ["sentence"], [["good"], ["bad; really"]])
        self.assertLen(printed(rows=rows), 2)

    @parameterized.parameters(
        (65, "A good film,positive\nA bad film,negative\n", "", "has neither sentence nor .* it has A good film, positive"),
        (65, "text,label\nx,a\n", "", "rows.csv:2: the row has neither sentence nor .*text, label; --text_column names"),
        (65, "text,label\nx,a\n", "--text_column txet", "rows.csv:2: no column 'txet' .*did you mean text"),
        (78, "text,label\nx,a\n", "--text_column text,label", "2 columns, but the model reads 1"),
        (65, "sentence,label\nx\n", "", "rows.csv:2: 1 cells, but the first line names 2 columns"),
        (78, "sentence,label\nx,a\n", "--delimiter xx", "--delimiter 'xx': one character"),
        (65, "sentence,label\nx,a\n", "--input_type jsonl", "rows.csv:1: not JSON"),
        (78, "sentence,label\nx,a\n", "--input_type text --delimiter tab", "--delimiter .* has no effect"),
        (65, "sentence,label\nx,a\n", "--input_type text --text_column a", "a line of text has no columns"),
        (65, "sentence,label\nx,a\n", "--input_type parquet", "rows.csv: not a sound parquet file"),
    )  # fmt: skip
    def test_tables_that_do_not_fit_are_refused_with_their_columns(self, exit_code, content, flags, message):
        path = Path(tempfile.mkdtemp()) / "rows.csv"
        path.write_text(content)
        with exits_with(exit_code, message):
            printed(flags, rows=str(path))

    def test_of_a_folder_of_splits_the_test_split_is_answered(self):
        for names, answered in (
            (["train.csv", "test.csv"], ["test.csv"]),
            (["train/a.csv", "test/a.csv", "test/b.csv"], ["a.csv", "b.csv"]),
            (["may.csv", "test.csv"], ["may.csv", "test.csv"]),
        ):
            root = Path(tempfile.mkdtemp())
            for name in names:
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text(f"sentence\n{name}\n")
            self.assertEqual([line["file"] for line in printed(rows=str(root))], answered)
        root = Path(tempfile.mkdtemp())
        (root / "train").mkdir()
        (root / "train" / "a.csv").write_text("sentence\nx\n")
        with exits_with(78, "a folder of splits without a test split; .*/train"):
            printed(rows=str(root))

    def test_a_table_is_continued_with_the_same_rows_and_delimiter_alone(self):
        rows, path = table_file("rows.csv", ["sentence", "note"], [["a", "b"]] * 5), output_path()
        run_cli(*predict_words("--window 2", output=path, rows=rows))
        whole = path.read_bytes()
        path.write_bytes(b"".join(whole.splitlines(True)[:3]))
        run_cli(*predict_words("--window 2", output=path, rows=rows))
        self.assertEqual(path.read_bytes(), whole)
        with exits_with(78, "answers from other settings"):
            run_cli(*predict_words("--delimiter comma", output=path, rows=rows))


class CommandTest(parameterized.TestCase):
    @parameterized.parameters(*WAYS)
    @pytest.mark.quick_cases(1)
    def test_every_way_answers_every_row_in_order(self, way):
        lines = printed(WAYS[way], "--batch_size 4 --window 8", rows=rows_file(count=10))
        self.assertEqual([line["row"] for line in lines], list(range(10)))
        self.assertEqual([line["idx"] for line in lines], [row["idx"] for row in mini_rows(count=10)])
        for line in lines:
            self.assertIsInstance(line["prediction"], str)
            if "labels" in way:
                self.assertAlmostEqual(sum(line["probabilities"].values()), 1, delta=1e-4)
                self.assertEqual(line["prediction"], max(line["probabilities"], key=line["probabilities"].get))
            if way == "n best":
                self.assertLen(line["predictions"], 3)
                self.assertEqual(line["predictions"][0]["text"], line["prediction"])
            if way == "scores":
                self.assertLess(line["score"], 0)
                self.assertStartsWith(line["inputs"], "sentiment sentence: ")

    def test_an_accelerator_that_is_not_cudas_is_called_idle_unless_none_is_wanted(self):
        self.enter_context(mock.patch("torch.cuda.is_available", return_value=False))
        self.enter_context(mock.patch("torch.accelerator.is_available", return_value=True))
        self.enter_context(mock.patch("torch.accelerator.current_accelerator", return_value=torch.device("xpu")))
        words = predict_words(rows=rows_file(count=1))
        for command, is_told in ((words, False), ([word for word in words if word != "--use_cpu"], True)):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as shown:
                run_cli(*command)
            self.assertEqual(
                bool(re.search("computed on the CPU: .* CUDA GPUs only, not xpu", shown.getvalue())), is_told
            )

    def test_lines_of_text_get_the_tasks_prefix_and_raw_ones_none(self):
        typed = "A good film.\nA bad film.\n"
        for flag, prefix in (("", "sentiment sentence: "), ("--raw", "")):
            lines = printed("--include_inputs", flag, typed=typed, rows="-")
            self.assertEqual([line["inputs"] for line in lines], [f"{prefix}{text}" for text in typed.splitlines()])

    @parameterized.parameters(
        '[\n  {"sentence": "A good film."}\n]', '[{"sentence": "A good film."}]', ' [ "A good film.",\n"A bad film."]'
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_an_array_on_standard_input_is_no_line_of_text(self, typed):
        with exits_with(65, "standard input:1: the start of a JSON array, .*--input FILE.json.*--input_type text"):
            printed(typed=typed, rows="-")
        lines = printed("--include_inputs --input_type text", typed=typed, rows="-")
        texts = [f"sentiment sentence: {text}" for text in typed.splitlines()]
        self.assertEqual([line["inputs"] for line in lines], texts)

    @parameterized.parameters(
        ("", "idx\tdescription\n7\tgood\n", ""), ("", "sentence\ngood\n", "tsv"), ("", "idx,sentence\n7,good\n", "csv"),
        ("--raw", "inputs\ngood\n", "csv"), ("--raw", "\ufeffidx\tinput\r\n7\tgood\r\n", "tsv"),
    )  # fmt: skip
    @pytest.mark.quick_cases(2)
    def test_the_first_line_of_a_table_on_standard_input_is_not_answered(self, flags, typed, table):
        model = Path(shutil.copytree(model_folder(), Path(tempfile.mkdtemp()) / "model"))
        (model / "model.safetensors").write_bytes(b"damaged")  # and not loaded
        with exits_with(78, "standard input:1: .*--input_type tsv or csv .*--input_type text"):
            printed(flags, typed=typed, rows="-", model=model)
        if table:
            (line,) = printed(flags, f"--include_inputs --input_type {table}", typed=typed, rows="-")
            self.assertEndsWith(line["inputs"], "good")
        lines = printed(flags, "--include_inputs --input_type text", typed=typed, rows="-")
        for line, text in zip(lines, typed.removeprefix("\ufeff").splitlines(), strict=True):
            self.assertEndsWith(line["inputs"], text)

    @parameterized.parameters(
        ('{"sentence": "good", "idx": 7}\n\n"bad"\n', ["good", "bad"]), ('\n \n{"sentence": "good"}\n', ["good"]),
        ("good\n\nbad\n", ["good", "", "bad"]), ("\n\ngood\n", ["", "", "good"]), ("\n\n", ["", ""]), ("[[Film]]\n", ["[[Film]]"]),
        ('\ufeff\n{"sentence": "good"}\n', ["good"]), ("\nidx,sentence\n7,good\n", None), ("\ufeffidx\tdescription\n7\tgood\n", None),
    )  # fmt: skip
    @pytest.mark.quick_cases(2)
    def test_rows_are_read_alike_from_standard_input_and_from_files_whose_names_say_nothing(self, content, texts):
        place = Path(tempfile.mkdtemp())
        (place / "part-aa").write_text(content)
        (place / "rows.jsonl.1.gz").write_bytes(gzip.compress(content.encode()))
        for rows in ("-", place / "part-aa", place / "rows.jsonl.1.gz"):
            if texts is None:
                with exits_with(78, ":[12]: .*--input_type tsv or csv .*--input_type text"):
                    printed(typed=content, rows=rows)
            else:
                lines = printed("--include_inputs", typed=content, rows=rows)
                self.assertEqual([line["inputs"] for line in lines], [f"sentiment sentence: {text}" for text in texts])

    def test_a_name_that_says_text_is_text_and_an_array_in_a_file_is_its_rows(self):
        content = '[{"sentence": "good"}]\n'
        for name, text in (("rows.txt", content.strip()), ("part-aa", "good")):
            rows = Path(tempfile.mkdtemp()) / name
            rows.write_text(content)
            (line,) = printed("--include_inputs", rows=rows)
            self.assertEqual(line["inputs"], f"sentiment sentence: {text}")

    def test_prose_on_standard_input_needs_no_flag(self):
        typed = "A sentence, good and bad.\nsentence\nwith\ta tab\n"
        self.assertLen(printed(typed=typed, rows="-"), 3)

    def test_texts_in_brackets_are_texts(self):
        for text in ("[1] A good film.", "[[Film]]", "[cut] A good film."):
            (line,) = printed("--include_inputs", typed=f"{text}\n", rows="-")
            self.assertEqual(line["inputs"], f"sentiment sentence: {text}")

    @parameterized.parameters("causal", "masked")
    @pytest.mark.quick_cases(1)
    def test_other_families_answer_too(self, family):
        lines = printed(rows=rows_file(count=5), family=family)
        self.assertLen(lines, 5)
        self.assertEqual("probabilities" in lines[0], family == "masked")
        if family == "causal":
            with exits_with(78, "--max_new_tokens 1.*has positions for 128"):
                run_cli(*predict_words("--max_new_tokens 127", rows=rows_file(count=3), family="causal"))

    @parameterized.parameters(
        (78, "", "give --input", None), (78, "--labels one", "two different labels"),
        (78, "--web", "--web takes no --input"),
        (78, "--labels --num_beams 3", "--num_beams has no effect"), (78, "--overwrite", "--overwrite has no effect"),
        (78, "--output -", "--output -: leave --output out for standard output"),
        (78, "--batch_size 0", "--batch_size 0"), (78, "--dataset_name rte", "unknown task 'rte'"),
        (78, "--num_baems 3", "did you mean --num_beams"),
        (65, "", "nowhere.jsonl: no such file", "nowhere.jsonl"),
        (78, "--do_sample", "--do_sample has no effect", "x", "masked"),
    )  # fmt: skip
    def test_mistakes_are_told(self, exit_code, flags, message, rows="x", family="seq2seq"):
        with exits_with(exit_code, message):
            run_cli(*predict_words(flags, rows=rows, family=family))

    def test_a_model_that_does_not_fit_its_device_is_not_blamed_on_the_batches(self):
        to = torch.nn.Module.to

        def to_a_full_device(module, place, *others):
            if isinstance(place, torch.device):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return to(module, place, *others)

        ways = "use --dtype bfloat16 or a smaller model"
        rows = rows_file(count=1)
        self.enterContext(mock.patch.object(torch.nn.Module, "to", to_a_full_device))
        with exits_with(71, rf"^--model_name_or_path .*: the model does not fit cpu \(CUDA out of memory\); {ways}$"):
            answers(rows=rows)
        gpu = mock.patch.multiple(
            torch.cuda, is_available=lambda: True, device_count=lambda: 1, set_device=mock.DEFAULT
        )
        with gpu, exits_with(71, rf"does not fit cuda:0 .*; {ways} or --device_map balanced or --use_cpu$"):
            run_cli(*(word for word in predict_words(rows=rows) if word != "--use_cpu"))

    def test_demonstrations_that_do_not_fit_are_left_out_as_in_training(self):
        shown = [{"input": f"{word} film.", "output": word, "explanation": "It is."} for word in ("good", "bad")]
        row = {"task": "t1", "definition": "Say it.", "positive_examples": shown, "negative_examples": []}
        row |= {"input": "A.", "idx": "t1-0", "output": ["good"]}
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", [row])
        tokenizer, task = tiny_tokenizer(), load_task("super_ni", "english")
        flags = "--benchmark super_ni --dataset_name english --include_inputs --max_new_tokens 1 --max_source_length"
        for length, num_shown in ((400, 2), (115, 1), (70, 0)):
            fits = lambda text, length=length: len(tokenizer(text).input_ids) <= length
            (line,) = answers(flags, str(length), rows=rows)
            self.assertEqual(line["inputs"], task.examples(row, "validation", fits)[0].inputs)
            self.assertEqual(line["inputs"].count("Positive Example"), num_shown, length)
        # A decoder-only model reads a separator, too.
        one_shown, none_shown = (
            task.examples(row, "validation", lambda text, most=most: text.count("Positive Example") <= most)[0].inputs
            for most in (1, 0)
        )
        whole = sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in (one_shown, "\nanswer:"))
        for length, text in ((whole, one_shown), (whole - 1, none_shown)):
            (line,) = answers(flags, str(length), rows=rows, family="causal")
            self.assertEqual(line["inputs"], text)


class TrainedModelTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = tiny_run(max_train_samples=64, max_eval_samples=24, max_steps=4).directory
        cls.rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", tiny_rows("sentiment", count=100))

    @parameterized.product(method=["generate", "score"], adapter=["", "lora", "prompt_tuning"])
    @pytest.mark.slow
    def test_answers_are_those_of_the_evaluation(self, method, adapter):
        scored = Path(tempfile.mkdtemp()) / "eval"
        flags = f"--model_name_or_path {self.directory} --eval_method {method} --use_cpu --output_dir {scored} "
        flags += f"--adapter {adapter} --max_steps 3 --learning_rate 0.05" if adapter else "--eval_only"
        fine_tune_t5.main([*flags.split(), "--disable_tqdm", "True"])
        expected = read_rows(scored / "predictions/sentiment.validation.jsonl")
        model = str(scored if adapter else self.directory)  # an adapter's folder is a model to predict with
        lines = printed("--labels" if method == "score" else "", rows=str(self.rows), model=model)
        self.assertEqual([line["prediction"] for line in lines], [line["prediction"] for line in expected[:100]])

    @pytest.mark.slow
    def test_fine_tuner_answers_as_the_command(self):
        tuner = FineTuner(model_name_or_path=str(self.directory), use_cpu=True, eval_only=True)
        texts = [line["inputs"] for line in printed("--include_inputs", rows=str(self.rows), model=str(self.directory))]
        for settings in ({}, {"top_p": 0.9, "do_sample": True}, {"num_beams": 3}):
            flags = " ".join(f"--{name} {value}" for name, value in settings.items()).replace(" True", "")
            lines = printed(flags, rows=str(self.rows), model=str(self.directory))
            self.assertEqual(tuner.predict(texts, raw=True, **settings), [line["prediction"] for line in lines])
        several = tuner.predict(texts[:3], raw=True, num_beams=2, num_return_sequences=2)
        self.assertEqual([len(answers) for answers in several], [2, 2, 2])
        lines = printed("--labels", rows=str(self.rows), model=str(self.directory))
        expected = [line["probabilities"]["positive"] for line in lines]
        shares = [of_label["positive"] for of_label in tuner.predict_labels(texts, raw=True)]
        np.testing.assert_allclose(shares, expected, atol=1e-5)


class FineTunerTest(parameterized.TestCase):
    """`FineTuner.predict` answers, and refuses, as the command does."""

    def tuner(self, family: str, task: str, **settings) -> FineTuner:
        """Of a model whose folder says nothing of its task."""
        folder = Path(tempfile.mkdtemp()) / "model"
        shutil.copytree(model_folder(family, task), folder, ignore=shutil.ignore_patterns("task.json"))
        return tiny_tuner(str(folder), f"mini/{task}", max_source_length=64, **settings)

    def test_an_encoder_that_was_not_trained_yet_reads_what_it_would_read_then(self):
        rows = list(mini_rows("entailment", 8))
        expected = answers(rows=rows_file("entailment", 8), model=model_folder("masked", "entailment"))
        tuner = self.tuner("masked", "entailment", generation_num_beams=4)
        self.assertEqual(tuner.predict(rows), [line["prediction"] for line in expected])
        shares = tuner.predict_labels(rows)
        for line, shares_of_row in zip(expected, shares, strict=True):
            self.assertEqual(shares_of_row, line["probabilities"])
        card = json.loads((tuner.save(Path(tempfile.mkdtemp()) / "saved") / "task.json").read_text())
        self.assertEqual(card["family"], "masked")
        for settings in ({"do_sample": True, "num_return_sequences": 3}, {"num_beams": 2}, {"return_scores": True}):
            with exits_with(78, "has no effect: the model's head answers, and no text is generated"):
                tuner.predict(rows, **settings)

    @parameterized.parameters(
        ("similarity", None, "this model answers with a number"),
        ("sentiment", "none", "labels='none' has the model write"),
    )
    def test_labels_that_no_model_chooses_have_no_probabilities(self, task, labels, message):
        with exits_with(78, f"predict_labels: {message}.*; call predict"):
            self.tuner("masked", task).predict_labels([dict(row) for row in mini_rows(task, 2)], labels=labels)

    def test_candidates_of_a_task_of_sets_are_whole_answers(self):
        rows = [{"text": "It came late.", "faults": "late, broken"}, {"text": "It was torn.", "faults": "broken"}]
        columns = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1"}
        tuner = tiny_tuner(data=rows, no_eval=True, **columns)
        for labels in (["late", "broken"], "late,broken", "task"):
            example = re.escape('labels=["late", "broken, late"]')
            with exits_with(78, f"is answered by sets of labels, .* whole answers: {example}, or call predict"):
                tuner.predict_labels("It came late.", labels=labels)
        by_list = tuner.predict_labels("It came late.", labels=["late", "broken, late"])
        self.assertEqual(list(by_list), ["late", "broken, late"])
        self.assertAlmostEqual(sum(by_list.values()), 1, delta=1e-4)
        for labels in ('late,"broken, late"', 'late,"late,broken"', ["late", ["late", "broken", "late"]]):
            self.assertEqual(tuner.predict_labels("It came late.", labels=labels), by_list)

    def test_candidates_of_sets_that_the_model_never_writes_are_refused(self):
        rows = [{"text": "It came late.", "faults": "late, broken"}, {"text": "It was torn.", "faults": "broken"}]
        columns = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1"}
        tuner = tiny_tuner(data=rows, no_eval=True, max_steps=1, **columns)
        tuner.train()
        saved = FineTuner(tuner.save(Path(tempfile.mkdtemp()) / "saved"))
        problems = {
            "a label in .* has a comma": ["late", ["late, broken"]],
            "'broken, late' is there twice": ["late, broken", "broken, late"],
            "a candidate names no label": ["late, broken", " , "],
        }
        for model, (message, labels) in itertools.product((tuner, saved), problems.items()):
            with exits_with(78, f"^labels: {message}"):
                model.predict_labels("It came late.", labels=labels)

    def test_candidates_of_sets_whose_labels_an_earlier_run_has_trained_give_a_warning(self):
        columns = {"text_column": "text", "target_column": "faults", "metrics": "micro_f1"}
        rows = [{"text": "It came late.", "faults": "late, broken"}] * 2
        tuner = tiny_tuner(data=rows, no_eval=True, max_steps=1, **columns)
        tuner.train()
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertLen(tuner.predict_labels("It came late.", labels=["late", "brokn, late"]), 2)
        self.assertRegex("".join(logs.output), "'brokn'; did you mean broken")

    def test_numbers_are_chosen_from_those_that_are_named(self):
        rows = [{"text": "It came late.", "stars": 2}, {"text": "It was torn.", "stars": 1}]
        tuner = tiny_tuner(data=rows, no_eval=True, text_column="text", target_column="stars", metrics="pearson")
        for labels in (None, "task"):
            with exits_with(78, r'answered by a number.*choose from: labels=\["1", "2", "3"\], or call predict'):
                tuner.predict_labels("It came late.", labels=labels)
        self.assertEqual(list(tuner.predict_labels("It came late.", labels=["1", "2", "3"])), ["1", "2", "3"])
        words = ["--model_name_or_path", tuner.save(Path(tempfile.mkdtemp()) / "saved"), "--input"]
        words.append(write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", rows))
        with exits_with(78, "answered by a number.*choose from: --labels 1,2,3, or leave the labels out"):
            run_cli("predict", *words, "--labels")
        (line, _) = [json.loads(line) for line in cli_output("predict", *words, "--labels", "1,2,3").splitlines()]
        self.assertEqual(list(line["probabilities"]), ["1", "2", "3"])
        self.assertIn(line["prediction"], ["1", "2", "3"])  # a text, no number

    def test_beams_of_the_run_are_those_of_written_answers_alone(self):
        rows = [dict(row) for row in mini_rows()]
        tuner = self.tuner("seq2seq", "sentiment", generation_num_beams=4)
        written = [
            tuner.predict(rows, max_new_tokens=6, **settings) for settings in ({}, {"num_beams": 4}, {"num_beams": 1})
        ]
        self.assertEqual(written[0], written[1])
        self.assertNotEqual(written[0], written[2])
        chosen = tuner.predict(rows, labels=["good", "bad"])
        self.assertContainsSubset(chosen, ["good", "bad"])
        for labels in ("good, bad", np.array(["good", "bad"])):
            self.assertEqual(tuner.predict(rows, labels=labels), chosen)
        self.assertEqual(list(tuner.predict_labels(rows[0], labels=[1, 2])), ["1", "2"])
        with exits_with(78, "--num_beams has no effect"):
            tuner.predict(rows, labels=["good", "bad"], num_beams=4)

    @parameterized.parameters(("seq2seq", ""), ("causal", " "))
    @pytest.mark.quick_cases(1)
    def test_a_task_that_the_model_does_not_record_has_answers_as_long_as_its_longest_label(self, family, lead):
        folder = save_model(tempfile.mkdtemp(), random_model(family))
        words = [f"{lead}{word}" for word in ("negative", "positive")]
        label_tokens = tiny_tokenizer()(words, add_special_tokens=False)["input_ids"]
        flags, rows = "--benchmark mini --dataset_name sentiment", rows_file(count=4)
        lines = answers(flags, rows=rows, model=folder)
        self.assertNotEqual(lines, answers(flags, "--max_new_tokens 64", rows=rows, model=folder))
        longest = f"--max_new_tokens {max(map(len, label_tokens)) + 1}"  # and the end
        self.assertEqual(lines, answers(flags, longest, rows=rows, model=folder))
        with exits_with(78, f"--min_new_tokens 20 is more than {longest}, which is what the task needs"):
            answers(flags, "--min_new_tokens 20", rows=rows, model=folder)
        tuner = FineTuner(folder, benchmark="mini", dataset_name="sentiment", use_cpu=True, quiet=True)
        predictions = tuner.predict([dict(row) for row in mini_rows(count=4)])
        self.assertEqual(predictions, [line["prediction"] for line in lines])

    def test_a_missing_tokenizer_names_the_flag(self):
        folder = save_model(tempfile.mkdtemp(), random_model("seq2seq"))
        (folder / "tokenizer.json").unlink()
        words = "--benchmark mini --dataset_name sentiment"
        with exits_with(78, f"--model_name_or_path {folder}: it contains no tokenizer"):
            answers(words, rows=rows_file(count=1), model=folder)
        with exits_with(78, f"--tokenizer_name {folder}: it contains no tokenizer"):
            answers(words, "--tokenizer_name", str(folder), rows=rows_file(count=1), model=model_folder())

    def test_an_answer_ends_with_any_of_the_model_s_end_tokens(self):
        tuner = self.tuner("seq2seq", "sentiment")
        model = tuner.model
        model.generation_config.eos_token_id = list(range(model.config.vocab_size))
        (answer,) = tuner.predict([dict(row) for row in mini_rows(count=1)], max_new_tokens=6, return_scores=True)
        self.assertEqual((answer.text, answer.truncated), ("", False))

    def test_numbers_may_be_whole_or_floats_where_they_say_the_same_and_none_is_the_default(self):
        rows = [dict(row) for row in mini_rows(count=3)]
        tuner = self.tuner("seq2seq", "sentiment")
        drawn = [
            tuner.predict(
                rows, do_sample=True, num_return_sequences=3, max_new_tokens=2, return_scores=True,
                temperature=temperature, top_k=top_k, repetition_penalty=repetition_penalty,
            )
            for temperature, top_k, repetition_penalty in ((2.0, 50, 2.0), (2, 50.0, 2), (np.float32(2), np.int64(50), 2))
        ]  # fmt: skip
        self.assertEqual(drawn[1:], drawn[:1] * 2)
        self.assertTrue(any(answer.truncated for answers_of_row in drawn[0] for answer in answers_of_row))
        by_default = tuner.predict(rows, do_sample=True, temperature=2, max_new_tokens=2)
        unset = {"seed": None, "num_beams": None, "num_return_sequences": None}
        self.assertEqual(tuner.predict(rows, do_sample=True, temperature=2, max_new_tokens=2, **unset), by_default)
        with exits_with(78, "--top_k 50.5: must be a whole number"):
            tuner.predict(rows, do_sample=True, top_k=50.5)


@pytest.mark.slow
class ProcessesTest(parameterized.TestCase):
    FLAGS = "--window 4 --batch_size 2 --do_sample --max_new_tokens 12 --num_return_sequences 2"

    @pytest.mark.resume
    def test_killed_and_started_again_it_writes_the_same_bytes(self):
        rows, path = rows_file(count=22), output_path()
        whole = output_path()
        run_cli(*predict_words(self.FLAGS, output=whole, rows=rows))
        argv = [sys.executable, "-m", "t5suite", *predict_words(self.FLAGS, output=path, rows=rows)]
        for lines in (1, 9, 17):
            process = started(argv)
            while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") >= lines):
                time.sleep(0.002)
            time.sleep(0.004)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        self.assertEqual(started(argv).wait(), 0)
        self.assertEqual(path.read_bytes(), whole.read_bytes())

    def test_a_bad_row_ends_all_processes(self):
        rows, path = rows_file(count=10), output_path()
        Path(rows).write_text(Path(rows).read_text() + "{oops\n")
        process = started([*TWO, *predict_words(self.FLAGS, output=path, rows=rows)])
        _, errors = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("rows.jsonl:11: not JSON", errors.decode())
        self.assertLen(path.read_text().splitlines(), 8)
