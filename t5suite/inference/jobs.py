"""How every row of a job is answered: rows -> requests to the predictor -> lines of answers.

>>> job = Job(task=load_task("glue", "rte"), decoding=DecodingSettings(), max_new_tokens=5)
>>> job.lines([job.request(row) for row in InputRows("rows.jsonl").rows()], predictor)
[{'row': 0, 'prediction': 'entailment'}, ...]
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from t5suite.base.errors import DataError
from t5suite.data.batches.encodings import LabelsEncoding
from t5suite.data.rows.jsonl import without_nan
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.predictor import (
    ANY_NUMBER,
    Choice,
    Predictor,
    WrittenAnswer,
    check_labels_differ,
    prompts_of,
    segment_features,
)
from t5suite.inference.row_texts import has_text_columns, input_text, task_columns, without_answer
from t5suite.inference.rows import Row
from t5suite.tasks.cut_marks import CUT_TOKENS
from t5suite.tasks.languages import Languages
from t5suite.tasks.postprocessors import is_invalid
from t5suite.tasks.registry import CANDIDATE_COLUMNS, Task
from t5suite.tasks.segments import segments
from t5suite.tasks.task_card import HEADED
from t5suite.tasks.templates import INPUT, OUTPUT, fill
from t5suite.training.evaluation import number_range

logger = logging.getLogger(__name__)

# Rows that are read, answered and written at once.
WINDOW = 512
# Columns that are copied from a row to its answer: leaderboard files need them.
COPIED = ("idx",)
PROBABILITY_DIGITS, SCORE_DIGITS = 6, 4


class RowRequest(NamedTuple):
    """One row's text (for encoders: its segments), its candidates, and the columns that its answer copies.

    `place` is where the row stands, for messages.
    """

    index: int
    place: str
    text: str
    segments: tuple[str, ...]
    candidates: list[str] | None
    copied: dict
    languages: tuple | None = None


@dataclass(frozen=True)
class Job:
    """How every row is answered.

    Attributes:
      task: whose columns the rows have; None: rows hold finished texts.
      labels_of_sets: of a task of sets, the labels that its answers may have; None where unknown.
      raw: rows hold finished texts, whatever the task.
      labels: choose among these instead of writing; `task`: among the task's own.
      scores: also the answers' log-probabilities; several answers always have them.
      inputs: also the texts that the model read.
      token_counts: also the tokens of every prompt, and of its answers.
      family: of the model, where it is known; encoders with a head (masked) read columns as segments.
      fits: whether a text is short enough, for tasks that show as many examples as fit (`TextEncoding.fits`).
      languages: of the texts, and the columns that have each row's.
      input_format: the template around finished texts.
      check: called with every request; raises DataError for one that is not to be answered.
    """

    task: Task | None = None
    labels_of_sets: Sequence[str] | None = None
    raw: bool = False
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    max_new_tokens: int = 64
    labels: list[str] | str | None = None
    scores: bool = False
    inputs: bool = False
    token_counts: bool = False
    family: str | None = None
    fits: Callable[[str], bool] | None = None
    languages: Languages = field(default_factory=Languages)
    input_format: str | None = None
    check: Callable[[RowRequest], None] = lambda request: None

    def __post_init__(self):
        self.decoding.check()

    @property
    def reads_task(self) -> bool:
        """Whether rows have the task's columns; else each is a finished text."""
        return self.task is not None and not self.raw

    @property
    def writes_plainly(self) -> bool:
        """Whether labels, sets of them or numbers are written: without the settings of the checkpoint's own."""
        return self.task is not None and self.task.writes_plainly

    @property
    def columns(self) -> list[str]:
        """What is typed for one row: a text for each of the task's columns, or one finished text, `input`."""
        return list(self.task.text_columns) if self.reads_task else ["input"]

    def typed_row(self, texts: dict[str, str]) -> Row:
        """The row that was typed, by column."""
        return Row(0, "what was typed", texts if self.reads_task else texts["input"])

    def request(self, row: Row) -> RowRequest:
        """The request for a row.

        Raises:
          DataError: it is not a row of the task; the message has its file and line.
        """
        text = fill(self.input_format, INPUT, input_text(row, self.task, self.raw, self.fits))
        try:
            row_segments = self._segments(row.value, text)
            candidates = self._candidates(row.value)
            languages = self._languages(row.value)
            request = RowRequest(row.index, row.place, text, row_segments, candidates, _copied_cells(row), languages)
            self.check(request)
        except DataError as error:
            raise DataError(f"{row.place}: {error}") from None
        return request

    def _segments(self, row: dict | str, text: str) -> tuple[str, ...]:
        """What an encoder reads: words to label, the columns of a masked model's task, else the whole text."""
        if self.family in HEADED and self.task is not None and self.task.value_kind == "labels":
            return tuple(self.task.words(self._row_of_words(row, text)))
        if self.family == "masked" and self.reads_task:
            columns = task_columns(row, self.task)
            if has_text_columns(columns, self.task):
                example, *_ = self.task.examples(without_answer(columns, self.task))
                return segments(example, columns, self.task)
        return (text,)

    def _row_of_words(self, row: dict | str, text: str) -> dict:
        """The row whose text column holds the words: a line of words is one without the task's prefix."""
        is_table = isinstance(row, dict)
        if is_table and not self.raw and has_text_columns(row, self.task):
            return row
        words = text if is_table or self.raw else row
        return {self.task.entry["text_column_name"]: words}

    def _candidates(self, row: dict | str) -> list[str] | None:
        """The texts to choose from; None: the answer is written.

        Raises:
          DataError: the row has none.
        """
        if self.labels != "task":
            return self.labels
        column = CANDIDATE_COLUMNS.get(self.task.entry.get("formatter"))
        if column is not None and isinstance(row, str):
            raise DataError(f"a line of text has no candidates: give objects with {column!r}, or name labels")
        try:
            return list(dict.fromkeys(self.task.choices(row)))
        except (TypeError, LookupError) as error:
            raise DataError(str(error)) from None

    def _languages(self, row: dict | str) -> tuple | None:
        """The row's languages, if columns have them."""
        if not self.language_columns:
            return None
        return self.languages.of(row if isinstance(row, dict) else {})

    @property
    def language_columns(self) -> list[str]:
        """The columns in which rows say their languages."""
        columns = (self.languages.source_lang_column, self.languages.target_lang_column)
        return [column for column in columns if column]

    def lines(self, requests: list[RowRequest], predictor: Predictor) -> list[dict]:
        """The answers of a window, one line each.

        >>> job.lines(requests, predictor)[0]         # greedy; several answers; labels
        {"row": 0, "prediction": "entailment"}
        {"row": 0, "prediction": "a", "predictions": [{"text": "a", "score": -1.2}, ...]}
        {"row": 0, "prediction": "entailment", "probabilities": {"entailment": 0.9, ...}}

        Raises:
          ConfigError: no answer is possible, whatever the rows are.
          DataError: a row's language is none that the tokenizer has; the message has its file and line.
        """
        if self.language_columns:
            for request in requests:
                _check_languages(request, predictor.encoding)
        if not predictor.writes:
            if self.task is None and isinstance(predictor.encoding, LabelsEncoding):
                requests = [_of_words(request) for request in requests]
            features = segment_features(predictor.encoding, [request.segments for request in requests])
            prompts = [feature["input_ids"] for feature in features]
            predictions = self._classified(requests, features, predictor)
        else:
            texts = [request.text for request in requests]
            prompts = prompts_of(predictor.encoding, texts, self._languages_of_texts(requests))
            answer = self._written if self.labels is None else self._chosen
            predictions = answer(requests, prompts, predictor)
        return [
            self._line(request, prompt, prediction, predictor.encoding)
            for request, prompt, prediction in zip(requests, prompts, predictions, strict=True)
        ]

    def _line(self, request: RowRequest, prompt: list[int], prediction: dict, encoding) -> dict:
        """A row's line: what is copied, what was read, what was predicted, what was cut."""
        line = {"row": request.index, **request.copied}
        if self.inputs:
            line["inputs"] = encoding.with_cut(request.segments, request.languages)
        line |= prediction
        # Whole texts are counted only where one may be cut, for it takes time.
        cut_count = encoding.num_cut(request.segments, request.languages) if encoding.is_full(prompt) else 0
        if cut_count:
            line[CUT_TOKENS] = cut_count
        if self.token_counts:
            line["prompt_tokens"] = len(prompt)
        return line

    def _classified(self, requests: list[RowRequest], features: list[dict], predictor: Predictor) -> list[dict]:
        """What an encoder's head predicts; the answer to a text without words, where words have labels, is empty."""
        limits = number_range(self.task) if self.task else ANY_NUMBER
        output_format = self.task.entry.get("output_format") if self.task else None
        read_features = [feature for request, feature in zip(requests, features, strict=True) if request.segments]
        choices = iter(predictor.classes(read_features, limits))
        lines = []
        for request in requests:
            choice = next(choices) if request.segments else Choice("", None)
            lines.append(line_of_choice(choice, output_format))
        return lines

    def _chosen(self, requests: list[RowRequest], prompts: list[list[int]], predictor: Predictor) -> list[dict]:
        """The likeliest candidate of each row."""
        if isinstance(self.labels, list):
            check_labels_differ(predictor.encoding, self.labels)
        choices = predictor.choices(prompts, [request.candidates for request in requests])
        return [line_of_choice(choice) for choice in choices]

    def _written(self, requests: list[RowRequest], prompts: list[list[int]], predictor: Predictor) -> list[dict]:
        """The texts that the model writes."""
        answers = predictor.answers(
            prompts,
            self.decoding,
            self.max_new_tokens,
            indices=[request.index for request in requests],
            scores=self.scores or self.decoding.num_return_sequences > 1,
            plain=self.writes_plainly,
            languages=self._languages_of_texts(requests),
        )
        lines = [line_of_answers(answers_of_text, self.scores, self.token_counts) for answers_of_text in answers]
        if self.reads_task:
            for line in lines:
                self._mark_invalid(line)
        return lines

    def _mark_invalid(self, line: dict) -> None:
        """Marks a line's answer, and each of several, that is no label, set of labels or number of the task."""
        if is_invalid(self.task, line["prediction"], self.labels_of_sets):
            line["invalid"] = True
        for entry in line.get("predictions", ()):
            if is_invalid(self.task, entry["text"], self.labels_of_sets):
                entry["invalid"] = True

    def _languages_of_texts(self, requests: list[RowRequest]) -> list[tuple] | None:
        return [request.languages for request in requests] if self.language_columns else None


@dataclass
class AnswerCounts:
    """How many rows are answered, and how many of their (best) answers are no answer of the task, or cut off."""

    answered: int = 0
    invalid: int = 0
    truncated: int = 0

    def add(self, lines: list[dict]) -> None:
        """Counts the answers of a window."""
        self.answered += len(lines)
        self.invalid += sum("invalid" in line for line in lines)
        self.truncated += sum("truncated" in line for line in lines)

    def warn(self, job: Job) -> None:
        """Logs how many answers are invalid, and how many are cut off."""
        if self.invalid:
            logger.warning("%d of %d answers are no label or number of the task: invalid", self.invalid, self.answered)
        if self.truncated:
            remedy = "--max_new_tokens allows longer ones"
            if job.reads_task and job.task.has_candidates:
                remedy = "with --labels each is the likeliest answer that the task allows"
            logger.warning(
                "%d of %d answers are cut off after %d tokens (truncated); %s",
                self.truncated,
                self.answered,
                job.max_new_tokens,
                remedy,
            )


def _check_languages(request: RowRequest, encoding) -> None:
    try:
        encoding.check_codes(request.languages)
    except DataError as error:
        raise DataError(f"{request.place}: {error}") from None


def _of_words(request: RowRequest) -> RowRequest:
    """A request for the labels of a finished text's words, which are what stands between white space; maybe none."""
    return request._replace(segments=tuple(request.text.split()))


def _copied_cells(row: Row) -> dict:
    """What a line has of its row: in a folder the file's name, and cells that leaderboards need (of a NaN, null)."""
    cells = {} if row.file is None else {"file": row.file}
    if isinstance(row.value, dict):
        cells |= {column: row.value[column] for column in COPIED if column in row.value}
    return without_nan(cells)


def line_of_answers(answers: list[WrittenAnswer], scores: bool, token_counts: bool = False) -> dict:
    """A line's prediction for the written answers of a row, the best first.

    >>> line_of_answers([WrittenAnswer("yes", -0.25, truncated=False, num_tokens=2)], scores=True)
    {'prediction': 'yes', 'score': -0.25}
    """
    best = answers[0]
    line = {"prediction": best.text}
    if len(answers) > 1:
        line["predictions"] = [_entry_of_answer(answer) for answer in answers]
    elif scores:
        line["score"] = round(best.score, SCORE_DIGITS)
    if best.truncated:
        line["truncated"] = True
    if token_counts:
        line["answer_tokens"] = sum(answer.num_tokens for answer in answers)
    return line


def _entry_of_answer(answer: WrittenAnswer) -> dict:
    """One of several answers in a line."""
    entry = {"text": answer.text, "score": round(answer.score, SCORE_DIGITS)}
    if answer.truncated:
        entry["truncated"] = True
    return entry


def line_of_choice(choice: Choice, output_format: str | None = None) -> dict:
    """A line's prediction for a choice; `output_format` is the template of the task's answers.

    >>> line_of_choice(Choice("yes", {"no": 0.25, "yes": 0.75}))
    {'prediction': 'yes', 'probabilities': {'no': 0.25, 'yes': 0.75}}
    """
    line = {"prediction": fill(output_format, OUTPUT, choice.text)}
    if choice.shares is not None:
        line["probabilities"] = {
            fill(output_format, OUTPUT, text): round(share, PROBABILITY_DIGITS) for text, share in choice.shares.items()
        }
    return line
