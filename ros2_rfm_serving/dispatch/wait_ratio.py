"""Execution-aware scheduling by wait ratio (Kairos Algorithm 1, phases 1 and 2; phase 3 is `server/engine_queues.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from ros2_rfm_serving.dispatch.base import DispatchPolicy, EngineView
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.types.state import Kept, kept

BUCKETS = 10
"""Number of buckets, B."""
AGING_ROUNDS = 10
"""Aging parameter A: a request that was passed over this often moves up a bucket."""


class WaitRatioPolicy(DispatchPolicy):
    """Order by the bucket of the task's wait ratio, highest first; within a bucket, longest last execution first."""

    KEPT: ClassVar[Kept] = kept(buckets="_buckets", aging_rounds="_aging_rounds")

    def __init__(self, buckets: int = BUCKETS, aging_rounds: int = AGING_ROUNDS) -> None:
        self._buckets, self._aging_rounds = buckets, aging_rounds

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda w: self._urgency(w, now_s))

    def _urgency(self, waiting: WaitingRequest, now_s: float) -> tuple[int, float, float]:
        history = waiting.history
        execution_s = history.last_execution_s * (1 + history.skipped)
        return -self.bucket(history.wait_ratio(now_s), history.skipped), -execution_s, waiting.since_s

    def bucket(self, wait_ratio: float, skipped: int) -> int:
        """Return the bucket of a wait ratio, 0 to B - 1 (lines 6-8)."""
        last = self._buckets - 1
        bucket = min(last, int(wait_ratio * self._buckets))
        return min(last, bucket + math.ceil(skipped / self._aging_rounds)) if skipped >= self._aging_rounds else bucket
