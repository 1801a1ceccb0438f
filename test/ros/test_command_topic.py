"""Whether somebody takes a robot's commands, and a chunk on its way, over real messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import rclpy
from geometry_msgs.msg import Twist, TwistStamped
from rcl_interfaces.srv import GetParameters
from rclpy.duration import Duration
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy
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


def elsewhere(name: str = "driver") -> Node:
    """A node with a participant of its own: in one, a topic has one type."""
    context = rclpy.Context()
    rclpy.init(context=context)
    return Node(name, context=context)


def leave(*nodes: Node) -> None:
    for node in nodes:
        node.destroy_node()
        rclpy.try_shutdown(context=node.context)


def problem(rig: Rig) -> str:
    return rig.values("r1").get("command_problem", "")


def controller(**parameters: object) -> Node:
    """A node as a joint_trajectory_controller is on the graph: its topic and its parameters.

    As with rclcpp (`parameter_service.cpp`), a question for several parameters one of which is not declared has an empty answer.
    """
    made = Node("arm", start_parameter_services=False)
    for name, value in parameters.items():
        made.declare_parameter(name, value)

    def answer(request: GetParameters.Request, response: GetParameters.Response) -> GetParameters.Response:
        if all(made.has_parameter(name) for name in request.names):
            response.values = [made.get_parameter(name).get_parameter_value() for name in request.names]
        return response

    made.create_service(GetParameters, "/arm/get_parameters", answer)
    made.create_subscription(JointTrajectory, "/arm/joint_trajectory", lambda message: None, 1)
    return made


JTC = {
    "joints": ["x", "y"],
    "allow_partial_joints_goal": False,
    "allow_integration_in_goal_trajectories": False,
    "allow_nonzero_velocity_at_trajectory_end": False,
    "interpolate_from_desired_state": False,
}
NEW_JTC = {**JTC, "allow_trajectory_replacement": True, "interpolation_method": "splines", "speed_scaling.state_interface": ""}
OLD_JTC = {**{name: value for name, value in JTC.items() if name != "interpolate_from_desired_state"}, "open_loop_control": False}
"""Before ros2_controllers 4.22.0, in Humble among others."""


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
        leave(other)


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
        (CHUNK, {**NEW_JTC, "allow_trajectory_replacement": False}, ["is set back", "interpolate_from_desired_state to true"]),
        (CHUNK, {**OLD_JTC, "joints": ["y", "x"]}, ["is set back", "open_loop_control to true"]),
        (CHUNK, {**OLD_JTC, "open_loop_control": True}, []),
        ({**POSITIONS, **TRAJECTORY}, {**OLD_JTC, "joints": ["x"]}, ["its joints are x, and commands have x, y"]),
        (CHUNK, {**NEW_JTC, "interpolation_method": "none"}, ["jumps from point to point", "splines"]),
        (CHUNK, {**NEW_JTC, "speed_scaling.state_interface": "speed/factor"}, ["its speed is scaled", "sink: trajectory"]),
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


def test_a_controller_that_is_set_right_or_is_started_again_is_asked_again(ros_domain: int) -> None:
    with robot(**{**COMMON, **CHUNK}) as rig:
        arm = controller(**{**NEW_JTC, "allow_trajectory_replacement": False})
        rig.nodes.append(arm)
        rig.executor.add_node(arm)
        rig.tested.trigger_activate()
        rig.wait(lambda: "is set back" in problem(rig), "the warning")
        arm.set_parameters([Parameter("allow_trajectory_replacement", value=True)])
        rig.wait(lambda: not problem(rig), "its end")
        rig.executor.remove_node(arm)
        rig.nodes.remove(arm)
        arm.destroy_node()
        rig.wait(lambda: "nobody subscribes" in problem(rig), "the controller to be gone")
        arm = controller(**{**NEW_JTC, "joints": ["x", "elbow"]})
        rig.nodes.append(arm)
        rig.executor.add_node(arm)
        rig.wait(lambda: "its joints are elbow, x" in problem(rig), "the warning of the new one")


@pytest.mark.parametrize("watcher", ["_ros2cli_77", "rosbag2_recorder", "rfm_foxglove"])
def test_who_only_watches_a_topic_takes_no_commands(ros_domain: int, watcher: str) -> None:
    """Neither alone, nor beside a controller of the other type of twists."""
    with robot(**{**COMMON, **VELOCITIES, **TWIST}) as rig:
        others = elsewhere(watcher), elsewhere("base")
        others[0].create_subscription(Twist, "/base/cmd_vel", lambda message: None, 1)
        rig.tested.trigger_activate()
        rig.wait(lambda: f"nobody but /{watcher}, which watches, subscribes" in problem(rig), "the warning")
        others[1].create_subscription(TwistStamped, "/base/cmd_vel", lambda message: None, 1)
        rig.wait(lambda: "command_problem" in rig.values("r1") and not problem(rig), "its end")
        assert [info.topic_type for info in rig.peer.get_publishers_info_by_topic("/base/cmd_vel")] == [
            "geometry_msgs/msg/TwistStamped"
        ]
        leave(*others)


def test_one_of_two_subscribers_that_takes_another_type_is_named(ros_domain: int) -> None:
    with robot(**{**COMMON, **VELOCITIES, **TWIST}) as rig:
        others = elsewhere("base"), elsewhere("mux")
        others[0].create_subscription(TwistStamped, "/base/cmd_vel", lambda message: None, 1)
        others[1].create_subscription(Twist, "/base/cmd_vel", lambda message: None, 1)
        rig.tested.trigger_activate()
        rig.wait(lambda: "subscribes to /base/cmd_vel as" in problem(rig) and "another topic" in problem(rig), "the warning")
        leave(*others)


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        pytest.param(
            {"durability": DurabilityPolicy.TRANSIENT_LOCAL},
            "/driver subscribes to /r1/out with durability transient_local, where volatile is offered",
            id="durability",
        ),
        pytest.param(
            {
                "deadline": Duration(seconds=0.5),
                "liveliness": LivelinessPolicy.MANUAL_BY_TOPIC,
                "liveliness_lease_duration": Duration(seconds=2),
            },
            "with liveliness manual_by_topic, where automatic is offered and deadline 0.5 s, where no limit is offered and "
            "liveliness_lease_duration 2 s, where no limit is offered: it gets no command",
            id="deadline and liveliness",
        ),
    ],
)
def test_a_subscriber_that_asks_for_more_than_commands_have_is_named(ros_domain: int, requested: dict[str, Any], says: str) -> None:
    """Beside one that gets them, and a tool that only watches."""
    with robot(**{**COMMON, **VELOCITIES, "sink_topic": "out"}) as rig:
        others = elsewhere(), elsewhere("rfm_foxglove"), elsewhere("good")
        for node, profile in zip(others, (requested, requested, {"reliability": ReliabilityPolicy.BEST_EFFORT}), strict=True):
            node.create_subscription(Float64MultiArray, "/r1/out", lambda message: None, QoSProfile(depth=1, **profile))
        rig.tested.trigger_activate()
        rig.wait(lambda: says in problem(rig), "the warning")
        assert "foxglove" not in problem(rig) and says in rig.diagnostics["r1: robot"].message
        leave(others[0])
        rig.wait(lambda: "command_problem" in rig.values("r1") and not problem(rig), "its end")
        leave(*others[1:])


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
