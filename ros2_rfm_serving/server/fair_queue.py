"""Fair queue of work for several keys: the key with the least attained service is next."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
SPARE = 256
"""Number of remembered keys without an item that triggers a cleanup."""


class FairQueue(Generic[K, T]):
    """Newest item of each key. A key is charged the cost of its items. A key that was away returns with at least the service of the
    one that was served last, so that no key saves up."""

    def __init__(self) -> None:
        self._items: dict[K, T] = {}
        """Items in the order in which their keys arrived."""
        self._had: dict[K, float] = {}
        self._last = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> T | None:
        return self._items.get(key)

    def put(self, key: K, item: T) -> None:
        """Enqueue an item; it replaces an older one of its key and keeps that one's place."""
        if key not in self._items:
            self._had[key] = max(self._had.get(key, 0.0), self._last)
        self._items[key] = item

    def pop(self, key: K) -> T | None:
        return self._items.pop(key, None)

    def pop_next(self) -> tuple[K, T]:
        """Remove and return the item of the key with the least service; the first to arrive wins a tie."""
        key = min(self._items, key=self._had.__getitem__)
        self._last = max(self._last, self._had[key])
        return key, self._items.pop(key)

    def charge(self, key: K, cost: float) -> None:
        self._had[key] = max(self._had.get(key, 0.0), self._last) + cost
        if len(self._had) > len(self._items) + SPARE:
            self._had = {key: had for key, had in self._had.items() if had > self._last or key in self._items}
