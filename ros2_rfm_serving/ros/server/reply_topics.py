"""Reply topics of a model server: one per robot, created before the first reply is due, destroyed after the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.wire import cdr, convert, qos
from ros2_rfm_serving.ros.wire.proofs import sealed_reply
from ros2_rfm_serving.types import Reply, RequestId

NO_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)
"""No event callbacks: rclpy's events executor crashes when an entity goes while an event of it is queued (ros2/rclpy#1644)."""
Key = tuple[str, type[Reply]]


class ReplyTopics:
    """Publishers of replies. `send` may be called from any thread, the rest on the executor's."""

    def __init__(self, node: Node, names: qos.Names, faults: Faults, key_of: Callable[[RequestId], bytes | None]) -> None:
        """Create the registry. faults: injected into replies, which leave as bytes and are never corrupted.
        key_of: returns the key that seals the reply to a request; None: unsealed. It is called on any thread."""
        self._node, self._names, self._faults, self._key_of = node, names, faults, key_of
        self._ros_clock = node.get_clock().handle  # costs a sixth of `Clock.now`
        self._replies: dict[Key, Any] = {}
        """(robot, kind) -> publisher."""
        self._refetches: dict[str, Any] = {}
        self._idle_s: dict[Key, float] = {}
        """(robot, kind) -> time since which no reply is expected there."""

    def __len__(self) -> int:
        return len(self._replies)

    def expect(self, robot: str, kind: type[Reply]) -> None:
        """Create the publisher of these replies, ahead of the first one so that it is matched in time."""
        self._idle_s.pop((robot, kind), None)
        if (robot, kind) not in self._replies:
            message_type, topic = convert.REPLIES[kind]
            self._replies[robot, kind] = self._publisher(message_type, self._names.robot(robot, topic), qos.REPLY_SENT)

    def keep(self, expected: Iterable[Key], now_s: float, grace_s: float) -> None:
        """Destroy publishers that were not among the expected for `grace_s`: robots come and go while this server runs."""
        for gone in self._replies.keys() - set(expected):
            if now_s - self._idle_s.setdefault(gone, now_s) >= grace_s:
                self._node.destroy_publisher(self._replies.pop(gone))
                del self._idle_s[gone]
        for robot in self._refetches.keys() - {robot for robot, _ in self._replies}:
            self._node.destroy_publisher(self._refetches.pop(robot))

    def send(self, reply: Reply) -> str:
        """Publish a reply and return the problem; empty: it is sent. A full or broken writer must not block the other replies."""
        robot = reply.id.robot
        publisher = self._replies.get((robot, type(reply)))
        if publisher is None:
            return f"{robot} has left"
        try:
            now_ns = self._ros_clock.get_now().nanoseconds
            self._faults.passing(publisher.publish, Direction.DOWN)(self._bytes_of(reply, now_ns))
        except RuntimeError as error:
            return f"{robot}: {error}"
        return ""

    def _bytes_of(self, reply: Reply, now_ns: int) -> bytes:
        data, key = cdr.reply_to(reply, now_ns), self._key_of(reply.id)
        return sealed_reply(data, key) if key else data

    def ask_again(self, request: RequestId) -> None:
        """Ask a robot for a newer observation, unless it is not on the graph."""
        robot = request.robot
        if all(name != robot for name, _ in self._replies):
            return
        if robot not in self._refetches:
            self._refetches[robot] = self._publisher(msg.RequestId, self._names.robot(robot, "rfm/refetch"), qos.REFETCH)
        self._refetches[robot].publish(convert.id_to(request))

    def unheard(self, robots: Iterable[str]) -> set[str]:
        """Return the robots without a subscription to their replies: they have left, or cannot be reached."""
        listened = {robot for (robot, _), publisher in self._replies.items() if publisher.get_subscription_count()}
        return ({robot for robot, _ in self._replies} - listened) & set(robots)

    def clear(self) -> None:
        for publisher in (*self._replies.values(), *self._refetches.values()):
            self._node.destroy_publisher(publisher)
        self._replies.clear()
        self._refetches.clear()
        self._idle_s.clear()

    def _publisher(self, message_type: type, topic: str, profile: Any) -> Any:
        return self._node.create_publisher(message_type, topic, profile, event_callbacks=NO_EVENTS)
