"""Waiting times at a server that all requests share, per group of robots: text models with continuous batching.

Each robot asks at its own pace, by the clock or with its actions, and its requests are slower the more are served at once. A curve
is for the number of robots that its load needed when it was measured, and covers nothing below its lowest load.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop

import numpy as np

from ros2_rfm_serving.profiles import ContinuousService, ProcessorSharing
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup, Request
from ros2_rfm_serving.scheduler.prediction.initial_states import DRAWS, again, in_order, team
from ros2_rfm_serving.scheduler.prediction.queue_stats import Found, QueueRuns, QueueStats, WaitCounter, answer

REMEMBERED = 256
"""Number of cached queues."""


@lru_cache(maxsize=REMEMBERED)
def shared_waits(members: tuple[ClientGroup, ...], law: ContinuousService) -> QueueStats:
    rng = np.random.default_rng(sum(member.num_robots for member in members))
    return QueueRuns(members, law.mean_s(), lambda end_s: _run(members, law, rng, end_s)).waits


def _run(members: tuple[ClientGroup, ...], law: ContinuousService, rng: np.random.Generator, end_s: float) -> Found:
    """Simulate one start."""
    robots = team(members, law.mean_s(), rng)
    works = again(rng.gamma(law.jitter**-2, law.jitter**2, DRAWS) if law.jitter else np.ones(1))
    coming = in_order(robots)
    server: ProcessorSharing[Request] = ProcessorSharing(law)
    found: Found = [WaitCounter() for _ in members]
    while coming or len(server):
        free_s = server.next_finish_s()
        if coming and coming[0][0] < free_s:
            arriving = heappop(coming)
            server.add(arriving, arriving[0], next(works))
            continue
        answer(server.finished(free_s), free_s, coming, end_s, found)
    return found
