"""Fakes at the seams: an engine that answers at once, and builders of valid requests to spoil."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import simplejpeg

from ros2_rfm_serving.types import (
    SYSTEM1,
    ActionChunk,
    Conditioning,
    EncodedImage,
    EngineReply,
    InferenceRequest,
    ModelContract,
    ObservationRequest,
    OutputKind,
    Placement,
    RequestId,
    Route,
    Schedule,
    ServingStats,
    SessionGrant,
    SessionRequest,
    empty,
)

NAMES = ("x", "y")
CONTRACT = ModelContract(
    model="fake",
    model_hash="hash",
    output=OutputKind.ACTION_CHUNK,
    action_names=NAMES,
    cameras=("front",),
    state_size=3,
    chunk_length=4,
    max_inference_delay_steps=3,
    conditionings=tuple(Conditioning),
)
JPEG = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8), colorspace="RGB")
SERVED = ServingStats(queue_wait_s=0.0, inference_s=0.0, batch_size=1, superseded=0, server_load=0.0)


class FakeEngine:
    """Each chunk's rows count 0, 1, 2 ...; remembers its batches."""

    contract = CONTRACT
    max_batch_size = 4
    takes_encoded = False
    must_agree = False
    fit_image = None
    decode_image = None
    clock = None
    is_dead = False
    max_concurrent = 1

    def __init__(self) -> None:
        self.batches: list[list[InferenceRequest]] = []
        self.closed: list[tuple[str, str, int]] = []

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        self.closed.append((robot, component, epoch))

    def prepare(self, batch_size: int) -> None: ...

    def warm_up(self) -> None: ...

    def close(self) -> None: ...

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        self.batches.append(list(requests))
        return [EngineReply(chunk_model=rows(), chunk_robot=rows()) for _ in requests]


def rows(start: float = 0.0, length: int = 4) -> np.ndarray:
    return np.repeat(np.arange(start, start + length, dtype=np.float32)[:, None], len(NAMES), axis=1)


def session_request(robot: str = "r1", **changes: object) -> SessionRequest:
    request = SessionRequest(robot=robot, component=SYSTEM1, action_names=NAMES, cameras=("front",), state_size=3)
    return replace(request, **changes)  # type: ignore[arg-type]


def observation(epoch: int, sequence: int = 1, robot: str = "r1", episode: int = 1, **changes: object) -> ObservationRequest:
    request = ObservationRequest(
        id=RequestId(robot=robot, component=SYSTEM1, session_epoch=epoch, episode=episode, sequence=sequence),
        stamp_ns=7,
        instruction="go",
        state=np.zeros(3, np.float32),
        images=(EncodedImage(camera="front", format="jpeg", data=JPEG),),
        prefix_model=empty(0, 2),
        prefix_robot=empty(0, 2),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def schedule(robot: str = "r1", epoch: int = 1, server: str = "s1", rate_hz: float = 100.0) -> Schedule:
    placement = Placement(
        server=server,
        model="fake",
        components=(SYSTEM1,),
        gpu_type="CPU",
        batching="fixed",
        batch_size=1,
        max_sessions=8,
        predicted_p99_s=0.1,
    )
    route = Route(robot=robot, component=SYSTEM1, server=server, max_rate_hz=rate_hz, slo_s=0.0)
    return Schedule(epoch=epoch, placements=(placement,), routes=(route,), predicted_actions_hz=1.0, policy="test")


def grant(epoch: int = 5, contract: ModelContract = CONTRACT) -> SessionGrant:
    return SessionGrant(session_epoch=epoch, contract=contract)


def chunk(request: ObservationRequest, values: np.ndarray | None = None, **changes: object) -> ActionChunk:
    values = rows() if values is None else values
    answer = ActionChunk(
        id=request.id,
        stamp_ns=request.stamp_ns,
        server="s1",
        model_hash="hash",
        action_names=NAMES,
        chunk_model=values,
        chunk_robot=values,
        confidence=empty(0),
        execution_horizon=0,
        inference_delay_steps=0,
        served=SERVED,
    )
    return replace(answer, **changes)  # type: ignore[arg-type]


def shipped_bundles() -> list[str]:
    """Folders of models/."""
    return sorted(
        folder.name for folder in (Path(__file__).resolve().parents[2] / "models").iterdir() if (folder / "config.json").is_file()
    )
