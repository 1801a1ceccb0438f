"""A robot's state and commands over real messages: joints, arrays, every sink, a foreign robot, and what is refused."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import yaml
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import Trajectory
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot.cameras import CameraSet
from ros2_rfm_serving.ros.robot.joints import StateConfig, StatePart, StateReader
from ros2_rfm_serving.ros.robot.sinks import ChunkSink, SinkConfig, SinkKind, TwistSink, make_sink, subscribers
from ros2_rfm_serving.ros.wire import qos
from test.unit.robot.jtc_model import JointTrajectoryController, Point

from .parameters import flat, settings
from .pictures import BLUE, RED, decoded, halves, scene, sent


def joint_state(positions: dict[str, float], velocities: dict[str, float] | None = None) -> Any:
    message = JointState(name=list(positions), position=list(positions.values()))
    if velocities:
        message.velocity = [velocities[name] for name in positions]
    return sent(message)


def reader(**config: Any) -> tuple[StateReader, Counter[str]]:
    refused: Counter[str] = Counter()
    defaults = {"size": 2, "parts": (StatePart.JOINTS,), "joints": ("a", "b")}
    return StateReader(StateConfig(**(defaults | config)), refused), refused


def test_joints_are_found_by_name_in_any_order() -> None:
    made, refused = reader(action_joints=("b",), unit_scale={"b": math.pi / 180})
    assert made.take_joints(joint_state({"a": 1.0, "x": 9.0, "b": 180.0}), 1.0)
    assert made.state == pytest.approx([1.0, math.pi]) and made.state_s == 1.0
    assert made.take_joints(joint_state({"b": 90.0, "a": 2.0}), 2.0)
    assert made.state == pytest.approx([2.0, math.pi / 2]) and made.positions == pytest.approx([math.pi / 2])
    assert not refused


def test_fields_are_concatenated_and_scaled_but_for_effort() -> None:
    made, _ = reader(size=6, joint_fields=("velocity", "position", "effort"), unit_scale={"b": 10.0})
    message = JointState(name=["b", "a"], position=[1.0, 2.0], velocity=[3.0, 4.0], effort=[5.0, 6.0])
    assert made.take_joints(sent(message), 1.0)
    assert made.state == pytest.approx([4.0, 30.0, 2.0, 10.0, 6.0, 5.0])


def test_joints_of_several_messages_are_one_state_while_fresh() -> None:
    made, refused = reader(max_age_s=0.5)
    assert not made.take_joints(joint_state({"a": 1.0}), 0.0)
    refused.clear()  # b had never been heard of
    assert made.take_joints(joint_state({"b": 2.0}), 0.1)
    assert made.state == pytest.approx([1.0, 2.0]) and made.state_s == 0.0
    assert not made.take_joints(joint_state({"b": 3.0}), 0.2), "a has not been renewed"
    assert made.state == pytest.approx([1.0, 2.0]) and not refused
    assert not made.take_joints(joint_state({"b": 3.0}), 1.0)
    assert refused == {"incomplete_state": 1}
    assert made.take_joints(joint_state({"a": 4.0}), 1.1)
    assert made.state == pytest.approx([4.0, 3.0]) and made.state_s == 1.0


@pytest.mark.parametrize(
    ("message", "counter"),
    [
        (joint_state({"a": math.nan, "b": 0.0}), "bad_state"),
        (joint_state({"a": 0.0, "b": math.inf}), "bad_state"),
        (joint_state({"a": 1e300, "b": 0.0}), "bad_state"),
        (JointState(name=["a", "b"], position=[1.0]), "bad_state"),
        (JointState(name=["a", "b", "a"], position=[1.0, 2.0, 3.0]), "bad_state"),
        (JointState(name=["a", "b"], velocity=[1.0, 2.0]), "missing_field"),
        (joint_state({"a": 1.0}), "incomplete_state"),
        (joint_state({"left": 1.0, "right": 1.0}), "incomplete_state"),
        (JointState(), "incomplete_state"),
    ],
)
def test_joint_states_that_cannot_be_used_are_counted(message: Any, counter: str) -> None:
    made, refused = reader()
    assert not made.take_joints(message, 1.0)
    assert made.state is None and refused == {counter: 1}


def test_numbers_of_other_joints_do_not_matter() -> None:
    made, refused = reader()
    assert made.take_joints(joint_state({"a": 1.0, "x": math.nan, "b": 2.0}), 1.0)
    assert not refused


@pytest.mark.parametrize(("message_type", "array_type"), [(Float32MultiArray, "float32"), (Float64MultiArray, "float64")])
def test_arrays_are_taken_as_they_are(message_type: type, array_type: str) -> None:
    made, refused = reader(size=3, parts=(StatePart.ARRAY,), joints=(), array_type=array_type, action_state=(2, 0))
    assert made.take_array(sent(message_type(data=[1.0, 2.0, 3.0])), 1.0)
    assert made.state is not None and made.state.dtype == np.float32
    assert made.state == pytest.approx([1.0, 2.0, 3.0]) and made.positions == pytest.approx([3.0, 1.0])
    for wrong in ([1.0, 2.0], [1.0, 2.0, math.nan], [1.0] * 1000):
        assert not made.take_array(sent(message_type(data=wrong)), 2.0)
    assert refused == {"bad_state": 3} and made.state_s == 1.0
    made.forget()
    assert made.state is None


def test_joints_and_an_array_make_one_state() -> None:
    made, refused = reader(size=3, parts=(StatePart.ARRAY, StatePart.JOINTS), max_age_s=0.5)
    joints, gripper = joint_state({"a": 1.0, "b": 2.0}), Float32MultiArray(data=[7.0])
    assert not made.take_joints(joints, 0.0)
    refused.clear()
    assert made.take_array(gripper, 0.1)
    assert made.state == pytest.approx([7.0, 1.0, 2.0]) and made.state_s == 0.0
    assert not made.take_array(gripper, 1.0)
    assert refused == {"incomplete_state": 1}


def test_positions_older_than_the_state_are_not_known() -> None:
    made, _ = reader(size=1, parts=(StatePart.ARRAY,), joints=(), action_joints=("a",), max_age_s=0.5)
    assert not made.take_joints(joint_state({"a": 4.0}), 0.0), "the array gives the rhythm"
    assert made.take_array(Float32MultiArray(data=[1.0]), 0.1)
    assert made.positions == pytest.approx([4.0])
    made.take_array(Float32MultiArray(data=[1.0]), 0.6)
    assert made.positions is None


@pytest.fixture
def node(ros_domain: int) -> Iterator[Node]:
    rclpy.init()
    made = Node("robot")
    try:
        yield made
    finally:
        made.destroy_node()
        rclpy.try_shutdown()


def repeat(node: Node, publish: Callable[[], None], until: Callable[[], Any]) -> None:
    """Best effort may lose one, discovery may take a moment."""
    spinner = executor()
    spinner.add_node(node)
    try:
        end_s = time.monotonic() + 90.0
        while not until():
            assert time.monotonic() < end_s, "waited in vain"
            publish()
            spinner.spin_once(timeout_sec=0.1)
    finally:
        spinner.shutdown()


def received(node: Node, message_type: type, publish: Callable[[], None], topic: str = "/r1/out") -> Any:
    """What comes out at the other end."""
    heard: list[Any] = []
    subscription = node.create_subscription(message_type, topic, heard.append, qos.SENSOR)
    try:
        repeat(node, publish, lambda: heard)
    finally:
        node.destroy_subscription(subscription)
    return heard[0]


def command() -> np.ndarray[Any, Any]:
    return np.array([0.5, -2.0], np.float32)


def through(node: Node, message_type: type, **config: Any) -> Any:
    sink = make_sink(node, SinkConfig(action_names=("x", "y"), **config), "/r1/out", Counter())
    try:
        return received(node, message_type, lambda: sink.send(command(), 0.05))
    finally:
        sink.close()


def test_the_sinks_publish_what_controllers_take(node: Node) -> None:
    message = through(node, Float64MultiArray, scale=(10.0, 1.0), offset=(0.0, 0.25))
    assert message.data.tolist() == [5.0, -1.75]

    message = through(node, JointTrajectory, kind=SinkKind.TRAJECTORY, joints=("j1", "j2"))
    point, stays = message.points  # of two, so that a joint_trajectory_controller joins them with those under way
    assert message.joint_names == ["j1", "j2"] and point.positions.tolist() == [0.5, -2.0] and not point.velocities
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (0, 50_000_000)
    assert stays.positions == point.positions and stays.time_from_start.nanosec == 100_000_000
    assert message.header.stamp.sec == 0  # at once

    message = through(node, JointTrajectory, kind=SinkKind.TRAJECTORY, trajectory_field="velocities", time_from_start_s=1.5)
    (point,) = message.points
    assert message.joint_names == ["x", "y"] and point.velocities.tolist() == [0.5, -2.0] and not point.positions
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (1, 500_000_000)

    axes = ("linear.x", "angular.z")
    message = through(node, Twist, kind=SinkKind.TWIST, twist_axes=axes)
    assert (message.linear.x, message.angular.z, message.linear.y) == (0.5, -2.0, 0.0)

    message = through(node, TwistStamped, kind=SinkKind.TWIST, twist_axes=axes, stamped=True, frame_id="base")
    assert (message.twist.linear.x, message.twist.angular.z, message.header.frame_id) == (0.5, -2.0, "base")
    assert message.header.stamp.sec > 0
    assert not node.count_publishers("/r1/out"), "close lets the publisher go"


@pytest.mark.parametrize(("turn", "scale"), [(2 * np.pi, 1.0), (2 * np.pi, -1.0), (360.0, 0.0174533), (1.0, 2 * np.pi)])
def test_a_continuous_joint_goes_the_short_way_in_a_trajectory_controller(node: Node, turn: float, scale: float) -> None:
    """It goes round three times in either direction; commands jump by a turn each time, and the controller does not."""
    config = SinkConfig(action_names=("x", "y"), kind=SinkKind.TRAJECTORY, scale=(scale, 1.0), turns=(turn, 0.0))
    sink: Any = make_sink(node, config, "/r1/out", Counter())
    heard: list[Any] = []
    angles = np.concatenate([np.arange(0.0, 3.0, 0.02), np.arange(3.0, -3.0, -0.02)]) * turn
    within = angles - turn * np.round(angles / turn)
    commands = [np.array([angle, 3.0 - 6.0 * (n % 2)], np.float32) for n, angle in enumerate(within)]
    sink._publish = heard.append  # what goes out, without the middleware
    for one in commands:
        sink.send(one, 0.05)
    sink.close()
    controller, at = JointTrajectoryController(2, 0.01), np.zeros(2)
    for number, message in enumerate(heard):
        points = [Point(0.05 * (n + 1), np.array(point.positions)) for n, point in enumerate(message.points)]
        controller.receive(points)
        for update in range(5):
            moved = controller.update(0.05 * number + 0.01 * update, at)
            assert moved is not None and abs(moved[0][0] - at[0]) < 0.02 * abs(turn * scale), (number, update)
            at = moved[0]
        assert message.points[0].positions[1] == commands[number][1], "others stay as they are"


def test_a_chunk_is_published_as_positions_velocities_and_times(node: Node) -> None:
    positions, velocities = np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([[1.0, -1.0], [0.0, 0.0]])
    trajectory = Trajectory(np.array([0.025, 0.075]), positions, velocities)
    for with_velocities in (True, False):
        config = SinkConfig(
            action_names=("x", "y"), kind=SinkKind.CHUNK, scale=(2.0, 1.0), offset=(0.0, 1.0), with_velocities=with_velocities
        )
        sink = make_sink(node, config, "/r1/out", Counter())
        assert isinstance(sink, ChunkSink)
        message = received(node, JointTrajectory, partial(sink.send_trajectory, trajectory))
        sink.close()
        assert [point.positions.tolist() for point in message.points] == [[0.2, 1.2], [0.6, 1.4]]
        assert [point.velocities.tolist() for point in message.points] == (
            [[2.0, -1.0], [0.0, 0.0]] if with_velocities else [[], []]
        )
        assert [point.time_from_start.nanosec for point in message.points] == [25_000_000, 75_000_000]
        assert message.joint_names == ["x", "y"] and (message.header.stamp.sec, message.header.stamp.nanosec) == (0, 0)


@contextmanager
def another_process() -> Iterator[Node]:
    """A node with a participant of its own: in one, a topic has one type."""
    context = rclpy.Context()
    rclpy.init(context=context)
    made = Node("base", context=context)
    try:
        yield made
    finally:
        made.destroy_node()
        rclpy.try_shutdown(context=context)


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("taken", [Twist, TwistStamped])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_twist_is_of_the_type_that_its_subscriber_takes(node: Node, stamped: bool, taken: type, late: bool) -> None:
    """Whether the controller was there before the robot or comes later, and whatever the parameter says."""
    config = SinkConfig(
        action_names=("x", "y"), kind=SinkKind.TWIST, twist_axes=("linear.x", "angular.z"), stamped=stamped, zero_stamp=True
    )
    heard: list[Any] = []
    sink = make_sink(node, config, "/r1/out", Counter()) if late else None
    with another_process() as base:
        base.create_subscription(taken, "/r1/out", heard.append, qos.SENSOR)
        spinner = SingleThreadedExecutor(context=base.context)
        spinner.add_node(base)
        repeat(node, lambda: None, lambda: subscribers(node, "/r1/out"))
        sink = sink or make_sink(node, config, "/r1/out", Counter())
        assert isinstance(sink, TwistSink)
        sink.adapt(subscribers(node, "/r1/out"))
        sending = sink

        def send() -> None:
            sending.send(command(), 0.05)
            spinner.spin_once(timeout_sec=0.05)

        repeat(node, send, lambda: heard)
        spinner.shutdown()
    sink.close()
    twist = heard[0].twist if taken is TwistStamped else heard[0]
    assert (twist.linear.x, twist.angular.z) == (0.5, -2.0)
    assert taken is Twist or (heard[0].header.stamp.sec, heard[0].header.stamp.nanosec) == (0, 0), "its receiver's own time"


class Collector:
    """A custom sink."""

    def __init__(self, node: Node, topic: str, config: SinkConfig) -> None:
        self.made_with, self.sent, self.closed = (topic, config.action_names), [], False

    def send(self, command: Any, period_s: float) -> None:
        if command[0] < 0:
            raise RuntimeError("the arm is unplugged")
        self.sent.append((command.tolist(), period_s))

    def close(self) -> None:
        self.closed = True


class Unbuildable(Collector):
    def __init__(self, node: Node, topic: str, config: SinkConfig) -> None:
        raise OSError("no such port")


class Halfway:
    def send(self, command: Any, period_s: float) -> None: ...


def custom(node: Node, name: str, refused: Counter[str]) -> Any:
    path = f"{__name__}:{name}" if name.isidentifier() else name
    return make_sink(node, SinkConfig(action_names=("x",), kind=SinkKind.CUSTOM, custom_class=path), "/r1/out", refused)


def test_a_sink_of_ones_own(node: Node) -> None:
    refused: Counter[str] = Counter()
    sink = custom(node, "Collector", refused)
    inner = sink._sink
    assert inner.made_with == ("/r1/out", ("x",))
    sink.send(np.array([1.0], np.float32), 0.1)
    sink.send(np.array([-1.0], np.float32), 0.1)
    sink.send(np.array([2.0], np.float32), 0.1)
    sink.close()
    assert inner.sent == [([1.0], 0.1), ([2.0], 0.1)] and inner.closed and refused == {"sink_failed": 1}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere.at.all:Sink", "cannot be loaded"),
        (f"{__name__}:Missing", "cannot be loaded"),
        ("no colon", "is no class"),
        ("Halfway", "has no method close"),
        ("Unbuildable", "OSError: no such port"),
    ],
)
def test_a_class_that_is_no_sink_is_named_with_its_fix(node: Node, name: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        custom(node, name, Counter())
    assert caught.value.key == "sink_class" and caught.value.fix


class Arm:
    """What the interface of a simulated arm asks of it."""

    state = np.arange(39, dtype=np.float32) / 10


def test_the_foreign_robot_is_mapped_onto_the_model(repository: Path, node: Node) -> None:
    """Through config/robots/metaworld_foreign.yaml there and back: names, orders, units, channel order, padding."""
    from ros2_rfm_serving.ros.worlds.metaworld import make_interface

    given = yaml.safe_load((repository / "config/robots/metaworld_foreign.yaml").read_text())["/**"]["ros__parameters"]
    read = settings(flat(given))
    actions: list[Any] = []
    period_s = 1.0 / read.config.control_rate_hz
    arm = make_interface("foreign", node, "/r1/{}".format, actions.append, Arm(), period_s)  # type: ignore[arg-type]

    refused: Counter[str] = Counter()
    state, eyes = StateReader(read.io.state, refused), CameraSet(read.io.cameras, refused, jpeg_quality=95, max_size_px=640)
    stamp = node.get_clock().now().to_msg()
    joints = received(
        node,
        JointState,
        lambda: arm.publish_state(Arm(), stamp),
        f"/r1/{read.io.state.joint_topic}",  # type: ignore[arg-type]
    )
    assert joints.name != sorted(joints.name)
    assert state.take_joints(joints, 1.0) and state.state == pytest.approx(Arm.state)

    side, front = read.io.cameras
    for camera, pixels in ((side, scene()), (front, scene()[:, ::-1])):
        image = received(
            node, camera.message_type, partial(arm.publish_images, {camera.name: pixels}, stamp), f"/r1/{camera.topic}"
        )
        eyes.take(camera.name, image, 1.0)
    assert eyes.images
    seen = [halves(decoded(image)) for image in eyes.images]
    assert np.allclose(seen[0], [RED, BLUE], atol=6) and np.allclose(seen[1], [BLUE, RED], atol=6)

    topic, action = f"/r1/{read.io.sink.topic}", np.array([0.1, -1.0, 0.5, 0.75], np.float32)
    sink = make_sink(node, read.io.sink, topic, refused)
    message = received(node, Float64MultiArray, lambda: sink.send(action, 0.05), topic)
    assert list(message.data) == pytest.approx([0.02, -0.2, 0.1, 75.0])
    assert ActionColumns.of(read.config).stopped(action).tolist() == [0.0, 0.0, 0.0, 0.75], "a stop opens no gripper"
    repeat(node, lambda: sink.send(action, 0.05), lambda: actions)
    assert all(np.allclose(taken, action) for taken in actions)
    sink.close()
    assert not refused
