"""A micro-batch that does not fit into memory is computed in pieces; the update stays the same.

    >>> micro_batches = MicroBatches(args, accelerator, ranks)
    >>> loss = micro_batches.run(model, batch, compute, num_items, step=41, ...)     # 16 rows, out of memory; 8 + 8
    >>> micro_batches.pieces
    2

The loss is a sum over target tokens divided by the update's number of target tokens (`losses`), so the pieces of a
batch add up to the batch. If a micro-batch fails, its update's gradients are dropped. The update's micro-batches so far
run again in twice as many pieces, from the random state at the update's start. All later ones are cut as well.
"""

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from t5suite.base.errors import LackOfMemoryError, first_line
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.training.losses import counting_losses

logger = logging.getLogger(__name__)

# What a user can do about a row that does not fit.
SAVES_MEMORY = "shorter inputs and targets, --gradient_checkpointing, --bf16, a smaller model, or more memory"


@dataclass(frozen=True)
class FailedPass:
    """A pass that ran out of memory: the allocator's message, the piece, and whether it was the last to be computed."""

    message: str
    piece: Mapping
    is_last: bool


class MicroBatches:
    """Runs the micro-batches of an update, each in as many pieces as memory requires.

    Attributes:
      pieces: the number of pieces that every micro-batch is cut into: 1, 2, 4, ...; saved in checkpoints.
      failure: the allocator's error message in this update, None if there was none.
      loss: of the update so far, scaled as the trainer scales it; None before its first micro-batch.
      loss_sum_before: the trainer's sum of losses when the update began.
      num_items: target tokens of the update; None if the loss is not a sum over them.
    """

    def __init__(self, args, accelerator, ranks):
        self.args = args
        self.accelerator = accelerator
        self.ranks = ranks
        self.kind = accelerator.distributed_type.value
        self.pieces = 1
        self.begin()

    def begin(self) -> None:
        """Begins an update."""
        self.failure: str | None = None
        self.loss: torch.Tensor | None = None
        self.loss_sum_before: torch.Tensor | None = None
        self.num_items = None
        self._counts_before: list[tuple] = []
        self._batches: list[Mapping] = []
        self._reported = 0.0
        self._cpu_random_state = torch.get_rng_state()
        self._gpu_random_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def run(
        self,
        model,
        batch: Mapping,
        compute: Callable[[Mapping], torch.Tensor],
        num_items,
        *,
        step: int,
        loss_sum: torch.Tensor,
        loss_function,
    ) -> torch.Tensor:
        """Forward and backward of one micro-batch, in pieces if memory requires it; returns its loss.

        Args:
          compute: piece of the batch -> its share of the update's loss; it also adds the piece's gradients.
          num_items: target tokens of the update; None if the loss is not a sum over them, so nothing can be cut.
          step: the update's number, 1 for the first.
          loss_sum: the trainer's sum of losses, from which a broken update is removed again.
          loss_function: what it counts for the logs is reset to the start of the update when the update runs again.

        Raises:
          LackOfMemoryError: a single row does not fit into memory, or this rank cannot repeat its pass alone.
        """
        self.num_items = num_items
        if self.loss_sum_before is None:
            self.loss_sum_before = loss_sum.clone()
            self._counts_before = [(loss, loss.counts) for loss in counting_losses(loss_function)]
        if num_items is None:
            loss = compute(batch)
        else:
            loss = self._run_in_pieces(model, batch, compute, step)
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        return loss

    def _run_in_pieces(self, model, batch: Mapping, compute: Callable, step: int) -> torch.Tensor:
        """The loss of a micro-batch; where it does not fit, all micro-batches of the update so far run again."""
        no_sync = functools.partial(self.accelerator.no_sync, model)
        synchronises = self.accelerator.gradient_state.sync_gradients
        self._batches.append(batch)
        loss, failure = self._attempt([batch], compute, no_sync)
        runs_again = failure is not None
        while failure is not None:
            # The exception is released by now, and with it the tensors in its stack frames.
            self.failure = failure.message
            self._drop_gradients(model, step, synchronises and failure.is_last)
            self._cut_more(failure.piece)
            loss, failure = self._attempt(self._batches, compute, no_sync)
        if runs_again:
            # The trainer has already added the losses of all micro-batches that ran again, except this one.
            loss = loss - self._reported
        self._reported = self._reported + loss
        return loss

    def _attempt(self, batches, compute, no_sync) -> tuple[torch.Tensor | None, FailedPass | None]:
        """The loss of the batches, computed piece by piece; only in the last one may ranks exchange gradients."""
        pieces = [piece for batch in batches for piece in cut(batch, self.pieces)]
        total = None
        for number, piece in enumerate(pieces, start=1):
            is_last = number == len(pieces)
            try:
                with contextlib.nullcontext() if is_last else no_sync():
                    loss = compute(piece)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return None, FailedPass(first_line(error), piece, is_last)
            total = loss if total is None else total + loss
        return total, None

    def _drop_gradients(self, model, step: int, synchronising: bool) -> None:
        """Goes back to the update's start, before it runs again.

        Args:
          synchronising: whether ranks exchange gradients in the pass that ran out of memory.

        Raises:
          LackOfMemoryError: this rank cannot do so alone.
        """
        if self._exchanges(model, synchronising):
            raise LackOfMemoryError(
                f"out of memory on rank {self.ranks.rank} in step {step} ({self.failure}). In this pass ranks exchange "
                "gradients, weights or buffers, so that one rank cannot repeat it alone. "
                + self._smaller_micro_batches()
            )
        model.zero_grad(set_to_none=True)
        for loss, counts in self._counts_before:
            loss.counts = counts

    def _exchanges(self, model, synchronising: bool) -> bool:
        """Whether ranks may exchange anything in a pass, in which gradients are exchanged if it is `synchronising`.

        `DistributedDataParallel` broadcasts buffers in the forward pass. Nothing public tells whether a failed one
        already did; if it did, a second broadcast would wait for ranks that make none.
        """
        if self.kind in ("FSDP", "DEEPSPEED"):
            return True
        if self.ranks.world_size == 1:
            return False
        has_buffers = next(model.buffers(), None) is not None
        broadcasts_buffers = has_buffers and self.args.ddp_broadcast_buffers is not False
        return synchronising or broadcasts_buffers

    def _smaller_micro_batches(self) -> str:
        """How to start the run again with smaller micro-batches and the same updates."""
        rows = self.args.per_device_train_batch_size
        if rows == 1:
            return f"Use {SAVES_MEMORY}"
        factor = next(number for number in range(2, rows + 1) if rows % number == 0)
        accumulation = self.args.gradient_accumulation_steps * factor
        return (
            f"Start the run again with --per_device_train_batch_size {rows // factor} --gradient_accumulation_steps "
            f"{accumulation}: it goes on from its last checkpoint, with the same updates"
        )

    def _cut_more(self, piece: Mapping) -> None:
        """Doubles the number of pieces, and goes back to the random state at the update's start."""
        if num_rows(piece) <= 1:
            shapes = {name: tuple(value.shape) for name, value in piece.items() if torch.is_tensor(value)}
            raise LackOfMemoryError(
                f"out of memory in a micro-batch of one row ({shapes}): {self.failure}. Use {SAVES_MEMORY}"
            )
        self.pieces *= 2
        logger.warning(
            "out of memory (%s); micro-batches are computed in %d pieces from here on; the update and its result stay "
            "the same. --per_device_train_batch_size %d would avoid this",
            self.failure,
            self.pieces,
            max(1, max(map(num_rows, self._batches)) // self.pieces),
        )
        torch.set_rng_state(self._cpu_random_state)
        if self._gpu_random_state is not None:
            torch.cuda.empty_cache()
            torch.cuda.set_rng_state(self._gpu_random_state)


def num_rows(batch: Mapping) -> int:
    """Rows of a batch: the first dimension of its ids, else of its first tensor.

    >>> num_rows({"input_ids": torch.zeros(4, 7)})
    4
    """
    first = [batch[name] for name in ("input_ids", "labels") if torch.is_tensor(batch.get(name))]
    tensors = first or [entry for entry in batch.values() if torch.is_tensor(entry)]
    return next((len(tensor) for tensor in tensors if tensor.ndim), 1)


def cut(batch: Mapping, pieces: int) -> list[Mapping]:
    """Cuts a batch into pieces of about equally many rows, in order; no more pieces than rows.

    >>> [num_rows(part) for part in cut({"input_ids": torch.zeros(5, 7)}, 4)]
    [1, 1, 1, 2]

    Tensors and lists with as many rows as the batch are cut, nested ones as well; the rest goes into every piece.
    """
    rows = num_rows(batch)
    pieces = max(1, min(pieces, rows))
    if pieces == 1:
        return [batch]
    bounds = [rows * piece // pieces for piece in range(pieces + 1)]
    return [_rows_of(batch, rows, slice(*pair)) for pair in itertools.pairwise(bounds)]


def _rows_of(entry, num_of_batch: int, part: slice):
    """The part of a tensor, list or nested table that has as many rows as the batch; other entries unchanged."""
    if torch.is_tensor(entry):
        return entry[part] if entry.ndim and len(entry) == num_of_batch else entry
    if isinstance(entry, Mapping):
        return {name: _rows_of(nested, num_of_batch, part) for name, nested in entry.items()}
    if isinstance(entry, (list, tuple)):
        if len(entry) == num_of_batch and not any(torch.is_tensor(nested) for nested in entry):
            return entry[part]
        return type(entry)(_rows_of(nested, num_of_batch, part) for nested in entry)
    return entry
