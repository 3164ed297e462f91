"""Ends all ranks when one has died. Otherwise they would wait for it: for half an hour, by default.

    >>> with watching_ranks(ranks, stop):
    ...     train()
    error: rank 3 has exited; this process would wait for it, and exits, too (74); run the same command to resume ...

gloo usually notices a closed connection; NCCL waits for its timeout. So every rank keeps a connection to rank 0. The
kernel closes it when a process dies, for any reason; rank 0 then tells the others which rank was lost.
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
from typing import ClassVar

from t5suite.base.errors import EXIT_IO, EXIT_PREEMPTED, Preempted
from t5suite.base.programs import note_exit_code
from t5suite.training.processes.signals import SET_UP, StopRequests

logger = logging.getLogger(__name__)

# How long a process goes on after a rank was lost: it may end by itself, with a message of its own.
GRACE_SECONDS = 20.0
# How long the ranks wait for one another at the start.
CONNECT_SECONDS = 20.0
# How long a stranger that connects may be silent.
GREETING_SECONDS = 2.0
# All that a connection carries: a rank that leaves in good order says so, and rank 0 names a rank that was lost.
FAREWELL = b"F"
LOST = b"L"  # then the rank
RANK_BYTES = 4
# A machine that loses power closes no connection: after 10 s of silence, send three probes, 5 s apart.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@contextlib.contextmanager
def watching_ranks(ranks, stop: StopRequests):
    """Watches several ranks inside the block. If one is lost, the others exit, in place of waiting for it for ever.

    A rank is lost if its process ends, if it leaves the block with an error, or if it stops on a signal in set-up,
    where the ranks do not yet stop together.
    """
    try:
        connections = connect(ranks)
    except OSError as error:
        logger.warning("no connections to the other ranks (%s): this rank may hang if another one dies", error)
        yield
        return
    watcher = Watcher(connections, stop)
    leaves_in_order = False
    try:
        yield
        leaves_in_order = True
    except Preempted:
        # Set-up ends on one rank's signal; later the ranks agree on the step at which all of them stop.
        leaves_in_order = stop.current_phase != SET_UP
        raise
    finally:
        watcher.close(leaves_in_order)


class Watcher:
    """The thread that waits for other ranks to end.

    Args:
      connections: by rank: on rank 0 to all others, elsewhere to rank 0 alone.
    """

    # The watchers of this process: a child that is forked closes its copies of their sockets.
    open_watchers: ClassVar[set["Watcher"]] = set()

    def __init__(self, connections: dict[int, socket.socket], stop: StopRequests):
        self.connections = dict(connections)
        self.stop = stop
        # Closing the first end wakes the thread, which waits at the second one.
        self._closing_end, self._waiting_end = socket.socketpair()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lost ranks", daemon=True)
        self.open_watchers.add(self)
        self._thread.start()

    def close(self, leaves_in_order: bool) -> None:
        """Ends the thread and the connections; a rank that leaves in order says so, and the others continue."""
        self.open_watchers.discard(self)
        self._is_closed.set()
        self._closing_end.close()
        self._thread.join()
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                if leaves_in_order:
                    connection.sendall(FAREWELL)
                connection.shutdown(socket.SHUT_RDWR)
        self.close_sockets()

    def close_sockets(self) -> None:
        """Closes this process's ends of all connections."""
        for connection in (*self.connections.values(), self._closing_end, self._waiting_end):
            connection.close()

    def _watch(self) -> None:
        """Waits until a rank is lost, and then for GRACE_SECONDS; whoever closes the watcher ends both."""
        lost_rank = self._wait_for_loss()
        if lost_rank is None:
            return
        self._tell_ranks(lost_rank)
        if not self._is_closed.wait(GRACE_SECONDS):
            self._exit(lost_rank)

    def _wait_for_loss(self) -> int | None:
        """The rank that was lost; None once the watcher is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._waiting_end, selectors.EVENT_READ, None)
            for rank, connection in self.connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return None
                    message = _receive(key.fileobj, len(LOST))
                    if message == LOST:
                        return int.from_bytes(_receive(key.fileobj, RANK_BYTES), "big")
                    if message != FAREWELL:  # the connection is closed
                        return key.data
                    selector.unregister(key.fileobj)

    def _tell_ranks(self, lost_rank: int) -> None:
        """Names the lost rank to every rank that this one is connected to: that matters on rank 0 alone."""
        for rank, connection in self.connections.items():
            if rank != lost_rank:
                with contextlib.suppress(OSError):
                    connection.sendall(LOST + lost_rank.to_bytes(RANK_BYTES, "big"))

    def _exit(self, lost_rank: int) -> None:
        """Ends this process, which would wait for the lost rank."""
        # After a signal to stop, the rank was lost to the same preemption, and the scheduler resumes the run.
        code = EXIT_IO
        if self.stop.requested:
            code = note_exit_code(EXIT_PREEMPTED)
        text = (
            f"error: rank {lost_rank} has exited; this process would wait for it, and exits, too ({code}); run the "
            "same command to resume from the newest checkpoint\n"
        )
        with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error may be closed, or missing
            os.write(sys.__stderr__.fileno(), text.encode())
        os._exit(code)


def connect(ranks) -> dict[int, socket.socket]:
    """This rank's connections: rank 0's to all others, or this rank's to rank 0. A collective call.

    Raises:
      OSError: some rank cannot reach rank 0; raised on all ranks.
    """
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    addresses = _addresses_to_listen_at(host, ranks.world_size)
    listener = ranks.all_succeed(lambda: _listen(addresses) if ranks.is_main else None)
    # Rank 0 makes both, and the others get them.
    port, token = ranks.together(lambda: (listener.getsockname()[1], secrets.token_hex(16)))
    if not ranks.is_main:
        return ranks.all_succeed(_connect_to_main, host, port, token, ranks.rank)
    with listener:
        return ranks.all_succeed(_accept_ranks, listener, token, ranks.world_size)


def _addresses_to_listen_at(host: str, world_size: int) -> tuple[str, ...]:
    """The ranks' MASTER_ADDR, or all addresses ("") if that one is not this machine's.

    With ranks on other machines, all at once: a name that they know this machine by may be loopback here (127.0.1.1 of
    Debian).
    """
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE") or world_size)
    if ranks_here < world_size:
        return ("",)
    return (host, "")


def _listen(addresses: tuple[str, ...]) -> socket.socket:
    """Listens at the first of these addresses that is this machine's."""
    for address in addresses:
        with contextlib.suppress(OSError):
            return socket.create_server((address, 0), backlog=1024)
    places = " or ".join(address or "any address of this machine" for address in addresses)
    raise OSError(f"no port to listen at for the other ranks, at {places}")


def _accept_ranks(listener: socket.socket, token: str, world_size: int) -> dict[int, socket.socket]:
    """The connections of all other ranks, by rank; whoever does not know the token is no rank of this run."""
    connections = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(connections) < world_size - 1:
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        connection, _ = listener.accept()
        greeting = _read_greeting(connection)
        if len(greeting) == 2 and secrets.compare_digest(greeting[0], token.encode()):
            connections[int(greeting[1])] = _without_timeout(connection)
        else:
            connection.close()
    return connections


def _read_greeting(connection: socket.socket) -> list[bytes]:
    """The words of the first line that comes; none if nothing comes in time."""
    connection.settimeout(GREETING_SECONDS)
    # Unbuffered: what follows the line, a FAREWELL of a short run, stays to be read later.
    with contextlib.suppress(OSError), connection.makefile("rb", buffering=0) as file:
        return file.readline(64).split()
    return []


def _connect_to_main(host: str, port: int, token: str, rank: int) -> dict[int, socket.socket]:
    connection = socket.create_connection((host, port), CONNECT_SECONDS)
    connection.sendall(f"{token} {rank}\n".encode())
    return {0: _without_timeout(connection)}


def _without_timeout(connection: socket.socket) -> socket.socket:
    """A connection that waits without limit, but notices a machine that is gone (KEEPALIVE)."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    """So many bytes; fewer if the connection is closed."""
    try:
        return connection.recv(num_bytes, socket.MSG_WAITALL)
    except OSError:
        return b""


def _close_in_child() -> None:
    """A forked child must not hold connections: they would stay open when its parent dies."""
    for watcher in list(Watcher.open_watchers):
        watcher.close_sockets()
    Watcher.open_watchers.clear()


os.register_at_fork(after_in_child=_close_in_child)
