"""Execution of operators' commands from dashboard pages: robots' services, the scheduler's, servers' lifecycle.

Commands come from another thread. A timer of the node calls the services, and never blocks on a reply.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.node import Node
from rfm_serving import srv
from std_srvs.srv import Trigger

from ros2_rfm_serving.errors import ConfigurationError, UnprovenError
from ros2_rfm_serving.monitoring.dashboard.control import NO_TASK, Answer, WantedTask
from ros2_rfm_serving.ros.monitor.tasks import GivenTask
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER, Signing, prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.task_client import TaskClient
from ros2_rfm_serving.ros.node.timers import every, turns_of
from ros2_rfm_serving.ros.wire import qos

PERIOD_S = 0.1
FOUND_WITHIN_S, ANSWERED_WITHIN_S = 5.0, 60.0
"""Time limits for finding a service and for its reply: the scheduler may plan the whole factory anew."""
MAX_WAITING = 256
CHANGE_STATE = "lifecycle_msgs/srv/ChangeState"
TRANSITIONS = {"drain": Transition.TRANSITION_DEACTIVATE, "activate": Transition.TRANSITION_ACTIVATE}
CANCEL, TASK = "cancel", "task"
"""`CANCEL` cancels a task, for which only this package's command service exists."""
ON_ROBOTS = ("pause", "resume", "abort")
DONE = {"drain": "takes nothing new, and finishes what it has", "activate": "takes sessions and requests again"}


@dataclass
class _Waiting:
    find: Callable[[], Any]
    """Return the client; None: the graph does not list the service yet."""
    request: Any
    read: Callable[[Any], Answer]
    answer: Future[Answer]
    ends_s: float
    signing: Signing
    what: str = ""
    """Command to send once its challenge has arrived."""
    client: Any = None
    asked: Any = None
    """Future of rclpy."""


class Hands:
    """Implementation of `Orders` on a spinning node."""

    def __init__(self, node: Node, names: qos.Names, enclave: Path | None = None) -> None:
        """Create the client.
        enclave: certificate for commands when the process has none of its own. Raises: `ConfigurationError`."""
        self._node, self._names = node, names
        self._prover, self._enclave = prover_of_process(enclave), enclave
        self._ordered: queue.Queue[tuple[str, str, str, WantedTask, Future[Answer]]] = queue.Queue(MAX_WAITING)
        self._waiting: list[_Waiting] = []
        self._given: dict[str, GivenTask] = {}
        """Robot -> the task that it was given here, until it is over."""
        self._task_clients: dict[str, TaskClient] = {}
        self._clients: dict[str, Any] = {}
        """Clients, which are never destroyed: discovery takes time, and there are few."""
        every(node, PERIOD_S, self._work)

    def order(self, action: str, target: str, task: str, wanted: WantedTask = NO_TASK) -> Future[Answer]:
        """Enqueue a command, on any thread, and return the future of its answer.
        task: for `admit`. wanted: for `task`, which is answered when the robot works on it, or refuses it."""
        answer: Future[Answer] = Future()
        try:
            self._ordered.put_nowait((action, target, task, wanted, answer))
        except queue.Full:
            answer.set_result(Answer(False, "too many orders wait"))
        return answer

    def _work(self) -> None:
        while not self._ordered.empty():
            action, target, task, wanted, answer = self._ordered.get()
            try:
                if action == TASK:
                    self._give(target, wanted, answer)
                else:
                    self._begin(action, target, task, answer)
            except ConfigurationError as error:
                _say(answer, Answer(False, str(error)))
        self._waiting = [one for one in self._waiting if not self._settle(one)]
        for robot, given in list(self._given.items()):
            given.poll()
            if given.is_over:
                del self._given[robot]

    def _give(self, robot: str, wanted: WantedTask, answer: Future[Answer]) -> None:
        """Give a robot a task. Raises: `ConfigurationError` when the enclave is incomplete."""
        if robot in self._given and not self._given[robot].is_over:
            _say(answer, Answer(False, f"{robot} works on a task that was given here: cancel it first"))
            return
        try:
            if robot not in self._task_clients:
                verifier = verifier_of_process(self._enclave)
                self._task_clients[robot] = TaskClient(self._node, robot, self._names, self._prover, verifier)
        except RuntimeError as error:
            _say(answer, Answer(False, f"the DDS permissions here allow no tasks: {error}; `rfm security` issues them anew"))
            return
        self._given[robot] = given = GivenTask(self._task_clients[robot], wanted)
        given.begun.add_done_callback(lambda begun: _say(answer, begun.result()))

    def _begin(self, action: str, target: str, task: str, answer: Future[Answer]) -> None:
        """Begin a command. Raises: `ConfigurationError` when the enclave is incomplete."""
        names, read, profile, topic, whom, what = self._names, _trigger, None, "", target, ""
        if action == CANCEL or (self._prover and action in (*TRANSITIONS, *ON_ROBOTS)):
            kind, profile, request, what = srv.Order, qos.CONTROL, srv.Order.Request(), action
            topic = names.server(target, "order") if action in TRANSITIONS else names.robot(target, "rfm/order")
        elif action in TRANSITIONS:
            kind = ChangeState
            request = ChangeState.Request(transition=Transition(id=TRANSITIONS[action]))
            read = lambda response: _lifecycle(action, response)  # noqa: E731
        elif action in ("admit", "release"):
            kind, topic, read, profile, whom = srv.AdmitRobot, names.admit_robot, _schedule, qos.CONTROL, SCHEDULER
            request = srv.AdmitRobot.Request(robot=target, task=task)
            if action == "release":
                kind, topic, request = srv.ReleaseRobot, names.release_robot, srv.ReleaseRobot.Request(robot=target)
        else:
            kind, topic, request = Trigger, names.robot(target, f"rfm/{action}"), Trigger.Request()

        def find() -> Any:
            found = topic or self._lifecycle_of(target)
            return self._client(kind, found, profile) if found else None

        signing = Signing(self._prover, whom, verifier_of_process(self._enclave) if hasattr(request, "proof") else None)
        self._waiting.append(_Waiting(find, request, read, answer, clock() + FOUND_WITHIN_S, signing, what))

    def _lifecycle_of(self, server: str) -> str:
        """Return the lifecycle service of a server, whose node may have any name in its namespace.
        Empty: the graph has none yet."""
        below = self._names.server(server, "")
        offered = (name for name, kinds in self._node.get_service_names_and_types() if CHANGE_STATE in kinds)
        return next((name for name in offered if name.startswith(below)), "")

    def _client(self, kind: Any, topic: str, profile: Any) -> Any:
        if topic not in self._clients:
            options = {"qos_profile": profile} if profile is not None else {}
            self._clients[topic] = self._node.create_client(kind, topic, **options)
        return self._clients[topic]

    def _settle(self, one: _Waiting) -> bool:
        """Advance a command, and return whether it is over."""
        try:
            return self._is_settled(one)
        except (ConfigurationError, UnprovenError) as error:  # other commands must not wait for it
            _say(one.answer, Answer(False, str(error)))
            return True

    def _is_settled(self, one: _Waiting) -> bool:
        """Advance a command, and return whether it is over. Raises: `ConfigurationError`, `UnprovenError`."""
        one.client = one.client or one.find()
        if one.asked is None and one.client is not None and one.client.service_is_ready():
            one.asked, one.ends_s = self._ask(one), clock() + ANSWERED_WITHIN_S
        if one.asked is not None and one.asked.done():
            if is_first := bool(one.what):
                one.request.what, one.what = one.what, ""
            if one.signing.is_anew(one.request, one.asked.result()) or is_first:
                one.asked = self._ask(one)
                return False
            _say(one.answer, one.read(one.asked.result()))
            return True
        if clock() < one.ends_s and not one.answer.cancelled():
            return False
        problem = "is not there" if one.asked is None else "does not answer; it may still come about"
        if one.asked is not None:
            one.client.remove_pending_request(one.asked)
        _say(one.answer, Answer(False, f"{one.client.srv_name if one.client else 'its service'} {problem}"))
        return True

    def _ask(self, one: _Waiting) -> Any:
        """Call the service. Robots and servers may have no certificate; a scheduler that verifies one has its own."""
        later = turns_of(self._node).once if isinstance(one.request, srv.Order.Request) else None
        return one.signing.call(one.client, one.request, later)


def _say(future: Future[Answer], answer: Answer) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(answer)


def _trigger(response: Any) -> Answer:
    return Answer(response.success, response.message)


def _schedule(response: Any) -> Answer:
    return Answer(response.success, f"in schedule {response.schedule_epoch}" if response.success else response.error_msg)


def _lifecycle(action: str, response: Any) -> Answer:
    return Answer(
        response.success,
        DONE[action]
        if response.success
        else f"its state does not allow it to {action}, or it takes orders with a certificate alone (RFM_SERVING_ENCLAVE)",
    )
