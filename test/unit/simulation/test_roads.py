"""Hosts' links in virtual time: what a plan keeps within links keeps its promises there, and what ignores them does not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.faults import Delivery, Direction
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.scheduler.policies import best, packing
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.simulation import Report, simulate
from ros2_rfm_serving.simulation.conditions import NetworkConditions, SimulationConditions
from ros2_rfm_serving.simulation.network_links import NetworkLinks
from ros2_rfm_serving.types import SYSTEM1

UP, DOWN = Direction.UP, Direction.DOWN


def factory(a: str = "", b: str = "", home: str = "", robots: int = 12) -> Factory:
    """A server on each of two hosts; an observation has 0.64 Mbit, an answer 0.032."""
    third = f"\n  home: {{address: 10.0.0.3, robots: [arm]{home}}}" if home else ""
    return parse_factory(f"""
server_cluster: {{num_servers: 2, gpu_type: EMULATED}}
standby: {{peers: false}}
robot_fleet: [{{task: arm, num_robots: {robots}, network: {{observation_kb: 80, reply_kb: 4}}}}]
hosts:
  a: {{address: 10.0.0.1, gpus: {{EMULATED: 1}}{a}}}
  b: {{address: 10.0.0.2, gpus: {{EMULATED: 1}}{b}}}{third}
arm:
  pipeline: {{action_period_ms: 200}}
  components: {{system1: {{model: emulated/arm-policy, slo_ms: 120}}}}
""")


@pytest.fixture(scope="module")
def run(repository: Path) -> object:
    folder = repository / "config" / "profiles"
    profile, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")

    def run(
        planned_for: Factory,
        there: Factory,
        conditions: SimulationConditions = SimulationConditions(),  # noqa: B008
        policy: str = "best",
    ) -> tuple[float, Report]:
        solution = plan_factory(planned_for, profile, catalogue, policy=policy, work=0.02)
        schedule = to_schedule(solution, planned_for.robots, epoch=1)
        return solution.objective, simulate(schedule, there, catalogue, profile, seconds=10, seed=0, conditions=conditions)

    return run


def test_a_plan_within_links_keeps_its_promises_on_them_and_one_that_ignores_them_does_not(run: object) -> None:
    narrow, wide = factory(b=", bandwidth_mbit_s: 10"), factory()
    planned_hz, knowing = run(narrow, narrow)  # type: ignore[operator]
    ignored_hz, blind = run(wide, narrow)  # type: ignore[operator]
    assert knowing.components[SYSTEM1].slo_attainment >= 0.99 and 0.97 * planned_hz <= knowing.goodput <= 1.15 * planned_hz
    assert ignored_hz > planned_hz
    assert blind.components[SYSTEM1].slo_attainment < 0.8 and blind.goodput < 0.7 * knowing.goodput
    _, unlinked = run(wide, wide)  # type: ignore[operator]
    assert unlinked.components[SYSTEM1].slo_attainment == 1.0 and unlinked.goodput >= ignored_hz * 0.97
    assert 0.64 * unlinked.servers[1].rate_hz > 1.5 * 10, "Mbit/s: it asks for more than the link takes"


@pytest.mark.parametrize("far_ms", [15, 30])
def test_plan_and_virtual_time_agree_where_hosts_are_not_equally_far(run: object, far_ms: int) -> None:
    """Both servers are used: whoever is near goes as fast as there, and nobody far goes faster than there."""
    away = f", round_trip_ms: {far_ms}"
    apart, alike = factory(b=away, robots=8), factory(a=away, b=away, robots=8)
    planned_hz, report = run(apart, apart)  # type: ignore[operator]
    assert report.components[SYSTEM1].slo_attainment == 1.0 and report.goodput == pytest.approx(planned_hz, rel=0.02)
    near_s, away_s = report.components[SYSTEM1].p50_s, report.components[SYSTEM1].p99_s - report.components[SYSTEM1].p50_s
    assert near_s < 0.03 and away_s == pytest.approx(far_ms / 1e3) and all(server.rate_hz > 5 for server in report.servers)
    far_hz, far = run(alike, alike)  # type: ignore[operator]
    assert far.goodput == pytest.approx(far_hz, rel=0.02) and planned_hz > 1.03 * far_hz


@pytest.mark.parametrize("far_ms", [5000, 20000])
def test_a_host_that_no_robot_uses_slows_nobody(run: object, far_ms: int) -> None:
    """What robots and servers say about sessions goes as far as the server is, too."""
    alone, beside = factory(robots=4), factory(b=f", round_trip_ms: {far_ms}", robots=4)
    _, near = run(beside, alone)  # type: ignore[operator]
    planned_hz, report = run(beside, beside)  # type: ignore[operator]
    assert report.components[SYSTEM1].slo_attainment == 1.0 and report.counters.timeouts == report.counters.refused == 0
    assert report.goodput == pytest.approx(near.goodput, rel=0.02) and report.goodput >= 0.98 * planned_hz


def test_models_that_share_a_gpu_are_on_its_host(run: object) -> None:
    """Of two robots with a GPU each, one is near."""
    apart = factory(b=", round_trip_ms: 40", robots=2)
    _, report = run(apart, apart, policy="baseline1")  # type: ignore[operator]
    assert {server.server for server in report.servers} == {"server_1_system1", "server_2_system1"}
    system1 = report.components[SYSTEM1]
    assert system1.p50_s < 0.03 and system1.p99_s == pytest.approx(system1.p50_s + 0.04)


TRIPS_MS = {"a": 0, "b": 15, "c": 40}
LARGE = f"""
server_cluster: {{num_servers: 36, gpu_type: EMULATED}}
robot_fleet: [{{task: arm, num_robots: 120}}, {{task: calm, num_robots: 60}}]
hosts:
  a: {{address: 10.0.0.1, gpus: {{EMULATED: 12}}, round_trip_ms: {TRIPS_MS["a"]}}}
  b: {{address: 10.0.0.2, gpus: {{EMULATED: 12}}, round_trip_ms: {TRIPS_MS["b"]}}}
  c: {{address: 10.0.0.3, gpus: {{EMULATED: 12}}, round_trip_ms: {TRIPS_MS["c"]}}}
arm: {{pipeline: {{action_period_ms: 200}}, components: {{system1: {{model: emulated/arm-policy, slo_ms: 60}}}}}}
calm: {{pipeline: {{action_period_ms: 400}}, components: {{system1: {{model: emulated/arm-policy, slo_ms: 120}}}}}}
"""


def test_servers_put_together_anew_keep_what_each_distance_leaves(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """36 of them, on three hosts; links are those that the descriptor declares."""
    folder = repository / "config" / "profiles"
    profile, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    anew = list[float]()

    def packed(problem: PlanningProblem, *given: Any) -> packing.Packed:
        anew.append(len(set(problem.gpus)))
        return packing.packed(problem, *given)

    monkeypatch.setattr(best, "packed", packed)
    declared = parse_factory(LARGE)
    solution = plan_factory(declared, profile, catalogue)
    assert 3 in anew and solution.feasible and solution.objective <= solution.bound * (1 + 1e-6)
    served = Counter[str]()
    for server in solution.servers:
        trip_s = TRIPS_MS[declared.gpu_assignments[server.server].host] / 1e3
        for stream in server.streams:
            served[stream.task] += stream.num_robots
            assert stream.latency_s + trip_s <= stream.slo_s * (1 + 1e-6), server
    assert served == {"arm": 120, "calm": 60}
    report = simulate(to_schedule(solution, declared.robots, epoch=1), declared, catalogue, profile, seconds=10, seed=0)
    assert report.components[SYSTEM1].slo_attainment >= 0.99 and 0.97 * solution.objective <= report.goodput


def test_a_network_that_is_given_replaces_links_too(run: object) -> None:
    narrow = factory(b=", bandwidth_mbit_s: 10")
    _, given = run(factory(), narrow, SimulationConditions(network=NetworkConditions()))  # type: ignore[operator]
    assert given.components[SYSTEM1].slo_attainment == 1.0


def arrives_s(roads: NetworkLinks, server: str, direction: Direction, now_s: float = 0.0, declared_s: float = 0.1) -> float:
    roads.lead("arm_1", "arm")
    (copy,) = roads.delivered((Delivery(declared_s),), "arm_1", server, direction, now_s)
    return now_s + copy.delay_s


def test_a_server_on_a_nearer_host_is_nearer_by_half_each_way() -> None:
    roads = NetworkLinks()
    roads.lay(factory(a=", round_trip_ms: 4", b=", round_trip_ms: 30"))
    assert arrives_s(roads, "server_1", UP) == pytest.approx(0.1 - 0.013) == arrives_s(roads, "server_1", DOWN)
    assert arrives_s(roads, "server_2", UP) == pytest.approx(0.1) and arrives_s(roads, "server_1", UP, declared_s=0.001) == 0.0


def test_messages_go_one_after_the_other_each_way_by_itself() -> None:
    roads = NetworkLinks()
    roads.lay(factory(b=", bandwidth_mbit_s: 10"))  # 64 ms for an observation, 3.2 for an answer
    at = [arrives_s(roads, "server_2", UP) for _ in range(3)]
    assert at == pytest.approx([0.1, 0.164, 0.228])
    assert arrives_s(roads, "server_2", DOWN) == pytest.approx(0.1), "the other way is free"
    assert arrives_s(roads, "server_1", UP) == pytest.approx(0.1 - 0.0336), "nobody is in the way of the other host"
    assert arrives_s(roads, "server_2", UP, now_s=5.0) == pytest.approx(5.1), "they are gone"


def test_words_about_sessions_take_nothing_of_a_link() -> None:
    """What is declared is the way of an observation, to the farthest."""
    roads = NetworkLinks()
    roads.lay(factory(a=", bandwidth_mbit_s: 10, round_trip_ms: 4", b=", bandwidth_mbit_s: 1"))
    roads.lead("arm_1", "arm")
    declared_s = (0.64 + 0.032) / 2  # each way, of `server_2`
    arrive_s = [roads.broadcast((Delivery(declared_s),), "arm_1", server)[0].delay_s for server in ("server_1", "server_2")]
    assert arrive_s == pytest.approx([0.002, 0.0], abs=1e-9)


def test_the_link_of_the_robots_own_host_is_on_the_way_too() -> None:
    """The declared network has none of it: what a message takes there is added as well."""
    roads = NetworkLinks()
    roads.lay(factory(home=", bandwidth_mbit_s: 64"))
    assert [arrives_s(roads, s, UP) for s in ("server_1", "server_2")] == pytest.approx([0.11, 0.12])
    assert arrives_s(roads, "server_1", DOWN) == pytest.approx(0.1005)


def test_where_hosts_are_alike_and_nothing_is_known_of_links_nothing_changes() -> None:
    roads = NetworkLinks()
    roads.lay(factory())
    assert not roads.are_laid
    roads.lay(factory(a=", round_trip_ms: 10", b=", round_trip_ms: 10"))
    assert not roads.are_laid
