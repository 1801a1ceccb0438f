"""Implementation of `rfm check --live`: the robots of a factory, compared with the running graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ros2_rfm_serving.factory.live_graph.compare import GraphFinding, compare
from ros2_rfm_serving.operate.running import prepare_environment

if TYPE_CHECKING:
    from ros2_rfm_serving.factory import Factory
    from ros2_rfm_serving.factory.live_graph.interface import RobotInterface
    from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot
    from ros2_rfm_serving.factory.nodes import NodeSpec


def live_findings(
    factory: Factory,
    nodes: Iterable[NodeSpec],
    *,
    namespace: str,
    domain: int,
    seconds: float,
    stop: threading.Event,
    progress: Callable[[str], object],
) -> Iterator[tuple[str, list[GraphFinding] | None]]:
    """Yield each robot with the differences between the graph and its file; None: it is simulated, and does not run. seconds:
    observation time. stop: ends that early. progress: gets a line of text a few times a second. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.factory.environment import discovery_environment
    from ros2_rfm_serving.operate.drafts import robot_drafts
    from ros2_rfm_serving.operate.live_graph import take_snapshot
    from ros2_rfm_serving.ros.tools.robot_interface import robot_interface
    from ros2_rfm_serving.ros.wire.qos import Names

    prepare_environment(domain, discovery_environment(factory, ""))
    robots = robot_drafts(nodes, factory.file, every=True)
    snapshot = take_snapshot(seconds, stop, progress)
    for robot in robots:
        interface = robot_interface(robot.settings, Names(namespace), robot.node.params_file)
        simulated = factory.tasks[robot.settings.task].world is not None
        yield robot.node.name, None if simulated and not _has_sensors(interface, snapshot) else compare(interface, snapshot)


def _has_sensors(robot: RobotInterface, snapshot: GraphSnapshot) -> bool:
    topics = [*(camera.topic for camera in robot.cameras), *(part.topic for part in robot.state)]
    return any(snapshot.topic(topic).publishers for topic in topics)
