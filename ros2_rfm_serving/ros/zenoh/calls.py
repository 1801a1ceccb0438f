"""Service requests of robots, from Zenoh to DDS and back. rclpy gives no bytes of services, so they are read and written anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rclpy.serialization import deserialize_message, serialize_message

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.graph_names import Names
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.ros.zenoh.format import Address, Attachment
from ros2_rfm_serving.ros.zenoh.inbox import octets
from ros2_rfm_serving.ros.zenoh.passing import MAX_REQUEST_BYTES
from ros2_rfm_serving.ros.zenoh.tally import Tally, check_interface, check_owner

MAX_CALLS = 256
"""Maximum number of pending requests; beyond it requests are refused."""


class Service(NamedTuple):
    address: Address
    kind: Any
    client: Any


class _Call(NamedTuple):
    query: Any
    key: str
    """Key of the reply."""
    service: Service
    asked: Attachment
    due_s: float


class Calls:
    """Forwarder of service requests. `take` is called on one thread, the rest on the executor's."""

    def __init__(
        self,
        names: Names,
        tally: Tally,
        refuse: Callable[[BadMessageError], None],
        asking: Callable[[str], None],
        within_s: float,
    ) -> None:
        """Create the forwarder.
        asking: called with the robot of every request; raises `BadMessageError` for a robot without permission."""
        self._names, self._tally, self._refuse, self._asking, self._within_s = names, tally, refuse, asking, within_s
        self._lock = threading.Lock()
        self._under_way: dict[Any, _Call] = {}
        """Pending requests by the future of the reply."""

    def take(self, service: Service, query: Any) -> None:
        """Forward a request from Zenoh."""
        try:
            self._ask(service, query)
        except BadMessageError as error:
            self._refuse(error)
            _say(query, str(error))

    def give_up(self, now_s: float) -> None:
        """Give up requests whose time limit has passed."""
        with self._lock:
            late = [future for future, call in self._under_way.items() if call.due_s < now_s]
        for future in late:
            if call := self._taken(future):
                call.service.client.remove_pending_request(future)
                self._tally.count("unanswered_calls")
                _say(call.query, f"no answer within {self._within_s:g} s")

    def _ask(self, service: Service, query: Any) -> None:
        meant = Address.read(str(query.key_expr))
        check_interface(meant, service.address)
        data = octets(query.payload)
        if len(data) > MAX_REQUEST_BYTES:
            raise BadMessageError("too_large", f"a request of {len(data)} bytes; at most {MAX_REQUEST_BYTES}")
        asked = Attachment.read(octets(query.attachment))
        bounded.check(data, service.kind.Request)
        try:
            request = deserialize_message(data, service.kind.Request)
        except RuntimeError as error:
            raise BadMessageError("bad_message", f"no request for {service.address.name}") from error
        robot = getattr(request, "robot", "")
        check_owner(self._names.shared(meant.name)[1], robot)
        self._asking(robot)
        if not service.client.service_is_ready():
            raise BadMessageError("service_not_there", f"{service.address.name} is not there")
        with self._lock:
            if len(self._under_way) >= MAX_CALLS:
                raise BadMessageError("too_many_calls", f"{MAX_CALLS} requests are under way")
        call = _Call(query, meant.key, service, asked, clock() + self._within_s)
        future = service.client.call_async(request)
        with self._lock:
            self._under_way[future] = call
        future.add_done_callback(self._answer)

    def _answer(self, future: Any) -> None:
        call = self._taken(future)
        if call is None or future.cancelled() or future.exception() is not None:
            return
        answered, data = call.asked._replace(stamp_ns=time.time_ns()), serialize_message(future.result())
        data = data[: bounded.check(data, call.service.kind.Response)]
        call.query.reply(call.key, data, attachment=answered.written())
        call.query.drop()
        self._tally.count("calls")

    def _taken(self, future: Any) -> _Call | None:
        with self._lock:
            return self._under_way.pop(future, None)


def _say(query: Any, problem: str) -> None:
    query.reply_err(problem)
    query.drop()
