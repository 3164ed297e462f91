"""What a saved model records about its tasks, so that it can be used without its training flags.

    >>> write_task_card("runs/rte", make_task_card([load_task("glue", "rte")], Lengths(512, 512)))
    >>> read_task_card("runs/rte").task().examples({"sentence1": "It rains.", "sentence2": "It is wet."})
    [Example(inputs='rte sentence1: It rains. sentence2: It is wet.', targets='<unk>')]

`task.json` is next to the weights: `{"format": 1, "benchmark", "tasks": {name: entry}, "max_source_length",
"max_target_length", "max_answer_tokens": {name: tokens}, "family", ...}`. An entry is the registry's own, with
prefixes, columns, formatter and label words; it is plain data, and refers to functions by their names in our tables.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import write_json
from t5suite.base.hub_files import file_of_model
from t5suite.base.lookup import find
from t5suite.constants import DATASET_VALS, MIXTURES, OWN_BENCHMARK
from t5suite.tasks.entries import load_registry
from t5suite.tasks.entry_checks import REQUIRED_FIELDS, check_entry, undefined_functions
from t5suite.tasks.evaluate_metrics import without_evaluate_metrics
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import has_label_sets, is_number_word, label_words
from t5suite.tasks.tokenization import Lengths

TASK_CARD = "task.json"
# The setting of a card that has, by task, the labels of the sets that a model was trained to write.
LABELS_OF_SETS = "labels_of_sets"
FORMAT = 1
# What an entry of a task file may say about its rows and texts where other rows are read by its columns alone.
FIELDS_OF_COLUMNS = (
    *REQUIRED_FIELDS,
    "input_format",
    "output_format",
    "max_input_tokens",
    "max_output_tokens",
    "target_decimals",
)
# Where an entry's own rows are, which other rows do not need.
FIELDS_OF_PLACES = ("hub_path", "hub_name", "hub_archive", "rows_of", "splits", "num_examples")
# Families of models whose head predicts: they generate no text.
HEADED = ("masked", "encoder")
CARD_KEYS = tuple(
    "format benchmark tasks made_by_flags max_source_length max_target_length max_answer_tokens family "
    "scored_by_labels".split()
)


class UndefinedFunctionError(ConfigError):
    """A card names a function that no table has: the user's own, or another version's.

    Ranks pass it to each other by pickle, which makes it of the message alone and then sets the attributes.

    Attributes:
      problem: the message without the way out.
      task_flags: the flags that name the task in a task file.
    """

    def __init__(self, message: str, problem: str = "", task_flags: str = ""):
        super().__init__(message)
        self.problem = problem
        self.task_flags = task_flags


@dataclass(frozen=True)
class TaskCard:
    """The tasks that a model was trained and evaluated on, and the lengths of their texts.

    Attributes:
      tasks: by name, in the run's order.
      lengths: the longest inputs and targets, in tokens.
      max_answer_tokens: by task, the most tokens that an answer needs, end-of-sequence included.
      family: seq2seq, causal, masked or encoder; None: the model's configuration decides.
      settings: other settings of the text, such as a causal model's `answer_separator`.
      scored_by_labels: the tasks whose scores are those of the likeliest label (`--eval_method score`).
      made_by_flags: the tasks are those of `--data_format` or `--data_class`, not of a benchmark or a task file.
    """

    tasks: dict[str, Task]
    lengths: Lengths
    max_answer_tokens: dict[str, int] = field(default_factory=dict)
    family: str | None = None
    settings: dict = field(default_factory=dict)
    scored_by_labels: tuple[str, ...] = ()
    made_by_flags: bool = False

    @property
    def benchmark(self) -> str:
        """The benchmark of the tasks."""
        return next(iter(self.tasks.values())).benchmark

    @property
    def dataset_name(self) -> str:
        """The tasks as `--dataset_name` names them: the mixture that trains and evaluates them, or a list with commas.

        >>> read_task_card("runs/glue-all").dataset_name, read_task_card("runs/cola-rte").dataset_name
        ('all', 'cola,rte')
        """
        names = list(self.tasks)
        for mixture, parts in MIXTURES.get(self.benchmark, {}).items():
            if names == list(dict.fromkeys([*parts["train"], *parts["evaluate"]])):
                return mixture
        return ",".join(names)

    @property
    def is_shipped(self) -> bool:
        """Whether all tasks come with the suite, rows included."""
        return all(name in DATASET_VALS.get(self.benchmark, {}) for name in self.tasks)

    def task_flags(self, dataset_name: str | None = None) -> dict[str, str]:
        """The flags that name the card's tasks, or those of them that `--dataset_name` names; empty for other tasks.

        >>> read_task_card("runs/cola-rte").task_flags("rte")
        {'benchmark': 'glue', 'dataset_name': 'rte'}
        """
        name = dataset_name or self.dataset_name
        if name != self.dataset_name and not set(name.split(",")) <= set(self.tasks):
            return {}
        return {"benchmark": self.benchmark, "dataset_name": name}

    def task(self, name: str | None = None) -> Task:
        """The task of that name; without one, the only task.

        Raises:
          ConfigError: no such task, or several tasks and no name.
        """
        if name is not None:
            return find(name, self.tasks, "task", where="--dataset_name")
        if len(self.tasks) > 1:
            raise ConfigError(f"the model has several tasks; give --dataset_name, one of {', '.join(self.tasks)}")
        return next(iter(self.tasks.values()))

    def was_trained_on(self, task: Task) -> bool:
        """Whether a task is one of the model's own; files of your own may have any name."""
        if task.benchmark == OWN_BENCHMARK and own_task_of_card(self) is not None:
            return True
        return task.benchmark == self.benchmark and task.name in self.tasks

    def scores_by_labels(self, task: Task) -> bool:
        """Whether the model was scored on a task by its likeliest label; files of your own may have any name."""
        if task.benchmark == OWN_BENCHMARK and own_task_of_card(self) is not None:
            return bool(self.scored_by_labels)
        return task.name in self.scored_by_labels

    def labels_of_sets(self, task: Task) -> Sequence[str] | None:
        """The labels in the last training's rows of a task of sets; None where the card does not have them."""
        if not has_label_sets(task.entry):
            return None
        labels_by_task = self.settings.get(LABELS_OF_SETS, {})
        if task.benchmark == OWN_BENCHMARK and own_task_of_card(self) is not None:  # files may have any name
            return next(iter(labels_by_task.values()), None)
        return labels_by_task.get(task.name)


def make_task_card(
    tasks: Iterable[Task],
    lengths: Lengths,
    max_answer_tokens: Mapping[str, int] | None = None,
    family: str | None = None,
    scored_by_labels: Iterable[str] = (),
    made_by_flags: bool = False,
    **settings,
) -> TaskCard:
    """A card of these tasks; of several with the same name, the first is used."""
    by_name = {}
    for task in tasks:
        by_name.setdefault(task.name, task)
    answer_tokens = dict(max_answer_tokens or {})
    return TaskCard(by_name, lengths, answer_tokens, family, settings, tuple(scored_by_labels), made_by_flags)


def write_task_card(folder, card: TaskCard) -> None:
    """Writes `task.json` into `folder`; a card without tasks writes nothing."""
    if not card.tasks:
        return
    benchmarks = {task.benchmark for task in card.tasks.values()}
    assert len(benchmarks) == 1, "the tasks of a run belong to one benchmark"
    entries = {}
    for name, task in card.tasks.items():
        labels = task.entry["labels"]  # a table by id becomes a list: JSON's keys are strings
        entries[name] = {**task.entry, "labels": label_words(labels) if isinstance(labels, dict) else labels}
    content = {
        "format": FORMAT,
        "benchmark": benchmarks.pop(),
        "tasks": entries,
        "made_by_flags": card.made_by_flags,
        "max_source_length": card.lengths.source,
        "max_target_length": card.lengths.target,
        "max_answer_tokens": card.max_answer_tokens,
        "family": card.family,
        **card.settings,
    }
    if card.scored_by_labels:
        content["scored_by_labels"] = list(card.scored_by_labels)
    write_json(Path(folder) / TASK_CARD, content)


def read_task_card(folder, calls_functions: bool = True) -> TaskCard | None:
    """The card in `folder`; None if there is none (a model from elsewhere), or if no folder is named.

    Args:
      calls_functions: False: only the tasks' words are read, and not their functions, which may be missing.

    Raises:
      ConfigError: it cannot be read, is not a card, or names a function that no table has; gives the file and the
        reason.
    """
    if not folder:  # an empty path would be the working directory
        return None
    path = Path(folder) / TASK_CARD
    return _read_card(path, calls_functions) if path.is_file() else None


def own_task_of(folder, name: str | None = None) -> Task | None:
    """The task of a model by which other rows of the user's own are read; None for another model.

    Args:
      name: of the task, where the model has several.
    """
    return own_task_of_card(read_task_card(folder), name)


def own_task_of_card(card: TaskCard | None, name: str | None = None) -> Task | None:
    """A card's only task, or the one of that name, if it is of the user's own rows and takes no more than columns."""
    if card is None or not card.tasks or card.is_shipped:
        return None
    has_own_rows = card.benchmark == OWN_BENCHMARK  # tasks are named after files, and other files may have any name
    is_only_task = len(card.tasks) == 1 and (has_own_rows or name is None)
    task = card.task() if is_only_task else card.tasks.get(name)
    if task is None or has_own_rows:
        return task
    return _task_of_columns(task)


def _task_of_columns(task: Task) -> Task | None:
    """A task file's task without the places of its rows; None if they are more than texts and an answer."""
    entry = {key: value for key, value in task.entry.items() if value is not None or key in REQUIRED_FIELDS}
    fields = {key: value for key, value in entry.items() if key not in FIELDS_OF_PLACES}
    # A number may be a class id in rows of a task file, and is the label that it spells in others.
    has_numbers_as_labels = any(is_number_word(word) for word in entry["labels"] or ())
    if has_numbers_as_labels or not fields.keys() <= set(FIELDS_OF_COLUMNS):
        return None
    return Task(task.benchmark, task.name, fields)


def task_card_of_model(name: str | None, revision: str | None = None, calls_functions: bool = True) -> TaskCard | None:
    """The card of a model by its folder or by its name on the hub; None if it has none, or if no model is named.

    Args:
      revision: of a model of the hub, as `hub_commits.commit_to_read` takes it.
      calls_functions: as in `read_task_card`.

    Raises:
      ConfigError: as `read_task_card`.
      UserError: as `hub_failures.read_from_hub`.
    """
    path = file_of_model(name, TASK_CARD, revision) if name else None
    return _read_card(path, calls_functions) if path else None


def task_card_after_file(name: str | None, revision: str | None, task_file: str | None) -> TaskCard | None:
    """As `task_card_of_model`, for commands with `--task_file`: a file in Python may add what the card names.

    Raises:
      ConfigError: also for the file; where it is missing, with the flags that name it.
    """
    load_registry(task_file)
    try:
        return task_card_of_model(name, revision)
    except UndefinedFunctionError as error:
        raise ConfigError(f"{error.problem}; give {error.task_flags}") from None


def _read_card(path: Path, calls_functions: bool) -> TaskCard:
    """The card in a file; raises what `read_task_card` does."""
    try:
        return _card_of(json.loads(path.read_text(encoding="utf-8")), path, calls_functions)
    except UndefinedFunctionError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, LookupError) as error:
        what = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{path} is not a task card ({what:.300}); restore it, or remove it and give the flags"
        ) from None


def _card_of(content: dict, path: Path, calls_functions: bool) -> TaskCard:
    if content.get("format") != FORMAT:
        raise ConfigError(f"format {content.get('format')!r} instead of {FORMAT}: another version wrote it")
    # Cards of earlier versions do not say it; most tasks with the benchmark of the flags were made by flags.
    made_by_flags = bool(content.get("made_by_flags", content["benchmark"] == OWN_BENCHMARK))
    tasks = {}
    for name, entry in content["tasks"].items():
        undefined = undefined_functions(entry)
        if undefined and calls_functions:
            problem = (
                f"{path}: {content['benchmark']}/{name} has the {' and the '.join(undefined)}, which t5suite does not "
                "have; a Python file (--task_file) adds such functions"
            )
            if made_by_flags:
                table = f"{{{content['benchmark']!r}: {{{name!r}: ...}}}}"
                problem += f", with DATASET_VALS = {table}, the task's entry in {TASK_CARD}"
            raise UndefinedFunctionError(
                f"{problem}; or remove {TASK_CARD}, and give the task by flags",
                problem,
                f"--benchmark {content['benchmark']} --dataset_name {name} --task_file FILE",
            )
        check_entry(f"{path}: {content['benchmark']}/{name}", entry, calls_functions)
        tasks[name] = Task(content["benchmark"], name, without_evaluate_metrics(entry))
    lengths = Lengths(_whole(content, "max_source_length"), _whole(content, "max_target_length"))
    answer_tokens = {name: _whole(content["max_answer_tokens"], name) for name in content["max_answer_tokens"]}
    settings = {key: value for key, value in content.items() if key not in CARD_KEYS}
    scored_by_labels = _names_of_tasks(content, tasks)
    return TaskCard(tasks, lengths, answer_tokens, content["family"], settings, scored_by_labels, made_by_flags)


def _names_of_tasks(content: dict, tasks: dict) -> tuple[str, ...]:
    names = content.get("scored_by_labels", [])
    if not isinstance(names, list) or not set(names) <= set(tasks):
        raise ConfigError(f"scored_by_labels is {names!r:.60}, not a list of names among tasks")
    return tuple(names)


def _whole(content: dict, key: str) -> int:
    value = content[key]
    if type(value) is not int or value < 1:
        raise ConfigError(f"{key} is {value!r:.60}, not a whole number above 0")
    return value
