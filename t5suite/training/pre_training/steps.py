"""The trainer of a pre-training run, and the steps around it that are more than one call.

    >>> trainer = make_trainer(model, tokenizer, args, examples, train_collator, eval_collator)
    >>> trainer.train()

`pre_train_t5.py` calls them one after the other. Where the text comes from stands in `text`, what becomes
of it in `collators`, how it is scored in `evaluation`.
"""

import logging
from pathlib import Path

import torch
from tqdm.auto import tqdm

from t5suite.base.errors import ConfigError
from t5suite.models.own_models import OwnModel
from t5suite.runs.directory import sweep_run_id
from t5suite.training.callbacks import MetricsCallback
from t5suite.training.family_checks import QUICK_FLAGS
from t5suite.training.flags.tracking import add_profile
from t5suite.training.losses import PAIR_LABELS, WatchedLoss
from t5suite.training.monitoring.monitors import StepMonitor, weight_norm
from t5suite.training.monitoring.progress import shows_bars
from t5suite.training.monitoring.samples import SampleCallback
from t5suite.training.monitoring.throughput import peak_flops
from t5suite.training.plug_ins.functions import add_plug_in_callbacks
from t5suite.training.pre_training.collators import unheeded_settings
from t5suite.training.pre_training.evaluation import NAME, PreTrainingEvaluator
from t5suite.training.pre_training.text import Examples
from t5suite.training.steps import TRAINING_FLAGS
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)


def pre_training_output_dir(model: str | None, objective: str = "span_corruption", eval_only: bool = False) -> str:
    """`runs/pre_train-<model>`, the objective where it is not T5's, and the sweep's run id where an agent set one.

    >>> pre_training_output_dir("google/t5-v1_1-small"), pre_training_output_dir("t5-base", "ul2")
    ('runs/pre_train-t5-v1_1-small', 'runs/pre_train-t5-base-ul2')
    """
    parts = [NAME, Path(model).name if model else "tiny", objective if objective != "span_corruption" else ""]
    parts += ["eval" if eval_only else "", sweep_run_id()]
    return str(Path("runs") / "-".join(part for part in parts if part))


# Flags that only one kind of text heeds.
FILE_FLAGS = ("train_file", "validation_file")
BUILD_FLAGS = ("bad_lines", "document_separator", "tokenizer_engine")
STREAM_FLAGS = ("shuffle_buffer_size", "num_virtual_streams")
OBJECTIVE_FLAGS = (
    "targets_length noise_density mean_span_length random_roll mode_tokens mask_units collocations sentence_pairs "
    "sentence_language pack row_inputs_length row_targets_length"
).split()


def warn_of_idle_flags(changed: dict, trains: bool, objective: str) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    files = [str(file) for name in FILE_FLAGS for file in changed.get(name) or ()]
    training_flags = [name for name in TRAINING_FLAGS if name not in FILE_FLAGS]
    given = ["mode_token_ids" if name == "mode_tokens" else name for name in OBJECTIVE_FLAGS if name in changed]
    unheeded = ["mode_tokens" if name == "mode_token_ids" else name for name in unheeded_settings(objective, given)]
    has_columns = any(not Path(file).name.removesuffix(".gz").removesuffix(".zst").endswith(".txt") for file in files)
    has_lines = any(".txt" in Path(file).suffixes or not Path(file).suffixes for file in files)
    built = "train_corpus" in changed
    reasons = [
        (not trains, (*training_flags, "batch_transform"), "nothing is trained"),
        (not trains and "validation_file" in changed, ("train_file",), "the validation files alone are scored"),
        ("validation_file" in changed, ("validation_fraction",), "there is a --validation_file"),
        (not files and not built, ("validation_fraction",), "the bundled text has a validation file"),
        (built, ("validation_fraction",), "the corpus was split when it was built"),
        (built and not files, BUILD_FLAGS, "the corpus was read when it was built"),
        (not has_columns, ("text_column_name",), "no file has columns"),
        (not has_lines, ("text_unit",), "no file is .txt"),
        (not changed.get("streaming"), STREAM_FLAGS, "the text is no stream"),
        (True, unheeded, f"--objective {objective} does not heed it"),
        (not changed.get("pack"), ("row_inputs_length", "row_targets_length"), "rows are not packed (--pack)"),
        ("sentence_pairs" not in changed, ("sentence_language",), "there are no --sentence_pairs"),
        (True, ("sortish_sampler",), "blocks are equally long"),
        (True, (*QUICK_FLAGS, "eval_loss"), "text is evaluated by its loss"),
        (True, ("eval_accumulation_steps", "batch_eval_metrics", "prediction_loss_only"), "evaluation is our own"),
    ]
    idle = {name: why for applies, names, why in reasons if applies for name in names if name in changed}
    for name, why in idle.items():
        logger.warning("--%s has no effect: %s", name, why)
    return list(idle)


# ---------------------------------------------------------------------------------------------------------------------
# Trainer


def epoch_blocks(num_blocks: int):
    """Epoch -> the run-long numbers of its data, in order; the data set shuffles.

    >>> epoch_blocks(3)(1)
    range(3, 6)
    """
    return lambda epoch: range(epoch * num_blocks, (epoch + 1) * num_blocks)


class PreTrainer(SuiteTrainer):
    """A `SuiteTrainer` over run-long numbers: an epoch is a part of its data set, which has no end.

    Its logs say more: accuracy on the targets of the step, norm of the weights, rates, tokens seen, time left.
    """

    static_shapes = True

    def __init__(self, *, peak_tflops: float | None = None, **kwargs):
        device = kwargs["args"].device
        monitor = StepMonitor(peak_flops(device, peak_tflops), lambda tensor: self.summed(tensor), device=device)
        super().__init__(monitor=monitor, **kwargs)
        self.compute_loss_func = WatchedLoss(self.compute_loss_func, self.summed)

    def num_examples(self, dataloader) -> int:
        """Blocks an epoch, which the trainer multiplies by the epochs."""
        return len(self.epoch_order(0))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The labels of sentence pairs go to the loss beside the tokens' labels."""
        name = next((name for name in PAIR_LABELS if name in inputs), None)
        self.compute_loss_func.pair_labels = inputs.pop(name) if name else None
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Counts the batch; guesses are counted in the steps that will be logged."""
        step = self.state.global_step + 1
        interval = max(int(self.state.logging_steps or 1), 1)
        self.compute_loss_func.watching = step % interval == 0 or (step == 1 and self.args.logging_first_step)
        return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Adds what the steps since the last log were like."""
        if "loss" in logs:
            norm = weight_norm(self.accelerator.unwrap_model(self.model))
            seen = {"accuracy": self.compute_loss_func.accuracy(), "weight_norm": norm}
            logs |= {name: value for name, value in seen.items() if value is not None}
        super().log(logs, start_time)

    def metrics_of(self, report, prefix: str) -> dict[str, float]:
        """`eval/nll`, `eval/accuracy`, ...; there are no tasks to take an average of."""
        metrics = super().metrics_of(report, prefix)
        del metrics[f"{prefix}/average"]
        return metrics


def make_trainer(
    model,
    tokenizer,
    args,
    examples: Examples,
    train_collator,
    eval_collator,
    *,
    stream=None,
    peak_tflops: float | None = None,
    callbacks=(),
) -> PreTrainer:
    """A trainer over the examples, or over a stream; without either, one that evaluates only.

    Args:
      callbacks: the user's own (`plug_ins`), added behind the suite's.

    Raises:
      ConfigError: the model is a plain module, whose loss knows nothing of the objectives.
    """
    from t5suite.training.resuming.stream_positions import StreamPreTrainer

    if isinstance(model, OwnModel):
        raise ConfigError(
            f"--model_class {model.config.model_class}: a plain module is trained by fine_tune_t5.py; objectives take "
            "a PreTrainedModel"
        )
    settings = {
        "model": model,
        "args": args,
        "collator": train_collator,
        "eval_sets": [examples.held_out],
        "selection_metric": "loss",
        "processing_class": tokenizer,
        "peak_tflops": peak_tflops,
    }
    if stream is not None:
        trainer = StreamPreTrainer(stream=stream, **settings)
    else:
        order = epoch_blocks(examples.blocks_an_epoch) if examples.train is not None else None
        trainer = PreTrainer(train_dataset=examples.train, epoch_order=order, **settings)
    show_progress = trainer.is_world_process_zero() and shows_bars(args)
    bars = (lambda turns, name: tqdm(turns, desc=f"evaluating {name}", leave=False)) if show_progress else None
    add_plug_in_callbacks(trainer, callbacks)
    trainer.evaluator = PreTrainingEvaluator(eval_collator, args.per_device_eval_batch_size, trainer.accelerator, bars)
    return trainer


def add_callbacks(trainer: PreTrainer, directory, trackers) -> None:
    """Metrics and samples to their files and to trackers."""
    number, tokenizer = trainer.args.num_samples, trainer.processing_class
    trainer.evaluator.watch(tokenizer, number)
    trainer.add_callback(SampleCallback(directory, trackers, number, trainer.eval_sets, lambda: trainer.last_report))
    trainer.add_callback(MetricsCallback(directory, trackers))
    add_profile(trainer, directory)


def control_ids(tokenizer) -> frozenset[int]:
    """Ids that are no text: sentinels, end of sequence, modes; an unknown piece is text.

    >>> sorted(control_ids(t5_tokenizer))[:3]
    [0, 1, 32000]
    """
    return frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
