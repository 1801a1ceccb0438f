"""Admission by adjustment: rates of other robots fall and batch sizes change where the servers as they are lack capacity.

(ROSA §3.4.4.) Placements and assignments stay. No class falls below the rate that it is owed: its floor, and a fair share of its
planned rate. All robots of a class have one rate then, as in a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.scheduler import utility
from ros2_rfm_serving.scheduler.admission import STANDSTILL, AdmissionDecision, Seats, owed_hz
from ros2_rfm_serving.scheduler.link_load import LinkBudget
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import TaskClass
from ros2_rfm_serving.scheduler.schedule_constraints import Array, ScheduleConstraints, unchanged
from ros2_rfm_serving.scheduler.server_load import ServerLoad


@dataclass(frozen=True, kw_only=True)
class AdjustedSchedule:
    seats: Mapping[int, str]
    """Index of a demand of the new robot -> its server."""
    batch_sizes: Mapping[str, int]
    """Batch sizes of the servers that the new robot is assigned to."""
    rates_hz: Mapping[str, float]
    """Task -> action rate of each of its robots."""


class AdmissionAdjustment:
    """Search for an adjustment of one fleet that admits a robot of one task."""

    def __init__(
        self,
        task: TaskClass,
        classes: Sequence[TaskClass],
        hosts: Mapping[str, ServerLoad],
        curves: Curves,
        planned_hz: Mapping[str, float],
        now_hz: Mapping[str, float],
        pledge: LinkBudget | None = None,
        beyond_hz: Mapping[str, float] = MappingProxyType({}),
        within_hz: Mapping[str, float] = MappingProxyType({}),
        aim: str = utility.THROUGHPUT,
    ) -> None:
        """planned_hz, now_hz: task -> action rate of its robots, for tasks with robots. pledge: link budget. beyond_hz, within_hz:
        as in `ScheduleConstraints`, for servers that keep their batch size. aim: objective that plans are compared by."""
        self._aim = aim
        self._pledge, self._beyond_hz, self._within_hz = pledge, beyond_hz, within_hz
        self._task, self._classes, self._hosts, self._curves = task, classes, hosts, curves
        self._planned_hz = planned_hz.get(task.name, 0.0)
        self._demands = {demand.index: demand for one in classes for demand in one.demands}
        owed, had = np.zeros(len(classes)), np.zeros(len(classes))
        for c, one in enumerate(classes):
            if one.name in now_hz or one is task:
                planned = planned_hz.get(one.name, 0.0)
                owed[c] = max(owed_hz(one, planned), STANDSTILL * one.max_rate_hz if one is task else 0.0)
                had[c] = max(planned, now_hz.get(one.name, 0.0)) or one.max_rate_hz
        self._owed_hz, self._most_hz = owed, np.maximum(owed, had)
        counts = [sum(host.demands[one.demands[0].index] for host in hosts.values()) + (one is task) for one in classes]
        self._weights = np.array([one.value * count for one, count in zip(classes, counts, strict=True)])

    def best(self) -> AdjustedSchedule:
        """Return the adjustment with the highest objective. Raises: `ScheduleError` if there is no feasible one."""
        found: list[tuple[float, AdjustedSchedule]] = []
        for seats in self._seatings():
            hosts = self._with(seats)
            beyond_hz = unchanged(self._beyond_hz, hosts, self._hosts)
            within_hz = unchanged(self._within_hz, hosts, self._hosts)
            limits = ScheduleConstraints(self._classes, hosts, self._curves, self._pledge, beyond_hz, within_hz)
            rates_hz = limits.highest(self._owed_hz, self._most_hz, self._weights)
            if rates_hz is not None:
                found.append((self._objective_hz(rates_hz), self._adjusted(seats, rates_hz)))
        if not found:
            raise ScheduleError("nor if every robot has no more than its floor and its fair share, in batches of any size")
        return max(found, key=lambda one: one[0])[1]

    # --- parts ---

    def _objective_hz(self, rates_hz: Array) -> float:
        tops_hz = np.array([one.max_rate_hz for one in self._classes])
        return float(utility.objective(self._aim, list(self._weights * tops_hz), list(rates_hz / tops_hz)))

    def _seatings(self) -> Iterator[Seats]:
        """Yield assignments with the present batch sizes, then with another one for all servers of a model, of which only the
        chosen server will use it."""
        owed = {name: self._at_owed(host) for name, host in self._hosts.items()}
        yield from self._seated(owed)
        for model in dict.fromkeys(demand.model for demand in self._task.coupled):
            sizes = {config.batch_size for config in self._curves.of(model)}
            for size in sorted(sizes):
                yield from self._seated({name: self._resized(host, model, size) for name, host in owed.items()})

    def _seated(self, hosts: Mapping[str, ServerLoad]) -> Iterator[Seats]:
        pledge = self._pledge and self._pledge.at(self._asked_at_owed())
        try:
            yield AdmissionDecision(self._task, self._classes, hosts, self._curves, self._planned_hz, pledge).seats()
        except ScheduleError:
            return

    def _asked_at_owed(self) -> dict[str, dict[str, float]]:
        """Return server -> task -> requests/s at the owed rates."""
        asked: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for name, host in self._hosts.items():
            for index, count in host.demands.items():
                demand = self._demands[index]
                asked[name][self._classes[demand.task].name] += count * demand.rate_hz(float(self._owed_hz[demand.task]))
        return asked

    def _at_owed(self, host: ServerLoad) -> ServerLoad:
        other = host.copied()
        those = [(self._demands[index], count) for index, count in host.demands.items()]
        other.load_hz = sum(count * demand.rate_hz(float(self._owed_hz[demand.task])) for demand, count in those)
        return other

    def _resized(self, host: ServerLoad, model: str, size: int) -> ServerLoad:
        config = replace(host.config, batch_size=size)
        known = config in self._curves.configs.get((model, host.config.gpu_type), ())
        return host.batching(size) if known and host.takes_robots else host

    def _with(self, seats: Seats) -> dict[str, ServerLoad]:
        """Return the servers with the new robot."""
        hosts = dict(self._hosts)
        for index, seat in seats.items():
            name = seat.placement.server
            if hosts[name] is self._hosts[name]:
                hosts[name] = self._hosts[name].batching(seat.placement.batch_size)
            hosts[name].seat(self._demands[index])
        return hosts

    def _adjusted(self, seats: Seats, rates_hz: Array) -> AdjustedSchedule:
        return AdjustedSchedule(
            seats={index: seat.placement.server for index, seat in seats.items()},
            batch_sizes={seat.placement.server: seat.placement.batch_size for seat in seats.values()},
            rates_hz={one.name: float(rate) for one, rate in zip(self._classes, rates_hz, strict=True)},
        )
