"""Limit for connections that are not authenticated yet: when there are too many, the oldest is closed.

A connection costs an unknown client nothing, but this process a file descriptor: without a limit, ten thousand silent ones use up
the descriptors that robots' own connections need.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

BACKLOG = 1024
"""Length of the queue of connections to be accepted. Beyond it the system lets all clients try again after a second."""
ACCEPTED_AT_ONCE = 8
"""Connections that an event loop accepts in one iteration, between which it serves authenticated clients. The loop also passes this
number as its `backlog`."""
MAX_WAITING = 256


class Doorstep(socket.socket):
    """A listening socket. All its methods belong to the thread that accepts."""

    def __init__(self, family: int, max_waiting: int = MAX_WAITING) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._max_waiting = max_waiting
        self._waiting: dict[Any, socket.socket] = {}
        """Peer address -> connection, the oldest first."""
        self.turned_away = 0
        """Connections that were closed because there were too many."""
        self.gone = 0
        """Connections that were closed by either side before authentication."""

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """Listen with a larger backlog than an event loop asks for, which is the number that it accepts at once."""
        super().listen(max(backlog, BACKLOG))

    def accept(self) -> tuple[socket.socket, Any]:
        made, address = super().accept()
        if len(self._waiting) >= self._max_waiting:
            self.sweep()
        if len(self._waiting) >= self._max_waiting:
            self._turn_away()
        self._waiting[address] = made
        return made, address

    def let_in(self, address: Any) -> None:
        """Record that the client with this address is authenticated."""
        self._waiting.pop(address, None)

    def sweep(self) -> None:
        """Remove connections that are closed."""
        left = [address for address, one in self._waiting.items() if one.fileno() < 0]
        self.gone += len(left)
        for address in left:
            del self._waiting[address]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def _turn_away(self) -> None:
        longest = self._waiting.pop(next(iter(self._waiting)))
        self.turned_away += 1
        self.gone += 1
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)  # its owner notices, and closes it


def listen(host: str, port: int, max_waiting: int = MAX_WAITING) -> Doorstep:
    """Return a socket that listens. Raises: `OSError`."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = Doorstep(family, max_waiting)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
