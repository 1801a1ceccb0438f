"""How long robots wait at a server that all who ask share, by who they are: text models that batch continuously.

Each of them asks at its own pace, by the clock or with its actions, and is the slower the more are there at once. A curve is of as
many robots as its load took when it was measured, and says nothing below its lowest load.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop

import numpy as np

from ros2_rfm_serving.profiles import ContinuousService, ProcessorSharing
from ros2_rfm_serving.scheduler.prediction.askers import Member, Request
from ros2_rfm_serving.scheduler.prediction.queued import Found, QueueRuns, Tally, Waits, answer
from ros2_rfm_serving.scheduler.prediction.teams import DRAWS, again, in_order, team

REMEMBERED = 256
"""Queues."""


@lru_cache(maxsize=REMEMBERED)
def shared_waits(members: tuple[Member, ...], law: ContinuousService) -> Waits:
    rng = np.random.default_rng(sum(member.num_robots for member in members))
    return QueueRuns(members, law.mean_s(), lambda end_s: _run(members, law, rng, end_s)).waits


def _run(members: tuple[Member, ...], law: ContinuousService, rng: np.random.Generator, end_s: float) -> Found:
    """Of one start."""
    robots = team(members, law.mean_s(), rng)
    works = again(rng.gamma(law.jitter**-2, law.jitter**2, DRAWS) if law.jitter else np.ones(1))
    coming = in_order(robots)
    server: ProcessorSharing[Request] = ProcessorSharing(law)
    found: Found = [Tally() for _ in members]
    while coming or len(server):
        free_s = server.next_finish_s()
        if coming and coming[0][0] < free_s:
            arriving = heappop(coming)
            server.add(arriving, arriving[0], next(works))
            continue
        answer(server.finished(free_s), free_s, coming, end_s, found)
    return found
