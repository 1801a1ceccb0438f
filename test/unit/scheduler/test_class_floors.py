"""A floor that a class has as a whole: the fewer its robots, the more is owed to each of them."""

from __future__ import annotations

import logging

import pytest

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Factory, parse_factory
from ros2_rfm_serving.scheduler import PlanJob, PlanResult, RobotRegistry, ScheduleManager, plan
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.simulation.scheduler import NoScheduleLog
from ros2_rfm_serving.types import Schedule
from test.unit.scheduler.test_adaptation import PROFILE

FLOOR_HZ = 6.0


def factory() -> Factory:
    """Actions of `sort` are worth ten times those of `fold`, which has its floor and no more."""
    return parse_factory(f"""
server_cluster: {{num_servers: 2, gpu_type: GPU}}
robot_fleet: [{{task: fold, num_robots: 6}}, {{task: sort, num_robots: 24}}]
fold:
  min_action_rate_hz: {{per_class: {FLOOR_HZ}}}
  pipeline: {{action_period_ms: 100}}
  components: {{system1: {{model: policy, slo_ms: 60}}}}
sort:
  value: 10
  pipeline: {{action_period_ms: 100}}
  components: {{system1: {{model: policy, slo_ms: 60}}}}
""")


def of_class(schedule: Schedule, task: str) -> float:
    return sum(route.predicted_rate_hz for route in schedule.routes if route.task == task)


def made(order: PlanJob) -> PlanResult | RfmError:
    try:
        return plan(order, PROFILE, None, work=0.05, explained=False)
    except RfmError as error:
        return error


@pytest.fixture
def fleet() -> ScheduleManager:
    declared = factory()
    first = plan(PlanJob(factory=declared, robots=tuple(declared.robots), policy="best"), PROFILE, None)
    return ScheduleManager(first, RobotRegistry(1), lambda schedule, name: None, logging.getLogger(), NoScheduleLog())


def test_who_stays_takes_over_what_is_owed_to_the_class(fleet: ScheduleManager) -> None:
    assert of_class(fleet.fleet.schedule, "fold") == pytest.approx(FLOOR_HZ, rel=0.05), "others are worth more"
    for robot in ("fold_1", "fold_2", "fold_3"):
        fleet.release(robot)
    assert of_class(fleet.fleet.schedule, "fold") < 0.6 * FLOOR_HZ and any("'fold'" in one for one in broken(fleet.fleet))
    assert fleet.wanted is not None and fleet.wanted.needed
    while order := fleet.wanted:
        fleet.planned(order, made(order))
    assert of_class(fleet.fleet.schedule, "fold") >= FLOOR_HZ * 0.999 and not broken(fleet.fleet)


def test_a_needed_plan_stays_needed_whoever_comes_and_goes_meanwhile(fleet: ScheduleManager) -> None:
    fleet.release("fold_1")
    for robot in ("sort_1", "sort_2"):
        fleet.release(robot)
        assert fleet.wanted is not None and fleet.wanted.needed
    while order := fleet.wanted:
        fleet.planned(order, made(order))
    assert of_class(fleet.fleet.schedule, "fold") >= FLOOR_HZ * 0.999


def test_newcomers_wait_for_a_plan_that_a_promise_needs(fleet: ScheduleManager) -> None:
    """It was begun anew for each robot that came and went, and where these come more often than a plan takes it was never made."""
    fleet.release("fold_1")
    orders = []
    for number in range(6):
        assert fleet.wanted is not None and fleet.wanted.needed
        fleet.release(f"sort_{number + 1}")
        orders.append(fleet.admit(f"late_{number}", "sort"))
    assert orders[-1].answer is None and orders[0].answer is not None, "they come as long as the plan is not overtaken often"
    order = fleet.wanted
    assert order is not None
    fleet.planned(order, made(order))
    assert of_class(fleet.fleet.schedule, "fold") >= FLOOR_HZ * 0.999 and not broken(fleet.fleet)
    while order := fleet.wanted:
        fleet.planned(order, made(order))
    assert all(order.answer is not None for order in orders)


def test_a_floor_that_nobody_could_keep_is_said_and_not_planned_for_ever(fleet: ScheduleManager) -> None:
    """Two robots cannot act as often as six were to."""
    for i in range(1, 6):
        fleet.release(f"fold_{i}")
    num_plans = 0
    while order := fleet.wanted:
        fleet.planned(order, made(order))
        num_plans += 1
        assert num_plans < 20
    rate_hz = of_class(fleet.fleet.schedule, "fold")
    assert rate_hz >= FLOOR_HZ or any("'fold'" in one for one in broken(fleet.fleet))
