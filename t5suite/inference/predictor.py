"""A model and its tokenizer -> answers to texts, in batches of similar length, shared among the ranks; rows -> lines.

    >>> predictor = Predictor(model, encoding, batch_size=16)
    >>> predictor.answers(["rte sentence1: It rains. sentence2: It is wet."], Decoding(), max_new_tokens=5)
    [[Answer(text='entailment', score=None, truncated=False)]]
    >>> predictor.choices(["sst2 sentence: Good."], [["negative", "positive"]])
    [Choice(text='positive', shares={'negative': 0.02, 'positive': 0.98})]
    >>> job = Job(task=load_task("glue", "rte"), decoding=Decoding(), max_new_tokens=5)
    >>> job.lines([job.request(row) for row in RowSource("rows.jsonl").rows()], predictor)
    [{'row': 0, 'prediction': 'entailment'}, ...]

Batches are made of all the texts given, longest first, and distributed over the ranks: which texts share a batch does
not depend on the number of ranks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from t5suite.base.errors import DataError
from t5suite.base.libraries import unproved
from t5suite.base.reference_code import FAST_PATHS
from t5suite.data.batches.encodings import LabelsEncoding, PromptEncoding, SegmentEncoding, answer_text, segments
from t5suite.inference.decoding import generation_options
from t5suite.inference.rows import Row, has_columns, input_text
from t5suite.inference.settings import Decoding
from t5suite.models.answering.answerer import AnswerSettings
from t5suite.models.config_limits import check_length
from t5suite.models.families import FAMILIES, recognize_family
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task
from t5suite.tasks.task_card import HEADED
from t5suite.tasks.templates import INPUT, OUTPUT, fill
from t5suite.training.evaluation import batches_by_length, number_range
from t5suite.training.processes.ranks import Ranks

# Rows that are read, answered and written at once.
WINDOW = 512
# Columns that are copied from a row to its answer: leaderboard files need them.
COPIED = ("idx",)
PROBABILITY_DIGITS, SCORE_DIGITS = 6, 4


class Answer(NamedTuple):
    """One answer: its text, its log-probability in nats (if requested), whether it was cut off at the longest."""

    text: str
    score: float | None
    truncated: bool


class Choice(NamedTuple):
    """The chosen text, and the probability of each candidate (None for a number)."""

    text: str
    shares: dict[str, float] | None


class Predictor:
    """Answers texts with one model.

    Args:
      encoding: texts to ids and back, for the model's family (`t5suite.data.batches.encodings`).
      family: seq2seq, causal, masked or encoder, if not what the model's class says.
      ranks: the processes that share the texts.
    """

    def __init__(self, model, encoding, batch_size: int = 16, family=None, ranks=None, device=None):
        self.model = model
        self.encoding = encoding
        self.batch_size = batch_size
        self.ranks = ranks or Ranks()
        family = recognize_family(model) if family is None else FAMILIES[family]
        settings = AnswerSettings(disabled_paths=frozenset(unproved(FAST_PATHS)), num_fixed_tokens=encoding.given)
        self.answerer = family.make_answerer(model, encoding.tokenizer, settings, device=device)
        self.writes = not isinstance(encoding, SegmentEncoding)

    def answers(
        self,
        texts: Sequence[str],
        decoding: Decoding,
        max_new_tokens: int,
        indices: Sequence[int] | None = None,
        scores: bool = False,
        plain: bool = False,
        languages: Sequence[tuple] | None = None,
    ) -> list[list[Answer]]:
        """Per text, its answers: one, or `num_return_sequences` of them, the best (or first drawn) first.

        Args:
          indices: the rows' numbers, which key the random numbers; default: 0, 1, ...
          scores: also each answer's sum of token log-probabilities, end-of-sequence included if it was written:
            the model's own, before temperature, penalties, top-k and top-p.
          plain: answers are label words (`generation_options`).
          languages: of each text and its answer, if not the same for all.
        """
        indices = range(len(texts)) if indices is None else indices
        drawn = decoding.num_return_sequences if decoding.do_sample else 1
        prompts, eos = self._prompts(texts, languages), self.answerer.eos
        labels = self.encoding.answers([""] * len(texts), languages) if self.encoding.given else None
        if prompts:  # a decoder-only model writes its answer into the prompt's row
            behind = max_new_tokens if isinstance(self.encoding, PromptEncoding) else 0
            check_length(self.model.config, max(map(len, prompts)) + behind, "--max_source_length or --max_new_tokens")

        def answer(places):
            repeated = [(place, number) for place in places for number in range(drawn)]
            draws = [(indices[place], number) for place, number in repeated]
            options = generation_options(decoding, self.model, max_new_tokens, draws, plain=plain)
            begun = labels and [labels[p] for p, _ in repeated]
            asked = [prompts[p] for p, _ in repeated]
            written = self.answerer.generate(asked, labels=begun, **options)
            ids = [self._ended(found) for of_prompt in written for found, _ in of_prompt]
            each, sums = len(ids) // len(places), [None] * len(ids)
            if scores:
                by_text = [ids[i * each : (i + 1) * each] for i in range(len(places))]
                sums = [total for of_text in self._sums([prompts[p] for p in places], by_text) for total in of_text]
            texts, ended = self.encoding.texts(ids), [of_answer[-1] == eos for of_answer in ids]
            found = [Answer(text, total, not end) for text, total, end in zip(texts, sums, ended, strict=True)]
            return [found[i * each : (i + 1) * each] for i in range(len(places))]

        return self._over_ranks([len(prompt) for prompt in prompts], answer)

    def _prompts(self, texts, languages) -> list[list[int]]:
        return self.encoding.prompts(texts) if languages is None else self.encoding.prompts(texts, languages)

    def choices(self, texts: Sequence[str], candidates: Sequence[Sequence[str]], languages=None) -> list["Choice"]:
        """Per text, the likeliest candidate (the first on a tie) and all shares.

        Shares are the softmax over the candidates' sums of token log-probabilities, end-of-sequence included.
        """
        prompts = self._prompts(texts, languages)
        unique = sorted({text for of_text in candidates for text in of_text})
        ids = dict(zip(unique, self.encoding.choices(unique), strict=True))

        def choose(places):
            return self._sums([prompts[i] for i in places], [[ids[text] for text in candidates[i]] for i in places])

        found = self._over_ranks([len(prompt) for prompt in prompts], choose)
        return [choice_of(words, sums) for words, sums in zip(candidates, found, strict=True)]

    def classes(
        self, segments: Sequence[tuple[str, ...]], limits: tuple[float, float] = (-math.inf, math.inf)
    ) -> list["Choice"]:
        """Per text (a segment, a pair or words), an encoder's prediction: a word and all shares, a number, labels.

        Args:
          limits: the smallest and the largest number that an answer can be.
        """
        features = [{name: rows[0] for name, rows in self.encoding.inputs([texts]).items()} for texts in segments]

        def classify(places):
            return self.answerer.class_scores([features[place] for place in places])

        found = self._over_ranks([len(feature["input_ids"]) for feature in features], classify)
        if self.encoding.words is None:
            return [Choice(answer_text(value, *limits), None) for (value,) in found]
        if isinstance(self.encoding, LabelsEncoding):
            return [Choice(self.encoding.word(scores), None) for scores in found]
        return [choice_of(self.encoding.words, scores) for scores in found]

    def _sums(self, prompts, candidates) -> list[list[float]]:
        return self.answerer.read_prompts(prompts).candidate_scores(candidates)

    def _ended(self, ids: list[int]) -> list[int]:
        """Up to and including the first end-of-sequence token; without one, up to the padding."""
        if self.answerer.eos in ids:
            return ids[: ids.index(self.answerer.eos) + 1]
        pad = self.answerer.collator.pad_token_id
        while ids and ids[-1] == pad:
            ids = ids[:-1]
        return ids or [self.answerer.eos]

    def _over_ranks(self, lengths, answer) -> list:
        """Every batch is computed by one rank."""
        batches, ranks = batches_by_length(lengths, self.batch_size), self.ranks

        def compute() -> dict:
            found = {}
            for mine in range(ranks.rank, len(batches), ranks.world_size):
                found.update(zip(batches[mine], answer(batches[mine]), strict=True))
            return found

        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            found = ranks.all_succeed(compute)
        self.model.train(was_training)
        everything = {place: item for part in ranks.gather(found) for place, item in part.items()}
        return [everything[place] for place in range(len(lengths))]


def choice_of(words: Sequence[str], scores: Sequence[float]) -> Choice:
    """The likeliest word (the first on a tie), and all shares by softmax.

    >>> choice_of(["no", "yes"], [0.0, 0.0])
    Choice(text='no', shares={'no': 0.5, 'yes': 0.5})
    """
    weights = [math.exp(score - max(scores)) for score in scores]
    shares = {word: weight / sum(weights) for word, weight in zip(words, weights, strict=True)}
    return Choice(max(shares, key=shares.get), shares)


class Request(NamedTuple):
    """One row's text (for encoders: its segments), its candidates, and the columns that its answer copies."""

    index: int
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
      raw: rows hold finished texts, whatever the task.
      labels: choose among these instead of writing; `task`: among the task's own.
      scores: also the answers' log-probabilities; several answers always have them.
      inputs: also the texts that the model read.
      family: of the model, where it is known; encoders with a head (masked) read columns as segments.
      fits: whether a text is short enough, for tasks that show as many examples as fit (`registry.bind_fits`).
      languages: of the texts, and the columns that have each row's.
      input_format: the template around finished texts.
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
    languages: Languages = field(default_factory=Languages)
    input_format: str | None = None

    def __post_init__(self):
        self.decoding.check()

    @property
    def columns(self) -> list[str]:
        """What is typed for one row: a text for each of the task's columns, or one finished text, `input`."""
        return ["input"] if self.raw or self.task is None else list(self.task.text_columns)

    def typed(self, index: int, texts: dict[str, str]) -> Row:
        """The row that was typed, by column."""
        return Row(index, "what was typed", texts["input"] if self.raw or self.task is None else texts)

    def request(self, row: Row) -> Request:
        """The request for a row.

        Raises:
          DataError: it is not a row of the task; the message has its file and line.
        """
        text, value = fill(self.input_format, INPUT, input_text(row, self.task, self.raw, self.fits)), row.value
        is_table, parts, candidates = isinstance(value, dict), (text,), self.labels
        if self.family in HEADED and self.task and self.task.value_kind == "labels":
            own = is_table and not self.raw and has_columns(value, self.task)
            bare = text if is_table or self.raw else value  # a line of words, without the task's prefix
            try:
                parts = tuple(self.task.words(value if own else {self.task.entry["text_column_name"]: bare}))
            except DataError as error:
                raise DataError(f"{row.place}: {error}") from None
        elif self.family == "masked" and is_table and not self.raw and self.task and has_columns(value, self.task):
            example, *_ = self.task.examples(value)
            parts = segments(example, value, self.task)
        if self.labels == "task":
            try:
                candidates = list(dict.fromkeys(self.task.candidates(value)))
            except (DataError, TypeError, LookupError) as error:
                raise DataError(f"{row.place}: {error}") from None
        copied = {} if row.file is None else {"file": row.file}
        copied |= {key: value[key] for key in COPIED if is_table and key in value}
        languages = None
        if any(self.languages[2:]):
            try:
                languages = self.languages.of(value if is_table else {})
            except DataError as error:
                raise DataError(f"{row.place}: {error}") from None
        return Request(row.index, text, parts, candidates, copied, languages)

    def lines(self, requests: list[Request], predictor: Predictor) -> list[dict]:
        """The answers of a window, one line each.

        >>> job.lines(requests, predictor)[0]         # greedy; several answers; labels
        {"row": 0, "prediction": "entailment"}
        {"row": 0, "prediction": "a", "predictions": [{"text": "a", "score": -1.2}, ...]}
        {"row": 0, "prediction": "entailment", "probabilities": {"entailment": 0.9, ...}}
        """
        texts, task = [request.text for request in requests], self.task
        languages = [request.languages for request in requests] if any(self.languages[2:]) else None
        if not predictor.writes:
            limits = number_range(task) if task else (-math.inf, math.inf)
            form = task.entry.get("output_format") if task else None
            found = predictor.classes([request.segments for request in requests], limits)
            answered = [chosen(choice, form) for choice in found]
        elif self.labels is not None:
            found = predictor.choices(texts, [request.candidates for request in requests], languages)
            answered = [chosen(choice) for choice in found]
        else:
            scores = self.scores or self.decoding.num_return_sequences > 1
            plain = task is not None and task.value_kind != "text"
            indices = [request.index for request in requests]
            found = predictor.answers(texts, self.decoding, self.max_new_tokens, indices, scores, plain, languages)
            answered = []
            for answers in found:
                line = {"prediction": answers[0].text}
                if len(answers) > 1:
                    line["predictions"] = [{"text": a.text, "score": round(a.score, SCORE_DIGITS)} for a in answers]
                elif self.scores:
                    line["score"] = round(answers[0].score, SCORE_DIGITS)
                answered.append(line | ({"truncated": True} if answers[0].truncated else {}))
        return [
            {"row": request.index, **request.copied, **self._inputs(request, predictor), **answer}
            for request, answer in zip(requests, answered, strict=True)
        ]

    def _inputs(self, request: Request, predictor: Predictor) -> dict:
        """What the model read, if a line has it."""
        if not self.inputs:
            return {}
        return {"inputs": predictor.encoding.with_cut(request.segments, request.languages)}


def chosen(choice: Choice, form: str | None = None) -> dict:
    """A line's answer for a choice; `form` is the template of the task's answers.

    >>> chosen(Choice("yes", {"no": 0.25, "yes": 0.75}))
    {'prediction': 'yes', 'probabilities': {'no': 0.25, 'yes': 0.75}}
    """
    line = {"prediction": fill(form, OUTPUT, choice.text)}
    if choice.shares is not None:
        shares = {fill(form, OUTPUT, text): round(share, PROBABILITY_DIGITS) for text, share in choice.shares.items()}
        line["probabilities"] = shares
    return line
