"""Execution modes as flights, and worlds that run on their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

from ros2_rfm_serving.engines.base import Predicts, SamplingConfig
from ros2_rfm_serving.engines.flow.sampling import sample
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest, PipelineConfig
from ros2_rfm_serving.worlds import flights
from ros2_rfm_serving.worlds.flights import Stage
from ros2_rfm_serving.worlds.metaworld import MetaworldArm
from ros2_rfm_serving.worlds.pipelined import Chunks, run_flights
from test.unit.engines.test_engines import request, small_policy

CONFIG = SamplingConfig(num_steps=6, predicts=Predicts.CLEAN)


def test_one_after_the_other_observes_when_it_answers() -> None:
    first, second = islice(flights.sequential(5, 4.0), 2)
    assert first.answered_at == second.ended_with_at == 4.0
    assert second.answered_at == 8.0


def test_decoupled_generation_begins_with_what_is_perceived() -> None:
    for flight in islice(flights.decoupled(5, 1.0, 3.5), 5):
        begins_at = flight.answered_at - 3.5
        assert begins_at - 2.0 < flight.ended_with_at <= begins_at - 1.0


def test_workers_answer_old_observations_at_the_same_rate() -> None:
    first, second = islice(flights.parallel(5, 2.0, 8.0), 2)
    assert (second.answered_at - first.answered_at, first.answered_at - first.ended_with_at) == (2.0, 8.0)


@pytest.mark.parametrize(
    "pipelining",
    [
        PipelineConfig(pp_generation=3),
        PipelineConfig(pp_generation=2, pp_perception=2),
        PipelineConfig(pp_generation=3, fetch_offset=-1),
    ],
)
def test_frames_are_those_of_the_step_loop(pipelining: PipelineConfig) -> None:
    """What each answer began and ended with, frame by frame."""
    engine = SteppingEngine(small_policy(), CONFIG)
    asked = request(1, conditioning=request(0).conditioning.NONE)
    ended = dict[int, int]()
    answered = dict[int, int]()
    for frame in range(10):
        engine.enter({frame: replace(asked, id=replace(asked.id, sequence=frame), pipelining=pipelining)})
        while ready := engine.ready():
            for row, reply in engine.iterate(ready).items():
                assert isinstance(reply, EngineReply)
                assert reply.ended_with is not None
                ended[row], answered[row] = reply.ended_with, frame + 1
    expected = list(islice(flights.pipelined(6, pipelining, 1.0), 10))
    assert ended
    for row, end in ended.items():
        assert (answered[row], end) == (expected[row].answered_at, expected[row].ended_with_at)


def test_a_refreshed_chunk_is_that_of_the_step_loop() -> None:
    pipelining = PipelineConfig(pp_generation=3, alpha=0.5)
    model = small_policy()
    engine = SteppingEngine(model, CONFIG)
    asked = [_observed(number, pipelining) for number in range(8)]
    replies = dict[int, EngineReply | ModelError]()
    for frame, one in enumerate(asked):
        engine.enter({frame: one})
        while ready := engine.ready():
            replies.update(engine.iterate(ready))
    flight = next(islice(flights.pipelined(6, pipelining, 1.0), 2, None))
    seen = [(stage.num_steps, [replace(asked[2], state=asked[int(stage.observed_at)].state)]) for stage in flight.stages]
    assert len({stage.observed_at for stage in flight.stages}) == 3
    own, loops = Chunks(model, CONFIG)(seen)[0], replies[2]
    assert isinstance(loops, EngineReply)
    np.testing.assert_allclose(own, loops.chunk_robot, atol=1e-5)
    stale = model.denormalize(sample(model, [asked[2]], CONFIG).chunks)[0]
    assert np.abs(own - stale).max() > 1e-3


def _observed(number: int, pipelining: PipelineConfig) -> InferenceRequest:
    asked = request(1, conditioning=request(0).conditioning.NONE)
    state = np.random.default_rng(number).normal(size=asked.state.shape).astype(np.float32)
    return replace(asked, id=replace(asked.id, sequence=number), state=state, pipelining=pipelining)


class Notes:
    """Chunks of which each row says its number; and what was asked."""

    def __init__(self) -> None:
        self.asked: list[list[float]] = []

    def __call__(self, stages: Sequence[tuple[int, Sequence[InferenceRequest]]]) -> Array:
        self.asked.append([float(seen[0].state.sum()) for _, seen in stages])
        return np.zeros((len(stages[0][1]), 24, 4), np.float32)


def test_worlds_are_the_same_for_the_same_seeds_and_times() -> None:
    arm = MetaworldArm("reach")

    def run(latency: float) -> tuple[list[list[float]], list[int]]:
        notes = Notes()
        outcomes = run_flights([("reach", arm)], [3], notes, partial(flights.sequential, 5, latency), noise=0.2, max_steps=20)
        return notes.asked, [one.steps for one in outcomes]

    torch.manual_seed(0)
    assert run(2.0) == run(2.0)
    assert len(run(2.0)[0]) == 2 * len(run(4.0)[0])


def test_a_robot_whose_rows_run_out_stands_still() -> None:
    outcomes = run_flights([("reach", MetaworldArm("reach"))], [3], Notes(), partial(flights.parallel, 5, 40.0, 30.0), max_steps=40)
    assert outcomes[0].idle_steps == 40  # 24 rows, of which the first 30 are over
    assert not outcomes[0].success


def test_stages_share_all_steps() -> None:
    (flight,) = islice(flights.pipelined(100, PipelineConfig(pp_generation=5, alpha=1.0), 2.0), 1)
    assert [stage.num_steps for stage in flight.stages][-1] == 64
    assert sum(stage.num_steps for stage in flight.stages) == 100
    assert flight.stages[0] == Stage(flight.stages[0].num_steps, 2.0)
