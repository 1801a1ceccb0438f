"""`rfm up`: starts every process of a factory on this machine and shows how it does."""

from __future__ import annotations

import io
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError

if TYPE_CHECKING:
    from ros2_rfm_serving.cli.supervisor import Supervisor
    from ros2_rfm_serving.factory import Factory
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.ros.observer_node import ObserverNode

console = Console() if Console().is_terminal else Console(width=150)
STALE_AFTER_S = 3.0
DISCOVERY_S = 1.0
ROBOT_COLUMNS = (
    *("robot", "state", "task", "phase", "verdict"),
    *("actions/s", "chunks/s", "round trip", "staleness", "success", "real time"),
)
STARTUP_LIMIT_S = 60.0  # `--seconds` counts from the first robot at work, or from here
PLAIN_PERIOD_S = 10.0  # of the table where the output is no terminal


def up(
    file: Annotated[Path | None, typer.Argument(metavar="[FACTORY.yaml]", help="Default: the quickstart")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="End by itself after this time; 0: run until Ctrl-C")] = 0.0,
    episodes: Annotated[int, typer.Option(min=0, help="End when every robot did this many tasks; 0: no such end")] = 0,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
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

    Examples:  rfm up   |   rfm up my_factory.yaml --seconds 60   |   rfm up --domain 7 --no-foreman

    Exit code: 0, or 1 when a process kept failing.
    """
    from ros2_rfm_serving.factory import load_factory

    work: dict[str, Any] = {"end_on_score": end_on_score}  # without end: an episode is final when the next one begins
    options = Options(
        seconds=seconds,
        episodes=episodes,
        domain=domain,
        namespace=namespace,
        logs=logs or Path("logs") / datetime.now(tz=timezone.utc).strftime("%Y%m%d-%H%M%S"),
        log_level=log_level,
        work=work if foreman else None,
        svg_file=svg_file,
    )
    outcome = run_factory(load_factory(file or _quickstart()), options)
    if json_file:
        from ros2_rfm_serving.monitoring.summary import as_json

        json_file.write_text(as_json(outcome.board), encoding="utf-8")
    if outcome.failed:
        console.print(f"[red]gave up on: {', '.join(outcome.failed)}[/red]")
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Names as the command's."""

    seconds: float = 0.0
    episodes: int = 0
    domain: int = -1
    namespace: str = ""
    logs: Path = Path("logs")
    log_level: str = "info"
    work: dict[str, Any] | None = None
    svg_file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    board: Board
    failed: list[str]
    duration_s: float


def run_factory(factory: Factory, options: Options) -> Outcome:
    """Runs a factory to its end (time, episodes or Ctrl-C) and returns what was seen."""
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
    profiles = share() / "config" / "profiles"
    catalogue = Catalogue.load(profiles / "models.yaml")
    start_fleet(factory, factory.robots, load_profiles(profiles), catalogue, epoch=1, clock=time.monotonic)
    nodes = node_list(factory, share() / "config", fleet_namespace=options.namespace, work=options.work)
    supervisor = Supervisor(nodes, options.logs, fleet_namespace=options.namespace, log_level=options.log_level)
    board = Board([robot.name for robot in factory.robots], factory.servers)
    stop = threading.Event()
    console.print(f"{factory.file}: {len(board.robots)} robots, {len(board.servers)} servers; logs in {options.logs}")
    started_s = time.monotonic()
    with _stop_signals(stop), _observing(board, options.namespace) as observer:
        _refuse_a_second_factory(observer)
        try:
            supervisor.start()
            _show_until_end(factory, supervisor, board, options, stop)
            if options.svg_file:
                canvas = Console(record=True, width=150, file=io.StringIO())
                canvas.print(_picture(factory, board, []))
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


def prepare_environment(domain: int) -> None:
    """Before rclpy starts here or in a child: the domain, and discovery on this machine alone unless the user says otherwise."""
    if domain >= 0:
        os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")


def _quickstart() -> Path:
    from ros2_rfm_serving.ros.runtime import share

    return share() / "config" / "factory_quickstart.yaml"


def _show_until_end(factory: Factory, supervisor: Supervisor, board: Board, options: Options, stop: threading.Event) -> None:
    events: list[str] = []
    started_s = time.monotonic()
    working_s, printed_s = math.inf, -math.inf
    with Live(console=console, refresh_per_second=2, auto_refresh=False) as live:
        while not stop.wait(0.5):
            now_s = time.monotonic()
            for event in supervisor.watch():
                events.append(event)
                if not console.is_terminal:
                    console.print(event)
            if console.is_terminal:
                live.update(_picture(factory, board, events[-5:]), refresh=True)
            elif now_s - printed_s > PLAIN_PERIOD_S:
                printed_s = now_s
                console.print(_picture(factory, board, []))
            if working_s == math.inf and any(row.phase == "executing" for row in board.robots.values()):
                working_s = now_s
            if options.seconds and now_s - min(working_s, started_s + STARTUP_LIMIT_S) > options.seconds:
                return
            done = [len(board.episodes(robot)) for robot in board.robots]
            if supervisor.gave_up or (options.episodes and min(done) >= options.episodes):
                return


def _picture(factory: Factory, board: Board, events: list[str]) -> Group:
    """The live view: robots, servers, what happened."""
    now_s = time.monotonic()
    title = f"{factory.name}: schedule {board.schedule_epoch}, {board.predicted_actions_hz:.1f} predictions/s planned"
    robots = Table(title=title, title_justify="left")
    for column in ROBOT_COLUMNS:
        robots.add_column(column, no_wrap=True)
    for name, row in board.robots.items():
        scores = board.episodes(name)
        robots.add_row(
            name,
            "silent" if now_s - row.seen_s > STALE_AFTER_S else f"{row.state} {row.reason}".strip(),
            row.task,
            row.phase,
            row.verdict,
            f"{row.action_rate_hz:.1f}",
            f"{row.chunk_rate_hz:.1f}",
            _ms(row.round_trip_p50_s),
            _ms(row.staleness_s),
            f"{sum(s.success for s in scores)}/{len(scores)}",
            f"{row.real_time_factor:.2f} of {row.declared_time_scale:.2f}" if row.real_time_factor > 0 else "-",
        )
    servers = Table()
    for column in ("server", "state", "model", "batch", "replies/s", "p50", "p99", "load", "sessions", "refused"):
        servers.add_column(column, no_wrap=True)
    for name, server in board.servers.items():
        servers.add_row(
            name,
            "silent" if now_s - server.seen_s > STALE_AFTER_S else server.state,
            server.model + (" (EMULATED)" if server.emulated else ""),
            f"{server.mean_batch_size:.1f}/{server.batch_size}",
            f"{server.request_rate_hz:.1f}",
            _ms(server.latency_p50_s),
            _ms(server.latency_p99_s),
            f"{server.load:.0%}",
            str(server.sessions),
            str(sum(server.refused.values())),
        )
    return Group(robots, servers, *events)


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.0f} ms"


def _refuse_a_second_factory(observer: ObserverNode) -> None:
    """Two factories in one ROS domain and namespace would command each other's robots."""
    time.sleep(DISCOVERY_S)
    if observer.factory_is_running():
        domain = os.environ.get("ROS_DOMAIN_ID", "0")
        raise ConfigurationError(
            f"a factory is running in ROS domain {domain} already", fix="stop it, or choose another --domain or --namespace"
        )


@contextmanager
def _stop_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT, SIGTERM and a closed terminal end the factory in order; the handlers before are put back."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _observing(board: Board, namespace: str) -> Iterator[ObserverNode]:
    """Feeds the board from the graph, on a thread of its own."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from ros2_rfm_serving.ros.observer_node import ObserverNode
    from ros2_rfm_serving.ros.runtime import executor

    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node, spinner, ending = ObserverNode(board, namespace), executor(), threading.Event()
    spinner.add_node(node)

    def spin() -> None:
        while not ending.is_set():
            spinner.spin_once(timeout_sec=0.5)

    thread = threading.Thread(target=spin, name="observer", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        ending.set()
        thread.join(timeout=5.0)
        node.destroy_node()
        rclpy.try_shutdown()
