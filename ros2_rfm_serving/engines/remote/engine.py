"""Engine for a model behind a websocket with openpi's protocol or a dialect of it.

The server is one of ours in the cloud (Kairos §3.2.3), or any other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ros2_rfm_serving import wire
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.remote.connection import LostConnectionError, RemoteConnection
from ros2_rfm_serving.engines.remote.connection_pool import ConnectionPool
from ros2_rfm_serving.engines.remote.dialect import OpenpiDialect, RemoteDialect, says
from ros2_rfm_serving.engines.remote.options import RemoteOptions, token_of, trusted_by
from ros2_rfm_serving.engines.remote.vllm_omni import VllmOmniDialect
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.loop_thread import LoopThread
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract, SessionSharing

ROWS_SHARE = 0.95
"""Share of the batch's time limit that a row may take: a row that exceeds it is one lost row, not a lost batch."""
SCHEMES = {"openpi": "Api-Key", "vllm_omni": "Bearer"}
"""Scheme before the token in the authorization header, by dialect."""
T = TypeVar("T")


class RemoteEngine(Engine):
    """Engine for a remote server.
    Each robot keeps its connection. One thread owns all connections, and keeps them alive between batches."""

    def __init__(self, model: str, options: RemoteOptions, token: str, trusted: ssl.SSLContext | None = None) -> None:
        """Connect to the server. trusted: None for the authorities that this machine trusts.

        Raises: `ModelError` if there is no such server, or it does not describe its model.
        """
        self._options, self.timeout_s = options, options.timeout_s
        self._thread = LoopThread("remote")
        header = f"{SCHEMES[options.dialect]} {token}" if token else ""
        self._links = [RemoteConnection(options.url, header, trusted) for _ in range(options.connections)]
        try:
            metadata = self._wait(self._links[0].metadata())
            self._dialect = _dialect(model, options, metadata)
        except ModelError:
            self.close()
            raise
        if self.contract.serving is SessionSharing.EXCLUSIVE:
            del self._links[1:]
        for link in self._links:
            link.expected = metadata if says(metadata, "server", wire.OURS) or options.dialect == "vllm_omni" else None
        self._seats = ConnectionPool(self._links)
        self.takes_encoded = self._dialect.takes_encoded

    @property
    def contract(self) -> ModelContract:
        return self._dialect.contract

    @property
    def max_batch_size(self) -> int:
        return len(self._links)

    def warm_up(self) -> None:
        """Open all connections. Raises: `ModelError`."""
        self._wait(self._connect())

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        replies = self._wait(self._infer(requests))
        if all(isinstance(reply, ModelError) for reply in replies):
            raise next(reply for reply in replies if isinstance(reply, ModelError))
        return replies

    def reset(self) -> None:
        """Begin a new episode of a model that keeps state. Raises: `ModelError`."""
        self._wait(self._dialect.reset(self._links[0]))

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        self._thread.soon(self._seats.remove, (robot, component))

    def close(self) -> None:
        """Close all connections and end the thread."""
        for link in self._links:
            self._thread.soon(link.drop)
        self._thread.stop()

    def _wait(self, todo: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the connections' thread and return its result. Raises: `ModelError`."""
        try:
            return self._thread.call(todo, self._options.timeout_s)
        except TimeoutError as error:
            raise ModelError(f"{self._options.url}: no answer within {self._options.timeout_s:g} s") from error

    async def _connect(self) -> None:
        await asyncio.gather(*(link.metadata() for link in self._links))

    async def _infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        links = self._seats.acquire([(request.id.robot, request.id.component) for request in requests])
        try:
            rows = zip(links, requests, strict=True)
            return list(await asyncio.gather(*(self._row(link, request) for link, request in rows)))
        finally:
            self._seats.release(links)

    async def _row(self, link: RemoteConnection, request: InferenceRequest) -> EngineReply | ModelError:
        try:
            return await asyncio.wait_for(self._asked(link, request), ROWS_SHARE * self._options.timeout_s)
        except asyncio.TimeoutError:
            return ModelError(f"{self._options.url}: no answer within {self._options.timeout_s:g} s")
        except ModelError as error:
            return error

    async def _asked(self, link: RemoteConnection, request: InferenceRequest) -> EngineReply:
        """Ask the server, and once more over a new connection if it had closed the old one. Raises: `ModelError`."""
        try:
            return await self._dialect.ask(link, request)
        except LostConnectionError as error:
            if error.was_new:
                raise
        return await self._dialect.ask(link, request)


def _dialect(model: str, options: RemoteOptions, metadata: Mapping[str, Any]) -> RemoteDialect:
    """Return the dialect of the options. Raises: `ModelError` if the server does not fit them."""
    if options.dialect == "vllm_omni":
        return VllmOmniDialect(model, options, metadata)
    return OpenpiDialect(model, options, metadata)


def build(spec: EngineSpec) -> RemoteEngine:
    options = checked_options(RemoteOptions, spec)
    return RemoteEngine(spec.model, options, token_of(spec.model, options), trusted_by(spec.model, options))
