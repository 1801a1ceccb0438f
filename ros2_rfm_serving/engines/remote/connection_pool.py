"""Connection pool with affinity: a server that identifies a robot by its connection continues to recognise it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)


class ConnectionPool(Generic[Place]):
    """Assignment of connections (places) to robots' components (holders). Not thread-safe."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._order = list(places)
        """Places, the least recently used first."""
        self._holders: dict[Place, Hashable] = {}
        self._busy: set[Place] = set()

    def acquire(self, holders: Sequence[Hashable]) -> list[Place]:
        """Assign one place to each holder, in their order, until `release`.

        A holder gets its own place; a new holder gets the least recently used one, empty places first. There may be at most as many
        holders as unused places. A holder that occurs twice, or whose place is in use, gets two places.
        """
        theirs = {holder: place for place, holder in self._holders.items() if place not in self._busy}
        taken: dict[int, Place] = {}
        for i, holder in enumerate(holders):
            if (own := theirs.pop(holder, None)) is not None:
                taken[i] = own
        used = set(taken.values())
        left = sorted((place for place in self._order if place not in used | self._busy), key=lambda place: place in self._holders)
        for i in range(len(holders)):
            if i not in taken:
                taken[i] = left.pop(0)
        for i, place in taken.items():
            self._holders[place] = holders[i]
            self._order.remove(place)
            self._order.append(place)
        self._busy.update(taken.values())
        return [taken[i] for i in range(len(holders))]

    def release(self, places: Iterable[Place]) -> None:
        self._busy.difference_update(places)

    def remove(self, holder: Hashable) -> None:
        """Remove a holder that does not come back."""
        self._holders = {place: who for place, who in self._holders.items() if who != holder}
