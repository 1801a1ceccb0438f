"""Who bears a name that two processes want."""

from __future__ import annotations

import enum
import math

CLAIM_S = 1.0
"""For whoever has the name, or wants it too, to be heard of."""
LATE_S = 3.0
"""For the word of somebody who is known to be there."""
SETTLED_AFTER_S = 2.0
INTRUDER_SHOWN_S = 30.0
"""For so long people are told of a process that wanted the name."""
LAST_STAGE = 255
"""As much as a claim can say: held for some eight minutes."""
HELD, DISPUTED, LOST = "held", "disputed", "lost"
"""`claim` in the diagnosis of a name: nobody else wants it; another process was refused it lately; another process has it."""


class ClaimStage(enum.IntEnum):
    """As in NameClaim.msg."""

    CLAIMED = 0
    """It looks around, and offers nothing yet."""
    HELD = 1
    SETTLED = 2
    """Held for `SETTLED_AFTER_S`; from there on one more for each that it is held longer."""


class NameClaim:
    """One process' claim to a name. Everybody claims first, for `CLAIM_S`, and holds it then unless it has to give it up.

    Of two claims the lower (stage, process) gives up, on its own: it needs no answer, and of any number one is left. Of two that
    hold a name and could not hear each other, that is the one that came later. `process` is drawn at random.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.lost = False
        self.intruders: set[int] = set()
        """Processes that wanted the name since it is held."""
        self._held_s = math.inf
        self._intruder_s = -math.inf

    @property
    def is_held(self) -> bool:
        return self._held_s < math.inf

    def hold(self, now_s: float) -> None:
        """Nobody has objected."""
        self._held_s = now_s

    def stage(self, now_s: float) -> int:
        """It only rises, so that a word that comes late says too little of whoever said it, and never too much."""
        if not self.is_held:
            return ClaimStage.CLAIMED
        return min(ClaimStage.HELD + int((now_s - self._held_s) / SETTLED_AFTER_S), LAST_STAGE)

    def hear(self, process: int, stage: int, now_s: float) -> None:
        """Another process' word, or its own."""
        if process == self.process or self.lost:
            return
        if (stage, process) > (self.stage(now_s), self.process):
            self.lost = True
        elif self.is_held:
            self.intruders.add(process)
            self._intruder_s = now_s

    def is_disputed(self, now_s: float) -> bool:
        """Somebody else wanted it lately."""
        return now_s - self._intruder_s <= INTRUDER_SHOWN_S
