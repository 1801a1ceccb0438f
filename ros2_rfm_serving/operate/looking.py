"""Observation of a running factory for a few seconds, however it was started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import ros_domain, spinning

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.findings.look import Look
    from ros2_rfm_serving.ros.monitor.looking import LookingNode

PERIOD_S = 0.1
ALL_HEARD_S, SOME_SILENT_S = 1.0, 2.0
"""Time without a new robot or server after which all are known: two and four periods of a status."""
UNDATED_S = 5.0
"""Time for finding a server, and for its reply which schedule is active."""


def look_at(namespace: str, seconds: float, wait_s: float, disk: Path, stop: threading.Event) -> Look:
    """Observe a factory for `seconds`, from when one of its processes was found.

    The observation lasts longer, by at most as long again, where a busy machine subscribes to the last robot or server later: each
    is observed for `seconds`, so that a silent one is reported.

    Args:
        wait_s: maximum time to find a factory, s.

    Raises:
        ConfigurationError: no factory was found.
    """
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.disk import disk_usage
    from ros2_rfm_serving.monitoring.findings.look import Disk
    from ros2_rfm_serving.ros.monitor.looking import LookingNode

    board = Board([], [])
    with spinning(lambda: LookingNode(board, namespace)) as node:
        _find(board, node, wait_s, stop)
        node.heard.begun_s = time.monotonic()
        with spinner(f"watching the factory for {seconds:g} s"):
            stop.wait(seconds)
            stop.wait(min(seconds, node.newest_s + seconds - time.monotonic()))
        found = node.finish()
    usage = disk_usage(disk)
    found.disk = Disk(folder=str(disk), size_bytes=usage.total, free_bytes=usage.free)
    return found


def await_factory(board: Board, limit_s: float, stop: threading.Event, is_enough: Callable[[], bool] = lambda: False) -> None:
    """Wait until all robots and servers were received and one server confirmed the schedule, or nothing new came for a while.

    Args:
        limit_s: the longest wait, s.
        is_enough: ends the wait early, once the caller has what it needs.

    Raises:
        ConfigurationError: no factory was found.
    """
    with _searching(limit_s):
        _await_all(board, limit_s, stop, is_enough)
    if not stop.is_set() and not _is_there(board):
        raise _no_factory()


def _await_all(board: Board, limit_s: float, stop: threading.Event, is_enough: Callable[[], bool]) -> None:
    from ros2_rfm_serving.monitoring.board import Proof

    end_s = time.monotonic() + limit_s
    news, news_s = (0, 0), time.monotonic()
    while time.monotonic() < end_s and not stop.wait(PERIOD_S) and not is_enough():
        seen = [row.seen_s > 0 for row in board.robots.values()] + [row.seen_s > 0 for row in board.servers.values()]
        if (len(seen), sum(seen)) != news:
            news, news_s = (len(seen), sum(seen)), time.monotonic()
        quiet_s = UNDATED_S if board.proof is Proof.UNDATED else ALL_HEARD_S if all(seen) else SOME_SILENT_S
        if any(seen) and board.factory and time.monotonic() - news_s > quiet_s:
            return


def _find(board: Board, node: LookingNode, limit_s: float, stop: threading.Event) -> None:
    end_s = time.monotonic() + limit_s
    with _searching(limit_s):
        while not (_is_there(board) or node.has_unconfigured):
            if stop.wait(PERIOD_S) or time.monotonic() > end_s:
                raise _no_factory()


def _searching(limit_s: float) -> AbstractContextManager[object]:
    return spinner(f"looking for a factory in ROS domain {ros_domain()}, for up to {limit_s:g} s")


def _is_there(board: Board) -> bool:
    return bool(board.robots or board.servers or board.factory)


def _no_factory() -> ConfigurationError:
    fix = "start it with `rfm up`, or name its --domain and --namespace"
    return ConfigurationError(f"no factory is running in ROS domain {ros_domain()}", fix=fix)
