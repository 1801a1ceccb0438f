"""Service order of the requests that wait in a queue, and how long they wait before they are sent again.

The rule is the server's own: its dispatch policy (`dispatch/`), also one of another package, ranks the requests of the queue. It
gets what a server would provide: since when each robot waits, when its actions run out, when its SLO ends, and the history of its
task. A task lasts from the robot's start on, because task durations are not declared.

Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from ros2_rfm_serving.dispatch import (
    DISPATCH_POLICIES,
    CheckedPolicy,
    DispatchPolicy,
    EngineView,
    ServiceTimes,
    WaitingRequest,
    count_skips,
    policy,
)
from ros2_rfm_serving.dispatch.fifo import FifoPolicy
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.scheduler.prediction.clients import WARM_UP_S, Request, RobotClient
from ros2_rfm_serving.scheduler.prediction.queue_stats import Found
from ros2_rfm_serving.types import ExecutionReport, InferenceRequest, RequestId

GIVEN_UP_S = 1.0
"""Time after which a robot asks again, if it exceeds twice its SLO; it keeps its place."""


class UnpredictablePolicyError(Exception):
    """A dispatch policy reads data that a plan does not know."""


class _Asked(NamedTuple):
    """Request with the data that a plan knows: the robot and its task."""

    id: RequestId
    instruction: str

    def __getattr__(self, name: str) -> object:
        raise UnpredictablePolicyError(f"it reads `request.{name}`, which no plan knows")


class ServiceOrder:
    """Service order of one queue: its robots, and the policy that ranks them and learns from the events there."""

    def __init__(self, ranking: DispatchPolicy, batch_s: Sequence[float], robots: Sequence[RobotClient]) -> None:
        """Prepare the histories. batch_s: seconds of batches of 1, 2, ... rows, up to the largest."""
        self._policy, self._engine = ranking, EngineView(len(batch_s), ServiceTimes(batch_s))
        histories = {robot.session: TaskHistory() for robot in robots}
        self._histories = [histories[robot.session] for robot in robots]
        for history, robot in zip(self._histories, robots, strict=True):
            if history.episode < 0:
                history.begin_task(0, robot.member.kind, robot.ran_out_s)
        self._requests: dict[int, InferenceRequest] = {}
        self._seen: dict[int, WaitingRequest] = {}
        """Number of a request -> its last ranked state, as the policy saw it."""
        self.reads_executions = ranking.READS_EXECUTIONS
        """True when the queue reports arrivals."""
        self._answered: list[tuple[Sequence[Request], float, float]] = []
        """Batches that are not in the histories yet: these are only read where a request is left out."""

    def arrived(self, request: Request) -> None:
        """Note the arrival of a request at the server."""
        self._remember()
        at_s, number, robot = request
        report = ExecutionReport(0, robot.sent_s - robot.answered_s, robot.until_s - robot.sent_s)
        self._histories[number].on_request(at_s, report, replaces=False)

    def ranked(self, requests: Sequence[Request], now_s: float) -> list[Request]:
        """Return the waiting requests, most urgent first."""
        self._remember()
        seen, of = self._seen, {request[1]: request for request in requests}
        for request in requests:
            known = seen.get(request[1])
            if known is None or known.arrived_s != request[0]:
                seen[request[1]] = self._waiting(request)
        ranked = self._policy.rank([seen[number] for number in of], self._engine, now_s)
        return [of[one.stamp_ns] for one in ranked]

    def selected(self, batch: Sequence[Request], others: Sequence[Request]) -> None:
        """Note that a batch runs now, while the other requests that were ranked with it wait."""
        if others:
            chosen = [self._seen[request[1]] for request in batch]
            count_skips([*chosen, *(self._seen[request[1]] for request in others)], chosen)

    def answered(self, batch: Sequence[Request], begun_s: float, now_s: float) -> None:
        self._answered.append((batch, begun_s, now_s))

    def _remember(self) -> None:
        for batch, begun_s, now_s in self._answered:
            for _, number, _ in batch:
                self._histories[number].on_generated(begun_s, now_s)
        self._answered.clear()

    def _waiting(self, request: Request) -> WaitingRequest:
        """Return the policy's view of a request. Its stamp, which a policy does not interpret, is its number."""
        arrived_s, number, robot = request
        asked = self._requests.get(number) or self._requests.setdefault(number, _request(number, robot))
        since_s, history = robot.since_s, self._histories[number]
        return WaitingRequest(asked, number, arrived_s, since_s, robot.ran_out_s, since_s + robot.member.slo_s, history)


def ranks(name: str) -> bool:
    """Return whether a policy of this name ranks requests other than by arrival."""
    return DISPATCH_POLICIES.get(name) is not FifoPolicy


def uncounted(counter: str, problem: str) -> None:
    """Ignore a fault. A server counts it, and serves that batch in order of arrival; so does the queue."""


def service_order(
    name: str, batch_s: Sequence[float], robots: Sequence[RobotClient], mishap: Callable[[str, str], None] = uncounted
) -> ServiceOrder | None:
    """Return the service order. name: of a dispatch policy. None: requests are served by arrival, which needs no ranking."""
    if not ranks(name):
        return None
    ranking = policy(name)
    return ServiceOrder(ranking if name in DISPATCH_POLICIES else CheckedPolicy(ranking, mishap), batch_s, robots)


def patient(request: Request, now_s: float, found: Found) -> Request:
    """Return the request, sent again after a long wait: a starving robot repeats it now and then, and each time the former one
    counts as an answer that never came."""
    arrived_s, i, robot = request
    limit_s = max(GIVEN_UP_S, 2 * robot.member.slo_s) if robot.member.slo_s < math.inf else GIVEN_UP_S
    if now_s - arrived_s <= limit_s:
        return request
    if arrived_s > WARM_UP_S:
        found[robot.index].responses.append(limit_s)
    return arrived_s + limit_s, i, robot


def _request(number: int, robot: RobotClient) -> InferenceRequest:
    component, instruction = robot.member.kind
    name = f"{robot.member.task}_{number}"
    return cast(InferenceRequest, _Asked(RequestId(name, component, 0, 0, 0), instruction))
