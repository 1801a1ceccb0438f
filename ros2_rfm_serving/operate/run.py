"""Every process of a factory on this machine, from its start to what was seen of it."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.page import dashboard_page, read_door
from ros2_rfm_serving.operate.running import (
    DISCOVERY_S,
    Options,
    choose_profile,
    console,
    observing,
    prepare_environment,
    ros_domain,
    show_until_end,
    stop_signals,
)
from ros2_rfm_serving.operate.view import picture

if TYPE_CHECKING:
    from pathlib import Path

    from ros2_rfm_serving.factory import Factory
    from ros2_rfm_serving.factory.nodes import NodeSpec
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.operate.supervisor import Supervisor
    from ros2_rfm_serving.ros.observer_node import ObserverNode

RECORDER_S = 10.0
"""That the others wait for the recorder."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    board: Board
    failed: list[str]
    duration_s: float


def run_factory(factory: Factory, options: Options, *, until: Callable[[], bool] = lambda: False) -> Outcome:
    """Runs a factory to its end (time, episodes, `until` or Ctrl-C) and returns what was seen."""
    from ros2_rfm_serving.factory.environment import discovery_environment

    prepare_environment(options.domain, discovery_environment(factory, options.host))
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.summary import render
    from ros2_rfm_serving.operate.supervisor import Supervisor

    nodes = _checked_nodes(factory, options)
    recorder = secured(_recorder(options.record, options.namespace, factory), options.security)
    supervisor = Supervisor(nodes, options.logs, fleet_namespace=options.namespace, log_level=options.log_level, around=recorder)
    board = Board([robot.name for robot in factory.robots], factory.servers)
    stop = threading.Event()
    here = f"{options.host}: {', '.join(node.name for node in nodes)}; " if options.host else ""
    console.print(plain(f"{factory.file}: {len(board.robots)} robots, {len(board.servers)} servers; {here}logs in {options.logs}"))
    started_s = time.monotonic()
    with stop_signals(stop):  # to the last word: pressed again, Ctrl-C changes nothing
        discover = options.metrics >= 0 or bool(options.dashboard)
        with (
            observing(board, options.namespace, discover=discover) as observer,
            _metrics(board, options),
            _dashboard(board, observer, options),
        ):
            if options.host in ("", factory.scheduler_host):  # another host's part of this one runs when it does
                _refuse_a_second_factory(observer)
            try:
                supervisor.start_around()
                _await_recorder(observer, supervisor, bool(recorder))
                supervisor.start()
                show_until_end(factory.name, supervisor, board, options, stop, until)
                if options.svg_file:
                    canvas = Console(record=True, width=150, file=io.StringIO())
                    canvas.print(picture(factory.name, board, []))
                    canvas.save_svg(str(options.svg_file), title="rfm up")
            finally:
                ended_s = time.monotonic()
                console.print("stopping ...")
                killed = supervisor.stop()
        if killed:
            console.print(f"had to be killed: {', '.join(killed)}", style="yellow", markup=False)
        failed = [process.node.name for process in supervisor.gave_up]
        duration_s = time.monotonic() - started_s
        console.print(*render(board, duration_s, options.logs, ended_s=ended_s))
    return Outcome(board=board, failed=failed, duration_s=duration_s)


def _checked_nodes(factory: Factory, options: Options) -> list[NodeSpec]:
    """What is to be started here. What cannot be scheduled, or what a node would refuse, is said now, not in a log.

    Raises: `RfmError`.
    """
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.factory.nodes import node_list
    from ros2_rfm_serving.operate.drafts import check_nodes
    from ros2_rfm_serving.profiles import load_profiles
    from ros2_rfm_serving.ros.node.runtime import share
    from ros2_rfm_serving.scheduler import start_fleet

    profiles = options.profiles or share() / "config" / "profiles"
    catalogue = Catalogue.load(profiles / "models.yaml")
    start_fleet(factory, factory.robots, load_profiles(profiles), catalogue, epoch=1)
    nodes = node_list(factory, share() / "config", fleet_namespace=options.namespace, work=options.work, profiles=options.profiles)
    for warning in check_nodes(nodes, factory.file):
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    choose_profile(nodes, factory.discovery.partition, options.logs)
    if options.host:
        nodes = part_of(nodes, factory, options)
    if options.markers:
        nodes.append(_markers(factory, share() / "config", options.namespace))
    return secured(nodes, options.security)


def secured(nodes: list[NodeSpec], folder: Path | None) -> list[NodeSpec]:
    """Each with its certificate. folder: None: nobody has one. Raises: `ConfigurationError` for somebody without."""
    from ros2_rfm_serving.security.folder import CERTIFICATE, Folder
    from ros2_rfm_serving.security.own import member_environment

    if folder is None:
        return nodes
    for node in nodes:
        if not (Folder(folder).enclave(node.name) / CERTIFICATE).is_file():
            fix = "rfm security init, for this descriptor"
            raise ConfigurationError(f"{node.name} has no certificate there", file=str(folder), key="--security", fix=fix)
    return [replace(node, environment={**node.environment, **member_environment(folder, node.name)}) for node in nodes]


def part_of(nodes: list[NodeSpec], factory: Factory, options: Options) -> list[NodeSpec]:
    """What runs on a host, its discovery server first. Raises: `ConfigurationError` when that is nothing."""
    from ros2_rfm_serving.factory.environment import on_host
    from ros2_rfm_serving.ros.node.discovery_server import discovery_servers

    mine = [*discovery_servers(factory, options.host, options.logs), *on_host(nodes, factory, options.host, os.environ)]
    if not mine:
        fix = "name its tasks in `robots`, or leave it out"
        raise ConfigurationError(
            "nothing of the factory runs on this host", file=factory.file, key=f"hosts.{options.host}", fix=fix
        )
    return mine


def _recorder(folder: Path | None, namespace: str, factory: Factory) -> list[NodeSpec]:
    from ros2_rfm_serving.factory.nodes import recorder_node

    if folder is not None:
        with needing("audit", "--record"):
            from ros2_rfm_serving.audit.recording import recorder as _  # noqa: F401
    return recorder_node(folder, namespace, factory)


def _await_recorder(observer: ObserverNode, supervisor: Supervisor, wanted: bool) -> None:
    """Until it is there, so that the first tick of every robot is recorded; a factory is worth more than its recording."""
    end_s = time.monotonic() + RECORDER_S
    while wanted and time.monotonic() < end_s and supervisor.is_around:
        if any(name == "recorder" for name in observer.get_node_names()):
            return
        time.sleep(0.05)


def _markers(factory: Factory, config: Path, namespace: str) -> NodeSpec:
    """With the simulated arms' description, if there are any."""
    from ros2_rfm_serving.factory.nodes import NodeSpec

    simulated = any(task.world for task in factory.tasks.values())
    described = {"description_file": str(config / "robots" / "metaworld_arm.urdf")} if simulated else {}
    fleet = {"fleet_namespace": namespace} if namespace else {}
    return NodeSpec(name="markers", executable="markers_node", namespace="rfm", parameters={**described, **fleet})


@contextmanager
def _metrics(board: Board, options: Options) -> Iterator[None]:
    if options.metrics < 0:
        yield
        return
    from ros2_rfm_serving.security.folder import Folder
    from ros2_rfm_serving.security.tls import ServerTls

    with needing("metrics", "--metrics"):
        from ros2_rfm_serving.monitoring.metrics.exporter import exporting

    tls = ServerTls(Folder(options.security).enclave("observer"), "--security") if options.security else None
    with exporting(board, options.metrics_address, options.metrics, options.logs, tls=tls) as url:
        console.print(url)
        yield


@contextmanager
def _dashboard(board: Board, observer: ObserverNode, options: Options) -> Iterator[None]:
    if not options.dashboard:
        yield
        return
    door = read_door(options.dashboard)
    enclave = options.security / "enclaves" / "dashboard" if options.security else None
    with dashboard_page(board, observer, options.namespace, door.address, door.port, options.token_file, enclave):
        yield


def _refuse_a_second_factory(observer: ObserverNode) -> None:
    """Two factories in one ROS domain and namespace would command each other's robots."""
    time.sleep(DISCOVERY_S)
    if observer.factory_is_running():
        raise ConfigurationError(
            f"a factory is running in ROS domain {ros_domain()} already", fix="stop it, or choose another --domain or --namespace"
        )
