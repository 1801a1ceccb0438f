"""A plan that is made anew beside one in force: what need not move does not, and what moves is worth it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.profiles import COLUMNS, Profile, parse_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, PlanJob, plan, start_fleet
from ros2_rfm_serving.scheduler.build_problem import problem_of
from ros2_rfm_serving.scheduler.migration import Migration, migration
from ros2_rfm_serving.scheduler.policies.in_place import in_place
from ros2_rfm_serving.scheduler.prediction.placement_matching import HORIZON_S, MIN_GAIN, PlacementMatching
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.simulation.random_factories import Size, random_factory
from test.unit.scheduler.small_factories import small_factory
from test.unit.scheduler.test_adaptation import factory

ROUNDING = 1e-6


def profile(slow_ms: float) -> Profile:
    """A policy whose mean latency rises from 10 ms by so much where much is asked."""
    return parse_profiles(
        f"""{",".join(COLUMNS)}
policy,GPU,fixed,1,2,10,10,12,14,20
policy,GPU,fixed,1,20,{10 + slow_ms},{10 + slow_ms},{12 + slow_ms},{14 + slow_ms},{20 + slow_ms}
judge,GPU,continuous,1,1,5,5,6,7,8
judge,GPU,continuous,1,100,20,20,30,40,50
"""
    )


def anew(fleet: ActiveFleet, declared: Factory, curves: Profile) -> tuple[ActiveFleet, Migration]:
    made = plan(PlanJob(factory=declared, robots=fleet.robots, policy="best", previous=fleet.schedule), curves, None).fleet
    return made, migration(fleet, made.schedule)


def problem_beside(fleet: ActiveFleet, declared: Factory, curves: Profile) -> PlanningProblem:
    return problem_of(declared, Counter(robot.task for robot in fleet.robots), curves, None, previous=fleet.schedule)


def staying_hz(problem: PlanningProblem, fleet: ActiveFleet) -> float:
    """What the placement in force is worth with the best rates; 0 where models share GPUs, of which none is a starting point."""
    there = in_place(problem, fleet.curves)
    if there is None:
        assert any(placement.gpu for placement in fleet.schedule.placements)
        return 0.0
    found = [0.0]
    for parts in there.parts_of(large=False):
        rates = RateSearch(parts.problem, fleet.curves, parts.hosts).best()
        found.append(parts.problem.objective(rates) if rates is not None else 0.0)
    return max(found)


def changed(fleet: ActiveFleet, rng: random.Random, step: int) -> ActiveFleet:
    """By robots that go and come."""
    for i in range(rng.randint(1, 2)):
        if rng.random() < 0.5 and len(fleet.robots) > 2:
            fleet = fleet.release(rng.choice(fleet.robots).name)
        else:
            try:
                fleet = fleet.admit(RobotEntry(name=f"late_{step}_{i}", task=rng.choice(fleet.robots).task, index=99))
            except ScheduleError:
                continue
    return fleet


def with_servers(fleet: ActiveFleet, models: dict[str, str], servers: dict[str, str]) -> ActiveFleet:
    """Under another placement: server -> model, and (robot's number, component) -> server."""
    example = {p.model: p for p in fleet.schedule.placements}
    placements = tuple(replace(example[model], server=server) for server, model in models.items())
    routes = tuple(replace(r, server=servers[f"{r.robot.rpartition('_')[2]} {r.component}"]) for r in fleet.schedule.routes)
    schedule = replace(fleet.schedule, placements=placements, routes=routes)
    return ActiveFleet(fleet.problem, fleet.curves, schedule, fleet.robots)


def test_of_two_plans_of_equal_value_the_one_that_moves_fewer_robots_wins() -> None:
    """All are as quick as execution lets them be, on one server or on two; a solver that does not know takes one."""
    declared = factory(robots=6, servers=4)
    fleet = start_fleet(declared, declared.robots, profile(0.0), None, epoch=1)
    models = {"server_1": "policy", "server_2": "policy", "server_3": "judge"}
    acting = {f"{i} system1": f"server_{1 + i // 5}" for i in range(1, 7)}
    running = with_servers(fleet, models, {**acting, **{f"{i} monitor": "server_3" for i in range(1, 7)}})
    made, move = anew(running, declared, profile(0.0))
    assert not move.moved_robots and made.actions_hz() == pytest.approx(fleet.actions_hz())


@pytest.mark.parametrize(("slow_ms", "worth_it"), [(4.0, False), (80.0, True)])
def test_a_plan_whose_gain_is_below_what_its_moves_cost_is_not_taken(slow_ms: float, worth_it: bool) -> None:
    """One judge is enough; the second one, as a server of actions, would make all robots a little quicker, or much. It loads for
    half a minute, and those that it judges stand."""
    declared = factory(robots=12, servers=4, slo_ms=200, watch_hz=2)
    fresh = start_fleet(declared, declared.robots, profile(slow_ms), None, epoch=1)
    assert sorted(p.model for p in fresh.schedule.placements) == ["judge", "policy", "policy", "policy"]
    models = {"server_1": "policy", "server_2": "policy", "server_3": "judge", "server_4": "judge"}
    acting = {f"{i} system1": f"server_{1 + i % 2}" for i in range(1, 13)}
    running = with_servers(fresh, models, {**acting, **{f"{i} monitor": f"server_{3 + i % 2}" for i in range(1, 13)}})
    made, move = anew(running, declared, profile(slow_ms))
    stay_hz = staying_hz(problem_beside(running, declared, profile(slow_ms)), running)
    assert fresh.actions_hz() > stay_hz and bool(move.moved_servers) == bool(move.moved_robots) == worth_it
    assert made.actions_hz() == pytest.approx(fresh.actions_hz() if worth_it else stay_hz, rel=MIN_GAIN)


@pytest.mark.patient
@given(seed=st.integers(0, 400))
@settings(max_examples=8, deadline=None)
def test_whatever_moves_gains_more_than_it_costs(seed: int) -> None:
    small = small_factory(seed)
    try:
        fleet = start_fleet(small.factory, small.factory.robots, small.profile, None, epoch=1)
    except ScheduleError:
        return
    rng = random.Random(seed)
    for step in range(3):
        fleet = changed(fleet, rng, step)
        made, move = anew(fleet, small.factory, small.profile)
        problem, lost_hz = problem_beside(fleet, small.factory, small.profile), move.lost_actions / HORIZON_S
        if not any(task.overlapped for task in problem.classes):  # else robots' queues say what is better, and not the curves
            stay_hz = staying_hz(problem, fleet)
            assert made.actions_hz() - lost_hz >= stay_hz * (1 - MIN_GAIN)
            assert not lost_hz or made.actions_hz() - lost_hz > stay_hz * (1 - ROUNDING), (stay_hz, made.actions_hz(), lost_hz)
        if not any(placement.gpu for placement in (*fleet.schedule.placements, *made.schedule.placements)):
            hosts = [
                HostedServer(host.config, tuple(sorted(host.demands.items()))) for host in made.hosts.values() if host.sessions
            ]
            counted_hz = PlacementMatching(problem).lost_hz(made.problem, hosts)
            assert counted_hz <= lost_hz * (1 + ROUNDING) + ROUNDING, "the solver counts no more than what those who go over lose"
        fleet = made if step else fleet


def test_the_same_robots_stay_where_they_are() -> None:
    for seed in (0, 5, 12, 14):
        small = small_factory(seed)
        fleet = start_fleet(small.factory, small.factory.robots, small.profile, None, epoch=1)
        _, move = anew(fleet, small.factory, small.profile)
        assert move.lost_actions == 0.0 and not move.moved_robots


def test_robots_of_a_large_factory_keep_the_servers_that_they_have_together() -> None:
    """Servers with as many robots of each kind are not the same: others of these robots' servers differ."""
    case = random_factory(Size(servers=40, robots=320, classes=4, models=3), 3)
    fleet = start_fleet(case.factory, case.factory.robots, case.profile, None, epoch=1)
    rng = random.Random(1)
    for _ in range(6):
        fleet = fleet.release(rng.choice(fleet.robots).name)
    for i in range(4):
        fleet = fleet.admit(RobotEntry(name=f"late_{i}", task=rng.choice(case.factory.robots).task, index=999))
    made, move = anew(fleet, case.factory, case.profile)
    assert not move.moved_robots and made.actions_hz() > (1 - MIN_GAIN) * fleet.actions_hz()
