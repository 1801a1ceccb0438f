"""When something happened that somebody will ask about, told from what robots and servers say of themselves. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ros2_rfm_serving.types.states import RobotState, ServerState, TaskPhase

ROBOT, SERVER = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/ServerStatus"
GOALS, AUDIT = "action_msgs/msg/GoalStatusArray", "rfm_serving/msg/AuditPage"
LISTENED = frozenset({ROBOT, SERVER, GOALS, AUDIT})
"""Types that the rules look into."""
SERVER_SILENT_S = 2.0
STOPPED_S = 1.0
"""Between two looks, and the recorder itself did not run: what was said meanwhile is not read yet, and nobody was silent."""
BURST_WINDOW_S, BURST = 5.0, 20
"""Refused requests and held control periods of the fleet; as many are an incident."""
ABORTED_GOAL = 6
"""`STATUS_ABORTED` of action_msgs/GoalStatus."""
INCIDENT_S = 120.0
"""One in which ever more happens is over after this; what goes on is another one."""
LOST_SERVER = frozenset({ServerState.FAILED, ServerState.HUNG})
PERSONS = ("person", "stop")
"""Kinds of audit records."""


class Cause(NamedTuple):
    """What happened."""

    kind: str
    """"hold", "safety_stop", "abort", "slo_burst", "server_lost", "person"."""
    who: str
    """Robot or server; empty: the fleet."""
    why: str


@dataclass
class Watch:
    """`see` every message of the types in `LISTENED`, `quiet` now and then. The first word of everybody is no incident."""

    _phases: dict[str, int] = field(default_factory=dict)
    _states: dict[str, int] = field(default_factory=dict)
    _paused: dict[str, bool] = field(default_factory=dict)
    _missed: dict[str, int] = field(default_factory=dict)
    """Robot -> refused requests and held control periods."""
    _burst: deque[tuple[float, int]] = field(default_factory=deque)
    _servers: dict[str, int] = field(default_factory=dict)
    _heard_s: dict[str, float] = field(default_factory=dict)
    """Server -> when it was heard last."""
    _looked_s: float = math.inf
    _aborted: dict[str, frozenset[bytes]] = field(default_factory=dict)
    """Topic -> goals."""

    def robot(self, status: Any, now_s: float) -> Iterator[Cause]:
        """status: a `RobotStatus`."""
        name = str(status.header.frame_id)
        before, self._phases[name] = self._phases.get(name), status.phase
        if before not in (None, status.phase) and status.phase in (TaskPhase.STOPPED, TaskPhase.WAITING):
            kind = "safety_stop" if "safety" in status.stop_reason else "hold"
            yield Cause(kind, name, str(status.stop_reason))
        state, self._states[name] = self._states.get(name), status.state
        if state not in (None, status.state) and status.state in (RobotState.STALLED, RobotState.DEAD):
            yield Cause("hold", name, str(status.reason))
        if status.paused and self._paused.get(name) is False:
            yield Cause("person", name, "paused")
        self._paused[name] = bool(status.paused)
        yield from self._count(name, status, now_s)

    def server(self, status: Any, now_s: float) -> Iterator[Cause]:
        """status: a `ServerStatus`."""
        name = str(status.header.frame_id)
        before, self._servers[name] = self._servers.get(name), status.state
        self._heard_s[name] = now_s
        if before not in (None, status.state) and status.state in LOST_SERVER:
            yield Cause("server_lost", name, str(status.detail))

    def goals(self, topic: str, array: Any) -> Iterator[Cause]:
        """array: a `GoalStatusArray`."""
        found = frozenset(bytes(one.goal_info.goal_id.uuid) for one in array.status_list if one.status == ABORTED_GOAL)
        before, self._aborted[topic] = self._aborted.get(topic), found
        if before is not None and found - before:
            yield Cause("abort", topic.partition("/execute_task")[0].rpartition("/")[2], "a task was aborted")

    def records(self, writer: str, records: Iterable[dict[str, Any]]) -> Iterator[Cause]:
        """Of an audit page."""
        for one in records:
            if one.get("kind") in PERSONS:
                yield Cause("person", writer.rpartition("/")[2], str(one.get("what", "")))

    def quiet(self, now_s: float) -> Iterator[Cause]:
        """Who was there and is silent."""
        if (gap_s := now_s - self._looked_s) > STOPPED_S:
            self._heard_s = {name: heard_s + gap_s for name, heard_s in self._heard_s.items()}
        self._looked_s = now_s
        for name, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > SERVER_SILENT_S:
                del self._heard_s[name]
                self._servers.pop(name, None)
                yield Cause("server_lost", name, f"silent for {SERVER_SILENT_S:g} s")

    def _count(self, name: str, status: Any, now_s: float) -> Iterator[Cause]:
        missed = int(status.held_ticks) + sum(int(one.count) for one in status.refused)
        before, self._missed[name] = self._missed.get(name, missed), missed
        self._burst.append((now_s, max(0, missed - before)))
        while self._burst and now_s - self._burst[0][0] > BURST_WINDOW_S:
            self._burst.popleft()
        total = sum(count for _, count in self._burst)
        if total >= BURST:
            self._burst.clear()
            yield Cause("slo_burst", "", f"{total} refusals and held control periods in {BURST_WINDOW_S:g} s")


@dataclass
class Incident:
    """From its first cause until nothing happened any more."""

    begins_s: float
    ends_s: float
    causes: list[Cause] = field(default_factory=list)


class Incidents:
    """Causes close together are one incident; so many an hour are written."""

    def __init__(self, *, after_s: float, per_hour: int) -> None:
        self._after_s, self._per_hour = after_s, per_hour
        self._begun_s: deque[float] = deque()
        self.open: Incident | None = None
        self.suppressed = 0
        """Causes for which there was no incident any more, this hour."""

    def add(self, cause: Cause, now_s: float) -> Incident | None:
        """The incident, if this one begins it."""
        if self.open is not None:
            self.open.causes.append(cause)
            self.open.ends_s = min(now_s + self._after_s, max(self.open.begins_s + INCIDENT_S, self.open.ends_s))
            return None
        while self._begun_s and now_s - self._begun_s[0] >= 3600.0:
            self._begun_s.popleft()
        if len(self._begun_s) >= self._per_hour:
            self.suppressed += 1
            return None
        self._begun_s.append(now_s)
        self.open = Incident(now_s, now_s + self._after_s, [cause])
        return self.open

    def over(self, now_s: float) -> Incident | None:
        """The one that is over."""
        if self.open is None or now_s < self.open.ends_s:
            return None
        ended, self.open = self.open, None
        return ended
