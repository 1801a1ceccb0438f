"""Static schedules that ROSA is compared with (ROSA §4.1), whose placements follow from counting, not from profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.policies.groups import ServerGroup, hosts_of
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import PlanningProblem

POLICIES = {
    "baseline1": "one GPU per robot: all its models share that GPU in equal time slices",
    "baseline2": "one GPU per robot and model",
    "baseline3": "GPUs divided equally among the components, batch size 1",
    "baseline4": "GPUs divided among the components by model size, batch size 1",
}


@dataclass(frozen=True)
class StaticPlacement:
    hosts: tuple[HostedServer, ...]
    served: tuple[int, ...]
    """Robots of each class that get servers."""
    gpus: tuple[str, ...] = ()
    """Name of the GPU under each host, where several share one; empty: each has its own."""


class TooFewServersError(Exception):
    """The baseline has no schedule; the message gives the reason."""


def per_robot(problem: PlanningProblem, curves: Curves) -> StaticPlacement:
    """Return baseline 1: one GPU per robot, in equal time slices."""
    available = list(problem.servers)
    hosts: list[HostedServer] = []
    gpus: list[str] = []
    served = _share(len(available), problem)
    servers = iter(available)
    for task, count in zip(problem.classes, served, strict=True):
        for _ in range(count):
            gpu = next(servers)
            for demand in task.demands:
                config = replace(smallest(curves, demand.model, problem.servers[gpu]), slices=len(task.demands))
                hosts.append(HostedServer(config, ((demand.index, 1),)))
                gpus.append(gpu)
    return StaticPlacement(tuple(hosts), served, tuple(gpus))


def per_model(problem: PlanningProblem, curves: Curves) -> StaticPlacement:
    """Return baseline 2: one GPU per robot and model. Raises: `TooFewServersError` when no robot can be served."""
    free = sorted(problem.servers.values())
    served = [0] * len(problem.classes)
    hosts: list[HostedServer] = []
    progress = True
    while progress:
        progress = False
        for c, task in enumerate(problem.classes):
            if served[c] < task.num_robots and len(free) >= len(task.demands):
                mine = [free.pop(0) for _ in task.demands]
                hosts += [
                    HostedServer(smallest(curves, d.model, gpu), ((d.index, 1),)) for d, gpu in zip(task.demands, mine, strict=True)
                ]
                served[c] += 1
                progress = True
    if not hosts:
        needed = min(len(task.demands) for task in problem.classes)
        raise TooFewServersError(f"one GPU per robot and model needs at least {needed} servers, there are {len(free)}")
    return StaticPlacement(tuple(hosts), tuple(served))


def equal(problem: PlanningProblem, curves: Curves) -> StaticPlacement:
    """Return baseline 3: equal numbers of GPUs per component. A remainder stays unused.

    The paper's best shared baseline on P3 is 106.9 / 2.44 = 43.8 actions/s: two System 1 servers at batch size 1, of eight GPUs for
    three components.
    """
    components = _components(problem)
    each = len(problem.servers) // len(components)
    return _partitioned(problem, curves, [each] * len(components))


def weighted(problem: PlanningProblem, curves: Curves) -> StaticPlacement:
    """Return baseline 4. Sizes are the parameters in the models' names, or, where one is unknown, the memory of all.

    With 3, 7, 3 and 7 billion eight GPUs are 1:3:1:3 (Table 3).
    """
    sizes = [_size(problem, model) for _, model in _components(problem)]
    return _partitioned(problem, curves, _proportional(len(problem.servers), sizes))


def whole(problem: PlanningProblem, curves: Curves) -> Iterator[StaticPlacement]:
    """Yield the baselines' placements that serve every robot."""
    everybody = tuple(task.num_robots for task in problem.classes)
    for static in (equal, weighted, per_model, per_robot):
        try:
            placement = static(problem, curves)
        except TooFewServersError:
            continue
        if placement.served == everybody and is_there(problem, placement):
            yield placement


def is_there(problem: PlanningProblem, placement: StaticPlacement) -> bool:
    """Return whether the servers exist: models that share a GPU are servers of their own, not started in a running factory."""
    return problem.previous is None or set(placement.gpus) <= {there.gpu for there in problem.previous.placements}


def _size(problem: PlanningProblem, model: str) -> float:
    if all(name in problem.sizes_b for name in problem.models):
        return problem.sizes_b[model]
    return max(gb for (name, _), gb in problem.memory_gb.items() if name == model)


def _components(problem: PlanningProblem) -> dict[tuple[str, str], list[int]]:
    """Return (component, model) -> its demands. Raises: `TooFewServersError` when they cannot have a server each."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for demand in problem.demands:
        found[demand.component, demand.model].append(demand.index)
    if len(found) > len(problem.servers):
        raise TooFewServersError(f"{len(found)} components need a GPU each, there are {len(problem.servers)} servers")
    return dict(found)


def _partitioned(problem: PlanningProblem, curves: Curves, counts: list[int]) -> StaticPlacement:
    """Return a placement with this number of servers for each component."""
    components = _components(problem)
    free = dict(problem.gpus)
    hosts: list[HostedServer] = []
    for (key, demands), count in zip(components.items(), counts, strict=True):
        taken: dict[str, int] = defaultdict(int)
        for _ in range(count):
            gpu_type = next(g for g, n in free.items() if n)
            free[gpu_type] -= 1
            taken[gpu_type] += 1
        hosts += _even(problem, curves, key[1], demands, taken)
    return StaticPlacement(tuple(hosts), tuple(task.num_robots for task in problem.classes))


def _even(problem: PlanningProblem, curves: Curves, model: str, demands: list[int], taken: Mapping[str, int]) -> list[HostedServer]:
    hosts: list[HostedServer] = []
    left = {d: problem.robots_of(problem.demands[d]) for d in demands}
    servers = sum(taken.values())
    for gpu_type, count in taken.items():
        robots = {d: round(n * count / servers) for d, n in left.items()}
        left = {d: n - robots[d] for d, n in left.items()}
        servers -= count
        group = ServerGroup(smallest(curves, model, gpu_type), count, ()).with_robots(robots)
        hosts += [host for host in hosts_of([group], problem) if host.robots]
    return hosts


def _proportional(total: int, sizes: list[float]) -> list[int]:
    """Return integer shares, at least 1 each, by the largest remainder."""
    exact = [total * size / sum(sizes) for size in sizes]
    counts = [max(1, int(share)) for share in exact]
    while sum(counts) < total:
        counts[max(range(len(counts)), key=lambda i: exact[i] - counts[i])] += 1
    while sum(counts) > total:
        over = [i for i, n in enumerate(counts) if n > 1]
        counts[max(over, key=lambda i: counts[i] - exact[i])] -= 1
    return counts


def _share(servers: int, problem: PlanningProblem) -> tuple[int, ...]:
    """Return the robots of each class that get one of `servers`, in turn."""
    served = [0] * len(problem.classes)
    while sum(served) < servers and any(n < task.num_robots for n, task in zip(served, problem.classes, strict=True)):
        c = min((c for c, task in enumerate(problem.classes) if served[c] < task.num_robots), key=lambda c: served[c])
        served[c] += 1
    return tuple(served)


def smallest(curves: Curves, model: str, gpu_type: str) -> ServerConfiguration:
    """Return the smallest measured configuration: batch size 1, or continuous batching. Raises: `TooFewServersError` without
    one."""
    configs = curves.configs.get((model, gpu_type))
    if not configs:
        raise TooFewServersError(f"{model!r} does not fit or was never measured on {gpu_type!r}, which its share has")
    return configs[0]
