"""`SuiteTrainer`: Hugging Face's `Seq2SeqTrainer` with our loss, our batches and our evaluation.

    >>> trainer = SuiteTrainer(model=model, args=args, train_dataset=features, epoch_order=order, collator=collator,
    ...                        evaluator=evaluator, eval_sets=eval_sets, processing_class=tokenizer)
    >>> trainer.train()

What it changes: `compute_loss_func` (law 1), `get_train_dataloader` (no row is repeated to fill ranks; the seed and the
step decide the rows), `evaluate` (law 2, and one number that selects checkpoints), and what is saved and restored (laws
3 and 4). Each Hugging Face hook is here once and delegates to a part, a plain object that does not use the trainer.
"""

import contextlib
import copy
import functools
import logging
import os
from pathlib import Path

import torch
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError, Preempted
from t5suite.base.libraries import Libraries, choose_libraries, require_proved
from t5suite.data.batches.samplers import EpochDataLoader, GlobalBatchSampler
from t5suite.models.t5.attention import slow_attention
from t5suite.models.t5.decoder import holds_parts
from t5suite.models.t5.dropout import quicken_dropout
from t5suite.training.checkpoints.data_positions import ExampleOrder, StreamSource
from t5suite.training.checkpoints.folders import STATE_FILE
from t5suite.training.checkpoints.resuming import RANK_FILE, RunProgress
from t5suite.training.checkpoints.saving import Checkpoints
from t5suite.training.checkpoints.selection import (
    forget_undefined_best,
    note_nothing_selected,
    selected_a_checkpoint,
    take_up_best,
)
from t5suite.training.checkpoints.starts import Position
from t5suite.training.eval_sets import report_metrics, selection_value
from t5suite.training.limits import limit_callbacks
from t5suite.training.losses import TokenLoss, ask_for_loss, chunk_settings, give_batch
from t5suite.training.monitoring.flops import peak_flops
from t5suite.training.monitoring.rates import StepMonitor
from t5suite.training.monitoring.terminal import show_progress, shows_bars
from t5suite.training.neftune import NeftuneCallback
from t5suite.training.optimization import (
    build_optimizer,
    build_scheduler,
    check_parallelism,
    sets_its_own_rates,
    warn_of_endless_warmup,
)
from t5suite.training.plug_ins import MeasuredLoss
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.sharding.process_state import making_accelerator, shared_embeddings_together
from t5suite.training.sharding.settings import FSDP, is_set
from t5suite.training.updates.guard import UpdateGuard
from t5suite.training.uploads import HubUploads

logger = logging.getLogger(__name__)

# Logs that the trainer's state holds, in memory and in `trainer_state.json`.
MOST_LOGS = 1000
# The modes of `torch.compile` that record CUDA graphs.
GRAPH_MODES = ("reduce-overhead", "max-autotune")


class SuiteTrainer(Seq2SeqTrainer):
    """A `Seq2SeqTrainer` that weighs every target token equally, scores every row once, and survives interruptions.

    Args:
      epoch_order: epoch -> the indices of the training examples in the order they are seen.
      stream: a `StreamLoader` instead of training examples that have an order.
      collator: makes padded tensors, including `decoder_input_ids`.
      evaluator, eval_sets: what `evaluate` runs.
      selection_metric: 'loss' selects checkpoints by loss; None by the tasks' own metrics.
      name_example: index -> the name of that training example in incidents.
      loss: `(outputs, labels, num_items_in_batch)` -> the loss; by default, cross-entropy of tokens or classes.
      libraries: which fast paths are off; by default, what `--reference_code` names and what is not proved.

    Attributes:
      ranks, stop: how the processes agree, and requests to stop (signals).
      data: which examples an update has, and their positions.
      updates: checks every update before it is applied.
      checkpoints, progress, uploads: write and read checkpoints, hold their progress of the run, upload to the hub.
      data_reset, schedule_start, reset_done: set by `checkpoints.restarts`: whether the examples start over, the step
        at which the schedule began, and what was reset.
      chunked: the settings with which the model computes the loss; None if it returns logits.
      counts_tokens: checkpoints keep the number of tokens seen, and logs have it.
    """

    counts_tokens = False

    def __init__(
        self,
        *,
        epoch_order=None,
        stream=None,
        collator=None,
        evaluator=None,
        eval_sets=(),
        selection_metric=None,
        name_example=int,
        loss=None,
        libraries: Libraries | None = None,
        **kwargs,
    ):
        require_proved("training_loop")
        # A copy of the user's arguments as transformers' Trainer should read them: it selects by one number, higher is
        # better; our trackers mirror metrics.jsonl; a micro-batch that does not fit is halved in place; the guard
        # handles non-finite losses.
        args = kwargs["args"] = copy.copy(kwargs["args"])
        args.metric_for_best_model, args.report_to, args.auto_find_batch_size = "selection", [], False
        args.logging_nan_inf_filter = False
        if args.torch_compile and args.device.type == "cuda" and args.torch_compile_mode in GRAPH_MODES:
            raise ConfigError(
                f"--torch_compile_mode {args.torch_compile_mode} records CUDA graphs, whose memory does not outlive a "
                "micro-batch; choose default or max-autotune-no-cudagraphs"
            )
        libraries = libraries or choose_libraries(args.reference_code, args.allow_untested_libraries)
        self.libraries = libraries
        self.uploads = HubUploads(args)
        tokens = TokenLoss(label_smoothing=args.label_smoothing_factor, z_loss=getattr(args, "z_loss", 0.0))
        super().__init__(
            data_collator=collator,
            compute_loss_func=loss or tokens,
            eval_dataset={eval_set.name: eval_set.features for eval_set in eval_sets} or None,
            **kwargs,
        )
        # transformers 5.23 gives `--use_cache` to the model alone: T5's decoder, which has a copy of the configuration,
        # would keep keys and values of every layer while it trains (tests/test_safe_updates.py).
        for module in self.model.modules():
            if hasattr(getattr(module, "config", None), "use_cache"):
                module.config.use_cache = args.use_cache
        if args.torch_compile:
            # torch's default is a temporary folder, which is empty for a cluster's next job.
            caches = os.path.expanduser(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(caches, "t5suite", "compiled"))
        fsdp, deepspeed = self.is_fsdp_enabled, self.is_deepspeed_enabled
        tokens = 0 if "loss_chunks" in libraries.off else args.loss_chunk_tokens
        if "quick_attention" in libraries.off:
            slow_attention(self.model)
        if "quick_dropout" not in libraries.off and args.device.type == "cpu":
            quicken_dropout(self.model)
        self.chunked = chunk_settings(
            self.model, self.compute_loss_func, tokens, sharded=fsdp or deepspeed, fp16=args.fp16
        )
        self.ranks, self.stop = Ranks.of_process(), stop_requests()
        self.checkpoints = Checkpoints(args, self.accelerator, self.ranks, self.stop, fsdp=fsdp, deepspeed=deepspeed)
        args.save_total_limit = None  # the trainer's rotation deletes in place: a kill leaves half a checkpoint
        self.updates = UpdateGuard(args, self.accelerator, self.ranks, self.is_world_process_zero())
        self.progress = RunProgress(self.ranks, self._take_up)
        # Our labels are at the position that predicts them, in every family: each of them counts. By default,
        # transformers 5.23 would not count the first one of a causal model's row.
        self._loss_shifts_labels = False
        self.data = ExampleOrder(epoch_order, name_example) if stream is None else StreamSource(stream, args.max_steps)
        self.evaluator, self.eval_sets, self.selection_metric = evaluator, list(eval_sets), selection_metric
        self.last_report, self.data_reset, self.schedule_start, self.reset_done = None, False, 0, ""
        peak = peak_flops(args.device, args.peak_tflops)
        self.monitor = StepMonitor(peak, self.summed, keeps_count=self.counts_tokens, device=args.device)
        for callback in (self.updates, self.progress, *limit_callbacks(args), self.monitor):
            self.add_callback(callback)
        show_progress(self, shows_bars(args))
        if args.neftune_noise_alpha is not None:
            self.neftune_noise_alpha = None  # theirs misses T5's embeddings
            self.add_callback(NeftuneCallback(args.neftune_noise_alpha))
        if stream is not None:
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
        )

    def update_size(self) -> int:
        return self._train_batch_size * self.args.gradient_accumulation_steps * self.accelerator.num_processes

    def examples_of(self, step: int) -> list:
        """The names of the examples of an update (1 is the first), over all ranks."""
        return self.data.examples_of(step, self.update_size())

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.accelerator.reduce(tensor, "sum") if self.accelerator.num_processes > 1 else tensor

    def get_batch_samples(self, epoch_iterator, num_batches, device) -> tuple:
        """The batches of an update, sent to the GPU at once: their labels are counted there, without a wait."""
        epoch_iterator = self.monitor.timed(epoch_iterator)
        if device.type == "cuda":
            # From pinned memory (--dataloader_pin_memory) without a wait.
            epoch_iterator = (send_to_device(batch, device, non_blocking=True) for batch in epoch_iterator)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Counts the micro-batch, and computes it in pieces if it does not fit in memory."""
        step, loss, compute = self.state.global_step + 1, self.compute_loss_func, super().training_step
        if hasattr(loss, "watch"):
            args, interval = self.args, max(int(self.state.logging_steps or 1), 1)
            first = step == 1 and args.logging_first_step
            loss.watch(step, args.logging_strategy != "steps" or step % interval == 0 or first)
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
        """The loss of a piece; a T5 that computes the loss itself gets the labels."""
        loss = self.compute_loss_func
        looks = give_batch(loss, inputs)  # before the trainer removes the labels
        if not looks and self.chunked is not None and not return_outputs:
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
            # If the optimizer is offloaded, accelerate replaces any optimizer with DeepSpeed's Adam.
            config = self.accelerator.state.deepspeed_plugin.deepspeed_config
            config["zero_force_ds_cpu_optimizer"] = isinstance(optimizer, torch.optim.Adam)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None) -> torch.optim.lr_scheduler.LRScheduler:
        """`--schedule` from our table, else what `--lr_scheduler_type` says.

        The trainer steps it once per update; accelerate must not prepare it: it would step it once per process.
        """
        optimizer = optimizer or self.optimizer
        num_training_steps -= self.schedule_start
        warn_of_endless_warmup(self.args, num_training_steps)
        ours = self.args.schedule is not None or sets_its_own_rates(optimizer)
        if self.lr_scheduler is not None or not ours:
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
        self.evaluator.check_stop = self.check_stop
        if (self.is_deepspeed_enabled or self.is_fsdp_enabled) and not holds_parts(self.model):
            self.model.to(self.args.device)  # nothing has placed or sharded it without training: each rank has all
        with self.stop.phase("evaluation"):
            return self.evaluator.evaluate(self.model, eval_sets, selection_metric)

    def train(self, resume_from_checkpoint=None, **kwargs):
        """Trains; a request to stop waits for the end of a step."""
        self.progress.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if resume_from_checkpoint and not self.data_reset:
            self.data.load(resume_from_checkpoint, self.args.allow_changed)
        try:
            with self.stop.phase("training"), self.stop.excusing_lost_ranks():
                return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.data.close()

    def check_stop(self) -> None:
        """Called between the batches of an evaluation: aborts it on all ranks if one was asked to stop."""
        if agree_to_stop(self.ranks, self.stop):
            step = self.state.global_step
            kept = f"checkpoint-{step}" if (Path(self.args.output_dir) / f"checkpoint-{step}").is_dir() else None
            raise self.stop.preempted(step or None, kept)

    def save_model(self, output_dir=None, _internal_call: bool = False) -> None:
        """Saves a model for others to load: its files replace older ones once all are on the disk."""
        folder = Path(output_dir or self.args.output_dir)
        if not _internal_call:
            write = lambda new: self.save_model(str(new), _internal_call=True)
            self.checkpoints.replace_model(folder, self.model, self.state.global_step, write)
        elif self.is_fsdp_enabled:
            # Whole weights on rank 0; the trainer writes none where it writes pieces (SHARDED_STATE_DICT).
            self._save(str(folder), state_dict=self.accelerator.get_state_dict(self.model))
        else:
            super().save_model(str(folder), _internal_call)

    def save_best_of_task(self, folder: Path) -> None:
        """Saves a task's best weights so far, in place of its former ones."""
        write = lambda new: self.save_model(str(new), _internal_call=True)
        self.checkpoints.replace_best(folder, self.model, self.state.global_step, write)

    def write_checkpoint(self, folder: Path) -> None:
        self.save_model(str(folder), _internal_call=True)
        if self.is_deepspeed_enabled and not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
        elif not self.args.save_only_model:
            self.checkpoints.write_optimizer(folder, self.optimizer, self.lr_scheduler)
        callbacks = self.callback_handler.callbacks
        progress = self.progress.described(
            loss_total=self._total_loss_scalar,
            logged_step=self._globalstep_last_logged,
            stopped=self.control.should_training_stop,
            callbacks=callbacks,
        )
        seen = self.data.seen(self.state.global_step, self.update_size())
        position = Position(seen, self.schedule_start, self.reset_done)
        self.checkpoints.write_progress(folder, {"loss_since_log": self._tr_loss.item()}, progress, position)
        self.data.save(folder)
        if self.args.should_save:
            parts = [part for part in [*callbacks, self.control] if isinstance(part, ExportableState)]
            self.state.stateful_callbacks |= {type(part).__name__: part.state() for part in parts}
            forget_undefined_best(self.state)
            self.state.save_to_json(str(folder / STATE_FILE))

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        if self.train_dataset is None:
            logger.warning("--push_to_hub has no effect: nothing is trained")
            self.args.push_to_hub = False
        elif self.is_world_process_zero():
            with self.uploads.refusals():
                super().init_hf_repo(token, private)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ):
        """Uploads the run's directory: the saved model, its card and its results."""
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self._finish_current_push()
        return self.uploads.push_run(
            self.hub_model_id, commit_message, blocking=blocking, token=token, revision=revision
        )

    def push_finished(self) -> None:
        """Uploads a finished run, if `--push_to_hub` is on."""
        if self.args.push_to_hub and self.push_to_hub() is not None:
            logger.info("uploaded to %s", self.hub_model_id)

    # -----------------------------------------------------------------------------------------------------------------
    # Private hooks of transformers 5.23, which has no public ones around an update's gradients, the logs and
    # evaluations after it, and what a checkpoint holds (tests/test_resuming.py shows when one is gone)

    def _prepare_for_training(self, *args, **kwargs):
        with shared_embeddings_together(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            return super()._prepare_for_training(*args, **kwargs)

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
        resumes = self.progress.resumed_from and kwargs["epoch"] == kwargs["epochs_trained"]
        if resumes and not self.args.ignore_data_skip:
            # The trainer would make all batches of the epoch so far, only to discard them.
            kwargs["train_dataloader"].batch_sampler.pass_over(kwargs["steps_trained_in_current_epoch"])
        super()._run_epoch(**kwargs)

    def _finalize_training(self, trial, num_train_samples, start_time):
        """Does what is pending if the run was stopped after its last step: no epoch is left that would do it."""
        self._catch_up(trial, self.state.epoch, None, start_time)
        if self.args.load_best_model_at_end and not selected_a_checkpoint(self.state):
            note_nothing_selected(self.state.global_step)
        return super()._finalize_training(trial, num_train_samples, start_time)

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, *args, learning_rate=None, **kwargs) -> None:
        """What follows a step; if the run must stop, only the log that is due, one checkpoint, and the end."""
        follow = functools.partial(
            super()._maybe_log_save_evaluate, tr_loss, grad_norm, *args, learning_rate=learning_rate, **kwargs
        )
        # Within an epoch the update's own vote has decided it (`updates.guard`); the epoch's end has no vote.
        if self.updates.stop_agreed or (self.progress.after_epoch_end and agree_to_stop(self.ranks, self.stop)):
            self.stop.request()
            control, due = self.control, (self.control.should_evaluate, self.control.should_save)
            control.should_evaluate = control.should_save = False  # only the log
            follow()
            control.should_evaluate, control.should_save = due
        else:
            try:
                follow()
                return
            except Preempted:
                pass  # the evaluation was aborted on all ranks; its flag and that of the save are still set
        self.progress.note_pending(self.state, self.control, grad_norm, learning_rate)
        self._save_checkpoint(self.model_wrapped)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        step = self.state.global_step
        raise self.stop.preempted(step, f"checkpoint-{step}")

    def _catch_up(self, trial, epoch, ignore_keys_for_eval, start_time) -> None:
        """Does what was pending when the run was stopped; not a hook."""
        pending = self.progress.take_pending(self.control)
        if not pending:
            return
        logger.info("step %d: first doing what was pending when the run was stopped", self.state.global_step)
        # The trainer restores random numbers with the first batch; a checkpoint written here needs them already.
        self._load_rng_state(str(self.progress.resumed_from))
        rest = trial, epoch, ignore_keys_for_eval, start_time
        follow = lambda: self._maybe_log_save_evaluate(
            self._tr_loss, pending["grad_norm"], self.model_wrapped, *rest, learning_rate=pending["learning_rate"]
        )
        follow()
        if pending["epoch_end"]:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            follow()

    def _take_up(self, control) -> None:
        """Restores the trainer's sums and its best checkpoint when training begins; not a hook."""
        if self.state.global_step > 0:
            # A restart comes after the first update. Early stopping would count this evaluation a second time.
            self.args.eval_on_start = False
        take_up_best(self.state, self.args.output_dir)
        found = self.progress.recall(self.state.global_step, self.callback_handler.callbacks)
        if found is not None:
            self._tr_loss.fill_(found["loss_since_log"])
            self._total_loss_scalar, self._globalstep_last_logged = found["loss_total"], found["logged_step"]
            control.should_training_stop = found["stopped"]

    def _save(self, output_dir=None, state_dict=None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        self.checkpoints.write_model(folder, self.model, self.processing_class, state_dict)

    def _save_checkpoint(self, model, trial=None) -> None:
        """Commits `checkpoint-N` whole, or fails with the previous one untouched."""
        self.store_flos()
        path = self.checkpoints.commit(self.model, self.state, self.write_checkpoint)
        if self.args.push_to_hub and self.is_world_process_zero():
            announce = lambda: self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.uploads.push_checkpoint(self.hub_model_id, path, self.state.global_step, announce)
            self.push_in_progress = self.uploads.in_progress

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        """Restores the optimizer bit by bit; the stock trainer reads DeepSpeed's and FSDP's own files."""
        if self.checkpoints.has_optimizer(checkpoint):
            self.checkpoints.load_optimizer(checkpoint, self.optimizer, self.lr_scheduler)
        else:
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_from_checkpoint(self, checkpoint, model=None) -> None:
        self.checkpoints.load_weights(self.model, checkpoint)

    def _load_scaler(self, checkpoint) -> None:
        self.checkpoints.load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint) -> None:
        if checkpoint is None or not any(Path(checkpoint).glob(RANK_FILE.format(rank="*"))):
            super()._load_rng_state(checkpoint)
        else:
            self.checkpoints.load_random_state(checkpoint, self.state.global_step)

    def _load_best_model(self) -> None:
        """Loads the best checkpoint's weights, if they are unchanged since they were written."""
        best = self.state.best_model_checkpoint
        self.checkpoints.check_best(best)
        if self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self.checkpoints.load_weights(self.model, best)
