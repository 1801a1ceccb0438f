"""The live half of `rfm bench continuous`: what it counts, with an engine whose costs are known."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import pytest

from lab.benchmarks.continuous.live import BATCHINGS, Bench, EngineClock, Setting, arrivals
from ros2_rfm_serving.types import EngineReply, InferenceRequest
from test.unit.stepping import FakeStepping

SHORT = Setting(seconds=0.5, rounds=2, load=0.5)


class Working(FakeStepping):
    """A perception takes 2 ms and a step 1 ms of its thread, however many rows there are."""

    def __init__(self) -> None:
        super().__init__(work, lambda rows: 2e-3, lambda rows: 1e-3)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        work(5e-3)
        return super().infer(requests)


def work(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@pytest.mark.patient
def test_all_ways_of_batching_answer_the_same_requests_and_are_compared_round_by_round() -> None:
    (row,) = Bench(Working(), SHORT).rows([3])  # type: ignore[arg-type]
    assert set(row.runs) == set(row.highest_hz) == set(BATCHINGS) and row.asked_hz > 0
    for batching in BATCHINGS:
        assert len(row.runs[batching]) == len(row.ratios(batching, "p50_s")) == len(row.highest_ratios(batching)) == 2
        assert all(run.p99_s >= run.p50_s > 0 and run.cpu_s > 0 and run.mean_rows >= 1 for run in row.runs[batching])
    assert row.ratios("fixed", "p50_s") == [1.0, 1.0]
    assert row.runs["continuous"][0].rate_hz == pytest.approx(row.runs["fixed"][0].rate_hz, rel=0.3)
    assert min(run.p50_s for run in row.runs["fixed"]) >= 0.005 and 150 < row.highest_hz["fixed"][0] < 601, "three per 5 ms at best"


def test_robots_ask_as_often_as_is_said_from_phases_of_their_own() -> None:
    asks = arrivals(4, 100.0, 10.0, random.Random(1))
    assert len(asks) == pytest.approx(1000, rel=0.02) and asks == sorted(asks)
    assert len({round(at_s, 4) for at_s, _ in asks[:4]}) == 4


def test_the_engines_clock_jumps_over_what_it_would_sleep_and_stands_still_for_others() -> None:
    clock = EngineClock()
    clock.wait_until(100.0, asleep_s=clock.busy_s)
    assert 100.0 <= clock() < 101.0 and clock.busy_s < 1.0
    before_s = clock()
    with clock.stopped():
        sum(math.sqrt(i) for i in range(300_000))
    assert clock() - before_s < 5e-3
