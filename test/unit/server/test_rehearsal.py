"""What a continuous server knows of its engine before anybody has asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from ros2_rfm_serving.dispatch import InFlightRows, StepCosts
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.server import rehearsal
from ros2_rfm_serving.server.rehearsal import step_costs
from ros2_rfm_serving.types import EngineReply, InferenceRequest, empty
from test.unit.fakes import CONTRACT, FakeEngine
from test.unit.server.test_continuous import Rig, robots
from test.unit.stepping import FakeStepping

BLANK = warmup_request(CONTRACT)


class Timed:
    """An engine, and the clock that its calls move."""

    def __init__(self, kind: type[FakeStepping] = FakeStepping) -> None:
        self.now_s = 0.0
        self.engine = kind(self.spend, lambda rows: 0.010 + 0.002 * rows, lambda rows: 0.001 * rows)

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def costs(self, batch_size: int = 8) -> StepCosts:
        return step_costs(self.engine, batch_size, BLANK, lambda: self.now_s)  # type: ignore[arg-type]


def test_every_size_is_measured_in_parts_and_in_one_call() -> None:
    timed = Timed()
    costs = timed.costs()
    rows = range(1, 9)
    assert costs.perceive_s == pytest.approx([0.010 + 0.002 * n for n in rows])
    assert costs.step_s == pytest.approx([0.001 * n for n in rows])
    assert costs.whole_s == pytest.approx([0.010 + 0.005 * n for n in rows])
    assert costs.num_iterations == FakeStepping.num_steps and costs.scatter == pytest.approx(0.0)
    assert not timed.engine.in_flight and {len(batch) for batch in timed.engine.batches} == {*rows}


@pytest.mark.parametrize(("batch_size", "most"), [(1, 1), (3, 3), (65_535, 8)])
def test_no_more_rows_than_will_ever_run(batch_size: int, most: int) -> None:
    assert len(Timed().costs(batch_size).step_s) == most


def test_a_slow_model_is_run_once_alone_and_once_full_and_the_rest_lies_between() -> None:
    timed = Timed()
    timed.engine.costs(rehearsal.BUDGET_S, lambda rows: 0.1 * rows)
    costs = timed.costs()
    assert sorted(map(len, timed.engine.batches)) == [1, 8] and sorted(map(len, timed.engine.entered)) == [1, 8, 8]
    assert costs.step_s == pytest.approx([0.1 * n for n in range(1, 9)]) and costs.scatter == 0.0


def test_a_model_of_many_steps_is_measured_by_a_few_of_them() -> None:
    """Its turns are alike, and a server that counts a thousand of them for each size is ready a minute later."""
    timed = Timed()
    timed.engine.num_steps = 1000
    costs, rows = timed.costs(), range(1, 9)
    assert costs.step_s == pytest.approx([0.001 * n for n in rows]) and costs.num_iterations == 1000
    assert costs.whole_s == pytest.approx([0.010 + 0.002 * n + 1000 * 0.001 * n for n in rows])
    assert len(timed.engine.turns) == rehearsal.MOST_TURNS * len(timed.engine.entered) < 1000


class OfItsOwn(FakeStepping):
    """A model whose requests may not choose."""

    def num_iterations(self, request: InferenceRequest) -> int:
        return self.num_steps


def test_a_model_that_takes_its_own_number_of_steps_is_measured_by_all_of_them() -> None:
    timed = Timed(OfItsOwn)
    timed.engine.num_steps = 50
    costs = timed.costs(2)
    assert costs.num_iterations == 50 and costs.whole_s == pytest.approx([0.010 + 0.052 * n for n in (1, 2)])
    assert len(timed.engine.turns) == 50 * len(timed.engine.entered)


def test_what_differs_from_run_to_run_is_told() -> None:
    timed = Timed()
    draws = iter([0.5, 1.0, 1.1] * 1000)
    timed.engine._spend = lambda seconds: timed.spend(seconds * next(draws))
    assert 0.0 < timed.costs().scatter < 1.0


def test_what_the_first_step_pays_for_is_not_what_steps_take() -> None:
    """The largest batch would seem dear for ever, since no more rows are let in than pay."""
    timed = Timed()
    timed.engine.costs(0.001, lambda rows: 0.01)
    timed.engine._spend = lambda seconds: timed.spend(seconds + 5.0 * (len(timed.engine.turns) == 1))
    costs = timed.costs()
    assert costs.step_s == pytest.approx([0.01] * 8) and InFlightRows.from_costs(8, 0, costs).max_rows == 8


class Early(FakeStepping):
    """Rows are done when they are, which is no later than `num_iterations` says."""

    def num_iterations(self, request: InferenceRequest) -> int:
        return self.num_steps + 2


def test_rows_that_are_done_early_are_not_asked_for_more() -> None:
    assert Timed(Early).costs().step_s == pytest.approx([0.001 * n for n in range(1, 9)])


class Refusing(FakeStepping):
    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        super().enter(rows)
        return {min(rows): ModelError("no room")}


class Raising(FakeStepping):
    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        raise RuntimeError("the kernel is out")


class Endless(FakeStepping):
    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        return {}


class Strange(FakeStepping):
    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        return {row + 100: answer for row, answer in super().iterate(rows).items()}


class Failing(FakeStepping):
    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        return dict.fromkeys(super().iterate(rows), ModelError("the model's output is not finite"))


class Shapeless(FakeStepping):
    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        return {row: EngineReply(chunk_model=empty(1, 1), chunk_robot=empty(1, 1)) for row in super().iterate(rows)}


class Short(FakeStepping):
    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return super().infer(requests)[1:]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Refusing, ModelError),
        (Raising, RuntimeError),
        (Endless, EngineError),
        (Strange, EngineError),
        (Failing, ModelError),
        (Shapeless, EngineError),
        (Short, EngineError),
    ],
)
def test_an_engine_that_cannot_is_told_apart_and_nothing_is_left_in_flight(
    kind: type[FakeStepping], error: type[Exception]
) -> None:
    timed = Timed(kind)
    with pytest.raises(error):
        timed.costs()
    assert not timed.engine.in_flight


def test_an_engine_without_steps_is_refused() -> None:
    with pytest.raises(ModelError, match="continuous"):
        step_costs(FakeEngine(), 4, BLANK, lambda: 0.0)  # type: ignore[arg-type]


# --- what it is good for ---------------------------------------------------------------------------------------------------


def test_the_first_batch_of_a_server_runs_as_a_whole_where_that_pays() -> None:
    """Three robots of a hundred: joining would hold up those in flight for longer than it spares others the wait."""
    timed = Timed()
    timed.engine.costs(0.1, lambda rows: 0.01)
    rig = Rig(timed.engine, costs=timed.costs(), max_sessions=100)
    ran = len(timed.engine.batches)
    for robot in ("r1", "r2", "r3"):
        rig.ask(robot)
    assert robots(rig.step()) == ["r1", "r2", "r3"] and len(timed.engine.batches) == ran + 1


def test_and_the_first_request_lets_others_join_where_steps_are_what_is_shared() -> None:
    timed = Timed()
    timed.engine.num_steps = 10
    timed.engine.costs(0.001, lambda rows: 0.01)
    rig = Rig(timed.engine, costs=timed.costs(), max_sessions=100)
    for number in range(8):
        rig.ask(f"idle{number}")
    rig.until_it_sleeps()
    ran = len(timed.engine.batches)
    rig.ask("r1")
    rig.step(2)
    rig.ask("r2")
    rig.step(2)
    assert rig.server.loop.num_in_flight() == 2 and len(timed.engine.batches) == ran
