"""Variants of operating the servers of a placement that `best` compares: with caps, in parts of classes, and without caps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.in_place import InPlace
from ros2_rfm_serving.scheduler.policies.mixes import FEW_SERVERS
from ros2_rfm_serving.scheduler.policies.options import BestSchedule
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import equilibrium
from ros2_rfm_serving.scheduler.prediction.parts import parted
from ros2_rfm_serving.scheduler.prediction.placement_matching import PlacementMatching
from ros2_rfm_serving.scheduler.prediction.predict import names_on
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem


class Variants:
    """Variants of the placements of one factory."""

    def __init__(self, problem: PlanningProblem, curves: Curves, budget: Budget, moves: PlacementMatching) -> None:
        self._problem, self._curves, self._budget, self._moves = problem, curves, budget, moves
        self.uncapped: list[BestSchedule] = []
        """Schedules without caps, whose robots settle freely: it is not known yet whether SLOs are kept."""

    def staying(self, there: InPlace, *, large: bool) -> Iterator[BestSchedule]:
        """Yield the active placement with caps, and note it without caps."""
        for parts in there.parts_of(large):
            schedule = BestSchedule(parts.problem, parts.hosts, (), names=there.names)
            self.uncapped += self._free(schedule) if self._budget.work else ()
            search = RateSearch(schedule.problem, self._curves, schedule.hosts)
            rates = search.best()
            self._budget.spend(search.work)
            if rates is not None:
                yield replace(schedule, rates=rates)

    def as_it_is(
        self, hosts: tuple[HostedServer, ...], gpus: tuple[str, ...] = (), caps: Rates | None = None
    ) -> Iterator[BestSchedule]:
        """Yield another policy's schedule with our caps, with its own and without, so that the way to its rates gives it no
        advantage."""
        named = names_on(self._problem, hosts, gpus) if gpus else []
        lost_hz = self._moves.lost_hz(self._problem, hosts, named)
        schedule = BestSchedule(self._problem, hosts, (), gpus, lost_hz=lost_hz)
        self.note_without_caps(schedule)
        search = RateSearch(self._problem, self._curves, hosts)
        rates = search.best()
        self._budget.spend(search.work + self._moves.spent())
        if rates is not None:
            capped = replace(schedule, rates=rates)
            for one in (capped, *(self._settled(capped, caps) if caps else ())):
                yield from (one, self.parted(one))

    def note_without_caps(self, schedule: BestSchedule) -> None:
        self.uncapped += self._without_caps(schedule)

    def settled(self, schedule: BestSchedule) -> Iterator[BestSchedule]:
        """Yield the schedule without caps, where its robots settle above their floors and its links carry them."""
        return self._free(schedule)

    def _without_caps(self, schedule: BestSchedule) -> Iterator[BestSchedule]:
        """Yield the schedule without caps, with the classes unchanged, as in another policy, and with each robot at its own pace.
        Without a budget any schedule suffices, and none is yielded."""
        if not self._budget.work:
            return
        yield from self._free(schedule)
        if len(schedule.hosts) <= FEW_SERVERS:
            parts = parted(schedule.problem, schedule.hosts)
            if len(parts.problem.classes) > len(schedule.problem.classes):
                yield from self._free(replace(schedule, problem=parts.problem, hosts=parts.hosts))

    def _free(self, schedule: BestSchedule) -> Iterator[BestSchedule]:
        problem = schedule.problem
        if not RateSearch(problem, self._curves, schedule.hosts).carries([task.max_rate_hz for task in problem.classes]):
            return  # only caps would keep the robots within the links
        rates = equilibrium(problem, self._curves, schedule.hosts, None).rates
        if all(rate >= task.floor_hz for rate, task in zip(rates, problem.classes, strict=True)):
            yield replace(schedule, rates=rates, capped=False)

    def _settled(self, schedule: BestSchedule, caps: Rates) -> Iterator[BestSchedule]:
        """Yield the schedule with the rates at which robots settle under these caps, if every SLO and floor is kept."""
        problem = schedule.problem
        rates = equilibrium(problem, self._curves, schedule.hosts, caps).rates
        floors = all(rate >= task.floor_hz for rate, task in zip(rates, problem.classes, strict=True))
        if floors and RateSearch(problem, self._curves, schedule.hosts).feasible(rates):
            yield replace(schedule, rates=rates)

    def parted(self, schedule: BestSchedule) -> BestSchedule:
        """Return the schedule with improved rates, one for every part of a class."""
        parts = parted(schedule.problem, schedule.hosts)
        search = RateSearch(parts.problem, self._curves, parts.hosts)
        rates = search.improved(parts.rates(schedule.rates))
        self._budget.spend(search.work)
        return replace(schedule, problem=parts.problem, hosts=parts.hosts, rates=rates)
