"""What `t5suite.FineTuner` is given, as flags of `fine_tune_t5.py` and objects in memory.

>>> read_inputs("t5-v1_1-small", "glue/rte", {"max_steps": 100}).flags
{'config_name': 't5-v1_1-small', 'benchmark': 'glue', 'dataset_name': 'rte', 'max_steps': 100}
>>> read_inputs("t5-small", [{"input": "a", "output": "b"}], {}).rows
{'train': [{'input': 'a', 'output': 'b'}]}
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from t5suite.base.errors import ConfigError
from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix
from t5suite.base.lookup import script_module, suggestion
from t5suite.base.redaction import MASK, is_secret_name
from t5suite.base.script_flags import flags_marked, flags_of
from t5suite.data.rows.files import SPLIT_NAMES, folders_of_split
from t5suite.data.rows.formats import comma_separated
from t5suite.data.rows.own_rows import as_rows
from t5suite.launch.config_files import read_config
from t5suite.launch.row_formats import with_format
from t5suite.models.adapters import has_adapter_layers, inner_model, is_adapted
from t5suite.models.attention_setting import attention_of
from t5suite.models.encoders import have_head
from t5suite.models.families import ENCODER, Family, recognize_family
from t5suite.models.generation_settings import check_generation, complete_special_tokens, reset_ids_of_class
from t5suite.models.heads import fit_head
from t5suite.models.loading import check_attention, check_vocabulary
from t5suite.models.own_models import UserClass
from t5suite.models.presets import PRESETS
from t5suite.models.quantization import is_quantized
from t5suite.models.t5.output_layer import T5_TYPES
from t5suite.models.t5.packing import accept_packed_batches
from t5suite.models.vocabulary import ensure_padding
from t5suite.models.weight_values import check_finite, separate_memory
from t5suite.tasks.cells import value_at
from t5suite.tasks.targets import class_names, with_words_of_ids, words_of_ids
from t5suite.tasks.task_card import own_task_of
from t5suite.training.model_tasks import FLAGS_OF_OWN_TASKS
from t5suite.training.plug_ins import PlugIns, check_callbacks

logger = logging.getLogger("t5suite.fine_tuner")

SCRIPT = "fine_tune_t5"
# Presets that are also names of hub models: there they have trained weights.
HUB_PRESETS = ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b")
# Flags that `data` sets only if the user does not.
YIELDING_FLAGS = ("data_format", "labels")
# torch's modules around a model, and what to give in their place.
WRAPPERS_OF_TORCH = {
    "OptimizedModule": "give the model as it was before torch.compile, and torch_compile=True",
    "DataParallel": "give the model in it; several GPUs take a process each (accelerate launch)",
    "DistributedDataParallel": "give the model in it; the run itself wraps it",
}
# Packages whose classes of models are loaded without `--model_class`; the second has those of `--trust_remote_code`.
PACKAGES_OF_CLASSES = ("transformers", "transformers_modules", "t5suite")
# Flags that name functions or callbacks, or hold them.
FUNCTION_FLAGS = ("batch_transform", "batch_metrics", "metrics")
PLUG_IN_FLAGS = (*FUNCTION_FLAGS, "callbacks")


@dataclass(frozen=True)
class Inputs:
    """The arguments of a `FineTuner`.

    Attributes:
      flags: by name, including those that `model` and `data` stand for.
      model: a model that is in memory; None where flags say which.
      rows: `{split: rows}` that are in memory.
      names_data: whether any argument names training data.
    """

    flags: dict[str, Any]
    model: Any = None
    rows: dict[str, list[dict]] | None = None
    names_data: bool = False


def read_inputs(model: Any, data: Any, flags: Mapping[str, Any]) -> Inputs:
    """The inputs of `FineTuner(model, data, **flags)`.

    Raises:
      ConfigError: a flag of the script alone, a setting that is given twice, `data` that is nothing of the kind.
    """
    all_flags = _flags_with_those_of_files(flags)
    _check_no_script_flags(all_flags)
    model_flags, model_in_memory = _model_flags(model)
    data_flags, rows = _data_flags(data, {**model_flags, **flags})
    implied_flags = model_flags | data_flags
    for name in implied_flags.keys() & flags.keys() - set(YIELDING_FLAGS):
        raise ConfigError(f"{name} is given twice: {implied_flags[name]!r:.100} and {flags[name]!r:.100}")
    named_flags = with_format({**implied_flags, **all_flags})
    names_data = data is not None or not named_flags.keys().isdisjoint(flags_marked("data"))
    return Inputs({**implied_flags, **flags}, model_in_memory, rows, names_data)


def _check_no_script_flags(flags: Mapping[str, Any]) -> None:
    """Refuses flags that ask the script for something that is a method here."""
    for name, entry in flags_of(SCRIPT).items():
        if "python" in entry and flags.get(name) not in (None, False, "none"):
            raise ConfigError(f"{name}={flags[name]!r}: it is a flag of the script; in Python {entry['python']}")


def call_text(flags: Mapping[str, Any], in_memory: Sequence[str] = ()) -> str:
    """The call of `FineTuner` with these flags, for the manifest: without secrets.

    >>> call_text({"max_steps": 10, "labels": ["bad", "good"], "freeze": None}, in_memory=["data"])
    "FineTuner(data=..., max_steps=10, labels=['bad', 'good'])"

    Args:
      in_memory: arguments that are objects, of which there is no text.
    """
    defaults = {name: entry.get("default") for name, entry in flags_of(SCRIPT).items()}
    arguments = [f"{name}=..." for name in in_memory]
    for name, value in flags.items():
        is_unset = value is None and defaults.get(name) is None
        if is_unset or name in in_memory:
            continue
        if is_secret_name(name):
            value = MASK
        elif not isinstance(value, (bool, int, float, str, list, tuple, dict)):
            value = str(value)
        arguments.append(f"{name}={value!r}")
    return f"FineTuner({', '.join(arguments)})"


def separate_plug_ins(flags: Mapping[str, Any]) -> tuple[dict[str, Any], PlugIns]:
    """`(the other flags, plug-ins that are objects)`; those that are `module:Name` stay flags.

    >>> separate_plug_ins({"metrics": ["accuracy", exact_length], "seed": 1})
    ({'metrics': ['accuracy'], 'seed': 1}, PlugIns(metrics=(<function exact_length>,), ...))
    """
    remaining_flags = dict(flags)
    objects = {name: _take_objects(remaining_flags, name) for name in PLUG_IN_FLAGS}
    for name in FUNCTION_FLAGS:
        for function in objects[name]:
            if not callable(function):
                raise ConfigError(f"{name}: {type(function).__name__} is not a function")
    plug_ins = PlugIns(
        batch_transform=next(iter(objects["batch_transform"]), None),
        batch_metrics=next(iter(objects["batch_metrics"]), None),
        metrics=tuple(objects["metrics"]),
        callbacks=check_callbacks(objects["callbacks"]),
    )
    return remaining_flags, plug_ins


def _take_objects(flags: dict[str, Any], name: str) -> list:
    """Takes the objects out of a flag and returns them; texts stay in it."""
    value = flags.pop(name, None)
    if value is None:
        return []
    is_list = isinstance(value, (list, tuple))
    parts = list(value) if is_list else [value]
    if name.startswith("batch_") and len(parts) > 1:
        raise ConfigError(f"{name}: one function, not {len(parts)}")
    texts = [part for part in parts if isinstance(part, str)]
    if texts:
        flags[name] = texts if is_list else value
    return [part for part in parts if not isinstance(part, str)]


def combine_plug_ins(named: PlugIns, objects: PlugIns) -> PlugIns:
    """The plug-ins that flags name, and those that are objects."""
    return PlugIns(
        batch_transform=objects.batch_transform or named.batch_transform,
        batch_metrics=objects.batch_metrics or named.batch_metrics,
        metrics=named.metrics + objects.metrics,
        callbacks=check_callbacks(named.callbacks + objects.callbacks),
        model_class=named.model_class,
    )


def _model_flags(model: Any) -> tuple[dict, Any]:
    """`(flags, model in memory)`."""
    if model is None:
        return {}, None
    if isinstance(model, type):
        return {"model_class": _spec_of(model)}, None
    if not isinstance(model, (str, os.PathLike)):
        own_class = own_class_of(model)
        return {} if own_class is None else {"model_class": own_class.spec}, model
    name = os.fspath(model)
    exists = Path(name).exists()
    if ":" in name and not exists and not name.startswith((".", "/")):
        return {"model_class": name}, None
    if name in PRESETS and name not in HUB_PRESETS and not exists:
        return {"config_name": name}, None
    return {"model_name_or_path": name}, None


def own_class_of(model: Any) -> UserClass | None:
    """The class of a model in memory, if the user has written it; None for transformers' classes and adapters.

    >>> own_class_of(NearT5.from_pretrained("google/t5-v1_1-small")).spec
    'my_attention:NearT5'

    Raises:
      ConfigError: nothing could load the class again.
    """
    model_class = type(model)
    package = model_class.__module__.partition(".")[0]
    if not isinstance(model, PreTrainedModel) or package in PACKAGES_OF_CLASSES:
        return None
    return UserClass(model_class, _spec_of(model_class))


def _spec_of(model_class: type) -> str:
    """`module:Class`, by which `--model_class` finds a class; of one in the script that runs, the script's name.

    Raises:
      ConfigError: it is defined where nothing could import it.
    """
    module = model_class.__module__
    if module == "__main__":
        module = script_module()
    if module is None:
        raise ConfigError(
            f"model: its class {model_class.__name__} is defined in a notebook or at a prompt and cannot be imported "
            "to load the saved model; put it into a module, a .py file next to the notebook, and import it"
        )
    spec = f"{module}:{model_class.__qualname__}"
    if "." in model_class.__qualname__:
        raise ConfigError(
            f"model: its class {spec} is defined inside a function or class and cannot be imported to load the saved "
            "model; define it at module level"
        )
    return spec


def _data_flags(data: Any, flags: Mapping[str, Any]) -> tuple[dict, dict[str, list[dict]] | None]:
    """`(flags, rows in memory by split)`."""
    if data is None:
        return {}, None
    if isinstance(data, (str, os.PathLike)):
        return _flags_of_named_data(os.fspath(data), flags), None
    splits = _splits_by_role(data) if isinstance(data, Mapping) else {"train": data}
    roles_in_files = [role for role, split in splits.items() if isinstance(split, (str, os.PathLike))]
    if roles_in_files and len(roles_in_files) < len(splits):
        raise ConfigError(f"data: {', '.join(roles_in_files)} in files, other splits in memory; give all in one way")
    if roles_in_files:
        files = {f"{role}_file": os.fspath(path) for role, path in splits.items()}
        data_format = flags.get("data_format") or _format_of_file(next(iter(files.values())))
        return {"data_format": data_format, **files}, None
    task_flags = _task_flags(flags)
    column = task_flags.get("target_column") or "output"
    first_names = _label_names(next(iter(splits.values())), column)
    labels = _chosen_labels(task_flags) or first_names or None
    rows = {}
    for role, split in splits.items():
        words = words_of_ids(class_names(_feature(split, column)), labels)
        rows[role] = [with_words_of_ids(row, column, words) for row in as_rows(split, f"data[{role!r}]")]
    flags_of_rows = {"data_format": "jsonl"}
    if first_names and task_flags.get("labels") is None:
        flags_of_rows["labels"] = first_names
    return flags_of_rows, rows


def _task_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that say how rows become a task: those of files, or without any those of a model that is only scored.

    >>> _task_flags({"config": '{"target_column": "label"}', "labels": ["neg", "pos"], "seed": 1})
    {'target_column': 'label', 'labels': ['neg', 'pos']}
    """
    all_flags = _flags_with_those_of_files(flags)
    task_flags = {name: all_flags[name] for name in FLAGS_OF_OWN_TASKS if all_flags.get(name) is not None}
    names_task = bool(task_flags.keys() - {"metrics"})
    if names_task or str(all_flags.get("eval_only")) != "True":
        return task_flags
    task = own_task_of(all_flags.get("model_name_or_path"), all_flags.get("dataset_name"))
    if task is None:
        return {}
    return {"target_column": task.entry["label_column_name"], "labels": task.label_words or "none"}


def _flags_with_those_of_files(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags, and those of the files that `config` names, of which a later one wins."""
    sources = flags.get("config") or []
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    all_flags: dict[str, Any] = {}
    for source in sources:
        values_of_file = read_config(os.fspath(source), flags_of(SCRIPT))
        all_flags |= {name: value for name, (_, value) in values_of_file.items()}
    return {**all_flags, **flags}


def _splits_by_role(data: Mapping[str, Any]) -> dict[str, Any]:
    """`{train, validation or test: its rows or file}`, from the names that splits commonly have."""
    splits = {_role_of_split(name): split for name, split in data.items()}
    if len(splits) < len(data):
        raise ConfigError(f"data: two of {', '.join(map(str, data))} are names of one split")
    return splits


def _role_of_split(name: str) -> str:
    for role, names in SPLIT_NAMES.items():
        if name in names:
            return role
    raise ConfigError(f"data: no split {name!r}; {suggestion(name, SPLIT_NAMES)}")


def _chosen_labels(flags: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The label words that the flags name, as a text with commas or as a list."""
    labels = flags.get("labels")
    if isinstance(labels, (bool, int, float)):  # a single word of a YAML file
        labels = str(labels)
    return comma_separated(labels, "labels") if labels is None or isinstance(labels, str) else tuple(labels)


def _label_names(split, column: str) -> list[str]:
    """The names of a `datasets.ClassLabel` column; an empty list for any other, lists of class labels too."""
    return list(getattr(_feature(split, column), "names", None) or [])


def _feature(split, column: str):
    """What a `datasets.Dataset` says of a column; None for other rows and columns."""
    features = getattr(split, "features", None)
    return value_at(features, column) if isinstance(features, Mapping) else None  # a table may have a column `features`


def _flags_of_named_data(name: str, flags: Mapping[str, Any]) -> dict[str, str]:
    """The flags of a file or folder of rows, or of `benchmark/task`."""
    path = Path(name)
    if path.is_dir():
        return {"data_format": flags.get("data_format") or _format_of_folder(path), "train_dir": name}
    if path.is_file() or any(mark in name for mark in "*?["):
        return {"data_format": flags.get("data_format") or _format_of_file(name), "train_file": name}
    benchmark, slash, task = name.partition("/")
    names_file = unpacked_suffix(name) in FORMATS_BY_SUFFIX
    if not slash or names_file or "/" in task:
        raise ConfigError(f"data {name!r}: no such file or folder, and no benchmark/task such as 'glue/rte'")
    return {"benchmark": benchmark, "dataset_name": task}


def _format_of_file(name: str) -> str:
    suffix = unpacked_suffix(name)
    if suffix not in FORMATS_BY_SUFFIX:
        raise ConfigError(f"data {name!r}: give data_format=..., its name does not show it")
    return FORMATS_BY_SUFFIX[suffix]


def _format_of_folder(folder: Path) -> str:
    """The one format of the files in a folder and in those of its splits, as rows are looked for."""
    split_folders = [path for names in SPLIT_NAMES.values() for path in folders_of_split(folder, names)]
    paths = [path for parent in (folder, *split_folders) for path in parent.glob("*") if path.is_file()]
    formats = {FORMATS_BY_SUFFIX.get(unpacked_suffix(path.name)) for path in paths}
    formats.discard(None)
    if len(formats) != 1:
        kinds = f"files of {' and '.join(sorted(formats))}" if formats else "no file of rows"
        raise ConfigError(f"data {str(folder)!r} has {kinds}; give data_format=...")
    return formats.pop()


def prepare_model(model, tokenizer, tasks=(), family_name: str | None = None):
    """Prepares a model that is in memory: float32, the tokenizer's special tokens, weights that share no memory.

    The configuration names a class of the user's own, which is then needed to load what is saved, and says what an
    encoder's head predicts.

    Args:
      tasks: what an encoder's head is for, if that is clear.
      family_name: of a class of the user's own, if it is not what its configuration says.

    Raises:
      ConfigError: it is no model that can be trained and loaded again, it has no output layer or no head for the tasks,
        or fewer embeddings than pieces.
    """
    _check_object(model)
    if tokenizer is None:
        raise ConfigError("model: an object comes without a tokenizer; give tokenizer=..., an object or a name")
    ensure_padding(tokenizer)
    if any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters()):
        logger.warning("the model's weights become float32; bf16=True still computes in bfloat16")
        model.float()
    check_finite(model, f"model: {type(model).__name__} in memory")
    separate_memory(model)
    own_class = own_class_of(model)
    if own_class is not None:
        own_class.mark(model.config, family_name)
    family = recognize_family(model)
    if family.has_head:
        _prepare_head(model, own_class, tasks)
    elif own_class is None:
        _check_writes_text(model, family)
        family.check_reads_text(model.config)
    check_vocabulary(model, len(tokenizer))
    reset_ids_of_class(model)
    complete_special_tokens(model, tokenizer, family.special_tokens)
    check_generation(model, f"model: the generation_config of this {type(inner_model(model)).__name__}")
    if model.config.model_type in T5_TYPES and not (family.takes_encoder_out or is_adapted(model)):
        accept_packed_batches(model)
    return model


def _check_object(model) -> None:
    """Refuses what is no model, and a model that could not be trained rightly, or not be loaded again.

    Raises:
      ConfigError: PEFT itself wrapped it, it has the layers of an adapter, matrices of few bits, or an attention that a
        T5 computes wrongly.
    """
    if is_adapted(model) and not hasattr(model, "t5suite_base"):
        raise ConfigError(
            "model: PEFT has wrapped it already, and nothing says what its base model is; give that model, loaded "
            "again, and adapter='lora' and the like"
        )
    if not (isinstance(model, PreTrainedModel) or is_adapted(model)):
        name = type(model).__name__
        way_out = ""
        if name in WRAPPERS_OF_TORCH:
            way_out = f"; {WRAPPERS_OF_TORCH[name]}"
        elif isinstance(model, torch.nn.Module):
            way_out = "; put it into a transformers.PreTrainedModel (docs/python.md, 'A model of your own')"
        raise ConfigError(f"model: {name} is neither a model nor the name of one{way_out}")
    if not is_adapted(model) and has_adapter_layers(model):
        raise ConfigError(
            f"model: this {type(model).__name__} has the layers of an adapter, which an earlier FineTuner or PEFT has "
            "put into it; load the model again, or give the adapted model itself (the earlier tuner's `model`)"
        )
    if is_quantized(model) and not is_adapted(model):
        raise ConfigError(
            f"model: this {type(model).__name__} was quantized to 8 or 4 bits, and an adapter trained on it could not "
            "be loaded again; give the checkpoint's name and load_in_4bit=True or load_in_8bit=True"
        )
    attention = attention_of(model.config)
    check_attention(model.config, attention, f"model: its attn_implementation is {attention}")


def _prepare_head(model, own_class: UserClass | None, tasks) -> None:
    """Fits a model's head to the tasks; that a model has none is found when it is asked how it reads rows."""
    class_names = [type(inner_model(model)).__name__]
    if own_class is not None or have_head(class_names):
        fit_head(model, tasks)


def _check_writes_text(model, family: Family) -> None:
    """Refuses the classes of a type that have no output layer: bare stacks, and heads over a decoder."""
    if model.get_output_embeddings() is not None:
        return
    encoder_by_name = ""
    if ENCODER.has_model_for(model.config):
        encoder_by_name = "; for its encoder with a head, give the checkpoint's name and model_family='encoder'"
    raise ConfigError(
        f"model: {type(inner_model(model)).__name__} has no output layer, and so writes no text; give a "
        f"{family.model_class(model.config).__name__}{encoder_by_name}"
    )
