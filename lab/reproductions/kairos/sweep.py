"""Success against mean executed horizon (Kairos §5.2, Fig. 11): counts of a sweep, and the choice of horizons by them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from lab.reproductions.kairos.workloads import Workload
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import wilson_interval
from ros2_rfm_serving.types import HorizonRequest

MARGIN = 0.05
"""Difference of success up to which two settings count as equal, if it is not significant either."""
WHOLE_CHUNKS = math.inf
"""Threshold t that no action exceeds."""


def value_of(horizon: HorizonRequest) -> float:
    """Return the swept value: H or t."""
    return float(horizon.steps) if horizon.policy == "static" else horizon.threshold


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Counts of one setting on one task."""

    noise: float
    """Noise of the execution."""
    policy: str
    value: float
    task: str
    episodes: int
    successes: int
    rounds: int
    steps: int
    """Executed steps in all rounds."""

    @classmethod
    def none(cls, noise: float, policy: str, value: float, task: str) -> Cell:
        """Return an empty cell."""
        return cls(noise=noise, policy=policy, value=value, task=task, episodes=0, successes=0, rounds=0, steps=0)

    @property
    def setting(self) -> tuple[float, str, float, str]:
        return self.noise, self.policy, self.value, self.task

    @property
    def success(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval."""
        return wilson_interval(self.successes, self.episodes)

    def keeps_up_with(self, best: Cell) -> bool:
        """Return whether it loses at most `MARGIN` or one episode of success, whichever is more, and not significantly much."""
        return self.success >= best.success - max(MARGIN, 1 / self.episodes) - 1e-9 and self.reaches(best)

    def reaches(self, other: Cell) -> bool:
        """Return whether it succeeds not significantly less often."""
        _, high = difference_interval((self.successes, self.episodes), (other.successes, other.episodes))
        return high >= 0.0

    @property
    def horizon(self) -> float:
        """Return the mean of the control steps that a round executed."""
        return self.steps / self.rounds


def difference_interval(one: tuple[int, int], other: tuple[int, int]) -> tuple[float, float]:
    """Return the 95 % interval of a difference of (successes, episodes) rates, by Newcombe from Wilson's intervals."""
    (low, high), (other_low, other_high) = wilson_interval(*one), wilson_interval(*other)
    rate, other_rate = one[0] / one[1], other[0] / other[1]
    below, above = math.hypot(rate - low, other_high - other_rate), math.hypot(high - rate, other_rate - other_low)
    return rate - other_rate - below, rate - other_rate + above


def pooled(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells summed over the tasks, by setting."""
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


def with_whole_chunks(cells: Iterable[Cell]) -> list[Cell]:
    """Add t = inf for every policy: it executes whole chunks like the longest static horizon, whose cells are used."""
    cells = list(cells)
    longest: dict[tuple[float, str], Cell] = {}
    for cell in cells:
        if cell.policy == "static":
            longest[cell.noise, cell.task] = max(cell, longest.get((cell.noise, cell.task), cell), key=lambda c: c.value)
    swept = dict.fromkeys((c.noise, c.task, c.policy) for c in cells if c.policy != "static" and (c.noise, c.task) in longest)
    held = {cell.setting for cell in cells}
    added = [replace(longest[noise, task], policy=policy, value=WHOLE_CHUNKS) for noise, task, policy in swept]
    return cells + [cell for cell in added if cell.setting not in held]


def recording(workload: Workload, horizon: HorizonRequest) -> HorizonRequest:
    """Return the horizon that its traces are recorded with: whole chunks use the longest static horizon."""
    whole = horizon.policy != "static" and horizon.threshold == WHOLE_CHUNKS
    return workload.horizon("static", workload.static[-1]) if whole else horizon


def chosen(workload: Workload, cells: Iterable[Cell]) -> dict[str, dict[str, HorizonRequest]]:
    """Return the horizons to be compared under load, by name and task (Kairos §5.3).

    `static`: the largest that succeeds as often as the best one. `confidence` and `curvature`: of the thresholds that do, including
    t = inf, the one that executes most. `.._one`: the same with one horizon or threshold for all tasks. `static_best`: the largest
    of those with the highest success, as in the paper, where one episode may decide.
    """
    cells = with_whole_chunks(cells)
    of_tasks = {task: [cell for cell in cells if cell.task == task] for task in workload.tasks}
    of_all = pooled(cells)
    names = ("static", *workload.thresholds)

    def horizon(cell: Cell) -> HorizonRequest:
        return workload.horizon(cell.policy, cell.value)

    found = {name: {task: horizon(_longest(of, name)) for task, of in of_tasks.items()} for name in names}
    found["static_best"] = {task: horizon(_most_successful(of)) for task, of in of_tasks.items()}
    for name in ("static", "confidence"):
        found[f"{name}_one"] = dict.fromkeys(workload.tasks, horizon(_longest(of_all, name)))
    return found


def _most_successful(cells: Sequence[Cell]) -> Cell:
    """Return the most successful static horizon; of several, the largest."""
    return max((c for c in cells if c.policy == "static"), key=lambda c: (c.success, c.value))


def _longest(cells: Sequence[Cell], policy: str) -> Cell:
    """Return the longest cell that succeeds as often as the best static horizon; if there is none, the most successful."""
    best, mine = _most_successful(cells), [c for c in cells if c.policy == policy]
    able = [c for c in mine if c.keeps_up_with(best)]
    return max(able, key=lambda c: (c.horizon, c.value)) if able else max(mine, key=lambda c: c.success)


def better_static(cells: Sequence[Cell], policy: str) -> list[float]:
    """Return static horizons that succeed significantly more often than the policy at any threshold (including t = inf) that
    executes at least as much per round; empty: the policy is as good as any. Raises: `KeyError` when it was not swept."""
    cells = with_whole_chunks(cells)
    static, own = [c for c in cells if c.policy == "static"], [c for c in cells if c.policy == policy]
    if not own:
        raise KeyError(policy)
    return [c.value for c in static if not any(p.horizon >= c.horizon and p.reaches(c) for p in own)]


def load_cells(file: Path) -> list[Cell]:
    """Load a sweep. Raises: `ConfigurationError`."""
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
