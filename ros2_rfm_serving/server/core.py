"""Decision core of a server: sessions, waiting requests, the next batch, and replies. It has no lock, no clock and no engine.

`ModelServer` surrounds it with threads and engines and makes one call at a time, under its lock. Decisions depend only on the state
in this module and on the arguments of the calls, so that a recorder of the calls can repeat every decision (`audit/`).

Every input is an event of `server/events.py`: `handle` accepts any of them, and each has a method that does the same. The same
events in the same order lead to the same decisions, also when they begin from a `state`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

from ros2_rfm_serving.dispatch import CONTINUOUS, CheckedPolicy, Dispatcher, DispatchPolicy, InFlightRows
from ros2_rfm_serving.dispatch import policy as dispatch_policy
from ros2_rfm_serving.dispatch.batch_entry import rows_to_advance
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, RfmError
from ros2_rfm_serving.server import events
from ros2_rfm_serving.server.absent_engine import lane_of
from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.engine_queues import WORK_NAMES, EngineLimits, EngineQueue, RunningBatch, state_of_work, work_from
from ros2_rfm_serving.server.figures import Occupancy, ServerFigures, ServerSnapshot, quantile
from ros2_rfm_serving.server.horizon import HorizonDecision
from ros2_rfm_serving.server.mailboxes import Mailboxes
from ros2_rfm_serving.server.replies import reply_of
from ros2_rfm_serving.server.sessions import ServerSession, ServerSessions, SessionKey
from ros2_rfm_serving.types import (
    EngineReply,
    InferenceRequest,
    ModelContract,
    ObservationRequest,
    Reply,
    RequestId,
    ServingStats,
    SessionGrant,
    SessionRequest,
)
from ros2_rfm_serving.types.desynchronisation import LatencyBaseline
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import check_names, kept, restore, state_of

SESSION_ENDED = ("session_ended", "")
"""Counter, without a problem, for a request whose session has ended."""
STALE_EPISODE = ("stale_episode", "")
DRAINING = ("draining", "")


@record(frozen=True, slots=True)
class _Ended:
    """Result of a work that has left the engine, while its replies are made."""

    at_s: float
    load: float
    rows: int = 0
    """Rows that shared the engine with each of its rows; 0: the number of rows of its batch."""
    delay_correction: float = 0.0
    """Second value that `EngineQueue.on_ended` returned."""


ENDED = kept("load", ended_s="at_s", shared_rows="rows", delay_correction="delay_correction")
ENDED_NAMES = kept(*WORK_NAMES, *ENDED, "engine")
"""Values that a snapshot keeps of a batch while its replies are made."""
PARTS = kept("ended_histories", "mailboxes", "engines", "ended_batches")
"""Values that a snapshot keeps beside `ServerCore.KEPT`; they need the histories of sessions."""


class SolverStepDecision(NamedTuple):
    """Numbers of the works in flight that advance, and of those that leave."""

    advance: tuple[int, ...]
    leave: tuple[int, ...]
    """Works whose answers are not needed any more; they have been counted."""


class ServerCore:
    """Decision core of a server. Its methods must not be called concurrently."""

    KEPT: ClassVar = kept(
        "sessions",
        pending_faults="faults",
        next_poll_s="poll_at_s",
        figures="_figures",
        num_served="_served",
        num_superseded="_superseded",
        num_refetched="_refetched",
        num_begun="_begun",
        delay_baselines="_latency_baselines",
        last_progress_s="_moved_s",
    )

    def __init__(
        self, config: ServerConfig, contract: ModelContract, queues: Sequence[EngineQueue], policy: DispatchPolicy | None = None
    ) -> None:
        """Create a core without sessions. policy: used in place of the configured one.
        Raises: `ConfigurationError` if a name of the configuration is unknown."""
        self.config, self.contract, self.queues = config, contract, tuple(queues)
        self.faults: list[tuple[str, str]] = []
        """(counter, problem; empty: only counted), until a caller removes them."""
        self.poll_at_s = math.inf
        """Time at which `begin` of tier 0 should be called again after it returned None, even if nothing new arrives."""
        self.sessions = ServerSessions(contract, config.max_sessions, config.first_epoch, config.sessions)
        dispatcher = Dispatcher(CheckedPolicy(policy or dispatch_policy(config.dispatch), self._on_fault), config.batching)
        self.mailboxes = Mailboxes(dispatcher, self.sessions.histories)
        self._figures = ServerFigures(config.window_s)
        self._served = self._superseded = self._refetched = self._begun = 0
        self._ended: dict[RunningBatch, _Ended] = {}
        self._latency_baselines: dict[str, LatencyBaseline] = defaultdict(LatencyBaseline)
        """Component -> baseline of its delay."""
        self._moved_s = -math.inf
        """Time at which a request last arrived, began or ended while requests waited."""

    def _on_fault(self, kind: str, problem: str) -> None:
        self.faults.append((kind, problem))

    def handle(self, event: events.Event, now_s: float) -> Any:
        """Return the decision about an event: the result of the method of the same input.
        Raises: whatever that method raises; `RfmError` for a batch that does not run."""
        return HANDLERS[type(event)](self, event, now_s)

    # --- snapshots ---

    @property
    def limits(self) -> tuple[EngineLimits, ...]:
        """Return the limits of the engines, which `from_state` needs."""
        return tuple([lane.limits for lane in self.queues])

    @classmethod
    def from_state(
        cls, config: ServerConfig, contract: ModelContract, limits: Sequence[EngineLimits], state: Mapping[str, Any]
    ) -> ServerCore:
        """Return a core that continues from a `state` of one with this configuration, model and engines. It has no engines.

        Raises: `RfmError` for names that are missing or unknown, with the part to which they belong; `ConfigurationError` as the
        constructor does.
        """
        made = cls(config, contract, [lane_of(contract, each) for each in limits])
        made.restore(state)
        return made

    def state(self) -> dict[str, Any]:
        """Return the state of the core as plain values, for `from_state`. It shares no mutable part with the core.

        Requests are kept without images and arrays, engines not at all.

        Raises: `UnrecordableError` when the dispatch policy cannot be restored.
        """
        policy = self.mailboxes.policy
        assert isinstance(policy, CheckedPolicy)
        policy.check_name(self.config.dispatch)
        running = [waiting for work in self.works for waiting in work.batch]
        by_epoch = self.sessions.histories_by_epoch()
        ended = {epoch: each.history for each in running if (epoch := each.request.id.session_epoch) not in by_epoch}
        return {
            **state_of(self, self.KEPT),
            "ended_histories": {epoch: state_of(history, TaskHistory.KEPT) for epoch, history in ended.items()},
            "mailboxes": self.mailboxes.state(),
            "engines": [lane.state() for lane in self.queues],
            "ended_batches": [
                {**state_of_work(work), **state_of(ended, ENDED), "engine": work.queue_index} for work, ended in self._ended.items()
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state` of a core with the same configuration, model and engines.
        Raises: `RfmError` for names that are missing or unknown, with the part to which they belong."""
        check_names("ServerCore", {**self.KEPT, **PARTS}, state)
        restore(self, self.KEPT, {name: state[name] for name in self.KEPT})
        histories = self.sessions.histories_by_epoch()
        for epoch, history in state["ended_histories"].items():
            histories[epoch] = TaskHistory()
            restore(histories[epoch], TaskHistory.KEPT, history)
        self.mailboxes.restore_requests(state["mailboxes"], histories)
        if len(state["engines"]) != len(self.queues):
            raise RfmError(f"the snapshot is of a server with {len(state['engines'])} engines, not with {len(self.queues)}")
        for number, (lane, each) in enumerate(zip(self.queues, state["engines"], strict=True)):
            lane.restore_batches(each, number, histories)
        self._ended.clear()
        for each in state["ended_batches"]:
            check_names("_Ended", ENDED_NAMES, each)
            work = work_from({name: each[name] for name in WORK_NAMES}, each["engine"], histories)
            self._ended[work] = _Ended(each["ended_s"], each["load"], each["shared_rows"], each["delay_correction"])

    # --- control plane ---

    def open_session(self, request: SessionRequest) -> SessionGrant:
        """Open a session. Raises: `ContractError`, `CapacityError`, `DrainingError`, `BadMessageError` as `ServerSessions.open`
        does."""
        rows = self.queues[0].pipelined_rows if self.config.batching == CONTINUOUS else 0
        grant = self.sessions.open(request, self._figures.load(), rows)
        self._forget((request.robot, request.component))
        self._promise()
        return grant

    def _promise(self) -> None:
        """Reserve rows for the open sessions."""
        self.queues[0].promise(self.sessions.pipelined_rows)

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        session = self.sessions.get((robot, component), epoch)
        if session and self.sessions.close(session.key, epoch):
            self._forget(session.key)
            self._promise()
            self.mailboxes.task_ended(session.history)

    def set_accepting(self, accepting: bool) -> None:
        """Set whether new sessions and requests are admitted. False: only the present ones are finished."""
        self.sessions.draining = not accepting

    def refuse_waiting(self) -> list[RequestId]:
        return self.mailboxes.empty()

    def collect_sessions(self, absent: Collection[SessionKey], now_s: float) -> list[tuple[SessionKey, str]]:
        gone = self.sessions.collect(absent, now_s)
        for key, _ in gone:
            self._forget(key)
        self._promise()
        return gone

    def _forget(self, key: SessionKey) -> None:
        """Discard the waiting request of a session that has ended."""
        robot, component = key
        if component in self._latency_baselines:
            self._latency_baselines[component].spacing.forget(robot)
        if self.mailboxes.discard(key):
            self.faults.append(SESSION_ENDED)

    def reset_episode(self, robot: str, component: str, epoch: int, episode: int) -> bool:
        """Begin an episode; return True if a request of an earlier one waited. Raises: `SessionError` if the session is not
        open."""
        self.sessions.reset_episode((robot, component), epoch, episode)
        return self.mailboxes.discard((robot, component), before_episode=episode)

    def resize(self, batch_size: int, max_sessions: int) -> None:
        """Set the limits. batch_size: one that the engine runs. max_sessions: 0 leaves it unchanged."""
        self.queues[0].resize(batch_size)
        self.sessions.max_sessions = max_sessions or self.sessions.max_sessions

    def reconfigure(self, config: ServerConfig) -> None:
        """Change the rules of dispatch and sessions. Raises: `ConfigurationError` for an unknown name, or for a change that open
        sessions exclude; then nothing has changed."""
        self.check(config)
        changes = config.dispatch != self.config.dispatch
        policy = CheckedPolicy(dispatch_policy(config.dispatch), self._on_fault) if changes else None
        self.mailboxes.dispatch_by(policy, config.batching)
        self.sessions.govern(config.sessions)
        self.config = config

    def check(self, config: ServerConfig) -> None:
        """Check a configuration without changing anything. Raises: `ConfigurationError` for what open sessions exclude."""
        if self.sessions.are_pipelined and config.batching != CONTINUOUS:
            problem, fix = f"{config.batching!r} while pipelined sessions are open", "close them first, or leave it `continuous`"
            raise ConfigurationError(problem, key="batching", fix=fix)

    def declare(self, rates_hz: Mapping[SessionKey, float]) -> None:
        self.sessions.declare(rates_hz)

    # --- requests ---

    def admitted(self, request: RequestId) -> ServerSession:
        """Return the session of a request, without changing anything.
        Raises: `BadMessageError`. A missing session is reported before all other problems."""
        session = self.sessions.admit(request)
        if self.sessions.draining:
            raise BadMessageError("draining", "this server is about to end")
        return session

    def charge(self, request: RequestId, now_s: float) -> ServerSession:
        """Charge a request to its session's quota. Raises: `BadMessageError` if it may not run or exceeds the quota."""
        session = self.admitted(request)
        self.sessions.charge(session, now_s)
        return session

    def unfit(self, request: RequestId, kind: str, problem: str) -> None:
        """Record that a charged request cannot be decoded. It changes nothing, and exists for recorders of the calls."""

    def deposit(self, request: InferenceRequest, observation: ObservationRequest, now_s: float) -> bool:
        """Enqueue a request; return True if it replaces an older one.
        Raises: `BadMessageError`, because its session may have closed since it was charged."""
        session = self.sessions.admit(request.id)
        session.sequence, session.episode = request.id.sequence, request.id.episode
        if not self.mailboxes.waiting:
            self._moved_s = now_s
        replaces = self.mailboxes.deposit(session, request, observation, now_s)
        if replaces:
            self._supersede(session)
        return replaces

    def superseded_early(self, request: RequestId) -> None:
        """Record that a request was dropped unread because a newer one of its session arrived."""
        if session := self.sessions.get((request.robot, request.component), request.session_epoch):
            self._supersede(session)
        else:  # the newer one belongs to another session
            self.faults.append(SESSION_ENDED)

    def _supersede(self, session: ServerSession) -> None:
        session.superseded += 1
        self._superseded += 1

    # --- batches ---

    def may_begin(self, queue_index: int, now_s: float) -> bool:
        """Return whether `begin` could return a batch. It changes nothing, and needs no lock."""
        if not self.mailboxes.waiting:
            return False
        lane = self.queues[queue_index]
        return not lane.is_full() and lane.backoff_until_s <= now_s

    def begin(self, queue_index: int, now_s: float) -> RunningBatch | None:
        """Return the batch that a tier runs next; None if nothing can begin now (`poll_at_s`)."""
        lane = self.queues[queue_index]
        if not queue_index and not lane.set_continuous(self.config.batching == CONTINUOUS, self.config.costs):
            return None  # running batches have to end first
        selection = self.mailboxes.select(self.queues, queue_index, now_s)
        if not queue_index:
            self.poll_at_s = selection.poll_at_s
        if not selection.batch:
            return None
        if lane.is_resting() and (len(self.queues) == 1 or all(other.is_resting() for other in self.queues)):
            self._figures.begun(now_s)
        self._begun += 1
        work = RunningBatch(tuple(selection.batch), now_s, queue_index, self._begun, selection.whole)
        lane.on_begun(work)
        self._moved_s = now_s
        return work

    def entered(self, iterations: Sequence[tuple[int, int]], now_s: float) -> tuple[int, ...]:
        """Record that rows have been perceived and return the works that did not enter, which the caller passes to `ended`.
        turns: (number of the work, solver steps that it takes) of the rows that entered."""
        flight = self._in_flight
        return tuple(flight.on_entered(iterations, now_s))

    def iterate(self, ready: Collection[int], duration_s: float, now_s: float) -> SolverStepDecision:
        """Return which of the `ready` rows in flight advance now, and which of all rows leave.
        took_s: duration of the previous turn; 0: there was none."""
        flight = self._in_flight
        flight.on_iteration(duration_s)
        entered = [work for work in self.queues[0].works if flight.rows[work.number].iterations_left]  # all other works are `ended`
        unwanted = [work for work in entered if self._is_over(work)]
        for work in unwanted:
            self.queues[0].remove(work)
        flight.pause(ready)
        advance = rows_to_advance(flight, [number for number in ready if number in flight.rows], now_s)
        if not advance and self.sessions.draining:  # the frames that they wait for will not come
            unwanted += self._abandoned([work for work in entered if work not in unwanted])
        moved = bool(flight.advanced)
        flight.advance(advance, now_s)
        if advance or unwanted:
            self._moved_s = now_s
        if (unwanted or moved) and self.queues[0].is_resting():
            self._figures.ended(now_s)
        return SolverStepDecision(tuple(advance), tuple(work.number for work in unwanted))

    @property
    def _in_flight(self) -> InFlightRows:
        flight = self.queues[0].view.in_flight
        assert flight is not None, "rows go on step by step only where they began so"
        return flight

    def _is_over(self, work: RunningBatch) -> bool:
        """Return whether the answer of a row is not needed any more, and count it if so."""
        (waiting,) = work.batch
        request = waiting.request.id
        session = self.sessions.get((request.robot, request.component), request.session_epoch)
        if session is None:
            self.faults.append(SESSION_ENDED)
        elif request.episode < session.episode:
            self.faults.append(STALE_EPISODE)
        elif request.sequence < session.sequence and waiting.request.pipelining is None and not waiting.history.overdue:
            waiting.history.overdue = True  # otherwise a robot that sends faster than the engine answers would get no answer
            self._supersede(session)
        else:
            return False
        return True

    def _abandoned(self, works: list[RunningBatch]) -> list[RunningBatch]:
        for work in works:
            self.queues[0].remove(work)
            self.faults.append(DRAINING)
        return works

    def refetches(self, now_s: float) -> list[RequestId]:
        stale = self.mailboxes.stale(self.queues[0], self.config.refetch_after_s, now_s)
        self._refetched += len(stale)
        return stale

    def ended(self, work: RunningBatch, answered: Sequence[bool], num_failed: int, now_s: float) -> float:
        """Record a finished batch and return the load; `reply` to each of its requests follows.
        answered: whether each request has an answer. num_failed: number of batches in a row without any answer."""
        rows, turn = self.queues[work.queue_index].on_ended(work, now_s, not any(answered), num_failed)
        self._moved_s = now_s
        latencies_s = tuple([now_s - waiting.arrived_s for i, waiting in enumerate(work.batch) if answered[i]])
        load = self._figures.ended(now_s, latencies_s, rows if latencies_s else 0)
        self._ended[work] = _Ended(now_s, load, rows, turn)
        return load

    def reply(self, work: RunningBatch, slot: int, answer: EngineReply | None, outlook: HorizonDecision) -> Reply | None:
        """Return the reply to the request at a position of a batch; positions are called in order.
        None: the engine has no answer, or the session has ended."""
        ended = self._ended[work] if slot < len(work.batch) - 1 else self._ended.pop(work)
        waiting = work.batch[slot]
        request = waiting.request.id
        session = self.sessions.get((request.robot, request.component), request.session_epoch)
        if answer is None:
            return None
        if session is None:
            self.faults.append(SESSION_ENDED)
            return None
        waiting.history.on_generated(work.begun_s, ended.at_s)
        queue_wait_s, inference_s = work.begun_s - waiting.arrived_s, ended.at_s - work.begun_s
        rows, phases = ended.rows or len(work.batch), answer.phases
        measured = phases.perception_s, phases.solver_s, phases.solver_steps
        usual, wait_s = self._latency_baselines[request.component], queue_wait_s + inference_s
        if self.queues[work.queue_index].view.in_flight is not None and waiting.request.pipelining is None:
            wait_s = max(wait_s, usual.spacing.turn_s(request.robot, waiting.arrived_s))
        unusual_s = usual.excess_delay_s(wait_s, len(self.sessions)) + ended.delay_correction * inference_s
        engaged = (rows, session.superseded, ended.load)
        served = ServingStats(queue_wait_s, inference_s, *engaged, *measured, unusual_s, waiting.request.decoding_s)
        session.superseded = 0
        self._served += 1
        self._figures.replied(served)
        held = waiting.request
        if held.pipelining is not None:
            held = self.queues[work.queue_index].observed_by(held, answer.ended_with)
        return reply_of(self.config.name, self.contract, waiting, answer, served, outlook, held)

    # --- figures ---

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy(len(self.sessions), self.sessions.limit, self._figures.load())

    @property
    def works(self) -> list[RunningBatch]:
        """Return the works that run, or whose replies are made."""
        return [work for lane in self.queues for work in lane.works] + list(self._ended)

    def work(self, number: int) -> RunningBatch:
        """Return the batch with a number, which runs or whose replies are made. Raises: `RfmError` when there is none."""
        for work in self.works:
            if work.number == number:
                return work
        raise RfmError(f"no batch {number} runs, and none with this number waits for its replies")

    def stalled_s(self, now_s: float) -> float:
        """Return for how long requests have waited or run while nothing began or ended. It needs no lock."""
        waiting_s = self._moved_s if len(self.mailboxes) else math.inf
        return max(0.0, now_s - min(self.queues[0].since_s, waiting_s))

    def snapshot(self, now_s: float) -> ServerSnapshot:
        """Return the figures of the status message, except refusals, which are counted elsewhere. Values older than the window are
        dropped."""
        latencies = self._figures.latencies_s(now_s)
        return ServerSnapshot(
            sessions=len(self.sessions),
            max_sessions=self.sessions.limit,
            waiting=len(self.mailboxes),
            dispatch=self.config.dispatch,
            batch_size=self.queues[0].batch_size,
            mean_batch_size=self._figures.mean_batch_size(),
            window_s=self.config.window_s,
            request_rate_hz=len(latencies) / self.config.window_s,
            latency_p50_s=quantile(latencies, 0.5),
            latency_p99_s=quantile(latencies, 0.99),
            load=self._figures.load(),
            served=self._served,
            superseded=self._superseded,
            refetched=self._refetched,
            refused={},
            histograms=deepcopy(self._figures.histograms),
        )


Handler = Callable[[ServerCore, Any, float], Any]
HANDLERS: Mapping[type, Handler] = {
    events.SessionRequested: lambda core, event, now_s: core.open_session(event.request),
    events.SessionClosed: lambda core, event, now_s: core.close_session(event.robot, event.component, event.session_epoch),
    events.DrainStarted: lambda core, event, now_s: core.set_accepting(False),
    events.DrainCanceled: lambda core, event, now_s: core.set_accepting(True),
    events.QueueCleared: lambda core, event, now_s: core.refuse_waiting(),
    events.LivenessChecked: lambda core, event, now_s: core.collect_sessions(event.absent, now_s),
    events.EpisodeStarted: lambda core, event, now_s: core.reset_episode(
        event.robot, event.component, event.session_epoch, event.episode
    ),
    events.LimitsChanged: lambda core, event, now_s: core.resize(event.batch_size, event.max_sessions),
    events.ServerConfigurationChanged: lambda core, event, now_s: core.reconfigure(event.config),
    events.RatesScheduled: lambda core, event, now_s: core.declare(event.rates_hz),
    events.AdmissionChecked: lambda core, event, now_s: core.admitted(event.request),
    events.RequestReceived: lambda core, event, now_s: core.charge(event.request, now_s),
    events.RequestRejected: lambda core, event, now_s: core.unfit(event.request, event.counter, event.problem),
    events.RequestEnqueued: lambda core, event, now_s: core.deposit(event.request, event.observation, now_s),
    events.RequestSuperseded: lambda core, event, now_s: core.superseded_early(event.request),
    events.EnginePolled: lambda core, event, now_s: core.begin(event.engine, now_s),
    events.BatchesPerceived: lambda core, event, now_s: core.entered(event.num_steps, now_s),
    events.SolverStepPolled: lambda core, event, now_s: core.iterate(event.ready, event.last_step_s, now_s),
    events.RefetchPolled: lambda core, event, now_s: core.refetches(now_s),
    events.BatchEnded: lambda core, event, now_s: core.ended(core.work(event.batch), event.has_answer, event.num_failed, now_s),
    events.AnswerReceived: lambda core, event, now_s: core.reply(
        core.work(event.batch), event.position, event.answer, event.horizon_decision
    ),
    events.FiguresRequested: lambda core, event, now_s: core.snapshot(now_s),
}
"""Class of an event -> function that handles it."""
