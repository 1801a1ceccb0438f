"""Placements whose models share GPUs in time slices, for factories with fewer GPUs than models.

All models of a robot are on one GPU, or all robots of a model are. Neither is the best way to share; they are predicted like any
schedule.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise

from ros2_rfm_serving.scheduler.estimates import declared_type
from ros2_rfm_serving.scheduler.policies.baselines import StaticPlacement, TooFewServersError, is_there, smallest
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import PlanningProblem

MOST = 24
"""Most ways to divide the models that are tried."""
Robots = Mapping[int, int]
"""Demand -> robots."""


def sliced(problem: PlanningProblem, curves: Curves) -> Iterator[StaticPlacement]:
    """Yield placements that serve every robot; none where each model can have a GPU."""
    num_gpus = len(problem.servers)
    if num_gpus >= len(problem.models):
        return
    ways = [*_robots_together(problem), *(_models_together(problem, of) for of in islice(_divided(problem.models, num_gpus), MOST))]
    seen = set()
    for way in ways:
        for roomy in (False, True):
            placement = _placed(problem, curves, way, roomy=roomy)
            if placement and placement.hosts not in seen and _fits(problem, placement) and is_there(problem, placement):
                seen.add(placement.hosts)
                yield placement


def _fits(problem: PlanningProblem, placement: StaticPlacement) -> bool:
    """Return whether models that share a GPU fit into its memory together, as far as is known."""
    taken_gb: dict[str, float] = defaultdict(float)
    for host, gpu in zip(placement.hosts, placement.gpus, strict=True):
        taken_gb[gpu] += problem.memory_gb[host.config.model, host.config.gpu_type]
    types = {gpu: declared_type(problem.servers[gpu]) for gpu in taken_gb}
    return all(gb <= problem.gpu_memory_gb.get(types[gpu], gb) for gpu, gb in taken_gb.items())


def _robots_together(problem: PlanningProblem) -> Iterator[list[Robots]]:
    """Yield robots of a class on as few GPUs as possible, and every class on all of them."""
    num_gpus = len(problem.servers)
    classes = [c for c, task in enumerate(problem.classes) for _ in range(task.num_robots)]
    ends = [len(classes) * i // num_gpus for i in range(num_gpus + 1)]
    for ways in ([classes[a:b] for a, b in pairwise(ends)], [classes[i::num_gpus] for i in range(num_gpus)]):
        yield [{d.index: count for c, count in Counter(robots).items() for d in problem.classes[c].demands} for robots in ways]


def _models_together(problem: PlanningProblem, groups: Sequence[Sequence[str]]) -> list[Robots]:
    return [{d.index: problem.robots_of(d) for d in problem.demands if d.model in models} for models in groups]


def _divided(models: Sequence[str], parts: int) -> Iterator[list[list[str]]]:
    """Yield the divisions into this number of parts, none of them empty."""
    if not parts or len(models) < parts:
        if not parts and not models:
            yield []
        return
    *others, last = models
    yield from ([*groups, [last]] for groups in _divided(others, parts - 1))
    for groups in _divided(others, parts):
        yield from ([*groups[:i], [*group, last], *groups[i + 1 :]] for i, group in enumerate(groups))


def _placed(problem: PlanningProblem, curves: Curves, way: Sequence[Robots], *, roomy: bool) -> StaticPlacement | None:
    """Return the placement of one way; None: a model does not run there. roomy: with the batches of the highest load within
    SLOs."""
    hosts: list[HostedServer] = []
    gpus: list[str] = []
    for (gpu, gpu_type), robots in zip(problem.servers.items(), way, strict=True):
        of_model: dict[str, dict[int, int]] = defaultdict(dict)
        for demand, count in robots.items():
            of_model[problem.demands[demand].model][demand] = count
        for model, mine in of_model.items():
            try:
                small = replace(smallest(curves, model, gpu_type), slices=len(of_model))
            except TooFewServersError:
                return None
            hosts.append(HostedServer(_roomiest(problem, curves, small, mine) if roomy else small, tuple(sorted(mine.items()))))
            gpus.append(gpu)
    return StaticPlacement(tuple(hosts), tuple(task.num_robots for task in problem.classes), tuple(gpus))


def _roomiest(problem: PlanningProblem, curves: Curves, config: ServerConfiguration, robots: Robots) -> ServerConfiguration:
    slos = [problem.demands[demand].slo for demand in robots]
    others = [replace(c, slices=config.slices) for c in curves.configs[config.model, config.gpu_type]]
    return max(others, key=lambda other: min(curves.capacity_hz(other, slo) for slo in slos))
