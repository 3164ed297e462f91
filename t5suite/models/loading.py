"""A name, folder or configuration -> a model in float32, and its tokenizer.

    >>> tokenizer = load_tokenizer("google/t5-v1_1-small")
    >>> model = load_model("google/t5-v1_1-small", tokenizer=tokenizer)

Weights are always float32, whatever the checkpoint holds: mixed precision then casts a copy per step (autocast). A
bfloat16 checkpoint loaded as it is would train in pure bfloat16, whose 8 bits of mantissa lose small updates.
"""

import ast
import json
import logging
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, T5Tokenizer

from t5suite.errors import ConfigError
from t5suite.hub import prepare_hub
from t5suite.lookup import suggestion

logger = logging.getLogger(__name__)

BUNDLED_MODEL = str(Path(__file__).parent.parent / "data" / "mini" / "model")
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def load_tokenizer(name: str | None, revision=None, trust_remote_code: bool = False, flag: str = "--tokenizer_name"):
    """A tokenizer by hub name or folder; a folder with nothing but T5's `spiece.model` suffices.

    Args:
      flag: what the user gave the name by, for errors.

    Raises:
      ConfigError: there is no such folder, or the hub cannot be reached and holds no cached copy.
    """
    name = name or BUNDLED_MODEL
    folder = Path(name)
    if folder.is_dir() and (folder / "spiece.model").is_file() and not (folder / "tokenizer_config.json").is_file():
        return T5Tokenizer.from_pretrained(name)
    _require(name, flag)
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(_cannot_load("a tokenizer", name, flag, error)) from None


def load_config(
    name: str, overrides: str | None = None, dropout_rate: float | None = None, revision=None, trust_remote_code=False
):
    """A configuration by hub name, folder or .json file, with changes such as `d_model=256,num_layers=4`.

    Raises:
      ConfigError: nothing of that name, or an override that the configuration does not have.
    """
    _require(name, "--config_name")
    try:
        config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(_cannot_load("a configuration", name, "--config_name", error)) from None
    for key, value in _parse_overrides(overrides).items():
        if not hasattr(config, key):
            raise ConfigError(f"--config_overrides: no setting {key!r}; {suggestion(key, config.to_dict())}")
        setattr(config, key, value)
    if dropout_rate is not None:
        if not 0 <= dropout_rate < 1:
            raise ConfigError(f"--dropout_rate {dropout_rate}: must be at least 0 and below 1")
        key = "dropout_rate" if hasattr(config, "dropout_rate") else "dropout"
        setattr(config, key, dropout_rate)
    return config


def load_model(
    name: str | None = None,
    *,
    tokenizer,
    config_name: str | None = None,
    from_scratch: bool = False,
    config_overrides: str | None = None,
    dropout_rate: float | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
):
    """An encoder-decoder model in float32; without a name, the bundled tiny T5 with random weights.

    `config_name` or `from_scratch` give random weights; the vocabulary is then made to fit the tokenizer, rounded up
    to a multiple of 128 as T5's is (32100 pieces, 32128 rows).

    Raises:
      ConfigError: the model cannot be found, or its vocabulary is smaller than the tokenizer's.
    """
    scratch = from_scratch or config_name is not None or name is None
    config = load_config(
        config_name or name or BUNDLED_MODEL, config_overrides, dropout_rate, revision, trust_remote_code
    )
    if scratch:
        _fit_vocabulary(config, tokenizer)
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    else:
        model = _load_weights(name, config, revision, trust_remote_code)
    _set_special_tokens(model, tokenizer, scratch)
    rows = model.get_input_embeddings().weight.shape[0]
    if rows < len(tokenizer):
        raise ConfigError(
            f"the model has {rows} embeddings, but the tokenizer has {len(tokenizer)} pieces; "
            "give the --tokenizer_name that belongs to the model"
        )
    return model


def _load_weights(name, config, revision, trust_remote_code):
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in WEIGHT_FILES):
        raise ConfigError(
            f"--model_name_or_path {name!r} holds no weights ({WEIGHT_FILES[0]}); add --from_scratch to start from "
            "random ones"
        )
    try:
        return AutoModelForSeq2SeqLM.from_pretrained(
            name, config=config, dtype=torch.float32, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(_cannot_load("a model", name, "--model_name_or_path", error)) from None


def _fit_vocabulary(config, tokenizer):
    rows = -(-len(tokenizer) // 128) * 128
    if config.vocab_size < len(tokenizer):
        logger.warning(
            "the configuration's vocabulary of %d is enlarged to %d for the tokenizer", config.vocab_size, rows
        )
        config.vocab_size = rows
    elif config.vocab_size > rows:
        config.vocab_size = rows


def _set_special_tokens(model, tokenizer, scratch: bool):
    """Padding and end are the tokenizer's where weights are new; a fresh T5 configuration names no start token.

    T5 starts its decoder with padding, BART with its end token: the configuration says which where it says anything.
    """
    config = model.config
    starts_with_end = config.decoder_start_token_id is not None and config.decoder_start_token_id == config.eos_token_id
    for name in ("pad_token_id", "eos_token_id"):
        if scratch or getattr(config, name) is None:
            setattr(config, name, getattr(tokenizer, name))
    if scratch and starts_with_end:
        config.decoder_start_token_id = config.eos_token_id
    elif scratch or config.decoder_start_token_id is None:
        config.decoder_start_token_id = config.pad_token_id
    generation = model.generation_config
    generation.pad_token_id, generation.eos_token_id = config.pad_token_id, config.eos_token_id
    generation.decoder_start_token_id = config.decoder_start_token_id


def _parse_overrides(text: str | None) -> dict:
    """`d_model=256,feed_forward_proj=gated-gelu` -> a table with Python values.

    >>> _parse_overrides("d_model=256,feed_forward_proj=gated-gelu")
    {'d_model': 256, 'feed_forward_proj': 'gated-gelu'}
    """
    values = {}
    for item in filter(None, (text or "").split(",")):
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"--config_overrides: {item!r} is not of the form name=value")
        try:
            values[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = {"true": True, "false": False}.get(value.strip().lower(), value.strip())
    return values


def _require(name: str, flag: str) -> None:
    """Tells a missing folder at once, and asks the hub no more than once whether it is there."""
    path = Path(name)
    if path.exists():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix == ".json":
        raise ConfigError(f"{flag}: no file or folder {name!r}")
    prepare_hub()


def _cannot_load(what: str, name: str, flag: str, error: Exception) -> str:
    if not Path(name).exists() and not prepare_hub():
        return (
            f"{flag}: {name!r} is no folder, the hub cannot be reached, and there is no copy of it in the local cache; "
            "give a folder with the model's files"
        )
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{flag}: cannot load {what} from {name!r} ({reason})"


def describe(model) -> dict:
    """Counts for logs and manifests.

    >>> describe(model)
    {'class': 'T5ForConditionalGeneration', 'parameters': 60506624, 'trainable': 60506624}
    """
    parameters = list(model.parameters())
    return {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
    }


def config_digest(config) -> str:
    """The configuration as canonical JSON, for fingerprints."""
    return json.dumps(config.to_diff_dict(), sort_keys=True, default=str)
