"""One connection to a websocket server that speaks openpi's protocol: made when needed, made again after a failure."""

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
MAX_TOLD_CHARACTERS = 300
"""Of a server's own words in an error."""


class RemoteLink:
    """Belongs to one event loop; one request at a time."""

    def __init__(self, url: str, token: str, trusted: ssl.SSLContext | None = None) -> None:
        """trusted: of a wss:// server; None: whatever this machine trusts."""
        self.expected: Mapping[str, Any] | None = None
        """What a server of ours must say whenever it connects; None: anything."""
        self._url, self._trusted = url, trusted
        self._headers = {"Authorization": f"Api-Key {token}"} if token else None
        self._packer = wire.packer()
        self._socket: _Socket | None = None
        self._metadata: dict[str, Any] = {}
        self._words: Mapping[str, Any] | None = None
        """Said of the session of this connection."""
        self._backoff_s, self._tries_again_s = FIRST_BACKOFF_S, 0.0

    async def metadata(self) -> dict[str, Any]:
        """Raises: `ModelError`."""
        await self._connected()
        return self._metadata

    async def ask(self, message: Mapping[str, Any], words: Mapping[str, Any] | None) -> dict[str, Any]:
        """The reply. `words` of the session are said when they change. Raises: `ModelError`; its connection is given up then."""
        socket = await self._connected()
        try:
            said = {**message, "session": words} if words is not None and words != self._words else message
            reply = _read(await socket.ask(self._packer.pack(said)))
        except BaseException:  # canceled too: the reply may still come, and must not be taken for the next one's
            self.drop()
            raise
        self._words = words if words is not None else self._words
        return reply

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.end()
        self._socket, self._words = None, None

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
        """Raises: `ModelError`."""
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
        except (OSError, picows.WSError, asyncio.TimeoutError) as error:
            raise ModelError(f"{self._url}: cannot connect: {type(error).__name__}") from error
        assert isinstance(listener, _Socket)
        try:
            self._metadata = _read(await listener.next())
            if self.expected is not None and self._metadata != self.expected:
                raise ModelError(f"{self._url} serves another model than before")
        except BaseException:
            listener.end()
            raise
        return listener


class _Socket(picows.WSListener):  # type: ignore[misc, unused-ignore]
    """What arrives, one message at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._next: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport: picows.WSTransport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_disconnected and not self._next.done()

    async def ask(self, frame: bytes) -> bytes:
        """Raises: `ModelError`."""
        assert self._transport is not None
        self._transport.send(picows.WSMsgType.BINARY, frame)
        return await self.next()

    async def next(self) -> bytes:
        """Raises: `ModelError`."""
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
            self._fail("the server closed the connection")
            transport.disconnect()
        elif kind is picows.WSMsgType.TEXT:
            told = frame.get_payload_as_bytes()[:MAX_TOLD_CHARACTERS].decode(errors="replace")
            self._fail(f"the server refused: {told}")
        elif kind is picows.WSMsgType.BINARY and frame.fin:
            if not self._next.done():
                self._next.set_result(frame.get_payload_as_bytes())
        elif kind in (picows.WSMsgType.BINARY, picows.WSMsgType.CONTINUATION):
            self._fail("the server sent a message in fragments")
            transport.disconnect()

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self._fail("the connection was lost")

    def _fail(self, why: str) -> None:
        if not self._next.done():
            self._next.set_exception(ModelError(why))
            self._next.exception()  # nobody may be waiting for it


def _read(frame: bytes) -> dict[str, Any]:
    """Raises: `ModelError`."""
    try:
        return wire.unpack(frame)
    except BadMessageError as error:
        raise ModelError(f"what the server sent cannot be read: {error}") from error


_QUIET = logging.getLogger("rfm_serving.remote")
_QUIET.setLevel(logging.CRITICAL)  # failures are raised, not logged
