"""Gateway between a factory on DDS and robots on Zenoh: on `rmw_zenoh_cpp`, or on eclipse-zenoh without ROS.

It uses rmw_zenoh's format through a Zenoh router, and forwards only the messages between a robot and its servers (docs/zenoh.md).
"""

from __future__ import annotations

from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.parameters import Spec
from ros2_rfm_serving.ros.node.runtime import run_node

SPECS = {
    "router": Spec(
        "tcp/127.0.0.1:7447", "Of Zenoh: where it listens, `tcp/` or `tls/`. Without effect where `zenoh_config` is given"
    ),
    "zenoh_config": Spec(
        "",
        "Zenoh session configuration, JSON5, as `rfm zenoh` writes it; empty: its certificate's, without one a client of `router`",
    ),
    "zenoh_domain": Spec(-1, "ROS domain of the robots on Zenoh; -1: this node's own", -1, 232),
    "robots": Spec([""], "Robots that may come in; empty: all"),
    "max_observation_mb": Spec(16.0, "Of one observation, MB; larger ones are refused", 0.01, 64.0),
    "call_timeout_s": Spec(10.0, "That a server may take for its answer to a request, s", 0.1, 600.0),
}


def _make() -> Node:
    try:
        from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
    except ModuleNotFoundError as error:
        fix = "pip install 'ros2-rfm-serving[zenoh]'"
        raise ConfigurationError(f"{error.name} is missing", key="zenoh_door_node", fix=fix) from None
    door = ZenohDoorNode(SPECS)
    door.claim()
    door.begin()
    return door


def main() -> None:
    run_node(_make, __doc__, SPECS)


if __name__ == "__main__":
    main()
