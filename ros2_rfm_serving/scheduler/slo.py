"""SLO from request to reply, and the part of it that network and margin leave for a server.

A server's latency and a round trip are independent, so that their tails rarely meet: the percentile of the sum is taken as mean +
mean + root of the sum of the squares of each one's excess of its percentile over its mean (exact for normal distributions). The
part for a server follows from its own latency curves, per configuration (`Curves.share_s`): it is the highest percentile of its
latency with which the sum still keeps the SLO.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ros2_rfm_serving.factory import Factory, TaskEntry
from ros2_rfm_serving.types import SYSTEM1


class Slo(NamedTuple):
    promised_s: float
    """Limit from request to reply; inf: none is declared."""
    percentile: float = 99.0
    margin: float = 0.0
    """Share of the SLO that no prediction may use."""
    travel_s: float = 0.0
    """Mean round trip of the network."""
    far_s: float = 0.0
    """Round trip at the percentile."""
    frames_s: float = 0.0
    """Time that a request of a pipelined session waits for its next frames, whatever its server does; 0: it is not pipelined."""

    @property
    def near(self) -> Slo:
        """Return the SLO without the network."""
        return self._replace(travel_s=0.0, far_s=0.0)

    @property
    def told_s(self) -> float:
        """Return the value for routes; 0: none is declared."""
        return self.promised_s if math.isfinite(self.promised_s) else 0.0

    @property
    def kept_s(self) -> float:
        """Return the part that predictions may use."""
        return self.promised_s * (1 - self.margin)

    def response_s(self, latency_s: float, mean_s: float) -> float:
        """Return the time from request to reply at the percentile. latency_s: of the server, there, without waits for frames."""
        if not self.travel_s or not math.isfinite(latency_s):
            return self.frames_s + latency_s
        return self.frames_s + mean_s + self.travel_s + math.hypot(latency_s - mean_s, self.far_s - self.travel_s)


def slo_of(factory: Factory, task: str, component: str) -> Slo:
    """Return the SLO of the descriptor."""
    spec, network = factory.tasks[task].components[component], factory.network_of(task)
    percentile = spec.percentile or factory.tasks[task].percentile
    promised_s = spec.slo_ms / 1e3 if spec.slo_ms else math.inf
    frames_s = frames_of(factory.tasks[task]) if component == SYSTEM1 else 0.0
    return Slo(promised_s, percentile, factory.planning.slo_margin, network.mean_s, network.at_s(percentile), frames_s)


def frames_of(task: TaskEntry) -> float:
    """Return the seconds from a request to its last frame, for a robot that sends a request whenever its actions end."""
    return (task.pipelining.depth - 1) * task.pipeline.action_period_ms / 1e3 if task.pipelining else 0.0
