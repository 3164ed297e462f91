"""The process state that DeepSpeed and FSDP need before a model is created, and how to preserve it.

>>> with keeping_process_state():
...     SuiteTrainingArguments()          # looks for ranks and devices, and sets process-wide state
"""

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Iterator

import torch.distributed as dist

from t5suite.base.libraries import require_proved

# Variables by which an `Accelerator` affects later ones in this process; the last one prevents sharding on CPUs.
VARIABLES = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_CPU")
# A thread of gloo needs microseconds for it, and a few milliseconds where other processes want the same core.
SECONDS_TO_FREE_TENSORS = 0.2


def prepare_for_deepspeed() -> None:
    """Sets the environment variables that DeepSpeed reads when it starts; call this before.

    A process without a launcher becomes the only rank of a group of one: DeepSpeed needs a group, and would look
    for MPI otherwise.
    """
    if "LOCAL_RANK" not in os.environ and os.environ.get("WORLD_SIZE", "1") == "1":
        os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(free_port()))


def free_port() -> int:
    """A free port on this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_deepspeed() -> None:
    """Makes DeepSpeed use the existing process group, and keeps models whole until DeepSpeed receives them.

    Under ZeRO-3, Hugging Face would create models already sharded. That saves main memory (otherwise each rank creates
    a whole model), but it draws other random weights from the same seed, and hides weights from code that
    counts, resizes, replaces or freezes them before training.
    """
    import deepspeed
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)


def leave_group_at_exit() -> None:
    """Lets gloo's threads finish while the interpreter is still intact.

    Without this, a process may end with SIGABRT ("terminate called without an active exception") after all work is
    done: about one in thirty with DeepSpeed 0.19.8 on CPUs, and at times one with FSDP2. A thread that still holds a
    tensor of the last collective frees it when the interpreter has begun to end
    (https://github.com/pytorch/pytorch/pull/179291).
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":
        atexit.unregister(_leave_group)
        atexit.register(_leave_group)


def _leave_group() -> None:
    """Destroys the group if nobody has, and waits for its threads; does not wait for other ranks.

    Destroying ends the threads only if nothing refers to the group any longer. Functions of torch 2.13
    (`torch.distributed.nn.functional`) and DeepSpeed 0.19.8 (`deepspeed.comm.torch`) do to the end, as the default of
    an argument. Their threads then need a moment to free what they hold.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    time.sleep(SECONDS_TO_FREE_TENSORS)


@contextlib.contextmanager
def making_accelerator(sharded: bool) -> Iterator[None]:
    """While an `Accelerator` is created: lets ranks on CPUs shard, and restores the environment variables afterwards.

    accelerate 1.15 (`state.py`) uses its FSDP plug-in only on accelerators, and DeepSpeed's unless it was launched
    for CPUs. On CPUs it would silently fall back to plain data parallelism, although both plug-ins work there
    (`tests/test_sharded_training.py`). The environment variables that it sets would make the next run in this process
    a sharded one.

    Args:
      sharded: FSDP or DeepSpeed is asked for. On CPUs accelerate's distributed type is that of GPUs from then on.

    Raises:
      ConfigError: the installed accelerate was not tested for it (`require_proved`).
    """
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    state = PartialState._shared_state
    earlier_values = {name: os.environ.get(name) for name in VARIABLES}
    if sharded and state.get("distributed_type") == DistributedType.MULTI_CPU:
        require_proved("cpu_sharding")
        state["distributed_type"] = DistributedType.MULTI_GPU
        os.environ.pop("ACCELERATE_USE_CPU", None)
    try:
        yield
    finally:
        for name, value in earlier_values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def shared_embeddings_together(model) -> Iterator[None]:
    """While accelerate shards a model: puts embeddings and output layer into the root FSDP group.

    accelerate 1.15 gives what the model's two methods return groups of their own; what they do not return stays in the
    root's. An encoder-decoder has one embedding under three names, and torch
    2.13 refuses a weight that belongs to two groups (`tests/test_sharded_training.py`).
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
    """Training arguments created in this block do not change the shared state of accelerate and DeepSpeed."""
    from transformers.integrations import deepspeed

    states = shared_states()
    config = deepspeed._hf_deepspeed_config_weak_ref
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config
        load_shared_states(states)


def shared_states() -> list[dict]:
    """Copies of what all of this process's `PartialState`s and `AcceleratorState`s of accelerate share."""
    return [dict(state_class._shared_state) for state_class in _state_classes()]


def load_shared_states(states: list[dict]) -> None:
    """Puts states that `shared_states` has copied in the place of the process's."""
    for state_class, state in zip(_state_classes(), states, strict=True):
        state_class._shared_state.clear()
        state_class._shared_state.update(state)


def _state_classes() -> tuple[type, ...]:
    """The classes whose instances share one state in a process."""
    from accelerate.state import AcceleratorState, PartialState

    return PartialState, AcceleratorState
