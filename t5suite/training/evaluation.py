"""Scores a model on any number of splits: every row once, on any number of ranks.

    >>> report = Evaluator(collator, tokenizer, EvaluatorSettings(), 64, accelerator).evaluate(model, eval_sets)
    >>> report.results["mnli_matched"].metrics
    {'accuracy': 84.2, 'invalid_rate': 0.0}

`generate` writes an answer and looks it up; `score` chooses the candidate with the highest sum of token
log-probabilities, end-of-sequence included, without length normalisation, the first on a tie; an encoder with a head
can do neither, and its answer is the most likely class (`classify`). `t5suite.models.answering` has the code for each
family. Batches are made once over the whole split (longest examples first) and distributed over the ranks, so that a
row is in the same batch, with the same arithmetic, on one rank or many.

A T5's decoder reads the candidates of a row as one tree, and writes greedy answers without transformers' `generate`;
the loss of targets that were scored or written comes from the same pass (`t5suite.models.answering`).
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import torch
from accelerate.utils import broadcast_object_list, gather_object

from t5suite.base.errors import LackOfMemoryError, first_line
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.models.answering.answerer import Answerer, AnswerSettings, before_end
from t5suite.models.answering.call_settings import generating_by, settings_of_call
from t5suite.models.families import recognize_family
from t5suite.models.t5.attention import slow_attention
from t5suite.tasks.registry import Task
from t5suite.tasks.templates import OUTPUT, fill
from t5suite.training.eval_sets import EvalSet
from t5suite.training.evaluation_report import Report, Result, make_report

logger = logging.getLogger(__name__)

# The flag of a run with the number of rows in a batch.
BATCH_FLAG = "--per_device_eval_batch_size"
# How many times as many tokens a batch may have on a device, and the most tokens of an answer times this number.
DECODED_AT_ONCE = {"cpu": 4}
ANSWER_TOKENS = 64


@dataclass(frozen=True)
class EvaluatorSettings:
    """How answers are written, and what else is computed.

    Attributes:
      synced: weights are sharded over several ranks, which therefore make the same number of forward passes.
      reference: the fast paths that plain code replaces (`reference_code`).
      loss: compute the targets' loss even if it takes a separate pass (selection by loss always computes it).
      batch_tokens: tokens per batch on the fast paths, including padding and answers; None: a number of rows.
      batch_flag: the flag with the number of rows, for a batch that does not fit into memory.
    """

    num_beams: int = 1
    max_length: int | None = None
    synced: bool = False
    reference: frozenset[str] = frozenset()
    loss: bool = True
    batch_tokens: int | None = None
    batch_flag: str = BATCH_FLAG


class AnswerWithLoss(NamedTuple):
    """A model's answer to an example, and nats and tokens of its target (zeros where the loss is not needed)."""

    text: str
    truncated: bool
    nll: float
    tokens: int


def never_stop() -> None:
    """The default `check_stop`: nobody asks an evaluation to stop."""


@contextlib.contextmanager
def advising_on_memory(name: str, num_rows: int, batch_flag: str = BATCH_FLAG) -> Iterator[None]:
    """Within the block a batch is computed; if memory runs out, the error says how to make it smaller.

    Args:
      name: of the evaluated set.

    Raises:
      LackOfMemoryError: it ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = "one row"
        advice = "shorter texts, a smaller model, or more memory"
        if num_rows > 1:
            size = f"{num_rows} rows"
            advice = f"{batch_flag} {num_rows // 2}"
        raise LackOfMemoryError(
            f"{name}: out of memory in an evaluation batch of {size} ({first_line(error)}); use {advice}"
        ) from None


class Evaluator:
    """Evaluates models on `EvalSet`s; one per run.

    Args:
      accelerator: an `accelerate.Accelerator`, for autocast, the device and the ranks.
      progress: `(turns, name)` -> the same turns, shown as a progress bar; None shows none.
    """

    def __init__(
        self,
        collator: Seq2SeqCollator,
        tokenizer,
        settings: EvaluatorSettings,
        batch_size: int,
        accelerator,
        progress: Callable | None = None,
    ):
        self.collator = collator
        self.tokenizer = tokenizer
        self.settings = settings
        self.batch_size = batch_size
        self.accelerator = accelerator
        self.progress = progress

    def described(self, model) -> dict:
        """What an answer depends on besides the model and the row: batches, beams, number formats, device, ranks.

        >>> evaluator.described(model)
        {'batch_tokens': 2048, 'batch_rows': 64, 'num_beams': 1, 'max_length': None, 'dtype': 'float32', ...}
        """
        return {
            "batch_tokens": self.settings.batch_tokens,
            "batch_rows": self.batch_size,
            "num_beams": self.settings.num_beams,
            "max_length": self.settings.max_length,
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            "autocast": self.accelerator.mixed_precision,
            "tf32": torch.backends.cuda.matmul.fp32_precision == "tf32",
            "device": self.accelerator.device.type,
            "ranks": self.accelerator.num_processes,
        }

    def evaluate(
        self,
        model,
        eval_sets: list[EvalSet],
        selection_metric: str | None = None,
        check_stop: Callable[[], None] = never_stop,
    ) -> Report:
        """Every split's metrics, in the order of `eval_sets`.

        Args:
          check_stop: called before every batch, on all ranks; what it raises ends the evaluation.
        """
        was_training = model.training
        model.eval()
        if "quick_attention" in self.settings.reference:
            slow_attention(model)
        wants_loss = self.settings.loss or selection_metric == "loss"
        results = {}
        with torch.no_grad(), self.accelerator.autocast():
            for eval_set in eval_sets:
                needs_loss = eval_set.labelled and (wants_loss or eval_set.method == "loss")
                results[eval_set.name] = self._evaluate_set(model, eval_set, needs_loss, check_stop)
        model.train(was_training)
        return make_report(eval_sets, results, selection_metric)

    def _evaluate_set(self, model, eval_set: EvalSet, needs_loss: bool, check_stop: Callable[[], None]) -> Result:
        started = time.perf_counter()
        settings = AnswerSettings(self.settings.reference, needs_loss, eval_set.encoding.num_fixed_tokens)
        answerer = recognize_family(model).make_answerer(
            model, self.tokenizer, settings, self.collator, self.accelerator.device
        )
        batches = self._batches(eval_set, answerer)

        def answer_batch(positions: list[int]) -> list[AnswerWithLoss]:
            return self._answer_batch(answerer, eval_set, positions, needs_loss)

        answers = self._over_ranks(eval_set.name, batches, answer_batch, check_stop)
        predictions = [answers[position].text for position in range(len(eval_set.examples))]
        metrics = eval_set.compute_metrics(SimpleNamespace(predictions=predictions, label_ids=None))
        loss = mean_loss(answers.values()) if eval_set.labelled else None
        if eval_set.method == "loss":
            metrics = loss_metrics(eval_set.task, loss)
        if self.accelerator.num_processes > 1:
            # All ranks choose checkpoints by the same numbers, even if a metric differs from call to call.
            (metrics,) = broadcast_object_list([metrics])
        seconds = time.perf_counter() - started
        if seconds >= 1:
            logger.info("%s: %d rows in %.1f s", eval_set.name, len(eval_set.rows), seconds)
        return Result(
            name=eval_set.name,
            metrics=metrics,
            predictions=predictions,
            num_rows=len(eval_set.rows),
            seconds=seconds,
            loss=loss,
            truncated=sum(answer.truncated for answer in answers.values()),
            method=eval_set.method,
            marks=list(eval_set.marks),
            labelled=eval_set.labelled,
        )

    def _batches(self, eval_set: EvalSet, answerer: Answerer) -> list[list[int]]:
        """The examples in batches; of equally many tokens on the fast paths, which take little other memory.

        On a CPU batches of short answers have up to four times as many tokens: their rows fill the decoder's matrix
        products. For long answers the decoder would keep too much in memory.
        """
        lengths = eval_set.features.input_ids.lengths
        one_beam = eval_set.method == "score" or self.settings.num_beams == 1
        is_quick = answerer.has_fast_path(eval_set.method) and one_beam
        if not (self.settings.batch_tokens and is_quick):
            return batches_by_length(lengths, self.batch_size)
        max_at_once = DECODED_AT_ONCE.get(self.accelerator.device.type, 1)
        at_once = max(1, min(max_at_once, ANSWER_TOKENS // eval_set.max_target_tokens))
        return batches_by_tokens(lengths + eval_set.max_target_tokens, self.settings.batch_tokens * at_once)

    def _over_ranks(
        self,
        name: str,
        batches: list[list[int]],
        answer_batch: Callable[[list[int]], list[AnswerWithLoss]],
        check_stop: Callable[[], None],
    ) -> dict[int, AnswerWithLoss]:
        """`{position: answer}` on every rank; one rank computes each batch; dummy batches keep all ranks in step."""
        rank = self.accelerator.process_index
        world_size = self.accelerator.num_processes
        answers: dict[int, AnswerWithLoss] = {}
        turns = range(-(-len(batches) // world_size))
        for turn in self.progress(turns, name) if self.progress else turns:
            check_stop()
            number = turn * world_size + rank
            is_dummy = number >= len(batches)
            batch = batches[0] if is_dummy else batches[number]
            with advising_on_memory(name, len(batch), self.settings.batch_flag):
                batch_answers = answer_batch(batch)
            if not is_dummy:
                answers.update(zip(batch, batch_answers, strict=True))
        if world_size == 1:
            return answers
        answers_of_ranks = gather_object([answers])
        return {position: answer for part in answers_of_ranks for position, answer in part.items()}

    def _answer_batch(
        self, answerer: Answerer, eval_set: EvalSet, positions: list[int], needs_loss: bool
    ) -> list[AnswerWithLoss]:
        methods = {"generate": self._generate, "score": self._choose, "classify": self._classify, "loss": self._lose}
        reading = answerer.read(eval_set.features.__getitems__(positions))
        texts, truncated = methods[eval_set.method](reading, eval_set, positions)
        if needs_loss:
            nll = reading.nll
            tokens = reading.tokens
        else:
            nll = [0.0] * len(positions)
            tokens = [0] * len(positions)
        return [AnswerWithLoss(*parts) for parts in zip(texts, truncated, nll, tokens, strict=True)]

    def _generate(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        """The answers' texts, and whether each was truncated; the three methods below return the same."""
        answerer = reading.answerer
        config = settings_of_call(
            answerer.model,
            is_plain=eval_set.task.writes_plainly,
            max_new_tokens=self.settings.max_length or eval_set.max_target_tokens,
            num_beams=self.settings.num_beams,
        )
        with generating_by(answerer.model, config):
            written_ids = [answers[0][0] for answers in reading.generate(config, self.settings.synced)]
        ends = answerer.ends
        answers = [tuple(before_end(ids, ends)) for ids in written_ids]
        unique_answers = list(dict.fromkeys(answers))  # a task with labels has few
        texts = dict(zip(unique_answers, eval_set.encoding.texts(unique_answers), strict=True))
        return [texts[ids] for ids in answers], [ends.isdisjoint(ids) for ids in written_ids]

    def _choose(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        candidates = [eval_set.candidates[eval_set.row_of_example[position]] for position in positions]

        def max_over_ranks(number: int) -> int:
            if not self.settings.synced:
                return number
            count = torch.tensor([number], device=self.accelerator.device)
            return int(self.accelerator.gather(count).max())

        scores_of_rows = reading.candidate_scores([ids for _, ids in candidates], max_over_ranks)
        best_texts = []
        for (texts, _), scores in zip(candidates, scores_of_rows, strict=True):
            best_texts.append(texts[scores.index(max(scores))])  # the first on a tie
        return best_texts, [False] * len(best_texts)

    def _classify(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        limits = number_range(eval_set.task)
        form = eval_set.task.entry.get("output_format")
        texts = [fill(form, OUTPUT, eval_set.encoding.word(scores, *limits)) for scores in reading.scores]
        return texts, [False] * len(texts)

    def _lose(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        """Running text has no answer to write: its score is its likelihood, in nats per token."""
        return [""] * len(positions), [False] * len(positions)


def mean_loss(answers: Iterable[AnswerWithLoss]) -> float | None:
    """Nats per target token; None if there are no tokens."""
    answers = list(answers)
    tokens = sum(answer.tokens for answer in answers)
    return math.fsum(answer.nll for answer in answers) / tokens if tokens else None


def loss_metrics(task: Task, loss: float | None) -> dict[str, float]:
    """The metrics of a set of which only the loss is evaluated: running text's is called nll."""
    if task.entry.get("formatter") == "document":
        return {"nll": math.nan if loss is None else loss}
    return {} if loss is None else {"loss": loss}


def number_range(task: Task) -> tuple[float, float]:
    """The smallest and the largest number that a task's answers can be; infinite if the task does not say.

    >>> number_range(load_task("glue", "stsb"))
    (0.0, 5.0)
    """
    numbers = []
    if task.value_kind == "number":
        numbers = [task.parse(text) for text in task.candidates({}) or ()]
    return (min(numbers), max(numbers)) if numbers else (-math.inf, math.inf)


def batches_by_length(lengths, batch_size: int) -> list[list[int]]:
    """Example indices in batches of similar length, longest first, so that a lack of memory shows at once.

    >>> batches_by_length([3, 9, 5], 2)
    [[1, 2], [0]]
    """
    order = longest_first(lengths)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def batches_by_tokens(lengths, max_tokens: int) -> list[list[int]]:
    """Example indices in batches of at most `max_tokens`, padding included, longest first; each has at least one row.

    >>> batches_by_tokens([3, 9, 5, 4], 10)
    [[1], [2, 3], [0]]
    """
    batches = []
    for i in longest_first(lengths):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(i)
    return batches


def longest_first(lengths) -> list[int]:
    """Indices by decreasing length; of equal lengths, the first comes first."""
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def batch_tokens(device: torch.device) -> int:
    """Tokens per batch: on a CPU as many as its caches hold (a T5 of width 256: 2,048 tokens take 2.0 s where 8,192
    take 2.9 and 32,768 take 5.4), on a GPU as many as keep it busy.

    >>> batch_tokens(torch.device("cpu"))
    2048
    """
    return 2048 if device.type == "cpu" else 32768
