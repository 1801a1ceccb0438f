"""Draining of a server: it finishes its requests and accepts nothing new, before its process is ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.running import observing, ros_domain

LOOK_PERIOD_S = 0.05
HEARD_WITHIN_S = 5.0


def drain(server: str, namespace: str, within_s: float) -> str:
    """Drain a server and return a description of the result. Several callers at once each return when it has finished.
    Raises: `ConfigurationError`."""
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.ros.monitor.hands import Hands
    from ros2_rfm_serving.ros.wire.qos import Names

    board, end_s = Board([], [server]), time.monotonic() + within_s
    row = board.servers[server]
    with observing(board, namespace) as observer:
        if not _until(lambda: row.seen_s > 0, _soon(end_s)):
            fix = "name a server that runs, its --domain and its --namespace"
            raise ConfigurationError(f"no status is received from it in ROS domain {ros_domain()}", key=server, fix=fix)
        if row.state not in ("ready", "draining"):
            return f"{server} is {row.state}: there is nothing to drain"
        if row.state == "ready":
            asked = Hands(observer, Names(namespace)).order("drain", server, "")
            if not _until(lambda: asked.done() or row.state == "draining", end_s):  # its status is as good as a reply
                raise ConfigurationError(f"it does not answer within {within_s:g} s", key=server, fix="end it as it is")
            refused = asked.done() and not asked.result().done
            if refused and not _until(lambda: row.state == "draining", _soon(end_s)):  # of two requests at once, one is refused
                raise ConfigurationError(asked.result().message, key=server, fix="end it as it is")
        if not _until(lambda: row.state == "draining" and not row.waiting, end_s):
            raise ConfigurationError(f"{row.waiting} requests still wait after {within_s:g} s", key=server, fix="end it as it is")
    return f"{server} is drained: nothing waits, and nothing new is taken"


def _soon(end_s: float) -> float:
    return min(end_s, time.monotonic() + HEARD_WITHIN_S)


def _until(holds: Callable[[], bool], end_s: float) -> bool:
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(LOOK_PERIOD_S)
    return True
