"""One robot's connection to the servers."""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass

from ros2_rfm_serving.simulation.conditions import Network


@dataclass(slots=True)
class Traffic:
    """What became of all requests: sent = answered + late + lost + refused + dropped + in flight."""

    sent: int = 0
    answered: int = 0
    """To the robot, and it was the answer to its latest request."""
    late: int = 0
    """Answered when the robot did not wait any more."""
    lost: int = 0
    """In the network, the request or its reply, or sent to a server that was down."""
    refused: int = 0
    """By the server."""
    dropped: int = 0
    """By the server: for a newer one, with a session that ended, or when it crashed."""
    travelling: int = 0
    """On the wire now, request or reply."""


class Wire:
    """Delays and losses of one robot's messages, from its own random source."""

    def __init__(self, network: Network, robot: str, rng: random.Random) -> None:
        self._network, self._rng = network, rng
        self._cuts = [cut for cut in network.cuts if not cut.robots or robot in cut.robots]
        self._times_s = [time_s for time_s, _ in network.trace]
        self._perfect = network.is_perfect

    def connected(self, now_s: float) -> bool:
        return not any(cut.start_s <= now_s < cut.end_s for cut in self._cuts)

    def delay_s(self, now_s: float, *, reliable: bool = False) -> float | None:
        """Of a message that sets out now; None: it never arrives. A reliable one is lost in a cut only."""
        if self._perfect:
            return 0.0
        network = self._network
        if not self.connected(now_s):
            return None
        if not reliable and network.loss and self._rng.random() < network.loss:
            return None
        delay_s = self._traced_s(now_s) if self._times_s else network.latency_s
        return delay_s + self._rng.expovariate(1.0 / network.jitter_s) if network.jitter_s else delay_s

    def _traced_s(self, now_s: float) -> float:
        """The trace begins at its first time and repeats after its last."""
        first_s, last_s = self._times_s[0], self._times_s[-1]
        time_s = first_s + now_s % (last_s - first_s) if last_s > first_s else first_s
        return self._network.trace[bisect.bisect_right(self._times_s, time_s) - 1][1]
