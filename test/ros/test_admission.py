"""Who is in the factory: admitted again, silent, and after the scheduler was killed; the robot of these tests is a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.parameter import Parameter
from rfm_serving import msg, srv

from ros2_rfm_serving.ros.attendance import Attendance
from ros2_rfm_serving.ros.node.said import Hearer
from ros2_rfm_serving.ros.robots_node import RobotsNode
from ros2_rfm_serving.ros.standing_admission import StandingAdmission
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.scheduler import RobotRegistry
from ros2_rfm_serving.scheduler.unregistered_robots import LEAST_PLACES, UnregisteredRobots
from test.ros.test_scheduler_node import FACTORY, Rig

TASKS = """
wrist:
  pipeline: {action_period_ms: 500}
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 30}
sprint:
  pipeline: {action_period_ms: 10}
  min_action_rate_hz: 90
  components:
    system1: {model: emulated/arm-policy, prompt: run, slo_ms: 30}
"""


class GuestRig(Rig):
    """With a robot that the descriptor does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.guest_status: Any = None
        self.peer.create_subscription(msg.RobotStatus, "/guest/rfm/status", self._on_guest, qos.ROBOT_STATUS)
        self.guest: RobotsNode | None = None

    def come(self) -> None:
        self.guest = RobotsNode()
        self.nodes.append(self.guest)
        self._executor.add_node(self.guest)

    def go(self) -> None:
        """As one that is killed: it says nothing more."""
        assert self.guest
        self._executor.remove_node(self.guest)
        self.nodes.remove(self.guest)
        self.turn(0.1)  # what its timers have set off already
        self.guest.destroy_node()

    def guest_is_served(self, scheduler: int) -> bool:
        status = self.guest_status
        return bool(status) and (status.scheduler, status.admitted_by, status.admitted_task) == (scheduler, scheduler, "arm")

    def robots(self) -> set[str]:
        return {route.robot for route in self.schedules[-1].routes}

    def _on_guest(self, message: Any) -> None:
        self.guest_status = message


@pytest.fixture
def rig(ros_domain: int, tmp_path: Path) -> Iterator[GuestRig]:
    (tmp_path / "factory.yaml").write_text(FACTORY + TASKS)
    parameters = [
        f"scheduler:factory_file:={tmp_path / 'factory.yaml'}",
        "scheduler:look_around_s:=0.0",
        "model_server:server:=server_1",
        "robot:robot:=arm_1",
        "robots:robots:=[guest]",
    ]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    made = GuestRig()
    try:
        made.wait(lambda: made.schedules)
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def test_a_restarted_scheduler_serves_the_robots_that_its_predecessor_admitted(rig: GuestRig) -> None:
    """Nobody does anything but to start it; and who was released stays so. For a robot that says nothing somebody asks again."""
    rig.come()
    before = rig.schedules[-1].scheduler
    assert rig.call(srv.AdmitRobot, robot="guest", task="arm").success
    for name in ("asks", "left"):
        StandingAdmission(rig.peer, "", name, "arm")
        assert rig.call(srv.AdmitRobot, robot=name, task="arm").success
    rig.wait(lambda: rig.robots() == {"arm_1", "arm_2", "guest", "asks", "left"})
    assert rig.call(srv.ReleaseRobot, robot="left").success
    rig.wait(lambda: rig.guest_is_served(before))

    rig.restart_scheduler()
    rig.wait(lambda: rig.schedules[-1].scheduler != before and rig.robots() == {"arm_1", "arm_2", "guest"})
    rig.wait(lambda: "asks" in rig.robots())
    rig.turn(2.0)
    assert "left" not in rig.robots(), "it has waited as long, and does not ask"
    after = rig.schedules[-1].scheduler
    rig.wait(lambda: rig.guest_is_served(after))
    assert rig.values("scheduler: robots")["taken over from other schedulers"] == "1"

    assert rig.call(srv.ReleaseRobot, robot="guest").success
    rig.wait(lambda: not rig.guest_status.admitted_task)


def test_a_silent_robot_gives_its_place_back_and_has_it_again_when_it_returns(rig: GuestRig) -> None:
    (result,) = rig.scheduler.set_parameters([Parameter("lease_s", value=5)])
    assert result.successful, result.reason
    rig.come()
    for name in ("guest", "stays"):
        assert rig.call(srv.AdmitRobot, robot=name, task="arm").success
    rig.wait(lambda: rig.guest_status)
    rig.go()
    while "guest" in rig.robots():  # arm_2 is silent as well, and declared
        assert rig.call(srv.AdmitRobot, robot="stays", task="arm").success, "by which its lease begins anew"
        rig.turn(0.5)
    assert rig.robots() == {"arm_1", "arm_2", "stays"}
    rig.wait(lambda: rig.diagnosis("scheduler: robots").message == "released, not heard for 5 s: guest")
    assert rig.diagnosis("scheduler: robots").level == DiagnosticStatus.WARN
    rig.come()
    rig.wait(lambda: "guest" in rig.robots())


def test_what_is_said_under_a_name_that_is_none_or_in_anothers_name_admits_nobody(rig: GuestRig) -> None:
    """A schedule with such a name in it would be refused by every robot and server."""
    topics = {name: f"/{name}/rfm/status" for name in ("_x", "ghost")}
    forgers = {name: rig.peer.create_publisher(msg.RobotStatus, topic, qos.ROBOT_STATUS) for name, topic in topics.items()}
    status = msg.RobotStatus(scheduler=66, admitted_by=66, admitted_task="arm", staleness_s=float("nan"))

    def forge() -> None:
        for name, forger in forgers.items():
            status.header.frame_id = name.replace("ghost", "guest")
            forger.publish(status)

    rig.peer.create_timer(0.2, forge)
    rig.wait(lambda: int(rig.values("scheduler: robots")["statuses of another name than their topic's"]) > 4)
    assert rig.call(srv.Replan).success and rig.robots() == {"arm_1", "arm_2"}
    rig.wait(lambda: rig.robot_status.schedule_epoch == rig.schedules[-1].epoch)


def test_admission_again_is_a_success_and_for_another_task_a_new_plan_or_a_reason(rig: GuestRig) -> None:
    first = rig.call(srv.AdmitRobot, robot="late", task="arm")
    again = rig.call(srv.AdmitRobot, robot="late", task="arm")
    assert again.success and again.schedule_epoch == first.schedule_epoch, again
    assert rig.call(srv.AdmitRobot, robot="arm_1", task="arm").success, "a declared robot that was started again"

    other = rig.call(srv.AdmitRobot, robot="late", task="wrist")
    assert other.success, other
    (late,) = [route for route in rig.schedule(other.schedule_epoch).routes if route.robot == "late"]
    assert late.task == "wrist"
    rig.refused(rig.call(srv.AdmitRobot, robot="late", task="sprint"), "sprint", 120)
    assert [route.task for route in rig.schedules[-1].routes if route.robot == "late"] == ["wrist"], "it stays what it was"
    rig.refused(rig.call(srv.AdmitRobot, robot="arm_1", task="wrist"), "is declared for 'arm', not for 'wrist'; change the", 100)


def test_of_whom_is_taken_over_at_each_word_there_is_one_line_a_look() -> None:
    """There was one for each, as often as somebody liked to contradict himself, and thousands after a scheduler's restart."""
    said: list[str] = []
    attendance = Attendance.__new__(Attendance)
    log = SimpleNamespace(info=said.append, warning=lambda *words, **options: None)
    attendance._node, attendance._hearer = SimpleNamespace(get_logger=lambda: log), Hearer(None)  # type: ignore[assignment]
    attendance._roster, attendance._identity, attendance._again = RobotRegistry(7), 7, {}
    attendance._fleet = SimpleNamespace(factory=SimpleNamespace(tasks={"arm": None}))  # type: ignore[assignment]
    for robot in ("ghost", *(f"guest_{number}" for number in range(100))):
        for number in range(20 if robot == "ghost" else 2):
            status = msg.RobotStatus(scheduler=8 + number, admitted_by=66, admitted_task="arm" if number % 2 else "")
            status.header.frame_id = robot
            attendance._on_status(robot, status)
    assert not said and len(attendance._roster.tasks) == 101
    attendance._tell_again()
    attendance._tell_again()
    (line,) = said
    assert "ghost, guest_0, " in line and line.endswith(" and 81 more")


def test_thousands_of_strangers_are_not_listened_to_at_once_and_whoever_is_admitted_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 subscriptions took the scheduler half a gigabyte. Known ones come after them, and are declared or have their lease."""
    said: list[str] = []
    attendance = Attendance.__new__(Attendance)
    log = SimpleNamespace(warning=said.append)
    attendance._node = SimpleNamespace(get_logger=lambda: log, destroy_subscription=lambda heard: None)  # type: ignore[assignment]
    attendance._names = SimpleNamespace(robot=lambda robot, leaf: f"/{robot}/{leaf}")  # type: ignore[assignment]
    attendance._fleet = SimpleNamespace(declared={"arm_1": "arm"})  # type: ignore[assignment]
    attendance._roster, attendance._heard = RobotRegistry(7, lease_s=1.0), {}
    attendance._strangers, attendance._said_strangers = UnregisteredRobots(), False
    monkeypatch.setattr("ros2_rfm_serving.ros.wire.bounded.hear", lambda node, kind, topic, *rest, **options: topic)
    attendance._present = {"arm_1", *(f"stranger_{i}" for i in range(3000))}
    attendance._listen()
    assert len(attendance._heard) == LEAST_PLACES and "arm_1" not in attendance._heard, "that one is heard elsewhere"
    for robot in ("silent", "comes"):
        attendance._roster.admit(robot, "arm")
    attendance._present |= {"comes", "stranger_late"}
    attendance._listen()
    assert len(attendance._heard) == LEAST_PLACES + 2 and {"silent", "comes"} <= attendance._heard.keys()
    for _ in range(3):
        attendance._roster.elapse(0.5)
    attendance._listen()
    assert "comes" in attendance._heard and "silent" not in attendance._heard, "who had a lease is heard as long as it is there"
    (line,) = said
    assert line.startswith("3000 robots have a status that nobody declared") and f"{LEAST_PLACES} of them are heard at" in line
