"""The files of an adapter: its weights, its settings and a reference to its base model, without the base weights.

runs/x/adapter_config.json          PEFT's settings and the base model's name, or `base`: what PEFT itself loads
runs/x/adapter_model.safetensors    the adapter's weights
runs/x/adapter_base.json            the base model's name and fingerprint
runs/base/                          the base model, if it cannot be loaded by name (random weights, an added vocabulary)
"""

import copy
import dataclasses
import json
import logging
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from t5suite.base.errors import ConfigError
from t5suite.base.files import put_folder_in_place
from t5suite.base.lookup import listed
from t5suite.base.model_files import table_or_empty
from t5suite.base.yaml_files import read_json_text
from t5suite.models.adapter_kinds import adapter_kind, peft_library
from t5suite.models.adapters import (
    ADAPTER_NAME,
    AdapterBase,
    fingerprint_of,
    inner_model,
    is_adapted,
    weights_fingerprint,
)
from t5suite.models.generation_settings import save_with_generation_settings
from t5suite.models.weight_files import FOLDER_FILES
from t5suite.models.weight_values import non_finite, refuse_integers, refuse_non_finite
from t5suite.runs.directory import BASE_FOLDER, base_kept_by_run

logger = logging.getLogger(__name__)

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_FILE = "adapter_base.json"


def is_adapter(folder) -> bool:
    """Whether a folder holds an adapter and not a whole model."""
    return folder is not None and (Path(folder) / ADAPTER_CONFIG).is_file()


def check_takes_model(folder: Path, model) -> None:
    """Refuses to save a model where files of another kind of model would stay, and be loaded in its place.

    Raises:
      ConfigError: a whole model over an adapter, an adapter over a whole model, or beside another one's base model; a
        model whose adapter has been merged, of which nothing would be saved.
    """
    if is_adapter(folder) and not is_adapted(model):
        raise ConfigError(f"save: {folder} holds an adapter, and this is a whole model; give another folder")
    if not is_adapted(model):
        return
    if not _adapter_tensors(model):
        raise ConfigError(
            "save: this model has no adapter any more, it was merged into the weights; save the model that merging "
            "returned: merge_adapter(model).save_pretrained(folder)"
        )
    if not is_adapter(folder) and any((folder / name).is_file() for name in FOLDER_FILES):
        raise ConfigError(f"save: {folder} holds a whole model, and this is an adapter; give another folder")
    base = model.t5suite_base
    base_folder = folder / BASE_FOLDER
    is_its_own_base = base.name is not None and Path(base.name).absolute() == base_folder.absolute()
    if not base_folder.exists() or is_its_own_base:
        return
    saves_base = base.name is None
    if not saves_base and not is_adapter(folder):
        return  # nothing here loads that folder, and nothing is written into it
    stored_fingerprint = table_or_empty(folder / BASE_FILE).get("fingerprint")
    if stored_fingerprint != base.fingerprint:
        raise ConfigError(f"save: {base_folder} is the base model of another adapter; give another folder")


def save_adapter(model, folder, state_dict: dict | None = None, run_folder=None) -> None:
    """Writes the adapter alone.

    Args:
      state_dict: the model's, gathered from its shards.
      run_folder: a base model that cannot be loaded by name is saved once below it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if model.t5suite_base.name is None:
        place = str(_save_base(model, run_folder or folder))
        # DeepSpeed has rounded the base, in place, if it trains in bfloat16 or float16.
        fingerprint = fingerprint_of(model.t5suite_base.sampled)
        model.t5suite_base = dataclasses.replace(model.t5suite_base, name=place, fingerprint=fingerprint)
    base = model.t5suite_base
    if Path(base.name).absolute() == Path(run_folder or folder, BASE_FOLDER).absolute():
        base = dataclasses.replace(base, name=BASE_FOLDER)  # wherever the run is moved or uploaded to
    _write_tensors(_adapter_tensors(model, state_dict), folder / ADAPTER_WEIGHTS)
    config = _config_for_saving(model.peft_config[ADAPTER_NAME], base)
    config.save_pretrained(str(folder))
    record = {"format": 1, "adapter": adapter_kind(config), "base": base.name, "fingerprint": base.fingerprint}
    (folder / BASE_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _adapter_tensors(model, state_dict: dict | None = None) -> dict:
    """The tensors of the adapter alone, by name; none once it is merged into the model's weights."""
    from peft.utils import get_peft_model_state_dict

    return get_peft_model_state_dict(
        model, state_dict=state_dict, adapter_name=ADAPTER_NAME, save_embedding_layers=False
    )


def _config_for_saving(config, base: AdapterBase):
    """A copy of PEFT's configuration for inference over a base model; its sets are sorted lists."""
    config = copy.deepcopy(config)
    config.base_model_name_or_path = base.name
    config.revision = base.revision
    config.inference_mode = True
    if getattr(config, "modules_to_save", None):
        # PEFT 0.21 adds the names of a head to those that are there already.
        config.modules_to_save = list(dict.fromkeys(config.modules_to_save))
    for key, value in vars(config).items():
        if isinstance(value, set):
            setattr(config, key, sorted(value))
    return config


def restore_adapter(model, folder) -> None:
    """Loads a saved adapter's weights into the model's adapter.

    Raises:
      ConfigError: they belong to a different adapter, or the file is truncated.
      DataError: weights that are NaN, infinite or integers.
    """
    from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict

    folder = Path(folder)
    file = folder / ADAPTER_WEIGHTS
    weights = _read_tensors(file)
    refuse_non_finite(non_finite(weights.items()), str(file))
    integers = [f"{name} ({value.dtype})" for name, value in weights.items() if not value.is_floating_point()]
    refuse_integers(integers, str(file))
    expected = get_peft_model_state_dict(model, adapter_name=ADAPTER_NAME, save_embedding_layers=False)
    differences = _differences(expected, weights)
    if differences:
        raise ConfigError(
            f"{folder}: its adapter does not match the model's: {'; '.join(differences)}; name the base model that it "
            "was trained over by --adapter_base, or use a complete copy"
        )
    set_peft_model_state_dict(model, weights, adapter_name=ADAPTER_NAME)


def _differences(expected: dict, stored: dict) -> list[str]:
    """What stored tensors lack, have too much or have in another shape: `["missing (2): q.lora_A, q.lora_B"]`."""
    shared_names = [name for name in expected if name in stored]
    reshaped = [
        f"{name} ({tuple(stored[name].shape)}, not {tuple(expected[name].shape)})"
        for name in shared_names
        if stored[name].shape != expected[name].shape
    ]
    names = {
        "missing": expected.keys() - stored.keys(),
        "unknown": stored.keys() - expected.keys(),
        "reshaped": reshaped,
    }
    return [f"{kind} ({len(entries)}): {listed(sorted(entries))}" for kind, entries in names.items() if entries]


def find_base(folder: Path, name: str | None) -> str:
    """Where an adapter's base model is: at its stored name, or kept by the adapter's run, which may have been moved.

    Raises:
      ConfigError: it is missing; the message names the flag that gives another path.
    """
    is_kept_by_run = name == BASE_FOLDER
    if name and not is_kept_by_run and Path(name).is_dir():
        return name
    if name and Path(name).name == BASE_FOLDER:
        place = base_kept_by_run(folder)
        if place is not None:
            return str(place)
    is_hub_name = name and not is_kept_by_run and not name.startswith(("/", ".")) and name.count("/") <= 1
    if is_hub_name:
        return name
    raise ConfigError(f"{folder}: the base model of this adapter, {name!r}, is not there; name it with --adapter_base")


def folder_of_base(folder: Path) -> Path | None:
    """The local folder that an adapter names as its base model's; None of a model of the hub, and of no adapter."""
    if not is_adapter(folder):
        return None
    name = read_adapter_config(folder).base_model_name_or_path
    if name == BASE_FOLDER:
        return Path(folder, BASE_FOLDER).absolute()
    if name is None or not Path(name).is_dir():
        return None
    return Path(name).absolute()


def check_base_is_whole(folder: Path, base: str) -> None:
    """Refuses an adapter's own folder, or another adapter's, as its base model.

    Raises:
      ConfigError: names the flag that gives another path.
    """
    if is_adapter(base):
        place = "its own folder" if os.path.samefile(folder, base) else f"{base}, which holds an adapter, too"
        raise ConfigError(f"{folder}: the base model of this adapter is {place}; name a whole model by --adapter_base")


def check_adapter_sizes(config, folder: Path) -> None:
    """Refuses sizes of an adapter for which its weights are too few, before PEFT makes memory for them.

    Raises:
      ConfigError: names the setting of `adapter_config.json`.
    """
    weights = _read_tensors(folder / ADAPTER_WEIGHTS)
    longest = max((size for tensor in weights.values() for size in tensor.shape), default=0)
    for key in ("r", "num_virtual_tokens"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > longest:
            raise ConfigError(
                f"{folder / ADAPTER_CONFIG}: {key} is {value}, but no tensor of {ADAPTER_WEIGHTS} is longer than "
                f"{longest}; use the {ADAPTER_CONFIG} that belongs to it"
            )


def check_base(folder: Path, name: str, model) -> None:
    """Refuses a base model with other weights than the one that the adapter was trained over.

    Args:
      name: what the base model was loaded from.

    Raises:
      ConfigError: names the flag that gives another path; or the adapter's record is damaged.
    """
    path = folder / BASE_FILE
    if not path.is_file():
        return
    record = read_json_text(path.read_bytes(), path)
    if not isinstance(record, dict):
        raise ConfigError(f"{path}: holds a {type(record).__name__}, not a table")
    recorded = record.get("fingerprint")
    loaded = weights_fingerprint(model)
    if recorded and loaded and recorded != loaded:
        raise ConfigError(
            f"{folder}: {name} is not the model that this adapter was trained over (its weights differ); give that "
            "one with --adapter_base"
        )


def _save_base(model, folder) -> Path:
    """Saves the base model without the adapter to `folder/base`, completely or not at all."""
    place = Path(folder) / BASE_FOLDER
    if (place / "config.json").is_file():
        return place.absolute()
    unfinished = Path(folder) / f".saving-{BASE_FOLDER}"
    shutil.rmtree(unfinished, ignore_errors=True)
    plain_model = inner_model(model)
    parameters = model.t5suite_base.parameters
    tied = getattr(plain_model, "all_tied_weights_keys", None) or {}
    weights = {name: tensor.detach() for name, tensor in parameters.items() if tied.get(name) not in parameters}
    save_with_generation_settings(plain_model, unfinished, state_dict=weights)
    put_folder_in_place(unfinished, place)
    logger.info("the base model cannot be loaded by name: it is saved in %s", place)
    return place.absolute()


def read_adapter_config(folder: Path):
    """PEFT's configuration of a saved adapter.

    Raises:
      ConfigError: the file is damaged, or of another kind.
    """
    peft = peft_library()
    try:
        return peft.PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / ADAPTER_CONFIG}: not the settings of an adapter ({error})") from None


def _write_tensors(weights: dict, path: Path) -> None:
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def _read_tensors(path: Path) -> dict:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; an adapter's weights are read from safetensors only")
    try:
        return load_file(str(path))
    except (SafetensorError, OSError):
        raise ConfigError(f"{path}: not a weights file, or a truncated one") from None
