"""Provenance of a control period's command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ros2_rfm_serving.audit.explain.processes import Fate, fate_of
from ros2_rfm_serving.audit.log import ROBOT, SERVER, AuditLog, Entry, Key, key_of, mapping, reply_of
from ros2_rfm_serving.audit.robots.records import EXECUTES, NO_COMMAND
from ros2_rfm_serving.types import SYSTEM1

NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Control period of a robot with access to its causes."""

    log: AuditLog
    robot: str
    at_s: float
    """Requested ROS time."""
    tick: Entry
    """Last control period up to then."""
    fate: Fate
    """State of the robot's process at `at_s`."""
    why: Mapping[str, Any]
    key: Key | None
    """Key of the request whose chunk is executed, or else of the last System 1 request; None if unknown."""
    sent: Entry | None
    """Control period that sent the request."""
    request: Mapping[str, Any]
    answered: Entry | None
    """Event with its reply."""

    @property
    def executes(self) -> bool:
        return str(self.why.get("source")) in EXECUTES

    @property
    def server(self) -> str:
        """Return the server of the request; empty without a request."""
        return str(mapping(self.why.get("chunk")).get("server") or self.request.get("server") or "")

    @property
    def reply(self) -> Mapping[str, Any]:
        return reply_of(self.answered) if self.answered else NONE

    def own(self, entry: Entry) -> bool:
        """Return whether the process of this control period wrote an entry, and not an earlier or later one of the same name."""
        return self.log.process_of(entry) == self.log.process_of(self.tick)

    def missing(self, since_s: float) -> int:
        """Return the number of the robot's missing records from a time until this control period."""
        runs = [run for run in self.log.runs.get(ROBOT + self.robot, ()) if run.process == self.log.process_of(self.tick)]
        return sum(run.missing(since_s, self.tick.stamp_s) for run in runs)

    def of_server(self, kind: str) -> Entry | None:
        """Return the server's record about the request, or about its batch."""
        return self.log.about(SERVER + self.server, kind, self.key) if self.key else None


def moment(log: AuditLog, robot: str, tick: Entry, at_s: float) -> Moment:
    why = mapping(tick.body.get("why"))
    key = key_of(why["chunk"], robot) if why.get("chunk") else _last_asked(log, robot, tick)
    sent, request = log.requests.get(key, (None, NONE)) if key else (None, NONE)
    answered = log.replies.get(key) if key else None
    if answered is not None and answered.stamp_s > tick.stamp_s:
        answered = None  # it had not yet arrived
    return Moment(
        log=log,
        robot=robot,
        at_s=at_s,
        tick=tick,
        fate=fate_of(log, ROBOT + robot, at_s),
        why=why,
        key=key,
        sent=sent,
        request=request,
        answered=answered,
    )


def since(found: Moment) -> tuple[float, int]:
    """Return the ROS time since when the same reason has held, as far as it was recorded, and the number of control periods."""
    same, begin = 0, found.tick
    for one in reversed(found.log.within(ROBOT + found.robot, -math.inf, found.tick.stamp_s, "tick")):
        if is_between(one):
            continue
        if _grounds(one) != _grounds(found.tick) or not found.own(one):
            break
        same, begin = same + 1, one
    return begin.stamp_s, same


def is_between(tick: Entry) -> bool:
    """Return whether a tick came between two control periods, so that no command was due."""
    why = mapping(tick.body.get("why"))
    return why.get("source") == NO_COMMAND and why.get("reason") == "no control period yet"


def _grounds(tick: Entry) -> tuple[Any, ...]:
    why = mapping(tick.body.get("why"))
    return str(why.get("source")) in EXECUTES, why.get("reason")


def _last_asked(log: AuditLog, robot: str, tick: Entry) -> Key | None:
    process = log.process_of(tick)
    asked = [
        (entry.stamp_s, key)
        for key, (entry, _) in log.requests.items()
        if key.robot == robot and key.component == SYSTEM1 and entry.stamp_s <= tick.stamp_s
        if log.process_of(entry) == process
    ]
    return max(asked)[1] if asked else None
