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


class ClaimStage(enum.IntEnum):
    """As in NameClaim.msg."""

    CLAIMED = 0
    """It looks around, and offers nothing yet."""
    HELD = 1
    SETTLED = 2
    """Held for `SETTLED_AFTER_S`: where two hold a name that could not hear each other, one that
    has only just begun gives it up."""


class NameClaim:
    """One process' claim to a name. Everybody claims first, for `CLAIM_S`, and holds it then unless it has to give it up.

    Of two claims the lower (stage, process) gives up, on its own: it needs no answer, and of any number one is left. `process` is
    drawn at random.
    """

    def __init__(self, process: int) -> None:
        self.process, self.stage = process, ClaimStage.CLAIMED
        self.lost = False
        self.intruders: set[int] = set()
        """Processes that wanted the name since it is held."""
        self._intruder_s = -math.inf

    def hear(self, process: int, stage: int, now_s: float) -> None:
        """Another process' word, or its own."""
        if process == self.process or self.lost:
            return
        stage = min(stage, ClaimStage.SETTLED)  # of a newer wire, or forged
        if (stage, process) > (self.stage, self.process):
            self.lost = True
        elif self.stage is not ClaimStage.CLAIMED:
            self.intruders.add(process)
            self._intruder_s = now_s

    def is_disputed(self, now_s: float) -> bool:
        """Somebody else wanted it lately."""
        return now_s - self._intruder_s <= INTRUDER_SHOWN_S
