"""`rfm up`: starts every process of a factory on this machine and shows how it does."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ros2_rfm_serving.cli.running import (
    DISCOVERY_S,
    Options,
    console,
    new_logs,
    observing,
    prepare_environment,
    quickstart,
    ros_domain,
    show_until_end,
    stop_signals,
)
from ros2_rfm_serving.cli.view import picture
from ros2_rfm_serving.errors import ConfigurationError

if TYPE_CHECKING:
    from ros2_rfm_serving.factory import Factory
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.ros.observer_node import ObserverNode

__all__ = ["Options", "Outcome", "prepare_environment", "run_factory", "up"]


def up(
    file: Annotated[Path | None, typer.Argument(metavar="[FACTORY.yaml]", help="Default: the quickstart")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="End by itself after this time; 0: run until Ctrl-C")] = 0.0,
    episodes: Annotated[int, typer.Option(min=0, help="End when every robot did this many tasks; 0: no such end")] = 0,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
    profiles: Annotated[Path | None, typer.Option(help="Folder of profiles and models.yaml; default: shipped")] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder of the logs; default: logs/<time>")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warn or error")] = "info",
    foreman: Annotated[bool, typer.Option(help="Give every robot its task over and over; off: send goals yourself")] = True,
    end_on_score: Annotated[
        bool, typer.Option(help="End a task when the simulator scores it, whatever the monitor says (to evaluate a policy)")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the summary's figures there")] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", help="Write a picture of the last view there")] = None,
) -> None:
    """Starts a factory on this machine; Ctrl-C stops all of it.

    Examples:  rfm up   |   rfm up my_factory.yaml --profiles my_models --seconds 60   |   rfm up --domain 7 --no-foreman

    Exit code: 0, or 1 when a process kept failing.
    """
    from ros2_rfm_serving.factory import load_factory

    work: dict[str, Any] = {"end_on_score": end_on_score}  # without end: an episode is final when the next one begins
    options = Options(
        seconds=seconds,
        episodes=episodes,
        domain=domain,
        namespace=namespace,
        logs=logs or new_logs(),
        log_level=log_level,
        work=work if foreman else None,
        svg_file=svg_file,
        profiles=profiles,
    )
    outcome = run_factory(load_factory(file or quickstart()), options)
    if json_file:
        from ros2_rfm_serving.monitoring.summary import as_json

        json_file.write_text(as_json(outcome.board), encoding="utf-8")
    if outcome.failed:
        console.print(f"[red]gave up on: {', '.join(outcome.failed)}[/red]")
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    board: Board
    failed: list[str]
    duration_s: float


def run_factory(factory: Factory, options: Options, *, until: Callable[[], bool] = lambda: False) -> Outcome:
    """Runs a factory to its end (time, episodes, `until` or Ctrl-C) and returns what was seen."""
    prepare_environment(options.domain)
    from ros2_rfm_serving.cli.supervisor import Supervisor
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.factory.nodes import node_list
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.monitoring.summary import render
    from ros2_rfm_serving.profiles import load_profiles
    from ros2_rfm_serving.ros.runtime import share
    from ros2_rfm_serving.scheduler import start_fleet

    # What cannot be scheduled is said here, not in a log.
    profiles = options.profiles or share() / "config" / "profiles"
    catalogue = Catalogue.load(profiles / "models.yaml")
    start_fleet(factory, factory.robots, load_profiles(profiles), catalogue, epoch=1, clock=time.monotonic)
    nodes = node_list(factory, share() / "config", fleet_namespace=options.namespace, work=options.work, profiles=options.profiles)
    supervisor = Supervisor(nodes, options.logs, fleet_namespace=options.namespace, log_level=options.log_level)
    board = Board([robot.name for robot in factory.robots], factory.servers)
    stop = threading.Event()
    console.print(f"{factory.file}: {len(board.robots)} robots, {len(board.servers)} servers; logs in {options.logs}")
    started_s = time.monotonic()
    with stop_signals(stop), observing(board, options.namespace) as observer:
        _refuse_a_second_factory(observer)
        try:
            supervisor.start()
            show_until_end(factory.name, supervisor, board, options, stop, until)
            if options.svg_file:
                canvas = Console(record=True, width=150, file=io.StringIO())
                canvas.print(picture(factory.name, board, []))
                canvas.save_svg(str(options.svg_file), title="rfm up")
        finally:
            console.print("stopping ...")
            killed = supervisor.stop()
    if killed:
        console.print(f"[yellow]had to be killed: {', '.join(killed)}[/yellow]")
    failed = [process.node.name for process in supervisor.gave_up]
    duration_s = time.monotonic() - started_s
    console.print(*render(board, duration_s, options.logs))
    return Outcome(board=board, failed=failed, duration_s=duration_s)


def _refuse_a_second_factory(observer: ObserverNode) -> None:
    """Two factories in one ROS domain and namespace would command each other's robots."""
    time.sleep(DISCOVERY_S)
    if observer.factory_is_running():
        raise ConfigurationError(
            f"a factory is running in ROS domain {ros_domain()} already", fix="stop it, or choose another --domain or --namespace"
        )
