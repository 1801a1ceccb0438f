"""A robot whose measured position is outside of its limits names joint, value and fix in its status and diagnostics."""

from __future__ import annotations

import array
from collections.abc import Iterator

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from ros2_rfm_serving.robot.command_problems import start_problem
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.ros.robot.refusals import START, Refusals
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import convert, qos
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

ARM = RobotConfig(
    name="r1",
    action_names=("elbow", "wrist"),
    cameras=("front",),
    state_size=2,
    control_rate_hz=20.0,
    command_type=CommandType.POSITION,
    limits=MotionLimits(lower=(-3.1, -2.0), upper=(3.1, 2.0), max_velocity=(1.0, 1.0)),
)
PARAMETERS = [
    *("robot:robot:=r1", "robot:task:=stack", "robot:tick:=timer", "robot:control_rate_hz:=20.0", "robot:cameras:=[front]"),
    *("robot:state_size:=3", "robot:action_names:=['x','y']", "robot:action_state:=[0,1]", "robot:fallback:=[hold]"),
    "robot:command_type:=position",
    *("robot:limits.lower:=[-3.1,-3.1]", "robot:limits.upper:=[3.1,3.1]", "robot:limits.max_velocity:=[1.0,1.0]"),
]


@pytest.fixture
def rig(ros_domain: int) -> Iterator[Rig]:
    rclpy.init(args=["--ros-args", *[part for given in PARAMETERS for part in ("-p", given)]])
    made = Rig(RobotNode(), "r1")
    made.schedule.publish(convert.schedule_to(schedule(), "f"))
    yield made
    made.close()
    rclpy.try_shutdown()


def test_a_driver_in_degrees_is_named_with_joint_value_and_fix_until_it_is_corrected(rig: Rig) -> None:
    robot, state = rig.robots["r1"], [28.65, -57.3, 0.0]
    camera = rig.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
    frame = CompressedImage(format="jpeg")
    convert.put(frame, "data", array.array("B", JPEG))

    def sense() -> None:
        robot.state.publish(Float32MultiArray(data=state))
        camera.publish(frame)

    rig.peer.create_timer(0.02, sense)
    rig.goal("r1", time_budget_s=600.0)
    cause = "'y' is measured at -57.3, outside of its limits -3.1 to 3.1"
    rig.wait(lambda: robot.status and cause in robot.status.reason, "the cause")
    assert "`unit_scale`" in robot.status.reason and not robot.commands
    rig.wait(lambda: cause in rig.diagnostics["r1: robot"].message, "the cause in the diagnostics")
    assert rig.diagnostics["r1: robot"].level != DiagnosticStatus.OK
    state[:] = [0.5, -1.0, 0.0]
    rig.wait(lambda: robot.commands, "commands")
    rig.wait(lambda: "measured" not in robot.status.reason, "a status without the cause")


def test_the_joint_that_is_furthest_outside_is_named() -> None:
    problem = start_problem("position_out_of_limits", np.array([28.65, -114.6], np.float32), ARM)
    assert problem.startswith("'wrist' is measured at -114.6, outside of its limits -2 to 2: correct the unit (`unit_scale`)")
    assert "`action_joints`" in start_problem("position_unknown", None, ARM)
    assert "jumps" in start_problem("position_unsteady", np.zeros(2, np.float32), ARM)
    assert start_problem("out_of_limits", np.zeros(2, np.float32), ARM) == ""


def test_columns_that_are_no_positions_are_not_named() -> None:
    types = (CommandType.VELOCITY, CommandType.POSITION)
    mixed = RobotConfig(**{**vars(ARM), "command_types": types, "limits": MotionLimits(upper=(0.1, 2.0), max_velocity=(1.0, 1.0))})
    assert start_problem("position_out_of_limits", np.array([28.65, 2.5], np.float32), mixed).startswith(
        "'wrist' is measured at 2.5"
    )


def test_a_refused_start_is_logged_once_when_it_lasts_and_forgotten_when_it_ends() -> None:
    logged: list[str] = []
    refusals = Refusals("r1", logged.append)
    for now_s in (0.0, 0.5):
        refusals.note(START, "elbow", now_s, at_once=False)
    assert not logged and not refusals.lasting(START, 0.5)
    for now_s in (1.0, 1.5):
        refusals.note(START, "elbow", now_s, at_once=False)
    assert logged == ["r1: commands do not begin: elbow"] and refusals.lasting(START, 1.5) == "elbow"
    refusals.note(START, "", 2.0)
    assert refusals.lasting(START, 2.0) == ""
