"""A scheduler that is started again: it finds the schedule that servers follow, and what still holds goes on as it is."""

from __future__ import annotations

import logging
import struct
from dataclasses import replace

import pytest

from ros2_rfm_serving.factory import Factory, parse_factory
from ros2_rfm_serving.scheduler import (
    FactoryEstimates,
    PlanJob,
    PlanResult,
    RobotClaim,
    RobotRegistry,
    ScheduleManager,
    TelemetryController,
    plan,
    resumed,
)
from ros2_rfm_serving.scheduler.estimation import ServerStatusSample
from ros2_rfm_serving.simulation.scheduler import NoScheduleLog
from ros2_rfm_serving.types import AdmissionRecord, Route, Schedule, ServerState
from test.unit.scheduler.small_factories import small_factory
from test.unit.scheduler.test_adaptation import PROFILE
from test.unit.scheduler.test_adaptation import factory as fleet_factory
from test.unit.scheduler.test_apart import factory as on_hosts
from test.unit.scheduler.test_apart import together
from test.unit.scheduler.test_repair import factory, where

FORMER, NOW = 7, 8
"""Schedulers."""


def ordered(declared: Factory, previous: Schedule | None = None) -> PlanJob:
    return PlanJob(factory=declared, robots=tuple(declared.robots), policy="best", previous=previous)


def heard(schedule: Schedule, **more: object) -> Schedule:
    """As servers have it: rates as 32-bit floats, and without what the scheduler alone expected."""
    routes = [replace(r, predicted_rate_hz=0.0, max_rate_hz=single(r.max_rate_hz), slo_s=single(r.slo_s)) for r in schedule.routes]
    return replace(schedule, routes=tuple(routes), scheduler=FORMER, **more)


def single(number: float) -> float:
    return struct.unpack("f", struct.pack("f", number))[0]


def again(declared: Factory, found: Schedule) -> tuple[PlanResult, str]:
    return resumed(ordered(declared), found, PROFILE, None, work=0.0)


FIRST = plan(ordered(factory()), PROFILE, None).fleet.schedule


def said(routes: tuple[Route, ...]) -> list[Route]:
    """What of them is on the wire."""
    return [replace(route, predicted_rate_hz=0.0, slo_s=single(route.slo_s)) for route in routes]


def moved(before: Schedule, after: Schedule) -> int:
    return len(where(before).items() - where(after).items())


@pytest.mark.parametrize("seed", range(10))
def test_what_holds_goes_on_as_it_is(seed: int) -> None:
    """Every placement and every route, to the bit; and what is to be expected of them is found again, though nobody said it."""
    small = small_factory(seed)
    first = plan(ordered(small.factory), small.profile, None, work=0.0, explained=False).fleet.schedule
    found = heard(first, epoch=41)
    made, words = resumed(ordered(small.factory), found, small.profile, None)
    now = made.fleet.schedule
    assert words == "takes over schedule 41 of its predecessor: nothing moves"
    assert now.epoch == 42 and now.placements == found.placements and said(now.routes) == said(found.routes)
    expected = {(r.robot, r.component): r.predicted_rate_hz for r in first.routes}
    for route in now.routes:
        assert route.predicted_rate_hz == pytest.approx(expected[route.robot, route.component], rel=0.02)


def test_guests_stay_and_the_roster_has_them_until_they_say_otherwise() -> None:
    declared = factory()
    fleet = plan(ordered(declared), PROFILE, None, work=0.0).fleet
    fleet = fleet.admit(fleet.newcomer("guest", "carry"))
    made, words = again(declared, heard(fleet.schedule))
    assert "nothing moves" in words and said(made.fleet.schedule.routes) == said(heard(fleet.schedule).routes)
    roster = RobotRegistry(NOW)
    in_force = ScheduleManager(made, roster, lambda schedule, name: None, logging.getLogger(), NoScheduleLog())
    in_force.settle()
    assert in_force.fleet.task_of("guest") == "carry" and roster.tasks == {"guest": "carry"} and roster.inherited == 1
    assert in_force.wanted and not in_force.wanted.needed  # a better plan would be gone over to only if it is worth it
    roster.hear(
        RobotClaim(robot="guest", follows=FORMER, admission=AdmissionRecord(scheduler=0, task=""))
    )  # its scheduler released it
    in_force.settle()
    assert in_force.fleet.task_of("guest") is None
    assert len(roster.elapse(0.5)) == 0


def test_a_guest_that_is_not_heard_any_more_has_a_lease() -> None:
    declared = factory()
    fleet = plan(ordered(declared), PROFILE, None, work=0.0).fleet
    made, _ = again(declared, heard(fleet.admit(fleet.newcomer("guest", "carry")).schedule))
    roster = RobotRegistry(NOW, lease_s=1.0)
    in_force = ScheduleManager(made, roster, lambda schedule, name: None, logging.getLogger(), NoScheduleLog())
    assert [roster.elapse(0.5) for _ in range(2)] == [[], ["guest"]]
    in_force.settle()
    assert in_force.fleet.task_of("guest") is None


def test_a_declared_robot_that_somebody_had_released_is_back_beside_the_others() -> None:
    declared = factory()
    fleet = plan(ordered(declared), PROFILE, None, work=0.0).fleet
    found = heard(fleet.release(declared.robots[0].name).schedule)
    made, words = again(declared, found)
    now = made.fleet.schedule
    assert "nothing moves" in words and now.epoch == found.epoch + 1
    assert not moved(found, now) and {route.robot for route in now.routes} == {robot.name for robot in declared.robots}


def test_what_does_not_hold_is_planned_beside_what_runs() -> None:
    """An SLO that the servers of now do not keep: another plan takes its place, and what need not move stays."""
    found = reversed_names(heard(plan(ordered(many(slo_ms=60)), PROFILE, None).fleet.schedule))
    tight = many(slo_ms=22)
    made, words = again(tight, found)
    assert f"schedule {found.epoch} of its predecessor cannot go on" in words and "planned anew beside it" in words
    now, blind = made.fleet.schedule, plan(ordered(tight), PROFILE, None).fleet.schedule
    assert now.epoch == found.epoch + 1 and moved(found, now) <= 4 < moved(found, blind)


def many(slo_ms: int) -> Factory:
    return fleet_factory(robots=8, servers=6, slo_ms=slo_ms, watch_hz=2)


def reversed_names(schedule: Schedule) -> Schedule:
    """server_1 is called as the last one was."""
    names = [placement.server for placement in schedule.placements]
    new = dict(zip(names, reversed(names), strict=True)) | {"": ""}
    placements = tuple(replace(p, server=new[p.server]) for p in schedule.placements)
    routes = tuple(replace(r, server=new[r.server], standby=new[r.standby]) for r in schedule.routes)
    return replace(schedule, placements=placements, routes=routes)


def nonsense(found: Schedule) -> dict[str, Schedule]:
    """Why it is not taken over -> what was heard."""
    first, *placements = found.placements
    return {
        "elsewhere": replace(found, placements=(replace(first, server="elsewhere"), *placements)),
        f"{first.server} is": replace(found, placements=(replace(first, gpu_type="another"), *placements)),
        "is not of this factory": replace(found, placements=(replace(first, batch_size=999), *placements)),
        "no server hosts": replace(found, placements=()),
        f"{first.server} is not of this": replace(found, placements=(*found.placements, replace(first, standby=True))),
        "'rosa'": replace(found, policy="rosa"),
    }


@pytest.mark.parametrize("why", nonsense(FIRST))
def test_nonsense_is_not_taken_over(why: str) -> None:
    made, words = again(factory(), heard(nonsense(FIRST)[why]))
    assert "cannot go on" in words and why in words and made.fleet.schedule.routes


def test_a_robot_that_is_sent_to_nothing_is_admitted_beside_the_others() -> None:
    route, *others = FIRST.routes
    made, words = again(factory(), heard(replace(FIRST, routes=(replace(route, server="nowhere"), *others))))
    assert "nothing moves" in words and "nowhere" not in where(made.fleet.schedule).values()
    assert {route.robot for route in made.fleet.schedule.routes} == {robot.name for robot in factory().robots}


def test_guests_without_room_do_not_keep_the_declared_ones_waiting() -> None:
    """A descriptor that shrank: its robots are served, guests are to ask again."""
    big, small = factory(servers=12, robots=6), factory(servers=3, robots=6)
    fleet = plan(ordered(big), PROFILE, None, work=0.0).fleet
    for i in range(40):
        fleet = fleet.admit(fleet.newcomer(f"guest_{i}", "carry"))
    made, words = again(small, heard(fleet.schedule))
    assert "cannot go on" in words and {r.name for r in made.fleet.robots} >= {r.name for r in small.robots}


def test_robots_of_another_task_are_planned_for_it() -> None:
    other = parse_factory("""
server_cluster: {num_servers: 5, gpu_type: GPU}
robot_fleet: [{task: lift, num_robots: 2}]
lift:
  pipeline: {action_period_ms: 400}
  components: {system1: {model: policy, slo_ms: 60}}
""")
    made, _ = again(other, heard(FIRST))
    assert {route.task for route in made.fleet.schedule.routes} == {"lift"}


def test_a_standby_that_could_be_none_is_named_anew_and_slos_are_those_of_now() -> None:
    """What robots would turn to in an emergency hosts their model, and is another server."""
    covers = {(r.server, r.standby) for r in FIRST.routes}
    for told in ("itself", "nowhere"):
        routes = tuple(replace(r, standby=r.server if told == "itself" else told, slo_s=9.0) for r in FIRST.routes)
        made, words = again(factory(), heard(replace(FIRST, routes=routes)))
        now = made.fleet.schedule
        assert "nothing moves" in words and not moved(FIRST, now) and {(r.server, r.standby) for r in now.routes} == covers
        assert [r.slo_s for r in now.routes] == [r.slo_s for r in FIRST.routes]


def test_a_standby_on_the_host_of_its_server_is_none() -> None:
    """Servers were declared on other hosts then, or nobody knew: what a host loses, nobody there makes good (see `apart`)."""
    declared = on_hosts({"a": 2, "b": 3})
    hosts = {server: seat.host for server, seat in declared.gpu_assignments.items()}
    first = plan(ordered(declared), PROFILE, None, work=0.0).fleet.schedule
    hosted = {p.server: p.model for p in first.placements}

    def beside(server: str) -> str:
        return next((o for o in hosted if o != server and (hosted[o], hosts[o]) == (hosted[server], hosts[server])), "")

    routes = tuple(replace(route, standby=beside(route.server)) for route in first.routes)
    assert any(route.standby for route in routes), "the predecessor had some"
    made, words = again(declared, heard(replace(first, routes=routes)))
    now = made.fleet.schedule
    assert "nothing moves" in words and not moved(first, now) and not together(declared, now)
    assert {(r.server, r.standby) for r in now.routes} == {(r.server, r.standby) for r in first.routes}


def test_robots_of_a_reserved_standby_are_not_left_there() -> None:
    """It would be said to be out of the normal routes, and cover others as if it were idle."""
    found = replace(FIRST, placements=tuple(replace(p, standby=True) for p in FIRST.placements))
    now = again(factory(), heard(found))[0].fleet.schedule
    reserved = {p.server for p in now.placements if p.standby}
    assert not reserved & {route.server for route in now.routes}


def test_nobody_is_sent_to_a_server_that_the_predecessor_did_without_and_that_is_not_there() -> None:
    """It died, was repaired, and then the scheduler was started again with more to serve; the server comes back later."""
    declared = factory(servers=5, robots=6)
    before = plan(ordered(declared), PROFILE, None, work=0.0).fleet.schedule
    missing = before.routes[0].server
    placements = tuple(p for p in before.placements if p.server != missing)
    routes = tuple(r for r in before.routes if r.server != missing)
    seen = FactoryEstimates(lost=(missing,))
    found = heard(replace(before, policy="rosa", placements=placements, routes=routes))
    made, words = resumed(replace(ordered(declared), seen=seen), found, PROFILE, None, work=0.0)
    assert "planned anew" in words and missing not in {p.server for p in made.fleet.schedule.placements}
    in_force = ScheduleManager(made, RobotRegistry(NOW), lambda schedule, name: None, logging.getLogger(), NoScheduleLog())
    lookout = TelemetryController(in_force, PROFILE, None)
    for half_second in range(30):
        lookout.hear_server(idle(missing), half_second / 2)
        lookout.look(half_second / 2)
    assert in_force.seen.lost == () and lookout.watch.seen.lost == ()


def idle(server: str) -> ServerStatusSample:
    return ServerStatusSample(
        server=server,
        state=ServerState.READY,
        model="",
        batch_size=0,
        mean_batch_size=0.0,
        latency_p99_s=0.0,
        replies=0,
        inference_s=0.0,
        queue_wait_s=0.0,
        follows=0,
        follows_another=False,
    )
