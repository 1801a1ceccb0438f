"""Success against mean executed horizon (Kairos §5.2, Fig. 11): what a sweep counted, and what is chosen by it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import wilson_interval
from ros2_rfm_serving.types import Horizon

MIN_STEPS = 4
"""H_min: the smallest static horizon of the sweep (Kairos §3.1)."""
STATIC = (4, 6, 8, 10, 12, 16, 20, 24)
THRESHOLDS: Mapping[str, Sequence[float]] = {
    "confidence": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5),
    "curvature": (0.1, 0.2, 0.3, 0.5, 0.8, 1.2),
}


def settings() -> list[Horizon]:
    """Of the sweep."""
    static = [Horizon(policy="static", steps=steps, min_steps=MIN_STEPS) for steps in STATIC]
    return static + [horizon_of(policy, t) for policy, values in THRESHOLDS.items() for t in values]


def horizon_of(policy: str, value: float) -> Horizon:
    if policy == "static":
        return Horizon(policy=policy, steps=round(value), min_steps=MIN_STEPS)
    return Horizon(policy=policy, threshold=value, min_steps=MIN_STEPS)


def value_of(horizon: Horizon) -> float:
    """What is swept: H or t."""
    return float(horizon.steps) if horizon.policy == "static" else horizon.threshold


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting on one task."""

    noise: float
    """Of the execution."""
    policy: str
    value: float
    task: str
    episodes: int
    successes: int
    rounds: int
    steps: int
    """Executed in all rounds."""

    @property
    def success(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """95 %"""
        return wilson_interval(self.successes, self.episodes)

    @property
    def horizon(self) -> float:
        """Mean of the control steps that a round executed."""
        return self.steps / self.rounds


def pooled(cells: Iterable[Cell]) -> list[Cell]:
    """Over the tasks, by setting."""
    groups: dict[tuple[float, str, float], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.noise, cell.policy, cell.value), []).append(cell)
    return [
        Cell(
            noise=noise,
            policy=policy,
            value=value,
            task="all",
            episodes=sum(c.episodes for c in group),
            successes=sum(c.successes for c in group),
            rounds=sum(c.rounds for c in group),
            steps=sum(c.steps for c in group),
        )
        for (noise, policy, value), group in groups.items()
    ]


def chosen(cells: Iterable[Cell]) -> dict[str, dict[str, Horizon]]:
    """Horizons to be compared under load, by name and task (Kairos §5.3).

    `static`: the largest of those with the highest success on the task. `confidence` and `curvature`: of the thresholds that
    succeed no less often on it, the one that executes most. `.._one`: the same with one horizon or threshold for all tasks.
    """
    cells = list(cells)
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    by_task = {task: [cell for cell in cells if cell.task == task] for task in tasks}
    static = {task: _best_static(of) for task, of in by_task.items()}
    found = {"static": {task: _horizon(cell) for task, cell in static.items()}}
    for policy in THRESHOLDS:
        found[policy] = {task: _horizon(_matching(by_task[task], policy, static[task].success)) for task in tasks}
    one = _best_static(all_tasks := pooled(cells))
    found["static_one"] = dict.fromkeys(tasks, _horizon(one))
    found["confidence_one"] = dict.fromkeys(tasks, _horizon(_matching(all_tasks, "confidence", one.success)))
    return found


def _horizon(cell: Cell) -> Horizon:
    return horizon_of(cell.policy, cell.value)


def _best_static(cells: Sequence[Cell]) -> Cell:
    return max((c for c in cells if c.policy == "static"), key=lambda c: (c.success, c.value))


def _matching(cells: Sequence[Cell], policy: str, success: float) -> Cell:
    """Of none that succeeds as often, the most successful."""
    mine = [c for c in cells if c.policy == policy]
    able = [c for c in mine if c.success >= success]
    return max(able, key=lambda c: (c.horizon, c.value)) if able else max(mine, key=lambda c: c.success)


def margins(cells: Sequence[Cell], policy: str) -> dict[float, float]:
    """By static horizon: how much more often the policy succeeds, at best, while executing at least as much per round.

    Nowhere negative: it Pareto-dominates the static horizons. With a threshold that no action exceeds it executes whole chunks, as
    the longest static horizon does.
    """
    static = [c for c in cells if c.policy == "static"]
    whole = max(static, key=lambda c: c.value)
    points = [whole, *(c for c in cells if c.policy == policy)]
    return {c.value: max(p.success - c.success for p in points if p.horizon >= c.horizon) for c in static}


def load_cells(file: Path) -> list[Cell]:
    """Raises: `ConfigurationError`."""
    names = [field.name for field in fields(Cell)]
    try:
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
        return [_cell(row) for row in rows]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        fix = f"record it again; its columns are {','.join(names)}"
        raise ConfigurationError("is no sweep", file=str(file), fix=fix) from error


def _cell(row: Mapping[str, str]) -> Cell:
    return Cell(
        noise=float(row["noise"]),
        policy=row["policy"],
        value=float(row["value"]),
        task=row["task"],
        episodes=int(row["episodes"]),
        successes=int(row["successes"]),
        rounds=int(row["rounds"]),
        steps=int(row["steps"]),
    )


def rows_of(cells: Iterable[Cell]) -> list[dict[str, float | str]]:
    return [asdict(cell) for cell in cells]
