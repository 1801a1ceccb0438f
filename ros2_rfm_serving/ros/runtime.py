"""What every node process shares: starting rclpy, spinning the right executor, stopping cleanly, finding installed files."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import rclpy
from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from ros2_rfm_serving.factory.nodes import SUPERVISED
from ros2_rfm_serving.ros.wire.qos import Names

PR_SET_PDEATHSIG = 1
T = TypeVar("T")
clock = time.monotonic
"""The one clock of a process. The brain never reads it; nodes pass its readings on."""


def share() -> Path:
    """Where config/, models/ and launch/ are installed."""
    if not os.environ.get("AMENT_PREFIX_PATH"):
        os.environ["AMENT_PREFIX_PATH"] = sys.prefix
    try:
        return Path(get_package_share_directory("rfm_serving"))
    except PackageNotFoundError:
        raise SystemExit("rfm_serving is not installed in this environment: run `make install`") from None


def executor() -> Any:
    """The events executor; where a ROS installation lacks it, the single-threaded one. Never the multi-threaded one: it costs
    ten times as much per message."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()


def run_node(make: Callable[[], Node], args: Sequence[str] | None = None) -> None:
    """Runs one node until SIGINT or SIGTERM. `make` runs after rclpy has started.

    The signals are handled here and not by rclpy, whose handlers end the context at once: a node's `drain()` and `stop()`, if it
    has them, can finish what runs and publish its last words.
    """
    os.environ.setdefault("ROS_LOG_DIR", str(Path("~/.ros/log").expanduser()) if "HOME" in os.environ else "/tmp/ros_log")
    _end_with_parent()
    ending: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: ending.append(received))
    rclpy.init(args=list(args) if args is not None else None, signal_handler_options=SignalHandlerOptions.NO)
    spinner, node = executor(), None
    try:
        node = make()
        spinner.add_node(node)
        while rclpy.ok() and not ending:
            _spin(spinner, node, 0.25)  # the events executor's spin() without a timeout never dispatches
    finally:
        if node is not None:
            _drain(spinner, node)
            getattr(node, "stop", lambda: None)()
            for _ in range(5):
                _spin(spinner, node, 0.02)  # what `stop` set off, such as the result of a goal
            node.destroy_node()
        rclpy.try_shutdown()


def _drain(spinner: Any, node: Any) -> None:
    """A node with a `drain` says by `drained` when it has finished; until then it goes on answering."""
    if hasattr(node, "drain"):
        node.drain()
        while rclpy.ok() and not node.drained:
            _spin(spinner, node, 0.05)


def _end_with_parent() -> None:
    """A supervised node ends when its supervisor does, however that happened (Linux; elsewhere an orderly end has to do)."""
    if os.environ.get(SUPERVISED) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == 1:
            raise SystemExit("the supervisor is gone")


def _spin(spinner: Any, node: Node, seconds: float) -> None:
    """A while. A callback's exception costs that message, not the process: it is said aloud and the node goes on."""
    try:
        spinner.spin_until_future_complete(Future(), timeout_sec=seconds)  # unlike `spin_once`: everything that comes meanwhile
    except Exception:
        node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)


def logged(transition: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """For lifecycle callbacks: rclpy turns their exceptions into an error state without a word."""

    @functools.wraps(transition)
    def run(node: Any, state: Any) -> Any:
        try:
            return transition(node, state)
        except Exception:
            node.get_logger().error(f"{transition.__name__} failed:\n{traceback.format_exc()}")
            raise

    return run


def parameter(node: Node, name: str, default: T, description: str) -> T:
    """Declares a parameter that only a restart changes, with its description, and returns its value."""
    described = ParameterDescriptor(description=description, additional_constraints="changes with a restart", read_only=True)
    value: T = node.declare_parameter(name, default, described).value
    return value


def fleet_names(node: Node) -> Names:
    """The names of the factory that a node belongs to."""
    return Names(parameter(node, "fleet_namespace", "", "Namespace of the whole factory; empty: none"))
