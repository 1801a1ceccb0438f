"""Client of one robot's `ExecuteTask` action: it signs goals, sends them again when the middleware loses them, and cancels them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.node import Node
from rfm_serving import action, srv

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import Signing
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import turns_of
from ros2_rfm_serving.ros.wire import qos

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Prover, Verifier

ANSWER_S = 3.0
"""Time without reply and feedback after which a request is sent again.
rmw_fastrtps drops a reply whose client it has not discovered within 100 ms, and rclpy the goal with it (ros2/rmw_fastrtps#842)."""
Feedback = Callable[[Any], None]
Ended = Callable[[int, Any], None]
"""Callback with (a `GoalStatus`, an `ExecuteTask.Result`)."""


class TaskClient:
    """Client with one goal at a time. All methods are for the executor's thread; `poll` is to be called a few times per second.
    A goal whose reply is lost is not given twice: its feedback, or its result, shows that the robot has it."""

    def __init__(self, node: Node, robot: str, names: qos.Names, prover: Prover | None, verifier: Verifier | None) -> None:
        """Create the client of the action and, where `prover` is a certificate, that of the robot's orders.
        Raises: `RuntimeError` where DDS permissions forbid it."""
        self.robot = robot
        self.heard_s = -math.inf
        """Time at which the robot last sent something about the goal; initially the time at which the goal was given."""
        self._node, self._prover, self._verifier = node, prover, verifier
        self._on_feedback: Feedback = lambda feedback: None
        self._on_end: Ended = lambda status, result: None
        self._signing = Signing(prover, robot, verifier)
        self._wanted: Any = None
        """Present goal; None: there is none."""
        self._attempt = 0
        """Number of the goal, by which reports about former ones are recognised and ignored."""
        self._ids: dict[bytes, Any] = {}
        """Goal ids of the requests for this goal."""
        self._handle: Any = None
        """Handle of the request that the robot has accepted."""
        self._asked_s, self._is_probing, self._is_canceled, self._canceled_s = -math.inf, False, False, -math.inf
        self._action = ActionClient(node, action.ExecuteTask, names.robot(robot, "execute_task"))
        self._orders: Any = None
        """Client of the robot's commands where there are certificates: it gets the challenge for the next goal, and cancels."""
        if prover:
            self._orders = node.create_client(srv.Order, names.robot(robot, "rfm/order"), qos_profile=qos.CONTROL)

    def destroy(self) -> None:
        """Destroy the clients; only after the executor has ended, because an earlier end of an action client may crash it
        (ros2/rclpy#1644)."""
        self.abandon()
        self._action.destroy()
        if self._orders is not None:
            self._node.destroy_client(self._orders)

    @property
    def is_ready(self) -> bool:
        """True if the robot can be given a goal."""
        return self._action.server_is_ready() and (self._orders is None or self._orders.service_is_ready())

    @property
    def is_busy(self) -> bool:
        """True while there is a goal: from `start` until its end was reported, or the goal abandoned."""
        return self._wanted is not None

    @property
    def is_accepted(self) -> bool:
        return self._handle is not None

    def start(self, goal: Any, on_end: Ended, on_feedback: Feedback = lambda feedback: None) -> None:
        """Send a goal and abandon the present one.
        goal: an `ExecuteTask.Goal`. on_end: called once, unless the goal is abandoned."""
        self.abandon()
        self._on_end, self._on_feedback = on_end, on_feedback
        self._wanted, self.heard_s = goal, clock()
        self._signing = Signing(self._prover, self.robot, self._verifier)
        self._ask()

    def abandon(self) -> None:
        """Forget the goal; later reports about it are ignored."""
        self._attempt += 1
        self._wanted = self._handle = None
        self._is_probing = self._is_canceled = False
        self._ids.clear()

    def cancel(self) -> None:
        """Cancel the goal as soon as the robot has it; `poll` repeats that until the robot has sent the result."""
        if not self._is_canceled and self._handle is not None:
            self._cancel()
        self._is_canceled = True

    def poll(self, now_s: float) -> None:
        """Send again each request that has had no reply."""
        if self._wanted is None:
            return
        if self._handle is not None and self._is_canceled and now_s - self._canceled_s > ANSWER_S:
            self._cancel()
        if now_s - max(self._asked_s, self.heard_s) <= ANSWER_S:
            return
        if self._handle is not None:
            self._request_result(self._handle)
        elif self._ids and not self._is_probing:
            self._is_probing = True
            self._request_result(self._handle_of(list(self._ids.values())[-1]))
        else:
            self._ask()

    # --- the goal ---

    def _ask(self) -> None:
        """Send the goal; with a certificate, only after the challenge for its signature has arrived."""
        self._asked_s, self._is_probing = clock(), False
        if self._orders is None or self._wanted.proof.certificate:
            self._send()
            return
        attempt, wanted = self._attempt, self._wanted

        def prove(answered: Any) -> None:
            if attempt == self._attempt and not self._ids:
                self._signing.is_anew(wanted, answered.result())
                self._send()

        self._order(self._signing, srv.Order.Request()).add_done_callback(prove)

    def _send(self) -> None:
        attempt, goal_id = self._attempt, action.ExecuteTask.Impl.SendGoalService.Request().goal_id
        goal_id.uuid = list(secrets.token_bytes(16))
        self._ids[bytes(goal_id.uuid)], self._asked_s = goal_id, clock()
        sending = self._action.send_goal_async(self._wanted, lambda message: self._on_message(attempt, message), goal_id)
        sending.add_done_callback(lambda answered: self._on_answer(attempt, answered.result()))

    def _on_answer(self, attempt: int, handle: Any) -> None:
        if attempt != self._attempt or self._handle is not None:
            return
        if handle is None or not handle.accepted:  # every goal is accepted, so this is another server's reply
            self._end(GoalStatus.STATUS_UNKNOWN, action.ExecuteTask.Result(error_msg="the goal was rejected"))
            return
        self._accepted(handle)

    def _on_message(self, attempt: int, message: Any) -> None:
        if attempt != self._attempt:
            return
        self.heard_s = clock()
        if self._handle is None and (goal_id := self._ids.get(bytes(message.goal_id.uuid))):
            self._accepted(self._handle_of(goal_id))
        self._on_feedback(message.feedback)

    def _accepted(self, handle: Any) -> None:
        self._handle, self.heard_s = handle, clock()
        self._request_result(handle)
        if self._is_canceled:
            self._cancel()

    def _handle_of(self, goal_id: Any) -> Any:
        """Return a handle of a goal without its answer."""
        return ClientGoalHandle(self._action, goal_id, action.ExecuteTask.Impl.SendGoalService.Response(accepted=True))

    # --- its end ---

    def _request_result(self, handle: Any) -> None:
        attempt, self._asked_s = self._attempt, clock()
        handle.get_result_async().add_done_callback(lambda answered: self._on_result(attempt, handle, answered.result()))

    def _on_result(self, attempt: int, handle: Any, answer: Any) -> None:
        if attempt != self._attempt or answer is None or (self._handle is not None and handle != self._handle):
            return
        if answer.status == GoalStatus.STATUS_UNKNOWN and self._handle is None:  # the request never arrived
            self._ids.clear()
            self._ask()
            return
        try:
            if self._signing.is_anew(self._wanted, answer.result):
                self._handle = None
                self._ids.clear()
                self._send()
                return
        except UnprovenError as error:
            answer.result.error_msg = str(error)
        self._end(answer.status, answer.result)

    def _end(self, status: int, result: Any) -> None:
        self.abandon()
        self._on_end(status, result)

    # --- orders ---

    def _order(self, signing: Signing, order: Any) -> Any:
        """Return the future of the reply: the robot's own, or any reply of a robot that may have no certificate."""
        return signing.call(self._orders, order, turns_of(self._node).once)

    def _cancel(self) -> None:
        """Cancel the goal. With a certificate this takes a signed command, which needs a challenge first and names this goal
        alone: it may arrive when the next task runs."""
        self._canceled_s = clock()
        if self._orders is None:
            self._handle.cancel_goal_async()
            return
        attempt, order = self._attempt, srv.Order.Request(goal=self._handle.goal_id.uuid)
        signing = Signing(self._prover, self.robot, self._verifier)

        def answered(answer: Any) -> None:
            if attempt != self._attempt:
                return
            is_first, order.what = not order.what, "cancel"
            try:
                if signing.is_anew(order, answer) or is_first:  # a robot without a certificate has no challenge
                    self._order(signing, order).add_done_callback(lambda done: answered(done.result()))
            except UnprovenError as error:
                self._node.get_logger().warning(f"{self.robot}: {error}")

        self._order(signing, srv.Order.Request()).add_done_callback(lambda done: answered(done.result()))
