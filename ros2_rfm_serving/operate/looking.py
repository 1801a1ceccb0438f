"""Looks at a running factory for a few seconds, whoever started it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.running import ros_domain, spinning

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.findings.look import Look
    from ros2_rfm_serving.ros.monitor.looking import LookingNode

PERIOD_S = 0.1


def look_at(namespace: str, seconds: float, wait_s: float, disk: Path, stop: threading.Event) -> Look:
    """Of `seconds`, from when somebody was found. wait_s: looks for a factory for so long.

    Raises: `ConfigurationError` when there is none.
    """
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.disk import disk_usage
    from ros2_rfm_serving.monitoring.findings.look import Disk
    from ros2_rfm_serving.ros.monitor.looking import LookingNode

    board = Board([], [])
    with spinning(lambda: LookingNode(board, namespace)) as node:
        _find(board, node, wait_s, stop)
        node.heard.begun_s = time.monotonic()
        stop.wait(seconds)
        found = node.finish()
    usage = disk_usage(disk)
    found.disk = Disk(folder=str(disk), size_bytes=usage.total, free_bytes=usage.free)
    return found


def _find(board: Board, node: LookingNode, limit_s: float, stop: threading.Event) -> None:
    end_s = time.monotonic() + limit_s
    while not (board.robots or board.servers or board.factory or node.has_unconfigured):
        if stop.wait(PERIOD_S) or time.monotonic() > end_s:
            fix = "start it with `rfm up`, or name its --domain and --namespace"
            raise ConfigurationError(f"no factory is running in ROS domain {ros_domain()}", fix=fix)
