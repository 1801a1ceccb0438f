"""Canonical order of classes and servers, equal for all descriptors that declare the same factory.

Solvers break ties by order, and queues draw the order of requests by it. The value of a plan must depend neither on the order of a
descriptor's groups and tasks nor on their names, so classes and servers are sorted by their content before anything is solved.
Results have names and are shown in the order of the descriptor (`shown`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem, TaskClass
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution
from ros2_rfm_serving.types import SYSTEM1

Kind = tuple[str, float, str]
"""GPU type as solvers have it, round trip to its host in s, and a description of that host."""


def ordered(problem: PlanningProblem, factory: Factory) -> PlanningProblem:
    """Return the same problem with its classes and servers in canonical order; `listed` keeps the order of the descriptor."""
    asked = [(task, demand) for task in problem.classes for demand in task.demands]
    kinds = kinds_of(factory, problem.servers)
    return replace(
        problem,
        classes=ordered_classes(problem.classes),
        servers={server: problem.servers[server] for server in sorted(problem.servers, key=lambda server: kinds[server])},
        listed=tuple((task.name, demand.component) for task, demand in asked),
        listed_models=tuple(dict.fromkeys(demand.model for _, demand in asked)),
    )


def ordered_classes(classes: Iterable[TaskClass]) -> tuple[TaskClass, ...]:
    """Sort classes, and the demands of each, by everything declared of them but their names; indices are those of the result."""
    found: list[TaskClass] = []
    index = 0
    for task in sorted((replace(task, demands=_ordered_demands(task)) for task in classes), key=_content):
        demands = tuple(replace(d, index=index + i, task=len(found)) for i, d in enumerate(task.demands))
        found.append(replace(task, demands=demands))
        index += len(demands)
    return tuple(found)


def _ordered_demands(task: TaskClass) -> tuple[Demand, ...]:
    return tuple(sorted(task.demands, key=lambda demand: (demand.component != SYSTEM1, _content_of(demand))))


def _content(task: TaskClass) -> tuple[float, str]:
    """Return a sort key: highest possible worth of actions per second first, then everything but names and positions."""
    content = repr(replace(task, name="", demands=())) + "".join(_content_of(demand) for demand in task.demands)
    return -task.value * task.max_rate_hz, content


def _content_of(demand: Demand) -> str:
    return repr(replace(demand, component="", index=0, task=0))


def ordered_servers(factory: Factory, seen: FactoryEstimates) -> dict[str, str]:
    """Return server -> GPU type as solvers have it, of living servers: equal ones are adjacent, in the order of the descriptor."""
    types = seen.types(factory.gpu_types)
    kinds = kinds_of(factory, types)
    return {server: types[server] for server in sorted(types, key=lambda server: kinds[server])}


def kinds_of(factory: Factory, types: Mapping[str, str]) -> dict[str, Kind]:
    """Return the kind of each server; servers of one kind are equal."""
    trips_s, hosts = factory.round_trips_s, factory.hosts_of_servers
    on_host = {host: sorted(types[s] for s, other in hosts.items() if other == host and s in types) for host in set(hosts.values())}
    declared = {host: repr((factory.hosts[host].bandwidth_mbit_s, beside)) for host, beside in on_host.items()}
    return {server: (gpu, trips_s.get(server, 0.0), declared.get(hosts.get(server, ""), "")) for server, gpu in types.items()}


def shown(problem: PlanningProblem, solution: Solution) -> Solution:
    """Return the solution with tasks, servers and streams in the order of the descriptor."""
    place = {asked: i for i, asked in enumerate(problem.listed)}
    tasks = dict.fromkeys(name for name, _ in problem.listed if name in solution.tasks)
    order = {server: i for i, server in enumerate(problem.declared)}

    def with_streams(server: ServerSolution) -> ServerSolution:
        return replace(server, streams=tuple(sorted(server.streams, key=lambda s: (place[s.task, s.component], s.part))))

    servers = sorted(map(with_streams, solution.servers), key=lambda s: (s.standby, order[s.gpu or s.server]))
    return replace(solution, tasks={name: solution.tasks[name] for name in tasks}, servers=tuple(servers))
