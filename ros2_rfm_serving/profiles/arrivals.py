"""Arrival processes under which a profile is measured: each decides the time of the next request.

    periodic   equally spaced: one source, or many in step
    poisson    independent requests: the load of very many sources; an open loop, so at full rate its queue never settles
    fleet      robots: each has one request in flight and a period of its own; the load that a factory makes

All times are in seconds from the start of the load.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple, Protocol

import numpy as np

from ros2_rfm_serving.errors import ProfileError
from ros2_rfm_serving.profiles.table import ARRIVALS

FLEET_PERIOD = 6.0
"""Period of a fleet's robot as a multiple of the unloaded latency: the robot acts five times as long as it waits."""
PERIOD_JITTER = 0.1
"""Share by which each period of a robot is longer or shorter, at most."""


class Arrival(NamedTuple):
    """A request, ordered by its sending time."""

    at_s: float
    source: int


class ArrivalProcess(Protocol):
    def next_s(self) -> float:
        """Return the sending time of the next request, which may be past; infinity when every source waits for an answer."""

    def next_arrival(self) -> Arrival:
        """Return that request, which has then reached the server."""

    def answered(self, source: int, now_s: float) -> None:
        """Process a reply that has reached its source."""


class OpenLoop:
    """Requests that do not depend on answers: equally spaced, or with exponential gaps when a generator is given."""

    def __init__(self, rate_hz: float, rng: np.random.Generator | None = None) -> None:
        self._gap_s, self._rng = 1.0 / rate_hz, rng
        self._next_s, self._count = 0.0, 0

    def next_s(self) -> float:
        return self._next_s

    def next_arrival(self) -> Arrival:
        sent = Arrival(self._next_s, self._count)
        self._count += 1
        self._next_s = self._next_s + self._rng.exponential(self._gap_s) if self._rng else self._count * self._gap_s
        return sent

    def answered(self, source: int, now_s: float) -> None:
        """Ignore the reply, since no source waits."""


class ClosedLoop:
    """Robots in closed loop. A request that is due while the robot still waits is sent with the answer.

    Robots start at random phases. A request that is sent late does not delay the next one, so the declared rate is kept.
    """

    def __init__(self, rate_hz: float, unloaded_s: float, rng: np.random.Generator) -> None:
        num_robots = max(1, math.ceil(rate_hz * FLEET_PERIOD * unloaded_s - 1e-9))
        self._period_s = num_robots / rate_hz
        self._rng = rng
        self._due_s = (rng.random(num_robots) * self._period_s).tolist()
        self._ready = [Arrival(due_s, robot) for robot, due_s in enumerate(self._due_s)]
        heapq.heapify(self._ready)

    def next_s(self) -> float:
        return self._ready[0].at_s if self._ready else math.inf

    def next_arrival(self) -> Arrival:
        sent = heapq.heappop(self._ready)
        self._due_s[sent.source] += self._period_s * self._rng.uniform(1 - PERIOD_JITTER, 1 + PERIOD_JITTER)
        return sent

    def answered(self, source: int, now_s: float) -> None:
        heapq.heappush(self._ready, Arrival(max(self._due_s[source], now_s), source))


def make_arrivals(arrivals: str, rate_hz: float, unloaded_s: float, rng: np.random.Generator) -> ArrivalProcess:
    """Return a load of this arrival process.

    unloaded_s: latency of a request that meets an idle server; it determines a fleet's size.
    """
    if arrivals == "fleet":
        return ClosedLoop(rate_hz, unloaded_s, rng)
    if arrivals == "poisson":
        return OpenLoop(rate_hz, rng)
    if arrivals == "periodic":
        return OpenLoop(rate_hz)
    raise ProfileError(f"arrivals are {arrivals!r}; they must be one of {', '.join(ARRIVALS)}")
