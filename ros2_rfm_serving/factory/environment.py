"""Environment variables of a factory's processes, for discovery and for the visible GPU.

Without a host all processes are on this machine, and only the variables that isolate factories are set. A machine that is none of
the hosts, such as a robot's own computer or an operator's, is `ELSEWHERE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.descriptor import Factory
from ros2_rfm_serving.factory.discovery import DiscoveryMode
from ros2_rfm_serving.factory.machines import DEVICE, Machine
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.factory.yaml_source import did_you_mean

DOMAIN, RANGE, PEERS = "ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_STATIC_PEERS"
SERVERS, SUPER_CLIENT = "ROS_DISCOVERY_SERVER", "ROS_SUPER_CLIENT"
ELSEWHERE = "-"
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
NO_GPU = "-1"
"""Value of `VISIBLE` that shows no GPU; an empty value would remove the variable from a node's environment."""


def host_named(factory: Factory, name: str) -> Machine:
    """Return the host of this name. Raises: `ConfigurationError` when there is none."""
    if name not in factory.hosts:
        known = (
            did_you_mean(name, factory.hosts) if factory.hosts else "declare the machines in `hosts`, or start it without a host"
        )
        raise ConfigurationError(f"no host is named {name!r}", file=factory.file, key="hosts", fix=known)
    return factory.hosts[name]


def discovery_environment(factory: Factory, host: str = "") -> dict[str, str]:
    """Return the variables of every process on a host that is to discover the factory. An empty value removes a variable.

    Raises: `ConfigurationError` for an unknown host.
    """
    discovery = factory.discovery
    domain = {} if discovery.domain is None else {DOMAIN: str(discovery.domain)}
    if not host:
        return domain
    if host != ELSEWHERE:
        host_named(factory, host)
    if host in factory.zenoh_hosts:
        return {**domain, RANGE: "LOCALHOST", PEERS: "", SERVERS: "", SUPER_CLIENT: ""}
    if discovery.mode is DiscoveryMode.MULTICAST:
        return {**domain, RANGE: "SUBNET", PEERS: "", SERVERS: "", SUPER_CLIENT: ""}
    if discovery.mode is DiscoveryMode.PEERS:
        others = [str(other.address) for name, other in factory.hosts.items() if name != host and not other.zenoh]
        others += map(str, discovery.peers)
        return {**domain, RANGE: "LOCALHOST", PEERS: ";".join(others), SERVERS: "", SUPER_CLIENT: ""}
    return {**domain, RANGE: "SYSTEM_DEFAULT", PEERS: "", SERVERS: ";".join(server_addresses(factory)), SUPER_CLIENT: "TRUE"}


def server_hosts(factory: Factory) -> tuple[str, ...]:
    """Return the hosts that run a discovery server, in the order of their numbers."""
    if factory.discovery.mode is not DiscoveryMode.SERVER:
        return ()
    return factory.discovery.servers or (factory.scheduler_host,)


def server_addresses(factory: Factory) -> list[str]:
    return [f"{factory.hosts[name].address}:{factory.discovery.port}" for name in server_hosts(factory)]


def on_host(nodes: Iterable[NodeSpec], factory: Factory, host: str, environment: Mapping[str, str]) -> list[NodeSpec]:
    """Return the nodes that run on a host, each with its GPU. environment: of this process.

    Raises: `ConfigurationError` for an unknown host, or one with fewer GPUs than declared.
    """
    host_named(factory, host)
    mine = [node for node in nodes if node.host == host]
    return [replace(node, environment={**node.environment, **gpu_environment(node, environment)}) for node in mine]


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the visible devices as CUDA and PyTorch read the variable.

    Devices after an invalid one, such as -1, or after one of another kind than the first are not visible. No device is visible
    where one is listed twice.
    """
    listed = (device.strip() for device in environment[VISIBLE].split(","))
    shown = [str(int(device)) if device.isdecimal() else device for device in takewhile(DEVICE.fullmatch, listed)]
    alike = list(takewhile(lambda device: _kind(device) == _kind(shown[0]), shown))
    return alike if len(set(alike)) == len(alike) else []


def _kind(device: str) -> str:
    return "" if device.isdecimal() else device.partition("-")[0]


def gpu_environment(node: NodeSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a model server that has a GPU of its own. Indices count within the GPUs that this process may use.

    Raises: `ConfigurationError` where these are fewer than declared.
    """
    if not node.device:
        return {}
    if VISIBLE not in environment or not node.device.isdecimal():
        return {VISIBLE: node.device, ORDER: environment.get(ORDER, "PCI_BUS_ID")}
    visible = visible_devices(environment)
    if int(node.device) >= len(visible):
        raise ConfigurationError(
            f"{node.name} is to run on GPU {node.device} of {node.host}, and {VISIBLE} shows {len(visible)}",
            key=f"hosts.{node.host}.gpus",
            fix=f"declare as many as there are, or unset {VISIBLE}",
        )
    return {VISIBLE: visible[int(node.device)]}
