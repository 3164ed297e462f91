"""Ends all ranks when one has died. Otherwise they would wait for it: for half an hour, by default.

    >>> with watching_ranks(ranks, stop):
    ...     train()
    error: rank 3 has exited or lost another rank; after 20 s this process exits too (74); run the same ...

gloo usually notices a closed connection; NCCL waits for its timeout. So every rank keeps a connection to rank 0. The
kernel closes it when a process dies, for any reason; rank 0 then notifies the others.
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

# How long a rank that waits for a lost one keeps running.
GRACE_SECONDS = 20.0
CONNECT_SECONDS = 20.0
FAREWELL, LOST = b"F", b"L"
# A machine that loses power closes no connection: after 10 s of silence, send three probes, 5 s apart.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@contextlib.contextmanager
def watching_ranks(ranks, stop: StopRequests):
    """Watches the ranks inside the block. A rank that leaves with an error, or alone on a signal, ends the others."""
    if ranks.world_size == 1:
        yield
        return
    try:
        lines = connect(ranks)
    except OSError as error:
        lines = {}
        logger.warning("no connections to the other ranks (%s): this rank may hang if another one dies", error)
    watcher = Watcher(lines, stop)
    orderly = False
    try:
        yield
        orderly = True
    except Preempted:
        orderly = stop.current_phase != SET_UP  # after set-up, the ranks have agreed to stop
        raise
    finally:
        watcher.close(orderly)


class Watcher:
    """The thread that waits for other ranks to end. `lines`: `{rank: connection}`; one entry, except on rank 0."""

    def __init__(self, lines: dict[int, socket.socket], stop: StopRequests):
        self.lines = dict(lines)
        self.stop = stop
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="lost ranks", daemon=True)
        _open.add(self)
        self._thread.start()

    def close(self, orderly: bool) -> None:
        """Closes the connections; `orderly` first sends FAREWELL, so that the other ranks continue."""
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
        """Closes this process's copies of the connections; a forked child must not keep them open."""
        for line in (*self.lines.values(), self._wake, self._woken):
            line.close()

    def _watch(self) -> None:
        lost_rank = None
        deadline = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, line in self.lines.items():
                selector.register(line, selectors.EVENT_READ, rank)
            while deadline is None or time.monotonic() < deadline:
                seconds_left = None if deadline is None else max(0.0, deadline - time.monotonic())
                for key, _ in selector.select(seconds_left):
                    if key.data is None:
                        return
                    message = _receive(key.fileobj)
                    selector.unregister(key.fileobj)
                    if message != FAREWELL and lost_rank is None:
                        lost_rank = key.data
                        deadline = time.monotonic() + GRACE_SECONDS
                        self._tell_others(lost_rank)
        self._exit(lost_rank)

    def _tell_others(self, lost_rank: int) -> None:
        """Tells every rank but the lost one; they hear of it only from rank 0."""
        for rank, line in self.lines.items():
            if rank != lost_rank:
                with contextlib.suppress(OSError):
                    line.sendall(LOST)

    def _exit(self, lost_rank: int) -> None:
        """Ends this process, which would wait for the lost rank."""
        code = EXIT_PREEMPTED if self.stop.requested else EXIT_IO
        text = (
            f"error: rank {lost_rank} has exited or lost another rank; after {GRACE_SECONDS:g} s this process exits "
            f"too ({code}); run the same command to resume from the newest checkpoint\n"
        )
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno(), text.encode())
        os._exit(code)


def connect(ranks) -> dict[int, socket.socket]:
    """This rank's connections: rank 0's to all others, or this rank's to rank 0. A collective call.

    Raises:
      OSError: some rank cannot reach rank 0; raised on all ranks.
    """
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    listener = ranks.all_succeed(lambda: _listen(address) if ranks.is_main else None)
    port, token = ranks.together(lambda: (listener.getsockname()[1], secrets.token_hex(16)))
    if not ranks.is_main:
        return ranks.all_succeed(_call, (address, port), token, ranks.rank)
    with listener:
        return ranks.all_succeed(_accept, listener, token, ranks.world_size)


def _listen(address: str) -> socket.socket:
    """Listens on the ranks' MASTER_ADDR, or on all addresses if that one is not this machine's."""
    for place in (address, ""):
        with contextlib.suppress(OSError):
            return socket.create_server((place, 0), backlog=1024)
    raise OSError(f"no port to listen at for the other ranks ({address})")


def _accept(listener: socket.socket, token: str, world_size: int) -> dict[int, socket.socket]:
    lines = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(lines) < world_size - 1:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        line, _ = listener.accept()
        line.settimeout(2.0)
        greeting = []  # stays empty on a timeout
        with contextlib.suppress(OSError), line.makefile("rb", 0) as bytewise:  # unbuffered: FAREWELL may follow
            greeting = bytewise.readline(64).split()
        if len(greeting) == 2 and secrets.compare_digest(greeting[0], token.encode()):
            lines[int(greeting[1])] = _kept_alive(line)
        else:  # not a rank of this run
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
