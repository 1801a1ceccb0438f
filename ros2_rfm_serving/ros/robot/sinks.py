"""Command sinks: ros2_control's trajectory and forward controllers, `Twist` bases, or a user's own class."""

from __future__ import annotations

import array
import enum
import importlib
import re
import traceback
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.topic_endpoint_info import TopicEndpointInfo
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType, Trajectory
from ros2_rfm_serving.robot.output import counted_on, published
from ros2_rfm_serving.robot.proving import DryRun
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import put
from ros2_rfm_serving.types import Array

TRAJECTORY_FIELDS = ("positions", "velocities", "accelerations", "effort")
LAST_COMMAND_S = 0.5
"""Maximum time for the acknowledgement of the last command when a sink is closed."""
OBSERVERS = re.compile(r"/((_ros2cli_|rosbag2_|rqt_|plotjuggler|foxglove_bridge)[^/]*|rfm_foxglove|recorder)$")
"""Nodes that observe topics, and execute nothing: `ros2 topic`, recorders and displays, including this package's."""
TWIST_AXES = tuple(f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")


class SinkKind(enum.Enum):
    ARRAY = "array"
    TRAJECTORY = "trajectory"
    CHUNK = "chunk"
    TWIST = "twist"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class SinkConfig:
    """Configuration of a sink. It publishes `scale * command + offset`, per action; limits and safe poses apply to the command."""

    action_names: tuple[str, ...]
    kind: SinkKind = SinkKind.ARRAY
    topic: str = "command"
    """Topic name: absolute, or below the robot's namespace."""
    scale: tuple[float, ...] = ()
    """[A]; empty: 1"""
    offset: tuple[float, ...] = ()
    """[A]; empty: 0"""
    joints: tuple[str, ...] = ()
    """[A] joints of a trajectory, in the order of the actions; empty: the actions' names."""
    trajectory_field: str = "positions"
    """Field of a trajectory's point that has the numbers."""
    time_from_start_s: float = 0.0
    """time_from_start of a trajectory's point, s; 0: one control period."""
    with_velocities: bool = True
    """A chunk's points have velocities beside positions."""
    twist_axes: tuple[str, ...] = ()
    """[A] axis of a twist for each action, such as `linear.x`."""
    stamped: bool = False
    """Publish `TwistStamped` in place of `Twist`, while no subscriber is known that accepts only one of them."""
    frame_id: str = ""
    zero_stamp: bool = False
    """A stamped twist has a zero stamp: the controller uses its own time."""
    custom_class: str = ""
    """`package.module:Class`, a `CommandSink` that is created with (node, topic, this configuration)."""
    turns: tuple[float, ...] = ()
    """[A] one turn of a continuous joint, in units of the command; 0: the column does not wrap; empty: none does."""
    command_types: tuple[CommandType, ...] = ()
    """[A] command type of each number, for a user's own sink; empty: unknown."""

    @property
    def meaning(self) -> CommandType | None:
        """Command type of the published numbers, which determines how the robot stops; None: that of the commands."""
        if self.kind is SinkKind.TRAJECTORY:
            return CommandType.POSITION if self.trajectory_field == "positions" else CommandType.VELOCITY
        if self.kind is SinkKind.CHUNK:
            return CommandType.POSITION
        return CommandType.VELOCITY if self.kind is SinkKind.TWIST else None


class CommandSink(Protocol):
    """The two methods of a sink. Both are called on the node's only thread; neither may block.

    A robot stops by whatever stops commands of each column's type (`SinkConfig.command_types`): zero for velocities and efforts,
    silence for all others. A stop is one command with zeros in the former and with the last values in the others.

    `send` gets every command that goes out, [A] float32 in the order of the actions, in the units of the policy, and its intended
    duration. `close` is called once, at cleanup, to free resources; the robot has been stopped before."""

    def send(self, command: Array, period_s: float) -> None: ...

    def close(self) -> None: ...


def make_sink(node: Node, config: SinkConfig, topic: str, refused: Counter[str]) -> CommandSink:
    """Return the declared sink, which publishes on `topic`. Exceptions of a custom one are counted in `refused` and logged.
    Raises: `ConfigurationError` when a custom one cannot be created."""
    if config.kind is SinkKind.CUSTOM:
        return _Guarded(node, _custom(node, config, topic), config.custom_class, refused)
    made = {
        SinkKind.ARRAY: ArraySink,
        SinkKind.TRAJECTORY: TrajectorySink,
        SinkKind.CHUNK: ChunkSink,
        SinkKind.TWIST: TwistSink,
    }[config.kind]
    return made(node, config, topic)


class DryRunSink:
    """Sink that publishes nothing, and records every command in `run`."""

    def __init__(self, run: DryRun) -> None:
        self.run = run

    def send(self, command: Array, period_s: float) -> None:
        self.run.add(command)

    def send_trajectory(self, trajectory: Trajectory) -> None:
        """Do nothing: `send` gets each command of a trajectory, too."""

    def close(self) -> None:
        """Do nothing: there are no resources."""


class TopicSink:
    """Sink that publishes reliably, and only the newest command."""

    message: type
    _events: PublisherEventCallbacks | None = None
    """Event callbacks; None: rclpy's own, which log incompatible QoS."""

    def __init__(self, node: Node, config: SinkConfig, topic: str) -> None:
        self._node, self._config, self._topic = node, config, topic
        self._publisher = node.create_publisher(self.message, topic, qos.COMMAND, event_callbacks=self._events)

    @property
    def type_name(self) -> str:
        """Name of the message type on the graph."""
        return graph_name(self.message)

    def adapt(self, taken: Collection[str]) -> None:
        """Follow the subscribers' type, where a sink can send more than one. taken: their types, as named on the graph."""

    def send(self, command: Array, period_s: float) -> None:
        self._publish(self._to(array.array("d", self._published(command).tobytes()), period_s))

    def close(self) -> None:
        """Wait until the last command, which may be a stop, has arrived: a destroyed publisher does not resend it."""
        try:
            self._publisher.wait_for_all_acked(Duration(seconds=LAST_COMMAND_S))
        finally:  # a middleware may have no acknowledgements
            self._node.destroy_publisher(self._publisher)

    def _published(self, command: Array) -> npt.NDArray[np.float64]:
        return published(command, self._config.scale, self._config.offset)

    def _publish(self, message: Any) -> None:
        self._publisher.publish(message)

    def _to(self, values: array.array[float], period_s: float) -> Any:
        raise NotImplementedError


class ArraySink(TopicSink):
    """`std_msgs/Float64MultiArray` for ros2_control's forward command controllers, which have their own order of joints."""

    message = Float64MultiArray

    def _to(self, values: array.array[float], period_s: float) -> Any:
        message = Float64MultiArray()
        put(message, "data", values)
        return message


class TrajectorySink(TopicSink):
    """`trajectory_msgs/JointTrajectory` towards one command, which a joint_trajectory_controller starts at once.

    Positions are sent as two points, the second of which stays at the first: a trajectory of one point is never joined with the one
    in progress, but starts from the measured position (ros2_controllers 94e74de, `has_nontrivial_msg`), so that a lagging arm would
    never get as far as its commands. Velocities are one point: how far the arm gets is not known here.

    Positions of a continuous joint count on beyond a turn: where trajectories are joined, the controller goes from number to
    number, and from 3.1 to -3.1 that is the long way round (`blend_with_active_trajectory` wraps nothing)."""

    message = JointTrajectory

    def __init__(self, node: Node, config: SinkConfig, topic: str) -> None:
        super().__init__(node, config, topic)
        self._turns = np.abs(np.array(config.turns or 0.0) * np.array(config.scale or 1.0))
        self._sent: npt.NDArray[np.float64] | None = None
        """[A] last positions that were published."""
        if config.trajectory_field == "velocities":
            node.get_logger().info(
                f"{topic} gets velocities without positions: a joint_trajectory_controller takes them with"
                " allow_integration_in_goal_trajectories and allow_nonzero_velocity_at_trajectory_end, which are false by default"
            )

    def _published(self, command: Array) -> npt.NDArray[np.float64]:
        values = super()._published(command)
        if self._config.trajectory_field != "positions" or not self._turns.any():
            return values
        self._sent = values if self._sent is None else counted_on(values, self._sent, self._turns)
        return self._sent

    def _to(self, values: array.array[float], period_s: float) -> Any:
        time_s, field = self._config.time_from_start_s or period_s, self._config.trajectory_field
        times_s = (time_s, time_s + period_s) if field == "positions" else (time_s,)
        points = [JointTrajectoryPoint(time_from_start=Duration(seconds=seconds).to_msg()) for seconds in times_s]
        for point in points:
            put(point, field, values)
        return JointTrajectory(joint_names=list(self._config.joints or self._config.action_names), points=points)


class ChunkSink(TopicSink):
    """`trajectory_msgs/JointTrajectory` with the robot's planned motion, ending at rest, whenever that changes.
    The stamp is zero, so that the controller starts at once by its own clock, and no point is in its past."""

    message = JointTrajectory

    def send(self, command: Array, period_s: float) -> None:
        """Do nothing: a single command is a part of a trajectory."""

    def send_trajectory(self, trajectory: Trajectory) -> None:
        config = self._config
        positions = published(trajectory.positions, config.scale, config.offset)
        velocities = published(trajectory.velocities, config.scale, ())
        points = []
        for time_s, position, velocity in zip(trajectory.times_s, positions, velocities, strict=True):
            point = JointTrajectoryPoint(time_from_start=Duration(seconds=float(time_s)).to_msg())
            put(point, "positions", array.array("d", position.tobytes()))
            if config.with_velocities:
                put(point, "velocities", array.array("d", velocity.tobytes()))
            points.append(point)
        self._publish(JointTrajectory(joint_names=list(config.joints or config.action_names), points=points))


class TwistSink(TopicSink):
    """`geometry_msgs/Twist` or `TwistStamped`, by the subscriber's type; axes without an action stay zero."""

    _events = PublisherEventCallbacks(use_default_callbacks=False)
    """No event callbacks: an entity that is destroyed while an event of it is queued can crash rclpy's events executor
    (ros2/rclpy#1644)."""

    def __init__(self, node: Node, config: SinkConfig, topic: str) -> None:
        self.message = TwistStamped if config.stamped else Twist
        self.message = self._fitting(takers(subscribers(node, topic)))
        super().__init__(node, config, topic)
        self._axes = [axis.split(".") for axis in config.twist_axes]

    def adapt(self, taken: Collection[str]) -> None:
        """Publish the other type from now on. A process has one type per topic, so that the first publisher has to go before."""
        fitting = self._fitting(taken)
        if fitting is not self.message:
            self._node.destroy_publisher(self._publisher)
            self.message = fitting
            self._publisher = self._node.create_publisher(fitting, self._topic, qos.COMMAND, event_callbacks=self._events)

    def _fitting(self, taken: Collection[str]) -> type:
        """Return the type of messages that subscribers accept; the present one while that is undecided."""
        fitting = [kind for kind in (Twist, TwistStamped) if graph_name(kind) in taken]
        return fitting[0] if len(fitting) == 1 else self.message

    def _to(self, values: array.array[float], period_s: float) -> Any:
        twist = Twist()
        for (part, axis), value in zip(self._axes, values, strict=True):
            setattr(getattr(twist, part), axis, value)
        if self.message is Twist:
            return twist
        message = TwistStamped(twist=twist)
        message.header.frame_id = self._config.frame_id
        if not self._config.zero_stamp:
            message.header.stamp = self._node.get_clock().now().to_msg()
        return message


def graph_name(kind: type) -> str:
    """Return the name of a message type on the ROS graph, such as `geometry_msgs/msg/Twist`."""
    return "/".join([*kind.__module__.split(".")[:2], kind.__name__])


def subscribers(node: Node, topic: str) -> dict[str, list[str]]:
    """Return the subscribers of an absolute topic, as far as they are known: names of nodes, by message type."""
    found: dict[str, list[str]] = {}
    for endpoint in node.get_subscriptions_info_by_topic(topic):
        found.setdefault(endpoint.topic_type, []).append(full_name(endpoint))
    return found


def full_name(endpoint: TopicEndpointInfo) -> str:
    """Return the name of the node of a publisher or a subscription, with its namespace."""
    return f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"


def takers(nodes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the subscribers that execute commands, by type: without nodes that only observe."""
    found = {kind: [name for name in names if not OBSERVERS.search(name)] for kind, names in nodes.items()}
    return {kind: names for kind, names in found.items() if names}


class _Guarded:
    """Wrapper of a user's own sink: an exception costs one command, not the control loop."""

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
    """Return the class `package.module:Class`. Raises: `ConfigurationError`."""
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
