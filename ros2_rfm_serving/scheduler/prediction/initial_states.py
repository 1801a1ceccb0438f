"""Initial state of all robots of a queue, and their first requests."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain, cycle

import numpy as np

from ros2_rfm_serving.scheduler.prediction.clients import (
    MOMENT_S,
    PARTED_S,
    WARM_UP_S,
    ClientGroup,
    InitialState,
    Request,
    RobotClient,
    Seconds,
    cycle_s,
)
from ros2_rfm_serving.scheduler.prediction.frames import FrameClock, FrameRequest
from ros2_rfm_serving.types.desynchronisation import LatencyBaseline, Spacing

DRAWS = 1 << 12
"""Random numbers that are drawn before the same ones repeat."""
TAKEN = 128
"""Random numbers that are converted at a time."""


def in_order(robots: Sequence[RobotClient]) -> list[Request]:
    """Return the first request of each robot, as a heap with the earliest first."""
    coming = [(robot.sent_s + robot.way_s(), i, robot) for i, robot in enumerate(robots)]
    heapq.heapify(coming)
    return coming


def team(
    members: Sequence[ClientGroup],
    service_s: float,
    rng: np.random.Generator,
    moment_s: float = MOMENT_S,
    *,
    ranked: bool = False,
    spacing: Spacing | None = None,
    at_once: bool = False,
) -> list[RobotClient]:
    """Return all robots before one start, each of which begins at a random time of its cycle. ranked: at a random time before the
    warm-up ends, as in virtual time (`simulation/`), because a dispatch policy may use the age of a task. spacing: as in
    `InitialState`. at_once: all begin at the same moment, and requests count once such a crowd has to have parted."""
    trips_s = again(rng.exponential(1.0, DRAWS)) if any(m.jitter_s for m in members) else iter(())
    num_robots, counts_from_s = sum(member.num_robots for member in members), PARTED_S if at_once else WARM_UP_S
    together = InitialState(num_robots, trips_s, rng, LatencyBaseline(), moment_s, spacing, counts_from_s)
    ends_s = [WARM_UP_S if m.pipelining or ranked else min(cycle_s(m, service_s), WARM_UP_S) for m in members]
    ends_s = [0.0] * len(members) if at_once else ends_s
    return [
        robot
        for i, member in enumerate(members)
        for _ in range(member.num_robots)
        for robot in _asking(i, member, rng.random() * ends_s[i], together)
    ]


def _asking(index: int, member: ClientGroup, begins_s: float, of: InitialState) -> Iterator[RobotClient]:
    """Yield one robot, or its requests that are in flight at once."""
    if member.pipelining is None:
        yield RobotClient(index, member, begins_s, of)
        return
    frames = FrameClock(member, begins_s)
    for _ in range(member.pipelining.depth):
        yield FrameRequest(index, member, frames, of)


def again(draws: Seconds) -> Iterator[float]:
    """Return an endless repetition of the numbers. They are converted some at a time, because one start seldom needs all."""
    if len(draws) <= TAKEN:
        return cycle(draws.tolist())
    some = [draws[i : i + TAKEN] for i in range(0, len(draws), TAKEN)]
    return chain.from_iterable(map(np.ndarray.tolist, cycle(some)))
