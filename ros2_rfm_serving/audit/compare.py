"""Where two things that were recorded first differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

NOTHING = "(nothing)"
"""What stands for a key or an element that one side lacks."""


class Difference(NamedTuple):
    field: str
    """A path into the record, such as `why.chunk.sequence`."""
    recorded: Any
    replayed: Any


def first_difference(recorded: Any, replayed: Any) -> Difference | None:
    """None: they are the same. Of objects that codec.py numbers their content counts, not which number they have, nor whether two
    places share one that cannot change."""
    if recorded == replayed:  # the rule, and quick
        return None
    found = _Comparison(recorded, replayed)
    return next(found.differences("", recorded, replayed), None)


class _Comparison:
    def __init__(self, recorded: Any, replayed: Any) -> None:
        self._sides = dict(_numbered(recorded)), dict(_numbered(replayed))
        self._seen: set[tuple[int, int]] = set()
        """Pairs of numbered objects that were compared, or are."""

    def differences(self, path: str, one: Any, other: Any) -> Iterator[Difference]:
        one, other = _resolved(one, self._sides[0]), _resolved(other, self._sides[1])
        if isinstance(one, dict) and isinstance(other, dict):
            yield from self._maps(path, one, other)
        elif isinstance(one, list) and isinstance(other, list):
            for index in range(max(len(one), len(other))):
                left, right = (side[index] if index < len(side) else NOTHING for side in (one, other))
                yield from self.differences(f"{path}[{index}]", left, right)
        elif one != other or type(one) is not type(other):
            yield Difference(path or "value", one, other)

    def _maps(self, path: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
        pair = one.get("@", -1), other.get("@", -1)
        if min(pair) >= 0:
            if pair in self._seen:
                return
            self._seen.add(pair)
        for key in {**one, **other}:
            if key != "@":
                yield from self.differences(f"{path}.{key}".lstrip("."), one.get(key, NOTHING), other.get(key, NOTHING))


def _numbered(value: Any) -> Iterator[tuple[int, Any]]:
    """Every object with a number; iteratively, as a whole brain is deep."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if "@" in one and one.get("~") != "@":
                yield one["@"], one
            todo += one.values()
        elif isinstance(one, list):
            todo += one


def _resolved(value: Any, numbered: dict[int, Any]) -> Any:
    return numbered.get(value["@"], value) if isinstance(value, dict) and value.get("~") == "@" else value
