"""Submission files: the boards' exact bytes, no label made up without a word, no file with rows missing."""

import contextlib
import io
import json
import re
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from t5suite import constants, load_task
from t5suite.constants import DATASET_VALS
from t5suite.tasks.submissions import BOARDS, Prediction, board_file, check_count
from t5suite.testing import exits_with, run_cli, write_rows

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
ALSO = {"WNLI.tsv": ["wnli_simple"], "WSC.jsonl": ["wsc"]}
CASES = [(benchmark, file, *case) for benchmark, files in PUBLISHED.items() for file, case in files.items()]
PLAIN = [case for case in CASES if case[1] not in ("MultiRC.jsonl", "ReCoRD.jsonl", "WSC.jsonl")]
BOARD_OF = {(benchmark, board.file): board for benchmark, boards in BOARDS.items() for board in boards}


def made(benchmark, file, texts, task=None, idx=None, candidates=None):
    board = BOARD_OF[benchmark, file]
    ids = idx or range(len(texts))
    candidates = candidates or [None] * len(texts)
    predictions = [Prediction(f"p:{i + 1}", j, t, c) for i, (j, t, c) in enumerate(zip(ids, texts, candidates))]
    return board_file(board, load_task(benchmark, task or board.tasks[0]), predictions)


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


def predictions_dir(benchmark, **counts):
    """A run's predictions, 30 a file; `counts` has others by the task's name, 0 being no file."""
    directory = Path(tempfile.mkdtemp()) / "predictions"
    for file, (task, split, *_) in PUBLISHED[benchmark].items():
        count = counts.get(task, 30)
        if count:
            write_rows(directory / f"{task}.{split}.jsonl", official_predictions(benchmark, file, count))
    return directory


def submit(benchmark, folder, *argv, flag="--predictions_dir"):
    out, err = io.StringIO(), io.StringIO()
    output_dir = Path(tempfile.mkdtemp()) / "submission"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_cli("submit", "--benchmark", benchmark, flag, str(folder), "--output_dir", str(output_dir), *argv)
    return output_dir, out.getvalue(), err.getvalue()


class SmallTestSplits(parameterized.TestCase):
    """The official numbers of test rows cut to 30 each: QQP alone has 390965."""

    def setUp(self):
        super().setUp()
        for benchmark in BOARDS:
            for name, entry in DATASET_VALS[benchmark].items():
                small = {split: min(count, 30) for split, count in entry["num_examples"].items()}
                self.enterContext(mock.patch.dict(constants.DATASET_VALS[benchmark][name], num_examples=small))


class BytesTest(parameterized.TestCase):
    def test_answers_are_written_as_the_board_asks(self):
        for benchmark, file, task, _, _, texts, values in PLAIN:
            if benchmark == "glue":
                rows = "".join(f"{i}\t{value}\r\n" for i, value in enumerate(values))
                expected = f"index\tprediction\r\n{rows}"
            else:
                expected = "".join(f'{{"idx": {i}, "label": {value}}}\n' for i, value in enumerate(values))
            self.assertEqual(made(benchmark, file, texts, task), (expected.encode(), len(texts), 0))

    def test_record_takes_the_first_prediction_of_a_query_and_its_id(self):
        idx = [{"passage": 0, "query": 7}, {"passage": 0, "query": 7}, {"passage": 0, "query": 3}]
        file = made("super_glue", "ReCoRD.jsonl", ["Zoë", "Ann", "Ben"], idx=idx)
        self.assertEqual(file.content, b'{"idx": 7, "label": "Zo\\u00eb"}\n{"idx": 3, "label": "Ben"}\n')
        self.assertEqual(file.rows, 2)

    def test_multirc_is_nested_by_paragraph_and_question_also_where_rows_are_scattered(self):
        triples = [(0, 0, 0), (0, 1, 2), (0, 0, 1), (1, 2, 3)]
        idx = [dict(zip(("paragraph", "question", "answer"), triple)) for triple in triples]
        file = made("super_glue", "MultiRC.jsonl", ["True", "False", "False", "True"], idx=idx)
        first = {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]}
        second = {"idx": 1, "answers": [{"idx": 2, "label": 0}]}
        third = {"idx": 2, "answers": [{"idx": 3, "label": 1}]}
        passages = [{"idx": i, "passage": {"questions": each}} for i, each in enumerate(([first, second], [third]))]
        self.assertEqual([json.loads(line) for line in file.content.splitlines()], passages)


class NoAnswerTest(SmallTestSplits):
    def test_the_last_label_stands_in_and_is_counted(self):
        for benchmark, file, ending in (
            ("glue", "RTE.tsv", b"0\tnot_entailment\r\n"), ("glue", "MNLI-m.tsv", b"0\tcontradiction\r\n"),
            ("glue", "CoLA.tsv", b"0\t1\r\n"), ("super_glue", "CB.jsonl", b'{"idx": 0, "label": "neutral"}\n'),
            ("super_glue", "BoolQ.jsonl", b'{"idx": 0, "label": "true"}\n'),
            ("super_glue", "COPA.jsonl", b'{"idx": 0, "label": 1}\n'),
        ):  # fmt: skip
            made_file = made(benchmark, file, ["no such label"])
            self.assertTrue(made_file.content.endswith(ending), made_file.content)
            self.assertEqual(made_file.unparsable, 1)

    def test_the_command_tells_how_many_per_task(self):
        folder = predictions_dir("glue")
        lines = [{"row": i, "prediction": "Entailment" if i < 3 else "entailment", "idx": i} for i in range(30)]
        write_rows(folder / "rte.test.jsonl", lines)
        _, out, err = submit("glue", folder, "--json")
        self.assertIn("RTE.tsv: 3 of 30 predictions of rte are not valid; the last label replaces them", err)
        self.assertEqual(err.count("note:"), 1)
        by_file = {line["file"]: line for line in map(json.loads, out.splitlines())}
        self.assertEqual(by_file["RTE.tsv"], {"file": "RTE.tsv", "task": "rte", "rows": 30, "unparsable": 3})


class CommandTest(SmallTestSplits):
    @parameterized.parameters("glue", "super_glue")
    def test_a_whole_submission_and_its_zip(self, benchmark):
        output_dir, _, err = submit(benchmark, predictions_dir(benchmark))
        files = sorted(PUBLISHED[benchmark])
        self.assertEqual(sorted(path.name for path in output_dir.iterdir()), sorted([*files, f"{benchmark}.zip"]))
        with zipfile.ZipFile(output_dir / f"{benchmark}.zip") as archive:
            self.assertEqual(sorted(archive.namelist()), files)
            for file, (*_, values) in PUBLISHED[benchmark].items():
                written = archive.read(file)
                found = re.findall(r'\d\t(\S+)\r\n|"label": ("\w+"|\d)', written.decode())
                self.assertEqual(
                    ["".join(groups) for groups in found], [values[i % len(values)] for i in range(30)], file
                )
                self.assertEqual(written, (output_dir / file).read_bytes())
        self.assertEqual(err, "")
        # Equal predictions, equal bytes.
        again, _, _ = submit(benchmark, predictions_dir(benchmark))
        self.assertEqual((again / f"{benchmark}.zip").read_bytes(), (output_dir / f"{benchmark}.zip").read_bytes())

    def test_missing_tasks_are_refused_unless_allowed(self):
        folder = predictions_dir("super_glue", cb=0, **{"wsc.fixed": 0})
        named = r"CB.jsonl \(cb.test.jsonl\), WSC.jsonl \(wsc.fixed.test.jsonl or wsc.test.jsonl\)"
        with exits_with(65, f"{named}; --allow_missing_tasks"):
            submit("super_glue", folder)
        output_dir, _, err = submit("super_glue", folder, "--allow_missing_tasks")
        self.assertRegex(err, named)
        self.assertFalse((output_dir / "CB.jsonl").exists())

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
        output_dir, _, _ = submit("super_glue", folder, *flags)
        written = (output_dir / "WSC.jsonl").read_bytes()
        self.assertEqual(written, b'{"idx": 1, "label": "True"}\n{"idx": 2, "label": "False"}\n')
        write_rows(folder / "wsc.fixed.test.jsonl", [{"row": 0, "prediction": "Pete", "idx": 9}])
        with exits_with(65, "wsc.fixed.test.jsonl:1: no row of super_glue/wsc.fixed has idx 9"):
            submit("super_glue", folder, *flags)


class TableTest(parameterized.TestCase):
    def test_a_file_has_its_published_task_split_and_number_of_rows(self):
        for benchmark, file, task, split, count, *_ in CASES:
            board = BOARD_OF[benchmark, file]
            self.assertEqual((sorted(board.tasks), board.split), (sorted([task, *ALSO.get(file, [])]), split))
            check_count(board, load_task(benchmark, task), count)
            for other in (count - 1, count + 1):
                with exits_with(65, f"{file}: {other} rows .* the board scores {count}"):
                    check_count(board, load_task(benchmark, task), other)
            check_count(board, load_task(benchmark, task), count - 1, allow_partial=True)
