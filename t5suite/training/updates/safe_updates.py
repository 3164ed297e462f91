"""Every update is looked at before it is made: numbers that are none, spikes and lack of memory do not spoil the weights.

    >>> class Trainer(SafeUpdates, Seq2SeqTrainer): ...
    >>> trainer.train()                                                        # incidents.jsonl says what happened
    WARNING step 41: the loss was nan, the gradient norm nan; update skipped (1 in a row)

After the update's last backward pass and before the optimizer's step, its loss (over micro-batches and ranks) and its
gradient norm are looked at, one vote a step over all ranks:

* not finite: the update is skipped. Its gradients are set to None, so that no weight, moment or decay changes;
  schedule, step counter and data go on. After `--max_skipped_updates` in a row the run ends (70). Under fp16 gradients
  that overflow are the loss scaler's business, until its scale can get no smaller. DeepSpeed has taken its step before
  anyone can look, but skips an update whose gradient norm is not finite by itself (0.19.8, at any precision where
  `bf16.check_grad_overflow` is on, `sharding.deepspeed_flags`): it is told apart from one that was made;
* a spike (`spikes`): `--loss_spikes log` notes it (the first one aloud, the others by their number); `skip` skips the
  update; `rollback` puts weights and moments back to the newest checkpoint and goes on with the data behind the spike
  (arXiv:2204.02311 section 5.1);
* out of memory (`micro_batches`): the update is computed in smaller pieces.
"""  # noqa: E501

import functools
import math

import torch
from transformers import TrainerCallback

from t5suite.base.errors import ConfigError
from t5suite.training.processes.ranks import Ranks
from t5suite.training.updates.judging import Judging
from t5suite.training.updates.micro_batches import MicroBatches, can_put_off, putting_off_exchange
from t5suite.training.updates.spikes import POLICIES
from t5suite.training.updates.votes import UpdateVote


class SafeUpdates(Judging):
    """A mixin that stands before a `transformers.Trainer`, which says more by `examples_of` and `stop_requested`.

    Attributes:
      ranks, micro_batches: the parts, beside those of `Judging`.
      stop_agreed: some rank was asked to stop; all ranks learn it in the same step.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        check_policy(self.loss_spikes, self.max_skipped_updates, self.accelerator.distributed_type.value)
        self.ranks = getattr(self, "ranks", None) or Ranks.of(self.accelerator)
        self.micro_batches = MicroBatches()
        self.stop_agreed = False
        self._grad_norm = self._items = self._update_loss = self._loss_before = None
        self._in_backward = False
        # A loss that is no number is handled here; the trainer's own filter would look at every micro-batch.
        self.args.logging_nan_inf_filter = False
        self.add_callback(UpdateCallback(self))

    def stop_requested(self) -> bool:
        """Whether this process was asked to stop."""
        return False

    # What the trainer does to a micro-batch

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """One micro-batch, in pieces where memory asks for it."""
        step = super().training_step
        self._items = num_items_in_batch

        def run(piece):
            self._in_backward = False
            return step(model, piece, num_items_in_batch)

        if num_items_in_batch is None:
            loss = run(inputs)
        else:
            loss = self.micro_batches.run(
                inputs,
                run,
                redo=functools.partial(self._redo, model),
                no_sync=functools.partial(self.accelerator.no_sync, model),
                synchronises=self.accelerator.gradient_state.sync_gradients,
            )
        self._update_loss = loss.detach() if self._update_loss is None else self._update_loss + loss.detach()
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Notes where the forward pass ends, and lets ranks prepare for exchanging gradients only then."""
        compute = functools.partial(super().compute_loss, model, inputs, return_outputs, num_items_in_batch)
        loss = compute() if return_outputs else putting_off_exchange(model, compute)
        self._in_backward = True
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """Keeps the norm before clipping, which transformers 5.23 hands to no documented hook."""
        self._grad_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        return self._grad_norm

    def _redo(self, model, failure: str, synchronising: bool) -> None:
        """Before an update runs again in smaller pieces."""
        sharded = self.accelerator.distributed_type.value in ("FSDP", "DEEPSPEED")
        exchanging = synchronising and (self._in_backward or not can_put_off(model))
        if sharded or (exchanging and self.ranks.world_size > 1):
            size, steps = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
            raise ConfigError(
                f"out of memory on rank {self.ranks.rank} in step {self.state.global_step + 1} ({failure}), while the "
                "ranks were exchanging gradients, so that this one cannot compute its part again. Start the run again "
                f"with --per_device_train_batch_size {max(1, size // 2)} --gradient_accumulation_steps {2 * steps}: "
                "it goes on from its last checkpoint, with the same updates"
            )
        model.zero_grad(set_to_none=True)
        # The failed forward pass has broadcast buffers where DDP does; doing it twice would wait for ranks that do not.
        if hasattr(model, "require_forward_param_sync"):
            model.require_forward_param_sync = False
        if hasattr(self.compute_loss_func, "counts"):
            self.compute_loss_func.counts = self._counts_before

    # What is done about an update

    def begin_update(self) -> None:
        """Before the first micro-batch of an update."""
        self._update_loss = self._grad_norm = None
        self._loss_before = self._tr_loss.clone()
        self._counts_before = getattr(self.compute_loss_func, "counts", None)
        self.micro_batches.begin()

    def settle_update(self, model) -> None:
        """After the last backward pass, before the optimizer's step: lets the update be, or takes it back.

        Raises:
          NumericsError: too many updates in a row were skipped, or weights rolled back.
        """
        step = self.state.global_step + 1
        grew = self.micro_batches.failure is not None
        totals = UpdateVote(self.ranks).take(self._update_loss, self._grad_norm, self.stop_requested(), grew)
        self.stop_agreed |= totals.stop
        self.count(0)
        if totals.grew:
            self.agree_on_pieces(step, self.micro_batches.failure)
        if self.is_broken(totals):
            self._tr_loss.copy_(self._loss_before)
        self.judge(model, step, totals)

    # What is logged and remembered

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Logged losses are means over the updates that were sound; those that were skipped are counted.

        To the trainer's sums a broken update has added nothing, and its means are over all updates.
        """
        for name, span in (("loss", "since_log"), ("train_loss", "run")):
            updates, broken = self.counted[span]
            if name in logs and broken:
                logs[name] = logs[name] * updates / (updates - broken) if broken < updates else math.nan
        if "loss" in logs:
            self.counted["since_log"] = [0, 0]
            if self.skipped_updates:
                logs["skipped_updates"] = self.skipped_updates
        super().log(logs, start_time)


class UpdateCallback(TrainerCallback):
    """Tells a trainer with `SafeUpdates` where its updates begin and end, and checkpoints what it must not forget."""

    def __init__(self, trainer: SafeUpdates):
        self.trainer = trainer

    def remember(self) -> dict:
        """What a checkpoint remembers, as JSON values; the same on every rank."""
        trainer = self.trainer
        return {
            "skipped_updates": trainer.skipped_updates,
            "in_a_row": trainer.in_a_row,
            "counted": trainer.counted,
            "spikes": trainer.spikes.state(),
            "micro_batches": {**trainer.micro_batches.state(), "rows": trainer.args.per_device_train_batch_size},
        }

    def recall(self, state: dict) -> None:
        """Goes on where `remember` was called."""
        trainer = self.trainer
        trainer.skipped_updates, trainer.in_a_row = state["skipped_updates"], state["in_a_row"]
        trainer.counted = {span: list(counts) for span, counts in state["counted"].items()}
        trainer.spikes.load(state["spikes"])
        trainer.micro_batches.load(state["micro_batches"])
        # A run may go on with smaller micro-batches, which is what running out of memory makes one do.
        rows, before = trainer.args.per_device_train_batch_size, state["micro_batches"]["rows"]
        trainer.micro_batches.pieces = max(1, math.ceil(trainer.micro_batches.pieces * rows / before))

    def on_train_begin(self, args, state, control, **kwargs):
        """Incidents behind the step that the run goes on from will happen again."""
        self.trainer.incidents.drop_after(state.global_step)

    def on_step_begin(self, args, state, control, **kwargs):
        """An update begins."""
        self.trainer.begin_update()

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """An update is complete."""
        self.trainer.settle_update(model)

    def on_evaluate(self, args, state, control, **kwargs):
        """A time to say how many spikes there were."""
        self.trainer.tell_spikes()

    def on_save(self, args, state, control, **kwargs):
        """A checkpoint is there: what is rolled back from now on goes back to it."""
        self.trainer.rollbacks = 0
        self.trainer.tell_spikes()

    def on_train_end(self, args, state, control, **kwargs):
        """What was not told yet."""
        self.trainer.tell_spikes()


def check_policy(policy: str, max_skipped_updates: int, distributed_type: str) -> None:
    """Refuses what cannot be done.

    Raises:
      ConfigError: an unknown policy, a limit below 1, or a policy that sharded training cannot follow.
    """
    if policy not in POLICIES:
        raise ConfigError(f"--loss_spikes {policy!r}: choose one of {', '.join(POLICIES)}")
    if max_skipped_updates < 1:
        raise ConfigError(f"--max_skipped_updates {max_skipped_updates}: must be at least 1")
    if distributed_type == "DEEPSPEED" and policy in ("skip", "rollback"):
        raise ConfigError(f"--loss_spikes {policy}: DeepSpeed makes its updates itself; choose log or off")
    if distributed_type == "FSDP" and policy == "rollback":
        raise ConfigError("--loss_spikes rollback cannot put sharded weights back (FSDP); choose skip, log or off")
