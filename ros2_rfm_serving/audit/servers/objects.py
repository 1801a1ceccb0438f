"""Codec between a server's decision core and plain JSON: objects with their attributes, for chains of format 1.

It will be removed once servers have events and explicit snapshots, as robots have. `codec.py` has the values of format 2; both
write arrays, bytes and numbers alike. The differences are:

    {"~": "types.messages:RequestId", "robot": "push_1", ...}     an object of one of `ROOMS`; an enumeration's member has "member"
    {"~": "list" / "deque" / "set" / "frozenset" / "Counter" / "dict" / "defaultdict", "items": [...]}
    {"~": "method" / "function" / "partial" / "Random", ...}

`whole` preserves shared objects: the first place has "@", a number, every further one is {"~": "@", "@": number}.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import enum
import functools
import importlib
import inspect
import math
import random
import textwrap
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.codec import DTYPES
from ros2_rfm_serving.errors import RfmError

PACKAGE = "ros2_rfm_serving."
ROOMS = ("types", "server", "dispatch", "profiles", "factory", "engines.base")
"""Packages whose classes and functions may be named in a recording."""
CONTAINERS: dict[str, type] = {kind.__name__: kind for kind in (list, deque, set, frozenset)}
MAPS: dict[str, type] = {kind.__name__: kind for kind in (dict, Counter, defaultdict)}
FACTORIES = {"int": int, "float": float, "list": list, "dict": dict}
"""Factories of defaultdicts, beside classes of this package."""


def plain(value: object) -> Any:
    """Return a value for JSON. Raises: `TypeError` for a value that is not part of a core."""
    return _VALUES.plain(value)


def whole(value: object) -> Any:
    """Return a value and its contents, each object once. Raises: `TypeError` for a value that is not part of a core."""
    return _Writing(shared=True).plain(value)


def value(found: Any, blob: Callable[[str], bytes | None] = lambda digest: None) -> Any:
    """Return the value that `plain` or `whole` was given. `blob`: returns bytes by SHA-256 (hexadecimal), or None if they are
    missing; then they are empty.

    Raises: `RfmError` for content that neither function writes.
    """
    try:
        return _Reading(blob).value(found)
    except (LookupError, TypeError, ValueError, AttributeError, ImportError, RecursionError, ArithmeticError) as error:
        raise RfmError(f"no value of a recording: {type(error).__name__}: {error}") from error


class _Writing:
    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._seen: dict[int, tuple[int, object]] = {}
        """id -> number of the object, and the object, which lives as long as its id is in use."""

    def plain(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"~": "float", "is": repr(value)}
        if type(value) is np.ndarray:
            return codec.array(value)
        if type(value) is tuple:
            return [self.plain(one) for one in value]
        if isinstance(value, enum.Enum):
            return {"~": _name(type(value)), "member": value.name}
        if isinstance(value, np.generic):
            return {"~": "scalar", "of": codec.array(np.array([value]))}
        if isinstance(value, (bytes, bytearray, memoryview)):
            return codec.plain(value)
        if isinstance(value, np.ndarray):
            return codec.array(value)
        if type(value) is dict and not self._shared and all(type(key) is str for key in value) and "~" not in value:
            return {key: self.plain(one) for key, one in value.items()}
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if not self._shared:
            return self._written(value)
        if id(value) in self._seen:
            return {"~": "@", "@": self._seen[id(value)][0]}
        number = len(self._seen)
        self._seen[id(value)] = number, value
        return {**self._written(value), "@": number}

    def _written(self, value: Any) -> dict[str, Any]:
        kind: type = type(value)
        if kind.__name__ in CONTAINERS and kind is CONTAINERS[kind.__name__]:
            more = {"maxlen": value.maxlen} if isinstance(value, deque) else {}
            items = [self.plain(one) for one in value]
            unordered = kind in (set, frozenset)  # each process iterates in another order
            return {"~": kind.__name__, "items": sorted(items, key=codec.order) if unordered else items, **more}
        if kind.__name__ in MAPS and kind is MAPS[kind.__name__]:
            more = {"of": _factory(value.default_factory)} if isinstance(value, defaultdict) else {}
            return {"~": kind.__name__, "items": [[self.plain(key), self.plain(one)] for key, one in value.items()], **more}
        if isinstance(value, types.MappingProxyType):
            return {"~": "dict", "items": [[self.plain(key), self.plain(one)] for key, one in value.items()]}
        if kind is random.Random:
            version, (*words, index), gauss = value.getstate()
            return {"~": "Random", "version": version, "words": _packed(words), "index": index, "gauss": gauss}
        if isinstance(value, types.MethodType):
            return {"~": "method", "of": self.plain(value.__self__), "name": value.__name__}
        if isinstance(value, types.FunctionType):
            return {"~": "function", "name": _name(value)}
        if isinstance(value, functools.partial):
            return {
                "~": "partial",
                "of": self.plain(value.func),
                "args": self.plain(value.args),
                "more": self.plain(value.keywords),
            }
        return {"~": _name(kind), **{name: self.plain(one) for name, one in attributes(value).items()}}


_VALUES = _Writing(shared=False)
"""Encoder without memory between values."""


class _Reading:
    def __init__(self, blob: Callable[[str], bytes | None]) -> None:
        self._blob = blob
        self._made: dict[int, Any] = {}

    def value(self, found: Any) -> Any:
        if isinstance(found, list):
            return tuple(self.value(one) for one in found)
        if not isinstance(found, dict):
            return found
        kind = found.get("~")
        if kind is None:
            return {key: self.value(one) for key, one in found.items()}
        if kind == "@":
            return self._made[found["@"]]
        if kind in _KNOWN:
            return getattr(self, f"_{kind.lower()}")(found)
        if kind in CONTAINERS or kind in MAPS:
            return self._container(found)
        if kind in DTYPES:
            return codec.value(found)
        return self._object(found)

    def _float(self, found: Mapping[str, Any]) -> float:
        return float(found["is"])

    def _bytes(self, found: Mapping[str, Any]) -> bytes:
        data: bytes = codec.value(found, self._blob)
        return data

    def _method(self, found: Mapping[str, Any]) -> Any:
        owner, name = self.value(found["of"]), found["name"]
        if not _is_ours(type(owner)) or not isinstance(inspect.getattr_static(type(owner), name), types.FunctionType):
            raise TypeError(f"{name!r} is no method of ours")
        return self._keep(found, getattr(owner, name))

    def _function(self, found: Mapping[str, Any]) -> Any:
        return self._keep(found, _named(found["name"]))

    def _partial(self, found: Mapping[str, Any]) -> Any:
        return self._keep(
            found, functools.partial(self.value(found["of"]), *self.value(found["args"]), **self.value(found["more"]))
        )

    def _random(self, found: Mapping[str, Any]) -> random.Random:
        generator = random.Random()
        words = np.frombuffer(base64.b64decode(found["words"]), "<u4").tolist()
        generator.setstate((found["version"], (*words, found["index"]), found["gauss"]))
        self._keep(found, generator)
        return generator

    def _scalar(self, found: Mapping[str, Any]) -> Any:
        return codec.value(found)

    def _keep(self, found: Mapping[str, Any], made: Any) -> Any:
        if "@" in found:
            self._made[found["@"]] = made
        return made

    def _container(self, found: Mapping[str, Any]) -> Any:
        kind, items = found["~"], found["items"]
        if kind == "frozenset":
            return self._keep(found, frozenset(self.value(one) for one in items))
        made: Any
        if kind == "deque":
            made = deque(maxlen=found["maxlen"])
        elif kind == "defaultdict":
            made = defaultdict(_factory_of(found["of"]))
        else:
            made = (CONTAINERS | MAPS)[kind]()
        self._keep(found, made)
        for one in items:
            if kind in MAPS:
                made[self.value(one[0])] = self.value(one[1])
            elif kind == "set":
                made.add(self.value(one))
            else:
                made.append(self.value(one))
        return made

    def _object(self, found: Mapping[str, Any]) -> Any:
        kind = _named(found["~"])
        if not isinstance(kind, type):
            raise TypeError(f"{found['~']} is no class")
        if issubclass(kind, enum.Enum):
            return kind[found["member"]]
        state = {name: one for name, one in found.items() if name not in ("~", "@")}
        if issubclass(kind, tuple):  # a NamedTuple
            return self._keep(found, kind(**{name: self.value(one) for name, one in state.items()}))
        check_attributes(kind, state.keys())
        made = self._keep(found, object.__new__(kind))
        for name, one in state.items():
            object.__setattr__(made, name, self.value(one))
        return made


_KNOWN = frozenset({"float", "scalar", "bytes", "method", "function", "partial", "Random"})


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object. Raises: `TypeError` for an object that hides them."""
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def check_attributes(kind: type, names: Set[str]) -> None:
    """Check the names of recorded attributes. Raises: `ValueError` when this version's class has others."""
    known = _assigned(kind)
    if names != known:
        has = f"has {', '.join(sorted(names - known))}, which this version has not" if names - known else ""
        lacks = f"lacks {', '.join(sorted(known - names))}" if known - names else ""
        raise ValueError(f"{_name(kind)} as it was recorded {' and '.join(filter(None, (has, lacks)))}")


@functools.cache
def _assigned(kind: type) -> frozenset[str]:
    """Return the names of all attributes that a class's methods assign; classes of this package have no others."""
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    found: set[str] = set()
    for one in kind.__mro__[:-1]:
        nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one))))
        found |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_own(node)}
    return frozenset(found)


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _name(thing: type | types.FunctionType) -> str:
    """Return the recorded name of a class or function. Raises: `TypeError` when its package is not in `ROOMS`."""
    module = thing.__module__.removeprefix(PACKAGE)
    if not thing.__module__.startswith(PACKAGE) or not _in_rooms(module) or "<" in thing.__qualname__:
        raise TypeError(f"{thing.__module__}.{thing.__qualname__} cannot be recorded")
    return f"{module}:{thing.__qualname__}"


def _in_rooms(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in ROOMS)


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    if not _in_rooms(module) or not path:
        raise TypeError(f"{name!r} is nothing that is recorded")
    found: Any = importlib.import_module(PACKAGE + module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, (type, types.FunctionType)) or not _is_ours(found):
        raise TypeError(f"{name!r} is nothing that is recorded")
    return found


def _packed(words: list[int]) -> str:
    return base64.b64encode(np.array(words, "<u4").tobytes()).decode()


def _is_ours(thing: type | types.FunctionType) -> bool:
    return thing.__module__.startswith(PACKAGE)


def _factory(factory: Any) -> Any:
    return next((name for name, kind in FACTORIES.items() if kind is factory), None) or (_name(factory) if factory else None)


def _factory_of(name: str | None) -> Any:
    return FACTORIES.get(name) or _named(name) if name else None
