"""Servers that come back have again whom they had, at once and without a plan, if every promise holds so."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, PlanJob, PlanResult, RobotRegistry, ScheduleManager, failover, plan
from ros2_rfm_serving.scheduler.degraded_mode import bare
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.scheduler.estimation import EstimateChange
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.simulation.scheduler import NoScheduleLog
from ros2_rfm_serving.types import Schedule
from test.unit.scheduler import test_shared_gpus
from test.unit.scheduler.test_adaptation import PROFILE
from test.unit.scheduler.test_repair import REFIT, covered, factory, planned, where

LOOKS = 20


class Alone:
    """The brain, and nobody who ever plans for it."""

    def __init__(self, declared: Factory, first: PlanResult | None = None, profile: Profile = PROFILE) -> None:
        self.schedules: list[Schedule] = []
        self._refit = REFIT if profile is PROFILE else refit_by(profile, None)
        log = logging.getLogger("test")
        publish = lambda schedule, _: self.schedules.append(schedule)  # noqa: E731
        self.brain = ScheduleManager(first or planned(declared), RobotRegistry(1), publish, log, NoScheduleLog())
        self.rest()

    def rest(self) -> None:
        for _ in range(LOOKS):
            self.brain.settle()

    def lose(self, *servers: str) -> None:
        self.see(lost=servers)

    def see(self, lost: tuple[str, ...] = (), back: tuple[str, ...] = ()) -> None:
        now = tuple(sorted({*self.brain.seen.lost, *lost} - {*back}))
        self.brain.see(EstimateChange(FactoryEstimates(lost=now), lost, back, "statuses said so"), self._refit)
        self.rest()

    @property
    def fleet(self) -> ActiveFleet:
        return self.brain.fleet


def busiest(schedule: Schedule, count: int) -> list[str]:
    counts = Counter(r.server for r in schedule.routes if r.component == "system1")
    return [server for server, _ in counts.most_common(count)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
@pytest.mark.parametrize("together", [False, True])
def test_two_losses_and_two_returns_leave_everything_as_it_was(order: tuple[int, ...], together: bool) -> None:
    """39 of these 60 robots were served again: by newcomers' rates, for which there was no room."""
    alone = Alone(factory("{peers: false}", robots=60, servers=5))
    before, gone = alone.fleet.schedule, busiest(alone.fleet.schedule, 2)
    if together:
        alone.lose(*gone)
    else:
        for server in gone:
            alone.lose(server)
    assert len({route.robot for route in alone.fleet.schedule.routes}) < 60
    for i in order:
        alone.see(back=(gone[i],))
        assert not broken(alone.fleet) and gone[i] in alone.fleet.restored
        mine = {route.robot for route in before.routes if route.server == gone[i]}
        assert mine == {route.robot for route in alone.fleet.schedule.routes if route.server == gone[i]}
    after = alone.fleet.schedule
    assert after.routes == before.routes and alone.fleet.intact is None
    assert after.predicted_actions_hz == pytest.approx(before.predicted_actions_hz)
    assert {p.server: (p.model, p.batch_size) for p in after.placements} == {
        p.server: (p.model, p.batch_size) for p in before.placements
    }
    assert [s.epoch for s in alone.schedules] == sorted({s.epoch for s in alone.schedules})


def test_a_schedule_says_how_much_is_done_without_a_lost_server() -> None:
    """It went on saying what was done before, and what those who found room did was added to that."""
    alone = Alone(factory("{peers: false}", robots=60, servers=5))
    alone.lose(*busiest(alone.fleet.schedule, 2))
    schedule = alone.fleet.schedule
    assert schedule.predicted_actions_hz == pytest.approx(
        sum(route.predicted_rate_hz for route in schedule.routes if route.component == "system1")
    )


def test_a_reserved_standby_that_returns_stands_by_for_whom_it_stood_by() -> None:
    alone = Alone(factory("{num_servers: 2}", robots=12, servers=6))
    before = alone.fleet.schedule
    spares = [p.server for p in before.placements if p.standby]
    for those in (spares[:1], spares):
        alone.lose(*those)
        assert alone.fleet.schedule.routes != before.routes
        for spare in those:
            alone.see(back=(spare,))
        assert alone.fleet.schedule.routes == before.routes
        assert {p.server for p in alone.fleet.schedule.placements if p.standby} == set(spares)


def test_who_is_served_as_well_where_it_turned_to_stays_there() -> None:
    """What comes back stands by in its place: nobody moves for nothing."""
    alone = Alone(factory())
    before, lost = alone.fleet.schedule, covered(alone.fleet.schedule)
    alone.lose(lost)
    turned = where(alone.fleet.schedule)
    alone.see(back=(lost,))
    assert where(alone.fleet.schedule) == turned and lost not in alone.fleet.restored and not bare(alone.fleet)
    assert {r.robot: r.predicted_rate_hz for r in alone.fleet.schedule.routes} == {
        r.robot: r.predicted_rate_hz for r in before.routes
    }


def test_robots_that_two_lost_servers_had_turn_to_one_standby_and_go_back_to_the_first_that_returns() -> None:
    """One standby for two servers carries either, and not both: who stays there would miss its SLO."""
    alone = Alone(factory("{num_servers: 1, peers: false}", robots=60, servers=6))
    before = alone.fleet.schedule
    by = Counter(route.standby for route in before.routes if route.standby and route.component == "system1")
    (spare, _), *_ = by.most_common(1)
    gone = sorted({route.server for route in before.routes if route.standby == spare})[:2]
    alone.lose(*gone)
    assert broken(alone.fleet), "or one standby carries both"
    alone.see(back=(gone[0],))
    assert not broken(alone.fleet)
    alone.see(back=(gone[1],))
    assert not broken(alone.fleet) and {r.robot for r in alone.fleet.schedule.routes} == {r.robot for r in before.routes}


def test_who_came_since_stays_and_who_left_does_not_return() -> None:
    alone = Alone(factory("{num_servers: 1}", robots=12, servers=5))
    before, uncovered = alone.fleet.schedule, alone.fleet.uncovered
    (lost,) = busiest(before, 1)
    alone.lose(lost, *(p.server for p in before.placements if p.standby))
    left = next(route.robot for route in before.routes if route.server == lost)
    alone.brain.release(left)
    order = alone.brain.admit("guest", "carry")
    assert isinstance(order.answer, int), order.why
    guest = alone.fleet.schedule.routes_of("guest")
    for server in sorted(alone.brain.seen.lost):
        alone.see(back=(server,))
    after = alone.fleet.schedule
    assert {r.robot for r in after.routes} == {r.robot for r in before.routes} - {left} | {"guest"}
    assert {c: r.server for c, r in after.routes_of("guest").items()} == {c: r.server for c, r in guest.items()}
    assert not broken(alone.fleet) and alone.fleet.uncovered == uncovered


def test_nobody_has_again_what_breaks_a_promise() -> None:
    """A server that is three times as slow as it was has its robots no more, or fewer."""
    declared = factory("{peers: false}", robots=60, servers=5)
    fleet = planned(declared).fleet
    (gone,) = busiest(fleet.schedule, 1)
    without, refused = seeing(fleet, declared, FactoryEstimates(lost=(gone,)), (gone,), (), REFIT)
    robots = [RobotEntry(name=name, task="carry", index=90 + i) for i, name in enumerate(refused)]
    slow, _ = seeing(without, declared, FactoryEstimates(paces={gone: 3.0}), (), (gone,), REFIT, robots)
    assert gone not in slow.restored and not any(text.startswith(gone) for text in broken(slow))
    quick, _ = seeing(without, declared, AS_DECLARED, (), (gone,), REFIT, robots)
    assert quick.restored == {gone} and where(quick.schedule) == where(fleet.schedule)


def test_what_figures_broke_elsewhere_keeps_nobody_from_being_served_again() -> None:
    """Another server that became slow meanwhile, and that no more is asked of for it."""
    declared = factory("{peers: false}", robots=60, servers=5)
    fleet = planned(declared).fleet
    gone, slow, *_ = busiest(fleet.schedule, 2)
    without, refused = seeing(fleet, declared, FactoryEstimates(lost=(gone,)), (gone,), (), REFIT)
    paces = {slow: 1.5}
    hampered, _ = seeing(without, declared, FactoryEstimates(lost=(gone,), paces=paces), (), (), REFIT)
    assert {text.partition(":")[0] for text in broken(hampered)} == {slow}
    robots = [RobotEntry(name=name, task="carry", index=90 + i) for i, name in enumerate(refused)]
    again, _ = seeing(hampered, declared, FactoryEstimates(paces=paces), (), (gone,), REFIT, robots)
    assert again.restored == {gone} and where(again.schedule) == where(fleet.schedule)


def test_what_no_schedule_held_before_a_loss_keeps_nobody_from_being_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may be published that misses a floor: then the same as before is no worse."""
    monkeypatch.setattr(failover, "broken", lambda fleet, looks: ("'carry': its robots reach too little",))
    alone = Alone(factory("{peers: false}", robots=60, servers=5))
    before = alone.fleet.schedule
    (gone,) = busiest(before, 1)
    alone.lose(gone)
    alone.see(back=(gone,))
    assert alone.fleet.schedule.routes == before.routes


def test_servers_that_share_a_gpu_serve_again_when_it_returns(repository: Path) -> None:
    """Robots of time slices found no room without a plan: nobody is admitted to slices."""
    folder = repository / "config" / "profiles"
    shipped = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    declared = test_shared_gpus.factory(2, 2, more=test_shared_gpus.OTHER)
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best")
    alone = Alone(declared, plan(order, *shipped, work=0.0, explained=False), shipped[0])
    before = alone.fleet.schedule
    gpu = next(p.gpu for p in before.placements if p.gpu)
    for lost in sorted({gpu, *declared.servers}):
        alone.lose(lost)
        alone.see(back=(lost,))
        assert alone.fleet.schedule.routes == before.routes and not broken(alone.fleet)


def test_figures_and_losses_do_not_matter_to_a_fleet_that_nobody_is_in() -> None:
    """A look at statuses raised "nothing to serve" when all robots had been released: the scheduler ended."""
    declared = factory(robots=2, servers=3)
    alone = Alone(declared)
    for robot in declared.robots:
        alone.brain.release(robot.name)
    lost = next(p.server for p in alone.fleet.schedule.placements if p.model == "policy")
    alone.lose(lost)
    order = alone.brain.admit("guest", "carry")
    assert not isinstance(order.answer, RfmError) and lost not in where(alone.fleet.schedule).values()
    alone.see(back=(lost,))
    assert lost in {p.server for p in alone.fleet.schedule.placements}
