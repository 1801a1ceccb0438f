"""Statuses and schedules in a recording: which were said by whose certificate? A recorder notes everything, as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from rfm_serving import msg

from ros2_rfm_serving.audit.bag import Message
from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.node.said import STALE, Hearer
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.proven import is_of
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.security.signing import Verifier
from ros2_rfm_serving.types import Heard

KINDS = {f"rfm_serving/msg/{kind.__name__}": kind for kind in (msg.RobotStatus, msg.ServerStatus, msg.Schedule)}
REPEATED = (STALE, Heard.STALE.value)


@dataclass
class Proofs:
    proven: int = 0
    repeated: int = 0
    """Were there before: a middleware repeats, and so may anybody."""
    unproven: Counter[str] = field(default_factory=Counter)
    """By topic."""
    problems: dict[str, str] = field(default_factory=dict)
    """Topic -> what is wrong with the first of them."""


def check(messages: Iterable[Message], enclave: Path) -> Proofs:
    """messages: of `KINDS`, as they came. enclave: whose authority counts; certificates must have been good when a message was
    recorded, and not be revoked now. Raises: `ConfigurationError`."""
    found, now = Proofs(), [datetime.now(timezone.utc)]
    verifier = Verifier(enclave, lambda: now[0])
    hearer, schedules = Hearer(verifier), bounded.Repeated(msg.Schedule, ScheduleHearer(verifier).check)
    for message in messages:
        now[0] = datetime.fromtimestamp(message.time_ns / 1e9, timezone.utc)
        try:
            if KINDS[message.type] is msg.Schedule:
                schedules(message.data)
            else:
                _check_status(message, hearer)
        except BadMessageError as error:
            if error.kind in REPEATED:
                found.repeated += 1
                continue
            found.unproven[message.topic] += 1
            found.problems.setdefault(message.topic, str(error))
            continue
        found.proven += 1
    return found


def _check_status(message: Message, hearer: Hearer) -> None:
    """Raises: `BadMessageError`."""
    parts = message.topic.split("/")
    name = parts[-3] if KINDS[message.type] is msg.RobotStatus else parts[-2]  # <robot>/rfm/status, servers/<server>/status
    status, end = bounded.measured(message.data, KINDS[message.type])
    hearer.check_own(name, status, memoryview(message.data)[:end])
    is_of(name, status)
