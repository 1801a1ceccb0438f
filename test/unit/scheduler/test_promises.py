"""Promises of a schedule in force, by the law that plans are made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.factory import Catalogue, RobotEntry, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.scheduler import fleet_of, plan_factory
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates, NetworkDelay
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.scheduler.prediction import closed_queue
from ros2_rfm_serving.scheduler.promises import broken, is_judged
from ros2_rfm_serving.simulation.profiled_factories import profiled_factory


@pytest.fixture(scope="module")
def shipped(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def planned(seed: int, network: bool, shipped: tuple[Profile, Catalogue]) -> ActiveFleet | None:
    factory = profiled_factory(seed, network=network)
    solution = plan_factory(factory, *shipped, work=0.1, explained=False)
    return fleet_of(factory, solution, factory.robots, *shipped, epoch=1) if solution.feasible else None


@pytest.mark.patient
@given(seed=st.integers(0, 10_000), network=st.booleans(), data=st.data())
@example(seed=5, network=False, data=None)
@settings(max_examples=6, deadline=None)
def test_nobody_who_leaves_breaks_a_promise(
    seed: int, network: bool, data: st.DataObject | None, shipped: tuple[Profile, Catalogue]
) -> None:
    """A queue is run from drawn starts, and with a robot less from others: that one run comes out worse breaks nothing."""
    fleet = planned(seed, network, shipped)
    if fleet is None:
        return
    assert not broken(fleet)
    names = [robot.name for robot in fleet.robots]
    order = data.draw(st.permutations(names)) if data else names
    for name in order[: len(names) // 2]:
        fleet = fleet.release(name)
        assert not broken(fleet), f"without {name}"


def test_a_promise_that_no_queue_keeps_is_broken(shipped: tuple[Profile, Catalogue]) -> None:
    """What was remembered is of the same robots at the same rates: others' are looked at."""
    fleet = planned(1, False, shipped)
    assert fleet and not broken(fleet)
    first = next(route for route in fleet.schedule.routes if route.component == "system1")
    mine = [route.server for route in fleet.schedule.routes if route.component == "system1" and route.task == first.task]
    routes = tuple(replace(r, server=first.server) if r.server in mine else r for r in fleet.schedule.routes)
    crowded = ActiveFleet(fleet.problem, fleet.curves, replace(fleet.schedule, routes=routes), fleet.robots)
    crowded.held.update(fleet.held)
    assert any(text.startswith(f"{first.server}: ") for text in broken(crowded))


def test_what_was_looked_at_once_costs_no_other_queue(shipped: tuple[Profile, Catalogue], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = planned(4, True, shipped)
    assert fleet
    closed_queue.runs_of.cache_clear()
    monkeypatch.setattr(closed_queue, "QueueRun", None)
    assert not broken(fleet) and not broken(fleet.release(fleet.robots[0].name))
    fleet.held.clear()
    with pytest.raises(TypeError):
        broken(fleet)


@pytest.mark.parametrize("seed", [3, 10])
def test_figures_of_one_server_put_no_other_in_doubt(seed: int, shipped: tuple[Profile, Catalogue]) -> None:
    """In a large factory all servers were looked at anew, one each half second, and no plan was held against the schedule in force
    for two minutes."""
    fleet, factory = planned(seed, True, shipped), profiled_factory(seed, network=True)
    assert fleet and len(fleet.held) > 2
    mine = next(route.server for route in fleet.schedule.routes if route.component == "system1")
    slower, _ = seeing(fleet, factory, FactoryEstimates(paces={mine: 1.04}), (), (), refit_by(*shipped))
    assert slower.held.keys() == fleet.held.keys() - {mine}
    broken(slower, 1)
    assert is_judged(slower)


@pytest.mark.parametrize("seed", [3, 10])
def test_servers_that_are_alike_are_judged_by_one_look(seed: int, shipped: tuple[Profile, Catalogue]) -> None:
    """Where the way of all robots is another one."""
    fleet, factory = planned(seed, True, shipped), profiled_factory(seed, network=True)
    assert fleet
    farther = FactoryEstimates(travels={"task_0": NetworkDelay(mean_s=0.06, tail_s=0.12)})
    changed, _ = seeing(fleet, factory, farther, (), (), refit_by(*shipped))
    asked = [server for server, host in changed.hosts.items() if host.sessions and changed.queues().judges(server)]
    crowds = set(changed.queues().crowds(asked).values())
    assert not changed.held.keys() & set(asked) and len(crowds) < len(asked)
    for _ in crowds:
        said = broken(changed, 1)
    again, _ = seeing(fleet, factory, farther, (), (), refit_by(*shipped))
    assert is_judged(changed) and said == broken(again)


def test_whose_robots_have_all_left_is_known_no_more_when_figures_change(shipped: tuple[Profile, Catalogue]) -> None:
    """What was remembered of them was asked for a class that there is none of: newcomers raised `KeyError`."""
    factory = parse_factory("""
server_cluster: {num_servers: 2, gpu_type: NVIDIA H200}
robot_fleet: [{task: pick, num_robots: 3, network: {round_trip_ms: 5, jitter_ms: 2}}, {task: place, num_robots: 2}]
pick:
  min_action_rate_hz: {per_class: 3.0}
  pipeline: {action_period_ms: 300}
  components: {system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}
place:
  pipeline: {action_period_ms: 300}
  components: {system1: {model: nvidia/GR00T-N1.6-3B, slo_ms: 200}}
""")
    solution = plan_factory(factory, *shipped, work=0.1, explained=False)
    fleet = fleet_of(factory, solution, factory.robots, *shipped, epoch=1)
    assert fleet.held
    for robot in factory.robots[3:]:
        fleet = fleet.release(robot.name)
    farther = FactoryEstimates(travels={"pick": NetworkDelay(mean_s=0.01, tail_s=0.02)})
    changed, _ = seeing(fleet, factory, farther, (), (), refit_by(*shipped))
    assert all(task == "pick" for seats in changed.held.values() for task, *_ in seats)
    assert changed.admit(RobotEntry(name="late", task="pick", index=9)).task_of("late") == "pick"
