"""What a pre-training run would do, without doing it (`pre_train_t5.py --dry_run`); the text is not read.

>>> print_dry_run(settings, changed, model, tokenizer, collator, args)
{'parameters': 247577856, 'blocks': [{'tokens': 568, 'inputs': 512, 'targets': 114, 'share': 1.0}], 'steps': 65536, ...}
"""

import numpy as np
from rich import box
from rich.table import Table

from t5suite.base.terminal import Terminal
from t5suite.data.text.documents import bundled_text, read_documents
from t5suite.tracking.dry_runs import print_settings
from t5suite.training.monitoring.progress import short_number
from t5suite.training.monitoring.throughput import forward_flops
from t5suite.training.steps import update_size


def print_dry_run(settings: dict, changed: dict, model, tokenizer, collator, args) -> dict:
    """Prints settings, a block of each length before and after, steps, tokens and FLOPs; returns the figures.

    Steps are None where passes over the text decide them: the text would have to be read.
    """
    console = Terminal(width=118)
    print_settings(console, settings, changed)
    figures = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "blocks": _blocks(collator),
        **_budget(model, collator, args),
    }
    _print_blocks(console, figures["blocks"])
    _print_example(console, collator, tokenizer)
    console.print(f"{type(model).__name__}, {short_number(figures['parameters'])} parameters", highlight=False)
    steps = "as many as the passes over the text take" if figures["steps"] is None else f"{figures['steps']:,}"
    console.print(
        f"{steps} updates of {figures['update_size']} blocks ({args.per_device_train_batch_size} a device x "
        f"{args.gradient_accumulation_steps} micro-batches x {args.world_size} devices): "
        f"{short_number(figures['tokens_an_update'])} tokens of text and {figures['flops_an_update'] / 1e12:.3g} TFLOP "
        "an update",
        highlight=False,
    )
    if figures["steps"] is not None:
        tokens, flops = (figures[name] * figures["steps"] for name in ("tokens_an_update", "flops_an_update"))
        console.print(f"{short_number(tokens)} tokens and {flops / 1e18:.3g} EFLOP in all", highlight=False)
    return figures


def _blocks(collator) -> list[dict]:
    """For each length of block: its tokens, and the inputs and targets of one example."""
    shares = np.asarray(collator.weights) / sum(collator.weights)
    return [
        {"tokens": tokens, "share": float(share), **_example_lengths(collator, tokens, denoiser)}
        for denoiser, (tokens, share) in enumerate(zip(collator.tokens_lengths, shares, strict=True))
    ]


def _example_lengths(collator, tokens: int, denoiser: int) -> dict:
    batch = collator([{"input_ids": np.full(tokens, 5), "index": 0, "denoiser": denoiser}])
    return {"inputs": int(batch["attention_mask"].sum()), "targets": int(batch["labels"].ne(-100).sum())}


def _budget(model, collator, args) -> dict:
    shapes = {"input_ids": (1, collator.inputs_length)}
    if hasattr(collator, "targets_length"):
        shapes["decoder_input_ids"] = (1, collator.targets_length)
    blocks_an_update = update_size(args)
    mean_tokens = float(np.average(collator.tokens_lengths, weights=collator.weights))
    return {
        "steps": args.max_steps if args.max_steps > 0 else None,
        "update_size": blocks_an_update,
        "tokens_an_update": mean_tokens * blocks_an_update,
        "flops_an_update": 3 * forward_flops(model, shapes) * blocks_an_update,
    }


def _print_blocks(console, blocks: list[dict]) -> None:
    table = Table(title="blocks, in tokens", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("share %", "text", "inputs", "targets"):
        table.add_column(name, justify="right")
    for block in blocks:
        table.add_row(f"{100 * block['share']:.1f}", *(str(block[name]) for name in ("tokens", "inputs", "targets")))
    console.print(table)


def _print_example(console, collator, tokenizer, shown: int = 60) -> None:
    """The bundled text's beginning as an example of each block, cut to some tokens."""
    longest, ids = max(collator.tokens_lengths), []
    for document in read_documents(bundled_text("validation")):
        ids += tokenizer(document, add_special_tokens=False)["input_ids"]
        if len(ids) >= longest:
            break
    if getattr(collator, "sentence_pairs", None) or len(ids) < longest:
        return
    for denoiser, tokens in enumerate(collator.tokens_lengths):
        batch = collator([{"input_ids": np.asarray(ids[:tokens]), "index": 0, "denoiser": denoiser}])
        labels = batch["labels"][0]
        for side, row in (("inputs", batch["input_ids"][0]), ("targets", labels[labels != -100])):
            console.print(f"  {side + ':':9}{tokenizer.decode(row[:shown].tolist())}", markup=False, highlight=False)
