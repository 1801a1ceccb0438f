"""Services of a model server: sessions open, close and begin episodes; the model is described."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import CapacityError, RfmError, SessionError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.openings import Openings
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.ros.server.serving import Serving
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import contract_to, session_request_from
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.quota import Quotas
from ros2_rfm_serving.types import ScheduleFollower, SessionGrant, SessionRequest

OPENINGS_HZ, OPENINGS_AT_ONCE = 2.0, 10
"""Quota of session requests of one robot, for all its components together."""
OVER_QUOTA = f"{{robot}} asks for sessions more than {OPENINGS_HZ:g} times a second"
MAX_NAME, MAX_SAID = 100, 1000
"""Maximum number of characters of a name, and of a whole log message, because callers choose their names."""
REFUSAL_SAID_S = 1.0
"""Minimum time between two log messages on refused sessions: robots report them as well, and a loop must not fill the disk."""


class Services:
    """Services of the control plane. serving: returns the loaded model, or None. refusal: returns why no session opens, or None."""

    def __init__(
        self,
        node: Node,
        name: Callable[[str], str],
        serving: Callable[[], Serving | None],
        refusal: Callable[[], RfmError | None],
        following: ScheduleFollower,
        topics: ReplyTopics,
        openings: Openings | None,
    ) -> None:
        """Create the services.
        name: maps a service to its name on the graph. openings: session owners; None: any caller may open one."""
        self._node, self._serving, self._refusal, self._topics = node, serving, refusal, topics
        self._following, self._openings = following, openings
        self._quotas = Quotas(OPENINGS_AT_ONCE)
        node.create_service(srv.OpenSession, name("open_session"), self._on_open, qos_profile=qos.CONTROL)
        node.create_service(srv.CloseSession, name("close_session"), self._on_close, qos_profile=qos.CONTROL)
        node.create_service(srv.ResetEpisode, name("reset_episode"), self._on_reset, qos_profile=qos.CONTROL)
        node.create_service(srv.DescribeServer, name("describe"), self._on_describe, qos_profile=qos.CONTROL)
        node.create_service(srv.GetSchedule, name("get_schedule"), self._on_get_schedule, qos_profile=qos.CONTROL)

    def _on_open(self, request: Any, response: Any) -> Any:
        answer = self._answered(request, response)
        if self._openings and answer.error_code not in (0, UnprovenError.code):  # another process could cause these two replies
            self._openings.sign(request.robot, request, answer)
        return answer

    def _answered(self, request: Any, response: Any) -> Any:
        if self._openings and not request.component:
            return self._living(self._openings, request, response)
        serving, refusal = self._serving(), self._refusal()
        if serving is None or refusal:
            return _refused(response, refusal or RfmError("not ready"))
        server = serving.server
        response.sessions, response.max_sessions, response.load = server.occupancy
        try:
            self._open(server, request, response)
        except RfmError as error:
            said = f"session of {request.robot[:MAX_NAME]}/{request.component[:MAX_NAME]} refused: {error}"
            self._node.get_logger().warning(said[:MAX_SAID], throttle_duration_sec=REFUSAL_SAID_S)
            return _refused(response, error)
        return response

    def _living(self, openings: Openings, request: Any, response: Any) -> Any:
        """Answer a liveness probe, a request without a component: its valid signature is the answer, whatever is served now."""
        serving = self._serving()
        try:
            with _counting(serving.server) if serving else contextlib.nullcontext():
                openings.check(request, clock())
        except UnprovenError as error:
            return _refused(response, error)
        if not self._quotas.try_acquire(request.robot, OPENINGS_HZ, clock()):
            return _refused(response, CapacityError(OVER_QUOTA.format(robot=request.robot)))
        return _refused(response, SessionError("a session of no component: none is opened"))

    def _open(self, server: ModelServer, request: Any, response: Any) -> None:
        """Open a session. A caller under another robot's name must not use up that robot's quota. Raises: `RfmError`."""
        if (openings := self._openings) is None:
            self._check_quota(server, request.robot)
            _grant(self._counted(server, request), server, response)
            return
        with _counting(server):
            proven = openings.check(request, clock())
        self._check_quota(server, request.robot)
        with _counting(server):
            public_key, keys = openings.answer(proven)  # before the robot's session is replaced by one without a key
        grant = self._counted(server, request)
        _grant(grant, server, response)
        try:
            openings.opened(proven, public_key, keys, request, response)
        except RfmError:  # its own certificate cannot be read, so no reply of that session could be verified
            server.close_session(request.robot, request.component, grant.session_epoch)
            response.session_epoch = 0
            raise

    def _counted(self, server: ModelServer, request: Any) -> SessionGrant:
        """Open a session and count refusals. Raises: `RfmError`."""
        with server.counting_refusals():
            return self._granted(server, session_request_from(request))

    def _check_quota(self, server: ModelServer, robot: str) -> None:
        """Raise `CapacityError` when the robot's quota is exceeded, and count it."""
        if not self._quotas.try_acquire(robot, OPENINGS_HZ, clock()):
            server.count("opens_over_quota")
            raise CapacityError(OVER_QUOTA.format(robot=robot))

    def _granted(self, server: ModelServer, request: SessionRequest) -> SessionGrant:
        """Open a session and create the topic for its replies. Raises: `RfmError`."""
        grant = server.open_session(request)
        try:
            self._topics.expect(request.robot, server.reply_kind(request.component))
        except Exception as error:  # an error of the middleware: a session needs a way for its replies
            server.close_session(request.robot, request.component, grant.session_epoch)
            server.count_fault("publish_failed", f"{request.robot}: {type(error).__name__}: {error}")
            raise SessionError(f"{request.robot} cannot be written to; the server's log says why") from error
        return grant

    def _on_close(self, request: Any, response: Any) -> Any:
        if serving := self._serving():
            try:
                self._check_call(serving.server, request)
            except UnprovenError as error:
                return _refused(response, error)
            serving.server.close_session(request.robot, request.component, request.session_epoch)
        response.success = True
        return response

    def _check_call(self, server: ModelServer, request: Any) -> None:
        """Raise `UnprovenError` unless the caller owns the session, and count it."""
        with _counting(server):
            if self._openings:
                self._openings.check_call(request, server.session_keys())

    def _on_reset(self, request: Any, response: Any) -> Any:
        serving = self._serving()
        if serving is None:
            return _refused(response, self._refusal() or RfmError("not ready"))
        try:
            self._check_call(serving.server, request)
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
        if self._openings:
            self._openings.sign(SCHEDULER, request, response)
        return response


@contextlib.contextmanager
def _counting(server: ModelServer) -> Iterator[None]:
    try:
        yield
    except UnprovenError:
        server.count("unproven")
        raise


def _grant(grant: SessionGrant, server: ModelServer, response: Any) -> None:
    response.success, response.session_epoch, response.warnings = True, grant.session_epoch, list(grant.warnings)
    response.sessions = server.occupancy.sessions
    contract_to(grant.contract, response)


def _refused(response: Any, error: RfmError) -> Any:
    response.success, response.error_code, response.error_msg = False, error.code, str(error)
    return response
