"""What one server of the schedule in force carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace

from ros2_rfm_serving.scheduler.prediction.curves import Config, Curves
from ros2_rfm_serving.scheduler.problem import Demand
from ros2_rfm_serving.scheduler.routes import MIN_SESSIONS
from ros2_rfm_serving.scheduler.seen import Seen
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.types import Placement, Route

Seat = tuple[str, str, float, int]
"""Of a robot at a server: task, component, highest rate in Hz, batch size of the server."""


ROUNDING = 1e-6


class Host:
    def __init__(self, placement: Placement, gpu_type: str, *, slices: int = 1, lives: bool = True) -> None:
        """gpu_type: of the curves that hold for it. slices: models that share its GPU."""
        self.lives = lives
        self.placement = placement
        self.config = Config(placement.model, gpu_type, placement.batching, placement.batch_size, slices)
        self.load_hz = 0.0
        self.sessions = 0
        self.demands: Counter[int] = Counter()
        """Index of a demand -> robots that have it here."""
        self.slos: Counter[Slo] = Counter()
        """How many of those that are here have it."""
        self.standby = ""

    @property
    def takes_robots(self) -> bool:
        return self.lives and not self.placement.standby and not self.placement.gpu

    def add(self, route: Route, demand: Demand) -> None:
        self.load_hz += route.predicted_rate_hz
        self.standby = route.standby or self.standby
        self.seat(demand)

    def seat(self, demand: Demand) -> None:
        """Of one more robot, whatever its rate."""
        self.sessions += 1
        self.demands[demand.index] += 1
        self.slos[demand.slo] += 1

    def remove(self, route: Route, demand: Demand) -> None:
        self.load_hz -= route.predicted_rate_hz
        self.sessions -= 1
        self.demands[demand.index] -= 1
        self.slos[demand.slo] -= 1
        self.slos += Counter()  # without those that nobody has any more
        self.demands += Counter()

    def capacity_hz(self, slos: Iterable[Slo], curves: Curves) -> float:
        """Requests/s within all of these."""
        return min((curves.capacity_hz(self.config, slo) for slo in slos), default=curves.max_rate_hz(self.config))

    def is_beyond(self, curves: Curves) -> bool:
        """Loaded further than its curve says, by its robots' own queue."""
        most_hz = self.capacity_hz(self.slos, curves)
        return bool(self.sessions) and (any(slo.travel_s for slo in self.slos) or self.load_hz > most_hz * (1 + ROUNDING))

    def frame_rows(self, demands: Sequence[Demand]) -> int:
        """That pipelined sessions keep here. demands: of the problem."""
        return sum(count * demands[index].rows for index, count in self.demands.items())

    def mean_s(self, added_hz: float, curves: Curves) -> float:
        return curves.mean(self.config).at(self.load_hz + added_hz)

    def fitting(self) -> Placement:
        """It admits as many sessions as before, or more if it must."""
        needed = max(2 * self.sessions, MIN_SESSIONS)
        return self.placement if needed <= self.placement.max_sessions else replace(self.placement, max_sessions=needed)

    def batching(self, size: int) -> Host:
        """The same in batches of another size."""
        other = self.copied()
        other.placement = replace(self.placement, batch_size=size)
        other.config = replace(self.config, batch_size=size)
        return other

    def dead(self) -> Host:
        other = self.copied()
        other.lives = False
        return other

    def copied(self) -> Host:
        other = copy(self)
        other.slos, other.demands = self.slos.copy(), self.demands.copy()
        return other


def hosts_of(placements: Sequence[Placement], seen: Seen) -> dict[str, Host]:
    on_gpu = Counter(placement.gpu or placement.server for placement in placements)
    return {p.server: host_of(p, seen, on_gpu[p.gpu or p.server]) for p in placements}


def host_of(placement: Placement, seen: Seen, slices: int = 1) -> Host:
    """Without anybody on it. slices: models that share its GPU, and take turns."""
    gpu = placement.gpu or placement.server
    return Host(placement, seen.gpu_type(gpu, placement.gpu_type), slices=slices, lives=gpu not in seen.lost)
