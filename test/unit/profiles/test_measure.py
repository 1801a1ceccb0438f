"""A server under load: periodic, Poisson, and a fleet in closed loop."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.profiles import ContinuousService, FixedService, measure
from ros2_rfm_serving.profiles.arrivals import Arrival, ArrivalProcess, ClosedLoop, OpenLoop


class Listed:
    """Requests at given instants."""

    def __init__(self, due_s: list[float]) -> None:
        self._due_s = due_s

    def next_s(self) -> float:
        return self._due_s[0] if self._due_s else math.inf

    def next_arrival(self) -> Arrival:
        return Arrival(self._due_s.pop(0), 0)

    def answered(self, source: int, now_s: float) -> None: ...


class Watched:
    """A load whose sources must never have two requests in flight."""

    def __init__(self, load: ArrivalProcess) -> None:
        self._load, self.sent, self._waiting = load, Counter[int](), set[int]()
        self.last_s = 0.0

    def next_s(self) -> float:
        return self._load.next_s()

    def next_arrival(self) -> Arrival:
        sent = self._load.next_arrival()
        assert sent.source not in self._waiting and sent.at_s >= self.last_s
        self._waiting.add(sent.source)
        self.sent[sent.source] += 1
        self.last_s = sent.at_s
        return sent

    def answered(self, source: int, now_s: float) -> None:
        self._waiting.remove(source)
        self._load.answered(source, now_s)


def test_a_queue_builds_up_only_beyond_the_engines_speed() -> None:
    slow = measure.serve(OpenLoop(5), 1, lambda count: 0.1, 50)
    assert slow == pytest.approx([0.1] * 50)
    fast = measure.serve(OpenLoop(20), 1, lambda count: 0.1, 200)
    assert fast[-1] == pytest.approx(0.1 + 199 * 0.05)


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=50).map(sorted), st.integers(1, 8))
def test_every_request_is_served_once_in_batches_that_fit(due_s: list[float], batch_size: int) -> None:
    counts: list[int] = []
    latencies = measure.serve(Listed(list(due_s)), batch_size, lambda count: (counts.append(count), 0.01)[1], len(due_s))
    assert len(latencies) == len(due_s) == sum(counts) and max(counts) <= batch_size
    assert min(latencies) >= 0.0099


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_poisson_arrivals_wait_as_pollaczek_and_khinchine_say(share: float) -> None:
    service_s, rng = 0.05, np.random.default_rng(1)
    latencies = measure.serve(OpenLoop(share / service_s, rng), 1, lambda count: service_s, 60_000)
    assert np.mean(latencies) == pytest.approx(service_s * (1 + share / (2 * (1 - share))), rel=0.03)


def test_a_continuous_server_under_poisson_load_is_as_slow_as_theory_says() -> None:
    """Whatever the law of the work, n requests are there with a probability ~ prod rate (base + k per_request) / k, k = 1 ... n."""
    service, rate_hz = ContinuousService(base_s=0.45, per_request_s=0.02, jitter=0.05), 25.0
    latencies = measure.serve_continuously(OpenLoop(rate_hz, np.random.default_rng(2)), service, 40_000, np.random.default_rng(3))
    weights = np.cumprod([1.0, *(rate_hz * service.mean_s(k) / k for k in range(1, 200))])
    mean_in_service = np.arange(200) @ weights / weights.sum()
    assert np.mean(latencies) == pytest.approx(mean_in_service / rate_hz, rel=0.02)


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_fleet_keeps_its_rate_with_one_request_in_flight_per_robot(share: float, batch_size: int) -> None:
    law = FixedService(base_s=0.04, per_row_s=0.01)
    full_s, rate_hz = law.mean_s(batch_size), share * law.capacity_hz(batch_size)
    load = Watched(ClosedLoop(rate_hz, full_s, np.random.default_rng(4)))
    latencies = measure.serve(load, batch_size, lambda count: full_s, 4000)
    assert len(load.sent) == max(1, math.ceil(6 * batch_size * share - 1e-9))
    assert sum(load.sent.values()) / load.last_s == pytest.approx(rate_hz, rel=0.03)
    assert min(latencies) >= full_s * (1 - 1e-9) and max(latencies) <= (len(load.sent) / batch_size + 2) * full_s


@pytest.mark.parametrize("arrivals", ["periodic", "poisson", "fleet"])
def test_latency_rises_with_the_rate_up_to_the_highest_throughput(arrivals: str) -> None:
    for law, size in (
        (FixedService(base_s=0.04, per_row_s=0.01, jitter=0.05), 4),
        (ContinuousService(base_s=0.4, per_request_s=0.02), 1),
    ):
        subject = measure.subject_of(law, size)
        rates = measure.rates_hz(subject.max_rate_hz)
        assert len(rates) == 10 and rates[-1] == pytest.approx(10 * rates[0], rel=0.01)
        points = [measure.measure(subject, ("m", "g", law.batching, size), arrivals, rate, 1500) for rate in rates]
        assert points[0].mean_ms < points[6].mean_ms * 1.02 < points[9].mean_ms
        assert points[0].mean_ms >= 980 * subject.unloaded_s and all(p.arrivals == arrivals for p in points)


def test_a_real_engine_is_timed_by_what_it_says_it_took() -> None:
    sizes: list[int] = []
    subject = measure.EngineSubject(lambda count: (sizes.append(count), 0.01 + 0.001 * count)[1], 4)
    assert subject.max_rate_hz == pytest.approx(4 / 0.014) and set(sizes) == {4}
    point = measure.measure(subject, ("m", "CPU", "fixed", 4), "periodic", 10.0, 100)
    assert point.p50_ms == point.p99_ms == pytest.approx(11.0) and point.batch_size == 4
