"""openpi: its websocket policy server with the sleeping model as its policy, and the client from PyPI."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy

SERVER_FILE = "OPENPI_SERVER_FILE"
"""Variable with the path of openpi's `websocket_policy_server.py`, which is not on PyPI; unset: a server with its loop runs."""


class Policy:
    def __init__(self, infer: Callable[..., Any]) -> None:
        self._infer = infer

    def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
        images = [value for key, value in observation.items() if isinstance(value, bytes)]
        return {"actions": self._infer([observation["observation/state"]], [images])[0]}

    def reset(self) -> None:
        """Do nothing, because the model has no state."""


def serve(infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    threading.Thread(target=_when_listening, args=(port, ready), daemon=True).start()
    if file := os.environ.get(SERVER_FILE):
        spec = importlib.util.spec_from_file_location("websocket_policy_server", file)
        assert spec and spec.loader, file
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.WebsocketPolicyServer(Policy(infer), "127.0.0.1", port).serve_forever()
    else:
        asyncio.run(_serve(Policy(infer), port))


def _when_listening(port: int, ready: Callable[[], None]) -> None:
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    ready()


async def _serve(policy: Policy, port: int) -> None:
    """Serve with inference in the event loop, one request after the other, like openpi's server."""
    import websockets
    from websockets.asyncio.server import serve

    async def handle(connection: Any) -> None:
        packer = msgpack_numpy.Packer()
        await connection.send(packer.pack({}))
        try:
            while True:
                started_s = time.monotonic()
                observation = msgpack_numpy.unpackb(await connection.recv())
                action = policy.infer(observation)
                action["server_timing"] = {"infer_ms": 1e3 * (time.monotonic() - started_s)}
                await connection.send(packer.pack(action))
        except websockets.ConnectionClosed:
            return

    async with serve(handle, "127.0.0.1", port, compression=None, max_size=None) as server:
        await server.serve_forever()


def connect(port: int, images: dict[str, bytes]) -> Callable[[Any], Any]:
    client = WebsocketClientPolicy("127.0.0.1", port)
    observation: dict[str, Any] = {f"observation/{camera}": data for camera, data in images.items()}
    observation["prompt"] = "pick it up"

    def request(state: Any) -> Any:
        return client.infer({**observation, "observation/state": state})["actions"]

    return request
