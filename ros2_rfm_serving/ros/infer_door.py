"""The `Infer` action of a model server: one inference on demand, through the same mailbox as every observation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer, CancelResponse
from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import action

from ros2_rfm_serving.errors import ModelError, RfmError, SessionError
from ros2_rfm_serving.ros import convert
from ros2_rfm_serving.ros.runtime import clock
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import Chunk, Conditioning, Plan, Reply, SessionRequest

TIMEOUT_S = 30.0
TEND_PERIOD_S = 0.1


class InferDoor:
    """Every goal gets a session of its own, under a name that no robot has, and closes it at its end.

    `serving` gives the server and how to wake its worker, or None while nothing is served. `take` is called on the worker's
    thread, everything else on the executor's.
    """

    def __init__(self, node: Node, action_name: str, serving: Callable[[], tuple[ModelServer, Callable[[], None]] | None]) -> None:
        self._node, self._serving = node, serving
        self._waiting: dict[str, tuple[Future, Any, float]] = {}
        """Robot name of the goal -> (future of its reply, goal, when it began)"""
        self._action = ActionServer(
            node, action.Infer, action_name, self._execute, cancel_callback=lambda goal: CancelResponse.ACCEPT
        )
        node.create_timer(TEND_PERIOD_S, self._tend)

    def take(self, reply: Reply) -> bool:
        """True when the reply belongs to a goal; it is handed over on the executor's thread, where the goal waits."""
        waiting = self._waiting.get(reply.id.robot)
        if waiting is None:
            return False
        self._node.executor.create_task(_answer, waiting[0], reply)
        return True

    def release(self) -> None:
        """Nothing is served any more: no goal waits on."""
        for answer, _, _ in list(self._waiting.values()):
            _answer(answer, None)

    def _tend(self) -> None:
        """Goals that were canceled, or whose request was never answered."""
        for answer, goal, since_s in list(self._waiting.values()):
            if goal.is_cancel_requested or clock() - since_s > TIMEOUT_S:
                _answer(answer, None)

    async def _execute(self, goal: Any) -> Any:
        result = action.Infer.Result()
        try:
            reply = await self._infer(goal)
        except RfmError as error:
            result.error_code, result.error_msg = error.code, str(error)
            if goal.is_cancel_requested:
                goal.canceled()
            else:
                goal.abort()
            return result
        told = convert.as_verdict(reply) if isinstance(reply, Plan) else reply
        setattr(result, "chunk" if isinstance(told, Chunk) else "judgement", convert.reply_to(told))
        goal.succeed()
        return result

    async def _infer(self, goal: Any) -> Reply:
        """Raises: `RfmError`."""
        serving = self._serving()
        if serving is None:
            raise ModelError("no model is served here at the moment")
        server, wake = serving
        observation = goal.request.observation
        identity = observation.id
        identity.robot, identity.sequence = f"infer_{uuid.uuid4().hex[:12]}", 1
        identity.session_epoch = _open_session(server, observation)
        answer = Future()
        self._waiting[identity.robot] = (answer, goal, clock())
        try:
            with server.counting_refusals():
                server.submit(convert.observation_from(observation), clock())
            wake()
            goal.publish_feedback(action.Infer.Feedback(phase="queued"))
            reply: Reply | None = await answer
        finally:
            del self._waiting[identity.robot]
            server.close_session(identity.robot, identity.component, identity.session_epoch)
        if reply is None:
            raise SessionError("canceled" if goal.is_cancel_requested else "the request was not answered")
        return reply


def _open_session(server: ModelServer, observation: Any) -> int:
    """Its epoch. Raises: `RfmError`."""
    request = SessionRequest(
        robot=observation.id.robot,
        component=observation.id.component,
        action_names=server.contract.action_names,
        cameras=tuple(image.header.frame_id for image in observation.images),
        state_size=len(observation.state),
        conditioning=Conditioning.PREFIX if len(observation.prefix_model.data) else Conditioning.NONE,
    )
    return server.open_session(request).session_epoch


def _answer(future: Future, reply: Reply | None) -> None:
    if not future.done():
        future.set_result(reply)
