"""Conversion of a server's records into calls of its brain."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.audit.servers import objects
from ros2_rfm_serving.audit.servers.records import ARGS, BATCH, CALL, COUNT, REPLY, REQUEST
from ros2_rfm_serving.dispatch.waiting import bare
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ServerBrain, Work
from ros2_rfm_serving.server.horizon import Outlook, policy
from ros2_rfm_serving.types import (
    Conditioning,
    EngineReply,
    Guidance,
    Horizon,
    ObservationRequest,
    Phases,
    RequestId,
)

Call = tuple[str, tuple[Any, ...]]
"""Name and arguments of a call."""
Works = Mapping[int, Work]
"""Batches in progress, by number."""


def call_of(record: Mapping[str, Any], brain: ServerBrain, works: Works) -> Call | None:
    """Return the call in a record; None for a record without a decision. Raises: `RfmError` for an unreadable one."""
    read = READ.get(record.get("kind", ""))
    if read is None:
        return None
    try:
        return read(record, brain, works)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RfmError(f"record {record.get('n')} cannot be read: {type(error).__name__}: {error}") from error


def _call(record: Mapping[str, Any], brain: ServerBrain, works: Works) -> Call | None:
    do, args = record["do"], record["args"]
    if do == COUNT:
        return None
    if do == "ended":
        return do, (works[args["batch"]], args["answered"], args["num_failed"], args["now_s"])
    return do, tuple(objects.value(args[name]) for name in ARGS[do])


def _request(record: Mapping[str, Any], brain: ServerBrain, works: Works) -> Call:
    do, request = record["do"], objects.value(record["id"])
    if do == "deposit":
        return do, _deposited(record, request, brain)
    if do == "unfit":
        return do, (request, record["refused"], record["problem"])
    return do, (request, record["now_s"]) if do == "charge" else (request,)


def _deposited(record: Mapping[str, Any], request: RequestId, brain: ServerBrain) -> tuple[Any, ...]:
    session = brain.sessions.get((request.robot, request.component), request.session_epoch)
    how = (session.conditioning, session.guidance, session.horizon) if session else (Conditioning.NONE, Guidance(), Horizon())
    delay, rows = record["inference_delay_steps"], record["prefix_rows"]
    pipelined = (session.pipelining, session.num_steps) if session else (None, 0)
    row = bare(request, record["instruction"], delay, rows, *how, *pipelined, record.get("decoding_s", 0.0))
    observation = ObservationRequest(
        id=request,
        stamp_ns=record["stamp_ns"],
        instruction=record["instruction"],
        state=row.state,
        report=objects.value(record["report"]),
    )
    return row, observation, record["now_s"]


def _batch(record: Mapping[str, Any], brain: ServerBrain, works: Works) -> Call:
    return "begin", (record["tier"], record["now_s"])


def _reply(record: Mapping[str, Any], brain: ServerBrain, works: Works) -> Call:
    work, row = works[record["batch"]], record["row"]
    if record["outcome"] != "answered":
        answer = None if record["outcome"] == "failed" else EngineReply()
        return "reply", (work, row, answer, Outlook(0, EngineReply().confidence))
    phases = Phases(*(record.get(name, 0) for name in Phases.__slots__))
    if "chunk" not in record:
        answer = EngineReply(phases=phases, verdict=record["verdict"], text=record["text"], score=objects.value(record["score"]))
        return "reply", (work, row, answer, Outlook(0, answer.confidence))
    rows = np.empty((record["chunk_rows"], 0), np.float32)
    confidence = objects.value(record["confidence"])
    outlook = Outlook(_execution_horizon(record, work.batch[row].request.horizon, confidence), confidence)
    answer = EngineReply(phases=phases, chunk_model=rows, chunk_robot=rows, ended_with=record.get("ended_with"))
    return "reply", (work, row, answer, outlook)


def _execution_horizon(record: Mapping[str, Any], horizon: Horizon, confidence: Any) -> int:
    """Return the policy's decision from the recorded confidence. A horizon from another server or without confidence is kept."""
    recorded: int = record["execution_horizon"]
    if record["by"] == "engine" or (record["by"] == "updates" and not confidence.size):
        return recorded
    if not horizon.policy:
        return 0
    with contextlib.suppress(Exception):  # a policy may be foreign code; the server also went on without it
        return min(operator.index(policy(horizon.policy).rows(confidence, horizon)), int(record["chunk_rows"]))
    return recorded


READ: dict[str, Callable[[Mapping[str, Any], ServerBrain, Works], Call | None]] = {
    CALL: _call,
    REQUEST: _request,
    BATCH: _batch,
    REPLY: _reply,
}
