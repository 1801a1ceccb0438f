"""How much a solver may do: work, not time, so that the same input gives the same plan on any machine, however busy it is.

A unit is what takes one core about a second. The weights of what is counted (see `rates`, `programs`) come from such measurements;
that they are rough costs nothing but a solver that takes a little longer or shorter.
"""

from __future__ import annotations

import math

PROGRAMS_WORK = 0.03
"""Per server: what the bound and the mixes of whole servers may take before they count as the search's."""


class Budget:
    def __init__(self, work: float = math.inf) -> None:
        self.work, self.spent, self._aside = work, 0.0, 0.0

    def spend(self, work: float) -> None:
        self.spent += work

    def set_aside(self, most: float) -> None:
        """What was spent until now is work done, but not of what is allowed, up to so much in all: what was harder than that leaves
        less for the rest."""
        aside = min(self.spent, max(0.0, most - self._aside))
        self._aside, self.spent = self._aside + aside, self.spent - aside

    @property
    def total(self) -> float:
        """Work done."""
        return self._aside + self.spent

    def expired(self, share: float = 1.0) -> bool:
        """Whether this share of it is used up."""
        return self.spent > share * self.work
