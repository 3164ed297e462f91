"""What a run would do, without doing it (`--dry_run`).

    >>> print_dry_run(settings, changed, data, encoding, lengths, args, mixing)

Shows examples, lengths in tokens, steps, and the settings that differ from their defaults.
"""

import enum
import math
from typing import NamedTuple

import numpy as np

from t5suite.base.redaction import redacted_value
from t5suite.base.terminal import PLAIN_WIDTH, Terminal
from t5suite.data.batches.pre_training_collator import PAIR_LABELS
from t5suite.data.batches.training_data import Mixing, examples_an_epoch
from t5suite.reports.tables import new_table
from t5suite.reports.unknown_pieces import unknown_line, unknown_pieces
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Task
from t5suite.tasks.tokens import encoded
from t5suite.training.checkpoints.restoring import total_steps
from t5suite.training.monitoring.flops import forward_flops
from t5suite.training.monitoring.terminal import short_number
from t5suite.training.run_directory import update_size

# How many examples are shown, and of how many rows a split the lengths are counted.
SHOWN_EXAMPLES = 3
SAMPLED_ROWS = 2000
PERCENTILES = (50, 90, 99)
# [CLS] first [SEP] second [SEP]
NUM_PAIR_MARKS = 3
# An id that every vocabulary has; which one it is does not matter where lengths are counted.
SOME_TOKEN = 5


class SampledSplit(NamedTuple):
    """The first examples of a split.

    Attributes:
      examples: of the first SAMPLED_ROWS rows of a training set, or the first SAMPLED_ROWS ones that are scored.
      first_texts: `(inputs, targets)` of the first ones, with what the model adds or cuts off marked for people.
      places: file and line of each example's row; empty where they are not known.
      num_examples: of the whole split.
    """

    name: str
    task: Task
    examples: list[Example]
    first_texts: list[tuple[str, str]]
    places: list[str]
    num_examples: int

    @property
    def counted(self) -> str:
        """Of how many examples the figures are."""
        if len(self.examples) == self.num_examples:
            return str(self.num_examples)
        return f"first {len(self.examples):,} of {self.num_examples:,}"


def print_dry_run(settings: dict, changed: dict, data, encoding, lengths, args, mixing: Mixing) -> dict:
    """Prints the overview and returns its figures.

    Args:
      settings: every setting by name.
      changed: the settings that are not at their defaults.
      data: `fine_tuning_data.Data`.
      encoding: how the model's family reads and writes.
      lengths: the flags' limits on lengths (`tasks.tokenization.Lengths`).
      args: Hugging Face's training arguments.
      mixing: how often each task of a mixture is drawn.
    """
    console = Terminal(width=PLAIN_WIDTH, highlight=False)
    splits = _sampled_splits(data, encoding)
    _print_examples(console, splits)
    figures = {"lengths": _print_lengths(console, splits, encoding, lengths), "steps": None}
    if data.features:  # none with --eval_only
        figures |= _figures_of_training(data, args, mixing)
        console.print(
            f"{figures['steps']} steps of {figures['update_size']} examples ({_shape_of_update(args)}), "
            f"{figures['examples']} examples an epoch: {_epochs_text(figures)}"
        )
    _print_settings(console, settings, changed, args)
    return figures


def _sampled_splits(data, encoding) -> list[SampledSplit]:
    """The training sets, then what is evaluated."""
    splits = []
    for training_set, features in zip(data.training_sets, data.features, strict=True):
        splits.append(_sampled_training_set(training_set, encoding, len(features)))
    for eval_set in data.evaluated:
        first_texts = []
        for index, example in enumerate(eval_set.examples[:SHOWN_EXAMPLES]):
            first_texts.append((eval_set.shown_inputs(index), example.targets))
        name = f"{eval_set.name} {eval_set.split}"
        examples = eval_set.examples[:SAMPLED_ROWS]
        places = []
        if eval_set.places:
            places = [eval_set.places[row] for row in eval_set.row_of_example[: len(examples)]]
        splits.append(SampledSplit(name, eval_set.task, examples, first_texts, places, len(eval_set.examples)))
    return splits


def _sampled_training_set(training_set, encoding, num_examples: int) -> SampledSplit:
    task = training_set.task
    task_encoding = encoding.for_task(task)
    examples: list[Example] = []
    first_texts: list[tuple[str, str]] = []
    places: list[str] = []
    places_of_rows = training_set.loaded.places
    # Places are those of the rows as they were read. After a random split the places of the remaining rows are unknown.
    has_places = bool(places_of_rows) and len(training_set.rows) == len(training_set.loaded.rows)
    for number, row in enumerate(training_set.rows.select(range(min(SAMPLED_ROWS, len(training_set.rows))))):
        examples_of_row = task_encoding.examples(row, task, "train")
        if len(first_texts) < SHOWN_EXAMPLES:
            for example in examples_of_row:
                first_texts.append((task_encoding.shown(example, row, task), example.targets))
        examples += examples_of_row
        if has_places:
            places += [places_of_rows[number]] * len(examples_of_row)
    return SampledSplit(f"{task.name} train", task, examples, first_texts, places, num_examples)


def _print_examples(console, splits: list[SampledSplit]) -> None:
    """The first examples of all splits together."""
    examples = []
    for split in splits:
        for inputs, targets in split.first_texts:
            examples.append((split.task.name, inputs, targets))
    for task_name, inputs, targets in examples[:SHOWN_EXAMPLES]:
        console.print(task_name, style="bold")
        console.print(f"  inputs:  {inputs}\n  targets: {targets}")


def _print_lengths(console, splits: list[SampledSplit], encoding, lengths) -> dict:
    """A table of lengths in tokens; returns the figures by split and side."""
    figures = {}
    columns = ("split", "examples", "side", "50%", "90%", "99%", "longest", "cut off %", "unknown %")
    table = new_table("tokens", columns, right=("examples", *columns[3:]))
    tokenizer = encoding.tokenizer
    separator = getattr(tokenizer, "sep_token", None) or ""
    lines_of_unknown = []
    for split in splits:
        if not split.examples:
            continue
        # The control tokens that stand in the texts: those that the task writes, and the one between two texts.
        template = f"{split.task.template} {separator}"
        # A model may have less room for inputs than the flags give; targets have the flags' alone.
        limits = {
            "inputs": encoding.for_task(split.task).longest_input,
            "targets": split.task.lengths(lengths).target,
        }
        for side, limit in limits.items():
            texts = [getattr(example, side) for example in split.examples]
            tokens = token_figures(texts, side, tokenizer, limit, template)
            name = f"{split.name} {side}"
            figures[name] = tokens
            if tokens["unknown"]:
                tokens["unknown_pieces"] = unknown_pieces(texts, tokenizer)
                lines_of_unknown.append(unknown_line(name, tokens["unknown_pieces"], split.places))
            sizes = [str(tokens[key]) for key in ("p50", "p90", "p99", "longest")]
            shares = [f"{tokens['cut_off']:.2f}", f"{tokens['unknown']:.3f}"]
            table.add_row(split.name, split.counted, side, *sizes, *shares)
    console.print(table)
    for line in lines_of_unknown:
        console.print(line, soft_wrap=True)
    return figures


def _figures_of_training(data, args, mixing: Mixing) -> dict:
    """Examples an epoch, examples an update, and the number of updates."""
    num_examples = examples_an_epoch([len(features) for features in data.features], mixing)
    examples_an_update = update_size(args)
    steps = total_steps(args, num_examples, examples_an_update)
    return {"examples": num_examples, "update_size": examples_an_update, "steps": steps}


def _epochs_text(figures: dict) -> str:
    """How many epochs the updates are; an epoch's last update may be smaller.

    >>> _epochs_text({"steps": 262144, "update_size": 8, "examples": 285})
    '7,282 epochs'
    """
    epochs = figures["steps"] / math.ceil(figures["examples"] / figures["update_size"])
    return f"{epochs:,.0f} epochs" if epochs >= 10 else f"{epochs:.1f} epochs"


def _print_settings(console, settings: dict, changed: dict, args) -> None:
    """The flags that are not at their defaults."""
    table = new_table("settings that differ from their defaults", ("flag", "value"))
    # Whether there are progress bars is no setting of the user's: it follows from the terminal.
    names_of_others = {"disable_tqdm"}
    if not args.use_cpu_given:  # it follows from the machine
        names_of_others.add("use_cpu")
    for name, setting in settings.items():
        if name not in changed or name in names_of_others:
            continue
        if isinstance(setting, enum.Enum):
            setting = setting.value
        redacted = redacted_value({name: setting})
        table.add_row(f"--{name}", str(redacted[name]))
    if table.rows:
        console.print(table)


def _shape_of_update(args) -> str:
    return (
        f"{args.per_device_train_batch_size} a device x {args.gradient_accumulation_steps} micro-batches x "
        f"{args.world_size} devices"
    )


def token_figures(texts: list[str], side: str, tokenizer, limit: int, template: str = "") -> dict:
    """Percentiles of lengths in tokens, and in percent the texts that are longer than `limit`, and unknown pieces.

    A control token such as `[SEP]` in a text is one token if `template` has it, and else letters like any others.

    >>> token_figures(["a b"], "inputs", tokenizer, 512)["longest"]
    3
    """
    if side == "inputs":
        encoding = encoded(tokenizer, texts=texts, template=template)
    else:
        encoding = encoded(tokenizer, text_target=texts, template=template)
    ids = encoding["input_ids"]
    sizes = np.array([len(ids_of_text) for ids_of_text in ids])
    figures = {}
    for percent in PERCENTILES:
        figures[f"p{percent}"] = int(np.percentile(sizes, percent, method="higher"))
    figures["longest"] = int(sizes.max())
    figures["cut_off"] = 100 * float(np.mean(sizes > limit))
    figures["unknown"] = 100 * float(np.mean(np.concatenate(ids) == tokenizer.unk_token_id))
    return figures


def print_pre_training_dry_run(settings: dict, changed: dict, model, collator, args) -> dict:
    """Prints settings, a block of each length before and after it is corrupted, steps, tokens and FLOPs.

    Returns the figures.

    Steps are None if they depend on the passes over the text, which would have to be read.
    """
    console = Terminal(width=PLAIN_WIDTH, highlight=False)
    blocks = _blocks_before_and_after(collator)
    _print_blocks(console, blocks)
    figures = _figures_of_pre_training(model, collator, blocks, args)
    updates = "as many updates as the passes over the text take,"
    if figures["steps"] is not None:
        updates = f"{figures['steps']:,} updates"
    console.print(
        f"{type(model).__name__}, {short_number(figures['parameters'])} parameters\n"
        f"{updates} of {figures['update_size']} blocks ({_shape_of_update(args)}): "
        f"{short_number(figures['tokens_an_update'])} tokens of text and "
        f"{figures['flops_an_update'] / 1e12:.3g} TFLOP an update"
    )
    _print_settings(console, settings, changed, args)
    return figures


def _blocks_before_and_after(collator) -> list[dict]:
    """For each denoiser: tokens of text in a block, its share of the blocks, tokens of its inputs and targets.

    Pairs of sentences have one denoiser.
    """
    has_pairs = getattr(collator, "sentence_pairs", None) is not None
    if has_pairs:
        lengths = [collator.inputs_length - NUM_PAIR_MARKS]
        examples = [_longest_pair(collator)]
    else:
        lengths = collator.tokens_lengths
        examples = [_block(num_tokens, denoiser) for denoiser, num_tokens in enumerate(lengths)]
    shares = np.asarray(collator.weights) / sum(collator.weights)
    blocks = []
    for num_tokens, share, example in zip(lengths, shares, examples, strict=True):
        batch = collator([example])
        block = {
            "tokens": num_tokens,
            "share": float(share),
            "inputs": int(batch["attention_mask"].sum()),
            "targets": int(batch["labels"].ne(-100).sum()),
        }
        blocks.append(block)
    return blocks


def _block(num_tokens: int, denoiser: int) -> dict:
    """The first block of a training, all of one token."""
    return {"input_ids": np.full(num_tokens, SOME_TOKEN), "index": 0, "denoiser": denoiser}


def _longest_pair(collator) -> dict:
    """A pair of sentences that fills the input, control tokens included; all of one token, as lengths are counted."""
    ids = np.full(collator.inputs_length, SOME_TOKEN)
    label = PAIR_LABELS[collator.sentence_pairs]
    return {"input_ids": ids, "token_type_ids": ids * 0, label: 0, "index": 0}


def _print_blocks(console, blocks: list[dict]) -> None:
    columns = ("share %", "text", "inputs", "targets")
    table = new_table("blocks, in tokens", columns, right=columns)
    for block in blocks:
        table.add_row(f"{100 * block['share']:.1f}", str(block["tokens"]), str(block["inputs"]), str(block["targets"]))
    console.print(table)


def _figures_of_pre_training(model, collator, blocks: list[dict], args) -> dict:
    """Parameters, updates, and what an update takes: blocks, tokens of text, FLOPs."""
    shapes = {"input_ids": (1, collator.inputs_length)}
    if hasattr(collator, "targets_length"):
        shapes["decoder_input_ids"] = (1, collator.targets_length)
    steps = None
    if args.max_steps > 0:
        steps = args.max_steps
    blocks_an_update = update_size(args)
    tokens_a_block = float(np.average([block["tokens"] for block in blocks], weights=collator.weights))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "blocks": blocks,
        "steps": steps,
        "update_size": blocks_an_update,
        "tokens_an_update": tokens_a_block * blocks_an_update,
        # The backward pass computes twice as much as the forward pass.
        "flops_an_update": 3 * forward_flops(model, shapes) * blocks_an_update,
    }
