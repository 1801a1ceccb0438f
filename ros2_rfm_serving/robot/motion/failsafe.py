"""The fail-safe states of a robot (Remote-RTC §9.2): what people see, and what ends a task when no server comes back.

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
"""Every transition there is. CONNECTING is also where a robot falls back to that no schedule has a route for any more."""

STREAMING, DEAD = RobotState.STREAMING, RobotState.DEAD
OFFLINE = (RobotState.CONNECTING, RobotState.RECONNECTING)
"""With a task, they last until the first chunk."""
NO_CHUNK = "no chunk yet"


class Facts(NamedTuple):
    """What the state follows from, as of one control period."""

    scheduled: bool
    """A schedule has a route for System 1."""
    problem: str
    """Why it has no session; empty: it has one."""
    mismatch: str
    """How a server's model differs from the one before; empty: it does not."""
    executing: bool
    """A task wants actions."""
    connected: bool
    """It has had a session."""
    served: bool
    """A chunk of this session was merged: a server that takes requests and answers none does not serve."""
    stalled_since_s: float
    """Since when an action is needed and none is there; inf: not."""
    stalls_after_s: float
    """How long that is normal: a robot that waits for each chunk waits."""
    failing_since_s: float
    """Since when a request is without the answer it should have had; inf: none is."""
    warning: str
    """Why the robot does worse than it could; empty: it does not."""
    no_request: str
    """Why it does not ask; empty: it could."""


class FailSafe:
    """One robot's state. `update` once per control period; nothing here blocks or raises."""

    KEPT: ClassVar = kept("state", "reason", "offline_since_s", transitions="changes")

    def __init__(self, config: FailSafeConfig) -> None:
        self._config = config
        self.state, self.reason = RobotState.CONNECTING, "no schedule yet"
        self.changes: Counter[tuple[RobotState, RobotState]] = Counter()
        self.offline_since_s = math.inf
        """Of a task that is without a server; inf: not so."""
        self.dead_s = math.inf
        """When being offline becomes being DEAD."""

    def restored(self) -> None:
        """Set when being offline becomes being DEAD."""
        self._expect()

    def reconfigure(self, config: FailSafeConfig) -> None:
        self._config = config
        self._expect()

    def _expect(self) -> None:
        self.dead_s = self.offline_since_s + self._config.max_offline_s if self._config.max_offline_s else math.inf

    def update(self, facts: Facts, now_s: float) -> bool:
        """True when the state is another one than before."""
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
            return RobotState.STREAMING, ""  # how well it streams, the next period says
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
