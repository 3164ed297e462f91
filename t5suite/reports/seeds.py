"""Runs that are seeds of one setting, and what each setting is called.

>>> [(setting["label"], setting["runs"]) for setting in group_by_setting(runs)]
[('learning_rate 0.001', ['rte-s1', 'rte-s2', 'cola-s1']), ('learning_rate 0.0001', ['rte-low'])]
"""

import json
from collections.abc import Sequence

from t5suite.base.script_flags import flags_marked, flags_needing
from t5suite.runs.settings import FILE_CONTENTS, idle_length, is_decisive, saves_when_it_evaluates

# What may differ between seeds of one setting, and what a table's task column says.
NOT_A_SETTING = frozenset(("seed", "data_seed", "benchmark", "dataset_name", FILE_CONTENTS))
# Settings that a label names.
MOST_NAMED = 3
# Characters of a value in a label.
LONGEST_VALUE = 40


def group_by_setting(runs: list[dict]) -> list[dict]:
    """`[{"label", "differs": {name: value}, "runs": [names]}]`, in the runs' order.

    The label names what differs from the other settings of the same kind; it is empty where there is one setting.

    Args:
      runs: as `read_run` has them.
    """
    groups: dict[str, dict] = {}
    values_when_off = off_values([run["settings"] for run in runs])
    for run in runs:
        settings = decisive_settings({**values_when_off, **run["settings"]})
        key = json.dumps(settings, sort_keys=True, default=str)
        group = groups.setdefault(key, {"settings": settings, "runs": []})
        group["runs"].append(run["name"])
    settings_of_groups = [group["settings"] for group in groups.values()]
    entries = []
    for group in groups.values():
        differs = differing_settings(group["settings"], settings_of_groups)
        label = setting_label(differs)
        if not label and len(groups) > 1:
            label = label_without_differences(group["settings"])
        entries.append({"label": label, "differs": differs, "runs": group["runs"]})
    return with_distinct_labels(entries)


def differing_settings(settings: dict, all_settings: list[dict]) -> dict:
    """The settings that are not the same in all of the same kind; of an evaluation, of training its rows alone."""
    kind = kind_of_run(settings)
    comparable = [candidate for candidate in all_settings if kind_of_run(candidate) == kind]
    names = varied_names(comparable)
    if kind == "evaluation":
        settings_of_training = {"update_size", *flags_needing("training")} - {*flags_marked("rows")}
        names = [name for name in names if name not in settings_of_training]
    return {name: settings.get(name) for name in names if name != idle_length(settings)}


def label_without_differences(settings: dict) -> str:
    """What the only setting of a kind is called beside those of other kinds."""
    kind = kind_of_run(settings)
    if kind == "fine-tuning":
        return "as given"
    return kind


def off_values(all_settings: list[dict]) -> dict:
    """What a flag is in runs of a version that does not have it: off, as in other runs.

    >>> off_values([{"seed": 1}, {"seed": 2, "new": False}, {"seed": 3, "new": True}])
    {'new': False}
    """
    values = {}
    for settings in all_settings:
        for name, value in settings.items():
            if value is None or (not value and name not in values):
                values[name] = value
    return values


def decisive_settings(settings: dict) -> dict:
    """The settings that tell a run from the seeds of another setting."""
    decisive = {}
    for name, value in settings.items():
        if value is None or name in NOT_A_SETTING or name == idle_length(settings):
            continue
        if is_decisive(name):
            decisive[name] = value
    if saves_when_it_evaluates(settings):
        decisive.pop("save_steps", None)
    return decisive


def kind_of_run(settings: dict) -> str:
    """What a run of these settings does: runs of different kinds differ in more than what their flags say.

    >>> kind_of_run({"max_source_length": 512, "eval_only": True})
    'evaluation'
    """
    if "max_source_length" not in settings:
        return "pre-training"
    if settings.get("eval_only") or settings.get("predict_only"):
        return "evaluation"
    return "fine-tuning"


def varied_names(all_settings: list[dict]) -> list[str]:
    """The settings that are not the same in all, those first that readers of a report ask for."""
    names = []
    for settings in all_settings:
        names += settings
    varied = []
    for name in dict.fromkeys(names):
        values = {json.dumps(settings.get(name), default=str) for settings in all_settings}
        if len(values) > 1:
            varied.append(name)
    places = {name: place for place, name in enumerate(flags_marked("report"))}
    return sorted(varied, key=lambda name: places.get(name, len(places)))


def setting_label(differs: dict) -> str:
    """What a setting is called.

    >>> setting_label({"learning_rate": 0.001, "optimizer": "adafactor"})
    'learning_rate 0.001, optimizer adafactor'
    """
    texts = _setting_texts(differs)
    parts = texts[:MOST_NAMED]
    if len(texts) > MOST_NAMED:
        parts.append(f"{len(texts) - MOST_NAMED} more")
    return ", ".join(parts)


def unnamed_settings(settings: list[dict]) -> list[tuple[str, str]]:
    """`(label, the settings that it leaves out)` of each setting whose label does not name all that differ.

    >>> unnamed_settings([{"label": "a 1, b 2, c 3, 1 more", "differs": {"a": 1, "b": 2, "c": 3, "d": 4}}])
    [('a 1, b 2, c 3, 1 more', 'd 4')]
    """
    unnamed = []
    for setting in settings:
        texts = _setting_texts(setting["differs"])
        if setting["label"] == setting_label(setting["differs"]):
            texts = texts[MOST_NAMED:]
        if texts:
            unnamed.append((setting["label"], ", ".join(texts)))
    return unnamed


def _setting_texts(differs: dict) -> list[str]:
    return [f"{name} {_value_text(value)}" for name, value in differs.items()]


def _value_text(value) -> str:
    """A value; of a long one, such as a path, the end."""
    if value is None:
        return "unset"
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, str) and value != value.strip():
        text = repr(value)  # 'summarize: ' beside 'summarize:'
    else:
        text = str(value)
    if len(text) <= LONGEST_VALUE:
        return text
    return "..." + text[3 - LONGEST_VALUE :]


def with_distinct_labels(settings: list[dict]) -> list[dict]:
    """The settings; those whose labels are equal are called by their runs."""
    labels = [setting["label"] for setting in settings]
    distinct = []
    for setting in settings:
        label = setting["label"]
        if label and labels.count(label) > 1:
            label = label_of_runs(setting["runs"])
        distinct.append({**setting, "label": label})
    return distinct


def label_of_runs(names: Sequence[str]) -> str:
    """What a setting is called by the names of its runs.

    >>> label_of_runs(["rte-s1"]), label_of_runs(["rte-s1", "rte-s2", "cola-s1"])
    ('rte-s1', 'rte-s1 and 2 more')
    """
    if len(names) == 1:
        return names[0]
    return f"{names[0]} and {len(names) - 1} more"
