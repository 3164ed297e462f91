"""Which tasks a run trains on and scores: those that flags name, or define for your own rows.

>>> plan = plan_tasks("glue", "cola,rte")
>>> [task.name for task in plan.train]
['cola', 'rte']
>>> plan = own_plan(arguments)                 # --data_format csv --train_file reviews.csv --labels bad,good
>>> plan.benchmark, [task.name for task in plan.train], plan.sources["reviews"].roles
('own', ['reviews'], ('train', 'validation'))
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import file_sha256
from t5suite.base.lookup import load_object
from t5suite.base.yaml_files import read_json_text, read_yaml
from t5suite.constants import DATASET_VALS, MIXTURES, OWN_BENCHMARK
from t5suite.data.rows.file_rows import check_columns_of_files
from t5suite.data.rows.files import SPLIT_NAMES, check_benchmark_file
from t5suite.data.rows.formats import (
    OwnData,
    Wishes,
    at_place,
    comma_separated,
    default_metrics,
    distinct_names,
    form_like,
    form_name,
    format_form,
    format_options,
    languages_of,
    own_data,
    quoted_words,
)
from t5suite.data.rows.own_rows import RowSource
from t5suite.data.rows.sources import BUNDLED_BENCHMARK
from t5suite.data.rows.subsets import selection_share
from t5suite.tasks.cells import as_list
from t5suite.tasks.entries import benchmarks_of_task_file, load_registry
from t5suite.tasks.entry_checks import names_own_function
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task, load_task, resolve_names
from t5suite.tasks.targets import has_label_sets
from t5suite.tasks.task_card import TaskCard, own_task_of_card, read_task_card
from t5suite.tasks.templates import INPUT, unescaped
from t5suite.training.flags.data import TABLES
from t5suite.training.flags.plug_ins import named_metric_functions, named_metrics
from t5suite.training.optimization import follows_evaluations

logger = logging.getLogger(__name__)

FILE_FLAGS = ("train_file", "validation_file", "test_file")
# Flags that say how the user's own rows become a task.
FLAGS_OF_OWN_TASKS = (
    "text_column",
    "target_column",
    "labels",
    "metrics",
    "input_format",
    "output_format",
    "prefix",
    "source_id",
    "target_id",
)
# The end of a prefix to which a word of a text would be joined.
END_WITHOUT_SPACE = re.compile(r"[A-Za-z0-9:]\Z")
TASK_FLAGS = ("benchmark", "dataset_name", "task_file")
MIXING_FLAGS = ("mixing", "mixing_limit", "mixing_temperature")


@dataclass(frozen=True)
class Plan:
    """Which tasks a run trains on, evaluates and averages; `published`: the average is the benchmark's own.

    `sources` has, by task, where the rows of tasks that flags define come from; `contents`, by flag, what the files say
    that flags name.
    """

    benchmark: str
    dataset_name: str
    train: list[Task]
    evaluate: list[Task]
    average: list[str]
    published: bool
    sources: Mapping[str, RowSource] = field(default_factory=dict)
    contents: Mapping[str, object] = field(default_factory=dict)

    @property
    def tasks(self) -> list[Task]:
        return list({task.name: task for task in [*self.train, *self.evaluate]}.values())

    @property
    def alone(self) -> bool:
        return len(self.evaluate) == 1


def plan_for(arguments, rows=None, own_metrics: bool = False) -> Plan:
    """The tasks that the flags name, or define for your own rows.

    Args:
      rows: those that are in memory, by split.
      own_metrics: the user has more metrics than those that `--metrics` names.

    Raises:
      ConfigError: flags that do not fit one another or the rows.
    """
    selection_share(arguments.data.selection_split)  # refuses a wrong one before anything is loaded
    settle_no_eval(arguments)
    own_metrics = own_metrics or bool(named_metric_functions(arguments.formats.metrics))
    if arguments.formats.is_given:
        plan = own_plan(arguments, rows, own_metrics)
    else:
        plan = benchmark_plan(arguments, own_metrics)
    if _answers_as_it_is(arguments):
        take_known_lengths(arguments.data, read_task_card(arguments.model.model_name_or_path), plan.evaluate)
    take_known_method(arguments, plan)
    seed = take_known_form(arguments, plan)
    return arguments.instruction.applied(plan, seed)


def benchmark_plan(arguments, own_metrics: bool = False) -> Plan:
    """The tasks of `--benchmark` and `--dataset_name`, or those that the model was trained on."""
    data_args = arguments.data
    take_known_tasks(data_args, arguments.model.model_name_or_path)
    for name in FILE_FLAGS:
        file = getattr(data_args, name)
        if file:
            check_benchmark_file(file, f"--{name}")
    plan = plan_tasks(
        data_args.benchmark,
        data_args.dataset_name,
        data_args.task_file,
        arguments.training.metric_for_best_model,
        own_metrics,
    )
    check_splits_of_files(plan, data_args)
    return plan


def check_splits_of_files(plan: Plan, data_args) -> None:
    """Refuses a file in place of a split that no task has: it would not be read.

    Raises:
      ConfigError: names the flag under which it is read.
    """
    for role, other_role in (("validation", "test"), ("test", "validation")):
        file = getattr(data_args, f"{role}_file")
        if file and not any(task.splits(role) for task in plan.evaluate):
            tasks = ",".join(task.name for task in plan.evaluate)
            raise ConfigError(
                f"--{role}_file {file}: {plan.benchmark}/{tasks} has no {role} split, so the file would not be read; "
                f"give it as --{other_role}_file"
            )


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
    task_flags = card.task_flags(_named_tasks(data_args))
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


def _named_tasks(data_args) -> str | None:
    """What `--dataset_name` names; None where it is not given."""
    return data_args.dataset_name if "dataset_name" in data_args.flags_given else None


def take_known_method(arguments, plan: Plan) -> None:
    """A saved model that is scored without `--eval_method` chooses labels if the run that trained it was scored so."""
    evaluation = arguments.evaluation
    if not _answers_as_it_is(arguments) or "eval_method" in evaluation.flags_given:
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


def take_known_form(arguments, plan: Plan) -> int:
    """A saved model that is scored reads instructions in the form of its training, where no flag gives another.

    Returns:
      The seed by which forms are drawn.
    """
    seed = arguments.training.seed
    card = read_task_card(arguments.model.model_name_or_path) if _answers_as_it_is(arguments) else None
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


def warn_of_lengths_on_hub(arguments, plan: Plan, card: TaskCard | None) -> None:
    """Warns where a model of the hub is scored with other lengths than those of its training, and no flag gives them.

    Args:
      card: the model's, which is read when the settings of the run are in its manifest already.
    """
    if not _answers_as_it_is(arguments):
        return
    lengths = _trained_lengths(arguments.data, card, plan.evaluate)
    if lengths:
        name = arguments.model.model_name_or_path
        logger.warning("%s was trained with other lengths than it is scored with: give %s", name, _flags_text(lengths))


def warn_of_task_on_hub(arguments, plan: Plan, card: TaskCard | None) -> None:
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
            _warn_of_unused_settings(arguments, plan.tasks[0], card)
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


def plan_tasks(
    benchmark: str, dataset_name: str, task_file: str | None = None, metric: str | None = None, own_metrics=False
) -> Plan:
    """The tasks that `--benchmark` and `--dataset_name` name.

    Args:
      metric: the metric that selects checkpoints instead of the task's own, for a single task ('loss': any run).
      own_metrics: the user has own metrics, which `metric` may name (`user_metrics.add_metrics` checks).
    """
    registry = load_registry(task_file)
    train, evaluate, average = resolve_names(benchmark, dataset_name, registry, MIXTURES)
    names = {*train, *evaluate}
    tasks = {}
    for name in names:
        task = load_task(benchmark, name, registry=registry)
        tasks[name] = choose_metric(task, metric, len(names), own_metrics)
    return Plan(
        benchmark,
        dataset_name,
        train=[tasks[name] for name in train],
        evaluate=[tasks[name] for name in evaluate],
        average=average,
        published=dataset_name in MIXTURES.get(benchmark, {}),
        contents={"task_file": _content_of_task_file(task_file, benchmark, registry, names)} if task_file else {},
    )


def _content_of_task_file(task_file: str, benchmark: str, registry: dict, names: set[str]) -> dict:
    """What a task file says of these tasks, and all of its code where one of them has functions of its own."""
    shipped_names = DATASET_VALS.get(benchmark, {}).keys()
    entries = {name: registry[benchmark][name] for name in names - shipped_names}
    if any(map(names_own_function, entries.values())):
        return {**entries, "code": file_sha256(task_file)}
    return entries


def choose_metric(task: Task, metric: str | None, num_tasks: int, own_metrics: bool) -> Task:
    """The task, selected by the metric that `--metric_for_best_model` names, if it names one.

    Raises:
      ConfigError: there are several tasks, or the task has no such metric.
    """
    if metric in (None, "loss", "average", "selection"):
        return task
    if num_tasks > 1:
        raise ConfigError(f"--metric_for_best_model {metric}: a mixture is selected by average or loss")
    try:
        return task.with_metric_to_optimize(metric, where="--metric_for_best_model")
    except ConfigError:
        if not own_metrics:
            raise
        return task


def own_plan(arguments, rows=None, own_metrics: bool = False) -> Plan:
    """The tasks of `--data_format` or `--data_class`.

    Args:
      rows: `{split: rows}` that are already loaded, instead of the files of `--data_format`.

    Raises:
      ConfigError: flags that do not go together, a file, class or setting that does not exist.
    """
    check_flags_of_own_rows(arguments.data, arguments.formats)
    warn_of_flags_without_own_rows(arguments.data, arguments.formats)
    sets = _class_sets(arguments) if arguments.formats.data_class else [_format_set(arguments, rows)]
    metric = arguments.training.metric_for_best_model
    tasks = [choose_metric(data.task, metric, len(sets), own_metrics) for data in sets]
    sources = {data.task.name: data.source for data in sets}
    scored = [task.name for task in tasks if task.entry["metric_names"]]
    contents = {"data_config": _configs(arguments.formats)} if arguments.formats.data_config else {}
    return Plan(OWN_BENCHMARK, ",".join(sources), tasks, tasks, scored, False, sources, contents)


def check_flags_of_own_rows(data_args, formats) -> None:
    """Refuses flags that contradict your own rows.

    Raises:
      ConfigError: the task of a benchmark, or two ways of mixing.
    """
    contradicting = {"task_file": data_args.task_file}
    if data_args.benchmark not in (BUNDLED_BENCHMARK, OWN_BENCHMARK):
        contradicting = {"benchmark": data_args.benchmark, **contradicting}
    for name, flag_value in contradicting.items():
        if flag_value:
            raise ConfigError(
                f"--{name} {flag_value}: --data_format and --data_class make their own tasks; leave it out"
            )
    mixing_flags = [name for name in MIXING_FLAGS if name in data_args.flags_given]
    if formats.data_sampling_proportion and mixing_flags:
        raise ConfigError(
            f"--data_sampling_proportion and --{mixing_flags[0]} both say how often data sets are drawn; give one"
        )


def warn_of_flags_without_own_rows(data_args, formats) -> None:
    """Warns of flags that have no effect on your own rows."""
    # A class of data may read a repository of its own, whose revision a list can name.
    class_has_revision = formats.data_class and "=" in (data_args.data_revision or "")
    reasons = {"data_dir": "rows come from the files that --data_format or --data_class names"}
    if formats.data_format != "hub" and not class_has_revision:
        reasons["data_revision"] = "the rows do not come from the hub"
    if formats.data_class:
        reasons["dataset_name"] = "--data_config names each data set"
    for name, reason in reasons.items():
        if name in data_args.flags_given:
            logger.warning("--%s has no effect: %s", name, reason)
    if formats.data_sampling_proportion and len(formats.data_class) == 1:
        logger.warning("--data_sampling_proportion has no effect: there is one data set")


def _format_set(arguments, rows=None) -> OwnData:
    data_args = arguments.data
    formats = arguments.formats
    options = format_options({**vars(data_args), **vars(formats)}, rows)
    languages = languages_by_flags(data_args, read_task_card(arguments.model.model_name_or_path))
    options = replace(options, lang_columns=(languages.source_lang_column, languages.target_lang_column))
    for name, spec in type(formats).__dataclass_fields__.items():
        read_by = spec.metadata.get("formats", formats.data_format).split()
        if getattr(formats, name) != spec.default and formats.data_format not in read_by:
            logger.warning("--%s has no effect: --data_format %s does not read it", name, formats.data_format)
    name = _named_tasks(data_args) or form_name(options)
    task_of_model = _own_task_of_model(arguments) if _answers_as_it_is(arguments) else None
    if task_of_model is not None:
        columns = ", ".join(as_list(task_of_model.entry["text_column_name"]))
        logger.info("rows are read and scored as those that the model was trained on: %s", columns)
        form = form_like(task_of_model, formats.data_format, options)
        wishes = replace(_wishes(arguments, 0, {}), input_format=None)  # a flag that is given says what the task has
        return own_data(name, form, wishes)
    form = format_form(formats.data_format, options)
    data = own_data(name, form, _wishes(arguments, 0, {}))
    _warn_of_unused_settings(arguments, data.task, read_task_card(arguments.model.model_name_or_path))
    _warn_of_csv_through_datasets(formats)
    if _trains(arguments):
        _note_name_of_a_split(data_args, name)
        _warn_of_prefix_without_space(formats)
        check_columns_of_files(form.source, _evaluates(arguments))
    return data


def _note_name_of_a_split(data_args, name: str) -> None:
    """Says so where a data set is called as a split, after its file: tables would read `train  validation`."""
    if name in SPLIT_NAMES and _named_tasks(data_args) is None:
        logger.info("the data set is called %r, after its file; --dataset_name NAME gives it another name", name)


def _warn_of_prefix_without_space(formats) -> None:
    """Warns of a prefix like 'summarize:', whose last character and a text's first word would be written together."""
    prefix, _, _ = (_input_format(formats, 0) or "").partition(INPUT)
    if END_WITHOUT_SPACE.search(prefix):
        logger.warning(
            "the text before each input ends without a space: inputs are read as %r; the usual form is %r",
            f"{prefix}Some text",
            f"{prefix} Some text",
        )


def _warn_of_csv_through_datasets(formats) -> None:
    """Warns of CSV files in a folder that `datasets` reads: it guesses types, as pandas does."""
    if formats.data_format != "hub" or not os.path.isdir(formats.hub_path):
        return
    if any(Path(formats.hub_path).rglob("*.csv")):
        logger.warning(
            "--hub_path %s: `datasets` guesses the types of cells in CSV: 007 is read as 7, and NA or None as an empty "
            "cell; --data_format csv --train_dir %s reads cells as they are written",
            formats.hub_path,
            formats.hub_path,
        )


def languages_by_flags(data_args, card: TaskCard | None) -> Languages:
    """The languages of texts: those of flags; a side without a flag has those that the model was trained with."""
    languages = Languages(*(getattr(data_args, name) for name in Languages._fields))
    if card is None:
        return languages
    return languages.with_defaults(card.settings.get("languages") or {})


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


def _own_task_of_model(arguments) -> Task | None:
    """The task of a model that was trained on the user's own rows, if no flag says how rows are read and scored.

    Raises:
      ConfigError: as `_check_reads_by_columns`.
    """
    card = read_task_card(arguments.model.model_name_or_path)
    is_own = card is None or not card.tasks or card.benchmark == OWN_BENCHMARK
    if not is_own and arguments.formats.data_format not in TABLES.split():
        return None
    task = own_task_of_card(card, _named_tasks(arguments.data))
    if task is None:
        _check_reads_by_columns(arguments, card)
        return None
    flags = _flags_of_another_task(arguments.formats, task)
    if not flags:
        return task
    if "--metrics" not in flags and has_label_sets(task.entry):
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
    task = card.task(_named_tasks(arguments.data))
    raise ConfigError(_message_of_missing_rows(arguments.data, arguments.model.model_name_or_path, card, task.name))


def _flags_of_another_task(formats, task: Task | None) -> list[str]:
    """The flags that say how rows are read and scored; what the task, if there is one, has itself is no change."""
    defaults = type(formats)()
    settings = {}
    if task is not None:
        settings = {**settings_of_task(task), "metrics": ",".join(task.entry["metric_names"])}
    flags = []
    for name in FLAGS_OF_OWN_TASKS:
        value = getattr(formats, name)
        if name == "metrics":
            value = named_metrics(value)  # functions are added to the task's own metrics
        if value not in (getattr(defaults, name), settings.get(name)):
            flags.append(f"--{name}")
    return flags


def _warn_of_unused_settings(arguments, task: Task, card: TaskCard | None) -> None:
    """Warns of settings of the model's own task that this run's task does not have, where no flag speaks of them."""
    model_name = arguments.model.model_name_or_path
    task_of_model = task_like(task, card)
    if task_of_model is None:
        return
    reads_by_columns = own_task_of_card(card, task_of_model.name) is not None
    may_take_own_task = os.path.isdir(model_name) and _answers_as_it_is(arguments) and reads_by_columns
    flags_name_own_task = own_task_of_card(card, _named_tasks(arguments.data)) is not None
    if has_label_sets(task_of_model.entry) and may_take_own_task and flags_name_own_task:
        return  # `_own_task_of_model` has warned
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


def _class_sets(arguments) -> list[OwnData]:
    data_args = arguments.data
    formats = arguments.formats
    for name in FILE_FLAGS:
        if getattr(data_args, name):
            raise ConfigError(f"--{name} {getattr(data_args, name)}: --data_class reads the folders of --data_path")
    places = range(len(formats.data_class))
    configs = _configs(formats)
    paths = [at_place(formats.data_path, i) for i in places]
    class_name = load_object("t5suite.contrib.data_classes:class_name", "--data_class")
    class_form = load_object("t5suite.contrib.data_classes:class_form", "--data_class")
    names = distinct_names([class_name(formats.data_class[i], paths[i], configs[i]) for i in places])
    sets = []
    for i, name in enumerate(names):
        wishes = _wishes(arguments, i, configs[i])
        if configs[i].get("metrics"):
            wishes = replace(wishes, metrics_flag=f"--data_config of {name}: metrics")
        form = class_form(
            formats.data_class[i],
            paths[i],
            configs[i],
            wishes.max_input_tokens,
            wishes.max_output_tokens,
            wishes.labels,
        )
        sets.append(own_data(name, form, wishes))
    return sets


def _wishes(arguments, i: int, config: dict) -> Wishes:
    """What the flags say about data set `i`; its own settings override flags for all."""
    formats = arguments.formats
    return Wishes(
        labels=_words_of_config(config, "labels") or comma_separated(formats.labels, "--labels"),
        metrics=_words_of_config(config, "metrics") or comma_separated(named_metrics(formats.metrics), "--metrics"),
        input_format=_input_format(formats, i),
        output_format=unescaped(at_place(formats.output_format, i)),
        max_input_tokens=at_place(formats.max_input_tokens, i),
        max_output_tokens=at_place(formats.max_output_tokens, i),
        validation_share=formats.validation_split,
        evaluates=_evaluates(arguments),
        seed=arguments.training.seed,
    )


def _words_of_config(config: dict, key: str) -> tuple[str, ...]:
    words = config.get(key) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"--data_config: {key} must be a list of words, not {words!r:.100}")
    return tuple(words)


def _input_format(formats, i: int) -> str | None:
    input_format = unescaped(at_place(formats.input_format, i))
    if formats.prefix is None:
        return input_format
    return f"{unescaped(formats.prefix)}{input_format or '__input__'}"


def _evaluates(arguments) -> bool:
    """Whether the run evaluates, during training or instead of it."""
    if arguments.evaluation.eval_only or arguments.evaluation.eval_checkpoints == "all":
        return True
    return not arguments.formats.no_eval and arguments.training.eval_strategy.value != "no"


def _trains(arguments) -> bool:
    """Whether the run reads training rows."""
    eval_args = arguments.evaluation
    return not (eval_args.eval_only or eval_args.predict_only or eval_args.eval_checkpoints == "all")


def _answers_as_it_is(arguments) -> bool:
    """Whether the model is scored or asked as it is, and not the checkpoints of a run that trained it further."""
    eval_args = arguments.evaluation
    return (eval_args.eval_only or eval_args.predict_only) and eval_args.eval_checkpoints != "all"


def _configs(formats) -> list[dict]:
    """The settings of each data set of `--data_class`."""
    return [_config(at_place(formats.data_config, i)) for i in range(len(formats.data_class))]


def _config(text: str | None) -> dict:
    """The settings of one data set: JSON, or a YAML or JSON file."""
    if text is None:
        return {}
    path = Path(text)
    if text.lstrip().startswith("{"):
        settings = read_json_text(text, "--data_config")
    elif path.is_file() and path.suffix == ".json":  # YAML would read 1e-05 as text
        settings = read_json_text(path.read_bytes(), path)
    elif path.is_file():
        settings = read_yaml(path).content
    else:
        raise ConfigError(f"--data_config {text!r:.200}: neither a JSON table nor a file")
    if not isinstance(settings, dict):
        raise ConfigError(f"--data_config {text}: expected a table of settings, found {settings!r:.60}")
    return settings


def settle_no_eval(arguments) -> None:
    """`--no_eval`: nothing is evaluated, and nothing may depend on it.

    Raises:
      ConfigError: a flag that needs evaluations.
    """
    if not arguments.formats.no_eval:
        return
    data_args = arguments.data
    eval_args = arguments.evaluation
    args = arguments.training
    schedule_flag = "schedule" if "schedule" in args.flags_given else "lr_scheduler_type"
    needs = {
        "early_stopping_patience": eval_args.early_stopping_patience is not None,
        "load_best_model_at_end": "load_best_model_at_end" in args.flags_given and args.load_best_model_at_end,
        "eval_strategy": "eval_strategy" in args.flags_given and args.eval_strategy.value != "no",
        "metric_for_best_model": args.metric_for_best_model is not None,
        "selection_split": data_args.selection_split != "validation",
        "select": eval_args.select != "average",
        "eval_only": eval_args.eval_only,
        "validation_file": data_args.validation_file is not None,
        "save_strategy best": args.save_strategy.value == "best",
        schedule_flag: follows_evaluations(args),
    }
    refused = " and ".join(f"--{name}" for name, is_needed in needs.items() if is_needed)
    if refused:
        raise ConfigError(f"--no_eval evaluates nothing, which {refused} would need; leave one of them out")
    args.eval_strategy = type(args.eval_strategy)("no")
    args.load_best_model_at_end = False
    args.save_as_asked()
