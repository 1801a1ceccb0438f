"""Looks at the ROS graph for a few seconds, for verbs that compare a robot's file with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ros2_rfm_serving.operate.running import spinning

if TYPE_CHECKING:
    from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot

PERIOD_S = 0.25
Progress = Callable[[str], object]


def take_snapshot(seconds: float, stop: threading.Event, progress: Progress = lambda text: None) -> GraphSnapshot:
    """Return the graph of this process' domain and samples of its sensor topics; `stop` ends it early.

    Call `operate.running.prepare_environment` before. progress: gets a line of text a few times a second.
    """
    from ros2_rfm_serving.ros.tools.graph_snapshot import GraphSnapshotNode

    with spinning(GraphSnapshotNode) as node:
        for number in range(max(1, round(seconds / PERIOD_S))):
            left_s = seconds - number * PERIOD_S
            progress(f"looking at the graph: {node.num_topics} sensor topics, {left_s:.0f} s left")
            if stop.wait(PERIOD_S):
                break
        return node.snapshot()
