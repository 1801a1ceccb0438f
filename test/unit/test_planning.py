"""Profiles and the first scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ProfileError, ScheduleError
from ros2_rfm_serving.factory import load_factory, parse_factory
from ros2_rfm_serving.profiles import COLUMNS, load_profiles, parse_profiles
from ros2_rfm_serving.scheduler import plan

HEADER = ",".join(COLUMNS)
PROFILE = parse_profiles(
    f"""{HEADER}
policy,GPU,fixed,1,2,10,10,12,14,20
policy,GPU,fixed,1,20,30,30,40,50,60
policy,GPU,fixed,8,2,40,40,42,44,50
policy,GPU,fixed,8,100,60,60,70,80,90
judge,GPU,continuous,1,1,5,5,6,7,8
judge,GPU,continuous,1,100,20,20,30,40,50
"""
)


def factory(robots: int = 4, servers: int = 3, slo_ms: float = 200, gpu: str = "GPU"):  # type: ignore[no-untyped-def]
    return parse_factory(
        f"""
server_cluster: {{num_servers: {servers}, gpu_type: {gpu}}}
robot_fleet: [{{task: carry, num_robots: {robots}}}]
carry:
  pipeline: {{action_period_ms: 400}}
  components:
    system1: {{model: policy, slo_ms: {slo_ms}}}
    monitor: {{model: judge, freq_hz: 1}}
"""
    )


def test_interpolates_and_refuses_what_was_not_measured() -> None:
    at = ("policy", "GPU", "fixed", 1)
    assert PROFILE.latency_s(*at, 11, "mean") == pytest.approx(0.020)
    assert PROFILE.latency_s(*at, 0.5, "p99") == pytest.approx(0.020)
    assert PROFILE.latency_s(*at, 20, "p99") == pytest.approx(0.060)
    with pytest.raises(ProfileError, match="up to 20"):
        PROFILE.latency_s(*at, 21)
    with pytest.raises(ProfileError, match="no latency profile of 'unknown'"):
        PROFILE.batch_sizes("unknown", "GPU")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("policy,GPU,fixed,1,2,ten,10,12,14,20", "mean_ms is 'ten'"),
        ("policy,GPU,fixed,1,2,nan,10,12,14,20", "finite"),
        ("policy,GPU,fixed,1,2,-1,10,12,14,20", "positive"),
        ("policy,GPU,sometimes,1,2,10,10,12,14,20", "batching"),
        ("policy,GPU,fixed,1", "rate_hz is None"),
    ],
)
def test_a_bad_profile_row_is_named(row: str, problem: str) -> None:
    with pytest.raises(ProfileError, match=r"p\.csv:2.*" + problem):
        parse_profiles(f"{HEADER}\n{row}\n", "p.csv")


def test_wrong_columns_are_named() -> None:
    with pytest.raises(ProfileError, match="columns"):
        parse_profiles("model,latency\n", "p.csv")


@given(robots=st.integers(1, 40), servers=st.integers(2, 8))
def test_every_stream_has_one_route_to_a_server_that_hosts_its_model(robots: int, servers: int) -> None:
    declared = factory(robots, servers)
    schedule = plan(declared, PROFILE, epoch=3)
    hosts = {p.server: p for p in schedule.placements}
    assert len(hosts) == servers and set(hosts) == set(declared.servers)
    wanted = {(r.name, c, spec.model) for r in declared.robots for c, spec in declared.tasks[r.task].components.items()}
    assert {(r.robot, r.component, hosts[r.server].model) for r in schedule.routes} == wanted
    for server, placement in hosts.items():
        load = sum(r.max_rate_hz for r in schedule.routes if r.server == server)
        assert load <= PROFILE.max_rate_hz(placement.model, "GPU", placement.batching, placement.batch_size)
        sessions = sum(r.server == server for r in schedule.routes)
        assert sessions <= placement.max_sessions
    for route in schedule.routes:
        if route.standby:
            assert hosts[route.standby].model == hosts[route.server].model and route.standby != route.server
    assert schedule.epoch == 3


def test_a_factory_without_robots_has_an_empty_schedule() -> None:
    assert plan(factory(), PROFILE, epoch=1, robots=[]).routes == ()


def test_system1_is_capped_at_its_closed_loop_rate() -> None:
    schedule = plan(factory(robots=1), PROFILE, epoch=1)
    rate = next(r.max_rate_hz for r in schedule.routes if r.component == "system1")
    assert 1 / (0.4 + 0.030) < rate < 1 / 0.4


def test_too_few_servers_and_impossible_slos_are_refused_with_the_reason() -> None:
    with pytest.raises(ScheduleError, match=r"2 models.*1 servers"):
        plan(factory(servers=1), PROFILE, epoch=1)
    with pytest.raises(ScheduleError, match="SLO of 5 ms cannot be met"):
        plan(factory(slo_ms=5), PROFILE, epoch=1)


def test_the_shipped_quickstart_plans_with_the_shipped_profiles(repository: Path) -> None:
    schedule = plan(
        load_factory(repository / "config" / "factory_quickstart.yaml"), load_profiles(repository / "config" / "profiles"), epoch=1
    )
    assert schedule.predicted_actions_hz > 5
