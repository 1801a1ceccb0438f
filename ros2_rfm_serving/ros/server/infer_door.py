"""The `Infer` action of a model server: one inference on demand, through the same mailbox as every observation."""

from __future__ import annotations

import functools
import math
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rclpy.action import CancelResponse, GoalResponse
from rclpy.node import Node
from rfm_serving import action

from ros2_rfm_serving.errors import CapacityError, ModelError, RfmError, SessionError
from ros2_rfm_serving.ros.node.patient_action import PatientActionServer
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.quota import Quota, Quotas
from ros2_rfm_serving.types import ActionChunk, Conditioning, ObservationRequest, Reply, RequestId, SessionRequest, SubgoalPlan

TIMEOUT_S = 30.0
RESULT_TIMEOUT_S = 120
"""Time for which the result of a goal is kept. It is bounded, because each result has a chunk, and clients may ask often."""
TEND_PERIOD_S = 0.1
FAILED = "the model could not answer; the server's log says why"


BURST = 8
"""Maximum burst of goals of one client."""
TOLD = 8
"""Number of refusals in a row that come with a reason; later ones cost the server next to nothing."""
ALL = 4
"""Total limit of all clients, as a multiple of one client's.
Names are unverified, so a quota per name alone would limit nothing."""
Deposit = Callable[[ObservationRequest, Callable[[RfmError], None]], None]
"""Function that accepts a request, and a callback, called on any thread, for its refusal."""


class Limits(NamedTuple):
    """Limits of one client and of all clients, because robots have precedence."""

    rate_hz: float
    """Long-term rate of one client; 0: no limit."""
    waiting: int
    """Maximum number of waiting goals."""


@dataclass(frozen=True)
class _Waiting:
    """A goal and its own session."""

    goal: Any
    server: ModelServer
    component: str
    epoch: int
    since_s: float


class InferDoor:
    """Endpoint that gives every goal a session of its own, under a name that no robot has, and closes it at the goal's end.

    serving: returns the server and the function that accepts its requests, beside the executor, or None while nothing is served.
    `take` is called on the engine's thread, everything else on the executor's."""

    def __init__(
        self,
        node: Node,
        action_name: str,
        serving: Callable[[], tuple[ModelServer, Deposit] | None],
        refusal: Callable[[], RfmError],
        limits: Callable[[], Limits],
    ) -> None:
        """Create the action server. refusal: returns why nothing is served."""
        self._node, self._serving, self._refusal, self._limits = node, serving, refusal, limits
        self._quotas = Quotas(BURST)
        """Quotas by the name that a client gives itself."""
        self._of_all = Quota(math.inf, BURST)
        self._waiting: dict[str, _Waiting] = {}
        """Waiting goals by their robot name."""
        self._action = PatientActionServer(
            node,
            action.Infer,
            action_name,
            begin=self._begin,
            result_timeout_s=RESULT_TIMEOUT_S,
            goal_callback=self._listen,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
        )
        every(node, TEND_PERIOD_S, self._tend)

    def take(self, reply: Reply) -> bool:
        """Return whether the reply belongs to a goal, which then ends on the executor's thread. Called on the engine's thread."""
        if not (waiting := self._waiting.pop(reply.id.robot, None)):
            return False
        self._node.executor.create_task(self._end, waiting, reply.id.robot, reply)
        return True

    def fail(self, requests: Sequence[RequestId]) -> None:
        """End goals whose inference failed; called on the engine's thread."""
        for robot in {request.robot for request in requests} & self._waiting.keys():
            self._node.executor.create_task(self._finish, robot, ModelError(FAILED))

    def release(self, why: RfmError) -> None:
        """End all goals, because nothing is served any more."""
        for robot in list(self._waiting):
            self._finish(robot, why)

    def _tend(self) -> None:
        """End goals that were canceled, or whose request was never answered."""
        for robot, waiting in list(self._waiting.items()):
            if waiting.goal.is_cancel_requested:
                self._finish(robot, SessionError("canceled"))
            elif clock() - waiting.since_s > TIMEOUT_S:
                self._finish(robot, SessionError("the request was not answered"))

    def _listen(self, asked: Any) -> GoalResponse:
        """Accept or reject a goal.
        A client that keeps exceeding its quota after `TOLD` reasons is rejected without one, until it asks less often."""
        client, now_s = asked.observation.id.robot, clock()
        serving, insists = self._serving(), self._quotas.insists(client, TOLD, now_s)
        if serving is None or not (insists or self._of_all.insists(TOLD, now_s)):
            return GoalResponse.ACCEPT
        if insists:
            self._quotas.try_acquire(client, self._limits().rate_hz or math.inf, now_s)
        serving[0].count("infer_over_quota")
        return GoalResponse.REJECT

    def _begin(self, goal: Any) -> None:
        robot = f"infer-{uuid.uuid4().hex[:12]}"  # no robot on the graph can have a name with a hyphen
        try:
            self._submit(goal, robot)
        except RfmError as error:
            self._refuse(goal, robot, error)
        except Exception:  # without a result the client would wait for ever
            self._node.get_logger().error(f"a goal of infer failed:\n{traceback.format_exc()}")
            self._refuse(goal, robot, ModelError("the goal could not be read; the server's log says why"))

    def _refuse(self, goal: Any, robot: str, error: RfmError) -> None:
        """End a goal that never ran, with the reason for its client."""
        self._node.get_logger().warning(f"a goal of infer is refused: {error}", throttle_duration_sec=5.0)
        if robot in self._waiting:
            self._finish(robot, error)
        else:
            self._action.end(goal, functools.partial(_told, self._node, error))

    def _submit(self, goal: Any, robot: str) -> None:
        """Open a session for the goal and submit its request. Raises: `RfmError`."""
        serving = self._serving()
        if serving is None:
            raise self._refusal()
        server, deposit = serving
        observation = goal.request.observation
        identity = observation.id
        self._check_quota(server, identity.robot)
        identity.robot, identity.sequence = robot, 1
        identity.session_epoch = _open_session(server, observation)
        self._waiting[robot] = _Waiting(goal, server, identity.component, identity.session_epoch, clock())
        with server.counting_refusals():
            request = convert.observation_from(observation)
        deposit(request, functools.partial(self._unfit, robot))
        goal.publish_feedback(action.Infer.Feedback(phase="queued"))

    def _check_quota(self, server: ModelServer, client: str) -> None:
        """Raise `CapacityError` when a limit is exceeded; each refusal is counted."""
        limits, now_s = self._limits(), clock()
        rate_hz = limits.rate_hz or math.inf
        if len(self._waiting) >= limits.waiting:
            server.count("infer_full")
            raise CapacityError(f"{len(self._waiting)} goals of infer wait already (`infer_waiting`); try again")
        if not self._quotas.try_acquire(client, rate_hz, now_s):
            server.count("infer_over_quota")
            who = f"client {client!r}" if client else "a client without a name"
            raise CapacityError(f"{who} asks more than {limits.rate_hz:g} times a second (`infer_rate_hz`)")
        self._of_all.become(ALL * rate_hz, BURST)
        if not self._of_all.try_acquire(now_s, refused_cost=0.0):
            server.count("infer_over_quota")
            raise CapacityError(f"all clients ask more than {ALL * rate_hz:g} times a second ({ALL} times `infer_rate_hz`)")

    def _unfit(self, robot: str, error: RfmError) -> None:
        """End a goal whose request was refused; called on any thread."""
        self._node.executor.create_task(self._finish, robot, error)

    def _finish(self, robot: str, outcome: Reply | RfmError) -> None:
        if waiting := self._waiting.pop(robot, None):  # otherwise the goal was canceled meanwhile
            self._end(waiting, robot, outcome)

    def _end(self, waiting: _Waiting, robot: str, outcome: Reply | RfmError) -> None:
        waiting.server.close_session(robot, waiting.component, waiting.epoch)
        self._action.end(waiting.goal, functools.partial(_told, self._node, outcome))


def _told(node: Node, outcome: Reply | RfmError, goal: Any) -> Any:
    """Set the goal's final state and return its result."""
    result = action.Infer.Result(error_code=0)
    if isinstance(outcome, RfmError):
        result.error_code, result.error_msg = outcome.code, str(outcome)
        if goal.is_cancel_requested:
            goal.canceled()
        else:
            goal.abort()
        return result
    told = convert.as_verdict(outcome) if isinstance(outcome, SubgoalPlan) else outcome
    setattr(result, "chunk" if isinstance(told, ActionChunk) else "judgement", convert.stamped(convert.reply_to(told), node))
    goal.succeed()
    return result


def _open_session(server: ModelServer, observation: Any) -> int:
    """Open the session and return its epoch. Raises: `RfmError`."""
    request = SessionRequest(
        robot=observation.id.robot,
        component=observation.id.component,
        action_names=server.contract.action_names,
        cameras=tuple(image.header.frame_id for image in observation.images),
        state_size=len(observation.state),
        conditioning=Conditioning.PREFIX if len(observation.prefix_model.data) else Conditioning.NONE,
    )
    return server.open_session(request).session_epoch
