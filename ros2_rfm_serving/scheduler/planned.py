"""A plan of a whole factory, with all that it was made from."""

from __future__ import annotations

from typing import NamedTuple

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.types import Schedule


class Planned(NamedTuple):
    fleet: Fleet
    """As planned, with its robots."""
    factory: Factory
    previous: Schedule | None
    """Beside which it was made."""
    policy: str
