"""What `FineTuner` is given -> the flags of `fine_tune_t5.py`, and the objects that no flag can name.

>>> given = inputs_of("t5-v1_1-small", "reviews.csv", {"text_column": "text"})
>>> given.flags
{'config_name': 't5-v1_1-small', 'data_format': 'csv', 'train_file': 'reviews.csv', 'text_column': 'text'}
>>> inputs_of("t5-small", [{"input": "a", "output": "b"}], {}).rows
{'train': [{'input': 'a', 'output': 'b'}]}
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.base.script_flags import flags_of
from t5suite.data.corpora.readers import without_compression
from t5suite.data.rows.files import FORMATS_BY_SUFFIX, SPLIT_NAMES
from t5suite.data.rows.own_rows import as_rows
from t5suite.models.presets import PRESETS
from t5suite.training.plug_ins import PlugIns, check_callbacks

SCRIPT = "fine_tune_t5"


class Inputs(NamedTuple):
    """What is given, taken apart.

    Attributes:
      flags: by name; those that `model` and `data` stand for among them.
      model: a model that is in memory; None where flags say which.
      rows: `{split: rows}` that are in memory.
      names_data: whether anything says what is trained on.
    """

    flags: dict[str, Any]
    model: Any = None
    rows: dict[str, list[dict]] | None = None
    names_data: bool = False


def inputs_of(model: Any, data: Any, flags: Mapping[str, Any]) -> Inputs:
    """`FineTuner(model, data, **flags)` taken apart.

    Raises:
      ConfigError: something given twice; a name, file or object that stands for nothing.
      DataError: rows that are none.
    """
    _refuse_flags_of_scripts(flags)
    model_flags, model = _model_flags(model)
    data_flags, rows = _data_flags(data, flags)
    merged = dict(flags)
    for what, found in (("model", model_flags), ("data", data_flags)):
        for name, value in found.items():
            if name in flags and name not in YIELDING:
                raise ConfigError(f"{what} says {name}={value!r:.100}, and {name}={flags[name]!r:.100} too; give one")
            merged.setdefault(name, value)
    return Inputs(merged, model, rows, data is not None or any(name in flags for name in DATA_FLAGS))


def argv_of(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them; what is one text there may be a list here.

    >>> argv_of({"labels": ["bad", "good"], "max_steps": 10, "early_stopping_patience": None})
    ['--labels=bad,good', '--max_steps=10', '--early_stopping_patience=None']

    Raises:
      ConfigError: an item of such a list holds a comma.
    """
    known, words = flags_of(SCRIPT), []
    for name, value in flags.items():
        if isinstance(value, (list, tuple)) and name in known and not known[name]["list"]:
            items = [str(item) for item in value]
            if any("," in item for item in items):
                raise ConfigError(f"{name}: {value!r:.200} holds a comma, which parts the items of this setting")
            value = ",".join(items)
        words.append(f"--{name}={list(value) if isinstance(value, tuple) else value}")
    return words


def callables_of(flags: Mapping[str, Any]) -> tuple[dict[str, Any], PlugIns]:
    """`(the other flags, plug-ins that are objects)`; those that are `module:Name` stay flags.

    >>> callables_of({"metrics": ["accuracy", exact_length], "seed": 1})
    ({'metrics': ['accuracy'], 'seed': 1}, PlugIns(metrics=(<function exact_length>,), ...))

    Raises:
      ConfigError: something that cannot be called, or callbacks that are none.
    """
    kept, found = dict(flags), {}
    for name in ("batch_transform", "batch_metrics", "metrics", "callbacks"):
        given = kept.pop(name, None)
        several = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        words = [part for part in several if isinstance(part, str)]
        found[name] = [part for part in several if not isinstance(part, str)]
        if words:
            kept[name] = words if isinstance(given, (list, tuple)) else given
        for part in found[name] if name != "callbacks" else ():
            if not callable(part):
                raise ConfigError(f"{name}: a {type(part).__name__}, which is no function")
        if name.startswith("batch_") and len(several) > 1:
            raise ConfigError(f"{name}: one function, not {len(several)}")
    transform, measured = (next(iter(found[name]), None) for name in ("batch_transform", "batch_metrics"))
    if transform is not None and "transform_evaluation" in kept:
        found["transforms_evaluation"] = bool(kept.pop("transform_evaluation"))
    found |= {"batch_transform": transform, "batch_metrics": measured, "metrics": tuple(found["metrics"])}
    return kept, PlugIns(**found | {"callbacks": check_callbacks(found["callbacks"])})


def joined(named: PlugIns, given: PlugIns) -> PlugIns:
    """The plug-ins that flags name, and those that are objects."""
    return PlugIns(
        batch_transform=given.batch_transform or named.batch_transform,
        transforms_evaluation=given.transforms_evaluation or named.transforms_evaluation,
        batch_metrics=given.batch_metrics or named.batch_metrics,
        metrics=named.metrics + given.metrics,
        callbacks=check_callbacks(named.callbacks + given.callbacks),
        model_class=named.model_class,
    )


def _refuse_flags_of_scripts(flags: Mapping[str, Any]) -> None:
    for name, entry in flags_of(SCRIPT).items():
        if "python" in entry and flags.get(name) not in (None, False, "none"):
            raise ConfigError(f"{name}={flags[name]!r}: it is the script's; in Python {entry['python']}")


def _model_flags(model: Any) -> tuple[dict, Any]:
    """`(flags, model in memory)`."""
    if model is None:
        return {}, None
    if isinstance(model, type):
        return {"model_class": f"{model.__module__}:{model.__qualname__}"}, None
    if not isinstance(model, (str, os.PathLike)):
        return {}, model
    name = os.fspath(model)
    is_there = Path(name).exists()
    if ":" in name and not is_there and not name.startswith((".", "/")):
        return {"model_class": name}, None
    if name in PRESETS and name not in HUB_PRESETS and not is_there:
        return {"config_name": name}, None
    return {"model_name_or_path": name}, None


def _data_flags(data: Any, flags: Mapping[str, Any]) -> tuple[dict, dict | None]:
    """`(flags, rows in memory by split)`."""
    if data is None:
        return {}, None
    if isinstance(data, (str, os.PathLike)):
        return _named_data(os.fspath(data), flags), None
    if isinstance(data, Mapping):
        splits = {_role(name): part for name, part in data.items()}
        if len(splits) < len(data):
            raise ConfigError(f"data: two of {', '.join(map(str, data))} are names of one split")
        named = [role for role, part in splits.items() if isinstance(part, (str, os.PathLike))]
        if named and len(named) < len(splits):
            raise ConfigError(f"data: {', '.join(named)} in files, other splits in memory; give all in one way")
        if named:
            files = {f"{role}_file": os.fspath(part) for role, part in splits.items()}
            return {"data_format": _format_of(next(iter(files.values()))), **files}, None
    else:
        splits = {"train": data}
    rows = {role: as_rows(part, f"data[{role!r}]") for role, part in splits.items()}
    found = {"data_format": "jsonl"}
    words = _label_names(next(iter(splits.values())), flags.get("target_column") or "output")
    return found | ({"labels": words} if words and "labels" not in flags else {}), rows


def _named_data(name: str, flags: Mapping[str, Any]) -> dict:
    """A file or folder of rows, or `benchmark/task`."""
    path = Path(name)
    if path.is_dir():
        return {"data_format": flags.get("data_format") or _format_in(path), "train_dir": name}
    if path.is_file() or any(mark in name for mark in "*?["):
        return {"data_format": flags.get("data_format") or _format_of(name), "train_file": name}
    benchmark, slash, task = name.partition("/")
    if not slash or Path(without_compression(name)).suffix in FORMATS_BY_SUFFIX or task.count("/"):
        raise ConfigError(f"data {name!r}: no such file or folder, and no benchmark/task such as 'glue/rte'")
    return {"benchmark": benchmark, "dataset_name": task}


def _format_of(name: str) -> str:
    suffix = Path(without_compression(str(name))).suffix
    if suffix not in FORMATS_BY_SUFFIX:
        raise ConfigError(f"data {str(name)!r}: give data_format=..., its name does not tell it")
    return FORMATS_BY_SUFFIX[suffix]


def _format_in(folder: Path) -> str:
    """The one kind of file in a folder and the folders in it."""
    names = [path.name for path in [*folder.glob("*"), *folder.glob("*/*")] if path.is_file()]
    found = {FORMATS_BY_SUFFIX.get(Path(without_compression(name)).suffix) for name in names} - {None}
    if len(found) != 1:
        kinds = f"files of {' and '.join(sorted(found))}" if found else "no file of rows"
        raise ConfigError(f"data {str(folder)!r} has {kinds}; give data_format=...")
    return found.pop()


def _role(name: str) -> str:
    for role, names in SPLIT_NAMES.items():
        if name in names:
            return role
    raise ConfigError(f"data: no split {name!r}; {suggestion(name, SPLIT_NAMES)}")


def _label_names(data: Any, target: str) -> list[str] | None:
    """The names of a `datasets.ClassLabel` column."""
    feature = getattr(data, "features", None) or {}
    return list(getattr(feature.get(target), "names", None) or []) or None


# Presets whose names are the hub's, too: there they have trained weights.
HUB_PRESETS = ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b")
# Said by `data` where the user does not say otherwise.
YIELDING = ("data_format", "labels")
# Flags that say what is trained on.
DATA_FLAGS = "benchmark dataset_name task_file data_format data_class config".split()
