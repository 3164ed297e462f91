"""What is to be exported: a run, a checkpoint, DeepSpeed's shards, an adapter, a model of the hub -> a whole model.

    >>> source = load_source("runs/mini-sentiment", staging="/tmp/staging")
    >>> type(source.model).__name__, source.folder
    ('T5ForConditionalGeneration', PosixPath('runs/mini-sentiment'))

Nothing of the source is changed: a damaged checkpoint is named, not set aside.
"""

import contextlib
import logging
import math
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import follow_umask
from t5suite.base.lookup import find
from t5suite.models.adapter_files import is_adapter
from t5suite.models.adapters import merged
from t5suite.models.configs import first_line, load_config
from t5suite.models.families import family_of_model
from t5suite.models.loading import load_model, load_tokenizer, trained_weights
from t5suite.models.own_models import MODEL_CLASS, stored_settings
from t5suite.models.weights import FOLDER_FILES
from t5suite.runs.directory import write_json
from t5suite.training.checkpoints.folders import checkpoints
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, damage

logger = logging.getLogger(__name__)

FLAG = "--model_name_or_path"
CLASSIFIER = "ForSequenceClassification"
# What transformers reads beside the weights; copied where weights are put together elsewhere.
BESIDE_WEIGHTS = ("*.json", "*.model", "*.txt", "*.jinja")


@dataclass
class Source:
    """A model to export.

    Attributes:
      model: whole, in float32, in evaluation mode; adapters are merged into it.
      folder: where it lies on this machine; None for one of the hub's.
      dtype: how the weights were stored: what an export is stored as unless another is asked for.
    """

    model: Any
    tokenizer: Any
    folder: Path | None
    dtype: torch.dtype
    family: str


def load_source(
    name: str,
    staging,
    tokenizer_name: str | None = None,
    family: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    adapter_base: str | None = None,
    model_class: str | None = None,
) -> Source:
    """The model that a name, run directory, checkpoint or adapter stands for.

    Args:
      staging: a folder of the caller's where whole weights may be put together.
      family: seq2seq, causal, masked or classification, if not what the configuration says.
      adapter_base: where an adapter's base model is, if not where the adapter says.
      model_class: `module:Class` that the model is one of, where that is the user's own.

    Raises:
      ConfigError: no such model, or a folder without one.
      CheckpointError: the checkpoint is damaged, or its shards cannot be read.
    """
    folder = model_folder(name) if Path(name).is_dir() else None
    place = str(folder) if folder else name
    if folder and not _has_weights(folder):
        place = str(_put_together(folder, Path(staging)))
    flag = "--tokenizer_name" if tokenizer_name else FLAG
    tokenizer = load_tokenizer(tokenizer_name or str(folder or name), revision, trust_remote_code, flag)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    if adapter_base is not None and not is_adapter(place):
        raise ConfigError(f"--adapter_base has no effect: {FLAG} {name} is no adapter's folder")
    if is_adapter(place):
        model = merged(load_model(place, tokenizer=tokenizer, family=family, adapter_base=adapter_base, **options))
        dtype = torch.float32
    elif model_class is not None or MODEL_CLASS in stored_settings(place):
        model = load_model(place, tokenizer=tokenizer, family=family, model_class=model_class, **options)
        dtype = torch.float32
    else:
        config = load_config(place, **options)
        model, dtype = _load(place, config, tokenizer, family, options), stored_dtype(config)
    model.eval()
    return Source(model, tokenizer, folder, dtype, family or family_for_export(model))


def load_bare_weights(
    init_checkpoint: str, config_name: str, tokenizer_name: str | None, config_overrides=None, family=None
) -> Source:
    """Bare weights of any origin (nanoT5's, Lightning's, a state_dict) in the model of a configuration.

    Raises:
      ConfigError: no such file or configuration, or weights that one of them lacks.
    """
    tokenizer = load_tokenizer(tokenizer_name or config_name, flag="--tokenizer_name")
    model = load_model(
        tokenizer=tokenizer,
        config_name=config_name,
        config_overrides=config_overrides,
        family=family,
        init_checkpoint=init_checkpoint,
    ).eval()
    return Source(model, tokenizer, None, torch.float32, family or family_for_export(model))


def model_folder(name: str) -> Path:
    """The folder itself if it holds a model, else a run's newest checkpoint.

    Raises:
      ConfigError: there is neither.
      CheckpointError: it is a checkpoint that does not verify.
    """
    folder = Path(name)
    if not (_has_weights(folder) or shards_in(folder)):
        found = checkpoints(folder)
        if not found:
            raise ConfigError(
                f"{FLAG} {name!r} holds no model: none of {', '.join(FOLDER_FILES[:2])}, no adapter, no "
                "checkpoint-N and no shards of DeepSpeed's"
            )
        folder = found[-1]
        logger.warning("%s has no model of its own yet: its newest checkpoint, %s, is exported", name, folder.name)
    if (folder / MANIFEST_FILE).is_file() and (reason := damage(folder)):
        raise CheckpointError(f"{folder} is damaged: {reason}; take another checkpoint")
    return folder


def family_for_export(model) -> str:
    """The family of a model, `classification` for one with a head that classifies rows."""
    return "classification" if type(model).__name__.endswith(CLASSIFIER) else family_of_model(model)


def stored_dtype(config) -> torch.dtype:
    """How a checkpoint says that its weights are stored; float32 where it does not.

    >>> stored_dtype(T5Config(dtype="bfloat16"))
    torch.bfloat16
    """
    stored = getattr(config, "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored, None)
    return stored if stored in DTYPES.values() else torch.float32


def dtype_for(name: str) -> torch.dtype:
    """The precision of a name.

    Raises:
      ConfigError: another name.
    """
    return find(name, DTYPES, "precision", where="--dtype")


def _has_weights(folder: Path) -> bool:
    return is_adapter(folder) or any((folder / file).is_file() for file in FOLDER_FILES)


def _put_together(folder: Path, staging: Path) -> Path:
    """A folder with the whole weights of a checkpoint in shards, and all that lies beside those."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{FLAG} {str(folder)!r} holds shards but no config.json; put that of the model beside them")
    whole = staging / "whole"
    whole.mkdir(parents=True)
    for pattern in BESIDE_WEIGHTS:
        for file in folder.glob(pattern):
            if file.name != MANIFEST_FILE:
                shutil.copyfile(file, whole / file.name)
    whole_weights(folder, whole)
    return whole


def _load(place: str, config, tokenizer, family, options):
    if family == "classification" or any(name.endswith(CLASSIFIER) for name in config.architectures or ()):
        return trained_weights(AutoModelForSequenceClassification, place, config, {"dtype": torch.float32, **options})
    return load_model(place, tokenizer=tokenizer, family=family, **options)


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
    except (
        OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError,
    ) as error:  # fmt: skip
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
        save_file({name: weights[name].contiguous() for name in names}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    follow_umask(folder.glob("*.safetensors"))
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
