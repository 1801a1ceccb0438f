"""Servers have rows for so many pipelined sessions, however slowly these go: the bound, standbys and newcomers count them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, Solution, plan_factory
from ros2_rfm_serving.scheduler.degraded_mode import bare, covered
from ros2_rfm_serving.scheduler.failover import adapted
from ros2_rfm_serving.scheduler.plan_service import fleet_of, refit_by
from ros2_rfm_serving.types import Schedule


@pytest.fixture(scope="module")
def known(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def fleet(robots: int, servers: int, standby: str = "{}") -> Factory:
    """Each keeps two of the 15 rows that a server has for them, and asks once per second."""
    return parse_factory(f"""
server_cluster: {{num_servers: {servers}, gpu_type: NVIDIA H200, batching: continuous}}
standby: {standby}
robot_fleet: [{{task: carry, num_robots: {robots}}}]
carry:
  pipeline: {{action_period_ms: 1000, system2_to_system1_call_ratio: 0}}
  execution: {{mode: async, pipelining: {{pp_perception: 1, pp_generation: 1}}}}
  components: {{system1: {{model: physical-intelligence/pi0.5, slo_ms: 3000}}}}
""")


def planned(factory: Factory, known: tuple[Profile, Catalogue]) -> tuple[Solution, ActiveFleet]:
    solution = plan_factory(factory, *known, explained=False)
    assert solution.feasible, solution.problems
    return solution, fleet_of(factory, solution, factory.robots, *known, epoch=1)


def test_no_schedule_has_more_sessions_than_rows(known: tuple[Profile, Catalogue]) -> None:
    """It said that none was found, and that the bound did not rule one out."""
    plan = plan_factory(fleet(8, 1), *known, explained=False)
    assert plan.bound == -math.inf and plan.problems[0].startswith("no schedule can")


def test_a_server_without_rows_for_both_stands_by_for_nobody(known: tuple[Profile, Catalogue]) -> None:
    """Two with six sessions each carry both loads, and each was the other one's standby: it would have refused five of them."""
    solution, in_force = planned(fleet(12, 2), known)
    assert not solution.standby_of and any("no standby covers the loss of server_1, server_2" in note for note in solution.notes)
    routes = tuple(
        replace(route, standby="server_2" if route.server == "server_1" else "server_1") for route in in_force.schedule.routes
    )
    wrong = ActiveFleet(in_force.problem, in_force.curves, replace(in_force.schedule, routes=routes), in_force.robots)
    assert bare(wrong) == ["server_1", "server_2"]

    def rebuild(schedule: Schedule) -> ActiveFleet:
        return refit_by(*known)(fleet(12, 2), schedule, wrong.robots, wrong.problem.seen)

    changed, _ = adapted(wrong, (), (), rebuild, peers=True)
    assert not any(route.standby for route in changed.schedule.routes)
    assert not any(route.standby for route in covered(wrong, 2, rebuild, peers=True).schedule.routes)


def test_few_sessions_stand_by_for_each_other(known: tuple[Profile, Catalogue]) -> None:
    solution, _ = planned(fleet(6, 2), known)
    assert solution.standby_of == {"server_1": "server_2", "server_2": "server_1"}


def test_an_idle_server_has_rows_for_those_of_one(known: tuple[Profile, Catalogue]) -> None:
    solution, _ = planned(fleet(7, 2, "{num_servers: 1}"), known)
    assert len(solution.standby_of) == 1


def test_a_newcomer_has_the_rows_of_its_session(known: tuple[Profile, Catalogue]) -> None:
    """The seventh on one of two servers; the eighth has none there, and is told so without a look at any queue."""
    factory = fleet(13, 2)
    _, in_force = planned(factory, known)
    last = in_force.admit(RobotEntry(name="guest_1", task="carry", index=13))
    with pytest.raises(ScheduleError, match="no server with"):
        last.admit(RobotEntry(name="guest_2", task="carry", index=14), adjusting=False)
