"""Latencies of the servers of a placement at given rates: by the profile's curves, and where actions wait for fixed batches, by the
robots' closed queue (`closed_queue.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ros2_rfm_serving.scheduler.prediction.closed_queue import Member, Service, Waited, Waits, waits
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium
from ros2_rfm_serving.scheduler.prediction.rates import Host, Rates
from ros2_rfm_serving.scheduler.problem import Demand, Problem
from ros2_rfm_serving.scheduler.seen import declared_type
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.scheduler.solution import SLO_SLACK
from ros2_rfm_serving.types.phase import has_room

NORMAL_P99 = 2.326
"""Standard deviations that the 99th percentile of a normal distribution lies above its mean."""


class Latency(Protocol):
    """Of one server."""

    @property
    def mean_s(self) -> float: ...
    def at(self, percentile: float) -> float:
        """Seconds."""

    def response_s(self, slo: Slo) -> float:
        """From request to reply, at the percentile of an SLO."""


@dataclass(frozen=True)
class ByCurve:
    mean_s: float
    at: Callable[[float], float]

    def response_s(self, slo: Slo) -> float:
        return slo.response_s(self.at(slo.percentile), self.mean_s)


@dataclass(frozen=True)
class ByQueue:
    """Of robots that were watched in their own closed queue, with their network."""

    waited: Waited

    @property
    def mean_s(self) -> float:
        return self.waited.mean_s

    def at(self, percentile: float) -> float:
        return self.waited.at(percentile)

    def response_s(self, slo: Slo) -> float:
        return self.waited.response_s(slo.percentile)


class Responses:
    """Of one placement."""

    def __init__(self, problem: Problem, curves: Curves, hosts: Sequence[Host], caps: Rates | None, settled: Equilibrium) -> None:
        self._problem, self._curves, self._hosts, self._caps, self._settled = problem, curves, hosts, caps, settled

    def of(self, host: Host) -> Latency:
        """Whoever asks."""
        found = self._by_queue(host)
        return ByQueue(found.all) if found else self.by_curve(host)

    def of_each(self, host: Host) -> tuple[Latency, ...]:
        """For each demand that it hosts."""
        found = self._by_queue(host)
        return tuple(map(ByQueue, found.members)) if found else (self.by_curve(host),) * len(host.robots)

    def judged_s(self, own: Latency, host: Host, slo: Slo) -> float:
        """What an SLO is compared with, from request to reply: the curve, where caps keep it so and there is no network, of which
        curves know nothing; else what just these robots see in their queue, where they have one."""
        curve_s = self.by_curve(host).response_s(slo)
        within = self._caps is not None and not slo.travel_s and curve_s <= slo.kept_s * SLO_SLACK
        return curve_s if within else own.response_s(slo)

    def has_queue(self, host: Host) -> bool:
        """Whether its latencies are of its robots' own queue: where actions alone wait for fixed batches."""
        demands = [self._problem.demands[d] for d, _ in host.robots]
        return bool(demands) and all(d.calls == 1.0 for d in demands) and self._curves.pads_batches(host.config)

    def _by_queue(self, host: Host) -> Waits | None:
        if not self.has_queue(host):
            return None
        demands = [self._problem.demands[d] for d, _ in host.robots]
        members = tuple(self._member(d, count) for d, (_, count) in zip(demands, host.robots, strict=True))
        return waits(members, self._service(host))

    def by_curve(self, host: Host) -> ByCurve:
        """A saturated server makes everybody wait until just the measured maximum is asked; the tail is no shorter than there."""
        mean = self._curves.mean(host.config)
        if host in self._settled.saturated:
            response_s = self._settled.response_s[host]
            return ByCurve(response_s, lambda p: response_s + max(self._curves.quantile(host.config, p).y[-1] - mean.y[-1], 0.0))
        load_hz = self.load_hz(host)
        return ByCurve(mean.at(load_hz), lambda p: self._curves.quantile(host.config, p).at(load_hz))

    def share_s(self, host: Host, demand: Demand) -> float:
        """What is left of an SLO for this server."""
        return self._curves.share_s(host.config, demand.slo)

    def load_hz(self, host: Host) -> float:
        demands = self._problem.demands
        return sum(count * demands[d].rate_hz(self._settled.rates[demands[d].task]) for d, count in host.robots)

    # --- the closed queue ---

    def _member(self, demand: Demand, count: int) -> Member:
        task = self._problem.classes[demand.task]
        cap_hz = self._caps[demand.task] if self._caps else math.inf
        period_s = 1.0 / cap_hz if cap_hz > 0 else 0.0
        return Member(
            num_robots=count,
            period_s=period_s,
            think_s=task.execution_s,
            overlapped=task.overlapped,
            gives_way=not task.overlapped or has_room(period_s, task.cycle_s),
            calls=() if task.overlapped else tuple(self._call(d) for d in task.coupled if d.index != demand.index),
            slo_s=demand.slo.promised_s,
            round_trip_s=task.network.round_trip_ms / 1e3,
            jitter_s=task.network.jitter_ms / 1e3,
        )

    def _call(self, demand: Demand) -> tuple[float, float, float]:
        """A wait elsewhere: at the slowest server that its class has for it."""
        network = self._problem.classes[demand.task].network
        slowest = max((self.by_curve(h) for h in self._hosts if demand.index in dict(h.robots)), key=lambda found: found.mean_s)
        if not math.isfinite(slowest.mean_s):
            return demand.calls, network.mean_s, 0.0
        scatter_s = math.hypot((slowest.at(99.0) - slowest.mean_s) / NORMAL_P99, network.jitter_ms / 1e3 / math.sqrt(2.0))
        return demand.calls, slowest.mean_s + network.mean_s, scatter_s

    def _service(self, host: Host) -> Service:
        batch_s = host.config.batch_size / self._curves.max_rate_hz(host.config)
        order = self._problem.dispatch.get(declared_type(host.config.gpu_type), "fifo")
        return Service(host.config.batch_size, batch_s, (self._scatter(host) - 1.0) / NORMAL_P99, order)

    def _scatter(self, host: Host) -> float:
        """p99 over the median where nothing queues."""
        configs = self._curves.of(host.config.model)
        return min(self._curves.quantile(c, 99.0).y[0] / self._curves.quantile(c, 50.0).y[0] for c in configs)
