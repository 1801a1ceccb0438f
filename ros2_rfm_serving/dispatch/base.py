"""What a dispatch policy sees and says: plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ros2_rfm_serving.dispatch.flight import Flight
from ros2_rfm_serving.dispatch.history import History
from ros2_rfm_serving.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.dispatch.waiting import Waiting
from ros2_rfm_serving.types.record import record


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
    free_there_s: float = -math.inf
    """When an engine that is elsewhere is expected to have run what is on its way to it, on the clock of here."""
    flight: Flight | None = None
    """Of an engine whose rows go on step by step; None: it goes by whole calls."""

    def latency_s(self, num_rows: int) -> float:
        """From the beginning of a batch to its replies; 0: not known yet."""
        return (self.flight or self.times).seconds(num_rows) + self.round_trip_s

    def answers_in_s(self, num_rows: int, now_s: float) -> float:
        """A batch that is sent now, behind those that are on their way."""
        return self.latency_s(num_rows) + max(0.0, self.free_there_s - now_s - self.round_trip_s / 2)

    @property
    def next_rows(self) -> int:
        """Requests that it can take when it is free again."""
        return self.flight.leaving if self.flight is not None else self.batch_size

    def begins_s(self, position: int, now_s: float) -> float:
        """When it gets to the request at this place of the queue, from `now_s` on; batches are as large as pays."""
        if self.flight is not None and not self.flight.num_whole:
            return self.flight.begins_in_s(position)
        rows = self.times.saturation(self.batch_size)
        return max(0.0, self.free_s - now_s) + position // rows * self.latency_s(rows)


@record(frozen=True, slots=True)
class Selection:
    """What runs now, and if nothing does, when to look again should nothing new arrive before."""

    batch: Sequence[Waiting]
    look_again_s: float = math.inf
    whole: bool = False
    """In one call, on an engine whose rows could go on step by step."""


NOTHING = Selection(())


class DispatchPolicy:
    """Ranks; how many of the first run together is batching's part (`batching.py`)."""

    READS_EXECUTIONS = True
    """Whether it looks at when robots executed and waited (`History`: wait ratio, execution times, pace): a plan that asks it many
    times keeps no account of them for one that does not."""

    def rank(self, waiting: Sequence[Waiting], engine: EngineView, now_s: float) -> Sequence[Waiting]:
        """Most urgent first."""
        raise NotImplementedError

    def task_ended(self, task: History) -> None:
        """For policies that learn."""
