"""ROSA's published figures as functions of the service laws of its models.

The allocations are those of Table 3 and of the baselines. Eq. 4 and p99 latencies under Poisson arrivals plan capped robots, and
the closed queue of a server's robots gives the figures of uncapped ones. No plan and no simulation is made here: a set of laws
takes a fraction of a second. `fit.py` searches for the laws that satisfy all figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.profiles import FixedService
from ros2_rfm_serving.profiles.measure import measure, rates_hz, subject_of
from ros2_rfm_serving.profiles.service import ContinuousService, Wave
from ros2_rfm_serving.profiles.table import Curve
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup
from ros2_rfm_serving.scheduler.prediction.closed_queue import BatchService, waits
from ros2_rfm_serving.scheduler.prediction.queue_stats import ClientWaits

ACT_S, SLO_S, CALLS = 0.2, 0.2, 0.1
"""Execution time, System 1's SLO, System 2's calls per action (ROSA Table 1)."""
SIZES = (1, 2, 4)
"""Batch sizes that ROSA's search may use with this SLO."""
REQUESTS, REPETITIONS = 2000, 8
"""Requests and repetitions per point of a curve, as in the derived profile."""
SLICES = 4
"""Models per GPU with one GPU per robot (ROSA §4.1, Baseline 1)."""
SURELY = 3.1
"""Standard deviations beyond which one value in a thousand lies."""
JITTER = 0.05
BISECTIONS = 40
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Laws:
    """Service laws of the three models of ROSA §4.1."""

    system1: FixedService
    reasoning: ContinuousService
    """Qwen-VL-7B: System 2 and the monitor."""
    checking: ContinuousService
    """Qwen-VL-3B: safety."""
    crowd: float = 0.0
    """Simulated share within the SLO minus the closed queue's, for the 64 uncapped robots of Fig. 10."""

    def batch_s(self, size: int) -> float:
        return self.system1.mean_s(size)

    def call_s(self, actions_hz: float, servers: int = 1) -> float:
        """Return the mean latency of System 2, with one call in ten actions."""
        return shared_s(self.reasoning, CALLS * actions_hz / servers)

    def curve(self, size: int, arrivals: str = "poisson") -> Curve:
        return _of_unit_batches(size, arrivals, self.system1.jitter).paced(self.batch_s(size))


def laws_of(
    system1_ms: tuple[float, float],
    extra_rows: float,
    reasoning_ms: tuple[float, float],
    checking_ms: tuple[float, float],
    crowd: float = 0.0,
) -> Laws:
    """Return laws from (base, time that a row or request adds) of each model. extra_rows: worth of System 1's step at 4 rows."""
    (base_ms, row_ms), wave = system1_ms, Wave(from_rows=4, extra_rows=extra_rows)
    return Laws(
        system1=FixedService(base_s=base_ms / 1e3, per_row_s=row_ms / 1e3, jitter=JITTER, wave=wave),
        reasoning=_shared(*reasoning_ms),
        checking=_shared(*checking_ms),
        crowd=crowd,
    )


def _shared(base_ms: float, added_ms: float) -> ContinuousService:
    return ContinuousService(base_s=base_ms / 1e3, per_request_s=added_ms / 1e3, jitter=JITTER)


def shared_s(law: ContinuousService, rate_hz: float) -> float:
    """Return the mean latency under independent arrivals: each finds rate x latency others in service."""
    left = 1.0 - rate_hz * law.per_request_s
    return law.mean_s(1) / left if left > 0 else math.inf


@cache
def _of_unit_batches(size: int, arrivals: str, jitter: float) -> Curve:
    """Return the curve of batches that take a second: others have the same curve, scaled in time and rate."""
    subject = subject_of(FixedService(base_s=1.0, per_row_s=0.0, jitter=jitter), size)
    key = ("unit", "unit", "fixed", size)
    points = (measure(subject, key, arrivals, r, REQUESTS, repetitions=REPETITIONS) for r in rates_hz(subject.max_rate_hz))
    return Curve.of(points)


@cache
def tail_s(law: ContinuousService, rate_hz: float) -> float:
    """Return the 99th percentile under Poisson arrivals; inf: the load exceeds the capacity."""
    if rate_hz * law.per_request_s >= 1.0:
        return math.inf
    key = ("shared", "shared", "continuous", 1)
    return measure(subject_of(law, 1), key, "poisson", rate_hz, REQUESTS, repetitions=2).p99_ms / 1e3


# --- capped robots: ROSA's search for given numbers of servers ---


def planned_hz(laws: Laws, robots: int, servers: int, *, calls: bool = True) -> float:
    """Return the rate of each robot with the best batch size (ROSA §3.4.2): eq. 4, and the SLO at the p99 of the fullest server."""
    return _planned(laws, robots, servers, calls)[0]


@cache
def _planned(laws: Laws, robots: int, servers: int, calls: bool) -> tuple[float, int]:
    """Return (rate in Hz, batch size)."""
    return max(((_rate_hz(laws, size, robots, servers, calls), size) for size in SIZES), key=lambda found: (found[0], -found[1]))


def _rate_hz(laws: Laws, size: int, robots: int, servers: int, calls: bool) -> float:
    curve = laws.curve(size)
    most_hz = curve.capacity_hz(SLO_S, "p99") / math.ceil(robots / servers)
    return min(closed_loop_hz(curve, robots / servers, ACT_S, lambda f: CALLS * laws.call_s(robots * f) if calls else 0.0), most_hz)


def closed_loop_hz(curve: Curve, robots: float, act_s: float, elsewhere_s: Callable[[float], float]) -> float:
    """Return the rate of ROSA eq. 4 where the latency is that of the rate itself."""
    low, high = 0.0, 1.0 / act_s
    for _ in range(BISECTIONS):
        f = 0.5 * (low + high)
        beyond = robots * f > curve.rates_hz[-1]
        if not beyond and f * (act_s + curve.latency_s(robots * f, "mean") + elsewhere_s(f)) <= 1.0:
            low = f
        else:
            high = f
    return low


# --- uncapped robots: the closed queue of a server's robots ---


@dataclass(frozen=True)
class Open:
    """Robots of one server that send requests as soon as they can."""

    rate_hz: float
    """Rate of all robots together."""
    waited: ClientWaits

    @property
    def within(self) -> float:
        return float(np.mean(np.concatenate(self.waited.responses) <= SLO_S))

    @property
    def median_s(self) -> float:
        return float(np.median(np.concatenate(self.waited.responses)))


@cache
def uncapped(laws: Laws, robots: int, size: int, call_s: float = 0.0) -> Open:
    found = _waited(laws, ClientGroup(robots, 0.0, ACT_S, calls=((CALLS, call_s, 0.05 * call_s),) if call_s else ()), size)
    response_s = float(np.mean(np.concatenate(found.responses)))
    return Open(robots / (ACT_S + response_s + CALLS * call_s), found)


def _waited(laws: Laws, member: ClientGroup, size: int) -> ClientWaits:
    return waits((member,), BatchService(size, laws.batch_s(size), laws.system1.jitter)).all


def capped_median_s(laws: Laws, robots: int, servers: int) -> float:
    """Return the median over all robots, which are spread evenly: some servers have one more."""
    f, size = _planned(laws, robots, servers, True)
    call = (CALLS, laws.call_s(robots * f), 0.0)
    fewest, fuller = divmod(robots, servers)
    responses, weights = [], []
    for each, count in ((fewest, servers - fuller), (fewest + 1, fuller)):
        if each and count:
            found = np.concatenate(_waited(laws, ClientGroup(each, 1.0 / f, ACT_S, gives_way=True, calls=(call,)), size).responses)
            responses.append(found)
            weights.append(np.full(len(found), each * count / len(found)))
    return _middle(np.concatenate(responses), np.concatenate(weights))


def _middle(values: Values, weights: Values) -> float:
    """Return the weighted median."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, 0.5 * below[-1])])
