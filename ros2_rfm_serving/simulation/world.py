"""State that all parts of one simulated factory share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ros2_rfm_serving.simulation.conditions import SimulationConditions
from ros2_rfm_serving.simulation.network_links import NetworkLinks
from ros2_rfm_serving.simulation.wire import Traffic
from ros2_rfm_serving.virtual_time.events import Events


@dataclass(frozen=True, kw_only=True)
class World:
    seed: int
    warm_up_s: float
    conditions: SimulationConditions
    events: Events = field(default_factory=Events)
    traffic: Traffic = field(default_factory=Traffic)
    roads: NetworkLinks = field(default_factory=NetworkLinks)
    shares: dict[str, int] = field(default_factory=dict)
    """Server -> placements on its GPU in the active schedule, which share its time."""
