"""Budget of a solver, counted in work instead of time, so that the same input gives the same plan on any machine.

A unit is about one second of one core. The weights of the counted operations (see `rates`, `programs`) come from measurements; they
are rough, which only makes a solver run a little longer or shorter.
"""

from __future__ import annotations

import math

PROGRAMS_WORK = 0.03
"""Work per server that the bound and the mixes of whole servers may use before they count against the search."""


class Budget:
    def __init__(self, work: float = math.inf) -> None:
        self.work, self.spent, self._aside = work, 0.0, 0.0

    def spend(self, work: float) -> None:
        self.spent += work

    def set_aside(self, most: float) -> None:
        """Exempt the work that is spent so far from the budget, up to `most` in all; work beyond that leaves less for the rest."""
        aside = min(self.spent, max(0.0, most - self._aside))
        self._aside, self.spent = self._aside + aside, self.spent - aside

    @property
    def total(self) -> float:
        """Return the total work done."""
        return self._aside + self.spent

    def expired(self, share: float = 1.0) -> bool:
        """Return whether this share of the budget is used up."""
        return self.spent > share * self.work
