"""Subscriptions to servers' status and liveliness that are never destroyed while the node exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rclpy.event_handler import SubscriptionEventCallbacks
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import bounded, qos


class Hearing(NamedTuple):
    status: Callable[[Any], object]
    liveliness: Callable[[Any], object]
    refuse: Callable[[BadMessageError], object]
    """Callback for messages that could not be read or verified."""
    prove: Callable[[Any, memoryview], object]


DEAF = Hearing(lambda status: None, lambda event: None, lambda error: None, lambda status, data: None)


class StatusWatch:
    """One subscription per server, created once, for the lifetime of its node.

    Destroying an entity while one of its QoS events is queued crashes rclpy's events executor (ros2/rclpy#1644), and liveliness is
    lost just when robots end as well: at the end of everything. So the callbacks are disconnected instead."""

    def __init__(self, ends: Any) -> None:
        """Create the registry. ends: transport adapter of the subscriptions, a node or its Zenoh counterpart."""
        self._ends = ends
        self._made: set[str] = set()
        self._heard: dict[str, Hearing] = {}

    def hear(self, topic: str, hearing: Hearing) -> None:
        self._heard[topic] = hearing
        if topic not in self._made:
            self._made.add(topic)
            events = SubscriptionEventCallbacks(liveliness=lambda event: self._hearing(topic).liveliness(event))
            bounded.hear(
                self._ends,
                msg.ServerStatus,
                topic,
                lambda message: self._hearing(topic).status(message),
                qos.SERVER_STATUS,
                lambda error: self._hearing(topic).refuse(error),
                prove=lambda message, data: self._hearing(topic).prove(message, data),
                event_callbacks=events,
            )

    def silence(self) -> None:
        self._heard.clear()

    def _hearing(self, topic: str) -> Hearing:
        return self._heard.get(topic, DEAF)
