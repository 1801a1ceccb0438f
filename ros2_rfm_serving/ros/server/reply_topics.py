"""What leaves a model server for its robots: a topic of its own for each, made before the first reply is due."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.wire import cdr, convert, qos
from ros2_rfm_serving.types import Reply, RequestId


class ReplyTopics:
    """`send` may be called from any thread, the rest on the executor's."""

    def __init__(self, node: Node, names: qos.Names, faults: Faults) -> None:
        """faults: what happens to replies on purpose. They leave as bytes, of which none is damaged."""
        self._node, self._names, self._faults = node, names, faults
        self._ros_clock = node.get_clock().handle  # a sixth of what `Clock.now` costs
        self._replies: dict[tuple[str, type], Any] = {}
        """(robot, type of message) -> publisher"""
        self._refetches: dict[str, Any] = {}

    def expect(self, robot: str, kind: type[Reply]) -> Any:
        """The publisher of these replies; matched in time if this is called ahead."""
        message_type, topic = convert.REPLIES[kind]
        key = (robot, message_type)
        if key not in self._replies:
            self._replies[key] = self._node.create_publisher(message_type, self._names.robot(robot, topic), qos.REPLY_SENT)
        return self._replies[key]

    def send(self, reply: Reply) -> str:
        """What is wrong; empty: it is on its way. A full or broken writer must not keep the others from their replies."""
        try:
            publisher, now_ns = self.expect(reply.id.robot, type(reply)), self._ros_clock.get_now().nanoseconds
            self._faults.passing(publisher.publish, Direction.DOWN)(cdr.reply_to(reply, now_ns))
        except RuntimeError as error:
            return f"{reply.id.robot}: {error}"
        return ""

    def ask_again(self, request: RequestId) -> None:
        """Its robot is to send a newer observation. Nobody who is not on the graph."""
        robot = request.robot
        if all(name != robot for name, _ in self._replies):
            return
        if robot not in self._refetches:
            topic = self._names.robot(robot, "rfm/refetch")
            self._refetches[robot] = self._node.create_publisher(msg.RequestId, topic, qos.REFETCH)
        self._refetches[robot].publish(convert.id_to(request))

    def unheard(self, robots: Iterable[str]) -> set[str]:
        """Those that do not listen to their replies: they have left, or cannot be reached."""
        listened = {robot for (robot, _), publisher in self._replies.items() if publisher.get_subscription_count()}
        return ({robot for robot, _ in self._replies} - listened) & set(robots)

    def clear(self) -> None:
        for publisher in (*self._replies.values(), *self._refetches.values()):
            self._node.destroy_publisher(publisher)
        self._replies.clear()
        self._refetches.clear()
