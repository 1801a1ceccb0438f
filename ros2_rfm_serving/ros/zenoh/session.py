"""Connection to Zenoh, which is restored whenever it is lost: endpoints of topics and services, with their tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import zenoh
from zenoh import ext

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.graph_names import own_name
from ros2_rfm_serving.ros.zenoh.format import GID_BYTES, GRAPH, SLASH, Address, Attachment, Kind, Node, gid_of
from ros2_rfm_serving.ros.zenoh.inbox import MAX_WAITING_TOKENS, NOBODY, TOKENS, Inbox, Lane, Take, octets
from ros2_rfm_serving.security.own import enclave_of_environment

CLIENT = {"mode": "client", "scouting/multicast/enabled": False, "connect/timeout_ms": 10_000, "connect/exit_on_failure": True}
"""Configuration of a client of one address: it searches for no other, and a failed attempt ends, to be logged and repeated."""
AGAIN_S = 1.0
"""Time between two attempts to reach a router for the first time."""
KEPT = {"timestamping/enabled": True}
"""Configuration without which nothing can be kept for late joiners."""
Whose = Callable[[str], Hashable]
"""Function from a key, below which only one robot writes, to the writer."""


def configuration(file: str, router: str) -> zenoh.Config:
    """Return the configuration. file: JSON5; empty: a client of `router`. Raises: `ConfigurationError`."""
    said = {} if file else {"connect/endpoints": [router], **CLIENT}
    try:
        config = zenoh.Config.from_file(file) if file else zenoh.Config()
        for key, value in {**said, **KEPT}.items():
            config.insert_json5(key, json.dumps(value))
    except zenoh.ZError as error:
        fix = "see `rfm zenoh --help`" if file else "write tcp/<host>:7447 or tls/<host>:7447"
        raise ConfigurationError(
            f"Zenoh cannot use it: {problem(error)}", file=file, key="" if file else "router", fix=fix
        ) from None
    return config


def own_file() -> str:
    """Return the file that `rfm security` wrote for this process' session, with its certificate; empty: it has none.
    Raises: `ConfigurationError`."""
    enclave = enclave_of_environment()
    return str(enclave / "zenoh.json5") if enclave and (enclave / "zenoh.json5").is_file() else ""


def problem(error: zenoh.ZError) -> str:
    """Return the error's text without the position in Zenoh's source."""
    return str(error).partition(" at /")[0]


class Outlet:
    """Publisher of one topic. `put` never blocks: Zenoh drops messages under congestion, and sends none without a subscriber."""

    def __init__(self, session: Session, publisher: Any, gid: bytes, *, latched: bool) -> None:
        self._session, self._publisher, self.gid, self._latched = session, publisher, gid, latched
        self._sequence = 0

    @property
    def is_heard(self) -> bool:
        return bool(self._publisher.matching_status.matching)

    def put(self, data: bytes) -> str:
        """Publish, and return `carried`, `unheard` (no subscriber there) or `unconnected` (no router)."""
        self._sequence += 1
        stamp_ns = time.time_ns()  # for tools: no code of this package reads it
        where = "carried" if self._latched or self.is_heard else "unheard"
        if where == "unheard" and not self._session.connected:
            where = "unconnected"
        try:
            self._publisher.put(data, attachment=Attachment(self._sequence, stamp_ns, self.gid).written())
        except zenoh.ZError:  # the publisher is being closed
            return "unconnected"
        return where


class Asker:
    """Requester of one service."""

    def __init__(self, inbox: Inbox, querier: Any, lane: Lane) -> None:
        self._inbox, self._querier, self._lane = inbox, querier, lane

    @property
    def is_heard(self) -> bool:
        return bool(self._querier.matching_status.matching)

    def ask(self, data: bytes, attachment: Attachment, take: Take) -> None:
        """Send a request. take: called with each reply; never when there is none."""

        def put(reply: Any) -> None:
            self._inbox.put(take, reply, len(reply.ok.payload) if reply.ok else 0, self._lane)

        self._querier.get(zenoh.handlers.Callback(put, indirect=False), payload=data, attachment=attachment.written())

    def undeclare(self) -> None:
        self._querier.undeclare()


class Session:
    """Zenoh session. It declares endpoints with their tokens; each declaration returns a list of entities to undeclare."""

    def __init__(self, config: zenoh.Config, node: Node, inbox: Inbox) -> None:
        """Connect. node: as shown to ROS tools; its session is filled in. Raises: `zenoh.ZError` when no router answers."""
        self._zenoh = zenoh.open(config)
        self._inbox, self._entities = inbox, 0
        self.node = node._replace(session=str(self._zenoh.info.zid()))
        self._token = self._zenoh.liveliness().declare_token(self.node.token)

    @property
    def connected(self) -> bool:
        info = self._zenoh.info
        return bool(info.routers_zid() or info.peers_zid())

    def close(self) -> None:
        self._zenoh.close()

    def publish(self, address: Address, qos: str, *, reliable: bool, latched: bool, urgent: bool) -> tuple[Outlet, list[Any]]:
        """Declare a publisher with a token. latched: kept for late joiners."""
        token, gid = self.endpoint(Kind.PUBLISHER, address, qos)
        outlet, made = self.outlet(address, gid, reliable=reliable, latched=latched, urgent=urgent)
        return outlet, [token, *made]

    def outlet(
        self, address: Address, gid: bytes, *, reliable: bool, latched: bool = False, urgent: bool = False
    ) -> tuple[Outlet, list[Any]]:
        """Declare a publisher that never blocks: a robot with a dead uplink must not delay others (Remote-RTC §6.3)."""
        how: dict[str, Any] = {
            "congestion_control": zenoh.CongestionControl.DROP,
            "priority": zenoh.Priority.INTERACTIVE_HIGH if urgent else zenoh.Priority.DATA,
            "express": urgent,
            "reliability": zenoh.Reliability.RELIABLE if reliable else zenoh.Reliability.BEST_EFFORT,
        }
        if latched:
            cache = {"cache": ext.CacheConfig(1), "publisher_detection": True}
            publisher: Any = ext.declare_advanced_publisher(self._zenoh, address.key, **cache, **how)
        else:
            publisher = self._zenoh.declare_publisher(address.key, **how)
        return Outlet(self, publisher, gid, latched=latched), [publisher]

    def hear(self, key: str, take: Take, *, latched: bool = False, whose: Whose | None = None) -> Any:
        """Subscribe to other processes' matching messages for the lifetime of the session.
        latched: including earlier messages. whose: identifies the only writer of a key; None: a key has many writers."""

        def put(sample: Any) -> None:
            attachment = octets(sample.attachment)
            lane = _sender(attachment) if whose is None else Lane(whose(str(sample.key_expr)), is_own=True)
            self._inbox.put(take, sample, len(sample.payload) + len(attachment), lane)

        handler = zenoh.handlers.Callback(put, indirect=False)
        if latched:
            history = ext.HistoryConfig(detect_late_publishers=True, max_samples=1)
            return ext.declare_advanced_subscriber(self._zenoh, key, handler, history=history)
        return self._zenoh.declare_subscriber(key, handler, allowed_origin=zenoh.Locality.REMOTE)

    def show_subscription(self, address: Address, qos: str) -> list[Any]:
        return [self.endpoint(Kind.SUBSCRIPTION, address, qos)[0]]

    def answer(self, address: Address, qos: str, take: Take, whose: Whose) -> list[Any]:
        """Answer requests for a service, under its name and under any robot's own, also for other versions of its type.
        whose: identifies the writer of the latter."""

        def put(query: Any, own: bool) -> None:
            attachment = octets(query.attachment)
            lane = Lane(whose(str(query.key_expr)), is_own=True) if own else _sender(attachment)
            self._inbox.put(take, query, len(query.payload or b"") + len(attachment), lane)

        made = [self.endpoint(Kind.SERVICE, address, qos)[0]]
        for name, own in ((address.name, False), (own_name(address.name, "*"), True)):
            handler = zenoh.handlers.Callback(partial(put, own=own), indirect=False)
            made.append(self._zenoh.declare_queryable(address._replace(name=name).any_version, handler, complete=True))
        return made

    def watch(self, take: Callable[[str, bool], None], tokens: str = "**") -> Any:
        """Watch endpoints as they come and go, including present ones: their tokens, and whether they are gone.
        tokens: key expression below the domain."""

        def taken(sample: Any) -> None:
            take(str(sample.key_expr), sample.kind == zenoh.SampleKind.DELETE)

        def put(sample: Any) -> None:
            self._inbox.put(taken, sample, 0, TOKENS, MAX_WAITING_TOKENS)

        handler = zenoh.handlers.Callback(put, indirect=False)
        key = f"{GRAPH}/{self.node.domain}/{tokens}"
        return self._zenoh.liveliness().declare_subscriber(key, handler, history=True)

    def watch_end(self, kind: Kind, name: str, take: Callable[[str, bool], None]) -> Any:
        """Watch the endpoints of a topic or service, of any type."""
        return self.watch(take, f"*/*/*/{kind.value}/*/*/*/{name.replace('/', SLASH)}/**")

    def asker(self, address: Address, within_s: float) -> Asker:
        """Declare a requester of a service. It never blocks, because its caller drives a robot."""
        how: dict[str, Any] = {
            "target": zenoh.QueryTarget.ALL_COMPLETE,
            "timeout": within_s,
            "consolidation": zenoh.ConsolidationMode.NONE,
            "congestion_control": zenoh.CongestionControl.DROP,
        }
        return Asker(self._inbox, self._zenoh.declare_querier(address.key, **how), Lane(address.name, is_own=True))

    def endpoint(self, kind: Kind, address: Address, qos: str) -> tuple[Any, bytes]:
        """Declare an endpoint, and return its token and its unique identity."""
        self._entities += 1
        token = self.node.endpoint_token(self._entities, kind, address.name, address.interface, qos)
        return self._zenoh.liveliness().declare_token(token), gid_of(token)


def _sender(attachment: bytes) -> Lane:
    """Return the lane of a sample or query, by the identity at the end of its attachment."""
    return Lane(attachment[-GID_BYTES:]) if attachment else NOBODY
