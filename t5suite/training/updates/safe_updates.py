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

On a GPU all that is looked at one update later (`late_checks`), where the device can leave a step out by itself: the
same updates are skipped and the same incidents told, one update later, and the host waits for nothing between two logs.
"""  # noqa: E501

import functools
import logging
import math
from dataclasses import dataclass

import torch
from transformers import TrainerCallback

from t5suite.errors import ConfigError, NumericsError
from t5suite.training.checkpoints import load_state, newest_verified
from t5suite.training.processes.ranks import Ranks
from t5suite.training.resuming.resets import load_moments
from t5suite.training.updates.incidents import Incidents
from t5suite.training.updates.late_checks import LateNumbers, hindrance
from t5suite.training.updates.micro_batches import MicroBatches, can_put_off, putting_off_exchange
from t5suite.training.updates.spikes import POLICIES, SpikeCount, SpikeDetector

logger = logging.getLogger(__name__)

MAX_SKIPPED_UPDATES = 3
# Rollbacks between two checkpoints: a spike that comes back from the same weights on other data is no accident.
MAX_ROLLBACKS = 3
# A loss scale that is this small can save no gradient any more.
LEAST_SCALE = 1.0


# ---------------------------------------------------------------------------------------------------------------------
# The vote


@dataclass(frozen=True)
class Totals:
    """What an update came to over all ranks.

    Attributes:
      loss, grad_norm: of the whole update; nan or inf if one rank's is. grad_norm is None where it is not known.
      stop: one rank at least was asked to stop.
      grew: on one rank at least, micro-batches are now cut into more pieces.
    """

    loss: float
    grad_norm: float | None
    stop: bool = False
    grew: bool = False


@dataclass
class UpdateVote:
    """One all-reduce an update for everything that ranks must agree on; none where there is one rank.

    >>> UpdateVote(Ranks()).take(loss=torch.tensor(2.5), grad_norm=torch.tensor(0.5), stop=False)
    Totals(loss=2.5, grad_norm=0.5, stop=False, grew=False)
    """

    ranks: Ranks

    def take(self, loss, grad_norm=None, stop: bool = False, grew: bool = False) -> Totals:
        """Every rank must call it once an update.

        Args:
          loss: this rank's, scaled as the trainer scales it: the mean over ranks is the update's.
          grad_norm: of the gradients that all ranks have in common.
        """
        loss, norm = numbers(loss, grad_norm)
        size = self.ranks.world_size
        if size > 1:
            sums = self.ranks.sum([loss / size, (norm or 0.0) / size, float(stop), float(grew)])
            loss, norm = sums[0], None if norm is None else sums[1]
            stop, grew = sums[2] > 0, sums[3] > 0
        return Totals(loss, norm, bool(stop), bool(grew))


def numbers(loss, grad_norm) -> tuple[float, float | None]:
    """Both as Python numbers, fetched from the device at once."""
    if hasattr(grad_norm, "full_tensor"):
        grad_norm = grad_norm.full_tensor()
    if torch.is_tensor(loss) and torch.is_tensor(grad_norm):
        return tuple(torch.stack([loss.double(), grad_norm.to(loss.device).double()]).tolist())
    return float(loss), None if grad_norm is None else float(grad_norm)


# ---------------------------------------------------------------------------------------------------------------------
# The trainer's part


class SafeUpdates:
    """A mixin that stands before a `transformers.Trainer`, which says more by `examples_of` and `stop_requested`.

    Attributes:
      ranks, incidents, spikes, micro_batches: the parts.
      stop_agreed: some rank was asked to stop; all ranks learn it in the same step.
      skipped_updates, in_a_row: updates that were skipped: in the whole run, and up to now without one between them.
      rollbacks: since the last checkpoint.
      counted: updates and, of these, broken ones: since the last log, and in the whole run.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_skipped_updates = getattr(self.args, "max_skipped_updates", MAX_SKIPPED_UPDATES)
        self.loss_spikes = getattr(self.args, "loss_spikes", "log")
        check_policy(self.loss_spikes, self.max_skipped_updates, self.accelerator.distributed_type.value)
        self.ranks = getattr(self, "ranks", None) or Ranks.of(self.accelerator)
        self.incidents = Incidents(self.args.output_dir, self.is_world_process_zero())
        self.spikes, self.micro_batches = SpikeDetector(), MicroBatches()
        self.noted_spikes = SpikeCount()
        self.stop_agreed = False
        self.skipped_updates = self.in_a_row = self.rollbacks = 0
        self.counted = {"since_log": [0, 0], "run": [0, 0]}
        self._grad_norm = self._items = self._update_loss = self._loss_before = None
        self._in_backward = False
        self._late: LateNumbers | None = None
        # A loss that is no number is handled here; the trainer's own filter would look at every micro-batch.
        self.args.logging_nan_inf_filter = False
        self.add_callback(UpdateCallback(self))

    # What a trainer says

    def examples_of(self, step: int) -> list:
        """Ids of the examples of an update (1 is the first), over all ranks; every rank asks at once."""
        return []

    def stop_requested(self) -> bool:
        """Whether this process was asked to stop."""
        return False

    def roll_back(self) -> str | None:
        """Weights and moments of the newest verified checkpoint, on every rank; rates and schedule stay as they are.

        Returns:
          its name; None if there is no checkpoint, or none with an optimizer in it.
        """
        checkpoint = self.ranks.together(newest_verified, self.args.output_dir)
        if checkpoint is None or not (checkpoint / "optimizer.json").is_file():
            return None
        self._load_from_checkpoint(str(checkpoint), self.model)
        load_moments(self.optimizer, load_state(checkpoint, "optimizer"), checkpoint)
        return checkpoint.name

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

    def choose_checks(self, optimizer) -> None:
        """`--update_checks`: whether updates are looked at before they are made, or one later.

        Raises:
          ConfigError: late was asked for and cannot be.
        """
        choice = getattr(self.args, "update_checks", "auto")
        self._late = None
        if hasattr(getattr(optimizer, "optimizer", None), "found_inf"):
            optimizer.optimizer.found_inf = None  # of a training before this one
        if choice == "now" or (choice == "auto" and self.args.device.type != "cuda"):
            return
        reason = hindrance(optimizer, self.loss_spikes, self.accelerator)
        if reason is None:
            self._late = LateNumbers(self.args.device)
        elif choice == "late":
            raise ConfigError(f"--update_checks late: {reason}; choose auto or now")

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
        if self._late is not None:
            self._settle_late(step)
            return
        grew = self.micro_batches.failure is not None
        totals = UpdateVote(self.ranks).take(self._update_loss, self._grad_norm, self.stop_requested(), grew)
        self.stop_agreed |= totals.stop
        self._count(0)
        if totals.grew:
            self._agree_on_pieces(step)
        if self._is_broken(totals):
            self._tr_loss.copy_(self._loss_before)
        self._judge(model, step, totals)

    def _settle_late(self, step: int) -> None:
        """Leaves the update out on the device if a number of it is none; the one before is judged now."""
        self.judge_late()
        self.stop_agreed |= self.stop_requested()
        self._count(0)
        if self.micro_batches.failure is not None:
            self._agree_on_pieces(step)
        broken = self._late.put(step, self._update_loss, self._grad_norm, self._items)
        self._tr_loss.copy_(torch.where(broken.bool(), self._loss_before, self._tr_loss))
        self.optimizer.optimizer.found_inf = broken

    def judge_late(self) -> None:
        """Judges the update whose numbers are on their way: before the next one, a log or a checkpoint.

        Raises:
          NumericsError: too many updates in a row were skipped.
        """
        late = self._late.take() if self._late is not None else None
        if late is None:
            return
        totals, items = Totals(late.loss, late.grad_norm), self._items
        self._items = late.items
        if self._is_broken(totals) and hasattr(self.optimizer.optimizer, "count_back"):
            self.optimizer.optimizer.count_back()
        self._judge(self.model, late.step, totals)
        self._items = items

    def _judge(self, model, step: int, totals: Totals) -> None:
        """What an update's numbers mean."""
        if self._is_broken(totals):
            self._count(1)
            self._skip(model, step, "non_finite", totals, self._cause(totals))
            return
        spike = None if self.loss_spikes == "off" else self.spikes.observe(totals.loss, totals.grad_norm)
        if spike is None or self.loss_spikes == "log":
            self.in_a_row = 0
        if spike is not None:
            self._handle_spike(model, step, totals, spike)

    def _count(self, place: int) -> None:
        for counts in self.counted.values():
            counts[place] += 1

    def _is_broken(self, totals: Totals) -> bool:
        if not math.isfinite(totals.loss):
            return True
        if totals.grad_norm is None or math.isfinite(totals.grad_norm):
            return False
        # Under fp16 the scaler skips such an update itself and lowers its scale.
        if self.accelerator.distributed_type.value == "DEEPSPEED":
            scaler = self.optimizer.optimizer.loss_scaler
            return not scaler.dynamic or scaler.cur_scale <= LEAST_SCALE
        scaler = self.accelerator.scaler
        return scaler is None or scaler.get_scale() <= LEAST_SCALE

    def _skipped_by_deepspeed(self) -> bool:
        """Whether DeepSpeed left the last update out; its schedule goes on all the same, as after our own skips."""
        optimizer = self.optimizer.optimizer
        skipped, optimizer.overflow = bool(optimizer.overflow), False
        return skipped

    def _skip(self, model, step: int, kind: str, totals: Totals, cause: str) -> None:
        """Takes the update back, and ends the run after too many in a row."""
        self.skipped_updates += 1
        self.in_a_row += 1
        if self.accelerator.distributed_type.value != "DEEPSPEED":
            if self._late is None:
                model.zero_grad(set_to_none=True)
            ours = True
        else:
            ours = self._skipped_by_deepspeed()
        stops = self.in_a_row >= self.max_skipped_updates
        action = "update skipped" if ours else "none: DeepSpeed has made the update"
        examples = self._note(step, kind, action + ("; the run stops" if stops else ""), totals)
        if not stops:
            logger.warning("step %d: %s; %s (%d in a row)", step, cause, action, self.in_a_row)
            return
        first = step - self.in_a_row + 1
        raise NumericsError(
            f"step {step}: {cause}; {self.in_a_row} updates in a row (from step {first}) were "
            f"{'skipped' if ours else 'broken'}, and the run stops here (--max_skipped_updates "
            f"{self.max_skipped_updates}). Examples of the last: {shown(examples)} ({self.incidents.path.name} has "
            f"all). Likely cure: {self._cure(kind)}"
        )

    def _handle_spike(self, model, step: int, totals: Totals, spike) -> None:
        if self.loss_spikes == "log":
            examples = self._note(step, "spike", "none", totals, limit=spike.limit)
            if self.noted_spikes.add(step, spike):
                where = f"later ones are counted, {self.incidents.path.name} has each"
                logger.warning("step %d: %s (examples %s); --loss_spikes log: %s", step, spike, shown(examples), where)
        elif self.loss_spikes == "skip" or not self._rolled_back(model, step, totals, spike):
            self._skip(model, step, "spike", totals, str(spike))

    def tell_spikes(self) -> None:
        """One line for all spikes that were only noted since the last."""
        summary = self.noted_spikes.summary()
        if summary is not None:
            logger.warning("%s (%s has each)", summary, self.incidents.path.name)

    def _rolled_back(self, model, step: int, totals: Totals, spike) -> bool:
        """Whether weights and moments went back to a checkpoint; there may be none yet."""
        if self.rollbacks >= MAX_ROLLBACKS:
            examples = self._note(step, "spike", "the run stops", totals, limit=spike.limit)
            raise NumericsError(
                f"step {step}: {spike}, after {MAX_ROLLBACKS} rollbacks since the last checkpoint; the run stops here. "
                f"Examples: {shown(examples)}. Likely cure: {self._cure('spike')}"
            )
        model.zero_grad(set_to_none=True)
        name = self.roll_back()
        if name is None:
            logger.warning("step %d: there is no checkpoint to roll back to, so the update is skipped", step)
            return False
        self.rollbacks += 1
        self.in_a_row = 0
        examples = self._note(step, "spike", f"rolled back to {name}", totals, limit=spike.limit)
        logger.warning(
            "step %d: %s; weights and moments are those of %s again (examples %s)", step, spike, name, shown(examples)
        )
        return True

    def _agree_on_pieces(self, step: int) -> None:
        """All ranks cut as the one does that must cut most, so that one number in the checkpoint says it all."""
        found = self.ranks.gather((self.micro_batches.pieces, self.micro_batches.failure))
        self.micro_batches.pieces = max(pieces for pieces, _ in found)
        failure = next(failure for _, failure in found if failure)
        action = f"micro-batches in {self.micro_batches.pieces} pieces"
        failed = [rank for rank, (_, failure) in enumerate(found) if failure]
        self.incidents.add(step, "out_of_memory", action, self.examples_of(step), ranks=failed, message=failure)

    def _note(self, step: int, kind: str, action: str, totals: Totals, **numbers) -> list:
        examples = list(self.examples_of(step))
        self.incidents.add(step, kind, action, examples, loss=totals.loss, grad_norm=totals.grad_norm, **numbers)
        return examples

    def _no_targets(self) -> bool:
        return self._items is not None and float(torch.as_tensor(self._items).sum()) == 0

    def _cause(self, totals: Totals) -> str:
        if self._no_targets():
            return "the update has no target token at all (every label is -100), so its loss is 0/0"
        norm = "" if totals.grad_norm is None else f", the gradient norm {totals.grad_norm:.4g}"
        return f"the loss was {totals.loss:.4g}{norm}"

    def _cure(self, kind: str) -> str:
        if kind == "non_finite" and self._no_targets():
            return "look at the targets of these examples, and at --max_target_length"
        if self.args.fp16:
            return "--bf16, for T5's activations overflow fp16 (this run goes on with --allow_changed fp16,bf16)"
        return (
            "a lower --learning_rate or more --warmup_steps (this run goes on from its last checkpoint with "
            "--allow_changed learning_rate,warmup_steps), or --max_grad_norm; or look at these examples"
        )

    # What is logged and remembered

    def _maybe_log_save_evaluate(self, *args, **kwargs) -> None:
        """Before anything of an update is logged or saved, it is known what it came to."""
        control = self.control
        if control.should_log or control.should_evaluate or control.should_save or self.stop_requested():
            self.judge_late()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Logged losses are means over the updates that were sound; those that were skipped are counted.

        To the trainer's sums a broken update has added nothing, and its means are over all updates.
        """
        self.judge_late()
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
        self.trainer.choose_checks(kwargs.get("optimizer"))

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


# ---------------------------------------------------------------------------------------------------------------------
# Parts


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


def shown(examples: list, most: int = 8) -> str:
    """The first few ids.

    >>> shown(["rte.train:7", "rte.train:93"])
    'rte.train:7, rte.train:93'
    """
    if not examples:
        return "not known"
    more = f" and {len(examples) - most} more" if len(examples) > most else ""
    return ", ".join(map(str, examples[:most])) + more
