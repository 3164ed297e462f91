"""Rows of evaluation and test splits -> `EvalSet`s; what is found in them -> `Result`s and a `Report`.

>>> sets = load_eval_sets([load_task("glue", "mnli")], "validation", options, tokenizer, Lengths(512, 512))
>>> [s.name for s in sets]
['mnli_matched', 'mnli_mismatched']
>>> report = evaluator.evaluate(model, sets)
>>> report.results["mnli_matched"].metrics, report.selection
({'accuracy': 84.2, 'invalid_rate': 0.0}, 84.35)
"""

import logging
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import Ragged, TokenArrays
from t5suite.data.batches.training_data import TrainingSet, tokenize_split
from t5suite.data.rows.sources import DataOptions, MissingSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Lengths, Task, bind_compute_metrics

logger = logging.getLogger(__name__)

UNKNOWN_TARGET_TOKENS = 64


@dataclass
class EvalSet:
    """One split of one task, ready to be evaluated.

    Attributes:
      name: what results call it, such as `mnli_matched`.
      role: 'validation' or 'test'.
      method: 'generate', 'score', 'classify' or, for running text and modules that write nothing, 'loss'.
      encoding: how rows were made ids, and ids become answers; text to text without one.
      compute_metrics: the lambda that `bind_compute_metrics` made.
      candidates: per row, the texts to choose from, tokenized; only for `score`.
      marks: what a table must say about it, such as 'subset'.
      selected_by: the metric of the user's own that selects checkpoints; None for the task's.
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
    encoding: TextEncoding | None = None
    selected_by: str | None = None

    @property
    def labelled(self) -> bool:
        """Whether the rows say what is right."""
        return bool(self.rows) and self.task.is_labelled(self.rows[0])

    def optimised(self, metrics: dict[str, float]) -> float:
        """The one number that selects checkpoints, more being better."""
        if self.selected_by is None:
            return self.task.optimised(metrics)
        return metrics.get(self.selected_by, math.nan)


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

    def of_row(self, row: int) -> tuple[list[str], list]:
        """A row's candidates, as texts and as ids."""
        start = self.starts[row]
        return self.texts[row], [self.ids[start + i] for i in range(len(self.texts[row]))]


def evaluation_role(task: Task) -> str:
    """'validation' where the task has such a split, else 'test' (AX, AX-b, AX-g, DPR)."""
    return "validation" if task.splits("validation") else "test"


def load_eval_sets(
    tasks: list[Task],
    role: str,
    options: DataOptions,
    tokenizer,
    lengths: Lengths,
    method: str = "generate",
    limit: int | None = None,
    seed: int = 42,
    allow_missing: bool = False,
    alone: bool = True,
    encoding: TextEncoding | None = None,
) -> tuple[list[EvalSet], dict[str, dict], list[str]]:
    """`(eval sets, what the manifest says of each, names left out)`.

    Args:
      role: 'validation' (a task without such a split gives its test split), or 'test' (named `<task>.test`).
      encoding: how the model's family reads and writes; text to text without one.

    Raises:
      DataError: a split is missing (unless `allow_missing`), or a row is wrong.
    """
    sets, described, missing = [], {}, []
    for task in tasks:
        task_role = evaluation_role(task) if role == "validation" else role
        for name, split in _splits(task, task_role, options, len(tasks)).items():
            name = f"{name}.test" if role == "test" else name
            try:
                loaded = load_split(task, task_role, split, options)
            except MissingSplit as error:
                if not allow_missing:
                    hint = "; --allow_missing_tasks leaves it out" if len(tasks) > 1 else ""
                    raise MissingSplit(f"{task.benchmark}/{task.name}: {error}{hint}") from None
                logger.warning("%s is left out: %s", name, error)
                missing.append(name)
                continue
            rows = select_rows(len(loaded.rows), limit=limit, seed=seed, role=task_role)
            chosen = loaded.rows if len(rows) == len(loaded.rows) else loaded.rows.select(rows)
            how = method_for(encoding, method, task, alone)
            eval_set = make_eval_set(name, task, task_role, split, chosen, tokenizer, lengths, how, encoding)
            if len(rows) < len(loaded.rows):
                eval_set.marks.append("subset")
            eval_set.selects = task_role == "validation"
            sets.append(eval_set)
            described[f"{task.name}.{split}"] = {
                "origin": loaded.origin,
                "fingerprint": loaded.fingerprint,
                "rows": len(loaded.rows),
                "used": len(rows),
                "empty_texts": loaded.empty_texts,
                "subset": len(rows) < len(loaded.rows),
                **({"files": loaded.files} if loaded.files else {}),
            }
    return sets, described, missing


def method_for(encoding: TextEncoding | None, wanted: str, task: Task, alone: bool) -> str:
    """'classify' for an encoder with a head, which nothing else can be asked of; else `choose_method`.

    Raises:
      ConfigError: a plain module cannot be evaluated so.
    """
    if wanted == "loss":
        return wanted
    if encoding is not None and encoding.methods is not None:
        if wanted != "generate" and wanted not in encoding.methods:
            raise ConfigError(f"--eval_method {wanted}: the --model_class can do {', '.join(encoding.methods)}")
        return choose_method("generate", task, alone) if "generate" in encoding.methods else encoding.methods[0]
    return "classify" if isinstance(encoding, SegmentEncoding) else choose_method(wanted, task, alone)


def make_eval_set(
    name, task: Task, role, split, rows, tokenizer, lengths: Lengths, method="generate", encoding=None
) -> EvalSet:
    """An `EvalSet` of a `datasets.Dataset` of rows."""
    encoding = (encoding or TextEncoding(tokenizer, lengths)).for_task(task)
    row_list = rows.to_list()
    examples = [task.examples(row, role) for row in row_list]
    row_of_example = [i for i, of_row in enumerate(examples) for _ in of_row]
    features = tokenize_split(rows, task, encoding, role)
    return EvalSet(
        name=name,
        task=task,
        role=role,
        split=split,
        rows=row_list,
        examples=[example for of_row in examples for example in of_row],
        row_of_example=row_of_example,
        features=features,
        compute_metrics=bind_compute_metrics(task, tokenizer, row_list, role),
        method=method,
        candidates=tokenize_candidates(task, row_list, encoding) if method == "score" else None,
        max_target_tokens=1 if method == "classify" else longest_target(task, encoding, row_list, features),
        encoding=encoding,
    )


def selection_eval_sets(
    sets: list[TrainingSet], tokenizer, lengths: Lengths, method: str, encoding=None
) -> list[EvalSet]:
    """The rows of `--selection_split "train[5%]"`, which are evaluated while training goes on."""
    return [
        make_eval_set(
            part.task.name,
            part.task,
            "validation",
            "selection",
            part.selection_rows,
            tokenizer,
            lengths,
            method_for(encoding, method, part.task, len(sets) == 1),
            encoding,
        )
        for part in sets
    ]


def longest_target(task: Task, encoding: TextEncoding, rows: list, features: TokenArrays) -> int:
    """How many tokens an answer of the task may need, end-of-sequence included.

    Closed tasks: the longest label. Others: the longest target of the split, every reference of a row counted, or of
    the candidates where the targets are hidden.
    """
    if task.value_kind == "class" or (task.value_kind == "number" and task.has_candidates):
        return max(map(len, encoding.answers(task.candidates(rows[0]))))
    if rows and task.is_labelled(rows[0]) and len(features):
        others = sorted({text for row in rows for text in task.references(row)[1:]})
        return max([int(features.labels.lengths.max()), *map(len, encoding.answers(others))])
    if task.has_candidates:
        texts = sorted({text for row in rows for text in task.candidates(row)})
        return max(map(len, encoding.answers(texts)), default=UNKNOWN_TARGET_TOKENS)
    return max(UNKNOWN_TARGET_TOKENS, int(features.labels.lengths.max(initial=0)))


def widen_for_training_targets(eval_sets: list[EvalSet], sets: list[TrainingSet], features: list[TokenArrays]) -> None:
    """Free text: an answer may be as long as the longest target that the model was trained on."""
    longest = {part.task.name: int(np.max(f.labels.lengths)) for part, f in zip(sets, features, strict=True)}
    for eval_set in eval_sets:
        if eval_set.task.value_kind == "text":
            eval_set.max_target_tokens = max(eval_set.max_target_tokens, longest.get(eval_set.task.name, 0))


def _splits(task: Task, role: str, options: DataOptions, num_tasks: int) -> dict[str, str]:
    if options.file_for(role):
        if num_tasks > 1:
            raise ConfigError(f"--{role}_file replaces one task's split; --dataset_name names several tasks")
        return {task.name: role}
    return task.splits(role)


def choose_method(wanted: str, task: Task, alone: bool) -> str:
    """`score` where the task has candidates; in a mixture, tasks without any fall back to `generate`.

    Running text is neither written nor chosen: its method is `loss`.

    Raises:
      ConfigError: a single task without candidates was to be scored.
    """
    if task.entry.get("formatter") == "document":
        return "loss"
    if wanted == "generate" or task.has_candidates:
        return wanted
    if alone:
        raise ConfigError(
            f"--eval_method score: {task.benchmark}/{task.name} has no candidates to choose from; "
            "use --eval_method generate"
        )
    return "generate"


def tokenize_candidates(task: Task, rows: list, encoding: TextEncoding) -> Candidates:
    """Every row's candidates as ids; rows that share their candidates (class labels) share the ids too."""
    texts = [task.candidates(row) for row in rows]
    places, unique, starts = {}, [], []
    for row_texts in texts:
        key = tuple(row_texts)
        if key not in places:
            places[key] = len(unique)
            unique.extend(row_texts)
        starts.append(places[key])
    return Candidates(texts, Ragged.from_rows(encoding.answers(unique)), starts)


# ---------------------------------------------------------------------------------------------------------------------
# What an evaluation found, and the one number of it that selects checkpoints: the mean over tasks, each counting with
# its own metric.


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
    samples: list[dict] = field(default_factory=list)

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


def task_values(eval_sets: list[EvalSet], results: dict[str, Result], selection_metric: str | None) -> dict[str, float]:
    """Each task's one number, more being better; a task of several splits (MNLI) counts with their mean."""
    values: dict[str, list[float]] = {}
    for eval_set in eval_sets:
        result = results[eval_set.name]
        if not eval_set.selects or not result.labelled:
            continue
        if selection_metric == "loss" or set(result.metrics) == {"loss"}:
            value = -result.loss if result.loss is not None else math.nan
        elif result.metrics:
            value = eval_set.optimised(result.metrics)
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


def report_metrics(report, prefix: str = "eval") -> dict[str, float]:
    """A report as flat metrics.

    >>> report_metrics(report)    # one task
    {'eval/accuracy': 91.2, 'eval/invalid_rate': 0.0, 'eval/loss': 0.31, 'eval/average': 91.2}
    """
    metrics = {}
    tasks = {result.name for result in report.results.values()}
    for name, result in report.results.items():
        path = f"{prefix}/" if len(tasks) == 1 else f"{prefix}/{name}/"
        metrics.update({path + metric: value for metric, value in result.metrics.items()})
        if result.loss is not None:
            metrics[path + "loss"] = result.loss
        if result.method == "generate" and result.predictions:
            metrics[path + "truncated_rate"] = 100 * result.truncated / len(result.predictions)
    if len(report.by_task) == 1 and len(tasks) > 1:
        metrics.update(_mean_over_splits(report, prefix))
    metrics[f"{prefix}/average"] = report.selection
    return metrics


def _mean_over_splits(report, prefix) -> dict[str, float]:
    """One task of several splits (MNLI) also reports `eval/<metric>`, the mean over its splits."""
    scored = [result.metrics for result in report.results.values() if result.metrics]
    return {f"{prefix}/{name}": sum(m[name] for m in scored) / len(scored) for name in scored[0]} if scored else {}
