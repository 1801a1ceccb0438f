"""Websocket gateway of a model server for clients of openpi's protocol, which need no ROS and use the same sessions.

Threads: one owns the event loop and all connections, a few decode images; `take` is called on the engine's thread, all else on the
executor's. picows carries the frames, for two thirds of the CPU time that websockets takes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from picows import WSCloseCode, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener, ws_create_server

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.loop_thread import LoopThread
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.websocket_connection import Connection
from ros2_rfm_serving.ros.server.websocket_entry import DoorConfig, Entry
from ros2_rfm_serving.security.doorstep import ACCEPTED_AT_ONCE
from ros2_rfm_serving.security.tls import HANDSHAKE_WITHIN_S
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.openpi import vllm_omni
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.types import Reply, RequestId

PREFIX = "ws-"
"""Prefix of the robot names of connections; no robot on the graph can have a hyphen in its name."""
TEND_PERIOD_S = 1.0
LATE_S = 5.0
"""Delay of the event loop that is normal on a busy machine."""
PING_S = 20.0
WITHIN_S = 10.0
"""Time limit for starting to listen, for closing, or for failing."""
PARTS_WITHIN_S = 0.5
"""Time for each client to disconnect when the gateway ends."""


class WebsocketDoor:
    """Gateway that listens from its creation to `stop`.
    serving: returns the server and the function that wakes its engine; None while nothing is served."""

    def __init__(
        self,
        config: DoorConfig,
        serving: Callable[[], tuple[ModelServer, Callable[[], None]] | None],
        log: Callable[[str], None],
        healthy: Callable[[], bool] | None = None,
    ) -> None:
        """Start to listen. Raises: `ConfigurationError` when it cannot.
        healthy: returns whether a model is served and progresses, even if it accepts nothing new; None: same as `serving`."""
        self._config, self._serving, self._log = config, serving, log
        self._beat_s = clock()
        """Time at which the event loop last ran."""
        self._healthy = healthy or (lambda: serving() is not None)
        self._numbers = itertools.count(1)
        self._told: set[str] = set()
        self._connections: dict[str, Connection] = {}
        self._decoders = ThreadPoolExecutor(config.decode_threads, thread_name_prefix="gateway_decode")
        self._thread = LoopThread("gateway")
        try:
            self._entry = Entry(config)
            self._listener = self._thread.call(self._listen(), WITHIN_S)
        except OSError as error:
            self._thread.stop()
            raise ConfigurationError(
                f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
                key="gateway_port",
                fix="give a port that is free",
            ) from error

    @property
    def port(self) -> int:
        """TCP port on which it listens."""
        return int(self._listener.sockets[0].getsockname()[1])

    def stalled_s(self, now_s: float) -> float:
        """Return for how long its event loop has not run, s. It may be called from any thread, without a lock."""
        return max(0.0, now_s - self._beat_s - LATE_S)

    def take(self, replies: list[Reply]) -> list[Reply]:
        """Hand connections their replies, all at once, and return the replies of others."""
        ours = [reply for reply in replies if reply.id.robot.startswith(PREFIX)]
        if not ours:
            return replies
        self._thread.soon(self._deliver, ours)
        return [reply for reply in replies if not reply.id.robot.startswith(PREFIX)]

    def fail(self, requests: Sequence[RequestId]) -> None:
        """Report failed inferences, of any clients."""
        self._thread.soon(self._fail, requests)

    def release(self, why: str) -> None:
        """Close all connections with the reason, because nothing is served; new ones are refused until something is."""
        self._thread.soon(self._release, why)

    def stop(self) -> None:
        """Close all connections and end the threads."""
        self._thread.call(self._close(), WITHIN_S)
        self._thread.stop()
        self._decoders.shutdown(wait=False, cancel_futures=True)

    # --- on the loop's thread ---

    async def _listen(self) -> asyncio.Server:
        quiet = logging.getLogger("rfm_serving.gateway")
        quiet.setLevel(logging.CRITICAL)  # an unauthenticated client must not be able to fill the disk
        listener = await ws_create_server(
            self._admit,
            sock=self._entry.step,
            backlog=ACCEPTED_AT_ONCE,
            **self._encryption(),
            logger_name=quiet,
            enable_auto_ping=True,
            auto_ping_idle_timeout=PING_S,
            auto_ping_reply_timeout=PING_S,
            max_frame_size=wire.MAX_FRAME_BYTES,
        )
        self._thread.loop.call_later(TEND_PERIOD_S, self._tend)
        return listener

    def _encryption(self) -> dict[str, Any]:
        """Return options for asyncio's own TLS: picows' faster sockets do not support certificates that change."""
        tls = self._config.tls
        return {"ssl": tls.context, "ssl_handshake_timeout": HANDSHAKE_WITHIN_S, "use_aiofastnet": False} if tls else {}

    def _admit(self, request: WSUpgradeRequest) -> Connection | WSUpgradeResponseWithListener:
        """Accept or refuse a connection before the handshake; an exception's text would be sent to the client."""
        self._entry.on_request()
        try:
            return self._admitted(request)
        except (Exception, SystemExit):
            self._log(traceback.format_exc())
            return _answered(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _admitted(self, request: WSUpgradeRequest) -> Connection | WSUpgradeResponseWithListener:
        serving = self._serving()
        if request.path in (b"/healthz", b"/readyz"):
            fine = self._healthy() if request.path == b"/healthz" else serving
            return _answered(HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE)
        if serving is None:
            return _answered(HTTPStatus.SERVICE_UNAVAILABLE)
        server, wake = serving
        inside = [connection.holder for connection in self._connections.values()]
        who, refusal = self._entry.ask(request.headers, inside)
        if refusal:
            server.count(refusal.kind)
            return _answered(refusal.status)
        name = f"{PREFIX}{who}-{next(self._numbers)}" if who else f"{PREFIX}{next(self._numbers)}"
        try:
            client = self._client(request.path, server, name)
        except ConfigurationError as error:
            server.count("gateway_chunks")
            self._log_once(str(error))
            return _answered(HTTPStatus.INTERNAL_SERVER_ERROR)
        connection = Connection(client, server, wake, self._thread.loop, self._decoders, self._log, self._connections)
        connection.holder, connection.entered = who, self._entry.let_in
        return connection

    def _log_once(self, problem: str) -> None:
        """Log a problem once, so that a client that tries again cannot fill the log."""
        if problem not in self._told:
            self._told.add(problem)
            self._log(problem)

    def _client(self, path: bytes, server: ModelServer, name: str) -> OpenpiClient:
        """Return the client of the dialect: a path of vLLM-Omni selects its own."""
        if path.partition(b"?")[0] == vllm_omni.PATH:
            return vllm_omni.VllmOmniClient(server, name, self._config.names, self._config.vllm_omni)
        return OpenpiClient(server, name, self._config.names)

    def _deliver(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if connection := self._connections.get(reply.id.robot):
                self._guarded(connection, lambda at, reply=reply: at.deliver(reply))  # type: ignore[misc]

    def _fail(self, requests: Sequence[RequestId]) -> None:
        for request in requests:
            if connection := self._connections.get(request.robot):
                self._guarded(connection, lambda at, request=request: at.fail(request))  # type: ignore[misc]

    def _guarded(self, connection: Connection, call: Callable[[Connection], None]) -> None:
        """Call a function on a connection; a failure ends that connection alone."""
        try:
            call(connection)
        except (Exception, SystemExit):
            self._log(traceback.format_exc())
            connection.end("internal error", WSCloseCode.INTERNAL_ERROR)

    def _tend(self) -> None:
        self._thread.loop.call_later(TEND_PERIOD_S, self._tend)
        now_s = self._beat_s = clock()
        idle_s, reply_s = self._config.idle_s, self._config.reply_s
        for connection in list(self._connections.values()):
            self._guarded(connection, lambda at: at.tend(now_s, idle_s=idle_s, reply_s=reply_s))
            if not self._entry.is_known(connection.holder):
                connection.refuse(BadMessageError("gateway_revoked", "your token was taken away"))
        if (serving := self._serving()) and (strangers := self._entry.strangers()):
            serving[0].count("gateway_no_request", strangers)

    def _release(self, why: str) -> None:
        for connection in list(self._connections.values()):
            connection.end(why, WSCloseCode.SERVICE_RESTART)

    async def _close(self) -> None:
        self._listener.close()
        self._release("this server has ended")
        await asyncio.gather(*(connection.closed(PARTS_WITHIN_S) for connection in self._connections.values()))


def _answered(status: HTTPStatus) -> WSUpgradeResponseWithListener:
    body = f"{status.phrase}\n".encode()
    if status is HTTPStatus.OK:
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_ok_response(body), None)
    return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, body), None)
