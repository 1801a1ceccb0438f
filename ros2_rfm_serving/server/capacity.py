"""Maximum number of sessions of a server, by a formula (Remote-RTC, P10)."""

from __future__ import annotations

import math

from ros2_rfm_serving.types import ModelContract, SessionSharing

UTILISATION = 0.8
"""Utilisation beyond which queues grow faster than throughput."""


def max_sessions(
    contract: ModelContract, service_s: float, batch_size: int, *, rate_hz: float = 0.0, round_trip_s: float = 0.0
) -> int:
    """Return min(0.8 / (r t), (H dt / 2 - RTT) / t), at least 1.

    service_s: time of a batch of `batch_size`, so that t = service_s / batch_size. rate_hz: request rate r of one session; 0: one
    request per half a chunk, 2 / (H dt). A chunk must arrive when half of the last one is executed.
    """
    t = service_s / batch_size
    if contract.serving is SessionSharing.EXCLUSIVE:
        return 1
    if not t > 0:
        return 65_535
    chunk_s = contract.chunk_length / contract.control_rate_hz if contract.control_rate_hz else 0.0
    rate_hz = rate_hz or (2.0 / chunk_s if chunk_s else 1.0)
    by_load = UTILISATION / (rate_hz * t)
    by_latency = (chunk_s / 2 - round_trip_s) / t if chunk_s else math.inf
    return max(1, int(min(by_load, by_latency, 65_535)))
