"""The scheduler in virtual time while nobody wants anything: a plan that was cut short is improved."""

from __future__ import annotations

from ros2_rfm_serving.scheduler import PlanResult
from ros2_rfm_serving.simulation.random_factories import Size, random_factory
from ros2_rfm_serving.simulation.scheduler import NoScheduleLog, SimulatedScheduler
from ros2_rfm_serving.virtual_time.events import Events

WORK = 0.02


class Kept(NoScheduleLog):
    def __init__(self) -> None:
        self.tried: list[tuple[int, bool]] = []
        """(effort, whether it was published) of every plan that nobody asked for."""

    def planned(self, planned: PlanResult, reason: str, *, background: bool = False, published: bool = True) -> None:
        if background:
            self.tried.append((planned.effort, published))


def idle(seed: int) -> tuple[SimulatedScheduler, Kept]:
    drawn = random_factory(Size(servers=8, robots=64, classes=4, models=3), seed)
    events, kept = Events(), Kept()
    scheduler = SimulatedScheduler(drawn.factory, drawn.profile, None, events, work=WORK, book=kept)
    events.run(60.0)
    return scheduler, kept


def test_more_work_is_done_as_long_as_it_finds_more() -> None:
    scheduler, kept = idle(seed=3)
    efforts = [effort for effort, _ in kept.tried]
    assert efforts and efforts == [2, 4, 8, 16][: len(efforts)]
    assert [schedule.epoch for schedule in scheduler.schedules] == list(range(1, 2 + sum(published for _, published in kept.tried)))
    gained = [schedule.predicted_actions_hz for schedule in scheduler.schedules]
    assert gained == sorted(gained) and scheduler.brain.wanted is None
