"""Submission files: the boards' exact bytes, no label made up without a word, no file with rows missing."""

import contextlib
import io
import json
import re
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from absl.testing import parameterized

from t5suite import constants
from t5suite.constants import DATASET_VALS
from t5suite.testing import exits_with, read_rows, run_cli, write_rows

# What the boards' instructions ask for (gluebenchmark.com, super.gluebenchmark.com): file, task, split, rows; behind them
# a few answers of a model, and what the file says for them.
PUBLISHED = {
    "glue": {
        "CoLA.tsv": ("cola", "test", 1063, ["acceptable", "unacceptable"], ["1", "0"]),
        "SST-2.tsv": ("sst2", "test", 1821, ["negative", "positive"], ["0", "1"]),
        "MRPC.tsv": ("mrpc", "test", 1725, ["equivalent", "not_equivalent"], ["1", "0"]),
        "STS-B.tsv": ("stsb", "test", 1379, ["2.6", "0.0", " 5"], ["2.6", "0.0", "5.0"]),
        "QQP.tsv": ("qqp", "test", 390965, ["not_duplicate", "duplicate"], ["0", "1"]),
        "MNLI-m.tsv": ("mnli", "test_matched", 9796, ["contradiction", "neutral"], ["contradiction", "neutral"]),
        "MNLI-mm.tsv": ("mnli", "test_mismatched", 9847, ["entailment", "neutral"], ["entailment", "neutral"]),
        "QNLI.tsv": ("qnli", "test", 5463, ["entailment", "not_entailment"], ["entailment", "not_entailment"]),
        "RTE.tsv": ("rte", "test", 3000, ["not_entailment", "entailment"], ["not_entailment", "entailment"]),
        "WNLI.tsv": ("wnli", "test", 146, ["entailment", "not_entailment"], ["1", "0"]),
        "AX.tsv": ("ax", "test", 1104, ["neutral", "entailment"], ["neutral", "entailment"]),
    },
    "super_glue": {
        "BoolQ.jsonl": ("boolq", "test", 3245, ["True", "False"], ['"true"', '"false"']),
        "CB.jsonl": ("cb", "test", 250, ["contradiction", "neutral"], ['"contradiction"', '"neutral"']),
        "COPA.jsonl": ("copa", "test", 500, ["choice2", "choice1"], ["1", "0"]),
        "MultiRC.jsonl": ("multirc", "test", 9693, ["False", "True", "True"], ["0", "1", "1"]),
        "ReCoRD.jsonl": ("record", "test", 10000, ["Ann", "Ben"], ['"Ann"', '"Ben"']),
        "RTE.jsonl": ("rte", "test", 3000, ["entailment", "not_entailment"], ['"entailment"', '"not_entailment"']),
        "WiC.jsonl": ("wic", "test", 1400, ["False", "True"], ['"false"', '"true"']),
        "WSC.jsonl": ("wsc.fixed", "test", 146, ["the Mark", "Pete"], ['"True"', '"False"']),
        "AX-b.jsonl": ("axb", "test", 1104, ["not_entailment", "entailment"], ['"not_entailment"', '"entailment"']),
        "AX-g.jsonl": ("axg", "test", 356, ["entailment"] * 2 + ["not_entailment"], ['"entailment"'] * 2 + ['"not_entailment"']),
    },
}  # fmt: skip
# Other tasks that make the same file.
ALTERNATIVES = {("glue", "WNLI.tsv"): "wnli_simple", ("super_glue", "WSC.jsonl"): "wsc"}
# Files with one line a row, in the rows' order.
PLAIN = {
    benchmark: {file: case for file, case in files.items() if file not in ("MultiRC.jsonl", "ReCoRD.jsonl")}
    for benchmark, files in PUBLISHED.items()
}


class Submission(NamedTuple):
    """A command's folder of files, what it prints, by file, and what it says."""

    folder: Path
    reports: dict[str, dict]
    messages: str


def official_predictions(benchmark, file, count=30):
    """Lines such as a run writes: one per row of the test split, with the answers of `PUBLISHED` in turn."""
    task, _, _, texts, _ = PUBLISHED[benchmark][file]
    for i in range(count):
        line = {"row": i, "example": 0, "prediction": texts[i % len(texts)], "idx": i}
        if task == "multirc":
            line["idx"] = {"paragraph": i // 10, "question": i // 5, "answer": i}
        if task == "record":
            line["idx"] = {"passage": i // 3, "query": i}
        if task == "wsc.fixed":
            line["candidate"] = "Mark"
        yield line


def lines_of(texts, **columns) -> list[dict]:
    """A run's lines of predictions for the first rows of a split."""
    return [{"row": i, "prediction": text, "idx": i, **columns} for i, text in enumerate(texts)]


def predictions_dir(benchmark, **counts):
    """A run's predictions, 30 a file; `counts` has others by the task's name, 0 being no file."""
    directory = Path(tempfile.mkdtemp()) / "predictions"
    for file, (task, split, *_) in PUBLISHED[benchmark].items():
        count = counts.get(task, 30)
        if count:
            write_rows(directory / f"{task}.{split}.jsonl", official_predictions(benchmark, file, count))
    return directory


def submit(benchmark, folder, *argv) -> Submission:
    out, err = io.StringIO(), io.StringIO()
    output_dir = Path(tempfile.mkdtemp()) / "submission"
    words = ["--benchmark", benchmark, "--predictions_dir", folder, "--output_dir", output_dir, "--json"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_cli("submit", *words, *argv)
    reports = {line["file"]: line for line in map(json.loads, out.getvalue().splitlines())}
    return Submission(output_dir, reports, err.getvalue())


def submit_lines(benchmark, lines_of_task: dict[str, list[dict]], split: str = "test") -> Submission:
    """A submission of some tasks' predictions of a part of their rows."""
    folder = Path(tempfile.mkdtemp())
    for task, lines in lines_of_task.items():
        write_rows(folder / f"{task}.{split}.jsonl", lines)
    return submit(benchmark, folder, "--allow_missing_tasks", "--allow_partial")


class SmallTestSplits(parameterized.TestCase):
    """The official numbers of test rows cut to 30 each: QQP alone has 390965."""

    def setUp(self):
        super().setUp()
        for benchmark in PUBLISHED:
            for name, entry in DATASET_VALS[benchmark].items():
                small = {split: min(count, 30) for split, count in entry["num_examples"].items()}
                self.enterContext(mock.patch.dict(constants.DATASET_VALS[benchmark][name], num_examples=small))


def written_rows(benchmark: str, values) -> bytes:
    """A board's file with these answers."""
    if benchmark == "glue":
        return ("index\tprediction\r\n" + "".join(f"{i}\t{value}\r\n" for i, value in enumerate(values))).encode()
    return "".join(f'{{"idx": {i}, "label": {value}}}\n' for i, value in enumerate(values)).encode()


class BytesTest(parameterized.TestCase):
    @parameterized.parameters("glue", "super_glue")
    def test_answers_are_written_as_the_board_asks(self, benchmark):
        folder = Path(tempfile.mkdtemp())
        for task, split, _, texts, _ in PLAIN[benchmark].values():
            write_rows(folder / f"{task}.{split}.jsonl", lines_of(texts, candidate="Mark"))
        submission = submit(benchmark, folder, "--allow_missing_tasks", "--allow_partial")
        self.assertEqual(sorted(submission.reports), sorted(PLAIN[benchmark]))
        for file, (task, _, _, texts, values) in PLAIN[benchmark].items():
            self.assertEqual((submission.folder / file).read_bytes(), written_rows(benchmark, values), file)
            report = {"file": file, "task": task, "rows": len(texts), "unparsable": 0}
            self.assertEqual(submission.reports[file], report)

    def test_an_answer_belongs_to_the_index_that_it_names_and_not_to_its_place(self):
        task, _, _, texts, values = PUBLISHED["glue"]["RTE.tsv"]
        indices = list(range(len(texts)))[::-1]
        lines = [line | {"idx": idx} for line, idx in zip(lines_of(texts), indices, strict=True)]
        submission = submit_lines("glue", {task: lines})
        lines_written = (submission.folder / "RTE.tsv").read_bytes().splitlines()
        self.assertCountEqual(lines_written, written_rows("glue", values[::-1]).splitlines())

    @parameterized.parameters(*ALTERNATIVES)
    def test_another_form_of_a_task_makes_the_same_file(self, benchmark, file):
        _, _, _, texts, values = PUBLISHED[benchmark][file]
        submission = submit_lines(benchmark, {ALTERNATIVES[benchmark, file]: lines_of(texts, candidate="Mark")})
        if file == "WNLI.tsv":  # its answers are pronouns' referents, not labels
            values = ["0"] * len(texts)
        self.assertEqual((submission.folder / file).read_bytes(), written_rows(benchmark, values))

    def test_record_takes_the_first_prediction_of_a_query_and_its_id(self):
        lines = [{"row": i, "prediction": text, "idx": {"passage": 0, "query": query}}
                 for i, (text, query) in enumerate([("Zoë", 7), ("Ann", 7), ("Ben", 3)])]  # fmt: skip
        submission = submit_lines("super_glue", {"record": lines})
        content = (submission.folder / "ReCoRD.jsonl").read_bytes()
        self.assertEqual(content, b'{"idx": 7, "label": "Zo\\u00eb"}\n{"idx": 3, "label": "Ben"}\n')
        self.assertEqual(submission.reports["ReCoRD.jsonl"]["rows"], 2)

    def test_an_index_of_another_type_or_a_second_time_is_refused_with_its_line(self):
        answer = {"paragraph": 0, "question": 0, "answer": 4}
        for benchmark, task, indices, message in (
            ("glue", "rte", [5, 5], "rte.test.jsonl:2: idx 5 is already in .*rte.test.jsonl:1"),
            ("glue", "rte", [0, "1"], "rte.test.jsonl:2: idx must be a whole number, not '1'"),
            ("super_glue", "cb", [True], "cb.test.jsonl:1: idx must be a whole number, not True"),
            ("super_glue", "copa", [3, 4, 3], "copa.test.jsonl:3: idx 3 is already in .*copa.test.jsonl:1"),
            ("super_glue", "multirc", [answer, answer | {"question": 1}], "multirc.test.jsonl:2: idx 4 is already"),
            ("super_glue", "multirc", [{"paragraph": 0, "question": 0}], "multirc.test.jsonl:1: .* has no 'answer'"),
            ("super_glue", "record", [{"passage": 0, "query": 1.0}], "record.test.jsonl:1: idx.query must be a whole"),
        ):
            lines = [{"row": row, "prediction": "x", "idx": idx} for row, idx in enumerate(indices)]
            with exits_with(65, message):
                submit_lines(benchmark, {task: lines})

    def test_multirc_is_nested_by_paragraph_and_question_also_where_rows_are_scattered(self):
        triples = [(0, 0, 0), (0, 1, 2), (0, 0, 1), (1, 2, 3)]
        idx = [dict(zip(("paragraph", "question", "answer"), triple)) for triple in triples]
        texts = ["True", "False", "False", "True"]
        lines = [{"row": i, "prediction": text, "idx": ids} for i, (text, ids) in enumerate(zip(texts, idx))]
        submission = submit_lines("super_glue", {"multirc": lines})
        first = {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]}
        second = {"idx": 1, "answers": [{"idx": 2, "label": 0}]}
        third = {"idx": 2, "answers": [{"idx": 3, "label": 1}]}
        passages = [{"idx": i, "passage": {"questions": each}} for i, each in enumerate(([first, second], [third]))]
        self.assertEqual(read_rows(submission.folder / "MultiRC.jsonl"), passages)


class NoAnswerTest(SmallTestSplits):
    def test_the_last_label_stands_in_and_is_counted(self):
        no_answer = lines_of(["no such label"])
        for benchmark, split, expected in (
            ("glue", "test", {"rte": ("RTE.tsv", "not_entailment"), "cola": ("CoLA.tsv", "1")}),
            ("glue", "test_matched", {"mnli": ("MNLI-m.tsv", "contradiction")}),
            ("super_glue", "test", {"cb": ("CB.jsonl", '"neutral"'), "boolq": ("BoolQ.jsonl", '"true"'), "copa": ("COPA.jsonl", "1")}),
        ):  # fmt: skip
            submission = submit_lines(benchmark, dict.fromkeys(expected, no_answer), split)
            for file, value in expected.values():
                self.assertEqual((submission.folder / file).read_bytes(), written_rows(benchmark, [value]))
                self.assertEqual(submission.reports[file]["unparsable"], 1)

    def test_the_command_tells_how_many_per_task(self):
        folder = predictions_dir("glue")
        write_rows(folder / "rte.test.jsonl", lines_of(["Entailment"] * 3 + ["entailment"] * 27))
        submission = submit("glue", folder)
        message = "RTE.tsv: 3 of 30 predictions of rte are not valid; the last label replaces them"
        self.assertIn(message, submission.messages)
        self.assertEqual(submission.messages.count("note:"), 1)
        report = {"file": "RTE.tsv", "task": "rte", "rows": 30, "unparsable": 3}
        self.assertEqual(submission.reports["RTE.tsv"], report)


class CommandTest(SmallTestSplits):
    @parameterized.parameters("glue", "super_glue")
    def test_a_whole_submission_and_its_zip(self, benchmark):
        output_dir, reports, messages = submit(benchmark, predictions_dir(benchmark))
        files = sorted(PUBLISHED[benchmark])
        self.assertEqual(sorted(path.name for path in output_dir.iterdir()), sorted([*files, f"{benchmark}.zip"]))
        self.assertEqual({file: report["task"] for file, report in reports.items()},
                         {file: task for file, (task, *_) in PUBLISHED[benchmark].items()})  # fmt: skip
        with zipfile.ZipFile(output_dir / f"{benchmark}.zip") as archive:
            self.assertEqual(sorted(archive.namelist()), files)
            for file, (*_, values) in PUBLISHED[benchmark].items():
                written = archive.read(file)
                matches = re.findall(r'\d\t(\S+)\r\n|"label": ("\w+"|\d)', written.decode())
                answers = ["".join(groups) for groups in matches]
                self.assertEqual(answers, [values[i % len(values)] for i in range(30)], file)
                self.assertEqual(written, (output_dir / file).read_bytes())
        self.assertEqual(messages, f"{output_dir / benchmark}.zip\n")
        # Equal predictions, equal bytes.
        again = submit(benchmark, predictions_dir(benchmark)).folder
        self.assertEqual((again / f"{benchmark}.zip").read_bytes(), (output_dir / f"{benchmark}.zip").read_bytes())

    def test_missing_tasks_are_refused_unless_allowed(self):
        folder = predictions_dir("super_glue", cb=0, **{"wsc.fixed": 0})
        named = r"CB.jsonl \(cb.test.jsonl\), WSC.jsonl \(wsc.fixed.test.jsonl or wsc.test.jsonl\)"
        with exits_with(65, f"{named}; --allow_missing_tasks"):
            submit("super_glue", folder)
        submission = submit("super_glue", folder, "--allow_missing_tasks")
        self.assertRegex(submission.messages, named)
        self.assertFalse((submission.folder / "CB.jsonl").exists())

    def test_a_line_that_says_no_answer_or_no_row_is_named_and_two_files_for_one_of_the_board_are_refused(self):
        for line, message in (
            ({"prediction": 1, "idx": 0}, "rte.test.jsonl:2: 'prediction' must be a text, not 1"),
            ({"prediction": "entailment", "example": 0}, "rte.test.jsonl:2: no 'idx' or 'row'"),
        ):
            with exits_with(65, message):
                submit_lines("glue", {"rte": [{"prediction": "entailment", "row": 0}, line]})
        lines = lines_of(["entailment"])
        with exits_with(65, "WNLI.tsv: .*wnli.test.jsonl and .*wnli_simple.test.jsonl both have predictions; keep one"):
            submit_lines("glue", {"wnli": lines, "wnli_simple": lines})
        with exits_with(65, "no test predictions in .* for "):
            submit_lines("glue", {"rte": lines}, split="validation")
        with exits_with(78, "no directory '/nowhere'; a run with --do_predict writes one"):
            submit("glue", "/nowhere")

    def test_wsc_candidates_come_from_the_rows_by_idx(self):
        data = Path(tempfile.mkdtemp())
        rows = [
            {"text": "Mark told Pete that he won .", "span1_text": name, "span1_index": 0, "span2_index": 4,
             "span2_text": "he", "idx": i, "label": -1}
            for i, name in enumerate(["Mark", "Pete", "Mark"])
        ]  # fmt: skip
        write_rows(data / "super_glue" / "wsc.fixed" / "test.jsonl", rows)
        folder = Path(tempfile.mkdtemp())
        # A part of the split, as --max_predict_samples gives it: row numbers are not those of the split.
        lines = [{"row": 0, "prediction": "Pete", "idx": 1}, {"row": 1, "prediction": "Pete", "idx": 2}]
        write_rows(folder / "wsc.fixed.test.jsonl", lines)
        flags = ["--allow_missing_tasks", "--allow_partial", "--data_dir", str(data)]
        written = (submit("super_glue", folder, *flags).folder / "WSC.jsonl").read_bytes()
        self.assertEqual(written, b'{"idx": 1, "label": "True"}\n{"idx": 2, "label": "False"}\n')
        write_rows(folder / "wsc.fixed.test.jsonl", [{"row": 0, "prediction": "Pete", "idx": 9}])
        with exits_with(65, "wsc.fixed.test.jsonl:1: no row of super_glue/wsc.fixed has idx 9"):
            submit("super_glue", folder, *flags)

    @parameterized.parameters(("glue", "cola"), ("glue", "stsb"), ("super_glue", "cb"), ("super_glue", "record"))
    def test_another_number_of_rows_than_the_boards_is_refused_unless_a_part_is_allowed(self, benchmark, task):
        (file,) = (file for file, case in PUBLISHED[benchmark].items() if case[0] == task)
        for count in (29, 31):
            with exits_with(65, f"{file}: {count} rows .* the board scores 30"):
                submit(benchmark, predictions_dir(benchmark, **{task: count}))
        submission = submit(benchmark, predictions_dir(benchmark, **{task: 29}), "--allow_partial")
        self.assertEqual(submission.reports[file]["rows"], 29)


class TableTest(parameterized.TestCase):
    def test_the_boards_numbers_of_rows_are_the_published_ones(self):
        for benchmark, files in PUBLISHED.items():
            for task, split, count, *_ in files.values():
                self.assertEqual(DATASET_VALS[benchmark][task]["num_examples"][split], count, task)
