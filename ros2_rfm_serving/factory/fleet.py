"""Sections of the descriptor for robots, and for the network between them and the servers."""

from __future__ import annotations

import math

from pydantic import Field

from ros2_rfm_serving.factory.machines import MAX_NETWORK_MS, MAX_OBSERVATION_KB
from ros2_rfm_serving.factory.section import Section


class NetworkEntry(Section):
    """Network between a group of robots and the servers, there and back. Ours."""

    round_trip_ms: float = Field(default=0.0, ge=0, le=MAX_NETWORK_MS)
    """Shortest round trip."""
    jitter_ms: float = Field(default=0.0, ge=0, le=MAX_NETWORK_MS)
    """Mean of the addition to it, half of which is on each way, exponentially distributed."""
    observation_kb: float = Field(default=0.0, ge=0, le=MAX_OBSERVATION_KB)
    """Size of each robot's observation on the wire, which the links of hosts with a `bandwidth_mbit_s` carry. 0: not known."""
    reply_kb: float = Field(default=0.0, ge=0, le=MAX_OBSERVATION_KB)
    """Size of the answer to one on the wire, the other way. 0: not known."""

    @property
    def request_kb(self) -> float:
        """Size of a request and its answer."""
        return self.observation_kb + self.reply_kb

    @property
    def mean_s(self) -> float:
        return (self.round_trip_ms + self.jitter_ms) / 1e3

    def at_s(self, percentile: float) -> float:
        """Return a percentile of the round trip, in s. The sum of two exponential delays of mean j/2 exceeds x j/2 with (1 + x)
        e^-x."""
        late, low, high = 1.0 - percentile / 100.0, 0.0, 100.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if (1 + middle) * math.exp(-middle) > late else (low, middle)
        return (self.round_trip_ms + high * self.jitter_ms / 2) / 1e3


class FleetEntry(Section):
    task: str
    num_robots: int = Field(ge=1, le=100_000)
    network: NetworkEntry = NetworkEntry()
    """Network for which an SLO, which is from request to reply, has to leave time."""
