"""The flags of the model, and of the adapter that is trained on top of it.

    >>> arguments = AdapterArguments(adapter="lora", lora_r=4, adapter_args="use_rslora=true")
    >>> arguments.given, arguments.args
    ({'lora_r': 4}, {'use_rslora': True})

An adapter flag is refused by name if the kind of adapter does not use it, or without `--adapter`.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from t5suite.base.errors import ConfigError
from t5suite.base.hub_commits import revision_to_read
from t5suite.base.model_files import check_has_model, check_model_files
from t5suite.models.adapters import ADAPTERS, adapted, adapter_of, check_flags, is_adapted, merged
from t5suite.models.configs import load_config
from t5suite.models.placement import check_placement_flags
from t5suite.models.quantization import is_quantized
from t5suite.optim.settings import parse_settings, read_value
from t5suite.tasks.task_card import TaskCard, write_task_card
from t5suite.training.flags.fields import check_needed_flags, facts, flag
from t5suite.training.sharding.deepspeed import get_key
from t5suite.training.sharding.settings import FSDP, is_set

AttentionKernel = Literal["sdpa", "eager", "flash_attention_2", "flex_attention"]


@dataclass
class ModelArguments:
    """The model, its configuration, and its placement."""

    _facts = facts(theme="model")

    model_name_or_path: str | None = flag(
        None, "Hub name or folder of a model. Default: the bundled tiny T5, untrained.", "common report shapes intro"
    )
    tokenizer_name: str | None = flag(
        None, "Hub name, folder or spiece.model, if not the model's.", "common shapes object"
    )
    from_scratch: bool = flag(False, "Take random weights instead of the trained ones.", "common shapes")
    model_revision: str | None = flag(
        None, "Branch, tag or commit of the hub's model; of several: NAME=REVISION,NAME=REVISION.", "shapes"
    )
    hub_timeout: int | None = flag(
        None,
        "Seconds that the hub has for an answer. Default: HF_HUB_ETAG_TIMEOUT, or 10.",
        bounds="[1, inf) seconds",
        change="nothing",
    )
    model_family: Literal["auto", "seq2seq", "causal", "masked", "encoder"] = flag(
        "auto", "What the model is trained as; auto: what its configuration says.", "shapes"
    )
    allow_missing_keys: bool = flag(False, "Take a model or --init_checkpoint that lacks tensors, or has too many.")
    num_sentinels: int | None = flag(
        None, "Number of sentinels, in tokenizer and model (T5: 100).", "shapes", bounds="[1, inf) tokens"
    )
    max_memory: str | None = flag(
        None,
        "What --device_map may fill: 0=10GiB,cpu=30GiB. Default: what is free.",
        "object",
        theme="speed",
        change="layout",
    )
    freeze: str | None = flag(
        None,
        "Frozen parts: encoder,decoder,embeddings,head,layers:N (the first N),encoder:N,decoder:N.",
        "report shapes object",
        needs="training",
    )
    freeze_regex: str | None = flag(
        None, "Freeze parameters by name: a regular expression.", "report shapes object", needs="training"
    )
    unfreeze_regex: str | None = flag(
        None, "Of what --freeze and --freeze_regex name, train these all the same.", "shapes object", needs="training"
    )
    model_class: str | None = flag(None, "module:Class of your own, a PreTrainedModel.")
    trust_remote_code: bool = flag(False, "Run code that a hub repository brings along.", "shapes")

    config_name: str | None = flag(
        None,
        "A configuration, for --from_scratch: a preset (mini), a model type (bert), a folder, file or hub name.",
        "common report shapes intro",
    )
    config_overrides: str | None = flag(None, "Changes to the configuration: d_model=256,num_layers=4.", "shapes pairs")
    dropout_rate: float | None = flag(
        None, "In place of the configuration's.", "common report", bounds="[0, 1) a share"
    )
    init_checkpoint: str | None = flag(None, "Weights in its place: a file (.safetensors, .pth, .bin) or folder.")
    add_tokens: str | None = flag(
        None, r"New tokens: '<turn>,<speaker>', or a file with one a line; \n is a line break.", "shapes"
    )
    attn_implementation: AttentionKernel | None = flag(
        None, "Attention kernels. Default: sdpa, else eager.", "shapes", theme="speed"
    )
    device_map: Literal["balanced", "auto", "sequential"] | None = flag(
        None, "Spread layers over this process's devices (auto: balanced).", "object", theme="speed", change="layout"
    )
    embedding_on_cpu: bool = flag(
        False, "Train an untied embedding on the CPU.", "object", theme="speed", change="layout"
    )
    load_in_8bit: bool = flag(False, "Frozen matrices below an --adapter in 8 bits.", "report", theme="speed")
    load_in_4bit: bool = flag(False, "The same in 4 bits (QLoRA).", "report", theme="speed")
    adapter_base: str | None = flag(None, "An adapter's base model, if not where the adapter says.", "shapes")

    def __post_init__(self):
        for name in ("model_name_or_path", "config_name", "tokenizer_name"):
            if getattr(self, name):
                check_model_files(f"--{name}", getattr(self, name))
        is_trained = not (self.config_name or self.from_scratch)
        if is_trained and self.model_name_or_path and Path(self.model_name_or_path).exists():
            check_has_model("--model_name_or_path", self.model_name_or_path)
        check_placement_flags(self.device_map, self.max_memory, self.embedding_on_cpu)
        check_needed_flags(self)


logger = logging.getLogger(__name__)


@dataclass
class AdapterArguments:
    """Adapters: a few new weights that are trained instead of the model's (PEFT)."""

    _facts = facts(theme="adapters")

    adapter: str | None = flag(None, f"Train an adapter alone: {', '.join(ADAPTERS)}.", "common report shapes")
    lora_r: int | None = flag(None, "LoRA, DoRA: the rank (PEFT: 8).", "report shapes", bounds="[1, inf) a rank")
    lora_alpha: int | None = flag(None, "LoRA, DoRA: scale alpha / r (PEFT: 8).", "report", bounds="[1, inf) a rank")
    lora_dropout: float | None = flag(None, "LoRA, DoRA: their dropout (PEFT: 0).", "report", bounds="[0, 1) a share")
    target_modules: str | None = flag(
        None, "LoRA, DoRA, IA3: ends of layer names (q,v), all-linear, or regex:PATTERN.", "report shapes"
    )
    modules_to_save: str | None = flag(None, "LoRA, DoRA, IA3: modules trained whole, such as a new head.", "shapes")
    num_virtual_tokens: int | None = flag(
        None, "Prompt tuning, prefix: their number (20).", "report shapes", bounds="[1, inf) tokens"
    )
    prompt_tuning_init: str | None = flag(None, "Prompt tuning: their start: random, vocabulary or text.", "report")
    prompt_tuning_init_text: str | None = flag(None, "Prompt tuning: the text whose embeddings they begin as.")
    adapter_args: str | None = flag(None, "Other PEFT settings: use_rslora=true,layers_to_transform=0.", "shapes pairs")
    merge_adapter: bool = flag(False, "Also write the plain model with the adapter merged to OUTPUT_DIR/merged.")

    def __post_init__(self):
        pairs = parse_settings(self.adapter_args, "--adapter_args")
        self.args = {name: read_value(value) for name, value in pairs.items()}
        flags = dict.fromkeys(name for kind in ADAPTERS.values() for name in kind.flags)
        self.given = {name: getattr(self, name) for name in flags if getattr(self, name) is not None}
        check_flags(self.adapter, self.given, self.args)
        if self.merge_adapter and self.adapter is not None and not ADAPTERS[self.adapter].merges:
            raise ConfigError(f"--merge_adapter: {self.adapter} changes no weights of the model, so none can be merged")


def adapt_by_flags(model, tokenizer, arguments, trains: bool):
    """The model with the requested adapter; without `--adapter`, the unchanged model.

    Args:
      trains: whether the run trains; if not, no adapter is added, because an untrained one has no effect.

    Raises:
      ConfigError: the adapter does not fit the model, another flag, or the kind of sharding.
    """
    flags, args, model_args = arguments.adapter, arguments.training, arguments.model
    kind = flags.adapter
    if kind is not None and model_args.model_class is not None:
        raise ConfigError(f"--adapter {kind}: adapters are made for transformers' classes, not --model_class")
    if kind is None and not is_adapted(model):
        if flags.merge_adapter:
            raise ConfigError("--merge_adapter: there is no adapter; give --adapter, or one as --model_name_or_path")
        if trains and is_quantized(model):
            raise ConfigError(
                "--load_in_8bit, --load_in_4bit: matrices in few bits cannot be trained; add --adapter lora"
            )
        return model
    if not trains:
        if kind is not None:
            logger.warning("--adapter %s has no effect: nothing is trained", kind)
        return model
    if args.fsdp or is_set(FSDP):
        raise ConfigError("adapters are trained by one process, under DDP or ZeRO (--deepspeed zero2), not under FSDP")
    base = base_name(model, model_args) if kind else None
    if args.deepspeed and get_key(args.deepspeed, "zero_optimization.stage") == 3:
        # No rank ever holds a whole weight.
        known = kind or adapter_of(model)["adapter"]
        if "num_virtual_tokens" in ADAPTERS[known].flags:
            raise ConfigError(f"--adapter {known}: no virtual tokens under ZeRO-3; take --deepspeed zero2")
        if flags.merge_adapter:
            raise ConfigError(
                "--merge_adapter: not under ZeRO-3; merge the finished run by --eval_only --merge_adapter"
            )
        if kind and base is None:
            raise ConfigError(f"--adapter {kind}: ZeRO-3 needs a saved base model; save it, give --model_name_or_path")
    if kind is None:
        return model
    for name in ("freeze", "freeze_regex", "unfreeze_regex"):
        if getattr(model_args, name, None):
            raise ConfigError(f"--{name} has no effect beside --adapter: all of the model is frozen then")
    if kind == "prefix" and args.gradient_checkpointing:
        raise ConfigError("--adapter prefix: it needs the key/value cache, which --gradient_checkpointing turns off")
    revision = revision_to_read("model", base, model_args.model_revision) if base else None
    return adapted(model, tokenizer, kind, flags.given, flags.args, base_name=base, revision=revision)


def base_name(model, model_args) -> str | None:
    """The hub name or path that the model's exact weights come from; None if they are random, replaced or resized."""
    name = model_args.model_name_or_path
    made = (model_args.from_scratch, model_args.config_name, model_args.config_overrides, model_args.init_checkpoint)
    made += (model_args.add_tokens,)  # new rows are initialized, even if the matrix had spare ones
    if name is None or any(made) or is_adapted(model):
        return None
    stored = load_config(name, None, None, model_args.model_revision, model_args.trust_remote_code)
    rows = [config.get_text_config().vocab_size for config in (stored, model.config)]
    if rows[0] != rows[1]:
        return None
    return os.path.abspath(name) if os.path.isdir(name) else name


def write_merged(model, tokenizer, folder, task_card: TaskCard | None) -> None:
    """`--merge_adapter`: saves the plain model with the adapter merged, and its task; consumes the adapter."""
    plain = merged(model)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if task_card is not None:
        write_task_card(folder, task_card)
    logger.info("the model with its adapter merged is in %s", folder)
