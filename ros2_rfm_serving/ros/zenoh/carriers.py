"""Bridges for all topics of a server or a robot, with one end on DDS and one on Zenoh. They run on the executor's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.ros.zenoh import passing
from ros2_rfm_serving.ros.zenoh.calls import Calls, Service
from ros2_rfm_serving.ros.zenoh.format import Address
from ros2_rfm_serving.ros.zenoh.inward import Inward
from ros2_rfm_serving.ros.zenoh.passing import Topic
from ros2_rfm_serving.ros.zenoh.session import Outlet, Session
from ros2_rfm_serving.ros.zenoh.tally import LOST, Tally
from ros2_rfm_serving.types.names import ClaimStage

NO_WRITER_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)
NO_READER_EVENTS = SubscriptionEventCallbacks(use_default_callbacks=False)
"""No event callbacks: rclpy's events executor crashes when an entity goes while an event of it is queued (ros2/rclpy#1644)."""

NOBODY = 1
"""Process number of a name claim, the lowest one: of two settled claims it gives way."""


class Ways:
    """State that all bridges share."""

    def __init__(self, node: Node, names: qos.Names, domain: int, session: Session, tally: Tally, max_bytes: int) -> None:
        """Create the state. domain: on Zenoh. max_bytes: of an observation."""
        self.node, self.names, self.session, self.tally = node, names, session, tally
        self._domain, self._max_bytes = domain, max_bytes

    def address(self, name: str, kind: type) -> Address:
        return passing.address_of(self._domain, name, kind)

    def most_bytes(self, topic: Topic) -> int:
        return passing.most_bytes(topic, self._max_bytes)

    def publish(self, name: str, topic: Topic) -> tuple[Callable[[bytes], None], list[Any]]:
        """Return the function that publishes on Zenoh, and the entities that end it."""
        sent = topic.sent
        outlet, made = self.session.publish(
            self.address(name, topic.message),
            passing.told(sent),
            reliable=passing.is_reliable(sent),
            latched=passing.is_latched(sent),
            urgent=topic.urgent,
        )
        return partial(self._count, outlet), made

    def hear(self, name: str, topic: Topic, take: Callable[[bytes], object], events: Any = NO_READER_EVENTS) -> Any:
        """Subscribe on DDS."""
        node, heard = self.node, topic.heard
        return node.create_subscription(topic.message, name, take, heard, raw=True, event_callbacks=events)

    def _count(self, outlet: Outlet, data: bytes) -> None:
        self.tally.count(f"to_robots_{outlet.put(data)}")


class CarriedServer:
    """Bridge of one server of the factory.
    It is on Zenoh while it is alive on DDS; its DDS entities stay, because it may come back."""

    def __init__(self, ways: Ways, server: str, inward: Inward, calls: Calls) -> None:
        self._ways, self._inward, self._calls = ways, inward, calls
        self._name = partial(ways.names.server, server)
        self._made: list[Any] = []
        self._tell: Callable[[bytes], None] | None = None
        """Function that publishes its status on Zenoh; None: the server is not offered."""
        node = ways.node
        self._observations = node.create_publisher(
            passing.OBSERVATION.message, self._name("observation"), passing.OBSERVATION.sent, event_callbacks=NO_WRITER_EVENTS
        )
        self._clients = {
            leaf: node.create_client(kind, self._name(leaf), qos_profile=qos.CONTROL) for leaf, kind in passing.SERVICES.items()
        }
        events = SubscriptionEventCallbacks(liveliness=self._on_liveliness, use_default_callbacks=False)
        self._status = ways.hear(self._name("status"), passing.STATUS, self._on_status, events)

    @property
    def offered(self) -> bool:
        return self._tell is not None

    def withdraw(self) -> None:
        self._inward.close(self._name("observation"))
        undeclare(self._made)
        self._tell = None

    def _on_status(self, data: bytes) -> None:
        if self._tell is None:
            self._tell = self._offer()
        self._tell(data)

    def _on_liveliness(self, event: Any) -> None:
        if event.alive_count == 0 and self.offered:
            self._ways.node.get_logger().warning(f"{self._name('')[:-1]} is not alive: withdrawn from Zenoh")
            self.withdraw()

    def _offer(self) -> Callable[[bytes], None]:
        ways, topic = self._ways, passing.OBSERVATION
        tell, self._made = ways.publish(self._name("status"), passing.STATUS)
        observation = ways.address(self._name("observation"), topic.message)
        self._inward.open(observation, topic, ways.most_bytes(topic), self._observations.publish)
        self._made += ways.session.show_subscription(observation, passing.told(topic.heard))
        for leaf, kind in passing.SERVICES.items():
            service = Service(ways.address(self._name(leaf), kind), kind, self._clients[leaf])
            self._made += ways.session.answer(
                service.address, passing.TOLD_OF_SERVICES, partial(self._calls.take, service), passing.whose
            )
        return tell


class CarriedRobot:
    """Bridge of one robot on Zenoh, which the factory sees as if it were on DDS."""

    def __init__(self, ways: Ways, robot: str, inward: Inward) -> None:
        self._ways, self._inward = ways, inward
        self._speaker = Speaker()
        self.is_elsewhere = False
        """A process on DDS had the name before, and was not visible when the robot came."""
        self._answered = NOBODY
        """Process on DDS that was answered last."""
        self._made: list[Any] = []
        self._heard = []
        name = partial(ways.names.robot, robot)
        for leaf, topic in passing.TO_ROBOT.items():
            publish, made = ways.publish(name(leaf), topic)
            self._made += made
            self._heard.append(ways.hear(name(leaf), topic, publish))
        topic = passing.ROBOT_STATUS
        self._status = ways.node.create_publisher(topic.message, name("rfm/status"), topic.sent, event_callbacks=NO_WRITER_EVENTS)
        self._address = ways.address(name("rfm/status"), topic.message)
        self._lost = 0
        """Number of lost messages that the robot has reported."""
        inward.open(self._address, topic, ways.most_bytes(topic), self._on_status)
        self._made += ways.session.show_subscription(self._address, passing.told(topic.heard))
        self._name = self._claim(name("rfm/name"), robot)

    def close(self) -> None:
        """End the bridge. To servers the robot has left, and they close its sessions."""
        self._inward.close(self._address.name)
        undeclare(self._made)
        for heard in self._heard:
            self._ways.node.destroy_subscription(heard)
        self._ways.node.destroy_publisher(self._status)
        self._ways.node.destroy_publisher(self._name)

    def _on_status(self, data: bytes) -> None:
        """Publish the robot's status on DDS.
        Zenoh reports no loss on the way to a robot to the gateway, but the robot counts it."""
        self._status.publish(data)
        lost = sum(counted.count for counted in deserialize_message(data, msg.RobotStatus).refused if counted.name == LOST)
        if new := lost - (self._lost if lost >= self._lost else 0):  # otherwise it counts anew
            self._ways.tally.count(LOST, new)
        self._lost = lost

    def _claim(self, topic: str, robot: str) -> Any:
        """Claim the robot's name on DDS, so that a later process with this name gives way; an earlier one keeps it."""
        node = self._ways.node
        publisher = node.create_publisher(msg.NameClaim, topic, qos.NAME_CLAIM, event_callbacks=NO_WRITER_EVENTS)
        tell = partial(self._say, publisher, robot)
        tell(0)
        options = {"event_callbacks": NO_READER_EVENTS}
        hear = partial(self._on_claim, tell)
        self._heard.append(bounded.hear(node, msg.NameClaim, topic, hear, qos.NAME_CLAIM_HEARD, self._refuse, **options))
        return publisher

    def _say(self, publisher: Any, robot: str, heard: int) -> None:
        said = msg.NameClaim(stage=int(ClaimStage.SETTLED), process=NOBODY, heard=heard)
        said.header.frame_id = robot
        publisher.publish(self._speaker.signed(convert.stamped(said, self._ways.node)))

    def _on_claim(self, tell: Callable[[int], None], claim: msg.NameClaim) -> None:
        if claim.process != NOBODY and (claim.heard != NOBODY or claim.process != self._answered):
            self._answered = claim.process  # with certificates only an answer counts, also for a process that received us first
            tell(claim.process)
        self.is_elsewhere |= claim.process != NOBODY and claim.stage >= ClaimStage.SETTLED

    def _refuse(self, error: BadMessageError) -> None:
        self._ways.tally.count(f"refused_{error.kind}")


def undeclare(made: Iterable[Any]) -> None:
    for entity in made:
        entity.undeclare()
