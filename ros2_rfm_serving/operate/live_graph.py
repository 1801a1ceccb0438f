"""Observation of the ROS graph for a few seconds, for verbs that compare a robot's file with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ros2_rfm_serving.operate.running import spinning

if TYPE_CHECKING:
    from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot
    from ros2_rfm_serving.ros.tools.graph_snapshot import GraphSnapshotNode

PERIOD_S = 0.25
DISCOVERY_S = 10.0
"""Time that discovery of other nodes, and the first message of a topic, may take on a busy machine."""
Progress = Callable[[str], object]


def take_snapshot(
    seconds: float, stop: threading.Event, progress: Progress = lambda text: None, *, patience_s: float = DISCOVERY_S
) -> GraphSnapshot:
    """Return the graph of this process' domain and samples of its sensor topics; `stop` ends it early.

    It takes `seconds` from the discovery of another node on, and up to `patience_s` more while a sensor topic is silent. Call
    `operate.running.prepare_environment` before. progress: gets a line of text a few times a second."""
    from ros2_rfm_serving.ros.tools.graph_snapshot import GraphSnapshotNode

    with spinning(GraphSnapshotNode) as node:
        _wait(node, patience_s, stop, lambda: node.is_alone, progress)
        _wait(node, seconds, stop, lambda: True, progress)
        _wait(node, patience_s, stop, lambda: node.num_silent > 0, progress)
        return node.snapshot()


def _wait(node: GraphSnapshotNode, seconds: float, stop: threading.Event, goes_on: Callable[[], bool], progress: Progress) -> None:
    """Wait for `seconds` at most, while `goes_on` returns True."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0.0 and goes_on() and not stop.wait(min(PERIOD_S, left_s)):
        silent = f", {node.num_silent} of them silent" if node.num_silent else ""
        progress(f"looking at the graph: {node.num_topics} sensor topics{silent}, {left_s:.0f} s left")
