"""Planned motion and state of one robot as markers for rviz; computed only while there is a subscriber."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import Point
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rfm_serving import msg
from sensor_msgs.msg import JointState
from std_msgs.msg import ColorRGBA, Float32MultiArray, String
from visualization_msgs.msg import Marker, MarkerArray

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.monitoring.activity import shown_state
from ros2_rfm_serving.monitoring.board import Proof
from ros2_rfm_serving.monitoring.kinematics import Arm
from ros2_rfm_serving.monitoring.paths import Points, colour, path
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.proven import Proven
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.types import RobotState, TaskPhase

DESCRIPTION = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
EXECUTED_RGBA, EXECUTING_RGBA, TEXT_RGBA = (0.1, 0.5, 1.0, 1.0), (1.0, 1.0, 1.0, 0.35), (1.0, 1.0, 1.0, 1.0)
TROUBLE_RGBA = (1.0, 0.3, 0.2, 1.0)
TEXT_ABOVE_M, TEXT_HEIGHT_M = 0.2, 0.05
DOUBTS = {Proof.NONE: "", Proof.UNDATED: "path: unproven", Proof.UNCHECKED: "unproven"}
"""Text about verification: chunks are sealed for their robot alone, and states are not. Freshness is not checked here."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Settings from the parameters of `markers_node`."""

    position_in_state: int
    delta_scale_m: float
    trail: int
    """Number of states in the executed path."""
    tip: str


class RobotMarkers:
    """Publisher of `<robot>/rfm/markers`.
    `attend`, called periodically, creates and destroys its subscriptions; `publish` draws."""

    def __init__(self, node: Node, names: qos.Names, robot: str, look: Look, proven: Proven) -> None:
        self._node, self._robot, self._settings, self._proven = node, robot, look, proven
        self._frame = names.robot(robot, "base").lstrip("/")
        self._topic: Callable[[str], str] = lambda leaf: names.robot(robot, leaf)
        self._publisher = node.create_publisher(MarkerArray, self._topic("rfm/markers"), 1)
        self._heard: list[Any] = []
        self._arm: Arm | None = None
        self._forget()

    def attend(self) -> None:
        wanted = self._publisher.get_subscription_count() > 0
        if wanted and not self._heard:
            hear = self._node.create_subscription
            self._heard = [
                hear(msg.ActionChunk, self._topic("rfm/action_chunk"), self._on_chunk, qos.REPLY),
                self._hear_status(),
                hear(String, self._topic("robot_description"), self._on_description, DESCRIPTION),
            ]
            if self._settings.position_in_state >= 0:
                self._heard.append(hear(Float32MultiArray, self._topic("state"), self._on_state, qos.SENSOR))
            else:
                self._heard.append(hear(JointState, self._topic("joint_states"), self._on_joints, qos.JOINTS))
        elif not wanted and self._heard:
            for subscription in self._heard:
                self._node.destroy_subscription(subscription)
            self._heard.clear()
            self._forget()

    def _hear_status(self) -> Any:
        proven, topic = self._proven, self._topic("rfm/status")
        check, refuse = partial(proven.check_status, self._robot), partial(proven.count, about=self._robot)
        return bounded.hear(self._node, msg.RobotStatus, topic, self._on_status, qos.ROBOT_STATUS, refuse, prove=check)

    def publish(self) -> None:
        if not self._heard:
            return
        made = [self._line("executed", list(self._trail), [EXECUTED_RGBA] * len(self._trail), 0.008)]
        made.append(self._line("executing", self._executing, [EXECUTING_RGBA] * len(self._executing), 0.004))
        shades = [(*colour(c), 1.0) for c in self._confidence]
        made.append(self._line("arrived", self._arrived, shades, 0.004))
        if self._status is not None:
            made.append(self._words(self._status))
        self._publisher.publish(MarkerArray(markers=made))

    def _forget(self) -> None:
        self._trail: deque[Points] = deque(maxlen=self._settings.trail)
        self._joints: dict[str, float] = {}
        self._executing: list[Points] = []
        self._arrived: list[Points] = []
        self._confidence: list[float] = []
        self._arrived_s = -math.inf
        self._status: Any = None

    # --- what arrives ---

    def _on_state(self, message: Any) -> None:
        first = self._settings.position_in_state
        here = np.asarray(message.data[first : first + 3], np.float64)
        if here.shape == (3,) and np.isfinite(here).all():
            self._trail.append(here)

    def _on_joints(self, message: Any) -> None:
        self._joints.update(zip(message.name, message.position, strict=False))
        if self._arm is not None and set(self._arm.moving) <= self._joints.keys():
            self._trail.append(self._arm.position(self._joints))

    def _on_description(self, message: Any) -> None:
        try:
            self._arm = Arm(message.data, self._settings.tip)
        except ConfigurationError as error:
            self._node.get_logger().warning(f"{self._robot}: {error}", throttle_duration_sec=10.0)

    def _on_status(self, message: Any) -> None:
        self._status = message

    def _on_chunk(self, message: Any) -> None:
        """Show a chunk. The previous one is being executed until this one takes over."""
        try:
            chunk = convert.chunk_from(message)
        except BadMessageError:  # the robot refuses and counts it
            return
        rows, here = chunk.chunk_robot, self._trail[-1] if self._trail else None
        found = path(
            chunk.action_names,
            rows,
            here,
            chunk.inference_delay_steps,
            delta_scale_m=self._settings.delta_scale_m,
            arm=self._arm,
        )
        self._executing, self._arrived_s = self._arrived, clock()
        self._arrived = [] if found is None or not np.isfinite(found).all() else list(found)
        known = len(chunk.confidence) == len(rows)
        self._confidence = [float(c) for c in chunk.confidence] if known else [math.nan] * len(rows)
        self.publish()

    # --- what is drawn ---

    def _marker(self, part: str, kind: int) -> Any:
        marker = Marker(ns=part, id=0, type=kind, action=Marker.ADD)
        marker.header.frame_id = self._frame
        marker.pose.orientation.w = 1.0
        return marker

    def _line(self, part: str, points: list[Points], colours: Sequence[tuple[float, ...]], width_m: float) -> Any:
        marker = self._marker(part, Marker.LINE_STRIP)
        if len(points) < 2:
            marker.action = Marker.DELETE
            return marker
        marker.scale.x = width_m
        marker.points = [Point(x=float(x), y=float(y), z=float(z)) for x, y, z in points]
        marker.colors = [_rgba(shade) for shade in colours]
        return marker

    def _words(self, status: Any) -> Any:
        marker = self._marker("state", Marker.TEXT_VIEW_FACING)
        here = self._trail[-1] if self._trail else np.zeros(3)
        marker.pose.position = Point(x=float(here[0]), y=float(here[1]), z=float(here[2]) + TEXT_ABOVE_M)
        marker.scale.z = TEXT_HEIGHT_M
        streams = status.state == RobotState.STREAMING
        marker.color = _rgba(TEXT_RGBA if streams else TROUBLE_RGBA)
        state = RobotState(status.state).name if status.state in set(RobotState) else str(status.state)
        stale = "" if math.isnan(status.staleness_s) else f"stale {status.staleness_s * 1e3:.0f} ms"
        phase = TaskPhase(status.phase).name.lower() if status.phase in set(TaskPhase) else ""
        lines = [f"{self._robot}: {shown_state(state, phase)}", status.reason or status.stop_reason, stale]
        lines += ["paused" if status.paused else "", DOUBTS[self._proven.proof]]
        marker.text = "\n".join(line for line in lines if line)
        return marker


def _rgba(shade: tuple[float, ...]) -> Any:
    return ColorRGBA(r=shade[0], g=shade[1], b=shade[2], a=shade[3])
