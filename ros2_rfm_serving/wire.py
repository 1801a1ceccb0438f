"""Messages in msgpack, for clients without ROS: arrays as openpi's clients pack them, contracts and sessions as maps.

Pickle is never used, and every limit is checked before an object is built: the receiver checks the size of a frame, and this module
all else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from pydantic import TypeAdapter

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.types import MAX_ENCODED_BYTES, ExecutionReport, ModelContract, SessionRequest

MAX_FRAME_BYTES = 64 << 20
"""Limit for any frame."""
MAX_CONTAINERS = 128
"""Limit for the maps and lists of one frame, and so for its nesting."""
MAX_KEYS = 64
"""Limit for the keys of one map."""
MAX_VALUES = 4096
"""Limit for the values of one list."""
DTYPES = {name: np.dtype(name) for name in ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")}
"""Data types that an array may have. Types with objects, records or another machine's byte order are excluded."""

OURS = "rfm_serving"
"""Value of `server` in the metadata of this project's servers."""
RESET_REPLY = {"reset": True}
"""Reply of this project's servers to a message that only begins an episode."""
CONTRACT = TypeAdapter(ModelContract)
SESSION = TypeAdapter(SessionRequest)
REPORT = TypeAdapter(ExecutionReport)


def max_frame_bytes(num_cameras: int) -> int:
    """Return the limit for an observation: the images of all cameras, and 1 MB for all else."""
    return min(num_cameras * MAX_ENCODED_BYTES + (1 << 20), MAX_FRAME_BYTES)


def packer() -> msgpack.Packer:
    """Return a packer. Its `pack` belongs to one thread."""
    return msgpack.Packer(default=_packed, buf_size=1 << 16)


def unpack(frame: bytes | memoryview) -> dict[str, Any]:
    """Return the map of a frame; its arrays are read-only views of the data that msgpack read.

    Raises: `BadMessageError`.
    """
    message = unpack_value(frame)
    if not isinstance(message, dict):
        raise BadMessageError("bad_frame", "a frame must be one msgpack map")
    return message


def unpack_value(frame: bytes | memoryview) -> Any:
    """Return the value of a frame, which may be of any type: some servers answer with a bare array.

    Raises: `BadMessageError`.
    """
    building = _Building()
    try:
        value = msgpack.unpackb(
            frame,
            object_hook=building.map,
            list_hook=building.list,
            max_map_len=MAX_KEYS,
            max_array_len=MAX_VALUES,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise BadMessageError("bad_frame", "not a msgpack map within the limits") from error
    return value


class _Building:
    """Callbacks that msgpack calls for every map and list of a frame, innermost first."""

    __slots__ = ("_containers",)

    def __init__(self) -> None:
        self._containers = 0

    def map(self, found: dict[Any, Any]) -> Any:
        self._count()
        if b"__ndarray__" in found:
            return _array(found)
        return _scalar(found) if b"__npgeneric__" in found else found

    def list(self, found: list[Any]) -> list[Any]:
        self._count()
        return found

    def _count(self) -> None:
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise BadMessageError("bad_frame", f"more than {MAX_CONTAINERS} maps and lists")


def _array(found: Mapping[Any, Any]) -> np.ndarray[Any, Any]:
    name, shape, data = found.get(b"dtype"), found.get(b"shape"), found.get(b"data")
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise BadMessageError("bad_dtype", f"an array's dtype must be one of {', '.join(DTYPES)}")
    if not isinstance(data, bytes) or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise BadMessageError("bad_array", "an array has bytes in `data` and whole numbers in `shape`")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise BadMessageError("bad_array", f"{len(data)} bytes of {name} do not fill the array's shape")
    try:
        return np.ndarray(shape, dtype, data)
    except (ValueError, OverflowError) as error:  # too many dimensions, or an impossible one beside a zero
        raise BadMessageError("bad_array", "an array's shape is impossible") from error


def _scalar(found: Mapping[Any, Any]) -> int | float:
    value = found.get(b"data")
    if not isinstance(value, (int, float)):
        raise BadMessageError("bad_array", "a scalar must be a number")
    return value


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.str in DTYPES:
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} cannot be packed")
