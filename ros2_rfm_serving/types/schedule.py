"""Schedule: which server hosts which model, and which server answers which robot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Model that a server hosts, and its batching."""

    server: str
    model: str
    components: tuple[str, ...]
    gpu_type: str
    batching: str
    """`fixed` or `continuous`"""
    batch_size: int
    max_sessions: int
    predicted_p99_s: float
    standby: bool = False
    """The model is loaded, but has no normal routes until another server is lost (ROSA §3.4.4)."""
    gpu: str = ""
    """Placements that name the same GPU share it in equal time slices; empty: the placement has a GPU of its own."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Server that answers one component of one robot, and the largest rate of its requests."""

    robot: str
    component: str
    server: str
    max_rate_hz: float
    """Largest rate of its requests; inf: unlimited"""
    slo_s: float
    predicted_rate_hz: float = 0.0
    """Rate that the schedule expects of it. The scheduler keeps it for itself; it is not transmitted."""
    standby: str = ""
    """Server to use when `server` is lost; empty: none."""
    task: str = ""
    """Task class that the robot is served for; empty: not given."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    epoch: int
    """Number counted from 1 by its scheduler."""
    placements: tuple[Placement, ...]
    routes: tuple[Route, ...]
    predicted_actions_hz: float
    policy: str
    scheduler: int = 0
    """Identity of its scheduler, drawn at random when that starts; 0: it has none."""
    released: tuple[str, ...] = ()
    """Robots that are no longer admitted, whichever scheduler admitted them."""
    gap: float = field(default=math.nan, compare=False)
    """Share of the highest possible objective that the last plan of the whole factory lacks; NaN: not known."""

    def routes_of(self, robot: str) -> dict[str, Route]:
        return {route.component: route for route in self.routes if route.robot == robot}

    def placement_of(self, server: str) -> Placement | None:
        return next((p for p in self.placements if p.server == server), None)
