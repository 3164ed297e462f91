"""A model's modules and a training step's memory: `t5suite summary`, `FineTuner.summary`.

>>> summary = summarize(model, Load(batch_size=32, source_length=512, target_length=114), optimizer="adafactor")
>>> summary["memory"]["peak"]
31_240_683_520
>>> print_summary(summary)

No weights are loaded: the model's configuration gives all shapes, and the tokenizer the rows of the vocabulary.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import nn

from t5suite.base.errors import ConfigError, UserError, first_line
from t5suite.models.adapter_files import is_adapter
from t5suite.models.adapters import inner_model
from t5suite.models.configs import load_config
from t5suite.models.families import recognize_family
from t5suite.models.memory import SHARDINGS, Sharding, estimate
from t5suite.models.t5.chunked_loss import LossSettings, accept_loss_labels, chunk_tokens_on, takes_loss_labels
from t5suite.models.untrained_parts import untrained_parameters
from t5suite.training.flags.adapters import adapt_by_flags
from t5suite.training.losses import TokenLoss
from t5suite.training.model_setup import tokenizer_and_model
from t5suite.training.monitoring.flops import PEAK_FLOPS, StepFlops
from t5suite.training.sharding.deepspeed import get_key

DEPTH = 3  # levels of nested modules that get their own rows
GIB = 2**30
# `print_summary` says how long an update takes on this device at this share of its peak. The share is a guess: runs log
# their own as `train/mfu`.
USUAL_DEVICE = "A100"
USUAL_SHARE = 0.4
# What a model's code raises that does not run on the meta device.
UNCOUNTABLE = (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError)
# Of which configurations name the ids.
SPECIAL_TOKENS = ("pad", "bos", "eos", "cls", "sep", "mask")


@dataclass(frozen=True)
class Load:
    """One micro-batch on one device.

    Attributes:
      batch_size: rows.
      source_length, target_length: tokens of each input and target; a model of one stack has both in one row.
      bf16: autocast computes in bfloat16, and weights stay float32; with DeepSpeed the weights are bfloat16.
      gradient_checkpointing: layers are recomputed in the backward pass.
      micro_batches: of an update (`--gradient_accumulation_steps`).
    """

    batch_size: int = 32
    source_length: int = 512
    target_length: int = 512
    bf16: bool = False
    gradient_checkpointing: bool = False
    micro_batches: int = 1


def summarize(
    model, load: Load, optimizer: str = "adamw", gpu: bool = True, sharding: str | None = None, num_gpus: int = 1
) -> dict:
    """`{"class", "parameters", "trainable", "frozen", "untrained", "modules", "flops", "memory", ...}`, plain data.

    Args:
      model: on the meta device; else its weights lose their values. What `training_step` and checkpointing of its
        layers change in it stays changed.
      optimizer, gpu, sharding, num_gpus: as in `memory.estimate` and `memory.Sharding`.

    Raises:
      ConfigError: the model does not compute the step without values, as its code asks tensors for them.
    """
    total, trained = _counts(model.parameters())
    inner = inner_model(model)
    # LoRA's weights are in the inner model's modules, those of prompts beside it: only the whole model has all of them.
    inner_total, _ = _counts(inner.parameters())
    rows = module_rows(inner if inner_total == total else model)
    flops = flops_of_update(model, load)
    memory = _memory_of_update(model, load, optimizer, gpu, Sharding(sharding, num_gpus) if sharding else None)
    return {
        "class": type(model).__name__,
        "parameters": total,
        "trainable": trained,
        "frozen": total - trained,
        "untrained": sum(parameter.numel() for parameter in untrained_parameters(inner)),
        "modules": rows,
        "load": asdict(load),
        "optimizer": optimizer,
        "device": "gpu" if gpu else "cpu",
        "deepspeed": sharding,
        "num_gpus": num_gpus,
        "flops": flops,
        "memory": memory,
    }


def _memory_of_update(model, load: Load, optimizer: str, gpu: bool, sharding: Sharding | None) -> dict[str, int]:
    """`memory.estimate` of an update as the trainer makes it.

    DeepSpeed has weights of bfloat16 where other runs have autocast, and its ranks hold parts of the weights, for which
    the loss is not computed in chunks (`losses.reason_for_logits`).
    """
    if load.gradient_checkpointing:
        inner_model(model).activation_checkpointing_enable()
    uses_autocast = load.bf16 and sharding is None
    has_bf16_weights = load.bf16 and sharding is not None
    step = training_step(model, load, autocast=uses_autocast, gpu=gpu, chunked=sharding is None)
    try:
        return estimate(
            model,
            step,
            optimizer=optimizer,
            gpu=gpu,
            dtype=torch.bfloat16 if has_bf16_weights else None,
            micro_batches=load.micro_batches,
            sharding=sharding,
        )
    except UserError:
        raise
    except UNCOUNTABLE as error:
        raise ConfigError(
            f"the memory of {type(inner_model(model)).__name__} cannot be estimated: its step of "
            f"{load.source_length} -> {load.target_length} tokens fails on tensors without values "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def flops_of_update(model, load: Load) -> int | None:
    """Floating-point operations of an update, as `StepFlops` counts them; None for models that it cannot count.

    >>> flops_of_update(t5_v1_1_base, Load(batch_size=128, source_length=512, target_length=114))
    54520000000000

    Those are models whose code does not run on the meta device, as it asks tensors for their values.
    """
    rows = load.batch_size * load.micro_batches
    shapes = {"input_ids": (1, load.source_length), "decoder_input_ids": (1, load.target_length)}
    if not recognize_family(inner_model(model)).has_decoder_inputs:
        shapes = {"input_ids": (1, load.source_length + load.target_length)}
    try:
        return rows * StepFlops(model).counted(shapes)
    except UNCOUNTABLE:
        return None


def module_rows(model) -> list[dict]:
    """`[{"name", "depth", "parameters", "trained", "tied_to"}]`, in which a tied matrix counts once; `tied_to` names
    the module that has it."""
    rows: list[dict] = []
    paths_by_id: dict[int, str] = {}
    for name, child in model.named_children():
        _add_rows(rows, paths_by_id, name, child)
    total, trained = _counts(p for p in model.parameters(recurse=False) if id(p) not in paths_by_id)
    if total:
        rows.append({"name": "(its own)", "depth": 0, "parameters": total, "trained": trained, "tied_to": None})
    return rows


def _add_rows(rows: list[dict], paths_by_id: dict[int, str], path: str, module) -> None:
    """Adds the rows of a module and of the modules in it.

    Args:
      paths_by_id: the path of the module that has a parameter, by the parameter's `id`.
      path: the module's, such as `encoder.block`.
    """
    parents = path.split(".")[:-1]
    name = path.split(".")[-1]
    parameters = list(module.parameters())
    new_parameters = [p for p in parameters if id(p) not in paths_by_id]
    is_at_the_top = not parents
    is_tied = bool(parameters) and not new_parameters
    # A tied `lm_head` has a row, which says so; a tied `encoder.embed_tokens`, or what has no parameters, has none.
    if not new_parameters and not (is_tied and is_at_the_top):
        return
    is_list = isinstance(module, nn.ModuleList)
    total, trained = _counts(new_parameters)
    rows.append(
        {
            "name": f"{name} ({len(module)} layers)" if is_list else name,
            "depth": len(parents),
            "parameters": total,
            "trained": trained,
            "tied_to": None if new_parameters else paths_by_id[id(parameters[0])],
        }
    )
    if not is_list and len(parents) + 1 < DEPTH:
        for child_name, child in module.named_children():
            _add_rows(rows, paths_by_id, f"{path}.{child_name}", child)
    # After the modules inside, which must find their parameters new: a tied one is then known by its innermost module.
    for parameter in new_parameters:
        paths_by_id.setdefault(id(parameter), path)


def _counts(parameters) -> tuple[int, int]:
    """How many elements these parameters have, and how many are trained."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in parameters]  # ZeRO-3's are elsewhere
    return sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)


def training_step(model, load: Load, autocast: bool, gpu: bool = False, chunked: bool = True):
    """model -> loss of one batch, as the trainer computes it: autocast, logits in float32, loss over the tokens.

    The step is for `models.rehearsal`, which counts the memory of tensors that have a shape and no values. They are the
    CPU's, for a GPU's update as well.

    Args:
      gpu: a T5's loss is computed in chunks as large as on a GPU.
      chunked: whether it is computed in chunks at all: the T5 gets `loss_labels`, and returns the loss for `TokenLoss`
        in place of logits (`chunked_loss`).
    """
    family = recognize_family(inner_model(model))
    token_loss = TokenLoss()
    loss_settings = None
    if chunked and takes_loss_labels(model):
        accept_loss_labels(model)
        vocab_size = inner_model(model).config.vocab_size
        loss_settings = LossSettings(chunk_tokens=chunk_tokens_on("cuda" if gpu else "cpu", vocab_size))
    rows = load.batch_size
    source = load.source_length
    target = load.target_length
    if not family.has_decoder_inputs:
        source = target = source + target

    def step(model):
        zeros = torch.zeros(rows, source, dtype=torch.long)
        batch = {"input_ids": zeros, "attention_mask": torch.ones_like(zeros)}
        labels = torch.zeros(rows, target, dtype=torch.long)
        if family.has_decoder_inputs:
            batch["decoder_input_ids"] = torch.zeros_like(labels)
        if not family.has_head:  # an encoder that classifies has no such argument
            batch["use_cache"] = False
        if loss_settings:
            batch |= {"loss_labels": labels, "loss_settings": loss_settings}
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = model(**batch)
        if autocast:  # accelerate converts what a prepared model returns
            float32_outputs = convert_outputs_to_fp32(lambda: dict(outputs))()
            outputs = type(outputs)(float32_outputs)
        return token_loss(outputs, labels, num_items_in_batch=rows * target)

    return step


def print_summary(summary: dict, file=None) -> None:
    """Modules and memory as two tables."""
    file = file or sys.stdout
    print(
        f"{summary['class']}: {summary['parameters']:,} parameters, {summary['trainable']:,} trained, "
        f"{summary['frozen']:,} frozen{_untrained_note(summary)}\n",
        file=file,
    )
    width = 2 + max(2 * row["depth"] + len(row["name"]) for row in summary["modules"])
    for row in summary["modules"]:
        name = "  " * row["depth"] + row["name"]
        print(f"{name:<{width}}{row['parameters']:>17,}   {_state_of(row)}", file=file)
    print(f"\nmemory of one {summary['device'].upper()} in a step of {_described_step(summary)}", file=file)
    for name, num_bytes in summary["memory"].items():
        if num_bytes or name != "host":
            print(f"{name:<12}{num_bytes / GIB:>10.3f} GiB", file=file)
    if summary.get("not_counted"):
        print(f"not counted: {', '.join(summary['not_counted'])}", file=file)
    if summary["flops"] and summary["device"] == "gpu":
        seconds = summary["flops"] / (USUAL_SHARE * PEAK_FLOPS[USUAL_DEVICE])
        device = f"an {USUAL_DEVICE} at {USUAL_SHARE:.0%} of its bf16 peak"
        print(f"{summary['flops']:.3g} FLOP an update: {seconds:.3g} s of {device}", file=file)


def _untrained_note(summary: dict) -> str:
    """How many of the frozen parameters nothing has ever trained: a placeholder's (`models.untrained_parts`)."""
    if not summary["untrained"]:
        return ""
    return f", {summary['untrained']:,} of them untrained: a vision tower that takes no part"


def _state_of(row: dict) -> str:
    """Whether a module is trained, frozen, both, or the same as another one."""
    total = row["parameters"]
    trained = row["trained"]
    if not total:
        return f"is {row['tied_to']}"
    if trained == total:
        return "trained"
    return f"{trained:,} trained, {total - trained:,} frozen" if trained else "frozen"


def _described_step(summary: dict) -> str:
    load = summary["load"]
    precision = "float32"
    if load["bf16"]:
        precision = "bf16 weights" if summary["deepspeed"] else "bf16 autocast"
    parts = [f"{load['batch_size']} x ({load['source_length']} -> {load['target_length']} tokens)", precision]
    if load["gradient_checkpointing"]:
        parts.append("checkpointing")
    parts.append(summary["optimizer"])
    if summary["deepspeed"]:
        parts.append(f"{summary['deepspeed']} over {summary['num_gpus']}")
    return ", ".join(parts)


class RowsOnly:
    """Replaces the tokenizer of a configuration that has none: as many pieces as rows, and its special tokens."""

    all_special_ids = ()

    def __init__(self, rows: int, config=None):
        self.rows = rows
        for name in SPECIAL_TOKENS:
            setattr(self, f"{name}_token_id", getattr(config, f"{name}_token_id", None))

    def __len__(self) -> int:
        return self.rows

    def get_vocab(self) -> dict:
        """No piece has a name."""
        return {}


def shapes_by_flags(arguments):
    """The model that the flags name, frozen and adapted as they say, on the meta device.

    The vocabulary has the rows that the configuration says, unless flags change it or the model's tokenizer is at hand.
    """
    flags = arguments.model
    changes_vocabulary = flags.tokenizer_name or flags.num_sentinels is not None or flags.add_tokens
    tokenizer = None  # then it is loaded
    if not changes_vocabulary and not _has_tokenizer_at_hand(flags.model_name_or_path or flags.config_name):
        config = load_config(
            flags.config_name or flags.model_name_or_path,
            flags.config_overrides,
            revision=flags.model_revision,
            trust_remote_code=flags.trust_remote_code,
            from_scratch=flags.from_scratch or flags.config_name is not None,
        )
        tokenizer = RowsOnly(config.get_text_config().vocab_size, config)
    tokenizer, model = tokenizer_and_model(flags, without_weights=True, tokenizer=tokenizer)
    return adapt_by_flags(model, tokenizer, arguments, trains=True)


def _has_tokenizer_at_hand(name: str | None) -> bool:
    """Whether a model's tokenizer is on this machine: the bundled one (no name), an adapter's base's, or a folder's."""
    if name is None or is_adapter(name):
        return True
    folder = Path(name)
    return folder.is_dir() and any(folder.glob("*tokenizer*"))


def summary_by_flags(model, arguments) -> dict:
    """`summarize` for a model on the meta device and a micro-batch of the arguments; `not_counted` names other flags
    that change the memory."""
    args = arguments.training
    load = Load(
        args.per_device_train_batch_size,
        arguments.data.max_source_length,
        arguments.data.max_target_length,
        bf16=args.bf16,
        gradient_checkpointing=args.activation_checkpointing,
        micro_batches=args.gradient_accumulation_steps,
    )
    optimizer = args.optimizer or getattr(args.optim, "value", args.optim)  # the suite's own flag, or transformers'
    sharding = _sharding_of(args.deepspeed)
    summary = summarize(model, load, optimizer, args.device.type != "cpu", sharding, args.world_size if sharding else 1)
    uncounted_flags = {
        "load_in_8bit": arguments.model.load_in_8bit,
        "load_in_4bit": arguments.model.load_in_4bit,
        "device_map": arguments.model.device_map,
        "embedding_on_cpu": arguments.model.embedding_on_cpu,
        "teacher": arguments.distillation.teacher,
        "fsdp": args.fsdp,
        "deepspeed": args.deepspeed and not sharding,
    }
    return summary | {"not_counted": [name for name, is_set in uncounted_flags.items() if is_set]}


def _sharding_of(config: dict | None) -> str | None:
    """The one of SHARDINGS that DeepSpeed's configuration asks for; None without DeepSpeed, or if it is none of them.

    >>> _sharding_of({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    'zero2_offload'
    """
    stage = get_key(config, "zero_optimization.stage")
    offload_device = get_key(config, "zero_optimization.offload_optimizer.device")
    ending = "" if offload_device in (None, "none") else "_offload"
    name = f"zero{stage}{ending}"
    return name if name in SHARDINGS else None
