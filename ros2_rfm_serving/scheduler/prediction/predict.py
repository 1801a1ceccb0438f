"""What a placement will do, predicted from the profile: rates, latencies, and whether every SLO is met."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.prediction import convoys
from ros2_rfm_serving.scheduler.prediction.bound import Bound
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.rates import BISECTIONS, Host, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import Problem
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution, Stream, TaskSolution

SLO_SLACK = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A placement and how it is run."""

    hosts: tuple[Host, ...]
    caps: Rates | None
    """Highest action rates that robots may use; None: they send as soon as they can."""
    rates: Rates | None = None
    """Predicted action rates, when a solver knows them."""
    paces: tuple[float | None, ...] = ()
    """Rates of classes that pace themselves (see `convoys`)."""
    gpus: tuple[str, ...] = ()
    complete: bool = True


def solution_of(
    policy: str,
    problem: Problem,
    curves: Curves,
    operation: Operation,
    bound: Bound,
    *,
    declared: tuple[int, ...] | None = None,
) -> Solution:
    """declared: robots of each class, where the policy serves only some of them."""
    rates = operation.rates or equilibrium(problem, curves, operation.hosts, operation.caps)
    servers = _servers(problem, curves, operation, rates)
    missed = _missed(servers)
    counts = declared or tuple(task.num_robots for task in problem.classes)
    problems = [
        f"{count - task.num_robots} of the robots of {task.name!r} get no server"
        for task, count in zip(problem.classes, counts, strict=True)
        if count > task.num_robots
    ]
    problems += sorted({text for texts in missed.values() for text in texts})
    expected = tuple(max(rate, pace or 0.0) for rate, pace in zip(rates, operation.paces or rates, strict=True))
    return Solution(
        policy=policy,
        feasible=not problems,
        objective=_qualified(problem, rates, missed),
        bound=bound.objective,
        expected=_qualified(problem, expected, missed),
        tasks=_tasks(problem, RateSearch(problem, curves, operation.hosts), rates, expected, counts),
        servers=servers,
        problems=tuple(problems),
        complete=operation.complete,
        notes=() if bound.proven else ("the bound is loose: its solver ran out of time",),
    )


def _qualified(problem: Problem, rates: Rates, missed: Collection[str]) -> float:
    """The objective, without the classes that miss an SLO."""
    return problem.objective(tuple(0.0 if t.name in missed else f for t, f in zip(problem.classes, rates, strict=True)))


def _tasks(problem: Problem, search: RateSearch, rates: Rates, expected: Rates, counts: tuple[int, ...]) -> dict[str, TaskSolution]:
    loops = search.closed_loops_hz(rates)
    return {
        task.name: TaskSolution(
            num_robots=counts[c],
            served=task.num_robots,
            action_rate_hz=rates[c],
            closed_loop_rate_hz=loops[c],
            expected_rate_hz=expected[c],
        )
        for c, task in enumerate(problem.classes)
    }


def equilibrium(problem: Problem, curves: Curves, hosts: Sequence[Host], caps: Rates | None) -> Rates:
    """Action rates where each class runs at its cap or at its closed loop, whichever is lower, and no server beyond its maximum."""
    search = RateSearch(problem, curves, hosts)
    tops = caps or tuple(task.max_rate_hz for task in problem.classes)
    rates = tops
    for _ in range(BISECTIONS):  # damped: latencies fall as rates fall
        within = _within_maximum(search, curves, hosts, problem, rates)
        loops = search.closed_loops_hz(within)
        target = tuple(min(top, loop, w * 1.5) for top, loop, w in zip(tops, loops, within, strict=True))
        moved = tuple((a + b) / 2 for a, b in zip(within, target, strict=True))
        if max(abs(a - b) for a, b in zip(moved, rates, strict=True)) < 1e-9:
            break
        rates = moved
    return _within_maximum(search, curves, hosts, problem, rates)


def _within_maximum(search: RateSearch, curves: Curves, hosts: Sequence[Host], problem: Problem, rates: Rates) -> Rates:
    """Classes on an overloaded server slow down together until it is just saturated."""
    factors = [1.0] * len(rates)
    for host in dict.fromkeys(hosts):
        goal = fixed = 0.0
        for index, count in host.robots:
            demand = problem.demands[index]
            goal += count * demand.calls * rates[demand.task]
            fixed += count * demand.fixed_hz
        most = curves.max_rate_hz(host.config)
        if goal and goal + fixed > most:
            for index, _ in host.robots:
                if problem.demands[index].goal_coupled:
                    task = problem.demands[index].task
                    factors[task] = min(factors[task], max(most - fixed, 0.0) / goal)
    return tuple(f * factor for f, factor in zip(rates, factors, strict=True))


def _servers(problem: Problem, curves: Curves, operation: Operation, rates: Rates) -> tuple[ServerSolution, ...]:
    gpus = operation.gpus or ("",) * len(operation.hosts)
    names = _names(problem, operation.hosts, gpus)
    order = sorted(range(len(names)), key=lambda i: (list(problem.servers).index(gpus[i] or names[i]), i))
    return tuple(
        replace(_server(problem, curves, operation, operation.hosts[i], rates), server=names[i], gpu=gpus[i]) for i in order
    )


def _names(problem: Problem, hosts: Sequence[Host], gpus: Sequence[str]) -> list[str]:
    """Servers of the right type in the order of models, so that neighbours host the same; shared GPUs name model and component."""
    free = {gpu_type: [s for s, g in problem.servers.items() if g == gpu_type] for gpu_type in problem.gpus}
    names = [""] * len(hosts)
    for i in sorted(range(len(hosts)), key=lambda i: (problem.models.index(hosts[i].config.model), hosts[i].robots)):
        component = problem.demands[hosts[i].robots[0][0]].component if hosts[i].robots else "idle"
        names[i] = f"{gpus[i]}_{component}" if gpus[i] else free[hosts[i].config.gpu_type].pop(0)
    return names


def _server(problem: Problem, curves: Curves, operation: Operation, host: Host, rates: Rates) -> ServerSolution:
    streams = []
    load_hz = 0.0
    for index, count in host.robots:
        demand = problem.demands[index]
        task = problem.classes[demand.task]
        rate_hz = demand.rate_hz(rates[demand.task])
        load_hz += count * rate_hz
        cap_hz = demand.fixed_hz or (demand.calls * operation.caps[demand.task] if operation.caps else math.inf)
        streams.append(
            Stream(
                task=task.name,
                component=demand.component,
                num_robots=count,
                rate_hz=rate_hz,
                cap_hz=cap_hz,
                slo_s=demand.slo_s,
                percentile=demand.percentile,
            )
        )
    mean_s, p99_s = _latencies_s(problem, curves, operation, host, rates, load_hz)
    return ServerSolution(
        server="",
        gpu_type=host.config.gpu_type,
        model=host.config.model,
        batching=host.config.batching,
        batch_size=host.config.batch_size,
        streams=tuple(streams),
        rate_hz=load_hz,
        mean_s=mean_s,
        p99_s=p99_s,
    )


def _latencies_s(
    problem: Problem, curves: Curves, operation: Operation, host: Host, rates: Rates, load_hz: float
) -> tuple[float, float]:
    """(mean, p99): by the profile's curves, but for servers that are saturated and for robots that pace themselves."""
    most_hz = curves.max_rate_hz(host.config)
    if operation.caps is None and load_hz > most_hz * (1 - 1e-6):
        response_s = _response_s(problem, host, rates, most_hz)
        return response_s, response_s
    demands = [problem.demands[d] for d, _ in host.robots]
    if demands and operation.paces and all(d.calls == 1.0 and operation.paces[d.task] is not None for d in demands):
        return convoys.latencies_s(problem, curves, host)
    return curves.mean(host.config).at(load_hz), curves.quantile(host.config, 99.0).at(load_hz)


def _response_s(problem: Problem, host: Host, rates: Rates, most_hz: float) -> float:
    """Of a saturated server that robots wait at: what is left of their cycles (the interactive response time law)."""
    periodic_hz = sum(n * problem.demands[d].fixed_hz for d, n in host.robots)
    if periodic_hz > most_hz * (1 - 1e-6):
        return math.inf
    waits = []
    for index, _ in host.robots:
        demand = problem.demands[index]
        if demand.goal_coupled and rates[demand.task] > 0:
            waits.append((1.0 / rates[demand.task] - problem.classes[demand.task].cycle_s) / demand.calls)
    return max(waits, default=math.inf)


def _missed(servers: Sequence[ServerSolution]) -> dict[str, list[str]]:
    """Task -> what misses its SLO, in words. Checked at 99 %, or the demand's own percentile where the profile's p99 is over."""
    texts: dict[str, list[str]] = defaultdict(list)
    for server in servers:
        for stream in server.streams:
            if server.p99_s > stream.slo_s * SLO_SLACK:
                text = (
                    f"{stream.component} of {stream.task!r} on {server.server}: predicted p99 "
                    f"{1e3 * server.p99_s:.0f} ms, the SLO is {1e3 * stream.slo_s:.0f} ms"
                )
                texts[stream.task].append(text)
    return dict(texts)
