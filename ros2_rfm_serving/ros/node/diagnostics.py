"""`/diagnostics` of a process, for rqt_robot_monitor and the like: every status at 1 Hz, and changes at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.duration import Duration
from rclpy.node import Node

from ros2_rfm_serving.ros.node.core_wait import CoreWait
from ros2_rfm_serving.ros.node.hang_watch import progress
from ros2_rfm_serving.ros.node.log_disk import LogDisk
from ros2_rfm_serving.ros.node.process_status import ProcessStatus, fleet_root
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.security.own import OwnCertificate
from ros2_rfm_serving.types import process_problems
from ros2_rfm_serving.types.process_problems import NAMESPACE
from ros2_rfm_serving.types.wall_clock import WallClock

TOPIC = "/diagnostics"
PERIOD_S = 1.0
TURNS = 10
"""Number of messages into which the statuses of a period are split. In one message, 128 robots would need 0.5 MB, as large as
the shared memory of a process, and delay every control period by some 50 ms."""
AT_ONCE = 8
"""Minimum number of statuses of a message, so that a small process publishes one message."""
LAST_WORDS_S = 10.0
ARRIVES_S = 4.0
"""Time for the last statuses to arrive: less than a middleware call may take at the end."""

Part = Callable[[], DiagnosticStatus | None]
"""Function that returns the status of a part; None: it is unavailable, which is reported elsewhere."""


class Diagnostics:
    """Publisher of the statuses that `parts` returns. A process has one, whatever the number of its robots."""

    def __init__(
        self, node: Node, parts: Callable[[], Sequence[Part]], numbers: Callable[[], Mapping[str, int]] = lambda: {}
    ) -> None:
        """Start publishing. numbers: further counts of the process, for metrics."""
        self._node, self._parts = node, parts
        self._publisher = node.create_publisher(DiagnosticArray, TOPIC, 10)
        self._turn, self._wall_clock, self._log_disk = 0, WallClock(), LogDisk.of_process()
        self._certificate = OwnCertificate.of_process()
        self._numbers, self._cores = numbers, CoreWait()
        self._process: ProcessStatus | None = None
        self._timer = every(node, PERIOD_S / TURNS, self._take_turn)
        self._is_over = False

    def publish(self, *statuses: DiagnosticStatus) -> None:
        own = self._certificate
        figures: dict[str, object] = self._wall_clock.figures(clock()) | (self._log_disk.figures() if self._log_disk else {})
        figures |= own.figures() if own else {}
        if root := fleet_root(self._node):
            figures[NAMESPACE] = root
        figures |= self._cores.figures(clock())
        problems, gravest = self._problems
        for status in statuses:
            part = process_problems.DiagnosticEntry(ord(status.level), status.message, problems)
            level, status.message, values = process_problems.with_process_problems(part, gravest)
            status.level = bytes([level])
            status.values = [*status.values, *key_values({**figures, **values})]
        array = DiagnosticArray(status=list(statuses))
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)

    @property
    def _problems(self) -> tuple[Mapping[str, str], int]:
        """Return (kind -> text of the process' problems, level of the gravest one)."""
        own = self._certificate
        problems = (self._log_disk.problems if self._log_disk else {}) | (own.problems if own else {})
        return problems, ord(DiagnosticStatus.ERROR if own and own.is_over else DiagnosticStatus.WARN)

    def _numbers_of_process(self) -> Mapping[str, int]:
        own, full = self._certificate, self._log_disk is not None and self._log_disk.is_full
        return {"log_disk_full": int(full), **(own.numbers if own else {}), **self._numbers()}

    def last_words(self, *statuses: DiagnosticStatus) -> None:
        """Publish before the process ends.
        Wait for a subscriber, and then until the statuses have arrived; `LAST_WORDS_S` in all at most."""
        end_s = clock() + LAST_WORDS_S
        while not self._publisher.get_subscription_count() and clock() < end_s:
            progress()
            time.sleep(0.02)
        self.publish(*statuses)
        progress()
        self._publisher.wait_for_all_acked(Duration(seconds=min(ARRIVES_S, max(0.1, end_s - clock()))))

    def report_end(self) -> None:
        """Report for metrics that the process ends in order, so that it is not counted as missing."""
        if self._process is not None:
            self._process.end(*self._problems, self._numbers_of_process)

    def destroy(self) -> None:
        self._is_over = True
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)
        if self._process is not None:
            self._process.destroy()

    def _take_turn(self) -> None:
        if self._is_over:
            return  # the executor had already taken this call when its timer was destroyed
        self._wall_clock.observe(clock(), time.time(), clock())
        self._turn = (self._turn + 1) % TURNS
        if self._log_disk and not self._turn:
            self._log_disk.look()
        if self._certificate and not self._turn:
            self._certificate.look(clock())
        if not self._turn:
            self._process = self._process or ProcessStatus(self._node)
            self._process.publish(*self._problems, self._numbers_of_process, clock())
        if not self._publisher.get_subscription_count():
            return  # without a subscriber no status is built: that would be a quarter of a robot's computing time
        told = (tell() for tell in turn_of(self._parts(), self._turn))
        statuses = [status for status in told if status is not None]
        if statuses:
            self.publish(*statuses)


def turn_of(parts: Sequence[Part], turn: int) -> Sequence[Part]:
    """Return the parts whose status belongs to this message of a period; each part has one message per period."""
    size = max(AT_ONCE, -(-len(parts) // TURNS))
    return parts[turn * size : (turn + 1) * size]


def key_values(values: Mapping[str, object]) -> list[KeyValue]:
    """Convert values to text; floats have four digits, because people read them."""
    return [KeyValue(key=key, value=f"{value:.4g}" if isinstance(value, float) else str(value)) for key, value in values.items()]


def statuses_named(message: DiagnosticArray, part: str) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield name and values of every status that is called `<name>: <part>`."""
    for status in message.status:
        name, _, of = status.name.rpartition(": ")
        if of == part:
            yield name, {value.key: value.value for value in status.values}
