"""Saves and loads the state of an optimizer, schedule, scaler or random number generator, bit for bit.

    >>> save_state("checkpoint-400", "optimizer", optimizer.state_dict())           # optimizer.pt
    >>> restore_optimizer(optimizer, load_state("checkpoint-400", "optimizer"))

`torch.save` writes the files, under the names of Hugging Face's trainer. They are read with `weights_only=True`, so
nothing in them can run code. `save_state` refuses a state that could not be read that way.

FSDP2 shards weights and moments. `whole_state` gathers them on rank 0 and `state_in_pieces` shards them again, so an
FSDP2 checkpoint has the same files as a single process's, and any number of ranks can resume from it. Rank 0 needs
main memory for the whole state: 12 bytes per parameter for Adam.
"""

import pickle
import random
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import recursively_apply
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.serialization import get_unsafe_globals_in_checkpoint

from t5suite.base.errors import CheckpointError, ConfigError

# What `torch.load` raises for a file that is incomplete or contains more than tensors.
UNREADABLE = (
    OSError, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, EOFError,
)  # fmt: skip


def save_state(folder, name: str, state) -> None:
    """Writes a nested state of tensors and plain data as `<name>.pt`.

    Raises:
      ConfigError: it contains other objects, which could not be read back without running code.
      OSError: the write failed.
    """
    path = Path(folder) / f"{name}.pt"
    state = recursively_apply(_readable_by_every_torch, state)
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch's zip writer hides it
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from None
    unsafe = get_unsafe_globals_in_checkpoint(path)
    if unsafe:
        raise ConfigError(f"{name}: objects of {', '.join(unsafe)} cannot be kept in a checkpoint; keep plain numbers")


def _readable_by_every_torch(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a device's own subclass as one of the CPU."""
    return tensor if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor.detach().cpu()


def load_state(folder, name: str):
    """Loads a state that `save_state` or Hugging Face's trainer wrote, with its tensors on the CPU.

    Raises:
      CheckpointError: the file is missing or incomplete, or contains Python objects besides tensors.
    """
    path = Path(folder) / f"{name}.pt"
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except UNREADABLE:
        # Hide torch's message, which advises disabling `weights_only`.
        raise CheckpointError(
            f"{path} is truncated, or contains Python objects besides tensors, which could run code when loaded; "
            "start with a new optimizer: --reset optimizer,schedule"
        ) from None


def restore_optimizer(optimizer, state: dict) -> None:
    """Like `optimizer.load_state_dict`, but bit for bit.

    torch casts float32 moments to the dtype of a bfloat16 parameter (Adafactor keeps float32 ones).
    """
    optimizer.load_state_dict(state)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, saved in state["state"].get(number, {}).items():
            present = optimizer.state[parameter].get(key)
            if torch.is_tensor(saved) and torch.is_tensor(present) and present.dtype != saved.dtype:
                optimizer.state[parameter][key] = saved.to(present.device)


def random_state() -> dict:
    """The state of this process's random number generators (python, numpy, torch on CPU and GPUs), as JSON values.

    >>> state = random_state(); first = torch.rand(1); restore_random_state(state); bool(torch.rand(1) == first)
    True
    """
    name, keys, *position = np.random.get_state()
    state = {
        "python": list(random.getstate()),
        "numpy": [name, keys.tolist(), *position],
        "torch": torch.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        state["cuda"] = [device_state.tolist() for device_state in torch.cuda.get_rng_state_all()]
        state["cuda_device"] = torch.cuda.current_device()
    return state


def restore_random_state(state: dict) -> None:
    """Restores what `random_state` returned.

    The state of the GPU that the process used is restored on the GPU that it uses now, even if the index differs.

    Raises:
      CheckpointError: the state is invalid.
    """
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, *position = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *position))
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
        if torch.cuda.is_available() and state.get("cuda"):
            devices = [torch.tensor(numbers, dtype=torch.uint8) for numbers in state["cuda"]]
            if len(devices) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(devices)
            torch.cuda.set_rng_state(devices[state["cuda_device"]])
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"the states of the random number generators cannot be restored: {error}") from None


def whole_state(state, keep: bool):
    """A nested state with every sharded tensor gathered in main memory, or replaced by None if not `keep`.

    >>> state = whole_state(optimizer.state_dict(), keep=rank == 0)     # every rank; a plain state on rank 0
    >>> optimizer.load_state_dict(state_in_pieces(state, optimizer))    # every rank gets its pieces

    Every rank must call it with a state of the same structure.
    """
    if isinstance(state, DTensor):
        tensor = state.full_tensor()
        return tensor.cpu() if keep else None
    if isinstance(state, dict):
        return {key: whole_state(value, keep) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole_state(value, keep) for value in state)
    return state


def state_in_pieces(state: dict, optimizer) -> dict:
    """An optimizer's whole state, with tensors of a parameter's shape sharded like that parameter."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value, parameter):
        if not (isinstance(parameter, DTensor) and torch.is_tensor(value) and value.shape == parameter.shape):
            return value
        # Without a source rank nothing is sent: each rank has the whole tensor and takes its shard.
        piece = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return piece.to(parameter.to_local().device)

    moments = {
        number: {key: cut(value, parameter) for key, value in state["state"][number].items()}
        for number, parameter in zip(numbers, parameters, strict=True)
        if number in state["state"]
    }
    return {**state, "state": moments}
