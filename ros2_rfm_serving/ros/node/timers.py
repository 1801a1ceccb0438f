"""Timers of a node. They follow the machine's monotonic clock: a ROS timer follows the wall clock, or `/clock`, which are set back,
jump and stand still, and a robot's status, its presence and its stand with them.

The events executor runs a thread per clock. Timers that share one were seen to miss a turn when others on it come and go, so
those of which a process has few get a clock each; those that come with every robot share `ONE_FOR_ALL`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

ONE_FOR_ALL = Clock(clock_type=ClockType.STEADY_TIME)


def every(node: Node, period_s: float, callback: Callable[[], object], *, clock: Clock | None = None) -> Any:
    """The timer; `node.destroy_timer` ends it."""
    return node.create_timer(period_s, callback, clock=clock or Clock(clock_type=ClockType.STEADY_TIME))
