"""The model to export: a run, a checkpoint, DeepSpeed's shards, an adapter, a model of the hub -> a whole model.

    >>> wanted = parse_arguments(["export", "--model_name_or_path", "runs/mini-sentiment", "--output_dir", "exported"])
    >>> source = load_source(wanted, staging="/tmp/staging")
    >>> type(source.model).__name__, source.folder
    ('T5ForConditionalGeneration', PosixPath('runs/mini-sentiment'))

The source is not changed: a damaged checkpoint is reported, not set aside.
"""

import contextlib
import logging
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
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import follow_umask
from t5suite.base.model_files import check_is_the_file
from t5suite.models.adapter_files import is_adapter
from t5suite.models.adapters import merge_adapter
from t5suite.models.configs import load_config
from t5suite.models.encoders import encoder_of, names_encoder
from t5suite.models.families import recognize_family
from t5suite.models.load_errors import short_message
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.own_models import MODEL_CLASS, stored_settings
from t5suite.models.pretrained import trained_weights
from t5suite.models.tokenizer_checks import check_trained_with
from t5suite.models.weight_files import FOLDER_FILES
from t5suite.training.checkpoints.folders import checkpoints
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, damage

logger = logging.getLogger(__name__)

FLAG = "--model_name_or_path"
CLASSIFIER = "ForSequenceClassification"
# Files that transformers reads in addition to weights; copied if weights are assembled in another folder.
BESIDE_WEIGHTS = ("*.json", "*.model", "*.txt", "*.jinja")
# Makes `torch.load` refuse everything but tensors, whatever its caller passes.
WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@dataclass
class Source:
    """A model to export.

    Attributes:
      model: whole, in float32, in evaluation mode; adapters are merged into it.
      folder: where it is on this machine; None for a hub model.
      dtype: how the weights were stored: the precision of the export unless another is asked for.
    """

    model: Any
    tokenizer: Any
    folder: Path | None
    dtype: torch.dtype
    family: str


def load_source(wanted, staging) -> Source:
    """The model that the flags name.

    Args:
      wanted: the flags of `t5suite export`.
      staging: the caller's folder where whole weights may be assembled.

    Raises:
      ConfigError: no such model, or a folder without one.
      CheckpointError: the checkpoint is damaged, or its shards cannot be read.
    """
    name, family, dtype, folder = wanted.model_name_or_path, wanted.model_family, torch.float32, None
    options = {"revision": wanted.model_revision, "trust_remote_code": wanted.trust_remote_code}
    if wanted.init_checkpoint is not None:
        bare = {key: getattr(wanted, key) for key in ("config_name", "config_overrides", "init_checkpoint")}
        tokenizer = load_tokenizer(wanted.tokenizer_name or wanted.config_name, flag="--tokenizer_name")
        model = load_model(tokenizer=tokenizer, family=family, **bare)
        model = encoder_of(model) if wanted.encoder_only else model
        return Source(model.eval(), tokenizer, None, dtype, family or family_for_export(model))
    place = name
    if Path(name).is_dir():
        folder = model_folder(name)
        if not _has_weights(folder) and not (folder / "config.json").is_file():
            raise ConfigError(f"{FLAG} {str(folder)!r} holds shards but no config.json; copy the model's next to them")
        place = str(folder if _has_weights(folder) else whole_weights(folder, Path(staging) / "whole"))
    flag = "--tokenizer_name" if wanted.tokenizer_name else FLAG
    tokenizer = load_tokenizer(wanted.tokenizer_name or str(folder or name), flag=flag, **options)
    known = {"tokenizer": tokenizer, "family": family, **options}
    if is_adapter(place):
        model = merge_adapter(load_model(place, adapter_base=wanted.adapter_base, **known))
    elif wanted.adapter_base is not None:
        raise ConfigError(f"--adapter_base has no effect: {FLAG} {name} is not an adapter's folder")
    elif wanted.model_class is not None or MODEL_CLASS in stored_settings(place):
        model = load_model(place, model_class=wanted.model_class, **known)
    else:
        config = load_config(place, **options)
        stored = getattr(config, "dtype", None)
        stored = getattr(torch, stored, None) if isinstance(stored, str) else stored
        dtype = stored if stored in (torch.bfloat16, torch.float16) else torch.float32
        has_classifier = any(name.endswith(CLASSIFIER) for name in config.architectures or ())
        is_classifier = has_classifier and not names_encoder(config)
        if family == "classification" or is_classifier:
            options = {"dtype": torch.float32, **options}
            check_trained_with(place, tokenizer)
            model = trained_weights(AutoModelForSequenceClassification, place, config, options)
        else:
            model = load_model(place, **known)
    if wanted.encoder_only:
        model, family = encoder_of(model), "encoder"
    return Source(model.eval(), tokenizer, folder, dtype, family or family_for_export(model))


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
                "checkpoint-N and no DeepSpeed shards"
            )
        folder = found[-1]
        logger.warning("%s has no model of its own yet: its newest checkpoint, %s, is exported", name, folder.name)
    if (folder / MANIFEST_FILE).is_file() and (reason := damage(folder)):
        raise CheckpointError(f"{folder} is damaged: {reason}; use another checkpoint")
    return folder


def family_for_export(model) -> str:
    """The family of a model, `classification` for one with a head that classifies rows."""
    return "classification" if type(model).__name__.endswith(CLASSIFIER) else recognize_family(model).name


def _has_weights(folder: Path) -> bool:
    return is_adapter(folder) or any(os.path.lexists(folder / file) for file in FOLDER_FILES)  # also a broken link


def shards_in(folder) -> Path | None:
    """The folder of DeepSpeed's shards below a checkpoint: the newest `global_stepN`.

    >>> shards_in("runs/x/checkpoint-400")
    PosixPath('runs/x/checkpoint-400/global_step400')
    """
    steps = [path for path in Path(folder).glob("global_step*") if path.name.removeprefix("global_step").isdecimal()]
    return max(steps, key=lambda path: int(path.name.removeprefix("global_step")), default=None)


def whole_weights(checkpoint: Path, folder: Path) -> Path:
    """Makes a folder with the float32 master weights of a ZeRO checkpoint (tied ones once) and the files next to them.

    Raises:
      ConfigError: DeepSpeed is not installed.
      CheckpointError: a shard is missing or truncated, or contains objects other than tensors.
    """
    try:
        converter = import_module("deepspeed.utils.zero_to_fp32")
    except ImportError as error:
        raise ConfigError(f"DeepSpeed shards: {error}; pip install 't5suite[deepspeed]'") from None
    shards = shards_in(checkpoint)
    for file in sorted(shards.glob("*.pt")):
        check_is_the_file(FLAG, file, CheckpointError)
    try:
        # The converter prints to standard output, which is reserved for data.
        with only_tensors(), contextlib.redirect_stdout(sys.stderr):
            weights = converter.get_fp32_state_dict_from_zero_checkpoint(
                str(shards.parent), tag=shards.name, lazy_mode=True
            )
            # DeepSpeed 0.19 has a tied weight under each of its names, and several weights as views of one buffer.
            names = {id(weight): name for name, weight in reversed(weights.items())}.values()
            folder.mkdir(parents=True)
            save_torch_state_dict({name: weights[name].contiguous().clone() for name in names}, folder)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{shards}: a shard is truncated, or contains Python objects besides tensors, which could run code "
            f"when loaded ({short_message(error)})"
        ) from None
    except (
        OSError,
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        EOFError,
    ) as error:
        raise CheckpointError(f"{shards}: the shards cannot be put together ({short_message(error)})") from None
    follow_umask(folder.glob("*.safetensors"))
    for file in (file for pattern in BESIDE_WEIGHTS for file in checkpoint.glob(pattern)):
        if file.name != MANIFEST_FILE:
            shutil.copyfile(file, folder / file.name)
    return folder


@contextlib.contextmanager
def only_tensors() -> Iterator[None]:
    """In this block `torch.load` creates only tensors, containers and objects of `PLAIN_CLASSES`."""
    before = os.environ.get(WEIGHTS_ONLY)
    plain = [getattr(import_module(module), name) for module, names in PLAIN_CLASSES.items() for name in names]
    os.environ[WEIGHTS_ONLY] = "1"
    try:
        with torch.serialization.safe_globals(plain):
            yield
    finally:
        os.environ.pop(WEIGHTS_ONLY)
        if before is not None:
            os.environ[WEIGHTS_ONLY] = before


# What DeepSpeed 0.19 writes besides tensors: an enumeration, and records of numbers.
PLAIN_CLASSES = {
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.runtime.fp16.loss_scaler": ("LossScaler", "DynamicLossScaler"),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
}
