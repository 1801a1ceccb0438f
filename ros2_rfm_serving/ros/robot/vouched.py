"""Freshness evidence of a robot with a certificate: which process of a server is alive, and which scheduler.

Signatures prove the sender, not the time. A session is fresh, because its server has answered the robot's random number. So the
process that opened it is alive, its statuses are fresh, and the scheduler that it reports to follow is alive. Servers that such a
scheduler lists are alive as well. Before there is any of that, as when a robot starts, it queries servers (`inquiry.py`). Where
none answers, it believes the first scheduler that it receives for a while: no server serves by a forged schedule, and a robot that
waits in vain believes another.
"""

from __future__ import annotations

from collections.abc import Iterable

VOUCHED_S = 10.0
"""Time for which a server's last report that it follows a scheduler counts."""
HOLD_S = 5.0
"""Time after the very first schedule for a server to vouch: to be discovered, to be queried, and to publish its next status."""
PATIENCE_S = 20.0
"""Time for which a scheduler without evidence is believed while another one is received."""
SILENT_S = 3.0
"""Time after the last message of a server's process after which another process may be the server."""
UNVOUCHED = "no server says that it follows this schedule's scheduler: it may be a recording"


class Vouched:
    """Evidence of liveness, on one clock that never goes back."""

    def __init__(self) -> None:
        self._proven: dict[str, int] = {}
        """Server -> process that opened a session."""
        self._named: frozenset[int] = frozenset()
        """Processes of servers that the last accepted schedule lists."""
        self._heard_s: dict[str, float] = {}
        """Server -> time at which a live process of it was last received."""
        self._vouched_s: dict[int, float] = {}
        self._first_s: float | None = None
        """Time at which the first schedule was received."""
        self._believed, self._believed_s = 0, 0.0
        """Scheduler that is believed, and since when, or when a server last vouched for it; 0: none yet."""

    # --- servers ---

    def opened(self, server: str, process: int) -> None:
        """Record that the process has answered a challenge, by a session or a liveness query."""
        self._proven[server] = process

    def lives(self, server: str, process: int, now_s: float) -> bool:
        """Return whether this process of the server, which has sent a message, is alive."""
        lives = process in self._named or process == self._proven.get(server)
        if lives:
            self._heard_s[server] = now_s
        return lives

    def may_live(self, server: str, now_s: float) -> bool:
        """Return whether another process may be the server: no live one was received lately."""
        return server not in self._heard_s or now_s - self._heard_s[server] > SILENT_S

    def follows(self, server: str, process: int, scheduler: int, now_s: float) -> bool:
        """Record that a live process follows a scheduler; return whether no server has vouched for it lately."""
        if not scheduler or process != self._proven.get(server):
            return False
        is_new = not self._is_vouched(scheduler, now_s)
        self._vouched_s = {one: at_s for one, at_s in self._vouched_s.items() if now_s - at_s <= VOUCHED_S} | {scheduler: now_s}
        return is_new

    # --- schedulers ---

    def has_vouched(self, now_s: float) -> bool:
        """Return whether a server has vouched for any scheduler lately."""
        return any(self._is_vouched(one, now_s) for one in self._vouched_s)

    def takes(self, scheduler: int, processes: Iterable[int], now_s: float) -> bool:
        """Return whether a scheduler's schedule counts. processes: the processes that it lists."""
        is_vouched = self._is_vouched(scheduler, now_s)
        self._first_s = now_s if self._first_s is None else self._first_s
        if not is_vouched and (self.has_vouched(now_s) or now_s - self._first_s < HOLD_S):
            return False
        if not is_vouched and self._believed not in (0, scheduler) and now_s - self._believed_s <= PATIENCE_S:
            return False
        if is_vouched or self._believed != scheduler:
            self._believed, self._believed_s = scheduler, now_s
        self._named = frozenset(processes)
        return True

    def _is_vouched(self, scheduler: int, now_s: float) -> bool:
        return scheduler in self._vouched_s and now_s - self._vouched_s[scheduler] <= VOUCHED_S
