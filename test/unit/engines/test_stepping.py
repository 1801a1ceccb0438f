"""Rows that join a running batch, each of which is the row alone, whatever company comes and goes; pipelined sessions' contexts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ros2_rfm_serving.engines.base import Predicts, SamplingConfig, Stepping, stepping
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy
from ros2_rfm_serving.engines.flow.device import settle
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.frames import steps_of_stages
from ros2_rfm_serving.engines.flow.in_flight import InFlightBatch
from ros2_rfm_serving.engines.flow.sampling import noise_of
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError, OutOfMemoryError
from ros2_rfm_serving.types import Array, Conditioning, EngineReply, Guidance, InferenceRequest, PipelineConfig, PrefixSchedule

from .test_engines import request, small_policy

NONE, PREFIX, GUIDED = Conditioning
NUM_STEPS = 4
FIXED = (1, 2, 4)
"""With which more rows than one batch are in flight"""
FREE = [request(i, conditioning=NONE) for i in range(3)]
CONTINUING = [request(3, 2, 2), request(4, 4, 6), request(5, 1, 0), request(6, 0, 3)]
PULLED = [
    request(7, 2, 5, GUIDED),
    replace(request(8, 1, 8, GUIDED), guidance=Guidance(execution_horizon=6, max_weight=3.0, schedule=PrefixSchedule.EXP)),
    replace(request(9, 2, 5, GUIDED), guidance=Guidance(true_jacobian=True)),
    request(10, 0, 0, GUIDED),
]
MOST_STEPS = 2 * NUM_STEPS
OTHERWISE = [replace(FREE[0], num_steps=1), replace(FREE[1], num_steps=MOST_STEPS), replace(CONTINUING[0], num_steps=7)]
"""With another number of steps than the model's own"""
ASKED = {
    Predicts.VELOCITY: [*FREE, *CONTINUING, *PULLED, *OTHERWISE, replace(PULLED[0], num_steps=3)],
    Predicts.NOISE: [*FREE, *CONTINUING, *OTHERWISE],
    Predicts.CLEAN: [*FREE, *CONTINUING, *OTHERWISE],
    Predicts.CHUNK: FREE,
}


USED: list[SteppingEngine] = []
"""In this test"""


@cache
def engine(
    predicts: Predicts = Predicts.VELOCITY, fixed_shapes: tuple[int, ...] = (), num_steps: int = NUM_STEPS
) -> SteppingEngine:
    config = SamplingConfig(num_steps=num_steps, predicts=predicts, fixed_shapes=fixed_shapes, max_rows=6 if fixed_shapes else 0)
    USED.append(SteppingEngine(small_policy(), config))
    return USED[-1]


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    engine.cache_clear()
    yield
    for used in USED:
        assert not used.ready() and not used._public and not used._outdated and not len(used._flight)
        assert not used._staged._on_the_way and not used._frames._sessions
    USED.clear()


@cache
def alone(predicts: Predicts, sizes: tuple[int, ...], which: int) -> EngineReply:
    (reply,) = engine(predicts, sizes).infer([ASKED[predicts][which]])
    return reply


def same(values: Array, expected: Array) -> None:
    """To rounding."""
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max(initial=0.0)))


def finish(engine: SteppingEngine) -> dict[int, Any]:
    answers: dict[int, Any] = {}
    while rows := engine.ready():
        answers.update(engine.iterate(rows))
    return answers


# --- a row is the row alone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(), FIXED])
@pytest.mark.parametrize("predicts", Predicts)
def test_a_row_alone_is_that_of_infer_bit_by_bit(predicts: Predicts, sizes: tuple[int, ...]) -> None:
    used = engine(predicts, sizes)
    for which, asked in enumerate(ASKED[predicts]):
        assert used.enter({which: asked}) == {}
        for _ in range(used.num_iterations(asked) - 1):
            assert used.iterate([which]) == {}
        reply, expected = used.iterate([which])[which], alone(predicts, sizes, which)
        assert isinstance(reply, EngineReply) and reply.ended_with is None
        np.testing.assert_array_equal(reply.chunk_model, expected.chunk_model)
        np.testing.assert_array_equal(reply.chunk_robot, expected.chunk_robot)
        np.testing.assert_array_equal(reply.updates, expected.updates)


@pytest.mark.parametrize("predicts", [Predicts.VELOCITY, Predicts.NOISE])
@pytest.mark.parametrize("num_steps", [1, 3, MOST_STEPS])
def test_a_row_with_steps_of_its_own_is_that_of_a_model_with_so_many(predicts: Predicts, num_steps: int) -> None:
    asked = replace(CONTINUING[0], num_steps=num_steps)
    (expected,) = engine(predicts, num_steps=num_steps).infer([CONTINUING[0]])
    used = engine(predicts)
    batch = used.infer([CONTINUING[0], asked, FREE[0]])
    for reply in (used.infer([asked])[0], batch[1]):
        assert isinstance(reply, EngineReply) and isinstance(expected, EngineReply)
        np.testing.assert_array_equal(reply.chunk_robot, expected.chunk_robot)
        np.testing.assert_array_equal(reply.updates, expected.updates)
    same(batch[0].chunk_model, alone(predicts, (), ASKED[predicts].index(CONTINUING[0])).chunk_model)  # type: ignore[union-attr]


def test_steps_that_a_model_does_not_take_are_refused_and_the_others_go_on() -> None:
    used = engine(Predicts.VELOCITY)
    wrong = replace(FREE[0], num_steps=MOST_STEPS + 1)
    errors = used.enter({1: wrong, 2: FREE[1], 3: replace(FREE[2], num_steps=2)})
    assert set(errors) == {1} and f"num_steps is {MOST_STEPS + 1}; this model takes 1 to {MOST_STEPS}" in str(errors[1])
    assert set(finish(used)) == {2, 3}
    refused, answered = used.infer([wrong, FREE[1]])
    assert isinstance(refused, ModelError) and isinstance(answered, EngineReply)
    assert used.contract.max_num_steps == MOST_STEPS and engine(Predicts.CHUNK).contract.max_num_steps == 0
    assert SteppingEngine(small_policy(), SamplingConfig(num_steps=60, predicts=Predicts.NOISE)).contract.max_num_steps == 100
    with pytest.raises(ModelError, match="its own number alone"):
        engine(Predicts.CHUNK).infer([replace(FREE[0], num_steps=2)])


def test_frames_spread_as_many_steps_as_the_session_asked_for() -> None:
    used, pipelining = engine(Predicts.VELOCITY), PipelineConfig(pp_generation=6)
    used.require_pipelining(pipelining, MOST_STEPS)
    with pytest.raises(ModelError, match="pp_generation is 6"):
        used.require_pipelining(pipelining)
    answers: dict[int, Any] = {}
    for number in range(9):
        asked = replace(FREE[0], id=replace(FREE[0].id, sequence=number), pipelining=pipelining, num_steps=MOST_STEPS)
        assert not used.enter({number: asked})
        answers |= finish(used)
    assert set(answers) == {0, 1, 2} and all(len(reply.updates) == MOST_STEPS for reply in answers.values())
    used.leave(range(9))


EVENT = st.one_of(
    st.tuples(st.just("enter"), st.lists(st.integers(0, 99), min_size=1, max_size=4)),
    st.tuples(st.just("turn"), st.lists(st.integers(0, 99), max_size=3)),
    st.tuples(st.just("turn"), st.just([])),
    st.tuples(st.just("leave"), st.lists(st.integers(0, 99), min_size=1, max_size=2)),
)


@pytest.mark.parametrize("sizes", [(), FIXED])
@pytest.mark.parametrize("predicts", [Predicts.VELOCITY, Predicts.NOISE, Predicts.CHUNK])
@settings(max_examples=15, deadline=None)
@given(events=st.lists(EVENT, min_size=4, max_size=16))
def test_company_that_comes_and_goes_changes_nothing(
    predicts: Predicts, sizes: tuple[int, ...], events: list[tuple[str, list[int]]]
) -> None:
    """An event's numbers choose whom it is about: who enters, who waits in this turn, who leaves."""
    used, asked = engine(predicts, sizes), ASKED[predicts]
    used.leave(used.ready())  # of an example that failed
    inside: dict[int, int] = {}
    turns: dict[int, int] = {}
    number = 0
    for kind, chosen in [*events, *[("turn", [])] * MOST_STEPS]:
        if kind == "enter":
            new = {number + i: which % len(asked) for i, which in enumerate(chosen[: used.max_rows - len(inside)])}
            number += len(chosen)
            assert used.enter({row: asked[which] for row, which in new.items()}) == {}
            inside |= new
            turns |= dict.fromkeys(new, 0)
        elif kind == "leave":
            gone = {row for row in inside if row in chosen} | {number + 7}
            used.leave(gone)
            inside = {row: which for row, which in inside.items() if row not in gone}
        elif inside:
            going = [row for row in inside if row not in chosen] or list(inside)
            answers = used.iterate(going)
            for row in going:
                turns[row] += 1
                assert (row in answers) == (turns[row] == used.num_iterations(asked[inside[row]]))
            for row, reply in answers.items():
                expected = alone(predicts, sizes, inside.pop(row))
                assert isinstance(reply, EngineReply)
                same(reply.chunk_model, expected.chunk_model)
                same(reply.updates, expected.updates)
        assert sorted(used.ready()) == sorted(inside)
    used.leave(list(inside))


def test_contexts_lie_where_they_were_put_while_their_rows_step(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, ...]] = []
    velocity = FlowPolicy.velocity

    def watched(self: FlowPolicy, x: Tensor, time: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        read.append(tuple(tensor.data_ptr() for tensor in context))
        return velocity(self, x, time, context)

    monkeypatch.setattr(FlowPolicy, "velocity", watched)
    used = engine()
    for row in range(5):
        used.enter({row: FREE[row % 3]})
        used.iterate(used.ready())
    finish(used)
    assert len(read) == 8 and len(set(read)) == 1


def test_who_enters_while_others_are_under_way_shares_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, perceived = list[int](), list[int]()
    velocity, perceive = FlowPolicy.velocity, FlowPolicy.perceive
    used = engine()
    used.warm_up()
    monkeypatch.setattr(FlowPolicy, "velocity", lambda self, x, *rest: sizes.append(len(x)) or velocity(self, x, *rest))
    monkeypatch.setattr(FlowPolicy, "perceive", lambda self, requests: perceived.append(len(requests)) or perceive(self, requests))
    used.enter({1: FREE[0], 2: CONTINUING[0]})
    used.iterate([1, 2])
    used.enter({3: PULLED[0]})
    assert set(finish(used)) == {1, 2, 3}
    assert perceived == [2, 1] and sizes == [2, 3, 3, 3, 1]


# --- errors --------------------------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_row_costs_that_row_alone() -> None:
    used = engine()
    broken = replace(FREE[1], state=np.full(6, np.nan, np.float32))
    errors = used.enter({1: FREE[0], 2: request(1, delay=5, prefix=8), 3: broken})
    assert set(errors) == {2} and "up to 4 steps, not 5" in str(errors[2])
    answers = finish(used)
    assert isinstance(answers[3], ModelError) and "not finite" in str(answers[3])
    np.testing.assert_allclose(answers[1].chunk_model, alone(Predicts.VELOCITY, (), 0).chunk_model, atol=1e-5)


@pytest.mark.parametrize("sizes", [(), FIXED])
@pytest.mark.parametrize("how", ["is done", "leaves", "leaves and another one takes its place"])
def test_guidance_of_a_former_row_reaches_nobody(how: str, sizes: tuple[int, ...]) -> None:
    """Its buffers hold NaN. Who comes next is not guided, and somebody beside it is: guidance is computed for both."""
    used = engine(Predicts.VELOCITY, sizes)
    spoilt = replace(PULLED[2], prefix_model=np.full_like(PULLED[2].prefix_model, np.nan))
    spoilt = replace(spoilt, guidance=replace(spoilt.guidance, max_weight=np.nan))
    used.enter({0: spoilt})
    if how == "leaves and another one takes its place":
        used.enter({1: FREE[1]})
    used.iterate(used.ready())
    if how == "is done":
        assert isinstance(finish(used)[0], ModelError)
    else:
        used.leave([0])
    used.enter({2: FREE[0]})
    used.enter({3: PULLED[0]})
    answers = finish(used)
    expected = {1: 1, 2: 0, 3: len(FREE) + len(CONTINUING)}
    for row, answer in answers.items():
        assert isinstance(answer, EngineReply), (row, answer)
        same(answer.chunk_model, alone(Predicts.VELOCITY, sizes, expected[row]).chunk_model)


def test_no_more_rows_enter_than_there_is_memory_for() -> None:
    used = engine(fixed_shapes=FIXED)
    errors = used.enter(dict.fromkeys(range(8), FREE[0]))
    assert set(errors) == {6, 7} and "6 rows are in flight" in str(errors[6])
    assert len(finish(used)) == 6


def limited(monkeypatch: pytest.MonkeyPatch, method: str, room: int) -> None:
    """Memory for so many rows."""
    plain = getattr(FlowPolicy, method)

    def checked(self: FlowPolicy, first: Any, *rest: Any) -> Any:
        if len(first) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, first, *rest)

    monkeypatch.setattr(FlowPolicy, method, checked)


def test_too_little_memory_halves_once_and_then_costs_those_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    used = engine()
    used.warm_up()
    limited(monkeypatch, "perceive", 2)
    assert used.enter(dict(enumerate(FREE))) == {}
    errors = used.enter(dict(enumerate([*FREE, *FREE], start=10)))
    assert set(errors) == set(range(10, 16)) and all(isinstance(error, OutOfMemoryError) for error in errors.values())
    limited(monkeypatch, "velocity", 2)
    assert len(finish(used)) == 3
    used.enter(dict(enumerate(FREE)))
    limited(monkeypatch, "velocity", 0)
    with pytest.raises(OutOfMemoryError, match="a batch of 3"):
        used.iterate(used.ready())
    assert not used.ready()


@pytest.mark.parametrize("method", ["perceive", "velocity", "denormalize"])
def test_whatever_a_model_raises_no_row_stays_behind(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = engine()
    used.warm_up()

    def fails(*arguments: Any) -> Any:
        raise RuntimeError("a kernel")

    monkeypatch.setattr(FlowPolicy, method, fails)
    with pytest.raises(RuntimeError, match="a kernel"):
        used.enter({1: FREE[0], 2: piped(0)})
        finish(used)
    used.leave([2])


def test_a_call_ends_when_its_device_has_done_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server that measures what a turn costs measures what it costs to ask for one."""
    done: list[str] = []
    work = SteppingEngine._enter, InFlightBatch.advance
    monkeypatch.setattr(SteppingEngine, "_enter", lambda self, rows: (work[0](self, rows), done.append("entered"))[0])
    monkeypatch.setattr(InFlightBatch, "advance", lambda self, rows: (work[1](self, rows), done.append("stepped"))[0])
    monkeypatch.setattr("ros2_rfm_serving.engines.flow.stepping.settle", lambda device: done.append(f"{device} has settled"))
    used = engine(num_steps=1)
    used.enter({1: FREE[0]})
    used.iterate([1])
    assert done == ["entered", "cpu has settled", "stepped", "cpu has settled"]


@pytest.mark.parametrize("predicts", [Predicts.VELOCITY, Predicts.CHUNK])
def test_a_warm_up_sees_every_program_and_not_every_step(predicts: Predicts, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = FlowPolicy.velocity
    monkeypatch.setattr(FlowPolicy, "velocity", lambda self, x, *rest: (calls.append(len(x)), whole(self, x, *rest))[1])
    used = engine(predicts, num_steps=1 if predicts is Predicts.CHUNK else 400)
    used.warm_up()
    assert {1, used.max_batch_size} == {*calls} and len(calls) < 60


def test_a_gpu_is_waited_for_on_the_stream_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []

    def stream(device: object) -> torch.cuda.Stream:
        return SimpleNamespace(synchronize=lambda: waited.append(device))  # type: ignore[return-value]

    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    settle("cpu")
    settle("cuda:1")
    assert waited == ["cuda:1"]


def test_an_observation_of_a_session_that_did_not_enter_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise ModelError("no")

    used, pipelining = engine(num_steps=8), PipelineConfig(pp_perception=3, pp_generation=2)
    used.warm_up()
    monkeypatch.setattr(InFlightBatch, "enter", fails)
    assert set(used.enter({1: piped(0, pipelining, "a"), 2: piped(0, pipelining, "b")})) == {1, 2}
    assert not used._staged._on_the_way


def test_an_engine_that_answers_whole_batches_is_no_stepping_one() -> None:
    assert isinstance(engine(), Stepping) and stepping(engine()) is engine()
    with pytest.raises(ModelError, match="'small' cannot be served with `batching: continuous`"):
        stepping(FlowEngine(small_policy()))


# --- pipelined sessions --------------------------------------------------------------------------------------------------------


def piped(sequence: int, pipelining: PipelineConfig = PipelineConfig(), robot: str = "r", **id: int) -> InferenceRequest:  # noqa: B008
    asked = [*CONTINUING, *FREE][sequence % 7]
    return replace(asked, id=replace(asked.id, robot=robot, sequence=sequence, **id), pipelining=pipelining)


def in_frames(first: int, pipelining: PipelineConfig, num_steps: int) -> Array:
    """The chunk of request `first`, one step after the other, each with what its frame reads (AURAS §4.3), in plain formulae."""
    policy = small_policy()
    x = torch.from_numpy(noise_of(piped(first), policy.contract, SamplingConfig()))[None]
    step = 0
    with torch.inference_mode():
        for stage, steps in enumerate(steps_of_stages(num_steps, pipelining)):
            frame = first + pipelining.pp_perception + stage
            seen = piped(frame - (pipelining.pp_perception - 1) + pipelining.fetch_offset)
            fixed = min(seen.inference_delay_steps, len(seen.prefix_model)) if seen.conditioning is PREFIX else 0
            prefix = torch.from_numpy(seen.prefix_model[:fixed])
            for _ in range(steps):
                x[:, :fixed] = prefix
                time = torch.full((1, 8), 1 - step / num_steps)
                time[:, :fixed] = 0.0
                x = x - policy.velocity(x, time, policy.perceive([seen])) / num_steps
                step += 1
        x[:, :fixed] = prefix
    chunk: Array = x[0].numpy()
    return chunk


PIPELININGS = [
    PipelineConfig(),
    PipelineConfig(pp_generation=4),
    PipelineConfig(pp_generation=3, alpha=1.0),
    PipelineConfig(pp_generation=2, fetch_offset=-1),
    PipelineConfig(pp_perception=3, pp_generation=2),
    PipelineConfig(pp_perception=2, pp_generation=3, alpha=0.5, fetch_offset=-1),
]


@pytest.mark.parametrize("pipelining", PIPELININGS, ids=str)
def test_every_step_reads_the_freshest_context_of_its_frame(pipelining: PipelineConfig) -> None:
    used, num_steps, answers = engine(num_steps=8), 8, dict[int, Any]()
    for sequence in range(9):
        assert used.enter({100 + sequence: piped(sequence, pipelining)}) == {}
        new = finish(used)
        assert [*new] == ([101 + sequence - pipelining.depth] if sequence >= pipelining.depth - 1 else [])
        answers |= new
    for row, reply in answers.items():
        first = row - 100
        expected = in_frames(first, pipelining, num_steps)
        np.testing.assert_allclose(reply.chunk_model, expected, atol=1e-5)
        assert reply.ended_with == first + pipelining.pp_generation + pipelining.fetch_offset
        assert reply.updates.shape == (8, 8, 2)
    used.leave(range(100, 109))
    assert not len(used._flight) and not used._public and not used._staged._on_the_way


def rounds(
    used: SteppingEngine, robots: Sequence[str], sequences: Collection[int], pipelining: PipelineConfig, leave: bool = True
) -> dict[tuple[str, int], Any]:
    """All robots' frames together."""
    answers = {}
    for sequence in sequences:
        rows = {100 * sequence + i: piped(sequence, pipelining, robot) for i, robot in enumerate(robots)}
        assert used.enter(rows) == {}
        answers |= {(robots[row % 100], row // 100): reply for row, reply in finish(used).items()}
    used.leave([100 * sequence + i for sequence in sequences for i in range(len(robots)) if leave])
    return answers


@pytest.mark.parametrize("pipelining", PIPELININGS[1::2], ids=str)
def test_frames_of_many_robots_are_merged_and_each_is_as_alone(pipelining: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    used, robots = engine(num_steps=8), ["a", "b", "c"]
    separately = {key: reply for robot in robots for key, reply in rounds(used, [robot], range(6), pipelining).items()}
    batches, velocity = list[int](), FlowPolicy.velocity
    monkeypatch.setattr(FlowPolicy, "velocity", lambda self, x, *rest: batches.append(len(x)) or velocity(self, x, *rest))
    together = rounds(used, robots, range(6), pipelining)
    one_frame = max(steps_of_stages(8, pipelining))
    assert len(batches) <= 6 * one_frame and max(batches) == 3 * pipelining.pp_generation
    assert together.keys() == separately.keys() and len(together) == 3 * (7 - pipelining.depth)
    for key, reply in together.items():
        np.testing.assert_allclose(reply.chunk_model, separately[key].chunk_model, atol=1e-5)
        assert reply.ended_with == separately[key].ended_with


def test_the_same_perception_stage_of_several_sessions_is_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    used, pipelining = engine(num_steps=8), PipelineConfig(pp_perception=2, pp_generation=2)
    used.require_pipelining(pipelining)
    batches = list[int]()
    blocks = [
        lambda *tensors, block=block: batches.append(len(tensors[0])) or block(*tensors) for block in used._stepped.perception
    ]
    monkeypatch.setattr(used._stepped, "_perception", blocks)
    rounds(used, ["a", "b", "c"], range(2), pipelining)
    assert batches == [3] * (len(used._staged._stages(2)[0]) + len(blocks))


@pytest.mark.parametrize("change", [{"episode": 1}, {"session_epoch": 2}], ids=str)
def test_a_new_episode_and_a_new_session_read_nothing_of_the_former(change: dict[str, int]) -> None:
    used, pipelining = engine(), PipelineConfig(pp_generation=2, fetch_offset=-1)
    newer = {sequence: piped(sequence, pipelining, **change) for sequence in range(5, 9)}

    def answered() -> dict[int, Any]:
        answers = dict[int, Any]()
        for row, asked in newer.items():
            assert used.enter({row: asked}) == {}
            answers |= finish(used)
        used.leave(newer)
        return answers

    fresh = answered()
    rounds(used, ["r"], range(2), pipelining, leave=False)
    answers = answered()
    assert all(isinstance(answers.pop(row), ModelError) for row in (0, 100)) and answers.keys() == fresh.keys() == {5, 6}
    for row, reply in answers.items():
        np.testing.assert_array_equal(reply.chunk_model, fresh[row].chunk_model)


def test_pipelined_and_other_rows_share_turns() -> None:
    used, pipelining = engine(), PipelineConfig(pp_generation=2)
    used.enter({1: piped(1, pipelining), 2: FREE[0]})
    assert [*used.ready()] == [2]
    used.iterate([2])
    used.enter({3: piped(2, pipelining), 4: CONTINUING[0]})
    assert sorted(used.ready()) == [1, 2, 4]
    answers = finish(used)
    np.testing.assert_allclose(answers[2].chunk_model, alone(Predicts.VELOCITY, (), 0).chunk_model, atol=1e-5)
    np.testing.assert_allclose(answers[4].chunk_model, alone(Predicts.VELOCITY, (), 3).chunk_model, atol=1e-5)
    used.leave([1, 3])


def test_what_a_model_cannot_spread_over_frames_is_refused() -> None:
    assert [engine(predicts).contract.pipelines for predicts in Predicts] == [True, True, True, False]
    assert not FlowEngine(small_policy()).contract.pipelines
    for pipelining, said in [
        (PipelineConfig(pp_generation=5), "pp_generation is 5; .* 4 solver steps"),
        (PipelineConfig(pp_perception=5), "pp_perception is 5; .* 4 blocks"),
        (PipelineConfig(fetch_offset=-2), "fetch_offset is -2"),
    ]:
        with pytest.raises(ModelError, match=said):
            engine().require_pipelining(pipelining)
        (error,) = engine().enter({1: piped(0, pipelining)}).values()
        assert isinstance(error, ModelError)
    with pytest.raises(ModelError, match="nothing to spread"):
        engine(Predicts.CHUNK).require_pipelining(PipelineConfig())
