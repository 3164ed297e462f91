"""Runs that are seeds of one setting, found by what differs between their settings.

>>> [(setting["label"], setting["runs"]) for setting in settings_of(runs)]
[('learning_rate 0.001', ['rte-s1', 'rte-s2', 'cola-s1']), ('learning_rate 0.0001', ['rte-low'])]

Two runs belong to one setting when what decides their outcome (`run_settings.is_decisive`) differs in nothing but the
seed; the task is told apart in the tables, so it is no part of a setting's name.
"""

import json

from t5suite.runs.settings import is_decisive

# What may differ between seeds of one setting, and what a table's task column says.
SEEDS = frozenset(("seed", "data_seed"))
TASKS = frozenset(("benchmark", "dataset_name"))
# How a run is laid out over devices and how often it is evaluated is no setting of interest.
MOST_NAMED = 3
LONGEST_VALUE = 40


def settings_of(runs: list[dict]) -> list[dict]:
    """`[{"label", "differs": {name: value}, "runs": [names]}]`, in the order of their first runs.

    The label names what differs from the other settings, or, where that is much, from those of the same tasks; a
    setting whose tasks no other has is then called by them. It is empty where there is one setting alone.
    """
    found: dict[str, dict] = {}
    for run in runs:
        kept = comparable(run["settings"])
        key = json.dumps(kept, sort_keys=True, default=str)
        group = found.setdefault(key, {"settings": kept, "runs": [], "tasks": []})
        group["runs"].append(run["name"])
        group["tasks"] += [task for task in tasks_of(run) if task not in group["tasks"]]
    groups = list(found.values())
    settings = []
    for group in groups:
        kind = [other for other in groups if is_fine_tuning(other) == is_fine_tuning(group)]
        near = [other for other in kind if set(other["tasks"]) & set(group["tasks"])]
        differs = _differs(group, kind)
        label = label_of(differs)
        if len(differs) > MOST_NAMED and len(near) < len(kind):
            differs = _differs(group, near)
            label = label_of(differs) if differs else _few(group["tasks"])
        settings.append({"label": label, "differs": differs, "runs": group["runs"]})
        if len(groups) > 1 and not settings[-1]["label"]:
            settings[-1]["label"] = "as given" if is_fine_tuning(group) else "pre-training"
    _tell_apart(settings)
    return settings


def tasks_of(run: dict) -> list[str]:
    """The names of what a run is about: of its results, or of what its flags say."""
    named = run.get("dataset_name") or run["settings"].get("dataset_name")
    return list(run.get("results") or []) or ([str(named)] if named else [])


def _differs(group: dict, others: list[dict]) -> dict:
    return {name: group["settings"].get(name) for name in _varied([other["settings"] for other in others])}


def is_fine_tuning(group: dict) -> bool:
    """Whether a setting is of the script that has tasks; those of pre-training have other flags and other results."""
    return "max_source_length" in group["settings"]


def comparable(settings: dict) -> dict:
    """The settings that make two runs different ones, but for seeds and tasks."""
    left_out = SEEDS | TASKS
    return {
        name: value
        for name, value in settings.items()
        if is_decisive(name) and name not in left_out and value is not None
    }


def label_of(differs: dict) -> str:
    """What a setting is called.

    >>> label_of({"learning_rate": 0.001, "optimizer": "adafactor"})
    'learning_rate 0.001, optimizer adafactor'
    """
    return _few([f"{name} {_shown(value)}" for name, value in differs.items()])


def _few(said: list[str]) -> str:
    """The first few, and how many others there are."""
    more = f", {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    return ", ".join(said[:MOST_NAMED]) + more


def _varied(settings: list[dict]) -> list[str]:
    """The names whose values are not the same everywhere, the best known ones first."""
    names = dict.fromkeys(name for one in settings for name in one)
    varied = [name for name in names if len({json.dumps(one.get(name), default=str) for one in settings}) > 1]
    return sorted(varied, key=lambda name: WELL_KNOWN.index(name) if name in WELL_KNOWN else len(WELL_KNOWN))


def _tell_apart(settings: list[dict]) -> None:
    """Labels that were cut to the same words get a number."""
    labels = [setting["label"] for setting in settings]
    for at, setting in enumerate(settings):
        if setting["label"] and labels.count(setting["label"]) > 1:
            setting["label"] = f"{setting['label']} (setting {at + 1})"


def _shown(value) -> str:
    text = f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else "..." + text[3 - LONGEST_VALUE :]


# What people vary, in the order in which they want to see it.
WELL_KNOWN = """model_name_or_path config_name adapter optimizer optim learning_rate schedule lr_scheduler_type
per_device_train_batch_size gradient_accumulation_steps max_steps num_train_epochs eval_method warmup_steps weight_decay
max_train_samples few_shot dropout_rate label_smoothing_factor""".split()
