"""How old a reading is: by when it was taken, as its driver says, and not only by when it came.

A driver that repeats its last frame, or whose messages pile up somewhere, is heard as often as a good one. Its stamps tell. They
are compared with one another alone: another machine's clock, or one that is wrong, is as good as ours.
"""

from __future__ import annotations

import math

DRIFT = 1e-3
"""s per s by which two clocks may drift apart; what seems to be less delay than ever becomes the rule that slowly."""


class Freshness:
    """Of one source's stamps, on the robot's clock. A message without a stamp was taken when it came.

    The quickest delivery so far says what lies between the two clocks. A stamp that does not advance is the same reading again. One
    that goes back is an old one, or a clock that was set back: the readings count again once they have gone on from there for as
    long as a reading may be old, for a driver that goes round in a few old frames never does.
    """

    def __init__(self, patience_s: float) -> None:
        """patience_s: how old a reading may be."""
        self._patience_s = patience_s
        self.forget()

    def forget(self) -> None:
        self._newest_s = self._offset_s = self._came_s = math.nan
        self._restart: tuple[float, float] | None = None
        """Where the stamps went back to, and the last of those since."""

    def taken_s(self, stamp_s: float, now_s: float) -> float:
        """When the reading was taken, at most `now_s`. stamp_s: by its sender's clock; 0: none."""
        if stamp_s == 0.0:
            return now_s
        if math.isnan(self._newest_s) or self._has_gone_on(stamp_s):
            self._begin(stamp_s, now_s)
        if stamp_s > self._newest_s:
            self._newest_s, self._restart = stamp_s, None
            self._offset_s = min(self._offset_s + DRIFT * (now_s - self._came_s), now_s - stamp_s)
            self._came_s = now_s
            return stamp_s + self._offset_s
        if stamp_s < self._newest_s and self._restart is None:
            self._restart = (stamp_s, stamp_s)
        return min(now_s, stamp_s + self._offset_s)

    def _begin(self, stamp_s: float, now_s: float) -> None:
        self._newest_s, self._offset_s, self._came_s, self._restart = stamp_s, now_s - stamp_s, now_s, None

    def _has_gone_on(self, stamp_s: float) -> bool:
        """After the stamps went back: forward ever since, and for long enough."""
        if self._restart is None or stamp_s > self._newest_s:
            return False
        first_s, last_s = self._restart
        self._restart = (first_s, stamp_s) if stamp_s >= last_s else (stamp_s, stamp_s)
        return stamp_s - self._restart[0] > self._patience_s
