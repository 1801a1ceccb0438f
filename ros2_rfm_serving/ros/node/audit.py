"""Audit journal of one writer on the graph: its pages are published on a topic of their own while there is a subscriber."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.journal import PAGE_PERIOD_S, PROCESS_ENDS, Journal
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.signer import signer_of_writer
from ros2_rfm_serving.ros.node.timers import turns_of
from ros2_rfm_serving.ros.wire import convert, qos

LAST_PAGE_S = 0.5
"""Time for the last page to arrive."""


class AuditTopic:
    """Publisher of an audit journal.
    `journal` records from the start, on any thread that holds the lock; it is on the graph once `open` was called."""

    def __init__(self, node: Node, writer: str, topic: str, *, lock: AbstractContextManager[Any] | None = None) -> None:
        """Create the journal. writer: `<role>/<name>`. lock: lock of records from other threads than the executor's.
        Raises: `ConfigurationError`."""
        self.journal = Journal(
            writer,
            writer.partition("/")[0],
            send=self._send,
            stamp_s=self._stamp_s,
            draw=random_run,
            sign=signer_of_writer(writer),
        )
        self._node, self._topic = node, topic
        self._lock = lock or contextlib.nullcontext()
        self._publisher: Any = None
        self._turn: Any = None
        self._listeners, self._told = 0, ""

    def open(self) -> AuditTopic:
        self._publisher = self._node.create_publisher(msg.AuditPage, self._topic, qos.AUDIT)
        self._turn = turns_of(self._node).every(PAGE_PERIOD_S, self._look)
        return self

    def close(self) -> None:
        """Publish the last page, marked as the last one, at an orderly end."""
        if self._publisher is None:
            return
        self._turn.cancel()
        listened = self.journal.on
        with self._lock:
            self.journal.close(clock(), PROCESS_ENDS)
        if listened:
            self._publisher.wait_for_all_acked(Duration(seconds=LAST_PAGE_S))
        publisher, self._publisher = self._publisher, None
        self._node.destroy_publisher(publisher)

    def values(self) -> Mapping[str, object]:
        """Return the diagnostics values."""
        journal = self.journal
        told = {"audit_records": journal.records, "audit_failures": journal.failures}
        return {**told, "audit_problem": journal.problem} if journal.problem else told

    def _look(self) -> None:
        """Publish pages and update the number of subscribers; four times a second, because counting them is not free."""
        now_s, listeners = clock(), self._publisher.get_subscription_count()
        with self._lock:
            if listeners != self._listeners:
                self._listeners = listeners
                self.journal.listeners(listeners, now_s)
            self.journal.tend(now_s)
        if self.journal.problem != self._told:
            self._told = self.journal.problem
            self._node.get_logger().warning(f"the audit log of {self.journal.writer} began anew: {self._told}")

    def _send(self, page: Page) -> None:
        if self._publisher is None:
            raise RuntimeError("it is not on the graph")
        self._publisher.publish(convert.stamped(page_to(page), self._node))

    def _stamp_s(self) -> float:
        return float(self._node.get_clock().now().nanoseconds) * 1e-9


def page_to(page: Page) -> Any:
    text = b"\n".join(page.lines).decode()
    message = msg.AuditPage(writer=page.writer, run=page.run, first=page.first, previous=page.previous, records=text)
    message.header.frame_id = page.writer
    return message


def page_from(message: Any) -> Page:
    lines = tuple(message.records.encode().split(b"\n")) if message.records else ()
    return Page(writer=message.writer, run=message.run, first=message.first, previous=message.previous, lines=lines)


def random_run() -> int:
    return random.SystemRandom().randrange(1, 2**63)
