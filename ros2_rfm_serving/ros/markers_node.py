"""Markers for rviz, `<robot>/rfm/markers`, of every robot whose markers are subscribed to: the executed path, the newest chunk,
coloured by confidence, the previous one, and state and staleness as text.

It only reads the graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rclpy.node import Node
from std_msgs.msg import String

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.ros.monitor.discovery import look
from ros2_rfm_serving.ros.monitor.markers import DESCRIPTION, Look, RobotMarkers
from ros2_rfm_serving.ros.node.parameters import Spec, Values, declare
from ros2_rfm_serving.ros.node.runtime import fleet_names, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.proven import Proven

LOOK_PERIOD_S = 1.0
SPECS = {
    "position_in_state": Spec(
        0,
        "First of the three elements of `<robot>/state` that are the end effector's position, m; -1: by forward kinematics of"
        " `<robot>/robot_description` from `<robot>/joint_states`",
        -1,
        10_000,
    ),
    "delta_scale_m": Spec(0.01, "What a displacement of 1 in a `delta_*` action stands for, m", 1e-9, 1e3),
    "trail": Spec(100, "States that the executed path goes back", 2, 10_000),
    "tip": Spec("", "Link of the description that is the end effector; empty: the last one of its longest chain"),
    "rate_hz": Spec(5.0, "Of the markers, besides those at every chunk", 0.1, 60.0),
    "description_file": Spec("", "URDF to publish as `<robot>/robot_description` for every robot; empty: somebody else does"),
}


class MarkersNode(Node):
    def __init__(self) -> None:
        """Declare the parameters and start the timers. Raises: `ConfigurationError`."""
        self._proven = Proven(Board([], []))
        super().__init__("markers", enable_rosout=False)
        declare(self, SPECS)
        values = Values(self, SPECS)
        self._names = fleet_names(self, is_robots=False)
        self._look = Look(
            position_in_state=values.integer("position_in_state"),
            delta_scale_m=values.number("delta_scale_m"),
            trail=values.integer("trail"),
            tip=values.text("tip"),
        )
        self._description = _read(values.text("description_file"))
        self._robots: dict[str, RobotMarkers] = {}
        self._descriptions: list[Any] = []
        every(self, LOOK_PERIOD_S, self._attend)
        every(self, 1.0 / values.number("rate_hz"), self._publish)

    def _attend(self) -> None:
        for robot in sorted(look(self, self._names).robots - self._robots.keys()):
            self._robots[robot] = RobotMarkers(self, self._names, robot, self._look, self._proven)
            if self._description:
                described = self.create_publisher(String, self._names.robot(robot, "robot_description"), DESCRIPTION)
                described.publish(String(data=self._description))
                self._descriptions.append(described)
        for markers in self._robots.values():
            markers.attend()

    def _publish(self) -> None:
        for markers in self._robots.values():
            markers.publish()


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=file, key="description_file", fix="name a URDF") from None


def main() -> None:
    run_node(MarkersNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
