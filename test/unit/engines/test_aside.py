"""Perception on a stream of its own: what a row is given, whatever is done when, is what it is given alone, and nothing races."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy
from ros2_rfm_serving.engines.flow import stepping
from ros2_rfm_serving.engines.flow.graphs import Function, Graphed, Tensors
from ros2_rfm_serving.engines.flow.in_flight import InFlightBatch
from ros2_rfm_serving.engines.flow.perception_stream import (
    CudaPerceptionStream,
    InlinePerception,
    PerceptionEvent,
    has_come,
    perception_stream_of,
)
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.types import Array, Conditioning, EngineReply, InferenceRequest, PipelineConfig

from .streams import OF_TORCH, OF_TORCHS_EVENT, Cuda, Race, Watched, watched
from .test_engines import request, small_policy

SIZES = (1, 2, 4)
ASKED = [
    request(0, conditioning=Conditioning.NONE),
    request(1, 2, 2),
    request(2, 2, 5, Conditioning.GUIDED),
    request(3, 4, 6),
    request(4, conditioning=Conditioning.NONE),
]


def engine(aside: object = None, policy: FlowPolicy | None = None) -> SteppingEngine:
    config = SamplingConfig(num_steps=4, fixed_shapes=SIZES, max_rows=6)
    return SteppingEngine(policy or POLICY, config, aside)  # type: ignore[arg-type]


POLICY = small_policy()
ALONE = [reply for each in ASKED for reply in engine().infer([each])]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cuda, Watched]]:
    with watched(monkeypatch) as (cuda, watch):
        monkeypatch.setattr(stepping, "settle", lambda device: cuda.current.synchronize())
        yield cuda, watch


def same(answers: dict[int, Any]) -> None:
    for row, reply in answers.items():
        expected = ALONE[row % len(ASKED)]
        assert isinstance(reply, EngineReply) and isinstance(expected, EngineReply), reply
        np.testing.assert_allclose(reply.chunk_robot, expected.chunk_robot, atol=1e-5)
        np.testing.assert_allclose(reply.updates, expected.updates, atol=1e-5)


def rest(used: SteppingEngine) -> dict[int, Any]:
    answers: dict[int, Any] = {}
    while rows := used.ready():
        answers |= used.iterate(rows)
    return answers


# --- what it stands on ---------------------------------------------------------------------------------------------------------


def test_the_stand_in_is_asked_as_torch_is() -> None:
    cuda = Cuda()
    for own, its, names in ((cuda.Stream, torch.cuda.Stream, OF_TORCH), (cuda.Event, torch.cuda.Event, OF_TORCHS_EVENT)):
        for name in names:
            assert _arguments(getattr(own, name)) == _arguments(getattr(its, name)), name
    assert _arguments(cuda.current_stream) == _arguments(torch.cuda.current_stream)
    assert _arguments(cuda.stream) == _arguments(torch.cuda.stream)
    assert "self.wait_event(stream.record_event())" in inspect.getsource(torch.cuda.Stream.wait_stream)
    assert "stream = torch.cuda.current_stream()" in inspect.getsource(torch.cuda.Event.record)
    assert "record_stream(stream)" in (Tensor.record_stream.__doc__ or "")


def _arguments(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_it_finds_what_is_not_waited_for_and_what_may_be_given_away(gpu: tuple[Cuda, Watched]) -> None:
    cuda, _ = gpu
    other = cuda.Stream()
    with cuda.stream(other):
        made = torch.ones(3)
    with pytest.raises(Race, match="still being written by stream 1"):
        made + 1
    cuda.current.wait_stream(other)
    with pytest.raises(Race, match="nobody told the allocator"):
        made + 1
    made.record_stream(cuda.current)  # type: ignore[arg-type]
    assert (made + 1).tolist() == [2, 2, 2]
    with cuda.stream(other), pytest.raises(Race, match="still being read by stream 0"):
        made.add_(1)
    cuda.current.synchronize()
    with cuda.stream(other):
        made.add_(1)


def test_on_a_cpu_nothing_is_aside() -> None:
    aside = perception_stream_of("cpu")
    assert isinstance(aside, InlinePerception)
    with aside.perceiving() as there:
        assert there is None
    used = engine()
    assert not used.enter({0: ASKED[0]}) and not used.enter({1: ASKED[1]})
    assert not used._flight._coming and not used._flight.waiting() and sorted(used.ready()) == [0, 1]
    same(rest(used))


def test_an_error_of_the_device_is_found_by_whoever_goes_on() -> None:
    class Broken:
        def query(self) -> bool:
            raise RuntimeError("CUDA error: device-side assert triggered")

    assert has_come(Broken())


# --- rows --------------------------------------------------------------------------------------------------------------------


def test_rows_in_flight_go_on_while_others_are_perceived(gpu: tuple[Cuda, Watched]) -> None:
    cuda, watch = gpu
    used = engine(CudaPerceptionStream("cuda"))
    assert not used.enter({0: ASKED[0]}) and cuda.current.query(), "with nobody else in flight it is waited for"
    assert used.ready() == [0] and not used.iterate([0])
    assert not used.enter({1: ASKED[1], 2: ASKED[2]})
    assert used.ready() == [0] and not used.iterate(used.ready()), "the others have not been perceived"
    cuda.finish()
    assert sorted(used.ready()) == [0, 1, 2]
    same(rest(used))
    assert watch.num_crossed, "contexts went from one stream to the other"


def test_where_all_wait_for_perception_the_device_does(gpu: tuple[Cuda, Watched]) -> None:
    used = engine(CudaPerceptionStream("cuda"))
    used.enter({0: ASKED[0]})
    for _ in range(3):
        used.iterate([0])
    used.enter({1: ASKED[1]})
    assert used.ready() == [0]
    same(used.iterate([0]))
    assert used.ready() == [1]
    same(rest(used))


def test_a_row_that_is_asked_for_goes_on_when_it_may(gpu: tuple[Cuda, Watched]) -> None:
    used = engine(CudaPerceptionStream("cuda"))
    used.enter({0: ASKED[0]})
    used.enter({1: ASKED[1]})
    assert used.ready() == [0]
    answers: dict[int, Any] = {}
    for _ in range(4):
        answers |= used.iterate([1])
    same(answers | rest(used))
    assert set(answers) == {1}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_when_a_row_is_the_row_alone(seed: int, gpu: tuple[Cuda, Watched]) -> None:
    cuda, _ = gpu
    used, rng = engine(CudaPerceptionStream("cuda")), np.random.default_rng(seed)
    coming, gone, answers = list(range(12)), set[int](), dict[int, Any]()
    while coming or used.ready():
        new = [coming.pop(0) for _ in range(min(len(coming), int(rng.integers(0, 4)), 6 - len(used._flight)))]
        if new:
            assert not used.enter({row: ASKED[row % len(ASKED)] for row in new})
        what = rng.random()
        if what < 0.3:
            cuda.finish()
        elif what < 0.4 and new:
            gone.add(new[0])
            used.leave([new[0]])
        elif what < 0.5:
            used.infer([ASKED[0]])
        ready = list(used.ready())
        answers |= used.iterate([row for row in ready if rng.random() < 0.8] or ready) if ready else {}
    assert set(answers) == set(range(12)) - gone and not used._flight._coming
    same(answers)


def pipelined(number: int, offset: int, perception: int) -> InferenceRequest:
    asked, how = ASKED[number % 2], PipelineConfig(pp_perception=perception, pp_generation=2, fetch_offset=offset)
    return replace(asked, id=replace(asked.id, robot="arm", sequence=number + 1), pipelining=how)


def perceived(cuda: Cuda) -> bool:
    return all(stream.query() for stream in cuda.streams)


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize("perception", [1, 2])
def test_pipelined_chunks_are_those_of_one_after_the_other(offset: int, perception: int, gpu: tuple[Cuda, Watched]) -> None:
    cuda, _ = gpu
    here, aside = engine(InlinePerception()), engine(CudaPerceptionStream("cuda"))
    found: list[list[tuple[int, int | None, Array]]] = [[], []]
    num_ahead = 0
    for number in range(10):
        for used, answers in ((here, found[0]), (aside, found[1])):
            assert not used.enter({number: pipelined(number, offset, perception)})
            num_ahead += used is aside and bool(used.ready()) and not perceived(cuda)
            for row, reply in rest(used).items():
                assert isinstance(reply, EngineReply)
                answers.append((row, reply.ended_with, reply.chunk_model))
        if number % 3 == 2:
            cuda.finish()
    for used in (here, aside):
        used.leave(range(10))
    assert len(found[0]) == len(found[1]) >= 6
    for expected, own in zip(*found, strict=True):
        assert own[:2] == expected[:2]
        np.testing.assert_array_equal(own[2], expected[2])
    assert bool(num_ahead) == (offset == -1), "what reads the frame before generates while the next is perceived"


# --- graphs ------------------------------------------------------------------------------------------------------------------


def recorded(watch: Watched) -> FlowPolicy:
    """With memory that is always the same in place of each graph's."""
    policy = copy.copy(POLICY)

    def record(function: Function, inputs: Tensors) -> Function:
        memory = tuple(tensor.clone() for tensor in inputs)
        results = tuple(result.clone() for result in function(*memory))
        watch.keep((*memory, *results))

        def replay(*given: Tensor) -> Tensors:
            for own, each in zip(memory, given, strict=True):
                own.copy_(each)
            for own, each in zip(results, function(*memory), strict=True):
                own.copy_(each)
            return tuple(result.clone() for result in results)

        return replay

    policy._encode, policy._velocity = Graphed(policy._encode, record), Graphed(policy._velocity, record)
    policy._few_times = False
    return policy


def test_graphs_are_replayed_by_one_stream_at_a_time(gpu: tuple[Cuda, Watched]) -> None:
    cuda, watch = gpu
    used = engine(CudaPerceptionStream("cuda"), recorded(watch))
    answers: dict[int, Any] = {}
    used.warm_up()
    for row in range(12):
        used.enter({row: ASKED[row % len(ASKED)]})
        if row % 4 == 1:
            used.infer([ASKED[0]])
        if row % 5 == 2:
            cuda.finish()
        answers |= used.iterate(used.ready())
    same(answers | rest(used))


# --- seeded faults -----------------------------------------------------------------------------------------------------------


class Hasty(CudaPerceptionStream):
    def received(self, tensors: Tensors, there: PerceptionEvent) -> None:
        for tensor in tensors:
            tensor.record_stream(torch.cuda.current_stream())


class Forgetful(CudaPerceptionStream):
    def received(self, tensors: Tensors, there: PerceptionEvent) -> None:
        torch.cuda.current_stream().wait_event(there)  # type: ignore[arg-type]


class Early(CudaPerceptionStream):
    @contextmanager
    def perceiving(self) -> Iterator[PerceptionEvent]:
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record(self._stream)
        with torch.cuda.stream(self._stream):
            yield there


class Apart(CudaPerceptionStream):
    def join(self) -> None:
        return


@pytest.mark.parametrize("fault", [Hasty, Forgetful, Early, Apart])
def test_a_seeded_fault_is_a_race(fault: type[CudaPerceptionStream], gpu: tuple[Cuda, Watched]) -> None:
    _, watch = gpu
    used = engine(fault("cuda"), recorded(watch))
    with pytest.raises(Race):
        for row in range(4):
            used.enter({row: ASKED[0]})
            if row % 2:
                used.iterate([row])
            used.infer([ASKED[0]])


def test_what_rows_left_behind_is_let_go(gpu: tuple[Cuda, Watched]) -> None:
    used = engine(CudaPerceptionStream("cuda"))
    used.enter({0: ASKED[0]})
    used.iterate([0])
    used.enter({1: ASKED[1], 2: ASKED[3], 3: ASKED[2]})
    flight: InFlightBatch = used._flight
    used.leave([2])
    assert len(flight._coming) == 1 and flight.waiting() == {1, 2, 3}
    used.leave([1, 3])
    assert not flight._coming and used.ready() == [0]
    same(rest(used))


def test_what_is_being_perceived_ends_before_its_weights_go(gpu: tuple[Cuda, Watched]) -> None:
    cuda, _ = gpu
    used = engine(CudaPerceptionStream("cuda"))
    used.enter({0: ASKED[0]})
    used.iterate([0])
    used.enter({1: ASKED[1]})
    used.leave([0, 1])
    assert not perceived(cuda)
    used.close()
    assert perceived(cuda)
