"""Rows in, lines out: window by window, each row formatted, answered and written in its place.

    >>> job = Job(task=load_task("glue", "rte"), decoding=Decoding(), max_new_tokens=5)
    >>> predict_rows(RowSource("rows.jsonl"), ResumableOutput("answers.jsonl", {}), job, lambda: predictor)
    RowCount(read=277, answered=277)

    {"row": 0, "prediction": "entailment"}                                        greedy
    {"row": 0, "prediction": "a", "predictions": [{"text": "a", "score": -1.2}, ...]}   several answers
    {"row": 0, "prediction": "entailment", "probabilities": {"entailment": 0.9, ...}}   labels

The main process reads and writes; all ranks answer. A model is loaded when the first row without an answer is met.
"""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from t5suite.base.errors import DataError
from t5suite.base.redaction import printable, redacted
from t5suite.data.batches.encodings import segments
from t5suite.inference.rows import Row, RowSource, has_columns, input_text
from t5suite.inference.settings import (
    Decoding,
    check_candidates,
)
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import OUTPUT, fill
from t5suite.training.evaluation import number_range
from t5suite.training.processes.ranks import Ranks

# Rows that are read, answered and written at once.
WINDOW = 512
# Columns of a row that its answer takes along: leaderboards' files are made by it.
COPIED = ("idx",)
PROBABILITY_DIGITS, SCORE_DIGITS = 6, 4


class RowCount(NamedTuple):
    """How many rows an input has, and how many of them were answered now."""

    read: int
    answered: int


class Request(NamedTuple):
    """One row's text (for encoders: its segments), what it may choose from, and what its answer takes along."""

    index: int
    text: str
    segments: tuple[str, ...]
    candidates: list[str] | None
    copied: dict


@dataclass(frozen=True)
class Job:
    """What is asked of every row.

    Attributes:
      task: whose columns the rows have; None: rows hold finished texts.
      raw: rows hold finished texts, whatever the task.
      labels: choose among these instead of writing; `task`: among the task's own.
      scores: also the answers' log-probabilities.
      inputs: also the texts that the model read.
      family: of the model, where it is known; encoders with a head (masked) read columns as segments.
      fits: whether a text is short enough, for tasks that show as many examples as fit (`registry.bind_fits`).
    """

    task: Task | None = None
    raw: bool = False
    decoding: Decoding = field(default_factory=Decoding)
    max_new_tokens: int = 64
    labels: list[str] | str | None = None
    scores: bool = False
    inputs: bool = False
    family: str | None = None
    fits: Callable[[str], bool] | None = None

    def __post_init__(self):
        self.decoding.check()
        if self.labels == "task":
            check_candidates(self.task)

    def request(self, row: Row) -> Request:
        """What the model is asked of a row.

        Raises:
          DataError: it is no row of the task; named by its place.
        """
        text = input_text(row, self.task, self.raw, self.fits)
        value = row.value if isinstance(row.value, dict) else {}
        copied = {key: value[key] for key in COPIED if key in value}
        return Request(row.index, text, self._segments(row, text), self._candidates(row), copied)

    def _segments(self, row: Row, text: str) -> tuple[str, ...]:
        """What an encoder reads: the columns themselves where the text was made of them, else the text."""
        if self.raw or self.task is None or not isinstance(row.value, dict):
            return (text,)
        made = self.family == "masked" and has_columns(row.value, self.task)
        return segments(row.value, self.task, "validation") if made else (text,)

    def _candidates(self, row: Row) -> list[str] | None:
        if self.labels != "task":
            return self.labels
        try:
            return list(dict.fromkeys(self.task.candidates(row.value)))
        except (DataError, TypeError, LookupError) as error:
            raise DataError(f"{row.place}: {error}") from None

    def lines(self, requests: list[Request], predictor) -> list[dict]:
        """The answers of a window, one line each."""
        texts = [request.text for request in requests]
        if not predictor.writes:
            limits = number_range(self.task) if self.task else (-math.inf, math.inf)
            form = self.task.entry.get("output_format") if self.task else None
            found = predictor.classes([request.segments for request in requests], limits)
            answered = [chosen(verdict, form) for verdict in found]
        elif self.labels is not None:
            found = predictor.choices(texts, [request.candidates for request in requests])
            answered = [chosen(verdict) for verdict in found]
        else:
            indices = [request.index for request in requests]
            plain = self.task is not None and self.task.value_kind != "text"
            found = predictor.answers(texts, self.decoding, self.max_new_tokens, indices, self.with_scores, plain)
            answered = [self._written(answers) for answers in found]
        return [
            {"row": r.index, **r.copied, **({"inputs": r.text} if self.inputs else {}), **answer}
            for r, answer in zip(requests, answered, strict=True)
        ]

    @property
    def with_scores(self) -> bool:
        """Scores are asked for; of several answers they always stand there."""
        return self.scores or self.decoding.num_return_sequences > 1

    def _written(self, answers) -> dict:
        line = {"prediction": answers[0].text}
        if len(answers) > 1:
            line["predictions"] = [{"text": a.text, "score": round(a.score, SCORE_DIGITS)} for a in answers]
        elif self.scores:
            line["score"] = round(answers[0].score, SCORE_DIGITS)
        if answers[0].truncated:
            line["truncated"] = True
        return line


def chosen(verdict, form: str | None = None) -> dict:
    """A line's answer where something was chosen; `form` is the template that the task's answers stand in.

    >>> chosen(Verdict("yes", {"no": 0.25, "yes": 0.75}))
    {'prediction': 'yes', 'probabilities': {'no': 0.25, 'yes': 0.75}}
    """
    prediction = fill(form, OUTPUT, verdict.text)
    if verdict.shares is None:
        return {"prediction": prediction}
    rounded = {fill(form, OUTPUT, text): round(share, PROBABILITY_DIGITS) for text, share in verdict.shares.items()}
    return {"prediction": prediction, "probabilities": rounded}


def predict_rows(
    source: RowSource,
    output,
    job: Job,
    make_predictor: Callable,
    ranks: Ranks | None = None,
    window: int = WINDOW,
    check_stop: Callable[[int], None] = lambda rows: None,
) -> RowCount:
    """Answers every row that has no answer yet; on every rank of a run, of which the main one reads and writes.

    Args:
      check_stop: called after every window with the rows done; what it raises ends the run, which can go on later.

    Raises:
      DataError: a row cannot be read or is no row of the task; the windows before it are written.
    """
    ranks, predictor, rows, answered = ranks or Ranks(), None, 0, 0
    windows = read_windows(source, output, job, window) if ranks.is_main else None
    try:
        while (found := ranks.together(lambda: next(windows))).requests:
            predictor = predictor or make_predictor()
            lines = job.lines(found.requests, predictor)
            ranks.together(output.append, lines, found.rows, found.digest)
            answered += len(lines)
            check_stop(found.rows)
        rows = found.rows
        ranks.together(lambda: output.is_complete(rows) or output.finish(rows, found.digest))
    finally:
        output.close()
    return RowCount(rows, answered)


class Window(NamedTuple):
    """Requests, and how far the input has been read behind them; without requests: to its end."""

    requests: list[Request]
    rows: int
    digest: str


def read_windows(source: RowSource, output, job: Job, window: int) -> Iterator[Window]:
    """The rows without an answer, in windows that begin at multiples of `window`; in the end one without rows.

    Raises:
      DataError: the input is not the one that the answers belong to.
    """
    kept, rows, requests = output.open(window), 0, []
    for row in source.rows():
        rows = row.index + 1
        if rows == output.known_rows:
            output.check_input(rows, source.digest.hexdigest())
        if rows <= kept:
            continue
        requests.append(job.request(row))
        if len(requests) == window:
            yield Window(requests, rows, source.digest.hexdigest())
            requests = []
    if rows < max(kept, output.known_rows):
        raise DataError(
            f"{source.name} has {rows} rows, but --output has the answers of {max(kept, output.known_rows)}; restore "
            "it, give another --output, or begin anew with --overwrite"
        )
    if requests and not output.is_complete(rows):
        yield Window(requests, rows, source.digest.hexdigest())
    yield Window([], rows, source.digest.hexdigest())


PROMPT = "input"


def converse(job: Job, predictor, read=None, write=print, as_json: bool = False) -> int:
    """Asks and answers until there is nothing more to read; returns how many rows were answered.

    Args:
      read: prompt -> a line; raises EOFError at the end. Default: Python's `input`.
      as_json: answers are lines as files have them.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history for `input`
    read = read or input
    columns = [PROMPT] if job.raw or job.task is None else job.task.text_columns
    answered = 0
    while True:
        try:
            value = _ask(columns, read)
        except EOFError:
            return answered
        if value is None:
            continue
        row = Row(answered, "what was typed", value[PROMPT] if columns == [PROMPT] else value)
        try:
            line = job.lines([job.request(row)], predictor)[0]
        except DataError as error:
            print(printable(redacted(f"error: {error}")), file=sys.stderr)
            continue
        for text in [json.dumps(line, ensure_ascii=False)] if as_json else shown(line):
            write(printable(text))
        answered += 1


def _ask(columns: list[str], read) -> dict | None:
    """The row that was typed; None after an empty first line."""
    value = {}
    for column in columns:
        value[column] = read(f"{column}: ")
        if not value[column] and len(value) == 1:
            return None
    return value


def shown(line: dict) -> list[str]:
    """An answer as lines of text.

    >>> shown({"row": 0, "prediction": "yes", "probabilities": {"no": 0.1, "yes": 0.9}})
    ['yes', '  90.0 %  yes', '  10.0 %  no']
    """
    if "probabilities" in line:
        ordered = sorted(line["probabilities"].items(), key=lambda item: -item[1])
        return [line["prediction"], *(f"  {100 * share:4.1f} %  {text}" for text, share in ordered)]
    if "predictions" in line:
        return [f"{answer['score']:9.4f}  {answer['text']}" for answer in line["predictions"]]
    score = f"  ({line['score']:.4f})" if "score" in line else ""
    return [line["prediction"] + score]
