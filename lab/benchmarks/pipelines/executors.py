"""Execution modes of AURAS §6.1 in one process, with one thread of PyTorch per call: their answers, and the times of these.

All of them run the same model, solver and noise, as `operate/pipeline_timing.py` times them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch

from lab.benchmarks.pipelines.modes import Kind, Mode
from ros2_rfm_serving.engines.flow.device import settle
from ros2_rfm_serving.engines.flow.sampling import denoise, held_of, sample, start_of, velocity_of
from ros2_rfm_serving.engines.flow.solvers import solver_of
from ros2_rfm_serving.operate.pipeline_timing import Feed, Policy, Run, measure_execution, measure_pipeline
from ros2_rfm_serving.profiles.tuner import Timing
from ros2_rfm_serving.types import InferenceRequest


def measure(policy: Policy, mode: Mode, *, frame_s: float = 0.0, answers: int = 60, seconds: float = 4.0) -> Timing:
    """Time a mode.

    Args:
        policy: what is executed.
        mode: how it is executed.
        frame_s: AURAS' frame, with which PAR gets its observations (§6.1).
        answers: answers after which it ends.
        seconds: time after which it ends early.

    Raises:
        ModelError: the policy cannot be executed in this mode.
    """
    if mode.kind is Kind.AURAS:
        return measure_pipeline(policy, mode.pipelining, answers=answers, seconds=seconds)
    workers = mode.workers if mode.kind is Kind.PAR else 1
    execute = partial(_RUNS[mode.kind], policy, mode, frame_s)
    return measure_execution(policy, execute, in_flight=mode.in_flight, workers=workers, answers=answers, seconds=seconds)


def _sequential(policy: Policy, mode: Mode, frame_s: float, run: Run) -> None:
    feed = Feed(policy, run.clock)
    while run.going:
        observed_s, request = feed.take()
        sample(policy.model, [request], policy.config)
        run.answered(observed_s)


def _decoupled(policy: Policy, mode: Mode, frame_s: float, run: Run) -> None:
    """Run DEC; the public context is one reference, which the perceiving thread replaces."""
    feed, solver = Feed(policy, run.clock), solver_of(policy.config)
    newest: list[tuple[float, InferenceRequest, object]] = []
    there = threading.Event()

    def perceive() -> None:
        while run.going:
            observed_s, request = feed.take()
            with torch.inference_mode():
                context = policy.model.perceive([request])
                settle(policy.config.device)  # another stream reads it
                newest[:] = [(observed_s, request, context)]
            run.perceptions_s.append(run.clock() - observed_s)
            there.set()

    def generate() -> None:
        while run.going:
            if not there.wait(1.0):
                continue
            observed_s, request, context = newest[0]
            with torch.inference_mode():
                x = start_of([request], policy.model.contract, policy.config)
                held = held_of([request], policy.model.contract, policy.config, x)
                x, _ = denoise(partial(velocity_of, policy.model, context), x, held, solver)
            policy.model.denormalize(x.cpu().numpy())
            run.answered(observed_s)

    run.in_threads([generate, perceive])


def _parallel(policy: Policy, mode: Mode, frame_s: float, run: Run) -> None:
    feed = Feed(policy, run.clock, frame_s)

    def work() -> None:
        while run.going:
            observed_s, request = feed.take()
            sample(policy.model, [request], policy.config)
            run.answered(observed_s)

    run.in_threads([work] * mode.workers)


_RUNS: dict[Kind, Callable[[Policy, Mode, float, Run], None]] = {Kind.SEQ: _sequential, Kind.DEC: _decoupled, Kind.PAR: _parallel}
