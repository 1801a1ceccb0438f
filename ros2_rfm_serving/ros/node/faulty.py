"""Fault injection between a live node and the network: the parameter `faults`, as `FaultPlan.parse` reads it.

Times count from the node's start. Without the parameter, wrapped functions are returned unchanged, at no cost.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import msg

from ros2_rfm_serving.faults import Direction, FaultPlan, FaultyWire, corrupt
from ros2_rfm_serving.ros.node.runtime import clock, parameter
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert

PERIOD_S = 0.002
"""Period of the timer that delivers delayed messages."""

Pass = Callable[[Any], Any]
"""A publisher's `publish`, or a subscription's callback."""

_READ_AND_WRITE: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    msg.Observation: (convert.observation_from, convert.observation_to),
    msg.ActionChunk: (convert.chunk_from, convert.reply_to),
    msg.Judgement: (convert.verdict_from, convert.reply_to),
    msg.Plan: (convert.plan_from, convert.reply_to),
}


def declare_faults(node: Node) -> tuple[str, int]:
    """Return (faults, seed of their random numbers), as given."""
    text = parameter(node, "faults", "", 'Faults on purpose, such as "drop=0.05 delay_ms=25 cut=10-12"; empty: none')
    return text, parameter(node, "faults_seed", 0, "Of their randomness")


class Faults:
    """Fault injector of one node. It delivers delayed messages on the executor's thread; they may be sent on any thread."""

    def __init__(self, node: Node) -> None:
        """Read the parameter and start the timer. Raises: `ConfigurationError`."""
        text, seed = declare_faults(node)
        plan = FaultPlan.parse(text)
        self._started_s = clock()
        self._lock = threading.Lock()
        self._queue: list[tuple[float, int, Pass, Any]] = []
        self._num_queued = 0
        self._rng = random.Random(seed)
        self._wire = None if plan.is_clean else FaultyWire(plan, self._rng)
        self._timer: Any = None
        if self._wire:
            self._timer = every(node, PERIOD_S, self._deliver)
            node.get_logger().warning(f"faults on purpose: {text}")

    @property
    def happened(self) -> Counter[str]:
        return self._wire.happened if self._wire else Counter()

    def passing(self, on: Pass, direction: Direction, *, reliable: bool = False) -> Pass:
        """Wrap a `publish` or a callback. reliable: the message is repeated until it arrives, as in `FaultyWire.deliveries`."""
        wire = self._wire
        if wire is None:
            return on

        def faulty(message: Any) -> None:
            now_s = clock()
            with self._lock:
                for copy in wire.deliveries(direction, now_s - self._started_s, reliable=reliable):
                    self._num_queued += 1
                    what = self._damaged(message) if copy.corrupt else message
                    heapq.heappush(self._queue, (now_s + copy.delay_s, self._num_queued, on, what))

        return faulty

    def calling(self, call: Callable[[Any], Future]) -> Callable[[Any], Future]:
        """Wrap a client's `call_async`: during a cut no reply arrives."""
        wire = self._wire
        if wire is None:
            return call

        def faulty(request: Any) -> Future:
            now_s = clock() - self._started_s
            with self._lock:
                passes = all(wire.deliveries(direction, now_s, reliable=True) for direction in Direction)
            return call(request) if passes else Future()

        return faulty

    def destroy(self, node: Node) -> None:
        if self._timer:
            node.destroy_timer(self._timer)

    def _deliver(self) -> None:
        """Deliver due messages one by one: an exception costs its own message alone, and the next period delivers the rest."""
        while due := self._next_due():
            on, message = due
            on(message)

    def _next_due(self) -> tuple[Pass, Any] | None:
        with self._lock:
            if not self._queue or self._queue[0][0] > clock():
                return None
            _, _, on, message = heapq.heappop(self._queue)
            return on, message

    def _damaged(self, message: Any) -> Any:
        """Damage a message.
        Types of this package are converted and corrupted; others have a checksum below, and arrive unchanged."""
        if type(message) not in _READ_AND_WRITE:
            return message
        read, write = _READ_AND_WRITE[type(message)]
        return write(corrupt(read(message), self._rng))
