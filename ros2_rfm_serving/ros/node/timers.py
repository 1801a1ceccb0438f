"""Timers of a node. They follow the machine's monotonic clock: a ROS timer follows the wall clock, or `/clock`, which are set back,
jump and stand still, and a robot's status, its presence and its stand with them.

No two ROS timers share a clock. Whenever one is added, the events executor queues another call of every timer of the same clock
that is due, and each such call moves that timer's next one by a period: where 64 robots took longer than a second to be made, a
timer of one second was called 40 times at once, and then not for 40 seconds. But it runs a thread per clock as well; so what comes
with every robot takes `Turns` of one ROS timer.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from ros2_rfm_serving.ros.node.runtime import clock

IDLE_S = 3600.0
OF_NODE = "_rfm_serving_turns"
"""Attribute of a node."""


def every(node: Node, period_s: float, callback: Callable[[], object]) -> Any:
    """The timer; `node.destroy_timer` ends it."""
    return node.create_timer(period_s, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))


@dataclass(order=True)
class Turn:
    """One timer of many. `cancel` ends it."""

    due_s: float
    number: int
    period_s: float = field(compare=False)
    """inf: once."""
    callback: Callable[[], object] = field(compare=False)
    canceled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.canceled = True

    def next(self, now_s: float) -> None:
        """On its own grid; a turn that was missed is not made up for."""
        self.due_s += self.period_s * (1 + math.floor((now_s - self.due_s) / self.period_s))


class Turns:
    """The timers of one node that share a ROS timer, and so a clock and its thread. On the executor's thread, like all callbacks.

    All that are due are called at once: where messages queue up before the executor, each is a robot's control period, and one for
    every length of that queue would be a stand for all.
    """

    def __init__(self, node: Node) -> None:
        self._waiting: list[Turn] = []
        self._numbers = itertools.count()
        self._timer = every(node, IDLE_S, self._take)
        self._timer.cancel()

    def every(self, period_s: float, callback: Callable[[], object]) -> Turn:
        return self._add(Turn(clock() + period_s, next(self._numbers), period_s, callback))

    def once(self, seconds: float, callback: Callable[[], object]) -> Turn:
        """Not at all when the node goes before."""
        return self._add(Turn(clock() + seconds, next(self._numbers), math.inf, callback))

    def _add(self, turn: Turn) -> Turn:
        heapq.heappush(self._waiting, turn)
        self._arm()
        return turn

    def _take(self) -> None:
        now_s = clock()
        try:
            while (turn := self._next_due(now_s)) is not None:
                turn.callback()
        finally:  # one that fails leaves the others to the next call
            self._arm()

    def _next_due(self, now_s: float) -> Turn | None:
        """Each once: its next turn is later than `now_s`."""
        self._forget_canceled()
        if not self._waiting or self._waiting[0].due_s > now_s:
            return None
        turn = heapq.heappop(self._waiting)
        if turn.period_s < math.inf:
            turn.next(now_s)
            heapq.heappush(self._waiting, turn)
        return turn

    def _arm(self) -> None:
        self._forget_canceled()
        if self._waiting:
            self._timer.timer_period_ns = max(1, int(1e9 * (self._waiting[0].due_s - clock())))
            self._timer.reset()
        else:
            self._timer.cancel()

    def _forget_canceled(self) -> None:
        while self._waiting and self._waiting[0].canceled:
            heapq.heappop(self._waiting)


def turns_of(node: Node) -> Turns:
    if not hasattr(node, OF_NODE):
        setattr(node, OF_NODE, Turns(node))
    turns: Turns = getattr(node, OF_NODE)
    return turns
