"""Engines of one server: the first is the edge, and the others, if any, receive its overflow (Kairos §3.2.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ros2_rfm_serving.dispatch import EngineView, InFlightRow, InFlightRows, ServiceTimes, StepCosts, WaitingRequest
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.dispatch.waiting_request import state_of_waiting, waiting_from
from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.server.engine_runner import OnFault
from ros2_rfm_serving.server.step_engine_runner import runner_of
from ros2_rfm_serving.types import InferenceRequest, RequestId
from ros2_rfm_serving.types.record import record, runtime_frozen
from ros2_rfm_serving.types.state import check_names, kept, restore, state_of

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
MAX_DOUBLINGS = 10


def backoff_s(num_failed: int) -> float:
    """Return the pause of a remote engine after `num_failed` batches in a row without an answer. The number may come from days of
    failures."""
    return min(MIN_BACKOFF_S * 2.0 ** min(num_failed - 1, MAX_DOUBLINGS), MAX_BACKOFF_S)


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineConfig:
    """Engine of a server and how it is used."""

    engine: Engine
    batch_size: int = 1
    max_concurrent: int = 1
    """Works in progress at once. A value above one is for an engine that batches continuously: each work is one request."""
    batches_in_flight: int = 1
    """Batches at once on their way to or from a remote engine, which runs one after the other. With only one, the engine would idle
    while answers and the next requests travel."""
    round_trip_s: float = 0.0
    """Round trip to a remote engine, as far as the times of its batches do not include it."""
    profile_s: tuple[float, ...] = ()
    """Initial seconds of a batch of 1, 2, ... rows; they are measured in any case."""


@runtime_frozen
@dataclass(frozen=True, eq=False, slots=True)
class RunningBatch:
    """Requests that run together."""

    batch: tuple[WaitingRequest, ...]
    begun_s: float
    queue_index: int = 0
    number: int = 0
    """Number among all works that began on this server."""
    whole: bool = False
    """The batch runs in one call, on an engine that could also advance rows step by step."""


WORK = kept("begun_s", "number", whole="whole")
"""Values that a snapshot keeps of a batch, beside its requests."""
WORK_NAMES = kept(*WORK, "requests")


def state_of_work(work: RunningBatch) -> dict[str, Any]:
    """Return a batch as values for a snapshot."""
    return {**state_of(work, WORK), "requests": [state_of_waiting(waiting) for waiting in work.batch]}


def work_from(state: Mapping[str, Any], engine: int, histories: Mapping[int, TaskHistory]) -> RunningBatch:
    """Return the batch that `state_of_work` described. histories: session epoch -> history of that session.
    Raises: `RfmError` as `waiting_from` does."""
    check_names("RunningBatch", WORK_NAMES, state)
    batch = tuple([waiting_from(each, histories) for each in state["requests"]])
    return RunningBatch(batch, state["begun_s"], engine, state["number"], state["whole"])


@record(frozen=True, slots=True)
class EngineLimits:
    """Limits of one engine and of its use. They affect decisions about its requests and never change."""

    max_batch_size: int
    max_num_steps: int
    """Solver steps that a request may ask for; 0: the model's own number alone."""
    max_rows: int
    """Maximum rows in flight that advance one solver step at a time; 0: the engine runs only whole batches."""
    max_concurrent: int
    batches_in_flight: int
    round_trip_s: float
    profile_s: tuple[float, ...]
    """Profile. This field and the three before it are as in `EngineConfig`."""


class ServiceDrift(NamedTuple):
    """Times of the batch size that deviates most from the profile, s."""

    rows: int
    profiled_s: float
    full_s: float
    """Profiled time of a full batch; an engine that pads batches takes it for any size."""
    measured_s: float


class EngineQueue:
    """Queue of a tier with its running batches."""

    KEPT: ClassVar = kept(
        *("batch_size", "backoff_until_s"), promised_rows="_promised", last_return_s="_last_returned_s", timing="view"
    )
    """Everything except the running batches and the rows in flight."""

    def __init__(self, config: EngineConfig, on_fault: OnFault, measured_s: Sequence[float] = ()) -> None:
        """Create an idle lane. measured_s: seconds of batches of 1, 2, ... rows, measured before the first request, used in place
        of the profile."""
        self.engine, self.view = config.engine, EngineView(0, ServiceTimes(measured_s or config.profile_s), config.round_trip_s)
        self.running = runner_of(config.engine, on_fault)
        self.max_rows = config.engine.max_rows if isinstance(config.engine, Stepping) else 0
        """Maximum rows of an engine that can advance step by step; 0: it cannot."""
        self._max_batch_size, self._max_num_steps = config.engine.max_batch_size, config.engine.contract.max_num_steps
        self.backoff_until_s = -math.inf
        """Time before which a failing remote engine gets no request. Otherwise it would seem quick, and get the more requests."""
        self.batch_size = 0
        self._is_request_level, self._profile_s = config.max_concurrent > 1, config.profile_s
        self.max_concurrent = config.max_concurrent if self._is_request_level else config.batches_in_flight
        """Works in progress at once."""
        self._expected_end_s: dict[RunningBatch, float] = {}
        self._last_returned_s = -math.inf
        """Time at which the last batch of an engine with several in flight came back."""
        self._promised = 0
        self.resize(self.prepare(config.batch_size))

    @property
    def limits(self) -> EngineLimits:
        """Return the limits from which a lane of a restored core is made."""
        return EngineLimits(
            self._max_batch_size,
            self._max_num_steps,
            self.max_rows,
            self.max_concurrent if self._is_request_level else 1,
            1 if self._is_request_level else self.max_concurrent,
            self.view.round_trip_s,
            tuple(self._profile_s),
        )

    def state(self) -> dict[str, Any]:
        """Return the running batches, the measurements and the variable limits, for a snapshot. The engine itself is not kept."""
        batches = [{**state_of_work(work), "expected_end_s": end_s} for work, end_s in self._expected_end_s.items()]
        rows = None if self.view.in_flight is None else self.view.in_flight.state()
        return {**state_of(self, self.KEPT), "batches": batches, "in_flight": rows}

    def restore_batches(self, state: Mapping[str, Any], number: int, histories: Mapping[int, TaskHistory]) -> None:
        """Continue from a value of `state`. number: position of this engine. histories: session epoch -> history of that session.
        Raises: `RfmError` for names that are missing or unknown, and for requests of unknown sessions."""
        check_names("EngineQueue", {**self.KEPT, "batches": "batches", "in_flight": "in_flight"}, state)
        restore(self, self.KEPT, {name: state[name] for name in self.KEPT})
        self.resize(self.batch_size)
        self._expected_end_s.clear()
        for each in state["batches"]:
            check_names("RunningBatch", {**WORK_NAMES, "expected_end_s": "expected_end_s"}, each)
            work = work_from({name: each[name] for name in WORK_NAMES}, number, histories)
            self._expected_end_s[work] = each["expected_end_s"]
        if state["in_flight"] is not None:
            self.view.in_flight = InFlightRows(self._capacity, promised=self._promised)
            self.view.in_flight.restore_rows(state["in_flight"], {work.number: work.batch[0] for work in self._expected_end_s})

    def prepare(self, batch_size: int) -> int:
        """Prepare the engine for a batch size and return the size, limited to what it runs. Raises: `ModelError` when it cannot."""
        batch_size = min(batch_size, self._max_batch_size)
        if self._rows(batch_size) != self.view.batch_size:
            self.engine.prepare(self._rows(batch_size))
        return batch_size

    def resize(self, batch_size: int) -> None:
        """Change the batch size to one that was prepared."""
        self.batch_size, self.view.batch_size = batch_size, self._rows(batch_size)
        self._update_capacity()

    def promise(self, pipelined_rows: int) -> None:
        """Reserve rows for open pipelined sessions: with fewer, the frames that their rows in flight wait for could not enter."""
        self._promised = pipelined_rows
        self._update_capacity()

    def _update_capacity(self) -> None:
        if self.view.in_flight is not None:
            self.view.in_flight.capacity, self.view.in_flight.promised = self._capacity, self._promised

    def _rows(self, batch_size: int) -> int:
        return 1 if self._is_request_level else batch_size

    @property
    def _capacity(self) -> int:
        """Return the maximum rows in flight: reserved rows plus `batch_size` others, or all that memory allows if `batch_size` is
        the largest."""
        wanted = self.max_rows if self.batch_size == self._max_batch_size else self.batch_size + self._promised
        return min(wanted, self.max_rows)

    @property
    def pipelined_rows(self) -> int:
        """Return the rows that pipelined sessions may have in flight together. Their rows stay between two frames, and others must
        not starve."""
        return max(0, self.max_rows - 1)

    def set_continuous(self, continuous: bool, costs: StepCosts) -> bool:
        """Change an idle lane to rows one by one with these costs, or to whole batches. Return False if it still runs the other
        way."""
        continuous = continuous and self.max_rows > 0
        if continuous == (self.view.in_flight is not None):
            return True
        if self.is_idle:
            self.view.in_flight = InFlightRows.from_costs(self._capacity, self._promised, costs) if continuous else None
        return self.is_idle

    @property
    def is_idle(self) -> bool:
        return not self._expected_end_s

    def is_resting(self) -> bool:
        """Return whether nothing runs except rows that wait for their robots' next frames."""
        return not self._expected_end_s or (self._is_iteration_level and all(row.paused for row in self._in_flight_rows))

    @property
    def _is_iteration_level(self) -> bool:
        """Return whether the running work, if any, advances row by row."""
        return self.view.in_flight is not None and not self.view.in_flight.num_whole

    @property
    def _in_flight_rows(self) -> tuple[InFlightRow, ...]:
        return () if self.view.in_flight is None else tuple(self.view.in_flight.rows.values())

    def is_full(self) -> bool:
        flight = self.view.in_flight
        return len(self._expected_end_s) >= self.max_concurrent if flight is None else flight.is_full

    @property
    def num_moving(self) -> int:
        """Return the rows that advance with the next turn, as far as is known."""
        return 0 if self.view.in_flight is None else len(self.view.in_flight.moving())

    def can_run(self, waiting: WaitingRequest) -> bool:
        """Return whether a request may run here. A pipelined session needs stepwise rows, at most as many as agreed; another
        session must not be owed the answer to a row in flight."""
        request, flight = waiting.request, self.view.in_flight
        if request.num_steps > self._max_num_steps:
            return False  # a remote model may support only its own number
        if flight is None:
            return request.pipelining is None
        if request.pipelining is None:
            history = waiting.history
            return not history.overdue or all(row.waiting.history is not history for row in flight.rows.values())
        return len(self._of_session(request.id)) < request.pipelining.depth

    def observed_by(self, request: InferenceRequest, sequence: int | None) -> InferenceRequest:
        """Return the request of the same session with this sequence number that runs beside it; otherwise the request itself."""
        if request.pipelining is None:
            return request
        others = (each for each in self._of_session(request.id) if each.id.sequence == sequence)
        return next(others, request)

    def _of_session(self, request: RequestId) -> list[InferenceRequest]:
        """Return the running pipelined requests of the same session and episode."""
        same = (request.robot, request.component, request.session_epoch, request.episode)
        running = [waiting.request for work in self._expected_end_s for waiting in work.batch]
        ids = [(each, each.id) for each in running if each.pipelining is not None]
        return [each for each, id in ids if (id.robot, id.component, id.session_epoch, id.episode) == same]

    @property
    def works(self) -> list[RunningBatch]:
        return list(self._expected_end_s)

    @property
    def drift(self) -> ServiceDrift | None:
        """Return the largest deviation from the profile. None: there is no profile, or requests share the engine, so that the time
        of each depends on the others."""
        if self._is_request_level or self.view.in_flight is not None or not self._profile_s:
            return None
        times, full_s = self.view.times, self._profile_s[-1]
        sizes = [ServiceDrift(rows, s, full_s, times.seconds(rows)) for rows, s in enumerate(self._profile_s, start=1)]
        return max(sizes, key=lambda size: size.measured_s / max(size.profiled_s, 1e-9))

    @property
    def since_s(self) -> float:
        """Return when the work that has not moved for longest began or advanced by a solver step; inf: nothing runs. It needs no
        lock."""
        if self._is_iteration_level:
            return min((row.moved_s for row in self._in_flight_rows if not (row.paused and row.is_pipelined)), default=math.inf)
        return min((work.begun_s for work in tuple(self._expected_end_s)), default=math.inf)

    def on_begun(self, work: RunningBatch) -> None:
        self._expected_end_s[work] = work.begun_s + self.view.latency_s(len(work.batch))
        flight = self.view.in_flight
        if flight is not None and work.whole:
            flight.on_whole_batch(len(work.batch))
        elif flight is not None:
            flight.on_begun(work.number, work.batch[0], work.begun_s)
        self._update_free_s()

    def on_ended(self, work: RunningBatch, now_s: float, failed: bool, num_failed: int) -> tuple[int, float]:
        """Record the end of a work; return the rows that shared the engine with each of its rows, and the turn of a row that went
        step by step (`types/desynchronisation.py`), which is 0 for a batch.

        failed: no request got an answer, for the `num_failed`th time in a row.
        """
        row = self.remove(work)
        shared = len(work.batch) > 1 or (row is not None and row.num_in_last_call > 1)
        for waiting in () if work.queue_index else work.batch:
            history = waiting.history
            history.suspect = failed and (shared or history.suspect)
            history.overdue = False
        if failed and work.queue_index:
            self.backoff_until_s = now_s + backoff_s(num_failed)
        elif not failed and row is None:
            self._observe(work, now_s)
        self._update_free_s()
        if row is not None:
            return row.mean_rows, row.delay_correction
        return len(work.batch), 0.0

    def _observe(self, work: RunningBatch, now_s: float) -> None:
        """Measure the engine's time for a work: from its arrival there, or from the return of the work before it."""
        there_s = work.begun_s + self.view.round_trip_s
        if self._is_pipelined:
            there_s, self._last_returned_s = min(max(there_s, self._last_returned_s), now_s), now_s
        self.view.times.observe(len(work.batch), now_s - there_s)

    def remove(self, work: RunningBatch) -> InFlightRow | None:
        """Remove a work from the engine; return its row in flight, or None if it was none."""
        del self._expected_end_s[work]
        if self.view.in_flight is None:
            return None
        if work.whole:
            self.view.in_flight.num_whole = 0
            return None
        return self.view.in_flight.rows.pop(work.number)

    @property
    def _is_pipelined(self) -> bool:
        """Return whether several batches may be under way, one behind the other."""
        return not self._is_request_level and self.max_concurrent > 1

    def _update_free_s(self) -> None:
        if self._is_pipelined:
            free_there_s, way_s = self._last_returned_s - self.view.round_trip_s / 2, self.view.round_trip_s / 2
            for work in self._expected_end_s:
                free_there_s = max(work.begun_s + way_s, free_there_s) + self.view.times.seconds(len(work.batch))
                self._expected_end_s[work] = free_there_s + way_s
            self.view.remote_free_s = free_there_s
        self.view.free_s = min(self._expected_end_s.values()) if self.is_full() else -math.inf


def overflow(ranked: Sequence[WaitingRequest], edge: EngineView, cloud: EngineView, now_s: float) -> Sequence[WaitingRequest]:
    """Return the requests of `ranked` that the cloud, round trip included, serves sooner than the edge would begin them (Algorithm
    1, phase 3)."""
    own = 0 if edge.in_flight is not None else edge.times.saturation(edge.batch_size)
    for first in range(own, len(ranked)):
        if cloud.answers_in_s(min(cloud.batch_size, len(ranked) - first), now_s) < edge.begins_s(first, now_s):
            return ranked[first:]
    return ()
