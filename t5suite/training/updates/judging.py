"""What an update's numbers mean: it is let be, taken back, rolled back, or the last one that the run makes.

    WARNING step 41: the loss was nan, the gradient norm nan; update skipped (1 in a row)

`safe_updates` comes here with what the update came to over all ranks.
"""

import logging
import math

import torch

from t5suite.base.errors import NumericsError
from t5suite.training.checkpoints import load_state, newest_verified
from t5suite.training.resuming.resets import load_moments
from t5suite.training.updates.incidents import Incidents
from t5suite.training.updates.spikes import SpikeCount, SpikeDetector
from t5suite.training.updates.votes import Totals

logger = logging.getLogger(__name__)

MAX_SKIPPED_UPDATES = 3
# Rollbacks between two checkpoints: a spike that comes back from the same weights on other data is no accident.
MAX_ROLLBACKS = 3
# A loss scale that is this small can save no gradient any more.
LEAST_SCALE = 1.0


class Judging:
    """A mixin of `SafeUpdates`.

    Attributes:
      incidents, spikes, noted_spikes: where they are written, what finds them, and those that are only counted.
      skipped_updates, in_a_row: updates that were skipped: in the whole run, and up to now without one between them.
      rollbacks: since the last checkpoint.
      counted: updates and, of these, broken ones: since the last log, and in the whole run.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_skipped_updates = getattr(self.args, "max_skipped_updates", MAX_SKIPPED_UPDATES)
        self.loss_spikes = getattr(self.args, "loss_spikes", "log")
        self.incidents = Incidents(self.args.output_dir, self.is_world_process_zero())
        self.spikes, self.noted_spikes = SpikeDetector(), SpikeCount()
        self.skipped_updates = self.in_a_row = self.rollbacks = 0
        self.counted = {"since_log": [0, 0], "run": [0, 0]}

    def examples_of(self, step: int) -> list:
        """Ids of the examples of an update (1 is the first), over all ranks; every rank asks at once."""
        return []

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

    def judge(self, model, step: int, totals: Totals) -> None:
        """What an update's numbers mean."""
        if self.is_broken(totals):
            self.count(1)
            self._skip(model, step, "non_finite", totals, self._cause(totals))
            return
        spike = None if self.loss_spikes == "off" else self.spikes.observe(totals.loss, totals.grad_norm)
        if spike is None or self.loss_spikes == "log":
            self.in_a_row = 0
        if spike is not None:
            self._handle_spike(model, step, totals, spike)

    def count(self, place: int) -> None:
        for counts in self.counted.values():
            counts[place] += 1

    def is_broken(self, totals: Totals) -> bool:
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

    def agree_on_pieces(self, step: int, failure: str | None) -> None:
        """All ranks cut as the one does that must cut most, so that one number in the checkpoint says it all.

        Args:
          failure: what this rank's allocator said in the update, None if nothing.
        """
        found = self.ranks.gather((self.micro_batches.pieces, failure))
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


def shown(examples: list, most: int = 8) -> str:
    """The first few ids.

    >>> shown(["rte.train:7", "rte.train:93"])
    'rte.train:7, rte.train:93'
    """
    if not examples:
        return "not known"
    more = f" and {len(examples) - most} more" if len(examples) > most else ""
    return ", ".join(map(str, examples[:most])) + more
