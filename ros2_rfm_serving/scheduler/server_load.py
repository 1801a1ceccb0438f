"""Load of one server of the active schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import Demand
from ros2_rfm_serving.scheduler.routes import MIN_SESSIONS
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.types import Placement, Route

Seat = tuple[str, str, float, int]
"""Assignment of a robot to a server: task, component, highest rate in Hz, batch size of the server."""


ROUNDING = 1e-6


class ServerLoad:
    def __init__(self, placement: Placement, gpu_type: str, *, slices: int = 1, lives: bool = True) -> None:
        """gpu_type: type whose curves hold for the server. slices: number of models that share its GPU."""
        self.lives = lives
        self.placement = placement
        self.config = ServerConfiguration(placement.model, gpu_type, placement.batching, placement.batch_size, slices)
        self.load_hz = 0.0
        self.sessions = 0
        self.demands: Counter[int] = Counter()
        """Index of a demand -> robots on this server that have it."""
        self.slos: Counter[Slo] = Counter()
        """SLO -> demands on this server that have it."""
        self.standby = ""

    @property
    def takes_robots(self) -> bool:
        return self.lives and not self.placement.standby and not self.placement.gpu

    def add(self, route: Route, demand: Demand) -> None:
        self.load_hz += route.predicted_rate_hz
        self.standby = route.standby or self.standby
        self.seat(demand)

    def seat(self, demand: Demand) -> None:
        """Add a demand of one more robot, without its load."""
        self.sessions += 1
        self.demands[demand.index] += 1
        self.slos[demand.slo] += 1

    def remove(self, route: Route, demand: Demand) -> None:
        self.load_hz -= route.predicted_rate_hz
        self.sessions -= 1
        self.demands[demand.index] -= 1
        self.slos[demand.slo] -= 1
        self.slos += Counter()  # this drops entries that are zero
        self.demands += Counter()

    def capacity_hz(self, slos: Iterable[Slo], curves: Curves) -> float:
        """Return the requests/s with which all of these SLOs are kept."""
        return min((curves.capacity_hz(self.config, slo) for slo in slos), default=curves.max_rate_hz(self.config))

    def is_beyond(self, curves: Curves) -> bool:
        """Return whether the load exceeds the server's curve, as the queue of its robots may allow."""
        most_hz = self.capacity_hz(self.slos, curves)
        return bool(self.sessions) and (any(slo.travel_s for slo in self.slos) or self.load_hz > most_hz * (1 + ROUNDING))

    def frame_rows(self, demands: Sequence[Demand]) -> int:
        """Return the rows that pipelined sessions occupy here. demands: of the problem."""
        return sum(count * demands[index].rows for index, count in self.demands.items())

    def mean_s(self, added_hz: float, curves: Curves) -> float:
        return curves.mean(self.config).at(self.load_hz + added_hz)

    def fitting(self) -> Placement:
        """Return the placement with as many sessions as before, or more where they are needed."""
        needed = max(2 * self.sessions, MIN_SESSIONS)
        return self.placement if needed <= self.placement.max_sessions else replace(self.placement, max_sessions=needed)

    def batching(self, size: int) -> ServerLoad:
        """Return the server with another batch size."""
        other = self.copied()
        other.placement = replace(self.placement, batch_size=size)
        other.config = replace(self.config, batch_size=size)
        return other

    def dead(self) -> ServerLoad:
        other = self.copied()
        other.lives = False
        return other

    def copied(self) -> ServerLoad:
        other = copy(self)
        other.slos, other.demands = self.slos.copy(), self.demands.copy()
        return other


def hosts_of(placements: Sequence[Placement], seen: FactoryEstimates) -> dict[str, ServerLoad]:
    on_gpu = Counter(placement.gpu or placement.server for placement in placements)
    return {p.server: host_of(p, seen, on_gpu[p.gpu or p.server]) for p in placements}


def host_of(placement: Placement, seen: FactoryEstimates, slices: int = 1) -> ServerLoad:
    """Return a server without robots. slices: number of models that share its GPU by time slices."""
    gpu = placement.gpu or placement.server
    return ServerLoad(placement, seen.gpu_type(gpu, placement.gpu_type), slices=slices, lives=gpu not in seen.lost)
