"""Scores a model on any number of splits: every row once, on any number of ranks.

    >>> report = Evaluator(decoding, collator).evaluate(model, eval_sets)
    >>> report.results["mnli_matched"].metrics
    {'accuracy': 84.2, 'invalid_rate': 0.0}

`generate` writes an answer and looks it up; `score` chooses the candidate with the highest sum of token
log-probabilities, end-of-sequence included, without length normalisation, the first of equals. Batches are made once
over the whole split (longest examples first) and dealt out to the ranks, so that a row meets the same batch, and the
same arithmetic, on one rank or many. Shapes: B examples, C candidates, S source and T target tokens, V vocabulary.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from accelerate.utils import gather_object
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from t5suite.data.collators import IGNORED, Seq2SeqCollator, shift_right
from t5suite.data.features import Ragged, TokenArrays
from t5suite.errors import ConfigError
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Task, decode_ids

EVAL_METHODS = ("generate", "score")
# (row, candidate) pairs that the decoder takes at once, counted in the source tokens that they attend to.
SCORED_TOKENS_AT_ONCE = 32768


@dataclass
class EvalSet:
    """One split of one task, ready to be evaluated.

    Attributes:
      name: what results call it, such as `mnli_matched`.
      role: 'validation' or 'test'.
      method: 'generate' or 'score'.
      compute_metrics: the lambda that `bind_compute_metrics` made.
      candidates: per row, the texts to choose from, tokenized; only for `score`.
      marks: what a table must say about it, such as 'subset'.
    """

    name: str
    task: Task
    role: str
    split: str
    rows: list
    examples: list[Example]
    row_of_example: list[int]
    features: TokenArrays
    compute_metrics: Callable
    method: str = "generate"
    max_target_tokens: int = 16
    candidates: "Candidates | None" = None
    marks: list[str] = field(default_factory=list)
    selects: bool = True

    @property
    def labelled(self) -> bool:
        """Whether the rows say what is right."""
        return bool(self.rows) and self.task.is_labelled(self.rows[0])


@dataclass
class Candidates:
    """The candidate texts of every row, and their ids, one behind the other.

    Attributes:
      texts: per row, its candidates.
      ids: all rows' candidates tokenized, with end-of-sequence.
      starts: where each row's candidates begin in `ids`.
    """

    texts: list[list[str]]
    ids: Ragged
    starts: list[int]


@dataclass
class Result:
    """What an evaluation of one split found."""

    name: str
    metrics: dict[str, float]
    predictions: list[str]
    num_rows: int
    seconds: float
    loss: float | None
    truncated: int
    method: str
    marks: list[str]
    labelled: bool

    @property
    def scores(self) -> dict[str, float]:
        """The metrics, and the rates that say what is behind them."""
        return dict(self.metrics)


@dataclass
class Report:
    """The results of all splits, and the number that selects checkpoints."""

    results: dict[str, Result]
    selection: float
    by_task: dict[str, float]


@dataclass
class Decoding:
    """How answers are written."""

    num_beams: int = 1
    max_length: int | None = None
    synced: bool = False


class Evaluator:
    """Evaluates models on `EvalSet`s; one per run.

    Args:
      accelerator: an `accelerate.Accelerator`, for autocast, the device and the ranks; None on one plain device.

    Attributes:
      check_stop: called before every batch, on all ranks; what it raises ends the evaluation.
    """

    def __init__(
        self, collator: Seq2SeqCollator, tokenizer, decoding: Decoding, batch_size: int, accelerator, progress=None
    ):
        self.collator = collator
        self.tokenizer = tokenizer
        self.decoding = decoding
        self.batch_size = batch_size
        self.accelerator = accelerator
        self.progress = progress
        self.check_stop = lambda: None

    def evaluate(self, model, eval_sets: list[EvalSet], selection_metric: str | None = None) -> Report:
        """Every split's metrics, in the order of `eval_sets`."""
        was_training = model.training
        model.eval()
        results = {}
        with torch.no_grad(), self.accelerator.autocast():
            for eval_set in eval_sets:
                results[eval_set.name] = self._evaluate_set(model, eval_set)
        model.train(was_training)
        by_task = task_values(eval_sets, results, selection_metric)
        values = list(by_task.values())
        return Report(results, sum(values) / len(values) if values else math.nan, by_task)

    def _evaluate_set(self, model, eval_set: EvalSet) -> Result:
        started = time.perf_counter()
        answer = self._generate if eval_set.method == "generate" else self._choose
        found = self._over_ranks(eval_set, lambda positions: answer(model, eval_set, positions))
        predictions = [found[i]["text"] for i in range(len(eval_set.examples))]
        metrics = eval_set.compute_metrics(SimpleNamespace(predictions=predictions, label_ids=None))
        tokens = sum(item["tokens"] for item in found.values())
        loss = math.fsum(item["nll"] for item in found.values()) / tokens if eval_set.labelled and tokens else None
        return Result(
            name=eval_set.name,
            metrics=metrics,
            predictions=predictions,
            num_rows=len(eval_set.rows),
            seconds=time.perf_counter() - started,
            loss=loss,
            truncated=sum(item["truncated"] for item in found.values()),
            method=eval_set.method,
            marks=list(eval_set.marks),
            labelled=eval_set.labelled,
        )

    def _over_ranks(self, eval_set: EvalSet, answer) -> dict[int, dict]:
        """`{example: answer}` on every rank; each batch is computed by one rank, dummies keep the others in step."""
        batches = batches_by_length(eval_set.features.input_ids.lengths, self.batch_size)
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        found = {}
        turns = range(-(-len(batches) // world_size))
        for turn in self.progress(turns, eval_set.name) if self.progress else turns:
            self.check_stop()
            mine = turn * world_size + rank
            answers = answer(batches[mine] if mine < len(batches) else batches[0])
            if mine < len(batches):
                found.update(zip(batches[mine], answers, strict=True))
        if world_size > 1:
            found = {position: item for part in gather_object([found]) for position, item in part.items()}
        return found

    def _read(self, model, eval_set, positions):
        """`(batch, encoder_outputs, nll, tokens)` of the targets, in nats and by example.

        The encoder runs once for the loss, the answer and every candidate. It runs within the whole model, for FSDP
        puts the pieces of some weights together when that is called, and not when a part of it is.
        """
        features = [eval_set.features[i] for i in positions]
        batch = {key: value.to(self.accelerator.device) for key, value in self.collator(features).items()}
        names = ("input_ids", "attention_mask", "decoder_input_ids")
        outputs = model(**{name: batch[name] for name in names}, return_dict=True)
        logits_BTV, labels_BT = outputs.logits.float(), batch["labels"]
        nll_BT = F.cross_entropy(logits_BTV.transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none")
        encoder_outputs = BaseModelOutput(last_hidden_state=outputs.encoder_last_hidden_state)
        return batch, encoder_outputs, nll_BT.sum(dim=1).tolist(), labels_BT.ne(IGNORED).sum(dim=1).tolist()

    def _generate(self, model, eval_set, positions) -> list[dict]:
        batch, encoder_outputs, nll, tokens = self._read(model, eval_set, positions)
        limit = self.decoding.max_length or eval_set.max_target_tokens
        generated = model.generate(
            encoder_outputs=encoder_outputs,
            attention_mask=batch["attention_mask"],
            generation_config=self._generation_config(model, limit),
            synced_gpus=self.decoding.synced,
        ).tolist()
        # The first token is the decoder's start token, which some families also use as their end token.
        generated = [ids[1:] for ids in generated]
        texts = decode_ids(generated, self.tokenizer)
        eos = self.tokenizer.eos_token_id
        return [
            {"text": text, "nll": n, "tokens": t, "truncated": eos not in ids}
            for text, ids, n, t in zip(texts, generated, nll, tokens, strict=True)
        ]

    def _most_over_ranks(self, number: int) -> int:
        count = torch.tensor([number], device=self.accelerator.device)
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX)
        return int(count)

    def _generation_config(self, model, limit: int) -> GenerationConfig:
        config = model.config
        return GenerationConfig(
            max_new_tokens=limit,
            num_beams=self.decoding.num_beams,
            do_sample=False,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
        )

    def _choose(self, model, eval_set, positions) -> list[dict]:
        batch, encoder_outputs, nll, tokens = self._read(model, eval_set, positions)
        rows = [eval_set.row_of_example[i] for i in positions]
        hidden_BSD, mask_BS = encoder_outputs.last_hidden_state, batch["attention_mask"]
        most = self._most_over_ranks if self.decoding.synced else lambda number: number
        scores = candidate_scores(model, self.collator, hidden_BSD, mask_BS, eval_set.candidates, rows, most)
        answers = []
        for row, score, n, t in zip(rows, scores, nll, tokens, strict=True):
            best = max(range(len(score)), key=lambda i: score[i])
            answers.append({"text": eval_set.candidates.texts[row][best], "nll": n, "tokens": t, "truncated": False})
        return answers


def candidate_scores(
    model, collator, hidden_BSD, mask_BS, candidates: Candidates, rows: list[int], most=lambda number: number
) -> list[list[float]]:
    """Per row, each candidate's log-probability: the sum over its tokens, end-of-sequence included.

    The decoder runs over (row, candidate) pairs and reads the row's encoder states, which are computed once.

    Args:
      most: a number of this rank's -> the largest of all ranks'. Where weights are in pieces, ranks put them together
        in every forward pass, so that all must make the same number of passes.
    """
    pairs = [(b, c) for b, row in enumerate(rows) for c in range(len(candidates.texts[row]))]
    at_once = max(1, SCORED_TOKENS_AT_ONCE // mask_BS.shape[1])
    num_chunks = -(-len(pairs) // at_once)
    flat = []
    for turn in range(most(num_chunks)):
        chunk = pairs[turn * at_once : (turn + 1) * at_once] or pairs[:1]
        labels_PT = collator.pad([candidates.ids[candidates.starts[rows[b]] + c] for b, c in chunk], IGNORED)
        labels_PT = labels_PT.to(mask_BS.device)
        row_of_pair = torch.tensor([b for b, _ in chunk], device=mask_BS.device)
        logits_PTV = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden_BSD[row_of_pair]),
            attention_mask=mask_BS[row_of_pair],
            decoder_input_ids=shift_right(labels_PT, collator.pad_token_id, collator.decoder_start_token_id),
        ).logits.float()
        nll_PT = F.cross_entropy(logits_PTV.transpose(1, 2), labels_PT, ignore_index=IGNORED, reduction="none")
        if turn < num_chunks:
            flat.extend((-nll_PT.sum(dim=1)).tolist())
    scores, at = [], 0
    for row in rows:
        scores.append(flat[at : at + len(candidates.texts[row])])
        at += len(candidates.texts[row])
    return scores


def tokenize_candidates(task: Task, rows: list, tokenizer, max_length: int) -> Candidates:
    """Every row's candidates as ids; rows that share their candidates (class labels) share the ids too."""
    texts = [task.candidates(row) for row in rows]
    places, unique, starts = {}, [], []
    for row_texts in texts:
        key = tuple(row_texts)
        if key not in places:
            places[key] = len(unique)
            unique.extend(row_texts)
        starts.append(places[key])
    ids = tokenizer(text_target=unique, max_length=max_length, truncation=True)["input_ids"]
    return Candidates(texts, Ragged.from_rows(ids), starts)


def batches_by_length(lengths, batch_size: int) -> list[list[int]]:
    """Example numbers in batches of similar length, longest first, so that a lack of memory shows at once.

    >>> batches_by_length([3, 9, 5], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def choose_method(wanted: str, task: Task, alone: bool) -> str:
    """`score` where the task has candidates; in a mixture, tasks without any fall back to `generate`.

    Raises:
      ConfigError: a single task without candidates was to be scored.
    """
    if wanted == "generate" or task.has_candidates:
        return wanted
    if alone:
        raise ConfigError(
            f"--eval_method score: {task.benchmark}/{task.name} has no candidates to choose from; "
            "use --eval_method generate"
        )
    return "generate"


def task_values(eval_sets: list[EvalSet], results: dict[str, Result], selection_metric: str | None) -> dict[str, float]:
    """Each task's one number, more being better; a task of several splits (MNLI) counts with their mean."""
    values: dict[str, list[float]] = {}
    for eval_set in eval_sets:
        result = results[eval_set.name]
        if not eval_set.selects or not result.labelled:
            continue
        if selection_metric == "loss":
            value = -result.loss if result.loss is not None else math.nan
        elif result.metrics:
            value = eval_set.task.optimised(result.metrics)
        else:
            continue
        values.setdefault(eval_set.task.name, []).append(value)
    return {name: sum(parts) / len(parts) for name, parts in values.items()}


def selection_value(value: float) -> float:
    """NaN counts as worst: the smallest number that JSON can hold.

    >>> selection_value(float("nan")) < -1e300
    True
    """
    return -sys.float_info.max if math.isnan(value) else value
