"""Which of T5's large models train on which cards: the table of docs/memory.md, computed by the estimator.

    python -m benchmarks.what_fits                   # prints the table in Markdown: some ten minutes of one processor
    python -m benchmarks.what_fits --model t5-3b --source_length 512 --target_length 114

Every cell is a rehearsed step (`t5suite.models.rehearsal`): the largest of the batch sizes tried whose peak fits the
card, with what the card's driver, libraries and the allocator's fragments take left out.
"""

import argparse

import torch

from t5suite.models.adapters import add_adapter, inner_model
from t5suite.models.freezing import freeze
from t5suite.models.loading import load_model_shapes
from t5suite.models.memory import Sharding, estimate
from t5suite.models.presets import PRESETS
from t5suite.models.rehearsal import rehearse
from t5suite.training.memory_summary import GIB, Load, RowsOnly, training_step

BATCH_SIZES = (1, 8, 32)
# GiB that the driver reports for cards of so many GB.
CARDS = {"16 GB": 16, "24 GB": 24, "40 GB": 40, "48 GB": 48, "80 GB": 80, "141 GB": 139.8}
# The device's context, cuBLAS' and the kernels' scratch; and the share that the allocator loses to fragments.
CONTEXT_GIB, FRAGMENTS = 1.0, 0.03


def usable(card: str) -> float:
    """Bytes of a card that tensors can have."""
    return (CARDS[card] * (1 - FRAGMENTS) - CONTEXT_GIB) * GIB


def peaks(model_name: str, batch_size: int, source_length: int, target_length: int) -> dict[str, int]:
    """`{way of training: bytes at the worst moment}`; ways that share a rehearsal are rehearsed once."""
    found = {}
    for name, (change, load, dtype) in REHEARSALS.items():
        load = Load(batch_size, source_length, target_length, **load)
        model = load_model_shapes(tokenizer=RowsOnly(PRESETS[model_name]["vocab_size"]), config_name=model_name)
        model = change(model)
        if load.gradient_checkpointing:
            inner_model(model).activation_checkpointing_enable()
        step = training_step(model, load, autocast=dtype is None, gpu=True, chunked=dtype is None)
        rehearsed = rehearse(model, step, gpu=True, dtype=dtype, keep_gradients=dtype is None)
        for way, (rehearsal, settings) in WAYS.items():
            if rehearsal == name:
                found[way] = estimate(model, step, dtype=dtype, rehearsed=rehearsed, **settings)["peak"]
    return {way: found[way] for way in WAYS}


def cell(peaks_by_batch: dict[int, int], card: str) -> str:
    """The largest batch that fits, or a dash."""
    fitting = [batch for batch, peak in peaks_by_batch.items() if peak <= usable(card)]
    return str(max(fitting)) if fitting else "–"


def lora(model):
    return add_adapter(model, None, "lora", {"lora_r": 8})


def frozen_encoder(model):
    freeze(model, "encoder,embeddings")
    return model


def frozen_embeddings(model):
    freeze(model, "embeddings")
    return model


def main(argv=None) -> None:
    """Prints the table, a model's lines as soon as they are known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(PRESETS), help="only these")
    parser.add_argument("--source_length", type=int, default=512)
    parser.add_argument("--target_length", type=int, default=512)
    arguments = parser.parse_args(argv)
    heads = [f"GiB at {batch}" for batch in BATCH_SIZES] + list(CARDS)
    print(f"| model | trained how | {' | '.join(heads)} |\n|---|---|{'---:|' * len(heads)}")
    for name in arguments.model or MODELS:
        lengths = arguments.source_length, arguments.target_length
        tables = {batch: peaks(name, batch, *lengths) for batch in BATCH_SIZES}
        for way in WAYS:
            by_batch = {batch: table[way] for batch, table in tables.items()}
            figures = [f"{peak / GIB:.1f}" for peak in by_batch.values()] + [cell(by_batch, card) for card in CARDS]
            print(f"| {name} | {way} | {' | '.join(figures)} |", flush=True)


MODELS = ("t5-3b", "t5-v1_1-xl", "t5-11b", "t5-v1_1-xxl")
AUTOCAST = {"bf16": True}
CHECKPOINTED = {"bf16": True, "gradient_checkpointing": True}
# What is rehearsed: (the model changed, the load, the type of all weights where it is not float32).
REHEARSALS = {
    "whole": (lambda model: model, AUTOCAST, None),
    "checkpointed": (lambda model: model, CHECKPOINTED, None),
    "embeddings": (frozen_embeddings, CHECKPOINTED, None),
    "decoder": (frozen_encoder, CHECKPOINTED, None),
    "lora": (lora, CHECKPOINTED, None),
    "pure bf16": (lambda model: model, CHECKPOINTED, torch.bfloat16),
}
WAYS = {
    "AdamW": ("whole", {"optimizer": "adamw"}),
    "AdamW, checkpointing": ("checkpointed", {"optimizer": "adamw"}),
    "Adafactor, checkpointing": ("checkpointed", {"optimizer": "adafactor"}),
    "Adafactor, checkpointing, frozen embeddings": ("embeddings", {"optimizer": "adafactor"}),
    "Adafactor, checkpointing, frozen encoder and embeddings": ("decoder", {"optimizer": "adafactor"}),
    "LoRA (q, v; r 8), checkpointing": ("lora", {"optimizer": "adamw"}),
    "ZeRO-2 offload, one card, checkpointing": ("pure bf16", {"sharding": Sharding("zero2_offload")}),
    "ZeRO-3 offload, one card, checkpointing": ("pure bf16", {"sharding": Sharding("zero3_offload")}),
    "ZeRO-3, eight cards, checkpointing": ("pure bf16", {"sharding": Sharding("zero3", num_gpus=8)}),
}

if __name__ == "__main__":
    main()
