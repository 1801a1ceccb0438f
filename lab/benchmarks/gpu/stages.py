"""AURAS' execution modes on the device, each thread with a stream of its own: throughput, response and age of observations."""

from __future__ import annotations

from lab.benchmarks.gpu.child import Task
from lab.benchmarks.gpu.networks import engine_of
from lab.benchmarks.pipelines.executors import measure
from lab.benchmarks.pipelines.modes import DEC, SEQ, Mode, auras, par
from ros2_rfm_serving.engines.bundles import load_bundle
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.operate.pipeline_timing import Policy
from ros2_rfm_serving.shipped import shipped

SHIPPED = {"flow": "metaworld_flow"}
"""Policies whose perception can be spread over frames, too."""
MODES = (SEQ, DEC, par(2), par(4), auras(2), auras(5))
SPREAD = (auras(2, 2), auras(5, 2))
"""Modes with perception in two stages."""


def run(task: Task, name: str) -> None:
    rows = task.rows("stages")
    modes = (*MODES, *SPREAD) if name in SHIPPED else MODES
    missing = [mode for mode in modes if not rows.has(policy=name, mode=str(mode))]
    if not missing:
        return
    policy = _policy(task, name)
    for done, mode in enumerate(missing):
        task.begin(done)
        rows.add(policy=name, mode=str(mode), **_figures(policy, mode, task))
        print(f"{name}, {mode}: {rows.rows[-1]['rate_hz']} answers/s", flush=True)


def _figures(policy: Policy, mode: Mode, task: Task) -> dict[str, float]:
    answers, seconds = (12, 1.0) if task.is_toy else (200, 4.0)
    base = measure(policy, SEQ, answers=answers, seconds=seconds)
    own = measure(policy, mode, frame_s=base.interval_s / mode.workers, answers=answers, seconds=seconds)
    return {
        "rate_hz": own.rate_hz,
        "speedup": own.rate_hz / base.rate_hz,
        "latency_ms": 1e3 * own.latency_s,
        "interval_cv": own.interval_cv,
        "perception_ms": 1e3 * own.perception_s,
        "first_ms": 1e3 * own.first_s,
        "answers": own.answers,
    }


def _policy(task: Task, name: str) -> Policy:
    """Return a policy that is neither compiled nor recorded, because a recorded graph belongs to one thread."""
    options = BundleOptions(
        device=task.machine.device,
        dtype="float32" if task.is_toy or name in SHIPPED else "bfloat16",
        compile=False,
        cuda_graphs=False,
        trace=False,
    )
    if name in SHIPPED:
        engine = load_bundle(name, shipped("models", SHIPPED[name]), options)
    else:
        engine = engine_of(name, task.machine.size, options)
    assert isinstance(engine, SteppingEngine)
    engine.warm_up()
    return Policy(model=engine.model, config=engine.sampling, engine=engine)
