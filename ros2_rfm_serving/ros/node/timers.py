"""Timers of a node, on the machine's monotonic clock.

A ROS timer follows the wall clock, or `/clock`, which may be set back, jump or stop, and a robot's status, liveness and stand would
follow.

No two ROS timers share a clock. Whenever one is added or reset, the events executor queues another call of every timer of the same
clock that is due, and each such call moves that timer's next one by a period: where 64 robots took longer than a second to be made,
a timer of one second was called 40 times at once, and then not for 40 seconds. But it runs a thread per clock as well, so every
robot uses the shared `Turns`: one ROS timer for all callbacks of the same period.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from functools import partial
from inspect import Signature
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from ros2_rfm_serving.ros.node.runtime import clock

LOOK_PERIOD_S = 0.05
"""Period of polling for callbacks that are called once."""
OF_NODE = "_rfm_serving_turns"
"""Attribute of a node."""


class Tick:
    """Callback of a timer with a known signature.
    The events executor asks for a callback's signature before every call; finding it out each time would cost 20 us and more."""

    __signature__ = Signature()

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def __call__(self) -> object:
        return self._callback()


def every(node: Node, period_s: float, callback: Callable[[], object]) -> Any:
    """Create a timer and return it; `node.destroy_timer` ends it."""
    return node.create_timer(period_s, Tick(callback), clock=Clock(clock_type=ClockType.STEADY_TIME))


class Turn:
    """One callback of a shared timer. `cancel` ends it."""

    def __init__(self, callback: Callable[[], object], once_s: float = math.nan) -> None:
        """Create the entry. once_s: time of its only call; NaN: it is called every period."""
        self.callback, self.once_s = callback, once_s
        self.canceled = False

    def cancel(self) -> None:
        self.canceled = True


class Turns:
    """Callbacks of one node that share ROS timers, by period. They run on the executor's thread, like all callbacks.
    Callbacks of one period run together: when messages queue up before the executor, each of them still runs in every round."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._groups: dict[float, list[Turn]] = {}
        self._timers: dict[float, Any] = {}

    def every(self, period_s: float, callback: Callable[[], object]) -> Turn:
        """Call a function every period; the first time is within a period."""
        return self._add(period_s, Turn(callback))

    def once(self, seconds: float, callback: Callable[[], object]) -> Turn:
        """Call a function once, up to `LOOK_PERIOD_S` later than asked; not at all when the node ends before."""
        return self._add(LOOK_PERIOD_S, Turn(callback, clock() + seconds))

    def end(self) -> None:
        """Cancel all callbacks, before the node ends."""
        for turns in self._groups.values():
            for turn in turns:
                turn.cancel()

    def _add(self, period_s: float, turn: Turn) -> Turn:
        self._groups.setdefault(period_s, []).append(turn)
        if period_s not in self._timers:
            self._timers[period_s] = every(self._node, period_s, partial(self._call, period_s))
        return turn

    def _call(self, period_s: float) -> None:
        now_s = clock()
        for turn in list(self._groups[period_s]):
            if not turn.canceled and not now_s < turn.once_s:
                self._call_one(turn)
        self._groups[period_s] = [turn for turn in self._groups[period_s] if not turn.canceled]
        if not self._groups[period_s]:
            self._node.destroy_timer(self._timers.pop(period_s))
            del self._groups[period_s]

    def _call_one(self, turn: Turn) -> None:
        """Call one callback; an exception does not affect the others, nor its own next call."""
        turn.canceled = not math.isnan(turn.once_s)
        try:
            turn.callback()
        except Exception:
            self._node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)


def turns_of(node: Node) -> Turns:
    if not hasattr(node, OF_NODE):
        setattr(node, OF_NODE, Turns(node))
    turns: Turns = getattr(node, OF_NODE)
    return turns
