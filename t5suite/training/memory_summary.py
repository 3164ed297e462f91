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
from torch import nn

from t5suite.models.adapters import inner_model
from t5suite.models.chunked_loss import LossSettings, accept_loss_labels, chunk_tokens_on, takes_loss_labels
from t5suite.models.families import family_of_model
from t5suite.models.memory import Memory, estimate
from t5suite.training.losses import TokenLoss

DEPTH = 3


@dataclass(frozen=True)
class Row:
    """A module of the table.

    Attributes:
      name: its own, without those of the modules around it; of a list of layers with their number.
      depth: how many modules are around it.
      parameters, trained: numbers of weights, each counted once in the table; trained are those that are not frozen.
      tied_to: the module whose weights these are, where it has none that were not counted before.
    """

    name: str
    depth: int
    parameters: int
    trained: int
    tied_to: str | None = None

    @property
    def state(self) -> str:
        """In words: trained, frozen or how many of both."""
        if not self.parameters:
            return f"is {self.tied_to}" if self.tied_to else ""
        if self.trained in (0, self.parameters):
            return "trained" if self.trained else "frozen"
        return f"{self.trained:,} trained, {self.parameters - self.trained:,} frozen"


def module_rows(model, depth: int = DEPTH) -> list[Row]:
    """The table of a model; its parameters add up to the model's own number of them.

    Args:
      depth: modules within modules that have rows of their own.
    """
    rows, owners = [], {}
    for name, child in model.named_children():
        _add_rows(name, name, child, 0, depth, owners, rows)
    alone = [p for p in model._parameters.values() if p is not None and id(p) not in owners]
    if alone:
        rows.append(Row("(its own)", 0, _count(alone), _count(p for p in alone if p.requires_grad)))
    return rows


def totals(model) -> dict[str, int]:
    """`{"parameters": ..., "trainable": ..., "frozen": ...}`; a tied matrix counts once.

    >>> totals(freeze_encoder(t5_small))
    {'parameters': 60506624, 'trainable': 41625344, 'frozen': 18881280}
    """
    parameters = list(model.parameters())
    trained = _count(p for p in parameters if p.requires_grad)
    return {"parameters": _count(parameters), "trainable": trained, "frozen": _count(parameters) - trained}


def print_rows(rows: list[Row], file=None) -> None:
    """The table in columns."""
    names = ["  " * row.depth + row.name for row in rows]
    width = max(map(len, names), default=0) + 2
    for name, row in zip(names, rows, strict=True):
        print(f"{name:<{width}}{row.parameters:>17,}   {row.state}".rstrip(), file=file)


def _add_rows(name: str, path: str, module, depth: int, most: int, owners: dict, rows: list) -> None:
    everything = list(module.parameters())
    if not everything:
        return
    new = [p for p in everything if id(p) not in owners]
    tied_to = None if new else owners[id(everything[0])]
    if not new and depth:
        return
    place = len(rows)
    is_list = isinstance(module, nn.ModuleList)
    rows.append(None)
    if not is_list and depth + 1 < most:
        for child_name, child in module.named_children():
            _add_rows(child_name, f"{path}.{child_name}", child, depth + 1, most, owners, rows)
    for parameter in new:
        owners.setdefault(id(parameter), path)
    shown = f"{name} ({len(module)} layers)" if is_list else name
    rows[place] = Row(shown, depth, _count(new), _count(p for p in new if p.requires_grad), tied_to)


def _count(parameters) -> int:
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)  # ZeRO-3's own are elsewhere


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
