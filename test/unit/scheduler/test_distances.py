"""Hosts that are not equally far from the robots: what the network takes of an SLO counts for each server by its own host."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import Any

import pytest

from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.factory.fleet import NetworkEntry
from ros2_rfm_serving.scheduler import PlanJob, plan, plan_factory, planning
from ros2_rfm_serving.scheduler.admission_query import AdmissionQuery, rooms
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates, NetworkDelay
from ros2_rfm_serving.scheduler.estimation.calibration import CorrectionFactors
from ros2_rfm_serving.scheduler.estimation.status_samples import ComponentTotals, RobotStatusSample
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.policies import schedules
from ros2_rfm_serving.scheduler.solution import Solution
from test.unit.scheduler.test_adaptation import PROFILE
from test.unit.scheduler.test_apart import factory

SLOS_S = {"system1": 0.060, "monitor": 0.050}
"""Of `factory`."""
REFIT = refit_by(PROFILE, None)


def at(trips_ms: dict[str, float], gpus: dict[str, int], robots: int = 6, own_ms: float = 0.0) -> Factory:
    """own_ms: of the robots' network, on top of what it is to each host."""
    declared = factory(gpus, robots)
    hosts = {name: host.model_copy(update={"round_trip_ms": trips_ms.get(name, 0.0)}) for name, host in declared.hosts.items()}
    (entry,) = declared.robot_fleet
    fleet = (entry.model_copy(update={"network": NetworkEntry(round_trip_ms=own_ms)}),)
    return declared.model_copy(update={"hosts": hosts, "robot_fleet": fleet}).with_round_trips()


def host_of(declared: Factory, server: str) -> str:
    return declared.gpu_assignments[server].host


def test_a_host_that_is_too_far_serves_nobody_and_is_in_nobodys_way() -> None:
    """Reckoned with the longest round trip, no SLO was left."""
    declared = at({"b": 45.0}, {"a": 2, "b": 2})
    solution = plan_factory(declared, PROFILE, None)
    assert solution.feasible and {host_of(declared, server.server) for server in solution.servers} == {"a"}
    assert solution.objective <= solution.bound * (1 + 1e-6)
    everywhere = plan_factory(at({"a": 45.0, "b": 45.0}, {"a": 2, "b": 2}), PROFILE, None)
    assert not everywhere.feasible and "network (45 ms)" in everywhere.problems[0]


def test_what_is_promised_is_counted_by_the_way_to_each_server() -> None:
    """The judges of robots are 20 ms farther than their actions' servers, and the plan says so."""
    declared = at({"b": 20.0}, {"a": 2, "b": 2}, own_ms=2.0)
    solution = plan_factory(declared, PROFILE, None)
    network_ms = {(host_of(declared, x.server), s.component): 1e3 * s.network_s for x in solution.servers for s in x.streams}
    assert network_ms == {("a", "system1"): pytest.approx(2.0), ("b", "monitor"): pytest.approx(22.0)}
    near = at({}, {"a": 2, "b": 2}, own_ms=2.0)
    quicker = plan_factory(near, PROFILE, None)
    own_s = {s.component: s.latency_s for x in solution.servers for s in x.streams}
    assert own_s["monitor"] < SLOS_S["monitor"] - 0.022 and quicker.objective >= solution.objective, "a server's latency is its own"


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_promised_what_its_servers_distance_does_not_leave(seed: int) -> None:
    """Of random factories, as planned and after a loss: latency at the load that robots may send, and the way to that host."""
    rng = random.Random(seed)
    trips_ms, gpus = {name: rng.uniform(0.0, 35.0) for name in "abc"}, {name: rng.randint(1, 2) for name in "abc"}
    own_ms = rng.uniform(0.0, 8.0)
    declared = at(trips_ms, gpus, rng.randint(1, 8), own_ms)
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best")
    solution = plan_factory(declared, PROFILE, None, work=0.0)
    if not solution.feasible:
        assert "leaves" in solution.problems[0] or "fits" in solution.problems[0], solution.problems
        return
    for server in solution.servers:
        trip_s = (own_ms + trips_ms[host_of(declared, server.server)]) / 1e3
        for stream in server.streams:
            assert stream.latency_s + trip_s <= SLOS_S[stream.component] * (1 + 1e-6), (server.server, stream)
    fleet = plan(order, PROFILE, None, work=0.0).fleet
    gone = rng.choice(sorted(declared.gpu_types))
    after, _ = seeing(fleet, declared, replace(AS_DECLARED, lost=(gone,)), (gone,), (), REFIT)
    for name, host in [*fleet.hosts.items(), *after.hosts.items()]:
        placed = host.placement
        trip_s = (own_ms + trips_ms[host_of(declared, name)]) / 1e3
        tail_s = PROFILE.latency_s(placed.model, "GPU", placed.batching, placed.batch_size, host.load_hz, "p99")
        assert all(tail_s + trip_s <= slo.promised_s * (1 + 1e-6) for slo in host.slos), (name, host.load_hz)


def test_what_was_measured_is_the_way_to_the_nearest_host() -> None:
    """Robots that were served by a far host say how far it is: the plan knows that already, and counts it once."""
    declared = at({"b": 20.0}, {"a": 2, "b": 2}, own_ms=2.0)
    for server, trip_s in (("server_1", 0.015), ("server_2", 0.035)):
        factors, answers = CorrectionFactors(), 0
        factors.declare(declared)
        for i in range(400):
            answers += 10
            asked = {"system1": ComponentTotals(answers=answers, round_trips_s=answers * (0.030 + trip_s))}
            word = RobotStatusSample(robot=f"carry_{i % 4}", task="carry", server=server, streams=True, asked=asked)
            factors.hear(word, 0.030, 0.030, 1.0 * i)
        assert factors.look(400.0) and factors.travels(declared)["carry"].mean_s == pytest.approx(0.015, abs=1e-4), host_of(
            declared, server
        )
    seen = FactoryEstimates(travels={"carry": NetworkDelay(mean_s=0.005, tail_s=0.005)})
    problem = problem_of(declared, {"carry": 6}, PROFILE, None, seen)
    assert problem.classes[0].network.mean_s == pytest.approx(0.005)
    assert set(curves_of(problem, PROFILE).configs) >= {("policy", "GPU"), ("policy", "GPU away by 20 ms")}
    farthest = problem_of(declared, {"carry": 6}, PROFILE, None, seen, by_host=False)
    assert farthest.classes[0].network.mean_s == pytest.approx(0.025)


def test_who_is_not_served_is_told_why_by_the_hosts_that_are_near_enough() -> None:
    """One host is too far for any SLO; of the near one there is too little, which more GPUs mend."""
    solution = plan_factory(at({"b": 55.0}, {"a": 1, "b": 1}, 40), PROFILE, None, work=0.0)
    assert not solution.feasible and not any("network" in text for text in solution.problems)
    assert any(text.startswith("feasible with 1 more GPU") for text in solution.problems)


def mixed() -> Factory:
    """Small observations are nearer to b, whose link is narrow, and large ones to a."""
    declared = at({"a": 10.0}, {"a": 2, "b": 2})
    (carry,) = declared.robot_fleet
    tasks = dict.fromkeys(("small", "large"), declared.tasks["carry"])
    fleet = tuple(
        carry.model_copy(update={"task": name, "num_robots": 3, "network": NetworkEntry(observation_kb=kb)})
        for name, kb in (("small", 0.0), ("large", 25.0))
    )
    hosts = {**declared.hosts, "b": declared.hosts["b"].model_copy(update={"bandwidth_mbit_s": 10.0})}
    return declared.model_copy(update={"hosts": hosts, "robot_fleet": fleet, "tasks": tasks}).with_round_trips()


TRIPS_MS = {("small", "a"): 10.0, ("small", "b"): 0.0, ("large", "a"): 10.0, ("large", "b"): 20.0}


def test_no_observation_is_nearer_than_it_is_for_its_own_size() -> None:
    declared = mixed()
    seen = FactoryEstimates(
        travels={"small": NetworkDelay(mean_s=0.013, tail_s=0.013), "large": NetworkDelay(mean_s=0.012, tail_s=0.012)}
    )
    for more_ms, as_seen in (({"small": 0.0, "large": 0.0}, AS_DECLARED), ({"small": 3.0, "large": 2.0}, seen)):
        apart, alike = (problem_of(declared, {"small": 3, "large": 3}, PROFILE, None, as_seen, by_host=by) for by in (True, False))
        for near, far in zip(apart.classes, alike.classes, strict=True):
            for server in declared.gpu_types:
                trip_s = (TRIPS_MS[near.name, host_of(declared, server)] + more_ms[near.name]) / 1e3
                assert near.network.mean_s + apart.seen.away_s.get(server, 0.0) >= trip_s - 1e-9, (near.name, server)
                assert far.network.mean_s >= trip_s - 1e-9, (far.name, server)
        small = apart.classes[0]
        assert small.least_cycle_s == pytest.approx(small.execution_s + more_ms["small"] / 1e3), "links have what b lets them send"


def test_what_is_measured_is_the_same_wherever_a_robot_is_served() -> None:
    declared = mixed()
    for (task, host), trip_ms in TRIPS_MS.items():
        factors, answers = CorrectionFactors(), 0
        factors.declare(declared)
        server = next(server for server in declared.gpu_types if host_of(declared, server) == host)
        for i in range(400):
            answers += 10
            asked = {"system1": ComponentTotals(answers=answers, round_trips_s=answers * (0.030 + (trip_ms + 13.0) / 1e3))}
            word = RobotStatusSample(robot=f"{task}_{i % 4}", task=task, server=server, streams=True, asked=asked)
            factors.hear(word, 0.030, 0.030, 1.0 * i)
        assert factors.look(400.0) and factors.travels(declared)[task].mean_s == pytest.approx(0.023, abs=1e-4), (
            task,
            host,
        )


def test_another_process_finds_the_same_room() -> None:
    """Distances go along with curves."""
    declared = at({"b": 20.0}, {"a": 2, "b": 2}, own_ms=2.0)
    order = PlanJob(factory=declared, robots=tuple(declared.robots), policy="best")
    fleet = plan(order, PROFILE, None, work=0.0).fleet
    enquiry = AdmissionQuery(fleet, tuple(RobotEntry(name=f"late_{i}", task="carry", index=9 + i) for i in range(3)))
    found = rooms(enquiry)
    assert rooms(pickle.loads(pickle.dumps(enquiry))) == found and {fleet.curves.away_s(c) for c in fleet.curves.all} == {0.0, 0.02}


def test_hosts_that_are_equally_far_change_nothing() -> None:
    declared = at({"a": 7.0, "b": 7.0}, {"a": 2, "b": 2})
    assert declared.away_s == {} and declared.at_nearest() == declared.without_away() == declared
    ways = [problem_of(declared, {"carry": 6}, PROFILE, None, by_host=by_host) for by_host in (True, False)]
    assert ways[0] == ways[1] and set(ways[0].servers.values()) == {"GPU"}


@pytest.mark.parametrize(("far_ms", "robots", "plans"), [(20.0, 8, 1), (0.5, 2, 2)])
def test_a_plan_that_reckons_with_the_longest_way_is_made_only_where_it_may_be_the_better_one(
    far_ms: float, robots: int, plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[str]()

    def run(policy: str, *given: Any) -> Solution:
        made.append(policy)
        return schedules.run(policy, *given)

    monkeypatch.setattr(planning, "run", run)
    assert plan_factory(at({"b": far_ms}, {"a": 2, "b": 2}, robots), PROFILE, None, explained=False).feasible
    assert len(made) == plans
