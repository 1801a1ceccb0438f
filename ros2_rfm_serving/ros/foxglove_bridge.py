"""Bridge from the ROS graph to Foxglove.

Every topic is offered with its ROS 2 definition; its bytes are forwarded unchanged, and only while a client is subscribed. With a
certificate, signed messages are forwarded only once verified; every other topic is marked as unverified.

Foxglove's server calls from its own threads. Its changes to subscriptions go through a queue that a timer of the node empties; its
parameter and service requests block its thread until the reply arrives, for `ANSWER_S` at most.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import foxglove
from foxglove import Channel, Context, MessageSchema, Parameter, Schema, Service, ServiceRequest, ServiceSchema
from foxglove.websocket import Capability, StatusLevel, WebSocketServer
from rcl_interfaces.msg import ParameterType
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter
from rclpy.parameter import parameter_value_to_python
from rclpy.parameter_client import AsyncParameterClient
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message, serialize_message

from ros2_rfm_serving.monitoring.board import AS_SAID
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.screen import Screen, Screened
from ros2_rfm_serving.ros.wire import qos

LOOK_PERIOD_S, QUEUE_PERIOD_S = 1.0, 0.05
ANSWER_S, DISCOVERY_S = 3.0, 1.0
DEPTH = 16
BACKLOG = 64
"""Messages by which a slow client may lag behind; older ones are dropped for that client alone."""
ENCODING, SCHEMA = "cdr", "ros2msg"
SERVICES = ("std_srvs/srv/Trigger", "rfm_serving/srv/Replan", "rfm_serving/srv/AdmitRobot", "rfm_serving/srv/ReleaseRobot")
"""Service types that clients may call when control is allowed."""


PROOF = "proof"
CHECKED, UNPROVEN = "by certificates", "none: anybody may have sent this"
"""Values of `PROOF` in the metadata of a channel."""
OTHERS = f"without a proof: all channels whose `{PROOF}` says so"


class Bridge(Node):
    """Node that serves the graph to Foxglove clients.
    control: clients may also call services and set parameters. fleet_namespace: factory whose signed messages are verified."""

    def __init__(self, address: str, port: int, *, control: bool = False, fleet_namespace: str = "") -> None:
        """Start the server. Raises: `ConfigurationError`, `OSError`, `RuntimeError`."""
        super().__init__("rfm_foxglove", enable_rosout=False, start_parameter_services=False)
        self._screen = Screen(self, qos.Names(fleet_namespace))
        self._control, self._shown = control, Context()
        self._channels: dict[str, Channel] = {}
        self._kinds: dict[str, str] = {}
        self._screened: dict[str, Screened] = {}
        self._looking: Counter[str] = Counter()
        """Topic -> number of subscribed clients."""
        self._heard: dict[str, Any] = {}
        self._asked: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._group = ReentrantCallbackGroup()
        self._parameter_clients: dict[str, AsyncParameterClient] = {}
        self._called: set[str] = set()
        self._server: WebSocketServer | None = None
        self._server = server = foxglove.start_server(
            name="rfm_serving",
            host=address,
            port=port,
            capabilities=[Capability.Parameters, *([Capability.Services] if control else [])],
            server_listener=self,
            supported_encodings=[ENCODING],
            context=self._shown,
            message_backlog_size=BACKLOG,
        )
        self.port = server.port
        every(self, LOOK_PERIOD_S, self._look)
        every(self, QUEUE_PERIOD_S, self._work)
        self._look()

    def destroy_node(self) -> None:
        if self._server is not None:
            self._server.stop()
        super().destroy_node()

    @property
    def topics(self) -> frozenset[str]:
        """Topics that are offered."""
        return frozenset(self._channels)

    # --- the graph, on the executor's thread ---

    def _look(self) -> None:
        for topic, kinds in self.get_topic_names_and_types():
            if topic not in self._kinds and len(kinds) == 1:
                self._offer(topic, kinds[0])
        if self._control:
            self._offer_services()
        if self._server is not None and (doubts := self._screen.board.doubts):  # repeated, because clients may connect later
            said = "; ".join(OTHERS if doubt == AS_SAID else doubt for doubt in doubts)
            self._server.publish_status(said, StatusLevel.Warning, PROOF)

    def _offer(self, topic: str, kind: str) -> None:
        self._kinds[topic] = kind
        try:
            definitions.python_class(kind)
            schema = Schema(name=kind, encoding=SCHEMA, data=definitions.message(kind).encode())
        except (KeyError, ValueError, AttributeError, ImportError) as error:  # the type's package is not installed here
            self.get_logger().warning(f"{topic} is not shown: {error}")
            return
        screened = self._screen.of(topic, kind)
        proof = {PROOF: CHECKED if screened else UNPROVEN} if self._screen.demands else {}
        if self._screen.demands and self._screen.is_signed(kind) and not screened:
            self.get_logger().warning(f"{topic} is not shown: it is of another factory than --namespace")
            return
        self._channels[topic] = Channel(topic, schema=schema, message_encoding=ENCODING, metadata=proof, context=self._shown)
        if screened:
            self._screened[topic] = screened

    def _offer_services(self) -> None:
        found = {name: kinds[0] for name, kinds in self.get_service_names_and_types() if len(kinds) == 1}
        new = {name: kind for name, kind in found.items() if kind in SERVICES and name not in self._called}
        if new and self._server is not None:
            self._server.add_services([self._service(name, kind) for name, kind in new.items()])
            self._called |= new.keys()

    def _work(self) -> None:
        while not self._asked.empty():
            self._asked.get()()

    def _follow(self, topic: str, change: int) -> None:
        self._looking[topic] += change
        if self._looking[topic] > 0 and topic not in self._heard:
            kind, channel = definitions.python_class(self._kinds[topic]), self._channels[topic]
            screened = self._screened.get(topic)
            take = channel.log if screened is None else functools.partial(_pass, screened, channel)
            self._heard[topic] = self.create_subscription(kind, topic, take, self._profile(topic), raw=True)
        elif self._looking[topic] <= 0 and topic in self._heard:
            self.destroy_subscription(self._heard.pop(topic))

    def _profile(self, topic: str) -> QoSProfile:
        """Return a QoS profile that is compatible with every publisher: a stricter request would receive nothing."""
        offered = [one.qos_profile for one in self.get_publishers_info_by_topic(topic)]
        reliable = all(one.reliability == ReliabilityPolicy.RELIABLE for one in offered)
        latched = bool(offered) and all(one.durability == DurabilityPolicy.TRANSIENT_LOCAL for one in offered)
        return QoSProfile(
            depth=DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )

    # --- Foxglove's listener, on its threads ---

    def on_subscribe(self, client: Any, channel: Any) -> None:
        topic = channel.topic
        self._asked.put(lambda: self._follow(topic, 1))

    def on_unsubscribe(self, client: Any, channel: Any) -> None:
        topic = channel.topic
        self._asked.put(lambda: self._follow(topic, -1))

    def on_get_parameters(self, client: Any, param_names: list[str], request_id: str | None = None) -> list[Parameter]:
        """Return parameters named `/node.parameter`; an empty list asks for those of all nodes."""
        wanted: dict[str, list[str]] = {}
        for full in param_names:
            node, _, name = full.partition(".")
            wanted.setdefault(node, []).append(name)
        if not param_names:
            listed = self._ask(dict.fromkeys(self._nodes(), _list))
            wanted = {node: list(answer.result.names) for node, answer in listed.items()}
        answers = self._ask({node: functools.partial(_get, names) for node, names in wanted.items() if names})
        return [
            Parameter(f"{node}.{name}", value=_native(value))
            for node, answer in answers.items()
            for name, value in zip(wanted[node], answer.values, strict=False)
            if value.type != ParameterType.PARAMETER_NOT_SET
        ]

    def on_set_parameters(self, client: Any, parameters: list[Parameter], request_id: str | None = None) -> list[Parameter]:
        """Set parameters and return the values in effect: a node that refuses keeps its old value."""
        if self._control:
            for one in parameters:
                node, _, name = one.name.partition(".")
                changed = RosParameter(name, value=one.get_value())
                self._ask({node: functools.partial(_set, changed)})
        return self.on_get_parameters(client, [one.name for one in parameters])

    def on_parameters_subscribe(self, param_names: list[str]) -> None:
        """Ignore the request: changes are not pushed, clients poll."""

    def on_parameters_unsubscribe(self, param_names: list[str]) -> None: ...

    def on_client_advertise(self, client: Any, channel: Any) -> None:
        """Ignore the request: the bridge publishes nothing for clients."""

    def on_client_unadvertise(self, client: Any, client_channel_id: int) -> None: ...

    def on_message_data(self, client: Any, client_channel_id: int, data: bytes) -> None: ...

    def on_connection_graph_subscribe(self) -> None: ...

    def on_connection_graph_unsubscribe(self) -> None: ...

    def _service(self, name: str, kind: str) -> Service:
        service = definitions.python_class(kind)
        texts = definitions.service(kind)
        schemas = [
            MessageSchema(encoding=ENCODING, schema=Schema(name=f"{kind}_{part}", encoding=SCHEMA, data=text.encode()))
            for part, text in zip(("Request", "Response"), texts, strict=True)
        ]
        client = self.create_client(service, name, callback_group=self._group)

        def call(request: ServiceRequest) -> bytes:
            asked = deserialize_message(request.payload, service.Request)
            self.get_logger().info(f"a person calls {name} through Foxglove")
            (answer,) = self._wait([lambda: client.call_async(asked)]) or (None,)
            if answer is None:
                raise RuntimeError(f"{name} does not answer within {ANSWER_S:g} s")
            return bytes(serialize_message(answer))

        return Service(name, schema=ServiceSchema(kind, request=schemas[0], response=schemas[1]), handler=call)

    # --- questions to the graph, from other threads ---

    def _ask(self, questions: dict[str, Callable[[AsyncParameterClient], Any]]) -> dict[str, Any]:
        """Return node -> answer for the nodes that answer in time."""

        clients, there = self._parameter_clients, self._nodes()
        questions = {node: question for node, question in questions.items() if node in there}

        def meet(node: str) -> None:
            if node not in clients:
                clients[node] = AsyncParameterClient(self, node, callback_group=self._group)

        self._wait([functools.partial(meet, node) for node in questions])
        end_s = time.monotonic() + DISCOVERY_S
        while time.monotonic() < end_s and not all(clients[node].services_are_ready() for node in questions if node in clients):
            time.sleep(0.02)
        nodes = [node for node in questions if node in clients and clients[node].services_are_ready()]
        answers = self._wait([functools.partial(questions[node], clients[node]) for node in nodes])
        return {node: answer for node, answer in zip(nodes, answers, strict=True) if answer is not None}

    def _nodes(self) -> set[str]:
        """Return the nodes on the graph; clients may name any other."""
        return {f"{space.rstrip('/')}/{name}" for name, space in self.get_node_names_and_namespaces()}

    def _wait(self, questions: Iterable[Callable[[], Any]]) -> list[Any]:
        """Run calls on the executor's thread and wait for their futures.
        Return the results in order, with None for each that does not arrive within `ANSWER_S`."""
        asked, done = list(questions), threading.Event()
        futures: list[Any] = []
        end_s = time.monotonic() + ANSWER_S

        def put() -> None:
            futures.extend(question() for question in asked)
            done.set()

        self._asked.put(put)
        done.wait(ANSWER_S)
        while time.monotonic() < end_s and not all(future is None or future.done() for future in futures):
            time.sleep(0.005)
        return [future.result() if future is not None and future.done() else None for future in futures] or [None] * len(asked)


def _pass(screened: Screened, channel: Channel, data: bytes) -> None:
    if screened(data):
        channel.log(data)


def _list(client: AsyncParameterClient) -> Any:
    return client.list_parameters()


def _get(names: list[str], client: AsyncParameterClient) -> Any:
    return client.get_parameters(names)


def _set(changed: RosParameter[Any], client: AsyncParameterClient) -> Any:
    return client.set_parameters([changed])


def _native(value: Any) -> Any:
    """Convert a parameter value to the lists and Python numbers that Foxglove accepts."""
    found = parameter_value_to_python(value)
    return list(found) if isinstance(found, list | tuple) or hasattr(found, "tolist") else found
