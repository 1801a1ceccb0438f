"""Fixed, wait and continuous batching of an architecture on the device: `rfm bench continuous`, of random weights."""

from __future__ import annotations

from statistics import median

from lab.benchmarks.continuous.live import Bench, Row, Setting
from lab.benchmarks.continuous.report import clock_of
from lab.benchmarks.gpu import goals
from lab.benchmarks.gpu.child import Task
from lab.benchmarks.gpu.networks import engine_of, recorded
from lab.benchmarks.gpu.pieces import BATCHED
from lab.benchmarks.gpu.rows import Rows

ROBOTS, TOY_ROBOTS = (4, 8, 16, 32), (3,)
SIZES, TOY_SIZES = (1, 2, 4, 8, 16, 32), (1, 2, 4)
LOADS, TOY_LOADS = (0.5, 0.7, 0.8), (0.7,)
GOAL_LOAD, GOAL_ROBOTS = 0.7, (16, 8)
FIGURES = {"p50_s": "continuous_p50", "p99_s": "continuous_p99"}
"""Figure of a run -> goal of its ratio to fixed batches."""


def run(task: Task, name: str, extent: str = "") -> None:
    """Measure recorded engines: shapes are recorded within a second, and compiled within a minute each.

    extent: `all` for every load and fleet; else the load that has a goal, of two fleets.
    """
    rows, machine = task.rows("batching"), task.machine
    cases = _cases(task.is_toy, everything=extent == "all" or name != BATCHED[0])
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
        for batching in (each for each in row.runs if not rows.has(architecture=name, robots=robots, load=load, batching=each)):
            rows.add(architecture=name, robots=robots, load=load, batching=batching, **_figures(row, batching))
        if load == GOAL_LOAD:
            _add_ratios(task.rows(goals.FILE), name, robots, row)


def _add_ratios(rows: Rows, name: str, robots: int, row: Row) -> None:
    """Keep the median of the rounds' ratios: both ways of batching had the same arrivals in each."""
    for figure, key in FIGURES.items():
        case = f"{robots} robots"
        if not rows.has(architecture=name, ratio=key, case=case):
            ms = [1e3 * median(getattr(run, figure) for run in row.runs[batching]) for batching in ("continuous", "fixed")]
            goals.add(rows, key, name, (ms[0], ms[1]), "ms", case, of_rounds=row.ratios("continuous", figure))


def _cases(is_toy: bool, *, everything: bool) -> list[tuple[int, float]]:
    """Return (robots, load), by value."""
    if is_toy:
        return [(robots, load) for robots in TOY_ROBOTS for load in TOY_LOADS]
    first = [(robots, GOAL_LOAD) for robots in GOAL_ROBOTS]
    rest = [(robots, load) for robots in ROBOTS for load in LOADS if (robots, load) not in first]
    return [*first, *rest] if everything else first


def _figures(row: Row, batching: str) -> dict[str, float | str]:
    """Return the figures; ratios are to fixed batches, the median of the rounds; `meets`: whether both goals are met."""
    runs = row.runs[batching]
    p50, p99 = (median(row.ratios(batching, figure)) for figure in FIGURES)
    return {
        "asked_hz": row.asked_hz,
        "highest_hz": median(row.highest_hz[batching]),
        "p50_ms": 1e3 * median(run.p50_s for run in runs),
        "p99_ms": 1e3 * median(run.p99_s for run in runs),
        "p50_ratio": p50,
        "p99_ratio": p99,
        "busy_ms": 1e3 * median(run.cpu_s for run in runs),
        "rows": median(run.mean_rows for run in runs),
        "meets": str(goals.BY_KEY["continuous_p50"].meets(p50) and goals.BY_KEY["continuous_p99"].meets(p99)),
    }
