"""What a client sees of a server that speaks vLLM-Omni's dialect, frame by frame, so that two of them can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

NESTED = {
    "video": {"front": np.zeros((1, 1, 8, 8, 3), np.uint8)},
    "state": {"arm": np.full((1, 1, 2), 7, np.float32)},
    "language": {"task": [["pick"]]},
}


def flat(value: float, **changes: Any) -> dict[str, Any]:
    return {"state": np.full(2, value, np.float32), "prompt": "pick", **changes}


FRAMES: dict[str, Any] = {
    "first": flat(1, session_id="a", endpoint="infer"),
    "second": flat(2, session_id="a"),
    "another session": flat(3, session_id="b"),
    "reset": {"endpoint": "reset"},
    "after the reset": flat(4, session_id="b"),
    "a model that fails": flat(5, session_id="b", prompt="fail"),
    "after the failure": flat(6, session_id="b"),
    "no observation": {"endpoint": "infer", "session_id": "b"},
    "no map": [1, 2],
    "no msgpack": b"\xc1\xc1",
    "no session": flat(7),
    "nested": {**NESTED, "session_id": "c"},
    "unknown endpoint": flat(8, endpoint="else", session_id="c"),
}


def seen(url: str) -> dict[str, Any]:
    """By the name of the frame. Ends with silence, which the server must not bear for long."""
    with connect(url, compression=None, max_size=None) as client:
        found = {"connected": _read(client)}
        for name, frame in FRAMES.items():
            client.send(frame if isinstance(frame, bytes) else msgpack_numpy.packb(frame))
            found[name] = _read(client)
        client.send("text is passed over")
        client.send(msgpack_numpy.packb(flat(9)))
        found["after text"] = _read(client)
        found["silence"] = _read(client)
    return found


def seen_at_the_end(url: str, ends: Callable[[], object]) -> Any:
    """While the server ends, be it killed."""
    with connect(url, compression=None, max_size=None) as client:
        _read(client)
        ends()
        return _read(client)


def seen_without_a_policy(url: str) -> list[Any]:
    with connect(url, compression=None, max_size=None) as client:
        return [_read(client), _read(client)]


def _read(client: ClientConnection) -> Any:
    try:
        frame = client.recv(timeout=20)
    except ConnectionClosed as closed:
        return {"closed": closed.rcvd.code if closed.rcvd else None}
    return {"text": frame} if isinstance(frame, str) else _plain(msgpack_numpy.unpackb(frame))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.ravel().tolist()}
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value
