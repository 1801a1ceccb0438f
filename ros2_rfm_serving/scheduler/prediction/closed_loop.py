"""Highest rates of a placement by the closed queues of its own robots, where the profile's curves say too much or too little.

A curve was measured as a function of the load alone, with robots that keep a pace of their own and have no network between them.
The simulation of the actual robots (`closed_queue.py`) gives every server its own highest load at which its SLOs hold, in place of
the curve's; with these limits the rates are found as usual (`rates.py`), and simulated once more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium
from ros2_rfm_serving.scheduler.prediction.predict import Operation, kept_hosts
from ros2_rfm_serving.scheduler.prediction.queue_stats import ASSURING, MOST_REQUESTS
from ros2_rfm_serving.scheduler.prediction.rates import TOLERANCE, HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.prediction.responses import Responses
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import RESERVE, limit_s

BISECTIONS, CORRECTIONS = 4, 8
CORRECTED = 0.93
"""Factor on a server's load while its robots still miss an SLO; it is applied more than once to those that go on missing it."""
PATIENT = 3
"""Corrections of one server after which each is larger than the one before."""
BUSIEST = 0.95
"""Largest share of a server's capacity in use: the rest works off what has piled up when robots start, or steps of theirs that come
slightly late. Without it a backlog would hardly ever end."""
CALM = 0.9
"""The same where no network is declared, and the load exceeds the curve's limit: in 3 of 40 starts of seven asynchronous robots at
95 %, a backlog lasted for 15 s and longer; at 90 % in one, shortly."""
WARY = 0.1
"""Share of an SLO in reserve where asynchronous robots exceed the curve's limit: depending on their start, p99 of a fifth of such
servers differs by more than that (`rfm bench predictions`)."""
QUICKER = (1.5, 2.0, 3.0, 4.5, 7.0)
"""Factors on the rates by the curve that are tried where these rates miss an SLO."""
QUEUE_WORK = 0.02
"""Work of one server's closed queue, in units of `Budget`."""
ASSURED, ASSURED_BATCHES = 0.96, 0.98
"""Share of its load that a server keeps if its robots miss an SLO when they are watched for longer: stepwise, and in batches."""
ASSURINGS, GRADUAL = 14, 6
"""Most reductions of a load by that share; and the number after which each is larger than the one before."""

SLOW, CLIMBS = 0.5, 4
"""Share of its closed loop below which a class is tried at higher rates, alone; and the most such classes."""
STEPS = (1.0, 0.75, 0.5, 0.35, 0.2, 0.1)
"""Shares of its closed loop that are tried."""
FINER = 2
"""Bisections between the highest one that keeps the SLOs and the next one."""


class ClosedLoopRefinement:
    """Rate search by the own queues of one placement, around its rates by the curves."""

    def __init__(self, problem: PlanningProblem, curves: Curves, operation: Operation, rates: Rates) -> None:
        self._problem, self._curves, self._operation, self._rates = problem, curves, operation, rates
        self._far = any(demand.slo.travel_s for demand in problem.demands) or any(curves.away_s(h.config) for h in operation.hosts)
        self.work = 0.0
        """Work so far, in units of `Budget`."""
        self.short: tuple[int, ...] = ()
        """Indices of the operation's servers that `tuned` fails for: their robots miss an SLO at any rate tried."""
        self.limits: dict[int, float] = {}
        """Server index -> load up to which its robots keep every SLO, as far as is known, after `tuned`."""
        self._without_reserve: set[HostedServer] = set()
        """Servers whose robots keep their SLOs within the curves, but leave no reserve at any rate."""

    @property
    def hosts(self) -> tuple[HostedServer, ...]:
        """Return the servers of the operation; after `tuned`, with the batches that it chose."""
        return self._operation.hosts

    def keeps(self) -> bool:
        """Return whether the operation keeps every SLO with its reserve."""
        return not any(self._missed(self._operation))

    def holds(self) -> bool:
        """Return whether the operation keeps every SLO, without a reserve where the curves keep every SLO too."""
        assert self._operation.caps
        return all(self._keeps(host, self._operation.caps, self._rates, 0.0) for host in dict.fromkeys(self._operation.hosts))

    def most(self) -> Rates | None:
        """Return the rates at which each server of actions has its highest load: the robots' own queue allows no more."""
        responses = self._responses(self._rates, self._rates)
        queued = [host for host in dict.fromkeys(self._operation.hosts) if responses.has_queue(host)]
        limits = {host: self._most_hz(host) for host in queued}
        search = RateSearch(self._problem, self._curves, self._operation.hosts, limits)
        rates = search.best()
        self.work += search.work
        return rates

    def tuned(self, known: Mapping[int, float] = MappingProxyType({})) -> Operation | None:
        """Return the operation with the highest caps and rates that keep every SLO by the queues. None: none reach every floor.

        known: `limits` of some of these servers from a similar placement; only the resulting operation is checked.
        """
        before = {self._operation.hosts[i]: limit_hz for i, limit_hz in known.items()}
        hosts = dict.fromkeys(self._operation.hosts)
        limits = self._rebatched({host: before[host] if host in before else self._limit_hz(host) for host in hosts})
        found = self._corrected(limits)
        self.limits = {i: limit_hz for i, host in enumerate(self._operation.hosts) if (limit_hz := limits[host]) is not None}
        return found

    def within_curves(self) -> Operation | None:
        """Return the operation that `tuned` found, with no load above the curve's limit."""
        hosts = self._operation.hosts
        return self._corrected({hosts[i]: min(limit_hz, self._curve_hz(hosts[i])) for i, limit_hz in self.limits.items()})

    def climbed(self) -> Operation | None:
        """Return the operation with each class raised as far as every SLO is kept, those first that gain the most. The loads of
        servers were checked with the classes in the curves' proportion; and slow robots that meet go on meeting, so that a class
        may keep an SLO at a higher rate that it misses at a lower one. None: the operation does not change."""
        found = self._operation
        if found.caps is None:
            return None
        found = replace(found, rates=found.rates or self._rates, paces=())
        assert found.rates
        loops = RateSearch(self._problem, self._curves, found.hosts).closed_loops_hz(found.rates)
        gains = [t.weight * (loop - hz) for t, loop, hz in zip(self._problem.classes, loops, found.rates, strict=True)]
        slow = [c for c, hz in enumerate(found.rates) if hz < SLOW * loops[c]]
        for c in sorted(slow, key=lambda c: -gains[c])[:CLIMBS]:
            found = self._raised(found, c, loops[c])
        return found if found.rates != (self._operation.rates or self._rates) else None

    def _raised(self, operation: Operation, c: int, loop_hz: float) -> Operation:
        """Return the operation with the highest rate of one class that is known to keep every SLO."""
        assert operation.rates
        known, beyond_hz = operation, math.inf
        for hz in (share * loop_hz for share in STEPS if share * loop_hz > operation.rates[c]):
            if higher := self._at(operation, c, hz):
                known = higher
                break
            beyond_hz = hz
        for _ in range(FINER if known is not operation and math.isfinite(beyond_hz) else 0):
            assert known.rates
            middle_hz = (known.rates[c] + beyond_hz) / 2
            if higher := self._at(operation, c, middle_hz):
                known = higher
            else:
                beyond_hz = middle_hz
        return known

    def _at(self, operation: Operation, c: int, hz: float) -> Operation | None:
        """Return the operation with this rate of one class; None: an SLO is missed."""
        assert operation.caps and operation.rates
        rates, caps = ((*of[:c], hz, *of[c + 1 :]) for of in (operation.rates, operation.caps))
        keeps = self._reaches(rates) and all(self._keeps(host, caps, rates) for host in self._hosts_of(c))
        return replace(operation, rates=rates, caps=caps) if keeps else None

    def _reaches(self, rates: Rates) -> bool:
        """Return whether robots' cycles, links, and the capacities of servers allow these rates."""
        responses = self._responses(rates, rates)
        limits = {host: self._most_hz(host) for host in dict.fromkeys(self._operation.hosts) if responses.has_queue(host)}
        return RateSearch(self._problem, self._curves, self._operation.hosts, limits).feasible(rates)

    def _hosts_of(self, c: int) -> list[HostedServer]:
        return [h for h in dict.fromkeys(self._operation.hosts) if any(self._problem.demands[d].task == c for d, _ in h.robots)]

    def assured(self) -> Operation | None:
        """Return the operation, slower where its robots miss an SLO when they are watched for longer: convoys of stepwise batching
        come and go, and the highest caps of many that a few starts keep are those of lucky ones. None: no such caps are known."""
        found = self._operation
        if found.caps is None or found.rates is None:
            return found if not self._unsure(found) else None
        limits = {host: self._load_hz(host, found.caps) for host in self._queued(found)}
        for times in range(ASSURINGS):
            if not (unsure := list(self._unsure(found))):
                return found
            assert found.rates
            for host in unsure:
                kept = ASSURED if self._curves.stepped_law(host.config) else ASSURED_BATCHES
                load_hz = min(limits[host], self._load_hz(host, found.rates))
                limits[host] = kept ** max(1, times - GRADUAL) * load_hz
            within = self._within(limits)
            if within is None:
                return None
            found = within
        return None

    def _unsure(self, operation: Operation) -> list[HostedServer]:
        """Return the servers that miss an SLO when they are watched for longer."""
        queued = self._queued(operation)
        self.work += ASSURING / MOST_REQUESTS * QUEUE_WORK * len(queued)
        return [h for h, kept in kept_hosts(self._problem, self._curves, operation, queued, assuring=True) if not kept]

    def _queued(self, operation: Operation) -> list[HostedServer]:
        """Return the servers whose robots' own queue can be simulated."""
        responses = self._responses(self._rates, self._rates)
        return [host for host in dict.fromkeys(operation.hosts) if responses.has_queue(host)]

    def _corrected(self, limits: dict[HostedServer, float | None]) -> Operation | None:
        """Return the operation within these limits, lowered for servers whose robots miss an SLO all the same."""
        misses: Counter[HostedServer] = Counter()
        for _ in range(CORRECTIONS):
            found = self._within({host: limit for host, limit in limits.items() if limit is not None})
            if found is None:
                floors = tuple(task.floor_hz for task in self._problem.classes)
                misses.update(host for host, limit in limits.items() if limit is not None and limit < self._load_hz(host, floors))
                break
            missed = list(self._missed(found))
            if not missed:
                return found
            misses.update(missed)
            for host in missed:
                load_hz = self._load_hz(host, found.rates or self._rates)
                corrected = CORRECTED ** max(1, misses[host] - PATIENT + 1)
                limits[host] = corrected * min(load_hz if (known := limits[host]) is None else known, load_hz)
        self.short = tuple(i for i, host in enumerate(self._operation.hosts) if host in misses)
        return None

    def _rebatched(self, limits: Mapping[HostedServer, float | None]) -> dict[HostedServer, float | None]:
        """Return the limits, with other batches for servers whose robots miss an SLO at any rate, for the highest load."""
        instead: dict[HostedServer, HostedServer] = {}
        found: dict[HostedServer, float | None] = {}
        for host, limit_hz in limits.items():
            others = {other: self._limit_hz(other) or 0.0 for other in self._batched(host)} if limit_hz == 0.0 else {}
            instead[host] = max(others, key=lambda other: others[other], default=host)
            found[instead[host]] = others.get(instead[host], limit_hz)
        self._operation = replace(self._operation, hosts=tuple(instead[host] for host in self._operation.hosts))
        return found

    def _batched(self, host: HostedServer) -> Iterator[HostedServer]:
        """Yield the server with other batches that take the same time, full or not."""
        config = host.config
        for other in self._curves.of(config.model):
            if other.gpu_type == config.gpu_type and other.batch_size != config.batch_size and self._curves.pads_batches(other):
                yield replace(host, config=replace(other, slices=config.slices))

    def _within(self, limits: Mapping[HostedServer, float]) -> Operation | None:
        search = RateSearch(self._problem, self._curves, self._operation.hosts, limits)
        rates = search.best()
        self.work += search.work
        return replace(self._operation, rates=rates, caps=search.caps(rates), paces=()) if rates is not None else None

    def _missed(self, operation: Operation) -> Iterator[HostedServer]:
        assert operation.caps and operation.rates
        return (host for host in dict.fromkeys(operation.hosts) if not self._keeps(host, operation.caps, operation.rates))

    def _limit_hz(self, host: HostedServer) -> float | None:
        """Return the highest load at which its robots, in their current proportion, keep every SLO. None: only the curve tells.

        A plan may use an SLO up where the curve keeps it. Robots that leave no reserve at any rate are therefore judged without
        one: otherwise a placement would be lost as soon as another of its servers has to be tuned.
        """
        load_hz = self._load_hz(host, self._rates)
        if not load_hz or not self._responses(self._rates, self._rates).has_queue(host):
            return None
        limit_hz = self._highest_load_hz(host, load_hz)
        if not limit_hz and load_hz <= self._curve_hz(host) * (1 + TOLERANCE):
            self._without_reserve.add(host)
            limit_hz = load_hz if self._keeps_times(host, 1.0) else 0.0
        return limit_hz

    def _highest_load_hz(self, host: HostedServer, load_hz: float) -> float:
        """Return the highest load, of those tried, with which its robots keep every SLO; 0: none. load_hz: at their rates."""
        most_hz = self._most_hz(host)
        if self._keeps_times(host, most_hz / load_hz):
            return most_hz
        low, high = 0.0, most_hz / load_hz
        for factor in self._factors(host, load_hz, high):
            if self._keeps_times(host, factor):
                low = factor
            elif low:
                high = factor
                break
        else:
            high = high if low else 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._keeps_times(host, middle) else (low, middle)
        return low * load_hz

    def _most_hz(self, host: HostedServer) -> float:
        """Return the highest load of a server that is judged by its robots' own queue."""
        whole_hz = self._curves.max_rate_hz(host.config)
        return BUSIEST * whole_hz if self._far else max(CALM * whole_hz, self._curve_hz(host))

    def _factors(self, host: HostedServer, load_hz: float, most: float) -> list[float]:
        """Return the factors on the rates to try: the rates themselves, those by the curve, and higher ones. Phases adapt with each
        answer, so that slow robots meet for longer than fast ones."""
        by_curve = 1.0 if self._far else max(self._curve_hz(host) / load_hz, 1.0)
        return sorted(factor for factor in {1.0, by_curve, *QUICKER} if factor < most)

    def _keeps_times(self, host: HostedServer, factor: float) -> bool:
        """Return whether the robots keep every SLO at the rates times `factor`."""
        caps = tuple(min(factor * f, task.max_rate_hz) for f, task in zip(self._rates, self._problem.classes, strict=True))
        return self._keeps(host, caps, self._rates)

    def _keeps(self, host: HostedServer, caps: Rates, rates: Rates, reserve: float | None = None) -> bool:
        """Return whether the robots keep every SLO. reserve: share of an SLO that the curve misses; None: the usual one."""
        responses = self._responses(caps, rates)
        if not responses.has_queue(host):
            return self._load_hz(host, rates) <= self._curve_hz(host) * (1 + TOLERANCE)
        self.work += QUEUE_WORK
        curve = responses.by_curve(host)
        slos = [self._problem.demands[d].slo for d, _ in host.robots]
        left = self._reserve(host) if reserve is None else reserve
        return responses.keeps(host, slos, [limit_s(slo, curve.response_s(slo), left) for slo in slos])

    def _reserve(self, host: HostedServer) -> float:
        if host in self._without_reserve:
            return 0.0
        classes = (self._problem.classes[self._problem.demands[d].task] for d, _ in host.robots)
        return WARY if not self._far and any(task.overlapped for task in classes) else RESERVE

    def _responses(self, caps: Rates, rates: Rates) -> Responses:
        return Responses(self._problem, self._curves, self._operation.hosts, caps, Equilibrium(rates, {}, frozenset()))

    def _curve_hz(self, host: HostedServer) -> float:
        """Return the highest load at which every SLO holds by the profile's curve."""
        slos = [self._problem.demands[d].slo for d, _ in host.robots]
        return min((self._curves.capacity_hz(host.config, slo) for slo in slos), default=math.inf)

    def _load_hz(self, host: HostedServer, rates: Rates) -> float:
        demands = self._problem.demands
        return sum(count * demands[d].rate_hz(rates[demands[d].task]) for d, count in host.robots)
