"""Common parts of `rfm up` and `rfm robot`: options, signals, observation of the graph, and the live view until the end."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.live import Live

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain

if TYPE_CHECKING:
    from ros2_rfm_serving.factory.nodes import NodeSpec
    from ros2_rfm_serving.monitoring.board import Board
    from ros2_rfm_serving.operate.supervisor import Supervisor
    from ros2_rfm_serving.ros.observer_node import ObserverNode

console = Console() if Console().is_terminal else Console(width=150)
DISCOVERY_S = 1.0
STARTUP_LIMIT_S = 60.0  # `--seconds` counts from the first robot at work, or from here
METRICS_PORT = 9464
RECORDINGS = Path("recordings")
"""Folder of the recordings of `rfm up --record`, below the one where it was started."""
NOTHING: Mapping[str, str] = MappingProxyType({})
RAY = "ray"
N = TypeVar("N")  # a node
PLAIN_PERIOD_S = 10.0  # of the table where the output is no terminal


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options, named as those of the commands."""

    seconds: float = 0.0
    episodes: int = 0
    domain: int = -1
    namespace: str = ""
    logs: Path = Path("logs")
    log_level: str = "info"
    work: dict[str, Any] | None = None
    svg_file: Path | None = None
    profiles: Path | None = None
    metrics: int = -1
    """Port of /metrics; -1: none."""
    metrics_address: str = "127.0.0.1"
    markers: bool = False
    record: Path | None = None
    """Folder of a recording; None: none."""
    dashboard: str = ""
    """[ADDRESS:]PORT of the dashboard; empty: none."""
    opens_browser: bool = False
    """Open the dashboard in the browser of this desktop, if there is one."""
    token_file: Path | None = None
    """File with the tokens of users who may act through the dashboard."""
    security: Path | None = None
    """Folder of `rfm security init` with all certificates; None: no certificates."""
    host: str = ""
    """Host of the descriptor, whose part alone is started; empty: all of it, on this machine."""
    on: str = ""
    """`RAY`: scheduler and servers on a Ray cluster; empty: on this machine."""
    ray_address: str = ""
    """Address of the cluster; empty: RAY_ADDRESS, or a local one is started."""
    ray_patience_s: float = 300.0
    """Time to wait for a cluster whose head is lost."""

    def __post_init__(self) -> None:
        if self.on not in ("", RAY):
            raise ConfigurationError(f"{self.on!r} is nothing to run on", key="--on", fix=f"write {RAY}, or leave it out")
        if self.on and self.host:
            problem, fix = "Ray itself chooses the nodes", f"leave out --host, or --on {RAY}"
            raise ConfigurationError(problem, key="--host", fix=fix)
        if self.on and self.security:
            problem, fix = "its keys are not carried to a cluster's nodes", f"leave out --security, or --on {RAY}"
            raise ConfigurationError(problem, key="--security", fix=fix)
        if self.ray_address and not self.on:
            raise ConfigurationError("is of a Ray cluster", key="--ray-address", fix=f"add --on {RAY}")


def quickstart() -> Path:
    from ros2_rfm_serving.ros.node.runtime import share

    return share() / "config" / "factory_quickstart.yaml"


def new_logs() -> Path:
    return Path("logs") / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")


def new_recording() -> Path:
    return RECORDINGS / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")


def newest_recording() -> Path:
    """Return the recording below `recordings` that was written to last. Raises: `ConfigurationError` when there is none."""
    folders = [folder for folder in RECORDINGS.glob("*") if any(folder.glob("*.mcap"))]
    if not folders:
        problem = f"no recording is in {RECORDINGS.absolute()}"
        raise ConfigurationError(problem, key="BAG", fix="name one, or make one with `rfm up --record`")
    return max(folders, key=lambda folder: max(file.stat().st_mtime_ns for file in folder.glob("*.mcap")))


def prepare_environment(domain: int, declared: Mapping[str, str] = NOTHING) -> None:
    """Set ROS domain and discovery range before rclpy starts here or in a child; by default discovery stays on this machine.

    declared: variables of a descriptor (`factory.environment`); empty ones are removed. An option has precedence over them, and
    they over the variables that this process was started with. Raises: `ConfigurationError` for an invalid domain."""
    from ros2_rfm_serving.factory.discovery import MAX_DOMAIN

    os.environ.update({name: value for name, value in declared.items() if value})
    for name in [name for name, value in declared.items() if not value]:
        os.environ.pop(name, None)
    if domain >= 0:
        os.environ["ROS_DOMAIN_ID"] = str(domain)
    chosen = ros_domain()
    if chosen and not (chosen.isdecimal() and int(chosen) <= MAX_DOMAIN):
        fix = f"give a number from 0 to {MAX_DOMAIN}: with --domain, or in ROS_DOMAIN_ID"
        raise ConfigurationError(f"there is no ROS domain {chosen!r}", fix=fix)
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")


def show_until_end(
    title: str,
    supervisor: Supervisor,
    board: Board,
    options: Options,
    stop: threading.Event,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Keep the processes running until the time or the episodes are over, the user ends them, or `until` returns True."""
    from ros2_rfm_serving.operate.view import picture

    events: list[str] = []
    robots = list(board.robots)  # others may come
    started_s = time.monotonic()
    working_s, printed_s = math.inf, -math.inf
    with Live(console=console, refresh_per_second=2, auto_refresh=False) as live:
        while not stop.wait(0.5):
            now_s = time.monotonic()
            for event in supervisor.watch():
                events.append(event)
                if not console.is_terminal:
                    console.print(plain(event))
            if console.is_terminal:
                live.update(picture(title, board, events[-5:]), refresh=True)
            elif now_s - printed_s > PLAIN_PERIOD_S:
                printed_s = now_s
                console.print(picture(title, board, []))
            if working_s == math.inf and any(row.phase == "executing" for row in board.robots.values()):
                working_s = now_s
            if options.seconds and now_s - min(working_s, started_s + STARTUP_LIMIT_S) > options.seconds:
                return
            done = [len(board.episodes(robot)) for robot in robots if supervisor.still_has(robot)]
            if until() or supervisor.is_hopeless or (options.episodes and min(done, default=0) >= options.episodes):
                return


def ros_domain() -> str:
    return os.environ.get("ROS_DOMAIN_ID", "0")


@contextmanager
def stop_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT, SIGTERM and a closed terminal end the factory in order; the previous handlers are restored."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def choose_profile(nodes: list[NodeSpec], partition: str = "", folder: Path = Path()) -> None:
    """Choose the Fast DDS profile for all processes and this one. A user's own profile or middleware has precedence, but not
    over a declared partition, which is written to a file in `folder`. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.factory.dds import dds_profile
    from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, is_read, use_partition, use_profile

    profile = dds_profile(nodes)
    if is_read() and use_profile(profile.file):
        console.print(plain(f"Fast DDS profile {profile.file}: {profile.reason} (another one: {PROFILES_FILE}, docs/networks.md)"))
    if partition:
        use_partition(partition, folder)


@contextmanager
def observing(board: Board, namespace: str, *, discover: bool = False, enclave: Path | None = None) -> Iterator[ObserverNode]:
    """Feed the board from the graph, on a thread of its own, and yield the node.

    discover: also robots and servers that the board does not know yet. enclave: its authority verifies messages when the
    environment names none. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.ros.monitor.discovery import DiscoveringNode
    from ros2_rfm_serving.ros.observer_node import ObserverNode

    kind = DiscoveringNode if discover else ObserverNode
    with spinning(lambda: kind(board, namespace, enclave)) as node:
        yield node


@contextmanager
def spinning(make: Callable[[], N]) -> Iterator[N]:
    """Run a node of this process on a thread of its own. Raises: `ConfigurationError` for a name that no topic can have."""
    import rclpy
    from rclpy.exceptions import NameValidationException
    from rclpy.signals import SignalHandlerOptions

    from ros2_rfm_serving.ros.node.middleware import use_profile
    from ros2_rfm_serving.ros.node.runtime import executor
    from ros2_rfm_serving.ros.node.shared_memory import dead_ports_left_alone

    use_profile()
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    try:
        with dead_ports_left_alone(rclpy.get_default_context().get_domain_id()):
            node = make()
    except BaseException as error:
        rclpy.try_shutdown()
        if isinstance(error, NameValidationException):
            fix = "names are of letters, digits and underscores, a letter first"
            raise ConfigurationError(" ".join(str(error).split()).rstrip(" ^"), fix=fix) from None
        raise
    spinner, ending = executor(), threading.Event()
    spinner.add_node(node)

    def spin() -> None:
        while not ending.is_set():
            try:
                spinner.spin_once(timeout_sec=0.5)
            except Exception:  # it costs that message, not the observation
                node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)  # type: ignore[attr-defined]

    thread = threading.Thread(target=spin, name="graph", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        ending.set()
        thread.join(timeout=5.0)
        spinner.remove_node(node)
        spinner.shutdown()
        node.destroy_node()  # type: ignore[attr-defined]
        rclpy.try_shutdown()
