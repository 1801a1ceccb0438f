"""State of a model server and why it accepts nothing new; published twice a second and at every change."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.qos_overriding_options import QoSOverridingOptions
from rfm_serving import msg

from ros2_rfm_serving.errors import DrainingError, ModelError, RfmError
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, key_values
from ros2_rfm_serving.ros.node.own_name import OwnName
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.node.scheduled import Contemporaries
from ros2_rfm_serving.ros.origin import Origin
from ros2_rfm_serving.ros.server.audit import ServerAudit
from ros2_rfm_serving.ros.server.openings import Openings
from ros2_rfm_serving.ros.server.status import COUNTED, diagnosis, status_message
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import ScheduleFollower, ServerState

SAID_PERIOD_S = 5.0
"""Minimum time between two log messages on problems of one kind."""


class Standing:
    """Server state reporter. server: returns the loaded model, or None. It runs on the executor's thread."""

    def __init__(
        self,
        node: Node,
        own_name: OwnName,
        topic: str,
        server: Callable[[], ModelServer | None],
        audit: ServerAudit,
        openings: Openings | None,
    ) -> None:
        """Create the reporter. audit: records state transitions. openings: source of the challenge in the status."""
        self.state, self.detail = ServerState.LOADING, "no model placed here yet"
        self._against = ""
        """Description of how the served model contradicts the schedule."""
        self.following = ScheduleFollower()
        self._ended = False
        self.refused: Counter[str] = Counter()
        """Refusals by the node, before there was a server or outside of it."""
        self._former: Counter[str] = Counter()
        """Counts of the previous models."""
        self._node, self._own_name, self._server = node, own_name, server
        self._audit, self._openings = audit, openings
        self._speaker = Speaker()
        self.contemporaries = Contemporaries(self._speaker.process)
        self._said_s: dict[str, float] = {}
        """Kind of problem -> time at which it was last logged."""
        overridable = QoSOverridingOptions.with_default_policies()
        self._status = node.create_publisher(msg.ServerStatus, topic, qos.SERVER_STATUS, qos_overriding_options=overridable)
        self.origin = Origin(node)
        parts = (self._diagnosis, own_name.diagnosis, functools.partial(self.origin.diagnosis, own_name.name))
        self._diagnostics = Diagnostics(node, lambda: parts)
        own_name.report = self._diagnostics.publish

    def become(self, state: ServerState, detail: str) -> None:
        before = self.state
        self.state, self.detail = state, detail
        self.publish()
        if before != state:
            self._audit.became(before.name.lower(), state.name.lower(), detail)
            self._tried(lambda: self._diagnostics.publish(self._diagnosis()))

    def replace(self, server: ModelServer) -> None:
        """Add the counts of a model that is about to go, so that the process counts on.
        Its refusals go with it, as its answers do, because refusals are shown as a share of them."""
        snapshot = server.snapshot(clock())
        self._former.update({field: getattr(snapshot, field) for field in COUNTED})

    def go_against(self, what: str) -> None:
        """Record how the served model contradicts the schedule; empty: it does not."""
        if what != self._against and what:
            self._node.get_logger().warning(f"{self._own_name.name} {what}: robots of that schedule may be moved by another model")
        self._against = what

    def end(self) -> None:
        """Publish the last status, while the served model is still there."""
        self.publish()
        self._ended = True

    def publish(self) -> None:
        if self._ended or self._own_name.lost:  # the status of a lost name belongs to another process
            return
        self._say_problems()
        self._tried(lambda: self._status.publish(self._speaker.numbered(convert.stamped(self._message(), self._node))))

    def _tried(self, publish: Callable[[], None]) -> None:
        """Publish; an error of the middleware must not keep the server from its transition, and a later status repeats it."""
        try:
            publish()
        except RuntimeError as error:  # rclpy's own errors are such
            self.refused["publish_failed"] += 1
            self._node.get_logger().error(f"the status cannot be published: {error}", throttle_duration_sec=SAID_PERIOD_S)

    @property
    def refusal(self) -> RfmError | None:
        """Error for new requests; None: they are accepted."""
        if self.state == ServerState.READY:
            return None
        if self.state == ServerState.DRAINING:
            return DrainingError(f"{self._own_name.name} is draining ({self.detail}) and takes nothing new; try another server")
        return ModelError(f"{self._own_name.name} is not ready, no model is served: {self.detail}")

    def _say_problems(self) -> None:
        """Log the last problem of each kind at intervals: an engine can fail a thousand times a second."""
        server, now_s = self._server(), clock()
        problems = server.problems if server else {}
        for kind in [kind for kind in tuple(problems) if now_s - self._said_s.get(kind, -math.inf) >= SAID_PERIOD_S]:
            self._said_s[kind] = now_s
            self._node.get_logger().error(f"{kind}: {problems.pop(kind)}")

    def _message(self) -> Any:
        name, now_s = self._own_name.name, clock()
        detail = self.detail or self._against
        made = status_message(name, self.state, detail, self.following, self.refused, self._server(), now_s, former=self._former)
        if self._openings:
            made.challenge, made.hears = self._openings.challenge(now_s), self.contemporaries.named
        return made

    def _diagnosis(self) -> DiagnosticStatus:
        made = diagnosis(self._message(), self.following, clock(), self._server())
        made.values = [*made.values, *key_values(self._audit.values())]
        return made
