"""Settings by which a factory's processes discover each other: variables, Fast DDS profiles, discovery servers (docs/hosts.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.dds import dds_profile
from ros2_rfm_serving.factory.environment import DOMAIN, RANGE, SERVERS, discovery_environment, server_hosts
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.operate.deploy.files import slug
from ros2_rfm_serving.operate.deploy.options import Kind, Options
from ros2_rfm_serving.ros.node.discovery_server import discovery_servers
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, use_partition
from ros2_rfm_serving.shipped import shipped

ANY_ADDRESS = "0.0.0.0"


@dataclass
class Hearing:
    factory: Factory
    options: Options
    profile: str
    """Path of the Fast DDS profile."""
    files: dict[str, str] = field(default_factory=dict)
    """Files below `etc`."""
    servers: list[NodeSpec] = field(default_factory=list)

    @staticmethod
    def of(factory: Factory, nodes: Sequence[NodeSpec], options: Options) -> Hearing:
        """Return the settings. Raises: `ConfigurationError`."""
        made, name = Hearing(factory, options, ""), dds_profile(nodes).file
        folder = Path(options.installation, "share", "rfm_serving", "config", "dds")
        made.profile = str(folder / name if options.installation else shipped("config", "dds", name))
        if factory.discovery.partition:
            made._in_partition(name)
        for host in server_hosts(factory):
            made._add_server(host)
        return made

    def environment(self, host: str) -> Mapping[str, str]:
        """Return the variables of every process of a host that is to discover the others; empty values remove a variable."""
        alone = {RANGE: "SUBNET" if self.options.in_containers else "LOCALHOST"}
        found = discovery_environment(self.factory, host) if host else alone
        if found.get(SERVERS) and self.has_own_addresses:
            services = (f"{service_of(node.name)}:{self.factory.discovery.port}" for node in self.servers)
            found = {**found, SERVERS: ";".join(services)}
        return {**found, DOMAIN: self.options.domain, PROFILES_FILE: self.profile}

    @property
    def has_own_addresses(self) -> bool:
        """True if each process has an address of its own, unknown beforehand."""
        return self.options.kind is Kind.KUBERNETES and not self.options.host_network

    def _in_partition(self, name: str) -> None:
        with TemporaryDirectory() as folder:
            environment = {PROFILES_FILE: str(shipped("config", "dds", name))}
            use_partition(self.factory.discovery.partition, Path(folder), environment)
            self.profile = self._take(Path(environment[PROFILES_FILE]))

    def _add_server(self, host: str) -> None:
        with TemporaryDirectory() as folder:
            (node,) = discovery_servers(self.factory, host, Path(folder))
            file = Path(node.environment[PROFILES_FILE]).rename(Path(folder, f"{node.name}.xml"))
            if self.has_own_addresses:
                own = str(self.factory.hosts[host].address)
                file.write_text(file.read_text(encoding="utf-8").replace(f">{own}<", f">{ANY_ADDRESS}<"), encoding="utf-8")
            environment = {**node.environment, PROFILES_FILE: self._take(file)}
        self.servers.append(dataclasses.replace(node, environment=environment))

    def _take(self, file: Path) -> str:
        """Add a file, and return its future path."""
        self.files[f"dds/{file.name}"] = file.read_text(encoding="utf-8")
        return f"{self.options.files}/dds/{file.name}"


def service_of(name: str) -> str:
    """Return the service name that Kubernetes resolves."""
    return f"rfm-{slug(name)}"
