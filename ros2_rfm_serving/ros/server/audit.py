"""Audit journal of a server on the graph: its decisions and states, while there is a subscriber."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.audit.chain import TRANSITION
from ros2_rfm_serving.audit.journal import PAGE_PERIOD_S
from ros2_rfm_serving.audit.servers.journal import ServerJournal
from ros2_rfm_serving.ros.node.audit import AuditTopic
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import turns_of
from ros2_rfm_serving.server import ModelServer


class ServerAudit:
    """Recorder of a server's decisions and state transitions. It runs on the executor's thread."""

    def __init__(self, node: Node, server: str, topic: str) -> None:
        self._topic = AuditTopic(node, f"server/{server}", topic)
        self._journal = ServerJournal(self._topic.journal, clock)
        # before the topic's own timer, so that a page has every decision
        self._turn = turns_of(node).every(PAGE_PERIOD_S, self._journal.write)
        self._topic.open()

    def follow(self, server: ModelServer | None, engine: Mapping[str, Any]) -> None:
        """Follow the server of another model, since a chain has one model; None: none. engine: what it takes to build it again."""
        self._journal.write()
        self._journal.follow(server, engine)
        self._topic.journal.anew(clock(), "another model")

    def became(self, before: str, now: str, reason: str) -> None:
        self._journal.write()
        said = {"from": before, "to": now, "reason": reason}
        self._topic.journal.note(TRANSITION, clock(), lambda: said, urgent=True)

    def values(self) -> Mapping[str, object]:
        return self._topic.values()

    def close(self) -> None:
        self._turn.cancel()
        self._journal.write()
        self._topic.close()
        self._journal.follow(None, {})
