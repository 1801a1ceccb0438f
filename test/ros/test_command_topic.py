"""Whether somebody takes a robot's commands, and a chunk on its way, over real messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import rclpy
from geometry_msgs.msg import TwistStamped
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import convert, qos
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

COMMON = {
    "robot": "r1",
    "task": "stack",
    "state_size": 3,
    "cameras": ["front"],
    "action_names": ["x", "y"],
    "control_rate_hz": 20.0,
    "autostart": False,
    "tick": "timer",
}
VELOCITIES = {"command_type": "velocity", "fallback": ["zero"]}
POSITIONS = {"command_type": "position", "fallback": ["hold"]}
TRAJECTORY = {"sink": "trajectory", "sink_topic": "/arm/joint_trajectory"}
TWIST = {"sink": "twist", "twist_axes": ["x=linear.x", "y=angular.z"], "sink_topic": "/base/cmd_vel"}
CHUNK = {
    **POSITIONS,
    "sink": "chunk",
    "sink_topic": "/arm/joint_trajectory",
    "limits.max_velocity": [1.0, 1.0],
    "limits.max_acceleration": [4.0, 4.0],
    "state_parts": ["joint_states"],
    "joints": ["x", "y", "z"],
    "action_joints": ["x", "y"],
}


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def robot(**parameters: object) -> Iterator[Rig]:
    rclpy.init(
        args=["--ros-args", *[part for name, value in parameters.items() for part in ("-p", f"robot:{name}:={written(value)}")]]
    )
    node = RobotNode()
    rig = Rig(node, "r1")
    try:
        assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
        yield rig
    finally:
        rig.close()
        rclpy.try_shutdown()


def elsewhere() -> Node:
    """A node with a participant of its own: in one, a topic has one type."""
    context = rclpy.Context()
    rclpy.init(context=context)
    return Node("driver", context=context)


def problem(rig: Rig) -> str:
    return rig.values("r1").get("command_problem", "")


def controller(**parameters: object) -> Node:
    """A node as a joint_trajectory_controller is on the graph: its topic and its parameters."""
    made = Node("arm", parameter_overrides=[Parameter(name, value=value) for name, value in parameters.items()])
    for name, value in parameters.items():
        made.declare_parameter(name, value)
    made.create_subscription(JointTrajectory, "/arm/joint_trajectory", lambda message: None, 1)
    return made


JTC = {
    "joints": ["x", "y"],
    "allow_partial_joints_goal": False,
    "allow_integration_in_goal_trajectories": False,
    "allow_nonzero_velocity_at_trajectory_end": False,
    "interpolate_from_desired_state": False,
}
NEW_JTC = {**JTC, "allow_trajectory_replacement": True}


@pytest.mark.parametrize(
    ("parameters", "message_type", "topic", "says"),
    [
        ({}, None, "", ["nobody subscribes to /r1/out (std_msgs/msg/Float64MultiArray)"]),
        ({}, Float64MultiArray, "/arm_controller/commands", ["nobody subscribes", "/arm_controller/commands takes"]),
        ({}, JointTrajectory, "/r1/outs", ["nobody subscribes", "/r1/outs takes trajectory_msgs/msg/JointTrajectory"]),
        ({}, JointTrajectory, "/r1/out", ["as trajectory_msgs/msg/JointTrajectory", "`sink: trajectory` or `sink: chunk`"]),
        (
            TRAJECTORY,
            Float64MultiArray,
            "/arm/joint_trajectory",
            ["commands are trajectory_msgs/msg/JointTrajectory", "`sink: array`"],
        ),
        (TWIST, JointState, "/base/cmd_vel", ["as sensor_msgs/msg/JointState", "custom"]),
        (TWIST, TwistStamped, "/base/cmd_vels", ["nobody subscribes", "/base/cmd_vels takes geometry_msgs/msg/TwistStamped"]),
    ],
)
def test_commands_that_nobody_takes_are_a_warning(
    ros_domain: int, parameters: dict[str, Any], message_type: Any, topic: str, says: list[str]
) -> None:
    with robot(**{**COMMON, **VELOCITIES, "sink_topic": "out", **parameters}) as rig:
        other = elsewhere()
        if message_type is not None:
            other.create_subscription(message_type, topic, lambda message: None, 1)
        rig.tested.trigger_activate()
        rig.wait(lambda: all(part in problem(rig) for part in says), "the warning")
        assert rig.diagnostics["r1: robot"].level != b"\x00" and says[0] in rig.diagnostics["r1: robot"].message
        if not parameters and "as trajectory" not in says[0]:
            rig.peer.create_subscription(Float64MultiArray, "/r1/out", lambda message: None, 1)
            rig.wait(lambda: "command_problem" in rig.values("r1") and not problem(rig), "its end")
        other.destroy_node()
        rclpy.try_shutdown(context=other.context)


@pytest.mark.parametrize(
    ("parameters", "has", "says"),
    [
        (
            {**VELOCITIES, **TRAJECTORY},
            NEW_JTC,
            ["allow_integration_in_goal_trajectories", "allow_nonzero_velocity_at_trajectory_end"],
        ),
        ({**POSITIONS, **TRAJECTORY, "trajectory_time_s": 0.2}, JTC, ["an arm that lags creeps", "interpolate_from_desired_state"]),
        ({**POSITIONS, **TRAJECTORY, "trajectory_time_s": 0.2}, NEW_JTC, []),
        ({**POSITIONS, **TRAJECTORY}, {**NEW_JTC, "joints": ["x", "elbow"]}, ["its joints are elbow, x", "sink_joints"]),
        (CHUNK, NEW_JTC, []),
    ],
)
def test_what_a_joint_trajectory_controller_refuses_is_named(
    ros_domain: int, parameters: dict[str, Any], has: dict[str, Any], says: list[str]
) -> None:
    with robot(**{**COMMON, **parameters}) as rig:
        arm = controller(**has)
        rig.nodes.append(arm)
        rig.executor.add_node(arm)
        rig.tested.trigger_activate()
        if says:
            rig.wait(lambda: all(part in problem(rig) for part in says), "the warning")
        else:
            rig.wait(lambda: "command_problem" in rig.values("r1"), "diagnostics")
            rig.spin(4.0)
            assert problem(rig) == ""


def test_a_twist_stamped_by_another_clock_than_the_simulations_is_a_warning(ros_domain: int) -> None:
    with robot(**{**COMMON, **VELOCITIES, **TWIST, "twist_stamped": True}) as rig:
        rig.peer.create_subscription(TwistStamped, "/base/cmd_vel", lambda message: None, 1)
        rig.peer.create_publisher(Clock, "/clock", 1)
        rig.tested.trigger_activate()
        rig.wait(lambda: "twist_stamp to zero" in problem(rig), "the warning")


def test_a_chunk_reaches_its_controller_and_a_pause_ends_it_at_rest(ros_domain: int) -> None:
    """Positions, velocities and times arrive; a pause, and a robot that is deactivated, send one that comes to a stand."""
    with robot(**{**COMMON, **CHUNK}) as rig:
        heard: list[Any] = []
        rig.peer.create_subscription(JointTrajectory, "/arm/joint_trajectory", heard.append, qos.COMMAND)
        image = rig.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
        state = rig.peer.create_publisher(JointState, "/r1/joint_states", qos.SENSOR)
        frame = CompressedImage(format="jpeg", data=JPEG)

        def sense() -> None:
            image.publish(frame)
            state.publish(JointState(name=["x", "y", "z"], position=[0.0, 0.0, 0.0]))

        rig.peer.create_timer(0.04, sense)
        rig.schedule.publish(convert.schedule_to(schedule(), "f"))
        rig.tested.trigger_activate()
        rig.goal("r1", time_budget_s=600.0)
        rig.wait(lambda: any(np.any(message.points[0].velocities) for message in heard), "a motion")
        for stop in (lambda: rig.call(rig.robots["r1"].services["pause"]), rig.tested.trigger_deactivate):
            check(heard)
            stop()
            rig.spin(1.0)
            check(heard)


def check(heard: list[Any]) -> None:
    """Each can be executed, and ends at rest."""
    for message in heard:
        times_s = [point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec for point in message.points]
        assert times_s[0] > 0.0 and (np.diff(times_s) > 0.0).all() and message.joint_names == ["x", "y"]
        assert not np.any(message.points[-1].velocities) and len(message.points[-1].positions) == 2
