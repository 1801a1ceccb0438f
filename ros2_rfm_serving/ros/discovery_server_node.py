"""Fast DDS's discovery server, in a process of ours: whoever names its address in ROS_DISCOVERY_SERVER finds all others who do,
without multicast. `rfm up --host` and the launch file start it where a descriptor says `discovery: {mode: server}`; the Fast DDS
profile that they give it makes its participant a server, so that nothing but rmw_fastrtps is needed.
"""

from __future__ import annotations

import os

from rclpy.node import Node

from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, is_server_profile
from ros2_rfm_serving.ros.node.runtime import run_node


class DiscoveryServerNode(Node):
    def __init__(self) -> None:
        super().__init__("discovery_server", enable_rosout=False, start_parameter_services=False)
        file = os.environ.get(PROFILES_FILE, "")
        if is_server_profile(file):
            self.get_logger().info(f"a discovery server, as {file} says")
        else:
            self.get_logger().error(f"serves nobody: {PROFILES_FILE} ({file!r}) makes no server of it; `rfm up --host` would")


def main() -> None:
    run_node(DiscoveryServerNode, __doc__)
