"""The control plane of a model server: sessions open, close and begin episodes; what is served is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import CapacityError, RfmError, SessionError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.ros.server.serving import Serving
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import contract_to, session_request_from
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.quota import Quotas
from ros2_rfm_serving.types import Following, SessionGrant, SessionRequest

OPENINGS_HZ, OPENINGS_AT_ONCE = 2.0, 10
"""Sessions that one robot may ask for, of all its components."""
REFUSAL_SAID_S = 1.0
"""Between two words in the log on refused sessions: robots say it as well, and whoever asks in a loop must not fill the disk."""


class Services:
    """`serving`: the model that is loaded, or None; `refusal`: why no session opens, None while they do."""

    def __init__(
        self,
        node: Node,
        name: Callable[[str], str],
        serving: Callable[[], Serving | None],
        refusal: Callable[[], RfmError | None],
        following: Following,
        topics: ReplyTopics,
    ) -> None:
        """`name`: of a service -> on the graph."""
        self._node, self._serving, self._refusal, self._topics = node, serving, refusal, topics
        self._following = following
        self._openings = Quotas(OPENINGS_AT_ONCE)
        node.create_service(srv.OpenSession, name("open_session"), self._on_open, qos_profile=qos.CONTROL)
        node.create_service(srv.CloseSession, name("close_session"), self._on_close, qos_profile=qos.CONTROL)
        node.create_service(srv.ResetEpisode, name("reset_episode"), self._on_reset, qos_profile=qos.CONTROL)
        node.create_service(srv.DescribeServer, name("describe"), self._on_describe, qos_profile=qos.CONTROL)
        node.create_service(srv.GetSchedule, name("get_schedule"), self._on_get_schedule, qos_profile=qos.CONTROL)

    def _on_open(self, request: Any, response: Any) -> Any:
        serving, refusal = self._serving(), self._refusal()
        if serving is None or refusal:
            return _refused(response, refusal or RfmError("not ready"))
        server = serving.server
        response.sessions, response.max_sessions, response.load = server.occupancy
        try:
            self._check_quota(server, request.robot)
            with server.counting_refusals():
                grant = self._granted(server, session_request_from(request))
        except RfmError as error:
            said = f"session of {request.robot}/{request.component} refused: {error}"
            self._node.get_logger().warning(said, throttle_duration_sec=REFUSAL_SAID_S)
            return _refused(response, error)
        response.success, response.session_epoch, response.warnings = True, grant.session_epoch, list(grant.warnings)
        response.sessions = server.occupancy.sessions
        return contract_to(grant.contract, response)

    def _check_quota(self, server: ModelServer, robot: str) -> None:
        """Raises: `CapacityError`; counted."""
        if not self._openings.take(robot, OPENINGS_HZ, clock()):
            server.count("opens_over_quota")
            raise CapacityError(f"{robot} asks for sessions more than {OPENINGS_HZ:g} times a second")

    def _granted(self, server: ModelServer, request: SessionRequest) -> SessionGrant:
        """With a topic for its replies. Raises: `RfmError`."""
        grant = server.open_session(request)
        try:
            self._topics.expect(request.robot, server.reply_kind(request.component))
        except Exception as error:  # of the middleware: a session whose replies go nowhere is none
            server.close_session(request.robot, request.component, grant.session_epoch)
            server.mishap("publish_failed", f"{request.robot}: {type(error).__name__}: {error}")
            raise SessionError(f"{request.robot} cannot be written to; the server's log says why") from error
        return grant

    def _on_close(self, request: Any, response: Any) -> Any:
        if serving := self._serving():
            serving.server.close_session(request.robot, request.component, request.session_epoch)
        response.success = True
        return response

    def _on_reset(self, request: Any, response: Any) -> Any:
        serving = self._serving()
        if serving is None:
            return _refused(response, self._refusal() or RfmError("not ready"))
        try:
            serving.server.reset_episode(request.robot, request.component, request.session_epoch, request.episode)
        except RfmError as error:
            return _refused(response, error)
        response.success = True
        return response

    def _on_describe(self, request: Any, response: Any) -> Any:
        if serving := self._serving():
            server = serving.server
            contract_to(server.contract, response)
            response.max_batch_size = server.max_batch_size
            response.sessions = server.session_names()
            response.max_sessions = server.occupancy.max_sessions
        return response

    def _on_get_schedule(self, request: Any, response: Any) -> Any:
        if schedule := self._following.schedule:
            response.schedule = convert.schedule_to(schedule, "")
        return response


def _refused(response: Any, error: RfmError) -> Any:
    response.success, response.error_code, response.error_msg = False, error.code, str(error)
    return response
