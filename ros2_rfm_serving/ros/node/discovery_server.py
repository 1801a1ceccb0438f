"""Processes of one host: its part of a factory's nodes, preceded by its discovery server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.environment import SERVERS, SUPER_CLIENT, on_host, server_hosts
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, server_profile


def part_of(nodes: Iterable[NodeSpec], factory: Factory, host: str, folder: Path) -> list[NodeSpec]:
    """Return the nodes of a host. folder: for profiles. Raises: `ConfigurationError` when there is none."""
    mine = [*discovery_servers(factory, host, folder), *on_host(nodes, factory, host, os.environ)]
    if not mine:
        fix = "name its tasks in `robots`, or leave it out"
        raise ConfigurationError("nothing of the factory runs on this host", file=factory.file, key=f"hosts.{host}", fix=fix)
    return mine


def discovery_servers(factory: Factory, host: str, folder: Path) -> list[NodeSpec]:
    """Return the host's discovery server; empty when the descriptor wants none there. Its profile is written to `folder`.
    Raises: `ConfigurationError`."""
    if host not in server_hosts(factory):
        return []
    profile = server_profile(str(factory.hosts[host].address), factory.discovery.port, folder)
    environment = {PROFILES_FILE: str(profile), SERVERS: "", SUPER_CLIENT: "FALSE"}
    name = f"discovery_server_{host}"
    return [NodeSpec(name=name, executable="discovery_server_node", namespace="rfm", host=host, environment=environment)]
