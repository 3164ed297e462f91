"""What a run would do, without doing it (`--dry_run`).

    >>> print_dry_run(settings, changed, data, encoding, lengths, args)

Shows examples, lengths in tokens, steps, and the settings that differ from their defaults.
"""

import enum
import math

import numpy as np

from t5suite.base.redaction import redacted_value
from t5suite.base.terminal import Terminal
from t5suite.data.batches.pre_training_collator import PAIR_LABELS
from t5suite.reports.tables import new_table
from t5suite.tasks.tokens import encoded
from t5suite.training.monitoring.rates import forward_flops
from t5suite.training.monitoring.terminal import short_number
from t5suite.training.run import update_size

PAIRS = 3
SAMPLE = 2000
# [CLS] first [SEP] second [SEP]
NUM_PAIR_MARKS = 3


def print_dry_run(settings: dict, changed: dict, data, encoding, lengths, args) -> dict:
    """Prints the overview and returns its figures.

    Args:
      settings: every setting by name.
      changed: the settings that are not at their defaults.
      data: `fine_tuning.Data`.
      encoding: how the model's family reads and writes.
    """
    console = Terminal(width=118, highlight=False)
    parts, pairs = _sampled(data, encoding)
    for name, inputs, targets in pairs:
        console.print(f"[bold]{name}[/bold]")
        console.print(f"  inputs:  {inputs}\n  targets: {targets}", markup=False)
    figures = {"lengths": _print_lengths(console, parts, encoding, lengths), "steps": None}
    if data.features:
        examples, of_update = sum(len(features) for features in data.features), update_size(args)
        steps = args.max_steps
        if steps <= 0:
            steps = math.ceil(math.ceil(examples / of_update) * args.num_train_epochs)
        figures |= {"examples": examples, "update_size": of_update, "steps": steps}
        console.print(f"{steps} steps of {of_update} examples ({_shape_of_update(args)}), {examples} examples an epoch")
    _print_settings(console, settings, changed)
    return figures


def _sampled(data, encoding) -> tuple[list[tuple], list[tuple]]:
    """`(name, task, examples)` of each split, and `(task's name, inputs, targets)` of the first examples."""
    parts, pairs = [], []
    for training_set in data.training_sets:
        task = training_set.task
        reads = encoding.for_task(task)
        examples = []
        for row in training_set.rows.select(range(min(SAMPLE, len(training_set.rows)))):
            examples_of_row = reads.examples(row, task, "train")
            if len(pairs) < PAIRS:
                for example in examples_of_row:
                    pairs.append((task.name, reads.shown(example, row, task), example.targets))
            examples += examples_of_row
        parts.append((f"{task.name} train", task, examples))
    for eval_set in data.scored:
        parts.append((f"{eval_set.name} {eval_set.split}", eval_set.task, eval_set.examples[:SAMPLE]))
        for place in range(min(PAIRS - len(pairs), len(eval_set.examples))):
            pairs.append((eval_set.task.name, eval_set.shown_inputs(place), eval_set.examples[place].targets))
    return parts, pairs[:PAIRS]


def _print_lengths(console, parts: list[tuple], encoding, lengths) -> dict:
    """A table of lengths in tokens; returns the figures by split and side."""
    figures = {}
    columns = ("split", "examples", "side", "50%", "90%", "99%", "longest", "cut off %", "unknown %")
    table = new_table("tokens", columns, right=("examples", *columns[3:]))
    for name, task, examples in parts:
        reads, tokenizer = encoding.for_task(task), encoding.tokenizer
        limits = {"inputs": reads.longest_input, "targets": task.lengths(lengths).target}
        template = f"{task.template} {getattr(tokenizer, 'sep_token', None) or ''}"
        for side, limit in limits.items() if examples else ():
            texts = [getattr(example, side) for example in examples]
            tokens = token_figures(texts, side, tokenizer, limit, template)
            figures[f"{name} {side}"] = tokens
            cells = [str(tokens[key]) for key in ("p50", "p90", "p99", "longest")]
            cells += [f"{tokens['cut_off']:.2f}", f"{tokens['unknown']:.3f}"]
            table.add_row(name, str(len(examples)), side, *cells)
    console.print(table)
    return figures


def _print_settings(console, settings: dict, changed: dict) -> None:
    """The flags that are not at their defaults."""
    table = new_table("settings that differ from their defaults", ("flag", "value"))
    for name, value in settings.items():
        if name in changed:
            safe = redacted_value({name: value.value if isinstance(value, enum.Enum) else value})[name]
            table.add_row(f"--{name}", str(safe))
    if table.rows:
        console.print(table)


def _shape_of_update(args) -> str:
    return (
        f"{args.per_device_train_batch_size} a device x {args.gradient_accumulation_steps} micro-batches x "
        f"{args.world_size} devices"
    )


def token_figures(texts: list[str], side: str, tokenizer, limit: int, template: str = "") -> dict:
    """Length percentiles in tokens, the share of texts longer than `limit`, and the share of unknown pieces.

    Control tokens of `template` are tokens in the texts.

    >>> token_figures(["a b"], "inputs", tokenizer, 512)["longest"]
    3
    """
    ids = encoded(tokenizer, **{"texts" if side == "inputs" else "text_target": texts}, template=template)["input_ids"]
    sizes = np.array([len(row) for row in ids])
    return {
        **{f"p{share}": int(np.percentile(sizes, share, method="higher")) for share in (50, 90, 99)},
        "longest": int(sizes.max()),
        "cut_off": 100 * float(np.mean(sizes > limit)),
        "unknown": 100 * float(np.mean(np.concatenate(ids) == tokenizer.unk_token_id)),
    }


def _block(num_tokens: int, denoiser: int) -> dict:
    return {"input_ids": np.full(num_tokens, 5), "index": 0, "denoiser": denoiser}


def _longest_pair(collator) -> dict:
    """A pair of sentences with its control tokens, which fills the input."""
    ids = np.full(collator.inputs_length, 5)
    return {"input_ids": ids, "token_type_ids": ids * 0, PAIR_LABELS[collator.sentence_pairs]: 0, "index": 0}


def print_pre_training_dry_run(settings: dict, changed: dict, model, collator, args) -> dict:
    """Prints settings, a block of each length before and after, steps, tokens and FLOPs; returns the figures.

    Steps are None if they depend on the passes over the text, which would have to be read.
    """
    console = Terminal(width=118, highlight=False)
    are_pairs = getattr(collator, "sentence_pairs", None) is not None
    lengths = [collator.inputs_length - NUM_PAIR_MARKS] if are_pairs else collator.tokens_lengths
    shares = np.asarray(collator.weights) / sum(collator.weights)
    blocks, columns = [], ("share %", "text", "inputs", "targets")
    table = new_table("blocks, in tokens", columns, right=columns)
    for denoiser, (tokens, share) in enumerate(zip(lengths, shares, strict=True)):
        batch = collator([_longest_pair(collator) if are_pairs else _block(tokens, denoiser)])
        sides = {"inputs": int(batch["attention_mask"].sum()), "targets": int(batch["labels"].ne(-100).sum())}
        blocks.append({"tokens": tokens, "share": float(share), **sides})
        table.add_row(f"{100 * share:.1f}", *map(str, (tokens, *sides.values())))
    console.print(table)
    shapes = {"input_ids": (1, collator.inputs_length)}
    if hasattr(collator, "targets_length"):
        shapes["decoder_input_ids"] = (1, collator.targets_length)
    of_update = update_size(args)
    figures = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "blocks": blocks,
        "steps": args.max_steps if args.max_steps > 0 else None,
        "update_size": of_update,
        "tokens_an_update": float(np.average(lengths, weights=collator.weights)) * of_update,
        "flops_an_update": 3 * forward_flops(model, shapes) * of_update,
    }
    steps = "as many as the passes over the text take" if figures["steps"] is None else f"{figures['steps']:,}"
    console.print(
        f"{type(model).__name__}, {short_number(figures['parameters'])} parameters\n"
        f"{steps} updates of {of_update} blocks ({_shape_of_update(args)}): "
        f"{short_number(figures['tokens_an_update'])} tokens of text and "
        f"{figures['flops_an_update'] / 1e12:.3g} TFLOP an update"
    )
    _print_settings(console, settings, changed)
    return figures
