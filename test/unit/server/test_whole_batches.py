"""`batching: continuous` where nobody would join a batch: it runs in one call, as under `batching: fixed`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ros2_rfm_serving.dispatch import DispatchDecision, WaitingRequest
from ros2_rfm_serving.dispatch.batch_entry import batch_entry
from ros2_rfm_serving.dispatch.in_flight import MAX_ALIKE
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, PipelineConfig
from test.unit.fakes import FakeEngine
from test.unit.server.test_continuous import Laws, Rig, robots, waiting
from test.unit.stepping import FakeStepping

ROBOTS = ("r1", "r2", "r3")


def dear() -> Laws:
    """Perception holds up all for longer than it shortens the queue."""
    return Laws(lambda rows: 0.03 + 0.007 * rows, lambda rows: 0.003 + 0.0007 * rows, 4)


def cheap() -> Laws:
    return Laws(lambda rows: 0.001, lambda rows: 0.01, 10)


def chosen(law: Laws, requests: Sequence[WaitingRequest], num_sessions: int = 1000) -> DispatchDecision:
    return batch_entry(requests, law.view, 0.0, lambda: [math.nan] * num_sessions)


def asking(**changes: Any) -> WaitingRequest:
    one = waiting()
    return replace(one, request=replace(one.request, **changes))


class Learning(Rig):
    """An engine of which perception and steps are learned while it serves."""

    def serve(self, *names: str) -> list[str]:
        for name in names or ROBOTS:
            self.ask(name)
        return robots(self.until_it_sleeps())

    @property
    def num_whole(self) -> int:
        return len(self.engine.batches)


def learned(**config: Any) -> Learning:
    rig = Learning(**config)
    rig.stepping.costs(0.1, lambda rows: 0.01)
    assert sorted(rig.serve()) == [*ROBOTS] and rig.num_whole == 0, "nothing is known yet"
    return rig


def test_who_waits_runs_as_a_whole_where_one_group_pays_and_row_by_row_where_more_do() -> None:
    requests = [waiting() for _ in range(20)]
    law = dear()
    assert chosen(law, requests) == DispatchDecision(requests[:16], whole=True), "as a fixed batch would be cut"
    assert not chosen(cheap(), requests[:4]).whole
    assert chosen(cheap(), requests[:4], num_sessions=4).whole, "nobody else can come"
    law.in_flight(2)
    assert not chosen(law, requests).whole, "rows in flight would wait for all of it"


def test_pipelined_rows_and_rows_of_other_numbers_of_steps_go_on_one_by_one() -> None:
    law, plain = dear(), waiting()
    assert chosen(law, [plain, plain]).whole
    assert not chosen(law, [plain, asking(pipelining=PipelineConfig())]).whole
    assert not chosen(law, [plain, asking(num_steps=2)]).whole
    assert not chosen(law, [asking(num_steps=2)]).whole, "what so many steps take is not known"
    law.flight.promised = 2
    assert not chosen(law, [plain]).whole, "a frame of a pipelined session would wait for all of it"


def test_it_is_answered_as_under_fixed_batching_and_counts_so() -> None:
    rig = learned()
    entered = len(rig.stepping.entered)
    for robot in ROBOTS:
        rig.ask(robot)
    replies = rig.step()
    assert robots(replies) == [*ROBOTS] and rig.num_whole == 1 and len(rig.stepping.entered) == entered
    assert [reply.served.batch_size for reply in replies] == [3, 3, 3]
    assert rig.server.is_idle and rig.server.snapshot(rig.now_s).served == 6 and rig.server.stalled_s(rig.now_s + 9) == 0.0


def test_a_batch_that_runs_fills_the_server_and_is_seen_when_it_does_not_come_back() -> None:
    rig = learned()
    rig.ask("r1")
    work = rig.server.loop.begin(rig.clock())
    assert work is not None and work.whole
    rig.ask("r2")
    assert rig.server.loop.begin(rig.clock()) is None
    assert rig.server.stalled_s(work.begun_s + 5.0) == pytest.approx(5.0)
    assert (
        not rig.server.is_idle
        and rig.server.core.queues[0].view.free_s > work.begun_s
        and not rig.server.core.queues[0].is_resting()
    )
    replies = rig.server.loop.complete(work, rig.server.loop.run(work), rig.clock())
    assert robots(replies) == ["r1"] and robots(rig.until_it_sleeps()) == ["r2"]


def test_rows_join_again_when_what_they_cost_changes() -> None:
    """Steps become dear and perception cheap: rows that go on one by one now and then tell."""
    rig = learned(max_sessions=100)
    for number in range(8):
        rig.ask(f"idle{number}")
    rig.until_it_sleeps()
    rig.serve(), rig.serve()
    assert rig.num_whole
    rig.stepping.costs(0.001, lambda rows: 0.1)
    for _ in range(20 * MAX_ALIKE):
        rig.serve()
    before = rig.num_whole
    for _ in range(MAX_ALIKE // 2):
        rig.serve()
    assert rig.num_whole == before


def test_a_slower_machine_goes_on_with_whole_batches() -> None:
    rig = learned()
    rig.serve()
    rig.stepping.costs(0.5, lambda rows: 0.05)
    for _ in range(4 * MAX_ALIKE):
        rig.serve()
    before = rig.num_whole
    for _ in range(MAX_ALIKE):
        rig.serve()
    assert rig.num_whole - before >= 0.9 * MAX_ALIKE


class Padding(FakeStepping):
    """Whole batches are filled up to its largest one."""

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        self._spend(1.0)
        return FakeEngine.infer(self, requests)


def test_an_engine_that_takes_longer_for_whole_batches_is_asked_for_one_now_and_then_alone() -> None:
    engine = Padding()
    rig = Learning(engine)
    engine.spends(rig.spend, 0.1, 0.01)
    for _ in range(4 * MAX_ALIKE):
        rig.serve()
    assert 2 <= rig.num_whole <= 8


class Failing(FakeStepping):
    fails = False

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        if self.fails:
            raise ModelError("the kernel is out")
        return super().infer(requests)


def test_a_whole_batch_that_fails_costs_its_rows_which_then_run_alone() -> None:
    engine = Failing(lambda seconds: None, lambda rows: 0.1, lambda rows: 0.01)
    rig = Learning(engine)
    rig.serve()
    engine.fails = True
    assert rig.serve() == [] and rig.server.refused["engine_error"] == 3 and rig.server.is_idle
    engine.fails = False
    runs = len(rig.engine.batches) + len(rig.stepping.entered)
    assert sorted(rig.serve()) == [*ROBOTS]
    assert len(rig.engine.batches) + len(rig.stepping.entered) == runs + 3, "each of them may have been the cause"
    assert rig.serve() and rig.server.core.queues[0].running.num_failed == 0


def test_a_session_that_closes_meanwhile_costs_nobody_else_anything() -> None:
    rig = learned()
    for robot in ROBOTS:
        rig.ask(robot)
    work = rig.server.loop.begin(rig.clock())
    assert work is not None and work.whole
    rig.server.close_session("r2", "system1", rig.epoch("r2"))
    assert robots(rig.server.loop.complete(work, rig.server.loop.run(work), rig.clock())) == ["r1", "r3"]
    assert rig.server.refused["session_ended"] == 1 and rig.server.is_idle


def test_a_row_that_fails_alone_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = learned()
    infer = rig.engine.infer
    monkeypatch.setattr(rig.engine, "infer", lambda requests: [EngineError("no"), *infer(requests)[1:]])
    assert rig.serve() == ["r2", "r3"] and rig.num_whole == 1
