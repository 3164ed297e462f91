"""`SuiteTrainer`: Hugging Face's `Seq2SeqTrainer` with our loss, our batches and our evaluation.

    >>> trainer = SuiteTrainer(model=model, args=args, train_dataset=features, epoch_order=order, collator=collator,
    ...                        evaluator=evaluator, eval_sets=eval_sets, processing_class=tokenizer)
    >>> trainer.train()

What it changes, all at documented hooks: `compute_loss_func` (law 1), `get_train_dataloader` (no row is repeated to
fill ranks; the seed and the step decide the rows), `evaluate` (law 2, and one number that selects checkpoints).
"""

import contextlib
import functools
import logging
import math

import torch
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer

from t5suite.base.errors import ConfigError
from t5suite.base.reference_code import reference_code
from t5suite.data.batches.collators import as_module_sees
from t5suite.data.batches.samplers import EpochDataLoader, GlobalBatchSampler, shifted_order
from t5suite.models.attention import note_padding, ready_masks, takes_ready_masks
from t5suite.training.callbacks import NeftuneCallback, limit_callbacks
from t5suite.training.checkpoints.folders import newest_verified
from t5suite.training.checkpoints.resuming import ExactResume
from t5suite.training.checkpoints.saving import Checkpointing
from t5suite.training.checkpoints.starts import Position, examples_before, load_moments
from t5suite.training.checkpoints.states import load_state
from t5suite.training.compile_cache import keep_compiled
from t5suite.training.eval_sets import selection_value
from t5suite.training.losses import TokenLoss, ask_for_loss, chunk_settings
from t5suite.training.monitoring.rates import StepMonitor, peak_flops
from t5suite.training.monitoring.terminal import show_progress, shows_bars
from t5suite.training.optimization import (
    build_optimizer,
    build_scheduler,
    check_parallelism,
    sets_its_own_rates,
)
from t5suite.training.plug_ins import MeasuredLoss
from t5suite.training.processes.weight_check import holds_parts
from t5suite.training.sharding.process_state import making_accelerator, shared_embeddings_together
from t5suite.training.sharding.settings import FSDP, is_set
from t5suite.training.updates.guard import UpdateGuard

logger = logging.getLogger(__name__)

# Logs that the trainer's state holds, in memory and in `trainer_state.json`.
MOST_LOGS = 1000
# What `torch.compile` calls the ways that record CUDA graphs.
GRAPH_MODES = ("reduce-overhead", "max-autotune")


class SuiteTrainer(ExactResume, Checkpointing, Seq2SeqTrainer):
    """A `Seq2SeqTrainer` that weighs every target token equally, scores every row once, and survives.

    Args:
      epoch_order: epoch -> the indices of the training examples in the order they are seen.
      collator: makes padded tensors, `decoder_input_ids` among them.
      evaluator, eval_sets: what `evaluate` runs.
      selection_metric: 'loss' selects checkpoints by loss; None by the tasks' own metrics.
      name_example: index -> what an incident calls that training example.
      loss: `(outputs, labels, num_items_in_batch)` -> the loss; cross-entropy of tokens, or classes, without it.
      monitor: a `StepMonitor` for the rates of each log; one that counts tokens without it.

    Attributes:
      updates: checks every update before it is made.
      chunked: what the model makes the loss with, None where it makes logits.
      static_shapes: all batches have one shape and either all are padded or none is.
    """

    static_shapes = False

    def __init__(
        self,
        *,
        epoch_order=None,
        collator=None,
        evaluator=None,
        eval_sets=(),
        selection_metric=None,
        name_example=int,
        loss=None,
        monitor=None,
        **kwargs,
    ):
        args = kwargs["args"]
        if args.torch_compile and args.device.type == "cuda" and args.torch_compile_mode in GRAPH_MODES:
            raise ConfigError(
                f"--torch_compile_mode {args.torch_compile_mode} records CUDA graphs, whose memory does not outlive a "
                "micro-batch; choose default or max-autotune-no-cudagraphs"
            )
        tokens = TokenLoss(label_smoothing=args.label_smoothing_factor, z_loss=getattr(args, "z_loss", 0.0))
        super().__init__(
            data_collator=collator,
            compute_loss_func=loss or tokens,
            eval_dataset={eval_set.name: eval_set.features for eval_set in eval_sets} or None,
            **kwargs,
        )
        heed_use_cache(self.model, args.use_cache)
        if args.torch_compile:
            keep_compiled(getattr(args, "compile_cache", None))
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        tokens = 0 if "loss_chunks" in reference_code(args.reference_code) else args.loss_chunk_tokens
        self.chunked = chunk_settings(self.model, self.compute_loss_func, tokens, sharded=sharded, fp16=args.fp16)
        # Non-finite losses are handled by the guard; the trainer's own filter would look at every micro-batch.
        args.logging_nan_inf_filter = False
        self.updates = UpdateGuard(args, self.accelerator, self.ranks, self.is_world_process_zero())
        self.add_callback(self.updates)
        # Our labels stand below the token that predicts them, in every family: each of them counts. Left alone,
        # transformers 5.23 would not count the first one of a causal model's row.
        self._loss_shifts_labels = False
        self.epoch_order = epoch_order
        self.evaluator = evaluator
        self.eval_sets = list(eval_sets)
        self.selection_metric = selection_metric
        self.name_example = name_example
        self.last_report = None
        # Set by `resets.going_on`: how far the examples are ahead of what the step says, whether they begin anew, the
        # step at which the schedule began, and what was reset.
        self.data_offset = 0
        self.data_reset = False
        self.schedule_start = 0
        self.reset_done = ""
        for callback in limit_callbacks(args):
            self.add_callback(callback)
        peak = peak_flops(args.device)
        self.monitor = monitor or StepMonitor(peak, self.summed, keeps_count=False, device=args.device)
        self.add_callback(self.monitor)
        show_progress(self, shows_bars(args))
        if args.neftune_noise_alpha is not None:
            self.neftune_noise_alpha = None  # theirs misses T5's embeddings
            self.add_callback(NeftuneCallback(args.neftune_noise_alpha))

    def create_accelerator_and_postprocess(self) -> None:
        """The trainer's `Accelerator`; ranks on CPUs may shard, too.

        Raises:
          ConfigError: sharding was asked for and cannot be, which accelerate passes over.
        """
        fsdp = bool(self.args.fsdp or is_set(FSDP))
        try:
            with making_accelerator(sharded=fsdp or bool(self.args.deepspeed)):
                super().create_accelerator_and_postprocess()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if fsdp and not self.is_fsdp_enabled:
            raise ConfigError("FSDP needs several processes (torchrun, accelerate launch); this is one")
        if self.args.deepspeed and not self.is_deepspeed_enabled:
            raise ConfigError("--deepspeed: accelerate has not taken it up; is another Accelerator in this process?")

    def _prepare_for_training(self, *args, **kwargs):
        """Wraps the model, its optimizer and schedule."""
        with shared_embeddings_together(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            return super()._prepare_for_training(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """Batches of this rank only, on its device: accelerate has nothing to prepare."""
        args = self.args
        sampler = GlobalBatchSampler(
            self.shifted_order(),
            self._train_batch_size,
            args.gradient_accumulation_steps,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
        )
        return EpochDataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers and args.dataloader_num_workers > 0,
            device=args.device,
            on_host=note_padding if takes_ready_masks(self.model) else None,
        )

    def epoch_length(self) -> int:
        """Examples of an epoch; 0 where training data have no order of their own."""
        return len(self.epoch_order(0)) if self.epoch_order else 0

    def update_size(self) -> int:
        """Examples that one update takes, over micro-batches and ranks."""
        return self._train_batch_size * self.args.gradient_accumulation_steps * self.accelerator.num_processes

    def position(self) -> Position:
        """How far the run has come, for a checkpoint."""
        step, length, size = self.state.global_step, self.epoch_length(), self.update_size()
        seen = examples_before(step, length, size) if length else step * size
        return Position(seen + self.data_offset, self.schedule_start, self.reset_done)

    def examples_of(self, step: int) -> list:
        """The examples of an update (1 is the first), over all ranks, by the names that `name_example` gives them."""
        length, size = self.epoch_length(), self.update_size()
        if not length:
            return []
        epoch, update = divmod(step - 1, math.ceil(length / size))
        return [self.name_example(int(i)) for i in self.shifted_order()(epoch)[update * size : (update + 1) * size]]

    def shifted_order(self):
        """Epoch -> the indices of its examples, where a run goes on from another one begun so many examples further."""
        if not self.data_offset:
            return self.epoch_order
        return shifted_order(self.epoch_order, self.epoch_length(), self.data_offset)

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's sum over the ranks."""
        return self.accelerator.reduce(tensor, "sum") if self.accelerator.num_processes > 1 else tensor

    def get_batch_samples(self, epoch_iterator, num_batches, device) -> tuple:
        """The batches of an update, sent on to the GPU at once: their labels are counted there, and nobody waits."""
        epoch_iterator = self.monitor.timed(epoch_iterator)
        if takes_ready_masks(self.model):
            epoch_iterator = map(note_padding, epoch_iterator)
        if device.type == "cuda":
            epoch_iterator = (sent(batch, device) for batch in epoch_iterator)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Counts the micro-batch, and computes it in pieces where memory asks for it."""
        step, loss, compute = self.state.global_step + 1, self.compute_loss_func, super().training_step
        if hasattr(loss, "watch"):
            loss.watch(step, self.is_logged(step))
        self.monitor.count(self.model, inputs)
        return self.updates.run(
            model,
            inputs,
            lambda piece: compute(model, piece, num_items_in_batch),
            num_items_in_batch,
            step=step,
            loss_sum=self._tr_loss,
            loss_function=loss,
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of a piece: a T5 is given ready masks, and the labels where it makes the loss itself."""
        loss = self.compute_loss_func
        if isinstance(loss, MeasuredLoss):
            loss.batch = as_module_sees(inputs)  # out of which the trainer takes the labels
        elif self.chunked is not None and not return_outputs:
            inputs = ask_for_loss(inputs, self.chunked, loss, self.args.torch_compile)
        # Compiled, a model without a mask is one graph more, which only few shapes are worth.
        inputs = ready_masks(inputs, self.static_shapes or not self.args.torch_compile)
        compute = functools.partial(super().compute_loss, model, inputs, return_outputs, num_items_in_batch)
        return compute() if return_outputs else self.updates.forward(model, compute)

    def is_logged(self, step: int) -> bool:
        """Whether an update is one that is logged."""
        args, interval = self.args, max(int(self.state.logging_steps or 1), 1)
        return args.logging_strategy != "steps" or step % interval == 0 or (step == 1 and args.logging_first_step)

    def _get_grad_norm(self, model, grad_norm=None):
        """The norm before clipping, with which the update is checked before it is made."""
        grad_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.updates.settle(
            model,
            self.optimizer,
            grad_norm,
            step=self.state.global_step + 1,
            loss_sum=self._tr_loss,
            stop=self.stop_requested(),
            examples_of=self.examples_of,
            roll_back=self.roll_back,
        )
        return grad_norm

    def stop_requested(self) -> bool:
        """Whether this process was asked to stop; ranks vote on it in every update."""
        return self.stop.requested

    def roll_back(self) -> str | None:
        """Weights and moments of the newest verified checkpoint, on every rank; rates and schedule stay as they are.

        Returns:
          its name; None if there is no checkpoint, or none with an optimizer in it.
        """
        checkpoint = self.ranks.together(newest_verified, self.args.output_dir)
        if checkpoint is None or not (checkpoint / "optimizer.pt").is_file():
            return None
        self._load_from_checkpoint(str(checkpoint), self.model)
        load_moments(self.optimizer, load_state(checkpoint, "optimizer"), checkpoint)
        return checkpoint.name

    def measure(self, batch_metrics) -> None:
        """From now on the updates that are logged are measured by `--batch_metrics`."""
        self.compute_loss_func = MeasuredLoss(self.compute_loss_func, batch_metrics)

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Whenever the loss is logged, the ranks' weights are compared, too, and rates are added."""
        if "loss" in logs:
            self.check_agreement()
            logs |= self.monitor.rates(self.state)
            if isinstance(self.compute_loss_func, MeasuredLoss):
                logs |= self.compute_loss_func.means(self.ranks)
        if "train_loss" in logs:
            logs["train_loss"] = self.mean_loss()
        self.updates.correct(logs)
        super().log(logs, start_time)
        # `metrics.jsonl` has them all: kept here, they would make every checkpoint of a long run larger than the last.
        del self.state.log_history[:-MOST_LOGS]

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """`--optimizer` from our table, else what `--optim` says."""
        if self.optimizer is None:
            check_parallelism(self.args.optimizer, self.accelerator, self.args.optim)
            if self.args.optimizer is not None:
                self.optimizer = build_optimizer(self.args, model or self.model)
        optimizer = super().create_optimizer(model)
        if self.is_deepspeed_enabled:
            # With an offloaded optimizer accelerate puts DeepSpeed's Adam in the place of whatever it is given.
            config = self.accelerator.state.deepspeed_plugin.deepspeed_config
            config["zero_force_ds_cpu_optimizer"] = isinstance(optimizer, torch.optim.Adam)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None) -> torch.optim.lr_scheduler.LRScheduler:
        """`--schedule` from our table, else what `--lr_scheduler_type` says.

        The trainer steps it once an update; it must not be prepared by accelerate, which would step it once a process.
        """
        optimizer = optimizer or self.optimizer
        num_training_steps -= self.schedule_start
        ours = self.args.schedule is not None or sets_its_own_rates(optimizer)
        if self.lr_scheduler is not None or not ours:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = build_scheduler(self.args, optimizer, num_training_steps)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval") -> dict[str, float]:
        """Scores every `EvalSet`; logs `eval/<metric>` (one task) or `eval/<task>/<metric>`, and `eval/average`."""
        report = self.score(self.eval_sets, self.selection_metric)
        self.last_report = report
        metrics = self.metrics_of(report, metric_key_prefix)
        self.log(dict(metrics))
        metrics["eval_selection"] = selection_value(report.selection)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def score(self, eval_sets, selection_metric=None):
        """The report of an evaluation, which a request to stop ends before its time."""
        self.evaluator.check_stop = self.check_stop
        if (self.is_deepspeed_enabled or self.is_fsdp_enabled) and not holds_parts(self.model):
            self.model.to(self.args.device)  # without training nothing has placed or cut it: every rank has it whole
        with self.stop.phase("evaluation"):
            return self.evaluator.evaluate(self.model, eval_sets, selection_metric)

    def metrics_of(self, report, prefix: str) -> dict[str, float]:
        """What of a report is logged."""
        return report_metrics(report, prefix)


def sent(batch, device: torch.device):
    """A batch's tensors on their way to a device: from pinned memory (`--dataloader_pin_memory`) without a wait."""
    return send_to_device(batch, device, non_blocking=True)


def heed_use_cache(model, use_cache: bool) -> None:
    """Gives every part of a model the trainer's `--use_cache`.

    transformers 5.23 gives it to the model alone: T5's decoder, which has a copy of the configuration, would keep keys
    and values of every layer while it trains (tests/test_safe_updates.py). Decoding asks for them itself.
    """
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = use_cache


def report_metrics(report, prefix: str = "eval") -> dict[str, float]:
    """A report as flat metrics.

    >>> report_metrics(report)    # one task
    {'eval/accuracy': 91.2, 'eval/invalid_rate': 0.0, 'eval/loss': 0.31, 'eval/average': 91.2}
    """
    metrics = {}
    tasks = {result.name for result in report.results.values()}
    for name, result in report.results.items():
        path = f"{prefix}/" if len(tasks) == 1 else f"{prefix}/{name}/"
        metrics.update({path + metric: value for metric, value in result.metrics.items()})
        if result.loss is not None:
            metrics[path + "loss"] = result.loss
        if result.method == "generate" and result.predictions:
            metrics[path + "truncated_rate"] = 100 * result.truncated / len(result.predictions)
    if len(report.by_task) == 1 and len(tasks) > 1:
        metrics.update(_mean_over_splits(report, prefix))
    metrics[f"{prefix}/average"] = report.selection
    return metrics


def _mean_over_splits(report, prefix) -> dict[str, float]:
    """One task of several splits (MNLI) also reports `eval/<metric>`, the mean over its splits."""
    scored = [result.metrics for result in report.results.values() if result.metrics]
    return {f"{prefix}/{name}": sum(m[name] for m in scored) / len(scored) for name in scored[0]} if scored else {}
