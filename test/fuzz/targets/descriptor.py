"""`factory/descriptor.py`: a factory's file, and the processes that follow from it."""

from __future__ import annotations

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.nodes import node_list, parameter_file
from test.fuzz.targets.files import CONFIG, explained, written

MAX_PROCESSES = 64
"""More of them tell nothing more."""


def seeds() -> list[bytes]:
    return [file.read_bytes() for file in sorted(CONFIG.glob("factory_*.yaml"))]


def check(data: bytes) -> None:
    try:
        factory = load_factory(written(data, "factory.yaml"))
        counts = [group.num_servers for group in factory.server_cluster] + [entry.num_robots for entry in factory.robot_fleet]
        if sum(counts) <= MAX_PROCESSES:
            nodes = node_list(factory, CONFIG, work={})
            assert len({node.name for node in nodes}) == len(nodes)
            assert all(parameter_file(node.parameters).encode() for node in nodes)
    except ConfigurationError as error:
        explained(error)
        return
    for entry in factory.robot_fleet:
        task = factory.tasks[entry.task]
        assert task.cycle_period_s > 0 and task.floor_hz(entry.num_robots) >= 0
        assert all(task.calls_per_action(component) >= 0 for component in task.components)
