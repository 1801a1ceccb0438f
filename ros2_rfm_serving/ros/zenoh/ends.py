"""Transport adapter of a robot whose servers are reached through Zenoh in place of DDS.

It has the same names, types and bytes, in rmw_zenoh's format, through a router. Publishers, subscriptions and clients are created
and destroyed as a node's are, and call back on the same thread; none of them needs a node.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import zenoh
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from rclpy.task import Future
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.graph_names import own_name
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.ros.zenoh import passing
from ros2_rfm_serving.ros.zenoh.format import Address, Attachment, Kind, Node
from ros2_rfm_serving.ros.zenoh.inbox import Inbox, octets
from ros2_rfm_serving.ros.zenoh.inward import sender_of
from ros2_rfm_serving.ros.zenoh.session import AGAIN_S, Asker, Outlet, Session, problem
from ros2_rfm_serving.ros.zenoh.tally import LOST, Sequences, Tally, check_interface

MOST_BYTES = 64 << 20
"""Maximum size of an observation."""
ANSWER_S = 10.0
SAID_PERIOD_S = 5.0


class Log(Protocol):
    def warning(self, text: str, *, throttle_duration_sec: float) -> object: ...

    def error(self, text: str, *, throttle_duration_sec: float) -> object: ...


class Liveliness(NamedTuple):
    """Counterpart of rclpy's event of the same name."""

    alive_count: int
    alive_count_change: int


class _End(Protocol):
    def begin(self, session: Session) -> None:
        """Declare the entity in a session, which reconnects by itself."""

    def end(self) -> None: ...


E = TypeVar("E", bound=_End)


class ZenohEnds:
    """Transport adapter on Zenoh. It runs on one thread; `post`, callable from any thread, soon calls functions there."""

    def __init__(
        self,
        config: zenoh.Config,
        node: Node,
        post: Callable[[Callable[[], None]], object],
        log: Log,
        lost: Callable[[str, int], object] = lambda topic, number: None,
    ) -> None:
        """Start to connect. node: as shown to ROS tools; its session is filled in. lost: called with a topic and the number of
        its missing messages, by their sequence numbers: a sender is not told what Zenoh drops under congestion."""
        self._config, self._node, self._post, self._log, self.lost = config, node, post, log, lost
        self.tally = Tally()
        self.sequences = Sequences(self.tally, LOST)
        self._posted = False
        self._inbox = Inbox(self._arrived)
        self._lock = threading.Lock()
        self._ends: list[_End] = []
        self._session: Session | None = None
        """Zenoh session; None: no router has answered yet."""
        self._ending = threading.Event()
        threading.Thread(target=self._open, name="zenoh", daemon=True).start()

    @property
    def connected(self) -> bool:
        return self._session is not None and self._session.connected

    def figures(self) -> dict[str, int]:
        """Return the counters of forwarded and failed messages."""
        return {**self.tally.taken(), **self._inbox.overrun}

    def close(self) -> None:
        self._ending.set()
        with self._lock:
            session, self._session = self._session, None
            self._ends.clear()
        if session is not None:
            session.close()

    # --- as a node makes them ---

    def create_publisher(self, kind: type, topic: str, profile: QoSProfile, **_: Any) -> Publisher:
        return self._begun(Publisher(self, self.address(topic, kind), kind, profile))

    def create_subscription(
        self,
        kind: type,
        topic: str,
        callback: Callable[[bytes], object],
        profile: QoSProfile,
        *,
        raw: bool,
        event_callbacks: Any = None,
    ) -> Subscription:
        assert raw, "bytes are read by `bounded`"
        liveliness = event_callbacks.liveliness if event_callbacks else None
        return self._begun(Subscription(self, self.address(topic, kind), callback, profile, liveliness))

    def create_client(self, kind: Any, name: str, **_: Any) -> Client:
        return self._begun(Client(self, self.address(name, kind), kind))

    def destroy_publisher(self, end: Publisher) -> None:
        self._end(end)

    def destroy_subscription(self, end: Subscription) -> None:
        self._end(end)

    def destroy_client(self, end: Client) -> None:
        self._end(end)

    def get_logger(self) -> Log:
        return self._log

    # --- of its ends ---

    def address(self, name: str, kind: type) -> Address:
        return passing.address_of(self._node.domain, name, kind)

    def refuse(self, error: BadMessageError) -> None:
        self.tally.count(f"refused_{error.kind}")
        self._log.warning(f"refused ({error.kind}): {error}", throttle_duration_sec=SAID_PERIOD_S)

    def _begun(self, end: E) -> E:
        with self._lock:
            self._ends.append(end)
            if self._session is not None:
                end.begin(self._session)
        return end

    def _end(self, end: _End) -> None:
        with self._lock:
            if end in self._ends:
                self._ends.remove(end)
                end.end()

    # --- on other threads ---

    def _open(self) -> None:
        while not self._ending.is_set():
            try:
                session = Session(self._config, self._node, self._inbox)
            except zenoh.ZError as error:
                self._log.warning(f"no Zenoh router yet: {problem(error)}", throttle_duration_sec=SAID_PERIOD_S)
                self._ending.wait(AGAIN_S)
                continue
            with self._lock:
                if self._ending.is_set():
                    session.close()
                    return
                self._session = session
                for end in self._ends:
                    end.begin(session)
            return

    def _arrived(self) -> None:
        if not self._posted:
            self._posted = True
            self._post(self._drain)

    def _drain(self) -> None:
        self._posted = False
        self._inbox.drain(self._failed)

    def _failed(self) -> None:
        self.tally.count("failed")
        self._log.error(f"a message cost itself:\n{traceback.format_exc()}", throttle_duration_sec=SAID_PERIOD_S)


class Publisher:
    def __init__(self, ends: ZenohEnds, address: Address, kind: type, profile: QoSProfile) -> None:
        self._ends, self._address, self._kind, self._profile = ends, address, kind, profile
        self._session: Session | None = None
        self._outlet: Outlet | None = None
        self._own: dict[str, Outlet] = {}
        """Robot -> outlet for its observations under its own name."""
        self._made: list[Any] = []

    def begin(self, session: Session) -> None:
        profile = self._profile
        reliable = passing.is_reliable(profile) and self._kind is not msg.Observation  # a newer observation follows soon
        latched = passing.is_latched(profile)
        told = passing.told(profile)
        self._outlet, self._made = session.publish(self._address, told, reliable=reliable, latched=latched, urgent=False)
        self._session = session

    def end(self) -> None:
        _undeclare(self._made)
        self._outlet = self._session = None
        self._own.clear()

    def publish(self, message: Any) -> None:
        """Publish a message, or its bytes. It never blocks; messages that are not sent are counted."""
        data = message if isinstance(message, bytes) else serialize_message(message)
        data = bytes(data[: bounded.check(data, self._kind, MOST_BYTES)])
        outlet = self._own_outlet(sender_of(data)) if self._kind is msg.Observation else self._outlet
        self._ends.tally.count(f"from_robots_{outlet.put(data) if outlet else 'unconnected'}")

    def get_subscription_count(self) -> int:
        return int(self._outlet is not None and self._outlet.is_heard)

    def _own_outlet(self, robot: str) -> Outlet | None:
        """Return the outlet under the robot's name where a gateway subscribes to it, else the shared one, for a server on Zenoh."""
        if self._session is None or self._outlet is None:
            return None
        if robot not in self._own:
            address = self._address._replace(name=own_name(self._address.name, robot))
            self._own[robot], made = self._session.outlet(address, self._outlet.gid, reliable=False)
            self._made += made
        own = self._own[robot]
        return own if own.is_heard else self._outlet


class Subscription:
    """Subscription that passes on bytes."""

    def __init__(
        self,
        ends: ZenohEnds,
        address: Address,
        callback: Callable[[bytes], object],
        profile: QoSProfile,
        liveliness: Callable[[Liveliness], object] | None,
    ) -> None:
        self._ends, self._address, self._callback, self._profile = ends, address, callback, profile
        self._liveliness = liveliness
        self._alive: set[str] = set()
        """Tokens of its publishers."""
        self._made: list[Any] = []

    def begin(self, session: Session) -> None:
        address, latched = self._address, passing.is_latched(self._profile)
        self._made = [session.hear(address.any_version, self._take, latched=latched, whose=lambda key: address.name)]
        self._made += session.show_subscription(address, passing.told(self._profile))
        if self._liveliness is not None:
            self._made.append(session.watch_end(Kind.PUBLISHER, address.name, self._on_token))

    def end(self) -> None:
        _undeclare(self._made)
        self._callback = lambda data: None

    def _take(self, sample: Any) -> None:
        ends = self._ends
        try:
            check_interface(Address.read(str(sample.key_expr)), self._address)
            if lost := ends.sequences.take(Attachment.read(octets(sample.attachment)), self._address.name):
                ends.lost(self._address.name, lost)
        except BadMessageError as error:
            ends.refuse(error)
            return
        ends.tally.count("to_robots")
        self._callback(octets(sample.payload))

    def _on_token(self, token: str, gone: bool) -> None:
        before = len(self._alive)
        (self._alive.discard if gone else self._alive.add)(token)
        if self._liveliness is not None and (change := len(self._alive) - before):
            self._liveliness(Liveliness(len(self._alive), change))


class Client:
    def __init__(self, ends: ZenohEnds, address: Address, kind: Any) -> None:
        self._ends, self._address, self._kind = ends, address, kind
        self._there: set[str] = set()
        """Tokens of its servers."""
        self._made: list[Any] = []
        self._session: Session | None = None
        self._askers: dict[str, Asker] = {}
        """Robot -> requester under the robot's own name; the empty name has the shared one."""
        self._gid, self._asked = b"", 0

    def begin(self, session: Session) -> None:
        token, self._gid = session.endpoint(Kind.CLIENT, self._address, passing.TOLD_OF_SERVICES)
        self._made = [token, session.watch_end(Kind.SERVICE, self._address.name, self._on_token)]
        self._session = session

    def end(self) -> None:
        _undeclare(self._made)
        self._session = None
        self._there.clear()
        self._askers.clear()

    def service_is_ready(self) -> bool:
        return bool(self._there) and self._session is not None and self._session.connected

    def call_async(self, request: Any) -> Future:
        """Send a request and return the future of the reply, which stays pending without one: the caller has its own timeout."""
        future = Future()
        data = serialize_message(request)
        data = bytes(data[: bounded.check(data, self._kind.Request)])
        self._asked += 1
        if self._session is not None:
            own = self._asker(self._session, request.robot)
            asker = own if own.is_heard else self._asker(self._session, "")
            asker.ask(data, Attachment(self._asked, 0, self._gid), lambda reply: self._answer(future, reply))
        return future

    def _asker(self, session: Session, robot: str) -> Asker:
        if robot not in self._askers:
            name = own_name(self._address.name, robot) if robot else self._address.name
            self._askers[robot] = session.asker(self._address._replace(name=name), ANSWER_S)
            self._made.append(self._askers[robot])
        return self._askers[robot]

    def _answer(self, future: Future, reply: Any) -> None:
        if reply.ok is None:
            self._ends.refuse(BadMessageError("no_answer", f"{self._address.name}: {reply.err.payload.to_string()[:200]}"))
            return
        try:
            future.set_result(bounded.read(octets(reply.ok.payload), self._kind.Response))
        except BadMessageError as error:
            self._ends.refuse(error)

    def _on_token(self, token: str, gone: bool) -> None:
        (self._there.discard if gone else self._there.add)(token)


def _undeclare(made: list[Any]) -> None:
    for entity in made:
        entity.undeclare()
    made.clear()
