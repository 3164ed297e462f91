"""Rows of evaluation and test splits -> `EvalSet`s; their evaluation -> `Result`s and a `Report`.

>>> sets, _, _ = load_eval_sets([load_task("glue", "mnli")], "validation", options, TextEncoding(tokenizer, lengths))
>>> [s.name for s in sets]
['mnli_matched', 'mnli_mismatched']
>>> report = evaluator.evaluate(model, sets)
>>> report.results["mnli_matched"].metrics, report.selection
({'accuracy': 84.2, 'invalid_rate': 0.0}, 84.35)
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.training_data import TrainingSet, tokenize_example_set
from t5suite.data.rows.sources import DataOptions, MissingSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Task, bind_compute_metrics
from t5suite.tasks.targets import has_free_numbers

logger = logging.getLogger(__name__)

UNKNOWN_TARGET_TOKENS = 64


@dataclass
class EvalSet:
    """One split of one task, ready to be evaluated.

    Attributes:
      name: its name in results, such as `mnli_matched`.
      role: 'validation' or 'test'; validation splits select checkpoints.
      split: its name in the source, such as `validation_matched`.
      example_set: its rows, and their examples as the model reads them.
      encoding: how rows become token ids, and ids become answers.
      compute_metrics: the lambda that `bind_compute_metrics` made.
      method: 'generate', 'score', 'classify' or, for running text and modules that write nothing, 'loss'.
      candidates: for `score`: each row's texts to choose from, and their ids with end-of-sequence.
      marks: notes that tables must show, such as 'subset'.
      selected_by: the user's own metric that selects checkpoints; None for the task's.
    """

    name: str
    task: Task
    role: str
    split: str
    example_set: ExampleSet
    features: TokenArrays
    encoding: TextEncoding
    compute_metrics: Callable
    method: str
    max_target_tokens: int
    candidates: list[tuple[list[str], list]] | None = None
    marks: list[str] = field(default_factory=list)
    selected_by: str | None = None

    @property
    def rows(self) -> list:
        """Its rows."""
        return self.example_set.rows

    @property
    def examples(self) -> list[Example]:
        """The (inputs, targets) pairs of the rows as the model reads them."""
        return self.example_set.examples

    @property
    def row_of_example(self) -> list[int]:
        """The position of each example's row."""
        return self.example_set.row_of_example

    @property
    def labelled(self) -> bool:
        """Whether the rows have targets."""
        return bool(self.rows) and self.task.is_labelled(self.rows[0])

    def optimised(self, metrics: dict[str, float]) -> float:
        """The one number that selects checkpoints, higher is better."""
        return self.task.optimised(metrics) if self.selected_by is None else metrics.get(self.selected_by, math.nan)

    def shown_inputs(self, place: int) -> str:
        """The inputs of an example, for people: what the model reads, with a mark where a long text is cut."""
        return self.encoding.shown(self.examples[place], self.example_set.row(place), self.task)

    @property
    def selects(self) -> bool:
        """Whether its scores may choose a checkpoint."""
        return self.role == "validation"


def load_eval_sets(
    tasks: list[Task],
    role: str,
    options: DataOptions,
    encoding: TextEncoding,
    method: str = "generate",
    limit: int | None = None,
    seed: int = 42,
    allow_missing: bool = False,
    alone: bool = True,
) -> tuple[list[EvalSet], dict[str, dict], list[str]]:
    """`(eval sets, the manifest's entry for each, skipped names)`.

    Args:
      role: 'validation' (a task without such a split, AX or DPR say, gives its test split), or 'test' (named
        `<task>.test`).
      encoding: how the model's family reads and writes.

    Raises:
      DataError: a split is missing (unless `allow_missing`), or a row is wrong.
    """
    sets, described, missing = [], {}, []
    for task in tasks:
        task_role = "test" if role == "validation" and not task.splits("validation") else role
        splits = task.splits(task_role)
        if options.file_for(task_role):
            if len(tasks) > 1:
                raise ConfigError(f"--{task_role}_file replaces one task's split; --dataset_name names several tasks")
            splits = {task.name: task_role}
        for name, split in splits.items():
            name = f"{name}.test" if role == "test" else name
            try:
                loaded = load_split(task, task_role, split, options)
            except MissingSplit as error:
                if not allow_missing:
                    hint = "; --allow_missing_tasks skips it" if len(tasks) > 1 else ""
                    raise MissingSplit(f"{task.benchmark}/{task.name}: {error}{hint}") from None
                logger.warning("%s is skipped: %s", name, error)
                missing.append(name)
                continue
            rows = select_rows(len(loaded.rows), limit=limit, seed=seed, role=task_role)
            chosen = loaded.rows.select(rows) if len(rows) < len(loaded.rows) else loaded.rows
            is_subset = len(rows) < (loaded.official or len(loaded.rows))
            how = method_for(encoding, method, task, alone)
            eval_set = make_eval_set(name, task, task_role, chosen, encoding, how, split)
            if is_subset:
                eval_set.marks.append("subset")
            sets.append(eval_set)
            described[f"{task.name}.{split}"] = {
                "origin": loaded.origin,
                "fingerprint": loaded.fingerprint,
                "rows": len(loaded.rows),
                "used": len(rows),
                "empty_texts": loaded.empty_texts,
                "subset": is_subset,
                **loaded.more,
            }
    return sets, described, missing


def method_for(encoding: TextEncoding, wanted: str, task: Task, alone: bool) -> str:
    """How a task is evaluated: 'loss' for running text, 'classify' for an encoder's head, else `wanted`.

    In a mixture, tasks without candidates fall back from `score` to `generate`.

    Raises:
      ConfigError: a single task without candidates was to be scored.
    """
    if wanted == "loss":
        return wanted
    if isinstance(encoding, SegmentEncoding):
        return "classify"
    if task.entry.get("formatter") == "document":
        return "loss"
    if wanted == "generate":
        return wanted
    if not task.has_candidates and alone:
        raise ConfigError(
            f"--eval_method score: {task.benchmark}/{task.name} has no candidates to choose from; "
            "use --eval_method generate"
        )
    return wanted if task.has_candidates else "generate"


def make_eval_set(
    name: str, task: Task, role: str, rows, encoding: TextEncoding, method: str = "generate", split: str | None = None
) -> EvalSet:
    """An `EvalSet` of a `datasets.Dataset` of rows."""
    encoding = encoding.for_task(task)
    example_set = encoding.example_set(rows.to_list(), task, role)
    features = tokenize_example_set(example_set, task, encoding)
    candidates = None
    if method == "score":
        of_rows = [task.candidates(row) for row in example_set.rows]
        unique = dict.fromkeys(map(tuple, of_rows))  # rows that share their candidates (labels) share the ids, too
        flat = iter(encoding.choices([text for texts in unique for text in texts]))
        ids = {texts: [next(flat) for _ in texts] for texts in unique}
        candidates = [(texts, ids[tuple(texts)]) for texts in of_rows]
    return EvalSet(
        name=name,
        task=task,
        role=role,
        split=split or role,
        example_set=example_set,
        features=features,
        encoding=encoding,
        compute_metrics=bind_compute_metrics(task, encoding.tokenizer, example_set),
        method=method,
        candidates=candidates,
        max_target_tokens=1 if method == "classify" else longest_target(task, encoding, example_set, features),
    )


def selection_eval_sets(sets: list[TrainingSet], encoding: TextEncoding, method: str) -> list[EvalSet]:
    """The rows of `--selection_split "train[5%]"`, which are evaluated during training."""
    how = lambda task: method_for(encoding, method, task, len(sets) == 1)
    of = lambda task, rows: make_eval_set(task.name, task, "validation", rows, encoding, how(task), "selection")
    return [of(part.task, part.selection_rows) for part in sets]


def longest_target(task: Task, encoding: TextEncoding, examples: ExampleSet, features: TokenArrays) -> int:
    """How many tokens an answer of the task may need, end-of-sequence included.

    Closed tasks: the longest label. Others: the longest target of the split, including every reference of a row, or
    the longest candidate if the targets are hidden.
    """
    rows = examples.rows
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
    """Free text and numbers: an answer may be as long as the longest target that the model was trained on."""
    longest = {part.task.name: int(np.max(f.labels.lengths)) for part, f in zip(sets, features, strict=True)}
    for eval_set in eval_sets:
        task = eval_set.task
        if task.value_kind in ("text", "labels") or has_free_numbers(task.entry):
            eval_set.max_target_tokens = max(eval_set.max_target_tokens, longest.get(task.name, 0))


# ---------------------------------------------------------------------------------------------------------------------
# The results of an evaluation, and the one number that selects checkpoints: the mean over tasks of each task's own
# metric.


@dataclass
class Result:
    """The result of evaluating one split."""

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


@dataclass
class Report:
    """The results of all splits, and the number that selects checkpoints."""

    results: dict[str, Result]
    selection: float
    by_task: dict[str, float]


def report_of(eval_sets: list[EvalSet], results: dict[str, Result], selection_metric: str | None = None) -> Report:
    """Each task's one number (higher is better) and their mean; a task of several splits (MNLI) has its splits' mean.

    Args:
      selection_metric: 'loss' instead of the tasks' own metrics.
    """
    values: dict[str, list[float]] = {}
    for eval_set in eval_sets:
        result = results[eval_set.name]
        if not eval_set.selects or not result.labelled:
            continue
        if selection_metric == "loss" or set(result.metrics) == {"loss"}:
            value = math.nan if result.loss is None else -result.loss
        elif result.metrics:
            value = eval_set.optimised(result.metrics)
        else:
            continue
        values.setdefault(eval_set.task.name, []).append(value)
    by_task = {name: sum(parts) / len(parts) for name, parts in values.items()}
    return Report(results, sum(by_task.values()) / len(by_task) if by_task else math.nan, by_task)


def selection_value(value: float) -> float:
    """What is not a finite number counts as worst, and never selects: no number is below minus infinity.

    >>> selection_value(float("nan"))
    -inf
    """
    return value if math.isfinite(value) else -math.inf


def report_metrics(report: Report, prefix: str = "eval") -> dict[str, float]:
    """A report as flat metrics; one task of several splits (MNLI) also reports the mean over its splits.

    >>> report_metrics(report)    # one task
    {'eval/accuracy': 91.2, 'eval/invalid_rate': 0.0, 'eval/loss': 0.31, 'eval/average': 91.2}
    """
    metrics = {}
    for name, result in report.results.items():
        path = f"{prefix}/" if len(report.results) == 1 else f"{prefix}/{name}/"
        metrics.update({path + metric: value for metric, value in result.metrics.items()})
        if result.loss is not None:
            metrics[path + "loss"] = result.loss
        if result.method == "generate" and result.predictions:
            metrics[path + "truncated_rate"] = 100 * result.truncated / len(result.predictions)
    if len(report.by_task) == 1 and len(report.results) > 1:
        scored = [result.metrics for result in report.results.values() if result.metrics]
        for name in scored[0] if scored else ():
            metrics[f"{prefix}/{name}"] = sum(found[name] for found in scored) / len(scored)
    if not any(result.method == "nll" for result in report.results.values()):  # pre-training has no tasks
        metrics[f"{prefix}/average"] = report.selection
    return metrics
