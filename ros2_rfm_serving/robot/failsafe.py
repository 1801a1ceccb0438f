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
from typing import NamedTuple

from ros2_rfm_serving.robot.config import FailSafeConfig
from ros2_rfm_serving.types import RobotState

ALLOWED: dict[RobotState, frozenset[RobotState]] = {
    RobotState.CONNECTING: frozenset({RobotState.STREAMING, RobotState.DEAD, RobotState.RECONNECTING}),
    RobotState.STREAMING: frozenset({RobotState.DEGRADED, RobotState.STALLED, RobotState.RECONNECTING, RobotState.CONNECTING}),
    RobotState.DEGRADED: frozenset({RobotState.STREAMING, RobotState.STALLED, RobotState.RECONNECTING, RobotState.CONNECTING}),
    RobotState.STALLED: frozenset({RobotState.STREAMING, RobotState.DEGRADED, RobotState.RECONNECTING, RobotState.CONNECTING}),
    RobotState.RECONNECTING: frozenset({RobotState.STREAMING, RobotState.DEAD, RobotState.CONNECTING}),
    RobotState.DEAD: frozenset({RobotState.CONNECTING}),
}
"""Every transition there is. CONNECTING is also where a robot falls back to that no schedule has a route for any more."""


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
    merged_s: float
    """When the last chunk was merged; -inf: none in this session."""
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

    def __init__(self, config: FailSafeConfig) -> None:
        self._config = config
        self.state, self.reason = RobotState.CONNECTING, "no schedule yet"
        self.changes: Counter[tuple[RobotState, RobotState]] = Counter()
        self.offline_since_s = math.inf
        """Of a task without a session; inf: not so."""
        self._connected = False
        """It has had a session."""
        self._offline_s = -math.inf
        """When it was last seen without a session."""

    @property
    def dead_s(self) -> float:
        """When being offline becomes being DEAD."""
        return self.offline_since_s + self._config.max_offline_s if self._config.max_offline_s else math.inf

    def update(self, facts: Facts, now_s: float) -> bool:
        """True when the state is another one than before."""
        before = self.state
        if facts.problem:
            self._offline_s = now_s
        else:
            self._connected = True
        if not facts.executing or self._is_served(facts):
            self.offline_since_s = math.inf
        elif self.offline_since_s == math.inf:
            self.offline_since_s = now_s
        state, self.reason = self._judge(facts, now_s)
        if state is before:
            return False
        self.state = state
        self.changes[before, state] += 1
        return True

    def _judge(self, facts: Facts, now_s: float) -> tuple[RobotState, str]:
        if self.state is RobotState.DEAD:
            if not facts.problem and not facts.mismatch:
                return RobotState.CONNECTING, "a server is back"
            return RobotState.DEAD, facts.mismatch or self.reason
        if not facts.scheduled:
            return RobotState.CONNECTING, "no schedule has a route for it"
        if facts.problem or facts.mismatch:
            return self._offline(facts, facts.problem, now_s)
        if self.state in (RobotState.CONNECTING, RobotState.RECONNECTING) and facts.executing and not self._is_served(facts):
            return self._offline(facts, "no chunk yet", now_s)
        return self._online(facts, now_s)

    def _is_served(self, facts: Facts) -> bool:
        """It has a session, and a chunk of it: a server that takes requests and answers none does not serve."""
        return not facts.problem and facts.merged_s >= self._offline_s

    def _offline(self, facts: Facts, problem: str, now_s: float) -> tuple[RobotState, str]:
        if self.state in (RobotState.CONNECTING, RobotState.RECONNECTING):
            if facts.mismatch:
                return RobotState.DEAD, facts.mismatch
            if now_s >= self.dead_s:
                return RobotState.DEAD, f"offline for {now_s - self.offline_since_s:.0f} s: {problem}"
            if not facts.problem:
                return self.state, problem
        return (RobotState.RECONNECTING if self._connected else RobotState.CONNECTING), facts.mismatch or problem

    def _online(self, facts: Facts, now_s: float) -> tuple[RobotState, str]:
        stalled_s = now_s - facts.stalled_since_s
        if facts.executing and stalled_s >= facts.stalls_after_s:
            return RobotState.STALLED, f"{facts.no_request or 'no action'} for {stalled_s:.1f} s"
        failing_s = now_s - facts.failing_since_s
        if failing_s >= self._config.degraded_after_s:
            return RobotState.DEGRADED, f"no answer for {failing_s:.1f} s"
        return (RobotState.DEGRADED, facts.warning) if facts.warning else (RobotState.STREAMING, "")
