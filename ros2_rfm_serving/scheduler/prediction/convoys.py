"""Robots that need no rate control: synchronous robots in a closed loop pace themselves.

N synchronous robots on one server of batch size B and service time s are a closed queue with think time Z = t_act. Each waits for
its own reply, so when they saturate the server they fall into convoys of B, and a robot's response is

    R = max(s + w, m s - Z),  m = ceil(N / B)

where w is the wait for a batch that began a moment before: 0 for B = 1, where robots avoid each other, and half a service, as often
as the server is busy, for larger batches. A profile's curves, measured with robots that keep a pace of their own, are higher. One
convoy out of step adds one service. Where R + s is within the SLO, a cap only costs actions: it keeps robots out of step, so that
the tail grows and the rate falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass

BOUND_BY_LOOP = 0.85
"""Share of its closed loop from which a class counts as limited by nothing else: it is not slowed for other classes."""


def self_paced(
    problem: PlanningProblem, curves: Curves, hosts: Sequence[HostedServer], rates: Rates, loops: Rates
) -> tuple[float | None, ...]:
    """Return the action rate of each class that it reaches by itself, within every SLO; None: it needs its cap."""
    return tuple(
        _own_pace_hz(problem, curves, hosts, task) if rate >= BOUND_BY_LOOP * loop and not task.overlapped else None
        for task, rate, loop in zip(problem.classes, rates, loops, strict=True)
    )


def _own_pace_hz(problem: PlanningProblem, curves: Curves, hosts: Sequence[HostedServer], task: TaskClass) -> float | None:
    mine = [h for h in hosts if any(problem.demands[d].task == task.demands[0].task for d, _ in h.robots)]
    latency_s = dict.fromkeys((d.index for d in task.coupled), 0.0)
    """Mean latency over the robots of the class."""
    for host in mine:
        here = [d for d in task.coupled if any(d.index == index for index, _ in host.robots)]
        if any(d.for_actions for d in here):
            response_s = _convoy_response_s(problem, curves, host)
        else:
            response_s = _fastest_response_s(problem, curves, host)
        if response_s is None:
            return None
        for demand in here:
            latency_s[demand.index] += response_s * dict(host.robots)[demand.index] / task.num_robots
    return task.closed_loop_hz(latency_s)


def _convoy_response_s(problem: PlanningProblem, curves: Curves, host: HostedServer) -> float | None:
    """Return the response of a server that only System 1 of synchronous classes uses; None: an SLO might be missed."""
    demands = [problem.demands[d] for d, _ in host.robots]
    tasks = [problem.classes[d.task] for d in demands]
    if host.config.batching != "fixed" or any(not d.for_actions or t.overlapped for d, t in zip(demands, tasks, strict=True)):
        return None
    service_s = _service_s(curves, host)
    response_s = _law_s(host, service_s, min(t.cycle_s for t in tasks))
    response_s += curves.away_s(host.config)
    tail_s = response_s + service_s
    return response_s if all(d.slo.response_s(tail_s, response_s) <= d.slo.kept_s for d in demands) else None


def _service_s(curves: Curves, host: HostedServer) -> float:
    return curves.typical_s(host.config, 50.0)


def _law_s(host: HostedServer, service_s: float, cycle_s: float) -> float:
    robots = sum(count for _, count in host.robots)
    convoys = math.ceil(robots / host.config.batch_size)
    busy = min(1.0, robots * service_s / (cycle_s + service_s))
    wait_s = 0.5 * busy * service_s if host.config.batch_size > 1 else 0.0
    return max(service_s + wait_s, convoys * service_s - cycle_s)


def _fastest_response_s(problem: PlanningProblem, curves: Curves, host: HostedServer) -> float | None:
    """Return the mean latency when the loops of all its robots are as fast as without queueing; None: an SLO is missed then."""
    load_hz = sum(count * problem.demands[d].rate_hz(_fastest_hz(problem, curves, d)) for d, count in host.robots)
    demands = [problem.demands[d] for d, _ in host.robots]
    fits = load_hz <= min(curves.capacity_hz(host.config, d.slo) for d in demands)
    return curves.mean(host.config).at(load_hz) if fits else None


def _fastest_hz(problem: PlanningProblem, curves: Curves, demand: int) -> float:
    task = problem.classes[problem.demands[demand].task]
    return task.closed_loop_hz({d.index: min(curves.mean(c).y[0] for c in curves.of(d.model)) for d in task.coupled})
