"""Process that communicates with Ray, for `rfm up`: it reads orders from a pipe and writes answers until the other end closes.

Ray ends a driver at once when the cluster's head is lost for too long. That is this process, and not a robot's supervisor. Signals
of a terminal do not reach it; it ends with `rfm up`, however that ends.
"""

from __future__ import annotations

import ctypes
import secrets
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.on_ray.actor import NodeActor
from ros2_rfm_serving.operate.on_ray.cluster import Cluster, joined, nodes
from ros2_rfm_serving.operate.on_ray.errand import Errand, end_s
from ros2_rfm_serving.operate.on_ray.planning import Layout
from ros2_rfm_serving.operate.on_ray.remote import Remote
from ros2_rfm_serving.operate.on_ray.words import Begin, Ended, Join, Joined, Look, Recall, Recalled, Refused, Told
from ros2_rfm_serving.ros.node.process import PR_SET_PDEATHSIG

LOOK_S = 0.5
"""Period of polling the actors."""
ANSWER_S = 0.2
"""Time for all actors to answer, before the rest waits for the next poll."""
PREDECESSORS_S = 90.0
"""Time for which processes of an earlier cluster may outlive its head: Ray's own minute, and their orderly end."""


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(int(sys.argv[1]))
    try:
        join: Join = connection.recv()
        try:
            with joined(join.address, join.layout) as cluster:
                _keep(connection, cluster, join.layout)
        except ConfigurationError as error:
            connection.send(Refused(error.problem, error.key, error.fix))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return


def _keep(connection: Connection, cluster: Cluster, layout: Layout) -> None:
    """Serve orders until everything is ended."""
    mark = f"rfm_serving/{secrets.token_hex(16)}".encode()
    _internal_kv_put(mark, b"here")
    connection.send(Joined(cluster.address, cluster.own, cluster.nodes))
    crew = Crew()
    while True:
        if not connection.poll(LOOK_S):
            if said := crew.watch():
                connection.send(said)
            continue
        order = connection.recv()
        if isinstance(order, Begin):
            crew.begin(order, cluster, layout)
        elif isinstance(order, Look):
            connection.send(Joined(cluster.address, cluster.own, nodes()))
        elif isinstance(order, Recall):
            connection.send(Recalled(_internal_kv_get(mark) is not None))
        else:
            connection.send(crew.end())
            return crew.dismiss()


class Crew:
    """All actors of a factory."""

    def __init__(self) -> None:
        self._remotes: list[Remote] = []

    def begin(self, begin: Begin, cluster: Cluster, layout: Layout) -> None:
        group, until_s = cluster.place(layout), time.monotonic() + PREDECESSORS_S if begin.again else 0.0
        for errand in begin.errands:
            log = begin.logs / f"{errand.node.name}.log"
            actor = _actor(errand, group, layout)
            self._remotes.append(
                Remote(node=errand.node, log=log, actor=actor, num_lives=int(begin.again), predecessors_until_s=until_s)
            )

    def watch(self) -> Told | None:
        asked = [remote.ask() for remote in self._remotes if not remote.gave_up]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        events = tuple(event for remote in self._remotes for event in remote.watch())
        return Told(events, {remote.node.name: remote.last_exit for remote in self._remotes if remote.gave_up}) if events else None

    def end(self) -> Ended:
        """End the processes, all at once, wherever they are. This needs no head."""
        endings = [(remote, remote.begin_end()) for remote in self._remotes]
        deadline_s = time.monotonic() + end_s(remote.node for remote in self._remotes)
        return Ended(tuple(remote.node.name for remote, ending in endings if not remote.end(ending, deadline_s)))

    def dismiss(self) -> None:
        """End the owners. This waits for the head, for ever if it is lost."""
        for remote in self._remotes:
            ray.kill(remote.actor, no_restart=True)


def _actor(errand: Errand, group: object, layout: Layout) -> Any:
    name = errand.node.name
    index = layout.bundle_of(name)
    where = {} if index is None else {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}
    resources = {"num_cpus": layout.num_cpus(name), "num_gpus": layout.num_gpus.get(name, 0)}
    kind = ray.remote(NodeActor).options(name=name, max_restarts=-1, max_task_retries=0, **resources, **where)
    return kind.remote(errand)
