"""Mailboxes: the newest waiting request of each session, and the selection of the next batch. The server's lock guards them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ros2_rfm_serving.dispatch import DispatchDecision, Dispatcher, DispatchPolicy, WaitingRequest, count_skips
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.dispatch.waiting_request import state_of_waiting, waiting_from
from ros2_rfm_serving.server.engine_queues import EngineQueue, overflow
from ros2_rfm_serving.server.sessions import ServerSession, SessionKey
from ros2_rfm_serving.types import InferenceRequest, ObservationRequest, RequestId
from ros2_rfm_serving.types.state import check_names, kept

NAMES = kept("requests", "policy")
"""Values that a snapshot keeps of the mailboxes."""


class Mailboxes:
    """Newest waiting request of each session."""

    def __init__(self, dispatcher: Dispatcher, sessions: Callable[[], Sequence[TaskHistory]]) -> None:
        """Create empty mailboxes. sessions: returns the histories of all open sessions."""
        self._dispatcher, self._sessions = dispatcher, sessions
        self.waiting: dict[SessionKey, WaitingRequest] = {}
        """Waiting requests. Only this class changes them."""

    @property
    def policy(self) -> DispatchPolicy:
        return self._dispatcher.policy

    def state(self) -> dict[str, Any]:
        """Return the waiting requests and the state of the policy, for a snapshot. Raises: `UnrecordableError` as the policy
        does."""
        return {"requests": [state_of_waiting(waiting) for waiting in self.waiting.values()], "policy": self.policy.state()}

    def restore_requests(self, state: Mapping[str, Any], histories: Mapping[int, TaskHistory]) -> None:
        """Continue from a value of `state`. histories: session epoch -> history of that session.
        Raises: `RfmError` for names that are missing or unknown, and for requests of unknown sessions."""
        check_names("Mailboxes", NAMES, state)
        self.waiting.clear()
        for each in state["requests"]:
            waiting = waiting_from(each, histories)
            self.waiting[waiting.request.id.robot, waiting.request.id.component] = waiting
        self.policy.restore(state["policy"])

    def dispatch_by(self, policy: DispatchPolicy | None, batching: str) -> None:
        """Change policy and batching from the next selection on. policy: None keeps the present one with its learned state.
        Raises: `ConfigurationError` for an unknown batching."""
        self._dispatcher = Dispatcher(policy or self._dispatcher.policy, batching)

    def __len__(self) -> int:
        return len(self.waiting)

    def keys(self) -> set[SessionKey]:
        return set(self.waiting)

    def discard(self, key: SessionKey, before_episode: float = math.inf) -> bool:
        """Discard the request of a session; return False if none of an episode before `before_episode` waited."""
        waiting = self.waiting.get(key)
        if waiting is None or waiting.request.id.episode >= before_episode:
            return False
        del self.waiting[key]
        return True

    def deposit(self, session: ServerSession, request: InferenceRequest, observation: ObservationRequest, now_s: float) -> bool:
        """Enqueue a request; return True if it replaces an older one of its session, whose place in the queue it keeps within an
        episode."""
        history, replaced = session.history, self.waiting.get(session.key)
        episode, since_s = request.id.episode, now_s
        if episode != history.episode:
            self.task_ended(history)
            history.begin_task(episode, (request.id.component, request.instruction), now_s)
        elif replaced is not None:
            since_s = replaced.since_s
        history.on_request(now_s, observation.report, replaced is not None)
        remaining_s = observation.report.remaining_s
        starves_s = max(now_s + remaining_s, history.answered_s(now_s)) if math.isfinite(remaining_s) else now_s
        due_s = since_s + session.slo_s
        self.waiting[session.key] = WaitingRequest(request, observation.stamp_ns, now_s, since_s, starves_s, due_s, history)
        return replaced is not None

    def task_ended(self, history: TaskHistory) -> None:
        if history.rounds:
            self._dispatcher.policy.task_ended(history)

    def select(self, queues: Sequence[EngineQueue], queue_index: int, now_s: float) -> DispatchDecision:
        """Remove from the mailboxes and return the batch that tier `queue_index` runs next."""
        lane = queues[queue_index]
        view, waiting = lane.view, list(filter(lane.can_run, self.waiting.values()))
        ranked = self._dispatcher.rank(waiting, view, now_s)
        if queue_index:
            ranked = overflow(ranked, queues[0].view, view, now_s)
        selected = self._dispatcher.form_batch(waiting, ranked, view, now_s, self._expected_arrivals)
        batch = _isolated(selected.batch)
        for chosen in batch:
            del self.waiting[chosen.request.id.robot, chosen.request.id.component]
        return selected if batch is selected.batch else DispatchDecision(batch, selected.poll_at_s, selected.whole)

    def stale(self, queue: EngineQueue, limit_s: float, now_s: float) -> list[RequestId]:
        """Return the requests that run next whose observations should be renewed; each is returned once.

        Their observations will be older than `limit_s` when the engine is expected to be free. A newer one, requested now, arrives
        before that and is younger than the limit then.
        """
        free_s = queue.view.free_s
        if not 0.0 < free_s - now_s <= limit_s:
            return []
        ranked = self._dispatcher.rank(list(self.waiting.values()), queue.view, now_s)
        return [
            waiting.request.id
            for waiting in ranked[: queue.view.next_rows]
            if free_s - waiting.arrived_s > limit_s
            and now_s + waiting.history.refetch_s <= free_s
            and waiting.history.request_refetch(waiting.request.id.sequence, now_s)
        ]

    def empty(self) -> list[RequestId]:
        """Remove all waiting requests and return their ids."""
        waited = [waiting.request.id for waiting in self.waiting.values()]
        self.waiting.clear()
        return waited

    def _expected_arrivals(self) -> list[float]:
        return [history.next_request_s + history.request_interval_deviation_s for history in self._sessions()]


def _isolated(batch: Sequence[WaitingRequest]) -> Sequence[WaitingRequest]:
    """Return the part of a batch that may run together. A session that was in a batch without any answer runs alone until it gets
    one, because its request may have caused the failure."""
    for waiting in batch:
        if waiting.history.suspect:
            break
    else:
        return batch
    kept = batch[:1] if batch[0].history.suspect else [waiting for waiting in batch if not waiting.history.suspect]
    count_skips(batch, kept)
    return kept
