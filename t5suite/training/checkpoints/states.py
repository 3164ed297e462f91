"""The state of an optimizer, schedule or scaler as a safetensors file and a JSON file, and back, bit by bit.

    >>> records = save_state("checkpoint-400", "optimizer", optimizer.state_dict())
    >>> settle(records)                                     # in a commit, `commit_checkpoint` does so
    >>> sorted(records)
    ['optimizer.json', 'optimizer.safetensors']
    >>> restore_optimizer(optimizer, load_state("checkpoint-400", "optimizer"))

Nothing in it can run code when it is read, as a pickle can. Tensors go into the one file under the path that leads to
them (`state.0.exp_avg`); the other holds everything else and says where each tensor belongs. What JSON lacks is
written as an object with one key:

    {"$dict": [[0, ...], ...]}      keys that are not all text     {"$tuple": [0.9, 0.999]}    {"$set": [...]}
    {"$tensor": "state.0.exp_avg"}                                 {"$float": "7ff0000000000000"}    nan, inf: the bits
    {"$numpy": ["<f8", "..."]}      a scalar: dtype, base64        {"$bytes": "base64"}
"""

import base64
import json
import math
import random
import re
import struct
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.training.checkpoints.tensors import Pending, Record, write_json, write_tensors

MOST_NESTED = 100


def save_state(folder, name: str, state) -> dict[str, Record | Pending]:
    """Writes a nested state as `<name>.json` and, if it has tensors, `<name>.safetensors`; returns their records.

    The tensors' is pending (`tensors.settle`), and they must not change until it is settled.

    Raises:
      ConfigError: a value of a kind that cannot be kept (an object, a function); the message says where it stands.
      OSError: see `tensors.hashed_file`.
    """
    folder, tensors = Path(folder), {}
    plain = encode(state, tensors, name)
    records = {}
    if tensors:
        records[f"{name}.safetensors"] = write_tensors(folder / f"{name}.safetensors", tensors, wait=False)
    records[f"{name}.json"] = write_json(folder / f"{name}.json", plain)
    return records


def load_state(folder, name: str, device="cpu"):
    """The state that `save_state` wrote, its tensors on `device`.

    Raises:
      CheckpointError: a file is missing or does not say what such files say.
    """
    folder = Path(folder)
    try:
        plain = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"), parse_constant=_refuse)
        tensors = _load_tensors(folder / f"{name}.safetensors", device)
        return decode(plain, tensors)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, SafetensorError, struct.error) as error:
        raise CheckpointError(f"{folder}: the state {name!r} cannot be read ({error})") from None


def restore_optimizer(optimizer, state: dict) -> None:
    """`optimizer.load_state_dict`, but bit by bit.

    torch's own way rounds float32 moments to the type of a bfloat16 parameter (Adafactor keeps float32 ones).
    """
    optimizer.load_state_dict(state)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, saved in state["state"].get(number, {}).items():
            present = optimizer.state[parameter].get(key)
            if torch.is_tensor(saved) and torch.is_tensor(present) and present.dtype != saved.dtype:
                optimizer.state[parameter][key] = saved.to(present.device)


def encode(value, tensors: dict[str, torch.Tensor], path: str = "", depth: int = 0):
    """`value` as JSON values; its tensors go into `tensors`, by path.

    >>> encode({0: (1.0, float("inf"))}, {})
    {'$dict': [[0, {'$tuple': [1.0, {'$float': '7ff0000000000000'}]}]]}
    """
    if depth > MOST_NESTED:
        raise ConfigError(f"{path}: nested more than {MOST_NESTED} levels deep")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, torch.Tensor):
        return {"$tensor": _keep(value, tensors, path)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, (np.number, np.bool_)):
        return {"$numpy": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if kind in (list, tuple, set):
        ordered = sorted(value, key=repr) if kind is set else value
        items = [encode(item, tensors, f"{path}.{place}", depth + 1) for place, item in enumerate(ordered)]
        return items if kind is list else {"$tuple" if kind is tuple else "$set": items}
    if kind in (dict, OrderedDict, defaultdict):
        return _encode_dict(value, tensors, path, depth)
    raise ConfigError(f"{path}: a {kind.__module__}.{kind.__qualname__} cannot be kept in a checkpoint")


def _encode_dict(value: dict, tensors, path: str, depth: int):
    items = [(key, encode(item, tensors, f"{path}.{key}", depth + 1)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key in value):
        return dict(items)
    return {"$dict": [[encode(key, tensors, f"{path}.{key}", depth + 1), item] for key, item in items]}


def _keep(tensor: torch.Tensor, tensors: dict, path: str) -> str:
    name, number = path.partition(".")[2] or path, 1
    while name in tensors:  # {"a.b": ...} beside {"a": {"b": ...}}
        number += 1
        name = f"{path.partition('.')[2]}#{number}"
    tensors[name] = tensor
    return name


def decode(value, tensors: dict[str, torch.Tensor]):
    """What `encode` was given.

    Raises:
      ValueError, KeyError or TypeError: it is nothing that `encode` returns.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items()), (None, None))
    if len(value) != 1 or not tag.startswith("$"):
        return {key: decode(item, tensors) for key, item in value.items()}
    if tag not in DECODERS:
        raise ValueError(f"unknown kind {tag!r}")
    return DECODERS[tag](content, tensors)


def _decode_number(content, tensors):
    dtype, text = content
    if not re.fullmatch(r"[<>|][biufc][0-9]+", dtype):
        raise ValueError(f"{dtype!r} is no type of a number")
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)[0]


DECODERS = {
    "$dict": lambda content, tensors: {decode(key, tensors): decode(item, tensors) for key, item in content},
    "$tuple": lambda content, tensors: tuple(decode(item, tensors) for item in content),
    "$set": lambda content, tensors: {decode(item, tensors) for item in content},
    "$tensor": lambda content, tensors: tensors[content],
    "$float": lambda content, tensors: struct.unpack(">d", bytes.fromhex(content))[0],
    "$bytes": lambda content, tensors: base64.b64decode(content, validate=True),
    "$numpy": _decode_number,
}


def _load_tensors(path: Path, device) -> dict[str, torch.Tensor]:
    """Tensors in memory of their own: those of safetensors lie in the mapped file, aligned to 8 bytes only."""
    if not path.exists():
        return {}
    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name).clone() for name in list(file.keys())}


def _refuse(constant: str):
    raise ValueError(f"{constant} is no number of JSON")


def random_state() -> dict:
    """Where the generators of this process stand (python, numpy, torch on CPU and GPUs), as JSON values.

    >>> state = random_state(); first = torch.rand(1); restore_random_state(state); bool(torch.rand(1) == first)
    True
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        "python": [version, _text(np.array(words, np.uint32)), gauss],
        "numpy": [name, _text(keys), position, has_gauss, cached],
        "torch": _text(torch.get_rng_state().numpy()),
    }
    if torch.cuda.is_available():
        state["cuda"] = [_text(device_state.numpy()) for device_state in torch.cuda.get_rng_state_all()]
        state["cuda_device"] = torch.cuda.current_device()
    return state


def restore_random_state(state: dict) -> None:
    """Sets the generators to where `random_state` found them.

    The state of the GPU that the process used goes to the one that it uses now, even if that has another number.

    Raises:
      CheckpointError: it is no such state.
    """
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(_numbers(words, np.uint32).tolist()), gauss))
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, _numbers(keys, np.uint32), *rest))
        torch.set_rng_state(torch.from_numpy(_numbers(state["torch"], np.uint8)))
        if torch.cuda.is_available() and state.get("cuda"):
            _restore_cuda(state)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"the states of the random number generators cannot be restored: {error}") from None


def _restore_cuda(state: dict) -> None:
    devices = [torch.from_numpy(_numbers(text, np.uint8)) for text in state["cuda"]]
    if len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(devices)
    torch.cuda.set_rng_state(devices[state["cuda_device"]])


def _text(numbers: np.ndarray) -> str:
    """An array's bytes, the lowest of each number first."""
    return base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()


def _numbers(text: str, dtype) -> np.ndarray:
    content = base64.b64decode(text, validate=True)
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(dtype)
