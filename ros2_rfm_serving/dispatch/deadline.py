"""Earliest starvation first: a deadline policy with the robot's deadline."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest

STARVES = attrgetter("starves_s", "since_s")


class DeadlinePolicy(DispatchPolicy):
    """Order by the time at which the robot's actions run out or have run out."""

    READS_EXECUTIONS = False

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=STARVES)
