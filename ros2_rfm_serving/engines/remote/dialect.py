"""Messages of a connection and the meaning of replies: openpi's own messages, which a server of ours speaks too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from ros2_rfm_serving import wire
from ros2_rfm_serving.engines.remote.connection import RemoteConnection
from ros2_rfm_serving.engines.remote.options import RemoteOptions
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import (
    NO_VALUES,
    SCHEMA_VERSION,
    Array,
    EncodedImage,
    EngineReply,
    InferenceRequest,
    ModelContract,
    OutputKind,
)


class RemoteDialect(Protocol):
    """Messages of one server.
    `link.said` belongs to the dialect: the information sent over a connection that holds until other information is sent."""

    contract: ModelContract
    takes_encoded: bool

    async def ask(self, link: RemoteConnection, request: InferenceRequest) -> EngineReply:
        """Return the reply to a request. Raises: `ModelError`."""

    async def reset(self, link: RemoteConnection) -> None:
        """Begin a new episode of a model with one session. Raises: `ModelError`."""


class OpenpiDialect:
    """Messages of openpi.

    A server of ours describes its model in its metadata, and receives prefix, inference delay, conditioning and guidance. Any other
    server is described by the options; it never gets a request for real-time chunking, because it may not honour it.
    """

    def __init__(self, model: str, options: RemoteOptions, metadata: Mapping[str, Any]) -> None:
        """Create the dialect from the server's metadata. Raises: `ModelError` if it does not describe a model."""
        self._options = options
        self._ours = self.takes_encoded = says(metadata, "server", wire.OURS)
        self.contract = _contract(metadata) if self._ours else declared(model, options, options.chunk_length)

    async def ask(self, link: RemoteConnection, request: InferenceRequest) -> EngineReply:
        """Return the reply to a request. Session data is sent when it changes. Raises: `ModelError`."""
        message, words = self._message(request), _session_words(request) if self._ours else None
        if words is not None and words != link.said:
            message["session"] = words
        told = mapping(self._options.url, await link.exchange(message))
        link.said = words
        return self._reply(told)

    async def reset(self, link: RemoteConnection) -> None:
        """Begin a new episode on a server of ours. Raises: `ModelError`."""
        if self._ours:
            await link.exchange({"reset": True})

    def _message(self, request: InferenceRequest) -> dict[str, Any]:
        names = self._options.names
        message: dict[str, Any] = {names.get("prompt", "prompt"): request.instruction}
        if self.contract.state_size:
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
        """Return the reply in a server's message. Raises: `ModelError`."""
        url = self._options.url
        if self.contract.output is not OutputKind.ACTION_CHUNK:
            text, verdict, score = told.get("text"), told.get("verdict", ""), told.get("score", float("nan"))
            if isinstance(text, str) and isinstance(verdict, str) and isinstance(score, (int, float)):
                return EngineReply(verdict=verdict, text=text, score=float(score))
            raise ModelError(f"{url}: a reply without text")
        shape = (self.contract.chunk_length, len(self.contract.action_names))
        robot = rows_of(url, "'actions'", told.get("actions"), shape)
        if not self._ours:
            return EngineReply(chunk_robot=robot, chunk_model=robot)
        return EngineReply(
            chunk_robot=robot,
            chunk_model=rows_of(url, "'actions_model'", told.get("actions_model"), shape),
            confidence=told.get("confidence", NO_VALUES),
            execution_horizon=told.get("execution_horizon", 0),
        )


def says(told: Any, key: str, word: str) -> bool:
    """Return whether a message has a word under a key. The message may hold anything: arrays are equal to nothing."""
    value = told.get(key) if isinstance(told, dict) else None
    return isinstance(value, str) and value == word


def mapping(url: str, told: Any) -> dict[str, Any]:
    """Return a reply that is a map. Raises: `ModelError` for any other."""
    if isinstance(told, dict):
        return told
    raise ModelError(f"{url}: a reply that is no map; does the server speak another dialect (options.dialect: vllm_omni)?")


def rows_of(url: str, name: str, rows: Any, shape: tuple[int, int]) -> Array:
    """Return an array of a reply, [T, A] float32. Raises: `ModelError` if it has another shape."""
    if not isinstance(rows, np.ndarray) or rows.shape != shape or rows.dtype.kind not in "fiu":
        found = f"shape {rows.shape}" if isinstance(rows, np.ndarray) else "none"
        raise ModelError(f"{url}: {name} of a reply must have shape {shape}, it has {found}")
    return rows.astype(np.float32)


def declared(model: str, options: RemoteOptions, chunk_length: int) -> ModelContract:
    """Return the contract that the options describe. Raises: `ModelError` if they are incomplete."""
    if not options.action_names or not chunk_length:
        raise ModelError(f"{options.url} is no server of ours: say options.action_names and options.chunk_length")
    return ModelContract(
        model=model,
        model_hash="",
        output=OutputKind.ACTION_CHUNK,
        action_names=options.action_names,
        cameras=options.cameras,
        state_size=options.state_size,
        chunk_length=chunk_length,
        control_rate_hz=options.control_rate_hz,
    )


def _contract(metadata: Mapping[str, Any]) -> ModelContract:
    """Return the contract in the metadata of a server of ours. Raises: `ModelError` if it cannot be read."""
    try:
        contract: ModelContract = wire.CONTRACT.validate_python({k: v for k, v in metadata.items() if k != "server"})
    except ValidationError as error:
        raise ModelError("the remote server's metadata cannot be read: is it of another version?") from error
    if contract.schema_version != SCHEMA_VERSION:
        raise ModelError(f"the remote server speaks schema version {contract.schema_version}, this one {SCHEMA_VERSION}")
    return contract.for_remote_engine


def _session_words(request: InferenceRequest) -> dict[str, Any]:
    guidance = {**vars(request.guidance), "schedule": request.guidance.schedule.value}
    words = {"conditioning": request.conditioning.value, "guidance": guidance, "horizon": vars(request.horizon)}
    return {**words, "component": request.id.component} if request.id.component else words


def _sent(image: Any) -> Any:
    """Return an image as the message holds it: pixels as an array, a JPEG as its bytes."""
    if not isinstance(image, EncodedImage):
        return image
    if image.format != "rgb8":
        return bytes(image.data)
    return np.frombuffer(image.data, np.uint8).reshape(image.height_px, image.width_px, 3)
