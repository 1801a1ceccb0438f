"""Timers of a node. They follow the machine's monotonic clock: a ROS timer follows the wall clock, or `/clock`, which are set back,
jump and stand still, and a robot's status, its presence and its stand with them.

No two ROS timers share a clock. Whenever one is added or reset, the events executor queues another call of every timer of the same
clock that is due, and each such call moves that timer's next one by a period: where 64 robots took longer than a second to be made,
a timer of one second was called 40 times at once, and then not for 40 seconds. But it runs a thread per clock as well; so what
comes with every robot takes `Turns`: one ROS timer for all of the same period.
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
"""Of looking for what is to be called once."""
OF_NODE = "_rfm_serving_turns"
"""Attribute of a node."""


class Tick:
    """What a timer calls. Before every call the events executor asks what the callback takes: told here, it need not be found out
    each time, for 20 us and more."""

    __signature__ = Signature()

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def __call__(self) -> object:
        return self._callback()


def every(node: Node, period_s: float, callback: Callable[[], object]) -> Any:
    """The timer; `node.destroy_timer` ends it."""
    return node.create_timer(period_s, Tick(callback), clock=Clock(clock_type=ClockType.STEADY_TIME))


class Turn:
    """One callback of many. `cancel` ends it."""

    def __init__(self, callback: Callable[[], object], once_s: float = math.nan) -> None:
        """once_s: it is called once, and not before; NaN: whenever it is its turn."""
        self.callback, self.once_s = callback, once_s
        self.canceled = False

    def cancel(self) -> None:
        self.canceled = True


class Turns:
    """The callbacks of one node that share ROS timers, by period. On the executor's thread, like all callbacks.

    Those of one period are called together: where messages queue up before the executor, each has its turn in every round.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._groups: dict[float, list[Turn]] = {}
        self._timers: dict[float, Any] = {}

    def every(self, period_s: float, callback: Callable[[], object]) -> Turn:
        """The first time within a period."""
        return self._add(period_s, Turn(callback))

    def once(self, seconds: float, callback: Callable[[], object]) -> Turn:
        """Up to `LOOK_PERIOD_S` later; not at all when the node goes before."""
        return self._add(LOOK_PERIOD_S, Turn(callback, clock() + seconds))

    def end(self) -> None:
        """Before the node goes: nobody has a turn any more."""
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
        """What it raises costs it this turn, and the others nothing."""
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
