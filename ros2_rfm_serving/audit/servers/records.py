"""Conversion of notes of a server's decisions into records (docs/audit.md), outside of the server's lock."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.servers import objects
from ros2_rfm_serving.audit.servers.witness import Note
from ros2_rfm_serving.server import ServerSnapshot
from ros2_rfm_serving.types import (
    Array,
    Chunk,
    EngineReply,
    InferenceRequest,
    ObservationRequest,
    Phases,
    Reply,
    RequestId,
    SessionGrant,
)

CALL, REQUEST, BATCH, REPLY = "call", "request", "batch", "reply"
COUNT = "count"
"""Call for problems that were counted outside of the decision core, which decided nothing there."""
KINDS = {"deposit": REQUEST, "unfit": REQUEST, "admitted": REQUEST, "begin": BATCH, "reply": REPLY}
"""Kinds of the records that are not a mere `call`."""
ARGS: dict[str, tuple[str, ...]] = {
    "open_session": ("request",),
    "close_session": ("robot", "component", "epoch"),
    "take_new": ("takes",),
    "refuse_waiting": (),
    "collect_sessions": ("absent", "now_s"),
    "reset_episode": ("robot", "component", "epoch", "episode"),
    "resize": ("batch_size", "max_sessions"),
    "reconfigure": ("config",),
    "declare": ("rates_hz",),
    "charge": ("request", "now_s"),
    "superseded_early": ("request",),
    "entered": ("turns", "now_s"),
    "turn": ("ready", "took_s", "now_s"),
    "refetches": ("now_s",),
    "snapshot": ("now_s",),
}
"""Names of the arguments of calls that are recorded as `call`."""


def image_bytes(note: Note) -> int:
    """Return the size of the images that a note keeps: those of a request, encoded and decoded."""
    if note.do != "deposit":
        return 0
    request, observation, _ = note.args
    decoded = sum(image.nbytes for image in request.images.values() if isinstance(image, np.ndarray))
    return int(decoded) + sum(len(image.data) for image in observation.images)


def kind_of(note: Note) -> str:
    refused = note.do == "charge" and isinstance(note.gave, Exception)
    return REQUEST if refused else KINDS.get(note.do, CALL)


def body_of(note: Note, padded: Callable[[int, int], int] = lambda tier, rows: rows) -> dict[str, Any]:
    """Return the body of a note's record. `padded`: (tier, rows) -> rows that its engine computes for such a batch."""
    kind = kind_of(note)
    if kind == REQUEST:
        return _request(note)
    if kind == BATCH:
        return _batch(note, padded)
    if kind == REPLY:
        return _reply(note)
    return _ended(note) if note.do == "ended" else _call(note)


def _ended(note: Note) -> dict[str, Any]:
    work, answered, num_failed, now_s = note.args
    args = {"batch": work.number, "answered": list(answered), "num_failed": num_failed, "now_s": now_s}
    return {"do": note.do, "args": args, "result": note.gave}


def _call(note: Note) -> dict[str, Any]:
    args = {name: _arg(value) for name, value in zip(ARGS[note.do], note.args, strict=True)}
    if isinstance(note.gave, Exception):
        return {"do": note.do, "args": args, "raised": words(note.gave)}
    return {"do": note.do, "args": args, "result": _result(note)}


def _arg(value: Any) -> Any:
    return objects.plain(dict(value) if isinstance(value, dict) else value)


def _result(note: Note) -> Any:
    if isinstance(note.gave, SessionGrant):
        return {"session_epoch": note.gave.session_epoch, "warnings": list(note.gave.warnings)}
    if isinstance(note.gave, ServerSnapshot):
        return {name: getattr(note.gave, name) for name in ("sessions", "waiting", "load")}
    return None if note.do == "charge" else objects.plain(tuple(note.gave) if isinstance(note.gave, list) else note.gave)


def words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# --- requests ---


def _request(note: Note) -> dict[str, Any]:
    body: dict[str, Any] = {"do": note.do}
    if note.do == "deposit":
        body |= _deposited(*note.args)
    else:
        body |= {"id": objects.plain(note.args[0])}
        body |= {"now_s": note.args[1]} if note.do == "charge" else {}
    if note.do == "unfit":
        return body | {"refused": note.args[1], "problem": note.args[2]}
    if isinstance(note.gave, Exception):
        return body | {"refused": getattr(note.gave, "kind", ""), "problem": words(note.gave)}
    return body | {"supersedes": note.gave}


def _deposited(request: InferenceRequest, observation: ObservationRequest, now_s: float) -> dict[str, Any]:
    return {
        "id": objects.plain(request.id),
        "now_s": now_s,
        "stamp_ns": observation.stamp_ns,
        "instruction": request.instruction,
        "inference_delay_steps": request.inference_delay_steps,
        "prefix_rows": len(request.prefix_model),
        **({DECODING: request.decoding_s} if request.decoding_s else {}),
        "report": objects.plain(observation.report),
        "noise": noise_of(request.id),
        "images": {image.camera: _image(image.data) for image in observation.images},
        "inputs": inputs_of(observation),
    }


def _image(data: bytes | memoryview) -> dict[str, Any]:
    return {"sha256": codec.digest(data), "size": len(data)}


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


# --- batches and replies ---


def _batch(note: Note, padded: Callable[[int, int], int]) -> dict[str, Any]:
    (tier, now_s), work = note.args, note.gave
    ids = [objects.plain(waiting.request.id) for waiting in work.batch] if work else []
    body = {"batch": work.number if work else 0, "tier": tier, "now_s": now_s, "ids": ids}
    body |= {"whole": True} if work and work.whole else {}
    return body | {"padded": padded(tier, len(ids)) if ids else 0, "look_again_s": objects.plain(note.look_again_s)}


PHASES, DECODING = Phases.__slots__, "decoding_s"


def _reply(note: Note) -> dict[str, Any]:
    work, row, answer, _ = note.args
    reply: Reply | None = note.gave
    body: dict[str, Any] = {"batch": work.number, "row": row, "id": objects.plain(work.batch[row].request.id)}
    if reply is None:
        return body | {"outcome": "nobody is there any more" if answer else "failed"}
    body |= {"outcome": "answered", "server": reply.server, "model_hash": reply.model_hash, "stamp_ns": reply.stamp_ns}
    unknown = (*(() if reply.served.solver_steps else PHASES), *(() if reply.served.decoding_s else (DECODING,)))
    body |= {name: getattr(reply.served, name) for name in reply.served.__slots__ if name not in unknown}
    assert answer is not None
    return body | (_chunk(reply, answer) if isinstance(reply, Chunk) else _text(answer, reply))


def _chunk(reply: Chunk, answer: EngineReply) -> dict[str, Any]:
    elsewhere = bool(answer.execution_horizon or answer.confidence.size)
    return {
        "execution_horizon": reply.execution_horizon,
        "confidence": objects.plain(reply.confidence),
        "by": "engine" if elsewhere else "updates" if answer.updates.size else "nothing",
        "updates": digest_of(answer.updates) if answer.updates.size else "",
        "inference_delay_steps": reply.inference_delay_steps,
        **({} if reply.ended_with is None else {"ended_with": reply.ended_with}),
        "chunk": digest_of(reply.chunk_model, reply.chunk_robot),
        "chunk_rows": len(reply.chunk_robot),
    }


def _text(answer: EngineReply, reply: Reply) -> dict[str, Any]:
    said = {"verdict": answer.verdict, "text": answer.text, "score": objects.plain(answer.score)}
    subgoals: Sequence[str] = getattr(reply, "subgoals", ())
    return said | ({"subgoals": list(subgoals)} if subgoals else {})
