"""Hours of a factory in which robots come and go, in virtual time: what its scheduler does, and what that costs.

The scheduler alone is simulated: between two events nothing changes, so that a day takes seconds. What robots and servers do with
one schedule is `simulate`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import Fleet, Order
from ros2_rfm_serving.scheduler.planning import DEFAULT_LOAD_S
from ros2_rfm_serving.simulation.events import Events, source
from ros2_rfm_serving.simulation.scheduler import NoBook, SimulatedScheduler
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

DAY_WORK = 0.0
"""Of one plan, where none is given: a day has hundreds of them, and the first placement that is found will do."""


@dataclass(frozen=True, kw_only=True)
class Turnover:
    """Guests beside the declared robots: they come as a Poisson process, for the tasks in the proportion of the fleet."""

    arrivals_hz: float
    stay_s: float
    """Mean, exponentially distributed."""
    crashed: float = 0.0
    """Share of them that fall silent in the end: their lease does the rest."""

    def __post_init__(self) -> None:
        for key, value in (("arrivals_hz", self.arrivals_hz), ("stay_s", self.stay_s)):
            if not 0 < value < math.inf:
                raise ConfigurationError(f"is {value:g}", key=f"turnover.{key}", fix="give a positive number")
        if not 0 <= self.crashed <= 1:
            raise ConfigurationError(f"is {self.crashed:g}", key="turnover.crashed", fix="give a share, 0 to 1")


@dataclass(kw_only=True)
class DayReport:
    hours: float
    at_once: int = 0
    """Guests that were admitted so; for some of them others' rates or batch sizes changed (`adjusted`)."""
    adjusted: int = 0
    planned_anew: int = 0
    """Guests that were admitted with a plan of the whole factory."""
    refused: Counter[str] = field(default_factory=Counter)
    """Task -> guests."""
    left: int = 0
    silent: int = 0
    """Guests that were heard no more; their leases ended."""
    longest_wait_s: float = 0.0
    """For an answer."""
    schedules: int = 0
    migrations: int = 0
    """Schedules by which a server loads another model."""
    most_robots: int = 0
    actions: float = 0.0
    """Weighted, as the schedules expect them."""
    lost_actions: float = 0.0
    """Of those, while models load."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def live_through(
    factory: Factory,
    profile: Profile,
    catalogue: Catalogue | None,
    turnover: Turnover,
    *,
    hours: float,
    seed: int,
    policy: str = "best",
    work: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> DayReport:
    """The same seed gives the same report. progress: is told the virtual time. Raises: `RfmError` when nothing can be served."""
    day = _Day(factory, profile, catalogue, turnover, hours, seed, policy, DAY_WORK if work is None else work)
    day.events.run(3600.0 * hours, progress, every_s=600.0)
    return day.end()


class _Day(NoBook):
    """What happens of itself, and the scheduler's book."""

    def __init__(
        self,
        factory: Factory,
        profile: Profile,
        catalogue: Catalogue | None,
        turnover: Turnover,
        hours: float,
        seed: int,
        policy: str,
        work: float,
    ) -> None:
        self.events, self.report = Events(), DayReport(hours=hours)
        self._catalogue, self._turnover = catalogue, turnover
        self._coming, self._staying = source(seed, "guests"), source(seed, "stays")
        self._tasks = [robot.task for robot in factory.robots]
        self._values = {name: task.value for name, task in factory.tasks.items()}
        self._scheduler = SimulatedScheduler(factory, profile, catalogue, self.events, policy=policy, work=work, book=self)
        self._scheduler.published.append(self._hears)
        self._in_force, self._since_s, self._num_guests = self._scheduler.schedules[0], 0.0, 0
        self.events.at(self._coming.expovariate(turnover.arrivals_hz), self._comes)

    def end(self) -> DayReport:
        self._count(self.events.now_s)
        self.report.schedules = len(self._scheduler.schedules)
        return self.report

    # --- guests ---

    def _comes(self) -> None:
        now_s = self.events.now_s
        self.events.at(now_s + self._coming.expovariate(self._turnover.arrivals_hz), self._comes)
        self._num_guests += 1
        name, task = f"guest_{self._num_guests}", self._coming.choice(self._tasks)
        order = self._scheduler.admit(name, task)
        if order.answer is None:
            order.watchers.append(lambda: self._answered(order, name, task, now_s))
        else:
            self._answered(order, name, task, now_s)

    def _answered(self, order: Order, name: str, task: str, asked_s: float) -> None:
        now_s = self.events.now_s
        self.report.longest_wait_s = max(self.report.longest_wait_s, now_s - asked_s)
        if not isinstance(order.answer, int):
            self.report.refused[task] += 1
            return
        if order.why:
            self.report.planned_anew += 1
        else:
            self.report.at_once += 1
        self.events.at(now_s + self._staying.expovariate(1.0 / self._turnover.stay_s), self._goes, name)

    def _goes(self, name: str) -> None:
        if self._staying.random() < self._turnover.crashed:
            self.report.silent += 1
            self._scheduler.crash(name)
        else:
            self.report.left += 1
            self._scheduler.release(name)

    # --- schedules ---

    def changed(self, before: Fleet, after: Fleet, reason: str) -> None:
        """Before it is published: whether more than the routes of those who came and went is another one."""
        names = {robot.name for robot in before.robots} & {robot.name for robot in after.robots}
        if len(after.robots) > len(before.robots) and _of(before.schedule, names) != _of(after.schedule, names):
            self.report.adjusted += 1

    def _hears(self, schedule: Schedule, now_s: float) -> None:
        self._count(now_s)
        before = {p.server: p.model for p in self._in_force.placements}
        moved = {p.server: self._load_s(p) for p in schedule.placements if before.get(p.server) != p.model}
        waits_s: dict[str, float] = {}
        for route in schedule.routes:
            waits_s[route.robot] = max(waits_s.get(route.robot, 0.0), moved.get(route.server, 0.0))
        self.report.lost_actions += sum(waits_s[r.robot] * self._worth_hz(r) for r in schedule.routes)
        self.report.migrations += bool(moved)
        self.report.most_robots = max(self.report.most_robots, len(waits_s))
        self._in_force = schedule

    def _count(self, now_s: float) -> None:
        self.report.actions += (now_s - self._since_s) * sum(self._worth_hz(route) for route in self._in_force.routes)
        self._since_s = now_s

    def _worth_hz(self, route: Route) -> float:
        """Weighted actions/s."""
        return self._values[route.task] * route.predicted_rate_hz if route.component == SYSTEM1 else 0.0

    def _load_s(self, placement: Placement) -> float:
        footprint = self._catalogue.footprint(placement.model, placement.gpu_type) if self._catalogue else None
        return footprint.load_s if footprint else DEFAULT_LOAD_S


def _of(schedule: Schedule, robots: set[str]) -> tuple[object, object]:
    """Routes of these, and how servers batch."""
    routes = {route for route in schedule.routes if route.robot in robots}
    return routes, {placement.server: placement.batch_size for placement in schedule.placements}
