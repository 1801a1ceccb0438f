"""Explanation of one moment of one robot."""

from __future__ import annotations

from collections.abc import Callable

from ros2_rfm_serving.audit.explain.behind import Moment, moment
from ros2_rfm_serving.audit.explain.explanation import Explanation, Part, duration
from ros2_rfm_serving.audit.explain.fleet_parts import people_part, processes_part, schedule_part
from ros2_rfm_serving.audit.explain.moments import LOOKS_BACK_S, MEANT_S, period_at
from ros2_rfm_serving.audit.explain.processes import Presence
from ros2_rfm_serving.audit.explain.robot_parts import (
    chunk_part,
    command_part,
    events_part,
    request_part,
    sensors_part,
    shown,
    state_part,
)
from ros2_rfm_serving.audit.explain.server_parts import model_part, network_part, server_part
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.robots.records import NO_COMMAND
from ros2_rfm_serving.errors import RfmError

LOOKS_ON_S = 2.0
YOUNG_S = 0.5
"""Largest age at which a control period describes a moment without other evidence, because its page is the recording's last one."""
PARTS = (state_part, sensors_part, request_part, network_part, server_part, model_part, chunk_part, command_part, events_part)


def window(at_s: float) -> tuple[float, float]:
    """Return the time window that `AuditLog` must keep for an explanation."""
    return at_s - LOOKS_BACK_S, at_s + LOOKS_ON_S


def explain(log: AuditLog, robot: str, at_s: float) -> Explanation:
    """Return the explanation. at_s: ROS time. Raises: `ConfigurationError` when no records of that robot are near."""
    found = moment(log, robot, period_at(log, robot, at_s), at_s)
    parts = [_read(part, found) for part in (*PARTS, people_part, schedule_part, processes_part)]
    return Explanation(
        robot=robot,
        stamp_s=found.tick.stamp_s,
        headline=_headline(found),
        parts=tuple(part for part in parts if part is not None),
        images=shown(found),
    )


def _read(part: Callable[[Moment], Part | None], found: Moment) -> Part | None:
    """Return a part; malformed records, which any process may have written, replace only this part by a message."""
    try:
        return part(found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RfmError) as error:
        words = f"its records are not as they should be: {type(error).__name__}: {error}; see `rfm audit verify`"
        return Part(name=part.__name__.removesuffix("_part"), lines=(words,), known=False)


def _headline(found: Moment) -> str:
    fate, after_s = found.fate, found.tick.stamp_s - found.at_s
    if after_s > MEANT_S:  # all recorded periods are later
        return f"{fate.text}; the next control period that is recorded, {duration(after_s)} after, {_did(found)}"
    if fate.presence is not Presence.RUNNING and (fate.certain or -after_s > YOUNG_S):
        return f"{fate.text}; its last control period {_did(found)}"
    return _did(found)


def _did(found: Moment) -> str:
    why = found.why
    if found.executes:
        limited = ", changed by its limits" if why.get("limited_from") is not None else ""
        return f"executed row {why.get('step', '?')} of a chunk of {found.server}{limited}"
    if why.get("source") == NO_COMMAND:
        return f"sent no command: {why.get('reason') or 'no reason was recorded'}"
    return f"held ({why.get('fallback') or why.get('source') or '?'}): {why.get('reason') or 'no reason was recorded'}"
