"""Schedules that `best` chooses from: a placement with its rates, its operation, and the comparison for similarity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.prediction.convoys import self_paced
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import Operation
from ros2_rfm_serving.scheduler.prediction.rates import TOLERANCE, HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem

DIGITS = 6
"""Digits to which objectives count as equal."""


@dataclass(frozen=True)
class BestSchedule:
    problem: PlanningProblem
    """Problem of the factory, or a finer one whose classes are parts (see `parts`)."""
    hosts: tuple[HostedServer, ...]
    rates: Rates
    gpus: tuple[str, ...] = ()
    """Name of the GPU under each host, where several share one; empty: each has its own."""
    capped: bool = True
    """False: robots send as soon as they can, and the rates are those at which they settle."""
    complete: bool = True
    """False: the budget is used up, and there may be a better schedule."""
    tuned: Operation | None = None
    """Operation by the robots' own queues (see `closed_loop`); None: by the curves."""
    lost_hz: float = 0.0
    """Weighted actions/s that the change to it costs, until the next expected one (see `placement_matching`)."""
    equal: bool = False
    """True when it is worth as much as another one by the curves, and may be worth more by its robots' queues."""
    names: tuple[str, ...] = ()
    """Names of the hosts, where all robots stay in place; empty: any will do."""

    @property
    def objective(self) -> float:
        return self.problem.objective(self.rates)

    @property
    def worth(self) -> float:
        return self.objective - self.lost_hz

    @property
    def unrest(self) -> tuple[float, bool]:
        """Return a sort key: of two schedules the one with less unrest moves fewer robots."""
        return self.lost_hz, not self.in_place

    @property
    def in_place(self) -> bool:
        return bool(self.names)


def serves(schedule: BestSchedule) -> bool:
    """Return whether its rates reach every floor; one that was found with lower floors may not."""
    return all(hz >= task.floor_hz * (1 - TOLERANCE) for hz, task in zip(schedule.rates, schedule.problem.classes, strict=True))


def worthiest(schedules: Iterable[BestSchedule | None]) -> BestSchedule | None:
    """Return the schedule of the highest worth; the first of equal ones."""
    return max((one for one in schedules if one), key=lambda one: one.worth, default=None)


def operated(found: BestSchedule, planned: Curves, curves: Curves) -> Operation:
    """Return the operation, with caps as high as every SLO permits; a class that needs no cap has none."""
    if found.tuned:
        return replace(found.tuned, complete=found.complete)
    operation = Operation(hosts=found.hosts, caps=None, gpus=found.gpus, names=found.names, complete=found.complete)
    if not found.capped:
        return operation
    search = RateSearch(found.problem, planned, found.hosts)
    paces = self_paced(found.problem, curves, found.hosts, found.rates, search.closed_loops_hz(found.rates))
    kept = search.caps(found.rates)
    caps = tuple(cap if pace is None else t.max_rate_hz for cap, pace, t in zip(kept, paces, found.problem.classes, strict=True))
    if not search.carries(caps):
        return replace(operation, caps=kept, rates=found.rates)
    return replace(operation, caps=caps, rates=found.rates, paces=paces)


def distinct(options: Iterable[BestSchedule]) -> Iterator[BestSchedule]:
    """Yield the first capped schedule of each set of servers, whose rates are found again; without caps, of those that settle
    alike."""
    seen: set[Hashable] = set()
    for option in options:
        if (key := kind(option)) not in seen:
            seen.add(key)
            yield option


def kind(option: BestSchedule) -> Hashable:
    servers = Counter((host.config, sum(count for _, count in host.robots)) for host in option.hosts)
    return (
        option.capped,
        frozenset(servers.items()),
        0.0 if option.capped else round(option.objective, DIGITS),
        option.in_place,
        option.equal,
    )


def lowered(problem: PlanningProblem, share: float) -> PlanningProblem:
    """Return the problem with this share of every floor."""
    return replace(problem, classes=tuple(replace(task, floor_hz=share * task.floor_hz) for task in problem.classes))


def under(problem: PlanningProblem, schedule: BestSchedule) -> BestSchedule:
    """Return the schedule with the SLOs and floors of this problem."""
    slos = {(problem.classes[d.task].name, d.component): d.slo for d in problem.demands}
    floors = {task.name: task.floor_hz for task in problem.classes}
    classes = tuple(
        replace(
            task,
            floor_hz=floors[task.name],
            demands=tuple(replace(d, slo=slos[task.name, d.component]) for d in task.demands),
        )
        for task in schedule.problem.classes
    )
    return replace(schedule, problem=replace(schedule.problem, classes=classes))
