"""What DeepSpeed and FSDP need of a process before a model is made, and what must not change afterwards.

>>> with keeping_process_state():
...     SuiteTrainingArguments()          # which looks for ranks and devices, and lets the whole process know
"""

import atexit
import contextlib
import os
import socket
import sys
from collections.abc import Iterator

import torch.distributed as dist


def prepare_for_deepspeed() -> None:
    """The variables that DeepSpeed reads when it begins; call it before.

    A process that no launcher started becomes the one rank of a group of one, which DeepSpeed needs (it would look
    for MPI otherwise).
    """
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
    """Makes DeepSpeed use the process group that is there, and leaves models whole until it is given them.

    Hugging Face's models would be made in pieces under ZeRO-3, which saves main memory (each rank holds a whole model
    there, for as long as it is made), but draws other random weights from the same seed, and hides weights from whoever
    counts, resizes, replaces or freezes them before training.
    """
    import deepspeed
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)
    if dist.get_backend() == "gloo":
        atexit.unregister(leave_group)
        atexit.register(leave_group)


def leave_group() -> None:
    """Ends gloo's threads while the interpreter is still whole.

    Left to the end of the process, DeepSpeed 0.19.8 on CPUs ended one of some thirty runs with SIGABRT ("terminate
    called without an active exception") after all was done. Nothing waits for other ranks here.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


# What an `Accelerator` notes in the environment, for all that come after it in this process, and what keeps it from
# sharding on CPUs.
NOTED = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_CPU")


@contextlib.contextmanager
def making_accelerator(sharded: bool) -> Iterator[None]:
    """While an `Accelerator` is made: ranks on CPUs may shard, and the environment stays as it is.

    accelerate 1.15 (`state.py`) looks at its FSDP plug-in for kinds of accelerators only, at DeepSpeed's unless it was
    launched for CPUs, and would train ranks on CPUs as plain data parallelism without a word; both work there
    (`tests/test_sharded_training.py`). What it notes in the environment would make the next run of this process a
    sharded one.
    """
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType, other

    # accelerate 1.15 imports DeepSpeed (1.3 s of each start) to see whether a model is wrapped; none is where nobody
    # has imported it. `tests/test_fine_tune.py` tells when it goes about it in another way.
    other.is_deepspeed_available = lambda: "deepspeed" in sys.modules
    state, was = PartialState._shared_state, {name: os.environ.get(name) for name in NOTED}
    if sharded and state.get("distributed_type") == DistributedType.MULTI_CPU:
        state["distributed_type"] = DistributedType.MULTI_GPU
        os.environ.pop("ACCELERATE_USE_CPU", None)
    try:
        yield
    finally:
        for name in NOTED:
            os.environ.pop(name, None)
            if was[name] is not None:
                os.environ[name] = was[name]


@contextlib.contextmanager
def shared_embeddings_together(model) -> Iterator[None]:
    """While accelerate cuts a model: embeddings and output layer go into the group of what is in no layer.

    accelerate 1.15 gives them groups of their own. An encoder-decoder has one embedding under three names, and torch
    2.13 refuses a weight that is seen from two groups (`tests/test_sharded_training.py`).
    """
    names = [name for name in ("get_input_embeddings", "get_output_embeddings") if hasattr(model, name)]
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)


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
