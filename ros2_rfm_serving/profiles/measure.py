"""Measuring a latency profile (ROSA §3.4.2): a model server under load, from low rates to its highest throughput.

The load is periodic, spread over several sessions; time is given in, so that the caller decides whether it is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ros2_rfm_serving.profiles.table import ProfileRow


def rates_hz(max_rate_hz: float, steps: int = 10) -> list[float]:
    """10 % to 100 % of the highest throughput."""
    return [max_rate_hz * (i + 1) / steps for i in range(steps)]


def arrivals(rate_hz: float, seconds: float) -> Iterator[float]:
    """Instants of a periodic load, in s from its start."""
    return (i / rate_hz for i in range(int(rate_hz * seconds)))


def serve(due_s: Sequence[float], batch_size: int, run: Callable[[int], float]) -> list[float]:
    """Latencies in s of requests due at `due_s`, served first come first served in batches.

    `run(n)` runs one batch of n and returns the seconds it took. Between batches time passes only as far as the next arrival, so
    a slow rate costs no waiting: what is measured is the engine, what is computed is the queue.
    """
    latencies: list[float] = []
    now_s, first = 0.0, 0
    while first < len(due_s):
        now_s = max(now_s, due_s[first])
        waiting = int(np.searchsorted(due_s, now_s, side="right")) - first
        count = min(batch_size, max(1, waiting))
        now_s += run(count)
        latencies += [now_s - due_s[i] for i in range(first, first + count)]
        first += count
    return latencies


def row(model: str, gpu_type: str, batch_size: int, rate_hz: float, latencies_s: Sequence[float]) -> ProfileRow:
    p50, p90, p95, p99 = (round(1e3 * float(q), 3) for q in np.quantile(latencies_s, [0.5, 0.9, 0.95, 0.99]))
    mean = round(1e3 * float(np.mean(latencies_s)), 3)
    return ProfileRow(model, gpu_type, "fixed", batch_size, round(rate_hz, 3), mean, p50, p90, p95, p99)
