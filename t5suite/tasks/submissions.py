"""Predictions of test splits -> the files that the GLUE and SuperGLUE leaderboards take, byte for byte.

    >>> board = BOARDS["glue"][8]
    >>> board.file, board.tasks, board.split
    ('RTE.tsv', ('rte',), 'test')
    >>> board_file(board, load_task("glue", "rte"), [Prediction("rte.test.jsonl:1", 0, "not_entailment")])
    BoardFile(content=b'index\tprediction\r\n0\tnot_entailment\r\n', rows=1, unparsable=0)

A board needs a label for every row, so a text that is not a label is written as the last label, as in the original T5's
conversion (arXiv:1910.10683's released code indexes the label words with class -1); their number is reported.
Formats: gluebenchmark.com and super.gluebenchmark.com, submission FAQ.
"""

import json
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5suite.base.errors import DataError
from t5suite.base.files import whole_file
from t5suite.tasks.metrics import wsc_verdict
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import INVALID_CLASS, INVALID_NUMBER, is_number

# The earliest date of a zip entry, fixed so that equal predictions give equal bytes.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_VERDICTS = ["False", "True"]


class Board(NamedTuple):
    """One file of a submission: its name, the alternative tasks and the split that it comes from, and its format.

    `answer` turns a prediction into the board's answer, `layout` the answers into bytes; of predictions with equal
    `unit` only the first is used (None: every prediction is).
    """

    file: str
    tasks: tuple[str, ...]
    split: str
    answer: Callable
    layout: Callable
    unit: Callable | None = None


class Prediction(NamedTuple):
    """One row's prediction: its place in a file (for messages), the row's `idx`, the text, and WSC's candidate."""

    place: str
    idx: Any
    text: str
    candidate: str | None = None


class BoardFile(NamedTuple):
    """A file's bytes, the number of test rows in it, and how many of them had no valid answer."""

    content: bytes
    rows: int
    unparsable: int


def board_file(board: Board, task: Task, predictions: Sequence[Prediction]) -> BoardFile:
    """One leaderboard file of a test split's predictions.

    Raises:
      DataError: two rows with one `idx`, an `idx` of the wrong form, a WSC prediction without its candidate.
    """
    if board.unit:
        first: dict[int, Prediction] = {}
        for prediction in predictions:
            first.setdefault(board.unit(prediction), prediction)
        predictions = list(first.values())
    lines = []
    unparsable = 0
    for prediction in predictions:
        value, parsed = board.answer(task, prediction)
        lines.append((prediction, value))
        unparsable += not parsed
    return BoardFile(board.layout(lines), len(lines), unparsable)


def check_count(board: Board, task: Task, rows: int, allow_partial: bool = False) -> None:
    """Raises a `DataError` with both counts if a file does not have the official number of test rows."""
    official = task.entry["num_examples"][board.split]
    if rows == official or (rows < official and allow_partial):
        return
    hint = "" if rows > official else "; --allow_partial writes it anyway"
    raise DataError(
        f"{board.file}: {rows} rows of {task.benchmark}/{task.name} {board.split} have a prediction, "
        f"but the board scores {official}{hint}"
    )


def write_submission(output_dir, name: str, files: dict[str, bytes]) -> Path:
    """Writes the files into `output_dir`, and all of them into `<name>.zip` there; returns the zip's path."""
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        with whole_file(directory / file) as temporary:
            temporary.write_bytes(content)
    archive = directory / f"{name}.zip"
    with whole_file(archive) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as zipped:
        for file, content in files.items():
            zipped.writestr(zipfile.ZipInfo(file, _ZIP_DATE), content, zipfile.ZIP_DEFLATED)
    return archive


def class_id(task: Task, prediction: Prediction) -> tuple[int, bool]:
    """`(class id, whether the text is a valid answer)`; an invalid text counts as the last class.

    >>> class_id(load_task("glue", "rte"), Prediction("", 0, "maybe"))
    (1, False)

    For tasks that write a pronoun's referent: 1 if it is the row's candidate, else 0.
    """
    if task.entry.get("postprocess") == "wsc_verdict":
        if prediction.candidate is None:
            raise DataError(
                f"{prediction.place}: {task.benchmark}/{task.name} is judged by the row's candidate; give it as "
                "'candidate', or the rows with --data_dir"
            )
        label = wsc_verdict(prediction.text, prediction.candidate)
    else:
        label = task.parse(prediction.text)
    return (len(_words(task)) - 1, False) if label == INVALID_CLASS else (label, True)


def label_word(task: Task, prediction: Prediction) -> tuple[str, bool]:
    """As `class_id`, with the class's word."""
    label, parsed = class_id(task, prediction)
    return _words(task)[label], parsed


def lower_word(task: Task, prediction: Prediction) -> tuple[str, bool]:
    """As `label_word`, in lower case: BoolQ and WiC need `true` and `false`, but WSC needs `True` and `False`."""
    word, parsed = label_word(task, prediction)
    return word.lower(), parsed


def number(task: Task, prediction: Prediction) -> tuple[float, bool]:
    """STS-B's number; a text that is not a finite number is written as -1.0.

    >>> number(load_task("glue", "stsb"), Prediction("", 0, "3,4"))
    (-1.0, False)
    """
    value = task.parse(prediction.text)
    parsed = is_number(prediction.text) and math.isfinite(value)
    return (value, True) if parsed else (INVALID_NUMBER, False)


def raw_text(task: Task, prediction: Prediction) -> tuple[str, bool]:
    """ReCoRD's answer as generated; an empty one is not valid."""
    return prediction.text, bool(prediction.text.strip())


def query_id(prediction: Prediction) -> int:
    """The query's id: ReCoRD has one example per answer, and only a query's first prediction is used."""
    return _part(prediction, "query")


def tab_separated(lines) -> bytes:
    r"""GLUE's layout: a header and `index TAB prediction`, lines ending in CR LF."""
    _check_unique([(prediction, _whole(prediction.idx, "idx", prediction)) for prediction, _ in lines])
    rows = [f"{prediction.idx}\t{value}\r\n" for prediction, value in lines]
    return "".join(["index\tprediction\r\n", *rows]).encode("utf-8")


def superglue_lines(lines) -> bytes:
    """SuperGLUE's layout: `{"idx": ..., "label": ...}` a line."""
    _check_unique([(prediction, _whole(prediction.idx, "idx", prediction)) for prediction, _ in lines])
    return _json_bytes({"idx": prediction.idx, "label": value} for prediction, value in lines)


def json_queries(lines) -> bytes:
    """ReCoRD's layout: as `superglue_lines`, with the query's id."""
    return _json_bytes({"idx": _part(prediction, "query"), "label": value} for prediction, value in lines)


def json_paragraphs(lines) -> bytes:
    """MultiRC's layout: one line a paragraph, its questions inside and their answers inside those."""
    _check_unique([(prediction, _part(prediction, "answer")) for prediction, _ in lines])
    paragraphs: dict[int, dict[int, list]] = {}
    for prediction, value in lines:
        questions = paragraphs.setdefault(_part(prediction, "paragraph"), {})
        answer = {"idx": _part(prediction, "answer"), "label": value}
        questions.setdefault(_part(prediction, "question"), []).append(answer)
    return _json_bytes(
        {"idx": paragraph, "passage": {"questions": [{"idx": q, "answers": a} for q, a in questions.items()]}}
        for paragraph, questions in paragraphs.items()
    )


def _words(task: Task) -> list[str]:
    return task.label_words or _VERDICTS


def _part(prediction: Prediction, key: str) -> int:
    """One of the ids in MultiRC's or ReCoRD's `idx`."""
    if not isinstance(prediction.idx, dict) or key not in prediction.idx:
        raise DataError(f"{prediction.place}: idx {prediction.idx!r} has no {key!r}, which the board requires")
    return _whole(prediction.idx[key], f"idx.{key}", prediction)


def _whole(value, name: str, prediction: Prediction) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError(f"{prediction.place}: {name} must be a whole number, not {value!r}")
    return value


def _check_unique(ids):
    first = {}
    for prediction, value in ids:
        if value in first:
            raise DataError(f"{prediction.place}: idx {value} is already in {first[value]}")
        first[value] = prediction.place


def _json_bytes(values) -> bytes:
    return "".join(json.dumps(value, allow_nan=False) + "\n" for value in values).encode("ascii")


# `tasks`: any one of them gives the file (WNLI as classes or in the pronoun form; WSC with either release of its rows).
BOARDS = {
    "glue": [
        Board("CoLA.tsv", ("cola",), "test", class_id, tab_separated),
        Board("SST-2.tsv", ("sst2",), "test", class_id, tab_separated),
        Board("MRPC.tsv", ("mrpc",), "test", class_id, tab_separated),
        Board("STS-B.tsv", ("stsb",), "test", number, tab_separated),
        Board("QQP.tsv", ("qqp",), "test", class_id, tab_separated),
        Board("MNLI-m.tsv", ("mnli",), "test_matched", label_word, tab_separated),
        Board("MNLI-mm.tsv", ("mnli",), "test_mismatched", label_word, tab_separated),
        Board("QNLI.tsv", ("qnli",), "test", label_word, tab_separated),
        Board("RTE.tsv", ("rte",), "test", label_word, tab_separated),
        Board("WNLI.tsv", ("wnli", "wnli_simple"), "test", class_id, tab_separated),
        Board("AX.tsv", ("ax",), "test", label_word, tab_separated),
    ],
    "super_glue": [
        Board("BoolQ.jsonl", ("boolq",), "test", lower_word, superglue_lines),
        Board("CB.jsonl", ("cb",), "test", label_word, superglue_lines),
        Board("COPA.jsonl", ("copa",), "test", class_id, superglue_lines),
        Board("MultiRC.jsonl", ("multirc",), "test", class_id, json_paragraphs),
        Board("ReCoRD.jsonl", ("record",), "test", raw_text, json_queries, query_id),
        Board("RTE.jsonl", ("rte",), "test", label_word, superglue_lines),
        Board("WiC.jsonl", ("wic",), "test", lower_word, superglue_lines),
        Board("WSC.jsonl", ("wsc.fixed", "wsc"), "test", label_word, superglue_lines),
        Board("AX-b.jsonl", ("axb",), "test", label_word, superglue_lines),
        Board("AX-g.jsonl", ("axg",), "test", label_word, superglue_lines),
    ],
}
