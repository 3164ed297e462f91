"""A micro-batch that does not fit into memory is computed in pieces; the update stays the same.

    >>> micro_batches = MicroBatches()
    >>> loss = micro_batches.run(batch, compute)      # 16 rows, out of memory; then 8 + 8
    >>> micro_batches.pieces
    2

The loss is a sum over target tokens divided by the update's number of target tokens (`losses`), so the pieces of a
batch add up to the batch. If a micro-batch fails, its update's gradients are dropped. The update's micro-batches so far
run again in twice as many pieces, from the random state at the update's start. All later ones are cut as well.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from t5suite.base.errors import ConfigError

logger = logging.getLogger(__name__)

# Messages of out-of-memory errors other than `torch.OutOfMemoryError`.
SIGNS = (
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc",
    "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
)  # fmt: skip

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
    """

    def __init__(self, pieces: int = 1):
        self.pieces = pieces
        self.begin()

    def begin(self) -> None:
        self.failure: str | None = None
        self._batches: list[Mapping] = []
        self._reported = 0.0
        self._cpu_random_state = torch.get_rng_state()
        self._gpu_random_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def run(
        self,
        batch: Mapping,
        compute: Callable[[Mapping], torch.Tensor],
        *,
        redo: Callable[[str, bool], None] = lambda failure, synchronising: None,
        no_sync: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
        synchronises: bool = False,
    ) -> torch.Tensor:
        """Forward and backward of one micro-batch; returns its loss.

        Args:
          compute: piece of a batch -> its share of the update's loss; it also adds the piece's gradients.
          redo: called before anything runs again, with the error message and whether ranks exchange gradients in the
            pass that failed: it drops gradients, or raises if that would not help.
          no_sync: a context in which a backward pass does not exchange gradients with other ranks.
          synchronises: whether the ranks exchange gradients in this micro-batch's backward pass.

        Raises:
          ConfigError: a single row does not fit into memory.
        """
        self._batches.append(batch)
        loss, failure = self._attempt([batch], compute, no_sync)
        runs_again = failure is not None
        while failure is not None:
            # The exception is released by now, and with it the tensors in its stack frames.
            self.failure = failure.message
            redo(failure.message, synchronises and failure.is_last)
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
                message = (str(error) or type(error).__name__).splitlines()[0]
                return None, FailedPass(message, piece, is_last)
            total = loss if total is None else total + loss
        return total, None

    def _cut_more(self, piece: Mapping) -> None:
        """Doubles the number of pieces, and goes back to the random state at the update's start."""
        if num_rows(piece) <= 1:
            shapes = {name: tuple(value.shape) for name, value in piece.items() if torch.is_tensor(value)}
            raise ConfigError(
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a device or on the host."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(sign in str(error) for sign in SIGNS)


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
