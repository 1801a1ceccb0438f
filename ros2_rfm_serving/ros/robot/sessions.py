"""Sessions of one robot with its servers: opened, reset and closed as its decision core asks."""

from __future__ import annotations

from functools import partial
from typing import Any

from rclpy.node import Node
from rfm_serving import srv

from ros2_rfm_serving.errors import (
    BadMessageError,
    CapacityError,
    ConfigurationError,
    ContractError,
    DrainingError,
    RfmError,
    UnprovenError,
)
from ros2_rfm_serving.robot.config import EpisodeReset
from ros2_rfm_serving.ros.node.doorkeeper import GENUINE_S, screen
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import turns_of
from ros2_rfm_serving.ros.robot.servers import ServedRobot, Servers
from ros2_rfm_serving.ros.wire import session_messages
from ros2_rfm_serving.types import SYSTEM1, SessionRequest

FULL = (CapacityError.code, DrainingError.code, UnprovenError.code, ConfigurationError.code)
"""Error codes of refusals after which a robot uses the route's other server."""


class Sessions:
    """Session client of one robot; it opens, resets and closes sessions as the decision core asks."""

    def __init__(self, node: Node, servers: Servers, robot: ServedRobot) -> None:
        self._node, self._servers, self._robot = node, servers, robot
        self._opening: dict[str, Any] = {}
        """Component -> future of the newest attempt."""
        self._epochs: dict[tuple[str, str], int] = {}
        """(server, component) -> epoch of the session that is open there."""

    def open(self, server: str, opening: SessionRequest) -> None:
        component = opening.component
        request, proofs = session_messages.session_request_to(opening), self._servers.proofs
        try:
            asking = proofs.sign(server, request)
        except RfmError as error:
            self._warn(f"asks {server} for no session of {component}: {error}")
            elsewhere = isinstance(error, UnprovenError)  # with a bad certificate of its own, no server is any better
            self._robot.brain.on_session_refused(component, server, str(error), clock(), is_server_full=elsewhere)
            return
        future = self._servers.call(server, srv.OpenSession, request)
        if future is None:
            self._robot.brain.on_session_refused(component, server, "its services are not there yet", clock())
            return

        def is_answer(answer: Any) -> bool:
            try:
                proofs.answered(server, request, asking, answer)
            except UnprovenError as error:
                self._on_unproven(component, server, future, error)
                return False
            return True

        self._opening[component] = future
        screen(future, is_answer)
        future.add_done_callback(lambda done: self._robot.safely(self._on_opened, component, server, done))

    def reset(self, reset: EpisodeReset) -> None:
        """Report a new episode to the server, and its reply to the decision core."""
        request = srv.ResetEpisode.Request(
            robot=self._robot.name, component=reset.component, session_epoch=reset.session_epoch, episode=reset.episode
        )
        future = self._servers.call(reset.server, srv.ResetEpisode, self._servers.proofs.seal(reset.server, request))
        if future is None:
            self._on_reset(reset, None)
        else:
            future.add_done_callback(lambda done: self._robot.safely(self._on_reset, reset, done.result()))

    def close_all(self) -> None:
        """Close all sessions, best effort: an absent server has none, and one that misses it replaces the session at the next
        `open`."""
        for server, component in list(self._epochs):
            self._close(server, component)

    def _close(self, server: str, component: str) -> None:
        self._send_close(server, component, self._epochs.pop((server, component)))

    def _send_close(self, server: str, component: str, epoch: int) -> None:
        request = srv.CloseSession.Request(robot=self._robot.name, component=component, session_epoch=epoch)
        proofs = self._servers.proofs
        self._servers.call(server, srv.CloseSession, proofs.seal(server, request))
        proofs.ended(server, self._robot.name, component, epoch)

    def _on_opened(self, component: str, server: str, done: Any) -> None:
        answer, now_s, brain = done.result(), clock(), self._robot.brain
        if self._opening.get(component) is not done:  # it answers an attempt that was given up
            brain.refused["late_session"] += 1
            if answer.success and server in self._servers:
                self._send_close(server, component, answer.session_epoch)
            return
        if not answer.success:
            self._warn(f"{server} refuses a session for {component}: {answer.error_msg}")
            unfit, full = answer.error_code == ContractError.code, answer.error_code in FULL
            brain.on_session_refused(component, server, answer.error_msg, now_s, is_contract_mismatch=unfit, is_server_full=full)
            return
        for warning in answer.warnings:
            self._node.get_logger().warning(f"{self._robot.name}: {server}/{component}: {warning}")
        try:
            grant = session_messages.grant_from(answer)
        except BadMessageError as error:
            self._robot.refuse(error)
            brain.on_session_refused(component, server, str(error), now_s)
            return
        before = self._epochs.get((server, component), grant.session_epoch)
        if before != grant.session_epoch:
            self._servers.proofs.ended(server, self._robot.name, component, before)
        self._epochs[server, component] = grant.session_epoch
        brain.on_session_opened(component, server, grant, now_s)
        if component == SYSTEM1 and brain.conditioning:
            used = f"chunks of {grant.contract.model} continue by conditioning {brain.conditioning.value!r}"
            self._node.get_logger().info(f"{self._robot.name}: {server}: {used}")
        for other in [s for s, c in self._epochs if c == component and s != server]:
            self._close(other, component)  # of the server that it has left, to free the slot

    def _on_unproven(self, component: str, server: str, asked: Any, error: UnprovenError) -> None:
        """Handle a reply from another process. The server itself may still reply; if it does not, another one is asked."""
        self._robot.brain.refused["unproven"] += 1
        self._warn(f"no session of {component} with {server}: {error}")
        turns_of(self._node).once(GENUINE_S, partial(self._robot.safely, self._give_up, component, server, asked, str(error)))

    def _give_up(self, component: str, server: str, asked: Any, problem: str) -> None:
        is_waited_for = self._opening.get(component) is asked
        if is_waited_for and not asked.done():
            del self._opening[component]
            self._robot.brain.on_session_refused(component, server, problem, clock(), is_server_full=True)

    def _on_reset(self, reset: EpisodeReset, answer: Any) -> None:
        self._robot.brain.on_episode_reset(reset, bool(answer and answer.success))

    def _warn(self, text: str) -> None:
        self._node.get_logger().warning(f"{self._robot.name}: {text}", throttle_duration_sec=5.0)
