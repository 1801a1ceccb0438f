"""The failure detector of one robot: which servers are there, and which are lost."""

from __future__ import annotations

import math
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

LOADING_PATIENCE = 15.0
"""A server that loads its first model may be silent for so many times the timeout: what it imports can hold its interpreter for
seconds on a busy machine. That its process has died is told by the middleware, at once."""


class Presence:
    """A server is *ready* from its status message on; it is *lost* when it says so, or says nothing for `timeout_s`.

    One that was never heard of is neither, until it has been expected for `timeout_s`; nor is one that loads its first model,
    however long that takes: when a factory starts, a standby that is ready sooner must not get the robots of those that are not.
    """

    KEPT: ClassVar = kept("check_s", "ready", "lost", expected="_expected", silent_at_s="_silent_at_s", known="_met")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._expected: set[str] = set()
        self._silent_at_s: dict[str, float] = {}
        """Of servers that are ready or expected."""
        self.check_s = math.inf
        """When to call `silent` again: no later than it has something to say."""
        self._met: set[str] = set()
        """Servers that have been ready."""
        self.ready: set[str] = set()
        self.lost: set[str] = set()

    def reconfigure(self, timeout_s: float) -> None:
        """From the next word of each server on."""
        self._timeout_s = timeout_s

    def expect(self, server: str) -> None:
        """A route names it: from the next `silent` on it has `timeout_s` to be heard of."""
        if server not in self._silent_at_s and server not in self.lost:
            self._expected.add(server)
            self.check_s = -math.inf

    def seen(self, server: str, now_s: float) -> bool:
        """True when it was not ready before."""
        self._silent_at_s[server] = silent_at_s = now_s + self._timeout_s
        self.check_s = silent_at_s if silent_at_s < self.check_s else self.check_s  # of a ready one too: it may have less time now
        if server in self.ready:
            return False
        self._expected.discard(server)
        self.lost.discard(server)
        self.ready.add(server)
        self._met.add(server)
        return True

    def loads(self, server: str, now_s: float) -> bool:
        """It loads a model. True when it was never ready and is waited for, False when it counts as lost meanwhile."""
        if server in self._met:
            return False
        self._expected.discard(server)
        self.lost.discard(server)
        self._silent_at_s[server] = now_s + LOADING_PATIENCE * self._timeout_s
        self.check_s = min(self.check_s, self._silent_at_s[server])
        return True

    def alive(self, server: str, now_s: float) -> None:
        """Its process is there. One that has never been ready is loading then, and may be too busy to say so."""
        if server not in self._met:
            self.loads(server, now_s)

    def lose(self, server: str) -> None:
        self._expected.discard(server)
        self._silent_at_s.pop(server, None)
        self.ready.discard(server)
        self.lost.add(server)

    def silent(self, now_s: float) -> list[str]:
        """Servers that must be counted as lost now; then call `lose`."""
        if self._expected:
            # Who is lost first decides who fails over where: never by the order of a set, which is another one in each process.
            self._silent_at_s.update(dict.fromkeys(sorted(self._expected), now_s + self._timeout_s))
            self._expected.clear()
        silent = [server for server, at_s in self._silent_at_s.items() if now_s >= at_s]
        self.check_s = min((at_s for at_s in self._silent_at_s.values() if at_s > now_s), default=math.inf)
        return silent
