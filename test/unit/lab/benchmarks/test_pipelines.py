"""Execution modes on a small policy: what they answer, and how they are timed."""

from __future__ import annotations

import threading
from functools import cache

import pytest

from lab.benchmarks.pipelines.executors import measure
from lab.benchmarks.pipelines.modes import DEC, SEQ, Mode, auras, flights_of, par
from ros2_rfm_serving.engines.base import Predicts, SamplingConfig
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate.pipeline_timing import Answered, Clock, Feed, Policy, Run, frames
from ros2_rfm_serving.profiles.tuner import Timing
from test.unit.engines.test_engines import small_policy

CONFIG = SamplingConfig(num_steps=6, predicts=Predicts.CLEAN)


@cache
def policy() -> Policy:
    model = small_policy()
    return Policy(model=model, config=CONFIG, engine=SteppingEngine(model, CONFIG))


@pytest.mark.parametrize("mode", [SEQ, DEC, par(3), auras(3), auras(2, 2, fetch_offset=-1), auras(3, alpha=1.0)], ids=str)
def test_every_mode_answers_and_is_timed(mode: Mode) -> None:
    timing = measure(policy(), mode, frame_s=0.001, answers=8, seconds=0.2)
    assert timing.answers >= 4
    assert 0 < timing.interval_s <= timing.latency_s * (1 + 1e-6) + 1e-4
    assert timing.first_s > 0


def test_a_pipeline_answers_every_frame_and_what_it_observed_depth_frames_ago() -> None:
    clock = Clock()
    began, answers = clock(), list[float]()
    for observed_s in frames(policy(), auras(3).pipelining, Feed(policy(), clock)):
        answers.append(observed_s)
        if len(answers) == 6:
            break
    assert sorted(answers) == answers
    assert all(began <= at < clock() for at in answers)
    engine = policy().engine
    assert isinstance(engine, SteppingEngine)
    assert not engine.ready()  # who stops leaves nothing in flight


def test_workers_share_a_camera_and_skip_what_is_old() -> None:
    clock = Clock(2)
    feed = Feed(policy(), clock, 0.005)
    taken: list[tuple[float, int]] = []

    def work() -> None:
        for _ in range(10):
            observed_s, request = feed.take()
            taken.append((observed_s, request.id.sequence))
            sum(range(200_000))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers, first_s = [number for _, number in taken], min(taken)[0]
    assert len(set(numbers)) == 20
    assert all(abs(at / 0.005 - round(at / 0.005)) < 1e-6 for at in (observed_s - first_s for observed_s, _ in taken))


def test_a_wait_in_which_nothing_is_computed_takes_no_time() -> None:
    clock = Clock()
    before = clock()
    clock.wait_until(before + 1000.0)
    assert 1000.0 <= clock() - before < 1001.0


def test_a_worker_that_fails_ends_the_run() -> None:
    run = Run(2, 1000, 1000.0)

    def fails() -> None:
        raise ModelError("lost")

    def works() -> None:
        while run.going:
            run.answers[:] = [Answered(0.0, 0.0)]

    with pytest.raises(ModelError, match="lost"):
        run.in_threads([works, fails])


def test_who_cannot_step_cannot_have_frames() -> None:
    model = small_policy()
    whole = Policy(model=model, config=CONFIG, engine=FlowEngine(model, CONFIG))
    with pytest.raises(ModelError, match="single steps"):
        measure(whole, auras(2))


def test_measured_times_become_control_steps() -> None:
    timing = Timing(
        interval_s=0.2, interval_cv=0.0, latency_s=0.6, perception_s=0.1, first_s=0.6, cpu_share=1.0, memory_mb=0.0, answers=9
    )
    first = next(flights_of(par(3), timing, 6, 0.05))
    assert first.answered_at == pytest.approx(12.0)
    piped = next(flights_of(auras(3), timing, 6, 0.05))
    assert piped.answered_at == pytest.approx(4 * 4.0)
    assert timing.scaled(2.0).rate_hz == pytest.approx(2.5)
