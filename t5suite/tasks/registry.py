"""A registry entry -> a `Task`: its inputs, its targets, its scores, and the callables for the trainer.

>>> task = load_task("super_glue", "cb")
>>> task.examples({"premise": "It rains.", "hypothesis": "It is wet.", "label": 0, "idx": 0})
[Example(inputs='cb hypothesis: It is wet. premise: It rains.', targets='entailment')]
>>> task.parse("neutral")
2
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.constants import METRIC_GROUPS
from t5suite.tasks.cells import as_list, cell
from t5suite.tasks.entries import load_registry
from t5suite.tasks.entry_checks import check_entry
from t5suite.tasks.entry_metrics import is_value_of_evaluate, metric_functions, optimised_metrics
from t5suite.tasks.evaluate_metrics import evaluate_names, load_evaluate_metric, merged_scores
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import (
    FITTED_FORMATTERS,
    FORMATTER_COLUMNS,
    TARGET_COLUMNS,
    Example,
    formatter_of,
    words_of,
)
from t5suite.tasks.metrics import METRIC_ALIASES, invalid_rate
from t5suite.tasks.postprocessors import POSTPROCESSORS, Judged
from t5suite.tasks.targets import (
    INVALID_CLASS,
    NUMBER_GRIDS,
    SHIPPED_TARGETS,
    TARGETS,
    UNKNOWN_TARGET,
    has_label_sets,
    is_labelled,
    is_number,
    label_of,
    label_words,
    parse_class,
    parse_number,
    value_kind,
)
from t5suite.tasks.templates import OUTPUT, fill, filled, has_form, kept_tokens, unfilled
from t5suite.tasks.tokenization import Lengths, decode_ids

# Candidate answers that differ from row to row: formatter -> their column.
CANDIDATE_COLUMNS = {"record": "entities", "dpr": "candidates"}


@dataclass(frozen=True)
class Task:
    """One task of a benchmark; `entry` is its plain registry entry."""

    benchmark: str
    name: str
    entry: dict = field(hash=False, compare=False)  # a dict has no hash

    @property
    def value_kind(self) -> str:
        """'class', 'number', 'text' or 'labels' (one for every word): how a prediction is read."""
        return value_kind(self.entry)

    @property
    def writes_plainly(self) -> bool:
        """Whether answers are labels, sets of them, or numbers: no text of a model's own making."""
        return self.value_kind != "text" or has_label_sets(self.entry)

    @property
    def label_words(self) -> list[str] | None:
        """The target words by class id; None for numbers and free text."""
        return None if self.entry["labels"] is None else label_words(self.entry["labels"])

    @property
    def rows_of(self) -> str:
        """The task whose rows this one reads."""
        return self.entry.get("rows_of") or self.name

    @property
    def text_columns(self) -> list[str]:
        """The columns of the input text, and the others that the formatter needs."""
        return [*as_list(self.entry["text_column_name"]), *FORMATTER_COLUMNS.get(self.entry.get("formatter"), [])]

    @property
    def input_columns(self) -> list[str]:
        """The columns of the input text: `text_columns` without those of which the target alone is made."""
        target_columns = TARGET_COLUMNS.get(self.entry.get("formatter"), [])
        return [column for column in self.text_columns if column not in target_columns]

    @property
    def has_own_formatter(self) -> bool:
        """Whether the user's own code makes the examples: it may read every column, and may change from run to run."""
        return not formatter_of(self.entry).__module__.startswith("t5suite.")

    @property
    def has_own_target(self) -> bool:
        """Whether the user's own code writes the numbers of the targets."""
        target = self.entry.get("target")
        return TARGETS.get(target) is not SHIPPED_TARGETS.get(target)

    @property
    def template(self) -> str:
        """The prefixes and forms that the task puts around rows, joined.

        Tokenizers read control tokens as tokens if they stand here, and as plain text in rows.
        """
        forms = (self.entry.get("input_format"), self.entry.get("output_format"))
        return "\n".join([*as_list(self.entry.get("prefix") or ""), *filter(None, forms)])

    def splits(self, role: str) -> dict[str, str]:
        """The source's splits for 'train', 'validation' or 'test', by the names that results use.

        >>> load_task("glue", "mnli").splits("validation")
        {'mnli_matched': 'validation_matched', 'mnli_mismatched': 'validation_mismatched'}

        A split's name without its role ('_matched') is put behind the task's.
        """
        table = self.entry.get("splits") or {"train": "train", "validation": "validation", "test": "test"}
        return {self.name + split.removeprefix(role): split for split in as_list(table.get(role) or [])}

    def examples(self, row, split: str = "validation", fits: Callable[[str], bool] | None = None) -> list[Example]:
        """The (inputs, targets) pairs of a row: one; ReCoRD: one per answer; WSC training: none for a false row.

        Args:
          fits: whether a text is short enough for the model (`bind_fits`). A task with demonstrations drops
            demonstrations that do not fit. Default: everything fits.
        """
        formatter = formatter_of(self.entry)
        if fits is not None and (self.entry.get("formatter") or "columns") in FITTED_FORMATTERS:
            examples = formatter(row, self.entry, split, fits=fits)
        else:
            examples = formatter(row, self.entry, split)
        return [filled(example, self.entry) for example in examples]

    def example_set(self, rows: Iterable, split: str = "validation") -> ExampleSet:
        """Rows and their `examples`, read once: what `score_examples` takes."""
        return ExampleSet.of(rows, split, self.examples)

    def target_text(self, row) -> str:
        """The target of the row's first example."""
        return self.examples(row, "validation")[0].targets

    def label_numbers(self, row, example: Example) -> list[int]:
        """The class of each word of a row whose words have labels; -1 for all where they are hidden."""
        if example.targets == UNKNOWN_TARGET:
            return [INVALID_CLASS] * len(self.words(row))
        return [self.label_words.index(word) for word in self.parse(example.targets)]

    def words(self, row) -> list[str]:
        """The words of a row whose words have labels."""
        return words_of(row, self.entry)

    def references(self, row) -> list[str]:
        """The correct texts of a row, if its label is a list of them; else its one target.

        >>> load_task("squad", "squad").references({"answers": {"text": ["Ann", "her"]}, "question": ...})
        ['Ann', 'her']
        """
        label = label_of(row, self.entry)
        if self.writes_plainly or not isinstance(label, (list, tuple)) or not label:
            return [self.target_text(row)]
        return [fill(self.entry.get("output_format"), OUTPUT, str(text)) for text in label]

    def parse(self, text: str) -> Any:
        """A generated text as metrics use it: a class's id (-1 if it is no label), a number (-1.0 if it is none), the
        list of words' labels, or the text itself.
        """
        kind = self.value_kind
        # A label's word is no answer without the output form; `unfilled` returns other texts as they are.
        if kind == "class" and not has_form(text, self.entry):
            return INVALID_CLASS
        text = unfilled(text, self.entry)
        if kind == "class":
            return parse_class(text, self.label_words)
        if kind == "number":
            return parse_number(text)
        if kind == "labels":
            return text.split()
        return text

    def lengths(self, lengths: Lengths) -> Lengths:
        """The longest sequences kept: the task's own `max_input_tokens` and `max_output_tokens`, else `lengths`."""
        source = self.entry.get("max_input_tokens") or lengths.source
        target = self.entry.get("max_output_tokens") or lengths.target
        return Lengths(source, target, kept_tokens(self.entry))

    def is_labelled(self, row) -> bool:
        """Whether the row has a label."""
        return is_labelled(row, self.entry)

    def candidates(self, row) -> list[str] | None:
        """The candidate texts to be scored, as targets have them; None if the task has none."""
        if not self.has_candidates:
            return None
        if self.value_kind == "text":
            answers = list(map(str, cell(row, CANDIDATE_COLUMNS[self.entry["formatter"]], list)))
        elif self.value_kind == "class":
            answers = self.label_words
        else:
            answers = NUMBER_GRIDS[self.entry["target"]]
        return [fill(self.entry.get("output_format"), OUTPUT, answer) for answer in answers]

    def choices(self, row) -> list[str]:
        """The candidates of a row, one of which is chosen.

        Raises:
          DataError: the row has none.
        """
        texts = self.candidates(row)
        if not texts:
            column = CANDIDATE_COLUMNS[self.entry["formatter"]]
            raise DataError(f"column {column!r} holds no candidate; one of them is the answer")
        return texts

    @property
    def has_candidates(self) -> bool:
        """Whether candidates can be scored at all."""
        if self.value_kind == "class":
            return True
        if self.value_kind == "number":
            return self.entry.get("target") in NUMBER_GRIDS
        return self.entry.get("formatter") in CANDIDATE_COLUMNS

    def score(self, rows: Sequence, predictions: Sequence[str], split: str = "validation") -> dict[str, float]:
        """`{metric: points}` of one prediction per example, in the order of `examples` over the rows.

        >>> load_task("glue", "sst2").score([{"sentence": "Good.", "label": 1}], ["positive"])
        {'accuracy': 100.0, 'invalid_rate': 0.0}

        A task without metrics and rows without labels give an empty table.

        Raises:
          DataError: the numbers of predictions and examples differ, no rows, or labelled and unlabelled rows mixed.
        """
        return self.score_examples(self.example_set(rows, split), predictions)

    def score_examples(self, examples: ExampleSet, predictions: Sequence[str]) -> dict[str, float]:
        """As `score`, for rows that have been read."""
        if len(predictions) != len(examples):
            raise DataError(
                f"{self.benchmark}/{self.name}: {len(examples.rows)} rows make {len(examples)} examples "
                f"in split {examples.split!r}, but there are {len(predictions)} predictions; there must be one per "
                "example, in the rows' order"
            )
        if not len(examples):
            raise DataError(f"{self.benchmark}/{self.name}: there are no examples to score")
        has_metrics = metric_functions(self.entry) or evaluate_names(self.entry)
        if not has_metrics or not self._all_labelled(examples.rows):
            return {}
        judged = self.judged(examples, predictions)
        scores = self._metric_scores(judged)
        if self.value_kind == "class":
            scores["invalid_rate"] = invalid_rate(judged.predictions)
        elif self.value_kind == "number":
            num_invalid = sum(not is_number(unfilled(text, self.entry)) for text in predictions)
            scores["invalid_rate"] = 100 * (num_invalid / len(predictions))
        return scores

    def _metric_scores(self, judged: Judged) -> dict[str, float]:
        """`{metric: points}` of the entry's metrics, those of `evaluate` last."""
        num_classes = len(self.label_words) if self.label_words else None
        scores = {}
        for name, function in metric_functions(self.entry).items():
            scores[name] = function(
                judged.predictions, judged.references, groups=judged.groups, num_classes=num_classes
            )
        for name in evaluate_names(self.entry):
            values = load_evaluate_metric(name)(judged.predictions, judged.references)
            scores = merged_scores(scores, values, f"{self.benchmark}/{self.name}: {name}")
        return scores

    def judged(self, examples: ExampleSet, predictions: Sequence[str]) -> Judged:
        """Predictions and references as metrics compare them, of one prediction per example."""
        judge = POSTPROCESSORS[self.entry.get("postprocess") or "values"]
        return judge(self, examples, list(predictions))

    def score_groups(self, examples: ExampleSet, predictions: Sequence[str]) -> dict:
        """The scores of the parts that `report_by` names: `{column: {value: {metric: points, ..., "n": rows}}}`.

        >>> load_task("super_ni", "english").score_groups(examples, predictions)["category"]["Title Generation"]
        {'rougeL': 31.2, 'exact_match': 4.0, 'n': 1784}
        """
        columns = self.entry.get("report_by") or []
        if not columns or not examples.rows or not self._all_labelled(examples.rows):
            return {}
        return {column: self._scores_by_value(examples, predictions, column) for column in columns}

    def _scores_by_value(self, examples: ExampleSet, predictions: Sequence[str], column: str) -> dict[str, dict]:
        rows_of_value: dict[str, list[int]] = {}
        for number, row in enumerate(examples.rows):
            rows_of_value.setdefault(str(cell(row, column)), []).append(number)
        table = {}
        for value, row_numbers in sorted(rows_of_value.items()):
            answers = [predictions[place] for place in examples.places_of(row_numbers)]
            scores = self.score_examples(examples.part(row_numbers), answers)
            table[value] = {**scores, "n": len(row_numbers)}
        return table

    def optimised(self, scores: dict[str, float]) -> float:
        """The one number that selects checkpoints, from `score`'s table; NaN if there is none.

        >>> load_task("glue", "mrpc").optimised({"f1": 80.0, "accuracy": 70.0})
        75.0
        """
        values = [scores[metric] for metric in optimised_metrics(self.entry) if metric in scores]
        if not values:
            return math.nan
        return sum(values) / len(values)

    def with_metric_to_optimize(self, name: str, where: str = "--metric_to_optimize") -> "Task":
        """The same task, selected by another of its metrics (or an alias such as mcc), a group of them, or `average`.

        Args:
          where: the flag that gave it, for errors.
        """
        reported_names = list(metric_functions(self.entry))
        groups = [group for group, members in METRIC_GROUPS.items() if set(members) <= set(reported_names)]
        choices = {choice: choice for choice in [*reported_names, *groups, "average"]}
        # The entry may report a metric by its alias, and the user may name it by its name, or the other way round.
        for reported_name in reported_names:
            choices.setdefault(METRIC_ALIASES.get(reported_name, reported_name), reported_name)
        asked_name = name if name in choices else METRIC_ALIASES.get(name, name)
        if is_value_of_evaluate(name, self.entry):
            metric = name  # which values a metric of `evaluate` has, only its result says
        else:
            metric = find(asked_name, choices, "metric", where=where)
        return Task(self.benchmark, self.name, {**self.entry, "metric_to_optimize": metric})

    def _all_labelled(self, rows) -> bool:
        labelled = [self.is_labelled(row) for row in rows]
        if any(labelled) and not all(labelled):
            raise DataError(
                f"{self.benchmark}/{self.name}: row {labelled.index(False)} has no label, but others have; "
                "score only labelled rows"
            )
        return all(labelled)


def load_task(benchmark: str, name: str, task_file: str | None = None, registry: dict | None = None) -> Task:
    """The task `name` of `benchmark`; a `task_file` adds your own.

    Args:
      registry: one that was loaded before (`load_registry`), in place of the file.

    >>> load_task("glue", "rte").name
    'rte'

    Raises:
      ConfigError: unknown benchmark or task (with the closest names), or a malformed entry.
    """
    registry = load_registry(task_file) if registry is None else registry
    tasks = find(benchmark, registry, "benchmark", where="--benchmark")
    entry = _find_task(name, tasks, benchmark, registry)
    check_entry(f"{benchmark}/{name}", entry)
    return Task(benchmark, name, entry)


def bind_compute_metrics(task: Task, tokenizer, examples: ExampleSet) -> Callable:
    """What scores an evaluation for the trainer, which calls it with the `predictions`: ids or texts."""
    return lambda prediction: score_ids(prediction, task=task, tokenizer=tokenizer, examples=examples)


def score_ids(prediction, *, task: Task, tokenizer, examples: ExampleSet) -> dict[str, float]:
    """The metrics of generated ids (or of texts, which scored candidates are) for a split's examples."""
    predictions = prediction.predictions
    if len(predictions) and not isinstance(predictions[0], str):
        predictions = decode_ids(predictions, tokenizer)
    return task.score_examples(examples, predictions)


def resolve_names(benchmark: str, dataset_name: str, registry: dict, mixtures: dict) -> tuple[list, list, list]:
    """`--dataset_name` -> the tasks to train on, to evaluate and to average: one task, a comma list or a mixture.

    >>> resolve_names("glue", "cola,rte", DATASET_VALS, MIXTURES)
    (['cola', 'rte'], ['cola', 'rte'], ['cola', 'rte'])
    """
    tasks = find(benchmark, registry, "benchmark", where="--benchmark")
    benchmark_mixtures = mixtures.get(benchmark, {})
    mixture = benchmark_mixtures.get(dataset_name)
    if mixture:
        return list(mixture["train"]), list(mixture["evaluate"]), list(mixture["average"])
    names = [name.strip() for name in dataset_name.split(",") if name.strip()]
    if not names:
        raise ConfigError("--dataset_name is empty; name a task, several with commas, or a mixture")
    for name in names:
        if name in benchmark_mixtures:
            raise ConfigError(f"--dataset_name {dataset_name}: {name!r} is a mixture: give it alone, without commas")
        _find_task(name, {**dict.fromkeys(benchmark_mixtures), **tasks}, benchmark, registry, names)
        if names.count(name) > 1:
            raise ConfigError(f"--dataset_name names {name!r} twice")
    return names, names, names


def _find_task(name: str, table: dict, benchmark: str, registry: dict, all_names: Sequence[str] = ()):
    """`table[name]`; raises a `ConfigError` that names the benchmarks which have the task.

    Args:
      all_names: the tasks that are asked for together; benchmarks that have all of them are named, if any does.

    >>> _find_task("rte", DATASET_VALS["mini"], "mini", DATASET_VALS)
    ConfigError: --dataset_name: rte is a task of glue, super_glue, not of mini; give --benchmark glue or super_glue
    """
    with_task = {candidate: tasks for candidate, tasks in registry.items() if name in tasks}
    with_all_tasks = [candidate for candidate, tasks in with_task.items() if tasks.keys() >= set(all_names)]
    benchmarks = with_all_tasks or list(with_task)
    if name not in table and benchmarks:
        raise ConfigError(
            f"--dataset_name: {name} is a task of {', '.join(benchmarks)}, not of {benchmark}; give "
            f"--benchmark {' or '.join(benchmarks)}"
        )
    return find(name, table, f"{benchmark} task", where="--dataset_name")
