"""DeepSpeed's shards -> whole weights in safetensors, without running what a pickle may hold.

    >>> whole_weights("runs/x/checkpoint-400", "whole")
    >>> sorted(os.listdir("whole"))
    ['model-00001-of-00001.safetensors', 'model.safetensors.index.json']

DeepSpeed's own converter (`zero_to_fp32`, ZeRO 1 to 3) puts them together, but reads its files with
`weights_only=False`, so that a prepared file runs code. Here torch is told to refuse everything but tensors, plain
containers and the few classes of `PLAIN_CLASSES`, whose objects hold numbers and no more.
"""

import contextlib
import math
import os
import pickle
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.models.configs import first_line
from t5suite.training.checkpoints import write_json, write_tensors

# torch 2.6 and later: overrules what the caller of `torch.load` asks for.
WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
PIECE = 5 << 30  # bytes of one file


def shards_in(folder) -> Path | None:
    """The folder of DeepSpeed's shards below a checkpoint: the newest `global_stepN`.

    >>> shards_in("runs/x/checkpoint-400")
    PosixPath('runs/x/checkpoint-400/global_step400')
    """
    steps = [path for path in Path(folder).glob("global_step*") if path.name.removeprefix("global_step").isdecimal()]
    return max(steps, key=lambda path: int(path.name.removeprefix("global_step")), default=None)


def whole_weights(checkpoint, folder) -> None:
    """Writes the float32 master weights of a ZeRO checkpoint as safetensors with an index, tied ones once.

    Raises:
      ConfigError: there are no shards, or DeepSpeed is not installed.
      CheckpointError: a shard is missing or torn, or holds other objects than tensors.
    """
    shards = shards_in(checkpoint)
    if shards is None:
        raise ConfigError(f"{checkpoint} holds no shards of DeepSpeed's (global_stepN)")
    converter = _converter()
    try:
        # The converter talks on standard output, which is kept for data.
        with nothing_but_tensors(), contextlib.redirect_stdout(sys.stderr):
            weights = converter.get_fp32_state_dict_from_zero_checkpoint(
                str(shards.parent), tag=shards.name, lazy_mode=True
            )
            write_in_pieces(weights, Path(folder))
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{shards}: a shard is torn, or holds Python objects besides tensors, and reading those could run code "
            f"({first_line(error)})"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{shards}: the shards cannot be put together ({first_line(error)})") from None


def write_in_pieces(weights: dict, folder: Path, size: int = PIECE) -> None:
    """Writes weights that are put together one by one, each tensor under the first of its names.

    DeepSpeed 0.19 names a tied weight by each of its names, which safetensors refuses to write.
    """
    unique = {id(weight): name for name, weight in reversed(weights.items())}
    pieces, filled = [[]], 0
    for name in unique.values():
        num_bytes = math.prod(weights[name].shape) * weights[name].dtype.itemsize
        if pieces[-1] and filled + num_bytes > size:
            pieces.append([])
            filled = 0
        pieces[-1].append(name)
        filled += num_bytes
    places = {}
    for number, names in enumerate(pieces, start=1):
        file = f"model-{number:05d}-of-{len(pieces):05d}.safetensors"
        write_tensors(folder / file, {name: weights[name].contiguous() for name in names}, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})


@contextlib.contextmanager
def nothing_but_tensors() -> Iterator[None]:
    """In this block `torch.load` makes no objects but tensors, containers and those of `PLAIN_CLASSES`."""
    before = os.environ.get(WEIGHTS_ONLY)
    os.environ[WEIGHTS_ONLY] = "1"
    try:
        with torch.serialization.safe_globals(_plain_classes()):
            yield
    finally:
        if before is None:
            del os.environ[WEIGHTS_ONLY]
        else:
            os.environ[WEIGHTS_ONLY] = before


def _converter():
    try:
        return import_module("deepspeed.utils.zero_to_fp32")
    except ImportError as error:
        raise ConfigError(f"shards of DeepSpeed's: {error}; pip install 't5suite[deepspeed]'") from None


def _plain_classes() -> list[type]:
    found = []
    for place, names in PLAIN_CLASSES.items():
        with contextlib.suppress(ImportError):
            module = import_module(place)
            found += [getattr(module, name) for name in names if hasattr(module, name)]
    return found


# What DeepSpeed 0.19 writes besides tensors: an enumeration, and records of numbers.
PLAIN_CLASSES = {
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.runtime.fp16.loss_scaler": ("LossScaler", "DynamicLossScaler"),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
}
