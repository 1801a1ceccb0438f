"""One connection of the websocket gateway: a request arrives, its reply is sent; every error is reported and closes it."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import BadMessageError, CapacityError, ContractError, DrainingError, RfmError, SessionError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.types import ObservationRequest, Reply, RequestId

CLOSES_WITHIN_S = 1.0
"""Time for the client's reply to the close frame."""
COUNTED = {ContractError: "contract", CapacityError: "capacity", DrainingError: "draining", SessionError: "session"}
BINARY, TEXT = WSMsgType.BINARY, WSMsgType.TEXT


class Connection(WSListener):
    """Connection of one client. Everything but `_decoded` runs on the event loop's thread."""

    def __init__(
        self,
        client: OpenpiClient,
        server: ModelServer,
        wake: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        decoders: Executor,
        log: Callable[[str], None],
        connections: dict[str, Connection],
    ) -> None:
        """Create the connection. connections: registry by robot name that contains it while it is open."""
        super().__init__()
        self.client = client
        self.holder = ""
        """Name of the token's owner; empty: the token belongs to no client in particular."""
        self.entered: Callable[[object], None] = lambda address: None
        """Called when the connection is open, with the address of the peer."""
        self._server, self._wake, self._loop, self._decoders = server, wake, loop, decoders
        self._log, self._connections = log, connections
        self._packer = wire.packer()
        self._max_bytes = wire.max_frame_bytes(len(server.contract.cameras))
        self._transport: WSTransport | None = None
        self._waits: RequestId | None = None
        self._heard_s = clock()
        self._parts = bytearray()
        self._slow = self._ending = False

    # --- what picows calls ---

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._connections[self.client.robot] = self
        self.entered(transport.underlying_transport.get_extra_info("peername"))
        try:
            transport.send(BINARY, self._packer.pack(self.client.metadata()))
        except (Exception, SystemExit):
            self._log(traceback.format_exc())
            self.refuse(RfmError("internal error"))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is WSMsgType.CLOSE:
            if not transport.is_close_frame_sent:
                transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif kind in (BINARY, TEXT, WSMsgType.CONTINUATION) and not self._ending:
            try:
                self._on_data(frame)
            except RfmError as error:
                self.refuse(error)
            except (Exception, SystemExit):
                self._log(traceback.format_exc())
                self.refuse(RfmError("internal error"))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        sent = transport.close_handshake.sent if transport.close_handshake else None
        if sent and sent.code is WSCloseCode.MESSAGE_TOO_BIG:
            self._server.count("frame_too_large")
        self._connections.pop(self.client.robot, None)
        self.client.close()

    def pause_writing(self) -> None:
        self._slow = True

    def resume_writing(self) -> None:
        self._slow = False

    # --- requests ---

    def _on_data(self, frame: WSFrame) -> None:
        """Process a data frame. Raises: `RfmError`."""
        if frame.payload_size + len(self._parts) > self._max_bytes:
            raise BadMessageError("frame_too_large", f"a message of more than {self._max_bytes} bytes")
        if frame.msg_type is TEXT:
            raise BadMessageError("bad_frame", "send msgpack in binary frames")
        if frame.fin and not self._parts:
            self._ask(frame.get_payload_as_memoryview())
            return
        self._parts += frame.get_payload_as_memoryview()
        if frame.fin:
            whole, self._parts = self._parts, bytearray()
            self._ask(memoryview(whole))

    def _ask(self, data: memoryview) -> None:
        """Process a request; `data` is read before this returns."""
        if self._waits:
            raise BadMessageError("gateway_busy", "one request at a time: wait for the reply")
        if self._slow:
            raise BadMessageError("gateway_slow", "replies are not being read")
        observation = self.client.ask(data)
        self._heard_s = clock()
        if observation is None:
            self._send(self.client.reset_reply)
            return
        self._waits = observation.id
        if self._server.takes_encoded or all(image.format == "rgb8" for image in observation.images):
            self._server.submit(observation, self._heard_s)
            self._wake()
        else:
            self._decoders.submit(self._decoded, observation)

    def _decoded(self, observation: ObservationRequest) -> None:
        """Submit an observation on a decoder's thread, because images take longer than everything else together."""
        try:
            self._server.submit(observation, clock())
            self._wake()
        except RfmError as error:
            self._loop.call_soon_threadsafe(self.refuse, error)
        except (Exception, SystemExit):
            self._log(traceback.format_exc())
            self._loop.call_soon_threadsafe(self.refuse, RfmError("internal error"))

    # --- what goes back ---

    def deliver(self, reply: Reply) -> None:
        if reply.id == self._waits and not self._ending:
            self._waits = None
            self._send(self.client.answer(reply))

    def fail(self, request: RequestId) -> None:
        """Report that the inference of a request failed."""
        if request == self._waits:
            self._waits = None
            self.refuse(BadMessageError("gateway_no_answer", "the model could not answer"))

    def tend(self, now_s: float, *, idle_s: float, reply_s: float) -> None:
        """Close the connection when a request or its reply takes too long; to be called periodically."""
        if self._waits and now_s - self._heard_s > reply_s:
            self.refuse(BadMessageError("gateway_no_reply", "the request was not answered"))
        elif not self._waits and now_s - self._heard_s > idle_s:
            self._server.count("gateway_idle")
            self.end("nothing was asked for too long", WSCloseCode.GOING_AWAY)

    def end(self, why: str, code: WSCloseCode) -> None:
        """Send the reason as openpi's servers do, in a text frame, and close the connection."""
        if self._ending or self._transport is None or self._transport.is_disconnected:
            return
        self._ending = True
        self._transport.send(TEXT, why.encode())
        self._transport.send_close(code)
        self._loop.call_later(CLOSES_WITHIN_S, self._transport.disconnect)

    async def closed(self, timeout_s: float) -> None:
        """Wait until the connection is closed; force it if the client takes longer."""
        if self._transport is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._transport.wait_disconnected(), timeout_s)
            self._transport.disconnect(graceful=False)
            await self._transport.wait_disconnected()

    def _send(self, told: Any) -> None:
        if self._transport is not None and not self._transport.is_disconnected:
            self._transport.send(BINARY, self._packer.pack(told))

    def refuse(self, error: RfmError) -> None:
        kind = error.kind if isinstance(error, BadMessageError) else COUNTED.get(type(error), "gateway_error")
        self._server.refuse(kind, str(error))
        told = self.client.refusal(error)
        if told is None or self._ending:
            self.end(str(error), WSCloseCode.INTERNAL_ERROR)
            return
        self._waits = None
        self._send(told)
