"""Files of weights: which file of a folder holds them, their tensors, and their shapes alone.

    >>> read_weights("checkpoint-pt-65536/pytorch_model.bin")["shared.weight"].shape    # torch's, safetensors, shards
    torch.Size([32128, 768])
    >>> read_shapes("t5-base")["shared.weight"].device                                  # from headers, without values
    device(type='meta')

Tensors have the names that the file has for them. No code in the files is ever run.
"""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers.utils import cached_file

from t5suite.base.errors import ConfigError, DataError, LackOfMemoryError, first_line
from t5suite.base.lookup import listed
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.base.model_files import check_is_the_file
from t5suite.models.load_errors import short_message

INIT_CHECKPOINT = "--init_checkpoint"
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SAFETENSORS = ".safetensors"
INDEX_ENDING = ".index.json"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
# Keys of the weights in files that hold more: Lightning, nanoGPT and similar trainers, DeepSpeed.
WRAPPERS = ("model_state_dict", "state_dict", "model", "module")
# For messages about exported files, of which no model can be made.
USE_OF_EXPORTS = "from which t5suite predict and serve answer; for all else name the model that they were made of"
# Weights of other libraries.
FOREIGN_FORMATS = ("tf_model*.h5", "flax_model*", "*.gguf", "*.onnx", "*.ckpt.index")
# Files that a run's folder has next to its weights.
STATE_FILES = ("optimizer", "scheduler", "training_args", "random_states", "rng_state", "scaler", "sampler")
# safetensors' names of types that no weights are stored in, and of floating-point ones that differ from float32.
STORED_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64, "C64": torch.complex64,
    "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16,
}  # fmt: skip


def read_weights(path, flag: str = INIT_CHECKPOINT) -> dict[str, torch.Tensor]:
    """Every tensor of a file or folder, on the CPU, under the name that it has there.

    Args:
      flag: the flag that the user gave the path with, for errors.

    Raises:
      ConfigError: no such file, a folder without weights or with several files of them, a file that is truncated, that
        holds objects other than tensors, or lacks tensors of its index. LackOfMemoryError: too little memory for it.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{flag} {path}: no such file or folder")
    file = _weights_file_in(path, flag) if path.is_dir() else path
    if file.name.endswith(INDEX_ENDING):
        return _read_shards(file, flag)
    return _read_file(file, flag)


def _read_shards(index: Path, flag: str) -> dict[str, torch.Tensor]:
    """The tensors of all shards that an index names."""
    shard_by_tensor = read_shard_index(index, flag)
    weights = {}
    for shard in sorted(set(shard_by_tensor.values())):
        if not (index.parent / shard).is_file():
            raise ConfigError(f"{flag} {index}: its shard {shard} is missing")
        tensors = _read_file(index.parent / shard, flag)
        repeated = sorted(tensors.keys() & weights.keys())
        if repeated:
            raise ConfigError(f"{flag} {index}: {listed(repeated)} are in {shard} and in another shard")
        weights.update(tensors)
    absent = sorted(shard_by_tensor.keys() - weights.keys())
    if absent:
        raise ConfigError(f"{flag} {index}: {len(absent)} weights are not in their shards ({listed(absent)})")
    return weights


def _read_file(file: Path, flag: str) -> dict[str, torch.Tensor]:
    """The tensors of one file."""
    _check_suffix(file, flag)
    if file.suffix != SAFETENSORS:
        return _read_torch_file(file, flag, device="cpu")
    try:
        return load_file(file)
    except (SafetensorError, RuntimeError, EOFError, ValueError, MemoryError) as error:
        raise _reading_error(file, flag, error) from None


def _reading_error(file: Path, flag: str, error: Exception) -> ConfigError:
    """The error of a file whose tensors cannot be read: it does not fit into memory, or is damaged."""
    if is_out_of_memory(error):
        return LackOfMemoryError(
            f"{flag} {file}: the model does not fit into memory ({first_line(error)}); use a smaller model, or "
            "more memory"
        )
    return ConfigError(f"{flag} {file}: not a weights file, or a truncated one ({short_message(error)})")


def _check_suffix(file: Path, flag: str) -> None:
    if file.suffix != SAFETENSORS and file.suffix not in TORCH_SUFFIXES:
        suffixes = ", ".join((SAFETENSORS, INDEX_ENDING, *TORCH_SUFFIXES))
        raise ConfigError(f"{flag} {file}: a file of weights ends in one of {suffixes}")


def _read_torch_file(file: Path, flag: str, device: str) -> dict[str, torch.Tensor]:
    """The tensors of a file that `torch.save` wrote, also from within a trainer's table."""
    try:
        is_mapped = device == "meta" and zipfile.is_zipfile(file)  # then no values are read
        content = torch.load(file, map_location=device, weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as error:
        if _is_pickle(file):
            raise ConfigError(
                f"{flag} {file}: it holds Python objects besides tensors, and reading those could run code; "
                "save the weights alone: torch.save(model.state_dict(), file)"
            ) from None
        raise _reading_error(file, flag, error) from None
    except (RuntimeError, EOFError, ValueError, MemoryError, zipfile.BadZipFile) as error:
        raise _reading_error(file, flag, error) from None
    return _tensor_table(content, file, flag)


def _is_pickle(file: Path) -> bool:
    """Whether a file is torch's (a zip archive), or a bare pickle, which begins with its protocol."""
    if zipfile.is_zipfile(file):
        return True
    with open(file, "rb") as opened:
        return opened.read(1) == b"\x80"


def _tensor_table(content, file: Path, flag: str) -> dict[str, torch.Tensor]:
    """The table of tensors in what a file holds: `{"model_state_dict": {...}, "step": 5}` -> `{...}`."""
    while isinstance(content, Mapping):
        wrapper = next((name for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        if wrapper is None:
            break
        content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{flag} {file}: it holds {type(content).__name__} instead of a table of weights")
    non_tensors = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if non_tensors:
        raise ConfigError(
            f"{flag} {file}: {len(non_tensors)} of its entries are no tensors ({', '.join(non_tensors[:10])}); "
            f"weights are searched at the top level or in {', '.join(WRAPPERS)}"
        )
    return dict(content)


def read_shapes(folder, flag: str = INIT_CHECKPOINT) -> dict[str, torch.Tensor]:
    """What `read_weights` would read, as meta tensors: from headers, where the files have any."""
    file = _weights_file_in(Path(folder), flag)
    shards = {file}
    if file.suffix == ".json":
        shards = {file.parent / shard for shard in read_shard_index(file, flag).values()}
    shapes = {}
    shard_by_tensor = {}
    for shard in sorted(shards):
        shapes_of_shard = _read_shapes_of_file(shard, flag)
        repeated = sorted(shapes_of_shard.keys() & shard_by_tensor.keys())
        if repeated:
            name = repeated[0]
            raise ConfigError(f"{flag} {folder}: {name} is both in {shard_by_tensor[name]} and in {shard.name}")
        shard_by_tensor |= dict.fromkeys(shapes_of_shard, shard.name)
        shapes |= shapes_of_shard
    return shapes


def _read_shapes_of_file(file: Path, flag: str) -> dict[str, torch.Tensor]:
    if file.suffix != SAFETENSORS:
        _check_suffix(file, flag)
        return _read_torch_file(file, flag, device="meta")
    shapes = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in list(opened.keys()):
                header = opened.get_slice(name)
                dtype = STORED_TYPES.get(header.get_dtype(), torch.float32)
                shapes[name] = torch.empty(header.get_shape(), dtype=dtype, device="meta")
    except (SafetensorError, MemoryError) as error:
        raise _reading_error(file, flag, error) from None
    return shapes


def _weights_file_in(folder: Path, flag: str) -> Path:
    """The file that holds a folder's weights, or the index of its shards."""
    for name in FOLDER_FILES:
        if (folder / name).is_file():
            return folder / name
    suffixes = (SAFETENSORS, *TORCH_SUFFIXES)
    candidates = [file for file in sorted(folder.iterdir()) if file.suffix in suffixes]
    files = [file for file in candidates if not file.name.startswith(STATE_FILES)]
    if len(files) == 1:
        return files[0]
    count = f"several files of weights ({', '.join(file.name for file in files)})" if files else "no file of weights"
    raise ConfigError(f"{flag} {folder}: {count}; give the file itself, or a folder with {FOLDER_FILES[0]}")


def read_shard_index(index: Path, flag: str = INIT_CHECKPOINT) -> dict[str, str]:
    """`{weight: file}` of an index of shards, files in the same folder.

    >>> read_shard_index(Path("t5/model.safetensors.index.json"))["shared.weight"]
    'model-00001-of-00002.safetensors'

    Raises:
      ConfigError: it is not an index, or names a file in another folder.
    """
    try:
        shard_by_tensor = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(shard_by_tensor, dict):
            raise TypeError("its weight_map is not a table of names")
        if not all(isinstance(shard, str) for shard in shard_by_tensor.values()):
            raise TypeError("its weight_map is not a table of names")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{flag} {index}: not an index of shards ({short_message(error)})") from None
    for shard in sorted(set(shard_by_tensor.values())):
        if shard in ("", "..") or Path(shard).name != shard:
            raise ConfigError(f"{flag} {index}: shard {shard!r:.200} does not lie beside its index")
    return shard_by_tensor


def file_with_tensor(folder, name: str) -> str:
    """The file of a folder that holds a tensor: of shards, the one that the index names for it."""
    try:
        file = _weights_file_in(Path(folder), "")
        shard_by_tensor = read_shard_index(file) if file.suffix == ".json" else {}
    except ConfigError:
        return str(folder)
    return shard_by_tensor.get(name, file.name)


def weights_folder(name: str, revision: str | None = None) -> Path:
    """A folder, or the one in the hub's cache that a model was loaded from."""
    if Path(name).is_dir():
        return Path(name)
    return Path(cached_file(name, "config.json", revision=revision)).parent


def check_weight_files(folder: Path, flag: str) -> dict[str, torch.Tensor]:
    """Refuses a folder whose weights are not there, or not whole, by file; returns their shapes (`read_shapes`).

    Raises:
      DataError: a broken link, Git LFS's pointer, a web page, a missing shard, a file that is cut short.
      ConfigError: there is no file of weights.
    """
    for index in (folder / file for file in FOLDER_FILES if file.endswith(INDEX_ENDING)):
        # Refused if it points out of the folder: transformers 5.23 follows it.
        if check_is_the_file(flag, index, DataError):
            read_shard_index(index, flag)
    # The first one is read; others may be pointers or leftovers.
    file = next((file for file in FOLDER_FILES if check_is_the_file(flag, folder / file, DataError)), None)
    if file is None:
        raise ConfigError(f"{flag} {str(folder)!r} holds no weights ({FOLDER_FILES[0]}){_instead_of_weights(folder)}")
    if file.endswith(INDEX_ENDING):
        shards = sorted(set(read_shard_index(folder / file, flag).values()))
        missing = [shard for shard in shards if not check_is_the_file(flag, folder / shard, DataError)]
        if missing:
            raise DataError(f"{flag}: {folder / file}: {len(missing)} of its shards are missing: {listed(missing)}")
    try:
        return read_shapes(folder, flag)
    except LackOfMemoryError:
        raise
    except ConfigError as error:
        raise DataError(str(error)) from None


def _instead_of_weights(folder: Path) -> str:
    """What a folder without weights may hold instead, and what to do."""
    unfinished = sorted(path.name for path in folder.glob("*.incomplete"))
    if unfinished:
        return f", but an unfinished download, {unfinished[0]}: download it again"
    foreign = [path.name for pattern in FOREIGN_FORMATS for path in sorted(folder.glob(pattern))]
    if foreign and foreign[0].endswith(".onnx"):
        return f", but {foreign[0]}: ONNX files, {USE_OF_EXPORTS}"
    if foreign:
        return f", but {foreign[0]}, a format that is not read: convert it to safetensors"
    return "; fine_tune and pre_train start from random ones with --from_scratch"
