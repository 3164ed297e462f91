"""What a run would do, without doing it (`--dry_run`).

    >>> print_dry_run(settings, changed, data, tokenizer, lengths, args)

Shows the resolved settings (those that differ from their defaults marked), examples, lengths in tokens, and steps.
"""

import dataclasses
import enum
import math

import numpy as np
from rich import box
from rich.table import Table
from transformers import Seq2SeqTrainingArguments

from t5suite.base.redaction import redacted_value
from t5suite.base.terminal import Terminal
from t5suite.data.corpora.documents import bundled_text, read_documents
from t5suite.training.monitoring.rates import forward_flops
from t5suite.training.monitoring.terminal import short_number
from t5suite.training.run import update_size

PAIRS = 3
SAMPLE = 2000
# Of Hugging Face's hundred settings these are always shown; others where they differ from their defaults.
SHOWN = frozenset(
    """learning_rate optim lr_scheduler_type warmup_steps weight_decay max_grad_norm num_train_epochs max_steps
    per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps bf16 fp16 seed eval_strategy
    eval_steps save_strategy save_steps save_total_limit load_best_model_at_end generation_num_beams
    label_smoothing_factor z_loss train_sampling_strategy output_dir""".split()
)


def print_dry_run(settings: dict, changed: dict, data, tokenizer, lengths, args) -> dict:
    """Prints the overview and returns its figures.

    Args:
      settings: every setting by name.
      changed: the settings that are not at their defaults.
      data: `fine_tuning.Data`.
    """
    console = Terminal(width=118)
    print_settings(console, settings, changed)
    _print_pairs(console, data)
    figures = {"lengths": {}, "steps": None}
    table = Table(title="tokens", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("split", "examples", "side", "50%", "90%", "99%", "longest", "cut off %", "unknown %"):
        table.add_column(name, justify="left" if name in ("split", "side") else "right")
    for name, examples, side, texts, limit in _sides(data, lengths):
        found = token_figures(texts, side, tokenizer, limit)
        figures["lengths"][f"{name} {side}"] = found
        table.add_row(name, str(examples), side, *(str(found[key]) for key in ("p50", "p90", "p99", "longest")),
                      f"{found['cut_off']:.2f}", f"{found['unknown']:.3f}")  # fmt: skip
    console.print(table)
    if data.features:
        figures.update(_steps(data, args))
        console.print(
            f"{figures['steps']} steps of {figures['update_size']} examples "
            f"({args.per_device_train_batch_size} a device x {args.gradient_accumulation_steps} micro-batches x "
            f"{args.world_size} devices), {figures['examples']} examples an epoch",
            highlight=False,
        )
    return figures


def token_figures(texts: list[str], side: str, tokenizer, limit: int) -> dict:
    """Length percentiles in tokens, the share of texts longer than `limit`, and the share of unknown pieces.

    >>> token_figures(["a b"], "inputs", tokenizer, 512)["longest"]
    3
    """
    ids = tokenizer(texts)["input_ids"] if side == "inputs" else tokenizer(text_target=texts)["input_ids"]
    sizes = np.array([len(row) for row in ids])
    tokens = np.array([token for row in ids for token in row])
    p50, p90, p99 = (int(value) for value in np.percentile(sizes, [50, 90, 99], method="higher"))
    return {
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "longest": int(sizes.max()),
        "cut_off": 100 * float(np.mean(sizes > limit)),
        "unknown": 100 * float(np.mean(tokens == tokenizer.unk_token_id)),
    }


def print_settings(console, settings: dict, changed: dict) -> None:
    """A table of our flags, the most important of Hugging Face's, and whatever is not at its default."""
    table = Table(title="settings (* not the default)", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("flag")
    table.add_column("value")
    ours = set(settings) - {spec.name for spec in dataclasses.fields(Seq2SeqTrainingArguments)}
    for name, value in settings.items():
        if name in ours or name in SHOWN or name in changed:
            star = "*" if name in changed else ""
            shown = redacted_value({name: value.value if isinstance(value, enum.Enum) else value})[name]
            table.add_row(f"--{name}{star}", str(shown))
    console.print(table)


def _print_pairs(console, data):
    examples = [
        (part.task, example)
        for part in data.training_sets
        for row in part.rows.select(range(min(PAIRS, len(part.rows))))
        for example in part.task.examples(row, "train")
    ]
    examples = examples or [(s.task, e) for s in data.scored for e in s.examples[:PAIRS]]
    for task, example in examples[:PAIRS]:
        console.print(f"[bold]{task.name}[/bold]")
        console.print(f"  inputs:  {example.inputs}", markup=False, highlight=False)
        console.print(f"  targets: {example.targets}", markup=False, highlight=False)


def _sides(data, lengths):
    """`(name, number of examples, side, texts, limit)`: a sample of each split's inputs and targets."""
    for part in data.training_sets:
        rows = part.rows.select(range(min(SAMPLE, len(part.rows))))
        examples = [example for row in rows for example in part.task.examples(row, "train")]
        if examples:
            yield from _both_sides(f"{part.task.name} train", examples, part.task.lengths(lengths))
    for eval_set in data.scored:
        if eval_set.examples:
            of_task = eval_set.task.lengths(lengths)
            yield from _both_sides(f"{eval_set.name} {eval_set.split}", eval_set.examples[:SAMPLE], of_task)


def _both_sides(name, examples, lengths):
    yield name, len(examples), "inputs", [example.inputs for example in examples], lengths.source
    yield name, len(examples), "targets", [example.targets for example in examples], lengths.target


def _steps(data, args) -> dict:
    examples = sum(len(features) for features in data.features)
    examples_an_update = update_size(args)
    an_epoch = math.ceil(examples / examples_an_update)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(an_epoch * args.num_train_epochs)
    return {"examples": examples, "update_size": examples_an_update, "steps": steps}


def print_pre_training_dry_run(settings: dict, changed: dict, model, tokenizer, collator, args) -> dict:
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
