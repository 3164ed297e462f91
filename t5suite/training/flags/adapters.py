"""The flags of the adapter that is trained on top of a model, and the model that they give.

    >>> arguments = AdapterArguments(adapter="lora", lora_r=4, adapter_args="use_rslora=true")
    >>> arguments.given, arguments.args
    ({'lora_r': 4}, {'use_rslora': True})

An adapter flag is refused by name if the kind of adapter does not use it, or without `--adapter`.
"""

import logging
import os
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.base.hub_commits import revision_to_read
from t5suite.models.adapter_kinds import ADAPTERS, check_adapter_flags
from t5suite.models.adapters import add_adapter, describe_adapter, is_adapted, merge_adapter
from t5suite.models.configs import load_config
from t5suite.models.quantization import is_quantized
from t5suite.optim.settings import parse_settings, read_value
from t5suite.tasks.task_card import TaskCard, write_task_card
from t5suite.training.flags.fields import facts, flag
from t5suite.training.sharding.deepspeed import get_key
from t5suite.training.sharding.settings import FSDP, is_set

logger = logging.getLogger(__name__)

FREEZE_FLAGS = ("freeze", "freeze_regex", "unfreeze_regex")


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
        check_adapter_flags(self.adapter, self.given, self.args)
        if self.merge_adapter and self.adapter is not None and not ADAPTERS[self.adapter].merges:
            raise ConfigError(f"--merge_adapter: {self.adapter} changes no weights of the model, so none can be merged")


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
        _check_without_adapter(model, flags, trains)
        return model
    if not trains:
        if kind is not None:
            logger.warning("--adapter %s has no effect: nothing is trained", kind)
        return model
    if arguments.training.fsdp or is_set(FSDP):
        raise ConfigError("adapters are trained by one process, under DDP or ZeRO (--deepspeed zero2), not under FSDP")
    base = base_name(model, model_args) if kind else None
    if _uses_zero_3(arguments.training):
        _check_under_zero_3(model, flags, base)
    if kind is None:
        return model
    _check_beside_adapter(kind, arguments)
    revision = revision_to_read("model", base, model_args.model_revision) if base else None
    return add_adapter(model, tokenizer, kind, flags.given, flags.args, base_name=base, revision=revision)


def _check_without_adapter(model, flags: AdapterArguments, trains: bool) -> None:
    """Refuses what needs an adapter where there is none."""
    if flags.merge_adapter:
        raise ConfigError("--merge_adapter: there is no adapter; give --adapter, or one as --model_name_or_path")
    if trains and is_quantized(model):
        raise ConfigError("--load_in_8bit, --load_in_4bit: matrices in few bits cannot be trained; add --adapter lora")


def _uses_zero_3(args) -> bool:
    return bool(args.deepspeed) and get_key(args.deepspeed, "zero_optimization.stage") == 3


def _check_under_zero_3(model, flags: AdapterArguments, base: str | None) -> None:
    """Refuses what ZeRO-3 cannot do, where no rank ever holds a whole weight."""
    kind = flags.adapter or describe_adapter(model)["adapter"]
    if "num_virtual_tokens" in ADAPTERS[kind].flags:
        raise ConfigError(f"--adapter {kind}: no virtual tokens under ZeRO-3; take --deepspeed zero2")
    if flags.merge_adapter:
        raise ConfigError("--merge_adapter: not under ZeRO-3; merge the finished run by --eval_only --merge_adapter")
    if flags.adapter and base is None:
        raise ConfigError(f"--adapter {kind}: ZeRO-3 needs a saved base model; save it, give --model_name_or_path")


def _check_beside_adapter(kind: str, arguments) -> None:
    """Refuses flags that have no effect on a model with a new adapter, or do not work with it."""
    for name in FREEZE_FLAGS:
        if getattr(arguments.model, name, None):
            raise ConfigError(f"--{name} has no effect beside --adapter: all of the model is frozen then")
    if kind == "prefix" and arguments.training.gradient_checkpointing:
        raise ConfigError("--adapter prefix: it needs the key/value cache, which --gradient_checkpointing turns off")


def base_name(model, model_args) -> str | None:
    """The hub name or path that the model's exact weights come from; None if they are random, replaced or resized."""
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
    stored = load_config(name, None, None, model_args.model_revision, model_args.trust_remote_code)
    if stored.get_text_config().vocab_size != model.config.get_text_config().vocab_size:
        return None
    return os.path.abspath(name) if os.path.isdir(name) else name


def write_merged(model, tokenizer, folder, task_card: TaskCard | None) -> None:
    """`--merge_adapter`: saves the plain model with the adapter merged, and its task; consumes the adapter."""
    plain = merge_adapter(model)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if task_card is not None:
        write_task_card(folder, task_card)
    logger.info("the model with its adapter merged is in %s", folder)
