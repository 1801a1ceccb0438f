"""Standby of an idle server: its first robot gives it a reserved standby, if one carries the load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.scheduler.link_load import LinkBudget
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem
from ros2_rfm_serving.scheduler.server_load import ServerLoad
from ros2_rfm_serving.scheduler.standby_compatibility import stands_in
from ros2_rfm_serving.types import Route

Asking = Sequence[tuple[Route, Demand]]
"""Routes of one robot with their demands."""


def with_reserved(
    asking: Asking, hosts: Mapping[str, ServerLoad], curves: Curves, problem: PlanningProblem, pledge: LinkBudget | None
) -> list[Route]:
    """Return the routes of an admitted robot with standbys. pledge: link budget; None: no links."""
    standbys: dict[str, str] = {}
    for name in {route.server for route, _ in asking if not hosts[route.server].sessions}:
        mine = [(route, demand) for route, demand in asking if route.server == name]
        load_hz, slos = sum(route.predicted_rate_hz for route, _ in mine), {demand.slo for _, demand in mine}
        for other, host in hosts.items():
            reserved = host.placement.standby and host.placement.model == hosts[name].placement.model
            if not reserved or not problem.may_cover(other, name) or _jams(mine, other, pledge):
                continue
            alike = stands_in(host.config, hosts[name].config, idle=not host.sessions)
            if alike or host.load_hz + load_hz <= host.capacity_hz({*host.slos, *slos}, curves):
                standbys[name] = other
    return [replace(route, standby=standbys.get(route.server, route.standby)) for route, _ in asking]


def _jams(mine: Asking, standby: str, pledge: LinkBudget | None) -> bool:
    """Return whether links do not carry the first robot of a server on its standby."""
    if pledge is None:
        return False
    asked: dict[str, float] = defaultdict(float)
    for route, _ in mine:
        asked[route.task] += route.max_rate_hz
    return pledge.most({standby: asked}, {}) < 0
