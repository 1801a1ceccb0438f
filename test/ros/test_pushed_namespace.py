"""A node whose namespace was pushed below another one, and whose factory was not, does not start: it would hear another cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.ros.node.runtime import fleet_names
from test.ros.spinning import living


def started(repository: Path, executable: str, namespace: str, *parameters: str) -> subprocess.CompletedProcess[str]:
    given = [text for parameter in parameters for text in ("-p", parameter)]
    command = [
        sys.executable,
        "-m",
        "ros2_rfm_serving.ros.executables",
        executable,
        "--ros-args",
        "-r",
        f"__ns:={namespace}",
        *given,
    ]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("executable", "namespace"),
    [("robot_node", "/cell_a/push_1"), ("markers_node", "/cell_a/rfm"), ("markers_node", "/cell_a")],
)
def test_a_pushed_node_of_another_factory_is_refused_with_the_fix(
    repository: Path, ros_domain: int, executable: str, namespace: str
) -> None:
    refused = started(repository, executable, namespace)
    assert refused.returncode == EXIT_CONFIGURATION
    assert f"the node is in {namespace}, below /cell_a, and its factory's topics are below /" in refused.stderr
    assert "write fleet_namespace: cell_a" in refused.stderr


@pytest.mark.parametrize(
    ("namespace", "given", "root"),
    [
        ("/cell_a/push_1", "cell_a", "/cell_a"),
        ("/cell_a/push_1", "/", ""),
        ("/push_1", "", ""),
        ("/push_1", "cell_a", "/cell_a"),
        ("/plant/line_2/rfm/servers/server_1", "plant/line_2", "/plant/line_2"),
        ("/plant/rfm/rfm/servers/server_1", "plant/rfm", "/plant/rfm"),
        ("/rfm/push_1", "rfm", "/rfm"),
    ],
)
def test_a_node_belongs_to_the_factory_that_it_names(ros_domain: int, namespace: str, given: str, root: str) -> None:
    def make(context: rclpy.Context) -> Node:
        overrides = [Parameter("fleet_namespace", value=given)]
        return Node("any", namespace=namespace, context=context, parameter_overrides=overrides)

    with living(make) as node:
        assert fleet_names(node).root == root
