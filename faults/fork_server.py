"""Forks processes from a parent that has imported the libraries: 0.03 s each in place of 4 s.

    >>> with ForkServer(folder) as server:
    ...     child = server.start("faults.victims:live", spec, output="log.txt")
    ...     child.wait(60)
    0

The server is a process of its own that imports and does nothing else, so a child begins as a fresh interpreter would
that has just imported the same: no threads, no random numbers drawn, no settings made. Requests come over a Unix
socket, one connection a child: the pid goes back at once, the exit code when the child has ended. A check that runs in
one child asks the same server for its victims.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120
# Every time limit is multiplied by this, for a machine that has other work to do.
SLACK = float(os.environ.get("FAULTS_SLACK", "1"))
# What a launcher, a sweep or a user's shell may have set and a victim must not inherit.
SCRUBBED = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "SLURM_", "WANDB_", "T5SUITE_", "ACCELERATE_", "HF_", "TORCH")


def environment(home, **changes: str) -> dict[str, str]:
    """The surroundings of every process of the suite: one thread, no network, no GPU, caches of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SCRUBBED)}
    ours = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Arrow's allocator would start a thread when it is imported, and a fork would lose it.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(Path(home) / "hf"),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **ours, **changes}


class Child:
    """A forked process, with the few methods of `subprocess.Popen` that a check needs."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code (-9 for a death by signal 9), or None while it runs."""
        if self.returncode is None and _readable(self._connection, 0):
            # A server that has died says nothing more; its children have been killed with it.
            self.returncode = int(self._lines.readline() or -signal.SIGKILL)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
          subprocess.TimeoutExpired: it has not, after so many seconds.
        """
        if self.returncode is None and not _readable(self._connection, timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The server's side that asks: starts it, and asks it for processes. Known to its own children by `address`."""

    def __init__(self, folder, address: str | None = None):
        self.address = address or str(Path(folder) / "forks.socket")
        self._folder = Path(folder)
        self._process = None

    def __enter__(self) -> "ForkServer":
        command = [sys.executable, "-m", "faults.fork_server", self.address]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment(self._folder), cwd=ROOT, start_new_session=True
        )
        deadline = time.monotonic() + START_SECONDS * SLACK
        while not Path(self.address).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the fork server did not start (exit code {self._process.poll()})")
            time.sleep(0.02)
        return self

    def __exit__(self, *exception) -> None:
        """Ends the server and every process that it started."""
        self._process.stdin.close()
        self._process.wait(20)

    def start(self, target: str, argument, output, group: int = 0) -> Child:
        """A process that calls `target` ("module:function") with a JSON value; what it returns is the exit code.

        Args:
          output: the file that standard output and error are appended to.
          group: the process group it joins; 0: one of its own.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.address)
        request = {"target": target, "argument": argument, "output": str(output), "group": group}
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Child(connection)


def _readable(connection, timeout: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(timeout))


# ---------------------------------------------------------------------------------------------------------------------
# The server's own process


def serve(address: str) -> None:
    """Answers requests until standard input ends; then everything that it started is killed."""
    import faults.preloaded

    assert faults.preloaded
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address + ".new")
    listener.listen(64)
    os.rename(address + ".new", address)
    connections: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    for source in (sys.stdin.fileno(), wake_read, listener.fileno()):
        selector.register(source, selectors.EVENT_READ)
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if wake_read in ready:
            os.read(wake_read, 4096)
        _report_ended(connections)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            unused = (wake_read, wake_write, listener.fileno(), *(other.fileno() for other in connections.values()))
            _answer(connection, connections, unused)
        if sys.stdin.fileno() in ready:
            break
    for pid in connections:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    os._exit(0)  # taking torch apart takes seconds


def _answer(connection, connections, unused) -> None:
    with connection.makefile("r", encoding="utf-8") as lines:
        request = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        _become(request, [*unused, connection.fileno()])
    with contextlib.suppress(OSError):  # the child has done so, or has ended
        os.setpgid(pid, request["group"] or pid)
    connections[pid] = connection
    connection.sendall(f"{pid}\n".encode())


def _report_ended(connections) -> None:
    while connections:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection = connections.pop(pid, None)
        if connection is None:
            continue
        with contextlib.suppress(OSError):  # whoever asked may be gone
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()


def _become(request: dict, unused) -> None:
    """The child's life: as a fresh interpreter with its own output, signals and end."""
    code = 1
    try:
        _join(request["group"])
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in unused:
            os.close(descriptor)
        _redirect(request["output"])
        code = call(request["target"], request["argument"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code or 0)


def _join(group: int) -> None:
    try:
        os.setpgid(0, group)
    except PermissionError:  # a group of another session: whoever asked is no check
        os.setpgid(0, 0)


def call(target: str, *arguments, **keywords):
    """Calls "module:function".

    >>> call("math:sqrt", 9)
    3.0
    """
    import importlib

    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments, **keywords)


def _redirect(output: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(file)


def _end(code: int) -> None:
    """What the interpreter does at its end: other threads are waited for, exit functions run, output is flushed."""
    import atexit

    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
