"""From one schedule to the next: robots of a former scheduler that need another plan, and those for whom there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.fleet_in_force import FleetInForce
from ros2_rfm_serving.ros.planner import Planner
from ros2_rfm_serving.scheduler import Roster, Word
from ros2_rfm_serving.types import NOT_ADMITTED, Admission, Schedule
from test.unit.scheduler.kept_plans import KeptPlans

ME, FORMER = 7, 5
FACTORY = """
server_cluster: {num_servers: 2, gpu_type: EMULATED}
robot_fleet: [{task: arm, num_robots: 2}]
arm:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
wrist:
  pipeline: {action_period_ms: 500}
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
sprint:
  pipeline: {action_period_ms: 10}
  min_action_rate_hz: 90
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
"""


class Running:
    """A fleet and what it has published."""

    def __init__(self, folder: Path, profiles: Path) -> None:
        self.file = folder / "factory.yaml"
        self.file.write_text(FACTORY)
        self.schedules: list[Schedule] = []
        self.roster, self.planner = Roster(ME), Planner(profiles, "best")
        self.kept = KeptPlans(profiles)
        log = logging.getLogger("test")
        self.fleet = FleetInForce(
            self.file, self.planner, self.roster, lambda schedule, name: self.schedules.append(schedule), log, self.kept.book
        )

    def tasks(self) -> dict[str, str]:
        """Of the newest schedule."""
        return {route.robot: route.task for route in self.schedules[-1].routes}

    def says(self, robot: str, task: str) -> None:
        """A robot that another scheduler admitted."""
        self.roster.hear(Word(robot=robot, follows=FORMER, admission=Admission(scheduler=FORMER, task=task)))

    def wait(self, until: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 60.0
        while not until():
            assert time.monotonic() < end_s
            self.fleet.settle()
            self.fleet.take_background()
            time.sleep(0.01)


@pytest.fixture
def running(tmp_path: Path, repository: Path) -> Running:
    return Running(tmp_path, repository / "config" / "profiles")


def test_robots_that_do_not_fit_the_placement_are_planned_for_in_the_background(running: Running) -> None:
    running.says("guest", "wrist")
    running.says("other", "arm")
    running.fleet.settle()
    assert running.tasks() == {"arm_1": "arm", "arm_2": "arm", "other": "arm"} and list(running.fleet.no_room) == ["guest"]
    running.wait(lambda: not running.fleet.no_room)
    assert running.tasks() == {"arm_1": "arm", "arm_2": "arm", "other": "arm", "guest": "wrist"}


def test_a_robot_that_no_plan_can_serve_waits_and_is_tried_once_per_schedule(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.says("guest", "sprint")
    running.wait(lambda: "could not be planned anew" in caplog.text)
    for _ in range(10):
        running.fleet.settle()
    assert not running.planner.is_busy and "sprint" in running.fleet.no_room["guest"] and len(running.schedules) == 1
    running.fleet.admit("late", "arm")
    running.fleet.settle()
    assert running.planner.is_busy, "there may be room in another schedule"
    running.fleet.release("guest")
    assert running.roster.released == ("guest",) and running.fleet.epoch == running.schedules[-1].epoch == 3


def test_who_was_admitted_stays_when_another_descriptor_comes(running: Running, tmp_path: Path) -> None:
    running.fleet.admit("late", "arm")
    running.fleet.admit("arm_3", "arm")
    larger = tmp_path / "larger.yaml"
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 3"))
    running.fleet.replan(larger)
    assert set(running.tasks()) == {"arm_1", "arm_2", "arm_3", "late"} and list(running.roster.tasks) == ["late"]
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 1"))
    running.fleet.replan(None)
    assert set(running.tasks()) == {"arm_1", "arm_2", "arm_3", "late"}, "without another descriptor those of now stay"
    assert set(running.roster.tasks) == {"late", "arm_2", "arm_3"}, "with a lease, where they are no longer declared"


def test_the_descriptor_in_use_is_the_one_that_came_last(running: Running, tmp_path: Path) -> None:
    """Read again, it declares whom it declared: none of them gets a lease, which would end when it is switched off."""
    larger = tmp_path / "larger.yaml"
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 3"))
    running.fleet.replan(larger)
    running.fleet.replan(None)
    assert set(running.fleet.declared) == {"arm_1", "arm_2", "arm_3"} and not running.roster.tasks
    larger.write_text("broken: [")
    with pytest.raises(ConfigurationError):
        running.fleet.replan(running.file.with_name("missing.yaml"))
    with pytest.raises(ConfigurationError, match="larger"):
        running.fleet.replan(None)


def test_a_robot_that_comes_back_for_a_task_that_has_gone_is_nobody(running: Running, tmp_path: Path) -> None:
    running.fleet.admit("late", "wrist")
    while not running.roster.elapse(2.0):
        pass
    running.fleet.settle()
    (tmp_path / "other.yaml").write_text(FACTORY.replace("wrist:", "lift:"))
    running.fleet.replan(tmp_path / "other.yaml")
    running.roster.hear(Word(robot="late", follows=ME, admission=NOT_ADMITTED))
    running.fleet.settle()
    assert not running.roster.tasks and not running.fleet.no_room and not running.planner.is_busy


def test_what_is_refused_changes_nothing(running: Running) -> None:
    for name, task in (("late", "leg"), ("arm_1", "wrist")):
        with pytest.raises(ConfigurationError, match=r"no task 'leg'; there are: arm|'arm_1' is declared for 'arm'"):
            running.fleet.admit(name, task)
    with pytest.raises(ConfigurationError, match="'late' is not in the factory"):
        running.fleet.release("late")
    assert len(running.schedules) == 1 and not running.roster.tasks
