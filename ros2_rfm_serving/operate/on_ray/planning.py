"""A factory as a request to Ray: an actor for each process that Ray keeps, with its GPU, and their placement on different machines.

A host of the descriptor is a bundle of a placement group: no two bundles are on one node of the cluster, and when a node is lost
its bundle starts on another one, with all its servers. So the scheduler's knowledge stays true: servers of two hosts are on two
machines, a robot's server and its standby among them (`scheduler/anti_affinity.py`), whichever machines these are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.discovery import DiscoveryMode
from ros2_rfm_serving.factory.environment import ELSEWHERE, PEERS, discovery_environment
from ros2_rfm_serving.operate.carried import gpu_of
from ros2_rfm_serving.operate.deploy.files import distinct_types, slug
from ros2_rfm_serving.operate.deploy.needs import NEEDS
from ros2_rfm_serving.operate.deploy.pods import GPU_LABEL, HOST_LABEL
from ros2_rfm_serving.operate.deploy.processes import Role

CPU, GPU = "CPU", "GPU"
SCHEDULER = "scheduler"
KEPT = (Role.SCHEDULER, Role.SERVER)
"""Roles that Ray keeps. Robots' nodes stay where they are started: a second one that commands a robot, because Ray lost contact
with the first, would be worse than none."""


class Strategy(Enum):
    """Placement strategies, as Ray names them."""

    APART = "STRICT_SPREAD"
    SPREAD = "SPREAD"
    """As far as there are enough nodes."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Servers that are on one node, together."""

    name: str
    """Name of the host; without `hosts`, of the single server."""
    servers: tuple[str, ...]
    resources: Mapping[str, float]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels that a node must have: one of these values of each."""

    def fits(self, node: ClusterNode) -> bool:
        """Return whether the whole node could have the bundle, regardless of other users."""
        has = all(node.resources.get(name, 0.0) >= amount for name, amount in self.resources.items())
        return has and all(node.labels.get(name) in values for name, values in self.labels.items())

    def __str__(self) -> str:
        resources = (f"{amount:g} {name}" for name, amount in self.resources.items())
        labels = (f"{name}={' or '.join(values)}" for name, values in self.labels.items())
        return f"{self.name} ({', '.join([*resources, *labels])})"


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A node of the cluster, as a whole."""

    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Layout:
    factory: Factory
    bundles: tuple[Bundle, ...]
    strategy: Strategy
    num_gpus: Mapping[str, int]
    """Server -> number of GPUs."""

    def bundle_of(self, name: str) -> int | None:
        """Return the index of a process' bundle; None: any node, as for the scheduler."""
        return next((i for i, bundle in enumerate(self.bundles) if name in bundle.servers), None)

    def num_cpus(self, name: str) -> float:
        return _cpus(Role.SCHEDULER if name == SCHEDULER else Role.SERVER)

    @property
    def total_cpus(self) -> float:
        return self.num_cpus(SCHEDULER) + sum(bundle.resources[CPU] for bundle in self.bundles)


def layout(factory: Factory, engines: Collection[str], *, one_machine: bool = False) -> Layout:
    """Return the layout. engines: of the factory's models. one_machine: the cluster is a single machine, which is all hosts.
    Raises: `ConfigurationError` where node labels could not distinguish GPUs."""
    gpus = {server: gpu_of(gpu_type, engines) for server, gpu_type in factory.gpu_types.items()}
    types = distinct_types(filter(None, gpus.values()), factory.file)
    hosts = {} if one_machine else {server: seat.host for server, seat in factory.gpu_assignments.items()}
    members: dict[str, list[str]] = {}
    for server in factory.servers:
        members.setdefault(hosts.get(server, server), []).append(server)
    mixed = len(types) > 1
    bundles = tuple(
        Bundle(
            name=name,
            servers=tuple(servers),
            resources=_resources([gpus[server] for server in servers]),
            labels={} if one_machine else _labels(factory, name, servers, gpus if mixed else {}),
        )
        for name, servers in members.items()
    )
    strict = bool(hosts) and not factory.standby.same_host
    strategy = Strategy.APART if strict else Strategy.SPREAD
    return Layout(factory=factory, bundles=bundles, strategy=strategy, num_gpus={s: int(bool(gpu)) for s, gpu in gpus.items()})


def _cpus(role: Role) -> float:
    return NEEDS[role].cpu_millicores / 1000


def _resources(gpus: Sequence[str]) -> dict[str, float]:
    num_gpus = sum(map(bool, gpus))
    return {CPU: _cpus(Role.SERVER) * len(gpus), **({GPU: float(num_gpus)} if num_gpus else {})}


def _labels(factory: Factory, bundle: str, servers: Iterable[str], gpus: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the labels of a bundle: hosts to which all its servers may be bound, and the GPU type, where there are several."""
    wishes = [factory.groups[server].hosts for server in servers if factory.groups[server].hosts]
    bound = tuple(host for host in factory.hosts if all(host in wish for wish in wishes)) if wishes else ()
    types = sorted({slug(gpus[server]) for server in servers if gpus.get(server)})
    if len(types) > 1:
        problem, fix = "has GPUs of several types, and a node of a Ray cluster one", "declare a host for each type"
        raise ConfigurationError(problem, file=factory.file, key=f"hosts.{bundle}.gpus", fix=fix)
    return {**({HOST_LABEL: bound} if bound else {}), **({GPU_LABEL: tuple(types)} if types else {})}


def check_room(layout: Layout, nodes: Sequence[ClusterNode]) -> None:
    """Raise `ConfigurationError` for a bundle that would wait for ever, because even an empty cluster has no room for it."""
    file, key = layout.factory.file, "server_cluster"
    for bundle in layout.bundles:
        if not any(map(bundle.fits, nodes)):
            fix = f"add one that has (ray start --num-cpus, --num-gpus, --labels); there are: {', '.join(map(_said, nodes))}"
            raise ConfigurationError(f"no node of the Ray cluster has room for {bundle}", file=file, key=key, fix=fix)
    if layout.strategy is Strategy.APART and (alone := _without_a_node(layout.bundles, nodes)):
        fix = (
            f"as many nodes as hosts with GPUs ({len(layout.bundles)}), and one more to move to; or `standby: {{same_host: true}}`"
        )
        raise ConfigurationError(
            f"each host wants a node of its own, and none is left for {alone}", file=file, key="hosts", fix=fix
        )


def _said(node: ClusterNode) -> str:
    resources = (f"{node.resources.get(name, 0.0):g} {name}" for name in (CPU, GPU))
    labels = (f"{name}={value}" for name, value in node.labels.items() if name in (HOST_LABEL, GPU_LABEL))
    return f"{node.address} ({', '.join([*resources, *labels])})"


def _without_a_node(bundles: Sequence[Bundle], nodes: Sequence[ClusterNode]) -> Bundle | None:
    """Return the first bundle without a node of its own (augmenting paths of a bipartite matching)."""
    taken: dict[int, Bundle] = {}

    def seat(bundle: Bundle, tried: set[int]) -> bool:
        for i, node in enumerate(nodes):
            if i not in tried and bundle.fits(node):
                tried.add(i)
                if i not in taken or seat(taken[i], tried):
                    taken[i] = bundle
                    return True
        return False

    return next((bundle for bundle in bundles if not seat(bundle, set())), None)


def heard(factory: Factory, addresses: Collection[str], own: str) -> dict[str, str]:
    """Return the environment for the factory's processes, wherever Ray puts them. An empty value removes a variable.
    addresses: of the cluster's nodes. own: of this machine. Raises: `ConfigurationError`."""
    if factory.discovery.mode is DiscoveryMode.SERVER:
        problem, fix = "a discovery server has one address, and Ray moves what it keeps", "`mode: peers`, or multicast"
        raise ConfigurationError(problem, file=factory.file, key="discovery.mode", fix=fix)
    if set(addresses) <= {own}:
        return discovery_environment(factory)
    found = discovery_environment(factory, ELSEWHERE)
    if factory.discovery.mode is DiscoveryMode.PEERS:
        found[PEERS] = ";".join(dict.fromkeys([*filter(None, found[PEERS].split(";")), *sorted(addresses)]))
    return found
