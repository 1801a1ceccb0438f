"""`ros/wire/convert.py` and `ros/wire/session_messages.py`: messages as the generated code gives them.

First byte: the kind of message; the rest: its bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import cdr, convert, session_messages
from ros2_rfm_serving.types import JudgeVerdict, SubgoalPlan
from test.fuzz.targets.cdr import CHUNK, OBSERVATION
from test.unit import fakes


class Kind(NamedTuple):
    message: type
    read: Any
    write: Any


def _grant_to(grant: Any) -> Any:
    message = srv.OpenSession.Response(session_epoch=grant.session_epoch, warnings=list(grant.warnings))
    return session_messages.contract_to(grant.contract, message)


KINDS = (
    Kind(msg.Observation, convert.observation_from, convert.observation_to),
    Kind(msg.ActionChunk, convert.chunk_from, convert.reply_to),
    Kind(msg.Judgement, convert.verdict_from, convert.reply_to),
    Kind(msg.Plan, convert.plan_from, convert.reply_to),
    Kind(msg.Schedule, convert.schedule_from, lambda schedule: convert.schedule_to(schedule, "f")),
    Kind(srv.OpenSession.Request, session_messages.session_request_from, session_messages.session_request_to),
    Kind(srv.OpenSession.Response, session_messages.grant_from, _grant_to),
)


def seeds() -> list[bytes]:
    same: dict[str, Any] = {"id": OBSERVATION.id, "stamp_ns": 5, "server": "s1", "model_hash": "h", "served": fakes.SERVED}
    nouns = [
        OBSERVATION,
        CHUNK,
        JudgeVerdict(verdict="done", score=math.nan, text="why", **same),
        SubgoalPlan(subgoals=("reach", "push"), text="why", **same),
        fakes.schedule(),
        fakes.session_request(),
        fakes.grant(),
    ]
    return [bytes([i]) + serialize_message(kind.write(noun)) for i, (kind, noun) in enumerate(zip(KINDS, nouns, strict=True))]


def check(data: bytes) -> None:
    kind = KINDS[data[0] % len(KINDS) if data else 0]
    if not cdr.ends_in_itself(data[1:]):
        return  # Fast CDR reads past its end: whoever may write into the domain can end any ROS node that uses it
    try:
        message = deserialize_message(data[1:], kind.message)
    except RuntimeError:
        return  # rclpy's: it has not become a message
    try:
        noun = kind.read(message)
    except BadMessageError:
        return
    arrived = _sent(kind.write(noun))
    assert repr(_sent(kind.write(kind.read(arrived)))) == repr(arrived)  # NaN is equal to NaN there


def _sent(message: Any) -> Any:
    return deserialize_message(serialize_message(message), type(message))
