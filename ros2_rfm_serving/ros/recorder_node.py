"""Records a factory to a rosbag2 folder of MCAP files: observations, chunks, judgements, plans, schedules, statuses, commands,
sensor data, and every process' decision records.

It only subscribes and writes; no process waits for it. With `flight_s` it keeps the last seconds in memory, and writes them when an
event occurs or `rfm/recorder/save` is called.
"""

from __future__ import annotations

from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.monitor.recorder_parameters import SPECS
from ros2_rfm_serving.ros.node.runtime import run_node


def _make() -> Node:
    try:
        from ros2_rfm_serving.ros.monitor.recorder import RecorderNode
    except ModuleNotFoundError as error:
        fix = "pip install 'ros2-rfm-serving[audit]'"
        raise ConfigurationError(f"{error.name} is missing", key="recorder_node", fix=fix) from None
    return RecorderNode()


def main() -> None:
    run_node(_make, __doc__, SPECS)


if __name__ == "__main__":
    main()
