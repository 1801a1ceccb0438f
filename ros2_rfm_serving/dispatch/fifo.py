"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest

SINCE = attrgetter("since_s")


class FifoPolicy(DispatchPolicy):
    """Order by waiting time, longest first."""

    READS_EXECUTIONS = False

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return waiting if len(waiting) == 1 else sorted(waiting, key=SINCE)
