"""Fail-safe states of a robot (Remote-RTC §9.2), which the operator sees, and which end a task when no server comes back.

CONNECTING ──► STREAMING ◄──► DEGRADED        requests fail, actions are left
   ▲   ▲          ▲  ▲───────► STALLED ◄── DEGRADED     no action is left that may be executed
   │   │          │ first chunk merged
   │   └─ DEAD    RECONNECTING ◄── any state with a session, when that is lost
   └──────┘  ▲────────┘ offline for too long, or another model than before
"""

from __future__ import annotations

import math
from collections import Counter
from typing import ClassVar, NamedTuple

from ros2_rfm_serving.robot.config import FailSafeConfig
from ros2_rfm_serving.types import RobotState
from ros2_rfm_serving.types.state import kept

ALLOWED: dict[RobotState, frozenset[RobotState]] = {
    RobotState.CONNECTING: frozenset({RobotState.STREAMING, RobotState.DEAD, RobotState.RECONNECTING}),
    RobotState.STREAMING: frozenset({RobotState.DEGRADED, RobotState.STALLED, RobotState.RECONNECTING, RobotState.CONNECTING}),
    RobotState.DEGRADED: frozenset({RobotState.STREAMING, RobotState.STALLED, RobotState.RECONNECTING, RobotState.CONNECTING}),
    RobotState.STALLED: frozenset({RobotState.STREAMING, RobotState.DEGRADED, RobotState.RECONNECTING, RobotState.CONNECTING}),
    RobotState.RECONNECTING: frozenset({RobotState.STREAMING, RobotState.DEAD, RobotState.CONNECTING}),
    RobotState.DEAD: frozenset({RobotState.CONNECTING}),
}
"""All transitions. A robot also returns to CONNECTING when no schedule has a route for it any more."""

STREAMING, DEAD = RobotState.STREAMING, RobotState.DEAD
OFFLINE = (RobotState.CONNECTING, RobotState.RECONNECTING)
"""States without a server. With a task they last until the first chunk."""
NO_CHUNK = "no chunk yet"


class Facts(NamedTuple):
    """Facts that determine the state, as of one control period."""

    scheduled: bool
    """True when a schedule has a route for System 1."""
    problem: str
    """Reason why it has no session; empty: it has one."""
    mismatch: str
    """How a server's model differs from the one before; empty: it does not."""
    executing: bool
    """True when a task wants actions."""
    connected: bool
    """True when it has had a session."""
    served: bool
    """True when a chunk of this session was merged: a server that accepts requests without answers does not serve."""
    stalled_since_s: float
    """Time since which an action is needed but missing; inf: it is not."""
    stalls_after_s: float
    """Time for which that is normal, because a robot may wait for each chunk."""
    failing_since_s: float
    """Time since which a request's answer is overdue; inf: no answer is."""
    warning: str
    """Reason why the robot works worse than it could; empty: it does not."""
    no_request: str
    """Reason why no request is sent; empty: it could be."""


class FailSafe:
    """Fail-safe state of one robot. Call `update` once per control period; nothing here blocks or raises."""

    KEPT: ClassVar = kept("state", "reason", "offline_since_s", transitions="changes")

    def __init__(self, config: FailSafeConfig) -> None:
        self._config = config
        self.state, self.reason = RobotState.CONNECTING, "no schedule yet"
        self.changes: Counter[tuple[RobotState, RobotState]] = Counter()
        self.offline_since_s = math.inf
        """Time since which a task is without a server; inf: it is not."""
        self.dead_s = math.inf
        """Time at which an offline robot becomes DEAD."""

    def restored(self) -> None:
        """Compute when an offline robot becomes DEAD."""
        self._expect()

    def reconfigure(self, config: FailSafeConfig) -> None:
        self._config = config
        self._expect()

    def _expect(self) -> None:
        self.dead_s = self.offline_since_s + self._config.max_offline_s if self._config.max_offline_s else math.inf

    def update(self, facts: Facts, now_s: float) -> bool:
        """Update the state, and return whether it has changed."""
        before = self.state
        self.state, self.reason = self._judge(facts, now_s)
        offline = facts.executing and self.state in OFFLINE
        self.offline_since_s = min(self.offline_since_s, now_s) if offline else math.inf
        self._expect()
        if self.state is before:
            return False
        self.changes[before, self.state] += 1
        return True

    def _judge(self, facts: Facts, now_s: float) -> tuple[RobotState, str]:
        problem = facts.mismatch or facts.problem
        if self.state is DEAD:
            return (DEAD, facts.mismatch or self.reason) if problem else (RobotState.CONNECTING, "a server is back")
        if self.state not in OFFLINE:
            return self._offline(facts, problem) if problem else self._online(facts, now_s)
        if not problem and not (facts.executing and not facts.served):
            return RobotState.STREAMING, ""  # the next period tells how well it streams
        if facts.mismatch:
            return RobotState.DEAD, facts.mismatch
        if facts.executing and now_s >= self.dead_s:
            return RobotState.DEAD, f"offline for {now_s - self.offline_since_s:.0f} s: {problem or NO_CHUNK}"
        return self._offline(facts, problem) if problem else (self.state, NO_CHUNK)

    def _offline(self, facts: Facts, problem: str) -> tuple[RobotState, str]:
        return (RobotState.RECONNECTING if facts.connected and facts.scheduled else RobotState.CONNECTING), problem

    def _online(self, facts: Facts, now_s: float) -> tuple[RobotState, str]:
        stalled_s = now_s - facts.stalled_since_s
        if facts.executing and stalled_s >= facts.stalls_after_s:
            why = f"; {facts.warning}" if facts.warning else ""
            return RobotState.STALLED, f"{facts.no_request or 'no action'} for {stalled_s:.1f} s{why}"
        failing_s = now_s - facts.failing_since_s
        if failing_s >= self._config.degraded_after_s:
            return RobotState.DEGRADED, f"no answer for {failing_s:.1f} s"
        return (RobotState.DEGRADED, facts.warning) if facts.warning else (STREAMING, "")
