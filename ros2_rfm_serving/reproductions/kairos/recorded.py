"""What was recorded of a workload, by the names under which horizons are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.reproductions.kairos.files import SWEEP, TRACES
from ros2_rfm_serving.reproductions.kairos.sweep import Cell, chosen, load_cells, value_of
from ros2_rfm_serving.reproductions.kairos.traces import Trace, cut_anew, load_traces
from ros2_rfm_serving.reproductions.kairos.workloads import Workload
from ros2_rfm_serving.types import Horizon

Scene = tuple[str, int]
"""Task and seed"""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    workload: Workload
    cells: Sequence[Cell]
    """Of the sweep, disturbed ones too."""
    horizons: Mapping[str, Mapping[str, Horizon]]
    """By name and task, as the sweep says."""
    traces: Mapping[str, Mapping[Scene, Trace]]
    """By the same name: the same scenes under each."""

    def requests(self, without: str = "", cut: int = 0) -> float:
        """Of a task on average, with static horizons; `without`: but for this one; `cut`: with this horizon in place of theirs."""
        return float(self._rounds(without, cut).mean())

    def spread(self, cut: int = 0) -> float:
        """Of the tasks' numbers of requests: standard deviation over mean."""
        rounds = self._rounds("", cut)
        return float(rounds.std() / rounds.mean())

    def _rounds(self, without: str, cut: int) -> npt.NDArray[np.int64]:
        traces = [trace for trace in self.traces["static"].values() if trace.task != without]
        return np.array([len((cut_anew(trace, cut) if cut else trace).executed) for trace in traces])


def load(workload: Workload, folder: Path) -> Recorded:
    """Raises: `ConfigurationError`."""
    cells = load_cells(folder / SWEEP)
    horizons = chosen(workload, (cell for cell in cells if not cell.noise))
    return Recorded(
        workload=workload, cells=cells, horizons=horizons, traces=named(load_traces(folder / TRACES), horizons, folder / TRACES)
    )


def named(traces: Sequence[Trace], horizons: Mapping[str, Mapping[str, Horizon]], file: Path) -> dict[str, dict[Scene, Trace]]:
    """Only scenes that were recorded with all of a task's horizons. Raises: `ConfigurationError`."""
    by_setting: dict[tuple[str, str, float], dict[int, Trace]] = {}
    for trace in traces:
        by_setting.setdefault((trace.task, trace.policy, trace.value), {})[trace.seed] = trace
    wanted = {(name, task): (task, h.policy, value_of(h)) for name, by_task in horizons.items() for task, h in by_task.items()}
    seeds: set[int] | None = None
    for setting in wanted.values():
        own = by_setting.get(setting, {}).keys()
        seeds = set(own) if seeds is None else seeds & own
        if not seeds:
            task, policy, value = setting
            problem, fix = f"no trace of {task!r} with {policy} {value:g}", "record with --record, which adds what is missing"
            raise ConfigurationError(problem, file=str(file), fix=fix)
    kept = sorted(seeds or ())
    return {
        name: {(task, seed): by_setting[wanted[name, task]][seed] for task in by_task for seed in kept}
        for name, by_task in horizons.items()
    }
