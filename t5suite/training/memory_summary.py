"""What a model is made of, and what a step of its training would take: `t5suite summary`, `--print_summary`.

>>> found = summarize(model, Load(batch_size=32, source_length=512, target_length=114), optimizer="adafactor")
>>> found["memory"]["peak"]
31_240_683_520
>>> print_summary(found)

The model may be on the meta device: no weight is loaded, and no device is asked for anything.
"""

import sys
from dataclasses import asdict, dataclass

import torch
from accelerate.utils import convert_outputs_to_fp32

from t5suite.models.adapters import inner_model
from t5suite.models.chunked_cross_entropy import LossSettings, chunk_tokens_on
from t5suite.models.families import family_of_model
from t5suite.models.head_loss import accept_loss_labels, takes_loss_labels
from t5suite.models.memory import Memory, estimate
from t5suite.models.summary import Row, module_rows, print_rows, totals
from t5suite.training.losses import TokenLoss

GIB = 2**30


@dataclass(frozen=True)
class Load:
    """One micro-batch on one device.

    Attributes:
      batch_size: rows.
      source_length, target_length: tokens of each input and target; a model of one stack has both in one row.
      bf16: autocast computes in bfloat16; weights stay float32.
      gradient_checkpointing: layers are computed again in the backward pass.
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
    """`{"class", "parameters", "trainable", "frozen", "modules", "memory", "load", ...}`, plain data.

    Args:
      model: keeps its weights only where it has none (meta device): they are exchanged for shapes.
      optimizer, gpu, sharding, num_gpus: as in `memory.estimate`.
    """
    found = {"class": type(model).__name__, **totals(model)}
    inner = inner_model(model)
    # LoRA's weights lie within the model, those of prompts beside it.
    within = sum(p.numel() for p in inner.parameters()) == found["parameters"]
    rows = module_rows(inner) if within else module_rows(model)
    pure = torch.bfloat16 if sharding and load.bf16 else None  # DeepSpeed's bf16 is no autocast
    if load.gradient_checkpointing:
        checkpoint_layers(model)
    memory = estimate(
        model,
        training_step(model, load, autocast=load.bf16 and pure is None, gpu=gpu, chunked=sharding is None),
        optimizer=optimizer,
        gpu=gpu,
        dtype=pure,
        micro_batches=load.micro_batches,
        sharding=sharding,
        num_gpus=num_gpus,
    )
    return {
        **found,
        "modules": [asdict(row) for row in rows],
        "load": asdict(load),
        "optimizer": optimizer,
        "device": "gpu" if gpu else "cpu",
        "deepspeed": sharding,
        "num_gpus": num_gpus,
        "memory": memory.as_dict(),
    }


def checkpoint_layers(model) -> None:
    """Has the layers computed again in the backward pass; transformers renamed the method in 5.23."""
    inner = inner_model(model)
    enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
    enable()


def training_step(model, load: Load, autocast: bool, gpu: bool = False, chunked: bool = True):
    """model -> loss of one batch, as the trainer computes it: autocast, logits in float32, loss over the tokens.

    Args:
      gpu: a T5's loss is made in chunks as large as on a GPU.
      chunked: it is made in chunks at all.
    """
    family, loss_of = family_of_model(inner_model(model)), TokenLoss()
    given = {}
    if chunked and takes_loss_labels(model):
        accept_loss_labels(model)
        vocab_size = inner_model(model).config.vocab_size
        given = {"loss_settings": LossSettings(chunk_tokens=chunk_tokens_on("cuda" if gpu else "cpu", vocab_size))}
    rows, source, target = load.batch_size, load.source_length, load.target_length
    if family != "seq2seq":
        source, target = source + target, source + target

    def step(model):
        batch = {
            "input_ids": torch.zeros(rows, source, dtype=torch.long),
            "attention_mask": torch.ones(rows, source, dtype=torch.long),
        }
        labels = torch.zeros(rows, target, dtype=torch.long)
        if family == "seq2seq":
            batch["decoder_input_ids"] = torch.zeros(rows, target, dtype=torch.long)
        if family != "masked":
            batch["use_cache"] = False
        if given:
            batch |= {"loss_labels": labels, **given}
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = model(**batch)
        if autocast:
            outputs = type(outputs)(convert_to_fp32(dict(outputs)))
        return loss_of(outputs, labels, num_items_in_batch=rows * target)

    return step


def convert_to_fp32(outputs: dict) -> dict:
    """As accelerate does with what an autocast forward pass returns."""
    return convert_outputs_to_fp32(lambda: outputs)()


def print_summary(found: dict, file=None) -> None:
    """Modules and memory as two tables."""
    file = file or sys.stdout
    print(f"{found['class']}: {found['parameters']:,} parameters, {found['trainable']:,} trained, "
          f"{found['frozen']:,} frozen\n", file=file)  # fmt: skip
    print_rows([Row(**row) for row in found["modules"]], file)
    load, memory = found["load"], Memory(**found["memory"])
    print(f"\nmemory of one {found['device'].upper()} in a step of {_load_text(load)}, {found['optimizer']}"
          f"{_sharding_text(found)}", file=file)  # fmt: skip
    for name in ("weights", "gradients", "optimizer", "activations", "peak", "host"):
        value = getattr(memory, name)
        if value or name != "host":
            where = f"   in {memory.moment}" if name == "peak" else ""
            print(f"{name:<12}{value / GIB:>10.3f} GiB{where}", file=file)


def _load_text(load: dict) -> str:
    text = f"{load['batch_size']} x ({load['source_length']} -> {load['target_length']} tokens)"
    text += ", bf16 autocast" if load["bf16"] else ", float32"
    return text + (", checkpointing" if load["gradient_checkpointing"] else "")


def _sharding_text(found: dict) -> str:
    return f", {found['deepspeed']} over {found['num_gpus']}" if found["deepspeed"] else ""
