"""Least attained service of the task first (Autellix)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest

ATTAINED = attrgetter("history.attained_s", "since_s")


class LeastAttainedPolicy(DispatchPolicy):
    """Order by the task's attained engine time, least first; equal ones by arrival."""

    READS_EXECUTIONS = False

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=ATTAINED)
