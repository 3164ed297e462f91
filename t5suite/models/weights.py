"""Loads weights of a file or folder into a model: all of them, or an error that names the file and the tensors.

    >>> read_weights("checkpoint-pt-65536/pytorch_model.bin")["shared.weight"].shape    # torch's, safetensors, shards
    torch.Size([32128, 768])
    >>> load_weights(model, "runs/rte/checkpoint-400")          # resume, best checkpoint, one task's best

A saved folder has transformers' published tensor names, so that plain `from_pretrained` loads it. For 66 of the 255
text models of transformers 5.23 these are not the module's names: `save_pretrained` renames, splits or merges tensors,
and only `from_pretrained` undoes it; the stock `Trainer` leaves such weights unchanged (docs/reliability.md). Here the
same rules are applied to a model in memory, and no tensor is skipped. No code in the files is ever run.
"""

import copy
import json
import logging
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import AutoModel, AutoModelForPreTraining
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model, revert_weight_conversion
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import listed
from t5suite.base.model_files import check_is_the_file
from t5suite.models.adapter_files import restore_adapter
from t5suite.models.adapters import is_adapted
from t5suite.models.configs import first_line
from t5suite.models.encoders import EncoderHead, counted, left_out
from t5suite.models.families import class_in
from t5suite.models.t5.output_layer import whole
from t5suite.models.vocabulary import MULTIPLE
from t5suite.models.weight_values import (
    check_finite,
    check_not_empty,
    integers_for_floats,
    non_finite,
    refuse_integers,
    refuse_non_finite,
)

logger = logging.getLogger(__name__)

FLAG = "--init_checkpoint"
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# With a larger share of its tensors missing, a model is not incomplete but another one.
SHARE_OF_ANOTHER = 0.9
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
# Keys of the weights in files that hold more: Lightning, nanoGPT and similar trainers, DeepSpeed.
WRAPPERS = ("model_state_dict", "state_dict", "model", "module")
# Weights of other libraries.
OTHER_FORMATS = ("tf_model*.h5", "flax_model*", "*.gguf", "*.onnx", "*.ckpt.index")
# Other files that a run's folder has next to its weights.
OTHER_FILES = ("optimizer", "scheduler", "training_args", "random_states", "rng_state", "scaler", "sampler")
# What wrappers put before every name: DistributedDataParallel, torch.compile, Lightning, accelerate's and our own.
PREFIXES = ("module.", "_orig_mod.", "model.", "_forward_module.")


# safetensors' names of types that no weights are stored in, and of floating-point ones that differ from float32.
STORED_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64, "C64": torch.complex64,
    "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16,
}  # fmt: skip


@dataclass
class Mismatch:
    """Names of tensors that a file and a model do not have in common.

    Reshaped ones are written `name (3x4, not 4x4)`, and those that are no floating-point numbers `name (int8)`.
    """

    missing: list[str]
    unknown: list[str]
    reshaped: list[str]
    integers: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return "; ".join(f"{what} ({len(names)}): {listed(names)}" for what, names in vars(self).items() if names)


def load_weights(model, path, flag: str = "--resume") -> None:
    """Copies every weight of a file or folder into a model in memory, also one that FSDP2 has sharded (on every rank).

    The parameters stay the same objects: an optimizer that holds them stays valid. A model with an adapter gets the
    folder's adapter.

    Args:
      flag: the flag that the user gave the path with, for errors.

    Raises:
      DataError: a tensor is missing, unknown or of another shape, or tied tensors differ.
    """
    if is_adapted(model):
        restore_adapter(model, path)
        return
    tensors, mismatch = fitted(model, read_weights(path, flag))
    if mismatch:
        raise DataError(f"{flag} {path}: its weights are not this model's: {mismatch}")
    refuse_non_finite(non_finite(tensors.items()), f"{flag} {path}")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        set_model_state_dict(model, tensors, options=StateDictOptions(full_state_dict=True, strict=False))
    else:
        model.load_state_dict(tensors, strict=False)


def fitted(model, stored: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Mismatch]:
    """Stored tensors with the names, the layout and the precision of the model's own, and what does not fit.

    Known ties may be stored once; what the class lists in `_keys_to_ignore_on_load_*` may be missing or unused.
    """
    require_proved("model_loading")
    empty = skeleton(model)
    own = empty.state_dict(keep_vars=True)
    stored_names = dict(stored)
    device = "meta" if any(value.is_meta for value in stored.values()) else "cpu"
    settings = LoadStateDictConfig(device_map={"": device}, weight_mapping=get_model_conversion_mapping(empty))
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:  # transformers 5.23's own conversion on loading; tests/test_whole_weights.py checks it
        info = convert_and_load_state_dict_in_model(empty, stored, settings)[0]
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    loaded = empty.state_dict()
    reshaped = {name: f"{name} ({_size(found)}, not {_size(shape)})" for name, found, shape in info.mismatched_keys}
    tensors = {name: loaded[name] for name in own if name not in info.missing_keys and name not in reshaped}
    groups = {}
    for name, tensor in own.items():
        groups.setdefault(id(tensor), []).append(name)
    for names in groups.values():
        present = [name for name in names if name in tensors]
        if present:
            info.missing_keys.difference_update(names)
        for name in present[1:]:
            if not (tensors[name].is_meta or torch.equal(tensors[name], tensors[present[0]])):
                reshaped[name] = f"{name} (tied to {present[0]}, but stored with other values)"
    empty._adjust_missing_and_unexpected_keys(info)
    info.missing_keys -= reshaped.keys()
    wrong = [*reshaped.values(), *(f"{name} (cannot be converted)" for name in info.conversion_errors)]
    integers = integers_for_floats(model, stored_names, info.unexpected_keys)
    return tensors, Mismatch(sorted(info.missing_keys), sorted(info.unexpected_keys), sorted(wrong), integers)


def load_init_checkpoint(model, path, allow_missing: bool = False) -> dict:
    """Copies bare weights of any origin into a model (`--init_checkpoint FILE|FOLDER`), in the model's precision.

    >>> load_init_checkpoint(model, "checkpoint-pt-65536")                    # a run of nanoT5
    {'path': 'checkpoint-pt-65536', 'loaded': 256, 'missing': [], 'unexpected': []}

    nanoT5's compact T5 has Hugging Face's names with the shared embedding spelled out three times; its output layer is
    always separate, so the model needs `tie_word_embeddings=False` (a v1.1 preset). A vocabulary with up to 128 rows
    more or less differs in padding (32100 pieces, 32128 rows): rows that both have are copied, the model's others keep
    their values.

    Args:
      allow_missing: continue without weights that one side lacks; a warning names them.

    Raises:
      ConfigError: an unreadable file; weights that one side lacks; other shapes; two values for tied weights;
        no weight in common.
    """
    stored, own = strip_prefixes(read_weights(path), model), model.state_dict(keep_vars=True)
    ignored = (*dict(model.named_buffers()).keys() - own.keys(), *(model._keys_to_ignore_on_load_unexpected or ()))
    stored = {n: v for n, v in stored.items() if n in own or not any(re.search(pattern, n) for pattern in ignored)}
    fewer = _fit_vocabulary(model, own, stored, path)
    tensors, found = fitted(model, stored)
    if not tensors:
        raise ConfigError(
            f"{FLAG} {path}: none of its {len(stored)} weights is the model's: it has {listed(sorted(stored))}, the "
            f"model {listed(sorted(own))}"
        )
    refuse_integers(found.integers, f"{FLAG} {path}")
    if found and (found.reshaped or not allow_missing):
        cure = "" if found.reshaped else "; fine_tune and pre_train continue without them with --allow_missing_keys"
        cure += "; make the model with --config_overrides tie_word_embeddings=False" if "tied to" in str(found) else ""
        raise ConfigError(f"{FLAG} {path}: {found}{cure}")
    if found:
        logger.warning("%s %s: %s", FLAG, path, found)
    refuse_non_finite(non_finite(tensors.items()), f"{FLAG} {path}")
    with torch.no_grad():
        for name, value in tensors.items():
            with whole(own[name]):
                kept = slice(None) if name not in fewer else slice(fewer[name])
                own[name][kept].copy_(value[kept]) if own[name].ndim else own[name].copy_(value)
    loaded = len({id(own[name]) for name in tensors})
    logger.info("%d weights of %s are loaded", loaded, path)
    return {"path": str(path), "loaded": loaded, "missing": found.missing, "unexpected": found.unknown}


def strip_prefixes(weights: dict, model) -> dict:
    """Removes the prefixes that all names share, one wrapper after the other, until a name is the model's.

    >>> list(strip_prefixes({"module._orig_mod.shared.weight": w}, model))
    ['shared.weight']
    """
    own = model.state_dict().keys()
    while weights and own.isdisjoint(weights):
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in weights)), None)
        if prefix is None:
            break
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _fit_vocabulary(model, own: dict, stored: dict, path) -> dict[str, int]:
    """Gives stored tensors with one row per piece (embeddings, output layer) the model's number of rows, in place;
    returns how many of these rows were stored, by name."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    pieces = {id(tensor) for module in modules if module is not None for tensor in module.parameters()}
    fewer, told = {}, set()
    for name in [name for name in stored if id(own.get(name)) in pieces]:
        value, shape = stored[name], tuple(getattr(own[name], "ds_shape", own[name].shape))
        if value.shape[1:] != shape[1:] or not 0 < abs(len(value) - shape[0]) <= MULTIPLE:
            continue
        if id(own[name]) not in told:
            logger.warning("%s %s: %s has %d rows, the model %d", FLAG, path, name, len(value), shape[0])
        told.add(id(own[name]))
        fewer[name] = min(len(value), shape[0])
        stored[name] = torch.cat([value, value.new_zeros(MULTIPLE, *shape[1:])])[: shape[0]]
    return fewer


def mismatch_of(found: dict) -> Mismatch:
    """What `from_pretrained(..., output_loading_info=True)` reports about a model's tensors."""
    shapes = [f"{name} ({_size(stored)}, not {_size(own)})" for name, stored, own in found["mismatched_keys"]]
    return Mismatch(sorted(found["missing_keys"]), sorted(found["unexpected_keys"]), sorted(shapes))


def check_loaded(model, mismatch: Mismatch, place: str, new_head: bool, allow_missing: bool = False) -> None:
    """Refuses a model that was loaded incompletely.

    A new task head may be missing. The heads and poolers that the model type was pre-trained with may be unused
    (BERT's next sentence), and are logged.

    Raises:
      DataError: it is incomplete, and `allow_missing` is not set.
    """
    if outside := left_out(model, mismatch.unknown):
        mismatch.unknown = [name for name in mismatch.unknown if name not in outside]
        model.left_out_of_checkpoint = counted(outside)
        said = ", ".join(f"{part} ({count} tensors)" for part, count in counted(outside).items())
        logger.info("%s: only its encoder is loaded; skipped: %s", place, said)
    if new_head:
        prefix = f"{model.base_model_prefix}."
        of_body = lambda name: name.startswith(prefix) and ".pooler." not in name
        if isinstance(model, EncoderHead):
            of_body = lambda name: not name.startswith("classifier.")
        mismatch = Mismatch(*[[name for name in names if of_body(name)] for names in vars(mismatch).values()])
    if mismatch.unknown:
        known = set()
        for auto_class in (AutoModel, AutoModelForPreTraining):
            if type(model.config) in auto_class._model_mapping:
                with torch.device("meta"):
                    known |= class_in(auto_class, model.config)(copy.deepcopy(model.config)).state_dict().keys()
        known |= {f"{model.base_model_prefix}.{name}" for name in known}
        others = [name for name in mismatch.unknown if name in known]
        mismatch.unknown = [name for name in mismatch.unknown if name not in known]
        if others:
            logger.info("%s: other heads of its pre-training are skipped: %s", place, listed(others))
    if mismatch and allow_missing and not mismatch.reshaped:
        logger.warning("--allow_missing_keys: %s is loaded incompletely: %s", place, mismatch)
    elif mismatch:
        cure = "use a complete copy"
        if mismatch.missing and _is_wrapped(mismatch.unknown):
            cure = (
                f"these are weights inside of a wrapper: give them as --init_checkpoint {place}, with --config_name "
                f"{place}; t5suite export, too, takes both, and writes a plain model"
            )
        elif mismatch.unknown and len(mismatch.missing) > SHARE_OF_ANOTHER * len(model.state_dict()):
            cure = f"config.json (model_type {model.config.model_type}) describes another model than these weights"
        elif mismatch.reshaped:
            cure = "config.json describes another model than these weights are of; use a complete copy"
        else:
            cure += " (fine_tune and pre_train take it as it is with --allow_missing_keys)"
        raise DataError(f"--model_name_or_path {place} is not a complete {type(model).__name__}: {mismatch}; {cure}")


def _is_wrapped(names: list[str]) -> bool:
    """Whether tensors stand inside of a training framework's table, or all have the prefix of a wrapper.

    >>> _is_wrapped(["epoch", "state_dict"]), _is_wrapped(["module.shared.weight"]), _is_wrapped(["shared.weight"])
    (True, True, False)
    """
    return not set(WRAPPERS).isdisjoint(names) or (bool(names) and all(name.startswith(PREFIXES) for name in names))


def mismatch_with_files(model, name: str, revision: str | None = None) -> Mismatch:
    """As `mismatch_of`, from the files' headers: under ZeRO-3, transformers 5.23 does not look for unknown tensors."""
    return fitted(model, read_shapes(folder_of(name, revision), "--model_name_or_path"))[1]


def folder_of(name: str, revision: str | None = None) -> Path:
    """A folder, or the one in the hub's cache that a model was loaded from."""
    return Path(name) if Path(name).is_dir() else Path(cached_file(name, "config.json", revision=revision)).parent


def check_weight_files(folder: Path, flag: str) -> dict[str, torch.Tensor]:
    """Refuses a folder whose weights are not there, or not whole, by file; returns their shapes (`read_shapes`).

    Raises:
      DataError: a broken link, Git LFS's pointer, a web page, a missing shard, a file that is cut short.
      ConfigError: there is no file of weights.
    """
    for index in (folder / file for file in FOLDER_FILES if file.endswith(".index.json")):
        # Refused if it points out of the folder: transformers 5.23 follows it.
        if check_is_the_file(flag, index, DataError):
            shards_of(index, flag)
    # The first one is read; others may be pointers or leftovers.
    file = next((file for file in FOLDER_FILES if check_is_the_file(flag, folder / file, DataError)), None)
    if file is None:
        raise ConfigError(f"{flag} {str(folder)!r} holds no weights ({FOLDER_FILES[0]}){_instead_of_weights(folder)}")
    if file.endswith(".index.json"):
        shards = sorted(set(shards_of(folder / file, flag).values()))
        missing = [shard for shard in shards if not check_is_the_file(flag, folder / shard, DataError)]
        if missing:
            raise DataError(f"{flag}: {folder / file}: {len(missing)} of its shards are missing: {listed(missing)}")
    try:
        return read_shapes(folder, flag)
    except ConfigError as error:
        raise DataError(str(error)) from None


def _instead_of_weights(folder: Path) -> str:
    """What a folder without weights may hold instead, and what to do."""
    if unfinished := sorted(path.name for path in folder.glob("*.incomplete")):
        return f", but an unfinished download, {unfinished[0]}: download it again"
    foreign = [path.name for pattern in OTHER_FORMATS for path in sorted(folder.glob(pattern))]
    if foreign:
        return f", but {foreign[0]}, a format that is not read: convert it to safetensors"
    return "; fine_tune and pre_train start from random ones with --from_scratch"


def check_values(model, name: str, revision: str | None, unknown) -> None:
    """Refuses a loaded model with NaN or infinite weights, or with weights that are stored as integers.

    Args:
      unknown: names in the file that the model does not read.

    Raises:
      DataError: names the tensors, their counts or types, and the file.
    """
    folder = folder_of(name, revision)
    integers = integers_for_floats(model, read_shapes(folder, "--model_name_or_path"), unknown)
    place = f"--model_name_or_path {name}"
    if integers:
        refuse_integers(integers, f"{place}: {file_with(folder, integers[0].split()[0])}")
    check_finite(model, place, lambda tensor: file_with(folder, tensor))
    check_not_empty(model, place)


def check_saves_whole(model) -> None:
    """Refuses a model whose saved tensors would not load, before training instead of after it.

    Raises:
      ConfigError: transformers' conversion on saving and its conversion on loading do not match.
    """
    empty = skeleton(model)
    if getattr(model, "is_quantized", False) or not get_model_conversion_mapping(empty, add_legacy=False):
        return
    try:
        published = revert_weight_conversion(empty, empty.state_dict())
        _, mismatch = fitted(model, published)
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        mismatch = f"{type(error).__name__}: {error}"
    if mismatch:
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be saved and loaded whole by transformers: {mismatch}"
        )


def skeleton(model: nn.Module, copies: dict | None = None) -> nn.Module:
    """The modules of a model with meta tensors for weights, ties kept: names and shapes without the memory.

    >>> skeleton(model).lm_head.weight.device
    device(type='meta')
    """
    copies = {} if copies is None else copies
    if id(model) in copies:
        return copies[id(model)]
    kind = type(model)
    if kind.__name__.startswith("FSDP"):  # FSDP2 subclasses the model's class, by which conversions are found
        kind = next(c for c in kind.__mro__ if not c.__name__.startswith("FSDP"))
    new = copies[id(model)] = kind.__new__(kind)
    new.__dict__.update({k: type(v)() if k.endswith("_hooks") else v for k, v in vars(model).items()})
    for place in ("_parameters", "_buffers"):
        new.__dict__[place] = dict(vars(model)[place])
        for name, tensor in vars(model)[place].items():
            if tensor is not None and id(tensor) not in copies:
                empty = torch.empty(getattr(tensor, "ds_shape", tensor.shape), dtype=tensor.dtype, device="meta")
                is_parameter = isinstance(tensor, nn.Parameter)
                copies[id(tensor)] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
            new.__dict__[place][name] = None if tensor is None else copies[id(tensor)]
    new.__dict__["_modules"] = {n: None if m is None else skeleton(m, copies) for n, m in model._modules.items()}
    return new


def _size(shape) -> str:
    return "x".join(map(str, shape)) or "a number"


def read_weights(path, flag: str = FLAG) -> dict[str, torch.Tensor]:
    """Every tensor of a file or folder, on the CPU, under the name that it has there.

    Args:
      flag: the flag that the user gave the path with, for errors.

    Raises:
      ConfigError: no such file, a folder without weights or with several files of them, a file that is truncated, that
        holds objects other than tensors, or lacks tensors of its index.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{flag} {path}: no such file or folder")
    file = _file_in(path, flag) if path.is_dir() else path
    if not file.name.endswith(".index.json"):
        return _read_file(file, flag)
    places, weights = shards_of(file, flag), {}
    for name in sorted(set(places.values())):
        if not (file.parent / name).is_file():
            raise ConfigError(f"{flag} {file}: its shard {name} is missing")
        of_shard = _read_file(file.parent / name, flag)
        if repeated := sorted(of_shard.keys() & weights.keys()):
            raise ConfigError(f"{flag} {file}: {listed(repeated)} are in {name} and in another shard")
        weights.update(of_shard)
    if absent := sorted(places.keys() - weights.keys()):
        raise ConfigError(f"{flag} {file}: {len(absent)} weights are not in their shards ({listed(absent)})")
    return weights


def read_shapes(folder, flag: str = FLAG) -> dict[str, torch.Tensor]:
    """What `read_weights` would read, as meta tensors: from headers, where the files have any."""
    file = _file_in(Path(folder), flag)
    shapes, places = {}, {}
    shards = {file.parent / name for name in shards_of(file, flag).values()} if file.suffix == ".json" else {file}
    for shard in sorted(shards):
        of_shard = _shapes_in(shard, flag)
        for name in of_shard.keys() & places.keys():
            raise ConfigError(f"{flag} {folder}: {name} is both in {places[name]} and in {shard.name}")
        places |= dict.fromkeys(of_shard, shard.name)
        shapes |= of_shard
    return shapes


def _shapes_in(file: Path, flag: str) -> dict[str, torch.Tensor]:
    if file.suffix != ".safetensors":
        return _read_file(file, flag, device="meta")
    shapes = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in list(opened.keys()):
                header = opened.get_slice(name)
                dtype = STORED_TYPES.get(header.get_dtype(), torch.float32)
                shapes[name] = torch.empty(header.get_shape(), dtype=dtype, device="meta")
    except SafetensorError as error:
        raise ConfigError(f"{flag} {file}: not a weights file, or a truncated one ({first_line(error)})") from None
    return shapes


def file_with(folder, name: str) -> str:
    """The file of a folder that holds a tensor: of shards, the one that the index names for it."""
    try:
        file = _file_in(Path(folder), "")
        shards = shards_of(file) if file.suffix == ".json" else {}
    except ConfigError:
        return str(folder)
    return shards.get(name, file.name)


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


def shards_of(index: Path, flag: str = FLAG) -> dict[str, str]:
    """`{weight: file}` of an index of shards, files in the same folder.

    >>> shards_of(Path("t5/model.safetensors.index.json"))["shared.weight"]
    'model-00001-of-00002.safetensors'

    Raises:
      ConfigError: it is not an index, or names a file in another folder.
    """
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise TypeError("its weight_map is not a table of names")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{flag} {index}: not an index of shards ({first_line(error)})") from None
    for name in sorted(set(places.values())):
        if name in ("", "..") or Path(name).name != name:
            raise ConfigError(f"{flag} {index}: shard {name!r:.200} does not lie beside its index")
    return places


def _read_file(file: Path, flag: str, device: str = "cpu") -> dict[str, torch.Tensor]:
    if file.suffix != ".safetensors" and file.suffix not in TORCH_SUFFIXES:
        known = ", ".join((".safetensors", ".index.json", *TORCH_SUFFIXES))
        raise ConfigError(f"{flag} {file}: a file of weights ends in one of {known}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        maps_file = device == "meta" and zipfile.is_zipfile(file)  # then no values are read
        content = torch.load(file, map_location=device, weights_only=True, mmap=maps_file)
    except pickle.UnpicklingError as error:
        with open(file, "rb") as opened:  # a file of torch's (a zip archive), or a bare pickle with its protocol
            is_pickle = zipfile.is_zipfile(file) or opened.read(1) == b"\x80"
        if is_pickle:
            raise ConfigError(
                f"{flag} {file}: it holds Python objects besides tensors, and reading those could run code; "
                "save the weights alone: torch.save(model.state_dict(), file)"
            ) from None
        raise ConfigError(f"{flag} {file}: not a weights file, or a truncated one ({first_line(error)})") from None
    except (SafetensorError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{flag} {file}: not a weights file, or a truncated one ({first_line(error)})") from None
    while isinstance(content, Mapping):  # `{"model_state_dict": {...}, "step": 5}` -> `{...}`
        inner = next((content[name] for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{flag} {file}: it holds {type(content).__name__} instead of a table of weights")
    others = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ConfigError(
            f"{flag} {file}: {len(others)} of its entries are no tensors ({', '.join(others[:10])}); "
            f"weights are searched at the top level or in {', '.join(WRAPPERS)}"
        )
    return dict(content)
