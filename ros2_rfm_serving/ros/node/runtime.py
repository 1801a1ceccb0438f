"""Common parts of every node process: starting rclpy, spinning the right executor, stopping cleanly, finding installed files."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import rclpy
from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.exceptions import ParameterException
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.factory.graph_names import pushed_namespace
from ros2_rfm_serving.ros.node import clock as process_clock
from ros2_rfm_serving.ros.node.hang_watch import END_STEP_S, HangWatch
from ros2_rfm_serving.ros.node.middleware import use_profile
from ros2_rfm_serving.ros.node.parameters import Spec
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION, HELP_FLAGS, Ending, end_with_parent, leave
from ros2_rfm_serving.ros.node.shared_memory import dead_ports_left_alone
from ros2_rfm_serving.ros.node.usage import usage
from ros2_rfm_serving.ros.wire.qos import Names

EXIT_FAILED = 1
LEAVING_S = 20.0
"""Time for the clean-up of libraries at the end, which may have processes of their own."""
LOOK_PERIOD_S = 0.1
"""Period of polling whether the process was asked to end."""
NO_PARAMETERS: Mapping[str, Spec] = MappingProxyType({})
T = TypeVar("T")
clock = process_clock.clock


def share() -> Path:
    """Return the folder where config/, models/ and launch/ are installed."""
    if not os.environ.get("AMENT_PREFIX_PATH"):
        os.environ["AMENT_PREFIX_PATH"] = sys.prefix
    try:
        return Path(get_package_share_directory("rfm_serving"))
    except PackageNotFoundError:
        raise SystemExit("rfm_serving is not installed in this environment: run `make install`") from None


def executor() -> Any:
    """Return the events executor, or the single-threaded one where a ROS installation lacks it.
    The multi-threaded executor is never used: it costs ten times as much per message."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()


def run_node(make: Callable[[], Node], about: str | None = "", parameters: Mapping[str, Spec] = NO_PARAMETERS) -> NoReturn:
    """Run one node until SIGINT or SIGTERM, and end the process (`usage.py` has the exit codes).

    make: creates the node, after rclpy has started. about, parameters: for `--help`. The signals are handled here and not by rclpy,
    whose handlers end the context at once: a node's `drain()` and `stop()`, if it has them, can finish its work and publish final
    messages."""
    if HELP_FLAGS & set(sys.argv[1:]):
        print(usage(about or "", parameters))
        raise SystemExit(0)
    os.environ.setdefault("ROS_LOG_DIR", str(Path("~/.ros/log").expanduser()) if "HOME" in os.environ else "/tmp/ros_log")
    end_with_parent()
    leave(_run(make, Ending()))


def _run(make: Callable[[], Node], ending: Ending) -> int:
    """Run the node and return the exit code."""
    watch = HangWatch()
    use_profile()
    try:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # rclpy has no exception of its own for bad arguments
        return _refused(RuntimeError(f"{error}{_fix(str(error))}"))
    try:
        with dead_ports_left_alone(rclpy.get_default_context().get_domain_id()):
            node = make()
        ending.in_order()
        _serve(node, ending, watch)
    except (RfmError, ParameterException) as error:
        return _refused(error)
    except SystemExit as end:  # raised by a callback that has logged the reason
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except Exception:
        traceback.print_exc()
        return EXIT_FAILED
    return 0


def _fix(problem: str) -> str:
    """Return the fix of a parameter file that rcl cannot read; empty: unknown."""
    fixes = {
        "Sequence should be of same type": "write all numbers of a list alike, such as [1.0, 0.5]",
        "Will not support aliasing": "write the value in each place: parameter files have no aliases",
        "SECURITY ERROR": "ROS_SECURITY_KEYSTORE names the folder that `rfm security init` wrote, or unset ROS_SECURITY_ENABLE",
    }
    return next((f"\n{fix}; `rfm check` names the key" for part, fix in fixes.items() if part in problem), "")


def _refused(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return EXIT_CONFIGURATION


def _serve(node: Any, ending: Ending, watch: HangWatch) -> None:
    """Spin, and tear down from the outside in: the executor, which calls into the node, ends before it, and the node before
    rclpy."""
    spinner = executor()
    spinner.add_node(node)
    _watch_node(node, watch)
    try:
        while rclpy.ok() and not ending.asked:
            _spin(spinner, node, LOOK_PERIOD_S)  # the events executor's spin() without a timeout never dispatches
            watch.beat()
    finally:
        watch.ends("draining")
        _drain(spinner, node, watch)
        watch.ends("stopping", getattr(node, "stop_s", END_STEP_S))
        getattr(node, "stop", lambda: None)()
        watch.ends("the last turns of the executor")
        for _ in range(5):
            _spin(spinner, node, 0.02)  # for what `stop` has caused, such as the result of a goal
        watch.ends("destroying the node")
        spinner.remove_node(node)
        spinner.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
        watch.ends("leaving", LEAVING_S)


def _watch_node(node: Any, watch: HangWatch) -> None:
    """Register the node with its `close_files` and `watches_interpreter`, where it has them."""
    close_files = getattr(node, "close_files", lambda: None)
    watch.is_made(node.get_name(), close_files, watches_interpreter=not getattr(node, "watches_interpreter", False))


def _drain(spinner: Any, node: Any, watch: HangWatch) -> None:
    """Drain a node that has `drain`: it goes on answering until `drained` is true."""
    if hasattr(node, "drain"):
        node.drain()
        while rclpy.ok() and not node.drained:
            _spin(spinner, node, 0.05)
            watch.beat()


def _spin(spinner: Any, node: Node, seconds: float) -> None:
    """Spin for a while. An exception of a callback costs its message, not the process: it is logged and the node continues."""
    try:
        spinner.spin_until_future_complete(Future(), timeout_sec=seconds)  # unlike `spin_once` it handles all that arrives
    except Exception:
        node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)


def logged(transition: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Decorate a lifecycle callback so that its exceptions are logged: rclpy turns them into an error state without any message."""

    @functools.wraps(transition)
    def run(node: Any, state: Any) -> Any:
        try:
            return transition(node, state)
        except Exception:
            node.get_logger().error(f"{transition.__name__} failed:\n{traceback.format_exc()}")
            raise

    return run


def parameter(node: Node, name: str, default: T, description: str) -> T:
    """Declare a parameter that only a restart changes, with its description, and return its value."""
    described = ParameterDescriptor(description=description, additional_constraints="changes with a restart", read_only=True)
    value: T = node.declare_parameter(name, default, described).value
    return value


def fleet_names(node: Node, *, is_robots: bool = True) -> Names:
    """Return the names of the factory that a node belongs to.

    is_robots: the node may be in a namespace with a robot's name. Raises: `ConfigurationError` when the node's namespace was
    pushed below another one, and the factory's was not: two cells that a launch file starts in two namespaces would share one
    factory's topics."""
    given = parameter(node, "fleet_namespace", "", "Namespace of the whole factory; empty: none; /: none, wherever the node is")
    names = Names(given)
    pushed = pushed_namespace(node.get_namespace(), names.root, is_robots=is_robots)
    if pushed not in ("", names.root) and given != "/":
        where = f"the node is in {node.get_namespace()}, below {pushed}, and its factory's topics are below {names.root or '/'}"
        fix = f"write fleet_namespace: {pushed.strip('/')} (as factory.launch.py does), or / for a factory without a namespace"
        raise ConfigurationError(f"{given!r}: {where}; a namespace that is pushed moves nodes only", key="fleet_namespace", fix=fix)
    return names
