"""The registry: the fields of an entry, and the shipped entries together with a user's own (`--task_file`).

>>> check_entry("mine/topics", {"prefix": "topic: ", "text_column_name": ["a", "b"], ...})
ConfigError: mine/topics: prefix is one string but text_column_name is a list of 2
>>> sorted(load_registry("my_tasks.yaml"))
['glue', 'mine', 'mini', 'super_glue', ...]

A task file is `{benchmark: {task: entry}}` in YAML, or a Python file that defines `DATASET_VALS`; the Python file is
run, so give only files that you trust. Benchmarks, tasks and splits name folders and files, so none may point outside
its folder. An entry that is invalid, or redefines a shipped task, is refused when it is used.
"""

import runpy
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import check_name, find, suggestion
from t5suite.base.yaml_files import YamlFile, read_yaml
from t5suite.constants import DATASET_VALS
from t5suite.tasks.evaluate_metrics import evaluate_names, is_evaluate_name
from t5suite.tasks.formatters import FORMATTERS, as_list
from t5suite.tasks.metrics import BIO, METRIC_ALIASES, METRIC_GROUPS, METRICS, TEXT_METRICS, TOKEN_METRICS
from t5suite.tasks.postprocessors import POSTPROCESSORS
from t5suite.tasks.targets import INPUT, OUTPUT, TARGETS, TOKEN_LABELS, check_template, label_words, value_kind

REQUIRED_FIELDS = tuple("prefix text_column_name label_column_name labels metric_names metric_to_optimize".split())
# Sources that an entry itself may name; the flags choose the others.
ENTRY_SOURCES = ("super_ni",)
# The keys of `instruction` and their types.
INSTRUCTION_KINDS = {
    "task_lists": (str,), "max_num_instances_per_task": (int, type(None)),
    "max_num_instances_per_eval_task": (int, type(None)), "add_task_definition": (bool,),
    "num_pos_examples": (int,), "num_neg_examples": (int,), "add_explanation": (bool,), "add_task_name": (bool,),
    "tk_instruct": (bool,), "seed": (int,),
}  # fmt: skip
_NOTHING = object()
MOST_DECIMALS = 20
SPLIT_ROLES = ("train", "validation", "test")
# Types of the optional fields without a more detailed check; each may also be null.
FIELD_KINDS = {
    "hub_path": (str, "a text"), "hub_name": (str, "a text"), "hub_archive": (str, "a zip file"),
    "rows_of": (str, "a task's name"), "group_by": (str, "a column's name"), "references_by": (str, "a column's name"),
    "report_by": (list, "a list of columns"), "source": (str, "a name"),
    "instruction": (dict, "a table of settings"), "formatter": (str, "a name"), "target": (str, "a name"),
    "postprocess": (str, "a name"), "num_examples": (dict, "a table of splits"),
    "metric_functions": (dict, "a table of metrics' names"),
}  # fmt: skip
TEXT_FORMS = ("input_format", "output_format", "max_input_tokens", "max_output_tokens", "target_decimals")
OPTIONAL_FIELDS = (*FIELD_KINDS, "splits", *TEXT_FORMS)


class Refused(str):
    """Why an entry of a task file cannot be used; it replaces the entry in the registry."""


def check_entry(name: str, entry) -> None:
    """Raises a `ConfigError` that names the entry, the key and the reason if `entry` is invalid."""
    if isinstance(entry, Refused):
        raise ConfigError(str(entry))
    if not isinstance(entry, dict):
        raise ConfigError(f"{name}: an entry is a table of fields, not {type(entry).__name__}")
    for key in entry:
        if key not in REQUIRED_FIELDS + OPTIONAL_FIELDS:
            raise ConfigError(f"{name}: unknown key {key!r}; {suggestion(key, REQUIRED_FIELDS + OPTIONAL_FIELDS)}")
    missing = [key for key in REQUIRED_FIELDS if key not in entry]
    if missing:
        raise ConfigError(f"{name}: {', '.join(missing)} missing; an entry needs {', '.join(REQUIRED_FIELDS)}")
    _check_texts(name, entry)
    if entry["labels"] is not None:
        _check_labels(name, entry["labels"], entry.get("formatter"))
    _check_metrics(name, entry)
    for key, table in (("formatter", FORMATTERS), ("target", TARGETS), ("postprocess", POSTPROCESSORS)):
        if entry.get(key) is not None:
            find(entry[key], table, key, where=name)
    if entry.get("splits") is not None:
        _check_splits(name, entry["splits"])
    for key, place in (("input_format", INPUT), ("output_format", OUTPUT)):
        if entry.get(key) is not None:
            check_template(entry[key], place, f"{name}: {key}")
    if entry.get("target_decimals") is not None:
        _check_decimals(name, entry)
    for key in ("max_input_tokens", "max_output_tokens"):
        if entry.get(key) is not None and (type(entry[key]) is not int or entry[key] < 1):
            raise ConfigError(f"{name}: {key} must be a whole number of tokens above 0, not {entry[key]!r:.60}")
    _check_sources(name, entry)


def optimised_metrics(entry: dict) -> list[str]:
    """The metrics whose mean selects checkpoints.

    >>> optimised_metrics(DATASET_VALS["glue"]["mrpc"])
    ['f1', 'accuracy']
    """
    name = entry["metric_to_optimize"]
    return list(metric_functions(entry)) if name == "average" else METRIC_GROUPS.get(name, [name])


def task_figure(scores: dict, entry: dict | None) -> float | None:
    """One number for a task from its results, in which None stands for NaN; rates are ignored.

    >>> task_figure({"f1": 80.0, "accuracy": 70.0, "invalid_rate": 0.0}, DATASET_VALS["glue"]["mrpc"])
    75.0
    """
    wanted = [name for name in optimised_metrics(entry) if name in scores] if entry else []
    names = wanted or [name for name in scores if name not in ("invalid_rate", "truncated_rate")]
    values = [scores[name] for name in names]
    return None if not values or None in values else sum(values) / len(values)


def metric_functions(entry) -> dict:
    """The entry's metrics by their reported names, groups expanded; includes the optimised one.

    Those of `evaluate` are not among them: they run the user's code (`evaluate_metrics`).

    >>> list(metric_functions({"metric_names": ["accuracy", "rouge"], "metric_to_optimize": "mcc"}))
    ['accuracy', 'rouge1', 'rouge2', 'rougeLsum', 'mcc']
    """
    listed_names = [name for name in entry["metric_names"] if not is_evaluate_name(name)]
    names = [name for listed in listed_names for name in METRIC_GROUPS.get(listed, [listed])]
    optimised = entry["metric_to_optimize"]
    if optimised not in (None, "average") and not is_value_of_evaluate(optimised, entry):
        names += [name for name in METRIC_GROUPS.get(optimised, [optimised]) if name not in names]
    renamed = {**METRIC_ALIASES, **(entry.get("metric_functions") or {})}
    return {name: METRICS[renamed.get(name, name)] for name in names}


def is_value_of_evaluate(name: str, entry: dict) -> bool:
    """Whether `metric_to_optimize` can only be a value of one of the entry's metrics of `evaluate`."""
    renamed = entry.get("metric_functions") or {}
    return bool(evaluate_names(entry)) and renamed.get(name, name) not in {**METRICS, **METRIC_GROUPS, **METRIC_ALIASES}


def _check_texts(name, entry):
    for key, (kind, said) in FIELD_KINDS.items():
        if entry.get(key) is not None and not isinstance(entry[key], kind):
            raise ConfigError(f"{name}: {key} must be {said}, not {entry[key]!r:.200}")
    functions = entry.get("metric_functions") or {}
    if not _all_text([*functions, *functions.values()]):
        raise ConfigError(f"{name}: metric_functions must map names to metrics' names, not {functions!r:.200}")
    prefixes, columns = entry["prefix"], entry["text_column_name"]
    for key, value in (("prefix", prefixes), ("text_column_name", columns)):
        if not _names(value):
            raise ConfigError(f"{name}: {key} must be a string or a list of strings, not {value!r}")
    if (entry.get("formatter") or "columns") in ("columns", "multirc", "record") and _size(prefixes) != _size(columns):
        raise ConfigError(f"{name}: prefix is {_size(prefixes)} but text_column_name is {_size(columns)}")
    if entry.get("formatter") == TOKEN_LABELS and not (isinstance(columns, str) and entry["labels"]):
        raise ConfigError(f"{name}: token_labels needs labels, and one text_column_name, not {columns!r:.200}")
    if not isinstance(entry["label_column_name"], str):
        raise ConfigError(f"{name}: label_column_name must be a string, not {entry['label_column_name']!r}")


def _check_labels(name, labels, formatter=None):
    if not isinstance(labels, (list, tuple, dict)) or not labels:
        raise ConfigError(f"{name}: labels must be a list of words, a table {{0: word, ...}} or null, not {labels!r}")
    if isinstance(labels, dict):
        ids = sorted(key for key in labels if key != -1) if all(isinstance(key, int) for key in labels) else None
        if ids != list(range(len(ids or []))) or not ids:
            raise ConfigError(f"{name}: labels must have the keys 0, 1, 2, ... (and -1 if wanted), not {list(labels)}")
    words = label_words(labels)
    if not _all_text(words) or not all(words):
        raise ConfigError(f"{name}: every label must be a word, not {words!r} (quote True, False, yes and no in YAML)")
    if any(len(word.split()) != 1 for word in words) and formatter == TOKEN_LABELS:
        raise ConfigError(f"{name}: labels of words are joined in one text, so {words!r:.200} must not contain spaces")
    if len(set(words)) != len(words):
        raise ConfigError(f"{name}: labels {words!r} name one word twice")


def _check_metrics(name, entry):
    names = entry["metric_names"]
    if not isinstance(names, (list, tuple)) or not _all_text(names):
        raise ConfigError(f"{name}: metric_names must be a list of metric names, not {names!r}")
    known = {**METRICS, **METRIC_GROUPS, **METRIC_ALIASES}
    renamed = entry.get("metric_functions") or {}
    names = [metric for metric in names if not is_evaluate_name(metric)]
    for metric in names:
        find(renamed.get(metric, metric), known, "metric", where=f"{name}: metric_names")
    optimised = entry["metric_to_optimize"]
    if not isinstance(optimised, str | None):
        raise ConfigError(f"{name}: metric_to_optimize must be one metric's name or 'average', not {optimised!r}")
    if optimised is None and entry["metric_names"]:
        listed = ", ".join(entry["metric_names"])
        raise ConfigError(f"{name}: metric_to_optimize is empty; name one of {listed}, or 'average'")
    if optimised not in (None, "average") and not is_value_of_evaluate(optimised, entry):
        find(renamed.get(optimised, optimised), known, "metric", f"{name}: metric_to_optimize")
    if optimised == "average" and evaluate_names(entry) and not names:
        raise ConfigError(
            f"{name}: metric_to_optimize is 'average', the mean of the suite's metrics, but metric_names has none of "
            "them; name a value that compute() of your metric returns"
        )
    if optimised == "average" and not names:
        raise ConfigError(f"{name}: metric_to_optimize is 'average', but metric_names is empty")
    if {metric in TOKEN_METRICS for metric in metric_functions(entry)} - {value_kind(entry) == "labels"}:
        known = ", ".join(sorted(TOKEN_METRICS))
        raise ConfigError(f"{name}: metric_names: {known} need the formatter token_labels, and it accepts no others")
    has_spans = METRICS["span_f1"] in metric_functions(entry).values()
    if has_spans and not all(map(BIO.fullmatch, label_words(entry["labels"]))):
        raise ConfigError(f"{name}: span_f1 needs labels O, B-... and I-..., not {label_words(entry['labels'])!r:.200}")
    if value_kind(entry) != "text":
        for key, metric in [*(("metric_names", metric) for metric in names), ("metric_to_optimize", optimised)]:
            if TEXT_METRICS & set(METRIC_GROUPS.get(metric, [METRIC_ALIASES.get(metric, metric)])):
                raise ConfigError(f"{name}: {key}: {metric!r} compares texts, but targets are labels or numbers")
    for metric in ("grouped_exact_match", "gender_parity"):
        if METRICS[metric] in metric_functions(entry).values() and not entry.get("group_by"):
            raise ConfigError(f"{name}: {metric} needs group_by, the column whose equal values belong together")


def _check_decimals(name, entry):
    decimals = entry["target_decimals"]
    if type(decimals) is not int or not 0 <= decimals <= MOST_DECIMALS:
        raise ConfigError(f"{name}: target_decimals must be a whole number, 0 to {MOST_DECIMALS}, not {decimals!r:.60}")
    if value_kind(entry) != "number":
        raise ConfigError(
            f"{name}: target_decimals {decimals} rounds numbers, but the targets are none: a task has numbers if "
            "pearson or spearman is among its metrics, and no labels"
        )
    if entry.get("target") is not None:
        raise ConfigError(f"{name}: target_decimals {decimals} and target {entry['target']!r}: give one")


def _check_splits(name, splits):
    if not isinstance(splits, dict) or not splits:
        raise ConfigError(f"{name}: splits must be a table like {{train: train, validation: validation}}")
    for role, names in splits.items():
        if role not in SPLIT_ROLES:
            raise ConfigError(f"{name}: splits: unknown key {role!r}; {suggestion(role, SPLIT_ROLES)}")
        if not _names(names):
            raise ConfigError(f"{name}: splits: {role} must be a split's name or a list of them, not {names!r}")


def _check_sources(name, entry):
    """Checks where rows come from and how they are grouped."""
    if entry.get("source") is not None:
        find(entry["source"], {source: source for source in ENTRY_SOURCES}, "source", where=name)
    if entry.get("references_by") is not None and value_kind(entry) != "text":
        raise ConfigError(f"{name}: references_by is for free text; the task's targets are labels or numbers")
    if not _all_text(entry.get("report_by") or []):
        raise ConfigError(f"{name}: report_by must be a list of columns, not {entry['report_by']!r:.200}")
    instructs = "super_ni" in (entry.get("formatter"), entry.get("source"))
    if instructs != (entry.get("instruction") is not None):
        raise ConfigError(f"{name}: the formatter and source super_ni and the field instruction need each other")
    for key, kinds in INSTRUCTION_KINDS.items() if instructs else ():
        value = entry["instruction"].get(key, _NOTHING)
        if type(value) not in kinds or (type(value) is int and value < 0):
            raise ConfigError(f"{name}: instruction: {key} must have the type of Tk-Instruct's flag, not {value!r:.60}")


def _all_text(values) -> bool:
    return all(isinstance(value, str) for value in values)


def _names(value) -> bool:
    """Whether it is a string, or a list of strings that is not empty."""
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and bool(value) and _all_text(value))


def _size(value) -> str:
    return "one string" if isinstance(value, str) else f"a list of {len(value)}"


def load_registry(task_file: str | None = None) -> dict:
    """`{benchmark: {task: entry}}`: the shipped tasks, and those of `task_file`, `Refused` if invalid.

    Raises:
      ConfigError: the file cannot be read, or is not a table of tables.
    """
    registry = {benchmark: dict(tasks) for benchmark, tasks in DATASET_VALS.items()}
    if task_file is None:
        return registry
    content, lines = _read(task_file)

    def place_of(*keys) -> str:
        line = lines.get(tuple(map(str, keys)))
        return f"{task_file}:{line}" if line else str(task_file)

    for benchmark, tasks in content.items():
        place = place_of(benchmark)
        check_name(benchmark, "benchmark", place)
        if not isinstance(tasks, dict):
            raise ConfigError(f"{place}: {benchmark} must be a table of tasks, not {tasks!r:.200}")
        for name, entry in tasks.items():
            try:
                place = place_of(benchmark, name)
                check_name(name, "task", place)
                if name in DATASET_VALS.get(benchmark, {}):
                    raise ConfigError(f"{place}: {benchmark}/{name} is a shipped task; give yours another name")
                check_entry(f"{place}: {benchmark}/{name}", entry)
                if entry.get("rows_of") is not None:
                    check_name(entry["rows_of"], "task", f"{place}: {benchmark}/{name}: rows_of")
                for role, names in (entry.get("splits") or {}).items():
                    for split in as_list(names):
                        check_name(split, "split", f"{place}: {benchmark}/{name}: splits: {role}")
            except ConfigError as error:
                entry = Refused(error)
            registry.setdefault(benchmark, {})[name] = entry
    return registry


def _read(task_file) -> YamlFile:
    """The file's content and line numbers; a Python file has no line numbers."""
    path = Path(task_file)
    if not path.is_file():
        raise ConfigError(f"--task_file: no file {str(path)!r}")
    if path.suffix == ".py":
        try:
            read = YamlFile(runpy.run_path(str(path)).get("DATASET_VALS"), {})
        except SystemExit as error:
            raise ConfigError(
                f"--task_file: {path} ends the program (SystemExit: {error}); it must only define tasks"
            ) from None
        except Exception as error:
            raise ConfigError(f"--task_file: {path} does not run: {type(error).__name__}: {error}") from error
    elif path.suffix in (".yaml", ".yml"):
        read = read_yaml(path)
    else:
        raise ConfigError(f"--task_file: {path} must end in .yaml, .yml or .py")
    if not isinstance(read.content, dict):
        raise ConfigError(f"--task_file: {path} must hold {{benchmark: {{task: entry}}}} (in Python as DATASET_VALS)")
    return read
