"""What DeepSpeed and FSDP need of a process before a model is made, and what must not change afterwards.

    >>> with keeping_process_state():
    ...     SuiteTrainingArguments()          # which looks for ranks and devices, and lets the whole process know
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import torch.distributed as dist

logger = logging.getLogger(__name__)


def prepare_for_deepspeed(use_cpu: bool) -> None:
    """The variables that DeepSpeed reads when it is imported or begins; call it before either.

    A process that no launcher started becomes the one rank of a group of one, which DeepSpeed needs (it would look
    for MPI otherwise).
    """
    if use_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if "LOCAL_RANK" not in os.environ and os.environ.get("WORLD_SIZE", "1") == "1":
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(alone)
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(free_port()))


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_deepspeed() -> None:
    """Makes DeepSpeed use the process group that is there.

    ZeRO-3 divides the model while it is made, by the ranks that DeepSpeed knows of; without this it knows of none on
    CPUs (deepspeed 0.19.8: "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size").
    """
    import deepspeed

    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)


@contextlib.contextmanager
def fsdp_on_cpus() -> Iterator[None]:
    """While an `Accelerator` is made: ranks on CPUs may shard.

    accelerate 1.15 (`state.py`) looks at its FSDP plug-in for kinds of accelerators only, and would train ranks on CPUs
    as plain data parallelism without a word; torch's FSDP2 works on both (`tests/test_sharded_training.py`).
    """
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    state = PartialState._shared_state
    if state.get("distributed_type") == DistributedType.MULTI_CPU:
        state["distributed_type"] = DistributedType.MULTI_GPU
    yield


@contextlib.contextmanager
def keeping_process_state() -> Iterator[None]:
    """Training arguments that are made in this block leave no trace in what accelerate and DeepSpeed share."""
    from accelerate.state import AcceleratorState, PartialState
    from transformers.integrations import deepspeed

    shared = [(kind, dict(kind._shared_state)) for kind in (PartialState, AcceleratorState)]
    config = deepspeed._hf_deepspeed_config_weak_ref
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config
        for kind, state in shared:
            kind._shared_state.clear()
            kind._shared_state.update(state)
