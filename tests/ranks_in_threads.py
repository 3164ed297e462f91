"""Several ranks in one process: a thread each, which communicate through torch's threaded process group.

>>> on_ranks(2, lambda: Ranks.of_process().gather(torch.distributed.get_rank()))
[[0, 1], [0, 1]]

What a process has once, and ranks have each, becomes a thread's own: torch's default group and accelerate's state. The
rest is shared: random numbers, environment, working directory, standard output.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate import state as accelerate_state
from accelerate.utils.environment import CPUInformation
from torch.testing._internal.distributed import multi_threaded_pg

SECONDS = 30
# `torch.distributed` has one group of threads in a process.
_ONE_AT_A_TIME = threading.Lock()
# An accelerator that is made empties the environment of its process for a moment, and reads a copy.
_ONE_EMPTIES_THE_ENVIRONMENT = threading.Lock()


def on_ranks(world_size: int, function: Callable, *args) -> list:
    """What `function` returns on each rank; one rank is this thread, without a process group.

    Raises:
      BaseExceptionGroup: with several ranks, what ranks raised, in their order. The ranks that wait for them are ended.
      TimeoutError: a rank still waits for another.
    """
    if world_size == 1:
        return [function(*args)]
    results, errors = [None] * world_size, {}

    def live(rank: int, store) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
            results[rank] = function(*args)
        except BaseException as error:
            if not _ended_by_other(error):
                errors[rank] = error
        finally:
            finished.append(rank)
            if rank in errors:
                multi_threaded_pg.ProcessLocalGroup.exception_handle(errors[rank])

    finished = []
    with _ONE_AT_A_TIME, _states_of_threads():
        store = dist.HashStore()
        threads = [threading.Thread(target=live, args=(rank, store), daemon=True) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        late = [rank for rank in range(world_size) if rank not in finished]
        if late:
            multi_threaded_pg.ProcessLocalGroup.exception_handle(None)
            raise TimeoutError(f"after {SECONDS} s ranks {late} still wait for another one: {errors or results}")
    if errors:
        raise BaseExceptionGroup("ranks failed", [errors[rank] for rank in sorted(errors)])
    return results


def accelerator_of_rank() -> Accelerator:
    """An accelerator for the calling rank."""
    with _ONE_EMPTIES_THE_ENVIRONMENT:
        return Accelerator(cpu=True)


def outcomes(world_size: int, function: Callable, *args) -> list:
    """As `on_ranks`, with what a rank raises in place of what it returns."""

    def live():
        try:
            return function(*args)
        except BaseException as error:  # as `Preempted` is
            if _ended_by_other(error):
                raise
            return error

    return on_ranks(world_size, live)


def _ended_by_other(error: BaseException) -> bool:
    """Whether torch has ended a rank that waited for one that failed."""
    return isinstance(error, SystemExit) and multi_threaded_pg.ProcessLocalGroup._terminate.is_set()


@contextlib.contextmanager
def _states_of_threads():
    """Torch's default group and accelerate's state are each thread's own."""
    states = (accelerate_state.PartialState, accelerate_state.AcceleratorState, accelerate_state.GradientState)
    dict_of_thread = accelerate_state.ThreadLocalSharedDict
    with contextlib.ExitStack() as stack:
        for state in states:
            stack.enter_context(mock.patch.object(state, "_shared_state", dict_of_thread()))
        stack.enter_context(mock.patch.object(accelerate_state.PartialState, "_prepare_backend", _several_on_cpu))
        stack.enter_context(mock.patch.object(accelerate_state, "get_cpu_distributed_information", _information))
        stack.enter_context(mock.patch.object(dist, "get_backend", lambda group=None: "gloo"))
        stack.enter_context(mock.patch.dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads())))
        stack.enter_context(contextlib.redirect_stdout(sys.stdout))
        stack.enter_context(mock.patch.object(sys, "excepthook", sys.excepthook))  # torch sets one of its own
        multi_threaded_pg.ProcessLocalGroup.reset()
        multi_threaded_pg._install_threaded_pg()
        stack.callback(multi_threaded_pg._uninstall_threaded_pg)
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        stack.callback(torch._C._distributed_c10d._set_thread_isolation_mode, False)
        yield


def _several_on_cpu(self, cpu, use_sagemaker_dp=False, backend=None):
    return "gloo", accelerate_state.DistributedType.MULTI_CPU


def _information() -> CPUInformation:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return CPUInformation(rank, world_size, rank, world_size)
