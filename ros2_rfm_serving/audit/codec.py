"""Codec between values of a decision core and plain JSON.

Null, booleans, integers, finite numbers and text represent themselves. A tuple is a JSON list, and a map whose keys are text is a
JSON object. Every other value is an object whose key `~` names its kind:

    {"~": "RequestId", "robot": "push_1", ...}           a value of a class in `values.py`, with exactly its fields
    {"~": "RobotState", "member": "DEAD"}                a member of an enumeration
    {"~": "float32", "rows": [[0.5, 1.0]]}               an array; "shape" where it is empty, also "base64" where it has NaN
    {"~": "bytes", "sha256": "...", "size": 81234}       bytes that stand elsewhere in the recording; short ones have "base64"
    {"~": "list", "items": [...]}                        also "set", "frozenset"; "deque" with "maxlen"
    {"~": "dict", "items": [[key, value], ...]}          a map with a key that is no text
    {"~": "float", "is": "inf"}                          also -inf and nan
    {"~": "scalar", "of": {"~": "float64", "rows": [0.5]}}    a number of numpy, whose arithmetic rounds differently

A recording names no module, attribute or method. Decoding creates only objects of the classes in that table, and calls none of
their methods.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import hashlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from ros2_rfm_serving.audit.values import RECORDED
from ros2_rfm_serving.errors import RfmError

SHORT_BYTES = 64
"""Largest size of bytes that stand in the record itself."""
MAX_ROWS = 1_000_000
"""Largest number of rows of an empty array."""
CONTAINERS: Mapping[str, Callable[[Any], Any]] = {"list": list, "set": set, "frozenset": frozenset}
DTYPES = frozenset(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)) | {
    "float16",
    "float32",
    "float64",
    "bool",
}
FLOAT32 = np.dtype(np.float32)
NAMES: Mapping[type, str] = {kind: name for name, kind in RECORDED.items()}
ITSELF = frozenset({type(None), bool, int, str})
"""Classes whose values represent themselves."""
Blob = Callable[[str], bytes | None]
"""Lookup from SHA-256 (hexadecimal) to the bytes; None if they are missing."""
Encode = Callable[[Any], Any]


def plain(value: object) -> Any:
    """Return a value for JSON, which may contain arrays. Raises: `TypeError` for a value that cannot be recorded."""
    kind = type(value)
    encode = _ENCODERS.get(kind)
    if encode is None:
        encode = _ENCODERS[kind] = _encoder_of(kind)
    return encode(value)


def value(found: Any, blob: Blob = lambda digest: None) -> Any:
    """Return the value that `plain` was given. Bytes that `blob` does not have are empty.

    Raises: `RfmError` for content that `plain` does not write: names and fields that this version does not know, or lacks.
    """
    try:
        return _decoded(found, blob)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError) as error:
        raise RfmError(f"no value of a recording: {type(error).__name__}: {error}") from error


def event(found: Any, known: Mapping[str, type], owners: str, blob: Blob = lambda digest: None) -> Any:
    """Return a recorded event. known: events of its decision core by name. owners: name of such cores, for the error.

    Raises: `RfmError` when this version has no such event, or as `value` does.
    """
    name = found.get("~") if isinstance(found, dict) else found
    if not isinstance(name, str) or name not in known:
        raise RfmError(f"{name!r:.60} is no event of this version's {owners}")
    return value(found, blob)


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def raised(error: BaseException) -> str:
    """Return the recorded form of an error that a decision core raised."""
    return f"{type(error).__name__}: {error}"[:400]


def digest_of(found: Mapping[str, Any]) -> str:
    """Return the SHA-256 of recorded bytes, also of short ones, which stand in the record. Raises: `LookupError` for any other
    value."""
    return str(found["sha256"]) if "sha256" in found else digest(base64.b64decode(found["base64"]))


# --- to JSON ---


def _encoder_of(kind: type) -> Encode:
    """Return the encoder for values of a class. Raises: `TypeError` when they cannot be recorded."""
    known = next((base for base in kind.__mro__ if base in NAMES), None)  # the recorded class that this one extends
    if known is not None:
        return _encoder_of_enum(NAMES[known]) if issubclass(known, enum.Enum) else _encoder_of_fields(known)
    for base, encode in _OTHERS.items():
        if kind is base or (base in _EXTENSIBLE and issubclass(kind, base)):
            return encode
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be recorded")


def _encoder_of_enum(name: str) -> Encode:
    return lambda member: {"~": name, "member": member.name}


def _encoder_of_fields(kind: type) -> Encode:
    name, fields = NAMES[kind], field_names(kind)

    def encode(value: Any) -> dict[str, Any]:
        made: dict[str, Any] = {"~": name}
        for field in fields:
            part = getattr(value, field)
            made[field] = part if type(part) in ITSELF else plain(part)
        return made

    return encode


@functools.cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    fields: tuple[str, ...] = kind._fields
    return fields


def _itself(value: Any) -> Any:
    return value


def number(value: float) -> Any:
    """Return a Python number for JSON, which has no infinity and no NaN."""
    return value if math.isfinite(value) else {"~": "float", "is": repr(value)}


def _tuple(value: tuple[Any, ...]) -> list[Any]:
    return [part if type(part) in ITSELF else plain(part) for part in value]


def _list(value: list[Any]) -> dict[str, Any]:
    return {"~": "list", "items": [plain(part) for part in value]}


def _deque(value: deque[Any]) -> dict[str, Any]:
    return {"~": "deque", "items": [plain(part) for part in value], "maxlen": value.maxlen}


def _map(value: Mapping[Any, Any]) -> dict[str, Any]:
    if all(type(key) is str for key in value) and "~" not in value:
        return {key: plain(part) for key, part in value.items()}
    return {"~": "dict", "items": [[plain(key), plain(part)] for key, part in value.items()]}


def _set(value: set[Any] | frozenset[Any]) -> dict[str, Any]:
    items = sorted((plain(part) for part in value), key=order)  # each process iterates in another order
    return {"~": type(value).__name__, "items": items}


def order(item: Any) -> bytes:
    """Return a key by which values for JSON are sorted."""
    return orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)


def _bytes(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    if len(data) <= SHORT_BYTES:
        return {"~": "bytes", "base64": base64.b64encode(data).decode()}
    return {"~": "bytes", "sha256": digest(bytes(data)), "size": len(data)}


def _scalar(value: np.generic) -> dict[str, Any]:
    return {"~": "scalar", "of": array(np.array([value]))}


def array(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return an array for JSON. Raises: `TypeError` for an array whose items are not numbers."""
    name, is_real, as_it_is = _form(value.dtype)
    if not value.size:
        return {"~": name, "shape": list(value.shape)}
    if is_real and not _is_finite(value):
        return {"~": name, "shape": list(value.shape), "base64": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()}
    return {"~": name, "rows": np.ascontiguousarray(value) if as_it_is else value.tolist()}


def unchecked(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return an array for `packed`, which detects NaN and infinity itself."""
    return {"~": "float32", "rows": value} if value.dtype is FLOAT32 and value.size else array(value)


def packed(body: Callable[[Callable[[np.ndarray[Any, Any]], Any]], Any]) -> bytes:
    """Return an object as JSON, faster than `array` for many small arrays. body: builds it with the given function for arrays.

    Raises: `TypeError` for an array that cannot be recorded.
    """
    try:
        data = orjson.dumps(body(unchecked), option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # an array that is not contiguous
        data = b",null"
    if b"[null" in data or b",null" in data:  # a number that is not finite; null of other values than arrays follows a colon
        return orjson.dumps(body(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return data


@functools.cache
def _form(dtype: np.dtype[Any]) -> tuple[str, bool, bool]:
    """Return the name of a dtype (numpy builds it anew each time), whether its numbers are real, and whether arrays stay arrays:
    orjson writes float32 with the fewest digits that give the same number again."""
    if dtype.name not in DTYPES:
        raise TypeError(f"an array of {dtype.name} cannot be recorded")
    return dtype.name, dtype.kind == "f", dtype.name == "float32"


def _is_finite(values: np.ndarray[Any, Any]) -> bool:
    """Return whether all numbers are finite. A search for a zero byte takes a third of the time of numpy's `all`."""
    return 0 not in np.isfinite(values).tobytes()


_OTHERS: Mapping[type, Encode] = {
    **dict.fromkeys(ITSELF, _itself),
    float: number,
    tuple: _tuple,
    list: _list,
    deque: _deque,
    dict: _map,
    MappingProxyType: _map,
    set: _set,
    frozenset: _set,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    np.ndarray: array,
    np.generic: _scalar,
}
_EXTENSIBLE = frozenset({np.ndarray, np.generic, bytes})
_ENCODERS: dict[type, Encode] = {}
"""Class -> its encoder, cached on first use."""


# --- from JSON ---


def _decoded(found: Any, blob: Blob) -> Any:
    if isinstance(found, list):
        return tuple([_decoded(part, blob) for part in found])
    if not isinstance(found, dict):
        return found
    name = found.get("~")
    if name is None:
        return {key: _decoded(part, blob) for key, part in found.items()}
    if (kind := RECORDED.get(name)) is not None:
        return _made(name, kind, found, blob)
    if name in DTYPES:
        return _array_of(found)
    decode = _DECODERS.get(name)
    if decode is None:
        raise RfmError(f"{name!r:.60} is no value that this version records")
    return decode(found, blob)


def _made(name: str, kind: Any, found: Mapping[str, Any], blob: Blob) -> Any:
    if issubclass(kind, enum.Enum):
        if found["member"] not in kind.__members__:
            raise RfmError(f"{name} has no member {found['member']!r:.60} in this version")
        return kind[found["member"]]
    fields = field_names(kind)
    check_fields(name, fields, found)
    values = {field: _decoded(found[field], blob) for field in fields}
    if issubclass(kind, tuple):
        return kind(**values)
    made = object.__new__(kind)  # the constructor's checks passed before it was recorded
    for field, part in values.items():
        object.__setattr__(made, field, part)
    return made


def check_fields(name: str, fields: tuple[str, ...], found: Mapping[str, Any]) -> None:
    """Check the fields of a recorded value. Raises: `RfmError` when they differ from those of its class in this version."""
    names = found.keys() - {"~"}
    if names != set(fields):
        unknown, missing = sorted(names - set(fields)), sorted(set(fields) - names)
        parts = [f"has {', '.join(unknown)}, which this version does not know"] if unknown else []
        parts += [f"lacks {', '.join(missing)}"] if missing else []
        raise RfmError(f"{name} as it was recorded {' and '.join(parts)}")


def _container_of(found: Mapping[str, Any], blob: Blob) -> Any:
    return CONTAINERS[found["~"]](_decoded(part, blob) for part in found["items"])


def _deque_of(found: Mapping[str, Any], blob: Blob) -> deque[Any]:
    return deque([_decoded(part, blob) for part in found["items"]], found["maxlen"])


def _map_of(found: Mapping[str, Any], blob: Blob) -> dict[Any, Any]:
    return {_decoded(key, blob): _decoded(part, blob) for key, part in found["items"]}


def _float_of(found: Mapping[str, Any], blob: Blob) -> float:
    return float(found["is"])


def _bytes_of(found: Mapping[str, Any], blob: Blob) -> bytes:
    return base64.b64decode(found["base64"]) if "base64" in found else blob(found["sha256"]) or b""


def _scalar_of(found: Mapping[str, Any], blob: Blob) -> Any:
    return _array_of(found["of"])[0]


def _array_of(found: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(found["~"])
    if "rows" in found:
        return np.asarray(found["rows"], dtype)
    if "base64" in found:
        return np.frombuffer(base64.b64decode(found["base64"]), dtype).reshape(found["shape"]).copy()
    if math.prod(found["shape"]):
        raise ValueError("an array without its numbers")
    if max(found["shape"], default=0) > MAX_ROWS:
        raise ValueError(f"an empty array with more than {MAX_ROWS} rows")
    return np.zeros(found["shape"], dtype)


_DECODERS: Mapping[str, Callable[[Mapping[str, Any], Blob], Any]] = {
    **dict.fromkeys(CONTAINERS, _container_of),
    "deque": _deque_of,
    "dict": _map_of,
    "float": _float_of,
    "bytes": _bytes_of,
    "scalar": _scalar_of,
}
