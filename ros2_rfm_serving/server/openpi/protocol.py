"""Client connection of openpi's websocket protocol: conversion of its messages, without sockets, which the gateway owns.

An observation is a map. `prompt` is the instruction; the state has the key `state`, images have their camera's name, and both may
be below `observation` and `images`, nested or joined with `/` or `.`. Extensions of openpi: `inference_delay`,
`prev_chunk_left_over`, `prev_chunk_left_over_robot`, `execution_report`, `session`, `episode` and `reset` (docs/gateway.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server.openpi import observation as parts
from ros2_rfm_serving.server.server import ModelServer
from ros2_rfm_serving.types import (
    ActionChunk,
    Conditioning,
    EncodedImage,
    ObservationRequest,
    Reply,
    RequestId,
    SessionRequest,
    SubgoalPlan,
)


class OpenpiClient:
    """One connection and its session, which opens with the first observation and reopens when an observation requests other terms.

    It is not thread-safe. names: the client's key, its parts joined with `/` -> this package's (`state`, a camera; empty: ignore
    it); several keys for `state` are joined in the order of `names`.
    """

    def __init__(self, server: ModelServer, robot: str, names: Mapping[str, str] | None = None) -> None:
        self.robot = robot
        self._server = server
        self._observed = parts.OpenpiObservation(server.contract, names or {})
        self._session: SessionRequest | None = None
        self._shown: tuple[Any, ...] = ()
        """Properties of the observation for which the session was opened."""
        self._said: Any = None
        """Terms of the client with which the session was opened."""
        self._prefixed = False
        self._epoch, self._episode, self._sequence = 0, 1, 0
        self._told_episode: int | str | None = None

    def metadata(self) -> dict[str, Any]:
        """Return the first frame of a connection, which describes the served model."""
        served_here = self._server.contract.for_remote_engine
        contract: dict[str, Any] = wire.CONTRACT.dump_python(served_here, mode="json")
        return {"server": wire.OURS, **contract}

    reset_reply: Mapping[str, Any] = wire.RESET_REPLY
    """Reply to a message that only began an episode."""

    def refusal(self, error: RfmError) -> Mapping[str, Any] | None:
        """Return the reply to a client that continues after an error; None: it gets the error as text, and the connection ends."""
        return None

    def ask(self, frame: bytes | memoryview) -> ObservationRequest | None:
        """Return the observation to submit; None: the message only began an episode. Raises: `RfmError` if it is refused."""
        return self._read(wire.unpack(frame))

    def _read(self, message: Mapping[Any, Any]) -> ObservationRequest | None:
        """Return the observation of an unpacked message, as `ask` does. Raises: `RfmError` if it is refused."""
        contract = self._server.contract
        found = self._observed.read(message)
        episode = parts.episode_of(message, self._told_episode)
        begins = message.get("reset") is True or episode != self._told_episode
        if begins and found.is_empty:
            self._begin_episode(episode)
            return None
        parts.check_keys(found, contract)
        state, prefix = parts.state_of(found.states), parts.prefix_of(message, contract)
        prefix_robot = parts.prefix_of(message, contract, "prev_chunk_left_over_robot")
        images = tuple([parts.image_of(camera, value) for camera, value in found.images.items()])
        instruction, delay = parts.text_of(message, "prompt"), parts.whole_of(message, "inference_delay")
        report = parts.report_of(message)
        self._agree(message.get("session"), images, len(state), prefixed=len(prefix) > 0)
        if begins:
            self._begin_episode(episode)
        assert self._session is not None
        self._sequence += 1
        return ObservationRequest(
            id=RequestId(
                robot=self.robot,
                component=self._session.component,
                session_epoch=self._epoch,
                episode=self._episode,
                sequence=self._sequence,
            ),
            stamp_ns=0,
            instruction=instruction,
            state=state,
            images=images,
            inference_delay_steps=delay,
            prefix_model=prefix,
            prefix_robot=prefix_robot,
            report=report,
            episode_start=begins,
        )

    def answer(self, reply: Reply) -> Any:
        """Return the message to the client for a reply."""
        told = _timing(reply)
        if isinstance(reply, ActionChunk):
            told["actions"] = reply.chunk_robot
            if self._said is not None or (self._session and self._session.conditioning is not Conditioning.NONE):
                told["actions_model"], told["inference_delay"] = reply.chunk_model, reply.inference_delay_steps
            if reply.execution_horizon:
                told["execution_horizon"] = reply.execution_horizon
            if len(reply.confidence):
                told["confidence"] = reply.confidence
        elif isinstance(reply, SubgoalPlan):
            told["subgoals"], told["text"] = list(reply.subgoals), reply.text
        else:
            told["verdict"], told["score"], told["text"] = reply.verdict, reply.score, reply.text
        return told

    def close(self) -> None:
        if self._session:
            self._server.close_session(self.robot, self._session.component, self._epoch)

    def _agree(self, words: Any, images: tuple[EncodedImage, ...], state_size: int, *, prefixed: bool) -> None:
        """Open a session unless one with these terms is open. Raises: `RfmError` if it is refused."""
        self._prefixed = self._prefixed or prefixed
        cameras = tuple([image.camera for image in images])
        shown = (cameras, state_size, self._prefixed)
        if words is None and shown == self._shown:
            return
        seen = {"robot": self.robot, "cameras": cameras, "state_size": state_size}
        said = self._said if words is None else words
        request = parts.session_of(said, self._server.contract, seen, prefixed=self._prefixed)
        self._said, self._shown = said, shown
        if request == self._session:
            return
        if self._session and request.component != self._session.component:
            self.close()
        self._session, self._epoch = request, self._server.open_session(request).session_epoch

    def _begin_episode(self, told: int | str | None) -> None:
        self._told_episode = told
        self._episode += 1
        if self._session:
            self._server.reset_episode(self.robot, self._session.component, self._epoch, self._episode)


def _timing(reply: Reply) -> dict[str, Any]:
    served = reply.served
    queue_ms, infer_ms = 1e3 * served.queue_wait_s, 1e3 * served.inference_s
    timing = {"infer_ms": queue_ms + infer_ms, "queue_ms": queue_ms, "batch_size": served.batch_size, "load": served.server_load}
    if served.decoding_s:
        timing["decode_ms"] = 1e3 * served.decoding_s
    policy: dict[str, Any] = {"infer_ms": infer_ms}
    if served.solver_steps:
        policy |= {
            "perception_ms": 1e3 * served.perception_s,
            "solver_ms": 1e3 * served.solver_s,
            "solver_steps": served.solver_steps,
        }
    return {"server_timing": timing, "policy_timing": policy}
