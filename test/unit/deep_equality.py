"""Where two objects differ, in any of their attributes, by a walk that knows no names of attributes."""

from __future__ import annotations

import dataclasses
import enum
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Caches = Mapping[tuple[str, str], str]
"""(class, attribute) -> why it may differ between two objects that decide alike."""


def difference(first: Any, second: Any, caches: Caches | None = None) -> str:
    """Return the first place in which two objects differ, with both values; empty: they are equal.

    Of mutable objects the sharing counts, too: what is one object in `first` is one object in `second`, and the other way round.
    The two may be of different classes themselves.
    """
    return next(_Walk(caches or {}).differences("", first, second, is_root=True), "")


class _Walk:
    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._pairs: tuple[dict[int, int], dict[int, int]] = {}, {}
        self._alive: list[object] = []
        """An id means an object only as long as that lives."""

    def differences(self, path: str, first: Any, second: Any, *, is_root: bool = False) -> Iterator[str]:
        if type(first) is not type(second) and not is_root:
            yield f"{path}: {first!r:.60} is a {type(first).__name__}, {second!r:.60} is a {type(second).__name__}"
        elif isinstance(first, np.ndarray):
            same = first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
            yield from () if same else (f"{path}: {first} and {second}",)
        elif isinstance(first, random.Random):
            yield from () if first.getstate() == second.getstate() else (f"{path}: generators at different places",)
        elif isinstance(first, (type, types.FunctionType, enum.Enum)):
            yield from () if first is second else (f"{path}: {first} and {second}",)
        elif first is None or isinstance(first, (bool, int, float, str, bytes, np.generic)):
            yield from () if repr(first) == repr(second) else (f"{path}: {first!r} and {second!r}",)
        elif not _is_value(first) and not isinstance(first, types.MethodType) and self._is_known(first, second):
            yield from () if self._pairs[0].get(id(first)) == id(second) else (f"{path}: shared in one of the two alone",)
        else:
            yield from self._within(path, first, second)

    def _is_known(self, first: object, second: object) -> bool:
        if id(first) in self._pairs[0] or id(second) in self._pairs[1]:
            return True
        self._pairs[0][id(first)], self._pairs[1][id(second)] = id(second), id(first)
        self._alive += [first, second]
        return False

    def _within(self, path: str, first: Any, second: Any) -> Iterator[str]:
        if isinstance(first, (set, frozenset)):
            yield from () if first == second else (f"{path}: {first} and {second}",)
        elif isinstance(first, (tuple, list, deque)):
            if len(first) != len(second) or getattr(first, "maxlen", None) != getattr(second, "maxlen", None):
                yield f"{path}: lengths {len(first)} and {len(second)}"
            for number, (one, other) in enumerate(zip(first, second, strict=False)):
                yield from self.differences(f"{path}[{number}]", one, other)
        elif isinstance(first, types.MethodType):
            yield from () if first.__func__ is second.__func__ else (f"{path}: {first} and {second}",)
            yield from self.differences(f"{path}.__self__", first.__self__, second.__self__)
        elif isinstance(first, Mapping) and any(type(key).__eq__ is object.__eq__ for key in first):
            yield from self.differences(f"{path}.items()", tuple(first.items()), tuple(second.items()))
        elif isinstance(first, Mapping):
            if list(first) != list(second):
                yield f"{path}: keys {list(first)} and {list(second)}"
            for key in first.keys() & second.keys():
                yield from self.differences(f"{path}[{key!r}]", first[key], second[key])
        else:
            yield from self._attributes(path, first, second)

    def _attributes(self, path: str, first: Any, second: Any) -> Iterator[str]:
        ours, theirs = attributes(first), attributes(second)
        if ours.keys() != theirs.keys():
            yield f"{path}: attributes {sorted(ours.keys() ^ theirs.keys())} in one of the two alone"
        for name in ours.keys() & theirs.keys():
            if (type(first).__name__, name) not in self._caches:
                yield from self.differences(f"{path}.{name}", ours[name], theirs[name])


def attributes(value: Any) -> dict[str, Any]:
    """Return all attributes of an object by name, those in slots included."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    assert found or hasattr(value, "__dict__") or _is_value(value), f"{value!r} hides its attributes"
    return found


def _is_value(value: Any) -> bool:
    """Return whether nothing changes it, so that it does not matter who shares it."""
    if isinstance(value, (tuple, frozenset)):
        return True
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and (params.frozen or params.unsafe_hash) and dataclasses.is_dataclass(value)
