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
from t5suite.data.rows.files import check_benchmark_file
from t5suite.data.rows.formats import (
    OwnData,
    Wishes,
    at_place,
    comma_separated,
    distinct_names,
    form_like,
    form_name,
    format_form,
    format_options,
    own_data,
)
from t5suite.data.rows.own_rows import RowSource
from t5suite.data.rows.sources import BUNDLED_BENCHMARK
from t5suite.data.rows.subsets import selection_share
from t5suite.tasks.cells import as_list
from t5suite.tasks.entries import load_registry
from t5suite.tasks.entry_checks import names_own_function
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task, load_task, resolve_names
from t5suite.tasks.task_card import TaskCard, read_task_card
from t5suite.tasks.templates import INPUT, unescaped
from t5suite.training.flags.plug_ins import named_metric_functions, named_metrics
from t5suite.training.model_tasks import (
    FILE_FLAGS,
    answers_as_it_is,
    check_metrics_fit,
    named_tasks,
    own_task_of_model,
    take_known_form,
    take_known_lengths,
    take_known_method,
    take_known_tasks,
    warn_of_unused_settings,
)
from t5suite.training.optimization import follows_evaluations

logger = logging.getLogger(__name__)

# The end of a prefix to which a word of a text would be joined.
END_WITHOUT_SPACE = re.compile(r"[A-Za-z0-9:]\Z")
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
    if answers_as_it_is(arguments):
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
    name = named_tasks(data_args) or form_name(options)
    task_of_model = own_task_of_model(arguments) if answers_as_it_is(arguments) else None
    if task_of_model is not None:
        columns = ", ".join(as_list(task_of_model.entry["text_column_name"]))
        logger.info("rows are read and scored as those that the model was trained on: %s", columns)
        form = form_like(task_of_model, formats.data_format, options)
        wishes = replace(_wishes(arguments, 0, {}), input_format=None)  # a flag that is given says what the task has
        check_metrics_fit(task_of_model, wishes.metrics)
        return own_data(name, form, wishes)
    form = format_form(formats.data_format, options)
    data = own_data(name, form, _wishes(arguments, 0, {}))
    warn_of_unused_settings(arguments, data.task, read_task_card(arguments.model.model_name_or_path))
    _warn_of_csv_through_datasets(formats)
    if _trains(arguments):
        _warn_of_prefix_without_space(formats)
        check_columns_of_files(form.source, _evaluates(arguments))
    return data


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
