"""Hours of a factory with joining and leaving robots, in virtual time: the decisions of its scheduler, and their cost.

Only the scheduler is simulated: between two events nothing changes, so that a day takes seconds. `simulate_watched` simulates
robots and servers, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import ActiveFleet
from ros2_rfm_serving.scheduler.build_problem import DEFAULT_LOAD_S
from ros2_rfm_serving.simulation.dynamic_robots import DynamicRobotFigures, DynamicRobots, Turnover
from ros2_rfm_serving.simulation.scheduler import NoScheduleLog, SimulatedScheduler
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule
from ros2_rfm_serving.virtual_time.events import Events

DAY_WORK = 0.0
"""Work for one plan by default: a day has hundreds of plans, and the first placement that is found suffices."""


@dataclass(kw_only=True)
class DayReport(DynamicRobotFigures):
    hours: float
    adjusted: int = 0
    """Guests for which others' rates or batch sizes changed."""
    schedules: int = 0
    migrations: int = 0
    """Schedules by which a server loads another model."""
    most_robots: int = 0
    actions: float = 0.0
    """Weighted actions that the schedules predict."""
    lost_actions: float = 0.0
    """Part of them that is lost while models load."""

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
    """Simulate the hours, and return the report. The same seed gives the same report.

    progress: called with the virtual time. Raises: `RfmError` when nothing can be served.
    """
    day = _Day(factory, profile, catalogue, turnover, hours, seed, policy, DAY_WORK if work is None else work)
    day.events.run(3600.0 * hours, progress, every_s=600.0)
    return day.end()


class _Day(NoScheduleLog):
    """The planned events of a day, and the log of its scheduler."""

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
        self._catalogue = catalogue
        self._values = {name: task.value for name, task in factory.tasks.items()}
        self._scheduler = SimulatedScheduler(factory, profile, catalogue, self.events, policy=policy, work=work, book=self)
        self._scheduler.published.append(self._hears)
        self._in_force, self._since_s = self._scheduler.schedules[0], 0.0
        DynamicRobots(turnover, [robot.task for robot in factory.robots], self._scheduler, seed, self.report)

    def end(self) -> DayReport:
        self._count(self.events.now_s)
        self.report.schedules = len(self._scheduler.schedules)
        return self.report

    # --- schedules ---

    def changed(self, before: ActiveFleet, after: ActiveFleet, reason: str) -> None:
        """Count a schedule, before it is published, that changes more than the routes of the robots that joined and left."""
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
        """Return the weighted actions/s of a route."""
        return self._values[route.task] * route.predicted_rate_hz if route.component == SYSTEM1 else 0.0

    def _load_s(self, placement: Placement) -> float:
        footprint = self._catalogue.footprint(placement.model, placement.gpu_type) if self._catalogue else None
        return footprint.load_s if footprint else DEFAULT_LOAD_S


def _of(schedule: Schedule, robots: set[str]) -> tuple[object, object]:
    """Return the routes of these robots, and the batch sizes of the servers."""
    routes = {route for route in schedule.routes if route.robot in robots}
    return routes, {placement.server: placement.batch_size for placement in schedule.placements}
