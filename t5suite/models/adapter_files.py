"""The files of an adapter: its weights, its settings and a reference to its base model, without the base weights.

runs/x/adapter_config.json          PEFT's settings and the base model's name: what PEFT itself loads
runs/x/adapter_model.safetensors    the adapter's weights
runs/x/adapter_base.json            the base model's name and fingerprint
runs/base/                          the base model, if it cannot be loaded by name (random weights, an added vocabulary)
"""

import contextlib
import copy
import json
import logging
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.base.yaml_files import read_json_text
from t5suite.models.adapters import NAME, fingerprint, inner_model, kind_of, peft_library
from t5suite.models.weight_values import non_finite, refuse_integers, refuse_non_finite

logger = logging.getLogger(__name__)

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_FILE = "adapter_base.json"
BASE_FOLDER = "base"


def is_adapter(folder) -> bool:
    """Whether a folder holds an adapter and not a whole model."""
    return folder is not None and (Path(folder) / ADAPTER_CONFIG).is_file()


def save_adapter(model, folder, state_dict: dict | None = None, run_folder=None) -> None:
    """Writes the adapter alone.

    Args:
      state_dict: the model's, gathered from its shards.
      run_folder: a base model that cannot be loaded by name is saved once below it.
    """
    from peft.utils import get_peft_model_state_dict

    folder, base = Path(folder), model.t5suite_base
    folder.mkdir(parents=True, exist_ok=True)
    if base.name is None:
        base.name = str(_save_base(model, run_folder or folder))
    weights = get_peft_model_state_dict(model, state_dict=state_dict, adapter_name=NAME, save_embedding_layers=False)
    _write(weights, folder / ADAPTER_WEIGHTS)
    config = copy.deepcopy(model.peft_config[NAME])
    config.base_model_name_or_path, config.revision, config.inference_mode = base.name, base.revision, True
    for key, value in vars(config).items():
        if isinstance(value, set):
            setattr(config, key, sorted(value))
    config.save_pretrained(str(folder))
    said = {"format": 1, "adapter": kind_of(config), "base": base.name, "fingerprint": base.fingerprint}
    (folder / BASE_FILE).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def restore_adapter(model, folder) -> None:
    """Loads a saved adapter's weights into the model's adapter.

    Raises:
      ConfigError: they belong to a different adapter, or the file is truncated.
      DataError: weights that are NaN, infinite or integers.
    """
    from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict

    folder = Path(folder)
    weights = _read(folder / ADAPTER_WEIGHTS)
    refuse_non_finite(non_finite(weights.items()), str(folder / ADAPTER_WEIGHTS))
    integers = [f"{name} ({value.dtype})" for name, value in weights.items() if not value.is_floating_point()]
    refuse_integers(integers, str(folder / ADAPTER_WEIGHTS))
    own = get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    if differences := _differences(own, weights):
        raise ConfigError(
            f"{folder}: its adapter does not match the model's: {'; '.join(differences)}; name the base model that it "
            "was trained over by --adapter_base, or use a complete copy"
        )
    set_peft_model_state_dict(model, weights, adapter_name=NAME)


def _differences(own: dict, stored: dict) -> list[str]:
    """What stored tensors lack, have too much or have in another shape: `["missing (2): q.lora_A, q.lora_B"]`."""
    reshaped = [
        f"{name} ({tuple(stored[name].shape)}, not {tuple(tensor.shape)})"
        for name, tensor in own.items()
        if name in stored and stored[name].shape != tensor.shape
    ]
    names = {"missing": own.keys() - stored.keys(), "unknown": stored.keys() - own.keys(), "reshaped": reshaped}
    return [f"{kind} ({len(entries)}): {listed(sorted(entries))}" for kind, entries in names.items() if entries]


def find_base(folder: Path, name: str | None) -> str:
    """Where an adapter's base model is: at its stored name, else next to the adapter, if both have been moved.

    Raises:
      ConfigError: it is missing; the message names the flag that gives another path.
    """
    if name and Path(name).is_dir():
        return name
    for place in (folder, folder.parent, folder.parent.parent):
        if name and Path(name).name == BASE_FOLDER and (place / BASE_FOLDER / "config.json").is_file():
            return str(place / BASE_FOLDER)
    if name and not name.startswith(("/", ".")) and name.count("/") <= 1:
        return name
    raise ConfigError(f"{folder}: the base model of this adapter, {name!r}, is not there; name it with --adapter_base")


def check_is_whole(folder: Path, base: str) -> None:
    """Refuses an adapter's own folder, or another adapter's, as its base model.

    Raises:
      ConfigError: names the flag that gives another path.
    """
    if is_adapter(base):
        place = "its own folder" if os.path.samefile(folder, base) else f"{base}, which holds an adapter, too"
        raise ConfigError(f"{folder}: the base model of this adapter is {place}; name a whole model by --adapter_base")


def check_rank(config, folder: Path) -> None:
    """Refuses sizes of an adapter for which its weights are too few, before PEFT makes memory for them.

    Raises:
      ConfigError: names the setting of `adapter_config.json`.
    """
    weights = _read(folder / ADAPTER_WEIGHTS)
    longest = max((size for tensor in weights.values() for size in tensor.shape), default=0)
    for key in ("r", "num_virtual_tokens"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > longest:
            raise ConfigError(
                f"{folder / ADAPTER_CONFIG}: {key} is {value}, but no tensor of {ADAPTER_WEIGHTS} is longer than "
                f"{longest}; use the {ADAPTER_CONFIG} that belongs to it"
            )


def check_base(folder: Path, name: str, model) -> None:
    path = folder / BASE_FILE
    if not path.is_file():
        return
    record = read_json_text(path.read_bytes(), path)
    if not isinstance(record, dict):
        raise ConfigError(f"{path}: holds a {type(record).__name__}, not a table")
    trained_over = record.get("fingerprint")
    fingerprint_here = fingerprint(model)
    if trained_over and fingerprint_here and trained_over != fingerprint_here:
        raise ConfigError(
            f"{folder}: {name} is not the model that this adapter was trained over (its weights differ); give that "
            "one with --adapter_base"
        )


def _save_base(model, folder) -> Path:
    """Saves the base model without the adapter to `folder/base`, atomically (complete or not at all)."""
    place, new = Path(folder) / BASE_FOLDER, Path(folder) / f".saving-{BASE_FOLDER}"
    if (place / "config.json").is_file():
        return place.absolute()
    plain, parameters = inner_model(model), model.t5suite_base.parameters
    shutil.rmtree(new, ignore_errors=True)
    tied = getattr(plain, "all_tied_weights_keys", None) or {}
    weights = {name: tensor.detach() for name, tensor in parameters.items() if tied.get(name) not in parameters}
    plain.save_pretrained(new, state_dict=weights)
    os.replace(new, place)
    logger.info("the base model cannot be loaded by name: it is saved in %s", place)
    return place.absolute()


def read_config(folder: Path):
    peft = peft_library()
    try:
        return peft.PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder / ADAPTER_CONFIG}: not the settings of an adapter ({error})") from None


def _write(weights: dict, path: Path) -> None:
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def _read(path: Path) -> dict:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; an adapter's weights are read from safetensors only")
    with contextlib.suppress(SafetensorError, OSError):
        return load_file(str(path))
    raise ConfigError(f"{path}: not a weights file, or a truncated one")
