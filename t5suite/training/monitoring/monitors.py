"""What one measures of a run between two logs: rates and norms. How they are shown stands in `progress`.

>>> monitor = StepMonitor()
>>> monitor.count(model, batch)
>>> monitor.rates(state)
{'seconds_per_step': 0.56, 'tokens_per_second': 117028.6, ...}
"""

import logging
import time

import torch
from transformers import TrainerCallback

from t5suite.training.monitoring.throughput import forward_flops, utilisation

logger = logging.getLogger(__name__)

# Inputs of a forward pass that its cost depends on.
SHAPED = ("input_ids", "decoder_input_ids")


class StepMonitor(TrainerCallback):
    """Counts rows and tokens and takes the time between two logs; evaluations and checkpoints stand aside.

    >>> monitor.count(model, batch)          # every micro-batch; nothing waits for the device
    >>> monitor.rates(state)                 # at a log
    {'seconds_per_step': 0.56, 'tokens_per_second': 117028.6, 'mfu': 31.2}

    tokens are those of the inputs that are no padding, over all ranks, as T5's and nanoT5's figures count them;
    mfu is in percent and left out where the device's peak is unknown.

    Args:
      peak: the peak of one device in FLOP/s, or None. A device's own rows are held against it.
      reduce: sums a tensor over the ranks.
      keeps_count: add the tokens to `state.num_input_tokens_seen`, which checkpoints keep, and tell them.
    """

    def __init__(self, peak: float | None = None, reduce=lambda tensor: tensor, keeps_count: bool = True):
        self.keeps_count = keeps_count
        self.peak = peak
        self.reduce = reduce
        self.flops_of_shapes: dict[tuple, int | None] = {}
        self._aside_since = None
        self._unreported = None
        self.logged_step = 0
        self._restart()

    def _restart(self):
        self.started = time.perf_counter()
        self.aside = 0.0
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

    def count(self, model, batch: dict) -> None:
        """Adds a micro-batch."""
        shapes = {name: tuple(batch[name].shape[1:]) for name in SHAPED if name in batch}
        key = tuple(shapes.items())
        if self.peak is not None and key not in self.flops_of_shapes:
            self.flops_of_shapes[key] = _row_flops(model, shapes)
        if self.peak is not None:
            self.flops += batch["input_ids"].shape[0] * (self.flops_of_shapes.get(key) or 0)
        mask = batch["encoder_segment_ids"] > 0 if "encoder_segment_ids" in batch else batch.get("attention_mask")
        if mask is None:  # a module of the user's own
            return
        tokens = mask.sum()
        self._unreported = tokens if self._unreported is None else self._unreported + tokens

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
            rates["mfu"] = 100 * utilisation(3 * self.flops / seconds, self.peak)
        rates["seconds_left"] = max(state.max_steps - state.global_step, 0) * seconds / steps
        self._restart()
        return rates


def _row_flops(model, shapes: dict[str, tuple]) -> int | None:
    """FLOPs of one row; None, with a warning, for an architecture that cannot be counted on the meta device."""
    try:
        return forward_flops(model, {name: (1, *shape) for name, shape in shapes.items()})
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        logger.warning("FLOPs of %s cannot be counted, so there is no MFU: %s", type(model).__name__, error)
        return None


def weight_norm(model) -> float | None:
    """Euclidean norm of all parameters; None where a rank holds only a part of them (FSDP, ZeRO-3)."""
    parameters = list(model.parameters())
    if any(p.numel() == 0 or hasattr(p, "ds_id") or hasattr(p, "placements") for p in parameters):
        return None
    norms = torch._foreach_norm([p.detach().float() for p in parameters])
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])).item()
