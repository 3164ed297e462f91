"""The steps of a pre-training run that are more than one call, each as a function of plain values.

    >>> corpus = load_corpus(tokenizer, tokens_length=141)
    >>> corpus.train_NL.shape, corpus.validation_NL.shape
    ((1529, 141), (77, 141))

`pre_train_t5.py` calls them one after the other.
Shapes: N blocks, L tokens of a block, B examples, T target tokens, V vocabulary.
"""

import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback

from t5suite.data.blocks import BlockDataset, token_blocks
from t5suite.data.corpora import bundled_text, read_documents
from t5suite.data.jsonl import file_sha256
from t5suite.data.objectives import sentinel_ids
from t5suite.data.pre_training_collator import T5DataCollator
from t5suite.errors import DataError
from t5suite.training.evaluation import Report
from t5suite.training.fine_tuning import TRAINING_FLAGS, update_size
from t5suite.training.monitors import StepMonitor, TerminalLine, WatchedLoss, weight_norm
from t5suite.training.pre_training_evaluation import NAME, HeldOut, PreTrainingEvaluator
from t5suite.training.throughput import peak_flops
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)

DOCUMENTS_AT_ONCE = 1000


def pre_training_output_dir(model: str | None, eval_only: bool = False) -> str:
    """`runs/pre_train-<model>`, and the sweep's run id where an agent set one.

    >>> pre_training_output_dir("google/t5-v1_1-small")
    'runs/pre_train-t5-v1_1-small'
    """
    parts = [NAME, Path(model).name if model else "tiny", "eval" if eval_only else "", os.environ.get("WANDB_RUN_ID")]
    return str(Path("runs") / "-".join(part for part in parts if part))


def warn_of_idle_flags(changed: dict, trains: bool) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    files = [changed[name] for name in ("train_file", "validation_file") if name in changed]
    without_train_file = [name for name in TRAINING_FLAGS if name != "train_file"]
    reasons = [
        (not trains, without_train_file, "nothing is trained"),
        (not trains and "validation_file" in changed, ("train_file",), "the validation file alone is scored"),
        ("validation_file" in changed, ("validation_fraction",), "there is a --validation_file"),
        (not files, ("validation_fraction",), "the bundled text has a validation file"),
        (all(".txt" in Path(file).suffixes for file in files), ("text_column_name",), "no file is .jsonl"),
        (True, ("sortish_sampler",), "blocks are equally long"),
        (True, ("eval_accumulation_steps", "batch_eval_metrics", "prediction_loss_only"), "evaluation is our own"),
    ]
    idle = {name: why for applies, names, why in reasons if applies for name in names if name in changed}
    for name, why in idle.items():
        logger.warning("--%s has no effect: %s", name, why)
    return list(idle)


# ---------------------------------------------------------------------------------------------------------------------
# Text


@dataclass
class Corpus:
    """Blocks of tokens to train on and to be scored on; `described` is what the manifest says of them.

    Attributes:
      train_NL, validation_NL: int32 [N, L]; there is nothing to train on in a run that only evaluates.
    """

    train_NL: np.ndarray | None
    validation_NL: np.ndarray
    described: dict[str, dict]


def load_corpus(
    tokenizer,
    tokens_length: int,
    train_file: str | None = None,
    validation_file: str | None = None,
    *,
    text_column_name: str = "text",
    validation_fraction: float = 0.05,
    trains: bool = True,
) -> Corpus:
    """Reads and tokenizes the text; without files, the bundled one.

    Without a validation file, the last `validation_fraction` of the training blocks is held out (at least one).

    Raises:
      DataError: a file is missing or wrong, or holds too little text for a block on both sides.
    """
    if train_file is None and validation_file is None:
        train_file, validation_file = bundled_text("train"), bundled_text("validation")
    for flag, path in (("--train_file", train_file), ("--validation_file", validation_file)):
        if path is not None and not Path(path).is_file():
            raise DataError(f"{flag} {path}: no such file")
    described, train_NL = {}, None
    if trains or validation_file is None:
        train_NL, described["train"] = load_blocks(train_file, text_column_name, tokenizer, tokens_length)
    if validation_file is not None:
        validation_NL, described["validation"] = load_blocks(
            validation_file, text_column_name, tokenizer, tokens_length
        )
    else:
        train_NL, validation_NL = hold_out(train_NL, validation_fraction, train_file)
        described["train"]["blocks"] = len(train_NL)
        described["validation"] = {"held_out_of": str(train_file), "blocks": len(validation_NL)}
    return Corpus(train_NL if trains else None, validation_NL, described)


def load_blocks(path, text_column_name: str, tokenizer, tokens_length: int) -> tuple[np.ndarray, dict]:
    """A file's text as blocks, int32 [N, L], and what the manifest says of it."""
    encoded = list(encode_documents(read_documents(path, text_column_name), tokenizer))
    try:
        blocks_NL, num_dropped = token_blocks(encoded, lambda ids: ids, tokens_length)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    described = {
        "path": str(path),
        "sha256": file_sha256(path),
        "documents": len(encoded),
        "tokens": blocks_NL.size + num_dropped,
        "blocks": len(blocks_NL),
        "tokens_dropped": num_dropped,
    }
    logger.info("%s: %d documents, %d tokens, %d blocks of %d", path, *list(described.values())[2:5], tokens_length)
    return blocks_NL, described


def encode_documents(documents, tokenizer) -> Iterator[np.ndarray]:
    """Every document's ids, int32, without end-of-sequence; the tokenizer gets many at once."""
    documents = iter(documents)
    while texts := list(islice(documents, DOCUMENTS_AT_ONCE)):
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            yield np.asarray(ids, dtype=np.int32)


def hold_out(blocks_NL: np.ndarray, fraction: float, path) -> tuple[np.ndarray, np.ndarray]:
    """`(blocks to train on, blocks to be scored on)`: the last ones, which are never trained on.

    >>> [len(part) for part in hold_out(np.zeros((100, 8)), 0.05, "articles.txt")]
    [95, 5]
    """
    num_held_out = max(1, round(len(blocks_NL) * fraction))
    if num_held_out >= len(blocks_NL):
        raise DataError(
            f"{path}: {len(blocks_NL)} blocks of {blocks_NL.shape[1]} tokens leave none to train on beside the "
            f"{num_held_out} held out; give more text or a --validation_file, or lower --inputs_length or "
            "--validation_fraction"
        )
    return blocks_NL[:-num_held_out], blocks_NL[-num_held_out:]


def check_same_text(run, described: dict[str, dict]) -> None:
    """A run goes on with the text that it began with: other text at the same path would silently change its data."""
    for split, now in described.items():
        before = run.manifest.get("data", {}).get(split, now)
        if before.get("sha256") != now.get("sha256"):
            raise DataError(
                f"{now['path']} has changed since run {run.run_id} in {run.directory} began; give a new --output_dir"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Batches


def make_collator(
    model,
    tokenizer,
    inputs_length: int,
    targets_length: int | None = None,
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
    seed: int = 42,
    objective: str = "span_corruption",
    **settings,
) -> T5DataCollator:
    """The objective's collator with the tokenizer's sentinels, its noise drawn from (seed, index).

    settings: more of `T5DataCollator`'s (random_roll, mode_token_ids, pack, ...).

    Raises:
      ConfigError: lengths that do not fit, too few sentinels.
    """
    return T5DataCollator(
        objective=objective,
        sentinel_ids=sentinel_ids(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        inputs_length=inputs_length,
        targets_length=targets_length,
        noise_density=noise_density,
        mean_span_length=mean_span_length,
        seed=seed,
        decoder_start_token_id=model.config.decoder_start_token_id,
        pad_token_id=model.config.pad_token_id,
        **settings,
    )


def epoch_blocks(num_blocks: int):
    """Epoch -> the run-long numbers of its data, in order; `BlockDataset` shuffles.

    >>> epoch_blocks(3)(1).tolist()
    [3, 4, 5]
    """
    return lambda epoch: np.arange(epoch * num_blocks, (epoch + 1) * num_blocks)


def num_epochs(args, num_blocks: int) -> int:
    """Epochs that the run enters, the last one perhaps in part."""
    if args.max_steps > 0:
        return math.ceil(args.max_steps / math.ceil(num_blocks / update_size(args)))
    return max(1, math.ceil(args.num_train_epochs))


# ---------------------------------------------------------------------------------------------------------------------
# Trainer


class PreTrainer(SuiteTrainer):
    """A `SuiteTrainer` over run-long numbers: an epoch is a part of its data set, which is as long as the run.

    Its logs say more: accuracy on the targets of the step, norm of the weights, rates, tokens seen, time left.
    """

    def __init__(self, *, peak_tflops: float | None = None, **kwargs):
        super().__init__(**kwargs)
        self.compute_loss_func = WatchedLoss(self.compute_loss_func, self._summed)
        self.monitor = StepMonitor(peak_flops(self.args.device, peak_tflops), self._summed)
        self.add_callback(self.monitor)
        self.remove_callback(PrinterCallback if self.args.disable_tqdm else ProgressCallback)
        self.add_callback(TerminalLine(show_bar=not self.args.disable_tqdm))

    def _summed(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, "sum") if self.accelerator.num_processes > 1 else tensor

    def num_examples(self, dataloader) -> int:
        """Blocks an epoch, which the trainer multiplies by the epochs."""
        return len(self.epoch_order(0))

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Counts the batch; guesses are counted in the steps that will be logged."""
        step = self.state.global_step + 1
        interval = max(int(self.state.logging_steps or 1), 1)
        self.compute_loss_func.watching = step % interval == 0 or (step == 1 and self.args.logging_first_step)
        self.monitor.count(self.model, inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Adds what the steps since the last log were like."""
        if "loss" in logs:
            norm = weight_norm(self.accelerator.unwrap_model(self.model))
            seen = {"accuracy": self.compute_loss_func.accuracy(), "weight_norm": norm}
            logs |= {name: value for name, value in seen.items() if value is not None}
            logs |= self.monitor.rates(self.state)
        super().log(logs, start_time)

    def metrics_of(self, report, prefix: str) -> dict[str, float]:
        """`eval/nll`, `eval/accuracy`, ...; there are no tasks to take an average of."""
        metrics = super().metrics_of(report, prefix)
        del metrics[f"{prefix}/average"]
        return metrics


def held_out(blocks_NL, tokenizer) -> HeldOut:
    """Blocks to be scored, numbered, so that their noise is always the same."""
    examples = [{"input_ids": block, "index": i} for i, block in enumerate(blocks_NL)]
    return HeldOut(examples, frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id})


def make_trainer(
    model,
    tokenizer,
    args,
    corpus: Corpus,
    train_collator: T5DataCollator,
    eval_collator: T5DataCollator,
) -> PreTrainer:
    """A trainer over the corpus; without training blocks, one that evaluates only."""
    dataset, order = None, None
    if corpus.train_NL is not None:
        num_blocks = len(corpus.train_NL)
        dataset = BlockDataset(corpus.train_NL, args.seed, num_epochs(args, num_blocks) * num_blocks)
        order = epoch_blocks(num_blocks)
    trainer = PreTrainer(
        model=model,
        args=args,
        train_dataset=dataset,
        epoch_order=order,
        collator=train_collator,
        eval_sets=[held_out(corpus.validation_NL, tokenizer)],
        selection_metric="loss",
        processing_class=tokenizer,
    )
    show_progress = trainer.is_world_process_zero() and not args.disable_tqdm
    bars = (lambda turns, name: tqdm(turns, desc=f"evaluating {name}", leave=False)) if show_progress else None
    trainer.evaluator = PreTrainingEvaluator(eval_collator, args.per_device_eval_batch_size, trainer.accelerator, bars)
    return trainer


# ---------------------------------------------------------------------------------------------------------------------
# Results


def results_of(report: Report, entropies: dict[str, float]) -> dict:
    """What `results.json` holds: the scores, and what a model without context could reach at best.

    >>> results_of(report, entropies)
    {'tasks': {'pre_train': {'nll': 2.31, 'perplexity': 10.1, ..., 'unigram_nll': 5.71, ...}}, 'averages': {}}
    """
    return {"tasks": {NAME: {**report.results[NAME].metrics, **entropies}}, "averages": {}}


def write_model_card(directory, *, title: str, results: dict, manifest: dict, example: str) -> None:
    """`README.md`: what the model is, how to use it, its nll and how it was made."""
    metrics, data, settings = results["tasks"][NAME], manifest["data"], manifest["settings"]
    shown = ("inputs_length", "noise_density", "mean_span_length", "learning_rate", "lr_scheduler_type")
    shown += ("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "seed")
    version = manifest["versions"].get("t5suite") or ""
    lines = [
        "---", "library_name: transformers", "pipeline_tag: text2text-generation", "tags: [t5suite]", "---", "",
        f"# {title}", "",
        f"Pre-trained with t5suite {version} by span corruption (arXiv:1910.10683).".replace("  ", " "), "",
        "## Use", "", "```python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer", "",
        'model = AutoModelForSeq2SeqLM.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        f"inputs = tokenizer({example!r}, return_tensors=\"pt\")",
        "print(tokenizer.decode(model.generate(**inputs)[0]))", "```", "",
        "## Scores", "", "| text | blocks | nats a token | perplexity |", "|---|---|---|---|",
        f"| validation | {data['validation']['blocks']} | {metrics['nll']:.4f} | {metrics['perplexity']:.2f} |", "",
        "## Training", "", "| setting | value |", "|---|---|",
        f"| training tokens | {data['train']['tokens']} |",
        *[f"| {name} | {settings.get(name)} |" for name in shown], "",
        "`manifest.json` has every setting, version and data fingerprint.", "",
    ]  # fmt: skip
    (Path(directory) / "README.md").write_text("\n".join(lines), encoding="utf-8")


def example_inputs(corpus: Corpus, eval_collator: T5DataCollator, tokenizer, num_tokens: int = 40) -> str:
    """The beginning of a corrupted validation block, as text.

    >>> example_inputs(corpus, collator, tokenizer)
    'The guard disobeyed the<extra_id_0> in the store at noon.'
    """
    batch = eval_collator([{"input_ids": corpus.validation_NL[0], "index": 0}])
    return tokenizer.decode(batch["input_ids"][0, :num_tokens].tolist())
