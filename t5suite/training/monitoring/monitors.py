"""What one measures of a run between two logs: rates and norms. How they are shown stands in `progress`.

>>> monitor = StepMonitor()
>>> monitor.count(model, batch)
>>> monitor.rates(state)
{'seconds_per_step': 0.56, 'tokens_per_second': 117028.6, ...}
"""

import logging
import resource
import sys
import time
from collections.abc import Iterator

import torch
from transformers import TrainerCallback

from t5suite.training.monitoring.throughput import StepFlops, utilisation

logger = logging.getLogger(__name__)

# Inputs of a forward pass that its cost depends on.
SHAPED = ("input_ids", "decoder_input_ids")
CPU = torch.device("cpu")


class StepMonitor(TrainerCallback):
    """Counts rows and tokens and takes the time between two logs; evaluations and checkpoints stand aside.

    >>> monitor.count(model, batch)          # every micro-batch; nothing waits for the device
    >>> monitor.rates(state)                 # at a log
    {'seconds_per_step': 0.56, 'tokens_per_second': 117028.6, 'mfu': 31.2, 'data_wait': 0.4, 'peak_memory_gb': 61.2}

    tokens are those of the inputs that are no padding, over all ranks, as T5's and nanoT5's figures count them;
    mfu is in percent and left out where the device's peak is unknown; data_wait is the percentage of the time in which
    this process waited for its batches; peak_memory_gb the most (10^9 bytes) that the device's tensors have taken so
    far, or, on a CPU, this process.

    Args:
      peak: the peak of one device in FLOP/s, or None. A device's own rows are held against it.
      reduce: sums a tensor over the ranks.
      keeps_count: add the tokens to `state.num_input_tokens_seen`, which checkpoints keep, and tell them.
      device: whose memory is told.
    """

    def __init__(self, peak: float | None = None, reduce=lambda tensor: tensor, keeps_count: bool = True, device=CPU):
        self.keeps_count = keeps_count
        self.peak = peak
        self.reduce = reduce
        self.device = device
        self._flops_of = None
        self._aside_since = None
        self._unreported = None
        self.logged_step = 0
        self._restart()

    def _restart(self):
        self.started = time.perf_counter()
        self.aside = 0.0
        self.waited = 0.0
        self.flops = 0
        self.tokens = 0

    def on_train_begin(self, args, state, control, **kwargs):
        """The clock starts with the first step of this process."""
        self.logged_step = state.global_step
        self._restart()

    def on_step_begin(self, args, state, control, **kwargs):
        """What an evaluation or a checkpoint took is not the steps' time."""
        if self._aside_since is not None:
            self.aside += time.perf_counter() - self._aside_since
            self._aside_since = None

    def on_step_end(self, args, state, control, **kwargs):
        """An evaluation or a checkpoint comes next; the counted tokens go into the state that it saves."""
        if control.should_evaluate or control.should_save:
            self._aside_since = time.perf_counter()
        if control.should_save:
            self.flush(state)

    def timed(self, batches: Iterator) -> Iterator:
        """The same batches; what each is waited for is counted, unless an evaluation's time is standing aside."""
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self._aside_since is None:
                self.waited += time.perf_counter() - began
            yield batch

    def count(self, model, batch: dict) -> None:
        """Adds a micro-batch."""
        if self.peak is not None:
            self.flops += self._flops(model, {name: tuple(batch[name].shape) for name in SHAPED if name in batch})
        mask = batch["encoder_segment_ids"] > 0 if "encoder_segment_ids" in batch else batch.get("attention_mask")
        if mask is None:  # a module of the user's own
            return
        tokens = mask.sum()
        self._unreported = tokens if self._unreported is None else self._unreported + tokens

    def _flops(self, model, shapes: dict[str, tuple]) -> int:
        """FLOPs of both passes; an architecture that cannot be counted is told of once, and has no MFU."""
        try:
            self._flops_of = self._flops_of or StepFlops(model)
            return self._flops_of(shapes)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            logger.warning("FLOPs of %s cannot be counted, so there is no MFU: %s", type(model).__name__, error)
            self.peak = None
            return 0

    def flush(self, state) -> None:
        """Adds the tokens counted so far to `state.num_input_tokens_seen`, which checkpoints keep."""
        if self._unreported is not None:
            tokens = int(self.reduce(self._unreported))
            if self.keeps_count:
                state.num_input_tokens_seen += tokens
            self.tokens += tokens
            self._unreported = None

    def rates(self, state) -> dict[str, float]:
        """Rates of the steps since the last call, which they start anew; nothing where there were none."""
        steps = state.global_step - self.logged_step
        if steps <= 0:
            return {}
        self.logged_step = state.global_step
        self.flush(state)
        seconds = max(time.perf_counter() - self.started - self.aside, 1e-9)
        rates = {"seconds_per_step": seconds / steps}
        if self.tokens:
            rates["tokens_per_second"] = self.tokens / seconds
        if self.keeps_count:
            rates["tokens_seen"] = state.num_input_tokens_seen
        if self.flops and self.peak is not None:
            rates["mfu"] = 100 * utilisation(self.flops / seconds, self.peak)
        rates["data_wait"] = 100 * min(self.waited / seconds, 1.0)
        rates["peak_memory_gb"] = peak_memory(self.device) / 1e9
        rates["seconds_left"] = max(state.max_steps - state.global_step, 0) * seconds / steps
        self._restart()
        return rates


def peak_memory(device: torch.device) -> int:
    """Bytes that a GPU's tensors, or this process on a CPU, have taken at most; nothing waits for the device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def weight_norm(model) -> float | None:
    """Euclidean norm of all parameters; None where a rank holds only a part of them (FSDP, ZeRO-3)."""
    parameters = list(model.parameters())
    if any(p.numel() == 0 or hasattr(p, "ds_id") or hasattr(p, "placements") for p in parameters):
        return None
    norms = torch._foreach_norm([p.detach().float() for p in parameters])
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])).item()
