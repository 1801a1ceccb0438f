"""Measurement of a latency profile (ROSA §3.4.2): a server under load, at ten rates up to its highest throughput.

Only the engine takes real time; the queue before it is computed. A low rate therefore costs no waiting, and a service law is
measured in the same way as an engine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ros2_rfm_serving.profiles.arrivals import FLEET_PERIOD, Arrival, ArrivalProcess, make_arrivals
from ros2_rfm_serving.profiles.service import ContinuousService, FixedService, ProcessorSharing, ServiceLaw
from ros2_rfm_serving.profiles.table import CurveKey, ProfileRow

STEPS = 10
"""Rates per curve: 10 % to 100 % of the highest throughput."""
WARM_UP = 0.1
"""Share of the first requests that do not count, because the load starts with an empty queue."""


class Subject(Protocol):
    """A server that can be put under load, at one batch size."""

    unloaded_s: float
    """Latency of a request that meets an idle server."""
    max_rate_hz: float

    def latencies_s(self, load: ArrivalProcess, num_requests: int, rng: np.random.Generator) -> list[float]:
        """Return the latencies from sending to reply of the first `num_requests` to be answered."""


class EngineSubject:
    """A real engine: `run(n)` runs one batch of n and returns its duration in seconds."""

    def __init__(self, run: Callable[[int], float], batch_size: int, warm_up_runs: int = 40) -> None:
        self._run, self._batch_size = run, batch_size
        self.unloaded_s = float(np.median([run(batch_size) for _ in range(warm_up_runs)]))
        self.max_rate_hz = batch_size / self.unloaded_s

    def latencies_s(self, load: ArrivalProcess, num_requests: int, rng: np.random.Generator) -> list[float]:
        return serve(load, self._batch_size, self._run, num_requests)


class FixedSubject:
    """A law of fixed batches: every batch takes as long as a full one."""

    def __init__(self, service: FixedService, batch_size: int) -> None:
        self._service, self._batch_size = service, batch_size
        self.unloaded_s = service.mean_s(batch_size)
        self.max_rate_hz = service.capacity_hz(batch_size)

    def latencies_s(self, load: ArrivalProcess, num_requests: int, rng: np.random.Generator) -> list[float]:
        return serve(load, self._batch_size, lambda _: self._service.draw_s(self._batch_size, rng), num_requests)


class ContinuousSubject:
    """A law of continuous batching. Its throughput only tends to a limit: 100 % is where a fleet's requests fill its period."""

    def __init__(self, service: ContinuousService) -> None:
        self._service = service
        self.unloaded_s = service.mean_s(1)
        longest_s = FLEET_PERIOD * self.unloaded_s
        in_service = min(int((longest_s - service.base_s) / service.per_request_s), service.max_concurrent)
        self.max_rate_hz = service.capacity_hz(in_service)

    def latencies_s(self, load: ArrivalProcess, num_requests: int, rng: np.random.Generator) -> list[float]:
        return serve_continuously(load, self._service, num_requests, rng)


def subject_of(service: ServiceLaw, batch_size: int) -> Subject:
    return FixedSubject(service, batch_size) if isinstance(service, FixedService) else ContinuousSubject(service)


def rates_hz(max_rate_hz: float, steps: int = STEPS) -> list[float]:
    """Return 10 % to 100 % of the highest throughput, rounded as in the profile."""
    return [round(max_rate_hz * (i + 1) / steps, 3) for i in range(steps)]


def measure(
    subject: Subject, key: CurveKey, arrivals: str, rate_hz: float, num_requests: int, *, seed: int = 0, repetitions: int = 1
) -> ProfileRow:
    """Return one point, from the requests of all repetitions.

    The seed and the point's name determine its random numbers, so that a point is independent of the others.
    """
    rng = np.random.default_rng([seed, zlib.crc32(repr((key, arrivals, rate_hz)).encode())])
    latencies_s: list[float] = []
    for _ in range(repetitions):
        load = make_arrivals(arrivals, rate_hz, subject.unloaded_s, rng)
        latencies_s += subject.latencies_s(load, num_requests, rng)[int(WARM_UP * num_requests) :]
    return row(key, arrivals, rate_hz, latencies_s)


def serve(load: ArrivalProcess, batch_size: int, run: Callable[[int], float], num_requests: int) -> list[float]:
    """Return the latencies in s of a server that runs waiting requests first come first served, up to `batch_size` at once.

    Between batches time passes only as far as the next request.
    """
    latencies_s: list[float] = []
    now_s = 0.0
    while len(latencies_s) < num_requests:
        now_s = max(now_s, load.next_s())
        batch: list[Arrival] = []
        while len(batch) < batch_size and load.next_s() <= now_s:
            batch.append(load.next_arrival())
        now_s += run(len(batch))
        for sent in batch:
            latencies_s.append(now_s - sent.at_s)
            load.answered(sent.source, now_s)
    return latencies_s[:num_requests]


def serve_continuously(
    load: ArrivalProcess, service: ContinuousService, num_requests: int, rng: np.random.Generator
) -> list[float]:
    """Return the latencies in s of a server with continuous batching."""
    latencies_s: list[float] = []
    server: ProcessorSharing[Arrival] = ProcessorSharing(service)
    while len(latencies_s) < num_requests:
        sent_s, finish_s = load.next_s(), server.next_finish_s()
        if sent_s <= finish_s:
            server.add(load.next_arrival(), sent_s, service.draw_work(rng))
            continue
        for sent in server.finished(finish_s):
            latencies_s.append(finish_s - sent.at_s)
            load.answered(sent.source, finish_s)
    return latencies_s[:num_requests]


def row(key: CurveKey, arrivals: str, rate_hz: float, latencies_s: Sequence[float]) -> ProfileRow:
    p50, p90, p95, p99 = (round(1e3 * float(q), 3) for q in np.quantile(latencies_s, [0.5, 0.9, 0.95, 0.99]))
    return ProfileRow(*key, rate_hz, round(1e3 * float(np.mean(latencies_s)), 3), p50, p90, p95, p99, arrivals)
