"""How fast a run is, in absolute terms and relative to its device's peak.

    >>> monitor.rates(state)
    {'seconds_per_step': 0.56, 'tokens_per_second': 117028.6, 'mfu': 31.2, 'data_wait': 0.4, 'peak_memory_gb': 61.2}

Model FLOP/s utilisation (MFU, arXiv:2204.02311 appendix B) = 3 x forward FLOPs x examples / (seconds x peak): the
backward pass costs twice the forward pass if all weights are trained; `StepFlops` counts it if some are frozen.
Recomputation (gradient checkpointing) does not count; padding does, because the device computes it.
"""

import contextlib
import logging
import resource
import sys
import time
from collections.abc import Iterator

import torch

from t5suite.data.batches.collators import IGNORED
from t5suite.models.t5.decoder import holds_parts
from t5suite.training.callback import Callback
from t5suite.training.monitoring.flops import StepFlops

logger = logging.getLogger(__name__)

# Inputs whose shapes determine the cost of a forward pass.
SHAPED = ("input_ids", "decoder_input_ids")
CPU = torch.device("cpu")


class StepMonitor(Callback):
    """Counts tokens and FLOPs and measures time between two logs, excluding evaluations and checkpoints.

    >>> monitor.count(model, batch)          # every micro-batch; nothing waits for the device
    >>> monitor.rates(state)                 # at a log
    {'seconds_per_step': 0.56, 'tokens_per_second': 117028.6, 'mfu': 31.2, 'data_wait': 0.4, 'peak_memory_gb': 61.2}

    Tokens are input tokens without padding, over all ranks; mfu and data_wait (time spent waiting for batches) are in
    percent; peak_memory_gb is the peak memory (10^9 bytes) of the device's tensors, or on a CPU of this process.

    Args:
      peak: the peak of one device in FLOP/s, or None. It is compared with the FLOPs of that device's own rows.
      reduce: sums a tensor over the ranks.
      keeps_count: add the tokens to `state.num_input_tokens_seen`, which checkpoints save, and report them.
      device: the device whose memory is reported.
    """

    def __init__(self, peak: float | None = None, reduce=lambda tensor: tensor, keeps_count: bool = True, device=CPU):
        self.keeps_count = keeps_count
        self.peak = peak
        self.reduce = reduce
        self.device = device
        self.logged_step = 0
        self._step_flops: StepFlops | None = None
        self._excluded_since: float | None = None
        self._unreported: torch.Tensor | None = None
        self._restart()

    def _restart(self):
        self.started = time.perf_counter()
        self.excluded = 0.0
        self.waited = 0.0
        self.flops = 0
        self.tokens = 0
        if self._excluded_since is not None:
            self._excluded_since = self.started  # what was excluded before belongs to the last log

    def on_train_begin(self, args, state, control, **kwargs):
        """Forgets earlier peaks of memory, and excludes the time until the first step: of `--eval_on_start`, or of what
        comes after a checkpoint.
        """
        self.logged_step = state.global_step
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)  # an earlier run of this process may have taken more
        self._restart()
        self._excluded_since = self.started

    def on_step_begin(self, args, state, control, **kwargs):
        """Excludes the time of an evaluation or a checkpoint."""
        if self._excluded_since is not None:
            self.excluded += time.perf_counter() - self._excluded_since
            self._excluded_since = None

    def on_step_end(self, args, state, control, **kwargs):
        """Starts excluding time if an evaluation or a checkpoint comes next."""
        if control.should_evaluate or control.should_save:
            self._excluded_since = time.perf_counter()

    def on_epoch_end(self, args, state, control, **kwargs):
        """Ends what the epoch's last step excludes; an evaluation or a checkpoint by epochs may come next."""
        self.on_step_begin(args, state, control)
        self.on_step_end(args, state, control)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures the time that batches take to come, except while time is excluded."""
        start = time.perf_counter()
        yield
        if self._excluded_since is None:
            self.waited += time.perf_counter() - start

    def count(self, model, batch: dict) -> None:
        """Adds a micro-batch."""
        if self.peak is not None:
            self.flops += self._flops(model, {name: tuple(batch[name].shape) for name in SHAPED if name in batch})
        mask = batch.get("attention_mask")
        if "encoder_segment_ids" in batch:
            mask = batch["encoder_segment_ids"] > 0
        if mask is None:  # a --batch_transform may drop it
            return
        tokens = mask.sum()
        if "labels" in batch:  # a rank without rows in an epoch's last update has a batch whose labels are all ignored
            tokens = tokens * batch["labels"].ne(IGNORED).any()
        self._unreported = tokens if self._unreported is None else self._unreported + tokens

    def _flops(self, model, shapes: dict[str, tuple]) -> int:
        """FLOPs of both passes. If they cannot be counted, warns once and disables MFU."""
        try:
            if self._step_flops is None:
                self._step_flops = StepFlops(model)
            return self._step_flops(shapes)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            logger.warning("FLOPs of %s cannot be counted, so there is no MFU: %s", type(model).__name__, error)
            self.peak = None
            return 0

    def flush(self, state) -> None:
        """Adds the tokens counted so far to `state.num_input_tokens_seen`; called before a checkpoint saves them."""
        if self._unreported is not None:
            tokens = int(self.reduce(self._unreported))
            if self.keeps_count:
                state.num_input_tokens_seen += tokens
            self.tokens += tokens
            self._unreported = None

    def rates(self, state) -> dict[str, float]:
        """Rates of the steps since the last call, then resets the counters; empty without any steps."""
        steps = state.global_step - self.logged_step
        if steps <= 0:
            return {}
        self.logged_step = state.global_step
        self.flush(state)
        seconds = max(time.perf_counter() - self.started - self.excluded, 1e-9)
        rates = {"seconds_per_step": seconds / steps}
        if self.tokens:
            rates["tokens_per_second"] = self.tokens / seconds
        if self.keeps_count:
            rates["tokens_seen"] = state.num_input_tokens_seen
        if self.flops and self.peak is not None:
            rates["mfu"] = 100 * self.flops / seconds / self.peak
        rates["data_wait"] = 100 * min(self.waited / seconds, 1.0)
        rates["peak_memory_gb"] = peak_memory(self.device) / 1e9
        rates["seconds_left"] = max(state.max_steps - state.global_step, 0) * seconds / steps
        self._restart()
        return rates


def peak_memory(device: torch.device) -> int:
    """Peak memory of a GPU's tensors, or of this process on a CPU, in bytes; does not wait for the device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def weight_norm(model) -> float | None:
    """Euclidean norm of all parameters; None if they are sharded (FSDP, ZeRO-3)."""
    if holds_parts(model):
        return None
    return torch.nn.utils.get_total_norm([parameter.detach().float() for parameter in model.parameters()]).item()
