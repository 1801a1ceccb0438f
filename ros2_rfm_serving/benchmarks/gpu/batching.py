"""Fixed, wait and continuous batching of an architecture on the device: `rfm bench continuous`, of random weights."""

from __future__ import annotations

from statistics import median

from ros2_rfm_serving.benchmarks.continuous.live import Bench, Row, Setting
from ros2_rfm_serving.benchmarks.continuous.report import clock_of
from ros2_rfm_serving.benchmarks.gpu.child import Task
from ros2_rfm_serving.benchmarks.gpu.networks import engine_of, recorded

ROBOTS, TOY_ROBOTS = (4, 8, 16, 32), (3,)
SIZES, TOY_SIZES = (1, 2, 4, 8, 16, 32), (1, 2, 4)
LOADS, TOY_LOADS = (0.5, 0.7, 0.8), (0.7,)
GOALS = {"p50_s": 0.7, "p99_s": 0.8}
"""Of continuous batching, times what fixed batches take"""


def run(task: Task, name: str) -> None:
    """Recorded, not compiled: shapes are recorded within a second, and compiled within a minute each."""
    rows, machine = task.rows("batching"), task.machine
    cases = [(robots, load) for robots in (TOY_ROBOTS if task.is_toy else ROBOTS) for load in (TOY_LOADS if task.is_toy else LOADS)]
    missing = [case for case in cases if not rows.has(architecture=name, robots=case[0], load=case[1], batching="continuous")]
    if not missing:
        return
    engine = engine_of(name, machine.size, recorded(machine, TOY_SIZES if task.is_toy else SIZES))
    engine.warm_up()
    for done, (robots, load) in enumerate(missing):
        task.begin(done)
        setting = Setting(
            load=load,
            rounds=1 if task.is_toy else 5,
            seconds=1.0 if task.is_toy else 3.0,
            clock=clock_of(machine.device),
            size_px=(224, 224),
        )
        (row,) = Bench(engine, setting).rows([robots])
        for batching in row.runs:
            rows.add(architecture=name, robots=robots, load=load, batching=batching, **_figures(row, batching))
        ratios = ", ".join(f"{figure} {median(row.ratios('continuous', figure)):.2f}" for figure in GOALS)
        print(f"{name}, {robots} robots, {load:.0%} load: continuous to fixed {ratios}", flush=True)


def _figures(row: Row, batching: str) -> dict[str, float | str]:
    """Ratios are to fixed batches, the median of the rounds; `meets`: the goal of both."""
    runs = row.runs[batching]
    p50, p99 = (median(row.ratios(batching, figure)) for figure in GOALS)
    return {
        "asked_hz": row.asked_hz,
        "highest_hz": median(row.highest_hz[batching]),
        "p50_ms": 1e3 * median(run.p50_s for run in runs),
        "p99_ms": 1e3 * median(run.p99_s for run in runs),
        "p50_ratio": p50,
        "p99_ratio": p99,
        "busy_ms": 1e3 * median(run.cpu_s for run in runs),
        "rows": median(run.mean_rows for run in runs),
        "meets": str(p50 <= GOALS["p50_s"] and p99 <= GOALS["p99_s"]),
    }
