"""A websocket door with a server behind it, and no ROS graph."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import simplejpeg
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.ros.server.engine_thread import EngineThread
from ros2_rfm_serving.ros.server.websocket_door import WebsocketDoor
from ros2_rfm_serving.ros.server.websocket_entry import DoorConfig
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    EngineReply,
    InferenceRequest,
    RequestId,
)
from test.waiting import eventually

JPEG = simplejpeg.encode_jpeg(np.zeros((48, 64, 3), np.uint8))
TOKEN = "correct horse"
SPOILT = 666.0
"""State whose answer is NaN"""


class Echo(EmulatedEngine):
    """Every action of a chunk is the first value of the state; remembers what it was asked, and waits for `go`."""

    def __init__(self) -> None:
        spec = EmulatedSpec(model="echo", action_names=("a", "b"), cameras=("front",), state_size=2, chunk_length=4)
        super().__init__(spec, lambda size: 0.0, lambda seconds: None)
        self.asked: list[InferenceRequest] = []
        self.go = threading.Event()
        self.go.set()

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        assert self.go.wait(30)
        self.asked += requests
        rows = [np.full((4, 2), np.nan if request.state[0] == SPOILT else request.state[0], np.float32) for request in requests]
        return [EngineReply(chunk_model=row + 1, chunk_robot=row) for row in rows]


class Rig:
    """A door with a server behind it, and no ROS graph."""

    def __init__(self, **config: Any) -> None:
        self.engine = Echo()
        self.server = ModelServer(ServerConfig(name="s", batch_size=8), self.engine)
        self.logged: list[str] = []
        self.serves = True
        self.thread = EngineThread(self.server, self._publish, self.logged.append)
        self.left: list[Any] = []
        serving = lambda: (self.server, self.thread.wake) if self.serves else None  # noqa: E731
        self.door = WebsocketDoor(DoorConfig(port=0, **config), serving, self.logged.append)

    def _publish(self, replies: list[Any], failed: list[RequestId]) -> None:
        self.left += self.door.take(replies)
        self.door.fail(failed)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.door.port}"

    def client(self, token: str | None = None) -> WebsocketClientPolicy:
        return WebsocketClientPolicy("127.0.0.1", self.door.port, api_key=token)

    def refused(self, kind: str, count: int = 1) -> bool:
        return bool(eventually(lambda: self.server.refused[kind] == count))

    def stop(self) -> None:
        self.engine.go.set()
        self.thread.stop()
        self.thread.thread.join(30.0)
        self.door.stop()
        assert not self.logged, self.logged


@contextlib.contextmanager
def running(**config: Any) -> Iterator[Rig]:
    made = Rig(**config)
    try:
        yield made
    finally:
        made.stop()


def observation(value: float = 0.0) -> dict[str, Any]:
    return {"observation/state": np.full(2, value), "observation/images/front": JPEG, "prompt": "pick"}
