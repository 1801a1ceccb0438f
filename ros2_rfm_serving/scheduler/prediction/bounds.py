"""Upper bounds of one factory, one per kind of schedule: a schedule is compared with the bound of its own kind."""

from __future__ import annotations

from typing import NamedTuple

from ros2_rfm_serving.scheduler.prediction.bound import Bound, upper_bound
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import PlanningProblem


class BoundKind(NamedTuple):
    shared_gpus: bool = False
    """True when models share a GPU in time slices."""
    own_queues: bool = False
    """True when robots keep, by their own closed queue, an SLO that the profile's curve misses."""


class Bounds:
    """Cache of the bounds: those of other kinds than the first are computed on demand."""

    def __init__(self, problem: PlanningProblem, curves: Curves, by_curves: Bound) -> None:
        self._problem, self._curves = problem, curves
        self._known = {BoundKind(): by_curves}

    @property
    def by_curves(self) -> Bound:
        return self._known[BoundKind()]

    def of(self, kind: BoundKind) -> Bound:
        if kind not in self._known:
            self._known[kind] = upper_bound(self._problem, self._curves, **kind._asdict())
        return self._known[kind]
