"""A workload, its sweep and its traces, small."""

from __future__ import annotations

from dataclasses import replace

from lab.reproductions.kairos.recorded import Recorded
from lab.reproductions.kairos.sweep import Cell
from lab.reproductions.kairos.traces import Trace
from lab.reproductions.kairos.workloads import Workload

WORKLOAD = Workload(
    name="flow",
    title="two tasks",
    model="none",
    tasks=("push", "reach"),
    static=(4, 8, 16),
    thresholds={"confidence": (0.1, 0.3, 0.8), "curvature": (0.1, 0.3)},
    episodes=100,
)
TRACE = Trace(policy="static", value=4.0, task="push", seed=3, success=True, executed=(4, 2))
PUSH = [replace(TRACE, seed=seed, executed=(4, 4, 3, 2 + seed % 3)) for seed in range(6)]


def cell(policy: str, value: float, successes: int, horizon: float, task: str = "push") -> Cell:
    return Cell(
        noise=0.0, policy=policy, value=value, task=task, episodes=100, successes=successes, rounds=100, steps=round(100 * horizon)
    )


SWEEP = [
    cell("static", 4, 98, 4.0),
    cell("static", 8, 98, 7.5),
    cell("static", 16, 90, 14.0),
    cell("confidence", 0.1, 99, 6.0),
    cell("confidence", 0.3, 98, 9.0),
    cell("confidence", 0.8, 88, 15.0),
    cell("curvature", 0.1, 97, 5.0),
    cell("curvature", 0.3, 96, 12.0),
]


def recorded(cells: list[Cell] | None = None) -> Recorded:
    traces = {name: {("push", trace.seed): trace for trace in PUSH} for name in ("static", "confidence")}
    return Recorded(workload=WORKLOAD, cells=cells or [], horizons={}, traces=traces)
