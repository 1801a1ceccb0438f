"""Before a door: who is connected, and has not been let in. There is room for so many; the one that waits longest makes room.

A connection costs a stranger nothing and us a file descriptor: without a bound ten thousand silent ones take the descriptors that
robots' own connections need.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

BACKLOG = 1024
"""Who has come and is not looked at yet. Beyond it the system lets them try again after a second, robots and strangers alike."""
ACCEPTED_AT_ONCE = 8
"""By an event loop in one turn, between which it serves whoever is in: for its `backlog`, which it takes for this number, too."""
MAX_WAITING = 256


class Doorstep(socket.socket):
    """A listening socket. All its methods are for the thread that accepts."""

    def __init__(self, family: int, max_waiting: int = MAX_WAITING) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._max_waiting = max_waiting
        self._waiting: dict[Any, socket.socket] = {}
        """By the address of the other side, the longest first."""
        self.turned_away = 0
        """For want of room."""
        self.gone = 0
        """Left, or were turned away, before they were let in."""

    def listen(self, backlog: int = BACKLOG, /) -> None:
        """An event loop asks for no more than it accepts at once."""
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
        """Whoever comes from there is known now."""
        self._waiting.pop(address, None)

    def sweep(self) -> None:
        """Forgets who has left."""
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
            longest.shutdown(socket.SHUT_RDWR)  # whoever owns it notices, and closes it


def listen(host: str, port: int, max_waiting: int = MAX_WAITING) -> Doorstep:
    """Raises: `OSError`."""
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
