"""Which server hosts what, and who asks whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which model a server hosts, and how it batches."""

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
    """Warm, and out of the normal routes until another server is lost (ROSA §3.4.4)."""
    gpu: str = ""
    """Placements that name the same GPU share it in equal time slices; empty: a GPU of its own."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where one robot sends one component's requests, and how often it may."""

    robot: str
    component: str
    server: str
    max_rate_hz: float
    """inf: as soon as it can"""
    slo_s: float
    predicted_rate_hz: float = 0.0
    """What the schedule expects of it: the scheduler's own book-keeping, not on the wire."""
    standby: str = ""
    """Server to turn to when `server` is lost; empty: none."""
    task: str = ""
    """Task class that the robot is served for; empty: not said."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    epoch: int
    """Counted from 1 by its scheduler."""
    placements: tuple[Placement, ...]
    routes: tuple[Route, ...]
    predicted_actions_hz: float
    policy: str
    scheduler: int = 0
    """Who made it: drawn at random when a scheduler starts; 0: one without a name."""
    released: tuple[str, ...] = ()
    """Robots that are admitted no longer, whoever admitted them."""
    gap: float = field(default=math.nan, compare=False)
    """Share of the highest possible objective that the last plan of the whole factory lacks; NaN: not known."""

    def routes_of(self, robot: str) -> dict[str, Route]:
        return {route.component: route for route in self.routes if route.robot == robot}

    def placement_of(self, server: str) -> Placement | None:
        return next((p for p in self.placements if p.server == server), None)
