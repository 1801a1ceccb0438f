"""Batching: the number of ranked requests that run together, and the decision to wait for one more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ros2_rfm_serving.dispatch.base import EngineView, Selection
from ros2_rfm_serving.dispatch.entering import joining
from ros2_rfm_serving.dispatch.waiting import Waiting
from ros2_rfm_serving.types.batch_wait import is_batch_wait_worthwhile

Asks = Callable[[], Sequence[float]]
"""Function that returns when sessions without a waiting request are expected to send one, on the server's clock."""
Batching = Callable[[Sequence[Waiting], EngineView, float, Asks], Selection]


def fixed(ranked: Sequence[Waiting], engine: EngineView, now_s: float, asks: Asks) -> Selection:
    """Select all waiting requests at once, up to the batch size (ROSA §3.5)."""
    return Selection(ranked[: engine.batch_size])


def saturated(ranked: Sequence[Waiting], engine: EngineView, now_s: float, asks: Asks) -> Selection:
    """Select requests up to the size from which more rows hardly improve throughput (Kairos §3.2.2)."""
    return Selection(ranked[: engine.times.saturation(engine.batch_size)])


def worth_waiting(ranked: Sequence[Waiting], engine: EngineView, now_s: float, asks: Asks) -> Selection:
    """Select as `saturated` does, but wait for one more request if that saves more engine time than it idles and causes no request
    to miss a deadline."""
    most, num = engine.times.saturation(engine.batch_size), len(ranked)
    if not 0 < num < most:
        return Selection(ranked[:most])
    next_s = min((t for t in asks() if t > now_s), default=math.inf)
    saved_s = engine.latency_s(num) + engine.latency_s(1) - engine.latency_s(num + 1)
    deadline_s = min(min(w.starves_s, w.due_s) for w in ranked)
    if is_batch_wait_worthwhile(now_s, next_s, saved_s, engine.latency_s(num + 1), deadline_s):
        return Selection((), next_s)
    return Selection(ranked)


CONTINUOUS = "continuous"
"""Rows join and leave a running batch one by one (`entering.py`)."""
WAIT = "wait"
"""The batch of `saturated`, begun at once or later (`types/batch_wait.py`)."""
BATCHINGS: dict[str, Batching] = {"fixed": fixed, "saturation": saturated, WAIT: worth_waiting, CONTINUOUS: joining}
