"""Conversion of a requested time into a moment, and its control period."""

from __future__ import annotations

import datetime
import math
import re

from ros2_rfm_serving.audit import local_time
from ros2_rfm_serving.audit.explain.behind import is_between
from ros2_rfm_serving.audit.explain.explanation import clock
from ros2_rfm_serving.audit.explain.processes import fate_of
from ros2_rfm_serving.audit.log import ROBOT, AuditLog, Entry
from ros2_rfm_serving.errors import ConfigurationError

TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d*)?))?")
MEANT_S = 1e-3
"""Resolution of moments with three digits, which include a control period that begins within it."""
NEAR_S = 2.0
"""Largest age at which a control period describes a moment of a running process."""
LOOKS_BACK_S = 30.0
"""Time before a moment for which frequent records are kept; transitions, plans and operator commands are all kept."""
BEFORE_END = re.compile(r"-(\d+(?:\.\d*)?)s")
FORMS = "14:03:12.4 (local time), 12.5 (seconds since the recording began), -30s (before its end) or 2026-01-31T14:03:12.4+01:00"


def moment_of(text: str, begins_s: float, ends_s: float) -> float:
    """Return the ROS time of a text. Raises: `ConfigurationError` when it is not a time, or not in the recording."""
    before_end = BEFORE_END.fullmatch(text.strip())
    at_s = ends_s - float(before_end[1]) if before_end else _parsed(text.strip(), begins_s, ends_s)
    if not begins_s - NEAR_S <= at_s <= ends_s + NEAR_S:
        reach = f"{clock(begins_s)} to {clock(ends_s)}, {ends_s - begins_s:.1f} s"
        raise ConfigurationError(f"{text} is not in the recording ({reach})", key="--at", fix="name a moment in between")
    return at_s


def _parsed(text: str, begins_s: float, ends_s: float) -> float:
    if re.fullmatch(r"[+-]?\d+(\.\d*)?", text):
        return begins_s + float(text)
    if found := TIME_OF_DAY.fullmatch(text):
        return _first(_time_of_day(text, *found.groups(default="0")), text, begins_s, ends_s)
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigurationError(f"{text!r} is no time", key="--at", fix=f"write {FORMS}") from None
    return moment.timestamp() if moment.tzinfo else _here(moment, text, begins_s)


def _here(day: datetime.datetime, text: str, begins_s: float) -> float:
    """Return the moment of a local date and time: of two, the first that is not before the recording.

    Raises: `ConfigurationError` where clocks were set forward over it.
    """
    found = local_time.moments(day)
    if not found:
        raise _skipped(day, text)
    return next((at_s for at_s in found if at_s >= begins_s - NEAR_S), found[-1])


def _skipped(day: datetime.datetime, text: str) -> ConfigurationError:
    problem = f"clocks here were set forward over {text} on {day:%Y-%m-%d}: that day has no such time"
    return ConfigurationError(problem, key="--at", fix=f"write {FORMS}")


def _time_of_day(text: str, hour: str, minute: str, second: str) -> datetime.time:
    """Return the time of day. Raises: `ConfigurationError` when there is no such time."""
    whole, _, fraction = second.partition(".")
    try:
        return datetime.time(int(hour), int(minute), int(whole), int(f"{fraction:0<6}"[:6]))
    except ValueError:
        raise ConfigurationError(f"{text!r} is no time of day", key="--at", fix=f"write {FORMS}") from None


def _first(of_day: datetime.time, text: str, begins_s: float, ends_s: float) -> float:
    """Return the first moment of the recording at which local clocks show a time, or else a near one: it may be past midnight.

    Raises: `ConfigurationError` where the recording has none, and clocks were set forward over it.
    """
    near_s = begins_s - NEAR_S
    today = datetime.datetime.fromtimestamp(near_s).date()
    days = [datetime.datetime.combine(today + datetime.timedelta(days=number), of_day) for number in range(3)]
    found = [at_s for day in days for at_s in local_time.moments(day) if at_s >= near_s]
    if within := [at_s for at_s in found if begins_s <= at_s <= ends_s]:
        return within[0]
    skipped = [day for day in days if not local_time.moments(day) and near_s <= day.timestamp() <= ends_s + NEAR_S]
    if skipped and not (found and found[0] <= ends_s + NEAR_S):
        raise _skipped(skipped[0], text)
    return found[0] if found else math.inf


def period_at(log: AuditLog, robot: str, at_s: float) -> Entry:
    """Return the last control period up to a moment. Raises: `ConfigurationError` without a near one."""
    if ROBOT + robot not in log.by_writer:
        fix = f"name one of {', '.join(log.robots)}" if log.robots else "record with rfm record, or rfm up --record"
        problem = f"no robot {robot!r} is in the audit log of this recording" if robot else "names no robot"
        raise ConfigurationError(problem, key="--robot", fix=fix)
    fate = fate_of(log, ROBOT + robot, at_s)
    back_s = NEAR_S if fate.runs else LOOKS_BACK_S
    ticks = log.within(ROBOT + robot, at_s - back_s, at_s + NEAR_S, "tick")
    before = [one for one in ticks if one.stamp_s <= at_s + MEANT_S]
    decided = [one for one in before if not is_between(one)]
    if not ticks:
        problem = f"no control period of {robot} was recorded around {clock(at_s)}: {fate.text}"
        raise ConfigurationError(problem, key="--at", fix="name a moment at which it ran; rfm audit verify says what was lost")
    return (decided or before or ticks[:1])[-1]


def last_tick_s(log: AuditLog, robot: str, ends_s: float) -> float:
    """Return the time of a robot's last control period up to the end of the recording; the end itself if unknown."""
    ticks = log.within(ROBOT + robot, ends_s - LOOKS_BACK_S, ends_s + NEAR_S, "tick") if ROBOT + robot in log.by_writer else []
    return ticks[-1].stamp_s if ticks else ends_s
