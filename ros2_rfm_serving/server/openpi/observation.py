"""Parts of an observation as openpi's clients send it. The functions raise `BadMessageError` and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, fields
from operator import itemgetter
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import BadMessageError, ContractError
from ros2_rfm_serving.types import (
    MONITOR,
    NO_ROWS,
    SYSTEM1,
    SYSTEM2,
    Array,
    Conditioning,
    EncodedImage,
    ExecutionReport,
    ModelContract,
    OutputKind,
    SessionRequest,
)

COMPONENTS = {OutputKind.ACTION_CHUNK: SYSTEM1, OutputKind.JUDGEMENT: MONITOR, OutputKind.PLAN: SYSTEM2}
"""Component of a client that names none."""
EXTRAS = (
    "prompt",
    "inference_delay",
    "prev_chunk_left_over",
    "prev_chunk_left_over_robot",
    "execution_report",
    "session",
    "episode",
    "reset",
)
"""Top-level keys that are not part of the observation itself."""
MAX_DEPTH = 4
MAX_KEY_CHARACTERS = 200
NO_REPORT = ExecutionReport()


class OpenpiObservation:
    """States and images of a message, undecoded, sorted by the meaning of their keys (see `OpenpiClient` for `names`)."""

    def __init__(self, contract: ModelContract, names: Mapping[str, str]) -> None:
        self.states: list[Any] = []
        self.images: dict[str, Any] = {}
        self.unknown: list[str] = []
        self._contract, self._names = contract, names
        self._joined = [path for path, name in names.items() if name == "state"]

    def read(self, message: Mapping[Any, Any]) -> OpenpiObservation:
        """Read another message into this object and return it."""
        states: list[tuple[int, Any]] = []
        self.images, self.unknown = {}, []
        cameras = self._contract.cameras
        for path, value in _leaves(message):
            name = self._names[path] if path in self._names else _bare(path)
            if name in cameras:
                self.images[name] = value
            elif name == "state":
                states.append((self._joined.index(path) if path in self._joined else -1, value))
            elif name:
                self.unknown.append(path)
        self.states = [value for _, value in (sorted(states, key=itemgetter(0)) if len(states) > 1 else states)]
        return self

    @property
    def is_empty(self) -> bool:
        return not (self.states or self.images or self.unknown)


def _bare(path: str) -> str:
    """Return a key without openpi's prefixes: a camera's name, or `state`."""
    return path.removeprefix("observation/").removeprefix("images/").removeprefix("video/")


def check_keys(found: OpenpiObservation, contract: ModelContract) -> None:
    """Check that no key is missing or unknown. Raises: `BadMessageError` if one is."""
    if not found.unknown and len(found.images) == len(contract.cameras) and bool(found.states) == (contract.state_size > 0):
        return
    takes = ["state"] * (contract.state_size > 0) + [f"images/{camera}" for camera in contract.cameras]
    has = ["state"] * (len(found.states) > 0) + [f"images/{camera}" for camera in found.images]
    missing = [key for key in takes if key not in has]
    wrong = [f"without {', '.join(missing)}"] if missing else []
    wrong += ["with state"] if "state" in has and "state" not in takes else []
    wrong += [f"with {', '.join(repr(key[:50]) for key in found.unknown[:8])}"] if found.unknown else []
    raise BadMessageError("bad_keys", f"an observation {' and '.join(wrong)}; the model takes {', '.join(['prompt', *takes])}")


def state_of(values: list[Any]) -> Array:
    """Return all states, concatenated: [S]. Raises: `BadMessageError` for a state of more than one dimension."""
    if len(values) == 1 and isinstance(values[0], np.ndarray) and values[0].dtype == np.float32 and values[0].ndim == 1:
        return values[0]
    parts = [_numbers("state", value) for value in values]
    if any(part.ndim > 1 for part in parts):
        raise BadMessageError("bad_shape", f"state has shape {parts[0].shape}; it must have one dimension")
    return np.concatenate([np.atleast_1d(part) for part in parts]) if parts else np.zeros(0, np.float32)


def image_of(camera: str, value: Any) -> EncodedImage:
    """Return an image. Bytes and one-dimensional arrays are JPEGs; pixels are [H, W, 3] or [3, H, W]. Raises: `BadMessageError` for
    others."""
    if isinstance(value, bytes):
        return EncodedImage(camera=camera, format="jpeg", data=value)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or 0 in value.shape:
        raise BadMessageError("bad_image", f"camera {camera!r}: send uint8 pixels, or a JPEG's bytes")
    if value.ndim == 1:
        return EncodedImage(camera=camera, format="jpeg", data=value.data)
    if value.ndim == 3 and value.shape[0] == 3 != value.shape[2]:
        value = value.transpose(1, 2, 0)
    if value.ndim != 3 or value.shape[2] != 3:
        raise BadMessageError("bad_image", f"camera {camera!r}: pixels of shape {value.shape}; send [H, W, 3] or [3, H, W]")
    data = np.ascontiguousarray(value).data.cast("B")
    return EncodedImage(camera=camera, format="rgb8", data=data, height_px=value.shape[0], width_px=value.shape[1])


def prefix_of(message: Mapping[Any, Any], contract: ModelContract, key: str = "prev_chunk_left_over") -> Array:
    """Return a prefix [P, A], at most a chunk long: in model space, or in robot space for the key that ends in `_robot`.
    Raises: `BadMessageError` for another shape."""
    value = message.get(key)
    if value is None:
        return NO_ROWS
    rows = _numbers(key, value)
    if rows.ndim != 2 or len(rows) > contract.chunk_length:
        raise BadMessageError("bad_shape", f"{key} has shape {rows.shape}; at most {contract.chunk_length} rows")
    return rows


def text_of(message: Mapping[Any, Any], key: str) -> str:
    value = message.get(key, "")
    if not isinstance(value, str):
        raise BadMessageError("bad_keys", f"{key} must be text")
    return value


def whole_of(message: Mapping[Any, Any], key: str) -> int:
    value = message.get(key, 0)
    if type(value) is not int:
        raise BadMessageError("bad_keys", f"{key} must be a whole number")
    return value


def episode_of(message: Mapping[Any, Any], before: int | str | None) -> int | str | None:
    value = message.get("episode", before)
    if value is not None and not isinstance(value, (int, str)):
        raise BadMessageError("bad_keys", "episode must be a whole number or text")
    return value


def report_of(message: Mapping[Any, Any]) -> ExecutionReport:
    words = message.get("execution_report")
    if words is None:
        return NO_REPORT
    report: ExecutionReport = _valid(wire.REPORT, words, "execution_report", ExecutionReport)
    if not all(map(math.isfinite, astuple(report))):
        raise BadMessageError("non_finite", "execution_report holds NaN or infinity")
    return report


def session_of(words: Any, contract: ModelContract, shown: Mapping[str, Any], *, prefixed: bool) -> SessionRequest:
    """Return a session request from the client's own terms and its observation; the model's terms fill the rest.
    Raises: `BadMessageError` for invalid terms; `ContractError` for pipelining."""
    able = [c for c in (Conditioning.PREFIX, Conditioning.GUIDED) if c in contract.conditionings]
    defaults = {
        "component": COMPONENTS[contract.output],
        "action_names": contract.action_names,
        "conditioning": (able or [Conditioning.PREFIX])[0] if prefixed else Conditioning.NONE,
    }
    said = {} if words is None else words
    request: SessionRequest = _valid(
        wire.SESSION, {**defaults, **said, **shown} if isinstance(said, dict) else said, "session", SessionRequest
    )
    if not request.component.isidentifier() or len(request.component) > 100:
        raise BadMessageError("bad_session", "session: component: letters, digits and underscores, a letter first")
    if request.pipelining:
        raise ContractError(["pipelining: this door answers one observation after the other; open a pipelined session over ROS"])
    return request


def _leaves(message: Mapping[Any, Any], path: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """Return (key, value) pairs of an observation, the parts of a key joined with `/`. Raises: `BadMessageError` for other keys."""
    if depth == MAX_DEPTH:
        raise BadMessageError("bad_keys", f"maps are nested more than {MAX_DEPTH} deep")
    leaves: list[tuple[str, Any]] = []
    for key, value in message.items():
        if not isinstance(key, str) or len(key) > MAX_KEY_CHARACTERS:
            raise BadMessageError("bad_keys", f"a key must be text of at most {MAX_KEY_CHARACTERS} characters")
        if key in EXTRAS and not path:
            continue
        name = path + key.replace(".", "/") if path or "." in key else key
        if isinstance(value, dict):
            leaves += _leaves(value, f"{name}/", depth + 1)
        else:
            leaves.append((name, value))
    return leaves


def _numbers(name: str, value: Any) -> Array:
    if not _numeric(value):  # numpy would allocate the length of the longest text for each text of a list
        raise BadMessageError("bad_shape", f"{name} must be an array of numbers")
    try:
        numbers = np.asarray(value)
    except ValueError as error:
        raise BadMessageError("bad_shape", f"{name} must be an array of numbers") from error
    if numbers.dtype.kind == "O":
        raise BadMessageError("bad_shape", f"{name} must be an array of numbers")
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused as such
        return numbers.astype(np.float32)


def _numeric(value: Any) -> bool:
    return isinstance(value, (np.ndarray, int, float)) or (isinstance(value, list) and all(map(_numeric, value)))


def _valid(adapter: TypeAdapter[Any], words: Any, name: str, kind: type[Any]) -> Any:
    known = [f.name for f in fields(kind)]
    if not isinstance(words, dict) or any(key not in known for key in words):
        raise BadMessageError("bad_session", f"{name} must be a map with some of {', '.join(known)}")
    try:
        return adapter.validate_python(words)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name, *(str(part)[:50] for part in first["loc"])])
        raise BadMessageError("bad_session", f"{where}: {first['msg']}") from error
