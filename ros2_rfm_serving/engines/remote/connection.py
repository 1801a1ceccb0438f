"""Connection to a websocket server that speaks openpi's protocol: opened when it is needed, and again after a failure."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any

import picows

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import BadMessageError, ModelError

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 5.0
PING_S = 20.0
MAX_QUOTED_CHARACTERS = 300
"""Number of characters of the server's text that an error shows."""


class LostConnectionError(ModelError):
    """Error of a connection that ended while a message of the server was due."""

    was_new = True
    """True if the connection was opened for this request, so that a retry would not help."""


class RemoteConnection:
    """Connection to a server. It belongs to one event loop and carries one request at a time."""

    def __init__(self, url: str, authorization: str, trusted: ssl.SSLContext | None = None) -> None:
        """Create the link, without a connection. authorization: value of that header, empty for none.
        trusted: for a wss:// server; None for the authorities that this machine trusts."""
        self.expected: Mapping[str, Any] | None = None
        """Metadata that a server of ours must send at each connection; None for any."""
        self._url, self._trusted = url, trusted
        self._headers = {"Authorization": authorization} if authorization else None
        self._packer = wire.packer()
        self._socket: _Socket | None = None
        self._metadata: dict[str, Any] = {}
        self.said: Any = None
        """Dialect's note of the information that was sent over this connection and still holds; None on a new connection."""
        self._backoff_s, self._tries_again_s = FIRST_BACKOFF_S, 0.0

    async def metadata(self) -> dict[str, Any]:
        """Return the server's metadata, connecting if necessary. Raises: `ModelError`."""
        await self._connected()
        return self._metadata

    async def exchange(self, message: Mapping[str, Any]) -> Any:
        """Send a message and return the reply. Raises: `ModelError`; the connection is closed then."""
        before = self._socket
        socket = await self._connected()
        try:
            return _read(await socket.ask(self._packer.pack(message)))
        except LostConnectionError as error:
            error.was_new = socket is not before
            self.drop()
            raise
        except BaseException:  # also if cancelled: the reply may still come, and must not be taken for the next one
            self.drop()
            raise

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.end()
        self._socket, self.said = None, None

    async def _connected(self) -> _Socket:
        if self._socket is not None and self._socket.is_open:
            return self._socket
        self.drop()
        loop = asyncio.get_running_loop()
        if loop.time() < self._tries_again_s:
            raise ModelError(f"{self._url}: not connected; tried again soon")
        self._tries_again_s = loop.time() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)
        self._socket = await self._connect()
        self._backoff_s, self._tries_again_s = FIRST_BACKOFF_S, 0.0
        return self._socket

    async def _connect(self) -> _Socket:
        """Open a connection. Raises: `ModelError`."""
        try:
            _, listener = await picows.ws_connect(
                _Socket,
                self._url,
                ssl_context=self._trusted,
                logger_name=_QUIET,
                extra_headers=self._headers,
                max_frame_size=wire.MAX_FRAME_BYTES,
                enable_auto_ping=True,
                auto_ping_idle_timeout=PING_S,
                auto_ping_reply_timeout=PING_S,
            )
        except picows.WSInvalidStatusError as error:
            raise ModelError(f"{self._url}: cannot connect: {_status(error)}") from None  # the error might hold data that was sent
        except (OSError, picows.WSError, asyncio.TimeoutError) as error:
            raise ModelError(f"{self._url}: cannot connect: {type(error).__name__}") from error
        assert isinstance(listener, _Socket)
        try:
            metadata = _read(await listener.next())
            if not isinstance(metadata, dict):
                raise ModelError(f"{self._url}: what it says first is no map: is it a policy server?")
            self._metadata = metadata
            if self.expected is not None and self._packer.pack(self._metadata) != self._packer.pack(self.expected):  # arrays too
                raise ModelError(f"{self._url} serves another model than before")
        except BaseException:
            listener.end()
            raise
        return listener


class _Socket(picows.WSListener):  # type: ignore[misc, unused-ignore]
    """Listener that hands over one message at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._next: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport: picows.WSTransport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_disconnected and not self._next.done()

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame and return the next message. Raises: `ModelError`."""
        assert self._transport is not None
        self._transport.send(picows.WSMsgType.BINARY, frame)
        return await self.next()

    async def next(self) -> bytes:
        """Return the next message. Raises: `ModelError`."""
        try:
            return await self._next
        finally:
            self._next = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.send_close(picows.WSCloseCode.OK)
            self._transport.disconnect()

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        kind = frame.msg_type
        if kind is picows.WSMsgType.CLOSE:
            self._lose("the server closed the connection")
            transport.disconnect()
        elif kind is picows.WSMsgType.TEXT:
            told = frame.get_payload_as_bytes()[:MAX_QUOTED_CHARACTERS].decode(errors="replace")
            self._fail(f"the server refused: {told}")
        elif kind is picows.WSMsgType.BINARY and frame.fin:
            if not self._next.done():
                self._next.set_result(frame.get_payload_as_bytes())
        elif kind in (picows.WSMsgType.BINARY, picows.WSMsgType.CONTINUATION):
            self._fail("the server sent a message in fragments")
            transport.disconnect()

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self._lose("the connection was lost")

    def _fail(self, why: str) -> None:
        self._set(ModelError(why))

    def _lose(self, why: str) -> None:
        self._set(LostConnectionError(why))

    def _set(self, error: ModelError) -> None:
        if not self._next.done():
            self._next.set_exception(error)
            self._next.exception()  # there may be no caller that waits for it


def _status(error: picows.WSInvalidStatusError) -> str:
    status = error.response.status if error.response is not None else 0
    fixes = {401: "it wants another token (options.token_env, options.token_file)", 404: "is options.url's path right?"}
    fixes[403] = f"{fixes[401]}, or {fixes[404]}"
    return f"status {int(status)}: {fixes[status]}" if status in fixes else f"status {int(status)}"


def _read(frame: bytes) -> Any:
    """Return the value in a frame. Raises: `ModelError` if it cannot be read."""
    try:
        return wire.unpack_value(frame)
    except BadMessageError as error:
        raise ModelError(f"what the server sent cannot be read: {error}") from error


_QUIET = logging.getLogger("rfm_serving.remote")
_QUIET.setLevel(logging.CRITICAL)  # failures are raised, not logged
