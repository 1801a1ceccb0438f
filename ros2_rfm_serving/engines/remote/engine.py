"""A model behind a websocket that speaks openpi's protocol: ours in the cloud (Kairos §3.2.3), or anybody's.

A server of ours says in its metadata what it serves, and is told prefix, inference delay, conditioning and guidance. Of another
one the options say what it serves; it is never asked for real-time chunking, because nothing says that it would honour it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ros2_rfm_serving import wire
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.remote.link import RemoteLink
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.loop_thread import LoopThread
from ros2_rfm_serving.types import (
    NO_VALUES,
    SCHEMA_VERSION,
    Array,
    EncodedImage,
    EngineReply,
    InferenceRequest,
    ModelContract,
    OutputKind,
    Serving,
)

ROWS_SHARE = 0.95
"""Of the time that a batch may take: a row that has none left is one lost row, not a lost batch."""
T = TypeVar("T")


class RemoteOptions(BaseModel):
    """`options` of a model with `engine: remote`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str = Field(pattern="^wss?://")
    token_env: str = ""
    """Environment variable with the token; empty: the server wants none."""
    ca_file: str = ""
    """Authority that a wss:// server's certificate must be of; empty: those that this machine trusts."""
    timeout_s: float = Field(default=2.0, gt=0, le=600)
    """From a request to its reply, connecting included."""
    connections: int = Field(default=8, ge=1, le=64)
    """Requests under way at once, and so the largest batch."""
    action_names: tuple[str, ...] = ()
    """This and the following of a server that is not ours; it needs them."""
    chunk_length: int = Field(default=0, ge=0)
    state_size: int = Field(default=0, ge=0)
    cameras: tuple[str, ...] = ()
    control_rate_hz: float = Field(default=0, ge=0)
    names: dict[str, str] = Field(default_factory=dict)
    """Ours (`state`, `prompt`, a camera) -> the server's key, where it is not `state`, `prompt`, `images/<camera>`."""


class RemoteEngine(Engine):
    """Row i of a batch goes over connection i. One thread owns all connections, and keeps them alive between batches."""

    def __init__(self, model: str, options: RemoteOptions, token: str, trusted: ssl.SSLContext | None = None) -> None:
        """trusted: None: whatever this machine trusts.

        Raises: `ModelError` when there is no such server, or it does not say what it serves.
        """
        self._options, self.timeout_s = options, options.timeout_s
        self._thread = LoopThread("remote")
        self._links = [RemoteLink(options.url, token, trusted) for _ in range(options.connections)]
        try:
            metadata = self._wait(self._links[0].metadata())
            self.ours = metadata.get("server") == wire.OURS
            self._contract = _contract(metadata) if self.ours else _declared(model, options)
        except ModelError:
            self.close()
            raise
        if self._contract.serving is Serving.EXCLUSIVE:
            del self._links[1:]
        for link in self._links:
            link.expected = metadata if self.ours else None
        self.takes_encoded = self.ours

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return len(self._links)

    def warm_up(self) -> None:
        """Connects. Raises: `ModelError`."""
        self._wait(self._connect())

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        replies = self._wait(self._infer(requests))
        if all(isinstance(reply, ModelError) for reply in replies):
            raise next(reply for reply in replies if isinstance(reply, ModelError))
        return replies

    def reset(self) -> None:
        """Of a model that keeps state: it is told. Raises: `ModelError`."""
        if self.ours:
            self._wait(self._links[0].ask({"reset": True}, None))

    def close(self) -> None:
        """No thread and no connection is left."""
        for link in self._links:
            self._thread.soon(link.drop)
        self._thread.stop()

    def _wait(self, todo: Coroutine[Any, Any, T]) -> T:
        """Raises: `ModelError`."""
        try:
            return self._thread.call(todo, self._options.timeout_s)
        except TimeoutError as error:
            raise ModelError(f"{self._options.url}: no answer within {self._options.timeout_s:g} s") from error

    async def _connect(self) -> None:
        await asyncio.gather(*(link.metadata() for link in self._links))

    async def _infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        rows = zip(self._links, requests, strict=False)
        return list(await asyncio.gather(*(self._row(link, request) for link, request in rows)))

    async def _row(self, link: RemoteLink, request: InferenceRequest) -> EngineReply | ModelError:
        message, words = self._message(request), _session_words(request) if self.ours else None
        try:
            told = await asyncio.wait_for(link.ask(message, words), ROWS_SHARE * self._options.timeout_s)
            return self._reply(told)
        except asyncio.TimeoutError:
            return ModelError(f"{self._options.url}: no answer within {self._options.timeout_s:g} s")
        except ModelError as error:
            return error

    def _message(self, request: InferenceRequest) -> dict[str, Any]:
        names = self._options.names
        message: dict[str, Any] = {names.get("prompt", "prompt"): request.instruction}
        if self._contract.state_size:
            message[names.get("state", "state")] = request.state
        for camera, image in request.images.items():
            message[names.get(camera, f"images/{camera}")] = _sent(image)
        if request.inference_delay_steps:
            message["inference_delay"] = request.inference_delay_steps
        if len(request.prefix_model):
            message["prev_chunk_left_over"] = request.prefix_model
        if len(request.prefix_robot):
            message["prev_chunk_left_over_robot"] = request.prefix_robot
        return message

    def _reply(self, told: Mapping[str, Any]) -> EngineReply:
        """Raises: `ModelError`."""
        if self._contract.output is not OutputKind.ACTION_CHUNK:
            text, verdict, score = told.get("text"), told.get("verdict", ""), told.get("score", float("nan"))
            if isinstance(text, str) and isinstance(verdict, str) and isinstance(score, (int, float)):
                return EngineReply(verdict=verdict, text=text, score=float(score))
            raise ModelError(f"{self._options.url}: a reply without text")
        robot = self._rows(told, "actions")
        if not self.ours:
            return EngineReply(chunk_robot=robot, chunk_model=robot)
        return EngineReply(
            chunk_robot=robot,
            chunk_model=self._rows(told, "actions_model"),
            confidence=told.get("confidence", NO_VALUES),
            execution_horizon=told.get("execution_horizon", 0),
        )

    def _rows(self, told: Mapping[str, Any], key: str) -> Array:
        """[T, A]. Raises: `ModelError`."""
        rows, shape = told.get(key), (self._contract.chunk_length, len(self._contract.action_names))
        if not isinstance(rows, np.ndarray) or rows.shape != shape or rows.dtype.kind not in "fiu":
            found = f"shape {rows.shape}" if isinstance(rows, np.ndarray) else "none"
            raise ModelError(f"{self._options.url}: {key!r} of a reply must have shape {shape}, it has {found}")
        return rows.astype(np.float32)


def build(spec: EngineSpec) -> RemoteEngine:
    options = checked_options(RemoteOptions, spec)
    token = os.environ.get(options.token_env, "") if options.token_env else ""
    if options.token_env and not token:
        raise ConfigurationError(
            f"${options.token_env} is empty", key=f"models.{spec.model}.options.token_env", fix="set it, or leave the key out"
        )
    return RemoteEngine(spec.model, options, token, _trusted(spec.model, options))


def _trusted(model: str, options: RemoteOptions) -> ssl.SSLContext | None:
    """Raises: `ConfigurationError`."""
    if not options.ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=options.ca_file)
    except (OSError, ssl.SSLError) as error:
        key, fix = f"models.{model}.options.ca_file", "name a PEM file of certificates, such as ca.cert.pem of `rfm security init`"
        raise ConfigurationError(f"{options.ca_file!r} cannot be used: {error}", key=key, fix=fix) from None


def _contract(metadata: Mapping[str, Any]) -> ModelContract:
    """Raises: `ModelError`."""
    try:
        contract: ModelContract = wire.CONTRACT.validate_python({k: v for k, v in metadata.items() if k != "server"})
    except ValidationError as error:
        raise ModelError("the remote server's metadata cannot be read: is it of another version?") from error
    if contract.schema_version != SCHEMA_VERSION:
        raise ModelError(f"the remote server speaks schema version {contract.schema_version}, this one {SCHEMA_VERSION}")
    return contract.over_a_connection


def _declared(model: str, options: RemoteOptions) -> ModelContract:
    """Raises: `ModelError`."""
    if not options.action_names or not options.chunk_length:
        raise ModelError(f"{options.url} is no server of ours: say options.action_names and options.chunk_length")
    return ModelContract(
        model=model,
        model_hash="",
        output=OutputKind.ACTION_CHUNK,
        action_names=options.action_names,
        cameras=options.cameras,
        state_size=options.state_size,
        chunk_length=options.chunk_length,
        control_rate_hz=options.control_rate_hz,
    )


def _session_words(request: InferenceRequest) -> dict[str, Any]:
    guidance = {**vars(request.guidance), "schedule": request.guidance.schedule.value}
    words = {"conditioning": request.conditioning.value, "guidance": guidance, "horizon": vars(request.horizon)}
    return {**words, "component": request.id.component} if request.id.component else words


def _sent(image: Any) -> Any:
    """Pixels as an array, a JPEG as its bytes."""
    if not isinstance(image, EncodedImage):
        return image
    if image.format != "rgb8":
        return bytes(image.data)
    return np.frombuffer(image.data, np.uint8).reshape(image.height_px, image.width_px, 3)
