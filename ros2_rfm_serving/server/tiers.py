"""Engines of one server: the first is the edge, the others, if any, take what overflows to them (Kairos §3.2.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ros2_rfm_serving.dispatch import EngineView, Flight, Row, ServiceTimes, StepCosts, Waiting
from ros2_rfm_serving.dispatch.history import History
from ros2_rfm_serving.dispatch.waiting import state_of_waiting, waiting_from
from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.server.running import Mishap
from ros2_rfm_serving.server.stepping import running_of
from ros2_rfm_serving.types import InferenceRequest, RequestId
from ros2_rfm_serving.types.record import record, sealed
from ros2_rfm_serving.types.state import check_names, kept, restore, state_of

FIRST_REST_S, LAST_REST_S = 0.5, 30.0
MOST_DOUBLINGS = 10


def rest_s(num_failed: int) -> float:
    """After so many batches without an answer in a row, which may be days of them."""
    return min(FIRST_REST_S * 2.0 ** min(num_failed - 1, MOST_DOUBLINGS), LAST_REST_S)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tier:
    engine: Engine
    batch_size: int = 1
    max_concurrent: int = 1
    """Works in progress at once. More than one when the engine batches continuously: then each is one request."""
    batches_in_flight: int = 1
    """On their way to an engine that is elsewhere, or back, at once; it runs them one after the other. With one alone it would
    stand idle while the answers of a batch and the requests of the next are on their way."""
    round_trip_s: float = 0.0
    """To an engine that is elsewhere, as far as its batches do not include it."""
    profile_s: tuple[float, ...] = ()
    """Seconds of a batch of 1, 2, ... rows, to begin with; they are measured in any case."""


@sealed
@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """Requests that run together."""

    batch: tuple[Waiting, ...]
    begun_s: float
    tier: int = 0
    number: int = 0
    """Of all that began here."""
    whole: bool = False
    """In one call, on an engine whose rows could go on step by step."""


WORK = kept("begun_s", "number", whole="whole")
"""What a snapshot keeps of a batch, beside its requests."""
WORK_NAMES = kept(*WORK, "requests")


def state_of_work(work: Work) -> dict[str, Any]:
    """Return a batch as values for a snapshot."""
    return {**state_of(work, WORK), "requests": [state_of_waiting(waiting) for waiting in work.batch]}


def work_from(state: Mapping[str, Any], engine: int, histories: Mapping[int, History]) -> Work:
    """Return what `state_of_work` was given. histories: session epoch -> history of that session. Raises: `RfmError`."""
    check_names("Work", WORK_NAMES, state)
    batch = tuple([waiting_from(each, histories) for each in state["requests"]])
    return Work(batch, state["begun_s"], engine, state["number"], state["whole"])


@record(frozen=True, slots=True)
class EngineLimits:
    """Limits of one engine and of how it is served, which decide about its requests and never change."""

    max_batch_size: int
    max_num_steps: int
    """Solver steps that a request may ask for; 0: the model's own number alone."""
    max_rows: int
    """Rows in flight that go on one solver step at a time; 0: it runs whole batches alone."""
    max_concurrent: int
    batches_in_flight: int
    round_trip_s: float
    profile_s: tuple[float, ...]
    """These four are as in `Tier`."""


class Drift(NamedTuple):
    """Of the batches that take longest compared with the profile, s."""

    rows: int
    profiled_s: float
    full_s: float
    """By the profile, of a full batch: an engine that fills batches up takes this for any."""
    measured_s: float


class Lane:
    """A tier at work."""

    KEPT: ClassVar = kept(*("batch_size", "rests_until_s"), promised_rows="_promised", last_return_s="_came_back_s", timing="view")
    """All but the batches that run, and the rows in flight."""

    def __init__(self, tier: Tier, mishap: Mishap, measured_s: Sequence[float] = ()) -> None:
        """measured_s: of batches of 1, 2, ... rows, before anybody asked: to begin with, in place of the profile."""
        self.engine, self.view = tier.engine, EngineView(0, ServiceTimes(measured_s or tier.profile_s), tier.round_trip_s)
        self.running = running_of(tier.engine, mishap)
        self.max_rows = tier.engine.max_rows if isinstance(tier.engine, Stepping) else 0
        """Of an engine whose rows can go on step by step; 0: it cannot."""
        self._max_batch_size, self._max_num_steps = tier.engine.max_batch_size, tier.engine.contract.max_num_steps
        self.rests_until_s = -math.inf
        """An engine elsewhere that gives no answers is not asked before: it would seem quick, and be asked the more."""
        self.batch_size = 0
        self._one_by_one, self._profile_s = tier.max_concurrent > 1, tier.profile_s
        self.max_concurrent = tier.max_concurrent if self._one_by_one else tier.batches_in_flight
        """Works in progress at once."""
        self._ends_s: dict[Work, float] = {}
        self._came_back_s = -math.inf
        """The last batch of an engine that has several in flight."""
        self._promised = 0
        self.resize(self.prepare(tier.batch_size))

    @property
    def limits(self) -> EngineLimits:
        """Return what a lane of a restored core is made from."""
        return EngineLimits(
            self._max_batch_size,
            self._max_num_steps,
            self.max_rows,
            self.max_concurrent if self._one_by_one else 1,
            1 if self._one_by_one else self.max_concurrent,
            self.view.round_trip_s,
            tuple(self._profile_s),
        )

    def state(self) -> dict[str, Any]:
        """Return what runs, what was measured, and the limits that may change, for a snapshot. The engine itself is not kept."""
        batches = [{**state_of_work(work), "expected_end_s": end_s} for work, end_s in self._ends_s.items()]
        rows = None if self.view.flight is None else self.view.flight.state()
        return {**state_of(self, self.KEPT), "batches": batches, "in_flight": rows}

    def restore_batches(self, state: Mapping[str, Any], number: int, histories: Mapping[int, History]) -> None:
        """Continue from what `state` returned. number: of this engine. histories: session epoch -> history of that session.

        Raises: `RfmError` for names that are missing or unknown, and for requests of unknown sessions.
        """
        check_names("Lane", {**self.KEPT, "batches": "batches", "in_flight": "in_flight"}, state)
        restore(self, self.KEPT, {name: state[name] for name in self.KEPT})
        self.resize(self.batch_size)
        self._ends_s.clear()
        for each in state["batches"]:
            check_names("Work", {**WORK_NAMES, "expected_end_s": "expected_end_s"}, each)
            work = work_from({name: each[name] for name in WORK_NAMES}, number, histories)
            self._ends_s[work] = each["expected_end_s"]
        if state["in_flight"] is not None:
            self.view.flight = Flight(self._capacity, promised=self._promised)
            self.view.flight.restore_rows(state["in_flight"], {work.number: work.batch[0] for work in self._ends_s})

    def prepare(self, batch_size: int) -> int:
        """Of those that were asked for, what the engine runs, ready for it. Raises: `ModelError` when it cannot."""
        batch_size = min(batch_size, self._max_batch_size)
        if self._rows(batch_size) != self.view.batch_size:
            self.engine.prepare(self._rows(batch_size))
        return batch_size

    def resize(self, batch_size: int) -> None:
        """To what was prepared."""
        self.batch_size, self.view.batch_size = batch_size, self._rows(batch_size)
        self._make_room()

    def promise(self, pipelined_rows: int) -> None:
        """To pipelined sessions that are open: with fewer, frames could not enter for which their rows in flight wait."""
        self._promised = pipelined_rows
        self._make_room()

    def _make_room(self) -> None:
        if self.view.flight is not None:
            self.view.flight.capacity, self.view.flight.promised = self._capacity, self._promised

    def _rows(self, batch_size: int) -> int:
        return 1 if self._one_by_one else batch_size

    @property
    def _capacity(self) -> int:
        """Rows in flight: those that were promised, and `batch_size` of all others, or as many as there is memory for where
        that is as large as can be."""
        wanted = self.max_rows if self.batch_size == self._max_batch_size else self.batch_size + self._promised
        return min(wanted, self.max_rows)

    @property
    def pipelined_rows(self) -> int:
        """That pipelined sessions may have in flight together: theirs stay there between two frames, and others must not starve."""
        return max(0, self.max_rows - 1)

    def become(self, continuous: bool, costs: StepCosts) -> bool:
        """Rows one by one, which take so long, or whole batches; only while it is idle. False: something runs the other way."""
        continuous = continuous and self.max_rows > 0
        if continuous == (self.view.flight is not None):
            return True
        if self.is_idle:
            self.view.flight = Flight.knowing(self._capacity, self._promised, costs) if continuous else None
        return self.is_idle

    @property
    def is_idle(self) -> bool:
        return not self._ends_s

    def rests(self) -> bool:
        """Nothing runs, but for rows that wait for their robots' next frames."""
        return not self._ends_s or (self._goes_by_rows and all(row.paused for row in self._flight_rows))

    @property
    def _goes_by_rows(self) -> bool:
        """What runs, if anything does."""
        return self.view.flight is not None and not self.view.flight.num_whole

    @property
    def _flight_rows(self) -> tuple[Row, ...]:
        return () if self.view.flight is None else tuple(self.view.flight.rows.values())

    def is_full(self) -> bool:
        flight = self.view.flight
        return len(self._ends_s) >= self.max_concurrent if flight is None else flight.is_full

    @property
    def num_moving(self) -> int:
        """Rows that go on, as far as is known."""
        return 0 if self.view.flight is None else len(self.view.flight.moving())

    def takes(self, waiting: Waiting) -> bool:
        """Of a pipelined session, only rows that go on step by step, and no more of them at once than it has agreed upon; of
        another one, none while it is owed the answer to one in flight."""
        request, flight = waiting.request, self.view.flight
        if request.num_steps > self._max_num_steps:
            return False  # elsewhere a model may have its own number alone
        if flight is None:
            return request.pipelining is None
        if request.pipelining is None:
            history = waiting.history
            return not history.owed or all(row.waiting.history is not history for row in flight.rows.values())
        return len(self._of_session(request.id)) < request.pipelining.depth

    def asked_with(self, request: InferenceRequest, sequence: int | None) -> InferenceRequest:
        """That of the same session which has this number and runs beside it; else itself."""
        if request.pipelining is None:
            return request
        others = (each for each in self._of_session(request.id) if each.id.sequence == sequence)
        return next(others, request)

    def _of_session(self, request: RequestId) -> list[InferenceRequest]:
        """Of its episode."""
        same = (request.robot, request.component, request.session_epoch, request.episode)
        running = [waiting.request for work in self._ends_s for waiting in work.batch]
        ids = [(each, each.id) for each in running if each.pipelining is not None]
        return [each for each, id in ids if (id.robot, id.component, id.session_epoch, id.episode) == same]

    @property
    def works(self) -> list[Work]:
        return list(self._ends_s)

    @property
    def drift(self) -> Drift | None:
        """None: there is no profile to compare with, or requests share the engine, so that each takes as long as others let it."""
        if self._one_by_one or self.view.flight is not None or not self._profile_s:
            return None
        times, full_s = self.view.times, self._profile_s[-1]
        sizes = [Drift(rows, s, full_s, times.seconds(rows)) for rows, s in enumerate(self._profile_s, start=1)]
        return max(sizes, key=lambda size: size.measured_s / max(size.profiled_s, 1e-9))

    @property
    def since_s(self) -> float:
        """When what has not moved for longest began, or went on by a solver step; inf: nothing runs. Takes no lock."""
        if self._goes_by_rows:
            return min((row.moved_s for row in self._flight_rows if not (row.paused and row.is_pipelined)), default=math.inf)
        return min((work.begun_s for work in tuple(self._ends_s)), default=math.inf)

    def begun(self, work: Work) -> None:
        self._ends_s[work] = work.begun_s + self.view.latency_s(len(work.batch))
        flight = self.view.flight
        if flight is not None and work.whole:
            flight.begun_whole(len(work.batch))
        elif flight is not None:
            flight.begun(work.number, work.batch[0], work.begun_s)
        self._expect()

    def ended(self, work: Work, now_s: float, failed: bool, num_failed: int) -> tuple[int, float]:
        """failed: nobody got an answer, for the `num_failed`th time in a row. Rows that shared the engine with each of it, and the
        turn of a row that went step by step (`types/phase.py`); 0 of a batch."""
        row = self.left(work)
        shared = len(work.batch) > 1 or (row is not None and row.together > 1)
        for waiting in () if work.tier else work.batch:
            history = waiting.history
            history.suspect = failed and (shared or history.suspect)
            history.owed = False
        if failed and work.tier:
            self.rests_until_s = now_s + rest_s(num_failed)
        elif not failed and row is None:
            self._observe(work, now_s)
        self._expect()
        if row is not None:
            return row.mean_rows, row.turn
        return len(work.batch), 0.0

    def _observe(self, work: Work, now_s: float) -> None:
        """What the engine took for it: from when it was there, and had come back with what was ahead of it."""
        there_s = work.begun_s + self.view.round_trip_s
        if self._goes_in_file:
            there_s, self._came_back_s = min(max(there_s, self._came_back_s), now_s), now_s
        self.view.times.observe(len(work.batch), now_s - there_s)

    def left(self, work: Work) -> Row | None:
        """It is no business of the engine any more. What it was as a row in flight; None: it was none."""
        del self._ends_s[work]
        if self.view.flight is None:
            return None
        if work.whole:
            self.view.flight.num_whole = 0
            return None
        return self.view.flight.rows.pop(work.number)

    @property
    def _goes_in_file(self) -> bool:
        """Several batches are under way, one behind the other."""
        return not self._one_by_one and self.max_concurrent > 1

    def _expect(self) -> None:
        if self._goes_in_file:
            free_there_s, way_s = self._came_back_s - self.view.round_trip_s / 2, self.view.round_trip_s / 2
            for work in self._ends_s:
                free_there_s = max(work.begun_s + way_s, free_there_s) + self.view.times.seconds(len(work.batch))
                self._ends_s[work] = free_there_s + way_s
            self.view.free_there_s = free_there_s
        self.view.free_s = min(self._ends_s.values()) if self.is_full() else -math.inf


def overflow(ranked: Sequence[Waiting], edge: EngineView, cloud: EngineView, now_s: float) -> Sequence[Waiting]:
    """Those of `ranked` whom the cloud, round trip included, serves sooner than the edge would begin to (Algorithm 1, phase 3)."""
    own = 0 if edge.flight is not None else edge.times.saturation(edge.batch_size)
    for first in range(own, len(ranked)):
        if cloud.answers_in_s(min(cloud.batch_size, len(ranked) - first), now_s) < edge.begins_s(first, now_s):
            return ranked[first:]
    return ()
