"""Prediction of a placement's performance from the profile: rates, latencies, and whether every SLO is met."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ros2_rfm_serving.scheduler import utility
from ros2_rfm_serving.scheduler.prediction import placement_matching
from ros2_rfm_serving.scheduler.prediction.bound import Bound
from ros2_rfm_serving.scheduler.prediction.bounds import BoundKind, Bounds
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium, equilibrium
from ros2_rfm_serving.scheduler.prediction.plan_messages import SURE, below_floor, beyond, missed, neglected, unlucky, without_room
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch, keeps_frames
from ros2_rfm_serving.scheduler.prediction.responses import Responses
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass
from ros2_rfm_serving.scheduler.solution import (
    ServerSolution,
    Solution,
    Stream,
    TaskSolution,
    limit_s,
)

DOUBTFUL = 0.5
"""Share of the curves' rates: robots with a lower floor are fast enough in any queue of theirs."""
BELOW_CURVES = 0.01
"""Share of the curves' objective for the same servers that robots' own queues may lose before the bound says little."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Placement and how it is operated."""

    hosts: tuple[HostedServer, ...]
    caps: Rates | None
    """Highest action rates that robots may use; None: they send as soon as they can."""
    rates: Rates | None = None
    """Predicted action rates, when a solver knows them."""
    paces: tuple[float | None, ...] = ()
    """Rates of classes that pace themselves (see `convoys`)."""
    gpus: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Names of the servers, where they are given."""
    complete: bool = True


def solution_of(
    policy: str,
    problem: PlanningProblem,
    curves: Curves,
    operation: Operation,
    bounds: Bounds,
    *,
    declared: tuple[int, ...] | None = None,
    assuring: bool = True,
) -> Solution:
    """Return the predicted solution. declared: robots of each class, where the policy serves only some of them. assuring: as in
    `Responses`."""
    settled = _settled(problem, curves, operation)
    rates = settled.rates
    responses = Responses(problem, curves, operation.hosts, operation.caps, settled, assuring=assuring)
    servers = _servers(problem, responses, operation, settled)
    late = missed(servers)
    bound = bounds.of(BoundKind(bool(operation.gpus), any(stream.by_own_queue for s in servers for stream in s.streams)))
    counts = declared or tuple(task.num_robots for task in problem.classes)
    problems = [
        f"{count - task.num_robots} of the robots of {task.name!r} get no server"
        for task, count in zip(problem.classes, counts, strict=True)
        if count > task.num_robots
    ]
    problems += sorted({text for texts in late.values() for text in texts})
    problems += dict.fromkeys(without_room(problem, curves, operation.hosts))
    acting = _expected(problem, _acting(problem, curves, operation, settled), operation, rates)
    problems += dict.fromkeys(below_floor(problem, rates, acting.slowest))
    tasks = _tasks(problem, RateSearch(problem, curves, operation.hosts), rates, acting.mean, declared)
    return Solution(
        policy=policy,
        feasible=not problems,
        objective=problem.objective(_qualified(problem, rates, late)),
        throughput=problem.throughput(_qualified(problem, rates, late)),
        bound=bound.objective,
        expected=problem.throughput(_qualified(problem, acting.mean, late)),
        tasks=tasks,
        servers=servers,
        problems=tuple(problems),
        by_lowest=problem.aim == utility.MAX_MIN,
        below_curves=_is_below_curves(problem, curves, operation),
        complete=operation.complete,
        notes=tuple(_notes(tasks, servers, bound)),
    )


def _is_below_curves(problem: PlanningProblem, curves: Curves, operation: Operation) -> bool:
    """Return whether these servers would be worth clearly more if only the profile's curves had to be kept, so that robots' own
    queues limit their rates. This applies only to rates that were found with queues, not with other policies' curves."""
    if operation.rates is None or operation.caps is None or operation.gpus:
        return False
    rates = RateSearch(problem, curves, operation.hosts).best()
    return rates is not None and problem.objective(operation.rates) < (1.0 - BELOW_CURVES) * problem.objective(rates)


def keeps_every_slo(problem: PlanningProblem, curves: Curves, operation: Operation, reserve: float = 0.0) -> bool:
    """Return whether every SLO is kept; servers that only need curves are checked first, because that is fast. reserve: share of
    every SLO that is not to be used up."""
    hosts = sorted(dict.fromkeys(operation.hosts), key=_is_fixed)
    return all(kept for _, kept in kept_hosts(problem, curves, operation, hosts, reserve))


def keeping_hosts(
    problem: PlanningProblem, curves: Curves, operation: Operation, hosts: Iterable[HostedServer]
) -> set[HostedServer]:
    """Return the servers that keep every SLO and every floor."""
    return {
        host
        for host, kept in kept_hosts(problem, curves, operation, dict.fromkeys(hosts), 0.0)
        if kept and _keeps_floors(problem, curves, operation, host)
    }


def _keeps_floors(problem: PlanningProblem, curves: Curves, operation: Operation, host: HostedServer) -> bool:
    """Return whether the robots' queue keeps every floor, where the queue is known."""
    responses = Responses(problem, curves, operation.hosts, operation.caps, _settled(problem, curves, operation))
    floors = {d: problem.classes[problem.demands[d].task].floor_hz for d, _ in host.robots}
    return all(hz >= SURE * floors[d] for d, hz in responses.acts_hz(host).items())


def floors_in_doubt(problem: PlanningProblem, rates: Rates) -> bool:
    """Return whether a floor is so close to the curves' rates that robots' own queues have to be simulated."""
    return any(task.floor_hz > DOUBTFUL * hz for task, hz in zip(problem.classes, rates, strict=True) if task.num_robots)


def keeps_every_floor(problem: PlanningProblem, curves: Curves, operation: Operation) -> bool:
    """Return whether every robot is expected to act as often as its floor requires."""
    settled = _settled(problem, curves, operation)
    responses = Responses(problem, curves, operation.hosts, operation.caps, settled)
    acting = _expected(problem, responses, operation, settled.rates)
    return not any(below_floor(problem, settled.rates, acting.slowest))


def kept_hosts(
    problem: PlanningProblem,
    curves: Curves,
    operation: Operation,
    hosts: Iterable[HostedServer],
    reserve: float = 0.0,
    *,
    assuring: bool = False,
) -> Iterator[tuple[HostedServer, bool]]:
    """Yield each server and whether it keeps every SLO. assuring: as in `Responses`."""
    settled = _settled(problem, curves, operation)
    responses = Responses(problem, curves, operation.hosts, operation.caps, settled, assuring=assuring)
    for host in hosts:
        curve = responses.by_curve(host)
        if not keeps_frames(problem, curves, host):
            yield host, False
            continue
        slos = [problem.demands[d].slo for d, _ in host.robots]
        limits_s = [limit_s(slo, curve.response_s(slo), reserve) for slo in slos]
        yield host, responses.keeps(host, slos, limits_s)


def _is_fixed(host: HostedServer) -> bool:
    return host.config.batching == "fixed"


def _notes(tasks: Mapping[str, TaskSolution], servers: Sequence[ServerSolution], bound: Bound) -> Iterator[str]:
    yield from neglected(tasks)
    yield from beyond(servers)
    yield from unlucky(servers)
    if not bound.proven:
        yield "the bound is loose: its search was cut short"


def _acting(problem: PlanningProblem, curves: Curves, operation: Operation, settled: Equilibrium) -> Responses:
    """Return the responses that determine how robots act: with waits for other components by the known queues."""
    return Responses(problem, curves, operation.hosts, operation.caps, settled, calls_by_queue=True)


def _settled(problem: PlanningProblem, curves: Curves, operation: Operation) -> Equilibrium:
    if operation.rates is None:
        return equilibrium(problem, curves, operation.hosts, operation.caps)
    return Equilibrium(operation.rates, {}, frozenset())


def _qualified(problem: PlanningProblem, rates: Rates, late: Collection[str]) -> Rates:
    """Return the rates that count: classes that miss an SLO have 0."""
    return tuple(0.0 if t.name in late else f for t, f in zip(problem.classes, rates, strict=True))


def _tasks(
    problem: PlanningProblem, search: RateSearch, rates: Rates, expected: Rates, declared: Sequence[int] | None
) -> dict[str, TaskSolution]:
    """Return the results of whole classes; classes in parts get means over the robots. declared: robots of each undivided class."""
    loops = search.closed_loops_hz(rates)
    parts: dict[str, list[int]] = defaultdict(list)
    for c, task in enumerate(problem.classes):
        parts[task.name].append(c)

    def mean(values: Rates, mine: Sequence[int], served: int) -> float:
        return sum(values[c] * problem.classes[c].num_robots for c in mine) / served if served else values[mine[0]]

    solutions = {}
    for name, mine in parts.items():
        served = sum(problem.classes[c].num_robots for c in mine)
        solutions[name] = TaskSolution(
            num_robots=declared[mine[0]] if declared else served,
            served=served,
            action_rate_hz=mean(rates, mine, served),
            slowest_rate_hz=min(rates[c] for c in mine),
            closed_loop_rate_hz=mean(loops, mine, served),
            expected_rate_hz=mean(expected, mine, served),
        )
    return solutions


def expected(problem: PlanningProblem, curves: Curves, operation: Operation) -> float:
    """Return the objective by the actions of robots in their own queues."""
    settled = _settled(problem, curves, operation)
    responses = Responses(problem, curves, operation.hosts, operation.caps, settled)
    return problem.objective(_expected(problem, responses, operation, settled.rates).mean)


class ExpectedRates(NamedTuple):
    """Expected action rates of each class: mean over all robots, and that of the robots on the slowest server."""

    mean: Rates
    slowest: Rates


def _expected(problem: PlanningProblem, responses: Responses, operation: Operation, rates: Rates) -> ExpectedRates:
    """Return the action rates of robots in their own queues, which curves do not describe: these were measured with robots that
    have a pace of their own. Synchronous robots fall into convoys, and are faster. Asynchronous ones whose answers take longer than
    their actions ask again immediately, and avoid each other's batches permanently, so that they are slower, or are alone, and
    faster. Those whose answers outlast a chunk stand meanwhile. The curve counts where no queue is known."""
    mean = [max(rate, pace or 0.0) for rate, pace in zip(rates, operation.paces or rates, strict=True)]
    slowest = list(mean)
    for c, task in enumerate(problem.classes):
        asked = next((d.index for d in task.coupled if d.for_actions), None)
        if asked is not None and task.num_robots:
            there = [(num, host) for host in operation.hosts if (num := dict(host.robots).get(asked))]
            acting = [
                (num, responses.acts_hz(host).get(asked, _without_queue_hz(task, mean[c], responses, host))) for num, host in there
            ]
            slowest[c] = min((hz for _, hz in acting), default=mean[c])
            mean[c] = sum(num * hz for num, hz in acting) / task.num_robots
    return ExpectedRates(tuple(mean), tuple(slowest))


def _without_queue_hz(task: TaskClass, rate_hz: float, responses: Responses, host: HostedServer) -> float:
    """Return the rate by the curve. A robot that executes while it waits can use of each chunk only the part that its server
    trusts: after a short part it stands."""
    trusted = task.trusted
    if trusted is None or not task.overlapped:
        return rate_hz
    wait_s = responses.of(host).mean_s + task.round_trip_s
    rows = np.arange(1, 2 * trusted.mean_rows)
    executes_s = np.maximum(rows * task.step_s, trusted.least_rows * task.step_s - wait_s)
    return min(rate_hz, float(1.0 / np.mean(np.maximum(executes_s, wait_s))))


def _servers(
    problem: PlanningProblem, responses: Responses, operation: Operation, settled: Equilibrium
) -> tuple[ServerSolution, ...]:
    gpus = operation.gpus or ("",) * len(operation.hosts)
    names = operation.names or _names(problem, operation.hosts, gpus)
    place = {server: i for i, server in enumerate(problem.servers)}
    order = sorted(range(len(names)), key=lambda i: (place[gpus[i] or names[i]], i))
    return tuple(
        replace(
            _server(problem, responses, operation, operation.hosts[i], settled),
            server=names[i],
            gpu=gpus[i],
            unlucky=responses.unlucky(operation.hosts[i]),
        )
        for i in order
    )


def _names(problem: PlanningProblem, hosts: Sequence[HostedServer], gpus: Sequence[str]) -> Sequence[str]:
    """Return names of servers of the right type in the order of models, so that neighbours host the same; shared GPUs name model
    and component. Of hosts at different distances, the nearest serve what robots wait for before they act."""
    free = {gpu_type: problem.nearest_first([s for s, g in problem.servers.items() if g == gpu_type]) for gpu_type in problem.gpus}
    if problem.previous and not any(gpus):
        return placement_matching.names(problem, problem.previous, hosts, free)
    names = [""] * len(hosts)
    models = list(problem.listed_models or problem.models)

    def place(i: int) -> tuple[bool, int, tuple[tuple[int, int], ...]]:
        host = hosts[i]
        waited_for = any(problem.demands[demand].goal_coupled for demand, _ in host.robots)
        return bool(problem.far_s) and not waited_for, models.index(host.config.model), host.robots

    sharing = names_on(problem, hosts, gpus)
    for i in sorted(range(len(hosts)), key=place):
        names[i] = sharing[i] if gpus[i] else free[hosts[i].config.gpu_type].pop(0)
    return names


def names_on(problem: PlanningProblem, hosts: Sequence[HostedServer], gpus: Sequence[str]) -> list[str]:
    """Return the names of servers that share these GPUs."""
    names: list[str] = []
    for host, gpu in zip(hosts, gpus, strict=True):
        name = f"{gpu}_{problem.demands[host.robots[0][0]].component if host.robots else 'idle'}"
        alike = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{alike + 1}" if alike else name)
    return names


def _server(
    problem: PlanningProblem, responses: Responses, operation: Operation, host: HostedServer, settled: Equilibrium
) -> ServerSolution:
    rates, caps = settled.rates, operation.caps
    latency, curve, each = responses.of(host), responses.by_curve(host), responses.of_each(host)
    streams = [
        Stream(
            task=problem.classes[demand.task].name,
            component=demand.component,
            rows=demand.rows,
            part=demand.task,
            num_robots=count,
            rate_hz=demand.rate_hz(rates[demand.task]),
            cap_hz=demand.fixed_hz or (demand.calls * caps[demand.task] if caps else math.inf),
            slo=demand.slo,
            latency_s=own.at(demand.slo.percentile),
            curve_s=curve.response_s(demand.slo),
            judged_s=responses.judged_s(own, host, demand.slo),
            network_s=own.travel_s(demand.slo),
            server_slo_s=responses.share_s(host, demand),
        )
        for (demand, count), own in zip(((problem.demands[d], count) for d, count in host.robots), each, strict=True)
    ]
    return ServerSolution(
        server="",
        gpu_type=host.config.gpu_type,
        model=host.config.model,
        batching=host.config.batching,
        batch_size=host.config.batch_size,
        streams=tuple(streams),
        rate_hz=responses.load_hz(host),
        mean_s=latency.mean_s,
        p99_s=latency.at(99.0),
        beyond_profile=host in settled.saturated,
    )
