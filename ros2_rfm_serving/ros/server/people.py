"""Operators' commands to a model server: drain, and accept sessions and requests again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn

from ros2_rfm_serving.ros.node.doorkeeper import Doorkeeper
from ros2_rfm_serving.ros.node.orders import Call, Gate, OrderDoor


def open_to_people(node: LifecycleNode, server: str, service: str, refused: Counter[str]) -> None:
    """Create the command service, and close ROS' own services that change a node where there are certificates.
    refused: counts commands without a valid signature."""

    def count() -> None:
        refused["unproven"] += 1

    def call(trigger: Callable[[], TransitionCallbackReturn], what: str, done: str) -> Call:
        fails = f"its state does not allow it to {what}"
        return lambda now_s, goal: ("" if trigger() == TransitionCallbackReturn.SUCCESS else fails, done)

    gate = Gate(node, server, Doorkeeper.of_process(server), count)
    calls = {
        "drain": call(node.trigger_deactivate, "drain", "takes nothing new, and finishes what it has"),
        "activate": call(node.trigger_activate, "activate", "takes sessions and requests again"),
    }
    OrderDoor(node, service, "rfm/servers/<server>/order", calls, gate)
    gate.shut()
