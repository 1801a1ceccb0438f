"""A fake of vLLM-Omni's robot endpoint, held to its source by `test_vllm_omni.py`: a client sees the same of both (`seen.py`)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from openpi_client import msgpack_numpy
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from .pipeline import ANNOUNCED, actions

PATH = "/v1/realtime/robot/openpi"


class FakeOmni:
    """One server with its connections; `asked`: (session, reset, observation) of all that came."""

    def __init__(self, *, idle_s: float = 30.0, token: str = "", announced: Mapping[str, Any] | None = ANNOUNCED) -> None:
        self.idle_s, self._token, self._announced = idle_s, token, announced
        self.asked: list[tuple[str, bool, dict[str, Any]]] = []
        self.num_connections = self.num_resets = 0
        self.says: Any = None
        """In place of a chunk to a session named "odd", and to every reset; None: what is due"""
        self.loses = 0
        """Requests still to be lost: the connection was closed when they came."""
        self.headers: list[str | None] = []
        self._open: set[ServerConnection] = set()
        self._server = serve(self._serve, "127.0.0.1", 0, process_request=self._knows, compression=None, max_size=None)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}{PATH}"

    def die(self) -> None:
        """As a killed process: no goodbye."""
        for connection in list(self._open):
            connection.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()

    def stop(self) -> None:
        for connection in list(self._open):
            connection.close(1012)
        self._server.shutdown()
        self._thread.join(10)

    def _knows(self, connection: ServerConnection, request: Request) -> Response | None:
        said = request.headers.get("Authorization")
        self.headers.append(said)
        if self._token and said != f"Bearer {self._token}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, '{"error": "Unauthorized"}')
        return None if request.path == PATH else connection.respond(HTTPStatus.FORBIDDEN, "")

    def _serve(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        self.num_connections += 1
        try:
            with contextlib.suppress(ConnectionClosed, OSError):
                self._converse(connection)
        finally:
            self._open.discard(connection)

    def _converse(self, connection: ServerConnection) -> None:
        if self._announced is None:
            said = {"type": "error", "error": "Robot policy not available", "code": "unsupported"}
            connection.send(json.dumps(said, separators=(",", ":")))
            return
        connection.send(msgpack_numpy.packb(dict(self._announced)))
        current, calls = None, 0
        for frame in self._frames(connection):
            try:
                message = msgpack_numpy.unpackb(frame)
            except Exception:
                message = None
            if not isinstance(message, dict):
                connection.send(_error("Invalid request payload"))
                continue
            if message.pop("endpoint", "infer") == "reset":
                current, calls, self.num_resets = None, 0, self.num_resets + 1
                connection.send(msgpack_numpy.packb(self.says or {"status": "reset successful"}))
                continue
            session = str(message.get("session_id") or current or "default")
            current, calls = session, 1 if session != current else calls + 1
            connection.send(self._answered(message, session, calls <= 1))

    def _frames(self, connection: ServerConnection) -> Iterator[bytes]:
        """Binary ones, until nothing comes for too long."""
        while True:
            try:
                frame = connection.recv(timeout=self.idle_s)
            except TimeoutError:
                return
            if self.loses:
                self.loses -= 1
                return
            if isinstance(frame, bytes) and frame:
                yield frame

    def _answered(self, message: dict[str, Any], session: str, reset: bool) -> bytes:
        self.asked.append((session, reset, message))
        if session == "odd" and self.says is not None:
            return bytes(msgpack_numpy.packb(self.says))
        try:
            return bytes(msgpack_numpy.packb(actions(message, session, reset)))
        except Exception:
            return _error("Internal inference error")


def _error(message: str) -> bytes:
    return bytes(msgpack_numpy.packb({"type": "error", "message": message}))
