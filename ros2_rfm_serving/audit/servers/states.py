"""Two brains, as `codec.whole` wrote them, beside each other."""

from __future__ import annotations

from typing import Any

VALUES = ("types.", "server.config:", "server.sessions:SessionRules")
"""Classes whose objects never change: whether two places hold one of them or two equal ones is no difference."""


def canonical(whole: Any) -> Any:
    """The same for equal brains, whichever of their values are one object."""
    return _Canonical().of(whole)


class _Canonical:
    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        """By the number in what is read; of others the number that they get here."""
        self._numbers: dict[int, int] = {}

    def of(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self.of(one) for one in found]
        if not isinstance(found, dict):
            return found
        if "@" not in found:
            return {key: self.of(one) for key, one in found.items()}
        number = found["@"]
        if found.get("~") == "@":
            return self._values[number] if number in self._values else {"~": "@", "@": self._numbers.get(number, -1)}
        return self._made(number, {key: one for key, one in found.items() if key != "@"})

    def _made(self, number: int, found: dict[str, Any]) -> Any:
        if str(found.get("~")).startswith(VALUES):
            self._values[number] = made = {key: self.of(one) for key, one in found.items()}
            return made
        self._numbers[number] = here = len(self._numbers)
        return {**{key: self.of(one) for key, one in found.items()}, "@": here}


def differing(recorded: Any, replayed: Any, path: str = "brain") -> tuple[dict[str, Any], dict[str, Any]]:
    """Of two values the first place where they differ."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        pairs = [(f"{path}.{key}", recorded.get(key), replayed.get(key)) for key in {**recorded, **replayed}]
    elif isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        pairs = [(f"{path}[{i}]", one, other) for i, (one, other) in enumerate(zip(recorded, replayed, strict=True))]
    else:
        return {path: recorded}, {path: replayed}
    where, one, other = next(pair for pair in pairs if pair[1] != pair[2])
    return differing(one, other, where)
