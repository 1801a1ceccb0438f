"""Results of searches that one planning call makes again and again, by all that they depend on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST = 8192
"""Results that are kept. When there are more, all are forgotten: a search seldom comes back to what it found long ago."""


class Remembered(Generic[Key, Value]):
    """A bounded cache. Threads may share it: two of them may then compute the same result."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the result for `key`, or None where none is known."""
        return self._values.get(key)

    def add(self, key: Key, value: Value) -> Value:
        """Keep a result, and return it."""
        if len(self._values) >= self._most:
            self._values = {}
        self._values[key] = value
        return value
