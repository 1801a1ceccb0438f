"""Client connection of vLLM-Omni's robot endpoint: openpi's protocol with that server's extensions
(`entrypoints/openpi/connection.py`).

Extensions: `endpoint` (`infer`, or `reset`: a new episode), `session_id` (another one: a new episode), and GR00T's nested
observations, `video` [B, T, H, W, 3], `state` [B, T, S] and `language` [[text]], of which the newest frame counts. A chunk is
returned as a bare array [T, A], or as a map of named chunks [1, T, A]. An error is returned as a map, after which the client may
continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, RfmError
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.server.server import ModelServer
from ros2_rfm_serving.types import ActionChunk, ObservationRequest, Reply

PATH = b"/v1/realtime/robot/openpi"
"""Path to which its clients connect."""
FRAME_DIMENSIONS, STATE_DIMENSIONS = 3, 1
MAX_SESSION_CHARACTERS = 200
FINAL = frozenset({"frame_too_large", "gateway_slow", "gateway_busy", "gateway_no_reply", "gateway_revoked"})
"""Errors that end the connection, because later messages could not be told apart or should not be read."""


@dataclass(frozen=True, kw_only=True)
class VllmOmniTerms:
    """Properties that a model's clients expect of a vLLM-Omni server beyond the contract."""

    announced: Mapping[str, Any] = field(default_factory=dict)
    """Entries of its `policy_server_config`, such as `embodiment_tag` and `image_resolution`."""
    chunks: Mapping[str, int] = field(default_factory=dict)
    """Names and column counts of the chunks of a reply, in the order of the actions; empty: one array."""


class VllmOmniClient(OpenpiClient):
    """Variant of `OpenpiClient` for one connection of that endpoint."""

    reset_reply: Mapping[str, Any] = {"status": "reset successful"}

    def __init__(self, server: ModelServer, robot: str, names: Mapping[str, str], terms: VllmOmniTerms) -> None:
        """Create the state of a new connection. Raises: `ConfigurationError` when the chunks' columns are not the model's
        actions."""
        super().__init__(server, robot, names)
        columns, chunks = len(server.contract.action_names), terms.chunks
        if chunks and sum(chunks.values()) != columns:
            problem = f"{sum(chunks.values())} columns in all; {server.contract.model!r} has {columns} actions"
            raise ConfigurationError(
                problem, key="gateway_chunks", fix="give the chunks' sizes in the order of the model's actions"
            )
        self._terms, self._num_resets = terms, 0
        self._told_session: str | None = None
        """Session id since the last reset."""

    def metadata(self) -> dict[str, Any]:
        """Return the `policy_server_config` of vLLM-Omni."""
        contract = self._server.contract
        announced = {
            "action_horizon": contract.chunk_length,
            "action_dim": len(contract.action_names),
            "action_names": list(contract.action_names),
            "cameras": list(contract.cameras),
            "needs_session_id": False,
        }
        keys = {"action_keys": list(self._terms.chunks)} if self._terms.chunks else {}
        return {**announced, **keys, **self._terms.announced}

    def refusal(self, error: RfmError) -> Mapping[str, Any] | None:
        """Return the reply to an error as `OpenpiClient.refusal` does."""
        return None if isinstance(error, BadMessageError) and error.kind in FINAL else {"type": "error", "message": str(error)}

    def ask(self, frame: bytes | memoryview) -> ObservationRequest | None:
        """Return the observation to submit as `OpenpiClient.ask` does."""
        message = wire.unpack(frame)
        endpoint, session = message.pop("endpoint", "infer"), message.pop("session_id", None)
        if endpoint == "reset":
            self._num_resets, self._told_session = self._num_resets + 1, None
            return None  # the next observation begins the episode
        if session is not None:
            self._told_session = str(session)[:MAX_SESSION_CHARACTERS]
        return self._read({**_flattened(message), "episode": f"{self._num_resets}/{self._told_session or 'default'}"})

    def answer(self, reply: Reply) -> Any:
        """Return the message to the client as `OpenpiClient.answer` does."""
        if not isinstance(reply, ActionChunk):
            return super().answer(reply)
        if not self._terms.chunks:
            return reply.chunk_robot
        ends = np.cumsum(list(self._terms.chunks.values()))
        return {
            name: part[None] for name, part in zip(self._terms.chunks, np.split(reply.chunk_robot, ends[:-1], axis=1), strict=True)
        }


def _flattened(message: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a message with the newest frames, without their batch dimension. Raises: `BadMessageError` for batches of several
    robots."""
    flat = {key: value for key, value in message.items() if key not in ("language", "embodiment")}
    if isinstance(said := message.get("language"), dict):
        flat["prompt"] = _text(said)
    for key, value in flat.items():
        if isinstance(value, dict):
            flat[key] = {name: _newest(f"{key}/{name}", part, key) for name, part in value.items()}
        elif isinstance(value, np.ndarray) and value.dtype == np.uint8:
            flat[key] = _newest(str(key), value, "video")
    return flat


def _newest(path: str, value: Any, kind: str) -> Any:
    """Return the newest frame: [H, W, 3] of [B, T, H, W, 3], or [S] of [B, T, S]. Raises: `BadMessageError` if B is not 1."""
    dimensions = FRAME_DIMENSIONS if kind == "video" else STATE_DIMENSIONS
    if kind not in ("video", "state") or not isinstance(value, np.ndarray) or value.ndim <= dimensions:
        return value
    if value.ndim > dimensions + 2 or 0 in value.shape:
        raise BadMessageError("bad_shape", f"{path[:200]} has shape {value.shape}; send one robot's: a batch of one")
    if value.ndim == dimensions + 2:
        if len(value) != 1:
            raise BadMessageError("bad_shape", f"{path[:200]} is a batch of {len(value)}; one connection is one robot")
        value = value[0]
    return value[-1]


def _text(said: Mapping[Any, Any]) -> str:
    """Return the only instruction. Raises: `BadMessageError` if there is not exactly one."""
    texts = list(said.values())
    value: Any = texts[0] if len(texts) == 1 else None
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise BadMessageError("bad_keys", "language must hold one instruction: {key: [[text]]}")
    return value
