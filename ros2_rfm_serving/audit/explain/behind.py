"""What a control period's command hangs on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ros2_rfm_serving.audit.explain.processes import Fate, fate_of
from ros2_rfm_serving.audit.log import ROBOT, SERVER, AuditLog, Entry, Key, key_of, mapping, reply_of
from ros2_rfm_serving.types import SYSTEM1

NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A control period of a robot, and where to find what led to it."""

    log: AuditLog
    robot: str
    at_s: float
    """ROS time that was asked about."""
    tick: Entry
    """The last control period up to then."""
    fate: Fate
    """What is known of the robot's process at `at_s`."""
    why: Mapping[str, Any]
    key: Key | None
    """Of the request whose chunk is executed; without one, of the last request of System 1; None: none is known."""
    sent: Entry | None
    """The control period that sent it."""
    request: Mapping[str, Any]
    answered: Entry | None
    """When its answer came."""

    @property
    def executes(self) -> bool:
        return str(self.why.get("by")) in ("row", "part")

    @property
    def server(self) -> str:
        """Empty: nobody was asked."""
        return str(mapping(self.why.get("chunk")).get("server") or self.request.get("server") or "")

    @property
    def reply(self) -> Mapping[str, Any]:
        return reply_of(self.answered) if self.answered else NONE

    def own(self, entry: Entry) -> bool:
        """Whether the process of this control period wrote it, and not one of the same name before or after it."""
        return self.log.process_of(entry) == self.log.process_of(self.tick)

    def missing(self, since_s: float) -> int:
        """Return how many records of the robot are missing from then until this control period."""
        runs = [run for run in self.log.runs.get(ROBOT + self.robot, ()) if run.process == self.log.process_of(self.tick)]
        return sum(run.missing(since_s, self.tick.stamp_s) for run in runs)

    def of_server(self, kind: str) -> Entry | None:
        """What the server says about the request, or about the batch that it was in."""
        return self.log.about(SERVER + self.server, kind, self.key) if self.key else None


def moment(log: AuditLog, robot: str, tick: Entry, at_s: float) -> Moment:
    why = mapping(tick.body.get("why"))
    key = key_of(why["chunk"], robot) if why.get("chunk") else _last_asked(log, robot, tick)
    sent, request = log.requests.get(key, (None, NONE)) if key else (None, NONE)
    answered = log.replies.get(key) if key else None
    if answered is not None and answered.stamp_s > tick.stamp_s:
        answered = None  # not yet
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
    """ROS time since when the same reason has held without a break, as far as it was recorded, and how many control periods."""
    same, begin = 0, found.tick
    for one in reversed(found.log.within(ROBOT + found.robot, -math.inf, found.tick.stamp_s, "tick")):
        if is_between(one):
            continue
        if _grounds(one) != _grounds(found.tick) or not found.own(one):
            break
        same, begin = same + 1, one
    return begin.stamp_s, same


def is_between(tick: Entry) -> bool:
    """Somebody looked, but it was not time for a command."""
    why = mapping(tick.body.get("why"))
    return why.get("by") == "nothing" and why.get("reason") == "no control period yet"


def _grounds(tick: Entry) -> tuple[Any, ...]:
    why = mapping(tick.body.get("why"))
    return str(why.get("by")) in ("row", "part"), why.get("reason")


def _last_asked(log: AuditLog, robot: str, tick: Entry) -> Key | None:
    process = log.process_of(tick)
    asked = [
        (entry.stamp_s, key)
        for key, (entry, _) in log.requests.items()
        if key.robot == robot and key.component == SYSTEM1 and entry.stamp_s <= tick.stamp_s
        if log.process_of(entry) == process
    ]
    return max(asked)[1] if asked else None
