"""Rule that decides which of two processes owns a name."""

from __future__ import annotations

import enum
import math

CLAIM_S = 1.0
"""Time that a claim waits for messages of a process that holds or claims the same name."""
CLAIM_LATE_S = 3.0
"""Time to wait for a message of a process that is known to exist."""
SETTLED_AFTER_S = 2.0
INTRUDER_REPORT_S = 30.0
"""Time for which a process that claimed the name is reported to operators."""
LAST_STAGE = 255
"""Highest stage that a claim can have: held for some eight minutes."""
HELD, DISPUTED, LOST = "held", "disputed", "lost"
"""Value of `claim` in the diagnosis of a name: no other process claims it; another process was refused it recently; another process
has it."""


class ClaimStage(enum.IntEnum):
    """Stage of a claim, as in NameClaim.msg."""

    CLAIMED = 0
    """The process listens for other claims, and offers nothing yet."""
    HELD = 1
    SETTLED = 2
    """The name was held for `SETTLED_AFTER_S`; the stage rises by one for each further such time."""


class NameClaim:
    """One process' claim to a name. Every process claims a name for `CLAIM_S`, then holds it unless it has to give it up.

    Of two claims the one with the lower (stage, process) gives up on its own: it needs no answer, and of any number of claims one
    remains. When two processes hold a name because they could not receive each other's messages, the later one gives up. `process`
    is drawn at random.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.is_lost = False
        self.intruders: set[int] = set()
        """Processes that have claimed the name since it is held."""
        self._held_s = math.inf
        self._intruder_s = -math.inf

    @property
    def is_held(self) -> bool:
        return self._held_s < math.inf

    def acquire(self, now_s: float) -> None:
        """Hold the name, since no other process has objected."""
        self._held_s = now_s

    def stage(self, now_s: float) -> int:
        """Return the stage. It only rises, so a message that arrives late understates the stage of its sender, and never overstates
        it."""
        if not self.is_held:
            return ClaimStage.CLAIMED
        return min(ClaimStage.HELD + int((now_s - self._held_s) / SETTLED_AFTER_S), LAST_STAGE)

    def on_claim(self, process: int, stage: int, now_s: float) -> None:
        """Process a claim that was received from another process, or from this one."""
        if process == self.process or self.is_lost:
            return
        if (stage, process) > (self.stage(now_s), self.process):
            self.is_lost = True
        elif self.is_held:
            self.intruders.add(process)
            self._intruder_s = now_s

    def is_disputed(self, now_s: float) -> bool:
        """Return whether another process claimed the name recently."""
        return now_s - self._intruder_s <= INTRUDER_REPORT_S
