"""Monitoring for the scheduler: findings of `estimation` become schedules (`schedule_manager`)."""

from __future__ import annotations

from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.estimation import FactoryEstimator, RobotStatusSample, ServerStatusSample
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.schedule_manager import ScheduleManager


class TelemetryController:
    """Monitor of one scheduler. Messages arrive at any time; `look` is called twice a second (`estimator.LOOK_PERIOD_S`)."""

    def __init__(self, in_force: ScheduleManager, profile: Profile, catalogue: Catalogue | None) -> None:
        self._in_force, self._refit = in_force, refit_by(profile, catalogue)
        self.watch = FactoryEstimator(in_force.factory, profile, catalogue, lost=in_force.seen.lost)
        self._follow()

    @property
    def broken(self) -> tuple[str, ...]:
        """Return texts on promises that the active schedule no longer keeps, by observations or by the robots' own counts."""
        return (*self._in_force.broken, *self.watch.missed)

    def hear_server(self, word: ServerStatusSample, now_s: float) -> None:
        self.watch.hear_server(word, now_s)

    def hear_robot(self, word: RobotStatusSample, now_s: float) -> None:
        self.watch.hear_robot(word, now_s)

    def look(self, now_s: float) -> None:
        self._follow()
        if finding := self.watch.look(now_s, short=self._in_force.is_short):
            self._in_force.see(finding, self._refit)
            self._follow()
        self._in_force.tell(self.watch.missed)

    def _follow(self) -> None:
        """Follow the active schedule, and judge whether it holds."""
        self.watch.declare(self._in_force.factory)
        self.watch.follow(self._in_force.fleet.schedule)
        self._in_force.judge()
