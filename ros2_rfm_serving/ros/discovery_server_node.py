"""Fast DDS discovery server. Every process whose ROS_DISCOVERY_SERVER names its address finds all others that do, without
multicast.

`rfm up --host` and the launch file start it where a descriptor has `discovery: {mode: server}`. The Fast DDS profile that they give
it makes its participant a server, so that nothing but rmw_fastrtps is needed.
"""

from __future__ import annotations

import os
import sys

from rclpy._rclpy_pybind11 import RCLError
from rclpy.node import Node

from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, is_server_profile, server_address
from ros2_rfm_serving.ros.node.runtime import EXIT_FAILED, run_node


class DiscoveryServerNode(Node):
    def __init__(self) -> None:
        file = os.environ.get(PROFILES_FILE, "")
        try:
            super().__init__("discovery_server", enable_rosout=False, start_parameter_services=False)
        except RCLError as error:
            raise SystemExit(_refused(file, error)) from None
        if is_server_profile(file):
            self.get_logger().info(f"a discovery server, as {file} says")
        else:
            self.get_logger().error(f"serves nobody: {PROFILES_FILE} ({file!r}) makes no server of it; `rfm up --host` would")


def _refused(file: str, error: Exception) -> int:
    """Report why there is no participant, and return the exit code.
    The supervisor starts the process again, since the previous owner of the port may be about to end."""
    port = server_address(file)
    problem = f"UDP port {port} cannot be had: another program has it, or it is not of this machine" if port else str(error)
    print(f"error: {file}: {problem}; end that one, or correct `port` and `address` in the descriptor", file=sys.stderr)
    return EXIT_FAILED


def main() -> None:
    run_node(DiscoveryServerNode, __doc__)
