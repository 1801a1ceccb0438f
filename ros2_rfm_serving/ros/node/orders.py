"""Operators' commands to a process, by a service that demands a signature where there are certificates.

ROS' own services that change a node have no field for a signature, and are closed then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import Doorkeeper, prover_of_member, sign_ordered
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.members import may_ask
from ros2_rfm_serving.security.own import has_enclave

Call = Callable[[float, bytes], tuple[str, str]]
"""Function (now_s, intended goal) -> (problem, or empty; result)."""
NO_GOAL = bytes(16)
"""Any goal that is being worked on."""
SHUT = "asks for no proof, and is shut where there are certificates (docs/security.md)"
NO_OWN = "whoever is asked cannot read its own certificate: /diagnostics says why"
SAID_PERIOD_S = 5.0
MAX_WORD = 64


class OrderDoor:
    """Command service of a robot or of a server. It runs on the executor's thread."""

    def __init__(
        self,
        node: Node,
        name: str,
        service: str,
        calls: Mapping[str, Call],
        gate: Gate,
        heard: Callable[[str, str, bool], object] = lambda what, answer, done: None,
    ) -> None:
        """Create the service.
        name: on the graph. service: in the wire table. heard: called with command, reply and whether it succeeded."""
        self._node, self._service, self._calls, self._gate, self._heard = node, service, calls, gate, heard
        self._made = node.create_service(srv.Order, name, self._on_order, qos_profile=qos.CONTROL)

    def destroy(self) -> None:
        self._node.destroy_service(self._made)

    def _on_order(self, request: Any, response: Any) -> Any:
        is_copy = False
        try:
            self._do(request, response)
        except UnprovenError as error:
            response.error_code, response.message, response.challenge = error.code, str(error), self._gate.challenge(error)
            is_copy = error.is_copy
        if not is_copy:  # the original request has had its reply
            self._gate.sign(request, response)
        return response

    def _do(self, request: Any, response: Any) -> None:
        """Execute a command. Raises: `UnprovenError`."""
        if not request.what:
            response.message, response.challenge = "nothing is ordered", self._gate.current()
            return
        self._gate.check(request, self._service)
        call = self._calls.get(request.what)
        if call is None:
            response.message = f"no order {request.what[:MAX_WORD]!r}; there are {', '.join(self._calls)}"
            return
        problem, done = call(clock(), bytes(request.goal))
        response.success, response.message = not problem, problem or done
        self._heard(request.what, response.message, response.success)


class Gate:
    """Authorisation of commands to one robot or server. Without a certificate everyone may; with an unusable one nobody may."""

    def __init__(self, node: Node, name: str, doorkeeper: Doorkeeper | None, count: Callable[[], object]) -> None:
        """Create the check.
        name: name of the commanded process, which may do the same by itself. count: called for every refusal."""
        self._node, self._name, self._doorkeeper, self._count = node, name, doorkeeper, count
        self._prover = prover_of_member(name) if doorkeeper else None
        self.is_kept = doorkeeper is not None or has_enclave()

    def check(self, request: Any, service: str) -> None:
        """Check that the sender may send this. service: in the wire table. Raises: `UnprovenError`, which is counted."""
        if not self.is_kept:
            return
        try:
            if self._doorkeeper is None:
                raise UnprovenError(NO_OWN)
            who = self._doorkeeper.check(request, clock()).who.name
            if who != self._name and not may_ask(who, service):
                raise UnprovenError(f"{who} may not order that of {self._name}")
        except UnprovenError as error:
            self.refuse(service, error)
            raise

    def sign(self, request: Any, answer: Any) -> None:
        """Sign the reply if the request asks for it."""
        sign_ordered(self._prover, request, answer)

    def refuse(self, what: str, error: UnprovenError) -> None:
        self._count()
        if not error.is_stale:  # the challenge that every first request gets
            self._node.get_logger().warning(f"{self._name}: {what}: {error}", throttle_duration_sec=SAID_PERIOD_S)

    def challenge(self, error: UnprovenError) -> bytes:
        """Return the challenge for a request that was refused with this error; empty: signing anew would not help."""
        return self.current() if error.is_stale else b""

    def current(self) -> bytes:
        """Return the present challenge; empty: no signature is wanted."""
        return self._doorkeeper.challenge(clock()) if self._doorkeeper else b""

    def shut(self) -> None:
        """Close ROS' own services by which the node could be changed, where there are certificates; done before other steps can
        fail."""
        for service in self._node.services if self.is_kept else ():
            if refused := REFUSED.get(service.srv_type):
                service.callback = partial(self._on_shut, service.srv_name, refused)

    def _on_shut(self, name: str, refused: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
        self.refuse(name, UnprovenError(SHUT))
        return refused(request, response)


def _unchanged(request: Any, response: Any) -> Any:
    response.success = False
    return response


def _unset(request: Any, response: Any) -> Any:
    response.results = [SetParametersResult(successful=False, reason=f"it {SHUT}") for _ in request.parameters]
    return response


def _unset_together(request: Any, response: Any) -> Any:
    response.result = SetParametersResult(successful=False, reason=f"it {SHUT}")
    return response


REFUSED: Mapping[type, Callable[[Any, Any], Any]] = {
    ChangeState: _unchanged,
    SetParameters: _unset,
    SetParametersAtomically: _unset_together,
}
