"""Choice of the transport by which a robot's node reaches the servers: its own DDS entities, or a Zenoh router."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.diagnostics import key_values

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.zenoh.ends import ZenohEnds

ROUTER = "zenoh_router"
"""Name of the parameter."""


def ends_of(node: Node, lost: Callable[[str, int], object]) -> Node | ZenohEnds:
    """Return the transport. lost: as in `ZenohEnds`. Raises: `ConfigurationError`."""
    router = str(node.get_parameter(ROUTER).value)
    if not router:
        return node
    try:
        from ros2_rfm_serving.ros.zenoh import format, session
        from ros2_rfm_serving.ros.zenoh.ends import ZenohEnds
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing", key=ROUTER, fix="pip install 'ros2-rfm-serving[zenoh]'") from None
    config = session.configuration(session.own_file(), router)
    shown = format.Node(node.context.get_domain_id(), "", 0, node.get_namespace(), node.get_name())

    def post(callback: Callable[[], None]) -> Any:
        return node.executor.create_task(callback) if node.executor is not None else None

    return ZenohEnds(config, shown, post, node.get_logger(), lost)


def diagnosis_of(name: str, ends: ZenohEnds) -> DiagnosticStatus:
    """Return the diagnostics of `<name>: zenoh`."""
    level, message = DiagnosticStatus.OK, "connected"
    if not ends.connected:
        level, message = DiagnosticStatus.ERROR, "no Zenoh router is connected"
    values = key_values(dict(sorted(ends.figures().items())))
    return DiagnosticStatus(level=level, name=f"{name}: zenoh", message=message, hardware_id=name, values=values)
