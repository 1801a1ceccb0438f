"""The discovery server of a host, as one of the processes that it starts."""

from __future__ import annotations

from pathlib import Path

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.environment import SERVERS, SUPER_CLIENT, server_hosts
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, server_profile


def discovery_servers(factory: Factory, host: str, folder: Path) -> list[NodeSpec]:
    """None where the descriptor wants none on this host. Its profile is written to `folder`. Raises: `ConfigurationError`."""
    if host not in server_hosts(factory):
        return []
    profile = server_profile(str(factory.hosts[host].address), factory.discovery.port, folder)
    environment = {PROFILES_FILE: str(profile), SERVERS: "", SUPER_CLIENT: "FALSE"}
    name = f"discovery_server_{host}"
    return [NodeSpec(name=name, executable="discovery_server_node", namespace="rfm", host=host, environment=environment)]
