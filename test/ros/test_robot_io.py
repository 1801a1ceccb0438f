"""A robot's inputs and outputs over real messages: every encoding, every sink, every parameter, and what is refused."""

from __future__ import annotations

import array
import io
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import rclpy
import simplejpeg
import yaml
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType, FailSafeConfig, Motion, Rung
from ros2_rfm_serving.robot.fallback import check_ladder
from ros2_rfm_serving.robot.link import LinkConfig
from ros2_rfm_serving.ros import cameras, convert, qos
from ros2_rfm_serving.ros.cameras import CameraConfig, CameraSet
from ros2_rfm_serving.ros.joints import StateConfig, StatePart, StateReader
from ros2_rfm_serving.ros.parameters import unknown
from ros2_rfm_serving.ros.robot_parameters import SPECS, TickSource
from ros2_rfm_serving.ros.robot_params import RobotSettings, robot_settings
from ros2_rfm_serving.ros.runtime import executor
from ros2_rfm_serving.ros.sinks import SinkConfig, SinkKind, make_sink
from ros2_rfm_serving.types import MAX_ENCODED_BYTES, EncodedImage

RED, BLUE = (250, 20, 30), (10, 30, 240)
"""RGB: the left and the right half of every test image."""
HEIGHT, WIDTH = 48, 64


def sent(message: Any) -> Any:
    """As it comes out of the middleware."""
    return deserialize_message(serialize_message(message), type(message))


def scene(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray[Any, Any]:
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = RED, BLUE
    return pixels


def raw(pixels: np.ndarray[Any, Any], encoding: str, *, padding: int = 0, big_endian: bool = False) -> Any:
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(height, -1)
    padded = np.concatenate([rows, np.full((height, padding), 0xAA, np.uint8)], axis=1)
    message = Image(height=height, width=width, encoding=encoding, step=padded.shape[1], is_bigendian=int(big_endian))
    convert.put(message, "data", array.array("B", padded.tobytes()))
    return message


def compressed(data: bytes, declared: str) -> Any:
    message = CompressedImage(format=declared)
    convert.put(message, "data", array.array("B", data))
    return message


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


class Eye:
    """One camera."""

    def __init__(self, *, max_size_px: int = 640, depth: tuple[float, float] | None = (0.0, 2.55)) -> None:
        self.refused: Counter[str] = Counter()
        camera = CameraConfig(name="eye", topic="eye", depth_range_m=depth)
        self.set = CameraSet([camera], self.refused, jpeg_quality=95, max_size_px=max_size_px)

    def see(self, message: Any) -> EncodedImage:
        self.set.take("eye", sent(message), 1.0)
        assert self.set.images, self.refused
        assert self.set.received_s == (1.0,)
        return self.set.images[0]

    def refuse(self, message: Any, counter: str) -> None:
        self.set.take("eye", sent(message), 1.0)
        assert self.set.images is None and self.refused == {counter: 1}


def decoded(image: EncodedImage) -> np.ndarray[Any, Any]:
    assert image.format == "jpeg"
    pixels: np.ndarray[Any, Any] = simplejpeg.decode_jpeg(image.data, colorspace="RGB")
    return pixels


def halves(pixels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Mean colours, away from the edge."""
    quarter = pixels.shape[1] // 4
    return pixels[:, :quarter].mean((0, 1)), pixels[:, -quarter:].mean((0, 1))


# --- cameras --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        raw(scene(), "rgb8"),
        raw(scene(), "rgb8", padding=7),
        raw(scene()[:, :, ::-1], "bgr8"),
        raw(scene()[:, :, ::-1], "bgr8", padding=13),
        compressed(simplejpeg.encode_jpeg(scene(), quality=95), "rgb8; jpeg compressed bgr8"),
        compressed(simplejpeg.encode_jpeg(np.ascontiguousarray(scene()[:, :, ::-1]), quality=95, colorspace="BGR"), "jpg"),
        compressed(png(scene()), "bgr8; png compressed bgr8"),
    ],
    ids=["rgb8", "rgb8 padded", "bgr8", "bgr8 padded", "jpeg", "jpeg from bgr", "png"],
)
@pytest.mark.parametrize("max_size_px", [640, 32])
def test_red_stays_red(message: Any, max_size_px: int) -> None:
    pixels = decoded(Eye(max_size_px=max_size_px).see(message))
    assert pixels.shape == ((HEIGHT, WIDTH, 3) if max_size_px == 640 else (24, 32, 3))
    left, right = halves(pixels)
    assert np.allclose(left, RED, atol=6) and np.allclose(right, BLUE, atol=6)


@pytest.mark.parametrize("padding", [0, 5])
def test_grey_stays_grey(padding: int) -> None:
    grey = np.full((HEIGHT, WIDTH), 77, np.uint8)
    grey[:, WIDTH // 2 :] = 200
    left, right = halves(decoded(Eye().see(raw(grey, "mono8", padding=padding))))
    assert np.allclose(left, 77, atol=3) and np.allclose(right, 200, atol=3)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("big_endian", [False, True])
def test_depth_becomes_grey_by_its_range_in_either_byte_order(padding: int, big_endian: bool) -> None:
    depth_mm = np.full((HEIGHT, WIDTH), 500, ">u2" if big_endian else "<u2")
    depth_mm[:, WIDTH // 2 :] = 60_000
    depth_mm[:, : WIDTH // 4] = 0
    pixels = decoded(Eye().see(raw(depth_mm, "16UC1", padding=padding, big_endian=big_endian)))
    assert np.allclose(pixels[:, 20:28].mean(), 50, atol=2)  # 0.5 m of 2.55 m
    assert np.allclose(pixels[:, -20:].mean(), 255, atol=2)
    assert np.allclose(pixels[:, :10].mean(), 0, atol=2)


def test_depth_as_png_is_depth_too() -> None:
    pixels = decoded(Eye().see(compressed(png(np.full((HEIGHT, WIDTH), 1000, np.uint16)), "16UC1; png compressed")))
    assert np.allclose(pixels.mean(), 100, atol=2)


def test_a_jpeg_that_fits_passes_through_untouched() -> None:
    jpeg = simplejpeg.encode_jpeg(scene(), quality=33)
    message = sent(compressed(jpeg, "jpeg"))
    eye = Eye()
    eye.set.take("eye", message, 1.0)
    assert eye.set.images
    image = eye.set.images[0]
    assert bytes(image.data) == jpeg and (image.height_px, image.width_px) == (HEIGHT, WIDTH)
    assert isinstance(image.data, memoryview) and image.data.obj is message.data  # shared
    assert convert.image_to(image).data is message.data


def test_an_image_is_encoded_when_sent_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = cameras.encoded
    monkeypatch.setattr(cameras, "encoded", lambda *arguments: calls.append(1) or real(*arguments))
    eye = Eye()
    for _ in range(5):
        image = eye.see(raw(scene(), "rgb8"))
    assert not calls
    first, second = convert.image_to(image), convert.image_to(image)
    assert len(calls) == 1 and first.data is second.data and first.format == "jpeg" and first.header.frame_id == "eye"


def with_fields(message: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "counter"),
    [
        (with_fields(raw(scene(), "rgb8"), height=HEIGHT + 1), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), step=3 * WIDTH - 1), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), step=3 * WIDTH + 5), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), width=0), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), width=2**31, height=2**31), "image_too_large"),
        (Image(encoding="rgb8"), "bad_image"),
        (raw(scene(), "bayer_rggb8"), "bad_encoding"),
        (with_fields(raw(scene()[:, :, 0], "mono8"), encoding="16UC1"), "bad_image"),
        (compressed(b"", "jpeg"), "bad_image"),
        (compressed(b"\xff\xd8\xff" + bytes(100), "jpeg"), "bad_image"),
        (compressed(b"not a png at all", "png"), "bad_image"),
        (compressed(bytes(200), "16UC1; compressedDepth png"), "bad_encoding"),
        (compressed(simplejpeg.encode_jpeg(scene()), "webp"), "bad_encoding"),
        (compressed(bytes(MAX_ENCODED_BYTES + 1), "jpeg"), "image_too_large"),
    ],
)
def test_images_that_lie_are_counted_and_dropped(message: Any, counter: str) -> None:
    Eye(depth=(0.0, 1.0)).refuse(message, counter)


def test_depth_needs_a_declared_range() -> None:
    Eye(depth=None).refuse(raw(np.zeros((4, 4), np.uint16), "16UC1"), "no_depth_range")


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_an_image_that_breaks_off_is_counted_when_it_is_sent(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)
    whole = png(noise) if kind == "png" else simplejpeg.encode_jpeg(noise)
    eye = Eye(max_size_px=64)
    image = eye.see(compressed(whole[: len(whole) // 2], kind))
    assert len(image.data) == 0 and eye.refused == {"bad_image": 1} and eye.set.images is None


def test_all_cameras_or_none() -> None:
    refused: Counter[str] = Counter()
    pair = CameraSet([CameraConfig(name=name, topic=name) for name in "ab"], refused, jpeg_quality=90, max_size_px=640)
    jpeg = compressed(simplejpeg.encode_jpeg(scene()), "jpeg")
    pair.take("b", jpeg, 1.0)
    assert pair.images is None
    pair.take("a", jpeg, 2.0)
    assert pair.images and [image.camera for image in pair.images] == ["a", "b"]
    assert sorted(pair.received_s) == [1.0, 2.0]
    pair.forget()
    assert pair.images is None


# --- state ----------------------------------------------------------------------------------------------------------------


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


# --- sinks ----------------------------------------------------------------------------------------------------------------


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
        end_s = time.monotonic() + 30.0
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
    (point,) = message.points
    assert message.joint_names == ["j1", "j2"] and point.positions.tolist() == [0.5, -2.0] and not point.velocities
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (0, 50_000_000)
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


# --- parameters -----------------------------------------------------------------------------------------------------------

JOINT_ROBOT: dict[str, Any] = {
    "action_names": ["x", "y"],
    "cameras": ["front", "wrist"],
    "state_size": 4,
    "state_parts": ["joint_states"],
    "joints": ["a", "b"],
    "joint_fields": ["position", "velocity"],
    "command_type": "position",
    "action_joints": ["a", "b"],
}


def settings(given: dict[str, Any], name: str = "r1", **how: Any) -> RobotSettings:
    made = Node("robot", parameter_overrides=[Parameter(key, value=value) for key, value in given.items()])
    try:
        return robot_settings(made, name, **how)
    finally:
        made.destroy_node()


@pytest.fixture
def ros(ros_domain: int) -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.try_shutdown()


def test_every_parameter_is_described_and_has_a_usable_default(ros: None) -> None:
    made = Node("robot")
    read = robot_settings(made, "r1")
    described = made.describe_parameters(list(SPECS))
    assert all(parameter.description for parameter in described), [p.name for p in described if not p.description]
    assert all(parameter.additional_constraints for parameter in described)
    made.destroy_node()
    assert read.config.failsafe == FailSafeConfig() and read.config.link == LinkConfig()
    assert read.config.name == "r1" and read.config.action_names == ("delta_x",)
    assert read.io.cameras == (CameraConfig(name="front", topic="camera/front/image/compressed"),)


def test_parameters_become_what_the_robot_is_told(ros: None) -> None:
    read = settings(
        JOINT_ROBOT
        | {
            "robot": "other",
            "control_rate_hz": 50,  # an integer will do
            "interpolation": 5,
            "tick": "timer",
            "limits.lower": [-1.0, -2.0],
            "limits.upper": [1.0, 2.0],
            "limits.max_velocity": [1, 2],
            "fallback": ["repeat_last:0.2", "ramp_down:0.5", "hold"],
            "camera_types": ["wrist=image"],
            "camera_topics": ["front=/cam/jpeg"],
            "camera_depth_range_m": ["wrist=0.2:1.5"],
            "unit_scale": ["a=0.5"],
            "sink": "trajectory",
            "link.request_timeout_s": 0.3,
            "failsafe.max_offline_s": 0.0,
            "component_fallbacks": ["safety=stop_and_replan"],
            "max_task_retries": 7,
        }
    )
    config, io_config = read.config, read.io
    assert (config.name, config.control_rate_hz, config.interpolation) == ("other", 50.0, 5)
    assert read.tick is TickSource.TIMER
    assert config.command_type is CommandType.POSITION and config.limits.max_velocity == (1.0, 2.0)
    assert config.fallback == (Rung(Motion.REPEAT_LAST, 0.2), Rung(Motion.RAMP_DOWN, 0.5), Rung(Motion.HOLD))
    assert (config.link.request_timeout_s, config.failsafe.max_offline_s, config.policy.max_task_retries) == (0.3, 0.0, 7)
    assert config.policy.fallbacks["safety"].value == "stop_and_replan"
    assert io_config.cameras == (
        CameraConfig(name="front", topic="/cam/jpeg"),
        CameraConfig(name="wrist", topic="camera/wrist/image_raw", raw=True, depth_range_m=(0.2, 1.5)),
    )
    assert io_config.sink.trajectory_field == "positions" and io_config.state.unit_scale == {"a": 0.5}


def test_one_robot_of_several_may_differ(ros: None) -> None:
    given = {"state_size": 3, "max_action_age_s": 2.0, "r2.max_action_age_s": 1.0, "r2.task": "push", "task": "pick"}
    first, second = (settings(given, name, one_of_many=True) for name in ("r1", "r2"))
    assert (first.config.name, first.config.max_action_age_s, first.task) == ("r1", 2.0, "pick")
    assert (second.config.name, second.config.max_action_age_s, second.task) == ("r2", 1.0, "push")
    with pytest.raises(ConfigurationError) as caught:
        settings(given | {"r2.max_action_age_s": -1.0}, "r2", one_of_many=True)
    assert caught.value.key == "r2.max_action_age_s"


def test_misspelt_parameters_are_found(ros: None) -> None:
    made = Node("robot", parameter_overrides=[Parameter("control_rate", value=20.0), Parameter("state_size", value=3)])
    robot_settings(made, "r1")
    assert unknown(made) == ["control_rate (did you mean control_rate_hz?)"]
    made.destroy_node()


def flat(parameters: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """As ROS reads a parameter file."""
    pairs = [(f"{prefix}{name}", value) for name, value in parameters.items()]
    nested = [flat(value, f"{name}.") for name, value in pairs if isinstance(value, dict)]
    return {name: value for name, value in pairs if not isinstance(value, dict)} | {
        k: v for part in nested for k, v in part.items()
    }


def test_the_example_of_the_documentation_is_a_robot(ros: None, repository: Path) -> None:
    page = (repository / "docs/integrate.md").read_text()
    example = yaml.safe_load(page.split("```yaml")[1].split("```")[0])["/**"]["ros__parameters"]
    read = settings(flat(example))
    check_ladder(read.config)
    assert read.config.state_size == 9 and read.config.step_rate_hz == 20.0
    named = set(re.findall(r"`((?:camera|joint|state|sink|limits|command|twist|trajectory|safe)[_.][a-z_]+)`", page))
    assert len(named) > 15 and named <= {*SPECS, "joint_states", "sink_failed"}


POSITIONS = "measured positions"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"control_rate_hz": 0.0}, "control_rate_hz", "out of range"),
    ({"control_rate_hz": "fast"}, "control_rate_hz", "not a number"),
    ({"execution_horizon": 2.5}, "execution_horizon", "not an integer"),
    ({"synchronous": 1}, "synchronous", "not a truth value"),
    ({"conditioning": "prefx"}, "conditioning", "did you mean 'prefix'"),
    ({"action_names": [""]}, "action_names", "without actions"),
    ({"cameras": ["a", "a"]}, "cameras", "twice"),
    ({"component_prompts": ["no equals sign"]}, "component_prompts", "key=value"),
    ({"calls_per_action": ["system2=often"]}, "calls_per_action", "'often' is not a number"),
    ({"command_type": "delta", "interpolation": 2}, "interpolation", "displacements"),
    ({"limits.lower": [0.0]}, "limits.lower", "1 values for 2"),
    ({"limits.lower": [0.0, 0.0], "limits.upper": [1.0, 0.0]}, "limits.lower", "not below"),
    ({"limits.tolerance": -1.0}, "limits.tolerance", "out of range"),
    ({"command_type": "velocity", "limits.max_velocity": [1.0, 1.0]}, "limits.max_velocity", "velocities themselves"),
    ({"limits.max_velocity": [1.0, 1.0], "action_joints": [""]}, "limits.max_velocity", POSITIONS),
    ({"limits.max_acceleration": [1.0, 1.0], "action_joints": [""]}, "limits.max_acceleration", POSITIONS),
    ({"fallback": ["safe_pose"], "safe_pose": [0.0, 0.0], "action_joints": [""]}, "fallback", POSITIONS),
    ({"fallback": ["stop"]}, "fallback", "unknown motion"),
    ({"fallback": ["repeat_last:0"]}, "fallback", "lasts no time"),
    ({"safe_pose": [1.0]}, "safe_pose", "1 for 2 actions"),
    ({"safe_pose": [math.nan, 0.0]}, "safe_pose", "not finite"),
    ({"camera_topics": ["top=/top"]}, "camera_topics", "no such camera: top"),
    ({"camera_topics": ["front=/1st camera"]}, "camera_topics", "topic name"),
    ({"camera_types": ["front=webcam"]}, "camera_types", "unknown type"),
    ({"camera_depth_range_m": ["front=2:1"]}, "camera_depth_range_m", "no range"),
    ({"jpeg_quality": 0}, "jpeg_quality", "out of range"),
    ({"state_parts": ["odometry"]}, "state_parts", "not the parts"),
    ({"joints": [""]}, "joints", "none are named"),
    ({"joint_fields": ["pose"]}, "joint_fields", "not fields"),
    ({"state_size": 5}, "state_size", "2 joints x 2 fields are 4 of 5"),
    ({"state_size": 4, "state_parts": ["joint_states", "array"]}, "state_size", "4 of 4"),
    ({"unit_scale": ["c=2.0"]}, "unit_scale", "no such joint: c"),
    ({"unit_scale": ["a=0"]}, "unit_scale", "factor of zero"),
    ({"action_joints": ["a"]}, "action_joints", "1 for 2 actions"),
    ({"action_state": [0, 1]}, "action_state", "not from both"),
    ({"action_state": [0, 4], "action_joints": [""]}, "action_state", "not places"),
    ({"sink": "serial"}, "sink", "unknown"),
    ({"sink": "custom"}, "sink_class", "needs its class"),
    ({"sink": "twist", "twist_axes": ["x=linear.x"]}, "twist_axes", "every action"),
    ({"sink": "twist", "twist_axes": ["x=linear.x", "y=linear.x"]}, "twist_axes", "every action"),
    ({"sink": "twist", "twist_axes": ["x=linear.x", "y=up"]}, "twist_axes", "every action"),
    ({"sink": "trajectory", "command_type": "delta"}, "trajectory_field", "delta commands"),
    ({"sink_joints": ["a"]}, "sink_joints", "1 for 2 actions"),
    ({"command_scale": [1.0, 2.0, 3.0]}, "command_scale", "3 for 2 actions"),
    ({"component_fallbacks": ["safety=pray"]}, "component_fallbacks", "no fallback 'pray'"),
    ({"on_max_violation": "explode"}, "on_max_violation", "unknown"),
    ({"link.max_timeouts": 0}, "link.max_timeouts", "out of range"),
]


def test_a_wrong_parameter_is_named_with_its_value_and_the_fix(ros: None) -> None:
    for wrong, key, problem in WRONG:
        with pytest.raises(ConfigurationError) as caught:
            settings(JOINT_ROBOT | wrong)
        assert caught.value.key == key and problem in str(caught.value), (wrong, str(caught.value))
        assert caught.value.fix, wrong
        if key in wrong and not key.startswith("limits."):
            shown = wrong[key][0] if isinstance(wrong[key], list) else wrong[key]
            assert str(shown) in str(caught.value), str(caught.value)


# --- the foreign robot ----------------------------------------------------------------------------------------------------


class Arm:
    """What the interface of a simulated arm asks of it."""

    state = np.arange(39, dtype=np.float32) / 10


def test_the_foreign_robot_is_mapped_onto_the_model(repository: Path, node: Node) -> None:
    """Through config/robots/metaworld_foreign.yaml there and back: names, orders, units, channel order, padding."""
    from ros2_rfm_serving.ros.metaworld_interfaces import make_interface

    given = yaml.safe_load((repository / "config/robots/metaworld_foreign.yaml").read_text())["/**"]["ros__parameters"]
    read = settings(flat(given))
    actions: list[Any] = []
    arm = make_interface("foreign", node, "/r1/{}".format, actions.append, 1.0 / read.config.control_rate_hz)

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
    message = received(node, JointTrajectory, lambda: sink.send(action, 0.05), topic)
    assert message.points[0].velocities.tolist() == pytest.approx([0.02, -0.2, 0.1, 75.0])
    repeat(node, lambda: sink.send(action, 0.05), lambda: actions)
    assert all(np.allclose(taken, action) for taken in actions)
    sink.close()
    assert not refused
