"""How much time a solver may take. The clock is given: without one, time stands still and no solver ever stops early."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds, self._clock = seconds, clock
        self._start_s = clock()
        self.cut_short = False
        """An integer program stopped at a time limit of its own: on another machine it may find more."""

    def expired(self, share: float = 1.0) -> bool:
        """Whether this share of the time is used up."""
        return self.spent_s() > share * self.seconds

    def spent_s(self) -> float:
        return self._clock() - self._start_s
