"""State of a decision core as plain values, under names that are independent of attributes, classes and modules.

A class of a core that changes while it decides names the values that a snapshot keeps of it:

    class Pace:
        KEPT: ClassVar = kept("is_due", next_s="_next_s")

        def restored(self) -> None:
            self._hurries = self._next_s < 0.0

That is enough for `state_of` and `restore`, which traverse all parts of an object. A class that stores values derived from the kept
ones sets them in `restored`. A class whose parts must be created before they can be restored has methods of its own:

        def state(self) -> dict[str, Any]:
            return state_of(self, self.KEPT)

        def restore(self, state: Mapping[str, Any]) -> None:
            restore(self, self.KEPT, state)

A dataclass is given its table after its class, by `keep`: a compiled dataclass takes each attribute of its class for a field.

An object is restored in place, after its constructor has created it from the configuration and has connected it with the other
parts of its core. Parts that share an object therefore still share it afterwards. Values that follow from the configuration are not
kept. Arrays are not copied: a core replaces its arrays, and never changes one in place.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from ros2_rfm_serving.errors import RfmError

Kept = Mapping[str, str]
"""Name in a snapshot -> attribute."""


@runtime_checkable
class Stateful(Protocol):
    """Part of a core with methods of its own for its state; all other parts have a table `KEPT`."""

    def state(self) -> dict[str, Any]:
        """Return the values that it keeps by name, for a snapshot."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned.

        Raises: `RfmError` for names that are missing or unknown.
        """


def kept(*names: str, **renamed: str) -> Kept:
    """Return names of a snapshot with their attributes: `names` are attributes of the same name, `renamed` gives others."""
    return MappingProxyType({**{name: name for name in names}, **renamed})


def keep(kind: type, *names: str, **renamed: str) -> None:
    """Give a dataclass its table, as `kept` creates it."""
    _TABLES[kind] = kept(*names, **renamed)


def state_of(owner: object, fields: Kept) -> dict[str, Any]:
    """Return the kept values of an object by name; containers are copied, parts return their own state."""
    return {name: _copy(getattr(owner, attribute)) for name, attribute in fields.items()}


def attribute_names(owner: object) -> set[str]:
    """Return the names of all attributes that an object has, those in slots included."""
    slots = [name for kind in type(owner).__mro__ for name in _slots_of(kind) if hasattr(owner, name)]
    return {*getattr(owner, "__dict__", {}), *slots} - {"__dict__", "__weakref__"}


def restore(owner: object, fields: Kept, state: Mapping[str, Any]) -> None:
    """Set the kept values of an object: parts, generators and mutable containers in place, all others by assignment.

    Raises: `RfmError` when the state has other names than `fields`, or is no state of a part.
    """
    check_names(type(owner).__name__, fields, state)
    for name, attribute in fields.items():
        value, current = state[name], getattr(owner, attribute)
        if _is_part(current):
            _restore_part(current, value)
        elif isinstance(current, dict) and has_parts(current):
            _restore_parts(f"{type(owner).__name__}.{name}", current, value)
        elif isinstance(current, (dict, set)):  # also a Counter and a defaultdict
            current.clear()
            current.update(value)
        elif isinstance(current, (deque, list)):
            current.clear()
            current.extend(value)
        elif isinstance(current, random.Random):
            current.setstate(value)
        else:
            setattr(owner, attribute, value)
    if hasattr(type(owner), "restored"):
        owner.restored()  # type: ignore[attr-defined]


def check_names(owner: str, fields: Kept, state: Mapping[str, Any]) -> None:
    """Check that a snapshot has the names that this version keeps.

    Raises: `RfmError` when it has others.
    """
    if not isinstance(state, Mapping):
        raise RfmError(f"the snapshot of {owner} is {state!r:.40}, and no state")
    if state.keys() != fields.keys():
        unknown, missing = sorted(state.keys() - fields.keys()), sorted(fields.keys() - state.keys())
        parts = [f"has {', '.join(unknown)}, which this version does not know"] if unknown else []
        parts += [f"lacks {', '.join(missing)}"] if missing else []
        raise RfmError(f"the snapshot of {owner} {' and '.join(parts)}")


_TABLES: dict[type, Kept] = {}
"""Tables of dataclasses."""


def _table_of(kind: Any) -> Kept | None:
    """Return which values of objects of this class are kept; None: no table exists."""
    return _TABLES.get(kind) or getattr(kind, "KEPT", None)


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_part(value: object) -> bool:
    kind = type(value)
    return _table_of(kind) is not None or hasattr(kind, "restore")


def has_parts(current: dict[Any, Any]) -> bool:
    """Return whether the values of a dictionary are parts: either the existing ones, or those that its factory creates."""
    factory = current.default_factory if isinstance(current, defaultdict) else None
    if factory is not None:
        return _table_of(factory) is not None
    return bool(current) and _is_part(next(iter(current.values())))


def _restore_part(part: Any, state: Any) -> None:
    if hasattr(type(part), "restore"):
        part.restore(state)
    else:
        table = _table_of(type(part))
        assert table is not None, "it is no part"
        restore(part, table, state)


def _restore_parts(owner: str, parts: dict[Any, Any], states: Any) -> None:
    """Restore each part of a dictionary: either the existing ones, or those that its factory creates."""
    if not isinstance(states, Mapping):
        raise RfmError(f"the snapshot of {owner} is {states!r:.40}, and no state")
    if isinstance(parts, defaultdict):
        parts.clear()
    elif parts.keys() != states.keys():
        raise RfmError(f"the snapshot of {owner} is of {', '.join(map(str, states))}, not of {', '.join(map(str, parts))}")
    for key, state in states.items():
        _restore_part(parts[key], state)


def _copy(value: Any) -> Any:
    kind = type(value)
    copier = _COPIERS.get(kind)
    if copier is None:
        copier = _COPIERS[kind] = _copier_of(kind)
    return copier(value)


def _copier_of(kind: type) -> Callable[[Any], Any]:
    """Return the function that copies an object of this class for a snapshot."""
    if hasattr(kind, "restore"):
        return lambda part: part.state()
    if (table := _table_of(kind)) is not None:
        return lambda part: state_of(part, table)
    if issubclass(kind, Counter):
        return dict
    if issubclass(kind, dict):
        return _copy_of_dict
    if issubclass(kind, set):
        return set
    if issubclass(kind, random.Random):
        return random.Random.getstate
    return list if issubclass(kind, (deque, list)) else _itself


def _copy_of_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key: _copy(part) for key, part in value.items()} if has_parts(value) else dict(value)


def _itself(value: Any) -> Any:
    return value


_COPIERS: dict[type, Callable[[Any], Any]] = {}
"""Class -> result of `_copier_of`, filled on demand."""
