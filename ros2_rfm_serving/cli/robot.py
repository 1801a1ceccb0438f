"""`rfm robot`: one more robot for a running factory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.errors import ConfigurationError, ScheduleError
from ros2_rfm_serving.operate.enclaves import OPERATOR, secured_newcomer
from ros2_rfm_serving.operate.inputs import shipped_if_missing
from ros2_rfm_serving.operate.running import (
    Options,
    choose_profile,
    console,
    new_logs,
    observing,
    prepare_environment,
    ros_domain,
    show_until_end,
    stop_signals,
)
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION, LogLevel
from ros2_rfm_serving.security.own import ENCLAVE, enclave_of_environment, member_environment

if TYPE_CHECKING:
    from ros2_rfm_serving.factory import Factory, RobotEntry
    from ros2_rfm_serving.factory.nodes import NodeSpec
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.operate.supervisor import Supervisor
    from ros2_rfm_serving.ros.fleet_client import FleetClient
    from ros2_rfm_serving.ros.observer_node import ObserverNode

DISCOVERY_LIMIT_S = 10.0
SILENCE_S, SCHEDULED_SILENCE_S, KILLED_S = 3.0, 10.0, 4.0
"""Times of silence after which a robot is not running. A running robot publishes its status twice a second; one of the schedule
may be discovered late on a busy machine, and a killed one may take a moment to fall silent."""


def robot(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FACTORY.yaml", help="The descriptor that the factory was started with", callback=shipped_if_missing
        ),
    ],
    task: Annotated[str, typer.Option(help="A task of the descriptor")],
    name: Annotated[str, typer.Option(help="Of the new robot; a simulated one takes its seeds from the number at its end")],
    host: Annotated[
        str, typer.Option(help="The host of the descriptor that this machine is; `-`: none of them, on their network")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0, help="Leave by itself after this time at work; 0: stay until Ctrl-C")] = 0.0,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory; default: the descriptor's")] = "",
    logs: Annotated[Path | None, typer.Option(help="Folder of the logs; default: logs/<time>")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="Of every node")] = LogLevel.INFO,
    security: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its certificate and the operator's, as of `rfm security add`")
    ] = None,
    foreman: Annotated[bool, typer.Option(help="Give it its task over and over; off: send goals yourself")] = True,
) -> None:
    """Adds a robot to a running factory: asks for admission, starts its nodes; Ctrl-C stops them and releases it.

    No other robot's route changes, unless only a new plan for the whole factory can serve all of them. Started again after it was
    killed it goes on; a robot that is not heard for a minute is released by the scheduler.

    Example:  rfm robot my_factory.yaml --task push --name push_2

    Exit code: 0; 1 when a process kept failing; 2 when the robot cannot join.
    """
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.factory.dynamic_robot import dynamic_robot_entry as joining

    factory = load_factory(file)
    if host in factory.zenoh_hosts:
        problem = f"{host} is on Zenoh alone, where nobody asks for admission"
        fix = f"have {name} admitted on the factory's side (docs/zenoh.md), and start its robot_node with `zenoh_router` here"
        raise ConfigurationError(problem, file=factory.file, key="--host", fix=fix)
    newcomer = joining(factory, name, task)
    options = Options(
        host=host,
        seconds=seconds,
        domain=domain,
        namespace=namespace or factory.discovery.namespace,
        logs=logs or new_logs(),
        log_level=log_level.value,
        work={} if foreman else None,
        security=security,
    )
    if failed := _run(factory, newcomer, options):
        console.print(f"gave up on: {', '.join(failed)}", style="red", markup=False)
        raise typer.Exit(1)


def _run(factory: Factory, newcomer: RobotEntry, options: Options) -> list[str]:
    """Run the robot until Ctrl-C or the end of its time, and return the processes that kept failing."""
    from ros2_rfm_serving.factory.environment import discovery_environment

    prepare_environment(options.domain, discovery_environment(factory, options.host))
    from ros2_rfm_serving.factory.nodes import robot_nodes
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.operate.drafts import check_nodes
    from ros2_rfm_serving.operate.supervisor import Supervisor
    from ros2_rfm_serving.ros.node.runtime import share
    from ros2_rfm_serving.ros.standing_admission import StandingAdmission

    nodes = robot_nodes(factory, newcomer, share() / "config", fleet_namespace=options.namespace, work=options.work)
    for warning in check_nodes(nodes, factory.file):
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    nodes = _secured(nodes, factory, newcomer, options.security)
    choose_profile(nodes, factory.discovery.partition, options.logs)
    board, stop = Board([newcomer.name], factory.servers), threading.Event()
    with stop_signals(stop), observing(board, options.namespace) as observer:
        _refuse_without_a_factory(observer)
        _refuse_a_second_one(board, newcomer.name)
        declared = newcomer in factory.robots  # it was in the factory before, and stays
        with _admitted(newcomer, options.namespace, _Stay(not declared), stop) as stay:
            observer.executor.create_task(StandingAdmission, observer, options.namespace, newcomer.name, newcomer.task)
            supervisor = Supervisor(nodes, options.logs, fleet_namespace=options.namespace, log_level=options.log_level)
            console.print(f"logs in {options.logs}", markup=False)
            with _started(supervisor):
                show_until_end(f"{newcomer.name} in {factory.name}", supervisor, board, options, stop)
            if any(process.last_exit == EXIT_CONFIGURATION for process in supervisor.gave_up):
                stay.released = False  # perhaps another robot of its name runs; else its lease ends by itself
    return [process.node.name for process in supervisor.gave_up]


def _secured(nodes: list[NodeSpec], factory: Factory, newcomer: RobotEntry, folder: Path | None) -> list[NodeSpec]:
    """Return the nodes with their own certificates; from here on, this process acts as the operator.
    Raises: `ConfigurationError`, also where the robot would have this process' certificate."""
    add = f"rfm security add {factory.file} {folder or 'DIR'} {newcomer.name} --task {newcomer.task}"
    if folder is None:
        if (enclave := enclave_of_environment()) is not None:
            fix = f"give --security DIR (and, for a robot that is new: {add}) in place of {ENCLAVE}"
            raise ConfigurationError(f"{newcomer.name} would ask with the certificate in {enclave}", key=ENCLAVE, fix=fix)
        return nodes
    made = secured_newcomer(nodes, folder, add)
    os.environ.update(member_environment(folder, OPERATOR))
    return made


@contextmanager
def _started(supervisor: Supervisor) -> Iterator[None]:
    try:
        supervisor.start()
        yield
    finally:
        console.print("stopping ...")
        if killed := supervisor.stop():
            console.print(f"had to be killed: {', '.join(killed)}", style="yellow", markup=False)


@dataclass
class _Stay:
    released: bool
    """Release the robot at the end."""


@contextmanager
def _admitted(newcomer: RobotEntry, namespace: str, stay: _Stay, stop: threading.Event) -> Iterator[_Stay]:
    """Admit the robot, and release it at the end; without effect on a factory that has ended before."""
    from ros2_rfm_serving.ros.fleet_client import FleetClient

    client = FleetClient(namespace)
    try:
        console.print(f"{newcomer.name}: admitted, schedule {client.admit(newcomer.name, newcomer.task)}")
        try:
            yield stay
        finally:
            if stay.released:
                _release(client, newcomer, stop)
    finally:
        client.destroy_node()


def _release(client: FleetClient, newcomer: RobotEntry, stop: threading.Event) -> None:
    """Release the robot. `stop`, which was set before, is cleared: Ctrl-C now ends the wait."""
    stop.clear()
    try:
        console.print(f"{newcomer.name}: released, schedule {client.release(newcomer.name, given_up=stop.is_set)}")
    except ScheduleError as error:
        console.print(f"{newcomer.name} is not released: {error}; its lease ends by itself", style="yellow", markup=False)


def _refuse_without_a_factory(observer: ObserverNode) -> None:
    end_s = time.monotonic() + DISCOVERY_LIMIT_S
    while not observer.factory_is_running() and time.monotonic() < end_s:
        time.sleep(0.1)
    if not observer.factory_is_running():
        fix = "start it with `rfm up`, or name its --domain and --namespace"
        raise ConfigurationError(f"no factory is running in ROS domain {ros_domain()}", fix=fix)


def _refuse_a_second_one(board: Board, name: str) -> None:
    """Raise `ConfigurationError` when a robot of this name publishes its status.
    A robot that is admitted already can be admitted again, so that a killed one may return."""
    begin_s = silent_since_s = time.monotonic()
    while time.monotonic() - silent_since_s < (SCHEDULED_SILENCE_S if name in board.planned_robots else SILENCE_S):
        time.sleep(0.1)
        silent_since_s = max(silent_since_s, board.robots[name].seen_s)
        if silent_since_s - begin_s > KILLED_S:
            raise ConfigurationError(
                f"a robot {name!r} is running in ROS domain {ros_domain()}", fix="stop it, or choose another --name"
            )
