"""Conversion of a factory, as declared and as observed, to the problem and the curves of the solvers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile, SteppedService
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates, declared_type
from ros2_rfm_serving.scheduler.link_load import links_of, off_host
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.predictable import why_unpredictable
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem, TaskClass, task_classes
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.scheduler.standby_assignment import usual
from ros2_rfm_serving.types import Schedule

DEFAULT_LOAD_S = 30.0
"""Load time of a model on a GPU type that the catalogue does not know."""
UNRANKED = "fifo"
"""Dispatch policy that plans assume in place of one that cannot be predicted."""
EASED = (2.5, 4.0, 8.0)
"""Multiples of the share of stragglers that may be late where less is impossible: requests behind them are late too."""


def problem_of(
    factory: Factory,
    counts: Mapping[str, int],
    profile: Profile,
    catalogue: Catalogue | None,
    seen: FactoryEstimates = AS_DECLARED,
    previous: Schedule | None = None,
    *,
    by_host: bool = True,
    reserved: Collection[str] | None = None,
) -> PlanningProblem:
    """Build the problem of a factory, its classes and servers in the order of the descriptor (`canonical.ordered` has another one).

    by_host: distinguish servers on hosts of different distance; otherwise all are as far as the farthest. reserved: servers out of
    the normal routes; None: those of `standby_assignment.usual`. Raises: `ScheduleError` when no task has robots, or no server
    lives.
    """
    if by_host:
        seen = replace(seen, away_s=factory.away_s)
    without_away, nearest = factory.without_away(), factory.at_nearest()
    reckoned = without_away if by_host else factory
    classes = task_classes(seen.factory(reckoned, without_away), counts, seen)
    if nearest.robot_fleet != reckoned.robot_fleet:
        quickest = task_classes(seen.factory(nearest, without_away), counts, seen)
        classes = tuple(replace(own, least_cycle_s=near.cycle_s) for own, near in zip(classes, quickest, strict=True))
    if not classes:
        raise ScheduleError("no task has any robot; nothing to serve")
    declared = factory.gpu_types
    types = seen.types(declared)
    if not types:
        raise ScheduleError("no server lives; nothing serves")
    reserved = usual(factory, types, previous) if reserved is None else reserved
    every = [*types.values(), *(seen.gpu_type(server, declared[server]) for server in seen.lost if server in declared)]
    memory, load = _needs(classes, [*declared.values(), *every], catalogue)
    problem = PlanningProblem(
        classes=classes,
        servers={server: gpu_type for server, gpu_type in types.items() if server not in reserved},
        memory_gb=memory,
        load_s=load,
        gpu_memory_gb={name: gpu.memory_gb for name, gpu in catalogue.gpu_types.items()} if catalogue else {},
        sizes_b=_sizes_b(dict.fromkeys(model for model, _ in load), catalogue),
        continuous=factory.continuous,
        waiting=factory.waiting,
        steps=_steps(load, declared, catalogue, seen),
        dispatch={gpu: UNRANKED if why_unpredictable(name) else name for gpu, name in factory.dispatch.items()},
        stragglers=seen.stragglers_of(declared, factory.planning.stragglers),
        seen=seen,
        declared=declared,
        previous=previous,
        hosts=factory.hosts_of_servers,
        far_s=factory.round_trips_s,
        same_host=factory.standby.same_host,
        links=links_of(factory),
        aim=factory.planning.objective,
    )
    return _eased(problem, profile) if seen.stragglers else problem


def _needs(
    classes: Sequence[TaskClass], gpu_types: Sequence[str], catalogue: Catalogue | None
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Return memory in GB and load time in s of each (model, GPU type) that fits; without a catalogue 1 GB and the default."""
    memory: dict[tuple[str, str], float] = {}
    load: dict[tuple[str, str], float] = {}
    for model in dict.fromkeys(d.model for task in classes for d in task.demands):
        for gpu_type in dict.fromkeys(gpu_types):
            need = catalogue.footprint(model, declared_type(gpu_type)) if catalogue else None
            if need and catalogue and not catalogue.fits(model, declared_type(gpu_type)):
                continue
            memory[model, gpu_type] = need.memory_gb if need else 1.0
            load[model, gpu_type] = need.load_s if need else DEFAULT_LOAD_S
    return memory, load


def _eased(problem: PlanningProblem, profile: Profile) -> PlanningProblem:
    """Return the problem with lower percentiles where measured stragglers keep most servers from an SLO at any load: each SLO gets
    the highest percentile that can be kept. A running factory is served as well as possible, whereas a declared one is refused."""
    curves = curves_of(problem, profile)

    def able(options: Iterable[ServerConfiguration], slo: Slo | None = None) -> int:
        """Return the number of servers that keep the SLO; None: that can host the model."""
        return sum(problem.gpus[t] for t in {c.gpu_type for c in options if slo is None or curves.sought_hz(c, slo) > 0.0})

    def eased(task: TaskClass, demand: Demand) -> Demand:
        options = curves.of(demand.model)
        late = [curves.stragglers[config.gpu_type].share for config in options if config.gpu_type in curves.stragglers]
        percentiles = [demand.slo.percentile, *(100.0 * (1.0 - times * min(late, default=0.0)) for times in EASED)]
        slos = [demand.slo._replace(percentile=p, far_s=task.network.at_s(p)) for p in percentiles if p <= demand.slo.percentile]
        slos = slos if math.isfinite(demand.slo.promised_s) and late else []
        kept = (slo for slo in slos if 2 * able(options, slo) >= able(options))
        return replace(demand, slo=next(kept, demand.slo))

    classes = [replace(task, demands=tuple(eased(task, demand) for demand in task.demands)) for task in problem.classes]
    return replace(problem, classes=tuple(classes))


def _sizes_b(models: Iterable[str], catalogue: Catalogue | None) -> dict[str, float]:
    entries = catalogue.models if catalogue else {}
    return {model: size for model in models if model in entries and (size := entries[model].size_b)}


def _steps(
    pairs: Iterable[tuple[str, str]],
    declared: Mapping[str, str],
    catalogue: Catalogue | None,
    seen: FactoryEstimates,
) -> dict[tuple[str, str], SteppedService]:
    """Return (model, GPU type) -> step law of the catalogue at the observed pace. pairs: (model, GPU type)."""
    paces = {seen.gpu_type(server, gpu): seen.paces[server] for server, gpu in declared.items() if server in seen.paces}
    found = {}
    for model, gpu_type in pairs if catalogue else ():
        assert catalogue
        service = need.service if (need := catalogue.footprint(model, declared_type(gpu_type))) else None
        if service and (law := service.stepped_law()):
            pace = seen.models.get((model, declared_type(gpu_type)), 1.0)
            if gpu_type != declared_type(gpu_type):
                pace *= paces.get(gpu_type, 1.0)
            found[model, gpu_type] = law.slower(pace) if pace != 1.0 else law
    return found


def curves_of(problem: PlanningProblem, profile: Profile, gpu_types: Iterable[str] = ()) -> Curves:
    """Return the curves of a problem. gpu_types: types beside those of the normal servers."""
    seen, steps = problem.seen.profile(profile.batched(problem.continuous), problem.declared), problem.steps
    away_s = problem.seen.away_of(problem.declared)
    if problem.links and problem.links.tight:
        of_hosts = {gpu_type: off_host(gpu_type) for gpu_type in problem.gpus if off_host(gpu_type) != gpu_type}
        seen = seen.paced({(anywhere, gpu_type): 1.0 for gpu_type, anywhere in of_hosts.items()})
        there = {(model, gpu_type): law for gpu_type, own in of_hosts.items() for (model, its), law in steps.items() if its == own}
        steps = {**steps, **there}
        away_s |= {gpu_type: away_s[anywhere] for gpu_type, anywhere in of_hosts.items() if anywhere in away_s}
    every = dict.fromkeys([*problem.gpus, *gpu_types])
    continuous = [gpu_type for gpu_type in every if declared_type(gpu_type) in problem.continuous]
    straggling = {gpu_type: some for gpu_type in every if (some := problem.stragglers.get(off_host(gpu_type)))}
    straggling = {**problem.stragglers, **straggling}
    return Curves(seen, problem.models, every, problem.memory_gb, steps, away_s, continuous, straggling)
