"""Whether an entry of the registry is valid: its keys, their types, and whether they fit together.

>>> check_entry("mine/topics", {"prefix": "topic: ", "text_column_name": ["a", "b"], ...})
ConfigError: mine/topics: prefix is one string but text_column_name is a list of 2
"""

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find, suggestion
from t5suite.tasks.cells import as_list
from t5suite.tasks.entry_metrics import (
    check_entry_metric,
    function_name,
    is_value_of_evaluate,
    metric_choices,
    metrics_by_reported_name,
    shipped_metric_choices,
)
from t5suite.tasks.evaluate_metrics import evaluate_names, is_evaluate_name
from t5suite.tasks.formatters import FORMATTERS, SHIPPED_FORMATTERS
from t5suite.tasks.metrics import BIO, CLASS_METRICS, SET_METRICS, TEXT_METRICS, TOKEN_METRICS
from t5suite.tasks.postprocessors import POSTPROCESSORS, SHIPPED_POSTPROCESSORS
from t5suite.tasks.targets import MOST_DECIMALS, SHIPPED_TARGETS, TARGETS, TOKEN_LABELS, label_words, value_kind
from t5suite.tasks.templates import INPUT, OUTPUT, check_template

REQUIRED_FIELDS = tuple("prefix text_column_name label_column_name labels metric_names metric_to_optimize".split())
# Sources of rows that an entry itself may name; flags such as --data_dir choose the others.
ENTRY_SOURCES = ("super_ni",)
# The keys of `instruction` and their types.
INSTRUCTION_KINDS = {
    "task_lists": (str,), "max_num_instances_per_task": (int, type(None)),
    "max_num_instances_per_eval_task": (int, type(None)), "add_task_definition": (bool,),
    "num_pos_examples": (int,), "num_neg_examples": (int,), "add_explanation": (bool,), "add_task_name": (bool,),
    "tk_instruct": (bool,), "seed": (int,),
}  # fmt: skip
KIND_NAMES = {str: "a text", int: "a whole number", bool: "true or false", type(None): "null"}
SPLIT_ROLES = ("train", "validation", "test")
# Types of optional fields, each of which may also be null; the functions below check their contents.
FIELD_KINDS = {
    "hub_path": (str, "a text"), "hub_name": (str, "a text"), "hub_archive": (str, "a zip file"),
    "rows_of": (str, "a task's name"), "group_by": (str, "a column's name"), "references_by": (str, "a column's name"),
    "report_by": (list, "a list of columns"), "source": (str, "a name"),
    "instruction": (dict, "a table of settings"), "formatter": (str, "a name"), "target": (str, "a name"),
    "postprocess": (str, "a name"), "num_examples": (dict, "a table of splits"),
    "metric_functions": (dict, "a table of metrics' names"),
}  # fmt: skip
# Optional fields of several types; the functions below check these, too.
CHECKED_FIELDS = ("splits", "input_format", "output_format", "max_input_tokens", "max_output_tokens", "target_decimals")
OPTIONAL_FIELDS = (*FIELD_KINDS, *CHECKED_FIELDS)
# Fields that name a function, and where it is; a Python task file may add its own.
FUNCTION_TABLES = {"formatter": FORMATTERS, "target": TARGETS, "postprocess": POSTPROCESSORS}
SHIPPED_TABLES = {
    "formatter": SHIPPED_FORMATTERS, "target": SHIPPED_TARGETS, "postprocess": SHIPPED_POSTPROCESSORS
}  # fmt: skip
# Formatters that put one prefix before each text column.
PREFIXING_FORMATTERS = ("columns", "multirc", "record", "squad", "joined_lists", "instruction")


class Refused(str):
    """Why an entry of a task file cannot be used: what the registry has in place of that entry.

    So the file's other tasks can be used; `check_entry` raises the reason once this one is asked for.
    """


def check_entry(name: str, entry, calls_functions: bool = True) -> None:
    """Raises a `ConfigError` that names the entry, the key and the reason if `entry` is invalid.

    Checks that come later rely on those before: metrics are judged by labels that are valid.

    Args:
      calls_functions: False: only words are read, so the functions that the entry names may be missing.
    """
    if isinstance(entry, Refused):
        raise ConfigError(str(entry))
    if not isinstance(entry, dict):
        raise ConfigError(f"{name}: an entry is a table of fields, not {type(entry).__name__}")
    _check_keys(name, entry)
    check_required_kinds(name, entry)
    _check_field_kinds(name, entry)
    _check_columns(name, entry)
    _check_labels(name, entry)
    if calls_functions:
        _check_metrics(name, entry)
        _check_table_names(name, entry)
    _check_splits(name, entry)
    _check_row_counts(name, entry)
    _check_templates(name, entry)
    _check_decimals(name, entry)
    _check_lengths(name, entry)
    _check_sources(name, entry)
    _check_instruction(name, entry)


def _check_keys(name: str, entry: dict) -> None:
    known_keys = REQUIRED_FIELDS + OPTIONAL_FIELDS
    for key in entry:
        if key not in known_keys:
            raise ConfigError(f"{name}: unknown key {key!r}; {suggestion(key, known_keys)}")
    missing = [key for key in REQUIRED_FIELDS if key not in entry]
    if missing:
        raise ConfigError(f"{name}: {', '.join(missing)} missing; an entry needs {', '.join(REQUIRED_FIELDS)}")


def check_required_kinds(name: str, fields: dict) -> None:
    """Refuses texts and lists of another kind among the required fields of an entry, which other fields may complete.

    Raises:
      ConfigError: names the entry and the field.
    """
    for key in ("prefix", "text_column_name"):
        if key in fields and not _is_text_or_texts(fields[key]):
            raise ConfigError(f"{name}: {key} must be a string or a list of strings, not {fields[key]!r}")
    label_column = fields.get("label_column_name", "")
    if not isinstance(label_column, str):
        raise ConfigError(f"{name}: label_column_name must be a string, not {label_column!r}")
    metric_names = fields.get("metric_names", [])
    if not isinstance(metric_names, (list, tuple)) or not _all_text(metric_names):
        raise ConfigError(f"{name}: metric_names must be a list of metric names, not {metric_names!r}")


def _check_field_kinds(name: str, entry: dict) -> None:
    for key, (kind, description) in FIELD_KINDS.items():
        if entry.get(key) is not None and not isinstance(entry[key], kind):
            raise ConfigError(f"{name}: {key} must be {description}, not {entry[key]!r:.200}")
    functions = entry.get("metric_functions") or {}
    if not _all_text(functions) or not _all_text(functions.values()):
        raise ConfigError(f"{name}: metric_functions must map names to metrics' names, not {functions!r:.200}")


def _check_columns(name: str, entry: dict) -> None:
    """Checks the prefixes and the text columns."""
    columns = entry["text_column_name"]
    prefix = entry["prefix"]
    is_prefixing = (entry.get("formatter") or "columns") in PREFIXING_FORMATTERS
    if is_prefixing and len(as_list(prefix)) != len(as_list(columns)):
        raise ConfigError(f"{name}: prefix is {_form_of(prefix)} but text_column_name is {_form_of(columns)}")
    if entry.get("formatter") == TOKEN_LABELS:
        if not isinstance(columns, str):
            raise ConfigError(f"{name}: token_labels needs one text_column_name, not {columns!r:.200}")
        if not isinstance(entry["prefix"], str):
            raise ConfigError(f"{name}: token_labels needs one prefix, a text, not {entry['prefix']!r:.200}")
        if not entry["labels"]:
            raise ConfigError(f"{name}: token_labels needs labels, not {entry['labels']!r:.60}")


def _check_labels(name: str, entry: dict) -> None:
    labels = entry["labels"]
    if labels is None:
        return
    if not isinstance(labels, (list, tuple, dict)) or not labels:
        raise ConfigError(f"{name}: labels must be a list of words, a table {{0: word, ...}} or null, not {labels!r}")
    if isinstance(labels, dict) and not _are_class_ids(labels):
        raise ConfigError(f"{name}: labels must have the keys 0, 1, 2, ... (and -1 if wanted), not {list(labels)}")
    words = label_words(labels)  # without the one for -1, the label of rows that are hidden
    for number, word in enumerate(words):
        if not isinstance(word, str) or not word:
            raise ConfigError(f"{name}: label {word!r} must be a text (quote True, False, yes and no in YAML)")
        if entry.get("formatter") == TOKEN_LABELS and word.split() != [word]:
            raise ConfigError(f"{name}: labels of words are joined in one text, so {word!r} must not contain spaces")
        if word in words[:number]:
            raise ConfigError(f"{name}: label {word!r} is given twice")


def _are_class_ids(keys) -> bool:
    """Whether the keys are 0, 1, 2, ..., and perhaps -1, the label of rows that are hidden."""
    if not all(type(key) is int for key in keys):
        return False
    ids = sorted(key for key in keys if key != -1)
    return bool(ids) and ids == list(range(len(ids)))


def _check_metrics(name: str, entry: dict) -> None:
    names = entry["metric_names"]
    suite_metrics = [metric for metric in names if not is_evaluate_name(metric)]
    for metric in suite_metrics:
        check_entry_metric(function_name(metric, entry), f"{name}: metric_names", has_labels=bool(entry["labels"]))
    _check_optimised_metric(name, entry, suite_metrics)
    _check_word_metrics(name, entry)
    metrics = metrics_by_reported_name(entry)
    check_no_text_metrics(f"{name}: metric_names", {**entry, "metric_to_optimize": None})
    check_no_text_metrics(f"{name}: metric_to_optimize", entry)
    if "mean_3class_f1" in metrics.values():
        _check_three_labels(name, entry["labels"])
    for metric in ("grouped_exact_match", "gender_parity"):
        if metric in metrics.values() and not entry.get("group_by"):
            raise ConfigError(f"{name}: {metric} needs group_by, the column whose equal values belong together")


def _check_optimised_metric(name: str, entry: dict, suite_metrics: list[str]) -> None:
    """Checks `metric_to_optimize`, of an entry with these metrics beside those of `evaluate`."""
    optimised = entry["metric_to_optimize"]
    if not isinstance(optimised, str | None):
        raise ConfigError(f"{name}: metric_to_optimize must be one metric's name or 'average', not {optimised!r}")
    if optimised is None and entry["metric_names"]:
        listed_names = ", ".join(entry["metric_names"])
        raise ConfigError(f"{name}: metric_to_optimize is empty; name one of {listed_names}, or 'average'")
    if optimised not in (None, "average") and not is_value_of_evaluate(optimised, entry):
        check_entry_metric(
            function_name(optimised, entry), f"{name}: metric_to_optimize", has_labels=bool(entry["labels"])
        )
    if optimised == "average" and not suite_metrics:
        if not evaluate_names(entry):
            raise ConfigError(f"{name}: metric_to_optimize is 'average', but metric_names is empty")
        raise ConfigError(
            f"{name}: metric_to_optimize is 'average', the mean of the suite's metrics, but metric_names has none of "
            "them; name a value that compute() of your metric returns"
        )


def _check_word_metrics(name: str, entry: dict) -> None:
    """Checks that metrics of labels for words, and only these, come with such labels."""
    metrics = metrics_by_reported_name(entry).values()
    has_word_labels = value_kind(entry) == "labels"
    if any((metric in TOKEN_METRICS) != has_word_labels for metric in metrics):
        token_metrics = ", ".join(sorted(TOKEN_METRICS))
        raise ConfigError(
            f"{name}: metric_names: {token_metrics} need the formatter token_labels, and token_labels takes no others"
        )
    if "span_f1" not in metrics:
        return
    words = label_words(entry["labels"])
    if not all(BIO.fullmatch(word) for word in words):
        raise ConfigError(f"{name}: span_f1 needs labels O, B-... and I-..., not {words!r:.200}")


def check_no_text_metrics(place: str, entry: dict) -> None:
    """Checks that no metric of an entry with labels or numbers compares texts.

    Args:
      place: the flag or the key that names the metrics, for errors.
    """
    if value_kind(entry) == "text":
        return
    for reported_name, metric in metrics_by_reported_name(entry).items():
        if metric in TEXT_METRICS:
            raise ConfigError(
                f"{place}: {reported_name!r} compares texts, but targets are labels or numbers; for free text or sets "
                "of labels leave the labels out"
            )


def _check_three_labels(name: str, labels) -> None:
    """Checks the labels of a task with CB's metric."""
    words = label_words(labels or [])
    if len(words) != 3:
        raise ConfigError(
            f"{name}: mean_3class_f1 is CB's, of exactly three labels, and there are {len(words)}; f1_macro takes any "
            "number of them"
        )


def _check_table_names(name: str, entry: dict) -> None:
    """Checks the fields that name functions in our tables."""
    for key, table in FUNCTION_TABLES.items():
        if entry.get(key) is not None:
            find(entry[key], table, key, where=name)


def functions_named(entry) -> list[tuple[str, str]]:
    """The functions that an entry names, with the field that they are for.

    >>> functions_named({"formatter": "shout", "metric_names": ["accuracy", "loudness"]})
    [('formatter', 'shout'), ('metric', 'accuracy'), ('metric', 'loudness')]
    """
    if not isinstance(entry, dict):
        return []
    functions = [(key, entry[key]) for key in FUNCTION_TABLES if isinstance(entry.get(key), str)]
    metrics = [metric for metric in as_list(entry.get("metric_names") or []) if isinstance(metric, str)]
    optimised = entry.get("metric_to_optimize")
    may_be_of_evaluate = any(map(is_evaluate_name, metrics))
    if isinstance(optimised, str) and optimised not in ("average", *metrics) and not may_be_of_evaluate:
        metrics.append(optimised)
    for metric in metrics:
        if not is_evaluate_name(metric):
            functions.append(("metric", function_name(metric, entry)))
    return functions


def undefined_functions(entry) -> list[str]:
    """What an entry names and no table has: the Python task file that adds it has not run, or the entry is damaged.

    >>> undefined_functions({"formatter": "shout", "metric_names": ["accuracy", "loudness"]})
    ["formatter 'shout'", "metric 'loudness'"]
    """
    tables = {**FUNCTION_TABLES, "metric": metric_choices()}
    return [f"{key} {name!r}" for key, name in functions_named(entry) if name not in tables[key]]


def names_own_function(entry) -> bool:
    """Whether an entry names a function of the user's: a new one, or one in place of a shipped one.

    >>> names_own_function({"formatter": "wsc", "metric_names": ["accuracy"]})
    False
    """
    tables = {**FUNCTION_TABLES, "metric": metric_choices()}
    shipped_tables = {**SHIPPED_TABLES, "metric": shipped_metric_choices()}
    for key, name in functions_named(entry):
        if name not in shipped_tables[key] or tables[key][name] is not shipped_tables[key][name]:
            return True
    return False


def _check_splits(name: str, entry: dict) -> None:
    splits = entry.get("splits")
    if splits is None:
        return
    if not isinstance(splits, dict) or not splits:
        raise ConfigError(f"{name}: splits must be a table like {{train: train, validation: validation}}")
    for role, names in splits.items():
        if role not in SPLIT_ROLES:
            raise ConfigError(f"{name}: splits: unknown key {role!r}; {suggestion(role, SPLIT_ROLES)}")
        if not _is_text_or_texts(names):
            raise ConfigError(f"{name}: splits: {role} must be a split's name or a list of them, not {names!r}")


def check_training_split(name: str, entry: dict) -> None:
    """Refuses several training splits in a task file; a model's own task may have them, for it is not trained again.

    Raises:
      ConfigError: names the splits.
    """
    splits = as_list((entry.get("splits") or {}).get("train") or [])
    if len(splits) > 1:
        raise ConfigError(
            f"{name}: splits: train must be one split, not {', '.join(splits)}: a run is trained on one; make a task "
            "of each, and train on several tasks, or join the rows in one file"
        )


def _check_row_counts(name: str, entry: dict) -> None:
    for split, count in (entry.get("num_examples") or {}).items():
        if count is None:
            continue
        if type(count) is not int or count < 0:
            raise ConfigError(
                f"{name}: num_examples: {split} must be a whole number of rows, such as 5000, not {count!r:.60}"
            )


def _check_templates(name: str, entry: dict) -> None:
    for key, place in (("input_format", INPUT), ("output_format", OUTPUT)):
        if entry.get(key) is not None:
            check_template(entry[key], place, f"{name}: {key}")


def _check_decimals(name: str, entry: dict) -> None:
    decimals = entry.get("target_decimals")
    if decimals is None:
        return
    if type(decimals) is not int or not 0 <= decimals <= MOST_DECIMALS:
        raise ConfigError(f"{name}: target_decimals must be a whole number, 0 to {MOST_DECIMALS}, not {decimals!r:.60}")
    if value_kind(entry) != "number":
        raise ConfigError(
            f"{name}: target_decimals {decimals} rounds numbers, but the targets are no numbers: a task has numbers if "
            "pearson or spearman is among its metrics, and no labels"
        )
    if entry.get("target") is not None:
        raise ConfigError(f"{name}: target_decimals {decimals} and target {entry['target']!r}: give one")


def _check_lengths(name: str, entry: dict) -> None:
    for key in ("max_input_tokens", "max_output_tokens"):
        length = entry.get(key)
        if length is not None and (type(length) is not int or length < 1):
            raise ConfigError(f"{name}: {key} must be a whole number of tokens above 0, not {length!r:.60}")


def _check_sources(name: str, entry: dict) -> None:
    """Checks `source`, where rows come from; `references_by`, rows of one question; `report_by`, those scored apart."""
    if entry.get("source") is not None:
        find(entry["source"], dict.fromkeys(ENTRY_SOURCES), "source", where=name)
    if entry.get("references_by") is not None:
        _check_references_by(name, entry)
    if not _all_text(entry.get("report_by") or []):
        raise ConfigError(f"{name}: report_by must be a list of columns, not {entry['report_by']!r:.200}")


def _check_references_by(name: str, entry: dict) -> None:
    """Checks a task whose rows have one question: all their answers are references of one text."""
    if value_kind(entry) != "text":
        raise ConfigError(f"{name}: references_by is for free text; the task's targets are labels or numbers")
    if entry.get("group_by") is not None:
        raise ConfigError(f"{name}: references_by joins rows, which group_by would score in groups: give one of them")
    for metric, function in metrics_by_reported_name(entry).items():
        if function in CLASS_METRICS | SET_METRICS:
            raise ConfigError(
                f"{name}: references_by gives a row several references, and {metric} compares labels, of which a row "
                "has its own; name metrics of texts"
            )


def _check_instruction(name: str, entry: dict) -> None:
    """Checks the settings of Super-NaturalInstructions, which only entries with its formatter or source have."""
    settings = entry.get("instruction")
    has_instructions = "super_ni" in (entry.get("formatter"), entry.get("source"))
    if has_instructions != (settings is not None):
        raise ConfigError(
            f"{name}: the formatter or source super_ni needs the field instruction, and no other entry may have it"
        )
    if settings is None:
        return
    for key in settings:
        if key not in INSTRUCTION_KINDS:
            raise ConfigError(f"{name}: instruction: unknown key {key!r}; {suggestion(key, INSTRUCTION_KINDS)}")
    for key, kinds in INSTRUCTION_KINDS.items():
        if key not in settings:
            raise ConfigError(f"{name}: instruction: {key} is missing")
        value = settings[key]
        if type(value) not in kinds:
            kind_names = " or ".join(KIND_NAMES[kind] for kind in kinds)
            raise ConfigError(f"{name}: instruction: {key} must be {kind_names}, not {value!r:.60}")
        if type(value) is int and value < 0:
            raise ConfigError(f"{name}: instruction: {key} must be at least 0, not {value}")


def _all_text(values) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_text_or_texts(value) -> bool:
    """Whether it is a string, or a list of strings that is not empty."""
    if isinstance(value, str):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and _all_text(value)


def _form_of(value) -> str:
    return "one string" if isinstance(value, str) else f"a list of {len(value)}"
