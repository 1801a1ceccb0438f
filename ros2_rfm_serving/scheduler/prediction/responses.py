"""Latencies of the servers of a placement at given rates: by the profile's curves, and where actions wait for fixed batches, by the
robots' closed queue (`closed_queue.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.prediction.closed_queue import Member, Service, waits
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium
from ros2_rfm_serving.scheduler.prediction.rates import Host, Rates
from ros2_rfm_serving.scheduler.problem import Demand, Problem
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.types.phase import has_room

NORMAL_P99 = 2.326
"""Standard deviations that the 99th percentile of a normal distribution lies above its mean."""


@dataclass(frozen=True)
class Latency:
    """Of one server."""

    mean_s: float
    at: Callable[[float], float]
    """Seconds at a percentile."""

    def response_s(self, slo: Slo) -> float:
        """From request to reply, at the percentile of an SLO."""
        return slo.response_s(self.at(slo.percentile), self.mean_s)


class Responses:
    """Of one placement."""

    def __init__(self, problem: Problem, curves: Curves, hosts: Sequence[Host], caps: Rates | None, settled: Equilibrium) -> None:
        self._problem, self._curves, self._hosts, self._caps, self._settled = problem, curves, hosts, caps, settled

    def of(self, host: Host) -> Latency:
        demands = [self._problem.demands[d] for d, _ in host.robots]
        if demands and all(d.calls == 1.0 for d in demands) and self._curves.pads_batches(host.config):
            members = tuple(self._member(d, count) for d, (_, count) in zip(demands, host.robots, strict=True))
            found = waits(members, self._service(host))
            return Latency(found.mean_s, found.at)
        return self.by_curve(host)

    def judged(self, host: Host) -> Latency:
        """What SLOs are compared with. By the curve, where caps hold the load within what was measured; where nothing does, by what
        is predicted of just these robots. Of robots that differ the server takes those first that ask seldom: others wait longer
        than in the queue, where all are equal. There the curve has to agree."""
        curve = self.by_curve(host)
        if self._caps:
            return curve
        found = self.of(host)
        if len({self._problem.classes[self._problem.demands[d].task].name for d, _ in host.robots}) <= 1:
            return found
        return Latency(max(found.mean_s, curve.mean_s), lambda p: max(found.at(p), curve.at(p)))

    def by_curve(self, host: Host) -> Latency:
        """A saturated server makes everybody wait until just the measured maximum is asked; the tail is no shorter than there."""
        mean = self._curves.mean(host.config)
        if host in self._settled.saturated:
            response_s = self._settled.response_s[host]
            return Latency(response_s, lambda p: response_s + max(self._curves.quantile(host.config, p).y[-1] - mean.y[-1], 0.0))
        load_hz = self.load_hz(host)
        return Latency(mean.at(load_hz), lambda p: self._curves.quantile(host.config, p).at(load_hz))

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
            think_s=task.cycle_s,
            overlapped=task.overlapped,
            gives_way=not task.overlapped or has_room(period_s, task.cycle_s),
            calls=() if task.overlapped else tuple(self._call(d) for d in task.coupled if d.index != demand.index),
        )

    def _call(self, demand: Demand) -> tuple[float, float, float]:
        """A wait elsewhere: at the slowest server that its class has for it."""
        slowest = max((self.by_curve(h) for h in self._hosts if demand.index in dict(h.robots)), key=lambda found: found.mean_s)
        if not math.isfinite(slowest.mean_s):
            return demand.calls, 0.0, 0.0
        return demand.calls, slowest.mean_s, (slowest.at(99.0) - slowest.mean_s) / NORMAL_P99

    def _service(self, host: Host) -> Service:
        batch_s = host.config.batch_size / self._curves.max_rate_hz(host.config)
        return Service(host.config.batch_size, batch_s, (self._scatter(host) - 1.0) / NORMAL_P99)

    def _scatter(self, host: Host) -> float:
        """p99 over the median where nothing queues."""
        configs = self._curves.of(host.config.model)
        return min(self._curves.quantile(c, 99.0).y[0] / self._curves.quantile(c, 50.0).y[0] for c in configs)
