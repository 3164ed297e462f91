"""`SuiteTrainer`: Hugging Face's `Seq2SeqTrainer` with our loss, our batches and our evaluation.

    >>> trainer = SuiteTrainer(model=model, args=args, train_dataset=features, data=ExampleOrder(order),
    ...                        collator=collator, processing_class=tokenizer)
    >>> trainer.train()

What it changes: `compute_loss_func` (law 1), `get_train_dataloader` (no row is repeated to fill ranks; the seed and the
step decide the rows), `evaluate` (law 2, and one number that selects checkpoints), and what is saved and restored (laws
3 and 4). Each Hugging Face hook is here once and delegates to a part, a plain object that does not use the trainer.
"""

import contextlib
import copy
import functools
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError, Preempted
from t5suite.base.libraries import Libraries, choose_libraries, require_proved
from t5suite.data.batches.samplers import EpochDataLoader, GlobalBatchSampler
from t5suite.models.families import recognize_family
from t5suite.models.generation_settings import check_generation, complete_special_tokens
from t5suite.models.t5.attention import slow_attention
from t5suite.models.t5.decoder import holds_parts
from t5suite.models.t5.dropout import quicken_dropout
from t5suite.models.weights import load_weights
from t5suite.optim.optimizers import make_optimizer
from t5suite.training.batch_metrics import MeasuredLoss
from t5suite.training.best_per_task import BestPerTaskCallback
from t5suite.training.checkpoints.data_positions import ExampleOrder, StreamSource
from t5suite.training.checkpoints.folders import STATE_FILE
from t5suite.training.checkpoints.restoring import (
    check_start,
    restore_attributes,
    restore_deepspeed,
    restore_optimization,
    restore_random_numbers,
    saved_progress,
    state_at_start,
    total_steps,
)
from t5suite.training.checkpoints.resuming import RunProgress
from t5suite.training.checkpoints.saving import Checkpoints
from t5suite.training.checkpoints.selection import (
    check_best,
    drop_best,
    forget_undefined_best,
    note_nothing_selected,
    scores_differ,
    selected_a_checkpoint,
    take_up_best,
)
from t5suite.training.checkpoints.starts import Position, Start
from t5suite.training.evaluation_report import Report, report_metrics, selection_value
from t5suite.training.limits import limit_callbacks
from t5suite.training.loss_counts import UpdateCounts
from t5suite.training.losses import TokenLoss, ask_for_loss, give_batch, move_loss_into_model
from t5suite.training.monitoring.flops import peak_flops
from t5suite.training.monitoring.rates import StepMonitor
from t5suite.training.monitoring.terminal import show_progress, shows_bars
from t5suite.training.neftune import NeftuneCallback
from t5suite.training.optimization import (
    build_scheduler,
    check_parallelism,
    forget_scores,
    optimizer_defaults,
    sets_its_own_rates,
    warn_of_endless_warmup,
    warn_of_idle_adam_flags,
    warn_of_idle_warmup,
)
from t5suite.training.process_setup import multiply_in_tf32
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.sharding.process_state import making_accelerator, shared_embeddings_together
from t5suite.training.sharding.settings import FSDP, is_set
from t5suite.training.step_lines import forget_old_logs
from t5suite.training.updates.guard import UpdateGuard
from t5suite.training.updates.micro_batches import MicroBatches
from t5suite.training.uploads import HubUploads

logger = logging.getLogger(__name__)

# The modes of `torch.compile` that record CUDA graphs.
GRAPH_MODES = ("reduce-overhead", "max-autotune")


def stock_arguments(args):
    """A copy of the user's arguments as transformers' Trainer should read them."""
    args = copy.copy(args)
    args.metric_for_best_model = "selection"  # one number, higher is better
    args.report_to = []  # our trackers mirror metrics.jsonl
    args.auto_find_batch_size = False  # a micro-batch that does not fit is halved in place
    args.logging_nan_inf_filter = False  # the guard handles non-finite losses
    args.enable_jit_checkpoint = False  # its handler of SIGTERM would take the place of ours
    args.bf16_full_eval = False  # the trainer would leave the model on the CPU until its own evaluation
    args.fp16_full_eval = False
    return args


def check_compile_mode(args) -> None:
    """Refuses modes of `torch.compile` that keep a micro-batch's memory."""
    if args.torch_compile and args.device.type == "cuda" and args.torch_compile_mode in GRAPH_MODES:
        raise ConfigError(
            f"--torch_compile_mode {args.torch_compile_mode} records CUDA graphs, whose memory does not outlive a "
            "micro-batch; choose default or max-autotune-no-cudagraphs"
        )


def set_use_cache(model, use_cache: bool) -> None:
    """Sets `--use_cache` in every module's configuration.

    transformers 5.23 gives it to the model alone: T5's decoder, which has a copy of the configuration, would keep keys
    and values of every layer while it trains (tests/test_safe_updates.py).
    """
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = use_cache


def keep_compiled_code() -> None:
    """Caches compiled code in the user's folder: torch's default is a temporary one, empty for a cluster's next job."""
    caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(caches, "t5suite", "compiled"))


class SuiteTrainer(Seq2SeqTrainer):
    """A `Seq2SeqTrainer` that weighs every target token equally, scores every row once, and survives interruptions.

    Args:
      data: the order of the training examples (`ExampleOrder`), or the stream that they come from (`StreamSource`).
      collator: makes padded tensors, including `decoder_input_ids`.
      make_evaluator: the trainer -> the evaluator that `evaluate` calls; called once all else is complete.
      eval_sets: what `evaluate` scores.
      selection_metric: 'loss' selects checkpoints by loss; None by the tasks' own metrics.
      loss: `(outputs, labels, num_items_in_batch)` -> the loss; by default, cross-entropy of tokens or classes.
      libraries: which fast paths are off; by default, what `--reference_code` names and what is not proved.

    Attributes:
      ranks, stop: how the processes agree, and requests to stop (signals).
      data: which examples an update has, and their positions.
      micro_batches: runs an update's micro-batches.
      updates: checks every update before it is applied.
      checkpoints, progress, uploads: write checkpoints, hold the run's progress, upload to the hub.
      start, progress_at_start: where training begins, and the progress in its checkpoint; `train` sets them.
      number_labels: of the next piece, where its labels are numbers: the labels as the collator made them.
      random_state_is_due: the checkpoint's random state is restored once the first batch is made.
      chunked: the settings with which the model computes the loss; None if it returns logits.
      counts_tokens: checkpoints keep the number of tokens seen, and logs have it.
    """

    counts_tokens = False

    def __init__(
        self,
        *,
        data: ExampleOrder | StreamSource | None = None,
        collator=None,
        make_evaluator: Callable | None = None,
        eval_sets=(),
        selection_metric: str | None = None,
        loss=None,
        libraries: Libraries | None = None,
        **kwargs,
    ):
        require_proved("training_loop")
        args = kwargs["args"] = stock_arguments(kwargs["args"])
        if self.counts_tokens:
            args.include_num_input_tokens_seen = "no"  # the monitor counts them
        check_compile_mode(args)
        self.libraries = libraries or choose_libraries(args.reference_code, args.allow_untested_libraries)
        self.uploads = HubUploads(args)
        super().__init__(
            data_collator=collator,
            compute_loss_func=loss or TokenLoss(args.label_smoothing_factor, getattr(args, "z_loss", 0.0)),
            eval_dataset={eval_set.name: eval_set.features for eval_set in eval_sets} or None,
            **kwargs,
        )
        if args.generation_config is not None:  # transformers' trainer has put it in the place of the model's own
            family = recognize_family(self.model)
            complete_special_tokens(self.model, self.processing_class, family.special_tokens)
            check_generation(self.model, f"--generation_config {args.generation_config}")
        set_use_cache(self.model, args.use_cache)
        if args.torch_compile:
            keep_compiled_code()
        self._choose_fast_paths()
        self.ranks = Ranks.of_process(args.ddp_timeout_delta)
        self.stop = stop_requests()
        self.checkpoints = Checkpoints(
            args,
            self.accelerator,
            self.ranks,
            self.stop,
            fsdp=self.is_fsdp_enabled,
            deepspeed=self.is_deepspeed_enabled,
        )
        args.save_total_limit = None  # the trainer's rotation deletes in place: a kill leaves half a checkpoint
        self.micro_batches = MicroBatches(args, self.accelerator, self.ranks)
        is_main = self.is_world_process_zero()
        self.updates = UpdateGuard(args, self.accelerator, self.ranks, self.micro_batches, is_main)
        self.progress = RunProgress(self._take_up)
        # Our labels are at the position that predicts them, in every family: each of them counts. By default,
        # transformers 5.23 would not count the first one of a causal model's row.
        self._loss_shifts_labels = False
        self.data = data or ExampleOrder()
        self.eval_sets = list(eval_sets)
        self.selection_metric = selection_metric
        self.last_report: Report | None = None
        self.start = Start()
        self.progress_at_start: dict | None = None
        self.number_labels: torch.Tensor | None = None
        self.random_state_is_due = False
        self.monitor = StepMonitor(
            peak_flops(args.device),
            self.summed,
            keeps_count=self.counts_tokens,
            device=args.device,
        )
        self._add_own_callbacks()
        self.evaluator = None if make_evaluator is None else make_evaluator(self)

    def _choose_fast_paths(self) -> None:
        """Replaces parts of the model by faster ones, unless they are off."""
        args = self.args
        off = self.libraries.off
        if "quick_attention" in off:
            slow_attention(self.model)
        if "quick_dropout" not in off and args.device.type == "cpu":
            quicken_dropout(self.model)
        self.chunked = move_loss_into_model(
            self.model,
            self.compute_loss_func,
            is_off="loss_chunks" in off,
            sharded=self.is_sharded,
            fp16=args.fp16,
        )

    def _add_own_callbacks(self) -> None:
        """Adds the suite's callbacks, in the order in which they are called."""
        args = self.args
        for callback in (self.updates, self.progress, *limit_callbacks(args, self.progress), self.monitor):
            self.add_callback(callback)
        self.add_callback(UpdateCounts(lambda: self.compute_loss_func, self.ranks))
        show_progress(self, shows_bars(args))
        if args.neftune_noise_alpha is not None:
            self.neftune_noise_alpha = None  # theirs misses T5's embeddings
            self.add_callback(NeftuneCallback(args.neftune_noise_alpha))
        if isinstance(self.data, StreamSource):
            # The stream itself resumes from its position; the trainer would draw and discard all batches before it.
            args.ignore_data_skip = True
            self.add_callback(self.data)

    def create_accelerator_and_postprocess(self) -> None:
        """The trainer's `Accelerator`; ranks on CPUs may shard, too. Refuses sharding that is not possible."""
        fsdp = bool(self.args.fsdp or is_set(FSDP))
        if fsdp:
            require_proved("fsdp")
        if self.args.deepspeed:
            require_proved("deepspeed")
        try:
            with making_accelerator(sharded=fsdp or bool(self.args.deepspeed)):
                super().create_accelerator_and_postprocess()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.args.tf32 is not None:
            multiply_in_tf32(self.args.tf32)  # accelerate allows it for --torch_compile, whatever the flag says
        if fsdp and not self.is_fsdp_enabled:
            raise ConfigError("FSDP needs several processes (torchrun, accelerate launch); this is one")
        if self.args.deepspeed and not self.is_deepspeed_enabled:
            raise ConfigError("--deepspeed: accelerate has not applied it; is another Accelerator in this process?")

    def get_train_dataloader(self) -> DataLoader:
        """Batches of this rank only, on its device; accelerate does not prepare them: it would read ahead."""
        args = self.args
        if isinstance(self.data, StreamSource):
            return self.data.loader
        sampler = GlobalBatchSampler(
            self.data.shifted(),
            args.train_batch_size,
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
        )

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP or DeepSpeed shards the weights."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def update_size(self) -> int:
        return self.args.train_batch_size * self.args.gradient_accumulation_steps * self.accelerator.num_processes

    def examples_of(self, step: int) -> list:
        """The names of the examples of an update (1 is the first), over all ranks."""
        return self.data.examples_of(step, self.update_size())

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.accelerator.num_processes == 1:
            return tensor
        return self.accelerator.reduce(tensor.to(self.args.device), "sum")

    def get_batch_samples(self, epoch_iterator, num_batches, device) -> tuple:
        """The batches of an update, sent to the GPU at once: their labels are counted there, without a wait."""
        with self.monitor.waiting():
            batches = list(itertools.islice(epoch_iterator, num_batches))
        if device.type == "cuda":
            # From pinned memory (--dataloader_pin_memory) without a wait.
            batches = [send_to_device(batch, device, non_blocking=True) for batch in batches]
        batches, num_items = super().get_batch_samples(iter(batches), num_batches, device)
        if self.random_state_is_due:
            self._restore_random_state()
        loss = self.compute_loss_func
        if hasattr(loss, "begin_update"):
            loss.begin_update(batches, self.summed if self.args.average_tokens_across_devices else None)
        return batches, num_items

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Counts the micro-batch, and computes it in pieces if it does not fit in memory."""
        step = self.state.global_step + 1
        loss = self.compute_loss_func
        if hasattr(loss, "watch"):
            loss.watch(step, self.is_logged(step))
        self.monitor.count(self.model, inputs)
        return self.micro_batches.run(
            model,
            inputs,
            functools.partial(self._train_on_piece, model, num_items_in_batch=num_items_in_batch),
            num_items_in_batch,
            step=step,
            loss_sum=self._tr_loss,
            loss_function=loss,
        )

    def _train_on_piece(self, model, inputs, num_items_in_batch) -> torch.Tensor:
        """The trainer's own step; not a hook. Keeps labels that are numbers, which it rounds under DeepSpeed.

        transformers 5.23 gives every float of a batch the type of DeepSpeed's weights, meant for a model's inputs.
        """
        labels = inputs.get("labels")
        self.number_labels = labels if torch.is_tensor(labels) and labels.is_floating_point() else None
        return super().training_step(model, inputs, num_items_in_batch)

    def is_logged(self, step: int) -> bool:
        """Whether a log may follow this update; by epochs, any update may be the last one."""
        interval = max(int(self.state.logging_steps or 1), 1)
        is_first = step == 1 and self.args.logging_first_step
        return self.args.logging_strategy != "steps" or step % interval == 0 or is_first

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of a piece; a T5 that computes the loss itself gets the labels."""
        number_labels = self.number_labels
        self.number_labels = None  # a batch that somebody else hands in has its own
        if number_labels is not None:
            inputs["labels"] = number_labels.to(self.args.device)
        loss = self.compute_loss_func
        loss_reads_batch = give_batch(loss, inputs)  # before the trainer removes the labels
        needs_logits = loss_reads_batch or return_outputs
        if self.chunked is not None and not needs_logits:
            inputs = ask_for_loss(inputs, self.chunked, loss, self.args.torch_compile)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def stop_requested(self) -> bool:
        """Whether this process was asked to stop; ranks vote on it in every update."""
        return self.stop.requested

    def measure(self, batch_metrics) -> None:
        self.compute_loss_func = MeasuredLoss(self.compute_loss_func, batch_metrics)

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Whenever the loss is logged, also compares the ranks' weights and adds rates."""
        if "loss" in logs:
            self.checkpoints.check_agreement(self.model, self.state.global_step)
            logs |= self.monitor.rates(self.state)
            if hasattr(self.compute_loss_func, "means"):
                logs |= self.compute_loss_func.means(self.ranks)
        if "train_loss" in logs:
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step - self.progress.loss_from_step, 1)
        self.updates.correct(logs)
        super().log(logs, start_time)
        forget_old_logs(self.state.log_history)

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """`--optimizer` from our table, else what `--optim` says."""
        if self.optimizer is None:
            check_parallelism(self.args.optimizer, self.accelerator, self.args.optim)
            if self.args.optimizer is not None:
                self.optimizer = make_optimizer(
                    self.args.optimizer,
                    model or self.model,
                    self.args.learning_rate,
                    self.args.optim_args,
                    optimizer_defaults(self.args),
                )
            else:
                warn_of_idle_adam_flags(self.args)
        optimizer = super().create_optimizer(model)
        if self.is_deepspeed_enabled:
            # If the optimizer is offloaded, accelerate replaces any optimizer with DeepSpeed's Adam.
            config = self.accelerator.state.deepspeed_plugin.deepspeed_config
            config["zero_force_ds_cpu_optimizer"] = isinstance(optimizer, torch.optim.Adam)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None) -> torch.optim.lr_scheduler.LRScheduler:
        """`--schedule` from our table, else what `--lr_scheduler_type` says.

        The trainer steps it once per update; accelerate must not prepare it: it would step it once per process.
        """
        optimizer = optimizer or self.optimizer
        num_training_steps -= self.start.schedule_start
        warn_of_endless_warmup(self.args, num_training_steps)
        is_of_our_table = self.args.schedule is not None or sets_its_own_rates(optimizer)
        if not is_of_our_table:
            warn_of_idle_warmup(self.args)
        if self.lr_scheduler is not None or not is_of_our_table:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = build_scheduler(self.args, optimizer, num_training_steps)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval") -> dict[str, float]:
        """Scores every `EvalSet`; logs `eval/<metric>` (one task) or `eval/<task>/<metric>`, and `eval/average`."""
        forget_undefined_best(self.state)
        report = self.score(self.eval_sets, self.selection_metric)
        self.last_report = report
        metrics = report_metrics(report, metric_key_prefix)
        self.log(dict(metrics))
        metrics["eval_selection"] = selection_value(report.selection)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def score(self, eval_sets, selection_metric=None):
        """The report of an evaluation, which a request to stop interrupts."""
        if self.is_sharded and not holds_parts(self.model):
            self.model.to(self.args.device)  # nothing has placed or sharded it without training: each rank has all
        with self.stop.phase("evaluation"):
            return self.evaluator.evaluate(self.model, eval_sets, selection_metric, check_stop=self.check_stop)

    def train(self, resume_from_checkpoint=None, *, start: Start | None = None, **kwargs):
        """Trains; a request to stop waits for the end of a step.

        Args:
          resume_from_checkpoint: a checkpoint of this run, whose settings are still the same; True: the newest one of
            its directory. Its files are verified first.
          start: where training begins, in its place (`checkpoints.starts.choose_start`).

        Raises:
          ConfigError: the run cannot begin there; see `checkpoints.restoring.check_start`.
          CheckpointError: the checkpoint does not verify.
        """
        if start is None and resume_from_checkpoint:
            start = self.ranks.together(Start.of_this_checkpoint, resume_from_checkpoint, self.args.output_dir)
        if start is None:
            start = Start()
        check_start(
            start,
            total_steps=total_steps(self.args, self.data.length, self.update_size()),
            deepspeed=self.is_deepspeed_enabled,
            fsdp=self.is_fsdp_enabled,
            world_size=self.accelerator.num_processes,
        )
        self.start = start
        self.progress_at_start = saved_progress(start, self.ranks)
        self.data.load(start, self.update_size(), self.args.allow_changed)
        if hasattr(self.train_dataset, "num_examples"):
            # This data set is as long as the run: extend it by the examples that another run saw.
            self.train_dataset.num_examples += max(0, self.data.offset)
        try:
            with self.stop.phase("training"), self.stop.excusing_lost_ranks():
                return super().train(**kwargs)
        finally:
            self.data.close()

    def check_stop(self) -> None:
        """Called between the batches of an evaluation: aborts it on all ranks if one was asked to stop."""
        if agree_to_stop(self.ranks, self.stop):
            step = self.state.global_step
            name = f"checkpoint-{step}"
            exists = (Path(self.args.output_dir) / name).is_dir()
            raise self.stop.preempted(step or None, name if exists else None)

    def save_model(self, output_dir=None, _internal_call: bool = False) -> None:
        """Saves a model for others to load: its files replace older ones once all are on the disk."""
        folder = Path(output_dir or self.args.output_dir)
        if not _internal_call:
            self.checkpoints.replace_model(folder, self.model, self.state.global_step, self.write_model)
        else:
            self.checkpoints.write_model(folder, self.model, self.processing_class, self.gathered_weights())

    def unwrapped_model(self):
        """The model itself, without what torch and accelerate put around it; its weights are loaded into it."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def gathered_weights(self) -> dict[str, torch.Tensor] | None:
        """Whole weights on rank 0, if FSDP or DeepSpeed has sharded them; every rank calls it."""
        return self.accelerator.get_state_dict(self.model_wrapped) if self.is_sharded else None

    def save_best_of_task(self, folder: Path) -> None:
        """Saves a task's best weights so far, in place of its former ones."""
        self.checkpoints.replace_best(folder, self.model, self.state.global_step, self.write_model)

    def write_model(self, folder: Path) -> None:
        """Writes the model into a folder that is not yet in its place."""
        self.save_model(str(folder), _internal_call=True)

    def write_checkpoint(self, folder: Path) -> None:
        """Writes this rank's files of a checkpoint into a folder that is not yet in its place."""
        # If rank 0 cannot write the model, no rank may go on to gather the optimizer's state: it would wait for rank 0.
        self.ranks.all_succeed(self.write_model, folder)
        if self.is_deepspeed_enabled and not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
        elif not self.args.save_only_model:
            self.checkpoints.write_optimizer(folder, self.optimizer, self.lr_scheduler)
        progress = self.progress.described(
            self.state,
            self.control,
            loss_total=self._total_loss_scalar,
            logged_step=self._globalstep_last_logged,
            callbacks=self.callback_handler.callbacks,
        )
        num_seen = self.data.seen(self.state.global_step, self.update_size())
        position = Position(
            num_seen,
            self.start.schedule_start,
            self.start.parts_reset,
            self.data.update_size_of_order(num_seen, self.update_size()),
        )
        self.checkpoints.write_progress(folder, {"loss_since_log": self._tr_loss.item()}, progress, position)
        self.data.save(folder)
        if self.args.should_save:
            self.write_state(folder / STATE_FILE)

    def write_state(self, path: Path) -> None:
        """Writes transformers' own `trainer_state.json`, with the callbacks that keep their state there."""
        for part in [*self.callback_handler.callbacks, self.control]:
            if isinstance(part, ExportableState):
                self.state.stateful_callbacks[type(part).__name__] = part.state()
        forget_undefined_best(self.state)
        self.state.save_to_json(str(path))

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        if self.train_dataset is None:
            logger.warning("--push_to_hub has no effect: nothing is trained")
            self.args.push_to_hub = False
        elif self.is_world_process_zero():
            self.hub_model_id = self.uploads.make_repository(token, private)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """Uploads the run's directory: the saved model, its card and its results."""
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.uploads.wait()
        return self.uploads.push_run(
            self.hub_model_id, commit_message, blocking=blocking, token=token, revision=revision
        )

    def push_finished(self) -> None:
        """Uploads a finished run, if `--push_to_hub` is on."""
        if self.args.push_to_hub and self.push_to_hub() is not None:
            logger.info("uploaded to %s", self.hub_model_id)

    # Private hooks of transformers 5.23, which has no public ones around an update's gradients, the logs and
    # evaluations after it, and what a checkpoint holds (tests/test_resuming.py shows when one is gone)

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ) -> tuple[int, int]:
        """Takes up the trainer's state; returns the number of epochs trained, and of batches in the next one."""
        beginning = super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, None, trial)
        if not self.start.keeps_steps:
            return beginning
        self.state = state_at_start(self.start, self.args, max_steps)
        self.state.init_training_references(self, max_steps, num_train_epochs, trial)
        if self.args.restore_callback_states_from_checkpoint:
            restore_attributes(self.callback_handler.callbacks, self.state.stateful_callbacks)
        epochs, updates = divmod(self.state.global_step, num_update_steps_per_epoch)
        if self.args.ignore_data_skip:
            return epochs, 0
        return epochs, updates * self.args.gradient_accumulation_steps

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        """Prepares model, optimizer and schedule, and restores them."""
        checkpoint = self.start.checkpoint
        if checkpoint is not None and not self.is_sharded:
            load_weights(self.unwrapped_model(), checkpoint)
        with shared_embeddings_together(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if checkpoint is None:
            return prepared
        if self.is_deepspeed_enabled:
            restore_deepspeed(self.start, self.model_wrapped, self.lr_scheduler)
            return prepared
        if self.is_fsdp_enabled:
            load_weights(self.unwrapped_model(), checkpoint)
        restore_optimization(
            self.start, self.optimizer, self.lr_scheduler, self.accelerator.scaler, fsdp=self.is_fsdp_enabled
        )
        return prepared

    def _get_grad_norm(self, model, grad_norm=None):
        """The norm before clipping, with which the update is checked before it is applied."""
        grad_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.updates.settle(
            model,
            self.optimizer,
            grad_norm,
            step=self.state.global_step + 1,
            loss_sum=self._tr_loss,
            stop=self.stop_requested(),
            examples_of=self.examples_of,
        )
        return grad_norm

    def _run_epoch(self, **kwargs) -> None:
        """First does what is pending; a finished run trains no step (transformers 5.23 would train one more)."""
        self._catch_up(kwargs["trial"], kwargs["epoch"], kwargs["ignore_keys_for_eval"], kwargs["start_time"])
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        if self.start.keeps_steps and kwargs["epoch"] == kwargs["epochs_trained"]:
            kwargs["resume_from_checkpoint"] = str(self.start.checkpoint)  # the trainer counts the epoch's batches
            num_trained_batches = kwargs["steps_trained_in_current_epoch"]
            if num_trained_batches:
                # The trainer would make all batches of the epoch so far, only to discard them.
                kwargs["train_dataloader"].batch_sampler.pass_over(num_trained_batches)
                self.random_state_is_due = True  # once the first batch is made: making a loader draws a number
            else:
                self._restore_random_state()
        super()._run_epoch(**kwargs)

    def _restore_random_state(self) -> None:
        """Restores this rank's random numbers; not a hook."""
        self.random_state_is_due = False
        restore_random_numbers(self.start.checkpoint, self.ranks, self.args.seed, self.state.global_step)

    def _finalize_training(self, trial, num_train_samples, start_time):
        """Does what is pending after the last step's checkpoint: no epoch is left that would do it."""
        self._catch_up(trial, self.state.epoch, None, start_time)
        if self.args.load_best_model_at_end and not selected_a_checkpoint(self.state):
            note_nothing_selected(self.state.global_step)
        # Seconds and rates of the whole training are those of all starts, as its loss is.
        self._initial_global_step = self.progress.seconds_from_step
        if self.accelerator.num_processes > 1:
            # transformers gathers the losses of ranks at a log; here it would add what one rank has since the last.
            self._tr_loss = self.accelerator.gather(self._tr_loss).mean()
        return super()._finalize_training(trial, num_train_samples, start_time - self.progress.seconds_before)

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, learning_rate=None, **kwargs) -> None:
        """What follows a step; if the run must stop, only the log that is due, one checkpoint, and the end."""
        self.progress.note_update(grad_norm, learning_rate)
        log_save_evaluate = functools.partial(
            super()._maybe_log_save_evaluate, tr_loss, grad_norm, *args, learning_rate=learning_rate, **kwargs
        )
        if self._agreed_to_stop():
            self.stop.request()
            evaluates = self.control.should_evaluate
            saves = self.control.should_save
            self.control.should_evaluate = False
            self.control.should_save = False
            log_save_evaluate()  # only the log
            self.control.should_evaluate = evaluates
            self.control.should_save = saves
        else:
            try:
                log_save_evaluate()
                return
            except Preempted:
                pass  # the evaluation was aborted on all ranks; its flag and that of the save are still set
        self.progress.note_pending(self.state, self.control)
        self._save_checkpoint(self.model_wrapped)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        step = self.state.global_step
        raise self.stop.preempted(step, f"checkpoint-{step}")

    def _agreed_to_stop(self) -> bool:
        """Whether all ranks stop after this step; not a hook.

        Within an epoch the update's own vote has decided it (`updates.guard`); the epoch's end has no vote.
        """
        if self.updates.stop_agreed:
            return True
        return self.progress.after_epoch_end and agree_to_stop(self.ranks, self.stop)

    def _catch_up(self, trial, epoch, ignore_keys_for_eval, start_time) -> None:
        """Does what comes after the checkpoint that the run goes on from, if that was still to be done; not a hook."""
        pending = self.progress.take_pending(self.control)
        if not pending:
            return
        self.control.should_evaluate &= self.args.eval_strategy != "no"  # the flag may have changed since
        # Random numbers are restored with the first batch; a checkpoint written here needs them already.
        self._restore_random_state()
        log_save_evaluate = functools.partial(
            self._log_save_evaluate_first,
            self._tr_loss,
            pending["grad_norm"],
            self.model_wrapped,
            trial,
            epoch,
            ignore_keys_for_eval,
            start_time,
            learning_rate=pending["learning_rate"],
        )
        log_save_evaluate()
        if pending["epoch_end"]:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            log_save_evaluate()

    def _log_save_evaluate_first(self, *args, **kwargs) -> None:
        """What follows a step, of the step that the run goes on from; says why it is evaluated now; not a hook."""
        if self.control.should_evaluate:
            step = self.state.global_step
            logger.info("step %d is evaluated first: checkpoint-%d was written before its evaluation", step, step)
        self._maybe_log_save_evaluate(*args, **kwargs)

    def _take_up(self, control) -> None:
        """Restores the trainer's sums and its best checkpoint when training begins; not a hook."""
        if self.state.global_step > 0:
            # A restart comes after the first update. Early stopping would count this evaluation a second time.
            self.args.eval_on_start = False
        progress = self.progress_at_start
        selects_by = self.checkpoints.run_details["details"].get("selects_by")
        if self.start.keeps_steps and scores_differ(self.start, selects_by):
            self._drop_best(progress)
        take_up_best(self.state, self.args.output_dir, self.args.load_best_model_at_end)
        self.progress.take_up_saved(self.start, progress, self.callback_handler.callbacks)
        if progress is not None:
            self._tr_loss.fill_(progress["loss_since_log"])
            self._total_loss_scalar = progress["loss_total"]
            self._globalstep_last_logged = progress["logged_step"]
            control.should_training_stop = progress["stopped"]

    def _drop_best(self, progress: dict | None) -> None:
        """Drops the best scores so far, which those from here on cannot be compared with; not a hook."""
        drop_best(self.state)
        forget_scores(self.lr_scheduler)
        if progress is not None:
            progress["callbacks"].pop(BestPerTaskCallback.__name__, None)

    def _save_checkpoint(self, model, trial=None) -> None:
        """Commits `checkpoint-N` whole, or fails with the previous one untouched."""
        self.store_flos()
        self.monitor.flush(self.state)
        path = self.checkpoints.commit(self.model, self.state, self.write_checkpoint)
        may_upload = self.args.push_to_hub and not self.stop.requested  # a run that stops has no time for it
        if may_upload and self.is_world_process_zero():
            announce = functools.partial(self.callback_handler.on_push_begin, self.args, self.state, self.control)
            self.uploads.push_checkpoint(self.hub_model_id, path, self.state.global_step, announce)
            self.push_in_progress = self.uploads.in_progress

    def _load_best_model(self) -> None:
        """Loads the best checkpoint's weights, if they are unchanged since they were written."""
        best = self.state.best_model_checkpoint
        self.ranks.together(check_best, best)
        if self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            load_weights(self.unwrapped_model(), best)
