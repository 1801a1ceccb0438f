"""Check whether a queue can predict a dispatch policy: one of another package may read data that no plan knows, such as images, or
be inconsistent between calls.

Nothing here reads a clock.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, policy
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup
from ros2_rfm_serving.scheduler.prediction.closed_queue import BatchService, QueueRun
from ros2_rfm_serving.scheduler.prediction.queue_stats import Found

TRIED_S = 15.0
CROWD = (
    ClientGroup(num_robots=4, period_s=0.0, think_s=0.1, slo_s=0.3, task="first", kind=("system1", "first")),
    ClientGroup(
        num_robots=3, period_s=0.4, think_s=0.2, slo_s=0.2, task="second", kind=("system1", "second"), calls=((0.2, 0.5, 0.1),)
    ),
    ClientGroup(num_robots=3, period_s=0.3, think_s=0.2, overlapped=True, step_s=0.05, chunk_s=0.8, slo_s=0.4, gives_way=True),
)
"""Robots that exceed what a server with batches of two can serve: some request is always left out."""


@cache
def why_unpredictable(name: str) -> str:
    """Return why no plan can rank as this dispatch policy does; empty: a plan can."""
    if name in DISPATCH_POLICIES:
        return ""
    try:
        policy(name)
    except ConfigurationError as error:
        return f"it cannot be made where plans are made: {error.problem}"
    problems: list[str] = []
    first, again = (_tried(name, problems) for _ in range(2))
    if problems:
        return f"for a robot that a plan makes up {problems[0]}"
    return "" if first == again else "the same requests are ranked otherwise when they are ranked again"


def _tried(name: str, problems: list[str]) -> list[list[float]]:
    """Return the latencies of one start, always the same one."""
    service = BatchService(batch_size=2, mean_s=0.1, jitter=0.05, order=name)
    run = QueueRun(CROWD, service, np.random.default_rng(0), lambda counter, problem: problems.append(problem))
    found: Found = run.run(TRIED_S)
    return [tally.latencies for tally in found]
