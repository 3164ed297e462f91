"""Rows of evaluation and test splits -> `EvalSet`s, ready to be evaluated.

>>> loaded = load_eval_sets([load_task("glue", "mnli")], "validation", options, TextEncoding(tokenizer, lengths))
>>> [eval_set.name for eval_set in loaded.sets]
['mnli_matched', 'mnli_mismatched']
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.constants import OWN_BENCHMARK
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.training_data import TrainingSet, check_languages, tokenize_example_set
from t5suite.data.rows.sources import DataOptions, LoadedSplit, MissingSplit, load_split
from t5suite.data.rows.subsets import select_rows
from t5suite.tasks.entry_metrics import metrics_by_reported_name, optimised_metrics, tasks_in_points
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.metrics import ERRORS, NUMBER_METRICS
from t5suite.tasks.registry import Task, bind_compute_metrics
from t5suite.tasks.scored_labels import absent_labels_in_words, unlearned_labels_in_words
from t5suite.tasks.targets import has_free_numbers, has_label_sets
from t5suite.tasks.task_card import TaskCard

logger = logging.getLogger(__name__)

# How long answers may be where a split has neither targets nor candidates.
UNKNOWN_TARGET_TOKENS = 64
# Scored rows below which a score is coarse.
FEW_ROWS = 50
# Metrics in which no row has a share of 100 points.
NOT_OF_ROWS = NUMBER_METRICS | {"matthews_correlation"}


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
      places: file and line of each of the user's own rows; empty for others.
      averaged: its task belongs to the average of the run's mixture.
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
    places: list[str] = field(default_factory=list)
    averaged: bool = True

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
    def is_validation(self) -> bool:
        """Whether it is a validation split: by no other rows is a checkpoint selected."""
        return self.role == "validation"

    @property
    def counts_in_average(self) -> bool:
        """Whether its scores are in the mean that selects one checkpoint for all tasks."""
        return self.is_validation and self.averaged and self.labelled


@dataclass(frozen=True)
class SplitOptions:
    """How splits are evaluated.

    Attributes:
      method: `--eval_method`; some tasks and families have another one (`method_for`).
      limit: the most rows of a split; None: all.
      seed: of the choice of rows.
      allow_missing: skip tasks whose split is missing.
      is_single_task: one task is evaluated, not a mixture.
    """

    method: str = "generate"
    limit: int | None = None
    seed: int = 42
    allow_missing: bool = False
    is_single_task: bool = True


class LoadedSets(NamedTuple):
    """Evaluation sets, the manifest's entry for each, and the names of the splits that were skipped."""

    sets: list[EvalSet]
    described: dict[str, dict]
    missing: list[str]


DEFAULT_OPTIONS = SplitOptions()


def load_eval_sets(
    tasks: list[Task],
    role: str,
    options: DataOptions,
    encoding: TextEncoding,
    evaluation: SplitOptions = DEFAULT_OPTIONS,
) -> LoadedSets:
    """The evaluation sets of all splits of the tasks.

    Args:
      role: 'validation' (a task without such a split, AX or DPR say, gives its test split), or 'test' (named
        `<task>.test`).
      encoding: how the model's family reads and writes.

    Raises:
      DataError: a split is missing (unless `evaluation.allow_missing`), or a row is wrong.
    """
    sets = LoadedSets([], {}, [])
    for task in tasks:
        task_role = "test" if role == "validation" and not task.splits("validation") else role
        for name, split in splits_of(task, task_role, options, len(tasks)).items():
            if role == "test":
                name = f"{name}.test"
            try:
                loaded = load_split(task, task_role, split, options)
            except MissingSplit as error:
                if not evaluation.allow_missing:
                    hint = "; --allow_missing_tasks skips it" if len(tasks) > 1 else ""
                    raise MissingSplit(f"{task.benchmark}/{task.name}: {error}{hint}") from None
                logger.warning("%s is skipped: %s", name, error)
                sets.missing.append(name)
                continue
            check_languages(loaded, encoding)
            rows = select_rows(len(loaded.rows), limit=evaluation.limit, seed=evaluation.seed, role=task_role)
            used_rows = loaded.rows.select(rows) if len(rows) < len(loaded.rows) else loaded.rows
            method = method_for(encoding, evaluation.method, task, evaluation.is_single_task)
            eval_set = make_eval_set(name, task, task_role, used_rows, encoding, method, split)
            if loaded.places:
                eval_set.places = [loaded.places[number] for number in rows]
            description = describe_split(loaded, num_used=len(rows))
            if description["subset"]:
                eval_set.marks.append("subset")
            sets.sets.append(eval_set)
            sets.described[f"{task.name}.{split}"] = description
    return sets


def splits_of(task: Task, role: str, options: DataOptions, num_tasks: int) -> dict[str, str]:
    """`{name in results: name in the source}` of a task's splits, or the file that replaces them.

    Raises:
      ConfigError: a file for several tasks.
    """
    if not options.file_for(role):
        return task.splits(role)
    if num_tasks > 1:
        raise ConfigError(f"--{role}_file replaces one task's split; --dataset_name names several tasks")
    return {task.name: role}


def describe_split(loaded: LoadedSplit, num_used: int) -> dict:
    """The manifest's entry for a split of which `num_used` rows are evaluated."""
    return {
        "origin": loaded.origin,
        "fingerprint": loaded.fingerprint,
        "rows": len(loaded.rows),
        "used": num_used,
        "empty_texts": loaded.empty_texts,
        "subset": num_used < (loaded.official or len(loaded.rows)),
        **loaded.more,
    }


def method_for(encoding: TextEncoding, method: str, task: Task, is_single_task: bool) -> str:
    """How a task is evaluated: 'loss' for running text, 'classify' for an encoder's head, else `method`.

    In a mixture, tasks without candidates fall back from `score` to `generate`.

    Raises:
      ConfigError: a single task without candidates was to be scored.
    """
    if method == "loss":
        return method
    if isinstance(encoding, SegmentEncoding):
        return "classify"
    if task.entry.get("formatter") == "document":
        return "loss"
    if method == "generate" or task.has_candidates:
        return method
    if is_single_task:
        raise ConfigError(
            f"--eval_method score: {task.benchmark}/{task.name} has no candidates to choose from; "
            "use --eval_method generate"
        )
    return "generate"


def make_eval_set(
    name: str, task: Task, role: str, rows, encoding: TextEncoding, method: str = "generate", split: str | None = None
) -> EvalSet:
    """An `EvalSet` of a `datasets.Dataset` of rows."""
    encoding = encoding.for_task(task)
    example_set = encoding.example_set(rows.to_list(), task, role)
    features = tokenize_example_set(example_set, task, encoding)
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
        candidates=candidates_of_rows(task, example_set.rows, encoding) if method == "score" else None,
        max_target_tokens=1 if method == "classify" else longest_target(task, encoding, example_set, features),
    )


def candidates_of_rows(task: Task, rows: list, encoding: TextEncoding) -> list[tuple[list[str], list]]:
    """Each row's texts to choose from, and their ids; rows with the same texts (labels) share the ids, too.

    Raises:
      DataError: a row has nothing to choose from.
    """
    texts_of_rows = []
    for number, row in enumerate(rows):
        try:
            texts_of_rows.append(task.choices(row))
        except DataError as error:
            raise DataError(f"{task.benchmark}/{task.name}: row {number}: {error}") from None
    unique = dict.fromkeys(map(tuple, texts_of_rows))
    all_ids = iter(encoding.choices([text for texts in unique for text in texts]))
    ids_of_texts = {texts: [next(all_ids) for _ in texts] for texts in unique}
    return [(texts, ids_of_texts[tuple(texts)]) for texts in texts_of_rows]


def selection_eval_sets(sets: list[TrainingSet], encoding: TextEncoding, method: str) -> list[EvalSet]:
    """The rows of `--selection_split "train[5%]"`, which are evaluated during training; logs how many they are."""
    eval_sets = []
    for part in sets:
        num_rows = len(part.selection_rows)
        logger.info(
            "%s: %d of %d training rows are held out for the evaluations during training",
            part.task.name,
            num_rows,
            len(part.loaded.rows),
        )
        task_method = method_for(encoding, method, part.task, is_single_task=len(sets) == 1)
        eval_set = make_eval_set(
            part.task.name, part.task, "validation", part.selection_rows, encoding, task_method, "selection"
        )
        eval_sets.append(eval_set)
    return eval_sets


def longest_target(task: Task, encoding: TextEncoding, examples: ExampleSet, features: TokenArrays) -> int:
    """How many tokens an answer of the task may need, end-of-sequence included.

    Closed tasks: the longest label. Others: the longest target of the split, including every reference of a row, or
    the longest candidate if the targets are hidden.
    """
    rows = examples.rows
    if has_fixed_answers(task):
        return longest_label(task, encoding)
    if rows and task.is_labelled(rows[0]) and len(features):
        further_references = sorted({text for row in rows for text in task.references(row)[1:]})
        return max([int(features.labels.lengths.max()), *map(len, encoding.answers(further_references))])
    if task.has_candidates:
        texts = sorted({text for row in rows for text in task.candidates(row)})
        return max(map(len, encoding.answers(texts)), default=UNKNOWN_TARGET_TOKENS)
    return max(UNKNOWN_TARGET_TOKENS, int(features.labels.lengths.max(initial=0)))


def has_fixed_answers(task: Task) -> bool:
    """Whether every row has the same answers to choose from: labels, or the numbers of a grid."""
    return task.value_kind == "class" or (task.value_kind == "number" and task.has_candidates)


def longest_label(task: Task, encoding: TextEncoding) -> int:
    """The tokens of the longest answer of a task with fixed answers, end-of-sequence included."""
    return max(map(len, encoding.answers(task.candidates({}))))


def widen_for_training_targets(eval_sets: list[EvalSet], sets: list[TrainingSet], features: list[TokenArrays]) -> None:
    """Free text and numbers: an answer may be as long as the longest target that the model was trained on."""
    longest = {part.task.name: int(np.max(tokens.labels.lengths)) for part, tokens in zip(sets, features, strict=True)}
    for eval_set in eval_sets:
        if is_open(eval_set.task):
            eval_set.max_target_tokens = max(eval_set.max_target_tokens, longest.get(eval_set.task.name, 0))


def widen_for_trained_answers(eval_sets: list[EvalSet], card: TaskCard | None) -> None:
    """The same for a model that was trained by an earlier run, whose `task.json` says what its answers need.

    Cut at the longest target of the rows that are scored, a wrong answer would become a right one.
    """
    if card is None:
        return
    for eval_set in eval_sets:
        task = eval_set.task
        answer_tokens = card.max_answer_tokens.get(task.name, 0)
        if task.benchmark == OWN_BENCHMARK and len(card.max_answer_tokens) == 1:  # files may have any name
            answer_tokens = max(card.max_answer_tokens.values())
        if is_open(task):
            eval_set.max_target_tokens = max(eval_set.max_target_tokens, answer_tokens)


def leave_out_of_average(eval_sets: list[EvalSet], average: list[str]) -> None:
    """Sets of tasks that a mixture only evaluates or only trains on (WNLI, DPR) have no part in its average.

    Where nothing else is evaluated, they are the average.

    Args:
      average: the tasks of the mixture's average.
    """
    if not any(eval_set.task.name in average for eval_set in eval_sets):
        return
    for eval_set in eval_sets:
        eval_set.averaged = eval_set.task.name in average


def leave_errors_out_of_average(eval_sets: list[EvalSet]) -> list[Task]:
    """Sets of tasks whose number is an error, in the targets' unit, have no part in an average of points.

    Where no task has points, they are the average.

    Returns:
      The tasks that are left out.
    """
    averaged_sets = [eval_set for eval_set in eval_sets if eval_set.counts_in_average and eval_set.method != "loss"]
    tasks = {eval_set.task.name: eval_set.task for eval_set in averaged_sets}
    names_in_points = tasks_in_points({name: task.entry for name, task in tasks.items()})
    for eval_set in averaged_sets:
        eval_set.averaged = eval_set.task.name in names_in_points
    return [task for name, task in tasks.items() if name not in names_in_points]


def warn_of_errors_left_out(tasks: list[Task]) -> None:
    """Warns that tasks with an error for a score have no part in the choice of the one checkpoint for all tasks."""
    for task in tasks:
        cure = "give it pearson or spearman, too"
        metrics_in_points = [name for name in metrics_by_reported_name(task.entry) if name not in ERRORS]
        if metrics_in_points:
            cure = f"give its entry metric_to_optimize: {metrics_in_points[0]}"
        logger.warning(
            "%s: its score is an error in the targets' unit, which has no part in the average of the tasks' points, by "
            "which one checkpoint is chosen for all; %s, or --select per_task",
            task.name,
            cure,
        )


def describe_selection(eval_sets: list[EvalSet], selection_metric: str | None) -> dict[str, list[str]]:
    """What a run selects checkpoints by: of each set the method, the metrics, and a hash of what is read and expected.

    >>> describe_selection([rte], None)
    {'rte': ['generate', 'accuracy', '5f3a9c01d2e4b687']}
    """
    described = {}
    for eval_set in eval_sets:
        if eval_set.counts_in_average:
            metrics = eval_set.selected_by or " ".join(optimised_metrics(eval_set.task.entry))
            digest = hashlib.sha256(json.dumps(eval_set.examples, default=str).encode()).hexdigest()
            described[eval_set.name] = [eval_set.method, selection_metric or metrics, digest[:16]]
    return described


def warn_of_other_method(eval_sets: list[EvalSet], card: TaskCard | None) -> None:
    """Warns where answers are written by a model whose `task.json` says that it was scored by its labels."""
    if card is None:
        return
    for eval_set in eval_sets:
        if eval_set.method == "generate" and card.scores_by_labels(eval_set.task):
            logger.warning(
                "%s: the model was trained and scored with --eval_method score; here it writes its answers",
                eval_set.name,
            )


def warn_of_unlearned_labels(eval_sets: list[EvalSet], training_sets: list[TrainingSet], card: TaskCard | None) -> None:
    """Warns of labels of sets in scored rows that no row of the last training has: no answer is right for them.

    Args:
      training_sets: of a run that trains.
      card: of the model of another run.
    """
    labels_by_task = {part.task.name: part.labels_of_sets for part in training_sets if has_label_sets(part.task.entry)}
    for eval_set in eval_sets:
        task = eval_set.task
        learned_labels = labels_by_task.get(task.name)
        if not training_sets and card is not None:
            learned_labels = card.labels_of_sets(task)
        if learned_labels and eval_set.labelled:
            place = eval_set.places.__getitem__ if eval_set.places else "scored row {}".format
            _warn_of_labels(eval_set, unlearned_labels_in_words(task, eval_set.rows, learned_labels, place))


def warn_of_absent_labels(eval_sets: list[EvalSet]) -> None:
    """Warns of labels that no scored row has where a metric counts them as 0."""
    for eval_set in eval_sets:
        if eval_set.labelled and eval_set.method != "loss":
            _warn_of_labels(eval_set, absent_labels_in_words(eval_set.task, eval_set.rows))


def _warn_of_labels(eval_set: EvalSet, message: str) -> None:
    if message:
        logger.warning("%s %s: %s", eval_set.name, eval_set.split, message)


def warn_of_few_rows(eval_sets: list[EvalSet]) -> None:
    """Warns of scores that one row more or less would move by much."""
    for eval_set in eval_sets:
        num_rows = len(eval_set.rows)
        if eval_set.labelled and 0 < num_rows < FEW_ROWS:
            coarseness = "one row may change the score by much"
            if _has_points_of_rows(eval_set):
                coarseness = f"one row is {100 / num_rows:.1f} points"
            logger.warning("%s %s: %d rows are few: %s", eval_set.name, eval_set.split, num_rows, coarseness)


def _has_points_of_rows(eval_set: EvalSet) -> bool:
    """Whether a score is of 100 points that the rows share: no loss, correlation, error or value of the user's."""
    if eval_set.method == "loss":
        return False
    names = metrics_by_reported_name(eval_set.task.entry).values()
    return any(name not in NOT_OF_ROWS for name in names)


def is_open(task: Task) -> bool:
    """Whether the rows do not say how long an answer may be: free text, sets of labels, free numbers."""
    return task.value_kind in ("text", "labels") or has_free_numbers(task.entry)
