"""Timers of a node. They follow the machine's monotonic clock: a ROS timer follows the wall clock, or `/clock`, which are set back,
jump and stand still, and a robot's status, its presence and its stand with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

STEADY = Clock(clock_type=ClockType.STEADY_TIME)
"""One for all timers of a process: the events executor runs a thread per clock."""


def every(node: Node, period_s: float, callback: Callable[[], object]) -> Any:
    """The timer; `node.destroy_timer` ends it."""
    return node.create_timer(period_s, callback, clock=STEADY)
