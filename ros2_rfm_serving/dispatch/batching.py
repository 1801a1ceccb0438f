"""Batching: the number of ranked requests that run together, and the decision to wait for one more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ros2_rfm_serving.dispatch.base import DispatchDecision, EngineView
from ros2_rfm_serving.dispatch.batch_entry import batch_entry
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.types.batch_wait import is_batch_wait_worthwhile

ExpectedArrivals = Callable[[], Sequence[float]]
"""Function that returns when sessions without a waiting request are expected to send one, on the server's clock."""
Batching = Callable[[Sequence[WaitingRequest], EngineView, float, ExpectedArrivals], DispatchDecision]


def fixed(
    ranked: Sequence[WaitingRequest], engine: EngineView, now_s: float, expected_arrivals: ExpectedArrivals
) -> DispatchDecision:
    """Select all waiting requests at once, up to the batch size (ROSA §3.5)."""
    return DispatchDecision(ranked[: engine.batch_size])


def saturated(
    ranked: Sequence[WaitingRequest], engine: EngineView, now_s: float, expected_arrivals: ExpectedArrivals
) -> DispatchDecision:
    """Select requests up to the size from which more rows hardly improve throughput (Kairos §3.2.2)."""
    return DispatchDecision(ranked[: engine.times.saturation(engine.batch_size)])


def batch_wait(
    ranked: Sequence[WaitingRequest], engine: EngineView, now_s: float, expected_arrivals: ExpectedArrivals
) -> DispatchDecision:
    """Select as `saturated` does, but wait for one more request if that saves more engine time than it idles and causes no request
    to miss a deadline."""
    most, num = engine.times.saturation(engine.batch_size), len(ranked)
    if not 0 < num < most:
        return DispatchDecision(ranked[:most])
    next_s = min((t for t in expected_arrivals() if t > now_s), default=math.inf)
    saved_s = engine.latency_s(num) + engine.latency_s(1) - engine.latency_s(num + 1)
    deadline_s = min(min(w.starves_s, w.due_s) for w in ranked)
    if is_batch_wait_worthwhile(now_s, next_s, saved_s, engine.latency_s(num + 1), deadline_s):
        return DispatchDecision((), next_s)
    return DispatchDecision(ranked)


CONTINUOUS = "continuous"
"""Rows join and leave a running batch one by one (`batch_entry.py`)."""
WAIT = "wait"
"""The batch of `saturated`, begun at once or later (`types/batch_wait.py`)."""
BATCHINGS: dict[str, Batching] = {"fixed": fixed, "saturation": saturated, WAIT: batch_wait, CONTINUOUS: batch_entry}
