"""Recordings of a workload, by the names under which horizons are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.reproductions.kairos.files import SWEEP, TRACES
from lab.reproductions.kairos.sweep import Cell, chosen, load_cells, recording, value_of, with_whole_chunks
from lab.reproductions.kairos.traces import Trace, cut_anew, load_traces
from lab.reproductions.kairos.workloads import Workload
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.types import HorizonRequest

Scene = tuple[str, int]
"""Task and seed."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    workload: Workload
    cells: Sequence[Cell]
    """Cells of the sweep, including disturbed ones."""
    horizons: Mapping[str, Mapping[str, HorizonRequest]]
    """Name -> task -> horizon, as the sweep chooses it."""
    traces: Mapping[str, Mapping[Scene, Trace]]
    """Name -> traces of the same scenes."""

    def only(self, without: str = "", cut: int = 0, succeeding: bool = False) -> Recorded:
        """Return a part of the recordings. without: task to leave out; cut: horizon in place of theirs; succeeding: only scenes
        that succeed under every name."""
        some = next(iter(self.traces.values()))
        failing = {scene for by_scene in self.traces.values() for scene, trace in by_scene.items() if not trace.success}
        scenes = [scene for scene in some if scene[0] != without and not (succeeding and scene in failing)]
        traces = {
            name: {scene: cut_anew(by_scene[scene], cut) if cut else by_scene[scene] for scene in scenes}
            for name, by_scene in self.traces.items()
        }
        return replace(self, traces=traces)

    def requests(self, name: str = "static") -> float:
        """Return the mean number of requests of a task."""
        return float(self._rounds(name).mean())

    def spread(self) -> float:
        """Return standard deviation over mean of the tasks' numbers of requests with static horizons."""
        rounds = self._rounds("static")
        return float(rounds.std() / rounds.mean())

    def lowest(self) -> float:
        """Return the number of requests that a quarter of the tasks does not exceed, over the mean, with static horizons."""
        rounds = self._rounds("static")
        return float(np.percentile(rounds, 25) / rounds.mean())

    def _rounds(self, name: str) -> npt.NDArray[np.int64]:
        return np.array([len(trace.executed) for trace in self.traces[name].values()])


def load(workload: Workload, folder: Path) -> Recorded:
    """Load the recordings. Raises: `ConfigurationError`."""
    cells = with_whole_chunks(load_cells(folder / SWEEP))
    horizons = chosen(workload, (cell for cell in cells if not cell.noise))
    under = {name: {task: recording(workload, horizon) for task, horizon in of.items()} for name, of in horizons.items()}
    traces = named(load_traces(folder / TRACES), under, folder / TRACES)
    return Recorded(workload=workload, cells=cells, horizons=horizons, traces=traces)


def named(
    traces: Sequence[Trace], horizons: Mapping[str, Mapping[str, HorizonRequest]], file: Path
) -> dict[str, dict[Scene, Trace]]:
    """Return name -> traces of scenes that were recorded with all of a task's horizons. Raises: `ConfigurationError`."""
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
