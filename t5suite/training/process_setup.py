"""A process of a run before anything is read: its log, random numbers and device, and which libraries it may rely on.

>>> is_main = prepare_process(args, model_args.device_map)
>>> libraries = libraries_of(args)
"""

import contextlib
import logging
import os
import sys
from typing import NamedTuple

import torch
from transformers import set_seed
from transformers.training_args import trainer_log_levels
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import Libraries, choose_libraries, require_proved
from t5suite.base.redaction import RedactingFormatter
from t5suite.training.monitoring.library_noise import quiet_libraries
from t5suite.training.monitoring.terminal import AboveBars, shows_bars
from t5suite.training.processes.ranks import RankLog, Ranks, attached

# Lines of the log name the run, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.run")


def prepare_process(args, device_map: str | None = None) -> bool:
    """Logging, random numbers and the device of this process; returns whether it is the main one.

    Raises:
      ConfigError: a launcher started several processes, but they did not form one group, or there are too few GPUs.
    """
    is_main = args.process_index == 0
    args.disable_tqdm = not shows_bars(args)  # libraries and our own evaluation draw bars where progress does
    start_logging(is_main, bool(args.disable_tqdm), shows_libraries(args.log_level), args.process_index)
    check_group(args.world_size)
    if args.device.type == "cuda":
        gpu_of_rank()  # NCCL's own message about a GPU that two ranks share names no cure
    if args.auto_find_batch_size:
        logger.warning("--auto_find_batch_size has no effect: a micro-batch that does not fit is halved without it")
    set_seed(args.seed)
    leave_out_cudnn_attention()
    if device_map is None and args.gpus_in_reach > 1:
        logger.warning(
            "one of %d GPUs is used; start with torchrun or accelerate launch to use them all", args.gpus_in_reach
        )
    return is_main


def shows_libraries(log_level: str) -> bool:
    """Whether libraries' own logs and bars are shown: with `--log_level info` or lower; `passive` is the default.

    >>> shows_libraries("info"), shows_libraries("passive")
    (True, False)
    """
    return trainer_log_levels["passive"] < trainer_log_levels[log_level] <= logging.INFO


def check_group(world_size: int) -> None:
    """Refuses processes that a launcher started together and that did not find one another."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != world_size:
        raise ConfigError(
            f"{launched} processes were launched (WORLD_SIZE), but this one finds {world_size}: they would be "
            "separate runs in one directory. Check the devices that the launcher gives them (--use_cpu without any)"
        )


def gpu_of_rank() -> int:
    """The number of this process's GPU among those that it sees.

    It is its local rank; where tasks of `srun` may each see GPUs of their own (`--gpus-per-task 1`), it is among these,
    as accelerate chooses it.

    Raises:
      ConfigError: more processes than GPUs were started on this machine.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if local_rank < count:
        return local_rank
    is_task_of_srun = os.environ.get("SLURM_LOCALID") == os.environ.get("LOCAL_RANK")
    if is_task_of_srun and (count == 1 or _tasks_divide_gpus()):
        return local_rank % count
    raise ConfigError(
        f"local rank {local_rank}, but there are {count} GPUs; start fewer processes, or set LOCAL_RANK=0 where "
        "each sees a GPU of its own"
    )


def _tasks_divide_gpus() -> bool:
    """Whether Slurm was asked for GPUs of a task's own.

    By `--gpus-per-task`, `--tres-per-task`, `--gpu-bind` or `--tres-bind`. Bound to `none`, all tasks see all GPUs.
    """
    if os.environ.get("SLURM_GPUS_PER_TASK") or "gpu" in os.environ.get("SLURM_TRES_PER_TASK", ""):
        return True
    bindings = (os.environ.get("SLURM_GPU_BIND", ""), os.environ.get("SLURM_TRES_BIND", ""))
    return any(binding and not binding.endswith("none") for binding in bindings)


def libraries_of(args) -> Libraries:
    """How the run uses the libraries: the same on all ranks. A collective call.

    Raises:
      ConfigError: a library's part that every run needs is not one that was tested.
    """
    chosen = choose_libraries(args.reference_code, args.allow_untested_libraries)
    require_proved("flag_parsing", "process_state", "model_loading", "training_loop")
    off_by_rank = Ranks.of_process().gather(chosen.off)
    return Libraries(frozenset().union(*off_by_rank))


def start_logging(is_main: bool, disable_tqdm: bool, verbose: bool = False, rank: int = 0) -> None:
    """Writes our log lines to standard error (other ranks: errors only) and every rank's to its own file.

    Args:
      verbose: also show the libraries' own logs, progress bars and all of their warnings (`shows_libraries`).
    """
    handler = AboveBars(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.NOTSET if is_main else logging.ERROR)
    root = logging.getLogger("t5suite")
    earlier_log = attached()
    if earlier_log is not None:
        earlier_log.detach()
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(logging.INFO)
    RankLog(rank).attach()
    quiet_libraries(verbose)
    transformers_logging.set_verbosity(verbosity_of_libraries(is_main, verbose))
    if verbose:
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()
    if disable_tqdm or not is_main:
        import datasets

        datasets.disable_progress_bars()


def verbosity_of_libraries(is_main: bool, verbose: bool) -> int:
    """The level from which transformers' own logs are shown."""
    if not is_main:
        return logging.ERROR
    return logging.INFO if verbose else logging.WARNING


def leave_out_cudnn_attention() -> None:
    """Stops `scaled_dot_product_attention` from using cuDNN's kernel on GPUs, for the whole process.

    torch prefers it on Hopper for masks without a gradient: its gradients are NaN for some lengths (pytorch issue
    196678, torch 2.11), and planning takes it a second for every new shape.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


class Float32Formats(NamedTuple):
    """In which formats the process multiplies float32 matrices.

    Attributes:
      precision: torch's word for them (`highest`, `high`, `medium`); None where the formats do not agree with any.
      default: `tf32`, `bf16`, `ieee`, or `none`, which leaves it to torch.
      of_cuda, of_cpu: of these products, if they have a format of their own; `none`: the default.
    """

    precision: str | None
    default: str
    of_cuda: str
    of_cpu: str


def float32_formats() -> Float32Formats:
    """The formats now.

    >>> float32_formats()
    Float32Formats(precision='highest', default='none', of_cuda='none', of_cpu='none')
    """
    precision = None
    with contextlib.suppress(RuntimeError):
        precision = torch.get_float32_matmul_precision()
    return Float32Formats(
        precision,
        torch.backends.fp32_precision,
        _own_format(torch.backends.cuda.matmul),
        _own_format(torch.backends.mkldnn.matmul),
    )


def _own_format(products) -> str:
    """The format of these products; `none` for the default, which torch 2.13 shows where they have none."""
    if products.fp32_precision == torch.backends.fp32_precision:
        return "none"
    return products.fp32_precision


def restore_float32_formats(formats: Float32Formats) -> None:
    """Multiplies float32 matrices as at an earlier time, for the whole process."""
    if formats.precision is not None:  # first: it sets the formats of both products, too
        torch.set_float32_matmul_precision(formats.precision)
    torch.backends.fp32_precision = formats.default
    torch.backends.cuda.matmul.fp32_precision = formats.of_cuda
    torch.backends.mkldnn.matmul.fp32_precision = formats.of_cpu


def multiply_in_tf32(allowed: bool) -> None:
    """Multiplies float32 matrices in TF32, or not, for the whole process, whatever other code has set.

    transformers sets the default alone, and a format that other code has set for GPUs wins.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
