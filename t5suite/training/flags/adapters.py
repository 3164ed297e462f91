"""The flags of the adapter that is trained on top of a model, and the model that they give.

    >>> arguments = AdapterArguments(adapter="lora", lora_r=4, adapter_args="use_rslora=true")
    >>> arguments.given, arguments.args
    ({'lora_r': 4}, {'use_rslora': True})

An adapter flag is refused by name if the kind of adapter does not use it, or without `--adapter`.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t5suite.base.errors import ConfigError
from t5suite.base.hub_commits import revision_to_read
from t5suite.models.adapter_kinds import ADAPTERS, TEXTS, check_adapter_flags
from t5suite.models.adapters import add_adapter, describe_adapter, is_adapted, is_saved_with_adapter
from t5suite.models.added_tokens import warn_of_frozen_rows
from t5suite.models.configs import load_config
from t5suite.models.quantization import is_quantized
from t5suite.optim.settings import parse_settings, read_value
from t5suite.training.flags.fields import facts, flag
from t5suite.training.sharding.deepspeed import get_key
from t5suite.training.sharding.settings import FSDP, is_set

logger = logging.getLogger(__name__)

FREEZE_FLAGS = ("freeze", "freeze_regex")


@dataclass
class AdapterArguments:
    """Adapters: a few new weights that are trained instead of the model's (PEFT)."""

    shared_facts = facts(theme="adapters")

    adapter: str | None = flag(None, f"Train an adapter alone: {', '.join(ADAPTERS)}.", "common report shapes")
    lora_r: int | None = flag(None, "LoRA, DoRA: the rank (PEFT: 8).", "report shapes", bounds="[1, inf) a rank")
    lora_alpha: int | None = flag(None, "LoRA, DoRA: scale alpha / r (PEFT: 8).", "report", bounds="[1, inf) a rank")
    lora_dropout: float | None = flag(None, "LoRA, DoRA: their dropout (PEFT: 0).", "report", bounds="[0, 1) a share")
    target_modules: str | None = flag(
        None, "LoRA, DoRA, IA3: ends of layer names (q,v), all-linear, or regex:PATTERN.", "report shapes"
    )
    adapter_args: str | None = flag(
        None,
        "Other settings of PEFT: num_virtual_tokens=40, or use_rslora=true,layers_to_transform=0.",
        "report shapes pairs",
    )

    def __post_init__(self):
        self.args = read_adapter_args(parse_settings(self.adapter_args, "--adapter_args"))
        flags = dict.fromkeys(name for kind in ADAPTERS.values() for name in kind.flags)
        self.given = {name: getattr(self, name) for name in flags if getattr(self, name) is not None}
        check_adapter_flags(self.adapter, self.given, self.args)


def read_adapter_args(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `--adapter_args`: Python's literals, but texts where PEFT takes a text.

    >>> read_adapter_args({"use_rslora": "true", "prompt_tuning_init_text": "'good, or bad'"})
    {'use_rslora': True, 'prompt_tuning_init_text': 'good, or bad'}
    """
    values = {}
    for name, text in settings.items():
        value = read_value(text)
        values[name] = text if name in TEXTS and not isinstance(value, str) else value
    return values


def adapt_by_flags(model, tokenizer, arguments, trains: bool):
    """The model with the requested adapter; without `--adapter`, the unchanged model.

    Args:
      trains: whether the run trains; if not, no adapter is added, because an untrained one has no effect.

    Raises:
      ConfigError: the adapter does not fit the model, another flag, or the kind of sharding.
    """
    flags = arguments.adapter
    model_args = arguments.model
    kind = flags.adapter
    if kind is not None and model_args.model_class is not None:
        raise ConfigError(f"--adapter {kind}: adapters are made for transformers' classes, not --model_class")
    if kind is None and not is_adapted(model):
        _check_whole_matrices(model, trains)
        return model
    if trains or is_adapted(model):
        _check_generation(arguments.training)
    if not trains:
        if kind is not None:
            logger.warning("--adapter %s has no effect: nothing is trained", kind)
        if not is_adapted(model):
            _check_whole_matrices(model, trains)
        return model
    if arguments.training.fsdp or is_set(FSDP):
        raise ConfigError("adapters are trained by one process, under DDP or ZeRO (--deepspeed zero2), not under FSDP")
    base = base_name(model, model_args) if kind else None
    if _uses_zero_3(arguments.training):
        _check_under_zero_3(model, flags, base)
    _check_recomputes(kind or describe_adapter(model)["adapter"], arguments.training)
    if kind is None:
        return model
    _check_beside_adapter(arguments)
    revision = revision_to_read("model", base, model_args.model_revision) if base else None
    model = add_adapter(model, tokenizer, kind, flags.given, flags.args, base_name=base, revision=revision)
    warn_of_frozen_rows(model)
    return model


def _check_whole_matrices(model, trains: bool) -> None:
    """Refuses a quantized model without an adapter: it cannot be trained, and transformers' trainer takes none."""
    if not is_quantized(model):
        return
    if trains:
        raise ConfigError("--load_in_8bit, --load_in_4bit: matrices in few bits cannot be trained; add --adapter lora")
    raise ConfigError(
        "--load_in_8bit, --load_in_4bit: matrices in few bits stand below a trained adapter, and this model has none; "
        "leave the flag out"
    )


def _uses_zero_3(args) -> bool:
    return bool(args.deepspeed) and get_key(args.deepspeed, "zero_optimization.stage") == 3


def _check_under_zero_3(model, flags: AdapterArguments, base: str | None) -> None:
    """Refuses what ZeRO-3 cannot do, where no rank ever holds a whole weight."""
    kind = flags.adapter or describe_adapter(model)["adapter"]
    if ADAPTERS[kind].is_virtual:
        raise ConfigError(f"--adapter {kind}: no virtual tokens under ZeRO-3; take --deepspeed zero2")
    if flags.adapter and base is None:
        raise ConfigError(
            f"--adapter {kind}: ZeRO-3 needs a saved base model (a classifier may be new); give --model_name_or_path"
        )


def _check_recomputes(kind: str, args) -> None:
    """Refuses to recompute activations with prefixes."""
    if kind == "prefix" and args.gradient_checkpointing:
        raise ConfigError("--adapter prefix: it needs the key/value cache, which --gradient_checkpointing turns off")


def _check_generation(args) -> None:
    """Refuses settings of generation beside an adapter, which is saved without any."""
    if args.generation_config is not None:
        raise ConfigError(
            f"--generation_config {args.generation_config}: an adapter has the settings of generation of its base "
            "model; write them into that model's generation_config.json. A run that began with the flag goes on "
            "without it by --allow_changed generation_config"
        )


def _check_beside_adapter(arguments) -> None:
    """Refuses flags that have no effect on a model with a new adapter."""
    for name in FREEZE_FLAGS:
        if getattr(arguments.model, name, None):
            raise ConfigError(f"--{name} has no effect beside --adapter: all of the model is frozen then")


def base_name(model, model_args) -> str | None:
    """The hub name or path that the model's exact weights come from; None if they are random, replaced or resized.

    A classifier that is drawn anew is saved with the adapter; what else is drawn is in no file.
    """
    name = model_args.model_name_or_path
    changes = (
        model_args.from_scratch,
        model_args.config_name,
        model_args.config_overrides,
        model_args.init_checkpoint,
        model_args.add_tokens,  # new rows are initialized, even if the matrix had spare ones
    )
    if name is None or any(changes) or is_adapted(model):
        return None
    if not all(map(is_saved_with_adapter, getattr(model, "drawn_tensors", ()))):
        return None
    stored = load_config(name, None, None, model_args.model_revision, model_args.trust_remote_code)
    if stored.get_text_config().vocab_size != model.config.get_text_config().vocab_size:
        return None
    return os.path.abspath(name) if os.path.isdir(name) else name
