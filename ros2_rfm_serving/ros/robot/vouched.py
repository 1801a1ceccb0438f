"""What a robot with a certificate can know of who lives: which process of a server, and which scheduler.

Signatures say who has said something, not when. A session is of now: its server has answered a number that the robot drew. So the
process that opened it lives, what it says of itself is of now, and so is the scheduler that it says it follows. Whom such a
scheduler names lives as well. Before there is any of that, as when a robot starts, servers are asked (`inquiry.py`). Where none
answers, the first one that is heard is believed for a while: no server serves by a schedule, and who waits in vain believes
another.
"""

from __future__ import annotations

from collections.abc import Iterable

VOUCHED_S = 10.0
"""After a server said last that it follows a scheduler."""
HOLD_S = 5.0
"""After the very first schedule, for a server to say who lives: to be found, to be asked, and to say its next status."""
PATIENCE_S = 20.0
"""With a scheduler for which nobody vouches, while another one is heard."""
SILENT_S = 3.0
"""After a server's process was heard last another one may be it."""
UNVOUCHED = "no server says that it follows this schedule's scheduler: it may be a recording"


class Vouched:
    """On one clock, which never goes back."""

    def __init__(self) -> None:
        self._proven: dict[str, int] = {}
        """Server -> process that opened a session."""
        self._named: frozenset[int] = frozenset()
        """Processes of servers: by the schedule that was taken last."""
        self._heard_s: dict[str, float] = {}
        """Server -> when a process of it that lives was heard."""
        self._vouched_s: dict[int, float] = {}
        self._first_s: float | None = None
        """When the first schedule was heard."""
        self._believed, self._believed_s = 0, 0.0
        """A scheduler, and since when, or when somebody vouched for it; 0: none yet."""

    # --- servers ---

    def opened(self, server: str, process: int) -> None:
        """A session, or an answer to a question of ours, with a challenge of that process."""
        self._proven[server] = process

    def lives(self, server: str, process: int, now_s: float) -> bool:
        """Whether this process of the server does; it has said something."""
        lives = process in self._named or process == self._proven.get(server)
        if lives:
            self._heard_s[server] = now_s
        return lives

    def may_live(self, server: str, now_s: float) -> bool:
        """Whether some other process of the server may: none that lives was heard lately."""
        return server not in self._heard_s or now_s - self._heard_s[server] > SILENT_S

    def follows(self, server: str, process: int, scheduler: int, now_s: float) -> bool:
        """It says so. True: nobody has vouched for that scheduler lately."""
        if not scheduler or process != self._proven.get(server):
            return False
        is_new = not self._is_vouched(scheduler, now_s)
        self._vouched_s = {one: at_s for one, at_s in self._vouched_s.items() if now_s - at_s <= VOUCHED_S} | {scheduler: now_s}
        return is_new

    # --- schedulers ---

    def has_vouched(self, now_s: float) -> bool:
        """Somebody has, lately, for some scheduler."""
        return any(self._is_vouched(one, now_s) for one in self._vouched_s)

    def takes(self, scheduler: int, processes: Iterable[int], now_s: float) -> bool:
        """Whether its schedule counts; processes: that it names."""
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
