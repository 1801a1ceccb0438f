"""Which moment somebody means, and the control period that it falls into."""

from __future__ import annotations

import datetime
import re

from ros2_rfm_serving.audit.explain.behind import is_between
from ros2_rfm_serving.audit.explain.explanation import clock
from ros2_rfm_serving.audit.explain.processes import fate_of
from ros2_rfm_serving.audit.log import ROBOT, AuditLog, Entry
from ros2_rfm_serving.errors import ConfigurationError

TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d*)?))?")
NEAR_S = 2.0
"""A control period that is older says nothing about a moment of a process that runs."""
LOOKS_BACK_S = 30.0
"""Of frequent records before a moment; of transitions, plans and people's words, all."""
FORMS = "14:03:12.4 (local time), 12.5 (seconds since the recording began) or 2026-01-31T14:03:12.4+01:00"


def moment_of(text: str, begins_s: float, ends_s: float) -> float:
    """ROS time. Raises: `ConfigurationError`: it is no time, or none of the recording."""
    at_s = _parsed(text.strip(), begins_s)
    if not begins_s - NEAR_S <= at_s <= ends_s + NEAR_S:
        reach = f"{clock(begins_s)} to {clock(ends_s)}, {ends_s - begins_s:.1f} s"
        raise ConfigurationError(f"{text} is not in the recording ({reach})", key="--at", fix="name a moment in between")
    return at_s


def _parsed(text: str, begins_s: float) -> float:
    if re.fullmatch(r"[+-]?\d+(\.\d*)?", text):
        return begins_s + float(text)
    if found := TIME_OF_DAY.fullmatch(text):
        hour, minute, second = int(found[1]), int(found[2]), float(found[3] or 0)
        return _on_that_day(hour * 3600 + minute * 60 + second, begins_s)
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise ConfigurationError(f"{text!r} is no time", key="--at", fix=f"write {FORMS}") from None


def _on_that_day(of_day_s: float, begins_s: float) -> float:
    """The first such time of day from just before the recording on: one may go past midnight."""
    began = datetime.datetime.fromtimestamp(begins_s)
    midnight_s = began.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    at_s = midnight_s + of_day_s
    return at_s if at_s >= begins_s - NEAR_S else at_s + 86_400.0


def period_at(log: AuditLog, robot: str, at_s: float) -> Entry:
    """The last control period up to then. Raises: `ConfigurationError`: none is known."""
    if ROBOT + robot not in log.by_writer:
        fix = f"name one of {', '.join(log.robots)}" if log.robots else "record with rfm record, or rfm up --record"
        raise ConfigurationError(f"no robot {robot!r} is in the audit log of this recording", key="--robot", fix=fix)
    fate = fate_of(log, ROBOT + robot, at_s)
    back_s = NEAR_S if fate.runs else LOOKS_BACK_S
    ticks = log.within(ROBOT + robot, at_s - back_s, at_s + NEAR_S, "tick")
    before = [one for one in ticks if one.stamp_s <= at_s + 1e-3]
    decided = [one for one in before if not is_between(one)]
    if not ticks:
        problem = f"no control period of {robot} was recorded around {clock(at_s)}: {fate.text}"
        raise ConfigurationError(problem, key="--at", fix="name a moment at which it ran; rfm audit verify says what was lost")
    return (decided or before or ticks[:1])[-1]
