"""Equilibrium of the robots of a placement that only their caps and their own replies slow down.

Every server answers by its latency curve for its load; at the highest measured load the curve becomes vertical: a server with more
requests makes all robots wait until just that load is requested. Each class runs at its cap or at its closed loop with these
responses, whichever is lower. At a saturated server the scatter about the mean is that of the highest measured load: the tail is
never shorter than there, and grows with the wait (the interactive response time law determines it).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.rates import ClosedLoopLimit, HostedServer, Rates
from ros2_rfm_serving.scheduler.problem import PlanningProblem

SWEEPS, BISECTIONS = 60, 40
SETTLED = 1e-9
"""Relative change of the responses that ends the search."""
MARGIN = 1e-8
"""Margin below the closed loop, so that the error of the search breaks no limit."""
LONGEST_S = 1e5
"""Response beyond which a server never answers: it cannot even serve its obligations."""


@dataclass(frozen=True)
class Equilibrium:
    rates: Rates
    response_s: Mapping[HostedServer, float]
    """Mean response; inf: the server does not keep up with its obligations."""
    saturated: frozenset[HostedServer]
    """Servers with more requests than the highest measured load."""


def equilibrium(problem: PlanningProblem, curves: Curves, hosts: Iterable[HostedServer], caps: Rates | None) -> Equilibrium:
    """Return the equilibrium, cached. caps: None, robots send as soon as they can."""
    distinct = dict.fromkeys(hosts)
    classes = [
        (t.cycle_s, t.overlapped, t.round_trip_s, tuple([(d.index, d.calls, d.fixed_hz) for d in t.demands]))
        for t in problem.classes
    ]
    known, key = curves.equilibria, (tuple(distinct), caps, tuple(classes))
    found: Equilibrium = known.get(key) or known.add(key, _Settling(problem, curves, distinct, caps).run())
    return found


class _Asked:
    """Load of one server as a function of its response, while the other servers stay unchanged."""

    def __init__(self, problem: PlanningProblem, tops: Rates, host: HostedServer, others: Mapping[int, float]) -> None:
        """Prepare the function. others: demand -> slowest response at the other servers, of the classes on this one."""
        place, here = {d: i for i, d in enumerate(others)}, {d for d, _ in host.robots}
        self._slowest = [(d in here, slowest_s) for d, slowest_s in others.items()]
        tasks = {problem.demands[d].task: problem.classes[problem.demands[d].task] for d in here}
        self._rates = [
            (tops[c], ClosedLoopLimit(t.overlapped, t.cycle_s, t.round_trip_s, [(d.calls, [place[d.index]]) for d in t.coupled]))
            for c, t in tasks.items()
        ]
        of = {c: i for i, c in enumerate(tasks)}
        demands = ((problem.demands[d], count) for d, count in host.robots)
        self._streams = [(count, d.calls, d.fixed_hz, of[d.task]) for d, count in demands]

    def load_hz(self, response_s: float) -> float:
        slowest_s = [response_s if here and response_s > s else s for here, s in self._slowest]
        rates = [min(top, loop.rate_hz(slowest_s) * (1 - MARGIN)) for top, loop in self._rates]
        return sum([count * (calls * rates[c] + fixed_hz) for count, calls, fixed_hz, c in self._streams])


class _Settling:
    """Iteration over the servers: each gets the response that balances it while the others stay unchanged."""

    def __init__(self, problem: PlanningProblem, curves: Curves, hosts: Iterable[HostedServer], caps: Rates | None) -> None:
        self._problem, self._curves = problem, curves
        self._tops = caps or tuple(task.max_rate_hz for task in problem.classes)
        self._response_s = {host: curves.mean(host.config).y[0] for host in hosts}
        self._where: dict[int, list[HostedServer]] = {d.index: [] for d in problem.demands}
        for host in self._response_s:
            for demand, _ in host.robots:
                self._where[demand].append(host)

    def run(self) -> Equilibrium:
        for _ in range(SWEEPS):
            before = dict(self._response_s)
            for host in self._response_s:
                self._response_s[host] = self._balanced_s(host)
            if all(math.isclose(before[h], s, rel_tol=SETTLED) for h, s in self._response_s.items()):
                break
        slowest = {d.index: self._slowest_s(d.index) for d in self._problem.demands}
        saturated = frozenset(h for h, s in self._response_s.items() if s > self._curves.mean(h.config).y[-1] * (1 + SETTLED))
        rates = tuple(self._rate_hz(c, slowest) for c in range(len(self._problem.classes)))
        return Equilibrium(rates, dict(self._response_s), saturated)

    def _balanced_s(self, host: HostedServer) -> float:
        """Return the shortest response at which the server can carry the load, and can answer it as fast."""
        mean, asked = self._curves.mean(host.config), _Asked(self._problem, self._tops, host, self._without(host))
        low_s, high_s = mean.y[0], self._response_s[host]

        def suffices(response_s: float) -> bool:
            """Return whether this response is long enough. Responses fall with the load, and the load with the response."""
            load_hz = asked.load_hz(response_s)
            return load_hz <= mean.x[-1] and mean.at(load_hz) <= response_s

        if suffices(low_s):
            return low_s
        while not suffices(high_s):
            low_s, high_s = high_s, 2 * high_s
            if high_s > LONGEST_S:
                return math.inf
        for _ in range(BISECTIONS):
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if suffices(middle_s) else (middle_s, high_s)
        return high_s

    def _without(self, host: HostedServer) -> dict[int, float]:
        """Return demand -> slowest response at the other servers, of the classes on this one."""
        tasks = {self._problem.demands[d].task for d, _ in host.robots}
        return {d.index: self._slowest_s(d.index, host) for task in tasks for d in self._problem.classes[task].coupled}

    def _slowest_s(self, demand: int, but: HostedServer | None = None) -> float:
        return max((self._response_s[host] for host in self._where[demand] if host is not but), default=0.0)

    def _rate_hz(self, task: int, slowest: Mapping[int, float]) -> float:
        """Return the rate of a class, which its slowest server limits."""
        return min(self._tops[task], self._problem.classes[task].closed_loop_hz(slowest) * (1 - MARGIN))
