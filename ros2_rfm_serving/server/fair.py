"""Work that many share: whoever has had least of it is next."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
SPARE = 256
"""Keys that are remembered without having anything here, before they are looked through."""


class FairQueue(Generic[K, T]):
    """The newest item of each key. A key is charged for what its items have cost; one that was away comes back as if it had had as
    much as the last that was served, so that nobody saves up.
    """

    def __init__(self) -> None:
        self._items: dict[K, T] = {}
        """In the order in which the keys came."""
        self._had: dict[K, float] = {}
        self._last = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> T | None:
        return self._items.get(key)

    def put(self, key: K, item: T) -> None:
        """In place of an older one, at its place in the queue."""
        if key not in self._items:
            self._had[key] = max(self._had.get(key, 0.0), self._last)
        self._items[key] = item

    def pop(self, key: K) -> T | None:
        return self._items.pop(key, None)

    def take(self) -> tuple[K, T]:
        """Of those who have had least, whoever came first."""
        key = min(self._items, key=self._had.__getitem__)
        self._last = max(self._last, self._had[key])
        return key, self._items.pop(key)

    def charge(self, key: K, cost: float) -> None:
        self._had[key] = max(self._had.get(key, 0.0), self._last) + cost
        if len(self._had) > len(self._items) + SPARE:
            self._had = {key: had for key, had in self._had.items() if had > self._last or key in self._items}
