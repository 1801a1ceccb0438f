"""Ratios of an architecture's latencies, in turns in one process: eager and recorded, batches of 1 and 16, beside TensorRT's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from lab.benchmarks.gpu import goals
from lab.benchmarks.gpu.child import Task
from lab.benchmarks.gpu.networks import engine_of, recorded
from lab.benchmarks.gpu.speeds import fitted_request
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError

BATCH, TOY_BATCH = 16, 4
ROUNDS, CALLS = 5, 12
TOY_ROUNDS, TOY_CALLS = 2, 2
VIEWS, STEPS = ("front",), 4
"""Setting of NVIDIA's measurement of GR00T N1.7."""


def run(task: Task, name: str) -> None:
    """Measure the missing ratios. Raises: `ModelError`."""
    rows, batch = task.rows(goals.FILE), TOY_BATCH if task.is_toy else BATCH
    done = [key for key in ("graphs", "batch") if rows.has(architecture=name, ratio=key)]
    if len(done) < 2:
        ms = by_turns(_sides(task, name, batch), task.is_toy)
        if "graphs" not in done:
            of_rounds = _quotients(ms["eager"], ms["recorded"])
            goals.add(rows, "graphs", name, (median(ms["eager"]), median(ms["recorded"])), "ms", _ran(task), of_rounds=of_rounds)
        if "batch" not in done:
            of_rounds = [batch * quotient for quotient in _quotients(ms["recorded"], ms["batch"])]
            rates = (1e3 * batch / median(ms["batch"]), 1e3 / median(ms["recorded"]))
            case = f"batch of {batch}" if task.is_toy else ""
            goals.add(rows, "batch", name, rates, "requests/s", case, of_rounds=of_rounds)
    if name == "groot_n1_7" and not rows.has(architecture=name, ratio="tensorrt"):
        task.begin(2 - len(done))
        own = by_turns({"own": _call(_one_view(task, name), 1)}, task.is_toy)["own"]
        of_rounds = [ms / goals.TENSORRT_MS for ms in own]
        goals.add(rows, "tensorrt", name, (median(own), goals.TENSORRT_MS), "ms", _ran(task), of_rounds=of_rounds)


def _quotients(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


def by_turns(sides: Mapping[str, Callable[[], None]], is_toy: bool) -> dict[str, list[float]]:
    """Return each side's median latency in ms, round by round. Sides take turns, so that a warm card favours none."""
    rounds, calls = (TOY_ROUNDS, TOY_CALLS) if is_toy else (ROUNDS, CALLS)
    seen: dict[str, list[float]] = {side: [] for side in sides}
    for call in sides.values():
        call()
    for turn in range(rounds):
        order = list(sides)
        for side in (*order[turn % len(order) :], *order[: turn % len(order)]):
            seen[side].append(median(_timed(sides[side]) for _ in range(calls)))
    return seen


def _timed(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began_s)


def _sides(task: Task, name: str, batch: int) -> dict[str, Callable[[], None]]:
    options = recorded(task.machine, (1, batch))
    graphs = engine_of(name, task.machine.size, options)
    eager = engine_of(name, task.machine.size, options.model_copy(update={"cuda_graphs": False}))
    return {"eager": _call(eager, 1), "recorded": _call(graphs, 1), "batch": _call(graphs, batch)}


def _one_view(task: Task, name: str) -> SteppingEngine:
    options = recorded(task.machine, (1,)).model_copy(update={"num_steps": STEPS})
    return engine_of(name, task.machine.size, options, VIEWS)


def _call(engine: SteppingEngine, size: int) -> Callable[[], None]:
    """Return a call of `infer`, which ends when its chunks are on the host. Raises: `ModelError`, also from the call."""
    engine.prepare(size)
    requests = [fitted_request(engine)] * size

    def call() -> None:
        for answer in engine.infer(requests):
            if isinstance(answer, ModelError):
                raise answer

    return call


def _ran(task: Task) -> str:
    return "" if task.machine.on_gpu else "nothing is recorded on a CPU"
