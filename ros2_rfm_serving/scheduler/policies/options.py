"""Schedules that `best` chooses from: a placement with its rates, how it is operated, and which of them are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.prediction.convoys import self_paced
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import Operation
from ros2_rfm_serving.scheduler.prediction.rates import TOLERANCE, Host, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import Problem

DIGITS = 6
"""Of objectives that count as equal."""


@dataclass(frozen=True)
class BestSchedule:
    problem: Problem
    """The factory's, or one of whose classes these are parts (see `parts`)."""
    hosts: tuple[Host, ...]
    rates: Rates
    gpus: tuple[str, ...] = ()
    """Name of the GPU under each host, where several share one; empty: one each."""
    capped: bool = True
    """False: robots send as soon as they can, and the rates are where they settle."""
    complete: bool = True
    """False: the work that was allowed is done, and there may be a better one."""
    tuned: Operation | None = None
    """By the robots' own queues (see `own_queues`); None: by the curves."""
    lost_hz: float = 0.0
    """Weighted actions/s that going over to it takes, until the next change is expected (see `stable`)."""
    equal: bool = False
    """By the curves it is worth what another one is, and more by its robots' queues, perhaps."""
    names: tuple[str, ...] = ()
    """Of the hosts, where everybody stays in place; empty: any will do."""

    @property
    def objective(self) -> float:
        return self.problem.objective(self.rates)

    @property
    def worth(self) -> float:
        return self.objective - self.lost_hz

    @property
    def unrest(self) -> tuple[float, bool]:
        """Of two schedules the one that has less of it moves fewer robots."""
        return self.lost_hz, not self.in_place

    @property
    def in_place(self) -> bool:
        return bool(self.names)


def serves(schedule: BestSchedule) -> bool:
    """Every floor by its rates; one that was found with lower floors may not."""
    return all(hz >= task.floor_hz * (1 - TOLERANCE) for hz, task in zip(schedule.rates, schedule.problem.classes, strict=True))


def worthiest(schedules: Iterable[BestSchedule | None]) -> BestSchedule | None:
    """Of equals the first."""
    return max((one for one in schedules if one), key=lambda one: one.worth, default=None)


def operated(found: BestSchedule, planned: Curves, curves: Curves) -> Operation:
    """Caps as high as every SLO allows; nobody who needs none has one."""
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
    """The first with caps of each set of servers: their rates are found anew; without caps, of those that settle alike."""
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


def lowered(problem: Problem, share: float) -> Problem:
    """With this share of every floor."""
    return replace(problem, classes=tuple(replace(task, floor_hz=share * task.floor_hz) for task in problem.classes))


def under(problem: Problem, schedule: BestSchedule) -> BestSchedule:
    """With the SLOs and floors of this problem."""
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
