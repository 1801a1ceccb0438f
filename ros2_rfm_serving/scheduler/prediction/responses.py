"""Latencies of the servers of a placement at given rates: by the profile's curves, and by the robots' own closed queue where only
actions wait for fixed batches (`closed_queue.py`) or to join a running one (`stepped_queue.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ros2_rfm_serving.dispatch import DISPATCH_POLICIES
from ros2_rfm_serving.scheduler.estimates import declared_type
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup
from ros2_rfm_serving.scheduler.prediction.closed_queue import BatchService, runs_of
from ros2_rfm_serving.scheduler.prediction.curves import NORMAL_P90, NORMAL_P99, Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium
from ros2_rfm_serving.scheduler.prediction.framed_queue import framed_runs
from ros2_rfm_serving.scheduler.prediction.queue_stats import ASSURING, MOST_REQUESTS, ClientWaits, QueueRuns, QueueStats
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates
from ros2_rfm_serving.scheduler.prediction.shared_queue import shared_waits
from ros2_rfm_serving.scheduler.prediction.stepped_queue import stepped_runs
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem, TaskClass
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.scheduler.solution import SLO_SLACK, limit_s
from ros2_rfm_serving.types.desynchronisation import MOST_LATER_S

LONGEST_S = 1e4
"""Time between two calls of a robot that hardly makes any."""


class Latency(Protocol):
    """Latency of one server."""

    @property
    def mean_s(self) -> float: ...
    def at(self, percentile: float) -> float:
        """Return the latency at a percentile, s."""

    def response_s(self, slo: Slo) -> float:
        """Return the time from request to reply, at the percentile of an SLO: the value that is compared with the SLO."""

    def travel_s(self, slo: Slo) -> float:
        """Return the network's addition to the latency there."""


@dataclass(frozen=True)
class ByCurve:
    mean_s: float
    at: Callable[[float], float]
    away_s: float = 0.0
    """Additional way to its host, compared with the nearest one."""

    def response_s(self, slo: Slo) -> float:
        return slo.response_s(self.away_s + self.at(slo.percentile), self.away_s + self.mean_s)

    def travel_s(self, slo: Slo) -> float:
        server_s = self.at(slo.percentile)
        return self.response_s(slo) - slo.frames_s - server_s if math.isfinite(server_s) else 0.0


@dataclass(frozen=True)
class ByQueue:
    """Latency of robots that were watched in their own closed queue, with their network."""

    waited: ClientWaits

    @property
    def mean_s(self) -> float:
        return self.waited.mean_s

    def at(self, percentile: float) -> float:
        return self.waited.at(percentile)

    def response_s(self, slo: Slo) -> float:
        return self.waited.response_s(slo.percentile)

    def travel_s(self, slo: Slo) -> float:
        return self.waited.travel_s(slo.percentile)


class Responses:
    """Latencies of one placement."""

    def __init__(
        self,
        problem: PlanningProblem,
        curves: Curves,
        hosts: Sequence[HostedServer],
        caps: Rates | None,
        settled: Equilibrium,
        *,
        assuring: bool = False,
        calls_by_queue: bool = False,
    ) -> None:
        """Prepare the latencies. assuring: stepwise batching is watched for longer, and from more starts; so are batches whose SLO
        may be kept or missed by chance.

        calls_by_queue: the waits of System 1's robots for text models come from the queues of those servers, where these are known;
        otherwise from the curves, which are cautious and take no time.
        """
        self._calls_by_queue = calls_by_queue
        self._problem, self._curves, self._hosts, self._caps, self._settled = problem, curves, hosts, caps, settled
        self._most = ASSURING if assuring else MOST_REQUESTS

    def of(self, host: HostedServer) -> Latency:
        """Return the latency of all requests together."""
        found = self._by_queue(host)
        return ByQueue(found.all) if found else self.by_curve(host)

    def of_each(self, host: HostedServer) -> tuple[Latency, ...]:
        """Return the latency of each demand that it hosts."""
        found = self._by_queue(host)
        return tuple(map(ByQueue, found.members)) if found else (self.by_curve(host),) * len(host.robots)

    def judged_s(self, own: Latency, host: HostedServer, slo: Slo) -> float:
        """Return the value that an SLO is compared with, from request to reply: the response of these robots in their queue, where
        only actions wait; otherwise that of the curve."""
        return own.response_s(slo) if self.has_queue(host) else self.by_curve(host).response_s(slo)

    def keeps(self, host: HostedServer, slos: Sequence[Slo], limits_s: Sequence[float]) -> bool:
        """Return whether the judged value of each SLO (`judged_s`) is within its limit, for the demands that the host has.

        No queue is simulated without need, or for longer than the decision takes.
        """
        if self.has_queue(host):
            return self._judging(host).keeps([slo.percentile for slo in slos], limits_s)
        curve = self.by_curve(host)
        return all(curve.response_s(slo) <= limit_s for slo, limit_s in zip(slos, limits_s, strict=True))

    def has_queue(self, host: HostedServer) -> bool:
        """Return whether the server is judged by its robots' own queue: where only actions wait, in fixed or stepwise batches."""
        demands = [self._problem.demands[d] for d, _ in host.robots]
        return bool(demands) and all(d.for_actions for d in demands) and self._curves.knows_queue(host.config)

    def acts_hz(self, host: HostedServer) -> dict[int, float]:
        """Return demand -> action rate of one of its robots, by its own queue, over all starts. Demands for which only the curve is
        known, or whose robots hardly act, are left out."""
        found = self._by_queue(host) if self.has_queue(host) else None
        watched = zip(host.robots, found.members, strict=True) if found else ()
        return {d: one.acts_hz for (d, _), one in watched if math.isfinite(one.acts_hz)}

    def unlucky(self, host: HostedServer) -> float:
        """Return the share of the starts of its own queue after which robots miss an SLO."""
        found = self._by_queue(host) if self.has_queue(host) else None
        if found is None:
            return 0.0
        slos = [self._problem.demands[d].slo for d, _ in host.robots]
        return max(one.missed(slo.percentile, slo.kept_s * SLO_SLACK) for one, slo in zip(found.members, slos, strict=True))

    def _by_queue(self, host: HostedServer) -> QueueStats | None:
        if self.has_queue(host):
            return self._judging(host).waits
        demands = [self._problem.demands[d] for d, _ in host.robots]
        law = self._curves.shared_law(host.config)
        if not demands or law is None or any(d.for_actions for d in demands) or host in self._settled.saturated:
            return None
        away_s = self._curves.away_s(host.config)
        return shared_waits(tuple(self._paced(d, count, away_s) for d, (_, count) in zip(demands, host.robots, strict=True)), law)

    def _judging(self, host: HostedServer) -> QueueRuns:
        """Return the runs of its robots' own queue that judge it."""
        demands = [self._problem.demands[d] for d, _ in host.robots]
        away_s = self._curves.away_s(host.config)
        members = tuple(self._member(d, count, away_s) for d, (_, count) in zip(demands, host.robots, strict=True))
        if self._order(host) not in DISPATCH_POLICIES:  # it may use data that our policies ignore
            members = tuple(self._named(member, d) for member, d in zip(members, demands, strict=True))
        steps = self._curves.stepped_law(host.config)
        if steps is None:
            return self._batched(host, members, demands)
        runs = framed_runs if any(member.pipelining for member in members) else stepped_runs
        return runs(members, steps, self._order(host), self._most)

    def _batched(self, host: HostedServer, members: tuple[ClientGroup, ...], demands: Sequence[Demand]) -> QueueRuns:
        service, curve = self._service(host), self.by_curve(host)
        found = runs_of(members, service)
        if self._most <= MOST_REQUESTS:
            return found
        limits_s = [limit_s(demand.slo, curve.response_s(demand.slo)) for demand in demands]
        watched = zip(found.waits.members, demands, limits_s, strict=True)
        in_doubt = any(one.is_in_doubt(d.slo.percentile, most_s) for one, d, most_s in watched)
        return runs_of(members, service, self._most) if in_doubt else found

    def by_curve(self, host: HostedServer) -> ByCurve:
        """Return the latency by the curve. A saturated server makes all robots wait until just the measured maximum is requested;
        the tail is no shorter than there."""
        mean, away_s = self._curves.mean(host.config), self._curves.away_s(host.config)
        if host in self._settled.saturated:
            own_s = self._settled.response_s[host] - away_s
            return ByCurve(own_s, lambda p: own_s + max(self._curves.quantile(host.config, p).y[-1] - mean.y[-1], 0.0), away_s)
        load_hz = self.load_hz(host)
        return ByCurve(mean.at(load_hz) - away_s, lambda p: self._curves.quantile(host.config, p).at(load_hz) - away_s, away_s)

    def share_s(self, host: HostedServer, demand: Demand) -> float:
        """Return the part of an SLO that is left for this server."""
        return self._curves.share_s(host.config, demand.slo)

    def load_hz(self, host: HostedServer) -> float:
        demands = self._problem.demands
        return sum(count * demands[d].rate_hz(self._settled.rates[demands[d].task]) for d, count in host.robots)

    # --- the closed queue ---

    def _member(self, demand: Demand, count: int, away_s: float) -> ClientGroup:
        task = self._problem.classes[demand.task]
        cap_hz = self._caps[demand.task] if self._caps else math.inf
        period_s = 1.0 / cap_hz if cap_hz > 0 else 0.0
        return ClientGroup(
            num_robots=count,
            period_s=period_s,
            think_s=task.frame_s or task.execution_s,
            overlapped=task.overlapped,
            step_s=task.step_s,
            gives_way=task.gives_way(period_s),
            chunk_s=task.chunk_s,
            trusted=None if task.in_frames else task.trusted,
            pipelining=task.pipelining,
            calls=self._calls(task, demand),
            slo_s=demand.slo.promised_s,
            round_trip_s=task.network.round_trip_ms / 1e3 + away_s,
            jitter_s=task.network.jitter_ms / 1e3,
        )

    def _named(self, member: ClientGroup, demand: Demand) -> ClientGroup:
        return replace(member, task=self._problem.classes[demand.task].name, kind=(demand.component, demand.prompt))

    def _calls(self, task: TaskClass, demand: Demand) -> tuple[tuple[float, float, float], ...]:
        """Return the waits for other components. One that executes meanwhile has some if its SLO permits answers that outlast a
        chunk."""
        if task.in_frames or (task.overlapped and demand.slo.promised_s <= task.chunk_s):
            return ()
        return tuple(self._call(d) for d in task.coupled if d.index != demand.index)

    def _paced(self, demand: Demand, count: int, away_s: float) -> ClientGroup:
        """Return the members of a server that all requests share: obligations, whose phases give way, and goal-coupled calls."""
        rate_hz = demand.rate_hz(self._settled.rates[demand.task])
        network = self._problem.classes[demand.task].network
        trip_s, jitter_s = network.round_trip_ms / 1e3 + away_s, network.jitter_ms / 1e3
        period_s, gives_way = 1.0 / rate_hz if rate_hz > 0 else LONGEST_S, not demand.goal_coupled
        later_s = MOST_LATER_S.get(demand.component, math.inf)
        return ClientGroup(count, period_s, 0.0, gives_way=gives_way, later_s=later_s, round_trip_s=trip_s, jitter_s=jitter_s)

    def _call(self, demand: Demand) -> tuple[float, float, float]:
        """Return a wait for another component: at the slowest server that its class uses for it."""
        network = self._problem.classes[demand.task].network
        there = (host for host in self._hosts if demand.index in dict(host.robots))
        away_s, slowest = max((self._wait(host, demand) for host in there), key=lambda wait: wait[0] + wait[1].mean_s)
        if not math.isfinite(slowest.mean_s):
            return demand.calls, network.mean_s, 0.0
        scatter_s = math.hypot((slowest.at(99.0) - slowest.mean_s) / NORMAL_P99, network.jitter_ms / 1e3 / math.sqrt(2.0))
        return demand.calls, away_s + slowest.mean_s + network.mean_s, scatter_s

    def _wait(self, host: HostedServer, demand: Demand) -> tuple[float, Latency]:
        """Return the way to the host in seconds, and the latency of the demand's requests there."""
        curve = self.by_curve(host)
        if not self._calls_by_queue or self.has_queue(host):
            return curve.away_s, curve
        place = [index for index, _ in host.robots].index(demand.index)
        return curve.away_s, self.of_each(host)[place]

    def _service(self, host: HostedServer) -> BatchService:
        waits = declared_type(host.config.gpu_type) in self._problem.waiting
        batch_s, scatter = self._curves.batch_s(host.config), self._scatter(host)
        stragglers = self._curves.stragglers.get(host.config.gpu_type)
        return BatchService(host.config.batch_size, batch_s, scatter, self._order(host), waits, stragglers)

    def _order(self, host: HostedServer) -> str:
        return self._problem.dispatch.get(declared_type(host.config.gpu_type), "fifo")

    def _scatter(self, host: HostedServer) -> float:
        """Return the relative standard deviation of services: at hardly any load, one request in ten meets no other."""
        alone = [(self._curves.typical_s(c, 90.0), self._curves.typical_s(c, 50.0)) for c in self._curves.of(host.config.model)]
        return min(p90_s / p50_s - 1.0 for p90_s, p50_s in alone) / NORMAL_P90
