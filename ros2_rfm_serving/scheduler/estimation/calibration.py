"""Estimates of the real needs of robots, relative to the descriptor: network time to servers, executed part of a chunk (Kairos
§3.1), and calls of System 2 (ROSA §3.4.2). They are per task, from a sample of its robots, which are alike.

A round trip is from request to reply; without the server's time it is the network's. The wait of one robot depends far more on its
queue than on its network, but the mean of all robots does not: their reports between two reports of one robot are one lot.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.estimates import NetworkDelay
from ros2_rfm_serving.scheduler.estimation.batch_means import BatchMeans
from ros2_rfm_serving.scheduler.estimation.hysteresis import Hysteresis
from ros2_rfm_serving.scheduler.estimation.robot_latency import DistantRobot, RobotLatency
from ros2_rfm_serving.scheduler.estimation.status_samples import ComponentTotals, RobotStatusSample, SloCounts
from ros2_rfm_serving.types import SYSTEM1

LOT_S, ROUND_S, LONGEST_LOT_S = 2.0, 1.0, 30.0
"""Seconds between two reports that make a lot: of a robot's actions; of network times, in one lot of all robots; the longest."""
TOLERANCE = 0.1
"""Relative difference that does not justify another plan."""
LEAST_TRAVEL_S = 0.005
"""Difference of network times that is ignored, in s."""
MOST_TRAVEL_S = 10.0
TAIL_ANSWERS = 100
"""Answers that a robot's percentiles cover: with fewer under the active schedule, their excess over the server's is due to former
queues, not to the network."""
TAIL_LOT_S, TAIL_HELD_S, TAIL_FALL_LOTS = 5.0, 300.0, 40
"""Percentiles of overlapping windows repeat themselves: the first value is the duration of one lot. A tail does not fall during the
second, and then only by the third number of lots: a tail that is too long costs rate, one that is too short breaks SLOs."""
LEAST_CYCLE_S, MOST_RATIO = 1e-4, 100.0
"""Limits of plausibility: seconds of a chunk, calls per action."""
LOT_CHUNKS, LOT_CALLS = 32, 16
"""Sizes of a lot; for calls, answers after which that number was expected make a lot, too."""
FEW_CHUNKS = 4
"""Size of a small lot: a value with little scatter is known from a few of those, long before one robot has executed many chunks."""
LEAST_OF_DECLARED = 0.1
"""Fraction of the declared ratio of calls that is always planned for, because robots that make no calls now may make them later."""
SAMPLE = 32
"""Robots per task that are evaluated, because they are alike."""
_Words = dict[str, tuple[RobotStatusSample, float]]
"""Robot -> (report, time of receipt)."""


@dataclass(slots=True)
class _Factor:
    """Estimate of one figure of a task."""

    means: BatchMeans
    """Measurements."""
    used: float
    """Value that plans use."""
    tolerance: float = 0.0
    """Lower limit of the tolerance."""
    least: float = 0.0
    """Lower limit of the value."""
    less_is_worse: bool = False
    hold: Hysteresis = field(default_factory=Hysteresis)

    def look(self, now_s: float, *, may_fall: bool = True) -> bool:
        """Adopt a value that surely differs from the one in use, and return whether there is one."""
        interval = self.means.interval()
        if interval is None or not interval.replaces(self.used, max(TOLERANCE * self.used, self.tolerance)):
            return False
        value = float(f"{max(interval.mean, self.least):.4g}")
        worse = (value < self.used) == self.less_is_worse
        if value == self.used or (value < self.used and not may_fall) or (not worse and self.hold.lasts(now_s)):
            return False
        self.hold.worsens(now_s) if worse else self.hold.eases()
        self.used = value
        return True


@dataclass(slots=True)
class _Lots:
    """Lots of equal size."""

    size: float
    """Chunks or calls per lot."""
    means: BatchMeans = field(default_factory=BatchMeans)
    counted: float = 0.0
    weight: float = 0.0
    amount: float = 0.0
    """Sum of the present lot."""

    def add(self, weight: float, amount: float, expected: float) -> bool:
        """Add to the present lot, and return whether the measured value has changed."""
        self.counted, self.weight, self.amount = self.counted + expected, self.weight + weight, self.amount + amount
        if self.counted < self.size:
            return False
        mean, total = self.amount / self.weight, self.weight
        self.counted = self.weight = self.amount = 0.0
        return self.means.add(total, mean)

    def forget(self) -> None:
        self.means.forget()
        self.counted = self.weight = self.amount = 0.0


@dataclass(slots=True)
class _Pool:
    """Reports of all robots in lots of equal size: of rare calls most lots of single robots would have none, and others two."""

    factor: _Factor
    lots: tuple[_Lots, ...]
    """Lots by size, the smaller ones first: these are early, larger ones are precise for values that scatter."""

    def add(self, weight: float, amount: float, *, expected: float) -> None:
        """Add a report. expected: its size as a part of a lot."""
        changed = [lots for lots in self.lots if lots.add(weight, amount, expected)]
        self._forget_all_but(changed[0] if changed else None)

    def look(self, now_s: float) -> bool:
        """Adopt a new value, as `_Factor.look`."""
        for lots in self.lots:
            self.factor.means = lots.means
            if self.factor.look(now_s):
                self._forget_all_but(lots)
                return True
        return False

    def _forget_all_but(self, those: _Lots | None) -> None:
        """Forget the other lots, which are from before a change. None: no change is known."""
        for lots in self.lots:
            if those is not None and lots is not those:
                lots.forget()


@dataclass(slots=True)
class _Round:
    """Lot of all robots together, which lasts until one of them reports again."""

    least_s: float = 0.0
    """Least duration."""
    robots: set[str] = field(default_factory=set)
    since_s: float = math.inf
    weight: float = 0.0
    amount: float = 0.0

    def add(self, robot: str, weight: float, mean: float, means: BatchMeans, now_s: float) -> None:
        """Add a robot's report. means: of whole rounds."""
        if robot in self.robots and not 0.0 <= now_s - self.since_s < self.least_s:
            means.add(self.weight, self.amount / self.weight)
            self.forget()
        if not self.robots:
            self.since_s = now_s
        self.robots.add(robot)
        self.weight, self.amount = self.weight + weight, self.amount + weight * mean

    def forget(self) -> None:
        self.robots.clear()
        self.weight = self.amount = 0.0


@dataclass(slots=True)
class _Task:
    travel: _Factor
    tail: _Factor
    cycle: _Pool | None
    """Executed part of a chunk; None: it is fixed."""
    calls: dict[str, _Pool] = field(default_factory=dict)
    robots: _Words = field(default_factory=dict)
    """Last reports on actions."""
    under_way: _Words = field(default_factory=dict)
    """Last reports on network times."""
    trips: _Round = field(default_factory=_Round)
    tails: _Round = field(default_factory=lambda: _Round(TAIL_LOT_S))
    ways: RobotLatency = field(default_factory=lambda: RobotLatency(LEAST_TRAVEL_S))
    """Network times per robot."""
    tail_s: float = math.nan
    """Time when the tail in use was adopted; NaN: it is the declared one."""
    answered: dict[str, int] = field(default_factory=dict)
    """Robot -> answers before the active schedule."""
    beyond_s: Mapping[str, float] = field(default_factory=dict)
    """Server -> part of a round trip that is known as the distance of its host."""

    def forget_tails(self) -> None:
        """Forget tails after a change, because windows of robots and servers cover the time before for a while."""
        self.tail.means.forget()
        self.tails.forget()
        self.answered.clear()

    def look(self, now_s: float) -> bool:
        if changed := self.travel.look(now_s):
            self.forget_tails()
        held = 0.0 <= now_s - self.tail_s < TAIL_HELD_S
        if self.tail.look(now_s, may_fall=not held and len(self.tail.means) >= TAIL_FALL_LOTS):
            self.tail_s, changed = now_s, True
        pools = [*([self.cycle] if self.cycle else []), *self.calls.values()]
        others = [pool.look(now_s) for pool in pools]
        return changed or any(others)


class CorrectionFactors:
    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self.implausible = 0
        """Implausible lots."""

    def declare(self, factory: Factory) -> None:
        """Reset to the values of a descriptor; network times are without the known distances of servers' hosts."""
        near = factory.without_away()
        self._tasks = {
            name: _Task(
                travel=_Factor(BatchMeans(LEAST_TRAVEL_S), near.network_of(name).mean_s, LEAST_TRAVEL_S),
                tail=_Factor(BatchMeans(LEAST_TRAVEL_S), near.network_of(name).at_s(99.0), LEAST_TRAVEL_S),
                cycle=_Pool(_Factor(BatchMeans(), task.cycle_period_s, less_is_worse=True), (_Lots(FEW_CHUNKS), _Lots(LOT_CHUNKS)))
                if task.execution.horizon.policy != "static"
                else None,
                calls={
                    component: _Pool(_Factor(BatchMeans(), ratio, least=LEAST_OF_DECLARED * ratio), (_Lots(LOT_CALLS),))
                    for component in task.components
                    if component != SYSTEM1 and (ratio := task.calls_per_action(component))
                },
                beyond_s=factory.beyond_s(name),
            )
            for name, task in factory.tasks.items()
        }

    def keep(self, robots: Container[str]) -> None:
        """Follow another schedule: robots that have left make room in the sample, and tails are from before for a while."""
        for task in self._tasks.values():
            for words in (task.robots, task.under_way):
                for name in [name for name in words if name not in robots]:
                    del words[name]
            task.ways.keep(robots)
            task.forget_tails()

    def forget_tails(self) -> None:
        """Forget tails after a change of server speeds, because windows cover both for a while."""
        for task in self._tasks.values():
            task.forget_tails()

    def wants(self, robot: str, task: str) -> bool:
        """Return whether a robot is, or may be, in the sample."""
        found = self._tasks.get(task)
        return found is not None and (robot in found.robots or len(found.robots) < SAMPLE)

    def hear(self, word: RobotStatusSample, latency_s: float, latency_p99_s: float, now_s: float) -> None:
        """Evaluate a report. latency_s, latency_p99_s: recent ones of its System 1 server; NaN: not known."""
        if not self.wants(word.robot, word.task) or not word.is_sane:
            return
        task = self._tasks[word.task]
        if before := _before(task.under_way, word, now_s, ROUND_S):
            self._measure_way(task, before, word, latency_s, latency_p99_s, now_s)
        if before := _before(task.robots, word, now_s, LOT_S):
            self._measure(task, before, word)

    def look(self, now_s: float) -> bool:
        """Adopt values that surely differ from those in use, and return whether there are any."""
        changed = [task.look(now_s) for task in self._tasks.values()]
        return any(changed)

    def far(self, now_s: float) -> tuple[DistantRobot, ...]:
        """Return robots whose own network time surely exceeds the planned one; the longest first."""
        tasks = self._tasks.values()
        those = (f for t in tasks for f in t.ways.far(t.travel.used, max(TOLERANCE * t.travel.used, LEAST_TRAVEL_S), now_s))
        return tuple(sorted(those, key=lambda far: -far.way_s))

    # --- values that plans use ---

    def travels(self, factory: Factory) -> dict[str, NetworkDelay]:
        """Return the network times that differ from the declared ones."""
        found, near = dict[str, NetworkDelay](), factory.without_away()
        for name, task in self._tasks.items():
            declared = near.network_of(name)
            if task.travel.used != declared.mean_s or task.tail.used != declared.at_s(99.0):
                found[name] = NetworkDelay(mean_s=task.travel.used, tail_s=max(task.tail.used, task.travel.used))
        return found

    def cycles_s(self, factory: Factory) -> dict[str, float]:
        """Return the execution times that differ from the declared ones."""
        used = {name: task.cycle.factor.used for name, task in self._tasks.items() if task.cycle}
        return {name: seconds for name, seconds in used.items() if seconds != factory.tasks[name].cycle_period_s}

    def calls(self, factory: Factory) -> dict[str, Mapping[str, float]]:
        """Return the ratios of calls that differ from the declared ones."""
        found: dict[str, Mapping[str, float]] = {}
        for name, task in self._tasks.items():
            declared = factory.tasks[name].calls_per_action
            if changed := {c: calls.factor.used for c, calls in task.calls.items() if calls.factor.used != declared(c)}:
                found[name] = changed
        return found

    # --- parts ---

    def _measure_way(
        self, task: _Task, before: RobotStatusSample, word: RobotStatusSample, latency_s: float, latency_p99_s: float, now_s: float
    ) -> None:
        answers, round_trips_s = _since(before, word, SYSTEM1)
        if answers <= 0:
            return
        known_s = task.beyond_s.get(word.server, 0.0)
        mean_s, tail_s = round_trips_s / answers - latency_s - known_s, word.round_trip_p99_s - latency_p99_s - known_s
        if self._is_plausible(mean_s, -MOST_TRAVEL_S, MOST_TRAVEL_S):
            task.trips.add(word.robot, answers, mean_s, task.travel.means, now_s)
            if not math.isnan(latency_p99_s):
                task.ways.hear(word.robot, answers, mean_s + latency_s - max(latency_s, latency_p99_s), now_s)
        many = _answers(word) - task.answered.setdefault(word.robot, _answers(before)) >= TAIL_ANSWERS
        if many and self._is_plausible(tail_s, -MOST_TRAVEL_S, MOST_TRAVEL_S):
            task.tails.add(word.robot, answers, tail_s, task.tail.means, now_s)

    def _measure(self, task: _Task, before: RobotStatusSample, word: RobotStatusSample) -> None:
        answers = _since(before, word, SYSTEM1).answers
        if answers <= 0:
            return
        chunks, seconds = word.horizons - before.horizons, word.horizons_s - before.horizons_s
        if task.cycle and chunks > 0 and self._is_plausible(seconds / chunks, LEAST_CYCLE_S, MOST_RATIO):
            task.cycle.add(chunks, seconds, expected=chunks)
        for component, calls in task.calls.items():
            asked = _calls(before, word, component)
            if component in word.asked and component in before.asked and self._is_plausible(asked / answers, 0.0, MOST_RATIO):
                calls.add(answers, asked, expected=max(asked, answers * calls.factor.used))

    def _is_plausible(self, value: float, least: float, most: float) -> bool:
        """Return whether a value is within its limits, and count it otherwise. NaN: it was not reported."""
        if math.isnan(value):
            return False
        self.implausible += not least <= value <= most
        return least <= value <= most


def _before(words: _Words, word: RobotStatusSample, now_s: float, least_s: float) -> RobotStatusSample | None:
    """Return the former report that makes a lot with this one; None: there is none."""
    before, at_s = words.get(word.robot, (None, -math.inf))
    passed_s = now_s - at_s
    if before is not None and 0.0 <= passed_s < least_s and word.horizons >= before.horizons:
        return None
    words[word.robot] = (word, now_s)
    if before is None or not 0.0 < passed_s <= LONGEST_LOT_S or not (before.streams and word.streams):
        return None
    return before if before.server == word.server else None  # otherwise it has waited for a session meanwhile


def _since(before: RobotStatusSample, word: RobotStatusSample, component: str) -> ComponentTotals:
    if component not in before.asked or component not in word.asked:
        return ComponentTotals(0, 0.0)
    then, now = before.asked[component], word.asked[component]
    return ComponentTotals(now.answers - then.answers, now.round_trips_s - then.round_trips_s)


def _calls(before: RobotStatusSample, word: RobotStatusSample, component: str) -> int:
    """Return calls including those that were given up, because the answers of an overloaded server only show its capacity."""
    then, now = before.kept.get(component, SloCounts()), word.kept.get(component, SloCounts())
    return max(_since(before, word, component).answers, now.answers - then.answers)


def _answers(word: RobotStatusSample) -> int:
    """Return the answers of System 1 since the robot's start."""
    return word.asked[SYSTEM1].answers if SYSTEM1 in word.asked else 0
