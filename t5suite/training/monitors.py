"""What one sees of a pre-training run: rates, norms and one line on the terminal.

    step 300/1000 · loss 3.412 · acc 38.9 · |g| 0.81 · |w| 212.4 · lr 2.0e-03 · 0.56 s · 117k tok/s · MFU 31.2% · 19.7M tok · 6m32s left

`StepMonitor` measures between two logs, `TerminalLine` writes the line. Everything of it is in `metrics.jsonl` too.
"""  # noqa: E501

import logging
import time

import torch
from transformers import ProgressCallback, TrainerCallback

from t5suite.training.throughput import forward_flops, utilisation

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
    """

    def __init__(self, peak: float | None = None, reduce=lambda tensor: tensor):
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
        self.flops += batch["input_ids"].shape[0] * (self.flops_of_shapes.get(key) or 0)
        tokens = (batch["encoder_segment_ids"] > 0 if "encoder_segment_ids" in batch else batch["attention_mask"]).sum()
        self._unreported = tokens if self._unreported is None else self._unreported + tokens

    def flush(self, state) -> None:
        """Adds the tokens counted so far to `state.num_input_tokens_seen`, which checkpoints keep."""
        if self._unreported is not None:
            tokens = int(self.reduce(self._unreported))
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
        rates = {"seconds_per_step": seconds / steps, "tokens_per_second": self.tokens / seconds}
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


# ---------------------------------------------------------------------------------------------------------------------
# The line


class TerminalLine(ProgressCallback):
    """Writes logs as one line each instead of Python's form of a dictionary; with a progress bar or without."""

    def __init__(self, show_bar: bool):
        super().__init__()
        self.show_bar = show_bar

    def on_train_begin(self, args, state, control, **kwargs):
        """The bar, where one is wanted."""
        if self.show_bar:
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args, state, control, **kwargs):
        """The bar moves."""
        if self.show_bar:
            super().on_step_end(args, state, control, **kwargs)

    def on_train_end(self, args, state, control, **kwargs):
        """The bar goes."""
        if self.show_bar:
            super().on_train_end(args, state, control, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """One line."""
        line = terminal_line(logs or {}, state.global_step, state.max_steps)
        if not state.is_world_process_zero or not line:
            return
        if self.show_bar and self.training_bar is not None:
            self.training_bar.write(line)
        else:
            print(line, flush=True)


def terminal_line(logs: dict, step: int, max_steps: int) -> str:
    """A log as a line; names that it has no room for are left to `metrics.jsonl`.

    >>> terminal_line({"loss": 3.41234, "learning_rate": 2e-3, "mfu": 31.24, "seconds_left": 392}, 300, 1000)
    'step 300/1000 · loss 3.412 · lr 2.0e-03 · MFU 31.2% · 6m32s left'
    >>> terminal_line({"eval/nll": 2.31, "eval/accuracy": 51.07}, 300, 1000)
    'step 300/1000 · held out: nll 2.310 · acc 51.1'
    """
    parts = [form(logs[name]) for name, form in SHOWN.items() if logs.get(name) is not None]
    if not parts:
        return ""
    held_out = "held out: " if any(name.startswith("eval/") for name in logs) else ""
    return f"step {step}/{max_steps} · {held_out}{' · '.join(parts)}"


def short_number(value: float) -> str:
    """A count in few characters.

    >>> [short_number(value) for value in (950, 117_028, 19_700_000, 3.2e9)]
    ['950', '117k', '19.7M', '3.2B']
    """
    for size, suffix, digits in ((1e9, "B", 1), (1e6, "M", 1), (1e3, "k", 0)):
        if value >= size:
            return f"{value / size:.{digits}f}{suffix}"
    return f"{value:.0f}"


def short_time(seconds: float) -> str:
    """A duration in few characters.

    >>> [short_time(seconds) for seconds in (7, 392, 8100)]
    ['7s', '6m32s', '2h15m']
    """
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


SHOWN = {
    "loss": lambda value: f"loss {value:.3f}",
    "accuracy": lambda value: f"acc {value:.1f}",
    "grad_norm": lambda value: f"|g| {value:.2f}",
    "weight_norm": lambda value: f"|w| {value:.1f}",
    "learning_rate": lambda value: f"lr {value:.1e}",
    "seconds_per_step": lambda value: f"{value:.3g} s",
    "tokens_per_second": lambda value: f"{short_number(value)} tok/s",
    "mfu": lambda value: f"MFU {value:.1f}%",
    "tokens_seen": lambda value: f"{short_number(value)} tok",
    "seconds_left": lambda value: f"{short_time(value)} left",
    "eval/nll": lambda value: f"nll {value:.3f}",
    "eval/nll_text": lambda value: f"text alone {value:.3f}",
    "eval/accuracy": lambda value: f"acc {value:.1f}",
}
