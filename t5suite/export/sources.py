"""What is to be exported: a run, a checkpoint, DeepSpeed's shards, an adapter, a model of the hub -> a whole model.

    >>> source = load_source("runs/mini-sentiment", staging="/tmp/staging")
    >>> type(source.model).__name__, source.folder
    ('T5ForConditionalGeneration', PosixPath('runs/mini-sentiment'))

Nothing of the source is changed: a damaged checkpoint is named, not set aside.
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.lookup import find
from t5suite.export.zero_shards import shards_in, whole_weights
from t5suite.models.adapters import is_adapter, merged
from t5suite.models.configs import load_config
from t5suite.models.families import family_of_model
from t5suite.models.loading import load_model, load_tokenizer, trained_weights
from t5suite.models.own_models import MODEL_CLASS, stored_settings
from t5suite.models.weight_files import FOLDER_FILES
from t5suite.training.checkpoints import MANIFEST_FILE, checkpoints, damage

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
