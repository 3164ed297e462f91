"""`--attn_implementation` in a run: what this machine cannot do falls back, `auto` is decided once and kept.

    >>> settle_attention(model, "auto", args, True, 512, run)
    >>> run.manifest["attention"]
    {'kernel': 'triton', 'milliseconds': {'sdpa': 2.31, 'triton': 1.12}, 'refused': {'flex_attention': '...'}}

Rank 0 decides for all. A run that goes on keeps what its manifest says: another kernel rounds otherwise. Evaluation
alone, and CPUs, have `sdpa`.
"""

import logging

import torch

from t5suite.base.errors import ConfigError
from t5suite.models.attention.choosing import Choice, Shapes, choose
from t5suite.models.attention.implementations import KERNELS, PLAIN, kernel_of, set_attention, why_not
from t5suite.models.cached_prompts import plain
from t5suite.models.head_tying import T5_TYPES
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

AUTO, ENTRY = "auto", "attention"


def settle_attention(model, wanted: str | None, args, trains: bool, length: int, run=None, is_padded=True) -> None:
    """Gives a T5 the kernel that `--attn_implementation` asks for, as far as this device has it.

    Args:
      args: the training arguments: device, precision, rows of a micro-batch.
      length: tokens of the longest input.
      run: notes the choice, and has it where it was made before.
      is_padded: whether inputs are filled up to the longest of their batch.

    Raises:
      ConfigError: a kernel without dropout is to train a model that drops.
    """
    if wanted not in (AUTO, *KERNELS) or getattr(model.config, "model_type", None) not in T5_TYPES:
        return
    if wanted == AUTO:
        shapes = _shapes(model.config, args, length, is_padded)
        choice = _kept(run) or Ranks.of_process().together(_decide, shapes, args.device, trains)
    else:
        choice = _as_asked(wanted, args.device, trains, model.config.dropout_rate)
    if kernel_of(model) != choice.kernel:
        set_attention(plain(model), choice.kernel)
    if run is not None and trains:
        run.update(**{ENTRY: choice._asdict()})


def _as_asked(wanted: str, device: torch.device, trains: bool, dropout: float) -> Choice:
    why = why_not(wanted, device, trains, dropout)
    if why is None:
        return Choice(wanted, {}, {})
    if trains and dropout > 0 and not KERNELS[wanted].drops:
        raise ConfigError(f"--attn_implementation {wanted}: {why}")
    logger.warning("--attn_implementation %s: %s; %s is taken instead", wanted, why, PLAIN)
    return Choice(PLAIN, {}, {wanted: why})


def _kept(run) -> Choice | None:
    """What the run began with."""
    entry = run.manifest.get(ENTRY) if run is not None else None
    return Choice(**entry) if entry else None


def _decide(shapes: Shapes, device: torch.device, trains: bool) -> Choice:
    """On rank 0: the fastest kernel, with a line that says why."""
    if device.type != "cuda" or not trains:
        logger.info("--attn_implementation auto: %s (%s)", PLAIN, "no GPU" if trains else "nothing is trained")
        return Choice(PLAIN, {}, {})
    choice = choose(shapes, device)
    times = ", ".join(f"{name} {milliseconds:.3g} ms" for name, milliseconds in choice.milliseconds.items())
    others = "".join(f"; not {name}: {why}" for name, why in choice.refused.items())
    size = f"{shapes.rows} x {shapes.heads} x {shapes.length} x {shapes.width}"
    logger.info("--attn_implementation auto: %s (%s, forward and backward of %s%s)", choice.kernel, times, size, others)
    return choice


def _shapes(config, args, length: int, is_padded: bool) -> Shapes:
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    rows = args.per_device_train_batch_size
    return Shapes(rows, length, config.num_heads, config.d_kv, is_padded, config.dropout_rate, dtype)
