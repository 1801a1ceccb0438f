"""Whether a process was started from what the scheduler plans with: two machines may have different files (docs/hosts.md)."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.factory.origin import foreign
from ros2_rfm_serving.ros.node.diagnostics import key_values

SAID_EVERY_S = 60.0
"""In the log."""


class Origin:
    """Says nothing in `/diagnostics` as long as there has been nothing to say: every robot would say it every second."""

    def __init__(self, node: Node) -> None:
        """node: that declares `descriptor`."""
        self._node = node
        self._followed = ""
        """The scheduler's; empty: not known."""
        self._said = False

    def hear(self, schedule: msg.Schedule) -> None:
        """It is followed."""
        self._followed = schedule.descriptor
        if problem := self._problem:
            self._node.get_logger().warning(problem, throttle_duration_sec=SAID_EVERY_S)

    def diagnosis(self, name: str) -> DiagnosticStatus | None:
        """`<name>: descriptor`."""
        problem = self._problem
        if not problem and not self._said:
            return None
        self._said = True
        return DiagnosticStatus(
            level=DiagnosticStatus.WARN if problem else DiagnosticStatus.OK,
            name=f"{name}: descriptor",
            message=problem or "the scheduler's",
            hardware_id=name,
            values=key_values({"own": self._own, "scheduler's": self._followed}),
        )

    @property
    def _own(self) -> str:
        return str(self._node.get_parameter("descriptor").value)

    @property
    def _problem(self) -> str:
        return foreign(self._own, self._followed)
