"""Promises as inequalities over the action rates of the classes: SLOs, standby cover, links, and closed loops that keep up.

Loads and latencies only rise with rates: a promise that holds at some rates holds at lower ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.scheduler.link_load import LinkBudget
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import Demand, TaskClass
from ros2_rfm_serving.scheduler.server_load import ServerLoad
from ros2_rfm_serving.scheduler.standby_compatibility import stands_in

BISECTIONS = 20
ROUNDING = 1e-9
Array = npt.NDArray[np.float64]


def unchanged(
    beyond_hz: Mapping[str, float], hosts: Mapping[str, ServerLoad], before: Mapping[str, ServerLoad]
) -> dict[str, float]:
    """Return `beyond_hz` of the servers that still batch as before; for the others no queue was evaluated."""
    return {name: hz for name, hz in beyond_hz.items() if hosts[name].config == before[name].config}


class ScheduleConstraints:
    """Limits of all robots on these servers, with one rate per class."""

    def __init__(
        self,
        classes: Sequence[TaskClass],
        hosts: Mapping[str, ServerLoad],
        curves: Curves,
        pledge: LinkBudget | None = None,
        beyond_hz: Mapping[str, float] = MappingProxyType({}),
        within_hz: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """pledge: link budget; None: no links. beyond_hz: server -> load at which the queue of its robots keeps every SLO although
        the curve does not allow it. within_hz: server -> highest load that it may have, whatever the curve allows."""
        self._classes = classes
        self._demands = {demand.index: demand for task in classes for demand in task.demands}
        self._servers = [host for host in hosts.values() if host.sessions]
        at = {host.placement.server: i for i, host in enumerate(self._servers)}
        loads = np.array([self._load(host) for host in self._servers]).reshape(len(self._servers), -1)
        self._slopes, self._fixed_hz = loads[:, 1:], loads[:, 0]
        self._where = {d: [i for i, host in enumerate(self._servers) if host.demands[d]] for d in self._demands}
        self._lines = _lines(self._servers, curves)
        own_hz = [max(host.capacity_hz(host.slos, curves), beyond_hz.get(host.placement.server, 0.0)) for host in self._servers]
        own_hz = [min(hz, within_hz.get(host.placement.server, math.inf)) for hz, host in zip(own_hz, self._servers, strict=True)]
        rows, limits = [loads], [own_hz]
        for host in self._servers:
            standby = hosts.get(host.standby)
            if standby and not stands_in(standby.config, host.config, idle=host.standby not in at):
                both = loads[at[host.placement.server]] + (loads[at[host.standby]] if host.standby in at else 0.0)
                rows.append(both[None])
                limits.append([standby.capacity_hz({*standby.slos, *host.slos}, curves)])
        if pledge and (carried := self._carried(pledge)):
            rows.append(np.array([row for row, _ in carried]))
            limits.append([limit for _, limit in carried])
        self._rows, self._limits_hz = np.concatenate(rows), np.concatenate([np.array(one) for one in limits]) * (1 + ROUNDING)

    def hold(self, rates_hz: Array) -> bool:
        """Return whether every promise holds. rates_hz: [C]."""
        if np.any(self._rows[:, 0] + self._rows[:, 1:] @ rates_hz > self._limits_hz):
            return False
        means_s = self._means_s(self._fixed_hz + self._slopes @ rates_hz)
        return all(
            rate_hz <= self._closed_loop_hz(task, means_s) * (1 + ROUNDING)
            for task, rate_hz in zip(self._classes, rates_hz, strict=True)
            if rate_hz > 0
        )

    def highest(self, least_hz: Array, most_hz: Array, weights: Array, like_hz: Array | None = None) -> Array | None:
        """Return the highest rates: first all rise alike, or towards `like_hz`, then one class after the other, the heaviest first.
        None: not even the least rates hold."""
        if not self.hold(least_hz):
            return None
        rates_hz = self._towards(most_hz if like_hz is None else np.maximum(like_hz, least_hz), least_hz)
        for c in np.argsort(-weights, kind="stable"):
            goal_hz = rates_hz.copy()
            goal_hz[c] = most_hz[c]
            rates_hz = self._towards(goal_hz, rates_hz)
        return rates_hz

    # --- parts ---

    def _towards(self, goal_hz: Array, rates_hz: Array) -> Array:
        if self.hold(goal_hz):
            return goal_hz
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.hold(rates_hz + middle * (goal_hz - rates_hz)) else (low, middle)
        return rates_hz + low * (goal_hz - rates_hz)

    def _load(self, host: ServerLoad) -> list[float]:
        """Return [1 + C]: requests/s that do not depend on rates, then requests/s per action/s of each class."""
        row = [0.0] * (1 + len(self._classes))
        for index, count in host.demands.items():
            demand = self._demands[index]
            row[0] += count * demand.fixed_hz
            row[1 + demand.task] += count * demand.calls
        return row

    def _carried(self, pledge: LinkBudget) -> list[tuple[list[float], float]]:
        """Return ([1 + C]: Mbit/s on one way of a link, as in `_load`; its capacity) per way, now and after each loss."""
        columns: list[dict[str, dict[str, float]]] = [defaultdict(dict) for _ in range(1 + len(self._classes))]
        for host in self._servers:
            for index, count in host.demands.items():
                demand, server = self._demands[index], host.placement.server
                name = self._classes[demand.task].name
                for column, hz in ((columns[0], demand.fixed_hz), (columns[1 + demand.task], demand.calls)):
                    column[server][name] = column[server].get(name, 0.0) + count * hz
        found = []
        for loads in zip(*map(pledge.loads, columns), strict=True):
            for way in {way: None for load in loads for way in load}:
                found.append(([load.get(way, 0.0) for load in loads], pledge.links.takes_mbit_s[way.host]))
        return found

    def _means_s(self, loads_hz: Array) -> Array:
        means_s = np.empty(len(loads_hz))
        for where, x, y in self._lines:
            means_s[where] = np.interp(loads_hz[where], x, y)  # constant outside; loads beyond the curve exceed every limit
        return means_s

    def _closed_loop_hz(self, task: TaskClass, means_s: Array) -> float:
        return task.closed_loop_hz({d.index: self._slowest_s(d, means_s) for d in task.coupled})

    def _slowest_s(self, demand: Demand, means_s: Array) -> float:
        where = self._where[demand.index]
        return float(means_s[where].max()) if where else 0.0


def _lines(hosts: Sequence[ServerLoad], curves: Curves) -> list[tuple[list[int], Array, Array]]:
    """Group servers with equal configurations, with their mean latency over load."""
    alike: dict[ServerConfiguration, list[int]] = {}
    for i, host in enumerate(hosts):
        alike.setdefault(host.config, []).append(i)
    return [(where, np.array(curves.mean(config).x), np.array(curves.mean(config).y)) for config, where in alike.items()]
