"""Routes and placements after an admission by adjustment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler.problem import Demand
from ros2_rfm_serving.scheduler.server_load import ROUNDING, ServerLoad
from ros2_rfm_serving.types import Placement, Route


def route_of(robot: RobotEntry, demand: Demand, host: ServerLoad, cap_hz: float, rate_hz: float) -> Route:
    """Return the route of an admitted robot to this server."""
    return Route(
        robot=robot.name,
        component=demand.component,
        server=host.placement.server,
        max_rate_hz=demand.rate_hz(cap_hz),
        predicted_rate_hz=demand.rate_hz(rate_hz),
        slo_s=demand.slo.told_s,
        standby=host.standby,
        task=robot.task,
    )


def at_rate(route: Route, demand: Demand, rate_hz: float, now_hz: float) -> Route:
    """Return the route with its class at this action rate; it is the same where the rate has not changed."""
    if not demand.goal_coupled or abs(rate_hz - now_hz) <= ROUNDING * rate_hz:
        return route
    return replace(route, max_rate_hz=demand.rate_hz(rate_hz), predicted_rate_hz=demand.rate_hz(rate_hz))


def batched(placement: Placement, sizes: Mapping[str, int]) -> Placement:
    """Return the placement with its new batch size. sizes: server -> batch size where it changes."""
    return replace(placement, batch_size=sizes.get(placement.server, placement.batch_size))


def quicker(routes: Iterable[Route], changed: Iterable[Route]) -> set[str]:
    """Return servers with a higher rate for any robot; only these need a check, as promises also hold at lower rates."""
    before = {(route.robot, route.component): route.max_rate_hz for route in routes}
    return {r.server for r in changed if r.max_rate_hz > before.get((r.robot, r.component), 0.0) + ROUNDING}
