"""Conversion of a simulation's time (`/clock`) to the robot's clock."""

from __future__ import annotations

from collections import deque

KEPT, SPACING_S = 512, 0.01
"""Number of instants of `/clock` that are kept, and the least time between them."""
APART_S = 10.0
"""Distance, in the simulation's time, beyond which a stamp is of another clock."""


class SimulatedTime:
    """History of `/clock`. It is used by one thread; times `now_s` never decrease."""

    def __init__(self) -> None:
        self._shown: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """(time of the simulation, when it was first received), both increasing."""

    def receive(self, shown_s: float, now_s: float) -> None:
        """Receive a message of `/clock`. A time that decreases is a reset; one that repeats is a pause."""
        shown = self._shown
        if shown and shown_s < shown[-1][0]:
            shown.clear()
        if shown and shown_s == shown[-1][0]:
            return
        if len(shown) > 1 and now_s - shown[-2][1] < SPACING_S:
            shown.pop()
        shown.append((shown_s, now_s))

    @property
    def pace(self) -> float:
        """Return the seconds of the simulation per second of the robot's clock, over the kept instants; 1 while it is unknown."""
        if len(self._shown) < 2:
            return 1.0
        (begun_s, begun_at_s), (ended_s, ended_at_s) = self._shown[0], self._shown[-1]
        return (ended_s - begun_s) / (ended_at_s - begun_at_s) if ended_at_s > begun_at_s else 1.0

    def offset_s(self, now_s: float) -> float:
        """Return how far the simulation's time is ahead of the robot's clock; NaN: unknown."""
        return self._shown[-1][0] - now_s if self._shown else float("nan")

    def taken_s(self, stamp_s: float, now_s: float) -> float | None:
        """Return when the simulation reached this time, at most `now_s`; None: the stamp seems to be of another clock."""
        shown = self._shown
        if not shown or not shown[0][0] - APART_S < stamp_s < shown[-1][0] + APART_S:
            return None
        if stamp_s > shown[-1][0]:  # the sensor's message overtook that of the clock
            return now_s
        if stamp_s <= shown[0][0]:
            return min(now_s, shown[0][1] - (shown[0][0] - stamp_s) / self.pace)
        return min(now_s, self._between(stamp_s))

    def _between(self, stamp_s: float) -> float:
        """Return the interpolated time, with a search from the newest instant back because readings are new."""
        later = self._shown[-1]
        for earlier in reversed(self._shown):
            if earlier[0] < stamp_s:
                share = (stamp_s - earlier[0]) / (later[0] - earlier[0])
                return earlier[1] + share * (later[1] - earlier[1])
            later = earlier
        return later[1]
