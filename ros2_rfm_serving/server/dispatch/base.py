"""What a dispatch policy sees and says: plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ros2_rfm_serving.server.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.server.history import History
from ros2_rfm_serving.types import InferenceRequest


class Waiting(NamedTuple):
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


@dataclass(slots=True)
class EngineView:
    """One engine, as a policy sees it."""

    batch_size: int
    """Rows that fit into a batch."""
    times: ServiceTimes
    round_trip_s: float = 0.0
    """To an engine that is elsewhere, beyond what `times` say."""
    free_s: float = -math.inf
    """When it is expected to be able to begin the next batch."""

    def latency_s(self, num_rows: int) -> float:
        """From the beginning of a batch to its replies; 0: not known yet."""
        return self.times.seconds(num_rows) + self.round_trip_s


class Selection(NamedTuple):
    """What runs now, and if nothing does, when to look again should nothing new arrive before."""

    batch: Sequence[Waiting]
    look_again_s: float = math.inf


NOTHING = Selection(())


class DispatchPolicy:
    """Ranks; how many of the first run together is batching's part (`batching.py`)."""

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        """Most urgent first."""
        raise NotImplementedError

    def task_ended(self, task: History) -> None:
        """For policies that learn."""
