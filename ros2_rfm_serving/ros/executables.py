"""Entry points of lib/rfm_serving, which setup.cfg lists. In a checkout: `python -m ros2_rfm_serving.ros.executables robot_node`.

Importing this module takes no time, so that Ctrl-C already works while ROS and the models' libraries are being imported.
"""

from __future__ import annotations

import importlib
import sys

from ros2_rfm_serving.ros.node.process import Ending


def scheduler_node() -> None:
    _run("scheduler_node")


def model_server_node() -> None:
    _run("model_server_node")


def robot_node() -> None:
    _run("robot_node")


def robots_node() -> None:
    _run("robots_node")


def metaworld_robot_node() -> None:
    _run("metaworld_robot_node")


def simulated_robot_node() -> None:
    _run("simulated_robot_node")


def foreman_node() -> None:
    _run("foreman_node")


def markers_node() -> None:
    _run("markers_node")


def recorder_node() -> None:
    _run("recorder_node")


def discovery_server_node() -> None:
    _run("discovery_server_node")


def zenoh_door_node() -> None:
    _run("zenoh_door_node")


def zenoh_router_node() -> None:
    _run("zenoh_router_node")


def _run(name: str) -> None:
    Ending()
    importlib.import_module(f"ros2_rfm_serving.ros.{name}").main()


if __name__ == "__main__":
    del sys.argv[0]
    _run(sys.argv[0])
