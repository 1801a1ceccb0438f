"""`batching: continuous`: rows join a running batch, go on together and leave it, each for itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from ros2_rfm_serving.dispatch import EngineView, InFlightRows, ServiceTimes, WaitingRequest
from ros2_rfm_serving.dispatch.batch_entry import batch_entry, rows_to_advance
from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.engine_queues import EngineConfig
from ros2_rfm_serving.server.horizon import HorizonDecision, horizon_decisions
from ros2_rfm_serving.server.intake import decoded_request, readying
from ros2_rfm_serving.server.sessions import ServerSession, ServerSessions
from ros2_rfm_serving.types import (
    ActionChunk,
    EngineReply,
    ExecutionReport,
    HorizonRequest,
    InferenceRequest,
    OutputKind,
    Reply,
    SessionSharing,
)
from ros2_rfm_serving.types.desynchronisation import LatencyBaseline
from test.unit.fakes import CONTRACT, FakeEngine, observation, session_request
from test.unit.server.rows_machine import Machine
from test.unit.stepping import FakeStepping

PERCEIVE_S, STEP_S = 0.01, 0.1


class Rig:
    """Steps of an engine by hand, at times of our choice."""

    def __init__(
        self, engine: FakeEngine | None = None, robot_executes_s: Mapping[str, float] = MappingProxyType({}), **config: object
    ) -> None:
        self.now_s = 0.0
        self._executes_s = robot_executes_s
        """For how long those robots have actions"""
        self.engine = engine if engine is not None else FakeStepping(self.spend, lambda rows: PERCEIVE_S, lambda rows: STEP_S)
        made = ServerConfig(**{"name": "s1", "batch_size": 8, "batching": "continuous", "max_sessions": 16, **config})  # type: ignore[arg-type]
        self.server = ModelServer(made, self.engine)  # type: ignore[arg-type]
        self._sessions: dict[str, tuple[int, int]] = {}

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> float:
        self.now_s += 1e-3
        return self.now_s

    def ask(self, robot: str, episode: int = 1, **session: object) -> None:
        epoch, sequence = self._sessions.get(robot, (0, 0))
        epoch = epoch or self.server.open_session(session_request(robot, **session)).session_epoch
        self._sessions[robot] = epoch, sequence + 1
        with self.server.counting_refusals():
            report = ExecutionReport(executing_s=0.1, remaining_s=self._executes_s.get(robot, 0.0))
            self.server.submit(observation(epoch, sequence + 1, robot, episode, report=report), self.clock())

    def epoch(self, robot: str) -> int:
        return self._sessions[robot][0]

    def step(self, times: int = 1) -> list[Reply]:
        return [reply for _ in range(times) for reply in self.server.loop.step(self.clock)]

    def until_it_sleeps(self) -> list[Reply]:
        """As an engine's thread goes on until it waits to be woken."""
        replies, moved = list[Reply](), True
        while moved or self.server.loop.poll_at_s <= self.now_s:
            moved, ended = self.server.loop.round(self.server.loop.begin(self.clock()), self.clock)
            replies += self.server.loop.complete_all(ended, self.clock())
        return replies

    @property
    def stepping(self) -> FakeStepping:
        assert isinstance(self.engine, FakeStepping)
        return self.engine


def robots(replies: list[Reply]) -> list[str]:
    return [reply.id.robot for reply in replies]


def test_a_request_joins_a_running_batch_and_each_is_answered_when_it_is_done() -> None:
    rig = Rig()
    rig.ask("r1")
    assert rig.step() == []
    rig.ask("r2")
    assert rig.step() == []
    assert robots(rig.step()) == ["r1"] and robots(rig.step()) == ["r2"]
    assert rig.stepping.turns == [[1], [1, 2], [1, 2], [2]] and rig.stepping.entered == [[1], [2]]
    assert rig.server.is_idle and rig.server.snapshot(rig.now_s).served == 2


def test_who_waits_together_is_perceived_together_and_is_told_how_many_rows_shared_its_turns() -> None:
    rig = Rig()
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    replies = rig.step(3)
    assert rig.stepping.entered == [[1, 2, 3]] and robots(replies) == ["r1", "r2", "r3"]
    assert [reply.served.batch_size for reply in replies] == [3, 3, 3]
    assert all(isinstance(reply, ActionChunk) and reply.chunk_model[0, 0] == 1.0 for reply in replies)


def test_who_is_answered_together_is_told_what_it_would_have_been_one_after_the_other() -> None:
    """By arrival: the first next asks earlier than on average, the last later."""
    rig = Rig()
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    first, second, third = (reply.served for reply in rig.step(3))
    usual = LatencyBaseline()
    plain = [usual.excess_delay_s(served.queue_wait_s + served.inference_s, 3) for served in (first, second, third)]
    told = [served.excess_delay_s - s for served, s in zip((first, second, third), plain, strict=True)]
    assert told == pytest.approx([-first.inference_s / 3, 0.0, third.inference_s / 3])
    alone = Rig()
    alone.ask("r1")
    (reply,) = alone.step(3)
    assert reply.served.excess_delay_s == 0.0


def test_rows_that_end_in_one_turn_are_answered_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each reply says of its confidence costs as much for one row as for a batch."""
    looked = list[int]()

    def looking(horizons: Sequence[HorizonRequest], *rest: Any) -> list[HorizonDecision]:
        looked.append(len(horizons))
        return horizon_decisions(horizons, *rest)

    monkeypatch.setattr("ros2_rfm_serving.server.loop.horizon_decisions", looking)
    rig = Rig()
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    assert robots(rig.step(3)) == ["r1", "r2", "r3"] and looked == [3]


def test_no_more_rows_than_the_engine_has_room_for() -> None:
    rig = Rig(batch_size=2)
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    rig.step(2)
    assert rig.stepping.entered == [[1, 2]] and rig.server.num_waiting == 1
    assert robots(rig.step(4)) == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("how", "counter"), [("closes", "session_ended"), ("opens anew", "session_ended"), ("resets", "stale_episode")]
)
def test_a_row_whose_session_is_over_leaves_at_once(how: str, counter: str) -> None:
    rig = Rig()
    rig.ask("r1")
    rig.ask("r2")
    rig.step()
    if how == "closes":
        rig.server.close_session("r1", "system1", rig.epoch("r1"))
    elif how == "opens anew":
        rig.server.open_session(session_request("r1"))
    else:
        rig.server.reset_episode("r1", "system1", rig.epoch("r1"), 2)
    assert robots(rig.step(2)) == ["r2"]
    assert rig.stepping.left == [1] and rig.stepping.turns == [[1, 2], [2], [2]]
    assert rig.server.refused == {counter: 1} and rig.server.is_idle


def test_a_newer_request_takes_the_place_of_the_one_in_flight() -> None:
    rig = Rig()
    rig.ask("r1")
    rig.step()
    rig.ask("r1")
    replies = rig.step(4)
    assert [reply.id.sequence for reply in replies] == [2] and replies[0].served.superseded == 1
    assert rig.stepping.left == [1] and rig.server.snapshot(rig.now_s).superseded == 1 and rig.server.refused == {}


def test_who_asks_faster_than_the_engine_answers_is_answered_every_other_time() -> None:
    """Else each of its rows would leave for the next one, and none be done."""
    rig = Rig()
    answered = list[int]()
    for _ in range(30):
        rig.ask("fast")
        answered += [reply.id.sequence for reply in rig.step(2)]
        assert rig.server.loop.num_in_flight() <= 1
    assert len(answered) >= 10 and answered == sorted(answered)
    left = rig.server.loop.num_in_flight() + rig.server.num_waiting
    assert len(answered) + rig.server.snapshot(rig.now_s).superseded + left == 30


def test_only_what_has_solver_steps_and_no_state_between_chunks_is_served_so() -> None:
    with pytest.raises(ConfigurationError, match=r"batching: .*whole chunks only") as told:
        Rig(FakeEngine())
    assert told.value.key == "batching" and "fixed" in str(told.value)
    alone = FakeStepping()
    alone.contract = replace(CONTRACT, serving=SessionSharing.EXCLUSIVE)
    with pytest.raises(ConfigurationError, match="one session"):
        Rig(alone)
    words = FakeEngine()
    words.contract = replace(CONTRACT, output=OutputKind.JUDGEMENT)
    assert not Rig(words).server.loop.is_iteration_level(), "text models answer as they do"


def test_what_overflows_goes_by_whole_calls_whatever_that_engine_can() -> None:
    """Turns are of the server's own engine."""
    rig, other = Rig(batch_size=1), FakeStepping()
    own = FakeStepping(rig.spend, step_s=lambda rows: 1.0)
    rig.server = ModelServer(rig.server.config, own, EngineConfig(engine=other, batch_size=8))  # type: ignore[arg-type]
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    rig.step(2)
    work = rig.server.loop.begin(rig.clock(), queue_index=1)
    assert work is not None and not rig.server.loop.is_iteration_level(1)
    assert len(rig.server.loop.complete(work, rig.server.loop.run(work), rig.clock())) == len(work.batch)
    assert not other.entered and other.batches


def test_rows_in_flight_end_before_batches_run_and_the_other_way_round() -> None:
    rig = Rig()
    config = rig.server.config
    rig.ask("r1")
    rig.step()
    rig.server.reconfigure(replace(config, batching="fixed"))
    rig.ask("r2")
    assert rig.step() == [] and robots(rig.step()) == ["r1"] and rig.stepping.entered == [[1]]
    assert robots(rig.step()) == ["r2"] and len(rig.engine.batches) == 1
    rig.server.reconfigure(config)
    rig.ask("r1")
    assert robots(rig.step(3)) == ["r1"] and len(rig.engine.batches) == 1 and len(rig.stepping.turns) == 6


# --- what the brain decides -------------------------------------------------------------------------------------------------


class Laws:
    """Rows in flight of an engine whose costs are known, and requests that wait."""

    def __init__(self, perceive_s: Callable[[int], float], step_s: Callable[[int], float], num_turns: int) -> None:
        sizes = range(1, 17)
        self.flight = InFlightRows(16, ServiceTimes([*map(perceive_s, sizes)]), ServiceTimes([*map(step_s, sizes)]), num_turns)
        self.view = EngineView(16, ServiceTimes(), in_flight=self.flight)

    def in_flight(self, *turns_left: int, due_s: Sequence[float] = ()) -> None:
        for number, left in enumerate(turns_left):
            self.flight.on_begun(number, waiting(due_s[number] if due_s else math.inf), 0.0)
            row = self.flight.rows[number]
            row.iterations_left, row.num_iterations = left, self.flight.iterations_per_row - left

    def joins(self, num_waiting: int, due_s: float = math.inf, since_s: float = 0.0) -> bool:
        return bool(batch_entry([waiting(due_s, since_s)] * num_waiting, self.view, 0.0, lambda: [math.nan] * 1000).batch)

    def advancing(self) -> list[int]:
        return [*rows_to_advance(self.flight, list(self.flight.rows), 0.0)]


def waiting(due_s: float = math.inf, since_s: float = 0.0) -> WaitingRequest:
    request = decoded_request(observation(1), session_of(), CONTRACT, readying(CONTRACT, True, None))
    return WaitingRequest(request, 0, 0.0, since_s, math.inf, due_s, TaskHistory())


def session_of() -> ServerSession:
    sessions = ServerSessions(CONTRACT, 1, 1)
    sessions.open(session_request(), 0.0)
    session = sessions.get(("r1", "system1"), 1)
    assert session is not None
    return session


def test_rows_enter_at_once_where_perception_is_cheap_and_later_where_it_holds_up_those_that_are_about_to_end() -> None:
    cheap = Laws(lambda rows: 0.001, lambda rows: 0.01, 10)
    cheap.in_flight(9, 5)
    assert cheap.joins(1)
    dear = Laws(lambda rows: 0.03 + 0.007 * rows, lambda rows: 0.003 + 0.0007 * rows, 4)
    assert dear.joins(1), "nobody is held up"
    dear.in_flight(1, 1, 1)
    assert not dear.joins(1)


def test_as_many_groups_are_in_flight_as_serve_most() -> None:
    """One where perception is dear, more where it is cheap, unless nobody else comes."""

    def groups(perception_s: float, num_here: int, num_sessions: int = 1000) -> int:
        law = Laws(lambda rows: perception_s + 0.001 * rows, lambda rows: 0.005 + 0.0002 * rows, 10)
        return law.flight.num_groups(num_here, num_sessions)

    assert [groups(perception_s, 12) for perception_s in (0.0, 0.0025, 0.025, 0.1)] == [10, 3, 1, 1]
    assert groups(0.0025, 12, num_sessions=12) == 1, "all are here: full batches"
    assert groups(0.0025, 40) == 1, "a backlog forms full batches"
    assert groups(0.0025, 0) == groups(0.0025, 1) == 1


def test_who_finds_as_many_groups_as_pay_waits_until_one_ends() -> None:
    law = Laws(lambda rows: 0.0025 + 0.001 * rows, lambda rows: 0.005 + 0.0002 * rows, 10)
    law.in_flight(9, 9, 6, 6)
    assert law.joins(4), "a third group"
    law.in_flight(9, 9, 6, 6, 3, 3)
    assert not law.joins(4)
    assert law.joins(4, due_s=0.085), "it would be late by waiting"


def test_who_has_waited_longer_than_it_holds_up_others_enters() -> None:
    law = Laws(lambda rows: 0.02 + 0.001 * rows, lambda rows: 0.01, 20)
    law.in_flight(1, 1, 1)
    assert not law.joins(1) and law.joins(1, since_s=-0.06)


def test_no_row_in_flight_misses_its_deadline_for_one_that_enters() -> None:
    engine = Laws(lambda rows: 0.05, lambda rows: 0.1, 5)
    engine.in_flight(4, due_s=[0.42])
    assert not engine.joins(1)
    engine = Laws(lambda rows: 0.05, lambda rows: 0.1, 5)
    engine.in_flight(4, due_s=[0.39])
    assert engine.joins(1), "it is late in any case"


def test_perception_comes_in_slices_that_rows_in_flight_can_bear() -> None:
    engine = Laws(lambda rows: 0.02 * rows, lambda rows: 0.1, 5)
    engine.in_flight(4, due_s=[0.45])
    assert engine.joins(8)
    asked = [waiting() for _ in range(8)]
    entered = 0
    while batch_entry(asked, engine.view, 0.0, lambda: [math.nan] * 1000).batch:
        engine.flight.on_begun(100 + entered, asked.pop(), 0.0)
        entered += 1
    assert entered == 2


def test_who_would_be_late_by_waiting_enters_now() -> None:
    engine = Laws(lambda rows: 0.03 + 0.007 * rows, lambda rows: 0.003, 4)
    engine.in_flight(2, 2, 2)
    assert not engine.joins(1) and engine.joins(1, due_s=0.052)


def test_an_urgent_row_goes_first_where_that_saves_it_and_costs_no_other_ones_deadline() -> None:
    def rows(*due_s: float) -> list[int]:
        engine = Laws(lambda rows: 0.0, lambda rows: 0.05 + 0.05 * rows, 5)
        engine.in_flight(*[5] * len(due_s), due_s=due_s)
        return engine.advancing()

    assert rows(math.inf, math.inf) == [0, 1]
    assert rows(0.6, math.inf) == [0], "alone it takes 0.5 s, in company 0.75 s"
    assert rows(0.4, math.inf) == [0, 1], "it is late in any case"
    assert rows(0.6, 0.8) == [0, 1], "the other one would be late"
    assert rows(0.6, 1.3) == [0]
    assert rows(0.6, 0.4) == [0, 1], "the other one is late already, and would be later still"


def test_who_has_no_deadline_is_answered_beside_robots_that_are_saved_again_and_again() -> None:
    """It lets as many turns pass as a row takes, no more: else it would count as hung, and end the server."""
    rig = Rig(robot_executes_s={"r1": 9.0, "r2": 9.0, "r3": 9.0})
    rig.stepping.costs(0.002, lambda rows: 0.005 + 0.0025 * rows)
    rig.stepping.num_steps = 10
    rig.ask("patient")
    rig.step()
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot, slo_s=0.1187)
    answered = list[str]()
    while rig.now_s < 5.0:
        answered += robots(replies := rig.step())
        for robot in robots(replies):
            rig.ask(robot)
        assert rig.server.stalled_s(rig.now_s) < 0.5
    assert answered.count("patient") >= 10 and answered.count("r1") >= 10


def test_who_spoilt_a_perception_or_a_turn_has_the_engine_for_itself_until_it_is_answered() -> None:
    rig = Rig(Poisoned())
    for robot in ("poison", "r2"):
        rig.ask(robot)
    rig.step()
    assert rig.server.refused == {"engine_error": 2}
    for robot in ("poison", "r2", "r3"):
        rig.ask(robot)
    answered = robots(rig.step(16))
    assert sorted(answered) == ["r2", "r3"] and rig.server.refused == {"engine_error": 3} and rig.server.is_idle
    rig.ask("r2")
    rig.ask("r3")
    assert robots(rig.step(3)) == ["r2", "r3"], "together again"


class Poisoned(FakeStepping):
    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        if any(request.id.robot == "poison" for request in rows.values()):
            raise ValueError("index out of range")
        return super().enter(rows)


@pytest.mark.parametrize("broken", [False, True])
def test_an_engine_whose_steps_fail_is_examined_with_a_blank_row_beside_those_in_flight(broken: bool) -> None:
    engine = Failing()
    rig = Rig(engine, max_engine_errors=2)
    engine.broken = broken
    for _ in range(2):
        engine.fails = True
        rig.ask("r1")
        rig.step()
        assert rig.server.is_idle
        engine.fails = broken
    assert rig.server.refused == {"engine_error": 2} and bool(rig.server.given_up) == broken and not engine.in_flight


class Failing(FakeStepping):
    """A turn fails with `fails`, once, or whenever it is `broken`."""

    fails = broken = False

    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        if self.fails or self.broken:
            self.fails = False
            self.leave(rows)
            raise ModelError("lost")
        return super().iterate(rows)


def test_a_row_that_the_engine_loses_counts_as_hung_whoever_goes_on_beside_it() -> None:
    rig = Rig()
    rig.ask("r1")
    rig.step()
    rig.stepping.in_flight.clear()
    begun_s = rig.now_s
    for _ in range(5):
        rig.ask("r2")
        rig.step(3)
    assert rig.server.snapshot(rig.now_s).served == 5
    assert rig.server.stalled_s(rig.now_s) >= rig.now_s - begun_s > 1.0


@pytest.mark.parametrize("why", ["superseded", "closed", "waits for its frame"])
def test_nobody_is_kept_waiting_for_a_row_that_does_not_go_on(why: str) -> None:
    """`begin` counts on it, and only then is it known: whoever may begin now is not found by the next look only, a second later."""
    rig = Rig()
    rig.stepping.costs(1.0, lambda rows: 0.001)
    for robot in ("r1", "r2", "r1"):  # perception is known to be dear
        rig.ask(robot)
        rig.step(3)
    rig.ask("r1")
    rig.step()
    if why == "superseded":
        rig.ask("r1")
    else:
        rig.ask("r2")
        rig.server.close_session("r1", "system1", rig.epoch("r1")) if why == "closed" else rig.stepping.waits.update({4})
    assert robots(rig.until_it_sleeps()) == ["r1" if why == "superseded" else "r2"]


def test_overflow_and_newer_observations_look_at_when_a_row_leaves() -> None:
    engine = Laws(lambda rows: 0.0, lambda rows: 0.1, 10)
    engine.flight.capacity = 2
    assert [engine.view.begins_s(place, 0.0) for place in range(2)] == [0.0, 0.0]
    engine.in_flight(3, 9)
    assert [engine.view.begins_s(place, 0.0) for place in range(4)] == pytest.approx([0.3, 0.9, 1.3, 1.9])
    assert engine.view.next_rows == 1


# --- whatever happens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_every_request_ends_in_one_count_and_the_engine_keeps_nothing(seed: int) -> None:
    machine = Machine(seed, joins=seed % 2 == 0)
    for _ in range(400):
        machine.happen()
    machine.settle()
    assert machine.served > 5


def test_a_row_that_did_not_enter_while_the_server_drains_ends_once() -> None:
    """Nothing goes on in that round, and all rows that wait for a frame are given up: this one is none of them."""

    class Refusing(FakeStepping):
        def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
            return {number: ModelError("no") for number in rows}

    rig = Rig(Refusing())
    rig.ask("r1")
    rig.server.drain()
    assert rig.server.loop.step(rig.clock) == [] and rig.server.refused == {"engine_error": 1}
    assert rig.server.is_idle and rig.server.core.works == []
