"""Check that a process was started from the scheduler's descriptor: two machines may have different files (docs/hosts.md)."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.factory.descriptor_mismatch import descriptor_mismatch
from ros2_rfm_serving.ros.node.diagnostics import key_values

SAID_EVERY_S = 60.0
"""Minimum time between two warnings in the log."""


class Origin:
    """Descriptor mismatch of one node.
    It adds nothing to `/diagnostics` until a mismatch has occurred; otherwise every robot would publish it every second."""

    def __init__(self, node: Node) -> None:
        """Create the check. node: node that declares the parameter `descriptor`."""
        self._node = node
        self._followed = ""
        """The scheduler's descriptor; empty: unknown."""
        self._said = False

    def hear(self, schedule: msg.Schedule) -> None:
        """Compare with the descriptor of a schedule that the node follows."""
        self._followed = schedule.descriptor
        if problem := self._problem:
            self._node.get_logger().warning(problem, throttle_duration_sec=SAID_EVERY_S)

    def diagnosis(self, name: str) -> DiagnosticStatus | None:
        """Return the diagnostics of `<name>: descriptor`, or None when there has never been a mismatch."""
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
        return descriptor_mismatch(self._own, self._followed)
