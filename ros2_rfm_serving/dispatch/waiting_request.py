"""Waiting request, as policies see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types import (
    NO_ROWS,
    NO_VALUES,
    Conditioning,
    Guidance,
    HorizonRequest,
    InferenceRequest,
    PipelineConfig,
    RequestId,
)
from ros2_rfm_serving.types.record import runtime_frozen
from ros2_rfm_serving.types.state import check_names, kept, state_of


@runtime_frozen
@dataclass(frozen=True, eq=False, slots=True)
class WaitingRequest:
    """Decoded request in its session's mailbox. Times are seconds on the server's clock."""

    request: InferenceRequest
    stamp_ns: int
    arrived_s: float
    since_s: float
    """Time at which its session began to wait. A newer observation keeps its predecessor's place in the queue."""
    starves_s: float
    """Time at which its robot runs out of actions, or ran out."""
    due_s: float
    """Time at which its SLO is missed; inf: it has none."""
    history: TaskHistory


REQUEST = kept(
    *("id", "instruction", "inference_delay_steps", "conditioning", "guidance", "horizon", "pipelining", "num_steps"),
    "decoding_s",
)
WAITING = kept("stamp_ns", "arrived_s", "since_s", "starves_s", "due_s")
"""Values that a snapshot keeps of a waiting request, beside the number of rows of the prefix."""
REQUEST_NAMES = kept(*REQUEST, "prefix_steps")
WAITING_NAMES = kept(*WAITING, "request")


def bare(
    id: RequestId,
    instruction: str,
    inference_delay_steps: int,
    prefix_steps: int,
    conditioning: Conditioning,
    guidance: Guidance,
    horizon: HorizonRequest,
    pipelining: PipelineConfig | None,
    num_steps: int,
    decoding_s: float,
) -> InferenceRequest:
    """Return the part of a request that decides when it runs: it has no images, no state, and a prefix without columns."""
    return InferenceRequest(
        id=id,
        instruction=instruction,
        state=NO_VALUES,
        images={},
        inference_delay_steps=inference_delay_steps,
        prefix_model=np.empty((prefix_steps, 0), np.float32) if prefix_steps else NO_ROWS,
        conditioning=conditioning,
        guidance=guidance,
        horizon=horizon,
        pipelining=pipelining,
        num_steps=num_steps,
        decoding_s=decoding_s,
    )


def state_of_waiting(waiting: WaitingRequest) -> dict[str, Any]:
    """Return a waiting or running request as values for a snapshot. Its history is that of its session."""
    request = waiting.request
    values = {**state_of(request, REQUEST), "prefix_steps": len(request.prefix_model)}
    return {**state_of(waiting, WAITING), "request": values}


def waiting_from(state: Mapping[str, Any], histories: Mapping[int, TaskHistory]) -> WaitingRequest:
    """Return the request that `state_of_waiting` described. histories: session epoch -> history of that session.
    Raises: `RfmError` for names that are missing or unknown, and for a session that has no history."""
    check_names("WaitingRequest", WAITING_NAMES, state)
    check_names("InferenceRequest", REQUEST_NAMES, state["request"])
    request = bare(**state["request"])
    history = histories.get(request.id.session_epoch)
    if history is None:
        identity = f"{request.id.robot}/{request.id.component}"
        raise RfmError(f"the snapshot has a request of {identity}, and no session with epoch {request.id.session_epoch}")
    times = (state["arrived_s"], state["since_s"], state["starves_s"], state["due_s"])
    return WaitingRequest(request, state["stamp_ns"], *times, history)
