"""State of a decision core as plain values, under names that are independent of attributes, classes and modules.

A class of a core that changes while it decides names what a snapshot keeps of it:

    class Pace:
        KEPT: ClassVar = kept("is_due", next_s="_next_s")

        def state(self) -> dict[str, Any]:
            return state_of(self, self.KEPT)

        def restore(self, state: Mapping[str, Any]) -> None:
            restore(self, self.KEPT, state)

An object is restored in place, after its constructor has made it from the configuration and has connected it with the other parts
of its core: parts that share an object share it after that, too. What follows from the configuration is not kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from ros2_rfm_serving.errors import RfmError

Kept = Mapping[str, str]
"""Name in a snapshot -> attribute."""


@runtime_checkable
class Stateful(Protocol):
    """A part of a core that says what it keeps."""

    def state(self) -> dict[str, Any]:
        """Return the values that it keeps by name, for a snapshot."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned. Raises: `RfmError` for names that are missing or unknown."""


def kept(*names: str, **renamed: str) -> Kept:
    """Return names of a snapshot with their attributes: `names` are attributes of the same name, `renamed` gives others."""
    return MappingProxyType({**{name: name for name in names}, **renamed})


def state_of(owner: object, fields: Kept) -> dict[str, Any]:
    """Return the kept values of an object by name; containers are copied, parts return their own state."""
    return {name: _copy(getattr(owner, attribute)) for name, attribute in fields.items()}


def restore(owner: object, fields: Kept, state: Mapping[str, Any]) -> None:
    """Set the kept values of an object: parts and mutable containers in place, all others by assignment.

    Raises: `RfmError` when the state has other names than `fields`.
    """
    check_names(type(owner).__name__, fields, state)
    for name, attribute in fields.items():
        value, current = state[name], getattr(owner, attribute)
        if isinstance(current, Stateful):
            current.restore(value)
        elif isinstance(current, (dict, set)):  # a Counter and a defaultdict, too
            current.clear()
            current.update(value)
        elif isinstance(current, (deque, list)):
            current.clear()
            current.extend(value)
        else:
            setattr(owner, attribute, value)


def check_names(owner: str, fields: Kept, state: Mapping[str, Any]) -> None:
    """Raises: `RfmError` when a snapshot has other names than this version keeps."""
    if state.keys() != fields.keys():
        unknown, missing = sorted(state.keys() - fields.keys()), sorted(fields.keys() - state.keys())
        parts = [f"has {', '.join(unknown)}, which this version does not know"] if unknown else []
        parts += [f"lacks {', '.join(missing)}"] if missing else []
        raise RfmError(f"the snapshot of {owner} {' and '.join(parts)}")


def _copy(value: Any) -> Any:
    if isinstance(value, Stateful):
        return value.state()
    if isinstance(value, Counter):
        return dict(value)
    if isinstance(value, (dict, set)):
        return value.copy()
    return list(value) if isinstance(value, (deque, list)) else value
