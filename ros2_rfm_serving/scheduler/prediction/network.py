"""What the network takes of an SLO, which is from request to reply, before the server has any of it.

A server's latency and a round trip are independent, so their tails rarely meet: the percentile of the sum is taken as mean + mean +
root of the sum of the squares of what each one's percentile is above its mean (exact for normal distributions). What is left for
the server follows from its own latency curves: the highest percentile of its latency with which the sum still keeps the SLO, by
whichever of the model's set-ups leaves least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.descriptor import Network
from ros2_rfm_serving.scheduler.prediction.curves import Curves, Line
from ros2_rfm_serving.scheduler.problem import Demand, TaskClass

BISECTIONS = 40


def response_s(latency_s: float, mean_s: float, network: Network, percentile: float) -> float:
    """From request to reply, at a percentile. latency_s: the server's, at that percentile."""
    excess_s = math.hypot(latency_s - mean_s, network.at_s(percentile) - network.mean_s)
    return mean_s + network.mean_s + excess_s if math.isfinite(latency_s) else math.inf


def server_slo_s(factory: Factory, task: str, component: str, curves: Curves) -> float:
    """What network and margin leave of an SLO for the server; not above 0: nothing; inf: none is declared."""
    spec, declared = factory.tasks[task].components[component], factory.tasks[task]
    if not spec.slo_ms:
        return math.inf
    percentile = spec.percentile or declared.percentile
    slo_s, network = spec.slo_ms / 1e3 * (1 - factory.planning.slo_margin), factory.network_of(task)
    if not network.mean_s:
        return slo_s
    lines = [(curves.mean(config), curves.quantile(config, percentile)) for config in curves.of(spec.model)]
    shares_s = [share_s for mean, tail in lines if (share_s := _share_s(mean, tail, slo_s, network, percentile)) > 0]
    return min(shares_s, default=slo_s - network.at_s(percentile))


def reserved(classes: Iterable[TaskClass], factory: Factory, curves: Curves) -> tuple[TaskClass, ...]:
    """With what is left of every SLO for the servers."""
    return tuple(replace(t, demands=tuple(_reserved(t.name, d, factory, curves) for d in t.demands)) for t in classes)


def _reserved(task: str, demand: Demand, factory: Factory, curves: Curves) -> Demand:
    margin, slo_s = factory.planning.slo_margin, server_slo_s(factory, task, demand.component, curves)
    network_s = demand.slo_s * (1 - margin) - slo_s if math.isfinite(slo_s) else 0.0
    return replace(demand, slo_s=slo_s, network_s=network_s, margin=margin, network=factory.network_of(task))


def _share_s(mean: Line, tail: Line, slo_s: float, network: Network, percentile: float) -> float:
    """Of one set-up; 0: it keeps the SLO at no load."""

    def keeps(load_hz: float) -> bool:
        return response_s(tail.at(load_hz), mean.at(load_hz), network, percentile) <= slo_s

    low_hz, high_hz = mean.x[0], mean.x[-1]
    if not keeps(low_hz):
        return 0.0
    for _ in range(BISECTIONS):
        middle_hz = (low_hz + high_hz) / 2
        low_hz, high_hz = (middle_hz, high_hz) if keeps(middle_hz) else (low_hz, middle_hz)
    return tail.at(high_hz) if keeps(high_hz) else tail.at(low_hz)
