"""Detection of incidents from the statuses of robots and servers, as a pure function of messages and time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND
from ros2_rfm_serving.types.states import RobotState, ServerState, TaskPhase

ROBOT, SERVER = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/ServerStatus"
GOALS, AUDIT = "action_msgs/msg/GoalStatusArray", "rfm_serving/msg/AuditPage"
LISTENED = frozenset({ROBOT, SERVER, GOALS, AUDIT})
"""Types that the rules evaluate."""
SERVER_SILENT_S = 2.0
STOPPED_S = 1.0
"""Smallest time between two polls that means that the recorder itself was stopped: messages of that time are unread, so that no
server counts as silent."""
BURST_WINDOW_S, BURST = 5.0, 20
"""Window and number of the fleet's refused requests and held control periods that make an incident."""
ABORTED_GOAL = 6
"""Value of `STATUS_ABORTED` in action_msgs/GoalStatus."""
INCIDENT_S = 120.0
"""Longest duration of an incident with ever more causes; later causes begin another one."""
LOST_SERVER = frozenset({ServerState.FAILED, ServerState.HUNG})


class Cause(NamedTuple):
    """Cause of an incident."""

    kind: str
    """One of hold, safety_stop, abort, slo_burst, server_lost and person."""
    who: str
    """Robot or server; empty for the fleet."""
    why: str


@dataclass
class Watch:
    """Rules on messages: a method for each type in `LISTENED`, and `quiet` at each poll. A first message is never an incident."""

    _phases: dict[str, int] = field(default_factory=dict)
    _states: dict[str, int] = field(default_factory=dict)
    _paused: dict[str, bool] = field(default_factory=dict)
    _missed: dict[str, int] = field(default_factory=dict)
    """Robot -> number of refused requests and held control periods."""
    _burst: deque[tuple[float, int]] = field(default_factory=deque)
    _servers: dict[str, int] = field(default_factory=dict)
    _heard_s: dict[str, float] = field(default_factory=dict)
    """Server -> time of its last message."""
    _looked_s: float = math.inf
    _aborted: dict[str, frozenset[bytes]] = field(default_factory=dict)
    """Topic -> aborted goals."""

    def robot(self, status: Any, now_s: float) -> Iterator[Cause]:
        """Yield the causes in a `RobotStatus`."""
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
        """Yield the causes in a `ServerStatus`."""
        name = str(status.header.frame_id)
        before, self._servers[name] = self._servers.get(name), status.state
        self._heard_s[name] = now_s
        if before not in (None, status.state) and status.state in LOST_SERVER:
            yield Cause("server_lost", name, str(status.detail))

    def goals(self, topic: str, array: Any) -> Iterator[Cause]:
        """Yield the causes in a `GoalStatusArray`."""
        found = frozenset(bytes(one.goal_info.goal_id.uuid) for one in array.status_list if one.status == ABORTED_GOAL)
        before, self._aborted[topic] = self._aborted.get(topic), found
        if before is not None and found - before:
            yield Cause("abort", topic.partition("/execute_task")[0].rpartition("/")[2], "a task was aborted")

    def records(self, writer: str, records: Iterable[dict[str, Any]]) -> Iterator[Cause]:
        """Yield the causes in the records of an audit page."""
        for one in records:
            if one.get("kind") == OPERATOR_COMMAND:
                yield Cause("person", writer.rpartition("/")[2], str(one.get("command", "")))

    def quiet(self, now_s: float) -> Iterator[Cause]:
        """Yield a cause for each server that has become silent."""
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
    """Incident from its first cause until a period without causes."""

    begins_s: float
    ends_s: float
    causes: list[Cause] = field(default_factory=list)


class Incidents:
    """Grouping of causes that are close in time into incidents, with a limit on incidents per hour."""

    def __init__(self, *, after_s: float, per_hour: int) -> None:
        self._after_s, self._per_hour = after_s, per_hour
        self._begun_s: deque[float] = deque()
        self.open: Incident | None = None
        self.suppressed = 0
        """Number of causes that were dropped by the limit per hour."""

    def add(self, cause: Cause, now_s: float) -> Incident | None:
        """Add a cause, and return the incident if the cause begins one."""
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
        """Return and close the incident that is over; None without one."""
        if self.open is None or now_s < self.open.ends_s:
            return None
        ended, self.open = self.open, None
        return ended
