"""Files of weights -> `{name: tensor}`: safetensors, torch's, whole or in shards; nothing in them is ever run.

>>> weights = read_weights("checkpoint-pt-65536/pytorch_model.bin")
>>> weights["shared.weight"].shape
torch.Size([32128, 768])
"""

import json
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from t5suite.base.errors import ConfigError
from t5suite.models.configs import first_line

FLAG = "--init_checkpoint"
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
# Where trainers put the weights in a file that holds more: Lightning, nanoGPT and its kin, DeepSpeed.
WRAPPERS = ("model_state_dict", "state_dict", "model", "module")
# Other things that a run's folder keeps beside its weights.
OTHER_FILES = ("optimizer", "scheduler", "training_args", "random_states", "rng_state", "scaler", "sampler")


def read_weights(path, flag: str = FLAG) -> dict[str, torch.Tensor]:
    """Every tensor of a file or folder, on the CPU, under the name that it has there.

    Args:
      flag: what the user gave the path by, for errors.

    Raises:
      ConfigError: no such file, a folder without weights or with several files of them, a file that is torn, that
        holds other objects than tensors, or lacks what its index promises.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{flag} {path}: no such file or folder")
    file = _file_in(path, flag) if path.is_dir() else path
    return _read_shards(file, flag) if file.name.endswith(".index.json") else _read_file(file, flag)


def read_shapes(folder, flag: str = FLAG) -> dict[str, torch.Tensor]:
    """What `read_weights` would read, as meta tensors: from headers, where the files have any."""
    file = _file_in(Path(folder), flag)
    shapes = {}
    for part in {file.parent / name for name in shards_of(file, flag).values()} if file.suffix == ".json" else {file}:
        if part.suffix != ".safetensors":
            shapes |= {name: value.to("meta") for name, value in _read_file(part, flag).items()}
            continue
        with safe_open(part, framework="pt") as opened:
            for name in list(opened.keys()):
                shapes[name] = torch.empty(opened.get_slice(name).get_shape(), device="meta")
    return shapes


def _file_in(folder: Path, flag: str) -> Path:
    for name in FOLDER_FILES:
        if (folder / name).is_file():
            return folder / name
    suffixes = (".safetensors", *TORCH_SUFFIXES)
    files = [f for f in sorted(folder.iterdir()) if f.suffix in suffixes and not f.name.startswith(OTHER_FILES)]
    if len(files) == 1:
        return files[0]
    found = f"several files of weights ({', '.join(f.name for f in files)})" if files else "no file of weights"
    raise ConfigError(f"{flag} {folder}: {found}; give the file itself, or a folder with {FOLDER_FILES[0]}")


def _read_shards(index: Path, flag: str) -> dict[str, torch.Tensor]:
    places = shards_of(index, flag)
    weights = {}
    for name in sorted(set(places.values())):
        if not os.path.isfile(index.parent / name):
            raise ConfigError(f"{flag} {index}: its shard {name} is missing")
        weights.update(_read_file(index.parent / name, flag))
    if absent := sorted(places.keys() - weights.keys()):
        raise ConfigError(f"{flag} {index}: {len(absent)} weights are not in their shards ({', '.join(absent[:10])})")
    return weights


def shards_of(index: Path, flag: str = FLAG) -> dict[str, str]:
    """`{weight: file}` of an index of shards, files which lie beside it.

    >>> shards_of(Path("t5/model.safetensors.index.json"))["shared.weight"]
    'model-00001-of-00002.safetensors'

    Raises:
      ConfigError: it is no such index, or names a file that would lie elsewhere.
    """
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise TypeError("its weight_map is no table of names")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{flag} {index}: not an index of shards ({first_line(error)})") from None
    for name in sorted(set(places.values())):
        if name in ("", "..") or Path(name).name != name:
            raise ConfigError(f"{flag} {index}: shard {name!r:.200} does not lie beside its index")
    return places


def _read_file(file: Path, flag: str) -> dict[str, torch.Tensor]:
    if file.suffix != ".safetensors" and file.suffix not in TORCH_SUFFIXES:
        known = ", ".join((".safetensors", ".index.json", *TORCH_SUFFIXES))
        raise ConfigError(f"{flag} {file}: a file of weights ends in one of {known}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if _is_pickle(file):
            raise ConfigError(
                f"{flag} {file}: it holds Python objects besides tensors, and reading those could run code; "
                "save the weights alone: torch.save(model.state_dict(), file)"
            ) from None
        raise ConfigError(f"{flag} {file}: not a file of weights, or a torn one ({first_line(error)})") from None
    except (SafetensorError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{flag} {file}: not a file of weights, or a torn one ({first_line(error)})") from None
    return _unwrap(content, file, flag)


def _is_pickle(file: Path) -> bool:
    """Whether it is a file of torch's (a zip archive today) or a bare pickle, which begins with its protocol."""
    with open(file, "rb") as opened:
        return zipfile.is_zipfile(file) or opened.read(1) == b"\x80"


def _unwrap(content, file: Path, flag: str) -> dict[str, torch.Tensor]:
    """The innermost table of tensors: `{"model_state_dict": {...}, "step": 5}` -> `{...}`."""
    while isinstance(content, Mapping):
        inner = next((content[name] for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{flag} {file}: it holds no table of weights but {type(content).__name__}")
    others = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ConfigError(
            f"{flag} {file}: {len(others)} of its entries are no tensors ({', '.join(others[:10])}); "
            f"weights are looked for at the top or in {', '.join(WRAPPERS)}"
        )
    return dict(content)
