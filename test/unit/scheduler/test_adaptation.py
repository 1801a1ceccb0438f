"""Admission, release, migration and standbys: what must not change, and what is refused."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry, load_factory, parse_factory
from ros2_rfm_serving.profiles import COLUMNS, load_profiles, parse_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, plan_factory, start_fleet
from ros2_rfm_serving.scheduler.migration import migration

PROFILE = parse_profiles(
    f"""{",".join(COLUMNS)}
policy,GPU,fixed,1,2,10,10,12,14,20
policy,GPU,fixed,1,20,30,30,40,50,60
policy,GPU,fixed,8,2,40,40,42,44,50
policy,GPU,fixed,8,100,60,60,70,80,90
judge,GPU,continuous,1,1,5,5,6,7,8
judge,GPU,continuous,1,100,20,20,30,40,50
"""
)


def factory(
    robots: int = 4, servers: int = 4, extra: str = "", floor: str = "", slo_ms: float = 60, watch_hz: float = 10
) -> Factory:
    return parse_factory(
        f"""
server_cluster: {{num_servers: {servers}, gpu_type: GPU}}
robot_fleet: [{{task: carry, num_robots: {robots}}}]
{extra}
carry:
  pipeline: {{action_period_ms: 400}}
  {floor}
  components:
    system1: {{model: policy, slo_ms: {slo_ms}}}
    monitor: {{model: judge, freq_hz: {watch_hz}, slo_ms: 50}}
"""
    )


def fleet(declared: Factory) -> ActiveFleet:
    return start_fleet(declared, declared.robots, PROFILE, None, epoch=7)


def newcomer(name: str = "late", task: str = "carry") -> RobotEntry:
    return RobotEntry(name=name, task=task, index=99)


def test_admission_adds_the_newcomers_routes_and_touches_nothing_else() -> None:
    before = fleet(factory())
    after = before.admit(newcomer())
    assert set(after.schedule.routes) - set(before.schedule.routes) == set(after.schedule.routes_of("late").values())
    assert set(before.schedule.routes) < set(after.schedule.routes) and after.schedule.epoch == 8
    assert set(after.schedule.routes_of("late")) == {"system1", "monitor"}
    assert [replace(p, max_sessions=0) for p in after.schedule.placements] == [
        replace(p, max_sessions=0) for p in before.schedule.placements
    ]
    assert after.schedule.predicted_actions_hz > before.schedule.predicted_actions_hz


def test_release_is_the_inverse_of_admission() -> None:
    before = fleet(factory())
    after = before.admit(newcomer()).release("late")
    assert after.schedule.routes == before.schedule.routes and after.robots == before.robots
    assert after.schedule.predicted_actions_hz == pytest.approx(before.schedule.predicted_actions_hz)


@pytest.mark.patient
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_no_sequence_of_changes_breaks_an_slo_or_moves_a_robot(seed: int) -> None:
    rng = random.Random(seed)
    running = fleet(factory(robots=rng.randint(1, 6), servers=rng.randint(2, 5)))
    for i in range(60):
        before = {(r.robot, r.component): r for r in running.schedule.routes}
        try:
            if running.robots and rng.random() < 0.3:
                running = running.release(rng.choice(running.robots).name)
            else:
                running = running.admit(newcomer(f"late_{i}"))
        except ScheduleError:
            continue
        after = {(r.robot, r.component): r for r in running.schedule.routes}
        assert all(after[key].server == route.server for key, route in before.items() if key in after)
        for placement in running.schedule.placements:
            mine = [r for r in running.schedule.routes if r.server == placement.server]
            load_hz = sum(r.predicted_rate_hz for r in mine)
            key = (placement.model, placement.gpu_type, placement.batching, placement.batch_size)
            p99_s = PROFILE.latency_s(*key, min(load_hz, PROFILE.max_rate_hz(*key)), "p99")
            assert load_hz <= PROFILE.max_rate_hz(*key) * (1 + 1e-9)
            assert all(p99_s <= r.slo_s + 1e-9 for r in mine)
            assert placement.max_sessions >= len(mine)


def test_a_full_server_refuses_with_the_component_and_the_room_left() -> None:
    running = fleet(factory(robots=8, servers=3))
    with pytest.raises(ScheduleError, match=r"of 'carry': no server with '\w+' keeps every SLO.*server_\d has room for"):
        for i in range(100):
            running = running.admit(newcomer(f"late_{i}"))
    assert 8 <= len(running.robots) <= 10  # 100 checks/s


def test_a_newcomer_that_would_stay_below_its_floor_is_refused() -> None:
    running = fleet(factory(robots=9, servers=2, floor="min_action_rate_hz: 2.0"))
    with pytest.raises(ScheduleError, match=r"'carry'|'late'"):
        for i in range(100):
            running = running.admit(newcomer("late" if i == 0 else f"late_{i}"))
    assert all(r.predicted_rate_hz >= 2.0 - 1e-9 for r in running.schedule.routes if r.component == "system1")


def test_what_a_robot_asks_of_one_model_is_looked_at_together() -> None:
    """Each of its checks alone would fit: 60 + 30 + 30 requests/s on a server of 100."""
    watch = """
walk:
  pipeline: {action_period_ms: 500}
  components:
    system1: {model: policy, slo_ms: 60}
    safety: {model: judge, freq_hz: 30, slo_ms: 50}
    monitor: {model: judge, freq_hz: 30, slo_ms: 50}
"""
    declared = factory(servers=2, extra=watch)
    running = start_fleet(declared, [newcomer("guest", "walk")], PROFILE, None, epoch=1)
    with pytest.raises(ScheduleError, match=r"room for 10\.00 of 30\.00 requests/s"):
        running.admit(newcomer("guest_2", "walk"))


def test_floors_of_those_that_run_hold() -> None:
    """Newcomers without a floor of their own make everybody's replies slower."""
    guest = """
guest:
  pipeline: {action_period_ms: 100}
  components:
    system1: {model: policy, slo_ms: 95}
"""
    floored = factory(robots=2, servers=2, floor="min_action_rate_hz: 2.38", extra=guest)
    robots = [*floored.robots, newcomer("guest", "guest")]
    running = start_fleet(floored, robots, PROFILE, None, epoch=1)
    for i in range(20):
        try:
            running = running.admit(newcomer(f"guest_{i}", "guest"))
        except ScheduleError:
            break
    keeps_floor(running, 2.38)


def test_where_the_plan_gives_a_class_nothing_nobody_is_admitted_to_that() -> None:
    """What such robots check all the same slows others below their floor."""
    guest = """
guest:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: policy, slo_ms: 60}
    safety: {model: policy, freq_hz: 1, slo_ms: 60}
"""
    floored = factory(robots=5, servers=2, floor="min_action_rate_hz: 2.35", extra=guest)
    made = start_fleet(floored, [*floored.robots, newcomer("guest", "guest")], PROFILE, None, epoch=1)
    nothing = {"predicted_rate_hz": 0.0, "max_rate_hz": 0.0}
    routes = [replace(r, **(nothing if (r.task, r.component) == ("guest", "system1") else {})) for r in made.schedule.routes]
    running = ActiveFleet(made.problem, made.curves, replace(made.schedule, routes=tuple(routes)), made.robots)
    with pytest.raises(ScheduleError):
        for i in range(40):
            running = running.admit(newcomer(f"guest_{i}", "guest"))
            keeps_floor(running, 2.35)
            assert running.schedule.routes_of(f"guest_{i}")["system1"].predicted_rate_hz >= 0.01 * 2.5 - 1e-9


def keeps_floor(running: ActiveFleet, floor_hz: float) -> None:
    for placement in running.schedule.placements:
        if placement.model == "policy":
            key = (placement.model, placement.gpu_type, placement.batching, placement.batch_size)
            load = sum(route.predicted_rate_hz for route in running.schedule.routes if route.server == placement.server)
            assert 1.0 / (0.4 + PROFILE.latency_s(*key, load, "mean")) >= floor_hz * (1 - 1e-6)


def test_a_standby_carries_what_it_stands_by_for_also_after_admissions() -> None:
    running = fleet(factory(robots=4, servers=3))
    admitted = 0
    for i in range(40):
        try:
            running, admitted = running.admit(newcomer(f"late_{i}")), admitted + 1
        except ScheduleError:
            break
    assert 0 < admitted < 40
    hosts = {p.server: p for p in running.schedule.placements}
    loads = {name: sum(r.predicted_rate_hz for r in running.schedule.routes if r.server == name) for name in hosts}
    for server, standby in {(r.server, r.standby) for r in running.schedule.routes if r.standby}:
        key = (hosts[standby].model, hosts[standby].gpu_type, hosts[standby].batching, hosts[standby].batch_size)
        slo_s = min(r.slo_s for r in running.schedule.routes if r.server in (server, standby))
        assert loads[server] + loads[standby] <= PROFILE.capacity_hz(*key, slo_s, 99.0) * (1 + 1e-6)


def test_nobody_is_admitted_to_next_to_nothing(repository: Path) -> None:
    """P4 full of robots: the next ones had an action in 60 hours, and the plan that serves everybody was not worth it."""
    folder = repository / "config" / "profiles"
    declared = load_factory(repository / "config" / "rosa" / "p4.yaml").with_num_robots(64)
    profile, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    running = start_fleet(declared, declared.robots, profile, catalogue, epoch=1)
    planned_hz = min(route.predicted_rate_hz for route in running.schedule.routes if route.component == "system1")
    for i in range(65, 90):
        try:
            running = running.admit(RobotEntry(name=f"late_{i}", task=declared.robots[0].task, index=i))
        except ScheduleError as error:
            assert "keeps every SLO and standby" in str(error) or "owed to it" in str(error)
            break
    else:
        raise AssertionError("everybody was admitted")
    given = [route.predicted_rate_hz for route in running.schedule.routes if route.component == "system1"]
    assert min(given) >= 0.49 * planned_hz


def test_unknown_tasks_and_robots_are_refused() -> None:
    running = fleet(factory())
    with pytest.raises(ScheduleError, match="no server hosts what robots of 'weld' need"):
        running.admit(newcomer(task="weld"))
    with pytest.raises(ScheduleError, match="'ghost' is not in the factory"):
        running.release("ghost")


def test_a_robot_of_a_task_without_declared_robots_is_planned_for() -> None:
    """Its routes were missing from a plan that was called a success."""
    weld = """
weld:
  pipeline: {action_period_ms: 500}
  components:
    system1: {model: policy, slo_ms: 60}
"""
    declared = factory(extra=weld)
    running = start_fleet(declared, [*declared.robots, newcomer(task="weld")], PROFILE, None, epoch=1)
    assert [route.task for route in running.schedule.routes_of("late").values()] == ["weld"]
    assert {route.task for route in running.admit(newcomer("later", "weld")).schedule.routes_of("later").values()} == {"weld"}


def test_a_robot_that_left_frees_all_that_it_took_also_by_a_tight_slo() -> None:
    weld = """
weld:
  value: 0.5  # of equal worth it would be a tie who goes how fast
  pipeline: {action_period_ms: 500}
  components:
    system1: {model: policy, slo_ms: 21}
"""
    declared = factory(robots=2, servers=2, extra=weld)
    before = start_fleet(declared, [*declared.robots, newcomer("welder", "weld")], PROFILE, None, epoch=1)

    def places(running: ActiveFleet) -> int:
        for number in range(100):
            try:
                running = running.admit(newcomer(f"late_{number}"))
            except ScheduleError:
                return number
        return 100

    assert places(before) < places(before.release("welder"))


def test_a_migration_counts_the_models_that_load_and_the_robots_that_move() -> None:
    planned = fleet(factory())
    slower = tuple(
        replace(r, predicted_rate_hz=r.predicted_rate_hz / 2) if r.component == "system1" else r for r in planned.schedule.routes
    )
    running = ActiveFleet(planned.problem, planned.curves, replace(planned.schedule, routes=slower), planned.robots)
    same = migration(running, running.schedule)
    assert (same.moved_servers, same.moved_robots, same.lost_actions, same.gained_actions) == ((), (), 0.0, 0.0)
    assert not same.worth_it
    judge = next(p for p in running.schedule.placements if p.model == "judge")
    other = replace(
        running.schedule,
        placements=tuple(replace(p, model="policy") if p == judge else p for p in running.schedule.placements),
        routes=tuple(
            replace(r, predicted_rate_hz=1.5 * r.predicted_rate_hz) if r.component == "system1" else r
            for r in running.schedule.routes
        ),
    )
    moved = migration(running, other, horizon_s=100.0)
    assert moved.moved_servers == (judge.server,) and moved.moved_robots == ()
    rate_hz = sum(r.predicted_rate_hz for r in running.schedule.routes if r.component == "system1")
    assert moved.gained_actions == pytest.approx(0.5 * rate_hz * 100)
    stopped = {r.robot for r in running.schedule.routes if r.server == judge.server}
    lost_hz = sum(r.predicted_rate_hz for r in running.schedule.routes if r.component == "system1" and r.robot in stopped)
    assert moved.lost_actions == pytest.approx(30.0 * lost_hz)  # the catalogue does not know how long it loads
    assert moved.worth_it == (0.5 * rate_hz * 100 > 30.0 * lost_hz)


# --- standbys ---


def test_a_reserved_standby_hosts_a_model_has_no_routes_and_covers_what_it_carries() -> None:
    declared = factory(servers=4, extra="standby: {num_servers: 1, peers: false}")
    solution = plan_factory(declared, PROFILE)
    (standby,) = [s for s in solution.servers if s.standby]
    assert standby.server == "server_4" and not standby.streams
    covered = {s.server for s in solution.servers if s.model == standby.model and not s.standby}
    assert solution.standby_of == dict.fromkeys(covered, "server_4")
    assert "no standby covers the loss of" in solution.notes[0]
    schedule = fleet(declared).schedule
    assert all(r.standby == ("server_4" if r.server in covered else "") for r in schedule.routes)
    assert "server_4" not in {r.server for r in schedule.routes}


def test_a_standby_per_model_covers_the_loss_of_any_server() -> None:
    solution = plan_factory(factory(servers=6, extra="standby: {num_servers: 2}"), PROFILE)
    assert {s.model for s in solution.servers if s.standby} == {"policy", "judge"} and not solution.notes
    assert set(solution.standby_of) == {s.server for s in solution.servers if s.streams}


def test_a_peer_stands_by_only_where_every_slo_holds_with_both_loads() -> None:
    light = plan_factory(factory(robots=2, servers=4), PROFILE)
    models = {s.server: s.model for s in light.servers}
    assert light.standby_of and all(models[a] == models[b] and a != b for a, b in light.standby_of.items())
    heavy = plan_factory(factory(robots=16, servers=4), PROFILE)
    judges = {s.server for s in heavy.servers if s.model == "judge"}
    assert len(judges) == 2 and not judges & set(heavy.standby_of)  # 160 checks/s do not fit on one server
    assert heavy.notes == ("no standby covers the loss of server_1, server_2, server_3, server_4",), "nothing is reserved"


def test_servers_whose_loss_nobody_covers_are_known_while_robots_come_and_go() -> None:
    running = fleet(factory(robots=2, servers=4, extra="standby: {peers: false}"))
    used = {route.server for route in running.schedule.routes}
    assert set(running.uncovered) == used, "nobody stands by"
    assert set(running.admit(newcomer()).uncovered) >= used
    assert set(running.release("carry_1").release("carry_2").uncovered) == set()
    assert not fleet(factory(robots=2, servers=6, extra="standby: {num_servers: 2}")).admit(newcomer()).uncovered


def test_a_newcomer_gets_the_standby_of_its_server() -> None:
    running = fleet(factory(servers=6, extra="standby: {num_servers: 2}")).admit(newcomer())
    assert all(route.standby for route in running.schedule.routes_of("late").values())
    assert math.isfinite(running.schedule.predicted_actions_hz)
