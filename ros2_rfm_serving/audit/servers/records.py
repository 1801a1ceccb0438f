"""Conversion of a server's decisions into records (docs/audit.md), outside of the server's lock."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.servers.witness import INPUTS, Note
from ros2_rfm_serving.dispatch.waiting_request import bare
from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server import RunningBatch, ServerSnapshot, events
from ros2_rfm_serving.types import (
    NO_ROWS,
    NO_UPDATES,
    NO_VALUES,
    ActionChunk,
    Array,
    EngineReply,
    InferenceRequest,
    ObservationRequest,
    Reply,
    RequestId,
    SessionGrant,
    SubgoalPlan,
)

EVENT, REQUEST, BATCH, REPLY = "event", "request", "batch", "reply"
"""Kinds of records with an event: a request that is enqueued or refused, a query for the next batch, an answer, and any other."""
COUNTS = "counts"
"""Kind of the record of problems that were counted outside of the decision core, which decided nothing there."""
KINDS: Mapping[type, str] = {
    events.RequestEnqueued: REQUEST,
    events.RequestRejected: REQUEST,
    events.EnginePolled: BATCH,
    events.AnswerReceived: REPLY,
}
REFUSED_REQUESTS = frozenset({events.RequestReceived, events.AdmissionChecked})
"""Events whose records have the kind of a request where they are refused."""
FIGURES = ("sessions", "waiting", "load")
"""Figures of the status message that are recorded."""
Padded = Callable[[int, int], int]
"""(engine, rows) -> rows that it computes for such a batch."""


def image_bytes(note: Note) -> int:
    """Return the size of the images that a note keeps: those of a request, encoded and decoded."""
    if note.method != "deposit":
        return 0
    request, observation, _ = note.args
    decoded = sum(image.nbytes for image in request.images.values() if isinstance(image, np.ndarray))
    return int(decoded) + sum(len(image.data) for image in observation.images)


def kind_of(note: Note) -> str:
    kind = INPUTS.get(note.method)
    if kind is None:
        return EVENT
    is_refused = kind in REFUSED_REQUESTS and isinstance(note.answer, Exception)
    return REQUEST if is_refused else KINDS.get(kind, EVENT)


def record_of(note: Note, padded: Padded = lambda engine, rows: rows) -> dict[str, Any]:
    """Return the keys of a note's record. Raises: `TypeError` for a value that cannot be recorded."""
    event, request = note.event, None
    if isinstance(event, events.AnswerReceived):
        request = note.args[0].batch[event.position].request.id
    time = {} if note.now_s is None else {"now_s": note.now_s}
    decision = decided(event, note.answer, note.next_poll_s, request)
    return {"event": codec.plain(without_arrays(event)), **time, **decision, **_measured(note, event, padded)}


def decided(event: events.Event, answer: Any, next_poll_s: float, request: RequestId | None) -> dict[str, Any]:
    """Return the keys of a record that the decision core determines.

    answer: result of the event, or the error that it raised. next_poll_s: `ServerCore.poll_at_s` after it. request: the request
    that an `AnswerReceived` is about.
    """
    told = {} if request is None else {"request": codec.plain(request)}
    if isinstance(event, events.EnginePolled):
        told["next_poll_s"] = codec.number(next_poll_s)
    if not isinstance(answer, Exception):
        return {**told, "result": _result(event, answer)}
    counter = {"counter": answer.kind} if isinstance(answer, BadMessageError) else {}
    return {**told, "raised": codec.raised(answer), **counter}


def _result(event: events.Event, answer: Any) -> Any:
    if type(event) in REFUSED_REQUESTS:  # the session, which is part of the core
        return None
    if isinstance(answer, RunningBatch):
        ids = [codec.plain(waiting.request.id) for waiting in answer.batch]
        return {"batch": answer.number, "requests": ids, "is_whole": answer.whole}
    if isinstance(event, events.AnswerReceived):
        return None if answer is None else _reply(answer)
    if isinstance(answer, SessionGrant):
        return {"session_epoch": answer.session_epoch, "warnings": list(answer.warnings)}
    if isinstance(answer, ServerSnapshot):
        return {name: codec.plain(getattr(answer, name)) for name in FIGURES}
    return codec.plain(tuple(answer) if isinstance(answer, list) else answer)


def _reply(reply: Reply) -> dict[str, Any]:
    """Return what is decided about a reply; its answer and its outlook are part of the event."""
    names = ("server", "model_hash", "stamp_ns")
    found = {**{name: getattr(reply, name) for name in names}, "served": codec.plain(reply.served)}
    if isinstance(reply, ActionChunk):
        names = ("execution_horizon", "inference_delay_steps", "ended_with")
        found |= {name: getattr(reply, name) for name in names}
    return found | ({"subgoals": list(reply.subgoals)} if isinstance(reply, SubgoalPlan) else {})


# --- arrays and images, which no decision reads ---


def without_arrays(event: events.Event) -> events.Event:
    """Return an event as it is recorded: of states, prefixes and chunks only the numbers of rows remain, which decisions read."""
    if isinstance(event, events.RequestEnqueued):
        return events.RequestEnqueued(_request(event.request), _observation(event.observation))
    if isinstance(event, events.AnswerReceived) and event.answer is not None:
        return events.AnswerReceived(event.batch, event.position, _answer(event.answer), event.horizon_decision)
    return event


def _request(request: InferenceRequest) -> InferenceRequest:
    terms = (request.conditioning, request.guidance, request.horizon, request.pipelining, request.num_steps, request.decoding_s)
    return bare(request.id, request.instruction, request.inference_delay_steps, len(request.prefix_model), *terms)


def _observation(observation: ObservationRequest) -> ObservationRequest:
    return replace(observation, state=NO_VALUES, prefix_model=NO_ROWS, prefix_robot=NO_ROWS)


def _answer(answer: EngineReply) -> EngineReply:
    model, robot = (np.empty((len(rows), 0), np.float32) for rows in (answer.chunk_model, answer.chunk_robot))
    return replace(answer, chunk_model=model, chunk_robot=robot, updates=NO_UPDATES)


def _measured(note: Note, event: events.Event, padded: Padded) -> dict[str, Any]:
    """Return the keys of a record that the decision core does not determine: digests of arrays, and what engines compute."""
    if isinstance(event, events.RequestEnqueued):
        return {"inputs_digest": inputs_of(event.observation), "noise_seed": noise_of(event.request.id)}
    if isinstance(event, events.EnginePolled) and isinstance(note.answer, RunningBatch):
        return {"padded_rows": padded(event.engine, len(note.answer.batch))}
    if isinstance(event, events.AnswerReceived) and isinstance(note.answer, ActionChunk) and event.answer is not None:
        updates = event.answer.updates
        chunk = digest_of(note.answer.chunk_model, note.answer.chunk_robot)
        return {"chunk_digest": chunk, "updates_digest": digest_of(updates) if updates.size else ""}
    return {}


def noise_of(request: RequestId) -> list[int]:
    """Return the seed of a request's noise, beside the model's seed (`engines/flow/sampling.py`)."""
    return [zlib.crc32(f"{request.robot}/{request.component}".encode()), request.episode, request.sequence]


def inputs_of(observation: ObservationRequest) -> str:
    """Return the digest of the model's inputs beside images and text."""
    return digest_of(observation.state, observation.prefix_model, observation.prefix_robot)


def digest_of(*arrays: Array) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, np.float32).tobytes())
    return digest.hexdigest()[:32]
