"""Runs of the script on three ranks, one of which ends in some way before the others.

    python tests/lost_rank_runs.py 2          # rank 2 is the one; prints what became of all, for each way

A fresh process that forks after its imports: the ranks of all ways run side by side.
"""

import contextlib
import ctypes
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accelerate import Accelerator
from datasets import Dataset
from transformers import TrainerCallback

ROOT = Path(__file__).parent.parent
# A rank that waits for a lost one ends after 20 s.
LONGER_THAN_GRACE = 28.0
FLAGS = """--dataset_name sentiment --config_overrides d_model=16,d_kv=4,d_ff=16,num_layers=1,num_heads=2 --from_scratch
    --use_cpu --max_steps 1 --max_train_samples 6 --no_eval --eval_strategy no --per_device_train_batch_size 1
    --save_strategy steps --save_steps 1 --disable_tqdm True""".split()


def is_the_one() -> bool:
    """Whether this process is the rank that ends before the others."""
    return os.environ["RANK"] == os.environ["THE_ONE"]


def wait_in_c() -> None:
    """For ever, in one C call, as in a collective of GPUs."""
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


class IsKilled(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if is_the_one():
            os.kill(os.getpid(), signal.SIGKILL)
        wait_in_c()


class IsKilledWithAChild(IsKilled):
    """A worker that outlives its process must not keep the connection open."""

    def on_step_begin(self, args, state, control, **kwargs):
        if is_the_one() and os.fork() == 0:
            time.sleep(2 * LONGER_THAN_GRACE)
            os._exit(0)
        super().on_step_begin(args, state, control)


class IsKilledAfterARequest(IsKilled):
    def on_step_begin(self, args, state, control, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        super().on_step_begin(args, state, control)


class IsKilledAmongStrangers(IsKilled):
    """See `create_server_that_strangers_find`."""


class Fails(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if is_the_one():
            raise ArithmeticError("a fault of its own")
        wait_in_c()


class LeavesSetUp(TrainerCallback):
    """See `leave_or_wait`."""


class IsDoneFirst(TrainerCallback):
    """The others have more to do at the end, as an upload: see `wait_and_work_at_the_end`."""


class StopsAsAgreed(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if is_the_one():
            os.kill(os.getpid(), signal.SIGTERM)

    def on_save(self, args, state, control, **kwargs):
        if not is_the_one():
            time.sleep(LONGER_THAN_GRACE)


class CannotBeReached(TrainerCallback):
    """Something lets through what torch needs, and nothing else: see `refuse_connections`."""


STRANGERS = []  # whose connections stay open


def create_server_that_strangers_find(address, create=socket.create_server, **settings):
    """Before any rank connects: one stranger says nothing, two others what no rank says."""
    server = create(address, **settings)
    STRANGERS.extend(socket.create_connection(server.getsockname()) for _ in range(3))
    silent, first, second = STRANGERS
    silent.shutdown(socket.SHUT_WR)
    first.sendall(b"guess 1\n")
    second.sendall(b"guess 2\n")
    return server


def refuse_connections(address, *settings, **more_settings):
    raise ConnectionRefusedError("refused")


def leave_or_wait(*args, **settings):
    """In place of tokenizing rows, which belongs to set-up."""
    if is_the_one():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    wait_in_c()


def work_at_the_end(directory) -> None:
    """Ranks other than the one work on after they have waited for one another for the last time."""
    wait = Accelerator.wait_for_everyone

    def wait_and_work_at_the_end(accelerator):
        wait(accelerator)
        if (directory / "results.json").exists() and not is_the_one():
            time.sleep(LONGER_THAN_GRACE)

    Accelerator.wait_for_everyone = wait_and_work_at_the_end


WAYS = (
    IsKilled, IsKilledWithAChild, IsKilledAfterARequest, IsKilledAmongStrangers, Fails, LeavesSetUp, IsDoneFirst,
    StopsAsAgreed, CannotBeReached,
)  # fmt: skip


def live(way: type, directory: Path) -> None:
    """This process's run, to its end."""
    if way is IsKilledAmongStrangers:
        socket.create_server = create_server_that_strangers_find
    if way is CannotBeReached:
        socket.create_connection = refuse_connections
    if way is LeavesSetUp:
        Dataset.map = leave_or_wait
    if way is IsDoneFirst:
        work_at_the_end(directory)
    sys.argv = ["fine_tune_t5.py", *FLAGS, "--output_dir", str(directory)]
    sys.argv += ["--callbacks", f"{Path(__file__).stem}:{way.__name__}"]
    runpy.run_path(str(ROOT / "fine_tune_t5.py"), run_name="__main__")


def start_rank(rank: int, port: int, the_one: str, way: type, directory: Path) -> int:
    """The id of a forked process that runs as a rank."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(f"{directory}.{rank}.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": "3", "THE_ONE": the_one}
        live(way, directory)
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    finally:
        os._exit(code)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main(the_one: str) -> dict:
    """For each way the ranks' exit codes, and the seconds between the end of the first and of the last."""
    import torch

    import fine_tune_t5  # its imports, once for all

    assert fine_tune_t5
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    processes, folder = {}, Path(tempfile.mkdtemp())
    for way in WAYS:
        port = free_port()
        for rank in range(3):
            processes[start_rank(rank, port, the_one, way, folder / way.__name__)] = (way.__name__, rank)
    ends = {way.__name__: [None] * 3 for way in WAYS}
    while processes:
        pid, status = os.wait()
        if pid in processes:
            name, rank = processes.pop(pid)
            ends[name][rank] = (os.waitstatus_to_exitcode(status), time.monotonic())
    report = {"folder": str(folder)}
    for name, ends_of_way in ends.items():
        codes, moments = zip(*ends_of_way, strict=True)
        report[name] = {"codes": codes, "seconds": max(moments) - min(moments)}
    return report


@functools.cache
def reported(the_one: int) -> dict:
    """What `main` returns, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, str(the_one)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):  # ranks that wait for ever, and the child of one
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-4000:]
    return json.loads(output.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
