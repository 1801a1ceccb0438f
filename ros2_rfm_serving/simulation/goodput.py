"""Goodput of one robot: which of its actions count.

A System 1 prediction that was executed counts for goodput when
1. it was answered within System 1's SLO;
2. its plan was answered within System 2's SLO (and likewise for any other component that is coupled to actions);
3. for every periodic component of its robot the newest due check is in order: the last one was answered within its SLO, and it
   was sent no longer ago than a period and an SLO, with 5 % of slack for the jitter of the pace itself.

Source: ROSA §4.2, "a robot action is counted only when the latency and invocation requirements are satisfied". Its figures show the
method: at 64 robots §4.3 has 145.5 raw actions/s, 17.0 % of them within System 1's SLO, and 24.8 qualified: 145.5 x 17.0 % = 24.7.
So the SLO is checked for each prediction, not by whether a class meets its percentile. Plans and checks are treated in the same
way, at the time of the action that relies on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ros2_rfm_serving.factory import TaskEntry
from ros2_rfm_serving.types import SYSTEM1

SLACK = 1.05


@dataclass(slots=True)
class ComponentCounts:
    """Requests of one component of one task that were sent after the warm-up."""

    sent: int = 0
    within: int = 0
    """Requests answered within the SLO."""
    undecided: int = 0
    """Requests without an answer when the robot stopped waiting or the simulation ended, within the time of their SLO."""
    latencies_s: list[float] = field(default_factory=list)
    """Latencies of answered requests."""


@dataclass(slots=True)
class ActionCounts:
    """Actions of one task after the warm-up."""

    raw: int = 0
    qualified: int = 0


@dataclass(slots=True, eq=False)
class _PendingRequest:
    """One component of one robot."""

    slo_s: float
    period_s: float
    """Period of a periodic component; 0: goal-coupled"""
    tally: ComponentCounts
    is_coupled: bool = False
    """The component plans, and is coupled to actions."""
    depth: int = 1
    """Requests that wait for an answer at once: more than one in a pipelined session."""
    waits_s: dict[int, float] = field(default_factory=dict)
    """Sequence number -> sending time of requests without an answer."""
    last_sent_s: float = -math.inf
    """Sending time of the last request that was answered"""
    in_order: bool = False
    """That request was answered within its SLO."""

    @property
    def timeout_s(self) -> float:
        """Time from sending a check until the next must have been answered; without an SLO, within a period."""
        return SLACK * (self.period_s + (self.slo_s if self.slo_s < math.inf else self.period_s))


class GoodputCounter:
    """All requests and executed predictions of one robot. `tallies` are shared by the robots of its task."""

    def __init__(self, task: TaskEntry, tallies: Mapping[str, ComponentCounts], actions: ActionCounts, warm_up_s: float) -> None:
        self._actions, self._warm_up_s = actions, warm_up_s
        pipelining = task.pipelining
        self._asked = {
            name: _PendingRequest(
                slo_s=component.slo_ms / 1e3 if component.slo_ms else math.inf,
                period_s=1.0 / component.freq_hz if component.freq_hz else 0.0,
                tally=tallies[name],
                is_coupled=name != SYSTEM1 and not component.freq_hz,
                depth=pipelining.depth if pipelining and name == SYSTEM1 else 1,
            )
            for name, component in task.components.items()
        }
        self._system1 = self._asked[SYSTEM1]
        self._coupled = [a for a in self._asked.values() if a.is_coupled]
        self._periodic = [(a, a.timeout_s) for a in self._asked.values() if a.period_s]
        self._planned = self._asked_under_plan = False

    def begin(self, now_s: float) -> None:
        """Begin a task: its first checks are due now and have their SLO to be answered; there is no plan yet."""
        for asked in self._asked.values():
            asked.in_order = bool(asked.period_s)
            asked.last_sent_s = now_s - asked.period_s
        self._planned = not self._coupled

    def end(self, now_s: float) -> None:
        """End a task or the simulation: requests without an answer that are still within their SLO are undecided."""
        for asked in self._asked.values():
            sent_s = [at_s for at_s in asked.waits_s.values() if at_s >= self._warm_up_s]
            asked.tally.undecided += sum(now_s - at_s <= asked.slo_s for at_s in sent_s)
            asked.waits_s.clear()

    def sent(self, component: str, now_s: float, sequence: int = 0) -> None:
        asked = self._asked[component]
        while len(asked.waits_s) >= asked.depth:  # the robot no longer waits for it
            del asked.waits_s[next(iter(asked.waits_s))]
        asked.waits_s[sequence] = now_s
        if now_s >= self._warm_up_s:
            asked.tally.sent += 1
        if asked is self._system1:
            self._asked_under_plan = self._planned

    def answered(self, component: str, now_s: float, sequence: int = 0) -> None:
        """Record the answer to a waiting request. Older requests are overtaken, and no longer wait."""
        asked = self._asked[component]
        waits_s = asked.waits_s
        asked.last_sent_s = sent_s = waits_s.get(sequence, math.nan)
        latency_s = now_s - sent_s
        asked.in_order = in_order = latency_s <= asked.slo_s
        while waits_s and (oldest := next(iter(waits_s))) <= sequence:
            del waits_s[oldest]
        if sent_s >= self._warm_up_s:
            tally = asked.tally
            tally.latencies_s.append(latency_s)
            tally.within += in_order
        if asked.is_coupled:
            self._planned = all(plan.in_order for plan in self._coupled)

    def executed(self, now_s: float) -> None:
        """Record that the first action of the newest prediction was commanded."""
        if now_s < self._warm_up_s:
            return
        self._actions.raw += 1
        if self._system1.in_order and self._asked_under_plan and self._checked(now_s):
            self._actions.qualified += 1

    def _checked(self, now_s: float) -> bool:
        return all(check.in_order and now_s <= check.last_sent_s + patience_s for check, patience_s in self._periodic)
