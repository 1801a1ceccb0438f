"""Run of all processes of a factory on this machine, from their start to the final report."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import counted, plain
from ros2_rfm_serving.operate.enclaves import looks_by, secured
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.only_one import only_one
from ros2_rfm_serving.operate.page import dashboard_page, read_door, show_in_browser
from ros2_rfm_serving.operate.running import (
    DISCOVERY_S,
    RAY,
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

Make = Callable[["list[NodeSpec]", "list[NodeSpec]"], "Supervisor"]
"""Function that makes a supervisor of a factory's nodes, and of the nodes around them."""
RECORDER_S = 10.0
"""Maximum time that the others wait for the recorder."""
LOOK_AROUND_S, LOOK_FOR_OTHERS_S = 2.0, 5.0
"""Times to find the scheduler on another host, which may start later, and another factory's from the scheduler's own host.
The middleware announces a process five times within a second, then every three."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    board: Board
    failed: list[str]
    duration_s: float
    incomplete: list[str] = field(default_factory=list)
    """Gaps of the recording, as text: broken chains of records."""


def run_factory(factory: Factory, options: Options, *, until: Callable[[], bool] = lambda: False) -> Outcome:
    """Run a factory to its end (time, episodes, `until` or Ctrl-C) and return its outcome."""
    factory = factory if options.host else factory.on_one_machine()
    with _supervisor_of(factory, options) as make:
        part = (ros_domain(), options.namespace, factory.discovery.partition, options.host)
        with only_one(part, options.logs):
            return _run(factory, options, make, until)


@contextmanager
def _supervisor_of(factory: Factory, options: Options) -> Iterator[Make]:
    """Prepare the environment, because this process receives the factory's topics, and yield the maker of the supervisor."""
    from ros2_rfm_serving.factory.environment import discovery_environment

    if options.on == RAY:
        with needing("ray", "--on ray"):
            from ros2_rfm_serving.operate.on_ray.supervisor import OnRay, on_ray

        with on_ray(factory, options) as (environment, joining):
            prepare_environment(options.domain, environment)
            yield lambda nodes, around: OnRay(nodes, options, joining, around)
        return
    from ros2_rfm_serving.operate.supervisor import Supervisor

    prepare_environment(options.domain, discovery_environment(factory, options.host))
    common = {"fleet_namespace": options.namespace, "log_level": options.log_level}
    yield lambda nodes, around: Supervisor(nodes, options.logs, around=around, **common)


def _run(factory: Factory, options: Options, make: Make, until: Callable[[], bool]) -> Outcome:
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.summary import render

    nodes = checked_nodes(factory, options)
    recorder = secured(_recorder(options.record, options.namespace, factory), options.security)
    recording = _new(options.record)
    supervisor = make(nodes, recorder)
    board = Board([robot.name for robot in factory.robots], factory.servers)
    stop = threading.Event()
    here = f"{options.host}: {', '.join(node.name for node in nodes)}; " if options.host else ""
    shown = f"{counted(len(board.robots), 'robot')}, {counted(len(board.servers), 'server')}"
    console.print(plain(f"{factory.file}: {shown}; {here}logs in {options.logs}"))
    if recording:
        console.print(plain(f"recording to {recording}"), soft_wrap=True)
    started_s = time.monotonic()
    with stop_signals(stop):  # to the very end: pressed again, Ctrl-C changes nothing
        discover = options.metrics >= 0 or bool(options.dashboard)
        with (
            observing(board, options.namespace, discover=discover, enclave=looks_by(options.security, nodes)) as observer,
            _metrics(board, options),
            _dashboard(board, observer, options),
        ):
            if options.host in ("", factory.scheduler_host):  # another host's part of this factory runs when it does
                refuse_a_second_factory(observer, across_machines=bool(options.host))
            else:
                _refuse_another_descriptor(observer, board, factory)
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
        if recording:
            text = f"recorded in {recording}; why a robot did what it did: rfm audit explain {recording} --robot NAME --at -30s"
            console.print(plain(text), soft_wrap=True)
        incomplete = _incomplete(recording)
        for line in incomplete:
            console.print(plain(line), style="red", soft_wrap=True)
    return Outcome(board=board, failed=failed, duration_s=duration_s, incomplete=incomplete)


def checked_nodes(factory: Factory, options: Options) -> list[NodeSpec]:
    """Return the nodes to start here, after checks whose errors would otherwise be in a log only.
    They find what cannot be scheduled, and what a node would refuse. Raises: `RfmError`."""
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.factory.nodes import node_list
    from ros2_rfm_serving.operate.doctor.host import shared_gpu
    from ros2_rfm_serving.operate.drafts import check_nodes, robot_drafts
    from ros2_rfm_serving.operate.inputs import decided
    from ros2_rfm_serving.operate.known_contracts import contract_problems, contracts_of
    from ros2_rfm_serving.operate.rates import check_rates
    from ros2_rfm_serving.profiles import load_profiles
    from ros2_rfm_serving.ros.node.discovery_server import part_of
    from ros2_rfm_serving.ros.node.runtime import share
    from ros2_rfm_serving.scheduler import start_fleet
    from ros2_rfm_serving.simulation.trial import virtual_time_trial

    profiles = options.profiles or share() / "config" / "profiles"
    catalogue, profile = Catalogue.load(profiles / "models.yaml"), load_profiles(profiles)
    factory = decided(factory, profile, catalogue)
    start_fleet(factory, factory.robots, profile, catalogue, epoch=1, trial=virtual_time_trial(catalogue, profile))
    nodes = node_list(factory, share() / "config", fleet_namespace=options.namespace, work=options.work, profiles=options.profiles)
    check_rates(factory, catalogue)
    alone = not options.host and options.on != RAY
    warnings = [*check_nodes(nodes, factory.file), *(shared_gpu(factory, profiles) if alone else [])]
    refused = contract_problems(robot_drafts(nodes, factory.file), factory, contracts_of(factory, catalogue))
    for warning in [*warnings, *(f"no session will open: {problem}" for problem in refused)]:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    choose_profile(nodes, factory.discovery.partition, options.logs)
    if options.host:
        nodes = part_of(nodes, factory, options.host, options.logs)
        warn_of_another_machine(factory, options.host)
    if options.markers:
        nodes.append(_markers(factory, share() / "config", options.namespace))
    return secured(nodes, options.security)


def warn_of_another_machine(factory: Factory, host: str) -> None:
    from ros2_rfm_serving.operate.doctor.host import is_here

    if not is_here(factory.hosts[host]):
        text = (
            f"warning: {factory.hosts[host].address} is not this machine's address: is this {host}? (`rfm doctor --host` says more)"
        )
        console.print(text, style="yellow", highlight=False, markup=False)


def _recorder(folder: Path | None, namespace: str, factory: Factory) -> list[NodeSpec]:
    from ros2_rfm_serving.factory.nodes import recorder_node

    if folder is not None:
        with needing("audit", "--record"):
            from ros2_rfm_serving.audit.recording import recorder as _  # noqa: F401
    return recorder_node(folder, namespace, factory)


def _new(folder: Path | None) -> Path | None:
    """Return the folder that a recorder will use when it is asked to write to this one."""
    if folder is None:
        return None
    from ros2_rfm_serving.audit.bag_writer import free

    return free(folder)


def _incomplete(recording: Path | None) -> list[str]:
    """Return a sentence for each writer whose chain of records is broken in a recording."""
    if recording is None:
        return []
    from ros2_rfm_serving.audit.recording.recorder import broken_chains
    from ros2_rfm_serving.audit.recording.told import broken_lines

    return broken_lines(broken_chains(recording))


def _await_recorder(observer: ObserverNode, supervisor: Supervisor, wanted: bool) -> None:
    """Wait until the recorder runs, so that every robot's first tick is recorded; without it the factory starts all the same."""
    end_s = time.monotonic() + RECORDER_S
    while wanted and time.monotonic() < end_s and supervisor.is_around:
        if any(name == "recorder" for name in observer.get_node_names()):
            return
        time.sleep(0.05)


def _markers(factory: Factory, config: Path, namespace: str) -> NodeSpec:
    """Return the node of the markers, with the description of Meta-World's arms, where there are no others."""
    from ros2_rfm_serving.factory.nodes import NodeSpec
    from ros2_rfm_serving.factory.task import METAWORLD

    simulators = {task.world.simulator for task in factory.tasks.values() if task.world}
    described = {"description_file": str(config / "robots" / "metaworld_arm.urdf")} if simulators == {METAWORLD} else {}
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
    with dashboard_page(board, observer, options.namespace, door.address, door.port, options.token_file, enclave) as url:
        if options.opens_browser:
            show_in_browser(url)
        yield


def _refuse_another_descriptor(observer: ObserverNode, board: Board, factory: Factory) -> None:
    """Refuse to join a running scheduler of another descriptor; `/diagnostics` shows one that starts later."""
    from ros2_rfm_serving.factory.descriptor_mismatch import descriptor_mismatch

    if _within(LOOK_AROUND_S, observer.factory_is_running):  # the machines may be started in any order
        _within(LOOK_FOR_OTHERS_S, lambda: bool(board.descriptor))
    if problem := descriptor_mismatch(factory.fingerprint, board.descriptor):
        raise ConfigurationError(problem, file=factory.file, fix="or stop that factory first")


def refuse_a_second_factory(observer: ObserverNode, *, across_machines: bool) -> None:
    """Raise `ConfigurationError` when a factory runs already: two in one domain and namespace would command each other's robots.
    Other machines are discovered later than processes of this one."""
    if _within(LOOK_FOR_OTHERS_S if across_machines else DISCOVERY_S, observer.factory_is_running):
        raise ConfigurationError(
            f"a factory is running in ROS domain {ros_domain()} already", fix="stop it, or choose another --domain or --namespace"
        )


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return met
