"""Limits of browser connections in number and time, because uvicorn accepts every connection and waits for a first request for
ever."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from ros2_rfm_serving.security.doorstep import Doorstep

MAX_CONNECTIONS = 512
ASKS_WITHIN_S = 10.0
"""Time limit from the opening, or from the last response, to the end of a request's head."""
TAKES_WITHIN_S = 30.0
"""Time limit for reading a response. A client that exceeds it is asleep, or does not intend to read."""


class Connection(H11Protocol):
    """Connection of a browser. Beyond `MAX_CONNECTIONS`, the one that has been idle for longest is closed, or the newest if all are
    being answered."""

    step: Doorstep | None = None
    """Listening socket, which limits connections before their first request."""
    _stuck: asyncio.TimerHandle | None = None
    _quiet_since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.step is not None:
            self.step.let_in(transport.get_extra_info("peername"))
        self._quiet_since_s = self.loop.time()
        self._look(before=self)
        if len(self.connections) > MAX_CONNECTIONS:
            quiet = [one for one in cast("set[Connection]", self.connections) if one._is_quiet]
            min(quiet, key=lambda one: one._quiet_since_s)._leave()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(TAKES_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stuck()

    def on_response_complete(self) -> None:
        self._quiet_since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_stuck()
        super().connection_lost(exc)

    @property
    def _is_quiet(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _look(self, before: object) -> None:
        """Close an idle connection. before: request that was being answered at the last check."""
        if self.transport.is_closing():
            return
        if self._is_quiet and self.cycle is before:
            self._leave()
        else:
            self.loop.call_later(ASKS_WITHIN_S, self._look, self.cycle)

    def _leave(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _forget_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
