"""A rank that has died takes the others with it, which would else wait for it: for half an hour, by default.

    >>> with watching_ranks(ranks, stop):
    ...     train()
    rank 3 has ended, and this rank has waited 20 s for it: the process ends (74); the same command goes on from ...

gloo mostly notices a closed connection; NCCL waits for its timeout. So every rank keeps a connection to rank 0, which
the kernel closes when a process dies, however it dies; rank 0 tells the others.
"""

import contextlib
import logging
import os
import secrets
import selectors
import socket
import sys
import threading
import time

from t5suite.base.errors import EXIT_IO, EXIT_PREEMPTED, Preempted
from t5suite.training.processes.signals import SET_UP, StopRequests

logger = logging.getLogger(__name__)

# Between the loss of a rank and the end of one that still waits for it.
GRACE_SECONDS = 20.0
CONNECT_SECONDS = 20.0
FAREWELL, LOST = b"F", b"L"
# A machine that has lost its power closes no connection: probes after 10 s of silence, three times, 5 s apart.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@contextlib.contextmanager
def watching_ranks(ranks, stop: StopRequests):
    """While the ranks work together. A rank that leaves by an error, or alone on a signal, ends the others, too."""
    if ranks.world_size == 1:
        yield
        return
    try:
        lines = connect(ranks)
    except OSError as error:
        lines = {}
        logger.warning("no connections to the other ranks (%s): one that dies may be waited for in vain", error)
    watcher = Watcher(lines, stop)
    orderly = False
    try:
        yield
        orderly = True
    except Preempted:
        orderly = stop.current_phase != SET_UP  # else the ranks have agreed on it
        raise
    finally:
        watcher.close(orderly)


class Watcher:
    """The thread that waits for the other ranks' ends; lines are `{rank: connection}`, elsewhere than on rank 0 one."""

    def __init__(self, lines: dict[int, socket.socket], stop: StopRequests):
        self.lines = dict(lines)
        self.stop = stop
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="lost ranks", daemon=True)
        _open.add(self)
        self._thread.start()

    def close(self, orderly: bool) -> None:
        """Says farewell, unless the others had better not go on."""
        _open.discard(self)
        self._wake.close()
        self._thread.join()
        for line in self.lines.values():
            with contextlib.suppress(OSError):
                if orderly:
                    line.sendall(FAREWELL)
                line.shutdown(socket.SHUT_RDWR)
        self.forget()

    def forget(self) -> None:
        """Closes this process's copies of the connections, which a forked child must not keep open."""
        for line in (*self.lines.values(), self._wake, self._woken):
            line.close()

    def _watch(self) -> None:
        lost, deadline = None, None
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, line in self.lines.items():
                selector.register(line, selectors.EVENT_READ, rank)
            while deadline is None or time.monotonic() < deadline:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                for key, _ in selector.select(left):
                    if key.data is None:
                        return
                    said = _receive(key.fileobj)
                    selector.unregister(key.fileobj)
                    if said != FAREWELL and lost is None:
                        lost, deadline = key.data, time.monotonic() + GRACE_SECONDS
                        for rank, line in self.lines.items():  # rank 0 is the only one that the others hear of it from
                            if rank != lost:
                                with contextlib.suppress(OSError):
                                    line.sendall(LOST)
        code = EXIT_PREEMPTED if self.stop.requested else EXIT_IO
        text = (
            f"error: rank {lost} has ended or lost another one, and this rank has waited {GRACE_SECONDS:g} s in vain: "
            f"the process ends ({code}); the same command goes on from the newest checkpoint\n"
        )
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno(), text.encode())
        os._exit(code)


def connect(ranks) -> dict[int, socket.socket]:
    """This rank's connections: rank 0's to all others, and theirs to it. All ranks call it at the same place.

    Raises:
      OSError: rank 0 cannot be reached (from any rank: then on all).
    """
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    listener = ranks.all_succeed(lambda: _listen(address) if ranks.is_main else None)
    port, token = ranks.together(lambda: (listener.getsockname()[1], secrets.token_hex(16)))
    if not ranks.is_main:
        return ranks.all_succeed(_call, (address, port), token, ranks.rank)
    with listener:
        return ranks.all_succeed(_accept, listener, token, ranks.world_size)


def _listen(address: str) -> socket.socket:
    """At the address by which the ranks have found each other, or where that is not this machine's own, at any."""
    for place in (address, ""):
        with contextlib.suppress(OSError):
            return socket.create_server((place, 0), backlog=1024)
    raise OSError(f"no port to listen at for the other ranks ({address})")


def _accept(listener: socket.socket, token: str, world_size: int) -> dict[int, socket.socket]:
    lines, deadline = {}, time.monotonic() + CONNECT_SECONDS
    while len(lines) < world_size - 1:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        line, _ = listener.accept()
        line.settimeout(2.0)
        greeting = []  # what does not come in time is no greeting
        with contextlib.suppress(OSError), line.makefile("rb", 0) as bytewise:  # for a farewell may follow
            greeting = bytewise.readline(64).split()
        if len(greeting) == 2 and secrets.compare_digest(greeting[0], token.encode()):
            lines[int(greeting[1])] = _kept_alive(line)
        else:  # a stranger
            line.close()
    return lines


def _call(address, token: str, rank: int) -> dict[int, socket.socket]:
    line = socket.create_connection(address, CONNECT_SECONDS)
    line.sendall(f"{token} {rank}\n".encode())
    return {0: _kept_alive(line)}


def _kept_alive(line: socket.socket) -> socket.socket:
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return line


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1)
    except OSError:
        return b""


_open: set[Watcher] = set()


def _in_child() -> None:
    for watcher in list(_open):
        watcher.forget()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
