"""Ray Serve through its HTTP proxy: `peer_ray`'s deployment; a request is the state behind the images, lengths first."""

from __future__ import annotations

import http.client
import itertools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np


def pack(state: Any, images: dict[str, bytes]) -> bytes:
    head = struct.pack("<I", len(images)) + b"".join(struct.pack("<I", len(data)) for data in images.values())
    return head + b"".join(images.values()) + state.tobytes()


def read(body: bytes) -> dict[str, Any]:
    (num_images,) = struct.unpack_from("<I", body)
    sizes = struct.unpack_from(f"<{num_images}I", body, 4)
    ends = np.cumsum((4 + 4 * num_images, *sizes))
    images = [body[begin:end] for begin, end in itertools.pairwise(ends)]
    cameras = {f"camera_{i}": data for i, data in enumerate(images)}
    return {"state": np.frombuffer(body, np.float32, offset=int(ends[-1])), **cameras}


def answer(actions: Any) -> Any:
    from starlette.responses import Response

    return Response(actions.tobytes(), media_type="application/octet-stream")


def serve(infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    import peer_ray

    peer_ray.serve(infer, port, ready)


def connect(port: int, images: dict[str, bytes]) -> Callable[[Any], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def request(state: Any) -> Any:
        connection.request("POST", "/", pack(state, images))
        answered = connection.getresponse()
        body = answered.read()
        if answered.status != 200:
            raise RuntimeError(f"HTTP {answered.status}")
        return np.frombuffer(body, np.float32).reshape(-1, 14)

    return request
