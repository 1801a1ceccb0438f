"""Audit log of the commands that operators give through a page."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND
from ros2_rfm_serving.ros.node.audit import AuditTopic
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import qos


class Words:
    """Writer of the audit log; `note` may be called on any thread."""

    def __init__(self, node: Node, names: qos.Names) -> None:
        self._lock = threading.Lock()
        self._topic = AuditTopic(node, "dashboard/page", names.dashboard_audit, lock=self._lock).open()

    def note(self, said: Mapping[str, Any]) -> None:
        """Record a command with the page's fields: who, address, action, target, task, outcome, message."""
        with self._lock:
            self._topic.journal.note(OPERATOR_COMMAND, clock(), _word, said, urgent=True)

    def close(self) -> None:
        self._topic.close()


def _word(said: Mapping[str, Any]) -> Mapping[str, Any]:
    what = " ".join(filter(None, (said["action"], said["target"], said["task"])))
    return {
        "command": what,
        "operator": said["who"],
        "address": said["address"],
        "answer": said["message"],
        "done": said["outcome"] == "done",
    }
