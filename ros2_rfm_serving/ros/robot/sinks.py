"""Where commands go: ros2_control's trajectory and forward controllers, `Twist` bases, or a class of the user's own."""

from __future__ import annotations

import array
import enum
import importlib
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.duration import Duration
from rclpy.node import Node
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.output import published
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import put
from ros2_rfm_serving.types import Array

TRAJECTORY_FIELDS = ("positions", "velocities", "accelerations", "effort")
TWIST_AXES = tuple(f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")


class SinkKind(enum.Enum):
    ARRAY = "array"
    TRAJECTORY = "trajectory"
    TWIST = "twist"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class SinkConfig:
    """What is published is `scale * command + offset`, per action; limits and safe poses are of the command."""

    action_names: tuple[str, ...]
    kind: SinkKind = SinkKind.ARRAY
    topic: str = "command"
    """Absolute, or below the robot's namespace."""
    scale: tuple[float, ...] = ()
    """[A]; empty: 1"""
    offset: tuple[float, ...] = ()
    """[A]; empty: 0"""
    joints: tuple[str, ...] = ()
    """[A] of a trajectory, in the order of the actions; empty: the actions' names."""
    trajectory_field: str = "positions"
    """Of a trajectory's point: what the numbers are."""
    time_from_start_s: float = 0.0
    """Of a trajectory's point; 0: one control period."""
    twist_axes: tuple[str, ...] = ()
    """[A] of a twist: where each action goes, such as `linear.x`."""
    stamped: bool = False
    """`TwistStamped` in place of `Twist`."""
    frame_id: str = ""
    custom_class: str = ""
    """`package.module:Class`, a `CommandSink` made with (node, topic, this configuration)."""
    command_types: tuple[CommandType, ...] = ()
    """[A] what each number is, for a sink of the user's own; empty: not known."""

    @property
    def meaning(self) -> CommandType | None:
        """What its numbers are where they arrive, and so what stops the robot there; None: whatever the commands are."""
        if self.kind is SinkKind.TRAJECTORY:
            return CommandType.POSITION if self.trajectory_field == "positions" else CommandType.VELOCITY
        return CommandType.VELOCITY if self.kind is SinkKind.TWIST else None


class CommandSink(Protocol):
    """The two methods of a sink. Both are called on the node's one thread; neither may block.

    What stops the robot is what stops commands of each column's type (`SinkConfig.command_types`): zero for velocities and
    efforts, silence for all others. A stop is one command with zeros in the former and with the last values in the others.

    `send` gets every command that goes out, [A] float32 in the order of the actions, in the units of the policy, and for how
    long it is meant. `close` is called once, at cleanup: free what was made; the robot has been told to stop before.
    """

    def send(self, command: Array, period_s: float) -> None: ...

    def close(self) -> None: ...


def make_sink(node: Node, config: SinkConfig, topic: str, refused: Counter[str]) -> CommandSink:
    """The declared sink, publishing on `topic`. A custom one that raises is counted in `refused` and said aloud.

    Raises: `ConfigurationError` when a custom one cannot be made.
    """
    if config.kind is SinkKind.CUSTOM:
        return _Guarded(node, _custom(node, config, topic), config.custom_class, refused)
    made = {SinkKind.ARRAY: ArraySink, SinkKind.TRAJECTORY: TrajectorySink, SinkKind.TWIST: TwistSink}[config.kind]
    return made(node, config, topic)


class _TopicSink:
    """Publishes reliably, the newest command only."""

    message: type

    def __init__(self, node: Node, config: SinkConfig, topic: str) -> None:
        self._node, self._config = node, config
        self._publisher = node.create_publisher(self.message, topic, qos.COMMAND)

    def send(self, command: Array, period_s: float) -> None:
        values = array.array("d", published(command, self._config.scale, self._config.offset).tobytes())
        self._publisher.publish(self._to(values, period_s))

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)

    def _to(self, values: array.array[float], period_s: float) -> Any:
        raise NotImplementedError


class ArraySink(_TopicSink):
    """`std_msgs/Float64MultiArray`: ros2_control's forward command controllers, which bring their own joints in their own order."""

    message = Float64MultiArray

    def _to(self, values: array.array[float], period_s: float) -> Any:
        message = Float64MultiArray()
        put(message, "data", values)
        return message


class TrajectorySink(_TopicSink):
    """`trajectory_msgs/JointTrajectory` with one point, which a joint_trajectory_controller starts on at once."""

    message = JointTrajectory

    def _to(self, values: array.array[float], period_s: float) -> Any:
        duration = Duration(seconds=self._config.time_from_start_s or period_s)
        point = JointTrajectoryPoint(time_from_start=duration.to_msg())
        put(point, self._config.trajectory_field, values)
        return JointTrajectory(joint_names=list(self._config.joints or self._config.action_names), points=[point])


class TwistSink(_TopicSink):
    """`geometry_msgs/Twist`, or stamped with the node's time; axes without an action stay zero."""

    def __init__(self, node: Node, config: SinkConfig, topic: str) -> None:
        self.message = TwistStamped if config.stamped else Twist
        super().__init__(node, config, topic)
        self._axes = [axis.split(".") for axis in config.twist_axes]

    def _to(self, values: array.array[float], period_s: float) -> Any:
        twist = Twist()
        for (part, axis), value in zip(self._axes, values, strict=True):
            setattr(getattr(twist, part), axis, value)
        if not self._config.stamped:
            return twist
        message = TwistStamped(twist=twist)
        message.header.frame_id = self._config.frame_id
        message.header.stamp = self._node.get_clock().now().to_msg()
        return message


class _Guarded:
    """A class of the user's own: what it raises costs one command, not the control loop."""

    def __init__(self, node: Node, sink: CommandSink, name: str, refused: Counter[str]) -> None:
        self._node, self._sink, self._name, self._refused = node, sink, name, refused

    def send(self, command: Array, period_s: float) -> None:
        try:
            self._sink.send(command, period_s)
        except Exception:
            self._failed("send")

    def close(self) -> None:
        try:
            self._sink.close()
        except Exception:
            self._failed("close")

    def _failed(self, method: str) -> None:
        self._refused["sink_failed"] += 1
        self._node.get_logger().error(f"{self._name}.{method} failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)


def load_class(path: str) -> Any:
    """`package.module:Class`. Raises: `ConfigurationError`."""
    module_name, _, class_name = path.partition(":")
    fix = "give it as package.module:Class, importable in this node's environment"
    if not module_name or not class_name:
        raise ConfigurationError(f"{path!r} is no class", key="sink_class", fix=fix)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{path!r} cannot be loaded: {error}", key="sink_class", fix=fix) from error
    missing = [method for method in ("send", "close") if not callable(getattr(found, method, None))]
    if missing:
        raise ConfigurationError(f"{path!r} has no method {' and no '.join(missing)}", key="sink_class", fix="add it")
    return found


def _custom(node: Node, config: SinkConfig, topic: str) -> CommandSink:
    try:
        sink: CommandSink = load_class(config.custom_class)(node, topic, config)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{config.custom_class!r} cannot be made: {type(error).__name__}: {error}",
            key="sink_class",
            fix="its constructor is called with (node, topic, config)",
        ) from error
    return sink
