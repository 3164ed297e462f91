"""What a saved model's own task says of a run that scores or trains it: the task, lengths, form and way of answering.

>>> own_task_of_model(arguments)               # --model_name_or_path runs/reviews --eval_only --test_file new.csv
Task('own', 'reviews', ...)
>>> settings_of_task(task)
{'text_column': 'text', 'target_column': 'summary', 'prefix': 'summarize: ', 'metrics': 'rouge'}
"""

import logging
import os
from collections.abc import Mapping, Sequence

from t5suite.base.errors import ConfigError
from t5suite.constants import OWN_BENCHMARK
from t5suite.data.rows.formats import (
    default_metrics,
    languages_of,
    quoted_words,
)
from t5suite.tasks.cells import as_list
from t5suite.tasks.entries import benchmarks_of_task_file
from t5suite.tasks.entry_metrics import METRICS_OF_ANSWERS, check_entry_metric, kind_of_answers
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import has_label_sets
from t5suite.tasks.task_card import TaskCard, own_task_of_card, read_task_card
from t5suite.tasks.templates import INPUT
from t5suite.training.flags.data import TABLES
from t5suite.training.flags.plug_ins import named_metrics

logger = logging.getLogger(__name__)

FILE_FLAGS = ("train_file", "validation_file", "test_file")
# Flags that say how the user's own rows are read and answered: with others than the model's it is another task.
FLAGS_OF_ANOTHER_TASK = (
    "text_column",
    "target_column",
    "labels",
    "input_format",
    "output_format",
    "prefix",
    "source_id",
    "target_id",
)
# Flags that say how the user's own rows become a task.
FLAGS_OF_OWN_TASKS = (*FLAGS_OF_ANOTHER_TASK, "metrics")
TASK_FLAGS = ("benchmark", "dataset_name", "task_file")


def take_known_tasks(data_args, model_name: str | None) -> None:
    """If no flag names a task, the tasks that a saved model was trained on replace the default.

    Raises:
      ConfigError: the model was trained on the user's own rows, which no flag names here, or on another benchmark than
        those of `--task_file`.
    """
    if model_name is None or "benchmark" in data_args.flags_given:
        return
    card = read_task_card(model_name)
    if card is None or not card.tasks:
        return
    if data_args.task_file is not None:
        _check_file_has_benchmark(data_args.task_file, model_name, card)
    task_flags = card.task_flags(named_tasks(data_args))
    if not task_flags:
        return
    if not card.is_shipped and data_args.task_file is None:
        raise ConfigError(_message_of_missing_rows(data_args, model_name, card, task_flags["dataset_name"]))
    data_args.benchmark = task_flags["benchmark"]
    data_args.dataset_name = task_flags["dataset_name"]
    logger.info("%s was trained on %s/%s, which is used as the task", model_name, *task_flags.values())


def _check_file_has_benchmark(task_file: str, model_name: str, card: TaskCard) -> None:
    """Refuses a task file that a model's own tasks leave unused.

    Raises:
      ConfigError: gives the file's benchmarks, of which a flag may name one.
    """
    benchmarks = benchmarks_of_task_file(task_file)
    if card.benchmark in benchmarks:
        return
    benchmark = f"the benchmark {' and '.join(benchmarks)}" if benchmarks else "no benchmark"
    raise ConfigError(
        f"--task_file {task_file} has {benchmark}, and {model_name} was trained on "
        f"{card.benchmark}/{card.dataset_name}; give --benchmark"
    )


def named_tasks(data_args) -> str | None:
    """What `--dataset_name` names; None where it is not given."""
    return data_args.dataset_name if "dataset_name" in data_args.flags_given else None


def take_known_method(arguments, plan) -> None:
    """A saved model that is scored without `--eval_method` chooses labels if the run that trained it was scored so."""
    evaluation = arguments.evaluation
    if not answers_as_it_is(arguments) or "eval_method" in evaluation.flags_given:
        return
    card = read_task_card(arguments.model.model_name_or_path)
    tasks = [task for task in plan.evaluate if task.has_candidates]
    if card is None or not tasks or not all(map(card.scores_by_labels, tasks)):
        return
    evaluation.eval_method = "score"
    logger.info(
        "answers are the likeliest labels, as the model was scored after its training (--eval_method score); "
        "--eval_method generate has the model write them"
    )


def take_known_lengths(data_args, card: TaskCard | None, tasks: list[Task]) -> None:
    """A saved model reads and writes as many tokens of its own tasks as in training, where no flag says how many.

    Args:
      tasks: those that are scored.
    """
    lengths = _trained_lengths(data_args, card, tasks)
    for name, length in lengths.items():
        setattr(data_args, name, length)
    if lengths:
        logger.info("%s, as in the model's training", _flags_text(lengths))


def _trained_lengths(data_args, card: TaskCard | None, tasks: list[Task]) -> dict[str, int]:
    """The lengths of a model's training, by flag, where no flag gives them and this run has others.

    Other tasks may have longer texts: where one is scored that is not the model's own, there are none.
    """
    if card is None or not all(map(card.was_trained_on, tasks)):
        return {}
    lengths = {"max_source_length": card.lengths.source, "max_target_length": card.lengths.target}
    return {
        name: length
        for name, length in lengths.items()
        if name not in data_args.flags_given and length != getattr(data_args, name)
    }


def _flags_text(values: Mapping[str, object]) -> str:
    return " ".join(f"--{name} {value}" for name, value in values.items())


def take_known_form(arguments, plan) -> int:
    """A saved model that is scored reads instructions in the form of its training, where no flag gives another.

    Returns:
      The seed by which forms are drawn.
    """
    seed = arguments.training.seed
    card = read_task_card(arguments.model.model_name_or_path) if answers_as_it_is(arguments) else None
    tasks = [task for task in plan.evaluate if card and task.entry.get("instruction") and task.name in card.tasks]
    if not tasks:
        return seed
    form = tasks[0].entry["instruction"]
    trained_form = card.tasks[tasks[0].name].entry.get("instruction") or form
    flags = arguments.instruction.take_form(trained_form, form)
    if flags:
        logger.info("%s: instructions have the form of the model's training", _flags_text(flags))
    return seed if "seed" in arguments.training.flags_given else trained_form["seed"]


def _message_of_missing_rows(data_args, model_name: str, card: TaskCard, dataset_name: str) -> str:
    """Why the rows of a model's task are not there: no flag names them, or none says that they are the user's own."""
    name = f"{card.benchmark}/{dataset_name}"
    are_documents = any(task.entry.get("formatter") == "document" for task in card.tasks.values())
    data_format = "text" if are_documents else "jsonl"
    files = [f"--{name} {getattr(data_args, name)}" for name in FILE_FLAGS if getattr(data_args, name)]
    if card.made_by_flags and files:
        return (
            f"{' '.join(files)}: read as rows of a benchmark, of which no flag names a task, and {model_name} was "
            f"trained on {name}; for rows of your own add --data_format {data_format}, with their columns and labels; "
            "for a benchmark's, --benchmark and --dataset_name"
        )
    way = (
        f"them and their task file (--task_file FILE --benchmark {card.benchmark} --dataset_name {dataset_name} "
        "--data_dir DIR, or --validation_file ROWS.jsonl to score the model)"
    )
    if card.made_by_flags:
        way = f"them (--data_format {data_format} --train_file FILE, or --validation_file FILE to score the model)"
    return (
        f"--model_name_or_path {model_name} was trained on {name}, whose rows no flag names; give {way}, or another "
        "task (--benchmark, --dataset_name)"
    )


def warn_of_lengths_on_hub(arguments, plan, card: TaskCard | None) -> None:
    """Warns where a model of the hub is scored with other lengths than those of its training, and no flag gives them.

    Args:
      card: the model's, which is read when the settings of the run are in its manifest already.
    """
    if not answers_as_it_is(arguments):
        return
    lengths = _trained_lengths(arguments.data, card, plan.evaluate)
    if lengths:
        name = arguments.model.model_name_or_path
        logger.warning("%s was trained with other lengths than it is scored with: give %s", name, _flags_text(lengths))


def warn_of_task_on_hub(arguments, plan, card: TaskCard | None) -> None:
    """Warns where a model of the hub was trained on another task than this run's, and no flag has chosen one.

    The plan is made before the run's directory is known, and with it the commit that a run that resumes reads: so it
    has the tasks of folders alone.

    Args:
      card: the model's.
    """
    name = arguments.model.model_name_or_path
    if card is None or not card.tasks or os.path.isdir(name):
        return
    if arguments.formats.is_given:
        if not arguments.formats.data_class:
            warn_of_unused_settings(arguments, plan.tasks[0], card)
        return
    task = f"{plan.benchmark}/{plan.dataset_name}"
    trained_task = f"{card.benchmark}/{card.dataset_name}"
    if task == trained_task or not arguments.data.flags_given.isdisjoint(TASK_FLAGS):
        return
    flags = "its rows (--data_format ..., or --task_file)"
    if card.is_shipped:
        flags = f"--benchmark {card.benchmark} --dataset_name {card.dataset_name}"
    logger.warning(
        "%s was trained on %s, but %s is used as the task, for no flag names one (only a model in a folder brings its "
        "own): give %s",
        name,
        trained_task,
        task,
        flags,
    )


def task_like(task: Task, card: TaskCard | None) -> Task | None:
    """The model's own task: its only one, or of several the one with a task's name or with its columns."""
    if card is None or not card.tasks or card.is_shipped:
        return None
    if len(card.tasks) == 1:
        return card.task()
    if task.name in card.tasks:
        return card.tasks[task.name]
    tasks_with_columns = (other for other in card.tasks.values() if _columns_read(other) == _columns_read(task))
    return next(tasks_with_columns, None)


def _columns_read(task: Task) -> list[str]:
    return [*task.text_columns, task.entry["label_column_name"]]


def own_task_of_model(arguments) -> Task | None:
    """The task of a model that was trained on the user's own rows, if no flag says how rows are read and answered.

    Raises:
      ConfigError: as `_check_reads_by_columns`.
    """
    card = read_task_card(arguments.model.model_name_or_path)
    is_own = card is None or not card.tasks or card.benchmark == OWN_BENCHMARK
    if not is_own and arguments.formats.data_format not in TABLES.split():
        return None
    task = own_task_of_card(card, named_tasks(arguments.data))
    if task is None:
        _check_reads_by_columns(arguments, card)
        return None
    flags = _flags_of_another_task(arguments.formats, task)
    if not flags:
        return task
    if not named_metrics(arguments.formats.metrics) and has_label_sets(task.entry):
        metrics = ",".join(task.entry["metric_names"])
        logger.warning(
            "the model answers with sets of labels, which %s scores; without --metrics %s, rows are scored by "
            "other metrics, because of %s",
            metrics,
            metrics,
            " and ".join(flags),
        )
    return None


def _check_reads_by_columns(arguments, card: TaskCard | None) -> None:
    """Refuses rows that no flag describes, for a model of a task file whose card alone does not say how to read them.

    Raises:
      ConfigError: the model has several tasks and no flag names one of them, a flag names another task, or the rows
        are more than columns.
    """
    if card is None or not card.tasks or card.made_by_flags or card.is_shipped:
        return
    if _flags_of_another_task(arguments.formats, None):
        return
    task = card.task(named_tasks(arguments.data))
    raise ConfigError(_message_of_missing_rows(arguments.data, arguments.model.model_name_or_path, card, task.name))


def _flags_of_another_task(formats, task: Task | None) -> list[str]:
    """The flags that say how rows are read and answered; what the task, if there is one, has itself is no change."""
    defaults = type(formats)()
    settings = {} if task is None else settings_of_task(task)
    flags = []
    for name in FLAGS_OF_ANOTHER_TASK:
        if getattr(formats, name) not in (getattr(defaults, name), settings.get(name)):
            flags.append(f"--{name}")
    return flags


def check_metrics_fit(task: Task, metrics: Sequence[str] | None) -> None:
    """Refuses metrics by which the answers of a model would be read as another kind than that of its training.

    Args:
      task: the model's own.
      metrics: those of `--metrics`, without the user's functions; None without the flag.

    Raises:
      ConfigError: an unknown metric, or the two kinds of answers and what fits.
    """
    if metrics is None:
        return
    for metric in metrics:
        check_entry_metric(metric, "--metrics", has_labels=bool(task.entry["labels"]))
    kind_of_model = kind_of_answers(task.entry)
    kind_of_metrics = kind_of_answers({**task.entry, "metric_names": metrics})
    if kind_of_metrics != kind_of_model:
        raise ConfigError(
            f"--metrics {','.join(metrics) or 'none'}: answers would be read as {kind_of_metrics}, and the model "
            f"answers with {kind_of_model}; metrics for these: {', '.join(METRICS_OF_ANSWERS[kind_of_model])}"
        )


def warn_of_unused_settings(arguments, task: Task, card: TaskCard | None) -> None:
    """Warns of settings of the model's own task that this run's task does not have, where no flag speaks of them."""
    model_name = arguments.model.model_name_or_path
    task_of_model = task_like(task, card)
    if task_of_model is None:
        return
    reads_by_columns = own_task_of_card(card, task_of_model.name) is not None
    may_take_own_task = os.path.isdir(model_name) and answers_as_it_is(arguments) and reads_by_columns
    flags_name_own_task = own_task_of_card(card, named_tasks(arguments.data)) is not None
    if has_label_sets(task_of_model.entry) and may_take_own_task and flags_name_own_task:
        return  # `own_task_of_model` has warned
    if task_of_model.entry.get("formatter") != task.entry.get("formatter"):
        return  # the texts are made in another way, for which these settings were not meant
    settings = _unused_settings(arguments.formats, task_of_model, task)
    if not settings:
        return
    way_to_score = ""
    if may_take_own_task:
        name = "" if len(card.tasks) == 1 else f" but --dataset_name {task_of_model.name}"
        way_to_score = f"; without any setting of a task{name} the model's own task is scored"
    logger.warning(
        "%s: this run does not use these settings of the model's task: %s. Give those again that it should keep%s",
        model_name,
        ", ".join(f"{name}={value!r:.100}" for name, value in settings.items()),
        way_to_score,
    )


def _unused_settings(formats, task_of_model: Task, task: Task) -> dict[str, str]:
    """The settings of a model's own task that another one of your own lacks, without those that flags change."""
    settings = settings_of_task(task)
    unused = {}
    for name, value in settings_of_task(task_of_model).items():
        is_open = _is_read_by_format(formats, name) and not _is_set_by_flag(formats, name)
        if is_open and value != settings.get(name):
            unused[name] = value
    differ_in_kind = (task.entry["labels"] is None) != (task_of_model.entry["labels"] is None)
    if differ_in_kind and "labels" not in unused:
        unused.pop("metrics", None)  # they are for the other kind of answers
    return unused


def settings_of_task(task: Task) -> dict[str, str]:
    """What makes a task of your own of rows, by the names of the flags; no metrics that nobody chose.

    >>> settings_of_task(task)
    {'text_column': 'text', 'target_column': 'summary', 'prefix': 'summarize: ', 'metrics': 'rouge'}
    """
    entry = task.entry
    text_columns = quoted_words(as_list(entry["text_column_name"]))
    columns = {"text_column": text_columns, "target_column": entry["label_column_name"]}
    metrics = entry["metric_names"]
    input_format = entry.get("input_format") or INPUT
    if isinstance(entry["prefix"], str):  # a list of them names the columns, as rows of several columns have it
        input_format = input_format.replace(INPUT, entry["prefix"] + INPUT)
    template_flag = "prefix" if input_format.endswith(INPUT) else "input_format"
    settings = {
        **(languages_of(task) or columns),
        "labels": quoted_words(task.label_words or ()),
        template_flag: input_format.removesuffix(INPUT),
        "output_format": entry.get("output_format") or "",
        "metrics": "" if metrics == default_metrics(task) else ",".join(metrics),
    }
    return {name: value for name, value in settings.items() if value}


def _is_set_by_flag(formats, name: str) -> bool:
    """Whether a flag says what a setting of the task is."""
    names = ("prefix", "input_format") if name in ("prefix", "input_format") else (name,)
    fields = type(formats).__dataclass_fields__
    for flag in names:
        value = getattr(formats, flag)
        if flag == "metrics":
            value = named_metrics(value)  # functions are added to the task's own metrics
        if value != fields[flag].default:
            return True
    return False


def _is_read_by_format(formats, name: str) -> bool:
    """Whether rows of this run's format have such a setting."""
    field_of_flag = type(formats).__dataclass_fields__[name]
    return formats.data_format in field_of_flag.metadata.get("formats", formats.data_format).split()


def answers_as_it_is(arguments) -> bool:
    """Whether the model is scored or asked as it is, and not the checkpoints of a run that trained it further."""
    eval_args = arguments.evaluation
    return (eval_args.eval_only or eval_args.predict_only) and eval_args.eval_checkpoints != "all"
