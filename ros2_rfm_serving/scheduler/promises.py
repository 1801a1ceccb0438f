"""Check of a schedule by present knowledge: every SLO at the expected load, every floor, and the capacity of links.

Where the curves understate a server's capacity, or a floor is near, the queue of its robots is evaluated, as it was for the plan.
The result is remembered as long as the same robots are there, or fewer: a queue is simulated from random starts, and another draw
must not break a promise that no change affects.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates, declared_type
from ros2_rfm_serving.scheduler.prediction.plan_messages import SURE
from ros2_rfm_serving.scheduler.prediction.predict import DOUBTFUL
from ros2_rfm_serving.scheduler.problem import LEAST_HZ, TaskClass
from ros2_rfm_serving.scheduler.queues import Crowd, Queues
from ros2_rfm_serving.scheduler.server_load import Seat, ServerLoad

ROUNDING = 1e-3


def broken(fleet: ActiveFleet, looks: float = math.inf) -> tuple[str, ...]:
    """Return texts on promises that no longer hold. looks: highest number of queue evaluations, of servers that differ; further
    servers are not judged yet (see `is_judged`)."""
    doubts = dict(_doubts(fleet))
    return (*(doubts[server] for server in _missed(fleet, doubts, looks)), *_floors(fleet), *_links(fleet))


def is_judged(fleet: ActiveFleet) -> bool:
    """Return whether `broken` has no more queues to evaluate."""
    return not _in_doubt(fleet, fleet.seated(dict(_doubts(fleet))))


def seats(fleet: ActiveFleet) -> dict[str, Counter[Seat]]:
    """Return server -> its robots, with their highest rates."""
    return fleet.seated(fleet.hosts)


def _doubts(fleet: ActiveFleet) -> Iterator[tuple[str, str]]:
    """Yield servers beyond their curves or near a floor, with the text that applies if their queue breaks the promise too."""
    queues, near = fleet.queues(), _near_floors(fleet)
    for name, host in fleet.hosts.items():
        most_hz = host.capacity_hz(list(host.slos), fleet.curves)
        if host.sessions and host.load_hz > most_hz * (1 + ROUNDING):
            text = f"{name}: {host.load_hz:.1f} requests/s are planned, by what was measured {most_hz:.1f} keep every SLO"
            yield name, text
        elif near and (tasks := _tasks(fleet, host) & near.keys()) and queues.judges(name):
            floors = " or ".join(f"the floor of {near[task]:.2f} actions/s of {task!r}" for task in sorted(tasks))
            yield name, f"{name}: by their own queue its robots miss an SLO or {floors}"


def _near_floors(fleet: ActiveFleet) -> dict[str, float]:
    """Return task -> floor, for tasks whose floor is so near the curves that the queue of their robots decides."""
    if all(task.floor_hz <= LEAST_HZ for task in fleet.problem.classes):
        return {}
    return {
        task.name: task.floor_hz for task, most_hz, loop_hz in _paces_hz(fleet) if task.floor_hz > DOUBTFUL * min(most_hz, loop_hz)
    }


def _tasks(fleet: ActiveFleet, host: ServerLoad) -> set[str]:
    """Return the tasks with robots on a server."""
    demands = fleet.problem.demands
    return {fleet.problem.classes[demands[index].task].name for index in host.demands}


def _missed(fleet: ActiveFleet, servers: Collection[str], looks: float) -> list[str]:
    """Return the servers that miss an SLO or a floor by the queue model of the planner. For the others it is recorded that they
    keep it with these robots or a part of them, because fewer robots only wait less."""
    sitting, queues = fleet.seated(servers) if servers else {}, fleet.queues()
    if asked := _first(queues.crowds(_in_doubt(fleet, sitting)), looks):
        keeping = queues.kept(asked)
        fleet.held.update((server, sitting[server]) for server in asked if server in keeping)
        fleet.missing.update(server for server in asked if server not in keeping)
    return [server for server in servers if server in fleet.missing]


def _first(crowds: Mapping[str, Crowd], looks: float) -> list[str]:
    """Return the servers that share the first `looks` different queues."""
    order = {crowd: i for i, crowd in enumerate(dict.fromkeys(crowds.values()))}
    return [server for server, crowd in crowds.items() if order[crowd] < looks]


def still_held(fleet: ActiveFleet, before: ActiveFleet) -> dict[str, Counter[Seat]]:
    """Return queue results that changed figures do not affect: of servers at the same pace, with robots of the same needs."""
    now, then = fleet.problem.seen, before.problem.seen
    owed_hz = {task.name: task.floor_hz for task in before.problem.classes}
    asking = [task for task in fleet.problem.classes if task.floor_hz <= owed_hz.get(task.name, 0.0)]
    if now.paces != then.paces or now.models != then.models:  # the answers that they wait for elsewhere are unknown now
        asking = [task for task in asking if task.overlapped or len(task.coupled) == 1]
    alike = {task.name for task in asking if _needs(now, task.name) == _needs(then, task.name)}
    return {
        server: seats
        for server, seats in before.held.items()
        if (host := fleet.hosts.get(server))
        and (was := before.hosts.get(server))
        and host.config == was.config
        and _pace(now, host) == _pace(then, host)
        and {task for task, *_ in seats} <= alike
    }


def _needs(seen: FactoryEstimates, task: str) -> tuple[object, ...]:
    return seen.travels.get(task), seen.cycles_s.get(task), seen.calls.get(task)


def _pace(seen: FactoryEstimates, host: ServerLoad) -> float:
    """Return the observed pace of its model there."""
    return seen.models.get((host.placement.model, declared_type(host.placement.gpu_type)), 1.0)


def _in_doubt(fleet: ActiveFleet, sitting: Mapping[str, Counter[Seat]]) -> list[str]:
    """Return the servers whose queue was not evaluated with these robots."""
    those = [server for server in sitting if server not in fleet.missing]
    return [server for server in those if not sitting[server] <= fleet.held.get(server, Counter())]


def _links(fleet: ActiveFleet) -> Iterator[str]:
    if pledge := fleet.pledge:
        load = pledge.loads(pledge.asked)[0]
        yield from (pledge.links.words(way, load[way]) for way in pledge.links.over(load))


def _floors(fleet: ActiveFleet) -> Iterator[str]:
    """Yield texts on broken floors: by the rates that robots may send, and by the curves of robots that no queue judges."""
    queues = fleet.queues()
    for task, most_hz, loop_hz in _paces_hz(fleet):
        rate_hz = min(most_hz, loop_hz)
        if rate_hz < SURE * task.floor_hz and (most_hz < SURE * task.floor_hz or not _are_judged(fleet, task, queues)):
            yield f"{task.name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {task.floor_hz:.2f} are promised"


def _are_judged(fleet: ActiveFleet, task: TaskClass, queues: Queues) -> bool:
    """Return whether queues judge the robots of a task wherever they request actions."""
    asked = {demand.index for demand in task.coupled if demand.for_actions}
    return all(queues.judges(name) for name, host in fleet.hosts.items() if asked & host.demands.keys())


def _paces_hz(fleet: ActiveFleet) -> Iterator[tuple[TaskClass, float, float]]:
    """Yield each task with the action rate that a robot may send and its closed-loop rate on the slowest servers."""
    calls = {(task.name, d.component): d.calls for task in fleet.problem.classes for d in task.coupled}
    slowest_s: dict[int, float] = {}
    for host in fleet.hosts.values():
        mean_s = host.mean_s(0.0, fleet.curves)
        for index in host.demands:
            slowest_s[index] = max(slowest_s.get(index, 0.0), mean_s)
    most_hz: dict[str, float] = {}
    for route in fleet.schedule.routes:
        name = fleet.tasks[route.robot]
        if (name, route.component) in calls:
            most_hz[name] = min(most_hz.get(name, math.inf), route.max_rate_hz / calls[name, route.component])
    for task in fleet.problem.classes:
        if task.name in most_hz:
            loop_hz = task.closed_loop_hz({d.index: slowest_s.get(d.index, 0.0) for d in task.coupled})
            yield task, most_hz[task.name], loop_hz
