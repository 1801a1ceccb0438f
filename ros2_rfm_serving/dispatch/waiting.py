"""A request that waits, as policies see it."""

from __future__ import annotations

from dataclasses import dataclass

from ros2_rfm_serving.dispatch.history import History
from ros2_rfm_serving.types import InferenceRequest
from ros2_rfm_serving.types.record import sealed


@sealed
@dataclass(frozen=True, eq=False, slots=True)
class Waiting:
    """A decoded request in its session's mailbox. Instants are seconds on the server's clock."""

    request: InferenceRequest
    stamp_ns: int
    arrived_s: float
    since_s: float
    """Since when its session waits: a newer observation keeps its predecessor's place in the queue."""
    starves_s: float
    """When its robot runs out of actions, or did."""
    due_s: float
    """When its SLO is over; inf: it has none."""
    history: History
