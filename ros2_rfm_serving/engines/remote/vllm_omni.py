"""vLLM-Omni's dialect of openpi's protocol, as in its `entrypoints/openpi/connection.py` (revision bfaaa3c2, 2026-08-04).

A reply is an array [H, D], or a map of named chunks [B, H, D]; an error is a map `{type: error, message}`, after which the
connection stays open. The server counts the requests of each connection, and resets the model with the first observation, with
another `session_id`, and after `endpoint: reset`. It closes connections that were silent for 30 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.engines.remote.connection import RemoteConnection
from ros2_rfm_serving.engines.remote.dialect import declared, rows_of, says
from ros2_rfm_serving.engines.remote.options import RemoteOptions
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import SYSTEM1, Array, EngineReply, InferenceRequest, RequestId

RESET, DONE = {"endpoint": "reset"}, "reset successful"
MAX_QUOTED_CHARACTERS = 300
"""Number of characters of the server's text that an error shows."""


class VllmOmniDialect:
    """vLLM-Omni's messages. A robot's component has one session, which the server knows by its `session_id` and its connection."""

    takes_encoded = False

    def __init__(self, model: str, options: RemoteOptions, metadata: Mapping[str, Any]) -> None:
        """Create the dialect. Raises: `ModelError` if the server's metadata contradicts the options."""
        self._options = options
        _check_announced(options, metadata)
        self.contract = declared(model, options, options.chunk_length or _whole(metadata, "action_horizon"))

    async def ask(self, link: RemoteConnection, request: InferenceRequest) -> EngineReply:
        """Return the reply to a request. A new episode over an old connection is reset first. Raises: `ModelError`."""
        session = _session_of(request.id)
        episode = (session, request.id.session_epoch, request.id.episode)
        if link.said is not None and link.said != episode and link.said[0] == session:
            await self.reset(link)
        told = await link.exchange(self._message(session, request))
        link.said = episode
        return self._reply(told)

    async def reset(self, link: RemoteConnection) -> None:
        """Begin a new episode. Raises: `ModelError` if the server does not confirm it."""
        told = await link.exchange(RESET)
        self._check(told)
        if not says(told, "status", DONE):
            raise ModelError(f"{self._options.url}: it did not begin a new episode when it was told to")

    def _message(self, session: str, request: InferenceRequest) -> dict[str, Any]:
        said: dict[str, Any] = {"endpoint": "infer", "session_id": session}
        if self._options.embodiment:
            said["embodiment"] = self._options.embodiment
        return {**said, **(self._nested(request) if self._options.nested else self._flat(request))}

    def _flat(self, request: InferenceRequest) -> dict[str, Any]:
        names = self._options.names
        images = {names.get(camera, camera): image for camera, image in request.images.items()}
        return {names.get("prompt", "prompt"): request.instruction, **self._states(request.state), **images}

    def _nested(self, request: InferenceRequest) -> dict[str, Any]:
        """Return images [1, 1, H, W, 3], parts of the state [1, 1, S], and the instruction [[text]]."""
        names = self._options.names
        return {
            "video": {names.get(camera, camera): np.asarray(image)[None, None] for camera, image in request.images.items()},
            "state": {name: part[None, None] for name, part in self._states(request.state).items()},
            "language": {names["prompt"]: [[request.instruction]]},
        }

    def _states(self, state: Array) -> dict[str, Array]:
        if not self.contract.state_size:
            return {}
        parts = self._options.state_parts or {self._options.names.get("state", "state"): len(state)}
        ends = np.cumsum(list(parts.values()))
        return dict(zip(parts, np.split(state, ends[:-1]), strict=True))

    def _reply(self, told: Any) -> EngineReply:
        """Return the reply in a server's message. Raises: `ModelError`."""
        self._check(told)
        actions = told["actions"] if isinstance(told, dict) and "actions" in told else told  # a model may choose this form
        rows = self._joined(actions) if self._options.action_parts else self._bare(actions)
        return EngineReply(chunk_robot=rows, chunk_model=rows)

    def _check(self, told: Any) -> None:
        """Check that a message is no error. Raises: `ModelError`."""
        if says(told, "type", "error"):
            raise ModelError(f"{self._options.url}: it could not answer: {str(told.get('message', ''))[:MAX_QUOTED_CHARACTERS]}")

    def _bare(self, actions: Any) -> Array:
        """Return the chunk of a reply with one array, [T, A]. Raises: `ModelError`."""
        if isinstance(actions, dict):
            fix = f"options.action_parts must name them, such as {{{', '.join(f'{key}: ...' for key in list(actions)[:8])}}}"
            raise ModelError(f"{self._options.url}: a reply of named chunks; {fix}")
        num_names = len(self.contract.action_names)
        shape = (self.contract.chunk_length, self._options.padded_actions or num_names)
        return rows_of(self._options.url, "the array", _alone(actions), shape)[:, :num_names].copy()

    def _joined(self, actions: Any) -> Array:
        """Return the chunk of a reply with named chunks, [T, A]. Raises: `ModelError`."""
        url, parts = self._options.url, self._options.action_parts
        if not isinstance(actions, dict) or set(actions) != set(parts):
            found = f"chunks {', '.join(map(str, actions))}" if isinstance(actions, dict) else "one array"
            raise ModelError(f"{url}: a reply must have the chunks {', '.join(parts)} (options.action_parts), it has {found}")
        length = self.contract.chunk_length
        chunks = [rows_of(url, f"chunk {name!r}", _alone(actions[name]), (length, size)) for name, size in parts.items()]
        return np.concatenate(chunks, axis=1)


def _session_of(asks: RequestId) -> str:
    return asks.robot if asks.component in ("", SYSTEM1) else f"{asks.robot}/{asks.component}"


def _alone(rows: Any) -> Any:
    """Return the single row of a batch of one."""
    return rows[0] if isinstance(rows, np.ndarray) and rows.ndim == 3 and len(rows) == 1 else rows


def _whole(metadata: Mapping[str, Any], key: str) -> int:
    value = metadata.get(key, 0)
    return value if type(value) is int and value > 0 else 0


def _words(value: Any) -> list[str] | None:
    """Return the words of a list; None if it is no list."""
    return [str(word) for word in value] if isinstance(value, list) else None


def _check_announced(options: RemoteOptions, metadata: Mapping[str, Any]) -> None:
    """Check the server's metadata against the options; missing keys are not checked. Raises: `ModelError`."""
    horizon, columns = _whole(metadata, "action_horizon"), _whole(metadata, "action_dim")
    said = options.padded_actions or len(options.action_names)
    keys, bodies = (_words(metadata.get(key)) for key in ("action_keys", "supported_embodiments"))
    problem = ""
    if horizon and options.chunk_length not in (0, horizon):
        problem = f"it answers with {horizon} rows (action_horizon), options.chunk_length is {options.chunk_length}"
    elif columns and not options.action_parts and said != columns:
        fix = f"if the rest is padding, say options.padded_actions: {columns}"
        problem = f"its actions have {columns} columns (action_dim), the options say {said}; {fix}"
    elif keys is not None and set(keys) != set(options.action_parts):
        problem = f"it answers with the chunks {', '.join(keys)}; options.action_parts must name them"
    elif options.embodiment and bodies is not None and options.embodiment not in bodies:
        problem = f"options.embodiment is {options.embodiment!r}; it knows {', '.join(bodies)}"
    if problem:
        raise ModelError(f"{options.url}: {problem}")
