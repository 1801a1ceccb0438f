"""Supervisor for `rfm up --on ray`: Ray keeps the scheduler and servers; robots and other nodes run on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ray import __version__ as ray_version

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.carried import entries_of, files
from ros2_rfm_serving.operate.deploy.processes import Role
from ros2_rfm_serving.operate.on_ray.errand import end_s, errand
from ros2_rfm_serving.operate.on_ray.head import LOCAL, Head, State, asked_address
from ros2_rfm_serving.operate.on_ray.link import LOG, Link
from ros2_rfm_serving.operate.on_ray.planning import KEPT, check_room, heard, layout
from ros2_rfm_serving.operate.on_ray.words import Begin, End, Ended, Join, Joined, Refused, Told
from ros2_rfm_serving.operate.running import Options, console
from ros2_rfm_serving.operate.supervisor import Kept, Process, Supervisor
from ros2_rfm_serving.shipped import shipped

ANSWERS_S = 5.0
"""Time for the driver to report how all actors have ended."""
LEAVE_S = 15.0
"""Time for a cluster that was started here to end, and for Ray to learn of the end."""


@dataclass(frozen=True, kw_only=True)
class Joining:
    """A joined cluster, with its driver and the request to it."""

    link: Link
    join: Join
    there: Joined

    @property
    def is_local(self) -> bool:
        return self.join.address == LOCAL


class OnRay(Supervisor):
    """Supervisor of a factory on Ray. Ray restarts its processes, on another node if necessary; reports come from the actors."""

    def __init__(self, nodes: list[NodeSpec], options: Options, joining: Joining, around: Sequence[NodeSpec] = ()) -> None:
        mine = [node for node in nodes if Role.of(node.executable) not in KEPT]
        super().__init__(mine, options.logs, fleet_namespace=options.namespace, log_level=options.log_level, around=around)
        others = [node for node in nodes if Role.of(node.executable) in KEPT]
        self._remotes = {node.name: Kept(node=node, log=options.logs / f"{node.name}.log") for node in others}
        self._options, self._joining = options, joining
        self._head = Head(
            joining.link,
            joining.there.address,
            connect=lambda: Link.started(joining.join, options.logs),
            again=self._again,
            patience_s=options.ray_patience_s,
            is_local=joining.is_local,
        )

    @property
    def kept(self) -> Sequence[Kept]:
        return [*self.processes, *self._remotes.values()]

    def start(self) -> None:
        self._head.link.send(self._begin(again=False))
        super().start()

    def watch(self) -> list[str]:
        events, told = self._head.watch(time.monotonic())
        for one in told:
            events += self._take(one)
        if self._head.state is State.GIVEN_UP:
            for kept in self._remotes.values():
                kept.gave_up = True
        return [*super().watch(), *events]

    def _take(self, told: Told) -> tuple[str, ...]:
        for name, code in told.gave_up.items():
            self._remotes[name].gave_up, self._remotes[name].last_exit = True, code
        return told.events

    def _stop_others(self, robots: list[Process]) -> list[str]:
        """End all processes at once, wherever they are."""
        self._head.link.send(End())
        patience_s = end_s(kept.node for kept in self._remotes.values()) + ANSWERS_S
        deadline_s = time.monotonic() + (patience_s if self._head.has_begun else 0.0)
        killed = super()._stop_others(robots)
        while (answer := self._head.link.wait(deadline_s - time.monotonic())) is not None:
            if isinstance(answer, Ended):
                killed += answer.killed
                break
        self._head.link.end(LEAVE_S if self._head.state is State.AT_WORK else 0.0)
        return killed

    def _begin(self, *, again: bool) -> Begin:
        layout, options = self._joining.join.layout, self._options
        carried, num_gpus = dict(files(layout.factory, options.profiles)), layout.num_gpus
        errands = (
            errand(kept.node, carried, os.environ, options.namespace, options.log_level, num_gpus=num_gpus.get(kept.node.name, 0))
            for kept in self._remotes.values()
            if not kept.gave_up
        )
        return Begin(tuple(errands), options.logs, again)

    def _again(self, there: Joined) -> Begin:
        """Return the order to start everything anew. Raises: `ConfigurationError` while there is no room."""
        check_room(self._joining.join.layout, there.nodes)
        return self._begin(again=True)


@contextmanager
def on_ray(factory: Factory, options: Options) -> Iterator[tuple[dict[str, str], Joining]]:
    """Join the cluster, and yield the environment of all processes, and the cluster. Raises: `ConfigurationError`."""
    catalogue = Catalogue.load((options.profiles or shipped("config", "profiles")) / "models.yaml")
    address = asked_address(options.ray_address)
    planned = layout(factory, {entry.engine for entry in entries_of(factory, catalogue)}, one_machine=address == LOCAL)
    with _joined(Join(address, planned), options) as joining:
        there = joining.there
        environment = heard(factory, {node.address for node in there.nodes}, there.own)
        check_room(planned, there.nodes)
        where = "started for this factory" if joining.is_local else f"at {there.address}"
        console.print(plain(f"Ray {ray_version}, {where}: nodes {', '.join(node.address for node in there.nodes)}"))
        if joining.is_local and factory.hosts:
            console.print("warning: one machine is all hosts of the descriptor: a robot's server and its standby share it")
        yield environment, joining


@contextmanager
def _joined(join: Join, options: Options) -> Iterator[Joining]:
    """Join the cluster. Raises: `ConfigurationError` where no cluster answers."""
    link = Link.started(join, options.logs)
    try:
        while (answer := link.wait(1.0)) is None and not link.ended:
            pass
        if isinstance(answer, Refused):
            raise ConfigurationError(answer.problem, key=answer.key, fix=answer.fix)
        if not isinstance(answer, Joined):
            problem = f"what speaks with Ray has ended ({link.ended}); see {options.logs / LOG}"
            raise ConfigurationError(problem, key="--on ray", fix="`ray status` says whether the cluster runs")
        yield Joining(link=link, join=join, there=answer)
    finally:
        link.send(End())  # without effect when it was sent before, or another driver follows
        link.end(LEAVE_S)
