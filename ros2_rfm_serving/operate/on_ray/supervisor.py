"""`rfm up --on ray`: the supervisor of a factory whose scheduler and servers Ray keeps; robots and their like are kept here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.carried import entries_of, files
from ros2_rfm_serving.operate.deploy.processes import Role
from ros2_rfm_serving.operate.on_ray.actor import NodeActor
from ros2_rfm_serving.operate.on_ray.cluster import LOCAL, Cluster, asked_address, joined
from ros2_rfm_serving.operate.on_ray.errand import errand
from ros2_rfm_serving.operate.on_ray.planning import KEPT, Layout, check_room, heard, layout
from ros2_rfm_serving.operate.on_ray.remote import END_S, Remote
from ros2_rfm_serving.operate.running import Options, console
from ros2_rfm_serving.operate.supervisor import Kept, Process, Supervisor
from ros2_rfm_serving.shipped import shipped

ANSWER_S = 0.2
"""For all to say how they do, before those who have not are waited for until the next time."""


class OnRay(Supervisor):
    """Ray starts again what it keeps, on another node if need be; what is said of it comes from the actors themselves."""

    def __init__(
        self, nodes: list[NodeSpec], options: Options, cluster: Cluster, planned: Layout, around: Sequence[NodeSpec] = ()
    ) -> None:
        mine = [node for node in nodes if Role.of(node.executable) not in KEPT]
        super().__init__(mine, options.logs, fleet_namespace=options.namespace, log_level=options.log_level, around=around)
        self._nodes = [node for node in nodes if Role.of(node.executable) in KEPT]
        self._options, self._cluster, self._planned = options, cluster, planned
        self._remotes: list[Remote] = []

    @property
    def kept(self) -> Sequence[Kept]:
        return [*self.processes, *self._remotes]

    def start(self) -> None:
        group = self._cluster.place(self._planned)
        carried = dict(files(self._planned.factory, self._options.profiles))
        self._remotes = [self._remote(node, group, carried) for node in self._nodes]
        super().start()

    def watch(self) -> list[str]:
        asked = [remote.ask() for remote in self._remotes if not remote.gave_up]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        return [*super().watch(), *(event for remote in self._remotes for event in remote.watch())]

    def _stop_others(self, robots: list[Process]) -> list[str]:
        """All at once, wherever they are."""
        endings = [(remote, remote.begin_end()) for remote in self._remotes]
        deadline_s = time.monotonic() + END_S
        killed = super()._stop_others(robots)
        return [*killed, *(remote.node.name for remote, ending in endings if not remote.end(ending, deadline_s))]

    def _remote(self, node: NodeSpec, group: object, carried: Mapping[str, str]) -> Remote:
        told = errand(node, carried, os.environ, self._options.namespace, self._options.log_level)
        index = self._planned.bundle_of(node.name)
        where = {} if index is None else {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}
        actor = ray.remote(NodeActor).options(
            name=node.name,
            num_cpus=self._planned.num_cpus(node.name),
            num_gpus=self._planned.num_gpus.get(node.name, 0),
            max_restarts=-1,
            max_task_retries=0,
            **where,
        )
        return Remote(node=node, log=self._options.logs / f"{node.name}.log", actor=actor.remote(told))


@contextmanager
def on_ray(factory: Factory, options: Options) -> Iterator[tuple[dict[str, str], Cluster, Layout]]:
    """What all processes find in their environment; the cluster, and what is asked of it. Raises: `ConfigurationError`."""
    catalogue = Catalogue.load((options.profiles or shipped("config", "profiles")) / "models.yaml")
    address = asked_address(options.ray_address)
    planned = layout(factory, {entry.engine for entry in entries_of(factory, catalogue)}, one_machine=address == LOCAL)
    with joined(address, planned) as cluster:
        environment = heard(factory, {node.address for node in cluster.nodes}, cluster.own)
        check_room(planned, cluster.nodes)
        where = "started for this factory" if address == LOCAL else f"at {cluster.address}"
        console.print(plain(f"Ray {ray.__version__}, {where}: nodes {', '.join(node.address for node in cluster.nodes)}"))
        if address == LOCAL and factory.hosts:
            console.print("warning: one machine is all hosts of the descriptor: a robot's server and its standby share it")
        yield environment, cluster, planned
