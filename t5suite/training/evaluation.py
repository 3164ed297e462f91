"""Scores a model on any number of splits: every row once, on any number of ranks.

    >>> report = Evaluator(collator, tokenizer, decoding, 64, accelerator).evaluate(model, eval_sets)
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

import logging
import math
import time
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from accelerate.utils import gather_object
from transformers import GenerationConfig

from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.models.answering.answerer import Answerer, AnswerSettings
from t5suite.models.families import recognize_family
from t5suite.models.t5.attention import slow_attention
from t5suite.tasks.registry import Task
from t5suite.tasks.templates import OUTPUT, fill
from t5suite.training.eval_sets import EvalSet, Report, Result, report_of

logger = logging.getLogger(__name__)

# The most encoder batches whose answers the decoder writes together, and the most tokens of an answer times these.
DECODED_AT_ONCE = {"cpu": 4}
ANSWER_TOKENS = 64
# Generation settings for a task whose answers are label words, whatever the checkpoint was used for before (a
# summarizer's minimum length, say); free text uses the checkpoint's own generation settings.
PLAIN_WRITING = dict(
    min_length=0, no_repeat_ngram_size=0, length_penalty=1.0, repetition_penalty=1.0, early_stopping=False
)


@dataclass
class Decoding:
    """How answers are written, and what else is computed.

    Attributes:
      synced: weights are sharded over several ranks, which therefore make the same number of forward passes.
      reference: the fast paths that plain code replaces (`reference_code`).
      loss: compute the targets' loss even if it takes a separate pass (selection by loss always computes it).
      batch_tokens: tokens per batch on the fast paths, including padding and answers; None: a number of rows.
    """

    num_beams: int = 1
    max_length: int | None = None
    synced: bool = False
    reference: frozenset[str] = frozenset()
    loss: bool = True
    batch_tokens: int | None = None


class Evaluator:
    """Evaluates models on `EvalSet`s; one per run.

    Args:
      accelerator: an `accelerate.Accelerator`, for autocast, the device and the ranks.

    Attributes:
      check_stop: called before every batch, on all ranks; what it raises ends the evaluation.
    """

    def __init__(
        self, collator: Seq2SeqCollator, tokenizer, decoding: Decoding, batch_size: int, accelerator, progress=None
    ):
        self.collator, self.tokenizer, self.decoding, self.batch_size = collator, tokenizer, decoding, batch_size
        self.accelerator, self.progress, self.check_stop = accelerator, progress, lambda: None

    def evaluate(self, model, eval_sets: list[EvalSet], selection_metric: str | None = None) -> Report:
        """Every split's metrics, in the order of `eval_sets`."""
        was_training = model.training
        model.eval()
        if "quick_attention" in self.decoding.reference:
            slow_attention(model)
        results = {}
        self._wants_loss = self.decoding.loss or selection_metric == "loss"
        with torch.no_grad(), self.accelerator.autocast():
            for eval_set in eval_sets:
                results[eval_set.name] = self._evaluate_set(model, eval_set)
        model.train(was_training)
        return report_of(eval_sets, results, selection_metric)

    def _evaluate_set(self, model, eval_set: EvalSet) -> Result:
        started = time.perf_counter()
        methods = {"generate": self._generate, "score": self._choose, "classify": self._classify, "loss": self._lose}
        answer = methods[eval_set.method]
        settings = AnswerSettings(self.decoding.reference, self._has_loss(eval_set), eval_set.encoding.given)
        answerer = recognize_family(model).make_answerer(
            model, self.tokenizer, settings, self.collator, self.accelerator.device
        )
        batches = self._batches(eval_set, answerer)

        def answers(positions) -> list[dict]:
            reading = answerer.read(eval_set.features.__getitems__(positions))
            found = zip(*answer(reading, eval_set, positions), self._losses(reading, eval_set), strict=True)
            return [{"text": text, "truncated": truncated, **loss} for text, truncated, loss in found]

        found = self._over_ranks(eval_set, batches, answers)
        predictions = [found[i]["text"] for i in range(len(eval_set.examples))]
        metrics = eval_set.compute_metrics(SimpleNamespace(predictions=predictions, label_ids=None))
        tokens = sum(item["tokens"] for item in found.values())
        loss = math.fsum(item["nll"] for item in found.values()) / tokens if eval_set.labelled and tokens else None
        if eval_set.method == "loss":
            name = "nll" if eval_set.task.entry.get("formatter") == "document" else "loss"
            metrics = {} if loss is None and name == "loss" else {name: math.nan if loss is None else loss}
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
            truncated=sum(item["truncated"] for item in found.values()),
            method=eval_set.method,
            marks=list(eval_set.marks),
            labelled=eval_set.labelled,
        )

    def _batches(self, eval_set: EvalSet, answerer: Answerer) -> list[list[int]]:
        """The examples in batches; of equally many tokens on the fast paths, which take little other memory.

        The shorter the answers, the more encoder batches the decoder takes at once: they fill a CPU's matrix products,
        but for long answers the decoder would keep too much in memory.
        """
        lengths = eval_set.features.input_ids.lengths
        quick = answerer.has_fast_path(eval_set.method) and (eval_set.method == "score" or self.decoding.num_beams == 1)
        if not (self.decoding.batch_tokens and quick):
            return batches_by_length(lengths, self.batch_size)
        most = DECODED_AT_ONCE.get(self.accelerator.device.type, 1)
        at_once = max(1, min(most, ANSWER_TOKENS // eval_set.max_target_tokens))
        return batches_by_tokens(lengths + eval_set.max_target_tokens, self.decoding.batch_tokens * at_once)

    def _over_ranks(self, eval_set: EvalSet, batches: list[list[int]], answer) -> dict[int, dict]:
        """`{example: answer}` on every rank; one rank computes each batch; dummy batches keep the rest in step."""
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        found = {}
        turns = range(-(-len(batches) // world_size))
        for turn in self.progress(turns, eval_set.name) if self.progress else turns:
            self.check_stop()
            mine = turn * world_size + rank
            batch = batches[mine] if mine < len(batches) else batches[0]
            answers = answer(batch)
            if mine < len(batches):
                found.update(zip(batch, answers, strict=True))
        if world_size > 1:
            found = {position: item for part in gather_object([found]) for position, item in part.items()}
        return found

    def _generate(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        """The answers' texts, and whether each was truncated; the three methods below return the same."""
        answerer = reading.answerer
        model_config, plain = answerer.model.config, PLAIN_WRITING if eval_set.task.value_kind != "text" else {}
        config = GenerationConfig(
            max_new_tokens=self.decoding.max_length or eval_set.max_target_tokens,
            num_beams=self.decoding.num_beams,
            do_sample=False,
            pad_token_id=model_config.pad_token_id,
            eos_token_id=model_config.eos_token_id,
            decoder_start_token_id=getattr(model_config, "decoder_start_token_id", None),
            **plain,
        )
        written = [answers[0][0] for answers in reading.generate(config, self.decoding.synced)]
        unique = {tuple(ids): None for ids in written}  # a task with labels has few
        texts = dict(zip(unique, eval_set.encoding.texts(list(unique)), strict=True))
        return [texts[tuple(ids)] for ids in written], [answerer.eos not in ids for ids in written]

    def _choose(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        candidates = [eval_set.candidates[eval_set.row_of_example[i]] for i in positions]

        def most_over_ranks(number: int) -> int:
            count = torch.tensor([number], device=self.accelerator.device)
            return int(self.accelerator.gather(count).max()) if self.decoding.synced else number

        scores = reading.candidate_scores([ids for _, ids in candidates], most_over_ranks)
        of_rows = zip(candidates, scores, strict=True)
        best = [texts[of_row.index(max(of_row))] for (texts, _), of_row in of_rows]  # the first on a tie
        return best, [False] * len(best)

    def _classify(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        limits = number_range(eval_set.task)
        form = eval_set.task.entry.get("output_format")
        texts = [fill(form, OUTPUT, eval_set.encoding.word(scores, *limits)) for scores in reading.scores]
        return texts, [False] * len(texts)

    def _lose(self, reading, eval_set: EvalSet, positions) -> tuple[list[str], list[bool]]:
        """Running text has no answer to write: its score is its likelihood, in nats per token."""
        return [""] * len(positions), [False] * len(positions)

    def _losses(self, reading, eval_set: EvalSet) -> list[dict]:
        """Nats and tokens of each row's target; zeros where the loss is not needed."""
        if self._has_loss(eval_set):
            return [{"nll": n, "tokens": t} for n, t in zip(reading.nll, reading.tokens, strict=True)]
        return [{"nll": 0.0, "tokens": 0}] * len(reading.tokens)

    def _has_loss(self, eval_set: EvalSet) -> bool:
        return eval_set.labelled and (self._wants_loss or eval_set.method == "loss")


def number_range(task: Task) -> tuple[float, float]:
    """The smallest and the largest number that a task's answers can be; infinite if the task does not say.

    >>> number_range(load_task("glue", "stsb"))
    (0.0, 5.0)
    """
    grid = [task.parse(text) for text in task.candidates({}) or ()] if task.value_kind == "number" else []
    return (min(grid), max(grid)) if grid else (-math.inf, math.inf)


def batches_by_length(lengths, batch_size: int) -> list[list[int]]:
    """Example indices in batches of similar length, longest first, so that a lack of memory shows at once.

    >>> batches_by_length([3, 9, 5], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def batch_tokens(asked_for: int | None, device: torch.device) -> int:
    """Tokens per batch: `asked_for`, else on a CPU as many as its caches hold (a T5 of width 256: 2,048 tokens take
    2.0 s where 8,192 take 2.9 and 32,768 take 5.4), on a GPU as many as keep it busy.

    >>> batch_tokens(None, torch.device("cpu"))
    2048
    """
    return asked_for or (2048 if device.type == "cpu" else 32768)


def batches_by_tokens(lengths, most_tokens: int) -> list[list[int]]:
    """Example indices in batches of at most `most_tokens`, padding included, longest first; each has at least one row.

    >>> batches_by_tokens([3, 9, 5, 4], 10)
    [[1], [2, 3], [0]]
    """
    batches = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > most_tokens:
            batches.append([])
        batches[-1].append(i)
    return batches
