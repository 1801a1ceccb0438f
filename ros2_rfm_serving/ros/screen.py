"""Filter of messages that are forwarded as bytes: of signed types, only those that the right process has signed pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.board import SCHEDULE, Board
from ros2_rfm_serving.ros.dated import Dated, ShownScheduler
from ros2_rfm_serving.ros.monitor.discovery import ROBOT_STATUS, SERVER_STATUS, there
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.proven import Proven
from ros2_rfm_serving.ros.wire import bounded, qos

SCHEDULES = "rfm_serving/msg/Schedule"
STATUSES = {ROBOT_STATUS: msg.RobotStatus, SERVER_STATUS: msg.ServerStatus}
Screened = Callable[[bytes], bool]
"""Predicate that returns whether a message of its topic is forwarded."""


class Screen:
    """Filter for one observer. Without a certificate everything passes, and `board` shows where there is something to check."""

    def __init__(self, node: Node, names: qos.Names) -> None:
        """Create the filter. Raises: `ConfigurationError`."""
        self.board = board = Board([], [])
        self._node, self._names, self._proven = node, names, Proven(board)
        self.demands = self._proven.verifier is not None
        self._shown = ShownScheduler(board, Dated(node, names, board, self._proven.verifier))
        if self.demands:  # a client need not subscribe to the schedule, and statuses have to be fresh
            check = Proven(board).check_schedule
            bounded.hear(
                node, msg.Schedule, names.schedule, self._on_schedule, qos.SCHEDULE_HEARD, self._refuse, repeated=True, prove=check
            )

    def is_signed(self, kind: str) -> bool:
        return kind == SCHEDULES or kind in STATUSES

    def of(self, topic: str, kind: str) -> Screened | None:
        """Return the filter of a topic; None: it belongs to another factory, whose scheduler is unknown here."""
        if kind == SCHEDULES and topic == self._names.schedule:
            return partial(self._passes, SCHEDULE, bounded.Repeated(msg.Schedule, self._proven.check_schedule))
        found = there([(topic, [kind])], self._names)
        for name in found.robots | found.servers:
            return partial(self._passes, name, partial(self._status, name, STATUSES[kind]))
        return None

    def _passes(self, about: str, read: Callable[[bytes], Any], data: bytes) -> bool:
        try:
            read(data)
        except BadMessageError as error:
            self._proven.count(error, about)
            return False
        return True

    def _status(self, name: str, kind: type, data: bytes) -> None:
        """Verify a status. Raises: `BadMessageError`."""
        found, end = bounded.measured(data, kind)
        self._proven.check_status(name, found, memoryview(data)[:end])

    def _on_schedule(self, message: Any) -> None:
        now_s = clock()
        if not self._shown.is_rivals(message.scheduler, now_s):
            self.board.scheduler, self.board.schedule_seen_s = message.scheduler, now_s
            self.board.add(servers=[placement.server for placement in message.placements])

    def _refuse(self, error: BadMessageError) -> None:
        """Ignore the error: the client that is subscribed to the schedule receives the same message and counts it."""
