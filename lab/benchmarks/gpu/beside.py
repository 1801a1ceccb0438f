"""Perception of new rows beside the solver steps of those in flight, or before them: time per answer in each case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from statistics import median

from lab.benchmarks.gpu.child import Task
from lab.benchmarks.gpu.networks import engine_of, recorded
from ros2_rfm_serving.engines.flow.perception_stream import InlinePerception
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate.pipeline_timing import clock_of

ENTERING, TOY_ENTERING = (1, 2, 4), (1,)
"""Rows that enter at once."""
SIZES, TOY_SIZES = (1, 2, 4, 8, 16, 32), (1, 2, 4)
TIMES, TOY_TIMES = 200, 6
"""Number of answers."""
LEAST_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class Flow:
    perception_s: float
    """Median time until rows that enter at once are accepted."""
    step_s: float
    """Median time of a step of all rows in flight."""
    row_s: float
    """Time from one answer to the next."""


def run(task: Task, name: str) -> None:
    """Measure recorded engines, which are not compiled, as in `batching`."""
    rows, machine = task.rows("beside"), task.machine
    missing = [each for each in (TOY_ENTERING if task.is_toy else ENTERING) if not rows.has(architecture=name, entering=each)]
    if not missing:
        return
    beside = engine_of(name, machine.size, recorded(machine, TOY_SIZES if task.is_toy else SIZES))
    before = SteppingEngine(beside.stepped, beside.sampling, InlinePerception())
    for engine in (before, beside):
        engine.warm_up()
    for done, entering in enumerate(missing):
        task.begin(done)
        wanted = entering * (TOY_TIMES if task.is_toy else TIMES)
        one, other = (measured(engine, entering, wanted, machine.device) for engine in (before, beside))
        rows.add(
            architecture=name,
            entering=entering,
            ran="beside" if machine.on_gpu else "before",
            perception_ms=1e3 * one.perception_s,
            step_ms=1e3 * one.step_s,
            before_ms=1e3 * one.row_s,
            beside_ms=1e3 * other.row_s,
            ratio=other.row_s / one.row_s,
            at_best=max(one.perception_s, one.step_s) / (one.perception_s + one.step_s),
        )
        print(f"{name}, {entering} at once: {rows.rows[-1]['ratio']}, at best {rows.rows[-1]['at_best']}", flush=True)


def measured(engine: SteppingEngine, entering: int, wanted: int, device: str) -> Flow:
    """Return the times for rows that enter in groups as soon as as many have ended: those in flight are spread over the solver's
    steps.
    Raises: `ModelError`.
    """
    clock, blank, numbers = clock_of(device), warmup_request(engine.contract), count()
    most = entering * max(1, min(engine.num_iterations(blank), engine.max_rows // entering))
    in_flight, num_ended = set[int](), -2 * most
    enters_s, turns_s, began_s = list[float](), list[float](), clock()
    while num_ended < wanted:
        if num_ended < 0:  # the pipeline fills
            enters_s, turns_s, began_s = [], [], clock()
        begins_s = clock()
        if len(in_flight) + entering <= most:
            new = {next(numbers): blank for _ in range(entering)}
            _raised(engine.enter(new))
            in_flight |= new.keys()
            enters_s.append(clock() - begins_s)
        begins_s = clock()
        answers = engine.iterate(engine.ready())
        turns_s.append(clock() - begins_s)
        _raised(answers)
        in_flight -= answers.keys()
        num_ended += len(answers)
    row_s = max(LEAST_S, clock() - began_s) / num_ended
    engine.leave(in_flight)
    return Flow(perception_s=max(LEAST_S, median(enters_s or [0.0])), step_s=median(turns_s), row_s=row_s)


def _raised(answers: Mapping[int, object]) -> None:
    for answer in answers.values():
        if isinstance(answer, ModelError):
            raise answer
