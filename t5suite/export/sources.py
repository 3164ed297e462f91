"""The model to export: a run, a checkpoint, DeepSpeed's shards, an adapter, a model of the hub -> a whole model.

    >>> flags = parse_command_line(["export", "--model_name_or_path", "runs/sentiment", "--output_dir", "exported"])
    >>> source = load_source(flags, staging="/tmp/staging")
    >>> type(source.model).__name__, source.folder
    ('T5ForConditionalGeneration', PosixPath('runs/sentiment'))

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
from t5suite.base.hub_files import file_of_model
from t5suite.base.model_files import check_is_the_file
from t5suite.data.batches.encodings import LanguageEncoding
from t5suite.models.adapter_files import is_adapter
from t5suite.models.adapters import merge_adapter
from t5suite.models.configs import load_config
from t5suite.models.encoders import encoder_of, names_encoder
from t5suite.models.families import recognize_family
from t5suite.models.families.seq2seq import store_languages
from t5suite.models.load_errors import short_message
from t5suite.models.loading import load_model, load_model_shapes, load_tokenizer
from t5suite.models.own_models import MODEL_CLASS, stored_settings
from t5suite.models.pretrained import trained_weights
from t5suite.models.tokenizer_checks import check_trained_with
from t5suite.models.weight_files import FOLDER_FILES
from t5suite.tasks.languages import Languages
from t5suite.tasks.task_card import TASK_CARD, read_task_card
from t5suite.training.checkpoints.folders import checkpoints
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, damage

logger = logging.getLogger(__name__)

FLAG = "--model_name_or_path"
CLASSIFIER = "ForSequenceClassification"
# Files that transformers reads in addition to weights; copied if weights are assembled in another folder.
FILES_WITH_WEIGHTS = ("*.json", "*.model", "*.txt", "*.jinja")
# Makes `torch.load` refuse everything but tensors, whatever its caller passes.
WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
# What DeepSpeed 0.19 writes besides tensors: an enumeration, and records of numbers.
PLAIN_CLASSES = {
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.runtime.fp16.loss_scaler": ("LossScaler", "DynamicLossScaler"),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
}
# What DeepSpeed's converter raises for shards that do not belong together or are incomplete.
BROKEN_SHARDS = (
    OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError,
)  # fmt: skip


@dataclass
class ExportSource:
    """A model to export.

    Attributes:
      model: whole, in float32, in evaluation mode; adapters are merged into it.
      folder: where it is on this machine; None for a hub model.
      dtype: how the weights were stored: the precision of the export unless another is asked for.
      task_card: the file that says its tasks, in its folder or of the hub; None if it has none.
    """

    model: Any
    tokenizer: Any
    folder: Path | None
    dtype: torch.dtype
    family: str
    task_card: Path | None = None


def load_source(flags, staging) -> ExportSource:
    """The model that the flags name.

    Args:
      flags: those of `t5suite export`.
      staging: the caller's folder where whole weights may be assembled.

    Raises:
      ConfigError: no such model, or a folder without one.
      CheckpointError: the checkpoint is damaged, or its shards cannot be read.
    """
    if flags.init_checkpoint is not None:
        source = _source_of_bare_weights(flags)
    else:
        source = _source_of_model(flags, Path(staging))
    if flags.encoder_only:
        source.model = encoder_of(source.model)
        source.family = "encoder"
    source.model.eval()
    return source


def load_source_shapes(flags, staging) -> ExportSource:
    """The model that `--model_name_or_path` names, without its weights: every parameter is on the meta device.

    Adapters and models of a user's class are loaded whole: their files do not say all of the shapes.

    Args:
      flags, staging: as those of `load_source`.

    Raises:
      ConfigError: no such model, or a folder without one.
    """
    name = flags.model_name_or_path
    folder = model_folder(name) if Path(name).is_dir() else None
    place = str(folder or name)
    if is_adapter(place) or MODEL_CLASS in stored_settings(place):
        return load_source(flags, staging)
    tokenizer = load_tokenizer(place, flags.model_revision, flag=FLAG)
    model = load_model_shapes(place, tokenizer=tokenizer, family=flags.model_family, revision=flags.model_revision)
    return ExportSource(model, tokenizer, folder, stored_dtype(model.config), flags.model_family)


def _source_of_bare_weights(flags) -> ExportSource:
    """`--init_checkpoint`: weights without a configuration."""
    tokenizer = load_tokenizer(flags.tokenizer_name or flags.config_name, flag="--tokenizer_name")
    model = load_model(
        tokenizer=tokenizer,
        family=flags.model_family,
        config_name=flags.config_name,
        config_overrides=flags.config_overrides,
        init_checkpoint=flags.init_checkpoint,
    )
    return ExportSource(model, tokenizer, None, torch.float32, flags.model_family or family_for_export(model))


def _source_of_model(flags, staging: Path) -> ExportSource:
    """A run, a checkpoint, an adapter or a model of the hub."""
    name = flags.model_name_or_path
    hub_options = {"revision": flags.model_revision, "trust_remote_code": flags.trust_remote_code}
    folder = model_folder(name) if Path(name).is_dir() else None
    weights_place = name if folder is None else str(_folder_with_weights(folder, staging))
    tokenizer_flag = "--tokenizer_name" if flags.tokenizer_name else FLAG
    tokenizer = load_tokenizer(flags.tokenizer_name or str(folder or name), flag=tokenizer_flag, **hub_options)
    options = {"tokenizer": tokenizer, "family": flags.model_family, **hub_options}
    dtype = torch.float32
    if is_adapter(weights_place):
        card = read_task_card(folder, calls_functions=False)
        tasks = () if card is None else tuple(card.tasks.values())  # an encoder's base gets the head of their labels
        model = merge_adapter(load_model(weights_place, adapter_base=flags.adapter_base, tasks=tasks, **options))
        if card is not None and "languages" in card.settings:
            # An adapter's folder has no settings of generation, to which the language of answers belongs.
            languages = Languages(**card.settings["languages"])
            store_languages(model, LanguageEncoding(tokenizer, card.lengths, languages=languages))
    elif flags.adapter_base is not None:
        raise ConfigError(f"--adapter_base has no effect: {FLAG} {name} is not an adapter's folder")
    elif flags.model_class is not None or MODEL_CLASS in stored_settings(weights_place):
        model = load_model(weights_place, model_class=flags.model_class, **options)
    else:
        config = load_config(weights_place, **hub_options)
        dtype = stored_dtype(config)
        if flags.model_family == "classification" or _is_classifier(config):
            check_trained_with(weights_place, tokenizer)
            loading_options = {"dtype": torch.float32, **hub_options}
            model = trained_weights(AutoModelForSequenceClassification, weights_place, config, loading_options)
        else:
            model = load_model(weights_place, **options)
    task_card = file_of_model(str(folder or name), TASK_CARD, flags.model_revision)
    return ExportSource(model, tokenizer, folder, dtype, flags.model_family or family_for_export(model), task_card)


def _folder_with_weights(folder: Path, staging: Path) -> Path:
    """The folder itself, or one in which DeepSpeed's shards are put together."""
    if _has_weights(folder):
        return folder
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{FLAG} {str(folder)!r} holds shards but no config.json; copy the model's next to them")
    return whole_weights(folder, staging / "whole")


def stored_dtype(config) -> torch.dtype:
    """The precision in which a model was stored, if it is bfloat16 or float16; else float32."""
    stored_dtype = getattr(config, "dtype", None)
    if isinstance(stored_dtype, str):
        stored_dtype = getattr(torch, stored_dtype, None)
    return stored_dtype if stored_dtype in (torch.bfloat16, torch.float16) else torch.float32


def _is_classifier(config) -> bool:
    """Whether a model with a configuration classifies rows by a head of its own."""
    has_classifier = any(architecture.endswith(CLASSIFIER) for architecture in config.architectures or ())
    return has_classifier and not names_encoder(config)


def model_folder(name: str) -> Path:
    """The folder itself if it holds a model, else a run's newest checkpoint.

    Raises:
      ConfigError: there is neither.
      CheckpointError: it is a checkpoint that does not verify.
    """
    folder = Path(name)
    if not (_has_weights(folder) or shards_in(folder)):
        checkpoints_of_run = checkpoints(folder)
        if not checkpoints_of_run:
            raise ConfigError(
                f"{FLAG} {name!r} holds no model: none of {', '.join(FOLDER_FILES[:2])}, no adapter, no "
                "checkpoint-N and no DeepSpeed shards"
            )
        folder = checkpoints_of_run[-1]
        logger.warning("%s has no model of its own yet: its newest checkpoint, %s, is exported", name, folder.name)
    reason = damage(folder) if (folder / MANIFEST_FILE).is_file() else None
    if reason:
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
    except BROKEN_SHARDS as error:
        raise CheckpointError(f"{shards}: the shards cannot be put together ({short_message(error)})") from None
    follow_umask(folder.glob("*.safetensors"))
    for pattern in FILES_WITH_WEIGHTS:
        for file in checkpoint.glob(pattern):
            if file.name != MANIFEST_FILE:
                shutil.copyfile(file, folder / file.name)
    return folder


@contextlib.contextmanager
def only_tensors() -> Iterator[None]:
    """In this block `torch.load` creates only tensors, containers and objects of `PLAIN_CLASSES`."""
    earlier_value = os.environ.get(WEIGHTS_ONLY)
    plain_classes = [getattr(import_module(module), name) for module, names in PLAIN_CLASSES.items() for name in names]
    os.environ[WEIGHTS_ONLY] = "1"
    try:
        with torch.serialization.safe_globals(plain_classes):
            yield
    finally:
        os.environ.pop(WEIGHTS_ONLY)
        if earlier_value is not None:
            os.environ[WEIGHTS_ONLY] = earlier_value
