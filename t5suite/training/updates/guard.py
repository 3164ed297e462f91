"""Checks every update before it is applied: non-finite numbers, spikes and lack of memory do not harm the weights.

    >>> guard = UpdateGuard(args, accelerator, ranks, micro_batches, is_main=True)
    >>> guard.settle(model, optimizer, grad_norm, step=41, loss_sum=losses, ...)
    WARNING step 41: the loss was nan, the gradient norm nan; update skipped (1 in a row)

Before the optimizer's step, the update's loss and gradient norm are checked, with one vote per step over all ranks:

* NaN or non-finite: the update is skipped. Its gradients are set to None, so no weight or moment changes or decays;
  schedule, step counter and data advance. After `--max_skipped_updates` in a row the run ends (exit code 70). Under
  fp16 the loss scaler handles overflow down to LEAST_SCALE. DeepSpeed 0.19.8 has taken or skipped its step by then;
* a spike (`incidents.SpikeDetector`): `--loss_spikes log` writes it to `incidents.jsonl` and logs a summary at the
  end; `skip` skips the update (arXiv:2501.00656 section 3.4);
* out of memory (`micro_batches`): the update is computed in smaller pieces.
"""

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from t5suite.base.errors import ConfigError, NumericsError
from t5suite.base.lookup import listed
from t5suite.training.callback import Callback
from t5suite.training.updates.incidents import Incidents, SpikeDetector, read_incidents
from t5suite.training.updates.micro_batches import MicroBatches

logger = logging.getLogger(__name__)

# At a loss scale this small, lowering it further cannot prevent overflow.
LEAST_SCALE = 1.0


@dataclass(frozen=True)
class Totals:
    """What all ranks together found for an update.

    Attributes:
      loss, grad_norm: of the whole update; NaN or inf if one rank's is. grad_norm is None if it is unknown.
      stop: at least one rank was asked to stop.
      grew: at least one rank now cuts micro-batches into more pieces.
    """

    loss: float
    grad_norm: float | None
    stop: bool = False
    grew: bool = False


def vote(ranks, loss, grad_norm=None, stop: bool = False, grew: bool = False) -> Totals:
    """One all-reduce per update for everything that ranks must agree on; none with a single rank.

    >>> vote(Ranks(), loss=torch.tensor(2.5), grad_norm=torch.tensor(0.5))
    Totals(loss=2.5, grad_norm=0.5, stop=False, grew=False)

    Args:
      loss: this rank's, scaled as the trainer scales it: the mean over ranks is the update's loss.
      grad_norm: of the reduced gradients, so the same on all ranks.
    """
    if hasattr(grad_norm, "full_tensor"):
        grad_norm = grad_norm.full_tensor()
    if torch.is_tensor(loss) and torch.is_tensor(grad_norm):  # one copy from the device for both
        loss, norm = torch.stack([loss.double(), grad_norm.to(loss.device).double()]).tolist()
    else:
        loss = float(loss)
        norm = None if grad_norm is None else float(grad_norm)
    size = ranks.world_size
    if size == 1:
        return Totals(loss, norm, bool(stop), bool(grew))
    sums = ranks.sum([loss / size, (norm or 0.0) / size, float(stop), float(grew)])
    mean_loss, mean_norm, num_stops, num_grown = sums
    return Totals(mean_loss, None if norm is None else mean_norm, num_stops > 0, num_grown > 0)


@dataclass(frozen=True)
class Update:
    """An update before the optimizer's step.

    Attributes:
      step: its number, 1 for the first.
      examples: returns the ids of its examples over all ranks; every rank calls it at the same time.
    """

    step: int
    totals: Totals
    examples: Callable[[], list]


class UpdateGuard(Callback):
    """Decides whether an update is applied, once its micro-batches have run; checkpoints save its counts.

    Args:
      micro_batches: what computes the updates: it holds the present one's loss.

    Attributes:
      incidents, spikes: the incidents file and the spike detector.
      skipped_updates, in_a_row: number of skipped updates: in the whole run, and in a row up to now.
      counted: number of updates and of broken ones among them: since the last log, and in the whole run.
      stop_agreed: at least one rank was asked to stop; all ranks learn it in the same step.
    """

    def __init__(self, args, accelerator, ranks, micro_batches: MicroBatches, is_main: bool):
        self.args = args
        self.accelerator = accelerator
        self.ranks = ranks
        self.kind = accelerator.distributed_type.value
        self.max_skipped_updates = args.max_skipped_updates
        self.loss_spikes = args.loss_spikes
        check_policy(self.loss_spikes, self.kind)
        self.incidents = Incidents(args.output_dir, is_main)
        self.spikes = SpikeDetector()
        self.micro_batches = micro_batches
        self.skipped_updates = 0
        self.in_a_row = 0
        self.counted = {"since_log": [0, 0], "run": [0, 0]}
        self.stop_agreed = False

    def on_step_begin(self, *args, **kwargs):
        self.micro_batches.begin()

    def settle(
        self,
        model,
        optimizer,
        grad_norm,
        *,
        step: int,
        loss_sum: torch.Tensor,
        stop: bool,
        examples_of: Callable[[int], list],
    ) -> None:
        """Accepts or skips the update; called after the last backward pass, before the optimizer's step.

        Args:
          step: the update's number, 1 for the first.
          stop: whether this process was asked to stop.
          examples_of: step -> ids of the update's examples over all ranks; every rank calls it at the same time.

        Raises:
          NumericsError: too many updates in a row were skipped.
          ConfigError: a weight has no gradient (`check_gradients`).
        """
        check_gradients(model, optimizer)
        totals = vote(self.ranks, self.micro_batches.loss, grad_norm, stop, self.micro_batches.failure is not None)
        update = Update(step, totals, functools.cache(lambda: list(examples_of(step))))
        broken = self.is_broken(totals, optimizer)
        self.stop_agreed |= totals.stop
        self._count(broken)
        if totals.grew:
            self._agree_on_pieces(update)
        if broken:
            loss_sum.copy_(self.micro_batches.loss_sum_before)
            self._skip(update, "non_finite", self._cause(totals), model, optimizer)
        else:
            self._check_spike(update, model, optimizer)

    def _count(self, broken: bool) -> None:
        for counts in self.counted.values():
            counts[0] += 1
            counts[1] += broken

    def _agree_on_pieces(self, update: Update) -> None:
        """Takes the largest number of pieces of any rank (a checkpoint saves one number); records the failure."""
        of_ranks = self.ranks.gather((self.micro_batches.pieces, self.micro_batches.failure))
        self.micro_batches.pieces = max(pieces for pieces, _ in of_ranks)
        failures = {rank: failure for rank, (_, failure) in enumerate(of_ranks) if failure}
        self.incidents.add(
            update.step,
            "out_of_memory",
            f"micro-batches in {self.micro_batches.pieces} pieces",
            update.examples(),
            ranks=list(failures),
            message=next(iter(failures.values())),
        )

    def _check_spike(self, update: Update, model, optimizer) -> None:
        """Does with a spike what `--loss_spikes` says."""
        spike = None
        if self.loss_spikes != "off":
            spike = self.spikes.observe(update.totals.loss, update.totals.grad_norm)
        if spike is not None and self.loss_spikes == "skip":
            self._skip(update, "spike", str(spike), model, optimizer)
            return
        self.in_a_row = 0
        if spike is not None:
            self._record(update, "spike", "none", limit=spike.limit, of=spike.name, times=spike.times)

    def is_broken(self, totals: Totals, optimizer=None) -> bool:
        """Whether the loss or gradient norm is NaN or non-finite, and no loss scaler handles it."""
        if not math.isfinite(totals.loss):
            return True
        if totals.grad_norm is None or math.isfinite(totals.grad_norm):
            return False
        # Under fp16 the scaler skips such an update itself and lowers its scale.
        if self.kind == "DEEPSPEED":
            scaler = optimizer.optimizer.loss_scaler
            return not scaler.dynamic or scaler.cur_scale <= LEAST_SCALE
        scaler = self.accelerator.scaler
        return scaler is None or scaler.get_scale() <= LEAST_SCALE

    def _skip(self, update: Update, kind: str, cause: str, model, optimizer) -> None:
        """Skips the update, and ends the run after too many in a row."""
        self.skipped_updates += 1
        self.in_a_row += 1
        was_skipped = self._drop(model, optimizer)
        action = "update skipped" if was_skipped else "none: DeepSpeed has made the update"
        if self.in_a_row < self.max_skipped_updates:
            self._record(update, kind, action)
            logger.warning("step %d: %s; %s (%d in a row)", update.step, cause, action, self.in_a_row)
            return
        self._record(update, kind, f"{action}; the run stops")
        raise NumericsError(
            f"step {update.step}: {cause}; {self.in_a_row} updates in a row (from step "
            f"{update.step - self.in_a_row + 1}) were {'skipped' if was_skipped else 'broken'}, and the run stops here "
            f"(--max_skipped_updates {self.max_skipped_updates}). Examples of the last: "
            f"{listed(update.examples(), 8) or 'not known'} ({self.incidents.path.name} has all). "
            f"Likely fix: {self._fix(kind)}"
        )

    def _drop(self, model, optimizer) -> bool:
        """Drops the update's gradients; returns whether the weights stay as they are."""
        if self.kind != "DEEPSPEED":
            model.zero_grad(set_to_none=True)
            return True
        # DeepSpeed has already made or skipped its step. Its schedule still advances, as after our own skips.
        was_skipped = bool(optimizer.optimizer.overflow)
        optimizer.optimizer.overflow = False
        return was_skipped

    def _record(self, update: Update, kind: str, action: str, **numbers) -> None:
        totals = {"loss": update.totals.loss, "grad_norm": update.totals.grad_norm}
        self.incidents.add(update.step, kind, action, update.examples(), **totals, **numbers)

    def _cause(self, totals: Totals) -> str:
        """Why an update is broken, for messages."""
        if self._has_no_targets():
            return "the update has no target token at all (every label is -100), so its loss is 0/0"
        if totals.grad_norm is None:
            return f"the loss was {totals.loss:.4g}"
        return f"the loss was {totals.loss:.4g}, the gradient norm {totals.grad_norm:.4g}"

    def _has_no_targets(self) -> bool:
        num_items = self.micro_batches.num_items
        return num_items is not None and float(torch.as_tensor(num_items).sum()) == 0

    def _fix(self, kind: str) -> str:
        if kind == "non_finite" and self._has_no_targets():
            return "look at the targets of these examples, and at --max_target_length"
        if self.args.fp16:
            return "--bf16, for T5's activations overflow fp16 (this run goes on with --allow_changed fp16,bf16)"
        return (
            "a lower --learning_rate or more --warmup_steps (this run goes on from its last checkpoint with "
            "--allow_changed learning_rate,warmup_steps), or --max_grad_norm; or look at these examples"
        )

    def correct(self, logs: dict) -> None:
        """Makes logged losses means over the unbroken updates, and logs the number of skipped ones.

        Broken updates add nothing to the trainer's sums, but its means divide by the number of all updates.
        """
        for name, span in (("loss", "since_log"), ("train_loss", "run")):
            updates, broken = self.counted[span]
            if name in logs and broken:
                logs[name] = logs[name] * updates / (updates - broken) if broken < updates else math.nan
        if "loss" in logs:
            self.counted["since_log"] = [0, 0]
            if self.skipped_updates:
                logs["skipped_updates"] = self.skipped_updates

    def state_dict(self) -> dict:
        """The state for a checkpoint, as JSON values; the same on every rank."""
        return {
            "skipped_updates": self.skipped_updates,
            "in_a_row": self.in_a_row,
            "counted": self.counted,
            "spikes": self.spikes.state(),
            "micro_batches": {"pieces": self.micro_batches.pieces, "rows": self.args.per_device_train_batch_size},
        }

    def load_state_dict(self, state_dict: dict) -> None:
        self.skipped_updates = state_dict["skipped_updates"]
        self.in_a_row = state_dict["in_a_row"]
        self.counted = {span: list(counts) for span, counts in state_dict["counted"].items()}
        self.spikes.load(state_dict["spikes"])
        saved = state_dict["micro_batches"]
        self.micro_batches.pieces = 1
        if saved["pieces"] > 1:
            # As many rows fit as before, and the run may resume with other micro-batches.
            pieces = saved["pieces"] * self.args.per_device_train_batch_size / saved["rows"]
            self.micro_batches.pieces = max(1, math.ceil(pieces))

    def on_train_begin(self, args, state, control, **kwargs):
        """Drops incidents after the step that the run resumes from: they will happen again."""
        self.incidents.drop_after(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        """Refuses a training without any update; logs one line about all spikes that were only recorded, including
        those before a restart.

        Raises:
          NumericsError: every update was broken, so the model is what it was, or worse.
        """
        updates, broken = self.counted["run"]
        if updates and updates == broken:
            raise NumericsError(
                f"none of the {updates} updates was applied: the loss or the gradient norm of each was NaN or infinite "
                f"({self.incidents.path.name} has all). Likely fix: another copy of the model, whose weights may be "
                f"damaged or far too large; or {self._fix('non_finite')}"
            )
        if not self.incidents.is_main:
            return
        incidents = read_incidents(args.output_dir)
        spikes = [line for line in incidents if line.get("action") == "none" and "times" in line]
        if not spikes:
            return
        largest = max(spikes, key=lambda line: line["times"])
        logger.info(
            "%d loss spike%s, the largest a %s %.1f times the mean before it, at step %d: %s",
            len(spikes),
            "s" if len(spikes) > 1 else "",
            largest["of"].replace("_", " "),
            largest["times"],
            largest["step"],
            self.incidents.path,
        )


def check_gradients(model, optimizer) -> None:
    """Raises if a weight has no gradient although ranks wait for it before they exchange any.

    `DistributedDataParallel` (torch 2.13) then does not exchange gradients of weights in the same bucket.

    Raises:
      ConfigError: the message names the weights and says what to do.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    if model.find_unused_parameters or model.static_graph:  # ranks do not wait for unused weights
        return
    if all(weight.grad is not None for group in optimizer.param_groups for weight in group["params"]):
        return
    idle = [name for name, weight in model.module.named_parameters() if weight.requires_grad and weight.grad is None]
    if idle:
        raise ConfigError(
            f"no gradient reached {listed(idle)}, so that ranks cannot exchange their gradients: give "
            "--ddp_find_unused_parameters True, or leave these weights as they are (--freeze_regex)"
        )


def check_policy(policy: str, distributed_type: str) -> None:
    """Refuses a policy that DeepSpeed does not support."""
    if distributed_type == "DEEPSPEED" and policy == "skip":
        raise ConfigError("--loss_spikes skip: DeepSpeed makes its updates itself; choose log or off")
