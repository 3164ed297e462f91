"""How fast a run is, in absolute terms and relative to its device's peak: rates, FLOPs, utilisation, profiles.

    >>> flops = forward_flops(t5_v1_1_base, {"input_ids": (1, 512), "decoder_input_ids": (1, 114)})
    >>> round(flops / 1e9, 2)
    141.98
    >>> round(3 * flops * 128 / 0.110 / 989e12, 3)
    0.501

Model FLOP/s utilisation (MFU, arXiv:2204.02311 appendix B) = 3 x forward FLOPs x examples / (seconds x peak): the
backward pass costs twice the forward pass if all weights are trained; `StepFlops` counts it if some are frozen.
Recomputation (gradient checkpointing) does not count; padding does, because the device computes it. FLOPs are
counted by `torch.utils.flop_counter` over the model's real operations on the meta device, where nothing is computed.
For T5 that is, with S inputs, T targets, d = d_model, i = num_heads d_kv, f = d_ff, m = 2 matrices of the feed-forward
layer (3 if gated), E and D layers, vocabulary V (exact, see `tests/test_rates.py`):

    encoder    E (2 S (4 d i + m d f) + 4 S^2 i)
    decoder    D (2 T (6 d i + m d f) + 2 S 2 d i + 4 T^2 i + 4 T S i)
    head       2 T d V

HF's own `total_flos` (6 x parameters x input tokens) is 1.43 times too high for T5 v1.1 base at 512 to 114.
"""

import copy
import logging
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import IGNORED
from t5suite.models.classes import bare_model
from t5suite.models.t5.decoder import holds_parts
from t5suite.training.callback import Callback

logger = logging.getLogger(__name__)

# Dense bf16 tensor-core peaks in FLOP/s, from the vendors' data sheets, by a part of the device's name; the first match
# counts. Runs in float32 or TF32 are compared with the same peak: what the device could achieve.
PEAK_FLOPS = {
    "B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "GH200": 989e12, "A100": 312e12,
    "A800": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "A40": 150e12, "A10": 125e12, "A6000": 155e12,
    "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12, "MI300X": 1307e12, "MI250": 383e12,
}  # fmt: skip


def forward_flops(model, shapes: dict[str, tuple[int, ...]]) -> int:
    """Floating-point operations of one forward pass over inputs of these shapes (ids), counted without computing.

    The model's own weights are not touched: its architecture is copied to the meta device.
    """
    return StepFlops(model, backward=False).counted(shapes)


class StepFlops:
    """FLOPs of a step for batches of varying shapes: forward pass, and backward pass through the trained weights.

    >>> step, shapes = StepFlops(t5_v1_1_base), {"input_ids": (32, 57), "decoder_input_ids": (32, 4)}
    >>> step(shapes) == 3 * forward_flops(t5_v1_1_base, shapes)         # if all weights are trained
    True

    The first shape is counted. At the second, seven small shapes are counted: a transformer's FLOPs are a quadratic
    polynomial of its input lengths, fitted to six of them and checked with the seventh. For an architecture
    without such a polynomial (block attention), every new shape is counted, which takes about 0.3 s each.
    An adapter's own matrix products are not counted; gradients pass through the frozen layers below it.
    """

    def __init__(self, model, backward: bool = True):
        inner = bare_model(model)
        config = copy.deepcopy(inner.config)
        config._attn_implementation = "eager"  # so that the counter sees all matrix products
        with torch.device("meta"):
            self._twin = type(inner)(config).eval()
        self._twin.config.pad_token_id = None  # or transformers looks for it among the ids, which have no values here
        self._counted: dict[tuple, int] = {}
        self._polynomial, self._backward = None, backward
        self._everything = all(parameter.requires_grad for parameter in model.parameters())
        if backward and not self._everything:
            trained = {name.replace(".base_layer", "") for name, p in inner.named_parameters() if p.requires_grad}
            for name, parameter in self._twin.named_parameters():
                parameter.requires_grad_(name in trained)
            for module in self._twin.modules() if inner is not model else ():
                if isinstance(module, torch.nn.Embedding):
                    module.register_forward_hook(lambda module, inputs, found: found.detach().requires_grad_())

    def __call__(self, shapes: dict[str, tuple[int, int]]) -> int:
        rows = next(iter(shapes.values()))[0]
        names, lengths = tuple(shapes), tuple(shape[1] for shape in shapes.values())
        known = self._counted.get((names, lengths))
        if known is None:
            if self._counted and self._polynomial is None:
                self._polynomial = self._fitted(names)
            if self._polynomial is None or not len(self._polynomial):
                known = self._of_row(names, lengths)
            else:
                known = round(float(_terms(lengths) @ self._polynomial))
            self._counted[names, lengths] = known
        return rows * known

    def counted(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The FLOPs for these shapes."""
        train_parts = self._backward and not self._everything
        with torch.device("meta"), torch.set_grad_enabled(train_parts):
            inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
            with FlopCounterMode(display=False) as counter:
                found = self._twin(**inputs)
                if train_parts:
                    sum(found[name].sum() for name in found if "logits" in name).backward()
        self._twin.zero_grad(set_to_none=True)
        return counter.get_total_flops() * (3 if self._backward and self._everything else 1)

    def _of_row(self, names, lengths) -> int:
        return self.counted({name: (1, length) for name, length in zip(names, lengths, strict=True)})

    def _fitted(self, names) -> np.ndarray:
        """The polynomial's coefficients; empty if no polynomial fits."""
        points = [probe[: len(names)] for probe in PROBES]
        counts = np.array([self._of_row(names, lengths) for lengths in points], dtype=np.float64)
        terms = np.array([_terms(lengths) for lengths in points])
        coefficients = np.linalg.lstsq(terms[:-1], counts[:-1], rcond=None)[0]
        return coefficients if np.allclose(terms @ coefficients, counts, rtol=1e-9) else np.empty(0)


def _terms(lengths: tuple[int, ...]) -> np.ndarray:
    """`(3, 2)` -> `1, 3, 2, 9, 6, 4`."""
    powers = (1.0, *lengths)
    return np.array([one * other for i, one in enumerate(powers) for other in powers[i:]])


# Lengths of inputs and targets: six that determine a quadratic polynomial, and one that checks it.
PROBES = ((8, 8), (24, 8), (8, 24), (16, 16), (40, 8), (8, 40), (56, 32))


def peak_flops(device: torch.device, peak_tflops: float | None = None) -> float | None:
    """The device's peak in FLOP/s: `--peak_tflops` if given, else by its name; None if it is unknown (a CPU).

    >>> peak_flops(torch.device("cpu"), peak_tflops=0.5)
    500000000000.0
    """
    if peak_tflops is not None:
        return peak_tflops * 1e12
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


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
        self.keeps_count, self.peak, self.reduce, self.device = keeps_count, peak, reduce, device
        self._flops_of = self._aside_since = self._unreported = None
        self.logged_step = 0
        self._restart()

    def _restart(self):
        self.started = time.perf_counter()
        self.aside = self.waited = 0.0
        self.flops = self.tokens = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.logged_step = state.global_step
        self._restart()

    def on_step_begin(self, args, state, control, **kwargs):
        """Excludes the time of an evaluation or a checkpoint."""
        if self._aside_since is not None:
            self.aside += time.perf_counter() - self._aside_since
            self._aside_since = None

    def on_step_end(self, args, state, control, **kwargs):
        """Starts excluding time if an evaluation or a checkpoint comes next; the latter saves the counted tokens."""
        if control.should_evaluate or control.should_save:
            self._aside_since = time.perf_counter()
        if control.should_save:
            self.flush(state)

    def timed(self, batches: Iterator) -> Iterator:
        """Yields the same batches and measures the waiting time, except while time is excluded."""
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
        if mask is None:  # a --batch_transform may drop it
            return
        tokens = mask.sum()
        if "labels" in batch:  # a rank without rows in an epoch's last update has a batch whose labels are all ignored
            tokens = tokens * batch["labels"].ne(IGNORED).any()
        self._unreported = tokens if self._unreported is None else self._unreported + tokens

    def _flops(self, model, shapes: dict[str, tuple]) -> int:
        """FLOPs of both passes. If they cannot be counted, warns once and disables MFU."""
        try:
            self._flops_of = self._flops_of or StepFlops(model)
            return self._flops_of(shapes)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError) as error:
            logger.warning("FLOPs of %s cannot be counted, so there is no MFU: %s", type(model).__name__, error)
            self.peak = None
            return 0

    def flush(self, state) -> None:
        """Adds the tokens counted so far to `state.num_input_tokens_seen`, which checkpoints save."""
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
        seconds = max(time.perf_counter() - self.started - self.aside, 1e-9)
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
    norms = torch._foreach_norm([p.detach().float() for p in model.parameters()])
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])).item()


# --profile


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step, both included: `"10:12"` -> `(10, 12)`, `"7"` -> `(7, 7)`.

    Raises:
      ConfigError: not a range of steps.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ConfigError(
            f"--profile {text}: expected FIRST:LAST, steps from 1 on, both included, such as 10:12 (or one step: 10)"
        )
    return first, last


class ProfileCallback(Callback):
    """Profiles a range of steps. If the profiler fails, logs a warning and training continues.

    >>> trainer.add_callback(ProfileCallback("10:12", run_dir, rank=0))

    Every rank writes to `profile/`: `steps-10-12.rank-0.trace.json` (for ui.perfetto.dev), the operators that took
    most time and memory (`.table.txt`; rank 0 prints those by time), and on CUDA a snapshot for pytorch.org/memory_viz
    (`.memory.pickle`).
    """

    def __init__(self, steps: str, directory, rank: int = 0):
        self.steps, self.rank = steps, rank
        self.first, self.last = parse_steps(steps)
        self.folder = Path(directory) / "profile"
        self._profiler = None

    def on_train_begin(self, args, state, control, **kwargs):
        """A run that resumes after the range profiles nothing; within the range, it profiles the rest."""
        if state.global_step >= self.last or self.first > state.max_steps:
            steps = f"{state.global_step + 1} to {state.max_steps}"
            logger.warning("--profile %s has no effect: the run trains steps %s", self.steps, steps)
        self.first = max(self.first, state.global_step + 1)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.first <= self.last and self._profiler is None:
            self._safely(self._start)

    def on_step_end(self, args, state, control, **kwargs):
        if self._profiler is not None and state.global_step >= self.last:
            self.on_train_end(args, state, control)

    def on_train_end(self, args, state, control, **kwargs):
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            self._safely(lambda: self._write(profiler, state.global_step))

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=200_000)
        profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
        profiler.start()
        self._profiler = profiler

    def _write(self, profiler, last: int) -> None:
        profiler.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self.folder / f"steps-{self.first}-{last}.rank-{self.rank}"
        profiler.export_chrome_trace(f"{base}.trace.json")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        averages = profiler.key_averages()
        table = averages.table(sort_by=f"self_{device}_time_total", row_limit=12, max_name_column_width=48)
        by_memory = averages.table(sort_by=f"self_{device}_memory_usage", row_limit=12, max_name_column_width=48)
        Path(f"{base}.table.txt").write_text(f"{table}\n{by_memory}", encoding="utf-8")
        if device == "cuda":
            torch.cuda.memory._dump_snapshot(f"{base}.memory.pickle")
            torch.cuda.memory._record_memory_history(enabled=None)
        if self.rank == 0:
            print(table, flush=True)
        logger.info("--profile: steps %d to %d are in %s", self.first, last, self.folder)

    def _safely(self, call) -> None:
        try:
            call()
        except (RuntimeError, OSError, ValueError, AttributeError) as error:
            self._profiler = None
            logger.warning("--profile %s failed (%s: %s); training goes on", self.steps, type(error).__name__, error)
