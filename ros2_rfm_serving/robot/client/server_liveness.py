"""Failure detector of one robot: which servers are ready, and which are lost."""

from __future__ import annotations

import math
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

LOADING_TIMEOUT_FACTOR = 15.0
"""Factor of the timeout for a server that loads its first model: its imports can hold the interpreter for seconds on a busy
machine. The middleware reports the death of its process at once."""


class ServerLiveness:
    """Liveness of servers. A server is *ready* from its status message on; it is *lost* when it reports so, or is silent too long.

    A server without any message is neither, until it has been expected for `timeout_s`. The same holds for one that loads its first
    model, however long that takes: when a factory starts, a standby that is ready sooner must not get the robots of the others.
    """

    KEPT: ClassVar = kept("check_s", "ready", "lost", expected="_expected", silent_at_s="_silent_at_s", known="_known")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._expected: set[str] = set()
        self._silent_at_s: dict[str, float] = {}
        """Time at which a server that is ready, expected or loading counts as silent."""
        self.check_s = math.inf
        """Time of the next call of `silent`, no later than it has something to report."""
        self._known: set[str] = set()
        """Servers that have been ready."""
        self.ready: set[str] = set()
        self.lost: set[str] = set()

    def reconfigure(self, timeout_s: float) -> None:
        """Apply another timeout, from the next message of each server on."""
        self._timeout_s = timeout_s

    def expect(self, server: str) -> None:
        """Expect a server that a route names: from the next `silent` on it has `timeout_s` for its first message."""
        if server not in self._silent_at_s and server not in self.lost:
            self._expected.add(server)
            self.check_s = -math.inf

    def on_status(self, server: str, now_s: float) -> bool:
        """Note a status message of a ready server. Return whether it was not ready before."""
        self._silent_at_s[server] = silent_at_s = now_s + self._timeout_s
        self.check_s = silent_at_s if silent_at_s < self.check_s else self.check_s  # also if ready: it may have less time now
        if server in self.ready:
            return False
        self._expected.discard(server)
        self.lost.discard(server)
        self.ready.add(server)
        self._known.add(server)
        return True

    def on_loading(self, server: str, now_s: float) -> bool:
        """Note that a server loads a model. Return whether it was never ready and is waited for; False: it counts as lost."""
        if server in self._known:
            return False
        self._expected.discard(server)
        self.lost.discard(server)
        self._silent_at_s[server] = now_s + LOADING_TIMEOUT_FACTOR * self._timeout_s
        self.check_s = min(self.check_s, self._silent_at_s[server])
        return True

    def on_alive(self, server: str, now_s: float) -> None:
        """Note that a server's process is alive. One that has never been ready is loading, and may be too busy to report it."""
        if server not in self._known:
            self.on_loading(server, now_s)

    def mark_lost(self, server: str) -> None:
        self._expected.discard(server)
        self._silent_at_s.pop(server, None)
        self.ready.discard(server)
        self.lost.add(server)

    def silent(self, now_s: float) -> list[str]:
        """Return the servers that must be counted as lost now; then call `mark_lost`."""
        if self._expected:
            # The order of losses decides where links fail over; it must not be that of a set, which differs between processes.
            self._silent_at_s.update(dict.fromkeys(sorted(self._expected), now_s + self._timeout_s))
            self._expected.clear()
        silent = [server for server, at_s in self._silent_at_s.items() if now_s >= at_s]
        self.check_s = min((at_s for at_s in self._silent_at_s.values() if at_s > now_s), default=math.inf)
        return silent
