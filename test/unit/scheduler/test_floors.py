"""A floor is kept by what robots are expected to do in their own queues, and not by the profile's curves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import Solution, fleet_of, plan_factory, to_schedule
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.simulation import simulate

KEPT = 0.98


@pytest.fixture(scope="module")
def shipped(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def factory(
    floor_hz: float, *, robots: int = 3, period_ms: int = 50, trip_ms: int = 50, model: str = "physical-intelligence/pi0.5"
) -> Factory:
    """Asynchronous robots of one server, whose answers take longer than their actions."""
    return parse_factory(f"""
server_cluster: {{num_servers: 1, gpu_type: NVIDIA H200}}
standby: {{peers: false}}
robot_fleet: [{{task: carry, num_robots: {robots}, network: {{round_trip_ms: {trip_ms}}}}}]
carry:
  pipeline: {{action_period_ms: {period_ms}}}
  execution: {{mode: async}}
  min_action_rate_hz: {floor_hz}
  components: {{system1: {{model: {model}, slo_ms: 400, percentile: 95}}}}
""")


def acted_hz(solution: Solution, declared: Factory, shipped: tuple[Profile, Catalogue]) -> float:
    """By one robot in virtual time."""
    report = simulate(to_schedule(solution, declared.robots, epoch=1), declared, shipped[1], shipped[0], seconds=10, seed=1)
    return report.raw / len(declared.robots)


@pytest.mark.parametrize("policy", ["baseline3", "rosa", "best"])
def test_a_plan_is_feasible_if_its_robots_act_as_often_as_their_floor_says(policy: str, shipped: tuple[Profile, Catalogue]) -> None:
    """Three whose answers outlast their chunks, in batches of one: by the curve 5.94 actions/s each, 5.05 in their own
    queue, and 4.9 in virtual time."""
    declared = factory(5.5)
    solution = plan_factory(declared, *shipped, policy=policy, explained=False)
    keeps = acted_hz(solution, declared, shipped) >= KEPT * 5.5
    assert solution.feasible is keeps is (policy != "baseline3")
    if not keeps:
        (why,) = solution.problems
        assert "'carry' are expected to go at 5.05 actions/s, below their floor of 5.5: they wait longer in their own queue" in why
        assert "lower min_action_rate_hz to 5.04" in why


def test_what_is_said_to_mend_it_does(shipped: tuple[Profile, Catalogue]) -> None:
    assert plan_factory(factory(4.68), *shipped, policy="baseline3", explained=False).feasible


def test_a_floor_that_the_schedule_in_force_does_not_keep_is_broken(shipped: tuple[Profile, Catalogue]) -> None:
    """By the law that it was planned with, whatever the curves say."""
    for floor_hz, keeps in ((5.5, False), (4.0, True)):
        declared = factory(floor_hz)
        solution = plan_factory(declared, *shipped, policy="baseline3", explained=False)
        running = fleet_of(declared, solution, declared.robots, *shipped, epoch=1)
        running.held.clear()
        assert (not broken(running)) is keeps
        assert keeps or "floor of 5.50 actions/s of 'carry'" in broken(running)[0]


@pytest.mark.parametrize(("floor_hz", "keeps"), [(5.5, False), (4.0, True)])
def test_a_newcomer_is_judged_by_the_floors_of_those_beside_it(
    floor_hz: float, keeps: bool, shipped: tuple[Profile, Catalogue]
) -> None:
    """Every SLO is kept; as often as their floor says its robots act only at the lower one."""
    declared = factory(floor_hz)
    solution = plan_factory(declared, *shipped, policy="baseline3", explained=False)
    running = fleet_of(declared, solution, declared.robots, *shipped, epoch=1)
    assert all(stream.keeps_slo for server in solution.servers for stream in server.streams)
    assert running.queues().kept({"server_1"}) == ({"server_1"} if keeps else set())


def test_floors_above_the_curves_are_kept_where_robots_queues_keep_them(shipped: tuple[Profile, Catalogue]) -> None:
    """Five robots of one server: by the curve 3.7 requests/s keep the SLO, in their own queue 18.5 do. A floor that the plan
    without one keeps makes nothing impossible."""
    declared = parse_factory("""
server_cluster: {num_servers: 1, gpu_type: NVIDIA H200}
standby: {peers: false}
robot_fleet: [{task: carry, num_robots: 5}]
carry:
  pipeline: {action_period_ms: 150}
  min_action_rate_hz: 3.6
  components: {system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 80}}
""")
    solution = plan_factory(declared, *shipped, explained=False)
    assert solution.feasible, solution.problems
    assert all(stream.by_own_queue for server in solution.servers for stream in server.streams)
    report = simulate(to_schedule(solution, declared.robots, epoch=1), declared, shipped[1], seconds=10, seed=1)
    assert report.raw / 5 >= KEPT * 3.6 and report.components["system1"].slo_attainment >= 0.99
    task = declared.tasks["carry"].model_copy(update={"min_action_rate_hz": 4.5})
    higher = declared.model_copy(update={"tasks": {"carry": task}})
    above = plan_factory(higher, *shipped, explained=False)
    assert not above.feasible and "by the curves the obligations and floors need at least" in above.problems[1]


def test_whose_first_request_is_all_there_is_of_a_minute_is_told_so(shipped: tuple[Profile, Catalogue]) -> None:
    """A robot of an action in a hundred seconds asks first when everybody starts: where that one was late, none of its requests was
    in time."""
    declared = parse_factory("""
server_cluster: {num_servers: 1, gpu_type: NVIDIA H200}
standby: {peers: false}
robot_fleet: [{task: watch, num_robots: 1}, {task: carry, num_robots: 12}]
watch:
  pipeline: {action_period_ms: 100}
  value: 0.01
  components: {system1: {model: physical-intelligence/pi0.5, slo_ms: 400, percentile: 95}}
carry:
  pipeline: {action_period_ms: 100}
  components: {system1: {model: physical-intelligence/pi0.5, slo_ms: 400, percentile: 95}}
""")
    notes = [note for note in plan_factory(declared, *shipped, explained=False).notes if "others' actions are worth more" in note]
    assert notes and "what each asks first comes while all start, and may be late" in notes[0]
